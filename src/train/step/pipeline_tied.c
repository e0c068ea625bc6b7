/* pipeline_tied.c -- a tied embedding in a pipeline: the first stage reads the matrix as embedding,
 * the last one as head.
 *
 *                       first stage                          last stage
 *     backward          gradient of the embedding            gradient of the head
 *     over pipelines    sum of these                         a sum of its own
 *     tie               added, as a process alone does  <--  sent
 *     update            new weights                     -->  copy
 *
 * The matrix belongs to the first stage. Both gradients are summed over leaves and over pipelines,
 * each by itself; only then are they added, so the bits are those of one process. Rejected:
 * both ends exchange gradients and update alike. That takes moments and one more gradient in the
 * last stage, which has the head's work already.
 *
 * With ZeRO 2 and 3 the pipelines divide both gradients, each in its own way: a rank of the last
 * stage sends what it has to the ranks of the first stage that update these elements. With ZeRO 3
 * they divide the copy of the weights likewise. */
#include "train/step/pipeline_impl.h"

/* ZeRO 2 and 3: the parts of the head's gradient that ranks of the last stage have, to the ranks of
 * the first stage that update them; or, the other way round, the weights. One pair after the other,
 * in the same order on all ranks. The bytes that this rank sends are added to *sent. */
static ls_status swap_tied(const ls_step *s, bool gradient, int64_t *sent)
{
    const ls_pipeline *x = s->pipeline;
    const ls_stage_plan *plan = &x->plan;
    int pipelines = plan->pipelines, buckets = ls_stage_plan_buckets(plan, 0, 0);
    int me = plan->pp_rank * pipelines + plan->pipeline;
    ls_status st = LS_OK;

    for (int i = 0; i < pipelines * pipelines * buckets && plan->tied.count > 0; i++) {
        int low = i / buckets % pipelines, last = i / buckets / pipelines;
        int high = (plan->pp_ranks - 1) * pipelines + last, from = gradient ? high : low;
        ls_range r = ls_range_common(ls_stage_plan_tied_part(plan, last),
                                     ls_stage_plan_updated(plan, 0, low, 0, i % buckets));
        if (r.count == 0 || (me != low && me != high))
            continue;
        float *at = gradient ? ls_pipeline_head(x, 0) + r.first - plan->tied.first
                             : (float *)s->state_memory[0] + r.first;
        LS_TRY(st,
               ls_pipeline_carry(s, from, gradient ? low : high, at, at, r.count, LS_HOST_NEITHER),
               out);
        *sent += from == me ? r.count * (int64_t)sizeof *at : 0;
    }
out:
    return st;
}

/* The head's gradient from the last stage to the first. */
static ls_status send_head(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    bool last = ls_stage_plan_is_last(&x->plan);
    ls_range tied = x->plan.tied;
    float *head = ls_pipeline_head(x, 0);
    ls_status st;

    st = ls_pipeline_run(s, x->pipeline_comm,
                         &(ls_coll){.kind = last ? LS_COLL_SEND : LS_COLL_RECV,
                                    .type = LS_F32,
                                    .count = tied.count,
                                    .in = head,
                                    .out = head,
                                    .peer = last ? 0 : x->plan.pp_ranks - 1});
    x->sent_bytes += last ? tied.count * (int64_t)sizeof *head : 0;
    return st;
}

ls_status ls_pipeline_tie(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    ls_range tied = x->plan.tied;
    ls_status st = ls_pipeline_is_parted(x) ? swap_tied(s, true, &x->sent_bytes) : send_head(s);

    for (int b = 0; b < ls_stage_plan_buckets(&x->plan, 0, 0) && ls_stage_plan_is_first(&x->plan);
         b++) {
        ls_range own =
            ls_range_common(tied, ls_stage_plan_updated(&x->plan, 0, x->plan.pipeline, 0, b));
        float *embedding = ls_pipeline_grad(x, 0, 0) + own.first;
        if (own.count > 0 && st == LS_OK)
            s->args.kernels->add(s->args.stream,
                                 &(ls_add){.a = embedding,
                                           .b = ls_pipeline_head(x, 0) + own.first - tied.first,
                                           .out = embedding,
                                           .n = own.count});
    }
    return st;
}

ls_status ls_pipeline_copy_tied(const ls_step *s, int64_t *sent)
{
    const ls_pipeline *x = s->pipeline;
    ls_range copied = x->plan.copied;
    float *w = (float *)s->state_memory[0] + copied.first;

    if (x->plan.zero == 3)
        return swap_tied(s, false, sent);
    *sent += ls_stage_plan_is_first(&x->plan) ? copied.count * (int64_t)sizeof *w : 0;
    int first = x->plan.pipeline,
        last = (x->plan.pp_ranks - 1) * x->plan.pipelines + x->plan.pipeline;

    return ls_pipeline_carry(s, first, last, w, w, copied.count, LS_HOST_NEITHER);
}
