/* squeeze.h -- floats in fewer bytes, for links that are slower than the work: bf16, int8 with a
 * scale per block, the largest of a block (top-k).
 *
 * What rounding or leaving out takes away is not lost when the caller keeps a residual: it is added
 * to what is packed the next time (error feedback).
 *
 *     y = x + residual      packed = squeezed(y)      residual = y - unpacked
 *
 *   kind   bytes for n elements              one block holds
 *   none   4 n                               the floats
 *   bf16   2 n                               each rounded to nearest even
 *   int8   n + 4 ceil(n / 256)               scale = max |y| / 127 in fp32; then y / scale, rounded
 *   topk   4 ceil(keep m / 4096) per block   of its m <= 4096 elements the largest by |y| (the
 * first of equal ones): places, 16 bits, ascending; values, bf16
 *
 * So the size depends on n alone. A range that begins at a multiple of LS_SQUEEZE_BLOCK elements
 * has the bytes that it has inside the whole, at ls_squeeze_bytes() of what is before it: threads
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

enum { LS_SQUEEZE_BLOCK = 4096, LS_SQUEEZE_SCALED = 256 }; /* elements */

typedef enum ls_squeeze_kind {
    LS_SQUEEZE_NONE,
    LS_SQUEEZE_BF16,
    LS_SQUEEZE_INT8,
    LS_SQUEEZE_TOPK,
    LS_SQUEEZE_KINDS
} ls_squeeze_kind;

typedef struct ls_squeeze {
    ls_squeeze_kind kind;
    int keep; /* topk: elements kept of a whole block, 1 .. LS_SQUEEZE_BLOCK */
} ls_squeeze;

/* fraction: of the elements, for topk; ignored otherwise. At least one of a block is kept. */
ls_squeeze ls_squeeze_of(ls_squeeze_kind kind, double fraction);

/* "none", "bf16", "int8", "topk" */
const char *ls_squeeze_name(ls_squeeze_kind kind);

int64_t ls_squeeze_bytes(const ls_squeeze *how, int64_t n);

/* residual: n elements, read and renewed; NULL: what is taken away is lost. */
void ls_squeeze_pack(const ls_squeeze *how, const float *x, float *residual, int64_t n,
                     void *packed_out);

/* sum += unpacked; out = unpacked. LS_EDATA: a place outside its block; then part of it is done. */
ls_status ls_squeeze_add(const ls_squeeze *how, const void *packed, int64_t n, float *sum);
ls_status ls_squeeze_unpack(const ls_squeeze *how, const void *packed, int64_t n, float *out);

LS_C_END
