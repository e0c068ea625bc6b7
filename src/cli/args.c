/* args.c -- the command line, parsed by the table.
 *
 * getopt_long() was rejected: it keeps global state, prints by itself and cannot suggest names.
 * A flag whose value is named "a|b|c" in the table accepts exactly these words, so a help text
 * cannot promise more or less than the parser does. */
#include "cli/args.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include "cli/other_flags.h"

const ls_flag ls_args_globals[] = {
    {"help", 'h', NULL, false, "Show help for the command."},
    {"version", 0, NULL, false, "Show the version."},
    {"color", 0, "auto|always|never", false, "When to use colour; auto: on a terminal."},
    {"verbose", 'v', NULL, true, "Log more; twice: everything."},
    {"quiet", 'q', NULL, false, "Log errors only."},
    {.name = NULL},
};

/* --- lookup ----------------------------------------------------------------------------------- */

static const ls_flag *find_flag(const ls_command *command, const char *name, size_t len)
{
    const ls_flag *lists[] = {command ? command->flags : NULL, ls_args_globals};

    for (size_t i = 0; i < LS_COUNT(lists); i++)
        for (const ls_flag *f = lists[i]; f && f->name; f++)
            if (strlen(f->name) == len && memcmp(f->name, name, len) == 0)
                return f;
    return NULL;
}

static const ls_flag *find_letter(const ls_command *command, char letter)
{
    const ls_flag *lists[] = {command ? command->flags : NULL, ls_args_globals};

    for (size_t i = 0; i < LS_COUNT(lists); i++)
        for (const ls_flag *f = lists[i]; f && f->name; f++)
            if (f->letter && f->letter == letter)
                return f;
    return NULL;
}

/* Letters that a flag has lost, because they mean something else in other commands. They are read,
 * with a note, and shown nowhere. */
static const ls_flag *find_old_letter(const ls_command *command, char letter)
{
    static const struct {
        char letter;
        const char *command, *flag;
    } rows[] = {{'n', "prune", "dry-run"}};

    for (size_t i = 0; command && i < LS_COUNT(rows); i++)
        if (rows[i].letter == letter && strcmp(rows[i].command, command->name) == 0)
            return find_flag(command, rows[i].flag, strlen(rows[i].flag));
    return NULL;
}

static const ls_flag *must_find(const ls_args *args, const char *name)
{
    const ls_flag *flag = find_flag(args->command, name, strlen(name));

    LS_BUG_IF(!flag, "the command \"%s\" has no flag \"--%s\" in its table",
              args->command ? args->command->name : "lineshaft", name);
    return flag;
}

bool ls_args_knows(const ls_args *args, const char *name)
{
    return find_flag(args->command, name, strlen(name)) != NULL;
}

const char *ls_args_value(const ls_args *args, const char *name)
{
    const ls_flag *flag = must_find(args, name);

    for (int i = args->n_given - 1; i >= 0; i--)
        if (args->given[i].flag == flag)
            return args->given[i].value ? args->given[i].value : "";
    return NULL;
}

bool ls_args_has(const ls_args *args, const char *name)
{
    return ls_args_value(args, name) != NULL;
}

const char *ls_args_nth(const ls_args *args, const char *name, int i)
{
    const ls_flag *flag = must_find(args, name);

    LS_BUG_IF(!flag->repeats, "\"--%s\" does not repeat", name);
    for (int k = 0; k < args->n_given; k++)
        if (args->given[k].flag == flag && i-- == 0)
            return args->given[k].value ? args->given[k].value : "";
    return NULL;
}

