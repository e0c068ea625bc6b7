/* cmd_ckpt_show.c -- `lineshaft ckpt show`: the parameters of a model by name.
 *
 * These are the names that train.freeze takes. Only descriptions are read, so it is quick for any
 * model; the tokenizer is opened only where the run left the size of the vocabulary to it. */
#include "cli/ckpt/cmd_ckpt.h"
#include "cli/cmds.h"

#include "base/json.h"
#include "cli/term.h"
#include "config/option.h"
#include "hf/hf_folder.h"

static ls_status vocab_of(const ls_hf_folder *folder, int64_t *vocab_out)
{
    int64_t vocab = ls_hf_folder_run(folder)->model.vocab;
    ls_tokenizer *tok = NULL;
    ls_status st = LS_OK;

    if (vocab == LS_RUN_AUTO) {
        LS_TRY(st, ls_hf_folder_tokenizer(folder, &tok), out);
        vocab = ls_tokenizer_vocab(tok);
    }
    *vocab_out = vocab;
out:
    ls_tokenizer_free(tok);
    return st;
}

static void show_json(const char *family, const ls_model *model, ls_str *out)
{
    ls_json json;

    ls_json_begin(&json, out);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "family", family);
    ls_json_put_int(&json, "parameters", model->elements);
    ls_json_key(&json, "tensors");
    ls_json_open(&json, '[');
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        ls_json_open(&json, '{');
        ls_json_put_str(&json, "name", p->name);
        ls_json_key(&json, "shape");
        ls_json_open(&json, '[');
        for (int d = 0; d < p->ndim; d++)
            ls_json_int(&json, p->shape[d]);
        ls_json_close(&json);
        ls_json_put_int(&json, "parameters", p->count);
        ls_json_put_bool(&json, "trained", p->trained >= 0);
        ls_json_close(&json);
    }
    ls_json_close(&json);
    ls_json_close(&json);
    ls_str_append_char(out, '\n');
}

static void show_table(const char *family, const ls_model *model, ls_str *out)
{
    char shape[48];

    ls_str_printf(out, "%s, %lld parameters in %d tensor%s\n", family, (long long)model->elements,
                  model->n_params, ls_str_plural(model->n_params));
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (p->ndim == 2)
            snprintf(shape, sizeof shape, "%lld x %lld", (long long)p->shape[0],
                     (long long)p->shape[1]);
        else
            snprintf(shape, sizeof shape, "%lld", (long long)p->shape[0]);
        ls_str_printf(out, "%14s  %-7s  %s\n", shape, p->trained >= 0 ? "" : "frozen", p->name);
    }
}

static ls_status run_show(const ls_args *args, ls_str *out)
{
    const ls_option *row = ls_option_find("model.family");
    ls_hf_folder *folder = NULL;
    ls_model model = {.params = NULL};
    int64_t vocab, step;
    ls_status st;

    LS_TRY(st, ls_args_number(args, "step", -1, 0, INT64_MAX, &step), out);
    LS_TRY(st, ls_hf_folder_open_signed(&folder, args->rest[0], step, ls_args_value(args, "key")),
           out);
    if (step >= 0 && *ls_hf_folder_origin(folder)) {
        st = ls_fail(LS_EUSAGE, "\"%s\" is a Hugging Face folder, which has no steps",
                     args->rest[0]);
        goto out;
    }
    LS_TRY(st, vocab_of(folder, &vocab), out);
    LS_TRY(st, ls_model_init(&model, ls_hf_folder_run(folder), vocab), out);
    const char *family = row->names[model.run.family];
    if (ls_args_has(args, "json"))
        show_json(family, &model, out);
    else
        show_table(family, &model, out);
    if (!ls_args_has(args, "json"))
        ls_term_fold_stdout(args, out);
out:
    ls_model_release(&model);
    ls_hf_folder_close(folder);
    return st;
}

static const ls_flag flags[] = {
    {.name = "step", .value = "N", .doc = "The checkpoint of this step, not the newest."},
    LS_CMD_CKPT_KEY_FLAG,
    {.name = "json", .letter = 'j', .doc = "Print one JSON object instead of a table."},
    {.name = NULL},
};

const ls_command ls_cmd_ckpt_show = {
    .name = "show",
    .summary = "list the parameters of a model by name",
    .arguments = "MODEL",
    .about = "One line per parameter: its shape, whether the run that made it kept it frozen, and "
             "its name. These are the names that train.freeze takes.\n\n"
             "MODEL is a run folder, its checkpoints folder, one manifest (step-*.json), an "
             "imported model, or a Hugging Face folder. No weights are read.",
    .examples = "lineshaft ckpt show models/gpt2  # names for train.freeze\n"
                "lineshaft ckpt show runs/tuned --json  # for programs\n",
    .flags = flags,
    .run = run_show,
};
