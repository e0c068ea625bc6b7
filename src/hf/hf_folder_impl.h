/* hf_folder_impl.h -- what the files of this room share about an open folder. Not for other rooms. */
#pragma once
#include "checkpoint/safetensors.h"
#include "hf/hf_folder.h"

/* A tensor of a Hugging Face folder. */
typedef struct ls_hf_folder_tensor {
    const ls_safetensors_entry *entry; /* borrowed from its file */
    int file;
    const struct ls_hf_quant_tensor *quant; /* small integers with scales; NULL: plain numbers */
} ls_hf_folder_tensor;

struct ls_hf_folder {
    char *path; /* as given; owned */
    ls_str home;
    ls_str copies; /* what a run of ours kept of other folders; empty for Hugging Face's */
    bool hf;
    ls_run run; /* released when has_run */
    bool has_run;
    ls_hf_config config;
    char dtype[48];

    /* Hugging Face */
    ls_safetensors *files; /* owned, n_files of them open */
    int n_files;
    ls_hf_folder_tensor *tensors; /* owned; sorted by name */
    int n_tensors;
    struct ls_hf_folder_part *parts;   /* owned: of fused tensors (hf_fused.c); NULL: none */
    struct ls_hf_quant_tensor *quants; /* owned: of quantized tensors (hf_quant.c); NULL: none */
    bool bare; /* names lack the prefix of the family: "h.0..." for "transformer.h.0..." */

    /* ours */
    ls_ckpt_store *store;
    ls_ckpt *ckpt;
    int64_t step; /* asked for; -1: the newest */
};

/* hf_weights.c: open the safetensors files of folder->path and list their tensors. */
ls_status ls_hf_folder_open_files(ls_hf_folder *folder);
/* The tensor that holds parameter name; NULL: none. */
const ls_hf_folder_tensor *ls_hf_folder_find(const ls_hf_folder *folder, const char *name);
/* Number i of the tensors under the name that the model would give it (buffer of LS_PARAM_NAME). */
void ls_hf_folder_model_name(const ls_hf_folder *folder, int i, char name_out[LS_PARAM_NAME]);
/* Elements of a tensor as fp32. */
void ls_hf_folder_widen(const ls_hf_folder *folder, const ls_hf_folder_tensor *t, int64_t first,
                        int64_t count, float *values_out);
