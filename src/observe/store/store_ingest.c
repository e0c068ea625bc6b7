/* store_ingest.c -- see store_ingest.h.
 *
 *     {"event":"step","step":7,"loss":...,"split":{...}}   points of x = 7: loss, split.data_ms, ...
 *     {"event":"eval","step":10,"val_loss":...}            a point and an event
 *     {"event":"start","first_step":5,...}                 a new attempt; points of steps above 5 go
 *     everything else                                      an event
 *
 * The byte where reading ended is a fact of the store and part of the same transaction, so that a
 * store which was cut off in the middle reads no line twice and leaves none out. */
#include "observe/store/store_ingest.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "observe/store/run_store.h"

/* Keys of an event that are series. */
typedef struct number {
    const char *event, *key, *series, *unit;
} number;
static const number NUMBERS[] = {
    {"step", "loss", "loss", ""},
    {"step", "lr", "lr", ""},
    {"step", "grad_norm", "grad_norm", ""},
    {"step", "tokens", "tokens", "tokens"},
    {"step", "sequences", "sequences", ""},
    {"step", "tokens_per_s", "tokens_per_s", "tokens/s"},
    {"step", "ms", "step_ms", "ms"},
    {"step", "loss_scale", "loss_scale", ""},
    {"step", "overflows", "overflows", ""},
    {"eval", "val_loss", "val_loss", ""},
    {"checkpoint", "seconds", "checkpoint.seconds", "s"},
    {"checkpoint", "bytes_written", "checkpoint.written_bytes", "bytes"},
    {"checkpoint", "bytes_reused", "checkpoint.reused_bytes", "bytes"},
    {"checkpoint", "waited_ms", "checkpoint.waited_ms", "ms"},
};

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));

    return text ? text : "";
}

/* An integer under key; missing when it is not there. */
static int64_t int_of(const json_t *event, const char *key, int64_t missing)
{
    const json_t *value = json_object_get(event, key);

    return json_is_integer(value) ? json_integer_value(value) : missing;
}

