/* check.h -- computes the values of auto, and finds contradictions between options. */
#pragma once
#include "base/err.h"
#include "config/run.h"

LS_C_BEGIN

/* Replace each auto that other options determine (name, out, leaf, mlp, min_lr ...). What needs
 * the tokenizer or the machine stays LS_RUN_AUTO: model.vocab, mesh.dp, eval.sequences,
 * device.threads, with train.epochs train.warmup and decay; and so does batch.ramp_from without a
 * ramp. */
ls_status ls_check_resolve(ls_run *run);
/* Only name and out, for callers that need them before the rest is known. */
ls_status ls_check_names(ls_run *run);

/* In a loaded run whose mesh has changed since: the autos that follow from it (batch.group,
 * mesh.chunks). */
void ls_check_follow(ls_run *run);

/* Now that the data is known: train.epochs becomes steps, and warm-up and decay follow from them.
 * windows: samples of an epoch. LS_EUSAGE: warm-up or decay is longer than that. */
ls_status ls_check_epochs(ls_run *run, int64_t windows);

/* LS_EUSAGE when options contradict each other; the message names both with their places.
 * with_files: also look for the files that data and out name. with_sources: data must name
 * something to train on. */
ls_status ls_check_run(const ls_run *run, bool with_files, bool with_sources);

/* LS_EUSAGE: "run.yaml:2:1: key is missing", at the place where the key's section stands. */
ls_status ls_check_missing(const ls_run *run, const char *key, const char *what);

/* Steps after which train.steps or train.tokens ends the run, whichever is first; 0: neither is
 * set, or train.epochs is and the data is not known yet. This is the length that schedules stretch over. */
int64_t ls_check_horizon(const ls_run *run);

LS_C_END
