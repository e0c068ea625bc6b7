/* blocking.c -- each function fills in one collective and runs it. */
#include "parallel/blocking.h"

ls_status ls_blocking_sub(ls_comm *comm, int first, int stride, int count, int64_t deadline_ns,
                          ls_comm **sub_out)
{
    int ranks[LS_COMM_RANKS];

    for (int i = 0; i < count; i++)
        ranks[i] = first + i * stride;
    return ls_comm_sub(comm, ranks, count, deadline_ns, sub_out);
}

ls_status ls_blocking_reduce(ls_comm *comm, ls_coll_op op, ls_dtype type, void *x, int64_t n,
                             int64_t deadline_ns)
{
    const ls_coll coll = {
        .kind = LS_COLL_ALL_REDUCE, .op = op, .type = type, .count = n, .in = x, .out = x};

    return ls_comm_run(comm, &coll, deadline_ns);
}

ls_status ls_blocking_broadcast(ls_comm *comm, int from, void *x, int64_t bytes,
                                int64_t deadline_ns)
{
    const ls_coll coll = {
        .kind = LS_COLL_BROADCAST, .type = LS_U8, .count = bytes, .in = x, .out = x, .peer = from};

    return ls_comm_run(comm, &coll, deadline_ns);
}

ls_status ls_blocking_all_gather(ls_comm *comm, ls_dtype type, void *x, int64_t n,
                                 int64_t deadline_ns)
{
    const ls_coll coll = {.kind = LS_COLL_ALL_GATHER, .type = type, .count = n, .in = x, .out = x};

    return ls_comm_run(comm, &coll, deadline_ns);
}

ls_status ls_blocking_gather(ls_comm *comm, const void *own, int64_t bytes, void *all,
                             int64_t deadline_ns)
{
    const ls_coll coll = {.kind = LS_COLL_GATHER,
                          .type = LS_U8,
                          .count = bytes,
                          .in = own,
                          .out = ls_comm_rank(comm) == 0 ? all : NULL};

    return ls_comm_run(comm, &coll, deadline_ns);
}

ls_status ls_blocking_barrier(ls_comm *comm, int64_t deadline_ns)
{
    return ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, deadline_ns);
}

ls_status ls_blocking_carry(ls_comm *comm, int from, int to, float *x, int64_t n,
                            int64_t deadline_ns)
{
    int me = ls_comm_rank(comm);
    const ls_coll coll = {.kind = me == from ? LS_COLL_SEND : LS_COLL_RECV,
                          .type = LS_F32,
                          .count = n,
                          .in = x,
                          .out = x,
                          .peer = me == from ? to : from};

    if (n == 0 || from == to || (me != from && me != to))
        return LS_OK;
    return ls_comm_run(comm, &coll, deadline_ns);
}
