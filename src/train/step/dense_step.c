/* dense_step.c -- the plain way: each rank computes its share of the leaves with the whole model,
 * all ranks sum gradients, each updates everything.
 *
 * In ordered mode the gradient of each call goes on a stack of buffers, and the top two are added
 * while they are halves of one node of the tree over leaves (layout/calls.h), so bits do not depend
 * on how leaves are cut into calls. In fast mode there is one buffer and every call adds to it.
 *
 *     4 leaves on 2 ranks, 1 leaf a call, ordered           rank 0            rank 1
 *     after the first call                                  {0}               {2}
 *     backward of the second one completes a bucket         {0} {1} -> {0+1}  {2} {3} -> {2+3}
 *     the exchange sums it at once                                 {0+1} + {2+3}
 *
 * So the exchange of high buckets runs while backward computes the low ones: the pass calls the one
 * hook that goes up (ls_step_bucket_ready), which comes here and goes on to the exchange's row. */
#include "train/step/step_impl.h"

#include "base/fault.h"

/* For tests: a rank that needs twice as long for its work. LINESHAFT_FAULT=train.slow.1@1+ is rank
 * 1, always. before_ns: what it had worked before this call. */
static void slow_down(const ls_step *s, int64_t before_ns, ls_step_clock *clock)
{
    int64_t ns = ls_step_worked_ns(clock) - before_ns;

    if (!ls_step_test_point("slow", s->args.rank, -1))
        return;
    nanosleep(&(struct timespec){ns / LS_NS_PER_S, ns % LS_NS_PER_S}, NULL);
    ls_step_clock_lap(clock, LS_TIME_BACKWARD);
}

/* For tests: a bit of a gradient changes by itself (LINESHAFT_FAULT=train.flip.gradient.R.S: on
 * rank R in step S, counted from 1). */
static void flip_gradient(ls_step *s, int64_t from)
{
    if (from == 0 && !s->discrete && ls_step_test_point("flip.gradient", s->args.rank, s->done + 1))
        ((unsigned char *)s->grads[s->last.top > 0 ? s->last.top - 1 : 0])[2] ^= 0x40;
}

/* The stack's top sums of elements first .. end-1, after a call was put on it. */
static void merge(ls_step *s, int top, int merges, int64_t first, int64_t end)
{
    for (; merges > 0 && first < end; merges--, top--) {
        float *below = s->grads[top - 2], *above = s->grads[top - 1];
        s->args.kernels->add(s->args.stream, &(ls_add){.a = below + first,
                                                       .b = above + first,
                                                       .out = below + first,
                                                       .n = end - first});
    }
}

/* Of a call that is hashed; and of the last one, whose elements are summed over the calls and
 * handed to the exchange. */
void ls_step_dense_ready(ls_step *s, int64_t from)
{
    if (s->last.on)
        flip_gradient(s, from);
    ls_step_hash_from(s, from);
    if (!s->last.on) {
        ls_step_clock_lap(s->clock, LS_TIME_BACKWARD);
        return;
    }
    merge(s, s->last.top, s->last.merges, from, s->last.from);
    s->last.from = from;
    s->last.begun = true;
    ls_step_clock_lap(s->clock, LS_TIME_REDUCE);
    if (s->status == LS_OK)
        ls_step_record(s, s->exchange->ready(s, from));
}

/* Whether other ranks were lost: then no more is computed. */
static bool lost_others(ls_step *s)
{
    if (s->args.dp)
        ls_step_record(s, ls_comm_check(ls_dp_args_of(s->args.dp)->comm));
    return s->status != LS_OK;
}

/* All calls of this rank: their sum in grads[0], or, where the rank has some of the leaves only,
 * the roots of its subtrees in the buffers that follow. */
