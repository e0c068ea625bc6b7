/* simd_embed.c -- token and position vectors, and the sums that are their gradients.
 *
 * The gradient of a token's vector is a sum over the rows where the token stands. Rows are sorted
 * by token first (counting sort, so each token's rows stay in order); then a task owns some tokens
 * and columns, and is the only one to write there: no atomic adds, no order that depends on threads. The
 * gradient of position t is the same sum over rows t, T + t, 2 T + t ...; where positions begin anew
 * in each document, rows are sorted by position as they are by token.
 *
 * Leaf sums start from +0 and are therefore never -0, so a leaf without the token may be left out
 * of the tree instead of adding its zero. Example, token in rows of leaves 0, 2 and 3 of 4:
 *     sum(0) + (sum(2) + sum(3))
 * A stack does that in one walk: before leaf b is pushed behind leaf a, all pairs on the stack that
 * meet below the common ancestor of a and b are added; its level is the highest bit of a ^ b. */
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/dropout.h"
#include "kernel/cpu/simd/vec.h"
#include "kernel/noise.h"

enum { PARTS = LS_TILE / LS_LANES, DEEPEST = 40 };

/* --- forward ------------------------------------------------------------------------------------
 */

/* The noise of columns c .. c + LS_LANES - 1; c is a multiple of 4. */
static void noise_of(const ls_embed_fwd *a, int64_t row, int64_t c, float *noise_out)
{
    const ls_dropout *d = &a->drop;
    int64_t number = d->first_row + row;
    int64_t position = ls_piece_position(&d->piece, number % a->T);
    uint32_t sequence = d->state->first_seq + (uint32_t)(number / a->T);

    for (int64_t k = 0; k < LS_LANES; k += 4) {
        ls_rng_block b = ls_noise_words(d->state->key, c + k, position, sequence);
        for (int i = 0; i < 4; i++)
            noise_out[k + i] = ls_noise_of(b.v[i], a->noise);
    }
}

LS_INLINE void fwd_row(const ls_dtype type, const ls_embed_fwd *a, const ls_drop *drop, int64_t row)
{
    int64_t C = a->C, token = a->tokens[row] - a->first;
    int64_t p = (a->past + ls_embed_position(&a->piece, a->start, row, a->T)) * C;
    bool here = token >= 0 && token < a->V; /* else another rank has it */
    const void *wte = a->wte, *wpe = a->wpe;
    void *y = a->y;
    float factor[LS_TILE], noise[LS_LANES];

    for (int64_t c = 0; c < C; c += LS_LANES) {
        ls_v16 x = here ? v_load_most_as(type, wte, token * C + c, C - c) : v_set(0);
        if (wpe)
            x = v_add(x, v_load_most_as(type, wpe, p + c, C - c));
        if (a->noise > 0) {
            noise_of(a, row, c, noise);
            x = v_add(x, v_load(noise));
        }
        if (drop->on) {
            if (c % LS_TILE == 0)
                drop_tile(drop, row, c, factor);
            x = v_mul(x, v_load(factor + c % LS_TILE));
        }
        v_store_most_as(type, y, row * C + c, C - c, x);
    }
}

/* Rows of one task: what makes TASK elements. */
enum { TASK = 16384 };

static int64_t fwd_rows(const ls_embed_fwd *a)
{
    return ls_max_i64(1, TASK / a->C);
}

LS_INLINE void fwd_task(const ls_dtype type, const ls_embed_fwd *a, int64_t index)
{
    ls_drop drop = drop_begin(&a->drop, a->T);
    int64_t first = index * fwd_rows(a), end = ls_min_i64(first + fwd_rows(a), a->M);

    for (int64_t row = first; row < end; row++)
        fwd_row(type, a, &drop, row);
}

LS_TYPED_TASKS(fwd, fwd_task, context, index)

void LS_ISA_NAME(ls_embed_fwd_row)(ls_stream *stream, const ls_embed_fwd *a)
{
    ls_embed_fwd args = *a;
    int64_t rows = fwd_rows(a);

    LS_BUG_IF(a->type != LS_F32 && a->type != LS_BF16, "embed_fwd of type %d", (int)a->type);
    if (!ls_embed_check_tokens(stream, a->tokens, a->M, a->vocab ? a->vocab : a->V))
        return;
    ls_pool_run(ls_stream_pool(stream), a->type == LS_BF16 ? fwd_bf16 : fwd_f32, &args,
                (a->M + rows - 1) / rows);
}

/* --- backward -----------------------------------------------------------------------------------
 */

/* Rows to be added up: rows[0 .. count), or first, first + T, ... where rows is NULL. */
typedef struct row_list {
    const int32_t *rows;
    int64_t first, count;
} row_list;

LS_INLINE int64_t list_row(const ls_embed_bwd *a, const row_list *list, int64_t i)
{
    return list->rows ? list->rows[i] : list->first + i * a->T;
}

