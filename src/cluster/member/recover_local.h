/* recover_local.h -- a node whose workers heal without other nodes: its coordinator (coordinator_process.h), and the
 * words between that and the workers (heal.h). One thread. */
#pragma once
#include "cluster/member/heal.h"

LS_C_BEGIN

typedef struct ls_recover_local ls_recover_local;

/* program: that can be a coordinator (coordinator_process.h); NULL: it is a part of this process. */
ls_status ls_recover_local_open(ls_recover_local **alone_out, ls_view_rules rules, int workers,
                                const char *program);
void ls_recover_local_close(ls_recover_local *alone); /* NULL is allowed */

/* `say` of ls_heal_args; and where its answers go. */
void ls_recover_local_say(void *alone, const ls_messages *word);
void ls_recover_local_bind(ls_recover_local *alone, ls_heal *heal);

/* Readable: attend. */
int ls_recover_local_fd(const ls_recover_local *alone);
ls_status ls_recover_local_attend(ls_recover_local *alone);

LS_C_END
