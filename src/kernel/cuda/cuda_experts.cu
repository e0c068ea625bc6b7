/* cuda_experts.cu -- what a mixture of experts does beside its products: routing, sorting rows by
 * expert, and weighing what comes back (kernel/experts.h has the formulas).
 *
 * A warp has a token: its lanes have experts e = lane, lane + 32, ... and choose the largest K
 * times. Sorting is a counting sort in three kernels that use no order of arrival, so that its
 * outcome is that of one pass on a CPU:
 *
 *   count   choices of each expert in each chunk of 1024 choices, which never crosses a leaf
 *   offset  where the rows of each (expert, chunk) begin: sums along chunks, then along experts
 *   place   each choice behind those of its expert that come before it in its chunk, warp by warp
 *
 * Everything else is a copy or a sum of K rows, element by element, at the speed of memory. Rows
 * that other ranks sent (model/pass_expert_parallel.c) come in a stretch for each rank and expert:
 * a column of blocks copies each to its place. */
#include "kernel/cuda/grouped.cuh"
#include "kernel/cuda/cuda_experts.cuh"

enum { THREADS = 256, WARPS = 8, CHUNK = 1024, MOST_EXPERTS = 1024 };

static unsigned blocks_for(int64_t n, int64_t each)
{
    return (unsigned)((n + each - 1) / each);
}

/* --- choices ---------------------------------------------------------------------------------- */

/* The largest of p that is not taken (below 0), by a whole warp; the lower number among equals. All
 * lanes get one answer, even where no number compares (NaN). */
__device__ int best_of(const float *p, int E)
{
    int lane = (int)threadIdx.x % 32, best = -1;
    float value = 0;

    for (int e = lane; e < E; e += 32)
        if (!(p[e] < 0) && (best < 0 || p[e] > value)) {
            best = e;
            value = p[e];
        }
#pragma unroll
    for (int k = 16; k > 0; k /= 2) {
        int other = __shfl_xor_sync(0xffffffffu, best, k);
        float its = __shfl_xor_sync(0xffffffffu, value, k);
        if (other >= 0 && (best < 0 || its > value || (its == value && other < best))) {
            best = other;
            value = its;
        }
    }
    return __shfl_sync(0xffffffffu, best, 0);
}

/* Shared memory: [WARPS][E], the probabilities of each token. */
template <typename T> __global__ void choose_kernel(ls_route a)
{
    extern __shared__ float probs[];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, E = (int)a.E;
    int64_t m = (int64_t)blockIdx.x * WARPS + warp;
    float *p = probs + warp * E, top = -INFINITY, sum = 0, chosen = 0;

    if (m >= a.M)
        return;
    const T *logits = (const T *)a.logits + m * E;
    for (int e = lane; e < E; e += 32)
        top = fmaxf(top, ls_get(logits[e]));
    top = ls_warp_max(top);
    for (int e = lane; e < E; e += 32) {
        p[e] = expf(ls_get(logits[e]) - top);
        sum += p[e];
    }
    sum = ls_warp_sum(sum);
    for (int e = lane; e < E; e += 32) {
        p[e] /= sum;
        a.probs[m * E + e] = p[e];
    }
    if (lane == 0)
        a.lse[m] = top + logf(sum);
    float *weights = a.weights + m * a.K;
    for (int k = 0; k < a.K; k++) {
        __syncwarp();
        int best = best_of(p, E);
        chosen += p[best];
        __syncwarp();
        if (lane == 0) {
            a.ids[m * a.K + k] = best;
            weights[k] = p[best];
            p[best] = -1;
        }
    }
    __syncwarp();
    for (int k = lane; k < a.K && a.normalized; k += 32)
        weights[k] /= chosen;
}

/* --- sorting ---------------------------------------------------------------------------------- */

/* Choices of leaf l lie in chunks l * each .. (l + 1) * each - 1. */
typedef struct chunks {
    int64_t leaf_rows, each, count;
} chunks;

static chunks chunks_of(const ls_route *a)
{
    int64_t leaf_rows = a->M * a->K / a->leaves, each = (leaf_rows + CHUNK - 1) / CHUNK;
    chunks c = {leaf_rows, each, each * a->leaves};

    return c;
}

