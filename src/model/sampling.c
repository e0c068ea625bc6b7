/* sampling.c -- a choice among the logits of a vocabulary, without sorting it.
 *
 * Tokens stand in one order: falling logit, equal ones by number. Every cut (top-k, top-p, min-p)
 * keeps a beginning of this order, and the choice is the token at which the running sum of
 * probabilities reaches a random share of what was kept (Philox, keyed by seed and position). So
 * one question answers all: at which token does the count, or the sum, reach a goal?
 *
 * A vocabulary of 150,000 is too long to sort for each token. Instead one pass counts and sums the
 * probabilities in buckets by logit; the goal is found among the buckets, and only the bucket in
 * which it lies is gathered and sorted. This gives exactly what sorting all would give, because the
 * probabilities are whole numbers, in units of 2^-40 of the most likely token's: their sums do not
 * depend on the order of adding. exp() is our own, of IEEE operations only, so that the choice is
 * the same on every machine.
 *
 *   logits 1 3 2 3 (temperature 1): order 1 3 2 0; weights 2^40 x (1, 1, e^-1, e^-2)
 *   top-p 0.5: sum 2.503, the goal 1.252 is reached at the second: tokens 1 and 3 are kept. */
#include "model/sampling.h"

#include <math.h>
#include "base/rng.h"

enum { BUCKETS = 1024, UNIT_BITS = 40, BLOCK = 128, FEW = 1024 };

typedef struct bucket {
    uint64_t sum;  /* of weights */
    int64_t count; /* of tokens */
} bucket;

/* Everything about one choice. */
typedef struct picker {
    const float *x;
    int64_t V;
    double top;       /* the largest logit */
    double steepness; /* weight = 2^((x - top) steepness) */
    double per_unit;  /* buckets per unit of logit */
    bucket *buckets;  /* scratch, [BUCKETS] */
    uint64_t *keys;   /* scratch, [V] */
    uint16_t *at;     /* scratch, [V] in whole blocks: the bucket of each token */
    float *few;       /* scratch, [FEW]: the logits of the k most likely, in order */
    int32_t *ids;     /* scratch, [FEW]: which tokens these are */
} picker;

/* A place in the order: up to and including which token. */
typedef struct place {
    int64_t count;
    uint64_t sum;
    int32_t token;
} place;

size_t ls_sampling_bytes(int64_t V)
{
    return BUCKETS * sizeof(bucket) + FEW * (sizeof(float) + sizeof(int32_t)) +
           (size_t)V * sizeof(uint64_t) + (size_t)ls_round_up(V, BLOCK) * sizeof(uint16_t);
}

/* --- weights ---------------------------------------------------------------------------------- */

/* Loops over a block have a constant count and no calls, so that compilers make vector instructions
 * of them. */

/* The exponent of a logit's weight: 0 or less; below the last one the weight is nothing. */
static inline double exponent(double x, double top, double steepness)
{
    const double last = -(UNIT_BITS + 2);
    double y = (x - top) * steepness;

    return y < last ? last : y;
}

/* 2^y in units of 2^-UNIT_BITS, rounded to a whole number, for y from exponent(). The fraction's
 * power is a Taylor polynomial (powers of ln 2 over factorials), whose error is below 3e-13: a
 * third of a unit. */
static inline double weight_of(double y)
{
    const double shift = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to a whole number */
    double shifted = y + shift, f = y - (shifted - shift), p, scale;
    uint64_t bits; /* the lowest ones of shifted are the whole number that was split off */

    p = 7.0549116208011233e-09 * f + 1.0178086009239699e-07;
    p = p * f + 1.3215486790144309e-06;
    p = p * f + 1.5252733804059840e-05;
    p = p * f + 0.00015403530393381609;
    p = p * f + 0.0013333558146428443;
    p = p * f + 0.0096181291076284772;
    p = p * f + 0.055504108664821580;
    p = p * f + 0.24022650695910071;
    p = p * f + 0.69314718055994531;
    p = p * f + 1.0;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023 + UNIT_BITS) << 52;
    memcpy(&scale, &bits, sizeof scale);
    return (p * scale + 4503599627370496.0) - 4503599627370496.0; /* 2^52: rounds */
}

