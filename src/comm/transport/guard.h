/* guard.h -- one transport made of two: `data` moves the messages, `watch` watches over the ranks.
 *
 * UCX reports a death late or never, and cannot carry the reason why a rank gives up. TCP does
 * both. So every message goes through `data`, while `watch` carries none and is only polled: it
 * fails when a rank dies or aborts the job with a reason. When `data` fails because of a peer, the
 * watch gets a tenth of a second to say more: its reason is taken, if it has one. */
#pragma once
#include "comm/transport/transport.h"

LS_C_BEGIN

typedef struct ls_guard_args {
    ls_transport *data, *watch; /* given away; when opening fails they stay the caller's */
    int64_t spin_ns;            /* how long sleep looks at data before it sleeps; 0: not at all */
} ls_guard_args;

/* Counts the bytes of both. Its name is that of data. */
ls_status ls_guard_open(ls_transport **transport_out, const ls_guard_args *args);

LS_C_END
