/* test_hf_quant.c -- quantized folders: rounding, reading back, damage. */
#include "harness.h"

#include <math.h>
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "hf/hf_export.h"
#include "hf/hf_import.h"
#include "hf/hub.h"
#include "hf/loaded_model.h"

#define LLAMA                                                                                    \
    "family: llama, layers: 1, width: 16, heads: 2, context: 16, mlp: 24, vocab: 61, init_std: " \
    "0.3"
#define NAME "model.layers.0.mlp.up_proj.weight"

static ls_status quantize(const char *to, int bits, int64_t group, ls_hf_export_report *r)
{
    ls_hf_export_args args = {
        .from = "hf", .to = to, .step = -1, .type = LS_F32, .bits = bits, .group = group};

    return ls_hf_export(&args, r);
}

/* A parameter of a folder, as every command reads it. */
static void load(const char *folder, const char *name, float *values, int64_t n)
{
    ls_hf_folder *f = NULL;
    ls_loaded_model m = {.w = NULL};

    LS_CHECK_OK(ls_hf_folder_open(&f, folder, -1));
    LS_CHECK_OK(ls_loaded_model_open(&m, f));
    const ls_param *p = ls_model_find(&m.model, name);
    LS_CHECK(p && p->count == n);
    memcpy(values, m.w + p->first, (size_t)n * sizeof *values);
    /* A piece that begins and ends inside of groups. */
    float piece[11];
    LS_CHECK_OK(ls_hf_folder_read(f, p, 5, 11, piece));
    LS_CHECK(memcmp(piece, values + 5, sizeof piece) == 0);
    ls_loaded_model_close(&m);
    ls_hf_folder_close(f);
}

LS_TEST(quant_rounds_by_groups)
{
    float y[24 * 16];
    hub s;
    ls_hf_export_report r;

    hub_init(&s, LLAMA);
    hub_tensor *t = hub_find(&s, NAME);
    float *x = t->values;
    memset(x, 0, 8 * sizeof *x);
    x[0] = 1.0f;
    x[1] = -2.0f;
    x[2] = 0.125f; /* a half of a step: away from zero */
    x[3] = 1.99f;
    hub_write(&s, "hf", 1);
    LS_CHECK_OK(quantize("q4", 4, 8, &r));
    LS_CHECK(r.worst > 0 && r.files == 1 && r.matrices == 7 && r.notes[0] == '\0');
    load("q4", NAME, y, 24 * 16);
    LS_CHECK(y[0] == 1 && y[1] == -2 && y[2] == 0.25f && y[3] == 1.75f && y[4] == 0);
    for (int i = 8; i < 24 * 16; i++)
        LS_CHECK(fabsf(x[i] - y[i]) <= 0.3f); /* of numbers up to about 1.2 */
    x[1] = -127;
    x[2] = 0.5f;
    hub_write(&s, "hf", 1);
    LS_CHECK_OK(quantize("q8", 8, 8, &r));
    load("q8", NAME, y, 24 * 16);
    LS_CHECK(y[0] == 1 && y[1] == -127 && y[2] == 1 && y[3] == 2);
    load("q8", "model.norm.weight", y, 16);
    LS_CHECK(memcmp(y, hub_find(&s, "model.norm.weight")->values, 64) == 0);
    hub_release(&s);
}

LS_TEST(quant_goes_through_import_and_export)
{
    static const char *const models[] = {
        LLAMA, "family: gpt2, layers: 1, width: 16, heads: 2, context: 16, mlp: 24, vocab: 61",
        "family: phi3, layers: 1, width: 16, heads: 2, context: 20, mlp: 24, vocab: 61"};
    char name[3][16];
    ls_hf_export_report r;
    ls_hf_import_report in;

    for (int i = 0; i < 3; i++) {
        hub s;
        hub_init(&s, models[i]);
        hub_write(&s, "hf", 1);
        snprintf(name[0], sizeof name[0], "q%d", i);
        snprintf(name[1], sizeof name[1], "in%d", i);
        snprintf(name[2], sizeof name[2], "out%d", i);
        LS_CHECK_OK(quantize(name[0], i == 1 ? 8 : 4, 8, &r));
        LS_CHECK_OK(ls_hf_import(name[0], name[1], &in));
        LS_CHECK_EQ(in.proof, LS_HF_IMPORT_PROVED);
        ls_hf_export_args args = {.from = name[1], .to = name[2], .step = -1, .type = LS_F32};
        LS_CHECK_OK(ls_hf_export(&args, &r));
        LS_CHECK(r.worst < 1e-5);
        hub_release(&s);
    }
}

LS_TEST(quant_says_what_does_not_fit)
{
    hub s;
    ls_hf_export_report r;
    ls_hf_folder *f = NULL;
    ls_str text;

    hub_init(&s, LLAMA);
    hub_write(&s, "hf", 1);
    LS_CHECK_FAILS(quantize("no", 8, 10, &r), LS_EUSAGE, "can be divided into groups of 10");
    LS_CHECK(!ls_file_exists("no"));
    LS_CHECK_OK(quantize("some", 8, 24, &r));
    LS_CHECK_EQ(r.matrices, 1);
    LS_CHECK_STR(r.notes, "6 of 7 matrices are not quantized: their rows cannot be divided into "
                          "groups of 24; --group 8 divides all");
    LS_CHECK_OK(quantize("few", 8, 12, &r));
    LS_CHECK_STR(r.notes, "6 of 7 matrices are not quantized: their rows cannot be divided into "
                          "groups of 12");
    hub_find(&s, NAME)->values[3] = 1e8f;
    hub_write(&s, "hf", 1);
    LS_CHECK_FAILS(quantize("no", 8, 8, &r), LS_EDATA, "too large to be quantized");
    hub_find(&s, NAME)->values[3] = 0;
    hub_write(&s, "hf", 1);
    LS_CHECK_OK(quantize("q", 4, 8, &r));
    /* The same length, so the header stays sound; but the name is another. */
    ls_str_init(&text);
    LS_CHECK_OK(ls_file_read("q/model.safetensors", 1 << 20, &text));
    char *at = memmem(text.p, text.len, "up_proj.weight_packed", 21);
    LS_CHECK(at);
    memcpy(at, "up_proj.weight_hidden", 21);
    LS_CHECK_OK(ls_file_write_atomic("q/model.safetensors", text.p, text.len));
    LS_CHECK_FAILS(ls_hf_folder_open(&f, "q", -1), LS_EDATA, "do not fit together");
    ls_str_release(&text);
    hub_release(&s);
}
