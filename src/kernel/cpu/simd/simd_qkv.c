/* simd_qkv.c -- splitting the packed product into heads, with norm and rotation, sixteen pairs at a
 * time.
 *
 * Tasks are runs of tokens. The angles of a position lie as (cosine, sine) pairs; they are parted
 * once per token and then serve all its heads. Turning back (the gradient) is turning with the sine
 * negated. Each element is read before its place may be written, so a view of the packed tensor
 * itself is a valid target.
 *
 * With norms, forward writes a head x rstd w to a worker's memory and turns it from there to its
 * place, so that it is rounded to its type once. Backward turns a head back into that memory (dy)
 * and goes on as simd_norm.c does for RMS: with h = x rstd and g = dy w, the gradient is rstd (g - h
 * mean(g h)), and the weight's is the sum of dy h over rows and heads: row after row and head after
 * head inside a chunk of LS_QKV_CHUNK_TOKENS tokens of a leaf, then along the tree over chunks,
 * then along the tree over leaves.
 *
 * A norm over heads of several ranks is two rows, with a sum over these ranks between them: one
 * leaves its sum of x^2 (backward of g h), the other reads that of all. */
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/chunk_tree.h"

enum { RUN = LS_QKV_CHUNK_TOKENS }; /* tokens of one task */

typedef struct job {
    ls_stream *stream;
    const ls_qkv *a;
    bool forward;
    int64_t run_rows, runs; /* tokens of a leaf and tasks that it takes; one leaf without sums */
} job;

/* A worker's memory. */
typedef struct work {
    float *cosines, *sines, *minus; /* of one position; minus[i] = -sines[i] */
    float *turned;                  /* [D] a head between norm and rotation */
    float *sums[2];                 /* [D rounded up] this task's dq_norm and dk_norm, or NULL */
} work;

static void part_angles(const float *rope, int64_t pairs, float sign, work *w)
{
    for (int64_t i = 0; i < pairs; i++) {
        w->cosines[i] = rope[2 * i];
        w->sines[i] = sign * rope[2 * i + 1];
        w->minus[i] = -w->sines[i];
    }
}

/* y = x turned; they have types of their own and may be in the same place. */
LS_INLINE void turn(const ls_dtype from, const void *x, const ls_dtype to, void *y, const work *w,
                    int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i += LS_LANES) {
        int64_t n = pairs - i;
        ls_v16 c = v_load_most(w->cosines + i, n), s = v_load_most(w->sines + i, n);
        ls_v16 minus = v_load_most(w->minus + i, n);
        ls_v16 first = v_load_most_as(from, x, i, n);
        ls_v16 second = v_load_most_as(from, x, pairs + i, n);
        v_store_most_as(to, y, i, n, v_fma(first, c, v_mul(second, minus)));
        v_store_most_as(to, y, pairs + i, n, v_fma(second, c, v_mul(first, s)));
    }
}

LS_INLINE float sum_of_squares(const ls_dtype type, const void *x, int64_t D)
{
    ls_v16 square = v_set(0);

    for (int64_t i = 0; i < D; i += LS_LANES) {
        ls_v16 v = v_load_most_as(type, x, i, D - i);
        square = v_fma(v, v, square);
    }
    return v_sum(square);
}

/* y = x rstd weight. */
LS_INLINE void normalise(const ls_dtype type, const void *x, const ls_dtype to, void *y,
                         const void *weight, int64_t D, float rstd)
{
    for (int64_t i = 0; i < D; i += LS_LANES) {
        ls_v16 h = v_mul(v_load_most_as(type, x, i, D - i), v_set(rstd));
        v_store_most_as(to, y, i, D - i, v_mul(h, v_load_most_as(type, weight, i, D - i)));
    }
}

/* What the gradient of a head's norm reads: dy (of a type of its own), what was normalised, the
 * weight. */
typedef struct normed {
    const void *dy, *x, *weight;
    float rstd;
} normed;

/* The sum of g h. Adds dy h to sums, where given. */
LS_INLINE float sum_of_products(const ls_dtype type, const ls_dtype dy_type, const normed *r,
                                int64_t D, float *sums)
{
    ls_v16 total = v_set(0), k = v_set(r->rstd);

    for (int64_t i = 0; i < D; i += LS_LANES) {
        ls_v16 d = v_load_most_as(dy_type, r->dy, i, D - i);
        ls_v16 h = v_mul(v_load_most_as(type, r->x, i, D - i), k);
        total = v_fma(v_mul(d, v_load_most_as(type, r->weight, i, D - i)), h, total);
        if (sums)
            v_store(sums + i, v_fma(d, h, v_load(sums + i)));
    }
    return v_sum(total);
}

