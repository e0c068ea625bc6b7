/* sampling.h -- how the next token is chosen among the logits of a vocabulary: temperature, top-k,
 * top-p, min-p, penalties. Host memory, no state: equal arguments choose the same token on every
 * machine. */
#pragma once
#include "base/base.h"

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

/* The penalties, on logits of V tokens. counts is scratch of V, zero before and after. */
void ls_sampling_penalize(float *logits, int32_t *counts, int64_t V, const int32_t *history,
                          int64_t n, const ls_sampling *sampling);

/* Scratch bytes of a choice among V. */
size_t ls_sampling_bytes(int64_t V);
/* The token, by temperature and cuts; a function of logits, settings and (seed, position). Equal
 * logits stand in the order of their numbers. No logit is NaN or +inf. */
int32_t ls_sampling_choose(const float *logits, void *scratch, int64_t V,
                           const ls_sampling *sampling, uint64_t position);

LS_C_END
