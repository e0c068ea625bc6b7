/* sample_order.h -- which sample when: pure functions, no index, no state.
 *
 * A sample is a window of T tokens (and the token after each) of one source. Position p of a run
 * (p = samples of the steps before + place in the batch) gives source, epoch and window in a few
 * hundred nanoseconds, whatever p is, and the inverse costs the same. So the data cursor of a
 * checkpoint is one integer, any step can be sought, and the order does not depend on ranks or
 * threads.
 *
 * Within each epoch of a source every one of its windows occurs exactly once. Epochs start at a
 * shift of 0 .. T-1 tokens that differs between them, so that windows are cut at other places.
 * Aligned sources (chat data) are not shifted: their windows begin at multiples of T. */
#pragma once
#include "base/err.h"
#include "base/rng.h"

LS_C_BEGIN

enum {
    LS_SAMPLE_ORDER_SOURCES = 256, /* most sources of one run */
    LS_SAMPLE_ORDER_BLOCK = 4096 /* weights are rounded to multiples of 1 / LS_SAMPLE_ORDER_BLOCK */
};

typedef struct ls_sample_order_source {
    int64_t tokens;  /* of the training part */
    int64_t windows; /* of one epoch; the same in each */
    int64_t shifts;  /* an epoch's shift is below this; 1 means always 0 */
    bool aligned;    /* cut into windows by its maker: no shift, no token behind the last one */
    int64_t first;   /* windows of the sources before this one, or quotas of them with weights */
    int64_t quota;   /* positions in each block of LS_SAMPLE_ORDER_BLOCK; 0 without weights */
} ls_sample_order_source;

/* Filled by ls_sample_order_init(), then only read. Plain data: may be copied. */
typedef struct ls_sample_order {
    uint64_t seed;
    int64_t T;
    bool shuffle, weighted;
    int n_sources;
    int64_t windows; /* of all sources in one epoch */
    ls_sample_order_source sources[LS_SAMPLE_ORDER_SOURCES];
    uint16_t plain_source[LS_SAMPLE_ORDER_BLOCK]; /* a block of a mixture that is not shuffled */
    uint16_t plain_rank[LS_SAMPLE_ORDER_BLOCK];
} ls_sample_order;

typedef struct ls_sample_order_args {
    uint64_t seed;
    int64_t T;
    bool shuffle;
    int n_sources;
    const int64_t *tokens; /* training tokens of each source */
    const double *weights; /* one per source, any scale, all above 0; NULL: by size */
    const bool *aligned;   /* see ls_sample_order_source; NULL: none is */
} ls_sample_order_args;

typedef struct ls_sample {
    int source;
    int64_t epoch;  /* of this source */
    int64_t window; /* 0 .. windows-1 */
    int64_t first;  /* its first token, counted from the start of the source */
} ls_sample;

/* LS_EUSAGE: too many sources, or a weight too small to be kept. LS_EDATA: a source with fewer than
 * T + 1 tokens (aligned: T); the message counts from 1. */
ls_status ls_sample_order_init(ls_sample_order *order, const ls_sample_order_args *args);

/* The sample at position >= 0. */
ls_sample ls_sample_order_at(const ls_sample_order *order, int64_t position);

/* The position at which (source, epoch, window) is used: the inverse of ls_sample_order_at(). */
int64_t ls_sample_order_find(const ls_sample_order *order, int source, int64_t epoch,
                             int64_t window);

/* Where the windows of an epoch of a source begin: window w starts at token shift + w * T. */
int64_t ls_sample_order_shift(const ls_sample_order *order, int source, int64_t epoch);

/* A bijection of [0, n) onto itself chosen by key, and its inverse; 1 <= n <= 2^62, 0 <= i < n. */
int64_t ls_sample_order_permute(ls_rng_key key, int64_t n, int64_t i);
int64_t ls_sample_order_unpermute(ls_rng_key key, int64_t n, int64_t i);

/* Number i of used things evenly spread over total, in order; 0 <= i < used <= total. */
int64_t ls_sample_order_spread(int64_t total, int64_t used, int64_t i);

LS_C_END
