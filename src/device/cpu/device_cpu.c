/* device_cpu.c -- the CPU as a device: anonymous mappings, a pool of threads, work done at once.
 *
 * Memory is touched when it is allocated, so that a run that does not fit fails before the first
 * step, and the bytes the kernel counts are the bytes of the ledger. What is asked for is first
 * compared with what is free, because populating too much is not refused: it ends in the kernel's
 * out-of-memory killer. Free is the least of the machine's and of every control group that the
 * process is in. */
#include "device/device_impl.h"

#include <errno.h>
#include <sys/mman.h>
#include "base/time.h"
#include "device/cpu/cgroup.h"
#include "device/cpu/cpus.h"

static const char *never(void)
{
    return NULL;
}

/* Large blocks begin at a border of huge pages and ask for them: rows of a matrix lie pages apart,
 * and looking up 4 KiB pages cost a tenth of the time of products. What is left over behind the
 * last huge page has small ones, so not a byte more than asked for becomes resident. */
enum { HUGE_PAGE = 2 << 20 };

static bool populate(char *p, int64_t bytes)
{
    if (madvise(p, (size_t)bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL) /* the kernel knows the call: there is too little memory */
        return false;
    for (int64_t i = 0; i < bytes; i += 4096)
        ((volatile char *)p)[i] = 0;
    return true;
}

static void *map_memory(int64_t bytes)
{
    int64_t room = bytes >= HUGE_PAGE ? bytes + HUGE_PAGE : bytes;
    char *p = mmap(NULL, (size_t)room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    if (room > bytes) {
        int64_t before = -(int64_t)(uintptr_t)p & (HUGE_PAGE - 1);
        int64_t end = ls_round_up(bytes, 4096);
        if (before > 0)
            munmap(p, (size_t)before);
        p += before;
        if (room - before > end)
            munmap(p + end, (size_t)(room - before - end));
        madvise(p, (size_t)bytes, MADV_HUGEPAGE); /* without them it is only slower */
    }
    if (populate(p, bytes))
        return p;
    munmap(p, (size_t)bytes);
    return NULL;
}

/* What the groups of this process may still use, and the least limit; INT64_MAX where there is
 * none. */
typedef struct room {
    int64_t free, total;
} room;

/* Cached file pages count as used, but are given up on demand. */
static void take_room(void *context, const char *folder, int version)
{
    bool v1 = version == 1;
    room *r = context;
    int64_t limit = ls_cgroup_number(folder, v1 ? "memory.limit_in_bytes" : "memory.max", "");
    int64_t used = ls_cgroup_number(folder, v1 ? "memory.usage_in_bytes" : "memory.current", "");
    int64_t cached =
        ls_cgroup_number(folder, "memory.stat", v1 ? "total_inactive_file" : "inactive_file");

    if (limit < 0 || used < 0)
        return;
    used -= ls_min_i64(ls_max_i64(cached, 0), used);
    r->total = ls_min_i64(r->total, limit);
    r->free = ls_min_i64(r->free, ls_max_i64(limit - used, 0));
}

static room groups_room(const char *root)
{
    room r = {INT64_MAX, INT64_MAX};

    ls_cgroup_walk(root, "memory", take_room, &r);
    return r;
}

static void memory_room(int64_t *free_out, int64_t *total_out)
{
    room r = groups_room("");
    int64_t available = ls_cgroup_number("/proc", "meminfo", "MemAvailable") * LS_KIB;

    *total_out = ls_min_i64(r.total, ls_cgroup_number("/proc", "meminfo", "MemTotal") * LS_KIB);
    *free_out = ls_min_i64(ls_min_i64(r.free, available), *total_out);
}

static ls_status start_pool(ls_device *device, const ls_cpus *cpus)
{
    const char *why;
    const ls_pool_mask *masks = ls_cpus_pins(cpus, device->threads, device->pinned, &why);

    return ls_pool_open(&device->pool,
                        &(ls_pool_args){.threads = device->threads,
                                        .masks = device->unpinned ? NULL : masks,
                                        .crowded = ls_cpus_crowded(cpus, device->threads)});
}

static ls_status cpu_open(ls_device *device, int threads)
{
    int64_t free_bytes, total_bytes, bytes;
    ls_cpus cpus;
    ls_status st = ls_cpus_init(&cpus);

    if (st != LS_OK)
        return st;
    device->threads = threads > 0 ? threads : cpus.threads;
    bytes = (int64_t)device->threads * LS_STREAM_THREAD_BYTES;
    memory_room(&free_bytes, &total_bytes);
    device->thread_scratch = bytes > free_bytes ? NULL : map_memory(bytes);
    if (device->thread_scratch)
        st = start_pool(device, &cpus);
    else
        st = ls_fail(LS_ENOMEM, "cannot allocate %.1f MiB for %d threads: %.1f MiB are free",
                     ls_size_up(bytes, LS_MIB), device->threads, ls_size_down(free_bytes, LS_MIB));
    ls_cpus_release(&cpus);
    return st;
}

static void cpu_close(ls_device *device)
{
    ls_pool_free(device->pool);
    if (device->thread_scratch)
        munmap(device->thread_scratch, (size_t)device->threads * LS_STREAM_THREAD_BYTES);
}

/* "model name : Intel(R) ..." of the first core. */
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
        colon += 1 + strspn(colon + 1, " \t");
        if (*colon)
            snprintf(name_out, cap, "%s", colon);
        break;
    }
    if (f)
        fclose(f);
}

