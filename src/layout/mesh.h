/* mesh.h -- how a run is spread over ranks: who takes which leaves, who owns which parameters.
 *
 * Data parallel: every rank takes a run of the batch's leaves: nearly equal ones, or by weights, so
 * that the rank that ends last ends as early as whole leaves allow. A rank may have none. Example:
 * 24 leaves, weights 1 1 0.5: 10, 10 and 4.
 *
 * The trained elements, in their flat order, are cut into buckets: what is exchanged at a
 * time. Each bucket is divided among the ranks, in equal parts that begin at borders of norm blocks
 * (kernel.h), so that the squares of a block are summed by one rank. A rank owns its part of every
 * bucket, and keeps what it has of them packed, bucket after bucket.
 *
 *     8 blocks, 2 ranks, 2 blocks of each bucket for each rank: 2 buckets
 *
 *     block     0 1 2 3 | 4 5 6 7
 *     owner     0 0 1 1 | 0 0 1 1          rank 0 keeps 0 1 4 5, rank 1 keeps 2 3 6 7
 *
 * With servers (sync: ps) the parts are theirs, and the other ranks own nothing.
 *
 * The last bucket may be smaller, and its last parts shorter or empty: 40 blocks in one bucket, 3
 * ranks: 14 each, of which the last has 12 and padding.
 *
 * Ranks can be divided into shard groups (mesh.shard): then the ranks of a group divide a bucket
 * among themselves, by their seats, and the groups have copies of each other. Ranks of the same
 * seat, one of each group, are twins: what one owns, all of them own. A part is made of as many
 * pieces as there are twins; each twin can sum one of them and give it to the others.
 *
 *     8 blocks, 4 ranks in groups of 2, one bucket
 *
 *     block     0 1 | 2 3 | 4 5 | 6 7
 *     owners    0 and 2   | 1 and 3
 *     piece of   0  |  2  |  1  |  3
 *
 * With a pipeline (mesh.pp) ranks stand in lines. The ranks of a line have a part of the layers
 * each, by their posts, and take the same leaves; lines share the batch. Ranks of the same post
 * have the same part and are data parallel among themselves: they come one after the other, because
 * what they exchange is large, while posts pass on little.
 *
 *     6 ranks, mesh.pp: 3              line 0   line 1
 *                              post 0    0        1       the first layers
 *                              post 1    2        3
 *                              post 2    4        5       the last ones
 *
 * With mesh.tp ranks side by side are a team that has one model together (mp_group.h) and takes the
 * same leaves; teams share the batch. Ranks of the same place in their teams have the same part,
 * and are data parallel among themselves.
 *
 *     6 ranks, mesh.tp: 2      team     0    1    2
 *                              ranks   0 1  2 3  4 5       0, 2 and 4 sum their gradients
 *
 * With both, teams stand in lines: a post is a team. Ranks of the same place in their teams are
 * then a mesh of lines of their own (ls_mesh_slice), a plane: a rank passes on what it has of a
 * stream to its equal in the next team.
 *
 *     8 ranks, mesh.pp: 2, mesh.tp: 2          line 0   line 1
 *                                      post 0   0 1      2 3     planes: 0 2 4 6 and 1 3 5 7
 *                                      post 1   4 5      6 7
 *
 * With mesh.cp ranks side by side are a ring that shares every sequence (model/pass_context.c): each
 * has a piece of every sequence of the same leaves, and rings share the batch. All ranks have the
 * whole model, and are data parallel among themselves in all but attention: the batch counts
 * pieces, cp of them for each leaf, and those of a ring lie one rank behind the other.
 *
 *     5 leaves, 4 ranks, mesh.cp: 2      ring      0: leaves 0 1 2            1: leaves 3 4
 *                                        ranks     0            1            2         3
 *                                        pieces    0 1 2        3 4 5        6 7       8 9
 *
 * All of it together: what meets in every layer lies closest. A team shares the layer, teams side
 * by side share the sequence, and these groups are lines: of the batch, then of the posts. Whoever
 * looks from a team (ls_mesh_slice) or from a post (ls_mesh_of_pp_rank) sees rings as above.
 *
 *     rank = ((post x dp + d) x cp + c) x tp + t        mesh.tp within mesh.cp within dp within pp
 *
 *     16 ranks, pp 2, dp 2, cp 2, tp 2     d 0            d 1
 *                                   c 0    c 1     c 0    c 1
 *                           post 0  0 1    2 3     4 5    6 7       team 2 3, ring 1 3 (place 1)
 *                           post 1  8 9   10 11   12 13  14 15      of the plane of odd ranks
 *
 * Rank 3 is in the team of 2 and 3, in the ring of 1 and 3, which have the same heads and the other
 * piece of each sequence, and in the line of 3 and 11; it sums gradients with 1, 5 and 7.
 *
 * With mesh.ep data-parallel ranks side by side divide experts: each has some of them, and
 * everything else. They share the batch as all do, and what is not an expert is summed over all of
 * them. With a pipeline they are ranks of one post. With teams (mesh.tp) they have the same place
 * in teams side by side: a team has some of the experts, and each of its ranks a part of these.
 * With rings (mesh.cp) they are ranks of a ring, of several, or of parts of such.
 * Ranks that have the same part of everything are equals (ls_mesh_of_replicas).
 *
 *     8 ranks, mesh.ep: 2, mesh.tp: 2      ranks      0 1   2 3   4 5   6 7
 *                                          experts     a     b     a     b
 *                                          equals     0 4,  1 5,  2 6,  3 7
 *
 * Pure arithmetic. */
#pragma once
#include "comm/ordered.h"
#include "config/run.h"

