/* muon.c -- Muon (Keller Jordan): steps of matrices made orthogonal.
 *
 * The matrices of blocks have one moment, a mean of gradients with Nesterov's look ahead. Of what
 * it gives, X, five Newton-Schulz iterations make a matrix whose singular values are all near 1:
 *
 *   X = X / |X|,   five times:  A = X X^T,  X = (a I + b A + c A A) X
 *
 * where a tall X is taken from the other side (A = X^T X), so that A is the smaller square and
 * nothing is transposed. The step is 0.2 sqrt(max(rows, cols)) X: its elements have the size that
 * AdamW's steps have, so one learning rate serves both (Moonlight, 2025). Embeddings, head, norms
 * and biases are AdamW's.
 *
 * Weights that hold several matrices side by side (q, k, v of GPT-2) are taken apart. The products
 * are the rows of the model, in fp32, whose bits depend on neither threads nor instruction set.
 *
 * With several ranks each weight has one that makes it orthogonal: runs of neighbouring weights,
 * cut so that all have as much to do. Every rank has the whole gradient, or where ranks divide the
 * update gets the look ahead from the ranks that have parts of it:
 *
 *   all       AdamW and momentum, on what they update
 *   divided   look ahead and AdamW's weights from their owners to all
 *   owners    their matrices: orthogonal, step
 *   all       new weights from each owner: one run of weights, vectors between them included,
 *             which are equal everywhere already
 *
 * Example, 2 ranks and weights A b C D e F (capitals: matrices of equal work, the others vectors):
 * rank 0 steps A and C and sends A b C to rank 1, which steps D and F and sends D e F. */
#include "optim/optim_impl.h"

#include <math.h>
#include "base/mem.h"

enum { ITERATIONS = 5 };

/* Coefficients that lift small singular values quickly; they end between 0.7 and 1.2. */
static const float poly_a = 3.4445f, poly_b = -4.7750f, poly_c = 2.0315f;

/* A matrix that is made orthogonal, or several side by side in one weight, and the rank that does it. */
typedef struct matrix {
    int64_t w, g;           /* its first element, of the weights and of the gradients */
    int64_t rows, cols, ld; /* of each part; parts lie side by side */
    int parts, owner;       /* owner: a rank */
} matrix;

typedef struct muon {
    ls_optimizer_span *spans; /* matrices, or the parts of them that this rank has */
    int64_t n_spans, n;
    float *x[2], *square[2]; /* of the matrix in hand */
    ls_norm_result *norm;
    matrix *matrices; /* owned, host: of all ranks, in the order of their weights */
    int n_matrices;
} muon;

/* --- opening ---------------------------------------------------------------------------------- */

/* Parameters, and the pieces that borders of buckets make of some of them. */
static int64_t most_spans(const ls_model *model)
{
    return model->n_params + 3 * LS_MESH_BUCKETS;
}

static ls_optim_work work_of(const ls_run *run, const ls_model *model)
{
    ls_optim_work w = {.what = "the largest matrix twice, and its squares"};

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (!ls_optim_is_matrix(run, p))
            continue;
        int64_t cols = p->shape[1] / p->parts, side = ls_min_i64(p->shape[0], cols);
        w.matrix = ls_max_i64(w.matrix, p->shape[0] * cols);
        w.square = ls_max_i64(w.square, side * side);
    }
    w.list_bytes = ls_round_up(most_spans(model) * (int64_t)sizeof(ls_optimizer_span), 256);
    w.bytes = w.list_bytes + 2 * ls_round_up(w.matrix * (int64_t)sizeof(float), 256) +
              2 * ls_round_up(w.square * (int64_t)sizeof(float), 256) +
              ls_round_up(sizeof(ls_norm_result), 256);
    return w;
}

/* Mirrors work_of(): what a redo needs lies first. */
static void lay_out(const ls_optim *o, muon *u)
{
    ls_optim_work work = ls_optim_work_of(o->args.run, o->args.model);
    char *at = o->args.work;

    u->spans = ls_optim_cut(&at, most_spans(o->args.model) * (int64_t)sizeof *u->spans);
    if (o->args.redoes)
        return;
    for (int i = 0; i < 2; i++)
        u->x[i] = ls_optim_cut(&at, work.matrix * (int64_t)sizeof(float));
    for (int i = 0; i < 2; i++)
        u->square[i] = ls_optim_cut(&at, work.square * (int64_t)sizeof(float));
    u->norm = ls_optim_cut(&at, sizeof *u->norm);
}

