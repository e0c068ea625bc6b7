/* cmd_quantize.c -- lineshaft quantize: matrices of a model as integers of 8 or 4 bits. */
#include "cli/command.h"

#include "cli/args.h"
#include "cli/ckpt/cmd_ckpt.h"
#include "cli/cmd_export.h"
#include "cli/cmds.h"

static ls_status check_to(const char *to)
{
    size_t n = strlen(to);

    if (n <= 5 || strcmp(to + n - 5, ".gguf") != 0)
        return LS_OK;
    ls_status st =
        ls_fail(LS_EUSAGE, "quantize writes a folder, and \"%s\" is the name of a file", to);
    ls_err_hint("For llama.cpp: lineshaft export MODEL OUT.gguf --dtype q8_0 (or q4_0).");
    return st;
}

static ls_status run_quantize(const ls_args *args, ls_str *out)
{
    ls_hf_export_args job = {.from = args->rest[0], .to = args->rest[1]};
    int64_t bits = 0;
    ls_status st;

    LS_TRY(st, check_to(job.to), out);
    LS_TRY(st, ls_args_number(args, "bits", 8, 4, 8, &bits), out);
    LS_TRY(st, ls_args_number(args, "group", 64, 8, 65536, &job.group), out);
    if ((bits != 4 && bits != 8) || job.group % 2 != 0) {
        st = ls_fail(LS_EUSAGE, bits != 4 && bits != 8 ? "--bits must be 8 or 4"
                                                       : "--group must be an even number");
        goto out;
    }
    job.bits = (int)bits;
    st = ls_cmd_export_run(args, &job, out);
out:
    return st;
}

static const ls_flag flags[] = {
    {.name = "bits", .value = "N", .doc = "Bits of a number: 8, unless given, or 4."},
    {.name = "group",
     .value = "N",
     .doc = "Neighbours in a row that share a scale; 64 unless given. Fewer are more exact and "
            "larger."},
    {.name = "dtype",
     .value = "TYPE",
     .doc =
         "Type of what is not quantized: f32, bf16 or f16; unless given, the type that the model "
         "came with, or f32."},
    LS_CMD_CKPT_KEY_FLAG,
    {.name = NULL},
};

const ls_command ls_cmd_quantize = {
    .name = "quantize",
    .summary = "store the weights of a model in 8 or 4 bits",
    .arguments = "MODEL OUT",
    .about = "MODEL is a run folder, its checkpoints folder, one manifest (step-*.json), an "
             "imported model "
             "or a Hugging Face folder; LoRA is merged. OUT becomes a folder that every command "
             "here takes "
             "as a model; other programs refuse it.\n\n"
             "Matrices of the blocks become integers with a scale for each group. Embedding, head, "
             "norms, "
             "biases and routers stay in the type that the model came with, and so does a matrix "
             "whose rows "
             "cannot be divided into groups.",
    .examples = "lineshaft quantize models/qwen models/qwen-int4 --bits 4 # a quarter of bf16\n"
                "lineshaft quantize runs/demo demo-int8 --group 32        # closer to the model",
    .flags = flags,
    .run = run_quantize,
};
