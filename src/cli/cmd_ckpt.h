/* cmd_ckpt.h -- what the files of `lineshaft ckpt` share. */
#pragma once
#include "checkpoint/ckpt.h"
#include "cli/command.h"

extern const ls_command ls_cmd_ckpt_diff, ls_cmd_ckpt_copy, ls_cmd_ckpt_prune; /* cmd_ckpt_two.c */
extern const ls_command ls_cmd_ckpt_pin;                                       /* cmd_ckpt_pin.c */

/* "12.5 MiB"; out is returned. */
const char *ls_cmd_ckpt_size(int64_t bytes, char out[16]);

/* The value of a flag that takes a whole number of at least `least`; `preset` where it was not
 * given. */
ls_status ls_cmd_ckpt_number(const ls_args *args, const char *flag, int64_t least, int64_t preset,
                             int64_t *value_out);
