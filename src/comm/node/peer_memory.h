/* peer_memory.h -- how one rank reaches another rank's bytes.
 *
 * Memory in the segment's heap is shared by all. Other memory is read with process_vm_readv() where
 * the system allows it; ranks find that out when they meet. Where it does not, the owner copies the
 * bytes piece by piece to a stage in the heap. */
#pragma once
#include "comm/node/shm_segment.h"

LS_C_BEGIN

typedef enum ls_peer_memory_how {
    LS_PEER_MEMORY_NOTHING, /* it gives nothing */
    LS_PEER_MEMORY_TINY,    /* in the slot's first line */
    LS_PEER_MEMORY_SLOT,    /* in the slot */
    LS_PEER_MEMORY_HEAP,    /* at: distance from the start of the heaps */
    LS_PEER_MEMORY_PROCESS, /* at: address in its process */
    LS_PEER_MEMORY_STAGE    /* its owner copies it to a stage in the heap */
} ls_peer_memory_how;

/* How others reach memory of local rank `local`; `readers` are the local ranks that must be able
 * to. */
ls_peer_memory_how ls_peer_memory_find(const ls_shm_segment *segment, int local,
                                       const uint16_t *readers, int count, const void *memory,
                                       int64_t bytes, uint64_t *at_out);

/* The memory itself, where it can be used in place (heap, or the same process); NULL: only read. */
void *ls_peer_memory_pointer(const ls_shm_segment *segment, int local, ls_peer_memory_how how,
                             uint64_t at);

/* Copy bytes of another process. LS_EPEER when it is gone. */
ls_status ls_peer_memory_read(const ls_shm_segment *segment, int local, uint64_t at, void *to,
                              int64_t bytes);

LS_C_END
