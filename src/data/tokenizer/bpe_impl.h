/* bpe_impl.h -- the tables of a BPE model; for the data room only. */
#pragma once
#include "data/tokenizer/bpe.h"

#define LS_BPE_NO_RANK UINT32_MAX

/* A merge in an open-addressing table; the pair is left << 32 | right, all ones where empty. */
typedef struct ls_bpe_merge {
    uint64_t pair;
    uint32_t rank;
    int32_t id;
} ls_bpe_merge;

struct ls_bpe {
    ls_bpe_args args;
    unsigned char *text;  /* of all tokens, owned */
    int64_t text_used;    /* bytes */
    int64_t *at;          /* [ids] where a token's text begins, -1: a hole; owned */
    uint32_t *len;        /* [ids], owned */
    int32_t *slots;       /* [n_slots] id by text, -1: empty; owned */
    uint64_t n_slots;     /* power of two */
    ls_bpe_merge *merges; /* [n_merges], owned */
    uint64_t n_merges;    /* places, power of two */
    uint32_t next_rank;
    int32_t unk;           /* -1: none */
    int32_t byte_ids[256]; /* by_byte: of each byte; else of each ASCII character; -1: none */
    int32_t fallback[256]; /* of <0x00> .. <0xFF>, -1: none */
};

static inline uint64_t ls_bpe_mix(uint64_t x)
{
    x *= UINT64_C(0x9E3779B97F4A7C15);
    return x ^ x >> 32;
}

/* The merge of two ids, NULL: none. */
static inline const ls_bpe_merge *ls_bpe_merge_of(const ls_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t i = ls_bpe_mix(pair) & (bpe->n_merges - 1);

    while (bpe->merges[i].pair != pair) {
        if (bpe->merges[i].pair == UINT64_MAX)
            return NULL;
        i = (i + 1) & (bpe->n_merges - 1);
    }
    return &bpe->merges[i];
}

/* Merge n symbols in place until nothing can be merged; returns how many are left. */
size_t ls_bpe_merge_few(const ls_bpe *bpe, int32_t *ids, size_t n);
enum { LS_BPE_FEW = 64 }; /* more go through ls_bpe_merge_many() */

/* A pair that may be merged, in a heap by rank, then place. */
typedef struct ls_bpe_candidate {
    uint64_t order; /* rank << 32 | place of its left symbol */
} ls_bpe_candidate;

/* Room for many symbols, reused from piece to piece. */
typedef struct ls_bpe_many {
    int32_t *ids, *before, *after; /* [cap]; owned */
    ls_bpe_candidate *heap;        /* [2 * cap], owned */
    size_t cap;
} ls_bpe_many;

ls_status ls_bpe_many_reserve(ls_bpe_many *many, size_t n);
void ls_bpe_many_release(ls_bpe_many *many);
/* The n symbols in many->ids, merged in place; returns how many are left. */
size_t ls_bpe_merge_many(const ls_bpe *bpe, ls_bpe_many *many, size_t n);
