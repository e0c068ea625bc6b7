/* blocking.h -- collectives and messages of host memory that the caller waits for.
 *
 * Most exchanges outside of a step are one line: a few numbers, a table of facts, an array of weights.
 * Each function runs one collective (comm/coll.h) in place and returns when it is done. Three ranks:
 *
 *     before            reduce, sum    broadcast from 1    all_gather      carry from 0 to 2
 *     rank 0   a . .    abc            rank 1's            a b c           a    (sends)
 *     rank 1   . b .    abc            rank 1's            a b c           b    (does nothing)
 *     rank 2   . . c    abc            rank 1's            a b c           a    (receives)
 *
 * All ranks of the communicator call them, in the same order, carry() excepted. */
#pragma once
#include "comm/comm.h"

LS_C_BEGIN

/* A communicator of `count` ranks of comm: first, first + stride ... All ranks of comm call it, each with
 * the ranks it belongs to; count 0: with none (ls_comm_sub). Of 6 ranks first 1, stride 2, count 3 are
 * 1 3 5. */
ls_status ls_blocking_sub(ls_comm *comm, int first, int stride, int count, int64_t deadline_ns,
                          ls_comm **sub_out);

/* n numbers of each rank become their sum, largest or smallest, on every rank. */
ls_status ls_blocking_reduce(ls_comm *comm, ls_coll_op op, ls_dtype type, void *x, int64_t n,
                             int64_t deadline_ns);

/* The bytes of one rank to all. */
ls_status ls_blocking_broadcast(ls_comm *comm, int from, void *x, int64_t bytes,
                                int64_t deadline_ns);

/* Each rank has its part of n elements (ls_coll_range); afterwards all have all. */
ls_status ls_blocking_all_gather(ls_comm *comm, ls_dtype type, void *x, int64_t n,
                                 int64_t deadline_ns);

/* The bytes of each rank to rank 0's `all`, one behind the other; all: not read elsewhere. */
ls_status ls_blocking_gather(ls_comm *comm, const void *own, int64_t bytes, void *all,
                             int64_t deadline_ns);

/* Until all ranks have come here. */
ls_status ls_blocking_barrier(ls_comm *comm, int64_t deadline_ns);

/* n fp32 numbers at x from a rank to another one: a call of these two. Other ranks may call it too, and
 * do nothing, as both do when from is to or n is 0. */
ls_status ls_blocking_carry(ls_comm *comm, int from, int to, float *x, int64_t n,
                            int64_t deadline_ns);

LS_C_END