/* dx from dy, which may be in the same place; mean is that of g h. */
LS_INLINE void normalise_back(const ls_dtype type, const ls_dtype dy_type, const normed *r,
                              void *dx, int64_t D, float mean)
{
    ls_v16 minus = v_set(-mean), k = v_set(r->rstd);

    for (int64_t i = 0; i < D; i += LS_LANES) {
        ls_v16 h = v_mul(v_load_most_as(type, r->x, i, D - i), k);
        ls_v16 g = v_mul(v_load_most_as(dy_type, r->dy, i, D - i),
                         v_load_most_as(type, r->weight, i, D - i));
        v_store_most_as(type, dx, i, D - i, v_mul(v_fma(h, minus, g), k));
    }
}

LS_INLINE int64_t size_of(const ls_dtype type)
{
    return type == LS_BF16 ? 2 : 4;
}

/* Where the values of head h at position t of sequence b begin. */
LS_INLINE void *head_at(const ls_dtype type, const ls_heads *heads, int64_t b, int64_t t, int64_t h)
{
    return (char *)heads->p +
           (b * heads->batch + t * heads->time + h * heads->head) * size_of(type);
}

/* Statistics of a head: rstd may be NULL, sum is there where the row is in parts. */
typedef struct stats {
    float *rstd, *sum;
} stats;

/* The norm of a head: to its place, or where it is turned, to w->turned. */
LS_INLINE void norm_forward(const ls_dtype type, const ls_qkv *a, const work *w, const void *packed,
                            const void *weight, void *head, const stats *at)
{
    float square = a->part == LS_QKV_APPLY ? *at->sum : sum_of_squares(type, packed, a->D);

    if (a->part == LS_QKV_SUMS) {
        *at->sum = square;
        return;
    }
    float rstd = 1.0f / sqrtf(square * (1.0f / (float)ls_qkv_normed(a)) + a->eps);
    if (a->rope)
        normalise(type, packed, LS_F32, w->turned, weight, a->D, rstd);
    else
        normalise(type, packed, type, head, weight, a->D, rstd);
    if (at->rstd)
        *at->rstd = rstd;
}

/* A head of q or k from its place in packed to its own. Between norm and rotation it is not rounded
 * to its type. */
LS_INLINE void head_forward(const ls_dtype type, const ls_qkv *a, const work *w, const void *packed,
                            const void *weight, void *head, const stats *at)
{
    int64_t pairs = a->D / 2;

    if (weight) {
        norm_forward(type, a, w, packed, weight, head, at);
        if (a->rope)
            turn(LS_F32, w->turned, type, head, w, pairs);
    } else if (a->rope) {
        turn(type, packed, type, head, w, pairs);
    } else if (packed != head) {
        memcpy(head, packed, (size_t)(a->D * size_of(type)));
    }
}

/* Back through the norm of a head. */
LS_INLINE void norm_backward(const ls_dtype type, const ls_dtype dy_type, const ls_qkv *a,
                             const normed *r, void *packed, float *sums, const stats *at)
{
    float total = sum_of_products(type, dy_type, r, a->D, sums);

    if (a->part == LS_QKV_SUMS) {
        *at->sum = total;
        return;
    }
    total = a->part == LS_QKV_APPLY ? *at->sum : total;
    normalise_back(type, dy_type, r, packed, a->D, total * (1.0f / (float)ls_qkv_normed(a)));
}

/* The gradient of a head of q or k back to its place in packed. */
LS_INLINE void head_backward(const ls_dtype type, const ls_qkv *a, const work *w, const void *head,
                             const normed *r, void *packed, float *sums, const stats *at)
{
    int64_t pairs = a->D / 2;
    normed back = *r;

    if (r->weight && a->rope) {
        turn(type, head, LS_F32, w->turned, w, pairs);
        back.dy = w->turned;
        norm_backward(type, LS_F32, a, &back, packed, sums, at);
    } else if (r->weight) {
        back.dy = head;
        norm_backward(type, type, a, &back, packed, sums, at);
    } else if (a->rope) {
        turn(type, head, type, packed, w, pairs);
    } else if (packed != head) {
        memcpy(packed, head, (size_t)(a->D * size_of(type)));
    }
}

