/* The head row: loss and gradients against the reference and finite differences; bit for bit. */
#include "kernel/kernel_check.h"

#include <math.h>

/* Inputs of one case; every run of it gets its own outputs and scratch, with guards. */
typedef struct task {
    ls_check check;
    ls_step_state state;
    int64_t M, C, V, leaves;
    const float *h, *w, *there; /* there: what dw holds before */
    int32_t *targets;
    const float *weights; /* of the losses, both signs; NULL: none */
    bool accumulate;
} task;

typedef struct result {
    float *losses, *dh, *dw;
} result;

static void task_begin(task *t, int64_t M, int64_t C, int64_t V)
{
    ls_check_begin(&t->check, 2);
    t->state = (ls_step_state){.grad_scale = 0.25f};
    t->M = M;
    t->C = C;
    t->V = V;
    t->leaves = 1;
    t->accumulate = false;
    t->weights = NULL;
    t->h = ls_check_floats(&t->check, "h", M * C, 1);
    t->w = ls_check_floats(&t->check, "w", V * C, 0.5f);
    t->there = ls_check_floats(&t->check, "there", V * C, 1);
    t->targets = ls_check_ints(&t->check, "targets", M, (int32_t)V);
    for (int64_t i = 3; i < M; i += 5)
        t->targets[i] = -1;
}

/* Rows [first, first + M) of the case. */
static result task_run(task *t, const ls_kernels *v, int threads, int64_t first, int64_t M)
{
    result r;
    ls_check run;
    ls_head a = {.M = M, .C = t->C, .V = t->V, .leaves = t->leaves, .accumulate = t->accumulate};

    r.losses = ls_check_floats(&t->check, "losses", M, 0);
    r.dh = ls_check_floats(&t->check, "dh", M * t->C, 0);
    r.dw = ls_check_copy(&t->check, "dw", t->there, t->V * t->C);
    a.h = t->h + first * t->C;
    a.w = t->w;
    a.targets = t->targets + first;
    a.losses = r.losses;
    a.dh = r.dh;
    a.dw = r.dw;
    a.state = &t->state;
    a.weights = t->weights ? t->weights + first : NULL;
    ls_check_begin(&run, threads);
    a.scratch = ls_check_bytes(&run, "scratch", v->scratch(LS_ROW_HEAD, &a, threads));
    v->head(run.stream, &a);
    ls_check_end(&run);
    return r;
}

static void check_near_reference(task *t, const ls_kernels *v)
{
    result got = task_run(t, v, 2, 0, t->M), want = task_run(t, ls_check_reference(), 1, 0, t->M);

    ls_check_near("losses", got.losses, want.losses, t->M, ls_kernel_rows[LS_ROW_HEAD].tolerance);
    ls_check_near("dh", got.dh, want.dh, t->M * t->C, ls_kernel_rows[LS_ROW_HEAD].tolerance);
    ls_check_near("dw", got.dw, want.dw, t->V * t->C, ls_kernel_rows[LS_ROW_HEAD].tolerance);
}

/* M, C, V, leaves. Rows beyond 384 make a leaf of several chunks. */
static const int64_t shapes[][4] = {{1, 1, 1, 1},   {1, 1, 2, 1},    {3, 5, 7, 1},
                                    {6, 16, 33, 2}, {17, 9, 65, 1},  {20, 20, 20, 5},
                                    {2, 400, 5, 1}, {5, 3, 1100, 1}, {400, 3, 17, 1},
                                    {802, 2, 5, 2}, {9, 31, 130, 3}};

LS_TEST_SECONDS(head_agrees_with_the_reference, 60)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++)
        for (size_t s = 0; s < LS_COUNT(shapes); s++) {
            task t;
            task_begin(&t, shapes[s][0], shapes[s][1], shapes[s][2]);
            t.leaves = shapes[s][3];
            check_near_reference(&t, &list[i]);
            t.accumulate = true;
            check_near_reference(&t, &list[i]);
            t.weights = ls_check_floats(&t.check, "weights", t.M, 2);
            check_near_reference(&t, &list[i]);
            ls_check_end(&t.check);
        }
}

/* The gradient of a row is that of its loss times its weight: of weight -2 minus twice that of 1. */
LS_TEST(head_weighs_the_rows)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++) {
        enum { M = 6, C = 8, V = 33 };
        task t;
        task_begin(&t, M, C, V);
        result plain = task_run(&t, &list[i], 1, 0, M);
        float *weights = ls_check_floats(&t.check, "weights", M, 0);
        for (int m = 0; m < M; m++)
            weights[m] = m == 2 ? -2.0f : 1.0f;
        t.weights = weights;
        result got = task_run(&t, &list[i], 2, 0, M);
        ls_check_same("losses", got.losses, plain.losses, M * 4);
        for (int k = 0; k < M * C; k++)
            LS_CHECK_NEAR(got.dh[k], weights[k / C] * plain.dh[k], 1e-6);
        ls_check_end(&t.check);
    }
}

