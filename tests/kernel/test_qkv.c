/* test_qkv.c -- the split into heads and the rotation of queries and keys. */
#include "kernel/half.h"

#include <math.h>
#include "base/mem.h"

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

/* --- a past, and norms ---------------------------------------------------------------------- */

typedef struct form {
    int64_t B, T, H, Hkv, D, past, leaves;
    bool rope, accumulate, weights; /* weights: dq_norm and dk_norm are asked for */
    bool in_place;                  /* backward: packed is where dq, dk and dv are */
} form;

static int64_t form_packed(const form *s)
{
    return s->B * s->T * (s->H + 2 * s->Hkv) * s->D;
}

static const float *new_rope(ls_check *c, int64_t positions, int64_t D)
{
    float *table = ls_check_floats(c, "rope", positions * D, 1);

    for (int64_t i = 0; i < positions * (D / 2); i++) {
        double angle = 3 * (double)table[2 * i];
        table[2 * i] = (float)cos(angle);
        table[2 * i + 1] = (float)sin(angle);
    }
    return table;
}

/* q, k, v as views of one packed tensor. */
static void view(ls_qkv *a, float *base)
{
    int64_t width = (a->H + 2 * a->Hkv) * a->D;

    a->q = (ls_heads){base, a->T * width, width, a->D};
    a->k = (ls_heads){base + a->H * a->D, a->T * width, width, a->D};
    a->v = (ls_heads){base + (a->H + a->Hkv) * a->D, a->T * width, width, a->D};
}

/* Forward arguments with norms; heads go to a tensor of the packed form. */
static ls_qkv norm_args(ls_check *c, const form *s)
{
    ls_qkv a = {.type = LS_F32, .B = s->B, .T = s->T, .H = s->H, .Hkv = s->Hkv, .D = s->D};

    a.past = s->past;
    a.eps = 1e-5f;
    a.packed = ls_check_floats(c, "packed", form_packed(s), 1.5f);
    view(&a, ls_check_floats(c, "heads", form_packed(s), 0));
    a.rope = s->rope ? new_rope(c, s->past + s->T, s->D) : NULL;
    a.q_norm = ls_check_floats(c, "q_norm", s->D, 1);
    a.k_norm = ls_check_floats(c, "k_norm", s->D, 1);
    a.rstd = ls_check_floats(c, "rstd", s->B * s->T * (s->H + s->Hkv), 0);
    return a;
}

static void run_norms_fwd(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    const form *s = shape;
    ls_qkv a = norm_args(c, s);

    k->qkv_fwd(c->stream, &a);
    out = ls_rows_put(out, a.q.p, form_packed(s));
    ls_rows_put(out, a.rstd, s->B * s->T * (s->H + s->Hkv));
}

/* Backward arguments from the reference's forward. */
static ls_qkv norm_bwd_args(ls_check *c, const form *s)
{
    ls_qkv a = norm_args(c, s);

    ls_check_reference()->qkv_fwd(c->stream, &a);
    a.product = a.packed;
    view(&a, ls_check_floats(c, "dheads", form_packed(s), 1));
    a.packed = s->in_place ? a.q.p : ls_check_floats(c, "dpacked", form_packed(s), 0);
    if (s->weights) {
        a.dq_norm = ls_check_floats(c, "dq_norm", s->D, s->accumulate ? 1 : 0);
        a.dk_norm = ls_check_floats(c, "dk_norm", s->D, s->accumulate ? 1 : 0);
        a.leaves = s->leaves;
        a.accumulate = s->accumulate;
    }
    return a;
}

static void run_norms_bwd(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    const form *s = shape;
    ls_qkv a = norm_bwd_args(c, s);

    if (s->weights)
        a.scratch = ls_rows_scratch(c, k, LS_ROW_QKV_BWD, &a);
    k->qkv_bwd(c->stream, &a);
    out = ls_rows_put(out, a.packed, form_packed(s));
    if (s->weights) {
        out = ls_rows_put(out, a.dq_norm, s->D);
        ls_rows_put(out, a.dk_norm, s->D);
    }
}

