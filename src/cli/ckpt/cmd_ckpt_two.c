/* cmd_ckpt_two.c -- `lineshaft ckpt diff`, `copy` and `prune`: two checkpoints compared, one
 * brought to another store, old ones removed.
 *
 * diff only reads. copy and prune hold the store that they change, so a run that writes to it is
 * never disturbed: they are refused while one does. */
#include "cli/ckpt/cmd_ckpt.h"
#include "cli/term.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

/* A checkpoint named on the command line: of the step that its path or --step says, or the newest.
 */
typedef struct named {
    ls_ckpt_store *store;
    ls_ckpt *ckpt;
} named;

static void named_close(named *n)
{
    ls_ckpt_free(n->ckpt);
    ls_ckpt_close(n->store);
}

static ls_status named_open(named *n, const ls_args *args, int which, int64_t step)
{
    ls_status st = LS_OK;
    int64_t in_path = -1;
    ls_str dir;

    *n = (named){.store = NULL};
    ls_str_init(&dir);
    LS_TRY(st, ls_ckpt_locate(args->rest[which], &dir, &in_path), out);
    LS_TRY(st, ls_ckpt_open(&n->store, dir.p, false), out);
    LS_TRY(st, ls_cmd_ckpt_use_key(args, n->store), out);
    LS_TRY(st, ls_ckpt_find(n->store, step >= 0 ? step : in_path, &n->ckpt, NULL), out);
    if (!n->ckpt)
        st = ls_fail(LS_EUSAGE, "there are no checkpoints in \"%s\"", dir.p);
    else if (ls_ckpt_about(n->ckpt)->trust == LS_CKPT_UNCHECKED)
        ls_log(LS_LOG_WARN, "\"%s\" is signed; without --key the signature was not checked",
               ls_ckpt_path(n->ckpt));
out:
    ls_str_release(&dir);
    return st;
}

/* --- diff ---------------------------------------------------------------------------------------
 */

typedef struct diffing {
    ls_str *out;
    ls_json *json; /* NULL: text */
} diffing;

static void tell_change(const ls_ckpt_change *c, void *context)
{
    static const char *const words[] = {[LS_CKPT_SAME] = "same",
                                        [LS_CKPT_CHANGED] = "changed",
                                        [LS_CKPT_SHAPED] = "another shape",
                                        [LS_CKPT_FIRST_ONLY] = "only in the first",
                                        [LS_CKPT_SECOND_ONLY] = "only in the second"};
    const diffing *d = context;

    if (d->json) {
        ls_json_open(d->json, '{');
        ls_json_put_str(d->json, "name", c->name);
        ls_json_put_str(d->json, "kind", c->kind);
        ls_json_put_str(d->json, "how", words[c->how]);
        ls_json_put_int(d->json, "elements", c->elements);
        ls_json_put_int(d->json, "differ", c->differ);
        ls_json_put_num(d->json, "max_difference", c->most);
        ls_json_close(d->json);
    } else if (c->how == LS_CKPT_CHANGED) {
        ls_str_printf(d->out, "%-7s  %12.6g  %lld of %lld  %s\n", c->kind, c->most,
                      (long long)c->differ, (long long)c->elements, c->name);
    } else {
        ls_str_printf(d->out, "%-7s  %s  %s\n", c->kind, words[c->how], c->name);
    }
}

static ls_status diff_json(const named *a, const named *b, ls_str *out, ls_ckpt_diffs *diffs)
{
    ls_json json;
    diffing to = {.out = out, .json = &json};
    ls_status st;

    ls_json_begin(&json, out);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "first", ls_ckpt_path(a->ckpt));
    ls_json_put_str(&json, "second", ls_ckpt_path(b->ckpt));
    ls_json_key(&json, "changes");
    ls_json_open(&json, '[');
    st = ls_ckpt_diff(a->ckpt, b->ckpt, tell_change, &to, diffs);
    ls_json_close(&json);
    ls_json_put_int(&json, "same", diffs->same);
    ls_json_put_int(&json, "different", diffs->different);
    ls_json_put_int(&json, "shared_bytes", diffs->shared_bytes);
    ls_json_close(&json);
    ls_str_append_char(out, '\n');
    return st;
}

