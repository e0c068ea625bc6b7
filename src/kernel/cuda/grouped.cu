/* grouped.cu -- see grouped.cuh.
 *
 * linear_fwd and linear_bwd_x: a block for each 128 rows of a group and 256 columns. There are as
 * many blocks as the worst case needs, R / 128 and one more for each group; each counts tiles along
 * the groups until it finds its own, and the last few find none and end.
 *
 *   rows of groups  300 0 20        tiles  0 1 2 | | 3        5 blocks for 320 rows: one ends
 *
 * linear_bwd_w: a block for each 128 x 256 of a group's gradient goes through the rows of the
 * group. With several leaves the sums of leaves meet along the tree (a binary counter, as in
 * cuda_linear.cu), and a block keeps those that wait for their sibling in a place of its own in the
 * stack; so there are as many blocks as places, and each does tile after tile.
 *
 * A sum depends on the rows of its leaf and group only, and on the order in which these lie. */
#include "kernel/cuda/grouped.cuh"
#include "kernel/cuda/tile.cuh"

enum {
    AT_ONCE = 128, /* groups of a launch, whose pointers travel with it */
    PLACES = 144,  /* of blocks in the stack */
};

/* --- rows ------------------------------------------------------------------------------------- */

/* y [M, columns] = x [M, depth] times the weight of the group. */
typedef struct row_job {
    const int32_t *first;
    int64_t leaves;
    int groups;
    const void *x;
    void *y;
    int64_t ldx, ldy, ldw;
    int columns, depth, slots;
    const void *w[AT_ONCE];
} row_job;

typedef struct row_place {
    int group; /* -1: there is no such tile */
    int begin, rows;
} row_place;

/* The rows of tile number `tile`; by all threads of a block. */
__device__ void find_tile(const row_job &job, int tile, row_place *place)
{
    __shared__ int before[AT_ONCE / 32];
    int t = (int)threadIdx.x, lane = t % 32, begin = 0, rows = 0;

    if (t == 0)
        place->group = -1;
    if (t < job.groups) {
        begin = job.first[t * job.leaves];
        rows = job.first[(t + 1) * job.leaves] - begin;
    }
    int own = (rows + LS_TILE_ROWS - 1) / LS_TILE_ROWS, end = own;
#pragma unroll
    for (int k = 1; k < 32; k *= 2) {
        int other = __shfl_up_sync(0xffffffffu, end, k);
        end += lane >= k ? other : 0;
    }
    if (t < AT_ONCE && lane == 31)
        before[t / 32] = end;
    __syncthreads();
    for (int i = 0; i < t / 32 && i < AT_ONCE / 32; i++)
        end += before[i];
    if (t < job.groups && tile >= end - own && tile < end) {
        int at = (tile - (end - own)) * LS_TILE_ROWS;
        place->group = t;
        place->begin = begin + at;
        place->rows = min(rows - at, (int)LS_TILE_ROWS);
    }
    __syncthreads();
}

/* Two elements side by side, as far as they are there. */
template <bool WIDE, typename T>
__device__ inline void put_pair(T *to, int column, int columns, float x, float y)
{
    if (column >= columns)
        return;
    if constexpr (WIDE && sizeof(T) == 2) {
        *reinterpret_cast<uint32_t *>(to + column) = ls_put2<T>(x, y);
    } else {
        to[column] = ls_put<T>(x);
        if (column + 1 < columns)
            to[column + 1] = ls_put<T>(y);
    }
}

/* TURNED: the weight is [depth, columns]; else [columns, depth]. */
template <class ENGINE, bool WIDE, bool TURNED>
__global__ void __launch_bounds__(LS_TILE_THREADS, 1)
    rows_kernel(const __grid_constant__ row_job job)
{
    typedef typename ENGINE::type T;
    extern __shared__ char raw[];
    __shared__ row_place place;
    int column = (int)blockIdx.x * LS_TILE_COLUMNS;
    float sum[LS_TILE_SUMS];

    find_tile(job, (int)blockIdx.y, &place);
    if (place.group < 0)
        return;
    const T *w = (const T *)job.w[place.group];
    ls_operand<T> a = {(const T *)job.x + place.begin * job.ldx, job.ldx, place.rows};
    ls_operand<T> b = {w + (TURNED ? column : column * job.ldw), job.ldw, job.columns - column};
    ENGINE::template run<false, TURNED>(sum, a, b, job.depth, ls_tile_shared(raw), job.slots);
    ENGINE::each(sum, [&](int i, int j, float x, float y) {
        if (i < place.rows)
            put_pair<WIDE>((T *)job.y + (place.begin + i) * job.ldy, column + j, job.columns, x, y);
    });
}

