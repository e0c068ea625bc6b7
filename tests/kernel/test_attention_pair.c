/* test_attention_pair.c -- attention put together from pairs of chunks, against attention at once.
 */
#include "kernel/attention_starts.h"

#include <math.h>
#include "base/mem.h"
#include "kernel/half.h"

typedef struct shape {
    int64_t B, chunk, chunks, H, Hkv, D, window;
    bool start; /* documents */
    float drop;
    bool late; /* pairs are joined from the earliest keys on, the own ones excepted */
} shape;

typedef struct fixture {
    ls_check c;
    shape s;
    ls_dtype type;
    int64_t T;
    ls_heads q, k, v, dout; /* of the type */
    int32_t *start;
    ls_step_state *state;
} fixture;

/* What comes out, dense: of the whole in the type, of pairs in fp32. */
typedef struct outcome {
    ls_heads o, dq, dk, dv;
    float *lse;
} outcome;

static ls_heads dense(void *x, int64_t T, int64_t H, int64_t D)
{
    return (ls_heads){x, T * H * D, H * D, D};
}

static ls_heads input(fixture *f, const char *name, int64_t H, float scale)
{
    int64_t n = f->s.B * f->T * H * f->s.D;

    return dense(ls_half_values(&f->c, f->type, name, n, scale, 0), f->T, H, f->s.D);
}

static void begin(fixture *f, shape s, ls_dtype type)
{
    memset(f, 0, sizeof *f);
    f->s = s;
    f->type = type;
    f->T = s.chunk * s.chunks;
    ls_check_begin(&f->c, 1);
    f->q = input(f, "q", s.H, 1.5f);
    f->k = input(f, "k", s.Hkv, 1.5f);
    f->v = input(f, "v", s.Hkv, 1.5f);
    f->dout = input(f, "dout", s.H, 1);
    f->state = ls_check_bytes(&f->c, "state", sizeof *f->state);
    *f->state = (ls_step_state){.key = {0x12345678, 0x9abcdef0}, .first_seq = 7};
    if (s.start)
        f->start = ls_attention_starts(&f->c, s.B, f->T, 9);
}

static ls_heads output(fixture *f, const char *name, ls_dtype type, int64_t H, bool zeros)
{
    int64_t n = f->s.B * f->T * H * f->s.D;
    void *x = ls_check_bytes(&f->c, name, n * ls_dtype_bytes(type));

    if (zeros)
        memset(x, 0, (size_t)(n * ls_dtype_bytes(type)));
    return dense(x, f->T, H, f->s.D);
}

static outcome outputs(fixture *f, ls_dtype type, bool zeros)
{
    const shape *s = &f->s;

    return (outcome){.o = output(f, "o", type, s->H, false),
                     .dq = output(f, "dq", type, s->H, zeros),
                     .dk = output(f, "dk", type, s->Hkv, zeros),
                     .dv = output(f, "dv", type, s->Hkv, zeros),
                     .lse = ls_check_floats(&f->c, "lse", s->B * s->H * f->T, 0)};
}

static ls_attention_fwd forward_args(const fixture *f, const outcome *to)
{
    const shape *s = &f->s;

    return (ls_attention_fwd){.type = f->type,
                              .q = f->q,
                              .k = f->k,
                              .v = f->v,
                              .o = to->o,
                              .lse = to->lse,
                              .start = f->start,
                              .B = s->B,
                              .T = f->T,
                              .H = s->H,
                              .Hkv = s->Hkv,
                              .D = s->D,
                              .window = s->window,
                              .scale = 1.0f / sqrtf((float)s->D),
                              .drop = {.p = s->drop, .site = 3, .state = f->state}};
}

static ls_attention_bwd backward_args(const fixture *f, const outcome *seen, const outcome *to)
{
    ls_attention_fwd a = forward_args(f, seen);
    ls_attention_bwd back = ls_attention_back(&a);

    back.dout = f->dout;
    back.dq = to->dq;
    back.dk = to->dk;
    back.dv = to->dv;
    return back;
}

static void *scratch(fixture *f, const ls_kernels *v, const ls_attention_bwd *a)
{
    return ls_check_bytes(&f->c, "scratch", v->scratch(LS_ROW_ATTENTION_BWD, a, 1));
}

