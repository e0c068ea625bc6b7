/* test_lamb.c -- LAMB against the reference and against its formula, tensors in pieces, ratios that
 * must be 1, bad gradients, failed streams. */
#include "kernel/half.h"

#include <math.h>

enum { STEPS = 3, TENSORS = 4, W_GAP = 5 };

/* Four tensors side by side: a matrix of several pieces, a vector without a ratio, a matrix of
 * zeros, and the rest; w lies a little further on. */
typedef struct shape {
    int64_t n, piece;
} shape;

static int64_t cut_at(const shape *s, int tensor)
{
    const int64_t at[TENSORS + 1] = {0, s->n / 2, s->n / 2 + s->n / 8, s->n / 4 * 3, s->n};

    return at[tensor];
}

static ls_lamb make(ls_check *c, const shape *s)
{
    ls_lamb a = {.n = s->n, .n_tensors = TENSORS};
    ls_step_state *state = ls_check_bytes(c, "state", sizeof *state);
    ls_norm_result *result = ls_check_bytes(c, "result", sizeof *result);
    ls_lamb_tensor *tensors = ls_check_bytes(c, "tensors", TENSORS * (int64_t)sizeof *tensors);
    ls_lamb_piece list[256];

    for (int t = 0; t < TENSORS; t++) {
        int64_t end = cut_at(s, t + 1), next;
        tensors[t] = (ls_lamb_tensor){.first = a.n_pieces, .adapts = t != 1};
        for (int64_t at = cut_at(s, t); at < end; at = next) {
            next = ls_min_i64(end, (at / s->piece + 1) * s->piece);
            LS_CHECK(a.n_pieces < (int64_t)LS_COUNT(list));
            list[a.n_pieces] = (ls_lamb_piece){.first = at,
                                               .count = next - at,
                                               .w_first = at + W_GAP,
                                               .g_first = at,
                                               .number = a.n_pieces,
                                               .tensor = t,
                                               .decay = t != 1 ? 1.0f : 0.0f};
            a.n_pieces++;
        }
        tensors[t].count = a.n_pieces - tensors[t].first;
    }
    int64_t bytes = a.n_pieces * (int64_t)sizeof *list;
    ls_lamb_piece *pieces = ls_check_bytes(c, "pieces", bytes);
    memcpy(pieces, list, (size_t)bytes);
    *state = (ls_step_state){.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    state->weight_decay = 0.1f;
    *result = (ls_norm_result){.norm = 2, .factor = 0.5f, .bad_block = -1};
    a.n_squares = a.n_pieces;
    a.w = ls_check_floats(c, "w", s->n + W_GAP, 1);
    a.m = ls_check_floats(c, "m", s->n, 0);
    a.v = ls_check_floats(c, "v", s->n, 0);
    a.grad = ls_check_floats(c, "grad", s->n, 1);
    a.squares = ls_check_floats(c, "squares", 2 * a.n_squares, 0);
    a.ratios = ls_check_floats(c, "ratios", TENSORS, 0);
    memset(a.m, 0, (size_t)s->n * sizeof *a.m);
    memset(a.v, 0, (size_t)s->n * sizeof *a.v);
    for (int64_t i = cut_at(s, 2); i < cut_at(s, 3); i++)
        a.w[W_GAP + i] = 0;
    a.pieces = pieces;
    a.tensors = tensors;
    a.state = state;
    a.result = result;
    return a;
}

/* One step with gradients of its own. */
static void step(ls_check *c, const ls_kernels *k, ls_lamb *a, const float *grad, int t)
{
    ls_step_state *s = (ls_step_state *)(uintptr_t)a->state;

    for (int64_t i = 0; i < a->n; i++)
        a->grad[i] = grad[i] * (i % 2 && t > 1 ? -0.7f : 1.1f);
    s->bias1 = (float)(1 - pow((double)s->beta1, t));
    s->bias2 = (float)(1 - pow((double)s->beta2, t));
    a->part = LS_LAMB_DIRECTION;
    k->lamb(c->stream, a);
    a->part = LS_LAMB_STEP;
    k->lamb(c->stream, a);
}

static void run(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    ls_lamb a = make(c, s);
    float *grad = ls_check_copy(c, "gradient", a.grad, s->n);

    for (int t = 1; t <= STEPS; t++)
        step(c, k, &a, grad, t);
    out = ls_rows_put(out, a.w + W_GAP, s->n);
    out = ls_rows_put(out, a.m, s->n);
    out = ls_rows_put(out, a.v, s->n);
    ls_rows_put(out, a.ratios, TENSORS);
}

LS_TEST_SECONDS(lamb_equals_reference, 60)
{
    const shape shapes[] = {{8, 16384}, {40, 7}, {333, 50}, {1000, 64}, {100001, 16384}};

    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        ls_rows_check(LS_ROW_LAMB, run, &shapes[i], 3 * shapes[i].n + TENSORS);
}

/* The published rule, all in double. */
LS_TEST(lamb_follows_the_formula)
{
    const shape s = {.n = 96, .piece = 17};
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int k = 0; k < count; k++) {
        double w[96], m[96] = {0}, v[96] = {0};
        ls_check c;
        ls_check_begin(&c, 2);
        ls_lamb a = make(&c, &s);
        float *grad = ls_check_copy(&c, "gradient", a.grad, s.n);
        for (int i = 0; i < s.n; i++)
            w[i] = (double)a.w[W_GAP + i];
        for (int t = 1; t <= STEPS; t++) {
            double u[96], w2[TENSORS] = {0}, u2[TENSORS] = {0};
            step(&c, list[k], &a, grad, t);
            for (int i = 0, at = 0; i < s.n; i++) {
                double g = 0.5 * (double)(grad[i] * (i % 2 && t > 1 ? -0.7f : 1.1f));
                double b1 = (double)0.9f, b2 = (double)0.99f;
                while (i >= cut_at(&s, at + 1))
                    at++;
                m[i] = b1 * m[i] + (1 - b1) * g;
                v[i] = b2 * v[i] + (1 - b2) * g * g;
                u[i] = m[i] / (1 - pow(b1, t)) / (sqrt(v[i] / (1 - pow(b2, t))) + 1e-8) +
                       (at == 1 ? 0 : 0.1) * w[i];
                w2[at] += w[i] * w[i];
                u2[at] += u[i] * u[i];
            }
            for (int i = 0, at = 0; i < s.n; i++) {
                while (i >= cut_at(&s, at + 1))
                    at++;
                double ratio = at == 1 || w2[at] == 0 ? 1 : sqrt(w2[at] / u2[at]);
                LS_CHECK_NEAR(a.ratios[at], ratio, 1e-5 * ratio);
                w[i] -= 1e-2 * ratio * u[i];
            }
            if (t == 1) /* weights of zeros, and tensors without a ratio, step as AdamW does */
                LS_CHECK(a.ratios[1] == 1 && a.ratios[2] == 1 && a.ratios[0] != 1);
        }
        for (int i = 0; i < s.n; i++)
            LS_CHECK_NEAR(a.w[W_GAP + i], w[i], 1e-5 * (1 + fabs(w[i])));
        ls_check_end(&c);
    }
}

