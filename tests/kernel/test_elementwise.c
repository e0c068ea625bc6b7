/* test_elementwise.c -- sum, add, fill, norm2 against the reference; casts of every 16-bit value.
 */
#include "kernel/rows.h"

#include <math.h>

static const int64_t counts[] = {1, 15, 16, 17, 127, 128, 129, 16383, 16385, 50001};

static void run_sum(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    const int64_t *s = shape; /* elements, segments */
    double *sums = ls_check_bytes(c, "out", s[1] * (int64_t)sizeof *sums);

    k->sum(
        c->stream,
        &(ls_sum){.x = ls_check_floats(c, "x", s[0], 1), .out = sums, .n = s[0], .segments = s[1]});
    for (int64_t i = 0; i < s[1]; i++)
        out[i] = (float)sums[i];
}

static void run_add(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    int64_t n = *(const int64_t *)shape;
    float *a = ls_check_floats(c, "a", n, 1), *b = ls_check_floats(c, "b", n, 1);
    float *sum = ls_check_floats(c, "out", n, 0);

    k->add(c->stream, &(ls_add){.a = a, .b = b, .out = sum, .n = n});
    out = ls_rows_put(out, sum, n);
    k->add(c->stream, &(ls_add){.a = a, .b = b, .out = a, .n = n});
    out = ls_rows_put(out, a, n);
    k->add(c->stream, &(ls_add){.a = sum, .b = b, .out = b, .n = n});
    ls_rows_put(out, b, n);
}

static void run_scale(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    int64_t n = *(const int64_t *)shape;
    float *x = ls_check_floats(c, "x", n, 1);

    k->scale(c->stream, &(ls_scale){.x = x, .value = -0.3f, .n = n});
    ls_rows_put(out, x, n);
}

static void run_fill(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    int64_t n = *(const int64_t *)shape;
    float *x = ls_check_floats(c, "x", n, 0);

    k->fill(c->stream, &(ls_fill){.x = x, .value = -1.25f, .n = n});
    ls_rows_put(out, x, n);
}

LS_TEST_SECONDS(sum_add_scale_and_fill_equal_reference, 60)
{
    for (size_t i = 0; i < LS_COUNT(counts); i++) {
        int64_t n = counts[i];
        ls_rows_check(LS_ROW_SUM, run_sum, (int64_t[]){n, 1}, 1);
        ls_rows_check(LS_ROW_SUM, run_sum, (int64_t[]){3 * n, 3}, 3);
        ls_rows_check(LS_ROW_ADD, run_add, &n, 3 * n);
        ls_rows_check(LS_ROW_SCALE, run_scale, &n, n);
        ls_rows_check(LS_ROW_FILL, run_fill, &n, n);
    }
}

/* --- norm2 --------------------------------------------------------------------------------------
 */

