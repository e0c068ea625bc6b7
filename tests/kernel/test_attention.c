/* test_attention.c -- attention against the reference, its gradient, and its bits. */
#include "kernel/attention_starts.h"

#include <math.h>
#include "base/mem.h"
#include "base/rng.h"

typedef struct shape {
    int64_t B, T, H, Hkv, D, window;
    bool start; /* documents */
    float drop;
    uint32_t first_head;
    bool packed; /* q, k, v inside one [M, (H + 2 Hkv) D] tensor; else apart, with gaps */
} shape;

/* Buffer behind a tensor of heads. */
typedef struct tensor {
    ls_heads heads;
    float *base;
    int64_t size, H;
} tensor;

typedef struct fixture {
    ls_check c;
    shape s;
    ls_dtype type;
    tensor q, k, v, o, dout, dq, dk, dv;
    float *lse;
    int32_t *start;
    ls_step_state *state;
    float scale;
} fixture;

enum { RESULTS = 5 }; /* o, lse, dq, dk, dv */
typedef struct results {
    float *of[RESULTS]; /* dense [B, T, H, D]; lse [B, H, T] */
    int64_t size[RESULTS];
} results;

static const char *const result_names[RESULTS] = {"o", "lse", "dq", "dk", "dv"};

/* Heads before tokens, with gaps after each row of D and each head. */
static tensor apart(fixture *f, const char *name, int64_t H, float scale)
{
    const shape *s = &f->s;
    tensor t = {.H = H, .heads = {.time = s->D + 3}};

    t.heads.head = s->T * t.heads.time + 5;
    t.heads.batch = H * t.heads.head;
    t.size = s->B * t.heads.batch;
    t.base = ls_check_floats(&f->c, name, t.size, scale);
    t.heads.p = t.base;
    return t;
}

/* Three tensors inside one. */
static void together(fixture *f, const char *name, float scale, tensor *const t[3])
{
    const shape *s = &f->s;
    int64_t width = (s->H + 2 * s->Hkv) * s->D, first = 0;
    float *base = ls_check_floats(&f->c, name, s->B * s->T * width, scale);

    for (int i = 0; i < 3; i++) {
        *t[i] = (tensor){.heads = {base + first, s->T * width, width, s->D},
                         .base = base,
                         .size = s->B * s->T * width,
                         .H = i == 0 ? s->H : s->Hkv};
        first += t[i]->H * s->D;
    }
}

static void begin(fixture *f, shape s, int threads)
{
    memset(f, 0, sizeof *f);
    f->s = s;
    f->scale = 1.0f / sqrtf((float)s.D);
    ls_check_begin(&f->c, threads);
    if (s.packed) {
        together(f, "qkv", 1.5f, (tensor *[]){&f->q, &f->k, &f->v});
        together(f, "dqkv", 0, (tensor *[]){&f->dq, &f->dk, &f->dv});
    } else {
        f->q = apart(f, "q", s.H, 1.5f);
        f->k = apart(f, "k", s.Hkv, 1.5f);
        f->v = apart(f, "v", s.Hkv, 1.5f);
        f->dq = apart(f, "dq", s.H, 0);
        f->dk = apart(f, "dk", s.Hkv, 0);
        f->dv = apart(f, "dv", s.Hkv, 0);
    }
    f->o = apart(f, "o", s.H, 0);
    f->dout = apart(f, "dout", s.H, 1);
    f->lse = ls_check_floats(&f->c, "lse", s.B * s.H * s.T, 0);
    f->state = ls_check_bytes(&f->c, "state", sizeof *f->state);
    *f->state = (ls_step_state){.key = {0x12345678, 0x9abcdef0}, .first_seq = 7};
    if (s.start)
        f->start = ls_attention_starts(&f->c, s.B, s.T, 4);
}

static ls_attention_fwd forward_args(const fixture *f)
{
    const shape *s = &f->s;

    return (ls_attention_fwd){
        .type = f->type,
        .q = f->q.heads,
        .k = f->k.heads,
        .v = f->v.heads,
        .o = f->o.heads,
        .lse = f->lse,
        .start = f->start,
        .B = s->B,
        .T = s->T,
        .H = s->H,
        .Hkv = s->Hkv,
        .D = s->D,
        .window = s->window,
        .scale = f->scale,
        .drop = {.p = s->drop, .site = 3, .state = f->state, .first_head = s->first_head}};
}

static ls_attention_bwd backward_args(const fixture *f)
{
    ls_attention_fwd a = forward_args(f);
    ls_attention_bwd back = ls_attention_back(&a);

    back.dout = f->dout.heads;
    back.dq = f->dq.heads;
    back.dk = f->dk.heads;
    back.dv = f->dv.heads;
    return back;
}

