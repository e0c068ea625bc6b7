/* test_str.c -- growing strings. */
#include "harness.h"
#include "base/mem.h"
#include "base/str.h"

LS_TEST(str_grows_and_stays_terminated)
{
    ls_str s;

    ls_str_init(&s);
    LS_CHECK_STR(s.p, "");
    for (int i = 0; i < 1000; i++)
        ls_str_printf(&s, "%d,", i);
    LS_CHECK_OK(ls_str_status(&s));
    LS_CHECK_EQ(s.len, 3890);
    LS_CHECK_EQ(s.p[s.len], 0);
    ls_str_release(&s);
    LS_CHECK_STR(s.p, "");
}

LS_TEST(str_remembers_that_memory_ran_out)
{
    ls_str s;

    ls_str_init(&s);
    ls_mem_fail_nth(1);
    ls_str_append(&s, "lost");
    ls_str_append(&s, "also lost");
    LS_CHECK_FAILS(ls_str_status(&s), LS_ENOMEM, "cannot grow");
    LS_CHECK_STR(s.p, "");
    ls_str_release(&s);
}

LS_TEST(str_distance_counts_edits)
{
    LS_CHECK_EQ(ls_str_distance("batch", "Batch"), 0);
    LS_CHECK_EQ(ls_str_distance("bacth", "batch"), 2);
    LS_CHECK_EQ(ls_str_distance("", "abc"), 3);
}
