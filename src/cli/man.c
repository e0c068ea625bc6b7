/* man.c -- lineshaft(1) in the man(7) macros.
 *
 * Everything comes from the command table, the option table and the table of exit codes. Text is
 * escaped so that no word of a table can become a request: a backslash is \e, a hyphen that a user
 * would type is \-, and a line never begins with a dot or a quote. */
#include "cli/man.h"

#include "cli/args.h"
#include "cli/help.h"
#include "config/option.h"

static void put_text(const char *text, size_t len, ls_str *out)
{
    for (size_t i = 0; i < len; i++) {
        bool starts = out->len == 0 || out->p[out->len - 1] == '\n';
        if (starts && (text[i] == '.' || text[i] == '\''))
            ls_str_append(out, "\\&");
        if (text[i] == '\\')
            ls_str_append(out, "\\e");
        else if (text[i] == '-')
            ls_str_append(out, "\\-");
        else if (text[i] == '`')
            ls_str_append(out, "\\(ga");
        else if (text[i] == '~')
            ls_str_append(out, "\\(ti");
        else
            ls_str_append_char(out, text[i]);
    }
}

static void put_line(const char *text, ls_str *out)
{
    put_text(text, strlen(text), out);
    ls_str_append_char(out, '\n');
}

/* Paragraphs as in ls_help_flow(): blank lines part them, indented lines are kept. */
static void put_about(const char *text, ls_str *out)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (n == 0) {
            ls_str_append(out, ".PP\n");
        } else if (*text == ' ') {
            ls_str_append(out, ".EX\n");
            put_text(text, n, out);
            ls_str_append(out, "\n.EE\n");
        } else {
            put_text(text, n, out);
            ls_str_append_char(out, '\n');
        }
        text += n + (text[n] == '\n');
    }
}

static void put_flags(const ls_flag *flags, ls_str *out)
{
    for (; flags && flags->name; flags++) {
        ls_str_append(out, ".TP\n\\fB");
        if (flags->letter)
            ls_str_printf(out, "\\-%c\\fR, \\fB", flags->letter);
        ls_str_append(out, "\\-\\-");
        put_text(flags->name, strlen(flags->name), out);
        ls_str_append(out, "\\fR");
        if (flags->value) {
            ls_str_append(out, " \\fI");
            put_text(flags->value, strlen(flags->value), out);
            ls_str_append(out, "\\fR");
        }
        ls_str_append_char(out, '\n');
        put_line(flags->doc, out);
        if (flags->repeats && flags->value)
            put_line("May be repeated.", out);
    }
}

static void put_examples(const char *text, ls_str *out)
{
    while (*text) {
        const char *doc;
        size_t doc_len, n = strcspn(text, "\n");
        size_t command = ls_help_split_example(text, &doc, &doc_len);
        ls_str_append(out, ".TP\n\\fB");
        put_text(text, command, out);
        ls_str_append(out, "\\fR\n");
        put_text(doc, doc_len, out);
        ls_str_append(out, doc_len ? "\n" : "\\&\n");
        text += n + (text[n] == '\n');
    }
}

static void put_command(const ls_command *command, ls_str *out)
{
    ls_str full;

    ls_str_init(&full);
    ls_args_full_name(command, &full);
    if (!command->subs) {
        ls_str_append(out, ".SS \"");
        put_text(full.p, full.len, out);
        if (command->arguments) {
            ls_str_append_char(out, ' ');
            put_text(command->arguments, strlen(command->arguments), out);
        }
        ls_str_append(out, "\"\n");
        put_about(command->about ? command->about : command->summary, out);
        put_flags(command->flags, out);
    }
    ls_str_release(&full);
    for (const ls_command *const *s = command->subs; s && *s; s++)
        put_command(*s, out);
}

static void put_options(const char *section, ls_str *out)
{
    ls_str text;

    ls_str_init(&text);
    for (int i = 0; i < ls_option_count; i++) {
        const ls_option *row = &ls_options[i];
        if (!ls_option_in(row, section))
            continue;
        ls_str_printf(out, ".TP\n\\fB%s\\fR: \\fI", row->key);
        ls_str_clear(&text);
        ls_option_describe(row, &text);
        put_text(text.p, text.len, out);
        ls_str_append(out, "\\fR\n");
        ls_str_clear(&text);
        ls_str_append(&text, row->doc);
        if (row->preset)
            ls_str_printf(&text, " Default: %s.", *row->preset ? row->preset : "empty");
        else
            ls_str_append(&text, " Must be given.");
        if (row->when_auto)
            ls_str_printf(&text, " auto: %s.", row->when_auto);
        put_line(text.p, out);
    }
    ls_str_release(&text);
}

static void put_all_examples(ls_str *out)
{
    ls_str_append(out, ".SH EXAMPLES\n");
    for (const ls_command *const *c = ls_commands; *c; c++) {
        if ((*c)->examples)
            put_examples((*c)->examples, out);
        for (const ls_command *const *s = (*c)->subs; s && *s; s++)
            if ((*s)->examples)
                put_examples((*s)->examples, out);
    }
}

void ls_man_page(ls_str *out)
{
    ls_str_append(out, ".TH LINESHAFT 1 \"\" \"lineshaft " LS_VERSION "\" \"User Commands\"\n"
                       ".SH NAME\n"
                       "lineshaft \\- train transformer language models from one run file\n"
                       ".SH SYNOPSIS\n"
                       ".B lineshaft\n"
                       ".I COMMAND\n"
                       "[\\fIARGUMENTS\\fR] [\\fIFLAGS\\fR]\n"
                       ".SH DESCRIPTION\n"
                       "One program and one run file train a model, look at its data and "
                       "checkpoints, and let it write.\n"
                       ".SH COMMANDS\n");
    for (const ls_command *const *c = ls_commands; *c; c++)
        put_command(*c, out);
    ls_str_append(out, ".SH FLAGS OF EVERY COMMAND\n");
    put_flags(ls_args_globals, out);
    ls_str_append(out, ".SH RUN FILE\n"
                       "A YAML mapping of these keys; only model and data must be given.\n");
    put_options("", out);
    for (int i = 0; i < ls_option_section_count; i++) {
        ls_str_printf(out, ".SS %s\n", ls_option_sections[i].name);
        put_line(ls_option_sections[i].doc, out);
        put_options(ls_option_sections[i].name, out);
    }
    ls_str_append(out, ".SH ENVIRONMENT\n"
                       ".TP\n\\fBLINESHAFT_\\fIKEY\\fR\n"
                       "A key of the run file in upper case with underscores for dots, such as "
                       "LINESHAFT_BATCH_SEQUENCES. It replaces the value of the run file; "
                       "\\-\\-set replaces both.\n");
    for (const ls_help_page *v = ls_help_variables + 1; v->name; v++) {
        ls_str_printf(out, ".TP\n\\fB%s\\fR\n", v->name);
        put_line(v->doc, out);
    }
    ls_str_append(out, ".SH EXIT STATUS\n");
    for (int i = 0; i < ls_help_exit_count; i++) {
        ls_str_printf(out, ".TP\n\\fB%d\\fR (%s)\n", ls_err_exit_code(ls_help_exits[i].status),
                      ls_err_name(ls_help_exits[i].status));
        put_line(ls_help_exits[i].doc, out);
    }
    put_all_examples(out);
}
