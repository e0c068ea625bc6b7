/* completion.c -- completion scripts.
 *
 * bash and zsh share three functions in the language that both understand: which command the words
 * so far name (_lineshaft_path), what may come next (_lineshaft_next), and the values of a key or
 * flag (_lineshaft_values). Only the glue around them differs. Where files are wanted the answer is
 * empty and the shell falls back to file names. fish gets one `complete` line per word.
 *
 * The scripts hold the tables as they were when printed and never call lineshaft. */
#include "cli/completion.h"

#include "cli/args.h"
#include "cli/help.h"
#include "config/option.h"

/* --- words ------------------------------------------------------------------------------------ */

static void put_choices(const char *choices, ls_str *out)
{
    for (; *choices; choices++)
        ls_str_append_char(out, *choices == '|' ? ' ' : *choices);
}

static void put_names(const ls_command *const *list, ls_str *out)
{
    for (; *list; list++)
        ls_str_printf(out, "%s ", (*list)->name);
}

static void put_keys(const char *suffix, ls_str *out)
{
    for (int i = 0; i < ls_option_count; i++)
        ls_str_printf(out, "%s%s ", ls_options[i].key, suffix);
}

static void put_sections(ls_str *out)
{
    for (int i = 0; i < ls_option_section_count; i++)
        ls_str_printf(out, "%s ", ls_option_sections[i].name);
}

static void put_flag_names(const ls_flag *flags, ls_str *out)
{
    for (; flags && flags->name; flags++)
        ls_str_printf(out, "--%s ", flags->name);
}

/* The words that may follow a command when no flag is begun; empty: file names. */
static void put_arguments(const ls_command *command, ls_str *out)
{
    if (command->subs)
        put_names(command->subs, out);
    else if (command->arguments && strchr(command->arguments, '|'))
        put_choices(command->arguments, out);
    else if (command->arguments && strstr(command->arguments, "TOPIC")) {
        put_names(ls_commands, out);
        for (const ls_help_page *p = ls_help_pages; p->name; p++)
            ls_str_printf(out, "%s ", p->name);
        put_keys("", out);
    }
}

/* --- bash and zsh ----------------------------------------------------------------------------- */

typedef void (*visit_fn)(const ls_command *command, const char *path, ls_str *out);

/* Every command and sub-command with its path: "config", "config check". */
static void visit_all(visit_fn visit, ls_str *out)
{
    for (const ls_command *const *c = ls_commands; *c; c++) {
        visit(*c, (*c)->name, out);
        for (const ls_command *const *s = (*c)->subs; s && *s; s++) {
            char path[96];
            snprintf(path, sizeof path, "%s %s", (*c)->name, (*s)->name);
            visit(*s, path, out);
        }
    }
}

static void path_case(const ls_command *command, const char *path, ls_str *out)
{
    (void)command;
    ls_str_printf(out, "%s\"%s\"", out->p[out->len - 1] == '(' ? "" : "|", path);
}

/* Flags whose value is the next word. */
static void value_flags(const ls_flag *flags, const char *path, ls_str *out)
{
    for (; flags && flags->name; flags++) {
        if (!flags->value)
            continue;
        ls_str_printf(out, "|\"%s:--%s\"", path, flags->name);
        if (flags->letter)
            ls_str_printf(out, "|\"%s:-%c\"", path, flags->letter);
    }
}

static void value_case(const ls_command *command, const char *path, ls_str *out)
{
    value_flags(command->flags, path, out);
    value_flags(ls_args_globals, path, out);
}