static ls_norm2 norm2_args(ls_check *c, int64_t n, float clip)
{
    ls_norm2 a = {.n = n, .x = ls_check_floats(c, "x", n, 1)};
    ls_step_state *state = ls_check_bytes(c, "state", sizeof *state);

    *state = (ls_step_state){.clip = clip};
    a.state = state;
    a.partials = ls_check_floats(c, "partials", (n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK, 0);
    a.result = ls_check_bytes(c, "result", sizeof *a.result);
    return a;
}

static void run_norm2(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    int64_t n = *(const int64_t *)shape;
    ls_norm2 a = norm2_args(c, n, 1);

    k->norm2(c->stream, &a);
    LS_CHECK_EQ(a.result->bad_block, -1);
    out[0] = a.result->norm;
    out[1] = a.result->factor;
    ls_rows_put(out + 2, a.partials, (n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK);
}

LS_TEST_SECONDS(norm2_equals_reference, 60)
{
    for (size_t i = 0; i < LS_COUNT(counts); i++)
        ls_rows_check(LS_ROW_NORM2, run_norm2, &counts[i],
                      2 + (counts[i] + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK);
    ls_rows_check(LS_ROW_NORM2, run_norm2, (int64_t[]){7 * LS_NORM_BLOCK + 5}, 10);
}

/* The tree over five blocks by hand, clipping on both sides of the limit, and bad values. */
LS_TEST(norm2_joins_blocks_clips_and_finds_the_first_bad_block)
{
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int i = 0; i < count; i++) {
        ls_check c;
        ls_check_begin(&c, 2);
        ls_norm2 a = norm2_args(&c, 5 * LS_NORM_BLOCK, 0);
        float *x = (float *)(uintptr_t)a.x;
        ls_step_state *state = (ls_step_state *)(uintptr_t)a.state;
        list[i]->norm2(c.stream, &a);
        double p[5];
        for (int b = 0; b < 5; b++)
            p[b] = (double)a.partials[b];
        float norm = (float)sqrt(((p[0] + p[1]) + (p[2] + p[3])) + p[4]);
        ls_check_same("norm", &a.result->norm, &norm, sizeof norm);
        LS_CHECK(a.result->factor == 1 && a.result->bad_block == -1);
        state->clip = norm / 4;
        list[i]->norm2(c.stream, &a);
        LS_CHECK_NEAR(a.result->factor, 0.25, 1e-7);
        state->clip = norm * 2;
        list[i]->norm2(c.stream, &a);
        LS_CHECK(a.result->factor == 1);
        x[4 * LS_NORM_BLOCK + 3] = NAN;
        list[i]->norm2(c.stream, &a);
        LS_CHECK_EQ(a.result->bad_block, 4);
        x[2 * LS_NORM_BLOCK + LS_NORM_BLOCK - 1] = -INFINITY;
        list[i]->norm2(c.stream, &a);
        LS_CHECK_EQ(a.result->bad_block, 2);
        LS_CHECK(a.result->factor == 0);
        ls_check_end(&c);
    }
}

/* A part of the blocks by one caller and the rest by another, then joined, has the bits of the
 * whole. */
LS_TEST(norm2_in_parts_has_the_bits_of_the_whole)
{
    const int64_t n = 5 * LS_NORM_BLOCK + 77, first = 2 * LS_NORM_BLOCK;
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int i = 0; i < count; i++) {
        ls_check c;
        ls_check_begin(&c, 2);
        ls_norm2 all = norm2_args(&c, n, 0.5f), low = all, high = all, join = all;
        ls_norm_result untouched;
        float *partials = ls_check_floats(&c, "parts", 6, 0);
        list[i]->norm2(c.stream, &all);
        ls_norm_result want = *all.result;
        memset(all.result, 0x5a, sizeof *all.result);
        untouched = *all.result;
        low.part = high.part = LS_NORM_SQUARES;
        low.n = first;
        low.partials = partials;
        high.x += first;
        high.n -= first;
        high.partials = partials + first / LS_NORM_BLOCK;
        list[i]->norm2(c.stream, &high);
        list[i]->norm2(c.stream, &low);
        ls_check_same("partials", partials, all.partials, 6 * (int64_t)sizeof *partials);
        ls_check_same("result", all.result, &untouched, sizeof untouched);
        join.part = LS_NORM_JOIN;
        join.x = NULL;
        join.partials = partials;
        list[i]->norm2(c.stream, &join);
        ls_check_same("norm", &join.result->norm, &want.norm, sizeof want.norm);
        ls_check_same("factor", &join.result->factor, &want.factor, sizeof want.factor);
        LS_CHECK_EQ(join.result->bad_block, -1);
        partials[3] = NAN;
        list[i]->norm2(c.stream, &join);
        LS_CHECK_EQ(join.result->bad_block, 3);
        ls_check_end(&c);
    }
}

/* --- cast ---------------------------------------------------------------------------------------
 */

static void cast(ls_check *c, const ls_kernels *k, ls_dtype to, void *out, ls_dtype from,
                 const void *in, int64_t n)
{
    k->cast(c->stream, &(ls_cast){.from_type = from, .to_type = to, .from = in, .to = out, .n = n});
}

/* What a 16-bit pattern stands for, by the definition of the formats. */
static double value16(uint32_t bits, int fraction_bits)
{
    int exponent_bits = 15 - fraction_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int e = (int)(bits >> fraction_bits & ((1u << exponent_bits) - 1));
    double f = (double)(bits & ((1u << fraction_bits) - 1)) / (double)(1 << fraction_bits);
    double sign = bits & 0x8000 ? -1 : 1;

    if (e == (1 << exponent_bits) - 1)
        return f > 0 ? (double)NAN : sign * (double)INFINITY;
    return sign * (e ? ldexp(1 + f, e - bias) : ldexp(f, 1 - bias));
}

/* All 65536 patterns: widened to the right value, narrowed back to the same pattern; equal bits in
 * every table. */
LS_TEST_SECONDS(cast_is_right_for_every_16_bit_value, 60)
{
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);
    const ls_dtype types[] = {LS_BF16, LS_F16};
    const int64_t n = 65536;

    for (int t = 0; t < 2; t++) {
        ls_check c;
        ls_check_begin(&c, 2);
        uint16_t *half = ls_check_bytes(&c, "half", n * 2), *back = ls_check_bytes(&c, "b", n * 2);
        uint16_t *other = ls_check_bytes(&c, "other", n * 2);
        uint16_t *want_other = ls_check_bytes(&c, "want other", n * 2);
        float *wide = ls_check_floats(&c, "wide", n, 0), *want = ls_check_floats(&c, "want", n, 0);
        for (int64_t i = 0; i < n; i++)
            half[i] = (uint16_t)i;
        cast(&c, ls_check_reference(), LS_F32, want, types[t], half, n);
        cast(&c, ls_check_reference(), types[1 - t], want_other, types[t], half, n);
        for (int k = 0; k < count; k++) {
            cast(&c, list[k], LS_F32, wide, types[t], half, n);
            cast(&c, list[k], types[t], back, LS_F32, wide, n);
            cast(&c, list[k], types[1 - t], other, types[t], half, n);
            ls_check_same("wide", wide, want, n * 4);
            ls_check_same("other", other, want_other, n * 2);
            for (int64_t i = 0; i < n; i++) {
                double v = value16((uint32_t)i, types[t] == LS_BF16 ? 7 : 10);
                LS_CHECK(isnan(v) ? isnan(wide[i]) : (double)wide[i] == v);
                LS_CHECK_EQ(!!signbit(wide[i]), i >> 15);
                if (!isnan(v))
                    LS_CHECK_EQ(back[i], i);
                else /* the quiet bit may have been set */
                    LS_CHECK_EQ(back[i] | (types[t] == LS_BF16 ? 0x40 : 0x200),
                                i | (types[t] == LS_BF16 ? 0x40 : 0x200));
            }
        }
        ls_check_end(&c);
    }
}

