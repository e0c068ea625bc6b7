/* cudnn_attention.c -- does cuDNN's plain C graph API run fused causal attention, and how fast?
 *
 * The probe builds the forward and the backward pass of causal attention as operation graphs
 * (matmul, scale, mask, softmax, matmul), lets cuDNN's heuristics choose engines, checks the
 * results against a plain fp32 reference and times them. Queries, keys and values are views into
 * one packed tensor [B, T, (H + 2 Hkv) D]; so are their gradients. It also answers what a training
 * program must know before it depends on such a plan: what it costs to build, how much memory it
 * needs, whether it can be saved and loaded, captured in a CUDA graph, and repeated bit by bit.
 * docs/design/cuda-attention.md holds the findings.
 *
 * Build: gcc -std=c17 -D_GNU_SOURCE -O3 -Wall -Wextra -I/usr/local/cuda/include \
 *            bench/gpu/cudnn_attention.c bench/gpu/cugraph.c -o cudnn_attention \
 *            -L/usr/local/cuda/lib64 -lcudnn -lcudart -lm -lpthread
 * Run:   ./cudnn_attention                            all shapes: check and time
 *        ./cudnn_attention start DIR THREADS B H HKV T D  the start-up cost of one shape alone
 *        DIR holds saved plans: those found are loaded, others built and saved; "-" for none.
 *        THREADS is 1 or 2: the forward and backward plans one after the other or together.
 *        The libraries are found through LD_LIBRARY_PATH.
 *
 * A failed cuDNN call prints its reason and ends that experiment only: "not supported" is an
 * answer here. A failed CUDA call ends the program. */
#include "cugraph.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    WARM_UPS = 10,
    REPEATS = 50,
};

/* Numbers of the tensors that live in memory. */
enum {
    ID_Q = 1,
    ID_K,
    ID_V,
    ID_O,
    ID_STATS, /* log-sum-exp of each row, fp32 */
    ID_DO,
    ID_DQ,
    ID_DK,
    ID_DV,
    ID_DELTA,  /* sum over d of dO * O, fp32 scratch of the backward pass */
    ID_DQ_ACC, /* dQ in fp32, added to by many blocks: absent in the ordered graph */
    ID_SCALE,  /* these three are scalars in host memory */
    ID_NEG_INF,
    ID_ONE,
    ID_END,
};

typedef struct shape {
    int64_t B, H, Hkv, T, D;
} shape;

typedef struct buffers {
    void *ptr[ID_END];
    void *qkv, *dqkv; /* device, packed bf16 */
    float scale, neg_inf, one;
    int64_t qkv_elems, out_elems, stat_elems;
} buffers;

/* ---------------------------------------------------------------- small tools */

static void cuda_check(cudaError_t err, const char *what)
{
    if (err == cudaSuccess)
        return;
    fprintf(stderr, "cannot %s: %s\n", what, cudaGetErrorString(err));
    exit(1);
}

static void *host_alloc(size_t bytes)
{
    void *p = malloc(bytes);

    if (!p) {
        fprintf(stderr, "cannot allocate %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

static void *device_alloc(size_t bytes)
{
    void *p = NULL;

    cuda_check(cudaMalloc(&p, bytes ? bytes : 1), "allocate device memory");
    return p;
}

static float from_bf16(uint16_t v)
{
    uint32_t bits = (uint32_t)v << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* About normal with unit variance: four 16-bit pieces of one random word, summed. */
static void fill_normal(uint16_t *out, int64_t count, uint64_t seed)
{
    uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;

    for (int64_t i = 0; i < count; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        float sum = (float)(s & 0xffff) + (float)((s >> 16) & 0xffff) +
                    (float)((s >> 32) & 0xffff) + (float)(s >> 48);
        out[i] = to_bf16((sum * (1.0f / 65536.0f) - 2.0f) * 1.7320508f);
    }
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static float median(float *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return n % 2 ? v[n / 2] : 0.5f * (v[n / 2 - 1] + v[n / 2]);
}

/* ---------------------------------------------------------------- the graphs */

/* heads of the packed rows [q heads | k heads | v heads], as [B, heads, T, D] */
static ls_culayout packed(shape s, int64_t heads)
{
    int64_t width = (s.H + 2 * s.Hkv) * s.D;

    return (ls_culayout){{s.B, heads, s.T, s.D}, {s.T * width, s.D, width, 1}};
}

static ls_culayout output_layout(shape s)
{
    return (ls_culayout){{s.B, s.H, s.T, s.D}, {s.T * s.H * s.D, s.D, s.H * s.D, 1}};
}

static void build_forward(ls_cugraph *g, shape s)
{
    ls_culayout scores = ls_cugraph_dense(s.B, s.H, s.T, s.T);
    ls_culayout rows = ls_cugraph_dense(s.B, s.H, s.T, 1);
    ls_cudesc q = ls_cugraph_real(g, ID_Q, CUDNN_DATA_BFLOAT16, packed(s, s.H));
    ls_cudesc kt =
        ls_cugraph_real(g, ID_K, CUDNN_DATA_BFLOAT16, ls_cugraph_transposed(packed(s, s.Hkv)));
    ls_cudesc v = ls_cugraph_real(g, ID_V, CUDNN_DATA_BFLOAT16, packed(s, s.Hkv));
    ls_cudesc o = ls_cugraph_real(g, ID_O, CUDNN_DATA_BFLOAT16, output_layout(s));
    ls_cudesc stats = ls_cugraph_real(g, ID_STATS, CUDNN_DATA_FLOAT, rows);
    ls_cudesc raw = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, scores);
    ls_cudesc top = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, rows);
    ls_cudesc sum = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, rows);
    ls_cudesc p = ls_cugraph_virtual(g, CUDNN_DATA_BFLOAT16, scores);

    ls_cugraph_matmul(g, q, kt, raw);
    ls_cudesc x =
        ls_cugraph_map(g, CUDNN_POINTWISE_MUL, raw, ls_cugraph_scalar(g, ID_SCALE), scores);
    x = ls_cugraph_mask(g, x, ls_cugraph_scalar(g, ID_NEG_INF), scores);
    ls_cugraph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, x, top);
    x = ls_cugraph_map(g, CUDNN_POINTWISE_SUB, x, top, scores);
    x = ls_cugraph_map(g, CUDNN_POINTWISE_EXP, x, NULL, scores);
    ls_cugraph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, x, sum);
    ls_cudesc log_sum = ls_cugraph_map(g, CUDNN_POINTWISE_LOG, sum, NULL, rows);
    ls_cugraph_apply(g, CUDNN_POINTWISE_ADD, top, log_sum, stats);
    /* the second product must read the input type: the engines accept no other */
    ls_cugraph_apply(g, CUDNN_POINTWISE_DIV, x, sum, p);
    ls_cugraph_matmul(g, p, v, o);
}

