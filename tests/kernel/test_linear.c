/* The linear rows: against the reference, against finite differences, and bit against bit. */
#include "kernel/kernel_check.h"

#include <math.h>

/* M, N, K: one, odd, around the sizes of tiles, one row, more than one block of the sum. */
static const int64_t shapes[][3] = {{1, 1, 1},    {3, 5, 7},     {17, 33, 65},  {1, 40, 50},
                                    {2, 16, 16},  {14, 32, 384}, {15, 31, 385}, {29, 64, 31},
                                    {4, 7, 801},  {6, 129, 20},  {401, 18, 9},  {13, 259, 33},
                                    {770, 3, 2},  {27, 17, 48},  {5, 1, 400},   {1, 1, 769},
                                    {30, 49, 97}, {33, 97, 47},  {13, 127, 390}};

static void check_fwd(const ls_kernels *v, const int64_t *s, ls_layout layout, ls_act act)
{
    int64_t M = s[0], N = s[1], K = s[2];
    ls_check c;
    ls_linear_fwd a = {.M = M, .N = N, .K = K, .layout = layout, .act = act}, r;

    ls_check_begin(&c, 2);
    a.x = ls_check_floats(&c, "x", M * K, 1);
    a.w = ls_check_floats(&c, "w", K * N, 0.5f);
    a.b = act == LS_ACT_SILU ? NULL : ls_check_floats(&c, "b", N, 1);
    r = a;
    a.y = ls_check_floats(&c, "y", M * N, 0);
    a.z = act == LS_ACT_NONE ? NULL : ls_check_floats(&c, "z", M * N, 0);
    r.y = ls_check_floats(&c, "y of the reference", M * N, 0);
    r.z = a.z ? ls_check_floats(&c, "z of the reference", M * N, 0) : NULL;
    v->linear_fwd(c.stream, &a);
    ls_check_reference()->linear_fwd(c.stream, &r);
    ls_check_near("y", a.y, r.y, M * N, ls_kernel_rows[LS_ROW_LINEAR_FWD].tolerance);
    if (a.z)
        ls_check_near("z", a.z, r.z, M * N, ls_kernel_rows[LS_ROW_LINEAR_FWD].tolerance);
    ls_check_end(&c);
}

LS_TEST_SECONDS(linear_fwd_agrees_with_the_reference, 60)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++)
        for (size_t s = 0; s < LS_COUNT(shapes); s++)
            for (int act = LS_ACT_NONE; act <= LS_ACT_SILU; act++) {
                check_fwd(&list[i], shapes[s], LS_LAYOUT_KN, (ls_act)act);
                check_fwd(&list[i], shapes[s], LS_LAYOUT_NK, (ls_act)act);
            }
}

/* y = add + x W + b, also where y is add itself. */
static void check_fwd_add(const ls_kernels *v, const int64_t *s, ls_layout layout, bool in_place)
{
    int64_t M = s[0], N = s[1], K = s[2];
    ls_check c;
    ls_linear_fwd a = {.M = M, .N = N, .K = K, .layout = layout}, r;

    ls_check_begin(&c, 2);
    a.x = ls_check_floats(&c, "x", M * K, 1);
    a.w = ls_check_floats(&c, "w", K * N, 0.5f);
    a.b = in_place ? NULL : ls_check_floats(&c, "b", N, 1);
    float *add = ls_check_floats(&c, "add", M * N, 3);
    a.add = add;
    r = a;
    r.y = ls_check_floats(&c, "y of the reference", M * N, 0);
    ls_check_reference()->linear_fwd(c.stream, &r);
    a.y = in_place ? add : ls_check_floats(&c, "y", M * N, 0);
    v->linear_fwd(c.stream, &a);
    ls_check_near("y", a.y, r.y, M * N, ls_kernel_rows[LS_ROW_LINEAR_FWD].tolerance);
    ls_check_end(&c);
}

