/* store_db.h -- the SQLite file behind a run store, for the one that fills it and those that read.
 *
 * points: every value. bins: for each level k a row for each 32^k steps of x, made from the level
 * below when a transaction ends. Only the ranges that the transaction touched are made again, so a
 * step that is made again corrects all levels. */
#pragma once
#include <limits.h>
#include <sqlite3.h>
#include "base/str.h"

LS_C_BEGIN

enum {
    LS_STORE_LEVELS = 7,
    LS_STORE_FANOUT_BITS = 5,
    LS_STORE_STATEMENTS = 40,
    LS_STORE_VERSION = 1
};

typedef struct ls_store_series {
    char name[64];
    int rank;
    bool timed;
    int64_t id, added;      /* points since the transaction began */
    int64_t dirty_from, to; /* x that it touched; dirty_from > to: none */
    int64_t last_x;         /* largest so far; INT64_MIN: none */
    int64_t made_x;         /* the same when bins were last made */
} ls_store_series;

typedef struct ls_store_db {
    sqlite3 *db;
    char path[PATH_MAX];
    sqlite3_stmt *statements[LS_STORE_STATEMENTS]; /* prepared at first use */
    const char *texts[LS_STORE_STATEMENTS];
    ls_store_series *series; /* owned; what this writer has touched */
    int *table;              /* owned: hash of (name, rank) -> index + 1 */
    int n_series, table_size;
    bool in_transaction;
} ls_store_db;

/* Open for writing, and make the tables of a new file; ":memory:" is allowed. LS_EDATA: made by a
 * newer version, or damaged. */
ls_status ls_store_db_open(ls_store_db *db, const char *path);

/* Open an existing file for reading. */
ls_status ls_store_db_open_read(ls_store_db *db, const char *path);

/* Safe on one that is closed. What no commit has made lasting is lost. */
void ls_store_db_close(ls_store_db *db);

/* A prepared statement, reset and without values; text must be a constant. LS_EIO on error. */
ls_status ls_store_db_statement(ls_store_db *db, const char *text, sqlite3_stmt **statement_out);

/* Run a statement that gives no rows. */
ls_status ls_store_db_do(ls_store_db *db, sqlite3_stmt *statement);

/* The failure of the last call of SQLite; LS_EDATA where the file is damaged. */
ls_status ls_store_db_fail(const ls_store_db *db, const char *doing);

/* What is written between these becomes visible and lasting together. commit makes the bins. */
ls_status ls_store_db_begin(ls_store_db *db);
ls_status ls_store_db_commit(ls_store_db *db);
void ls_store_db_rollback(ls_store_db *db);

/* One value of a series at x; a value that was there is replaced. unit: for a new series. */
typedef struct ls_store_point {
    const char *name, *unit;
    int rank;
    bool timed;
    int64_t x, time_ms;
    double value;
} ls_store_point;
ls_status ls_store_db_put(ls_store_db *db, const ls_store_point *point);

/* Forget the points of steps above step, and mark events of such steps as redone. */
ls_status ls_store_db_truncate(ls_store_db *db, int64_t step);

/* Facts. get: "" where there is none; value_out is appended to. */

ls_status ls_store_db_set(ls_store_db *db, const char *key, const char *value);
ls_status ls_store_db_get(ls_store_db *db, const char *key, ls_str *value_out);
ls_status ls_store_db_set_int(ls_store_db *db, const char *key, int64_t value);
ls_status ls_store_db_get_int(ls_store_db *db, const char *key, int64_t *value_out); /* else 0 */

LS_C_END