/* null stands for what is not a finite number. */
static double number_of(const json_t *value)
{
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static ls_status put_numbers(ls_store_db *db, const json_t *event, ls_store_point point)
{
    const char *kind = text_of(event, "event");
    ls_status st = LS_OK;

    for (size_t i = 0; i < LS_COUNT(NUMBERS); i++) {
        const json_t *value = json_object_get(event, NUMBERS[i].key);
        if (!value || strcmp(kind, NUMBERS[i].event) != 0)
            continue;
        point.name = NUMBERS[i].series;
        point.unit = NUMBERS[i].unit;
        point.value = number_of(value);
        LS_TRY(st, ls_store_db_put(db, &point), out);
    }
out:
    return st;
}

static ls_status put_step(ls_store_db *db, json_t *event, ls_store_point point)
{
    char name[LS_RUN_SERIES_NAME];
    const char *key;
    json_t *value;
    ls_status st = LS_OK;

    point.unit = "ms";
    json_object_foreach(json_object_get(event, "split"), key, value)
    {
        snprintf(name, sizeof name, "split.%.40s_ms", key);
        point.name = name;
        point.value = number_of(value);
        LS_TRY(st, ls_store_db_put(db, &point), out);
    }
    if (json_is_true(json_object_get(event, "skipped"))) {
        point.name = "skipped";
        point.unit = "";
        point.value = 1;
        st = ls_store_db_put(db, &point);
    }
out:
    return st;
}

/* Arrays with one entry a rank. */
static ls_status put_balance(ls_store_db *db, const json_t *event, ls_store_point point)
{
    static const char *const keys[][3] = {{"rank_sequences", "rank.sequences", ""},
                                          {"rank_ms_per_leaf", "rank.ms_per_leaf", "ms"}};
    json_t *value;
    size_t rank;
    ls_status st = LS_OK;

    for (size_t k = 0; k < LS_COUNT(keys); k++) {
        point.name = keys[k][1];
        point.unit = keys[k][2];
        json_array_foreach(json_object_get(event, keys[k][0]), rank, value)
        {
            point.rank = (int)rank;
            point.value = number_of(value);
            LS_TRY(st, ls_store_db_put(db, &point), out);
        }
    }
out:
    return st;
}

static ls_status put_event(ls_store_db *db, const json_t *event, int64_t time_ms, const char *line,
                           size_t len)
{
    static const char PUT[] =
        "INSERT INTO events(time, kind, step, rank, attempt, json) VALUES(?1, "
        "?2, ?3, ?4, (SELECT value FROM facts WHERE key = 'attempt'), ?5)";
    sqlite3_stmt *q;
    ls_status st = ls_store_db_statement(db, PUT, &q);

    if (st != LS_OK)
        return st;
    sqlite3_bind_int64(q, 1, time_ms);
    sqlite3_bind_text(q, 2, text_of(event, "event"), -1, SQLITE_STATIC);
    sqlite3_bind_int64(q, 3, int_of(event, "step", int_of(event, "steps", -1)));
    sqlite3_bind_int64(q, 4, int_of(event, "rank", LS_RUN_WHOLE));
    sqlite3_bind_text(q, 5, line, (int)len, SQLITE_STATIC);
    return ls_store_db_do(db, q);
}

/* What a process reports before its start belongs to its attempt. */
static ls_status move_forward(ls_store_db *db, int64_t attempt)
{
    static const char MOVE[] =
        "UPDATE events SET attempt = ?1 WHERE kind IN ('rank', 'mesh', 'log') AND id > (SELECT "
        "coalesce(max(id), 0) FROM events WHERE kind NOT IN ('rank', 'mesh', 'log'))";
    sqlite3_stmt *q;
    ls_status st = ls_store_db_statement(db, MOVE, &q);

    if (st != LS_OK)
        return st;
    sqlite3_bind_int64(q, 1, attempt);
    return ls_store_db_do(db, q);
}

/* A new process trains: it makes all steps after first_step, perhaps once more. */
static ls_status begin_attempt(ls_store_db *db, const json_t *event, const char *line, size_t len)
{
    int64_t attempt = 0;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    ls_str_append_bytes(&text, line, len);
    LS_TRY(st, ls_str_status(&text), out);
    LS_TRY(st, ls_store_db_truncate(db, int_of(event, "first_step", 0)), out);
    LS_TRY(st, ls_store_db_get_int(db, "attempt", &attempt), out);
    LS_TRY(st, ls_store_db_set_int(db, "attempt", attempt + 1), out);
    LS_TRY(st, move_forward(db, attempt + 1), out);
    LS_TRY(st, ls_store_db_set(db, "start", text.p), out);
    LS_TRY(st, ls_store_db_set(db, "summary", ""), out);
    st = ls_store_db_set(db, "event_state", "running");
out:
    ls_str_release(&text);
    return st;
}

static ls_status end_attempt(ls_store_db *db, const json_t *event, const char *line, size_t len)
{
    bool asked = strcmp(text_of(event, "stopped_by"), "interrupt") == 0;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    ls_str_append_bytes(&text, line, len);
    LS_TRY(st, ls_str_status(&text), out);
    LS_TRY(st, ls_store_db_set(db, "summary", text.p), out);
    st = ls_store_db_set(db, "event_state", asked ? "stopped" : "finished");
out:
    ls_str_release(&text);
    return st;
}

static ls_status take(ls_store_db *db, json_t *event, const char *line, size_t len)
{
    const char *kind = text_of(event, "event");
    double time = number_of(json_object_get(event, "time"));
    ls_store_point point = {.rank = LS_RUN_WHOLE,
                            .x = int_of(event, "step", -1),
                            .time_ms = time > 0 ? (int64_t)(time * 1e3) : 0};
    int64_t redone = int_of(event, "redone", 0);
    ls_status st = LS_OK;

    if (!*kind)
        return LS_OK;
    if (strcmp(kind, "start") == 0)
        LS_TRY(st, begin_attempt(db, event, line, len), out);
    if (strcmp(kind, "summary") == 0)
        LS_TRY(st, end_attempt(db, event, line, len), out);
    if (redone > 0 && strcmp(kind, "incident") == 0)
        LS_TRY(st, ls_store_db_truncate(db, point.x), out);
    if (point.x >= 0)
        LS_TRY(st, put_numbers(db, event, point), out);
    if (strcmp(kind, "step") == 0 && point.x >= 0)
        LS_TRY(st, put_step(db, event, point), out);
    else
        LS_TRY(st, put_event(db, event, point.time_ms, line, len), out);
    if (strcmp(kind, "balance") == 0)
        st = put_balance(db, event, point);
out:
    return st;
}

ls_status ls_store_ingest_line(ls_store_db *db, const char *line, size_t len)
{
    json_t *event = json_loadb(line, len, 0, NULL);
    ls_status st = json_is_object(event) ? take(db, event, line, len) : LS_OK;

    json_decref(event);
    return st;
}

ls_status ls_store_ingest_log(ls_store_db *db, const char *level, const char *text, int64_t time_ms)
{
    ls_json j;
    ls_str line;
    ls_status st;

    ls_str_init(&line);
    ls_json_begin(&j, &line);
    ls_json_open(&j, '{');
    ls_json_put_str(&j, "event", "log");
    ls_json_put_num(&j, "time", (double)time_ms / 1e3);
    ls_json_put_str(&j, "level", level);
    ls_json_put_str(&j, "text", text);
    ls_json_close(&j);
    LS_TRY(st, ls_str_status(&line), out);
    st = ls_store_ingest_line(db, line.p, line.len);
out:
    ls_str_release(&line);
    return st;
}

/* --- events.jsonl ------------------------------------------------------------------------------ */

/* All lines from offset on, as far as they are complete; *offset moves behind them. */
static ls_status read_lines(ls_store_db *db, FILE *f, int64_t most, int64_t *offset, int64_t *lines)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t len;
    ls_status st = LS_OK;

    while (st == LS_OK && *lines < most && (len = getline(&line, &size, f)) > 0 &&
           line[len - 1] == '\n') {
        st = ls_store_ingest_line(db, line, (size_t)len - 1);
        *offset += len;
        ++*lines;
    }
    free(line);
    return st;
}