static void put_path_function(ls_str *out)
{
    ls_str_append(out, "_lineshaft_takes_value() {\n"
                       "    case \"$1:$2\" in\n"
                       "        \":--color\"");
    visit_all(value_case, out);
    ls_str_append(out, ") return 0 ;;\n"
                       "    esac\n"
                       "    return 1\n"
                       "}\n"
                       "\n"
                       "# Sets ls_path (\"config check\") and ls_count (arguments so far).\n"
                       "_lineshaft_path() {\n"
                       "    ls_path='' ls_count=0\n"
                       "    while [ $# -gt 0 ]; do\n"
                       "        case $1 in\n"
                       "            -*)\n"
                       "                if _lineshaft_takes_value \"$ls_path\" \"$1\"; then\n"
                       "                    [ \"${2-}\" = = ] && shift\n"
                       "                    [ $# -gt 1 ] && shift\n"
                       "                fi ;;\n"
                       "            =) [ $# -gt 1 ] && shift ;;\n"
                       "            *)\n"
                       "                case \"${ls_path:+$ls_path }$1\" in\n"
                       "                    (");
    visit_all(path_case, out);
    ls_str_append(out, ") ls_path=\"${ls_path:+$ls_path }$1\" ;;\n"
                       "                    (*) ls_count=$((ls_count + 1)) ;;\n"
                       "                esac ;;\n"
                       "        esac\n"
                       "        shift\n"
                       "    done\n"
                       "}\n\n");
}

static void put_flag_values(const ls_flag *flags, ls_str *out)
{
    for (; flags && flags->name; flags++) {
        if (!flags->value || !strchr(flags->value, '|'))
            continue;
        ls_str_printf(out, "        --%s) echo \"", flags->name);
        put_choices(flags->value, out);
        ls_str_append(out, "\" ;;\n");
    }
}

static void command_flag_values(const ls_command *command, const char *path, ls_str *out)
{
    (void)path;
    put_flag_values(command->flags, out);
}

static void put_values_function(ls_str *out)
{
    ls_str_append(out, "# The values of a flag or of a key of the run file.\n"
                       "_lineshaft_values() {\n"
                       "    case $1 in\n");
    put_flag_values(ls_args_globals, out);
    visit_all(command_flag_values, out);
    for (int i = 0; i < ls_option_count; i++) {
        const ls_option *row = &ls_options[i];
        bool is_bool = row->type == LS_OPTION_BOOL;
        if (!row->names[0] && !row->when_auto && !is_bool)
            continue;
        ls_str_printf(out, "        %s) echo \"%s", row->key, is_bool ? "true false" : "");
        for (int k = 0; row->names[k]; k++)
            ls_str_printf(out, "%s ", row->names[k]);
        ls_str_printf(out, "%s\" ;;\n", row->when_auto ? "auto" : "");
    }
    ls_str_append(out, "    esac\n}\n\n");
}

/* Flags that want KEY=VALUE. */
static void put_key_flags(const ls_flag *flags, const char *path, ls_str *out)
{
    for (; flags && flags->name; flags++) {
        if (!flags->value || strcmp(flags->value, "KEY=VALUE") != 0)
            continue;
        ls_str_printf(out, "%s\"%s:--%s\"", out->p[out->len - 1] == '(' ? "" : "|", path,
                      flags->name);
        if (flags->letter)
            ls_str_printf(out, "|\"%s:-%c\"", path, flags->letter);
    }
}

static void key_case(const ls_command *command, const char *path, ls_str *out)
{
    put_key_flags(command->flags, path, out);
}

static void next_case(const ls_command *command, const char *path, ls_str *out)
{
    ls_str_printf(out, "        \"%s:-\"*) echo \"", path);
    put_flag_names(command->flags, out);
    put_flag_names(ls_args_globals, out);
    ls_str_append(out, "\" ;;\n");
    if (command->arguments && strstr(command->arguments, "KEY")) {
        ls_str_printf(out, "        \"%s:\"*) [ \"$4\" -gt 0 ] && echo \"", path);
        put_keys("", out);
        put_sections(out);
        ls_str_append(out, "\" ;;\n");
        return;
    }
    ls_str_printf(out, "        \"%s:\"*) echo \"", path);
    put_arguments(command, out);
    ls_str_append(out, "\" ;;\n");
}

