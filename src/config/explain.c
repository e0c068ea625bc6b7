/* explain.c -- the run as text: a table with origins, JSON, a run file, a list of differences.
 *
 * Values are compared and hashed as their printed text, because that text reads back to the same
 * value: there is one notion of equality, the one a user sees. */
#include "config/explain.h"

#include <stdlib.h>
#include "base/json.h"
#include "config/value.h"

const ls_run_origin *ls_explain_origin(const ls_run *run, const ls_option *row)
{
    return &run->origins[ls_option_index(row)];
}

const char *ls_explain_where(const ls_run *run, const char *key)
{
    return run->origins ? ls_explain_origin(run, ls_option_find(key))->where : "run";
}

/* "run.yaml:3:9", "default", "auto, default: 4 times model.width". */
static void print_origin(const ls_run *run, const ls_option *row, ls_str *out)
{
    const ls_run_origin *origin = ls_explain_origin(run, row);

    if (origin->automatic || ls_value_is_auto(row, run))
        ls_str_printf(out, "%s (auto%s%s)", origin->where, row->when_auto ? ": " : "",
                      row->when_auto ? row->when_auto : "");
    else
        ls_str_append(out, origin->where);
}

/* As it could stand in a run file; a number that was worked out without the rounding of its last
 * digit (a tenth of 0.003 is 0.0003, not 0.00030000000000000003). */
static void print_shown(const ls_run *run, const ls_option *row, ls_str *out)
{
    enum { DIGITS = 15 }; /* of a double are always right */
    size_t at = out->len;
    bool worked_out = ls_explain_origin(run, row)->automatic && !ls_value_is_auto(row, run);

    ls_value_print(row, run, out);
    if (row->type != LS_OPTION_FLOAT || !worked_out || out->len - at <= DIGITS ||
        ls_str_status(out) != LS_OK)
        return;
    double value = strtod(out->p + at, NULL);
    out->len = at;
    ls_str_printf(out, "%.*g", DIGITS, value);
}

static bool is_wanted(const ls_option *row, const char *const *keys, int n_keys)
{
    for (int i = 0; i < n_keys; i++)
        if (strcmp(row->key, keys[i]) == 0 || (*keys[i] && ls_option_in(row, keys[i])))
            return true;
    return n_keys == 0;
}

static ls_status check_keys(const char *const *keys, int n_keys)
{
    for (int i = 0; i < n_keys; i++) {
        char quoted[64], section[64];
        ls_str hint;

        if (ls_option_find(keys[i]) || ls_option_find_section(keys[i]))
            continue;
        ls_value_quote(keys[i], quoted, sizeof quoted);
        ls_fail(LS_EUSAGE, "there is no option %s", quoted);
        snprintf(section, sizeof section, "%.*s", (int)strcspn(keys[i], "."), keys[i]);
        bool inside = strchr(keys[i], '.') && ls_option_find_section(section);
        ls_str_init(&hint);
        ls_option_suggest(inside ? section : "", inside ? strchr(keys[i], '.') + 1 : keys[i],
                          &hint);
        ls_err_hint("%s", hint.p);
        ls_str_release(&hint);
        return LS_EUSAGE;
    }
    return LS_OK;
}

ls_status ls_explain_table(const ls_run *run, const char *const *keys, int n_keys, ls_str *out)
{
    ls_status st = LS_OK;
    int key_width = 0, value_width = 0;
    ls_str value;

    ls_str_init(&value);
    LS_TRY(st, check_keys(keys, n_keys), out);
    for (int i = 0; i < ls_option_count; i++) {
        if (!is_wanted(&ls_options[i], keys, n_keys))
            continue;
        ls_str_clear(&value);
        print_shown(run, &ls_options[i], &value);
        key_width = (int)ls_max_i64(key_width, (int64_t)strlen(ls_options[i].key));
        /* One long list must not push all origins off the screen. */
        if (value.len <= 40)
            value_width = (int)ls_max_i64(value_width, (int64_t)value.len);
    }
    for (int i = 0; i < ls_option_count; i++) {
        if (!is_wanted(&ls_options[i], keys, n_keys))
            continue;
        ls_str_clear(&value);
        print_shown(run, &ls_options[i], &value);
        ls_str_printf(out, "%-*s  %-*s  ", key_width, ls_options[i].key, value_width, value.p);
        print_origin(run, &ls_options[i], out);
        ls_str_append_char(out, '\n');
    }
    LS_TRY(st, ls_str_status(&value), out);
    st = ls_str_status(out);
out:
    ls_str_release(&value);
    return st;
}

ls_status ls_explain_json(const ls_run *run, const char *const *keys, int n_keys, ls_str *out)
{
    static const char *const sources[] = {"default",     "import", "file",
                                          "environment", "set",    "override"};
    ls_status st = LS_OK;
    ls_json json;

    LS_TRY(st, check_keys(keys, n_keys), out);
    ls_json_begin(&json, out);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "run", run->path);
    ls_json_key(&json, "settings");
    ls_json_open(&json, '{');
    for (int i = 0; i < ls_option_count; i++) {
        const ls_option *row = &ls_options[i];
        if (!is_wanted(row, keys, n_keys))
            continue;
        ls_json_key(&json, row->key);
        ls_json_open(&json, '{');
        ls_json_key(&json, "value");
        ls_value_json(row, run, &json);
        ls_json_put_str(&json, "origin", sources[run->origins[i].source]);
        ls_json_put_str(&json, "where", run->origins[i].where);
        ls_json_put_bool(&json, "auto", run->origins[i].automatic || ls_value_is_auto(row, run));
        ls_json_close(&json);
    }
    ls_json_close(&json);
    ls_json_close(&json);
    ls_str_append_char(out, '\n');
    st = ls_str_status(out);
