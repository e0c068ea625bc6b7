/* shm_segment.c -- making, opening and joining the shared memory of a node, and breaking it.
 *
 * The file is sparse: it is laid out for all groups and for heaps as large as the machine, and a
 * page exists from the moment it is committed (fallocate). So a full machine is an error with a
 * message at that moment, never a bus error at a store. The size is sealed: no process can truncate
 * the file under the others, and a file without seals is refused.
 *
 *     at 0            header: sizes, generation, what broke it, state and key of 64 groups
 *     processes_at    one process for each rank of the node, and one for the agent
 *     groups_at       64 groups: their members with 16 slots each, then a ring for each pair
 *     heap_at         heap of rank 0 | heap of rank 1 | ...      (from a multiple of 2 MiB on)
 *
 * Only header and processes have pages from the beginning. Members get theirs when their group is
 * opened (group.c), a ring with its first message (pair.c), a block of a heap when it is handed
 * out.
 *
 *     process 0: "rank 4 ..."  \
 *     process 1: "rank 5 ..."   >  each has a reason of its own; `broken` holds 1 + the number of
 *     the agent: "..."         /   the first one that wrote a reason
 *
 * So a reason is complete before others see it, even when its writer is killed in the middle of it:
 * then the next process that notices something writes its own. */
#include "comm/node/shm_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/node/shm_segment_impl.h"
#include "comm/node/wait.h"
#include "device/cpu/cgroup.h"

enum { VERSION = 1, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

#define HUGE_PAGE (2 * LS_MIB)
#define MOST_HEAPS (INT64_C(1) << 44) /* address space for the heaps of all ranks together */

/* Checked against a wrong descriptor; the ranks of one job write and read it, no file has it. */
static const char magic[8] = "lsshm";

/* --- layout ----------------------------------------------------------------------------------- */

static void lay_out(ls_shm_segment_head *h)
{
    int64_t ranks = h->ranks;
    int64_t process_bytes = (ranks + 1) * (int64_t)sizeof(ls_shm_segment_process);
    int64_t member_bytes =
        ls_round_up(ranks * (int64_t)sizeof(ls_shm_segment_member), LS_SHM_SEGMENT_PAGE);
    int64_t ring = ls_round_up((int64_t)sizeof(ls_shm_segment_ring), LS_SHM_SEGMENT_PAGE);

    h->processes_at = ls_round_up((int64_t)sizeof *h, LS_SHM_SEGMENT_PAGE);
    h->groups_at = h->processes_at + ls_round_up(process_bytes, LS_SHM_SEGMENT_PAGE);
    h->group_bytes = member_bytes + ranks * ranks * ring;
    h->heap_at = ls_round_up(h->groups_at + LS_SHM_SEGMENT_GROUPS * h->group_bytes, HUGE_PAGE);
    h->bytes = h->heap_at + ranks * h->heap_bytes;
}

ls_shm_segment_member *ls_shm_segment_member_at(const ls_shm_segment *segment, int group, int local)
{
    char *first = segment->base + segment->head->groups_at + group * segment->head->group_bytes;

    return (ls_shm_segment_member *)(void *)first + local;
}

ls_shm_segment_ring *ls_shm_segment_ring_at(const ls_shm_segment *segment, int group, int from,
                                            int to)
{
    int64_t ring = ls_round_up((int64_t)sizeof(ls_shm_segment_ring), LS_SHM_SEGMENT_PAGE);
    char *end = segment->base + segment->head->groups_at + (group + 1) * segment->head->group_bytes;
    int64_t pairs = (int64_t)segment->ranks * segment->ranks;

    return (ls_shm_segment_ring *)(void *)(end -
                                           (pairs - (int64_t)from * segment->ranks - to) * ring);
}

/* --- making ----------------------------------------------------------------------------------- */

static int64_t heap_of_one(const ls_shm_segment_args *args)
{
    int64_t wanted = args->heap_bytes;

    if (wanted == 0)
        wanted = ls_cgroup_number("/proc", "meminfo", "MemTotal") * LS_KIB;
    wanted = ls_min_i64(ls_max_i64(wanted, HUGE_PAGE), MOST_HEAPS / args->ranks);
    return ls_round_up(wanted, HUGE_PAGE);
}

/* Set the length of the file. A file size limit of the process is turned into an error instead of
 * the signal. */
static ls_status set_size(int fd, int64_t bytes)
{
    struct rlimit most;

    /* The system's answer to a file above this limit is a signal that ends the process. */
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
        (uint64_t)bytes > most.rlim_cur) {
        ls_status st = ls_fail(LS_ENOMEM,
                               "cannot reserve memory for the ranks of this node: files may not be "
                               "larger than %.1f MiB",
                               (double)most.rlim_cur / (double)LS_MIB);
        ls_err_hint("Raise the limit with \"ulimit -f unlimited\".");
        return st;
    }
    if (ftruncate(fd, bytes) != 0)
        return ls_fail_sys(LS_ENOMEM, "cannot reserve memory for the ranks of this node");
    return LS_OK;
}