LS_TEST_SECONDS(head_bits_are_equal_for_threads_and_instruction_sets, 60)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (size_t s = 0; s < LS_COUNT(shapes); s++) {
        task t;
        task_begin(&t, shapes[s][0], shapes[s][1], shapes[s][2]);
        t.leaves = shapes[s][3];
        t.accumulate = s % 2;
        result want = task_run(&t, &list[n - 1], 1, 0, t.M);
        for (int i = 0; i < n; i++)
            for (int threads = 1; threads <= 3; threads++) {
                result got = task_run(&t, &list[i], threads, 0, t.M);
                ls_check_same("losses", got.losses, want.losses, t.M * 4);
                ls_check_same("dh", got.dh, want.dh, t.M * t.C * 4);
                ls_check_same("dw", got.dw, want.dw, t.V * t.C * 4);
            }
        ls_check_end(&t.check);
    }
}

/* Leaves in one call against one call per leaf and the tree by hand. */
static void check_leaves(const ls_kernels *v, int leaves, int64_t rows, bool accumulate)
{
    enum { C = 5, V = 19, N = C * V };
    task t;
    result part[8];

    LS_CHECK(leaves <= 8);
    task_begin(&t, leaves * rows, C, V);
    t.leaves = leaves;
    t.accumulate = accumulate;
    result got = task_run(&t, v, 2, 0, t.M);
    t.leaves = 1;
    t.accumulate = false;
    for (int i = 0; i < leaves; i++) {
        part[i] = task_run(&t, v, 1, i * rows, rows);
        ls_check_same("losses", got.losses + i * rows, part[i].losses, rows * 4);
        ls_check_same("dh", got.dh + i * rows * C, part[i].dh, rows * C * 4);
    }
    for (int width = 1; width < leaves; width *= 2)
        for (int i = 0; i + width < leaves; i += 2 * width)
            for (int k = 0; k < N; k++)
                part[i].dw[k] += part[i + width].dw[k];
    for (int k = 0; accumulate && k < N; k++)
        part[0].dw[k] = t.there[k] + part[0].dw[k];
    ls_check_same("dw", got.dw, part[0].dw, N * 4);
    ls_check_end(&t.check);
}

LS_TEST_SECONDS(head_adds_leaves_along_the_tree, 60)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++) {
        for (int leaves = 1; leaves <= 8; leaves++) {
            check_leaves(&list[i], leaves, 7, false);
            check_leaves(&list[i], leaves, 4, true);
        }
        check_leaves(&list[i], 1, 900, false); /* three chunks */
        check_leaves(&list[i], 3, 390, true);
        check_leaves(&list[i], 3, 390, false);
    }
}

/* One leaf of several chunks is added to dw chunk by chunk, in the scratch that was asked for
 * without accumulate: a trainer asks once and accumulates from its second call on. */
/* One leaf: added to what is there in one go. */
LS_TEST(head_accumulates_one_leaf_without_more_scratch)
{
    enum { M = 900, C = 5, V = 19 };
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++) {
        float want[V * C];
        task t;
        task_begin(&t, M, C, V);
        ls_head a = {.M = M, .C = C, .V = V, .leaves = 1};
        int64_t bytes = list[i].scratch(LS_ROW_HEAD, &a, 2);
        a.accumulate = true;
        LS_CHECK_EQ(list[i].scratch(LS_ROW_HEAD, &a, 2), bytes);
        result alone = task_run(&t, &list[i], 2, 0, M);
        t.accumulate = true;
        result got = task_run(&t, &list[i], 1, 0, M);
        for (int j = 0; j < V * C; j++)
            want[j] = t.there[j] + alone.dw[j];
        ls_check_same("dw", got.dw, want, V * C * 4);
        ls_check_end(&t.check);
    }
}

