/* test_mem.c -- checked heap calls, their counter and their planned failure. */
#include "harness.h"
#include "base/mem.h"

LS_TEST(mem_is_zeroed_and_zero_bytes_are_a_valid_pointer)
{
    unsigned char *p = ls_mem_alloc(1000);
    void *none = ls_mem_alloc(0);

    LS_CHECK(p && none);
    for (int i = 0; i < 1000; i++)
        LS_CHECK_EQ(p[i], 0);
    memset(p, 0xff, 1000);
    ls_mem_free(p);
    ls_mem_free(none);
    ls_mem_free(NULL);
}

LS_TEST(mem_array_refuses_a_product_that_overflows)
{
    size_t half = (size_t)1 << 63;

    LS_CHECK(!ls_mem_array(half, 2)); /* exactly 2^64: wraps to 0 */
    LS_CHECK_EQ(ls_err_last()->code, LS_ENOMEM);
    LS_CHECK(!ls_mem_array(half + 1, 2)); /* wraps to 2 */
    LS_CHECK(strstr(ls_err_last()->text, "cannot allocate 9223372036854775809 times 2 bytes"));
    int *a = ls_mem_array(10, sizeof *a);
    LS_CHECK(a);
    LS_CHECK_EQ(a[9], 0);
    ls_mem_free(a);
}

LS_TEST(mem_says_how_much_could_not_be_had)
{
    volatile size_t absurd = (size_t)1 << 62;

    LS_CHECK(!ls_mem_alloc(absurd));
    LS_CHECK_EQ(ls_err_last()->code, LS_ENOMEM);
    LS_CHECK_STR(ls_err_last()->text, "cannot allocate 4611686018427387904 bytes");
}

LS_TEST(mem_resize_keeps_the_old_block_when_it_fails)
{
    char *p = ls_mem_strdup("kept");

    LS_CHECK(p);
    ls_mem_fail_nth(1);
    LS_CHECK(!ls_mem_resize(p, 1 << 20));
    LS_CHECK_STR(p, "kept");
    char *q = ls_mem_resize(p, 1 << 20);
    LS_CHECK(q);
    LS_CHECK_STR(q, "kept");
    q = ls_mem_resize(q, 0);
    LS_CHECK(q);
    ls_mem_free(q);
}

LS_TEST(mem_fails_exactly_the_nth_call_once)
{
    for (uint64_t n = 1; n <= 5; n++) {
        void *p[8];
        ls_mem_fail_nth(n);
        for (uint64_t i = 1; i <= 8; i++)
            p[i - 1] = i % 2 ? ls_mem_alloc(8) : ls_mem_array(2, 4);
        for (uint64_t i = 1; i <= 8; i++) {
            LS_CHECK_EQ(p[i - 1] == NULL, i == n);
            ls_mem_free(p[i - 1]);
        }
    }
    ls_mem_fail_nth(2);
    ls_mem_fail_nth(0); /* off again */
    for (int i = 0; i < 4; i++) {
        char *s = ls_mem_strdup("x");
        LS_CHECK(s);
        ls_mem_free(s);
    }
}

LS_TEST(mem_counts_its_calls)
{
    uint64_t before = ls_mem_calls();
    void *p = ls_mem_alloc(1);

    p = ls_mem_resize(p, 2);
    ls_mem_free(p);
    ls_mem_free(ls_mem_array(1, 1));
    ls_mem_free(ls_mem_strdup(""));
    LS_CHECK_EQ(ls_mem_calls() - before, 4);
}

/* 1.54 MiB that are needed and 1.51 that are there must not both read as 1.5. */
LS_TEST(mem_sizes_for_people_never_make_too_little_look_like_enough)
{
    LS_CHECK_NEAR(ls_size_up(1614807, LS_MIB), 1.6, 1e-12);
    LS_CHECK_NEAR(ls_size_down(1583350, LS_MIB), 1.5, 1e-12);
    LS_CHECK_NEAR(ls_size_up(LS_MIB + 1, LS_MIB), 1.1, 1e-12);
    LS_CHECK_NEAR(ls_size_down(LS_MIB + 1, LS_MIB), 1, 1e-12);
    LS_CHECK_NEAR(ls_size_up(3 * LS_GIB, LS_GIB), 3, 1e-12);
    LS_CHECK_NEAR(ls_size_up(0, LS_MIB), 0, 0);
    for (int64_t n = 1; n < 1 << 21; n += 4099) /* a byte short always shows */
        LS_CHECK(ls_size_up(n, LS_MIB) > ls_size_down(n - 1, LS_MIB));
}
