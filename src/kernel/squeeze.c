/* squeeze.c -- sizes, and the loops of cpu/simd/squeeze.c for this CPU. */
#include "kernel/squeeze.h"

#include <math.h>
#include "kernel/squeeze_impl.h"

int ls_squeeze_list(ls_squeeze_loops list_out[3])
{
    int n = 0;

#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        list_out[n++] = (ls_squeeze_loops){"avx512", ls_squeeze_pack_avx512, ls_squeeze_add_avx512,
                                           ls_squeeze_unpack_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        list_out[n++] = (ls_squeeze_loops){"avx2", ls_squeeze_pack_avx2, ls_squeeze_add_avx2,
                                           ls_squeeze_unpack_avx2};
#endif
    list_out[n++] = (ls_squeeze_loops){"generic", ls_squeeze_pack_generic, ls_squeeze_add_generic,
                                       ls_squeeze_unpack_generic};
    return n;
}

static ls_squeeze_loops best(void)
{
    ls_squeeze_loops list[3];

    ls_squeeze_list(list);
    return list[0];
}

ls_squeeze ls_squeeze_of(ls_squeeze_kind kind, double fraction)
{
    int64_t keep = (int64_t)ceil(fraction * LS_SQUEEZE_BLOCK);

    return (ls_squeeze){.kind = kind,
                        .keep = kind == LS_SQUEEZE_TOPK
                                    ? (int)ls_max_i64(1, ls_min_i64(keep, LS_SQUEEZE_BLOCK))
                                    : 0};
}

const char *ls_squeeze_name(ls_squeeze_kind kind)
{
    static const char *const names[LS_SQUEEZE_KINDS] = {"none", "bf16", "int8", "topk"};

    return names[kind];
}

int64_t ls_squeeze_bytes(const ls_squeeze *how, int64_t n)
{
    int64_t whole = n / LS_SQUEEZE_BLOCK, rest = n % LS_SQUEEZE_BLOCK;

    switch (how->kind) {
    case LS_SQUEEZE_BF16:
        return 2 * n;
    case LS_SQUEEZE_INT8:
        return n + 4 * ((n + LS_SQUEEZE_SCALED - 1) / LS_SQUEEZE_SCALED);
    case LS_SQUEEZE_TOPK:
        return 4 * (whole * how->keep + ls_squeeze_kept(how, rest));
    default:
        return 4 * n;
    }
}

void ls_squeeze_pack(const ls_squeeze *how, const float *x, float *residual, int64_t n,
                     void *packed_out)
{
    best().pack(how, x, residual, n, packed_out);
}

static ls_status damaged(void)
{
    ls_status st = ls_fail(LS_EDATA, "packed numbers are damaged: a place outside its block");

    ls_err_hint("Check the memory and the network between the ranks.");
    return st;
}

ls_status ls_squeeze_add(const ls_squeeze *how, const void *packed, int64_t n, float *sum)
{
    return best().add(how, packed, n, sum) ? LS_OK : damaged();
}

ls_status ls_squeeze_unpack(const ls_squeeze *how, const void *packed, int64_t n, float *out)
{
    return best().unpack(how, packed, n, out) ? LS_OK : damaged();
}
