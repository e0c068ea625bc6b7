/* device_exchange_impl.h -- what device_exchange.c and device_exchange_zero.c share. */
#pragma once
#include "parallel/dp_device.h"
#include "train/step/step_impl.h"

LS_C_BEGIN

struct ls_step_device_exchange {
    /* Owned; group is all where there are no shard groups, and of the others each may be NULL. */
    ls_device_comm *all, *group, *shard_replicas;
    ls_dp_device *sums;
    ls_event *complete; /* what is to be exchanged next is complete on the device */
    ls_event *done;     /* and what was exchanged, on the side */

    /* ZeRO 2 and 3. */
    ls_event *summed[LS_DP_AHEAD];      /* what lay in this place */
    ls_event *arrived[LS_MESH_BUCKETS]; /* zero 3: this bucket of the weights */
    int round, queued;                  /* transfers of this round that are queued */
};

/* Communicators, sums and their events; host memory of so many elements for what is no gradient. */
ls_status ls_step_open_device_exchange(ls_step *step, int64_t elements);

/* A new step: its number for messages. */
void ls_step_begin_device_exchange(ls_step *step);

/* The side goes on when the stream has come here; and the other way round. */
void ls_step_to_side(ls_step *step);
void ls_step_from_side(ls_step *step);

/* As ls_dp_sum_in_group() and ls_dp_gather(), queued. */
ls_status ls_step_device_sum_in_group(ls_step *step, float *numbers, int64_t n);
ls_status ls_step_device_gather(ls_step *step, float *whole);

LS_C_END
