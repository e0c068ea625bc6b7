/* pass_tensor.c -- where the ranks of a split model meet: four times in a block, forward and back.
 *
 * Streams between the layers are whole on every rank, or divided by rows (`sequence`). A layer that
 * is divided by outputs reads all rows of its input; one that is divided by inputs leaves a part of
 * a sum, of all rows:
 *
 *                      streams are whole         streams are divided
 *   whole (into)       nothing to do             gather the shares of all ranks
 *   join (out of)      sum, on every rank        sum, to each rank its own rows
 *
 * Backward exchanges the two: what was gathered is joined. A share has the same number of rows on every
 * rank; the last ones of a call may have fewer or none. Rows are counted so that shares begin
 * where communicators divide (LS_COLLECTIVES_UNIT).
 *
 *   7 rows, 3 ranks:  | 0 1 2 | 3 4 5 | 6 - - |
 *
 * Where q and k are normalised over all heads (OLMoE, OLMo-2), each rank has some heads of a row and
 * the norm needs the mean square of all. Ranks sum two numbers of each row, forward and back:
 *
 *   rank 0 has q0 q1, rank 1 has q2 q3:   q0^2 + q1^2  and  q2^2 + q3^2  ->  sum / 4, on both
 *
 * On one rank all of this is nothing: a tensor is its own whole. */
#include "model/pass_impl.h"

bool ls_pass_is_split(const ls_pass_args *args)
{
    return args->model->split.ranks > 1;
}

bool ls_pass_divides_rows(const ls_pass_args *args)
{
    return args->model->split.sequence;
}

/* Rows of which the elements are a multiple of LS_COLLECTIVES_UNIT. */
static int64_t row_unit(int64_t C)
{
    int64_t unit = 1;

    while (unit * C % LS_COLLECTIVES_UNIT != 0)
        unit *= 2;
    return unit;
}

int64_t ls_pass_share(const ls_pass_args *args, int64_t M)
{
    int64_t ranks = args->model->split.ranks;

    if (!ls_pass_divides_rows(args))
        return M;
    return ls_round_up((M + ranks - 1) / ranks, row_unit(args->model->shape.C));
}

int64_t ls_pass_stream(const ls_model *model, int64_t tokens)
{
    const ls_pass_args args = {.model = model};

    return ls_pass_share(&args, tokens) * model->shape.C;
}

int64_t ls_pass_own_rows(const ls_pass *pass, const ls_pass_call *call, int64_t *first_out)
{
    int64_t M = call->B * call->T, share = ls_pass_share(&pass->args, M);

    *first_out = ls_pass_divides_rows(&pass->args) ? pass->args.model->split.rank * share : 0;
    return ls_max_i64(0, ls_min_i64(share, M - *first_out));
}

/* The move that makes a share whole, or a sum of parts a share. */
static ls_collectives_ask ask_of(const ls_pass *pass, const ls_pass_call *call,
                                 ls_collectives_move move, const void *from, void *to)
{
    int64_t share = ls_pass_share(&pass->args, call->B * call->T);

    return (ls_collectives_ask){.move = move,
                                .type = pass->args.type,
                                .from = from,
                                .to = to,
                                .n = share * pass->args.model->shape.C};
}

static void run(const ls_pass *pass, const ls_collectives_ask *ask)
{
    pass->args.collectives->run(pass->args.collectives->context, pass->args.stream, ask);
}

static int start(const ls_pass *pass, const ls_collectives_ask *ask)
{
    return pass->args.collectives->start(pass->args.collectives->context, pass->args.stream, ask);
}

void ls_pass_wait(const ls_pass *pass, int number)
{
    if (number >= 0)
        pass->args.collectives->wait(pass->args.collectives->context, pass->args.stream, number);
}

void *ls_pass_whole_start(const ls_pass *pass, const ls_pass_call *call, void *share, void *into,
                          int *number_out)
{
    ls_collectives_ask ask = ask_of(pass, call, LS_COLLECTIVES_GATHER, share, into);

    *number_out = -1;
    if (!ls_pass_divides_rows(&pass->args))
        return share;
    *number_out = start(pass, &ask);
    return into;
}

