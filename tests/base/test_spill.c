/* test_spill.c -- an array in a file: nothing is lost, little is held, errors say where. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/spill.h"
#include "harness.h"

enum { PAGE = 4096, PAGES = 400 };

LS_TEST(spill_keeps_what_was_written_and_holds_only_what_is_used)
{
    ls_spill s = {.base = NULL};

    LS_CHECK_OK(ls_spill_open(&s, ".", PAGES * PAGE - 5, "a test"));
    LS_CHECK_EQ(s.bytes, PAGES * PAGE);
    for (int64_t i = 0; i < s.bytes; i++)
        LS_CHECK(s.base[i] == 0);
    for (int64_t i = 0; i < PAGES; i++)
        memset(s.base + i * PAGE, (int)(i % 100), PAGE);
    if (ls_spill_held(&s) >= 0)
        LS_CHECK_EQ(ls_spill_held(&s), s.bytes);
    ls_spill_drop(&s, 0, INT64_C(1) << 40);
    LS_CHECK(ls_spill_held(&s) <= 0);
    ls_spill_fetch(&s, 5 * PAGE, 3 * PAGE);
    for (int64_t i = 0; i < s.bytes; i++)
        LS_CHECK(s.base[i] == i / PAGE % 100);
    /* A byte of a page is enough for all of it to go. */
    ls_spill_drop(&s, 0, s.bytes);
    s.base[7 * PAGE + 9] = 1;
    ls_spill_give_back(s.base + 7 * PAGE + 8, 2);
    LS_CHECK(ls_spill_held(&s) <= 64 * 1024); /* neighbours that the kernel mapped along */
    LS_CHECK(s.base[7 * PAGE + 9] == 1 && s.base[7 * PAGE] == 7);
    ls_spill_close(&s);
    ls_spill_close(&s);
}

LS_TEST(spill_leaves_no_file_behind)
{
    ls_spill s = {.base = NULL};

    LS_CHECK_EQ(mkdir("place", 0700), 0);
    LS_CHECK_OK(ls_spill_open(&s, "place", 10 * PAGE, "a test"));
    LS_CHECK_EQ(rmdir("place"), 0); /* empty */
    s.base[PAGE] = 3;
    ls_spill_close(&s);
}

LS_TEST(spill_that_cannot_be_had_says_where_and_why)
{
    ls_spill s = {.base = NULL};

    LS_CHECK_FAILS(ls_spill_open(&s, "nowhere", PAGE, "moments"), LS_EIO,
                   "cannot make a file in \"nowhere\" for moments: No such file");
    LS_CHECK_OK(ls_file_write_atomic("plain", "x", 1));
    LS_CHECK_FAILS(ls_spill_open(&s, "plain", PAGE, "moments"), LS_EIO, "Not a directory");
    LS_CHECK(s.base == NULL);
    LS_CHECK_FAILS(ls_spill_open(&s, ".", INT64_C(1) << 60, "moments"), LS_EIO, "are free)");
    LS_CHECK(strstr(ls_err_last()->hint, "Free some space there"));
    LS_CHECK(s.base == NULL);
}
