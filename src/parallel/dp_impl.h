/* dp_impl.h -- what dp.c and dp_sum.c share. */
#pragma once
#include "base/time.h"
#include "comm/ordered_feed.h"
#include "comm/ordered_sum.h"
#include "parallel/dp.h"
#include "parallel/narrow.h"

LS_C_BEGIN

/* A dead rank is noticed at once; this is for one that is alive and does not come. */
enum { LS_DP_WAIT_S = 600 };

/* Buckets on their way at a time where ranks keep no whole gradient: each holds memory. */
enum { LS_DP_AHEAD = 4 };

/* A bucket's sum that is on its way. */
typedef struct ls_dp_flight {
    int bucket;
    bool tied; /* of the second gradient */
} ls_dp_flight;

struct ls_dp {
    ls_dp_args args;
    int buckets;
    ls_ordered_sum *sum;  /* of `trained` elements, a part for each bucket; NULL in fast mode */
    ls_ordered_sum *tied; /* of the second gradient; NULL: none */
    float *tied_sum;      /* owned: of the own part of it */
    ls_narrow *narrow;    /* sums in fast mode, where nodes squeeze them; NULL: they do not */
    int64_t *counts; /* owned: [buckets][ranks] elements, as many of the second gradient, zeros */
    ls_ordered_run *runs;                      /* owned: leaves of each rank */
    ls_comm_request requests[LS_MESH_BUCKETS]; /* of each bucket: fast sums, gathers */
    ls_dp_flight up[2 * LS_MESH_BUCKETS];      /* sums of this step, in the order of their start */
    int started, ended;                        /* of those */
    int next;                                  /* the next bucket to start; -1: all are */
    ls_comm_request fetches[LS_MESH_BUCKETS];
    ls_ordered_feed *feed, *tied_feed; /* instead of sum and tied with zero 2 and 3 */
    ls_window *window;                 /* borrowed, as own: of this round */
    float *own;
    int round;
};

static inline int64_t ls_dp_deadline(void)
{
    return ls_time_now_ns() + LS_DP_WAIT_S * LS_NS_PER_S;
}

/* Whether nobody keeps a whole gradient. */
static inline bool ls_dp_parted(const ls_dp_args *args)
{
    return args->mesh.zero >= 2;
}

/* Whether a second gradient is summed apart. */
static inline bool ls_dp_has_tied(const ls_dp_args *args)
{
    return args->ordered && args->tied_count > 0;
}

/* The part of a bucket that is this rank's own, and the bucket as a whole. */
static inline ls_mesh_part ls_dp_part(const ls_dp_args *args, int bucket)
{
    return ls_mesh_part_of(&args->mesh, args->trained, bucket, args->mesh.rank);
}

static inline ls_mesh_part ls_dp_bucket(const ls_dp *x, int bucket)
{
    return ls_mesh_bucket(&x->args.mesh, x->args.trained, bucket);
}

/* Elements of the second gradient that belong to a part. */
int64_t ls_dp_tied_in(const ls_dp_args *args, ls_mesh_part part);

/* Elements of the second gradient that this rank owns, in the buckets before one. */
int64_t ls_dp_tied_before(const ls_dp_args *args, int bucket);

LS_C_END
