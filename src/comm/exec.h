/* exec.h -- a schedule under way: its steps become messages of a transport.
 *
 * An exec looks at a window of steps from the first unfinished one on, starts what may start and
 * notes what is done. Copies and combinations happen inside poll. Nothing waits. Memory is taken by
 * the first begin and reused by the next, so a training step that repeats takes none. */
#pragma once
#include "comm/sched.h"
#include "comm/transport/transport.h"

LS_C_BEGIN

enum { LS_EXEC_WINDOW = 32, LS_EXEC_TAG_BITS = 26 };

typedef struct ls_exec_args {
    ls_transport *transport; /* borrowed until it is done */
    const int *peers;        /* the transport's number of each rank of the schedule; borrowed */
    const ls_coll *coll;     /* copied */
    const ls_sched *sched;   /* borrowed until it is done */
    int ranks, rank;         /* of the schedule */
    bool part;               /* part of a request whose ranks exchange fingerprints already */
    uint64_t tag;            /* of the collective, the same on all ranks; the low bits are free */
} ls_exec_args;

/* What the ranks of a collective must agree on: its fingerprint, which travels beside the data. */
typedef struct ls_exec_signature {
    uint64_t tag;
    int64_t count;
    int32_t kind, op, type, peer;
    int32_t rank; /* the sender: its number in the transport */
    char algo[20];
} ls_exec_signature;

/* Its exchange: to the next rank, from the one before. */
typedef struct ls_exec_fingerprint {
    ls_message said, heard;
    ls_exec_signature mine, theirs;
    bool checked; /* theirs has come and is the same */
} ls_exec_fingerprint;

typedef struct ls_exec {
    ls_exec_args args;
    ls_coll coll;
    uint8_t *state; /* of each step */
    int32_t state_room;
    void *tmp;
    int64_t tmp_room; /* bytes */
    int32_t first;    /* the first step that is not done */
    ls_message message[LS_EXEC_WINDOW];
    ls_exec_fingerprint fingerprint;
} ls_exec;

/* Begin; the one before must be done. LS_ENOMEM, or a failure of the transport. algo: part of the
 * fingerprint. */
ls_status ls_exec_begin(ls_exec *exec, const ls_exec_args *args, const char *algo);

/* Go on as far as possible. LS_EUSAGE when ranks asked for different things: both are named. */
ls_status ls_exec_poll(ls_exec *exec, bool *done_out);

/* For a transport's failure about lengths that differ: LS_EUSAGE when the fingerprint of the rank
 * before explains it. */
ls_status ls_exec_explain(const ls_exec_fingerprint *fingerprint);

/* The exchange alone, for requests without a schedule; args->sched is not used. */
ls_status ls_exec_fingerprint_begin(ls_exec_fingerprint *fingerprint, const ls_exec_args *args,
                                    const char *algo);
ls_status ls_exec_fingerprint_poll(ls_exec_fingerprint *fingerprint, bool *done_out);

/* Multiply finished sums where they lie; for a mean. */
void ls_exec_scale(ls_dtype type, void *sums, int64_t count, double scale);

/* Free the memory. Safe on a zeroed one; messages in flight must have been dropped. */
void ls_exec_release(ls_exec *exec);

LS_C_END
