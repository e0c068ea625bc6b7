/* open_cuda.c -- NVIDIA GPUs as a device: finding the driver and the plugin, and calling it.
 *
 * The program itself needs nothing of CUDA. The driver is looked for first, by opening its library
 * and asking its version (three functions, declared here); only then the plugin, which needs that
 * library and several large ones. It lies beside the program, or where LINESHAFT_CUDA_PLUGIN says.
 * The plugin stays open until the process ends: its libraries do not survive being closed. */
#include "device/device_impl.h"

#include <dlfcn.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/disk_cache.h"

#define PLUGIN_FILE "liblineshaft_cuda.so"
#define PLUGIN_SYMBOL "ls_plugin_cuda"
#define PLUGIN_VARIABLE "LINESHAFT_CUDA_PLUGIN"

enum { LEAST_DRIVER = 13000 }; /* CUDA 13.0, which the plugin is built with */

/* --- what the plugin borrows ---------------------------------------------------------------- */

static ls_status host_raise(ls_status code, const char *file, int line, const char *text)
{
    return ls_err_raise(code, file, line, false, "%s", text);
}

static void host_hint(const char *text)
{
    ls_err_hint("%s", text);
}

static void host_bug(const char *file, int line, const char *cond, const char *text)
{
    ls_err_bug(file, line, cond, "%s", text);
}

static const ls_plugin_host lent = {
    .raise = host_raise,
    .hint = host_hint,
    .bug = host_bug,
    .alloc = ls_mem_alloc,
    .free = ls_mem_free,
    .stream_native = ls_stream_native,
    .stream_fail = ls_stream_fail,
    .stream_failed = ls_stream_failed,
    .memo_find = ls_disk_cache_find,
    .memo_add = ls_disk_cache_add,
};

/* --- the driver ----------------------------------------------------------------------------- */

typedef struct driver {
    void *library;
    int (*init)(unsigned flags);
    int (*version)(int *version_out);
    int (*count)(int *count_out);
} driver;

static bool driver_symbol(const driver *d, const char *name, void *function_out)
{
    void *p = dlsym(d->library, name);

    memcpy(function_out, &p, sizeof p);
    return p != NULL;
}

/* The reason why there is no GPU to use, or NULL. Asking again is cheap: what was opened and
 * started stays so. */
static const char *cuda_unusable(void)
{
    driver d = {.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
    int version = 0, count = 0;

    if (!d.library)
        return "no NVIDIA driver";
    if (!driver_symbol(&d, "cuInit", &d.init) ||
        !driver_symbol(&d, "cuDriverGetVersion", &d.version) ||
        !driver_symbol(&d, "cuDeviceGetCount", &d.count))
        return "the NVIDIA driver's library lacks cuInit, cuDriverGetVersion or cuDeviceGetCount";
    if (d.version(&version) != 0 || version < LEAST_DRIVER)
        return "the NVIDIA driver is older than CUDA 13.0, which this program is built for";
    if (d.init(0) != 0)
        return "the NVIDIA driver does not start (is its kernel module loaded?)";
    if (d.count(&count) != 0 || count < 1)
        return "the NVIDIA driver sees no GPU";
    return NULL; /* the library stays open: the plugin uses it */
}

void ls_device_driver(char text_out[256])
{
    FILE *f = fopen("/proc/driver/nvidia/version", "re");

    text_out[0] = '\0';
    if (!f)
        return;
    if (fgets(text_out, 256, f))
        text_out[strcspn(text_out, "\n")] = '\0';
    fclose(f);
}

/* --- the plugin ----------------------------------------------------------------------------- */

static ls_status plugin_path(char *path_out, size_t cap)
{
    const char *given = getenv(PLUGIN_VARIABLE);

    if (given && *given) {
        snprintf(path_out, cap, "%s", given);
        return LS_OK;
    }
    ssize_t n = readlink("/proc/self/exe", path_out, cap - 1);
    char *slash = NULL;
    if (n > 0) {
        path_out[n] = '\0';
        slash = strrchr(path_out, '/');
    }
    if (!slash || (size_t)(slash + 1 - path_out) + sizeof PLUGIN_FILE > cap)
        return ls_fail(LS_EFAIL, "cannot find the folder of the program, where \"%s\" should be",
                       PLUGIN_FILE);
    snprintf(slash + 1, cap - (size_t)(slash + 1 - path_out), "%s", PLUGIN_FILE);
    return LS_OK;
}

static ls_status plugin_open(const ls_plugin **plugin_out)
{
    char path[4096];
    ls_status st = plugin_path(path, sizeof path);

    if (st != LS_OK)
        return st;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        st = ls_fail(LS_EUSAGE, "cannot load the CUDA plugin: %s", why ? why : path);
        ls_err_hint("Run \"make cuda\", or set " PLUGIN_VARIABLE " to its path; the folders of "
                    "cuBLAS and cuDNN must be known to the loader (LD_LIBRARY_PATH).");
        return st;
    }
    const ls_plugin *plugin = dlsym(library, PLUGIN_SYMBOL);
    if (!plugin || plugin->abi != LS_PLUGIN_ABI || strcmp(plugin->version, LS_VERSION) != 0) {
        st = ls_fail(LS_EUSAGE, "the CUDA plugin \"%s\" is of another version of this program",
                     path);
        ls_err_hint("Build both from the same source: run \"make\" and \"make cuda\".");
        return st;
    }
    st = plugin->load(&lent);
    if (st == LS_OK)
        *plugin_out = plugin;
    return st;
}

