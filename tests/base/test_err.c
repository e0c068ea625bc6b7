/* test_err.c -- error records: what they keep, what they cut, how they travel. */
#include "harness.h"

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

LS_TEST(err_record_keeps_class_text_and_place)
{
    ls_status st = ls_fail(LS_EDATA, "shard \"%s\" is %d bytes short", "a.lst", 3);
    const ls_err_record *e = ls_err_last();

    LS_CHECK_EQ(st, LS_EDATA);
    LS_CHECK_EQ(e->code, LS_EDATA);
    LS_CHECK_STR(e->text, "shard \"a.lst\" is 3 bytes short");
    LS_CHECK_STR(e->hint, "");
    LS_CHECK_STR(e->doing, "");
    LS_CHECK(strstr(e->file, "test_err.c"));
    LS_CHECK(e->line > 0);
    ls_err_clear();
    LS_CHECK_EQ(ls_err_last()->code, LS_OK);
    LS_CHECK_STR(ls_err_last()->text, "");
}

LS_TEST(err_sys_appends_the_reason_and_keeps_errno)
{
    errno = ENOENT;
    ls_fail_sys(LS_EIO, "cannot open \"%s\"", "x");
    LS_CHECK_STR(ls_err_last()->text, "cannot open \"x\": No such file or directory");
    LS_CHECK_EQ(errno, ENOENT);
}

/* A path may be 4095 bytes long; the reason matters more than its end. */
LS_TEST(err_long_message_still_ends_in_the_reason)
{
    char path[4000];

    memset(path, 'p', sizeof path);
    path[sizeof path - 1] = '\0';
    errno = EACCES;
    ls_fail_sys(LS_EIO, "cannot open \"%s\"", path);
    const char *text = ls_err_last()->text;
    LS_CHECK(strlen(text) < sizeof ls_err_last()->text);
    LS_CHECK(strncmp(text, "cannot open \"ppp", 16) == 0);
    LS_CHECK(strstr(text, "pp...pp"));
    LS_CHECK(strstr(text, "pp\": Permission denied"));
    /* And without a reason it is cut, not overrun. */
    ls_fail(LS_EIO, "%s", path);
    LS_CHECK_EQ(strlen(ls_err_last()->text), sizeof ls_err_last()->text - 1);
}

/* Wrapping the last message in a new one reads from the buffer that is written. */
LS_TEST(err_message_may_quote_the_last_one)
{
    ls_fail(LS_EDATA, "checksum differs");
    ls_err_hint("Copy the file again.");
    ls_fail(LS_EIO, "cannot load \"c1\": %s (%s)", ls_err_last()->text, ls_err_last()->hint);
    LS_CHECK_STR(ls_err_last()->text,
                 "cannot load \"c1\": checksum differs (Copy the file again.)");
    LS_CHECK_STR(ls_err_last()->hint, "");
    ls_err_hint("Old: %s", "one");
    ls_err_hint("%s, two", ls_err_last()->hint);
    LS_CHECK_STR(ls_err_last()->hint, "Old: one, two");
}

LS_TEST(err_new_failure_drops_the_old_hint)
{
    ls_fail(LS_EIO, "first");
    ls_err_hint("Do this.");
    LS_CHECK_STR(ls_err_last()->hint, "Do this.");
    ls_fail(LS_EIO, "second");
    LS_CHECK_STR(ls_err_last()->hint, "");
}

LS_TEST(err_about_a_rank_travels_and_is_forgotten_by_the_next)
{
    ls_fail(LS_EDEADLINE, "1 rank did not connect");
    LS_CHECK_EQ(ls_err_last()->unreached, 0);
    ls_err_unreached(0);
    ls_err_record record = *ls_err_last();
    LS_CHECK_EQ(record.unreached, 1);
    ls_fail(LS_EIO, "something else");
    LS_CHECK_EQ(ls_err_last()->unreached, 0);
    LS_CHECK_EQ(ls_err_adopt(&record), LS_EDEADLINE);
    LS_CHECK_EQ(ls_err_last()->unreached, 1);
    ls_err_clear();
    LS_CHECK_EQ(ls_err_last()->unreached, 0);
}