LS_TEST_SECONDS(linear_fwd_adds_the_stream, 60)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++)
        for (size_t s = 0; s < LS_COUNT(shapes); s++)
            for (int layout = LS_LAYOUT_KN; layout <= LS_LAYOUT_NK; layout++) {
                check_fwd_add(&list[i], shapes[s], (ls_layout)layout, false);
                check_fwd_add(&list[i], shapes[s], (ls_layout)layout, true);
            }
}

static void check_bwd_x(const ls_kernels *v, const int64_t *s, ls_layout layout, ls_act act,
                        bool add)
{
    int64_t M = s[0], N = s[1], K = s[2];
    ls_check c;
    ls_linear_bwd_x a = {.M = M, .N = N, .K = K, .layout = layout, .act = act, .accumulate = add};
    ls_linear_bwd_x r;

    ls_check_begin(&c, 2);
    a.dy = ls_check_floats(&c, "dy", M * N, 1);
    a.w = ls_check_floats(&c, "w", K * N, 0.5f);
    a.z = act == LS_ACT_NONE ? NULL : ls_check_floats(&c, "z", M * K, 2);
    r = a;
    a.dx = ls_check_floats(&c, "dx", M * K, add ? 1.0f : 0.0f);
    r.dx = ls_check_copy(&c, "dx of the reference", a.dx, M * K);
    v->linear_bwd_x(c.stream, &a);
    ls_check_reference()->linear_bwd_x(c.stream, &r);
    ls_check_near("dx", a.dx, r.dx, M * K, ls_kernel_rows[LS_ROW_LINEAR_BWD_X].tolerance);
    ls_check_end(&c);
}

LS_TEST_SECONDS(linear_bwd_x_agrees_with_the_reference, 60)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++)
        for (size_t s = 0; s < LS_COUNT(shapes); s++)
            for (int layout = LS_LAYOUT_KN; layout <= LS_LAYOUT_NK; layout++) {
                for (int act = LS_ACT_NONE; act <= LS_ACT_SILU; act++)
                    check_bwd_x(&list[i], shapes[s], (ls_layout)layout, (ls_act)act, false);
                check_bwd_x(&list[i], shapes[s], (ls_layout)layout, LS_ACT_NONE, true);
            }
}

static void check_bwd_w(const ls_kernels *v, const int64_t *s, ls_layout layout, bool add,
                        bool bias)
{
    int64_t M = s[0], N = s[1], K = s[2];
    ls_check c;
    ls_linear_bwd_w a = {.M = M, .N = N, .K = K, .layout = layout, .accumulate = add}, r;

    ls_check_begin(&c, 2);
    a.leaves = M % 5 == 0 ? 5 : M % 3 == 0 ? 3 : M % 2 == 0 ? 2 : 1;
    a.x = ls_check_floats(&c, "x", M * K, 1);
    a.dy = ls_check_floats(&c, "dy", M * N, 0.5f);
    r = a;
    a.dw = ls_check_floats(&c, "dw", K * N, add ? 1.0f : 0.0f);
    r.dw = ls_check_copy(&c, "dw of the reference", a.dw, K * N);
    a.db = bias ? ls_check_floats(&c, "db", N, add ? 1.0f : 0.0f) : NULL;
    r.db = bias ? ls_check_copy(&c, "db of the reference", a.db, N) : NULL;
    v->linear_bwd_w(c.stream, &a);
    ls_check_reference()->linear_bwd_w(c.stream, &r);
    ls_check_near("dw", a.dw, r.dw, K * N, ls_kernel_rows[LS_ROW_LINEAR_BWD_W].tolerance);
    if (bias)
        ls_check_near("db", a.db, r.db, N, ls_kernel_rows[LS_ROW_LINEAR_BWD_W].tolerance);
    ls_check_end(&c);
}

