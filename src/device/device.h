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
    char name[96];       /* "cpu: Intel Xeon, 2 threads" */
    bool host_memory;    /* device pointers are host pointers */
    bool graphs;         /* a stream's work can be recorded and replayed */
    int64_t window_page; /* bytes in which parts of windows are backed; 0: there are none */
    int threads;         /* 1 on a GPU */
    int64_t free_bytes, total_bytes;
    int64_t fixed_bytes; /* what the device holds for itself beside what was allocated */
    bool pinned;         /* each thread stays on a core of its own */
    bool fp8;            /* multiplies 8-bit floating point numbers */
    char bus_id[24];     /* of a GPU: its PCI address, "0000:0b:00.0"; else "" */
    int card, cards;     /* of a GPU: its number, and how many this process sees; else 0 */
} ls_device_info;

/* kind: "auto", "cpu", "cuda". "auto" is the CPU: a GPU is used only when it is asked for. threads
 * 0: as many as this process may use; a GPU ignores it. */
ls_status ls_device_open(ls_device **device_out, const char *kind, int threads);

/* The same with more to choose; all zero but kind is what ls_device_open() does. */
typedef struct ls_device_args {
    const char *kind;
    int threads;
    bool pinned;   /* each thread on a core of its own, wherever there are enough; */
    bool unpinned; /* or nowhere. Neither: where it is worth it, see device/cpu/cpus.h */
    int card;      /* of the GPUs that this process sees; counted on from 0 behind the last */
} ls_device_args;
ls_status ls_device_open_with(ls_device **device_out, const ls_device_args *args);

/* Why this kind cannot be opened here ("no NVIDIA driver"), or NULL when it can. Looks for the
 * driver only, so that it is quick; opening may still find something wrong. */
const char *ls_device_unusable(const char *kind);

/* The line in which NVIDIA's driver says its version; "" where there is none. */
void ls_device_driver(char text_out[256]);
void ls_device_close(ls_device *device); /* NULL is allowed; memory still in use is a bug */

/* A thread other than the one that opened the device calls this before it calls anything else. */
ls_status ls_device_enter(ls_device *device);
ls_device_info ls_device_describe(const ls_device *device);

/* Zeroed memory, aligned to 4096 bytes (256 on a GPU), resident at once (so that used bytes are
 * predicted bytes). what names it in messages. LS_ENOMEM says how much was asked for and how much
 * is free. */
ls_status ls_device_alloc(ls_device *device, int64_t bytes, const char *what, void **memory_out);
void ls_device_free(ls_device *device, void *memory); /* NULL is allowed */

/* A long array of which only some parts are there, as base/window.h has it in host memory, on a
 * device that can (window_page; LS_EUSAGE: it cannot). Addresses are taken for all of it; then
 * parts are backed, zeroed, by whole pages, those that are there already stay as they are. What is
 * backed counts as allocated. */
ls_status ls_device_window_open(ls_device *device, int64_t bytes, const char *what,
                                void **base_out);
ls_status ls_device_window_back(ls_device *device, void *base, int64_t first, int64_t count,
                                const char *what);

/* Bytes first .. first+count-1 of a window, once, are backed by only `period` bytes in turn: byte i
 * is the same memory as byte i + period. All three are whole pages. For arrays that are walked
 * through, of which a stretch of at most `period` bytes is in use at a time. */
ls_status ls_device_window_turn(ls_device *device, void *base, int64_t first, int64_t count,
                                int64_t period, const char *what);
void ls_device_window_close(ls_device *device, void *base); /* NULL is allowed */

/* Zeroed host memory that copies need not stage first (page-locked for a GPU). Not counted. */
ls_status ls_device_host_alloc(ls_device *device, int64_t bytes, const char *what,
                               void **memory_out);
void ls_device_host_free(ls_device *device, void *memory, int64_t bytes); /* NULL is allowed */

/* The same for host memory that came from elsewhere (whole pages); it is unlocked before it is
 * given back. Copies of memory that could not be locked are right, but the host waits for them. */
ls_status ls_device_host_lock(ls_device *device, void *memory, int64_t bytes, const char *what);
void ls_device_host_unlock(ls_device *device, void *memory);