static ls_status cuda_open(ls_device *device, int threads)
{
    ls_status st = plugin_open(&device->plugin);

    (void)threads;
    device->threads = 1;
    return st == LS_OK ? device->plugin->open(device->card, &device->native) : st;
}

static void cuda_close(ls_device *device)
{
    if (device->native)
        device->plugin->close(device->native);
}

static ls_status cuda_enter(ls_device *device)
{
    return device->plugin->enter(device->native);
}

static void cuda_describe(const ls_device *device, ls_device_info *info_out)
{
    device->plugin->describe(device->native, info_out);
}

static void *cuda_alloc(ls_device *device, int64_t bytes)
{
    return device->plugin->alloc(device->native, bytes);
}

static void cuda_free(ls_device *device, void *memory, int64_t bytes)
{
    (void)bytes;
    device->plugin->free(device->native, memory);
}

static void *cuda_host_alloc(ls_device *device, int64_t bytes)
{
    return device->plugin->host_alloc(device->native, bytes);
}

static void cuda_host_free(ls_device *device, void *memory, int64_t bytes)
{
    (void)bytes;
    device->plugin->host_free(device->native, memory);
}

static bool cuda_host_lock(ls_device *device, void *memory, int64_t bytes)
{
    return device->plugin->host_lock(device->native, memory, bytes);
}

static void cuda_host_unlock(ls_device *device, void *memory)
{
    device->plugin->host_unlock(device->native, memory);
}

static int64_t cuda_window_page(const ls_device *device)
{
    return device->plugin->window_page(device->native);
}

static void *cuda_window_open(ls_device *device, int64_t bytes)
{
    return device->plugin->window_open(device->native, bytes);
}

static bool cuda_window_back(ls_device *device, void *at, int64_t bytes)
{
    return device->plugin->window_back(device->native, at, bytes);
}

static bool cuda_window_turn(ls_device *device, void *at, int64_t bytes, int64_t period)
{
    return device->plugin->window_turn(device->native, at, bytes, period);
}

static void cuda_window_drop(ls_device *device, void *at, int64_t bytes)
{
    device->plugin->window_drop(device->native, at, bytes);
}

static void cuda_window_close(ls_device *device, void *base, int64_t bytes)
{
    device->plugin->window_close(device->native, base, bytes);
}

static ls_status cuda_stream_open(ls_stream *stream)
{
    return stream->device->plugin->stream_open(stream->device->native, &stream->native);
}

static void cuda_stream_close(ls_stream *stream)
{
    stream->device->plugin->stream_close(stream->native);
}

static void *cuda_stream_handle(const ls_stream *stream)
{
    return stream->device->plugin->stream_handle(stream->native);
}

/* Queueing has no result; a failure goes where all failures of queued work go. */
static void queued(ls_stream *stream, ls_status st)
{
    if (st != LS_OK)
        ls_stream_fail(stream);
}

static void cuda_copy(ls_stream *stream, void *dst, const void *src, int64_t bytes)
{
    queued(stream, stream->device->plugin->copy(stream->native, dst, src, bytes));
}

static ls_status cuda_sync(ls_stream *stream, int64_t deadline_ns)
{
    if (stream->failed)
        return LS_OK; /* the caller reports that failure; waiting could take for ever */
    ls_status st = stream->device->plugin->sync(stream->native, deadline_ns);
    if (st != LS_EDEADLINE)
        queued(stream, st);
    return st;
}

static ls_status cuda_event_open(ls_event *event)
{
    return event->device->plugin->event_open(event->device->native, &event->native);
}

static void cuda_event_close(ls_event *event)
{
    event->device->plugin->event_close(event->native);
}

static void cuda_event_record(ls_event *event, ls_stream *stream)
{
    queued(stream, event->device->plugin->event_record(event->native, stream->native));
}

static void cuda_stream_wait(ls_stream *stream, ls_event *event)
{
    queued(stream, event->device->plugin->stream_wait(stream->native, event->native));
}

static ls_status cuda_event_sync(ls_event *event, int64_t deadline_ns)
{
    return event->device->plugin->event_sync(event->native, deadline_ns);
}

static ls_status cuda_event_between(ls_event *begin, ls_event *end, double *ms_out)
{
    return begin->device->plugin->event_between(begin->native, end->native, ms_out);
}

static ls_status cuda_graph_begin(ls_stream *stream)
{
    return stream->device->plugin->graph_begin(stream->native);
}

static ls_status cuda_graph_end(ls_stream *stream, void **native_out)
{
    return stream->device->plugin->graph_end(stream->native, native_out);
}

static void cuda_graph_launch(void *graph, ls_stream *stream)
{
    queued(stream, stream->device->plugin->graph_launch(graph, stream->native));
}

static void cuda_graph_free(ls_device *device, void *graph)
{
    device->plugin->graph_free(graph);
}

const ls_device_ops ls_device_cuda = {
    .kind = "cuda",
    .automatic = false, /* used only when it is asked for */
    .graphs = true,
    .unusable = cuda_unusable,
    .open = cuda_open,
    .close = cuda_close,
    .enter = cuda_enter,
    .describe = cuda_describe,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .host_lock = cuda_host_lock,
    .host_unlock = cuda_host_unlock,
    .window_page = cuda_window_page,
    .window_open = cuda_window_open,
    .window_back = cuda_window_back,
    .window_turn = cuda_window_turn,
    .window_drop = cuda_window_drop,
    .window_close = cuda_window_close,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .stream_handle = cuda_stream_handle,
    .copy = cuda_copy,
    .sync = cuda_sync,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .event_sync = cuda_event_sync,
    .event_between = cuda_event_between,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
};