/* Two owners, each with some of the pieces, that add up their squares: the bits of one. */
LS_TEST(lamb_has_the_bits_of_one_owner_when_pieces_are_divided)
{
    const shape s = {.n = 2001, .piece = 256};
    ls_kernels list[LS_CHECK_TABLES];
    int count = ls_check_tables(list);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 2);
        ls_lamb whole = make(&c, &s), part = whole;
        ls_lamb_piece *pieces =
            ls_check_bytes(&c, "more pieces", whole.n_pieces * (int64_t)sizeof *pieces);
        float *grad = ls_check_copy(&c, "gradient", whole.grad, s.n);
        part.w = ls_check_copy(&c, "w", whole.w, s.n + W_GAP);
        part.m = ls_check_copy(&c, "m", whole.m, s.n);
        part.v = ls_check_copy(&c, "v", whole.v, s.n);
        part.grad = ls_check_copy(&c, "g", grad, s.n);
        part.squares = ls_check_floats(&c, "s", 2 * whole.n_squares, 0);
        part.pieces = pieces;
        step(&c, &list[k], &whole, grad, 1);
        for (int64_t i = 0; i < s.n; i++)
            part.grad[i] = grad[i] * 1.1f;
        int64_t halves[3] = {0, whole.n_pieces / 3, whole.n_pieces};
        for (int pass = 0; pass < 2; pass++)
            for (int h = 0; h < 2; h++) {
                part.part = pass ? LS_LAMB_STEP : LS_LAMB_DIRECTION;
                part.n_pieces = halves[h + 1] - halves[h];
                memcpy(pieces, whole.pieces + halves[h], (size_t)part.n_pieces * sizeof *pieces);
                list[k].lamb(c.stream, &part);
            }
        ls_check_same("squares", part.squares, whole.squares, 8 * whole.n_squares);
        ls_check_same("w", part.w, whole.w, 4 * (s.n + W_GAP));
        ls_check_end(&c);
    }
}

