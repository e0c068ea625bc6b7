/* squeeze_impl.h -- the loops behind squeeze.h, one set per instruction set, and the list of them
 * for tests that compare their bits. */
#pragma once
#include "kernel/squeeze.h"

/* add, unpack: false when a place lies outside its block. */
#define LS_SQUEEZE_DECLARE(isa)                                                                   \
    void ls_squeeze_pack_##isa(const ls_squeeze *how, const float *x, float *residual, int64_t n, \
                               char *packed);                                                     \
    bool ls_squeeze_add_##isa(const ls_squeeze *how, const char *packed, int64_t n, float *sum);  \
    bool ls_squeeze_unpack_##isa(const ls_squeeze *how, const char *packed, int64_t n, float *out);
LS_SQUEEZE_DECLARE(generic)
LS_SQUEEZE_DECLARE(avx2)
LS_SQUEEZE_DECLARE(avx512)
#undef LS_SQUEEZE_DECLARE

typedef struct ls_squeeze_loops {
    const char *name;
    void (*pack)(const ls_squeeze *how, const float *x, float *residual, int64_t n, char *packed);
    bool (*add)(const ls_squeeze *how, const char *packed, int64_t n, float *sum);
    bool (*unpack)(const ls_squeeze *how, const char *packed, int64_t n, float *out);
} ls_squeeze_loops;

/* Those that this CPU can run, best first; returns how many (at most 3, at least 1). */
int ls_squeeze_list(ls_squeeze_loops list_out[3]);

/* Elements kept of a block of n, for topk. */
static inline int64_t ls_squeeze_kept(const ls_squeeze *how, int64_t n)
{
    return (how->keep * n + LS_SQUEEZE_BLOCK - 1) / LS_SQUEEZE_BLOCK;
}