/* The logits of a leaf of these rows are too many: its blocks of 384 rows are added in order. */
LS_TEST_SECONDS(head_takes_a_long_leaf_in_blocks, 60)
{
    enum { M = 800, BLOCK = 384, C = 2, V = 90001 };
    ls_kernels list[LS_CHECK_TABLES];
    task t;

    /* The fastest version under a sanitizer, where the others take minutes. */
    const ls_kernels *kernels = &list[ls_test_stride(ls_check_tables(list)) - 1];
    task_begin(&t, M, C, V);
    ls_head a = {.M = M, .C = C, .V = V, .leaves = 1};
    LS_CHECK(kernels->scratch(LS_ROW_HEAD, &a, 2) < (int64_t)4 * V * (BLOCK + 1));
    result whole = task_run(&t, kernels, 2, 0, M);
    for (int64_t first = 0; first < M; first += BLOCK) {
        result part = task_run(&t, kernels, 1, first, ls_min_i64(BLOCK, M - first));
        t.there = part.dw;
        t.accumulate = true;
    }
    ls_check_same("dw", whole.dw, t.there, V * C * 4);
    ls_check_end(&t.check);
}

/* --- gradients against finite differences of the reference's loss --------------------------- */

static double total_loss(task *t)
{
    double sum = 0;
    float losses[16];
    char scratch[8192];
    ls_head a = {.h = t->h, .w = t->w, .targets = t->targets, .M = t->M, .C = t->C, .V = t->V};

    LS_CHECK(t->M <= 16);
    a.losses = losses;
    a.leaves = 1;
    a.scratch = scratch;
    LS_CHECK(ls_check_reference()->scratch(LS_ROW_HEAD, &a, 1) <= (int64_t)sizeof scratch);
    ls_check_reference()->head(t->check.stream, &a);
    for (int64_t i = 0; i < t->M; i++)
        sum += (double)losses[i];
    return sum * (double)t->state.grad_scale;
}

static double slope(task *t, float *at)
{
    const float step = 0x1p-6f, there = *at;
    double up, down;

    *at = there + step;
    up = total_loss(t);
    *at = there - step;
    down = total_loss(t);
    *at = there;
    return (up - down) / (2 * (double)step);
}

LS_TEST(head_gradients_agree_with_finite_differences)
{
    ls_kernels list[LS_CHECK_TABLES + 1];
    int n = ls_check_tables(list);

    list[n++] = *ls_check_reference();
    for (int i = 0; i < n; i++) {
        task t;
        task_begin(&t, 6, 5, 9);
        result got = task_run(&t, &list[i], 1, 0, t.M);
        float *h = ls_check_copy(&t.check, "h to move", t.h, t.M * t.C);
        float *w = ls_check_copy(&t.check, "w to move", t.w, t.V * t.C);
        t.h = h;
        t.w = w;
        for (int64_t k = 0; k < t.M * t.C; k++)
            LS_CHECK_NEAR(got.dh[k], slope(&t, &h[k]), 3e-4);
        for (int64_t k = 0; k < t.V * t.C; k++)
            LS_CHECK_NEAR(got.dw[k], slope(&t, &w[k]), 3e-4);
        ls_check_end(&t.check);
    }
}

/* --- what else the contract says ---------------------------------------------------------------
 */

LS_TEST(head_without_target_gives_no_loss_and_no_gradient)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++) {
        task t;
        task_begin(&t, 4, 3, 20);
        for (int k = 0; k < 4; k++)
            t.targets[k] = -1;
        result got = task_run(&t, &list[i], 2, 0, t.M);
        for (int k = 0; k < 4; k++)
            LS_CHECK(got.losses[k] == 0);
        for (int k = 0; k < 12; k++)
            LS_CHECK(got.dh[k] == 0);
        for (int k = 0; k < 60; k++)
            LS_CHECK(got.dw[k] == 0);
        ls_check_end(&t.check);
    }
}

/* Loss alone, as validation asks for it: no gradients, no state; the same bits. */
LS_TEST(head_gives_the_same_loss_without_gradients)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++) {
        task t;
        task_begin(&t, 30, 7, 75);
        result want = task_run(&t, &list[i], 2, 0, t.M);
        ls_head a = {.h = t.h, .w = t.w, .targets = t.targets, .M = t.M, .C = t.C, .V = t.V};
        a.leaves = 3;
        a.losses = ls_check_floats(&t.check, "losses alone", t.M, 0);
        a.scratch = ls_check_bytes(&t.check, "scratch", list[i].scratch(LS_ROW_HEAD, &a, 2));
        list[i].head(t.check.stream, &a);
        ls_check_same("losses", a.losses, want.losses, t.M * 4);
        a.dh = ls_check_floats(&t.check, "dh without dw", t.M * t.C, 0);
        a.state = &t.state;
        list[i].head(t.check.stream, &a);
        ls_check_same("dh", a.dh, want.dh, t.M * t.C * 4);
        ls_check_end(&t.check);
    }
}

