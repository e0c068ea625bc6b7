/* device_exchange_zero.c -- ZeRO 2 and 3 by collectives of device memory: nothing is copied to the
 * host, and the host does not wait in a step before it reads losses.
 *
 * The gradient of a call and, with ZeRO 3, the weights lie in windows whose pages are used again for
 * other buckets (zero_windows.c). A bucket of the gradient that is complete is copied to a place and
 * cleared, so that its pages are free at once; the side sums it from there. A place is written again
 * behind the sum of what lay there.
 *
 *   stream   need 2, 1 comes | backward of 2 | copy 2 | need 1, 0 comes | backward of 1 | copy 1 ...
 *   side                     | gather 1               | sum of 2 | gather 0             | sum of 1
 *
 * A gather is queued before the kernels of the unit at hand, behind those of the units before: it
 * writes pages that these have read, while those compute. The stream waits for it when its unit is
 * asked for. Backward ends with no gather on its way; before norm and update the stream waits for
 * all of the side, so weights that others still read are not written.
 *
 * All ranks walk through the same units (zero_gather.c), so the side has the same order on all. */
#include "train/step/device_exchange_impl.h"

#include "plan/memory.h"

static ls_status open_parts(ls_step *s, int64_t elements)
{
    const ls_dp_args *dp = ls_dp_args_of(s->args.dp);
    ls_device *device = ls_step_device(s);
    int buckets = ls_step_divides_weights(s) ? ls_dp_buckets(s->args.dp) : 0;
    ls_status st;

    (void)elements; /* the window is as large as the pages that are used at a time */
    LS_TRY(st, ls_step_open_device_exchange(s, ls_memory_parted_elements(dp)), out);
    LS_TRY(st, ls_step_open_zero_windows(s), out);
    for (int i = 0; i < LS_DP_AHEAD; i++)
        LS_TRY(st, ls_event_create(&s->device_exchange->summed[i], device), out);
    for (int b = 0; b < buckets; b++)
        LS_TRY(st, ls_event_create(&s->device_exchange->arrived[b], device), out);
out:
    return st;
}

/* --- gradients -------------------------------------------------------------------------------- */

static void begin_round(ls_step *s, int round)
{
    struct ls_step_device_exchange *x = s->device_exchange;

    if (round == 0)
        ls_step_begin_device_exchange(s);
    x->round = round;
    x->queued = 0;
}

/* Transfers that are complete from element `from` on, as many as there are places, to these. Returns
 * how many. */
static int take(ls_step *s, int64_t from)
{
    struct ls_step_device_exchange *x = s->device_exchange;
    int n = 0, most = ls_dp_transfers(s->args.dp) - x->queued;

    for (; n < most && n < LS_DP_AHEAD; n++) {
        int i = x->queued + n;
        ls_dp_transfer transfer = ls_dp_transfer_at(s->args.dp, i);
        float *at = (float *)s->grads[0] + transfer.first;
        if (!transfer.tied && transfer.first < from)
            break;
        ls_stream_wait(s->args.stream, x->summed[i % LS_DP_AHEAD]);
        ls_stream_copy(s->args.stream, ls_dp_device_place(x->sums, i), at,
                       transfer.count * (int64_t)sizeof *at);
        s->args.kernels->fill(s->args.stream, &(ls_fill){.x = at, .n = transfer.count});
    }
    return n;
}

static ls_status ready(ls_step *s, int64_t from)
{
    struct ls_step_device_exchange *x = s->device_exchange;
    ls_status st = LS_OK;

    for (int n = take(s, from); n > 0; n = take(s, from)) {
        ls_step_to_side(s);
        for (int end = x->queued + n; x->queued < end; x->queued++) {
            LS_TRY(st, ls_dp_device_sum_transfer(x->sums, x->queued, x->round, s->own_grad), out);
            ls_event_record(x->summed[x->queued % LS_DP_AHEAD], s->args.side);
        }
    }
out:
    return st;
}

/* The next round goes on while these sums are on their way. */
static ls_status end_round(ls_step *s)
{
    LS_BUG_IF(s->device_exchange->queued < ls_dp_transfers(s->args.dp),
              "%d of %d buckets were summed in a round", s->device_exchange->queued,
              ls_dp_transfers(s->args.dp));
    return LS_OK;
}

/* --- weights ---------------------------------------------------------------------------------- */

static ls_status fetch(ls_step *s, int bucket)
{
    struct ls_step_device_exchange *x = s->device_exchange;
    ls_status st;

    ls_step_to_side(s);
    st = ls_dp_device_fetch(x->sums, bucket, s->type, s->copy ? s->copy : s->state_memory[0],
                            s->zero_gather.window.base);
    ls_event_record(x->arrived[bucket], s->args.side);
    return st;
}

/* Also one that is not wanted: its pages, and the weights that it is read from, are written next. */
static ls_status fetched(ls_step *s, int bucket, bool wanted)
{
    (void)wanted;
    ls_stream_wait(s->args.stream, s->device_exchange->arrived[bucket]);
    return LS_OK;
}

const ls_step_exchange ls_step_exchange_device_zero = {.open_parts = open_parts,
                                                       .ready = ready,
                                                       .round = begin_round,
                                                       .end_round = end_round,
                                                       .bring = ls_step_from_side,
                                                       .spread = ls_step_host_spread,
                                                       .fetch = fetch,
                                                       .fetched = fetched,
                                                       .sum_in_group = ls_step_device_sum_in_group,
                                                       .gather = ls_step_device_gather,
                                                       .broadcast = ls_step_host_broadcast,
                                                       .collect = ls_step_host_collect,
                                                       .scatter = ls_step_host_scatter};