/* out[kv heads] = at * b, summed over the query heads that share a key head. */
static void matmul_grouped(ls_cugraph *g, shape s, ls_cudesc at, ls_cudesc b, ls_cudesc out)
{
    if (s.H == s.Hkv) {
        ls_cugraph_matmul(g, at, b, out);
        return;
    }
    ls_cudesc full =
        ls_cugraph_virtual(g, CUDNN_DATA_BFLOAT16, ls_cugraph_dense(s.B, s.H, s.T, s.D));
    ls_cugraph_matmul(g, at, b, full);
    ls_cugraph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, full, out);
}

/* dQ = dS K. Two spellings, two algorithms: with an fp32 tensor in between, blocks add to it in
 * any order; written straight to dQ, cuDNN keeps dS in its workspace (B H T T bf16) and the sum
 * has one order. */
static void build_dq(ls_cugraph *g, shape s, ls_cudesc ds, ls_cudesc kt, bool deterministic)
{
    ls_cudesc k = ls_cugraph_reshape(g, kt, packed(s, s.Hkv));
    ls_cudesc dq = ls_cugraph_real(g, ID_DQ, CUDNN_DATA_BFLOAT16, packed(s, s.H));

    if (deterministic) {
        ls_cugraph_matmul(g, ds, k, dq);
        return;
    }
    ls_cudesc acc =
        ls_cugraph_real(g, ID_DQ_ACC, CUDNN_DATA_FLOAT, ls_cugraph_dense(s.B, s.H, s.T, s.D));
    ls_cugraph_matmul(g, ds, k, acc);
    ls_cugraph_apply(g, CUDNN_POINTWISE_IDENTITY, acc, NULL, dq);
}

/* delta = sum over d of dO * O */
static ls_cudesc build_delta(ls_cugraph *g, shape s, ls_cudesc dout)
{
    ls_culayout rows = ls_cugraph_dense(s.B, s.H, s.T, 1);
    ls_cudesc o = ls_cugraph_real(g, ID_O, CUDNN_DATA_BFLOAT16, output_layout(s));
    ls_cudesc sum = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, rows);
    ls_cudesc delta = ls_cugraph_real(g, ID_DELTA, CUDNN_DATA_FLOAT, rows);
    ls_cudesc prod =
        ls_cugraph_map(g, CUDNN_POINTWISE_MUL, dout, o, ls_cugraph_dense(s.B, s.H, s.T, s.D));

    ls_cugraph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, prod, sum);
    /* A product with one: the place of the dropout factor in the pattern. Without it the plan is
     * accepted all the same and delta is never written. */
    ls_cugraph_apply(g, CUDNN_POINTWISE_MUL, sum, ls_cugraph_scalar(g, ID_ONE), delta);
    return delta;
}

