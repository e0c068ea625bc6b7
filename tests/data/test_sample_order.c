/* test_sample_order.c -- the bijections are bijections, every window comes exactly once, seeking
 * works. */
#include "data/corpus/sample_order.h"

#include "data/corpus/order_proof.h"
#include "base/mem.h"
#include "harness.h"

static void check_bijection(ls_rng_key key, int64_t n)
{
    unsigned char *seen = ls_mem_alloc((size_t)n);

    LS_CHECK(seen);
    for (int64_t i = 0; i < n; i++) {
        int64_t j = ls_sample_order_permute(key, n, i);
        LS_CHECK(j >= 0 && j < n);
        LS_CHECK(!seen[j]);
        seen[j] = 1;
        LS_CHECK_EQ(ls_sample_order_unpermute(key, n, j), i);
    }
    ls_mem_free(seen);
}

LS_TEST(permutation_is_a_bijection_for_odd_sizes)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 4096, 65537};

    for (size_t i = 0; i < LS_COUNT(sizes); i++)
        for (uint64_t k = 0; k < 5; k++)
            check_bijection(ls_rng_derive(k, 1, k * 7), sizes[i]);
}

LS_TEST(permutation_of_a_large_domain_inverts)
{
    static const int64_t sizes[] = {INT64_C(1) << 40, (INT64_C(1) << 40) - 1,
                                    (INT64_C(1) << 33) + 1, INT64_C(1) << 62};
    ls_rng_key key = ls_rng_derive(9, 9, 9);

    for (size_t s = 0; s < LS_COUNT(sizes); s++)
        for (int64_t i = 0; i < 300; i++) {
            int64_t from = sizes[s] / 300 * i;
            int64_t to = ls_sample_order_permute(key, sizes[s], from);
            LS_CHECK(to >= 0 && to < sizes[s]);
            LS_CHECK_EQ(ls_sample_order_unpermute(key, sizes[s], to), from);
        }
}

/* Different keys give different orders, and an order is not close to the plain one. */
LS_TEST(permutation_mixes)
{
    enum { N = 1000 };
    ls_rng_key a = ls_rng_derive(1, 0, 0), b = ls_rng_derive(1, 0, 1);
    int fixed = 0, same = 0, rising = 0;

    for (int64_t i = 0; i < N; i++) {
        int64_t x = ls_sample_order_permute(a, N, i);
        fixed += x == i;
        same += x == ls_sample_order_permute(b, N, i);
        if (i + 1 < N)
            rising += ls_sample_order_permute(a, N, i + 1) > x;
    }
    LS_CHECK(fixed < 10); /* 1 is expected */
    LS_CHECK(same < 10);
    LS_CHECK(rising > 430 && rising < 570); /* 500 is expected, 9 is one deviation */
}

/* Each of the 6 orders of 3 things comes up for some keys, none for most. */
LS_TEST(permutation_of_three_reaches_every_order)
{
    int seen[27] = {0}, kinds = 0;

    for (uint64_t k = 0; k < 600; k++) {
        ls_rng_key key = ls_rng_derive(k, 0, 0);
        int64_t x = ls_sample_order_permute(key, 3, 0), y = ls_sample_order_permute(key, 3, 1);
        seen[x * 9 + y * 3 + ls_sample_order_permute(key, 3, 2)]++;
    }
    for (int i = 0; i < 27; i++) {
        kinds += seen[i] > 0;
        LS_CHECK(seen[i] < 200);
    }
    LS_CHECK_EQ(kinds, 6);
}

static void make(ls_sample_order *order, int n, const int64_t *tokens, const double *weights,
                 int64_t T, bool shuffle)
{
    LS_CHECK_OK(ls_sample_order_init(order, &(ls_sample_order_args){.seed = 42,
                                                                    .T = T,
                                                                    .shuffle = shuffle,
                                                                    .n_sources = n,
                                                                    .tokens = tokens,
                                                                    .weights = weights}));
}

LS_TEST(example_of_the_file_holds)
{
    static ls_sample_order order;

    make(&order, 1, (int64_t[]){23}, NULL, 4, true);
    LS_CHECK_EQ(order.sources[0].windows, 4);
    LS_CHECK_EQ(order.sources[0].shifts, 4);
    LS_CHECK_EQ(ls_sample_order_at(&order, 6).epoch, 1);
    for (int64_t p = 0; p < 4000; p++) {
        ls_sample s = ls_sample_order_at(&order, p);
        LS_CHECK(s.first >= 0 && s.first + 5 <= 23);
    }
}

