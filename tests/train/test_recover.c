/* test_recover.c -- whole runs on several ranks, of which some die: this process is the agent, the
 * ranks are its children, and what the first of them tells comes back through a pipe. */
#include "harness.h"
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/time.h"
#include "comm/node_memory.h"
#include "config/runfile.h"
#include "launch/job_rank.h"
#include "train/loop.h"

enum { MOST = 8, MOST_SETS = 8 };

/* What a run tells, one small record for each event that matters here. */
typedef struct word {
    ls_event_kind kind;
    int64_t step;
    double loss;
    int ranks, pid, rank;
    bool memory;
    char hash[40];
} word;

/* A rank that reports a step after which one is killed waits until that is done. */
typedef struct teller {
    int out, ack;
    const int64_t *at; /* two such steps */
} teller;

static void on_event(void *context, const ls_event *event)
{
    const teller *t = context;
    word w = {.kind = event->kind};
    char ack;

    if (event->kind == LS_EVENT_STEP) {
        w.step = event->step.step;
        w.loss = event->step.loss;
    } else if (event->kind == LS_EVENT_RANK) {
        w.rank = event->rank.rank;
        w.pid = event->rank.pid;
    } else if (event->kind == LS_EVENT_INCIDENT && event->incident.recovery) {
        w.ranks = event->incident.recovery->ranks;
        w.memory = strcmp(event->incident.recovery->source, "memory") == 0;
        w.step = event->incident.step;
    } else if (event->kind == LS_EVENT_SUMMARY) {
        snprintf(w.hash, sizeof w.hash, "%s", event->summary.weights_hash);
    } else {
        return;
    }
    if (write(t->out, &w, sizeof w) != sizeof w)
        _exit(9);
    if (w.kind == LS_EVENT_STEP && t->ack >= 0 && (w.step == t->at[0] || w.step == t->at[1]) &&
        read(t->ack, &ack, 1) != 1)
        _exit(9);
}

/* What is to happen, and what did. */
typedef struct story {
    int workers, restarts;
    int unit, left; /* ranks of a model; ranks at the end, 0: as many as are not lost */
    bool experts;   /* the model is a mixture of them */
    const char *set, *more, *also; /* NULL: none */
    int from_disk;                 /* incidents that ought to read a checkpoint */
    int64_t at[2];                 /* steps after which a rank is killed; 0: none */
    int victim[2];                 /* its number at that time */
    int killed, steps, incidents, ranks, from_memory;
    int64_t last_step, twice; /* steps that were told twice */
    double losses;            /* sum over steps, each counted once */
    char hash[40];
    int pids[MOST];
} story;

static ls_status train(const story *s, int out, int ack, ls_session_args args)
{
    teller t = {.out = out, .ack = ack, .at = s->at};
    char text[512];
    int len = snprintf(text, sizeof text,
                       "model: {layers: 2, width: 48, heads: 2, context: 8, dropout: 0.1%s}\n"
                       "data: {text: [text.txt], validation: 20%%}\n"
                       "batch: {sequences: 6, leaf: 1, group: 1}\n"
                       "train: {steps: 24, warmup: 1, reduce: ordered}\n"
                       "checkpoint: {every: 5, keep: 3}\n"
                       "eval: {every: 7, sequences: 4}\n"
                       "device: {threads: 1}\n",
                       s->experts ? ", family: mixtral, mlp: 32, experts: 4, experts_used: 2" : "");
    const char *sets[MOST_SETS] = {"out=run", s->set, s->more, s->also};
    const ls_runfile_source source = {.text = text,
                                      .len = (size_t)len,
                                      .sets = sets,
                                      .n_sets = 1 + (s->set != NULL) + (s->more != NULL) +
                                                (s->also != NULL),
                                      .no_environment = true};
    ls_run run;
    ls_status st;

    LS_TRY(st, ls_runfile_load(&run, &source), out);
    args.run = &run;
    args.sink = on_event;
    args.sink_context = &t;
    st = ls_loop_run(&args);
    ls_runfile_release(&run);
out:
    return st;
}

