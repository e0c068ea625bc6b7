/* cublaslt_epilogues.c -- which epilogues of cuBLASLt are free, and which cost?
 *
 * The products of a training step in bf16, through cuBLASLt's C API, each plain and with what
 * could be folded into it: bias, GELU (with the input kept for the backward pass), its gradient,
 * the residual sum, bias gradients, fp32 gradient accumulation. For each the first eight answers
 * of the heuristics race; then the winners of all variants of a product race each other. Some
 * elements of every result are checked against the host.
 * docs/design/cuda-attention.md holds the findings.
 *
 * Build: gcc -std=c17 -D_GNU_SOURCE -O2 -Wall -Wextra -I/usr/local/cuda/include \
 *            bench/gpu/cublaslt_epilogues.c -o cublaslt_epilogues -L/usr/local/cuda/lib64 \
 *            -lcublasLt -lcudart -lm
 * Run:   ./cublaslt_epilogues        (libraries: LD_LIBRARY_PATH)
 *
 * Tensors are row-major here: x [M, K], w [N, K], y [M, N]. cuBLASLt counts columns, so a row-major
 * matrix is its transpose there and y = x wT is asked for as yT = w xT. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    POOL = 16777213, /* prime: rows of a tensor filled from the pool do not repeat */
    ALGOS = 8,
    TRIES = 20,
    REPEATS = 50,
    SAMPLES = 24,
    COMPARED_BYTES = 64 << 20, /* of each result, between two runs */
    WORKSPACE_BYTES = 64 << 20,
};

enum kind { FORWARD, DGRAD, WGRAD };

typedef struct product {
    const char *name;
    int64_t M, N, K; /* tokens, features out, features in */
    unsigned extras; /* which variants make sense here */
} product;

enum { HAS_BIAS = 1, FEEDS_GELU = 2, READS_GELU = 4, ENDS_BRANCH = 8 };

typedef struct variant {
    const char *name;
    enum kind kind;
    cublasLtEpilogue_t epilogue;
    bool fp32; /* type of the result */
    float beta;
    unsigned needs; /* bits of product.extras */
} variant;

static const product products[] = {
    {"gpt2 qkv", 65536, 2304, 768, HAS_BIAS},
    {"gpt2 proj", 65536, 768, 768, HAS_BIAS | ENDS_BRANCH},
    {"gpt2 fc", 65536, 3072, 768, HAS_BIAS | FEEDS_GELU},
    {"gpt2 fcproj", 65536, 768, 3072, HAS_BIAS | READS_GELU | ENDS_BRANCH},
    {"llama qkv", 32768, 3072, 2048, 0},
    {"llama gate+up", 32768, 16384, 2048, 0},
    {"llama down", 32768, 2048, 8192, ENDS_BRANCH},
};

static const variant variants[] = {
    {"forward", FORWARD, CUBLASLT_EPILOGUE_DEFAULT, false, 0.0f, 0},
    {"forward + bias", FORWARD, CUBLASLT_EPILOGUE_BIAS, false, 0.0f, HAS_BIAS},
    {"forward + residual", FORWARD, CUBLASLT_EPILOGUE_DEFAULT, false, 1.0f, ENDS_BRANCH},
    {"forward + bias + residual", FORWARD, CUBLASLT_EPILOGUE_BIAS, false, 1.0f,
     HAS_BIAS | ENDS_BRANCH},
    {"forward + bias + gelu", FORWARD, CUBLASLT_EPILOGUE_GELU_BIAS, false, 0.0f, FEEDS_GELU},
    {"forward + bias + gelu, aux", FORWARD, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, false, 0.0f,
     FEEDS_GELU},
    {"dgrad", DGRAD, CUBLASLT_EPILOGUE_DEFAULT, false, 0.0f, 0},
    {"dgrad + dgelu", DGRAD, CUBLASLT_EPILOGUE_DGELU, false, 0.0f, READS_GELU},
    {"dgrad + dgelu + bias grad", DGRAD, CUBLASLT_EPILOGUE_DGELU_BGRAD, false, 0.0f, READS_GELU},
    {"wgrad bf16", WGRAD, CUBLASLT_EPILOGUE_DEFAULT, false, 0.0f, 0},
    {"wgrad bf16, beta 1", WGRAD, CUBLASLT_EPILOGUE_DEFAULT, false, 1.0f, 0},
    {"wgrad fp32", WGRAD, CUBLASLT_EPILOGUE_DEFAULT, true, 0.0f, 0},
    {"wgrad fp32, beta 1", WGRAD, CUBLASLT_EPILOGUE_DEFAULT, true, 1.0f, 0},
    {"wgrad bf16 + bias grad", WGRAD, CUBLASLT_EPILOGUE_BGRADB, false, 0.0f, HAS_BIAS},
    {"wgrad fp32 + bias grad", WGRAD, CUBLASLT_EPILOGUE_BGRADB, true, 0.0f, HAS_BIAS},
    {"wgrad fp32, beta 1 + bias grad", WGRAD, CUBLASLT_EPILOGUE_BGRADB, true, 1.0f, HAS_BIAS},
};

