/* test_window.c -- pages that are there only while somebody uses them. */
#include "base/window.h"
#include "harness.h"

LS_TEST(window_holds_only_what_was_written_and_not_dropped)
{
    ls_window w;

    LS_CHECK_OK(ls_window_open(&w, INT64_C(1) << 36, "a test")); /* more than the machine has */
    LS_CHECK_EQ(w.bytes, INT64_C(1) << 36);
    ls_window_close(&w);
    LS_CHECK_OK(ls_window_open(&w, 20 * LS_WINDOW_PAGE - 5, "a test"));
    LS_CHECK_EQ(w.bytes, 20 * LS_WINDOW_PAGE);
    LS_CHECK_EQ(ls_window_held(&w), 0);
    memset(w.base + 2 * LS_WINDOW_PAGE, 7, 10 * LS_WINDOW_PAGE);
    LS_CHECK_EQ(ls_window_held(&w), 10 * LS_WINDOW_PAGE);
    /* Only whole pages go. */
    ls_window_drop(&w, 3 * LS_WINDOW_PAGE - 1, 2 * LS_WINDOW_PAGE);
    LS_CHECK_EQ(ls_window_held(&w), 9 * LS_WINDOW_PAGE);
    LS_CHECK_EQ(w.base[3 * LS_WINDOW_PAGE - 1], 7);
    LS_CHECK_EQ(w.base[3 * LS_WINDOW_PAGE], 0);
    LS_CHECK_EQ(w.base[4 * LS_WINDOW_PAGE], 7);
    ls_window_drop(&w, 0, INT64_C(1) << 40);
    LS_CHECK_EQ(w.base[4 * LS_WINDOW_PAGE], 0);
    ls_window_close(&w);
    ls_window_close(&w);
}

LS_TEST(window_that_cannot_be_had_says_for_what)
{
    ls_window w = {.base = NULL};

    LS_CHECK_FAILS(ls_window_open(&w, INT64_C(1) << 60, "weights"), LS_ENOMEM,
                   "no addresses for weights");
    LS_CHECK(w.base == NULL);
}
