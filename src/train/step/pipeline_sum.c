/* pipeline_sum.c -- a pipeline's gradients are summed: over micro-batches, over pipelines, and
 * their squares over stages.
 *
 *                     pipeline 0      pipeline 1
 *     stage rank 0    chunk 0, 2  <-> chunk 0, 2     stage_comm: sums of gradients, chunk by chunk
 *                         |               |
 *     stage rank 1    chunk 1, 3  <-> chunk 1, 3     pipeline_comm: squares for the norm
 *
 * Over micro-batches. A stack of buffers is a binary counter (layout/calls.h): the gradient of a
 * micro-batch is made on top of it, and the top two are added while they are halves of one node of
 * the tree over leaves. Micro-batches come in ascending order, so the sums are those of a process
 * alone.
 *
 * Where backward is cut into halves (pass.h), the second half lags behind the first by some
 * micro-batches. Both keep the order, each of its own elements, and no element belongs to both: so
 * there are two counters over the same buffers, and nothing is kept twice. Elements of the second
 * half lie between the others, tensor by tensor:
 *
 *     3 micro-batches, the second half lags by 1       first half   second half
 *     I0, I1                                           {0+1}        {}
 *     W0                                               {0+1}        {0}
 *     I2                                               {0+1} {2}    {0}
 *     W1                                               {0+1} {2}    {0+1}
 *
 * The norm is the tree over fixed blocks of the whole gradient. A block that one rank updates alone
 * is squared by that rank. A block that a border between ranks cuts (an edge) is put together on
 * every rank, by a sum with zeros, which changes no bit, and squared by all of them. */
#include "train/step/pipeline_impl.h"

#include "base/fault.h"

/* --- over micro-batches ----------------------------------------------------------------------- */

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

/* The same of the elements that one half makes, from border to border between the halves; the gaps
 * between tensors belong to neither. */
static void add_half(const ls_step *s, int chunk, int top, bool late)
{
    const ls_model *model = s->args.model;
    ls_range own = s->pipeline->plan.chunk[chunk].own;
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

/* The head's gradient of a tied embedding: always of a first half. */
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
    const ls_step_leaves *p = &x->parts[op->micro];
    ls_range own = x->plan.chunk[op->chunk].own;
    bool late = op->what == LS_PP_SCHEDULE_BACKWARD_WEIGHT;
    int *top = late ? &x->late_top[op->chunk] : &x->top[op->chunk];

    if (!step->now.ordered || ls_pipeline_is_parted(x)) /* then the owners have the stacks */
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

/* --- over pipelines --------------------------------------------------------------------------- */

/* The gradients of sum i, buffer by buffer, from its first element on. */
static void buffers_of(const ls_step *s, int i, float *buffers[LS_ORDERED_ROOTS])
{
    const ls_pipeline *x = s->pipeline;

    for (int b = 0; b < s->args.calls.buffers; b++)
        buffers[b] = i < x->plan.chunks ? ls_pipeline_grad(x, i, b) + x->plan.chunk[i].own.first
                                        : ls_pipeline_head(x, b);
}

static ls_status start_sum(ls_step *s, int i)
{
    float *buffers[LS_ORDERED_ROOTS];

    if (!s->pipeline->sums[i])
        return LS_OK;
    if (s->pipeline->host_stage.pieces) { /* it begins when all of them are in host memory */
        ls_pipeline_take_sum(s, i);
        return LS_OK;
    }
    buffers_of(s, i, buffers);
    return ls_dp_sum_from(s->pipeline->sums[i], buffers, 0);
}

static ls_status end_sum(ls_step *s, int i)
{
    float *buffers[LS_ORDERED_ROOTS];

    if (!s->pipeline->sums[i])
        return LS_OK;
    if (s->pipeline->host_stage.pieces)
        return ls_pipeline_bring_sum(s, i);
    buffers_of(s, i, buffers);
    return ls_dp_sum_end(s->pipeline->sums[i], buffers);
}

/* On a device with a memory of its own: begin all sums, whose gradients are on their way to the
 * host, in the same order on all ranks. */
static ls_status begin_on_host(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    ls_status st = LS_OK;

    if (!x->host_stage.pieces || !x->stage_comm)
        return LS_OK;
    LS_TRY(st, ls_step_sync(s), out);
    for (int i = x->plan.chunks; i >= 0; i--)
        if (x->sums[i])
            LS_TRY(st, ls_dp_sum_from(x->sums[i], x->host_stage.sums[i], 0), out);
out:
    return st;
}

ls_status ls_pipeline_start_sums(ls_step *step)
{
    ls_pipeline *x = step->pipeline;
    ls_status st = LS_OK;

    if (ls_pipeline_is_parted(x)) /* they are summed with every micro-batch */
        return LS_OK;
    for (; x->next_sum >= 0 && x->left[x->next_sum] == 0; x->next_sum--) {
        if (x->next_sum == x->plan.chunks - 1)
            LS_TRY(st, start_sum(step, x->plan.chunks), out);
        LS_TRY(st, start_sum(step, x->next_sum), out);
    }
out:
    return st;
}

ls_status ls_pipeline_end_sums(ls_step *step)
{
    ls_pipeline *x = step->pipeline;
    ls_status st = LS_OK;

    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_REDUCE), out);
    LS_TRY(st, ls_pipeline_give_end(step), out);
    LS_TRY(st, begin_on_host(step), out);
    LS_TRY(st, end_sum(step, x->plan.chunks), out);
    for (int c = x->plan.chunks - 1; c >= 0; c--)
        LS_TRY(st, end_sum(step, c), out);
    if (ls_pipeline_is_tied(x))
        st = ls_pipeline_tie(step);
