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

/* Keys that say how to train, not what the model is. */
static bool is_free(const char *key)
{
    return strcmp(key, "model.context") == 0 || strcmp(key, "model.dropout") == 0 ||
           strcmp(key, "model.init_std") == 0;
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

static ls_status check_context(const ls_run *run, const ls_hf_config *config, const char *where)
{
    if (run->model.context <= config->model.context)
        return LS_OK;
    if (!ls_families_learns_positions(ls_families_row(config->model.family))) {
        /* rotary positions can be extended by training */
        ls_log(LS_LOG_WARN,
               "%s: model.context is %lld, but the imported model was made for %lld tokens (%s)",
               ls_explain_where(run, "model.context"), (long long)run->model.context,
               (long long)config->model.context, where);
        return LS_OK;
    }
    return ls_fail(LS_EUSAGE,
                   "%s: model.context is %lld but the imported model learned only %lld positions "
                   "(%s)",
                   ls_explain_where(run, "model.context"), (long long)run->model.context,
                   (long long)config->model.context, where);
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
    else if (strcmp(row->key, "model.dropout") == 0)
        run->model.dropout = given->model.dropout;
    else
        run->model.init_std = given->model.init_std;
    return LS_OK;
}

ls_status ls_hf_config_import(ls_run *run)
{
    ls_hf_config config;
    const ls_run given = *run;
    const char *folder = run->model.import;
    char *copies = ls_arena_printf(&run->arena, "%s/" LS_HF_CONFIG_COPIES, run->out);
    char *where = ls_arena_printf(&run->arena, "%s/config.json", copies ? copies : "");
    ls_status st;

    if (!copies || !where)
        return LS_ENOMEM;
    if (!ls_file_is_dir(folder) && ls_file_exists(where))
        folder = copies;
    else
        where = ls_arena_printf(&run->arena, "%s/config.json", folder);
    if (!where)
        return LS_ENOMEM;
    st = ls_hf_config_open(&config, folder);
    if (st == LS_EUSAGE) { /* say who asked for this folder */
        const ls_err_record record = *ls_err_last();
        st = ls_fail(LS_EUSAGE, "%s: model.import: %s", ls_explain_where(run, "model.import"),
                     record.text);
        ls_err_hint("%s", record.hint);
    }
    if (st != LS_OK)
        return st;
    run->model = config.model;
    run->model.import = given.model.import;
    const ls_run theirs = *run;
    for (int i = 0; i < ls_option_count && st == LS_OK; i++)
        if (ls_option_in(&ls_options[i], "model") && strcmp(ls_options[i].key, "model.import") != 0)
            st = take_row(run, &given, &theirs, &ls_options[i], where);
    return st == LS_OK ? check_context(run, &config, where) : st;
}
