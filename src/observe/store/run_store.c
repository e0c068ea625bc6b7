/* run_store.c -- see run_store.h.
 *
 * Where the numbers are read from:
 *
 *     run.db, and its writer lives                  the file, as it grows
 *     run.db, and events.jsonl says no more         the file
 *     run.db that is a backup or was cut off        a copy in memory, and the rest of events.jsonl
 *     no run.db, or none that can be read           events.jsonl, in memory
 *
 * A curve of max_points bins reads the coarsest level that has at least that many bins in the range,
 * and the values themselves at both ragged edges:
 *
 *     range           |   .------------------------------.   |
 *     level           |-------|-------|-------|-------|-------|
 *     read             values  bin     bin     bin     values        */
#include "observe/store/run_store.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/time.h"
#include "observe/store/store_ingest.h"
#include "observe/store/store_writer.h"

enum { COPY_MOST = 1 << 28, LOOK_S = 2, ALIVE_S = 60 };

struct ls_run_store {
    char folder[PATH_MAX - 16], file[PATH_MAX];
    ls_store_db db;
    bool memory;     /* events.jsonl is read into it by this store */
    ino_t inode;     /* of the file that is open */
    int64_t version; /* grows when something was read, or the file is another one */
    int64_t look_ns; /* when to see next whether the file is another one */
};

/* --- opening ----------------------------------------------------------------------------------- */

static int64_t events_bytes(const ls_run_store *s)
{
    char path[PATH_MAX];
    struct stat file;

    snprintf(path, sizeof path, "%s/events.jsonl", s->folder);
    return stat(path, &file) == 0 ? file.st_size : -1;
}

/* Whether the process that fills the store is there: by its number on this host, else by the age of
 * what it wrote last. */
static bool writer_lives(ls_store_db *db)
{
    char host[64] = "";
    int64_t pid = 0, began = 0, updated = 0;
    bool lives = false;
    ls_str at;

    ls_str_init(&at);
    gethostname(host, sizeof host - 1);
    if (ls_store_db_get(db, "host", &at) == LS_OK &&
        ls_store_db_get_int(db, "pid", &pid) == LS_OK &&
        ls_store_db_get_int(db, "pid_start", &began) == LS_OK &&
        ls_store_db_get_int(db, "updated_ms", &updated) == LS_OK && pid > 0)
        lives = strcmp(at.p, host) == 0 ? ls_store_writer_start_of((int)pid) == began
                                        : ls_time_wall_ms() - updated < ALIVE_S * 1000;
    ls_str_release(&at);
    return lives;
}

/* Whether run.db alone says all there is, or will. */
static bool file_suffices(ls_run_store *s)
{
    int64_t offset = 0, backup = 0;

    if (ls_store_db_get_int(&s->db, "events_offset", &offset) != LS_OK ||
        ls_store_db_get_int(&s->db, "backup", &backup) != LS_OK)
        return false;
    return (!backup && writer_lives(&s->db)) || offset >= events_bytes(s);
}

static ls_status copy_to_memory(ls_store_db *file, ls_store_db *memory_out)
{
    ls_store_db memory;
    ls_status st = ls_store_db_open(&memory, ":memory:");

    if (st != LS_OK)
        return st;
    if (file) {
        sqlite3_backup *copy = sqlite3_backup_init(memory.db, "main", file->db, "main");
        int rc = copy ? sqlite3_backup_step(copy, -1) : SQLITE_ERROR;
        if (!copy || sqlite3_backup_finish(copy) != SQLITE_OK || rc != SQLITE_DONE)
            st = ls_fail(LS_EIO, "cannot copy \"%s\" to memory", file->path);
    }
    if (st == LS_OK)
        *memory_out = memory;
    else
        ls_store_db_close(&memory);
    return st;
}

/* Take what events.jsonl has and the database lacks. */
static ls_status catch_up(ls_run_store *s)
{
    int64_t lines;
    ls_status st = ls_store_ingest_events(&s->db, s->folder, INT64_MAX, &lines);

    s->version += lines > 0;
    return st;
}