enum { VARIANTS = sizeof(variants) / sizeof(variants[0]), RACERS = 16 };

_Static_assert((int)VARIANTS <= (int)RACERS && (int)ALGOS <= (int)RACERS,
               "race() holds events for these");

typedef struct bench {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    uint16_t *pool;             /* host: POOL random values, bf16 */
    void *pool_device;          /* the same */
    void *x, *w, *dy, *aux;     /* device, bf16, filled from the pool */
    void *c, *d, *bias, *extra; /* result added to, result, bias or its gradient, kept GELU input */
    void *workspace;
} bench;

static void cuda_check(cudaError_t err, const char *what)
{
    if (err == cudaSuccess)
        return;
    fprintf(stderr, "cannot %s: %s\n", what, cudaGetErrorString(err));
    exit(1);
}

static bool lt_ok(cublasStatus_t st, const char *what)
{
    if (st == CUBLAS_STATUS_SUCCESS)
        return true;
    printf("  cannot %s: %s\n", what, cublasLtGetStatusName(st));
    return false;
}

static void *device_alloc(int64_t bytes)
{
    void *p = NULL;

    cuda_check(cudaMalloc(&p, (size_t)bytes), "allocate device memory");
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

/* ---------------------------------------------------------------- data */

/* Where in the pool each tensor begins: they must not be equal. */
enum {
    AT_X = 0,
    AT_W = 1111111,
    AT_DY = 3333333,
    AT_AUX = 5555555,
    AT_BIAS = 7777777,
    AT_C = 9999999
};

static double value(const bench *b, int64_t at, int64_t i)
{
    return (double)from_bf16(b->pool[(at + i) % POOL]);
}

static void fill_pool(bench *b)
{
    uint64_t s = 88172645463325252u;

    b->pool = malloc((size_t)POOL * 2);
    if (!b->pool)
        exit(1);
    for (int64_t i = 0; i < POOL; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        float sum = (float)(s & 0xffff) + (float)((s >> 16) & 0xffff) +
                    (float)((s >> 32) & 0xffff) + (float)(s >> 48);
        b->pool[i] = to_bf16((sum * (1.0f / 65536.0f) - 2.0f) * 1.7320508f);
    }
    b->pool_device = device_alloc((int64_t)POOL * 2);
    cuda_check(cudaMemcpy(b->pool_device, b->pool, (size_t)POOL * 2, cudaMemcpyHostToDevice),
               "copy in");
}

static void fill_bf16(const bench *b, void *out, int64_t count, int64_t at)
{
    for (int64_t i = 0; i < count;) {
        int64_t from = (at + i) % POOL, n = POOL - from < count - i ? POOL - from : count - i;
        cuda_check(cudaMemcpy((uint16_t *)out + i, (uint16_t *)b->pool_device + from, (size_t)n * 2,
                              cudaMemcpyDeviceToDevice),
                   "fill");
        i += n;
    }
}

static int64_t largest(int64_t a, int64_t b, int64_t c)
{
    int64_t ab = a > b ? a : b;

    return ab > c ? ab : c;
}

static void bench_begin(bench *b, const product *p)
{
    int64_t out = largest(p->M * p->N, p->M * p->K, 2 * p->N * p->K);

    b->x = device_alloc(p->M * p->K * 2);
    b->w = device_alloc(p->N * p->K * 2);
    b->dy = device_alloc(p->M * p->N * 2);
    b->aux = device_alloc(largest(p->M * p->K, p->M * p->N, 0) * 2);
    b->extra = device_alloc(p->M * p->N * 2);
    b->c = device_alloc(out * 2);
    b->d = device_alloc(out * 2);
    b->bias = device_alloc((p->N + p->K) * 4);
    fill_bf16(b, b->x, p->M * p->K, AT_X);
    fill_bf16(b, b->w, p->N * p->K, AT_W);
    fill_bf16(b, b->dy, p->M * p->N, AT_DY);
    fill_bf16(b, b->aux, p->M * p->K, AT_AUX);
}

static void bench_end(bench *b)
{
    void *const all[] = {b->x, b->w, b->dy, b->aux, b->extra, b->c, b->d, b->bias};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        cuda_check(cudaFree(all[i]), "free device memory");
}

/* ---------------------------------------------------------------- one product */

/* rows x cols of the result and depth of the sum, as cuBLASLt sees them (column-major) */
typedef struct extent {
    int64_t rows, cols, depth;
} extent;

static extent extent_of(const product *p, enum kind kind)
{
    switch (kind) {
    case FORWARD: /* yT [N, M] = w [N, K] xT [K, M] */
        return (extent){p->N, p->M, p->K};
    case DGRAD: /* dxT [K, M] = wT [K, N] dyT [N, M] */
        return (extent){p->K, p->M, p->N};
    default: /* dwT [K, N] = xT [K, M] dy [M, N] */
        return (extent){p->K, p->N, p->M};
    }
}

typedef struct call {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    const void *pa, *pb;
    float alpha, beta;
} call;

static bool set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t name, const void *v,
                size_t size)
{
    return lt_ok(cublasLtMatmulDescSetAttribute(d, name, v, size), "set attribute");
}