static void whole(fixture *f, const ls_kernels *v, const outcome *to)
{
    ls_attention_fwd fwd = forward_args(f, to);
    ls_attention_bwd bwd = backward_args(f, to, to);

    v->attention_fwd(f->c.stream, &fwd);
    bwd.scratch = scratch(f, v, &bwd);
    v->attention_bwd(f->c.stream, &bwd);
}

static ls_heads chunk_of(const fixture *f, ls_dtype type, ls_heads x, int64_t i)
{
    x.p = (char *)x.p + i * f->s.chunk * x.time * ls_dtype_bytes(type);
    return x;
}

static void pair_forward(fixture *f, const ls_kernels *v, const outcome *to, int64_t q, int64_t k)
{
    ls_attention_fwd a = forward_args(f, to);
    int64_t n = f->s.chunk;

    a.q = chunk_of(f, f->type, a.q, q);
    a.k = chunk_of(f, f->type, a.k, k);
    a.v = chunk_of(f, f->type, a.v, k);
    a.o = chunk_of(f, LS_F32, a.o, q);
    a.lse += q * n;
    a.start = a.start ? a.start + q * n : NULL;
    a.T = n;
    a.pair = (ls_attention_pair){
        .on = true, .join = q != k, .q_first = q * n, .k_first = k * n, .row = f->T};
    v->attention_fwd(f->c.stream, &a);
}

static void pair_backward(fixture *f, const ls_kernels *v, ls_attention_bwd a, int64_t q, int64_t k)
{
    int64_t n = f->s.chunk;

    a.q = chunk_of(f, f->type, a.q, q);
    a.k = chunk_of(f, f->type, a.k, k);
    a.v = chunk_of(f, f->type, a.v, k);
    a.o = chunk_of(f, f->type, a.o, q);
    a.dout = chunk_of(f, f->type, a.dout, q);
    a.dq = chunk_of(f, LS_F32, a.dq, q);
    a.dk = chunk_of(f, LS_F32, a.dk, k);
    a.dv = chunk_of(f, LS_F32, a.dv, k);
    a.lse += q * n;
    a.start = a.start ? a.start + q * n : NULL;
    a.T = n;
    a.pair = (ls_attention_pair){.on = true, .q_first = q * n, .k_first = k * n, .row = f->T};
    v->attention_bwd(f->c.stream, &a);
}

/* seen: the whole's o and lse, for the gradient. */
static void pairs(fixture *f, const ls_kernels *v, const outcome *seen, const outcome *to)
{
    ls_attention_bwd back = backward_args(f, seen, to);

    back.T = f->s.chunk;
    back.scratch = scratch(f, v, &back);
    back.T = f->T;
    for (int64_t q = 0; q < f->s.chunks; q++) {
        pair_forward(f, v, to, q, q);
        for (int64_t i = 0; i < q; i++)
            pair_forward(f, v, to, q, f->s.late ? i : q - 1 - i);
        for (int64_t k = 0; k <= q; k++)
            pair_backward(f, v, back, q, k);
    }
}

static float value(ls_dtype type, const void *x, int64_t i)
{
    return type == LS_F32 ? ((const float *)x)[i] : ls_half_value(((const uint16_t *)x)[i]);
}

static void check_near(const fixture *f, const char *table, const char *name, const ls_heads *got,
                       const ls_heads *want, double tolerance)
{
    int64_t n = f->s.B * got->batch;
    double room = f->type == LS_F32 ? tolerance : 1.0 / 64; /* what bf16 rounds off */

    for (int64_t i = 0; i < n; i++) {
        double a = (double)value(LS_F32, got->p, i), b = (double)value(f->type, want->p, i);
        if (!(fabs(a - b) <= room * (1 + fabs(b))))
            ls_test_fail(__FILE__, __LINE__,
                         "%s: %s[%lld] is %g of pairs and %g at once (chunk %lld, D %lld)", table,
                         name, (long long)i, a, b, (long long)f->s.chunk, (long long)f->s.D);
    }
}