/* --- a rank ----------------------------------------------------------------------------------- */

static ls_status meet(void *context, const ls_view_report *report, ls_worker_channel_view *view,
                      ls_comm **comm)
{
    ls_job_rank own = {.listen_fd = -1}; /* all on one machine */
    ls_status st = ls_job_rank_rejoin(&own, report, view, comm);

    *(ls_comm **)context = *comm;
    return st;
}

static _Noreturn void rank(const story *s, int end, int out, int ack)
{
    const ls_view_report nothing = {.have = -1, .reached = -1};
    ls_comm *comm = NULL;
    ls_session_args args = {.rejoin = meet, .rejoin_context = &comm};
    char number[16];
    ls_status st;

    snprintf(number, sizeof number, "%d", end);
    setenv("LINESHAFT_FD_HEAL", number, 1);
    LS_TRY(st, meet(&comm, &nothing, &args.view, &args.comm), out);
    args.local_ranks = args.view.local_ranks;
    st = train(s, out, ack, args);
out:
    ls_comm_close(comm);
    if (st != LS_OK)
        fprintf(stderr, "rank: %s\n", ls_err_last()->text);
    _exit(st != LS_OK);
}

/* --- the agent -------------------------------------------------------------------------------- */

typedef struct agent {
    story *s;
    ls_worker_channel *heal;
    int segment_fd, pipe[2], ack[2], running;
    uint64_t generation;
    pid_t pids[MOST];
} agent;

static ls_status make_segment(void *context, uint64_t generation, int ranks, int *fd_out)
{
    agent *a = context;

    if (a->segment_fd >= 0)
        close(a->segment_fd);
    a->generation = generation;
    LS_CHECK_OK(ls_node_memory_create(generation, ranks, &a->segment_fd));
    *fd_out = a->segment_fd;
    return LS_OK;
}

static void break_segment(void *context, const char *why)
{
    const agent *a = context;

    LS_CHECK_OK(ls_node_memory_break(a->segment_fd, a->generation, why));
}

static void start(agent *a, int i)
{
    a->pids[i] = fork();
    LS_CHECK(a->pids[i] >= 0);
    if (a->pids[i] == 0)
        rank(a->s, ls_worker_channel_ends(a->heal)[i], a->pipe[1], a->ack[0]);
    a->running++;
    ls_worker_channel_started(a->heal, i, a->pids[i]);
}

/* The teller waits, unless it is the one who dies. */
static void strike(story *s, int64_t step, int ack)
{
    bool lives = true;

    if (step != s->at[0] && step != s->at[1])
        return;
    if (s->killed < 2 && step == s->at[s->killed]) {
        lives = s->victim[s->killed] != 0;
        kill(s->pids[s->victim[s->killed++]], SIGKILL);
    }
    if (lives && ack >= 0)
        LS_CHECK_EQ(write(ack, "", 1), 1);
}

static void hear(story *s, const word *w, int ack)
{
    switch (w->kind) {
    case LS_EVENT_STEP:
        s->twice += w->step <= s->last_step;
        s->losses += w->step > s->last_step ? w->loss : 0;
        s->steps++;
        s->last_step = w->step > s->last_step ? w->step : s->last_step;
        strike(s, w->step, ack);
        break;
    case LS_EVENT_RANK:
        s->pids[w->rank] = w->pid;
        break;
    case LS_EVENT_INCIDENT:
        s->incidents++;
        s->ranks = w->ranks;
        s->from_memory += w->memory;
        break;
    default:
        memcpy(s->hash, w->hash, sizeof s->hash);
    }
}

