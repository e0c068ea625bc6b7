/* cmd_ckpt.c -- `lineshaft ckpt`: what is in a checkpoint folder, and is it whole.
 *
 * list looks at manifests and the sizes of their objects, which is quick; verify reads every byte.
 * Both only read, so they may be used while a run is writing. */
#include "cli/ckpt/cmd_ckpt.h"
#include "cli/cmds.h"
#include "cli/term.h"

#include <math.h>
#include <time.h>
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

/* A store that was found by the command line's path. */
typedef struct target {
    ls_ckpt_store *store;
    int64_t *steps;
    int n;
    bool json;
    bool one;    /* a single step was asked for */
    ls_str *out; /* what will be printed */
} target;

static void target_close(target *t)
{
    ls_mem_free(t->steps);
    ls_ckpt_close(t->store);
}

/* The number of the step that a path means by "best". */
static ls_status number_of_best(const ls_ckpt_store *store, int64_t *step)
{
    ls_ckpt *ckpt = NULL;
    ls_status st = *step == LS_CKPT_BEST ? ls_ckpt_find(store, LS_CKPT_BEST, &ckpt, NULL) : LS_OK;

    if (ckpt)
        *step = ls_ckpt_about(ckpt)->step;
    ls_ckpt_free(ckpt);
    return st;
}

ls_status ls_cmd_ckpt_open(const ls_args *args, ls_ckpt_store **store_out, int64_t *step_out)
{
    ls_status st = LS_OK;
    ls_str dir;

    ls_str_init(&dir);
    *step_out = -1;
    LS_TRY(st, ls_ckpt_locate(args->rest[0], &dir, step_out), out);
    LS_TRY(st, ls_args_number(args, "step", *step_out, 0, INT64_MAX, step_out), out);
    LS_TRY(st, ls_ckpt_open(store_out, dir.p, false), out);
    LS_TRY(st, ls_cmd_ckpt_use_key(args, *store_out), out);
    st = number_of_best(*store_out, step_out);
out:
    ls_str_release(&dir);
    return st;
}

void ls_cmd_ckpt_named_close(ls_cmd_ckpt_named *n)
{
    ls_ckpt_free(n->ckpt);
    ls_ckpt_close(n->store);
}

ls_status ls_cmd_ckpt_named_open(ls_cmd_ckpt_named *n, const ls_args *args, int which, int64_t step)
{
    ls_status st = LS_OK;
    int64_t in_path = -1;
    ls_str dir;

    *n = (ls_cmd_ckpt_named){.store = NULL};
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

/* Open the store and find out which steps are meant. */
static ls_status target_open(target *t, const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    int64_t only;

    *t = (target){.json = ls_args_has(args, "json"), .out = out};
    LS_TRY(st, ls_cmd_ckpt_open(args, &t->store, &only), out);
    if (only < 0) {
        LS_TRY(st, ls_ckpt_steps(t->store, &t->steps, &t->n), out);
        goto out;
    }
    t->steps = ls_mem_array(1, sizeof *t->steps);
    if (!t->steps) {
        st = LS_ENOMEM;
        goto out;
    }
    t->one = true;
    t->steps[0] = only;
    t->n = 1;
out:
    return st;
}

const char *ls_cmd_ckpt_size(int64_t bytes, char out[16])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < LS_COUNT(units)) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 16, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

/* UTC, with a "T" or a space between date and time. */
static const char *date_text(int64_t seconds, char between, char out[32])
{
    time_t when = (time_t)seconds;
    struct tm parts;

    if (!gmtime_r(&when, &parts) || strftime(out, 32, "%Y-%m-%d %H:%M:%SZ", &parts) < 11)
        snprintf(out, 32, "?");
    else
        out[10] = between;
    return out;
}

/* --- list ---------------------------------------------------------------------------------------
 */

