/* reach.c -- pointers into the heap, reads of other processes. */
#include "comm/node/reach.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>
#include "comm/node/board_impl.h"

ls_reach_how ls_reach_find(const ls_board *board, int local, const uint16_t *readers, int count,
                           const void *memory, int64_t bytes, uint64_t *at_out)
{
    if (ls_board_in_heap(board, memory, bytes)) {
        *at_out = (uint64_t)((const char *)memory - board->heap);
        return LS_REACH_HEAP;
    }
    *at_out = (uint64_t)(uintptr_t)memory;
    for (int i = 0; i < count; i++)
        if (ls_board_set_has(board->seat[readers[i]].unread, local))
            return LS_REACH_STAGE;
    return LS_REACH_PROCESS;
}

void *ls_reach_pointer(const ls_board *board, int local, ls_reach_how how, uint64_t at)
{
    if (how == LS_REACH_HEAP)
        return board->heap + at;
    if (how == LS_REACH_PROCESS && board->seat[local].pid == getpid())
        return (void *)(uintptr_t)at;
    return NULL;
}

ls_status ls_reach_read(const ls_board *board, int local, uint64_t at, void *to, int64_t bytes)
{
    char name[LS_BOARD_NAME];
    char *here = to;

    while (bytes > 0) {
        struct iovec mine = {here, (size_t)bytes};
        struct iovec theirs = {(void *)(uintptr_t)at, (size_t)bytes};
        ssize_t n = process_vm_readv(board->seat[local].pid, &mine, 1, &theirs, 1, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ls_fail_sys(LS_EPEER, "cannot read the memory of %s",
                               ls_board_name(board, local, name));
        here += n;
        at += (uint64_t)n;
        bytes -= n;
    }
    return LS_OK;
}