static const form forms[] = {
    {1, 1, 1, 1, 2, 0, 1, true, false, true, false},
    {1, 1, 2, 1, 1, 0, 1, false, true, true, false},
    {2, 3, 4, 2, 15, 0, 3, false, false, true, true},
    {3, 35, 4, 2, 16, 9, 3, true, true, true, false},
    {2, 17, 3, 3, 34, 5, 2, true, false, true, true},
    {5, 40, 8, 1, 20, 1, 5, true, true, true, true},
    {1, 70, 2, 2, 128, 3, 1, true, false, true, false},
    {2, 9, 3, 1, 64, 7, 1, true, false, false, true},
    {1, 33, 2, 1, 17, 0, 1, false, false, false, false},
};

LS_TEST_SECONDS(qkv_norms_equal_the_reference, 60)
{
    for (size_t i = 0; i < LS_COUNT(forms); i++) {
        const form *s = &forms[i];
        int64_t rows = s->B * s->T;
        ls_rows_check(LS_ROW_QKV_FWD, run_norms_fwd, s, form_packed(s) + rows * (s->H + s->Hkv));
        ls_rows_check(LS_ROW_QKV_BWD, run_norms_bwd, s,
                      form_packed(s) + (s->weights ? 2 * s->D : 0));
    }
}

/* Queries alone, in rows that lie apart: the bits of the same rows side by side, and what lies
 * between them stays. */
LS_TEST(qkv_normalises_a_part_of_wider_rows)
{
    enum { B = 2, T = 17, D = 36, LD = 50, AT = 9 };
    ls_kernels versions[TABLES];
    int n = list_versions(versions);

    for (int i = 0; i < n; i++) {
        ls_qkv sides[2]; /* side by side, apart */
        float *outs[2], *backs[2], *products[2];
        ls_check c;
        ls_check_begin(&c, 2);
        float *weight = ls_check_floats(&c, "weight", D, 1),
              *x = ls_check_floats(&c, "x", B * T * D, 1);
        float *dy = ls_check_floats(&c, "dy", B * T * D, 1);
        for (int k = 0; k < 2; k++) {
            int64_t ld = k ? LD : D, at = k ? AT : 0;
            products[k] = ls_check_floats(&c, "product", B * T * ld, 0);
            outs[k] = ls_check_floats(&c, "out", B * T * ld, 0);
            backs[k] = ls_check_floats(&c, "back", B * T * ld, 0);
            memset(outs[k], 0, (size_t)(B * T * ld) * sizeof *x);
            memset(backs[k], 0, (size_t)(B * T * ld) * sizeof *x);
            for (int64_t row = 0; row < B * T; row++) {
                memcpy(products[k] + row * ld + at, x + row * D, D * sizeof *x);
                memcpy(backs[k] + row * ld + at, dy + row * D, D * sizeof *x);
            }
            ls_qkv *a = &sides[k];
            *a = (ls_qkv){.packed = products[k] + at, .B = B, .T = T, .H = 1, .D = D, .eps = 1e-5f};
            a->ld = k ? LD : 0;
            a->q = (ls_heads){outs[k] + at, T * ld, ld, D};
            a->q_norm = weight;
            a->rstd = ls_check_floats(&c, "rstd", B * T, 0);
            versions[i].qkv_fwd(c.stream, a);
            a->product = a->packed;
            a->packed = backs[k] + at;
            a->q.p = a->packed;
            a->dq_norm = ls_check_floats(&c, "dweight", D, 0);
            a->leaves = B;
            a->scratch = ls_rows_scratch(&c, &versions[i], LS_ROW_QKV_BWD, a);
            versions[i].qkv_bwd(c.stream, a);
        }
        ls_check_same("dweight", sides[1].dq_norm, sides[0].dq_norm, D * 4);
        for (int64_t row = 0; row < B * T; row++) {
            double square = 0;
            for (int64_t d = 0; d < D; d++)
                square += (double)x[row * D + d] * (double)x[row * D + d];
            for (int64_t d = 0; d < D; d++)
                LS_CHECK_NEAR(outs[0][row * D + d],
                              (double)x[row * D + d] * (double)weight[d] / sqrt(square / D + 1e-5),
                              1e-5);
            ls_check_same("out", outs[1] + row * LD + AT, outs[0] + row * D, D * 4);
            ls_check_same("back", backs[1] + row * LD + AT, backs[0] + row * D, D * 4);
            for (int64_t d = 0; d < LD; d++)
                if (d < AT || d >= AT + D)
                    LS_CHECK(outs[1][row * LD + d] == 0 && backs[1][row * LD + d] == 0);
        }
        ls_check_end(&c);
    }
}

