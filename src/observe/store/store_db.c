/* store_db.c -- see store_db.h.
 *
 * Width of a bin at level k is 32^k:
 *
 *     points      x = 0 1 2 ... 31 | 32 ... 63 | 64 ...            every value
 *     level 1         bin 0        | bin 1     | bin 2             min, max, sum, count of 32 x
 *     level 2         bin 0 .................. up to x = 1023      of 32 bins of level 1
 *
 * A series of 10 million steps has 312,500 bins at level 1, 9,766 at level 2, 306 at level 3. A level
 * is made only for a series that has more than one bin of it; a timed series, whose x counts
 * milliseconds, begins at level 3 (33 seconds), because below that a bin has about one point. */
#include "observe/store/store_db.h"

#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

static const char SCHEMA[] =
    "CREATE TABLE IF NOT EXISTS facts(key TEXT PRIMARY KEY, value) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS series(id INTEGER PRIMARY KEY, name TEXT NOT NULL, rank INTEGER "
    "NOT "
    "NULL, unit TEXT, timed INTEGER, n INTEGER DEFAULT 0, UNIQUE(name, rank));"
    "CREATE TABLE IF NOT EXISTS points(series INTEGER, x INTEGER, time INTEGER, value REAL, "
    "PRIMARY "
    "KEY(series, x)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS bins(series INTEGER, level INTEGER, bin INTEGER, x INTEGER, last_x "
    "INTEGER, time INTEGER, count INTEGER, min REAL, max REAL, sum REAL, PRIMARY KEY(series, "
    "level, "
    "bin)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS events(id INTEGER PRIMARY KEY, time INTEGER, kind TEXT, step "
    "INTEGER, rank INTEGER, attempt INTEGER, redone INTEGER DEFAULT 0, json TEXT);"
    "CREATE INDEX IF NOT EXISTS events_by_kind ON events(kind, id);";

ls_status ls_store_db_fail(const ls_store_db *db, const char *doing)
{
    int code = db->db ? sqlite3_errcode(db->db) : SQLITE_NOMEM;
    bool damaged = code == SQLITE_CORRUPT || code == SQLITE_NOTADB;

    return ls_fail(code == SQLITE_NOMEM  ? LS_ENOMEM
                   : code == SQLITE_BUSY ? LS_EBUSY
                   : damaged             ? LS_EDATA
                                         : LS_EIO,
                   "cannot %s \"%s\": %s", doing, db->path,
                   db->db ? sqlite3_errmsg(db->db) : "out of memory");
}

static ls_status run(const ls_store_db *db, const char *sql, const char *doing)
{
    return sqlite3_exec(db->db, sql, NULL, NULL, NULL) == SQLITE_OK ? LS_OK
                                                                    : ls_store_db_fail(db, doing);
}

