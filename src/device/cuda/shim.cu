/* shim.cu -- base/err.h, base/mem.h, base/disk_cache.h and device.h inside the plugin, on the
 * functions the program lends. `lent` is set once, by load(), before anything else runs. */
#include "device/cuda/shim.cuh"

#include <stdarg.h>
#include "base/disk_cache.h"
#include "device/cuda/native.cuh"

static const ls_plugin_host *lent;

void ls_shim_load(const ls_plugin_host *host)
{
    lent = host;
}

ls_status ls_err_raise(ls_status code, const char *file, int line, bool add_errno, const char *fmt,
                       ...)
{
    char text[640];
    va_list args;

    LS_BUG_IF(add_errno, "errno means nothing in a plugin");
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return lent->raise(code, file, line, text);
}

void ls_err_hint(const char *fmt, ...)
{
    char text[320];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    lent->hint(text);
}

void ls_err_bug(const char *file, int line, const char *cond, const char *fmt, ...)
{
    char text[640];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    lent->bug(file, line, cond, text);
    abort(); /* bug() does not return, but its type does not say so */
}

void *ls_mem_alloc(size_t bytes)
{
    return lent->alloc(bytes);
}

void ls_mem_free(void *p)
{
    lent->free(p);
}

void *ls_stream_native(const ls_stream *stream)
{
    return lent->stream_native(stream);
}

void ls_stream_fail(ls_stream *stream)
{
    lent->stream_fail(stream);
}

bool ls_stream_failed(const ls_stream *stream)
{
    return lent->stream_failed(stream);
}

bool ls_disk_cache_find(const char *about, const void *key, size_t key_bytes, void *value_out,
                        size_t value_bytes)
{
    return lent->cache_find(about, key, key_bytes, value_out, value_bytes);
}

void ls_disk_cache_add(const char *about, const void *key, size_t key_bytes, const void *value,
                       size_t value_bytes)
{
    lent->cache_add(about, key, key_bytes, value, value_bytes);
}
