/* command.h -- one row per command: parser, help, completion and man page are views of it.
 *
 * A command has flags, arguments and either a run function or sub-commands. The table of all
 * commands is in cli/command.c; each command lives in cli/cmd_<name>.c. Only this room prints:
 * results to standard output, everything else to standard error. */
#pragma once
#include "base/err.h"
#include "base/str.h"

typedef struct ls_flag {
    const char *name;  /* long name without dashes: "json" */
    char letter;       /* short form or 0 */
    const char *value; /* name of its value in help ("KEY=VALUE"), NULL for a switch */
    bool repeats;      /* may be given several times */
    const char *doc;   /* one sentence */
} ls_flag;

/* A parsed command line. Strings are borrowed from argv. */
typedef struct ls_args {
    const struct ls_command *command;
    const char *rest[256]; /* what is not a flag, in order; NULL-terminated */
    int n_rest;
    struct {
        const ls_flag *flag;
        const char *value; /* NULL for a switch */
    } given[64];
    int n_given;
} ls_args;

typedef struct ls_command {
    const char *name;
    const char *summary;   /* one line, lower case, no full stop */
    const char *arguments; /* the usage line and the parser read it: "DIR TO", "RUN [KEY ...]",
                              "FOLDER | FILE ..."; NULL: none. "-- ...": the first argument ends
                              the flags, which then belong to another program */
    const char *about;     /* a paragraph or more for --help and the man page */
    const char *examples;  /* lines of "command  # what it does" */
    const ls_flag *flags;  /* ends with a row whose name is NULL; NULL: none */
    const struct ls_command *const *subs; /* NULL-terminated; NULL: a leaf */
    /* What it appends to out is printed when it succeeds. One that prints as it goes, or prints and
     * then fails, calls ls_term_print() itself. LS_EFAIL without an error record: the answer is no. */
    ls_status (*run)(const ls_args *args, ls_str *out);
} ls_command;

/* The value of a flag given once (the last one wins), NULL when it was not given; a switch that was
 * given has the value "". */
const char *ls_args_value(const ls_args *args, const char *name);
bool ls_args_has(const ls_args *args, const char *name);
/* Whether the command has this flag, given or not. */
bool ls_args_knows(const ls_args *args, const char *name);
/* The i-th value of a flag that repeats; NULL past the end. */
const char *ls_args_nth(const ls_args *args, const char *name, int i);
/* The value of a flag as a whole number; fallback when it was not given. LS_EUSAGE: it is none, or
 * out of range. most: INT64_MAX where there is no limit. */
ls_status ls_args_number(const ls_args *args, const char *flag, int64_t fallback, int64_t least,
                         int64_t most, int64_t *number_out);

/* Every command that exists, in the order of --help. */
extern const ls_command *const ls_commands[];
