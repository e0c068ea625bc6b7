/* window.h -- a long array of which only some pages have memory.
 *
 * Addresses are taken for all of it; a page is backed when it is first written, and given back when
 * it is dropped: then it reads as zeros again. So code that works through a long array piece by
 * piece can keep plain indices and hold only the pieces in use. Host memory only; not
 * thread-safe. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum { LS_WINDOW_PAGE = 4096 };

typedef struct ls_window {
    char *base;    /* NULL: closed */
    int64_t bytes; /* whole pages */
} ls_window;

/* Take addresses for `bytes`. LS_ENOMEM says for what. */
ls_status ls_window_open(ls_window *window, int64_t bytes, const char *what);
void ls_window_close(ls_window *window); /* a closed one is allowed */

/* Give back the pages that lie in bytes first .. first+count-1 of it. */
void ls_window_drop(ls_window *window, int64_t first, int64_t count);

/* Bytes that are backed now, as the kernel counts them. */
int64_t ls_window_held(const ls_window *window);

LS_C_END
