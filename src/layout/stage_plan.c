/* stage_plan.c -- cuts the model into stages, and counts what a rank's schedule holds at a time.
 *
 * Buffers are counted by a walk through the rank's own column of the schedule: a receive takes one,
 * and a backward (of a stream) or a send (of a gradient) gives it back. A step that posts receives in
 * this order, at their places or earlier, always finds a free buffer: those before it hold no more
 * than was counted.
 *
 *     1F1B, the second of 2 ranks      <F0 F0 <F1 B0 >B0 F1 B1 <F2 >B1 F2 B2 >B2
 *     streams held after each           1  1  2  1  1  1  0  1  1  1  0  0          most: 2 */
#include "layout/stage_plan.h"

#include "base/mem.h"
#include "layout/replicas.h"
#include "model/pass.h"

ls_pp_schedule_kind ls_stage_plan_kind(const ls_run *run)
{
    static const ls_pp_schedule_kind kinds[] = {[LS_PP_GPIPE] = LS_PP_SCHEDULE_GPIPE,
                                                [LS_PP_1F1B] = LS_PP_SCHEDULE_1F1B,
                                                [LS_PP_INTERLEAVED] = LS_PP_SCHEDULE_INTERLEAVED,
                                                [LS_PP_ZERO_BUBBLE] = LS_PP_SCHEDULE_ZERO_BUBBLE};

    return kinds[run->mesh.schedule];
}

/* What is held while the column of the rank is walked through, and the most of it. */
typedef struct held {
    int streams, gradients, slots[LS_STAGE_PLAN_CHUNKS], late[LS_STAGE_PLAN_CHUNKS];
} held;

static void take(int *now, int *most, int n)
{
    *now += n;
    *most = *now > *most ? *now : *most;
}

static held count_held(const ls_stage_plan *p)
{
    held now = {.streams = 0}, most = {.streams = 0};
    int last = p->pp_ranks * p->chunks - 1;

    for (int i = p->table.first[p->pp_rank]; i < p->table.first[p->pp_rank + 1]; i++) {
        const ls_pp_schedule_op *op = &p->table.ops[i];
        int stage = op->chunk * p->pp_ranks + p->pp_rank;
        bool back =
            op->what == LS_PP_SCHEDULE_BACKWARD || op->what == LS_PP_SCHEDULE_BACKWARD_INPUT;
        bool done =
            op->what == LS_PP_SCHEDULE_BACKWARD || op->what == LS_PP_SCHEDULE_BACKWARD_WEIGHT;
        if (op->what == LS_PP_SCHEDULE_RECV && !op->back)
            take(&now.streams, &most.streams, 1);
        if (op->what == LS_PP_SCHEDULE_RECV ? op->back : back && stage == last)
            take(&now.gradients, &most.gradients, 1);
        if (op->what == LS_PP_SCHEDULE_FORWARD)
            take(&now.slots[op->chunk], &most.slots[op->chunk], 1);
        if (op->what == LS_PP_SCHEDULE_BACKWARD_INPUT)
            take(&now.late[op->chunk], &most.late[op->chunk], 1);
        now.late[op->chunk] -= op->what == LS_PP_SCHEDULE_BACKWARD_WEIGHT;
        if (done) {
            now.slots[op->chunk]--;
            now.streams -= stage > 0;
        }
        if (op->what == LS_PP_SCHEDULE_SEND ? op->back : back && stage == 0)
            now.gradients--;
    }
    return most;
}

static ls_status make_table(ls_stage_plan *p, const ls_pp_schedule *like, int64_t micros)
{
    ls_status st;

    ls_pp_schedule_release(&p->table);
    st = ls_pp_schedule_init(&p->table, like->kind, like->ranks,
                             (int)ls_min_i64(micros, LS_PP_SCHEDULE_MOST), like->chunks);
    return st == LS_OK ? ls_pp_schedule_prove(&p->table, NULL) : st;
}