typedef struct tile {
    ls_v16 part[PARTS];
} tile;

/* Sums of leaves on their way up the tree. level[i] is where sum i meets sum i - 1. */
typedef struct climb {
    tile sum[DEEPEST];
    int level[DEEPEST];
    int depth;
    int64_t leaf; /* of the sum on top */
} climb;

static void climb_join(climb *k)
{
    k->depth--;
    for (int j = 0; j < PARTS; j++)
        k->sum[k->depth - 1].part[j] =
            v_add(k->sum[k->depth - 1].part[j], k->sum[k->depth].part[j]);
}

static void climb_push(climb *k, const tile *sum, int64_t leaf)
{
    int level = k->depth ? 64 - __builtin_clzll((uint64_t)(k->leaf ^ leaf)) : 0;

    while (k->depth >= 2 && k->level[k->depth - 1] < level)
        climb_join(k);
    k->sum[k->depth] = *sum;
    k->level[k->depth] = level;
    k->leaf = leaf;
    k->depth++;
}

/* The sum of one leaf over columns c .. c + n, beginning with entry i; moves i past the leaf. */
LS_INLINE tile leaf_sum(const ls_dtype type, const ls_embed_bwd *a, const ls_drop *drop,
                        const row_list *list, int64_t c, int64_t n, int64_t *i)
{
    int64_t leaf_rows = a->M / a->leaves;
    int64_t end = (list_row(a, list, *i) / leaf_rows + 1) * leaf_rows;
    float factor[LS_TILE];
    tile acc;

    for (int j = 0; j < PARTS; j++)
        acc.part[j] = v_set(0);
    for (; *i < list->count; ++*i) {
        int64_t row = list_row(a, list, *i);
        if (row >= end)
            break;
        if (drop->on)
            drop_tile(drop, row, c, factor);
        for (int j = 0; j < PARTS; j++) {
            int64_t left = n - j * LS_LANES;
            if (left <= 0)
                break;
            ls_v16 x = v_load_most_as(type, a->dy, row * a->C + c + j * LS_LANES, left);
            acc.part[j] = drop->on ? v_fma(x, v_load(factor + j * LS_LANES), acc.part[j])
                                   : v_add(acc.part[j], x);
        }
    }
    return acc;
}

/* out (+)= the sum of the listed rows over columns c .. c + n, by the tree over leaves. */
LS_INLINE void sum_tile(const ls_dtype type, const ls_embed_bwd *a, const ls_drop *drop,
                        const row_list *list, int64_t c, int64_t n, float *out)
{
    climb k;

    k.depth = 0;
    for (int64_t i = 0; i < list->count;) {
        int64_t leaf = list_row(a, list, i) / (a->M / a->leaves);
        tile sum = n == LS_TILE ? leaf_sum(type, a, drop, list, c, LS_TILE, &i)
                                : leaf_sum(type, a, drop, list, c, n, &i);
        climb_push(&k, &sum, leaf);
    }
    while (k.depth > 1)
        climb_join(&k);
    for (int j = 0; j < PARTS && n > j * LS_LANES; j++) {
        int64_t left = n - j * LS_LANES;
        float *o = out + c + j * LS_LANES;
        v_store_most(o, left,
                     a->accumulate ? v_add(v_load_most(o, left), k.sum[0].part[j])
                                   : k.sum[0].part[j]);
    }
}

/* Columns from .. to of one row of a gradient. */
static void sum_row(const ls_embed_bwd *a, const ls_drop *drop, const row_list *list, int64_t from,
                    int64_t to, float *out)
{
    if (list->count == 0) {
        if (!a->accumulate)
            memset(out + from, 0, (size_t)(to - from) * sizeof *out);
        return;
    }
    for (int64_t c = from; c < to; c += LS_TILE) {
        int64_t n = ls_min_i64(LS_TILE, to - c);
        if (a->type == LS_BF16)
            sum_tile(LS_BF16, a, drop, list, c, n, out);
        else
            sum_tile(LS_F32, a, drop, list, c, n, out);
    }
}

typedef struct bwd {
    ls_embed_bwd a;
    const int32_t *start, *rows; /* of each token, then of each position; rows in that order. NULL:
                                  * positions lie T rows apart */
    int64_t blocks, cuts;        /* tasks by tokens (or positions) and by columns */
    int64_t width;               /* columns per cut, a multiple of LS_TILE */
} bwd;

static void dwte_task(void *context, int64_t index, int worker)
{
    const bwd *b = context;
    const ls_embed_bwd *a = &b->a;
    ls_drop drop = drop_begin(&a->drop, a->T);
    int64_t block = index / b->cuts, from = index % b->cuts * b->width;
    int64_t to = ls_min_i64(from + b->width, a->C);

    (void)worker;
    for (int64_t v = block * a->V / b->blocks; v < (block + 1) * a->V / b->blocks; v++) {
        row_list list = {.rows = b->rows + b->start[v], .count = b->start[v + 1] - b->start[v]};
        sum_row(a, &drop, &list, from, to, a->dwte + v * a->C);
    }
}

