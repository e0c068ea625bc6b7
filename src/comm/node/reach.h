/* reach.h -- how one rank gets at another rank's bytes.
 *
 * Memory in the board's heap is the same memory for all. Other memory is read with
 * process_vm_readv() where the system allows it; ranks found that out when they met. Where it does
 * not, the owner copies it piece by piece to a stage in the heap. */
#pragma once
#include "comm/node/board.h"

LS_C_BEGIN

typedef enum ls_reach_how {
    LS_REACH_NOTHING, /* it gives nothing */
    LS_REACH_TINY,    /* in the slot's first line */
    LS_REACH_SLOT,    /* in the slot */
    LS_REACH_HEAP,    /* at: distance from the start of the heaps */
    LS_REACH_PROCESS, /* at: address in its process */
    LS_REACH_STAGE    /* its owner puts it on a stage in the heap */
} ls_reach_how;

/* How others can get at memory of seat `local`; `readers` are the seats that must be able to. */
ls_reach_how ls_reach_find(const ls_board *board, int local, const uint16_t *readers, int count,
                           const void *memory, int64_t bytes, uint64_t *at_out);

/* The memory itself, when it can be used as it is (heap, or the same process); NULL: only read. */
void *ls_reach_pointer(const ls_board *board, int local, ls_reach_how how, uint64_t at);

/* Copy bytes of another process. LS_EPEER when it is gone. */
ls_status ls_reach_read(const ls_board *board, int local, uint64_t at, void *to, int64_t bytes);

LS_C_END
