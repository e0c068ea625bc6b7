/* dot_amx_impl.h -- a tile of C by tdpbf16ps, written over TILE_CONFIG, TILE_RELEASE, TILE_ZERO,
 * TILE_LOAD, TILE_PAIRS and TILE_STORE: the instructions or their emulation, as the file says that
 * includes this.
 *
 * Registers 0 to 3 hold 32 rows by 32 columns of C, 4 and 5 two times 16 rows of A, 6 and 7 two
 * times 16 columns of B: four products for four loads; twice, for the 64 columns of a tile. Up to
 * 16 rows need the upper half only. All registers have the full shape; what is missing was packed
 * as zeros. */
#pragma once
#include "kernel/cpu/dot/dot_impl.h"

#if defined(TILE_PAIRS) /* else the includer has not defined the instructions */
enum { SIDE = LS_DOT_RUN, A_BYTES = LS_DOT_AR * 4, B_BYTES = LS_GEMM_NR * 4 };

static void dot_begin(ls_dot_tiles *tiles)
{
    /* palette 1; bytes of a row of register i at 16 + 2i, its rows at 48 + i */
    _Alignas(64) unsigned char config[64] = {1};

    for (int i = 0; i < 8; i++) {
        config[16 + 2 * i] = 64;
        config[48 + i] = SIDE;
    }
    TILE_CONFIG(tiles, config);
    (void)tiles;
}

static void dot_end(ls_dot_tiles *tiles)
{
    TILE_RELEASE(tiles);
    (void)tiles;
}

/* tall: more than 16 rows; a constant. */
LS_INLINE void dot_tiles(ls_dot_tiles *tiles, const bool tall, int64_t words, const uint32_t *a,
                         const uint32_t *b, float *to)
{
    TILE_ZERO(tiles, 0);
    TILE_ZERO(tiles, 1);
    if (tall) {
        TILE_ZERO(tiles, 2);
        TILE_ZERO(tiles, 3);
    }
    for (int64_t k = 0; k < words; k += SIDE, a += SIDE, b += SIDE * LS_GEMM_NR) {
        TILE_LOAD(tiles, 6, b, B_BYTES);
        TILE_LOAD(tiles, 7, b + SIDE, B_BYTES);
        TILE_LOAD(tiles, 4, a, A_BYTES);
        TILE_PAIRS(tiles, 0, 4, 6);
        TILE_PAIRS(tiles, 1, 4, 7);
        if (tall) {
            TILE_LOAD(tiles, 5, a + SIDE * LS_DOT_AR, A_BYTES);
            TILE_PAIRS(tiles, 2, 5, 6);
            TILE_PAIRS(tiles, 3, 5, 7);
        }
    }
    TILE_STORE(tiles, 0, to, B_BYTES);
    TILE_STORE(tiles, 1, to + SIDE, B_BYTES);
    if (tall) {
        TILE_STORE(tiles, 2, to + SIDE * LS_GEMM_NR, B_BYTES);
        TILE_STORE(tiles, 3, to + SIDE * LS_GEMM_NR + SIDE, B_BYTES);
    }
    (void)tiles;
}

static void dot_multiply(ls_dot_tiles *tiles, int64_t rows, int64_t words, const uint32_t *a,
                         const uint32_t *b, float *tile, bool add)
{
    /* The sum of a block begins at zero, so the old tile is added afterwards. */
    _Alignas(64) float spare[LS_DOT_ROWS * LS_GEMM_NR];
    float *to = add ? spare : tile;

    for (int64_t n = 0; n < LS_GEMM_NR; n += 2 * SIDE)
        if (rows > SIDE)
            dot_tiles(tiles, true, words, a, b + n, to + n);
        else
            dot_tiles(tiles, false, words, a, b + n, to + n);
    for (int64_t i = 0; add && i < rows * LS_GEMM_NR; i += LS_LANES)
        v_store(tile + i, v_add(v_load(tile + i), v_load(spare + i)));
}

static const ls_dot_kernel dot_kernel = {
    .rows = LS_DOT_ROWS,
    .step = SIDE,
    .rate = 512,
    .whole_runs = true,
    .begin = dot_begin,
    .end = dot_end,
    .multiply = dot_multiply,
};
#endif