static void check_with(shape s, ls_dtype type, const ls_kernels *v)
{
    double forward = 4 * ls_kernel_rows[LS_ROW_ATTENTION_FWD].tolerance;
    double backward = 4 * ls_kernel_rows[LS_ROW_ATTENTION_BWD].tolerance;
    fixture f;

    begin(&f, s, type);
    outcome want = outputs(&f, type, false), got = outputs(&f, LS_F32, true);
    whole(&f, v, &want);
    pairs(&f, v, &want, &got);
    ls_check_sync(&f.c);
    check_near(&f, v->name, "o", &got.o, &want.o, forward);
    ls_check_near("lse", got.lse, want.lse, s.B * s.H * f.T, forward);
    check_near(&f, v->name, "dq", &got.dq, &want.dq, backward);
    check_near(&f, v->name, "dk", &got.dk, &want.dk, backward);
    check_near(&f, v->name, "dv", &got.dv, &want.dv, backward);
    ls_check_end(&f.c);
}

static void check_shape(shape s)
{
    ls_kernels versions[LS_CHECK_TABLES];
    int n = ls_check_tables(versions);

    if (s.chunk < 40) /* it is slow */
        check_with(s, LS_F32, ls_check_reference());
    for (int i = 0; i < n; i += ls_test_stride(n)) {
        check_with(s, LS_F32, &versions[i]);
        check_with(s, LS_BF16, &versions[i]);
    }
}

LS_TEST_SECONDS(attention_pairs_join_to_attention, 120)
{
    static const int64_t chunks[] = {1, 5, 16, 64, 70};

    for (size_t i = 0; i < LS_COUNT(chunks); i++) {
        check_shape((shape){
            .B = 2, .chunk = chunks[i], .chunks = 3, .H = 2, .Hkv = 1, .D = 16, .late = i % 2});
        check_shape((shape){.B = 1,
                            .chunk = chunks[i],
                            .chunks = 3,
                            .H = 4,
                            .Hkv = 2,
                            .D = 20,
                            .drop = 0.3f,
                            .late = i % 2});
    }
    check_shape((shape){.B = 1, .chunk = 40, .chunks = 2, .H = 2, .Hkv = 2, .D = 80});
}

/* Also where some queries, or all of a tile, see nothing of an earlier chunk. */
LS_TEST_SECONDS(attention_pairs_know_window_and_documents, 120)
{
    static const int64_t windows[] = {0, 1, 7, 90};

    for (size_t i = 0; i < LS_COUNT(windows); i++)
        for (int start = 0; start < 2; start++)
            check_shape((shape){.B = 1 + start,
                                .chunk = i % 2 ? 66 : 30,
                                .chunks = 3,
                                .H = 2,
                                .Hkv = 1,
                                .D = 20,
                                .window = windows[i],
                                .start = start,
                                .drop = start ? 0.2f : 0,
                                .late = i % 2});
}

/* Bits of pairs do not depend on the instruction set. */
LS_TEST_SECONDS(attention_pairs_have_equal_bits_in_all_versions, 120)
{
    shape s = {.B = 1, .chunk = 70, .chunks = 3, .H = 2, .Hkv = 1, .D = 20, .drop = 0.1f};
    ls_kernels versions[LS_CHECK_TABLES];
    int n = ls_check_tables(versions);
    int64_t bytes = 0;
    float *first = NULL;

    for (int i = 0; i < n; i++) {
        fixture f;
        begin(&f, s, LS_F32);
        outcome seen = outputs(&f, LS_F32, false), got = outputs(&f, LS_F32, true);
        whole(&f, &versions[i], &seen);
        pairs(&f, &versions[i], &seen, &got);
        ls_check_sync(&f.c);
        bytes = s.B * got.o.batch * (int64_t)sizeof(float);
        if (i == 0) {
            first = ls_mem_array((size_t)(2 * bytes), 1);
            LS_CHECK(first);
            memcpy(first, got.o.p, (size_t)bytes);
            memcpy((char *)first + bytes, got.dq.p, (size_t)bytes);
        } else {
            ls_check_same("o", got.o.p, first, bytes);
            ls_check_same("dq", got.dq.p, (char *)first + bytes, bytes);
        }
        ls_check_end(&f.c);
    }
    ls_mem_free(first);
}