/* The choices of a chunk: from, and behind the last. */
__device__ inline void chunk_range(const chunks &c, int64_t chunk, int64_t &from, int64_t &end)
{
    int64_t leaf = chunk / c.each;

    from = leaf * c.leaf_rows + chunk % c.each * CHUNK;
    end = min(from + CHUNK, (leaf + 1) * c.leaf_rows);
}

/* counts[e][chunk]. */
__global__ void count_kernel(ls_route a, chunks c, int32_t *counts)
{
    extern __shared__ int32_t here[];
    int64_t from, end;

    for (int64_t e = threadIdx.x; e < a.E; e += blockDim.x)
        here[e] = 0;
    __syncthreads();
    chunk_range(c, blockIdx.x, from, end);
    for (int64_t i = from + threadIdx.x; i < end; i += blockDim.x)
        atomicAdd(&here[a.ids[i]], 1);
    __syncthreads();
    for (int64_t e = threadIdx.x; e < a.E; e += blockDim.x)
        counts[e * c.count + blockIdx.x] = here[e];
}

__device__ inline int32_t sum_up_to(int32_t x) /* over the lanes of a warp, own one included */
{
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int k = 1; k < 32; k *= 2) {
        int32_t other = __shfl_up_sync(0xffffffffu, x, k);
        x += lane >= k ? other : 0;
    }
    return x;
}

/* One block of 1024: counts become the first row of each (expert, chunk); and first. */
__global__ void offset_kernel(ls_route a, chunks c, int32_t *counts)
{
    __shared__ int32_t total[MOST_EXPERTS], warps[32];
    int t = (int)threadIdx.x, lane = t % 32, warp = t / 32, E = (int)a.E;

    for (int e = warp; e < E; e += 32) { /* a warp sums along the chunks of an expert */
        int32_t *row = counts + e * c.count, before = 0;
        for (int64_t i = lane; i - lane < c.count; i += 32) {
            int32_t n = i < c.count ? row[i] : 0, end = before + sum_up_to(n);
            if (i < c.count)
                row[i] = end - n;
            before = __shfl_sync(0xffffffffu, end, 31);
        }
        if (lane == 0)
            total[e] = before;
    }
    __syncthreads();
    int32_t own = t < E ? total[t] : 0, end = sum_up_to(own);
    if (lane == 31)
        warps[warp] = end;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        end += warps[i];
    if (t < E)
        total[t] = end - own;
    __syncthreads();
    for (int64_t i = t; i < E * c.count; i += blockDim.x)
        counts[i] += total[i / c.count];
    __syncthreads();
    for (int64_t i = t; i < E * a.leaves; i += blockDim.x)
        a.first[i] = counts[i / a.leaves * c.count + i % a.leaves * c.each];
    if (t == 0)
        a.first[E * a.leaves] = (int32_t)(a.M * a.K);
}

/* Warps take turns, so that a choice knows how many came before it. */
__global__ void place_kernel(ls_route a, chunks c, const int32_t *counts)
{
    extern __shared__ int32_t next[];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t from, end;

    for (int64_t e = threadIdx.x; e < a.E; e += blockDim.x)
        next[e] = counts[e * c.count + blockIdx.x];
    chunk_range(c, blockIdx.x, from, end);
    int64_t i = from + threadIdx.x;
    int32_t id = i < end ? a.ids[i] : -1;
    for (int turn = 0; turn < CHUNK / 32; turn++) {
        __syncthreads();
        if (turn != warp)
            continue;
        unsigned same = __match_any_sync(0xffffffffu, id);
        int32_t row = id >= 0 ? next[id] + __popc(same & ((1u << lane) - 1)) : 0;
        __syncwarp();
        if (id >= 0 && (same >> lane) == 1) /* the last of its kind */
            next[id] = row + 1;
        if (id >= 0) {
            a.rows[i] = row;
            a.slots[row] = (int32_t)i;
        }
    }
}