static void build_backward(ls_cugraph *g, shape s, bool deterministic)
{
    ls_culayout scores = ls_cugraph_dense(s.B, s.H, s.T, s.T);
    ls_cudesc dout = ls_cugraph_real(g, ID_DO, CUDNN_DATA_BFLOAT16, output_layout(s));
    ls_cudesc delta = build_delta(g, s, dout);
    ls_cudesc q = ls_cugraph_real(g, ID_Q, CUDNN_DATA_BFLOAT16, packed(s, s.H));
    ls_cudesc kt =
        ls_cugraph_real(g, ID_K, CUDNN_DATA_BFLOAT16, ls_cugraph_transposed(packed(s, s.Hkv)));
    ls_cudesc vt =
        ls_cugraph_real(g, ID_V, CUDNN_DATA_BFLOAT16, ls_cugraph_transposed(packed(s, s.Hkv)));
    ls_cudesc stats =
        ls_cugraph_real(g, ID_STATS, CUDNN_DATA_FLOAT, ls_cugraph_dense(s.B, s.H, s.T, 1));
    ls_cudesc dk = ls_cugraph_real(g, ID_DK, CUDNN_DATA_BFLOAT16, packed(s, s.Hkv));
    ls_cudesc dv = ls_cugraph_real(g, ID_DV, CUDNN_DATA_BFLOAT16, packed(s, s.Hkv));
    ls_cudesc scale = ls_cugraph_scalar(g, ID_SCALE);
    ls_cudesc raw = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, scores);
    ls_cudesc dp = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, scores);

    /* p again, from the saved statistics */
    ls_cugraph_matmul(g, q, kt, raw);
    ls_cudesc x = ls_cugraph_map(g, CUDNN_POINTWISE_MUL, raw, scale, scores);
    x = ls_cugraph_map(g, CUDNN_POINTWISE_SUB, x, stats, scores);
    x = ls_cugraph_mask(g, x, ls_cugraph_scalar(g, ID_NEG_INF), scores);
    ls_cudesc p = ls_cugraph_map(g, CUDNN_POINTWISE_EXP, x, NULL, scores);
    matmul_grouped(g, s, ls_cugraph_reshape(g, p, ls_cugraph_transposed(scores)), dout, dv);

    /* ds = p * (dO Vt - delta) * scale */
    ls_cugraph_matmul(g, dout, vt, dp);
    x = ls_cugraph_map(g, CUDNN_POINTWISE_SUB, dp, delta, scores);
    x = ls_cugraph_map(g, CUDNN_POINTWISE_MUL, x, p, scores);
    ls_cudesc ds = ls_cugraph_map(g, CUDNN_POINTWISE_MUL, x, scale, scores);
    matmul_grouped(g, s, ls_cugraph_reshape(g, ds, ls_cugraph_transposed(scores)), q, dk);
    build_dq(g, s, ds, kt, deterministic);
}

/* The one-operation forward pass. Up to 9.20 it has no attribute for a causal mask, so this only
 * tells whether the engine exists for the card; its time counts twice the work. */
static void build_single(ls_cugraph *g, shape s)
{
    ls_cudesc op = ls_cugraph_add(g, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
    ls_culayout rows = ls_cugraph_dense(s.B, s.H, s.T, 1);

    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,
                   ls_cugraph_real(g, ID_Q, CUDNN_DATA_BFLOAT16, packed(s, s.H)));
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
                   ls_cugraph_real(g, ID_K, CUDNN_DATA_BFLOAT16, packed(s, s.Hkv)));
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,
                   ls_cugraph_real(g, ID_V, CUDNN_DATA_BFLOAT16, packed(s, s.Hkv)));
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
                   ls_cugraph_real(g, ID_O, CUDNN_DATA_BFLOAT16, output_layout(s)));
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC,
                   ls_cugraph_real(g, ID_STATS, CUDNN_DATA_FLOAT, rows));
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, ls_cugraph_scalar(g, ID_SCALE));
    ls_cugraph_add_op(g, op, "finish attention operation");
}

/* ---------------------------------------------------------------- timing */

/* Median time of one execution; -1 when it cannot run. */
static float time_plan(ls_cugraph *g, const ls_cuplan *p, ls_cudesc pack, cudaStream_t stream)
{
    cudaEvent_t begin[REPEATS], end[REPEATS];
    float ms[REPEATS];

    for (int i = 0; i < WARM_UPS; i++)
        if (!ls_cugraph_ok(cudnnBackendExecute(g->handle, p->desc, pack), "execute"))
            return -1.0f;
    for (int i = 0; i < REPEATS; i++) {
        cuda_check(cudaEventCreate(&begin[i]), "create event");
        cuda_check(cudaEventCreate(&end[i]), "create event");
    }
    for (int i = 0; i < REPEATS; i++) {
        cuda_check(cudaEventRecord(begin[i], stream), "record event");
        cudnnBackendExecute(g->handle, p->desc, pack);
        cuda_check(cudaEventRecord(end[i], stream), "record event");
    }
    cuda_check(cudaStreamSynchronize(stream), "run the plan");
    for (int i = 0; i < REPEATS; i++) {
        cuda_check(cudaEventElapsedTime(&ms[i], begin[i], end[i]), "read event");
        cudaEventDestroy(begin[i]);
        cudaEventDestroy(end[i]);
    }
    return median(ms, REPEATS);
}