static void reap(agent *a)
{
    for (int i = 0, status; i < a->s->workers; i++) {
        if (a->pids[i] == 0 || waitpid(a->pids[i], &status, WNOHANG) != a->pids[i])
            continue;
        a->pids[i] = 0;
        a->running--;
        if (WIFEXITED(status)) {
            LS_CHECK_EQ(WEXITSTATUS(status), 0);
            ls_worker_channel_left(a->heal, i);
            continue;
        }
        const ls_view_end end = {.signal = WTERMSIG(status)};
        LS_CHECK_EQ(end.signal, SIGKILL);
        ls_view_verdict verdict = ls_worker_channel_ended(a->heal, i, &end, "a rank was killed");
        LS_CHECK(verdict != LS_VIEW_STOP);
        if (verdict == LS_VIEW_RESTART)
            start(a, i);
    }
}

static void play(story *s)
{
    agent a = {.s = s, .segment_fd = -1};
    int64_t soon = ls_test_soon();
    word w;

    LS_CHECK_EQ(pipe2(a.pipe, O_CLOEXEC | O_NONBLOCK), 0);
    LS_CHECK_EQ(pipe2(a.ack, O_CLOEXEC), 0);
    const ls_view_rules rules = {.restarts = s->restarts, .least = 1, .unit = s->unit};
    LS_CHECK_OK(
        ls_worker_channel_open(&a.heal, &(ls_worker_channel_args){.workers = s->workers,
                                                                  .patience_ns = ls_test_ms(60000),
                                                                  .make = make_segment,
                                                                  .revoke = break_segment,
                                                                  .context = &a,
                                                                  .rules = rules}));
    for (int i = 0; i < s->workers; i++)
        start(&a, i);
    while (a.running > 0) {
        struct pollfd p = {.fd = ls_worker_channel_fd(a.heal), .events = POLLIN};
        LS_CHECK_EQ(ls_worker_channel_attend(a.heal).task, LS_WORKER_CHANNEL_NOTHING);
        while (read(a.pipe[0], &w, sizeof w) == sizeof w)
            hear(s, &w, a.ack[1]);
        reap(&a);
        LS_CHECK(ls_time_now_ns() < soon);
        poll(&p, 1, 1);
    }
    while (read(a.pipe[0], &w, sizeof w) == sizeof w)
        hear(s, &w, a.ack[1]);
    ls_worker_channel_close(a.heal);
    close(a.segment_fd);
    for (int i = 0; i < 2; i++) {
        close(a.pipe[i]);
        close(a.ack[i]);
    }
}

