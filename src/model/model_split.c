/* model_split.c -- nearly equal parts, and elements of boxes.
 *
 * Query heads must divide evenly, since attention takes most of what is uneven; there are several
 * heads to a key/value head, or several ranks. The MLP and the vocabulary are divided to the next
 * column and token: parts may differ by one, and nothing is padded. Experts must divide evenly: a
 * rank that has one more would have more memory and work than the others.
 *
 * Worked example, a query matrix of 4 heads of D = 2 and an MLP of 5 columns on 2 ranks:
 *
 *   outputs of q     | h0 h0 h1 h1 | h2 h2 h3 h3 |     head 0 and 2, each 2 heads
 *   columns of MLP   | c0 c1 c2    | c3 c4       |     inner 0 and 3, of 3 and of 2
 *   a box            of q, layout KN: rows of 4 in the part, of 8 in the whole; so element 4 of rank
 *                    1's part (row 1, the first of h2) is element 1 * 8 + 4 = 12 of the whole */
#include "model/model_split.h"

#include "config/explain.h"
#include "model/model.h"

static ls_status refuse(const ls_run *run, const ls_model_split *split, const char *what, int64_t n)
{
    return ls_fail(LS_EUSAGE, "%s: mesh.tp is %d, but the model has %lld %s",
                   ls_explain_where(run, "mesh.tp"), split->ranks, (long long)n, what);
}

static ls_status check(const ls_model_split *split, const ls_run *run, const ls_model_shape *s)
{
    ls_status st = LS_OK;
    int64_t n = split->ranks;

    if (s->H % n != 0)
        st = refuse(run, split, "heads, which cannot be divided evenly", s->H);
    else if (s->Hkv % n != 0 && n % s->Hkv != 0)
        st = refuse(run, split, "key/value heads, which can be neither divided nor copied evenly",
                    s->Hkv);
    else if (s->F < n)
        st = refuse(run, split, "columns in its MLP", s->F);
    else if (s->V < n)
        st = refuse(run, split, "tokens in its vocabulary", s->V);
    if (st != LS_OK)
        ls_err_hint("Each rank takes as many heads, and some columns and tokens: choose a smaller "
                    "mesh.tp, which divides %lld.",
                    (long long)s->H);
    return st;
}

static ls_status check_experts(const ls_model_split *split, const ls_run *run,
                               const ls_model_shape *s)
{
    if (s->E % split->ep_ranks == 0)
        return LS_OK;
    ls_fail(LS_EUSAGE,
            "%s: mesh.ep is %d, but the model has %lld experts, which cannot be divided evenly",
            ls_explain_where(run, "mesh.ep"), split->ep_ranks, (long long)s->E);
    ls_err_hint("Each rank takes as many experts: choose a mesh.ep that divides %lld.",
                (long long)s->E);
    return LS_EUSAGE;
}

/* Where part number i of n things begins. */
static int64_t part_begin(int64_t n, const ls_model_split *split, int i)
{
    return n * i / split->ranks;
}

ls_status ls_model_split_make(ls_model_split *split, const ls_run *run, ls_model_shape *shape)
{
    int r = split->rank;
    ls_status st = LS_OK;

    *split = (ls_model_split){.rank = r,
                              .ranks = split->ranks > 1 ? split->ranks : 1,
                              .ep_rank = split->ep_rank,
                              .ep_ranks = split->ep_ranks > 1 ? split->ep_ranks : 1,
                              .sequence = split->sequence && split->ranks > 1,
                              .kv_copies = 1};
    if (split->ep_ranks > 1)
        st = check_experts(split, run, shape);
    split->experts = shape->E / split->ep_ranks;
    split->expert = split->ep_rank * split->experts;
    if (st == LS_OK && split->ranks > 1)
        st = check(split, run, shape);
    if (st != LS_OK || split->ranks == 1)
        return st;
    if (shape->Hkv < split->ranks)
        split->kv_copies = split->ranks / (int)shape->Hkv;
    split->head = part_begin(shape->H, split, r);
    split->kv_head = part_begin(shape->Hkv, split, r);
    split->inner = part_begin(shape->F, split, r);
    split->token = part_begin(shape->V, split, r);
    shape->H = shape->H / split->ranks;
    shape->Hkv = ls_max_i64(1, shape->Hkv / split->ranks);
    shape->F = part_begin(shape->F, split, r + 1) - split->inner;
    shape->V = part_begin(shape->V, split, r + 1) - split->token;
    return LS_OK;
}

int64_t ls_param_box_whole(const ls_param_box *box, const int64_t shape[2], int64_t at,
                           int64_t *run_out)
{
    if (box->dim < 0) {
        *run_out = shape[0] * shape[1] - at;
        return at;
    }
    /* Along the divided dimension: which stretch, and where in this rank's piece of it. */
    int64_t inner = box->dim == 0 ? shape[1] : 1;
    int64_t piece = shape[box->dim] / box->parts, stretch = box->shape[box->dim] / box->parts;
    int64_t line = piece * inner, within = at % line, part = at / line;
    int64_t row = part / box->parts; /* of dimension 0, where dimension 1 is divided */

    *run_out = line - within;
    return (row * box->parts + part % box->parts) * stretch * inner + box->from * inner + within;
}
