/* shards.c -- weights of which a rank keeps only its own parts (zero 3).
 *
 * Forward and backward read the whole weights through a window (base/window.h). Before a unit of
 * the model is computed its buckets are fetched from their owners, those of the next one are
 * started, and what neither needs is dropped:
 *
 *     need(block 1):  drop block 0's | wait for block 1's | start block 2's
 *
 * All ranks walk through the same units in the same order, also one that has no call. The state of
 * a bucket: absent -> on its way (start) -> there (settle) -> absent (drop). */
#include "train/step_impl.h"

static bool has(ls_units_set set, int bucket)
{
    return set >> bucket & 1;
}

/* What the own parts are fetched from. */
static const void *own_weights(const ls_step *s)
{
    return s->copy ? s->copy : s->state_memory[0];
}

static ls_status start(ls_step *s, ls_units_set wanted)
{
    ls_status st = LS_OK;

    for (int b = 0; b < ls_dp_buckets(s->args.dp) && st == LS_OK; b++)
        if (has(wanted & ~(s->shards.coming | s->shards.there), b)) {
            st = ls_dp_fetch(s->args.dp, b, s->type, own_weights(s), s->shards.window.base);
            s->shards.coming |= st == LS_OK ? (ls_units_set)1 << b : 0;
        }
    return st;
}

static ls_status settle(ls_step *s, ls_units_set wanted)
{
    ls_status st = LS_OK;

    for (int b = 0; b < ls_dp_buckets(s->args.dp) && st == LS_OK; b++)
        if (has(wanted & s->shards.coming, b)) {
            st = ls_dp_fetched(s->args.dp, b);
            s->shards.coming &= ~((ls_units_set)1 << b);
            s->shards.there |= (ls_units_set)1 << b;
        }
    return st;
}

static ls_status drop(ls_step *s, ls_units_set unwanted)
{
    const ls_dp_args *a = ls_dp_about(s->args.dp);
    int64_t size = ls_dtype_bytes(s->type);
    ls_status st = settle(s, unwanted);

    for (int b = 0; b < ls_dp_buckets(s->args.dp) && st == LS_OK; b++)
        if (has(unwanted & s->shards.there, b)) {
            ls_mesh_part bucket = ls_mesh_bucket(&a->mesh, a->trained, b);
            ls_window_drop(
                &s->shards.window, bucket.first * size,
                ls_round_up(bucket.each * ls_mesh_shard(&a->mesh) * size, LS_WINDOW_PAGE));
            s->shards.there &= ~((ls_units_set)1 << b);
        }
    return st;
}

/* ls_pass_call.need */
void ls_step_need(void *context, int64_t unit)
{
    ls_step *s = context;
    const ls_model *model = s->args.model;
    const ls_mesh *mesh = &ls_dp_about(s->args.dp)->mesh;
    bool back = unit > 0 && unit <= s->shards.unit;
    int64_t next = ls_units_next(model, unit == 0 ? -1 : s->shards.unit, unit);
    ls_units_set now = ls_units_buckets(model, mesh, unit);
    ls_units_set soon = now | ls_units_buckets(model, mesh, next);

    if (s->clock)
        ls_clock_lap(s->clock, back ? LS_PART_BACKWARD : LS_PART_FORWARD);
    s->shards.unit = unit;
    if (s->status == LS_OK)
        s->status = drop(s, ~soon);
    if (s->status == LS_OK)
        s->status = start(s, now);
    if (s->status == LS_OK)
        s->status = start(s, soon);
    if (s->status == LS_OK && (s->status = settle(s, now)) == LS_OK)
        goto out;
    if (s->why.code == LS_OK)
        s->why = *ls_err_last();
out:
    if (s->clock)
        ls_clock_lap(s->clock, LS_PART_EXCHANGE);
}

ls_status ls_step_forget(ls_step *s)
{
    return ls_step_shards(s) ? drop(s, ~(ls_units_set)0) : LS_OK;
}

void ls_step_put(ls_step *step, int64_t first, int64_t count, const float *values)
{
    ls_step *s = step;
    const int64_t size = sizeof *values;
    float *w = s->state_memory[0];

    if (!ls_step_shards(s)) {
        ls_stream_copy_in(s->args.stream, w + first, values, count * size);
        return;
    }
    for (int b = 0; b < ls_step_buckets(s); b++) {
        ls_mesh_part own = ls_step_own(s, b);
        int64_t low = ls_max_i64(first, own.first);
        int64_t high = ls_min_i64(first + count, own.first + own.count);
        if (low < high)
            ls_stream_copy_in(s->args.stream, w + own.packed + low - own.first,
                              values + low - first, (high - low) * size);
    }
}

void ls_step_idle(ls_step *step)
{
    if (ls_step_shards(step))
        ls_pass_walk(step->pass, &(ls_pass_call){.need = ls_step_need, .context = step}, false);
}
