/* dot_emulate_amx.c -- products by the instructions of AMX, emulated with the registers in memory.
 * Shapes come from the configuration, as in the CPU. */
#include "kernel/cpu/dot/dot_emulate_impl.h"

#if defined(__AVX512F__)
static int rows_of(const ls_dot_tiles *t, int i)
{
    return t->config[48 + i];
}

static int bytes_of(const ls_dot_tiles *t, int i)
{
    return t->config[16 + 2 * i];
}

static void emulate_config(ls_dot_tiles *t, const unsigned char *config)
{
    memset(t, 0, sizeof *t);
    memcpy(t->config, config, sizeof t->config);
    LS_BUG_IF(config[0] != 1, "palette %d", config[0]);
    for (int i = 0; i < 8; i++)
        LS_BUG_IF(rows_of(t, i) > 16 || bytes_of(t, i) > 64 || bytes_of(t, i) % 4 != 0,
                  "tile %d of %d rows of %d bytes", i, rows_of(t, i), bytes_of(t, i));
}

static void emulate_release(ls_dot_tiles *t)
{
    memset(t, 0, sizeof *t);
}

static void emulate_zero(ls_dot_tiles *t, int i)
{
    memset(t->tile[i], 0, sizeof t->tile[i]);
}

static void emulate_load(ls_dot_tiles *t, int i, const void *from, int64_t bytes)
{
    emulate_zero(t, i);
    for (int r = 0; r < rows_of(t, i); r++)
        memcpy(t->tile[i][r], (const char *)from + r * bytes, (size_t)bytes_of(t, i));
}

static void emulate_store(const ls_dot_tiles *t, int i, void *to, int64_t bytes)
{
    for (int r = 0; r < rows_of(t, i); r++)
        memcpy((char *)to + r * bytes, t->tile[i][r], (size_t)bytes_of(t, i));
}

/* One row of C: chains over the lower and the upper halves of words, then their sum. */
static void pairs_row(const uint32_t *a, const uint32_t (*b)[16], int words, int columns, float *c)
{
    float low[16] = {0}, high[16] = {0};

    for (int k = 0; k < words; k++)
        for (int n = 0; n < columns; n++) {
            low[n] = dot_fma(dot_low(a[k]), dot_low(b[k][n]), low[n]);
            high[n] = dot_fma(dot_high(a[k]), dot_high(b[k][n]), high[n]);
        }
    for (int n = 0; n < columns; n++)
        c[n] = dot_flush(dot_flush(c[n]) + dot_flush(low[n] + high[n]));
}

static void emulate_pairs(ls_dot_tiles *t, int c, int a, int b)
{
    int columns = bytes_of(t, c) / 4, words = bytes_of(t, a) / 4;
    float row[16];

    LS_BUG_IF(rows_of(t, a) != rows_of(t, c) || rows_of(t, b) != words ||
                  bytes_of(t, b) / 4 != columns,
              "tiles %d, %d and %d do not fit", c, a, b);
    for (int m = 0; m < rows_of(t, c); m++) {
        memcpy(row, t->tile[c][m], sizeof row);
        pairs_row(t->tile[a][m], (const uint32_t(*)[16])t->tile[b], words, columns, row);
        memcpy(t->tile[c][m], row, sizeof row);
    }
}

#define TILE_CONFIG(tiles, config) emulate_config((tiles), (config))
#define TILE_RELEASE(tiles) emulate_release(tiles)
#define TILE_ZERO(tiles, t) emulate_zero((tiles), (t))
#define TILE_LOAD(tiles, t, from, bytes) emulate_load((tiles), (t), (from), (bytes))
#define TILE_PAIRS(tiles, c, a, b) emulate_pairs((tiles), (c), (a), (b))
#define TILE_STORE(tiles, t, to, bytes) emulate_store((tiles), (t), (to), (bytes))
#include "kernel/cpu/dot/dot_amx_impl.h"

const ls_dot_kernel *ls_dot_kernel_emulate_amx(void)
{
    return &dot_kernel;
}
#else
const ls_dot_kernel *ls_dot_kernel_emulate_amx(void)
{
    return NULL;
}
#endif