LS_TEST_SECONDS(linear_bwd_w_agrees_with_the_reference, 60)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++)
        for (size_t s = 0; s < LS_COUNT(shapes); s++)
            for (int layout = LS_LAYOUT_KN; layout <= LS_LAYOUT_NK; layout++) {
                check_bwd_w(&list[i], shapes[s], (ls_layout)layout, false, true);
                check_bwd_w(&list[i], shapes[s], (ls_layout)layout, true, true);
                check_bwd_w(&list[i], shapes[s], (ls_layout)layout, false, false);
            }
}

/* --- gradients against finite differences --------------------------------------------------- */

enum { FM = 5, FN = 6, FK = 7 };

/* sum of r * act(act_below(p) W + b), all by the reference. */
static double objective(ls_check *c, const ls_linear_fwd *a, const float *p, ls_act below,
                        const float *r)
{
    float x[FM * FK], y[FM * FN], eye[FK * FK] = {0};
    ls_linear_fwd first = {.x = p, .w = eye, .y = x, .M = FM, .N = FK, .K = FK, .act = below};
    ls_linear_fwd second = *a;
    double sum = 0;

    for (int i = 0; i < FK; i++)
        eye[i * FK + i] = 1;
    ls_check_reference()->linear_fwd(c->stream, &first);
    second.x = x;
    second.y = y;
    second.z = NULL;
    ls_check_reference()->linear_fwd(c->stream, &second);
    for (int i = 0; i < FM * FN; i++)
        sum += (double)r[i] * (double)y[i];
    return sum;
}

/* The slope of the objective in *at: central differences. */
static double slope(ls_check *c, const ls_linear_fwd *a, const float *p, ls_act below,
                    const float *r, float *at)
{
    const float step = 0x1p-6f, there = *at;
    double up, down;

    *at = there + step;
    up = objective(c, a, p, below, r);
    *at = there - step;
    down = objective(c, a, p, below, r);
    *at = there;
    return (up - down) / (2 * (double)step);
}

static void check_slopes(const ls_kernels *v, ls_layout layout, ls_act below)
{
    ls_check c;
    float dx[FM * FK], dw[FK * FN], db[FN], x[FM * FK];

    ls_check_begin(&c, 1);
    float *p = ls_check_floats(&c, "p", FM * FK, 1), *w = ls_check_floats(&c, "w", FK * FN, 1);
    float *b = ls_check_floats(&c, "b", FN, 1), *r = ls_check_floats(&c, "r", FM * FN, 1);
    float *eye = ls_check_floats(&c, "eye", FK * FK, 1);
    ls_linear_fwd fwd = {.w = w, .b = b, .M = FM, .N = FN, .K = FK, .layout = layout};
    ls_linear_bwd_x bx = {.dy = r, .w = w, .z = p, .dx = dx, .M = FM, .N = FN, .K = FK};
    ls_linear_bwd_w bw = {.x = x, .dy = r, .dw = dw, .db = db, .M = FM, .N = FN, .K = FK};
    memset(eye, 0, FK * FK * sizeof *eye);
    for (int i = 0; i < FK; i++)
        eye[i * FK + i] = 1;
    v->linear_fwd(c.stream, &(ls_linear_fwd){
                                .x = p, .w = eye, .y = x, .M = FM, .N = FK, .K = FK, .act = below});
    bx.layout = bw.layout = layout;
    bx.act = below;
    bw.leaves = 1;
    v->linear_bwd_x(c.stream, &bx);
    v->linear_bwd_w(c.stream, &bw);
    for (int i = 0; i < FM * FK; i++)
        LS_CHECK_NEAR(dx[i], slope(&c, &fwd, p, below, r, &p[i]), 1e-3);
    for (int i = 0; i < FK * FN; i++)
        LS_CHECK_NEAR(dw[i], slope(&c, &fwd, p, below, r, &w[i]), 1e-3);
    for (int i = 0; i < FN; i++)
        LS_CHECK_NEAR(db[i], slope(&c, &fwd, p, below, r, &b[i]), 1e-3);
    ls_check_end(&c);
}

