/* sample_order.c -- position -> sample by keyed bijections.
 *
 * Shuffling by an index array costs 8 bytes per sample, minutes to build for large corpora, and a
 * cursor that means nothing without it. A shuffle buffer forgets its content on resume. Here the
 * shuffle is arithmetic: a Feistel network over just enough bits for n values, whose round keys
 * come from Philox; a result >= n is fed in again until it falls below n (cycle walking, fewer than
 * two rounds on average because the network covers less than 2n values). Each step of that is
 * invertible, so the whole is a bijection of [0, n).
 *
 * Worked example. T = 4, one source of 23 training tokens, sequences = 2.
 *   (23 - 1) / 4 = 5 windows fit without a shift; one is given up so that shifts 0..3 all fit:
 *   windows = 4. Epoch 0 may have shift 2: its windows start at tokens 2, 6, 10, 14, and the last
 *   reads tokens 14..18 (4 inputs and the target of the last one). Step 3 takes positions 6 and 7;
 *   position 6 is epoch 6 / 4 = 1, place 6 % 4 = 2, window = permutation of epoch 1 at 2.
 *
 * Several sources without weights are one row of windows, source after source, with one permutation
 * per epoch: with 4 and 6 windows an epoch has 10 positions, and place 7 after the permutation is
 * window 3 of the second source. No rounding, and all sources end their epochs together.
 *
 * With weights, time is cut into blocks of LS_SAMPLE_ORDER_BLOCK positions. Each source owns a
 * whole number of places in every block (its quota, by largest remainders), and the places are
 * permuted anew in each block. A source with quota q takes its own samples b*q .. b*q + q-1 in
 * block b: that number divided by its windows is its epoch. Sources end their epochs at different
 * times. Example with a block of 8 and weights 3 : 1: quotas 6 and 2. Position 13 is block 1, place
 * 5; permuted, say, to 7, which belongs to source 1 (places 6 and 7) as its number 1 in this block:
 * it is sample 1 * 2 + 1 = 3 of source 1. If that has 2 windows, this is epoch 1, place 1.
 *
 * Without shuffle there is no permutation and no shift; a mixture then interleaves its sources
 * evenly by a table of one block. */
#include "data/corpus/sample_order.h"

#include <math.h>

enum { ROUNDS = 8 };

/* Names of the streams of random numbers that this file draws from. */
enum { FOR_WINDOWS = 0x6f72u, FOR_SHIFT = 0x7368u, FOR_BLOCK = 0x626cu };

static ls_rng_key key_for(const ls_sample_order *order, uint64_t purpose, int source,
                          int64_t number)
{
    return ls_rng_derive(order->seed, purpose << 32 | (uint64_t)source, (uint64_t)number);
}

