/* test_sampling.c -- choosing a token: exactly what a plain definition with a full sort chooses. */
#include <math.h>
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"
#include "harness.h"
#include "model/sampling.h"

enum { V = 5 };

static int32_t pick_of(const float *logits, int64_t n, ls_sampling sampling, uint64_t position)
{
    void *scratch = ls_mem_alloc(ls_sampling_bytes(n));
    int32_t token = ls_sampling_choose(logits, scratch, n, &sampling, position);

    ls_mem_free(scratch);
    return token;
}

static int32_t pick(const float *logits, ls_sampling sampling, uint64_t position)
{
    return pick_of(logits, V, sampling, position);
}

/* --- the plain definition --------------------------------------------------------------------- */

static const float *sorted_by; /* qsort() has no context */

static int earlier(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;

    if (sorted_by[i] != sorted_by[j])
        return sorted_by[i] > sorted_by[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* Sort all, softmax, cut by rank, by sum, by ratio, walk. Also says how near the choice was to
 * falling on a neighbour, as a share of the sum: rounding may decide only there. */
static int32_t plain(const float *x, int64_t n, const ls_sampling *s, uint64_t position,
                     double *margin_out)
{
    int32_t *order = ls_mem_array((size_t)n, sizeof *order);
    double *e = ls_mem_array((size_t)n, sizeof *e), sum = 0, above = 0, walked = 0;
    int64_t kept, i;

    for (i = 0; i < n; i++)
        order[i] = (int32_t)i;
    sorted_by = x;
    qsort(order, (size_t)n, sizeof *order, earlier);
    kept = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    for (i = 0; i < kept; i++)
        sum += e[i] = exp(((double)x[order[i]] - (double)x[order[0]]) / s->temperature);
    *margin_out = 1;
    for (i = 0; i < kept && (i == 0 || s->top_p >= 1 || above < s->top_p * sum); i++) {
        *margin_out = fmin(*margin_out, s->top_p < 1 ? fabs(above / sum - s->top_p) : 1);
        above += e[i];
    }
    if (s->top_p < 1)
        *margin_out = fmin(*margin_out, fabs(above / sum - s->top_p));
    kept = i;
    for (i = 0, sum = 0; i < kept && e[i] >= s->min_p; i++)
        sum += e[i];
    kept = i;
    ls_rng_block r = ls_rng_philox(ls_rng_derive(s->seed, 0x73616d70, 0), (uint32_t)position,
                                   (uint32_t)(position >> 32), 0, 0);
    double goal = (double)ls_rng_uniform(r.v[0]) * sum;
    for (i = 0; i < kept - 1 && walked + e[i] <= goal; i++)
        walked += e[i];
    *margin_out = fmin(*margin_out, fabs(walked - goal) / sum + (i == 0));
    *margin_out = fmin(*margin_out, fabs(walked + e[i] - goal) / sum);
    int32_t token = order[i];
    ls_mem_free(order);
    ls_mem_free(e);
    return token;
}

static void make_logits(float *x, int64_t n, uint64_t seed, float spread, bool ties)
{
    ls_rng_normal(ls_rng_derive(seed, 5, 6), 0, (uint64_t)n, x);
    for (int64_t i = 0; i < n; i++)
        x[i] = ties ? floorf(x[i] * spread) : x[i] * spread;
}

LS_TEST_SECONDS(sampling_chooses_what_sorting_all_would_choose, 60)
{
    static const double temperatures[] = {0.05, 0.7, 1, 3, 1000};
    static const int64_t ks[] = {0, 1, 2, 40, 300, 100000};
    static const double ps[] = {1, 0.999, 0.9, 0.3, 1e-9, 0};
    static const double ms[] = {0, 0.001, 0.1, 1};
    static const int64_t sizes[] = {1, 2, 7, 256, 1003};
    float x[1003];
    int64_t near = 0, count = 0;

    for (uint64_t i = 0; i < 5 * 6 * 6 * 4 * 5; i++) {
        ls_sampling s = {.temperature = temperatures[i % 5],
                         .top_k = ks[i / 5 % 6],
                         .top_p = ps[i / 30 % 6],
                         .min_p = ms[i / 180 % 4],
                         .seed = i};
        int64_t n = sizes[i / 720];
        for (int draw = 0; draw < 4; draw++) {
            double margin;
            make_logits(x, n, i * 4 + (uint64_t)draw, draw < 2 ? 4 : 12, draw == 1);
            int32_t want = plain(x, n, &s, (uint64_t)draw, &margin);
            count++;
            if (margin < 1e-9)
                near++;
            else if (pick_of(x, n, s, (uint64_t)draw) != want)
                ls_test_fail(__FILE__, __LINE__,
                             "n %lld temperature %g k %lld p %g m %g: %d, expected %d (%g)",
                             (long long)n, s.temperature, (long long)s.top_k, s.top_p, s.min_p,
                             pick_of(x, n, s, (uint64_t)draw), want, margin);
        }
    }
    LS_CHECK(near < count / 5);
}

LS_TEST(sampling_survives_odd_logits)
{
    const float masked[V] = {-INFINITY, 2, -INFINITY, 1, -INFINITY};
    const float none[V] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    const float huge[V] = {-3e38f, 3e38f, 0, -0.0f, 1e-45f};
    const float equal[V] = {0.0f, -0.0f, 0.0f, -0.0f, 0.0f};
    int count[V] = {0};

    for (uint64_t i = 0; i < 200; i++) {
        int32_t t = pick(masked, (ls_sampling){.temperature = 1, .top_p = 1}, i);
        LS_CHECK(t == 1 || t == 3);
        LS_CHECK_EQ(pick(none, (ls_sampling){.temperature = 1, .top_p = 1}, i), 0);
        LS_CHECK_EQ(pick(huge, (ls_sampling){.temperature = 1, .top_p = 1}, i), 1);
        LS_CHECK_EQ(pick(masked, (ls_sampling){.temperature = 1e-320, .top_p = 1}, i), 1);
        LS_CHECK(pick(equal, (ls_sampling){.temperature = 1, .top_k = 2, .top_p = 1}, i) < 2);
        count[pick(equal, (ls_sampling){.temperature = 1, .top_p = 1}, i)]++;
    }
    for (int i = 0; i < V; i++)
        LS_CHECK(count[i] > 15);
}

LS_TEST(sampling_greedy_takes_the_largest_and_the_first_of_replicas)
{
    const float logits[V] = {1, 3, 2, 3, -5};

    LS_CHECK_EQ(pick(logits, (ls_sampling){.temperature = 0, .top_p = 1}, 0), 1);
}

LS_TEST(sampling_cuts_leave_the_unlikely_out)
{
    const float logits[V] = {1, 3, 2, 0, -5};

    for (uint64_t i = 0; i < 500; i++) {
        int32_t a = pick(logits, (ls_sampling){.temperature = 5, .top_k = 2, .top_p = 1}, i);
        int32_t b = pick(logits, (ls_sampling){.temperature = 1, .top_p = 0.5}, i);
        int32_t c = pick(logits, (ls_sampling){.temperature = 1, .top_p = 1, .min_p = 0.3}, i);
        LS_CHECK(a == 1 || a == 2);
        LS_CHECK_EQ(b, 1);          /* token 1 alone has more than half */
        LS_CHECK(c == 1 || c == 2); /* e^-1 is 0.37, e^-2 is 0.14 */
    }
}

LS_TEST(sampling_follows_the_probabilities)
{
    const float logits[V] = {0, 0.6931472f, -30, -30, -30}; /* 1 : 2 */
    int count[V] = {0};

    for (uint64_t i = 0; i < 30000; i++)
        count[pick(logits, (ls_sampling){.temperature = 1, .top_p = 1, .seed = 3}, i)]++;
    LS_CHECK_NEAR(count[0] / 30000.0, 1.0 / 3, 0.01);
    LS_CHECK_NEAR(count[1] / 30000.0, 2.0 / 3, 0.01);
}

LS_TEST(sampling_penalties_count_each_token_as_defined)
{
    const int32_t history[] = {1, 4, 1, 3, 3, 3, 7, -1}; /* the last two are no tokens here */
    float a[V] = {5, 4, 3, -2, 0}, b[V] = {5, 4, 3, -2, 0}, c[V] = {5, 4, 3, -2, 0};
    int32_t counts[V] = {0};

    ls_sampling_penalize(a, counts, V, history, 8, &(ls_sampling){.repetition = 2});
    const float wa[V] = {5, 2, 3, -4, 0};
    ls_sampling_penalize(b, counts, V, history, 8,
                         &(ls_sampling){.presence = 1, .frequency = 0.5, .answer = 2});
    const float wb[V] = {5, 2.5f, 3, -4.5f, 0};
    ls_sampling_penalize(c, counts, V, history, 8, &(ls_sampling){.repetition = 1});
    const float wc[V] = {5, 4, 3, -2, 0};
    for (int i = 0; i < V; i++) {
        LS_CHECK_NEAR(a[i], wa[i], 0);
        LS_CHECK_NEAR(b[i], wb[i], 0);
        LS_CHECK_NEAR(c[i], wc[i], 0);
        LS_CHECK_EQ(counts[i], 0);
    }
}

/* Sorting is what the choice avoids; machines under test are busy, so no absolute limit. */
LS_TEST_SECONDS(sampling_of_a_large_vocabulary_is_quicker_than_sorting_it, 60)
{
    enum { LARGE = 151936, ROUNDS = 15 };
    static const ls_sampling settings[] = {
        {.temperature = 0.8, .top_p = 1},
        {.temperature = 0.8, .top_p = 0.95},
        {.temperature = 0.7, .top_k = 20, .top_p = 0.8, .min_p = 0.05}};
    float *x = ls_mem_array(LARGE, sizeof *x);
    void *scratch = ls_mem_alloc(ls_sampling_bytes(LARGE));

    make_logits(x, LARGE, 1, 3, false);
    for (size_t k = 0; k < LS_COUNT(settings); k++) {
        int64_t best = INT64_MAX;
        for (uint64_t i = 0; i < ROUNDS; i++) {
            int64_t begin = ls_time_now_ns();
            ls_sampling_choose(x, scratch, LARGE, &settings[k], i);
            best = ls_min_i64(best, ls_time_now_ns() - begin);
        }

        double margin;
        int64_t begin = ls_time_now_ns();
        plain(x, LARGE, &settings[k], 0, &margin);
        LS_CHECK(best < ls_time_now_ns() - begin);
    }
    ls_mem_free(x);
    ls_mem_free(scratch);
}
