/* test_rounding.c -- stochastic rounding of weights to bf16: its mean, its independence, what it
 * leaves alone, and that every row that makes a copy rounds alike. */
#include "kernel/kernel_check.h"
#include "kernel/rounding.h"

#include <math.h>

enum { MANY = 1 << 18, N = 40001, GAP = 7 };

static const ls_rounding rule = {.stochastic = true, .key = {0x1234567, 0x89abcdef}, .gap = 1000};

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static bool goes_up(int64_t element, uint32_t x)
{
    return ls_rounding_bf16(&rule, element, x) != x >> 16;
}

/* Up as often as the lower half of the bits says, over elements and over weights. */
LS_TEST(rounding_is_right_in_the_mean)
{
    static const uint32_t lower[] = {0, 1, 0x100, 0x4000, 0x8000, 0xc000, 0xff00, 0xffff};

    for (size_t i = 0; i < LS_COUNT(lower); i++) {
        double p = lower[i] / 65536.0, most = 4 * sqrt(p * (1 - p) / MANY) + 1e-9;
        int up = 0, of_weights = 0;
        for (uint32_t e = 0; e < MANY; e++) {
            up += goes_up(e, bits_of(1.5f) | lower[i]);
            of_weights += goes_up(77, (0x3f80u + e % 0x2000) << 16 | lower[i]);
        }
        LS_CHECK_NEAR(up / (double)MANY, p, most);
        /* 8192 weights, each as often as it comes */
        LS_CHECK_NEAR(of_weights / (double)MANY, p, most * sqrt(MANY / 8192.0));
    }
}

/* Neighbours, in the model and in value, do not go together. */
LS_TEST(rounding_does_not_know_its_neighbours)
{
    static const int64_t apart[] = {1, 2, 4, 16, 768, 65536, (int64_t)1 << 32};
    const uint32_t half = bits_of(-0.01f) | 0x8000;

    for (size_t i = 0; i < LS_COUNT(apart); i++) {
        int alike = 0;
        for (int64_t e = 0; e < MANY; e++)
            alike += goes_up(e, half & ~0x7fffu) == goes_up(e + apart[i], half & ~0x7fffu);
        LS_CHECK_NEAR(alike / (double)MANY, 0.5, 2.5 / sqrt(MANY));
    }
    int alike = 0;
    for (uint32_t e = 0; e < MANY; e++) /* a weight, and the next one that fp32 knows */
        alike += goes_up(5, (e << 9 & 0x3fff0000u) | 0x8000) ==
                 goes_up(5, (e << 9 & 0x3fff0000u) | 0x8001);
    LS_CHECK_NEAR(alike / (double)MANY, 0.5, 0.05);
}

LS_TEST(rounding_leaves_alone_what_has_no_fraction)
{
    static const float exact[] = {
        0, -0.0f, 1, -2.5f, 0x1p-126f, 0x1p-133f, (float)INFINITY, -(float)INFINITY};

    for (size_t i = 0; i < LS_COUNT(exact); i++)
        for (int64_t e = 0; e < 100; e++)
            LS_CHECK_EQ(ls_rounding_bf16(&rule, e, bits_of(exact[i])), bits_of(exact[i]) >> 16);
    for (int64_t e = 0; e < 100; e++) {
        LS_CHECK_EQ(ls_rounding_bf16(&rule, e, 0x7f800001), 0x7fc0); /* NaN stays NaN */
        LS_CHECK_EQ(ls_rounding_bf16(&rule, e, 0xffc12345), 0xffc1);
        uint16_t most = ls_rounding_bf16(&rule, e, 0x7f7f0001); /* beside the largest of all */
        LS_CHECK(most == 0x7f7f || most == 0x7f80);
    }
}

/* --- rows -------------------------------------------------------------------------------------*/

static const ls_step_state state = {.lr = 1e-2f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.99f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .bias1 = 0.19f,
                                    .bias2 = 0.0199f};
static const ls_norm_result good = {.norm = 3, .factor = 0.5f, .bad_block = -1};

/* What was made of w from `first` on; and between two values it was not always the same one. */
static void check_copy(const char *what, const float *w, const uint16_t *copy, int64_t first,
                       int64_t n)
{
    int64_t up = 0;

    for (int64_t i = first; i < first + n; i++) {
        LS_CHECK_EQ(copy[i], ls_rounding_bf16(&rule, i, bits_of(w[i])));
        up += copy[i] != bits_of(w[i]) >> 16;
    }
    if (up < n / 3 || up > n - n / 3)
        ls_test_fail(__FILE__, __LINE__, "%s: %lld of %lld went up", what, (long long)up,
                     (long long)n);
}

static void check_rows(ls_check *c, const ls_kernels *k)
{
    float *w = ls_check_floats(c, "w", N + GAP, 1), *m = ls_check_floats(c, "m", N, 0.1f);
    float *v = ls_check_floats(c, "v", N, 0.1f), *grad = ls_check_floats(c, "grad", N, 1);
    uint16_t *copy = ls_check_bytes(c, "copy", (N + GAP) * 2);
    ls_optimizer_span span = {.count = N, .w_first = GAP, .decay = 1, .rate = 1};
    ls_lamb_piece piece = {.count = N, .w_first = GAP, .decay = 1};
    ls_lamb_tensor tensor = {.count = 1};
    float squares[2] = {1, 1}, ratio;

    for (int64_t i = 0; i < N; i++)
        v[i] = fabsf(v[i]);
    k->cast(c->stream, &(ls_cast){.from_type = LS_F32,
                                  .to_type = LS_BF16,
                                  .from = w,
                                  .to = copy,
                                  .n = N + GAP,
                                  .rounding = rule});
    check_copy("cast", w, copy, 0, N + GAP);
    k->adamw(c->stream, &(ls_optimizer_update){.w = w,
                                               .m = m,
                                               .v = v,
                                               .grad = grad,
                                               .spans = &span,
                                               .n_spans = 1,
                                               .copy = copy,
                                               .copy_type = LS_BF16,
                                               .rounding = rule,
                                               .state = &state,
                                               .result = &good});
    check_copy("adamw", w, copy, GAP, N);
    k->lamb(c->stream, &(ls_lamb){.part = LS_LAMB_STEP,
                                  .w = w,
                                  .m = m,
                                  .v = v,
                                  .grad = grad,
                                  .pieces = &piece,
                                  .tensors = &tensor,
                                  .squares = squares,
                                  .ratios = &ratio,
                                  .n_pieces = 1,
                                  .n_tensors = 1,
                                  .n_squares = 1,
                                  .n = N,
                                  .copy = copy,
                                  .copy_type = LS_BF16,
                                  .rounding = rule,
                                  .state = &state,
                                  .result = &good});
    check_copy("lamb", w, copy, GAP, N);
    k->muon(c->stream, &(ls_muon){.part = LS_MUON_STEP,
                                  .x = grad,
                                  .w = w,
                                  .rows = 100,
                                  .cols = 333,
                                  .ld = 350,
                                  .scale = 0.7f,
                                  .copy = copy,
                                  .copy_type = LS_BF16,
                                  .rounding = rule,
                                  .state = &state,
                                  .result = &good});
    for (int64_t row = 0; row < 100; row++)
        check_copy("muon", w, copy, row * 350, 333);
}

LS_TEST(rows_round_their_copies_alike)
{
    ls_kernels list[LS_CHECK_TABLES + 1];
    int count = ls_check_tables(list);

    list[count++] = *ls_check_reference();
    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 2);
        check_rows(&c, &list[k]);
        ls_check_end(&c);
    }
}
