/* codec.c -- sizes of compressed gradients, and the choice of the loops of cpu/simd/simd_codec.c for
 * this CPU. */
#include "kernel/codec.h"

#include <math.h>
#include "kernel/codec_impl.h"
#include "kernel/cpu/isa.h"

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
    LS_ISA_BEST(ls_codec_pack)(how, x, residual, n, packed_out);
}

static ls_status damaged(void)
{
    ls_status st = ls_fail(LS_EDATA, "packed numbers are damaged: a place outside its block");

    ls_err_hint("Check the memory and the network between the ranks.");
    return st;
}

ls_status ls_codec_add(const ls_codec *how, const void *packed, int64_t n, float *sum)
{
    return LS_ISA_BEST(ls_codec_add)(how, packed, n, sum) ? LS_OK : damaged();
}

ls_status ls_codec_unpack(const ls_codec *how, const void *packed, int64_t n, float *out)
{
    return LS_ISA_BEST(ls_codec_unpack)(how, packed, n, out) ? LS_OK : damaged();
}
