/* cmd_man.c -- `lineshaft man`. */
#include "cli/cmds.h"

#include "cli/man.h"
#include "cli/term.h"

static ls_status run_man(const ls_args *args)
{
    ls_status st;
    ls_str text;

    (void)args;
    ls_str_init(&text);
    ls_man_page(&text);
    st = ls_term_print(&text);
    ls_str_release(&text);
    return st;
}

const ls_command ls_cmd_man = {
    .name = "man",
    .summary = "print the manual page",
    .about = "Prints the manual page lineshaft(1), with all commands and all keys of the run file.",
    .examples = "lineshaft man | man -l -  # read it\n"
                "lineshaft man > /usr/local/share/man/man1/lineshaft.1  # install it",
    .run = run_man,
};
