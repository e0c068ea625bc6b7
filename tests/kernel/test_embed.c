/* test_embed.c -- embedding rows: reference, leaves, unused tokens, bad tokens. */
#include "kernel/half.h"

#include <math.h>
#include "base/time.h"

typedef struct shape {
    int64_t B, T, C, V, positions, leaves;
    bool wpe, accumulate;
    bool no_dwte; /* the gradient of positions alone */
    bool start;   /* positions count from the beginning of each document */
    float p, noise;
} shape;

static ls_step_state *new_state(ls_check *c)
{
    ls_step_state *s = ls_check_bytes(c, "state", sizeof *s);

    *s = (ls_step_state){.key = {11, 22}, .first_seq = 3};
    return s;
}

/* Documents of 1 to 4 tokens, one behind the other in each sequence. */
static const int32_t *new_starts(ls_check *c, const shape *s)
{
    int32_t *start = s->start ? ls_check_ints(c, "start", s->B * s->T, 1) : NULL;

    for (int64_t i = 0, first = 0, n = 1; start && i < s->B * s->T; i++) {
        if (i % s->T == 0)
            first = 0;
        else if (i % s->T - first >= n)
            first = i % s->T, n = 1 + i % 4;
        start[i] = (int32_t)first;
    }
    return start;
}

static ls_embed_fwd fwd_args(ls_check *c, const shape *s)
{
    ls_embed_fwd a = {.type = LS_F32, .M = s->B * s->T, .C = s->C, .T = s->T, .V = s->V};

    a.tokens = ls_check_ints(c, "tokens", a.M, (int32_t)s->V);
    a.wte = ls_check_floats(c, "wte", s->V * s->C, 1);
    a.wpe = s->wpe ? ls_check_floats(c, "wpe", s->T * s->C, 1) : NULL;
    a.y = ls_check_floats(c, "y", a.M * s->C, 0);
    a.start = new_starts(c, s);
    a.drop = (ls_dropout){.p = s->p, .site = 9, .state = new_state(c)};
    a.noise = s->noise;
    return a;
}

static ls_embed_bwd bwd_args(ls_check *c, const shape *s)
{
    ls_embed_bwd a = {.type = LS_F32, .M = s->B * s->T, .C = s->C, .T = s->T, .V = s->V};

    a.tokens = ls_check_ints(c, "tokens", a.M, (int32_t)s->V);
    if (s->V > 2) /* some tokens never, one often */
        for (int64_t i = 0; i < a.M; i++)
            ((int32_t *)(uintptr_t)a.tokens)[i] &= ~1;
    a.dy = ls_check_floats(c, "dy", a.M * s->C, 1);
    if (!s->no_dwte)
        a.dwte = ls_check_floats(c, "dwte", s->V * s->C, s->accumulate ? 1 : 0);
    a.positions = s->positions;
    a.dwpe = s->wpe ? ls_check_floats(c, "dwpe", s->positions * s->C, s->accumulate ? 1 : 0) : NULL;
    a.leaves = s->leaves;
    a.accumulate = s->accumulate;
    a.start = new_starts(c, s);
    a.drop = (ls_dropout){.p = s->p, .site = 9, .state = new_state(c)};
    return a;
}

static void run_fwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    ls_embed_fwd a = fwd_args(c, shape_);

    k->embed_fwd(c->stream, &a);
    ls_rows_put(out, a.y, a.M * a.C);
}

static void run_bwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    ls_embed_bwd a = bwd_args(c, shape_);

    a.scratch = ls_rows_scratch(c, k, LS_ROW_EMBED_BWD, &a);
    k->embed_bwd(c->stream, &a);
    if (a.dwte)
        out = ls_rows_put(out, a.dwte, a.V * a.C);
    if (a.dwpe)
        ls_rows_put(out, a.dwpe, a.positions * a.C);
}

