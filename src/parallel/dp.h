/* dp.h -- what data-parallel ranks exchange in a step.
 *
 *   sum      gradients of all ranks -> each owner has the sum of its parts (ZeRO 0: every rank has all)
 *   gather   each owner's parts -> the whole, on every rank (the new weights)
 *   numbers  a few numbers of each rank -> their sums, on every rank (losses, requests to stop)
 *
 * A sum is begun bucket by bucket (mesh.h), from the last bucket to the first, which is the order
 * in which backward completes them. Buckets are sent while backward goes on, and waited for at the
 * end. In ordered mode a rank brings the roots of its leaves' tree, and the sum has the bits of one
 * process (comm/ordered_sum.h). A tied embedding's second gradient lies behind the others, is
 * complete first and leaves first; the owner adds its sum. In fast mode a rank brings one buffer,
 * and the sum is made in place.
 *
 * With shard groups (mesh.h) sums go to the owners inside the group (fast) and from there to the
 * ranks of other groups that own the same part; in ordered mode roots go to the one rank of all that
 * sums a piece, and it gives the piece to them. Gathers and fetches stay inside the group.
 *
 *     ranks 0 1 | 2 3    fast       reduce-scatter in (0 1), (2 3); all-reduce of parts in (0 2), (1 3)
 *                        ordered    roots of all to 0 2 1 3, a piece each; all-gather in (0 2), (1 3)
 *
 * Buffers that others read come from ls_comm_alloc(): nothing is copied on one machine. They
 * have room for padding, because parts are equal (mesh.h). */
#pragma once
#include "base/window.h"
#include "comm/comm.h"
#include "kernel/codec.h"
#include "layout/mesh.h"

LS_C_BEGIN

typedef struct ls_dp ls_dp;

typedef struct ls_dp_args {
    ls_comm *comm; /* borrowed until close */
    ls_mesh mesh;
    bool ordered;
    ls_codec codec;  /* of what goes between nodes (compressed.h); fast mode only */
    int64_t leaves;  /* of the batch; shared as mesh says, until ls_dp_split() */
    int64_t roots;   /* of all ranks at most, ordered only; 0: no other split comes */
    int64_t trained; /* elements that are summed and updated */
    bool by_device;  /* gradients are summed by dp_device.h: nothing is taken for that here */
    int64_t tied_first, tied_count; /* elements whose second gradient begins behind `trained`;
                                     * ordered only; count 0: none */
    /* zero 2 and 3 only: every call of a step is summed, in rounds, one of each rank. */
    int rounds;
    int64_t slots;     /* ordered: places on the stacks of all ranks (comm/ordered_feed.h) */
    const int *merges; /* ordered: [rounds][ranks], as there; borrowed while opening */
} ls_dp_args;

/* Elements of a buffer that is summed or gathered, and bytes that opening takes; of the arguments
 * without a communicator too. */
int64_t ls_dp_elements(const ls_dp_args *args);
int64_t ls_dp_bytes(const ls_dp_args *args);

/* Elements of what a rank owns, packed, with the padding that ls_dp_fetch() reads. */
int64_t ls_dp_own_elements(const ls_dp_args *args);

/* Zero 2 and 3: elements of the sum that a rank keeps of its own parts, packed. */
int64_t ls_dp_sum_elements(const ls_dp_args *args);

/* Zero 2 and 3: elements of buckets that are on their way at a time, at most. */
int64_t ls_dp_ahead_elements(const ls_dp_args *args);

ls_status ls_dp_open(ls_dp **dp_out, const ls_dp_args *args);
void ls_dp_close(ls_dp *dp); /* NULL is allowed */
const ls_dp_args *ls_dp_args_of(const ls_dp *dp);

/* The ranks that divide buckets with this one: all, or its shard group, by shard ranks. */
ls_comm *ls_dp_group(const ls_dp *dp);

/* The ranks of other shard groups that own the same parts, by groups; NULL: there is one group. */
ls_comm *ls_dp_shard_replicas(const ls_dp *dp);

/* The buckets, and the own part of each. */
int ls_dp_buckets(const ls_dp *dp);
ls_mesh_part ls_dp_own(const ls_dp *dp, int bucket);

/* mesh.bucket for a run that asks for buckets of `bytes`, or for LS_RUN_AUTO: the smallest
 * ones with which the predicted time of the exchange is at most a tenth above that of one bucket.
 * The same on all ranks. */
int64_t ls_dp_bucket_blocks(const ls_comm *comm, const ls_mesh *mesh, int64_t trained,
                            int64_t bytes);

/* From the next sum on ranks have these leaves; all ranks alike, with no more roots than args say.
 * Nothing to do in fast mode. */
