/* test_hf.c -- import and export: round trips to the bit, fingerprints that notice a wrong
 * layout, folders that appear whole or not at all. */
#include "harness.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "hf/hf_copy.h"
#include "hf/hf_export.h"
#include "hf/hub.h"
#include "hf/hf_import.h"

#define LLAMA                                                                            \
    "family: llama, layers: 2, width: 16, heads: 2, kv_heads: 1, context: 30, mlp: 24, " \
    "vocab: 61, tied: false, init_std: 0.3"
#define PHI3                                                                            \
    "family: phi3, layers: 2, width: 16, heads: 4, kv_heads: 2, context: 30, mlp: 24, " \
    "vocab: 61, tied: false, init_std: 0.3, window: 9"
#define GPT2 \
    "family: gpt2, layers: 2, width: 16, heads: 2, context: 30, mlp: 16, vocab: 61, init_std: 0.3"

static ls_status export_to(const char *from, const char *to, ls_dtype type, int64_t shard,
                           ls_hf_export_report *report)
{
    ls_hf_export_args args = {.from = from, .to = to, .step = -1, .type = type, .shard = shard};

    return ls_hf_export(&args, report);
}

/* All tensors of both folders are equal, byte for byte. */
static void check_equal(const char *a, const char *b)
{
    ls_safetensors x, y;

    LS_CHECK_OK(ls_safetensors_open(&x, a));
    LS_CHECK_OK(ls_safetensors_open(&y, b));
    LS_CHECK_EQ(x.count, y.count);
    for (int i = 0; i < x.count; i++) {
        const ls_safetensors_entry *e = &x.entries[i], *f = ls_safetensors_find(&y, e->name);
        LS_CHECK(f && f->dtype == e->dtype && f->ndim == e->ndim);
        LS_CHECK_EQ(f->end - f->begin, e->end - e->begin);
        LS_CHECK(memcmp((const char *)x.bytes + e->begin, (const char *)y.bytes + f->begin,
                        (size_t)(e->end - e->begin)) == 0);
    }
    LS_CHECK(memmem(y.bytes, (size_t)y.data_begin, "\"format\":\"pt\"", 13));
    ls_safetensors_close(&x);
    ls_safetensors_close(&y);
}

LS_TEST(exchange_round_trip_keeps_every_byte)
{
    static const char *const models[] = {LLAMA, GPT2, PHI3};
    static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};

    for (int i = 0; i < 9; i++) {
        hub s;
        ls_hf_import_report in, again;
        ls_hf_export_report out;
        char hf[24], ours[24], back[24], ours2[24], a[64], b[64];
        snprintf(hf, sizeof hf, "hf%d", i);
        snprintf(ours, sizeof ours, "ours%d", i);
        snprintf(back, sizeof back, "back%d", i);
        snprintf(ours2, sizeof ours2, "again%d", i);
        hub_init(&s, models[i / 3]);
        for (int k = 0; k < s.n; k++)
            s.tensors[k].type = types[i % 3];
        hub_write(&s, hf, 1);
        LS_CHECK_OK(ls_hf_import(hf, ours, &in));
        LS_CHECK_EQ(in.proof, LS_HF_IMPORT_UNPROVED);
        LS_CHECK_EQ(in.parameters, s.model.elements);
        LS_CHECK_OK(export_to(ours, back, types[i % 3], 0, &out));
        LS_CHECK(out.worst == 0);
        LS_CHECK_EQ(out.files, 1);
        snprintf(a, sizeof a, "%s/model.safetensors", hf);
        snprintf(b, sizeof b, "%s/model.safetensors", back);
        check_equal(a, b);
        LS_CHECK_OK(ls_hf_import(back, ours2, &again));
        LS_CHECK_EQ(again.proof, LS_HF_IMPORT_PROVED);
        LS_CHECK_STR(again.weights_hash, in.weights_hash);
        hub_release(&s);
    }
}

