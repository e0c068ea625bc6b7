/* test_hf_fused.c -- tensors that a folder holds as one: names, cutting, and adapters that are joined. */
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "harness.h"
#include "hf/hf_fused.h"
#include "hf/hub.h"

#define PHI3                                                                           \
    "family: phi3, layers: 2, width: 12, heads: 6, kv_heads: 3, context: 9, mlp: 20, " \
    "vocab: 31, tied: false"
#define QKV "model.layers.1.self_attn.qkv_proj.weight"

static void names(const char *name, const char *want, int parts, int which)
{
    char got[LS_PARAM_NAME];
    int part;

    LS_CHECK_EQ(ls_hf_fused_name(LS_FAMILY_PHI3, name, got, &part), parts);
    LS_CHECK_STR(got, want);
    LS_CHECK_EQ(part, which);
}

LS_TEST(fused_names_are_those_of_folders)
{
    char got[LS_PARAM_NAME];
    int part;

    names("model.layers.1.self_attn.k_proj.weight", QKV, 3, 1);
    names("model.layers.12.mlp.up_proj.lora_A.weight",
          "model.layers.12.mlp.gate_up_proj.lora_A.weight", 2, 1);
    names("self_attn.q_proj", "self_attn.qkv_proj", 3, 0);
    names("model.layers.1.self_attn.o_proj.weight", "model.layers.1.self_attn.o_proj.weight", 1, 0);
    names("model.layers.1.self_attn.q_projector.weight",
          "model.layers.1.self_attn.q_projector.weight", 1, 0);
    LS_CHECK_EQ(ls_hf_fused_name(LS_FAMILY_LLAMA, "self_attn.q_proj", got, &part), 1);
    LS_CHECK_STR(got, "self_attn.q_proj");
}

static ls_status check(const char *folder)
{
    ls_hf_folder *f;
    ls_model m;
    ls_status st = ls_hf_folder_open(&f, folder, -1);

    if (st != LS_OK)
        return st;
    LS_CHECK_OK(ls_model_init(&m, ls_hf_folder_run(f), ls_hf_folder_run(f)->model.vocab));
    st = ls_hf_folder_check(f, &m);
    ls_model_release(&m);
    ls_hf_folder_close(f);
    return st;
}

LS_TEST(fused_parts_are_rows_of_the_tensor)
{
    hub s;
    ls_hf_folder *f;
    float got[12];

    hub_init(&s, PHI3);
    hub_write(&s, "m", 3);
    LS_CHECK_OK(check("m"));
    LS_CHECK_OK(ls_hf_folder_open(&f, "m", -1));
    const ls_param *v = ls_model_find(&s.model, "model.layers.1.self_attn.v_proj.weight");
    LS_CHECK_EQ(v->shape[0], 6);
    LS_CHECK_OK(ls_hf_folder_read(f, v, 12, 12, got)); /* row 1 of v is row 12 + 6 + 1 of all */
    LS_CHECK(memcmp(got, hub_find(&s, QKV)->values + 19 * 12, sizeof got) == 0);
    ls_hf_folder_close(f);
    hub_release(&s);
}

LS_TEST(fused_tensor_that_is_wrong_is_named)
{
    hub s;

    hub_init(&s, PHI3);
    hub_find(&s, QKV)->shape[0] = 23;
    hub_find(&s, QKV)->count -= 12;
    hub_write(&s, "shape", 1);
    LS_CHECK_FAILS(check("shape"), LS_EDATA,
                   "\"" QKV "\" does not have the shape [24, 12] that the model needs");
    hub_drop(&s, QKV);
    hub_write(&s, "missing", 1);
    LS_CHECK_FAILS(check("missing"), LS_EDATA, "the tensor \"" QKV "\" is missing");
    hub_release(&s);
}

LS_TEST(fused_survives_exhausted_memory)
{
    hub s;
    ls_hf_folder *f;
    int n = 1;

    hub_init(&s, PHI3);
    hub_write(&s, "m", 1);
    for (;; n++) {
        ls_mem_fail_nth((uint64_t)n);
        ls_status st = ls_hf_folder_open(&f, "m", -1);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
        LS_CHECK(n < 10000);
    }
    ls_hf_folder_close(f);
    hub_release(&s);
}

/* --- adapters --------------------------------------------------------------------------------- */

/* Element i of B A x. */
static double product(const float *a, const float *b, int64_t rank, int64_t K, int64_t i,
                      const float *x)
{
    double y = 0;

    for (int64_t r = 0; r < rank; r++) {
        double small = 0;
        for (int64_t k = 0; k < K; k++)
            small += (double)a[r * K + k] * (double)x[k];
        y += (double)b[i * rank + r] * small;
    }
    return y;
}

/* One adapter of the whole gives each part what its own gives it, and the others nothing. */
static void check_joined(const ls_model *m, const float *w, int64_t l, int first, int n,
                         const ls_hf_fused_adapter *got, const float *x)
{
    const ls_adapter *parts = &m->blocks[l].adapters[first];

    for (int64_t i = 0; i < got->N; i++) {
        double want = 0;
        for (int k = 0; k < n; k++)
            if (parts[k].a.w >= 0 && i >= parts[k].first && i < parts[k].first + parts[k].N)
                want = product(w + parts[k].a.w, w + parts[k].b.w, m->shape.lora_rank, parts[k].K,
                               i - parts[k].first, x);
        LS_CHECK_NEAR(product(got->a, got->b, got->rank, got->K, i, x), want, 1e-6);
    }
}

LS_TEST(fused_adapters_compute_what_their_parts_do)
{
    static const char *targets[] = {"q_proj", "v_proj", "gate_up_proj", "down_proj"};
    hub s;
    ls_model m;
    ls_hf_fused_adapter *joined;
    int n;

    hub_init(&s, PHI3);
    s.run.lora.rank = 2;
    s.run.lora.alpha = 3;
    s.run.lora.targets = (ls_run_list){targets, 4};
    LS_CHECK_OK(ls_model_init(&m, &s.run, 31));
    float *w = ls_mem_array((size_t)m.flat + 12, sizeof *w);
    LS_CHECK(w);
    ls_rng_normal(ls_rng_derive(1, 2, 3), 0, (uint64_t)m.flat + 12, w);
    const ls_loaded_model loaded = {.model = m, .w = w};
    LS_CHECK_OK(ls_hf_fused_adapters(&loaded, &joined, &n));
    LS_CHECK_EQ(n, 4);
    LS_CHECK_STR(joined[2].module, "model.layers.1.self_attn.qkv_proj");
    LS_CHECK_EQ(joined[2].rank, 4); /* of q and v */
    LS_CHECK_EQ(joined[2].N, 24);
    LS_CHECK_STR(joined[3].module, "model.layers.1.mlp.gate_up_proj");
    LS_CHECK_EQ(joined[3].N, 40);
    for (int64_t l = 0; l < 2; l++) {
        check_joined(&m, w, l, LS_ADAPTER_Q, 3, &joined[2 * l], w + m.flat);
        check_joined(&m, w, l, LS_ADAPTER_GATE, 2, &joined[2 * l + 1], w + m.flat);
    }
    ls_hf_fused_adapters_free(joined, n);
    for (int i = 1; i <= 9; i++) { /* the list, and two matrices of each of four */
        ls_mem_fail_nth((uint64_t)i);
        LS_CHECK_FAILS(ls_hf_fused_adapters(&loaded, &joined, &n), LS_ENOMEM, "");
        ls_mem_fail_nth(0);
    }
    ls_mem_free(w);
    ls_model_release(&m);
    hub_release(&s);
}