LS_TEST(every_epoch_uses_each_window_once)
{
    static const struct {
        int64_t tokens, T;
    } cases[] = {{5, 4}, {8, 4}, {9, 4}, {12, 4}, {13, 4}, {1000, 7}, {65537, 64}, {2, 1}, {3, 1}};
    static ls_sample_order order;
    static ls_order_proof proof;

    for (size_t i = 0; i < LS_COUNT(cases); i++)
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            make(&order, 1, &cases[i].tokens, NULL, cases[i].T, shuffle);
            int64_t epoch = ls_order_proof_positions(&order);
            LS_CHECK_OK(ls_order_proof_order(&order, 3 * epoch + epoch / 2, NULL, NULL, &proof));
            if (!proof.passed)
                ls_test_fail(__FILE__, __LINE__, "%lld tokens: %s", (long long)cases[i].tokens,
                             proof.fault);
            LS_CHECK_EQ(proof.sources[0].epochs, (3 * epoch + epoch / 2) / epoch);
        }
}

LS_TEST(mixtures_use_each_window_once)
{
    static const int64_t tokens[] = {9000, 333, 70, 12001};
    static const double weights[] = {0.5, 0.2, 0.05, 0.25};
    static ls_sample_order order;
    static ls_order_proof proof;

    for (int weighted = 0; weighted < 2; weighted++)
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            make(&order, 4, tokens, weighted ? weights : NULL, 16, shuffle);
            int64_t positions = 3 * ls_order_proof_positions(&order) + 777;
            LS_CHECK_OK(ls_order_proof_order(&order, positions, NULL, NULL, &proof));
            if (!proof.passed)
                ls_test_fail(__FILE__, __LINE__, "%d %d: %s", weighted, shuffle, proof.fault);
            int64_t samples = 0;
            for (int i = 0; i < 4; i++) {
                LS_CHECK(proof.sources[i].epochs >= 3);
                samples += proof.sources[i].samples;
            }
            LS_CHECK_EQ(samples, positions);
        }
}

/* Weights are kept within 1/1024 over whole blocks, whatever their scale. */
LS_TEST(weights_are_kept)
{
    static const int64_t tokens[] = {5000, 5000, 5000};
    static const double weights[] = {70, 29.3, 0.7};
    static ls_sample_order order;
    int64_t used[3] = {0};
    enum { BLOCKS = 4 };

    make(&order, 3, tokens, weights, 8, true);
    for (int64_t p = 0; p < BLOCKS * LS_SAMPLE_ORDER_BLOCK; p++)
        used[ls_sample_order_at(&order, p).source]++;
    for (int i = 0; i < 3; i++)
        LS_CHECK_NEAR((double)used[i] / (BLOCKS * LS_SAMPLE_ORDER_BLOCK), weights[i] / 100,
                      1.0 / 1024);
}

LS_TEST(unshuffled_mixture_interleaves_evenly_and_in_order)
{
    static const int64_t tokens[] = {50000, 50000};
    static const double weights[] = {3, 1};
    static ls_sample_order order;
    int64_t last[2] = {-1, -1}, ones = 0;

    make(&order, 2, tokens, weights, 8, false);
    for (int64_t p = 0; p < 3000; p++) {
        ls_sample s = ls_sample_order_at(&order, p);
        LS_CHECK_EQ(s.window, last[s.source] + 1);
        LS_CHECK_EQ(s.first, s.window * 8);
        last[s.source] = s.window;
        ones += s.source;
        LS_CHECK(ones * 4 <= p + 1 + 4 && ones * 4 >= p + 1 - 4);
    }
}

/* Epochs are cut at different places and in a different order. */
LS_TEST(epochs_differ)
{
    static ls_sample_order order;
    int shifts[16] = {0}, same = 0;

    make(&order, 1, (int64_t[]){16 * 101 + 1}, NULL, 16, true);
    for (int64_t e = 0; e < 200; e++)
        shifts[ls_sample_order_shift(&order, 0, e)]++;
    for (int i = 0; i < 16; i++)
        LS_CHECK(shifts[i] > 0);
    for (int64_t i = 0; i < 100; i++)
        same += ls_sample_order_at(&order, i).window == ls_sample_order_at(&order, i + 100).window;
    LS_CHECK_EQ(order.windows, 100);
    LS_CHECK(same < 10);
}

/* The first samples of a seed never change: a resumed run must meet what the old program promised.
 */
LS_TEST(order_is_fixed_for_ever)
{
    static ls_sample_order order;
    ls_rng_key key = ls_rng_derive(1, 2, 3);
    uint64_t sum = 0;

    for (int64_t i = 0; i < 1000; i++)
        sum = sum * 31 + (uint64_t)ls_sample_order_permute(key, 1000, i);
    LS_CHECK_EQ(sum, INT64_C(-7278389521326365128));
    make(&order, 2, (int64_t[]){5000, 700}, (double[]){2, 1}, 8, true);
    sum = 0;
    for (int64_t p = 0; p < 10000; p++)
        sum = sum * 31 + (uint64_t)ls_sample_order_at(&order, p).first;
    LS_CHECK_EQ(sum, INT64_C(1354697480123667567));
}

