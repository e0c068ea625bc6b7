/* test_peft.c -- merging adapters as PEFT saves them. */
#include "harness.h"

#include <math.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "hf/hf_export.h"
#include "hf/hub.h"
#include "hf/peft.h"

#define LLAMA \
    "family: llama, layers: 1, width: 4, heads: 2, context: 8, mlp: 6, vocab: 11, tied: false"
#define CONFIG "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":3,\"bias\":\"none\""
#define Q "base_model.model.model.layers.0.self_attn.q_proj."

static void put(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

/* The base in "hf", and in "adapter" a pair of rank 2 beside q_proj whose numbers are 1, 2, 3 ... */
static void make(hub *s)
{
    hub_init(s, LLAMA);
    hub_write(s, "hf", 1);
    LS_CHECK_OK(ls_file_make_dirs("adapter"));
    int first = s->n;
    hub_tensor *a = hub_add(s, Q "lora_A.weight", 2, 4);
    for (int i = 0; i < 8; i++)
        a->values[i] = (float)(i + 1);
    hub_tensor *b = hub_add(s, Q "lora_B.weight", 4, 2);
    for (int i = 0; i < 8; i++)
        b->values[i] = (float)(i + 1);
    hub_write_file(s, "adapter/adapter_model.safetensors", first, 2);
    put("adapter/adapter_config.json", CONFIG "}");
}

/* q_proj of "hf" with the adapter merged; 16 numbers. */
static ls_status merge(float w[16], int *modules)
{
    ls_hf_folder *folder = NULL;
    ls_loaded_model model = {.w = NULL};
    ls_status st;

    LS_CHECK_OK(ls_hf_folder_open(&folder, "hf", -1));
    LS_CHECK_OK(ls_loaded_model_open(&model, folder));
    st = ls_peft_merge("adapter", &model, modules);
    const ls_param *p = ls_model_find(&model.model, "model.layers.0.self_attn.q_proj.weight");
    memcpy(w, model.w + p->first, 16 * sizeof *w);
    ls_loaded_model_close(&model);
    ls_hf_folder_close(folder);
    return st;
}

/* Number (n, k) of B A: B is 1 2, 3 4, 5 6, 7 8 and A is 1 2 3 4, 5 6 7 8. */
static double product(int n, int k)
{
    return (2.0 * n + 1) * (k + 1) + (2.0 * n + 2) * (k + 5);
}

LS_TEST(peft_adds_the_product)
{
    static const struct {
        const char *keys;
        double scale;
    } rows[] = {{"", 1.5},
                {",\"use_rslora\":true", 2.1213203435596424},
                {",\"alpha_pattern\":{\"q_proj\":8}", 4},
                {",\"alpha_pattern\":{\"proj\":8}", 1.5}, /* names end at dots */
                {",\"alpha_pattern\":{\"layers.0.self_attn.q_proj\":1}", 0.5}};
    char text[256];
    float w[16];
    int modules;
    hub s;

    make(&s);
    const hub_tensor *base = hub_find(&s, "model.layers.0.self_attn.q_proj.weight");
    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        snprintf(text, sizeof text, CONFIG "%s}", rows[i].keys);
        put("adapter/adapter_config.json", text);
        LS_CHECK_OK(merge(w, &modules));
        LS_CHECK_EQ(modules, 1);
        for (int n = 0; n < 4; n++)
            for (int k = 0; k < 4; k++)
                LS_CHECK_NEAR((double)w[n * 4 + k],
                              (double)base->values[n * 4 + k] + rows[i].scale * product(n, k),
                              1e-4);
    }
    hub_release(&s);
}

LS_TEST(peft_sets_lengths_for_dora)
{
    float w[16];
    int modules, first;
    hub s;

    make(&s);
    first = s.n - 2;
    hub_tensor *m = hub_add(&s, Q "lora_magnitude_vector", 0, 4);
    for (int n = 0; n < 4; n++)
        m->values[n] = (float)(n + 2);
    hub_write_file(&s, "adapter/adapter_model.safetensors", first, 3);
    put("adapter/adapter_config.json", CONFIG ",\"use_dora\":true}");
    LS_CHECK_OK(merge(w, &modules));
    for (int n = 0; n < 4; n++) {
        double sum = 0;
        for (int k = 0; k < 4; k++)
            sum += (double)w[n * 4 + k] * (double)w[n * 4 + k];
        LS_CHECK_NEAR(sqrt(sum), n + 2, 1e-5);
    }
    hub_write_file(&s, "adapter/adapter_model.safetensors", first, 2);
    LS_CHECK_FAILS(merge(w, &modules), LS_EDATA, "has no lora_magnitude_vector of 4");
    hub_release(&s);
}