static ls_status open_file(ls_run_store *s)
{
    struct stat file;
    ls_store_db memory;
    ls_status st;

    LS_TRY(st, ls_store_db_open_read(&s->db, s->file), out);
    if (stat(s->file, &file) != 0)
        LS_TRY(st, ls_fail_sys(LS_EIO, "cannot read \"%s\"", s->file), out);
    s->inode = file.st_ino;
    s->memory = !file_suffices(s) && file.st_size <= COPY_MOST;
    if (s->memory) {
        LS_TRY(st, copy_to_memory(&s->db, &memory), out);
        ls_store_db_close(&s->db);
        s->db = memory;
        st = catch_up(s);
    }
out:
    if (st != LS_OK)
        ls_store_db_close(&s->db);
    return st;
}

static ls_status open_either(ls_run_store *s)
{
    ls_status st = LS_EIO;

    if (ls_file_exists(s->file))
        st = open_file(s);
    if (st == LS_OK || (st != LS_EIO && st != LS_EDATA && st != LS_EBUSY))
        return st;
    if (events_bytes(s) < 0)
        return ls_file_exists(s->file)
                   ? st
                   : ls_fail(LS_EIO, "\"%s\" is no run folder: it has no events.jsonl", s->folder);
    ls_err_clear();
    s->memory = true;
    s->inode = 0;
    LS_TRY(st, ls_store_db_open(&s->db, ":memory:"), out);
    st = catch_up(s);
out:
    return st;
}

ls_status ls_run_store_open(const char *folder, ls_run_store **store_out)
{
    ls_run_store *s = ls_mem_alloc(sizeof *s);
    ls_status st;

    if (!s)
        return LS_ENOMEM;
    if (snprintf(s->folder, sizeof s->folder, "%s", folder) >= (int)sizeof s->folder)
        LS_TRY(st, ls_fail(LS_EUSAGE, "the path of the run folder is too long"), out);
    snprintf(s->file, sizeof s->file, "%s/run.db", s->folder);
    s->version = 1;
    LS_TRY(st, open_either(s), out);
    *store_out = s;
out:
    if (st != LS_OK)
        ls_run_store_close(s);
    return st;
}

void ls_run_store_close(ls_run_store *s)
{
    if (!s)
        return;
    ls_store_db_close(&s->db);
    ls_mem_free(s);
}

/* Where the file is another one now (a backup, or a run that began), open it. */
static ls_status look(ls_run_store *s)
{
    struct stat file;
    ls_store_db next;
    bool better;
    ls_status st = LS_OK;

    s->look_ns = ls_time_now_ns() + LOOK_S * LS_NS_PER_S;
    if (stat(s->file, &file) != 0 || (!s->memory && file.st_ino == s->inode))
        return LS_OK;
    better = !s->memory || file.st_ino != s->inode;
    if (!better && ls_store_db_open_read(&next, s->file) == LS_OK) {
        int64_t backup = 0;
        better = ls_store_db_get_int(&next, "backup", &backup) == LS_OK && !backup &&
                 writer_lives(&next);
        ls_store_db_close(&next);
    }
    ls_err_clear();
    if (better) {
        ls_store_db_close(&s->db);
        s->version += 1 << 20;
        st = open_either(s);
    }
    return st;
}

ls_status ls_run_store_version(ls_run_store *s, int64_t *version_out)
{
    static const char VERSION[] = "PRAGMA data_version";
    sqlite3_stmt *q;
    int64_t changes = 0;
    ls_status st = LS_OK;

    if (ls_time_now_ns() >= s->look_ns)
        LS_TRY(st, look(s), out);
    if (s->memory) {
        LS_TRY(st, catch_up(s), out);
    } else {
        LS_TRY(st, ls_store_db_statement(&s->db, VERSION, &q), out);
        if (sqlite3_step(q) == SQLITE_ROW)
            changes = sqlite3_column_int64(q, 0);
        sqlite3_reset(q);
    }
    *version_out = s->version + changes;
out:
    return st;
}

/* --- series ------------------------------------------------------------------------------------ */

static double number_at(sqlite3_stmt *q, int column)
{
    return sqlite3_column_type(q, column) == SQLITE_NULL ? (double)NAN
                                                         : sqlite3_column_double(q, column);
}

static void text_at(sqlite3_stmt *q, int column, char *out, size_t size)
{
    const unsigned char *text = sqlite3_column_text(q, column);

    snprintf(out, size, "%s", text ? (const char *)text : "");
}

