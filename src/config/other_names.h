/* other_names.h -- the names that other programs use for our options.
 *
 * Users try the keys and flags of transformers, nanoGPT, axolotl, llama.cpp and torchrun. The error for such a name
 * gives ours; the name itself is never accepted, because its value often means something else. */
#pragma once
#include "config/option.h"

LS_C_BEGIN

/* Where a key of another program stands. */
typedef struct ls_other_names_place {
    const char *flag;    /* it was given to, such as "--set"; NULL: it stands in a run file */
    const char *section; /* of the run file, NULL or "": none */
    const char *value;   /* that it has, NULL or "": none, or not one word */
} ls_other_names_place;

/* Append to out our spelling of another program's key, with or without a section ("max_steps", "train.max_steps").
 * false, and nothing appended: the key is not in the table. */
bool ls_other_names_suggest(const char *key, const ls_other_names_place *place, ls_str *out);

/* The key that is most often meant where a section has this one value instead of keys ("device: cuda"); NULL: none. */
const char *ls_other_names_of_section(const char *section, const char *value);

/* Whether one of these words, between spaces, is this. */
bool ls_other_names_has(const char *words, const char *word);

LS_C_END
