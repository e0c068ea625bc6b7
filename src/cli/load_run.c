/* load_run.c -- from parsed flags to a run. */
#include "cli/load_run.h"

#include <limits.h>
#include "base/file.h"
#include "base/log.h"
#include "config/runfile.h"
#include "data/chat/chat.h"
#include "data/tokenizer/tokenizer.h"
#include "hf/base_run.h"
#include "hf/hf_copy.h"
#include "model/model.h"

const char ls_load_run_demo[] =
    "# The demonstration: a small GPT learns to tell stories that lineshaft makes up itself.\n"
    "name: demo\n"
    "model: {family: gpt2, layers: 4, width: 128, heads: 4, context: 128}\n"
    "data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}\n"
    "batch: {sequences: 8, leaf: 1}\n"
    "train: {steps: 1600, lr: 3e-3, schedule: cosine, warmup: 100, seed: 1}\n"
    "checkpoint: {every: 400, keep: 2}\n"
    "eval: {every: 200, sequences: 64, sample: \"Once upon a time\", sample_tokens: 240}\n";

/* Values of a flag that may be given several times; returns how many. */
static int all_of(const ls_args *args, const char *flag, const char **values, int most)
{
    int n = 0;

    while (n < most && (values[n] = ls_args_nth(args, flag, n)) != NULL)
        n++;
    return n;
}

ls_status ls_load_run_read(ls_run *run, const ls_args *args, const char *path)
{
    enum { MOST = (int)LS_COUNT(args->given) };
    const char *sets[MOST], *overrides[MOST];
    ls_runfile_source source = {
        .path = path, .sets = sets, .overrides = overrides, .base = ls_base_run_read};

    source.n_sets = all_of(args, "set", sets, MOST);
    if (ls_args_knows(args, "override"))
        source.n_overrides = all_of(args, "override", overrides, MOST);
    if (!path) {
        source.text = ls_load_run_demo;
        source.len = strlen(ls_load_run_demo);
        source.text_name = "<demo>";
    }
    return ls_runfile_load(run, &source);
}

/* A model reads the ids of another tokenizer as other words: it would have to learn everything
 * anew, and no error would ever say so. */
static ls_status warn_of_tokenizer(const ls_run *run, const ls_tokenizer *tok)
{
    const char *folder = run->model.import;
    ls_tokenizer *own = NULL;
    ls_status st = LS_OK;
    ls_str path;

    ls_str_init(&path);
    if (!*folder || strcmp(folder, run->data.tokenizer) == 0)
        goto out;
    ls_str_printf(&path, "%s/tokenizer.json", folder);
    if (!ls_file_exists(path.p)) { /* a run keeps it in a folder of its own */
        ls_str_clear(&path);
        ls_str_printf(&path, "%s/" LS_HF_CONFIG_COPIES "/tokenizer.json", folder);
    }
    LS_TRY(st, ls_str_status(&path), out);
    if (!ls_file_exists(path.p))
        goto out;
    LS_TRY(st, ls_tokenizer_open(&own, path.p), out);
    if (strcmp(run->data.tokenizer, "bytes") == 0 &&
        ls_tokenizer_vocab(own) == ls_tokenizer_vocab(tok))
        goto out; /* an export of bytes: the same ids in another form */
    if (!ls_hash_equal(ls_tokenizer_hash(own), ls_tokenizer_hash(tok)))
        ls_log(LS_LOG_WARN,
               "data.tokenizer \"%s\" is not the tokenizer of model.import \"%s\": its ids stand "
               "for other words in the model",
               run->data.tokenizer, folder);
out:
    ls_tokenizer_free(own);
    ls_str_release(&path);
    return st;
}

ls_status ls_load_run_prove(const ls_run *run)
{
    ls_tokenizer *tok = NULL;
    ls_chat *chat = NULL;
    ls_model model = {.params = NULL};
    char kept[PATH_MAX];
    ls_status st;

    LS_TRY(st, ls_tokenizer_open(&tok, ls_hf_copy_tokenizer_of(run, kept)), out);
    LS_TRY(st, ls_model_init(&model, run, ls_tokenizer_vocab(tok)), out);
    if (ls_chat_is_meant(run->data.chat_template))
        LS_TRY(st, ls_chat_open(&chat, run->data.chat_template, tok), out);
    if (chat)
        ls_chat_warn_of_spelling(chat);
    LS_TRY(st, warn_of_tokenizer(run, tok), out);
out:
    ls_chat_close(chat);
    ls_model_release(&model);
    ls_tokenizer_free(tok);
    return st;
}