LS_TEST(head_is_exact_where_the_answer_is_known)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++) {
        float h[1] = {1}, w[20], losses[1];
        int32_t target[1] = {7};
        ls_check c;
        ls_head a = {.h = h, .w = w, .targets = target, .losses = losses, .M = 1, .C = 1, .V = 20};
        ls_check_begin(&c, 1);
        a.leaves = 1;
        a.scratch = ls_check_bytes(&c, "scratch", list[i].scratch(LS_ROW_HEAD, &a, 1));
        for (int k = 0; k < 20; k++)
            w[k] = 3; /* all alike: ln 20 */
        list[i].head(c.stream, &a);
        LS_CHECK_NEAR(losses[0], 2.99573227355399, 3e-7);
        w[7] = 200; /* sure of itself, and far beyond what exp can hold */
        list[i].head(c.stream, &a);
        LS_CHECK_NEAR(losses[0], 0, 1e-30);
        w[7] = -200;
        list[i].head(c.stream, &a);
        LS_CHECK_NEAR(losses[0], 203 + 2.94443897916644, 3e-5);
        w[3] = NAN; /* somebody else's logit is broken: the loss must show it */
        list[i].head(c.stream, &a);
        LS_CHECK(isnan(losses[0]));
        ls_check_end(&c);
    }
}

static void check_refused(const ls_kernels *v, int32_t bad, const char *part)
{
    task t;
    ls_device *device;
    ls_stream *stream;

    task_begin(&t, 4, 3, 20);
    t.targets[2] = bad;
    LS_CHECK_OK(ls_device_open(&device, "cpu", 1));
    LS_CHECK_OK(ls_stream_create(&stream, device));
    ls_head a = {.h = t.h, .w = t.w, .targets = t.targets, .M = t.M, .C = t.C, .V = t.V};
    a.leaves = 1;
    a.losses = ls_check_floats(&t.check, "losses", t.M, 0);
    a.scratch = ls_check_bytes(&t.check, "scratch", v->scratch(LS_ROW_HEAD, &a, 1));
    v->head(stream, &a);
    LS_CHECK_FAILS(ls_stream_sync(stream, INT64_MAX), LS_EDATA, part);
    ls_stream_free(stream);
    ls_device_close(device);
    ls_check_end(&t.check);
}

LS_TEST(head_refuses_targets_outside_the_vocabulary)
{
    ls_kernels list[LS_CHECK_TABLES + 1];
    int n = ls_check_tables(list);

    list[n++] = *ls_check_reference();
    for (int i = 0; i < n; i++) {
        check_refused(&list[i], 20, "target 20 of row 2");
        check_refused(&list[i], -2, "target -2 of row 2");
    }
}

/* Where w is not trained: losses and dh have the bits of the call that gives dw as well. */
LS_TEST_SECONDS(head_gives_dh_without_dw, 60)
{
    ls_kernels list[LS_CHECK_TABLES + 1];
    int n = ls_check_tables(list);

    list[n++] = *ls_check_reference();
    for (int i = 0; i < n; i++)
        for (size_t s = 0; s < LS_COUNT(shapes); s++) {
            task t;
            task_begin(&t, shapes[s][0], shapes[s][1], shapes[s][2]);
            t.leaves = shapes[s][3];
            t.accumulate = s % 2;
            result want = task_run(&t, &list[i], 2, 0, t.M);
            ls_head a = {.h = t.h, .w = t.w, .targets = t.targets, .state = &t.state};
            a.M = t.M;
            a.C = t.C;
            a.V = t.V;
            a.leaves = t.leaves;
            a.accumulate = t.accumulate;
            a.losses = ls_check_floats(&t.check, "losses", t.M, 0);
            a.dh = ls_check_floats(&t.check, "dh", t.M * t.C, 0);
            a.scratch = ls_check_bytes(&t.check, "scratch", list[i].scratch(LS_ROW_HEAD, &a, 2));
            list[i].head(t.check.stream, &a);
            ls_check_same("losses", a.losses, want.losses, t.M * 4);
            ls_check_same("dh", a.dh, want.dh, t.M * t.C * 4);
            ls_check_end(&t.check);
        }
}

/* --- in parts: the tokens of several ranks ------------------------------------------------------
 */

enum { PARTS_MOST = 5 };

