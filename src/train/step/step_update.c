/* step_update.c -- the end of a step: the norm of the gradient, the optimizer, the new weights to all.
 *
 * A rank updates all parameters, or with ZeRO its part of every bucket: what ls_step_own() and
 * ls_step_own_piece() say, which everything here goes by. AdamW is one row; lamb.c and muon.c have
 * the others. */
#include "train/step/step_impl.h"

#include "base/mem.h"
#include "plan/memory.h"
#include "optim/optim.h"
#include "train/replica/replica_copy.h"
#include "train/step/pipeline.h"
#include "train/replica/replica_pair.h"

int ls_step_sums(const ls_step *s)
{
    return s->pipeline ? ls_pipeline_owns(s) : ls_step_divides(s) ? ls_dp_buckets(s->args.dp) : 1;
}

ls_mesh_part ls_step_sum(const ls_step *s, int bucket)
{
    if (s->pipeline)
        return ls_pipeline_own(s, bucket);
    return ls_step_divides(s) ? ls_dp_own(s->args.dp, bucket)
                              : (ls_mesh_part){.count = s->args.model->trained};
}

int ls_step_buckets(const ls_step *s)
{
    return s->ep_group.parts ? s->ep_group.n_parts : ls_step_sums(s);
}

ls_mesh_part ls_step_own(const ls_step *s, int bucket)
{
    return s->ep_group.parts ? s->ep_group.parts[bucket] : ls_step_sum(s, bucket);
}

/* What a part has of elements first .. end-1; false: nothing. */
static bool piece_of(ls_mesh_part own, int64_t first, int64_t end, ls_step_piece *piece_out)
{
    int64_t from = ls_max_i64(first, own.first);
    int64_t to = ls_min_i64(end, own.first + own.count);

    *piece_out =
        (ls_step_piece){.first = from, .count = to - from, .place = own.packed + from - own.first};
    return from < to;
}

bool ls_step_own_piece(const ls_step *s, int64_t first, int64_t end, ls_step_piece *piece_out)
{
    for (int b = 0; b < ls_step_buckets(s); b++)
        if (piece_of(ls_step_own(s, b), first, end, piece_out))
            return true;
    return false;
}

bool ls_step_sum_piece(const ls_step *s, int64_t first, int64_t end, ls_step_piece *piece_out)
{
    for (int b = 0; b < ls_step_sums(s); b++)
        if (piece_of(ls_step_sum(s, b), first, end, piece_out))
            return true;
    return false;
}

int64_t ls_step_place(const ls_step *s, int64_t element)
{
    ls_step_piece piece;

    return ls_step_sum_piece(s, element, element + 1, &piece) ? piece.place : 0;
}

ls_status ls_step_send(ls_step *s, void *to, const void *from, int64_t bytes)
{
    ls_stream_copy_in(s->args.stream, to, from, bytes);
    return ls_stream_sync(s->args.stream, ls_time_now_ns() + LS_STEP_WAIT_S * LS_NS_PER_S);
}

/* Weight decay differs between matrices and vectors. */
int64_t ls_step_spans(const ls_run *run, const ls_model *model, ls_mesh_part own, bool packed,
                      bool whole, ls_adamw_span *spans_out)
{
    double rate = run->train.adamw_lr > 0 ? run->train.adamw_lr / run->train.lr : 1;
    int64_t n = 0;

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        int64_t first = ls_max_i64(p->trained, own.first);
        int64_t end = ls_min_i64(p->trained + p->count, own.first + own.count);
        if (p->trained < 0 || first >= end || ls_optim_is_matrix(run, p))
            continue;
        spans_out[n++] = (ls_adamw_span){
            .first = first - own.first,
            .w_first = packed ? own.packed + first - own.first : p->first + first - p->trained,
            .count = end - first,
            .decay = p->decay ? 1.0f : 0.0f,
            .rate = (float)rate,
            .v_gap = whole ? p->trained - ls_optim_second(run, model, i) : 0};
    }
    return n;
}

ls_rounding ls_step_rounding(const ls_run *run, int64_t gap)
{
    ls_rng_key key = ls_rng_derive((uint64_t)run->train.seed, 0x726f756e, 0);

    return (ls_rounding){.stochastic = run->train.rounding == LS_ROUND_STOCHASTIC,
                         .key = {key.k[0], key.k[1]},
                         .gap = gap};
}

