/* ucx_here.h -- whether the UCX library can be opened here, for tests that need it. */
#pragma once
#include "comm/transport/ucx_impl.h"

/* *why_out: the reason where it cannot. The last failure of this thread stays what it was. */
static inline bool ucx_is_here(ls_err_record *why_out)
{
    ls_err_record before = *ls_err_last();
    bool here = false;

    *why_out = (ls_err_record){.text = "this program was built without UCX"};
#if LS_UCX_HEADERS
    ls_ucx_api api;
    here = ls_ucx_load(&api, NULL) == LS_OK;
    *why_out = *ls_err_last();
    ls_ucx_unload(&api);
#endif
    ls_err_adopt(&before);
    return here;
}
