/* test_time.c -- the clock goes forward, the process knows its age, spans are told as people read
 * them. */
#include "harness.h"
#include "base/time.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

LS_TEST(time_never_goes_back)
{
    int64_t last = ls_time_now_ns();

    for (int i = 0; i < 100000; i++) {
        int64_t now = ls_time_now_ns();
        LS_CHECK(now >= last);
        last = now;
    }
}

LS_TEST(time_counts_nanoseconds)
{
    struct timespec nap = {.tv_nsec = 20 * LS_NS_PER_MS};
    int64_t before = ls_time_now_ns();

    nanosleep(&nap, NULL);
    int64_t spent = ls_time_now_ns() - before;
    LS_CHECK(spent >= 20 * LS_NS_PER_MS);
    LS_CHECK(spent < 10 * LS_NS_PER_S);
}

/* The kernel counts the start in ticks of 10 ms; a fork has its own start. */
LS_TEST(time_since_start_is_the_age_of_this_process)
{
    struct timespec nap = {.tv_nsec = 150 * LS_NS_PER_MS};
    int status;

    nanosleep(&nap, NULL);
    int64_t age = ls_time_since_start_ns();
    LS_CHECK(age >= 130 * LS_NS_PER_MS);
    LS_CHECK(age < 60 * LS_NS_PER_S);
    int64_t before = ls_time_now_ns();
    pid_t pid = fork();
    if (pid == 0) {
        int64_t own = ls_time_since_start_ns(), spent = ls_time_now_ns() - before;
        _exit(own >= 0 && own <= spent + 30 * LS_NS_PER_MS ? 0 : 1);
    }
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK_EQ(status, 0);
}

LS_TEST(time_no_deadline_is_later_than_any_time)
{
    LS_CHECK(ls_time_now_ns() + 3600 * LS_NS_PER_S < LS_NO_DEADLINE);
}

LS_TEST(time_is_printed_as_people_read_it)
{
    static const struct {
        double ns;
        const char *text;
    } rows[] = {{-1, "0"},
                {0, "0"},
                {0.4, "0"},
                {1, "1.00 ns"},
                {999.4, "999 ns"},
                {999.6, "1.00 us"},
                {16400, "16.4 us"},
                {1e6, "1.00 ms"},
                {9.996e6, "10.0 ms"},
                {99.96e6, "100 ms"},
                {999.6e6, "1.00 s"},
                {43.73e9, "43.7 s"},
                {119.9e9, "120 s"},
                {120e9, "2.00 min"},
                {728.8 * 60e9, "12.1 h"},
                {3 * 86400e9, "3.00 days"},
                {4e6 * 86400e9, "4000000 days"}};
    char text[LS_TIME_TEXT];

    for (size_t i = 0; i < LS_COUNT(rows); i++)
        LS_CHECK_STR(ls_time_text(rows[i].ns, text), rows[i].text);
    LS_CHECK_STR(ls_time_text((double)NAN, text), "0");
}
