/* cmd_export.c -- lineshaft export: a checkpoint becomes a Hugging Face folder or a GGUF file. */
#include "cli/command.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include "cli/ckpt/cmd_ckpt.h"
#include "cli/cmd_data.h"
#include "cli/cmd_export.h"
#include "cli/cmds.h"
#include "cli/term.h"

static bool is_gguf(const char *path)
{
    size_t n = strlen(path);

    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

/* A type of both kinds of output, or of GGUF files alone (folder is false). */
static const struct type_row {
    const char *name;
    bool folder;
    ls_dtype type;
    ls_gguf_type gguf;
} type_rows[] = {{"f32", true, LS_F32, LS_GGUF_TYPE_F32},
                 {"bf16", true, LS_BF16, LS_GGUF_TYPE_BF16},
                 {"f16", true, LS_F16, LS_GGUF_TYPE_F16},
                 {"q8_0", false, LS_F32, LS_GGUF_TYPE_Q8_0},
                 {"q4_0", false, LS_F32, LS_GGUF_TYPE_Q4_0}};

static ls_status parse_type(const ls_args *args, ls_hf_export_args *to)
{
    const char *text = ls_args_value(args, "dtype");
    const struct type_row *row = NULL;
    ls_status st;

    to->gguf = is_gguf(to->to);
    to->gguf_type = LS_GGUF_TYPE_F16;
    to->same_type = !text;
    for (size_t i = 0; i < LS_COUNT(type_rows) && text; i++)
        if (strcmp(text, type_rows[i].name) == 0)
            row = &type_rows[i];
    if (text && !row)
        return ls_fail(LS_EUSAGE,
                       "--dtype must be f32, bf16 or f16, or of a .gguf file also q8_0 "
                       "or q4_0, not \"%s\"",
                       text);
    if (row && !row->folder && !to->gguf) {
        st = ls_fail(LS_EUSAGE, "--dtype %s is for GGUF files, and \"%s\" becomes a folder", text,
                     to->to);
        ls_err_hint("Give the output a name that ends in .gguf.");
        return st;
    }
    if (row) {
        to->type = row->type;
        to->gguf_type = row->gguf;
    }
    if (to->gguf && (to->adapter || to->base || ls_args_has(args, "max-shard"))) {
        st = ls_fail(LS_EUSAGE,
                     "--adapter, --base and --max-shard are for Hugging Face folders, "
                     "and \"%s\" is a GGUF file",
                     to->to);
        ls_err_hint(
            "A GGUF file holds the whole model, LoRA merged. Leave the flag out, or \".gguf\" "
            "out of the name.");
        return st;
    }
    return LS_OK;
}

/* "5G", "500M", "5GB": powers of ten, as elsewhere for files of models. */
static ls_status parse_shard(const ls_args *args, int64_t *bytes_out)
{
    static const char units[] = "KMGT";
    const char *text = ls_args_value(args, "max-shard");
    char *end;

    *bytes_out = INT64_C(5000000000);
    if (!text)
        return LS_OK;
    double value = strtod(text, &end);
    const char *unit = isalpha((unsigned char)*end) ? strchr(units, *end & ~0x20) : NULL;
    if (unit) {
        value *= pow(1000, (double)(unit - units + 1));
        end++;
    }
    if (end == text || (*end && strcmp(end, "B") != 0) || !(value >= 1 && value <= 1e15)) {
        ls_status st =
            ls_fail(LS_EUSAGE, "--max-shard must be a size such as 5G, not \"%s\"", text);
        return st;
    }
    *bytes_out = (int64_t)value;
    return LS_OK;
}

/* The last lines: what the program found out about what it wrote. */
static void say_proof(const ls_hf_export_args *job, const ls_hf_export_report *r, ls_str *out)
{
    if (job->gguf || job->bits)
        ls_str_printf(out,
                      "logits       of the file reread: largest difference to the model %.1e of "
                      "their mean size\n",
                      r->worst);
    else
        ls_str_printf(out,
                      "fingerprint  verified: the folder computes what the model does (largest "
                      "difference %.1e)\n",
                      r->worst);
}

static void say_notes(const ls_hf_export_report *r, ls_str *out)
{
    for (const char *line = r->notes; *line;) {
        size_t n = strcspn(line, "\n");
        ls_str_printf(out, "note         %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

ls_status ls_cmd_export_run(const ls_args *args, ls_hf_export_args *job, ls_str *out)
{
    static const char *const types[] = {"F32", "BF16", "F16"};
    ls_hf_export_report r;
    ls_status st;

    job->step = -1;
    job->key = ls_args_value(args, "key");
    LS_TRY(st, parse_type(args, job), out);
    if (!job->bits)
        LS_TRY(st, parse_shard(args, &job->shard), out);
    LS_TRY(st, ls_hf_export(job, &r), out);
    ls_str_printf(out, "%s %s to %s in %.1f s\n",
                  job->merge  ? "merged"
                  : job->bits ? "quantized"
                              : "exported",
                  job->merge ? job->merge : job->from, job->to, r.seconds);
    if (job->merge)
        ls_str_printf(out, "base         %s\n", job->from);
    if (job->bits)
        ls_str_printf(out, "matrices     %d of %d bits, a scale for %lld numbers\n", r.matrices,
                      job->bits, (long long)job->group);
    ls_str_append(out, job->adapter ? "adapter      " : "weights      ");
    ls_cmd_data_put_count(out, r.parameters);
    ls_str_printf(out, " parameters%s as %s, ", job->bits ? ", the others" : "",
                  job->gguf ? ls_gguf_type_name(job->gguf_type) : types[r.type]);
    ls_cmd_data_put_count(out, r.bytes);
    ls_str_printf(out, " bytes in %d file%s\n", r.files, r.files == 1 ? "" : "s");
    if (r.merged)
        ls_str_append(out, "LoRA         merged into the weights\n");
    if (job->adapter) {
        ls_str_printf(out, "base         %s\n", r.base);
    } else {
        ls_str_printf(out, "tokenizer    %s\n", r.tokenizer ? "copied" : "none known");
        say_proof(job, &r, out);
    }
    say_notes(&r, out);
out:
    return st;
}

static ls_status run_export(const ls_args *args, ls_str *out)
{
    return ls_cmd_export_run(args,
                             &(ls_hf_export_args){.from = args->rest[0],
                                                  .to = args->rest[1],
                                                  .adapter = ls_args_has(args, "adapter"),
                                                  .base = ls_args_value(args, "base")},
                             out);
}

static const ls_flag flags[] = {
    LS_CMD_EXPORT_FLAGS,
    {.name = "adapter",
     .doc = "Write only what LoRA trained, as a PEFT adapter, instead of merging it."},
    {.name = "base",
     .value = "NAME",
     .doc =
         "With --adapter: the base model that adapter_config.json names, such as the path or hub "
         "name that transformers loads. Unless given, the folder or hub name that the run's "
         "import came from."},
    LS_CMD_CKPT_KEY_FLAG,
    {.name = NULL},
};

const ls_command ls_cmd_export = {
    .name = "export",
    .summary = "write a model as a Hugging Face folder or a GGUF file",
    .arguments = "CKPT HF_FOLDER|OUT.gguf",
    .about =
        "CKPT is a run folder, its checkpoints folder, \"best\" in one of them, one manifest "
        "(step-*.json) or an imported "
        "model. HF_FOLDER must be empty or not exist yet; it appears whole or not at all.\n\n"
        "After writing, the folder is opened again and must compute the same logits as the model, "
        "within the precision of the type.\n\n"
        "A name that ends in .gguf makes one file for llama.cpp instead, tokenizer and chat "
        "template "
        "included; LoRA is merged. Norms, biases, routers and learned positions stay f32 in it, "
        "and "
        "q4_0 keeps the embedding and the head in q8_0. A model or tokenizer that llama.cpp does "
        "not "
        "have is refused.",
    .examples = "lineshaft export runs/demo hf/demo                # load it with transformers\n"
                "lineshaft export runs/demo hf/demo --dtype bf16   # half the size\n"
                "lineshaft export runs/tuned hf/tuned --adapter    # only what LoRA trained\n"
                "lineshaft export runs/demo demo.gguf              # for llama.cpp\n"
                "lineshaft export runs/demo demo.gguf --dtype q4_0 # a quarter of the size",
    .flags = flags,
    .run = run_export,
};