static void put_next_function(ls_str *out)
{
    ls_str_append(out, "# _lineshaft_next PATH PREVIOUS CURRENT COUNT: words that may come next.\n"
                       "_lineshaft_next() {\n"
                       "    case \"$1:$2\" in\n"
                       "        (");
    visit_all(key_case, out);
    ls_str_append(out, ") echo \"");
    put_keys("=", out);
    ls_str_append(out, "\"; return ;;\n"
                       "    esac\n"
                       "    if _lineshaft_takes_value \"$1\" \"$2\"; then\n"
                       "        _lineshaft_values \"$2\"\n"
                       "        return\n"
                       "    fi\n"
                       "    case \"$1:$3\" in\n");
    ls_str_append(out, "        \":-\"*) echo \"");
    put_flag_names(ls_args_globals, out);
    ls_str_append(out, "\" ;;\n        \":\"*) echo \"");
    put_names(ls_commands, out);
    ls_str_append(out, "\" ;;\n");
    visit_all(next_case, out);
    ls_str_append(out, "    esac\n}\n\n");
}

static void put_shared(ls_str *out)
{
    put_path_function(out);
    put_values_function(out);
    put_next_function(out);
}

static void bash_script(ls_str *out)
{
    ls_str_append(out, "# bash completion for lineshaft; made by `lineshaft completion bash`.\n\n");
    put_shared(out);
    ls_str_append(out,
                  "_lineshaft() {\n"
                  "    local cur=${COMP_WORDS[COMP_CWORD]} at=$COMP_CWORD ls_path ls_count words\n"
                  "    COMPREPLY=()\n"
                  "    # bash cuts key=value at the sign: the name stands before it.\n"
                  "    if [ \"$cur\" = = ]; then cur='' at=$((at + 1)); fi\n"
                  "    if [ \"${COMP_WORDS[at - 1]}\" = = ]; then\n"
                  "        words=$(_lineshaft_values \"${COMP_WORDS[at - 2]}\")\n"
                  "    else\n"
                  "        _lineshaft_path \"${COMP_WORDS[@]:1:at - 1}\"\n"
                  "        words=$(_lineshaft_next \"$ls_path\" \"${COMP_WORDS[at - 1]}\" \"$cur\" "
                  "\"$ls_count\")\n"
                  "    fi\n"
                  "    # shellcheck disable=SC2207\n"
                  "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                  "    case ${COMPREPLY[0]-} in *=) compopt -o nospace 2>/dev/null ;; esac\n"
                  "    return 0\n"
                  "}\n"
                  "complete -o default -F _lineshaft lineshaft\n");
}

static void zsh_script(ls_str *out)
{
    ls_str_append(out, "#compdef lineshaft\n"
                       "# zsh completion for lineshaft; made by `lineshaft completion zsh`.\n\n");
    put_shared(out);
    ls_str_append(out,
                  "_lineshaft() {\n"
                  "    local ls_path ls_count found key cur=${words[CURRENT]}\n"
                  "    if [[ $cur == *=* ]]; then\n"
                  "        key=${cur%%=*}\n"
                  "        compset -P '*='\n"
                  "        found=$(_lineshaft_values \"$key\")\n"
                  "    else\n"
                  "        _lineshaft_path \"${(@)words[2,CURRENT-1]}\"\n"
                  "        found=$(_lineshaft_next \"$ls_path\" \"${words[CURRENT-1]}\" \"$cur\" "
                  "\"$ls_count\")\n"
                  "    fi\n"
                  "    if [[ -z $found ]]; then\n"
                  "        _files\n"
                  "    elif [[ $found == *=* ]]; then\n"
                  "        compadd -S '' -- ${=found}\n"
                  "    else\n"
                  "        compadd -- ${=found}\n"
                  "    fi\n"
                  "}\n"
                  "if [[ ${funcstack[1]-} == _lineshaft ]]; then\n"
                  "    _lineshaft \"$@\"\n"
                  "else\n"
                  "    compdef _lineshaft lineshaft\n"
                  "fi\n");
}

