/* rows_linear.h -- the matrix products and the head, in every version, for the registry.
 *
 * One set of names per instruction set, all with the contracts of kernel.h. A version may be called
 * only on a CPU that has its instructions. */
#pragma once
#include "kernel/kernel.h"

LS_C_BEGIN

#define LS_ROWS_LINEAR(isa)                                                      \
    void ls_linear_fwd_row_##isa(ls_stream *stream, const ls_linear_fwd *a);     \
    void ls_linear_bwd_x_row_##isa(ls_stream *stream, const ls_linear_bwd_x *a); \
    void ls_linear_bwd_w_row_##isa(ls_stream *stream, const ls_linear_bwd_w *a); \
    void ls_pack_row_##isa(ls_stream *stream, const ls_pack *a);                 \
    int64_t ls_pack_bytes_##isa(const ls_pack *a);                               \
    void ls_head_row_##isa(ls_stream *stream, const ls_head *a);                 \
    int64_t ls_head_scratch_##isa(const ls_head *a, int threads)

LS_ROWS_LINEAR(generic);
LS_ROWS_LINEAR(avx2);
LS_ROWS_LINEAR(avx512);

/* The reference: one thread, sums in double. */
void ls_ref_linear_fwd(ls_stream *stream, const ls_linear_fwd *a);
void ls_ref_linear_bwd_x(ls_stream *stream, const ls_linear_bwd_x *a);
void ls_ref_linear_bwd_w(ls_stream *stream, const ls_linear_bwd_w *a);
void ls_ref_head(ls_stream *stream, const ls_head *a);
int64_t ls_ref_head_scratch(const ls_head *a, int threads);

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