static void list_json(ls_json *json, int64_t step, const ls_ckpt *ckpt, bool pinned)
{
    ls_json_open(json, '{');
    ls_json_put_int(json, "step", step);
    ls_json_put_bool(json, "ok", ckpt != NULL);
    ls_json_put_bool(json, "pinned", pinned);
    if (ckpt) {
        const ls_ckpt_info *info = ls_ckpt_about(ckpt);
        char date[32];
        ls_json_put_str(json, "path", ls_ckpt_path(ckpt));
        ls_json_put_str(json, "run", info->run_name);
        ls_json_put_str(json, "saved", date_text(info->time_s, 'T', date));
        ls_json_put_int(json, "bytes", info->total_bytes);
        ls_json_put_int(json, "new_bytes", info->new_bytes);
        ls_json_put_int(json, "reused_bytes", info->total_bytes - info->new_bytes);
        ls_json_put_int(json, "generation", info->generation);
        ls_json_put_int(json, "tensors", ls_ckpt_count(ckpt));
        ls_json_put_int(json, "tokens", info->tokens);
        ls_json_put_int(json, "cursor", info->cursor);
        ls_json_put_num(json, "loss", info->loss);
        ls_json_put_num(json, "val_loss", info->val_loss);
        ls_json_put_str(json, "weights_hash", info->weights_hash);
        ls_json_put_bool(json, "best", info->best);
        ls_json_put_str(json, "lineage", info->lineage);
        ls_json_put_str(json, "signature", ls_cmd_ckpt_trust(info->trust));
    } else {
        ls_json_put_str(json, "reason", ls_err_last()->text);
    }
    ls_json_close(json);
}

static void list_row(ls_str *out, int64_t step, const ls_ckpt *ckpt, bool pinned)
{
    char date[32], size[16], fresh[16], reused[16], loss[16] = "-";

    if (!ckpt) {
        ls_str_printf(out, "%10lld  %s\n", (long long)step, ls_err_last()->text);
        return;
    }
    const ls_ckpt_info *info = ls_ckpt_about(ckpt);
    double value = isnan(info->val_loss) ? info->loss : info->val_loss;
    if (!isnan(value))
        snprintf(loss, sizeof loss, "%.4f", value);
    ls_str_printf(out, "%10lld  %-20s  %10s  %10s  %10s  %13lld  %8s  ok%s%s%s\n", (long long)step,
                  date_text(info->time_s, ' ', date), ls_cmd_ckpt_size(info->total_bytes, size),
                  ls_cmd_ckpt_size(info->new_bytes, fresh),
                  ls_cmd_ckpt_size(info->total_bytes - info->new_bytes, reused),
                  (long long)info->tokens, loss, ls_cmd_ckpt_signed(info->trust),
                  info->best ? ", best" : "", pinned ? ", pinned" : "");
}

static ls_status run_list(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    ls_json json;
    target t;

    LS_TRY(st, target_open(&t, args, out), out);
    ls_json_begin(&json, out);
    if (t.json) {
        ls_json_open(&json, '{');
        ls_json_put_str(&json, "dir", ls_ckpt_dir(t.store));
        ls_json_key(&json, "checkpoints");
        ls_json_open(&json, '[');
    } else if (t.n == 0) {
        ls_str_printf(out, "no checkpoints in %s\n", ls_ckpt_dir(t.store));
    } else {
        ls_str_printf(out, "%10s  %-20s  %10s  %10s  %10s  %13s  %8s  %s\n", "step", "saved",
                      "size", "written", "reused", "tokens", "loss", "state");
    }
    for (int i = 0; i < t.n; i++) {
        ls_ckpt *ckpt = NULL;
        st = ls_ckpt_find(t.store, t.steps[i], &ckpt, NULL);
        if (st == LS_ENOMEM || (st == LS_EUSAGE && t.one)) /* not there: no row to show */
            goto out;
        bool pinned = ls_ckpt_is_pinned(t.store, t.steps[i]);
        if (t.json)
            list_json(&json, t.steps[i], ckpt, pinned);
        else
            list_row(out, t.steps[i], ckpt, pinned);
        ls_ckpt_free(ckpt);
        st = LS_OK;
    }
    if (t.json) {
        ls_json_close(&json);
        ls_json_close(&json);
        ls_str_append_char(out, '\n');
    } else {
        ls_term_fold_stdout(args, out);
    }
out:
    target_close(&t);
    return st;
}

/* --- verify -------------------------------------------------------------------------------------
 */

/* Where damage is reported: text lines or JSON rows. */
typedef struct report {
    ls_str *out;
    ls_json *json; /* NULL: text */
} report;

static void put_damage(const char *object, const char *reason, const char *tensors, void *context)
{
    const report *r = context;

    if (r->json) {
        ls_json_open(r->json, '{');
        ls_json_put_str(r->json, "object", object);
        ls_json_put_str(r->json, "reason", reason);
        ls_json_put_str(r->json, "tensors", tensors);
        ls_json_close(r->json);
    } else {
        ls_str_printf(r->out, "  %s\n    holds %s\n", reason, tensors);
    }
}