/* --- fish ------------------------------------------------------------------------------------- */

/* text inside single quotes. */
static void fish_quote(const char *text, ls_str *out)
{
    ls_str_append_char(out, '\'');
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\')
            ls_str_append_char(out, '\\');
        ls_str_append_char(out, *text);
    }
    ls_str_append_char(out, '\'');
}

static void fish_flags(const ls_flag *flags, const char *condition, ls_str *out)
{
    for (; flags && flags->name; flags++) {
        ls_str_printf(out, "complete -c lineshaft%s -l %s", condition, flags->name);
        if (flags->letter)
            ls_str_printf(out, " -s %c", flags->letter);
        if (flags->value && strcmp(flags->value, "KEY=VALUE") == 0) {
            ls_str_append(out, " -x -a '");
            put_keys("=", out);
            ls_str_append_char(out, '\'');
        } else if (flags->value && strchr(flags->value, '|')) {
            ls_str_append(out, " -x -a '");
            put_choices(flags->value, out);
            ls_str_append_char(out, '\'');
        } else if (flags->value) {
            ls_str_append(out, " -r");
        }
        ls_str_append(out, " -d ");
        fish_quote(flags->doc, out);
        ls_str_append_char(out, '\n');
    }
}

/* A command, shown when condition holds; its flags and arguments once it has been typed. */
static void fish_command(const ls_command *command, const char *shown_when, const char *typed_when,
                         ls_str *out)
{
    ls_str words;

    ls_str_init(&words);
    ls_str_printf(out, "complete -c lineshaft -f%s -a %s -d ", shown_when, command->name);
    fish_quote(command->summary, out);
    ls_str_append_char(out, '\n');
    fish_flags(command->flags, typed_when, out);
    if (!command->subs)
        put_arguments(command, &words);
    if (words.len)
        ls_str_printf(out, "complete -c lineshaft -f%s -a '%s'\n", typed_when, words.p);
    ls_str_release(&words);
}

static void fish_script(ls_str *out)
{
    ls_str_append(out, "# fish completion for lineshaft; made by `lineshaft completion fish`.\n");
    fish_flags(ls_args_globals, "", out);
    for (const ls_command *const *c = ls_commands; *c; c++) {
        ls_str names, when, typed;
        ls_str_init(&names);
        ls_str_init(&when);
        ls_str_init(&typed);
        ls_str_printf(&typed, " -n '__fish_seen_subcommand_from %s'", (*c)->name);
        fish_command(*c, " -n __fish_use_subcommand", typed.p, out);
        if ((*c)->subs)
            put_names((*c)->subs, &names);
        ls_str_printf(
            &when, " -n '__fish_seen_subcommand_from %s; and not __fish_seen_subcommand_from %s'",
            (*c)->name, names.p);
        for (const ls_command *const *s = (*c)->subs; s && *s; s++) {
            ls_str_clear(&typed);
            ls_str_printf(
                &typed, " -n '__fish_seen_subcommand_from %s; and __fish_seen_subcommand_from %s'",
                (*c)->name, (*s)->name);
            fish_command(*s, when.p, typed.p, out);
        }
        ls_str_release(&names);
        ls_str_release(&when);
        ls_str_release(&typed);
    }
}

ls_status ls_completion_script(const char *shell, ls_str *out)
{
    static const struct {
        const char *shell;
        void (*write)(ls_str *out);
    } writers[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};

    for (size_t i = 0; i < LS_COUNT(writers); i++) {
        if (strcmp(writers[i].shell, shell) == 0) {
            writers[i].write(out);
            return ls_str_status(out);
        }
    }
    ls_fail(LS_EUSAGE, "there is no completion for \"%.60s\"", shell);
    ls_err_hint("Choose one of bash, zsh and fish.");
    return LS_EUSAGE;
}
