/* shm_segment_heap.c -- each rank hands out memory of its own part of the segment.
 *
 *     rank 0: [ block | gap | block |            ]   rank 1: [ block |                 ]   ...
 *
 * A rank keeps the list of its blocks in its own process: no lock is shared between processes, so
 * none can die holding one. The first gap that fits is taken: with blocks at 0 .. 8 KiB and
 * 12 .. 16 KiB, a block of 4 KiB goes to 8 KiB, and one of 8 KiB to 16 KiB. From 2 MiB on a block
 * begins at a multiple of 2 MiB, so that it can have huge pages. Pages are committed when memory is
 * handed out and dropped when it is given back, and read as zero afterwards. */
#include <errno.h>
#include <fcntl.h>
#include "base/mem.h"
#include "comm/node/shm_segment_impl.h"
#include "device/cpu/cgroup.h"

#define HUGE_PAGE (2 * LS_MIB)

static double mib(int64_t bytes)
{
    return (double)bytes / (double)LS_MIB;
}

static void take_room(void *context, const char *folder, int version)
{
    bool v1 = version == 1;
    int64_t *room = context;
    int64_t limit = ls_cgroup_number(folder, v1 ? "memory.limit_in_bytes" : "memory.max", "");
    int64_t used = ls_cgroup_number(folder, v1 ? "memory.usage_in_bytes" : "memory.current", "");
    int64_t cached =
        ls_cgroup_number(folder, "memory.stat", v1 ? "total_inactive_file" : "inactive_file");

    if (limit >= 0 && used >= 0)
        *room = ls_min_i64(*room, ls_max_i64(limit - used + ls_max_i64(cached, 0), 0));
}

/* What the machine and the control groups of this process still have. */
static int64_t room_left(void)
{
    int64_t room = ls_cgroup_number("/proc", "meminfo", "MemAvailable") * LS_KIB;

    if (room < 0)
        room = INT64_MAX;
    ls_cgroup_walk("", "memory", take_room, &room);
    return room;
}

ls_status ls_shm_segment_commit(const ls_shm_segment *segment, int64_t at, int64_t bytes,
                                const char *what)
{
    /* Asked first: above the limit of a control group the system kills instead of refusing. Small
     * pieces skip this, because asking costs more than they do. */
    int64_t room = bytes >= LS_MIB ? room_left() : INT64_MAX;
    int failed = 0;

    if (bytes <= room)
        do
            failed = fallocate(segment->fd, 0, at, bytes) == 0 ? 0 : errno;
        while (failed == EINTR);
    if (bytes <= room && !failed)
        return LS_OK;
    room = ls_min_i64(room, room_left());
    ls_status st = ls_fail(LS_ENOMEM,
                           "cannot allocate %.1f MiB of memory shared on this node for \"%s\": "
                           "%.1f MiB are free%s%s",
                           ls_size_up(bytes, LS_MIB), what, ls_size_down(room, LS_MIB),
                           failed ? ": " : "", failed ? strerror(failed) : "");
    ls_err_hint("Use fewer ranks on this node, or smaller buffers.");
    return st;
}

void ls_shm_segment_drop(const ls_shm_segment *segment, int64_t at, int64_t bytes)
{
    while (fallocate(segment->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, bytes) != 0 &&
           errno == EINTR)
        ;
}

/* Where a block of this size fits, and its index in the list; -1: nowhere. */
static int64_t find_gap(const ls_shm_segment_heap *heap, int64_t first, int64_t end, int64_t bytes,
                        int *place_out)
{
    int64_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : LS_SHM_SEGMENT_PAGE, at = first;

    for (int i = 0; i <= heap->blocks; i++) {
        int64_t stop = i < heap->blocks ? heap->block[i].at : end;
        at = ls_round_up(at, align);
        if (at <= stop && bytes <= stop - at) {
            *place_out = i;
            return at;
        }
        if (i < heap->blocks)
            at = heap->block[i].at + heap->block[i].bytes;
    }
    return -1;
}

/* Find a gap, commit its pages, and enter it in the list, in the order of addresses. */
static ls_status take_block(ls_shm_segment *segment, int local, int64_t bytes, const char *what,
                            int64_t *at_out)
{
    int64_t each = segment->head->heap_bytes, first = segment->head->heap_at + local * each;
    ls_shm_segment_heap *heap = &segment->heaps[local];
    int place = 0;

    if (heap->blocks == heap->room) {
        int room = heap->room ? 2 * heap->room : 16;
        ls_shm_segment_block *more = ls_mem_resize(heap->block, (size_t)room * sizeof *more);
        if (!more)
            return LS_ENOMEM;
        heap->block = more;
        heap->room = room;
    }
    int64_t at = bytes <= each ? find_gap(heap, first, first + each, bytes, &place) : -1;
    if (at < 0)
        return ls_fail(LS_ENOMEM,
                       "cannot allocate %.1f MiB of memory shared on this node for \"%s\": each "
                       "rank has room for %.1f MiB in all",
                       mib(bytes), what, mib(each));
    ls_status st = ls_shm_segment_commit(segment, at, bytes, what);
    if (st != LS_OK) {
        ls_shm_segment_drop(segment, at, bytes); /* what was committed before it failed */
        return st;
    }
    memmove(heap->block + place + 1, heap->block + place,
            (size_t)(heap->blocks - place) * sizeof *heap->block);
    heap->block[place] = (ls_shm_segment_block){at, bytes};
    heap->blocks++;
    *at_out = at;
    return LS_OK;
}

ls_status ls_shm_segment_alloc(ls_shm_segment *segment, int local, int64_t bytes, const char *what,
                               void **memory_out)
{
    int64_t at = 0;

    if (bytes < 0 || bytes > INT64_MAX - HUGE_PAGE)
        return ls_fail(LS_EUSAGE, "cannot allocate %lld bytes of shared memory for \"%s\"",
                       (long long)bytes, what);
    pthread_mutex_lock(&segment->lock);
    ls_status st = take_block(segment, local,
                              ls_round_up(ls_max_i64(bytes, 1), LS_SHM_SEGMENT_PAGE), what, &at);
    pthread_mutex_unlock(&segment->lock);
    if (st == LS_OK)
        *memory_out = segment->base + at;
    return st;
}

void ls_shm_segment_free(ls_shm_segment *segment, int local, void *memory)
{
    ls_shm_segment_heap *heap = &segment->heaps[local];
    int i = 0;

    if (!memory)
        return;
    pthread_mutex_lock(&segment->lock);
    int64_t at = (char *)memory - segment->base;
    while (i < heap->blocks && heap->block[i].at != at)
        i++;
    LS_BUG_IF(i == heap->blocks, "memory that this rank did not allocate is freed");
    ls_shm_segment_drop(segment, at, heap->block[i].bytes);
    heap->blocks--;
    memmove(heap->block + i, heap->block + i + 1, (size_t)(heap->blocks - i) * sizeof *heap->block);
    pthread_mutex_unlock(&segment->lock);
}

void ls_shm_segment_heaps_release(ls_shm_segment *segment)
{
    for (int i = 0; segment->heaps && i < segment->ranks; i++)
        ls_mem_free(segment->heaps[i].block);
    ls_mem_free(segment->heaps);
}