static ls_status write_head(int fd, const ls_shm_segment_head *head)
{
    int64_t bytes = head->groups_at; /* header and processes; a hole reads as free ones */

    if (fallocate(fd, 0, 0, bytes) != 0 ||
        pwrite(fd, head, sizeof *head, 0) != (ssize_t)sizeof *head ||
        fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        return ls_fail_sys(LS_ENOMEM, "cannot prepare memory for the ranks of this node");
    return LS_OK;
}

ls_status ls_shm_segment_create(const ls_shm_segment_args *args, int *fd_out)
{
    ls_shm_segment_head head = {.version = VERSION, .generation = args->generation};
    ls_status st = LS_OK;
    int fd = -1;

    if (args->ranks < 1 || args->ranks > LS_SHM_SEGMENT_RANKS || args->heap_bytes < 0)
        return ls_fail(LS_EUSAGE, "%d ranks on one node: there can be 1 to %d", args->ranks,
                       LS_SHM_SEGMENT_RANKS);
    memcpy(head.magic, magic, sizeof magic);
    head.ranks = (uint32_t)args->ranks;
    head.heap_bytes = heap_of_one(args);
    head.no_reads = args->no_reads;
    lay_out(&head);
    fd = memfd_create("lineshaft-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return ls_fail_sys(LS_EIO, "cannot create memory for the ranks of this node");
    LS_TRY(st, set_size(fd, head.bytes), out);
    LS_TRY(st, write_head(fd, &head), out);
    *fd_out = fd;
out:
    if (st != LS_OK)
        close(fd);
    return st;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Believe a file only when it is sealed, of this version and generation, and laid out for its
 * number of ranks. */
static ls_status check_head(int fd, uint64_t generation, ls_shm_segment_head *head)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return ls_fail_sys(LS_EIO, "cannot use descriptor %d as the node's shared memory", fd);
    if (fcntl(fd, F_GET_SEALS) != SEALS || pread(fd, head, sizeof *head, 0) != sizeof *head ||
        memcmp(head->magic, magic, sizeof magic) != 0)
        return ls_fail(LS_EDATA, "descriptor %d is not the shared memory of a node", fd);
    if (head->version != VERSION)
        return ls_fail(LS_EDATA, "the node's shared memory has version %u, this program has %d",
                       head->version, VERSION);
    if (head->generation != generation)
        return ls_fail(LS_EUSAGE, "the node's shared memory is of generation %llu, not %llu",
                       (unsigned long long)head->generation, (unsigned long long)generation);
    ls_shm_segment_head want = *head;
    bool sane = head->ranks >= 1 && head->ranks <= LS_SHM_SEGMENT_RANKS && head->heap_bytes > 0 &&
                head->heap_bytes <= MOST_HEAPS;
    if (sane)
        lay_out(&want);
    if (!sane || memcmp(&want, head, offsetof(ls_shm_segment_head, no_reads)) != 0 ||
        info.st_size != head->bytes)
        return ls_fail(LS_EDATA,
                       "the node's shared memory is laid out for another build of this program");
    return LS_OK;
}

/* Map at a multiple of a huge page, so that large buffers can have huge pages. */
static ls_status map_file(ls_shm_segment *b, int64_t bytes)
{
    size_t room = (size_t)(bytes + HUGE_PAGE);
    char *p = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return ls_fail_sys(LS_ENOMEM, "cannot map the node's shared memory");
    size_t skip = (size_t)(-(uintptr_t)p % (uintptr_t)HUGE_PAGE);
    if (mmap(p + skip, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, b->fd, 0) ==
        MAP_FAILED) {
        ls_status st = ls_fail_sys(LS_ENOMEM, "cannot map the node's shared memory");
        munmap(p, room);
        return st;
    }
    if (skip)
        munmap(p, skip);
    munmap(p + skip + bytes, room - skip - (size_t)bytes);
    b->base = p + skip;
    return LS_OK;
}

ls_status ls_shm_segment_open(ls_shm_segment **segment_out, int fd, uint64_t generation)
{
    ls_shm_segment_head head;
    ls_shm_segment *b = NULL;
    ls_status st = LS_OK;

    LS_TRY(st, check_head(fd, generation, &head), out);
    b = ls_mem_alloc(sizeof *b);
    if (!b)
        return LS_ENOMEM;
    pthread_mutex_init(&b->lock, NULL);
    b->ranks = (int)head.ranks;
    b->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (b->fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot keep the node's shared memory open");
        goto out;
    }
    LS_TRY(st, map_file(b, head.bytes), out);
    b->head = (ls_shm_segment_head *)(void *)b->base;
    b->process = (ls_shm_segment_process *)(void *)(b->base + head.processes_at);
    b->heap = b->base + head.heap_at;
    b->heap_total = head.heap_bytes * b->ranks;
    madvise(b->heap, (size_t)b->heap_total, MADV_HUGEPAGE); /* where the system allows it */
    madvise(b->heap, (size_t)b->heap_total,
            MADV_DONTDUMP); /* a core dump shows processes, not weights */
    b->heaps = ls_mem_array((size_t)b->ranks, sizeof *b->heaps);
    if (!b->heaps)
        st = LS_ENOMEM;
    if (getrandom(&b->token, sizeof b->token, GRND_NONBLOCK) != sizeof b->token)
        b->token = (uint64_t)ls_time_now_ns() * 0x9e3779b97f4a7c15u;
out:
    if (st != LS_OK)
        ls_shm_segment_close(b);
    else
        *segment_out = b;
    return st;
}

void ls_shm_segment_close(ls_shm_segment *segment)
{
    if (!segment)
        return;
    if (segment->base)
        munmap(segment->base, (size_t)segment->head->bytes);
    if (segment->fd >= 0)
        close(segment->fd);
    ls_shm_segment_heaps_release(segment);
    pthread_mutex_destroy(&segment->lock);
    ls_mem_free(segment);
}

int ls_shm_segment_ranks(const ls_shm_segment *segment)
{
    return segment->ranks;
}

/* --- processes -------------------------------------------------------------------------------- */

const char *ls_shm_segment_stat(int pid, char text_out[LS_SHM_SEGMENT_STAT])
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text_out, LS_SHM_SEGMENT_STAT - 1) : -1;
    if (fd >= 0)
        close(fd);
    text_out[n > 0 ? n : 0] = '\0';
    return strrchr(text_out, ')');
}

