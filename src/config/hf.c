/* hf.c -- config.json of a Hugging Face folder. */
#include "config/hf.h"

#include "base/err.h"
ls_status ls_hf_import(ls_run *run)
{
    return ls_fail(LS_EUSAGE, "not built: %s", run->model.import);
}