static uint64_t weight(const picker *p, float x)
{
    return (uint64_t)weight_of(exponent((double)x, p->top, p->steepness));
}

static inline __attribute__((always_inline)) void
weights_loop(const picker *p, const float *restrict x, double *restrict w)
{
    double top = p->top, steepness = p->steepness;

    for (int k = 0; k < BLOCK; k++)
        w[k] = exponent((double)x[k], top, steepness);
    for (int k = 0; k < BLOCK; k++)
        w[k] = weight_of(w[k]);
}

/* The bucket of each: by the distance from the largest. */
static inline __attribute__((always_inline)) void
buckets_loop(const picker *p, const float *restrict x, uint16_t *restrict at)
{
    double top = p->top, per_unit = p->per_unit;
    int32_t wide[BLOCK];

    for (int k = 0; k < BLOCK; k++) {
        double b = (top - (double)x[k]) * per_unit;
        wide[k] = (int32_t)(b < BUCKETS - 1 ? b : BUCKETS - 1);
    }
    for (int k = 0; k < BLOCK; k++)
        at[k] = (uint16_t)wide[k];
}

/* Weights (unless w is NULL) and buckets of a block. The same operations on longer vectors give the
 * same bits, because nothing is fused. */
static void block_plain(const picker *p, const float *x, double *w, uint16_t *at)
{
    if (w)
        weights_loop(p, x, w);
    buckets_loop(p, x, at);
}

#if defined __x86_64__
__attribute__((target("avx2"))) static void block_avx2(const picker *p, const float *x, double *w,
                                                       uint16_t *at)
{
    if (w)
        weights_loop(p, x, w);
    buckets_loop(p, x, at);
}
#endif

typedef void block_fn(const picker *p, const float *x, double *w, uint16_t *at);

static block_fn *pick_block(void)
{
#if defined __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return block_avx2;
#endif
    return block_plain;
}

/* Block i of the logits; the last one is filled up with what is there. */
static const float *block_at(const picker *p, int64_t i, float rest[BLOCK])
{
    int64_t n = p->V - i;

    if (n >= BLOCK)
        return p->x + i;
    for (int64_t k = 0; k < BLOCK; k++)
        rest[k] = p->x[i + (k < n ? k : 0)];
    return rest;
}

/* The largest and the smallest logit. */
static void measure(const picker *p, float *top_out, float *least_out)
{
    enum { LANES = 16 };
    float most[LANES], least[LANES], rest[BLOCK];

    for (int k = 0; k < LANES; k++)
        most[k] = least[k] = p->x[0];
    for (int64_t i = 0; i < p->V; i += BLOCK) {
        const float *x = block_at(p, i, rest);
        for (int j = 0; j < BLOCK; j += LANES)
            for (int k = 0; k < LANES; k++) {
                most[k] = x[j + k] > most[k] ? x[j + k] : most[k];
                least[k] = x[j + k] < least[k] ? x[j + k] : least[k];
            }
    }
    for (int k = 1; k < LANES; k++) {
        most[0] = most[k] > most[0] ? most[k] : most[0];
        least[0] = least[k] < least[0] ? least[k] : least[0];
    }
    *top_out = most[0];
    *least_out = least[0];
}

/* Weights are not needed where only ranks are asked for. */
static void fill_buckets(picker *p, bool weights)
{
    double w[BLOCK] = {0};
    float rest[BLOCK];
    block_fn *block = pick_block();

    memset(p->buckets, 0, BUCKETS * sizeof *p->buckets);
    for (int64_t i = 0; i < p->V; i += BLOCK) {
        int64_t n = ls_min_i64(BLOCK, p->V - i);
        const uint16_t *at = p->at + i;
        block(p, block_at(p, i, rest), weights ? w : NULL, p->at + i);
        for (int64_t k = 0; k < n; k++) {
            bucket *b = &p->buckets[at[k]];
            b->sum += (uint64_t)(int64_t)w[k];
            b->count++;
        }
    }
}