/* Host time of one call, queue kept short so that it never blocks. */
static double host_us(ls_cugraph *g, const ls_cuplan *p, ls_cudesc pack, cudaStream_t stream)
{
    double t0 = ls_cugraph_now_ms(), ms;

    for (int i = 0; i < 20; i++)
        cudnnBackendExecute(g->handle, p->desc, pack);
    ms = ls_cugraph_now_ms() - t0;
    cuda_check(cudaStreamSynchronize(stream), "run the plan");
    return ms * 1e3 / 20;
}

/* Capture one execution in a CUDA graph and replay it; returns the median replay time or -1. */
static float time_captured(ls_cugraph *g, const ls_cuplan *p, ls_cudesc pack, cudaStream_t stream)
{
    cudaGraph_t captured = NULL;
    cudaGraphExec_t exec = NULL;
    cudaEvent_t begin, end;
    float ms[REPEATS];
    bool ok;

    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
    ok = ls_cugraph_ok(cudnnBackendExecute(g->handle, p->desc, pack), "execute under capture");
    if (cudaStreamEndCapture(stream, &captured) != cudaSuccess || !ok)
        return -1.0f;
    cuda_check(cudaGraphInstantiate(&exec, captured, 0), "instantiate graph");
    cuda_check(cudaEventCreate(&begin), "create event");
    cuda_check(cudaEventCreate(&end), "create event");
    for (int i = 0; i < REPEATS; i++) {
        cuda_check(cudaEventRecord(begin, stream), "record event");
        cuda_check(cudaGraphLaunch(exec, stream), "launch graph");
        cuda_check(cudaEventRecord(end, stream), "record event");
        cuda_check(cudaStreamSynchronize(stream), "run graph");
        cuda_check(cudaEventElapsedTime(&ms[i], begin, end), "read event");
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(captured);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return median(ms, REPEATS);
}

/* ---------------------------------------------------------------- reference */

/* One key head of one sequence and the G query heads that share it, in fp32. */
typedef struct group {
    int64_t G, T, D;
    float *q, *k, *v, *dout; /* inputs: [G, T, D], [T, D], [T, D], [G, T, D] */
    float *o, *lse, *dq, *dk, *dv;
    float *memory;
} group;

static void group_init(group *r, shape s)
{
    int64_t G = s.H / s.Hkv, n = s.T * s.D;

    *r = (group){.G = G, .T = s.T, .D = s.D};
    r->memory = host_alloc((size_t)(4 * G * n + 4 * n + G * s.T) * sizeof(float));
    r->q = r->memory;
    r->dout = r->q + G * n;
    r->o = r->dout + G * n;
    r->dq = r->o + G * n;
    r->k = r->dq + G * n;
    r->v = r->k + n;
    r->dk = r->v + n;
    r->dv = r->dk + n;
    r->lse = r->dv + n;
    memset(r->memory, 0, (size_t)(4 * G * n + 4 * n + G * s.T) * sizeof(float));
}

static void group_release(group *r)
{
    free(r->memory);
}

/* [T, D] of one head, out of rows of the given width that begin at base. */
static void gather(float *out, const uint16_t *base, int64_t T, int64_t D, int64_t width)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++)
            out[t * D + d] = from_bf16(base[t * width + d]);
}

static void group_load(group *r, shape s, const uint16_t *qkv, const uint16_t *dout, int64_t b,
                       int64_t hk)
{
    int64_t width = (s.H + 2 * s.Hkv) * s.D;
    const uint16_t *rows = qkv + b * s.T * width;

    for (int64_t i = 0; i < r->G; i++) {
        int64_t h = hk * r->G + i;
        gather(r->q + i * s.T * s.D, rows + h * s.D, s.T, s.D, width);
        gather(r->dout + i * s.T * s.D, dout + b * s.T * s.H * s.D + h * s.D, s.T, s.D, s.H * s.D);
    }
    gather(r->k, rows + (s.H + hk) * s.D, s.T, s.D, width);
    gather(r->v, rows + (s.H + s.Hkv + hk) * s.D, s.T, s.D, width);
}

static float dot(const float *a, const float *b, int64_t n)
{
    float part[8] = {0};

    for (int64_t i = 0; i < n; i += 8)
        for (int64_t j = 0; j < 8; j++)
            part[j] += a[i + j] * b[i + j];
    return ((part[0] + part[4]) + (part[2] + part[6])) +
           ((part[1] + part[5]) + (part[3] + part[7]));
}

static void add_scaled(float *out, float a, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] += a * x[i];
}

/* Forward and backward of query row t of head i; p is scratch for t + 1 floats. */
static void group_row(group *r, int64_t i, int64_t t, float scale, float *p)
{
    int64_t D = r->D, at = (i * r->T + t) * D;
    const float *q = r->q + at, *dout = r->dout + at;
    float top = -INFINITY, sum = 0.0f;

    for (int64_t j = 0; j <= t; j++) {
        p[j] = dot(q, r->k + j * D, D) * scale;
        top = fmaxf(top, p[j]);
    }
    for (int64_t j = 0; j <= t; j++) {
        p[j] = expf(p[j] - top);
        sum += p[j];
    }
    r->lse[i * r->T + t] = top + logf(sum);
    for (int64_t j = 0; j <= t; j++) {
        p[j] /= sum;
        add_scaled(r->o + at, p[j], r->v + j * D, D);
    }
    float delta = dot(dout, r->o + at, D);
    for (int64_t j = 0; j <= t; j++) {
        float ds = p[j] * (dot(dout, r->v + j * D, D) - delta) * scale;
        add_scaled(r->dq + at, ds, r->k + j * D, D);
        add_scaled(r->dk + j * D, ds, q, D);
        add_scaled(r->dv + j * D, p[j], dout, D);
    }
}

