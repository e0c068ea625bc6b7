/* run_digest.c -- a run as this machine sees it, for comparison (cluster/member/config_digest.h).
 *
 * The settings go section by section, so that a refusal can say which of them differs; those of
 * the folder, the device and of healing itself may differ. Of the data the files count, not the
 * patterns that find them.
 *
 *     first machine      one that joins
 *     train   9f3c41     train   9f3c41
 *     model   0011ab     model   0077e0     refused: model (0011ab here, 0077e0 there)
 *     files   5d20e8     files   5d20e8
 *
 * A file counts by its length and its content (a large one by both ends), not by its name. */
#include "launch/run_digest.h"

#include <glob.h>
#include "config/explain.h"

static void add_settings(const ls_run *run, ls_config_digest *config_digest)
{
    static const char *const own[] = {"name", "out", "device", "heal"};
    char section[LS_CONFIG_DIGEST_NAME] = "";
    ls_str text;

    ls_str_init(&text);
    ls_explain_yaml(run, &text);
    for (const char *p = text.p; !text.failed && *p;) {
        size_t len = strcspn(p, "\n");
        bool skip = false;
        if (*p != ' ' && *p != '#') /* "train:" begins a section, "sync: allreduce" is one */
            snprintf(section, sizeof section, "%.*s",
                     (int)ls_min_i64((int64_t)strcspn(p, ":\n"), LS_CONFIG_DIGEST_NAME - 1), p);
        for (size_t i = 0; i < LS_COUNT(own); i++)
            skip |= strcmp(section, own[i]) == 0;
        if (!skip && *section)
            ls_config_digest_add(config_digest, section, p, len);
        p += len + (p[len] == '\n');
    }
    ls_str_release(&text);
}

static void add_files(const ls_run_list *names, ls_config_digest *config_digest)
{
    for (int i = 0; i < names->count; i++) {
        glob_t found;
        if (glob(names->items[i], 0, NULL, &found) != 0)
            continue;
        for (size_t k = 0; k < found.gl_pathc; k++)
            ls_config_digest_add_file(config_digest, "files", found.gl_pathv[k]);
        globfree(&found);
    }
}

void ls_run_digest(const ls_run *run, ls_config_digest *config_digest_out)
{
    char path[4096];

    *config_digest_out = (ls_config_digest){.rows = 0};
    ls_config_digest_add_program(config_digest_out);
    add_settings(run, config_digest_out);
    if (strcmp(run->data.tokenizer, "bytes") != 0) {
        snprintf(path, sizeof path, "%s/tokenizer.json", run->data.tokenizer);
        ls_config_digest_add_file(config_digest_out, "tokenizer", path);
    }
    add_files(&run->data.text, config_digest_out);
    add_files(&run->data.shards, config_digest_out);
}