LS_TEST(linear_gradients_agree_with_finite_differences)
{
    ls_kernels list[LS_CHECK_TABLES + 1];
    int n = ls_check_tables(list);

    list[n++] = *ls_check_reference();
    for (int i = 0; i < n; i++)
        for (int layout = LS_LAYOUT_KN; layout <= LS_LAYOUT_NK; layout++)
            for (int below = LS_ACT_NONE; below <= LS_ACT_SILU; below++)
                check_slopes(&list[i], (ls_layout)layout, (ls_act)below);
}

/* --- equal bits --------------------------------------------------------------------------------
 * One set of inputs, and the outputs of all three rows laid end to end. */
typedef struct bits_case {
    int64_t M, N, K, leaves;
    ls_layout layout;
    const float *x, *w, *b, *dy, *z;
    int64_t floats;
} bits_case;

static void bits_begin(ls_check *c, bits_case *t)
{
    ls_check_begin(c, 1);
    t->x = ls_check_floats(c, "x", t->M * t->K, 1);
    t->w = ls_check_floats(c, "w", t->K * t->N, 1);
    t->b = ls_check_floats(c, "b", t->N, 1);
    t->dy = ls_check_floats(c, "dy", t->M * t->N, 1);
    t->z = ls_check_floats(c, "z", t->M * t->K, 2);
    t->floats = 2 * t->M * t->N + t->M * t->K + t->K * t->N + t->N;
}

static float *bits_of(ls_check *c, const bits_case *t, const ls_kernels *v, int threads, ls_act act)
{
    float *out = ls_check_floats(c, v->name, t->floats, 0), *z = out + t->M * t->N;
    float *dx = z + t->M * t->N, *dw = dx + t->M * t->K, *db = dw + t->K * t->N;
    ls_check run;

    ls_check_begin(&run, threads);
    v->linear_fwd(run.stream, &(ls_linear_fwd){.x = t->x,
                                               .w = t->w,
                                               .b = t->b,
                                               .y = out,
                                               .z = z,
                                               .M = t->M,
                                               .N = t->N,
                                               .K = t->K,
                                               .layout = t->layout,
                                               .act = act});
    v->linear_bwd_x(run.stream, &(ls_linear_bwd_x){.dy = t->dy,
                                                   .w = t->w,
                                                   .z = t->z,
                                                   .dx = dx,
                                                   .M = t->M,
                                                   .N = t->N,
                                                   .K = t->K,
                                                   .layout = t->layout,
                                                   .act = act});
    v->linear_bwd_w(run.stream, &(ls_linear_bwd_w){.x = t->x,
                                                   .dy = t->dy,
                                                   .dw = dw,
                                                   .db = db,
                                                   .M = t->M,
                                                   .N = t->N,
                                                   .K = t->K,
                                                   .layout = t->layout,
                                                   .leaves = t->leaves});
    ls_check_end(&run);
    return out;
}

LS_TEST_SECONDS(linear_bits_are_equal_for_threads_and_instruction_sets, 60)
{
    static const int64_t cases[][4] = {{60, 70, 801, 3}, {9, 33, 50, 1},   {401, 20, 30, 1},
                                       {1, 300, 400, 1}, {800, 17, 19, 2}, {45, 129, 33, 5}};
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (size_t i = 0; i < LS_COUNT(cases); i++)
        for (int act = LS_ACT_NONE; act <= LS_ACT_SILU; act++) {
            const int64_t *s = cases[i];
            bits_case t = {.M = s[0], .N = s[1], .K = s[2], .leaves = s[3]};
            ls_check c;
            t.layout = (i + (size_t)act) % 2 ? LS_LAYOUT_KN : LS_LAYOUT_NK;
            bits_begin(&c, &t);
            float *first = bits_of(&c, &t, &list[n - 1], 1, (ls_act)act);
            for (int k = 0; k < n; k++)
                for (int threads = 1; threads <= 3; threads++)
                    ls_check_same(list[k].name, bits_of(&c, &t, &list[k], threads, (ls_act)act),
                                  first, t.floats * 4);
            ls_check_end(&c);
        }
}