/* Between two neighbours: below the middle goes down, above it up, the middle to the even one. */
LS_TEST_SECONDS(cast_rounds_to_nearest_even, 60)
{
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);
    const int64_t n = 3 * 65536;

    for (int t = 0; t < 2; t++) {
        ls_dtype type = t ? LS_F16 : LS_BF16;
        int fraction = t ? 10 : 7;
        uint32_t infinity = t ? 0x7c00 : 0x7f80;
        ls_check c;
        ls_check_begin(&c, 3);
        float *x = ls_check_floats(&c, "x", n, 0);
        uint16_t *want = ls_check_bytes(&c, "want", n * 2), *got = ls_check_bytes(&c, "got", n * 2);
        int64_t m = 0;
        for (uint32_t i = 0; i < 65535; i++) {
            uint32_t low = i & 0x7fff, sign = i & 0x8000;
            if (low >= infinity)
                continue;
            /* Behind the largest value the middle is that to the value that infinity replaces. */
            double a = value16(low, fraction);
            double b = low + 1 < infinity ? value16(low + 1, fraction)
                                          : 2 * a - value16(low - 1, fraction);
            float middle = (float)((a + b) / 2); /* exact */
            for (int side = -1; side <= 1; side++) {
                float v = side ? nextafterf(middle, side > 0 ? INFINITY : 0) : middle;
                x[m] = sign ? -v : v;
                want[m++] = (uint16_t)(sign | (side < 0   ? low
                                               : side > 0 ? low + 1
                                                          : low + (low & 1)));
            }
        }
        for (int k = 0; k < count; k++) {
            cast(&c, list[k], type, got, LS_F32, x, m);
            for (int64_t i = 0; i < m; i++)
                if (got[i] != want[i])
                    ls_test_fail(__FILE__, __LINE__, "%s: %.9g gives %04x, expected %04x",
                                 list[k]->name, (double)x[i], got[i], want[i]);
        }
        ls_check_end(&c);
    }
}

/* Random patterns of 32 bits, NaN and denormals among them, and odd counts. */
static void run_cast(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    int64_t n = *(const int64_t *)shape;
    int32_t *x = ls_check_ints(c, "x", n, INT32_MAX);
    uint16_t *half = ls_check_bytes(c, "half", n * 2);

    for (int64_t i = 0; i < n; i++)
        x[i] = (int32_t)((uint32_t)x[i] << 1 | (uint32_t)(i & 1));
    for (int t = 0; t < 3; t++) {
        cast(c, k,
             t == 0   ? LS_BF16
             : t == 1 ? LS_F16
                      : LS_F32,
             t == 2 ? (void *)x : half, LS_F32, x, n);
        for (int64_t i = 0; i < n && t < 2; i++)
            *out++ = half[i];
    }
}

LS_TEST_SECONDS(cast_equals_reference_on_any_bits, 60)
{
    for (size_t i = 0; i < LS_COUNT(counts); i++)
        ls_rows_check(LS_ROW_CAST, run_cast, &counts[i], 2 * counts[i]);
}
