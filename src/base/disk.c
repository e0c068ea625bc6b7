/* disk.c -- file requests through io_uring, or through a few threads.
 *
 * io_uring is used without a library: two rings in memory that is shared with the kernel, and two
 * system calls. Of the ring of requests this side moves the tail, of the ring of ends the head:
 *
 *     requests   head (kernel) --> ......xxxx <-- tail (we)     slot i of the table belongs to
 *     ends       head (we)     --> ......xxxx <-- tail (kernel) the request with user_data i
 *
 * A request that the kernel returned unfinished for a reason outside the file (EINTR, EAGAIN) is
 * done here and now. Threads take requests from the same table, under a lock.
 *
 * liburing would hide these 60 lines behind a library that is missing on many machines. */
#include "base/disk.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/pool.h"

#if __has_include(<linux/io_uring.h>) && defined(__NR_io_uring_setup)
#include <linux/io_uring.h>
#define RING 1
#else
#define RING 0
#endif

enum { THREADS = 4 };

typedef enum state { FREE, WAITING, RUNNING, ENDED } state;

typedef struct slot {
    state state;
    ls_disk_request request;
    ls_disk_end end;
} slot;

typedef struct ring {
    int fd; /* -1: there is none */
    void *rings, *entries;
    size_t rings_bytes, entries_bytes;
    unsigned *tail, *mask, *order;            /* of requests */
    unsigned *end_head, *end_tail, *end_mask; /* of ends */
    void *ends;
} ring;

struct ls_disk {
    int depth, under_way;
    slot *slots; /* owned; depth of them */
    ring ring;
    pthread_t threads[THREADS];
    int n_threads;
    pthread_mutex_t lock; /* of states, where threads work */
    pthread_cond_t come, ended;
    bool stop;
};

/* One request, by this thread. */
static ls_disk_end do_here(const ls_disk_request *r)
{
    ssize_t done;

    do
        done = r->what == LS_DISK_READ    ? pread(r->fd, r->bytes, (size_t)r->len, r->at)
               : r->what == LS_DISK_WRITE ? pwrite(r->fd, r->bytes, (size_t)r->len, r->at)
                                          : fdatasync(r->fd);
    while (done < 0 && errno == EINTR);
    return (ls_disk_end){.tag = r->tag, .error = done < 0 ? errno : 0, .done = done < 0 ? 0 : done};
}

/* --- io_uring -----------------------------------------------------------------------------------
 */

#if RING
static void ring_close(ring *r)
{
    if (r->rings)
        munmap(r->rings, r->rings_bytes);
    if (r->entries)
        munmap(r->entries, r->entries_bytes);
    if (r->fd >= 0)
        close(r->fd);
    *r = (ring){.fd = -1};
}

/* false: not here, errno says why. */
static bool ring_open(ring *r, int depth)
{
    struct io_uring_params p = {.flags = 0};
    char *base;

    *r = (ring){.fd = (int)syscall(__NR_io_uring_setup, (unsigned)depth, &p)};
    if (r->fd < 0)
        return false;
    /* the one came with plain reads and writes (5.6), the other a little earlier */
    if (!(p.features & IORING_FEAT_RW_CUR_POS) || !(p.features & IORING_FEAT_SINGLE_MMAP)) {
        ring_close(r);
        errno = ENOSYS;
        return false;
    }
    r->rings_bytes = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    if (r->rings_bytes < p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe))
        r->rings_bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    r->entries_bytes = p.sq_entries * sizeof(struct io_uring_sqe);
    void *rings = mmap(NULL, r->rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                       r->fd, IORING_OFF_SQ_RING);
    void *entries = mmap(NULL, r->entries_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                         r->fd, IORING_OFF_SQES);
    r->rings = rings == MAP_FAILED ? NULL : rings;
    r->entries = entries == MAP_FAILED ? NULL : entries;
    if (!r->rings || !r->entries) {
        int error = errno;
        ring_close(r);
        errno = error;
        return false;
    }
    base = r->rings;
    r->tail = (unsigned *)(void *)(base + p.sq_off.tail);
    r->mask = (unsigned *)(void *)(base + p.sq_off.ring_mask);
    r->order = (unsigned *)(void *)(base + p.sq_off.array);
    r->end_head = (unsigned *)(void *)(base + p.cq_off.head);
    r->end_tail = (unsigned *)(void *)(base + p.cq_off.tail);
    r->end_mask = (unsigned *)(void *)(base + p.cq_off.ring_mask);
    r->ends = base + p.cq_off.cqes;
    return true;
}