/* A row of y and of dx does not depend on the rows that it is computed with. */
LS_TEST_SECONDS(linear_rows_do_not_depend_on_the_batch, 60)
{
    enum { M = 43, N = 50, K = 800 };
    static const int64_t cuts[] = {1, 2, 3, 14, 20, 42};
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++) {
        ls_check c;
        ls_check_begin(&c, 2);
        ls_linear_fwd a = {.M = M, .N = N, .K = K, .act = LS_ACT_GELU, .layout = LS_LAYOUT_NK};
        const float *x = ls_check_floats(&c, "x", M * K, 1);
        float *whole = ls_check_floats(&c, "whole", M * N, 0);
        float *parts = ls_check_floats(&c, "parts", M * N, 0);
        float *dwhole = ls_check_floats(&c, "whole dx", M * K, 0);
        float *dparts = ls_check_floats(&c, "dx in parts", M * K, 0);
        a.w = ls_check_floats(&c, "w", K * N, 1);
        a.x = x;
        a.y = whole;
        list[i].linear_fwd(c.stream, &a);
        ls_linear_bwd_x d = {.dy = whole, .w = a.w, .dx = dwhole, .M = M, .N = N, .K = K};
        list[i].linear_bwd_x(c.stream, &d);
        for (size_t k = 0; k < LS_COUNT(cuts); k++) {
            a.M = d.M = cuts[k];
            a.x = x;
            a.y = parts;
            d.dy = whole;
            d.dx = dparts;
            list[i].linear_fwd(c.stream, &a);
            list[i].linear_bwd_x(c.stream, &d);
            a.M = d.M = M - cuts[k];
            a.x = x + cuts[k] * K;
            a.y = parts + cuts[k] * N;
            d.dy = whole + cuts[k] * N;
            d.dx = dparts + cuts[k] * K;
            list[i].linear_fwd(c.stream, &a);
            list[i].linear_bwd_x(c.stream, &d);
            ls_check_same("y", parts, whole, M * N * 4);
            ls_check_same("dx", dparts, dwhole, M * K * 4);
        }
        ls_check_end(&c);
    }
}

/* One to nine rows, which go another way than many, have the bits that they have among many. */
static void check_few(const ls_kernels *v, int64_t N, int64_t K, ls_layout layout)
{
    enum { M = 17 };
    ls_check c;
    ls_linear_fwd a = {.M = M, .N = N, .K = K, .act = LS_ACT_SILU, .layout = layout};

    ls_check_begin(&c, 1 + (int)(N % 3));
    const float *x = ls_check_floats(&c, "x", M * K, 1);
    float *whole = ls_check_floats(&c, "whole", M * N, 0);
    a.w = ls_check_floats(&c, "w", K * N, 1);
    a.b = ls_check_floats(&c, "b", N, 1);
    a.x = x;
    a.y = whole;
    v->linear_fwd(c.stream, &a);
    for (int64_t rows = 1; rows <= 9; rows++) {
        int64_t first = M - rows;
        a.M = rows;
        a.x = x + first * K;
        a.y = ls_check_floats(&c, "few", rows * N, 0);
        v->linear_fwd(c.stream, &a);
        ls_check_same("few rows", a.y, whole + first * N, rows * N * 4);
    }
    ls_check_end(&c);
}

