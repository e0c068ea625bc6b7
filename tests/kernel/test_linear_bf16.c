/* Products of bf16 by pairs (kernel/cpu/dot): against a model of the instructions in integers, bit
 * by bit; against the reference; equal bits for threads, cuts and leaves; the choice of a way.
 *
 * The emulated ways run on every CPU with the avx512 kernels; the instructions themselves where the
 * CPU has them. */
#define LS_ISA avx512
#include "kernel/cpu/dot/dot.h"
#include "kernel/cpu/simd/gemm.h"
#include "kernel/half.h"

static const ls_dot emulated[] = {LS_DOT_EMULATE_AVX512, LS_DOT_EMULATE_AMX};

static void need_avx512(void)
{
    const char *obstacle = ls_dot_obstacle(LS_DOT_EMULATE_AVX512);

    if (obstacle)
        ls_test_skip("%s", obstacle);
}

static void go(ls_dot dot)
{
    setenv(LS_DOT_VARIABLE, ls_dot_name(dot), 1);
    LS_CHECK_OK(ls_dot_choose());
    LS_CHECK_EQ(ls_dot_chosen(), dot);
}

/* --- the model ---------------------------------------------------------------------------------
 * A finite number is (-1)^minus * mantissa * 2^power; a mantissa of 0 is zero. */
typedef struct number {
    bool minus;
    uint64_t mantissa;
    int power;
} number;

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

/* Denormals are zeros. */
static number unpack(float x)
{
    uint32_t u = bits_of(x), exponent = u >> 23 & 0xff;
    uint64_t mantissa = exponent ? (u & 0x7fffff) | 0x800000 : 0;

    return (number){u >> 31, mantissa, (int)exponent - 150};
}

/* The leading bit to bit 61: two such numbers add without overflow. */
static void align(number *x)
{
    while (x->mantissa && x->mantissa < UINT64_C(1) << 61) {
        x->mantissa *= 2;
        x->power--;
    }
}

/* 24 bits, to nearest even; then zero below 2^-126 and Inf from 2^128 on. */
static float pack(number x)
{
    uint64_t half = UINT64_C(1) << 38, rest, kept;
    uint32_t sign = (uint32_t)x.minus << 31;

    if (x.mantissa >= UINT64_C(1) << 62) {
        x.mantissa = x.mantissa >> 1 | (x.mantissa & 1);
        x.power++;
    }
    align(&x);
    kept = x.mantissa >> 38; /* 24 bits: 61 - 38 = 23 */
    rest = x.mantissa & (half - 1);
    if (rest > half / 2 || (rest == half / 2 && kept % 2))
        kept++;
    if (kept == 1 << 24) {
        kept /= 2;
        x.power++;
    }
    int exponent = x.power + 38 + 23; /* of the leading bit */
    if (x.mantissa == 0 || exponent < -126)
        return float_of(sign);
    if (exponent > 127)
        return float_of(sign | 0x7f800000);
    return float_of(sign | (uint32_t)(exponent + 127) << 23 | (uint32_t)(kept & 0x7fffff));
}

/* a b + c of finite numbers. */
static float fma_finite(float a, float b, float c)
{
    number x = unpack(a), y = unpack(b), z = unpack(c);
    number p = {x.minus != y.minus, x.mantissa * y.mantissa, x.power + y.power};

    if (p.mantissa == 0 && z.mantissa == 0)
        return float_of((uint32_t)(p.minus && z.minus) << 31);
    align(&p);
    align(&z);
    if (p.mantissa == 0)
        return pack(z);
    if (z.mantissa == 0)
        return pack(p);
    if (p.power < z.power || (p.power == z.power && p.mantissa < z.mantissa)) {
        number t = p;
        p = z;
        z = t;
    }
    /* z is the smaller one: its bits below p's last are one bit that says whether there were any.
     */
    for (int i = p.power - z.power; i > 0 && z.mantissa > 1; i--)
        z.mantissa = z.mantissa >> 1 | (z.mantissa & 1);
    p.mantissa = p.minus == z.minus ? p.mantissa + z.mantissa : p.mantissa - z.mantissa;
    p.minus &= p.mantissa != 0;
    return pack(p);
}

