/* pass_expert_parallel.c -- experts that other ranks have (mesh.ep): expert parallel.
 *
 * Every rank has tokens of its own and routes them; experts are divided. A rank's routed rows are
 * sorted by expert, so those for one rank lie side by side. An all-to-all takes them to the ranks of
 * their experts, which group them by expert, apply the experts and send the results back the same
 * way. No row is dropped.
 *
 *   2 ranks, experts a b | c d, 2 tokens each, 2 experts for each token
 *
 *             rank 0: tokens 0 1         rank 1: tokens 2 3
 *   rows      a0 b1 | c0 d1              a2 | c2 c3 d3
 *   counts    1 1 | 1 1                  1 0 | 2 1             to each rank those of its experts
 *   deal      a0 b1 | a2                 c0 d1 | c2 c3 d3      all-to-all: by source
 *   regroup   a0 a2 | b1                 c0 c2 c3 | d1 d3      by expert: products
 *   and back  a0 b1 | c0 d1              a2 | c2 c3 d3
 *
 * Backward sends the gradients of the results there and those of the inputs back. So a row for
 * another rank's expert crosses the network four times in a step, and its counts once.
 *
 * A rank learns how many rows arrive only after memory was reserved, so there is room for all tokens
 * of all ranks. A rank without a call in a round still serves the others' rows (ls_pass_serve).
 *
 * Where the model is split as well (mesh.tp), the ranks of a tensor-parallel group have the same
 * tokens, route them alike and hold parts of the same experts. Rows go to the rank of the same number
 * in another group, and what comes back is a part of a sum over the own group.
 *
 * With discrete device memory the host waits once in a layer to learn how many rows go where. It
 * keeps tables of these numbers, and the device reads copies of them. */
#include "model/pass_impl.h"

#include "base/time.h"

enum { WAIT_S = 600 };

bool ls_pass_is_ep(const ls_pass_args *args)
{
    return args->model->split.ep_ranks > 1;
}

int64_t ls_pass_ep_rows(const ls_pass_args *args)
{
    const ls_model_split *split = &args->model->split;
    int64_t tokens = ls_max_i64(args->B * args->T, args->reach);

    return split->ep_ranks * tokens * ls_min_i64(args->model->shape.K, split->experts);
}

/* --- numbers of rows -------------------------------------------------------------------------- */

/* The host's tables of a block: of the own rows and of rows by source and by expert E + 1 numbers
 * each, and of the own experts. */
static int64_t table_numbers(const ls_pass *pass)
{
    return 3 * (pass->args.model->shape.E + 1) + pass->args.model->split.experts + 1;
}

static int64_t tables_bytes(const ls_pass *pass)
{
    const ls_model *model = pass->args.model;
    int64_t blocks = ls_pass_slots(&pass->args) * model->shape.L, E = model->shape.E;

    return (blocks * table_numbers(pass) + 2 * E) * (int64_t)sizeof(int32_t) +
           2 * model->split.ep_ranks * (int64_t)sizeof(int64_t);
}

/* In memory of the host's own; the first ones are wider. */
static ls_status open_tables(ls_pass *pass)
{
    const ls_model *model = pass->args.model;
    int64_t blocks = ls_pass_slots(&pass->args) * model->shape.L, E = model->shape.E;
    ls_status st = ls_device_host_alloc(ls_stream_device(pass->args.stream), tables_bytes(pass),
                                        "numbers of rows for experts", &pass->ep_tables);

    if (st != LS_OK)
        return st;
    pass->ep.elements = pass->ep_tables;
    int32_t *at = (int32_t *)(void *)(pass->ep.elements + 2 * model->split.ep_ranks);
    pass->ep.own = at;
    pass->ep.come = at + E;
    at += 2 * E;
    for (int64_t i = 0; i < blocks; i++, at += table_numbers(pass))
        pass->all[i].experts.host = (ls_pass_tables){.first = at,
                                                     .by_source = at + E + 1,
                                                     .by_expert = at + 2 * (E + 1),
                                                     .first_here = at + 3 * (E + 1)};
    return LS_OK;
}

ls_status ls_pass_ep_open(ls_pass *pass)
{
    int64_t blocks = ls_pass_slots(&pass->args) * pass->args.model->shape.L;

    if (!ls_pass_is_ep(&pass->args))
        return LS_OK;
    if (pass->discrete)
        return open_tables(pass);
    for (int64_t i = 0; i < blocks; i++) {
        ls_pass_experts *b = &pass->all[i].experts;
        b->host = (ls_pass_tables){b->first, b->by_source, b->by_expert, b->first_here};
    }
    return LS_OK;
}