ls_status ls_args_number(const ls_args *args, const char *flag, int64_t fallback, int64_t least,
                         int64_t most, int64_t *number_out)
{
    const char *text = ls_args_value(args, flag);
    char *end;

    *number_out = fallback;
    if (!text)
        return LS_OK;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    bool number = !errno && end != text && !*end && *text != ' ';
    if (most == INT64_MAX && (!number || n < least))
        return ls_fail(LS_EUSAGE, "--%s must be a whole number, at least %lld, not \"%.60s\"", flag,
                       (long long)least, text);
    if (!number || n < least || n > most)
        return ls_fail(LS_EUSAGE, "--%s must be a whole number from %lld to %lld, not \"%.60s\"",
                       flag, (long long)least, (long long)most, text);
    *number_out = n;
    return LS_OK;
}

int ls_args_count(const ls_args *args, const char *name)
{
    const ls_flag *flag = must_find(args, name);
    int n = 0;

    for (int i = 0; i < args->n_given; i++)
        n += args->given[i].flag == flag;
    return n;
}

const ls_command *ls_args_find_command(const ls_command *const *list, const char *name)
{
    for (; list && *list; list++)
        if (strcmp((*list)->name, name) == 0)
            return *list;
    return NULL;
}

void ls_args_full_name(const ls_command *command, ls_str *out)
{
    ls_str_append(out, "lineshaft");
    if (!command)
        return;
    for (const ls_command *const *c = ls_commands; *c; c++)
        for (const ls_command *const *s = (*c)->subs; s && *s; s++)
            if (*s == command)
                ls_str_printf(out, " %s", (*c)->name);
    ls_str_printf(out, " %s", command->name);
}

/* --- complaints ------------------------------------------------------------------------------- */

static int slips(const char *name)
{
    return strlen(name) <= 4 ? 1 : 2;
}

ls_status ls_args_unknown_command(const ls_command *const *list, const ls_command *group,
                                  const char *name)
{
    const char *best = NULL;
    int least = slips(name) + 1;
    ls_str full, other;

    ls_str_init(&full);
    ls_str_init(&other);
    ls_args_full_name(group, &full);
    if (group)
        ls_fail(LS_EUSAGE, "\"%s\" has no command \"%.60s\"", full.p, name);
    else
        ls_fail(LS_EUSAGE, "unknown command \"%.60s\"", name);
    for (const ls_command *const *c = list; c && *c; c++) {
        int d = ls_str_distance((*c)->name, name);
        if (d < least) {
            least = d;
            best = (*c)->name;
        }
    }
    if (!group && ls_other_flags_command(name, &other))
        ls_err_hint("%s", other.p);
    else if (best)
        ls_err_hint("Did you mean \"%s %s\"?", full.p, best);
    else
        ls_err_hint("`%s --help` lists the commands.", full.p);
    ls_str_release(&other);
    ls_str_release(&full);
    return LS_EUSAGE;
}

/* The beginning of a flag, such as --temp, is nearer than any slip. */
static void near_flag(const ls_flag *list, const char *name, int *least, const char **best)
{
    for (; list && list->name; list++) {
        bool begins = strlen(name) > 1 && strncmp(list->name, name, strlen(name)) == 0;
        int d = begins ? 0 : ls_str_distance(list->name, name);
        if (d < *least) {
            *least = d;
            *best = list->name;
        }
    }
}

/* shown is the flag as written; name is its long name or NULL; value what seems to be its value, or "". */
static ls_status unknown_flag(const ls_command *command, const char *shown, const char *name,
                              const char *value)
{
    const char *best = NULL;
    int least = name ? slips(name) + 1 : 0;
    ls_str full, other;

    ls_str_init(&full);
    ls_str_init(&other);
    ls_args_full_name(command, &full);
    ls_fail(LS_EUSAGE, "\"%s\" has no flag \"%.60s\"", full.p, shown);
    bool known = name && ls_other_flags_suggest(command, name, value, &other);
    if (name && !known) {
        near_flag(command ? command->flags : NULL, name, &least, &best);
        near_flag(ls_args_globals, name, &least, &best);
    }
    if (known)
        ls_err_hint("%s", other.p);
    else if (!command && name && ls_args_find_command(ls_commands, name))
        ls_err_hint("A command has no dashes: `lineshaft %s`.", name);
    else if (!command)
        ls_err_hint("Flags follow the command, as in `lineshaft train run.yaml --set "
                    "train.lr=1e-3`; `lineshaft --help` lists the commands.");
    else if (best)
        ls_err_hint("Did you mean \"--%s\"?", best);
    else
        ls_err_hint("`%s --help` lists the flags.", full.p);
    ls_str_release(&other);
    ls_str_release(&full);
    return LS_EUSAGE;
}

