/* alone.h -- a node whose workers heal without other nodes: its coordinator (office.h), and the
 * words between that and the workers (heal.h). One thread. */
#pragma once
#include "cluster/heal.h"

LS_C_BEGIN

typedef struct ls_alone ls_alone;

/* program: that can be a coordinator (office.h); NULL: it is a part of this process. */
ls_status ls_alone_open(ls_alone **alone_out, ls_view_rules rules, int workers,
                        const char *program);
void ls_alone_close(ls_alone *alone); /* NULL is allowed */

/* `say` of ls_heal_args; and where its answers go. */
void ls_alone_say(void *alone, const ls_word *word);
void ls_alone_bind(ls_alone *alone, ls_heal *heal);

/* Readable: attend. */
int ls_alone_fd(const ls_alone *alone);
ls_status ls_alone_attend(ls_alone *alone);

LS_C_END