static bool call_epilogue(call *c, const bench *b, const variant *v, extent e)
{
    bool ok = set(c->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &v->epilogue, sizeof(v->epilogue));
    cublasLtEpilogue_t ep = v->epilogue;
    bool gelu_in = ep == CUBLASLT_EPILOGUE_DGELU || ep == CUBLASLT_EPILOGUE_DGELU_BGRAD;
    void *aux = gelu_in ? b->aux : b->extra;

    if (ep == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || gelu_in)
        ok = ok && set(c->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof(aux)) &&
             set(c->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &e.rows, sizeof(e.rows));
    if (ep != CUBLASLT_EPILOGUE_DEFAULT && ep != CUBLASLT_EPILOGUE_DGELU)
        ok = ok && set(c->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &b->bias, sizeof(b->bias));
    return ok;
}

static bool call_init(call *c, const bench *b, const product *p, const variant *v)
{
    extent e = extent_of(p, v->kind);
    cublasOperation_t ta = v->kind == FORWARD ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t tb = v->kind == WGRAD ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t out = v->fp32 ? CUDA_R_32F : CUDA_R_16BF;
    int64_t wide = v->kind == FORWARD ? p->K : e.rows, deep = v->kind == WGRAD ? e.cols : e.depth;

    memset(c, 0, sizeof(*c));
    c->pa = v->kind == WGRAD ? b->x : b->w;
    c->pb = v->kind == FORWARD ? b->x : b->dy;
    c->alpha = v->kind == WGRAD ? 1.0f / 256.0f : 1.0f / sqrtf((float)e.depth);
    c->beta = v->beta;
    return lt_ok(cublasLtMatmulDescCreate(&c->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "create") &&
           set(c->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof(ta)) &&
           set(c->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof(tb)) &&
           call_epilogue(c, b, v, e) &&
           lt_ok(cublasLtMatrixLayoutCreate(&c->a, CUDA_R_16BF, (uint64_t)wide,
                                            (uint64_t)(v->kind == FORWARD ? e.rows : e.depth),
                                            wide),
                 "create") &&
           lt_ok(cublasLtMatrixLayoutCreate(&c->b, CUDA_R_16BF, (uint64_t)deep,
                                            (uint64_t)(v->kind == WGRAD ? e.depth : e.cols), deep),
                 "create") &&
           lt_ok(cublasLtMatrixLayoutCreate(&c->d, out, (uint64_t)e.rows, (uint64_t)e.cols, e.rows),
                 "create");
}

static void call_release(call *c)
{
    if (c->d)
        cublasLtMatrixLayoutDestroy(c->d);
    if (c->b)
        cublasLtMatrixLayoutDestroy(c->b);
    if (c->a)
        cublasLtMatrixLayoutDestroy(c->a);
    if (c->desc)
        cublasLtMatmulDescDestroy(c->desc);
}

/* Gradients are added in place, as training does; a residual comes from another buffer. */
static cublasStatus_t call_run(const call *c, const bench *b, const variant *v,
                               const cublasLtMatmulHeuristicResult_t *h)
{
    const void *from = v->kind == WGRAD ? b->d : b->c;

    return cublasLtMatmul(b->handle, c->desc, &c->alpha, c->pa, c->a, c->pb, c->b, &c->beta, from,
                          c->d, b->d, c->d, &h->algo, b->workspace, WORKSPACE_BYTES, b->stream);
}

static int call_algos(const call *c, const bench *b, cublasLtMatmulHeuristicResult_t out[ALGOS])
{
    cublasLtMatmulPreference_t pref = NULL;
    size_t bytes = WORKSPACE_BYTES;
    int found = 0;

    if (lt_ok(cublasLtMatmulPreferenceCreate(&pref), "create") &&
        lt_ok(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                   &bytes, sizeof(bytes)),
              "set preference") &&
        !lt_ok(cublasLtMatmulAlgoGetHeuristic(b->handle, c->desc, c->a, c->b, c->d, c->d, pref,
                                              ALGOS, out, &found),
               "find an algorithm"))
        found = 0;
    if (pref)
        cublasLtMatmulPreferenceDestroy(pref);
    return found;
}

