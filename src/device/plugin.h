/* plugin.h -- what the program and a device plugin know of each other.
 *
 * A plugin is a shared library with one visible symbol, a struct ls_plugin. The program opens it
 * when a device of its kind is asked for and never closes it. The plugin is built from the same
 * tree: abi, version and the stamp of the kernel room must be equal, or it is refused. It links
 * nothing of the program; what it needs (raising errors, memory, what is behind a stream) it gets
 * as functions in ls_plugin_host. Handles are opaque: `native` is the plugin's. */
#pragma once
#include "device/device.h"

LS_C_BEGIN

enum { LS_PLUGIN_ABI = 7 };

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
    bool (*memo_find)(const char *about, const void *key, size_t key_bytes, void *value_out,
                      size_t value_bytes); /* as base/disk_cache.h */
    void (*memo_add)(const char *about, const void *key, size_t key_bytes, const void *value,
                     size_t value_bytes);
} ls_plugin_host;

struct ls_plugin {
    int abi;             /* LS_PLUGIN_ABI */
    const char *version; /* of the program it was built for */
    const char *kind;    /* "cuda" */

    /* Called once, before anything else. host is borrowed for ever. LS_EUSAGE with the reason when
     * this machine's driver or cards do not fit. */
    ls_status (*load)(const ls_plugin_host *host);

    ls_status (*open)(int card, void **native_out); /* as in ls_device_args */
    ls_status (*enter)(void *native);               /* as ls_device_enter() */
    void (*close)(void *native);
    void (*describe)(void *native, ls_device_info *info_out);
    void *(*alloc)(void *native, int64_t bytes); /* zeroed; NULL: there is not enough */
    void (*free)(void *native, void *memory);
    void *(*host_alloc)(void *native, int64_t bytes); /* zeroed, page-locked */
    void (*host_free)(void *native, void *memory);
    bool (*host_lock)(void *native, void *memory, int64_t bytes); /* false: it cannot be */
    void (*host_unlock)(void *native, void *memory);

    /* Windows: bytes of a page, 0: the card has none; addresses; whole pages of them backed, zeroed
     * (false: there is not enough), also by the same few in turn, and given back. */
    int64_t (*window_page)(void *native);
    void *(*window_open)(void *native, int64_t bytes);
    bool (*window_back)(void *native, void *at, int64_t bytes);
    bool (*window_turn)(void *native, void *at, int64_t bytes, int64_t period);
    void (*window_drop)(void *native, void *at, int64_t bytes);
    void (*window_close)(void *native, void *base, int64_t bytes);

    ls_status (*stream_open)(void *native, void **stream_out);
    void (*stream_close)(void *stream);
    void *(*stream_handle)(void *stream); /* as ls_stream_handle() */
    ls_status (*copy)(void *stream, void *dst, const void *src, int64_t bytes);
    ls_status (*sync)(void *stream, int64_t deadline_ns);

    ls_status (*event_open)(void *native, void **event_out);
    void (*event_close)(void *event);
    ls_status (*event_record)(void *event, void *stream);
    ls_status (*stream_wait)(void *stream, void *event);
    ls_status (*event_sync)(void *event, int64_t deadline_ns);
    ls_status (*event_between)(void *begin, void *end, double *ms_out);

    ls_status (*graph_begin)(void *stream);
    ls_status (*graph_end)(void *stream, void **graph_out);
    ls_status (*graph_launch)(void *graph, void *stream);
    void (*graph_free)(void *graph);

    /* For the kernel room: an ls_kernels, and a number made of the sizes of its structs. */
    const void *kernels;
    uint64_t kernels_stamp;
};

LS_C_END