static void all_calls(ls_step *s, ls_step_state *host_state, ls_step_clock *clock)
{
    const ls_calls *calls = &s->now;
    int64_t all = ls_pass_grad_elements(s->args.model, calls->ordered);
    ls_step_leaves p = {.count = 0};
    int top = 0;

    s->last.on = s->last.begun = false;
    if (s->exchange->begin)
        s->exchange->begin(s, all);
    if (ls_step_graph_launch(s, host_state, clock)) {
        ls_step_clock_lap(clock, LS_TIME_BACKWARD);
        return;
    }
    while (!lost_others(s) && ls_step_next(s, &p)) {
        ls_pass_call call = ls_step_call(s, &p, top);
        int64_t before_ns = ls_step_worked_ns(clock);
        bool last = s->args.dp && p.number == calls->calls - 1;
        int merges = calls->ordered ? ls_calls_merges(calls, p.first, p.count) : 0;
        ls_step_forward(s, &p, &call, host_state);
        ls_step_lap(s, clock, LS_TIME_FORWARD);
        (void)ls_fault_at(LS_FAULT_AT_BACKWARD);
        bool hashed = ls_step_hash_call(s, &p, top, all);
        top += calls->ordered;
        if (last)
            s->last = (ls_step_last_call){.on = true, .top = top, .merges = merges, .from = all};
        if (last || hashed)
            call.complete = ls_step_bucket_ready;
        ls_pass_backward(s->pass, &call);
        ls_step_lap(s, clock, LS_TIME_BACKWARD);
        slow_down(s, before_ns, clock);
        if (!last)
            merge(s, top, merges, 0, all);
        top -= merges;
        ls_step_clock_lap(clock, LS_TIME_REDUCE);
    }
}

ls_status ls_step_add_residual(ls_step *s, const float *residual)
{
    int64_t bytes = s->args.model->trained * (int64_t)sizeof *residual;
    ls_device *device = ls_step_device(s);
    ls_status st = ls_device_alloc(device, bytes, "residuals of an earlier exchange", &s->residual);

    if (st != LS_OK)
        return st;
    ls_stream_copy_in(s->args.stream, s->residual, residual, bytes);
    return ls_step_sync(s);
}

/* The residual to the sum of gradients, as far as this rank updates it. */
static ls_status add_residual(ls_step *s)
{
    ls_status st;

    for (int b = 0; b < s->parts.own.n; b++) {
        ls_mesh_part own = s->parts.own.at[b];
        float *sum = (float *)s->grads[0] + own.first;
        if (own.count > 0)
            s->args.kernels->add(s->args.stream, &(ls_add){.a = sum,
                                                           .b = (float *)s->residual + own.first,
                                                           .out = sum,
                                                           .n = own.count});
    }
    st = ls_step_sync(s);
    ls_device_free(ls_step_device(s), s->residual);
    s->residual = NULL;
    return st;
}

/* A recording that fails is queued again: nothing of it has left this process yet. */
ls_status ls_step_dense_gradients(ls_step *s, ls_step_state *host_state, ls_step_clock *clock)
{
    bool recorded = ls_step_graph_begin(s, clock);
    ls_status st;

    all_calls(s, host_state, clock);
    if (recorded && !ls_step_graph_end(s))
        all_calls(s, host_state, clock);
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_REDUCE), out);
    LS_TRY(st, s->exchange->sum(s, clock), out);
    if (s->residual)
        st = add_residual(s);
out:
    ls_step_clock_lap(clock, s->args.dp ? LS_TIME_EXCHANGE : LS_TIME_REDUCE);
    return st;
}

static ls_status norm(ls_step *s, const ls_norm2 *whole)
{
    s->args.kernels->norm2(s->args.stream, whole);
    return LS_OK;
}

static bool fits(const ls_step_args *args)
{
    (void)args;
    return true;
}

const ls_step_mode ls_step_mode_dense = {.fits = fits,
                                         .graphs = true,
                                         .gradients = ls_step_dense_gradients,
                                         .ready = ls_step_dense_ready,
                                         .norm = norm};
