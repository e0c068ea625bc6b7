/* comm_impl.h -- what the files of a communicator share.
 *
 *   fabric    what a process holds to reach the members of a job: the segment of its
 *             node, transports, the progress thread and the first failure. One for all
 *             communicators that come from one ls_comm_open()
 *   comm      a list of members, with the group and schedules that it uses
 *   request   one collective or message under way
 *
 * One lock guards all of it. A thread that waits holds the lock and moves everything in flight. It
 * releases the lock between two looks, so that others get in, but keeps it while it sleeps in the
 * transport: a thread that wants the lock wakes the sleeper up. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "comm/comm.h"
#include "comm/cost.h"
#include "comm/exec.h"
#include "comm/node/flight_recorder.h"
#include "comm/node/shm_coll.h"
#include "comm/node/death_watch.h"
#include "comm/tune.h"

typedef struct ls_fabric {
    int refs;
    int rank, ranks, nodes;
    uint64_t generation;
    ls_comm_member *members; /* owned */
    int *locals;             /* of each rank on its own node; owned */
    ls_shm_segment *segment; /* NULL: alone on its node */
    ls_death_watch *watch;
    ls_shm_segment *recorder; /* holds the flight recorder: `segment`, or one for this rank alone */
    int recorder_local;
    struct ls_hang_answer *hang_answers; /* the last answer of each rank; owned; NULL: no others */
    int local;                           /* number on the segment */
    ls_group node_group;                 /* of all ranks of the node, for the transport */
    ls_transport *transport;             /* to all ranks; NULL: there are no others */
    ls_transport *network; /* TCP to other nodes, part of `transport`; NULL: one node */
    ls_transport *data;    /* the transport of the data between nodes, borrowed */
    char between[160];     /* its name, and why it was chosen */
    bool crowded;          /* more ranks on this kernel than cores: waiting threads yield */
    bool broken;           /* why: */
    ls_err_record why;     /* the first failure */
    atomic_bool aborting;  /* asked for from another thread, with this reason */
    char abort_reason[256];
    pthread_mutex_t abort_lock; /* of the reason, and of `transport` against going away */
    pthread_mutex_t lock;
    atomic_int wanted;   /* threads that wait for the lock */
    pthread_cond_t work; /* for the progress thread: something is in flight, no thread waits */
    pthread_t progress_thread;
    bool has_progress_thread, closing;
    int waiting;      /* threads in ls_comm_wait */
    int in_flight;    /* requests of all communicators */
    bool fresh;       /* one was asked for since the last look */
    uint64_t next_id; /* of a communicator */
    struct ls_comm *comms;
} ls_fabric;

/* Where a rank of another node is, by its own or a neighbour's answer. */
typedef struct ls_hang_answer {
    bool asked, heard; /* no answer yet; one has come */
    bool stopped;      /* by a signal */
    bool nowhere;      /* it was in no collective so far: no record */
    ls_flight_recorder_record record;
} ls_hang_answer;

/* A schedule that was made before, and what for. */
typedef struct comm_plan {
    ls_coll coll; /* without buffers and tables */
    bool in_place;
    bool across;    /* between nodes only */
    bool once_only; /* made with tables of counts: not used again */
    const ls_algo *algo;
    ls_sched sched;
    uint64_t used; /* when it was used last; 0: empty */
    int busy;      /* requests that run it */
} comm_plan;

/* A collective that was started before. The list is the same on all ranks, which start in the same
 * order. */
typedef struct comm_seen {
    ls_coll coll;
    int uses;
} comm_seen;

/* The link numbers that matter to the members of one communicator. */
typedef struct ls_tune_links {
    ls_cost_link slowest; /* of all nodes */
    ls_cost_link around;  /* from each member to the next one */
    int64_t levels_bytes; /* all-reduces from this size on go by levels, if they can */
} ls_tune_links;

enum { COMM_SEEN = 64 };

enum { COMM_PLANS = 128, COMM_PIECES = LS_COST_PIECES, COMM_IDS = 1 << 13 /* in a tag */ };

typedef enum ls_way { LS_WAY_NONE, LS_WAY_DIRECT, LS_WAY_EXEC, LS_WAY_LEVELS } ls_way;

typedef enum ls_request_state {
    LS_REQUEST_FREE,
    LS_REQUEST_QUEUED,
    LS_REQUEST_ACTIVE,
    LS_REQUEST_DONE
} ls_request_state;

/* One piece of an all-reduce by levels: reduce-scatter inside the node, all-reduce between nodes,
 * all-gather inside the node. */
typedef struct ls_request_piece {
    int stage; /* 0 to scatter, 1 between, 2 to gather, 3 done */
    int64_t first, count, own, own_count;
    ls_shm_coll_ticket ticket;
} ls_request_piece;

typedef struct ls_request {
    ls_request_state state;
    ls_way way;
    ls_comm_request request;
    ls_coll coll;
    uint64_t tag;
    uint64_t number; /* counts collectives of the communicator, or messages of the pair */
    uint64_t record; /* ticket of the flight recorder; direct ones note themselves */
    comm_plan *plan; /* that exec runs; NULL: none */
    ls_exec exec;
    ls_exec_fingerprint fingerprint; /* by levels: exchanged by all members */
    ls_shm_coll_ticket ticket;
    int pieces, piece; /* how many there are, and the next one to go between nodes */
    ls_request_piece part[COMM_PIECES];
    struct ls_request *next; /* in order of starting */
} ls_request;

