/* pipeline_device.c -- a pipeline whose messages go from card to card, by collectives of device
 * memory (comm/device): the host queues all of a step without waiting.
 *
 *   stream   F0 |        F1 |        waits for B0 | B0 ...
 *   side        | send F0   | send F1 | receive B0 ...
 *
 * The side has sends and receives in the order of the table (layout/pp_schedule.h), each at its
 * place, behind what the stream has done until there. A device that sends may wait for the device
 * that receives: just that is what the table is proved for, so no two of them wait for each other.
 * Receives therefore do not begin earlier, as they do through the host.
 *
 * The stream waits for a receive before it reads it, and for a send before its memory is written
 * again. The norm, a tied embedding and passes without gradients take the same way.
 *
 * One pipeline only: gradients of several are summed through the host (pipeline_host_stage.c). */
#include "train/step/pipeline_impl.h"

#include "base/mem.h"
#include "plan/pipeline_memory.h"

static bool by_device(const ls_step *s)
{
    return s->discrete && s->args.collectives && !ls_step_has_mp_group(s) &&
           ls_pipeline_memory_by_device(&ls_dp_args_of(s->args.dp)->mesh);
}

ls_status ls_pipeline_open_device(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    ls_device *device = ls_step_device(s);
    int places = x->plan.streams + x->plan.gradients;
    ls_status st;

    if (!by_device(s))
        return LS_OK;
    s->by_device = true;
    x->device.places = places;
    x->device.arrived = ls_mem_array((size_t)places, sizeof *x->device.arrived);
    if (!x->device.arrived)
        return ls_fail(LS_ENOMEM, "no memory for the messages of a pipeline");
    for (int i = 0; i < places; i++)
        LS_TRY(st, ls_event_create(&x->device.arrived[i], device), out);
    for (int i = 0; i < LS_PIPELINE_SENDS; i++)
        LS_TRY(st, ls_event_create(&x->device.sent[i], device), out);
    LS_TRY(st, ls_event_create(&x->device.complete, device), out);
    LS_TRY(st, ls_event_create(&x->device.done, device), out);
    st = ls_device_comm_open(&x->device.comm,
                             &(ls_device_comm_args){.comm = x->pipeline_comm,
                                                    .device = device,
                                                    .provider = s->args.collectives,
                                                    .axis = "pp"},
                             ls_pipeline_deadline());
out:
    return st;
}

/* What is queued ends before memory goes. */
void ls_pipeline_close_device(ls_pipeline *x)
{
    ls_device_comm_close(x->device.comm);
    for (int i = 0; i < x->device.places && x->device.arrived; i++)
        ls_event_free(x->device.arrived[i]);
    for (int i = 0; i < LS_PIPELINE_SENDS; i++)
        ls_event_free(x->device.sent[i]);
    ls_event_free(x->device.complete);
    ls_event_free(x->device.done);
    ls_mem_free(x->device.arrived);
    x->device.comm = NULL;
}

/* A call on the side, behind what the stream has done so far; event: it is done. */
static ls_status queue(const ls_step *s, const ls_coll *coll, ls_event *event)
{
    const ls_pipeline *x = s->pipeline;
    ls_status st;

    ls_event_record(x->device.complete, s->args.stream);
    ls_stream_wait(s->args.side, x->device.complete);
    st = ls_device_comm_queue(x->device.comm, s->args.side, coll);
    ls_event_record(event, s->args.side);
    return st;
}

ls_status ls_pipeline_device_send(const ls_step *step, const ls_coll *coll, int send)
{
    return queue(step, coll, step->pipeline->device.sent[send]);
}

ls_status ls_pipeline_device_receive(const ls_step *step, const ls_coll *coll, int place)
{
    return queue(step, coll, step->pipeline->device.arrived[place]);
}

void ls_pipeline_device_sent(const ls_step *step, int send)
{
    ls_stream_wait(step->args.stream, step->pipeline->device.sent[send]);
}

void ls_pipeline_device_arrived(const ls_step *step, int place)
{
    ls_stream_wait(step->args.stream, step->pipeline->device.arrived[place]);
}

ls_status ls_pipeline_device_run(const ls_step *step, const ls_coll *coll)
{
    ls_event *done = step->pipeline->device.done;
    ls_status st = queue(step, coll, done);

    ls_stream_wait(step->args.stream, done);
    return st;
}
