/* codec.c -- sizes of compressed gradients, and the choice of the loops of cpu/simd/simd_codec.c for
 * this CPU. */
#include "kernel/codec.h"

#include <math.h>
#include "kernel/codec_impl.h"

int ls_codec_list(ls_codec_loops list_out[3])
{
    int n = 0;

#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        list_out[n++] = (ls_codec_loops){"avx512", ls_codec_pack_avx512, ls_codec_add_avx512,
                                         ls_codec_unpack_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        list_out[n++] =
            (ls_codec_loops){"avx2", ls_codec_pack_avx2, ls_codec_add_avx2, ls_codec_unpack_avx2};
#endif
    list_out[n++] = (ls_codec_loops){"generic", ls_codec_pack_generic, ls_codec_add_generic,
                                     ls_codec_unpack_generic};
    return n;
}

static ls_codec_loops best(void)
{
    ls_codec_loops list[3];

    ls_codec_list(list);
    return list[0];
}

ls_codec ls_codec_of(ls_codec_kind kind, double fraction)
{
    int64_t keep = (int64_t)ceil(fraction * LS_CODEC_BLOCK);

    return (ls_codec){
        .kind = kind,
        .keep = kind == LS_CODEC_TOPK ? (int)ls_max_i64(1, ls_min_i64(keep, LS_CODEC_BLOCK)) : 0};
}

const char *ls_codec_name(ls_codec_kind kind)
{
    static const char *const names[LS_CODEC_KINDS] = {"none", "bf16", "int8", "topk"};

    return names[kind];
}

int64_t ls_codec_bytes(const ls_codec *how, int64_t n)
{
    int64_t whole = n / LS_CODEC_BLOCK, rest = n % LS_CODEC_BLOCK;

    switch (how->kind) {
    case LS_CODEC_BF16:
        return 2 * n;
    case LS_CODEC_INT8:
        return n + 4 * ((n + LS_CODEC_SCALED - 1) / LS_CODEC_SCALED);
    case LS_CODEC_TOPK:
        return 4 * (whole * how->keep + ls_codec_kept(how, rest));
    default:
        return 4 * n;
    }
}

void ls_codec_pack(const ls_codec *how, const float *x, float *residual, int64_t n,
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

ls_status ls_codec_add(const ls_codec *how, const void *packed, int64_t n, float *sum)
{
    return best().add(how, packed, n, sum) ? LS_OK : damaged();
}

ls_status ls_codec_unpack(const ls_codec *how, const void *packed, int64_t n, float *out)
{
    return best().unpack(how, packed, n, out) ? LS_OK : damaged();
}
