/* bpe_train_impl.h -- the three parts of training a BPE; for the data room only.
 *
 * bpe_train_words.c counts words, bpe_train.c makes merges of them, bpe_train_write.c writes the
 * result as files. */
#pragma once
#include "data/tokenizer/bpe_train.h"

enum { LS_BPE_TRAIN_BYTES = 256 };

/* --- words ------------------------------------------------------------------------------------ */

typedef struct ls_bpe_train_word {
    uint64_t at; /* of its first byte in text */
    uint32_t len, hash;
    int64_t count;
} ls_bpe_train_word;

typedef struct ls_bpe_train_words {
    unsigned char *text; /* the words one after another, owned */
    size_t text_len, text_cap;
    ls_bpe_train_word *words; /* owned */
    uint32_t n;
    uint32_t *table; /* open addressing: number of a word + 1, 0 for none; owned */
    uint32_t mask;
    int64_t dropped, bytes;
} ls_bpe_train_words;

/* Count the words of all files. */
ls_status ls_bpe_train_words_count(ls_bpe_train_words *words, const ls_bpe_train_args *args);
void ls_bpe_train_words_release(ls_bpe_train_words *words);

/* --- result ----------------------------------------------------------------------------------- */

typedef struct ls_bpe_train_pair {
    int32_t left, right;
} ls_bpe_train_pair;

typedef struct ls_bpe_train_token {
    uint64_t at; /* of its first byte in bytes */
    int32_t len;
    ls_bpe_train_pair of; /* the tokens it was merged of; not for the 256 bytes */
} ls_bpe_train_token;

struct ls_bpe_train {
    char *pattern;   /* the regular expression; owned */
    bool gpt2;       /* it is the one that ByteLevel has built in */
    bool uncut;      /* a text is not cut into words; without merges that makes no difference */
    char **specials; /* owned */
    int n_specials;
    ls_str bytes;               /* of all tokens, one after another */
    ls_bpe_train_token *tokens; /* 256 bytes, then one for each merge; owned */
    int32_t n_tokens;
    ls_bpe_train_stats stats;
};

/* Append bytes as tokenizer.json writes them: a visible character, below U+0800, for each. */
void ls_bpe_train_spell(ls_str *out, const char *bytes, size_t len);
