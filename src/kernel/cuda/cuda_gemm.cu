/* cuda_gemm.cu -- matrix products (fp32, tf32, bf16, fp16, fp8) by cuBLASLt: see cuda_gemm.cuh.
 *
 * Which algorithm is fastest is not known beforehand: the first answer of cuBLASLt's heuristics is
 * up to a quarter slower than the best of eight. So each new shape races them once, on its real
 * inputs but into memory of its own (the race must not add to gradients), keeps the winner with the
 * descriptors, and writes it down (base/disk_cache.h) for the next process with this card and this
 * cuBLASLt, which then neither races nor differs in bits. An algorithm that was read back is checked
 * by cuBLASLt before it is used. LINESHAFT_CUDA_ALGORITHMS: "first" takes the first answer always,
 * which all machines of a kind agree on, and that for SOME_ROWS rows, so that bits do not depend on
 * how many a call has; "race" neither reads nor writes the cache.
 *
 * Plans are found by comparing keys of plain numbers in an open hash table. Nothing is ever
 * removed; a model has a few dozen shapes. */
#include "kernel/cuda/cuda_gemm.cuh"

#include <cublasLt.h>
#include "base/disk_cache.h"

enum { PLANS = 2048, ANSWERS = 8, RACES = 4, SOME_ROWS = 4096 };

typedef struct key {
    int64_t m, n, k, lda, ldb, ldd, ld_aux;
    int32_t a_type, b_type, out, transpose_a, transpose_b, add, epilogue, bias, tf32;
    int32_t align_a, align_b, align_d; /* bytes, up to 16: more makes no difference */
} key;

typedef struct plan {
    bool used, plain; /* plain: cuBLASLt has no algorithm, use the kernel below */
    key k;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
} plan;

typedef struct products {
    cublasLtHandle_t handle;
    bool first_only, cached;
    char about[192]; /* what a saved choice depends on */
    plan plans[PLANS];
} products;

static ls_status lt_ok(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return LS_OK;
    return ls_fail(status == CUBLAS_STATUS_ALLOC_FAILED ? LS_ENOMEM : LS_EFAIL,
                   "cannot %s in cuBLASLt: %s", what, cublasLtGetStatusName(status));
}

static void forget(plan *pl)
{
    cublasLtMatrixLayout_t layouts[] = {pl->a, pl->b, pl->d};

    if (pl->desc)
        cublasLtMatmulDescDestroy(pl->desc);
    for (cublasLtMatrixLayout_t l : layouts)
        if (l)
            cublasLtMatrixLayoutDestroy(l);
}

static void drop_products(void *all)
{
    products *ps = (products *)all;

    for (int i = 0; i < PLANS; i++)
        forget(&ps->plans[i]);
    if (ps->handle)
        cublasLtDestroy(ps->handle);
    ls_mem_free(ps);
}

static ls_status get_products(ls_cuda_device *d, products **out)
{
    if (!d->products) {
        products *ps = (products *)ls_mem_alloc(sizeof *ps);
        if (!ps)
            return LS_ENOMEM;
        const char *how = getenv("LINESHAFT_CUDA_ALGORITHMS");
        ps->first_only = how && strcmp(how, "first") == 0;
        ps->cached = !ps->first_only && !(how && strcmp(how, "race") == 0);
        snprintf(ps->about, sizeof ps->about, "products, %s, %d multiprocessors, cuBLASLt %zu, %d",
                 d->name, d->multiprocessors, cublasLtGetVersion(), (int)LS_CUDA_WORKSPACE);
        ls_status st = lt_ok(cublasLtCreate(&ps->handle), "start");
        if (st != LS_OK) {
            ls_mem_free(ps);
            return st;
        }
        d->products = ps;
        d->drop_products = drop_products;
    }
    *out = (products *)d->products;
    return LS_OK;
}

/* --- plans ---------------------------------------------------------------------------------- */

static int32_t alignment(const void *p)
{
    int32_t bytes = 16;

    while ((uintptr_t)p % (uintptr_t)bytes)
        bytes /= 2;
    return bytes;
}

static key key_of(const ls_product *p)
{
    key k;

    memset(&k, 0, sizeof k); /* compared as bytes */
    k.m = p->m;
    k.n = p->n;
    k.k = p->k;
    k.lda = p->lda;
    k.ldb = p->ldb;
    k.ldd = p->ldd;
    k.ld_aux = p->aux ? p->ld_aux : 0;
    k.a_type = p->a_type;
    k.b_type = p->b_type;
    k.out = p->out;
    k.transpose_a = p->transpose_a;
    k.transpose_b = p->transpose_b;
    k.add = p->add;
    k.epilogue = p->epilogue;
    k.bias = p->bias != NULL;
    k.tf32 = p->tf32 && p->a_type == LS_F32;
    k.align_a = alignment(p->a);
    k.align_b = alignment(p->b);
    k.align_d = alignment(p->d);
    return k;
}

