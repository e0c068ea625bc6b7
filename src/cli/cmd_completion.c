/* cmd_completion.c -- `lineshaft completion`. */
#include "cli/cmds.h"

#include "cli/completion.h"
#include "cli/term.h"

static ls_status run_completion(const ls_args *args)
{
    ls_status st = LS_OK;
    ls_str text;

    ls_str_init(&text);
    LS_TRY(st, ls_completion_script(args->rest[0], &text), out);
    LS_TRY(st, ls_term_print(&text), out);
out:
    ls_str_release(&text);
    return st;
}

const ls_command ls_cmd_completion = {
    .name = "completion",
    .summary = "print a script that completes commands in a shell",
    .arguments = "bash|zsh|fish",
    .about = "Prints a script that teaches the shell to complete commands, flags, and the keys of "
             "the run file after --set.",
    .examples =
        "lineshaft completion bash > ~/.local/share/bash-completion/completions/lineshaft  # bash\n"
        "lineshaft completion zsh > ~/.zfunc/_lineshaft  # zsh, with ~/.zfunc in fpath\n"
        "lineshaft completion fish > ~/.config/fish/completions/lineshaft.fish  # fish",
    .run = run_completion,
};
