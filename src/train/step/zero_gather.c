/* zero_gather.c -- ZeRO: gathers weights from other ranks. ZeRO 3 (also called FSDP): those that this
 * rank does not keep, ahead of use (a prefetch). ZeRO 1 and 2: those that other ranks have updated.
 *
 * ZeRO 3. Forward and backward read the whole weights through a window (base/window.h). Before the
 * pass computes a unit of the model it calls ls_step_need(). That waits for the buckets of the
 * unit, which their owners send, starts those of the next unit, and drops what neither needs:
 *
 *     need(unit)    0          1          2          3
 *     is here       0          1          2          3        for the kernels that are queued next
 *     on its way    1          2          3          -        while these compute
 *     dropped                  0          1          2
 *
 * All ranks walk through the same units in the same order, even a rank that has no call. The state
 * of a bucket: absent -> on its way (start) -> here (settle) -> absent (drop).
 *
 * ZeRO 1 and 2. After an update the gathers of all buckets start, in the order in which forward
 * reads them. The next call waits for the buckets of each unit when it comes to it; everything else
 * that reads weights waits for all (ls_step_settle). The state of a bucket: here -> on its way
 * (start) -> here (settle). */
#include "train/step/step_impl.h"

#include "base/fault.h"

static ls_zero_units_set bit(int bucket)
{
    return (ls_zero_units_set)1 << bucket;
}

static ls_status start(ls_step *s, ls_zero_units_set wanted)
{
    ls_zero_units_set missing = wanted & ~(s->zero_gather.coming | s->zero_gather.there);
    ls_status st = LS_OK;

    for (int b = 0; b < LS_ZERO_UNITS_SET && st == LS_OK; b++)
        if (missing & bit(b)) {
            st = s->exchange->fetch(s, b);
            s->zero_gather.coming |= st == LS_OK ? bit(b) : 0;
        }
    return st;
}

/* The 16-bit weights of a bucket, which its owners do not send. */
static void renew_copy(ls_step *s, int bucket)
{
    const ls_dp_args *a = ls_dp_args_of(s->args.dp);
    ls_mesh_part part = ls_mesh_bucket(&a->mesh, a->trained, bucket);

    part.packed = part.first;
    ls_step_renew_copy(s, part);
}

/* Wait for those of a set that are on their way; dropped: they are not read any more. */
static ls_status settle_some(ls_step *s, ls_zero_units_set wanted, bool dropped)
{
    ls_zero_units_set awaited = wanted & s->zero_gather.coming;
    ls_status st = LS_OK;

    for (int b = 0; b < LS_ZERO_UNITS_SET && st == LS_OK; b++)
        if (awaited & bit(b)) {
            st = ls_fault_pass(LS_FAULT_AT_GATHER);
            if (st == LS_OK)
                st = s->exchange->fetched ? s->exchange->fetched(s, b, !dropped)
                                          : ls_dp_fetched(s->args.dp, b);
            s->zero_gather.coming &= ~bit(b);
            s->zero_gather.there |= bit(b);
            if (st == LS_OK && !s->zero_gather.window.base) /* ZeRO 1 and 2: in place */
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

ls_status ls_step_start_gathers(ls_step *s)
{
    ls_status st = LS_OK;

    for (int b = 0; b < ls_dp_buckets(s->args.dp) && st == LS_OK; b++) {
        st = ls_dp_gather_start(s->args.dp, b, s->state_memory[0]);
        s->zero_gather.coming |= st == LS_OK ? bit(b) : 0;
    }
    return st;
}

ls_status ls_step_drop_weights(ls_step *s, ls_zero_units_set unwanted)
{
    ls_status st = settle_some(s, unwanted, true);
    ls_zero_units_set gone = unwanted & s->zero_gather.there;

    s->zero_gather.there &= ~gone;
    if (st == LS_OK && gone && s->exchange->drop)
        s->exchange->drop(s, gone);
    return st;
}

ls_status ls_step_gather_weights(ls_step *s, ls_zero_units_set now, ls_zero_units_set next)
{
    ls_status st;

    LS_TRY(st, ls_step_drop_weights(s, ~(now | next)), out);
    LS_TRY(st, start(s, now), out);
    LS_TRY(st, start(s, next), out);
    st = settle(s, now);
out:
    return st;
}

/* A tied embedding, which the head reads once more, stays where its pages have memory of their own
 * (layout/page_reuse.h). */
static ls_zero_units_set stays(const ls_step *s)
{
    const ls_model *model = s->args.model;

    return s->discrete && model->shape.tied
               ? s->zero_gather.there &
                     ls_zero_units_buckets(model, &ls_dp_args_of(s->args.dp)->mesh, 0)
               : 0;
}

/* ZeRO 3: the buckets of a unit are here, those of the next one on their way, others dropped. */
static ls_status fetch_unit(ls_step *s, int64_t unit)
{
    const ls_model *model = s->args.model;
    const ls_mesh *mesh = &ls_dp_args_of(s->args.dp)->mesh;
    int64_t next = ls_zero_units_next(model, unit == 0 ? -1 : s->zero_gather.unit, unit);

    return ls_step_gather_weights(s, ls_zero_units_buckets(model, mesh, unit),
                                  ls_zero_units_buckets(model, mesh, next) | stays(s));
}

void ls_step_need(void *context, int64_t unit)
{
    ls_step *s = context;
    bool back = unit > 0 && unit <= s->zero_gather.unit, shards = ls_step_divides_weights(s);
    ls_status st;

    if (s->status != LS_OK || (!shards && !s->zero_gather.coming)) {
        s->zero_gather.unit = unit;
        return;
    }
    if (s->clock)
        ls_step_clock_lap(s->clock, back ? LS_TIME_BACKWARD : LS_TIME_FORWARD);
    st = shards ? fetch_unit(s, unit)
                : settle(s, ls_zero_units_buckets(s->args.model, &ls_dp_args_of(s->args.dp)->mesh,
                                                  unit));
    s->zero_gather.unit = unit;
    ls_step_record(s, st);
    if (s->clock)
        ls_step_clock_lap(s->clock, LS_TIME_EXCHANGE);
}

ls_status ls_step_forget(ls_step *s)
{
    if (s->exchange->changed)
        s->exchange->changed(s);
    return ls_step_divides_weights(s) ? ls_step_drop_weights(s, ~(ls_zero_units_set)0)
                                      : ls_step_settle(s);
}