ls_status ls_dp_split(ls_dp *dp, const ls_ordered_run *runs, int64_t leaves);

/* Elements `from` and above of the buffers are complete: start the buckets among them that were not
 * started. Each sum ends with from = 0. buffers: in ordered mode this rank's roots, the first of
 * which gets the sums (it exists even when the rank has no leaves); in fast mode one buffer. They
 * belong to the exchange until ls_dp_sum_end(), which waits for it. */
ls_status ls_dp_sum_from(ls_dp *dp, float *const *buffers, int64_t from);
ls_status ls_dp_sum_end(ls_dp *dp, float *const *buffers);

/* With zero 2 and 3 a rank keeps the sum of its own parts only, packed, in own, and the gradient of
 * one call passes through a window, whose pages are dropped as buckets have gone. Before each round
 * of calls: its number. Then as above, with the window as the one buffer, on all ranks with the
 * same `from`s; a rank without a call in the round leaves the window alone. */
void ls_dp_round(ls_dp *dp, int round, ls_window *window, float *own);

/* The same where no other rank reaches the gradient of a call (train/step/host_stage_zero.c): a round is a
 * list of transfers, the second gradient of each bucket that has one, then the buckets, from last to
 * first. Each is brought to a place in the host's memory, then started; transfer i needs place i %
 * LS_DP_AHEAD, which is free when transfer i - LS_DP_AHEAD has ended. They start in order, and
 * ls_dp_sum_end() waits for all. places: each of ls_dp_place_elements(). */
enum { LS_DP_AHEAD = 4 };

typedef struct ls_dp_transfer {
    int bucket;
    int64_t first, count; /* elements of the buffer */
    bool tied;            /* of a second gradient: complete before all others */
} ls_dp_transfer;

int64_t ls_dp_place_elements(const ls_dp_args *args);
int ls_dp_transfers(const ls_dp *dp);
ls_dp_transfer ls_dp_transfer_at(const ls_dp *dp, int i);
void ls_dp_round_of_places(ls_dp *dp, int round, float *const *places, float *own);
ls_status ls_dp_start_transfer(ls_dp *dp);           /* the next one */
ls_status ls_dp_end_transfers(ls_dp *dp, int below); /* those with lower numbers, of started ones */

/* Bucket i of the whole from its owners, in place: start; ls_dp_fetched() waits. The own part is as
 * it is until then. Or all of them, waiting. */
ls_status ls_dp_gather_start(ls_dp *dp, int bucket, float *buffer);
ls_status ls_dp_gather(ls_dp *dp, float *buffer);

/* Zero 3: bucket i of the weights, from the owners' packed parts to where it belongs in the whole:
 * start, and wait. own: as ls_dp_own_elements() says. */
ls_status ls_dp_fetch(ls_dp *dp, int bucket, ls_dtype type, const void *own, void *whole);
ls_status ls_dp_fetched(ls_dp *dp, int bucket);

/* The same of any memory. own: this rank's part of the bucket; at: where the bucket begins; the
 * part may lie there already (own is then `at` too). */
ls_status ls_dp_fetch_to(ls_dp *dp, int bucket, ls_dtype type, const void *own, void *at);

/* The owners' parts, without padding, to rank 0's `whole` (`trained` elements; NULL elsewhere), and
 * the other way round. part: own elements, packed (mesh.h). */
ls_status ls_dp_collect(ls_dp *dp, const float *part, float *whole);
ls_status ls_dp_scatter(ls_dp *dp, const float *whole, float *part);

/* The residuals of a compressed exchange, which it adds in the next step, as vectors of `trained` elements on rank 0 (NULL
 * elsewhere): how many there are, 0 when nothing is compressed; all of it to rank 0; and back, also
 * the residuals of another mesh, whose sum is kept. */
int ls_dp_residuals(const ls_dp_args *args);
ls_status ls_dp_collect_residuals(ls_dp *dp, float *feedbacks);
ls_status ls_dp_scatter_residuals(ls_dp *dp, float *feedbacks);

/* numbers: fp32 or fp64. */
ls_status ls_dp_sum_numbers(ls_dp *dp, ls_dtype type, void *numbers, int64_t n);

/* fp32 numbers of which each is known to one rank of a shard group, and 0 on the others, to all: of
 * ranks that own the same part one counts. */
ls_status ls_dp_sum_in_group(ls_dp *dp, float *numbers, int64_t n);

/* One rank's bytes to all ranks. */
ls_status ls_dp_broadcast(ls_dp *dp, int from, void *bytes, int64_t n);

LS_C_END
