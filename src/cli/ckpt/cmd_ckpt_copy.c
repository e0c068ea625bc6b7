/* cmd_ckpt_copy.c -- `lineshaft ckpt copy`: a checkpoint brought to another store.
 *
 * The command holds the store that it writes to. While a run writes there, the copy is refused, so
 * it never disturbs the run. */
#include "cli/ckpt/cmd_ckpt.h"

#include "base/file.h"
#include "base/json.h"
#include "cli/term.h"

/* The store that a path means, made if it is not there; a run folder's own is in "checkpoints". */
static ls_status open_target(const char *path, ls_ckpt_store **to_out)
{
    ls_status st = LS_OK;
    ls_str dir;
    char inner[LS_CKPT_PATH];

    ls_str_init(&dir);
    if ((size_t)snprintf(inner, sizeof inner, "%s/checkpoints", path) >= sizeof inner) {
        st = ls_fail(LS_EIO, "the path \"%s\" is too long", path);
        goto out;
    }
    if (ls_file_exists(path) && !ls_file_is_dir(path)) {
        st = ls_fail(LS_EUSAGE, "cannot copy to \"%s\": it is a file", path);
        ls_err_hint("Name a folder; it is created if it does not exist.");
        goto out;
    }
    ls_str_append(&dir, ls_file_is_dir(inner) ? inner : path);
    LS_TRY(st, ls_str_status(&dir), out);
    LS_TRY(st, ls_ckpt_open(to_out, dir.p, true), out);
out:
    ls_str_release(&dir);
    return st;
}

static void put_copy(int64_t step, const ls_ckpt_copied *c, bool json, ls_str *out)
{
    char copied[16], there[16];
    ls_json j;

    if (!json) {
        ls_str_printf(out, "step %lld: %d object%s copied (%s), %d %s there (%s)", (long long)step,
                      c->objects_copied, ls_str_plural(c->objects_copied),
                      ls_cmd_ckpt_size(c->bytes_copied, copied), c->objects_there,
                      c->objects_there == 1 ? "was" : "were",
                      ls_cmd_ckpt_size(c->bytes_there, there));
        if (c->objects_healed)
            ls_str_printf(out, "; %d of the copied were there but damaged", c->objects_healed);
        ls_str_append_char(out, '\n');
        return;
    }
    ls_json_begin(&j, out);
    ls_json_open(&j, '{');
    ls_json_put_int(&j, "step", step);
    ls_json_put_int(&j, "objects_copied", c->objects_copied);
    ls_json_put_int(&j, "objects_there", c->objects_there);
    ls_json_put_int(&j, "objects_healed", c->objects_healed);
    ls_json_put_int(&j, "bytes_copied", c->bytes_copied);
    ls_json_put_int(&j, "bytes_there", c->bytes_there);
    ls_json_close(&j);
    ls_str_append_char(out, '\n');
}

static ls_status run_copy(const ls_args *args, ls_str *out)
{
    ls_cmd_ckpt_named from = {.store = NULL};
    ls_ckpt_store *to = NULL;
    ls_ckpt_copied copied;
    int64_t step;
    ls_status st = LS_OK;

    LS_TRY(st, ls_args_number(args, "step", -1, 0, INT64_MAX, &step), out);
    LS_TRY(st, ls_cmd_ckpt_named_open(&from, args, 0, step), out);
    LS_TRY(st, open_target(args->rest[1], &to), out);
    LS_TRY(st, ls_ckpt_copy(from.ckpt, to, &copied), out);
    put_copy(ls_ckpt_about(from.ckpt)->step, &copied, ls_args_has(args, "json"), out);
out:
    ls_ckpt_close(to);
    ls_cmd_ckpt_named_close(&from);
    return st;
}

static const ls_flag copy_flags[] = {
    {.name = "step", .value = "N", .doc = "Copy the checkpoint of this step, not the newest."},
    LS_CMD_CKPT_KEY_FLAG,
    {.name = "json", .letter = 'j', .doc = "Print one JSON object instead of a line."},
    {.name = NULL},
};

const ls_command ls_cmd_ckpt_copy = {
    .name = "copy",
    .summary = "copy a checkpoint to another folder, verified",
    .arguments = "DIR TO",
    .about =
        "Copies the newest checkpoint of DIR, or that of --step, to the store TO, which is "
        "made if it is not there. Every object is verified while it is read; objects that are "
        "whole in TO are not copied again, so an interrupted copy goes on; damaged ones are "
        "replaced, so copying back repairs. The manifest comes last.\n\n"
        "DIR is a run folder, its checkpoints folder, \"best\" in one of them, or one step-*.json "
        "file. TO is a "
        "folder; of a run folder its checkpoints folder is meant.",
    .examples = "lineshaft ckpt copy runs/demo /backup/demo             # the newest\n"
                "lineshaft ckpt copy runs/demo /backup/demo --step 500  # this one\n"
                "lineshaft ckpt copy /backup/demo runs/demo             # back: repairs\n",
    .flags = copy_flags,
    .run = run_copy,
};