/* --- weights ---------------------------------------------------------------------------------- */

/* dw [N, K] of each group (+)= dy^T x over its rows. */
typedef struct weight_job {
    const int32_t *first;
    int64_t leaves;
    const void *x, *dy;
    int64_t ldx, ldy;
    int N, K, tiles_k, tiles_each; /* tiles of a group */
    int64_t tiles;                 /* of all */
    bool accumulate;
    float *stack;
    int levels, slots; /* of a place in it; of stages */
    float *dw[AT_ONCE];
} weight_job;

/* Leaf sums of one tile joined along the tree, in sum. */
template <class ENGINE>
__device__ void sum_leaves(const weight_job &job, int group, int64_t row, int64_t column,
                           char *shared, float (&sum)[LS_TILE_SUMS])
{
    typedef typename ENGINE::type T;
    const int32_t *cell = job.first + group * job.leaves;
    float *place = job.stack + (int64_t)blockIdx.x * job.levels * LS_TILE_ALL + threadIdx.x;
    int waiting = 0;

    for (int64_t leaf = 0; leaf < job.leaves; leaf++) {
        int64_t begin = cell[leaf];
        ls_operand<T> a = {(const T *)job.dy + begin * job.ldy + row, job.ldy, job.N - (int)row};
        ls_operand<T> b = {(const T *)job.x + begin * job.ldx + column, job.ldx,
                           job.K - (int)column};
        ENGINE::template run<true, true>(sum, a, b, cell[leaf + 1] - cell[leaf], shared, job.slots);
        bool last = leaf + 1 == job.leaves;
        int merges = last ? waiting : __ffsll(leaf + 1) - 1;
        for (; merges > 0; merges--) {
            const float *below = place + (int64_t)--waiting * LS_TILE_ALL;
#pragma unroll
            for (int i = 0; i < LS_TILE_SUMS; i++)
                sum[i] = below[i * LS_TILE_THREADS] + sum[i];
        }
        if (!last) {
            float *to = place + (int64_t)waiting++ * LS_TILE_ALL;
#pragma unroll
            for (int i = 0; i < LS_TILE_SUMS; i++)
                to[i * LS_TILE_THREADS] = sum[i];
        }
    }
}

template <class ENGINE, bool WIDE>
__global__ void __launch_bounds__(LS_TILE_THREADS, 1)
    weights_kernel(const __grid_constant__ weight_job job)
{
    extern __shared__ char raw[];
    char *shared = ls_tile_shared(raw);
    float sum[LS_TILE_SUMS];

    for (int64_t tile = blockIdx.x; tile < job.tiles; tile += gridDim.x) {
        int group = (int)(tile / job.tiles_each), at = (int)(tile % job.tiles_each);
        int row = at / job.tiles_k * LS_TILE_ROWS;
        int column = at % job.tiles_k * LS_TILE_COLUMNS;
        const int32_t *cell = job.first + group * job.leaves;
        float *dw = job.dw[group];
        if (!dw || (job.accumulate && cell[0] == cell[job.leaves]))
            continue;
        sum_leaves<ENGINE>(job, group, row, column, shared, sum);
        ENGINE::each(sum, [&](int i, int j, float x, float y) {
            if (row + i >= job.N || column + j >= job.K)
                return;
            float *to = dw + (int64_t)(row + i) * job.K + column + j;
            bool both = column + j + 1 < job.K;
            if (job.accumulate) {
                x = to[0] + x;
                y = both ? to[1] + y : y;
            }
            if constexpr (WIDE) {
                *reinterpret_cast<float2 *>(to) = make_float2(x, y);
            } else {
                to[0] = x;
                if (both)
                    to[1] = y;
            }
        });
    }
}

/* --- host ------------------------------------------------------------------------------------- */

