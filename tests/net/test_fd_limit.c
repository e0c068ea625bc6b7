/* test_fd_limit.c -- the limit of open files: raised where it may be, and said where it may not. */
#include "harness.h"
#include <sys/resource.h>
#include <unistd.h>
#include "net/fd_limit.h"

LS_TEST(room_is_made_only_where_it_is_needed)
{
    struct rlimit before, after;

    LS_CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    LS_CHECK_OK(ls_fd_limit_make(1, "one"));
    LS_CHECK_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
    LS_CHECK_EQ(after.rlim_cur, before.rlim_cur);
    before.rlim_cur = 128;
    LS_CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    LS_CHECK_OK(ls_fd_limit_make(200, "200 nodes"));
    LS_CHECK_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
    LS_CHECK(after.rlim_cur >= 200 + 64 && after.rlim_max == before.rlim_max);
}

LS_TEST(room_that_cannot_be_made_is_said)
{
    const struct rlimit low = {.rlim_cur = 100, .rlim_max = 100};

    LS_CHECK_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    if (geteuid() == 0 && setuid(65534) != 0) /* root may raise it */
        ls_test_skip("cannot stop to be root");
    LS_CHECK_FAILS(ls_fd_limit_make(1000, "1000 nodes"), LS_EUSAGE, "1000 nodes need 10");
    LS_CHECK(strstr(ls_err_last()->text, "this process may have 100"));
    LS_CHECK(strstr(ls_err_last()->hint, "ulimit -Hn"));
}
