/* tokenizer.h -- text to token ids and back.
 *
 * A tokenizer is opened by name and is read-only afterwards, so threads may share it. Its hash
 * names what it does (kind, vocabulary, rules), and goes into every shard: tokens made by one
 * tokenizer are never read with another. "bytes" is the one kind so far: id = byte, 256 of them,
 * any text. */
#pragma once
#include "base/hash.h"
#include "base/str.h"

LS_C_BEGIN

typedef struct ls_tokenizer ls_tokenizer;

/* Ids in a growing array. Clearing keeps the capacity. */
typedef struct ls_tokens {
    int32_t *ids; /* owned */
    int64_t count, cap;
} ls_tokens;

void ls_tokens_init(ls_tokens *tokens);
void ls_tokens_release(ls_tokens *tokens); /* leaves it empty and usable */
void ls_tokens_clear(ls_tokens *tokens);
/* Room for more ids after those that are there. */
ls_status ls_tokens_reserve(ls_tokens *tokens, int64_t more);

/* LS_EUSAGE: no tokenizer of that name. */
ls_status ls_tokenizer_open(ls_tokenizer **out, const char *name);
void ls_tokenizer_free(ls_tokenizer *tok); /* NULL is allowed */

const char *ls_tokenizer_name(const ls_tokenizer *tok);
int32_t ls_tokenizer_vocab(const ls_tokenizer *tok); /* ids are 0 .. vocab-1 */
ls_hash ls_tokenizer_hash(const ls_tokenizer *tok);
int32_t ls_tokenizer_separator(const ls_tokenizer *tok); /* the id put between documents */

/* Append the ids of len bytes. */
ls_status ls_tokenizer_encode(const ls_tokenizer *tok, const void *bytes, size_t len,
                              ls_tokens *out);

/* Append exactly the bytes that the ids stand for, whether they are UTF-8 or not.
 * LS_EDATA: an id outside the vocabulary, named with its place. */
ls_status ls_tokenizer_decode(const ls_tokenizer *tok, const int32_t *ids, int64_t n, ls_str *out);

/* Decoding one id at a time for people to read: only whole characters come out, so a terminal or a
 * JSON stream never sees half of one. Bytes that cannot become UTF-8 come out as U+FFFD. Holds no
 * resources. */
typedef struct ls_tokenizer_stream {
    const ls_tokenizer *tok; /* borrowed until the stream ends */
    unsigned char held[4];   /* the beginning of a character */
    int n_held;
} ls_tokenizer_stream;

void ls_tokenizer_stream_begin(ls_tokenizer_stream *stream, const ls_tokenizer *tok);
/* Append what id completes; nothing when it only begins a character. */
ls_status ls_tokenizer_stream_feed(ls_tokenizer_stream *stream, int32_t id, ls_str *out);
/* A character still open becomes U+FFFD. The stream may be used again. */
ls_status ls_tokenizer_stream_end(ls_tokenizer_stream *stream, ls_str *out);

LS_C_END
