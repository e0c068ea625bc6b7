/* check_impl.h -- what check.c, check_mesh.c, check_sharding.c and check_files.c share. */
#pragma once
#include "config/explain.h"
#include "base/err.h"

LS_C_BEGIN

/* Where the value of a key was written. */
const ls_run_origin *ls_check_origin(const ls_run *run, const char *key);

/* LS_EUSAGE: "run.yaml:3:9: a is 12 but b is 5 (run.yaml:3:24): why". The key that somebody wrote
 * comes first. */
ls_status ls_check_clash(const ls_run *run, const char *a, const char *b, const char *why);

/* Two keys that contradict each other when clash holds. */
typedef struct ls_check_row {
    bool clash;
    const char *a, *b, *why;
} ls_check_row;

/* Fails with the first of n rows that clashes. */
ls_status ls_check_rows(const ls_run *run, const ls_check_row *rows, size_t n);

/* Settings of ranks, their exchange and replicas that contradict each other. */
ls_status ls_check_mesh(const ls_run *run);

/* Heads and layers that the mesh cannot divide. */
ls_status ls_check_sharding(const ls_run *run);

/* Whether the files that data names are there, and out can be a folder. */
ls_status ls_check_files(const ls_run *run);

LS_C_END