static ls_status diff_text(const named *a, const named *b, ls_str *out, ls_ckpt_diffs *diffs)
{
    diffing to = {.out = out};
    char size[16], whole[16];
    ls_status st = ls_ckpt_diff(a->ckpt, b->ckpt, tell_change, &to, diffs);

    ls_str_printf(out, "%d tensor%s differ%s, %d are the same; %s of %s are shared\n",
                  diffs->different, diffs->different == 1 ? "" : "s",
                  diffs->different == 1 ? "s" : "", diffs->same,
                  ls_cmd_ckpt_size(diffs->shared_bytes, size),
                  ls_cmd_ckpt_size(ls_ckpt_about(a->ckpt)->total_bytes, whole));
    return st;
}

static ls_status run_diff(const ls_args *args)
{
    named a = {.store = NULL}, b = {.store = NULL};
    ls_ckpt_diffs diffs = {.same = 0};
    ls_status st = LS_OK;
    ls_str out;

    ls_str_init(&out);
    LS_TRY(st, named_open(&a, args, 0, -1), out);
    LS_TRY(st, named_open(&b, args, 1, -1), out);
    LS_TRY(st, (ls_args_has(args, "json") ? diff_json : diff_text)(&a, &b, &out, &diffs), out);
    LS_TRY(st, ls_term_print(&out), out);
out:
    named_close(&a);
    named_close(&b);
    ls_str_release(&out);
    return st;
}

/* --- copy ---------------------------------------------------------------------------------------
 */

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
        ls_err_hint("Give a folder; it is made if it is not there.");
        goto out;
    }
    ls_str_append(&dir, ls_file_is_dir(inner) ? inner : path);
    LS_TRY(st, ls_str_status(&dir), out);
    LS_TRY(st, ls_ckpt_open(to_out, dir.p, true), out);
out:
    ls_str_release(&dir);
    return st;
}

