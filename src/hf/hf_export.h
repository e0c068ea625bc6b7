/* hf_export.h -- a model becomes a Hugging Face folder, or its small matrices a PEFT folder. */
#pragma once
#include <limits.h>
#include "hf/fingerprint.h"
#include "hf/gguf_block.h"

LS_C_BEGIN

typedef struct ls_hf_export_args {
    const char *from;  /* any model folder */
    int64_t step;      /* of one of our stores; -1: the newest */
    const char *key;   /* that it must be signed with; NULL: any */
    const char *to;    /* must be free */
    ls_dtype type;     /* LS_F32, LS_BF16 or LS_F16 */
    bool same_type;    /* the type that the model came with, F32 when it is not known */
    int64_t shard;     /* most bytes of one file; 0: one file */
    bool adapter;      /* only the small matrices of LoRA */
    const char *base;  /* what an adapter calls its base model; NULL: where its import came from */
    const char *merge; /* an adapter of PEFT that is merged into the model first; NULL: none */
    int bits;          /* 8 or 4: a folder with quantized matrices, in groups of `group`; 0: none */
    int64_t group;
    bool gguf; /* one file for llama.cpp instead of a folder; its matrices are of gguf_type */
    ls_gguf_type gguf_type;
} ls_hf_export_args;

typedef struct ls_hf_export_report {
    int64_t parameters; /* written */
    int64_t bytes;
    int files;
    ls_dtype type;
    int matrices;   /* of integers, in a quantized folder */
    bool merged;    /* small matrices were added to the weights beside them */
    bool tokenizer; /* one went along */
    double worst;   /* largest difference of a logit to the model exported; 0 for an adapter */
    double seconds;
    char base[PATH_MAX]; /* that an adapter names */
    char notes[512];     /* what other programs do differently with what was written, a line each */
} ls_hf_export_report;

/* When it returns LS_OK the folder was opened again and computes what the model computes, as far as
 * the type allows; when it fails, to is as it was. LS_EUSAGE: transformers has no such model, there
 * is no LoRA to export, or to is not free. LS_EDATA: a weight does not fit the type, or the folder
 * computes something else. */
ls_status ls_hf_export(const ls_hf_export_args *args, ls_hf_export_report *report_out);

LS_C_END
