/* test_rng.c -- Philox against Random123, and the shape of what is made of it.
 *
 * rng.c is compiled a second time here under another name, because the tail of its quantile
 * function is reached once in 10^11 values and must be checked directly. */
#include <Random123/philox.h>

#include "harness.h"
#include "base/mem.h"

#define ls_rng_normal copy_of_ls_rng_normal
#include "base/rng.c"
#undef ls_rng_normal
void ls_rng_normal(ls_rng_key key, uint64_t first, uint64_t count, float *values_out);

static void check_block(ls_rng_key key, const uint32_t c[4])
{
    philox4x32_ctr_t ctr = {{c[0], c[1], c[2], c[3]}};
    philox4x32_key_t k = {{key.k[0], key.k[1]}};
    philox4x32_ctr_t want = philox4x32_R(10, ctr, k);
    ls_rng_block got = ls_rng_philox(key, c[0], c[1], c[2], c[3]);

    for (int i = 0; i < 4; i++)
        LS_CHECK_EQ(got.v[i], want.v[i]);
}

LS_TEST(rng_philox_equals_random123)
{
    static const uint32_t ends[] = {0, 1, 0x7fffffffu, 0x80000000u, 0xffffffffu};
    uint32_t x = 12345, c[4];

    for (size_t i = 0; i < LS_COUNT(ends); i++) /* each place at its ends, key and counter */
        for (int place = 0; place < 6; place++) {
            ls_rng_key key = {{3, 4}};
            for (int k = 0; k < 4; k++)
                c[k] = place == k ? ends[i] : (uint32_t)k;
            for (int k = 0; k < 2; k++)
                key.k[k] = place == 4 + k ? ends[i] : key.k[k];
            check_block(key, c);
        }
    for (int i = 0; i < 2000; i++) {
        ls_rng_key key;
        for (int k = 0; k < 6; k++) {
            x = x * 1664525u + 1013904223u;
            *(k < 4 ? &c[k] : &key.k[k - 4]) = x ^ x >> 15;
        }
        check_block(key, c);
    }
}

/* From the known answers that come with Random123: counter, key, block. */
LS_TEST(rng_philox_published_answers)
{
    static const uint32_t rows[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };

    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        const uint32_t *r = rows[i];
        ls_rng_block got = ls_rng_philox((ls_rng_key){{r[4], r[5]}}, r[0], r[1], r[2], r[3]);
        for (int k = 0; k < 4; k++)
            LS_CHECK_EQ(got.v[k], r[6 + k]);
    }
}

LS_TEST(rng_uniform_stays_below_one)
{
    LS_CHECK(ls_rng_uniform(0) == 0.0f);
    LS_CHECK(ls_rng_uniform(0xffffffffu) < 1.0f);
    LS_CHECK(ls_rng_uniform(0x80000000u) == 0.5f);
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* 20^3 small inputs, whose keys must all differ; swapped inputs are different inputs. */
LS_TEST(rng_derived_keys_do_not_collide)
{
    enum { SIDE = 20, N = SIDE * SIDE * SIDE };
    uint64_t *keys = ls_mem_array(N, sizeof *keys);
    int n = 0;

    LS_CHECK(keys);
    for (uint64_t seed = 0; seed < SIDE; seed++)
        for (uint64_t a = 0; a < SIDE; a++)
            for (uint64_t b = 0; b < SIDE; b++) {
                ls_rng_key k = ls_rng_derive(seed, a, b);
                keys[n++] = (uint64_t)k.k[1] << 32 | k.k[0];
            }
    qsort(keys, N, sizeof *keys, compare_u64);
    for (int i = 1; i < N; i++)
        LS_CHECK(keys[i] != keys[i - 1]);
    ls_mem_free(keys);
}

/* One changed input bit changes about half of the key's bits. */
LS_TEST(rng_derived_keys_spread_every_input_bit)
{
    for (int bit = 0; bit < 64; bit++)
        for (int input = 0; input < 3; input++) {
            int changed = 0;
            for (uint64_t base = 1; base <= 64; base++) {
                uint64_t v[3] = {base, base * 77, base * 1001};
                ls_rng_key x = ls_rng_derive(v[0], v[1], v[2]);
                v[input] ^= UINT64_C(1) << bit;
                ls_rng_key y = ls_rng_derive(v[0], v[1], v[2]);
                changed += __builtin_popcount(x.k[0] ^ y.k[0]);
                changed += __builtin_popcount(x.k[1] ^ y.k[1]);
            }
            LS_CHECK_NEAR(changed / 64.0, 32, 4); /* sd of the mean is 0.5 */
        }
}

/* Phi(quantile(p)) is p again, by the C library's erfc, which keeps relative precision. */
LS_TEST(rng_quantile_inverts_the_distribution)
{
    for (double p = 0.5; p > 1e-300; p *= p > 0.01 ? 0.999 : 0.9) {
        double x = normal_quantile(p);
        double back = 0.5 * erfc(-x * 0.70710678118654752440);
        LS_CHECK_NEAR(back / p, 1, 1e-15 * (16 + x * x));
        if (p > 1e-10) /* 1 - p has lost the rest */
            LS_CHECK_NEAR(normal_quantile(1 - p), -x, 1e-15 / p + 1e-15);
    }
    LS_CHECK(normal_quantile(0.5) == 0);
    LS_CHECK_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-14);
    LS_CHECK_NEAR(normal_quantile(0x1p-53), -8.209536151601387, 1e-12);
}

