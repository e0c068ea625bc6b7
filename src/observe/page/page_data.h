/* page_data.h -- what the page of a run shows, as JSON.
 *
 * A snapshot is all of it:
 *
 *     {"version": of lineshaft, "now": s since 1970, "folder", "run": {state, steps, ...},
 *      "events": [{"id","attempt","redone","e": the event}, ...],     without those of steps
 *      "series": {NAME: {"unit","timed","x":[],"m":[], ...}, ...},    at most `bins` points each
 *      "ranks":  {NAME: {"unit","last":[of rank 0, 1, ...]}, ...},
 *      "others": [names of run folders beside this one],
 *      "with": {"name","run","settings","series"}}                    the run it is compared with
 *
 * In a series x is the step (where timed: milliseconds since 1970) and m the mean. Where points are
 * put together, l is the last x, lo and hi are the smallest and largest value, n how many there are;
 * t is when the last of them was written, and given for one series only. Changes have the same form
 * with what is new; a cursor remembers what a reader has. */
#pragma once
#include "base/err.h"
#include "base/str.h"

LS_C_BEGIN

enum { LS_PAGE_BINS = 600, LS_PAGE_SERIES = 96, LS_PAGE_NAME = 64 };

typedef struct ls_page_data ls_page_data;

/* What one reader has seen. Zero: nothing. */
typedef struct ls_page_cursor {
    int64_t version, event; /* of the store; the id of the last event */
    int n;
    struct {
        char name[LS_PAGE_NAME];
        int64_t last_x;
    } series[LS_PAGE_SERIES];
} ls_page_cursor;

/* The run of a folder. LS_EIO: there is none, unless `early`: then it may begin later. */
ls_status ls_page_data_open(const char *folder, bool early, ls_page_data **data_out);
void ls_page_data_close(ls_page_data *data); /* NULL is allowed */

/* Whether anything was written since the last call: changed_out grows. */
ls_status ls_page_data_look(ls_page_data *data, int64_t *version_out);

typedef struct ls_page_request {
    int bins;         /* of a curve; 0: LS_PAGE_BINS */
    const char *with; /* folder of another run, NULL: none */
    bool others;      /* name the runs beside it */
} ls_page_request;

/* Append a snapshot, without '<' in it. *cursor_out, which may be NULL, is then what its reader has. */
ls_status ls_page_data_snapshot(ls_page_data *data, const ls_page_request *request,
                                ls_page_cursor *cursor_out, ls_str *out);

/* Append what is new since the cursor, and move it; *again_out: steps were made again, or it is
 * another store: the reader needs a snapshot (nothing is appended). */
ls_status ls_page_data_changes(ls_page_data *data, ls_page_cursor *cursor, ls_str *out,
                               bool *again_out);

/* Append {"series": ...} with the points from one x to another, for a reader that looks closer. */
ls_status ls_page_data_range(ls_page_data *data, int64_t from_x, int64_t to_x, int bins,
                             ls_str *out);

/* The folder of a run beside this one by its name, as snapshots list them; false: there is none. */
bool ls_page_data_beside(ls_page_data *data, const char *name, char *folder_out, size_t size);

LS_C_END
