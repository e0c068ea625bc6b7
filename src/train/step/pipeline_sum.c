/* pipeline_sum.c -- a chunk's gradients of several micro-batches, summed along the tree over leaves.
 *
 * A stack of buffers, a binary counter (layout/calls.h): the gradient of a micro-batch is made on top
 * of it, and the top ones are added while they are halves of one node of the tree. Micro-batches
 * come in ascending order, so the sums are those of a process alone.
 *
 * Where backward is cut into halves (pass.h), the second lags behind the first by some
 * micro-batches. Both keep the order, each of its own elements, and no element belongs to both: so
 * there are two counters over the same buffers, and nothing is kept twice. Late elements lie
 * between the others, tensor by tensor:
 *
 *     3 micro-batches, the second half lags by 1       first half   second half
 *     I0, I1                                           {0+1}        {}
 *     W0                                               {0+1}        {0}
 *     I2                                               {0+1} {2}    {0}
 *     W1                                               {0+1} {2}    {0+1} */
#include "train/step/pipeline_impl.h"

/* The top buffer into the one below, of elements of the whole model. */
static void add_top(const ls_step *s, int chunk, int top, int64_t first, int64_t end)
{
    float *below = ls_pipeline_grad(s->pipeline, chunk, top - 2) + first;

    if (first < end)
        s->args.kernels->add(s->args.stream,
                             &(ls_add){.a = below,
                                       .b = ls_pipeline_grad(s->pipeline, chunk, top - 1) + first,
                                       .out = below,
                                       .n = end - first});
}

/* The same of the elements that one half makes, from border to border between the halves; what lies
 * between tensors belongs to nobody. */
static void add_half(const ls_step *s, int chunk, int top, bool late)
{
    const ls_model *model = s->args.model;
    ls_stage_plan_range own = s->pipeline->plan.chunk[chunk].own;
    int64_t first = 0, end = 0;

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (p->trained < own.first || p->trained >= own.first + own.count ||
            ls_pass_is_late(model, p) != late)
            continue;
        if (p->trained != end) {
            add_top(s, chunk, top, first, end);
            first = p->trained;
        }
        end = p->trained + p->count;
    }
    add_top(s, chunk, top, first, end);
}

/* The head's part of a tied gradient: always of a first half. */
static void add_head(const ls_step *s, int top)
{
    float *below = ls_pipeline_head(s->pipeline, top - 2);

    s->args.kernels->add(s->args.stream, &(ls_add){.a = below,
                                                   .b = ls_pipeline_head(s->pipeline, top - 1),
                                                   .out = below,
                                                   .n = s->pipeline->plan.tied.count});
}

void ls_pipeline_merge(ls_step *step, const ls_pp_schedule_op *op)
{
    ls_pipeline *x = step->pipeline;
    const ls_step_part *p = &x->parts[op->micro];
    ls_stage_plan_range own = x->plan.chunk[op->chunk].own;
    bool late = op->what == LS_PP_SCHEDULE_WEIGHT;
    int *top = late ? &x->late_top[op->chunk] : &x->top[op->chunk];

    if (!step->now.ordered || ls_pipeline_is_parted(x)) /* then owners have the stacks */
        return;
    ++*top;
    for (int n = ls_calls_merges(&step->now, p->first, p->count); n > 0; n--, --*top) {
        if (op->what == LS_PP_SCHEDULE_BACKWARD)
            add_top(step, op->chunk, *top, own.first, own.first + own.count);
        else
            add_half(step, op->chunk, *top, late);
        if (!late && ls_pipeline_is_last_stage(x, op->chunk) && x->plan.tied.count > 0)
            add_head(step, *top);
    }
}
