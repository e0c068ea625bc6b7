/* option_find.c -- looking things up in the table of options, and saying what a value may be. */
#include "config/option.h"

#include <ctype.h>
#include "config/other_names.h"

enum { LONGEST_LIST = 200 };

/* Keys that a later version will have; a run file that has one deserves a better answer than
 * "unknown". */
static const struct {
    const char *key, *why;
} later[] = {
    {"model.shared_experts", "experts that all tokens share are not built yet"},
};

/* Keys of earlier versions. Run files and run folders that have them keep working. */
static const struct {
    const char *was, *is;
} renamed[] = {
    {"heal.pulse", "heal.heartbeat"},
};

const ls_option *ls_option_find(const char *key)
{
    for (size_t i = 0; i < LS_COUNT(renamed); i++)
        if (strcmp(renamed[i].was, key) == 0)
            key = renamed[i].is;
    for (int i = 0; i < ls_option_count; i++)
        if (strcmp(ls_options[i].key, key) == 0)
            return &ls_options[i];
    return NULL;
}

int ls_option_index(const ls_option *row)
{
    return (int)(row - ls_options);
}

const ls_option_section *ls_option_find_section(const char *name)
{
    for (int i = 0; i < ls_option_section_count; i++)
        if (strcmp(ls_option_sections[i].name, name) == 0)
            return &ls_option_sections[i];
    return NULL;
}

const char *ls_option_leaf(const ls_option *row)
{
    const char *dot = strchr(row->key, '.');

    return dot ? dot + 1 : row->key;
}

bool ls_option_in(const ls_option *row, const char *section)
{
    size_t n = strlen(section);

    if (n == 0)
        return !strchr(row->key, '.');
    return strncmp(row->key, section, n) == 0 && row->key[n] == '.';
}

const char *ls_option_later(const char *key)
{
    for (size_t i = 0; i < LS_COUNT(later); i++)
        if (strcmp(later[i].key, key) == 0)
            return later[i].why;
    return NULL;
}

void ls_option_variable(const ls_option *row, char *out, size_t cap)
{
    snprintf(out, cap, "LINESHAFT_%s", row->key);
    for (char *p = out; *p; p++)
        *p = *p == '.' ? '_' : (char)toupper((unsigned char)*p);
}

/* --- describing ------------------------------------------------------------------------------- */

static void describe_range(const ls_option *row, ls_str *out)
{
    bool top = row->most < LS_OPTION_BIG;

    if (row->least == row->most)
        ls_str_printf(out, "%g", row->least);
    else if (top && !row->above && !row->below)
        ls_str_printf(out, " from %.10g to %.10g", row->least, row->most);
    else
        ls_str_printf(out, "%s %.10g", row->above ? " above" : ", at least", row->least);
    if (top && row->least != row->most && (row->above || row->below))
        ls_str_printf(out, " and %s %.10g", row->below ? "below" : "at most", row->most);
}

static void describe_names(const ls_option *row, ls_str *out)
{
    for (int i = 0; row->names[i]; i++)
        ls_str_printf(out, "%s%s", i == 0 ? "" : row->names[i + 1] ? ", " : " or ", row->names[i]);
}

void ls_option_describe(const ls_option *row, ls_str *out)
{
    bool single = row->least == row->most;

    switch (row->type) {
    case LS_OPTION_INT:
        ls_str_append(out, single ? "" : "a whole number");
        describe_range(row, out);
        break;
    case LS_OPTION_FLOAT:
        ls_str_append(out, "a number");
        describe_range(row, out);
        break;
    case LS_OPTION_DURATION:
        ls_str_append(out, "a time such as 90s, 10m or 1h30m");
        break;
    case LS_OPTION_BOOL:
        ls_str_append(out, "true or false");
        break;
    case LS_OPTION_ENUM:
        describe_names(row, out);
        break;
    case LS_OPTION_STRING:
        if (row->names[0])
            describe_names(row, out);
        else
            ls_str_append(out, "text");
        break;
    case LS_OPTION_STRINGS:
        ls_str_append(out, "a list of texts");
        break;
    case LS_OPTION_FLOATS:
        ls_str_append(out, "a list of numbers");
        describe_range(row, out);
        break;
    }
    if (row->when_auto)
        ls_str_append(out, single ? " or auto" : ", or auto");
}

