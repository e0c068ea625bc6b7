/* zero_gather.c -- weights that come from other ranks: those that a rank does not keep (zero 3), and
 * those that others have updated (zero 1 and 2).
 *
 * Zero 3.
 * Forward and backward read the whole weights through a window (base/window.h). Before a unit of
 * the model is computed its buckets are fetched from their owners, those of the next one are
 * started, and what neither needs is dropped:
 *
 *     need(block 1):  drop block 0's | wait for block 1's | start block 2's
 *
 * All ranks walk through the same units in the same order, also one that has no call. The state of
 * a bucket: absent -> on its way (start) -> there (settle) -> absent (drop).
 *
 * Zero 1 and 2. After an update the gathers of all buckets are started, in the order in which
 * forward reads them; the next call that reads weights waits for those of each unit when it comes
 * to it, and everybody else for all of them (ls_step_settle). The state of a bucket: there -> on
 * its way (spread) -> there (settle). */
#include "train/step/pipeline.h"

#include "base/fault.h"

static bool has(ls_zero_units_set set, int bucket)
{
    return set >> bucket & 1;
}

/* What the own parts are fetched from. */
static const void *own_weights(const ls_step *s)
{
    return s->copy ? s->copy : s->state_memory[0];
}

static ls_status start(ls_step *s, ls_zero_units_set wanted)
{
    ls_status st = LS_OK;

    for (int b = 0; b < ls_dp_buckets(s->args.dp) && st == LS_OK; b++)
        if (has(wanted & ~(s->zero_gather.coming | s->zero_gather.there), b)) {
            st = s->host_zero ? ls_step_host_zero_fetch(s, b)
                              : ls_dp_fetch(s->args.dp, b, s->type, own_weights(s),
                                            s->zero_gather.window.base);
            s->zero_gather.coming |= st == LS_OK ? (ls_zero_units_set)1 << b : 0;
        }
    return st;
}

/* The weights of a bucket as rows read them, which its owners do not send. */
static void renew_copy(ls_step *s, int bucket)
{
    const ls_dp_args *a = ls_dp_about(s->args.dp);
    ls_mesh_part part = ls_mesh_bucket(&a->mesh, a->trained, bucket);

    s->args.kernels->cast(s->args.stream,
                          &(ls_cast){.from_type = LS_F32,
                                     .to_type = s->type,
                                     .from = (float *)s->state_memory[0] + part.first,
                                     .to = (char *)s->copy + part.first * ls_dtype_bytes(s->type),
                                     .n = part.count,
                                     .rounding = ls_step_rounding(s->args.run, part.first)});
}

/* Those of a set that are coming; dropped: nobody will read them. */
static ls_status settle_some(ls_step *s, ls_zero_units_set wanted, bool dropped)
{
    ls_status st = LS_OK;

    for (int b = 0; b < ls_dp_buckets(s->args.dp) && st == LS_OK; b++)
        if (has(wanted & s->zero_gather.coming, b)) {
            st = ls_fault_pass(LS_FAULT_AT_GATHER);
            if (st == LS_OK)
                st = s->host_zero && ls_step_shards(s) ? ls_step_host_zero_fetched(s, b, !dropped)
                                                       : ls_dp_fetched(s->args.dp, b);
            s->zero_gather.coming &= ~((ls_zero_units_set)1 << b);
            s->zero_gather.there |= (ls_zero_units_set)1 << b;
            if (st == LS_OK && s->copy && !ls_step_shards(s))
                renew_copy(s, b);
        }
    return st;
}

static ls_status settle(ls_step *s, ls_zero_units_set wanted)
{
    return settle_some(s, wanted, false);
}

ls_status ls_step_settle(ls_step *s)
{
    return s->zero_gather.coming ? settle(s, ~(ls_zero_units_set)0) : LS_OK;
}

ls_status ls_step_spread(ls_step *s)
{
    ls_status st = LS_OK;

    for (int b = 0; b < ls_dp_buckets(s->args.dp) && st == LS_OK; b++) {
        st = ls_dp_gather_start(s->args.dp, b, s->state_memory[0]);
        s->zero_gather.coming |= st == LS_OK ? (ls_zero_units_set)1 << b : 0;
    }
    return st;
}

