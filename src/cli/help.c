/* help.c -- help pages from the tables.
 *
 * Nothing here knows a command: every page is a walk over the rows, so what exists is shown and
 * what is shown exists. */
#include "cli/help.h"

#include "cli/args.h"
#include "config/option.h"

enum { WIDEST = 96, INDENT = 2 };

const ls_help_page ls_help_pages[] = {
    {"run-file", "all keys of the run file"},
    {"environment", "variables that lineshaft reads"},
    {"exit-codes", "what the exit code of a command means"},
    {NULL, NULL},
};

const ls_help_exit ls_help_exits[] = {
    {LS_OK, "The work is done."},
    {LS_EFAIL, "A failure that has no exit code of its own; of `ckpt diff`: the checkpoints "
               "differ."},
    {LS_EUSAGE, "The command line or the run file makes no sense as written, or names a file that "
                "does not exist; nothing was created."},
    {LS_EIO, "The operating system refused: a file cannot be opened, read or written, the disk is "
             "full."},
    {LS_EDATA, "Data was read but is damaged or of the wrong kind."},
    {LS_ENOMEM, "There is not enough memory, or the run would need more than there is."},
    {LS_EBUSY, "Another process holds what is needed, such as the run folder."},
    {LS_ENUMERIC, "The loss or a gradient became NaN or Inf."},
    {LS_EDEADLINE, "Something took longer than its time limit."},
    {LS_EPEER, "Another process of the run failed first."},
    {LS_ENORETRY, "It failed repeatedly at the same point, so another start would fail as well. Do "
                  "not requeue the job before the cause is removed."},
    {LS_EUNSAVED,
     "Stopped on request, without saving: the time was too short, or it was asked twice. "
     "The previous checkpoint is whole; the same command goes on from it."},
    {LS_EINTR, "Stopped on request (Ctrl-C, SIGTERM, SIGUSR1); the state of the run is saved."},
};
const int ls_help_exit_count = (int)LS_COUNT(ls_help_exits);

const ls_help_page ls_help_variables[] = {
    {"LINESHAFT_BATCH_SEQUENCES=24", "the same as --set batch.sequences=24, and so for every key"},
    {"NO_COLOR", "when set to anything, no colour is used"},
    {"TERM=dumb", "the same"},
    {"XDG_CACHE_HOME",
     "folder for measurements, which go to lineshaft/ in it; ~/.cache unless set"},
    {"LINESHAFT_DISK=threads", "checkpoints are written and read by threads, not by io_uring"},
    {"LINESHAFT_TUNE=off", "links are not measured for collectives, and no measurement is kept"},
    {"LINESHAFT_CARRIER=tcp", "what moves data between machines: tcp or ucx; auto: UCX where every "
                              "rank has an RDMA device"},
    {"LINESHAFT_ZEROCOPY=off", "whether TCP sends large messages without a copy: on, off or auto"},
    {"LINESHAFT_BLACKBOX",
     "folder for the flight recorders (the last collectives of each rank) of a "
     "job that failed, or off; lineshaft-blackbox unless set"},
    {"LINESHAFT_STATE", "folder, on a disk of this machine, for its votes in elections among the "
                        "machines of a job; /var/tmp/lineshaft-UID unless set"},
    {"LINESHAFT_BF16", "how bf16 matrices are multiplied on a CPU: auto, off, avx512 or amx"},
    {"LINESHAFT_CUDA_PLUGIN", "path of the CUDA plugin, where it is not beside the program"},
    {"LINESHAFT_CUDA_SYNC=1",
     "wait after every row on a GPU: a failure then names the row that made it"},
    {"LINESHAFT_CUDA_ALGORITHMS=first", "do not time the algorithms of products on a GPU, as in "
                                        "ordered mode; race: always time them, and keep nothing"},
    {"LINESHAFT_NVML", "path of the NVIDIA driver's management library, which reports a GPU's "
                       "energy"},
    {"LINESHAFT_CUPTI",
     "path of NVIDIA's profiling library, which reports the kernels inside rows"},
    {"LINESHAFT_FAULT", "injects faults, in test builds only"},
    {"LINESHAFT_DRILL", "the fault that `lineshaft drill` injects into a run, as in "
                        "rank=1,step=7,at=backward,do=kill"},
    {NULL, NULL},
};

/* --- text ------------------------------------------------------------------------------------- */

static void spaces(ls_str *out, int n)
{
    ls_str_printf(out, "%*s", n > 0 ? n : 0, "");
}