void *ls_pass_whole(const ls_pass *pass, const ls_pass_call *call, void *share, void *into)
{
    ls_collectives_ask ask = ask_of(pass, call, LS_COLLECTIVES_GATHER, share, into);

    if (!ls_pass_divides_rows(&pass->args))
        return share;
    run(pass, &ask);
    return into;
}

void *ls_pass_part(const ls_pass *pass, void *share)
{
    return ls_pass_divides_rows(&pass->args) ? pass->whole_y : share;
}

/* One rank adds its product to a stream that all have; of a divided stream each adds to its rows,
 * and the others' parts of these begin at zero:
 *
 *   2 ranks, shares of 2 rows    rank 0: | a b 0 0 | + its product,  rank 1: | 0 0 c d | + its own
 */
bool ls_pass_part_onto(const ls_pass *pass, const ls_pass_call *call, void *share)
{
    const ls_model *model = pass->args.model;
    int64_t n = ls_pass_share(&pass->args, call->B * call->T) * model->shape.C;
    int64_t bytes = n * ls_dtype_bytes(pass->args.type);
    char *whole = pass->whole_y;

    if (!ls_pass_divides_rows(&pass->args))
        return model->split.rank == 0;
    pass->args.kernels->fill(
        pass->args.stream,
        &(ls_fill){.x = pass->whole_y, .n = model->split.ranks * bytes / (int64_t)sizeof(float)});
    ls_stream_copy(pass->args.stream, whole + model->split.rank * bytes, share, bytes);
    return true;
}

static ls_collectives_ask joining(const ls_pass *pass, const ls_pass_call *call, void *share)
{
    bool rows = ls_pass_divides_rows(&pass->args);

    return ask_of(pass, call, rows ? LS_COLLECTIVES_SCATTER : LS_COLLECTIVES_SUM,
                  ls_pass_part(pass, share), share);
}

int ls_pass_join_start(const ls_pass *pass, const ls_pass_call *call, void *share)
{
    ls_collectives_ask ask = joining(pass, call, share);

    return ls_pass_is_split(&pass->args) ? start(pass, &ask) : -1;
}

void ls_pass_join(const ls_pass *pass, const ls_pass_call *call, void *share)
{
    ls_collectives_ask ask = joining(pass, call, share);

    if (ls_pass_is_split(&pass->args))
        run(pass, &ask);
}

/* With divided streams a half has rows of each rank's share, so that each gets half of its own:
 *
 *   2 ranks, shares of 4 rows   | 0 1 2 3 | 4 5 6 7 |     halves   | 0 1 4 5 |   | 2 3 6 7 |
 */
bool ls_pass_half_of(const ls_pass *pass, const ls_pass_call *call, void *share, int which,
                     ls_pass_half *half_out)
{
    enum { FEWEST = 4 }; /* rows: with fewer a message is nothing but its delay */
    const ls_pass_args *args = &pass->args;
    bool rows = ls_pass_divides_rows(args);
    int64_t M = call->B * call->T, C = args->model->shape.C, each = ls_pass_share(args, M);
    int64_t first = ls_round_up((each + 1) / 2, row_unit(C));
    int pieces = rows ? args->model->split.ranks : 1;

    if (!ls_pass_is_split(args) || !args->collectives->overlaps || each - first < FEWEST)
        return false;
    *half_out = (ls_pass_half){
        .first = which == 0 ? 0 : first,
        .rows = which == 0 ? first : each - first,
        .stride = each,
        .pieces = pieces,
        .to = ls_pass_at(pass, ls_pass_part(pass, share), which == 0 ? 0 : first * pieces * C)};
    return true;
}

int ls_pass_join_half(const ls_pass *pass, const ls_pass_half *half, void *share)
{
    int64_t C = pass->args.model->shape.C;

    return start(pass, &(ls_collectives_ask){.move = half->pieces > 1 ? LS_COLLECTIVES_SCATTER
                                                                      : LS_COLLECTIVES_SUM,
                                             .type = pass->args.type,
                                             .from = half->to,
                                             .to = ls_pass_at(pass, share, half->first * C),
                                             .n = half->rows * C});
}

/* --- norms over all heads --------------------------------------------------------------------- */