/* false: the kernel did not take it. */
static bool ring_submit(ring *r, const ls_disk_request *q, int index)
{
    static const unsigned char codes[] = {[LS_DISK_READ] = IORING_OP_READ,
                                          [LS_DISK_WRITE] = IORING_OP_WRITE,
                                          [LS_DISK_SYNC] = IORING_OP_FSYNC};
    unsigned tail = *r->tail, at = tail & *r->mask;
    struct io_uring_sqe *e = (struct io_uring_sqe *)r->entries + at;
    long rc;

    memset(e, 0, sizeof *e);
    e->opcode = codes[q->what];
    e->fd = q->fd;
    e->user_data = (uint64_t)index;
    if (q->what == LS_DISK_SYNC) {
        e->fsync_flags = IORING_FSYNC_DATASYNC;
    } else {
        e->addr = (uint64_t)(uintptr_t)q->bytes;
        e->len = (unsigned)q->len;
        e->off = (uint64_t)q->at;
    }
    r->order[at] = at;
    __atomic_store_n(r->tail, tail + 1, __ATOMIC_RELEASE);
    do
        rc = syscall(__NR_io_uring_enter, r->fd, 1u, 0u, 0u, NULL, (size_t)0);
    while (rc < 0 && errno == EINTR);
    if (rc == 1)
        return true;
    __atomic_store_n(r->tail, tail, __ATOMIC_RELEASE); /* nobody has looked at it */
    return false;
}

/* The index of a request that has ended, and how. false: none has. */
static bool ring_take(ring *r, int *index_out, int *result_out)
{
    unsigned head = *r->end_head;

    if (head == __atomic_load_n(r->end_tail, __ATOMIC_ACQUIRE))
        return false;
    const struct io_uring_cqe *e = (const struct io_uring_cqe *)r->ends + (head & *r->end_mask);
    *index_out = (int)e->user_data;
    *result_out = e->res;
    __atomic_store_n(r->end_head, head + 1, __ATOMIC_RELEASE);
    return true;
}

static void ring_wait(ring *r)
{
    (void)syscall(__NR_io_uring_enter, r->fd, 0u, 1u, (unsigned)IORING_ENTER_GETEVENTS, NULL,
                  (size_t)0);
}
#else
static void ring_close(ring *r)
{
    (void)r;
}

static bool ring_open(ring *r, int depth)
{
    (void)depth;
    *r = (ring){.fd = -1};
    errno = ENOSYS;
    return false;
}

static bool ring_submit(ring *r, const ls_disk_request *q, int index)
{
    (void)r, (void)q, (void)index;
    return false;
}

static bool ring_take(ring *r, int *index_out, int *result_out)
{
    (void)r, (void)index_out, (void)result_out;
    return false;
}

static void ring_wait(ring *r)
{
    (void)r;
}
#endif

/* Whether threads were asked for. */
static bool asked_for_threads(void)
{
    const char *value = getenv("LINESHAFT_DISK");

    return value && strcmp(value, "threads") == 0;
}

void ls_disk_means(char *text_out, size_t size)
{
    ring r;

    if (asked_for_threads()) {
        snprintf(text_out, size, "threads (LINESHAFT_DISK=threads)");
    } else if (ring_open(&r, 4)) {
        ring_close(&r);
        snprintf(text_out, size, "io_uring");
    } else {
        snprintf(text_out, size, "threads (io_uring: %s)", strerror(errno));
    }
}

/* --- threads ------------------------------------------------------------------------------------
 */

/* A slot in this state; NULL: there is none. */
static slot *find(ls_disk *disk, state wanted)
{
    for (int i = 0; i < disk->depth; i++)
        if (disk->slots[i].state == wanted)
            return &disk->slots[i];
    return NULL;
}