/* One paragraph of words up to end; the first line continues at column. */
static void flow_words(const char *text, const char *end, int indent, int width, int column,
                       ls_str *out)
{
    bool first = true;

    while (text < end) {
        size_t n = strcspn(text, " \n");
        n = n > (size_t)(end - text) ? (size_t)(end - text) : n;
        if (n) {
            if (!first && column + 1 + (int)n > width) {
                ls_str_append_char(out, '\n');
                spaces(out, indent);
                column = indent;
                first = true;
            }
            if (!first) {
                ls_str_append_char(out, ' ');
                column++;
            }
            ls_str_append_bytes(out, text, n);
            column += (int)n;
            first = false;
        }
        text += n + (text + n < end);
    }
    ls_str_append_char(out, '\n');
}

void ls_help_flow(const char *text, int indent, int width, ls_str *out)
{
    while (*text) {
        if (*text == '\n') {
            ls_str_append_char(out, '\n');
            text++;
            continue;
        }
        const char *end = strchr(text, '\n');
        if (*text != ' ') /* a paragraph ends at a blank or an indented line */
            while (end && end[1] && end[1] != '\n' && end[1] != ' ')
                end = strchr(end + 1, '\n');
        end = end ? end : text + strlen(text);
        spaces(out, indent);
        if (*text == ' ') {
            ls_str_append_bytes(out, text, (size_t)(end - text));
            ls_str_append_char(out, '\n');
        } else {
            flow_words(text, end, indent, width, indent, out);
        }
        text = end + (*end == '\n');
    }
}

static int page_width(const ls_term *term)
{
    return (int)ls_max_i64(40, ls_min_i64(term->width, WIDEST));
}

static void heading(const ls_term *term, const char *text, ls_str *out)
{
    ls_str_printf(out, "\n%s%s:%s\n", ls_term_code(term, LS_TERM_BOLD), text,
                  ls_term_code(term, LS_TERM_PLAIN));
}

/* "  name      text that is
 *              flowed" */
static void entry(const ls_term *term, const char *name, int name_width, const char *text,
                  ls_str *out)
{
    int column = INDENT + name_width + 2;

    spaces(out, INDENT);
    ls_str_append(out, name);
    if ((int)strlen(name) > name_width) {
        ls_str_append_char(out, '\n');
        spaces(out, column);
    } else {
        spaces(out, name_width - (int)strlen(name) + 2);
    }
    flow_words(text, text + strlen(text), column, page_width(term), column, out);
}

/* --- commands --------------------------------------------------------------------------------- */

static void flag_name(const ls_flag *flag, ls_str *out)
{
    ls_str_clear(out);
    if (flag->letter)
        ls_str_printf(out, "-%c, --%s", flag->letter, flag->name);
    else
        ls_str_printf(out, "    --%s", flag->name);
    if (flag->value)
        ls_str_printf(out, " %s", flag->value);
}

static void put_flags(const ls_flag *flags, const ls_term *term, ls_str *out)
{
    int width = 0;
    ls_str name, doc;

    ls_str_init(&name);
    ls_str_init(&doc);
    for (const ls_flag *f = flags; f && f->name; f++) {
        flag_name(f, &name);
        width = (int)ls_max_i64(width, (int64_t)name.len);
    }
    width = (int)ls_min_i64(width, 30);
    for (const ls_flag *f = flags; f && f->name; f++) {
        flag_name(f, &name);
        ls_str_clear(&doc);
        ls_str_printf(&doc, "%s%s", f->doc, f->repeats && f->value ? " May be repeated." : "");
        entry(term, name.p, width, doc.p, out);
    }
    ls_str_release(&name);
    ls_str_release(&doc);
}

static void put_commands(const ls_command *const *list, const ls_term *term, ls_str *out)
{
    int width = 0;

    for (const ls_command *const *c = list; *c; c++)
        width = (int)ls_max_i64(width, (int64_t)strlen((*c)->name));
    for (const ls_command *const *c = list; *c; c++)
        entry(term, (*c)->name, width, (*c)->summary, out);
}

size_t ls_help_split_example(const char *line, const char **doc_out, size_t *doc_len_out)
{
    size_t n = strcspn(line, "\n"), command = n;

    *doc_out = "";
    *doc_len_out = 0;
    for (size_t i = 0; i + 2 < n && command == n; i++) {
        if (strncmp(line + i, " # ", 3) != 0)
            continue;
        command = i;
        *doc_out = line + i + 3;
        *doc_len_out = n - i - 3;
    }
    while (command && line[command - 1] == ' ')
        command--;
    return command;
}