uint64_t ls_shm_segment_started(int pid, char *state_out)
{
    char text[LS_SHM_SEGMENT_STAT];
    uint64_t started = 0;
    const char *at = ls_shm_segment_stat(pid, text);

    if (state_out)
        *state_out = at && at[1] ? at[2] : '\0';
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at + 1, ' ');
        if (at && field == 21)
            started = strtoull(at, NULL, 10);
    }
    return started;
}

/* The least quota of CPU time on the way up, in whole CPUs. */
static void take_quota(void *context, const char *folder, int version)
{
    int64_t quota = ls_cgroup_number(folder, version == 1 ? "cpu.cfs_quota_us" : "cpu.max", "");
    int64_t period = version == 1 ? ls_cgroup_number(folder, "cpu.cfs_period_us", "") : 100000;
    int32_t *least = context;

    if (quota > 0 && period > 0 && quota / period < *least)
        *least = (int32_t)ls_max_i64(quota / period, 1);
}

static bool alive(const ls_shm_segment_process *s)
{
    return (kill(s->pid, 0) == 0 || errno == EPERM) &&
           ls_shm_segment_started(s->pid, NULL) == s->started;
}

ls_status ls_shm_segment_join(ls_shm_segment *segment, int local, int rank, const char *host)
{
    uint32_t state = LS_SHM_SEGMENT_FREE;
    char name[LS_SHM_SEGMENT_NAME];

    if (local < 0 || local >= segment->ranks)
        return ls_fail(LS_EUSAGE, "local rank %d: this node has %d", local, segment->ranks);
    ls_shm_segment_process *s = &segment->process[local];
    if (!atomic_compare_exchange_strong(&s->state, &state, LS_SHM_SEGMENT_TAKEN)) {
        ls_shm_segment_name(segment, local, name);
        if (state == LS_SHM_SEGMENT_JOINED || state == LS_SHM_SEGMENT_READY)
            return ls_fail(LS_EBUSY, "local rank %d is taken by %s, which %s", local, name,
                           alive(s) ? "is running" : "is gone");
        return ls_fail(LS_EBUSY, "local rank %d is taken or was used before", local);
    }
    s->pid = getpid();
    s->started = ls_shm_segment_started(s->pid, NULL);
    s->rank = rank;
    s->token = segment->token;
    s->probe = &segment->token;
    snprintf(s->host, sizeof s->host, "%s", host);
    if (syscall(SYS_sched_getaffinity, 0, sizeof s->cpus, s->cpus) <= 0)
        s->cpus[0] = 1;
    s->quota = INT32_MAX;
    ls_cgroup_walk("", "cpu", take_quota, &s->quota);
    atomic_store(&s->state, LS_SHM_SEGMENT_JOINED);
    ls_shm_segment_wake_all(segment);
    return ls_shm_segment_failure(segment);
}

