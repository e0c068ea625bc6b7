/* row_cost.c -- operations or bytes of each row, from its arguments.
 *
 * Products and attention count operations; everything else touches each value once or twice and is
 * bound by memory, so it counts the bytes of the tensors it must read and write, each once, in the
 * type that they have. What is small beside these (statistics, weights of a norm, a bias) is left
 * out. Example: norm_fwd with x on 3072 rows of 384 floats reads stream and x and writes sum and y:
 * 4 * 4 * 3072 * 384 = 18.9 MB. */
#include "kernel/row_cost.h"

const char *const ls_cost_dims[LS_ROWS][LS_COST_DIMS] = {
    [LS_ROW_LINEAR_FWD] = {"M", "N", "K"},
    [LS_ROW_LINEAR_BWD_X] = {"M", "N", "K"},
    [LS_ROW_LINEAR_BWD_W] = {"M", "N", "K"},
    [LS_ROW_QKV_FWD] = {"B", "T", "H", "D"},
    [LS_ROW_QKV_BWD] = {"B", "T", "H", "D"},
    [LS_ROW_ATTENTION_FWD] = {"B", "T", "H", "D"},
    [LS_ROW_ATTENTION_BWD] = {"B", "T", "H", "D"},
    [LS_ROW_NORM_FWD] = {"M", "C"},
    [LS_ROW_NORM_BWD] = {"M", "C"},
    [LS_ROW_ACT_FWD] = {"M", "F"},
    [LS_ROW_ACT_BWD] = {"M", "F"},
    [LS_ROW_EMBED_FWD] = {"M", "C", "V"},
    [LS_ROW_EMBED_BWD] = {"M", "C", "V"},
    [LS_ROW_HEAD] = {"M", "C", "V"},
    [LS_ROW_PREFERENCE] = {"B", "T"},
    [LS_ROW_SUM] = {"n"},
    [LS_ROW_ADD] = {"n"},
    [LS_ROW_SCALE] = {"n"},
    [LS_ROW_CAST] = {"n"},
    [LS_ROW_FILL] = {"n"},
    [LS_ROW_NORM2] = {"n"},
    [LS_ROW_ADAMW] = {"n"},
    [LS_ROW_LION] = {"n"},
    [LS_ROW_SGD] = {"n"},
    [LS_ROW_LAMB] = {"n"},
    [LS_ROW_MOMENTUM] = {"n"},
    [LS_ROW_MUON] = {"rows", "cols"},
    [LS_ROW_PACK] = {"N", "K"},
};

bool ls_cost_in_flops(ls_row row)
{
    switch (row) {
    case LS_ROW_LINEAR_FWD:
    case LS_ROW_LINEAR_BWD_X:
    case LS_ROW_LINEAR_BWD_W:
    case LS_ROW_ATTENTION_FWD:
    case LS_ROW_ATTENTION_BWD:
    case LS_ROW_HEAD:
        return true;
    default:
        return false;
    }
}

static ls_cost product(int64_t M, int64_t N, int64_t K)
{
    return (ls_cost){.flops = 2.0 * (double)M * (double)N * (double)K, .dims = {M, N, K}};
}

/* Bytes of `tensors` tensors of a x b elements. */
static ls_cost plane(ls_dtype type, double tensors, int64_t a, int64_t b)
{
    return (ls_cost){.bytes = (double)ls_dtype_bytes(type) * tensors * (double)a * (double)b,
                     .dims = {a, b}};
}

static ls_cost flat(double bytes_each, int64_t n)
{
    return (ls_cost){.bytes = bytes_each * (double)n, .dims = {n}};
}

/* Positions that T queries after `past` others see in all; a window hides those too far back. */
static double seen(int64_t T, int64_t past, int64_t window)
{
    double all = (double)T * (double)past + (double)T * (double)(T + 1) / 2, hidden;
    int64_t far = past + T - window; /* what the last query does not see */

    if (window <= 0 || far <= 0)
        return all;
    int64_t queries = ls_min_i64(far, T); /* that have something behind their window */
    hidden = (double)queries * ((double)far + (double)(far - queries + 1)) / 2;
    return all - hidden;
}