LS_TEST(exchange_exports_shards_that_read_back)
{
    hub s;
    ls_hf_import_report in, again;
    ls_hf_export_report out;

    hub_init(&s, LLAMA);
    hub_write(&s, "hf", 3);
    LS_CHECK_OK(ls_hf_import("hf", "ours", &in));
    LS_CHECK_EQ(in.files, 3);
    LS_CHECK_OK(export_to("ours", "sharded", LS_F32, 5000, &out));
    LS_CHECK(out.files > 3);
    LS_CHECK(ls_file_exists("sharded/model.safetensors.index.json"));
    LS_CHECK(!ls_file_exists("sharded/model.safetensors"));
    LS_CHECK_OK(ls_hf_import("sharded", "again", &again));
    LS_CHECK_STR(again.weights_hash, in.weights_hash);
    LS_CHECK_OK(export_to("sharded", "one", LS_BF16, 0, &out)); /* any folder may be exported */
    LS_CHECK_EQ(out.files, 1);
    LS_CHECK_FAILS(ls_hf_import("ours", "twice", &again), LS_EUSAGE,
                   "a model of lineshaft already");
    hub_release(&s);
}

/* --- layouts that have the right names, shapes and checksums -----------------------------------
 */

/* The rows of each head in the order that turns neighbours instead of halves. */
static void interleave(float *w, int64_t heads, int64_t D, int64_t cols)
{
    float *copy = ls_mem_array((size_t)(heads * D * cols), sizeof *copy);

    LS_CHECK(copy);
    memcpy(copy, w, (size_t)(heads * D * cols) * sizeof *copy);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t d = 0; d < D; d++) {
            int64_t from = d % 2 ? D / 2 + d / 2 : d / 2;
            memcpy(w + (h * D + d) * cols, copy + (h * D + from) * cols,
                   (size_t)cols * sizeof *copy);
        }
    ls_mem_free(copy);
}

static void transpose(float *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) {
            float x = w[i * n + j];
            w[i * n + j] = w[j * n + i];
            w[j * n + i] = x;
        }
}

/* A folder with its fingerprint whose weights are then written anew. */
static void prepare(hub *s, const char *model)
{
    ls_hf_export_report out;

    hub_init(s, model);
    hub_write(s, "hf", 1);
    LS_CHECK_OK(export_to("hf", "printed", LS_F32, 0, &out));
}

LS_TEST(exchange_notices_interleaved_rotary_rows)
{
    hub s;
    ls_hf_import_report in;

    prepare(&s, LLAMA);
    LS_CHECK_OK(ls_hf_import("printed", "good", &in));
    interleave(hub_find(&s, "model.layers.0.self_attn.q_proj.weight")->values, 2, 8, 16);
    interleave(hub_find(&s, "model.layers.0.self_attn.k_proj.weight")->values, 1, 8, 16);
    hub_write_file(&s, "printed/model.safetensors", 0, s.n);
    LS_CHECK_FAILS(ls_hf_import("printed", "bad", &in), LS_EDATA,
                   "the model in \"printed\" does not compute what its fingerprint says: logit");
    LS_CHECK(!ls_file_exists("bad"));
    hub_release(&s);
}

LS_TEST(exchange_notices_a_transposed_matrix)
{
    static const char *const names[] = {"transformer.h.1.attn.c_proj.weight",
                                        "transformer.h.0.mlp.c_fc.weight"};
    hub s;
    ls_hf_import_report in;

    prepare(&s, GPT2);
    for (int i = 0; i < 2; i++) {
        transpose(hub_find(&s, names[i])->values, 16);
        hub_write_file(&s, "printed/model.safetensors", 0, s.n);
        LS_CHECK_FAILS(ls_hf_import("printed", "bad", &in), LS_EDATA, "does not compute what");
        transpose(hub_find(&s, names[i])->values, 16);
    }
    hub_write_file(&s, "printed/model.safetensors", 0, s.n);
    LS_CHECK_OK(ls_hf_import("printed", "good", &in));
    hub_release(&s);
}

LS_TEST(exchange_notices_another_rotary_base)
{
    hub s;
    ls_hf_import_report in;
    ls_str text;

    prepare(&s, LLAMA);
    ls_str_init(&text);
    LS_CHECK_OK(ls_file_read("printed/config.json", 1 << 20, &text));
    for (char *p = text.p; (p = strstr(p, "10000.0")) != NULL; p++)
        memcpy(p, "50000.0", 7);
    LS_CHECK_OK(ls_file_write_atomic("printed/config.json", text.p, text.len));
    LS_CHECK_FAILS(ls_hf_import("printed", "bad", &in), LS_EDATA, "does not compute what");
    ls_str_release(&text);
    hub_release(&s);
}

/* --- fingerprints as text ----------------------------------------------------------------------
 */

