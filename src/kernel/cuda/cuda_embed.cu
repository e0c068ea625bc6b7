/* cuda_embed.cu -- token and position vectors, and the sums that are their gradients.
 *
 * The gradient sorts the rows by token on the device (a stable radix sort, so each token's rows
 * stay in order); the rows of one token in one leaf are a run. A run is summed in pieces of PIECE
 * rows: each piece one after the other, then the pieces one after the other, so the order depends
 * on the rows of the leaf only. No atomic adds.
 *
 * One leaf: threads own the pieces that begin in a stretch of OWN places of the sorted list; the
 * pieces of a run that has several meet in scratch. So a very common token does not delay the others.
 * Several leaves: a block owns all rows of one token and some columns; runs climb the tree over
 * leaves; a leaf without the token is left out of it (its sum would be +0). Positions are the same
 * sums over rows t, T + t, 2 T + t, ...; where they begin anew in each document, rows are sorted by
 * position as they are by token.
 *
 * Tokens outside the vocabulary are reported through the fault cells and sorted behind all others,
 * where they are not read. */
#include "kernel/cuda/common.cuh"
#include "kernel/noise.h"

#include <cub/device/device_radix_sort.cuh>

enum { THREADS = 256, LANES = 8, COLUMNS = 32, PIECE = 64, OWN = 8, AHEAD = 4 };

/* --- forward -------------------------------------------------------------------------------- */

template <typename T> struct fwd_args {
    const int32_t *tokens;
    const T *wte, *wpe;
    T *y;
    int64_t M, C, tokens_per_seq, V, past;
    int64_t first, vocab; /* wte holds tokens from first on, of this many */
    ls_piece piece;
    const int32_t *start;
    float noise;
    ls_drop drop;
    ls_cuda_fault *faults;
};

/* The position of a row in its sequence, or in its document, where those have starts. */
__device__ inline int64_t position_of(const ls_piece &piece, const int32_t *start, int64_t row,
                                      int64_t T)
{
    return ls_position(piece, row % T) - (start ? start[row] : 0);
}

/* The noise of VEC columns from `column` on. */
template <int VEC>
__device__ inline void noise_of(const ls_drop &d, float scale, int64_t row, int64_t column,
                                int64_t T, float (&x)[VEC])
{
    int64_t number = d.first_row + row;
    int64_t position = ls_position(d.piece, number % T);
    uint32_t sequence = d.state->first_seq + (uint32_t)(number / T);

#pragma unroll
    for (int i = 0; i < VEC; i += 4) {
        ls_rng_block b = ls_noise_words(d.state->key, column + i, position, sequence);
#pragma unroll
        for (int k = 0; k < 4 && i + k < VEC; k++)
            x[i + k] += ls_noise_of(ls_word<VEC>(b, k, column), scale);
    }
}

template <int VEC, typename T> __global__ void fwd_kernel(fwd_args<T> a)
{
    uint32_t per_row = (uint32_t)(a.C / VEC);
    int64_t step = (int64_t)gridDim.x * blockDim.x, vectors = a.M * per_row;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += step) {
        int64_t row = i / per_row, c = (i - row * per_row) * VEC;
        int32_t token = a.tokens[row];
        float x[VEC], p[VEC], factor[VEC];
        if ((token < 0 || token >= a.vocab) && c == 0)
            ls_fault(a.faults, LS_ROW_EMBED_FWD, row, token);
        int64_t here = token - a.first;
        bool own = here >= 0 && here < a.V; /* else another rank has it */
        if (own)
            ls_load_run<VEC>(a.wte + here * a.C + c, x);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            x[k] = own ? x[k] : 0.0f;
        if (a.wpe) {
            int64_t t = position_of(a.piece, a.start, row, a.tokens_per_seq);
            ls_load_run<VEC>(a.wpe + (a.past + t) * a.C + c, p);
#pragma unroll
            for (int k = 0; k < VEC; k++)
                x[k] += p[k];
        }
        if (a.noise > 0)
            noise_of<VEC>(a.drop, a.noise, row, c, a.tokens_per_seq, x);
        if (a.drop.p > 0) {
            ls_keep<VEC>(a.drop, row, c, a.tokens_per_seq, factor);
#pragma unroll
            for (int k = 0; k < VEC; k++)
                x[k] *= factor[k];
        }
        ls_store<VEC>(a.y + row * a.C + c, x);
    }
}