void ls_pass_ep_close(ls_pass *pass)
{
    if (pass->ep_tables)
        ls_device_host_free(ls_stream_device(pass->args.stream), pass->ep_tables,
                            tables_bytes(pass));
}

static void wait_for_device(const ls_pass *pass)
{
    ls_stream *stream = pass->args.stream;

    if (ls_stream_sync(stream, ls_time_now_ns() + WAIT_S * LS_NS_PER_S) != LS_OK)
        ls_stream_fail(stream);
}

/* Where the own rows begin, as the device has sorted them. */
static void learn_first(const ls_pass *pass, const ls_pass_experts *b)
{
    if (!pass->discrete)
        return;
    ls_stream_copy_out(pass->args.stream, b->host.first, b->first,
                       (pass->args.model->shape.E + 1) * (int64_t)sizeof *b->first);
    wait_for_device(pass);
}

/* Copy the tables to the device, for its rows. The copies have ended when the host writes the tables
 * of this block again: in a call with tokens it waits in learn_first(), in one without at its
 * beginning. */
static void send_tables(const ls_pass *pass, const ls_pass_experts *b)
{
    int64_t size = sizeof(int32_t), E = pass->args.model->shape.E;
    int64_t n = pass->args.model->split.experts;

    if (!pass->discrete)
        return;
    ls_stream_copy_in(pass->args.stream, b->by_source, b->host.by_source, (E + 1) * size);
    ls_stream_copy_in(pass->args.stream, b->by_expert, b->host.by_expert, (E + 1) * size);
    ls_stream_copy_in(pass->args.stream, b->first_here, b->host.first_here, (n + 1) * size);
}

/* Tell each rank how many rows every rank has for its experts; then work out where rows will lie. */
static void exchange_counts(const ls_pass *pass, const ls_pass_experts *b)
{
    const ls_model_split *split = &pass->args.model->split;
    const ls_pass_ep_buffers *ep = &pass->ep;
    const ls_pass_tables *to = &b->host;
    int64_t ranks = split->ep_ranks, n = split->experts;
    int32_t at = 0;

    for (int64_t e = 0; e < pass->args.model->shape.E; e++)
        ep->own[e] = to->first[e + 1] - to->first[e];
    pass->args.ep_group->deal(
        pass->args.ep_group->context, pass->args.stream,
        &(ls_collectives_deal){
            .type = LS_I32, .from = ep->own, .to = ep->come, .n = n, .host = true});
    if (ls_stream_failed(pass->args.stream))
        return;
    for (int64_t i = 0; i < ranks * n; at += ep->come[i++])
        to->by_source[i] = at;
    to->by_source[ranks * n] = at;
    LS_BUG_IF(at > ls_pass_ep_rows(&pass->args), "%d rows for the experts of a rank", at);
    at = 0;
    for (int64_t i = 0; i < n * ranks; i++) {
        to->by_expert[i] = at;
        at += ep->come[i % ranks * n + i / ranks];
    }
    to->by_expert[n * ranks] = at;
    for (int64_t e = 0; e <= n; e++)
        to->first_here[e] = to->by_expert[e * ranks];
    send_tables(pass, b);
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Send rows to the ranks of their experts, or back. */
static void deal_rows(const ls_pass *pass, const ls_pass_experts *b, const void *from, void *to,
                      bool back)
{
    const ls_model_split *split = &pass->args.model->split;
    int64_t ranks = split->ep_ranks, n = split->experts, C = pass->args.model->shape.C;
    int64_t *there = pass->ep.elements, *here = there + ranks;

    if (ls_stream_failed(pass->args.stream))
        return;
    for (int64_t r = 0; r < ranks; r++) {
        there[r] = (b->host.first[(r + 1) * n] - b->host.first[r * n]) * C;
        here[r] = (b->host.by_source[(r + 1) * n] - b->host.by_source[r * n]) * C;
    }
    pass->args.ep_group->deal(pass->args.ep_group->context, pass->args.stream,
                              &(ls_collectives_deal){.type = pass->args.type,
                                                     .from = from,
                                                     .to = to,
                                                     .sent = back ? here : there,
                                                     .received = back ? there : here});
}

static void regroup(const ls_pass *pass, const ls_pass_experts *b, const void *from, void *to,
                    bool back)
{
    const ls_model *model = pass->args.model;

    ls_experts_regroup(pass->args.stream,
                       &(ls_regroup){.by_source = b->by_source,
                                     .by_expert = b->by_expert,
                                     .sources = model->split.ep_ranks,
                                     .experts = model->split.experts,
                                     .row_bytes = model->shape.C * ls_dtype_bytes(pass->args.type),
                                     .from = from,
                                     .to = to,
                                     .back = back});
}

/* The experts of this rank, over the rows that have come. */
static ls_route route_here(const ls_pass *pass, const ls_pass_experts *b)
{
    return (ls_route){.type = pass->args.type,
                      .first = b->first_here,
                      .E = pass->args.model->split.experts,
                      .M = b->host.first_here[pass->args.model->split.experts],
                      .K = 1,
                      .leaves = 1};
}

static void serve_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_pass_experts *b = &pass->blocks[l].experts;
    const ls_pass_ep_buffers *ep = &pass->ep;

    exchange_counts(pass, b);
    ls_route route = route_here(pass, b);
    ls_experts here = ls_pass_experts_of(pass, call, l, &route, false);
    deal_rows(pass, b, ep->away, ep->come_rows, false);
    regroup(pass, b, ep->come_rows, b->xs, false);
    here.ys = ep->grouped;
    ls_experts_apply(pass->args.stream, &here);
    regroup(pass, b, ep->grouped, ep->come_rows, true);
    deal_rows(pass, b, ep->come_rows, b->ys, true);
}