struct ls_comm {
    ls_fabric *fabric;
    struct ls_comm *next; /* of the fabric's list */
    uint64_t id, seq;
    uint64_t *sends, *receives; /* messages to and from each member so far; owned */
    int rank, ranks;
    int *world;                /* rank in the world of each member; owned */
    bool one_node;             /* all on this node */
    bool levels;               /* several nodes with equally many members, more than one each */
    int nodes, node, per_node; /* with levels */
    int *across; /* with levels: the member at my position on each node, as world ranks; owned */
    ls_shm_coll *direct, *gather; /* of the members on this node; gather: with levels */
    ls_group group, gather_group;
    const ls_algo *forced;     /* NULL: the cheapest */
    bool force_levels;         /* levels for what they do */
    ls_tune tune;              /* the same on all ranks */
    ls_tune_links links;       /* what follows from it for these members */
    comm_seen seen[COMM_SEEN]; /* by schedules, in the order in which they came */
    int seen_count;
    bool seen_enough; /* they are settled: nothing is noted any more */
    comm_plan plans[COMM_PLANS];
    uint64_t plans_used;
    ls_request *request_table; /* LS_COMM_REQUESTS, and one for ls_comm_run(); owned */
    ls_request *head, *tail;
    atomic_int up;     /* requests that are not done */
    uint64_t requests; /* so far */
};

/* The algorithm that is forced for this kind; NULL: none, or it does not do the kind. */
static inline const ls_algo *ls_comm_forced(const ls_comm *comm, ls_coll_kind kind)
{
    return comm->forced && ls_algo_does(comm->forced, kind) ? comm->forced : NULL;
}

static inline bool ls_fabric_is_here(const ls_fabric *fabric, int rank) /* on this node */
{
    return fabric->members[rank].node == fabric->members[fabric->rank].node;
}

/* fabric.c */
ls_status ls_fabric_open(ls_fabric **fabric_out, const ls_comm_args *args, int64_t deadline_ns);
void ls_fabric_drop(ls_fabric *fabric); /* one user less; the last one closes */

void ls_fabric_lock(ls_fabric *fabric);

/* Under the lock: release it for a moment if another thread wants it. */
void ls_fabric_let_in(ls_fabric *fabric);

/* Drop all messages. Under the lock, or when nobody else is left. */
void ls_fabric_close_transport(ls_fabric *fabric);

/* Note a failure (this thread's last record) as the first one, and tell the others. Returns what
 * the fabric is broken for. Under the lock. */
ls_status ls_fabric_fail(ls_fabric *fabric);
ls_status ls_fabric_lock_and_fail(ls_fabric *fabric); /* likewise, and takes the lock for it */

/* LS_OK, or why it is broken. Under the lock. */
ls_status ls_fabric_check(ls_fabric *fabric);

/* Start the progress thread unless it runs. Under the lock. */
ls_status ls_fabric_start_progress(ls_fabric *fabric);

/* transport_choice.c: whether there is a transport of this name; NULL is "auto". */
bool ls_transport_choice_knows(const char *transport);

/* transport_choice.c: with TCP open to all other nodes, agree on the transport of the data, and open
 * it. */
ls_status ls_transport_choice_open(ls_fabric *fabric, const ls_comm_args *args,
                                   int64_t deadline_ns);

/* transport_choice.c: from now on, put what a drill's plan (or, in test builds, LINESHAFT_WRAP) asks for
 * around the transport of the data. Under the lock. */
ls_status ls_transport_choice_inject_faults(ls_fabric *fabric);

/* request.c: under the lock. */
ls_way ls_request_way(const ls_comm *comm, const ls_coll *coll);
void ls_request_start(ls_comm *comm, ls_request *f); /* it progresses with the next look */
ls_status ls_request_move_all(ls_fabric *fabric, bool *moved_out);
const char *ls_request_algo(ls_comm *comm, const ls_coll *coll); /* of exec; "none": it refuses */

/* Start a schedule over the transports. across: between the ranks at this position of all nodes.
 * Without a free plan the request has none and stays queued. And when the schedule has ended. */
ls_status ls_request_begin_exec(ls_comm *comm, ls_request *request, const ls_coll *coll,
                                bool across, uint64_t tag);
void ls_request_end_exec(ls_request *request);

/* hierarchical.c: why a collective cannot go by levels, or NULL; whether a request by levels is up;
 * start one; move all its pieces as far as they go now. */
const char *ls_hierarchical_refuses(const ls_comm *comm, const ls_coll *coll);
bool ls_hierarchical_up(const ls_comm *comm);
ls_status ls_hierarchical_start(ls_comm *comm, ls_request *request);
ls_status ls_hierarchical_move(ls_comm *comm, ls_request *request, bool *done_out);

/* A transport reports LS_EDATA when the two ends of a message differ in length, which means that
 * ranks asked for different things: turn it into that failure. Other failures stay as they are. */
ls_status ls_request_explain(ls_fabric *fabric);
void ls_request_note_failed(ls_comm *comm); /* in the flight recorder */

/* watchdog.c: move everything in flight until f is done; a deadline that passes is a hang. Under the
 * lock. */
ls_status ls_watchdog_wait(ls_comm *comm, ls_request *f, int64_t deadline_ns);

/* hang_report.c: the failure of a request that is not done in time. Under the lock. */
ls_status ls_hang_report(ls_comm *comm, ls_request *f);

/* hang_report.c: answers to questions of other nodes, and their answers; for ls_tcp_args. */
int ls_hang_report_answer(void *fabric, int about, uint64_t what, uint8_t *bytes_out);
void ls_hang_report_answered(void *fabric, int about, const uint8_t *bytes, int len);