static ls_status open_file(ls_store_db *db, const char *path, int flags)
{
    *db = (ls_store_db){0};
    snprintf(db->path, sizeof db->path, "%s", path);
    if (sqlite3_open_v2(path, &db->db, flags | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        return ls_store_db_fail(db, "open");
    sqlite3_busy_timeout(db->db, 2000);
    return LS_OK;
}

ls_status ls_store_db_open(ls_store_db *db, const char *path)
{
    int64_t version = 0;
    ls_status st;

    *db = (ls_store_db){0};
    LS_TRY(st, ls_file_refuse_link(path), out);
    LS_TRY(st, open_file(db, path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE), out);
    LS_TRY(
        st,
        run(db,
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=2000; "
            "PRAGMA journal_size_limit=16777216;",
            "open"),
        out);
    LS_TRY(st, run(db, SCHEMA, "make the tables of"), out);
    LS_TRY(st, ls_store_db_get_int(db, "store_version", &version), out);
    if (version > LS_STORE_VERSION)
        LS_TRY(st, ls_fail(LS_EDATA, "\"%s\" was made by a newer version of lineshaft", path), out);
    if (version == 0)
        LS_TRY(st, ls_store_db_set_int(db, "store_version", LS_STORE_VERSION), out);
out:
    if (st != LS_OK)
        ls_store_db_close(db);
    return st;
}

ls_status ls_store_db_open_read(ls_store_db *db, const char *path)
{
    int64_t version = 0;
    ls_status st;

    LS_TRY(st, open_file(db, path, SQLITE_OPEN_READONLY), out);
    LS_TRY(st, ls_store_db_get_int(db, "store_version", &version), out);
    if (version != LS_STORE_VERSION)
        st = ls_fail(LS_EDATA, "\"%s\" is no run store of this version of lineshaft", path);
out:
    if (st != LS_OK)
        ls_store_db_close(db);
    return st;
}

void ls_store_db_close(ls_store_db *db)
{
    for (int i = 0; i < LS_STORE_STATEMENTS; i++)
        sqlite3_finalize(db->statements[i]);
    sqlite3_close(db->db);
    ls_mem_free(db->series);
    ls_mem_free(db->table);
    *db = (ls_store_db){0};
}

ls_status ls_store_db_statement(ls_store_db *db, const char *text, sqlite3_stmt **statement_out)
{
    int i = 0;

    while (i < LS_STORE_STATEMENTS && db->texts[i] && db->texts[i] != text)
        i++;
    LS_BUG_IF(i == LS_STORE_STATEMENTS, "more than %d statements", LS_STORE_STATEMENTS);
    if (!db->statements[i]) {
        if (sqlite3_prepare_v3(db->db, text, -1, SQLITE_PREPARE_PERSISTENT, &db->statements[i],
                               NULL) != SQLITE_OK)
            return ls_store_db_fail(db, "read");
        db->texts[i] = text;
    }
    sqlite3_reset(db->statements[i]);
    sqlite3_clear_bindings(db->statements[i]);
    *statement_out = db->statements[i];
    return LS_OK;
}

ls_status ls_store_db_do(ls_store_db *db, sqlite3_stmt *statement)
{
    int rc = sqlite3_step(statement);
    ls_status st = rc == SQLITE_DONE || rc == SQLITE_ROW ? LS_OK : ls_store_db_fail(db, "write");

    sqlite3_reset(statement);
    return st;
}

/* --- transactions and bins --------------------------------------------------------------------- */

ls_status ls_store_db_begin(ls_store_db *db)
{
    ls_status st;

    if (db->in_transaction)
        return LS_OK;
    st = run(db, "BEGIN IMMEDIATE", "write");
    db->in_transaction = st == LS_OK;
    return st;
}

void ls_store_db_rollback(ls_store_db *db)
{
    if (db->in_transaction)
        (void)sqlite3_exec(db->db, "ROLLBACK", NULL, NULL, NULL);
    db->in_transaction = false;
    /* Series that the transaction had made are gone: they are looked up again. */
    db->n_series = 0;
    if (db->table)
        memset(db->table, 0, (size_t)db->table_size * sizeof *db->table);
}

static const char FROM_POINTS[] =
    "INSERT OR REPLACE INTO bins SELECT series, ?2, x >> ?3, min(x), max(x), max(time), "
    "count(value), min(value), max(value), sum(value) FROM points WHERE series = ?1 AND x BETWEEN "
    "?4 AND ?5 GROUP BY x >> ?3";
static const char FROM_BINS[] =
    "INSERT OR REPLACE INTO bins SELECT series, ?2, bin >> ?3, min(x), max(last_x), max(time), "
    "sum(count), min(min), max(max), sum(sum) FROM bins WHERE series = ?1 AND level = ?6 AND bin "
    "BETWEEN ?4 AND ?5 GROUP BY bin >> ?3";

static int first_level(bool timed)
{
    return timed ? 3 : 1;
}

/* The bins of one level that the range touches, from what is below. */
static ls_status make_level(ls_store_db *db, const ls_store_series *s, int level)
{
    bool bottom = level == first_level(s->timed);
    int shift = level * LS_STORE_FANOUT_BITS;                   /* of x */
    int down = bottom ? shift : LS_STORE_FANOUT_BITS;           /* of what is read */
    int64_t from = s->dirty_from >> shift, to = s->to >> shift; /* bins of this level */
    sqlite3_stmt *q;
    ls_status st = ls_store_db_statement(db, bottom ? FROM_POINTS : FROM_BINS, &q);

    if (st != LS_OK)
        return st;
    sqlite3_bind_int64(q, 1, s->id);
    sqlite3_bind_int(q, 2, level);
    sqlite3_bind_int(q, 3, down);
    sqlite3_bind_int64(q, 4, from << down);
    sqlite3_bind_int64(q, 5, ((to + 1) << down) - 1);
    if (!bottom)
        sqlite3_bind_int(q, 6, level - 1);
    return ls_store_db_do(db, q);
}

static ls_status make_bins(ls_store_db *db, ls_store_series *s)
{
    static const char COUNT[] = "UPDATE series SET n = n + ?2 WHERE id = ?1";
    sqlite3_stmt *q;
    ls_status st = LS_OK;

    /* A level is made when the series outgrows its first bin: then for all that there is. */
    for (int level = first_level(s->timed); level <= LS_STORE_LEVELS && st == LS_OK; level++) {
        int64_t width = INT64_C(1) << (level * LS_STORE_FANOUT_BITS);
        if (!s->timed && s->last_x < width)
            break;
        ls_store_series range = *s;
        if (!s->timed && s->made_x < width)
            range.dirty_from = 0;
        st = make_level(db, &range, level);
    }
    LS_TRY(st, st, out);
    LS_TRY(st, ls_store_db_statement(db, COUNT, &q), out);
    sqlite3_bind_int64(q, 1, s->id);
    sqlite3_bind_int64(q, 2, s->added);
    LS_TRY(st, ls_store_db_do(db, q), out);
    s->dirty_from = INT64_MAX;
    s->to = INT64_MIN;
    s->made_x = s->last_x;
    s->added = 0;
out:
    return st;
}

ls_status ls_store_db_commit(ls_store_db *db)
{
    ls_status st = LS_OK;

    if (!db->in_transaction)
        return LS_OK;
    for (int i = 0; i < db->n_series; i++)
        if (db->series[i].dirty_from <= db->series[i].to)
            LS_TRY(st, make_bins(db, &db->series[i]), out);
    LS_TRY(st, run(db, "COMMIT", "write"), out);
    db->in_transaction = false;
out:
    if (st != LS_OK)
        ls_store_db_rollback(db);
    return st;
}

/* --- points ------------------------------------------------------------------------------------ */

static unsigned hash_of(const char *name, int rank)
{
    unsigned h = 2166136261u ^ (unsigned)rank * 2654435761u;

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

/* The slot of a series in the table, or the empty one where it belongs. */
static int *slot_of(const ls_store_db *db, const char *name, int rank)
{
    unsigned mask = (unsigned)db->table_size - 1, i = hash_of(name, rank) & mask;

    for (; db->table[i]; i = (i + 1) & mask) {
        const ls_store_series *s = &db->series[db->table[i] - 1];
        if (s->rank == rank && strcmp(s->name, name) == 0)
            break;
    }
    return &db->table[i];
}

static ls_status grow_table(ls_store_db *db)
{
    int size = db->table_size ? 2 * db->table_size : 256;
    ls_store_series *series = ls_mem_resize(db->series, (size_t)size / 2 * sizeof *series);

    if (!series)
        return LS_ENOMEM;
    db->series = series;
    int *table = ls_mem_array((size_t)size, sizeof *table);
    if (!table)
        return LS_ENOMEM;
    ls_mem_free(db->table);
    db->table = table;
    db->table_size = size;
    for (int i = 0; i < db->n_series; i++)
        *slot_of(db, db->series[i].name, db->series[i].rank) = i + 1;
    return LS_OK;
}

static ls_status read_series(ls_store_db *db, const ls_store_point *p, ls_store_series *s)
{
    static const char MAKE[] = "INSERT INTO series(name, rank, unit, timed) VALUES(?1, ?2, ?3, ?4) "
                               "ON CONFLICT(name, rank) "
                               "DO NOTHING";
    static const char FIND[] = "SELECT id, timed, (SELECT max(x) FROM points WHERE series = s.id) "
                               "FROM series s WHERE name "
                               "= ?1 AND rank = ?2";
    sqlite3_stmt *q;
    ls_status st;

    LS_TRY(st, ls_store_db_statement(db, MAKE, &q), out);
    sqlite3_bind_text(q, 1, p->name, -1, SQLITE_STATIC);
    sqlite3_bind_int(q, 2, p->rank);
    sqlite3_bind_text(q, 3, p->unit, -1, SQLITE_STATIC);
    sqlite3_bind_int(q, 4, p->timed);
    LS_TRY(st, ls_store_db_do(db, q), out);
    LS_TRY(st, ls_store_db_statement(db, FIND, &q), out);
    sqlite3_bind_text(q, 1, p->name, -1, SQLITE_STATIC);
    sqlite3_bind_int(q, 2, p->rank);
    if (sqlite3_step(q) != SQLITE_ROW)
        LS_TRY(st, ls_store_db_fail(db, "read"), out);
    *s = (ls_store_series){.rank = p->rank,
                           .timed = sqlite3_column_int(q, 1),
                           .id = sqlite3_column_int64(q, 0),
                           .dirty_from = INT64_MAX,
                           .to = INT64_MIN,
                           .last_x = sqlite3_column_type(q, 2) == SQLITE_NULL
                                         ? INT64_MIN
                                         : sqlite3_column_int64(q, 2)};
    s->made_x = s->last_x;
    snprintf(s->name, sizeof s->name, "%s", p->name);
    sqlite3_reset(q);
out:
    return st;
}

static ls_status find_series(ls_store_db *db, const ls_store_point *p, ls_store_series **series_out)
{
    ls_status st = LS_OK;

    if (2 * (db->n_series + 1) > db->table_size)
        LS_TRY(st, grow_table(db), out);
    int *slot = slot_of(db, p->name, p->rank);
    if (!*slot) {
        LS_TRY(st, read_series(db, p, &db->series[db->n_series]), out);
        *slot = ++db->n_series;
    }
    *series_out = &db->series[*slot - 1];
out:
    return st;
}

ls_status ls_store_db_put(ls_store_db *db, const ls_store_point *p)
{
    static const char PUT[] =
        "INSERT OR REPLACE INTO points(series, x, time, value) VALUES(?1, ?2, ?3, ?4)";
    ls_store_series *s;
    sqlite3_stmt *q;
    ls_status st;

    LS_TRY(st, find_series(db, p, &s), out);
    LS_TRY(st, ls_store_db_statement(db, PUT, &q), out);
    sqlite3_bind_int64(q, 1, s->id);
    sqlite3_bind_int64(q, 2, p->x);
    sqlite3_bind_int64(q, 3, p->time_ms);
    if (isfinite(p->value))
        sqlite3_bind_double(q, 4, p->value);
    LS_TRY(st, ls_store_db_do(db, q), out);
    s->added += p->x > s->last_x;
    s->dirty_from = ls_min_i64(s->dirty_from, p->x);
    s->to = ls_max_i64(s->to, p->x);
    s->last_x = ls_max_i64(s->last_x, p->x);
out:
    return st;
}

/* Bins that hold a point above step go; the one that is cut by it is made again at the commit, from
 * what is left of it. */
static ls_status cut_series(ls_store_db *db, int64_t id, int64_t step)
{
    static const char POINTS[] = "DELETE FROM points WHERE series = ?1 AND x > ?2";
    static const char BINS[] = "DELETE FROM bins WHERE series = ?1 AND level = ?2 AND bin >= ?3";
    sqlite3_stmt *q;
    ls_status st;

    LS_TRY(st, ls_store_db_statement(db, POINTS, &q), out);
    sqlite3_bind_int64(q, 1, id);
    sqlite3_bind_int64(q, 2, step);
    LS_TRY(st, ls_store_db_do(db, q), out);
    for (int level = 1; level <= LS_STORE_LEVELS; level++) {
        LS_TRY(st, ls_store_db_statement(db, BINS, &q), out);
        sqlite3_bind_int64(q, 1, id);
        sqlite3_bind_int(q, 2, level);
        sqlite3_bind_int64(q, 3, (step + 1) >> (level * LS_STORE_FANOUT_BITS));
        LS_TRY(st, ls_store_db_do(db, q), out);
    }
out:
    return st;
}

/* The series whose x are steps and that reach beyond the step, as far as `most` has room. */
static ls_status list_cut(ls_store_db *db, int64_t step, ls_store_point *found, int most,
                          char (*names)[64], int64_t *ids, int *n_out)
{
    static const char LIST[] = "SELECT id, name, rank FROM series s WHERE NOT timed AND EXISTS "
                               "(SELECT 1 FROM points WHERE "
                               "series = s.id AND x > ?1) LIMIT ?2";
    sqlite3_stmt *q;
    ls_status st;
    int rc = SQLITE_DONE;

    *n_out = 0;
    LS_TRY(st, ls_store_db_statement(db, LIST, &q), out);
    sqlite3_bind_int64(q, 1, step);
    sqlite3_bind_int(q, 2, most);
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        int i = (*n_out)++;
        ids[i] = sqlite3_column_int64(q, 0);
        snprintf(names[i], sizeof names[i], "%s", (const char *)sqlite3_column_text(q, 1));
        found[i] = (ls_store_point){
            .name = names[i], .unit = "", .rank = sqlite3_column_int(q, 2), .x = step};
    }
    sqlite3_reset(q);
    if (rc != SQLITE_DONE)
        st = ls_store_db_fail(db, "read");
out:
    return st;
}

ls_status ls_store_db_truncate(ls_store_db *db, int64_t step)
{
    static const char REDONE[] = "UPDATE events SET redone = 1 WHERE step > ?1 AND redone = 0";
    enum { ROUND = 64 };
    ls_store_point found[ROUND];
    char names[ROUND][64];
    int64_t ids[ROUND];
    ls_store_series *s;
    sqlite3_stmt *q;
    ls_status st;
    int n;

    LS_TRY(st, ls_store_db_statement(db, REDONE, &q), out);
    sqlite3_bind_int64(q, 1, step);
    LS_TRY(st, ls_store_db_do(db, q), out);
    do {
        LS_TRY(st, list_cut(db, step, found, ROUND, names, ids, &n), out);
        for (int i = 0; i < n; i++) {
            LS_TRY(st, find_series(db, &found[i], &s), out);
            LS_TRY(st, cut_series(db, ids[i], step), out);
            s->last_x = step;
            s->made_x = ls_min_i64(s->made_x, step);
            s->dirty_from = ls_min_i64(s->dirty_from, step);
            s->to = ls_max_i64(ls_min_i64(s->to, step), step);
        }
    } while (n == ROUND);
out:
    return st;
}

/* --- facts ------------------------------------------------------------------------------------- */

ls_status ls_store_db_set(ls_store_db *db, const char *key, const char *value)
{
    static const char SET[] = "INSERT OR REPLACE INTO facts VALUES(?1, ?2)";
    sqlite3_stmt *q;
    ls_status st = ls_store_db_statement(db, SET, &q);

    if (st != LS_OK)
        return st;
    sqlite3_bind_text(q, 1, key, -1, SQLITE_STATIC);
    sqlite3_bind_text(q, 2, value, -1, SQLITE_STATIC);
    return ls_store_db_do(db, q);
}

ls_status ls_store_db_get(ls_store_db *db, const char *key, ls_str *value_out)
{
    static const char GET[] = "SELECT value FROM facts WHERE key = ?1";
    sqlite3_stmt *q;
    ls_status st = ls_store_db_statement(db, GET, &q);

    if (st != LS_OK)
        return st;
    sqlite3_bind_text(q, 1, key, -1, SQLITE_STATIC);
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW)
        ls_str_append_bytes(value_out, sqlite3_column_text(q, 0),
                            (size_t)sqlite3_column_bytes(q, 0));
    else if (rc != SQLITE_DONE)
        st = ls_store_db_fail(db, "read");
    sqlite3_reset(q);
    return st == LS_OK ? ls_str_status(value_out) : st;
}

ls_status ls_store_db_set_int(ls_store_db *db, const char *key, int64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%lld", (long long)value);
    return ls_store_db_set(db, key, text);
}

ls_status ls_store_db_get_int(ls_store_db *db, const char *key, int64_t *value_out)
{
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    st = ls_store_db_get(db, key, &text);
    if (st == LS_OK)
        *value_out = strtoll(text.p, NULL, 10);
    ls_str_release(&text);
    return st;
}