/* How many arguments a usage line allows: "DIR TO", "RUN [KEY ...]", "FOLDER | FILE ...". most -1:
 * any. */
static void count_arguments(const char *usage, int *least_out, int *most_out)
{
    int least = 0, most = 0, depth = 0;
    char before = ' ';

    for (const char *p = usage; *p; before = *p++) {
        bool begins = isalpha((unsigned char)*p) && (before == ' ' || before == '[');
        bool instead = *p == '|' && before == ' '; /* of the word before it */
        depth += (*p == '[') - (*p == ']');
        least += (begins && depth == 0) - instead;
        most += begins - instead;
    }
    *least_out = least;
    *most_out = strstr(usage, "...") ? -1 : most;
}

static ls_status check_count(const ls_args *args)
{
    const char *usage = args->command->arguments ? args->command->arguments : "";
    int least, most;
    ls_str full, other;

    count_arguments(usage, &least, &most);
    if (args->n_rest >= least && (most < 0 || args->n_rest <= most))
        return LS_OK;
    ls_str_init(&full);
    ls_str_init(&other);
    ls_args_full_name(args->command, &full);
    if (args->n_rest < least)
        ls_fail(LS_EUSAGE, "\"%s\" needs %s", full.p, usage);
    else
        ls_fail(LS_EUSAGE, "\"%s\" does not take the argument \"%.60s\"", full.p, args->rest[most]);
    if (args->n_rest >= least && ls_other_flags_argument(args->command, args->rest[most], &other))
        ls_err_hint("%s", other.p);
    else
        ls_err_hint("Usage: %s%s%s; `%s --help` says more.", full.p, *usage ? " " : "", usage,
                    full.p);
    ls_str_release(&other);
    ls_str_release(&full);
    return LS_EUSAGE;
}

/* --- parsing ---------------------------------------------------------------------------------- */

/* Whether value is one of the words of "a|b|c". */
static bool is_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);

    for (const char *p = choices; *p;) {
        size_t word = strcspn(p, "|");
        if (word == n && memcmp(p, value, n) == 0)
            return true;
        p += word + (p[word] == '|');
    }
    return false;
}

/* "a|b|c" as "a, b or c". */
static void list_choices(const char *choices, char *out, size_t cap)
{
    size_t used = 0;

    for (const char *p = choices; *p && used + 4 < cap; p++) {
        const char *join = *p != '|' ? NULL : strchr(p + 1, '|') ? ", " : " or ";
        if (join)
            used += (size_t)snprintf(out + used, cap - used, "%s", join);
        else
            out[used++] = *p;
    }
    out[used] = '\0';
}

static ls_status give(ls_args *args, const ls_flag *flag, const char *value)
{
    if (args->n_given == (int)LS_COUNT(args->given))
        return ls_fail(LS_EUSAGE, "more than %d flags are given", args->n_given);
    if (value && flag->value && strchr(flag->value, '|') && !is_choice(flag->value, value)) {
        char choices[64];
        list_choices(flag->value, choices, sizeof choices);
        return ls_fail(LS_EUSAGE, "--%s must be %s, not \"%.60s\"", flag->name, choices, value);
    }
    args->given[args->n_given].flag = flag;
    args->given[args->n_given].value = value;
    args->n_given++;
    return LS_OK;
}

static ls_status no_value(const ls_flag *flag)
{
    return ls_fail(LS_EUSAGE, "--%s needs a value: --%s %s", flag->name, flag->name, flag->value);
}