static void check_shape(const shape *s)
{
    ls_rows_check(LS_ROW_EMBED_FWD, run_fwd, s, s->B * s->T * s->C);
    ls_rows_check(LS_ROW_EMBED_BWD, run_bwd, s,
                  (s->no_dwte ? 0 : s->V * s->C) + (s->wpe ? s->positions * s->C : 0));
}

LS_TEST_SECONDS(embed_equals_reference_on_odd_shapes, 60)
{
    const int64_t widths[] = {1, 15, 16, 17, 48, 65, 384};

    for (size_t i = 0; i < LS_COUNT(widths); i++)
        for (int form = 0; form < 8; form++) {
            shape s = {.B = 3, .T = 5, .C = widths[i], .V = 7, .positions = 9, .leaves = 1};
            s.wpe = form & 1;
            s.accumulate = form & 2;
            s.p = form & 4 ? 0.25f : 0;
            s.leaves = form & 4 ? 3 : 1;
            check_shape(&s);
            s.noise = 0.5f;
            ls_rows_check(LS_ROW_EMBED_FWD, run_fwd, &s, s.B * s.T * s.C);
        }
}

/* The noise of NEFTune as its paper has it: uniform in [-1, 1], times alpha / sqrt(L d). Without vectors
 * the output is the noise. */
static void check_neftune(const ls_kernels *k, int64_t B, int64_t T, int64_t C, double alpha)
{
    shape s = {.B = B, .T = T, .C = C, .V = 2, .noise = (float)(alpha / sqrt((double)(T * C)))};
    double sum = 0, squares = 0, most = 0, n = (double)(B * T * C),
           a = alpha / sqrt((double)(T * C));
    ls_check c;

    ls_check_begin(&c, 2);
    ls_embed_fwd f = fwd_args(&c, &s);
    memset((void *)(uintptr_t)f.wte, 0, (size_t)(s.V * C) * sizeof(float));
    k->embed_fwd(c.stream, &f);
    for (int64_t i = 0; i < B * T * C; i++) {
        double x = (double)((const float *)f.y)[i];
        sum += x;
        squares += x * x;
        most = fmax(most, fabs(x));
    }
    LS_CHECK(most <= a * (1 + 1e-6) && most > 0.999 * a);
    LS_CHECK_NEAR(sum / n, 0, 4 * a / sqrt(3 * n)); /* four deviations of a mean */
    LS_CHECK_NEAR(squares / n, a * a / 3, 0.02 * a * a);
    ls_check_end(&c);
}

LS_TEST(embed_noise_is_that_of_neftune)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);

    for (int i = 0; i < n; i++) {
        check_neftune(list[i], 4, 32, 96, 5);
        check_neftune(list[i], 2, 64, 33, 15);
    }
}

/* A sequence has the noise of its number in the batch, whichever call it is in; and a piece of it that of
 * its positions. */
LS_TEST(embed_noise_goes_by_global_numbers)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);

    for (int i = 0; i < n; i++) {
        shape s = {.B = 3, .T = 8, .C = 21, .V = 5, .noise = 0.25f};
        ls_check c;
        ls_check_begin(&c, 2);
        ls_embed_fwd whole = fwd_args(&c, &s), one = whole;
        ls_step_state *state = ls_check_bytes(&c, "later", sizeof *state);
        list[i]->embed_fwd(c.stream, &whole);
        *state = *whole.drop.state;
        state->first_seq += 2;
        one.tokens += 2 * s.T;
        one.M = s.T;
        one.y = ls_check_floats(&c, "one", s.T * s.C, 0);
        one.drop.state = state;
        list[i]->embed_fwd(c.stream, &one);
        ls_check_same("a sequence", one.y, (float *)whole.y + 2 * s.T * s.C, s.T * s.C * 4);
        int32_t tokens[4] = {one.tokens[2], one.tokens[3], one.tokens[4], one.tokens[5]};
        one.tokens = tokens;
        one.M = one.T = 4;
        one.drop.piece = one.piece = (ls_piece){.chunk = 2, .first = {2, 4}};
        list[i]->embed_fwd(c.stream, &one);
        ls_check_same("a piece", one.y, (float *)whole.y + (2 * s.T + 2) * s.C, 4 * s.C * 4);
        ls_check_end(&c);
    }
}

