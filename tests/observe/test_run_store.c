/* test_run_store.c -- a run folder read back: curves against all points, steps made again, folders
 * without a store, stores that were cut off, damaged, or lie elsewhere. */
#include "harness.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"
#include "observe/store/run_store.h"
#include "observe/store/store_ingest.h"
#include "observe/store/store_writer.h"

#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void append(const char *text)
{
    FILE *f = fopen("run/events.jsonl", "ae");

    LS_CHECK(f);
    LS_CHECK(fputs(text, f) >= 0);
    LS_CHECK(fclose(f) == 0);
}

static void add_step(int step, double loss)
{
    char line[256];

    snprintf(line, sizeof line,
             "{\"event\":\"step\",\"step\":%d,\"loss\":%.6f,\"lr\":0.001,\"ms\":12.5,\"split\":{"
             "\"data\":1.5,\"forward\":11},\"time\":%d.250}\n",
             step, loss, 1000 + step);
    append(line);
}

static void begin_run(void)
{
    LS_CHECK_OK(ls_file_make_dirs("run"));
    append("{\"event\":\"rank\",\"rank\":0,\"pid\":1,\"host\":\"a\"}\n"
           "{\"event\":\"start\",\"name\":\"demo\",\"first_step\":0}\n");
}

static ls_run_store *open_run(void)
{
    ls_run_store *store = NULL;

    LS_CHECK_OK(ls_run_store_open("run", &store));
    return store;
}

static ls_run_point *points_of(ls_run_store *store, const char *name, int64_t from, int64_t to,
                               int most, int *n)
{
    ls_run_point *points;

    LS_CHECK_OK(ls_run_store_points(store, name, LS_RUN_WHOLE, from, to, most, &points, n));
    return points;
}

static double latest(ls_run_store *store, const char *name, int64_t *x)
{
    double value;

    LS_CHECK_OK(ls_run_store_latest(store, name, LS_RUN_WHOLE, &value, x));
    return value;
}

static void check_fact(ls_run_store *store, const char *key, const char *want)
{
    ls_str s;

    ls_str_init(&s);
    LS_CHECK_OK(ls_run_store_fact(store, key, &s));
    LS_CHECK_STR(s.p, want);
    ls_str_release(&s);
}

/* Kinds and ids of events, as "1 rank 1, 2 start 1"; redone ones with a !. */
static ls_status note_event(void *context, const ls_run_store_event *e)
{
    ls_str_printf(context, "%s%lld %s %d%s", ((ls_str *)context)->len ? ", " : "", (long long)e->id,
                  e->kind, e->attempt, e->redone ? "!" : "");
    return LS_OK;
}

static void check_events(ls_run_store *store, int64_t after, const char *kinds, int limit,
                         const char *want)
{
    ls_str s;

    ls_str_init(&s);
    LS_CHECK_OK(ls_run_store_events(store, after, kinds, limit, note_event, &s));
    LS_CHECK_STR(s.p, want);
    ls_str_release(&s);
}

