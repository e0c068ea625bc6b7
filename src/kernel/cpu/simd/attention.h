/* attention.h -- what the two files of the attention row share. */
#pragma once
#include "kernel/cpu/rows_attention.h"
#include "kernel/cpu/simd/tile.h"

enum {
    LS_ATTENTION_TILE = TILE_AHEAD_ROWS, /* keys whose scores share a largest one: makes the bits */
    LS_ATTENTION_MOST_D = 1024,
    LS_ATTENTION_FEW = 16 /* positions of queries up to which a call counts as few */
};

/* Below every score; finite, so that differences with it are not NaN. */
#define LS_ATTENTION_LOWEST (-3.0e38f)

/* attention_fwd for T up to LS_ATTENTION_FEW, without start and dropout: equal bits. */
void LS_ISA_NAME(ls_attention_few)(ls_stream *stream, const ls_attention_fwd *a);
