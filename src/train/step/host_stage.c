/* host_stage.c -- what ranks exchange where the device has a memory of its own.
 *
 * No other rank can reach that memory, so gradients, weights and numbers pass through host memory
 * that all ranks of a machine share and that is locked for copies: one buffer for each gradient
 * buffer.
 *
 *   stream     ... layer 2 | layer 1 | layer 0                      | sums, norm, update
 *   side             copy of bucket 2 | of bucket 1 | of bucket 0
 *   host       queues all of that; then bucket by bucket: waits, starts its sum; waits for all
 *   other ranks                    bucket 2 ...      bucket 1 ...    bucket 0
 *
 * A transfer is one such copy: elements 900 .. 1199, then 400 .. 899, then 0 .. 399 of 1200.
 *
 * Nothing on the device waits for another rank. The host waits, asleep between two looks, and
 * queues the next work when the data is there. So ranks that share a card cannot hold each other
 * up.
 *
 * A buffer is written by copies or by the communicator. Copies of a step's gradients wait for the
 * stream, so they come after everything that reads the buffer for the step before. A function that
 * lets the communicator write without such a copy waits for the stream first. */
#include "train/step/step_impl.h"

/* --- opening ---------------------------------------------------------------------------------- */

ls_status ls_step_open_host_stage(ls_step *s, int64_t elements)
{
    ls_comm *comm = ls_dp_args_of(s->args.dp)->comm;
    ls_status st = LS_OK;

    s->host_stage.elements = elements;
    for (int i = 0;
         i < (ls_step_divides_grads(s) || s->device_exchange ? 1 : s->args.calls.buffers); i++) {
        LS_TRY(st,
               ls_staging_alloc(&s->host_stage.memory[i], comm, ls_step_device(s),
                                elements * (int64_t)sizeof(float), "gradients on their way",
                                i == 0),
               out);
        s->host_stage.buffers[i] = s->host_stage.memory[i].at;
    }
    LS_TRY(st, ls_event_create(&s->host_stage.complete, ls_step_device(s)), out);
    for (int i = 0; i <= ls_dp_buckets(s->args.dp); i++)
        LS_TRY(st, ls_event_create(&s->host_stage.transfers[i].arrived, ls_step_device(s)), out);
out:
    return st;
}

void ls_step_close_host_stage(ls_step *s)
{
    for (int i = 0; i < LS_ORDERED_ROOTS && s->args.dp; i++)
        ls_staging_free(&s->host_stage.memory[i], ls_dp_args_of(s->args.dp)->comm,
                        ls_step_device(s));
    ls_event_free(s->host_stage.complete);
    for (size_t i = 0; i < LS_COUNT(s->host_stage.transfers); i++)
        ls_event_free(s->host_stage.transfers[i].arrived);
}

/* --- gradients -------------------------------------------------------------------------------- */

/* Buckets of which elements `from` and above are all. */
static int complete_buckets(const ls_step *s, int64_t from)
{
    const ls_dp_args *a = ls_dp_args_of(s->args.dp);
    int n = 0;

    for (int b = ls_dp_buckets(s->args.dp) - 1; b >= 0; b--)
        n += ls_mesh_bucket(&a->mesh, a->trained, b).first >= from;
    return n;
}

static void begin(ls_step *s, int64_t elements)
{
    s->host_stage.n = 0;
    s->host_stage.buckets = -1;
    s->host_stage.end = elements;
}

/* Elements `from` and above of the first `buffers` gradients are complete when the stream comes
 * here: copy them to the host. */
static void stage_from(ls_step *s, int64_t from, int buffers)
{
    int64_t bytes = (s->host_stage.end - from) * (int64_t)sizeof(float);
    int buckets = complete_buckets(s, from), n = s->host_stage.n;

    if (buckets == s->host_stage.buckets)
        return; /* it goes with what completes the next bucket */
    bool recording = ls_step_graph_cut(s, from, buffers);
    ls_event_record(s->host_stage.complete, s->args.stream);
    ls_stream_wait(s->args.side, s->host_stage.complete);
    for (int i = 0; i < buffers; i++)
        ls_stream_copy_out(s->args.side, s->host_stage.buffers[i] + from,
                           (float *)s->grads[i] + from, bytes);
    ls_event_record(s->host_stage.transfers[n].arrived, s->args.side);
    s->host_stage.transfers[n].from = from;
    s->host_stage.n = n + 1;
    s->host_stage.buckets = buckets;
    s->host_stage.end = from;
    if (recording)
        ls_step_graph_resume(s);
}

/* The roots of the last call are not merged: the copy takes them. */
static ls_status ready(ls_step *s, int64_t from)
{
    stage_from(s, from, (int)ls_max_i64(1, s->last.top - s->last.merges));
    return LS_OK;
}

/* The error of a failed kernel is that of the stream, which knows its name. */
static ls_status wait_transfer(ls_step *s, int i)
{
    ls_status st = ls_event_sync(s->host_stage.transfers[i].arrived, ls_step_deadline());
    bool last = i == s->host_stage.n - 1;

    if (st == LS_EDEADLINE)
        return st;
    if (st != LS_OK || last || ls_stream_failed(s->args.stream)) {
        ls_status why = ls_step_sync(s);
        st = why != LS_OK ? why : st;
    }
    if (st == LS_OK && ls_stream_failed(s->args.side))
        st = ls_stream_sync(s->args.side, ls_step_deadline());
    return st;
}

