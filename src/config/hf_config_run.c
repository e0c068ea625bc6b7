/* hf_config_run.c -- the model section of a run that starts from a Hugging Face folder.
 *
 * The folder settles every key; what the run file gives itself must say the same, except for the
 * few keys that say how to train. */
#include "config/hf_config.h"

#include "base/file.h"
#include "base/log.h"
#include "config/explain.h"
#include "config/model_families.h"
#include "config/value.h"

/* Keys that say how to train, not what the model is; and positions, of which the first may be taken. */
static bool is_free(const char *key)
{
    return strcmp(key, "model.context") == 0 || strcmp(key, "model.positions") == 0 ||
           strcmp(key, "model.dropout") == 0 || strcmp(key, "model.init_std") == 0;
}

/* What the run file says itself must be what the folder says. */
static ls_status agree(const ls_run *run, const ls_run *theirs, const ls_option *row,
                       const char *where)
{
    ls_status st = LS_OK;
    ls_str a, b;

    ls_str_init(&a);
    ls_str_init(&b);
    ls_value_print(row, run, &a);
    ls_value_print(row, theirs, &b);
    LS_TRY(st, ls_str_status(&a), out);
    LS_TRY(st, ls_str_status(&b), out);
    if (strcmp(a.p, b.p) == 0)
        goto out;
    st = ls_fail(LS_EUSAGE, "%s: %s is %s but the imported model has %s (%s)",
                 ls_explain_where(run, row->key), row->key, a.p, b.p, where);
    ls_err_hint("Leave the key out: the imported model settles it.");
out:
    ls_str_release(&a);
    ls_str_release(&b);
    return st;
}

static bool is_auto(const ls_option *row, const ls_run *run)
{
    if (row->type != LS_OPTION_ENUM)
        return ls_value_is_auto(row, run);
    /* of the two enumerations that have it, auto is the first name */
    return (strcmp(row->key, "model.bias") == 0 && run->model.bias == LS_BIAS_AUTO) ||
           (strcmp(row->key, "model.tied") == 0 && run->model.tied == LS_TIED_AUTO);
}

static ls_status check_context(const ls_run *run, const ls_run_model *model, const char *where)
{
    if (run->model.positions > model->positions)
        return ls_fail(LS_EUSAGE,
                       "%s: model.positions is %lld but the imported model learned %lld (%s)",
                       ls_explain_where(run, "model.positions"), (long long)run->model.positions,
                       (long long)model->positions, where);
    if (run->model.context <= model->context)
        return LS_OK;
    if (!ls_families_learns_positions(ls_families_row(model->family))) {
        /* rotary positions can be extended by training */
        ls_log(LS_LOG_WARN,
               "%s: model.context is %lld, but the imported model was made for %lld tokens (%s)",
               ls_explain_where(run, "model.context"), (long long)run->model.context,
               (long long)model->context, where);
        return LS_OK;
    }
    return ls_fail(LS_EUSAGE,
                   "%s: model.context is %lld but the imported model learned only %lld positions "
                   "(%s)",
                   ls_explain_where(run, "model.context"), (long long)run->model.context,
                   (long long)model->context, where);
}

/* One key of the model section: from the folder, unless the run file may and does say otherwise. */
static ls_status take_row(ls_run *run, const ls_run *given, const ls_run *theirs,
                          const ls_option *row, const char *where)
{
    ls_run_origin *origin = &run->origins[ls_option_index(row)];

    if (origin->source <= LS_RUN_IMPORT || is_auto(row, given)) {
        *origin = (ls_run_origin){.source = LS_RUN_IMPORT, .where = where};
        return LS_OK;
    }
    if (!is_free(row->key))
        return agree(given, theirs, row, where);
    if (strcmp(row->key, "model.context") == 0)
        run->model.context = given->model.context;
    else if (strcmp(row->key, "model.positions") == 0)
        run->model.positions = given->model.positions;
    else if (strcmp(row->key, "model.dropout") == 0)
        run->model.dropout = given->model.dropout;
    else
        run->model.init_std = given->model.init_std;
    return LS_OK;
}

/* The model section, from the folder as far as the run file does not and may not say otherwise. */
static ls_status take_model(ls_run *run, const ls_run_model *model, const char *where)
{
    const ls_run given = *run;
    ls_status st = LS_OK;

    run->model = *model;
    run->model.import = given.model.import;
    const ls_run theirs = *run;
    for (int i = 0; i < ls_option_count && st == LS_OK; i++)
        if (ls_option_in(&ls_options[i], "model") && strcmp(ls_options[i].key, "model.import") != 0)
            st = take_row(run, &given, &theirs, &ls_options[i], where);
    return st == LS_OK ? check_context(run, model, where) : st;
}

