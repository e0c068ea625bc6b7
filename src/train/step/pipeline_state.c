/* pipeline_state.c -- the weights and moments of a pipeline's ranks: what each one has and updates,
 * and how the whole comes together on the first rank and is dealt out again.
 *
 *     mesh.pp: 2, 2 pipelines, ZeRO 1          pipeline 0                  pipeline 1
 *     stage rank 0     weights of chunk 0      a b c d                     a b c d
 *                      moments of              a b                             c d
 *     after the update                         a b  ------ broadcast --->  a b
 *                                                  c d  <--- broadcast ------  c d
 *     the whole on the first rank              a b <- itself, c d <- pipeline 1, and then, range by
 *                                              range, those of stage rank 1
 *
 * Without ZeRO every pipeline updates alike, and nothing moves after the update but the copy of a
 * tied embedding (pipeline_tied.c). */
#include "train/step/pipeline_impl.h"
#include "parallel/blocking.h"

/* Buckets of the chunks of this rank. */
int ls_pipeline_owns(const ls_step *step)
{
    const ls_stage_plan *plan = &step->pipeline->plan;
    int n = 0;

    for (int c = 0; c < plan->chunks; c++)
        n += ls_stage_plan_buckets(plan, plan->pp_rank, c);
    return n;
}

ls_mesh_part ls_pipeline_updated(const ls_step *step, int pipeline, int i)
{
    const ls_stage_plan *plan = &step->pipeline->plan;
    int c = 0, n;

    for (; i >= (n = ls_stage_plan_buckets(plan, plan->pp_rank, c)); c++)
        i -= n;
    ls_range r = ls_stage_plan_updated(plan, plan->pp_rank, pipeline, c, i);
    return (ls_mesh_part){.first = r.first, .count = r.count, .packed = r.first};
}

int ls_pipeline_parts(const ls_step *s, ls_mesh_part *parts_out)
{
    int n = ls_pipeline_owns(s);

    for (int i = 0; i < n && parts_out; i++)
        parts_out[i] = ls_pipeline_updated(s, s->pipeline->plan.pipeline, i);
    return n;
}

float *ls_pipeline_gradient(const ls_step *step, int64_t first)
{
    const ls_pipeline *x = step->pipeline;
    int c = 0;

    while (c < x->plan.chunks - 1 &&
           (first < x->plan.chunk[c].own.first ||
            first >= x->plan.chunk[c].own.first + x->plan.chunk[c].own.count))
        c++;
    return ls_pipeline_grad(x, c, 0) + first;
}

int ls_pipeline_weights(const ls_step *s, ls_mesh_part *parts_out)
{
    ls_range kept[LS_STAGE_PLAN_BUCKETS + 1];
    int n = ls_stage_plan_ranges(&s->pipeline->plan, kept);

    for (int i = 0; i < n && parts_out; i++)
        parts_out[i] =
            (ls_mesh_part){.first = kept[i].first, .count = kept[i].count, .packed = kept[i].first};
    return n;
}

void ls_pipeline_weights_changed(ls_step *s)
{
    for (int c = 0; c < s->pipeline->plan.chunks; c++)
        ls_packed_weights_changed(s->pipeline->packs[c]);
}

/* --- the state as a whole --------------------------------------------------------------------- */

/* In pieces, because the other end passes them through host memory one by one. */
static ls_status carry_on_host(ls_comm *comm, ls_coll coll)
{
    const int64_t most = LS_STAGE_PLAN_PIECE / (int64_t)sizeof(float), all = coll.count;
    ls_coll piece = coll;
    ls_status st = LS_OK;

    for (int64_t done = 0; done < all && st == LS_OK; done += most) {
        piece.count = ls_min_i64(most, all - done);
        piece.in = (const float *)coll.in + done;
        piece.out = (float *)coll.out + done;
        st = ls_comm_run(comm, &piece, ls_pipeline_deadline());
    }
    return st;
}

ls_status ls_pipeline_carry(const ls_step *s, int from, int to, const float *source, float *target,
                            int64_t count, ls_host_side host)
{
    const ls_dp_args *world = ls_dp_args_of(s->args.dp);
    int64_t bytes = count * (int64_t)sizeof *target;
    int me = world->mesh.rank;
    bool sends = me == from;
    ls_coll coll = {.kind = sends ? LS_COLL_SEND : LS_COLL_RECV,
                    .type = LS_F32,
                    .count = count,
                    .in = sends ? source : target,
                    .out = sends ? (void *)(uintptr_t)source : target,
                    .peer = sends ? to : from};

    if (count == 0 || (me != from && me != to))
        return LS_OK;
    if (from == to) {
        if (host == LS_HOST_TARGET)
            ls_stream_copy_out(s->args.stream, target, source, bytes);
        else
            ls_stream_copy_in(s->args.stream, target, source, bytes);
        return ls_stream_sync(s->args.stream, ls_pipeline_deadline());
    }
    if (!s->pipeline->host_stage.pieces || host == LS_HOST_NEITHER)
        return ls_pipeline_run(s, world->comm, &coll);
    return host == (sends ? LS_HOST_SOURCE : LS_HOST_TARGET)
               ? carry_on_host(world->comm, coll)
               : ls_staging_run(s->pipeline->host_stage.pieces, world->comm, &coll,
                                ls_pipeline_deadline());
}

/* Whether each pipeline has its part of an array only. */
static bool is_divided(const ls_step *s, const float *array)
{
    return s->pipeline->plan.divides &&
           (ls_step_is_moment(s, array) || s->pipeline->plan.zero == 3);
}