LS_TEST(embed_gradient_of_positions_alone)
{
    shape s = {.B = 3, .T = 5, .C = 17, .V = 7, .positions = 9, .leaves = 3, .wpe = true};

    s.no_dwte = true;
    check_shape(&s);
    s.accumulate = true;
    check_shape(&s);
}

LS_TEST_SECONDS(embed_of_documents_equals_reference, 60)
{
    const int64_t widths[] = {1, 17, 48, 130};

    for (size_t i = 0; i < LS_COUNT(widths); i++)
        for (int form = 0; form < 8; form++) {
            shape s = {.B = 3, .T = 11, .C = widths[i], .V = 7, .positions = 13, .leaves = 1};
            s.wpe = s.start = true;
            s.no_dwte = form & 1;
            s.accumulate = form & 2;
            s.p = form & 4 ? 0.25f : 0;
            s.leaves = form & 4 ? 3 : 1;
            check_shape(&s);
        }
}

/* A token behind others in its sequence gets the vector that it has in a sequence of its document. */
LS_TEST(embed_of_a_document_is_that_of_it_alone)
{
    ls_kernels list[LS_CHECK_TABLES + 1];
    int n = ls_check_tables(list);
    ls_check c;

    list[n++] = *ls_check_reference();
    for (int i = 0; i < n; i++) {
        shape s = {.B = 1, .T = 12, .C = 17, .V = 7, .positions = 12, .leaves = 1, .wpe = true};
        ls_check_begin(&c, 2);
        ls_embed_fwd packed = fwd_args(&c, &s), alone = packed;
        int32_t *start = ls_check_ints(&c, "start", s.T, 1);
        for (int64_t t = 0; t < s.T; t++)
            start[t] = t < 5 ? 0 : 5;
        packed.start = start;
        alone.tokens += 5;
        alone.M = alone.T = 7;
        alone.y = ls_check_floats(&c, "y alone", alone.M * s.C, 0);
        list[i].embed_fwd(c.stream, &packed);
        list[i].embed_fwd(c.stream, &alone);
        ls_check_same("a document", (float *)packed.y + 5 * s.C, alone.y, alone.M * s.C * 4);
        ls_check_end(&c);
    }
}

LS_TEST_SECONDS(embed_equals_reference_with_large_vocabulary, 60)
{
    shape s = {.B = 2, .T = 33, .C = 70, .V = 5003, .positions = 33, .leaves = 2, .wpe = true};

    check_shape(&s);
    s.V = 1;
    check_shape(&s);
}

LS_TEST(embed_sums_leaves_as_a_tree)
{
    const ls_kernels *k;
    const int64_t counts[] = {4, 3, 5, 8, 11};

    LS_CHECK_OK(ls_kernel_pick("auto", &k));
    for (int i = 0; i < 10; i++) {
        int64_t L = counts[i % 5], V = 9, C = 21, T = 4, rows = 2 * T;
        shape s = {.B = 2 * L, .T = T, .C = C, .V = V, .positions = 6, .leaves = L, .wpe = true};
        float *dwte[11], *dwpe[11];
        ls_check c;
        s.p = i < 5 ? 0 : 0.5f;
        ls_check_begin(&c, 2);
        ls_embed_bwd a = bwd_args(&c, &s), one = a;
        ls_step_state *state = (ls_step_state *)(uintptr_t)a.drop.state;
        a.scratch = one.scratch = ls_rows_scratch(&c, k, LS_ROW_EMBED_BWD, &a);
        k->embed_bwd(c.stream, &a);
        one.M = rows;
        one.leaves = 1;
        for (int64_t l = 0; l < L; l++) {
            one.tokens = a.tokens + l * rows;
            one.dy = (const float *)a.dy + l * rows * C;
            one.dwte = dwte[l] = ls_check_floats(&c, "leaf dwte", V * C, 0);
            one.dwpe = dwpe[l] = ls_check_floats(&c, "leaf dwpe", 6 * C, 0);
            k->embed_bwd(c.stream, &one);
            state->first_seq += 2; /* dropout sees the global number of a sequence */
        }
        ls_rows_tree(&c, k, dwte, L, V * C);
        ls_rows_tree(&c, k, dwpe, L, 6 * C);
        ls_check_same("dwte", a.dwte, dwte[0], V * C * 4);
        ls_check_same("dwpe", a.dwpe, dwpe[0], 6 * C * 4);
        ls_check_end(&c);
    }
}