/* Of a pair whose keys lie before the queries: all up to the queries, without what is between. */
static double seen_of_pair(const ls_attention_fwd *a)
{
    int64_t back = a->pair.q_first - a->pair.k_first;

    return back == 0 ? seen(a->T, 0, a->window)
                     : seen(a->T, back, a->window) - seen(a->T, back - a->T, a->window);
}

static ls_cost attention(const ls_attention_fwd *a, double products)
{
    double positions = a->pair.on ? seen_of_pair(a) : seen(a->T, a->past, a->window);

    return (ls_cost){.flops = products * 2.0 * (double)(a->B * a->H * a->D) * positions,
                     .dims = {a->B, a->T, a->H, a->D}};
}

/* q k^T again, dp, dq, dk, dv. */
static ls_cost attention_bwd(const ls_attention_bwd *a)
{
    const ls_attention_fwd same = {
        .B = a->B, .T = a->T, .H = a->H, .D = a->D, .window = a->window, .pair = a->pair};

    return attention(&same, 5);
}

/* The packed values in and out. */
static ls_cost qkv(const ls_qkv *a)
{
    ls_cost cost = plane(a->type, 2, a->B * a->T, (a->H + 2 * a->Hkv) * a->D);

    return (ls_cost){.bytes = cost.bytes, .dims = {a->B, a->T, a->H, a->D}};
}

static ls_cost embed_fwd(const ls_embed_fwd *a) /* rows of wte, wpe; y */
{
    double rows = 2 * (double)a->M + (a->wpe ? (double)a->T : 0);

    return (ls_cost){.bytes = (double)ls_dtype_bytes(a->type) * rows * (double)a->C,
                     .dims = {a->M, a->C, a->V}};
}

/* dy; dwte, dwpe. With accumulate only the rows of tokens that occur change, and they are read. */
static ls_cost embed_bwd(const ls_embed_bwd *a)
{
    double most = (double)ls_min_i64(a->M, a->V), rows = 0;

    if (a->dwte)
        rows += a->accumulate ? 2 * most : (double)a->V;
    if (a->dwpe)
        rows += a->accumulate ? 2 * (double)a->T : (double)a->positions;
    return (ls_cost){.bytes = (double)a->C * ((double)ls_dtype_bytes(a->type) * (double)a->M +
                                              (double)sizeof(float) * rows),
                     .dims = {a->M, a->C, a->V}};
}

static ls_cost head(const ls_head *a) /* logits; dh, dw */
{
    ls_cost cost = product(a->M, a->C, a->V);
    int logits = a->part != LS_HEAD_JOIN, back = a->part != LS_HEAD_SCORES;

    cost.flops *= logits + back * ((a->dh != NULL) + (a->dh && a->dw));
    return cost;
}

static ls_cost norm_bwd(const ls_norm_bwd *a) /* dy, sum, dsum; dsum, dx */
{
    return plane(a->type, 3 + a->add_to_dsum + (a->dx != NULL), a->M, a->C);
}

static ls_cost cast(const ls_cast *a)
{
    return flat((double)(ls_dtype_bytes(a->from_type) + ls_dtype_bytes(a->to_type)), a->n);
}

/* grad, w and each moment; they again, but for grad; the copy. */
static ls_cost elements(const ls_optimizer_update *a, int moments, int64_t n)
{
    return flat((3 + 2 * moments) * 4 + (a->copy ? (double)ls_dtype_bytes(a->copy_type) : 0), n);
}

/* grad, m, v, w; m, v, grad. Then grad, w; w, the copy. */
static ls_cost lamb(const ls_lamb *a)
{
    double copy = a->copy ? (double)ls_dtype_bytes(a->copy_type) : 0;

    return flat(a->part == LS_LAMB_DIRECTION ? 7 * 4 : 3 * 4 + copy, a->n);
}