ls_status ls_run_store_series(ls_run_store *s, ls_run_series **series_out, int *n_out)
{
    static const char LIST[] =
        "SELECT name, unit, rank, timed, n, (SELECT min(x) FROM points WHERE series = s.id), "
        "(SELECT "
        "max(x) FROM points WHERE series = s.id), (SELECT value FROM points WHERE series = s.id "
        "ORDER BY x DESC LIMIT 1) FROM series s ORDER BY name, rank";
    ls_run_series *list = NULL;
    sqlite3_stmt *q;
    int n = 0, rc = SQLITE_DONE;
    ls_status st;

    LS_TRY(st, ls_store_db_statement(&s->db, LIST, &q), out);
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        ls_run_series *more = ls_mem_one_more(list, (size_t)n, sizeof *list);
        if (!more) {
            st = LS_ENOMEM;
            break;
        }
        list = more;
        if (sqlite3_column_type(q, 5) == SQLITE_NULL) /* all of it was forgotten */
            continue;
        ls_run_series *row = &list[n++];
        *row = (ls_run_series){.rank = sqlite3_column_int(q, 2),
                               .timed = sqlite3_column_int(q, 3),
                               .points = sqlite3_column_int64(q, 4),
                               .first_x = sqlite3_column_int64(q, 5),
                               .last_x = sqlite3_column_int64(q, 6),
                               .last = number_at(q, 7)};
        text_at(q, 0, row->name, sizeof row->name);
        text_at(q, 1, row->unit, sizeof row->unit);
    }
    sqlite3_reset(q);
    if (st == LS_OK && rc != SQLITE_DONE)
        st = ls_store_db_fail(&s->db, "read");
out:
    if (st != LS_OK) {
        ls_mem_free(list);
        return st;
    }
    *series_out = list;
    *n_out = n;
    return LS_OK;
}

/* A series that is asked for. */
typedef struct found_series {
    int64_t id, first_x, last_x;
    bool timed;
} found_series;

/* id 0: there is none, or it has no points. */
static ls_status find_series(ls_run_store *s, const char *name, int rank, found_series *found_out)
{
    static const char FIND[] =
        "SELECT id, timed, (SELECT min(x) FROM points WHERE series = s.id), (SELECT max(x) FROM "
        "points WHERE series = s.id) FROM series s WHERE name = ?1 AND rank = ?2";
    sqlite3_stmt *q;
    ls_status st = ls_store_db_statement(&s->db, FIND, &q);

    *found_out = (found_series){0};
    if (st != LS_OK)
        return st;
    sqlite3_bind_text(q, 1, name, -1, SQLITE_STATIC);
    sqlite3_bind_int(q, 2, rank);
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW && sqlite3_column_type(q, 2) != SQLITE_NULL)
        *found_out = (found_series){.id = sqlite3_column_int64(q, 0),
                                    .timed = sqlite3_column_int(q, 1),
                                    .first_x = sqlite3_column_int64(q, 2),
                                    .last_x = sqlite3_column_int64(q, 3)};
    else if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        st = ls_store_db_fail(&s->db, "read");
    sqlite3_reset(q);
    return st;
}

ls_status ls_run_store_latest(ls_run_store *s, const char *name, int rank, double *value_out,
                              int64_t *x_out)
{
    static const char LAST[] =
        "SELECT value, x FROM points WHERE series = ?1 ORDER BY x DESC LIMIT 1";
    found_series found;
    sqlite3_stmt *q;
    double value = (double)NAN;
    int64_t x = -1;
    ls_status st;

    LS_TRY(st, find_series(s, name, rank, &found), out);
    if (found.id) {
        LS_TRY(st, ls_store_db_statement(&s->db, LAST, &q), out);
        sqlite3_bind_int64(q, 1, found.id);
        if (sqlite3_step(q) == SQLITE_ROW) {
            value = number_at(q, 0);
            x = sqlite3_column_int64(q, 1);
        }
        sqlite3_reset(q);
    }
    *value_out = value;
    *x_out = x;
out:
    return st;
}

/* --- curves ------------------------------------------------------------------------------------ */

