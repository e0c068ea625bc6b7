/* cmd_runs.c -- `lineshaft runs`: what runs are there, and how did they go. It only reads, also while
 * the runs train; a run of an older version, which has no run.db, is read from its events. */
#include "cli/runs/cmd_runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/mem.h"
#include "cli/cmds.h"
#include "cli/term.h"

ls_status ls_cmd_runs_open(const ls_args *args, int which, ls_run_store **store_out)
{
    ls_status st = ls_run_store_open(args->rest[which], store_out);

    if (st == LS_EIO)
        ls_err_hint(
            "Give a run folder (out: of its run file); \"lineshaft runs list\" finds them.");
    return st;
}

const char *ls_cmd_runs_steps(const ls_run_summary *run, char out[48])
{
    if (run->total_steps > 0)
        snprintf(out, 48, "%lld/%lld", (long long)run->steps, (long long)run->total_steps);
    else
        snprintf(out, 48, "%lld", (long long)run->steps);
    return out;
}

const char *ls_cmd_runs_number(double value, char out[24])
{
    if (isnan(value))
        snprintf(out, 24, "-");
    else
        snprintf(out, 24, "%.4f", value);
    return out;
}

const char *ls_cmd_runs_time(int64_t time_ms, char out[32])
{
    time_t when = (time_t)(time_ms / 1000);
    struct tm parts;

    if (time_ms <= 0 || !localtime_r(&when, &parts) ||
        strftime(out, 32, "%Y-%m-%d %H:%M", &parts) == 0)
        snprintf(out, 32, "-");
    return out;
}

static void put_time(ls_json *json, const char *key, int64_t time_ms)
{
    ls_json_put_num(json, key, time_ms > 0 ? (double)time_ms / 1e3 : (double)NAN);
}

void ls_cmd_runs_put(ls_json *json, const ls_run_summary *run)
{
    ls_json_put_str(json, "folder", run->folder);
    ls_json_put_str(json, "name", run->name);
    ls_json_put_str(json, "state", run->state);
    ls_json_put_int(json, "steps", run->steps);
    ls_json_put_int(json, "total_steps", run->total_steps);
    ls_json_put_int(json, "tokens", run->tokens);
    ls_json_put_num(json, "loss", run->loss);
    ls_json_put_num(json, "val_loss", run->val_loss);
    ls_json_put_num(json, "best_val_loss", run->best_val_loss);
    ls_json_put_int(json, "best_step", run->best_step);
    ls_json_put_num(json, "tokens_per_s", run->tokens_per_s);
    ls_json_put_int(json, "attempts", run->attempts);
    ls_json_put_int(json, "incidents", run->incidents);
    put_time(json, "began", run->began_ms);
    put_time(json, "updated", run->updated_ms);
    ls_json_put_str(json, "weights_hash", run->weights_hash);
}

/* --- list -------------------------------------------------------------------------------------- */

typedef struct list {
    ls_run_summary *runs; /* owned */
    int n;
    int bad; /* folders that could not be read */
} list;

static ls_status read_one(const char *folder, ls_run_summary *out)
{
    ls_run_store *store = NULL;
    ls_status st = ls_run_store_open(folder, &store);

    if (st == LS_OK)
        st = ls_run_summary_read(store, folder, out);
    ls_run_store_close(store);
    return st;
}

/* All runs below a folder; one that cannot be read is a line on standard error. */
static ls_status read_all(const char *folder, list *l)
{
    const char *path;
    ls_str paths;
    int count;
    ls_status st;

    ls_str_init(&paths);
    LS_TRY(st, ls_run_summary_find(folder, &paths, &count), out);
    l->runs = ls_mem_array((size_t)count, sizeof *l->runs);
    if (count > 0 && !l->runs)
        LS_TRY(st, LS_ENOMEM, out);
    path = paths.p;
    for (int i = 0; i < count; i++, path += strlen(path) + 1) {
        st = read_one(path, &l->runs[l->n]);
        if (st == LS_ENOMEM)
            goto out;
        l->n += st == LS_OK;
        l->bad += st != LS_OK;
        if (st != LS_OK)
            fprintf(stderr, "lineshaft: warning: left out: %s\n", ls_err_last()->text);
        ls_err_clear();
        st = LS_OK;
    }
out:
    ls_str_release(&paths);
    return st;
}

/* NaN, which stands for nothing, comes last. */
static int by_number(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) - isnan(b);
    return (a > b) - (a < b);
}

static int by_loss(const void *a, const void *b)
{
    return by_number(((const ls_run_summary *)a)->loss, ((const ls_run_summary *)b)->loss);
}

static int by_val_loss(const void *a, const void *b)
{
    return by_number(((const ls_run_summary *)a)->best_val_loss,
                     ((const ls_run_summary *)b)->best_val_loss);
}

