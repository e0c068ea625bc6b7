/* log.c -- one sink, a lock, and counters that tests look at. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ls_log_sink current;
static void *current_context;
static ls_log_level current_most = LS_LOG_WARN;
static uint64_t counts[LS_LOG_DEBUG + 1];

static void to_stderr(ls_log_level level, const char *line, void *context)
{
    (void)context;
    fprintf(stderr, "lineshaft: %s: %s\n", ls_log_level_name(level), line);
}

void ls_log(ls_log_level level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    counts[level]++;
    if (level <= current_most)
        (current ? current : to_stderr)(level, line, current_context);
    pthread_mutex_unlock(&lock);
}

void ls_log_set_sink(ls_log_sink sink, void *context, ls_log_level most)
{
    pthread_mutex_lock(&lock);
    current = sink;
    current_context = context;
    current_most = sink ? most : LS_LOG_WARN;
    pthread_mutex_unlock(&lock);
}

uint64_t ls_log_count(ls_log_level level)
{
    pthread_mutex_lock(&lock);
    uint64_t n = counts[level];
    pthread_mutex_unlock(&lock);
    return n;
}

const char *ls_log_level_name(ls_log_level level)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};

    return names[level];
}