static float model_fma(float a, float b, float c)
{
    bool finite = isfinite(a) && isfinite(b) && isfinite(c);

    if (finite)
        return fma_finite(a, b, c);
    if (isfinite(a) && isfinite(b))
        return c;
    /* Denormals count as zeros beside Inf too. */
    return fmaf(fpclassify(a) == FP_SUBNORMAL ? 0 : a, fpclassify(b) == FP_SUBNORMAL ? 0 : b, c);
}

/* One block of K; a and b have n values, and zeros after them. */
static float model_block(ls_dot dot, const uint16_t *a, const uint16_t *b, int64_t n)
{
    float sum = 0;

    if (dot == LS_DOT_EMULATE_AVX512) {
        for (int64_t k = 0; k < n; k += 2) {
            sum = model_fma(ls_half_value(a[k + 1]), ls_half_value(b[k + 1]), sum);
            sum = model_fma(ls_half_value(a[k]), ls_half_value(b[k]), sum);
        }
        return sum;
    }
    for (int64_t k = 0; k < n; k += 32) {
        float part[2] = {0, 0};
        for (int64_t i = 0; i < 32; i++)
            part[i % 2] = model_fma(ls_half_value(a[k + i]), ls_half_value(b[k + i]), part[i % 2]);
        sum = model_fma(1, model_fma(1, part[0], part[1]), sum);
    }
    return sum;
}

/* Values of a leaf, at steps, in order of k; then as many zeros as a run of the instruction needs.
 */
static void gather(const uint16_t *from, int64_t step, int64_t n, uint16_t to[LS_GEMM_KC + 32])
{
    memset(to, 0, (LS_GEMM_KC + 32) * sizeof *to);
    for (int64_t k = 0; k < n; k++)
        to[k] = from[k * step];
}

static float model_leaf(ls_dot dot, const ls_gemm *g, int64_t m, int64_t n, int64_t leaf)
{
    int64_t K = g->K / g->leaves;
    float sum = 0;

    for (int64_t k = 0; k < K; k += LS_GEMM_KC) {
        uint16_t a[LS_GEMM_KC + 32], b[LS_GEMM_KC + 32];
        int64_t kc = ls_min_i64(LS_GEMM_KC, K - k), at = leaf * K + k;
        gather((const uint16_t *)g->a + m * g->a_m + at * g->a_k, g->a_k, kc, a);
        gather((const uint16_t *)g->b + n * g->b_n + at * g->b_k, g->b_k, kc, b);
        float block = model_block(dot, a, b, kc);
        sum = k == 0 ? block : sum + block;
    }
    return sum;
}

/* An element of C, along the perfect binary tree over leaves. */
static float model_element(ls_dot dot, const ls_gemm *g, int64_t m, int64_t n)
{
    float part[8];

    for (int64_t i = 0; i < g->leaves; i++)
        part[i] = model_leaf(dot, g, m, n, i);
    for (int64_t width = 1; width < g->leaves; width *= 2)
        for (int64_t i = 0; i + width < g->leaves; i += 2 * width)
            part[i] += part[i + width];
    return part[0];
}

/* --- products against the model ----------------------------------------------------------------
 */

/* What kind of values: plain; products around the smallest normal number; Inf, NaN, denormals. */
typedef enum values { PLAIN, SMALL, ODD } values;