LS_TEST_SECONDS(linear_few_rows_have_the_bits_of_many, 60)
{
    static const int64_t sizes[][2] = {{1, 1},    {16, 16},  {33, 385}, {50, 7},
                                       {31, 801}, {300, 20}, {65, 768}};
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++)
        for (int layout = LS_LAYOUT_KN; layout <= LS_LAYOUT_NK; layout++)
            for (size_t s = 0; s < LS_COUNT(sizes); s++)
                check_few(&list[i], sizes[s][0], sizes[s][1], (ls_layout)layout);
    for (int layout = LS_LAYOUT_KN; layout <= LS_LAYOUT_NK; layout++) {
        check_few(&list[n - 1], 2100, 9, (ls_layout)layout);   /* more columns than a task takes */
        check_few(&list[n - 1], 18, 25000, (ls_layout)layout); /* and more values of k */
    }
}

/* The tree by hand: halves are perfect subtrees of the leaves' numbers. part[i] is overwritten. */
static void add_tree(float *part, int64_t n, int leaves)
{
    for (int width = 1; width < leaves; width *= 2)
        for (int i = 0; i + width < leaves; i += 2 * width)
            for (int64_t k = 0; k < n; k++)
                part[i * n + k] += part[(i + width) * n + k];
}

static void check_leaves(const ls_kernels *v, int leaves, int64_t rows, bool add)
{
    enum { N = 37, K = 45, BOTH = N * K + N };
    ls_check c;
    ls_linear_bwd_w a = {.M = leaves * rows, .N = N, .K = K, .leaves = leaves, .accumulate = add};

    ls_check_begin(&c, 2);
    a.layout = leaves % 2 ? LS_LAYOUT_KN : LS_LAYOUT_NK;
    const float *x = ls_check_floats(&c, "x", a.M * K, 1);
    const float *dy = ls_check_floats(&c, "dy", a.M * N, 1);
    const float *there = ls_check_floats(&c, "there", BOTH, 1);
    float *got = ls_check_copy(&c, "got", there, BOTH);
    float *part = ls_check_floats(&c, "leaves", leaves * BOTH, 0);
    a.x = x;
    a.dy = dy;
    a.dw = got;
    a.db = got + N * K;
    v->linear_bwd_w(c.stream, &a);
    a.M = rows;
    a.leaves = 1;
    a.accumulate = false;
    for (int i = 0; i < leaves; i++) {
        a.x = x + i * rows * K;
        a.dy = dy + i * rows * N;
        a.dw = part + i * BOTH;
        a.db = a.dw + N * K;
        v->linear_bwd_w(c.stream, &a);
    }
    add_tree(part, BOTH, leaves);
    for (int k = 0; add && k < BOTH; k++)
        part[k] = there[k] + part[k];
    ls_check_same(v->name, got, part, BOTH * 4);
    ls_check_end(&c);
}

LS_TEST_SECONDS(linear_bwd_w_adds_leaves_along_the_tree, 60)
{
    static const int leaves[] = {1, 2, 3, 4, 5, 7, 8, 13};
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < LS_COUNT(leaves); k++) {
            check_leaves(&list[i], leaves[k], 9, false);
            check_leaves(&list[i], leaves[k], 11, true);
        }
    check_leaves(&list[n - 1], 3, 500, true);
}

/* NaN must not be hidden by bounded exp and tanh. */
LS_TEST(linear_fwd_shows_nan)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++)
        for (int act = LS_ACT_NONE; act <= LS_ACT_SILU; act++) {
            float x[2] = {1, NAN}, w[2] = {1, 1}, y[1];
            ls_check c;
            ls_check_begin(&c, 1);
            list[i].linear_fwd(
                c.stream, &(ls_linear_fwd){
                              .x = x, .w = w, .y = y, .M = 1, .N = 1, .K = 2, .act = (ls_act)act});
            LS_CHECK(isnan(y[0]));
            ls_check_end(&c);
        }
}

/* A fused activation and the row of its own are one definition: equal bits, also where the values
 * are absurd. */
