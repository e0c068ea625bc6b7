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
#include "train/step/device_exchange_impl.h"

#include "base/mem.h"

/* --- opening ---------------------------------------------------------------------------------- */

static ls_status open_comm(ls_step *s, ls_comm *comm, const char *axis, ls_device_comm **dc_out)
{
    return ls_device_comm_open(dc_out,
                               &(ls_device_comm_args){.comm = comm,
                                                      .device = ls_step_device(s),
                                                      .provider = s->args.collectives,
                                                      .axis = axis},
                               ls_time_now_ns() + LS_STEP_OPEN_S * LS_NS_PER_S);
}

/* One communicator; with shard groups that of the group, that of the ranks that own the same parts,
 * and in ordered mode that of all. All of them on the side: they never wait for each other. */
static ls_status open_comms(ls_step *s, struct ls_step_device_exchange *x)
{
    const ls_dp_args *a = ls_dp_args_of(s->args.dp);
    ls_comm *shard_replicas = ls_dp_shard_replicas(s->args.dp);
    ls_status st = LS_OK;

    if (!shard_replicas || a->ordered)
        LS_TRY(st, open_comm(s, a->comm, "dp", &x->all), out);
    x->group = x->all;
    if (!shard_replicas)
        goto out;
    x->group = NULL;
    LS_TRY(st, open_comm(s, ls_dp_group(s->args.dp), "shard", &x->group), out);
    st = open_comm(s, shard_replicas, "dp", &x->shard_replicas);
out:
    return st;
}

static ls_status open_sums(ls_step *s, struct ls_step_device_exchange *x)
{
    ls_device *device = ls_step_device(s);
    ls_status st;

    LS_TRY(st, ls_event_create(&x->complete, device), out);
    LS_TRY(st, ls_event_create(&x->done, device), out);
    LS_TRY(st, open_comms(s, x), out);
    LS_TRY(st,
           ls_dp_device_open(&x->sums, &(ls_dp_device_args){.dp = s->args.dp,
                                                            .dc = x->all,
                                                            .group = x->group,
                                                            .shard_replicas = x->shard_replicas,
                                                            .stream = s->args.side,
                                                            .kernels = s->args.kernels}),
           out);
out:
    return st;
}

ls_status ls_step_open_device_exchange(ls_step *s, int64_t elements)
{
    ls_status st;

    s->device_exchange = ls_mem_alloc(sizeof *s->device_exchange);
    if (!s->device_exchange)
        return ls_fail(LS_ENOMEM, "no memory for the exchange of gradients");
    *s->device_exchange = (struct ls_step_device_exchange){.all = NULL};
    s->by_device = true;
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
    if (x->group != x->all)
        ls_device_comm_close(x->group);
    ls_device_comm_close(x->shard_replicas);
    ls_device_comm_close(x->all);
    ls_dp_device_close(x->sums);
    ls_event_free(x->complete);
    ls_event_free(x->done);
    for (int i = 0; i < LS_DP_AHEAD; i++)
        ls_event_free(x->summed[i]);
    for (int b = 0; b < LS_MESH_BUCKETS; b++)
        ls_event_free(x->arrived[b]);
    if (ls_step_divides_grads(s))
        ls_step_close_zero_windows(s);
    ls_mem_free(x);
    s->device_exchange = NULL;
}

/* --- a step ----------------------------------------------------------------------------------- */

void ls_step_to_side(ls_step *s)
{
    ls_event_record(s->device_exchange->complete, s->args.stream);
    ls_stream_wait(s->args.side, s->device_exchange->complete);
}

void ls_step_from_side(ls_step *s)
{
    ls_event_record(s->device_exchange->done, s->args.side);
    ls_stream_wait(s->args.stream, s->device_exchange->done);
}

void ls_step_begin_device_exchange(ls_step *s)
{
    struct ls_step_device_exchange *x = s->device_exchange;
    ls_device_comm *const comms[] = {x->all, x->group == x->all ? NULL : x->group,
                                     x->shard_replicas};

    for (size_t i = 0; i < LS_COUNT(comms); i++)
        if (comms[i])
            ls_device_comm_set_step(comms[i], s->done + 1);
}

static void begin(ls_step *s, int64_t elements)
{
    (void)elements;
    ls_step_begin_device_exchange(s);
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
    ls_step_to_side(s);
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
    ls_step_from_side(s);
out:
    return st;
}

ls_status ls_step_device_sum_in_group(ls_step *s, float *numbers, int64_t n)
{
    ls_status st;

    ls_step_to_side(s);
    st = ls_dp_device_share(s->device_exchange->sums, numbers, n);
    ls_step_from_side(s);
    return st;
}

ls_status ls_step_device_gather(ls_step *s, float *whole)
{
    ls_status st;

    ls_step_to_side(s);
    st = ls_dp_device_gather(s->device_exchange->sums, whole);
    ls_step_from_side(s);
    return st;
}

const ls_step_exchange ls_step_exchange_device = {.open = ls_step_open_device_exchange,
                                                  .begin = begin,
                                                  .leave = leave,
                                                  .ready = ready,
                                                  .sum = sum,
                                                  .spread = ls_step_host_spread,
                                                  .sum_in_group = ls_step_device_sum_in_group,
                                                  .gather = ls_step_device_gather,
                                                  .broadcast = ls_step_host_broadcast,
                                                  .collect = ls_step_host_collect,
                                                  .scatter = ls_step_host_scatter};
