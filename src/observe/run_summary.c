/* run_summary.c -- see run_summary.h. Everything is asked of the run store, so a run that has only
 * events.jsonl is summed up like one with run.db. */
#include "observe/run_summary.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/mem.h"

enum { DEPTH = 3, BINS = 4096 };

/* --- one run ----------------------------------------------------------------------------------- */

static ls_status copy_fact(ls_run_store *store, const char *key, char *out, size_t size)
{
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    LS_TRY(st, ls_run_store_fact(store, key, &text), out);
    snprintf(out, size, "%s", text.p);
out:
    ls_str_release(&text);
    return st;
}

/* The last event of a kind; NULL: there is none. */
static ls_status event_of(ls_run_store *store, const char *kind, json_t **event_out)
{
    ls_str text;
    ls_status st;

    *event_out = NULL;
    ls_str_init(&text);
    LS_TRY(st, ls_run_store_fact(store, kind, &text), out);
    if (text.len > 0)
        *event_out = json_loadb(text.p, text.len, 0, NULL);
out:
    ls_str_release(&text);
    return st;
}

static void copy_text(const json_t *event, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(event, key));

    snprintf(out, size, "%s", text ? text : "");
}

/* What stands in the events themselves. */
static ls_status count_event(void *context, const ls_run_store_event *event)
{
    ls_run_summary *s = context;

    if (event->attempt > s->attempts)
        s->attempts = event->attempt;
    if (event->time_ms > 0 && s->began_ms == 0)
        s->began_ms = event->time_ms;
    if (event->time_ms > s->updated_ms)
        s->updated_ms = event->time_ms;
    s->incidents += strcmp(event->kind, "incident") == 0;
    return LS_OK;
}

static ls_status find_best(ls_run_store *store, ls_run_summary *s)
{
    ls_run_point *points = NULL;
    int n;
    ls_status st = ls_run_store_points(store, "val_loss", LS_RUN_WHOLE, INT64_MIN, INT64_MAX, BINS,
                                       &points, &n);

    if (st != LS_OK)
        return st;
    for (int i = 0; i < n; i++) {
        if (isnan(points[i].min) || points[i].min >= s->best_val_loss)
            continue;
        s->best_val_loss = points[i].min;
        s->best_step = points[i].x;
    }
    ls_mem_free(points);
    return LS_OK;
}

/* Events of an older version carry no times: the file's own time stands for the last one. */
static void look_at_file(ls_run_summary *s)
{
    char path[PATH_MAX + 16];
    struct stat file;

    snprintf(path, sizeof path, "%s/events.jsonl", s->folder);
    if (s->updated_ms == 0 && stat(path, &file) == 0)
        s->updated_ms = (int64_t)file.st_mtim.tv_sec * 1000;
}

ls_status ls_run_summary_read(ls_run_store *store, const char *folder, ls_run_summary *summary_out)
{
    ls_run_summary s = {.best_val_loss = (double)INFINITY, .best_step = -1};
    json_t *start = NULL, *end = NULL;
    double tokens;
    int64_t x;
    ls_status st;

    snprintf(s.folder, sizeof s.folder, "%s", folder);
    LS_TRY(st, copy_fact(store, "state", s.state, sizeof s.state), out);
    LS_TRY(st, event_of(store, "start", &start), out);
    LS_TRY(st, event_of(store, "summary", &end), out);
    LS_TRY(st, ls_run_store_latest(store, "loss", LS_RUN_WHOLE, &s.loss, &s.steps), out);
    LS_TRY(st, ls_run_store_latest(store, "val_loss", LS_RUN_WHOLE, &s.val_loss, &x), out);
    LS_TRY(st, ls_run_store_latest(store, "tokens", LS_RUN_WHOLE, &tokens, &x), out);
    LS_TRY(st, ls_run_store_latest(store, "tokens_per_s", LS_RUN_WHOLE, &s.tokens_per_s, &x), out);
    LS_TRY(st, ls_run_store_events(store, 0, NULL, INT_MAX, count_event, &s), out);
    LS_TRY(st, find_best(store, &s), out);
    s.steps = ls_max_i64(s.steps, 0);
    s.tokens = tokens > 0 ? (int64_t)tokens : 0;
    if (s.best_step < 0)
        s.best_val_loss = (double)NAN;
    copy_text(start, "name", s.name, sizeof s.name);
    s.total_steps = json_integer_value(json_object_get(start, "total_steps"));
    copy_text(end, "weights_hash", s.weights_hash, sizeof s.weights_hash);
    if (json_is_number(json_object_get(end, "tokens_per_s")))
        s.tokens_per_s = json_number_value(json_object_get(end, "tokens_per_s"));
    look_at_file(&s);
    *summary_out = s;
out:
    json_decref(start);
    json_decref(end);
    return st;
}

/* --- runs below a folder ----------------------------------------------------------------------- */

static bool is_run(const char *folder)
{
    static const char *const names[] = {"events.jsonl", "run.db"};
    char path[PATH_MAX + 16];

    for (size_t i = 0; i < LS_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (ls_file_exists(path))
            return true;
    }
    return false;
}

static bool is_folder(const char *path)
{
    struct stat about;

    return lstat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static ls_status search(const char *folder, int depth, ls_str *paths, int *count)
{
    struct dirent **names;
    char path[PATH_MAX];
    int n;

    if (is_run(folder)) {
        ls_str_append_bytes(paths, folder, strlen(folder) + 1);
        ++*count;
        return ls_str_status(paths);
    }
    n = scandir(folder, &names, NULL, alphasort);
    if (n < 0)
        return ls_fail_sys(LS_EIO, "cannot read the folder \"%s\"", folder);
    for (int i = 0; i < n; i++) {
        bool fits =
            snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name) < (int)sizeof path;
        if (names[i]->d_name[0] != '.' && fits && depth > 0 && is_folder(path) &&
            search(path, depth - 1, paths, count) != LS_OK)
            ls_err_clear();
        free(names[i]);
    }
    free(names);
    return ls_str_status(paths);
}

ls_status ls_run_summary_find(const char *folder, ls_str *paths_out, int *count_out)
{
    size_t len = strlen(folder);
    char top[PATH_MAX];

    while (len > 1 && folder[len - 1] == '/')
        len--;
    *count_out = 0;
    if (snprintf(top, sizeof top, "%.*s", (int)len, folder) >= (int)sizeof top)
        return ls_fail(LS_EUSAGE, "the path of the folder is too long");
    return search(top, DEPTH, paths_out, count_out);
}
