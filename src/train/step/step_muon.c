/* step_muon.c -- Muon (Keller Jordan): steps of matrices made orthogonal.
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
 * cut so that all have as much to do. Every rank has the whole gradient, or with ZeRO gets the look
 * ahead from those who have parts of it:
 *
 *   all          AdamW and momentum, on what they update
 *   with ZeRO    look ahead and AdamW's weights from their owners to all
 *   owners       their matrices: orthogonal, step
 *   all          new weights from each owner: one run of weights, vectors between them included,
 *                which are equal everywhere already
 */
#include "train/step/step_impl.h"

#include <math.h>
#include "base/mem.h"
#include "plan/memory.h"
#include "optim/optim.h"

enum { ITERATIONS = 5 };

/* Coefficients that lift small singular values quickly; they end between 0.7 and 1.2. */
static const float poly_a = 3.4445f, poly_b = -4.7750f, poly_c = 2.0315f;

/* --- opening ---------------------------------------------------------------------------------- */

/* Operations of an iteration, but for a factor. */
static double cost_of(const ls_step_matrix *m)
{
    double side = (double)ls_min_i64(m->rows, m->cols);

    return side * (2 * (double)m->rows * (double)m->cols + side * side) * m->parts;
}

/* Runs of matrices with nearly equal work. */
static void deal(ls_step *s)
{
    int ranks = s->args.dp ? ls_mesh_ranks(&ls_dp_about(s->args.dp)->mesh) : 1;
    double all = 0, before = 0;

    for (int i = 0; i < s->muon.n_matrices; i++)
        all += cost_of(&s->muon.matrices[i]);
    for (int i = 0; i < s->muon.n_matrices; i++) {
        ls_step_matrix *m = &s->muon.matrices[i];
        double cost = cost_of(m);
        m->owner = (int)((before + cost / 2) / all * ranks);
        before += cost;
    }
}

static void lay_out(ls_step *s, const ls_optim_work *work)
{
    char *at = s->work;

    s->muon.spans =
        ls_step_cut(&at, ls_memory_spans(s->args.model) * (int64_t)sizeof *s->muon.spans);
    for (int i = 0; i < 2; i++)
        s->muon.x[i] = ls_step_cut(&at, work->matrix * (int64_t)sizeof(float));
    for (int i = 0; i < 2; i++)
        s->muon.square[i] = ls_step_cut(&at, work->square * (int64_t)sizeof(float));
    s->muon.norm = ls_step_cut(&at, sizeof *s->muon.norm);
}

ls_status ls_step_open_muon(ls_step *s)
{
    const ls_model *model = s->args.model;
    ls_optim_work work = ls_optim_work_of(s->args.run, model);
    ls_adamw_span *spans = ls_mem_array((size_t)ls_memory_spans(model), sizeof *spans);
    ls_step_piece piece;
    ls_status st = LS_ENOMEM;

    s->muon.matrices = ls_mem_array((size_t)model->n_params, sizeof *s->muon.matrices);
    if (!spans || !s->muon.matrices)
        goto out;
    lay_out(s, &work);
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (!ls_optim_is_matrix(s->args.run, p))
            continue;
        s->muon.matrices[s->muon.n_matrices++] = (ls_step_matrix){.w = p->first,
                                                                  .g = p->trained,
                                                                  .rows = p->shape[0],
                                                                  .cols = p->shape[1] / p->parts,
                                                                  .ld = p->shape[1],
                                                                  .parts = p->parts};
        int64_t end = p->trained + p->count;
        for (int64_t at = p->trained; ls_step_own_piece(s, at, end, &piece);
             at = piece.first + piece.count) {
            spans[s->muon.n_spans++] =
                (ls_adamw_span){.first = piece.place, .w_first = piece.first, .count = piece.count};
            s->muon.n += piece.count;
        }
    }
    deal(s);
    st = ls_step_send(s, s->muon.spans, spans, s->muon.n_spans * (int64_t)sizeof *spans);
out:
    ls_mem_free(spans);
    return st;
}

void ls_step_close_muon(ls_step *s)
{
    ls_mem_free(s->muon.matrices);
    s->muon.matrices = NULL;
}