LS_TEST(fingerprint_text_reads_back_and_is_not_trusted)
{
    static const char *const bad[] = {
        "",
        "{}",
        "[]",
        "{\"format\":\"lineshaft fingerprint 1\"}",
        "{\"format\":\"lineshaft fingerprint 1\",\"vocab\":5,\"tokens\":[5],\"rows\":[{}]}",
        "{\"format\":\"lineshaft fingerprint 1\",\"vocab\":5,\"tokens\":[1],\"rows\":[{"
        "\"position\":1,\"mean\":0,\"rms\":1,\"places\":[0],\"logits\":[0]}]}",
        "{\"format\":\"lineshaft fingerprint 1\",\"vocab\":5,\"tokens\":[1],\"rows\":[{"
        "\"position\":0,\"mean\":0,\"rms\":1,\"places\":[5],\"logits\":[0]}]}",
        "{\"format\":\"lineshaft fingerprint 1\",\"vocab\":5,\"tokens\":[1],\"rows\":[{"
        "\"position\":0,\"mean\":0,\"rms\":1,\"places\":[0,1],\"logits\":[0]}]}",
    };
    hub s;
    ls_fingerprint a, b;
    ls_hf_export_report out;
    bool found;
    ls_str text, again;

    hub_init(&s, LLAMA);
    hub_write(&s, "hf", 1);
    LS_CHECK_OK(ls_fingerprint_read(&a, "hf", &found));
    LS_CHECK(!found);
    LS_CHECK_OK(export_to("hf", "printed", LS_F32, 0, &out));
    LS_CHECK_OK(ls_fingerprint_read(&a, "printed", &found));
    LS_CHECK(found);
    LS_CHECK_EQ(a.n_tokens, 24);
    LS_CHECK_EQ(a.rows[2].position, 23);
    ls_str_init(&text);
    ls_str_init(&again);
    ls_fingerprint_print(&a, &text);
    LS_CHECK_OK(ls_fingerprint_parse(&b, text.p, text.len, "x"));
    ls_fingerprint_print(&b, &again);
    LS_CHECK_STR(again.p, text.p);
    for (size_t i = 0; i < LS_COUNT(bad); i++)
        LS_CHECK_FAILS(ls_fingerprint_parse(&b, bad[i], strlen(bad[i]), "x"), LS_EDATA,
                       "\"x\" is not a fingerprint");
    ls_str_release(&text);
    ls_str_release(&again);
    hub_release(&s);
}

/* --- whole or not at all ------------------------------------------------------------------------
 */

static int entries_here(void)
{
    ls_str names;
    int n = 0;

    ls_str_init(&names);
    (void)ls_file_glob("*", &names, &n);
    ls_str_release(&names);
    return n;
}

LS_TEST(exchange_leaves_nothing_behind_when_it_fails)
{
    hub s;
    ls_hf_import_report in;
    ls_hf_export_report out;

    hub_init(&s, LLAMA);
    hub_write(&s, "hf", 1);
    LS_CHECK_OK(ls_hf_import("hf", "ours", &in));
    int before = entries_here();
    LS_CHECK_FAILS(export_to("ours", "hf", LS_F32, 0, &out), LS_EUSAGE,
                   "\"hf\" exists and is not an empty folder");
    LS_CHECK_FAILS(ls_hf_import("hf", "ours", &in), LS_EUSAGE, "exists and is not an empty folder");
    ls_fault_arm("safetensors.reserve@1");
    LS_CHECK_FAILS(export_to("ours", "full", LS_F32, 0, &out), LS_EIO, "No space left on device");
    LS_CHECK(strstr(ls_err_last()->hint, "Free some space"));
    ls_fault_arm("file.write@1");
    LS_CHECK_FAILS(export_to("ours", "full", LS_F32, 0, &out), LS_EIO, "No space left on device");
    ls_fault_arm(NULL);
    hub_find(&s, "model.norm.weight")->values[3] = 1e6f;
    hub_write(&s, "large", 1);
    LS_CHECK_FAILS(export_to("large", "half", LS_F16, 0, &out), LS_EDATA,
                   "a weight of \"model.norm.weight\" is 1e+06, too large for f16");
    hub_find(&s, "model.norm.weight")->values[3] = NAN;
    hub_write(&s, "nan", 1);
    LS_CHECK_FAILS(ls_hf_import("nan", "x", &in), LS_ENUMERIC, "not numbers");
    LS_CHECK_EQ(entries_here(), before + 2);
    LS_CHECK_EQ(mkdir("empty", 0755), 0);
    LS_CHECK_OK(export_to("ours", "empty", LS_F32, 0, &out)); /* an empty folder is free */
    hub_release(&s);
}