static uint16_t draw(uint32_t *seed, values kind)
{
    static const uint16_t odd[] = {0x7f80, 0xff80, 0x7fc0, 0x0001, 0x807f, 0x8000, 0x7f7f, 0xff7f};

    *seed = *seed * 1664525u + 1013904223u;
    uint32_t r = *seed >> 8;
    uint16_t sign = (uint16_t)(r >> 20 & 1) << 15, mantissa = r & 0x7f;
    if (kind == ODD && (r >> 7 & 63) == 0)
        return odd[r >> 13 & 7];
    /* exponents of 2^-3 to 2^0, or 2^-68 to 2^-61 */
    uint32_t exponent = kind == SMALL ? 59 + (r >> 13 & 7) : 124 + (r >> 13 & 3);
    return (uint16_t)(sign | exponent << 7 | mantissa);
}

static uint16_t *draw_matrix(ls_check *c, const char *name, int64_t n, values kind)
{
    uint16_t *x = ls_check_bytes(c, name, 2 * n);
    uint32_t seed = (uint32_t)n * 2654435761u + (uint32_t)c->count;

    for (int64_t i = 0; i < n; i++)
        x[i] = draw(&seed, kind);
    return x;
}

/* A product with fp32 results, A and B lying either way. */
static ls_gemm product(ls_check *c, const int64_t *s, values kind, bool a_along, bool b_along)
{
    ls_gemm g = {.a_type = LS_BF16, .b_type = LS_BF16, .M = s[0], .N = s[1], .K = s[2]};

    g.leaves = s[3];
    g.a = draw_matrix(c, "a", g.M * g.K, kind);
    g.b = draw_matrix(c, "b", g.K * g.N, kind);
    g.a_m = a_along ? g.K : 1;
    g.a_k = a_along ? 1 : g.M;
    g.b_k = b_along ? g.N : 1;
    g.b_n = b_along ? 1 : g.K;
    g.ld = g.N;
    g.finish = ls_gemm_store_avx512;
    g.out = ls_check_floats(c, "c", g.M * g.N, 0);
    return g;
}

static void check_model(ls_dot dot, const int64_t *s, values kind, int layout)
{
    ls_check c;

    ls_check_begin(&c, 1 + layout % 3);
    ls_gemm g = product(&c, s, kind, layout & 1, layout & 2);
    go(dot);
    ls_dot_run(c.stream, &g);
    for (int64_t m = 0; m < g.M; m++)
        for (int64_t n = 0; n < g.N; n++) {
            float got = ((float *)g.out)[m * g.ld + n], want = model_element(dot, &g, m, n);
            if (bits_of(got) != bits_of(want) && !(isnan(got) && isnan(want)))
                ls_test_fail(__FILE__, __LINE__,
                             "%s of %lld x %lld x %lld: (%lld, %lld) is %a, expected %a",
                             ls_dot_name(dot), (long long)g.M, (long long)g.N, (long long)g.K,
                             (long long)m, (long long)n, (double)got, (double)want);
        }
    ls_check_end(&c);
}

/* M, N, K, leaves */
static const int64_t sizes[][4] = {
    {1, 1, 1, 1},      {1, 3, 17, 1},   {3, 1, 2, 1},     {17, 33, 33, 1}, {33, 17, 385, 1},
    {2, 65, 384, 1},   {14, 32, 31, 1}, {15, 31, 801, 1}, {61, 35, 64, 2}, {40, 7, 1161, 3},
    {9, 34, 36, 4},    {29, 5, 15, 5},  {385, 3, 3, 1},   {3, 387, 9, 3},  {16, 16, 769, 1},
    {35, 40, 1930, 5}, {7, 9, 95, 5}};

LS_TEST_SECONDS(dot_products_have_the_bits_of_the_model, 60)
{
    need_avx512();
    for (size_t d = 0; d < LS_COUNT(emulated); d++)
        for (size_t i = 0; i < LS_COUNT(sizes); i++)
            for (int layout = 0; layout < 4; layout++)
                check_model(emulated[d], sizes[i], PLAIN, layout);
}

