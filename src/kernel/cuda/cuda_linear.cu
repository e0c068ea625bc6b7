/* cuda_linear.cu -- the linear rows: products, with bias, activation and sums.
 *
 * Our tensors are row-major, so cuBLASLt sees their transposes: y = x W is asked for as
 * yT [N, M] = WT xT. In bf16 the bias goes into the product, and so does GELU with its input kept,
 * and its gradient; everything else is a pass of its own (docs/design/cuda-attention.md has the
 * measurements). Bias gradients are column sums: in the product they cost more than a pass.
 *
 * With several leaves dw is one product for each leaf, joined along the tree in the stream's arena:
 * a binary counter of [K, N] sums, the first of which is dw itself where nothing is added to. */
#include "kernel/cuda/fp8.cuh"
#include "kernel/cuda/grouped.cuh"

static int64_t or_dense(int64_t ld, int64_t dense)
{
    return ld ? ld : dense;
}

void ls_cuda_linear_fwd(ls_stream *stream, const ls_linear_fwd *a)
{
    ls_cuda_row row(stream, LS_ROW_LINEAR_FWD);
    int64_t ldy = or_dense(a->ldy, a->N);
    bool fp8 = ls_fp8_fits(&a->fp8, a->type, a->M, a->N, a->K, a->x, a->w);
    bool fused = !fp8 && a->act == LS_ACT_GELU && a->z &&
                 ls_product_gelu_fits(a->type, a->z, a->N) && ls_cuda_aligned(a->y, 16);
    bool apart = a->act != LS_ACT_NONE && !fused && !a->accumulate;

    if (!row.on || !row.ok(ls_cuda_check_type(LS_ROW_LINEAR_FWD, a->type)))
        return;
    if (a->groups) {
        row.ok(ls_grouped_fwd(row.s, a));
        return;
    }
    ls_product p = {};
    p.a_type = p.b_type = p.out = a->type;
    p.tf32 = a->tf32;
    p.m = a->N;
    p.n = a->M;
    p.k = a->K;
    p.a = a->w;
    p.transpose_a = a->layout == LS_LAYOUT_NK;
    p.lda = a->layout == LS_LAYOUT_NK ? a->K : a->N;
    p.b = a->x;
    p.ldb = a->K;
    p.d = apart && a->z ? a->z : a->y;
    p.ldd = apart && a->z ? a->N : ldy;
    p.add = a->accumulate || a->add;
    p.c = a->add;
    p.bias = a->accumulate ? NULL : a->b;
    p.epilogue = fused && !a->accumulate ? LS_EPILOGUE_GELU_AUX
                 : p.bias                ? LS_EPILOGUE_BIAS
                                         : LS_EPILOGUE_NONE;
    if (p.epilogue == LS_EPILOGUE_GELU_AUX) {
        p.aux = a->z;
        p.ld_aux = a->N;
    }
    if (fp8 && !row.ok(ls_fp8_linear_fwd(row.s, a, &p)))
        return;
    if (!row.ok(ls_product_queue(row.s, &p)))
        return;
    if (apart)
        ls_cuda_act_rows(row.s, a->type, a->act, false, p.d, p.ldd, a->y, ldy, a->M, a->N);
    else if (a->z && !fused && !a->accumulate)
        row.ok(
            ls_cuda_ok(cudaMemcpyAsync(a->z, a->y, (size_t)(a->M * a->N * ls_dtype_bytes(a->type)),
                                       cudaMemcpyDeviceToDevice, row.queue()),
                       "keep the value before the activation"));
}

