/* test_hf_folder.c -- models in folders: whole, in shards, in other types, and each way to be wrong.
 */
#include "harness.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "hf/hf_convert.h"
#include "hf/hf_folder.h"
#include "hf/hub.h"

#define LLAMA                                                                           \
    "family: llama, layers: 2, width: 12, heads: 3, kv_heads: 1, context: 9, mlp: 20, " \
    "vocab: 31, tied: false"
#define GPT2 "family: gpt2, layers: 2, width: 12, heads: 3, context: 9, vocab: 31"

/* The folder opens, fits its own model, and holds the sample's values. */
static void check_same(const char *folder, hub *s)
{
    ls_hf_folder *f;
    ls_model m;

    LS_CHECK_OK(ls_hf_folder_open(&f, folder, -1));
    LS_CHECK(ls_hf_folder_is_hf(f));
    LS_CHECK_STR(ls_hf_folder_path(f), folder);
    LS_CHECK_EQ(ls_hf_folder_run(f)->data.text.count, 0);
    LS_CHECK_OK(ls_model_init(&m, ls_hf_folder_run(f), ls_hf_folder_run(f)->model.vocab));
    LS_CHECK_OK(ls_hf_folder_check(f, &m));
    LS_CHECK_EQ(m.flat, s->model.flat);
    float *w = ls_mem_array((size_t)m.flat, sizeof *w), part[7];
    LS_CHECK(w);
    memset(w, 0x55, (size_t)m.flat * sizeof *w);
    LS_CHECK_OK(ls_hf_folder_load(f, &m, w));
    for (int i = 0; i < m.n_params; i++) {
        const ls_param *p = &m.params[i], *next = i + 1 < m.n_params ? p + 1 : NULL;
        const float *want = s->tensors[i].values;
        LS_CHECK(memcmp(w + p->first, want, (size_t)p->count * sizeof *w) == 0);
        LS_CHECK(ls_hf_folder_has(f, p));
        int64_t first = p->count / 3, n = ls_min_i64(7, p->count - first);
        LS_CHECK_OK(ls_hf_folder_read(f, p, first, n, part));
        LS_CHECK(memcmp(part, want + first, (size_t)n * sizeof *w) == 0);
        for (int64_t k = p->first + p->count; k < (next ? next->first : m.flat); k++)
            LS_CHECK(w[k] == 0);
    }
    ls_mem_free(w);
    ls_model_release(&m);
    ls_hf_folder_close(f);
}

LS_TEST(folder_reads_one_file_and_shards)
{
    static const char *const models[] = {LLAMA, GPT2};
    hub s;

    for (int i = 0; i < 2; i++) {
        char name[32];
        hub_init(&s, models[i]);
        for (int n = 1; n <= 5; n += 2) {
            snprintf(name, sizeof name, "m%d.%d", i, n);
            hub_write(&s, name, n);
            check_same(name, &s);
        }
        hub_release(&s);
    }
}

/* Values that a narrower type holds exactly come back exactly. */
LS_TEST(folder_reads_narrow_types)
{
    hub s;

    hub_init(&s, LLAMA);
    for (int i = 0; i < s.n; i++) {
        hub_tensor *t = &s.tensors[i];
        t->type = i % 3 == 0 ? LS_BF16 : i % 3 == 1 ? LS_F16 : LS_F32;
        for (int64_t k = 0; k < t->count; k++)
            t->values[k] = (float)(k % 200 - 100) / 64.0f;
    }
    hub_write(&s, "m", 2);
    check_same("m", &s);
    hub_release(&s);
}

static void rename_all(hub *s, const char *prefix)
{
    size_t n = strlen(prefix);

    for (int i = 0; i < s->n; i++)
        if (strncmp(s->tensors[i].name, prefix, n) == 0)
            memmove(s->tensors[i].name, s->tensors[i].name + n, strlen(s->tensors[i].name) - n + 1);
}

LS_TEST(folder_accepts_names_without_the_prefix)
{
    hub s;

    hub_init(&s, GPT2);
    rename_all(&s, "transformer.");
    hub_add(&s, "h.0.attn.bias", 9, 9);
    hub_add(&s, "h.1.attn.masked_bias", 0, 1);
    hub_write(&s, "g", 1);
    check_same("g", &s);
    hub_release(&s);
    hub_init(&s, LLAMA);
    rename_all(&s, "model.");
    hub_add(&s, "layers.1.self_attn.rotary_emb.inv_freq", 0, 2);
    hub_write(&s, "l", 1);
    check_same("l", &s);
    hub_release(&s);
}

