/* test_agent.c -- jobs of real processes: places, first causes, exit codes, signals, what is left.
 */
#include "harness.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/jobs.h"

/* --- what a worker gets ----------------------------------------------------------------------- */

LS_TEST(agent_gives_ranks_their_places)
{
    jobs_run run;

    jobs_do(&run, (ls_agent_args){.workers = 3},
            "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE node $NODE_RANK "
            "ours $LINESHAFT_RANK/$LINESHAFT_WORLD $LINESHAFT_NODE/$LINESHAFT_NODES "
            "at $MASTER_ADDR:${MASTER_PORT:+port}");
    LS_CHECK_OK(run.st);
    LS_CHECK_EQ(run.result.exit_code, 0);
    LS_CHECK_EQ(run.result.worker, -1);
    for (int r = 0; r < 3; r++) {
        char line[128];
        snprintf(line, sizeof line, "[%d] %d/3 %d/3 node 0 ours %d/3 0/1 at 127.0.0.1:port\n", r, r,
                 r, r);
        LS_CHECK(strstr(run.out.p, line));
    }
    LS_CHECK_STR(run.err.p, "");
    jobs_release(&run);
}

LS_TEST(agent_numbers_ranks_of_a_later_node)
{
    jobs_run run;
    const char *settings[] = {"FLAVOUR=plain", "RANK=mine", NULL};

    jobs_do(&run,
            (ls_agent_args){.workers = 2,
                            .node = 1,
                            .nodes = 3,
                            .first_rank = 4,
                            .world = 7,
                            .generation = 18446744073709551615u,
                            .master_addr = "10.0.0.1",
                            .master_port = 4711,
                            .settings = settings},
            "echo $LINESHAFT_RANK $WORLD_SIZE $LOCAL_RANK $NODE_RANK $LINESHAFT_GENERATION "
            "$MASTER_ADDR:$MASTER_PORT $FLAVOUR $RANK");
    LS_CHECK_OK(run.st);
    LS_CHECK(strstr(run.out.p, "[4] 4 7 0 1 18446744073709551615 10.0.0.1:4711 plain mine\n"));
    LS_CHECK(strstr(run.out.p, "[5] 5 7 1 1 18446744073709551615 10.0.0.1:4711 plain mine\n"));
    jobs_release(&run);
}

LS_TEST(agent_hides_the_outer_job)
{
    jobs_run run;

    setenv("LINESHAFT_RANK", "77", 1);
    setenv("LINESHAFT_FD_ARENA", "99", 1);
    setenv("LINESHAFT_BF16", "off", 1);
    setenv("OMP_NUM_THREADS", "3", 1);
    jobs_do(&run, (ls_agent_args){.workers = 1},
            "echo $LINESHAFT_RANK ${LINESHAFT_FD_ARENA-none} $LINESHAFT_BF16 $OMP_NUM_THREADS "
            "${LINESHAFT_THREADS:+set}");
    LS_CHECK_STR(run.out.p, "[0] 0 none off 3 set\n");
    jobs_release(&run);
}