/* Where to go on in the file: at 0 when it is another one than before. */
static ls_status find_offset(ls_store_db *db, const struct stat *file, int64_t *offset_out)
{
    int64_t offset = 0;
    ls_status st = ls_store_db_get_int(db, "events_offset", &offset);

    if (st == LS_OK && offset > file->st_size) {
        offset = 0;
        LS_TRY(st, ls_store_db_truncate(db, -1), out);
        if (sqlite3_exec(db->db, "DELETE FROM events; DELETE FROM facts WHERE key = 'attempt'",
                         NULL, NULL, NULL) != SQLITE_OK)
            st = ls_store_db_fail(db, "write");
    }
    *offset_out = offset;
out:
    return st;
}

ls_status ls_store_ingest_events(ls_store_db *db, const char *folder, int64_t most,
                                 int64_t *lines_out)
{
    char path[PATH_MAX];
    struct stat file;
    int64_t offset, lines = 0;
    FILE *f = NULL;
    ls_status st = LS_OK;
    int fd = -1;

    *lines_out = 0;
    if (snprintf(path, sizeof path, "%s/events.jsonl", folder) >= (int)sizeof path)
        return ls_fail(LS_EUSAGE, "the path of the run folder is too long");
    if (!ls_file_exists(path))
        return LS_OK;
    st = ls_file_open_read(path, &fd);
    if (st != LS_OK)
        return st;
    f = fdopen(fd, "r");
    if (!f) {
        close(fd);
        return ls_fail_sys(LS_EIO, "cannot read \"%s\"", path);
    }
    if (fstat(fileno(f), &file) != 0)
        LS_TRY(st, ls_fail_sys(LS_EIO, "cannot read \"%s\"", path), out);
    LS_TRY(st, find_offset(db, &file, &offset), out);
    if (offset >= file.st_size)
        goto out;
    if (fseeko(f, offset, SEEK_SET) != 0)
        LS_TRY(st, ls_fail_sys(LS_EIO, "cannot read \"%s\"", path), out);
    LS_TRY(st, ls_store_db_begin(db), out);
    LS_TRY(st, read_lines(db, f, most, &offset, &lines), out);
    LS_TRY(st, ls_store_db_set_int(db, "events_offset", offset), out);
    LS_TRY(st, ls_store_db_commit(db), out);
    *lines_out = lines;
out:
    if (st != LS_OK)
        ls_store_db_rollback(db);
    fclose(f);
    return st;
}