/* Bins of the answer while they are made. Their sums are in mean until the end. */
typedef struct curve {
    ls_run_point *points; /* as many as the caller allows */
    int n, most, at;      /* at: number of the bin that is open, -1: none */
    int64_t from, span;
} curve;

static int bin_of(const curve *c, int64_t x)
{
    if (c->span <= c->most)
        return (int)(x - c->from);
    return (int)((double)(x - c->from) * c->most / (double)c->span);
}

/* Add a row: a value, or a bin of a level. */
static void add_row(curve *c, const ls_run_point *row)
{
    int bin = (int)ls_min_i64(bin_of(c, row->x), c->most - 1);

    if (bin != c->at) {
        c->points[c->n++] = *row;
        c->at = bin;
        return;
    }
    ls_run_point *p = &c->points[c->n - 1];
    p->last_x = row->last_x;
    p->time_ms = row->time_ms;
    if (row->count == 0)
        return;
    p->min = p->count == 0 || row->min < p->min ? row->min : p->min;
    p->max = p->count == 0 || row->max > p->max ? row->max : p->max;
    p->mean = p->count == 0 ? row->mean : p->mean + row->mean;
    p->count += row->count;
}

static const char VALUES[] =
    "SELECT x, x, time, value IS NOT NULL, value, value, value FROM points WHERE series = ?1 AND x "
    "BETWEEN ?2 AND ?3 ORDER BY x";
static const char BINS[] = "SELECT x, last_x, time, count, min, max, sum FROM bins WHERE series = "
                           "?1 AND bin BETWEEN ?2 AND "
                           "?3 AND level = ?4 ORDER BY bin";

/* All rows of a level (0: values) from one x, or bin, to another. */
static ls_status read_rows(ls_run_store *s, int64_t id, int level, const int64_t range[2], curve *c)
{
    sqlite3_stmt *q;
    int rc;
    ls_status st;

    if (range[0] > range[1])
        return LS_OK;
    LS_TRY(st, ls_store_db_statement(&s->db, level ? BINS : VALUES, &q), out);
    sqlite3_bind_int64(q, 1, id);
    sqlite3_bind_int64(q, 2, range[0]);
    sqlite3_bind_int64(q, 3, range[1]);
    if (level)
        sqlite3_bind_int(q, 4, level);
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        ls_run_point row = {.x = sqlite3_column_int64(q, 0),
                            .last_x = sqlite3_column_int64(q, 1),
                            .time_ms = sqlite3_column_int64(q, 2),
                            .count = sqlite3_column_int64(q, 3),
                            .min = number_at(q, 4),
                            .max = number_at(q, 5),
                            .mean = number_at(q, 6)};
        add_row(c, &row);
    }
    sqlite3_reset(q);
    if (rc != SQLITE_DONE)
        st = ls_store_db_fail(&s->db, "read");
out:
    return st;
}

/* The coarsest level with at least as many bins in the span as are asked for; 0: values. */
static int choose_level(const found_series *f, int64_t span, int most)
{
    int level = LS_STORE_LEVELS, least = f->timed ? 3 : 1;

    while (level >= least && span >> (level * LS_STORE_FANOUT_BITS) < most)
        level--;
    return level >= least ? level : 0;
}

static ls_status read_curve(ls_run_store *s, const found_series *f, int64_t from, int64_t to,
                            curve *c)
{
    int level = choose_level(f, c->span, c->most), shift = level * LS_STORE_FANOUT_BITS;
    int64_t width = INT64_C(1) << shift, first = (from + width - 1) >> shift;
    int64_t last = ((to + 1) >> shift) - 1; /* bins that lie in the range as a whole */
    ls_status st;

    if (level == 0)
        return read_rows(s, f->id, 0, (int64_t[]){from, to}, c);
    LS_TRY(st, read_rows(s, f->id, 0, (int64_t[]){from, (first << shift) - 1}, c), out);
    LS_TRY(st, read_rows(s, f->id, level, (int64_t[]){first, last}, c), out);
    st = read_rows(s, f->id, 0, (int64_t[]){(last + 1) << shift, to}, c);
out:
    return st;
}

