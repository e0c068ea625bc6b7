/* safetensors.h -- the safetensors file format: tensors in a file, with a JSON header in front.
 *
 *   8 bytes   length N of the header, little endian, at most 100,000,000
 *   N bytes   JSON object: name -> {"dtype", "shape", "data_offsets": [begin, end]}, and perhaps
 *             "__metadata__": {string: string}; spaces may follow
 *   the rest  the tensors, row major, little endian, without holes, overlaps or trailing bytes
 *
 * The reader trusts nothing: a file that it accepts has consistent lengths everywhere, so a caller
 * may use every offset in it. Nothing is executed and nothing is allocated beyond the size of the
 * header. Not thread-safe while it is being read in; afterwards read-only. */
#pragma once
#include "base/arena.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/str.h"

LS_C_BEGIN

enum {
    LS_SAFETENSORS_RANK = 8,                 /* more dimensions than this are refused */
    LS_SAFETENSORS_HEADER_LIMIT = 100000000, /* bytes of JSON */
};

/* One row per element type of the format. */
typedef struct ls_safetensors_dtype {
    const char *name; /* "F32" */
    int bits;         /* of one element; F4 and F6 are not whole bytes */
    int type;         /* ls_dtype, or -1 where lineshaft has no such type */
} ls_safetensors_dtype;

typedef struct ls_safetensors_entry {
    const char *name; /* in the file's arena */
    const ls_safetensors_dtype *dtype;
    int ndim;
    int64_t shape[LS_SAFETENSORS_RANK];
    int64_t begin, end; /* bytes from the start of the file */
} ls_safetensors_entry;

typedef struct ls_safetensors {
    ls_arena arena;
    ls_safetensors_entry *entries; /* sorted by name; in the arena */
    int count;
    int64_t data_begin; /* where the tensors start in the file */
    const void *bytes;  /* whole file; borrowed (parse) or mapped (open), NULL for a header */
    ls_file_map map;    /* owned, only after open */
} ls_safetensors;

/* Read a whole file that lies in memory; bytes are borrowed until close. name is for messages.
 * LS_EDATA: not a valid file; the message says what is wrong. LS_ENOMEM. */
ls_status ls_safetensors_parse(ls_safetensors *file, const void *bytes, size_t len,
                               const char *name);

/* The same from the file's first bytes only: have of them are in memory, the file has file_bytes.
 * Entries can be looked up, their bytes are the caller's to fetch. */
ls_status ls_safetensors_parse_header(ls_safetensors *file, const void *bytes, size_t have,
                                      int64_t file_bytes, const char *name);

/* Bytes before the first tensor (the length field and the header), from the first 8 bytes.
 * LS_EDATA when the length cannot be true. */
ls_status ls_safetensors_head_bytes(const void *first8, int64_t file_bytes, const char *name,
                                    int64_t *bytes_out);

/* Map a file and read its header. LS_EIO: cannot be read. */
ls_status ls_safetensors_open(ls_safetensors *file, const char *path);

/* Release what the file holds. Safe on a half-opened or already closed file. */
void ls_safetensors_close(ls_safetensors *file);

/* The tensor of that name, or NULL. */
const ls_safetensors_entry *ls_safetensors_find(const ls_safetensors *file, const char *name);

/* The row of a name ("BF16"), NULL when unknown; the name of a type of ours. */
const ls_safetensors_dtype *ls_safetensors_dtype_find(const char *name);
const char *ls_safetensors_dtype_name(ls_dtype type);

/* A tensor to be written. */
typedef struct ls_safetensors_item {
    const char *name; /* unique in the file, valid UTF-8, not "__metadata__" */
    ls_dtype type;
    int ndim;
    int64_t shape[LS_SAFETENSORS_RANK];
    const void *bytes;  /* borrowed; not read here */
    const void *of;     /* the caller's own; not used here */
    int64_t begin, end; /* set by ls_safetensors_layout(): bytes from the start of the file */
} ls_safetensors_item;

/* Bring items into file order (widest elements first, then by name), set where each begins and
 * ends, and append everything that goes before the first tensor to head_out: the length and the
 * header, padded to a multiple of 8, with the metadata {"format": "pt"} that other readers ask for.
 * The file is head_out followed by the items' bytes in their new order. */
ls_status ls_safetensors_layout(ls_safetensors_item *items, int count, ls_str *head_out);

/* A file being written piece by piece, for tensors that are not in memory all at once or not in the
 * stored type. The file has its name from the start; a caller that needs it whole or not at all
 * writes it into a folder that is renamed afterwards. */
typedef struct ls_safetensors_writer {
    int fd;           /* -1: closed */
    const char *path; /* borrowed until close */
    int64_t at, end;  /* bytes written, and in all */
} ls_safetensors_writer;

/* Lay the items out (see above), reserve the file's space and write everything that goes before the
 * first tensor. LS_EIO: no space, or the system refused. */
ls_status ls_safetensors_create(ls_safetensors_writer *writer, const char *path,
                                ls_safetensors_item *items, int count);
/* The next bytes, in the order that the items now have. */
ls_status ls_safetensors_put(ls_safetensors_writer *writer, const void *bytes, int64_t len);
/* Make it durable and close it; everything must have been put. */
ls_status ls_safetensors_finish(ls_safetensors_writer *writer);
/* Close without finishing. Safe on a finished writer. */
void ls_safetensors_abandon(ls_safetensors_writer *writer);

/* Number of elements of a shape, and bytes of a tensor; false when it does not fit in 63 bits or a
 * dimension is negative. */
bool ls_safetensors_elements(const int64_t *shape, int ndim, int64_t *elements_out);

LS_C_END
