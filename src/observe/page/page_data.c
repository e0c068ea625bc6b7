/* page_data.c -- see page_data.h.
 *
 * Everything is asked of the run store. A folder whose run has not begun has no store yet: state
 * "starting", and each look tries again. When events.jsonl becomes another file (--fresh), the store is
 * opened anew.
 *
 * Of events a snapshot keeps the newest of each kind (KEPT below): a run of a million steps may have a
 * hundred thousand samples of text. Validations are a series, so their events are left out. */
#include "observe/page/page_data.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/time.h"
#include "observe/run_summary.h"

enum { OTHERS = 200, DIGITS = 7, NEW_POINTS = 2000, LOOK_MS = 2000 };

struct ls_page_data {
    char folder[PATH_MAX - 64];
    ls_run_store *store; /* NULL: the run has not begun */
    ino_t events_inode;
    int64_t opened; /* how often; part of the version */
    int64_t version;
    int64_t look_ns; /* when to see next whether the file is another one */
};

/* --- the store --------------------------------------------------------------------------------- */

static ino_t events_inode(const ls_page_data *d)
{
    char path[PATH_MAX];
    struct stat file;

    snprintf(path, sizeof path, "%s/events.jsonl", d->folder);
    return stat(path, &file) == 0 ? file.st_ino : 0;
}

static ls_status open_store(ls_page_data *d)
{
    ino_t inode = events_inode(d);
    ls_status st = ls_run_store_open(d->folder, &d->store);

    if (st != LS_OK)
        return st;
    d->events_inode = inode;
    d->opened++;
    return LS_OK;
}

ls_status ls_page_data_open(const char *folder, bool early, ls_page_data **data_out)
{
    ls_page_data *d = ls_mem_alloc(sizeof *d);
    ls_status st = d ? LS_OK : LS_ENOMEM;

    if (st != LS_OK)
        return st;
    size_t len = strlen(folder);
    while (len > 1 && folder[len - 1] == '/')
        len--;
    if (len >= sizeof d->folder)
        LS_TRY(st, ls_fail(LS_EUSAGE, "the path of the run folder is too long"), out);
    memcpy(d->folder, folder, len);
    st = open_store(d);
    if (st == LS_EIO && early) {
        ls_err_clear();
        st = LS_OK;
    }
out:
    if (st != LS_OK) {
        ls_page_data_close(d);
        return st;
    }
    *data_out = d;
    return LS_OK;
}

void ls_page_data_close(ls_page_data *d)
{
    if (!d)
        return;
    ls_run_store_close(d->store);
    ls_mem_free(d);
}

ls_status ls_page_data_look(ls_page_data *d, int64_t *version_out)
{
    int64_t version = 0, now = ls_time_now_ns();
    ls_status st = LS_OK;

    if (now >= d->look_ns) {
        d->look_ns = now + LOOK_MS * LS_NS_PER_MS;
        if (d->store && events_inode(d) != d->events_inode) {
            ls_run_store_close(d->store);
            d->store = NULL;
        }
    }
    if (!d->store && open_store(d) != LS_OK)
        ls_err_clear();
    if (d->store)
        st = ls_run_store_version(d->store, &version);
    if (st == LS_OK) {
        d->version = (d->opened << 40) + version;
        *version_out = d->version;
    }
    return st;
}

/* --- series ------------------------------------------------------------------------------------ */

typedef int64_t (*column_of)(const ls_run_point *p);

static int64_t x_of(const ls_run_point *p)
{
    return p->x;
}
static int64_t last_x_of(const ls_run_point *p)
{
    return p->last_x;
}
static int64_t count_of(const ls_run_point *p)
{
    return p->count;
}

static void put_column(ls_json *j, const char *key, const ls_run_point *p, int n, column_of value)
{
    ls_json_put_open(j, key, '[');
    for (int i = 0; i < n; i++)
        ls_json_int(j, value(&p[i]));
    ls_json_close(j);
}

static void put_numbers(ls_json *j, const char *key, const ls_run_point *p, int n, size_t offset)
{
    ls_json_put_open(j, key, '[');
    for (int i = 0; i < n; i++)
        ls_json_round(j, *(const double *)(const void *)((const char *)&p[i] + offset), DIGITS);
    ls_json_close(j);
}

