/* fd_limit.h -- raises the limit of open files for many sockets in one process. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

/* Make sure that about this many more descriptors can be opened: raises the soft limit of this
 * process where it is too low, and the hard one where the system lets it. LS_EUSAGE: it does not;
 * the hint says how to raise it. who: for whom, such as "10000 nodes". */
ls_status ls_fd_limit_make(int more, const char *who);

LS_C_END
