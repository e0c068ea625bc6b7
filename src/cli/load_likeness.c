/* load_likeness.c -- what a run looks like on this machine, for who compares machines
 * (cluster/likeness.h).
 *
 * The settings go section by section, so that a refusal can say which of them differs; those of
 * the folder, the device and of healing itself may differ. Of the data the files count, not the
 * patterns that find them. */
#include <glob.h>
#include "cli/load.h"
#include "config/explain.h"

static void add_settings(const ls_run *run, ls_likeness *likeness)
{
    static const char *const own[] = {"name", "out", "device", "heal"};
    char section[LS_LIKENESS_NAME] = "";
    ls_str text;

    ls_str_init(&text);
    ls_explain_yaml(run, &text);
    for (const char *p = text.p; !text.failed && *p;) {
        size_t len = strcspn(p, "\n");
        bool skip = false;
        if (*p != ' ' && *p != '#') /* "train:" begins a section, "sync: allreduce" is one */
            snprintf(section, sizeof section, "%.*s",
                     (int)ls_min_i64((int64_t)strcspn(p, ":\n"), LS_LIKENESS_NAME - 1), p);
        for (size_t i = 0; i < LS_COUNT(own); i++)
            skip |= strcmp(section, own[i]) == 0;
        if (!skip && *section)
            ls_likeness_add(likeness, section, p, len);
        p += len + (p[len] == '\n');
    }
    ls_str_release(&text);
}

static void add_files(const ls_run_list *names, ls_likeness *likeness)
{
    for (int i = 0; i < names->count; i++) {
        glob_t found;
        if (glob(names->items[i], 0, NULL, &found) != 0)
            continue;
        for (size_t k = 0; k < found.gl_pathc; k++)
            ls_likeness_add_file(likeness, "files", found.gl_pathv[k]);
        globfree(&found);
    }
}

void ls_load_likeness(const ls_run *run, ls_likeness *likeness_out)
{
    char path[4096];

    *likeness_out = (ls_likeness){.rows = 0};
    ls_likeness_add_program(likeness_out);
    add_settings(run, likeness_out);
    if (strcmp(run->data.tokenizer, "bytes") != 0) {
        snprintf(path, sizeof path, "%s/tokenizer.json", run->data.tokenizer);
        ls_likeness_add_file(likeness_out, "tokenizer", path);
    }
    add_files(&run->data.text, likeness_out);
    add_files(&run->data.shards, likeness_out);
}
