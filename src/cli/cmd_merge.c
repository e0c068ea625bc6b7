/* cmd_merge.c -- lineshaft merge: an adapter and its base become one model. */
#include "cli/command.h"

#include "base/file.h"
#include "cli/ckpt/cmd_ckpt.h"
#include "cli/cmd_export.h"
#include "cli/cmds.h"
#include "hf/peft.h"

/* The folder of the base model: --base, or the one that the adapter names. */
static ls_status find_base(const ls_args *args, ls_str *base)
{
    const char *given = ls_args_value(args, "base");
    ls_status st = ls_peft_base(args->rest[0], base);

    if (st != LS_OK || given) {
        ls_str_clear(base);
        ls_str_append(base, given ? given : "");
        return st == LS_OK ? ls_str_status(base) : st;
    }
    if (base->len && ls_file_exists(base->p))
        return LS_OK;
    if (base->len == 0)
        st = ls_fail(LS_EUSAGE, "the adapter \"%s\" does not say which model it belongs to",
                     args->rest[0]);
    else
        st = ls_fail(LS_EUSAGE,
                     "the adapter \"%s\" belongs to \"%s\", and there is no such folder here",
                     args->rest[0], base->p);
    ls_err_hint("Download that model and name its folder: --base FOLDER.");
    return st;
}

static ls_status run_merge(const ls_args *args, ls_str *out)
{
    ls_str base;
    ls_status st;

    ls_str_init(&base);
    LS_TRY(st, find_base(args, &base), out);
    st = ls_cmd_export_run(
        args, &(ls_hf_export_args){.from = base.p, .to = args->rest[1], .merge = args->rest[0]},
        out);
out:
    ls_str_release(&base);
    return st;
}

static const ls_flag flags[] = {
    {.name = "base",
     .value = "FOLDER",
     .doc = "The model that the adapter was trained beside: a Hugging Face folder, an imported "
            "model or "
            "a run folder; unless given, the folder that adapter_config.json names."},
    LS_CMD_EXPORT_FLAGS,
    LS_CMD_CKPT_KEY_FLAG,
    {.name = NULL},
};

const ls_command ls_cmd_merge = {
    .name = "merge",
    .summary = "merge a LoRA adapter into its base model",
    .arguments = "ADAPTER HF_FOLDER|OUT.gguf",
    .about =
        "ADAPTER is a folder with adapter_config.json and adapter_model.safetensors, as export "
        "--adapter and peft write it: LoRA, also with rank and alpha patterns, rslora or DoRA. The "
        "result is a whole model, which is verified as an export is.\n\n"
        "A run that was trained with LoRA needs no merge: export merges it.",
    .examples =
        "lineshaft merge hf/adapter hf/merged --base models/qwen # a folder for transformers\n"
        "lineshaft merge hf/adapter merged.gguf --dtype q8_0     # a file for llama.cpp",
    .flags = flags,
    .run = run_merge,
};
