/* option.h -- the one table of run-file options.
 *
 * Each row describes one key of the run file: how it is written, what it may hold, what it means
 * and where it lives in ls_run. The parser, the checks, `config explain`, the JSON Schema, the
 * reference page, shell completion and the man page are all views of this table. Rows are in the
 * order of the reference; the keys of one section stand together. */
#pragma once
#include "base/str.h"
#include "config/run.h"

LS_C_BEGIN

typedef enum ls_option_type {
    LS_OPTION_INT,      /* int64_t: 500, 1e4, 10k, 64M, 4GiB */
    LS_OPTION_FLOAT,    /* double: 0.1, 1e-3, 10% */
    LS_OPTION_DURATION, /* double, seconds: 90, 90s, 10m, 1h30m */
    LS_OPTION_BOOL,     /* bool: true, false */
    LS_OPTION_ENUM,     /* an enum of run.h; names[i] is the i-th value */
    LS_OPTION_STRING,   /* const char *; one of names when there are any */
    LS_OPTION_STRINGS,  /* ls_run_list */
    LS_OPTION_FLOATS    /* ls_run_floats */
} ls_option_type;

enum { LS_OPTION_MOST = 192, LS_OPTION_NAMES = 12 };

/* Largest integer of any option: exact in a double and in JSON. */
#define LS_OPTION_BIG 9007199254740991.0

/* Whether a run that resumes may have another value than its checkpoint. */
typedef enum ls_option_resume {
    LS_OPTION_FREE,
    LS_OPTION_FIXED,  /* it may not */
    LS_OPTION_ON_WORD /* where the command line says so: train --override KEY=VALUE */
} ls_option_resume;

typedef struct ls_option {
    const char *key; /* "batch.sequences"; without a dot at the top level */
    ls_option_type type;
    const char *preset; /* the default as a user would write it; NULL: must be given */
    double least, most; /* of a number, or of each number in a list */
    bool above, below;  /* least, most themselves are excluded */
    const char *names[LS_OPTION_NAMES]; /* the values there are; ends with NULL */
    const char *unit;                   /* "steps", "sequences"; NULL: none */
    const char *when_auto;              /* what `auto` means; NULL: auto is not allowed */
    const char *limit;                  /* why other values that might be expected are refused */
    const char *doc;                    /* one or two sentences */
    size_t offset;                      /* of the field in ls_run */
    ls_option_resume fixed;             /* what a run that resumes may have instead */
} ls_option;

/* A group of keys: "batch". */
typedef struct ls_option_section {
    const char *name;
    const char *doc;
} ls_option_section;

extern const ls_option ls_options[];
extern const int ls_option_count;
extern const ls_option_section ls_option_sections[];
extern const int ls_option_section_count;

/* The row of a key, NULL when there is none; its number in the table; the section of a name. */
const ls_option *ls_option_find(const char *key);
int ls_option_index(const ls_option *row);
const ls_option_section *ls_option_find_section(const char *name);

/* The key without its section ("sequences"), and whether the row belongs to a section ("" is the
 * top level). */
const char *ls_option_leaf(const ls_option *row);
bool ls_option_in(const ls_option *row, const char *section);

/* Why a key that is planned but not part of this version is refused; NULL for any other key. */
const char *ls_option_later(const char *key);

/* "a whole number from 1 to 64, or auto": what the row accepts, as the end of a sentence. */
void ls_option_describe(const ls_option *row, ls_str *out);

/* A hint for a key that does not exist, as a full sentence: the nearest name, or all names of the
 * section. section is "" for the top level; key is the part without the section. */
void ls_option_suggest(const char *section, const char *key, ls_str *out);

/* The environment variable of a row: LINESHAFT_BATCH_SEQUENCES. */
void ls_option_variable(const ls_option *row, char *out, size_t cap);

LS_C_END
