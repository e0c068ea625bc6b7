/* reader_impl.h -- a file as a stream of bytes, uncompressed on the way; for the data room only.
 *
 * The name decides: .gz and .zst are inflated, everything else is read as it is. Several gzip
 * members or zstd frames in a row are one stream. */
#pragma once
#include "base/err.h"

typedef struct ls_reader ls_reader;

/* LS_EIO: cannot be opened, or is a folder. */
ls_status ls_reader_open(ls_reader **reader_out, const char *path);
void ls_reader_close(ls_reader *reader); /* NULL is allowed */

/* Up to cap bytes; *n_out is 0 at the end only. LS_EDATA: compressed data that is damaged or cut
 * off. */
ls_status ls_reader_read(ls_reader *reader, void *bytes, size_t cap, size_t *n_out);

/* Whether path ends in suffix, with case ignored. */
bool ls_reader_ends_in(const char *path, const char *suffix);