/* The same run in one process. Not in this one: a process that forks has no threads. */
static void undisturbed(story *s)
{
    int fds[2], status;
    word w;

    LS_CHECK_EQ(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(train(s, fds[1], -1, (ls_session_args){.fresh = true}) != LS_OK);
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK_EQ(status, 0);
    while (read(fds[0], &w, sizeof w) == sizeof w)
        hear(s, &w, -1);
    close(fds[0]);
    close(fds[1]);
    LS_CHECK_EQ(s->steps, 24);
    LS_CHECK_EQ(rename("run", "undisturbed"), 0);
}

static void write_text(void)
{
    FILE *f = fopen("text.txt", "w");

    for (int i = 0; f && i < 400; i++)
        fprintf(f, "line %d of a text to learn from\n", i * 7 % 100);
    LS_CHECK(f && fclose(f) == 0);
}

static void check_played(const story *of, const story *plain);

/* Play it with these ranks dying; compare with the run that nothing befell: of one process, or of
 * the same ranks. */
static void compare(story s)
{
    story plain = {.at = {-1, -1}};

    write_text();
    undisturbed(&plain);
    play(&s);
    check_played(&s, &plain);
}

static void compare_same_part(story s)
{
    story plain = s;

    plain.at[0] = plain.at[1] = -1;
    write_text();
    play(&plain);
    LS_CHECK_EQ(plain.steps, 24);
    LS_CHECK_EQ(rename("run", "undisturbed"), 0);
    play(&s);
    check_played(&s, &plain);
}

static void check_played(const story *of, const story *plain_run)
{
    const story s = *of, plain = *plain_run;

    LS_CHECK_STR(s.hash, plain.hash);
    LS_CHECK_EQ(s.last_step, 24);
    LS_CHECK(fabs(s.losses - plain.losses) == 0);
    LS_CHECK_EQ(s.incidents, s.at[1] ? 2 : 1);
    /* A first rank that is killed while it tells of a step leaves that to be told again. */
    LS_CHECK_EQ(s.from_memory + s.from_disk, s.incidents);
    if (!s.from_disk)
        LS_CHECK_EQ(s.twice, (s.victim[0] == 0) + (s.at[1] && s.victim[1] == 0));
    LS_CHECK_EQ(s.ranks, s.left ? s.left : s.workers - (s.restarts ? 0 : s.killed));
}

LS_TEST(recover_starts_a_rank_again_from_memory)
{
    compare((story){.workers = 3, .restarts = 1, .at = {8}, .victim = {1}});
}

LS_TEST(recover_starts_the_first_rank_again)
{
    compare((story){.workers = 2, .restarts = 1, .at = {8}, .victim = {0}});
}

LS_TEST(recover_goes_on_with_fewer_down_to_one)
{
    compare((story){.workers = 3, .restarts = 0, .at = {6, 13}, .victim = {0, 1}});
}

LS_TEST(recover_loads_what_nobody_has_copies_of)
{
    compare((story){.workers = 3,
                    .restarts = 0,
                    .set = "mesh.zero=1",
                    .more = "heal.buddies=off",
                    .from_disk = 1,
                    .at = {8},
                    .victim = {2}});
}

/* Parts of the dead rank come from its holder, and are cut anew for the ranks that are left. */
LS_TEST(recover_takes_moments_from_buddies)
{
    compare((story){.workers = 4,
                    .restarts = 0,
                    .set = "mesh.zero=1",
                    .more = "mesh.bucket=65536",
                    .at = {6, 13},
                    .victim = {0, 1}});
}

LS_TEST(recover_takes_gradients_and_moments_from_buddies)
{
    compare((story){.workers = 2, .restarts = 1, .set = "mesh.zero=2", .at = {8}, .victim = {1}});
}

LS_TEST(recover_takes_weights_from_buddies_down_to_one)
{
    compare((story){
        .workers = 3, .restarts = 0, .set = "mesh.zero=3", .at = {6, 13}, .victim = {2, 0}});
}

LS_TEST(recover_takes_parts_from_shard_replicas)
{
    compare((story){.workers = 4,
                    .restarts = 1,
                    .set = "mesh.zero=3",
                    .more = "mesh.shard=2",
                    .at = {8},
                    .victim = {3}});
}

/* A rank that did not hear of a step makes its update when the others have: nobody is lost, and no
 * step is done again. */
static void go_without_losses(const char *fault, story s)
{
    ls_fault_arm(fault);
    s.restarts = 1;
    s.at[0] = s.at[1] = -1;
    play(&s);
    LS_CHECK_EQ(s.incidents, 1);
    LS_CHECK_EQ(s.from_memory, 1);
    LS_CHECK_EQ(s.steps, 24);
    ls_fault_arm(NULL);
    LS_CHECK_EQ(rename("run", "deaf"), 0);
    story plain = {.workers = s.workers,
                   .unit = s.unit,
                   .experts = s.experts,
                   .set = s.set,
                   .more = s.more,
                   .at = {-1, -1}};
    play(&plain);
    LS_CHECK_STR(s.hash, plain.hash);
    LS_CHECK(fabs(s.losses - plain.losses) == 0);
}

/* --- ranks that hold one model between them --------------------------------------------------- */

LS_TEST(recover_takes_a_stage_from_its_replica)
{
    compare((story){.workers = 4,
                    .restarts = 1,
                    .unit = 2,
                    .set = "mesh.pp=2",
                    .at = {6, 13},
                    .victim = {2, 0}});
}

/* One pipeline: no other rank has the stage. */
LS_TEST(recover_loads_a_stage_that_nobody_has)
{
    compare((story){.workers = 2,
                    .restarts = 1,
                    .unit = 2,
                    .set = "mesh.pp=2",
                    .from_disk = 1,
                    .at = {8},
                    .victim = {1}});
}

/* Pipelines that divide moments keep copies for each other. */
LS_TEST(recover_takes_moments_that_pipelines_divide_from_buddies)
{
    compare((story){.workers = 4,
                    .restarts = 1,
                    .unit = 2,
                    .set = "mesh.pp=2",
                    .more = "mesh.zero=1",
                    .at = {6, 13},
                    .victim = {3, 0}});
}

LS_TEST(recover_makes_the_update_of_a_buddy_that_was_not_heard)
{
    write_text();
    go_without_losses("train.no_losses.1@8",
                      (story){.workers = 4, .unit = 2, .set = "mesh.pp=2", .more = "mesh.zero=1"});
}

/* Gradients too, and weights. */
LS_TEST(recover_takes_gradients_that_pipelines_divide_from_buddies)
{
    compare((story){.workers = 4,
                    .restarts = 1,
                    .unit = 2,
                    .set = "mesh.pp=2",
                    .more = "mesh.zero=2",
                    .at = {6, 13},
                    .victim = {3, 0}});
}

LS_TEST(recover_takes_weights_that_pipelines_divide_from_buddies)
{
    compare((story){.workers = 6,
                    .restarts = 1,
                    .unit = 2,
                    .set = "mesh.pp=2",
                    .more = "mesh.zero=3",
                    .at = {6, 13},
                    .victim = {4, 0}});
}

LS_TEST(recover_makes_the_update_of_divided_weights_that_was_not_heard)
{
    write_text();
    go_without_losses("train.no_losses.1@8",
                      (story){.workers = 4, .unit = 2, .set = "mesh.pp=2", .more = "mesh.zero=3"});
}

/* Without copies nobody else has them; with a line less they are divided otherwise. */
LS_TEST(recover_loads_weights_that_pipelines_divide)
{
    compare((story){.workers = 4,
                    .restarts = 1,
                    .unit = 2,
                    .set = "mesh.pp=2",
                    .more = "mesh.zero=3",
                    .also = "heal.buddies=off",
                    .from_disk = 1,
                    .at = {8},
                    .victim = {1}});
}

LS_TEST(recover_loads_weights_that_fewer_pipelines_divide)
{
    compare((story){.workers = 4,
                    .restarts = 0,
                    .unit = 2,
                    .left = 2,
                    .set = "mesh.pp=2",
                    .more = "mesh.zero=3",
                    .from_disk = 1,
                    .at = {8},
                    .victim = {3}});
}

/* What tp groups divide has no copies. */
LS_TEST(recover_loads_weights_that_mp_groups_divide)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 2,
                              .set = "mesh.tp=2",
                              .more = "mesh.zero=3",
                              .from_disk = 2,
                              .at = {6, 13},
                              .victim = {1, 0}});
}

