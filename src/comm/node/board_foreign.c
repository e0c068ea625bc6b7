/* board_foreign.c -- whose memory it is that a process has mapped.
 *
 * All ranks of a node map the whole board, and read each other's memory there. A page that was read
 * counts as resident in the process that read it, though another rank has it: who adds up the
 * resident memory of ranks counts it twice. The mapping as a whole is counted by the kernel
 * (smaps); of this the pages of the own blocks, and those that belong to nobody (seats, groups),
 * are found one by one (pagemap). Where a system shows neither, nothing is counted. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include "comm/node/board_impl.h"

/* Resident bytes of mappings that begin in the board. */
static int64_t mapped_bytes(const ls_board *board)
{
    const uintptr_t first = (uintptr_t)board->base;
    const uintptr_t end = first + (uintptr_t)board->head->bytes;
    unsigned long from, to;
    long long kib, sum = 0;
    bool inside = false;
    char line[512];
    FILE *f = fopen("/proc/self/smaps", "re");

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from >= first && from < end;
        else if (inside && sscanf(line, "Rss: %lld", &kib) == 1)
            sum += kib;
    if (f)
        fclose(f);
    return sum * LS_KIB;
}

/* Of these, what lies in a range of the file. */
static int64_t present_bytes(const ls_board *board, int pagemap, int64_t at, int64_t bytes)
{
    uint64_t pages[512];
    int64_t first = (int64_t)((uintptr_t)board->base / LS_BOARD_PAGE) + at / LS_BOARD_PAGE;
    int64_t left = (bytes + LS_BOARD_PAGE - 1) / LS_BOARD_PAGE, present = 0;

    while (left > 0) {
        size_t n = (size_t)ls_min_i64(left, (int64_t)LS_COUNT(pages));
        if (pread(pagemap, pages, n * sizeof *pages, (off_t)(first * (int64_t)sizeof *pages)) !=
            (ssize_t)(n * sizeof *pages))
            return bytes;
        for (size_t i = 0; i < n; i++)
            present += (int64_t)(pages[i] >> 63);
        first += (int64_t)n;
        left -= (int64_t)n;
    }
    return present * LS_BOARD_PAGE;
}

int64_t ls_board_foreign_bytes(ls_board *board, int local)
{
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    int64_t bytes = pagemap >= 0 ? mapped_bytes(board) : 0;

    if (pagemap < 0)
        return 0;
    bytes -= present_bytes(board, pagemap, 0, board->head->heap_at);
    pthread_mutex_lock(&board->lock);
    for (int i = 0; i < board->heaps[local].blocks; i++) {
        const ls_board_block *own = &board->heaps[local].block[i];
        bytes -= present_bytes(board, pagemap, own->at, own->bytes);
    }
    pthread_mutex_unlock(&board->lock);
    close(pagemap);
    return ls_max_i64(0, bytes);
}
