/* step_mode.h -- what differs between the ways to be parallel, as two tables that ls_step_open()
 * reads once.
 *
 * ls_step_mode: which calls a rank computes in a step, and which elements it sums, updates and
 * keeps.
 *
 *     row                  file             fits
 *     pipeline             pipeline.c       mesh.pp
 *     expert + ZeRO 2, 3   expert_step.c    mesh.ep, gradients or weights divided
 *     expert               expert_step.c    mesh.ep
 *     ZeRO 2, 3            zero_step.c      mesh.zero: 2, 3
 *     ZeRO 1               zero_step.c      mesh.zero: 1
 *     dense                dense_step.c     everything else
 *
 * ls_step_exchange: how gradients, weights and numbers reach the other ranks.
 *
 *     row          file                 fits
 *     single       in_place_exchange.c  no other rank
 *     in place     in_place_exchange.c  ranks read each other's memory, or the communicator reads it
 *     pipeline     pipeline_zero.c      the same in a pipeline: weights of ZeRO 3
 *     host zero    host_stage_zero.c    the device has a memory of its own, with ZeRO 2 or 3
 *     device zero  device_exchange_zero.c   collectives of device memory: replicas, ZeRO 2 and 3
 *     device       device_exchange.c    the same with ZeRO 0 and 1
 *     host stage   host_stage.c         the device has a memory of its own
 *
 * A function of a mode that is NULL does what a rank with the whole model does, or nothing; one of
 * an exchange calls parallel/dp.h with the memory itself, or does nothing.
 *
 * Tensor-parallel and expert-parallel groups (group_step.c) are one more axis: they put
 * their norm, collect and scatter around those of the row. */
#pragma once
#include "layout/zero_units.h"
#include "train/step/step.h"

LS_C_BEGIN

typedef struct ls_step_exchange ls_step_exchange;

typedef struct ls_step_mode {
    bool (*fits)(const ls_step_args *args); /* the first row that fits is the mode */

    /* Opening. plan: what must be known before memory is taken; parts: of the gradient, those whose
     * sums this rank has; weights: of the flat weights, those that it keeps (parts_out may be NULL;
     * both return how many); memory: weights, moments, gradients and the pass. */
    ls_status (*plan)(ls_step *step);
    int (*parts)(const ls_step *step, ls_mesh_part *parts_out);
    int (*weights)(const ls_step *step, ls_mesh_part *parts_out);
    const ls_step_exchange *exchange; /* where ranks reach each other's memory; NULL: direct */
    bool graphs; /* calls may be recorded (step_graph.c): passes exchange nothing */
    ls_status (*memory)(ls_step *step);

    /* A step. split: the leaves of all ranks change; gradients: the sum over all calls of all
     * ranks; ready: backward has completed elements `from` and above of a call's gradient;
     * gradient: where the sum of one element lies; norm: of that sum, to step->norm; spread: after
     * the update, the new weights to the ranks that read them. */
    ls_status (*split)(ls_step *step, const ls_ordered_run *runs);
    ls_status (*gradients)(ls_step *step, ls_step_state *host_state, ls_step_clock *clock);
    void (*ready)(ls_step *step, int64_t from);
    float *(*gradient)(const ls_step *step, int64_t element);
    ls_status (*norm)(ls_step *step, const ls_norm2 *whole);
    ls_status (*spread)(ls_step *step, ls_step_clock *clock);

    /* Forward only. rounds: how many times all ranks meet in a step; forward: one call through all
     * layers; idle: this rank has no call while others have one; empty_round: the same in a step,
     * forward and backward. */
    int64_t (*rounds)(const ls_step *step);
    ls_status (*forward)(ls_step *step, const ls_pass_call *call);
    void (*idle)(ls_step *step);
    void (*empty_round)(ls_step *step, const ls_pass_call *call, ls_step_clock *clock);

    /* The state from outside. changed: weights were written; complete: each rank has written the
     * weights that it updates, now all ranks get all that they read; collect and scatter: of the ranks
     * with the same slice of the model; keep: ls_step_keep(). */
    void (*changed)(ls_step *step);
    ls_status (*complete)(ls_step *step);
    ls_status (*collect)(ls_step *step, const float *part, float *whole);
    ls_status (*scatter)(ls_step *step, const float *whole, float *part);
    ls_status (*keep)(ls_step *step, void *kept_out[3]);
} ls_step_mode;

extern const ls_step_mode ls_step_mode_pipeline, ls_step_mode_expert_zero, ls_step_mode_expert,
    ls_step_mode_zero, ls_step_mode_zero_update, ls_step_mode_dense;

struct ls_step_exchange {
    bool shares; /* other ranks read this rank's memory where it lies: ls_comm_alloc() */

    /* Gradients: `elements` of each buffer; with ZeRO 2 and 3 a window and the own sums, too. */
    ls_status (*open)(ls_step *step, int64_t elements);
    ls_status (*open_parts)(ls_step *step, int64_t elements);

    /* A sum. begin: before the calls of a step; ready: elements `from` and above of the buffers are
     * complete; leave: the same of `buffers` of them, also of calls in a graph; sum: wait for
     * the end. With ZeRO 2 and 3 all of it once a round: round before it,
     * end_round after it, and at last bring: the sums to the device. */
    void (*begin)(ls_step *step, int64_t elements);
    ls_status (*ready)(ls_step *step, int64_t from);
    void (*leave)(ls_step *step, int64_t from, int buffers);
    ls_status (*sum)(ls_step *step, ls_step_clock *clock);
    void (*round)(ls_step *step, int round);
    ls_status (*end_round)(ls_step *step);
    void (*bring)(ls_step *step);

    /* Weights of ZeRO. spread: the updated ones of ZeRO 1 and 2 to all; fetch: a bucket of ZeRO 3
     * from its owners; fetched: it is here, or is not wanted any more; drop: pages of a set; changed:
     * the own weights are new. */
    ls_status (*spread)(ls_step *step);
    ls_status (*fetch)(ls_step *step, int bucket);
    ls_status (*fetched)(ls_step *step, int bucket, bool wanted);
    void (*drop)(ls_step *step, ls_zero_units_set gone);
    void (*changed)(ls_step *step);

    /* As the functions of parallel/dp.h with these names, of memory of the device. */
    ls_status (*sum_in_group)(ls_step *step, float *numbers, int64_t n);
    ls_status (*gather)(ls_step *step, float *whole);
    ls_status (*broadcast)(ls_step *step, int from, void *memory, int64_t bytes);
    ls_status (*collect)(ls_step *step, const float *part, float *whole);
    ls_status (*scatter)(ls_step *step, const float *whole, float *part);
};

extern const ls_step_exchange ls_step_exchange_single, ls_step_exchange_in_place,
    ls_step_exchange_pipeline, ls_step_exchange_host_zero, ls_step_exchange_host_stage,
    ls_step_exchange_device, ls_step_exchange_device_zero;

LS_C_END
