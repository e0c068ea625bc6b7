/* base_run.h -- a run of ours as the base of another one (model.import: runs/x). */
#pragma once
#include "config/hf_config.h"

LS_C_BEGIN

/* The run behind a checkpoint, as an ls_hf_config_base: a run folder, its checkpoints folder, "best" in one
 * of them, or a manifest. model.vocab is known. LS_EUSAGE: it has adapters, which no base has, or there is
 * none (home_out is empty). */
ls_status ls_base_run_read(const char *path, ls_run *run_out, ls_str *home_out);

/* "from runs/x, step 500, weights 0f58...": of a run that begins with it; "" for a Hugging Face folder. */
ls_status ls_base_run_lineage(const char *path, ls_str *out);

/* Whether the path holds a model that a run of ours has changed: a checkpoint of a step above 0, which the
 * result of `lineshaft import` is not. False where there is no model. */
bool ls_base_run_is_trained(const char *path);

LS_C_END
