/* likeness.h -- what must be alike wherever a job runs: a hash for each thing, by name.
 *
 * A worker brings its own with its first report: the program, each section of the run file, the
 * tokenizer, the data. The coordinator compares it with that of the first worker, and refuses a
 * node whose workers differ, naming what does. */
#pragma once
#include "base/str.h"
#include "cluster/parcel.h"

LS_C_BEGIN

enum { LS_LIKENESS_ROWS = 24, LS_LIKENESS_NAME = 24 };

typedef struct ls_likeness {
    int32_t rows; /* 0: nothing is compared */
    struct {
        char name[LS_LIKENESS_NAME];
        uint64_t hash;
    } row[LS_LIKENESS_ROWS];
} ls_likeness;

/* Hash this, under a name; the same name twice is hashed together. Beyond the last row nothing is
 * added. */
void ls_likeness_add(ls_likeness *likeness, const char *name, const void *bytes, size_t len);

/* The contents of a file: its length, and all of it or, of large ones, the first and last
 * bytes. One that cannot be read counts as empty. */
void ls_likeness_add_file(ls_likeness *likeness, const char *name, const char *path);

/* The program that runs. */
void ls_likeness_add_program(ls_likeness *likeness);

/* Whether they are alike; otherwise what differs: "train (1f00c2 here, 88ab17 there), data (...)".
 */
bool ls_likeness_same(const ls_likeness *here, const ls_likeness *there, char *why, size_t cap);

void ls_likeness_encode(const ls_likeness *likeness, ls_str *out);
void ls_likeness_decode(ls_likeness *likeness, ls_parcel *in);

LS_C_END
