/* cmd_ckpt_diff.c -- `lineshaft ckpt diff`: which tensors differ between two checkpoints. It only
 * reads. */
#include "cli/ckpt/cmd_ckpt.h"

#include "base/json.h"
#include "cli/term.h"

#define ROW_FORMAT "%-7s  %-22s"

typedef struct diffing {
    ls_str *out;
    ls_json *json; /* NULL: text */
} diffing;

static void put_change(const ls_ckpt_change *c, void *context)
{
    static const char *const words[] = {[LS_CKPT_SAME] = "same",
                                        [LS_CKPT_CHANGED] = "changed",
                                        [LS_CKPT_SHAPED] = "another shape",
                                        [LS_CKPT_FIRST_ONLY] = "only in the first",
                                        [LS_CKPT_SECOND_ONLY] = "only in the second"};
    const diffing *d = context;
    char differ[48];

    if (!d->json && d->out->len == 0)
        ls_str_printf(d->out, ROW_FORMAT "%12s  %s\n", "kind", "elements that differ", "largest by",
                      "tensor");
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
        snprintf(differ, sizeof differ, "%lld of %lld", (long long)c->differ,
                 (long long)c->elements);
        ls_str_printf(d->out, ROW_FORMAT "%12.6g  %s\n", c->kind, differ, c->most, c->name);
    } else {
        ls_str_printf(d->out, ROW_FORMAT "%12s  %s\n", c->kind, words[c->how], "", c->name);
    }
}

static ls_status diff_json(const ls_cmd_ckpt_named *a, const ls_cmd_ckpt_named *b, ls_str *out,
                           ls_ckpt_diffs *diffs)
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
    st = ls_ckpt_diff(a->ckpt, b->ckpt, put_change, &to, diffs);
    ls_json_close(&json);
    ls_json_put_int(&json, "same", diffs->same);
    ls_json_put_int(&json, "different", diffs->different);
    ls_json_put_int(&json, "shared_bytes", diffs->shared_bytes);
    ls_json_close(&json);
    ls_str_append_char(out, '\n');
    return st;
}

static ls_status diff_text(const ls_cmd_ckpt_named *a, const ls_cmd_ckpt_named *b, ls_str *out,
                           ls_ckpt_diffs *diffs)
{
    diffing to = {.out = out};
    char size[16], whole[16];
    ls_status st = ls_ckpt_diff(a->ckpt, b->ckpt, put_change, &to, diffs);

    ls_str_printf(out, "%d tensor%s differ%s, %d are the same; %s of %s are shared\n",
                  diffs->different, diffs->different == 1 ? "" : "s",
                  diffs->different == 1 ? "s" : "", diffs->same,
                  ls_cmd_ckpt_size(diffs->shared_bytes, size),
                  ls_cmd_ckpt_size(ls_ckpt_about(a->ckpt)->total_bytes, whole));
    return st;
}

static ls_status run_diff(const ls_args *args, ls_str *out)
{
    ls_cmd_ckpt_named a = {.store = NULL}, b = {.store = NULL};
    ls_ckpt_diffs diffs = {.same = 0};
    ls_status st = LS_OK;

    LS_TRY(st, ls_cmd_ckpt_named_open(&a, args, 0, -1), out);
    LS_TRY(st, ls_cmd_ckpt_named_open(&b, args, 1, -1), out);
    LS_TRY(st, (ls_args_has(args, "json") ? diff_json : diff_text)(&a, &b, out, &diffs), out);
    if (!ls_args_has(args, "json"))
        ls_term_fold_stdout(args, out);
    if (diffs.different == 0)
        goto out;
    LS_TRY(st, ls_term_print(out), out);
    ls_err_clear(); /* no error, but the answer that the exit code gives */
    st = LS_EFAIL;
out:
    ls_cmd_ckpt_named_close(&a);
    ls_cmd_ckpt_named_close(&b);
    return st;
}

static const ls_flag diff_flags[] = {
    LS_CMD_CKPT_KEY_FLAG,
    {.name = "json", .letter = 'j', .doc = "Print one JSON object instead of lines."},
    {.name = NULL},
};

const ls_command ls_cmd_ckpt_diff = {
    .name = "diff",
    .summary = "show which tensors differ between two checkpoints",
    .arguments = "A B",
    .about =
        "One line per tensor that differs: its kind, how many elements differ, the largest\n"
        "difference of one, and its name; then how many tensors are the same, and how\n"
        "many bytes both checkpoints share as objects. It does not matter how many ranks\n"
        "wrote them. Tensors in shared objects are equal without being read.\n"
        "\n"
        "A and B are run folders (the newest checkpoint is meant), their checkpoints folders,\n"
        "or step-*.json files. As with diff, the exit code is 0 when all tensors are the same,\n"
        "1 when some differ, and more when a checkpoint cannot be read.",
    .examples = "lineshaft ckpt diff runs/a runs/b  # the newest of two runs\n"
                "lineshaft ckpt diff c/step-0000000100.json c/step-0000000200.json  # two steps\n",
    .flags = diff_flags,
    .run = run_diff,
};