static void group_compute(group *r, float scale)
{
    float *p = host_alloc((size_t)r->T * sizeof(float));

    for (int64_t i = 0; i < r->G; i++)
        for (int64_t t = 0; t < r->T; t++)
            group_row(r, i, t, scale, p);
    free(p);
}

/* ---------------------------------------------------------------- checks */

/* Host copies of what the device was given and what it returned. */
typedef struct results {
    uint16_t *qkv, *dout, *o, *dqkv;
    float *stats;
} results;

/* norm(got - ref) / norm(ref) over one head */
static double head_error(const uint16_t *base, int64_t width, const float *ref, int64_t T,
                         int64_t D)
{
    double diff = 0.0, norm = 0.0;

    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) {
            double e = (double)from_bf16(base[t * width + d]) - (double)ref[t * D + d];
            diff += e * e;
            norm += (double)ref[t * D + d] * (double)ref[t * D + d];
        }
    return sqrt(diff / norm);
}

typedef struct errors {
    double o, lse, dq, dk, dv;
} errors;

/* The larger of two, and not-a-number if either is. */
static double worse(double a, double b)
{
    return a >= b || isnan(a) ? a : b;
}

static void group_errors(const group *r, shape s, const results *got, int64_t b, int64_t hk,
                         errors *e)
{
    int64_t width = (s.H + 2 * s.Hkv) * s.D, n = s.T * s.D;
    const uint16_t *grad = got->dqkv + b * s.T * width;

    for (int64_t i = 0; i < r->G; i++) {
        int64_t h = hk * r->G + i;
        const uint16_t *o = got->o + b * s.T * s.H * s.D + h * s.D;
        const float *stats = got->stats + (b * s.H + h) * s.T;
        e->o = worse(e->o, head_error(o, s.H * s.D, r->o + i * n, s.T, s.D));
        e->dq = worse(e->dq, head_error(grad + h * s.D, width, r->dq + i * n, s.T, s.D));
        for (int64_t t = 0; t < s.T; t++)
            e->lse = worse(e->lse, fabs((double)stats[t] - (double)r->lse[i * s.T + t]));
    }
    e->dk = worse(e->dk, head_error(grad + (s.H + hk) * s.D, width, r->dk, s.T, s.D));
    e->dv = worse(e->dv, head_error(grad + (s.H + s.Hkv + hk) * s.D, width, r->dv, s.T, s.D));
}

static int64_t count_nan(const uint16_t *v, int64_t n)
{
    int64_t bad = 0;

    for (int64_t i = 0; i < n; i++)
        bad += (v[i] & 0x7fff) > 0x7f80;
    return bad;
}

/* Compare with the reference: every group of a small shape, the last group of a large one. */
static void check(shape s, const results *got, const buffers *m)
{
    errors e = {0};
    group r;
    int64_t groups = s.B * s.Hkv, first = s.T <= 256 ? 0 : groups - 1;
    int64_t bad = count_nan(got->dqkv, m->qkv_elems) + count_nan(got->o, m->out_elems);

    for (int64_t i = first; i < groups; i++) {
        group_init(&r, s);
        group_load(&r, s, got->qkv, got->dout, i / s.Hkv, i % s.Hkv);
        group_compute(&r, m->scale);
        group_errors(&r, s, got, i / s.Hkv, i % s.Hkv, &e);
        group_release(&r);
    }
    bool ok = e.o < 1e-2 && e.lse < 1e-3 && e.dq < 1e-2 && e.dk < 1e-2 && e.dv < 1e-2 && !bad;
    printf("  %s: error o %.2e lse %.1e (absolute) dq %.2e dk %.2e dv %.2e; unwritten %lld; "
           "%lld of %lld groups\n",
           ok ? "RIGHT" : "WRONG", e.o, e.lse, e.dq, e.dk, e.dv, (long long)bad,
           (long long)(groups - first), (long long)groups);
}

/* ---------------------------------------------------------------- experiments */

enum pass { FORWARD, BACKWARD, BACKWARD_ORDERED, SINGLE };

static const char *const pass_names[] = {"forward", "backward", "backward-ordered", "single"};

typedef struct bench {
    cudnnHandle_t handle;
    cudaStream_t stream;
    shape s;
    buffers m;
    results host;
} bench;