LS_TEST(recover_loads_what_groups_of_mp_groups_divide)
{
    compare_same_part((story){.workers = 8,
                              .restarts = 1,
                              .unit = 2,
                              .set = "mesh.tp=2",
                              .more = "mesh.zero=2",
                              .also = "mesh.shard=2",
                              .from_disk = 1,
                              .at = {8},
                              .victim = {5}});
}

LS_TEST(recover_loads_gradients_of_experts_that_ranks_divide)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 2,
                              .experts = true,
                              .set = "mesh.ep=2",
                              .more = "mesh.zero=2",
                              .from_disk = 1,
                              .at = {8},
                              .victim = {3}});
}

/* Another number of pipelines divides them otherwise. */
LS_TEST(recover_loads_moments_that_fewer_pipelines_divide)
{
    compare((story){.workers = 4,
                    .restarts = 0,
                    .unit = 2,
                    .left = 2,
                    .set = "mesh.pp=2",
                    .more = "mesh.zero=1",
                    .from_disk = 1,
                    .at = {6},
                    .victim = {3}});
}

/* Tp groups that divide the moments of a part keep copies for each other, bucket by bucket. */
LS_TEST(recover_takes_moments_that_mp_groups_divide_from_buddies)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 2,
                              .set = "mesh.tp=2",
                              .more = "mesh.zero=1",
                              .also = "mesh.bucket=65536",
                              .at = {6, 13},
                              .victim = {3, 0}});
}