LS_TEST_SECONDS(dot_products_flush_small_numbers_as_the_model, 60)
{
    need_avx512();
    for (size_t d = 0; d < LS_COUNT(emulated); d++)
        for (size_t i = 0; i < LS_COUNT(sizes); i++)
            for (int kind = SMALL; kind <= ODD; kind++)
                check_model(emulated[d], sizes[i], (values)kind, (int)i % 4);
}

/* high[0] high[1], then low[0] low[1] added. */
static float one_pair(const float *high, const float *low)
{
    uint16_t a[2] = {ls_half_of(low[0]), ls_half_of(high[0])};
    uint16_t b[2] = {ls_half_of(low[1]), ls_half_of(high[1])};
    ls_gemm g = {.a_type = LS_BF16, .b_type = LS_BF16, .a = a, .b = b, .M = 1, .N = 1, .K = 2};
    float out = NAN;
    ls_check c;

    g.a_m = g.b_n = 2;
    g.a_k = g.b_k = g.ld = g.leaves = 1;
    g.out = &out;
    g.finish = ls_gemm_store_avx512;
    ls_check_begin(&c, 1);
    ls_dot_run(c.stream, &g);
    ls_check_end(&c);
    return out;
}

/* Results that are small before rounding and not after, and the other way round: one pair
 * each, built by hand. */
LS_TEST(dot_rounds_before_it_flushes)
{
    static const struct {
        float high[2], low[2], want;
    } cases[] = {
        /* 2^-126 - 2^-134, then 2^-134 more: the upper sum is small and flushed on its own */
        {{0x1.fep-64f, 0x1p-63f}, {0x1p-71f, 0x1p-63f}, 0},
        {{0x1.fep-63f, 0x1p-63f}, {-0x1.fcp-64f, 0x1p-63f}, 0x1p-126f},
        /* 2^-126 - 2^-150: small, though it is 2^-126 when rounded as a denormal */
        {{0x1p-63f, 0x1p-63f}, {-0x1p-75f, 0x1p-75f}, 0},
        /* 2^-126 - 2^-151: rounds to 2^-126, which is not */
        {{0x1p-63f, 0x1p-63f}, {-0x1p-76f, 0x1p-75f}, 0x1p-126f},
        /* a little less than that: small; a little more: not */
        {{0x1p-63f, 0x1p-63f}, {-0x1.02p-76f, 0x1p-75f}, 0},
        {{0x1p-63f, 0x1p-63f}, {-0x1.fep-77f, 0x1p-75f}, 0x1p-126f},
        /* a product that is small alone still counts in the sum: it is fused */
        {{0x1p-126f, 0x1p0f}, {0x1p-75f, 0x1p-74f}, 0x1.000002p-126f},
        {{0x1p-126f, -0x1p0f}, {0x1p-70f, 0x1p-66f}, -0.0f},
    };

    need_avx512();
    for (size_t i = 0; i < LS_COUNT(cases); i++)
        for (int dot = LS_DOT_AVX512; dot <= LS_DOT_EMULATE_AVX512; dot += 2) {
            float got;
            if (ls_dot_obstacle((ls_dot)dot))
                continue;
            go((ls_dot)dot);
            got = one_pair(cases[i].high, cases[i].low);
            if (bits_of(got) != bits_of(cases[i].want))
                ls_test_fail(__FILE__, __LINE__, "%s: case %d is %a, expected %a",
                             ls_dot_name((ls_dot)dot), (int)i, (double)got, (double)cases[i].want);
        }
}

/* --- the instructions themselves ---------------------------------------------------------------
 */

