/* pipeline_bytes.h -- how many bytes a rank of a pipeline sends in a step, by formula: tests hold the
 * counters of train/step/pipeline_impl.h against it. */
#pragma once
#include "layout/stage_plan.h"
#include "model/pass.h"

/* Elements of a tied embedding that this rank sends along: the last one of a gradient, the first
 * one of weights. */
static int64_t tied_sent(const ls_stage_plan *pipe)
{
    int64_t n = 0;

    if (ls_stage_plan_is_last(pipe))
        return ls_stage_plan_tied_part(pipe, pipe->pipeline).count;
    if (!ls_stage_plan_is_first(pipe))
        return 0;
    for (int b = 0; b < ls_stage_plan_buckets(pipe, 0, 0) && pipe->zero == 3; b++)
        n +=
            ls_range_common(pipe->tied, ls_stage_plan_updated(pipe, 0, pipe->pipeline, 0, b)).count;
    return pipe->zero == 3 ? n : pipe->tied.count;
}

/* Bytes that a rank sends along its pipeline in a step: streams, gradients and, where the embedding is
 * tied, the head's part of its gradient from the last stage to the first, and its weights back. Sums of
 * a few numbers (the norm, losses) come on top. */
static int64_t pipeline_sent_bytes(const ls_stage_plan *pipe, const ls_model *model,
                                   const ls_calls *calls, ls_dtype type)
{
    int64_t end_leaf = calls->first + calls->own, messages = 0, stream = 0;

    for (int64_t leaf = calls->first, n; leaf < end_leaf; leaf += n) {
        n = ls_calls_at(calls, leaf);
        stream += ls_pass_stream(model, n * calls->leaf * ls_calls_tokens(calls, model->shape.T));
    }
    for (int c = 0; c < pipe->chunks; c++) {
        int stage = c * pipe->pp_ranks + pipe->pp_rank;
        messages += stage < pipe->pp_ranks * pipe->chunks - 1;
        messages += stage > 0 ? ls_pass_border(model) : 0;
    }
    return messages * stream * ls_dtype_bytes(type) + tied_sent(pipe) * (int64_t)sizeof(float);
}

/* How often the weights of a bucket come in a step. */
static int64_t gathers_of(const ls_stage_plan *pipe, const ls_model *model, const ls_run *run,
                          int chunk, int bucket)
{
    const ls_stage_plan_chunk *x = &pipe->chunk[chunk];
    int64_t first = x->unit + bucket * pipe->per;
    int64_t end = ls_min_i64(first + pipe->per, x->unit + x->units);
    bool reads = end > 1; /* more than the embedding, in backward; */
    bool again = reads && first <= model->shape.L && x->late > 0 &&
                 run->train.recompute != LS_RECOMPUTE_NONE; /* blocks, in its second half */

    return pipe->zero < 3 ? 1 : pipe->table.micros * (1 + reads + again);
}

/* With ZeRO 2 and 3: bytes that a rank sends to other pipelines in a step. Of gradients, what they
 * update, for each micro-batch (in fast mode, empty ones too); of weights, what it updates, once, or
 * with ZeRO 3 in the model's type whenever a bucket of its chunks is read: in forward and in backward of
 * every micro-batch, and in the second half of a backward that recomputes. */
static int64_t pipeline_across_bytes(const ls_stage_plan *pipe, const ls_model *model,
                                     const ls_run *run, const ls_calls *calls, ls_dtype type)
{
    int64_t sums = calls->ordered ? calls->calls : pipe->table.micros, others = pipe->pipelines - 1;
    int64_t size = sizeof(float), read = pipe->zero == 3 ? ls_dtype_bytes(type) : size, bytes = 0;

    for (int c = 0; c < pipe->chunks; c++)
        for (int b = 0; b < ls_stage_plan_buckets(pipe, pipe->pp_rank, c); b++) {
            ls_range all = ls_stage_plan_bucket(pipe, pipe->pp_rank, c, b);
            ls_range own = ls_stage_plan_updated(pipe, pipe->pp_rank, pipe->pipeline, c, b);
            bytes += sums * (all.count - own.count) * size +
                     gathers_of(pipe, model, run, c, b) * own.count * others * read;
        }
    if (ls_stage_plan_is_last(pipe) && pipe->tied.count > 0) {
        int64_t own = ls_stage_plan_tied_part(pipe, pipe->pipeline).count;
        bytes += sums * (pipe->tied.count - own) * size;
        bytes += pipe->zero == 3 ? 2 * pipe->table.micros * own * others * read : 0;
    }
    return bytes;
}
