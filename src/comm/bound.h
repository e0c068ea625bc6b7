/* bound.h -- the least time that a collective can take, for `bench comm`.
 *
 * Between nodes: the bytes that a node has to send at least, at the speed that was measured of its
 * link. On one node: the bytes that have to move, at the speed at which all ranks together copy
 * memory of that size; half of a buffer touches as much memory as a rank does in place. */
#pragma once
#include "comm/comm.h"

LS_C_BEGIN

enum { LS_BOUND_LEAST = 32 << 10 }; /* smaller buffers are all latency, and have no bound */

/* How often the busiest link carries a buffer of a collective between n: 2 (n - 1) / n of it for
 * all_reduce. */
double ls_bound_share(ls_coll_kind kind, int n);

/* Nanoseconds, the same on all ranks; 0: there is none. in and out are scratch memory of `bytes`,
 * the buffer of the collective. By all ranks. */
ls_status ls_bound_find(ls_comm *comm, ls_coll_kind kind, int64_t bytes, char *in, char *out,
                        int64_t deadline_ns, double *ns_out);

LS_C_END