static void serve_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_pass_experts *b = &pass->blocks[l].experts;
    const ls_pass_ep_buffers *ep = &pass->ep;
    ls_route route = route_here(pass, b);
    ls_experts here = ls_pass_experts_of(pass, call, l, &route, true);

    deal_rows(pass, b, b->ys, ep->come_rows, false);
    regroup(pass, b, ep->come_rows, ep->grouped, false);
    here.ys = ep->grouped;
    here.accumulate = call->accumulate;
    ls_experts_apply_back(pass->args.stream, &here);
    regroup(pass, b, b->xs, ep->come_rows, true);
    deal_rows(pass, b, ep->come_rows, ep->away, true);
}

void ls_pass_ep_again(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    ls_route route = route_here(pass, &pass->blocks[l].experts);
    ls_experts here = ls_pass_experts_of(pass, call, l, &route, false);

    ls_experts_activate(pass->args.stream, &here);
}

void ls_pass_ep_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                        const ls_experts *own)
{
    ls_experts leaving = *own;

    leaving.xs = pass->ep.away;
    ls_experts_gather(pass->args.stream, &leaving);
    learn_first(pass, &pass->blocks[l].experts);
    serve_forward(pass, call, l);
    ls_experts_combine(pass->args.stream, own);
}

void ls_pass_ep_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                         const ls_experts *own)
{
    ls_experts returned = *own;

    ls_experts_spread(pass->args.stream, own);
    serve_backward(pass, call, l);
    returned.xs = pass->ep.away;
    ls_experts_collect(pass->args.stream, &returned);
}

static void serve_down(const ls_pass *pass, const ls_pass_call *call)
{
    int64_t end = ls_pass_end_block(&pass->args), L = pass->args.model->shape.L;

    ls_pass_report(pass, call, L + 2);
    ls_pass_report(pass, call, L + 1);
    for (int64_t l = end - 1; l >= ls_pass_lowest(&pass->args); l--) {
        ls_pass_need(call, 1 + l);
        if (ls_pass_recompute_of(&pass->args, l) != LS_RECOMPUTE_NONE)
            ls_pass_ep_again(pass, call, l);
        serve_backward(pass, call, l);
        if (l > 0)
            ls_pass_report(pass, call, 1 + l);
    }
    ls_pass_report(pass, call, 0);
}

void ls_pass_serve(ls_pass *pass, const ls_pass_call *call, bool backward)
{
    int64_t begin = ls_pass_first_block(&pass->args), end = ls_pass_end_block(&pass->args);
    int64_t E = pass->args.model->shape.E, L = pass->args.model->shape.L;

    ls_pass_take(pass, call);
    if (backward) {
        serve_down(pass, call);
        return;
    }
    if (pass->discrete) /* the call before may still read the tables */
        wait_for_device(pass);
    ls_pass_need(call, 0);
    for (int64_t l = begin; l < end; l++) {
        int32_t *first = pass->blocks[l].experts.host.first;
        memset(first, 0, (size_t)(E + 1) * sizeof *first);
        ls_pass_need(call, 1 + l);
        serve_forward(pass, call, l);
    }
    ls_pass_need(call, 1 + L);
}