/* The case by `ranks` ranks, each with its own tokens; losses of the last one, dh summed. */
static result run_parts(task *t, const ls_kernels *v, int ranks, bool grads)
{
    int64_t V = t->V, C = t->C, apart = 3 * t->M + 5;
    float *all = ls_check_floats(&t->check, "scores", ranks * apart, 0);
    float *dh = ls_check_floats(&t->check, "dh of a rank", t->M * C, 0);
    result r = {.losses = ls_check_floats(&t->check, "losses", t->M, 0),
                .dh = ls_check_floats(&t->check, "dh", t->M * C, 0),
                .dw = ls_check_copy(&t->check, "dw", t->there, V * C)};
    ls_check run;
    ls_head a[PARTS_MOST];

    ls_check_begin(&run, 2);
    for (int k = 0; k < ranks; k++) {
        int64_t first = V * k / ranks, end = V * (k + 1) / ranks;
        a[k] = (ls_head){.part = LS_HEAD_SCORES,
                         .h = t->h,
                         .w = t->w + first * C,
                         .targets = t->targets,
                         .losses = r.losses,
                         .weights = t->weights,
                         .dh = grads ? dh : NULL,
                         .dw = grads ? r.dw + first * C : NULL,
                         .state = grads ? &t->state : NULL,
                         .M = t->M,
                         .C = C,
                         .V = end - first,
                         .leaves = 1,
                         .first = first,
                         .vocab = V,
                         .scores = all + k * apart,
                         .all = all,
                         .ranks = ranks,
                         .rank = k,
                         .rank_stride = apart,
                         .accumulate = t->accumulate};
        a[k].scratch = ls_check_bytes(&run, "scratch", v->scratch(LS_ROW_HEAD, &a[k], 2));
        v->head(run.stream, &a[k]);
    }
    for (int k = 0; k < ranks; k++) {
        a[k].part = LS_HEAD_JOIN;
        v->head(run.stream, &a[k]);
        for (int64_t i = 0; i < t->M * C && grads; i++)
            r.dh[i] = (k > 0 ? r.dh[i] : 0) + dh[i];
    }
    ls_check_end(&run);
    return r;
}

LS_TEST_SECONDS(head_in_parts_agrees_with_the_whole, 60)
{
    double tolerance = ls_kernel_rows[LS_ROW_HEAD].tolerance;
    ls_kernels list[LS_CHECK_TABLES + 1];
    int n = ls_check_tables(list);

    list[n++] = *ls_check_reference();
    for (int i = 0; i < n; i++)
        for (size_t s = 0; s < LS_COUNT(shapes); s++)
            for (int ranks = 1; ranks <= PARTS_MOST && ranks <= shapes[s][2]; ranks += 2) {
                task t;
                task_begin(&t, shapes[s][0], shapes[s][1], shapes[s][2]);
                t.accumulate = s % 2;
                t.weights = s % 3 ? ls_check_floats(&t.check, "weights", t.M, 1) : NULL;
                result got = run_parts(&t, &list[i], ranks, true);
                result want = task_run(&t, ls_check_reference(), 1, 0, t.M);
                ls_check_near("losses", got.losses, want.losses, t.M, tolerance);
                ls_check_near("dh", got.dh, want.dh, t.M * t.C, ranks * tolerance);
                ls_check_near("dw", got.dw, want.dw, t.V * t.C, tolerance);
                result alone = run_parts(&t, &list[i], ranks, false);
                ls_check_same("losses alone", alone.losses, got.losses, t.M * 4);
                ls_check_end(&t.check);
            }
}

/* A target that nobody has, a logit that is far away, and one that is broken. */
LS_TEST(head_in_parts_is_exact_where_the_answer_is_known)
{
    ls_kernels list[LS_CHECK_TABLES + 1];
    int n = ls_check_tables(list);

    list[n++] = *ls_check_reference();
    for (int i = 0; i < n; i++) {
        task t;
        task_begin(&t, 1, 1, 20);
        float h[1] = {1}, w[20];
        int32_t target[1] = {7};
        for (int k = 0; k < 20; k++)
            w[k] = 3;
        t.h = h;
        t.w = w;
        t.targets = target;
        LS_CHECK_NEAR(run_parts(&t, &list[i], 2, false).losses[0], 2.99573227355399, 5e-7);
        w[17] = 200; /* of the other rank, and far beyond what exp can hold */
        LS_CHECK_NEAR(run_parts(&t, &list[i], 2, false).losses[0], 197, 3e-5);
        w[17] = NAN;
        LS_CHECK(isnan(run_parts(&t, &list[i], 2, false).losses[0]));
        w[17] = 3;
        target[0] = -1;
        LS_CHECK(run_parts(&t, &list[i], 2, true).losses[0] == 0);
        ls_check_end(&t.check);
    }
}