static void check_real(ls_dot real, ls_dot emulation)
{
    const char *obstacle = ls_dot_obstacle(real);

    if (obstacle)
        ls_test_skip("%s", obstacle);
    for (size_t i = 0; i < LS_COUNT(sizes); i++)
        for (int kind = PLAIN; kind <= ODD; kind++) {
            ls_check c;
            ls_check_begin(&c, 1 + (int)i % 3);
            ls_gemm g = product(&c, sizes[i], (values)kind, i & 1, i & 2);
            ls_gemm h = g;
            h.out = ls_check_floats(&c, "emulated", g.M * g.N, 0);
            go(real);
            ls_dot_run(c.stream, &g);
            go(emulation);
            ls_dot_run(c.stream, &h);
            for (int64_t k = 0; k < g.M * g.N; k++) {
                float got = ((float *)g.out)[k], want = ((float *)h.out)[k];
                if (bits_of(got) != bits_of(want) && !(isnan(got) && isnan(want)))
                    ls_test_fail(__FILE__, __LINE__, "size %d, values %d: [%lld] is %a, not %a",
                                 (int)i, kind, (long long)k, (double)got, (double)want);
            }
            ls_check_end(&c);
        }
}

LS_TEST(dot_avx512_has_the_bits_of_its_emulation)
{
    check_real(LS_DOT_AVX512, LS_DOT_EMULATE_AVX512);
}

LS_TEST(dot_amx_has_the_bits_of_its_emulation)
{
    check_real(LS_DOT_AMX, LS_DOT_EMULATE_AMX);
}

/* --- rows against the reference ----------------------------------------------------------------
 */

typedef struct shape {
    int64_t M, N, K, leaves;
    ls_layout layout;
    ls_act act;
    bool add;
} shape;

static int64_t halves_of(const shape *s)
{
    return (s->act == LS_ACT_NONE ? 1 : 2) * s->M * s->N + s->M * s->K;
}

static void run_linear(ls_check *c, const ls_kernels *k, const void *shape_of, float *out)
{
    const shape *s = shape_of;
    ls_dtype type = ls_half_type(k);
    bool act = s->act != LS_ACT_NONE, add = s->add && !act;
    void *x = ls_half_values(c, type, "x", s->M * s->K, 1, 0);
    void *w = ls_half_values(c, type, "w", s->K * s->N, 0.5f, 0);
    void *b = act ? ls_half_values(c, type, "b", s->N, 1, 0) : NULL;
    void *dy = ls_half_values(c, type, "dy", s->M * s->N, 0.5f, 0);
    void *under = act ? ls_half_values(c, type, "z below", s->M * s->K, 2, 0) : NULL;
    void *y = ls_half_values(c, type, "y", s->M * s->N, add ? 1.0f : 0.0f, 0);
    void *dx = ls_half_values(c, type, "dx", s->M * s->K, add ? 1.0f : 0.0f, 0);
    void *z = act ? ls_half_values(c, type, "z", s->M * s->N, 0, 0) : NULL;
    float *dw = ls_check_floats(c, "dw", s->K * s->N, s->add ? 1.0f : 0.0f);
    float *db = ls_check_floats(c, "db", s->N, s->add ? 1.0f : 0.0f);
    ls_linear_fwd fwd = {.type = type, .x = x, .w = w, .b = b, .y = y, .z = z, .act = s->act};
    ls_linear_bwd_x bx = {.type = type, .dy = dy, .w = w, .z = under, .dx = dx, .act = s->act};
    ls_linear_bwd_w bw = {.type = type, .x = x, .dy = dy, .dw = dw, .db = db};

    fwd.M = bx.M = bw.M = s->M;
    fwd.N = bx.N = bw.N = s->N;
    fwd.K = bx.K = bw.K = s->K;
    fwd.layout = bx.layout = bw.layout = s->layout;
    fwd.accumulate = bx.accumulate = add;
    bw.accumulate = s->add;
    bw.leaves = s->leaves;
    k->linear_fwd(c->stream, &fwd);
    k->linear_bwd_x(c->stream, &bx);
    k->linear_bwd_w(c->stream, &bw);
    out = ls_half_put(out, type, y, s->M * s->N);
    if (z)
        out = ls_half_put(out, type, z, s->M * s->N);
    out = ls_half_put(out, type, dx, s->M * s->K);
    out = ls_rows_put(out, dw, s->K * s->N);
    ls_rows_put(out, db, s->N);
}