/* Each example as its comment above the command, so that long commands need no alignment. */
static void put_examples(const char *text, const ls_term *term, ls_str *out)
{
    while (*text) {
        const char *doc;
        size_t doc_len, n = strcspn(text, "\n");
        size_t command = ls_help_split_example(text, &doc, &doc_len);
        if (doc_len)
            ls_str_printf(out, "  %s# %.*s%s\n", ls_term_code(term, LS_TERM_DIM), (int)doc_len, doc,
                          ls_term_code(term, LS_TERM_PLAIN));
        ls_str_printf(out, "  %.*s\n", (int)command, text);
        text += n + (text[n] == '\n');
    }
}

static void put_usage(const ls_command *command, ls_str *out)
{
    /* What stands behind "--" belongs to another program, flags included. */
    bool foreign = command->arguments && strncmp(command->arguments, "--", 2) == 0;
    const char *flags = command->flags && command->flags->name ? " [FLAGS]" : "";

    ls_args_full_name(command, out);
    if (command->subs)
        ls_str_append(out, " COMMAND");
    if (foreign)
        ls_str_append(out, flags);
    if (command->arguments)
        ls_str_printf(out, " %s", command->arguments);
    if (!foreign)
        ls_str_append(out, flags);
}

void ls_help_command(const ls_command *command, const ls_term *term, ls_str *out)
{
    ls_str_printf(out, "%sUsage:%s ", ls_term_code(term, LS_TERM_BOLD),
                  ls_term_code(term, LS_TERM_PLAIN));
    put_usage(command, out);
    ls_str_append(out, "\n\n");
    ls_help_flow(command->about ? command->about : command->summary, 0, page_width(term), out);
    if (command->subs) {
        heading(term, "Commands", out);
        put_commands(command->subs, term, out);
    }
    if (command->flags && command->flags->name) {
        heading(term, "Flags", out);
        put_flags(command->flags, term, out);
    }
    heading(term, "Flags of every command", out);
    put_flags(ls_args_globals, term, out);
    if (command->examples) {
        heading(term, "Examples", out);
        put_examples(command->examples, term, out);
    }
}

/* The commands of a list whose -n is this flag: "train, plan mesh". */
static void list_counting(const ls_command *const *list, const char *group, const char *name,
                          bool *first, ls_str *out)
{
    for (; *list; list++) {
        for (const ls_flag *f = (*list)->flags; f && f->name; f++)
            if (f->letter == 'n' && strcmp(f->name, name) == 0) {
                ls_str_printf(out, "%s%s%s%s", *first ? "" : ", ", group, *group ? " " : "",
                              (*list)->name);
                *first = false;
            }
        if ((*list)->subs)
            list_counting((*list)->subs, (*list)->name, name, first, out);
    }
}

/* -n always is how many; of what depends on the command. */
static void put_counting(const ls_term *term, ls_str *out)
{
    static const char *const names[] = {"ranks", "tokens", "count"};

    heading(term, "What -n N counts", out);
    for (size_t i = 0; i < LS_COUNT(names); i++) {
        char name[24];
        bool first = true;
        ls_str commands;
        ls_str_init(&commands);
        ls_str_append(&commands, "in ");
        list_counting(ls_commands, "", names[i], &first, &commands);
        snprintf(name, sizeof name, "--%s", names[i]);
        entry(term, name, 8, commands.p, out);
        ls_str_release(&commands);
    }
}

void ls_help_overview(const ls_term *term, ls_str *out)
{
    int width = 0;

    ls_str_append(out, "lineshaft " LS_VERSION " trains transformer language models from one run "
                       "file.\n\n");
    ls_str_printf(out, "%sUsage:%s lineshaft COMMAND [ARGUMENTS] [FLAGS]\n",
                  ls_term_code(term, LS_TERM_BOLD), ls_term_code(term, LS_TERM_PLAIN));
    heading(term, "Commands", out);
    put_commands(ls_commands, term, out);
    heading(term, "Flags of every command", out);
    put_flags(ls_args_globals, term, out);
    put_counting(term, out);
    heading(term, "More help", out);
    for (const ls_help_page *p = ls_help_pages; p->name; p++)
        width = (int)ls_max_i64(width, (int64_t)strlen(p->name));
    for (const ls_help_page *p = ls_help_pages; p->name; p++)
        ls_str_printf(out, "  lineshaft help %-*s  %s\n", width, p->name, p->doc);
    ls_str_printf(out, "  lineshaft help %-*s  one command, or one key such as train.lr\n", width,
                  "WORD");
}