/* The newest first. */
static int by_time(const void *a, const void *b)
{
    int64_t x = ((const ls_run_summary *)a)->updated_ms,
            y = ((const ls_run_summary *)b)->updated_ms;

    return (x < y) - (x > y);
}

static void sort(list *l, const char *key)
{
    static const struct {
        const char *key;
        int (*order)(const void *a, const void *b);
    } orders[] = {{"loss", by_loss}, {"val_loss", by_val_loss}, {"time", by_time}};

    for (size_t i = 0; key && l->n > 0 && i < LS_COUNT(orders); i++)
        if (strcmp(key, orders[i].key) == 0)
            qsort(l->runs, (size_t)l->n, sizeof *l->runs, orders[i].order);
}

static int folder_width(const list *l)
{
    int width = (int)strlen("run");

    for (int i = 0; i < l->n; i++)
        width = (int)ls_max_i64(width, (int64_t)strlen(l->runs[i].folder));
    return width;
}

static void put_table(const ls_args *args, const list *l, ls_str *out)
{
    int width = folder_width(l);
    char steps[48], loss[24], val[24], date[32];

    ls_str_printf(out, "%-*s  %-8s  %13s  %8s  %8s  %12s  %s\n", width, "run", "state", "steps",
                  "loss", "best val", "tokens/s", "last event");
    for (int i = 0; i < l->n; i++) {
        const ls_run_summary *r = &l->runs[i];
        char speed[24] = "-";
        if (!isnan(r->tokens_per_s))
            snprintf(speed, sizeof speed, "%.0f", r->tokens_per_s);
        ls_str_printf(out, "%-*s  %-8s  %13s  %8s  %8s  %12s  %s\n", width, r->folder, r->state,
                      ls_cmd_runs_steps(r, steps), ls_cmd_runs_number(r->loss, loss),
                      ls_cmd_runs_number(r->best_val_loss, val), speed,
                      ls_cmd_runs_time(r->updated_ms, date));
    }
    ls_term_fold_stdout(args, out);
}

static void put_list(const list *l, ls_str *out)
{
    ls_json json;

    ls_json_begin(&json, out);
    ls_json_open(&json, '{');
    ls_json_put_open(&json, "runs", '[');
    for (int i = 0; i < l->n; i++) {
        ls_json_open(&json, '{');
        ls_cmd_runs_put(&json, &l->runs[i]);
        ls_json_close(&json);
    }
    ls_json_close(&json);
    ls_json_put_int(&json, "unreadable", l->bad);
    ls_json_close(&json);
    ls_str_append_char(out, '\n');
}

static ls_status run_list(const ls_args *args, ls_str *out)
{
    const char *folder = args->n_rest > 0 ? args->rest[0] : "runs";
    list l = {.n = 0};
    ls_status st;

    LS_TRY(st, read_all(folder, &l), out);
    sort(&l, ls_args_value(args, "sort"));
    if (ls_args_has(args, "json"))
        put_list(&l, out);
    else if (l.n > 0)
        put_table(args, &l, out);
    else
        ls_str_printf(out, "no runs in %s\n", folder);
out:
    ls_mem_free(l.runs);
    return st;
}

static const ls_flag list_flags[] = {
    {.name = "sort",
     .value = "loss|val_loss|time",
     .doc = "Order by the last loss, the best validation loss (the smallest first) or the last "
            "event (the newest first), not by name."},
    {.name = "json", .letter = 'j', .doc = "Print one JSON object instead of a table."},
    {.name = NULL},
};

static const ls_command list_row = {
    .name = "list",
    .summary = "list the runs below a folder",
    .arguments = "[FOLDER]",
    .about =
        "One line per run folder in FOLDER (default: runs) or at most three levels below it: "
        "its state (running, finished, stopped, or lost: it ended without a word), steps "
        "done, the last loss, the best validation loss, speed, and the time of the last event. "
        "Runs that train now are listed too.",
    .examples = "lineshaft runs list                         # all in runs/\n"
                "lineshaft runs list sweeps --sort val_loss  # the best first\n",
    .flags = list_flags,
    .run = run_list,
};

static const ls_command *const subs[] = {&list_row, &ls_cmd_runs_show, &ls_cmd_runs_diff,
                                         &ls_cmd_runs_export, NULL};

const ls_command ls_cmd_runs = {
    .name = "runs",
    .summary = "list, show and compare runs, and export their curves",
    .about =
        "Reads what runs have reported (events.jsonl of each run folder, and run.db where there "
        "is one). It never writes, so it may be used while a run trains.",
    .examples = "lineshaft runs list --sort val_loss           # which was best\n"
                "lineshaft runs show runs/demo                # one run\n"
                "lineshaft runs diff runs/a runs/b            # settings and results side by side\n"
                "lineshaft runs export runs/demo > demo.csv   # for a spreadsheet or pandas\n",
    .subs = subs,
};
