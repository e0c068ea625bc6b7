/* step_impl.h -- what step.c, update.c and blame.c share. */
#pragma once
#include "base/window.h"
#include "plan/units.h"
#include "train/step.h"

LS_C_BEGIN

enum { LS_STEP_WAIT_S = 3600 };

struct ls_step {
    ls_step_args args;
    ls_pass *pass;
    void *state_memory[3]; /* owned: w, m, v */
    void *copy;            /* owned: w as rows read it; NULL in fp32, where that is w */
    ls_dtype type;
    void *grads[LS_ORDERED_ROOTS]; /* calls.buffers of them */
    int64_t own;                   /* trained elements that this rank updates, packed (mesh.h) */
    float *own_grad;               /* owned: zero 2 and 3: the sum of their gradients */
    ls_window grad_window;         /* zero 2 and 3: grads[0], of one call */
    struct {
        int top, merges; /* of the stack of gradients, when the last call is on it */
        int64_t from;    /* elements from here on are merged and on their way */
    } last;              /* call of the step: its gradient is exchanged while backward goes on */
    struct {
        ls_window window;           /* the weights, as far as they are there */
        ls_units_set coming, there; /* buckets */
        int64_t unit;               /* that was asked for last */
    } shards;                       /* zero 3 */
    ls_clock *clock;                /* of the step that runs; NULL: none does */
    ls_status status;               /* of what was exchanged inside of a pass, */
    ls_err_record why;              /* unless it is LS_OK */
    void *small;                    /* owned: everything below */
    int32_t *tokens, *targets, *start;
    float *losses;
    double *sums; /* of losses: per leaf in a step, per sequence in validation */
    float *partials;
    ls_adamw_span *spans;
    int64_t first_span[LS_MESH_BUCKETS + 1]; /* of each bucket */
    ls_norm_result *norm;
    ls_step_state *state;
    void *staging;              /* owned, host: the next four */
    int32_t *host_tokens;       /* tokens, targets, starts */
    ls_step_state *host_states; /* of each call */
    double *host_sums;
    ls_norm_result *host_norm;
    bool isolated;   /* the batch on the device has document starts */
    int64_t counted; /* targets of the last step's batch */
    float *look;     /* a block of numbers under examination, while blaming */
};

/* A call of this rank: its number and its leaves of the batch. */
typedef struct ls_step_part {
    int64_t number, first, count;
} ls_step_part;

/* The first call, and the one after another; false past the last. */
bool ls_step_next(const ls_step *step, ls_step_part *part);

/* The call over the batch that lies on the device, its gradient into grads[buffer]. */
ls_pass_call ls_step_call(ls_step *step, const ls_step_part *part, int buffer);

/* Its forward pass; dropout is keyed by the sequence's number in the global batch. */
void ls_step_forward(ls_step *step, const ls_step_part *part, const ls_pass_call *call,
                     ls_step_state *host_state);

/* The numbers of a step that rows read on the device. */
ls_step_state ls_step_numbers(const ls_step *step, int64_t number, double lr);

/* Each rank updates its own part of the weights, and the others read it. */
static inline bool ls_step_divides(const ls_step *step)
{
    return step->args.dp && ls_dp_about(step->args.dp)->mesh.zero > 0;
}

/* No rank keeps a whole gradient; nor whole weights. */
static inline bool ls_step_parts(const ls_step *step)
{
    return step->args.dp && ls_dp_about(step->args.dp)->mesh.zero >= 2;
}
static inline bool ls_step_shards(const ls_step *step)
{
    return step->args.dp && ls_dp_about(step->args.dp)->mesh.zero == 3;
}

/* Weights of a unit, before a call of the pass reads them (zero 3); drop them all: they have
 * changed. */
void ls_step_need(void *context, int64_t unit);
ls_status ls_step_forget(ls_step *step);

/* The weights as a pass reads them. */
static inline const void *ls_step_read(const ls_step *step)
{
    return ls_step_shards(step) ? step->shards.window.base
           : step->copy         ? step->copy
                                : step->state_memory[0];
}

/* Buckets of parameters that this rank updates apart from each other, and what it has of each: all
 * of the one bucket where it updates everything. */
static inline int ls_step_buckets(const ls_step *step)
{
    return ls_step_divides(step) ? ls_dp_buckets(step->args.dp) : 1;
}
ls_mesh_part ls_step_own(const ls_step *step, int bucket);

/* What the optimizer reads about parameters, to the device. */
ls_status ls_step_send_spans(ls_step *step);

/* From the sum of gradients in grads[0] to new weights on every rank. */
ls_status ls_step_update(ls_step *step, ls_clock *clock);

LS_C_END
