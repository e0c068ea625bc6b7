/* gguf_model.h -- a model as a GGUF file.
 *
 * llama.cpp computes each architecture in one way, so a setting that it has no key for is refused
 * rather than left out. Matrices become the type asked for; what has few numbers or decides much
 * stays F32 (norms, biases, routers, learned positions). */
#pragma once
#include "hf/gguf.h"
#include "hf/loaded_model.h"

LS_C_BEGIN

typedef struct ls_gguf_model_args {
    const ls_loaded_model *model; /* without small matrices of LoRA beside its weights */
    const ls_hf_config *config;   /* ids of special tokens */
    const char *tokenizer;        /* folder with a tokenizer.json */
    const char *name;             /* what the file says the model is called */
    const char *path;             /* to be written */
    ls_gguf_type type;            /* of matrices */
} ls_gguf_model_args;

/* Whether llama.cpp can compute the model. LS_EUSAGE: no; the message says what it lacks. */
ls_status ls_gguf_model_check(const ls_model *model);

/* Write the file and read it back into the weights in memory, so that these are what a reader sees.
 * *bytes_out: its length. Appends to notes what differs there, a line each. LS_EUSAGE: llama.cpp has
 * no such model or tokenizer. LS_EDATA: a weight does not fit the type. */
ls_status ls_gguf_model_write(const ls_gguf_model_args *args, ls_str *notes, int64_t *bytes_out);

LS_C_END
