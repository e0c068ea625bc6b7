/* cuda_qkv_wide.cu -- norms of q or k over all heads together, which lie side by side in rows of a wider
 * tensor: the part of the qkv rows with ld and without keys (kernel.h).
 *
 * A block has a row. Gradients as in cuda_qkv.cu: with h = x rstd, dx = rstd (g w - h mean(g w h)), and
 * dw = sum of g h over rows: a block walks a chunk of a leaf's rows, each thread adds up the
 * columns that it owns, chunks and leaves are joined by ls_cuda_tree_finish().
 *
 * Where other ranks have heads that are normalised together with these, a row's sum goes out first
 * and comes back as that of all ranks (ls_qkv.sums). */
#include "kernel/cuda/cuda_qkv_wide.cuh"

enum { THREADS = 256, MOST = 12288 };

typedef struct wide {
    const char *from; /* forward: the product; backward: the gradient */
    char *to;
    const char *product; /* backward */
    const void *w;
    float *rstd, eps;
    float *sums;         /* of rows; NULL: those made here count */
    bool alone;          /* they are all that is wanted */
    int64_t normed;      /* elements of all ranks */
    int64_t batch, time; /* of heads: from forward's result, backward's gradient */
    int64_t T, D, ld;
} wide;

template <typename T> __global__ void wide_fwd_kernel(wide a)
{
    __shared__ float part[64];
    int64_t row = blockIdx.x, b = row / a.T, t = row - b * a.T;
    const T *from = (const T *)a.from + row * a.ld;
    T *to = (T *)a.to + b * a.batch + t * a.time;
    float square = 0;

    for (int64_t i = threadIdx.x; i < a.D; i += THREADS)
        square = fmaf(ls_get(from[i]), ls_get(from[i]), square);
    square = ls_block_sum(square, part);
    if (a.alone) {
        if (threadIdx.x == 0)
            a.sums[row] = square;
        return;
    }
    float rstd = 1.0f / sqrtf((a.sums ? a.sums[row] : square) / (float)a.normed + a.eps);
    if (threadIdx.x == 0 && a.rstd)
        a.rstd[row] = rstd;
    for (int64_t i = threadIdx.x; i < a.D; i += THREADS)
        to[i] = ls_put<T>(ls_get(from[i]) * rstd * ls_get(((const T *)a.w)[i]));
}

/* Block: one chunk of a leaf's rows. */
template <typename T>
__global__ void wide_bwd_kernel(wide a, int64_t leaf_rows, int64_t chunk_rows, int64_t chunks,
                                float *sums)
{
    extern __shared__ float own[]; /* [D] */
    __shared__ float part[64];
    int64_t leaf = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    int64_t first = leaf * leaf_rows + chunk * chunk_rows;
    int64_t end = first + min(chunk_rows, leaf_rows - chunk * chunk_rows);
    const T *w = (const T *)a.w;

    for (int64_t i = threadIdx.x; i < a.D; i += THREADS)
        own[i] = 0;
    for (int64_t row = first; row < end; row++) {
        int64_t b = row / a.T, t = row - b * a.T;
        const T *d = (const T *)a.from + b * a.batch + t * a.time;
        const T *x = (const T *)a.product + row * a.ld;
        T *to = (T *)a.to + row * a.ld;
        float rstd = a.rstd[row], mean = 0;
        for (int64_t i = threadIdx.x; i < a.D; i += THREADS) {
            float g = ls_get(d[i]), h = ls_get(x[i]) * rstd;
            mean += g * ls_get(w[i]) * h;
            own[i] += g * h;
        }
        mean = ls_block_sum(mean, part);
        if (a.alone) {
            if (threadIdx.x == 0)
                a.sums[row] = mean;
            continue;
        }
        mean = (a.sums ? a.sums[row] : mean) / (float)a.normed;
        for (int64_t i = threadIdx.x; i < a.D; i += THREADS)
            to[i] = ls_put<T>(rstd * (ls_get(d[i]) * ls_get(w[i]) - ls_get(x[i]) * rstd * mean));
    }
    for (int64_t i = threadIdx.x; i < a.D && !a.alone; i += THREADS)
        sums[blockIdx.x * a.D + i] = own[i];
}

static ls_status check(const ls_qkv *a)
{
    LS_BUG_IF(a->part != LS_QKV_WHOLE && !a->sums, "a part of a norm without sums");
    LS_BUG_IF(a->H != 1 || a->Hkv != 0 || !a->q_norm || a->rope, "a part of a packed product");
    if (a->D > MOST)
        return ls_fail(LS_EUSAGE, "heads of %lld together are larger than %d", (long long)a->D,
                       (int)MOST);
    return LS_OK;
}

static wide wide_of(const ls_qkv *a)
{
    wide p = {};

    p.product = (const char *)a->product;
    p.w = a->q_norm;
    p.rstd = a->rstd;
    p.eps = a->eps;
    p.sums = a->part == LS_QKV_WHOLE ? NULL : a->sums;
    p.alone = a->part == LS_QKV_SUMS;
    p.normed = a->D * (a->part == LS_QKV_WHOLE ? 1 : ls_max_i64(a->ranks, 1));
    p.batch = a->q.batch;
    p.time = a->q.time;
    p.T = a->T;
    p.D = a->D;
    p.ld = a->ld;
    return p;
}

ls_status ls_qkv_wide_fwd(ls_cuda_stream *s, const ls_qkv *a)
{
    ls_status st = check(a);
    wide p = wide_of(a);

    if (st != LS_OK)
        return st;
    p.from = (const char *)a->packed;
    p.to = (char *)a->q.p;
    ls_cuda_typed(a->type, [&](auto t) {
        wide_fwd_kernel<decltype(t)><<<(unsigned)(a->B * a->T), THREADS, 0, s->stream>>>(p);
    });
    return LS_OK;
}

ls_status ls_qkv_wide_bwd(ls_cuda_stream *s, const ls_qkv *a, int64_t chunk_rows)
{
    ls_status st = check(a);
    int64_t leaves = ls_max_i64(a->leaves, 1), rows = a->B * a->T / leaves;
    int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
    wide p = wide_of(a);

    if (st != LS_OK)
        return st;
    p.from = (const char *)a->q.p;
    p.to = (char *)a->packed;
    ls_cuda_typed(a->type, [&](auto t) {
        wide_bwd_kernel<decltype(t)>
            <<<(unsigned)(leaves * chunks), THREADS, (size_t)a->D * sizeof(float), s->stream>>>(
                p, rows, chunk_rows, chunks, (float *)a->scratch);
    });
    if (a->dq_norm && !p.alone)
        ls_cuda_tree_finish(s, (const float *)a->scratch, leaves, chunks, a->D, a->D,
                            {{a->dq_norm, NULL, NULL}}, a->accumulate);
    return LS_OK;
}