static double loss(ls_check *c, const ls_embed_fwd *f, const float *dy)
{
    double total = 0;

    ls_check_reference()->embed_fwd(c->stream, f);
    for (int64_t i = 0; i < f->M * f->C; i++)
        total += (double)dy[i] * (double)((const float *)f->y)[i];
    return total;
}

static void check_slopes(ls_check *c, const ls_embed_fwd *f, const float *dy, const float *param,
                         const float *grad, int64_t n)
{
    float *p = (float *)(uintptr_t)param;

    for (int64_t i = 0; i < n; i++) {
        float was = p[i];
        p[i] = was + 0.25f; /* the function is linear: any width will do */
        double up = loss(c, f, dy), width = (double)p[i];
        p[i] = was - 0.25f;
        double down = loss(c, f, dy);
        width -= (double)p[i];
        p[i] = was;
        LS_CHECK_NEAR((up - down) / width, grad[i], 1e-5 * (1 + fabs((double)grad[i])));
    }
}

LS_TEST(embed_gradients_are_finite_differences)
{
    shape s = {.B = 3, .T = 4, .C = 5, .V = 6, .positions = 4, .leaves = 3, .wpe = true, .p = 0.3f};
    const ls_kernels *k = ls_check_reference();
    ls_check c;

    ls_check_begin(&c, 1);
    ls_embed_bwd b = bwd_args(&c, &s);
    ls_embed_fwd f = fwd_args(&c, &s);
    f.tokens = b.tokens;
    b.scratch = ls_rows_scratch(&c, k, LS_ROW_EMBED_BWD, &b);
    k->embed_bwd(c.stream, &b);
    check_slopes(&c, &f, b.dy, f.wte, b.dwte, s.V * s.C);
    check_slopes(&c, &f, b.dy, f.wpe, b.dwpe, s.T * s.C);
    ls_check_end(&c);
}

/* A token outside the vocabulary fails the stream; nothing is read or written beyond. */
LS_TEST(embed_refuses_tokens_outside_the_vocabulary)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);
    const int32_t bad[] = {-1, 7, INT32_MAX, INT32_MIN};

    for (int i = 0; i < 8 * n; i++) {
        shape s = {.B = 2, .T = 3, .C = 20, .V = 7, .positions = 3, .leaves = 1, .wpe = true};
        const ls_kernels *k = list[i / 8];
        char want[96];
        ls_check c;
        ls_check_begin(&c, 2);
        ls_embed_fwd f = fwd_args(&c, &s);
        ls_embed_bwd b = bwd_args(&c, &s);
        ((int32_t *)(uintptr_t)f.tokens)[4] = bad[i % 4];
        b.tokens = f.tokens;
        b.scratch = ls_rows_scratch(&c, k, LS_ROW_EMBED_BWD, &b);
        if (i % 8 < 4)
            k->embed_fwd(c.stream, &f);
        else
            k->embed_bwd(c.stream, &b);
        snprintf(want, sizeof want, "token %d at position 4", bad[i % 4]);
        LS_CHECK_FAILS(ls_stream_sync(c.stream, ls_test_soon()), LS_EDATA, want);
        ls_stream_free(c.stream); /* its failure is sticky; end with a fresh one */
        LS_CHECK_OK(ls_stream_create(&c.stream, c.device));
        ls_check_end(&c);
    }
}

