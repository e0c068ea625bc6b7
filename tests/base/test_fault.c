/* test_fault.c -- planned faults strike on their turn, once. */
#include "harness.h"
#include "base/fault.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

LS_TEST(fault_strikes_on_its_turn_and_only_once)
{
    ls_fault_arm("room.point@3");
    for (int i = 1; i <= 6; i++) {
        LS_CHECK_EQ(ls_fault_hit("room.point"), i == 3);
        LS_CHECK(!ls_fault_hit("room.poin")); /* neither a prefix nor a longer name counts */
        LS_CHECK(!ls_fault_hit("room.points"));
    }
}

LS_TEST(fault_that_stays_strikes_from_its_turn_on)
{
    ls_fault_arm("room.point@3+");
    for (int i = 1; i <= 6; i++)
        LS_CHECK_EQ(ls_fault_hit("room.point"), i >= 3);
}

LS_TEST(fault_without_a_turn_strikes_at_once)
{
    ls_fault_arm("a");
    LS_CHECK(ls_fault_hit("a"));
    LS_CHECK(!ls_fault_hit("a"));
}

LS_TEST(fault_plans_are_counted_apart)
{
    ls_fault_arm("a@2,b@1,a@4");
    LS_CHECK(!ls_fault_hit("a"));
    LS_CHECK(ls_fault_hit("b"));
    LS_CHECK(ls_fault_hit("a"));
    LS_CHECK(!ls_fault_hit("b"));
    LS_CHECK(!ls_fault_hit("a"));
    LS_CHECK(ls_fault_hit("a"));
}

LS_TEST(fault_arm_replaces_the_plan)
{
    ls_fault_arm("a,b");
    ls_fault_arm("b");
    LS_CHECK(!ls_fault_hit("a"));
    LS_CHECK(ls_fault_hit("b"));
    ls_fault_arm("a");
    ls_fault_arm(NULL);
    LS_CHECK(!ls_fault_hit("a"));
}

LS_TEST(fault_odd_plans_do_no_harm)
{
    char longest[400];

    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    ls_fault_arm(longest);
    LS_CHECK(!ls_fault_hit(longest));
    ls_fault_arm(",,,a@1,");
    LS_CHECK(ls_fault_hit("a"));
    ls_fault_arm("a@0");
    LS_CHECK(!ls_fault_hit("a"));
    ls_fault_arm("a@-1");
    LS_CHECK(!ls_fault_hit("a"));
    ls_fault_arm("p1,p2,p3,p4,p5,p6,p7,p8,p9,p10"); /* more than there is room for */
    LS_CHECK(ls_fault_hit("p8"));
    LS_CHECK(!ls_fault_hit("p10"));
}

LS_TEST(fault_kill_ends_the_process_there)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        ls_fault_arm("a@2=kill");
        if (ls_fault_hit("a"))
            _exit(1);
        ls_fault_hit("a");
        _exit(2);
    }
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK(WIFSIGNALED(status));
    LS_CHECK_EQ(WTERMSIG(status), SIGKILL);
}

LS_TEST(fault_plan_comes_from_the_environment)
{
    setenv("LINESHAFT_FAULT", "env.point@2", 1);
    LS_CHECK(!LS_FAULT("env.point"));
    LS_CHECK(LS_FAULT("env.point"));
    LS_CHECK(!LS_FAULT("env.point"));
}
