/* rows_shared.h -- the rows of each CPU implementation, for its table, and what all versions share.
 *
 * The contract of each row is in kernel.h. A row exists as a reference in double (ls_ref_*, one
 * thread, written to be read) and once per instruction set (ls_*_row_<isa>, avx2 and avx512 on x86-64
 * only; all with the same bits). A version may be called only on a CPU that has its instructions. */
#pragma once
#include "kernel/kernel.h"

LS_C_BEGIN

#define LS_ROW_VERSIONS(upper, lower, args)                          \
    void ls_ref_##lower(ls_stream *stream, const args *a);           \
    void ls_##lower##_row_generic(ls_stream *stream, const args *a); \
    void ls_##lower##_row_avx2(ls_stream *stream, const args *a);    \
    void ls_##lower##_row_avx512(ls_stream *stream, const args *a);
LS_KERNEL_ROWS(LS_ROW_VERSIONS)
#undef LS_ROW_VERSIONS

/* Bytes of scratch depend on the instruction set in these rows: for a device of this many threads; no
 * pointer is read. */
#define LS_ROW_BYTES(isa)                                                           \
    int64_t ls_attention_bwd_scratch_##isa(const ls_attention_bwd *a, int threads); \
    int64_t ls_head_scratch_##isa(const ls_head *a, int threads);                   \
    int64_t ls_pack_bytes_##isa(const ls_pack *a);                                  \
    void ls_pack_row_##isa(ls_stream *stream, const ls_pack *a);
LS_ROW_BYTES(generic)
LS_ROW_BYTES(avx2)
LS_ROW_BYTES(avx512)
#undef LS_ROW_BYTES
int64_t ls_ref_head_scratch(const ls_head *a, int threads);

/* name_f32 and name_bf16: tasks of a pool that call a function with the type as a constant, and with
 * what of `context`, `index` and `worker` it takes. */
#define LS_TYPED_TASKS(name, call, ...)                               \
    static void name##_f32(void *context, int64_t index, int worker)  \
    {                                                                 \
        (void)worker;                                                 \
        call(LS_F32, __VA_ARGS__);                                    \
    }                                                                 \
    static void name##_bf16(void *context, int64_t index, int worker) \
    {                                                                 \
        (void)worker;                                                 \
        call(LS_BF16, __VA_ARGS__);                                   \
    }

/* --- heads and qkv ------------------------------------------------------------------------------ */

/* Where the values of head h at position t of sequence b begin: as an element of the tensor, which
 * does for every type, and as floats. */
static inline int64_t ls_heads_index(const ls_heads *heads, int64_t b, int64_t t, int64_t h)
{
    return b * heads->batch + t * heads->time + h * heads->head;
}

static inline float *ls_heads_at(const ls_heads *heads, int64_t b, int64_t t, int64_t h)
{
    return (float *)heads->p + ls_heads_index(heads, b, t, h);
}

/* Elements from one row of packed to the next. */
static inline int64_t ls_qkv_ld(const ls_qkv *a)
{
    return a->ld ? a->ld : (a->H + 2 * a->Hkv) * a->D;
}

/* Elements that a norm goes over, on all ranks. */
static inline int64_t ls_qkv_normed(const ls_qkv *a)
{
    return a->D * (a->ranks ? a->ranks : 1);
}

/* qkv_bwd with norms keeps one partial dq_norm and dk_norm per chunk of tokens:
 * [leaves][chunks][2][D rounded up]. */
enum { LS_QKV_CHUNK_TOKENS = 32 };

static inline int64_t ls_qkv_bwd_chunks(const ls_qkv *a) /* per leaf */
{
    return (a->B * a->T / a->leaves + LS_QKV_CHUNK_TOKENS - 1) / LS_QKV_CHUNK_TOKENS;
}

/* Without leaves there are no norms, and nothing is needed. */
static inline int64_t ls_qkv_bwd_scratch(const ls_qkv *a)
{
    if (a->leaves < 1)
        return 0;
    return a->leaves * ls_qkv_bwd_chunks(a) * 2 * ls_round_up(a->D, 16) * (int64_t)sizeof(float);
}

/* Stops the program when the contract excludes these arguments. */
void ls_qkv_check(const ls_qkv *a, bool forward);

/* --- norm, embedding, optimizers ------------------------------------------------------------------ */

/* norm_bwd keeps one partial dw and db per chunk of rows: [leaves][chunks][2][C rounded up]. */
enum { LS_NORM_CHUNK_ROWS = 32 };

static inline int64_t ls_norm_bwd_chunks(const ls_norm_bwd *a) /* per leaf */
{
    return (a->M / a->leaves + LS_NORM_CHUNK_ROWS - 1) / LS_NORM_CHUNK_ROWS;
}

static inline int64_t ls_norm_bwd_scratch(const ls_norm_bwd *a)
{
    return a->leaves * ls_norm_bwd_chunks(a) * 2 * ls_round_up(a->C, 16) * (int64_t)sizeof(float);
}

/* embed_bwd sorts the rows by token: [V + 1] first row of each token, [M] rows. */
static inline int64_t ls_embed_bwd_scratch(const ls_embed_bwd *a)
{
    return (ls_max_i64(a->V, a->positions) + 1 + a->M) * (int64_t)sizeof(int32_t);
}

/* The position of a row in its sequence, or in its document, where those have starts. */
static inline int64_t ls_embed_position(const ls_piece *piece, const int32_t *start, int64_t row,
                                        int64_t T)
{
    return ls_piece_position(piece, row % T) - (start ? start[row] : 0);
}

/* grad_clip.c. What norm2 does after its partials: the sum over the tree over blocks in double, its root, the
 * clip factor (0 when a block is bad) and the first bad block. */
void ls_norm2_finish(const ls_norm2 *a);

/* grad_clip.c. What lamb does before its step: the ratios, from the squares of all pieces. */
void ls_lamb_ratios(const ls_lamb *a);

/* Stops the program where the parts of muon are asked for what they cannot do. */
void ls_muon_check(const ls_muon *a);

/* True when every token is in [0, V). Otherwise the stream has failed, with value and place. */
bool ls_embed_check_tokens(ls_stream *stream, const int32_t *tokens, int64_t M, int64_t V);

/* --- products and the head ----------------------------------------------------------------------- */

/* Elements from row to row of y or dy. */
static inline int64_t ls_linear_ld(int64_t ldy, int64_t N)
{
    LS_BUG_IF(ldy != 0 && ldy < N, "rows of %lld elements lie %lld apart", (long long)N,
              (long long)ldy);
    return ldy ? ldy : N;
}

/* Stop the program when the contract excludes these arguments. */
void ls_linear_fwd_check(const ls_linear_fwd *a);
void ls_linear_bwd_x_check(const ls_linear_bwd_x *a);

/* True when every target is -1 or in the vocabulary. Otherwise the stream has failed, with value
 * and row.
 */
bool ls_head_check_targets(ls_stream *stream, const ls_head *a);

LS_C_END
