/* device_exchange.c -- gradients of replicas, exchanged by collectives of device memory
 * (parallel/dp_device.h): nothing is copied to the host, and the host does not wait in a step before
 * it reads losses.
 *
 *   stream    ... layer 2 | layer 1 | layer 0          | waits for the side | norm, update
 *   side             sum of bucket 2 | of bucket 1 | of bucket 0
 *   host      queues all of that
 *
 * The device waits for other ranks here. When one dies, the communicator ends what is queued and
 * breaks that of the host (comm/device/device_comm.h), so the losses of this step do not come, and
 * the sums, which are wrong then, are not used. Losses, checkpoints and moments that are scattered
 * go through the host as host_stage.c does it, with one buffer. */
#include "train/step/step_impl.h"

#include "base/mem.h"
#include "parallel/dp_device.h"

struct ls_step_device_exchange {
    ls_device_comm *dc;
    ls_dp_device *sums;
    ls_event *complete; /* what is to be exchanged next is complete on the device */
    ls_event *done;     /* and what was exchanged, on the side */
};

static ls_status open_sums(ls_step *s, struct ls_step_device_exchange *x)
{
    ls_device *device = ls_step_device(s);
    int64_t deadline_ns = ls_time_now_ns() + LS_STEP_OPEN_S * LS_NS_PER_S;
    ls_status st;

    LS_TRY(st, ls_event_create(&x->complete, device), out);
    LS_TRY(st, ls_event_create(&x->done, device), out);
    LS_TRY(st,
           ls_device_comm_open(&x->dc,
                               &(ls_device_comm_args){.comm = ls_dp_args_of(s->args.dp)->comm,
                                                      .device = device,
                                                      .provider = s->args.collectives,
                                                      .axis = "dp"},
                               deadline_ns),
           out);
    LS_TRY(st,
           ls_dp_device_open(&x->sums, &(ls_dp_device_args){.dp = s->args.dp,
                                                            .dc = x->dc,
                                                            .stream = s->args.side,
                                                            .kernels = s->args.kernels}),
           out);
out:
    return st;
}

static ls_status open(ls_step *s, int64_t elements)
{
    ls_status st;

    s->device_exchange = ls_mem_alloc(sizeof *s->device_exchange);
    if (!s->device_exchange)
        return ls_fail(LS_ENOMEM, "no memory for the exchange of gradients");
    *s->device_exchange = (struct ls_step_device_exchange){.dc = NULL};
    LS_TRY(st, ls_step_open_host_stage(s, elements), out);
    st = open_sums(s, s->device_exchange);
out:
    return st;
}

/* The sums are queued on the side: it is waited for before memory goes. */
void ls_step_close_device_exchange(ls_step *s)
{
    struct ls_step_device_exchange *x = s->device_exchange;

    if (!x)
        return;
    ls_device_comm_close(x->dc);
    ls_dp_device_close(x->sums);
    ls_event_free(x->complete);
    ls_event_free(x->done);
    ls_mem_free(x);
    s->device_exchange = NULL;
}

/* The side goes on when the stream has come here; and the other way round. */
static void to_side(ls_step *s)
{
    ls_event_record(s->device_exchange->complete, s->args.stream);
    ls_stream_wait(s->args.side, s->device_exchange->complete);
}

static void from_side(ls_step *s)
{
    ls_event_record(s->device_exchange->done, s->args.side);
    ls_stream_wait(s->args.stream, s->device_exchange->done);
}

static void begin(ls_step *s, int64_t elements)
{
    (void)elements;
    ls_device_comm_set_step(s->device_exchange->dc, s->done + 1);
    ls_dp_device_begin(s->device_exchange->sums);
}

static void leave(ls_step *s, int64_t from, int buffers)
{
    struct ls_step_device_exchange *x = s->device_exchange;
    float *roots[LS_ORDERED_ROOTS];

    if (s->status != LS_OK || !ls_dp_device_has(x->sums, from))
        return;
    bool recording = ls_step_graph_cut(s, from, buffers);
    for (int i = 0; i < s->now.buffers; i++)
        roots[i] = s->grads[i];
    to_side(s);
    ls_step_record(s, ls_dp_device_sum_from(x->sums, roots, from));
    if (recording)
        ls_step_graph_resume(s);
}

static ls_status ready(ls_step *s, int64_t from)
{
    leave(s, from, (int)ls_max_i64(1, s->last.top - s->last.merges));
    return LS_OK;
}

static ls_status sum(ls_step *s, ls_step_clock *clock)
{
    ls_status st;

    (void)clock;
    LS_TRY(st, ls_step_recorded(s), out);
    if (!ls_dp_device_begun(s->device_exchange->sums)) { /* this rank has no call */
        if (!s->now.ordered)
            s->args.kernels->fill(s->args.stream,
                                  &(ls_fill){.x = s->grads[0], .n = s->args.model->trained});
        leave(s, 0, 1);
        LS_TRY(st, ls_step_recorded(s), out);
    }
    from_side(s);
out:
    return st;
}

static ls_status sum_in_group(ls_step *s, float *numbers, int64_t n)
{
    ls_status st;

    to_side(s);
    st = ls_dp_device_share(s->device_exchange->sums, numbers, n);
    from_side(s);
    return st;
}

static ls_status gather(ls_step *s, float *whole)
{
    ls_status st;

    to_side(s);
    st = ls_dp_device_gather(s->device_exchange->sums, whole);
    from_side(s);
    return st;
}

const ls_step_exchange ls_step_exchange_device = {.open = open,
                                                  .begin = begin,
                                                  .leave = leave,
                                                  .ready = ready,
                                                  .sum = sum,
                                                  .spread = ls_step_host_spread,
                                                  .sum_in_group = sum_in_group,
                                                  .gather = gather,
                                                  .broadcast = ls_step_host_broadcast,
                                                  .collect = ls_step_host_collect,
                                                  .scatter = ls_step_host_scatter};
