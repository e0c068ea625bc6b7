/* log.h -- what a program says about its work, as lines with a level.
 *
 * Rooms log; cli/ decides where the lines go. error: the work failed. warn: it goes on, but a
 * person should know. info: a few lines per run. debug: for us. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

typedef enum ls_log_level { LS_LOG_ERROR, LS_LOG_WARN, LS_LOG_INFO, LS_LOG_DEBUG } ls_log_level;

void ls_log(ls_log_level level, const char *fmt, ...) LS_PRINTF(2, 3);

/* A sink gets every line at or below its level, one call at a time. NULL restores the default:
 * warnings and errors to standard error. The sink must not log. */
typedef void (*ls_log_sink)(ls_log_level level, const char *line, void *context);
void ls_log_set_sink(ls_log_sink sink, void *context, ls_log_level most);

/* Lines logged so far at exactly this level; the test harness fails on unexpected ones. */
uint64_t ls_log_count(ls_log_level level);
const char *ls_log_level_name(ls_log_level level);

LS_C_END
