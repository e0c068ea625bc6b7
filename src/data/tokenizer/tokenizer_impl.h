/* tokenizer_impl.h -- what a kind of tokenizer supplies; for the data room only. */
#pragma once
#include "data/tokenizer/tokenizer.h"

typedef struct ls_tokenizer_kind {
    /* Whether a name in a run file means this kind. */
    bool (*claims)(const char *name);
    /* Fill name, vocab, separator, hash and state; the caller calls close when it fails. */
    ls_status (*open)(ls_tokenizer *tok, const char *name);
    void (*close)(ls_tokenizer *tok); /* release state, half-built too; NULL: nothing to do */
    ls_status (*encode)(const ls_tokenizer *tok, const unsigned char *bytes, size_t len,
                        unsigned how, ls_tokens *out);
    /* See ls_tokenizer_cut(); NULL: everywhere. */
    size_t (*cut)(const ls_tokenizer *tok, const unsigned char *bytes, size_t len);
    int32_t (*find)(const ls_tokenizer *tok, const char *token); /* NULL: none */
    bool (*is_special)(const ls_tokenizer *tok, int32_t id);     /* NULL: none */
    /* The bytes of a valid id, borrowed from the tokenizer. first: it is the first of a text. */
    const unsigned char *(*piece)(const ls_tokenizer *tok, int32_t id, bool first, size_t *len_out);
} ls_tokenizer_kind;

struct ls_tokenizer {
    const ls_tokenizer_kind *kind;
    char name[64];
    int32_t vocab, separator, bos, eos, pad; /* bos, eos, pad: -1 when there is none */
    const char *chat_template;               /* in state, or NULL */
    int strip;                               /* this many times strip_byte is left out ... */
    unsigned char strip_byte;                /* ... at the beginning of a decoded text */
    bool join_blank;                         /* a blank stands between decoded tokens */
    ls_hash hash;
    void *state; /* the kind's own, owned */
};

extern const ls_tokenizer_kind ls_tokenizer_bytes, ls_tokenizer_json;
