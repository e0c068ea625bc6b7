/* run_summary.h -- a run in a few numbers, and the run folders below a folder: what `lineshaft runs`
 * lists and compares. */
#pragma once
#include <limits.h>
#include "observe/store/run_store.h"

LS_C_BEGIN

typedef struct ls_run_summary {
    char folder[PATH_MAX];
    char name[128];      /* "" where the run did not come to its first step */
    char state[16];      /* as the fact "state" (run_store.h) */
    int attempts;        /* processes that trained: one more for each that resumed */
    int incidents;       /* failures that it survived */
    int64_t steps;       /* done */
    int64_t total_steps; /* 0: no limit, or not known */
    int64_t tokens;
    double loss;           /* of the last step; NaN: none */
    double val_loss;       /* of the last validation; NaN: none */
    double best_val_loss;  /* NaN: none, */
    int64_t best_step;     /* and after which step */
    double tokens_per_s;   /* of the last step, of the summary where there is one; NaN: none */
    int64_t began_ms;      /* since 1970; 0: not known */
    int64_t updated_ms;    /* when its last event was written; 0: not known */
    char weights_hash[48]; /* "" until it has ended */
} ls_run_summary;

/* Read it from the store of a folder that is open. */
ls_status ls_run_summary_read(ls_run_store *store, const char *folder, ls_run_summary *summary_out);

/* Folders with events of a run, `folder` itself or at most three levels below it, in alphabetical
 * order. Folders inside a run are not searched, nor are links. Each path is appended with a final
 * '\0'. A folder that cannot be read is LS_EIO; one below it is passed over. */
ls_status ls_run_summary_find(const char *folder, ls_str *paths_out, int *count_out);

LS_C_END
