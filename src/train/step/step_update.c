/* step_update.c -- the end of a step: the optimizer, also for copies of other ranks' parts, and the
 * new weights to all.
 *
 * A rank updates all parameters, or with ZeRO its part of every bucket: the list
 * parts.own (step_parts.c), which everything here goes by. What an update computes is a file of
 * optim/; here are the elements of this rank, chunk by chunk where moments are offloaded, and how
 * an update that reads more than single elements reaches the other ranks.
 *
 * device.offload: host, chunks of 4 of 10 elements: the device has a stage of one chunk of each moment.
 *
 *     moments in host memory   0 1 2 3 | 4 5 6 7 | 8 9
 *     stream                   copy in, update, copy out | copy in, update, copy out | ...
 *
 * On disk there is no stage: rows read the pages of the file, the next chunk is fetched while one is
 * updated, and its pages are given back afterwards. */
#include "train/step/step_impl.h"

#include "base/mem.h"
#include "plan/memory.h"
#include "optim/optim.h"
#include "train/replica/replica_send.h"

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

/* The lists of what is updated element by element. */
static ls_status open_elements(ls_step *s)
{
    int64_t most = ls_memory_spans(s->args.model), n = 0;
    ls_optimizer_span *spans = ls_mem_array((size_t)most, sizeof *spans);
    ls_status st;

    if (!spans)
        return LS_ENOMEM;
    for (int b = 0, k = 0; b < s->parts.own.n; b++) {
        ls_mesh_part own = s->parts.own.at[b];
        for (int64_t at = 0; at < own.count; at += s->offload.chunk) {
            ls_mesh_part chunk = chunk_of(s, own, at);
            chunk.packed = ls_step_packed(s, chunk.first); /* of its weights */
            n += ls_optim_spans(s->args.run, s->args.model, chunk, ls_step_divides_weights(s),
                                !ls_step_divides(s) && !s->ep_group.parts.at, spans + n);
            s->first_span[++k] = n;
        }
    }
    st = ls_step_send(s, s->spans, spans, n * (int64_t)sizeof *spans);
    ls_mem_free(spans);
    return st;
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
    const ls_run *run = s->args.run;
    /* Then others have parts of the copy. */
    bool whole = (ls_step_shares(s) && !ls_step_divides_weights(s)) || s->ep_group.parts.at;
    int64_t gap = ls_step_divides_weights(s) ? part.first - ls_step_packed(s, part.first) : 0;
    float *moments[LS_OPTIM_KINDS] = {NULL};

    if (first[1] == first[0])
        return;
    for (int i = 1; i < ls_optim_kinds(run); i++)
        moments[i] = lift(s, i, part);
    ls_optim_elements(run, s->args.kernels, s->args.stream,
                      &(ls_optimizer_update){.w = s->state_memory[0],
                                             .m = moments[1],
                                             .v = moments[2],
                                             .grad = ls_step_own_gradient(s, part),
                                             .spans = s->spans + first[0],
                                             .n_spans = first[1] - first[0],
                                             .copy = whole ? NULL : s->copy,
                                             .copy_type = s->type,
                                             .rounding = ls_step_rounding(run, gap),
                                             .state = s->state,
                                             .result = s->norm});
    for (int i = 1; i < ls_optim_kinds(run); i++)
        put_back(s, i, part, moments[i]);
}

/* --- what an update asks of this rank and the others (optim/optim.h) ----------------------------
 */

static void update_elements(void *context)
{
    ls_step *s = context;

    for (int b = 0, k = 0; b < s->parts.own.n; b++) {
        ls_mesh_part own = s->parts.own.at[b];
        for (int64_t at = 0; at < own.count; at += s->offload.chunk)
            optimize(s, chunk_of(s, own, at), &s->first_span[k++]);
    }
}

static bool own_piece(const void *context, int64_t first, int64_t end, ls_optim_piece *piece_out)
{
    return ls_step_find(&((const ls_step *)context)->parts.own, first, end, piece_out);
}

/* The time until now is the optimizer's, and that of an exchange its own. */
static ls_status exchanged(const ls_step *s, ls_status st)
{
    ls_step_clock_lap(s->clock, LS_TIME_EXCHANGE);
    return st;
}

static ls_status sum_numbers(void *context, float *numbers, int64_t n)
{
    ls_step *s = context;

    ls_step_clock_lap(s->clock, LS_TIME_OPTIMIZER);
    return exchanged(s, ls_step_sum_in_group(s, numbers, n));
}

static ls_status gather_parts(void *context, float *whole)
{
    ls_step *s = context;

    ls_step_clock_lap(s->clock, LS_TIME_OPTIMIZER);
    return exchanged(s, ls_step_gather(s, whole));
}

static ls_status tell_others(void *context, int from, void *memory, int64_t bytes)
{
    ls_step *s = context;

    ls_step_clock_lap(s->clock, LS_TIME_OPTIMIZER);
    return exchanged(s, ls_step_broadcast(s, from, memory, bytes));
}

ls_status ls_step_open_optimizer(ls_step *s)
{
    const ls_mesh *mesh = s->args.dp ? &ls_dp_args_of(s->args.dp)->mesh : NULL;
    ls_status st;

    LS_TRY(st, open_elements(s), out);
    st =
        ls_optim_open(&s->optim, &(ls_optim_args){.run = s->args.run,
                                                  .model = s->args.model,
                                                  .kernels = s->args.kernels,
                                                  .stream = s->args.stream,
                                                  .arrays = {.w = s->state_memory[0],
                                                             .m = s->state_memory[1],
                                                             .v = s->state_memory[2],
                                                             .grad = s->grads[0],
                                                             .state = s->state,
                                                             .norm = s->norm},
                                                  .copy = ls_step_shares(s) ? NULL : s->copy,
                                                  .copy_type = s->type,
                                                  .rounding = ls_step_rounding(s->args.run, 0),
                                                  .partials = s->partials,
                                                  .work = s->work,
                                                  .ranks = {.context = s,
                                                            .rank = mesh ? mesh->rank : 0,
                                                            .ranks = mesh ? ls_mesh_ranks(mesh) : 1,
                                                            .divides = ls_step_divides(s),
                                                            .piece = own_piece,
                                                            .elements = update_elements,
                                                            .sum = sum_numbers,
                                                            .gather = gather_parts,
                                                            .broadcast = tell_others}});
out:
    return st;
}

static ls_status update_own(ls_step *s, ls_step_clock *clock)
{
    s->clock = clock;
    ls_status st = ls_optim_update(s->optim);
    s->clock = NULL;
    return st;
}

ls_status ls_step_update(ls_step *s, ls_step_clock *clock)
{
    ls_status st = LS_OK;

    if (s->args.pushes)
        return LS_OK;
    ls_packed_weights_updated(s->args.packs);
    LS_TRY(st, ls_replica_send_prepare(s), out);
    LS_TRY(st, update_own(s, clock), out);
    if (ls_step_updates_matrices(s)) /* all ranks have all weights now */
        return s->args.dp ? ls_step_weights_changed(s) : LS_OK;
    ls_replica_send_update(s);
    s->progress.made = true;
    if (s->mode->spread)
        st = s->mode->spread(s, clock);
out:
    return st;
}
