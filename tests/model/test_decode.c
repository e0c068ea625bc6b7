/* test_decode.c -- choosing a token. */
#include "harness.h"
#include "model/decode.h"

enum { V = 5 };

static int32_t pick(const float *logits, ls_sampling sampling, uint64_t position)
{
    float copy[V];
    int32_t order[V];

    memcpy(copy, logits, sizeof copy);
    return ls_decode_pick(copy, order, V, &sampling, position);
}

LS_TEST(decode_greedy_takes_the_largest_and_the_first_of_equals)
{
    const float logits[V] = {1, 3, 2, 3, -5};

    LS_CHECK_EQ(pick(logits, (ls_sampling){.temperature = 0, .top_p = 1}, 0), 1);
}

LS_TEST(decode_top_k_and_top_p_leave_the_unlikely_out)
{
    const float logits[V] = {1, 3, 2, 0, -5};

    for (uint64_t i = 0; i < 500; i++) {
        int32_t a = pick(logits, (ls_sampling){.temperature = 5, .top_k = 2, .top_p = 1}, i);
        int32_t b = pick(logits, (ls_sampling){.temperature = 1, .top_p = 0.5}, i);
        LS_CHECK(a == 1 || a == 2);
        LS_CHECK_EQ(b, 1); /* token 1 alone has more than half */
    }
}

LS_TEST(decode_follows_the_probabilities)
{
    const float logits[V] = {0, 0.6931472f, -30, -30, -30}; /* 1 : 2 */
    int count[V] = {0};

    for (uint64_t i = 0; i < 30000; i++)
        count[pick(logits, (ls_sampling){.temperature = 1, .top_p = 1, .seed = 3}, i)]++;
    LS_CHECK_NEAR(count[0] / 30000.0, 1.0 / 3, 0.01);
    LS_CHECK_NEAR(count[1] / 30000.0, 2.0 / 3, 0.01);
}