static void *work(void *context)
{
    ls_disk *disk = context;

    pthread_mutex_lock(&disk->lock);
    for (;;) {
        slot *s = find(disk, WAITING);
        if (!s && disk->stop)
            break;
        if (!s) {
            pthread_cond_wait(&disk->come, &disk->lock);
            continue;
        }
        s->state = RUNNING;
        ls_disk_request request = s->request;
        pthread_mutex_unlock(&disk->lock);
        ls_disk_end end = do_here(&request);
        pthread_mutex_lock(&disk->lock);
        s->end = end;
        s->state = ENDED;
        pthread_cond_signal(&disk->ended);
    }
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

static ls_status start_threads(ls_disk *disk)
{
    int want = disk->depth < THREADS ? disk->depth : THREADS, rc = 0;

    for (; disk->n_threads < want; disk->n_threads++) {
        rc = ls_pool_start_apart(&disk->threads[disk->n_threads], work, disk);
        if (rc != 0)
            break;
    }
    if (disk->n_threads > 0)
        return LS_OK;
    return ls_pool_start_failed(rc, "start a thread that reads and writes files");
}

/* --- the contract -------------------------------------------------------------------------------
 */

ls_status ls_disk_open(ls_disk **disk_out, int depth)
{
    ls_disk *disk = ls_mem_alloc(sizeof *disk);
    ls_status st = LS_OK;

    if (!disk)
        return LS_ENOMEM;
    disk->depth = depth;
    disk->ring.fd = -1;
    pthread_mutex_init(&disk->lock, NULL);
    pthread_cond_init(&disk->come, NULL);
    pthread_cond_init(&disk->ended, NULL);
    disk->slots = ls_mem_array((size_t)depth, sizeof *disk->slots);
    if (!disk->slots)
        st = LS_ENOMEM;
    else if (asked_for_threads() || !ring_open(&disk->ring, depth))
        st = start_threads(disk);
    if (st == LS_OK)
        *disk_out = disk;
    else
        ls_disk_close(disk);
    return st;
}

void ls_disk_close(ls_disk *disk)
{
    if (!disk)
        return;
    while (disk->under_way > 0)
        (void)ls_disk_take(disk);
    pthread_mutex_lock(&disk->lock);
    disk->stop = true;
    pthread_cond_broadcast(&disk->come);
    pthread_mutex_unlock(&disk->lock);
    for (int i = 0; i < disk->n_threads; i++)
        pthread_join(disk->threads[i], NULL);
    ring_close(&disk->ring);
    pthread_cond_destroy(&disk->come);
    pthread_cond_destroy(&disk->ended);
    pthread_mutex_destroy(&disk->lock);
    ls_mem_free(disk->slots);
    ls_mem_free(disk);
}

void ls_disk_submit(ls_disk *disk, const ls_disk_request *request)
{
    LS_BUG_IF(disk->under_way == disk->depth, "more than %d requests under way", disk->depth);
    pthread_mutex_lock(&disk->lock);
    slot *s = find(disk, FREE);
    s->request = *request;
    disk->under_way++;
    if (disk->ring.fd < 0) {
        s->state = WAITING;
        pthread_cond_signal(&disk->come);
    } else if (ring_submit(&disk->ring, request, (int)(s - disk->slots))) {
        s->state = RUNNING;
    } else {
        s->end = do_here(request);
        s->state = ENDED;
    }
    pthread_mutex_unlock(&disk->lock);
}

/* With a ring: a request that has ended, in its slot. */
static slot *take_from_ring(ls_disk *disk)
{
    slot *s = find(disk, ENDED); /* it was done at once */
    int index, result;

    if (s)
        return s;
    while (!ring_take(&disk->ring, &index, &result))
        ring_wait(&disk->ring);
    s = &disk->slots[index];
    s->end = result == -EINTR || result == -EAGAIN
                 ? do_here(&s->request)
                 : (ls_disk_end){.tag = s->request.tag,
                                 .error = result < 0 ? -result : 0,
                                 .done = result < 0 ? 0 : result};
    return s;
}

ls_disk_end ls_disk_take(ls_disk *disk)
{
    slot *s;

    LS_BUG_IF(disk->under_way == 0, "nothing is under way");
    pthread_mutex_lock(&disk->lock);
    if (disk->ring.fd >= 0)
        s = take_from_ring(disk);
    else
        while (!(s = find(disk, ENDED)))
            pthread_cond_wait(&disk->ended, &disk->lock);
    ls_disk_end end = s->end;
    s->state = FREE;
    disk->under_way--;
    pthread_mutex_unlock(&disk->lock);
    return end;
}