static void put_times(ls_json *j, const ls_run_point *p, int n)
{
    ls_json_put_open(j, "t", '[');
    for (int i = 0; i < n; i++)
        ls_json_round(j, (double)p[i].time_ms / 1e3, 13);
    ls_json_close(j);
}

/* One curve, as the header says. */
static ls_status put_curve(ls_run_store *store, const ls_run_series *s, const int64_t range[2],
                           int bins, ls_json *j)
{
    ls_run_point *p = NULL;
    bool together = false;
    int n;
    ls_status st = ls_run_store_points(store, s->name, s->rank, range[0], range[1], bins, &p, &n);

    if (st != LS_OK)
        return st;
    for (int i = 0; i < n; i++)
        together |= p[i].count > 1;
    ls_json_put_open(j, s->name, '{');
    ls_json_put_str(j, "unit", s->unit);
    if (s->timed)
        ls_json_put_bool(j, "timed", true);
    put_column(j, "x", p, n, x_of);
    put_numbers(j, "m", p, n, offsetof(ls_run_point, mean));
    if (together) {
        put_column(j, "l", p, n, last_x_of);
        put_numbers(j, "lo", p, n, offsetof(ls_run_point, min));
        put_numbers(j, "hi", p, n, offsetof(ls_run_point, max));
        put_column(j, "n", p, n, count_of);
    }
    if (strcmp(s->name, "loss") == 0)
        put_times(j, p, n);
    ls_json_close(j);
    ls_mem_free(p);
    return LS_OK;
}

/* Totals that only grow say nothing as curves. */
static bool is_drawn(const ls_run_series *s)
{
    return s->rank == LS_RUN_WHOLE && strcmp(s->name, "tokens") != 0;
}

static int64_t *last_of(ls_page_cursor *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->series[i].name, name) == 0)
            return &c->series[i].last_x;
    if (c->n == LS_PAGE_SERIES)
        return NULL;
    snprintf(c->series[c->n].name, LS_PAGE_NAME, "%s", name);
    c->series[c->n].last_x = INT64_MIN;
    return &c->series[c->n++].last_x;
}

/* All curves of the run behind the cursor, which moves. */
static ls_status put_series(ls_run_store *store, const ls_run_series *s, int n, int bins,
                            ls_page_cursor *cursor, ls_json *j)
{
    ls_status st = LS_OK;

    ls_json_put_open(j, "series", '{');
    for (int i = 0; i < n; i++) {
        int64_t *last = is_drawn(&s[i]) ? last_of(cursor, s[i].name) : NULL;
        if (!last || s[i].last_x <= *last)
            continue;
        int64_t range[2] = {*last == INT64_MIN ? INT64_MIN : *last + 1, INT64_MAX};
        LS_TRY(st, put_curve(store, &s[i], range, bins, j), out);
        *last = s[i].last_x;
    }
    ls_json_close(j);
out:
    return st;
}

/* The newest value of each rank, in order of ranks; they come sorted by name and rank. */
static void put_ranks(const ls_run_series *s, int n, ls_json *j)
{
    ls_json_put_open(j, "ranks", '{');
    for (int i = 0; i < n;) {
        int rank = 0, from = i;
        for (; i < n && strcmp(s[i].name, s[from].name) == 0; i++)
            rank = s[i].rank;
        if (rank == LS_RUN_WHOLE)
            continue;
        ls_json_put_open(j, s[from].name, '{');
        ls_json_put_str(j, "unit", s[from].unit);
        ls_json_put_open(j, "last", '[');
        rank = 0;
        for (int k = from; k < i; k++) {
            if (s[k].rank < rank)
                continue;
            for (; rank < s[k].rank; rank++)
                ls_json_num(j, (double)NAN);
            ls_json_round(j, s[k].last, DIGITS);
            rank++;
        }
        ls_json_close(j);
        ls_json_close(j);
    }
    ls_json_close(j);
}

/* --- events ------------------------------------------------------------------------------------ */

typedef struct kept {
    const char *kind;
    int most;
} kept;
/* How many of a kind a snapshot has; kinds that are not here are left out. */
static const kept KEPT[] = {
    {"start", 100}, {"summary", 100}, {"incident", 500}, {"checkpoint", 200}, {"sample", 40},
    {"mesh", 4},    {"balance", 20},  {"profile", 20},   {"rank", 4096},      {"log", 500}};