LS_TEST(far_positions_are_found_again)
{
    static ls_sample_order order;

    make(&order, 2, (int64_t[]){INT64_C(1) << 44, 1000}, (double[]){0.9, 0.1}, 16, true);
    for (int64_t i = 0; i < 1000; i++) {
        int64_t p = i * (INT64_C(1) << 41) + i;
        ls_sample s = ls_sample_order_at(&order, p);
        LS_CHECK_EQ(ls_sample_order_find(&order, s.source, s.epoch, s.window), p);
    }
}

LS_TEST(proof_finds_a_broken_order)
{
    static ls_sample_order order;
    static ls_order_proof proof;

    make(&order, 2, (int64_t[]){500, 700}, (double[]){1, 1}, 8, false);
    order.plain_rank[7] = order.plain_rank[5]; /* one sample twice, one never */
    order.plain_source[7] = order.plain_source[5];
    LS_CHECK_OK(ls_order_proof_order(&order, LS_SAMPLE_ORDER_BLOCK, NULL, NULL, &proof));
    LS_CHECK(!proof.passed);
    LS_CHECK(strstr(proof.fault, "used twice"));
}

LS_TEST(spread_is_even_and_in_order)
{
    LS_CHECK_EQ(ls_sample_order_spread(10, 10, 9), 9);
    LS_CHECK_EQ(ls_sample_order_spread(10, 3, 0), 0);
    LS_CHECK_EQ(ls_sample_order_spread(10, 3, 1), 3);
    LS_CHECK_EQ(ls_sample_order_spread(10, 3, 2), 6);
    LS_CHECK_EQ(ls_sample_order_spread(INT64_C(1) << 60, 1 << 20, (1 << 20) - 1),
                (INT64_C(1) << 60) - (INT64_C(1) << 40));
}

LS_TEST(bad_mixtures_are_refused)
{
    static ls_sample_order order;
    ls_sample_order_args args = {.T = 8,
                                 .shuffle = true,
                                 .n_sources = 2,
                                 .tokens = (int64_t[]){100, 100},
                                 .weights = (double[]){1, 1e-9}};

    LS_CHECK_FAILS(ls_sample_order_init(&order, &args), LS_EUSAGE, "weight of source 2");
    LS_CHECK(strstr(ls_err_last()->hint, "1/4096"));
    args.weights = (double[]){0, 1};
    LS_CHECK_FAILS(ls_sample_order_init(&order, &args), LS_EUSAGE, "above 0");
    args.weights = NULL;
    args.tokens = (int64_t[]){100, 8};
    LS_CHECK_FAILS(ls_sample_order_init(&order, &args), LS_EDATA, "source 2 has 8 training tokens");
    args.n_sources = LS_SAMPLE_ORDER_SOURCES + 1;
    LS_CHECK_FAILS(ls_sample_order_init(&order, &args), LS_EUSAGE, "at most 256");
}

/* Sources that are cut into windows by their maker: no shift, every window used, mixed with others.
 */
LS_TEST(aligned_sources_are_not_shifted)
{
    static const int64_t tokens[] = {5 * 16, 16, 16 * 9 + 3};
    static const bool aligned[] = {true, true, false};
    static const double weights[] = {1, 1, 2};
    static ls_sample_order order;
    static ls_order_proof proof;

    for (int weighted = 0; weighted < 2; weighted++) {
        LS_CHECK_OK(ls_sample_order_init(
            &order, &(ls_sample_order_args){.seed = 9,
                                            .T = 16,
                                            .shuffle = true,
                                            .n_sources = 3,
                                            .tokens = tokens,
                                            .aligned = aligned,
                                            .weights = weighted ? weights : NULL}));
        LS_CHECK_EQ(order.sources[0].windows, 5);
        LS_CHECK_EQ(order.sources[1].windows, 1);
        LS_CHECK_EQ(order.sources[2].windows, 8);
        for (int64_t p = 0; p < 5000; p++) {
            ls_sample s = ls_sample_order_at(&order, p);
            if (s.source < 2)
                LS_CHECK_EQ(s.first, s.window * 16);
            LS_CHECK_EQ(ls_sample_order_find(&order, s.source, s.epoch, s.window), p);
        }
        LS_CHECK_OK(ls_order_proof_order(&order, 9000, NULL, NULL, &proof));
        LS_CHECK_STR(proof.fault, "");
    }
    LS_CHECK_FAILS(ls_sample_order_init(&order, &(ls_sample_order_args){.T = 17,
                                                                        .n_sources = 1,
                                                                        .tokens = tokens + 1,
                                                                        .aligned = aligned}),
                   LS_EDATA, "a window needs 17");
}
