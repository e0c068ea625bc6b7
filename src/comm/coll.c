/* coll.c -- names of collectives, as messages, tables and the command line show them; and the check
 * that a collective makes sense. */
#include "comm/coll.h"

static const char *const kinds[LS_COLL_KINDS] = {
    [LS_COLL_ALL_REDUCE] = "all_reduce",
    [LS_COLL_REDUCE_SCATTER] = "reduce_scatter",
    [LS_COLL_ALL_GATHER] = "all_gather",
    [LS_COLL_BROADCAST] = "broadcast",
    [LS_COLL_ALL_TO_ALL] = "all_to_all",
    [LS_COLL_GATHER] = "gather",
    [LS_COLL_SEND] = "send",
    [LS_COLL_RECV] = "recv",
    [LS_COLL_BARRIER] = "barrier",
};

static const char *const ops[] = {
    [LS_COLL_SUM] = "sum",
    [LS_COLL_MAX] = "max",
    [LS_COLL_MIN] = "min",
    [LS_COLL_MEAN] = "mean",
};

const char *ls_coll_kind_name(ls_coll_kind kind)
{
    return (size_t)kind < LS_COUNT(kinds) ? kinds[kind] : "unknown";
}

const char *ls_coll_op_name(ls_coll_op op)
{
    return (size_t)op < LS_COUNT(ops) ? ops[op] : "unknown";
}

const char *ls_coll_type_name(ls_dtype type)
{
    static const char *const names[] = {
        [LS_F32] = "f32", [LS_BF16] = "bf16", [LS_F16] = "f16", [LS_F64] = "f64",
        [LS_I32] = "i32", [LS_I64] = "i64",   [LS_U8] = "u8",   [LS_I8] = "i8"};

    return (size_t)type < LS_COUNT(names) ? names[type] : "unknown";
}

ls_coll ls_coll_only_used(const ls_coll *coll)
{
    ls_coll used = *coll;

    if (coll->kind == LS_COLL_BARRIER)
        return (ls_coll){.kind = LS_COLL_BARRIER};
    if (!ls_coll_rooted(coll->kind) && !ls_coll_is_message(coll->kind))
        used.peer = 0;
    if (!ls_coll_reduces(coll->kind))
        used.op = LS_COLL_SUM;
    return used;
}

/* --- whether it can be meant ------------------------------------------------------------------ */

/* The numbers of a call exist: kind, type, operation, peer, and a count whose bytes fit into 63
 * bits for all ranks. */
static ls_status check_numbers(const ls_coll *c, int n, int me)
{
    const char *kind = ls_coll_kind_name(c->kind);
    bool peer = ls_coll_rooted(c->kind) || ls_coll_is_message(c->kind);

    if ((unsigned)c->kind >= LS_COLL_KINDS)
        return ls_fail(LS_EUSAGE, "there is no collective number %d", (int)c->kind);
    if ((unsigned)c->type > LS_I8 || (unsigned)c->op > LS_COLL_MEAN)
        return ls_fail(LS_EUSAGE, "%s: there is no type %d or operation %d", kind, (int)c->type,
                       (int)c->op);
    if (c->count < 0 || c->count > INT64_MAX / 16 / n)
        return ls_fail(LS_EUSAGE, "%s of %lld elements", kind, (long long)c->count);
    if (peer && (c->peer < 0 || c->peer >= n))
        return ls_fail(LS_EUSAGE, "%s: there is no rank %d among %d", kind, c->peer, n);
    if (ls_coll_is_message(c->kind) && c->peer == me)
        return ls_fail(LS_EUSAGE, "%s: rank %d is this rank itself", kind, c->peer);
    if (ls_coll_reduces(c->kind) && c->op == LS_COLL_MEAN && c->type >= LS_I32)
        return ls_fail(LS_EUSAGE, "%s: a mean of %s is not a whole number", kind,
                       ls_coll_type_name(c->type));
    return LS_OK;
}

/* Elements of a table of counts, or `each` from every rank; -1: one is negative or too large. */
static int64_t total(const int64_t *counts, int64_t each, int n)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++) {
        int64_t piece = counts ? counts[i] : each;
        if (piece < 0 || piece > INT64_MAX / 16 / n)
            return -1;
        sum += piece;
    }
    return sum;
}

/* Example: reduce_scatter of 100 elements among 3 ranks, whose ranges are 0 .. 47, 48 .. 79 and
 * 80 .. 99. Rank 1 needs 100 in, and 32 out, or 100 where both are the same memory. */
void ls_coll_spans(const ls_coll *c, int n, int me, int64_t *in_out, int64_t *out_out)
{
    bool root = ls_coll_rooted(c->kind) && c->peer == me;
    int64_t own = ls_coll_range_len(c->count, n, me);

    switch (c->kind) {
    case LS_COLL_REDUCE_SCATTER:
        *in_out = c->count;
        *out_out = c->in == c->out ? c->count : own;
        return;
    case LS_COLL_ALL_GATHER:
        *in_out = c->in == c->out ? c->count : own;
        *out_out = c->count;
        return;
    case LS_COLL_BROADCAST:
        *in_out = root ? c->count : 0;
        *out_out = root && !c->out ? 0 : c->count;
        return;
    case LS_COLL_ALL_TO_ALL:
        *in_out = total(c->in_counts, c->count, n);
        *out_out = total(c->out_counts, c->count, n);
        return;
    case LS_COLL_GATHER:
        *out_out = root ? total(c->out_counts, c->count, n) : 0;
        *in_out = root && c->out_counts ? c->out_counts[me] : c->count;
        *in_out = root && c->in == c->out ? *out_out : *in_out;
        return;
    case LS_COLL_BARRIER:
        *in_out = *out_out = 0;
        return;
    default:
        *in_out = c->kind == LS_COLL_RECV ? 0 : c->count;
        *out_out = c->kind == LS_COLL_SEND ? 0 : c->count;
    }
}

static bool same_tables(const ls_coll *c, int n)
{
    for (int i = 0; i < n; i++)
        if ((c->in_counts ? c->in_counts[i] : c->count) !=
            (c->out_counts ? c->out_counts[i] : c->count))
            return false;
    return true;
}

ls_status ls_coll_check(const ls_coll *coll, int ranks, int rank)
{
    const char *kind = ls_coll_kind_name(coll->kind);
    ls_status st = check_numbers(coll, ranks, rank);
    int64_t in, out, size;

    if (st != LS_OK)
        return st;
    ls_coll_spans(coll, ranks, rank, &in, &out);
    size = ls_dtype_bytes(coll->type);
    if (in < 0 || out < 0)
        return ls_fail(LS_EUSAGE, "%s: a table has a count below 0 or beyond all memory", kind);
    if ((in > 0 && !coll->in) || (out > 0 && !coll->out))
        return ls_fail(LS_EUSAGE, "%s of %lld elements without memory", kind,
                       (long long)ls_max_i64(in, out));
    uintptr_t a = (uintptr_t)coll->in, b = (uintptr_t)coll->out;
    if (in > 0 && out > 0 && a != b && a < b + (uintptr_t)(out * size) &&
        b < a + (uintptr_t)(in * size))
        return ls_fail(LS_EUSAGE, "%s: in and out overlap but are not the same", kind);
    if (coll->kind == LS_COLL_ALL_TO_ALL && a == b && in > 0 && !same_tables(coll, ranks))
        return ls_fail(LS_EUSAGE, "%s in place must give each rank as much as it gets from it",
                       kind);
    return LS_OK;
}