static void wide_part(const ls_pass *pass, const ls_pass_call *call, const ls_qkv rows[2],
                      ls_qkv_part part, bool forward)
{
    const ls_kernels *k = pass->args.kernels;

    for (int which = 0; which < 2; which++) {
        ls_qkv row = rows[which];
        row.part = part;
        row.sums = part == LS_QKV_WHOLE ? NULL : pass->qk_sums + which * call->B * call->T;
        row.ranks = pass->args.model->split.ranks;
        if (part == LS_QKV_SUMS)
            row.dq_norm = NULL; /* it comes with the rest */
        (forward ? k->qkv_fwd : k->qkv_bwd)(pass->args.stream, &row);
    }
}

/* All ranks have the same number of elements of each row of q, and of k. Where ranks share key/value
 * heads, each head has the same number of copies, so the mean of squares is that of the whole. Backward
 * the sum goes over all parts of the gradient, once, and each copy of a head takes its part of the
 * mean: divided by the elements of all ranks it is that. */
void ls_pass_wide_norms(const ls_pass *pass, const ls_pass_call *call, const ls_qkv rows[2],
                        bool forward)
{
    if (!ls_pass_is_split(&pass->args)) {
        wide_part(pass, call, rows, LS_QKV_WHOLE, forward);
        return;
    }
    wide_part(pass, call, rows, LS_QKV_SUMS, forward);
    run(pass, &(ls_collectives_ask){.move = LS_COLLECTIVES_SUM,
                                    .type = LS_F32,
                                    .from = pass->qk_sums,
                                    .to = pass->qk_sums,
                                    .n = 2 * call->B * call->T});
    wide_part(pass, call, rows, LS_QKV_APPLY, forward);
}

/* --- the head --------------------------------------------------------------------------------- */

/* Rows whose logits are made at a time. All ranks take the same number, even those with one token less. */
int64_t ls_pass_head_rows(const ls_pass_args *args)
{
    enum { LOGIT_BYTES = 64 << 20, FEWEST = 128 };
    int64_t M = args->B * args->T, ranks = args->model->split.ranks;
    int64_t row = 4 * ((args->model->whole.V + ranks - 1) / ranks);

    return ls_min_i64(M, ls_max_i64(FEWEST, LOGIT_BYTES / row));
}

int64_t ls_pass_scores(int64_t rows)
{
    return ls_round_up(3 * rows, LS_COLLECTIVES_UNIT);
}

void ls_pass_head_parts(const ls_pass *pass, const ls_pass_call *call, ls_head args)
{
    const ls_model *model = pass->args.model;
    int64_t M = call->B * call->T, most = ls_pass_head_rows(&pass->args), C = model->shape.C;
    const ls_head whole = args;

    args.first = model->split.token;
    args.vocab = model->whole.V;
    args.ranks = model->split.ranks;
    args.rank = model->split.rank;
    args.scores = pass->scores;
    args.all = pass->all_scores;
    args.leaves = 1;
    for (int64_t first = 0; first < M; first += most) {
        args.M = ls_min_i64(most, M - first);
        args.h = (const char *)whole.h + first * C * ls_dtype_bytes(whole.type);
        args.dh = whole.dh ? ls_pass_at(pass, whole.dh, first * C) : NULL;
        args.targets = whole.targets + first;
        args.losses = whole.losses + first;
        args.weights = whole.weights ? whole.weights + first : NULL;
        args.rank_stride = ls_pass_scores(args.M);
        args.accumulate = whole.accumulate || first > 0;
        args.part = LS_HEAD_SCORES;
        pass->args.kernels->head(pass->args.stream, &args);
        run(pass, &(ls_collectives_ask){.move = LS_COLLECTIVES_GATHER,
                                        .type = LS_F32,
                                        .from = pass->scores,
                                        .to = pass->all_scores,
                                        .n = args.rank_stride});
        args.part = LS_HEAD_JOIN;
        pass->args.kernels->head(pass->args.stream, &args);
    }
}

void ls_pass_logits_of_all(const ls_pass *pass, float *logits)
{
    run(pass, &(ls_collectives_ask){.move = LS_COLLECTIVES_SUM,
                                    .type = LS_F32,
                                    .from = logits,
                                    .to = logits,
                                    .n = pass->args.model->whole.V});
}
