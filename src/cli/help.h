/* help.h -- help texts, all made from the command table and the option table. */
#pragma once
#include "cli/term.h"

/* The first page: what lineshaft is, its commands, its topics. */
void ls_help_overview(const ls_term *term, ls_str *out);

/* One command: usage, text, flags, examples. */
void ls_help_command(const ls_command *command, const ls_term *term, ls_str *out);

/* `help WORD ...`: a command ("config check"), a topic ("run-file"), or an option ("train.lr",
 * "train"). No words: the overview. LS_EUSAGE: there is no such topic. */
ls_status ls_help_topic(const char *const *words, int n, const ls_term *term, ls_str *out);

/* The pages of docs/reference: commands.md, exit-codes.md. */
void ls_help_commands_markdown(ls_str *out);
void ls_help_exit_codes_markdown(ls_str *out);

/* A topic that is no command. */
typedef struct ls_help_page {
    const char *name;
    const char *doc; /* one line, lower case, no full stop */
} ls_help_page;
extern const ls_help_page ls_help_pages[]; /* ends with a row whose name is NULL */

/* What the environment decides, in the same form: a variable, often with a value, and what it does.
 */
extern const ls_help_page ls_help_variables[];

/* What each exit code means, in the order of the codes. */
typedef struct ls_help_exit {
    ls_status status;
    const char *doc; /* a sentence */
} ls_help_exit;
extern const ls_help_exit ls_help_exits[];
extern const int ls_help_exit_count;

/* text flowed into lines of width columns, each after indent spaces. A blank line parts
 * paragraphs; lines that begin with a space are kept as they are. */
void ls_help_flow(const char *text, int indent, int width, ls_str *out);

/* The two parts of a line of examples: its command (the length is returned) and what it does (""
 * when it does not say). */
size_t ls_help_split_example(const char *line, const char **doc_out, size_t *doc_len_out);