static void bench_begin(bench *b, shape s)
{
    buffers *m = &b->m;
    size_t row = (size_t)(s.B * s.H * s.T);

    b->s = s;
    *m = (buffers){.scale = 1.0f / sqrtf((float)s.D), .neg_inf = -INFINITY, .one = 1.0f};
    m->qkv_elems = s.B * s.T * (s.H + 2 * s.Hkv) * s.D;
    m->out_elems = (int64_t)row * s.D;
    m->stat_elems = (int64_t)row;
    m->qkv = device_alloc((size_t)m->qkv_elems * 2);
    m->dqkv = device_alloc((size_t)m->qkv_elems * 2);
    for (int i = 0; i < 3; i++) {
        int64_t head = i == 0 ? 0 : i == 1 ? s.H : s.H + s.Hkv;
        m->ptr[ID_Q + i] = (uint16_t *)m->qkv + head * s.D;
        m->ptr[ID_DQ + i] = (uint16_t *)m->dqkv + head * s.D;
    }
    m->ptr[ID_O] = device_alloc((size_t)m->out_elems * 2);
    m->ptr[ID_DO] = device_alloc((size_t)m->out_elems * 2);
    m->ptr[ID_STATS] = device_alloc(row * 4);
    m->ptr[ID_DELTA] = device_alloc(row * 4);
    m->ptr[ID_DQ_ACC] = device_alloc((size_t)m->out_elems * 4);
    m->ptr[ID_SCALE] = &m->scale;
    m->ptr[ID_NEG_INF] = &m->neg_inf;
    m->ptr[ID_ONE] = &m->one;
    b->host = (results){.qkv = host_alloc((size_t)m->qkv_elems * 2),
                        .dout = host_alloc((size_t)m->out_elems * 2),
                        .o = host_alloc((size_t)m->out_elems * 2),
                        .dqkv = host_alloc((size_t)m->qkv_elems * 2),
                        .stats = host_alloc(row * 4)};
    fill_normal(b->host.qkv, m->qkv_elems, (uint64_t)time(NULL));
    fill_normal(b->host.dout, m->out_elems, (uint64_t)time(NULL) + 1);
    cuda_check(cudaMemcpy(m->qkv, b->host.qkv, (size_t)m->qkv_elems * 2, cudaMemcpyHostToDevice),
               "copy in");
    cuda_check(
        cudaMemcpy(m->ptr[ID_DO], b->host.dout, (size_t)m->out_elems * 2, cudaMemcpyHostToDevice),
        "copy in");
}

static void bench_end(bench *b)
{
    void *const device[] = {b->m.qkv,           b->m.dqkv,          b->m.ptr[ID_O],
                            b->m.ptr[ID_DO],    b->m.ptr[ID_STATS], b->m.ptr[ID_DELTA],
                            b->m.ptr[ID_DQ_ACC]};

    for (size_t i = 0; i < sizeof(device) / sizeof(device[0]); i++)
        cuda_check(cudaFree(device[i]), "free device memory");
    free(b->host.qkv);
    free(b->host.dout);
    free(b->host.o);
    free(b->host.dqkv);
    free(b->host.stats);
}

/* All-ones bytes are not-a-number in bf16 and fp32: what stays so was not written. */
static void poison(bench *b, enum pass kind)
{
    if (kind == FORWARD || kind == SINGLE) {
        cuda_check(cudaMemset(b->m.ptr[ID_O], 0xff, (size_t)b->m.out_elems * 2), "poison");
        cuda_check(cudaMemset(b->m.ptr[ID_STATS], 0xff, (size_t)b->m.stat_elems * 4), "poison");
        return;
    }
    cuda_check(cudaMemset(b->m.dqkv, 0xff, (size_t)b->m.qkv_elems * 2), "poison");
    cuda_check(cudaMemset(b->m.ptr[ID_DELTA], 0xff, (size_t)b->m.stat_elems * 4), "poison");
    cuda_check(cudaMemset(b->m.ptr[ID_DQ_ACC], 0xff, (size_t)b->m.out_elems * 4), "poison");
}

/* Run from poisoned outputs, a few times; leave the last results in host memory.
 * Returns whether all runs gave the same bits. */
static bool run_checked(bench *b, ls_cugraph *g, const ls_cuplan *p, ls_cudesc pack, enum pass kind)
{
    bool forward = kind == FORWARD || kind == SINGLE, same = true;
    size_t bytes = (size_t)(forward ? b->m.out_elems : b->m.qkv_elems) * 2;
    uint16_t *out = forward ? b->host.o : b->host.dqkv;
    uint16_t *before = host_alloc(bytes);

    for (int i = 0; i < 4; i++) {
        poison(b, kind);
        cuda_check(cudaDeviceSynchronize(), "poison");
        if (!ls_cugraph_ok(cudnnBackendExecute(g->handle, p->desc, pack), "execute"))
            break;
        cuda_check(cudaDeviceSynchronize(), "run the plan");
        memcpy(before, out, bytes);
        cuda_check(
            cudaMemcpy(out, forward ? b->m.ptr[ID_O] : b->m.dqkv, bytes, cudaMemcpyDeviceToHost),
            "copy out");
        same = same && (i == 0 || memcmp(before, out, bytes) == 0);
    }
    if (forward)
        cuda_check(cudaMemcpy(b->host.stats, b->m.ptr[ID_STATS], (size_t)b->m.stat_elems * 4,
                              cudaMemcpyDeviceToHost),
                   "copy out");
    free(before);
    return same;
}

