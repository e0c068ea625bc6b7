/* qkv.c -- splitting the packed product into heads, with norm and rotation, sixteen pairs at a
 * time.
 *
 * Tasks are runs of tokens. The angles of a position lie as (cosine, sine) pairs; they are parted
 * once per token and then serve all its heads. Turning back (the gradient) is turning with the sine
 * negated. Each element is read before its place may be written, so a view of the packed tensor
 * itself is a valid target.
 *
 * With norms, forward writes a head x rstd w to its place and turns it there. Backward turns a head
 * back into a worker's memory (dy) and goes on as norm.c does for RMS: with h = x rstd and g = dy
 * w, the gradient is rstd (g - h mean(g h)), and the weight's is the sum of dy h over rows and
 * heads: row after row and head after head inside a chunk of LS_QKV_CHUNK_TOKENS tokens of a leaf,
 * then along the tree over chunks, then along the tree over leaves. */
#include "kernel/cpu/rows_attention.h"
#include "kernel/cpu/simd/vec.h"

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
    float *dy;                      /* [D] a head turned back */
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

static void turn(const float *x, float *y, const work *w, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i += LS_LANES) {
        int64_t n = pairs - i;
        ls_v16 c = v_load_most(w->cosines + i, n), s = v_load_most(w->sines + i, n);
        ls_v16 minus = v_load_most(w->minus + i, n);
        ls_v16 first = v_load_most(x + i, n), second = v_load_most(x + pairs + i, n);
        v_store_most(y + i, n, v_fma(first, c, v_mul(second, minus)));
        v_store_most(y + pairs + i, n, v_fma(second, c, v_mul(first, s)));
    }
}

/* y = x rstd weight; returns rstd. */
static float normalise(const float *x, float *y, const float *weight, int64_t D, float eps)
{
    ls_v16 square = v_set(0);

    for (int64_t i = 0; i < D; i += LS_LANES) {
        ls_v16 v = v_load_most(x + i, D - i);
        square = v_fma(v, v, square);
    }
    float rstd = 1.0f / sqrtf(v_sum(square) * (1.0f / (float)D) + eps);
    for (int64_t i = 0; i < D; i += LS_LANES) {
        ls_v16 h = v_mul(v_load_most(x + i, D - i), v_set(rstd));
        v_store_most(y + i, D - i, v_mul(h, v_load_most(weight + i, D - i)));
    }
    return rstd;
}

/* dx from dy, which may be in the same place; x is what was normalised. Adds dy h to sums. */
static void normalise_back(const float *dy, const float *x, float *dx, const float *weight,
                           int64_t D, float rstd, float *sums)
{
    ls_v16 total = v_set(0), k = v_set(rstd);

    for (int64_t i = 0; i < D; i += LS_LANES) {
        ls_v16 d = v_load_most(dy + i, D - i), h = v_mul(v_load_most(x + i, D - i), k);
        total = v_fma(v_mul(d, v_load_most(weight + i, D - i)), h, total);
        if (sums)
            v_store(sums + i, v_fma(d, h, v_load(sums + i)));
    }
    ls_v16 minus = v_set(-(v_sum(total) * (1.0f / (float)D)));
    for (int64_t i = 0; i < D; i += LS_LANES) {
        ls_v16 h = v_mul(v_load_most(x + i, D - i), k);
        ls_v16 g = v_mul(v_load_most(dy + i, D - i), v_load_most(weight + i, D - i));
        v_store_most(dx + i, D - i, v_mul(v_fma(h, minus, g), k));
    }
}

/* Head n of q and k of token `row`: from the packed place at to its own, or back. */
static void one_head(const job *j, const work *w, int64_t row, int64_t n, int64_t at, float *head)
{
    const ls_qkv *a = j->a;
    const float *weight = n < a->H ? a->q_norm : a->k_norm;
    float *packed = (float *)a->packed + at, *rstd = NULL;
    int64_t pairs = a->D / 2;

    if (a->rstd)
        rstd = a->rstd + row * (a->H + a->Hkv) + n;
    if (j->forward) {
        const float *from = packed;
        if (weight) {
            float value = normalise(packed, head, weight, a->D, a->eps);
            from = head;
            if (rstd)
                *rstd = value;
        }
        if (a->rope)
            turn(from, head, w, pairs);
        else if (from != head)
            memcpy(head, from, (size_t)a->D * sizeof *head);
        return;
    }
    const float *dy = head;
    if (a->rope) {
        turn(head, weight ? w->dy : packed, w, pairs);
        dy = weight ? w->dy : packed;
    }
    if (weight)
        normalise_back(dy, (const float *)a->product + at, packed, weight, a->D, *rstd,
                       w->sums[n < a->H ? 0 : 1]);
    else if (dy != packed)
        memcpy(packed, dy, (size_t)a->D * sizeof *packed);
}

static void one_token(const job *j, int64_t row, work *w)
{
    const ls_qkv *a = j->a;
    int64_t b = row / a->T, t = row % a->T, turned = a->H + a->Hkv, pairs = a->D / 2;
    int64_t at = row * (turned + a->Hkv) * a->D;

    if (a->rope)
        part_angles(a->rope + (a->past + t) * pairs * 2, pairs, j->forward ? 1.0f : -1.0f, w);
    for (int64_t n = 0; n < turned; n++, at += a->D)
        one_head(j, w, row, n, at,
                 n < a->H ? ls_heads_at(&a->q, b, t, n) : ls_heads_at(&a->k, b, t, n - a->H));
    for (int64_t n = 0; n < a->Hkv; n++, at += a->D) {
        float *head = ls_heads_at(&a->v, b, t, n), *packed = (float *)a->packed + at;
        if (head != packed)
            memcpy(j->forward ? head : packed, j->forward ? packed : head,
                   (size_t)a->D * sizeof *head);
    }
}

static void run_tokens(void *context, int64_t index, int worker)
{
    const job *j = context;
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
        one_token(j, leaf * j->run_rows + i, &w);
}

/* p[0] = the sum over the perfect binary tree of n vectors that lie stride floats apart. */
static ls_v16 tree_sum(float *p, int64_t n, int64_t stride)
{
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i + step < n; i += 2 * step) {
            float *left = p + i * stride;
            v_store(left, v_add(v_load(left), v_load(left + step * stride)));
        }
    return v_load(p);
}

static void join_sums(const job *j)
{
    const ls_qkv *a = j->a;
    int64_t wide = ls_round_up(a->D, LS_LANES);
    float *out[2] = {a->dq_norm, a->dk_norm};

    for (int64_t i = 0; i < 2 * wide; i += LS_LANES) {
        float *p = (float *)a->scratch + i, *to = out[i / wide] + i % wide;
        for (int64_t leaf = 0; leaf < a->leaves; leaf++)
            tree_sum(p + leaf * j->runs * 2 * wide, j->runs, 2 * wide);
        ls_v16 sum = tree_sum(p, a->leaves, j->runs * 2 * wide);
        if (a->accumulate)
            sum = v_add(v_load_most(to, a->D - i % wide), sum);
        v_store_most(to, a->D - i % wide, sum);
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
    ls_pool_run(ls_stream_pool(stream), run_tokens, &j, leaves * j.runs);
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
