/* mesh.h -- how a run is spread over ranks: which rank has which part of the model and of the batch.
 *
 * The mesh has five axes. From the outside to the inside:
 *
 *     pp   pipeline: each stage has some of the layers
 *     dp   data: ranks share the batch (what the other axes leave over)
 *     cp   context: ranks share every sequence
 *     tp   tensor: ranks share every layer
 *     ep   experts: ranks that are data-parallel otherwise have some of the experts each
 *
 *     rank = ((stage x dp + d) x cp + c) x tp + t
 *
 *     16 ranks, pp 2, dp 2, cp 2, tp 2     d 0            d 1
 *                                   c 0    c 1     c 0    c 1
 *                           stage 0  0 1   2 3     4 5    6 7
 *                           stage 1  8 9  10 11   12 13  14 15
 *
 *     Rank 3:  tp group 2 3;  cp group 1 3 (the same heads, another piece of each sequence);
 *              pipeline 3 11;  sums its gradients with 1, 5 and 7.
 *
 * Ranks that exchange most lie closest: a tp group meets in every layer, a cp group in every
 * attention, the stages of a pipeline between blocks, data-parallel ranks once in a step. All of
 * this is arithmetic: every rank knows what every other rank has, without a message.
 *
 * --- data ---
 *
 * Every rank takes a run of the batch's leaves: nearly equal runs, or runs by weights, so that the
 * slowest rank ends as early as whole leaves allow. A rank may have none. Example: 24 leaves,
 * weights 1 1 0.5: 10, 10 and 4.
 *
 * --- ZeRO: buckets, parts, shard groups ---
 *
 * The trained elements, in their flat order, are cut into buckets: what is exchanged at a time. Each
 * bucket is divided among the ranks, in equal parts that begin at borders of norm blocks (kernel.h),
 * so that one rank sums the squares of a block. A rank owns its part of every bucket, and keeps its
 * parts packed, bucket after bucket.
 *
 *     8 blocks, 2 ranks, 2 blocks of each bucket for each rank: 2 buckets
 *
 *     block     0 1 2 3 | 4 5 6 7
 *     owner     0 0 1 1 | 0 0 1 1          rank 0 keeps 0 1 4 5, rank 1 keeps 2 3 6 7
 *
 * With servers (sync: ps) the servers own the parts, and the other ranks own nothing. The last bucket
 * may be smaller, and its last parts shorter or empty: 40 blocks in one bucket, 3 ranks: 14 each, of
 * which the last has 12 and padding.
 *
 * Ranks can form shard groups (mesh.shard). The ranks of a group divide a bucket among themselves, by
 * their shard ranks, and the groups hold copies of each other: the ranks of the same shard rank, one
 * in each group, own the same part. In ordered mode such a part is made of as many pieces as there
 * are groups; each of its owners sums one piece and gives it to the others.
 *
 *     8 blocks, 4 ranks in groups of 2, one bucket
 *
 *     block     0 1 | 2 3 | 4 5 | 6 7
 *     owners    0 and 2   | 1 and 3
 *     piece of   0  |  2  |  1  |  3
 *
 * --- pipeline (mesh.pp) ---
 *
 * The ranks of a pipeline have some of the layers each and take the same leaves; pipelines share the
 * batch. The ranks of one stage are data-parallel among themselves. They are neighbours, because
 * their gradients are large, while activations between stages are small.
 *
 *     6 ranks, mesh.pp: 3             pipeline 0   pipeline 1
 *                             stage 0     0            1       the first layers
 *                             stage 1     2            3
 *                             stage 2     4            5       the last layers
 *
 * --- tensors (mesh.tp) ---
 *
 * A tp group is made of ranks side by side, has one model (parallel/mp_group.h), and takes the same
 * leaves; tp groups share the batch. The ranks of the same place in their groups have the same part
 * of the model and sum its gradient.
 *
 *     6 ranks, mesh.tp: 2      tp group   0     1     2
 *                              ranks     0 1   2 3   4 5       0, 2 and 4 sum their gradients
 *
 * With a pipeline each stage of each pipeline is a tp group. The ranks of the same place in their
 * groups are a slice of the mesh (ls_mesh_slice), and a slice is a mesh of pipelines of its own: a
 * rank sends its activations to the rank of its slice in the next stage.
 *
 *     8 ranks, mesh.pp: 2, mesh.tp: 2            pipeline 0   pipeline 1
 *                                       stage 0     0 1          2 3     slices: 0 2 4 6 and
 *                                       stage 1     4 5          6 7             1 3 5 7
 *
 * --- context (mesh.cp) ---
 *
 * A cp group is made of neighbours (with mesh.tp, of neighbouring tp groups) that have a piece of
 * every sequence of the same leaves each (model/pass_context.c). They have the whole model and are
 * data-parallel in all but attention. The batch then counts pieces, cp of them for each leaf:
 *
 *     5 leaves, 4 ranks, mesh.cp: 2      cp group  0: leaves 0 1 2            1: leaves 3 4
 *                                        ranks     0            1            2         3
 *                                        pieces    0 1 2        3 4 5        6 7       8 9
 *
 * --- experts (mesh.ep) ---
 *
 * Data-parallel ranks side by side have some of the experts each, and all of everything else. They
 * share the batch, and gradients of what is no expert are summed over all of them. With mesh.tp the
 * ranks of the same place in neighbouring tp groups divide the experts: a tp group has some of them,
 * and each of its ranks a slice of these. Replicas are the ranks that have the same part of
 * everything (ls_mesh_of_replicas).
 *
 *     8 ranks, mesh.ep: 2, mesh.tp: 2      ranks      0 1   2 3   4 5   6 7
 *                                          experts     a     b     a     b
 *                                          replicas   0 4,  1 5,  2 6,  3 7                         */