static ls_status check(const char *folder)
{
    ls_hf_folder *f = NULL;
    ls_model m = {.params = NULL};
    ls_status st;

    LS_TRY(st, ls_hf_folder_open(&f, folder, -1), out);
    LS_TRY(st, ls_model_init(&m, ls_hf_folder_run(f), ls_hf_folder_run(f)->model.vocab), out);
    LS_TRY(st, ls_hf_folder_check(f, &m), out);
out:
    ls_model_release(&m);
    ls_hf_folder_close(f);
    return st;
}

LS_TEST(folder_checks_a_tied_head)
{
    hub s;

    hub_init(&s, GPT2);
    const hub_tensor *wte = hub_find(&s, "transformer.wte.weight");
    hub_tensor *head = hub_add(&s, "lm_head.weight", 31, 12);
    memcpy(head->values, wte->values, (size_t)wte->count * sizeof(float));
    hub_write(&s, "same", 1);
    check_same("same", &s);
    head->values[371] = nextafterf(head->values[371], 1);
    hub_write(&s, "other", 1);
    LS_CHECK_FAILS(check("other"), LS_EDATA,
                   "\"lm_head.weight\" differs from \"transformer.wte.weight\"");
    hub_release(&s);
}

LS_TEST(folder_says_which_tensor_is_wrong)
{
    hub s;

    hub_init(&s, LLAMA);
    hub_drop(&s, "model.norm.weight");
    hub_write(&s, "missing", 1);
    LS_CHECK_FAILS(check("missing"), LS_EDATA,
                   "\"missing\": the tensor \"model.norm.weight\" is missing");
    hub_add(&s, "model.layers.2.input_layernorm.weight", 0, 12);
    hub_write(&s, "extra", 3);
    LS_CHECK_FAILS(check("extra"), LS_EDATA, "is missing; 1 more like this");
    hub_release(&s);

    hub_init(&s, LLAMA);
    hub_add(&s, "model.layers.0.self_attn.q_norm.weight", 0, 4);
    hub_write(&s, "norm", 1);
    LS_CHECK_FAILS(check("norm"), LS_EDATA,
                   "no place for the tensor \"model.layers.0.self_attn.q_norm.weight\"");
    hub_drop(&s, "model.layers.0.self_attn.q_norm.weight");
    hub_tensor *t = hub_find(&s, "model.layers.1.mlp.up_proj.weight");
    t->shape[0] = 12;
    t->shape[1] = 20;
    hub_write(&s, "shape", 1);
    LS_CHECK_FAILS(check("shape"), LS_EDATA,
                   "\"model.layers.1.mlp.up_proj.weight\" has shape [12, 20], but the model needs "
                   "[20, 12]");
    hub_release(&s);
}

static void write_text(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

LS_TEST(folder_says_what_is_no_model)
{
    hub s;

    LS_CHECK_FAILS(check("nowhere"), LS_EUSAGE, "there is no \"nowhere\"");
    LS_CHECK_EQ(mkdir("empty", 0755), 0);
    LS_CHECK_FAILS(check("empty"), LS_EUSAGE, "\"empty\"");
    hub_init(&s, LLAMA);
    hub_write(&s, "m", 1);
    LS_CHECK_EQ(unlink("m/config.json"), 0);
    LS_CHECK_FAILS(check("m"), LS_EUSAGE, "there is no config.json in \"m\"");
    write_text("m/config.json", s.config);
    LS_CHECK_EQ(rename("m/model.safetensors", "m/pytorch_model.bin"), 0);
    LS_CHECK_FAILS(check("m"), LS_EUSAGE, "has its weights as pytorch_model.bin only");
    LS_CHECK(strstr(ls_err_last()->hint, "Convert it to safetensors first"));
    LS_CHECK_EQ(unlink("m/pytorch_model.bin"), 0);
    LS_CHECK_FAILS(check("m"), LS_EUSAGE, "there are no weights in \"m\"");
    hub_release(&s);
}

LS_TEST(folder_trusts_no_index)
{
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"{", "not valid JSON"},
        {"{}", "no \"weight_map\""},
        {"{\"weight_map\":[]}", "no \"weight_map\""},
        {"{\"weight_map\":{\"a\":\"../../etc/x.safetensors\"}}", "not the name"},
        {"{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", "not the name"},
        {"{\"weight_map\":{\"a\":\"..safetensors\"}}", "not the name"},
        {"{\"weight_map\":{\"a\":\"x.bin\"}}", "not the name"},
        {"{\"weight_map\":{\"a\":7}}", "not the name"},
        {"{\"weight_map\":{\"a\":\"gone.safetensors\"}}",
         "\"m/gone.safetensors\" is missing: model.safetensors.index.json names it"},
        {"{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}",
         "but model.safetensors.index.json puts it nowhere"},
    };
    hub s;

    hub_init(&s, LLAMA);
    hub_write(&s, "m", 2);
    check_same("m", &s);
    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        write_text("m/model.safetensors.index.json", rows[i].text);
        LS_CHECK_FAILS(check("m"), LS_EDATA, rows[i].part);
    }
    hub_write(&s, "n", 2);
    hub_write_file(&s, "n/model-00002-of-00002.safetensors", s.n / 2 + 1, s.n - s.n / 2 - 1);
    LS_CHECK_FAILS(check("n"), LS_EDATA, "but it is not there");
    hub_release(&s);
}