LS_TEST(exchange_survives_failing_allocations)
{
    hub s;
    ls_hf_export_report out;
    int n = 1;

    hub_init(&s, GPT2);
    hub_write(&s, "hf", 1);
    for (;; n++) {
        ls_mem_fail_nth((uint64_t)n);
        ls_status st = export_to("hf", "out", LS_BF16, 0, &out);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
        LS_CHECK(!ls_file_exists("out"));
        LS_CHECK(n < 10000);
    }
    LS_CHECK(n > 20);
    hub_release(&s);
}

LS_TEST(exchange_has_no_adapter_without_lora)
{
    hub s;
    ls_hf_export_report out;
    ls_hf_export_args args = {.from = "hf", .to = "out", .step = -1, .adapter = true};

    hub_init(&s, LLAMA);
    hub_write(&s, "hf", 1);
    LS_CHECK_FAILS(ls_hf_export(&args, &out), LS_EUSAGE, "was trained without LoRA");
    hub_release(&s);
}

LS_TEST(fingerprint_that_compares_nothing_proves_nothing)
{
    hub s;
    ls_hf_import_report in;
    ls_fingerprint print;
    ls_hf_import_report again;
    bool found;

    hub_init(&s, "family: llama, layers: 1, width: 16, heads: 2, context: 20, vocab: 61");
    hub_write(&s, "hf", 1);
    LS_CHECK_OK(ls_hf_import("hf", "ours", &in));
    LS_CHECK_OK(ls_fingerprint_read(&print, "ours", &found));
    LS_CHECK(found && print.n_tokens == 20);
    print.n_tokens = 24; /* made with a longer context, and looking at its end only */
    print.n_rows = 1;
    print.rows[0].position = 23;
    LS_CHECK_OK(ls_fingerprint_write(&print, "hf"));
    LS_CHECK_FAILS(ls_hf_import("hf", "again", &again), LS_EDATA, "proves nothing");
    LS_CHECK(!ls_file_exists("again"));
    hub_release(&s);
}

/* --- the small files that go along -------------------------------------------------------------- */

static void put(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

static void check_text(const char *path, const char *want)
{
    ls_str text;

    ls_str_init(&text);
    LS_CHECK_OK(ls_file_read(path, 1000, &text));
    LS_CHECK_STR(text.p, want);
    ls_str_release(&text);
}

LS_TEST(copy_keeps_what_a_run_needs)
{
    LS_CHECK_EQ(mkdir("run", 0755), 0);
    LS_CHECK_EQ(mkdir("tok", 0755), 0);
    LS_CHECK_EQ(mkdir("hf", 0755), 0);
    put("tok/tokenizer.json", "one");
    put("tok/chat_template.jinja", "chat");
    put("tok/model.safetensors", "large");
    put("hf/config.json", "config");
    put("hf/tokenizer.json", "another");
    LS_CHECK_OK(ls_hf_copy_keep("run", "bytes", "", true));
    LS_CHECK(!ls_file_exists("run/tokenizer"));
    LS_CHECK_OK(ls_hf_copy_keep("run", "tok", "hf", true));
    check_text("run/tokenizer/tokenizer.json", "one");
    check_text("run/tokenizer/chat_template.jinja", "chat");
    check_text("run/tokenizer/config.json", "config");
    LS_CHECK(!ls_file_exists("run/tokenizer/model.safetensors"));
    put("tok/tokenizer.json", "two");
    LS_CHECK_OK(ls_hf_copy_keep("run", "tok", "", false)); /* what is there stays */
    check_text("run/tokenizer/tokenizer.json", "one");
    put("tok/mine.json", "three"); /* a tokenizer may be named by its file */
    LS_CHECK_OK(ls_hf_copy_keep("run", "tok/mine.json", "", true));
    check_text("run/tokenizer/tokenizer.json", "three");
    LS_CHECK(!ls_file_exists("run/tokenizer/config.json"));
    ls_fault_arm("file.write@2");
    LS_CHECK_FAILS(ls_hf_copy_keep("run", "tok", "hf", true), LS_EIO, "No space left");
    ls_fault_arm(NULL);
    LS_CHECK(!ls_file_exists("run/tokenizer"));
    LS_CHECK_OK(ls_hf_copy_keep("run", "bytes", "hf", false));
    LS_CHECK(!ls_file_exists("run/tokenizer/tokenizer.json"));
    check_text("run/tokenizer/config.json", "config");
}