/* --- the order -------------------------------------------------------------------------------- */

/* A number that is smaller the earlier the token stands. */
static uint64_t key_of(float x, int64_t token)
{
    float plain = x + 0.0f; /* -0 equals 0 */
    uint32_t bits;

    memcpy(&bits, &plain, sizeof bits);
    bits = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu; /* larger floats get smaller numbers */
    return (uint64_t)bits << 32 | (uint64_t)token;
}

static void sift(uint64_t *a, int64_t root, int64_t n)
{
    for (int64_t child = 2 * root + 1; child < n; child = 2 * root + 1) {
        uint64_t t = a[root];
        if (child + 1 < n && a[child] < a[child + 1])
            child++;
        if (t >= a[child])
            return;
        a[root] = a[child];
        a[child] = t;
        root = child;
    }
}

static void sort_keys(uint64_t *a, int64_t n)
{
    for (int64_t i = n / 2 - 1; i >= 0; i--)
        sift(a, i, n);
    for (int64_t end = n - 1; end > 0; end--) {
        uint64_t t = a[0];
        a[0] = a[end];
        a[end] = t;
        sift(a, 0, end);
    }
}

/* Whether a block has a token in buckets a to b: most blocks have none. */
static bool block_has(const uint16_t *at, int a, int b)
{
    uint16_t low = (uint16_t)a, span = (uint16_t)(b - a), hits = 0;

    for (int k = 0; k < BLOCK; k++)
        hits |= (uint16_t)(at[k] - low) <= span;
    return hits != 0;
}

/* The tokens of buckets a to b in order, as keys; their number. */
static int64_t gather(picker *p, int a, int b)
{
    int64_t n = 0;
    bool sorted = true;

    for (int64_t i = 0; i < p->V; i += BLOCK) {
        int64_t in_block = ls_min_i64(BLOCK, p->V - i);
        const uint16_t *at = p->at + i;
        if (!block_has(at, a, b))
            continue;
        for (int64_t k = 0; k < in_block; k++)
            if (at[k] >= a && at[k] <= b) {
                p->keys[n] = key_of(p->x[i + k], i + k);
                sorted = sorted && (n == 0 || p->keys[n - 1] < p->keys[n]);
                n++;
            }
    }
    if (!sorted) /* a model that says nothing has equal logits: one bucket with all, in order */
        sort_keys(p->keys, n);
    return n;
}

/* The first token with which there are `count` tokens, or weights of `sum` together; the last token
 * if that never happens. */
static place reach(picker *p, int64_t count, uint64_t sum)
{
    place at = {.count = 0};
    int b = 0;

    for (; b < BUCKETS; b++) {
        const bucket *k = &p->buckets[b];
        if (at.count + k->count >= ls_min_i64(count, p->V) || at.sum + k->sum >= sum)
            break;
        at.count += k->count;
        at.sum += k->sum;
    }
    int64_t n = gather(p, b, b);
    for (int64_t i = 0; i < n; i++) {
        at.token = (int32_t)(p->keys[i] & 0xffffffffu);
        at.sum += weight(p, p->x[at.token]);
        at.count++;
        if (at.count >= count || at.sum >= sum)
            break;
    }
    return at;
}

/* Go on with the k most likely tokens alone: with a small k nearly all work is saved. */
static void narrow(picker *p, int64_t k)
{
    int64_t count = 0;
    int b = 0;

    fill_buckets(p, false);
    while (count + p->buckets[b].count < k)
        count += p->buckets[b++].count;
    gather(p, 0, b);
    for (int64_t i = 0; i < k; i++) {
        p->ids[i] = (int32_t)(p->keys[i] & 0xffffffffu);
        p->few[i] = p->x[p->ids[i]];
    }
    p->x = p->few;
    p->V = k;
}

/* --- the choice ------------------------------------------------------------------------------- */

