/* cmd_ckpt_key.c -- `lineshaft ckpt key`: make a key that signs checkpoints; and what the commands
 * that read some do with one. */
#include "cli/ckpt/cmd_ckpt.h"
#include "cli/term.h"

#include "net/secret.h"

ls_status ls_cmd_ckpt_use_key(const ls_args *args, ls_ckpt_store *store)
{
    const char *key = ls_args_value(args, "key");

    return key ? ls_ckpt_use_key(store, key, false) : LS_OK;
}

const char *ls_cmd_ckpt_trust(ls_ckpt_trust trust)
{
    static const char *const words[] = {[LS_CKPT_UNSIGNED] = "none",
                                        [LS_CKPT_UNCHECKED] = "not checked",
                                        [LS_CKPT_PROVED] = "good"};

    return words[trust];
}

const char *ls_cmd_ckpt_signed(ls_ckpt_trust trust)
{
    static const char *const words[] = {[LS_CKPT_UNSIGNED] = "",
                                        [LS_CKPT_UNCHECKED] = ", signed (not checked)",
                                        [LS_CKPT_PROVED] = ", signed"};

    return words[trust];
}

static ls_status run_key(const ls_args *args, ls_str *out)
{
    ls_status st = ls_secret_make(args->rest[0]);

    ls_str_printf(out, "made the key %s: keep a copy in a safe place, apart from checkpoints\n",
                  args->rest[0]);
    return st;
}

const ls_command ls_cmd_ckpt_key = {
    .name = "key",
    .summary = "make a key that signs checkpoints",
    .arguments = "FILE",
    .about = "Writes 32 random bytes to FILE, which must not exist, readable for its owner alone.\n"
             "A run with checkpoint.key: FILE signs its checkpoints and goes on only with signed\n"
             "ones; other commands that read checkpoints take --key FILE.\n"
             "\n"
             "Anyone who has the key can sign. Keep it where users who can write to the\n"
             "checkpoints cannot read it.",
    .examples = "lineshaft ckpt key ~/demo.key  # once for a run\n",
    .run = run_key,
};
