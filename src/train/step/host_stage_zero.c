/* host_stage_zero.c -- ZeRO 2 and 3 where the device has a memory of its own.
 *
 * The gradient of a call and, with ZeRO 3, the weights lie in windows of the device whose pages are
 * used again for other buckets (layout/page_reuse.h). What goes to other ranks passes through places
 * in host memory (parallel/staging.h), one for each bucket on its way. The sums of the own parts
 * are made in host memory, too, and are copied to the device after the last round.
 *
 *   stream       backward of 3 | copy of its buckets, zeros | backward of 2 | copy ...
 *   host         queues that; when 2 is queued, waits for 3's copies and starts their sums
 *   other ranks                                                3's buckets ...
 *
 * A copy waits in a list until the next unit is queued, so that the device has work while the host
 * waits for the copy. One stream orders everything: a page of the window is written for another
 * bucket behind the copy that took the last one away. Gaps between tensors stay zeros, because what
 * was copied is cleared.
 *
 * Weights: the own parts lie in host memory as well, where other ranks read them, and are copied
 * there again when they have changed. A bucket that has arrived is copied to the window when its
 * unit is about to be queued, behind the kernels that read the bucket before it. */
#include "train/step/step_impl.h"

#include "base/log.h"
#include "base/mem.h"
#include "plan/memory.h"

struct ls_step_host_zero {
    ls_staging *grads;          /* owned: transfers on their way */
    float *places[LS_DP_AHEAD]; /* of them */
    int queued, begun;     /* transfers of this round: their copy is queued; they were started */
    ls_staging_memory own; /* owned, zero 3: the own weights, as other ranks read them */
    bool stale;            /* the device has newer ones */
    ls_staging *weights;   /* owned, zero 3: buckets that come */
    int n;                 /* places there, */
    int taken[LS_MESH_BUCKETS]; /* the bucket of each that is coming + 1; 0: none */
};

/* --- opening ---------------------------------------------------------------------------------- */

static ls_status open_weights(ls_step *s, const ls_dp_args *dp)
{
    struct ls_step_host_zero *x = s->host_zero;
    static const char what[] = "weights on their way";
    int64_t size = ls_dtype_bytes(s->type);
    ls_status st;

    LS_TRY(st,
           ls_staging_alloc(&x->own, dp->comm, ls_step_device(s), ls_dp_own_elements(dp) * size,
                            what, false),
           out);
    x->stale = true;
    x->n = ls_page_reuse_places(s->args.model, &dp->mesh);
    LS_TRY(st,
           ls_staging_open(&x->weights, dp->comm, s->args.stream, x->n,
                           ls_dp_place_elements(dp) * size, what),
           out);
out:
    return st;
}

static ls_status open_parts(ls_step *s, int64_t elements)
{
    const ls_dp_args *dp = ls_dp_args_of(s->args.dp);
    struct ls_step_host_zero *x = s->host_zero = ls_mem_alloc(sizeof *x);
    ls_status st;

    (void)elements; /* the window is as large as the pages that are used at a time */
    LS_TRY(st, x ? LS_OK : LS_ENOMEM, out);
    LS_TRY(st, ls_step_open_zero_windows(s), out);
    LS_TRY(st, ls_step_open_host_stage(s, ls_memory_parted_elements(dp)), out);
    LS_TRY(st,
           ls_staging_open(&x->grads, dp->comm, s->args.stream, LS_DP_AHEAD,
                           ls_dp_place_elements(dp) * (int64_t)sizeof(float),
                           "gradients on their way"),
           out);
    for (int i = 0; i < LS_DP_AHEAD; i++)
        x->places[i] = ls_staging_at(x->grads, i);
    if (ls_step_divides_weights(s))
        LS_TRY(st, open_weights(s, dp), out);
out:
    return st;
}