/* ---------------------------------------------------------------- timing */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* One thing to time: a call with one algorithm. */
typedef struct racer {
    const call *c;
    const variant *v;
    const cublasLtMatmulHeuristicResult_t *h;
    double ms; /* result: median, or infinity when it cannot run */
} racer;

/* Time all in turn, round after round. The card is at its power limit and its clock moves with
 * what ran before, so figures taken one after the other do not compare; these do. */
static void race(const bench *b, racer *r, int count, int rounds)
{
    static cudaEvent_t at[RACERS][REPEATS][2];
    float ms[REPEATS];

    for (int k = 0; k < count; k++) {
        r[k].ms = call_run(r[k].c, b, r[k].v, r[k].h) == CUBLAS_STATUS_SUCCESS ? 0.0 : HUGE_VAL;
        for (int i = 0; i < 2 * rounds; i++)
            cuda_check(cudaEventCreate(&at[k][i / 2][i % 2]), "create event");
    }
    for (int i = 0; i < rounds; i++)
        for (int k = 0; k < count; k++) {
            cuda_check(cudaEventRecord(at[k][i][0], b->stream), "record event");
            if (r[k].ms == 0.0)
                call_run(r[k].c, b, r[k].v, r[k].h);
            cuda_check(cudaEventRecord(at[k][i][1], b->stream), "record event");
        }
    cuda_check(cudaStreamSynchronize(b->stream), "run the products");
    for (int k = 0; k < count; k++) {
        for (int i = 0; i < rounds; i++) {
            cuda_check(cudaEventElapsedTime(&ms[i], at[k][i][0], at[k][i][1]), "read event");
            cudaEventDestroy(at[k][i][0]);
            cudaEventDestroy(at[k][i][1]);
        }
        qsort(ms, (size_t)rounds, sizeof(*ms), by_value);
        if (r[k].ms == 0.0)
            r[k].ms = (double)ms[rounds / 2];
    }
}

/* ---------------------------------------------------------------- check */

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double h = 1e-4;

    return (gelu(x + h) - gelu(x - h)) / (2.0 * h);
}

/* Element (row, col) of the column-major result; before is what was there when beta is one. */
static double expected(const bench *b, const product *p, const variant *v, int64_t row, int64_t col)
{
    extent e = extent_of(p, v->kind);
    double sum = 0.0;

    for (int64_t i = 0; i < e.depth; i++) {
        if (v->kind == FORWARD)
            sum += value(b, AT_W, row * p->K + i) * value(b, AT_X, col * p->K + i);
        else if (v->kind == DGRAD)
            sum += value(b, AT_W, i * p->K + row) * value(b, AT_DY, col * p->N + i);
        else
            sum += value(b, AT_X, i * p->K + row) * value(b, AT_DY, i * p->N + col);
    }
    sum *= v->kind == WGRAD ? 1.0 / 256.0 : 1.0 / sqrt((double)e.depth);
    if (v->beta > 0.0f)
        sum += v->fp32 ? 1.0 : value(b, AT_C, row + col * e.rows);
    switch (v->epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
        return sum + value(b, AT_BIAS, row);
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
        return gelu(sum + value(b, AT_BIAS, row));
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
        return sum * gelu_slope(value(b, AT_AUX, row + col * e.rows));
    default:
        return sum;
    }
}