/* Operations of an iteration, but for a factor. */
static double cost_of(const matrix *m)
{
    double side = (double)ls_min_i64(m->rows, m->cols);

    return side * (2 * (double)m->rows * (double)m->cols + side * side) * m->parts;
}

/* Runs of matrices with nearly equal work. */
static void deal(muon *u, int ranks)
{
    double all = 0, before = 0;

    for (int i = 0; i < u->n_matrices; i++)
        all += cost_of(&u->matrices[i]);
    for (int i = 0; i < u->n_matrices; i++) {
        matrix *m = &u->matrices[i];
        double cost = cost_of(m);
        m->owner = (int)((before + cost / 2) / all * ranks);
        before += cost;
    }
}

/* A matrix, and the pieces of it that this rank updates the moments of. */
static void add_matrix(const ls_optim_args *a, const ls_param *p, muon *u, ls_optimizer_span *spans)
{
    int64_t end = p->trained + p->count;
    ls_optim_piece piece;

    u->matrices[u->n_matrices++] = (matrix){.w = p->first,
                                            .g = p->trained,
                                            .rows = p->shape[0],
                                            .cols = p->shape[1] / p->parts,
                                            .ld = p->shape[1],
                                            .parts = p->parts};
    for (int64_t at = p->trained; a->ranks.piece(a->ranks.context, at, end, &piece);
         at = piece.first + piece.count) {
        spans[u->n_spans++] = (ls_optimizer_span){.first = piece.packed,
                                                  .w_first = a->redoes ? piece.packed : piece.first,
                                                  .count = piece.count};
        u->n += piece.count;
    }
}

static ls_status open_muon(ls_optim *o)
{
    const ls_model *model = o->args.model;
    ls_optimizer_span *spans = ls_mem_array((size_t)most_spans(model), sizeof *spans);
    muon *u = o->own = ls_mem_alloc(sizeof *u);
    ls_status st = LS_ENOMEM;

    if (u)
        u->matrices = ls_mem_array((size_t)model->n_params, sizeof *u->matrices);
    if (!spans || !u || !u->matrices)
        goto out;
    lay_out(o, u);
    for (int i = 0; i < model->n_params; i++)
        if (ls_optim_is_matrix(o->args.run, &model->params[i]))
            add_matrix(&o->args, &model->params[i], u, spans);
    deal(u, o->args.ranks.ranks);
    st = ls_optim_send(o, u->spans, spans, u->n_spans * (int64_t)sizeof *spans);
out:
    ls_mem_free(spans);
    return st;
}

static void close_muon(ls_optim *o)
{
    muon *u = o->own;

    if (u)
        ls_mem_free(u->matrices);
    ls_mem_free(u);
}

/* --- one matrix ------------------------------------------------------------------------------- */

/* to = (a I + b A + c A A) x, with A = x x^T, or from the right with A = x^T x where x is tall. */
static void iterate(const ls_optim *o, const matrix *m, const float *x, float *to)
{
    const muon *u = o->own;
    const ls_kernels *k = o->args.kernels;
    ls_stream *stream = o->args.stream;
    float *A = u->square[0], *B = u->square[1];
    int64_t rows = m->rows, cols = m->cols, side = ls_min_i64(rows, cols);
    bool tall = rows > cols;

    if (tall)
        k->linear_bwd_w(
            stream, &(ls_linear_bwd_w){
                        .x = x, .dy = x, .dw = A, .M = rows, .N = cols, .K = cols, .leaves = 1});
    else
        k->linear_fwd(
            stream,
            &(ls_linear_fwd){
                .x = x, .w = x, .y = A, .M = rows, .N = rows, .K = cols, .layout = LS_LAYOUT_NK});
    k->linear_fwd(stream,
                  &(ls_linear_fwd){.x = A, .w = A, .y = B, .M = side, .N = side, .K = side});
    k->muon(stream, &(ls_muon){.part = LS_MUON_POLY,
                               .x = B,
                               .from = A,
                               .rows = side,
                               .cols = side,
                               .a = poly_a,
                               .b = poly_b,
                               .c = poly_c});
    k->linear_fwd(
        stream,
        &(ls_linear_fwd){
            .x = tall ? x : B, .w = tall ? B : x, .y = to, .M = rows, .N = cols, .K = side});
}

