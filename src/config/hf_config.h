/* hf_config.h -- config.json of a Hugging Face folder: the model section of a run, spelled differently.
 *
 * Reading accepts both spellings of rotary settings (rope_theta with rope_scaling, or everything in
 * rope_parameters) and refuses, by name, whatever would make another model than ours: another
 * architecture, activation or scaling, experts, layers that differ in ways we cannot express.
 * Nothing is guessed. */
#pragma once
#include "base/str.h"
#include "config/run.h"

LS_C_BEGIN

/* Where a run keeps copies of its tokenizer's files and of the imported config.json, inside its own
 * folder: it can be used and resumed when the originals are gone. */
#define LS_HF_CONFIG_COPIES "tokenizer"

enum { LS_HF_CONFIG_EOS = 16, LS_HF_CONFIG_KEPT = 16 };

typedef enum ls_hf_config_kept_kind {
    LS_HF_CONFIG_KEPT_NUM, /* a fraction that writing asks for by name */
    LS_HF_CONFIG_KEPT_INT,
    LS_HF_CONFIG_KEPT_BOOL,
    LS_HF_CONFIG_KEPT_NULL
} ls_hf_config_kept_kind;

/* A key that means nothing here, and goes out as it came in. */
typedef struct ls_hf_config_kept {
    const char *key; /* static */
    ls_hf_config_kept_kind kind;
    double value;
} ls_hf_config_kept;

/* What config.json says besides the model's shape. */
typedef struct ls_hf_config {
    ls_run_model model;            /* family, sizes ...; strings are empty */
    int64_t bos;                   /* token ids; -1: none */
    int64_t eos[LS_HF_CONFIG_EOS]; /* a model may have several */
    int n_eos;
    /* The key is not there at all: it is not written either, since readers then have an id of
     * their own, which null would take from them. */
    bool bos_unsaid, eos_unsaid;
    ls_hf_config_kept kept[LS_HF_CONFIG_KEPT]; /* pad_token_id and the like */
    int n_kept;
    int64_t positions; /* of the model this one was tuned from, where more; 0: unknown */
    int64_t
        dense_mlp; /* a mixture's width of layers without experts, where it has a key; 0: not said */
    char dtype[16]; /* "float32", "bfloat16", "float16" ..., "" when not given */
} ls_hf_config;

/* name stands in messages. LS_EDATA: not such a file, or a value that cannot be. LS_EUSAGE: a model
 * that lineshaft does not build; the message says what about it. */
ls_status ls_hf_config_read(ls_hf_config *config_out, const char *text, size_t len,
                            const char *name);

/* config.json of a folder. LS_EUSAGE: also when there is no such folder or file. */
ls_status ls_hf_config_open(ls_hf_config *config_out, const char *folder);

/* Whether transformers can express the model: a run may combine what no family of theirs has.
 * LS_EUSAGE says what. */
ls_status ls_hf_config_writable(const ls_run_model *model);

/* The text of a config.json that transformers loads; model is resolved, vocab included, and
 * writable. */
void ls_hf_config_write(const ls_hf_config *config, ls_str *out);

/* Reads the run behind a checkpoint of ours, which lies in rooms above this one (hf/base_run.h).
 * *home_out: the folder of that run. LS_EUSAGE: it cannot be a base, or, where home_out stays empty, there
 * is no such checkpoint. */
typedef ls_status ls_hf_config_base(const char *path, ls_run *run_out, ls_str *home_out);

/* Fill the model section of a run from run->model.import: a config.json, or, with base, a run of ours,
 * which also gives the tokenizer where data.tokenizer is auto, and its template where data.template is;
 * keys that the run file gives itself must agree, except context and positions (for gpt2 not above what was
 * learned), dropout and init_std. When that folder is gone, what the run keeps in run->out serves; out is
 * resolved. */
ls_status ls_hf_config_import(ls_run *run, ls_hf_config_base *base);

LS_C_END
