/* hf_copy.c -- the small files that go along with a model. */
#include "hf/hf_copy.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/new_folder.h"
#include "base/str.h"
#include "config/hf_config.h"
#include "hf/hf_base.h"

#define COPY_BYTES (256 * LS_MIB) /* longest file that goes along */

ls_status ls_hf_copy_file(const char *from, const char *to, const char *name, bool *done_out)
{
    char source[PATH_MAX], target[PATH_MAX];
    ls_str bytes;
    ls_status st = LS_OK;

    *done_out = false;
    snprintf(source, sizeof source, "%s/%s", from, name);
    snprintf(target, sizeof target, "%s/%s", to, name);
    if (!ls_file_exists(source))
        return LS_OK;
    ls_str_init(&bytes);
    LS_TRY(st, ls_file_read(source, COPY_BYTES, &bytes), out);
    LS_TRY(st, ls_file_write_atomic(target, bytes.p, bytes.len), out);
    *done_out = true;
out:
    ls_str_release(&bytes);
    return st;
}

ls_status ls_hf_copy_tokenizer(const char *from, const char *to, int *count_out)
{
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "chat_template.json"};
    ls_status st = LS_OK;

    *count_out = 0;
    for (size_t i = 0; i < LS_COUNT(names) && st == LS_OK; i++) {
        bool done;
        st = ls_hf_copy_file(from, to, names[i], &done);
        *count_out += done;
    }
    return st;
}

/* --- what a run keeps ------------------------------------------------------------------------- */

/* The folder of a tokenizer that may be named by its file. */
static void folder_of(const char *name, char *out, size_t cap)
{
    const char *slash = strrchr(name, '/');

    if (ls_file_is_dir(name))
        snprintf(out, cap, "%s", name);
    else
        snprintf(out, cap, "%.*s", slash ? (int)(slash - name) + 1 : 1, slash ? name : ".");
}

/* A tokenizer that is named by its file gets the usual name. */
static ls_status keep_file(const char *from, const char *to)
{
    char path[PATH_MAX + 32];
    ls_str bytes;
    ls_status st;

    ls_str_init(&bytes);
    snprintf(path, sizeof path, "%s/tokenizer.json", to);
    LS_TRY(st, ls_file_read(from, COPY_BYTES, &bytes), out);
    LS_TRY(st, ls_file_write_atomic(path, bytes.p, bytes.len), out);
out:
    ls_str_release(&bytes);
    return st;
}

static bool has_file(const char *folder, const char *name)
{
    char path[PATH_MAX];

    return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path &&
           ls_file_exists(path);
}

static ls_status keep_all(const char *to, const char *tokenizer, const char *import)
{
    char folder[PATH_MAX];
    bool done;
    int count;
    ls_status st = LS_OK;

    if (strcmp(tokenizer, "bytes") != 0) {
        folder_of(tokenizer, folder, sizeof folder);
        LS_TRY(st, ls_hf_copy_tokenizer(folder, to, &count), out);
        if (!ls_file_is_dir(tokenizer))
            LS_TRY(st, keep_file(tokenizer, to), out);
    }
    if (*import) { /* a run that imported a model itself has these files in its own copies */
        bool own = has_file(import, "config.json");
        snprintf(folder, sizeof folder, own ? "%s" : "%s/" LS_HF_CONFIG_COPIES, import);
        LS_TRY(st, ls_hf_copy_file(folder, to, "config.json", &done), out);
        LS_TRY(st, ls_hf_base_note(import, to), out);
        LS_TRY(st, ls_hf_copy_file(folder, to, "generation_config.json", &done), out);
    }
out:
    return st;
}

const char *ls_hf_copy_tokenizer_of(const ls_run *run, char *kept)
{
    const char *name = run->data.tokenizer;
    char file[PATH_MAX + 32];

    if (strcmp(name, "bytes") == 0 || ls_file_exists(name))
        return name;
    snprintf(kept, PATH_MAX, "%s/" LS_HF_CONFIG_COPIES, run->out);
    snprintf(file, sizeof file, "%s/tokenizer.json", kept);
    return ls_file_exists(file) ? kept : name;
}

ls_status ls_hf_copy_keep(const char *home, const char *tokenizer, const char *import, bool renew)
{
    char to[PATH_MAX];
    ls_new_folder stage = {.path = ""};
    ls_status st = LS_OK;

    if ((size_t)snprintf(to, sizeof to, "%s/" LS_HF_CONFIG_COPIES, home) >= sizeof to)
        return ls_fail(LS_EUSAGE, "the folder's name is too long");
    if (ls_file_exists(to) && !ls_new_folder_is_empty(to)) {
        if (!renew)
            return LS_OK;
        ls_new_folder_remove(to);
    }
    if (strcmp(tokenizer, "bytes") == 0 && !*import)
        return LS_OK;
    LS_TRY(st, ls_new_folder_begin(&stage, to), out);
    LS_TRY(st, keep_all(stage.path, tokenizer, import), out);
    LS_TRY(st, ls_new_folder_commit(&stage), out);
out:
    ls_new_folder_drop(&stage);
    return st;
}
