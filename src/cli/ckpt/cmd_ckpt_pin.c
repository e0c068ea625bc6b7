/* cmd_ckpt_pin.c -- `lineshaft ckpt pin`: a checkpoint that no retention rule removes.
 *
 * A pin is an empty file beside the manifest, so it may be set and taken away while a run writes.
 */
#include "cli/ckpt/cmd_ckpt.h"
#include "cli/term.h"

static ls_status run_pin(const ls_args *args, ls_str *out)
{
    bool pinned = !ls_args_has(args, "remove");
    ls_ckpt_store *store = NULL;
    int64_t step;
    ls_status st = LS_OK;

    LS_TRY(st, ls_cmd_ckpt_open(args, &store, &step), out);
    if (step < 0) {
        st = ls_fail(LS_EUSAGE, "which checkpoint is meant?");
        ls_err_hint("\"--step N\" names one; \"lineshaft ckpt list %s\" shows all.", args->rest[0]);
        goto out;
    }
    LS_TRY(st, ls_ckpt_pin(store, step, pinned), out);
    ls_str_printf(out, "step %lld is %s\n", (long long)step,
                  pinned ? "pinned: it stays until the pin is removed" : "not pinned any more");
out:
    ls_ckpt_close(store);
    return st;
}

static const ls_flag pin_flags[] = {
    {.name = "step", .value = "N", .doc = "The checkpoint of this step."},
    {.name = "remove", .doc = "Take the pin away."},
    LS_CMD_CKPT_KEY_FLAG,
    {.name = NULL},
};

const ls_command ls_cmd_ckpt_pin = {
    .name = "pin",
    .summary = "keep a checkpoint for good",
    .arguments = "DIR",
    .about = "A pinned checkpoint is not removed when it gets old, neither by the run, nor in its\n"
             "mirror, nor by \"ckpt prune\". It must look whole. May be used while a run writes.\n"
             "\n"
             "DIR is a run folder or its checkpoints folder, with --step, or one step-*.json file.",
    .examples = "lineshaft ckpt pin runs/demo --step 500           # stays\n"
                "lineshaft ckpt pin runs/demo --step 500 --remove  # may go again\n",
    .flags = pin_flags,
    .run = run_pin,
};