static void run(fixture *f, const ls_kernels *v, int threads)
{
    ls_attention_fwd fwd = forward_args(f);
    ls_attention_bwd bwd = backward_args(f);

    v->attention_fwd(f->c.stream, &fwd);
    bwd.scratch = ls_check_bytes(&f->c, "scratch", v->scratch(LS_ROW_ATTENTION_BWD, &bwd, threads));
    v->attention_bwd(f->c.stream, &bwd);
    ls_check_sync(&f->c);
}

static float *element(const tensor *t, int64_t b, int64_t row, int64_t h)
{
    return (float *)t->heads.p + b * t->heads.batch + row * t->heads.time + h * t->heads.head;
}

/* A dense copy; then the tensor is made as it was before, to find writes outside of it. */
static float *take(const fixture *f, tensor *t, int64_t *size_out)
{
    const shape *s = &f->s;
    float *dense = ls_mem_array((size_t)(s->B * s->T * t->H * s->D), sizeof *dense), *to = dense;

    LS_CHECK(dense);
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t row = 0; row < s->T; row++)
            for (int64_t h = 0; h < t->H; h++, to += s->D) {
                memcpy(to, element(t, b, row, h), (size_t)s->D * sizeof *to);
                memset(element(t, b, row, h), 0xff, (size_t)s->D * sizeof *to);
            }
    *size_out = to - dense;
    return dense;
}

static void check_untouched(const tensor *t, const char *name)
{
    const unsigned char *bytes = (const unsigned char *)t->base;

    for (int64_t i = 0; i < t->size * 4; i++)
        if (bytes[i] != 0xff)
            ls_test_fail(__FILE__, __LINE__, "a gap of \"%s\" was written", name);
}

static results collect(fixture *f)
{
    results r;
    tensor *tensors[RESULTS] = {&f->o, NULL, &f->dq, &f->dk, &f->dv};

    for (int i = 0; i < RESULTS; i++)
        if (tensors[i])
            r.of[i] = take(f, tensors[i], &r.size[i]);
    for (int i = 0; i < RESULTS; i++)
        if (tensors[i])
            check_untouched(tensors[i], result_names[i]);
    r.size[1] = f->s.B * f->s.H * f->s.T;
    r.of[1] = ls_mem_array((size_t)r.size[1], sizeof(float));
    LS_CHECK(r.of[1]);
    memcpy(r.of[1], f->lse, (size_t)r.size[1] * sizeof(float));
    return r;
}

static results results_of(shape s, const ls_kernels *v, int threads)
{
    fixture f;

    begin(&f, s, threads);
    run(&f, v, threads);
    results r = collect(&f);
    ls_check_end(&f.c);
    return r;
}

static void release(results *r)
{
    for (int i = 0; i < RESULTS; i++)
        ls_mem_free(r->of[i]);
}

static void check_close(const char *name, const results *got, const results *want)
{
    for (int i = 0; i < RESULTS; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s: %s", name, result_names[i]);
        ls_check_near(what, got->of[i], want->of[i], want->size[i],
                      i < 2 ? ls_kernel_rows[LS_ROW_ATTENTION_FWD].tolerance
                            : ls_kernel_rows[LS_ROW_ATTENTION_BWD].tolerance);
    }
}

static void check_equal(const char *name, const results *got, const results *want)
{
    for (int i = 0; i < RESULTS; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s: %s", name, result_names[i]);
        ls_check_same(what, got->of[i], want->of[i], want->size[i] * (int64_t)sizeof(float));
    }
}

/* All versions against the reference, and against each other to the last bit. */
static void check_shape(shape s)
{
    ls_kernels versions[LS_CHECK_TABLES];
    int n = ls_check_tables(versions);
    results want = results_of(s, ls_check_reference(), 1), first = results_of(s, &versions[0], 1);

    check_close(versions[0].name, &first, &want);
    for (int i = 1; i < n; i++) {
        results got = results_of(s, &versions[i], 1);
        check_equal(versions[i].name, &got, &first);
        release(&got);
    }
    release(&first);
    release(&want);
}

LS_TEST_SECONDS(attention_matches_the_reference_for_odd_lengths, 60)
{
    static const int64_t lengths[] = {1, 2, 15, 16, 17, 64, 65, 128, 200};

    for (size_t i = 0; i < LS_COUNT(lengths); i++) {
        check_shape((shape){.B = 2, .T = lengths[i], .H = 3, .Hkv = 3, .D = 16, .packed = i % 2});
        check_shape((shape){.B = 1, .T = lengths[i], .H = 4, .Hkv = 2, .D = 20, .drop = 0.3f});
    }
}