template <typename T> static void fwd(ls_cuda_stream *s, const ls_embed_fwd *a)
{
    constexpr int VEC = ls_vec_of<T>::n;
    fwd_args<T> k = {a->tokens,
                     (const T *)a->wte,
                     (const T *)a->wpe,
                     (T *)a->y,
                     a->M,
                     a->C,
                     a->T,
                     a->V,
                     a->past,
                     a->first,
                     a->vocab ? a->vocab : a->V,
                     a->piece,
                     a->start,
                     a->noise,
                     ls_drop_of(a->drop),
                     s->faults};

    if (a->C % VEC == 0 && ls_cuda_aligned(a->wte, 16) && ls_cuda_aligned(a->wpe, 16) &&
        ls_cuda_aligned(a->y, 16))
        fwd_kernel<VEC, T>
            <<<ls_cuda_grid(s, a->M * a->C / VEC, THREADS), THREADS, 0, s->stream>>>(k);
    else
        fwd_kernel<1, T><<<ls_cuda_grid(s, a->M * a->C, THREADS), THREADS, 0, s->stream>>>(k);
}

void ls_cuda_embed_fwd(ls_stream *stream, const ls_embed_fwd *a)
{
    ls_cuda_row row(stream, LS_ROW_EMBED_FWD);

    if (!row.on || !row.ok(ls_cuda_check_type(LS_ROW_EMBED_FWD, a->type)) || a->M == 0)
        return;
    ls_cuda_typed(a->type, [&](auto t) { fwd<decltype(t)>(row.s, a); });
}

/* --- sorting -------------------------------------------------------------------------------- */

/* The parts of scratch: keys and rows as they come and sorted, sums of pieces, the sort's own. */
typedef struct sorted {
    uint32_t *keys_in, *keys;
    int32_t *rows_in, *rows;
    float *pieces; /* [2 (M / PIECE + 1), C] */
    void *memory;  /* the sort's own */
} sorted;

static int key_bits(int64_t V)
{
    int bits = 1;

    while (V >> bits)
        bits++;
    return bits;
}

/* By keys below n, or n. */
static cudaError_t sort(const sorted *k, size_t *bytes, void *memory, const ls_embed_bwd *a,
                        int64_t n, cudaStream_t stream)
{
    return cub::DeviceRadixSort::SortPairs(memory, *bytes, k->keys_in, k->keys, k->rows_in, k->rows,
                                           (int)a->M, 0, key_bits(n), stream);
}

static int64_t piece_bytes(const ls_embed_bwd *a)
{
    return ls_round_up(2 * (a->M / PIECE + 1) * a->C * (int64_t)sizeof(float), 256);
}

int64_t ls_cuda_embed_scratch(const ls_embed_bwd *a)
{
    sorted none = {};
    size_t bytes = 0;

    if (sort(&none, &bytes, NULL, a, ls_max_i64(a->V, a->positions), NULL) != cudaSuccess) {
        cudaGetLastError();
        bytes = (size_t)(a->M * 16 + LS_MIB); /* no device to ask: more than it takes */
    }
    return 4 * ls_round_up(a->M * 4, 256) + piece_bytes(a) + ls_round_up((int64_t)bytes, 256);
}

/* Tokens of other ranks, and those outside the vocabulary, come behind all others. */
__global__ void keys_kernel(const int32_t *tokens, int64_t M, int64_t first, int64_t V,
                            int64_t vocab, uint32_t *keys, int32_t *rows, ls_cuda_fault *faults)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= M)
        return;
    int32_t token = tokens[i];
    int64_t here = token - first;
    if (token < 0 || token >= vocab)
        ls_fault(faults, LS_ROW_EMBED_BWD, i, token);
    keys[i] = here >= 0 && here < V ? (uint32_t)here : (uint32_t)V;
    rows[i] = (int32_t)i;
}

