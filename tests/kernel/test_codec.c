/* test_codec.c -- packing against a definition one element at a time, on every instruction set,
 * with odd counts, odd addresses and bytes around every buffer that must not change. */
#include "harness.h"

#include <math.h>
#include "base/mem.h"
#include "kernel/codec_impl.h"
#include "kernel/cpu/isa.h"

enum { MOST = 2 * LS_CODEC_BLOCK + 333, GUARD = 64, SKEW = 8 };

typedef struct compressed {
    float *x, *owed, *residual, *sum, *out; /* MOST and guards each */
    char *packed, *first;                   /* first: as the first instruction set packed it */
    float *was;
    uint64_t seed;
} compressed;

static const ls_codec kinds[] = {{.kind = LS_CODEC_NONE},
                                 {.kind = LS_CODEC_BF16},
                                 {.kind = LS_CODEC_INT8},
                                 {.kind = LS_CODEC_TOPK, .keep = 41},
                                 {.kind = LS_CODEC_TOPK, .keep = 1},
                                 {.kind = LS_CODEC_TOPK, .keep = LS_CODEC_BLOCK}};

static const int64_t counts[] = {0,   1,   2,   15,   16,   17,   100,  255, 256,
                                 257, 511, 513, 4095, 4096, 4097, 5000, MOST};

static uint32_t next(compressed *s)
{
    s->seed = s->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(s->seed >> 33);
}

static void *room(int64_t bytes)
{
    char *p = ls_mem_alloc((size_t)bytes + 2 * GUARD);

    LS_CHECK(p);
    memset(p, 0x5a, (size_t)bytes + 2 * GUARD);
    return p + GUARD;
}

static void give(void *p)
{
    ls_mem_free((char *)p - GUARD);
}

static void check_guards(const void *p, int64_t bytes, int64_t most)
{
    const char *c = p;

    for (int64_t i = -GUARD; i < 0; i++)
        LS_CHECK_EQ(c[i], 0x5a);
    for (int64_t i = bytes; i < most + GUARD; i++)
        LS_CHECK_EQ(c[i], 0x5a);
}

static void compressed_init(compressed *s)
{
    int64_t bytes = MOST * (int64_t)sizeof(float);

    *s = (compressed){.x = room(bytes),
                      .owed = room(bytes),
                      .residual = room(bytes),
                      .sum = room(bytes),
                      .out = room(bytes),
                      .was = room(bytes),
                      .packed = room(bytes + SKEW),
                      .first = room(bytes),
                      .seed = 7};
}

static void compressed_release(compressed *s)
{
    void *all[] = {s->x, s->owed, s->residual, s->sum, s->out, s->was, s->packed, s->first};

    for (size_t i = 0; i < LS_COUNT(all); i++)
        give(all[i]);
}

/* Gradients of very different sizes. */
static void fill(compressed *s, float *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float x = (float)(int32_t)(next(s) << 1) * 0x1p-31f;
        to[i] = ldexpf(x, -(int)(next(s) % 12));
    }
}