/* --name, --name=value, --name value; *i is the number of the word and moves past the value. */
static ls_status parse_long(ls_args *args, int argc, const char *const *argv, int *i)
{
    const char *name = argv[*i] + 2;
    size_t n = strcspn(name, "=");
    const ls_flag *flag = find_flag(args->command, name, n);

    if (!flag) {
        char word[64], shown[72];
        snprintf(word, sizeof word, "%.*s", (int)(n < 60 ? n : 60), name);
        snprintf(shown, sizeof shown, "--%s", word);
        const char *next = *i + 1 < argc && argv[*i + 1][0] != '-' ? argv[*i + 1] : "";
        return unknown_flag(args->command, shown, word, name[n] == '=' ? name + n + 1 : next);
    }
    if (name[n] == '=' && !flag->value)
        return ls_fail(LS_EUSAGE, "--%s takes no value", flag->name);
    if (name[n] == '=')
        return give(args, flag, name + n + 1);
    if (!flag->value)
        return give(args, flag, NULL);
    if (*i + 1 >= argc)
        return no_value(flag);
    return give(args, flag, argv[++*i]);
}

/* -f, -fvalue, -f value, -abc. */
static ls_status parse_short(ls_args *args, int argc, const char *const *argv, int *i)
{
    ls_status st = LS_OK;

    for (const char *p = argv[*i] + 1; *p; p++) {
        const ls_flag *flag = find_letter(args->command, *p);
        if (!flag && (flag = find_old_letter(args->command, *p)) != NULL)
            fprintf(stderr, "lineshaft: note: write --%s: -%c is how many in other commands\n",
                    flag->name, *p);
        if (!flag) {
            char shown[4] = {'-', *p};
            return unknown_flag(args->command, shown, NULL, "");
        }
        if (flag->value && p[1])
            return give(args, flag, p + 1);
        if (flag->value)
            return *i + 1 < argc ? give(args, flag, argv[++*i]) : no_value(flag);
        LS_TRY(st, give(args, flag, NULL), out);
    }
out:
    return st;
}

/* A word that is no flag: the command, its sub-command, or an argument. */
static ls_status parse_word(ls_args *args, const ls_command *const *commands, const char *word)
{
    const ls_command *const *list = args->command ? args->command->subs : commands;

    if (list) {
        const ls_command *found = ls_args_find_command(list, word);
        if (!found)
            return ls_args_unknown_command(list, args->command, word);
        args->command = found;
        return LS_OK;
    }
    if (args->n_rest == (int)LS_COUNT(args->rest) - 1) {
        ls_fail(LS_EUSAGE, "more than %d arguments are given", args->n_rest);
        ls_err_hint("Quote a pattern such as '*.txt', so that lineshaft finds the files itself.");
        return LS_EUSAGE;
    }
    args->rest[args->n_rest++] = word;
    return LS_OK;
}

/* What follows is another program's command line, flags included. */
static bool starts_other(const ls_command *command)
{
    return command->arguments && strncmp(command->arguments, "-- ", 3) == 0;
}

ls_status ls_args_parse(ls_args *args, const ls_command *const *commands, int argc,
                        const char *const *argv)
{
    ls_status st = LS_OK;
    bool only_words = false;

    *args = (ls_args){.command = NULL};
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!only_words && strcmp(word, "--") == 0)
            only_words = true;
        else if (!only_words && strncmp(word, "--", 2) == 0)
            LS_TRY(st, parse_long(args, argc, argv, &i), out);
        else if (!only_words && word[0] == '-' && word[1])
            LS_TRY(st, parse_short(args, argc, argv, &i), out);
        else
            LS_TRY(st, parse_word(args, commands, word), out);
        only_words |= args->n_rest > 0 && starts_other(args->command);
    }
    const ls_command *c = args->command;
    if (!c || c->subs || ls_args_has(args, "help") || ls_args_has(args, "version"))
        return LS_OK;
    st = check_count(args);
out:
    return st;
}
