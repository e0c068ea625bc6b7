/* test_fault.c -- planned faults strike on their turn, once. */
#include "harness.h"
#include "base/fault.h"

#include <errno.h>
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

/* --- plans of a drill ------------------------------------------------------------------------- */

LS_TEST(fault_plan_strikes_where_it_says_and_once)
{
    LS_CHECK_OK(
        ls_fault_plan("rank=2,step=7,at=losses,do=error; at=save.write,visit=3,do=full", 2));
    LS_CHECK(ls_fault_planned);
    LS_CHECK(ls_fault_expects(LS_FAULT_AT_LOSSES) && !ls_fault_expects(LS_FAULT_AT_LINK));
    LS_EXPECT_LOG(2);
    for (int step = 5; step < 10; step++) {
        ls_fault_reach(step, 1);
        LS_CHECK_EQ(ls_fault_pass(LS_FAULT_AT_UPDATE), LS_OK);
        LS_CHECK_EQ(ls_fault_pass(LS_FAULT_AT_LOSSES), step == 7 ? LS_EFAIL : LS_OK);
        LS_CHECK_EQ(ls_fault_pass(LS_FAULT_AT_LOSSES), LS_OK);
    }
    for (int i = 1; i < 6; i++)
        LS_CHECK_EQ(ls_fault_errno(ls_fault_at(LS_FAULT_AT_SAVE_WRITE)), i == 3 ? ENOSPC : 0);
    LS_CHECK_OK(ls_fault_plan("rank=2,step=7,at=losses,do=error", 1)); /* another rank */
    ls_fault_reach(7, 1);
    LS_CHECK_EQ(ls_fault_pass(LS_FAULT_AT_LOSSES), LS_OK);
    LS_CHECK_OK(ls_fault_plan(NULL, 2));
    LS_CHECK(!ls_fault_planned);
    LS_CHECK_EQ(ls_fault_pass(LS_FAULT_AT_LOSSES), LS_OK);
}

LS_TEST(fault_plan_spares_later_generations)
{
    LS_CHECK_OK(ls_fault_plan("at=forward,do=error; at=recover.transfer,do=error;"
                              "at=idle,do=error,generation=0,times=2",
                              0));
    LS_EXPECT_LOG(4);
    ls_fault_reach(3, 2);
    LS_CHECK_EQ(ls_fault_pass(LS_FAULT_AT_FORWARD), LS_OK);
    LS_CHECK_EQ(ls_fault_pass(LS_FAULT_AT_TRANSFER), LS_EFAIL);
    LS_CHECK_EQ(ls_fault_pass(LS_FAULT_AT_IDLE), LS_EFAIL);
    LS_CHECK_EQ(ls_fault_pass(LS_FAULT_AT_IDLE), LS_EFAIL);
    LS_CHECK_EQ(ls_fault_pass(LS_FAULT_AT_IDLE), LS_OK);
    ls_fault_reach(3, 1);
    LS_CHECK_EQ(ls_fault_pass(LS_FAULT_AT_FORWARD), LS_EFAIL);
}

LS_TEST(fault_plan_of_a_link_stays_and_logs_once)
{
    ls_fault_about about;

    LS_CHECK_OK(ls_fault_plan("at=link,do=slow,ms=20,step=4", 0));
    LS_EXPECT_LOG(1);
    for (int step = 1; step < 9; step++) {
        ls_fault_reach(step, step < 6 ? 1 : 2);
        LS_CHECK_EQ(ls_fault_visit(LS_FAULT_AT_LINK, &about),
                    step < 4 ? LS_FAULT_NONE : LS_FAULT_SLOW);
        LS_CHECK(step < 4 || about.ms == 20);
    }
}

LS_TEST(fault_plan_carries_what_a_flip_needs)
{
    ls_fault_about about;

    LS_CHECK_OK(ls_fault_plan(" rank=0, at=update, do=flip, tensor=a.b.weight, bit=30 ;", 0));
    LS_EXPECT_LOG(1);
    LS_CHECK_EQ(ls_fault_visit(LS_FAULT_AT_UPDATE, &about), LS_FAULT_FLIP);
    LS_CHECK(strcmp(about.tensor, "a.b.weight") == 0 && about.bit == 30);
}

LS_TEST(fault_plan_that_cannot_be_meant_is_refused_with_what_there_is)
{
    static const struct {
        const char *plan, *says;
    } bad[] = {{"at=backwards,do=kill", "there are: load, forward, backward, reduce, losses"},
               {"at=backward,do=full", "there are: kill, stop, stall"},
               {"at=backward,do=burn", "a deed that does not exist"},
               {"at=backward", "there are: kill, stop, stall"},
               {"do=kill", "an entry without at="},
               {"rank=x,at=load,do=kill", "no number"},
               {"at=update,do=flip", "a flip without tensor="},
               {"at=update,do=flip,tensor=a,bit=32", "too large"},
               {"at=link,do=slow", "a slow link without ms="},
               {"kill", "not NAME=VALUE"},
               {"at=load,do=kill,where=here", "a field that does not exist"}};
    char longest[400];

    for (size_t i = 0; i < LS_COUNT(bad); i++) {
        LS_CHECK_FAILS(ls_fault_plan(bad[i].plan, 0), LS_EUSAGE, bad[i].says);
        LS_CHECK(!ls_fault_planned);
    }
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    LS_CHECK_FAILS(ls_fault_plan(longest, 0), LS_EUSAGE, "too long");
}

LS_TEST(fault_plan_kills_stops_and_stalls_the_process)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        if (ls_fault_plan("at=load,do=stop; at=forward,do=stall,ms=1; at=losses,do=kill", 0) !=
            LS_OK)
            _exit(1);
        ls_fault_at(LS_FAULT_AT_LOAD);
        ls_fault_at(LS_FAULT_AT_FORWARD);
        ls_fault_at(LS_FAULT_AT_LOSSES);
        _exit(2);
    }
    LS_CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    LS_CHECK(WIFSTOPPED(status));
    kill(pid, SIGCONT);
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