/* Positions of documents. */
__global__ void position_keys_kernel(ls_piece piece, const int32_t *start, int64_t M, int64_t T,
                                     uint32_t *keys, int32_t *rows)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= M)
        return;
    keys[i] = (uint32_t)position_of(piece, start, i, T);
    rows[i] = (int32_t)i;
}

/* Rows by token, or by position. */
static ls_status sort_rows(ls_cuda_stream *s, const ls_embed_bwd *a, bool positions, sorted *k)
{
    int64_t n = positions ? a->positions : a->V;
    unsigned blocks = (unsigned)((a->M + THREADS - 1) / THREADS);
    int64_t room = ls_round_up(a->M * 4, 256);
    char *at = (char *)a->scratch;
    size_t bytes = 0;

    k->keys_in = (uint32_t *)at;
    k->keys = (uint32_t *)(at + room);
    k->rows_in = (int32_t *)(at + 2 * room);
    k->rows = (int32_t *)(at + 3 * room);
    k->pieces = (float *)(at + 4 * room);
    k->memory = at + 4 * room + piece_bytes(a);
    if (positions)
        position_keys_kernel<<<blocks, THREADS, 0, s->stream>>>(a->piece, a->start, a->M, a->T,
                                                                k->keys_in, k->rows_in);
    else
        keys_kernel<<<blocks, THREADS, 0, s->stream>>>(a->tokens, a->M, a->first, a->V,
                                                       a->vocab ? a->vocab : a->V, k->keys_in,
                                                       k->rows_in, s->faults);
    cudaError_t error = sort(k, &bytes, NULL, a, n, s->stream);
    if (error == cudaSuccess)
        error = sort(k, &bytes, k->memory, a, n, s->stream);
    return ls_cuda_ok(error, positions ? "sort positions" : "sort tokens");
}

/* --- sums ----------------------------------------------------------------------------------- */

template <typename T> struct sum_args {
    const T *dy;
    const uint32_t *keys; /* of sorted rows; NULL: positions, whose rows lie T apart */
    const int32_t *rows;
    float *out;    /* dwte or dwpe */
    float *pieces; /* of keys with many rows */
    int64_t M, C, tokens_per_seq, V, leaf_rows;
    bool accumulate, many; /* many: more than one leaf */
    ls_piece piece;        /* positions: of token t of a sequence */
    ls_drop drop;
};

/* Row number i of the list that begins at `first`: sorted rows, or every T-th row. */
template <typename T>
__device__ inline int64_t list_row(const sum_args<T> &a, int64_t first, int64_t i)
{
    return a.keys ? a.rows[first + i] : first + i * a.tokens_per_seq;
}

