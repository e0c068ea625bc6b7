/* fingerprint.h -- a few logits of fixed tokens: does this model still compute the same?
 *
 * A weight matrix whose halves are interleaved the other way, or a square one that is transposed,
 * has the right name, shape and checksum, and gives another model without any error. Its logits
 * tell. A fingerprint lies beside a model as lineshaft_fingerprint.json, and is verified whenever
 * the model is imported or exported; tests/conformance/tools/fingerprint.py makes the same file
 * with transformers, so that an import can be proved against the original.
 *
 * Tokens are a function of the vocabulary's size: token i is x mod vocab with x the upper 32 bits
 * of (i + 1) * 0x9E3779B97F4A7C15 mod 2^64. Places in the vocabulary continue the same sequence at
 * i = 1000. */
#pragma once
#include "data/tokenizer/tokenizer.h"
#include "hf/loaded_model.h"

LS_C_BEGIN

enum {
    LS_FINGERPRINT_TOKENS = 24, /* or as many as the context has */
    LS_FINGERPRINT_ROWS = 3,    /* positions looked at: a third, two thirds, the last */
    LS_FINGERPRINT_PLACES = 12  /* logits of a row: 8 at fixed places, then the 4 largest */
};
#define LS_FINGERPRINT_FILE "lineshaft_fingerprint.json"

/* Largest difference allowed, as a share of the root mean square of a row's logits: between two
 * programs that compute in fp32, and after the weights were rounded. */
#define LS_FINGERPRINT_F32 1e-3
#define LS_FINGERPRINT_F16 0.05
#define LS_FINGERPRINT_BF16 0.3

typedef struct ls_fingerprint_row {
    int position;
    double mean, rms; /* of all logits */
    int n;
    int32_t places[LS_FINGERPRINT_PLACES];
    float logits[LS_FINGERPRINT_PLACES];
} ls_fingerprint_row;

typedef struct ls_fingerprint {
    int64_t vocab;
    int n_tokens, n_rows;
    int32_t tokens[LS_FINGERPRINT_TOKENS];
    ls_fingerprint_row rows[LS_FINGERPRINT_ROWS];
} ls_fingerprint;

/* Compute the fingerprint of a model. LS_ENUMERIC: a logit is not a number. */
ls_status ls_fingerprint_make(const ls_loaded_model *model, ls_fingerprint *print_out);

/* Compute what want asks for and compare. path is the model's, for messages. Positions beyond the
 * model's context are left out. LS_EDATA: another model, or no position is left. *worst_out (may be
 * NULL): the largest difference, as a share like tolerance. */
ls_status ls_fingerprint_verify(const ls_loaded_model *model, const ls_fingerprint *want,
                                double tolerance, const char *path, double *worst_out);

/* As JSON, and back. LS_EDATA: not a fingerprint. */
void ls_fingerprint_print(const ls_fingerprint *print, ls_str *out);
ls_status ls_fingerprint_parse(ls_fingerprint *print_out, const char *text, size_t len,
                               const char *name);

/* The fingerprint that lies in a folder. *found_out is false when there is none. */
ls_status ls_fingerprint_read(ls_fingerprint *print_out, const char *folder, bool *found_out);
ls_status ls_fingerprint_write(const ls_fingerprint *print, const char *folder);

/* Mean loss on a short English text, in nats a token: a model that reads its weights wrongly is no
 * better than ln(vocab). *tokens_out: how many were predicted; 0: the text gives too few. */
ls_status ls_fingerprint_loss(const ls_loaded_model *model, const ls_tokenizer *tok,
                              double *loss_out, int64_t *tokens_out);

LS_C_END