LS_TEST(recover_makes_an_unconfirmed_update_of_a_tensor_parallel_buddy)
{
    write_text();
    go_without_losses("train.no_losses.1@8",
                      (story){.workers = 4, .unit = 2, .set = "mesh.tp=2", .more = "mesh.zero=1"});
}

/* Without copies nobody else has them. */
LS_TEST(recover_loads_moments_that_mp_groups_divide)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 2,
                              .set = "mesh.tp=2",
                              .more = "mesh.zero=1",
                              .also = "heal.buddies=off",
                              .from_disk = 1,
                              .at = {8},
                              .victim = {3}});
}

/* For good: the others of its model wait as spares, and one takes the next place that is free. */
LS_TEST(recover_goes_on_with_a_pipeline_less)
{
    compare((story){.workers = 4,
                    .restarts = 0,
                    .unit = 2,
                    .left = 2,
                    .set = "mesh.pp=2",
                    .at = {6},
                    .victim = {2}});
}

LS_TEST(recover_puts_a_spare_into_a_pipeline)
{
    compare((story){.workers = 4,
                    .restarts = 0,
                    .unit = 2,
                    .left = 2,
                    .from_disk = 1,
                    .set = "mesh.pp=2",
                    .at = {6, 13},
                    .victim = {2, 0}});
}

LS_TEST(recover_takes_a_part_of_layers_from_its_replica)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 2,
                              .set = "mesh.tp=2",
                              .at = {6, 13},
                              .victim = {1, 0}});
}

LS_TEST(recover_loads_a_part_of_layers_that_nobody_has)
{
    compare_same_part((story){.workers = 2,
                              .restarts = 1,
                              .unit = 2,
                              .set = "mesh.tp=2",
                              .from_disk = 1,
                              .at = {8},
                              .victim = {1}});
}

LS_TEST(recover_makes_the_update_of_a_stage_that_was_not_heard)
{
    write_text();
    go_without_losses("train.no_losses.1@8", (story){.workers = 2, .unit = 2, .set = "mesh.pp=2"});
}

LS_TEST(recover_makes_the_update_of_a_mp_that_was_not_heard)
{
    write_text();
    go_without_losses("train.no_losses.1@8", (story){.workers = 2, .unit = 2, .set = "mesh.tp=2"});
}

/* --- ranks that share sequences, or divide experts ------------------------------------------- */

LS_TEST(recover_takes_the_state_of_a_cp_from_any_rank)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 2,
                              .set = "mesh.cp=2",
                              .at = {6, 13},
                              .victim = {1, 0}});
}

LS_TEST(recover_takes_what_cp_groups_divide_from_buddies)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 2,
                              .set = "mesh.cp=2",
                              .more = "mesh.zero=1",
                              .at = {8},
                              .victim = {3}});
}

/* All sums are of two, so their bits do not depend on how they are made. */
LS_TEST(recover_takes_experts_from_their_replica)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 2,
                              .experts = true,
                              .set = "mesh.ep=2",
                              .at = {6, 13},
                              .victim = {1, 0}});
}

LS_TEST(recover_loads_experts_that_nobody_has)
{
    compare_same_part((story){.workers = 2,
                              .restarts = 1,
                              .unit = 2,
                              .experts = true,
                              .set = "mesh.ep=2",
                              .from_disk = 1,
                              .at = {8},
                              .victim = {1}});
}

LS_TEST(recover_makes_the_update_of_experts_that_was_not_heard)
{
    write_text();
    go_without_losses("train.no_losses.1@8",
                      (story){.workers = 2, .unit = 2, .experts = true, .set = "mesh.ep=2"});
}

/* --- products of these axes --------------------------------------------------------------------
 */

LS_TEST(recover_takes_a_part_from_another_place_of_a_cp)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 4,
                              .set = "mesh.cp=2",
                              .more = "mesh.tp=2",
                              .at = {6, 13},
                              .victim = {1, 0}});
}

