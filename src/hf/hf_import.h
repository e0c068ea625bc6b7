/* hf_import.h -- a Hugging Face folder becomes one of ours, proved to compute the same. */
#pragma once
#include "hf/fingerprint.h"

LS_C_BEGIN

typedef enum ls_hf_import_proof {
    LS_HF_IMPORT_UNPROVED, /* the folder has no fingerprint; one was made */
    LS_HF_IMPORT_PROVED    /* the model computes what its fingerprint says */
} ls_hf_import_proof;

typedef struct ls_hf_import_report {
    ls_family family;
    int64_t parameters, layers, width, context, vocab;
    char dtype[48]; /* found in the files */
    int files;
    ls_hf_import_proof proof;
    double worst;   /* largest difference of a logit, as a share of their root mean square */
    bool tokenizer; /* one went along */
    int64_t tokens; /* that it has; 0: it could not be read, for this reason: */
    char problem[640];
    double loss;         /* on a short English text, nats a token; NaN: not measured */
    int64_t loss_tokens; /* predicted for it */
    char weights_hash[33];
    double seconds;
} ls_hf_import_report;

/* Import folder from into a new folder to: checkpoints (step 0), config.json, generation_config,
 * tokenizer files, fingerprint. When it fails, to is as it was.
 * LS_EUSAGE: no such model, or to is not free. LS_EDATA: damaged, or the fingerprint differs. */
ls_status ls_hf_import(const char *from, const char *to, ls_hf_import_report *report_out);

LS_C_END
