/* dp_device_impl.h -- what dp_device.c and dp_device_rounds.c share. */
#pragma once
#include "parallel/dp_device.h"
#include "parallel/dp_impl.h"

LS_C_BEGIN

/* ZeRO 2 and 3. */
typedef struct ls_dp_device_rounds {
    float *places;      /* owned, device: LS_DP_AHEAD, each of place_elements */
    float *stacks;      /* owned, device, ordered: `slots` nodes of the own pieces, */
    float *tied_stacks; /* owned, device: the same of second gradients */
    int64_t own, tied;  /* elements of such a node */
    int64_t *before;    /* owned: [buckets], of the own pieces, those of the buckets before */
    int *heights;       /* owned: [rounds][ranks], of each rank's stack before the round */
    int *first_slot;    /* owned: of each rank */
    float **tops;       /* owned: [ranks]: what came in the last round and is a root */
    int64_t slots, place_elements;
} ls_dp_device_rounds;

struct ls_dp_device {
    ls_dp_device_args args;
    int rank, ranks, next; /* the next bucket; -1: all are queued */
    bool begun;
    ls_ordered_plan plan; /* of the runs and leaves that follow */
    ls_ordered_run *runs; /* owned: [ranks] */
    int64_t leaves;
    int *roots;      /* owned: [ranks], how many each has */
    float *area;     /* owned, device: `room` roots of others, each `stride` elements */
    float *tied_sum; /* owned, device */
    int64_t room, stride;
    ls_dp_device_rounds rounds;
};

/* What a rank sums of a bucket, or of the second gradient of one: where in a buffer, how much. */
typedef struct ls_dp_device_share_of {
    int64_t at, count;
} ls_dp_device_share_of;

ls_dp_device_share_of ls_dp_device_share_at(const ls_dp_device *x, int bucket, bool tied, int rank);

/* A message to a rank of all, or from it; nothing when it is empty. In a group of calls. */
ls_status ls_dp_device_message(ls_dp_device *x, bool sends, int peer, float *at, int64_t count);

void ls_dp_device_add(const ls_dp_device *x, const float *a, const float *b, float *out, int64_t n);

/* Nodes of the tree are added along the plan, a sum in the left one's place, the last to out. */
typedef float *(*ls_dp_device_node)(const ls_dp_device *x, const void *context,
                                    const ls_ordered_step *step);
void ls_dp_device_combine(const ls_dp_device *x, ls_dp_device_node node, const void *context,
                          int64_t count, float *out);

/* The second gradient's sum, added to the first's: sums of the own piece of a bucket. */
void ls_dp_device_tie(const ls_dp_device *x, int bucket, float *sums);

/* What this rank has summed of its part of a bucket, with the ranks that own the same part. */
ls_status ls_dp_device_share_part(ls_dp_device *x, int bucket, float *part);

/* dp_device_rounds.c: ZeRO 2 and 3. */
int64_t ls_dp_device_rounds_bytes(const ls_dp_args *args);
ls_status ls_dp_device_open_rounds(ls_dp_device *x);
void ls_dp_device_close_rounds(ls_dp_device *x);

LS_C_END
