/* bpe.h -- byte pair encoding inside one piece of text.
 *
 * A model is a vocabulary (id to bytes and back) and a ranked list of merges of two ids into one. A
 * piece begins as its characters (or its bytes), and the adjacent pair with the lowest rank, the
 * leftmost of equals, is merged until no pair is in the list. Read-only once built, so threads may
 * share it; what a thread needs lies in its own ls_bpe_work, which also remembers pieces. */
#pragma once
#include "data/tokenizer/tokenizer.h"

LS_C_BEGIN

typedef struct ls_bpe ls_bpe;
typedef struct ls_bpe_work ls_bpe_work;

typedef struct ls_bpe_args {
    int32_t ids;        /* all ids lie below */
    int64_t text_bytes; /* of all tokens together, at most; for one allocation */
    int64_t merges;     /* at most */
    bool by_byte;       /* a piece begins as bytes, not as characters */
    bool ignore_merges; /* a piece that is a token stays whole */
    bool byte_fallback; /* a character that is no token becomes the tokens <0x00> to <0xFF> */
    bool fuse_unk;      /* unknown characters in a row become one unknown token */
} ls_bpe_args;

ls_status ls_bpe_create(ls_bpe **out, const ls_bpe_args *args);
void ls_bpe_free(ls_bpe *bpe); /* NULL is allowed */

/* Each id at most once; LS_EDATA: the id is taken or outside, or more text than announced. */
ls_status ls_bpe_add_token(ls_bpe *bpe, int32_t id, const void *bytes, size_t len);
/* Merge a pair of ids into one, in order of rank; a pair given twice has its last rank. */
ls_status ls_bpe_add_merge(ls_bpe *bpe, int32_t left, int32_t right, int32_t merged);
/* After the tokens and merges. unk: the id of what is unknown; -1: it is left out. */
ls_status ls_bpe_finish(ls_bpe *bpe, int32_t unk);

/* The id of exactly these bytes, -1: none. */
int32_t ls_bpe_find(const ls_bpe *bpe, const void *bytes, size_t len);
/* Whether some merge joins a token that does not end in `mark` with one that begins with it. */
bool ls_bpe_joins_over(const ls_bpe *bpe, const char *mark);

ls_status ls_bpe_work_open(ls_bpe_work **out, const ls_bpe *bpe);
void ls_bpe_work_free(ls_bpe_work *work); /* NULL is allowed */

/* Append the ids of one piece (valid UTF-8 unless by_byte). The cost grows with n log n at most. */
ls_status ls_bpe_encode(ls_bpe_work *work, const unsigned char *piece, size_t len, ls_tokens *out);

LS_C_END
