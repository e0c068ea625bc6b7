/* worker_channel.h -- workers of a node that go on when others die: the messages between
 * them and their agent.
 *
 *     worker -> agent    REPORT   my pid, the state I have; I wait for a view
 *                        READY    I am ready to train in this view
 *     agent -> worker    VIEW     generation, rank, ranks, base step, its source; with it the
 *                                 memory that the ranks of this node share, and the list of members
 *                        REGROUP  meet the others anew when a step has ended: joiners wait
 *                        DISMISS  the others have done the work, and it was not needed: end well
 *                        END      the job is ending: do not wait
 *                        NOTE     something happened that the ranks did not notice
 *
 * One socket for each worker, inherited by its process and by the one that is started in its place;
 * messages carry a pid, and what was meant for a dead process is dropped. Every REPORT is answered
 * by one VIEW, END or DISMISS. A worker that is alive and does not report within the patience is
 * killed, and so counts as dead, unless it is seen to compute; so is a process that was stopped
 * (SIGSTOP) for that long.
 *
 * The coordinator (coordinator.h) decides. In a job of one node it is a part of this object and is
 * called directly:
 *
 *     agent.c -- a worker ended --> worker_channel.c ----> coordinator.c ----> recovery_policy.c
 *             <- restart or drop --        <----
 *
 * With several nodes its messages (member_message.h) go out by say() and come in by ls_worker_channel_hear()
 * (recover_cluster.h). */
#pragma once
#include <sys/types.h>
#include "cluster/member/member_message.h"

LS_C_BEGIN

enum { LS_WORKER_CHANNEL_CAUSE = LS_MEMBER_MESSAGE_TEXT, LS_WORKER_CHANNEL_RUN_LEASE = 512 };

/* --- in a worker ------------------------------------------------------------------------------ */

/* A view as a worker gets it. */
typedef struct ls_worker_channel_view {
    ls_view_plan plan; /* generation 0: there is no view, the job does not heal */
    int rank;
    int local_rank, local_ranks; /* of those on this node */
    bool begun;                  /* some view has trained: this is no start of the job */
    bool dismissed;              /* this is none: the work was done by others */
    int64_t lost_ns;             /* when the view before was given up, by ls_time_now_ns() */
    int64_t noticed_ns;          /* how long it took to know why */
    char cause[LS_WORKER_CHANNEL_CAUSE]; /* why; "" in the first view */
    char run_lease
        [LS_WORKER_CHANNEL_RUN_LEASE]; /* the job's right to write its run (run_lease.h); "": see there */
} ls_worker_channel_view;

/* Whether this process has an agent that heals. */
bool ls_worker_channel_has_agent(void);

/* What comes with a view, owned by the caller: the memory that the ranks of this node share, and
 * the list of members (members.h). */
typedef struct ls_worker_channel_fds {
    int segment, members;
} ls_worker_channel_fds;

/* Report, and wait for a view, or to be dismissed. config_digest: what must be the same on
 * all nodes; NULL: nothing. LS_EPEER: the job is ending. */
ls_status ls_worker_channel_ask(const ls_view_report *report, const ls_config_digest *config_digest,
                                ls_worker_channel_view *view_out, ls_worker_channel_fds *fds_out);

/* Whether the ranks of this generation are to meet anew; without waiting. */
bool ls_worker_channel_regroups(uint64_t generation);

/* True: something happened that belongs into the events of the run; what, and how long it took.
 * Without waiting. */
bool ls_worker_channel_note(char *text_out, size_t cap, int64_t *took_ns_out);

/* Tell the agent that this rank is ready to train. */
void ls_worker_channel_ready(void);

/* --- in the agent ----------------------------------------------------------------------------- */

typedef struct ls_worker_channel ls_worker_channel;

typedef struct ls_worker_channel_args {
    int workers;
    int64_t patience_ns;
    /* The memory of this many ranks of this node; fd_out stays the caller's until the next call. */
    ls_status (*make)(void *context, uint64_t generation, int ranks, int *fd_out);
    /* Break that memory: every call in it fails. */
    void (*revoke)(void *context, const char *why);
    void *context;
    /* With several nodes: send a message to the coordinator, whose messages come by ls_worker_channel_hear(),
     * at once or later. NULL: these workers are the whole job, and a coordinator in this process
     * decides by the rules. */
    void (*say)(void *context, const ls_member_message *message);
    void *say_context;
    ls_view_rules rules;
} ls_worker_channel_args;

/* What the agent has to do. */
typedef enum ls_worker_channel_task {
    LS_WORKER_CHANNEL_NOTHING,
    LS_WORKER_CHANNEL_KILL,
    LS_WORKER_CHANNEL_STOP,
    LS_WORKER_CHANNEL_VERDICT /* on a worker whose end was answered by LS_VIEW_LATER */
} ls_worker_channel_task;
typedef struct ls_worker_channel_order {
    ls_worker_channel_task task;
    int worker; /* to kill, or that the verdict is on */
    ls_view_verdict verdict;
} ls_worker_channel_order;

ls_status ls_worker_channel_open(ls_worker_channel **channel_out,
                                 const ls_worker_channel_args *args);
void ls_worker_channel_close(ls_worker_channel *channel); /* NULL is allowed */

/* The workers' ends, one each, to be inherited as LINESHAFT_FD_HEAL; closed here when they run. */
const int *ls_worker_channel_ends(const ls_worker_channel *channel);
void ls_worker_channel_close_ends(ls_worker_channel *channel);

int ls_worker_channel_fd(const ls_worker_channel *channel); /* readable: attend */

/* A message of the coordinator. */
void ls_worker_channel_hear(ls_worker_channel *channel, const ls_member_message *message);

/* Tell the first of the ranks that are here (NOTE). */
void ls_worker_channel_tell(ls_worker_channel *channel, const char *what, int64_t took_ns);
/* Views carry this run lease from now on. */
void ls_worker_channel_set_run_lease(ls_worker_channel *channel, const char *run_lease);

/* Another node coordinates now: say again what the one before may not have answered. */
void ls_worker_channel_restate(ls_worker_channel *channel);

ls_view_past ls_worker_channel_recall(
    const ls_worker_channel *channel); /* what this node knows of the last view */

/* A process runs in this place; a process has ended, for this reason. LS_VIEW_LATER: the
 * coordinator has been asked, and an order follows. */
void ls_worker_channel_started(ls_worker_channel *channel, int worker, pid_t pid);
ls_view_verdict ls_worker_channel_ended(ls_worker_channel *channel, int worker,
                                        const ls_view_end *end, const char *why);
void ls_worker_channel_left(ls_worker_channel *channel, int worker); /* ended well */

/* Read what workers say, look at the clock, announce a view when it is complete. To be called when
 * the descriptor is readable, after an end, and every LS_WORKER_CHANNEL_LOOK_MS, until there is nothing to
 * do. LS_WORKER_CHANNEL_STOP: the reason is this thread's record. */
enum { LS_WORKER_CHANNEL_LOOK_MS = 500 };
ls_worker_channel_order ls_worker_channel_attend(ls_worker_channel *channel);

/* The job is ending: workers that wait for a view get END. */
void ls_worker_channel_finish(ls_worker_channel *channel);

LS_C_END
