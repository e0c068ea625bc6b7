/* supervisor.h -- the process that holds the workers, so that nothing of them outlives the agent.
 *
 * The agent forks a supervisor, and the supervisor starts the workers. Both are subreapers:
 *
 *     agent ── supervisor ──┬── worker 0 ── whatever it starts
 *                           └── worker 1 ── ...
 *
 *   - the agent is killed: the supervisor sees it (pidfd) and kills everything below itself;
 *   - the supervisor is killed: the workers die with it (parent-death signal), and what they had
 *     started becomes the agent's, which kills it (ls_supervisor_sweep);
 *   - a worker ends: the supervisor reaps it and reports it; its children become the supervisor's.
 *
 * A process that puts itself into the background, into another session or process group does not
 * escape. Grandchildren are left behind only when agent and supervisor are killed at the same
 * time.
 *
 * To be used by one thread, which must live as long as the supervisor is open. */
#pragma once
#include "base/err.h"
#include "cluster/node/spawn.h"

LS_C_BEGIN

typedef struct ls_supervisor {
    pid_t pid;        /* 0: none */
    int fd;           /* orders and news; poll it for reading */
    bool made_reaper; /* this process was no subreaper before */
} ls_supervisor;

typedef enum ls_supervisor_kind {
    LS_SUPERVISOR_STARTED, /* worker, pid */
    LS_SUPERVISOR_REFUSED, /* worker, stage, error: it could not be started; it ends with 127 */
    LS_SUPERVISOR_ENDED,   /* worker, status as of waitpid() */
    LS_SUPERVISOR_GONE,    /* left: processes that could not be killed; the supervisor is ending */
    LS_SUPERVISOR_LOST     /* the supervisor itself was killed, and the workers with it */
} ls_supervisor_kind;

typedef struct ls_supervisor_news {
    ls_supervisor_kind kind;
    int worker;
    pid_t pid;
    int stage, error; /* ls_spawn_stage, errno */
    int status;
    int left;
} ls_supervisor_news;

/* Fork the supervisor, which starts all of them at once. The plans are borrowed for this call
 * only. again: the supervisor keeps their descriptors, so that a worker that ended can be started
 * again. */
ls_status ls_supervisor_open(ls_supervisor *supervisor, const ls_spawn *spawns, int count,
                             bool again);

/* Start a worker again that has ended; LS_SUPERVISOR_STARTED follows. */
void ls_supervisor_restart(ls_supervisor *supervisor, int worker);

/* Send a signal to the process group of a worker, or to those of all that still run. */
enum { LS_SUPERVISOR_ALL = -1 };
void ls_supervisor_signal(ls_supervisor *supervisor, int worker, int signal);

/* Kill everything below the supervisor and let it end; LS_SUPERVISOR_GONE follows within seconds.
 * */
void ls_supervisor_finish(ls_supervisor *supervisor);

/* The next news, without waiting; false when there is none yet. */
bool ls_supervisor_next(ls_supervisor *supervisor, ls_supervisor_news *news_out);

/* After LS_SUPERVISOR_LOST: kill children of this process that belong to the job: those in a
 * session that a worker's pid names, or with mark ("NAME=VALUE") in their environment. Returns
 * how many are left at the deadline. */
int ls_supervisor_sweep(const ls_supervisor *supervisor, const pid_t *workers, int count,
                        const char *mark, int64_t deadline_ns);

/* Kill what is left, reap the supervisor. Safe on a supervisor that is not open. */
void ls_supervisor_close(ls_supervisor *supervisor);

LS_C_END