LS_TEST(peft_refuses_what_is_no_lora_of_this_model)
{
    static const struct {
        const char *config, *message;
    } rows[] = {
        {"{\"peft_type\":\"IA3\"}", "of the kind \"IA3\""},
        {"[]", "is not a JSON object"},
        {"{", "is not JSON"},
        {CONFIG ",\"bias\":\"lora_only\"}", "it trained biases"},
        {CONFIG ",\"init_lora_weights\":\"olora\"}", "taken out of the base model"},
        {CONFIG ",\"alpha_pattern\":{\"q_.*\":2}}", "alpha_pattern has the expression"},
        {"{\"peft_type\":\"LORA\"}", "has no lora_alpha"},
    };
    float w[16];
    int modules;
    hub s;

    make(&s);
    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        put("adapter/adapter_config.json", rows[i].config);
        ls_status st = merge(w, &modules);
        LS_CHECK(st == LS_EUSAGE || st == LS_EDATA);
        LS_CHECK(strstr(ls_err_last()->text, rows[i].message) != NULL);
        ls_err_clear();
    }
    put("adapter/adapter_config.json", CONFIG "}");
    hub_add(&s, "base_model.model.model.norm.bias", 0, 4);
    hub_write_file(&s, "adapter/adapter_model.safetensors", s.n - 3, 3);
    LS_CHECK_FAILS(merge(w, &modules), LS_EDATA, "has no place for it");
    hub_write_file(&s, "adapter/adapter_model.safetensors", s.n - 2, 1);
    LS_CHECK_FAILS(merge(w, &modules), LS_EDATA, "has no lora_A beside it");
    LS_CHECK(unlink("adapter/adapter_model.safetensors") == 0);
    LS_CHECK_FAILS(merge(w, &modules), LS_EUSAGE, "has no adapter_model.safetensors");
    hub_release(&s);
}

LS_TEST(peft_replaces_what_was_trained_whole)
{
    hub s;
    ls_hf_export_report r;
    ls_hf_export_args args = {
        .from = "hf", .to = "out", .step = -1, .type = LS_F32, .merge = "adapter"};
    ls_safetensors file;

    make(&s);
    hub_tensor *head = hub_add(&s, "base_model.model.lm_head.weight", 11, 4);
    for (int i = 0; i < 44; i++)
        head->values[i] = (float)i;
    hub_write_file(&s, "adapter/adapter_model.safetensors", s.n - 3, 3);
    LS_CHECK_OK(ls_hf_export(&args, &r));
    LS_CHECK(r.merged);
    LS_CHECK_OK(ls_safetensors_open(&file, "out/model.safetensors"));
    const ls_safetensors_entry *e = ls_safetensors_find(&file, "lm_head.weight");
    LS_CHECK(e && memcmp((const char *)file.bytes + e->begin, head->values, 44 * 4) == 0);
    ls_safetensors_close(&file);
    head->shape[0] = 10;
    head->count = 40;
    hub_write_file(&s, "adapter/adapter_model.safetensors", s.n - 3, 3);
    args.to = "no";
    LS_CHECK_FAILS(ls_hf_export(&args, &r), LS_EDATA, "has another shape");
    LS_CHECK(!ls_file_exists("no"));
    hub_release(&s);
}

LS_TEST(peft_survives_exhausted_memory)
{
    float w[16];
    int modules;
    hub s;

    make(&s);
    ls_hf_folder *folder = NULL;
    ls_loaded_model model = {.w = NULL};
    LS_CHECK_OK(ls_hf_folder_open(&folder, "hf", -1));
    LS_CHECK_OK(ls_loaded_model_open(&model, folder));
    for (uint64_t n = 1;; n++) {
        ls_mem_fail_nth(n);
        ls_status st = ls_peft_merge("adapter", &model, &modules);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
        ls_err_clear();
    }
    ls_loaded_model_close(&model);
    ls_hf_folder_close(folder);
    LS_CHECK_OK(merge(w, &modules));
    hub_release(&s);
}
