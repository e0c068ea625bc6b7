/* device.h -- where tensors live and kernels run: memory, streams, copies.
 *
 * A device is opened once per process. Work is queued on a stream and happens in order; on the CPU
 * it happens at once, on a GPU later, so callers must not read results before ls_stream_sync().
 * Failures of queued work are sticky: the stream keeps the first one, later work is dropped, and
 * sync reports it. Large memory comes from here only; each allocation is named, counted and
 * compared with the ledger. Pointers returned are device pointers: the host may touch them only
 * through the copy functions, except on a device whose `host_memory` is true. */
#pragma once
#include "base/err.h"
#include "base/pool.h"

LS_C_BEGIN

typedef struct ls_device ls_device;
typedef struct ls_stream ls_stream;

typedef struct ls_device_info {
    char name[96];    /* "cpu: Intel Xeon, 2 threads" */
    bool host_memory; /* device pointers are host pointers */
    int threads;      /* 1 on a GPU */
    int64_t free_bytes, total_bytes;
} ls_device_info;

/* kind: "auto", "cpu". threads 0: as many as this process may use. */
ls_status ls_device_open(ls_device **device_out, const char *kind, int threads);
void ls_device_close(ls_device *device); /* NULL is allowed; memory still in use is a bug */
ls_device_info ls_device_describe(const ls_device *device);

/* Zeroed memory, aligned to 4096 bytes, resident at once (so that used bytes are predicted bytes).
 * what names it in messages. LS_ENOMEM says how much was asked for and how much is free. */
ls_status ls_device_alloc(ls_device *device, int64_t bytes, const char *what, void **memory_out);
void ls_device_free(ls_device *device, void *memory); /* NULL is allowed */

/* Bytes allocated now, and the most so far. */
int64_t ls_device_used_bytes(const ls_device *device);
int64_t ls_device_peak_bytes(const ls_device *device);

ls_status ls_stream_create(ls_stream **stream_out, ls_device *device);
void ls_stream_free(ls_stream *stream); /* NULL is allowed */
ls_device *ls_stream_device(const ls_stream *stream);

/* Queued copies of ranges that do not overlap; host memory must stay valid until the next sync. */
void ls_stream_copy_in(ls_stream *stream, void *device_dst, const void *host_src, int64_t bytes);
void ls_stream_copy_out(ls_stream *stream, void *host_dst, const void *device_src, int64_t bytes);
void ls_stream_copy(ls_stream *stream, void *device_dst, const void *device_src, int64_t bytes);

/* Wait until all queued work is done; returns the stream's first failure, if any. */
ls_status ls_stream_sync(ls_stream *stream, int64_t deadline_ns);

/* For kernels: report a failure of queued work; the record is this thread's last one. */
void ls_stream_fail(ls_stream *stream);

/* For CPU kernels, whose work is done at once: whether work queued so far has failed. */
bool ls_stream_failed(const ls_stream *stream);

/* For CPU kernels: the team of threads behind this stream, and private memory of each worker
 * (LS_STREAM_THREAD_BYTES, aligned to 4096) for packed blocks; its content does not survive a row.
 */
enum { LS_STREAM_THREAD_BYTES = 4 << 20 };
ls_pool *ls_stream_pool(const ls_stream *stream);
void *ls_stream_thread_scratch(const ls_stream *stream, int worker);

LS_C_END
