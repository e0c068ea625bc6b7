/* signing.c -- what a run does with its key. */
#include "train/save/signing.h"

#include "base/log.h"

ls_status ls_signing_store(const ls_run *run, ls_ckpt_store *store)
{
    return run->checkpoint.key[0]
               ? ls_ckpt_use_key(store, run->checkpoint.key, run->checkpoint.take_unsigned)
               : LS_OK;
}

void ls_signing_warn(const ls_run *run, const ls_ckpt_info *info)
{
    if (info->trust == LS_CKPT_UNCHECKED)
        ls_log(LS_LOG_WARN,
               "the checkpoint of step %lld is signed, but there is no checkpoint.key: its "
               "signature was not checked, and this run does not sign",
               (long long)info->step);
    else if (run->checkpoint.key[0] && info->trust == LS_CKPT_UNSIGNED)
        ls_log(LS_LOG_WARN,
               "the checkpoint of step %lld is not signed; it is used because of "
               "checkpoint.take_unsigned",
               (long long)info->step);
}
