/* device.c -- the list of devices, and the accounting that all of them share. */
#include "device/device.h"

#include "base/mem.h"
#include "device/device_impl.h"

static const ls_device_ops *const devices[] = {&ls_device_cpu};

ls_status ls_device_open(ls_device **device_out, const char *kind, int threads)
{
    const ls_device_ops *ops = NULL;
    bool any = strcmp(kind, "auto") == 0;

    for (size_t i = 0; i < LS_COUNT(devices) && !ops; i++) {
        const char *reason = devices[i]->unusable();
        if (any && !reason)
            ops = devices[i];
        if (!any && strcmp(kind, devices[i]->kind) == 0) {
            if (reason)
                return ls_fail(LS_EUSAGE, "cannot use device \"%s\": %s", kind, reason);
            ops = devices[i];
        }
    }
    if (!ops) {
        ls_fail(LS_EUSAGE, "there is no device \"%s\"", kind);
        ls_err_hint("Choose \"auto\" or \"cpu\".");
        return LS_EUSAGE;
    }
    ls_device *device = ls_mem_alloc(sizeof *device);
    if (!device)
        return LS_ENOMEM;
    device->ops = ops;
    ls_status st = ops->open(device, threads);
    if (st != LS_OK) {
        ls_device_close(device);
        return st;
    }
    *device_out = device;
    return LS_OK;
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
    ls_device_info info = {.threads = device->threads};

    device->ops->describe(device, &info);
    return info;
}

ls_status ls_device_alloc(ls_device *device, int64_t bytes, const char *what, void **memory_out)
{
    int slot = 0;

    while (slot < LS_DEVICE_BUFFERS && device->buffers[slot].memory)
        slot++;
    LS_BUG_IF(slot == LS_DEVICE_BUFFERS, "more than %d device buffers", LS_DEVICE_BUFFERS);
    LS_BUG_IF(bytes < 0, "the size of %s has overflowed", what);
    if (bytes <= INT64_MAX - LS_DEVICE_PAGE)
        bytes = ls_round_up(ls_max_i64(bytes, 1), LS_DEVICE_PAGE);
    void *memory = device->ops->alloc(device, bytes);
    if (!memory) {
        ls_device_info info = ls_device_describe(device);
        return ls_fail(LS_ENOMEM, "cannot allocate %.1f MiB for %s: %.1f MiB are free",
                       (double)bytes / (double)LS_MIB, what,
                       (double)info.free_bytes / (double)LS_MIB);
    }
    device->buffers[slot].memory = memory;
    device->buffers[slot].bytes = bytes;
    device->used_bytes += bytes;
    device->peak_bytes = ls_max_i64(device->peak_bytes, device->used_bytes);
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
            device->used_bytes -= device->buffers[i].bytes;
            device->buffers[i].memory = NULL;
            return;
        }
    LS_BUG_IF(true, "freeing memory that the device does not know");
}

int64_t ls_device_used_bytes(const ls_device *device)
{
    return device->used_bytes;
}

int64_t ls_device_peak_bytes(const ls_device *device)
{
    return device->peak_bytes;
}

ls_status ls_stream_create(ls_stream **stream_out, ls_device *device)
{
    ls_stream *stream = ls_mem_alloc(sizeof *stream);

    if (!stream)
        return LS_ENOMEM;
    stream->device = device;
    *stream_out = stream;
    return LS_OK;
}

void ls_stream_free(ls_stream *stream)
{
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

ls_pool *ls_stream_pool(const ls_stream *stream)
{
    return stream->device->pool;
}

void *ls_stream_thread_scratch(const ls_stream *stream, int worker)
{
    return (char *)stream->device->thread_scratch + (size_t)worker * LS_STREAM_THREAD_BYTES;
}
