/* device_impl.h -- what a kind of device provides; private to this room.
 *
 * One table per kind, listed in device.c in order of preference; "auto" takes the first that is
 * usable. All entries are required. */
#pragma once
#include "device/device.h"

typedef struct ls_device_ops {
    const char *kind;
    /* No side effect; NULL when usable, else the reason why not. */
    const char *(*unusable)(void);
    ls_status (*open)(ls_device *device, int threads);
    void (*close)(ls_device *device);
    void (*describe)(const ls_device *device, ls_device_info *info_out);
    void *(*alloc)(ls_device *device, int64_t bytes);
    void (*free)(ls_device *device, void *memory, int64_t bytes);
    void (*copy)(ls_stream *stream, void *dst, const void *src, int64_t bytes);
    ls_status (*sync)(ls_stream *stream, int64_t deadline_ns);
} ls_device_ops;

enum { LS_DEVICE_BUFFERS = 256, LS_DEVICE_PAGE = 4096 };

struct ls_device {
    const ls_device_ops *ops;
    ls_pool *pool;        /* owned; the team that runs CPU kernels */
    void *thread_scratch; /* owned; LS_STREAM_THREAD_BYTES per worker */
    int threads;
    struct {
        void *memory;
        int64_t bytes;
    } buffers[LS_DEVICE_BUFFERS]; /* what is allocated, to know sizes on free */
    int64_t used_bytes, peak_bytes;
};

struct ls_stream {
    ls_device *device; /* borrowed */
    bool failed;
    ls_err_record failure;
};

extern const ls_device_ops ls_device_cpu;