/* Near the reference, other bits than widened (or the way was not taken), equal for threads. */
static bool check_row(ls_dot dot, ls_row row, ls_rows_run run, const void *s, int64_t halves,
                      int64_t floats, double tolerance)
{
    const char *name = ls_kernel_rows[row].name;
    int64_t n = halves + floats;
    const ls_kernels *avx512;
    float *want = ls_rows_once(run, s, ls_check_reference(), 1, n);
    bool other;

    setenv(LS_DOT_VARIABLE, "off", 1);
    LS_CHECK_OK(ls_kernel_pick("avx512", &avx512));
    float *widened = ls_rows_once(run, s, avx512, 1, n);
    setenv(LS_DOT_VARIABLE, ls_dot_name(dot), 1);
    LS_CHECK_OK(ls_kernel_pick("avx512", &avx512));
    float *first = ls_rows_once(run, s, avx512, 1, n);
    ls_half_near(name, first, want, halves, tolerance);
    ls_check_near(name, first + halves, want + halves, floats, tolerance);
    for (int threads = 2; threads <= 3; threads++) {
        float *got = ls_rows_once(run, s, avx512, threads, n);
        ls_check_same(name, got, first, n * (int64_t)sizeof *got);
        free(got);
    }
    other = memcmp(first, widened, (size_t)n * sizeof *first) != 0;
    free(first);
    free(widened);
    free(want);
    return other;
}

/* Products of bf16 are exact in fp32; each of the K sums rounds by half a unit of 2^-24 of partial
 * sums that are, for values of one and a half, rarely above sqrt(K). */
static double tolerance_of(const shape *s)
{
    double longest = (double)ls_max_i64(s->K, ls_max_i64(s->M / s->leaves, s->N));

    return fmax(0x1p-24 * longest, 1e-6);
}

LS_TEST_SECONDS(dot_rows_agree_with_the_reference, 60)
{
    static const int64_t shapes[][4] = {{1, 1, 1, 1},     {3, 5, 7, 1},     {17, 33, 65, 1},
                                        {15, 31, 385, 3}, {33, 3, 801, 1},  {385, 17, 33, 5},
                                        {8, 50, 70, 2},   {800, 33, 17, 4}, {29, 129, 48, 1}};

    need_avx512();
    for (size_t d = 0; d < LS_COUNT(emulated); d++) {
        bool other = false;
        for (size_t i = 0; i < LS_COUNT(shapes); i++)
            for (int layout = LS_LAYOUT_KN; layout <= LS_LAYOUT_NK; layout++)
                for (int act = LS_ACT_NONE; act <= LS_ACT_SILU; act++) {
                    const int64_t *v = shapes[i];
                    shape s = {v[0], v[1], v[2], v[3], (ls_layout)layout, (ls_act)act, i % 2};
                    other |= check_row(emulated[d], LS_ROW_LINEAR_FWD, run_linear, &s,
                                       halves_of(&s), s.K * s.N + s.N, tolerance_of(&s));
                }
        LS_CHECK(other);
    }
}