/* Two ranks have some columns of a row each, and add up what both leave: forward, then back. */
LS_TEST(qkv_normalises_rows_of_which_ranks_have_parts)
{
    enum { B = 2, T = 17, D = 36, M = B * T, RANKS = 2, EACH = D / RANKS };
    ls_kernels versions[TABLES];
    int n = list_versions(versions);

    for (int i = 0; i < n; i++) {
        double tolerance = ls_kernel_rows[LS_ROW_QKV_BWD].tolerance;
        ls_qkv whole = {.B = B, .T = T, .H = 1, .D = D, .eps = 1e-5f, .leaves = B}, parts[RANKS];
        ls_check c;
        ls_check_begin(&c, 2);
        float *x = ls_check_floats(&c, "x", M * D, 1), *dy = ls_check_floats(&c, "dy", M * D, 1);
        float *w = ls_check_floats(&c, "weight", D, 1), *dw = ls_check_floats(&c, "dweight", D, 0);
        float *y = ls_check_floats(&c, "y", M * D, 0), *dx = ls_check_floats(&c, "dx", M * D, 0);
        float *ys = ls_check_floats(&c, "ys", M * D, 0), *dxs = ls_check_copy(&c, "dxs", dy, M * D);
        float *dws = ls_check_floats(&c, "dweights", D, 0);
        float *sums[RANKS];
        whole.packed = x;
        whole.q = (ls_heads){y, T * D, D, D};
        whole.q_norm = w;
        whole.rstd = ls_check_floats(&c, "rstd", M, 0);
        versions[i].qkv_fwd(c.stream, &whole);
        for (int part = LS_QKV_SUMS; part <= LS_QKV_APPLY; part++) {
            for (int r = 0; r < RANKS; r++) {
                if (part == LS_QKV_SUMS) {
                    parts[r] = whole;
                    parts[r].D = EACH;
                    parts[r].ld = D;
                    parts[r].ranks = RANKS;
                    parts[r].packed = x + r * EACH;
                    parts[r].q = (ls_heads){ys + r * EACH, T * D, D, EACH};
                    parts[r].q_norm = w + r * EACH;
                    parts[r].rstd = ls_check_floats(&c, "rstds", M, 0);
                    parts[r].sums = sums[r] = ls_check_floats(&c, "sums", M, 0);
                }
                parts[r].part = (ls_qkv_part)part;
                versions[i].qkv_fwd(c.stream, &parts[r]);
            }
            for (int row = 0; row < M && part == LS_QKV_SUMS; row++)
                sums[0][row] = sums[1][row] = sums[0][row] + sums[1][row];
        }
        ls_check_near("y", ys, y, M * D, tolerance);
        ls_check_near("rstd", parts[1].rstd, whole.rstd, M, tolerance);
        whole.product = x;
        whole.packed = dx;
        whole.q.p = dy;
        whole.dq_norm = dw;
        whole.scratch = ls_rows_scratch(&c, &versions[i], LS_ROW_QKV_BWD, &whole);
        versions[i].qkv_bwd(c.stream, &whole);
        for (int part = LS_QKV_SUMS; part <= LS_QKV_APPLY; part++) {
            for (int r = 0; r < RANKS; r++) {
                parts[r].part = (ls_qkv_part)part;
                parts[r].product = x + r * EACH;
                parts[r].packed = parts[r].q.p = dxs + r * EACH;
                parts[r].dq_norm = part == LS_QKV_APPLY ? dws + r * EACH : NULL;
                parts[r].scratch = whole.scratch;
                versions[i].qkv_bwd(c.stream, &parts[r]);
            }
            for (int row = 0; row < M && part == LS_QKV_SUMS; row++)
                sums[0][row] = sums[1][row] = sums[0][row] + sums[1][row];
        }
        ls_check_near("dx", dxs, dx, M * D, tolerance);
        ls_check_near("dweight", dws, dw, D, tolerance);
        ls_check_end(&c);
    }
}

