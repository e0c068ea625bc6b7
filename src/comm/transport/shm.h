/* shm.h -- the transport between ranks of one node: messages over the segment (node/pair.h). */
#pragma once
#include "comm/node/group.h"
#include "comm/transport/transport.h"

LS_C_BEGIN

/* peers are places in the group, which is borrowed and used by this alone. */
ls_status ls_shm_open(ls_transport **transport_out, ls_group *group);

LS_C_END
