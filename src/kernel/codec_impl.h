/* codec_impl.h -- the loops behind codec.h, one set per instruction set, all with the same bits. */
#pragma once
#include "kernel/codec.h"

/* add, unpack: false when a place lies outside its block. */
#define LS_CODEC_DECLARE(isa)                                                                 \
    void ls_codec_pack_##isa(const ls_codec *how, const float *x, float *residual, int64_t n, \
                             char *packed);                                                   \
    bool ls_codec_add_##isa(const ls_codec *how, const char *packed, int64_t n, float *sum);  \
    bool ls_codec_unpack_##isa(const ls_codec *how, const char *packed, int64_t n, float *out);
LS_CODEC_DECLARE(generic)
LS_CODEC_DECLARE(avx2)
LS_CODEC_DECLARE(avx512)
#undef LS_CODEC_DECLARE

/* Elements kept of a block of n, for topk. */
static inline int64_t ls_codec_kept(const ls_codec *how, int64_t n)
{
    return (how->keep * n + LS_CODEC_BLOCK - 1) / LS_CODEC_BLOCK;
}