LS_TEST(run_store_reads_a_folder_that_has_only_events)
{
    int64_t version, later, x;
    ls_run_series *series;
    int n;

    begin_run();
    for (int i = 1; i <= 100; i++)
        add_step(i, i == 50 ? 9 : 1.0 / i);
    append(
        "{\"event\":\"eval\",\"step\":100,\"val_loss\":2.5}\nno event\n{\"event\":\"step\",\"st");
    ls_run_store *store = open_run();
    LS_CHECK_OK(ls_run_store_series(store, &series, &n));
    LS_CHECK_EQ(n, 6);
    LS_CHECK_STR(series[0].name, "loss");
    LS_CHECK_EQ(series[0].points, 100);
    LS_CHECK_EQ(series[0].first_x, 1);
    LS_CHECK_EQ(series[0].last_x, 100);
    LS_CHECK_STR(series[2].name, "split.data_ms");
    LS_CHECK_STR(series[2].unit, "ms");
    ls_mem_free(series);
    ls_run_point *p = points_of(store, "loss", INT64_MIN, INT64_MAX, 10, &n);
    LS_CHECK_EQ(n, 10);
    LS_CHECK_EQ(p[4].count, 10);
    LS_CHECK_NEAR(p[4].max, 9, 0); /* the peak is kept */
    LS_CHECK_NEAR(p[4].min, 1.0 / 49, 1e-6);
    LS_CHECK_EQ(p[9].last_x, 100);
    LS_CHECK_EQ(p[9].time_ms, 1100250);
    ls_mem_free(p);
    p = points_of(store, "nothing", INT64_MIN, INT64_MAX, 10, &n);
    LS_CHECK_EQ(n, 0);
    ls_mem_free(p);
    check_events(store, 0, NULL, 9, "1 rank 1, 2 start 1, 3 eval 1");
    check_events(store, 2, "checkpoint,eval", 9, "3 eval 1");
    check_events(store, 0, NULL, 2, "1 rank 1, 2 start 1");

    /* What comes later is seen, also the line that was half written. */
    LS_CHECK_OK(ls_run_store_version(store, &version));
    LS_CHECK_OK(ls_run_store_version(store, &later));
    LS_CHECK_EQ(later, version);
    append("ep\":101,\"loss\":null}\n");
    LS_CHECK_OK(ls_run_store_version(store, &later));
    LS_CHECK(later != version);
    LS_CHECK(isnan(latest(store, "loss", &x)));
    LS_CHECK_EQ(x, 101);
    check_fact(store, "state", "running");
    append("{\"event\":\"summary\",\"steps\":101,\"stopped_by\":\"steps\"}\n");
    LS_CHECK_OK(ls_run_store_version(store, &later));
    check_fact(store, "state", "finished");
    check_fact(store, "summary", "{\"event\":\"summary\",\"steps\":101,\"stopped_by\":\"steps\"}");
    ls_run_store_close(store);
}

LS_TEST(run_store_marks_events_and_replaces_points_of_steps_made_again)
{
    int64_t x;
    int n;

    begin_run();
    for (int i = 1; i <= 70; i++)
        add_step(i, 1);
    append("{\"event\":\"eval\",\"step\":20,\"val_loss\":2.5}\n"
           "{\"event\":\"eval\",\"step\":60,\"val_loss\":2.25}\n"
           "{\"event\":\"rank\",\"rank\":0,\"pid\":2,\"host\":\"a\"}\n"
           "{\"event\":\"start\",\"first_step\":50}\n");
    add_step(51, 3);
    ls_run_store *store = open_run();
    LS_CHECK_NEAR(latest(store, "loss", &x), 3, 0);
    LS_CHECK_EQ(x, 51);
    LS_CHECK_NEAR(latest(store, "val_loss", &x), 2.5, 0);
    check_events(store, 0, NULL, 9,
                 "1 rank 1, 2 start 1, 3 eval 1, 4 eval 1!, 5 rank 2, 6 start 2");
    ls_run_point *p = points_of(store, "loss", 1, 51, 2, &n);
    LS_CHECK_EQ(n, 2);
    LS_CHECK_EQ(p[0].count + p[1].count, 51);
    ls_mem_free(p);
    append("{\"event\":\"incident\",\"step\":10,\"kind\":\"lost\",\"redone\":41}\n");
    LS_CHECK_OK(ls_run_store_version(store, &x));
    latest(store, "loss", &x);
    LS_CHECK_EQ(x, 10);
    ls_run_store_close(store);
}

/* --- curves of many points --------------------------------------------------------------------- */

enum { MANY = 70000 };

static double value_at(int64_t x)
{
    return (double)((x * 2654435761u) % 100003) - 50000;
}

static void put_range(ls_store_db *db, int64_t from, int64_t to, double shift)
{
    LS_CHECK_OK(ls_store_db_begin(db));
    for (int64_t x = from; x <= to; x++)
        if (x % 7 != 3) /* with holes */
            LS_CHECK_OK(ls_store_db_put(db, &(ls_store_point){.name = "v",
                                                              .unit = "",
                                                              .rank = LS_RUN_WHOLE,
                                                              .x = x,
                                                              .value = value_at(x) + shift}));
    LS_CHECK_OK(ls_store_db_commit(db));
}

static double truth(int64_t x, int64_t shifted_from)
{
    return value_at(x) + (x >= shifted_from ? 7 : 0);
}