LS_C_BEGIN

/* Where a rank is. */
typedef struct ls_mesh_place {
    int node;  /* numbered from 0, in the order of their first ranks */
    int seat;  /* its number among those of the node */
    int ranks; /* on that node */
} ls_mesh_place;

typedef struct ls_mesh {
    int ranks, rank; /* 0 ranks count as one: alone */
    int zero;       /* what ranks divide: 0 nothing, 1 the update, 2 gradients too, 3 weights too */
    int pp;         /* ranks of a line; 0 and 1: no pipeline */
    int tp;         /* ranks of a team; 0 and 1: each rank has a model of its own */
    int cp;         /* ranks of a ring; 0 and 1: each rank has whole sequences */
    int ep;         /* ranks that divide experts; 0 and 1: each rank, or team, has all of them */
    int shard;      /* ranks of a shard group; 0: all */
    bool by_node;   /* the groups are the nodes (places); otherwise runs of ranks */
    int local;      /* ranks on this machine */
    int64_t bucket; /* norm blocks that each rank has of a bucket; 0: there is one bucket */
    /* Leaves in a second, of each rank, up to a factor; borrowed; NULL: equal. */
    const double *weights;
    /* The weights change while the run goes on: no rank has more than twice an equal share, and
     * each keeps a leaf while there are enough, so that its speed stays known. */
    bool balance;
    int nodes;                   /* machines; 0 counts as one */
    const ls_mesh_place *places; /* of each rank, borrowed; NULL: all are on one node */
    bool
        independent; /* sync: local, ps: each rank computes by itself, no sums are made with others */
    int servers; /* sync: ps: the first ranks, which keep the parts (param_server.h); 0: all own parts */
    bool buddies; /* what each rank has alone is also kept by another one (replica_peers.h) */
    bool blind;   /* not all ranks can write their parts of a checkpoint: the first saves for all */
} ls_mesh;

enum { LS_MESH_RANKS = 4096, LS_MESH_WORKERS = 64 }; /* at most; of sync: ps */

/* The mesh that a run asks for, on so many ranks. LS_EUSAGE: it cannot be had; why, and what can.
 */
ls_status ls_mesh_init(ls_mesh *mesh, const ls_run *run, int ranks, int rank);

static inline int ls_mesh_ranks(const ls_mesh *mesh)
{
    return mesh && mesh->ranks > 1 ? mesh->ranks : 1;
}

/* Posts of a line, and how many lines there are; the post of a rank, and its line. Where there are
 * teams, of the mesh of these (ls_mesh_slice). */
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

/* The ranks of this one's post, as a mesh of their own: its ranks are the lines. */
ls_mesh ls_mesh_of_pp_rank(const ls_mesh *mesh);

/* Ranks that take the same leaves, and how many such teams share the batch. */
static inline int ls_mesh_tp(const ls_mesh *mesh)
{
    return mesh && mesh->tp > 1 ? mesh->tp : 1;
}
static inline int ls_mesh_tp_groups(const ls_mesh *mesh)
{
    return ls_mesh_ranks(mesh) / ls_mesh_tp(mesh);
}

/* Ranks that divide experts; and those side by side that have a model together, in either way. */
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

/* Ranks of a ring; and the leaves of the ring of a rank that has these pieces. In a mesh without
 * teams: rank r has place r % cp in its ring. */
static inline int ls_mesh_cp(const ls_mesh *mesh)
{
    return mesh && mesh->cp > 1 ? mesh->cp : 1;
}
static inline ls_ordered_run ls_mesh_cp_leaves(const ls_mesh *mesh, int rank, ls_ordered_run own)
{
    int cp = ls_mesh_cp(mesh);

    return (ls_ordered_run){.first = (own.first - rank % cp * own.count) / cp, .count = own.count};
}

/* The rank that has place i in a rank's ring: of its own place in another team. */
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

/* The mesh whose ranks are the teams, in lines where there are lines, and whose rank is this one's:
 * it shares the batch. And that of equals, with whom this rank sums all of its gradients. */
ls_mesh ls_mesh_slice(const ls_mesh *mesh);
ls_mesh ls_mesh_of_replicas(const ls_mesh *mesh);

/* Ranks of a shard group, and how many groups there are; the seat of a rank in its group, and the
 * number of that. Rank 0 has seat 0 in group 0. */
int ls_mesh_shard_ranks(const ls_mesh *mesh);
int ls_mesh_shard_groups(const ls_mesh *mesh);
int ls_mesh_shard_rank(const ls_mesh *mesh, int rank);
int ls_mesh_shard_group(const ls_mesh *mesh, int rank);

/* The groups that a run asks for, when the places are known. LS_EUSAGE: they cannot be had; why,
 * and what can. */
ls_status ls_mesh_set_shard(ls_mesh *mesh, const ls_run *run);

/* Whether every rank writes its part of a checkpoint. */
static inline bool ls_mesh_saves_parts(const ls_mesh *mesh)
{
    return ls_mesh_ranks(mesh) > 1 && !mesh->independent && !mesh->blind;
}

/* Ranks that own parts: the first ones, or all. */
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

/* The piece of it that this rank sums for its twins: all of it where it has none. packed: as of the
 * part. */
ls_mesh_part ls_mesh_piece_of(const ls_mesh *mesh, int64_t trained, int i, int rank);

/* Elements that a rank owns, of all buckets. */
int64_t ls_mesh_own(const ls_mesh *mesh, int64_t trained, int rank);

/* mesh.bucket for buckets of so many bytes of fp32, or a little more. */
int64_t ls_mesh_bucket_blocks(const ls_mesh *mesh, int64_t bytes);

LS_C_END
