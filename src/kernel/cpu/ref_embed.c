/* ref_embed.c -- embedding and its gradient, in double. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_shared.h"
#include "kernel/noise.h"

/* What is added to element (row, column). */
static double noise(const ls_embed_fwd *a, int64_t row, int64_t column)
{
    const ls_dropout *d = &a->drop;

    if (!(a->noise > 0))
        return 0;
    row += d->first_row;
    ls_rng_block b = ls_noise_words(d->state->key, column, ls_piece_position(&d->piece, row % a->T),
                                    d->state->first_seq + (uint32_t)(row / a->T));
    return (double)a->noise * (2 * (double)ls_rng_uniform(b.v[column % 4]) - 1);
}

void ls_ref_embed_fwd(ls_stream *stream, const ls_embed_fwd *a)
{
    LS_BUG_IF(!ls_ref_takes(a->type), "embed_fwd of type %d", (int)a->type);
    if (!ls_embed_check_tokens(stream, a->tokens, a->M, a->vocab ? a->vocab : a->V))
        return;
    for (int64_t row = 0; row < a->M; row++)
        for (int64_t c = 0; c < a->C; c++) {
            int64_t token = a->tokens[row] - a->first;
            bool here = token >= 0 && token < a->V;
            double x = here ? ls_ref_load(a->wte, a->type, token * a->C + c) : 0;
            if (a->wpe)
                x += ls_ref_load(
                    a->wpe, a->type,
                    (a->past + ls_embed_position(&a->piece, a->start, row, a->T)) * a->C + c);
            x += noise(a, row, c);
            ls_ref_store(a->y, a->type, row * a->C + c, x * ls_ref_keep(&a->drop, row, c, a->T));
        }
}

/* One element of a gradient: column c of the rows that hold token `id` or stand at position `id`.
 */
typedef struct element {
    const ls_embed_bwd *a;
    int64_t id, c;
    bool position;
} element;

static double leaf_sum(const void *context, int64_t leaf)
{
    const element *e = context;
    const ls_embed_bwd *a = e->a;
    int64_t rows = a->M / a->leaves;
    double sum = 0;

    for (int64_t row = leaf * rows; row < (leaf + 1) * rows; row++)
        if ((e->position ? ls_embed_position(&a->piece, a->start, row, a->T)
                         : a->tokens[row] - a->first) == e->id)
            sum += ls_ref_load(a->dy, a->type, row * a->C + e->c) *
                   ls_ref_keep(&a->drop, row, e->c, a->T);
    return sum;
}

static void sum_row(const ls_embed_bwd *a, int64_t id, bool position, float *out)
{
    for (int64_t c = 0; c < a->C; c++) {
        element e = {a, id, c, position};
        double sum = ls_ref_tree_sum(leaf_sum, &e, a->leaves);
        out[c] = (float)(sum + (a->accumulate ? (double)out[c] : 0));
    }
}

void ls_ref_embed_bwd(ls_stream *stream, const ls_embed_bwd *a)
{
    int32_t *used = a->scratch; /* [V]: a token that never occurs need not be looked for C times */

    LS_BUG_IF(!ls_ref_takes(a->type), "embed_bwd of type %d", (int)a->type);
    if (!ls_embed_check_tokens(stream, a->tokens, a->M, a->vocab ? a->vocab : a->V))
        return;
    memset(used, 0, (size_t)a->V * sizeof *used);
    for (int64_t row = 0; row < a->M; row++)
        if (a->tokens[row] >= a->first && a->tokens[row] < a->first + a->V)
            used[a->tokens[row] - a->first] = 1;
    for (int64_t v = 0; a->dwte && v < a->V; v++)
        if (used[v])
            sum_row(a, v, false, a->dwte + v * a->C);
        else if (!a->accumulate)
            memset(a->dwte + v * a->C, 0, (size_t)a->C * sizeof *a->dwte);
    for (int64_t t = 0; a->dwpe && t < a->positions; t++)
        sum_row(a, t, true, a->dwpe + t * a->C);
}