LS_TEST(rng_plain_log_is_the_logarithm)
{
    for (double x = 0x1p-1000; x < 0x1p1000; x *= 1.37)
        LS_CHECK_NEAR(plain_log(x), log(x), 4e-16 * (1 + fabs(log(x))));
    LS_CHECK(plain_log(1) == 0);
}

static int compare_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

LS_TEST(rng_normal_has_the_right_moments_and_quantiles)
{
    enum { N = 400000 };
    static const double p[] = {0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999};
    static const double z[] = {-3.0902, -2.3263, -1.2816, -0.6745, 0,
                               0.6745,  1.2816,  2.3263,  3.0902};
    float *v = ls_mem_array(N, sizeof *v);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, pairs = 0;

    LS_CHECK(v);
    ls_rng_normal(ls_rng_derive(1, 2, 3), 0, N, v);
    for (int i = 0; i < N; i++) {
        double x = (double)v[i];
        m1 += x / N;
        m2 += x * x / N;
        m3 += x * x * x / N;
        m4 += x * x * x * x / N;
        pairs += i ? x * (double)v[i - 1] / N : 0;
    }
    double sd = 1 / sqrt((double)N); /* of each sum's mean, times its own factor */
    LS_CHECK_NEAR(m1, 0, 4 * sd);
    LS_CHECK_NEAR(m2, 1, 4 * sd * sqrt(2));
    LS_CHECK_NEAR(m3, 0, 4 * sd * sqrt(15));
    LS_CHECK_NEAR(m4, 3, 4 * sd * sqrt(96));
    LS_CHECK_NEAR(pairs, 0, 4 * sd); /* neighbours share a Philox block */
    qsort(v, N, sizeof *v, compare_float);
    for (size_t i = 0; i < LS_COUNT(p); i++) {
        double density = exp(-z[i] * z[i] / 2) * 0.3989422804;
        LS_CHECK_NEAR(v[(int)(p[i] * N)], z[i], 4 * sd * sqrt(p[i] * (1 - p[i])) / density + 1e-4);
    }
    ls_mem_free(v);
}

LS_TEST(rng_normal_does_not_depend_on_how_it_is_cut)
{
    enum { N = 1001 };
    static const uint64_t cuts[] = {1, 2, 3, 7, 64, 500};
    /* Also where the block number passes 32 bits: shards of a large tensor begin there. */
    static const uint64_t starts[] = {0, 1, (UINT64_C(1) << 33) - 500, UINT64_C(1) << 60};
    float whole[N], part[N];

    for (size_t s = 0; s < LS_COUNT(starts); s++) {
        ls_rng_key key = ls_rng_derive(9, s, 0);
        ls_rng_normal(key, starts[s], N, whole);
        for (size_t c = 0; c < LS_COUNT(cuts); c++) {
            memset(part, 0xff, sizeof part);
            for (uint64_t at = 0; at < N; at += cuts[c])
                ls_rng_normal(key, starts[s] + at, cuts[c] < N - at ? cuts[c] : N - at, part + at);
            LS_CHECK(memcmp(whole, part, sizeof whole) == 0);
        }
        ls_rng_normal(key, starts[s], 0, NULL);
    }
}

LS_TEST(rng_normal_streams_of_different_keys_are_unrelated)
{
    enum { N = 20000 };
    static float a[N], b[N];
    double sum = 0;

    ls_rng_normal(ls_rng_derive(1, 0, 0), 0, N, a);
    ls_rng_normal(ls_rng_derive(1, 1, 0), 0, N, b);
    for (int i = 0; i < N; i++)
        sum += (double)a[i] * (double)b[i] / N;
    LS_CHECK_NEAR(sum, 0, 4 / sqrt((double)N));
}
