/* cmd_ckpt_prune.c -- `lineshaft ckpt prune`: old checkpoints removed.
 *
 * The command holds the store while it removes anything. While a run writes there, prune is
 * refused, so it never disturbs the run. */
#include "cli/ckpt/cmd_ckpt.h"

#include "cli/term.h"

static void put_removed(const char *path, int64_t bytes, void *context)
{
    char size[16];

    ls_str_printf(context, "%10s  %s\n", ls_cmd_ckpt_size(bytes, size), path);
}

static ls_status run_prune(const ls_args *args, ls_str *out)
{
    ls_ckpt_pruning how = {.dry = ls_args_has(args, "dry-run"), .tell = put_removed};
    ls_ckpt_store *store = NULL;
    int64_t freed = 0, step;
    char size[16];
    ls_status st = LS_OK;
    ls_str dir;

    ls_str_init(&dir);
    how.context = out;
    if (!ls_args_has(args, "keep")) {
        st = ls_fail(LS_EUSAGE, "how many checkpoints are to be kept?");
        ls_err_hint("\"--keep 2\" keeps the newest two; with --dry-run nothing is removed.");
        goto out;
    }
    LS_TRY(st, ls_args_number(args, "keep", 1, 1, INT64_MAX, &how.keep), out);
    LS_TRY(st, ls_args_number(args, "keep-every", 0, 1, INT64_MAX, &how.keep_every), out);
    LS_TRY(st, ls_ckpt_locate(args->rest[0], &dir, &step), out);
    if (step != -1) {
        st = ls_fail(LS_EUSAGE, "\"%s\" is one checkpoint; prune takes a folder of them",
                     args->rest[0]);
        goto out;
    }
    LS_TRY(st, ls_ckpt_open(&store, dir.p, false), out);
    LS_TRY(st, ls_cmd_ckpt_use_key(args, store), out);
    LS_TRY(st, ls_ckpt_prune_by(store, &how, &freed), out);
    ls_str_printf(out, "%s %s\n", ls_cmd_ckpt_size(freed, size),
                  how.dry ? "would be freed" : "freed");
out:
    ls_ckpt_close(store);
    ls_str_release(&dir);
    return st;
}

static const ls_flag prune_flags[] = {
    {.name = "keep", .value = "N", .doc = "Keep the newest N checkpoints that look whole."},
    {.name = "keep-every",
     .value = "N",
     .doc = "Keep those of steps that are multiples of N, too."},
    {.name = "dry-run", .doc = "Show what would be removed; remove nothing."},
    LS_CMD_CKPT_KEY_FLAG,
    {.name = NULL},
};

const ls_command ls_cmd_ckpt_prune = {
    .name = "prune",
    .summary = "remove old checkpoints and what no checkpoint needs",
    .arguments = "DIR",
    .about =
        "Keeps the newest N checkpoints that look whole, and removes older ones, then objects\n"
        "that no manifest names. The last usable checkpoint is never removed, nor a damaged\n"
        "one that is newer, nor one that is pinned (\"ckpt pin\"), nor, with --key, one that is\n"
        "not signed with it (and does not count among the N). Refused while a run writes\n"
        "to the folder; with --dry-run it only shows what would go, and may be used at any\n"
        "time.\n"
        "\n"
        "DIR is a run folder or its checkpoints folder.",
    .examples = "lineshaft ckpt prune runs/demo --keep 1 --dry-run  # what would go\n"
                "lineshaft ckpt prune runs/demo --keep 1            # only the newest stays\n"
                "lineshaft ckpt prune runs/demo --keep 2 --keep-every 1000  # and each 1000th\n",
    .flags = prune_flags,
    .run = run_prune,
};