LS_TEST(err_doing_is_joined_at_the_moment_of_failure)
{
    ls_err_doing("restoring step %d", 40);
    ls_err_doing("reading \"%s\"", "manifest");
    ls_fail(LS_EDATA, "it is empty");
    ls_err_done();
    ls_err_done();
    LS_CHECK_STR(ls_err_last()->doing, "restoring step 40, reading \"manifest\"");
    ls_fail(LS_EDATA, "later");
    LS_CHECK_STR(ls_err_last()->doing, "");
}

LS_TEST(err_doing_that_is_said_twice_is_shown_once)
{
    ls_err_doing("saving step %d", 6); /* the session */
    ls_err_doing("saving step %d", 6); /* the store */
    ls_err_doing("writing");
    ls_fail(LS_EIO, "full");
    LS_CHECK_STR(ls_err_last()->doing, "saving step 6, writing");
    for (int i = 0; i < 3; i++)
        ls_err_done();
}

LS_TEST(err_doing_deeper_than_the_stack_stays_balanced)
{
    for (int i = 0; i < 40; i++)
        ls_err_doing("level %d %0150d", i, 0);
    ls_fail(LS_EFAIL, "deep");
    LS_CHECK_EQ(strlen(ls_err_last()->doing), sizeof ls_err_last()->doing - 1);
    for (int i = 0; i < 40; i++)
        ls_err_done();
    ls_err_doing("one");
    ls_fail(LS_EFAIL, "shallow");
    ls_err_done();
    LS_CHECK_STR(ls_err_last()->doing, "one");
}

static void *fail_elsewhere(void *record_out)
{
    if (ls_err_last()->code == LS_OK) /* a new thread starts clean */
        ls_fail(LS_EBUSY, "from the thread");
    *(ls_err_record *)record_out = *ls_err_last();
    return NULL;
}

LS_TEST(err_records_are_per_thread_and_travel_by_value)
{
    pthread_t thread;
    ls_err_record record;

    ls_fail(LS_EIO, "mine");
    LS_CHECK_EQ(pthread_create(&thread, NULL, fail_elsewhere, &record), 0);
    pthread_join(thread, NULL);
    LS_CHECK_STR(ls_err_last()->text, "mine");
    LS_CHECK_EQ(ls_err_adopt(&record), LS_EBUSY);
    LS_CHECK_STR(ls_err_last()->text, "from the thread");
}

LS_TEST(err_each_class_has_a_name_and_its_own_exit_code)
{
    for (int a = LS_OK; a <= LS_EINTR; a++) {
        LS_CHECK(strcmp(ls_err_name((ls_status)a), "unknown") != 0);
        for (int b = LS_OK; b < a; b++)
            LS_CHECK(ls_err_exit_code((ls_status)a) != ls_err_exit_code((ls_status)b));
    }
    LS_CHECK_EQ(ls_err_exit_code(LS_OK), 0);
    LS_CHECK_EQ(ls_err_exit_code(LS_EUSAGE), 2);
    LS_CHECK_EQ(ls_err_exit_code(LS_EINTR), 130);
    LS_CHECK_STR(ls_err_name((ls_status)99), "unknown");
    LS_CHECK_EQ(ls_err_exit_code((ls_status)99), 1);
}

static ls_status try_twice(bool fails, int *reached)
{
    ls_status st = LS_OK;

    LS_TRY(st, fails ? ls_fail(LS_EDATA, "no") : LS_OK, out);
    *reached = 1;
out:
    return st;
}

LS_TEST(err_try_leaves_through_the_label)
{
    int reached = 0;

    LS_CHECK_EQ(try_twice(true, &reached), LS_EDATA);
    LS_CHECK_EQ(reached, 0);
    LS_CHECK_OK(try_twice(false, &reached));
    LS_CHECK_EQ(reached, 1);
}

LS_TEST(err_bug_aborts_and_says_where)
{
    int ends[2];
    char text[4096] = "";
    int status;

    LS_CHECK_EQ(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        LS_BUG_IF(1 + 1 == 3, "not this one");
        LS_BUG_IF(1 + 1 == 2, "rank %d", 7);
        _exit(0);
    }
    close(ends[1]);
    for (size_t used = 0; used < sizeof text - 1;) {
        ssize_t n = read(ends[0], text + used, sizeof text - 1 - used);
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    LS_CHECK(strstr(text, "lineshaft: bug at "));
    LS_CHECK(strstr(text, "test_err.c:"));
    LS_CHECK(strstr(text, "rank 7 (1 + 1 == 2)"));
    LS_CHECK(!strstr(text, "not this one"));
}