/* x = (3, 4), weight (1, 2): the mean of squares is 12.5; turned by 90 degrees. */
LS_TEST(qkv_normalises_before_it_turns)
{
    ls_kernels versions[TABLES];
    int n = list_versions(versions);

    for (int i = 0; i < n; i++) {
        const float rope[4] = {1, 0, 0, 1}, weight[2] = {1, 2}, ones[2] = {1, 1};
        float packed[6] = {3, 4, 3, 4, 3, 4}, out[6], rstd[2];
        ls_qkv a = {.packed = packed, .B = 1, .T = 1, .H = 1, .Hkv = 1, .D = 2, .past = 1};
        ls_check c;
        ls_check_begin(&c, 1);
        view(&a, out);
        a.rope = rope;
        a.q_norm = weight;
        a.k_norm = ones;
        a.rstd = rstd;
        versions[i].qkv_fwd(c.stream, &a);
        double r = 1 / sqrt(12.5);
        const double want[6] = {-8 * r, 3 * r, -4 * r, 3 * r, 3, 4};
        for (int e = 0; e < 6; e++)
            LS_CHECK_NEAR(out[e], want[e], 1e-6);
        LS_CHECK_NEAR(rstd[0], r, 1e-7);
        LS_CHECK_NEAR(rstd[1], r, 1e-7);
        ls_check_end(&c);
    }
}

/* Tokens from `past` on have the bits that they have in a call over all, with norms or without. */
LS_TEST(qkv_bits_do_not_depend_on_where_a_call_begins)
{
    const form s = {.B = 1, .T = 29, .H = 3, .Hkv = 1, .D = 20, .rope = true};
    ls_kernels versions[TABLES];
    int n = list_versions(versions);
    int64_t width = 5 * 20;

    for (int i = 0; i < 2 * n; i++)
        for (int64_t past = 0; past < s.T; past += 7) {
            ls_check c;
            ls_check_begin(&c, 2);
            ls_qkv whole = norm_args(&c, &s);
            if (i % 2)
                whole.q_norm = whole.k_norm = NULL;
            ls_qkv part = whole;
            float *out = ls_check_floats(&c, "part", (s.T - past) * width, 0);
            part.past = past;
            part.T = s.T - past;
            part.packed = (float *)whole.packed + past * width;
            part.rstd = NULL;
            view(&part, out);
            versions[i / 2].qkv_fwd(c.stream, &whole);
            versions[i / 2].qkv_fwd(c.stream, &part);
            ls_check_same("part", out, (float *)whole.q.p + past * width, part.T * width * 4);
            ls_check_end(&c);
        }
}

/* With norms and no gradient to come, views of packed itself are a valid target. */
LS_TEST(qkv_normalises_in_place)
{
    ls_kernels versions[TABLES];
    int n = list_versions(versions);

    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < LS_COUNT(forms); k++) {
            ls_check c;
            ls_check_begin(&c, 2);
            ls_qkv a = norm_args(&c, &forms[k]), b = a;
            b.packed = ls_check_copy(&c, "in place", a.packed, form_packed(&forms[k]));
            b.rstd = NULL;
            view(&b, b.packed);
            versions[i].qkv_fwd(c.stream, &a);
            versions[i].qkv_fwd(c.stream, &b);
            ls_check_same("in place", b.packed, a.q.p, form_packed(&forms[k]) * 4);
            ls_check_end(&c);
        }
}