out:
    return st;
}

void ls_explain_settings(const ls_run *run, ls_json *json)
{
    ls_json_open(json, '{');
    for (int i = 0; i < ls_option_count && run->origins; i++) {
        if (run->origins[i].source == LS_RUN_DEFAULT)
            continue;
        ls_json_key(json, ls_options[i].key);
        ls_value_json(&ls_options[i], run, json);
    }
    ls_json_close(json);
}

void ls_explain_yaml(const ls_run *run, ls_str *out)
{
    const char *section = "";

    for (int i = 0; i < ls_option_count; i++) {
        const ls_option *row = &ls_options[i];
        const char *leaf = ls_option_leaf(row);
        bool inside = leaf != row->key;
        size_t n = (size_t)(leaf - row->key); /* "batch." */

        if (inside && strncmp(section, row->key, n) != 0)
            ls_str_printf(out, "%.*s:\n", (int)n - 1, row->key);
        section = inside ? row->key : "";
        ls_str_printf(out, "%s%s: ", inside ? "  " : "", leaf);
        ls_value_print(row, run, out);
        ls_str_append_char(out, '\n');
    }
}

/* Whether the command line changes this setting of a run that is resumed, or it follows from one that
 * it changes. */
static bool is_overridden(const ls_run *run, const ls_option *row)
{
    const ls_run_origin *origin = ls_explain_origin(run, row);
    bool any = false;

    if (row->fixed != LS_OPTION_ON_WORD)
        return false;
    for (int i = 0; i < ls_option_count; i++)
        any |= run->origins[i].source == LS_RUN_OVERRIDE;
    return origin->source == LS_RUN_OVERRIDE || (origin->automatic && any);
}

/* How a setting that differs may change on resume, as the end of its line. */
static void put_rule(const ls_option *row, const ls_run *now, const char *value, ls_str *text)
{
    if (row->fixed == LS_OPTION_FIXED)
        ls_str_append(text, " (cannot change on resume)");
    else if (row->fixed == LS_OPTION_ON_WORD && ls_explain_origin(now, row)->automatic)
        ls_str_append(text, " (it follows from another setting)");
    else if (row->fixed == LS_OPTION_ON_WORD && !is_overridden(now, row))
        ls_str_printf(text, " (changes on resume only with --override %s=%s)", row->key, value);
}

/* One line, or of those that --override changes a part of one. */
typedef enum diff_form { DIFF_LINES, DIFF_OVERRIDDEN } diff_form;

static int diff(const ls_run *a, const ls_run *b, diff_form form, ls_str *text)
{
    int fixed = 0;
    ls_str va, vb;

    ls_str_init(&va);
    ls_str_init(&vb);
    for (int i = 0; i < ls_option_count; i++) {
        const ls_option *row = &ls_options[i];
        ls_str_clear(&va);
        ls_str_clear(&vb);
        ls_value_print(row, a, &va);
        ls_value_print(row, b, &vb);
        if (va.failed || vb.failed) {
            fixed = -1; /* out of memory: nothing is known, least of all that nothing differs */
            break;
        }
        if (strcmp(va.p, vb.p) == 0)
            continue;
        fixed += row->fixed != LS_OPTION_FREE && !is_overridden(b, row);
        if (form == DIFF_OVERRIDDEN && is_overridden(b, row)) {
            ls_str_printf(text, "%s%s %s -> %s", text->len ? ", " : "", row->key, va.p, vb.p);
        } else if (form == DIFF_LINES) {
            ls_str_printf(text, "  %s: %s -> %s", row->key, va.p, vb.p);
            put_rule(row, b, vb.p, text);
            ls_str_append_char(text, '\n');
        }
    }
    ls_str_release(&va);
    ls_str_release(&vb);
    return fixed;
}

int ls_explain_diff(const ls_run *a, const ls_run *b, ls_str *text)
{
    return diff(a, b, DIFF_LINES, text);
}

void ls_explain_overridden(const ls_run *a, const ls_run *b, ls_str *text)
{
    diff(a, b, DIFF_OVERRIDDEN, text);
}

ls_status ls_explain_hash(const ls_run *run, ls_hash *hash_out)
{
    ls_status st = LS_OK;
    ls_str text;

    ls_str_init(&text);
    for (int i = 0; i < ls_option_count; i++) {
        if (ls_options[i].fixed == LS_OPTION_FREE)
            continue;
        ls_str_printf(&text, "%s: ", ls_options[i].key);
        ls_value_print(&ls_options[i], run, &text);
        ls_str_append_char(&text, '\n');
    }
    LS_TRY(st, ls_str_status(&text), out);
    *hash_out = ls_hash_bytes(text.p, text.len);
out:
    ls_str_release(&text);
    return st;
}