LS_TEST_SECONDS(attention_matches_the_reference_for_odd_heads, 60)
{
    static const int64_t sizes[] = {1, 4, 16, 20, 33, 64, 80, 128};

    for (size_t i = 0; i < LS_COUNT(sizes); i++) {
        check_shape((shape){.B = 1, .T = 70, .H = 1, .Hkv = 1, .D = sizes[i], .packed = true});
        check_shape((shape){.B = 1, .T = 70, .H = 4, .Hkv = 1, .D = sizes[i], .drop = 0.3f});
    }
}

/* More tiles of keys than a worker's memory holds packed. */
LS_TEST_SECONDS(attention_matches_the_reference_beyond_packed_memory, 60)
{
    shape s = {.B = 1, .T = 400, .H = 1, .Hkv = 1, .D = 1000};
    ls_kernels versions[LS_CHECK_TABLES];
    int n = ls_check_tables(versions);
    results want = results_of(s, ls_check_reference(), 1), got = results_of(s, &versions[n - 1], 1);

    check_close(versions[n - 1].name, &got, &want);
    release(&got);
    release(&want);
}

LS_TEST_SECONDS(attention_sees_only_its_window_and_its_document, 60)
{
    static const int64_t windows[] = {1, 5, 63, 64, 65, 127};

    for (size_t i = 0; i < LS_COUNT(windows); i++) {
        shape s = {.B = 2, .T = 200, .H = 2, .Hkv = 1, .D = 20, .window = windows[i]};
        check_shape(s);
        s.start = true;
        s.drop = 0.3f;
        check_shape(s);
    }
    check_shape((shape){.B = 3, .T = 65, .H = 4, .Hkv = 2, .D = 16, .start = true, .packed = true});
}

LS_TEST(attention_bits_do_not_depend_on_threads)
{
    static const shape shapes[] = {
        {.B = 3, .T = 200, .H = 4, .Hkv = 2, .D = 20, .drop = 0.3f, .start = true, .packed = true},
        {.B = 1, .T = 321, .H = 1, .Hkv = 1, .D = 64},
        {.B = 9, .T = 33, .H = 4, .Hkv = 4, .D = 16, .window = 7}};
    ls_kernels versions[LS_CHECK_TABLES];
    int n = ls_check_tables(versions);

    for (size_t i = 0; i < LS_COUNT(shapes); i++) {
        results want = results_of(shapes[i], &versions[n - 1], 1);
        for (int threads = 2; threads <= 3; threads++) {
            results got = results_of(shapes[i], &versions[n - 1], threads);
            check_equal("threads", &got, &want);
            release(&got);
        }
        release(&want);
    }
}

/* Run sequence b alone, on the same memory. */
static void run_alone(fixture *f, const ls_kernels *v, int64_t b)
{
    fixture one = *f;
    tensor *tensors[] = {&one.q, &one.k, &one.v, &one.o, &one.dout, &one.dq, &one.dk, &one.dv};

    for (size_t i = 0; i < LS_COUNT(tensors); i++)
        tensors[i]->heads.p = element(tensors[i], b, 0, 0);
    one.s.B = 1;
    one.lse += b * f->s.H * f->s.T;
    if (one.start)
        one.start += b * f->s.T;
    f->state->first_seq = 7 + (uint32_t)b;
    ls_attention_fwd fwd = forward_args(&one);
    ls_attention_bwd bwd = backward_args(&one);
    v->attention_fwd(f->c.stream, &fwd);
    bwd.scratch = ls_check_bytes(&f->c, "scratch", v->scratch(LS_ROW_ATTENTION_BWD, &bwd, 2));
    v->attention_bwd(f->c.stream, &bwd);
}

LS_TEST(attention_bits_do_not_depend_on_other_sequences)
{
    shape s = {.B = 3, .T = 130, .H = 4, .Hkv = 2, .D = 20, .drop = 0.3f, .start = true};
    ls_kernels versions[LS_CHECK_TABLES];
    const ls_kernels *v = &versions[ls_check_tables(versions) - 1];
    results want = results_of(s, v, 2);
    fixture f;

    begin(&f, s, 2);
    for (int64_t b = 0; b < s.B; b++)
        run_alone(&f, v, b);
    results got = collect(&f);
    check_equal("one by one", &got, &want);
    ls_check_end(&f.c);
    release(&got);
    release(&want);
}

/* sum of dout * o, which has the gradient dout. */
static double loss(fixture *f)
{
    ls_attention_fwd a = forward_args(f);
    double sum = 0;

    ls_check_reference()->attention_fwd(f->c.stream, &a);
    for (int64_t b = 0; b < f->s.B; b++)
        for (int64_t t = 0; t < f->s.T; t++)
            for (int64_t h = 0; h < f->s.H; h++)
                for (int64_t d = 0; d < f->s.D; d++)
                    sum +=
                        (double)element(&f->o, b, t, h)[d] * (double)element(&f->dout, b, t, h)[d];
    return sum;
}

