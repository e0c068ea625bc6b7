/* heal.h -- a job on one node that goes on when workers die: what agent and workers tell each
 * other.
 *
 *     worker -> agent    REPORT   who I am, what state I have; I wait for a view
 *                        READY    I am ready to train in this view
 *     agent -> worker    VIEW     generation, rank, ranks, base step, who has it; with it the
 *                                 memory that the ranks of this view share
 *                        END      the job is ending: do not wait
 *
 * One socket for each worker, inherited by its process and by the one that is started in its place;
 * messages carry a pid, and what was meant for a dead process is dropped. The rules are in view.h;
 * this is where they meet processes and time. Every message is answered by its order: a REPORT by
 * one VIEW or END. Who is alive and does not report within the patience is killed, and so counts as
 * dead, unless it is seen to compute; so is a process that was stopped (SIGSTOP) for that long. */
#pragma once
#include <sys/types.h>
#include "cluster/view.h"

LS_C_BEGIN

enum { LS_HEAL_CAUSE = 400 };

/* --- in a worker ------------------------------------------------------------------------------ */

/* A view as a worker gets it. */
typedef struct ls_heal_view {
    ls_view_plan plan; /* generation 0: there is no view, nobody heals */
    int rank;
    bool begun;                /* some view has trained: this is no start of the job */
    int64_t lost_ns;           /* when the view before was given up, by ls_time_now_ns() */
    char cause[LS_HEAL_CAUSE]; /* why; "" in the first view */
} ls_heal_view;

/* Whether this process has an agent that heals. */
bool ls_heal_has_agent(void);

/* Report, and wait for a view. board_fd_out: the ranks' shared memory, owned by the caller.
 * LS_EPEER: the job is ending. */
ls_status ls_heal_ask(const ls_view_report *report, ls_heal_view *view_out, int *board_fd_out);

/* Tell the agent that this rank is ready to train. */
void ls_heal_ready(void);

/* --- in the agent ----------------------------------------------------------------------------- */

typedef struct ls_heal ls_heal;

typedef struct ls_heal_args {
    int workers;
    ls_view_rules rules;
    int64_t patience_ns;
    /* The memory of so many ranks; fd_out stays the caller's until the next call. */
    ls_status (*make)(void *context, uint64_t generation, int ranks, int *fd_out);
    /* Break that memory: nobody may wait in it any longer. */
    void (*revoke)(void *context, const char *why);
    void *context;
} ls_heal_args;

/* What the agent has to do. */
typedef enum ls_heal_task { LS_HEAL_NOTHING, LS_HEAL_KILL, LS_HEAL_STOP } ls_heal_task;
typedef struct ls_heal_order {
    ls_heal_task task;
    int worker; /* to kill */
} ls_heal_order;

ls_status ls_heal_open(ls_heal **heal_out, const ls_heal_args *args);
void ls_heal_close(ls_heal *heal); /* NULL is allowed */

/* The workers' ends, one each, to be inherited as LINESHAFT_FD_HEAL; closed here when they run. */
const int *ls_heal_ends(const ls_heal *heal);
void ls_heal_close_ends(ls_heal *heal);

int ls_heal_fd(const ls_heal *heal); /* readable: attend */

/* A process runs in this place; a process has ended, for this reason. */
void ls_heal_started(ls_heal *heal, int worker, pid_t pid);
ls_view_verdict ls_heal_ended(ls_heal *heal, int worker, const ls_view_end *end, const char *why);
void ls_heal_left(ls_heal *heal, int worker); /* ended well */

/* Read what workers say, look at the clock, announce a view when it is complete. To be called when
 * the descriptor is readable, after an end, and every LS_HEAL_LOOK_MS. LS_HEAL_STOP: the reason is
 * this thread's record. */
enum { LS_HEAL_LOOK_MS = 500 };
ls_heal_order ls_heal_attend(ls_heal *heal);

/* The job is ending: nobody waits for a view any longer. */
void ls_heal_finish(ls_heal *heal);

LS_C_END