typedef struct gather {
    ls_str *lines[LS_COUNT(KEPT)]; /* rings, owned */
    int64_t seen[LS_COUNT(KEPT)];
    int64_t last_id;
    bool again; /* steps were made again */
} gather;

static void put_event(const ls_run_store_event *event, ls_str *out)
{
    ls_str_printf(out, "{\"id\":%lld,\"attempt\":%d,\"redone\":%s,\"e\":%s}", (long long)event->id,
                  event->attempt, event->redone ? "true" : "false", event->json);
}

static ls_status take_event(void *context, const ls_run_store_event *event)
{
    gather *g = context;

    g->last_id = event->id;
    if (strcmp(event->kind, "start") == 0 ||
        (strcmp(event->kind, "incident") == 0 && strstr(event->json, "\"redone\":")))
        g->again = true;
    for (size_t k = 0; k < LS_COUNT(KEPT); k++) {
        if (strcmp(event->kind, KEPT[k].kind) != 0)
            continue;
        if (!g->lines[k])
            g->lines[k] = ls_mem_array((size_t)KEPT[k].most, sizeof(ls_str));
        if (!g->lines[k])
            return LS_ENOMEM;
        ls_str *line = &g->lines[k][g->seen[k] % KEPT[k].most];
        if (g->seen[k]++ < KEPT[k].most)
            ls_str_init(line);
        ls_str_clear(line);
        put_event(event, line);
        return ls_str_status(line);
    }
    return LS_OK;
}

static void release_events(gather *g)
{
    for (size_t k = 0; k < LS_COUNT(KEPT); k++) {
        for (int64_t i = 0; i < ls_min_i64(g->seen[k], KEPT[k].most); i++)
            ls_str_release(&g->lines[k][i]);
        ls_mem_free(g->lines[k]);
    }
}

/* By kind; the reader sorts them by their ids. */
static void put_events(const gather *g, ls_json *j)
{
    ls_json_put_open(j, "events", '[');
    for (size_t k = 0; k < LS_COUNT(KEPT); k++)
        for (int64_t i = ls_max_i64(0, g->seen[k] - KEPT[k].most); i < g->seen[k]; i++) {
            const ls_str *line = &g->lines[k][i % KEPT[k].most];
            ls_json_raw(j, line->p, line->len);
        }
    ls_json_close(j);
}

/* --- the head ---------------------------------------------------------------------------------- */

static ls_status put_run(ls_run_store *store, const char *folder, ls_json *j)
{
    ls_run_summary r;
    ls_status st;

    ls_json_put_open(j, "run", '{');
    if (!store) {
        ls_json_put_str(j, "state", "starting");
        ls_json_close(j);
        return LS_OK;
    }
    LS_TRY(st, ls_run_summary_read(store, folder, &r), out);
    ls_json_put_str(j, "name", r.name);
    ls_json_put_str(j, "state", r.state);
    ls_json_put_int(j, "steps", r.steps);
    ls_json_put_int(j, "total_steps", r.total_steps);
    ls_json_put_int(j, "tokens", r.tokens);
    ls_json_put_num(j, "loss", r.loss);
    ls_json_put_num(j, "val_loss", r.val_loss);
    ls_json_put_num(j, "best_val_loss", r.best_val_loss);
    ls_json_put_int(j, "best_step", r.best_step);
    ls_json_put_num(j, "tokens_per_s", r.tokens_per_s);
    ls_json_put_int(j, "attempts", r.attempts);
    ls_json_put_int(j, "incidents", r.incidents);
    ls_json_put_num(j, "began", (double)r.began_ms / 1e3);
    ls_json_put_num(j, "updated", (double)r.updated_ms / 1e3);
    ls_json_put_str(j, "weights_hash", r.weights_hash);
    ls_json_close(j);
out:
    return st;
}

static void put_head(const ls_page_data *d, ls_json *j)
{
    ls_json_put_str(j, "version", LS_VERSION);
    ls_json_put_num(j, "now", (double)ls_time_wall_ms() / 1e3);
    ls_json_put_str(j, "folder", d->folder);
}

/* --- runs beside this one ---------------------------------------------------------------------- */