/* Every point of the range is in exactly one bin, whose smallest and largest are those of its points. */
static void check_curve(ls_run_store *store, int64_t from, int64_t to, int most, int64_t shifted)
{
    int n;
    ls_run_point *p = points_of(store, "v", from, to, most, &n);
    int64_t x = from;

    LS_CHECK(n <= most);
    for (int i = 0; i < n; i++) {
        double min = (double)INFINITY, max = -(double)INFINITY, sum = 0;
        int64_t count = 0;
        for (; x <= p[i].last_x; x++) {
            if (x % 7 == 3)
                continue;
            min = fmin(min, truth(x, shifted));
            max = fmax(max, truth(x, shifted));
            sum += truth(x, shifted);
            count++;
        }
        LS_CHECK_EQ(p[i].count, count);
        LS_CHECK_NEAR(p[i].min, min, 0);
        LS_CHECK_NEAR(p[i].max, max, 0);
        LS_CHECK_NEAR(p[i].mean, sum / (double)count, 1e-6);
    }
    for (; x <= to; x++)
        LS_CHECK_EQ(x % 7, 3);
    ls_mem_free(p);
}

LS_TEST(run_store_keeps_the_peaks_of_every_range_and_number_of_bins)
{
    static const int64_t ranges[][2] = {
        {0, MANY - 1}, {1, 40}, {33, 50000}, {999, 65600}, {64, 64}};
    static const int most[] = {2, 3, 17, 100, 1000, 100000};
    ls_store_writer w;

    ls_test_one_thread();
    LS_CHECK_OK(ls_file_make_dirs("run"));
    LS_CHECK_OK(ls_store_writer_open(&w, "run", NULL));
    put_range(&w.db, 0, 5, 0); /* transactions of odd sizes, levels that come later */
    put_range(&w.db, 6, 2000, 0);
    put_range(&w.db, 2001, 2001, 0);
    put_range(&w.db, 2002, MANY - 1, 0);
    ls_run_store *store = open_run();
    for (size_t i = 0; i < LS_COUNT(ranges); i++)
        for (size_t k = 0; k < LS_COUNT(most); k++)
            check_curve(store, ranges[i][0], ranges[i][1], most[k], MANY);

    /* Back to 40000, and on with other values. */
    LS_CHECK_OK(ls_store_db_begin(&w.db));
    LS_CHECK_OK(ls_store_db_truncate(&w.db, 39999));
    LS_CHECK_OK(ls_store_db_commit(&w.db));
    check_curve(store, 0, 39999, 10, MANY);
    put_range(&w.db, 40000, MANY - 1, 7);
    for (size_t k = 0; k < LS_COUNT(most); k++)
        check_curve(store, 0, MANY - 1, most[k], 40000);
    ls_run_store_close(store);
    ls_store_writer_close(&w);
}

/* --- the writer -------------------------------------------------------------------------------- */

static void take_events(ls_store_writer *w)
{
    int64_t lines;

    LS_CHECK_OK(ls_store_ingest_events(&w->db, "run", INT64_MAX, &lines));
    LS_CHECK_OK(ls_store_writer_commit(w));
}

