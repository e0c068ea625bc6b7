/* decode.h -- text continued token by token.
 *
 * A decoder reads a history of tokens through a pass and chooses the next one. On a pass with a
 * cache (ls_pass_args.cache) it remembers which tokens the cache holds and feeds only what is new,
 * in calls of up to the pass's T tokens. Without a cache each token is one call over the last T
 * tokens: for samples during training on a device where no cache is kept.
 *
 * A history of n tokens that is longer than a cache of c positions is read from token
 * ls_decode_first(n, c) on: c - c/2 to c tokens, so that only one token in c/2 pays for reading
 * again. This depends on n alone, so the logits are a function of the history, whatever was read
 * before it. */
#pragma once
#include "model/pass.h"
#include "model/sampling.h"

LS_C_BEGIN

typedef struct ls_decode ls_decode;

/* Bytes of device memory that a decoder takes. */
int64_t ls_decode_bytes(const ls_model *model);

/* pass and model are borrowed; the pass may be one for training. */
ls_status ls_decode_open(ls_decode **decode_out, const ls_model *model, ls_pass *pass,
                         ls_stream *stream);
void ls_decode_close(ls_decode *decode); /* NULL is allowed */

/* The first token of a history of n that is read where `cache` positions are kept. */
int64_t ls_decode_first(int64_t n, int64_t cache);

/* With a cache: read history[0..n-1] (n >= 0, host memory) ahead of ls_decode_next(), so that a
 * long text can be read in pieces. Without one: nothing. */
ls_status ls_decode_read(ls_decode *decode, const void *w, const int32_t *history, int64_t n);

/* The token after history[0..n-1] (n >= 1, host memory). w is device memory, of the pass's type;
 * when it changes while a cache is in use, ls_decode_forget() comes first. Only tokens of the
 * tokenizer are chosen, even where model.vocab is larger. position numbers the token for the random
 * choice. LS_EUSAGE: a token outside the vocabulary. LS_ENUMERIC: the logits are not numbers. */
ls_status ls_decode_next(ls_decode *decode, const void *w, const int32_t *history, int64_t n,
                         const ls_sampling *sampling, uint64_t position, int32_t *token_out);

/* The cache holds nothing any more. */
void ls_decode_forget(ls_decode *decode);

/* The logits [V] behind the last choice, penalties applied; host memory, until the next call. */
const float *ls_decode_logits(const ls_decode *decode);

LS_C_END
