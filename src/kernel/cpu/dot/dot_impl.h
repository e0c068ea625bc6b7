/* dot_impl.h -- what the parts of a product by pairs agree on.
 *
 * A word is two bf16 with consecutive k, the even one in its lower half. Packed for one block of K:
 *
 *   A   a panel of `rows` rows, LS_DOT_AR words from row to row, words in order of k
 *   B   panels of LS_GEMM_NR columns: for each pair of k the words of all its columns
 *
 * Both are filled up with zeros to LS_DOT_RUN words: 0 * 0 adds nothing, 0 * Inf would. One layout
 * serves both instructions: vdpbf16ps takes a word of A for all columns and 16 words of B; a tile
 * of AMX is 16 rows by 16 words of A, or 16 pairs by 16 columns of B. */
#pragma once
#include "kernel/cpu/simd/gemm.h"

enum {
    LS_DOT_RUN = 16,                       /* words that packing fills up to; those of a tile */
    LS_DOT_WORDS = LS_GEMM_KC / 2,         /* of a block of K */
    LS_DOT_AR = LS_DOT_WORDS + LS_DOT_RUN, /* an odd number of cache lines */
    LS_DOT_ROWS = 32                       /* of a panel of A at most */
};

/* The registers of AMX, where they are emulated. */
typedef struct ls_dot_tiles {
    _Alignas(64) unsigned char config[64];
    _Alignas(64) uint32_t tile[8][16][16];
} ls_dot_tiles;

typedef struct ls_dot_kernel {
    int64_t rows;    /* of a panel of A */
    int64_t step;    /* a panel's height is filled up with zeros to a multiple of this */
    double rate;     /* products per cycle, about; decides how C is cut, never bits */
    bool whole_runs; /* words are multiples of LS_DOT_RUN */
    /* Around all calls of multiply that a thread makes for a task. */
    void (*begin)(ls_dot_tiles *tiles);
    void (*end)(ls_dot_tiles *tiles);
    /* tile = A panel x B panel, or tile + that; rows of LS_GEMM_NR floats. */
    void (*multiply)(ls_dot_tiles *tiles, int64_t rows, int64_t words, const uint32_t *a,
                     const uint32_t *b, float *tile, bool add);
} ls_dot_kernel;

/* NULL where the compiler does not know the instruction. */
const ls_dot_kernel *ls_dot_kernel_avx512(void);
const ls_dot_kernel *ls_dot_kernel_amx(void);
const ls_dot_kernel *ls_dot_kernel_emulate_avx512(void);
const ls_dot_kernel *ls_dot_kernel_emulate_amx(void);
