/* spill.h -- a long array in a file, of which only the pieces in use are in memory.
 *
 * The file is mapped, so that code that works through the array piece by piece keeps plain indices,
 * and gives each piece back when done: its pages go to the file and are read again when they are
 * touched. All room in the file system is taken when opening, and the file has no name: it is gone
 * with the process. Not thread-safe. A disk that fails later kills the process (SIGBUS). */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_spill {
    char *base;    /* NULL: closed; zeros at first */
    int64_t bytes; /* whole pages */
} ls_spill;

/* An array of `bytes` in a file in folder dir. LS_EIO: the folder cannot be written, or has no
 * room; the message says how much there is. */
ls_status ls_spill_open(ls_spill *spill, const char *dir, int64_t bytes, const char *what);
void ls_spill_close(ls_spill *spill); /* a closed one is allowed */

/* Bytes first .. first+count-1 will be used soon; are not used for now. */
void ls_spill_fetch(const ls_spill *spill, int64_t first, int64_t count);
void ls_spill_drop(const ls_spill *spill, int64_t first, int64_t count);

/* The same for bytes anywhere in one. */
void ls_spill_give_back(const void *bytes, int64_t count);

LS_C_END