/* The variables that torchrun has set for this task are given to its ranks with other values. */
LS_TEST(agent_tells_ranks_which_task_theirs_is)
{
    const char *torchrun[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    const char *say = "echo $LOCAL_RANK $LINESHAFT_LOCAL_TASK of $LINESHAFT_LOCAL_TASKS";
    jobs_run run;

    setenv("LINESHAFT_LOCAL_TASK", "7", 1); /* of a job around this one */
    setenv("LINESHAFT_LOCAL_TASKS", "9", 1);
    jobs_do(&run, (ls_agent_args){.workers = 2}, say);
    LS_CHECK(strstr(run.out.p, "[0] 0 0 of 1\n") && strstr(run.out.p, "[1] 1 0 of 1\n"));
    jobs_release(&run);
    for (int i = 0; i < 4; i++)
        setenv(torchrun[i], (const char *[]){"5", "8", "2", "3"}[i], 1);
    jobs_do(&run, (ls_agent_args){.workers = 2}, say);
    LS_CHECK(strstr(run.out.p, "[0] 0 2 of 3\n") && strstr(run.out.p, "[1] 1 2 of 3\n"));
    jobs_release(&run);
}

LS_TEST(agent_hands_over_only_listed_files)
{
    jobs_run run;
    int leak = open("/dev/null", O_RDONLY), given = open("/dev/zero", O_RDONLY);
    const ls_agent_fd fds[] = {{.name = "ARENA", .fd = given}};

    LS_CHECK(leak > 2 && given > 2);
    jobs_do(&run, (ls_agent_args){.workers = 2, .fds = fds, .n_fds = 1},
            "cd /proc/$$/fd; for f in *; do case $f in 0|1|2|$LINESHAFT_FD_ARENA|"
            "$LINESHAFT_CAUSE_FD) ;; *) readlink $f;; esac; done; readlink $LINESHAFT_FD_ARENA; "
            "readlink 0; cat");
    LS_CHECK_OK(run.st);
    LS_CHECK_EQ(run.out.len, 2 * strlen("[0] /dev/zero\n[0] /dev/null\n"));
    LS_CHECK(strstr(run.out.p, "[1] /dev/zero\n"));
    jobs_release(&run);
}

LS_TEST(agent_hands_each_worker_its_own_file)
{
    jobs_run run;
    int each[2] = {open("/dev/null", O_RDONLY), open("/dev/zero", O_RDONLY)};
    const ls_agent_fd fds[] = {{.name = "LISTEN", .each = each}};

    jobs_do(&run, (ls_agent_args){.workers = 2, .fds = fds, .n_fds = 1},
            "cd /proc/$$/fd; for f in *; do case $f in 0|1|2|$LINESHAFT_CAUSE_FD) ;; *) "
            "readlink $f && { [ $f = $LINESHAFT_FD_LISTEN ] || echo wrong; };; esac; done; true");
    LS_CHECK(strstr(run.out.p, "[0] /dev/null\n") && strstr(run.out.p, "[1] /dev/zero\n"));
    LS_CHECK_EQ(run.out.len, strlen("[0] /dev/null\n[1] /dev/zero\n"));
    jobs_release(&run);
}

LS_TEST(agent_leads_sessions_and_divides_cores)
{
    jobs_run run;
    int cpus = 0;
    cpu_set_t set;

    LS_CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    cpus = CPU_COUNT(&set);
    jobs_do(&run, (ls_agent_args){.workers = 2},
            "set -- $(cat /proc/$$/stat); echo session $(($6 == $$)); "
            "grep Cpus_allowed_list /proc/$$/status; grep SigBlk /proc/self/status; "
            "grep NoNewPrivs /proc/$$/status >/dev/null");
    LS_CHECK_OK(run.st);
    LS_CHECK(strstr(run.out.p, "[0] session 1\n") && strstr(run.out.p, "[1] session 1\n"));
    LS_CHECK(strstr(run.out.p, "[0] SigBlk:\t0000000000000000\n"));
    if (cpus == 2) { /* two cores, or two threads of one */
        bool split = strstr(run.out.p, "Cpus_allowed_list:\t0\n") &&
                     strstr(run.out.p, "Cpus_allowed_list:\t1\n");
        LS_CHECK(split || strstr(run.out.p, "Cpus_allowed_list:\t0-1\n"));
    }
    jobs_release(&run);
}

LS_TEST(agent_gives_workers_the_old_limit_of_files)
{
    jobs_run run;
    struct rlimit limit;

    LS_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 70;
    LS_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    jobs_do(&run, (ls_agent_args){.workers = 24}, "ulimit -n");
    LS_CHECK_OK(run.st);
    LS_CHECK(strstr(run.out.p, "[23] 70\n"));
    LS_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    LS_CHECK_EQ(limit.rlim_cur, 70);
    jobs_release(&run);
}

LS_TEST(agent_runs_this_program_itself)
{
    jobs_run run;
    const char *words[] = {LS_AGENT_SELF, "--list", "agent_runs_this_program_itself", NULL};

    jobs_do(&run, (ls_agent_args){.workers = 2, .command = words}, NULL);
    LS_CHECK_OK(run.st);
    LS_CHECK(strstr(run.out.p, "[1] tests/cluster/test_agent.c:agent_runs_this_program_itself\n"));
    jobs_release(&run);
}

/* --- what cannot be started ------------------------------------------------------------------- */

LS_TEST(agent_says_what_cannot_be_started)
{
    ls_agent_result result;
    const char *none[] = {"no-such-command-here", NULL}, *folder[] = {"/tmp", NULL},
               *plain[] = {"./plain", NULL}, *text[] = {"./text", NULL}, *empty[] = {"", NULL},
               *gone[] = {"./gone", NULL}, *inter[] = {"./inter", NULL}, *ok[] = {"true", NULL};

    LS_CHECK_OK(ls_file_write_atomic("plain", "x", 1));
    chmod("plain", 0644);
    LS_CHECK_OK(ls_file_write_atomic("text", "echo hi\n", 8));
    LS_CHECK_OK(ls_file_write_atomic("inter", "#!/no/such/shell\n", 17));
    LS_CHECK(chmod("text", 0755) == 0 && chmod("inter", 0755) == 0);
#define REFUSED(cmd, n, part)                                                                 \
    LS_CHECK_FAILS(ls_agent_run(&(ls_agent_args){.command = (cmd), .workers = (n)}, &result), \
                   LS_EUSAGE, part)
    REFUSED(none, 2, "the command \"no-such-command-here\" is not found in PATH");
    REFUSED(folder, 2, "the command \"/tmp\" is a folder");
    REFUSED(plain, 2, "the command \"./plain\" may not be executed");
    REFUSED(gone, 2, "there is no command \"./gone\"");
    REFUSED(empty, 2, "the name of the command is empty");
    REFUSED(text, 3, "cannot start \"./text\": it cannot be executed: Exec format error");
    LS_CHECK(strstr(ls_err_last()->hint, "#!/bin/sh"));
    REFUSED(inter, 3, "cannot start \"./inter\": it cannot be executed: No such file");
    REFUSED(ok, 0, "at least 1 process on a node, not 0");
    REFUSED(ok, -5, "at least 1 process on a node, not -5");
    REFUSED(ok, 10000, "cannot start 10000 processes here: at most");
#undef REFUSED
    setenv("PATH", "", 1);
    LS_CHECK_FAILS(ls_agent_run(&(ls_agent_args){.command = ok, .workers = 1}, &result), LS_EUSAGE,
                   "not found in PATH");
}

LS_TEST(agent_says_that_a_log_folder_cannot_be_made)
{
    ls_agent_result result;
    const char *ok[] = {"true", NULL};

    LS_CHECK_OK(ls_file_write_atomic("file", "x", 1));
    LS_CHECK_FAILS(
        ls_agent_run(&(ls_agent_args){.command = ok, .workers = 1, .log_dir = "file/logs"},
                     &result),
        LS_EIO, "file");
}

/* The limit of processes does not hold for root, so root becomes somebody else first; in a process
 * of its own, because the leak checker could not start either. */
LS_TEST(agent_says_that_processes_run_out)
{
    int status;
    pid_t pid = fork();

    LS_CHECK(pid >= 0);
    if (pid == 0) {
        ls_agent_result result;
        const char *words[] = {"sleep", "20", NULL};
        struct rlimit limit = {1, 1};
        if (getuid() == 0)
            LS_CHECK(setgid(64123) == 0 && setuid(64123) == 0);
        LS_CHECK(setrlimit(RLIMIT_NPROC, &limit) == 0);
        LS_CHECK_FAILS(ls_agent_run(&(ls_agent_args){.command = words, .workers = 4}, &result),
                       LS_EUSAGE, "with 1 processes allowed (ulimit -u)");
        _exit(0);
    }
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

LS_TEST(agent_survives_lack_of_memory)
{
    const char *words[] = {"true", NULL};
    ls_agent_result result;
    int files = 0;

    jobs_mark();
    for (uint64_t n = 1; n < 400; n++) {
        ls_mem_fail_nth(n);
        ls_status st = ls_agent_run(&(ls_agent_args){.command = words, .workers = 2}, &result);
        ls_mem_fail_nth(0);
        LS_CHECK(st == LS_OK || st == LS_ENOMEM);
        LS_CHECK(st != LS_OK || result.exit_code == 0);
        if (n == 1)
            files = jobs_files();
        LS_CHECK_EQ(jobs_files(), files);
        if (st == LS_OK && n > 60)
            break;
    }
    JOBS_EXPECT_NONE();
}

/* --- the first cause -------------------------------------------------------------------------- */

LS_TEST(agent_shows_the_first_failure)
{
    jobs_run run;
    int64_t began = ls_time_now_ns();

    jobs_mark();
    jobs_do(&run, (ls_agent_args){.workers = 4},
            "if [ $RANK = 2 ]; then echo first >&2; echo second >&2; exit 7; fi; exec sleep 30");
    LS_CHECK_OK(run.st);
    LS_CHECK_EQ(run.result.exit_code, 7);
    LS_CHECK_EQ(run.result.worker, 2);
    LS_CHECK_STR(run.result.label, "2");
    LS_CHECK_STR(run.result.last_lines, "first\nsecond\n");
    LS_CHECK_EQ(run.result.others, 3);
    LS_CHECK_EQ(run.result.killed, 0);
    LS_CHECK(strstr(run.result.cause.text, "rank 2 ended with exit code 7 after "));
    LS_CHECK_WITHIN(began, 10000);
    jobs_release(&run);
    JOBS_EXPECT_NONE();
}

LS_TEST(agent_gives_signals_as_128_and_their_number)
{
    jobs_run run;

    jobs_do(&run, (ls_agent_args){.workers = 3},
            "if [ $RANK = 1 ]; then kill -9 $$; fi; exec sleep 30");
    LS_CHECK_EQ(run.result.exit_code, 137);
    LS_CHECK(strstr(run.result.cause.text, "rank 1 was killed by signal 9 (Killed)"));
    LS_CHECK(strstr(run.result.cause.hint, "memory"));
    jobs_release(&run);
    jobs_do(&run, (ls_agent_args){.workers = 3},
            "ulimit -c 0; if [ $RANK = 0 ]; then kill -SEGV $$; fi; exec sleep 30");
    LS_CHECK_EQ(run.result.exit_code, 139);
    jobs_release(&run);
}

LS_TEST(agent_kills_a_worker_that_ignores_signals)
{
    jobs_run run;
    int64_t began = ls_time_now_ns();

    jobs_mark();
    jobs_do(&run, (ls_agent_args){.workers = 3, .grace_ns = 300 * LS_NS_PER_MS},
            "trap '' TERM; >deaf$RANK; if [ $RANK = 1 ]; then "
            "until [ -e deaf0 ] && [ -e deaf2 ]; do sleep 0.02; done; exit 3; fi; "
            "while :; do sleep 1; done");
    LS_CHECK_EQ(run.result.exit_code, 3);
    LS_CHECK_EQ(run.result.others, 2);
    LS_CHECK_EQ(run.result.killed, 2);
    LS_CHECK(ls_time_now_ns() - began > 300 * LS_NS_PER_MS);
    LS_CHECK_WITHIN(began, 10000);
    jobs_release(&run);
    JOBS_EXPECT_NONE();
}

LS_TEST(agent_stops_workers_that_are_stopped)
{
    jobs_run run;

    jobs_mark();
    jobs_do(&run, (ls_agent_args){.workers = 2},
            "if [ $RANK = 0 ]; then sleep 0.3; exit 5; fi; kill -STOP $$; sleep 30");
    LS_CHECK_EQ(run.result.exit_code, 5);
    LS_CHECK_EQ(run.result.killed, 0);
    jobs_release(&run);
    JOBS_EXPECT_NONE();
}

LS_TEST(agent_lets_ranks_that_ended_well_be)
{
    jobs_run run;

    jobs_do(&run, (ls_agent_args){.workers = 3}, "sleep 0.$RANK; echo $RANK done");
    LS_CHECK_EQ(run.result.exit_code, 0);
    LS_CHECK(strstr(run.out.p, "[0] 0 done\n") && strstr(run.out.p, "[1] 1 done\n"));
    LS_CHECK(strstr(run.out.p, "[2] 2 done\n"));
    jobs_release(&run);
}

LS_TEST(agent_goes_on_when_asked_to)
{
    jobs_run run;

    jobs_do(&run, (ls_agent_args){.workers = 3, .go_on = true},
            "if [ $RANK = 0 ]; then exit 4; fi; sleep 0.3; echo late; [ $RANK = 1 ] || exit 6");
    LS_CHECK_EQ(run.result.exit_code, 4);
    LS_CHECK_EQ(run.result.others, 1);
    LS_CHECK(strstr(run.out.p, "[1] late\n") && strstr(run.out.p, "[2] late\n"));
    jobs_release(&run);
}

/* A worker that hands over a record: this program, executed again, never gets to its tests. Rank 1
 * is the culprit; the others blame it, sooner than it ends, but not before it is there. */
static void __attribute__((constructor)) be_a_worker(void)
{
    const char *rank = getenv("LINESHAFT_RANK");
    bool culprit = rank && strcmp(rank, "1") == 0;

    if (!rank || !getenv("LS_TEST_BLAME"))
        return;
    if (culprit)
        close(open("culprit", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    for (int i = 0; !culprit && i < 10000 && access("culprit", F_OK) != 0; i++)
        usleep(1000);
    if (culprit)
        usleep(400000);
    ls_err_doing("working hard");
    if (culprit)
        ls_fail(LS_EDATA, "the file \"x\" is damaged");
    else
        ls_fail(LS_EPEER, "rank 1 went away");
    ls_err_hint("Be careful.");
    _exit(ls_error_channel_send(ls_err_last()) ? ls_err_exit_code(ls_err_last()->code) : 99);
}

LS_TEST(agent_prefers_the_cause_to_ranks_that_blame_others)
{
    jobs_run run;
    const char *words[] = {LS_AGENT_SELF, NULL}, *settings[] = {"LS_TEST_BLAME=1", NULL};

    jobs_do(&run, (ls_agent_args){.workers = 3, .command = words, .settings = settings}, NULL);
    LS_CHECK_OK(run.st);
    LS_CHECK_STR(run.result.cause.text, "rank 1: the file \"x\" is damaged");
    LS_CHECK_STR(run.result.cause.hint, "Be careful.");
    LS_CHECK_STR(run.result.cause.doing, "working hard");
    LS_CHECK_EQ(run.result.cause.code, LS_EDATA);
    LS_CHECK_EQ(run.result.exit_code, 4);
    LS_CHECK_EQ(run.result.worker, 1);
    LS_CHECK_EQ(run.result.others, 2);
    jobs_release(&run);
}

/* Nobody but those who blame: then the first of them is shown. */
LS_TEST(agent_shows_a_rank_that_blames_when_there_is_no_other)
{
    jobs_run run;
    const char *words[] = {LS_AGENT_SELF, NULL}, *settings[] = {"LS_TEST_BLAME=1", NULL};

    LS_CHECK_OK(ls_file_write_atomic("culprit", "", 0)); /* it has gone already */
    jobs_do(&run,
            (ls_agent_args){.workers = 1, .first_rank = 5, .command = words, .settings = settings},
            NULL);
    LS_CHECK_STR(run.result.cause.text, "rank 5: rank 1 went away");
    LS_CHECK_EQ(run.result.exit_code, 9);
    jobs_release(&run);
}

static void dawdle(void *context, const ls_agent_event *event)
{
    (void)context;
    if (event->kind != LS_AGENT_STARTED || event->worker != 0)
        return;
    jobs_await("dying");
    usleep(400000);
}

/* The agent looks away while all die: the crash is the cause, though rank 0 is reaped first. */
LS_TEST(agent_blames_a_crash_before_an_exit_code)
{
    jobs_run run;

    jobs_do(&run, (ls_agent_args){.workers = 3, .hook = dawdle},
            "ulimit -c 0; if [ $RANK = 2 ]; then >dying; kill -ABRT $$; fi; "
            "until [ -e dying ]; do sleep 0.01; done; sleep 0.1; exit 1");
    LS_CHECK_EQ(run.result.worker, 2);
    LS_CHECK_EQ(run.result.exit_code, 134);
    LS_CHECK_EQ(run.result.others, 2);
    jobs_release(&run);
}

/* Workers that close everything they inherited must not keep the agent busy. */
LS_TEST(agent_sleeps_when_nobody_can_send_a_cause)
{
    jobs_run run;
    struct timespec before, after;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    jobs_do(&run, (ls_agent_args){.workers = 2},
            "eval \"exec $LINESHAFT_CAUSE_FD>&-\"; sleep 1; exit 0");
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    LS_CHECK_EQ(run.result.exit_code, 0);
    double used =
        (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) / 1e9;
    LS_CHECK(used < 0.3);
    jobs_release(&run);
}

/* --- hooks ------------------------------------------------------------------------------------ */

typedef struct seen {
    int started, ended, codes;
    int64_t ended_ns;
} seen;

static void note(void *context, const ls_agent_event *event)
{
    seen *s = context;

    if (event->kind == LS_AGENT_ENDED) {
        LS_CHECK_EQ(event->why != NULL, event->code != 0);
        s->ended++;
        s->codes += event->code;
        if (event->code == 11)
            s->ended_ns = ls_time_now_ns();
    } else {
        s->started++;
        LS_CHECK(event->pid > 0 && event->rank == event->worker);
    }
}

static int64_t clock_of(const char *path)
{
    FILE *f = fopen(path, "re");
    long long s = 0, ns = 0;

    LS_CHECK(f && fscanf(f, "%lld.%lld", &s, &ns) == 2);
    fclose(f);
    return s * LS_NS_PER_S + ns;
}

/* Realtime of the death as the worker wrote it, against realtime in the hook. */
static void note_time(void *context, const ls_agent_event *event)
{
    struct timespec now;

    if (event->kind == LS_AGENT_ENDED && event->code == 11) {
        clock_gettime(CLOCK_REALTIME, &now);
        *(int64_t *)context = (int64_t)now.tv_sec * LS_NS_PER_S + now.tv_nsec;
    }
}

LS_TEST(agent_calls_the_hook_for_every_worker)
{
    jobs_run run;
    seen s = {0};

    jobs_do(&run, (ls_agent_args){.workers = 5, .hook = note, .context = &s, .go_on = true},
            "exit $RANK");
    LS_CHECK_EQ(s.started, 5);
    LS_CHECK_EQ(s.ended, 5);
    LS_CHECK_EQ(s.codes, 0 + 1 + 2 + 3 + 4);
    jobs_release(&run);
}

LS_TEST(agent_notices_a_death_within_milliseconds)
{
    int64_t best = INT64_MAX;

    for (int i = 0; i < 5; i++) {
        jobs_run run;
        int64_t hook_ns = 0;
        /* A flood on all other ranks must not delay it. */
        jobs_do(&run, (ls_agent_args){.workers = 3, .hook = note_time, .context = &hook_ns},
                "if [ $RANK = 0 ]; then sleep 0.2; date +%s.%N >died; exit 11; fi; "
                "exec yes 0123456789");
        LS_CHECK_EQ(run.result.exit_code, 11);
        best = ls_min_i64(best, hook_ns - clock_of("died"));
        jobs_release(&run);
    }
    /* Includes the end of a shell; 20 are for a quiet machine without a sanitizer. */
    LS_CHECK(best > 0 && best < ls_test_ms(400));
}

/* --- signals and killings --------------------------------------------------------------------- */

/* A launcher in a process of its own; saves: of workers that save when they are asked to stop. */
static pid_t launcher_of(int workers, const char *command, int64_t grace_ns, bool saves)
{
    pid_t pid = fork();

    LS_CHECK(pid >= 0);
    if (pid == 0) {
        const char *words[] = {"/bin/sh", "-c", command, NULL};
        ls_agent_result result;
        int null = open("/dev/null", O_WRONLY);
        signal(SIGINT, SIG_DFL);
        ls_status st = ls_agent_run(&(ls_agent_args){.command = words,
                                                     .workers = workers,
                                                     .grace_ns = grace_ns,
                                                     .saves = saves,
                                                     .out_fd = null,
                                                     .err_fd = null},
                                    &result);
        _exit(st == LS_OK ? result.exit_code : 99);
    }
    return pid;
}

static pid_t launcher(int workers, const char *command, int64_t grace_ns)
{
    return launcher_of(workers, command, grace_ns, false);
}

/* Exit code, or 1000 + signal. */
static int end_of(pid_t pid)
{
    int64_t deadline_ns = ls_test_soon();
    int status;
    pid_t got;

    while ((got = waitpid(pid, &status, WNOHANG)) == 0) {
        LS_CHECK(ls_time_now_ns() < deadline_ns);
        usleep(1000);
    }
    LS_CHECK_EQ(got, pid);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

LS_TEST(agent_passes_a_signal_on_once)
{
    jobs_mark();
    pid_t pid = launcher(2,
                         "trap 'echo x >>got$RANK; exit 0' TERM; >ready$RANK; "
                         "while :; do sleep 0.05; done",
                         0);
    jobs_await("ready0");
    jobs_await("ready1");
    kill(pid, SIGTERM);
    LS_CHECK_EQ(end_of(pid), 130);
    LS_CHECK(ls_file_exists("got0") && ls_file_exists("got1"));
    JOBS_EXPECT_NONE();
    /* exec: a shell's child that has not yet become another program swallows SIGINT. */
    pid = launcher(2, ">again$RANK; exec sleep 30", 0);
    jobs_await("again0");
    jobs_await("again1");
    kill(pid, SIGINT);
    LS_CHECK_EQ(end_of(pid), 130);
    JOBS_EXPECT_NONE();
}

LS_TEST(agent_ends_at_the_second_signal)
{
    jobs_mark();
    pid_t pid = launcher(2, "trap '' INT TERM; >ready$RANK; while :; do sleep 0.05; done",
                         3600 * LS_NS_PER_S);
    jobs_await("ready0");
    jobs_await("ready1");
    kill(pid, SIGINT);
    usleep(300000);
    LS_CHECK_EQ(waitpid(pid, NULL, WNOHANG), 0); /* as long as they like */
    LS_CHECK(jobs_marked() >= 2); /* the workers; what they sleep with comes and goes */
    kill(pid, SIGTERM);
    LS_CHECK_EQ(end_of(pid), 130);
    JOBS_EXPECT_NONE();
}

LS_TEST(agent_passes_user_signals_on)
{
    jobs_mark();
    pid_t pid = launcher(1,
                         "trap 'echo x >>usr' USR1; >ready; n=0; while [ ! -s usr ] && [ $n -lt "
                         "400 ]; do sleep 0.05; n=$((n+1)); done; [ -s usr ] && exit 21",
                         0);
    jobs_await("ready");
    kill(pid, SIGUSR1);
    LS_CHECK_EQ(end_of(pid), 21);
    JOBS_EXPECT_NONE();
}

/* A worker that saves may be asked by SIGUSR1, and says by its exit code when it could not; two signals of
 * one moment are one request, a later one kills, and then nothing was saved. */
LS_TEST(agent_reports_whether_workers_have_saved)
{
    static const char *const commands[] = {
        "trap 'sleep 0.2; exit 0' USR1; >a$RANK; while :; do sleep 0.05; done",
        "trap 'exit 11' USR1; >b$RANK; while :; do sleep 0.05; done",
        "trap '' USR1 TERM; >c$RANK; while :; do sleep 0.05; done"};
    static const char *const ready[] = {"a1", "b1", "c1"};
    static const int codes[] = {130, 11, 11};

    jobs_mark();
    for (size_t i = 0; i < LS_COUNT(commands); i++) {
        pid_t pid = launcher_of(2, commands[i], 3600 * LS_NS_PER_S, true);
        char other[3] = {ready[i][0], '0', '\0'};
        jobs_await(ready[i]);
        jobs_await(other);
        kill(pid, SIGUSR1);
        kill(pid, SIGTERM); /* at once */
        if (i == 2) {
            usleep(1000000);
            LS_CHECK_EQ(waitpid(pid, NULL, WNOHANG), 0);
            kill(pid, SIGTERM);
        }
        LS_CHECK_EQ(end_of(pid), codes[i]);
        JOBS_EXPECT_NONE();
    }
}

LS_TEST(agent_stays_deaf_under_nohup)
{
    jobs_run run;

    jobs_mark();
    signal(SIGHUP, SIG_IGN);
    jobs_do(&run, (ls_agent_args){.workers = 1},
            "set -- $(cat /proc/$PPID/stat); kill -HUP $4; sleep 0.3; exit 9");
    LS_CHECK_EQ(run.result.exit_code, 9);
    jobs_release(&run);
}

/* Workers with children in the background, in other sessions, and children of these. */
#define FAMILY                                                         \
    "(sleep 60 & sleep 60 & wait) & "                                  \
    "setsid sh -c 'setsid sleep 60 & trap \"\" TERM HUP; sleep 60' & " \
    "(exec setsid sh -c '(sleep 60; :) & exit' ) ; "

LS_TEST(agent_ends_what_workers_started)
{
    jobs_run run;

    jobs_mark();
    jobs_do(&run, (ls_agent_args){.workers = 3}, FAMILY "sleep 0.2; exit 0");
    LS_CHECK_OK(run.st);
    LS_CHECK_EQ(run.result.exit_code, 0);
    LS_CHECK_EQ(run.result.left, 0);
    LS_CHECK_EQ(jobs_marked(), 0); /* at once: nothing is left when the call returns */
    jobs_release(&run);
    LS_CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1); /* no zombie of ours */
    LS_CHECK_EQ(errno, ECHILD);
}

LS_TEST_SECONDS(agent_killed_leaves_nothing, 120)
{
    jobs_mark();
    for (int i = 0; i < 50; i += ls_test_stride(4)) {
        pid_t pid = launcher(3, FAMILY ">up$RANK; sleep 60", 0);
        /* From before the first fork to a job that stands. */
        if (i % 5 == 0)
            jobs_await("up2");
        else
            usleep((unsigned)(i * 600));
        kill(pid, SIGKILL);
        LS_CHECK_EQ(end_of(pid), 1009);
        JOBS_EXPECT_NONE();
        unlink("up2");
    }
}

/* The supervisor is the parent of the workers. */
static pid_t parent_of(pid_t pid)
{
    char path[32];
    int parent = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    LS_CHECK(f && fscanf(f, "%*d %*s %*c %d", &parent) == 1);
    fclose(f);
    return (pid_t)parent;
}

/* All cores are busy, and this process is let only when nothing else is to do. */
static void slow_down(pid_t pid, pid_t *spinners, int n)
{
    for (int i = 0; i < n; i++) {
        spinners[i] = fork();
        LS_CHECK(spinners[i] >= 0);
        if (spinners[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                ;
        }
    }
    LS_CHECK_EQ(sched_setscheduler(pid, SCHED_IDLE, &(struct sched_param){0}), 0);
}

LS_TEST_SECONDS(agent_outlives_its_supervisor_and_cleans_up, 60)
{
    jobs_mark();
    for (int i = 0; i < 10; i++) {
        pid_t spinners[4] = {0};
        pid_t pid = launcher(3, FAMILY "echo $$ >up.tmp$RANK; mv up.tmp$RANK up$RANK; sleep 60", 0);
        jobs_await("up0");
        jobs_await("up1");
        jobs_await("up2");
        pid_t supervisor = parent_of((pid_t)jobs_number("up1"));
        LS_CHECK_EQ(parent_of(supervisor), pid);
        if (i % 2) /* its death takes its time */
            slow_down(supervisor, spinners, 4);
        kill(supervisor, SIGKILL);
        LS_CHECK_EQ(end_of(pid), 137);
        LS_CHECK_EQ(jobs_marked(), 0);
        for (int k = 0; k < 4 && spinners[k]; k++) {
            kill(spinners[k], SIGKILL);
            LS_CHECK_EQ(waitpid(spinners[k], NULL, 0), spinners[k]);
        }
        unlink("up0");
        unlink("up1");
        unlink("up2");
    }
}

LS_TEST_SECONDS(agent_ends_when_a_worker_is_killed, 120)
{
    jobs_mark();
    for (int i = 0; i < ls_test_times(50); i++) {
        pid_t pid =
            launcher(4, FAMILY "echo $$ >pid.$RANK.tmp; mv pid.$RANK.tmp pid.$RANK; sleep 60", 0);
        char path[32];
        snprintf(path, sizeof path, "pid.%d", i % 4);
        jobs_await(path);
        kill((pid_t)jobs_number(path), SIGKILL);
        LS_CHECK_EQ(end_of(pid), 137);
        LS_CHECK_EQ(jobs_marked(), 0);
        for (int r = 0; r < 4; r++) {
            snprintf(path, sizeof path, "pid.%d", r);
            unlink(path);
        }
    }
}

LS_TEST(agent_leaks_no_files_and_restores_its_caller)
{
    jobs_run run;
    sigset_t before, after;
    int reaper = 1;

    sigprocmask(SIG_SETMASK, NULL, &before);
    int files = jobs_files();
    for (int i = 0; i < 20; i++) {
        jobs_do(&run, (ls_agent_args){.workers = 3}, i % 2 ? "exit 1" : "echo x");
        jobs_release(&run);
    }
    LS_CHECK_EQ(jobs_files(), files);
    sigprocmask(SIG_SETMASK, NULL, &after);
    for (int signal = 1; signal < 32; signal++)
        LS_CHECK_EQ(sigismember(&after, signal), sigismember(&before, signal));
    prctl(PR_GET_CHILD_SUBREAPER, &reaper);
    LS_CHECK_EQ(reaper, 0);
}

LS_TEST(agent_leaves_other_children_alone)
{
    jobs_run run;
    pid_t other = fork();

    LS_CHECK(other >= 0);
    if (other == 0) {
        pause();
        _exit(0);
    }
    jobs_do(&run, (ls_agent_args){.workers = 2}, "exit 1");
    jobs_release(&run);
    LS_CHECK_EQ(waitpid(other, NULL, WNOHANG), 0);
    kill(other, SIGKILL);
    LS_CHECK_EQ(waitpid(other, NULL, 0), other);
}