LS_TEST(folder_survives_exhausted_memory)
{
    hub s;
    ls_hf_folder *f;
    int n = 1;

    hub_init(&s, LLAMA);
    hub_write(&s, "m", 3);
    for (;; n++) {
        ls_mem_fail_nth((uint64_t)n);
        ls_status st = ls_hf_folder_open(&f, "m", -1);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
        LS_CHECK(n < 10000);
    }
    LS_CHECK(n > 5);
    ls_hf_folder_close(f);
    hub_release(&s);
}

/* --- numbers ---------------------------------------------------------------------------------- */

static float widened(const char *type, uint32_t bits)
{
    float x;

    ls_hf_convert_widen(ls_safetensors_dtype_find(type), &bits, 1, &x);
    return x;
}

LS_TEST(convert_widens_exactly)
{
    double d = 1.0 / 3.0;
    float x;

    LS_CHECK(widened("BF16", 0x3f80) == 1.0f);
    LS_CHECK(widened("F16", 0x3c00) == 1.0f);
    LS_CHECK(widened("F16", 0x7bff) == 65504.0f);
    LS_CHECK(widened("F16", 0x0001) == ldexpf(1, -24));
    LS_CHECK(widened("F16", 0x83ff) == -ldexpf(1023, -24));
    LS_CHECK(widened("F16", 0xfc00) == -INFINITY);
    LS_CHECK(isnan(widened("F16", 0x7c01)));
    LS_CHECK(signbit(widened("F16", 0x8000)) && widened("F16", 0x8000) == 0);
    LS_CHECK(widened("F8_E4M3", 0x7e) == 448.0f);
    LS_CHECK(widened("F8_E4M3", 0x38) == 1.0f);
    LS_CHECK(widened("F8_E4M3", 0x01) == ldexpf(1, -9));
    LS_CHECK(isnan(widened("F8_E4M3", 0xff)));
    LS_CHECK(widened("F8_E5M2", 0x7b) == 57344.0f);
    LS_CHECK(widened("F8_E5M2", 0x7c) == INFINITY);
    LS_CHECK(widened("F8_E5M2", 0x01) == ldexpf(1, -16));
    LS_CHECK(isnan(widened("F8_E5M2", 0x7d)));
    ls_hf_convert_widen(ls_safetensors_dtype_find("F64"), &d, 1, &x);
    LS_CHECK(x == 1.0f / 3.0f);
    LS_CHECK(!ls_hf_convert_reads(ls_safetensors_dtype_find("I32")));
    LS_CHECK(!ls_hf_convert_reads(ls_safetensors_dtype_find("F8_E4M3FNUZ")));
}

static uint16_t narrowed(ls_dtype type, float x)
{
    uint16_t bits;

    ls_hf_convert_narrow(type, &x, 1, &bits);
    return bits;
}

/* Each half survives the way to fp32 and back, and what lies between rounds to the even one. */
LS_TEST(convert_narrows_to_nearest_even)
{
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float x = widened("F16", bits);
        LS_CHECK(isnan(x) ? isnan(widened("F16", narrowed(LS_F16, x)))
                          : narrowed(LS_F16, x) == bits);
        if ((bits & 0x7fff) < 0x7bff) {
            float next = widened("F16", bits + 1), mid = (x + next) / 2;
            LS_CHECK_EQ(narrowed(LS_F16, mid), bits % 2 ? bits + 1 : bits);
            LS_CHECK_EQ(narrowed(LS_F16, nextafterf(mid, next)), bits + 1);
            LS_CHECK_EQ(narrowed(LS_F16, nextafterf(mid, x)), bits);
        }
        float b = widened("BF16", bits);
        LS_CHECK(isnan(b) ? isnan(widened("BF16", narrowed(LS_BF16, b)))
                          : narrowed(LS_BF16, b) == bits);
    }
    LS_CHECK_EQ(narrowed(LS_F16, 65519.99f), 0x7bff);
    LS_CHECK_EQ(narrowed(LS_F16, 65520.0f), 0x7c00);
    LS_CHECK_EQ(narrowed(LS_BF16, 1.00390625f), 0x3f80); /* half way: to even */
    LS_CHECK_EQ(narrowed(LS_BF16, 1.01171875f), 0x3f82);
}
