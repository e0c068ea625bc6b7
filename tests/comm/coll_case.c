/* coll_case.c -- see calls.h. */
#include "comm/coll_case.h"

#include <math.h>
#include "harness.h"

enum { GUARD = 16 };

/* --- small whole numbers in every type: exact in all of them ------------------------------------
 */

static void put(ls_dtype type, void *memory, int64_t i, int v)
{
    float f = (float)v;
    double wide = v;
    int64_t l = v;
    uint32_t bits;
    uint16_t h = 0;

    memcpy(&bits, &f, sizeof bits);
    if (type == LS_BF16)
        h = (uint16_t)(bits >> 16);
    if (type == LS_F16 && v)
        h = (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) |
                       (bits >> 13 & 0x3ff));
    char *to = (char *)memory + i * ls_dtype_bytes(type);
    switch (type) {
    case LS_F32:
        memcpy(to, &f, 4);
        break;
    case LS_F64:
        memcpy(to, &wide, 8);
        break;
    case LS_BF16:
    case LS_F16:
        memcpy(to, &h, 2);
        break;
    default: /* little-endian */
        memcpy(to, &l, (size_t)ls_dtype_bytes(type));
    }
}

static double get(ls_dtype type, const void *memory, int64_t i)
{
    const char *from = (const char *)memory + i * ls_dtype_bytes(type);
    float f = 0;
    double wide;
    int64_t l = 0;
    uint16_t h;
    uint32_t bits;

    switch (type) {
    case LS_F32:
        memcpy(&f, from, 4);
        return (double)f;
    case LS_F64:
        memcpy(&wide, from, 8);
        return wide;
    case LS_BF16:
        memcpy(&h, from, 2);
        bits = (uint32_t)h << 16;
        memcpy(&f, &bits, 4);
        return (double)f;
    case LS_F16:
        memcpy(&h, from, 2);
        return ldexp((h & 0x3ff) + (h & 0x7c00 ? 1024 : 0),
                     (h & 0x7c00 ? (h >> 10 & 31) : 1) - 25) *
               (h & 0x8000 ? -1 : 1);
    default:
        memcpy(&l, from, (size_t)ls_dtype_bytes(type));
        if (type == LS_I8)
            l = (int8_t)l;
        if (type == LS_I32)
            l = (int32_t)l;
        return (double)l;
    }
}

static int value(int rank, int64_t i)
{
    return (int)((rank * 5 + i * 3 + i / 7) % 13) + 1;
}

static double reduced(ls_coll_op op, int ranks, int64_t i)
{
    double v = value(0, i);

    for (int r = 1; r < ranks; r++) {
        int x = value(r, i);
        v = op == LS_COLL_MAX ? fmax(v, x) : op == LS_COLL_MIN ? fmin(v, x) : v + x;
    }
    return op == LS_COLL_MEAN ? v / ranks : v;
}

/* --- one call, checked -------------------------------------------------------------------------
 */

/* Elements of the buffers in and out, and the first of value() that in holds. */
static void lengths(const ls_call *c, int n, int me, int64_t *in, int64_t *out, int64_t *first)
{
    int64_t own;

    ls_coll_range(c->count, n, me, first, &own);
    *in = *out = c->count;
    if (c->kind == LS_COLL_REDUCE_SCATTER)
        *out = c->in_place ? c->count : own;
    if (c->kind == LS_COLL_ALL_GATHER)
        *in = c->in_place ? c->count : own;
    if (c->kind == LS_COLL_ALL_TO_ALL)
        *in = *out = n * c->count;
    if (c->kind == LS_COLL_GATHER)
        *out = n * c->count;
    if (c->kind == LS_COLL_GATHER && c->in_place && me == c->root)
        *in = *out;
    if (c->kind != LS_COLL_ALL_GATHER || c->in_place)
        *first = 0;
}

static double expected(const ls_call *c, int n, int me, int64_t i)
{
    int64_t first, own, at;

    switch (c->kind) {
    case LS_COLL_ALL_REDUCE:
        return reduced(c->op, n, i);
    case LS_COLL_REDUCE_SCATTER:
        ls_coll_range(c->count, n, me, &first, &own);
        if (c->in_place && (i < first || i >= first + own))
            return value(me, i);
        return reduced(c->op, n, c->in_place ? i : first + i);
    case LS_COLL_ALL_GATHER:
        for (int r = 0;; r++) {
            ls_coll_range(c->count, n, r, &first, &own);
            if (i < first + own)
                return value(r, i);
        }
    case LS_COLL_BROADCAST:
        return value(c->root, i);
    case LS_COLL_ALL_TO_ALL:
        at = i % c->count;
        return value((int)(i / c->count), me * c->count + at);
    default:
        return value((int)(i / c->count), c->in_place && i / c->count == me ? i : i % c->count);
    }
}

void ls_call_check(const ls_call *c, int n, int me, const void *memory)
{
    const char *out = memory;
    int64_t in_len, len, from;
    double tolerance = c->op != LS_COLL_MEAN ? 0 : ls_dtype_bytes(c->type) == 2 ? 0.05 : 1e-5;

    lengths(c, n, me, &in_len, &len, &from);
    if (c->kind == LS_COLL_GATHER && me != c->root)
        return;
    for (int64_t i = 0; i < len; i++) {
        double want = expected(c, n, me, i), is = get(c->type, out, i);
        if (!(fabs(is - want) <= tolerance))
            ls_test_fail(__FILE__, __LINE__,
                         "%s %s of %lld elements of type %d, %d ranks, %s, in %s, out %s, root %d: "
                         "rank %d has %g at %lld, expected %g",
                         ls_coll_kind_name(c->kind), ls_coll_op_name(c->op), (long long)c->count,
                         (int)c->type, n, c->in_place ? "in place" : "apart",
                         c->shared_in ? "shared" : "private", c->shared_out ? "shared" : "private",
                         c->root, me, is, (long long)i, want);
    }
    for (int i = 0; i < GUARD; i++)
        LS_CHECK_EQ(out[len * ls_dtype_bytes(c->type) + i], 0x5a);
}

int64_t ls_call_bytes(const ls_call *c, int n, int me)
{
    int64_t in_len, out_len, first;

    lengths(c, n, me, &in_len, &out_len, &first);
    return (in_len > out_len ? in_len : out_len) * ls_dtype_bytes(c->type) + GUARD;
}

ls_coll ls_call_fill(const ls_call *c, int n, int me, void *in, void *out)
{
    int64_t in_len, out_len, first;

    lengths(c, n, me, &in_len, &out_len, &first);
    memset(out, 0x5a, (size_t)ls_call_bytes(c, n, me));
    for (int64_t i = 0; i < in_len; i++)
        put(c->type, in, i, value(me, first + i));
    return (ls_coll){.kind = c->kind,
                     .op = c->op,
                     .type = c->type,
                     .count = c->count,
                     .in = in,
                     .out = out,
                     .peer = c->root};
}