/* What a stage rank has of a bucket of an array. */
static ls_range range_of(const ls_step *s, const float *array, int pp_rank, int chunk, int bucket)
{
    const ls_stage_plan *plan = &s->pipeline->plan;

    return ls_step_is_moment(s, array) ? ls_stage_plan_bucket(plan, pp_rank, chunk, bucket)
                                       : ls_stage_plan_weights_bucket(plan, pp_rank, chunk, bucket);
}

/* All ranges of an array, between the ranks that have them and the whole of the first rank: the
 * ranks of the first pipeline, or, of an array that pipelines divide, all ranks. */
static ls_status carry_all(const ls_step *s, bool collect, const float *from, float *to)
{
    const ls_pipeline *x = s->pipeline;
    const float *array = collect ? from : to;
    int pipelines = x->plan.pipelines;
    bool parts = is_divided(s, array);
    ls_status st = LS_OK;

    for (int rank = 0; rank < x->plan.pp_ranks * pipelines; rank += parts ? 1 : pipelines)
        for (int c = 0; c < x->plan.chunks; c++)
            for (int b = 0; b < ls_stage_plan_buckets(&x->plan, rank / pipelines, c); b++) {
                ls_range r = parts ? ls_stage_plan_updated(&x->plan, rank / pipelines,
                                                           rank % pipelines, c, b)
                                   : range_of(s, array, rank / pipelines, c, b);
                LS_TRY(st,
                       ls_pipeline_carry(s, collect ? rank : 0, collect ? 0 : rank,
                                         from ? from + r.first : NULL, to ? to + r.first : NULL,
                                         r.count, collect ? LS_HOST_TARGET : LS_HOST_SOURCE),
                       out);
            }
    if (x->host_stage.pieces) /* the caller may use its memory again */
        st = ls_stream_sync(s->args.stream, ls_pipeline_deadline());
out:
    return st;
}

/* A range of one pipeline, to the same stage of all of them. */
static ls_status broadcast(const ls_step *s, int pipeline, ls_range r, float *array)
{
    if (r.count == 0)
        return LS_OK;
    return ls_pipeline_run(s, s->pipeline->stage_comm,
                           &(ls_coll){.kind = LS_COLL_BROADCAST,
                                      .type = LS_F32,
                                      .count = r.count,
                                      .in = array + r.first,
                                      .out = array + r.first,
                                      .peer = pipeline});
}

/* All buckets of an array, which pipelines divide as ls_coll_range() does, to the same stage of all
 * of them. */
static ls_status gather_pipelines(const ls_step *s, float *array)
{
    const ls_pipeline *x = s->pipeline;
    ls_status st = LS_OK;

    for (int c = 0; c < x->plan.chunks; c++)
        for (int b = 0; b < ls_stage_plan_buckets(&x->plan, x->plan.pp_rank, c); b++) {
            ls_range all = range_of(s, array, x->plan.pp_rank, c, b);
            LS_TRY(st,
                   ls_blocking_all_gather(x->stage_comm, LS_F32, array + all.first, all.count,
                                          ls_pipeline_deadline()),
                   out);
        }
out:
    return st;
}

/* ZeRO 2: the new weights of all pipelines. */
static ls_status gather_updated(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    ls_status st = gather_pipelines(s, s->state_memory[0]);

    for (int i = 0; i < s->parts.sums.n; i++)
        x->flow.sent_bytes +=
            s->parts.sums.at[i].count * (x->plan.pipelines - 1) * (int64_t)sizeof(float);
    return st;
}

ls_status ls_pipeline_spread_weights(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    float *w = s->state_memory[0];
    int64_t once = 0;
    ls_status st = LS_OK;

    if (x->plan.zero == 2)
        LS_TRY(st, gather_updated(s), out);
    for (int c = 0; c < x->plan.chunks && x->plan.zero == 1; c++)
        for (int pipeline = 0; pipeline < x->plan.pipelines; pipeline++)
            LS_TRY(st,
                   broadcast(s, pipeline,
                             ls_stage_plan_updated(&x->plan, x->plan.pp_rank, pipeline, c, 0), w),
                   out);
    if (x->plan.tied.count > 0)
        LS_TRY(st, ls_pipeline_copy_tied(s, &x->sent_bytes), out);
    else if (
        !x->copied) /* one that is frozen: once, for a rank that joined later than the others */
        LS_TRY(st, ls_pipeline_copy_tied(s, &once), out);
    x->copied = true;
    st = ls_step_weights_changed(s);
out:
    return st;
}

ls_status ls_pipeline_collect(ls_step *step, const float *array, float *whole)
{
    return carry_all(step, true, array, whole);
}

ls_status ls_pipeline_scatter(ls_step *step, const float *whole, float *array)
{
    const ls_pipeline *x = step->pipeline;
    bool parts = is_divided(step, array);
    int64_t sent = 0;
    ls_status st = LS_OK;

    LS_TRY(st, carry_all(step, false, whole, array), out);
    for (int c = 0; c < x->plan.chunks && x->stage_comm && !parts; c++)
        LS_TRY(st,
               broadcast(step, 0,
                         ls_step_is_moment(step, array) ? x->plan.chunk[c].own
                                                        : x->plan.chunk[c].weights,
                         array),
               out);
    if (!ls_step_is_moment(step, array))
        st = ls_pipeline_copy_tied(step, &sent);
out:
    return st;
}

const ls_stage_plan *ls_pipeline_plan(const ls_step *step)
{
    return step->pipeline ? &step->pipeline->plan : NULL;
}

ls_status ls_pipeline_complete(ls_step *step, float *array)
{
    const ls_pipeline *x = step->pipeline;
    int64_t sent = 0;
    ls_status st = LS_OK;

    if (x->stage_comm && !is_divided(step, array))
        LS_TRY(st, gather_pipelines(step, array), out);
    if (!ls_step_is_moment(step, array))
        st = ls_pipeline_copy_tied(step, &sent);
out:
    return st;
}