/* The folder that this one lies in. */
static void parent_of(const ls_page_data *d, char *out, size_t size)
{
    const char *slash = strrchr(d->folder, '/');

    if (!slash)
        snprintf(out, size, ".");
    else
        snprintf(out, size, "%.*s", (int)(slash == d->folder ? 1 : slash - d->folder), d->folder);
}

static bool same_folder(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

/* A plain name without a path in it, of a folder with events. */
static bool is_beside(const ls_page_data *d, const char *parent, const char *name, char *folder_out,
                      size_t size)
{
    char path[PATH_MAX];

    if (*name == '.' || !*name || strchr(name, '/'))
        return false;
    if (snprintf(folder_out, size, "%s/%s", parent, name) >= (int)size ||
        snprintf(path, sizeof path, "%s/events.jsonl", folder_out) >= (int)sizeof path)
        return false;
    return ls_file_exists(path) && !same_folder(folder_out, d->folder);
}

bool ls_page_data_beside(ls_page_data *d, const char *name, char *folder_out, size_t size)
{
    char parent[PATH_MAX];

    parent_of(d, parent, sizeof parent);
    return is_beside(d, parent, name, folder_out, size);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void put_others(const ls_page_data *d, ls_json *j)
{
    char parent[PATH_MAX], folder[PATH_MAX], *names[OTHERS];
    struct dirent *entry;
    int n = 0;

    parent_of(d, parent, sizeof parent);
    DIR *dir = opendir(parent);
    while (dir && n < OTHERS && (entry = readdir(dir)))
        if (is_beside(d, parent, entry->d_name, folder, sizeof folder) &&
            (names[n] = strdup(entry->d_name)))
            n++;
    if (dir)
        closedir(dir);
    qsort(names, (size_t)n, sizeof *names, by_name);
    ls_json_put_open(j, "others", '[');
    for (int i = 0; i < n; i++) {
        ls_json_text(j, names[i], strlen(names[i]));
        free(names[i]);
    }
    ls_json_close(j);
}

/* The run that it is compared with: what it set, and the curves that are overlaid. */
static ls_status put_with(const char *folder, int bins, ls_json *j)
{
    static const char *const names[] = {"loss", "val_loss", "lr", "grad_norm", "tokens_per_s"};
    const int64_t all[2] = {INT64_MIN, INT64_MAX};
    const char *name = strrchr(folder, '/');
    ls_run_store *store = NULL;
    ls_str start;
    ls_status st;

    ls_str_init(&start);
    LS_TRY(st, ls_run_store_open(folder, &store), out);
    LS_TRY(st, ls_run_store_fact(store, "start", &start), out);
    ls_json_put_open(j, "with", '{');
    name = name ? name + 1 : folder;
    ls_json_key(j, "name");
    ls_json_text(j, name, strlen(name));
    LS_TRY(st, put_run(store, folder, j), out);
    if (start.len > 0) {
        ls_json_key(j, "start");
        ls_json_raw(j, start.p, start.len);
    }
    ls_json_put_open(j, "series", '{');
    for (size_t i = 0; i < LS_COUNT(names); i++) {
        ls_run_series s = {.rank = LS_RUN_WHOLE};
        snprintf(s.name, sizeof s.name, "%s", names[i]);
        LS_TRY(st, put_curve(store, &s, all, bins, j), out);
    }
    ls_json_close(j);
    ls_json_close(j);
out:
    ls_run_store_close(store);
    ls_str_release(&start);
    return st;
}

/* --- answers ----------------------------------------------------------------------------------- */

/* Inside a page, and in a stream of lines, '<' must not begin markup. It occurs in strings only. */
static ls_status put_tame(const ls_str *json, ls_str *out)
{
    for (const char *at = json->p, *end = at + json->len; at < end;) {
        size_t len = strcspn(at, "<");
        ls_str_append_bytes(out, at, len);
        at += len;
        if (at < end) {
            ls_str_append(out, "\\u003c");
            at++;
        }
    }
    return ls_str_status(json) == LS_OK ? ls_str_status(out) : LS_ENOMEM;
}

static ls_status put_store(ls_page_data *d, int bins, gather *events, ls_page_cursor *cursor,
                           ls_json *j)
{
    ls_run_series *series = NULL;
    int n = 0;
    ls_status st;

    LS_TRY(st, ls_run_store_series(d->store, &series, &n), out);
    LS_TRY(st, ls_run_store_events(d->store, cursor->event, NULL, INT_MAX, take_event, events),
           out);
    cursor->event = ls_max_i64(cursor->event, events->last_id);
    put_events(events, j);
    LS_TRY(st, put_series(d->store, series, n, bins, cursor, j), out);
    put_ranks(series, n, j);
out:
    ls_mem_free(series);
    return st;
}

ls_status ls_page_data_snapshot(ls_page_data *d, const ls_page_request *request,
                                ls_page_cursor *cursor_out, ls_str *out)
{
    ls_page_cursor cursor = {.version = d->version};
    int bins = request->bins > 0 ? request->bins : LS_PAGE_BINS;
    gather events = {.last_id = 0};
    ls_str json;
    ls_json j;
    ls_status st = LS_OK;

    ls_str_init(&json);
    ls_json_begin(&j, &json);
    ls_json_open(&j, '{');
    put_head(d, &j);
    LS_TRY(st, put_run(d->store, d->folder, &j), out);
    if (d->store)
        LS_TRY(st, put_store(d, bins, &events, &cursor, &j), out);
    if (request->others)
        put_others(d, &j);
    if (request->with)
        LS_TRY(st, put_with(request->with, bins, &j), out);
    ls_json_close(&j);
    LS_TRY(st, put_tame(&json, out), out);
    if (cursor_out)
        *cursor_out = cursor;
out:
    release_events(&events);
    ls_str_release(&json);
    return st;
}

/* Whether the store has less than the reader: steps are made again. */
static bool went_back(const ls_page_cursor *c, const ls_run_series *s, int n)
{
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < n; k++)
            if (s[k].rank == LS_RUN_WHOLE && strcmp(s[k].name, c->series[i].name) == 0 &&
                s[k].last_x < c->series[i].last_x)
                return true;
    return false;
}

ls_status ls_page_data_changes(ls_page_data *d, ls_page_cursor *cursor, ls_str *out,
                               bool *again_out)
{
    ls_page_cursor next = *cursor;
    gather events = {.last_id = 0};
    ls_run_series *series = NULL;
    int n = 0;
    ls_str json;
    ls_json j;
    ls_status st = LS_OK;

    ls_str_init(&json);
    *again_out = !d->store || d->version >> 40 != cursor->version >> 40;
    if (*again_out)
        goto out;
    LS_TRY(st, ls_run_store_series(d->store, &series, &n), out);
    *again_out = went_back(cursor, series, n);
    if (*again_out)
        goto out;
    ls_json_begin(&j, &json);
    ls_json_open(&j, '{');
    put_head(d, &j);
    LS_TRY(st, put_run(d->store, d->folder, &j), out);
    LS_TRY(st, put_store(d, NEW_POINTS, &events, &next, &j), out);
    ls_json_close(&j);
    *again_out = events.again;
    if (!events.again)
        LS_TRY(st, put_tame(&json, out), out);
    next.version = d->version;
    *cursor = next;
out:
    release_events(&events);
    ls_mem_free(series);
    ls_str_release(&json);
    return st;
}

ls_status ls_page_data_range(ls_page_data *d, int64_t from_x, int64_t to_x, int bins, ls_str *out)
{
    const int64_t range[2] = {from_x, to_x};
    ls_run_series *series = NULL;
    int n = 0;
    ls_str json;
    ls_json j;
    ls_status st = LS_OK;

    ls_str_init(&json);
    ls_json_begin(&j, &json);
    ls_json_open(&j, '{');
    ls_json_put_open(&j, "series", '{');
    if (d->store)
        LS_TRY(st, ls_run_store_series(d->store, &series, &n), out);
    for (int i = 0; i < n; i++)
        if (is_drawn(&series[i]) && !series[i].timed)
            LS_TRY(st, put_curve(d->store, &series[i], range, bins > 0 ? bins : LS_PAGE_BINS, &j),
                   out);
    ls_json_close(&j);
    ls_json_close(&j);
    st = put_tame(&json, out);
out:
    ls_mem_free(series);
    ls_str_release(&json);
    return st;
}
