/* dp_device.h -- the sums of a step where collectives take device memory (comm/device): the same
 * exchange as dp.h, queued on a stream, without a wait of the host.
 *
 *   fast      bucket after bucket: all-reduce in place, or with ZeRO reduce-scatter
 *   ordered   each rank sends every owner its part of the roots; the owner adds them along the tree
 *             on its card, by the row `add`; with ZeRO 0 an all-gather brings the sums to all
 *
 *     bucket c b a of ranks 0 1 2     rank 0 has roots x y, 1 has z, 2 has w; all leaves: xy + (z + w)
 *     to rank 1                       xb yb from 0, wb from 2; zb lies here
 *     on its card                     xb += yb;  zb += wb;  xb + zb -> its place in the first root
 *     all-gather                      c of rank 2, b of rank 1, a of rank 0
 *
 * With ZeRO 2 and 3 a call's gradient is summed in its round (dp_device_rounds.c), from places that
 * the caller copies its buckets to; with 3 buckets of weights are gathered from their owners.
 *
 * With shard groups (dp.h) sums go to the owners in the group and then to the ranks that own the
 * same; in ordered mode roots go to the rank of all that sums a piece. Gathers stay in the group.
 *
 * The bits of ordered mode are those of comm/ordered_sum.h and ordered_feed.h, and so of one
 * process. */
#pragma once
#include "comm/device/device_comm.h"
#include "kernel/kernel.h"
#include "parallel/dp.h"

LS_C_BEGIN

typedef struct ls_dp_device ls_dp_device;

typedef struct ls_dp_device_args {
    ls_dp *dp;                      /* borrowed, as all of these; by_device */
    ls_device_comm *dc;             /* of the ranks of dp; in fast mode with shard groups NULL */
    ls_device_comm *group;          /* of ls_dp_group(): dc, where there is one group */
    ls_device_comm *shard_replicas; /* of ls_dp_shard_replicas(); NULL: there is one group */
    ls_stream *stream; /* of the collectives; the caller orders it after and before its own */
    const ls_kernels *kernels;
} ls_dp_device_args;

/* Whether it can: nothing compressed, no servers. */
bool ls_dp_device_can(const ls_dp_args *args);

/* Bytes of the device that opening takes. */
int64_t ls_dp_device_bytes(const ls_dp_args *args);

ls_status ls_dp_device_open(ls_dp_device **x_out, const ls_dp_device_args *args);
void ls_dp_device_close(ls_dp_device *x); /* the stream is done; NULL is allowed */

/* ZeRO 0 and 1. As ls_dp_sum_from(), of device memory: queue the buckets that are complete and were
 * not queued. Whether there are any; and whether the sum has begun. A sum ends with from = 0. */
ls_status ls_dp_device_sum_from(ls_dp_device *x, float *const *roots, int64_t from);
bool ls_dp_device_has(const ls_dp_device *x, int64_t from);
bool ls_dp_device_begun(const ls_dp_device *x);

/* From the next call on a new sum begins, whatever the last one has come to. */
void ls_dp_device_begin(ls_dp_device *x);

/* ZeRO 2 and 3: transfer i of a round (ls_dp_transfer_at()), of which this rank's gradient lies in
 * place i % LS_DP_AHEAD, zeros where the rank has no call; all ranks in the same order. The sums of
 * the own parts are in own (ls_dp_sum_elements()) after the last round. Then the place is free. */
float *ls_dp_device_place(const ls_dp_device *x, int i);
ls_status ls_dp_device_sum_transfer(ls_dp_device *x, int i, int round, float *own);

/* ZeRO 3: as ls_dp_fetch(), queued. whole has room for the padding of the last bucket. */
ls_status ls_dp_device_fetch(ls_dp_device *x, int bucket, ls_dtype type, const void *own,
                             void *whole);

/* As ls_dp_gather() and ls_dp_sum_in_group(), queued. */
ls_status ls_dp_device_gather(ls_dp_device *x, float *whole);
ls_status ls_dp_device_share(ls_dp_device *x, float *numbers, int64_t n);

LS_C_END