static ls_status drop(ls_step *s, ls_zero_units_set unwanted)
{
    const ls_dp_args *a = ls_dp_about(s->args.dp);
    int64_t size = ls_dtype_bytes(s->type);
    ls_status st = settle_some(s, unwanted, true);

    for (int b = 0; b < ls_dp_buckets(s->args.dp) && st == LS_OK; b++)
        if (has(unwanted & s->zero_gather.there, b)) {
            ls_mesh_part bucket = ls_mesh_bucket(&a->mesh, a->trained, b);
            if (!s->host_zero)
                ls_window_drop(&s->zero_gather.window, bucket.first * size,
                               ls_round_up(bucket.each * ls_mesh_shard_ranks(&a->mesh) * size,
                                           LS_WINDOW_PAGE));
            s->zero_gather.there &= ~((ls_zero_units_set)1 << b);
        }
    return st;
}

/* Zero 3: a unit's buckets there, the next one's on their way, the others dropped. */
static ls_status fetch_unit(ls_step *s, int64_t unit)
{
    const ls_model *model = s->args.model;
    const ls_mesh *mesh = &ls_dp_about(s->args.dp)->mesh;
    int64_t next = ls_zero_units_next(model, unit == 0 ? -1 : s->zero_gather.unit, unit);
    ls_zero_units_set now = ls_zero_units_buckets(model, mesh, unit);
    ls_zero_units_set soon = now | ls_zero_units_buckets(model, mesh, next);
    ls_status st;

    LS_TRY(st, drop(s, ~soon), out);
    LS_TRY(st, start(s, now), out);
    LS_TRY(st, start(s, soon), out);
    LS_TRY(st, settle(s, now), out);
out:
    return st;
}

/* ls_pass_call.need */
void ls_step_need(void *context, int64_t unit)
{
    ls_step *s = context;
    bool back = unit > 0 && unit <= s->zero_gather.unit, shards = ls_step_shards(s);

    if (s->status != LS_OK || (!shards && !s->zero_gather.coming)) {
        s->zero_gather.unit = unit;
        return;
    }
    if (s->clock)
        ls_step_clock_lap(s->clock, back ? LS_TIME_BACKWARD : LS_TIME_FORWARD);
    s->status =
        shards
            ? fetch_unit(s, unit)
            : settle(s, ls_zero_units_buckets(s->args.model, &ls_dp_about(s->args.dp)->mesh, unit));
    s->zero_gather.unit = unit;
    if (s->status != LS_OK)
        s->why = *ls_err_last();
    if (s->clock)
        ls_step_clock_lap(s->clock, LS_TIME_EXCHANGE);
}

ls_status ls_step_forget(ls_step *s)
{
    if (s->host_zero)
        ls_step_host_zero_changed(s);
    return ls_step_shards(s) ? drop(s, ~(ls_zero_units_set)0) : ls_step_settle(s);
}

void ls_step_put(ls_step *step, int64_t first, int64_t count, const float *values)
{
    ls_step *s = step;
    const int64_t size = sizeof *values;
    float *w = s->state_memory[0];

    if (s->pipeline) {
        ls_pipeline_put(s, first, count, values);
        return;
    }
    if (!ls_step_shards(s)) {
        ls_stream_copy_in(s->args.stream, w + first, values, count * size);
        return;
    }
    for (int b = 0; b < ls_step_sums(s); b++) {
        ls_mesh_part own = ls_step_sum(s, b);
        int64_t low = ls_max_i64(first, own.first);
        int64_t high = ls_min_i64(first + count, own.first + own.count);
        if (low < high)
            ls_stream_copy_in(s->args.stream, w + own.packed + low - own.first,
                              values + low - first, (high - low) * size);
    }
}

void ls_step_idle(ls_step *step)
{
    if (step->pipeline)
        ls_pipeline_serve(step);
    else if (ls_step_is_ep(step))
        ls_step_expert_serve(step, false, NULL);
    else if (ls_step_shards(step))
        ls_pass_walk(step->pass, &(ls_pass_call){.need = ls_step_need, .context = step}, false);
}