/* How many are at least min_p times as likely as the first. */
static int64_t count_likely(const picker *p, double min_p)
{
    double least = p->top + log2(min_p) / p->steepness;
    int64_t n = 0;

    for (int64_t i = 0; i < p->V; i++)
        n += (double)p->x[i] >= least;
    return n;
}

/* What the cuts leave: count and sum. */
static place cut(picker *p, const ls_sampling *s)
{
    place kept = {.count = p->V};

    for (int b = 0; b < BUCKETS; b++)
        kept.sum += p->buckets[b].sum;
    if (s->top_k > 0 && s->top_k < p->V)
        kept = reach(p, s->top_k, UINT64_MAX);
    if (s->top_p < 1) {
        double goal = ceil(s->top_p * (double)kept.sum);
        kept = reach(p, kept.count, goal >= 1 ? (uint64_t)goal : 1);
    }
    if (s->min_p > 0) {
        int64_t likely = count_likely(p, s->min_p);
        if (likely < kept.count)
            kept = reach(p, ls_max_i64(likely, 1), UINT64_MAX);
    }
    return kept;
}

int32_t ls_sampling_choose(const float *logits, void *scratch, int64_t V,
                           const ls_sampling *sampling, uint64_t position)
{
    picker p = {.x = logits, .V = V, .buckets = scratch};
    float top, least;

    measure(&p, &top, &least);
    if (sampling->temperature <= 0 || !isfinite(top)) {
        int32_t first = 0;
        while (logits[first] != top)
            first++;
        return first;
    }
    p.few = (float *)(void *)(p.buckets + BUCKETS);
    p.ids = (int32_t *)(void *)(p.few + FEW);
    p.keys = (uint64_t *)(void *)(p.ids + FEW);
    p.at = (uint16_t *)(void *)(p.keys + V);
    p.top = (double)top;
    p.steepness = fmin(1.4426950408889634 / sampling->temperature, 1e300); /* 1 / ln 2 */
    /* Tokens whose weight rounds to nothing share the last bucket. */
    double range = fmin(p.top - (double)least, (UNIT_BITS + 2) / p.steepness);
    p.per_unit = range > 0 ? BUCKETS / range : 1;
    if (sampling->top_k > 0 && sampling->top_k < ls_min_i64(V, FEW))
        narrow(&p, sampling->top_k);
    fill_buckets(&p, true);
    place kept = cut(&p, sampling);
    ls_rng_block r = ls_rng_philox(ls_rng_derive(sampling->seed, 0x73616d70, 0), (uint32_t)position,
                                   (uint32_t)(position >> 32), 0, 0);
    double share = (double)ls_rng_uniform(r.v[0]);
    int32_t token = reach(&p, kept.count, (uint64_t)(share * (double)kept.sum) + 1).token;
    return p.x == logits ? token : p.ids[token];
}

static bool known(int32_t token, int64_t V)
{
    return token >= 0 && token < V;
}

static void count_all(int32_t *counts, int64_t V, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (known(ids[i], V))
            counts[ids[i]]++;
}

void ls_sampling_penalize(float *logits, int32_t *counts, int64_t V, const int32_t *history,
                          int64_t n, const ls_sampling *sampling)
{
    const ls_sampling *s = sampling;
    float factor = s->repetition > 0 ? (float)s->repetition : 1;
    int64_t answer = ls_min_i64(s->answer, n);

    /* The first place of a token uses its count up: each token is punished once. */
    if (factor != 1) {
        count_all(counts, V, history, n);
        for (int64_t i = 0; i < n; i++) {
            int32_t t = history[i];
            if (!known(t, V) || counts[t] == 0)
                continue;
            logits[t] = logits[t] > 0 ? logits[t] / factor : logits[t] * factor;
            counts[t] = 0;
        }
    }
    if (s->presence != 0 || s->frequency != 0) {
        count_all(counts, V, history + answer, n - answer);
        for (int64_t i = answer; i < n; i++) {
            int32_t t = history[i];
            if (!known(t, V) || counts[t] == 0)
                continue;
            logits[t] -= (float)(s->presence + s->frequency * counts[t]);
            counts[t] = 0;
        }
    }
}
