/* source.h -- documents out of files.
 *
 * A source is one file, or text that the project makes itself:
 *
 *   *.txt and other names   the whole file is one document
 *   *.jsonl, *.ndjson       one JSON object a line, its text in one field, each line a document
 *   the same with .gz, .zst decompressed while reading
 *   builtin:stories[:SIZE]  simple stories, each a document (data/corpus/synthetic_text.h), 2 MiB
 *                           unless SIZE says otherwise ("builtin:stories:512K")
 *
 * Documents come in pieces, so that a large file needs little memory. Text must be UTF-8 unless the
 * policy says otherwise (data/tokenizer/utf8.h); a byte order mark at the start is dropped. */
#pragma once
#include "data/tokenizer/utf8.h"
#include <jansson.h>

LS_C_BEGIN

#define LS_SOURCE_STORIES "builtin:stories"

typedef struct ls_source ls_source;

typedef struct ls_source_args {
    const char *path;  /* borrowed until close */
    const char *field; /* of a JSON line; NULL: "text"; borrowed until close */
    ls_utf8_policy utf8;
    bool skip_bad; /* warn of a JSON line that cannot be used, and go on */
} ls_source_args;

typedef struct ls_source_piece {
    const char *bytes; /* borrowed until the next call; NULL when the source has ended */
    size_t len;
    bool begins; /* the first piece of a document */
} ls_source_piece;

/* LS_EIO: cannot be read. LS_EUSAGE: a name that cannot be text (a shard, parquet). */
ls_status ls_source_open(ls_source **source_out, const ls_source_args *args);
void ls_source_close(ls_source *source); /* NULL is allowed */

/* The next piece, never empty. A piece of a long document ends after a line where it has one, and
 * never inside a character. LS_EDATA names file and line (or byte offset). */
ls_status ls_source_next(ls_source *source, ls_source_piece *piece_out);

/* The next line's object of a source of JSON lines, borrowed until the next call; NULL when it has
 * ended. Blank lines are passed over. used: the fields that matter, ended by NULL; numbers there that
 * jansson cannot hold are LS_JSON_NUMBER. LS_EUSAGE: the source is not of JSON lines. */
ls_status ls_source_next_object(ls_source *source, const char *const *used,
                                const json_t **object_out);
/* Number of the line that came last, from 1. */
int64_t ls_source_line(const ls_source *source);
/* What to do with the failure of a caller who cannot use that line: LS_OK, after a warning and with
 * the line counted, where bad lines are skipped and st is LS_EDATA; else st. */
ls_status ls_source_skip(ls_source *source, ls_status st);
/* Lines skipped so far. */
int64_t ls_source_skipped(const ls_source *source);

/* What a name stands for, mixed into hash: size and time of change of a file, version and size of
 * built-in text. Changes when the text may have changed. */
ls_status ls_source_identify(const char *path, ls_str *identity_out);

/* "64K", "2M", "1GiB" or a plain number, in bytes; LS_EUSAGE otherwise. */
ls_status ls_source_parse_bytes(const char *text, int64_t *bytes_out);

LS_C_END
