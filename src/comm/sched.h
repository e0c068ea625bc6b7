/* sched.h -- a collective as data: what one rank does, step by step.
 *
 * A schedule is a pure function of its arguments: no memory of the caller, no clock, no transport.
 * So it can be printed, checked for deadlock, counted and timed without being run, and one executor
 * per transport runs every algorithm.
 *
 * Everything is counted in elements. Ranges lie in three buffers: IN and OUT of the collective (one
 * and the same memory when it is in place), and TMP, whose size the schedule says.
 *
 * A step may start as soon as the steps it waits for are done: `after`, and for a combination the
 * step behind each of its parts. Order in the list means nothing else, except for messages: the
 * k-th send of rank a to rank b in a's list is the k-th receive from a in b's list, of equal
 * length, and `number` is that k. All hazards are covered: while a step may be running, no other
 * step that may be running writes what it touches. Sends may complete as late as the receive does.
 *
 * The lists are also sorted: an executor that looks only at the first LS_SCHED_WINDOW steps that
 * are not done (or more) never gets stuck, though it hides less. */
#pragma once
#include "base/err.h"
#include "comm/coll.h"

LS_C_BEGIN

typedef enum ls_sched_buffer { LS_SCHED_IN, LS_SCHED_OUT, LS_SCHED_TMP } ls_sched_buffer;

typedef enum ls_sched_act {
    LS_SCHED_SEND,     /* from, to the peer */
    LS_SCHED_RECV,     /* to = what arrives */
    LS_SCHED_RECV_ADD, /* to = from op what arrives; from and to are one place, or do not overlap */
    LS_SCHED_COPY,     /* to = from */
    LS_SCHED_COMBINE   /* to = parts[0] op parts[1] op ..., rounded once; `to` may be a part */
} ls_sched_act;

typedef struct ls_sched_step {
    uint8_t act;      /* ls_sched_act */
    uint8_t to, from; /* ls_sched_buffer; those that the act names */
    bool last; /* `to` holds finished sums after it: the place to scale for a mean, once; in a
                  combination before it is rounded */
    int32_t peer;
    int32_t number;            /* among the messages to, or from, this peer */
    int32_t after[2];          /* earlier steps of this list, -1: none */
    int32_t first_part, parts; /* LS_SCHED_COMBINE: of ls_sched.parts */
    int64_t to_at, from_at, count;
} ls_sched_step;

/* One source of a combination; there in the order in which they are combined. */
typedef struct ls_sched_part {
    uint8_t buffer; /* ls_sched_buffer */
    int32_t after;  /* the step that brings it, -1: it is there */
    int64_t at;
} ls_sched_part;

typedef struct ls_sched {
    ls_sched_step *steps; /* owned */
    ls_sched_part *parts; /* owned */
    int32_t count, parts_count;
    int64_t tmp_count; /* elements of TMP */
    int32_t steps_room, parts_room;
} ls_sched;

typedef struct ls_algo ls_algo; /* algo/algo.h */

typedef struct ls_sched_args {
    const ls_algo *algo;
    ls_coll_kind kind;
    int ranks, rank;
    int peer;      /* root, or the other rank of send and recv */
    int64_t count; /* as in ls_coll */
    int64_t chunk; /* elements of a message at most, where the algorithm cuts; 0: it does not */
    bool in_place;
    const int64_t *in_counts;  /* as in ls_coll; borrowed while building */
    const int64_t *out_counts; /* as in ls_coll */
} ls_sched_args;

enum { LS_SCHED_RANKS = 4096, LS_SCHED_WINDOW = 2, LS_SCHED_STEPS = 1 << 26 };

/* The steps of one rank. LS_EUSAGE: the algorithm does not do this; the message says why.
 * LS_ENOMEM.
 */
ls_status ls_sched_build(ls_sched *sched, const ls_sched_args *args);

/* Safe on a zeroed or already released schedule. */
void ls_sched_release(ls_sched *sched);

LS_C_END
