/* cmd_data.h -- the data command, the part of it that needs a loaded run, and what its
 * sub-commands share. */
#pragma once
#include "cli/command.h"
#include "config/run.h"

extern const ls_command ls_cmd_data;

/* Prove the data order of a run, and print the proof by way of out: the first steps of it, or with 0
 * until every source has finished an epoch. Text is encoded into the run's folder, as training
 * does. */
ls_status ls_cmd_data_check(const ls_run *run, int64_t steps, bool json, ls_str *out);

/* 1234567 as "1,234,567". */
void ls_cmd_data_put_count(ls_str *out, int64_t n);

/* A line of progress on standard error: only on a terminal, only after a second. */
typedef struct ls_cmd_data_watch {
    int64_t began_ns, shown_ns;
    bool tty, shown;
} ls_cmd_data_watch;

ls_cmd_data_watch ls_cmd_data_watch_begin(void);
/* Whether it is time to print the line anew. */
bool ls_cmd_data_watch_due(ls_cmd_data_watch *w);
/* Wipe the line. */
void ls_cmd_data_watch_end(const ls_cmd_data_watch *w);

/* LS_EUSAGE when path does not exist: a name that cannot be meant as written is the user's slip,
 * not the system's refusal. */
ls_status ls_cmd_data_need_file(const char *path);

#define LS_CMD_DATA_JSON_FLAG                                              \
    {                                                                      \
        "json", 'j', NULL, false, "Print one JSON object instead of text." \
    }
#define LS_CMD_DATA_END_FLAGS      \
    {                              \
        NULL, 0, NULL, false, NULL \
    }