/* Head n of q and k of token `row`: from the packed place at to its own, or back. */
LS_INLINE void one_head(const ls_dtype type, const job *j, const work *w, int64_t row, int64_t n,
                        int64_t at, void *head)
{
    const ls_qkv *a = j->a;
    const void *weight = n < a->H ? a->q_norm : a->k_norm;
    char *packed = (char *)a->packed + at * size_of(type);
    int64_t stat = row * (a->H + a->Hkv) + n;
    stats stat_at = {a->rstd ? a->rstd + stat : NULL, a->sums ? a->sums + stat : NULL};

    if (j->forward) {
        head_forward(type, a, w, packed, weight, head, &stat_at);
        return;
    }
    normed r = {.weight = weight};
    if (weight) {
        r.x = (const char *)a->product + at * size_of(type);
        r.rstd = *stat_at.rstd;
    }
    head_backward(type, a, w, head, &r, packed, w->sums[n < a->H ? 0 : 1], &stat_at);
}

LS_INLINE void one_token(const ls_dtype type, const job *j, int64_t row, work *w)
{
    const ls_qkv *a = j->a;
    int64_t b = row / a->T, t = row % a->T, turned = a->H + a->Hkv, pairs = a->D / 2;
    int64_t at = row * ls_qkv_ld(a);

    if (a->rope)
        part_angles(a->rope + (a->past + t) * pairs * 2, pairs, j->forward ? 1.0f : -1.0f, w);
    for (int64_t n = 0; n < turned; n++, at += a->D)
        one_head(type, j, w, row, n, at,
                 n < a->H ? head_at(type, &a->q, b, t, n) : head_at(type, &a->k, b, t, n - a->H));
    for (int64_t n = 0; n < a->Hkv; n++, at += a->D) {
        void *head = head_at(type, &a->v, b, t, n),
             *packed = (char *)a->packed + at * size_of(type);
        if (head != packed)
            memcpy(j->forward ? head : packed, j->forward ? packed : head,
                   (size_t)(a->D * size_of(type)));
    }
}

LS_INLINE void run_tokens(const ls_dtype type, const job *j, int64_t index, int worker)
{
    const ls_qkv *a = j->a;
    int64_t pairs = a->D / 2, wide = ls_round_up(a->D, LS_LANES);
    int64_t leaf = index / j->runs, first = index % j->runs * RUN;
    float *memory = ls_stream_thread_scratch(j->stream, worker);
    work w = {memory, memory + pairs, memory + 2 * pairs, memory + 3 * pairs, {NULL, NULL}};

    if (!j->forward && a->dq_norm) {
        w.sums[0] = (float *)a->scratch + index * 2 * wide;
        w.sums[1] = w.sums[0] + wide;
        memset(w.sums[0], 0, (size_t)(2 * wide) * sizeof *w.sums[0]);
    }
    for (int64_t i = first; i < ls_min_i64(first + RUN, j->run_rows); i++)
        one_token(type, j, leaf * j->run_rows + i, &w);
}

LS_TYPED_TASKS(run, run_tokens, context, index, worker)

static void join_sums(const job *j)
{
    const ls_qkv *a = j->a;
    int64_t wide = ls_round_up(a->D, LS_LANES);
    float *out[2] = {a->dq_norm, a->dk_norm};

    for (int64_t i = 0; i < 2 * wide; i += LS_LANES) {
        if (!out[i / wide])
            break; /* queries alone */
        tree_join((float *)a->scratch + i, a->leaves, j->runs, 2 * wide, a->accumulate,
                  out[i / wide] + i % wide, a->D - i % wide);
    }
}

static void run_row(ls_stream *stream, const ls_qkv *a, bool forward)
{
    bool sums = !forward && a->dq_norm;
    int64_t leaves = sums ? a->leaves : 1;
    job j = {stream, a, forward, a->B * a->T / leaves, 0};

    ls_qkv_check(a, forward);
    LS_BUG_IF((a->D / 2 * 3 + a->D) * 4 > LS_STREAM_THREAD_BYTES, "D is %lld", (long long)a->D);
    j.runs = (j.run_rows + RUN - 1) / RUN;
    ls_pool_run(ls_stream_pool(stream), a->type == LS_BF16 ? run_bf16 : run_f32, &j,
                leaves * j.runs);
    if (sums)
        join_sums(&j);
}

void LS_ISA_NAME(ls_qkv_fwd_row)(ls_stream *stream, const ls_qkv *a)
{
    run_row(stream, a, true);
}

void LS_ISA_NAME(ls_qkv_bwd_row)(ls_stream *stream, const ls_qkv *a)
{
    run_row(stream, a, false);
}
