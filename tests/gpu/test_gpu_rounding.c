/* test_gpu_rounding.c -- stochastic rounding on the GPU has the bits of kernel/rounding.h, whoever
 * makes the copy. */
#include "gpu/gpu.h"

#include <stdlib.h>

static const ls_rounding rule = {.stochastic = true, .key = {77, 0x89abcdef}, .gap = 12345};
static const ls_step_state state = {.lr = 1e-2f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.99f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .bias1 = 0.19f,
                                    .bias2 = 0.0199f};
static const ls_norm_result good = {.norm = 3, .factor = 0.5f, .bad_block = -1};

/* The copy that the device holds is w as the device holds it, rounded. */
static void check_copy(ls_gpu *g, const ls_gpu_tensor *w, const ls_gpu_tensor *copy)
{
    float *weights = ls_gpu_fetch(g, w), *got = ls_gpu_fetch(g, copy);
    int64_t up = 0;

    for (int64_t i = 0; i < w->n; i++) {
        uint32_t x, y;
        memcpy(&x, &weights[i], sizeof x);
        memcpy(&y, &got[i], sizeof y);
        LS_CHECK_EQ(y >> 16, ls_rounding_bf16(&rule, i, x));
        up += y >> 16 != x >> 16;
    }
    LS_CHECK(w->n < 100 || (up > w->n / 3 && up < w->n - w->n / 3));
    free(weights);
    free(got);
}

static void rounding_case(ls_gpu *g, const void *shape)
{
    const int64_t n = *(const int64_t *)shape;

    if (g->type != LS_BF16)
        return;
    ls_gpu_tensor w = ls_gpu_floats(g, "w", n, 1), m = ls_gpu_floats(g, "m", n, 0.1f);
    ls_gpu_tensor v = ls_gpu_floats(g, "v", n, 0.1f), grad = ls_gpu_floats(g, "grad", n, 1);
    ls_gpu_tensor copy = ls_gpu_values(g, "copy", n, 0);
    const ls_optimizer_span span = {.count = n, .decay = 1, .rate = 1};
    const void *numbers = ls_gpu_bytes(g, "state", &state, sizeof state).device;
    const void *result = ls_gpu_bytes(g, "result", &good, sizeof good).device;

    for (int64_t i = 0; i < n; i++)
        v.host[i] = v.host[i] < 0 ? -v.host[i] : v.host[i];
    ls_gpu_send(g, &v);
    g->k->cast(g->stream, &(ls_cast){.from_type = LS_F32,
                                     .to_type = LS_BF16,
                                     .from = w.device,
                                     .to = copy.device,
                                     .n = n,
                                     .rounding = rule});
    check_copy(g, &w, &copy);
    g->k->adamw(g->stream,
                &(ls_optimizer_update){.w = w.device,
                                       .m = m.device,
                                       .v = v.device,
                                       .grad = grad.device,
                                       .spans = ls_gpu_bytes(g, "span", &span, sizeof span).device,
                                       .n_spans = 1,
                                       .copy = copy.device,
                                       .copy_type = LS_BF16,
                                       .rounding = rule,
                                       .state = numbers,
                                       .result = result});
    check_copy(g, &w, &copy);
    g->k->muon(g->stream, &(ls_muon){.part = LS_MUON_STEP,
                                     .x = grad.device,
                                     .w = w.device,
                                     .rows = 1,
                                     .cols = n,
                                     .ld = n,
                                     .scale = 0.7f,
                                     .copy = copy.device,
                                     .copy_type = LS_BF16,
                                     .rounding = rule,
                                     .state = numbers,
                                     .result = result});
    check_copy(g, &w, &copy);
}

LS_TEST_SECONDS(gpu_rounds_stochastically_as_the_cpu_does, 60)
{
    static const int64_t shapes[] = {1, 3, 64, 1001, 100003, 3000000};

    ls_gpu_cases(rounding_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}