void ls_step_close_host_zero(ls_step *step)
{
    struct ls_step_host_zero *x = step->host_zero;

    if (!x)
        return;
    ls_staging_close(x->grads);
    ls_staging_close(x->weights);
    ls_staging_free(&x->own, ls_dp_args_of(step->args.dp)->comm, ls_step_device(step));
    ls_step_close_zero_windows(step);
    ls_mem_free(x);
    step->host_zero = NULL;
}

/* --- gradients -------------------------------------------------------------------------------- */

static void begin_round(ls_step *s, int round)
{
    struct ls_step_host_zero *x = s->host_zero;

    x->queued = x->begun = 0;
    ls_dp_round_of_places(s->args.dp, round, x->places, s->host_stage.buffers[0]);
}

/* Start the sums of transfers below `end`, each when its copy is in host memory. */
static ls_status begin_until(ls_step *s, int end)
{
    struct ls_step_host_zero *x = s->host_zero;
    ls_status st = LS_OK;

    for (; x->begun < end; x->begun++) {
        LS_TRY(st, ls_staging_wait(x->grads, x->begun % LS_DP_AHEAD, ls_step_deadline()), out);
        LS_TRY(st, ls_dp_start_transfer(s->args.dp), out);
    }
out:
    return st;
}

static ls_status ready(ls_step *s, int64_t from)
{
    struct ls_step_host_zero *x = s->host_zero;
    int transfers = ls_dp_transfers(s->args.dp);
    ls_status st;

    LS_TRY(st, begin_until(s, x->queued), out); /* of the unit above: this one is queued now */
    for (; x->queued < transfers; x->queued++) {
        ls_dp_transfer transfer = ls_dp_transfer_at(s->args.dp, x->queued);
        int place = x->queued % LS_DP_AHEAD, before = x->queued - LS_DP_AHEAD + 1;
        float *at = (float *)s->grads[0] + transfer.first;
        if (!transfer.tied && transfer.first < from)
            break;
        LS_TRY(st, begin_until(s, before), out);
        LS_TRY(st, ls_dp_end_transfers(s->args.dp, before), out);
        ls_staging_take(x->grads, place, 0, at, transfer.count * (int64_t)sizeof *at);
        ls_staging_mark(x->grads, place);
        s->args.kernels->fill(s->args.stream, &(ls_fill){.x = at, .n = transfer.count});
    }
out:
    return st;
}

static ls_status end_round(ls_step *s)
{
    ls_status st;

    st = begin_until(s, s->host_zero->queued);
    return st == LS_OK ? ls_dp_sum_end(s->args.dp, NULL) : st;
}

void ls_step_host_zero_bring(ls_step *step)
{
    int64_t n = ls_dp_sum_elements(ls_dp_args_of(step->args.dp));

    ls_stream_copy_in(step->args.stream, step->own_grad, step->host_stage.buffers[0],
                      n * (int64_t)sizeof(float));
}

/* --- weights ---------------------------------------------------------------------------------- */

/* A bucket of the whole from its owners: the own part to its place, the others' to the device. */
static ls_status gather_from(ls_step *s, int b, const float *whole)
{
    struct ls_step_host_zero *x = s->host_zero;
    const ls_dp_args *a = ls_dp_args_of(s->args.dp);
    ls_mesh_part own = ls_dp_own(s->args.dp, b), all = ls_mesh_bucket(&a->mesh, a->trained, b);
    int place = b % LS_DP_AHEAD;
    ls_status st;

    if (own.count > 0)
        ls_staging_take(x->grads, place, (own.first - all.first) * (int64_t)sizeof *whole,
                        whole + own.first, own.count * (int64_t)sizeof *whole);
    ls_staging_mark(x->grads, place);
    st = ls_staging_wait(x->grads, place, ls_step_deadline());
    return st == LS_OK ? ls_dp_fetch_to(s->args.dp, b, LS_F32, x->places[place], x->places[place])
                       : st;
}