/* What is updated at a time: the own part of a bucket, or where moments lie elsewhere the chunk of
 * it that begins at its element `at`. */
static ls_mesh_part chunk_of(const ls_step *s, ls_mesh_part own, int64_t at)
{
    own.first += at;
    own.packed += at;
    own.count = ls_min_i64(s->offload.chunk, own.count - at);
    return own;
}

static ls_status open_adamw(ls_step *s)
{
    int64_t most = ls_memory_spans(s->args.model), n = 0;
    ls_adamw_span *spans = ls_mem_array((size_t)most, sizeof *spans);
    ls_status st;

    if (!spans)
        return LS_ENOMEM;
    for (int b = 0, k = 0; b < ls_step_buckets(s); b++) {
        ls_mesh_part own = ls_step_own(s, b);
        for (int64_t at = 0; at < own.count; at += s->offload.chunk) {
            ls_mesh_part chunk = chunk_of(s, own, at);
            chunk.packed = ls_step_place(s, chunk.first); /* of its weights */
            n += ls_step_spans(s->args.run, s->args.model, chunk, ls_step_shards(s),
                               !ls_step_divides(s) && !s->ep_group.parts, spans + n);
            s->first_span[++k] = n;
        }
    }
    st = ls_step_send(s, s->spans, spans, n * (int64_t)sizeof *spans);
    ls_mem_free(spans);
    return st;
}

ls_status ls_step_open_optimizer(ls_step *s)
{
    ls_optimizer optimizer = s->args.run->train.optimizer;
    ls_status st;

    if (optimizer == LS_OPTIMIZER_LAMB)
        return ls_step_open_lamb(s);
    st = open_adamw(s);
    return st == LS_OK && optimizer == LS_OPTIMIZER_MUON ? ls_step_open_muon(s) : st;
}

const float *ls_step_own_gradient(const ls_step *s, ls_mesh_part own)
{
    if (s->pipeline)
        return ls_pipeline_gradient(s, own.first);
    return ls_step_parts(s) ? s->own_grad + ls_step_place(s, own.first)
                            : (const float *)s->grads[0] + own.first;
}

/* Moment i of a chunk, where rows can read and write it. On disk the next chunk is on its way. */
static float *lift(ls_step *s, int i, ls_mesh_part part)
{
    const int64_t size = sizeof(float);
    float *at = (float *)s->state_memory[i] + part.packed;

    if (s->offload.how == LS_OFFLOAD_DISK)
        ls_spill_fetch(&s->offload.files[i], (part.packed + part.count) * size, part.count * size);
    if (s->offload.how != LS_OFFLOAD_HOST)
        return at;
    float *stage = s->offload.stage + (i - 1) * s->offload.chunk;
    ls_stream_copy_in(s->args.stream, stage, at, part.count * size);
    return stage;
}

/* And back to where it lies. */
static void put_back(ls_step *s, int i, ls_mesh_part part, const float *from)
{
    const int64_t size = sizeof(float);

    if (s->offload.how == LS_OFFLOAD_DISK)
        ls_spill_drop(&s->offload.files[i], part.packed * size, part.count * size);
    if (s->offload.how == LS_OFFLOAD_HOST)
        ls_stream_copy_out(s->args.stream, (float *)s->state_memory[i] + part.packed, from,
                           part.count * size);
}

/* A chunk, and its spans: from first[0] to first[1]. */
static void optimize(ls_step *s, ls_mesh_part part, const int64_t *first)
{
    /* Then others have parts of the copy. */
    bool whole = (ls_step_shares(s) && !ls_step_shards(s)) || s->ep_group.parts;
    int64_t gap = ls_step_shards(s) ? part.first - ls_step_place(s, part.first) : 0;

    if (first[1] == first[0])
        return;
    float *m = lift(s, 1, part), *v = lift(s, 2, part);
    s->args.kernels->adamw(s->args.stream,
                           &(ls_adamw){.w = s->state_memory[0],
                                       .m = m,
                                       .v = v,
                                       .grad = ls_step_own_gradient(s, part),
                                       .spans = s->spans + first[0],
                                       .n_spans = first[1] - first[0],
                                       .copy = whole ? NULL : s->copy,
                                       .copy_type = s->type,
                                       .rounding = ls_step_rounding(s->args.run, gap),
                                       .state = s->state,
                                       .result = s->norm});
    put_back(s, 1, part, m);
    put_back(s, 2, part, v);
}

