/* check_files.c -- whether the files that a run names exist.
 *
 * Only their names are checked; code that reads them checks their content. */
#include "config/check_impl.h"

#include "config/hf_config.h"
#include "config/hub_name.h"
#include "config/value.h"
#include "base/file.h"
#include <limits.h>
#include <unistd.h>

/* Why a path that looks right to its writer matches nothing. */
static void explain_pattern(const char *pattern)
{
    char here[PATH_MAX];

    if (pattern[0] == '~')
        ls_err_hint("Only a shell opens ~: write the whole path, as in /home/me/book.txt.");
    else if (strchr(pattern, '$'))
        ls_err_hint("Only a shell opens $: write the path itself.");
    else if (ls_hub_name_hint(pattern, LS_HUB_DATASET))
        return;
    else if (strstr(pattern, "://"))
        ls_err_hint("lineshaft reads files: download it first, and name the file.");
    else if (pattern[0] != '/' && getcwd(here, sizeof here))
        ls_err_hint("Relative paths start at the current folder, \"%.200s\".", here);
}

static ls_status check_pattern(const char *where, const char *key, const char *pattern)
{
    ls_status st = LS_OK;
    char quoted[64];
    ls_str names;
    int count = 0;

    ls_str_init(&names);
    ls_value_quote(pattern, quoted, sizeof quoted);
    st = ls_file_glob(pattern, &names, &count);
    if (st == LS_ENOMEM)
        goto out;
    if (st != LS_OK) {
        st = ls_fail(LS_EUSAGE, "%s: %s: no file matches %s", where, key, quoted);
        explain_pattern(pattern);
        goto out;
    }
    const char *name = names.p;
    for (int i = 0; i < count; i++, name += strlen(name) + 1) {
        if (!ls_file_is_dir(name))
            continue;
        ls_value_quote(name, quoted, sizeof quoted);
        st = ls_fail(LS_EUSAGE, "%s: %s: %s is a folder", where, key, quoted);
        ls_err_hint("Name the files in it, as in folder/*.txt.");
        goto out;
    }
out:
    ls_str_release(&names);
    return st;
}

/* What data/ makes itself: "builtin:stories", or with a size, "builtin:stories:20M". */
static ls_status check_builtin(const char *where, const char *key, const char *name)
{
    static const char stories[] = "builtin:stories";
    const char *rest = name + sizeof stories - 1;
    char quoted[64];

    if (strncmp(name, stories, sizeof stories - 1) == 0 &&
        (*rest == '\0' || (*rest == ':' && rest[1] >= '0' && rest[1] <= '9')))
        return LS_OK;
    ls_value_quote(name, quoted, sizeof quoted);
    ls_status st = ls_fail(LS_EUSAGE, "%s: %s: there is no built-in text %s", where, key, quoted);
    ls_err_hint("The built-in text is %s, or with a size %s:20M.", stories, stories);
    return st;
}

static ls_status check_list(const ls_run *run, const char *key, const ls_run_list *list)
{
    ls_status st = LS_OK;
    const ls_run_origin *origin = ls_check_origin(run, key);

    for (int i = 0; i < list->count; i++) {
        const char *where = origin->items ? origin->items[i] : origin->where;
        if (list == &run->data.text && strncmp(list->items[i], "builtin:", 8) == 0)
            LS_TRY(st, check_builtin(where, key, list->items[i]), out);
        else
            LS_TRY(st, check_pattern(where, key, list->items[i]), out);
    }
out:
    return st;
}

/* "bytes", or a path where something is, or was when the run began and kept a copy; what it holds
 * is the tokenizer's to judge. */
static ls_status check_tokenizer(const ls_run *run)
{
    const ls_run_origin *origin = ls_check_origin(run, "data.tokenizer");
    const char *name = run->data.tokenizer;
    char quoted[64], kept[PATH_MAX];

    if (strcmp(name, "bytes") == 0 || ls_file_exists(name))
        return LS_OK;
    if ((size_t)snprintf(kept, sizeof kept, "%s/" LS_HF_CONFIG_COPIES "/tokenizer.json", run->out) <
            sizeof kept &&
        ls_file_exists(kept))
        return LS_OK;
    ls_value_quote(name, quoted, sizeof quoted);
    ls_status st =
        ls_fail(LS_EUSAGE, "%s: data.tokenizer: there is no folder %s", origin->where, quoted);
    if (!ls_hub_name_hint(name, LS_HUB_MODEL))
        ls_err_hint("Write bytes, or the path of a folder that has a tokenizer.json.");
    return st;
}

ls_status ls_check_files(const ls_run *run)
{
    ls_status st = LS_OK;
    char quoted[64];

    LS_TRY(st, check_list(run, "data.text", &run->data.text), out);
    LS_TRY(st, check_list(run, "data.shards", &run->data.shards), out);
    LS_TRY(st, check_tokenizer(run), out);
    if (ls_file_exists(run->out) && !ls_file_is_dir(run->out)) {
        const ls_run_origin *origin = ls_check_origin(run, "out");
        ls_value_quote(run->out, quoted, sizeof quoted);
        st = ls_fail(LS_EUSAGE, "%s: out: %s is a file, not a folder",
                     origin->source == LS_RUN_DEFAULT ? run->path : origin->where, quoted);
    }
out:
    return st;
}
