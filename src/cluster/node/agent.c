/* agent.c -- one job on one node, from the first fork to the last zombie.
 *
 *   state   what is going on                    leaves it
 *   RUN     workers run, none has failed        answer_failures() -> SETTLE or STOP;
 *                                               on_signal() -> ASKED;
 *                                               on_outside() -> STOP or ASKED
 *   SETTLE  a rank failed because of another,   answer_failures(), when it is -> STOP;
 *           which is not yet seen               on_time(), after SETTLE_MS -> STOP
 *   ASKED   the user's signal was passed on     on_signal(), the second -> KILL;
 *                                               answer_failures(), other failures -> STOP
 *   STOP    SIGTERM was sent to all             on_time(), after the grace time -> KILL;
 *                                               on_signal() -> KILL
 *   KILL    SIGKILL was sent to all             on_time(), after KILL_S -> SWEEP
 *   SWEEP   no worker runs; the supervisor      on_news(): it is gone -> DONE;
 *           kills what they left                on_time(), after SWEEP_S -> DONE
 *   DONE    nothing of the job runs
 *
 * A death that heals (worker_channel.h) changes no state: the worker is started again, or the others go on
 * without it. Where a coordinator elsewhere decides, the worker is held until it has.
 * on_heal() -> STOP, when the job cannot heal any more.
 *
 * From every state but DONE: on_news(), when the last worker has ended -> SWEEP; when the
 * supervisor was killed -> DONE.
 *
 * Whose failure was first? Deaths that are seen in the same round of the loop cannot be ordered by
 * time, and none of them is the answer to a signal that was sent in that round. A rank that says it
 * failed because of a peer (LS_EPEER) is never the first when there is another; a signal comes
 * before an exit code, because crashes cause error exits and not the other way round; then the
 * lower rank. */
#include "cluster/node/agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/node/launcher_env.h"
#include "cluster/node/worker_env.h"
#include "cluster/node/supervisor.h"
#include "cluster/node/cpu_pinning.h"

enum {
    SETTLE_MS = 1000, /* on a busy machine the one that is blamed may die much later */
    TWICE_MS = 500,   /* a signal to a group or session may come twice */
    KILL_S = 10,
    SWEEP_S = 15,
    RANK_FILES = 6,
    OWN_FILES = 64,
    MARK = 48,
    OUTSIDE_MS = LS_WORKER_CHANNEL_LOOK_MS
};

typedef enum state { RUN, SETTLE, ASKED, STOP, KILL, SWEEP, DONE } state;

typedef struct worker {
    char label[32]; /* as in the prefix of its lines */
    char who[80];   /* as in messages */
    int rank;
    pid_t pid; /* 0: was not started */
    bool ended;
    bool healed; /* its end is no failure of the job */
    bool held;   /* whether it is, is not known yet */
    bool again;  /* it was started again */
    int code;    /* exit code or 128 + signal */
    int signal;  /* that killed it, or 0 */
    int round;   /* of the loop in which its end was seen */
    state when;  /* the state at the begin of that round */
    int64_t ended_ns;
    ls_error_channel *cause; /* owned; NULL: it sent none */
    ls_worker_env env;
} worker;

typedef struct job {
    const ls_agent_args *args;
    int n, running;
    worker *workers; /* owned */
    state state;
    int64_t deadline_ns; /* of the state */
    int64_t started_ns;
    int round;
    state before;                /* at the begin of the round */
    int asked;                   /* the signal that the user sent first; 0: none, */
    int64_t asked_ns;            /* and when */
    bool stopped, killed;        /* SIGTERM, SIGKILL was sent */
    bool must_stop, must_settle; /* a worker failed in this round */
    bool refused;
    ls_err_record refusal; /* why a worker could not be started */
    int left;
    bool supervisor_lost;
    bool told;             /* attend() said to end */
    ls_err_record outside; /* and why */
    char mark[MARK];       /* LINESHAFT_JOB=... */
    char path[PATH_MAX];
    ls_supervisor supervisor;
    ls_worker_logs *logs;
    ls_cpu_pinning pinning;
    int cause_fds[2];
    int signal_fd;
    sigset_t old_signals;
    bool signals_set;
    rlim_t old_files; /* soft limit to give back; 0: not changed */
    ls_spawn *spawns; /* owned */
    int *keep;        /* owned: n_keep descriptors for each worker */
    int n_keep;
} job;

/* --- before the start ------------------------------------------------------------------------- */

