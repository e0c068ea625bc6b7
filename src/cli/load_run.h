/* load_run.h -- loading a run for a command, with the flags that all such commands share. */
#pragma once
#include "cli/command.h"
#include "config/run.h"

/* Row of a flag table; ls_load_run_read() reads it. */
#define LS_LOAD_RUN_SET_FLAG                                                                       \
    {                                                                                              \
        "set", 's', "KEY=VALUE", true, "Replace one setting of the run file, as in train.lr=1e-4." \
    }

/* The run file of the demonstration. */
extern const char ls_load_run_demo[];

/* The run at path (NULL: the demonstration) with the command's --set flags, and --override where it has
 * that; see ls_runfile_load(). */
ls_status ls_load_run_read(ls_run *run, const ls_args *args, const char *path);

/* What `lineshaft train` finds out about a run before it makes anything: the tokenizer and the chat
 * template can be read, the vocabulary fits, and every name in train.freeze and lora.targets fits
 * something. Warns of a tokenizer that is not the imported model's own. Nothing is created. */
ls_status ls_load_run_prove(const ls_run *run);
