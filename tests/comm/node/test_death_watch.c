/* test_death_watch.c -- killed and stopped ranks, as the others see them. */
#include "comm/node/death_watch.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/time.h"
#include "comm/node/ranks.h"

typedef struct scene {
    _Atomic int64_t killed_ns;
    _Atomic int victim;
    _Atomic int told;
    _Atomic int ended, late; /* ranks that got their error, and those that got it after 100 ms */
    _Atomic int busy;
} scene;

/* Collectives without end, of all sizes, until one fails. */
static void work_until_failure(ls_ranks *r)
{
    static const int64_t counts[] = {1, 300, 5000, 250000};
    bool shared = r->me % 2;
    float *x = ls_ranks_alloc(r, shared, 250000 * 4);
    scene *s = r->context;
    ls_status st = LS_OK;
    ls_death_watch *watch;

    LS_CHECK_OK(ls_death_watch_open(&watch, r->segment, r->me));
    for (int i = 0; st == LS_OK; i++) {
        ls_coll coll = {.kind = i % 5 == 4 ? LS_COLL_BROADCAST : LS_COLL_ALL_REDUCE,
                        .count = counts[i % 4],
                        .in = x,
                        .out = x};
        st = ls_shm_coll_run(r->direct, &coll, ls_test_soon());
    }
    LS_CHECK_EQ(st, LS_EPEER);
    LS_CHECK(s->killed_ns != 0);
    LS_CHECK_WITHIN(s->killed_ns, 3000); /* at once, unless the machine is busy elsewhere */
    s->late += ls_time_now_ns() - s->killed_ns > ls_test_ms(100);
    s->ended++;
    char name[64];
    snprintf(name, sizeof name, "rank %d (pid", 10 + s->victim);
    if (!strstr(ls_err_last()->text, name))
        ls_test_fail(__FILE__, __LINE__, "%s", ls_err_last()->text);
    if (strstr(ls_err_last()->text, "killed by signal 9"))
        s->told++;
    ls_death_watch_close(watch);
    ls_ranks_free(r, shared, x);
}

static int open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    LS_CHECK(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static int shm_names(void)
{
    DIR *dir = opendir("/dev/shm");
    int n = 0;

    for (struct dirent *e; dir && (e = readdir(dir));)
        n += strstr(e->d_name, "lineshaft") != NULL;
    if (dir)
        closedir(dir);
    return n;
}

static void kill_one(int ranks, int round, scene *s)
{
    ls_ranks_args args = {.ranks = ranks, .context = s};
    int pids[LS_SHM_SEGMENT_RANKS], fd, status;
    struct timespec pause = {0, (5000000 + round * 37813) % 9000000};

    ls_ranks_make(&args, &fd);
    s->killed_ns = 0;
    s->victim = round % ranks;
    ls_ranks_start(&args, fd, work_until_failure, pids);
    ls_shm_segment *segment;
    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 7));
    for (;;) { /* until all are at work */
        ls_flight_recorder_record records[LS_FLIGHT_RECORDER_RECORDS];
        int busy = 0;
        for (int i = 0; i < ranks; i++)
            busy += ls_flight_recorder_read(segment, i, records) > 0;
        if (busy == ranks)
            break;
        usleep(500);
    }
    nanosleep(&pause, NULL);
    s->killed_ns = ls_time_now_ns();
    LS_CHECK_EQ(kill(pids[s->victim], SIGKILL), 0);
    for (int i = 0; i < ranks; i++) {
        if (i == s->victim)
            continue;
        LS_CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
        LS_CHECK_EQ(status, 0);
    }
    LS_CHECK_EQ(waitpid(pids[s->victim], &status, 0), pids[s->victim]);
    ls_shm_segment_close(segment);
    close(fd);
}