void ls_step_adamw(ls_step *s)
{
    for (int b = 0, k = 0; b < ls_step_buckets(s); b++) {
        ls_mesh_part own = ls_step_own(s, b);
        for (int64_t at = 0; at < own.count; at += s->offload.chunk)
            optimize(s, chunk_of(s, own, at), &s->first_span[k++]);
    }
}

/* The norm of the whole gradient, of which each rank has the squares of its own part. */
static ls_status norm_with_others(ls_step *s, const ls_norm2 *whole)
{
    int64_t blocks = (whole->n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    ls_norm2 own = *whole, join = *whole;
    ls_status st;

    own.part = LS_NORM_SQUARES;
    join.part = LS_NORM_JOIN;
    s->args.kernels->fill(s->args.stream, &(ls_fill){.x = whole->partials, .n = blocks});
    for (int b = 0; b < ls_step_buckets(s); b++) {
        ls_mesh_part part = ls_step_own(s, b);
        own.x = ls_step_own_gradient(s, part);
        own.partials = whole->partials + part.first / LS_NORM_BLOCK;
        own.n = part.count;
        if (part.count > 0)
            s->args.kernels->norm2(s->args.stream, &own);
    }
    st = ls_step_share(s, whole->partials, blocks);
    if (st == LS_OK)
        s->args.kernels->norm2(s->args.stream, &join);
    return st;
}

ls_status ls_step_norm(ls_step *s)
{
    const ls_norm2 norm = {.x = s->grads[0],
                           .partials = s->partials,
                           .result = s->norm,
                           .state = s->state,
                           .n = s->args.model->trained,
                           .scaled = true};

    if (ls_step_has_mp_group(s))
        return ls_step_group_norm(s, &norm);
    if (s->pipeline)
        return ls_pipeline_norm(s, &norm);
    if (ls_step_divides(s))
        return norm_with_others(s, &norm);
    s->args.kernels->norm2(s->args.stream, &norm);
    return LS_OK;
}

ls_status ls_step_complete(ls_step *s)
{
    ls_status st = LS_OK;

    if (s->pipeline)
        return ls_pipeline_spread(s);
    if (s->ep_group.parts)
        LS_TRY(st, ls_step_expert_spread(s), out);
    if (ls_step_divides(s))
        st = ls_step_gather(s, s->state_memory[0]);
out:
    return st;
}

ls_status ls_step_update(ls_step *s, ls_step_clock *clock)
{
    ls_optimizer optimizer = s->args.run->train.optimizer;
    ls_status st = LS_OK;

    if (s->args.pushes)
        return LS_OK;
    ls_packed_weights_updated(s->args.packs);
    LS_TRY(st, ls_replica_copy_prepare(s->args.buddy, s), out);
    if (optimizer == LS_OPTIMIZER_MUON)
        return ls_step_muon(s, clock);
    if (optimizer == LS_OPTIMIZER_LAMB)
        LS_TRY(st, ls_step_lamb(s, clock), out);
    else
        ls_step_adamw(s);
    ls_replica_pair_update(s);
    s->vote.made = true;
    if (s->pipeline) {
        ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
        LS_TRY(st, ls_pipeline_spread(s), out);
        ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    }
    if (s->ep_group.parts) {
        ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
        LS_TRY(st, ls_step_expert_spread(s), out);
        ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    }
    if (!ls_step_divides(s))
        goto out;
    ls_replica_copy_update(s->args.buddy, s);
    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    if (ls_step_shards(s)) {
        st = ls_step_forget(s);
        goto out;
    }
    if (ls_step_host_stages(s)) {
        LS_TRY(st, ls_step_gather(s, s->state_memory[0]), out);
        LS_TRY(st, ls_step_weights_changed(s), out);
    } else {
        ls_packed_weights_changed(s->args.packs);
        LS_TRY(st, ls_step_spread(s), out);
    }
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
out:
    return st;
}