static void run_head(ls_check *c, const ls_kernels *k, const void *shape_of, float *out)
{
    const shape *s = shape_of; /* N: tokens of the vocabulary, K: width */
    ls_dtype type = ls_half_type(k);
    ls_head a = {.type = type, .M = s->M, .C = s->K, .V = s->N, .leaves = s->leaves};
    ls_step_state state = {.grad_scale = 0.5f};

    a.h = ls_half_values(c, type, "h", s->M * s->K, 0.5f, 0);
    a.w = ls_half_values(c, type, "w", s->N * s->K, 0.5f, 0);
    a.targets = ls_check_ints(c, "targets", s->M, (int32_t)s->N);
    a.losses = ls_check_floats(c, "losses", s->M, 0);
    a.dh = ls_half_values(c, type, "dh", s->M * s->K, 0, 0);
    a.dw = ls_check_floats(c, "dw", s->N * s->K, 0);
    a.state = &state;
    a.scratch = ls_rows_scratch(c, k, LS_ROW_HEAD, &a);
    k->head(c->stream, &a);
    out = ls_half_put(out, type, a.dh, s->M * s->K);
    out = ls_rows_put(out, a.losses, s->M);
    ls_rows_put(out, a.dw, s->N * s->K);
}

LS_TEST_SECONDS(dot_head_agrees_with_the_reference, 60)
{
    static const shape shapes[] = {{.M = 1, .N = 3, .K = 17, .leaves = 1},
                                   {.M = 33, .N = 101, .K = 65, .leaves = 3},
                                   {.M = 20, .N = 385, .K = 33, .leaves = 5}};

    need_avx512();
    for (size_t d = 0; d < LS_COUNT(emulated); d++) {
        bool other = false;
        for (size_t i = 0; i < LS_COUNT(shapes); i++) {
            const shape *s = &shapes[i];
            other |= check_row(emulated[d], LS_ROW_HEAD, run_head, s, s->M * s->K,
                               s->M + s->N * s->K, ls_kernel_rows[LS_ROW_HEAD].tolerance);
        }
        LS_CHECK(other);
    }
}

/* --- equal bits --------------------------------------------------------------------------------
 */

/* A part of C has the bits that it has in the whole: any rows, few or many, and any columns. */
static void check_shardings(ls_dot dot, int layout)
{
    static const int64_t size[4] = {43, 70, 801, 1}, cuts[] = {1, 2, 8, 9, 14, 17, 32, 42};
    ls_check c;

    ls_check_begin(&c, 2);
    ls_gemm g = product(&c, size, PLAIN, layout & 1, layout & 2);
    go(dot);
    ls_dot_run(c.stream, &g);
    float *parts = ls_check_floats(&c, "parts", g.M * g.N, 0);
    for (size_t i = 0; i < LS_COUNT(cuts); i++)
        for (int quarter = 0; quarter < 4; quarter++) {
            int64_t m = quarter & 1 ? cuts[i] : 0, n = quarter & 2 ? 70 - cuts[i] : 0;
            ls_gemm part = g;
            part.M = quarter & 1 ? g.M - cuts[i] : cuts[i];
            part.N = quarter & 2 ? g.N - n : 70 - cuts[i];
            part.a = (const uint16_t *)g.a + m * g.a_m;
            part.b = (const uint16_t *)g.b + n * g.b_n;
            part.out = parts + m * g.ld + n;
            ls_dot_run(c.stream, &part);
            if (quarter == 3)
                ls_check_same("parts", parts, g.out, g.M * g.N * 4);
        }
    ls_check_end(&c);
}

LS_TEST_SECONDS(dot_bits_do_not_depend_on_cuts, 60)
{
    need_avx512();
    for (size_t d = 0; d < LS_COUNT(emulated); d++)
        for (int layout = 0; layout < 4; layout++)
            check_shardings(emulated[d], layout);
}

/* dw and db of many leaves are those of one call for each, added along the tree; db has the bits of
 * the widened way. */
