/* disk_cache.h -- small facts that took time to find out, kept on disk for the next process.
 *
 * A cache is a file in the user's cache folder, named by what its facts depend on (versions, the
 * machine). It holds records of a key and a value, both plain bytes, and only grows; of two records
 * with one key the first counts, so that all processes agree. Losing it costs time, never a
 * result: nothing here fails, and a damaged file is begun anew. Processes may add at once. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

enum {
    LS_DISK_CACHE_KEY = 512,
    LS_DISK_CACHE_VALUE = 512,
    LS_DISK_CACHE_BYTES = 4 << 20
}; /* most of each */

/* $XDG_CACHE_HOME/lineshaft/memo/HASH-OF-ABOUT, or under ~/.cache; "" when there is no home. The
 * folder keeps its old name, so that what it holds is still found. */
void ls_disk_cache_path(const char *about, char path_out[4096]);

/* The value of a key, of exactly value_bytes; false: there is none. */
bool ls_disk_cache_find(const char *about, const void *key, size_t key_bytes, void *value_out,
                        size_t value_bytes);

/* Keep it, where a file can be kept. */
void ls_disk_cache_add(const char *about, const void *key, size_t key_bytes, const void *value,
                       size_t value_bytes);

LS_C_END