static void cpu_describe(const ls_device *device, ls_device_info *info_out)
{
    char model[64];

    cpu_model(model, sizeof model);
    snprintf(info_out->name, sizeof info_out->name, "cpu: %s, %d thread%s", model, device->threads,
             device->threads == 1 ? "" : "s");
    info_out->host_memory = true;
    info_out->pinned = ls_pool_pinned(device->pool);
    memory_room(&info_out->free_bytes, &info_out->total_bytes);
}

static void *cpu_alloc(ls_device *device, int64_t bytes)
{
    int64_t free_bytes, total_bytes;

    (void)device;
    memory_room(&free_bytes, &total_bytes);
    return bytes > free_bytes ? NULL : map_memory(bytes);
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

static void *cpu_host_alloc(ls_device *device, int64_t bytes)
{
    return cpu_alloc(device, ls_round_up(bytes, LS_DEVICE_PAGE));
}

static void cpu_host_free(ls_device *device, void *memory, int64_t bytes)
{
    cpu_free(device, memory, ls_round_up(bytes, LS_DEVICE_PAGE));
}

/* Work is done when it is queued, so an event is the time at which it was recorded. */
static void cpu_event_record(ls_event *event, ls_stream *stream)
{
    (void)stream;
    event->at_ns = ls_time_now_ns();
}

static void cpu_stream_wait(ls_stream *stream, ls_event *event)
{
    (void)stream;
    (void)event;
}

static ls_status cpu_event_sync(ls_event *event, int64_t deadline_ns)
{
    (void)event;
    (void)deadline_ns;
    return LS_OK;
}

static ls_status cpu_event_between(ls_event *begin, ls_event *end, double *ms_out)
{
    if (!begin->at_ns || !end->at_ns)
        return ls_fail(LS_EFAIL, "cannot measure between events that were not recorded");
    *ms_out = (double)(end->at_ns - begin->at_ns) / (double)LS_NS_PER_MS;
    return LS_OK;
}

const ls_device_ops ls_device_cpu = {
    .kind = "cpu",
    .automatic = true,
    .unusable = never,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_host_free,
    .copy = cpu_copy,
    .sync = cpu_sync,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .event_sync = cpu_event_sync,
    .event_between = cpu_event_between,
};