/* Tokens from `past` on have the bits that they have in a call over all, and wpe is read up to its
 * last row and no further. */
LS_TEST(embed_begins_at_a_position)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);
    const shape s = {.B = 1, .T = 13, .C = 21, .V = 7, .wpe = true};

    for (int i = 0; i < n; i++)
        for (int64_t past = 0; past < s.T; past++) {
            ls_check c;
            ls_check_begin(&c, 2);
            ls_embed_fwd whole = fwd_args(&c, &s), part = whole;
            part.tokens += past;
            part.past = past;
            part.M = part.T = s.T - past;
            part.y = ls_check_floats(&c, "part", part.M * s.C, 0);
            list[i]->embed_fwd(c.stream, &whole);
            list[i]->embed_fwd(c.stream, &part);
            ls_check_same("y", part.y, (float *)whole.y + past * s.C, part.M * s.C * 4);
            for (int64_t e = 0; e < part.M * s.C; e++) {
                int64_t row = e / s.C, column = e % s.C;
                float want = ((const float *)part.wte)[part.tokens[row] * s.C + column] +
                             ((const float *)part.wpe)[(past + row) * s.C + column];
                LS_CHECK_NEAR(((float *)part.y)[e], want, 1e-6);
            }
            ls_check_end(&c);
        }
}

/* Every sequence of a call begins at the same position. */
LS_TEST(embed_begins_all_sequences_at_the_position)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);

    for (int i = 0; i < n; i++) {
        const int32_t tokens[4] = {0, 1, 1, 0};
        const float wte[2] = {10, 20}, wpe[4] = {1, 2, 3, 4};
        float y[4];
        ls_check c;
        ls_check_begin(&c, 1);
        list[i]->embed_fwd(c.stream, &(ls_embed_fwd){.tokens = tokens,
                                                     .wte = wte,
                                                     .wpe = wpe,
                                                     .y = y,
                                                     .M = 4,
                                                     .C = 1,
                                                     .T = 2,
                                                     .V = 2,
                                                     .past = 2});
        const float want[4] = {13, 24, 23, 14};
        ls_check_same("y", y, want, sizeof want);
        ls_check_end(&c);
    }
}

/* --- bf16 ----------------------------------------------------------------------------------- */

static void run_half_fwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    ls_embed_fwd a = {.type = ls_half_type(k), .M = s->B * s->T, .C = s->C, .T = s->T, .V = s->V};

    a.tokens = ls_check_ints(c, "tokens", a.M, (int32_t)s->V);
    a.wte = ls_half_values(c, a.type, "wte", s->V * s->C, 1, 0);
    a.wpe = s->wpe ? ls_half_values(c, a.type, "wpe", s->T * s->C, 1, 0) : NULL;
    a.y = ls_half_values(c, a.type, "y", a.M * s->C, 0, 0);
    a.drop = (ls_dropout){.p = s->p, .site = 9, .state = new_state(c)};
    a.noise = s->noise;
    k->embed_fwd(c->stream, &a);
    ls_half_put(out, a.type, a.y, a.M * a.C);
}

static void run_half_bwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    ls_embed_bwd a = bwd_args(c, s);

    a.type = ls_half_type(k);
    a.dy = ls_half_copy(c, a.type, "dy", a.dy, a.M * a.C);
    a.scratch = ls_rows_scratch(c, k, LS_ROW_EMBED_BWD, &a);
    k->embed_bwd(c->stream, &a);
    out = ls_rows_put(out, a.dwte, a.V * a.C);
    if (a.dwpe)
        ls_rows_put(out, a.dwpe, a.positions * a.C);
}

