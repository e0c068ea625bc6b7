/* pass_sent.c -- the moves of pass_tensor.c and pass_context.c, counted from the shapes. */
#include "model/pass_sent.h"

#include "model/pass_impl.h"

int64_t ls_pass_cp_sent(const ls_pass_args *args, int64_t B, int64_t T, bool backward)
{
    int64_t n = args->cp_group.ranks, first = ls_pass_first_block(args),
            end = ls_pass_end_block(args);
    int64_t elements = ls_pass_kv_elements(args, B, T), again = 0;
    int64_t kv = elements * ls_dtype_bytes(args->type), dkv = elements * (int64_t)sizeof(float);

    if (!ls_pass_is_cp(args))
        return 0;
    if (!backward)
        return (end - first) * (n - 1) * kv;
    int64_t low = ls_min_i64(ls_pass_lowest(args), end);
    for (int64_t l = low; l < end; l++)
        if (ls_pass_recompute_of(args, l) == LS_RECOMPUTE_FULL)
            again += ls_pass_times_recomputed(args, l);
    int64_t choices =
        args->model->shape.E > 0 && args->model->shape.balance > 0 && args->model->split.rank == 0
            ? B * args->model->shape.E * (int64_t)sizeof(int32_t)
            : 0;

    return (n - 1) * ((end - first) * kv + (end - low) * (kv + dkv) + again * kv) +
           (end - low) * ls_collectives_sent(LS_COLLECTIVES_SUM, n, choices);
}

/* Of `joins` sums and `wholes` gathers of a stream of M rows. */
static int64_t sent_of(const ls_pass_args *args, int64_t M, int64_t joins, int64_t wholes)
{
    int64_t ranks = args->model->split.ranks, share = ls_pass_share(args, M);
    int64_t bytes = share * args->model->shape.C * ls_dtype_bytes(args->type);

    if (ls_pass_divides_rows(args))
        return joins * ls_collectives_sent(LS_COLLECTIVES_SCATTER, ranks, bytes) +
               wholes * ls_collectives_sent(LS_COLLECTIVES_GATHER, ranks, bytes);
    return joins * ls_collectives_sent(LS_COLLECTIVES_SUM, ranks, bytes);
}

/* What block l moves again in backward. */
static void count_again(const ls_pass_args *args, int64_t l, int64_t *joins, int64_t *wholes,
                        int64_t *norms)
{
    bool full = ls_pass_recompute_of(args, l) == LS_RECOMPUTE_FULL;
    int times = ls_pass_times_recomputed(args, l);
    bool experts = args->model->shape.E > 0; /* those of other ranks keep the rows that came */
    bool mlp_input = experts ? !ls_pass_is_ep(args) : full || !args->model->shape.gated;

    *joins += times * full;
    *norms += times * full;
    *wholes += times * (full + mlp_input);
}

/* Inputs of a block's layers that both halves of a backward gather: for adapters, then for weights.
 */
static int64_t gathered_twice(const ls_pass_args *args, int64_t l)
{
    const ls_block_params *p = &args->model->blocks[l];
    ls_pass_layers at;

    ls_pass_layers_of(args->model, l, &at);
    return args->late == 0 ? 0 : ls_pass_has_adapter(p, &at.qkv) + ls_pass_has_adapter(p, &at.fc);
}

/* Of logits of routers, of so many blocks. */
static int64_t logits_sent(const ls_pass_args *args, int64_t M, int64_t blocks)
{
    int64_t bytes = M * args->model->shape.E * ls_dtype_bytes(args->type);

    return ls_pass_shares_logits(args)
               ? blocks * ls_collectives_sent(LS_COLLECTIVES_SUM, args->model->split.ranks, bytes)
               : 0;
}

/* Blocks that choose experts again in backward; those of other ranks keep the rows that came. */
static int64_t routes_again(const ls_pass_args *args, int64_t low, int64_t end)
{
    int64_t n = 0;

    for (int64_t l = low; l < end && !ls_pass_is_ep(args); l++)
        if (ls_pass_recompute_of(args, l) == LS_RECOMPUTE_FULL)
            n += ls_pass_times_recomputed(args, l);
    return n;
}

/* Of the head: scores of all rows. */
static int64_t scores_sent(const ls_pass_args *args, int64_t M)
{
    int64_t most = ls_pass_head_rows(args), sent = 0;

    for (int64_t first = 0; first < M; first += most)
        sent += ls_collectives_sent(LS_COLLECTIVES_GATHER, args->model->split.ranks,
                                    4 * ls_pass_scores(ls_min_i64(most, M - first)));
    return sent;
}

int64_t ls_pass_sent(const ls_pass_args *args, int64_t B, int64_t T, bool backward)
{
    int64_t first = ls_pass_first_block(args), end = ls_pass_end_block(args), M = B * T;
    int64_t embedding = ls_pass_has_embedding(args), head = ls_pass_has_head(args);
    int64_t joins = embedding + 2 * (end - first), wholes = head + 2 * (end - first);
    int64_t norms = end - first; /* over all heads, where the model has those */
    int64_t routes = end - first;
    int64_t cp_group = ls_pass_cp_sent(args, B, T, backward);

    if (!ls_pass_is_split(args))
        return cp_group;
    if (backward) {
        int64_t low = ls_min_i64(ls_pass_lowest(args), end), back = end - low;
        const ls_model *model = args->model;
        joins += head + 2 * back;
        wholes += (embedding && (model->wte.g >= 0 || model->wpe.g >= 0)) + 4 * back;
        norms += back;
        routes += routes_again(args, low, end);
        for (int64_t l = low; l < end; l++) {
            count_again(args, l, &joins, &wholes, &norms);
            wholes += gathered_twice(args, l);
        }
    }
    norms = args->model->shape.qk_wide ? norms : 0;
    return cp_group + (head ? scores_sent(args, M) : 0) + sent_of(args, M, joins, wholes) +
           logits_sent(args, M, routes) +
           norms * ls_collectives_sent(LS_COLLECTIVES_SUM, args->model->split.ranks,
                                       2 * M * (int64_t)sizeof(float));
}
