/* codec.h -- floats in fewer bytes, for links that are slower than the work: bf16, int8 with a
 * scale per block, the largest of a block (top-k).
 *
 * What rounding or leaving out takes away is not lost when the caller keeps a residual: it is added
 * to what is packed the next time (error feedback).
 *
 *     y = x + residual      packed = compressed(y)      residual = y - unpacked
 *
 *   kind   bytes for n elements              one block holds
 *   none   4 n                               the floats
 *   bf16   2 n                               each rounded to nearest even
 *   int8   n + 4 ceil(n / 256)               scale = max |y| / 127 in fp32; then y / scale, rounded
 *   topk   4 ceil(keep m / 4096) per block   of its m <= 4096 elements the largest by |y| (the
 * first of equal ones): places, 16 bits, ascending; values, bf16
 *
 * So the size depends on n alone. A range that begins at a multiple of LS_CODEC_BLOCK elements
 * has the bytes that it has inside the whole, at ls_codec_bytes() of what is before it: threads
 * and buckets may share the work. Bits do not depend on the instruction set. Packed bytes may have
 * any alignment.
 *
 * What is not finite arrives as something that is not finite: bf16 and topk keep it in place (topk
 * takes it for the largest), int8 makes its whole block of 256 NaN. Such a block (of 256; of 4096
 * for topk) leaves its residual as it was, so that what was owed outlives a step that is dropped. A
 * finite value that bf16 cannot hold (above 3.39e38) becomes infinite. Below 2^-119 a block of int8
 * is sent as zeros, all of it owed. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum { LS_CODEC_BLOCK = 4096, LS_CODEC_SCALED = 256 }; /* elements */

typedef enum ls_codec_kind {
    LS_CODEC_NONE,
    LS_CODEC_BF16,
    LS_CODEC_INT8,
    LS_CODEC_TOPK,
    LS_CODEC_KINDS
} ls_codec_kind;

typedef struct ls_codec {
    ls_codec_kind kind;
    int keep; /* topk: elements kept of a whole block, 1 .. LS_CODEC_BLOCK */
} ls_codec;

/* fraction: of the elements, for topk; ignored otherwise. At least one of a block is kept. */
ls_codec ls_codec_of(ls_codec_kind kind, double fraction);

/* "none", "bf16", "int8", "topk" */
const char *ls_codec_name(ls_codec_kind kind);

int64_t ls_codec_bytes(const ls_codec *how, int64_t n);

/* residual: n elements, read and renewed; NULL: what is taken away is lost. */
void ls_codec_pack(const ls_codec *how, const float *x, float *residual, int64_t n,
                   void *packed_out);

/* sum += unpacked; out = unpacked. LS_EDATA: a place outside its block; then part of it is done. */
ls_status ls_codec_add(const ls_codec *how, const void *packed, int64_t n, float *sum);
ls_status ls_codec_unpack(const ls_codec *how, const void *packed, int64_t n, float *out);

LS_C_END