/* Whether this process can read the memory of that one: it fetches the token there, which also
 * shows when the pid means another process here. */
static bool can_read(const ls_shm_segment *segment, const ls_shm_segment_process *s)
{
    uint64_t token = 0;
    struct iovec here = {&token, sizeof token}, there = {s->probe, sizeof token};

    if (s->pid == getpid())
        return true;
    return !segment->head->no_reads &&
           process_vm_readv(s->pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof token &&
           token == s->token;
}

/* The first process that is not yet in the state; -1: all are. */
static int missing(const ls_shm_segment *segment, uint32_t state)
{
    for (int i = 0; i < segment->ranks; i++)
        if (atomic_load_explicit(&segment->process[i].state, memory_order_acquire) < state)
            return i;
    return -1;
}

/* Until all processes have reached a state; LS_EDEADLINE names the first that has not. */
static ls_status await_state(ls_shm_segment *segment, int local, uint32_t state,
                             int64_t deadline_ns)
{
    char name[LS_SHM_SEGMENT_NAME];
    ls_wait_turn turn = LS_WAIT_ON;
    ls_wait wait;

    ls_wait_begin(&wait, segment, local, deadline_ns);
    while (turn == LS_WAIT_ON && missing(segment, state) >= 0)
        turn = ls_wait_once(&wait);
    ls_wait_end(&wait);
    int who = missing(segment, state);
    if (turn == LS_WAIT_BROKEN)
        return ls_shm_segment_failure(segment);
    if (who < 0)
        return LS_OK;
    ls_status st =
        ls_fail(LS_EDEADLINE, "%s did not come to the start of the ranks of this node in time",
                ls_shm_segment_name(segment, who, name));
    ls_shm_segment_give_up(segment, local, "gave up: %s", ls_err_last()->text);
    return st;
}

/* Computed from what all processes published, so that all ranks get the same answer: the way of a
 * sum depends on it. */
static void count_cpus(ls_shm_segment *segment)
{
    unsigned long all[LS_SHM_SEGMENT_CPU_WORDS] = {0};
    int n = 0, quota = INT32_MAX;

    for (int i = 0; i < segment->ranks; i++) {
        quota = segment->process[i].quota < quota ? segment->process[i].quota : quota;
        for (int w = 0; w < LS_SHM_SEGMENT_CPU_WORDS; w++)
            all[w] |= segment->process[i].cpus[w];
    }
    for (int w = 0; w < LS_SHM_SEGMENT_CPU_WORDS; w++)
        n += __builtin_popcountl(all[w]);
    atomic_store_explicit(&segment->crowded, segment->ranks > n || segment->ranks > quota,
                          memory_order_relaxed);
}

ls_status ls_shm_segment_meet(ls_shm_segment *segment, int local, int64_t deadline_ns)
{
    ls_shm_segment_process *s = &segment->process[local];
    ls_status st = await_state(segment, local, LS_SHM_SEGMENT_JOINED, deadline_ns);

    if (st != LS_OK)
        return st;
    count_cpus(segment);
    for (int i = 0; i < segment->ranks; i++)
        if (!can_read(segment, &segment->process[i]))
            s->unread[i / 64] |= UINT64_C(1) << (i % 64);
    atomic_store(&s->state, LS_SHM_SEGMENT_READY);
    ls_shm_segment_wake_all(segment);
    return await_state(segment, local, LS_SHM_SEGMENT_READY, deadline_ns);
}

void ls_shm_segment_leave(ls_shm_segment *segment, int local)
{
    atomic_store_explicit(&segment->process[local].state, LS_SHM_SEGMENT_LEFT,
                          memory_order_release);
}

int ls_shm_segment_rank(const ls_shm_segment *segment, int local)
{
    const ls_shm_segment_process *s = &segment->process[local];

    return atomic_load_explicit(&s->state, memory_order_acquire) >= LS_SHM_SEGMENT_JOINED ? s->rank
                                                                                          : -1;
}

const char *ls_shm_segment_name(const ls_shm_segment *segment, int local,
                                char name_out[LS_SHM_SEGMENT_NAME])
{
    const ls_shm_segment_process *s = &segment->process[local];

    if (atomic_load_explicit(&s->state, memory_order_acquire) < LS_SHM_SEGMENT_JOINED)
        snprintf(name_out, LS_SHM_SEGMENT_NAME, "local rank %d", local);
    else
        snprintf(name_out, LS_SHM_SEGMENT_NAME, "rank %d (pid %d on %.60s)", s->rank, s->pid,
                 s->host);
    return name_out;
}

/* --- breaking --------------------------------------------------------------------------------- */

void ls_shm_segment_wake_all(ls_shm_segment *segment)
{
    for (int i = 0; i < segment->ranks; i++)
        ls_wait_wake(segment, i);
}

void ls_shm_segment_abort(ls_shm_segment *segment, int local, ls_status code, const char *fmt, ...)
{
    int place = local == LS_SHM_SEGMENT_AGENT ? segment->ranks : local;
    ls_shm_segment_process *s = &segment->process[place];
    uint32_t whole = 0;
    va_list ap;

    if (atomic_exchange(&s->reason_taken, 1) == 0) {
        va_start(ap, fmt);
        vsnprintf(s->reason, sizeof s->reason, fmt, ap);
        va_end(ap);
        s->code = (uint32_t)code;
        atomic_compare_exchange_strong(&segment->head->broken, &whole, (uint32_t)place + 1);
    }
    ls_shm_segment_wake_all(segment);
}

void ls_shm_segment_give_up(ls_shm_segment *segment, int local, const char *fmt, ...)
{
    char name[LS_SHM_SEGMENT_NAME], text[LS_SHM_SEGMENT_REASON];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!ls_shm_segment_aborted(segment))
        ls_shm_segment_abort(segment, local, LS_EPEER, "%s %s",
                             ls_shm_segment_name(segment, local, name), text);
}

bool ls_shm_segment_aborted(const ls_shm_segment *segment)
{
    return atomic_load_explicit(&segment->head->broken, memory_order_acquire) != 0;
}

ls_status ls_shm_segment_failure(const ls_shm_segment *segment)
{
    uint32_t broken = atomic_load_explicit(&segment->head->broken, memory_order_acquire);

    if (broken == 0)
        return LS_OK;
    const ls_shm_segment_process *s = &segment->process[broken - 1];
    return ls_fail((ls_status)s->code, "%s", s->reason);
}