/* The place of a key: where it is, or a free one; NULL when the table is full. */
static plan *place_of(products *ps, const key *k)
{
    const unsigned char *bytes = (const unsigned char *)k;
    uint64_t h = 14695981039346656037ull;

    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ bytes[i]) * 1099511628211ull;
    for (uint64_t i = 0; i < PLANS; i++) {
        plan *p = &ps->plans[(h + i) % PLANS];
        if (!p->used || memcmp(&p->k, k, sizeof *k) == 0)
            return p;
    }
    return NULL;
}

static cudaDataType_t lt_type(ls_dtype type)
{
    return type == LS_F32    ? CUDA_R_32F
           : type == LS_E4M3 ? CUDA_R_8F_E4M3
           : type == LS_E5M2 ? CUDA_R_8F_E5M2
           : type == LS_F16  ? CUDA_R_16F
                             : CUDA_R_16BF;
}

static cublasLtEpilogue_t lt_epilogue(const ls_product *p)
{
    switch (p->epilogue) {
    case LS_EPILOGUE_BIAS:
        return CUBLASLT_EPILOGUE_BIAS;
    case LS_EPILOGUE_GELU_AUX:
        return p->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case LS_EPILOGUE_DGELU:
        return CUBLASLT_EPILOGUE_DGELU;
    default:
        return CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* The pointers of bias, aux and scales are part of the description, so they are set before every
 * call. */
static cublasStatus_t set_pointers(plan *pl, const ls_product *p)
{
    const struct {
        cublasLtMatmulDescAttributes_t which;
        const void *p;
    } all[] = {{CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->bias},
               {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p->aux},
               {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p->a_scale},
               {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p->b_scale}};
    cublasStatus_t st = CUBLAS_STATUS_SUCCESS;

    for (auto &one : all)
        if (one.p && st == CUBLAS_STATUS_SUCCESS)
            st = cublasLtMatmulDescSetAttribute(pl->desc, one.which, &one.p, sizeof one.p);
    return st;
}

static cublasStatus_t describe(plan *pl, const ls_product *p)
{
    cublasOperation_t ta = p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t tb = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = lt_epilogue(p);
    bool tf32 = p->tf32 && p->a_type == LS_F32;
    cublasStatus_t st = cublasLtMatmulDescCreate(
        &pl->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulDescSetAttribute(pl->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulDescSetAttribute(pl->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulDescSetAttribute(pl->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                            sizeof epilogue);
    if (st == CUBLAS_STATUS_SUCCESS && p->aux)
        st = cublasLtMatmulDescSetAttribute(pl->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                            &p->ld_aux, sizeof p->ld_aux);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = set_pointers(pl, p);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatrixLayoutCreate(&pl->a, lt_type(p->a_type),
                                        (uint64_t)(p->transpose_a ? p->k : p->m),
                                        (uint64_t)(p->transpose_a ? p->m : p->k), p->lda);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatrixLayoutCreate(&pl->b, lt_type(p->b_type),
                                        (uint64_t)(p->transpose_b ? p->n : p->k),
                                        (uint64_t)(p->transpose_b ? p->k : p->n), p->ldb);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatrixLayoutCreate(&pl->d, lt_type(p->out), (uint64_t)p->m, (uint64_t)p->n,
                                        p->ldd);
    return st;
}

static cublasStatus_t run(ls_cuda_stream *s, products *ps, plan *pl, const ls_product *p, void *d,
                          const cublasLtMatmulAlgo_t *algo)
{
    const float one = 1, beta = p->add ? 1.0f : 0.0f;

    return cublasLtMatmul(ps->handle, pl->desc, &one, p->a, pl->a, p->b, pl->b, &beta,
                          p->c ? p->c : d, pl->d, d, pl->d, algo, s->workspace, LS_CUDA_WORKSPACE,
                          s->stream);
}

/* Milliseconds of one algorithm, or a negative number when it does not run. */
static float time_one(ls_cuda_stream *s, products *ps, plan *pl, const ls_product *p, void *d,
                      const cublasLtMatmulAlgo_t *algo, cudaEvent_t at[2])
{
    float ms = -1;

    if (run(s, ps, pl, p, d, algo) != CUBLAS_STATUS_SUCCESS) /* the first call also loads code */
        return -1;
    cudaEventRecord(at[0], s->stream);
    for (int i = 0; i < RACES; i++)
        if (run(s, ps, pl, p, d, algo) != CUBLAS_STATUS_SUCCESS)
            return -1;
    cudaEventRecord(at[1], s->stream);
    if (cudaEventSynchronize(at[1]) != cudaSuccess || cudaEventElapsedTime(&ms, at[0], at[1]) != 0)
        return -1;
    return ms;
}

/* The fastest of the answers, by time; the first when they cannot be timed. aux is written by a
 * GELU epilogue, with what the call itself will write. */
static int fastest(ls_cuda_stream *s, products *ps, plan *pl, const ls_product *p,
                   const cublasLtMatmulHeuristicResult_t *answers, int found)
{
    cudaEvent_t at[2] = {NULL, NULL};
    void *d = NULL;
    size_t bytes = (size_t)(p->ldd * p->n * ls_dtype_bytes(p->out));
    int best = 0;
    float best_ms = -1;

    if (cudaMalloc(&d, bytes) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    if (cudaMemsetAsync(d, 0, bytes, s->stream) == cudaSuccess &&
        cudaEventCreate(&at[0]) == cudaSuccess && cudaEventCreate(&at[1]) == cudaSuccess)
        for (int i = 0; i < found; i++) {
            float ms = time_one(s, ps, pl, p, d, &answers[i].algo, at);
            if (ms >= 0 && (best_ms < 0 || ms < best_ms)) {
                best_ms = ms;
                best = i;
            }
        }
    for (cudaEvent_t e : at)
        if (e)
            cudaEventDestroy(e);
    cudaStreamSynchronize(s->stream);
    cudaFree(d);
    return best;
}

static cublasStatus_t ask(products *ps, plan *pl, const key *k,
                          cublasLtMatmulHeuristicResult_t answers[ANSWERS], int *found)
{
    cublasLtMatmulPreference_t pref = NULL;
    size_t bytes = LS_CUDA_WORKSPACE;
    uint32_t a = (uint32_t)k->align_a, b = (uint32_t)k->align_b, d = (uint32_t)k->align_d;
    cublasStatus_t st = cublasLtMatmulPreferenceCreate(&pref);

    if (st != CUBLAS_STATUS_SUCCESS)
        return st;
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                         sizeof bytes);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a,
                                         sizeof a);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b,
                                         sizeof b);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d,
                                         sizeof d);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d,
                                         sizeof d);
    st = cublasLtMatmulAlgoGetHeuristic(ps->handle, pl->desc, pl->a, pl->b, pl->d, pl->d, pref,
                                        ANSWERS, answers, found);
    cublasLtMatmulPreferenceDestroy(pref);
    return st;
}

/* Which algorithm is best depends on the number of rows, and in which order it sums on the
 * algorithm. Where bits must not depend on how many rows a call has, it is the one for SOME_ROWS,
 * if that takes these too. */
static bool same_for_any_rows(products *ps, plan *pl, const key *k, const ls_product *p)
{
    plan other = {};
    cublasLtMatmulHeuristicResult_t answers[ANSWERS], result;
    ls_product some = *p;
    int found = 0;
    bool taken = false;

    some.n = SOME_ROWS;
    if (p->transpose_b) /* rows are what is summed over */
        return false;
    if (describe(&other, &some) == CUBLAS_STATUS_SUCCESS &&
        ask(ps, &other, k, answers, &found) == CUBLAS_STATUS_SUCCESS && found > 0) {
        pl->algo = answers[0].algo;
        taken = cublasLtMatmulAlgoCheck(ps->handle, pl->desc, pl->a, pl->b, pl->d, pl->d, &pl->algo,
                                        &result) == CUBLAS_STATUS_SUCCESS &&
                result.workspaceSize <= LS_CUDA_WORKSPACE;
    }
    forget(&other);
    return taken;
}

/* The choice of an earlier process, where cuBLASLt still accepts it. */
static bool remembered(products *ps, plan *pl, const key *k)
{
    cublasLtMatmulHeuristicResult_t result;

    return ps->cached && ls_disk_cache_find(ps->about, k, sizeof *k, &pl->algo, sizeof pl->algo) &&
           cublasLtMatmulAlgoCheck(ps->handle, pl->desc, pl->a, pl->b, pl->d, pl->d, &pl->algo,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= LS_CUDA_WORKSPACE;
}

static ls_status make_plan(ls_cuda_stream *s, products *ps, plan *pl, const key *k,
                           const ls_product *p)
{
    cublasLtMatmulHeuristicResult_t answers[ANSWERS];
    int found = 0, which = 0;
    ls_status st = lt_ok(describe(pl, p), "describe a product");

    if (st != LS_OK)
        return st;
    pl->k = *k;
    pl->used = true;
    if (remembered(ps, pl, k) || (ps->first_only && same_for_any_rows(ps, pl, k, p)))
        return LS_OK;
    if (ask(ps, pl, k, answers, &found) != CUBLAS_STATUS_SUCCESS || found == 0) {
        pl->plain = true;
        return LS_OK;
    }
    bool race = found > 1 && !ps->first_only && !s->recording;
    if (race)
        which = fastest(s, ps, pl, p, answers, found);
    pl->algo = answers[which].algo;
    if (race && ps->cached)
        ls_disk_cache_add(ps->about, k, sizeof *k, &pl->algo, sizeof pl->algo);
    return LS_OK;
}

/* --- what cuBLASLt has no algorithm for ------------------------------------------------------ */

/* One thread for each element; for odd shapes only. */
template <typename IN, typename OUT> __global__ void plain_kernel(ls_product p)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = i % p.m, col = i / p.m;
    const IN *a = (const IN *)p.a, *b = (const IN *)p.b;
    float sum = 0;

    if (col >= p.n)
        return;
    for (int64_t k = 0; k < p.k; k++)
        sum = fmaf(ls_get(p.transpose_a ? a[k + row * p.lda] : a[row + k * p.lda]),
                   ls_get(p.transpose_b ? b[col + k * p.ldb] : b[k + col * p.ldb]), sum);
    OUT *d = (OUT *)p.d + row + col * p.ldd;
    if (p.bias)
        sum += ls_get(((const OUT *)p.bias)[row]);
    if (p.epilogue == LS_EPILOGUE_GELU_AUX) {
        ((OUT *)p.aux)[row + col * p.ld_aux] = ls_put<OUT>(sum);
        sum = ls_act_value(LS_ACT_GELU, sum);
    } else if (p.epilogue == LS_EPILOGUE_DGELU) {
        sum *= ls_act_slope(LS_ACT_GELU, ls_get(((const OUT *)p.aux)[row + col * p.ld_aux]));
    }
    const OUT *c = p.c ? (const OUT *)p.c + row + col * p.ldd : d;
    *d = ls_put<OUT>(p.add ? ls_get(*c) + sum : sum);
}

static void run_plain(ls_cuda_stream *s, const ls_product *p)
{
    unsigned grid = (unsigned)((p->m * p->n + 127) / 128);

    ls_cuda_typed(p->a_type, [&](auto t) {
        typedef decltype(t) T;
        if (p->out == LS_F32)
            plain_kernel<T, float><<<grid, 128, 0, s->stream>>>(*p);
        else
            plain_kernel<T, T><<<grid, 128, 0, s->stream>>>(*p);
    });
}

ls_status ls_product_queue(ls_cuda_stream *s, const ls_product *p)
{
    products *ps = NULL;
    key k = key_of(p);
    ls_status st = get_products(s->device, &ps);

    if (st != LS_OK)
        return st;
    plan *pl = place_of(ps, &k);
    if (!pl)
        return ls_fail(LS_EFAIL, "more than %d shapes of matrix products", (int)PLANS);
    if (!pl->used)
        st = make_plan(s, ps, pl, &k, p);
    if (st != LS_OK)
        return st;
    if (pl->plain && p->a_scale)
        return ls_fail(LS_EFAIL, "cuBLASLt has no product of fp8 for %lld x %lld x %lld",
                       (long long)p->m, (long long)p->n, (long long)p->k);
    if (pl->plain) {
        run_plain(s, p);
        return LS_OK;
    }
    st = lt_ok(set_pointers(pl, p), "describe a product");
    if (st != LS_OK)
        return st;
    cublasStatus_t status = run(s, ps, pl, p, p->d, &pl->algo);
    if (status == CUBLAS_STATUS_SUCCESS)
        return LS_OK;
    char what[128];
    snprintf(what, sizeof what, "queue a product of %lld x %lld x %lld, types %d %d %d",
             (long long)p->m, (long long)p->n, (long long)p->k, (int)p->a_type, (int)p->b_type,
             (int)p->out);
    return lt_ok(status, what);
}