/* Choices of each sequence: a block has one. */
__global__ void chosen_kernel(ls_route a)
{
    extern __shared__ int32_t here[];
    int64_t each = a.M * a.K / a.sequences;

    for (int64_t e = threadIdx.x; e < a.E; e += blockDim.x)
        here[e] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < each; i += blockDim.x)
        atomicAdd(&here[a.ids[blockIdx.x * each + i]], 1);
    __syncthreads();
    for (int64_t e = threadIdx.x; e < a.E; e += blockDim.x)
        a.chosen[blockIdx.x * a.E + e] = here[e];
}

static ls_status check(const char *what, ls_dtype type, int64_t E)
{
    if (type != LS_F32 && type != LS_BF16 && type != LS_F16)
        return ls_fail(LS_EUSAGE, "%s: a GPU computes in fp32, bf16 or fp16 here, not in type %d",
                       what, (int)type);
    if (E > MOST_EXPERTS)
        return ls_fail(LS_EUSAGE, "%s: %lld experts are more than %d", what, (long long)E,
                       (int)MOST_EXPERTS);
    return LS_OK;
}

static void route(ls_stream *stream, const ls_route *a)
{
    ls_cuda_row row(stream, "experts: route");
    chunks c = chunks_of(a);
    size_t shared = (size_t)a->E * sizeof(int32_t);
    cudaStream_t queue = row.queue();

    if (!row.on || !row.ok(check("route", a->type, a->E)) || a->M == 0)
        return;
    int32_t *counts = (int32_t *)ls_cuda_arena(row.s, a->E * c.count * (int64_t)sizeof(int32_t));
    if (!counts) {
        row.ok(LS_ENOMEM);
        return;
    }
    ls_cuda_typed(a->type, [&](auto t) {
        choose_kernel<decltype(t)>
            <<<blocks_for(a->M, WARPS), THREADS, WARPS * a->E * sizeof(float), queue>>>(*a);
    });
    count_kernel<<<(unsigned)c.count, THREADS, shared, queue>>>(*a, c, counts);
    offset_kernel<<<1, 1024, 0, queue>>>(*a, c, counts);
    place_kernel<<<(unsigned)c.count, CHUNK, shared, queue>>>(*a, c, counts);
    chosen_kernel<<<(unsigned)a->sequences, THREADS, shared, queue>>>(*a);
}

/* --- choices, back ---------------------------------------------------------------------------- */

/* A warp has a token; as route_back_token() of kernel/experts.c. */
template <typename T> __global__ void route_back_kernel(ls_route a, ls_route_back b)
{
    int lane = (int)threadIdx.x % 32;
    int64_t m = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    float mean = 0, chosen = 0, sum = 0;

    if (m >= a.M)
        return;
    const float *p = a.probs + m * a.E, *dw = b.dweights + m * a.K;
    const float *weights = a.weights + m * a.K;
    const int32_t *ids = a.ids + m * a.K, *choices = a.chosen + m / (a.M / a.sequences) * a.E;
    float scale = b.state->grad_scale, tokens = (float)(a.M / a.sequences * max(a.ranks, 1l));
    for (int64_t k = 0; k < a.K; k++) {
        mean += dw[k] * weights[k];
        chosen += p[ids[k]];
    }
    auto slope = [&](int64_t e) { /* of the loss by p[e] */
                                  float d = 0;
                                  for (int64_t k = 0; k < a.K; k++)
                                      if (ids[k] == e)
                                          d = a.normalized ? (dw[k] - mean) / chosen : dw[k];
                                  return d + scale * b.balance * (float)a.E *
                                                 ((float)choices[e] / tokens);
    };
    for (int64_t e = lane; e < a.E; e += 32)
        sum += p[e] * slope(e);
    sum = ls_warp_sum(sum);
    float z = 2 * scale * b.z * a.lse[m];
    for (int64_t e = lane; e < a.E; e += 32)
        ((T *)b.dlogits)[m * a.E + e] = ls_put<T>(p[e] * (slope(e) - sum + z));
}