/* The schedule of `micros` micro-batches, and as many buffers as any smaller number needs too. */
static ls_status plan_table(ls_stage_plan *p, const ls_pp_schedule *like, int64_t micros,
                            bool varies)
{
    ls_status st = LS_OK;

    for (int64_t m = varies ? 1 : micros; m <= micros; m++) {
        LS_TRY(st, make_table(p, like, m), out);
        held most = count_held(p);
        p->streams = (int)ls_max_i64(p->streams, most.streams);
        p->gradients = (int)ls_max_i64(p->gradients, most.gradients);
        for (int c = 0; c < p->chunks; c++) {
            p->chunk[c].slots = (int)ls_max_i64(p->chunk[c].slots, most.slots[c]);
            p->chunk[c].late = (int)ls_max_i64(p->chunk[c].late, most.late[c]);
        }
    }
    p->streams += p->streams > 0;
    p->gradients += p->gradients > 0;
out:
    return st;
}

ls_status ls_stage_plan_set(ls_stage_plan *pipe, int64_t micros)
{
    const ls_pp_schedule like = pipe->table;
    ls_status st = LS_OK;

    if (micros == like.micros)
        return LS_OK;
    LS_TRY(st, make_table(pipe, &like, micros), out);
    held most = count_held(pipe);
    for (int c = 0; c < pipe->chunks; c++)
        LS_BUG_IF(most.slots[c] > pipe->chunk[c].slots || most.late[c] > pipe->chunk[c].late ||
                      most.streams > pipe->streams || most.gradients > pipe->gradients,
                  "a step of %lld micro-batches needs more than was planned", (long long)micros);
out:
    return st;
}

int64_t ls_stage_plan_micros(const ls_run *run, const ls_mesh *mesh, const ls_calls *calls)
{
    ls_mesh pp_rank = ls_mesh_stage(mesh);

    if (run->mesh.zero < 2 || ls_mesh_pipelines(mesh) < 2)
        return ls_max_i64(1, calls->rounds);
    return ls_calls_rounds(run, &pp_rank);
}

static ls_status too_few_layers(const ls_run *run, const ls_model *model)
{
    int64_t L = model->shape.L, pp = run->mesh.pp, chunks = run->mesh.chunks;
    ls_status st =
        ls_fail(LS_EUSAGE, "mesh.pp is %lld%s, but %lld layer%s cannot be cut into %lld stages",
                (long long)pp, chunks > 1 ? ", with several chunks each" : "", (long long)L,
                L == 1 ? "" : "s", (long long)(pp * chunks));

    if (chunks > 1 && L >= pp)
        ls_err_hint("mesh.chunks: %lld works%s.", (long long)(L / pp),
                    L / pp == 1 ? ", with mesh.schedule: 1f1b" : "");
    else
        ls_err_hint("mesh.pp: %lld works%s.", (long long)L,
                    chunks > 1 ? ", with mesh.schedule: 1f1b" : "");
    return st;
}

/* Stages into buckets: of as few units as leave no more buckets than there may be. */
static ls_status cut_buckets(ls_stage_plan *p, const ls_model *model, const ls_stage *stages, int n)
{
    int64_t most = LS_STAGE_PLAN_BUCKETS / p->chunks;
    int all = 0;

    p->per = 1;
    for (int s = 0; s < n; s++)
        p->per =
            ls_max_i64(p->per, p->zero < 2 ? stages[s].units : (stages[s].units + most - 1) / most);
    p->first_bucket = ls_mem_array((size_t)n + 1, sizeof *p->first_bucket);
    for (int s = 0; p->first_bucket && s <= n; s++) {
        p->first_bucket[s] = all;
        all += s < n ? (int)((stages[s].units + p->per - 1) / p->per) : 0;
    }
    p->cuts = ls_mem_array((size_t)all + 1, sizeof *p->cuts);
    p->weights = ls_mem_array((size_t)all + 1, sizeof *p->weights);
    if (!p->first_bucket || !p->cuts || !p->weights)
        return ls_fail(LS_ENOMEM, "no memory for a pipeline of %d stages", n);
    for (int s = 0; s < n; s++)
        for (int b = p->first_bucket[s]; b < p->first_bucket[s + 1]; b++) {
            int64_t unit = stages[s].unit + (b - p->first_bucket[s]) * p->per;
            p->cuts[b] = b == 0 ? 0 : ls_model_complete(model, unit);
            p->weights[b] = b == 0 ? 0 : ls_model_below(model, unit);
        }
    p->cuts[all] = model->trained;
    p->weights[all] = model->flat;
    return LS_OK;
}