/* --- one matrix ------------------------------------------------------------------------------- */

/* to = (a I + b A + c A A) x, with A = x x^T, or from the right with A = x^T x where x is tall. */
static void iterate(ls_step *s, const ls_step_matrix *m, const float *x, float *to)
{
    const ls_kernels *k = s->args.kernels;
    ls_stream *stream = s->args.stream;
    float *A = s->muon.square[0], *B = s->muon.square[1];
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
static void step_part(ls_step *s, const ls_step_matrix *m, int part)
{
    const ls_kernels *k = s->args.kernels;
    int64_t first = part * m->cols;
    float **x = s->muon.x;
    ls_muon a = {.part = LS_MUON_TAKE,
                 .x = x[0],
                 .from = (const float *)s->grads[0] + m->g + first,
                 .rows = m->rows,
                 .cols = m->cols,
                 .ld = m->ld};

    k->muon(s->args.stream, &a);
    k->norm2(s->args.stream, &(ls_norm2){.x = x[0],
                                         .partials = s->partials,
                                         .result = s->muon.norm,
                                         .state = s->state,
                                         .n = m->rows * m->cols});
    a.part = LS_MUON_SCALE;
    a.result = s->muon.norm;
    k->muon(s->args.stream, &a);
    for (int i = 0; i < ITERATIONS; i++)
        iterate(s, m, x[i % 2], x[(i + 1) % 2]);
    a.part = LS_MUON_STEP;
    a.x = x[ITERATIONS % 2];
    a.w = (float *)s->state_memory[0] + m->w + first;
    a.scale = 0.2f * sqrtf((float)ls_max_i64(m->rows, m->cols));
    a.state = s->state;
    a.result = s->norm;
    if (s->copy && !ls_step_shares(s)) {
        a.copy = (char *)s->copy + (m->w + first) * ls_dtype_bytes(s->type);
        a.copy_type = s->type;
        a.rounding = ls_step_rounding(s->args.run, m->w + first);
    }
    k->muon(s->args.stream, &a);
}

/* --- a step ----------------------------------------------------------------------------------- */

/* From each rank that has made some matrices orthogonal, the run of weights that they lie in. */
static ls_status tell_weights(ls_step *s)
{
    const ls_step_matrix *m = s->muon.matrices;
    float *w = s->state_memory[0];
    ls_status st = LS_OK;

    for (int i = 0, end; i < s->muon.n_matrices && st == LS_OK; i = end) {
        for (end = i + 1; end < s->muon.n_matrices && m[end].owner == m[i].owner;)
            end++;
        int64_t last = m[end - 1].w + m[end - 1].rows * m[end - 1].ld;
        st = ls_step_tell(s, m[i].owner, w + m[i].w, (last - m[i].w) * (int64_t)sizeof *w);
    }
    return st;
}

ls_status ls_step_muon(ls_step *s, ls_step_clock *clock)
{
    int rank = s->args.dp ? ls_dp_about(s->args.dp)->mesh.rank : 0;
    ls_status st = LS_OK;

    ls_step_adamw(s);
    s->args.kernels->momentum(s->args.stream, &(ls_momentum){.m = s->state_memory[1],
                                                             .grad = s->grads[0],
                                                             .spans = s->muon.spans,
                                                             .n_spans = s->muon.n_spans,
                                                             .n = s->muon.n,
                                                             .state = s->state,
                                                             .result = s->norm});
    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    if (ls_step_divides(s)) {
        LS_TRY(st, ls_step_gather(s, s->grads[0]), out);
        LS_TRY(st, ls_step_gather(s, s->state_memory[0]), out);
        ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    }
    for (int i = 0; i < s->muon.n_matrices; i++)
        for (int k = 0; k < s->muon.matrices[i].parts && s->muon.matrices[i].owner == rank; k++)
            step_part(s, &s->muon.matrices[i], k);
    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    if (!s->args.dp)
        goto out;
    LS_TRY(st, tell_weights(s), out);
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    st = ls_step_weights_changed(s);
out:
    return st;
}