#pragma once
#include "comm/ordered.h"
#include "config/run.h"

LS_C_BEGIN

/* Where a rank is. */
typedef struct ls_mesh_place {
    int node;  /* numbered from 0, in the order of their first ranks */
    int seat;  /* its number among the ranks of the node */
    int ranks; /* on that node */
} ls_mesh_place;

typedef struct ls_mesh {
    int ranks, rank; /* 0 ranks count as one */
    int zero;     /* what ranks divide: 0 nothing, 1 the update, 2 gradients too, 3 weights too */
    int pp;       /* stages of a pipeline; 0 and 1: no pipeline */
    int tp;       /* ranks of a tp group; 0 and 1: each rank has all of its layers */
    int cp;       /* ranks of a cp group; 0 and 1: each rank has whole sequences */
    int ep;       /* ranks that divide experts; 0 and 1: each rank, or tp group, has all of them */
    int shard;    /* ranks of a shard group; 0: all */
    bool by_node; /* the groups are the nodes (places); otherwise runs of ranks */
    int local;    /* ranks on this machine */
    int64_t bucket; /* norm blocks that each rank has of a bucket; 0: there is one bucket */
    /* Leaves in a second, of each rank, up to a factor; borrowed; NULL: equal. */
    const double *weights;
    /* The weights change while the run goes on: no rank has more than twice an equal share, and
     * each keeps a leaf while there are enough, so that its speed stays known. */
    bool balance;
    int nodes;                   /* machines; 0 counts as one */
    const ls_mesh_place *places; /* of each rank, borrowed; NULL: all are on one node */
    bool
        independent; /* sync: local, ps: each rank has weights of its own; a step sums no gradients */
    int servers;     /* sync: ps: the first ranks, which own the parts (param_server.h); 0: none */
    bool buddies;    /* a peer keeps a copy of what each rank has alone (replicas.h) */
    bool blind; /* not all ranks can write their parts of a checkpoint: the first saves for all */
} ls_mesh;

enum { LS_MESH_RANKS = 4096, LS_MESH_WORKERS = 64 }; /* at most; of sync: ps */

/* The mesh that a run asks for. LS_EUSAGE: these ranks cannot form it; why, and what they can. */
ls_status ls_mesh_init(ls_mesh *mesh, const ls_run *run, int ranks, int rank);

static inline int ls_mesh_ranks(const ls_mesh *mesh)
{
    return mesh && mesh->ranks > 1 ? mesh->ranks : 1;
}

/* Stages of a pipeline, and how many pipelines there are; the stage of a rank, and its pipeline. With
 * mesh.tp: of the mesh of tp groups (ls_mesh_slice). */
static inline int ls_mesh_pp(const ls_mesh *mesh)
{
    return mesh && mesh->pp > 1 ? mesh->pp : 1;
}
static inline int ls_mesh_pipelines(const ls_mesh *mesh)
{
    return ls_mesh_ranks(mesh) / ls_mesh_pp(mesh);
}
static inline int ls_mesh_pp_rank(const ls_mesh *mesh, int rank)
{
    return rank / ls_mesh_pipelines(mesh);
}
static inline int ls_mesh_pipeline(const ls_mesh *mesh, int rank)
{
    return rank % ls_mesh_pipelines(mesh);
}

/* The ranks of this one's stage, as a mesh of their own: rank i is in pipeline i. */
ls_mesh ls_mesh_stage(const ls_mesh *mesh);

/* Ranks of a tp group, which take the same leaves; and how many tp groups there are. */
static inline int ls_mesh_tp(const ls_mesh *mesh)
{
    return mesh && mesh->tp > 1 ? mesh->tp : 1;
}
static inline int ls_mesh_tp_groups(const ls_mesh *mesh)
{
    return ls_mesh_ranks(mesh) / ls_mesh_tp(mesh);
}

/* Ranks that divide experts; and ranks side by side that hold one model between them, tp x ep. */
static inline int ls_mesh_ep(const ls_mesh *mesh)
{
    return mesh && mesh->ep > 1 ? mesh->ep : 1;
}
static inline int ls_mesh_mp(const ls_mesh *mesh)
{
    return ls_mesh_tp(mesh) * ls_mesh_ep(mesh);
}

