/* cmd_import.c -- lineshaft import: a Hugging Face folder becomes one of ours. */
#include "cli/command.h"

#include <math.h>
#include "base/log.h"
#include "cli/cmd_data.h"
#include "cli/cmds.h"
#include "cli/term.h"
#include "config/option.h"
#include "hf/hf_import.h"

static bool is_usable(const ls_hf_import_report *r)
{
    return r->tokenizer && !r->problem[0] && r->tokens <= r->vocab;
}

static void say_tokenizer(const ls_hf_import_report *r, ls_str *out)
{
    ls_str_printf(out, "tokenizer    %s", r->tokenizer ? "copied" : "none came with the model");
    if (r->tokens > r->vocab)
        ls_str_printf(out,
                      ", but it has %lld tokens and the model %lld: generate and train refuse it",
                      (long long)r->tokens, (long long)r->vocab);
    else if (r->tokenizer && r->problem[0])
        ls_str_printf(out, ", but it cannot be used here: %s", r->problem);
    ls_str_append_char(out, '\n');
}

/* Whether it knows English, beside a model that finds all tokens equally likely. */
static void say_verdict(const ls_hf_import_report *r, ls_str *out)
{
    double ignorant = log((double)r->vocab);

    ls_str_printf(out,
                  "plausible?   %s: loss %.2f on %lld tokens of plain English; a model that "
                  "knows nothing has %.2f\n",
                  r->loss < 0.6 * ignorant   ? "yes"
                  : r->loss < 0.9 * ignorant ? "hardly"
                                             : "no",
                  r->loss, (long long)r->loss_tokens, ignorant);
    if (r->loss >= 0.9 * ignorant)
        ls_str_append(out,
                      "             it is untrained, or these weights and this tokenizer do not "
                      "belong together\n");
    else if (r->loss >= 0.6 * ignorant)
        ls_str_append(out, "             it was trained little, or on something else than "
                           "English\n");
}

static void say_proof(const ls_hf_import_report *r, ls_str *out)
{
    if (r->proof == LS_HF_IMPORT_PROVED)
        ls_str_printf(out,
                      "fingerprint  verified: its logits are those on record (largest difference "
                      "%.1e)\n",
                      r->worst);
    else
        ls_str_append(out, "fingerprint  none came with the model; one was made from this "
                           "import\n");
    if (!isnan(r->loss) && r->loss_tokens)
        say_verdict(r, out);
}

static void say_next(const ls_hf_import_report *r, const char *to, ls_str *out)
{
    ls_str_append(out, "\nnext\n");
    if (is_usable(r))
        ls_str_printf(out, "  lineshaft generate %s --prompt \"Once upon a time\"\n", to);
    ls_str_printf(
        out, "  lineshaft train RUN.yaml    # with model: {import: %s, context: %lld} in it%s\n",
        to, (long long)(r->context < 1024 ? r->context : 1024),
        is_usable(r) ? "" : ", and data.tokenizer");
    ls_str_printf(out, "  lineshaft export %s FOLDER\n", to);
}

static ls_status run_import(const ls_args *args, ls_str *out)
{
    const char *from = args->rest[0], *to = args->rest[1];
    ls_hf_import_report r;
    ls_status st;

    LS_TRY(st, ls_hf_import(from, to, &r), out);
    ls_str_printf(out, "imported %s to %s in %.1f s\n", from, to, r.seconds);
    ls_str_printf(out, "model        %s, ", ls_option_find("model.family")->names[r.family]);
    ls_cmd_data_put_count(out, r.parameters);
    ls_str_printf(out, " parameters: %lld layer%s, width %lld, context %lld, vocabulary %lld\n",
                  (long long)r.layers, ls_str_plural(r.layers), (long long)r.width,
                  (long long)r.context, (long long)r.vocab);
    ls_str_printf(out, "weights      %s in %d file%s, kept as F32; hash %s\n", r.dtype, r.files,
                  r.files == 1 ? "" : "s", r.weights_hash);
    say_tokenizer(&r, out);
    say_proof(&r, out);
    ls_term_fold_stdout(args, out);
    say_next(&r, to, out); /* commands to copy stay in one piece */
    if (r.tokenizer && !is_usable(&r))
        ls_log(LS_LOG_WARN,
               "the tokenizer of \"%s\" cannot be used: generate refuses \"%s\", and a run on it "
               "needs another one (data.tokenizer)",
               from, to);
out:
    return st;
}

const ls_command ls_cmd_import = {
    .name = "import",
    .summary = "import a Hugging Face model",
    .arguments = "HF_FOLDER OUT",
    .about =
        "HF_FOLDER holds config.json and model.safetensors (or shards with an index). OUT must be "
        "empty or not exist yet. It becomes a folder that every command takes as a checkpoint: the "
        "weights as F32, config.json and the tokenizer's files.\n\n"
        "Every tensor must be there with the right shape, and none may be left over. Where the "
        "folder carries a fingerprint (lineshaft_fingerprint.json: some logits of fixed tokens), "
        "the imported model must compute the same, so weights in another layout are refused "
        "instead of giving a worse model.\n\n"
        "Families: gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, olmoe, olmo2 and phi3.",
    .examples = "lineshaft import ~/models/gpt2 models/gpt2  # then generate, train or export it",
    .run = run_import,
};
