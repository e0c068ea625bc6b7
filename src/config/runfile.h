/* runfile.h -- loading a run: defaults < run file < LINESHAFT_* variables < --set < --override.
 *
 * The file is YAML, read through libyaml's events, so that every message carries file:line:column.
 * Only what a run file needs is accepted: one document, plain mappings, scalars and lists; anchors,
 * aliases and tags are refused. Loading reads files but creates nothing. */
#pragma once
#include "config/hf_config.h"
#include "config/run.h"

LS_C_BEGIN

enum { LS_RUNFILE_BYTES = 1 << 20 }; /* longest run file */

/* What to load. All zero but path is the usual case. */
typedef struct ls_runfile_source {
    const char *path;        /* the run file to read; NULL: text */
    const char *text;        /* contents of a run file, where path is NULL */
    size_t len;              /* bytes of text */
    const char *text_name;   /* its name in messages; NULL: "<embedded>" */
    const char *const *sets; /* "batch.leaf=4" each, in order; the last one wins */
    int n_sets;
    const char *const *overrides; /* likewise, after sets: options that may change in a begun run */
    int n_overrides;
    ls_hf_config_base *base; /* reads a run of ours that model.import names; NULL: refused */
    bool no_environment;     /* ignore LINESHAFT_* variables */
    bool no_files;           /* do not look for the files that data and out name */
    bool model_only;         /* the run describes a model: it need not name anything to train on */
} ls_runfile_source;

/* Fill run: parse, resolve every auto that can be known now, check. On failure run is empty and
 * needs no release. LS_EUSAGE: the run file, a variable or a --set is wrong or names a file that
 * does not exist. LS_EIO: the run file cannot be read. */
ls_status ls_runfile_load(ls_run *run, const ls_runfile_source *source);

/* Safe on an empty run. */
void ls_runfile_release(ls_run *run);

LS_C_END
