/* wrap.h -- a transport around another one that injects faults, for tests and drills.
 *
 * In builds with -DLS_FAULTS the plan in LINESHAFT_WRAP applies to what moves data between nodes
 * (transport_choice.c). In every build, the point "link" of a drill's plan (base/fault.h) does: then what
 * this rank sends is lost (cut), or leaves later (slow).
 *
 * The plan is a list, separated by commas. The n-th message is the n-th that this rank sends,
 * counted from 1. What happens by chance is a function of the seed and n, so a run can be repeated.
 *
 *   delay=5ms      every send leaves that much later (ns, us, ms, s)
 *   drop=0.01      a send is lost with this probability: it is never done, and never arrives
 *   corrupt=0.001  one bit of a message is flipped with this probability, in a copy
 *   drop@7         the 7th is lost            corrupt@7   the 7th is changed
 *   kill@120       the process kills itself (SIGKILL) when it sends its 120th
 *   stop@120       the process stops (SIGSTOP) there
 *   seed=3         instead of the seed given
 *
 * What a transport does underneath (chunks, resuming) is untouched: faults hit whole messages as
 * the caller posts them. */
#pragma once
#include "comm/transport/transport.h"

LS_C_BEGIN

/* Takes `inner` over: closing the wrapper closes it; when opening fails it stays the caller's.
 * LS_EUSAGE: the plan cannot be read; the message says where. */
ls_status ls_wrap_open(ls_transport **transport_out, ls_transport *inner, const char *plan,
                       uint64_t seed);

LS_C_END
