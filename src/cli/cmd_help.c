/* cmd_help.c -- `lineshaft help`. */
#include "cli/cmds.h"

#include <unistd.h>
#include "cli/help.h"
#include "config/schema.h"

static ls_status markdown(const ls_args *args, ls_str *out)
{
    if (args->n_rest == 0) {
        ls_help_commands_markdown(out);
        return LS_OK;
    }
    if (args->n_rest == 1 && strcmp(args->rest[0], "exit-codes") == 0) {
        ls_help_exit_codes_markdown(out);
        return LS_OK;
    }
    if (args->n_rest == 1 && strcmp(args->rest[0], "run-file") == 0)
        return ls_schema_markdown(out);
    ls_fail(LS_EUSAGE, "there is no Markdown page for \"%.60s\"", args->rest[0]);
    ls_err_hint("Pages exist for all commands (no word), \"run-file\" and \"exit-codes\".");
    return LS_EUSAGE;
}

static ls_status run_help(const ls_args *args, ls_str *out)
{
    ls_term term;

    ls_term_init(&term, STDOUT_FILENO, args);
    return ls_args_has(args, "markdown") ? markdown(args, out)
                                         : ls_help_topic(args->rest, args->n_rest, &term, out);
}

static const ls_flag flags[] = {
    {"markdown", 0, NULL, false, "Print the page as Markdown, as in docs/reference."},
    {.name = NULL},
};
const ls_command ls_cmd_help = {
    .name = "help",
    .summary = "explain a command, a topic or a key of the run file",
    .arguments = "[TOPIC ...]",
    .about = "TOPIC is a command (config check), a key (train.lr) or section (batch) of the run "
             "file, or one of run-file, environment and exit-codes.",
    .examples = "lineshaft help config check  # a command\n"
                "lineshaft help batch.leaf  # a key of the run file\n"
                "lineshaft help run-file  # all of them",
    .flags = flags,
    .run = run_help,
};