/* --- topics ----------------------------------------------------------------------------------- */

static void put_option(const ls_option *row, const ls_term *term, ls_str *out)
{
    ls_str text;
    char variable[96];

    ls_str_init(&text);
    ls_option_describe(row, &text);
    if (row->unit)
        ls_str_printf(&text, " (%s)", row->unit);
    ls_str_printf(out, "%s%s%s\n", ls_term_code(term, LS_TERM_BOLD), row->key,
                  ls_term_code(term, LS_TERM_PLAIN));
    ls_help_flow(row->doc, INDENT, page_width(term), out);
    entry(term, "value", 8, text.p, out);
    entry(term, "default", 8,
          !row->preset   ? "must be given"
          : *row->preset ? row->preset
                         : "\"\"",
          out);
    if (row->when_auto)
        entry(term, "auto", 8, row->when_auto, out);
    if (row->limit)
        entry(term, "note", 8, row->limit, out);
    if (row->fixed != LS_OPTION_FREE)
        entry(term, "resume", 8,
              row->fixed == LS_OPTION_FIXED
                  ? "must keep its value when a run is resumed"
                  : "keeps its value when a run is resumed, unless train --override gives another",
              out);
    ls_option_variable(row, variable, sizeof variable);
    entry(term, "variable", 8, variable, out);
    ls_str_release(&text);
}

static void put_section(const char *section, const char *doc, const ls_term *term, ls_str *out)
{
    const char *title = *section ? section : "top level";

    ls_str_printf(out, "%s%s%s  ", ls_term_code(term, LS_TERM_BOLD), title,
                  ls_term_code(term, LS_TERM_PLAIN));
    flow_words(doc, doc + strlen(doc), INDENT, page_width(term), (int)strlen(title) + 2, out);
    for (int i = 0; i < ls_option_count; i++) {
        const ls_option *row = &ls_options[i];
        char name[96];
        if (!ls_option_in(row, section))
            continue;
        snprintf(name, sizeof name, "%s%s%s", row->key, row->preset ? "=" : "",
                 row->preset ? row->preset : "");
        entry(term, name, 26, row->doc, out);
    }
}

static void put_run_file(const ls_term *term, ls_str *out)
{
    ls_help_flow(
        "A run file is YAML. Only model and data must be given; each key is shown with its "
        "default. `lineshaft help KEY` says more about one.",
        0, page_width(term), out);
    ls_str_append_char(out, '\n');
    put_section("", "The run as a whole.", term, out);
    for (int i = 0; i < ls_option_section_count; i++) {
        ls_str_append_char(out, '\n');
        put_section(ls_option_sections[i].name, ls_option_sections[i].doc, term, out);
    }
}

static void put_environment(const ls_term *term, ls_str *out)
{
    ls_help_flow(
        "Every key of the run file can be set by a variable: upper case, LINESHAFT_ in "
        "front, an underscore for each dot. A variable replaces the value of the run file; "
        "--set replaces both.\n",
        0, page_width(term), out);
    for (const ls_help_page *v = ls_help_variables; v->name; v++)
        entry(term, v->name, 28, v->doc, out);
}

static void put_exit_codes(const ls_term *term, ls_str *out)
{
    for (int i = 0; i < ls_help_exit_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "%3d %s", ls_err_exit_code(ls_help_exits[i].status),
                 ls_err_name(ls_help_exits[i].status));
        entry(term, name, 15, ls_help_exits[i].doc, out);
    }
}

static ls_status help_for_command(const char *const *words, int n, const ls_term *term, ls_str *out)
{
    const ls_command *group = NULL;
    const ls_command *const *list = ls_commands;

    for (int i = 0; i < n; i++) {
        const ls_command *found = ls_args_find_command(list, words[i]);
        if (!found)
            return ls_args_unknown_command(list, group, words[i]);
        group = found;
        list = found->subs;
    }
    ls_help_command(group, term, out);
    return LS_OK;
}

