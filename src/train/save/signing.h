/* signing.h -- the key of a run (checkpoint.key), for every store that it opens. */
#pragma once
#include "checkpoint/ckpt.h"
#include "config/run.h"

LS_C_BEGIN

/* A store signs and checks with the key of the run, if it has one. */
ls_status ls_signing_store(const ls_run *run, ls_ckpt_store *store);

/* Warn where a checkpoint that the run goes on from was not proved to be its own. */
void ls_signing_warn(const ls_run *run, const ls_ckpt_info *info);

LS_C_END
