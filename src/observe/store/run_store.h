/* run_store.h -- what a run has reported, for readers: series of numbers, events, settings.
 *
 * A run folder has events.jsonl (docs/reference/events.md), the log of record, and run.db, an SQLite
 * file that the run fills in the background: the same events, and what they do not hold (figures of
 * each rank, telemetry of hosts, log lines). A reader opens run.db read-only, also while the run
 * writes. Where there is none (an older run, or a run folder on a network file system), or where it
 * cannot be read, events.jsonl is read into memory instead, and the calls below answer from there.
 *
 * A series is named by (name, rank): rank -1 is the whole run. Its points are ordered by x: the
 * number of steps done ("loss"), or, where `timed`, milliseconds since 1970 ("host.cpu_ratio"). A
 * step that was made again has replaced the points of the first time.
 *
 * Thread-safety: one thread per open store. Open as many as there are threads. */
#pragma once
#include "base/err.h"
#include "base/str.h"

LS_C_BEGIN

enum { LS_RUN_SERIES_NAME = 64, LS_RUN_EVENT_KIND = 16, LS_RUN_WHOLE = -1 };

typedef struct ls_run_store ls_run_store;

/* Open the store of a run folder, read-only. LS_EIO: no run folder (neither run.db nor
 * events.jsonl). LS_EDATA: both are there but neither can be read. */
ls_status ls_run_store_open(const char *folder, ls_run_store **store_out);
void ls_run_store_close(ls_run_store *store); /* NULL is allowed */

/* Look whether anything was written since the last call. *version_out is equal as long as nothing
 * changed; cheap enough for every 100 ms. Without run.db this reads the new lines of events.jsonl. */
ls_status ls_run_store_version(ls_run_store *store, int64_t *version_out);

typedef struct ls_run_series {
    char
        name[LS_RUN_SERIES_NAME]; /* "loss", "split.forward_ms", "rank.step_ms", "host.cpu_ratio" */
    char unit[16];                /* "", "ms", "tokens/s", "ratio", "bytes", "bytes/s", "W" ... */
    int rank;                     /* LS_RUN_WHOLE: of the run */
    bool timed;                   /* x is milliseconds since 1970, not a step */
    int64_t points;               /* about: of the last version */
    int64_t first_x, last_x;
    double last; /* the newest value; NaN: it was not a finite number */
} ls_run_series;

/* All series, by name and rank. *series_out is owned by the caller (ls_mem_free()). */
ls_status ls_run_store_series(ls_run_store *store, ls_run_series **series_out, int *n_out);

/* One bin of a curve: `count` points from x to last_x. Where count is 1 all values are equal. */
typedef struct ls_run_point {
    int64_t x, last_x;
    int64_t time_ms; /* when the last of them was written, since 1970; 0: not known */
    int64_t count;   /* 0: they were not finite numbers; min, max, mean are NaN */
    double min, max, mean;
} ls_run_point;

/* The points with from_x <= x <= to_x (INT64_MIN and INT64_MAX: all), in order of x, put together in
 * at most max_points bins (at least 2) that keep the smallest and the largest value of each: no peak
 * is lost. One rank of one series; a name that does not exist gives no points. 10 million points take
 * milliseconds. *points_out is owned by the caller (ls_mem_free()). */
ls_status ls_run_store_points(ls_run_store *store, const char *name, int rank, int64_t from_x,
                              int64_t to_x, int max_points, ls_run_point **points_out, int *n_out);

/* One event. Strings are borrowed for the duration of the call of the visitor. */
typedef struct ls_run_store_event {
    int64_t id;       /* grows; one that was seen keeps its number */
    int64_t time_ms;  /* since 1970; 0: not known (written by an older version) */
    const char *kind; /* "rank", "mesh", "start", "eval", "sample", "checkpoint", "incident",
                       * "balance", "profile", "summary" as in docs/reference/events.md, and "log" */
    int64_t step;     /* -1: has none */
    int rank;         /* LS_RUN_WHOLE: of the run */
    int attempt;      /* 1: the first process that trained; one more for each that resumed */
    bool redone;      /* its step was made again later */
    const char *json; /* the whole event; a log line is {"event":"log","level":"warn","text":...} */
} ls_run_store_event;
typedef ls_status (*ls_run_store_visit)(void *context, const ls_run_store_event *event);

/* Events with an id above after_id, the oldest first, at most limit of them; kinds: "eval,incident",
 * NULL: all. Steps are no events here: their values are points. A status of visit other than LS_OK
 * ends it and is returned. */
ls_status ls_run_store_events(ls_run_store *store, int64_t after_id, const char *kinds, int limit,
                              ls_run_store_visit visit, void *context);

/* A fact of the run as JSON or text; "" where it is not known. Keys:
 *   "settings"  the run file as resolved: what `lineshaft config explain --json` prints
 *   "start", "summary"  the last event of this kind
 *   "state"     "running", "finished", "stopped", "failed"; or "lost": it ended without a word
 *   "tags"      words separated by a space; "note": text of a person
 *   "lineage"   {"parent": checkpoint or folder, "data_hash": ..., "version": ...}
 *   "host", "pid", "updated_ms"  of the writer */
ls_status ls_run_store_fact(ls_run_store *store, const char *key, ls_str *value_out);

/* The newest value of a series, without a list of all: NaN where there is none. */
ls_status ls_run_store_latest(ls_run_store *store, const char *name, int rank, double *value_out,
                              int64_t *x_out);

LS_C_END