static uint32_t bits_of(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static float bf16_of(float f)
{
    uint32_t u = bits_of(f), near = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;

    if (isnan(f))
        return NAN;
    memcpy(&f, &near, sizeof f);
    return f;
}

/* --- the definition -----------------------------------------------------------------------------
 */

static void define_int8(const float *y, int64_t n, float *u)
{
    for (int64_t at = 0; at < n; at += LS_CODEC_SCALED) {
        int64_t end = ls_min_i64(n, at + LS_CODEC_SCALED);
        float top = 0;
        bool finite_all = true;
        for (int64_t i = at; i < end; i++) {
            finite_all = finite_all && isfinite(y[i]);
            top = fabsf(y[i]) > top ? fabsf(y[i]) : top;
        }
        for (int64_t i = at; i < end; i++)
            u[i] = !finite_all       ? NAN
                   : top < 0x1p-119f ? 0
                                     : nearbyintf(y[i] * (127 / top)) * (top / 127);
    }
}

/* As many of the largest as are kept: one at a time. */
static void define_topk(const float *y, int64_t n, int keep, float *u)
{
    for (int64_t at = 0; at < n; at += LS_CODEC_BLOCK) {
        int64_t end = ls_min_i64(n, at + LS_CODEC_BLOCK);
        int64_t left = (keep * (end - at) + LS_CODEC_BLOCK - 1) / LS_CODEC_BLOCK;
        uint32_t limit = UINT32_MAX, size = 0;
        memset(u + at, 0, (size_t)(end - at) * sizeof *u);
        while (left > 0) { /* the next smaller size, all of it in order */
            size = 0;
            for (int64_t i = at; i < end; i++) {
                uint32_t b = isnan(y[i]) ? 0x7fc00000 : bits_of(y[i]) & 0x7fffffff;
                size = b < limit && b > size ? b : size;
            }
            for (int64_t i = at; i < end && left > 0; i++)
                if ((isnan(y[i]) ? 0x7fc00000 : bits_of(y[i]) & 0x7fffffff) == size) {
                    u[i] = bf16_of(y[i]);
                    left--;
                }
            limit = size;
        }
    }
}

static void define(const ls_codec *how, const float *y, int64_t n, float *u)
{
    if (how->kind == LS_CODEC_INT8)
        define_int8(y, n, u);
    else if (how->kind == LS_CODEC_TOPK)
        define_topk(y, n, how->keep, u);
    else
        for (int64_t i = 0; i < n; i++)
            u[i] = how->kind == LS_CODEC_BF16 ? bf16_of(y[i]) : y[i];
}

static void check_equal(const char *name, const ls_codec *how, int64_t n, const char *what,
                        const float *got, const float *want)
{
    for (int64_t i = 0; i < n; i++)
        if (bits_of(got[i]) != bits_of(want[i]) && !(got[i] == 0 && want[i] == 0))
            ls_test_fail(__FILE__, __LINE__,
                         "%s: %s, %lld elements: %s of element %lld is %.9g, "
                         "expected %.9g",
                         name, ls_codec_name(how->kind), (long long)n, what, (long long)i,
                         (double)got[i], (double)want[i]);
}

/* What arrived and what is owed is what was there; a block that is not finite owes what it did. */
static void check_residual(const compressed *s, const ls_codec *how, int64_t n, const float *y,
                           const float *u)
{
    int64_t block = how->kind == LS_CODEC_TOPK ? LS_CODEC_BLOCK : LS_CODEC_SCALED;

    for (int64_t at = 0; at < n; at += block) {
        int64_t end = ls_min_i64(n, at + block);
        bool good = true;
        for (int64_t i = at; i < end; i++)
            good = good && isfinite(u[i]);
        for (int64_t i = at; i < end; i++)
            LS_CHECK_NEAR(s->residual[i], good ? y[i] - u[i] : s->owed[i], 0);
    }
}

typedef struct loops {
    const char *name;
    void (*pack)(const ls_codec *how, const float *x, float *residual, int64_t n, char *packed);
    bool (*add)(const ls_codec *how, const char *packed, int64_t n, float *sum);
    bool (*unpack)(const ls_codec *how, const char *packed, int64_t n, float *out);
} loops;

/* Those that this CPU can run; how many. */
static int usable(loops list_out[3])
{
    int n = 0;

    list_out[n++] =
        (loops){"generic", ls_codec_pack_generic, ls_codec_add_generic, ls_codec_unpack_generic};
#if defined(__x86_64__)
    if (!ls_isa_lacks_avx2())
        list_out[n++] =
            (loops){"avx2", ls_codec_pack_avx2, ls_codec_add_avx2, ls_codec_unpack_avx2};
    if (!ls_isa_lacks_avx512())
        list_out[n++] =
            (loops){"avx512", ls_codec_pack_avx512, ls_codec_add_avx512, ls_codec_unpack_avx512};
#endif
    return n;
}

/* One kind and count on all instruction sets, `skew` bytes away from alignment. */
static void run_case(compressed *s, const ls_codec *how, int64_t n, int skew, bool feedback)
{
    loops list[3];
    int n_loops = usable(list);
    int64_t bytes = ls_codec_bytes(how, n), most = MOST * (int64_t)sizeof(float);
    float *y = ls_mem_array(MOST, sizeof *y), *u = ls_mem_array(MOST, sizeof *u);

    LS_CHECK(y && u && bytes <= 4 * n + 4);
    for (int64_t i = 0; i < n; i++)
        y[i] = isnan(s->x[i]) ? NAN : feedback ? s->x[i] + s->owed[i] : s->x[i];
    define(how, y, n, u);
    for (int l = 0; l < n_loops; l++) {
        memset(s->packed, 0x5a, (size_t)most + SKEW);
        memcpy(s->residual, s->owed, (size_t)n * sizeof(float));
        memcpy(s->sum, s->was, (size_t)n * sizeof(float));
        list[l].pack(how, s->x, feedback ? s->residual : NULL, n, s->packed + skew);
        check_guards(s->packed + skew, bytes, most + SKEW - skew);
        if (l == 0)
            memcpy(s->first, s->packed + skew, (size_t)bytes);
        LS_CHECK(memcmp(s->first, s->packed + skew, (size_t)bytes) == 0);
        LS_CHECK(list[l].unpack(how, s->packed + skew, n, s->out));
        check_equal(list[l].name, how, n, "the value", s->out, u);
        LS_CHECK(list[l].add(how, s->packed + skew, n, s->sum));
        for (int64_t i = 0; i < n; i++) {
            float sum = s->was[i] + u[i], left = isnan(sum) ? NAN : sum;
            check_equal(list[l].name, how, 1, "the sum", &s->sum[i], &left);
        }
        if (feedback)
            check_residual(s, how, n, y, u);
        check_guards(s->sum, n * 4, n * 4);
        check_guards(s->out, n * 4, n * 4);
        check_guards(s->residual, n * 4, n * 4);
        memset(s->sum, 0x5a, (size_t)most);
        memset(s->out, 0x5a, (size_t)most);
        memset(s->residual, 0x5a, (size_t)most);
    }
    ls_mem_free(y);
    ls_mem_free(u);
}

LS_TEST(codec_equals_definition_on_every_instruction_set)
{
    compressed s;

    compressed_init(&s);
    for (size_t k = 0; k < LS_COUNT(kinds); k++)
        for (size_t c = 0; c < LS_COUNT(counts); c++) {
            if (kinds[k].keep > 1000 && counts[c] > 300) /* the definition is slow there */
                continue;
            fill(&s, s.x, counts[c]);
            fill(&s, s.owed, counts[c]);
            fill(&s, s.was, counts[c]);
            run_case(&s, &kinds[k], counts[c], 0, true);
            run_case(&s, &kinds[k], counts[c], (int)(c % 7), false);
        }
    compressed_release(&s);
}

/* Zeros, equal sizes, tiny and huge numbers: edges of scale and choice. */
LS_TEST(codec_edges_of_scale_and_choice)
{
    static const float edges[] = {0.0f,      -0.0f,     1.0f,       -1.0f,   0x1p-149f,
                                  0x1p-126f, 0x1p-119f, -0x1p-120f, 0x1p100f};
    compressed s;

    compressed_init(&s);
    for (size_t k = 0; k < LS_COUNT(kinds); k++)
        for (size_t e = 0; e < LS_COUNT(edges); e++) {
            for (int i = 0; i < 300; i++) {
                s.x[i] = i % 3 ? edges[e] : edges[(e + (size_t)i) % (e + 1)];
                s.owed[i] = i % 2 ? 0 : edges[e] / 2;
                s.was[i] = (float)i;
            }
            run_case(&s, &kinds[k], 300, 1, true);
        }
    compressed_release(&s);
}

/* A NaN or an infinity arrives as something that is not finite, and what the block owed before
 * stays owed. */
LS_TEST(codec_passes_on_what_is_not_finite)
{
    static const uint32_t bad[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001};
    compressed s;

    compressed_init(&s);
    for (size_t k = 0; k < LS_COUNT(kinds); k++)
        for (size_t b = 0; b < LS_COUNT(bad); b++)
            for (int64_t n = 1; n < 700; n += 166) {
                int64_t at = n - 1 - (int64_t)b % n;
                fill(&s, s.x, n);
                fill(&s, s.owed, n);
                fill(&s, s.was, n);
                memcpy(&s.x[at], &bad[b], sizeof bad[b]);
                run_case(&s, &kinds[k], n, 0, true);
                run_case(&s, &kinds[k], n, 0, false);
                memcpy(s.residual, s.owed, (size_t)n * sizeof(float));
                ls_codec_pack(&kinds[k], s.x, s.residual, n, s.packed);
                LS_CHECK_OK(ls_codec_unpack(&kinds[k], s.packed, n, s.out));
                LS_CHECK(!isfinite(s.out[at]));
                LS_CHECK_EQ(bits_of(s.residual[at]), bits_of(s.owed[at]));
                memset(s.residual, 0x5a, (size_t)n * sizeof(float));
                memset(s.out, 0x5a, (size_t)n * sizeof(float));
            }
    compressed_release(&s);
}

/* Over many steps nothing is lost: what arrived in all, and what is owed at the end, is what was
 * given, up to the rounding of x + residual. */
LS_TEST(codec_error_feedback_loses_nothing)
{
    enum { N = 1000, STEPS = 200 };
    compressed s;
    double *given = ls_mem_array(N, sizeof *given), *arrived = ls_mem_array(N, sizeof *arrived);

    LS_CHECK(given && arrived);
    compressed_init(&s);
    for (size_t k = 0; k < LS_COUNT(kinds); k++) {
        memset(s.residual, 0, N * sizeof(float));
        memset(given, 0, N * sizeof *given);
        memset(arrived, 0, N * sizeof *arrived);
        for (int step = 0; step < STEPS; step++) {
            fill(&s, s.x, N);
            ls_codec_pack(&kinds[k], s.x, s.residual, N, s.packed);
            LS_CHECK_OK(ls_codec_unpack(&kinds[k], s.packed, N, s.out));
            for (int i = 0; i < N; i++) {
                given[i] += (double)s.x[i];
                arrived[i] += (double)s.out[i];
            }
        }
        for (int i = 0; i < N; i++)
            LS_CHECK_NEAR(arrived[i] + (double)s.residual[i], given[i], 1e-4);
    }
    compressed_release(&s);
    ls_mem_free(given);
    ls_mem_free(arrived);
}

/* Cut at borders of blocks, packed bytes and residuals are those of the whole. */
LS_TEST(codec_of_parts_is_the_codec_of_the_whole)
{
    compressed s;

    compressed_init(&s);
    for (size_t k = 0; k < LS_COUNT(kinds); k++) {
        fill(&s, s.x, MOST);
        fill(&s, s.owed, MOST);
        memcpy(s.residual, s.owed, MOST * sizeof(float));
        ls_codec_pack(&kinds[k], s.x, s.residual, MOST, s.first);
        for (int64_t at = 0; at < MOST; at += LS_CODEC_BLOCK)
            ls_codec_pack(&kinds[k], s.x + at, s.owed + at, ls_min_i64(LS_CODEC_BLOCK, MOST - at),
                          s.packed + ls_codec_bytes(&kinds[k], at));
        LS_CHECK(memcmp(s.first, s.packed, (size_t)ls_codec_bytes(&kinds[k], MOST)) == 0);
        LS_CHECK(memcmp(s.owed, s.residual, MOST * sizeof(float)) == 0);
    }
    compressed_release(&s);
}

/* Any bytes at all: nothing outside the result is written, and a place that is none is said. */
LS_TEST(codec_of_damaged_bytes_writes_nothing_outside)
{
    compressed s;
    int refused = 0;

    compressed_init(&s);
    for (int times = 0; times < 300; times++)
        for (size_t k = 0; k < LS_COUNT(kinds); k++) {
            int64_t n = next(&s) % 600, bytes = ls_codec_bytes(&kinds[k], n);
            for (int64_t i = 0; i < bytes; i++)
                s.packed[i] = (char)next(&s);
            memset(s.sum, 0, (size_t)n * 4);
            ls_status st = ls_codec_add(&kinds[k], s.packed, n, s.sum);
            LS_CHECK(st == LS_OK || kinds[k].kind == LS_CODEC_TOPK);
            LS_CHECK_EQ(ls_codec_unpack(&kinds[k], s.packed, n, s.out), st);
            refused += st == LS_EDATA;
            check_guards(s.sum, n * 4, n * 4);
            check_guards(s.out, n * 4, n * 4);
            memset(s.sum, 0x5a, (size_t)n * 4);
            memset(s.out, 0x5a, (size_t)n * 4);
        }
    LS_CHECK(refused > 0);
    compressed_release(&s);
}

LS_TEST(codec_sizes)
{
    ls_codec int8 = ls_codec_of(LS_CODEC_INT8, 0), topk = ls_codec_of(LS_CODEC_TOPK, 0.01);

    LS_CHECK_EQ(topk.keep, 41);
    LS_CHECK_EQ(ls_codec_of(LS_CODEC_TOPK, 1e-9).keep, 1);
    LS_CHECK_EQ(ls_codec_of(LS_CODEC_TOPK, 1).keep, LS_CODEC_BLOCK);
    LS_CHECK_EQ(ls_codec_bytes(&int8, 0), 0);
    LS_CHECK_EQ(ls_codec_bytes(&int8, 1), 5);
    LS_CHECK_EQ(ls_codec_bytes(&int8, 256), 260);
    LS_CHECK_EQ(ls_codec_bytes(&int8, 257), 265);
    LS_CHECK_EQ(ls_codec_bytes(&topk, 4096), 164);
    LS_CHECK_EQ(ls_codec_bytes(&topk, 4097), 168);
    LS_CHECK_EQ(ls_codec_bytes(&topk, 1), 4);
    LS_CHECK_STR(ls_codec_name(LS_CODEC_TOPK), "topk");
}
