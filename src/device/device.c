/* device.c -- the list of devices, and the accounting that all of them share: every buffer has a
 * name and a size, so that a failed allocation can list what fills the memory. */
#include "device/device.h"

#include "base/fault.h"
#include "base/mem.h"
#include "device/device_impl.h"

static const ls_device_ops *const devices[] = {&ls_device_cuda, &ls_device_cpu};

const char *ls_device_unusable(const char *kind)
{
    for (size_t i = 0; i < LS_COUNT(devices); i++)
        if (strcmp(kind, devices[i]->kind) == 0)
            return devices[i]->unusable();
    return "there is no such device";
}

ls_status ls_device_open(ls_device **device_out, const char *kind, int threads)
{
    return ls_device_open_with(device_out, &(ls_device_args){.kind = kind, .threads = threads});
}

ls_status ls_device_open_with(ls_device **device_out, const ls_device_args *args)
{
    const char *kind = args->kind;
    const ls_device_ops *ops = NULL;
    bool any = strcmp(kind, "auto") == 0;

    for (size_t i = 0; i < LS_COUNT(devices) && !ops; i++) {
        if (any ? !devices[i]->automatic : strcmp(kind, devices[i]->kind) != 0)
            continue;
        const char *reason = devices[i]->unusable();
        if (any && !reason)
            ops = devices[i];
        if (!any) {
            if (reason)
                return ls_fail(LS_EUSAGE, "cannot use device \"%s\": %s", kind, reason);
            ops = devices[i];
        }
    }
    if (!ops) {
        ls_fail(LS_EUSAGE, "there is no device \"%s\"", kind);
        ls_err_hint("Choose \"auto\", \"cpu\" or \"cuda\".");
        return LS_EUSAGE;
    }
    ls_device *device = ls_mem_alloc(sizeof *device);
    if (!device)
        return LS_ENOMEM;
    device->ops = ops;
    device->pinned = args->pinned;
    device->unpinned = args->unpinned;
    device->card = args->card;
    ls_status st = ops->open(device, args->threads);
    if (st != LS_OK) {
        ls_device_close(device);
        return st;
    }
    *device_out = device;
    return LS_OK;
}

ls_status ls_device_enter(ls_device *device)
{
    return device->ops->enter ? device->ops->enter(device) : LS_OK;
}

void ls_device_close(ls_device *device)
{
    if (!device)
        return;
    for (int i = 0; i < LS_DEVICE_BUFFERS; i++)
        LS_BUG_IF(device->buffers[i].memory, "a device is closed with memory still in use");
    device->ops->close(device);
    ls_mem_free(device);
}

ls_device_info ls_device_describe(const ls_device *device)
{
    ls_device_info info = {.threads = device->threads, .graphs = device->ops->graphs};

    if (device->ops->window_page)
        info.window_page = device->ops->window_page(device);
    device->ops->describe(device, &info);
    return info;
}

void ls_device_count(ls_device *device, void *memory, int64_t bytes)
{
    int slot = 0;

    while (slot < LS_DEVICE_BUFFERS && device->buffers[slot].memory)
        slot++;
    LS_BUG_IF(slot == LS_DEVICE_BUFFERS, "more than %d device buffers", LS_DEVICE_BUFFERS);
    device->buffers[slot].memory = memory;
    device->buffers[slot].bytes = bytes;
    device->used_bytes += bytes;
    device->peak_bytes = ls_max_i64(device->peak_bytes, device->used_bytes);
}

void ls_device_forget(ls_device *device, int slot)
{
    device->used_bytes -= device->buffers[slot].bytes;
    device->buffers[slot].memory = NULL;
}

ls_status ls_device_alloc(ls_device *device, int64_t bytes, const char *what, void **memory_out)
{
    LS_BUG_IF(bytes < 0, "the size of %s has overflowed", what);
    if (bytes <= INT64_MAX - LS_DEVICE_PAGE)
        bytes = ls_round_up(ls_max_i64(bytes, 1), LS_DEVICE_PAGE);
    void *memory = device->ops->alloc(device, bytes);
    if (!memory) {
        ls_device_info info = ls_device_describe(device);
        return ls_fail(LS_ENOMEM, "cannot allocate %.1f MiB for %s: %.1f MiB are free",
                       ls_size_up(bytes, LS_MIB), what, ls_size_down(info.free_bytes, LS_MIB));
    }
    ls_device_count(device, memory, bytes);
    *memory_out = memory;
    return LS_OK;
}

