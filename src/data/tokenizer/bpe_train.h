/* bpe_train.h -- training a byte-level BPE vocabulary on text.
 *
 * Text is cut into words by a pattern (data/tokenizer/pretokenizer.h), equal words are counted once, and
 * the pair of neighbouring tokens that occurs most often becomes a new token, again and again. The
 * rule is the one of the `tokenizers` package, so both give the same merges for the same words:
 * most frequent pair first; of equally frequent ones that with the smaller left id, then the
 * smaller right id, where the 256 bytes have the ids of GPT-2's table and new tokens follow in the
 * order they are made. The result does not depend on the order of the files, unless rare words had
 * to be dropped.
 *
 * Ids in the files that are written: 256 bytes, new tokens, special tokens last. */
#pragma once
#include "config/run.h"
#include "base/str.h"

LS_C_BEGIN

typedef struct ls_bpe_train ls_bpe_train;

typedef struct ls_bpe_train_args {
    const char *const *files; /* as data/corpus/source.h names them */
    int n_files;
    const char *field;           /* of a JSON line; NULL: "text" */
    ls_utf8_policy utf8;         /* strict or replace */
    const char *pattern;         /* a name or a regular expression; NULL: LS_PRETOKENIZER_GPT2 */
    const char *const *specials; /* distinct; their text is cut out before words are counted */
    int n_specials;              /* 0 is allowed: a tokenizer without special tokens */
    int32_t vocab;               /* tokens in all: bytes, new ones, special ones */
    int64_t min_count;           /* a pair must occur so often; less than 1 means 1 */
    int64_t word_bytes; /* distinct words kept, in bytes; 0: LS_BPE_TRAIN_WORDS. When more come,
                         * the rarest are dropped, see dropped_words */
    /* Bytes counted, then tokens made (of the number asked for); NULL: none. */
    void (*progress)(void *context, const char *doing, int64_t done, int64_t all);
    void *context;
} ls_bpe_train_args;

/* About 30 bytes of memory are needed for each of these. */
#define LS_BPE_TRAIN_WORDS (64 * LS_MIB)

typedef struct ls_bpe_train_stats {
    int32_t vocab;  /* tokens in all; fewer than asked for when no pair was frequent enough */
    int32_t merges; /* tokens that are neither bytes nor special */
    int64_t bytes;  /* of text, special tokens not counted */
    int64_t tokens; /* the same text in tokens of the new vocabulary */
    int64_t words;  /* distinct words that were trained on */
    int64_t dropped_words; /* words dropped for memory, counted each time they were dropped */
} ls_bpe_train_stats;

/* Read the files and train. LS_EUSAGE: arguments that cannot be meant (vocabulary smaller than
 * bytes and special tokens). LS_EDATA: the files have no text, or are damaged. */
ls_status ls_bpe_train_create(ls_bpe_train **out, const ls_bpe_train_args *args);
void ls_bpe_train_free(ls_bpe_train *train); /* NULL is allowed */

ls_bpe_train_stats ls_bpe_train_count(const ls_bpe_train *train);
/* Append the i-th merge as tokenizer.json has it, such as "Ġ t". */
ls_status ls_bpe_train_merge(const ls_bpe_train *train, int32_t i, ls_str *out);

/* LS_EUSAGE unless folder is free: does not exist, or is empty. */
ls_status ls_bpe_train_check_folder(const char *folder);
/* Write tokenizer.json and tokenizer_config.json; the folder appears with both or not at all. */
ls_status ls_bpe_train_write(const ls_bpe_train *train, const char *folder);
/* The same files for the tokenizer "bytes", in a folder that exists: 256 tokens, id = byte. */
ls_status ls_bpe_train_write_bytes(const char *folder);

LS_C_END