static void check_differences(fixture *f, const char *name, const tensor *x, const float *grad)
{
    const double step = 1.0 / 128;

    for (int64_t b = 0; b < f->s.B; b++)
        for (int64_t t = 0; t < f->s.T; t++)
            for (int64_t h = 0; h < x->H; h++)
                for (int64_t d = 0; d < f->s.D; d++, grad++) {
                    float *at = element(x, b, t, h) + d, keep = *at;
                    *at = keep + (float)step;
                    double up = loss(f);
                    *at = keep - (float)step;
                    double down = loss(f);
                    *at = keep;
                    double want = (up - down) / (2 * step);
                    if (!(fabs((double)*grad - want) <= 1e-3 * (1 + fabs(want))))
                        ls_test_fail(__FILE__, __LINE__,
                                     "d%s[%lld,%lld,%lld,%lld] is %g, difference %g", name,
                                     (long long)b, (long long)t, (long long)h, (long long)d,
                                     (double)*grad, want);
                }
}

LS_TEST(attention_gradient_matches_finite_differences)
{
    static const shape shapes[] = {
        {.B = 1, .T = 9, .H = 2, .Hkv = 2, .D = 5},
        {.B = 2, .T = 9, .H = 4, .Hkv = 2, .D = 4, .drop = 0.3f, .packed = true},
        {.B = 2, .T = 8, .H = 3, .Hkv = 1, .D = 4, .start = true, .window = 5}};
    ls_kernels versions[LS_CHECK_TABLES];
    const ls_kernels *fast = &versions[ls_check_tables(versions) - 1];

    for (size_t i = 0; i < LS_COUNT(shapes); i++) {
        const ls_kernels *both[] = {ls_check_reference(), fast};
        for (int n = 0; n < 2; n++) {
            fixture f;
            begin(&f, shapes[i], 1);
            run(&f, both[n], 1);
            results r = collect(&f);
            check_differences(&f, "q", &f.q, r.of[2]);
            check_differences(&f, "k", &f.k, r.of[3]);
            check_differences(&f, "v", &f.v, r.of[4]);
            release(&r);
            ls_check_end(&f.c);
        }
    }
}

LS_TEST(attention_keeps_large_scores_finite)
{
    shape s = {.B = 1, .T = 130, .H = 1, .Hkv = 1, .D = 16};
    ls_kernels versions[LS_CHECK_TABLES];
    int n = ls_check_tables(versions);

    for (int i = 0; i < n; i++) {
        fixture f;
        begin(&f, s, 1);
        f.scale = 100; /* scores of some hundreds: weights are 0 or 1 but for ties */
        run(&f, &versions[i], 1);
        results got = collect(&f);
        for (int k = 0; k < RESULTS; k++)
            for (int64_t x = 0; x < got.size[k]; x++)
                LS_CHECK(isfinite(got.of[k][x]));
        ls_attention_fwd a = forward_args(&f);
        ls_check_reference()->attention_fwd(f.c.stream, &a);
        results want = collect(&f);
        ls_check_near("o", got.of[0], want.of[0], want.size[0], 2e-3); /* ulp of 1000 is 6e-5 */
        release(&got);
        release(&want);
        ls_check_end(&f.c);
    }
}

LS_TEST(attention_does_not_hide_nan)
{
    shape s = {.B = 1, .T = 70, .H = 1, .Hkv = 1, .D = 16};
    ls_kernels versions[LS_CHECK_TABLES];
    int n = ls_check_tables(versions);

    for (int i = 0; i < n; i++) {
        fixture f;
        begin(&f, s, 1);
        element(&f.k, 0, 40, 0)[3] = NAN;
        run(&f, &versions[i], 1);
        for (int64_t t = 0; t < s.T; t++) /* seen by queries from 40 on, and by no other */
            LS_CHECK_EQ(isnan(element(&f.o, 0, t, 0)[0]) != 0, t >= 40);
        ls_check_end(&f.c);
    }
}

/* A stream keeps its first failure; end the case on a new one. */
static void end_failed(fixture *f)
{
    ls_stream_free(f->c.stream);
    LS_CHECK_OK(ls_stream_create(&f->c.stream, f->c.device));
    ls_check_end(&f->c);
}

LS_TEST(attention_refuses_heads_beyond_its_memory)
{
    shape s = {.B = 1, .T = 1, .H = 1, .Hkv = 1, .D = 1025};
    ls_kernels versions[LS_CHECK_TABLES];
    fixture f;

    ls_check_tables(versions);
    begin(&f, s, 1);
    ls_attention_fwd a = forward_args(&f);
    versions[0].attention_fwd(f.c.stream, &a);
    LS_CHECK_FAILS(ls_stream_sync(f.c.stream, INT64_MAX), LS_EUSAGE, "1025");
    end_failed(&f);
}