static ls_cost muon(const ls_muon *a)
{
    bool three = a->part == LS_MUON_POLY || a->part == LS_MUON_STEP; /* tensors: read, written */
    ls_cost cost = plane(LS_F32, three ? 3 : 2, a->rows, a->cols);

    if (a->copy)
        cost.bytes += plane(a->copy_type, 1, a->rows, a->cols).bytes;
    return cost;
}

/* w; packed, which is in fp32 unless pairs of bf16 are multiplied: counted in w's type here. */
static ls_cost pack(const ls_pack *a)
{
    return plane(a->type, 2, a->N, a->K);
}

ls_cost ls_cost_of(ls_row row, const void *args, int64_t updated)
{
    const union {
        const void *any;
        const ls_linear_fwd *linear_fwd;
        const ls_linear_bwd_x *linear_bwd_x;
        const ls_linear_bwd_w *linear_bwd_w;
        const ls_norm_fwd *norm_fwd;
        const ls_act_args *act;
        const ls_preference *preference;
        const ls_sum *sum;
        const ls_add *add;
        const ls_scale *scale;
        const ls_fill *fill;
        const ls_norm2 *norm2;
        const ls_momentum *momentum;
        const ls_pack *pack;
    } a = {args};

    switch (row) {
    case LS_ROW_LINEAR_FWD:
        return product(a.linear_fwd->M, a.linear_fwd->N, a.linear_fwd->K);
    case LS_ROW_LINEAR_BWD_X:
        return product(a.linear_bwd_x->M, a.linear_bwd_x->N, a.linear_bwd_x->K);
    case LS_ROW_LINEAR_BWD_W:
        return product(a.linear_bwd_w->M, a.linear_bwd_w->N, a.linear_bwd_w->K);
    case LS_ROW_QKV_FWD:
    case LS_ROW_QKV_BWD:
        return qkv(args);
    case LS_ROW_ATTENTION_FWD: /* q k^T and p v */
        return attention(args, 2);
    case LS_ROW_ATTENTION_BWD:
        return attention_bwd(args);
    case LS_ROW_NORM_FWD: /* stream; y; with x also x; sum */
        return plane(a.norm_fwd->type, a.norm_fwd->x ? 4 : 2, a.norm_fwd->M, a.norm_fwd->C);
    case LS_ROW_NORM_BWD:
        return norm_bwd(args);
    case LS_ROW_ACT_FWD: /* x; y */
        return plane(a.act->type, a.act->gated ? 3 : 2, a.act->M, a.act->F);
    case LS_ROW_ACT_BWD: /* x, dy; dx */
        return plane(a.act->type, a.act->gated ? 5 : 3, a.act->M, a.act->F);
    case LS_ROW_EMBED_FWD:
        return embed_fwd(args);
    case LS_ROW_EMBED_BWD:
        return embed_bwd(args);
    case LS_ROW_HEAD:
        return head(args);
    case LS_ROW_PREFERENCE: /* losses, targets, start; weights */
        return flat(4 * 4, a.preference->B * a.preference->T);
    case LS_ROW_SUM:
        return flat(4, a.sum->n);
    case LS_ROW_ADD:
        return flat(3 * 4, a.add->n);
    case LS_ROW_SCALE:
        return flat(2 * 4, a.scale->n);
    case LS_ROW_CAST:
        return cast(args);
    case LS_ROW_FILL:
        return flat(4, a.fill->n);
    case LS_ROW_NORM2:
        return flat(4, a.norm2->n);
    case LS_ROW_ADAMW:
        return elements(args, 2, updated);
    case LS_ROW_LION:
    case LS_ROW_SGD:
        return elements(args, 1, updated);
    case LS_ROW_LAMB:
        return lamb(args);
    case LS_ROW_MOMENTUM: /* m, grad; m, grad */
        return flat(4 * 4, a.momentum->n);
    case LS_ROW_MUON:
        return muon(args);
    case LS_ROW_PACK:
        return pack(args);
    case LS_ROWS:
        break;
    }
    return (ls_cost){0};
}
