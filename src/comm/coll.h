/* coll.h -- a collective as a record: what a rank asks for, before a way to do it is chosen.
 *
 * Every rank of a communicator asks for the same collectives in the same order. `count` counts
 * elements and is the same on every rank, except where a table of counts says otherwise:
 *
 *   kind            in             out                   notes
 *   all_reduce      count          count
 *   reduce_scatter  count          own range of count    in place: out is in, own range is set
 *   all_gather      own range      count                 in place: in is out, own range is read
 *   broadcast       count (root)   count                 in is ignored elsewhere
 *   all_to_all      count x ranks  count x ranks         or by counts: pieces side by side
 *   gather          own count      sum of counts (root)  or `count` from each
 *   send, recv      count          count                 with `peer`; matched in order of calls
 *   barrier         -              -
 *
 * The own range of rank r is ls_coll_range(): nearly equal parts that begin at multiples of 16
 * elements. in == out means in place; any other overlap of buffers is an error. 16-bit types are
 * summed in fp32 and rounded once. mean divides the sum by the number of ranks. */
#pragma once
#include "base/dtype.h"
#include "base/err.h"

LS_C_BEGIN

typedef enum ls_coll_kind {
    LS_COLL_ALL_REDUCE,
    LS_COLL_REDUCE_SCATTER,
    LS_COLL_ALL_GATHER,
    LS_COLL_BROADCAST,
    LS_COLL_ALL_TO_ALL,
    LS_COLL_GATHER,
    LS_COLL_SEND,
    LS_COLL_RECV,
    LS_COLL_BARRIER,
    LS_COLL_KINDS
} ls_coll_kind;

typedef enum ls_coll_op { LS_COLL_SUM, LS_COLL_MAX, LS_COLL_MIN, LS_COLL_MEAN } ls_coll_op;

typedef struct ls_coll {
    ls_coll_kind kind;
    ls_coll_op op;
    ls_dtype type;
    int64_t count;
    const void *in;
    void *out;
    int peer;                  /* root, or the other rank */
    const int64_t *in_counts;  /* all_to_all: elements for each rank; NULL: count for each */
    const int64_t *out_counts; /* all_to_all, gather at root: elements from each rank */
} ls_coll;

static inline bool ls_coll_reduces(ls_coll_kind kind)
{
    return kind == LS_COLL_ALL_REDUCE || kind == LS_COLL_REDUCE_SCATTER;
}

static inline bool ls_coll_rooted(ls_coll_kind kind)
{
    return kind == LS_COLL_BROADCAST || kind == LS_COLL_GATHER;
}

static inline bool ls_coll_is_message(ls_coll_kind kind)
{
    return kind == LS_COLL_SEND || kind == LS_COLL_RECV;
}

/* The part of count elements that rank r of `ranks` owns. */
static inline void ls_coll_range(int64_t count, int ranks, int r, int64_t *first_out,
                                 int64_t *len_out)
{
    int64_t blocks = (count + 15) / 16, each = blocks / ranks, more = blocks % ranks;
    int64_t first = 16 * (each * r + (r < more ? r : more));
    int64_t last = first + 16 * (each + (r < more));

    first = first < count ? first : count;
    *first_out = first;
    *len_out = (last < count ? last : count) - first;
}

static inline int64_t ls_coll_range_len(int64_t count, int ranks, int r)
{
    int64_t first, len;

    ls_coll_range(count, ranks, r, &first, &len);
    return len;
}

/* The same with one fixed value in each field that its kind does not use (an operation where
 * nothing is combined, a root where there is none), so that ranks neither compare nor remember
 * it. */
ls_coll ls_coll_only_used(const ls_coll *coll);

/* "all_reduce", "sum", as in messages, tables and on the command line. */
const char *ls_coll_kind_name(ls_coll_kind kind);
const char *ls_coll_op_name(ls_coll_op op);
const char *ls_coll_type_name(ls_dtype type); /* "bf16" */

/* Whether this makes sense for rank `rank` of `ranks`: numbers in range, memory where it is needed,
 * buffers that do not overlap. LS_EUSAGE says what is wrong. */
ls_status ls_coll_check(const ls_coll *coll, int ranks, int rank);

/* Elements of `in` and of `out` that rank `rank` must have; -1: a table has a count that cannot be. */
void ls_coll_spans(const ls_coll *coll, int ranks, int rank, int64_t *in_out, int64_t *out_out);

LS_C_END
