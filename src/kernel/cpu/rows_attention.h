/* rows_attention.h -- the attention and qkv rows of each CPU implementation, for its table.
 *
 * The contract of each row is in kernel.h. The simd versions exist once per instruction set (avx2
 * and avx512 on x86-64 only) and give equal bits; the reference computes in double. */
#pragma once
#include "kernel/kernel.h"

LS_C_BEGIN

#define LS_ATTENTION_ROWS(isa)                                                                \
    void ls_attention_fwd_row_##isa(ls_stream *stream, const ls_attention_fwd *a);            \
    void ls_attention_bwd_row_##isa(ls_stream *stream, const ls_attention_bwd *a);            \
    void ls_qkv_fwd_row_##isa(ls_stream *stream, const ls_qkv *a);                            \
    void ls_qkv_bwd_row_##isa(ls_stream *stream, const ls_qkv *a);                            \
    /* Bytes that a->scratch must hold on a device of this many threads; reads no pointer. */ \
    int64_t ls_attention_bwd_scratch_##isa(const ls_attention_bwd *a, int threads);

LS_ATTENTION_ROWS(generic)
LS_ATTENTION_ROWS(avx2)
LS_ATTENTION_ROWS(avx512)

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

void ls_ref_attention_fwd(ls_stream *stream, const ls_attention_fwd *a);
void ls_ref_attention_bwd(ls_stream *stream, const ls_attention_bwd *a);
void ls_ref_qkv_fwd(ls_stream *stream, const ls_qkv *a);
void ls_ref_qkv_bwd(ls_stream *stream, const ls_qkv *a);

LS_C_END