/* Of a chunk, n buckets from one on; -1: all of them. */
static ls_range between(const ls_stage_plan *pipe, const int64_t *cuts, int pp_rank, int chunk,
                        int bucket, int n)
{
    const int *first = &pipe->first_bucket[chunk * pipe->pp_ranks + pp_rank];
    const int64_t *cut = &cuts[first[0] + bucket];

    return (ls_range){cut[0], cut[n < 0 ? first[1] - first[0] : n] - cut[0]};
}

static ls_status cut(ls_stage_plan *p, const ls_run *run, const ls_model *model)
{
    int n = p->pp_ranks * p->chunks;
    ls_stage *stages = ls_mem_array((size_t)n, sizeof *stages);
    ls_status st = LS_OK;

    if (!stages) {
        st = ls_fail(LS_ENOMEM, "no memory for a pipeline of %d stages", n);
        goto out;
    }
    LS_TRY(st, ls_stage_split_plan(model, n, run->batch.leaf, run->model.context, stages), out);
    LS_TRY(st, cut_buckets(p, model, stages, n), out);
    for (int c = 0; c < p->chunks; c++) {
        const ls_stage *s = &stages[c * p->pp_ranks + p->pp_rank];
        p->chunk[c] =
            (ls_stage_plan_chunk){.unit = s->unit,
                                  .units = s->units,
                                  .own = between(p, p->cuts, p->pp_rank, c, 0, -1),
                                  .weights = between(p, p->weights, p->pp_rank, c, 0, -1)};
    }
out:
    ls_mem_free(stages);
    return st;
}

ls_status ls_stage_plan_init(ls_stage_plan *pipe, const ls_run *run, const ls_model *model,
                             const ls_mesh *mesh, int64_t micros, bool varies)
{
    ls_stage_plan p = {.pp_rank = ls_mesh_pp_rank(mesh, mesh->rank),
                       .pp_ranks = mesh->pp,
                       .pipeline = ls_mesh_pipeline(mesh, mesh->rank),
                       .pipelines = ls_mesh_pipelines(mesh),
                       .zero = ls_mesh_pipelines(mesh) > 1 ? (int)run->mesh.zero : 0,
                       .copy_owner = -1,
                       .copy_holder = -1,
                       .chunks = (int)run->mesh.chunks};
    const ls_pp_schedule like = {.kind = ls_stage_plan_kind(run),
                                 .ranks = p.pp_ranks,
                                 .micros = (int)micros,
                                 .chunks = p.chunks};
    ls_status st;

    *pipe = (ls_stage_plan){.pp_ranks = p.pp_ranks};
    p.divides = p.zero > 0;
    if (p.divides && mesh->buddies) {
        ls_mesh pp_rank = ls_mesh_stage(mesh);
        pp_rank.places = mesh->places ? mesh->places + p.pp_rank * p.pipelines : NULL;
        p.copy_owner = ls_replicas_owner(&pp_rank, p.pipeline);
        p.copy_holder = ls_replicas_holder(&pp_rank, p.pipeline);
    }
    if ((int64_t)p.pp_ranks * p.chunks > model->shape.L)
        return too_few_layers(run, model);
    LS_TRY(st, cut(&p, run, model), out);
    if (model->shape.tied)
        p.copied = (ls_range){model->wte.w, model->shape.V * model->shape.C};
    if (model->wte.g >= 0)
        p.tied = p.copied;
    LS_TRY(st, plan_table(&p, &like, micros, varies), out);
    *pipe = p;
out:
    if (st != LS_OK)
        ls_stage_plan_release(&p);
    return st;
}

void ls_stage_plan_release(ls_stage_plan *pipe)
{
    ls_pp_schedule_release(&pipe->table);
    ls_mem_free(pipe->first_bucket);
    ls_mem_free(pipe->cuts);
    ls_mem_free(pipe->weights);
    *pipe = (ls_stage_plan){.pp_ranks = 0};
}

int ls_stage_plan_buckets(const ls_stage_plan *pipe, int pp_rank, int chunk)
{
    int stage = chunk * pipe->pp_ranks + pp_rank;

    return pipe->first_bucket[stage + 1] - pipe->first_bucket[stage];
}