LS_TEST(run_store_is_read_while_it_is_written_and_survives_sigkill)
{
    int64_t version, x;
    int ready[2];
    char c;

    begin_run();
    add_step(1, 5);
    LS_CHECK(pipe(ready) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        ls_store_writer w;
        LS_CHECK_OK(ls_store_writer_open(&w, "run", NULL));
        take_events(&w);
        LS_CHECK(write(ready[1], "a", 1) == 1);
        while (!ls_file_exists("next"))
            usleep(1000);
        take_events(&w);
        LS_CHECK(write(ready[1], "b", 1) == 1);
        LS_CHECK_OK(ls_store_db_begin(&w.db)); /* not committed when the kill comes */
        LS_CHECK_OK(ls_store_db_put(
            &w.db, &(ls_store_point){.name = "loss", .unit = "", .rank = LS_RUN_WHOLE, .x = 99}));
        LS_CHECK(write(ready[1], "c", 1) == 1);
        for (;;)
            pause();
    }
    LS_CHECK(read(ready[0], &c, 1) == 1);
    ls_run_store *store = open_run();
    LS_CHECK_OK(ls_run_store_version(store, &version));
    LS_CHECK_NEAR(latest(store, "loss", &x), 5, 0);
    add_step(2, 4);
    LS_CHECK_OK(ls_file_write_atomic("next", "", 0));
    LS_CHECK(read(ready[0], &c, 1) == 1);
    int64_t now = version;
    LS_CHECK_OK(ls_run_store_version(store, &now));
    LS_CHECK(now != version);
    LS_CHECK_NEAR(latest(store, "loss", &x), 4, 0);
    check_fact(store, "state", "running");
    LS_CHECK(read(ready[0], &c, 1) == 1);
    kill(pid, SIGKILL);
    LS_CHECK(waitpid(pid, NULL, 0) == pid);
    check_fact(store, "state", "lost");
    ls_run_store_close(store);

    /* A step that no writer has seen: readers take it from events.jsonl, and so does the next writer. */
    add_step(3, 3);
    store = open_run();
    LS_CHECK_NEAR(latest(store, "loss", &x), 3, 0);
    LS_CHECK_EQ(x, 3);
    ls_run_store_close(store);
    ls_store_writer w;
    LS_CHECK_OK(ls_store_writer_open(&w, "run", NULL));
    take_events(&w);
    store = open_run();
    latest(store, "loss", &x);
    LS_CHECK_EQ(x, 3);
    check_events(store, 0, NULL, 9, "1 rank 1, 2 start 1");
    ls_run_store_close(store);
    ls_store_writer_close(&w);
}

LS_TEST(run_store_elsewhere_leaves_a_backup_in_the_run_folder)
{
    ls_store_writer w;
    int64_t x;

    begin_run();
    add_step(1, 5);
    LS_CHECK_OK(ls_store_writer_open(&w, "run", "local"));
    take_events(&w);
    LS_CHECK(!ls_file_exists("run/run.db"));
    LS_CHECK_OK(ls_store_db_set(&w.db, "note", "kept"));
    LS_CHECK_OK(ls_store_writer_backup(&w));
    LS_CHECK(ls_file_exists("run/run.db"));
    LS_CHECK(!ls_file_exists("run/run.db-wal"));
    add_step(2, 4); /* after the backup: from events.jsonl */
    ls_run_store *store = open_run();
    LS_CHECK_NEAR(latest(store, "loss", &x), 4, 0);
    add_step(3, 3);
    LS_CHECK_OK(ls_run_store_version(store, &x));
    LS_CHECK_NEAR(latest(store, "loss", &x), 3, 0);
    check_fact(store, "note", "kept");
    ls_run_store_close(store);
    ls_store_writer_close(&w);

    /* Another machine goes on from the backup. */
    LS_CHECK_OK(ls_store_writer_open(&w, "run", "other"));
    ls_str note;
    ls_str_init(&note);
    LS_CHECK_OK(ls_store_db_get(&w.db, "note", &note));
    LS_CHECK_STR(note.p, "kept");
    ls_str_release(&note);
    ls_store_writer_close(&w);
}

LS_TEST(run_store_that_is_damaged_is_made_again)
{
    ls_store_writer w;
    int64_t x;

    begin_run();
    add_step(1, 5);
    LS_CHECK_OK(ls_file_write_atomic("run/run.db", "this is not a database, not at all", 34));
    ls_run_store *store = open_run(); /* from events.jsonl */
    LS_CHECK_NEAR(latest(store, "loss", &x), 5, 0);
    ls_run_store_close(store);
    LS_EXPECT_LOG(1);
    LS_CHECK_OK(ls_store_writer_open(&w, "run", NULL));
    take_events(&w);
    ls_store_writer_close(&w);
    LS_CHECK(ls_file_exists("run/run.db.damaged"));
    store = open_run();
    LS_CHECK_NEAR(latest(store, "loss", &x), 5, 0);
    ls_run_store_close(store);
}

LS_TEST(run_store_refuses_what_is_no_run_folder)
{
    ls_run_store *store;

    LS_CHECK_FAILS(ls_run_store_open("nowhere", &store), LS_EIO, "is no run folder");
    LS_CHECK_OK(ls_file_make_dirs("run"));
    LS_CHECK_OK(ls_file_write_atomic("run/run.db", "this is not a database, not at all", 34));
    LS_CHECK_FAILS(ls_run_store_open("run", &store), LS_EDATA, "run.db");
}