/* How many of the first n sorted keys are like the first. */
__device__ inline int64_t count_equal(const uint32_t *keys, int64_t n)
{
    int64_t low = 1, high = n;

    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (keys[middle] == keys[0])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first entry from begin on whose row is not below `row`; rows grow along a list. */
template <typename T>
__device__ inline int64_t leaf_end(const sum_args<T> &a, int64_t first, int64_t begin,
                                   int64_t count, int64_t row)
{
    int64_t low = begin + 1, high = count;

    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (list_row(a, first, middle) < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Leaf sums on their way up: level[i] is where sum i meets sum i - 1; see cpu/simd/simd_embed.c. */
template <int VEC> struct climb {
    float sum[32][VEC];
    int level[32];
    int depth;
    int64_t leaf;

    __device__ void join()
    {
        depth--;
        for (int k = 0; k < VEC; k++)
            sum[depth - 1][k] += sum[depth][k];
    }
    __device__ void push(const float (&v)[VEC], int64_t of)
    {
        int at = depth ? 64 - __clzll(leaf ^ of) : 0;
        while (depth >= 2 && level[depth - 1] < at)
            join();
        for (int k = 0; k < VEC; k++)
            sum[depth][k] = v[k];
        level[depth] = at;
        leaf = of;
        depth++;
    }
};

/* The sum of list entries begin .. end, at least one, one after the other; AHEAD loads at a time.
 */
template <int VEC, typename T>
__device__ inline void piece_sum(const sum_args<T> &a, int64_t first, int64_t begin, int64_t end,
                                 int64_t c, float (&total)[VEC])
{
    float v[AHEAD][VEC], factor[VEC];

    for (int64_t at = begin; at < end; at += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (at + i < end)
                ls_load_run<VEC>(a.dy + list_row(a, first, at + i) * a.C + c, v[i]);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (at + i >= end)
                break;
            if (a.drop.p > 0)
                ls_keep<VEC>(a.drop, list_row(a, first, at + i), c, a.tokens_per_seq, factor);
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                float x = a.drop.p > 0 ? v[i][k] * factor[k] : v[i][k];
                total[k] = at + i == begin ? x : total[k] + x;
            }
        }
    }
}

/* The sum of list entries begin .. end, all of one leaf, over this thread's columns; complete in
 * lane 0. A lane sums a piece; LANES pieces are added in order, then the next ones. */
template <int VEC, typename T>
__device__ void leaf_sum(const sum_args<T> &a, int64_t first, int64_t begin, int64_t end, int64_t c,
                         float (*lanes)[COLUMNS * VEC], float (&total)[VEC])
{
    for (int64_t at = begin; at < end; at += PIECE * LANES) {
        int64_t from = at + threadIdx.y * PIECE, to = min(from + PIECE, end);
        float sum[VEC];
        if (c < a.C && from < end)
            piece_sum<VEC, T>(a, first, from, to, c, sum);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            lanes[threadIdx.y][threadIdx.x * VEC + k] = sum[k];
        __syncthreads();
        if (threadIdx.y == 0)
            for (int y = 0; y < LANES && at + y * PIECE < end; y++)
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    float x = lanes[y][threadIdx.x * VEC + k];
                    total[k] = at == begin && y == 0 ? x : total[k] + x;
                }
        __syncthreads();
    }
}

/* out[id] (+)= total. */
template <int VEC, typename T>
__device__ inline void give(const sum_args<T> &a, int64_t id, int64_t c, const float (&total)[VEC])
{
    if (threadIdx.y != 0 || c >= a.C)
        return;
    for (int k = 0; k < VEC; k++) {
        float *out = a.out + id * a.C + c + k;
        *out = a.accumulate ? *out + total[k] : total[k];
    }
}

/* --- one leaf ------------------------------------------------------------------------------- */

__device__ inline bool same_before(const uint32_t *keys, int64_t at)
{
    return at > 0 && keys[at - 1] == keys[at];
}

