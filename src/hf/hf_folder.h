/* hf_folder.h -- a model in a folder, whoever wrote it: Hugging Face's files or our checkpoints.
 *
 *   HF folder    config.json, model.safetensors or shards with model.safetensors.index.json,
 *                tokenizer files
 *   ours         a run folder, its checkpoints folder, or one manifest (step-*.json); the run that
 *                made it is in the manifest
 *
 * Opening reads and checks descriptions only; weights are mapped, and read by parameter or piece as
 * fp32 (from F64, F32, F16, BF16, F8_E4M3 or F8_E5M2 in safetensors). Nothing is executed, and
 * nothing in a file is trusted before it is checked. */
#pragma once
#include "checkpoint/ckpt.h"
#include "config/hf_config.h"
#include "data/tokenizer/tokenizer.h"
#include "model/model.h"

LS_C_BEGIN

typedef struct ls_hf_folder ls_hf_folder;

/* LS_EUSAGE: there is no model in path, or one that lineshaft does not build. LS_EDATA: its files
 * are damaged or contradict each other. step: of one of our stores, -1 for the newest that is whole
 * (or the one the path names). */
ls_status ls_hf_folder_open(ls_hf_folder **folder_out, const char *path, int64_t step);
/* The same of one of our stores that is signed with the key in this file, whatever path is
 * (ls_ckpt_use_key). key NULL: whoever made it. */
ls_status ls_hf_folder_open_signed(ls_hf_folder **folder_out, const char *path, int64_t step,
                                   const char *key);
void ls_hf_folder_close(ls_hf_folder *folder); /* NULL is allowed */

bool ls_hf_folder_is_hf(const ls_hf_folder *folder);
const char *ls_hf_folder_path(const ls_hf_folder *folder);
/* The run that describes the model: of the manifest, or made from config.json (then its data
 * section is empty but for the tokenizer, and vocab is that of config.json). Borrowed. */
const ls_run *ls_hf_folder_run(const ls_hf_folder *folder);
/* Token ids and dtype that config.json gives; for our folders what the import kept of them. */
const ls_hf_config *ls_hf_folder_config(const ls_hf_folder *folder);

/* Positions that the model can read, of which its run may have used fewer: learned ones, or as many
 * as the model that it was tuned from was made for. */
int64_t ls_hf_folder_positions(const ls_hf_folder *folder);

/* The tokenizer that belongs to the model: beside it, the copy that the run kept, or the one that
 * its run names. LS_EUSAGE: none is there. */
ls_status ls_hf_folder_tokenizer(const ls_hf_folder *folder, ls_tokenizer **tok_out);

/* Every parameter of the model (but for small matrices of LoRA that the folder lacks) is there with
 * the right shape, and nothing is there that the model has no place for, except what is known to be
 * redundant (a tied head, rotary frequencies, attention masks). LS_EDATA names the first offence
 * and counts the others. */
ls_status ls_hf_folder_check(const ls_hf_folder *folder, const ls_model *model);

/* What the weights are stored as ("F32", "BF16", "F32 and BF16"), and in how many files. */
const char *ls_hf_folder_dtype(const ls_hf_folder *folder);
int ls_hf_folder_files(const ls_hf_folder *folder);

/* The folder that config.json, the tokenizer and the fingerprint lie in: path itself, or the run
 * folder that a store belongs to. */
const char *ls_hf_folder_home(const ls_hf_folder *folder);

/* Whether a run of ours trained the weights; false for Hugging Face folders and imports of them. */
bool ls_hf_folder_is_trained(const ls_hf_folder *folder);

/* Where config.json and generation_config.json of the model that this one was made from lie: its
 * home, what the run kept, or the folder that it imported, which may be gone; "": trained from
 * nothing. */
const char *ls_hf_folder_origin(const ls_hf_folder *folder);

/* Whether the folder has parameter p. */
bool ls_hf_folder_has(const ls_hf_folder *folder, const ls_param *p);

/* Elements first .. first+count-1 of a parameter. */
ls_status ls_hf_folder_read(const ls_hf_folder *folder, const ls_param *p, int64_t first,
                            int64_t count, float *values_out);

/* All parameters that the folder has into the flat buffer w (host memory, model->flat elements);
 * gaps, and what the folder lacks, get zeros. */
ls_status ls_hf_folder_load(const ls_hf_folder *folder, const ls_model *model, float *w);

LS_C_END