/* Which checkpoint was the newest when this one was saved. */
static const char *chain_text(int64_t follows, char out[64])
{
    if (follows >= 0)
        snprintf(out, 64, "follows step %lld", (long long)follows);
    else
        snprintf(out, 64, "%s",
                 follows == -1 ? "the first" : "the one before it is not here any more");
    return out;
}

static void put_chain(ls_json *json, int64_t follows)
{
    ls_json_put_str(json, "chain", follows >= 0 ? "whole" : follows == -1 ? "first" : "gone");
    if (follows >= 0)
        ls_json_put_int(json, "previous", follows);
}

/* Verify one step; *bad_out: whether it is damaged. */
static ls_status verify_step(target *t, int64_t step, const report *to, bool *bad_out)
{
    ls_ckpt *ckpt = NULL;
    int damaged = 0;
    int64_t follows = -1;
    ls_str rows;
    ls_json json;
    char size[16], chain[64];
    report inner = {.out = &rows, .json = to->json ? &json : NULL};

    ls_str_init(&rows);
    ls_json_begin(&json, &rows);
    ls_status st = ls_ckpt_find(t->store, step, &ckpt, NULL);
    if (st == LS_OK)
        st = ls_ckpt_verify(ckpt, put_damage, &inner, &damaged);
    else if (st == LS_EDATA)
        damaged = 1;
    if (ckpt && st == LS_OK)
        st = ls_ckpt_follows(t->store, ckpt, &follows);
    *bad_out = damaged > 0;
    if (st != LS_OK && st != LS_EDATA)
        goto out;
    if (to->json) {
        ls_json_open(to->json, '{');
        ls_json_put_int(to->json, "step", step);
        ls_json_put_bool(to->json, "ok", damaged == 0);
        if (!ckpt)
            ls_json_put_str(to->json, "reason", ls_err_last()->text);
        ls_json_put_int(to->json, "bytes", ckpt ? ls_ckpt_about(ckpt)->total_bytes : 0);
        if (ckpt) {
            put_chain(to->json, follows);
            ls_json_put_str(to->json, "signature", ls_cmd_ckpt_trust(ls_ckpt_about(ckpt)->trust));
        }
        ls_json_key(to->json, "damage");
        ls_json_open(to->json, '[');
        ls_str_append(t->out, rows.p);
        ls_json_close(to->json);
        ls_json_close(to->json);
    } else if (!ckpt) {
        ls_str_printf(t->out, "step %lld  DAMAGED\n  %s\n", (long long)step, ls_err_last()->text);
    } else {
        ls_str_printf(
            t->out, "step %lld  %s, %s in %d tensor%s%s; %s\n%s", (long long)step,
            damaged ? "DAMAGED" : "ok", ls_cmd_ckpt_size(ls_ckpt_about(ckpt)->total_bytes, size),
            ls_ckpt_count(ckpt), ls_str_plural(ls_ckpt_count(ckpt)),
            ls_cmd_ckpt_signed(ls_ckpt_about(ckpt)->trust), chain_text(follows, chain), rows.p);
    }
    st = ls_str_status(&rows);
out:
    ls_ckpt_free(ckpt);
    ls_str_release(&rows);
    return st;
}

static ls_status verify_all(target *t, int *bad_out)
{
    ls_status st = LS_OK;
    ls_json json;
    report to = {.out = t->out, .json = t->json ? &json : NULL};
    bool bad;

    ls_json_begin(&json, t->out);
    if (t->json) {
        ls_json_open(&json, '{');
        ls_json_put_str(&json, "dir", ls_ckpt_dir(t->store));
        ls_json_key(&json, "checkpoints");
        ls_json_open(&json, '[');
    }
    for (int i = 0; i < t->n; i++) {
        LS_TRY(st, verify_step(t, t->steps[i], &to, &bad), out);
        *bad_out += bad;
    }
    if (t->json) {
        ls_json_close(&json);
        ls_json_put_int(&json, "damaged", *bad_out);
        ls_json_close(&json);
        ls_str_append_char(t->out, '\n');
    }
out:
    return st;
}

