/* load.c -- from parsed flags to a run. */
#include "cli/load.h"

#include "config/runfile.h"

const char ls_load_demo[] =
    "# The demonstration: a small GPT learns to tell stories that lineshaft makes up itself.\n"
    "name: demo\n"
    "model: {family: gpt2, layers: 4, width: 128, heads: 4, context: 128}\n"
    "data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}\n"
    "batch: {sequences: 8, leaf: 4}\n"
    "train: {steps: 1600, lr: 3e-3, schedule: cosine, warmup: 100, seed: 1}\n"
    "checkpoint: {every: 400, keep: 2}\n"
    "eval: {every: 200, sequences: 64, sample: \"Once upon a time\", sample_tokens: 240}\n";

ls_status ls_load_run(ls_run *run, const ls_args *args, const char *path)
{
    const char *sets[LS_COUNT(args->given)];
    ls_runfile_source source = {.path = path, .sets = sets};

    while (source.n_sets < (int)LS_COUNT(sets) &&
           (sets[source.n_sets] = ls_args_nth(args, "set", source.n_sets)) != NULL)
        source.n_sets++;
    if (!path) {
        source.text = ls_load_demo;
        source.len = strlen(ls_load_demo);
        source.text_name = "<demo>";
    }
    return ls_runfile_load(run, &source);
}
