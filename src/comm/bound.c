/* bound.c -- the least time of a collective: its bytes at the measured speed of the link
 * or the memory. */
#include "comm/bound.h"

#include <string.h>
#include "base/base.h"
#include "base/time.h"
#include "comm/tune.h"

enum { TRIES = 3, COPIED = 32 << 20 }; /* bytes that a rank copies in a try, at least once */

double ls_bound_share(ls_coll_kind kind, int n)
{
    double part = (double)(n - 1) / n;

    return n == 1                       ? 1
           : kind == LS_COLL_ALL_REDUCE ? 2 * part
           : kind == LS_COLL_BROADCAST  ? 1
           : kind == LS_COLL_BARRIER    ? 0
                                        : part;
}

/* What one copy of half the buffer takes the slowest rank, while all copy theirs. */
static ls_status time_copies(ls_comm *comm, char *in, char *out, int64_t bytes, int64_t deadline_ns,
                             int64_t *ns_out)
{
    int64_t half = bytes / 2, calls = ls_max_i64(1, COPIED / half), best = INT64_MAX;
    ls_status st = LS_OK;

    for (int i = 0; i < TRIES; i++) {
        LS_TRY(st,
               ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER, .type = LS_U8}, deadline_ns),
               out);
        int64_t begin = ls_time_now_ns();
        for (int64_t k = 0; k < calls; k++) {
            memcpy(out, in, (size_t)half);
            __asm__ volatile("" ::"r"(out) : "memory"); /* each of them is to be made */
        }
        best = ls_min_i64(best, (ls_time_now_ns() - begin) / calls);
    }
    LS_TRY(st,
           ls_comm_run(comm,
                       &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                  .op = LS_COLL_MAX,
                                  .type = LS_I64,
                                  .count = 1,
                                  .in = &best,
                                  .out = &best},
                       deadline_ns),
           out);
    *ns_out = best;
out:
    return st;
}

ls_status ls_bound_find(ls_comm *comm, ls_coll_kind kind, int64_t bytes, char *in, char *out,
                        int64_t deadline_ns, double *ns_out)
{
    const ls_tune *tune = ls_tune_of(comm);
    int ranks = ls_comm_ranks(comm), nodes = ls_comm_node(comm, ranks - 1) + 1;
    int64_t ns = 0;
    ls_status st = LS_OK;

    *ns_out = 0;
    if (ranks == 1 || bytes < LS_BOUND_LEAST)
        return LS_OK;
    if (nodes > 1) {
        if (tune->has_between)
            *ns_out = ls_bound_share(kind, nodes) * (double)bytes * tune->between.ns_per_byte;
        return LS_OK;
    }
    st = time_copies(comm, in, out, bytes, deadline_ns, &ns);
    /* All ranks together copy ranks * bytes / 2 in ns. */
    if (st == LS_OK)
        *ns_out = ls_bound_share(kind, ranks) * 2 * (double)ns / ranks;
    return st;
}