/* 64 well mixed bits of the half that stays: the finaliser of splitmix64. */
static uint64_t mix(uint64_t half, uint64_t key)
{
    uint64_t z = half ^ key;

    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* Philox gives each round its own 64 bits of key. */
static void make_round_keys(ls_rng_key key, uint64_t keys_out[ROUNDS])
{
    for (int i = 0; i < ROUNDS; i += 2) {
        ls_rng_block b = ls_rng_philox(key, (uint32_t)i, 0, 0, 0x6665u);
        keys_out[i] = (uint64_t)b.v[1] << 32 | b.v[0];
        keys_out[i + 1] = (uint64_t)b.v[3] << 32 | b.v[2];
    }
}

static int bits_for(int64_t n)
{
    return n <= 1 ? 0 : 64 - __builtin_clzll((uint64_t)n - 1);
}

/* The network over 2^bits values. Halves may differ by one bit: the low one changes in even rounds,
 * the high one in odd rounds. Running the rounds backwards undoes it. */
static uint64_t network(const uint64_t keys[ROUNDS], int bits, uint64_t x, bool backwards)
{
    int low_bits = bits - bits / 2;
    uint64_t low_mask = (UINT64_C(1) << low_bits) - 1;
    uint64_t high_mask = (UINT64_C(1) << (bits / 2)) - 1;
    uint64_t low = x & low_mask, high = x >> low_bits;

    for (int i = 0; i < ROUNDS; i++) {
        int round = backwards ? ROUNDS - 1 - i : i;
        if (round % 2 == 0)
            low ^= mix(high, keys[round]) & low_mask;
        else
            high ^= mix(low, keys[round]) & high_mask;
    }
    return high << low_bits | low;
}

static int64_t walk(ls_rng_key key, int64_t n, int64_t i, bool backwards)
{
    LS_BUG_IF(n < 1 || n > INT64_C(1) << 62 || i < 0 || i >= n, "permuting %lld of %lld",
              (long long)i, (long long)n);
    int bits = bits_for(n);
    uint64_t x = (uint64_t)i, keys[ROUNDS];
    make_round_keys(key, keys);
    do /* ends: x started below n, and its cycle returns to x */
        x = network(keys, bits, x, backwards);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}

int64_t ls_sample_order_permute(ls_rng_key key, int64_t n, int64_t i)
{
    return walk(key, n, i, false);
}

int64_t ls_sample_order_unpermute(ls_rng_key key, int64_t n, int64_t i)
{
    return walk(key, n, i, true);
}

int64_t ls_sample_order_spread(int64_t total, int64_t used, int64_t i)
{
    int64_t whole = total / used, rest = total % used;

    return i * whole + i * rest / used; /* i * total / used without its overflow */
}

/* How many windows fit so that every shift leaves room for all of them. */
static ls_status cut_source(ls_sample_order_source *s, int number, const ls_sample_order_args *args)
{
    int64_t tokens = args->tokens[number], T = args->T;
    bool aligned = args->aligned && args->aligned[number], shuffle = args->shuffle && !aligned;
    int64_t least = aligned ? T : T + 1, fit = (tokens - !aligned) / T;

    if (tokens < least)
        return ls_fail(LS_EDATA, "source %d has %lld training tokens, a window needs %lld",
                       number + 1, (long long)tokens, (long long)least);
    s->tokens = tokens;
    s->aligned = aligned;
    s->windows = shuffle && fit > 1 ? fit - 1 : fit;
    s->shifts = shuffle ? ls_min_i64(T, tokens - s->windows * T) : 1;
    return LS_OK;
}

static ls_status refuse_weight(int number, double share)
{
    ls_status st =
        ls_fail(LS_EUSAGE, "the weight of source %d is %.3g of all weights", number, share);
    ls_err_hint("A share may not be below 1/%d; raise this weight in data.weights or leave the "
                "source out.",
                LS_SAMPLE_ORDER_BLOCK);
    return st;
}

/* Whole places out of LS_SAMPLE_ORDER_BLOCK, by largest remainders: each within one place of its
 * share. */
static ls_status share_block(ls_sample_order *order, const double *weights)
{
    double sum = 0, rest[LS_SAMPLE_ORDER_SOURCES];
    int64_t given = 0;

    for (int i = 0; i < order->n_sources; i++) {
        if (!(weights[i] > 0) || !isfinite(weights[i]))
            return ls_fail(LS_EUSAGE, "the weight of source %d is %g, it must be above 0", i + 1,
                           weights[i]);
        sum += weights[i];
    }
    for (int i = 0; i < order->n_sources; i++) {
        double exact = weights[i] / sum * LS_SAMPLE_ORDER_BLOCK;
        if (!(exact >= 1))
            return refuse_weight(i + 1, weights[i] / sum);
        order->sources[i].quota = (int64_t)exact;
        rest[i] = exact - (double)order->sources[i].quota;
        given += order->sources[i].quota;
    }
    for (; given < LS_SAMPLE_ORDER_BLOCK; given++) {
        int most = 0;
        for (int i = 1; i < order->n_sources; i++)
            if (rest[i] > rest[most])
                most = i;
        order->sources[most].quota++;
        rest[most] = -1;
    }
    return LS_OK;
}

/* The even interleaving of a mixture that is not shuffled: at each place the source that is
 * furthest behind its share comes next. */
static void lay_plain_block(ls_sample_order *order)
{
    int64_t used[LS_SAMPLE_ORDER_SOURCES] = {0};

    for (int place = 0; place < LS_SAMPLE_ORDER_BLOCK; place++) {
        int next = 0;
        int64_t most_behind = INT64_MIN;
        for (int i = 0; i < order->n_sources; i++) {
            int64_t behind =
                order->sources[i].quota * (place + 1) - used[i] * (int64_t)LS_SAMPLE_ORDER_BLOCK;
            if (used[i] < order->sources[i].quota && behind > most_behind) {
                most_behind = behind;
                next = i;
            }
        }
        order->plain_source[place] = (uint16_t)next;
        order->plain_rank[place] = (uint16_t)used[next]++;
    }
}

ls_status ls_sample_order_init(ls_sample_order *order, const ls_sample_order_args *args)
{
    LS_BUG_IF(args->n_sources < 1 || args->T < 1, "an order of %d sources with T = %lld",
              args->n_sources, (long long)args->T);
    if (args->n_sources > LS_SAMPLE_ORDER_SOURCES)
        return ls_fail(LS_EUSAGE, "%d sources are given, at most %d are possible", args->n_sources,
                       LS_SAMPLE_ORDER_SOURCES);
    *order = (ls_sample_order){.seed = args->seed,
                               .T = args->T,
                               .shuffle = args->shuffle,
                               .weighted = args->weights != NULL,
                               .n_sources = args->n_sources};
    for (int i = 0; i < args->n_sources; i++) {
        ls_status st = cut_source(&order->sources[i], i, args);
        if (st != LS_OK)
            return st;
        order->windows += order->sources[i].windows;
    }
    if (order->weighted) {
        ls_status st = share_block(order, args->weights);
        if (st != LS_OK)
            return st;
        if (!order->shuffle)
            lay_plain_block(order);
    }
    int64_t first = 0;
    for (int i = 0; i < order->n_sources; i++) {
        order->sources[i].first = first;
        first += order->weighted ? order->sources[i].quota : order->sources[i].windows;
    }
    return LS_OK;
}

/* The source whose range of places holds place: the last one that starts at or before it. */
static int source_of(const ls_sample_order *order, int64_t place)
{
    int low = 0, high = order->n_sources - 1;

    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (order->sources[middle].first <= place)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static ls_sample at_by_size(const ls_sample_order *order, int64_t position)
{
    ls_sample s = {.epoch = position / order->windows};
    int64_t place = position % order->windows;

    if (order->shuffle)
        place = ls_sample_order_permute(
            key_for(order, FOR_WINDOWS, LS_SAMPLE_ORDER_SOURCES, s.epoch), order->windows, place);
    s.source = source_of(order, place);
    s.window = place - order->sources[s.source].first;
    return s;
}

static ls_sample at_by_weight(const ls_sample_order *order, int64_t position)
{
    ls_sample s = {.source = 0};
    int64_t block = position / LS_SAMPLE_ORDER_BLOCK, place = position % LS_SAMPLE_ORDER_BLOCK,
            rank;

    if (order->shuffle) {
        place = ls_sample_order_permute(key_for(order, FOR_BLOCK, 0, block), LS_SAMPLE_ORDER_BLOCK,
                                        place);
        s.source = source_of(order, place);
        rank = place - order->sources[s.source].first;
    } else {
        s.source = order->plain_source[place];
        rank = order->plain_rank[place];
    }
    const ls_sample_order_source *from = &order->sources[s.source];
    int64_t number = block * from->quota + rank;
    s.epoch = number / from->windows;
    s.window = number % from->windows;
    if (order->shuffle)
        s.window = ls_sample_order_permute(key_for(order, FOR_WINDOWS, s.source, s.epoch),
                                           from->windows, s.window);
    return s;
}

int64_t ls_sample_order_shift(const ls_sample_order *order, int source, int64_t epoch)
{
    int64_t shifts = order->sources[source].shifts;

    if (shifts <= 1)
        return 0;
    ls_rng_block b = ls_rng_philox(key_for(order, FOR_SHIFT, source, epoch), 0, 0, 0, 0);
    return (int64_t)(((uint64_t)b.v[1] << 32 | b.v[0]) % (uint64_t)shifts);
}

ls_sample ls_sample_order_at(const ls_sample_order *order, int64_t position)
{
    LS_BUG_IF(position < 0, "sample at position %lld", (long long)position);
    ls_sample s = order->weighted ? at_by_weight(order, position) : at_by_size(order, position);
    s.first = ls_sample_order_shift(order, s.source, s.epoch) + s.window * order->T;
    return s;
}

static int64_t find_by_size(const ls_sample_order *order, int source, int64_t epoch, int64_t window)
{
    int64_t place = order->sources[source].first + window;

    if (order->shuffle)
        place = ls_sample_order_unpermute(
            key_for(order, FOR_WINDOWS, LS_SAMPLE_ORDER_SOURCES, epoch), order->windows, place);
    return epoch * order->windows + place;
}

int64_t ls_sample_order_find(const ls_sample_order *order, int source, int64_t epoch,
                             int64_t window)
{
    const ls_sample_order_source *from = &order->sources[source];

    LS_BUG_IF(source < 0 || source >= order->n_sources || epoch < 0 || window < 0 ||
                  window >= from->windows,
              "looking for window %lld of epoch %lld of source %d", (long long)window,
              (long long)epoch, source);
    if (!order->weighted)
        return find_by_size(order, source, epoch, window);
    if (order->shuffle)
        window = ls_sample_order_unpermute(key_for(order, FOR_WINDOWS, source, epoch),
                                           from->windows, window);
    int64_t number = epoch * from->windows + window;
    int64_t block = number / from->quota, rank = number % from->quota, place;
    if (order->shuffle) {
        place = ls_sample_order_unpermute(key_for(order, FOR_BLOCK, 0, block),
                                          LS_SAMPLE_ORDER_BLOCK, from->first + rank);
    } else {
        for (place = 0; order->plain_source[place] != source || order->plain_rank[place] != rank;)
            place++;
    }
    return block * LS_SAMPLE_ORDER_BLOCK + place;
}
