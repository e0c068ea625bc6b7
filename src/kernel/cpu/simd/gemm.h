/* gemm.h -- C = A B in tiles, with whatever has to happen to a finished tile while it is hot.
 *
 * Every element of C is computed as follows, whatever the shape, the number of threads or the
 * instruction set: K is cut into blocks of LS_GEMM_KC (the last may be short); the products of a
 * block go through one chain of fma in order of k, starting at +0; the sums of the blocks are added
 * in order. So a row of C depends on nothing but its row of A, and a column on its column of B.
 *
 * With leaves > 1, K is `leaves` runs of equal length; each run is a product of its own as above,
 * and the results are added along the perfect binary tree over runs.
 *
 * A and B may be bf16: their values are widened on the way in, and the sums are those of the
 * widened matrices. The avx512 version may take another way where both are bf16, with bits of its
 * own: see kernel/cpu/dot/dot.h. */
#pragma once
#include "device/device.h"
#include "kernel/cpu/simd/vec.h"

/* The tile that a micro-kernel keeps in registers: MR rows of NR columns. */
#if defined(__AVX512F__)
enum { LS_GEMM_MR = 6, LS_GEMM_NR = 64 };
#elif defined(__AVX2__)
enum { LS_GEMM_MR = 6, LS_GEMM_NR = 16 };
#else
enum { LS_GEMM_MR = 4, LS_GEMM_NR = 16 };
#endif
enum { LS_GEMM_KC = 384 }; /* part of the definition of a product: changing it changes bits */
enum { LS_GEMM_FEW = 8 };  /* rows of A up to which B is not worth packing */

typedef struct ls_gemm ls_gemm;

/* Element (m + i, n + j) of C, for i < rows (at most MR or LS_GEMM_FEW) and j < cols <= NR, is
 * tile[i * NR + j]. */
typedef void (*ls_gemm_finish)(const ls_gemm *g, const float *tile, int64_t m, int64_t n,
                               int64_t rows, int64_t cols);

struct ls_gemm {
    ls_dtype a_type, b_type, out_type; /* LS_F32 or LS_BF16 */
    const void *a;                     /* element (m, k) is a[m * a_m + k * a_k]; a_m or a_k is 1 */
    int64_t a_m, a_k;
    const void *b; /* element (k, n) is b[k * b_k + n * b_n]; b_k or b_n is 1 */
    int64_t b_k, b_n;
    const void *packed; /* B as ls_gemm_pack() laid it out, or NULL; one leaf, no b_sums */
    int64_t M, N, K;
    int64_t leaves; /* divides K */
    ls_gemm_finish finish;
    const void *args; /* of finish: the row's own struct */
    void *out;        /* C: row-major, ld elements from row to row */
    int64_t ld;
    const void *aside; /* another tensor of C's shape and type that finish reads or writes, or
                          NULL */
    bool accumulate;   /* of ls_gemm_store and sums: out = out + C */
    /* Sums over k of the rows of A ([M]) or the columns of B ([N]), or NULL: a chain of additions
     * inside each block of K, blocks in order, then the tree. */
    float *a_sums, *b_sums;
};

/* Runs on the stream's pool of threads. finish is called once per tile, from any of them. */
void LS_ISA_NAME(ls_gemm_run)(ls_stream *stream, const ls_gemm *g);

/* B of g, laid out once for any number of products: bytes, and the laying out, by the stream's
 * pool. A's type counts (see below), its pointer and M do not. Products of few rows read B as it
 * lies.
 *
 * For each block of K its panels of NR columns, one after another; so a task's columns of a block
 * lie side by side. The last panel is filled up with zeros. */
int64_t LS_ISA_NAME(ls_gemm_pack_bytes)(const ls_gemm *g);
void LS_ISA_NAME(ls_gemm_pack)(ls_stream *stream, const ls_gemm *g, void *to);

/* Whether g reads g->packed, where it is given. */
bool LS_ISA_NAME(ls_gemm_reads_packed)(const ls_gemm *g);

/* The same for M up to LS_GEMM_FEW with one leaf and a_k = 1; ls_gemm_run() comes here itself. */
void LS_ISA_NAME(ls_gemm_run_few)(ls_stream *stream, const ls_gemm *g);

/* The finish that writes C, or adds it to what is there. */
void LS_ISA_NAME(ls_gemm_store)(const ls_gemm *g, const float *tile, int64_t m, int64_t n,
                                int64_t rows, int64_t cols);