/* The step of part number `part` of a weight. The look ahead lies in place of its gradient. */
static void step_part(ls_optim *o, const matrix *m, int part)
{
    const ls_optim_args *args = &o->args;
    const muon *u = o->own;
    const ls_kernels *k = args->kernels;
    int64_t first = part * m->cols;
    float *const *x = u->x;
    ls_muon a = {.part = LS_MUON_TAKE,
                 .x = x[0],
                 .from = args->arrays.grad + m->g + first,
                 .rows = m->rows,
                 .cols = m->cols,
                 .ld = m->ld};

    k->muon(args->stream, &a);
    k->norm2(args->stream, &(ls_norm2){.x = x[0],
                                       .partials = args->partials,
                                       .result = u->norm,
                                       .state = args->arrays.state,
                                       .n = m->rows * m->cols});
    a.part = LS_MUON_SCALE;
    a.result = u->norm;
    k->muon(args->stream, &a);
    for (int i = 0; i < ITERATIONS; i++)
        iterate(o, m, x[i % 2], x[(i + 1) % 2]);
    a.part = LS_MUON_STEP;
    a.x = x[ITERATIONS % 2];
    a.w = args->arrays.w + m->w + first;
    a.scale = 0.2f * sqrtf((float)ls_max_i64(m->rows, m->cols));
    a.state = args->arrays.state;
    a.result = args->arrays.norm;
    if (args->copy) {
        a.copy = (char *)args->copy + (m->w + first) * ls_dtype_bytes(args->copy_type);
        a.copy_type = args->copy_type;
        a.rounding = args->rounding;
        a.rounding.gap += m->w + first;
    }
    k->muon(args->stream, &a);
}

/* --- an update -------------------------------------------------------------------------------- */

/* From each rank that has made some matrices orthogonal, the run of weights that they lie in. */
static ls_status broadcast_weights(const ls_optim *o)
{
    const ls_optim_ranks *ranks = &o->args.ranks;
    const muon *u = o->own;
    const matrix *m = u->matrices;
    ls_status st = LS_OK;

    for (int i = 0, end; i < u->n_matrices && st == LS_OK; i = end) {
        for (end = i + 1; end < u->n_matrices && m[end].owner == m[i].owner;)
            end++;
        int64_t last = m[end - 1].w + m[end - 1].rows * m[end - 1].ld;
        st = ranks->broadcast(ranks->context, m[i].owner, o->args.arrays.w + m[i].w,
                              (last - m[i].w) * (int64_t)sizeof(float));
    }
    return st;
}

/* AdamW on what is no matrix; of matrices the moment, and its look ahead in place of the gradient.
 */
static void move_moments(ls_optim *o)
{
    const ls_optim_args *a = &o->args;
    const muon *u = o->own;

    a->ranks.elements(a->ranks.context);
    a->kernels->momentum(a->stream, &(ls_momentum){.m = a->arrays.m,
                                                   .grad = a->arrays.grad,
                                                   .spans = u->spans,
                                                   .n_spans = u->n_spans,
                                                   .n = u->n,
                                                   .state = a->arrays.state,
                                                   .result = a->arrays.norm});
}

static ls_status update(ls_optim *o)
{
    const ls_optim_ranks *ranks = &o->args.ranks;
    const muon *u = o->own;
    ls_status st = LS_OK;

    move_moments(o);
    if (ranks->divides) {
        LS_TRY(st, ranks->gather(ranks->context, o->args.arrays.grad), out);
        LS_TRY(st, ranks->gather(ranks->context, o->args.arrays.w), out);
    }
    for (int i = 0; i < u->n_matrices; i++)
        for (int k = 0; k < u->matrices[i].parts && u->matrices[i].owner == ranks->rank; k++)
            step_part(o, &u->matrices[i], k);
    if (ranks->ranks > 1)
        st = broadcast_weights(o);
out:
    return st;
}

static void elements(const ls_kernels *kernels, ls_stream *stream, const ls_optimizer_update *spans)
{
    kernels->adamw(stream, spans);
}

const ls_optim_row ls_optim_muon = {.elements = elements,
                                    .work = work_of,
                                    .open = open_muon,
                                    .close = close_muon,
                                    .update = update,
                                    .redo = move_moments};
