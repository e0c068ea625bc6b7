/* store_ingest.h -- lines of events.jsonl become points, events and facts of a store. */
#pragma once
#include "observe/store/store_db.h"

LS_C_BEGIN

/* Read what events.jsonl of the folder has beyond the byte that the store remembers, at most
 * `lines` complete lines, and commit. A file that is shorter than that, or another one, is read from
 * its beginning. *lines_out: how many there were. A line that is no event is skipped. A file that
 * does not exist has no lines. */
ls_status ls_store_ingest_events(ls_store_db *db, const char *folder, int64_t lines,
                                 int64_t *lines_out);

/* One line, without its end. Part of the transaction of the caller. */
ls_status ls_store_ingest_line(ls_store_db *db, const char *line, size_t len);

/* A line of the log, as an event. Part of the transaction of the caller. */
ls_status ls_store_ingest_log(ls_store_db *db, const char *level, const char *text,
                              int64_t time_ms);

LS_C_END