LS_TEST_SECONDS(embed_in_bf16_is_the_reference_rounded, 60)
{
    const int64_t widths[] = {1, 15, 17, 65, 384};

    for (size_t i = 0; i < LS_COUNT(widths); i++)
        for (int form = 0; form < 4; form++) {
            shape s = {.B = 6, .T = 5, .C = widths[i], .V = 7, .positions = 9, .leaves = 1};
            s.wpe = form & 1;
            s.accumulate = i & 1;
            s.p = form & 2 ? 0.25f : 0;
            s.leaves = form & 2 ? 3 : 1;
            s.noise = i & 1 ? 0.25f : 0;
            ls_half_check(LS_ROW_EMBED_FWD, run_half_fwd, &s, s.B * s.T * s.C, 0);
            ls_half_check(LS_ROW_EMBED_BWD, run_half_bwd, &s, 0,
                          s.V * s.C + (s.wpe ? s.positions * s.C : 0));
        }
}

/* --- some of the tokens ------------------------------------------------------------------------
 */

/* Ranks with parts of the vocabulary: their vectors add up to those of the whole, and their
 * gradients are its rows. */
static void check_split(const ls_kernels *k, const shape *s, int ranks)
{
    ls_check c;

    ls_check_begin(&c, 2);
    ls_embed_fwd f = fwd_args(&c, s), part = f;
    float *sum = ls_check_floats(&c, "sum", f.M * f.C, 0);
    float *y = ls_check_floats(&c, "y of a rank", f.M * f.C, 0);
    k->embed_fwd(c.stream, &f);
    part.y = y;
    part.vocab = s->V;
    for (int r = 0; r < ranks; r++) {
        part.first = s->V * r / ranks;
        part.V = s->V * (r + 1) / ranks - part.first;
        part.wte = (const float *)f.wte + part.first * f.C;
        part.wpe = r == 0 ? f.wpe : NULL;
        k->embed_fwd(c.stream, &part);
        for (int64_t i = 0; i < f.M * f.C; i++)
            sum[i] = (r > 0 ? sum[i] : 0) + y[i];
    }
    ls_check_near("vectors", sum, f.y, f.M * f.C, 1e-6);

    ls_embed_bwd b = bwd_args(&c, s), mine = b;
    b.scratch = mine.scratch = ls_rows_scratch(&c, k, LS_ROW_EMBED_BWD, &b);
    mine.vocab = s->V;
    mine.dwpe = NULL;
    float *dwte = ls_check_copy(&c, "dwte of ranks", b.dwte, s->V * s->C);
    for (int r = 0; r < ranks; r++) {
        mine.first = s->V * r / ranks;
        mine.V = s->V * (r + 1) / ranks - mine.first;
        mine.dwte = dwte + mine.first * b.C;
        k->embed_bwd(c.stream, &mine);
    }
    k->embed_bwd(c.stream, &b);
    ls_check_same("gradients", dwte, b.dwte, s->V * s->C * 4);
    ls_check_end(&c);
}

LS_TEST(embed_of_some_tokens_is_a_part_of_the_whole)
{
    ls_kernels list[LS_CHECK_TABLES + 1];
    int n = ls_check_tables(list);

    list[n++] = *ls_check_reference();
    for (int i = 0; i < n; i++)
        for (int form = 0; form < 4; form++)
            for (int ranks = 1; ranks <= 4; ranks++) {
                shape s = {.B = 3, .T = 5, .C = 17, .V = 7, .positions = 9, .leaves = 1};
                s.wpe = form & 1;
                s.accumulate = form & 2;
                s.p = form & 2 ? 0.25f : 0;
                s.leaves = form & 2 ? 3 : 1;
                check_split(&list[i], &s, ranks);
            }
}
