/* resident.c -- counts mapped pages in /proc/self/pagemap.
 *
 * That table has a word of 64 bits for each page, at the page's number; the highest one is set
 * where a page is mapped. What is in the page cache, but was not touched here, is not. */
#include "base/resident.h"

#include <fcntl.h>
#include <unistd.h>

enum { PAGE = 4096 };

int64_t ls_resident_bytes(const void *memory, int64_t bytes)
{
    int64_t page = (int64_t)((uintptr_t)memory / PAGE), present = 0;
    int64_t left = (int64_t)(((uintptr_t)memory + (uintptr_t)bytes + PAGE - 1) / PAGE) - page;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    uint64_t words[512];

    if (fd < 0)
        return -1;
    while (left > 0 && present >= 0) {
        size_t n = (size_t)ls_min_i64(left, (int64_t)LS_COUNT(words));
        ssize_t got = pread(fd, words, n * sizeof *words, (off_t)(page * (int64_t)sizeof *words));
        if (got != (ssize_t)(n * sizeof *words))
            present = -1;
        for (size_t i = 0; i < n && present >= 0; i++)
            present += (int64_t)(words[i] >> 63);
        page += (int64_t)n;
        left -= (int64_t)n;
    }
    close(fd);
    return present < 0 ? -1 : present * PAGE;
}