LS_TEST(recover_takes_a_stage_from_another_place_of_a_cp)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 4,
                              .set = "mesh.cp=2",
                              .more = "mesh.pp=2",
                              .at = {6, 13},
                              .victim = {2, 0}});
}

LS_TEST(recover_makes_the_update_of_a_cp_of_mp_groups_that_was_not_heard)
{
    write_text();
    go_without_losses("train.no_losses.2@8",
                      (story){.workers = 4, .unit = 4, .set = "mesh.cp=2", .more = "mesh.tp=2"});
}

/* Experts that the ranks of cp groups divide. */
LS_TEST(recover_takes_experts_from_another_cp)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 2,
                              .experts = true,
                              .set = "mesh.ep=2",
                              .more = "mesh.cp=2",
                              .at = {6, 13},
                              .victim = {1, 0}});
}

/* One model: nobody else has the columns of these experts, or the stage with them. */
LS_TEST(recover_loads_columns_of_experts_that_nobody_has)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 4,
                              .experts = true,
                              .set = "mesh.ep=2",
                              .more = "mesh.tp=2",
                              .from_disk = 1,
                              .at = {8},
                              .victim = {2}});
}

LS_TEST(recover_loads_a_stage_of_experts_that_nobody_has)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 4,
                              .experts = true,
                              .set = "mesh.ep=2",
                              .more = "mesh.pp=2",
                              .from_disk = 1,
                              .at = {8},
                              .victim = {3}});
}

LS_TEST(recover_takes_columns_of_experts_from_their_replica)
{
    compare_same_part((story){.workers = 8,
                              .restarts = 1,
                              .unit = 4,
                              .experts = true,
                              .set = "mesh.ep=2",
                              .more = "mesh.tp=2",
                              .at = {8},
                              .victim = {6}});
}

/* Each rank divides what is no expert once more with those who have others. */
LS_TEST(recover_takes_moments_of_experts_from_buddies)
{
    compare_same_part((story){.workers = 4,
                              .restarts = 1,
                              .unit = 2,
                              .experts = true,
                              .set = "mesh.ep=2",
                              .more = "mesh.zero=1",
                              .at = {6, 13},
                              .victim = {3, 0}});
}

LS_TEST(recover_takes_moments_of_stages_with_experts_from_buddies)
{
    compare_same_part((story){.workers = 8,
                              .restarts = 1,
                              .unit = 4,
                              .experts = true,
                              .set = "mesh.ep=2",
                              .more = "mesh.pp=2",
                              .also = "mesh.zero=1",
                              .at = {8},
                              .victim = {5}});
}

LS_TEST(recover_loads_moments_of_experts_that_nobody_has)
{
    compare_same_part((story){.workers = 2,
                              .restarts = 1,
                              .unit = 2,
                              .experts = true,
                              .set = "mesh.ep=2",
                              .more = "mesh.zero=1",
                              .from_disk = 1,
                              .at = {8},
                              .victim = {1}});
}

LS_TEST(recover_makes_the_update_of_a_buddy_of_experts_that_was_not_heard)
{
    write_text();
    go_without_losses(
        "train.no_losses.1@8",
        (story){
            .workers = 4, .unit = 2, .experts = true, .set = "mesh.ep=2", .more = "mesh.zero=1"});
}

/* --- a mesh that was chosen ------------------------------------------------------------------- */

LS_TEST(recover_keeps_the_mesh_that_was_chosen)
{
    compare(
        (story){.workers = 3, .restarts = 1, .set = "mesh=auto", .at = {6, 13}, .victim = {1, 0}});
}

/* The agent hears from reports that ranks belong together. */
LS_TEST(recover_keeps_a_chosen_pipeline_with_a_pipeline_less)
{
    compare((story){.workers = 4,
                    .restarts = 0,
                    .left = 2,
                    .set = "mesh=auto",
                    .more = "mesh.pp=2",
                    .also = "mesh.zero=0",
                    .at = {6},
                    .victim = {2}});
}