void ls_cuda_linear_bwd_x(ls_stream *stream, const ls_linear_bwd_x *a)
{
    ls_cuda_row row(stream, LS_ROW_LINEAR_BWD_X);
    bool fp8 = or_dense(a->ldy, a->N) == a->N &&
               ls_fp8_fits(&a->fp8, a->type, a->M, a->N, a->K, a->dy, a->w);
    bool fused = !fp8 && a->act == LS_ACT_GELU && ls_product_gelu_fits(a->type, a->z, a->K) &&
                 ls_cuda_aligned(a->dx, 16);

    if (!row.on || !row.ok(ls_cuda_check_type(LS_ROW_LINEAR_BWD_X, a->type)))
        return;
    if (a->groups) {
        row.ok(ls_grouped_bwd_x(row.s, a));
        return;
    }
    ls_product p = {};
    p.a_type = p.b_type = p.out = a->type;
    p.tf32 = a->tf32;
    p.m = a->K;
    p.n = a->M;
    p.k = a->N;
    p.a = a->w;
    p.transpose_a = a->layout == LS_LAYOUT_KN;
    p.lda = a->layout == LS_LAYOUT_KN ? a->N : a->K;
    p.b = a->dy;
    p.ldb = or_dense(a->ldy, a->N);
    p.d = a->dx;
    p.ldd = a->K;
    p.add = a->accumulate;
    if (fused) {
        p.epilogue = LS_EPILOGUE_DGELU;
        p.aux = const_cast<void *>(a->z);
        p.ld_aux = a->K;
    }
    if (fp8 && !row.ok(ls_fp8_linear_bwd_x(row.s, a, &p)))
        return;
    if (row.ok(ls_product_queue(row.s, &p)) && a->act != LS_ACT_NONE && !fused)
        ls_cuda_act_rows(row.s, a->type, a->act, true, a->z, a->K, a->dx, a->K, a->M, a->K);
}

/* --- gradients of weights ------------------------------------------------------------------- */

/* dw (+)= x^T dy over rows first .. first + rows. */
static ls_status leaf_dw(ls_cuda_stream *s, const ls_linear_bwd_w *a, int64_t first, int64_t rows,
                         float *dw, bool add)
{
    int64_t ldy = or_dense(a->ldy, a->N), bytes = ls_dtype_bytes(a->type);
    const void *x = (const char *)a->x + first * a->K * bytes;
    const void *dy = (const char *)a->dy + first * ldy * bytes;
    bool kn = a->layout == LS_LAYOUT_KN;
    ls_product p = {};

    p.a_type = p.b_type = a->type;
    p.tf32 = a->tf32;
    p.out = LS_F32;
    p.m = kn ? a->N : a->K;
    p.n = kn ? a->K : a->N;
    p.k = rows;
    p.a = kn ? dy : x;
    p.lda = kn ? ldy : a->K;
    p.b = kn ? x : dy;
    p.ldb = kn ? a->K : ldy;
    p.transpose_b = true;
    p.d = dw;
    p.ldd = p.m;
    p.add = add;
    if (a->leaves == 1 && ldy == a->N && ls_fp8_fits(&a->fp8, a->type, rows, a->N, a->K, x, dy)) {
        ls_status st = ls_fp8_linear_bwd_w(s, a, &p);
        if (st != LS_OK)
            return st;
    }
    return ls_product_queue(s, &p);
}

static ls_status tree_dw(ls_cuda_stream *s, const ls_linear_bwd_w *a)
{
    int64_t n = a->N * a->K, rows = a->M / a->leaves, room = ls_round_up(n, 64);
    int64_t bytes = ls_cuda_levels(a->leaves) * room * (int64_t)sizeof(float);
    float *arena = (float *)ls_cuda_arena(s, bytes);

    if (!arena)
        return LS_ENOMEM;
    return ls_cuda_leaf_tree(
        s, a->dw, a->accumulate, arena, room, a->leaves, n,
        [&](int64_t leaf, float *to) { return leaf_dw(s, a, leaf * rows, rows, to, false); });
}

/* --- gradients of biases -------------------------------------------------------------------- */

enum { SUM_LANES = 8, SUM_COLUMNS = 32, SUM_CHUNKS = 256, SUM_AHEAD = 4 };

