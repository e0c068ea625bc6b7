/* reshard.h -- moves an array that ranks divide from the parts of one mesh to those of another.
 *
 * After a loss other ranks, or fewer, divide the state. The array of all trained elements lies in the
 * parts of an earlier mesh: those of each seat (the shard ranks of that mesh), packed, on a rank that
 * has them now. It moves to the parts that the ranks of the new mesh own. Every rank knows both cuts,
 * so no rank asks another one; only elements that change their rank are sent, to each rank that owns
 * them, bucket by bucket of the new mesh.
 *
 *     8 elements, cut by 2 seats, now by 3 (blocks of 1)
 *
 *     seat   0 0 0 0 1 1 1 1      seat 0 at rank 0, seat 1 at rank 2
 *     owner  0 0 0 1 1 1 2 2      rank 0 sends 1 element to rank 1, rank 2 sends 2 */
#pragma once
#include "comm/comm.h"
#include "layout/mesh.h"

LS_C_BEGIN

/* How elements are cut among seats: what parts and buckets depend on. */
typedef struct ls_reshard_cut {
    int32_t ranks, shard; /* as in ls_mesh */
    int64_t bucket;
} ls_reshard_cut;

ls_reshard_cut ls_reshard_cut_of(const ls_mesh *mesh);
int ls_reshard_buckets(const ls_reshard_cut *cut, int64_t trained);

/* What a seat has of a bucket. */
ls_mesh_part ls_reshard_part(const ls_reshard_cut *cut, int64_t trained, int bucket, int seat);

typedef struct ls_reshard_args {
    ls_comm *comm; /* of the new ranks */
    ls_reshard_cut from;
    const ls_mesh *to; /* of this rank */
    int64_t trained;
    const int *sources; /* [seats of from] the rank that has its parts now */
} ls_reshard_args;

/* One array. held: [seats of from] its packed parts, where this rank is the source; own: of this
 * rank, packed as `to` says, or with whole: an array of all elements, of which its parts are set.
 * *sent_out: bytes to other ranks. By all ranks. */
ls_status ls_reshard_move(const ls_reshard_args *args, const float *const *held, bool whole,
                          float *own, int64_t deadline_ns, int64_t *sent_out);

LS_C_END
