/* direct_impl.h -- an operation in flight, between the files of direct. */
#pragma once
#include "base/err.h"
#include "comm/node/shm_segment_impl.h"
#include "comm/node/direct.h"
#include "comm/node/pair.h"
#include "comm/node/peer_memory.h"

enum {
    LS_DIRECT_BITE = 1 << 20,        /* bytes that one poll moves */
    LS_DIRECT_STAGE_BYTES = 1 << 20, /* of one operation whose memory others cannot read */
    LS_DIRECT_SCRATCH_BYTES = 1 << 18,
    /* all_reduce up to this size: one flag is faster than two. Beyond it, half of the work is
     * faster, except where every flag costs a context switch. */
    LS_DIRECT_SHORT_BYTES = 2048,
    LS_DIRECT_SHORT_CROWDED_BYTES = LS_SHM_SEGMENT_SMALL_BYTES,
};

#define LS_DIRECT_MESSAGE (UINT64_C(1) << 63) /* set in tickets of sends and receives */

/* What a rank did so far: flags raised, bytes of memory. Tests compare it with comm/cost.h. */
typedef struct ls_direct_done {
    int64_t posts, read, written;
} ls_direct_done;

/* READY --- all are at phase `ready`: MOVE --- moved, phase raised: MOVED --- all are there: READY
 * again for the next window or pass, or DONE. An operation whose data all lies in slots goes from
 * MOVE to DONE. */
typedef enum ls_direct_state {
    LS_DIRECT_DONE,
    LS_DIRECT_READY,
    LS_DIRECT_MOVE,
    LS_DIRECT_MOVED
} ls_direct_state;

typedef struct ls_direct_op {
    uint64_t seq;
    uint64_t record;
    ls_direct_state state;
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
} ls_direct_op;

typedef struct ls_direct_message {
    ls_message message;
    uint64_t record;
    bool used;
    uint64_t ticket;
} ls_direct_message;

struct ls_direct {
    ls_group *group;
    ls_shm_segment *segment;
    int n, me;
    uint64_t seq, completed, peers_completed;
    ls_shm_segment_member *member[LS_SHM_SEGMENT_RANKS];
    ls_direct_op op[LS_DIRECT_OPS];
    char *idle_stage[LS_DIRECT_OPS]; /* owned; */
    int idle_stages;                 /* this many are there, at most one for each operation */
    char *scratch;                   /* owned; NULL until it is needed */
    bool busy;                       /* something could have moved further */
    bool failed;
    ls_err_record failure;
    ls_pair *pair;             /* sends and receives; NULL until the first */
    uint64_t *sent, *received; /* per member; owned */
    ls_direct_message message[LS_DIRECT_MESSAGES];
    uint64_t messages;
    ls_direct_done done;
};

static inline void ls_direct_count(ls_direct *d, int64_t read, int64_t written)
{
    d->done.read += read;
    d->done.written += written;
}

static inline ls_shm_segment_slot *ls_direct_slot(const ls_direct *d, const ls_direct_op *op,
                                                  int member)
{
    return &d->member[member]->slot[op->seq % LS_SHM_SEGMENT_SLOTS];
}

static inline uint64_t ls_direct_word(const ls_direct_op *op, uint32_t phase)
{
    return op->seq / LS_SHM_SEGMENT_SLOTS << 24 | phase;
}

/* direct_call.c: whether all ask for the same, and the failures. */
ls_status ls_direct_compare(const ls_direct *d, const ls_direct_op *op);
ls_status ls_direct_late(const ls_direct *d, const ls_direct_op *op);

/* direct_move.c: where pieces lie, and their way. */
ls_status ls_direct_publish(ls_direct *d, ls_direct_op *op);
void ls_direct_plan(const ls_direct *d, ls_direct_op *op);
void ls_direct_next(ls_direct *d, ls_direct_op *op); /* prepare the next window or pass */
ls_status ls_direct_move(ls_direct *d, ls_direct_op *op, int64_t bytes, bool *moved_out);
/* Elements that `from` gives to `to`, and where they begin in what it published. */
int64_t ls_direct_piece(const ls_direct *d, const ls_direct_op *op, int from, int to,
                        int64_t *at_out);

/* direct_messages.c: send and recv. */
ls_status ls_direct_message_start(ls_direct *d, const ls_coll *coll, ls_direct_ticket *ticket_out);
ls_status ls_direct_message_poll(ls_direct *d);
bool ls_direct_message_done(const ls_direct *d, ls_direct_ticket ticket);
ls_status ls_direct_message_late(const ls_direct *d, ls_direct_ticket ticket);
