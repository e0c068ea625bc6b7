/* cmd_ckpt.h -- what the files of `lineshaft ckpt` share. */
#pragma once
#include "checkpoint/ckpt.h"
#include "cli/command.h"

/* Each in the file of its name. */
extern const ls_command ls_cmd_ckpt_diff, ls_cmd_ckpt_copy, ls_cmd_ckpt_prune, ls_cmd_ckpt_pin,
    ls_cmd_ckpt_key;

/* --key of the commands that read checkpoints. */
#define LS_CMD_CKPT_KEY_FLAG                                                                 \
    {                                                                                        \
        .name = "key", .value = "FILE",                                                      \
        .doc = "Accept only what is signed with this key (lineshaft ckpt key); without it, " \
               "signatures are not checked."                                                 \
    }
/* The store gets the key that --key names, if it was given. */
ls_status ls_cmd_ckpt_use_key(const ls_args *args, ls_ckpt_store *store);
/* Open the store of the path at args->rest[0], for reading, with that key. *step_out: the one that
 * the path or --step names, -1: none. The store is to be closed by ls_ckpt_close(), even after a
 * failure. */
ls_status ls_cmd_ckpt_open(const ls_args *args, ls_ckpt_store **store_out, int64_t *step_out);
/* A checkpoint named on the command line: args->rest[which], of the step that the path or `step`
 * says, else the newest. A zeroed or half-opened one may be closed. */
typedef struct ls_cmd_ckpt_named {
    ls_ckpt_store *store;
    ls_ckpt *ckpt;
} ls_cmd_ckpt_named;
ls_status ls_cmd_ckpt_named_open(ls_cmd_ckpt_named *named, const ls_args *args, int which,
                                 int64_t step);
void ls_cmd_ckpt_named_close(ls_cmd_ckpt_named *named);

/* What a signature is worth, for programs: "none", "not checked", "good"; and behind a line. */
const char *ls_cmd_ckpt_trust(ls_ckpt_trust trust);
const char *ls_cmd_ckpt_signed(ls_ckpt_trust trust);

/* "12.5 MiB"; out is returned. */
const char *ls_cmd_ckpt_size(int64_t bytes, char out[16]);
