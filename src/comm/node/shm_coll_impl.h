/* shm_coll_impl.h -- an operation in flight, for the shm_coll*.c files. */
#pragma once
#include "base/err.h"
#include "comm/node/shm_segment_impl.h"
#include "comm/node/shm_coll.h"
#include "comm/node/pair.h"
#include "comm/node/peer_memory.h"

enum {
    LS_SHM_COLL_BITE = 1 << 20,        /* bytes that one poll moves */
    LS_SHM_COLL_STAGE_BYTES = 1 << 20, /* of one operation whose memory others cannot read */
    LS_SHM_COLL_SCRATCH_BYTES = 1 << 18,
    /* all_reduce up to this size: one flag is faster than two. Beyond it, half of the work is
     * faster, except where every flag costs a context switch. */
    LS_SHM_COLL_SHORT_BYTES = 2048,
    LS_SHM_COLL_SHORT_CROWDED_BYTES = LS_SHM_SEGMENT_SMALL_BYTES,
};

#define LS_SHM_COLL_MESSAGE (UINT64_C(1) << 63) /* set in tickets of sends and receives */

/* What a rank did so far: flags raised, bytes of memory. Tests compare it with comm/cost.h. */
typedef struct ls_shm_coll_done {
    int64_t posts, read, written;
} ls_shm_coll_done;

/* READY --- all are at phase `ready`: MOVE --- moved, phase raised: MOVED --- all are there: READY
 * again for the next window or pass, or DONE. An operation whose data all lies in slots goes from
 * MOVE to DONE. */
typedef enum ls_shm_coll_state {
    LS_SHM_COLL_DONE,
    LS_SHM_COLL_READY,
    LS_SHM_COLL_MOVE,
    LS_SHM_COLL_MOVED
} ls_shm_coll_state;

typedef struct ls_shm_coll_op {
    uint64_t seq;
    uint64_t record;
    ls_shm_coll_state state;
    ls_coll coll;
    int64_t size;             /* bytes of an element */
    ls_shm_segment_slot *own; /* this rank's slot */
    bool small;               /* all_reduce: each rank combines everything */
    bool checked;             /* what others ask for was compared */
    bool closing;             /* others read or write this rank's memory */
    bool staged;              /* some rank's memory goes over a stage, window by window */
    uint32_t ready;           /* the phase in which sources can be read */
    int pass, passes;
    int64_t window, windows, window_len; /* the last in elements */
    int met;                             /* members seen at the phase that is waited for */
    int from;    /* source that is being copied, as a distance from this rank */
    int64_t at;  /* elements of it, or of the range, that are done */
    char *stage; /* own; NULL: none */
} ls_shm_coll_op;

typedef struct ls_shm_coll_message {
    ls_message message;
    uint64_t record;
    bool used;
    uint64_t ticket;
} ls_shm_coll_message;

struct ls_shm_coll {
    ls_group *group;
    ls_shm_segment *segment;
    int n, me;
    uint64_t seq, completed, peers_completed;
    ls_shm_segment_member *member[LS_SHM_SEGMENT_RANKS];
    ls_shm_coll_op op[LS_SHM_COLL_OPS];
    char *idle_stage[LS_SHM_COLL_OPS]; /* owned; */
    int idle_stages;                   /* this many are there, at most one for each operation */
    char *scratch;                     /* owned; NULL until it is needed */
    bool busy;                         /* something could have moved further */
    bool failed;
    ls_err_record failure;
    ls_pair *pair;             /* sends and receives; NULL until the first */
    uint64_t *sent, *received; /* per member; owned */
    ls_shm_coll_message message[LS_SHM_COLL_MESSAGES];
    uint64_t messages;
    ls_shm_coll_done done;
};

static inline void ls_shm_coll_count(ls_shm_coll *d, int64_t read, int64_t written)
{
    d->done.read += read;
    d->done.written += written;
}

static inline ls_shm_segment_slot *ls_shm_coll_slot(const ls_shm_coll *d, const ls_shm_coll_op *op,
                                                    int member)
{
    return &d->member[member]->slot[op->seq % LS_SHM_SEGMENT_SLOTS];
}

static inline uint64_t ls_shm_coll_word(const ls_shm_coll_op *op, uint32_t phase)
{
    return op->seq / LS_SHM_SEGMENT_SLOTS << 24 | phase;
}

/* shm_coll_call.c: whether all ask for the same, and the failures. */
ls_status ls_shm_coll_compare(const ls_shm_coll *d, const ls_shm_coll_op *op);
ls_status ls_shm_coll_late(const ls_shm_coll *d, const ls_shm_coll_op *op);

/* shm_coll_move.c: where pieces lie, and their way. */
ls_status ls_shm_coll_publish(ls_shm_coll *d, ls_shm_coll_op *op);
void ls_shm_coll_plan(const ls_shm_coll *d, ls_shm_coll_op *op);
void ls_shm_coll_next(ls_shm_coll *d, ls_shm_coll_op *op); /* prepare the next window or pass */
ls_status ls_shm_coll_move(ls_shm_coll *d, ls_shm_coll_op *op, int64_t bytes, bool *moved_out);
/* Elements that `from` gives to `to`, and where they begin in what it published. */
int64_t ls_shm_coll_piece(const ls_shm_coll *d, const ls_shm_coll_op *op, int from, int to,
                          int64_t *at_out);

/* shm_coll_messages.c: send and recv. */
ls_status ls_shm_coll_message_start(ls_shm_coll *d, const ls_coll *coll,
                                    ls_shm_coll_ticket *ticket_out);
ls_status ls_shm_coll_message_poll(ls_shm_coll *d);
bool ls_shm_coll_message_done(const ls_shm_coll *d, ls_shm_coll_ticket ticket);
ls_status ls_shm_coll_message_late(const ls_shm_coll *d, ls_shm_coll_ticket ticket);
