/* device_cpu.c -- the CPU as a device: anonymous mappings, a team of threads, work done at once.
 *
 * Memory is touched when it is allocated (MAP_POPULATE), so that a run that does not fit fails
 * before the first step, and the bytes the kernel counts are the bytes of the ledger. */
#include "device/device_impl.h"

#include <errno.h>
#include <sys/mman.h>

static const char *never(void)
{
    return NULL;
}

static void *map_memory(int64_t bytes)
{
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static ls_status cpu_open(ls_device *device, int threads)
{
    device->threads = threads > 0 ? threads : ls_pool_cores();
    device->thread_scratch = map_memory((int64_t)device->threads * LS_STREAM_THREAD_BYTES);
    if (!device->thread_scratch)
        return ls_fail_sys(LS_ENOMEM, "cannot allocate scratch memory for %d threads",
                           device->threads);
    return ls_pool_create(&device->pool, device->threads);
}

static void cpu_close(ls_device *device)
{
    ls_pool_free(device->pool);
    if (device->thread_scratch)
        munmap(device->thread_scratch, (size_t)device->threads * LS_STREAM_THREAD_BYTES);
}

/* "Model name : Intel(R) ..." of the first core. */
static void cpu_model(char *name_out, size_t cap)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");

    snprintf(name_out, cap, "unknown CPU");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name_out, cap, "%s", colon + 2);
        break;
    }
    if (f)
        fclose(f);
}

static int64_t meminfo_bytes(const char *field)
{
    char line[128];
    long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");

    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0 &&
            sscanf(line + strlen(field), ": %lld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (int64_t)kib * LS_KIB;
}

static void cpu_describe(const ls_device *device, ls_device_info *info_out)
{
    char model[64];

    (void)device;
    cpu_model(model, sizeof model);
    snprintf(info_out->name, sizeof info_out->name, "cpu: %s", model);
    info_out->host_memory = true;
    info_out->free_bytes = meminfo_bytes("MemAvailable");
    info_out->total_bytes = meminfo_bytes("MemTotal");
}

static void *cpu_alloc(ls_device *device, int64_t bytes)
{
    ls_device_info info = {0};

    cpu_describe(device, &info);
    if (bytes > info.free_bytes) /* MAP_POPULATE would call the kernel's killer, not fail */
        return NULL;
    return map_memory(bytes);
}

static void cpu_free(ls_device *device, void *memory, int64_t bytes)
{
    (void)device;
    munmap(memory, (size_t)bytes);
}

static void cpu_copy(ls_stream *stream, void *dst, const void *src, int64_t bytes)
{
    (void)stream;
    memcpy(dst, src, (size_t)bytes);
}

static ls_status cpu_sync(ls_stream *stream, int64_t deadline_ns)
{
    (void)stream;
    (void)deadline_ns; /* everything queued is already done */
    return LS_OK;
}

const ls_device_ops ls_device_cpu = {
    .kind = "cpu",
    .unusable = never,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .sync = cpu_sync,
};
