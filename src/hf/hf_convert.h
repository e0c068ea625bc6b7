/* hf_convert.h -- numbers between fp32 and the narrower types of files, bit by bit.
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even; what is too large becomes infinity,
 * as torch does. Source and destination need no alignment. */
#pragma once
#include "base/dtype.h"
#include "checkpoint/safetensors.h"

LS_C_BEGIN

/* Whether elements of that type can be read as fp32. */
bool ls_hf_convert_reads(const ls_safetensors_dtype *dtype);

/* count elements of dtype at src to fp32. F64 is rounded. */
void ls_hf_convert_widen(const ls_safetensors_dtype *dtype, const void *src, int64_t count,
                         float *values_out);

/* count values to F32, BF16 or F16. */
void ls_hf_convert_narrow(ls_dtype type, const float *values, int64_t count, void *dst);

LS_C_END