LS_TEST(lamb_touches_nothing_when_it_must_not)
{
    const shape s = {.n = 100, .piece = 64};
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 2);
        ls_lamb a = make(&c, &s);
        ls_norm_result *result = (ls_norm_result *)(uintptr_t)a.result;
        float *w = ls_check_copy(&c, "w before", a.w, s.n + W_GAP);
        float *grad = ls_check_copy(&c, "gradient", a.grad, s.n);
        float *zero = ls_check_copy(&c, "0", a.m, s.n);
        result->bad_block = 0;
        step(&c, list[k], &a, grad, 1);
        ls_check_same("w of a bad gradient", a.w, w, 4 * (s.n + W_GAP));
        ls_check_same("m of a bad gradient", a.m, zero, 4 * s.n);
        for (int64_t i = 0; i < s.n; i++) /* somebody will look for what is wrong with it */
            LS_CHECK(a.grad[i] == grad[i] * 1.1f);
        result->bad_block = -1;
        ls_fail(LS_EDATA, "made to fail");
        ls_stream_fail(c.stream);
        step(&c, list[k], &a, grad, 1);
        ls_check_same("w after a failed stream", a.w, w, 4 * (s.n + W_GAP));
        LS_CHECK_FAILS(ls_stream_sync(c.stream, ls_test_soon()), LS_EDATA, "made");
        ls_stream_free(c.stream);
        LS_CHECK_OK(ls_stream_create(&c.stream, c.device));
        step(&c, list[k], &a, grad, 1);
        LS_CHECK(a.w[W_GAP] != w[W_GAP]);
        ls_check_same("w before the first piece", a.w, w, 4 * W_GAP);
        ls_check_end(&c);
    }
}

LS_TEST(lamb_copies_the_weights_in_bf16)
{
    const shape s = {.n = 1003, .piece = 256};
    ls_kernels list[LS_CHECK_TABLES];
    int count = ls_check_tables(list);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 2);
        ls_lamb a = make(&c, &s);
        float *grad = ls_check_copy(&c, "gradient", a.grad, s.n);
        uint16_t *copy = ls_check_bytes(&c, "copy", 2 * (s.n + W_GAP));
        a.copy = copy;
        a.copy_type = LS_BF16;
        step(&c, &list[k], &a, grad, 1);
        for (int64_t i = 0; i < s.n + W_GAP; i++)
            LS_CHECK_EQ(copy[i], i < W_GAP ? 0xffff : ls_half_of(a.w[i]));
        ls_check_end(&c);
    }
}
