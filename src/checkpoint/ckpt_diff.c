/* ckpt_diff.c -- what differs between two checkpoints, which may lie in two stores.
 *
 *     tensor w    A: object 5a.., key w        B: object 5a.., key w        equal, not read
 *     tensor v    A: object 5a.., key v        B: object 77.., key v        both read and compared
 *
 * Only tensors that do not share object and key are read, whole, and compared element by
 * element. */
#include "checkpoint/ckpt_impl.h"

#include <math.h>
#include "base/mem.h"
#include "checkpoint/safetensors.h"

/* 16 bits: sign 1, exponent 5 (offset 15), fraction 10. 0x3c00 is (1024 + 0) x 2^(15 - 25) = 1; 0x0001,
 * which has no leading one, is 2^-24. */
static double half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31  ? fraction ? (double)NAN : (double)INFINITY
                   : exponent == 0 ? ldexp(fraction, -24)
                                   : ldexp(1024 + fraction, exponent - 25);

    return bits >> 15 ? -value : value;
}

/* One element as a number, wide enough for all types; those of 8 bits as they are. */
static double number_at(ls_dtype type, const unsigned char *p)
{
    union {
        float f32;
        double f64;
        int32_t i32;
        int64_t i64;
        int8_t i8;
        uint16_t bits;
    } x = {.f64 = 0};

    memcpy(&x, p, (size_t)ls_dtype_bytes(type));
    switch (type) {
    case LS_F32:
        return (double)x.f32;
    case LS_F64:
        return x.f64;
    case LS_F16:
        return half(x.bits);
    case LS_BF16: {
        uint32_t bits = (uint32_t)x.bits << 16;
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    case LS_I32:
        return x.i32;
    case LS_I64:
        return (double)x.i64;
    case LS_I8:
        return x.i8;
    default:
        return *p;
    }
}

/* Whether two rows lie in the same bytes: then they are equal without being read. */
static bool same_boxes(const ls_ckpt *a, const ls_ckpt_row *x, const ls_ckpt *b,
                       const ls_ckpt_row *y)
{
    if (x->n_boxes != y->n_boxes)
        return false;
    for (int i = 0; i < x->n_boxes; i++) {
        const ls_ckpt_box *p = &x->boxes[i], *q = &y->boxes[i];
        if (!ls_hash_equal(a->objects[p->object].hash, b->objects[q->object].hash) ||
            strcmp(p->key, q->key) != 0 || memcmp(p->offset, q->offset, sizeof p->offset) != 0 ||
            memcmp(p->shape, q->shape, sizeof p->shape) != 0)
            return false;
    }
    return true;
}

/* Count the elements that differ, and keep the largest difference; infinity where one is not a
 * number. */
static void compare(ls_ckpt_change *c, const ls_ckpt_row *row, const unsigned char *a,
                    const unsigned char *b)
{
    int64_t width = ls_dtype_bytes(row->type);

    for (int64_t i = 0; i < c->elements; i++) {
        if (memcmp(a + i * width, b + i * width, (size_t)width) == 0)
            continue;
        double d = fabs(number_at(row->type, a + i * width) - number_at(row->type, b + i * width));
        c->differ++;
        if (d > c->most || isnan(d))
            c->most = isnan(d) ? (double)INFINITY : d;
    }
    if (c->differ)
        c->how = LS_CKPT_CHANGED;
}

/* Two rows of one tensor. Both are read whole: two copies of the largest tensor, for an embedding of
 * [50257, 768] in float32 2 x 147 MiB, are the memory that a comparison takes. */
static ls_status compare_rows(const ls_ckpt *a, const ls_ckpt_row *x, const ls_ckpt *b,
                              const ls_ckpt_row *y, ls_ckpt_change *c)
{
    const int64_t zero[LS_CKPT_RANK] = {0};
    unsigned char *one = NULL, *other = NULL;
    ls_status st = LS_OK;

    (void)ls_safetensors_elements(x->shape, x->ndim, &c->elements);
    if (x->type != y->type || x->ndim != y->ndim ||
        memcmp(x->shape, y->shape, sizeof x->shape) != 0) {
        c->how = LS_CKPT_SHAPED;
        return LS_OK;
    }
    c->how = LS_CKPT_SAME;
    if (same_boxes(a, x, b, y))
        return LS_OK;
    size_t bytes = (size_t)(c->elements * ls_dtype_bytes(x->type));
    one = ls_mem_alloc(bytes);
    other = ls_mem_alloc(bytes);
    LS_TRY(st, one && other ? LS_OK : LS_ENOMEM, out);
    LS_TRY(st, ls_ckpt_read_box(a, x->name, x->kind, zero, x->shape, one), out);
    LS_TRY(st, ls_ckpt_read_box(b, y->name, y->kind, zero, y->shape, other), out);
    compare(c, x, one, other);
out:
    ls_mem_free(one);
    ls_mem_free(other);
    return st;
}

static void shared_bytes(const ls_ckpt *a, const ls_ckpt *b, ls_ckpt_diffs *sum)
{
    for (int i = 0; i < a->n_objects; i++)
        if (ls_ckpt_object_index(b, a->objects[i].hash) >= 0)
            sum->shared_bytes += a->objects[i].bytes;
}

/* Both tables are sorted, so one walk over both finds the pairs:
 *
 *     A   a  b     d          a, d: compared
 *     B   a     c  d          b: first only, c: second only */
ls_status ls_ckpt_diff(const ls_ckpt *a, const ls_ckpt *b, ls_ckpt_differ tell, void *context,
                       ls_ckpt_diffs *diffs_out)
{
    ls_ckpt_diffs sum = {.same = 0};
    ls_status st = LS_OK;
    int i = 0, j = 0;

    while (i < a->n_rows || j < b->n_rows) {
        int order = i == a->n_rows   ? 1
                    : j == b->n_rows ? -1
                                     : ls_ckpt_row_order(&a->rows[i], &b->rows[j]);
        const ls_ckpt_row *row = order <= 0 ? &a->rows[i] : &b->rows[j];
        ls_ckpt_change c = {.name = row->name, .kind = row->kind};
        if (order == 0)
            LS_TRY(st, compare_rows(a, &a->rows[i], b, &b->rows[j], &c), out);
        else
            c.how = order < 0 ? LS_CKPT_FIRST_ONLY : LS_CKPT_SECOND_ONLY;
        i += order <= 0;
        j += order >= 0;
        sum.same += c.how == LS_CKPT_SAME;
        sum.different += c.how != LS_CKPT_SAME;
        if (c.how != LS_CKPT_SAME)
            tell(&c, context);
    }
    shared_bytes(a, b, &sum);
    *diffs_out = sum;
out:
    return st;
}