LS_TEST(attention_reference_reports_exhausted_memory)
{
    fixture f;

    begin(&f, (shape){.B = 1, .T = 3, .H = 1, .Hkv = 1, .D = 4}, 1);
    ls_attention_fwd a = forward_args(&f);
    ls_mem_fail_nth(1);
    ls_check_reference()->attention_fwd(f.c.stream, &a);
    LS_CHECK_FAILS(ls_stream_sync(f.c.stream, INT64_MAX), LS_ENOMEM, "");
    end_failed(&f);
}

/* --- a past ---------------------------------------------------------------------------------- */

/* All of `length` positions, and the last T of past + T of them. */
typedef struct later {
    int64_t B, length, past, T, H, Hkv, D, window;
} later;

/* The first `positions` of [B, length, H, D]; the rest is NaN, and the last sequence ends with its
 * last position. */
static ls_heads cache_of(ls_check *c, const char *name, const float *all, const later *s)
{
    int64_t row = s->Hkv * s->D, batch = s->length * row, held = (s->past + s->T) * row;
    float *to = ls_check_floats(c, name, (s->B - 1) * batch + held, 0);

    for (int64_t b = 0; b < s->B; b++)
        memcpy(to + b * batch, all + b * batch, (size_t)held * sizeof *to);
    return (ls_heads){to, batch, row, s->D};
}

static ls_attention_fwd later_whole(ls_check *c, const later *s)
{
    int64_t q = s->H * s->D, k = s->Hkv * s->D, n = s->length;
    ls_attention_fwd a = {.type = LS_F32, .B = s->B, .T = n, .H = s->H, .Hkv = s->Hkv, .D = s->D};

    a.q = (ls_heads){ls_check_floats(c, "q", s->B * n * q, 1.5f), n * q, q, s->D};
    a.k = (ls_heads){ls_check_floats(c, "k", s->B * n * k, 1.5f), n * k, k, s->D};
    a.v = (ls_heads){ls_check_floats(c, "v", s->B * n * k, 1.5f), n * k, k, s->D};
    a.o = (ls_heads){ls_check_floats(c, "o", s->B * n * q, 0), n * q, q, s->D};
    a.lse = ls_check_floats(c, "lse", s->B * s->H * n, 0);
    a.scale = 1.0f / sqrtf((float)s->D);
    a.window = s->window;
    return a;
}

/* The call with a past, its queries and outputs dense. */
static ls_attention_fwd later_part(ls_check *c, const later *s, const ls_attention_fwd *whole)
{
    int64_t row = s->H * s->D, n = s->T * row;
    ls_attention_fwd a = *whole;
    float *q = ls_check_floats(c, "later q", s->B * n, 0);

    for (int64_t b = 0; b < s->B; b++)
        memcpy(q + b * n, (float *)whole->q.p + b * whole->q.batch + s->past * row,
               (size_t)n * sizeof *q);
    a.q = (ls_heads){q, n, row, s->D};
    a.k = cache_of(c, "later k", whole->k.p, s);
    a.v = cache_of(c, "later v", whole->v.p, s);
    a.o = (ls_heads){ls_check_floats(c, "later o", s->B * n, 0), n, row, s->D};
    a.lse = ls_check_floats(c, "later lse", s->B * s->H * s->T, 0);
    a.T = s->T;
    a.past = s->past;
    return a;
}

static void check_later(const later *s, const ls_kernels *v, int threads)
{
    int64_t row = s->H * s->D, n = s->T * row;
    ls_check c;

    ls_check_begin(&c, threads);
    ls_attention_fwd whole = later_whole(&c, s), part = later_part(&c, s, &whole), plain = part;
    v->attention_fwd(c.stream, &whole);
    v->attention_fwd(c.stream, &part);
    for (int64_t b = 0; b < s->B; b++) {
        ls_check_same("o", (float *)part.o.p + b * n,
                      (float *)whole.o.p + b * whole.o.batch + s->past * row, n * 4);
        for (int64_t h = b * s->H; h < (b + 1) * s->H; h++)
            ls_check_same("lse", part.lse + h * s->T, whole.lse + h * s->length + s->past,
                          s->T * 4);
    }
    plain.o.p = ls_check_floats(&c, "o without lse", s->B * n, 0);
    plain.lse = NULL;
    v->attention_fwd(c.stream, &plain);
    ls_check_same("o without lse", plain.o.p, part.o.p, s->B * n * 4);
    plain.o.p = ls_check_floats(&c, "o of the reference", s->B * n, 0);
    ls_check_reference()->attention_fwd(c.stream, &plain);
    ls_check_near("o", part.o.p, plain.o.p, s->B * n,
                  ls_kernel_rows[LS_ROW_ATTENTION_FWD].tolerance);
    ls_check_end(&c);
}

