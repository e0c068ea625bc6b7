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
    .cache_find = ls_disk_cache_find,
    .cache_add = ls_disk_cache_add,
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
    if (!plugin || plugin->abi != LS_PLUGIN_ABI || plugin->ops_bytes != sizeof(ls_device_ops) ||
        strcmp(plugin->version, LS_VERSION) != 0) {
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

/* From here on the device is the plugin's. */
static ls_status cuda_open(ls_device *device, int threads)
{
    ls_status st = plugin_open(&device->plugin);

    device->threads = 1;
    if (st != LS_OK)
        return st;
    device->ops = device->plugin->ops;
    return device->ops->open(device, threads);
}

static void close_nothing(ls_device *device)
{
    (void)device;
}

const ls_device_ops ls_device_cuda = {
    .kind = "cuda",
    .automatic = false, /* used only when it is asked for */
    .unusable = cuda_unusable,
    .open = cuda_open,
    .close = close_nothing, /* where the plugin cannot be loaded */
};