static void check_leaves(ls_dot dot, int leaves, int64_t rows, ls_layout layout)
{
    enum { N = 37, K = 45, BOTH = N * K + N };
    const ls_kernels *avx512;
    float *part[8];
    ls_check c;
    ls_linear_bwd_w a = {.type = LS_BF16, .M = leaves * rows, .N = N, .K = K, .leaves = leaves};

    ls_check_begin(&c, 2);
    setenv(LS_DOT_VARIABLE, ls_dot_name(dot), 1);
    LS_CHECK_OK(ls_kernel_pick("avx512", &avx512));
    const uint16_t *x = draw_matrix(&c, "x", a.M * K, PLAIN);
    const uint16_t *dy = draw_matrix(&c, "dy", a.M * N, PLAIN);
    float *got = ls_check_floats(&c, "got", BOTH, 0), *db = ls_check_floats(&c, "db", N, 0);
    a.layout = layout;
    a.x = x;
    a.dy = dy;
    a.dw = got;
    a.db = got + N * K;
    avx512->linear_bwd_w(c.stream, &a);
    a.M = rows;
    a.leaves = 1;
    for (int i = 0; i < leaves; i++) {
        part[i] = ls_check_floats(&c, "leaf", BOTH, 0);
        a.x = x + i * rows * K;
        a.dy = dy + i * rows * N;
        a.dw = part[i];
        a.db = part[i] + N * K;
        avx512->linear_bwd_w(c.stream, &a);
    }
    ls_rows_tree(&c, avx512, part, leaves, BOTH);
    ls_check_same("dw and db", got, part[0], BOTH * 4);
    go(LS_DOT_OFF);
    a.M = leaves * rows;
    a.leaves = leaves;
    a.x = x;
    a.dy = dy;
    a.dw = NULL;
    a.db = db;
    avx512->linear_bwd_w(c.stream, &a);
    ls_check_same("db", got + N * K, db, N * 4);
    ls_check_end(&c);
}

LS_TEST_SECONDS(dot_leaves_add_along_the_tree, 60)
{
    static const int64_t rows[] = {1, 15, 384, 400};

    need_avx512();
    for (size_t d = 0; d < LS_COUNT(emulated); d++)
        for (int leaves = 1; leaves <= 5; leaves++)
            for (size_t i = 0; i < LS_COUNT(rows); i++)
                check_leaves(emulated[d], leaves, rows[i],
                             (leaves + (int)i) % 2 ? LS_LAYOUT_KN : LS_LAYOUT_NK);
}

/* --- the choice --------------------------------------------------------------------------------
 */

LS_TEST(dot_says_what_it_cannot_do)
{
    const ls_kernels *kernels;

    setenv(LS_DOT_VARIABLE, "fast", 1);
    LS_CHECK_FAILS(ls_kernel_pick("auto", &kernels), LS_EUSAGE,
                   "LINESHAFT_BF16: there is no \"fast\"");
    for (int i = LS_DOT_AVX512; i <= LS_DOT_AMX; i++) {
        const char *obstacle = ls_dot_obstacle((ls_dot)i);
        setenv(LS_DOT_VARIABLE, ls_dot_name((ls_dot)i), 1);
        if (obstacle)
            LS_CHECK_FAILS(ls_kernel_pick("auto", &kernels), LS_EUSAGE, obstacle);
        else
            LS_CHECK_OK(ls_kernel_pick("auto", &kernels));
        LS_CHECK_EQ(ls_dot_chosen(), obstacle ? LS_DOT_OFF : i);
        go(LS_DOT_OFF);
    }
}

LS_TEST(dot_takes_the_best_way_unless_asked_for_another)
{
    const ls_kernels *kernels;
    ls_dot best = !ls_dot_obstacle(LS_DOT_AMX)      ? LS_DOT_AMX
                  : !ls_dot_obstacle(LS_DOT_AVX512) ? LS_DOT_AVX512
                                                    : LS_DOT_OFF;

    unsetenv(LS_DOT_VARIABLE);
    LS_CHECK_OK(ls_kernel_pick("auto", &kernels));
    LS_CHECK_EQ(ls_dot_chosen(), best);
    go(LS_DOT_OFF);
    setenv(LS_DOT_VARIABLE, "", 1);
    LS_CHECK_OK(ls_kernel_pick("generic", &kernels));
    LS_CHECK_EQ(ls_dot_chosen(), best);
}
