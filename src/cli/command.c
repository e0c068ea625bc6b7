/* command.c -- the list of commands. A command is a file cmd_<name>.c and one line here. */
#include "cli/cmds.h"

const ls_command *const ls_commands[] = {
    &ls_cmd_train,      /* run file in, model out */
    &ls_cmd_generate,   /* model in, text out */
    &ls_cmd_import,     /* models of others in */
    &ls_cmd_export,     /* and ours out */
    &ls_cmd_merge,      /* an adapter and its base into one */
    &ls_cmd_quantize,   /* the same in fewer bits */
    &ls_cmd_eval,       /* how good it is */
    &ls_cmd_data,       /* text and tokens */
    &ls_cmd_ckpt,       /* what was saved */
    &ls_cmd_runs,       /* how runs went */
    &ls_cmd_plot,       /* as a picture */
    &ls_cmd_page,       /* in a browser */
    &ls_cmd_config,     /* run files */
    &ls_cmd_plan,       /* what a run would do */
    &ls_cmd_doctor,     /* what this machine is */
    &ls_cmd_bench,      /* what it can do */
    &ls_cmd_launch,     /* many processes */
    &ls_cmd_agent,      /* on other machines */
    &ls_cmd_lab,        /* many hosts, on one */
    &ls_cmd_drill,      /* what a run survives */
    &ls_cmd_completion, /* for shells */
    &ls_cmd_man,        /* for man(1) */
    &ls_cmd_help,       /* all of it, explained */
    &ls_cmd_version,    /* for bug reports */
    NULL,
};
