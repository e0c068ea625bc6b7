/* test_log.c -- levels, sinks, counters, and lines from many threads. */
#include "harness.h"
#include "base/log.h"

#include <pthread.h>

typedef struct caught {
    int lines, torn;
    ls_log_level last_level;
    char last[1200];
    bool inside;
} caught;

static void catch_line(ls_log_level level, const char *line, void *context)
{
    caught *c = context;

    c->torn += c->inside; /* one call at a time */
    c->inside = true;
    c->lines++;
    c->last_level = level;
    snprintf(c->last, sizeof c->last, "%s", line);
    c->inside = false;
}

LS_TEST(log_sink_gets_its_level_and_all_more_urgent_ones)
{
    caught c = {0};

    ls_log_set_sink(catch_line, &c, LS_LOG_INFO);
    ls_log(LS_LOG_DEBUG, "quiet");
    LS_CHECK_EQ(c.lines, 0);
    ls_log(LS_LOG_INFO, "step %d", 3);
    LS_CHECK_EQ(c.lines, 1);
    LS_CHECK_STR(c.last, "step 3");
    LS_CHECK_EQ(c.last_level, LS_LOG_INFO);
    ls_log(LS_LOG_WARN, "odd");
    ls_log(LS_LOG_ERROR, "bad");
    LS_CHECK_EQ(c.lines, 3);
    LS_CHECK_EQ(c.last_level, LS_LOG_ERROR);
    /* Counted also when not shown. */
    LS_CHECK_EQ(ls_log_count(LS_LOG_DEBUG), 1);
    LS_CHECK_EQ(ls_log_count(LS_LOG_INFO), 1);
    LS_CHECK_EQ(ls_log_count(LS_LOG_WARN), 1);
    LS_CHECK_EQ(ls_log_count(LS_LOG_ERROR), 1);
    ls_log_set_sink(NULL, NULL, LS_LOG_DEBUG); /* back to the default: no info, no debug */
    ls_log(LS_LOG_INFO, "gone");
    LS_CHECK_EQ(c.lines, 3);
    LS_EXPECT_LOG(2);
}

LS_TEST(log_cuts_a_line_that_is_too_long)
{
    caught c = {0};
    char text[5000];

    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    ls_log_set_sink(catch_line, &c, LS_LOG_DEBUG);
    ls_log(LS_LOG_INFO, "%s", text);
    LS_CHECK_EQ(c.lines, 1);
    LS_CHECK_EQ(strlen(c.last), 1023);
}

static void *log_many(void *unused)
{
    (void)unused;
    for (int i = 0; i < 500; i++)
        ls_log(LS_LOG_INFO, "line %d", i);
    return NULL;
}

LS_TEST(log_lines_from_threads_come_whole)
{
    pthread_t threads[4];
    caught c = {0};

    ls_log_set_sink(catch_line, &c, LS_LOG_DEBUG);
    for (size_t i = 0; i < LS_COUNT(threads); i++)
        LS_CHECK_EQ(pthread_create(&threads[i], NULL, log_many, NULL), 0);
    for (size_t i = 0; i < LS_COUNT(threads); i++)
        pthread_join(threads[i], NULL);
    LS_CHECK_EQ(c.lines, 2000);
    LS_CHECK_EQ(c.torn, 0);
    LS_CHECK_STR(c.last, "line 499");
    LS_CHECK_EQ(ls_log_count(LS_LOG_INFO), 2000);
}

LS_TEST(log_levels_have_names)
{
    LS_CHECK_STR(ls_log_level_name(LS_LOG_ERROR), "error");
    LS_CHECK_STR(ls_log_level_name(LS_LOG_WARN), "warning");
    LS_CHECK_STR(ls_log_level_name(LS_LOG_INFO), "info");
    LS_CHECK_STR(ls_log_level_name(LS_LOG_DEBUG), "debug");
}
