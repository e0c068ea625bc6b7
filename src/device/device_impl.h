/* device_impl.h -- what a kind of device provides; private to this room.
 *
 * One table per kind, listed in device.c in order of preference; "auto" takes the first that is
 * usable. That of a GPU only opens: then the plugin's table takes its place, which has no `unusable`.
 * All entries are required but those said to be optional. */
#pragma once
#include "device/device.h"
#include "device/plugin.h"

LS_C_BEGIN

typedef struct ls_device_ops {
    const char *kind;
    bool automatic; /* "auto" may take it */
    bool graphs;    /* the graph entries are there */
    /* No side effect; NULL when usable, else the reason why not. */
    const char *(*unusable)(void);
    ls_status (*open)(ls_device *device, int threads);
    void (*close)(ls_device *device);
    ls_status (*enter)(ls_device *device); /* optional */
    void (*describe)(const ls_device *device, ls_device_info *info_out);
    void *(*alloc)(ls_device *device, int64_t bytes);
    void (*free)(ls_device *device, void *memory, int64_t bytes);
    void *(*host_alloc)(ls_device *device, int64_t bytes);
    void (*host_free)(ls_device *device, void *memory, int64_t bytes);
    bool (*host_lock)(ls_device *device, void *memory, int64_t bytes); /* optional, both */
    void (*host_unlock)(ls_device *device, void *memory);
    /* Optional, all: windows. back: pages become memory, zeroed; turn:
     * the same few, again and again; drop: what one back made, or one period, is none again. */
    int64_t (*window_page)(const ls_device *device);
    void *(*window_open)(ls_device *device, int64_t bytes);
    bool (*window_back)(ls_device *device, void *at, int64_t bytes);
    bool (*window_turn)(ls_device *device, void *at, int64_t bytes, int64_t period);
    void (*window_drop)(ls_device *device, void *at, int64_t bytes);
    void (*window_close)(ls_device *device, void *base, int64_t bytes);
    ls_status (*stream_open)(ls_stream *stream); /* optional, both */
    void (*stream_close)(ls_stream *stream);
    void *(*stream_handle)(const ls_stream *stream); /* optional */
    void (*copy)(ls_stream *stream, void *dst, const void *src, int64_t bytes);
    ls_status (*sync)(ls_stream *stream, int64_t deadline_ns);
    ls_status (*event_open)(ls_event *event); /* optional, both */
    void (*event_close)(ls_event *event);
    void (*event_record)(ls_event *event, ls_stream *stream);
    void (*stream_wait)(ls_stream *stream, ls_event *event);
    ls_status (*event_sync)(ls_event *event, int64_t deadline_ns);
    ls_status (*event_between)(ls_event *begin, ls_event *end, double *ms_out);
    ls_status (*graph_begin)(ls_stream *stream); /* optional, all */
    ls_status (*graph_end)(ls_stream *stream, void **native_out);
    void (*graph_launch)(void *graph, ls_stream *stream);
    void (*graph_free)(ls_device *device, void *graph);
} ls_device_ops;

enum { LS_DEVICE_BUFFERS = 1024, LS_DEVICE_WINDOWS = 512, LS_DEVICE_PAGE = 4096 };

struct ls_device {
    const ls_device_ops *ops;
    ls_pool *pool;        /* owned; the pool that runs CPU kernels */
    void *thread_scratch; /* owned; LS_STREAM_THREAD_BYTES per worker */
    int threads;
    bool pinned, unpinned;   /* as in ls_device_args, */
    int card;                /* this too */
    const ls_plugin *plugin; /* of a GPU: borrowed for ever, since plugins are never closed */
    void *native;            /* of a GPU: what the plugin made */
    struct {
        void *memory;
        int64_t bytes;
    } buffers[LS_DEVICE_BUFFERS]; /* what is allocated, to know sizes on free; */
    struct {
        char *base;
        int64_t bytes;
        char *turns;              /* NULL, or where backing in turn begins, */
        int64_t turned, period;   /* for this many bytes; the first period is among the buffers */
    } windows[LS_DEVICE_WINDOWS]; /* what lies in these is backed there */
    int64_t used_bytes, peak_bytes;
};

/* The next run of bytes of a window that are backed together: at most a period. */
static inline int64_t ls_device_turn(int64_t turned, int64_t period, int64_t done)
{
    return turned - done < period ? turned - done : period;
}

/* For all that allocate: add or remove an entry for memory. */
void ls_device_count(ls_device *device, void *memory, int64_t bytes);
void ls_device_forget(ls_device *device, int slot);

struct ls_stream {
    ls_device *device; /* borrowed */
    void *native;      /* of a GPU: what the plugin made */
    void *watcher;     /* borrowed, see ls_stream_watch() */
    bool failed;
    ls_err_record failure;
};

struct ls_event {
    ls_device *device; /* borrowed */
    void *native;
    int64_t at_ns; /* on the CPU: when it was recorded */
};

struct ls_graph {
    ls_device *device; /* borrowed */
    void *native;
};

extern const ls_device_ops ls_device_cpu;
extern const ls_device_ops ls_device_cuda;

LS_C_END