ls_status ls_run_store_points(ls_run_store *s, const char *name, int rank, int64_t from_x,
                              int64_t to_x, int max_points, ls_run_point **points_out, int *n_out)
{
    curve c = {.most = max_points < 2 ? 2 : max_points, .at = -1};
    found_series f;
    ls_status st;

    LS_TRY(st, find_series(s, name, rank, &f), out);
    int64_t from = ls_max_i64(from_x, f.first_x), to = ls_min_i64(to_x, f.last_x);
    if (f.id && from <= to) {
        c.from = from;
        c.span = to - from + 1;
        c.points = ls_mem_array((size_t)ls_min_i64(c.most, c.span), sizeof *c.points);
        LS_TRY(st, c.points ? LS_OK : LS_ENOMEM, out);
        LS_TRY(st, read_curve(s, &f, from, to, &c), out);
    }
    for (int i = 0; i < c.n; i++)
        c.points[i].mean =
            c.points[i].count > 0 ? c.points[i].mean / (double)c.points[i].count : (double)NAN;
    *points_out = c.points;
    *n_out = c.n;
out:
    if (st != LS_OK)
        ls_mem_free(c.points);
    return st;
}

/* --- events and facts -------------------------------------------------------------------------- */

/* Whether a word is in a list with commas; NULL: all are. */
static bool listed(const char *kinds, const char *kind)
{
    size_t len = strlen(kind);

    for (const char *at = kinds; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == len && strncmp(at, kind, len) == 0)
            return true;
    return !kinds;
}

ls_status ls_run_store_events(ls_run_store *s, int64_t after_id, const char *kinds, int limit,
                              ls_run_store_visit visit, void *context)
{
    static const char LIST[] =
        "SELECT id, time, kind, step, rank, attempt, redone, json FROM events WHERE id > ?1 ORDER "
        "BY id";
    sqlite3_stmt *q;
    int rc = SQLITE_DONE, n = 0;
    ls_status st;

    LS_TRY(st, ls_store_db_statement(&s->db, LIST, &q), out);
    sqlite3_bind_int64(q, 1, after_id);
    while (st == LS_OK && n < limit && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        ls_run_store_event event = {.id = sqlite3_column_int64(q, 0),
                                    .time_ms = sqlite3_column_int64(q, 1),
                                    .kind = (const char *)sqlite3_column_text(q, 2),
                                    .step = sqlite3_column_int64(q, 3),
                                    .rank = sqlite3_column_int(q, 4),
                                    .attempt = sqlite3_column_int(q, 5),
                                    .redone = sqlite3_column_int(q, 6),
                                    .json = (const char *)sqlite3_column_text(q, 7)};
        if (!event.kind || !event.json || !listed(kinds, event.kind))
            continue;
        n++;
        st = visit(context, &event);
    }
    sqlite3_reset(q);
    if (st == LS_OK && rc != SQLITE_DONE && rc != SQLITE_ROW)
        st = ls_store_db_fail(&s->db, "read");
out:
    return st;
}

/* "running", "finished", ... */
static ls_status find_state(ls_run_store *s, ls_str *out)
{
    char path[PATH_MAX];
    struct stat file;
    int64_t pid = 0;
    ls_str state, failed;
    ls_status st;

    ls_str_init(&state);
    ls_str_init(&failed);
    LS_TRY(st, ls_store_db_get(&s->db, "event_state", &state), out);
    LS_TRY(st, ls_store_db_get(&s->db, "failed", &failed), out);
    LS_TRY(st, ls_store_db_get_int(&s->db, "pid", &pid), out);
    if (strcmp(state.p, "running") == 0) {
        snprintf(path, sizeof path, "%s/events.jsonl", s->folder);
        bool lives = pid > 0 ? writer_lives(&s->db)
                             : stat(path, &file) == 0 && time(NULL) - file.st_mtime < ALIVE_S;
        ls_str_append(out, *failed.p ? "failed" : lives ? "running" : "lost");
    } else {
        ls_str_append(out, state.p);
    }
    st = ls_str_status(out);
out:
    ls_str_release(&state);
    ls_str_release(&failed);
    return st;
}

ls_status ls_run_store_fact(ls_run_store *s, const char *key, ls_str *value_out)
{
    if (strcmp(key, "state") == 0)
        return find_state(s, value_out);
    return ls_store_db_get(&s->db, key, value_out);
}