/* Over all ways to call: tiles of queries or few of them, windows, shared key heads. */
LS_TEST_SECONDS(attention_bits_do_not_depend_on_where_a_call_begins, 60)
{
    ls_kernels versions[LS_CHECK_TABLES];
    int n = ls_check_tables(versions);
    ls_rng_key key = ls_rng_derive(11, 1, 1);

    for (uint32_t i = 0; i < (uint32_t)ls_test_times(60); i++) {
        static const int64_t heads[][2] = {{1, 1}, {4, 2}, {6, 1}, {3, 3}, {20, 1}};
        static const int64_t sizes[] = {1, 16, 20, 33, 64};
        ls_rng_block r = ls_rng_philox(key, i, 0, 0, 0), u = ls_rng_philox(key, i, 1, 0, 0);
        later s = {.B = 1 + r.v[0] % 2, .H = heads[i % 5][0], .Hkv = heads[i % 5][1]};
        s.D = sizes[r.v[1] % 5];
        s.T = 1 + (i % 2 ? r.v[2] % 18 : r.v[2] % 150); /* few, or tiles */
        s.past = i % 3 ? u.v[0] % 200 : u.v[0] % 4 * 64;
        s.length = s.past + s.T + u.v[1] % 70;
        s.window = u.v[2] % 2 ? 1 + u.v[3] % 130 : 0;
        check_later(&s, &versions[i % (uint32_t)n], 1 + (int)(r.v[3] % 3));
    }
}

/* The versions agree with a past too, and 600 positions one by one are the whole. */
LS_TEST(attention_decodes_token_by_token_with_the_bits_of_the_whole)
{
    const later shapes[] = {{2, 90, 80, 5, 4, 2, 20, 0}, {1, 200, 70, 60, 2, 1, 33, 50}};
    ls_kernels versions[LS_CHECK_TABLES];
    int n = ls_check_tables(versions);
    ls_check c;

    for (size_t k = 0; k < LS_COUNT(shapes); k++) {
        int64_t size = shapes[k].B * shapes[k].T * shapes[k].H * shapes[k].D;
        const float *first = NULL;
        ls_check_begin(&c, 2);
        for (int i = 0; i < n; i++) {
            c.seed = 1;
            ls_attention_fwd whole = later_whole(&c, &shapes[k]);
            ls_attention_fwd part = later_part(&c, &shapes[k], &whole);
            versions[i].attention_fwd(c.stream, &part);
            first = first ? first : part.o.p;
            ls_check_same(versions[i].name, part.o.p, first, size * 4);
        }
        ls_check_end(&c);
    }
    later s = {.B = 1, .length = 600, .H = 4, .Hkv = 2, .D = 16, .T = 600};
    ls_check_begin(&c, 2);
    ls_attention_fwd whole = later_whole(&c, &s), one = whole;
    float *o = ls_check_floats(&c, "one by one", 600 * 64, 0);
    versions[n - 1].attention_fwd(c.stream, &whole);
    one.T = 1;
    one.lse = NULL;
    for (one.past = 0; one.past < 600; one.past++) {
        one.q.p = (float *)whole.q.p + one.past * 64;
        one.o.p = o + one.past * 64;
        versions[n - 1].attention_fwd(c.stream, &one);
    }
    ls_check_same("one by one", o, whole.o.p, 600 * 64 * 4);
    ls_check_end(&c);
}

/* --- bf16 ------------------------------------------------------------------------------------ */

static uint16_t narrow(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, 4);
    return isnan(x) ? 0xffff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float widen(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;

    memcpy(&value, &bits, 4);
    return value;
}

/* The floats become what bf16 can say, and a copy of them in bf16 is returned. */
static uint16_t *narrow_all(ls_check *c, const char *name, float *x, int64_t n)
{
    uint16_t *to = ls_check_bytes(c, name, n * (int64_t)sizeof *to);

    for (int64_t i = 0; i < n; i++) {
        to[i] = narrow(x[i]);
        if (!isnan(x[i]))
            x[i] = widen(to[i]);
    }
    return to;
}

/* The same fixture with its tensors in bf16, in buffers of their own. */
static fixture narrow_fixture(fixture *f)
{
    fixture n = *f;
    tensor *to[] = {&n.q, &n.k, &n.v, &n.dq, &n.dk, &n.dv, &n.o, &n.dout};
    uint16_t *memory = NULL;
    const float *of = NULL; /* what memory is a copy of: three tensors may lie in one buffer */

    n.type = LS_BF16;
    for (size_t i = 0; i < LS_COUNT(to); i++) {
        if (to[i]->base != of)
            memory = narrow_all(&n.c, "bf16", to[i]->base, to[i]->size);
        of = to[i]->base;
        to[i]->heads.p = memory + ((float *)to[i]->heads.p - of);
        to[i]->base = (float *)(void *)memory; /* only compared */
    }
    return n;
}