void ls_device_free(ls_device *device, void *memory)
{
    if (!memory)
        return;
    for (int i = 0; i < LS_DEVICE_BUFFERS; i++)
        if (device->buffers[i].memory == memory) {
            device->ops->free(device, memory, device->buffers[i].bytes);
            ls_device_forget(device, i);
            return;
        }
    LS_BUG_IF(true, "freeing memory that the device does not know");
}

ls_status ls_device_host_alloc(ls_device *device, int64_t bytes, const char *what,
                               void **memory_out)
{
    LS_BUG_IF(bytes < 0, "the size of %s has overflowed", what);
    void *memory = device->ops->host_alloc(device, ls_max_i64(bytes, 1));

    if (!memory)
        return ls_fail(LS_ENOMEM, "cannot allocate %.1f MiB of host memory for %s",
                       (double)bytes / (double)LS_MIB, what);
    *memory_out = memory;
    return LS_OK;
}

void ls_device_host_free(ls_device *device, void *memory, int64_t bytes)
{
    if (memory)
        device->ops->host_free(device, memory, ls_max_i64(bytes, 1));
}

ls_status ls_device_host_lock(ls_device *device, void *memory, int64_t bytes, const char *what)
{
    if (!device->ops->host_lock || device->ops->host_lock(device, memory, bytes))
        return LS_OK;
    return ls_fail(LS_ENOMEM, "cannot lock %.1f MiB of host memory for %s",
                   (double)bytes / (double)LS_MIB, what);
}

void ls_device_host_unlock(ls_device *device, void *memory)
{
    if (device->ops->host_unlock)
        device->ops->host_unlock(device, memory);
}

const ls_plugin *ls_device_plugin(const ls_device *device)
{
    return device->plugin;
}

int64_t ls_device_used_bytes(const ls_device *device)
{
    return device->used_bytes;
}

int64_t ls_device_peak_bytes(const ls_device *device)
{
    return device->peak_bytes;
}

void ls_device_forget_peak(ls_device *device)
{
    device->peak_bytes = device->used_bytes;
}

ls_status ls_stream_create(ls_stream **stream_out, ls_device *device)
{
    ls_stream *stream = ls_mem_alloc(sizeof *stream);

    if (!stream)
        return LS_ENOMEM;
    stream->device = device;
    ls_status st = device->ops->stream_open ? device->ops->stream_open(stream) : LS_OK;
    if (st != LS_OK) {
        ls_mem_free(stream);
        return st;
    }
    *stream_out = stream;
    return LS_OK;
}

void ls_stream_free(ls_stream *stream)
{
    if (stream && stream->device->ops->stream_close)
        stream->device->ops->stream_close(stream);
    ls_mem_free(stream);
}

ls_device *ls_stream_device(const ls_stream *stream)
{
    return stream->device;
}

/* Work after a failure is dropped: it would read what was never written. */
static void copy(ls_stream *stream, void *dst, const void *src, int64_t bytes)
{
    LS_BUG_IF(bytes < 0, "a copy of %lld bytes", (long long)bytes);
    if (bytes && !stream->failed)
        stream->device->ops->copy(stream, dst, src, bytes);
}

void ls_stream_copy_in(ls_stream *stream, void *device_dst, const void *host_src, int64_t bytes)
{
    copy(stream, device_dst, host_src, bytes);
}

void ls_stream_copy_out(ls_stream *stream, void *host_dst, const void *device_src, int64_t bytes)
{
    copy(stream, host_dst, device_src, bytes);
}

void ls_stream_copy(ls_stream *stream, void *device_dst, const void *device_src, int64_t bytes)
{
    copy(stream, device_dst, device_src, bytes);
}

ls_status ls_stream_sync(ls_stream *stream, int64_t deadline_ns)
{
    ls_status st = stream->device->ops->sync(stream, deadline_ns);

    if (st == LS_OK && stream->failed)
        st = ls_err_adopt(&stream->failure);
    return st;
}

void ls_stream_fail(ls_stream *stream)
{
    if (stream->failed)
        return;
    stream->failed = true;
    stream->failure = *ls_err_last();
}