/* Pointer g of those that lie `step` bytes apart. */
static void *pointer_at(const void *first, int64_t step, int64_t g)
{
    void *p;

    memcpy(&p, (const char *)first + g * step, sizeof p);
    return p;
}

/* Stages that this card has room for in a block. */
static int slots_of(const ls_cuda_stream *s)
{
    int room = (s->device->shared_bytes - 2 * LS_TILE_ALIGN) / LS_TILE_STAGE;

    return room < LS_TILE_SLOTS ? room : LS_TILE_SLOTS;
}

template <class KERNEL, class JOB>
static ls_status launch(ls_cuda_stream *s, KERNEL kernel, dim3 grid, int shared, const JOB &job)
{
    ls_status st = ls_cuda_ok(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "set the shared memory of a product");

    if (st == LS_OK)
        kernel<<<grid, LS_TILE_THREADS, (size_t)shared, s->stream>>>(job);
    return st;
}

template <class ENGINE, bool WIDE, bool TURNED>
static ls_status launch_rows(ls_cuda_stream *s, const ls_groups *g, int64_t M, row_job *job)
{
    dim3 grid((unsigned)((job->columns + LS_TILE_COLUMNS - 1) / LS_TILE_COLUMNS), 1);

    for (int64_t from = 0; from < g->n; from += AT_ONCE) {
        job->groups = (int)ls_min_i64(AT_ONCE, g->n - from);
        job->first = g->first + from * g->leaves;
        for (int i = 0; i < job->groups; i++)
            job->w[i] = pointer_at(g->w, g->step, from + i);
        grid.y = (unsigned)(M / LS_TILE_ROWS + ls_min_i64(job->groups, M));
        ls_status st =
            launch(s, rows_kernel<ENGINE, WIDE, TURNED>, grid, ENGINE::shared(job->slots), *job);
        if (st != LS_OK)
            return st;
    }
    return LS_OK;
}

/* Whether all pointers to weights allow 16-byte accesses. */
static bool all_aligned(const void *first, const ls_groups *g)
{
    for (int64_t i = 0; i < g->n; i++)
        if (!ls_cuda_aligned(pointer_at(first, g->step, i), 16))
            return false;
    return true;
}

template <bool TURNED>
static ls_status queue_rows(ls_cuda_stream *s, ls_dtype type, const ls_groups *g, int64_t M,
                            row_job *job)
{
    bool wide = job->ldx % 8 == 0 && job->ldy % 8 == 0 && job->ldw % 8 == 0 &&
                job->columns % 8 == 0 && job->depth % 8 == 0 && ls_cuda_aligned(job->x, 16) &&
                ls_cuda_aligned(job->y, 16) && all_aligned(g->w, g);

    if (M == 0)
        return LS_OK;
    return ls_cuda_typed(type, [&](auto t) {
        typedef decltype(t) T;
        if constexpr (std::is_same<T, float>::value)
            return launch_rows<ls_tile_float, false, TURNED>(s, g, M, job);
        else
            return wide ? launch_rows<ls_tile_half<T, true>, true, TURNED>(s, g, M, job)
                        : launch_rows<ls_tile_half<T, false>, false, TURNED>(s, g, M, job);
    });
}

static ls_status check(const ls_groups *g, ls_layout layout, int64_t N, int64_t K)
{
    LS_BUG_IF(layout != LS_LAYOUT_NK || g->n < 1 || g->leaves < 1, "a product of %lld groups",
              (long long)g->n);
    if (N > INT32_MAX / 2 || K > INT32_MAX / 2)
        return ls_fail(LS_EUSAGE, "an expert's weight of %lld x %lld is too large", (long long)N,
                       (long long)K);
    return LS_OK;
}

ls_status ls_grouped_fwd(ls_cuda_stream *s, const ls_linear_fwd *a)
{
    ls_status st = check(a->groups, a->layout, a->N, a->K);
    row_job job = {};

    LS_BUG_IF(a->b || a->z || a->add || a->act != LS_ACT_NONE || a->accumulate,
              "a product of groups with something on top");
    if (st != LS_OK)
        return st;
    job.leaves = a->groups->leaves;
    job.slots = slots_of(s);
    job.x = a->x;
    job.y = a->y;
    job.ldx = job.ldw = a->K;
    job.ldy = a->ldy ? a->ldy : a->N;
    job.columns = (int)a->N;
    job.depth = (int)a->K;
    return queue_rows<false>(s, a->type, a->groups, a->M, &job);
}

