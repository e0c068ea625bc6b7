/* dp_impl.h -- what dp.c and dp_sum.c share. */
#pragma once
#include "base/time.h"
#include "comm/ordered_feed.h"
#include "comm/ordered_sum.h"
#include "parallel/dp.h"
#include "parallel/compressed.h"

LS_C_BEGIN

/* A dead rank is noticed at once; this is for one that is alive and does not come. */
enum { LS_DP_WAIT_S = 600 };

/* A bucket's sum that is on its way. */
typedef struct ls_dp_flight {
    int bucket;
    bool tied;    /* of the second gradient */
    int place;    /* where there are places: which of them */
    bool arrived; /* fast: it was seen to have arrived: no wait is needed */
} ls_dp_flight;

struct ls_dp {
    ls_dp_args args;
    int buckets;
    /* Owned where there are shard groups; otherwise `group` is that of the arguments, the other NULL. */
    ls_comm *group;          /* this rank's shard group, by shard ranks */
    ls_comm *shard_replicas; /* ranks that own the same parts, one of each group, by groups */
    ls_comm
        *piece_comm; /* all ranks, in the order of their pieces: by shard ranks, then by groups */
    int piece_rank;  /* this one's rank there */
    ls_ordered_sum *sum;  /* of `trained` elements, a part for each bucket; NULL in fast mode */
    ls_ordered_sum *tied; /* of the second gradient; NULL: none */
    float *tied_sum;      /* owned: of the own part of it */
    ls_compressed *compressed; /* sums in fast mode, where nodes compress them; NULL: they do not */
    int64_t *counts; /* owned: [buckets][ranks] elements of pieces, as many of the second gradient,
                      * by piece ranks; then [buckets][ranks of a group] elements of parts, and zeros */
    ls_ordered_run *runs; /* owned: leaves of each rank, by piece ranks */
    int *merges;          /* owned: args.merges, by piece ranks; NULL: no rounds, or fast mode */
    ls_comm_request requests[LS_MESH_BUCKETS]; /* of each bucket: fast sums */
    ls_dp_flight up[2 * LS_MESH_BUCKETS];      /* sums of this step, in the order of their start */
    int started, ended;                        /* of those */
    int next;                                  /* the next bucket to start; -1: all are */
    ls_comm_request fetches[LS_MESH_BUCKETS];  /* and gathers */
    ls_comm_request shares[LS_MESH_BUCKETS];   /* of own parts with shard_replicas */
    bool shared[LS_MESH_BUCKETS];              /* such a one is on its way */
    ls_ordered_feed *feed, *tied_feed;         /* instead of sum and tied with zero 2 and 3 */
    ls_window *window;    /* borrowed, as the next two: of this round; NULL: there are places */
    float *const *places; /* of transfers */
    float *own;
    int round;
};

static inline int64_t ls_dp_deadline(void)
{
    return ls_time_now_ns() + LS_DP_WAIT_S * LS_NS_PER_S;
}

/* Whether ranks keep only the sums of their own parts, no whole gradient. */
static inline bool ls_dp_parted(const ls_dp_args *args)
{
    return args->mesh.zero >= 2;
}

/* Whether the second gradient of a tied embedding has a sum of its own. */
static inline bool ls_dp_has_tied(const ls_dp_args *args)
{
    return args->ordered && args->tied_count > 0;
}

/* The part of a bucket that is this rank's own, and the bucket as a whole. */
static inline ls_mesh_part ls_dp_part(const ls_dp_args *args, int bucket)
{
    return ls_mesh_part_of(&args->mesh, args->trained, bucket, args->mesh.rank);
}

/* The piece of that which this rank sums in ordered mode. */
static inline ls_mesh_part ls_dp_piece(const ls_dp_args *args, int bucket)
{
    return ls_mesh_piece_of(&args->mesh, args->trained, bucket, args->mesh.rank);
}

static inline ls_mesh_part ls_dp_bucket(const ls_dp *x, int bucket)
{
    return ls_mesh_bucket(&x->args.mesh, x->args.trained, bucket);
}

/* Which piece of a bucket is the own one of a rank. */
static inline int ls_dp_piece_rank(const ls_mesh *mesh, int rank)
{
    return ls_mesh_shard_rank(mesh, rank) * ls_mesh_shard_groups(mesh) +
           ls_mesh_shard_group(mesh, rank);
}

/* Where this rank's part of a bucket begins, be it only padding. */
static inline int64_t ls_dp_own_first(const ls_dp_args *args, int bucket)
{
    ls_mesh_part whole = ls_mesh_bucket(&args->mesh, args->trained, bucket);

    return whole.first + whole.each * ls_mesh_shard_rank(&args->mesh, args->mesh.rank);
}

/* What the ranks of a group have of a bucket. */
static inline const int64_t *ls_dp_group_counts(const ls_dp *x, int bucket)
{
    return x->counts + 2 * x->buckets * x->args.mesh.ranks +
           (int64_t)bucket * ls_mesh_shard_ranks(&x->args.mesh);
}

/* Elements of the second gradient that belong to a part. */
int64_t ls_dp_tied_in(const ls_dp_args *args, ls_mesh_part part);

/* Elements of the second gradient that this rank sums, in the buckets before one. */
int64_t ls_dp_tied_before(const ls_dp_args *args, int bucket);

LS_C_END