static void route_back(ls_stream *stream, const ls_route_back *b)
{
    ls_cuda_row row(stream, "experts: route back");
    const ls_route *a = b->route;

    if (!row.on || !row.ok(check("route back", a->type, a->E)) || a->M == 0)
        return;
    ls_cuda_typed(a->type, [&](auto t) {
        route_back_kernel<decltype(t)>
            <<<blocks_for(a->M, WARPS), THREADS, 0, row.queue()>>>(*a, *b);
    });
}

/* --- rows ------------------------------------------------------------------------------------- */

/* What the kernels below read of an ls_experts. */
typedef struct rows_job {
    const int32_t *rows, *slots;
    const float *weights; /* NULL: all are 1 */
    const void *from, *add;
    void *to;
    const void *dy;
    float *dweights;
    int64_t M, K, C;
} rows_job;

/* to[i] = from[token of routed row i]. */
template <int VEC, typename T> __global__ void gather_kernel(rows_job a)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x, each = a.C / VEC, n = a.M * a.K * each;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        int64_t row = i / each, c = (i - row * each) * VEC;
        const T *from = (const T *)a.from + a.slots[row] / a.K * a.C + c;
        T *to = (T *)a.to + row * a.C + c;
        if constexpr (VEC == 1)
            *to = *from;
        else
            *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    }
}

/* to[m] = add[m] + sum of weight * from[routed row], in the order of choices. */
template <int VEC, typename T> __global__ void sum_kernel(rows_job a)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x, each = a.C / VEC, n = a.M * each;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        int64_t m = i / each, c = (i - m * each) * VEC;
        float sum[VEC] = {}, x[VEC];
        for (int64_t k = 0; k < a.K; k++) {
            int64_t slot = m * a.K + k;
            float weight = a.weights ? a.weights[slot] : 1.0f;
            ls_load_run<VEC>((const T *)a.from + a.rows[slot] * a.C + c, x);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                sum[j] += weight * x[j];
        }
        if (a.add) {
            ls_load_run<VEC>((const T *)a.add + m * a.C + c, x);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                sum[j] = x[j] + sum[j];
        }
        ls_store<VEC>((T *)a.to + m * a.C + c, sum);
    }
}

/* A warp has a routed row: dweight = dy . to, then to = weight dy. */
template <int VEC, typename T> __global__ void spread_kernel(rows_job a)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    float dot = 0;

    if (row >= a.M * a.K)
        return;
    int64_t slot = a.slots[row];
    const T *dy = (const T *)a.dy + slot / a.K * a.C;
    T *to = (T *)a.to + row * a.C;
    float weight = a.weights[slot];
    for (int64_t c = lane * VEC; c < a.C; c += 32 * VEC) {
        float d[VEC], y[VEC];
        ls_load_run<VEC>(dy + c, d);
        ls_load_run<VEC>(to + c, y);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            dot = fmaf(d[j], y[j], dot);
            y[j] = weight * d[j];
        }
        ls_store<VEC>(to + c, y);
    }
    dot = ls_warp_sum(dot);
    if (lane == 0)
        a.dweights[slot] = dot;
}

static rows_job job_of(const ls_experts *a)
{
    const ls_route *r = a->route;
    rows_job job = {};

    job.rows = r->rows;
    job.slots = r->slots;
    job.M = r->M;
    job.K = r->K;
    job.C = a->C;
    return job;
}

/* f(zero of the type, number of elements of an access), for a job whose tensors are these. */
template <typename F> static void by_access(ls_dtype type, const rows_job &job, F f)
{
    ls_cuda_typed(type, [&](auto t) {
        constexpr int VEC = ls_vec_of<decltype(t)>::n;
        bool fits = job.C % VEC == 0 && ls_cuda_aligned(job.from, 16) &&
                    ls_cuda_aligned(job.to, 16) && ls_cuda_aligned(job.add, 16) &&
                    ls_cuda_aligned(job.dy, 16);
        if (fits)
            f(t, std::integral_constant<int, VEC>());
        else
            f(t, std::integral_constant<int, 1>());
    });
}

