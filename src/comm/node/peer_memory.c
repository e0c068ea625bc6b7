/* peer_memory.c -- reaches the bytes of another rank: as a pointer where they lie in the heap or in
 * this process, by process_vm_readv() where they lie in another one. Which of them holds is decided
 * by the owner of the memory (ls_peer_memory_find) and stands in its slot.
 *
 *     where the bytes lie                 how       what a reader does
 *     in the heap, 8192 from its start    HEAP      uses heap + 8192 in place, also to write
 *     elsewhere, in this process          PROCESS   uses the address: ranks that are threads
 *     elsewhere, in another process       PROCESS   copies them by process_vm_readv()
 *     the same, but a reader is not       STAGE     waits until the owner has copied them to the
 *     allowed to (containers, yama)                 heap, a window at a time
 *
 * The heap is mapped at another address in each process: only distances from its start are sent. */
#include "comm/node/peer_memory.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>
#include "comm/node/shm_segment_impl.h"

ls_peer_memory_how ls_peer_memory_find(const ls_shm_segment *segment, int local,
                                       const uint16_t *readers, int count, const void *memory,
                                       int64_t bytes, uint64_t *at_out)
{
    if (ls_shm_segment_in_heap(segment, memory, bytes)) {
        *at_out = (uint64_t)((const char *)memory - segment->heap);
        return LS_PEER_MEMORY_HEAP;
    }
    *at_out = (uint64_t)(uintptr_t)memory;
    for (int i = 0; i < count; i++)
        if (ls_shm_segment_set_has(segment->process[readers[i]].unread, local))
            return LS_PEER_MEMORY_STAGE;
    return LS_PEER_MEMORY_PROCESS;
}

void *ls_peer_memory_pointer(const ls_shm_segment *segment, int local, ls_peer_memory_how how,
                             uint64_t at)
{
    if (how == LS_PEER_MEMORY_HEAP)
        return segment->heap + at;
    if (how == LS_PEER_MEMORY_PROCESS && segment->process[local].pid == getpid())
        return (void *)(uintptr_t)at;
    return NULL;
}

ls_status ls_peer_memory_read(const ls_shm_segment *segment, int local, uint64_t at, void *to,
                              int64_t bytes)
{
    char name[LS_SHM_SEGMENT_NAME];
    char *here = to;

    while (bytes > 0) {
        struct iovec mine = {here, (size_t)bytes};
        struct iovec theirs = {(void *)(uintptr_t)at, (size_t)bytes};
        ssize_t n = process_vm_readv(segment->process[local].pid, &mine, 1, &theirs, 1, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ls_fail_sys(LS_EPEER, "cannot read the memory of %s",
                               ls_shm_segment_name(segment, local, name));
        here += n;
        at += (uint64_t)n;
        bytes -= n;
    }
    return LS_OK;
}
