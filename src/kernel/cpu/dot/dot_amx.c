/* dot_amx.c -- products by the instructions of AMX. */
#include "kernel/cpu/dot/dot_impl.h"

/* Compilers spell it in two ways. */
#if (defined(__AMX_BF16__) || defined(__AMXBF16__)) && defined(__AVX512F__)
/* All 64 bytes are in memory by then: some compilers believe that only the first 8 are read. */
#define TILE_CONFIG(tiles, config)                       \
    do {                                                 \
        __asm__ volatile("" : : "r"(config) : "memory"); \
        _tile_loadconfig(config);                        \
    } while (0)
#define TILE_RELEASE(tiles) _tile_release()
#define TILE_ZERO(tiles, t) _tile_zero(t)
#define TILE_LOAD(tiles, t, from, bytes) _tile_loadd(t, from, bytes)
#define TILE_PAIRS(tiles, c, a, b) _tile_dpbf16ps(c, a, b)
#define TILE_STORE(tiles, t, to, bytes) _tile_stored(t, to, bytes)
#include "kernel/cpu/dot/dot_amx_impl.h"

const ls_dot_kernel *ls_dot_kernel_amx(void)
{
    return &dot_kernel;
}
#else
const ls_dot_kernel *ls_dot_kernel_amx(void)
{
    return NULL;
}
#endif