ls_range ls_stage_plan_bucket(const ls_stage_plan *pipe, int pp_rank, int chunk, int bucket)
{
    return between(pipe, pipe->cuts, pp_rank, chunk, bucket, 1);
}

ls_range ls_stage_plan_weights_bucket(const ls_stage_plan *pipe, int pp_rank, int chunk, int bucket)
{
    return between(pipe, pipe->weights, pp_rank, chunk, bucket, 1);
}

/* A pipeline's part of a range, as collectives divide it. */
static ls_range part_of(const ls_stage_plan *pipe, ls_range all, int pipeline)
{
    ls_range part;

    ls_coll_range(all.count, pipe->pipelines, pipeline, &part.first, &part.count);
    part.first += all.first;
    return part;
}

int ls_stage_plan_ranges(const ls_stage_plan *pipe, ls_range ranges_out[LS_STAGE_PLAN_BUCKETS + 1])
{
    int n = 0;

    for (int c = 0; c < pipe->chunks; c++)
        for (int b = 0; b < (pipe->zero == 3 ? ls_stage_plan_buckets(pipe, pipe->pp_rank, c) : 1);
             b++)
            ranges_out[n++] = pipe->zero == 3
                                  ? ls_stage_plan_updated(pipe, pipe->pp_rank, pipe->pipeline, c, b)
                                  : pipe->chunk[c].weights;
    if (ls_stage_plan_is_last(pipe) && pipe->copied.count > 0)
        ranges_out[n++] =
            pipe->zero == 3 ? ls_stage_plan_tied_part(pipe, pipe->pipeline) : pipe->copied;
    return n;
}

ls_range ls_stage_plan_tied_part(const ls_stage_plan *pipe, int pipeline)
{
    return pipe->zero < 2 ? pipe->tied : part_of(pipe, pipe->tied, pipeline);
}

ls_range ls_stage_plan_updated(const ls_stage_plan *pipe, int pp_rank, int pipeline, int chunk,
                               int bucket)
{
    ls_range all = ls_stage_plan_bucket(pipe, pp_rank, chunk, bucket);
    ls_mesh pipelines = {.ranks = pipe->pipelines};

    if (!pipe->divides)
        return all;
    if (pipe->zero >= 2)
        return part_of(pipe, all, pipeline);
    ls_mesh_part part = ls_mesh_part_of(&pipelines, all.count, 0, pipeline);
    return (ls_range){all.first + part.first, part.count};
}

int ls_stage_plan_edges(const ls_stage_plan *pipe, int64_t *blocks_out)
{
    int stages = pipe->pp_ranks * pipe->chunks, n = 0, stage = 0;
    int64_t last = -1;

    for (int i = 0; i < pipe->first_bucket[stages] * pipe->pipelines; i++) {
        int bucket = i / pipe->pipelines;
        while (bucket >= pipe->first_bucket[stage + 1])
            stage++;
        ls_range part =
            ls_stage_plan_updated(pipe, stage % pipe->pp_ranks, i % pipe->pipelines,
                                  stage / pipe->pp_ranks, bucket - pipe->first_bucket[stage]);
        int64_t block = part.first / LS_NORM_BLOCK;
        if (part.count == 0 || part.first % LS_NORM_BLOCK == 0 || block == last)
            continue;
        last = block;
        if (blocks_out)
            blocks_out[n] = block;
        n++;
    }
    return n;
}

ls_range ls_stage_plan_saved(const ls_stage_plan *pipe, int pp_rank, int pipeline, int chunk,
                             int bucket, bool moments)
{
    if (moments && pipe->divides)
        return ls_stage_plan_updated(pipe, pp_rank, pipeline, chunk, bucket);
    return part_of(pipe,
                   moments ? ls_stage_plan_bucket(pipe, pp_rank, chunk, bucket)
                           : ls_stage_plan_weights_bucket(pipe, pp_rank, chunk, bucket),
                   pipeline);
}

int ls_stage_plan_flows(const ls_stage_plan *pipe)
{
    return (int)ls_max_i64(1, pipe->chunk[0].late);
}