/* dq_norm and dk_norm of `leaves` leaves are the tree over calls of one leaf each. */
LS_TEST(qkv_sums_leaves_as_a_tree)
{
    const ls_kernels *k;
    const int64_t counts[] = {4, 3, 5}, sizes[] = {7, 70};

    LS_CHECK_OK(ls_kernel_pick("auto", &k));
    for (int i = 0; i < 6; i++) {
        int64_t L = counts[i % 3], T = sizes[i / 3], width = 5 * 19;
        form s = {.B = L, .T = T, .H = 3, .Hkv = 1, .D = 19, .leaves = L, .weights = true};
        float *dq[5], *dk[5];
        ls_check c;
        ls_check_begin(&c, 2);
        ls_qkv a = norm_bwd_args(&c, &s), one = a;
        a.scratch = ls_rows_scratch(&c, k, LS_ROW_QKV_BWD, &a);
        k->qkv_bwd(c.stream, &a);
        one.scratch = a.scratch;
        one.B = one.leaves = 1;
        for (int64_t l = 0; l < L; l++) {
            view(&one, (float *)a.q.p + l * T * width);
            one.packed = (float *)a.packed + l * T * width;
            one.product = (const float *)a.product + l * T * width;
            one.rstd = a.rstd + l * T * 4;
            one.dq_norm = dq[l] = ls_check_floats(&c, "leaf dq_norm", 19, 0);
            one.dk_norm = dk[l] = ls_check_floats(&c, "leaf dk_norm", 19, 0);
            k->qkv_bwd(c.stream, &one);
        }
        ls_rows_tree(&c, k, dq, L, 19);
        ls_rows_tree(&c, k, dk, L, 19);
        ls_check_same("dq_norm", a.dq_norm, dq[0], 19 * 4);
        ls_check_same("dk_norm", a.dk_norm, dk[0], 19 * 4);
        ls_check_end(&c);
    }
}

/* The slope of sum of r * heads in *at: central differences of the reference. */
static double slope(ls_check *c, const ls_qkv *fwd, const float *r, int64_t n, float *at)
{
    const float step = 0x1p-7f, there = *at;
    double up, down;

    *at = there + step;
    ls_check_reference()->qkv_fwd(c->stream, fwd);
    up = dot(fwd->q.p, r, n);
    *at = there - step;
    ls_check_reference()->qkv_fwd(c->stream, fwd);
    down = dot(fwd->q.p, r, n);
    *at = there;
    return (up - down) / (2 * (double)step);
}

LS_TEST(qkv_norm_gradients_are_finite_differences)
{
    const form s = {1, 3, 4, 2, 6, 2, 1, true, false, true, false};
    int64_t n = form_packed(&s);
    ls_check c;

    ls_check_begin(&c, 1);
    ls_qkv back = norm_bwd_args(&c, &s);
    c.seed = 1; /* the same inputs once more, so that they can be moved */
    ls_qkv fwd = norm_args(&c, &s);
    const float *r = back.q.p;
    ls_check_reference()->qkv_bwd(c.stream, &back);
    for (int64_t i = 0; i < n; i++)
        LS_CHECK_NEAR(((float *)back.packed)[i], slope(&c, &fwd, r, n, (float *)fwd.packed + i),
                      2e-3);
    for (int64_t i = 0; i < s.D; i++) {
        LS_CHECK_NEAR(back.dq_norm[i], slope(&c, &fwd, r, n, (float *)(uintptr_t)fwd.q_norm + i),
                      2e-3);
        LS_CHECK_NEAR(back.dk_norm[i], slope(&c, &fwd, r, n, (float *)(uintptr_t)fwd.k_norm + i),
                      2e-3);
    }
    ls_check_end(&c);
}

LS_TEST(qkv_reference_reports_exhausted_memory)
{
    ls_check c;

    ls_check_begin(&c, 1);
    ls_qkv a = norm_args(&c, &forms[0]);
    ls_mem_fail_nth(1);
    ls_check_reference()->qkv_fwd(c.stream, &a);
    LS_CHECK_FAILS(ls_stream_sync(c.stream, INT64_MAX), LS_ENOMEM, "");
    ls_stream_free(c.stream); /* it keeps its failure */
    LS_CHECK_OK(ls_stream_create(&c.stream, c.device));
    ls_check_end(&c);
}

/* --- bf16 ----------------------------------------------------------------------------------- */

typedef struct half_form {
    form f;
    bool norms;
} half_form;