/* The sums to the device, as far as this rank has them. */
static void bring_back(ls_step *s)
{
    for (int b = 0; b < s->parts.sums.n; b++) {
        ls_mesh_part own = s->parts.sums.at[b];
        ls_stream_copy_in(s->args.stream, (float *)s->grads[0] + own.first,
                          s->host_stage.buffers[0] + own.first, own.count * (int64_t)sizeof(float));
    }
}

static ls_status sum(ls_step *s, ls_step_clock *clock)
{
    float *const *buffers = s->host_stage.buffers;
    ls_status st = LS_OK;

    for (int i = 0; i < s->host_stage.n; i++) {
        LS_TRY(st, wait_transfer(s, i), out);
        ls_step_clock_lap(clock, LS_TIME_BACKWARD);
        LS_TRY(st, ls_dp_sum_from(s->args.dp, buffers, s->host_stage.transfers[i].from), out);
        ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    }
    if (s->host_stage.n == 0) { /* this rank has no call */
        LS_TRY(st, ls_step_sync(s), out);
        if (!s->now.ordered)
            memset(buffers[0], 0, (size_t)s->args.model->trained * sizeof(float));
        LS_TRY(st, ls_dp_sum_from(s->args.dp, buffers, 0), out);
    }
    LS_TRY(st, ls_dp_sum_end(s->args.dp, buffers), out);
    bring_back(s);
out:
    return st;
}

/* --- numbers, weights, moments ---------------------------------------------------------------- */

/* From the device to the first buffer, which is then the communicator's. */
static ls_status take_out(ls_step *s, const void *from, int64_t bytes)
{
    LS_BUG_IF(bytes > s->host_stage.elements * (int64_t)sizeof(float), "%lld bytes do not fit",
              (long long)bytes);
    ls_stream_copy_out(s->args.stream, s->host_stage.buffers[0], from, bytes);
    return ls_step_sync(s);
}

ls_status ls_step_host_sum_in_group(ls_step *s, float *numbers, int64_t n)
{
    int64_t bytes = n * (int64_t)sizeof *numbers;
    ls_status st;

    LS_TRY(st, take_out(s, numbers, bytes), out);
    LS_TRY(st, ls_dp_sum_in_group(s->args.dp, s->host_stage.buffers[0], n), out);
    ls_stream_copy_in(s->args.stream, numbers, s->host_stage.buffers[0], bytes);
out:
    return st;
}

static ls_status gather(ls_step *s, float *whole)
{
    float *here = s->host_stage.buffers[0];
    const int64_t size = sizeof *whole;
    ls_status st;

    for (int b = 0; b < ls_dp_buckets(s->args.dp); b++) {
        ls_mesh_part own = ls_dp_own(s->args.dp, b);
        ls_stream_copy_out(s->args.stream, here + own.first, whole + own.first, own.count * size);
    }
    LS_TRY(st, ls_step_sync(s), out);
    LS_TRY(st, ls_dp_gather(s->args.dp, here), out);
    ls_stream_copy_in(s->args.stream, whole, here, s->args.model->trained * size);
out:
    return st;
}

ls_status ls_step_host_spread(ls_step *s)
{
    ls_status st = ls_step_gather(s, s->state_memory[0]);

    return st == LS_OK ? ls_step_weights_changed(s) : st;
}

ls_status ls_step_host_broadcast(ls_step *s, int from, void *memory, int64_t bytes)
{
    int64_t most = s->host_stage.elements * (int64_t)sizeof(float);
    bool sends = ls_dp_args_of(s->args.dp)->mesh.rank == from;
    ls_status st = LS_OK;

    for (int64_t done = 0; done < bytes; done += most) {
        int64_t n = ls_min_i64(most, bytes - done);
        char *at = (char *)memory + done;
        LS_TRY(st, sends ? take_out(s, at, n) : ls_step_sync(s), out);
        LS_TRY(st, ls_dp_broadcast(s->args.dp, from, s->host_stage.buffers[0], n), out);
        if (!sends)
            ls_stream_copy_in(s->args.stream, at, s->host_stage.buffers[0], n);
    }
    st = ls_step_sync(s);
out:
    return st;
}

/* Of an array of the parts that replicas divide: more than the moments where ranks divide experts,
 * too. */
static int64_t own_bytes(const ls_step *s)
{
    const ls_dp_args *a = ls_dp_args_of(s->args.dp);

    return ls_mesh_own(&a->mesh, a->trained, a->mesh.rank) * (int64_t)sizeof(float);
}

ls_status ls_step_host_collect(ls_step *s, const float *part, float *whole)
{
    ls_status st;

    st = take_out(s, part, own_bytes(s));
    return st == LS_OK ? ls_dp_collect(s->args.dp, s->host_stage.buffers[0], whole) : st;
}

ls_status ls_step_host_scatter(ls_step *s, const float *whole, float *part)
{
    ls_status st;

    LS_TRY(st, ls_step_sync(s), out);
    LS_TRY(st, ls_dp_scatter(s->args.dp, whole, s->host_stage.buffers[0]), out);
    ls_stream_copy_in(s->args.stream, part, s->host_stage.buffers[0], own_bytes(s));
    st = ls_step_sync(s);
out:
    return st;
}

const ls_step_exchange ls_step_exchange_host_stage = {.open = ls_step_open_host_stage,
                                                      .begin = begin,
                                                      .ready = ready,
                                                      .leave = stage_from,
                                                      .sum = sum,
                                                      .spread = ls_step_host_spread,
                                                      .sum_in_group = ls_step_host_sum_in_group,
                                                      .gather = gather,
                                                      .broadcast = ls_step_host_broadcast,
                                                      .collect = ls_step_host_collect,
                                                      .scatter = ls_step_host_scatter};
