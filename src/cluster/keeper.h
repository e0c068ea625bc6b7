/* keeper.h -- the process that holds the workers, so that nothing of them outlives the agent.
 *
 * The agent forks a keeper, and the keeper starts the workers. Both are subreapers:
 *
 *     agent ── keeper ──┬── worker 0 ── whatever it starts
 *                       └── worker 1 ── ...
 *
 *   - the agent is killed: the keeper sees it (pidfd) and kills everything below itself;
 *   - the keeper is killed: the workers die with it (parent-death signal), and what they had
 * started becomes the agent's, which kills it (ls_keeper_sweep);
 *   - a worker ends: the keeper reaps it and says so; its children become the keeper's.
 * A process that puts itself into the background, into another session or process group does not
 * escape. Only who kills agent and keeper at the same time can leave grandchildren behind.
 *
 * To be used by one thread, which must live as long as the keeper is open. */
#pragma once
#include "base/err.h"
#include "cluster/spawn.h"

LS_C_BEGIN

typedef struct ls_keeper {
    pid_t pid;        /* 0: none */
    int fd;           /* orders and news; poll it for reading */
    bool made_reaper; /* this process was no subreaper before */
} ls_keeper;

typedef enum ls_keeper_kind {
    LS_KEEPER_STARTED, /* worker, pid */
    LS_KEEPER_REFUSED, /* worker, stage, error: it could not be started; it ends with 127 */
    LS_KEEPER_ENDED,   /* worker, status as of waitpid() */
    LS_KEEPER_GONE,    /* left: processes that could not be killed; the keeper is ending */
    LS_KEEPER_LOST     /* the keeper itself was killed, and the workers with it */
} ls_keeper_kind;

typedef struct ls_keeper_news {
    ls_keeper_kind kind;
    int worker;
    pid_t pid;
    int stage, error; /* ls_spawn_stage, errno */
    int status;
    int left;
} ls_keeper_news;

/* Fork the keeper, which starts all of them at once. The plans are borrowed for this call only.
 * again: the keeper keeps their descriptors, so that a worker that ended can be started again. */
ls_status ls_keeper_open(ls_keeper *keeper, const ls_spawn *spawns, int count, bool again);

/* Start a worker again that has ended; LS_KEEPER_STARTED follows. */
void ls_keeper_restart(ls_keeper *keeper, int worker);

/* Send a signal to the process group of one worker. */
void ls_keeper_signal_one(ls_keeper *keeper, int worker, int signal);

/* Send a signal to the process groups of all workers that still run. */
void ls_keeper_signal(ls_keeper *keeper, int signal);

/* Kill everything below the keeper and let it end; LS_KEEPER_GONE follows within seconds. */
void ls_keeper_finish(ls_keeper *keeper);

/* The next news, without waiting; false when there is none yet. */
bool ls_keeper_next(ls_keeper *keeper, ls_keeper_news *news_out);

/* After LS_KEEPER_LOST: kill children of this process that belong to the job: those in a session
 * that a worker's pid names, or with mark ("NAME=VALUE") in their environment. Returns how many
 * are left at the deadline. */
int ls_keeper_sweep(const ls_keeper *keeper, const pid_t *workers, int count, const char *mark,
                    int64_t deadline_ns);

/* Kill what is left, reap the keeper. Safe on a keeper that is not open. */
void ls_keeper_close(ls_keeper *keeper);

LS_C_END
