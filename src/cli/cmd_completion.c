/* cmd_completion.c -- `lineshaft completion`. */
#include "cli/cmds.h"

#include "cli/completion.h"

static ls_status run_completion(const ls_args *args, ls_str *out)
{
    return ls_completion_script(args->rest[0], out);
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
