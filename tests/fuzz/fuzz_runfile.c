/* fuzz_runfile.c -- arbitrary bytes as a run file.
 *
 * Whatever comes in: no crash, no leak, a message for what is refused; what is accepted must load
 * back from its own resolved text to the same run. A first line "--set key=value" is taken as a
 * setting, so that the second parser is reached too. */
#include "config/explain.h"
#include "config/runfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ls_status load(ls_run *run, const char *text, size_t len, const char *set)
{
    return ls_runfile_load(run, &(ls_runfile_source){.text = text,
                                                     .len = len,
                                                     .sets = &set,
                                                     .n_sets = set != NULL,
                                                     .no_environment = true,
                                                     .no_files = true});
}

static void check_round_trip(const ls_run *run)
{
    ls_str yaml, diff;
    ls_run again;

    ls_str_init(&yaml);
    ls_str_init(&diff);
    ls_explain_yaml(run, &yaml);
    if (yaml.len <= LS_RUNFILE_BYTES) { /* escapes can make it longer than what was read */
        LS_BUG_IF(load(&again, yaml.p, yaml.len, NULL) != LS_OK, "a resolved run is refused: %s",
                  ls_err_last()->text);
        LS_BUG_IF(ls_explain_diff(run, &again, &diff) != 0 || diff.len, "a run changes: %s",
                  diff.p);
        ls_runfile_release(&again);
    }
    ls_str_release(&yaml);
    ls_str_release(&diff);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    char set[256] = "";
    ls_run run;

    if (size > 6 && memcmp(text, "--set ", 6) == 0) {
        const char *end = memchr(text, '\n', size);
        size_t n = end ? (size_t)(end - text) : size;
        snprintf(set, sizeof set, "%.*s", (int)(n - 6 < 255 ? n - 6 : 255), text + 6);
        text += n + (end != NULL);
        size -= n + (end != NULL);
    }
    ls_err_clear();
    if (load(&run, text, size, *set ? set : NULL) == LS_OK) {
        check_round_trip(&run);
        ls_runfile_release(&run);
    } else {
        LS_BUG_IF(ls_err_last()->text[0] == '\0', "refused without a word");
    }
    return 0;
}