out:
    return st;
}

/* --- the norm --------------------------------------------------------------------------------- */

/* Over the ranks that have the rest: the pipeline, or, where pipelines divide it, all ranks. */
static ls_status add_up(const ls_step *s, float *numbers, int64_t n)
{
    const ls_pipeline *x = s->pipeline;

    return ls_pipeline_run(
        s, x->plan.divides ? ls_dp_args_of(s->args.dp)->comm : x->pipeline_comm,
        &(ls_coll){
            .kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = n, .in = numbers, .out = numbers});
}

/* Squares of the blocks that lie in a part that this rank updates. */
static void square_own(ls_step *s, const ls_norm2 *whole, ls_mesh_part own)
{
    int64_t end = own.first + own.count;
    int64_t first = ls_round_up(own.first, LS_NORM_BLOCK);
    ls_norm2 blocks = *whole;

    if (end < whole->n)
        end = end / LS_NORM_BLOCK * LS_NORM_BLOCK;
    if (first >= end)
        return;
    blocks.part = LS_NORM_SQUARES;
    blocks.x = ls_pipeline_gradient(s, own.first) + first - own.first;
    blocks.partials = whole->partials + first / LS_NORM_BLOCK;
    blocks.n = end - first;
    s->args.kernels->norm2(s->args.stream, &blocks);
}

/* The own elements of the edges, and zeros where others have theirs. */
static void bring_edges(const ls_step *s)
{
    const ls_pipeline *x = s->pipeline;

    s->args.kernels->fill(s->args.stream,
                          &(ls_fill){.x = x->edges, .n = x->edge_count * LS_NORM_BLOCK});
    for (int64_t i = 0; i < x->edge_count; i++)
        for (int k = 0; k < s->parts.sums.n; k++) {
            ls_mesh_part part = s->parts.sums.at[k];
            ls_range block = {x->edge_blocks[i] * LS_NORM_BLOCK, LS_NORM_BLOCK};
            ls_range own = ls_range_common(block, (ls_range){part.first, part.count});
            if (own.count > 0)
                ls_stream_copy(
                    s->args.stream, x->edges + i * LS_NORM_BLOCK + own.first - block.first,
                    ls_pipeline_gradient(s, own.first), own.count * (int64_t)sizeof *x->edges);
        }
}

ls_status ls_pipeline_norm(ls_step *s, const ls_norm2 *whole)
{
    ls_pipeline *x = s->pipeline;
    int64_t blocks = (whole->n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    ls_norm2 join = *whole, edge = *whole;
    ls_status st = LS_OK;

    s->args.kernels->fill(s->args.stream, &(ls_fill){.x = whole->partials, .n = blocks});
    for (int i = 0; i < s->parts.sums.n; i++)
        square_own(s, whole, s->parts.sums.at[i]);
    LS_TRY(st, add_up(s, whole->partials, blocks), out);
    if (x->edge_count > 0) {
        bring_edges(s);
        LS_TRY(st, add_up(s, x->edges, x->edge_count * LS_NORM_BLOCK), out);
    }
    for (int64_t i = 0; i < x->edge_count; i++) {
        int64_t block = x->edge_blocks[i];
        edge.part = LS_NORM_SQUARES;
        edge.x = x->edges + i * LS_NORM_BLOCK;
        edge.partials = whole->partials + block;
        edge.n = ls_min_i64(LS_NORM_BLOCK, whole->n - block * LS_NORM_BLOCK);
        s->args.kernels->norm2(s->args.stream, &edge);
    }
    join.part = LS_NORM_JOIN;
    s->args.kernels->norm2(s->args.stream, &join);
out:
    return st;
}
