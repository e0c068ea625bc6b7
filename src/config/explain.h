/* explain.h -- where each value of a run came from, and the run as text again.
 *
 * Used by `config explain`, by the trainer to save the resolved run file with the run, and by
 * resume to say which settings differ from the run that made a checkpoint. */
#pragma once
#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"
#include "config/option.h"

LS_C_BEGIN

typedef enum ls_run_source {
    LS_RUN_DEFAULT,
    LS_RUN_IMPORT, /* the configuration in the folder of model.import */
    LS_RUN_FILE,
    LS_RUN_ENVIRONMENT,
    LS_RUN_SET,
    LS_RUN_OVERRIDE /* --override: also for a run that is resumed */
} ls_run_source;

/* Where one option's value was written. All strings are in the run's arena or constant. */
typedef struct ls_run_origin {
    ls_run_source source;
    bool automatic;           /* written or defaulted as auto, then worked out by us */
    const char *where;        /* "default", "run.yaml:3:9", "LINESHAFT_BATCH_LEAF", "--set" */
    const char *const *items; /* the same for each entry of a list; NULL: none */
} ls_run_origin;

/* The origin of a row in a loaded run. */
const ls_run_origin *ls_explain_origin(const ls_run *run, const ls_option *row);

/* Where the value of key was written, for a message; "run" in a run that was made by hand. */
const char *ls_explain_where(const ls_run *run, const char *key);

/* One aligned line per option: key, value, origin. keys: options or sections to show; 0 of them:
 * all. LS_EUSAGE for a key that does not exist. */
ls_status ls_explain_table(const ls_run *run, const char *const *keys, int n_keys, ls_str *out);
ls_status ls_explain_json(const ls_run *run, const char *const *keys, int n_keys, ls_str *out);

/* One object with the value of each key that was set, in the run file or elsewhere. */
void ls_explain_settings(const ls_run *run, ls_json *json);

/* The complete resolved run file. It loads back to the same run. */
void ls_explain_yaml(const ls_run *run, ls_str *out);

/* One line per key whose value differs, with both values; returns how many of them cannot change
 * when run a is resumed as b, -1 when memory is exhausted. What --override changes in b can, and so can
 * what follows from it (train.min_lr: auto). */
int ls_explain_diff(const ls_run *a, const ls_run *b, ls_str *text);

/* Of these the keys that --override changes, as "train.lr 0.001 -> 1e-05, train.min_lr ...". */
void ls_explain_overridden(const ls_run *a, const ls_run *b, ls_str *text);

/* A hash of all settings that cannot change on resume. */
ls_status ls_explain_hash(const ls_run *run, ls_hash *hash_out);

LS_C_END