/* --- "did you mean" --------------------------------------------------------------------------- */

/* How many edits still look like a slip of the hand in a name of this length. */
static int slips(const char *name)
{
    size_t n = strlen(name);

    return n <= 2 ? 0 : n <= 4 ? 1 : n <= 9 ? 2 : 3;
}

/* Edit distance in which two swapped neighbours ("laef") count once. */
static int edits(const char *a, const char *b)
{
    size_t n = strlen(a), i = 0;

    if (n == strlen(b)) {
        while (i < n && a[i] == b[i])
            i++;
        if (i + 1 < n && a[i] == b[i + 1] && a[i + 1] == b[i] && strcmp(a + i + 2, b + i + 2) == 0)
            return 1;
    }
    return ls_str_distance(a, b);
}

/* Keys of other sections with exactly this last part: "steps" -> "train.steps". */
static int suggest_elsewhere(const char *key, ls_str *out)
{
    int found = 0;

    for (int i = 0; i < ls_option_count; i++) {
        if (strcmp(ls_option_leaf(&ls_options[i]), key) != 0)
            continue;
        ls_str_printf(out, "%s\"%s\"", found++ ? " or " : "Did you mean ", ls_options[i].key);
    }
    ls_str_append(out, found ? "?" : "");
    return found;
}

/* The nearest name within a slip; same_section first, then anywhere. NULL: nothing is near. */
static const char *nearest(const char *section, const char *key)
{
    const char *best = NULL;
    int least = slips(key) + 1;

    for (int i = 0; i < ls_option_count; i++) {
        int d = edits(ls_option_leaf(&ls_options[i]), key);
        if (ls_option_in(&ls_options[i], section) && d < least) {
            least = d;
            best = ls_options[i].key;
        }
    }
    for (int i = 0; i < ls_option_section_count && !*section; i++) {
        int d = edits(ls_option_sections[i].name, key);
        if (d < least) {
            least = d;
            best = ls_option_sections[i].name;
        }
    }
    for (int i = 0; i < ls_option_count && !best; i++) {
        if (edits(ls_option_leaf(&ls_options[i]), key) <= slips(key) ||
            edits(ls_options[i].key, key) <= slips(key))
            best = ls_options[i].key;
    }
    return best;
}

void ls_option_suggest(const char *section, const char *key, ls_str *out)
{
    const char *best;
    size_t before = out->len;

    if (ls_other_names_suggest(key, &(ls_other_names_place){.section = section}, out) ||
        suggest_elsewhere(key, out))
        return;
    best = nearest(section, key);
    if (best) {
        ls_str_printf(out, "Did you mean \"%s\"?", best);
        return;
    }
    if (*section)
        ls_str_printf(out, "The keys of \"%s\" are", section);
    else
        ls_str_append(out, "The keys of a run file are");
    int n = 0;
    for (int i = 0; i < ls_option_count; i++)
        if (ls_option_in(&ls_options[i], section))
            ls_str_printf(out, "%s %s", n++ ? "," : "", ls_option_leaf(&ls_options[i]));
    for (int i = 0; i < ls_option_section_count && !*section; i++)
        ls_str_printf(out, ", %s", ls_option_sections[i].name);
    ls_str_append_char(out, '.');
    if (*section && !out->failed &&
        out->len - before > LONGEST_LIST) { /* more than anybody reads */
        out->p[out->len = before] = '\0';
        ls_str_printf(out, "`lineshaft help run-file` lists the keys of \"%s\".", section);
    }
}
