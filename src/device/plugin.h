/* plugin.h -- what the program and a device plugin know of each other.
 *
 * A plugin is a shared library with one visible symbol, a struct ls_plugin. The program opens it
 * when a device of its kind is asked for and never closes it. The plugin is built from the same
 * tree: abi, version, the size of ops and the stamp of the kernel room must be equal, or it is refused.
 * It links nothing of the program; what it needs (raising errors, memory, what is behind a stream) it
 * gets as functions in ls_plugin_host. `native` in the structs of device_impl.h is the plugin's. */
#pragma once
#include "device/device.h"

LS_C_BEGIN

enum { LS_PLUGIN_ABI = 8 };

/* What the program lends. Texts are finished; the record is made on the calling thread. */
typedef struct ls_plugin_host {
    ls_status (*raise)(ls_status code, const char *file, int line, const char *text);
    void (*hint)(const char *text);
    void (*bug)(const char *file, int line, const char *cond, const char *text);
    void *(*alloc)(size_t bytes); /* as ls_mem_alloc() */
    void (*free)(void *p);
    void *(*stream_native)(const ls_stream *stream);
    void (*stream_fail)(ls_stream *stream);
    bool (*stream_failed)(const ls_stream *stream);
    bool (*cache_find)(const char *about, const void *key, size_t key_bytes, void *value_out,
                       size_t value_bytes); /* as base/disk_cache.h */
    void (*cache_add)(const char *about, const void *key, size_t key_bytes, const void *value,
                      size_t value_bytes);
} ls_plugin_host;

struct ls_plugin {
    int abi;             /* LS_PLUGIN_ABI */
    size_t ops_bytes;    /* sizeof *ops */
    const char *version; /* of the program it was built for */
    const char *kind;    /* "cuda" */

    /* Called once, before anything else. host is borrowed for ever. LS_EUSAGE with the reason when
     * this machine's driver or cards do not fit. */
    ls_status (*load)(const ls_plugin_host *host);

    const struct ls_device_ops *ops; /* device_impl.h: what the plugin does for the device room */

    /* For the kernel room: an ls_kernels, and a number made of the sizes of its structs. */
    const void *kernels;
    uint64_t kernels_stamp;
};

LS_C_END
