/* cmd_runs_show.c -- `lineshaft runs show`: one run in full. */
#include "cli/runs/cmd_runs.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "cli/term.h"

enum { EVENTS_SHOWN = 10 };

/* What a person asks about first; the rest is in --json and in `runs export`. */
static void put_result(const ls_run_summary *r, ls_str *out)
{
    char steps[48], loss[24], val[24], best[24], began[32], updated[32];

    ls_str_printf(out, "run         %s\nstate       %s", *r->name ? r->name : r->folder, r->state);
    if (r->attempts > 1)
        ls_str_printf(out, ", attempt %d", r->attempts);
    ls_str_printf(out, "\nsteps       %s, %lld tokens\n", ls_cmd_runs_steps(r, steps),
                  (long long)r->tokens);
    ls_str_printf(out, "loss        %s, validation %s", ls_cmd_runs_number(r->loss, loss),
                  ls_cmd_runs_number(r->val_loss, val));
    if (!isnan(r->best_val_loss))
        ls_str_printf(out, " (best %s after step %lld)", ls_cmd_runs_number(r->best_val_loss, best),
                      (long long)r->best_step);
    ls_str_append_char(out, '\n');
    if (!isnan(r->tokens_per_s))
        ls_str_printf(out, "speed       %.0f tokens/s\n", r->tokens_per_s);
    ls_str_printf(out, "time        began %s, last event %s\n",
                  ls_cmd_runs_time(r->began_ms, began), ls_cmd_runs_time(r->updated_ms, updated));
    if (*r->weights_hash)
        ls_str_printf(out, "weights     %s\n", r->weights_hash);
}

/* The settings of the run file, one line each. */
static ls_status put_settings(ls_run_store *store, ls_str *out)
{
    const char *key;
    json_t *start = NULL, *value;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    LS_TRY(st, ls_run_store_fact(store, "start", &text), out);
    start = json_loadb(text.p, text.len, 0, NULL);
    if (json_object_size(json_object_get(start, "settings")) > 0)
        ls_str_append(out, "\nsettings\n");
    json_object_foreach(json_object_get(start, "settings"), key, value)
    {
        char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        if (!shown)
            LS_TRY(st, LS_ENOMEM, out);
        ls_str_printf(out, "  %-24s %s\n", key, shown);
        free(shown);
    }
out:
    json_decref(start);
    ls_str_release(&text);
    return st;
}

/* The last incidents, in order. */
typedef struct tail {
    ls_str lines[EVENTS_SHOWN];
    int n;
} tail;

static ls_status take_incident(void *context, const ls_run_store_event *event)
{
    tail *t = context;
    ls_str *line = &t->lines[t->n++ % EVENTS_SHOWN];
    json_t *about = json_loads(event->json, 0, NULL);
    const char *text = json_string_value(json_object_get(about, "text"));

    ls_str_clear(line);
    ls_str_printf(line, "  step %-8lld %s\n", (long long)event->step, text ? text : "");
    json_decref(about);
    return ls_str_status(line);
}

static ls_status put_incidents(ls_run_store *store, ls_str *out)
{
    tail t = {.n = 0};
    ls_status st;

    for (int i = 0; i < EVENTS_SHOWN; i++)
        ls_str_init(&t.lines[i]);
    st = ls_run_store_events(store, 0, "incident", INT_MAX, take_incident, &t);
    if (st == LS_OK && t.n > 0)
        ls_str_append(out, t.n > EVENTS_SHOWN ? "\nincidents (the last ten)\n" : "\nincidents\n");
    for (int i = t.n > EVENTS_SHOWN ? t.n - EVENTS_SHOWN : 0; st == LS_OK && i < t.n; i++)
        ls_str_append(out, t.lines[i % EVENTS_SHOWN].p);
    for (int i = 0; i < EVENTS_SHOWN; i++)
        ls_str_release(&t.lines[i]);
    return st;
}

static ls_status put_series(ls_run_store *store, ls_json *json)
{
    ls_run_series *series = NULL;
    int n;
    ls_status st = ls_run_store_series(store, &series, &n);

    if (st != LS_OK)
        return st;
    ls_json_put_open(json, "series", '[');
    for (int i = 0; i < n; i++) {
        ls_json_open(json, '{');
        ls_json_put_str(json, "name", series[i].name);
        if (series[i].rank != LS_RUN_WHOLE)
            ls_json_put_int(json, "rank", series[i].rank);
        ls_json_put_str(json, "unit", series[i].unit);
        ls_json_put_int(json, "points", series[i].points);
        ls_json_put_num(json, "last", series[i].last);
        ls_json_close(json);
    }
    ls_json_close(json);
    ls_mem_free(series);
    return LS_OK;
}

static ls_status run_show(const ls_args *args, ls_str *out)
{
    ls_run_store *store = NULL;
    ls_run_summary run;
    ls_json json;
    ls_status st;

    LS_TRY(st, ls_cmd_runs_open(args, 0, &store), out);
    LS_TRY(st, ls_run_summary_read(store, args->rest[0], &run), out);
    if (ls_args_has(args, "json")) {
        ls_json_begin(&json, out);
        ls_json_open(&json, '{');
        ls_cmd_runs_put(&json, &run);
        LS_TRY(st, put_series(store, &json), out);
        ls_json_close(&json);
        ls_str_append_char(out, '\n');
    } else {
        put_result(&run, out);
        LS_TRY(st, put_settings(store, out), out);
        LS_TRY(st, put_incidents(store, out), out);
        ls_term_fold_stdout(args, out);
    }
out:
    ls_run_store_close(store);
    return st;
}

static const ls_flag flags[] = {
    {.name = "json",
     .letter = 'j',
     .doc = "Print one JSON object instead of text, with the names of all series."},
    {.name = NULL},
};

const ls_command ls_cmd_runs_show = {
    .name = "show",
    .summary = "show one run: results, settings, incidents",
    .arguments = "RUN",
    .about =
        "Prints how far the run came and how well, what its run file sets, and the failures that "
        "it survived. RUN is a run folder.",
    .examples = "lineshaft runs show runs/demo         # for people\n"
                "lineshaft runs show runs/demo --json  # for programs\n",
    .flags = flags,
    .run = run_show,
};
