/* cmd_man.c -- `lineshaft man`. */
#include "cli/cmds.h"

#include "cli/man.h"

static ls_status run_man(const ls_args *args, ls_str *out)
{
    (void)args;
    ls_man_page(out);
    return LS_OK;
}

const ls_command ls_cmd_man = {
    .name = "man",
    .summary = "print the manual page",
    .about = "Prints the manual page lineshaft(1), with all commands and all keys of the run file.",
    .examples = "lineshaft man | man -l -  # read it\n"
                "lineshaft man > /usr/local/share/man/man1/lineshaft.1  # install it",
    .run = run_man,
};