ls_status ls_help_topic(const char *const *words, int n, const ls_term *term, ls_str *out)
{
    const ls_option_section *section = n == 1 ? ls_option_find_section(words[0]) : NULL;
    const ls_option *row = n == 1 ? ls_option_find(words[0]) : NULL;
    bool dotted = n == 1 && strchr(words[0], '.');

    if (n == 0) {
        ls_help_overview(term, out);
    } else if (strcmp(words[0], "run-file") == 0 && n == 1) {
        put_run_file(term, out);
    } else if (strcmp(words[0], "environment") == 0 && n == 1) {
        put_environment(term, out);
    } else if (strcmp(words[0], "exit-codes") == 0 && n == 1) {
        put_exit_codes(term, out);
    } else if (row) {
        put_option(row, term, out);
    } else if (section && !ls_args_find_command(ls_commands, words[0])) {
        put_section(section->name, section->doc, term, out);
    } else if (dotted) {
        ls_str hint;
        ls_fail(LS_EUSAGE, "there is no option \"%.60s\"", words[0]);
        ls_str_init(&hint);
        ls_option_suggest("", strchr(words[0], '.') + 1, &hint);
        ls_err_hint("%s", hint.p);
        ls_str_release(&hint);
        return LS_EUSAGE;
    } else {
        return help_for_command(words, n, term, out);
    }
    return LS_OK;
}

/* --- Markdown --------------------------------------------------------------------------------- */

static void markdown_cell(const char *text, ls_str *out)
{
    for (; *text; text++) {
        if (*text == '|' || *text == '*')
            ls_str_append_char(out, '\\');
        ls_str_append_char(out, *text);
    }
}

static void markdown_flags(const ls_flag *flags, ls_str *out)
{
    ls_str_append(out, "\n| flag | meaning |\n| --- | --- |\n");
    for (const ls_flag *f = flags; f->name; f++) {
        ls_str_append(out, "| `");
        if (f->letter)
            ls_str_printf(out, "-%c`, `", f->letter);
        ls_str_printf(out, "--%s", f->name);
        if (f->value) {
            ls_str_append_char(out, ' ');
            markdown_cell(f->value, out);
        }
        ls_str_append(out, "` | ");
        markdown_cell(f->doc, out);
        ls_str_append(out, f->repeats && f->value ? " May be repeated. |\n" : " |\n");
    }
}

static void markdown_command(const ls_command *command, ls_str *out)
{
    ls_str_append(out, "\n## ");
    ls_args_full_name(command, out);
    ls_str_append(out, "\n\n```\n");
    put_usage(command, out);
    ls_str_append(out, "\n```\n\n");
    ls_help_flow(command->about ? command->about : command->summary, 0, WIDEST, out);
    if (command->flags && command->flags->name)
        markdown_flags(command->flags, out);
    if (command->examples) {
        const ls_term plain = {.width = WIDEST};
        ls_str_append(out, "\n```sh\n");
        put_examples(command->examples, &plain, out);
        ls_str_append(out, "```\n");
    }
    for (const ls_command *const *s = command->subs; s && *s; s++)
        markdown_command(*s, out);
}

void ls_help_commands_markdown(ls_str *out)
{
    ls_str_append(out,
                  "# Commands\n\n<!-- made by `lineshaft help --markdown`; do not edit -->\n\n"
                  "Results go to standard output, everything else to standard error. Exit codes "
                  "are listed in\n[exit-codes.md](exit-codes.md).\n\n## Flags of every "
                  "command\n");
    markdown_flags(ls_args_globals, out);
    for (const ls_command *const *c = ls_commands; *c; c++)
        markdown_command(*c, out);
}

void ls_help_exit_codes_markdown(ls_str *out)
{
    ls_str_append(out,
                  "# Exit codes\n\n"
                  "<!-- made by `lineshaft help exit-codes --markdown`; do not edit -->\n\n"
                  "The exit code gives a script the kind of failure; the message on standard error "
                  "says what failed,\nwhere, and what to do.\n\n"
                  "| code | class | meaning |\n| --- | --- | --- |\n");
    for (int i = 0; i < ls_help_exit_count; i++)
        ls_str_printf(out, "| %d | %s | %s |\n", ls_err_exit_code(ls_help_exits[i].status),
                      ls_err_name(ls_help_exits[i].status), ls_help_exits[i].doc);
    ls_str_append(out,
                  "\nA process that a signal ended has 128 plus its number: 141 when the reader "
                  "of a pipe went away\n(`lineshaft help | head -n 1`), 134 for a bug in "
                  "lineshaft itself, which says where and should be\nreported.\n");
}
