/* test_tcp_flaps.c -- links that break again and again are told, now and then. */
#include "base/time.h"
#include "comm/transport/tcp_flaps.h"
#include "harness.h"

/* Breaks at this distance, for this long; returns how often that was reported. */
static int told(ls_tcp_flaps *flaps, int64_t *now, double every_s, double for_s)
{
    int n = 0;

    for (double t = 0; t < for_s; t += every_s) {
        *now += (int64_t)(every_s * (double)LS_NS_PER_S);
        n += ls_tcp_flaps_add(flaps, *now);
    }
    return n;
}

LS_TEST(flaps_are_reported_when_there_are_six_in_ten_minutes)
{
    ls_tcp_flaps flaps = {0};
    int64_t now = LS_NS_PER_S;

    LS_CHECK_EQ(told(&flaps, &now, 100, 500), 0);
    LS_CHECK_EQ(told(&flaps, &now, 99, 99), 1); /* the sixth, 499 s after the first */
}

LS_TEST(flaps_that_are_rare_are_not_reported)
{
    ls_tcp_flaps flaps = {0};
    int64_t now = LS_NS_PER_S;

    LS_CHECK_EQ(told(&flaps, &now, 121, 100000), 0);
}

LS_TEST(flaps_of_all_channels_of_a_link_are_one)
{
    ls_tcp_flaps flaps = {0};
    int64_t now = LS_NS_PER_S;

    LS_CHECK_EQ(told(&flaps, &now, 0.01, 0.9), 0);
}

LS_TEST(flaps_are_reported_once_in_ten_minutes)
{
    ls_tcp_flaps flaps = {0};
    int64_t now = LS_NS_PER_S;

    LS_CHECK_EQ(told(&flaps, &now, 2, 3600), 6);
}