static ls_status run_verify(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    int bad = 0;
    target t;

    LS_TRY(st, target_open(&t, args, out), out);
    if (t.n == 0) {
        st = ls_fail(LS_EUSAGE, "there are no checkpoints in \"%s\"", ls_ckpt_dir(t.store));
        goto out;
    }
    LS_TRY(st, verify_all(&t, &bad), out);
    if (!ls_args_has(args, "json"))
        ls_term_fold_stdout(args, out);
    LS_TRY(st, ls_term_print(out), out);
    if (bad) {
        st = ls_fail(LS_EDATA, "%d of %d checkpoint%s in \"%s\" %s damaged%s", bad, t.n,
                     t.n == 1 ? "" : "s", ls_ckpt_dir(t.store), bad == 1 ? "is" : "are",
                     ls_args_has(args, "key") ? " or not signed with this key" : "");
        ls_err_hint("A run that resumes uses the newest one that is whole; damaged objects are "
                    "written anew when a save needs them.");
    }
out:
    target_close(&t);
    return st;
}

/* --- the rows -----------------------------------------------------------------------------------
 */

static const ls_flag list_flags[] = {
    {.name = "step", .value = "N", .doc = "Show only the checkpoint of this step."},
    LS_CMD_CKPT_KEY_FLAG,
    {.name = "json", .letter = 'j', .doc = "Print one JSON object instead of a table."},
    {.name = NULL},
};

static const ls_flag verify_flags[] = {
    {.name = "step", .value = "N", .doc = "Verify only the checkpoint of this step."},
    LS_CMD_CKPT_KEY_FLAG,
    {.name = "json", .letter = 'j', .doc = "Print one JSON object instead of lines."},
    {.name = NULL},
};

static const ls_command list = {
    .name = "list",
    .summary = "show the checkpoints of a run",
    .arguments = "DIR",
    .about =
        "One line per checkpoint: step, when it was saved (UTC), its size, how much of that "
        "was written by this save and how much was reused from earlier checkpoints, tokens "
        "seen, loss (validation loss where there is one), whether it looks whole, and whether "
        "it is signed and pinned. This checks each manifest's hash (with --key its signature, "
        "too) and the sizes of its objects; \"ckpt verify\" reads every byte.\n\n"
        "DIR is a run folder, its checkpoints folder, \"best\" in one of them, or one step-*.json "
        "file.",
    .examples = "lineshaft ckpt list runs/demo         # a table\n"
                "lineshaft ckpt list runs/demo --json  # for programs\n",
    .flags = list_flags,
    .run = run_list,
};

static const ls_command verify = {
    .name = "verify",
    .summary = "read every byte of checkpoints and compare checksums",
    .arguments = "DIR",
    .about =
        "Reads each object of each checkpoint, compares every block with its checksum and the "
        "whole with its name, and checks that it holds the tensors that the manifest lists. "
        "Damage is shown with the object's file and the tensors in it; the exit code is then "
        "4. Each manifest carries its own hash and that of the one before it: verify shows "
        "which one it follows, or that it is gone. Nothing is changed. Hashes find damage; "
        "only --key finds deliberate changes.\n\n"
        "DIR is a run folder, its checkpoints folder, \"best\" in one of them, or one step-*.json "
        "file.",
    .examples = "lineshaft ckpt verify runs/demo             # all checkpoints\n"
                "lineshaft ckpt verify runs/demo --step 500  # only this one\n"
                "lineshaft ckpt verify runs/demo --key demo.key  # and their signatures\n",
    .flags = verify_flags,
    .run = run_verify,
};

static const ls_command *const subs[] = {&list,
                                         &ls_cmd_ckpt_show,
                                         &verify,
                                         &ls_cmd_ckpt_diff,
                                         &ls_cmd_ckpt_copy,
                                         &ls_cmd_ckpt_prune,
                                         &ls_cmd_ckpt_pin,
                                         &ls_cmd_ckpt_key,
                                         NULL};

const ls_command ls_cmd_ckpt = {
    .name = "ckpt",
    .summary = "list, show, verify, compare, copy, prune, pin and sign checkpoints",
    .about = "A run writes checkpoints to the folder \"checkpoints\" in its run folder. Each is a\n"
             "manifest (step-*.json) that names objects (objects/*/*.safetensors); objects that\n"
             "did not change are shared.",
    .examples = "lineshaft ckpt list runs/demo  # what is there\n"
                "lineshaft ckpt show runs/demo  # its parameters by name\n"
                "lineshaft ckpt verify runs/demo  # read and check every byte\n"
                "lineshaft ckpt copy runs/demo /backup/demo  # the newest, verified\n",
    .subs = subs,
};
