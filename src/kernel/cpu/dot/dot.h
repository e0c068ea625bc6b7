/* dot.h -- products of bf16 by instructions that multiply pairs of them.
 *
 * A product of the avx512 kernels whose operands are both bf16 can take three ways: widened to fp32
 * (gemm.h), by vdpbf16ps of AVX512_BF16, or by tdpbf16ps of AMX. Both instructions can be emulated
 * in plain C, bit by bit; everything around them is the same code, so that it runs in tests on any
 * CPU that has the avx512 kernels.
 *
 * The variable LINESHAFT_BF16 chooses: auto (the default: AMX, else AVX512_BF16, else off), off
 * (widened), avx512, amx, emulate-avx512 or emulate-amx. It is read whenever kernels are picked,
 * and holds for the whole process, as the operating system's permission to use AMX does.
 *
 * What an element of C is made of: as in gemm.h K is cut into leaves and each leaf into blocks of
 * LS_GEMM_KC, sums of blocks are added in order in fp32 and leaves along the tree. Inside a block,
 * whose last pair of k is filled up with +0:
 *
 *   avx512   one chain of fma that starts at +0 and takes k in the order 1 0 3 2 5 4 ...
 *   amx      runs of 32 k, the last filled up with +0: one chain of fma from +0 over the even k of
 *            the run, one over the odd k; their sum is added to the sum of the runs before, which
 *            starts at +0
 *
 * where each fma and each of those sums rounds to nearest even, takes denormal operands as zeros
 * and gives zero for a denormal result; which NaN comes out of NaN or Inf is not defined. So a row
 * of C still depends on nothing but its row of A, a column on its column of B: bits are equal for
 * any number of threads, batch cut and grouping. But off, avx512 and amx differ from each other in
 * the last places, and a run has the bits of another machine only where both go the same way;
 * "off" is the one that every machine and every instruction set can go. */
#pragma once
#include "base/err.h"
#include "device/device.h"

typedef enum ls_dot {
    LS_DOT_OFF,
    LS_DOT_AVX512,
    LS_DOT_AMX,
    LS_DOT_EMULATE_AVX512,
    LS_DOT_EMULATE_AMX,
    LS_DOTS
} ls_dot;

#define LS_DOT_VARIABLE "LINESHAFT_BF16"

/* Take the way that the variable asks for; when it cannot be taken, products stay as they were.
 * LS_EUSAGE: no such way, or not on this CPU, system or build; the message says which. */
ls_status ls_dot_choose(void);

/* The way taken now: widened until ls_dot_choose() was called. */
ls_dot ls_dot_chosen(void);

/* "off", "avx512", ...: as the variable spells it. For tests, which take every way in turn. */
const char *ls_dot_name(ls_dot dot);

/* Why this way cannot be taken, such as "this CPU lacks AMX_BF16", or NULL when it can. Asks the
 * system for the permission to use AMX where that is what counts. */
const char *ls_dot_obstacle(ls_dot dot);

/* A product of two bf16 matrices by the way taken, which is not LS_DOT_OFF: ls_gemm_run() of the
 * avx512 kernels comes here itself, for any number of rows. */
struct ls_gemm;
void ls_dot_run(ls_stream *stream, const struct ls_gemm *g);

/* B as pairs, laid out once for many products: see ls_gemm_pack(). */
int64_t ls_dot_pack_bytes(const struct ls_gemm *g);
void ls_dot_pack(ls_stream *stream, const struct ls_gemm *g, void *to);