/* q, k, v as views of one packed tensor of the type. */
static void half_view(ls_qkv *a, void *base)
{
    int64_t width = (a->H + 2 * a->Hkv) * a->D, size = ls_dtype_bytes(a->type);

    a->q = (ls_heads){base, a->T * width, width, a->D};
    a->k = (ls_heads){(char *)base + a->H * a->D * size, a->T * width, width, a->D};
    a->v = (ls_heads){(char *)base + (a->H + a->Hkv) * a->D * size, a->T * width, width, a->D};
}

/* Forward arguments of a type; the same values for every type. */
static ls_qkv half_args(ls_check *c, ls_dtype type, const half_form *h)
{
    const form *s = &h->f;
    ls_qkv a = {.type = type, .B = s->B, .T = s->T, .H = s->H, .Hkv = s->Hkv, .D = s->D};

    c->seed = 1;
    a.past = s->past;
    a.eps = 1e-5f;
    a.packed = ls_half_values(c, type, "packed", form_packed(s), 1.5f, 0);
    half_view(&a, s->in_place && !h->norms
                      ? a.packed
                      : ls_half_values(c, type, "heads", form_packed(s), 0, 0));
    a.rope = s->rope ? new_rope(c, s->past + s->T, s->D) : NULL;
    a.rstd = ls_check_floats(c, "rstd", s->B * s->T * (s->H + s->Hkv), 0);
    memset(a.rstd, 0, (size_t)(s->B * s->T * (s->H + s->Hkv)) * sizeof *a.rstd);
    if (h->norms) {
        a.q_norm = ls_half_values(c, type, "q_norm", s->D, 1, 0);
        a.k_norm = ls_half_values(c, type, "k_norm", s->D, 1, 0);
    }
    return a;
}

static void run_half_fwd(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    const half_form *h = shape;
    ls_qkv a = half_args(c, ls_half_type(k), h);

    k->qkv_fwd(c->stream, &a);
    out = ls_half_put(out, a.type, a.q.p, form_packed(&h->f));
    ls_rows_put(out, a.rstd, h->f.B * h->f.T * (h->f.H + h->f.Hkv));
}

static void run_half_bwd(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    const half_form *h = shape;
    const form *s = &h->f;
    ls_qkv wide = half_args(c, LS_F32, h), a = half_args(c, ls_half_type(k), h);

    ls_check_reference()->qkv_fwd(c->stream, &wide);
    a.rstd = wide.rstd; /* both sides see the reference's statistics */
    a.product = a.packed;
    half_view(&a, ls_half_values(c, a.type, "dheads", form_packed(s), 1, 0));
    a.packed = s->in_place ? a.q.p : ls_half_values(c, a.type, "dpacked", form_packed(s), 0, 0);
    if (h->norms && s->weights) {
        a.dq_norm = ls_check_floats(c, "dq_norm", s->D, s->accumulate ? 1 : 0);
        a.dk_norm = ls_check_floats(c, "dk_norm", s->D, s->accumulate ? 1 : 0);
        a.leaves = s->leaves;
        a.accumulate = s->accumulate;
        a.scratch = ls_rows_scratch(c, k, LS_ROW_QKV_BWD, &a);
    }
    k->qkv_bwd(c->stream, &a);
    out = ls_half_put(out, a.type, a.packed, form_packed(s));
    if (a.dq_norm) {
        out = ls_rows_put(out, a.dq_norm, s->D);
        ls_rows_put(out, a.dk_norm, s->D);
    }
}

LS_TEST_SECONDS(qkv_in_bf16_is_the_reference_rounded, 60)
{
    for (size_t i = 0; i < 2 * LS_COUNT(forms); i++) {
        half_form h = {forms[i / 2], i % 2};
        const form *s = &h.f;
        ls_half_check(LS_ROW_QKV_FWD, run_half_fwd, &h, form_packed(s),
                      s->B * s->T * (s->H + s->Hkv));
        ls_half_check(LS_ROW_QKV_BWD, run_half_bwd, &h, form_packed(s),
                      h.norms && s->weights ? 2 * s->D : 0);
    }
}
