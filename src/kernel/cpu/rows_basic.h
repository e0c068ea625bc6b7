/* rows_basic.h -- the CPU rows that are not products or attention: norm, activation, embedding,
 * elementwise work and the optimizers.
 *
 * Each exists as a reference in double (ls_ref_*, one thread, written for the eye) and once per
 * instruction set (ls_*_row_<isa>, all with the same bits). Scratch sizes do not depend on the
 * instruction set nor on the number of threads, so they stand here. */
#pragma once
#include "kernel/kernel.h"

LS_C_BEGIN

#define LS_ROWS_BASIC(prefix, suffix)                                         \
    void prefix##norm_fwd##suffix(ls_stream *stream, const ls_norm_fwd *a);   \
    void prefix##norm_bwd##suffix(ls_stream *stream, const ls_norm_bwd *a);   \
    void prefix##act_fwd##suffix(ls_stream *stream, const ls_act_args *a);    \
    void prefix##act_bwd##suffix(ls_stream *stream, const ls_act_args *a);    \
    void prefix##embed_fwd##suffix(ls_stream *stream, const ls_embed_fwd *a); \
    void prefix##embed_bwd##suffix(ls_stream *stream, const ls_embed_bwd *a); \
    void prefix##sum##suffix(ls_stream *stream, const ls_sum *a);             \
    void prefix##add##suffix(ls_stream *stream, const ls_add *a);             \
    void prefix##scale##suffix(ls_stream *stream, const ls_scale *a);         \
    void prefix##cast##suffix(ls_stream *stream, const ls_cast *a);           \
    void prefix##fill##suffix(ls_stream *stream, const ls_fill *a);           \
    void prefix##norm2##suffix(ls_stream *stream, const ls_norm2 *a);         \
    void prefix##adamw##suffix(ls_stream *stream, const ls_adamw *a);         \
    void prefix##lion##suffix(ls_stream *stream, const ls_adamw *a);          \
    void prefix##sgd##suffix(ls_stream *stream, const ls_adamw *a);           \
    void prefix##lamb##suffix(ls_stream *stream, const ls_lamb *a);           \
    void prefix##momentum##suffix(ls_stream *stream, const ls_momentum *a);   \
    void prefix##muon##suffix(ls_stream *stream, const ls_muon *a)

LS_ROWS_BASIC(ls_, _row_generic);
LS_ROWS_BASIC(ls_, _row_avx2);
LS_ROWS_BASIC(ls_, _row_avx512);
LS_ROWS_BASIC(ls_ref_, );

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
    return (a->V + 1 + a->M) * (int64_t)sizeof(int32_t);
}

/* What norm2 does after its partials: the sum over the tree over blocks in double, its root, the
 * clip factor (0 when a block is bad) and the first bad block. */
void ls_norm2_finish(const ls_norm2 *a);

/* What lamb does before its step: the ratios, from the squares of all pieces. */
void ls_lamb_ratios(const ls_lamb *a);

/* Stops the program where the parts of muon are asked for what they cannot do. */
void ls_muon_check(const ls_muon *a);

/* True when every token is in [0, V). Otherwise the stream has failed, with value and place. */
bool ls_embed_check_tokens(ls_stream *stream, const int32_t *tokens, int64_t M, int64_t V);

LS_C_END