/* Where the run of place `at` begins. */
__device__ inline int64_t run_begin(const uint32_t *keys, int64_t at)
{
    int64_t low = 0, high = at;

    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (keys[middle] == keys[at])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The first place of the stretch from `first` on where a piece begins. */
__device__ inline int64_t first_piece(const uint32_t *keys, int64_t first, int64_t M)
{
    if (!same_before(keys, first))
        return first;
    int64_t begin = run_begin(keys, first);
    int64_t next = begin + (first - begin + PIECE - 1) / PIECE * PIECE;
    int64_t end = first + count_equal(keys + first, min(M - first, (int64_t)PIECE + 1));
    return min(next, end);
}

/* Where the sum of a piece is kept whose run has others: a stretch sees at most one that goes on
 * and one that is the first of its run, since that run is longer than the stretch. */
template <typename T>
__device__ inline float *piece_at(const sum_args<T> &a, int64_t at, bool is_first)
{
    return a.pieces + (2 * (at / PIECE) + (is_first ? 1 : 0)) * a.C;
}

/* Block x: the pieces that begin in stretch x of the sorted list; a thread walks them for VEC
 * columns. */
template <int VEC, typename T> __global__ void stretch_kernel(sum_args<T> a)
{
    int64_t first = (int64_t)blockIdx.x * OWN, end = min(first + OWN, a.M);
    int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * VEC;

    if (c >= a.C)
        return;
    for (int64_t at = first_piece(a.keys, first, a.M), next; at < end; at = next) {
        uint32_t id = a.keys[at];
        bool is_first = !same_before(a.keys, at);
        int64_t count = count_equal(a.keys + at, min(a.M - at, (int64_t)PIECE + 1));
        float total[VEC];
        next = at + min(count, (int64_t)PIECE);
        if (id >= a.V)
            return;
        piece_sum<VEC, T>(a, at, 0, next - at, c, total);
        bool whole = is_first && count <= PIECE, add = whole && a.accumulate;
        float *out = whole ? a.out + (int64_t)id * a.C : piece_at(a, at, is_first);
        for (int k = 0; k < VEC; k++)
            out[c + k] = add ? out[c + k] + total[k] : total[k];
    }
}

/* Block x: the run of several pieces that begins in PIECE places from x PIECE on, if there is one.
 * It is the last that begins there. */
template <int VEC, typename T> __global__ void join_kernel(sum_args<T> a)
{
    int64_t first = (int64_t)blockIdx.x * PIECE, last = min(first + PIECE, a.M) - 1;
    int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * VEC;
    int64_t begin = run_begin(a.keys, last), count = count_equal(a.keys + begin, a.M - begin);

    if (c >= a.C || a.keys[last] >= a.V || begin < first || count <= PIECE)
        return;
    float total[VEC], *out = a.out + (int64_t)a.keys[last] * a.C;
    for (int k = 0; k < VEC; k++)
        total[k] = piece_at(a, begin, true)[c + k];
    for (int64_t at = begin + PIECE; at < begin + count; at += PIECE)
        for (int k = 0; k < VEC; k++)
            total[k] += piece_at(a, at, false)[c + k];
    for (int k = 0; k < VEC; k++)
        out[c + k] = a.accumulate ? out[c + k] + total[k] : total[k];
}

/* --- positions, and several leaves ----------------------------------------------------------- */

/* One leaf. Block x: position x, whose rows lie T apart. */
template <int VEC, typename T> __global__ void position_kernel(sum_args<T> a)
{
    int64_t first = blockIdx.x, c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * VEC;
    int64_t count = (a.M - first + a.tokens_per_seq - 1) / a.tokens_per_seq;
    float total[VEC], sum[VEC];

    if (c >= a.C)
        return;
    piece_sum<VEC, T>(a, first, 0, min(count, (int64_t)PIECE), c, total);
    for (int64_t at = PIECE; at < count; at += PIECE) {
        piece_sum<VEC, T>(a, first, at, min(at + PIECE, count), c, sum);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            total[k] += sum[k];
    }
    give<VEC, T>(a, ls_position(a.piece, first), c, total);
}

/* Several leaves. Block x: the token whose rows begin at place x of the sorted list
 * (others leave), or position x. */
template <int VEC, typename T> __global__ void sum_kernel(sum_args<T> a)
{
    __shared__ float lanes[LANES][COLUMNS * VEC];
    int64_t first = blockIdx.x, count, id = first;
    int64_t c = ((int64_t)blockIdx.y * COLUMNS + threadIdx.x) * VEC;
    float total[VEC];

    if (a.keys) {
        id = a.keys[first];
        if (id >= a.V || (first > 0 && a.keys[first - 1] == (uint32_t)id))
            return;
        count = count_equal(a.keys + first, a.M - first);
    } else {
        id = ls_position(a.piece, first);
        count = (a.M - first + a.tokens_per_seq - 1) / a.tokens_per_seq;
    }
    climb<VEC> up;
    up.depth = 0;
    for (int64_t begin = 0, end; begin < count; begin = end) {
        int64_t leaf = list_row(a, first, begin) / a.leaf_rows;
        end = leaf_end(a, first, begin, count, (leaf + 1) * a.leaf_rows);
        leaf_sum<VEC>(a, first, begin, end, c, lanes, total);
        up.push(total, leaf);
    }
    while (up.depth > 1)
        up.join();
    give<VEC, T>(a, id, c, up.sum[0]);
}

template <int VEC, typename T>
static void launch_sums(ls_cuda_stream *s, const sum_args<T> &g, int64_t lists)
{
    int64_t wide = COLUMNS * VEC;
    dim3 grid((unsigned)lists, (unsigned)((g.C + wide - 1) / wide)), block(COLUMNS, LANES);

    if (g.many) {
        sum_kernel<VEC, T><<<grid, block, 0, s->stream>>>(g);
        return;
    }
    if (!g.keys) {
        position_kernel<VEC, T><<<grid, COLUMNS, 0, s->stream>>>(g);
        return;
    }
    dim3 stretches((unsigned)((g.M + OWN - 1) / OWN), grid.y);
    dim3 joins((unsigned)((g.M + PIECE - 1) / PIECE), grid.y);
    stretch_kernel<VEC, T><<<stretches, COLUMNS, 0, s->stream>>>(g);
    join_kernel<VEC, T><<<joins, COLUMNS, 0, s->stream>>>(g);
}

/* Gradients of n keys by which rows are sorted, tokens or positions of documents, in as many lists as
 * there are rows; without k of positions whose rows lie T apart, n of them. */
template <typename T>
static void sums(ls_cuda_stream *s, const ls_embed_bwd *a, const sorted *k, int64_t n, float *out)
{
    constexpr int VEC = ls_vec_of<T>::n;
    sum_args<T> g = {(const T *)a->dy,
                     k ? k->keys : NULL,
                     k ? k->rows : NULL,
                     out,
                     k ? k->pieces : NULL,
                     a->M,
                     a->C,
                     a->T,
                     n,
                     a->M / a->leaves,
                     a->accumulate,
                     a->leaves > 1,
                     a->piece,
                     ls_drop_of(a->drop)};

    if (a->C % VEC == 0 && ls_cuda_aligned(a->dy, 16))
        launch_sums<VEC, T>(s, g, k ? a->M : n);
    else
        launch_sums<1, T>(s, g, k ? a->M : n);
}

/* Positions at which no token of the call stands: all behind it, or, of a piece of sequences and of
 * documents, all that are then not summed. */
static ls_status clear_positions(ls_cuda_stream *s, const ls_embed_bwd *a)
{
    int64_t first = a->piece.chunk || a->start ? 0 : a->T;

    if (a->accumulate || !a->dwpe || a->positions <= first)
        return LS_OK;
    return ls_cuda_ok(cudaMemsetAsync(a->dwpe + first * a->C, 0,
                                      (size_t)((a->positions - first) * a->C) * sizeof(float),
                                      s->stream),
                      "clear a gradient");
}

template <typename T> static ls_status bwd(ls_cuda_stream *s, const ls_embed_bwd *a)
{
    sorted k = {};
    size_t vectors = (size_t)a->C * sizeof(float);
    ls_status st = a->dwte ? sort_rows(s, a, false, &k) : LS_OK;

    if (st == LS_OK && !a->accumulate && a->dwte)
        st = ls_cuda_ok(cudaMemsetAsync(a->dwte, 0, (size_t)a->V * vectors, s->stream),
                        "clear a gradient");
    if (st == LS_OK)
        st = clear_positions(s, a);
    if (st != LS_OK)
        return st;
    if (a->dwte)
        sums<T>(s, a, &k, a->V, a->dwte);
    if (a->dwpe && a->start) {
        st = sort_rows(s, a, true, &k);
        if (st == LS_OK)
            sums<T>(s, a, &k, a->positions, a->dwpe);
    } else if (a->dwpe) {
        sums<T>(s, a, NULL, ls_min_i64(a->T, a->M), a->dwpe);
    }
    return st;
}

void ls_cuda_embed_bwd(ls_stream *stream, const ls_embed_bwd *a)
{
    ls_cuda_row row(stream, LS_ROW_EMBED_BWD);

    if (row.on && row.ok(ls_cuda_check_type(LS_ROW_EMBED_BWD, a->type)) && a->M > 0)
        row.ok(ls_cuda_typed(a->type, [&](auto t) { return bwd<decltype(t)>(row.s, a); }));
}
