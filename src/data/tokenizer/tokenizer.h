/* tokenizer.h -- text to token ids and back.
 *
 * A tokenizer is opened by name and is read-only afterwards, so threads may share it. Its hash
 * names what it does (kind, vocabulary, rules), and goes into every shard: tokens made by one
 * tokenizer are never read with another. "bytes": id = byte, 256 of them, any text. Any other name
 * is a folder with a tokenizer.json (or that file), as Hugging Face models have. */
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

/* LS_EUSAGE: no tokenizer of that name. LS_EDATA: its files are not what they should be. */
ls_status ls_tokenizer_open(ls_tokenizer **out, const char *name);
void ls_tokenizer_free(ls_tokenizer *tok); /* NULL is allowed */

const char *ls_tokenizer_name(const ls_tokenizer *tok);
int32_t ls_tokenizer_vocab(const ls_tokenizer *tok); /* ids are 0 .. vocab-1 */
ls_hash ls_tokenizer_hash(const ls_tokenizer *tok);
int32_t ls_tokenizer_separator(
    const ls_tokenizer *tok); /* the id put between documents; -1: there is none */
/* The token that a text begins with, the one that a model ends with, the one that fills up rows of a
 * batch; -1: none. */
int32_t ls_tokenizer_bos(const ls_tokenizer *tok);
int32_t ls_tokenizer_eos(const ls_tokenizer *tok);
int32_t ls_tokenizer_pad(const ls_tokenizer *tok);
/* The id of a token by its text ("<|im_end|>"), added tokens included; -1: none. */
int32_t ls_tokenizer_find(const ls_tokenizer *tok, const char *token);
/* Whether an id is a special token: control, not text. */
bool ls_tokenizer_is_special(const ls_tokenizer *tok, int32_t id);
/* The chat template that came with the tokenizer (Jinja), or NULL. */
const char *ls_tokenizer_chat_template(const ls_tokenizer *tok);

/* What encoding does beyond plain text. */
enum {
    LS_ENCODE_SPECIAL = 1,  /* special tokens written in the text become their ids */
    LS_ENCODE_TEMPLATE = 2, /* add what the tokenizer adds to a whole text, such as <s> in front */
    LS_ENCODE_CONTINUE = 4  /* the text goes on after a place that ls_tokenizer_cut() gave */
};

/* Append the ids of len bytes. */
ls_status ls_tokenizer_encode(const ls_tokenizer *tok, const void *bytes, size_t len, unsigned how,
                              ls_tokens *out);

/* How many of the len bytes, from the start, can be encoded on their own when more text follows,
 * with the same ids as in one piece, the rest with LS_ENCODE_CONTINUE. 0: none, more text must be
 * seen first. Some tokenizers can never be cut; a caller then encodes up to LS_TOKENIZER_WHOLE
 * bytes in one go and refuses more. */
#define LS_TOKENIZER_WHOLE (64 * LS_MIB)
size_t ls_tokenizer_cut(const ls_tokenizer *tok, const void *bytes, size_t len);

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
    bool begun; /* a token has been fed */
    int strip;  /* this many bytes may still be left out at the beginning */
} ls_tokenizer_stream;

void ls_tokenizer_stream_begin(ls_tokenizer_stream *stream, const ls_tokenizer *tok);
/* Append what id completes; nothing when it only begins a character. */
ls_status ls_tokenizer_stream_feed(ls_tokenizer_stream *stream, int32_t id, ls_str *out);
/* A character still open becomes U+FFFD. The stream may be used again. */
ls_status ls_tokenizer_stream_end(ls_tokenizer_stream *stream, ls_str *out);

LS_C_END
