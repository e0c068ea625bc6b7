/* token_shard.h -- tokens in a file: written once, then mapped and only read.
 *
 * A shard (.lst, docs/reference/shards.md) holds the ids of one or more documents, where each
 * document starts, and which tokenizer made them. A marked shard also says for each token whether a
 * model should learn to predict it, and is laid out in windows that no document crosses. Opening
 * checks every length in the header against the file, so a holder of an open shard may ask for any
 * token below `tokens`; contents are checked by ls_token_shard_verify() and, id by id, while
 * reading. A file that shrinks while it is mapped kills the process (SIGBUS): shards are replaced
 * by rename, never changed in place. Reading is thread-safe, writing is not. */
#pragma once
#include "base/file.h"
#include "data/tokenizer/tokenizer.h"

LS_C_BEGIN

enum {
    LS_TOKEN_SHARD_HEADER = 512,
    LS_TOKEN_SHARD_VERSION = 1, /* plain tokens */
    LS_TOKEN_SHARD_MARKED = 2,  /* with marks: which tokens are targets */
    LS_TOKEN_SHARD_TOKENIZER = 64,
    LS_TOKEN_SHARD_SOURCE = 256
};

typedef struct ls_token_shard {
    ls_file_map map; /* owned; empty for a view */
    char *path;      /* owned */
    int version;     /* LS_TOKEN_SHARD_VERSION or LS_TOKEN_SHARD_MARKED */
    int width;       /* bytes of a token: 1, 2 or 4 */
    int32_t vocab, separator;
    int64_t tokens, documents;
    ls_hash tokenizer_hash;
    ls_hash source_hash;              /* of the text, document after document */
    ls_hash key;                      /* of the inputs and settings; 0 unless it is a cache */
    ls_hash tokens_hash, starts_hash; /* of the bytes in this file */
    char tokenizer[LS_TOKEN_SHARD_TOKENIZER]; /* name, ends in '\0' */
    char source[LS_TOKEN_SHARD_SOURCE];       /* what it was made of, ends in '\0' */
    const unsigned char *token_bytes;         /* in the mapping */
    const unsigned char *start_bytes;         /* in the mapping; 8 bytes each, little endian */
    const unsigned char *mark_bytes;          /* in the mapping; NULL: every token is a target */
    int64_t window;     /* tokens of a window, which tokens is a multiple of; or 0 */
    int64_t marked;     /* tokens that are targets; all of them without marks */
    ls_hash marks_hash; /* of the marks' bytes */
} ls_token_shard;

/* Map path and check its header. LS_EIO: cannot be read. LS_EDATA: not a shard, of another version,
 * truncated or damaged; the message names the offence. */
ls_status ls_token_shard_open(ls_token_shard *shard, const char *path);
/* The same for bytes in memory, borrowed until close; name stands in messages. */
ls_status ls_token_shard_view(ls_token_shard *shard, const void *bytes, size_t len,
                              const char *name);
/* Safe on a half-opened or already closed shard. */
void ls_token_shard_close(ls_token_shard *shard);

/* Read everything: hashes, every id below vocab, document starts rising, no document in two windows
 * of a marked shard. LS_EDATA otherwise. */
ls_status ls_token_shard_verify(const ls_token_shard *shard);

/* LS_EDATA unless tok made this shard; both are named. */
ls_status ls_token_shard_check_tokenizer(const ls_token_shard *shard, const ls_tokenizer *tok);

/* n ids from token number first on; first + n may not pass the end. LS_EDATA: an id >= vocab. */
ls_status ls_token_shard_read(const ls_token_shard *shard, int64_t first, int64_t n,
                              int32_t *ids_out);

/* Whether token number i is a target: a model is to predict it. Always true without marks. */
static inline bool ls_token_shard_is_target(const ls_token_shard *shard, int64_t i)
{
    return !shard->mark_bytes || (shard->mark_bytes[i / 8] >> (i % 8) & 1);
}

/* Where document number i starts; 0 <= i < documents. Not trusted to rise until verified, but never
 * outside 0 .. tokens. */
int64_t ls_token_shard_start(const ls_token_shard *shard, int64_t i);

/* The number of the document that holds a token. */
int64_t ls_token_shard_document_at(const ls_token_shard *shard, int64_t token);

/* --- writing ----------------------------------------------------------------------------------
 * Tokens stream through a buffer into a file without a name (or a temporary one where the file
 * system cannot do that); finish syncs it, then renames it into place. Before that nothing appears
 * under path, and a failed or abandoned writer leaves nothing. */
typedef struct ls_token_shard_writer ls_token_shard_writer;

typedef struct ls_token_shard_args {
    const char *path;
    const ls_tokenizer *tok; /* borrowed until finish or abandon */
    const char *source;      /* name of what it is made of; cut to fit */
    ls_hash key;             /* see ls_token_shard.key */
    int width;               /* 0: the smallest that holds the vocabulary */
    /* Above 0: a marked shard of windows of this many tokens. No separators are added, documents
     * may not cross a window, and at the end the tokens must fill their windows. */
    int64_t window;
} ls_token_shard_args;

/* LS_EDATA: the tokenizer has no token to put between documents. */
ls_status ls_token_shard_create(ls_token_shard_writer **writer_out,
                                const ls_token_shard_args *args);

/* A new document begins with the next append; the separator is put between it and the last one.
 * A document without tokens leaves no trace. */
void ls_token_shard_begin_document(ls_token_shard_writer *writer);

/* ids of the current document. */
ls_status ls_token_shard_append(ls_token_shard_writer *writer, const int32_t *ids, int64_t n);

/* The same with marks: ids[i] is a target where marks[i] is not 0. Marked shards only. */
ls_status ls_token_shard_append_marked(ls_token_shard_writer *writer, const int32_t *ids,
                                       const unsigned char *marks, int64_t n);

/* Marked shards: fill the rest of the window, if one has begun, with separators that are no targets,
 * a document of their own. */
ls_status ls_token_shard_fill_window(ls_token_shard_writer *writer);

/* Add the text that the ids came from to the source's hash. */
void ls_token_shard_note_text(ls_token_shard_writer *writer, const void *bytes, size_t len);

int64_t ls_token_shard_written_tokens(const ls_token_shard_writer *writer);

/* Make the shard appear under its path. The writer is gone afterwards, even on failure. */
ls_status ls_token_shard_finish(ls_token_shard_writer *writer);
/* Give up: nothing remains. NULL is allowed. */
void ls_token_shard_abandon(ls_token_shard_writer *writer);

LS_C_END