LS_TEST_SECONDS(watch_reports_100_killed_ranks_within_100_ms, 120)
{
    scene *s = ls_ranks_shared(sizeof *s);
    int files = open_files(), names = shm_names();

    for (int round = 0; round < ls_test_times(100); round++)
        kill_one(2 + round % 3, round, s);
    LS_CHECK(s->late * 2 < s->ended);
    LS_CHECK(s->told * 4 > s->ended * 3); /* nearly all could also say how */
    LS_CHECK_EQ(open_files(), files);
    LS_CHECK_EQ(shm_names(), names);
    LS_CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

/* --- stopped ---------------------------------------------------------------------------------- */

static void work_until_deadline(ls_ranks *r)
{
    scene *s = r->context;
    ls_status st = LS_OK;
    ls_death_watch *watch;
    float x = 0;
    ls_coll coll = {.count = 1, .in = &x, .out = &x};

    LS_CHECK_OK(ls_death_watch_open(&watch, r->segment, r->me));
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &coll, ls_test_soon()));
    s->busy++;
    while (st == LS_OK) /* nobody but the victim is late by so much */
        st = ls_shm_coll_run(r->direct, &coll, ls_ranks_in_ms(2000));
    if (r->me != s->victim) {
        LS_CHECK(st == LS_EDEADLINE || st == LS_EPEER);
        LS_CHECK(strstr(ls_err_last()->text, "rank 11 (pid"));
        LS_CHECK(strstr(ls_err_last()->text, "it is stopped by a signal"));
        s->told++;
    }
    ls_death_watch_close(watch);
}

LS_TEST(watch_leaves_a_stopped_rank_to_the_deadline_which_names_it)
{
    scene *s = ls_ranks_shared(sizeof *s);
    ls_ranks_args args = {.ranks = 3, .context = s};
    int pids[3], fd, status;

    s->victim = 1;
    ls_ranks_make(&args, &fd);
    ls_ranks_start(&args, fd, work_until_deadline, pids);
    for (int64_t until = ls_test_soon(); s->busy < 3 && ls_time_now_ns() < until;)
        usleep(1000);
    LS_CHECK_EQ(s->busy, 3);
    usleep(20000);
    LS_CHECK_EQ(kill(pids[1], SIGSTOP), 0);
    int64_t start = ls_time_now_ns();
    LS_CHECK_EQ(waitpid(pids[0], &status, 0), pids[0]);
    LS_CHECK_EQ(status, 0);
    LS_CHECK_EQ(waitpid(pids[2], &status, 0), pids[2]);
    LS_CHECK_EQ(status, 0);
    LS_CHECK_WITHIN(start, 10000);
    LS_CHECK_EQ(s->told, 2);
    LS_CHECK_EQ(kill(pids[1], SIGCONT),
                0); /* it finds the shared-memory segment broken, and ends */
    LS_CHECK_EQ(waitpid(pids[1], &status, 0), pids[1]);
    LS_CHECK_EQ(status, 0);
    close(fd);
}

/* --- ends that are no failure, and ends that are ---------------------------------------------- */

static void leave_one_by_one(ls_ranks *r)
{
    ls_death_watch *watch;

    LS_CHECK_OK(ls_death_watch_open(&watch, r->segment, r->me));
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_test_soon()));
    usleep((unsigned)r->me * 60000);
    LS_CHECK_OK(ls_shm_segment_failure(r->segment));
    ls_death_watch_close(watch);
}

LS_TEST(watch_does_not_mind_ranks_that_leave)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 3}, leave_one_by_one);
}

static void leave_without_a_word(ls_ranks *r)
{
    float x = 0;
    ls_coll coll = {.count = 1, .in = &x, .out = &x};

    if (r->me == 1)
        _exit(3);
    LS_CHECK_FAILS(ls_shm_coll_run(r->direct, &coll, ls_test_soon()), LS_EPEER, "rank 11 (pid");
    LS_CHECK(strstr(ls_err_last()->text,
                    r->context ? "ended with code 3 without having left" : "ended with code 3"));
}

LS_TEST(watch_by_an_agent_reports_the_code)
{
    ls_ranks_args args = {.ranks = 2, .gate = ls_ranks_shared(sizeof(int))};
    int pids[2], fd, status;
    ls_death_watch *watch;
    ls_shm_segment *segment;

    ls_ranks_make(&args, &fd);
    ls_ranks_start(&args, fd, leave_without_a_word, pids); /* no thread holds a lock yet */
    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 7));
    LS_CHECK_OK(
        ls_death_watch_open(&watch, segment, LS_SHM_SEGMENT_AGENT)); /* before anybody has joined */
    *args.gate = 1;
    LS_CHECK_EQ(waitpid(pids[0], &status, 0), pids[0]);
    LS_CHECK_EQ(status, 0);
    LS_CHECK_EQ(waitpid(pids[1], &status, 0), pids[1]);
    LS_CHECK_EQ(WEXITSTATUS(status), 3);
    ls_death_watch_close(watch);
    ls_shm_segment_close(segment);
    close(fd);
}