static ls_status check_number(const ls_agent_args *args)
{
    char why[96];

    if (args->workers < 1) {
        ls_fail(LS_EUSAGE, "a job needs at least 1 process on a node, not %d", args->workers);
        return LS_EUSAGE;
    }
    int most = ls_cpu_pinning_most(why, sizeof why);
    if (args->workers <= most)
        return LS_OK;
    ls_fail(LS_EUSAGE, "cannot start %d processes here: at most %d %s", args->workers, most, why);
    ls_err_hint("Use fewer, or more nodes.");
    return LS_EUSAGE;
}

/* Descriptors for many workers; they get the old limit back. */
static void raise_files(job *j)
{
    struct rlimit limit;
    rlim_t needed = (rlim_t)(OWN_FILES + RANK_FILES * j->n);

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed)
        return;
    rlim_t old = limit.rlim_cur;
    limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
        j->old_files = old;
}

/* A port that nobody has at the moment; 0 when there is none. */
static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;

    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 &&
        getsockname(fd, (struct sockaddr *)&at, &len) == 0)
        port = ntohs(at.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static void set_mark(job *j)
{
    uint64_t random = 0;

    if (getrandom(&random, sizeof random, 0) < 0)
        random = (uint64_t)ls_time_now_ns();
    snprintf(j->mark, sizeof j->mark, "LINESHAFT_JOB=%d.%016llx", (int)getpid(),
             (unsigned long long)random);
}

static void set_settings(worker *w, const char *const *settings)
{
    for (; settings && *settings; settings++) {
        const char *equals = strchr(*settings, '=');
        char name[64];
        LS_BUG_IF(!equals || equals - *settings >= (ptrdiff_t)sizeof name,
                  "\"%s\" is no NAME=VALUE", *settings);
        snprintf(name, sizeof name, "%.*s", (int)(equals - *settings), *settings);
        ls_worker_env_set(&w->env, name, "%s", equals + 1);
    }
}

static void set_rank_variables(const job *j, worker *w, int local, int port)
{
    const ls_agent_args *a = j->args;
    const struct {
        const char *name, *other;
        int value;
    } variables[] = {
        {"RANK", "LINESHAFT_RANK", w->rank},
        {"WORLD_SIZE", "LINESHAFT_WORLD", a->world ? a->world : a->workers},
        {"LOCAL_RANK", "LINESHAFT_LOCAL_RANK", local},
        {"LOCAL_WORLD_SIZE", "LINESHAFT_LOCAL_WORLD", a->workers},
        {"NODE_RANK", "LINESHAFT_NODE", a->node},
    };

    for (size_t i = 0; i < LS_COUNT(variables); i++) {
        ls_worker_env_set_number(&w->env, variables[i].name, variables[i].value);
        ls_worker_env_set_number(&w->env, variables[i].other, variables[i].value);
    }
    ls_worker_env_set_number(&w->env, "GROUP_RANK", a->node); /* the node, as torchrun calls it */
    ls_worker_env_set_number(&w->env, "LINESHAFT_NODES", a->nodes ? a->nodes : 1);
    ls_worker_env_set(&w->env, "LINESHAFT_GENERATION", "%llu", (unsigned long long)a->generation);
    ls_worker_env_set(&w->env, "MASTER_ADDR", "%s", a->master_addr ? a->master_addr : "127.0.0.1");
    ls_worker_env_set_number(&w->env, "MASTER_PORT", port);
}

/* For ls_launcher_env_task(), in the ranks of this agent. */
static void set_task_variables(worker *w)
{
    ls_launcher_env outer;
    bool known = ls_launcher_env_find(&outer) == LS_OK;
    bool is_task = known && outer.world > 1 && strcmp(outer.launcher, "lineshaft") != 0;

    if (!known)
        ls_err_clear();
    ls_worker_env_set_number(&w->env, "LINESHAFT_LOCAL_TASK",
                             is_task ? ls_max_i64(0, outer.local_rank) : 0);
    ls_worker_env_set_number(&w->env, "LINESHAFT_LOCAL_TASKS",
                             is_task ? ls_max_i64(1, outer.local_world) : 1);
}

/* Descriptors keep their numbers in the worker, so the environment can name them. The last of those
 * kept is the error channel, which all workers share. */
static ls_status set_environment(job *j, int i, int port)
{
    const ls_agent_args *a = j->args;
    worker *w = &j->workers[i];

    ls_worker_env_init(&w->env);
    if (!a->hosts) {
        set_rank_variables(j, w, i, port);
        set_task_variables(w);
    }
    if (!a->anywhere) {
        ls_worker_env_set_number(&w->env, "LINESHAFT_THREADS", j->pinning.threads);
        if (!ls_worker_env_has(&w->env, "OMP_NUM_THREADS"))
            ls_worker_env_set_number(&w->env, "OMP_NUM_THREADS", j->pinning.threads);
    }
    ls_worker_env_set(&w->env, "LINESHAFT_JOB", "%s", strchr(j->mark, '=') + 1);
    if (!a->hosts) /* a host's errors are its own */
        ls_worker_env_set_number(&w->env, "LINESHAFT_CAUSE_FD", j->cause_fds[1]);
    for (int k = 0; k < a->n_fds; k++) {
        const ls_agent_fd *f = &a->fds[k];
        int fd = f->each ? f->each[i] : f->fd;
        char name[64];
        LS_BUG_IF(fd < 3, "descriptor %d of \"%s\" cannot be inherited", fd, f->name);
        snprintf(name, sizeof name, "LINESHAFT_FD_%s", f->name);
        ls_worker_env_set_number(&w->env, name, fd);
        j->keep[i * j->n_keep + k] = fd;
    }
    j->keep[i * j->n_keep + a->n_fds] = j->cause_fds[1];
    set_settings(w, a->settings);
    if (a->hosts)
        set_settings(w, a->hosts[i].settings);
    return ls_worker_env_status(&w->env);
}

static void name_worker(const job *j, int i)
{
    const ls_agent_args *a = j->args;
    worker *w = &j->workers[i];
    char host[40] = "";

    w->rank = a->first_rank + i;
    if (a->hosts) {
        snprintf(w->label, sizeof w->label, "%s", a->hosts[i].name);
        snprintf(w->who, sizeof w->who, "%s", a->hosts[i].name);
        return;
    }
    snprintf(w->label, sizeof w->label, "%d", w->rank);
    snprintf(w->who, sizeof w->who, "rank %d", w->rank);
    if (a->nodes > 1 && gethostname(host, sizeof host - 1) == 0)
        snprintf(w->who, sizeof w->who, "rank %d on %s", w->rank, host);
}

static ls_status open_logs(job *j)
{
    const ls_agent_args *a = j->args;
    const char **labels = ls_mem_array((size_t)j->n, sizeof *labels);

    if (!labels)
        return LS_ENOMEM;
    for (int i = 0; i < j->n; i++)
        labels[i] = j->workers[i].label;
    ls_status st =
        ls_worker_logs_open(&j->logs, &(ls_worker_logs_args){
                                          .workers = j->n,
                                          .out_fd = a->out_fd ? a->out_fd : STDOUT_FILENO,
                                          .err_fd = a->err_fd ? a->err_fd : STDERR_FILENO,
                                          .labels = labels,
                                          .folder = a->log_dir,
                                          .stem = a->hosts ? "" : "rank-",
                                      });
    ls_mem_free(labels);
    return st;
}

static ls_status plan_workers(job *j)
{
    ls_status st = LS_OK;
    const ls_agent_args *a = j->args;
    int port = a->master_port || a->hosts ? a->master_port : free_port();

    for (int i = 0; i < j->n; i++) {
        LS_TRY(st, set_environment(j, i, port), out);
        j->spawns[i] = (ls_spawn){
            .path = j->path,
            .argv = a->command,
            .envp = j->workers[i].env.list,
            .keep = j->keep + i * j->n_keep,
            .n_keep = j->n_keep,
            .mask = j->pinning.masks ? &j->pinning.masks[i] : NULL,
            .most_files = j->old_files,
            .net_fd = a->hosts ? a->hosts[i].net_fd : -1,
            .host = a->hosts ? a->hosts[i].name : NULL,
        };
        ls_worker_logs_ends(j->logs, i, &j->spawns[i].out_fd, &j->spawns[i].err_fd);
    }
out:
    return st;
}

/* Everything that can fail without a process, in the order in which the user can act on it: the number
 * of workers, the command, then memory, cores, pipes and files. */
static ls_status prepare(job *j)
{
    ls_status st = LS_OK;
    const ls_agent_args *a = j->args;

    LS_TRY(st, check_number(a), out);
    if (strcmp(a->command[0], LS_AGENT_SELF) == 0)
        snprintf(j->path, sizeof j->path, "%s", LS_AGENT_SELF);
    else
        LS_TRY(st, ls_spawn_find(a->command[0], j->path, sizeof j->path), out);
    j->n = a->workers;
    raise_files(j);
    set_mark(j);
    j->workers = ls_mem_array((size_t)j->n, sizeof *j->workers);
    j->spawns = ls_mem_array((size_t)j->n, sizeof *j->spawns);
    j->n_keep = a->n_fds + 1;
    j->keep = ls_mem_array((size_t)j->n * (size_t)j->n_keep, sizeof *j->keep);
    if (!j->workers || !j->spawns || !j->keep) {
        st = LS_ENOMEM;
        goto out;
    }
    for (int i = 0; i < j->n; i++)
        name_worker(j, i);
    if (!a->anywhere)
        LS_TRY(st, ls_cpu_pinning_init(&j->pinning, j->n), out);
    LS_TRY(st, ls_error_channel_pair(j->cause_fds), out);
    LS_TRY(st, open_logs(j), out);
    LS_TRY(st, plan_workers(j), out);
out:
    return st;
}

/* A signal that was ignored when we came (nohup) stays ignored. */
static ls_status take_signals(job *j)
{
    static const int wanted[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    struct sigaction now;
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < LS_COUNT(wanted); i++)
        if (sigaction(wanted[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(&set, wanted[i]);
    j->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (j->signal_fd < 0)
        return ls_fail_sys(LS_EIO, "cannot receive signals by a descriptor");
    pthread_sigmask(SIG_BLOCK, &set, &j->old_signals);
    j->signals_set = true;
    return LS_OK;
}

static ls_status start(job *j)
{
    ls_status st = LS_OK;

    LS_TRY(st, take_signals(j), out);
    j->started_ns = ls_time_now_ns();
    j->running = j->n;
    LS_TRY(st, ls_supervisor_open(&j->supervisor, j->spawns, j->n, j->args->channel), out);
    if (j->args->channel)
        ls_worker_channel_close_ends(j->args->channel);
    LS_TRY(st, ls_worker_logs_begin(j->logs), out);
    close(j->cause_fds[1]);
    j->cause_fds[1] = -1;
out:
    return st;
}

/* --- while it runs ---------------------------------------------------------------------------- */

static void job_check(const job *j)
{
    LS_BUG_IF(j->running < 0 || j->running > j->n, "%d of %d workers run", j->running, j->n);
    LS_BUG_IF(j->state == ASKED && !j->asked, "asked by nobody");
    LS_BUG_IF(j->state == KILL && !j->killed, "nobody was killed");
    LS_BUG_IF((j->state == STOP || j->state == KILL || j->state == SWEEP || j->state == SETTLE) &&
                  j->deadline_ns == LS_NO_DEADLINE,
              "a state without an end");
}

/* What entering a state sends to all workers, and what follows when its time is over. */
static const struct {
    int signal;   /* 0: none */
    int limit_ms; /* 0: none */
    state next;
} rules[] = {
    [SETTLE] = {.limit_ms = SETTLE_MS, .next = STOP},
    [STOP] = {.signal = SIGTERM, .limit_ms = LS_AGENT_GRACE_S * 1000, .next = KILL},
    [KILL] = {.signal = SIGKILL, .limit_ms = KILL_S * 1000, .next = SWEEP},
    [SWEEP] = {.limit_ms = SWEEP_S * 1000, .next = DONE},
    [DONE] = {0},
};

/* Take an arrow of the table above, with what belongs to it. */
static void enter(job *j, state to)
{
    int64_t limit_ns = rules[to].limit_ms * LS_NS_PER_MS;
    int signal = to == ASKED ? j->asked : rules[to].signal;

    if (to == STOP && j->args->grace_ns)
        limit_ns = j->args->grace_ns;
    j->state = to;
    j->deadline_ns = limit_ns ? ls_time_now_ns() + limit_ns : LS_NO_DEADLINE;
    j->stopped |= to == STOP;
    j->killed |= to == KILL;
    if (j->args->channel && (to == STOP || to == KILL || to == SWEEP))
        ls_worker_channel_finish(j->args->channel);
    if (signal)
        ls_supervisor_signal(&j->supervisor, LS_SUPERVISOR_ALL, signal);
    if (to == STOP)
        ls_supervisor_signal(&j->supervisor, LS_SUPERVISOR_ALL, SIGCONT); /* a stopped one hears */
    if (to == SWEEP)
        ls_supervisor_finish(&j->supervisor);
    job_check(j);
}

static ls_err_record describe(const job *j, const worker *w);

static void tell(const job *j, ls_agent_kind kind, const worker *w)
{
    ls_agent_event event = {.kind = kind};
    ls_err_record why;

    if (!j->args->hook)
        return;
    if (w) {
        event.worker = (int)(w - j->workers);
        event.rank = w->rank;
        event.pid = w->pid;
        event.code = w->code;
    }
    if (kind == LS_AGENT_ENDED && w->code != 0) {
        why = describe(j, w);
        event.why = &why;
    }
    j->args->hook(j->args->context, &event);
}

static bool blames_peer(const worker *w)
{
    return w->cause && w->cause->record.code == LS_EPEER;
}

/* It was asked to stop, and could not save. */
static bool left(const job *j, const worker *w)
{
    return j->args->saves && w->code == ls_err_exit_code(LS_EUNSAVED);
}

/* Ended as a worker does that was asked to. */
static bool ended_as_told(const job *j, const worker *w)
{
    if (w->code == 0 || w->when == STOP || w->when == KILL || w->when == SWEEP)
        return true;
    return w->when == ASKED && (w->code == 128 + j->asked || w->code == 128 + SIGINT ||
                                w->code == 128 + SIGTERM || w->signal == SIGKILL || left(j, w));
}

static void fail(job *j, const worker *w)
{
    if (w->healed || ended_as_told(j, w) || (j->args->go_on && !j->refused))
        return;
    j->must_stop |= j->state == ASKED || !blames_peer(w);
    j->must_settle |= j->state == RUN;
}

/* Nothing has ended the job yet. */
static bool goes_on(const job *j)
{
    return j->state == RUN || j->state == SETTLE || j->state == ASKED;
}

/* What failures of this round lead to. Not at once: a worker that dies of our signal must not be
 * seen in the round of the failure. */
static void answer_failures(job *j)
{
    if (goes_on(j)) {
        if (j->must_stop)
            enter(j, STOP);
        else if (j->must_settle && j->state == RUN)
            enter(j, SETTLE);
    }
    j->must_stop = j->must_settle = false;
}

/* What becomes of a worker that has ended; true: its place is filled again. */
static bool obey_verdict(job *j, worker *w, ls_view_verdict verdict)
{
    w->healed = verdict != LS_VIEW_STOP;
    w->held = verdict == LS_VIEW_LATER;
    if (verdict != LS_VIEW_RESTART)
        return false;
    ls_mem_free(w->cause);
    w->cause = NULL;
    w->ended = w->healed = false;
    w->again = true;
    w->code = w->signal = 0;
    w->pid = 0;
    j->running++;
    ls_supervisor_restart(&j->supervisor, (int)(w - j->workers));
    return true;
}

/* Its end does not end the job; true: the place is filled again. */
static bool heal(job *j, worker *w)
{
    int i = (int)(w - j->workers);
    const ls_view_end end = {.signal = w->signal,
                             .code = w->code,
                             .error = w->cause ? &w->cause->record : NULL,
                             .asked = j->asked != 0};
    ls_err_record why;

    if (!j->args->channel || !goes_on(j))
        return false;
    if (w->code == 0 || w->code == 128 + SIGINT || left(j, w)) { /* or stopped, as asked to */
        ls_worker_channel_left(j->args->channel, i);
        return false;
    }
    why = describe(j, w);
    return obey_verdict(j, w, ls_worker_channel_ended(j->args->channel, i, &end, why.text));
}

/* Whether a worker has ended of which nobody knows yet what becomes of it. */
static bool holds(const job *j)
{
    for (int i = 0; i < j->n && goes_on(j); i++)
        if (j->workers[i].held)
            return true;
    return false;
}

/* The last one has ended. */
static void end_all(job *j)
{
    if (j->running == 0 && j->state != SWEEP && j->state != DONE && !holds(j))
        enter(j, SWEEP);
}

/* Example, ranks 0 and 1 of a job that does not heal; rank 1 is killed, rank 0 loses its connection:
 *
 *     round 7   rank 1: signal 9         a failure: must_stop -> STOP, SIGTERM to all
 *     round 8   rank 0: LS_EPEER         blames a peer, and came later: "others" of the result
 *
 * In the other order rank 0's end leads to SETTLE, which waits for the one that it blames. */
static void end_worker(job *j, worker *w, int status)
{
    if (w->ended)
        return;
    w->ended = true;
    w->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    w->code = w->signal ? 128 + w->signal : WEXITSTATUS(status);
    w->round = j->round;
    w->when = j->before;
    w->ended_ns = ls_time_now_ns();
    j->running--;
    tell(j, LS_AGENT_ENDED, w);
    if (heal(j, w))
        return;
    if (w->code != 0)
        fail(j, w);
    end_all(j);
}

static void take_causes(job *j)
{
    ls_error_channel cause;

    while (j->cause_fds[0] >= 0 && ls_error_channel_receive(j->cause_fds[0], &cause)) {
        int i = cause.rank - j->args->first_rank;
        if (j->args->hosts || i < 0 || i >= j->n || j->workers[i].cause || j->workers[i].ended)
            continue;
        ls_error_channel *copy = ls_mem_alloc(sizeof *copy);
        if (copy) /* without it the exit code is shown */
            *copy = cause;
        j->workers[i].cause = copy;
    }
}

/* The supervisor was killed, and the workers with it: what they had started is ours now. */
static void supervisor_lost(job *j)
{
    pid_t *pids = ls_mem_array((size_t)j->n, sizeof *pids);

    j->supervisor_lost = j->state != SWEEP;
    for (int i = 0; i < j->n; i++) {
        if (pids)
            pids[i] = j->workers[i].pid;
        j->state = j->before = KILL; /* their ends say nothing */
        j->killed = true;
        j->deadline_ns = 0;
        end_worker(j, &j->workers[i], SIGKILL);
    }
    j->left = ls_supervisor_sweep(&j->supervisor, pids, pids ? j->n : 0, j->mark,
                                  ls_time_now_ns() + 5 * LS_NS_PER_S);
    ls_mem_free(pids);
    enter(j, DONE);
}

static void on_news(job *j)
{
    ls_supervisor_news news;

    while (j->state != DONE && ls_supervisor_next(&j->supervisor, &news)) {
        worker *w = &j->workers[news.worker];
        switch (news.kind) {
        case LS_SUPERVISOR_STARTED:
            w->pid = news.pid;
            if (j->args->channel)
                ls_worker_channel_started(j->args->channel, news.worker, news.pid);
            tell(j, LS_AGENT_STARTED, w);
            break;
        case LS_SUPERVISOR_REFUSED:
            if (w->again) /* its end follows, and it is lost */
                break;
            if (!j->refused) {
                ls_spawn_explain(&j->spawns[news.worker], (ls_spawn_stage)news.stage, news.error);
                j->refusal = *ls_err_last();
            }
            j->refused = true;
            break;
        case LS_SUPERVISOR_ENDED:
            end_worker(j, w, news.status);
            break;
        case LS_SUPERVISOR_GONE:
            j->left = news.left;
            enter(j, DONE);
            break;
        case LS_SUPERVISOR_LOST:
            supervisor_lost(j);
            break;
        }
    }
}

/* A signal to the group and to its leader is one request, not two. */
static bool is_echo(const job *j)
{
    return j->args->saves && j->asked_ns > 0 &&
           ls_time_now_ns() - j->asked_ns < TWICE_MS * LS_NS_PER_MS;
}

static void on_signal(job *j)
{
    struct signalfd_siginfo info;

    while (read(j->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        int signal = (int)info.ssi_signo;
        if ((signal == SIGUSR1 && !j->args->saves) || signal == SIGUSR2) {
            ls_supervisor_signal(&j->supervisor, LS_SUPERVISOR_ALL, signal);
        } else if (j->state == RUN || j->state == SETTLE) {
            j->asked = signal;
            j->asked_ns = ls_time_now_ns();
            enter(j, ASKED);
            tell(j, LS_AGENT_ASKED, NULL);
        } else if ((j->state == ASKED || j->state == STOP) && !is_echo(j)) {
            enter(j, KILL);
        }
    }
}

static void on_outside(job *j)
{
    ls_status st = j->args->attend ? j->args->attend(j->args->context) : LS_OK;

    if (st == LS_OK || j->told)
        return;
    j->told = true;
    j->outside = *ls_err_last();
    if (j->state == RUN && st == LS_EINTR) {
        j->asked = SIGTERM;
        enter(j, ASKED);
    } else if (j->state == RUN || j->state == SETTLE) {
        enter(j, STOP);
    }
}

/* Healing may need a worker killed, settle one that ended, or give up. */
static void on_heal(job *j)
{
    ls_worker_channel_order order = {.task = LS_WORKER_CHANNEL_NOTHING};

    do {
        if (!j->args->channel || !goes_on(j))
            break;
        order = ls_worker_channel_attend(j->args->channel);
        worker *w = &j->workers[order.worker];
        if (order.task == LS_WORKER_CHANNEL_KILL) {
            ls_supervisor_signal(&j->supervisor, order.worker, SIGKILL);
        } else if (order.task == LS_WORKER_CHANNEL_VERDICT) {
            w->held = false;
            if (!obey_verdict(j, w, order.verdict))
                fail(j, w);
        } else if (order.task == LS_WORKER_CHANNEL_STOP) {
            j->told = true;
            j->outside = *ls_err_last();
            enter(j, STOP);
        }
    } while (order.task != LS_WORKER_CHANNEL_NOTHING);
    answer_failures(j);
    end_all(j); /* even a worker that was held when the job was ended */
}

static void on_time(job *j)
{
    if (j->deadline_ns == LS_NO_DEADLINE || ls_time_now_ns() < j->deadline_ns)
        return;
    if (j->state == SWEEP)
        j->left = j->running > 0 ? j->running : 1;
    enter(j, rules[j->state].next);
}

/* Until the deadline; now and then in between for those outside, whose messages may wait. */
static int poll_ms(const job *j)
{
    bool looks = j->args->attend || j->args->channel;
    int64_t most = looks ? OUTSIDE_MS : 60000;

    if (j->deadline_ns == LS_NO_DEADLINE)
        return looks ? (int)most : -1;
    int64_t ms = (j->deadline_ns - ls_time_now_ns()) / LS_NS_PER_MS + 1;
    return ms < 0 ? 0 : ms > most ? (int)most : (int)ms;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void run(job *j)
{
    enter(j, RUN);
    while (j->state != DONE) {
        struct pollfd p[] = {{.fd = j->supervisor.fd, .events = POLLIN},
                             {.fd = j->cause_fds[0], .events = POLLIN},
                             {.fd = j->signal_fd, .events = POLLIN},
                             {.fd = j->args->attend ? j->args->watch_fd : -1, .events = POLLIN},
                             {.fd = j->args->channel ? ls_worker_channel_fd(j->args->channel) : -1,
                              .events = POLLIN}};
        poll(p, LS_COUNT(p), poll_ms(j));
        j->round++;
        j->before = j->state;
        /* A record comes before the end of its sender. */
        take_causes(j);
        if (p[1].revents & POLLHUP) /* nobody can send any more: it would be ready for ever */
            close_fd(&j->cause_fds[0]);
        on_news(j);
        answer_failures(j);
        on_signal(j);
        on_outside(j);
        on_heal(j);
        on_time(j);
    }
}

/* Everything is printed, however slow the reader is; a signal ends our patience. */
static ls_status end_logs(job *j)
{
    ls_worker_logs_finish(j->logs);
    for (;;) {
        struct signalfd_siginfo info;
        struct pollfd p[] = {{.fd = ls_worker_logs_done_fd(j->logs), .events = POLLIN},
                             {.fd = j->signal_fd, .events = POLLIN}};
        if (poll(p, 2, -1) < 0 && errno == EINTR)
            continue;
        if (p[0].revents || !p[1].revents ||
            read(j->signal_fd, &info, sizeof info) != (ssize_t)sizeof info ||
            (info.ssi_signo != SIGUSR1 && info.ssi_signo != SIGUSR2))
            break;
    }
    return ls_worker_logs_end(j->logs);
}

/* --- afterwards ------------------------------------------------------------------------------- */

static bool before(const worker *a, const worker *b)
{
    if (blames_peer(a) != blames_peer(b))
        return !blames_peer(a);
    if (a->round != b->round)
        return a->round < b->round;
    return a->signal && !b->signal;
}

static const worker *first_failure(const job *j)
{
    const worker *first = NULL;

    for (int i = 0; i < j->n; i++) {
        const worker *w = &j->workers[i];
        if ((!w->healed || w->held) && !ended_as_told(j, w) && (!first || before(w, first)))
            first = w;
    }
    return first;
}

static void signal_hint(int signal)
{
    if (signal == SIGKILL)
        ls_err_hint("Often the kernel does this when memory runs out: look at dmesg.");
    else if (signal == SIGBUS)
        ls_err_hint("Often a file or /dev/shm that became too small under a mapping.");
    else if (signal == SIGILL)
        ls_err_hint("The program was built for another kind of CPU.");
}

static ls_err_record describe(const job *j, const worker *w)
{
    double seconds = (double)(w->ended_ns - j->started_ns) / (double)LS_NS_PER_S;

    if (w->cause) {
        const ls_err_record *r = &w->cause->record;
        ls_fail(r->code, "%s: %s", w->who, r->text);
        ls_err_hint("%s", r->hint);
    } else if (w->signal) {
        ls_fail(LS_EFAIL, "%s was killed by signal %d (%s) after %.1f s", w->who, w->signal,
                strsignal(w->signal), seconds);
        signal_hint(w->signal);
    } else {
        ls_fail(LS_EFAIL, "%s ended with exit code %d after %.1f s", w->who, w->code, seconds);
    }
    ls_err_record record = *ls_err_last();
    if (w->cause)
        memcpy(record.doing, w->cause->record.doing, sizeof record.doing);
    return record;
}

static void take_tail(const job *j, ls_agent_result *result)
{
    ls_str lines;

    ls_str_init(&lines);
    ls_worker_logs_tail(j->logs, result->worker, &lines);
    snprintf(result->last_lines, sizeof result->last_lines, "%s", lines.p);
    ls_str_release(&lines);
}

/* What the first worker that could do so said when it was asked to stop: where its work is saved,
 * how to go on. NULL: none said anything. */
static const ls_err_record *last_words(const job *j)
{
    for (int i = 0; i < j->n; i++) {
        const ls_error_channel *cause = j->workers[i].cause;
        if (cause && (cause->record.code == LS_EINTR || cause->record.code == LS_EUNSAVED))
            return &cause->record;
    }
    return NULL;
}

/* Nobody failed; they were asked to stop. */
static void tell_request(const job *j)
{
    bool lost = j->killed;

    for (int i = 0; i < j->n; i++)
        lost |= left(j, &j->workers[i]);
    if (!lost || !j->args->saves) {
        ls_fail(LS_EINTR, "stopped on request (SIG%s)", sigabbrev_np(j->asked));
        return;
    }
    ls_fail(LS_EUNSAVED, "stopped on request (SIG%s) %s", sigabbrev_np(j->asked),
            j->killed ? "and then at once: nothing was saved"
                      : "without saving: the time that was given is over");
    ls_err_hint("Run the same command again: it goes on from the checkpoint before.");
}

/* What the launcher shows: the first of the supervisor's own death, a reason from outside that our
 * workers only followed, the first failure here, a request to stop. */
static void conclude(const job *j, ls_agent_result *result)
{
    const worker *first = first_failure(j);
    const ls_err_record *words = last_words(j);

    *result = (ls_agent_result){.worker = -1, .left = j->left, .stopped = j->stopped};
    for (int i = 0; i < j->n; i++) {
        const worker *w = &j->workers[i];
        result->others += w != first && w->code != 0 && (!w->healed || w->held);
        result->killed += w != first && j->killed && w->signal == SIGKILL && w->when == KILL;
    }
    if (j->supervisor_lost) {
        ls_fail(LS_EFAIL, "the supervisor of the ranks (pid %d, \"ls-supervisor\") was killed",
                (int)j->supervisor.pid);
        result->cause = *ls_err_last();
        result->exit_code = 128 + SIGKILL;
    } else if (j->told && (!first || blames_peer(first))) {
        /* The ranks here failed because of the failure that was reported from outside. */
        result->cause = j->outside.code == LS_EINTR && words ? *words : j->outside;
        result->exit_code = ls_err_exit_code(result->cause.code);
    } else if (first) {
        result->cause = describe(j, first);
        result->exit_code = first->code;
        result->worker = (int)(first - j->workers);
        snprintf(result->label, sizeof result->label, "%s", first->label);
        take_tail(j, result);
    } else if (j->asked) {
        tell_request(j);
        result->cause = words ? *words : *ls_err_last();
        result->exit_code = ls_err_exit_code(result->cause.code);
    }
}

static void release(job *j)
{
    ls_supervisor_close(&j->supervisor);
    ls_worker_logs_free(j->logs);
    ls_cpu_pinning_release(&j->pinning);
    for (int i = 0; j->workers && i < j->n; i++) {
        ls_worker_env_release(&j->workers[i].env);
        ls_mem_free(j->workers[i].cause);
    }
    ls_mem_free(j->workers);
    ls_mem_free(j->spawns);
    ls_mem_free(j->keep);
    close_fd(&j->cause_fds[0]);
    close_fd(&j->cause_fds[1]);
    close_fd(&j->signal_fd);
    if (j->signals_set)
        pthread_sigmask(SIG_SETMASK, &j->old_signals, NULL);
    struct rlimit limit;
    if (j->old_files && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = j->old_files;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    ls_mem_free(j);
}

ls_status ls_agent_check(const ls_agent_args *args)
{
    char path[PATH_MAX];
    ls_status st = check_number(args);

    if (st == LS_OK && strcmp(args->command[0], LS_AGENT_SELF) != 0)
        st = ls_spawn_find(args->command[0], path, sizeof path);
    return st;
}

ls_status ls_agent_run(const ls_agent_args *args, ls_agent_result *result_out)
{
    ls_status st = LS_OK;
    job *j = ls_mem_alloc(sizeof *j);

    if (!j)
        return LS_ENOMEM;
    j->args = args;
    j->cause_fds[0] = j->cause_fds[1] = j->signal_fd = j->supervisor.fd = -1;
    LS_TRY(st, prepare(j), out);
    LS_TRY(st, start(j), out);
    run(j);
    st = end_logs(j);
    if (j->refused) {
        st = ls_err_adopt(&j->refusal);
        goto out;
    }
    ls_err_record unwritten = *ls_err_last();
    conclude(j, result_out);
    if (st != LS_OK && result_out->exit_code == 0) {
        ls_err_adopt(&unwritten);
        goto out;
    }
    if (st != LS_OK)
        ls_log(LS_LOG_WARN, "%s", unwritten.text);
    st = LS_OK;
out:
    release(j);
    return st;
}