static ls_status gathered(ls_step *s, int b, float *whole)
{
    const ls_dp_args *a = ls_dp_args_of(s->args.dp);
    ls_mesh_part all = ls_mesh_bucket(&a->mesh, a->trained, b);
    ls_status st = ls_dp_fetched(s->args.dp, b);

    if (st == LS_OK)
        ls_staging_give(s->host_zero->grads, b % LS_DP_AHEAD, 0, whole + all.first,
                        all.count * (int64_t)sizeof *whole);
    return st;
}

static ls_status gather(ls_step *s, float *whole)
{
    int n = ls_dp_buckets(s->args.dp);
    ls_status st = LS_OK;

    for (int b = 0; b <= n; b++) { /* one is on its way while the next is copied */
        if (b < n)
            LS_TRY(st, gather_from(s, b, whole), out);
        if (b > 0)
            LS_TRY(st, gathered(s, b - 1, whole), out);
    }
out:
    return st;
}

static void changed(ls_step *s)
{
    s->host_zero->stale = true;
}

/* The own weights, where others read them. */
static ls_status renew(ls_step *s)
{
    struct ls_step_host_zero *x = s->host_zero;
    int64_t n = ls_dp_own_elements(ls_dp_args_of(s->args.dp));

    if (!x->stale)
        return LS_OK;
    ls_stream_copy_out(s->args.stream, x->own.at, s->copy ? s->copy : s->state_memory[0],
                       n * ls_dtype_bytes(s->type));
    x->stale = false;
    return ls_step_sync(s);
}

static ls_status fetch(ls_step *s, int bucket)
{
    struct ls_step_host_zero *x = s->host_zero;
    ls_mesh_part own = ls_dp_own(s->args.dp, bucket);
    int place = 0;
    ls_status st;

    while (place < x->n && x->taken[place])
        place++;
    LS_BUG_IF(place == x->n, "more than %d buckets come at a time", x->n);
    LS_TRY(st, renew(s), out);
    LS_TRY(st, ls_staging_wait(x->weights, place, ls_step_deadline()),
           out); /* what was there has gone */
    LS_TRY(st,
           ls_dp_fetch_to(s->args.dp, bucket, s->type,
                          (const char *)x->own.at + own.packed * ls_dtype_bytes(s->type),
                          ls_staging_at(x->weights, place)),
           out);
    x->taken[place] = bucket + 1;
out:
    return st;
}

static ls_status fetched(ls_step *s, int bucket, bool wanted)
{
    struct ls_step_host_zero *x = s->host_zero;
    const ls_dp_args *a = ls_dp_args_of(s->args.dp);
    ls_mesh_part all = ls_mesh_bucket(&a->mesh, a->trained, bucket);
    int64_t size = ls_dtype_bytes(s->type);
    int place = 0;
    ls_status st = ls_dp_fetched(s->args.dp, bucket);

    while (place < x->n && x->taken[place] != bucket + 1)
        place++;
    LS_BUG_IF(place == x->n, "bucket %d does not come", bucket);
    x->taken[place] = 0;
    if (st == LS_OK && wanted) {
        ls_staging_give(x->weights, place, 0, s->zero_gather.window.base + all.first * size,
                        all.count * size);
        ls_staging_mark(x->weights, place);
    }
    return st;
}

const ls_step_exchange ls_step_exchange_host_zero = {.open_parts = open_parts,
                                                     .ready = ready,
                                                     .round = begin_round,
                                                     .end_round = end_round,
                                                     .bring = ls_step_host_zero_bring,
                                                     .spread = ls_step_host_spread,
                                                     .fetch = fetch,
                                                     .fetched = fetched,
                                                     .changed = changed,
                                                     .sum_in_group = ls_step_host_sum_in_group,
                                                     .gather = gather,
                                                     .broadcast = ls_step_host_broadcast,
                                                     .collect = ls_step_host_collect,
                                                     .scatter = ls_step_host_scatter};