/* Block (x, chunk): SUM_COLUMNS vectors of columns, lanes y step over the chunk's rows. */
template <int VEC, typename T>
__global__ void column_kernel(const T *x, int64_t ld, int64_t n, int64_t leaf_rows,
                              int64_t chunk_rows, int64_t chunks, float *part)
{
    __shared__ float sums[SUM_LANES][SUM_COLUMNS * VEC];
    int64_t leaf = blockIdx.y / chunks, chunk = blockIdx.y % chunks;
    int64_t first = leaf * leaf_rows + chunk * chunk_rows;
    int64_t end = first + min(chunk_rows, leaf_rows - chunk * chunk_rows);
    int64_t c = ((int64_t)blockIdx.x * SUM_COLUMNS + threadIdx.x) * VEC;
    float acc[VEC], v[SUM_AHEAD][VEC];

#pragma unroll
    for (int k = 0; k < VEC; k++)
        acc[k] = 0;
    for (int64_t row = first + threadIdx.y; c < n && row < end; row += SUM_LANES * SUM_AHEAD) {
#pragma unroll
        for (int i = 0; i < SUM_AHEAD; i++) /* loads first, so that they overlap */
            if (row + i * SUM_LANES < end)
                ls_load_run<VEC>(x + (row + i * SUM_LANES) * ld + c, v[i]);
#pragma unroll
        for (int i = 0; i < SUM_AHEAD; i++)
#pragma unroll
            for (int k = 0; k < VEC; k++)
                acc[k] += row + i * SUM_LANES < end ? v[i][k] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < VEC; k++)
        sums[threadIdx.y][threadIdx.x * VEC + k] = acc[k];
    __syncthreads();
    if (threadIdx.y != 0 || c >= n)
        return;
    for (int k = 0; k < VEC; k++) {
        float sum = sums[0][threadIdx.x * VEC + k];
        for (int y = 1; y < SUM_LANES; y++)
            sum += sums[y][threadIdx.x * VEC + k];
        part[blockIdx.y * n + c + k] = sum;
    }
}

template <typename T> static ls_status column_sums(ls_cuda_stream *s, const ls_linear_bwd_w *a)
{
    constexpr int VEC = ls_vec_of<T>::n;
    int64_t ld = or_dense(a->ldy, a->N), rows = a->M / a->leaves;
    int64_t chunk_rows = ls_max_i64(32, (rows + SUM_CHUNKS - 1) / SUM_CHUNKS);
    int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
    float *part = (float *)ls_cuda_arena(s, a->leaves * chunks * a->N * (int64_t)sizeof(float));
    const T *dy = (const T *)a->dy;
    bool fits = a->N % VEC == 0 && ld % VEC == 0 && ls_cuda_aligned(dy, 16);
    int64_t wide = SUM_COLUMNS * (fits ? VEC : 1);
    dim3 grid((unsigned)((a->N + wide - 1) / wide), (unsigned)(a->leaves * chunks));
    dim3 block(SUM_COLUMNS, SUM_LANES);

    if (!part)
        return LS_ENOMEM;
    if (a->leaves * chunks > 65535)
        return ls_fail(LS_EUSAGE, "linear_bwd_w: too many leaves (%lld)", (long long)a->leaves);
    if (fits)
        column_kernel<VEC, T>
            <<<grid, block, 0, s->stream>>>(dy, ld, a->N, rows, chunk_rows, chunks, part);
    else
        column_kernel<1, T>
            <<<grid, block, 0, s->stream>>>(dy, ld, a->N, rows, chunk_rows, chunks, part);
    ls_cuda_tree_finish(s, part, a->leaves, chunks, a->N, a->N, {{a->db, NULL, NULL}},
                        a->accumulate);
    return LS_OK;
}

void ls_cuda_linear_bwd_w(ls_stream *stream, const ls_linear_bwd_w *a)
{
    ls_cuda_row row(stream, LS_ROW_LINEAR_BWD_W);

    if (!row.on || !row.ok(ls_cuda_check_type(LS_ROW_LINEAR_BWD_W, a->type)))
        return;
    if (a->groups) {
        row.ok(ls_grouped_bwd_w(row.s, a));
        return;
    }
    if (a->dw && !row.ok(a->leaves > 1 ? tree_dw(row.s, a)
                                       : leaf_dw(row.s, a, 0, a->M, a->dw, a->accumulate)))
        return;
    if (a->db)
        row.ok(ls_cuda_typed(a->type, [&](auto t) { return column_sums<decltype(t)>(row.s, a); }));
}
