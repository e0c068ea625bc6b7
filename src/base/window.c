/* window.c -- private pages without a reservation. Huge pages are declined: one would back 2 MiB
 * for a write of four bytes, and what is held could not be said beforehand. */
#include "base/window.h"

#include <sys/mman.h>
#include "base/base.h"

ls_status ls_window_open(ls_window *window, int64_t bytes, const char *what)
{
    int64_t all = ls_round_up(ls_max_i64(1, bytes), LS_WINDOW_PAGE);
    void *base = mmap(NULL, (size_t)all, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (base == MAP_FAILED) {
        ls_status st =
            ls_fail_sys(LS_ENOMEM, "no addresses for %s (%lld bytes)", what, (long long)bytes);
        ls_err_hint("Look at the limit of virtual memory (ulimit -v).");
        return st;
    }
    (void)madvise(base, (size_t)all, MADV_NOHUGEPAGE); /* a kernel without them refuses */
    *window = (ls_window){.base = base, .bytes = all};
    return LS_OK;
}

void ls_window_close(ls_window *window)
{
    if (window->base)
        munmap(window->base, (size_t)window->bytes);
    *window = (ls_window){.base = NULL};
}

void ls_window_drop(ls_window *window, int64_t first, int64_t count)
{
    int64_t begin = ls_round_up(first, LS_WINDOW_PAGE);
    int64_t end = ls_min_i64(first + count, window->bytes) / LS_WINDOW_PAGE * LS_WINDOW_PAGE;

    if (begin < end)
        (void)madvise(window->base + begin, (size_t)(end - begin), MADV_DONTNEED);
}

int64_t ls_window_held(const ls_window *window)
{
    enum { PAGES = 4096 };
    unsigned char there[PAGES];
    int64_t held = 0;

    for (int64_t at = 0; at < window->bytes; at += (int64_t)PAGES * LS_WINDOW_PAGE) {
        int64_t n = ls_min_i64((int64_t)PAGES * LS_WINDOW_PAGE, window->bytes - at);
        if (mincore(window->base + at, (size_t)n, there) != 0)
            continue;
        for (int64_t i = 0; i < n / LS_WINDOW_PAGE; i++)
            held += there[i] & 1 ? LS_WINDOW_PAGE : 0;
    }
    return held;
}
