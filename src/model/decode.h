/* decode.h -- text continued token by token.
 *
 * Each token is one call over the last T tokens, without a key/value cache: right for samples of a
 * small model during training. The choice depends only on logits, settings and (seed, position). */
#pragma once
#include "model/pass.h"

LS_C_BEGIN

typedef struct ls_sampling {
    double temperature; /* 0: always the most likely token */
    int64_t top_k;      /* only the k most likely; 0: all */
    double top_p;       /* only the most likely ones that together have this probability; 1: all */
    uint64_t seed;
} ls_sampling;

typedef struct ls_decode ls_decode;

/* Bytes of device memory that a decoder takes. */
int64_t ls_decode_bytes(const ls_model *model);

/* pass and model are borrowed; the pass may be one for training. */
ls_status ls_decode_open(ls_decode **decode_out, const ls_model *model, ls_pass *pass,
                         ls_stream *stream);
void ls_decode_close(ls_decode *decode); /* NULL is allowed */

/* The token after history[0..n-1] (n >= 1, host memory); longer histories count from their end. w
 * is device memory. Only tokens of the tokenizer are chosen, also where model.vocab is larger.
 * position numbers the token for the random choice. */
ls_status ls_decode_next(ls_decode *decode, const float *w, const int32_t *history, int64_t n,
                         const ls_sampling *sampling, uint64_t position, int32_t *token_out);

/* The choice itself. logits are overwritten; order is scratch of V. */
int32_t ls_decode_pick(float *logits, int32_t *order, int64_t V, const ls_sampling *sampling,
                       uint64_t position);

LS_C_END