/* Results in bf16 back into the floats; nothing else in their buffers was written. */
static void widen_results(fixture *f, const fixture *n)
{
    tensor *const to[] = {&f->o, &f->dq, &f->dk, &f->dv};
    const tensor *const from[] = {&n->o, &n->dq, &n->dk, &n->dv};

    for (size_t i = 0; i < LS_COUNT(to); i++)
        for (int64_t b = 0; b < f->s.B; b++)
            for (int64_t t = 0; t < f->s.T; t++)
                for (int64_t h = 0; h < to[i]->H; h++) {
                    uint16_t *x = (uint16_t *)from[i]->heads.p + b * from[i]->heads.batch +
                                  t * from[i]->heads.time + h * from[i]->heads.head;
                    for (int64_t d = 0; d < f->s.D; d++) {
                        element(to[i], b, t, h)[d] = widen(x[d]);
                        x[d] = 0xffff;
                    }
                }
    for (size_t i = 0; i < LS_COUNT(to); i++)
        for (int64_t k = 0; k < from[i]->size; k++)
            if (((const uint16_t *)(const void *)from[i]->base)[k] != 0xffff)
                ls_test_fail(__FILE__, __LINE__, "a gap was written");
}

/* What the reference says about these inputs; its gradient begins with the o and lse given. */
static results narrow_reference(fixture *f, const results *given)
{
    const float *o = given->of[0];

    run(f, ls_check_reference(), 1);
    results want = collect(f);
    for (int64_t b = 0; b < f->s.B; b++)
        for (int64_t t = 0; t < f->s.T; t++)
            for (int64_t h = 0; h < f->s.H; h++, o += f->s.D)
                memcpy(element(&f->o, b, t, h), o, (size_t)f->s.D * sizeof *o);
    memcpy(f->lse, given->of[1], (size_t)given->size[1] * sizeof *f->lse);
    ls_attention_bwd bwd = backward_args(f);
    bwd.scratch = NULL;
    ls_check_reference()->attention_bwd(f->c.stream, &bwd);
    results gradient = collect(f);
    for (int i = 2; i < RESULTS; i++) {
        ls_mem_free(want.of[i]);
        want.of[i] = gradient.of[i];
    }
    ls_mem_free(gradient.of[0]);
    ls_mem_free(gradient.of[1]);
    return want;
}

/* The row's own tolerance, and half a unit in the last place of bf16 but for lse. */
static void check_narrow(const char *name, const results *got, const results *want)
{
    for (int i = 0; i < RESULTS; i++) {
        double row = i < 2 ? ls_kernel_rows[LS_ROW_ATTENTION_FWD].tolerance
                           : ls_kernel_rows[LS_ROW_ATTENTION_BWD].tolerance;
        double rounding = i == 1 ? 0 : 1.01 / 256;
        for (int64_t k = 0; k < want->size[i]; k++) {
            double g = (double)got->of[i][k], w = (double)want->of[i][k];
            if (!(fabs(g - w) <= row * (1 + fabs(w)) + rounding * fabs(w)))
                ls_test_fail(__FILE__, __LINE__, "%s: %s[%lld] is %.9g, expected %.9g", name,
                             result_names[i], (long long)k, g, w);
        }
    }
}

static results narrow_results(shape s, const ls_kernels *v, int threads, results *want_out)
{
    fixture f, n;

    begin(&f, s, threads);
    n = narrow_fixture(&f);
    run(&n, v, threads);
    f.c = n.c; /* with the buffers made since */
    widen_results(&f, &n);
    results got = collect(&f);
    if (want_out)
        *want_out = narrow_reference(&f, &got);
    ls_check_end(&f.c);
    return got;
}

