/* board.c -- making, opening and joining the shared memory of a node, and breaking it.
 *
 * The file is sparse: it is laid out for all groups and for heaps as large as the machine, and a
 * page exists from the moment somebody commits it (fallocate), so that a full machine is an error
 * with a sentence at that moment and never a bus error at a store. The size is sealed: nobody can
 * cut the file under the others' feet, and a file that is not sealed is not a board.
 *
 *     seat 0: "rank 4 ..."      \
 *     seat 1: "rank 5 ..."       > each has a reason of its own; `broken` holds 1 + the number of
 *     seat 2: the agent         /  the first who wrote one
 *
 * So a reason is complete before it is seen, also when its writer is killed in the middle of it:
 * then the next who notices something writes in its own seat. */
#include "comm/node/board.h"

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
#include "comm/node/board_impl.h"
#include "comm/node/wait.h"
#include "device/cpu/cgroup.h"

enum { VERSION = 1, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

#define HUGE_PAGE (2 * LS_MIB)
#define MOST_HEAPS (INT64_C(1) << 44) /* address space for the heaps of all ranks together */

static const char magic[8] = "lsboard";

/* --- layout ----------------------------------------------------------------------------------- */

static void lay_out(ls_board_head *h)
{
    int64_t ranks = h->ranks;
    int64_t seats = (ranks + 1) * (int64_t)sizeof(ls_board_seat);
    int64_t cells = ls_round_up(ranks * (int64_t)sizeof(ls_board_cell), LS_BOARD_PAGE);
    int64_t ring = ls_round_up((int64_t)sizeof(ls_board_ring), LS_BOARD_PAGE);

    h->seats_at = ls_round_up((int64_t)sizeof *h, LS_BOARD_PAGE);
    h->groups_at = h->seats_at + ls_round_up(seats, LS_BOARD_PAGE);
    h->group_bytes = cells + ranks * ranks * ring;
    h->heap_at = ls_round_up(h->groups_at + LS_BOARD_GROUPS * h->group_bytes, HUGE_PAGE);
    h->bytes = h->heap_at + ranks * h->heap_bytes;
}

ls_board_cell *ls_board_cell_at(const ls_board *board, int group, int local)
{
    char *cells = board->base + board->head->groups_at + group * board->head->group_bytes;

    return (ls_board_cell *)(void *)cells + local;
}

ls_board_ring *ls_board_ring_at(const ls_board *board, int group, int from, int to)
{
    int64_t ring = ls_round_up((int64_t)sizeof(ls_board_ring), LS_BOARD_PAGE);
    char *end = board->base + board->head->groups_at + (group + 1) * board->head->group_bytes;
    int64_t pairs = (int64_t)board->ranks * board->ranks;

    return (ls_board_ring *)(void *)(end - (pairs - (int64_t)from * board->ranks - to) * ring);
}

/* --- making ----------------------------------------------------------------------------------- */

static int64_t heap_of_one(const ls_board_args *args)
{
    int64_t wanted = args->heap_bytes;

    if (wanted == 0)
        wanted = ls_cgroup_number("/proc", "meminfo", "MemTotal") * LS_KIB;
    wanted = ls_min_i64(ls_max_i64(wanted, HUGE_PAGE), MOST_HEAPS / args->ranks);
    return ls_round_up(wanted, HUGE_PAGE);
}

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

static ls_status write_head(int fd, const ls_board_head *head)
{
    int64_t bytes = head->groups_at; /* header and seats; a hole reads as free seats */

    if (fallocate(fd, 0, 0, bytes) != 0 ||
        pwrite(fd, head, sizeof *head, 0) != (ssize_t)sizeof *head ||
        fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        return ls_fail_sys(LS_ENOMEM, "cannot prepare memory for the ranks of this node");
    return LS_OK;
}

ls_status ls_board_create(const ls_board_args *args, int *fd_out)
{
    ls_board_head head = {.version = VERSION, .generation = args->generation};
    ls_status st = LS_OK;
    int fd = -1;

    if (args->ranks < 1 || args->ranks > LS_BOARD_RANKS || args->heap_bytes < 0)
        return ls_fail(LS_EUSAGE, "%d ranks on one node: there can be 1 to %d", args->ranks,
                       LS_BOARD_RANKS);
    memcpy(head.magic, magic, sizeof magic);
    head.ranks = (uint32_t)args->ranks;
    head.heap_bytes = heap_of_one(args);
    head.no_reads = args->no_reads;
    lay_out(&head);
    fd = memfd_create("lineshaft-board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
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

static ls_status check_head(int fd, uint64_t generation, ls_board_head *head)
{
    ls_board_head want;
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
    want = *head;
    bool sane = head->ranks >= 1 && head->ranks <= LS_BOARD_RANKS && head->heap_bytes > 0 &&
                head->heap_bytes <= MOST_HEAPS;
    if (sane)
        lay_out(&want);
    if (!sane || memcmp(&want, head, offsetof(ls_board_head, no_reads)) != 0 ||
        info.st_size != head->bytes)
        return ls_fail(LS_EDATA,
                       "the node's shared memory is laid out for another build of this program");
    return LS_OK;
}

/* Map at a multiple of a huge page, so that large buffers can have huge pages. */
static ls_status map_file(ls_board *b, int64_t bytes)
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

ls_status ls_board_open(ls_board **board_out, int fd, uint64_t generation)
{
    ls_board_head head;
    ls_board *b = NULL;
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
    b->head = (ls_board_head *)(void *)b->base;
    b->seat = (ls_board_seat *)(void *)(b->base + head.seats_at);
    b->heap = b->base + head.heap_at;
    b->heap_total = head.heap_bytes * b->ranks;
    madvise(b->heap, (size_t)b->heap_total, MADV_HUGEPAGE); /* where the system allows it */
    madvise(b->heap, (size_t)b->heap_total, MADV_DONTDUMP); /* a crash shows seats, not weights */
    b->heaps = ls_mem_array((size_t)b->ranks, sizeof *b->heaps);
    if (!b->heaps)
        st = LS_ENOMEM;
    if (getrandom(&b->token, sizeof b->token, GRND_NONBLOCK) != sizeof b->token)
        b->token = (uint64_t)ls_time_now_ns() * 0x9e3779b97f4a7c15u;
out:
    if (st != LS_OK)
        ls_board_close(b);
    else
        *board_out = b;
    return st;
}

void ls_board_close(ls_board *board)
{
    if (!board)
        return;
    if (board->base)
        munmap(board->base, (size_t)board->head->bytes);
    if (board->fd >= 0)
        close(board->fd);
    ls_board_heaps_release(board);
    pthread_mutex_destroy(&board->lock);
    ls_mem_free(board);
}

int ls_board_ranks(const ls_board *board)
{
    return board->ranks;
}

/* --- seats ------------------------------------------------------------------------------------ */

uint64_t ls_board_started(int pid, char *state_out)
{
    char path[64], text[1024];
    uint64_t started = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    char *at = strrchr(text, ')'); /* the name before may hold anything */
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

static bool alive(const ls_board_seat *s)
{
    return (kill(s->pid, 0) == 0 || errno == EPERM) && ls_board_started(s->pid, NULL) == s->started;
}

ls_status ls_board_join(ls_board *board, int local, int rank, const char *host)
{
    uint32_t state = LS_BOARD_FREE;
    char name[LS_BOARD_NAME];

    if (local < 0 || local >= board->ranks)
        return ls_fail(LS_EUSAGE, "local rank %d: this node has %d", local, board->ranks);
    ls_board_seat *s = &board->seat[local];
    if (!atomic_compare_exchange_strong(&s->state, &state, LS_BOARD_TAKEN)) {
        ls_board_name(board, local, name);
        if (state == LS_BOARD_JOINED || state == LS_BOARD_READY)
            return ls_fail(LS_EBUSY, "local rank %d is taken by %s, which %s", local, name,
                           alive(s) ? "is running" : "is gone");
        return ls_fail(LS_EBUSY, "local rank %d is taken or was used before", local);
    }
    s->pid = getpid();
    s->started = ls_board_started(s->pid, NULL);
    s->rank = rank;
    s->token = board->token;
    s->probe = &board->token;
    snprintf(s->host, sizeof s->host, "%s", host);
    if (syscall(SYS_sched_getaffinity, 0, sizeof s->cpus, s->cpus) <= 0)
        s->cpus[0] = 1;
    s->quota = INT32_MAX;
    ls_cgroup_walk("", "cpu", take_quota, &s->quota);
    atomic_store(&s->state, LS_BOARD_JOINED);
    ls_board_wake_all(board);
    return ls_board_failure(board);
}

/* Whether this process can read the memory of the one that sits there: its number is fetched from
 * it, which also tells when its pid means another process here. */
static bool can_read(const ls_board *board, const ls_board_seat *s)
{
    uint64_t token = 0;
    struct iovec here = {&token, sizeof token}, there = {s->probe, sizeof token};

    if (s->pid == getpid())
        return true;
    return !board->head->no_reads &&
           process_vm_readv(s->pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof token &&
           token == s->token;
}

/* The first seat that is not yet in the state; -1: all are. */
static int missing(const ls_board *board, uint32_t state)
{
    for (int i = 0; i < board->ranks; i++)
        if (atomic_load_explicit(&board->seat[i].state, memory_order_acquire) < state)
            return i;
    return -1;
}

static ls_status await_state(ls_board *board, int local, uint32_t state, int64_t deadline_ns)
{
    char name[LS_BOARD_NAME];
    ls_wait_turn turn = LS_WAIT_ON;
    ls_wait wait;

    ls_wait_begin(&wait, board, local, deadline_ns);
    while (turn == LS_WAIT_ON && missing(board, state) >= 0)
        turn = ls_wait_once(&wait);
    ls_wait_end(&wait);
    int who = missing(board, state);
    if (turn == LS_WAIT_BROKEN)
        return ls_board_failure(board);
    if (who < 0)
        return LS_OK;
    ls_status st =
        ls_fail(LS_EDEADLINE, "%s did not come to the start of the ranks of this node in time",
                ls_board_name(board, who, name));
    ls_board_abort(board, local, LS_EPEER, "%s gave up: %s", ls_board_name(board, local, name),
                   ls_err_last()->text);
    return st;
}

/* From what all seats say, so that all ranks come to the same answer: how a sum is done depends on
 * it. */
static void count_cpus(ls_board *board)
{
    unsigned long all[LS_BOARD_CPU_WORDS] = {0};
    int n = 0, quota = INT32_MAX;

    for (int i = 0; i < board->ranks; i++) {
        quota = board->seat[i].quota < quota ? board->seat[i].quota : quota;
        for (int w = 0; w < LS_BOARD_CPU_WORDS; w++)
            all[w] |= board->seat[i].cpus[w];
    }
    for (int w = 0; w < LS_BOARD_CPU_WORDS; w++)
        n += __builtin_popcountl(all[w]);
    atomic_store_explicit(&board->crowded, board->ranks > n || board->ranks > quota,
                          memory_order_relaxed);
}

ls_status ls_board_meet(ls_board *board, int local, int64_t deadline_ns)
{
    ls_board_seat *s = &board->seat[local];
    ls_status st = await_state(board, local, LS_BOARD_JOINED, deadline_ns);

    if (st != LS_OK)
        return st;
    count_cpus(board);
    for (int i = 0; i < board->ranks; i++)
        if (!can_read(board, &board->seat[i]))
            s->unread[i / 64] |= UINT64_C(1) << (i % 64);
    atomic_store(&s->state, LS_BOARD_READY);
    ls_board_wake_all(board);
    return await_state(board, local, LS_BOARD_READY, deadline_ns);
}

void ls_board_leave(ls_board *board, int local)
{
    atomic_store_explicit(&board->seat[local].state, LS_BOARD_LEFT, memory_order_release);
}

int ls_board_rank(const ls_board *board, int local)
{
    const ls_board_seat *s = &board->seat[local];

    return atomic_load_explicit(&s->state, memory_order_acquire) >= LS_BOARD_JOINED ? s->rank : -1;
}

const char *ls_board_name(const ls_board *board, int local, char name_out[LS_BOARD_NAME])
{
    const ls_board_seat *s = &board->seat[local];

    if (atomic_load_explicit(&s->state, memory_order_acquire) < LS_BOARD_JOINED)
        snprintf(name_out, LS_BOARD_NAME, "local rank %d", local);
    else
        snprintf(name_out, LS_BOARD_NAME, "rank %d (pid %d on %.60s)", s->rank, s->pid, s->host);
    return name_out;
}

/* --- breaking --------------------------------------------------------------------------------- */

void ls_board_wake_all(ls_board *board)
{
    for (int i = 0; i < board->ranks; i++)
        ls_wait_wake(board, i);
}

void ls_board_abort(ls_board *board, int local, ls_status code, const char *fmt, ...)
{
    int place = local == LS_BOARD_AGENT ? board->ranks : local;
    ls_board_seat *s = &board->seat[place];
    uint32_t whole = 0;
    va_list ap;

    if (atomic_exchange(&s->reason_taken, 1) == 0) {
        va_start(ap, fmt);
        vsnprintf(s->reason, sizeof s->reason, fmt, ap);
        va_end(ap);
        s->code = (uint32_t)code;
        atomic_compare_exchange_strong(&board->head->broken, &whole, (uint32_t)place + 1);
    }
    ls_board_wake_all(board);
}

bool ls_board_aborted(const ls_board *board)
{
    return atomic_load_explicit(&board->head->broken, memory_order_acquire) != 0;
}

ls_status ls_board_failure(const ls_board *board)
{
    uint32_t broken = atomic_load_explicit(&board->head->broken, memory_order_acquire);

    if (broken == 0)
        return LS_OK;
    const ls_board_seat *s = &board->seat[broken - 1];
    return ls_fail((ls_status)s->code, "%s", s->reason);
}