/* Time each plan, return the index of the fastest or -1. */
static int fastest(bench *b, ls_cugraph *g, ls_cuplan *plans, int count, void *workspace)
{
    float best_ms = INFINITY;
    int best = -1;

    for (int i = 0; i < count; i++) {
        double t0 = ls_cugraph_now_ms();
        ls_cudesc pack = ls_cugraph_bind(g, b->m.ptr, workspace);
        if (g->failed ||
            !ls_cugraph_ok(cudnnBackendExecute(g->handle, plans[i].desc, pack), "execute"))
            continue;
        cuda_check(cudaStreamSynchronize(b->stream), "run the plan");
        double first_ms = ls_cugraph_now_ms() - t0;
        float ms = time_plan(g, &plans[i], pack, b->stream);
        printf("  config %d: engine %lld%s%s, plan %.1f ms, first run %.1f ms, workspace %.1f MiB, "
               "%.3f ms\n",
               i, (long long)plans[i].engine, plans[i].nondeterministic ? " nondeterministic" : "",
               plans[i].compiles ? " compiled" : "", plans[i].finish_ms, first_ms,
               (double)plans[i].workspace_bytes / 1048576.0, (double)ms);
        if (ms > 0.0f && ms < best_ms) {
            best_ms = ms;
            best = i;
        }
    }
    return best;
}

static double flops(shape s, enum pass kind)
{
    double forward = 2.0 * (double)s.B * (double)s.H * (double)s.T * (double)s.T * (double)s.D;

    return kind == FORWARD ? forward : kind == SINGLE ? 2.0 * forward : 2.5 * forward;
}

static void report(bench *b, ls_cugraph *g, const ls_cuplan *p, void *workspace, enum pass kind)
{
    ls_cudesc pack = ls_cugraph_bind(g, b->m.ptr, workspace);
    bool same = run_checked(b, g, p, pack, kind);
    float ms = time_plan(g, p, pack, b->stream), again = time_plan(g, p, pack, b->stream);
    float captured = time_captured(g, p, pack, b->stream);
    double us = host_us(g, p, pack, b->stream);

    printf("  ROW %lldx%lldx%lldx%lldx%lld %-16s %.3f ms (again %.3f, captured %.3f, host %.1f us) "
           "%.0f TFLOP/s, workspace %.1f MiB, same bits: %s\n",
           (long long)b->s.B, (long long)b->s.H, (long long)b->s.Hkv, (long long)b->s.T,
           (long long)b->s.D, pass_names[kind], (double)ms, (double)again, (double)captured, us,
           flops(b->s, kind) / (double)ms * 1e-9, (double)p->workspace_bytes / 1048576.0,
           same ? "yes" : "NO");
    fflush(stdout);
}

static void build(ls_cugraph *g, shape s, enum pass kind)
{
    if (kind == FORWARD)
        build_forward(g, s);
    else if (kind == SINGLE)
        build_single(g, s);
    else
        build_backward(g, s, kind == BACKWARD_ORDERED);
}

static void experiment(bench *b, enum pass kind)
{
    ls_cugraph g;
    ls_cuplan plans[LS_CUGRAPH_PLANS];
    void *workspace;
    int64_t bytes = 0;
    int count, best;

    ls_cugraph_init(&g, b->handle);
    build(&g, b->s, kind);
    count = ls_cugraph_plans(&g, LS_CUGRAPH_PLANS, plans);
    printf(" %s: %d operations; graph %.1f ms, heuristics %.1f ms, %d plans\n", pass_names[kind],
           g.op_count, g.graph_ms, g.heuristics_ms, count);
    for (int i = 0; i < count; i++)
        bytes = plans[i].workspace_bytes > bytes ? plans[i].workspace_bytes : bytes;
    workspace = device_alloc((size_t)bytes);
    best = fastest(b, &g, plans, count, workspace);
    if (best >= 0)
        report(b, &g, &plans[best], workspace, kind);
    else
        printf("  ROW %s: not supported\n", pass_names[kind]);
    cuda_check(cudaDeviceSynchronize(), "finish");
    cuda_check(cudaFree(workspace), "free device memory");
    ls_cugraph_release(&g);
}

static void run_shape(bench *b, shape s)
{
    printf("shape B %lld H %lld Hkv %lld T %lld D %lld\n", (long long)s.B, (long long)s.H,
           (long long)s.Hkv, (long long)s.T, (long long)s.D);
    bench_begin(b, s);
    experiment(b, SINGLE);
    experiment(b, FORWARD);
    experiment(b, BACKWARD);
    check(s, &b->host, &b->m);
    experiment(b, BACKWARD_ORDERED);
    check(s, &b->host, &b->m);
    bench_end(b);
}

/* ---------------------------------------------------------------- start-up */

