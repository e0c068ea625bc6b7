/* test_spill.c -- an array in a file: nothing is lost, little is held, errors say where. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/spill.h"
#include "harness.h"

enum { PAGE = 4096, PAGES = 400 };

/* Bytes of it that this process has in memory now, as the kernel counts them; -1: not known. */
static int64_t held_bytes(const ls_spill *spill)
{
    enum { AT_ONCE = 512 };
    uint64_t entries[AT_ONCE];
    int64_t pages = spill->bytes / PAGE, first = (int64_t)((uintptr_t)spill->base / PAGE), held = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return -1;
    for (int64_t at = 0; at < pages; at += AT_ONCE) {
        int64_t n = ls_min_i64(AT_ONCE, pages - at);
        size_t want = (size_t)n * sizeof *entries;
        if (pread(fd, entries, want, (first + at) * (int64_t)sizeof *entries) != (ssize_t)want) {
            held = -1;
            break;
        }
        for (int64_t i = 0; i < n; i++)
            held += entries[i] >> 63 ? PAGE : 0; /* present */
    }
    close(fd);
    return held;
}

LS_TEST(spill_keeps_what_was_written_and_holds_only_what_is_used)
{
    ls_spill s = {.base = NULL};

    LS_CHECK_OK(ls_spill_open(&s, ".", PAGES * PAGE - 5, "a test"));
    LS_CHECK_EQ(s.bytes, PAGES * PAGE);
    for (int64_t i = 0; i < s.bytes; i++)
        LS_CHECK(s.base[i] == 0);
    for (int64_t i = 0; i < PAGES; i++)
        memset(s.base + i * PAGE, (int)(i % 100), PAGE);
    if (held_bytes(&s) >= 0)
        LS_CHECK_EQ(held_bytes(&s), s.bytes);
    ls_spill_drop(&s, 0, INT64_C(1) << 40);
    LS_CHECK(held_bytes(&s) <= 0);
    ls_spill_fetch(&s, 5 * PAGE, 3 * PAGE);
    for (int64_t i = 0; i < s.bytes; i++)
        LS_CHECK(s.base[i] == i / PAGE % 100);
    /* A byte of a page is enough for all of it to go. */
    ls_spill_drop(&s, 0, s.bytes);
    s.base[7 * PAGE + 9] = 1;
    ls_spill_give_back(s.base + 7 * PAGE + 8, 2);
    LS_CHECK(held_bytes(&s) <= 64 * 1024); /* neighbours that the kernel mapped along */
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