static void tell_copy(int64_t step, const ls_ckpt_copied *c, bool json, ls_str *out)
{
    char copied[16], there[16];
    ls_json j;

    if (!json) {
        ls_str_printf(out, "step %lld: %d objects copied (%s), %d were there (%s)", (long long)step,
                      c->objects_copied, ls_cmd_ckpt_size(c->bytes_copied, copied),
                      c->objects_there, ls_cmd_ckpt_size(c->bytes_there, there));
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

static ls_status run_copy(const ls_args *args)
{
    named from = {.store = NULL};
    ls_ckpt_store *to = NULL;
    ls_ckpt_copied copied;
    int64_t step;
    ls_status st = LS_OK;
    ls_str out;

    ls_str_init(&out);
    LS_TRY(st, ls_cmd_ckpt_number(args, "step", 0, -1, &step), out);
    LS_TRY(st, named_open(&from, args, 0, step), out);
    LS_TRY(st, open_target(args->rest[1], &to), out);
    LS_TRY(st, ls_ckpt_copy(from.ckpt, to, &copied), out);
    tell_copy(ls_ckpt_about(from.ckpt)->step, &copied, ls_args_has(args, "json"), &out);
    LS_TRY(st, ls_term_print(&out), out);
out:
    ls_ckpt_close(to);
    named_close(&from);
    ls_str_release(&out);
    return st;
}

/* --- prune --------------------------------------------------------------------------------------
 */

static void tell_removed(const char *path, int64_t bytes, void *context)
{
    char size[16];

    ls_str_printf(context, "%10s  %s\n", ls_cmd_ckpt_size(bytes, size), path);
}

static ls_status run_prune(const ls_args *args)
{
    ls_ckpt_pruning how = {.dry = ls_args_has(args, "dry-run"), .tell = tell_removed};
    ls_ckpt_store *store = NULL;
    int64_t freed = 0, step;
    char size[16];
    ls_status st = LS_OK;
    ls_str dir, out;

    ls_str_init(&dir);
    ls_str_init(&out);
    how.context = &out;
    if (!ls_args_has(args, "keep")) {
        st = ls_fail(LS_EUSAGE, "how many checkpoints are to be kept?");
        ls_err_hint("\"--keep 2\" keeps the newest two; with --dry-run nothing is removed.");
        goto out;
    }
    LS_TRY(st, ls_cmd_ckpt_number(args, "keep", 1, 1, &how.keep), out);
    LS_TRY(st, ls_cmd_ckpt_number(args, "keep-every", 1, 0, &how.keep_every), out);
    LS_TRY(st, ls_ckpt_locate(args->rest[0], &dir, &step), out);
    if (step >= 0) {
        st = ls_fail(LS_EUSAGE, "\"%s\" is one checkpoint; prune takes a folder of them",
                     args->rest[0]);
        goto out;
    }
    LS_TRY(st, ls_ckpt_open(&store, dir.p, false), out);
    LS_TRY(st, ls_cmd_ckpt_use_key(args, store), out);
    LS_TRY(st, ls_ckpt_prune_by(store, &how, &freed), out);
    ls_str_printf(&out, "%s %s\n", ls_cmd_ckpt_size(freed, size),
                  how.dry ? "would be freed" : "freed");
    LS_TRY(st, ls_term_print(&out), out);
out:
    ls_ckpt_close(store);
    ls_str_release(&dir);
    ls_str_release(&out);
    return st;
}

/* --- the rows -----------------------------------------------------------------------------------
 */

static const ls_flag diff_flags[] = {
    LS_CMD_CKPT_KEY_FLAG,
    {.name = "json", .letter = 'j', .doc = "Print one JSON object instead of lines."},
    {.name = NULL},
};

static const ls_flag copy_flags[] = {
    {.name = "step", .value = "N", .doc = "Copy the checkpoint of this step, not the newest."},
    LS_CMD_CKPT_KEY_FLAG,
    {.name = "json", .letter = 'j', .doc = "Print one JSON object instead of a line."},
    {.name = NULL},
};

static const ls_flag prune_flags[] = {
    {.name = "keep", .value = "N", .doc = "Keep the newest N checkpoints that look whole."},
    {.name = "keep-every",
     .value = "N",
     .doc = "Keep those of steps that are multiples of N, too."},
    {.name = "dry-run", .letter = 'n', .doc = "Show what would be removed; remove nothing."},
    LS_CMD_CKPT_KEY_FLAG,
    {.name = NULL},
};

const ls_command ls_cmd_ckpt_diff = {
    .name = "diff",
    .summary = "show which tensors differ between two checkpoints",
    .arguments = "A B",
    .least = 2,
    .most = 2,
    .about =
        "One line per tensor that differs: its kind, the largest difference of an element,\n"
        "how many elements differ, and its name; then how many tensors are the same, and how\n"
        "many bytes both checkpoints share as objects. It does not matter how many ranks\n"
        "wrote them. Tensors in shared objects are equal without being read.\n"
        "\n"
        "A and B are run folders (the newest checkpoint is meant), their checkpoints folders,\n"
        "or step-*.json files. Differences are no error: the exit code is 0.",
    .examples = "lineshaft ckpt diff runs/a runs/b  # the newest of two runs\n"
                "lineshaft ckpt diff c/step-0000000100.json c/step-0000000200.json  # two steps\n",
    .flags = diff_flags,
    .run = run_diff,
};

const ls_command ls_cmd_ckpt_copy = {
    .name = "copy",
    .summary = "copy a checkpoint to another folder, verified",
    .arguments = "DIR TO",
    .least = 2,
    .most = 2,
    .about = "Copies the newest checkpoint of DIR, or that of --step, to the store TO, which is\n"
             "made if it is not there. Every object is verified while it is read; what TO has and\n"
             "what is whole there is not copied, so a copy that was interrupted goes on; what is\n"
             "damaged there is replaced, so copying back heals. The manifest comes last.\n"
             "\n"
             "DIR is a run folder, its checkpoints folder, or one step-*.json file. TO is a\n"
             "folder; of a run folder its checkpoints folder is meant.",
    .examples = "lineshaft ckpt copy runs/demo /backup/demo             # the newest\n"
                "lineshaft ckpt copy runs/demo /backup/demo --step 500  # this one\n"
                "lineshaft ckpt copy /backup/demo runs/demo             # back: heals\n",
    .flags = copy_flags,
    .run = run_copy,
};

const ls_command ls_cmd_ckpt_prune = {
    .name = "prune",
    .summary = "remove old checkpoints and what no checkpoint needs",
    .arguments = "DIR",
    .least = 1,
    .most = 1,
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