static ls_status take_text(ls_run *run, const char **field, const char *key, const char *text,
                           const char *where)
{
    *field = ls_arena_strdup(&run->arena, text);
    run->origins[ls_option_index(ls_option_find(key))] =
        (ls_run_origin){.source = LS_RUN_IMPORT, .where = where};
    return *field ? LS_OK : LS_ENOMEM;
}

/* The tokenizer and the chat template that the base was trained with. home: its folder, where it keeps a
 * copy of its tokenizer; NULL: the names as they were written. */
static ls_status take_data(ls_run *run, const ls_run *base, const char *home, const char *where)
{
    const char *tokenizer = base->data.tokenizer;
    const char *template = base->data.chat_template;
    ls_status st = LS_OK;

    if (!run->data.tokenizer) {
        const char *kept =
            home ? ls_arena_printf(&run->arena, "%s/" LS_HF_CONFIG_COPIES, home) : tokenizer;
        if (!kept)
            return LS_ENOMEM;
        if (home && strcmp(tokenizer, "bytes") != 0 && ls_file_is_dir(kept))
            tokenizer = kept;
        LS_TRY(st, take_text(run, &run->data.tokenizer, "data.tokenizer", tokenizer, where), out);
    }
    if (strcmp(run->data.chat_template, "auto") == 0 && strcmp(template, "none") != 0)
        LS_TRY(st, take_text(run, &run->data.chat_template, "data.template", template, where), out);
out:
    return st;
}

/* A message about what the path holds says who asked for it. */
static ls_status name_asker(const ls_run *run, ls_status st)
{
    if (st != LS_EUSAGE)
        return st;
    const ls_err_record record = *ls_err_last();
    st = ls_fail(LS_EUSAGE, "%s: model.import: %s", ls_explain_where(run, "model.import"),
                 record.text);
    ls_err_hint("%s", record.hint);
    return st;
}

/* From a run of ours, or, where that is gone, from the checkpoints of the run itself, which has taken
 * everything over. */
static ls_status import_run(ls_run *run, const char *path, ls_hf_config_base *read, bool *found_out)
{
    const char *where = ls_arena_printf(&run->arena, "the run in %s", path);
    ls_run base = {.path = NULL};
    ls_str home;
    ls_status st;

    ls_str_init(&home);
    st = read(path, &base, &home);
    *found_out = st != LS_EUSAGE || home.len > 0;
    LS_TRY(st, name_asker(run, st), out);
    LS_TRY(st, where ? LS_OK : LS_ENOMEM, out);
    LS_TRY(st, take_model(run, &base.model, where), out);
    st = take_data(run, &base, path == run->out ? NULL : home.p, where);
out:
    ls_arena_release(&base.arena);
    ls_str_release(&home);
    return st;
}

static ls_status import_config(ls_run *run, const char *folder)
{
    const char *where = ls_arena_printf(&run->arena, "%s/config.json", folder);
    ls_hf_config config;
    ls_status st = where ? ls_hf_config_open(&config, folder) : LS_ENOMEM;

    return st == LS_OK ? take_model(run, &config.model, where) : name_asker(run, st);
}

static bool has_config(const char *folder)
{
    char path[4096];

    return (size_t)snprintf(path, sizeof path, "%s/config.json", folder) < sizeof path &&
           ls_file_exists(path);
}

ls_status ls_hf_config_import(ls_run *run, ls_hf_config_base *base)
{
    const char *folder = run->model.import;
    const char *copies = ls_arena_printf(&run->arena, "%s/" LS_HF_CONFIG_COPIES, run->out);
    ls_err_record record = {.code = LS_OK};
    bool found = false;
    ls_status st = LS_OK;

    if (!copies)
        return LS_ENOMEM;
    if (has_config(folder))
        return import_config(run, folder);
    if (base) {
        st = import_run(run, folder, base, &found);
        record = *ls_err_last();
    }
    if (found || (base && ls_file_exists(folder)))
        return st;
    if (has_config(copies))
        return import_config(run, copies);
    if (base && ls_file_is_dir(run->out))
        st = import_run(run, run->out, base, &found);
    if (found || !base)
        return found ? st : import_config(run, folder); /* for its message */
    st =
        ls_fail(record.code, "%s", record.text); /* of what is named, not of the run's own folder */
    ls_err_hint("%s", record.hint);
    return st;
}