/* One plan to get ready in a process that has built nothing yet. */
typedef struct job {
    const char *dir;
    shape s;
    enum pass kind;
    double handle_ms, plan_ms;
    bool loaded, ok;
} job;

static void *run_job(void *arg)
{
    job *j = arg;
    ls_cugraph g;
    ls_cuplan p;
    cudnnHandle_t handle = NULL;
    char path[512];
    double t0 = ls_cugraph_now_ms();

    if (!ls_cugraph_ok(cudnnCreate(&handle), "create handle"))
        return NULL;
    double t1 = ls_cugraph_now_ms();
    snprintf(path, sizeof(path), "%s/%lld-%lld-%lld-%lld-%lld-%s.json", j->dir, (long long)j->s.B,
             (long long)j->s.H, (long long)j->s.Hkv, (long long)j->s.T, (long long)j->s.D,
             pass_names[j->kind]);
    ls_cugraph_init(&g, handle);
    j->loaded = j->ok = ls_cugraph_load(&g, path, &p);
    if (!j->loaded) {
        /* a plan of another cuDNN or card leaves a failed graph behind */
        ls_cugraph_release(&g);
        ls_cugraph_init(&g, handle);
        build(&g, j->s, j->kind);
        j->ok = ls_cugraph_plans(&g, 1, &p) == 1;
    }
    j->handle_ms = t1 - t0;
    j->plan_ms = ls_cugraph_now_ms() - t1;
    if (j->ok && !j->loaded && strcmp(j->dir, "-") != 0)
        ls_cugraph_save(&p, path);
    ls_cugraph_release(&g);
    cudnnDestroy(handle);
    return NULL;
}

static int run_start(const char *dir, int threads, shape s, double context_ms)
{
    job jobs[2] = {{.dir = dir, .s = s, .kind = FORWARD}, {.dir = dir, .s = s, .kind = BACKWARD}};
    double t0 = ls_cugraph_now_ms();
    pthread_t other;
    bool spawned = threads > 1 && pthread_create(&other, NULL, run_job, &jobs[1]) == 0;

    run_job(&jobs[0]);
    if (spawned)
        pthread_join(other, NULL);
    else
        run_job(&jobs[1]);
    printf("START context %.0f ms, both plans %.0f ms in %d threads", context_ms,
           ls_cugraph_now_ms() - t0, spawned ? 2 : 1);
    for (int i = 0; i < 2; i++)
        printf("; %s %s: handle %.0f ms, plan %.0f ms", pass_names[jobs[i].kind],
               !jobs[i].ok      ? "failed"
               : jobs[i].loaded ? "loaded"
                                : "built",
               jobs[i].handle_ms, jobs[i].plan_ms);
    printf("\n");
    return jobs[0].ok && jobs[1].ok ? 0 : 1;
}

/* ---------------------------------------------------------------- main */

static int run_all(struct cudaDeviceProp *prop, double context_ms)
{
    /* Small and odd ones for the check; the models of the figures; parts of their batches, since
     * the ordered pass needs memory in proportion; a wider head. */
    static const shape shapes[] = {
        {1, 3, 3, 77, 64},     {2, 4, 2, 200, 64},     {64, 12, 12, 1024, 64},
        {16, 32, 8, 2048, 64}, {16, 25, 25, 1024, 64}, {16, 12, 12, 1024, 64},
        {8, 12, 12, 1024, 64}, {4, 32, 8, 2048, 64},   {8, 32, 8, 2048, 128}};
    bench b = {0};
    int driver = 0, runtime = 0;
    double t0 = ls_cugraph_now_ms();

    cuda_check(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking), "create stream");
    if (!ls_cugraph_ok(cudnnCreate(&b.handle), "create handle"))
        return 1;
    cudnnSetStream(b.handle, b.stream);
    cuda_check(cudaDriverGetVersion(&driver), "read version");
    cuda_check(cudaRuntimeGetVersion(&runtime), "read version");
    printf("%s, driver API %d, runtime %d, cuDNN %zu (headers %d)\n", prop->name, driver, runtime,
           cudnnGetVersion(), CUDNN_VERSION);
    printf("context %.1f ms, cuDNN handle %.1f ms\n", context_ms, ls_cugraph_now_ms() - t0);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        run_shape(&b, shapes[i]);
    cudnnDestroy(b.handle);
    cudaStreamDestroy(b.stream);
    return 0;
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp prop;
    int64_t n[6] = {0};
    double t0 = ls_cugraph_now_ms();

    cuda_check(cudaGetDeviceProperties(&prop, 0), "find a device");
    cuda_check(cudaFree(NULL), "create a context");
    double context_ms = ls_cugraph_now_ms() - t0;
    if (argc == 1)
        return run_all(&prop, context_ms);
    if (argc != 9 || strcmp(argv[1], "start") != 0) {
        fprintf(stderr, "usage: %s [start DIR THREADS B H HKV T D]\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < 6; i++)
        n[i] = strtoll(argv[3 + i], NULL, 10);
    return run_start(argv[2], (int)n[0], (shape){n[1], n[2], n[3], n[4], n[5]}, context_ms);
}