bool ls_stream_failed(const ls_stream *stream)
{
    return stream->failed;
}

void ls_stream_revive(ls_stream *stream, int64_t deadline_ns)
{
    if (stream->failed && stream->device->ops->sync(stream, deadline_ns) == LS_OK)
        stream->failed = false;
}

void ls_stream_watch(ls_stream *stream, void *watcher)
{
    stream->watcher = watcher;
}

void *ls_stream_watcher(const ls_stream *stream)
{
    return stream->watcher;
}

ls_pool *ls_stream_pool(const ls_stream *stream)
{
    return stream->device->pool;
}

void *ls_stream_thread_scratch(const ls_stream *stream, int worker)
{
    return (char *)stream->device->thread_scratch + (size_t)worker * LS_STREAM_THREAD_BYTES;
}

void *ls_stream_native(const ls_stream *stream)
{
    return stream->native;
}

void *ls_stream_handle(const ls_stream *stream)
{
    return stream->device->ops->stream_handle ? stream->device->ops->stream_handle(stream) : NULL;
}

/* --- events --------------------------------------------------------------------------------- */

ls_status ls_event_create(ls_event **event_out, ls_device *device)
{
    ls_event *event = ls_mem_alloc(sizeof *event);

    if (!event)
        return LS_ENOMEM;
    event->device = device;
    ls_status st = device->ops->event_open ? device->ops->event_open(event) : LS_OK;
    if (st != LS_OK) {
        ls_mem_free(event);
        return st;
    }
    *event_out = event;
    return LS_OK;
}

void ls_event_free(ls_event *event)
{
    if (event && event->device->ops->event_close)
        event->device->ops->event_close(event);
    ls_mem_free(event);
}

void ls_event_record(ls_event *event, ls_stream *stream)
{
    LS_BUG_IF(event->device != stream->device, "an event of another device");
    if (!stream->failed)
        event->device->ops->event_record(event, stream);
}

void ls_stream_wait(ls_stream *stream, ls_event *event)
{
    LS_BUG_IF(event->device != stream->device, "an event of another device");
    if (!stream->failed)
        event->device->ops->stream_wait(stream, event);
}

ls_status ls_event_sync(ls_event *event, int64_t deadline_ns)
{
    return event->device->ops->event_sync(event, deadline_ns);
}

ls_status ls_event_between(ls_event *begin, ls_event *end, double *ms_out)
{
    LS_BUG_IF(begin->device != end->device, "events of two devices");
    return begin->device->ops->event_between(begin, end, ms_out);
}

/* --- graphs --------------------------------------------------------------------------------- */

ls_status ls_graph_begin(ls_stream *stream)
{
    if (!stream->device->ops->graphs)
        return ls_fail(LS_EUSAGE, "device \"%s\" cannot record graphs", stream->device->ops->kind);
    return stream->failed ? ls_err_adopt(&stream->failure)
                          : stream->device->ops->graph_begin(stream);
}

ls_status ls_graph_end(ls_stream *stream, ls_graph **graph_out)
{
    void *native = NULL;
    ls_graph *graph = ls_mem_alloc(sizeof *graph);
    ls_status st = stream->device->ops->graph_end(stream, &native); /* also to end a failed one */

    if (stream->failed)
        st = ls_err_adopt(&stream->failure); /* it came first */
    stream->failed = false;
    if (st == LS_OK && LS_FAULT("device.graph"))
        st = ls_fail(LS_EFAIL, "cannot record a graph: the fault \"device.graph\" is armed");
    if (st == LS_OK && !graph)
        st = ls_fail(LS_ENOMEM, "no memory for a graph");
    if (st != LS_OK) {
        if (native)
            stream->device->ops->graph_free(stream->device, native);
        ls_mem_free(graph);
        return st;
    }
    *graph = (ls_graph){.device = stream->device, .native = native};
    *graph_out = graph;
    return LS_OK;
}

void ls_graph_launch(ls_graph *graph, ls_stream *stream)
{
    LS_BUG_IF(graph->device != stream->device, "a graph of another device");
    if (!stream->failed)
        graph->device->ops->graph_launch(graph->native, stream);
}

void ls_graph_free(ls_graph *graph)
{
    if (graph)
        graph->device->ops->graph_free(graph->device, graph->native);
    ls_mem_free(graph);
}
