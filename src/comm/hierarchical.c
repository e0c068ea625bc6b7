/* hierarchical.c -- a large all-reduce over several nodes with several ranks each, by levels: summed inside
 * each node, then between nodes, then gathered inside each node.
 *
 *       node 0:  rank 0  rank 1        node 1:  rank 2  rank 3
 *                [0 1]   [0 1]                  [0 1]   [0 1]     both halves everywhere
 *     scatter    [0 .]   [. 1]                  [0 .]   [. 1]     sums inside each node
 *     between      0 <-----|----------------------0     |         rank 0 with 2, 1 with 3
 *                          1 <--------------------------1
 *     gather     [0 1]   [0 1]                  [0 1]   [0 1]
 *
 * A large buffer is cut into pieces, so that one piece is between the nodes while the next is
 * scattered and the one before is gathered. 16 MiB go in 4 pieces:
 *
 *       scatter    0  1  2  3
 *       between       0.....1.....2.....3.....      one at a time, in order
 *       gather              0     1     2     3
 *
 * Requests start in the same order on all ranks of a node: scatters and gathers have a group each,
 * and only one request by levels is up at a time. Which algorithm the middle part takes is the cost
 * model's choice, as for any other collective (request.c). */
#include "comm/comm_impl.h"

static char *at(void *base, const ls_coll *coll, int64_t element)
{
    return (char *)base + element * ls_dtype_bytes(coll->type);
}

const char *ls_hierarchical_refuses(const ls_comm *comm, const ls_coll *coll)
{
    if (coll->kind != LS_COLL_ALL_REDUCE)
        return "does not do this collective";
    if (!comm->levels)
        return "needs several nodes with equally many ranks, more than one each";
    if (ls_dtype_bytes(coll->type) < 4)
        return "passes sums on, which rounds 16-bit sums more than once";
    if (coll->count < 16 * comm->ranks)
        return "needs 16 elements for each rank";
    return NULL;
}

/* The pieces of a request by levels, each with the part of it that this rank sums. */
static void cut(const ls_comm *c, ls_request *f)
{
    f->pieces = ls_cost_pieces(f->coll.count * ls_dtype_bytes(f->coll.type));
    f->piece = 0;
    for (int i = 0; i < f->pieces; i++) {
        ls_request_piece *p = &f->part[i];
        *p = (ls_request_piece){.stage = 0};
        ls_coll_range(f->coll.count, f->pieces, i, &p->first, &p->count);
        ls_coll_range(p->count, c->per_node, c->rank % c->per_node, &p->own, &p->own_count);
    }
}

static ls_status scatter(ls_comm *c, ls_request *f, ls_request_piece *p)
{
    bool in_place = f->coll.in == f->coll.out;
    ls_coll coll = f->coll;

    coll.kind = LS_COLL_REDUCE_SCATTER;
    coll.op = coll.op == LS_COLL_MEAN ? LS_COLL_SUM : coll.op;
    coll.count = p->count;
    coll.out = at(f->coll.out, &coll, p->first + (in_place ? 0 : p->own));
    coll.in = in_place ? coll.out : (const char *)f->coll.in + p->first * ls_dtype_bytes(coll.type);
    return ls_shm_coll_start(c->direct, &coll, &p->ticket);
}

/* All members exchange fingerprints of what they ask for, as the other ways do: a member that
 * counts differently may have chosen another way. */
static ls_status begin_fingerprint(ls_comm *c, ls_request *f)
{
    return ls_exec_fingerprint_begin(&f->fingerprint,
                                     &(ls_exec_args){.transport = c->fabric->transport,
                                                     .peers = c->world,
                                                     .coll = &f->coll,
                                                     .ranks = c->ranks,
                                                     .rank = c->rank,
                                                     .tag = f->tag},
                                     "levels");
}

bool ls_hierarchical_up(const ls_comm *c)
{
    for (const ls_request *f = c->head; f; f = f->next)
        if (f->way == LS_WAY_LEVELS && f->state == LS_REQUEST_ACTIVE)
            return true;
    return false;
}

ls_status ls_hierarchical_start(ls_comm *c, ls_request *f)
{
    ls_status st;

    cut(c, f);
    st = begin_fingerprint(c, f);
    for (int i = 0; st == LS_OK && i < f->pieces; i++)
        st = scatter(c, f, &f->part[i]);
    return st;
}

/* Between the nodes: the part of the piece that this rank has summed. */
static ls_status between(ls_comm *c, ls_request *f, ls_request_piece *p)
{
    ls_coll coll = f->coll;
    bool done = false;
    ls_status st;

    coll.count = p->own_count;
    coll.op = coll.op == LS_COLL_MEAN ? LS_COLL_SUM : coll.op;
    coll.out = at(f->coll.out, &coll, p->first + p->own);
    coll.in = coll.out;
    if (!f->plan) {
        uint64_t tag = f->tag + ((uint64_t)(p - f->part) << LS_EXEC_TAG_BITS);
        LS_TRY(st, ls_request_begin_exec(c, f, &coll, true, tag), out);
        if (!f->plan)
            goto out;
    }
    LS_TRY(st, ls_exec_poll(&f->exec, &done), out);
    if (!done)
        goto out;
    ls_request_end_exec(f);
    if (f->coll.op == LS_COLL_MEAN)
        ls_exec_scale(coll.type, coll.out, coll.count, 1.0 / c->ranks);
    coll.kind = LS_COLL_ALL_GATHER;
    coll.count = p->count;
    coll.out = at(f->coll.out, &coll, p->first);
    coll.in = coll.out;
    LS_TRY(st, ls_shm_coll_start(c->gather, &coll, &p->ticket), out);
    p->stage = 2;
    f->piece++;
out:
    return st;
}

/* Pieces go between the nodes one at a time and in order, so that all ranks send them in the same order. */
ls_status ls_hierarchical_move(ls_comm *c, ls_request *f, bool *done_out)
{
    ls_status st = LS_OK;
    bool agreed;
    int done = 0;

    LS_TRY(st, ls_exec_fingerprint_poll(&f->fingerprint, &agreed), out);
    for (int i = 0; i < f->pieces; i++) {
        ls_request_piece *p = &f->part[i];
        bool ended = false;
        if (p->stage == 0 || p->stage == 2) {
            LS_TRY(st, ls_shm_coll_poll(p->stage ? c->gather : c->direct, p->ticket, &ended), out);
            p->stage += ended;
        }
        if (p->stage == 1 && i == f->piece)
            LS_TRY(st, between(c, f, p), out);
        done += p->stage == 3;
    }
    *done_out = done == f->pieces && agreed;
out:
    return st;
}
