/* test_qkv.c -- the split into heads and the rotation of queries and keys. */
#include "kernel/check.h"

#include <math.h>

typedef void (*qkv_row)(ls_stream *stream, const ls_qkv *a);
/* The reference first, then the fast tables this CPU can run. */
enum { TABLES = 1 + LS_CHECK_TABLES };
static int list_versions(ls_kernels out[TABLES])
{
    out[0] = *ls_check_reference();
    return 1 + ls_check_tables(out + 1);
}

typedef struct fixture {
    ls_check c;
    ls_qkv a;
    int64_t packed, q, kv; /* elements of each */
} fixture;

/* scale 0 leaves a side empty: packed for bwd, the heads for fwd. */
static void begin(fixture *f, ls_qkv shape, bool rope, float packed_scale, float heads_scale)
{
    memset(f, 0, sizeof *f);
    ls_check_begin(&f->c, 2);
    f->a = shape;
    int64_t B = shape.B, T = shape.T, H = shape.H, Hkv = shape.Hkv, D = shape.D;
    f->packed = B * T * (H + 2 * Hkv) * D;
    f->q = B * T * H * D;
    f->kv = B * T * Hkv * D;
    f->a.type = LS_F32;
    f->a.packed = ls_check_floats(&f->c, "packed", f->packed, packed_scale);
    /* heads before tokens for q, tokens before heads for k and v */
    f->a.q = (ls_heads){ls_check_floats(&f->c, "q", f->q, heads_scale), H * T * D, D, T * D};
    f->a.k = (ls_heads){ls_check_floats(&f->c, "k", f->kv, heads_scale), T * Hkv * D, Hkv * D, D};
    f->a.v = (ls_heads){ls_check_floats(&f->c, "v", f->kv, heads_scale), T * Hkv * D, Hkv * D, D};
    if (rope) {
        float *table = ls_check_floats(&f->c, "rope", T * (D / 2) * 2, 1);
        for (int64_t i = 0; i < T * (D / 2); i++) {
            double angle = 3 * (double)table[2 * i];
            table[2 * i] = (float)cos(angle);
            table[2 * i + 1] = (float)sin(angle);
        }
        f->a.rope = table;
    }
}

static const ls_qkv shapes[] = {{.B = 1, .T = 1, .H = 1, .Hkv = 1, .D = 2},
                                {.B = 2, .T = 17, .H = 3, .Hkv = 3, .D = 64},
                                {.B = 3, .T = 5, .H = 4, .Hkv = 2, .D = 20},
                                {.B = 1, .T = 9, .H = 4, .Hkv = 1, .D = 34}};

LS_TEST(qkv_splits_into_heads)
{
    ls_kernels versions[TABLES];
    int n = list_versions(versions);

    for (int i = 0; i < n; i++) {
        fixture f;
        begin(&f, shapes[2], false, 1, 0);
        versions[i].qkv_fwd(f.c.stream, &f.a);
        const float *q = f.a.q.p, *k = f.a.k.p, *v = f.a.v.p, *packed = f.a.packed;
        for (int64_t b = 0; b < 3; b++)
            for (int64_t t = 0; t < 5; t++)
                for (int64_t d = 0; d < 20; d++, packed++) {
                    const float *row = (const float *)f.a.packed + (b * 5 + t) * 160 + d;
                    for (int64_t h = 0; h < 4; h++)
                        LS_CHECK_NEAR(q[((b * 4 + h) * 5 + t) * 20 + d], row[h * 20], 0);
                    for (int64_t h = 0; h < 2; h++) {
                        LS_CHECK_NEAR(k[((b * 5 + t) * 2 + h) * 20 + d], row[80 + h * 20], 0);
                        LS_CHECK_NEAR(v[((b * 5 + t) * 2 + h) * 20 + d], row[120 + h * 20], 0);
                    }
                }
        ls_check_end(&f.c);
    }
}

/* Fast versions near the reference, and equal among each other, in both directions. */
LS_TEST(qkv_versions_agree)
{
    ls_kernels versions[TABLES];
    int n = list_versions(versions);

    for (size_t s = 0; s < LS_COUNT(shapes); s++)
        for (int rope = 0; rope < 2; rope++)
            for (int back = 0; back < 2; back++) {
                fixture want, f[3];
                begin(&want, shapes[s], rope, back ? 0 : 1.0f, back ? 1.0f : 0);
                (back ? versions[0].qkv_bwd : versions[0].qkv_fwd)(want.c.stream, &want.a);
                for (int i = 1; i < n; i++) {
                    fixture *g = &f[i - 1];
                    begin(g, shapes[s], rope, back ? 0 : 1.0f, back ? 1.0f : 0);
                    (back ? versions[i].qkv_bwd : versions[i].qkv_fwd)(g->c.stream, &g->a);
                    const fixture *to = i == 1 ? &want : &f[0];
                    double tolerance = i == 1 ? ls_kernel_rows[LS_ROW_QKV_FWD].tolerance : 0;
                    ls_check_near("packed", g->a.packed, to->a.packed, g->packed, tolerance);
                    ls_check_near("q", g->a.q.p, to->a.q.p, g->q, tolerance);
                    ls_check_near("k", g->a.k.p, to->a.k.p, g->kv, tolerance);
                    ls_check_near("v", g->a.v.p, to->a.v.p, g->kv, tolerance);
                }
                for (int i = 1; i < n; i++)
                    ls_check_end(&f[i - 1].c);
                ls_check_end(&want.c);
            }
}

