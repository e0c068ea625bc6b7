/* other_names.h -- the names that other programs use for our options.
 *
 * Users try the keys and flags of transformers, nanoGPT, axolotl, llama.cpp and torchrun. The error for such a name
 * gives ours; the name itself is never accepted, because its value often means something else. */
#pragma once
#include "config/option.h"

LS_C_BEGIN

/* Append to out our spelling of another program's key, with or without a section ("max_steps", "train.max_steps").
 * set: NULL: as in a run file; else as --set with this value, or with any value where it is "".
 * false, and nothing appended: the key is not in the table. */
bool ls_other_names_suggest(const char *key, const char *set, ls_str *out);

/* The key that is most often meant where a section has this one value instead of keys ("device: cuda"); NULL: none. */
const char *ls_other_names_of_section(const char *section, const char *value);

/* Whether one of these words, between spaces, is this. */
bool ls_other_names_has(const char *words, const char *word);

LS_C_END