LS_TEST(linear_activates_with_the_bits_of_the_activation_rows)
{
    enum { M = 5, N = 37, K = 3 };
    const float far[] = {-1e30f, -3e13f, -1e5f, -12, -9.9f, 9.9f, 12, 1e5f, 1e20f, NAN};
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < 2 * n; i++) {
        const ls_kernels *v = &list[i / 2];
        ls_act act = i % 2 ? LS_ACT_SILU : LS_ACT_GELU;
        ls_check c;
        ls_check_begin(&c, 1);
        const float *x = ls_check_floats(&c, "x", M * K, 1);
        const float *w = ls_check_floats(&c, "w", K * N, 2);
        float *b = ls_check_floats(&c, "b", N, 1);
        float *z = ls_check_floats(&c, "z", M * N, 0), *y = ls_check_floats(&c, "y", M * N, 0);
        float *plain = ls_check_floats(&c, "plain", M * N, 0);
        float *dy = ls_check_floats(&c, "dy", M * K, 1), *dz = ls_check_floats(&c, "dz", M * N, 0);
        memcpy(b, far, sizeof far);
        v->linear_fwd(
            c.stream,
            &(ls_linear_fwd){
                .x = x, .w = w, .b = b, .y = y, .z = z, .M = M, .N = N, .K = K, .act = act});
        v->act_fwd(c.stream, &(ls_act_args){.act = act, .x = z, .y = plain, .M = M, .F = N});
        ls_check_same("value", y, plain, M * N * 4);
        /* the layer above has N inputs and K outputs */
        ls_linear_bwd_x d = {.dy = dy, .w = w, .z = z, .dx = dz, .M = M, .N = K, .K = N};
        d.act = act;
        d.layout = LS_LAYOUT_NK;
        v->linear_bwd_x(c.stream, &d);
        d.act = LS_ACT_NONE;
        d.dx = y;
        v->linear_bwd_x(c.stream, &d);
        v->act_bwd(c.stream,
                   &(ls_act_args){.act = act, .x = z, .dy = y, .dx = plain, .M = M, .F = N});
        ls_check_same("gradient", dz, plain, M * N * 4);
        for (int m = 0; m < M; m++) {
            for (int k = 0; k < 9; k++)
                LS_CHECK(isfinite(dz[m * N + k]));
            LS_CHECK(fabsf(dz[m * N + 1]) < 1e-3f); /* far below zero: flat */
            LS_CHECK(isnan(dz[m * N + 9]));
        }
        ls_check_end(&c);
    }
}

/* --- rows that lie apart -----------------------------------------------------------------------
 * A product into some columns of a wider tensor, and gradients from there, have the bits of the
 * dense calls; what lies between is not touched. */

/* [M, N] into rows that lie ld apart; the gaps are 0xff. Ends with the last element. */
static float *spread(ls_check *c, const char *name, const float *dense, int64_t M, int64_t N,
                     int64_t ld)
{
    float *to = ls_check_floats(c, name, (M - 1) * ld + N, 0);

    for (int64_t m = 0; m < M; m++)
        memcpy(to + m * ld, dense + m * N, (size_t)N * sizeof *to);
    return to;
}

static void check_spread(const char *name, const float *got, const float *dense, int64_t M,
                         int64_t N, int64_t ld)
{
    static const unsigned char gap[4] = {0xff, 0xff, 0xff, 0xff};

    for (int64_t m = 0; m < M; m++) {
        ls_check_same(name, got + m * ld, dense + m * N, N * 4);
        for (int64_t n = N; m + 1 < M && n < ld; n++)
            ls_check_same("a gap", got + m * ld + n, gap, 4);
    }
}