static double fetch(const void *base, int64_t i, bool fp32)
{
    uint16_t half;
    float whole;

    if (fp32) {
        cuda_check(cudaMemcpy(&whole, (const float *)base + i, 4, cudaMemcpyDeviceToHost), "read");
        return (double)whole;
    }
    cuda_check(cudaMemcpy(&half, (const uint16_t *)base + i, 2, cudaMemcpyDeviceToHost), "read");
    return (double)from_bf16(half);
}

/* Largest error of the bias gradient of BGRADB, sum over tokens of dy, relative to its size. */
static double bias_grad_error(const bench *b, const product *p, const variant *v)
{
    double worst = 0.0;

    for (int64_t n = 0; n < p->N; n += p->N / 8) {
        double sum = 0.0;
        for (int64_t m = 0; m < p->M; m++)
            sum += value(b, AT_DY, m * p->N + n);
        double got = fetch(b->bias, n, v->fp32), e = fabs(got - sum) / sqrt((double)p->M);
        worst = e <= worst ? worst : e;
    }
    return worst;
}

static void prepare(const bench *b, const product *p, const variant *v)
{
    extent e = extent_of(p, v->kind);
    int64_t count = e.rows * e.cols;
    const float one = 1.0f;

    cuda_check(cudaMemset(b->d, 0xff, (size_t)count * (v->fp32 ? 4 : 2)), "poison");
    cuda_check(cudaMemset(b->bias, 0xff, (size_t)(p->N + p->K) * 4), "poison");
    if (v->kind == FORWARD)
        fill_bf16(b, b->bias, p->N, AT_BIAS);
    if (v->beta > 0.0f && !v->fp32)
        fill_bf16(b, v->kind == WGRAD ? b->d : b->c, count, AT_C);
    if (v->beta > 0.0f && v->fp32) {
        cuda_check(cudaMemcpy(b->d, &one, 4, cudaMemcpyHostToDevice), "fill");
        for (int64_t n = 1; n < count; n *= 2)
            cuda_check(cudaMemcpy((float *)b->d + n, b->d,
                                  (size_t)(2 * n > count ? count - n : n) * 4,
                                  cudaMemcpyDeviceToDevice),
                       "fill");
    }
    cuda_check(cudaDeviceSynchronize(), "prepare");
}

/* Largest error over some elements, relative to the results' unit size. */
static double check(const call *c, const bench *b, const product *p, const variant *v,
                    const cublasLtMatmulHeuristicResult_t *h)
{
    extent e = extent_of(p, v->kind);
    double worst = 0.0;

    prepare(b, p, v);
    if (call_run(c, b, v, h) != CUBLAS_STATUS_SUCCESS)
        return nan("");
    cuda_check(cudaStreamSynchronize(b->stream), "run the product");
    for (int64_t i = 0; i < SAMPLES; i++) {
        int64_t row = (i * 7919 + 13) % e.rows, col = (i * 104729 + 5) % e.cols;
        double want = expected(b, p, v, row, col), got = fetch(b->d, row + col * e.rows, v->fp32);
        double err = fabs(got - want) / (1.0 + fabs(want));
        worst = err <= worst ? worst : err;
    }
    if (v->epilogue == CUBLASLT_EPILOGUE_BGRADB) {
        double err = bias_grad_error(b, p, v);
        worst = err <= worst ? worst : err;
    }
    return worst;
}

/* Whether two runs from the same state leave the same bits. */
static bool repeats(const call *c, const bench *b, const product *p, const variant *v,
                    const cublasLtMatmulHeuristicResult_t *h)
{
    extent e = extent_of(p, v->kind);
    size_t bytes = (size_t)(e.rows * e.cols) * (v->fp32 ? 4 : 2);
    char *copy = malloc(2 * (size_t)COMPARED_BYTES);
    bool same = copy != NULL;

    bytes = bytes < COMPARED_BYTES ? bytes : COMPARED_BYTES;
    for (int i = 0; i < 2 && same; i++) {
        prepare(b, p, v);
        same = call_run(c, b, v, h) == CUBLAS_STATUS_SUCCESS;
        cuda_check(cudaStreamSynchronize(b->stream), "run the product");
        cuda_check(
            cudaMemcpy(copy + i * (size_t)COMPARED_BYTES, b->d, bytes, cudaMemcpyDeviceToHost),
            "copy out");
    }
    same = same && memcmp(copy, copy + (size_t)COMPARED_BYTES, bytes) == 0;
    free(copy);
    return same;
}

