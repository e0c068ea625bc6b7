/* in_place_exchange.c -- exchanges without a detour through the host: of a single process, and of
 * ranks whose memory the communicator reads and writes where it lies.
 *
 * One rank sums its calls alone; only a tied embedding has two gradients to add. With others, ZeRO 0 and
 * 1, two ranks and one bucket of 4 elements:
 *
 *     rank 0 grads[0]    1 2 3 4                 11 22  .  .     ZeRO 1: the sums of the own part
 *     rank 1 grads[0]    10 20 30 40              .  . 33 44
 *
 * With ZeRO 2 and 3 grads[0] is a window of one call. After each round the own sums lie packed in
 * own_grad (11 22 here, 33 44 there), and the pages of the window are dropped:
 *
 *     round 0   window 1 2 3 4  -> reduce-scatter -> own_grad 11 22,            window dropped
 *     round 1   window 5 6 7 8  -> reduce-scatter -> own_grad 11 22 + its sums, window dropped */
#include "train/step/step_impl.h"

/* --- one rank --------------------------------------------------------------------------------- */

static ls_status tie(ls_step *s, ls_step_clock *clock)
{
    (void)clock;
    if (s->now.ordered)
        ls_pass_tie(s->pass, s->grads[0]);
    return LS_OK;
}

const ls_step_exchange ls_step_exchange_single = {.sum = tie};

/* --- with other ranks ------------------------------------------------------------------------- */

/* Other ranks read sums where this rank has made them, as ls_dp_sum_from() wants it. */
static void readable_sums(const ls_step *s, float *buffers[LS_ORDERED_ROOTS])
{
    for (int i = 0; i < s->now.buffers && (i == 0 || !ls_step_divides_grads(s)); i++)
        buffers[i] = s->grads[i];
}

/* ZeRO 2 and 3: a window for the gradient of a call, and the sums of the own parts. */
static ls_status open_parts(ls_step *s, int64_t elements)
{
    const ls_dp_args *dp = ls_dp_args_of(s->args.dp);
    const int64_t size = sizeof(float);
    void *memory;
    ls_status st;

    LS_TRY(st, ls_window_open(&s->grad_window, elements * size, "gradients"), out);
    s->grads[0] = s->grad_window.base;
    LS_TRY(st,
           ls_step_alloc(s, ls_step_shares_sums(s), ls_dp_sum_elements(dp) * size, "gradients",
                         &memory),
           out);
    s->own_grad = memory;
    if (ls_step_divides_weights(s))
        st = ls_window_open(&s->zero_gather.window, ls_dp_elements(dp) * ls_dtype_bytes(s->type),
                            "weights");
out:
    return st;
}

static ls_status ready(ls_step *s, int64_t from)
{
    float *buffers[LS_ORDERED_ROOTS];

    readable_sums(s, buffers);
    return ls_dp_sum_from(s->args.dp, buffers, from);
}

static ls_status sum(ls_step *s, ls_step_clock *clock)
{
    float *buffers[LS_ORDERED_ROOTS];
    ls_status st;

    (void)clock;
    LS_TRY(st, ls_step_recorded(s), out);
    readable_sums(s, buffers);
    if (!s->last.begun) { /* this rank has no call */
        if (!s->now.ordered)
            s->args.kernels->fill(s->args.stream,
                                  &(ls_fill){.x = buffers[0], .n = s->args.model->trained});
        LS_TRY(st, ls_dp_sum_from(s->args.dp, buffers, 0), out);
    }
    st = ls_dp_sum_end(s->args.dp, buffers);
out:
    return st;
}

static void begin_round(ls_step *s, int round)
{
    ls_dp_round(s->args.dp, round, &s->grad_window, s->own_grad);
}

static ls_status end_round(ls_step *s)
{
    float *buffers[LS_ORDERED_ROOTS];

    readable_sums(s, buffers);
    return ls_dp_sum_end(s->args.dp, buffers);
}

/* The gathers end in the next step, unit by unit (zero_gather.c). */
static ls_status spread(ls_step *s)
{
    ls_packed_weights_changed(s->args.packs);
    return ls_step_start_gathers(s);
}

static ls_status fetch(ls_step *s, int bucket)
{
    const void *own = s->copy ? s->copy : s->state_memory[0];

    return ls_dp_fetch(s->args.dp, bucket, s->type, own, s->zero_gather.window.base);
}

static void drop(ls_step *s, ls_zero_units_set gone)
{
    const ls_dp_args *a = ls_dp_args_of(s->args.dp);
    int64_t size = ls_dtype_bytes(s->type);

    for (int b = 0; b < ls_dp_buckets(s->args.dp); b++) {
        ls_mesh_part bucket = ls_mesh_bucket(&a->mesh, a->trained, b);
        if (gone >> b & 1)
            ls_window_drop(
                &s->zero_gather.window, bucket.first * size,
                ls_round_up(bucket.each * ls_mesh_shard_ranks(&a->mesh) * size, LS_WINDOW_PAGE));
    }
}

const ls_step_exchange ls_step_exchange_in_place = {.shares = true,
                                                    .open_parts = open_parts,
                                                    .ready = ready,
                                                    .sum = sum,
                                                    .round = begin_round,
                                                    .end_round = end_round,
                                                    .spread = spread,
                                                    .fetch = fetch,
                                                    .drop = drop};
