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

LS_C_BEGIN

/* How a token is chosen. A cut or a penalty that is left at 0 does nothing, top_p excepted. They
 * apply in this order, as in transformers: penalties, temperature, top_k, top_p, min_p. */
typedef struct ls_sampling {
    double temperature; /* 0: always the most likely token */
    int64_t top_k;      /* only the k most likely; 0: all */
    double top_p;       /* only the most likely ones that together have this probability; 1: all */
    double min_p;       /* only those at least this many times as likely as the most likely one */
    double repetition;  /* each token of the history: logit / this if above 0, else * this; 1: no */
    double presence;    /* taken from the logit of each token of the answer */
    double frequency;   /* the same, once for each time the token is there */
    int64_t answer;     /* where in the history the answer begins: presence, frequency */
    uint64_t seed;
} ls_sampling;

/* What `generate` does unless told otherwise, and what an export tells others to do. */
#define LS_SAMPLING_TEMPERATURE 0.8
#define LS_SAMPLING_TOP_P 0.95

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
 * tokenizer are chosen, also where model.vocab is larger. position numbers the token for the random
 * choice. LS_EUSAGE: a token outside the vocabulary. LS_ENUMERIC: the logits are not numbers. */
ls_status ls_decode_next(ls_decode *decode, const void *w, const int32_t *history, int64_t n,
                         const ls_sampling *sampling, uint64_t position, int32_t *token_out);

/* The cache holds nothing any more. */
void ls_decode_forget(ls_decode *decode);

/* The logits [V] behind the last choice, penalties applied; host memory, until the next call. */
const float *ls_decode_logits(const ls_decode *decode);

/* --- the choice itself, in decode_pick.c ------------------------------------------------------ */

/* The penalties, on logits of V tokens. counts is scratch of V, zero before and after. */
void ls_decode_penalize(float *logits, int32_t *counts, int64_t V, const int32_t *history,
                        int64_t n, const ls_sampling *sampling);

/* Scratch bytes of a choice among V. */
size_t ls_decode_pick_bytes(int64_t V);
/* The token, by temperature and cuts; a function of logits, settings and (seed, position). Equal
 * logits stand in the order of their numbers. No logit is NaN or +inf. */
int32_t ls_decode_pick(const float *logits, void *scratch, int64_t V, const ls_sampling *sampling,
                       uint64_t position);

LS_C_END
