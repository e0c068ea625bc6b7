/* cmd_runs_export.c -- `lineshaft runs export`: curves of a run as CSV or JSON.
 *
 * Series of steps are joined by their x: a row for each step at which one of them has a value.
 *
 *     step  loss  val_loss              a step without validation leaves its place empty
 *     9     2.31
 *     10    2.29  2.35                                                                      */
#include "cli/runs/cmd_runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "cli/term.h"

enum { MOST_SERIES = 256 };

typedef struct column {
    char name[LS_RUN_SERIES_NAME + 16];
    const char *series; /* borrowed from the list of the store */
    int rank;
    ls_run_point *points; /* owned */
    int n, at;
} column;

typedef struct table {
    column columns[MOST_SERIES];
    int n;
} table;

static void release(table *t)
{
    for (int i = 0; i < t->n; i++)
        ls_mem_free(t->columns[i].points);
}

/* Whether a word of a list with commas is this name, or its beginning up to a point ("split"). */
static bool is_wanted(const char *list, const char *name)
{
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',') {
        size_t len = strcspn(at, ",");
        if (strncmp(at, name, len) == 0 && (name[len] == '\0' || name[len] == '.'))
            return true;
    }
    return !list;
}

static ls_status add_column(table *t, ls_run_store *store, const ls_run_series *series, int bins)
{
    column *c = &t->columns[t->n];

    if (t->n == MOST_SERIES) {
        ls_err_hint("Name those that you want with --series.");
        return ls_fail(LS_EUSAGE, "the run has more than %d series", MOST_SERIES);
    }
    *c = (column){.series = series->name, .rank = series->rank};
    if (series->rank == LS_RUN_WHOLE)
        snprintf(c->name, sizeof c->name, "%s", series->name);
    else
        snprintf(c->name, sizeof c->name, "%s.%d", series->name, series->rank);
    t->n++;
    return ls_run_store_points(store, series->name, series->rank, INT64_MIN, INT64_MAX, bins,
                               &c->points, &c->n);
}

/* The smallest x that no row has had. */
static bool next_x(const table *t, int64_t *x_out)
{
    int64_t x = INT64_MAX;

    for (int i = 0; i < t->n; i++)
        if (t->columns[i].at < t->columns[i].n)
            x = ls_min_i64(x, t->columns[i].points[t->columns[i].at].x);
    *x_out = x;
    return x < INT64_MAX;
}

/* The value at x, and past it; NaN where there is none. */
static double value_at(column *c, int64_t x)
{
    return c->at < c->n && c->points[c->at].x == x ? c->points[c->at++].mean : (double)NAN;
}

static ls_status put_csv(table *t, ls_str *out)
{
    int64_t x;
    ls_json number;
    ls_status st = LS_OK;

    ls_str_append(out, "step");
    for (int i = 0; i < t->n; i++)
        ls_str_printf(out, ",%s", t->columns[i].name);
    ls_str_append_char(out, '\n');
    while (next_x(t, &x)) {
        ls_str_printf(out, "%lld", (long long)x);
        for (int i = 0; i < t->n; i++) {
            double value = value_at(&t->columns[i], x);
            ls_str_append_char(out, ',');
            ls_json_begin(&number, out); /* the shortest text that reads back */
            if (isfinite(value))
                ls_json_num(&number, value);
        }
        ls_str_append_char(out, '\n');
        LS_TRY(st, ls_term_print_some(out), out);
    }
out:
    return st;
}

static ls_status put_json(table *t, ls_str *out)
{
    int64_t x;
    ls_json json;
    ls_status st = LS_OK;

    while (next_x(t, &x)) {
        ls_json_begin(&json, out);
        ls_json_open(&json, '{');
        ls_json_put_int(&json, "step", x);
        for (int i = 0; i < t->n; i++) {
            double value = value_at(&t->columns[i], x);
            if (isfinite(value))
                ls_json_put_num(&json, t->columns[i].name, value);
        }
        ls_json_close(&json);
        ls_str_append_char(out, '\n');
        LS_TRY(st, ls_term_print_some(out), out);
    }
out:
    return st;
}

/* A name that no series has is a mistake, not an empty column. */
static ls_status check_names(const char *list, const ls_run_series *series, int n)
{
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',') {
        char word[LS_RUN_SERIES_NAME];
        bool found = false;

        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
        for (int i = 0; i < n && !found; i++)
            found = !series[i].timed && is_wanted(word, series[i].name);
        if (!found) {
            ls_fail(LS_EUSAGE, "the run has no series \"%s\"", word);
            ls_err_hint("\"lineshaft runs show RUN --json\" lists them.");
            return LS_EUSAGE;
        }
    }
    return LS_OK;
}

static ls_status run_export(const ls_args *args, ls_str *out)
{
    const char *list = ls_args_value(args, "series"), *form = ls_args_value(args, "format");
    ls_run_store *store = NULL;
    ls_run_series *series = NULL;
    table *t = ls_mem_alloc(sizeof *t);
    int64_t bins;
    int n = 0;
    ls_status st = t ? LS_OK : LS_ENOMEM;

    if (st != LS_OK)
        return st;
    LS_TRY(st, ls_args_number(args, "points", INT_MAX, 2, INT_MAX, &bins), out);
    LS_TRY(st, ls_cmd_runs_open(args, 0, &store), out);
    LS_TRY(st, ls_run_store_series(store, &series, &n), out);
    LS_TRY(st, check_names(list, series, n), out);
    for (int i = 0; i < n; i++)
        if (!series[i].timed && is_wanted(list, series[i].name))
            LS_TRY(st, add_column(t, store, &series[i], (int)bins), out);
    st = (form && strcmp(form, "json") == 0 ? put_json : put_csv)(t, out);
out:
    release(t);
    ls_mem_free(t);
    ls_mem_free(series);
    ls_run_store_close(store);
    return st;
}

static const ls_flag flags[] = {
    {.name = "series",
     .value = "NAME,...",
     .doc = "Export only these series; a name like split stands for split.forward_ms and its "
            "neighbours, too."},
    {.name = "points",
     .value = "N",
     .doc = "Put steps together in at most N points of each series, with their mean."},
    {.name = "format",
     .value = "csv|json",
     .doc = "Write a table with commas (the default), or one JSON object per line."},
    {.name = NULL},
};

const ls_command ls_cmd_runs_export = {
    .name = "export",
    .summary = "write the curves of a run as CSV or JSON lines",
    .arguments = "RUN",
    .about =
        "Writes one line for each step: loss, learning rate, gradient norm, validation loss, "
        "speed and the parts of the step's time. Where a series has no value at a step its place "
        "stays empty. A step that was made again after a failure appears once, with its last "
        "value. RUN is a run folder.",
    .examples = "lineshaft runs export runs/demo > demo.csv                    # all series\n"
                "lineshaft runs export runs/demo --series loss,val_loss        # two of them\n"
                "lineshaft runs export runs/demo --format json --points 500    # for programs\n",
    .flags = flags,
    .run = run_export,
};
