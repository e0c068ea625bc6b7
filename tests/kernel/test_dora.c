/* test_dora.c -- lengths of adapted weights and columns that they scale, against sums in double. */
#include "kernel/dora.h"

#include <math.h>
#include "kernel/kernel_check.h"

typedef struct rig {
    ls_check c;
    ls_dora_lengths a;
    float *w, *small_a, *small_b, *d;
} rig;

static void open_rig(rig *r, int64_t N, int64_t K, int64_t rank, ls_layout layout)
{
    ls_check_begin(&r->c, 3);
    r->w = ls_check_floats(&r->c, "w", N * K, 1);
    r->small_a = ls_check_floats(&r->c, "A", rank * K, 1);
    r->small_b = ls_check_floats(&r->c, "B", N * rank, 1);
    r->d = ls_check_floats(&r->c, "d", N, 1);
    r->a = (ls_dora_lengths){.type = LS_F32,
                             .w = r->w,
                             .a = r->small_a,
                             .b = r->small_b,
                             .d = r->d,
                             .scale = 0.75f,
                             .N = N,
                             .K = K,
                             .rank = rank,
                             .layout = layout,
                             .factor = ls_check_floats(&r->c, "factor", N, 0),
                             .inverse = ls_check_floats(&r->c, "inverse", N, 0)};
    ls_dora_measure(r->c.stream, &r->a);
}

/* |w_j|^2 and |v_j|^2. */
static void squares(const rig *r, int64_t j, double *own, double *adapted)
{
    const ls_dora_lengths *a = &r->a;

    *own = *adapted = 0;
    for (int64_t k = 0; k < a->K; k++) {
        double w = (double)r->w[a->layout == LS_LAYOUT_NK ? j * a->K + k : k * a->N + j], v = w;
        for (int64_t i = 0; i < a->rank; i++)
            v += (double)a->scale * (double)r->small_b[j * a->rank + i] *
                 (double)r->small_a[i * a->K + k];
        *own += w * w;
        *adapted += v * v;
    }
}

LS_TEST(dora_measures_lengths)
{
    const int64_t shapes[][3] = {{1, 1, 1}, {33, 257, 3}, {70, 40, 8}, {64, 600, 1}};

    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        for (int layout = 0; layout < 2; layout++) {
            rig r;
            open_rig(&r, shapes[i][0], shapes[i][1], shapes[i][2],
                     layout ? LS_LAYOUT_NK : LS_LAYOUT_KN);
            for (int64_t j = 0; j < r.a.N; j++) {
                double own, adapted;
                squares(&r, j, &own, &adapted);
                double want = (sqrt(own) + (double)r.d[j]) / sqrt(adapted);
                LS_CHECK(fabs((double)r.a.factor[j] - want) <= 1e-5 * (1 + fabs(want)));
                LS_CHECK(fabs((double)r.a.inverse[j] * sqrt(adapted) - 1) <= 1e-5);
            }
            ls_check_end(&r.c);
        }
}

/* A weight of zeros, beside which nothing has been learned, makes zeros. */
LS_TEST(dora_of_an_output_without_length_is_zero)
{
    rig r;

    open_rig(&r, 3, 5, 2, LS_LAYOUT_NK);
    memset(r.w, 0, 3 * 5 * sizeof *r.w);
    memset(r.small_b, 0, 3 * 2 * sizeof *r.small_b);
    ls_dora_measure(r.c.stream, &r.a);
    for (int j = 0; j < 3; j++) {
        LS_CHECK_EQ(r.a.factor[j], 0);
        LS_CHECK_EQ(r.a.inverse[j], 0);
    }
    ls_check_end(&r.c);
}

LS_TEST(dora_scales_columns_forward_and_back)
{
    enum { M = 37, N = 70 };
    ls_check c;

    ls_check_begin(&c, 3);
    float *z = ls_check_floats(&c, "z", M * N, 1), *factor = ls_check_floats(&c, "factor", N, 1);
    float *bias = ls_check_floats(&c, "bias", N, 1), *add = ls_check_floats(&c, "add", M * N, 1);
    float *y = ls_check_floats(&c, "y", M * N, 0), *dz = ls_check_floats(&c, "dz", M * N, 0);
    ls_dora_forward(c.stream, &(ls_dora_fwd){.z = z, .factor = factor, .y = y, .M = M, .N = N});
    for (int i = 0; i < M * N; i++)
        LS_CHECK_EQ(y[i], factor[i % N] * z[i]);
    ls_dora_forward(
        c.stream,
        &(ls_dora_fwd){.z = z, .factor = factor, .bias = bias, .add = add, .y = y, .M = M, .N = N});
    for (int i = 0; i < M * N; i++)
        LS_CHECK_EQ(y[i], factor[i % N] * z[i] + bias[i % N] + add[i]);
    ls_dora_backward(c.stream, &(ls_dora_bwd){.dy = y, .factor = factor, .dz = dz, .M = M, .N = N});
    for (int i = 0; i < M * N; i++)
        LS_CHECK_EQ(dz[i], factor[i % N] * y[i]);
    ls_check_end(&c);
}

/* Some columns of a product; leaves of a call have the bits of the leaves' own calls, joined as a tree. */
LS_TEST(dora_sums_the_gradient_of_lengths_along_the_tree)
{
    enum { LEAVES = 5, ROWS = 7, M = LEAVES * ROWS, N = 150, FIRST = 40, n = 100 };
    ls_check c;
    float part[LEAVES][n];

    ls_check_begin(&c, 3);
    float *z = ls_check_floats(&c, "z", M * N, 1), *dy = ls_check_floats(&c, "dy", M * N, 1);
    float *inverse = ls_check_floats(&c, "inverse", N, 1), *dd = ls_check_floats(&c, "dd", n, 1);
    float *before = ls_check_copy(&c, "dd before", dd, n);
    ls_dora_bwd a = {.dy = dy, .z = z, .inverse = inverse, .M = M, .N = N};
    for (int leaf = 0; leaf < LEAVES; leaf++) {
        ls_dora_bwd one = a;
        one.dy = dy + leaf * ROWS * N;
        one.z = z + leaf * ROWS * N;
        one.M = ROWS;
        ls_dora_backward_lengths(c.stream, &one, FIRST, n, 1, false, part[leaf]);
    }
    ls_dora_backward_lengths(c.stream, &a, FIRST, n, LEAVES, true, dd);
    for (int i = 0; i < n; i++) {
        double want = 0;
        for (int row = 0; row < M; row++)
            want += (double)dy[row * N + FIRST + i] * (double)z[row * N + FIRST + i] *
                    (double)inverse[FIRST + i];
        float tree = ((part[0][i] + part[1][i]) + (part[2][i] + part[3][i])) + part[4][i];
        LS_CHECK_EQ(dd[i], before[i] + tree);
        LS_CHECK(fabs((double)tree - want) <= 1e-4 * (1 + fabs(want)));
    }
    ls_check_end(&c);
}