/* Bytes allocated now (for tests that compare them with the memory ledger), and the most so far. */
int64_t ls_device_used_bytes(const ls_device *device);
int64_t ls_device_peak_bytes(const ls_device *device);
/* The most so far is what is allocated now: what came before was a measurement. */
void ls_device_forget_peak(ls_device *device);

ls_status ls_stream_create(ls_stream **stream_out, ls_device *device);
void ls_stream_free(ls_stream *stream); /* NULL is allowed */
ls_device *ls_stream_device(const ls_stream *stream);

/* Queued copies of ranges that do not overlap; host memory must stay valid until the next sync. A
 * copy waits for the device unless the host memory is from ls_device_host_alloc() or locked. */
void ls_stream_copy_in(ls_stream *stream, void *device_dst, const void *host_src, int64_t bytes);
void ls_stream_copy_out(ls_stream *stream, void *host_dst, const void *device_src, int64_t bytes);
void ls_stream_copy(ls_stream *stream, void *device_dst, const void *device_src, int64_t bytes);

/* Wait until all queued work is done; returns the stream's first failure, if any. */
ls_status ls_stream_sync(ls_stream *stream, int64_t deadline_ns);

/* A point in the work of a stream: recorded in one, waited for by another or by the host. Recording
 * again moves it. Waiting for one that was never recorded returns at once. */
typedef struct ls_event ls_event;
ls_status ls_event_create(ls_event **event_out, ls_device *device);
void ls_event_free(ls_event *event); /* NULL is allowed */
void ls_event_record(ls_event *event, ls_stream *stream);
void ls_stream_wait(ls_stream *stream, ls_event *event);
ls_status ls_event_sync(ls_event *event, int64_t deadline_ns);
/* Milliseconds between two recorded points, both reached. */
ls_status ls_event_between(ls_event *begin, ls_event *end, double *ms_out);

/* What is queued between begin and end is recorded, not done; a launch does it all. Everything
 * recorded must have run once before: what is chosen or allocated on first use cannot be while
 * recording. LS_EUSAGE on a device without graphs. A failure while recording is reported by the
 * end, and by it alone: nothing was done, and the stream goes on. */
typedef struct ls_graph ls_graph;
ls_status ls_graph_begin(ls_stream *stream);
ls_status ls_graph_end(ls_stream *stream, ls_graph **graph_out);
void ls_graph_launch(ls_graph *graph, ls_stream *stream);
void ls_graph_free(ls_graph *graph); /* NULL is allowed */

/* For kernels: report a failure of queued work; the record is this thread's last one. */
void ls_stream_fail(ls_stream *stream);

/* For CPU kernels, whose work is done at once: whether work queued so far has failed. */
bool ls_stream_failed(const ls_stream *stream);

/* The failure was that of others (a rank that is lost), and what was computed since is not read:
 * when what is queued has ended, the stream works again. */
void ls_stream_revive(ls_stream *stream, int64_t deadline_ns);

/* The watcher of the rows of a stream (kernel/profile.h); the device only keeps the pointer, NULL
 * at first. */
void ls_stream_watch(ls_stream *stream, void *watcher);
void *ls_stream_watcher(const ls_stream *stream);

/* For CPU kernels: the pool of threads behind this stream, and private memory of each worker
 * (LS_STREAM_THREAD_BYTES, aligned to 4096) for packed blocks; its content does not survive a
 * row. */
enum { LS_STREAM_THREAD_BYTES = 4 << 20 };
ls_pool *ls_stream_pool(const ls_stream *stream);
void *ls_stream_thread_scratch(const ls_stream *stream, int worker);

/* For GPU kernels: what the device keeps behind the stream. And what the device brought along for
 * the kernel room (see plugin.h); NULL on the CPU. */
void *ls_stream_native(const ls_stream *stream);

/* The stream as the vendor's other libraries take it (a cudaStream_t); NULL on the CPU. */
void *ls_stream_handle(const ls_stream *stream);

typedef struct ls_plugin ls_plugin;
const ls_plugin *ls_device_plugin(const ls_device *device);

LS_C_END
