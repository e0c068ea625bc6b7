/* pieces.h -- heads of tokens between the tensor in which they lie and a dense one that travels.
 *
 * Ranks that share sequences send keys and values to each other. In the packed product of q, k and
 * v they lie apart, a part of every row; what is sent lies without gaps, [B, T, H, D]. Host memory.
 */
#pragma once
#include "kernel/kernel.h"

LS_C_BEGIN

typedef struct ls_pieces {
    ls_dtype type;
    ls_heads heads; /* whose heads lie side by side: head is D */
    void *dense;    /* [B, T, H, D] */
    int64_t B, T, H, D;
} ls_pieces;

void ls_pieces_pack(ls_stream *stream, const ls_pieces *a);   /* dense = heads */
void ls_pieces_unpack(ls_stream *stream, const ls_pieces *a); /* heads = dense */

LS_C_END