LS_TEST_SECONDS(attention_of_bf16_is_that_of_floats_but_for_rounding, 60)
{
    static const shape shapes[] = {
        {.B = 2, .T = 70, .H = 4, .Hkv = 2, .D = 20, .drop = 0.3f, .start = true},
        {.B = 1, .T = 130, .H = 2, .Hkv = 1, .D = 64, .window = 50},
        {.B = 2, .T = 9, .H = 3, .Hkv = 3, .D = 33, .packed = true}, /* few */
        {.B = 1, .T = 16, .H = 6, .Hkv = 2, .D = 64, .window = 5},
        {.B = 1, .T = 65, .H = 1, .Hkv = 1, .D = 100, .packed = true},
        {.B = 3, .T = 64, .H = 4, .Hkv = 4, .D = 32, .packed = true}};
    ls_kernels versions[LS_CHECK_TABLES];
    int n = ls_check_tables(versions);

    for (size_t k = 0; k < LS_COUNT(shapes); k++) {
        results want, first = narrow_results(shapes[k], &versions[0], 1, &want);
        check_narrow(versions[0].name, &first, &want);
        for (int i = 0; i < n; i++) {
            results got = narrow_results(shapes[k], &versions[i], 3 - i % 2, NULL);
            check_equal(versions[i].name, &got, &first);
            release(&got);
        }
        release(&first);
        release(&want);
    }
}

/* Calls that begin anywhere, of few queries and of many. */
LS_TEST(attention_of_bf16_has_the_bits_of_the_whole_with_a_past)
{
    later s = {.B = 1, .length = 150, .H = 4, .Hkv = 2, .D = 36};
    int64_t row = s.H * s.D, keys = s.Hkv * s.D;
    ls_kernels versions[LS_CHECK_TABLES];
    const ls_kernels *v = &versions[ls_check_tables(versions) - 1];
    ls_check c;

    ls_check_begin(&c, 2);
    ls_attention_fwd whole = later_whole(&c, &s);
    whole.type = LS_BF16;
    whole.q.p = narrow_all(&c, "q", whole.q.p, s.length * row);
    whole.k.p = narrow_all(&c, "k", whole.k.p, s.length * keys);
    whole.v.p = narrow_all(&c, "v", whole.v.p, s.length * keys);
    whole.o.p = ls_check_bytes(&c, "o", s.length * row * 2);
    v->attention_fwd(c.stream, &whole);
    uint16_t *o = ls_check_bytes(&c, "part of o", s.length * row * 2);
    float *lse = ls_check_floats(&c, "part of lse", s.H * s.length, 0);
    for (int64_t past = 0, T = 1; past + T <= s.length; past += T, T = 1 + (past * 7) % 40) {
        ls_attention_fwd part = whole;
        part.T = T;
        part.past = past;
        part.q.p = (uint16_t *)whole.q.p + past * row;
        part.o.p = o + past * row;
        part.lse = lse;
        v->attention_fwd(c.stream, &part);
        ls_check_same("o", part.o.p, (uint16_t *)whole.o.p + past * row, T * row * 2);
        for (int64_t h = 0; h < s.H; h++)
            ls_check_same("lse", lse + h * T, whole.lse + h * s.length + past, T * 4);
    }
    ls_check_end(&c);
}

/* --- some of the heads -------------------------------------------------------------------------
 */

static void copy_heads(const fixture *part, tensor *to, tensor *from, int64_t first, bool check)
{
    const shape *s = &part->s;

    for (int64_t b = 0; b < s->B; b++)
        for (int64_t t = 0; t < s->T; t++)
            for (int64_t h = 0; h < s->H; h++) {
                float *own = element(to, b, t, h), *whole = element(from, b, t, first + h);
                if (check)
                    ls_check_same("heads", own, whole, s->D * (int64_t)sizeof *own);
                else
                    memcpy(own, whole, (size_t)s->D * sizeof *own);
            }
}

/* Heads that a rank has drop what they drop in the whole model. */
LS_TEST(attention_of_some_heads_is_a_part_of_the_whole)
{
    const shape s = {.B = 2, .T = 70, .H = 4, .Hkv = 4, .D = 20, .drop = 0.3f};
    ls_kernels list[LS_CHECK_TABLES + 1];
    int n = ls_check_tables(list);

    list[n++] = *ls_check_reference();
    for (int i = 0; i < n; i++) {
        fixture whole, part;
        shape some = s;
        some.H = some.Hkv = 2;
        some.first_head = 2;
        begin(&whole, s, 1);
        begin(&part, some, 1);
        tensor *const in[][2] = {{&part.q, &whole.q},
                                 {&part.k, &whole.k},
                                 {&part.v, &whole.v},
                                 {&part.dout, &whole.dout}};
        tensor *const out[][2] = {{&part.o, &whole.o},
                                  {&part.dq, &whole.dq},
                                  {&part.dk, &whole.dk},
                                  {&part.dv, &whole.dv}};
        for (size_t k = 0; k < LS_COUNT(in); k++)
            copy_heads(&part, in[k][0], in[k][1], 2, false);
        run(&whole, &list[i], 1);
        run(&part, &list[i], 1);
        for (size_t k = 0; k < LS_COUNT(out); k++)
            copy_heads(&part, out[k][0], out[k][1], 2, true);
        ls_check_end(&part.c);
        ls_check_end(&whole.c);
    }
}