LS_TEST(qkv_turns_as_the_formula_says)
{
    ls_kernels versions[TABLES];
    int n = list_versions(versions);

    for (int i = 0; i < n; i++) {
        fixture f;
        begin(&f, (ls_qkv){.B = 1, .T = 2, .H = 1, .Hkv = 1, .D = 4}, true, 1, 0);
        versions[i].qkv_fwd(f.c.stream, &f.a);
        const float *x = (const float *)f.a.packed + 12, *q = (const float *)f.a.q.p + 4;
        const float *rope = f.a.rope + 4; /* position 1 */
        for (int pair = 0; pair < 2; pair++) {
            float c = rope[2 * pair], s = rope[2 * pair + 1];
            LS_CHECK_NEAR(q[pair], x[pair] * c - x[pair + 2] * s, 1e-6);
            LS_CHECK_NEAR(q[pair + 2], x[pair + 2] * c + x[pair] * s, 1e-6);
        }
        ls_check_end(&f.c);
    }
}

/* A rotation's gradient is its inverse. */
LS_TEST(qkv_backward_turns_back)
{
    ls_kernels versions[TABLES];
    int n = list_versions(versions);

    for (int i = 0; i < n; i++)
        for (size_t s = 0; s < LS_COUNT(shapes); s++) {
            fixture f;
            begin(&f, shapes[s], true, 1, 0);
            float *was = ls_check_copy(&f.c, "was", f.a.packed, f.packed);
            versions[i].qkv_fwd(f.c.stream, &f.a);
            f.a.packed = ls_check_floats(&f.c, "back", f.packed, 0);
            versions[i].qkv_bwd(f.c.stream, &f.a);
            ls_check_near("turned back", f.a.packed, was, f.packed, 2e-6);
            ls_check_end(&f.c);
        }
}

static double dot(const float *x, const float *y, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* <y, F x> = <F' y, x> for the linear map F and its transpose F', any x and y. */
LS_TEST(qkv_backward_is_the_transpose_of_forward)
{
    ls_kernels versions[TABLES];
    int n = list_versions(versions);

    for (int i = 0; i < n; i++)
        for (size_t s = 0; s < LS_COUNT(shapes); s++) {
            fixture x, y;
            begin(&x, shapes[s], true, 1, 0);
            begin(&y, shapes[s], true, 0, 1);
            y.a.rope = x.a.rope;
            versions[i].qkv_fwd(x.c.stream, &x.a);
            versions[i].qkv_bwd(y.c.stream, &y.a);
            double left = dot(x.a.q.p, y.a.q.p, x.q) + dot(x.a.k.p, y.a.k.p, x.kv) +
                          dot(x.a.v.p, y.a.v.p, x.kv);
            LS_CHECK_NEAR(left, dot(x.a.packed, y.a.packed, x.packed), 1e-5 * (double)x.packed);
            ls_check_end(&y.c);
            ls_check_end(&x.c);
        }
}

/* Views of the packed tensor itself are a valid target. */
LS_TEST(qkv_turns_in_place)
{
    ls_kernels versions[TABLES];
    int n = list_versions(versions);

    for (int i = 0; i < n; i++) {
        fixture f, g;
        begin(&f, shapes[2], true, 1, 0);
        begin(&g, shapes[2], true, 1, 0);
        versions[i].qkv_fwd(f.c.stream, &f.a);
        float *base = g.a.packed;
        g.a.q = (ls_heads){base, 5 * 160, 160, 20};
        g.a.k = (ls_heads){base + 80, 5 * 160, 160, 20};
        g.a.v = (ls_heads){base + 120, 5 * 160, 160, 20};
        versions[i].qkv_fwd(g.c.stream, &g.a);
        for (int64_t row = 0; row < 15; row++) {
            const float *k = (const float *)f.a.k.p + row * 40;
            ls_check_same("k", base + row * 160 + 80, k, 40 * 4);
            for (int64_t h = 0; h < 4; h++) {
                const float *q = (const float *)f.a.q.p + ((row / 5 * 4 + h) * 5 + row % 5) * 20;
                ls_check_same("q", base + row * 160 + h * 20, q, 20 * 4);
            }
        }
        ls_check_end(&g.c);
        ls_check_end(&f.c);
    }
}