/* ---------------------------------------------------------------- main */

/* A variant of a product with the fastest algorithm found for it. */
typedef struct entry {
    call c;
    const variant *v;
    cublasLtMatmulHeuristicResult_t algos[ALGOS];
    int found, which;
    double first_ms, best_ms; /* among the algorithms of this entry only */
    double ms;                /* beside the other variants */
} entry;

/* Returns false when cuBLASLt has no algorithm for it. */
static bool entry_init(entry *e, const bench *b, const product *p, const variant *v)
{
    racer r[ALGOS];

    *e = (entry){.v = v, .which = -1, .best_ms = HUGE_VAL};
    if (call_init(&e->c, b, p, v))
        e->found = call_algos(&e->c, b, e->algos);
    for (int i = 0; i < e->found; i++)
        r[i] = (racer){.c = &e->c, .v = v, .h = &e->algos[i]};
    race(b, r, e->found, TRIES);
    for (int i = 0; i < e->found; i++)
        if (r[i].ms < e->best_ms) {
            e->best_ms = r[i].ms;
            e->which = i;
        }
    e->first_ms = e->found ? r[0].ms : HUGE_VAL;
    if (e->which < 0) {
        printf("%-14s %-32s not supported\n", p->name, v->name);
        call_release(&e->c);
    }
    return e->which >= 0;
}

static void entry_print(entry *e, const bench *b, const product *p, const double plain_ms[3])
{
    const cublasLtMatmulHeuristicResult_t *h = &e->algos[e->which];
    double err = check(&e->c, b, p, e->v, h);
    bool same = repeats(&e->c, b, p, e->v, h);
    int32_t split = 0;
    size_t written;

    cublasLtMatmulAlgoConfigGetAttribute(&h->algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                         sizeof(split), &written);
    printf("%-14s %-32s %7.4f ms %4.0f TFLOP/s %+8.1f us to plain; first of heuristics %+5.1f %%, "
           "choice %d of %d, split %d, workspace %zu MiB, error %.1e %s, same bits: %s\n",
           p->name, e->v->name, e->ms, 2e-9 * (double)p->M * (double)p->N * (double)p->K / e->ms,
           (e->ms - plain_ms[e->v->kind]) * 1e3, (e->first_ms / e->best_ms - 1.0) * 100.0, e->which,
           e->found, split, h->workspaceSize >> 20, err, err < 2e-2 ? "right" : "WRONG",
           same ? "yes" : "NO");
    fflush(stdout);
}

static void run_product(const bench *b, const product *p)
{
    static entry entries[VARIANTS];
    racer r[VARIANTS];
    double plain_ms[3] = {0};
    int count = 0;

    for (int j = 0; j < VARIANTS; j++)
        if ((p->extras & variants[j].needs) == variants[j].needs)
            count += entry_init(&entries[count], b, p, &variants[j]);
    for (int i = 0; i < count; i++)
        r[i] = (racer){
            .c = &entries[i].c, .v = entries[i].v, .h = &entries[i].algos[entries[i].which]};
    race(b, r, count, REPEATS);
    for (int i = 0; i < count; i++) {
        const variant *v = entries[i].v;
        entries[i].ms = r[i].ms;
        if (v->epilogue == CUBLASLT_EPILOGUE_DEFAULT && !v->fp32 && v->beta == 0.0f)
            plain_ms[v->kind] = r[i].ms;
    }
    for (int i = 0; i < count; i++) {
        entry_print(&entries[i], b, p, plain_ms);
        call_release(&entries[i].c);
    }
}

int main(void)
{
    bench b = {0};
    struct cudaDeviceProp prop;

    cuda_check(cudaGetDeviceProperties(&prop, 0), "find a device");
    cuda_check(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking), "create stream");
    if (!lt_ok(cublasLtCreate(&b.handle), "create handle"))
        return 1;
    printf("%s, cuBLASLt %zu\n", prop.name, cublasLtGetVersion());
    b.workspace = device_alloc(WORKSPACE_BYTES);
    fill_pool(&b);
    for (size_t i = 0; i < sizeof(products) / sizeof(products[0]); i++) {
        bench_begin(&b, &products[i]);
        run_product(&b, &products[i]);
        bench_end(&b);
    }
    cublasLtDestroy(b.handle);
    free(b.pool);
    return 0;
}