/* Whether no rank has all weights. */
static inline bool ls_mesh_parts_weights(const ls_mesh *mesh)
{
    return mesh && (mesh->zero == 3 || mesh->pp > 1 || ls_mesh_mp(mesh) > 1);
}

/* Ranks of a cp group; and the leaves of the cp group of a rank that has these pieces. In a mesh
 * without mesh.tp: rank r has place r % cp in its cp group. */
static inline int ls_mesh_cp(const ls_mesh *mesh)
{
    return mesh && mesh->cp > 1 ? mesh->cp : 1;
}
static inline ls_ordered_run ls_mesh_cp_leaves(const ls_mesh *mesh, int rank, ls_ordered_run own)
{
    int cp = ls_mesh_cp(mesh);

    return (ls_ordered_run){.first = (own.first - rank % cp * own.count) / cp, .count = own.count};
}

/* The rank that has place i in a rank's cp group. */
static inline int ls_mesh_cp_peer(const ls_mesh *mesh, int rank, int i)
{
    int cp = ls_mesh_cp(mesh), tp = ls_mesh_tp(mesh);

    return (rank / tp / cp * cp + i) * tp + rank % tp;
}

/* Whether every rank computes with all layers, and all of each. */
static inline bool ls_mesh_whole(const ls_mesh *mesh)
{
    return ls_mesh_pp(mesh) == 1 && ls_mesh_mp(mesh) == 1;
}

/* This rank's slice: the mesh whose ranks are the tp groups; it shares the batch. And the mesh of this
 * rank's replicas, with which it sums all of its gradients. */
ls_mesh ls_mesh_slice(const ls_mesh *mesh);
ls_mesh ls_mesh_of_replicas(const ls_mesh *mesh);

/* Ranks of a shard group, and how many groups there are; the place of a rank in its group, and the
 * number of the group. Rank 0 has place 0 in group 0. */
int ls_mesh_shard_ranks(const ls_mesh *mesh);
int ls_mesh_shard_groups(const ls_mesh *mesh);
int ls_mesh_shard_rank(const ls_mesh *mesh, int rank);
int ls_mesh_shard_group(const ls_mesh *mesh, int rank);

/* The shard groups that a run asks for, when the places are known. LS_EUSAGE: these ranks cannot
 * form them; why, and what they can. */
ls_status ls_mesh_set_shard(ls_mesh *mesh, const ls_run *run);

/* Whether every rank writes its part of a checkpoint. */
static inline bool ls_mesh_saves_parts(const ls_mesh *mesh)
{
    return ls_mesh_ranks(mesh) > 1 && !mesh->independent && !mesh->blind;
}

/* Ranks that own parts: the servers, or all. */
static inline int ls_mesh_owners(const ls_mesh *mesh)
{
    return mesh && mesh->servers > 0 ? mesh->servers : ls_mesh_ranks(mesh);
}

/* Whether no rank has all moments. */
static inline bool ls_mesh_divides(const ls_mesh *mesh)
{
    return mesh && (mesh->zero > 0 || mesh->servers > 0 || mesh->pp > 1 || ls_mesh_mp(mesh) > 1);
}

/* Places from any numbers of nodes, which are in `node` already. Returns how many nodes there are.
 */
int ls_mesh_places(ls_mesh_place *places, int ranks);

/* The leaves of all ranks, or of one; with mesh.cp both numbers are of pieces. */
void ls_mesh_split(const ls_mesh *mesh, int64_t leaves, ls_ordered_run *runs_out);
ls_ordered_run ls_mesh_leaves(const ls_mesh *mesh, int64_t leaves, int rank);

/* The most leaves that a rank has with any weights, where these may change; else as it has. */
int64_t ls_mesh_most(const ls_mesh *mesh, int64_t leaves, int rank);

/* --- buckets ------------------------------------------------------------------------------------
 */

enum { LS_MESH_BUCKETS = 64 }; /* there are never more */

/* How many buckets `trained` elements are cut into; at least one. */
int ls_mesh_buckets(const ls_mesh *mesh, int64_t trained);

typedef struct ls_mesh_part {
    int64_t first, count; /* elements; count: without padding, may be 0 */
    int64_t each;         /* elements of every such part, padding included */
    int64_t packed;       /* where it begins among what the rank has of all buckets */
} ls_mesh_part;

/* Bucket number i, whole; and the part of it that a rank owns. */
ls_mesh_part ls_mesh_bucket(const ls_mesh *mesh, int64_t trained, int i);
ls_mesh_part ls_mesh_part_of(const ls_mesh *mesh, int64_t trained, int i, int rank);

/* The piece of it that this rank sums for the ranks that own the same part: all of it where there are
 * none. packed: as of the part. */
ls_mesh_part ls_mesh_piece_of(const ls_mesh *mesh, int64_t trained, int i, int rank);

/* Elements that a rank owns, of all buckets. */
int64_t ls_mesh_own(const ls_mesh *mesh, int64_t trained, int rank);

/* ls_mesh.bucket for buckets of `bytes` of fp32, or a little more. */
int64_t ls_mesh_bucket_blocks(const ls_mesh *mesh, int64_t bytes);

LS_C_END