ls_status ls_grouped_bwd_x(ls_cuda_stream *s, const ls_linear_bwd_x *a)
{
    ls_status st = check(a->groups, a->layout, a->N, a->K);
    row_job job = {};

    LS_BUG_IF(a->act != LS_ACT_NONE || a->accumulate, "a product of groups with something on top");
    if (st != LS_OK)
        return st;
    job.leaves = a->groups->leaves;
    job.slots = slots_of(s);
    job.x = a->dy;
    job.y = a->dx;
    job.ldx = a->ldy ? a->ldy : a->N;
    job.ldy = job.ldw = a->K;
    job.columns = (int)a->K;
    job.depth = (int)a->N;
    return queue_rows<true>(s, a->type, a->groups, a->M, &job);
}

static int levels_of(int64_t leaves)
{
    int levels = 0;

    while (INT64_C(1) << levels < leaves)
        levels++;
    return levels;
}

int64_t ls_grouped_stack(int64_t leaves)
{
    return (int64_t)PLACES * levels_of(leaves) * LS_TILE_ALL;
}

template <class ENGINE, bool WIDE>
static ls_status launch_weights(ls_cuda_stream *s, const ls_groups *g, weight_job *job)
{
    for (int64_t from = 0; from < g->n; from += AT_ONCE) {
        int64_t n = ls_min_i64(AT_ONCE, g->n - from), blocks;
        bool any = false;
        job->first = g->first + from * g->leaves;
        for (int i = 0; i < n; i++) {
            job->dw[i] = (float *)pointer_at(g->dw, g->step, from + i);
            any = any || job->dw[i];
        }
        if (!any)
            continue;
        blocks = job->tiles = n * job->tiles_each;
        if (g->leaves > 1)
            blocks = ls_min_i64(ls_min_i64(blocks, s->device->multiprocessors),
                                g->stack_floats / ((int64_t)job->levels * LS_TILE_ALL));
        LS_BUG_IF(blocks < 1 || blocks > INT32_MAX, "%lld blocks for a product of groups",
                  (long long)blocks);
        ls_status st = launch(s, weights_kernel<ENGINE, WIDE>, dim3((unsigned)blocks),
                              ENGINE::shared(job->slots), *job);
        if (st != LS_OK)
            return st;
    }
    return LS_OK;
}

ls_status ls_grouped_bwd_w(ls_cuda_stream *s, const ls_linear_bwd_w *a)
{
    const ls_groups *g = a->groups;
    ls_status st = check(g, a->layout, a->N, a->K);
    weight_job job = {};

    LS_BUG_IF(a->db || a->leaves != g->leaves, "a product of groups with something on top");
    if (st != LS_OK)
        return st;
    job.leaves = g->leaves;
    job.slots = slots_of(s);
    job.x = a->x;
    job.dy = a->dy;
    job.ldx = a->K;
    job.ldy = a->ldy ? a->ldy : a->N;
    job.N = (int)a->N;
    job.K = (int)a->K;
    job.tiles_k = (job.K + LS_TILE_COLUMNS - 1) / LS_TILE_COLUMNS;
    job.tiles_each = (job.N + LS_TILE_ROWS - 1) / LS_TILE_ROWS * job.tiles_k;
    job.accumulate = a->accumulate;
    job.stack = g->stack;
    job.levels = levels_of(g->leaves);
    bool wide = a->N % 8 == 0 && a->K % 8 == 0 && job.ldy % 8 == 0 && ls_cuda_aligned(a->x, 16) &&
                ls_cuda_aligned(a->dy, 16) && all_aligned(g->dw, g);
    return ls_cuda_typed(a->type, [&](auto t) {
        typedef decltype(t) T;
        if constexpr (std::is_same<T, float>::value)
            return launch_weights<ls_tile_float, false>(s, g, &job);
        else
            return wide ? launch_weights<ls_tile_half<T, true>, true>(s, g, &job)
                        : launch_weights<ls_tile_half<T, false>, false>(s, g, &job);
    });
}
