/* cmd_runs_diff.c -- `lineshaft runs diff`: what was set otherwise, and what came of it. */
#include "cli/runs/cmd_runs.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "cli/term.h"

/* One line of the answer: a value of each run; NULL: it has none. */
typedef struct pair {
    const char *key;
    const json_t *a, *b; /* borrowed from the events */
} pair;

typedef struct side {
    ls_run_store *store;
    ls_run_summary run;
    json_t *start; /* owned: the last start event */
} side;

static ls_status open_side(const ls_args *args, int which, side *s)
{
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    LS_TRY(st, ls_cmd_runs_open(args, which, &s->store), out);
    LS_TRY(st, ls_run_summary_read(s->store, args->rest[which], &s->run), out);
    LS_TRY(st, ls_run_store_fact(s->store, "start", &text), out);
    s->start = json_loadb(text.p, text.len, 0, NULL);
    if (!s->start)
        st = ls_fail(LS_EUSAGE, "\"%s\" has no settings: the run did not begin", args->rest[which]);
out:
    ls_str_release(&text);
    return st;
}

static void close_side(side *s)
{
    json_decref(s->start);
    ls_run_store_close(s->store);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const pair *)a)->key, ((const pair *)b)->key);
}

/* Keys of `from` whose value in `other` is another one; those that other lacks, if `lacking`. */
static ls_status take(json_t *from, const json_t *other, bool turned, pair **pairs, int *n)
{
    const char *key;
    json_t *value;

    json_object_foreach(from, key, value)
    {
        const json_t *its = json_object_get(other, key);
        if (json_equal(value, its) ||
            (turned && its)) /* the second pass adds what the first lacked */
            continue;
        pair *more = ls_mem_one_more(*pairs, (size_t)*n, sizeof **pairs);
        if (!more)
            return LS_ENOMEM;
        *pairs = more;
        more[(*n)++] =
            turned ? (pair){.key = key, .b = value} : (pair){.key = key, .a = value, .b = its};
    }
    return LS_OK;
}

static ls_status compare(const json_t *a, const json_t *b, pair **pairs_out, int *n_out)
{
    json_t *of_a = json_object_get(a, "settings"), *of_b = json_object_get(b, "settings");
    ls_status st;

    *pairs_out = NULL;
    *n_out = 0;
    LS_TRY(st, take(of_a, of_b, false, pairs_out, n_out), out);
    LS_TRY(st, take(of_b, of_a, true, pairs_out, n_out), out);
    if (*n_out > 0)
        qsort(*pairs_out, (size_t)*n_out, sizeof **pairs_out, by_key);
out:
    return st;
}

/* --- for people -------------------------------------------------------------------------------- */

static void put_row(ls_str *out, const char *key, const char *a, const char *b)
{
    ls_str_printf(out, "  %-24s %-28s %s\n", key, a, b);
}

static ls_status put_setting(ls_str *out, const pair *p)
{
    char *a = p->a ? json_dumps(p->a, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;
    char *b = p->b ? json_dumps(p->b, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;

    put_row(out, p->key, a ? a : "default", b ? b : "default");
    free(a);
    free(b);
    return ls_str_status(out);
}

static void put_results(const side *x, const side *y, ls_str *out)
{
    const ls_run_summary *a = &x->run, *b = &y->run;
    char s[2][48], n[2][24];

    ls_str_append(out, "results\n");
    put_row(out, "state", a->state, b->state);
    put_row(out, "steps", ls_cmd_runs_steps(a, s[0]), ls_cmd_runs_steps(b, s[1]));
    put_row(out, "loss", ls_cmd_runs_number(a->loss, n[0]), ls_cmd_runs_number(b->loss, n[1]));
    put_row(out, "validation loss", ls_cmd_runs_number(a->val_loss, n[0]),
            ls_cmd_runs_number(b->val_loss, n[1]));
    put_row(out, "best validation loss", ls_cmd_runs_number(a->best_val_loss, n[0]),
            ls_cmd_runs_number(b->best_val_loss, n[1]));
    snprintf(n[0], sizeof n[0], "%.0f", a->tokens_per_s);
    snprintf(n[1], sizeof n[1], "%.0f", b->tokens_per_s);
    put_row(out, "tokens/s", n[0], n[1]);
    if (*a->weights_hash && *b->weights_hash)
        put_row(out, "weights",
                strcmp(a->weights_hash, b->weights_hash) == 0 ? "the same bits" : "differ", "");
}

/* --- the command ------------------------------------------------------------------------------- */

static void put_json(const side *x, const side *y, const pair *pairs, int n, ls_str *out)
{
    const side *const sides[] = {x, y};
    ls_json json;

    ls_json_begin(&json, out);
    ls_json_open(&json, '{');
    ls_json_put_open(&json, "runs", '[');
    for (int i = 0; i < 2; i++) {
        ls_json_open(&json, '{');
        ls_cmd_runs_put(&json, &sides[i]->run);
        ls_json_close(&json);
    }
    ls_json_close(&json);
    ls_json_put_open(&json, "settings", '[');
    for (int i = 0; i < n; i++) {
        char *a = json_dumps(pairs[i].a, JSON_ENCODE_ANY),
             *b = json_dumps(pairs[i].b, JSON_ENCODE_ANY);
        ls_json_open(&json, '{');
        ls_json_put_str(&json, "key", pairs[i].key);
        ls_json_put_str(&json, "a", a); /* as JSON text; null: the default */
        ls_json_put_str(&json, "b", b);
        ls_json_close(&json);
        free(a);
        free(b);
    }
    ls_json_close(&json);
    ls_json_close(&json);
    ls_str_append_char(out, '\n');
}

static ls_status run_diff(const ls_args *args, ls_str *out)
{
    side a = {.store = NULL}, b = {.store = NULL};
    pair *pairs = NULL;
    int n = 0;
    ls_status st;

    LS_TRY(st, open_side(args, 0, &a), out);
    LS_TRY(st, open_side(args, 1, &b), out);
    LS_TRY(st, compare(a.start, b.start, &pairs, &n), out);
    if (ls_args_has(args, "json")) {
        put_json(&a, &b, pairs, n, out);
        goto out;
    }
    put_row(out, "", args->rest[0], args->rest[1]);
    if (!json_object_get(a.start, "settings") || !json_object_get(b.start, "settings"))
        ls_str_append(out, "settings were not kept by the version that made one of these runs\n");
    else
        ls_str_append(out, n > 0 ? "settings that differ\n" : "settings are the same\n");
    for (int i = 0; i < n; i++)
        LS_TRY(st, put_setting(out, &pairs[i]), out);
    put_results(&a, &b, out);
    ls_term_fold_stdout(args, out);
out:
    ls_mem_free(pairs);
    close_side(&a);
    close_side(&b);
    return st;
}

static const ls_flag flags[] = {
    {.name = "json", .letter = 'j', .doc = "Print one JSON object instead of text."},
    {.name = NULL},
};

const ls_command ls_cmd_runs_diff = {
    .name = "diff",
    .summary = "compare two runs: settings and results",
    .arguments = "RUN RUN",
    .about = "Prints the settings that differ (default: the run file does not set it), and the "
             "results of both beside each other. Each RUN is a run folder.",
    .examples = "lineshaft runs diff runs/a runs/b  # what was different, and what came of it\n",
    .flags = flags,
    .run = run_diff,
};
