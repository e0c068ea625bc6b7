/* combine.h -- element by element over the buffers of several ranks: sum, max, min.
 *
 * Not a row of the kernel table: collectives call it on memory of any alignment, in the thread that
 * moves the bytes. Bits do not depend on the instruction set, nor on how a range is cut. */
#pragma once
#include "base/dtype.h"

LS_C_BEGIN

typedef enum ls_combine_op { LS_COMBINE_SUM, LS_COMBINE_MAX, LS_COMBINE_MIN } ls_combine_op;

typedef struct ls_combine {
    ls_dtype type;
    ls_combine_op op;
    const void *const *from; /* sources, in the order they are combined */
    int sources;             /* >= 1 */
    void *const *to;         /* targets, all get the result; a target may be one of the sources */
    int targets;             /* >= 1 */
    double scale; /* the result is multiplied by it unless it is 1 (floating types only) */
} ls_combine;

/* to[t][i] = scale * (from[0][i] op from[1][i] op ...), for i < count. bf16 and fp16 are widened to
 * fp32, combined there and rounded once (to nearest even). Integers wrap. A NaN among the sources
 * makes the result NaN, for max and min too. */
void ls_combine_run(const ls_combine *combine, int64_t count);

/* to = left + right; to may be one of them, count may be 0. */
void ls_combine_two(ls_dtype type, const void *left, const void *right, void *to, int64_t count);

LS_C_END