static void gather(ls_stream *stream, const ls_experts *a)
{
    ls_cuda_row row(stream, "experts: gather");
    rows_job job = job_of(a);

    if (!row.on || !row.ok(check("gather", a->route->type, a->route->E)) || job.M == 0)
        return;
    job.from = a->x;
    job.to = a->xs;
    by_access(a->route->type, job, [&](auto t, auto vec) {
        gather_kernel<vec.value, decltype(t)>
            <<<ls_cuda_grid(row.s, job.M * job.K * job.C / vec.value, THREADS), THREADS, 0,
               row.queue()>>>(job);
    });
}

/* combine, and collect without weights. */
static void sum_rows(ls_cuda_row &row, ls_dtype type, const rows_job &job)
{
    by_access(type, job, [&](auto t, auto vec) {
        sum_kernel<vec.value, decltype(t)>
            <<<ls_cuda_grid(row.s, job.M * job.C / vec.value, THREADS), THREADS, 0, row.queue()>>>(
                job);
    });
}

static void combine(ls_stream *stream, const ls_experts *a)
{
    ls_cuda_row row(stream, "experts: combine");
    rows_job job = job_of(a);

    if (!row.on || !row.ok(check("combine", a->route->type, a->route->E)) || job.M == 0)
        return;
    job.weights = a->route->weights;
    job.from = a->ys;
    job.add = a->add;
    job.to = a->y;
    sum_rows(row, a->route->type, job);
}

static void spread(ls_stream *stream, const ls_experts *a)
{
    ls_cuda_row row(stream, "experts: spread");
    rows_job job = job_of(a);

    if (!row.on || !row.ok(check("spread", a->route->type, a->route->E)) || job.M == 0)
        return;
    job.weights = a->route->weights;
    job.dy = a->dy;
    job.to = a->ys;
    job.dweights = a->dweights;
    by_access(a->route->type, job, [&](auto t, auto vec) {
        spread_kernel<vec.value, decltype(t)>
            <<<blocks_for(job.M * job.K, WARPS), THREADS, 0, row.queue()>>>(job);
    });
}

static void collect(ls_stream *stream, const ls_experts *a)
{
    ls_cuda_row row(stream, "experts: collect");
    rows_job job = job_of(a);

    if (!row.on || !row.ok(check("collect", a->route->type, a->route->E)) || job.M == 0)
        return;
    job.from = a->xs;
    job.to = a->dx;
    sum_rows(row, a->route->type, job);
}

/* --- rows of several sources ------------------------------------------------------------------ */

/* A stretch of rows of one source and one expert, by the blocks of a column. */
template <typename V> __global__ void regroup_kernel(ls_regroup a)
{
    int64_t index = blockIdx.x, source = index / a.experts, e = index % a.experts;
    int64_t each = a.row_bytes / (int64_t)sizeof(V), step = (int64_t)gridDim.y * blockDim.x;
    int64_t n = (a.by_source[index + 1] - a.by_source[index]) * each;
    int64_t one = a.by_source[index] * each, other = a.by_expert[e * a.sources + source] * each;
    const V *from = (const V *)a.from + (a.back ? other : one);
    V *to = (V *)a.to + (a.back ? one : other);

    for (int64_t i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x; i < n; i += step)
        to[i] = from[i];
}

static void regroup(ls_stream *stream, const ls_regroup *a)
{
    ls_cuda_row row(stream, "experts: regroup");
    dim3 grid((unsigned)(a->sources * a->experts), 16);

    if (!row.on)
        return;
    if (a->row_bytes % 16 == 0 && ls_cuda_aligned(a->from, 16) && ls_cuda_aligned(a->to, 16))
        regroup_kernel<uint4><<<grid, THREADS, 0, row.queue()>>>(*a);
    else
        regroup_kernel<uint16_t><<<grid, THREADS, 0, row.queue()>>>(*a);
}

const ls_experts_table ls_cuda_experts = {
    .stamp = ls_experts_stamp(),
    .route = route,
    .route_back = route_back,
    .gather = gather,
    .combine = combine,
    .spread = spread,
    .collect = collect,
    .regroup = regroup,
    .stack = ls_grouped_stack,
};