static void check_apart_fwd(const ls_kernels *v, const int64_t *s, ls_layout layout, ls_act act)
{
    int64_t M = s[0], N = s[1], K = s[2], ld = N + 5;
    ls_linear_fwd a = {.M = M, .N = N, .K = K, .layout = layout, .act = act}, r;
    ls_check c;

    ls_check_begin(&c, 2);
    a.x = ls_check_floats(&c, "x", M * K, 1);
    a.w = ls_check_floats(&c, "w", K * N, 0.5f);
    a.b = ls_check_floats(&c, "b", N, 1);
    float *there = ls_check_floats(&c, "there", M * N, 1);
    float *dense = ls_check_floats(&c, "dense", M * N, 0);
    float *apart = spread(&c, "apart", there, M, N, ld);
    a.y = dense;
    v->linear_fwd(c.stream, &a);
    a.y = apart;
    a.ldy = ld;
    v->linear_fwd(c.stream, &a);
    check_spread("y", apart, dense, M, N, ld);

    a.b = NULL; /* and added to what is there */
    a.act = LS_ACT_NONE;
    a.ldy = N;
    a.y = dense;
    v->linear_fwd(c.stream, &a);
    a.ldy = ld;
    a.accumulate = true;
    a.y = spread(&c, "accumulated", there, M, N, ld);
    v->linear_fwd(c.stream, &a);
    for (int64_t i = 0; i < M * N; i++)
        dense[i] = there[i] + dense[i];
    check_spread("y added to", a.y, dense, M, N, ld);
    r = a;
    r.y = spread(&c, "reference", there, M, N, ld);
    ls_check_reference()->linear_fwd(c.stream, &r);
    for (int64_t m = 0; m < M; m++)
        ls_check_near("y", dense + m * N, (float *)r.y + m * ld, N,
                      ls_kernel_rows[LS_ROW_LINEAR_FWD].tolerance);
    ls_check_end(&c);
}

static void check_apart_bwd(const ls_kernels *v, const int64_t *s, ls_layout layout, ls_act act)
{
    int64_t M = s[0], N = s[1], K = s[2], ld = N + 3;
    ls_linear_bwd_x x = {.M = M, .N = N, .K = K, .layout = layout, .act = act};
    ls_linear_bwd_w w = {.M = M, .N = N, .K = K, .layout = layout, .leaves = M % 3 ? 1 : 3};
    ls_check c;

    ls_check_begin(&c, 2);
    const float *dense = ls_check_floats(&c, "dy", M * N, 1);
    const float *apart = spread(&c, "dy apart", dense, M, N, ld);
    float *dx[2], *dw[2], *db[2];
    x.w = ls_check_floats(&c, "w", K * N, 0.5f);
    x.z = ls_check_floats(&c, "z", M * K, 2);
    w.x = ls_check_floats(&c, "x", M * K, 1);
    for (int i = 0; i < 2; i++) {
        x.dx = dx[i] = ls_check_floats(&c, "dx", M * K, 0);
        w.dw = dw[i] = ls_check_floats(&c, "dw", K * N, 0);
        w.db = db[i] = ls_check_floats(&c, "db", N, 0);
        x.dy = w.dy = i ? apart : dense;
        x.ldy = w.ldy = i ? ld : 0;
        v->linear_bwd_x(c.stream, &x);
        v->linear_bwd_w(c.stream, &w);
    }
    ls_check_same("dx", dx[1], dx[0], M * K * 4);
    ls_check_same("dw", dw[1], dw[0], K * N * 4);
    ls_check_same("db", db[1], db[0], N * 4);
    ls_check_end(&c);
}

LS_TEST_SECONDS(linear_takes_rows_that_lie_apart, 60)
{
    ls_kernels list[LS_CHECK_TABLES + 1];
    int n = ls_check_tables(list);

    list[n++] = *ls_check_reference();
    for (int i = 0; i < n; i++)
        for (size_t s = 0; s < LS_COUNT(shapes); s++)
            for (int layout = LS_LAYOUT_KN; layout <= LS_LAYOUT_NK; layout++) {
                bool plain = i + 1 == n; /* in double, a second rounding shows when adding */
                ls_act act = (ls_act)((s + (size_t)layout) % 3);
                if (!plain)
                    check_apart_fwd(&list[i], shapes[s], (ls_layout)layout, act);
                check_apart_bwd(&list[i], shapes[s], (ls_layout)layout, act);
            }
}