/* The first row that stands at position t; T or more: none does. */
static int64_t row_at(const ls_embed_bwd *a, int64_t t)
{
    int64_t chunk = a->piece.chunk;

    if (chunk == 0)
        return t;
    for (int i = 0; i < 2; i++)
        if (t >= a->piece.first[i] && t < a->piece.first[i] + chunk)
            return i * chunk + t - a->piece.first[i];
    return a->T;
}

static void dwpe_task(void *context, int64_t index, int worker)
{
    const bwd *b = context;
    const ls_embed_bwd *a = &b->a;
    ls_drop drop = drop_begin(&a->drop, a->T);
    int64_t first = index * a->positions / b->blocks, end = (index + 1) * a->positions / b->blocks;

    (void)worker;
    for (int64_t t = first; t < end; t++) {
        int64_t row = b->start ? 0 : row_at(a, t);
        row_list list = {.first = row, .count = row < a->T ? a->M / a->T : 0};
        if (b->start)
            list =
                (row_list){.rows = b->rows + b->start[t], .count = b->start[t + 1] - b->start[t]};
        sum_row(a, &drop, &list, 0, a->C, a->dwpe + t * a->C);
    }
}

/* The row of dwte, or of dwpe, that gets row i; -1: none here. */
static int64_t place_of(const ls_embed_bwd *a, bool positions, int64_t i)
{
    int64_t token = a->tokens[i] - a->first;

    if (positions)
        return ls_embed_position(&a->piece, a->start, i, a->T);
    return token >= 0 && token < a->V ? token : -1;
}

/* Counting sort: start[v] .. start[v + 1] are the places in rows of token, or position, v, in order. */
static void sort_rows(const ls_embed_bwd *a, bool positions, int32_t *start, int32_t *rows)
{
    int64_t n = positions ? a->positions : a->V;

    memset(start, 0, (size_t)(n + 1) * sizeof *start);
    for (int64_t i = 0; i < a->M; i++)
        if (place_of(a, positions, i) >= 0)
            start[place_of(a, positions, i) + 1]++;
    for (int64_t v = 0; v < n; v++)
        start[v + 1] += start[v];
    for (int64_t i = 0; i < a->M; i++)
        if (place_of(a, positions, i) >= 0)
            rows[start[place_of(a, positions, i)]++] = (int32_t)i;
    /* Now start[v] is the end of v, that is the start of v + 1. */
    memmove(start + 1, start, (size_t)n * sizeof *start);
    start[0] = 0;
}

void LS_ISA_NAME(ls_embed_bwd_row)(ls_stream *stream, const ls_embed_bwd *a)
{
    int32_t *start = a->scratch, *rows = start + ls_max_i64(a->V, a->positions) + 1;
    /* A large vocabulary has tasks enough, and whole rows are quicker to clear; a small one has a
     * few tokens that make most of the work, so columns are shared out as well. Little work is one
     * task. */
    bool little = (a->M + a->V) * a->C <= TASK;
    int64_t width = a->V >= 4096 || little ? ls_round_up(a->C, LS_TILE) : 2 * LS_TILE;
    bwd b = {.a = *a, .start = start, .rows = rows, .width = width};

    LS_BUG_IF(a->type != LS_F32 && a->type != LS_BF16, "embed_bwd of type %d", (int)a->type);
    LS_BUG_IF(a->leaves < 1 || a->M < 1 || a->M % a->leaves != 0 || a->M > INT32_MAX,
              "%lld rows in %lld leaves", (long long)a->M, (long long)a->leaves);
    LS_BUG_IF(a->dwpe && (a->M / a->leaves % a->T != 0 || a->positions < a->T),
              "a leaf of %lld rows with T = %lld of %lld positions", (long long)(a->M / a->leaves),
              (long long)a->T, (long long)a->positions);
    if (!ls_embed_check_tokens(stream, a->tokens, a->M, a->vocab ? a->vocab : a->V))
        return;
    if (a->dwte) {
        sort_rows(a, false, start, rows);
        b.cuts = (a->C + width - 1) / width;
        b.blocks = little ? 1 : ls_min_i64(a->V, 64);
        ls_pool_run(ls_stream_pool(stream), dwte_task, &b, b.blocks * b.cuts);
    }
    if (a->dwpe) {
        if (a->start)
            sort_rows(a, true, start, rows);
        else
            b.start = NULL;
        b.blocks = little ? 1 : ls_min_i64(a->positions, 64);
        ls_pool_run(ls_stream_pool(stream), dwpe_task, &b, b.blocks);
    }
}
