/* base_run.c -- what a new run takes over from a run of ours that it starts from.
 *
 * The checkpoint has the resolved run file of the run that wrote it, so there is no config.json to write or
 * to read: its model section is the model, its tokenizer lies beside it, and the weights are read from the
 * checkpoint itself (train/session/session_weights.c). Adapters are not part of the weights: merging them is
 * the work of `lineshaft export`, and doing it here, rank by rank, would be a second way. */
#include "hf/base_run.h"

#include "config/runfile.h"
#include "hf/hf_folder_impl.h"
#include "hf/loaded_model.h"

static ls_status refuse_adapters(const char *path)
{
    ls_fail(LS_EUSAGE,
            "\"%s\" was trained with LoRA: its weights are those of its base, with adapters "
            "beside them",
            path);
    ls_err_hint("Merge them first: `lineshaft export %s FOLDER`, then model.import: FOLDER.", path);
    return LS_EUSAGE;
}

ls_status ls_base_run_read(const char *path, ls_run *run_out, ls_str *home_out)
{
    ls_hf_folder *f = NULL;
    ls_run run = {.path = NULL};
    ls_status st;

    LS_TRY(st, ls_hf_folder_open(&f, path, -1), out);
    if (ls_hf_folder_is_hf(f)) {
        st = ls_fail(LS_EUSAGE, "\"%s\" is a Hugging Face folder", path);
        goto out;
    }
    ls_str_append(home_out, ls_hf_folder_home(f));
    LS_TRY(st, ls_str_status(home_out), out);
    const char *config = ls_ckpt_about(f->ckpt)->config;
    LS_TRY(st,
           ls_runfile_load(&run, &(ls_runfile_source){.text = config,
                                                      .len = strlen(config),
                                                      .text_name = "checkpoint",
                                                      .no_environment = true,
                                                      .no_files = true,
                                                      .model_only = true}),
           out);
    if (run.lora.rank > 0) {
        st = refuse_adapters(path);
        goto out;
    }
    LS_TRY(st, ls_loaded_model_vocab(f, &run.model.vocab), out);
    *run_out = run;
    run = (ls_run){.path = NULL};
out:
    ls_runfile_release(&run);
    ls_hf_folder_close(f);
    return st;
}

ls_status ls_base_run_lineage(const char *path, ls_str *out)
{
    ls_hf_folder *f = NULL;
    ls_status st = ls_hf_folder_open(&f, path, -1);

    if (st == LS_OK && !ls_hf_folder_is_hf(f)) {
        const ls_ckpt_info *info = ls_ckpt_about(f->ckpt);
        ls_str_printf(out, "from %s, step %lld, weights %s", path, (long long)info->step,
                      info->weights_hash);
        st = ls_str_status(out);
    }
    ls_hf_folder_close(f);
    return st;
}

bool ls_base_run_is_trained(const char *path)
{
    ls_hf_folder *f = NULL;
    bool trained = ls_hf_folder_open(&f, path, -1) == LS_OK && !ls_hf_folder_is_hf(f) &&
                   ls_ckpt_about(f->ckpt)->step > 0;

    ls_hf_folder_close(f);
    ls_err_clear();
    return trained;
}
