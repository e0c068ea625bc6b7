/* pair.h -- messages between two ranks of a group, through rings of the shared-memory segment.
 *
 * The same contract as a transport (transport/transport.h), which it is the inside of: a send and
 * the receive of the same tag meet, whichever was posted first. Small messages travel in the ring;
 * others are offered there and fetched by the receiver straight from the sender's memory, or come
 * over a stage in the heap where that memory cannot be read. One ls_pair uses the rings of a
 * group. */
#pragma once
#include "comm/node/group.h"
#include "comm/transport/transport.h"

LS_C_BEGIN

typedef struct ls_pair ls_pair;

/* The group is borrowed. mismatch: the status of a message whose two ends differ in length. */
ls_status ls_pair_open(ls_pair **pair_out, ls_group *group, ls_status mismatch);
void ls_pair_close(ls_pair *pair); /* NULL is allowed; frees only, says nothing to the others */

/* Post a message; message->peer is a place in the group, and not this rank. mark: what both ends
 * must have said the same, 0: anything. */
ls_status ls_pair_send(ls_pair *pair, ls_message *message, uint32_t mark);
ls_status ls_pair_receive(ls_pair *pair, ls_message *message, uint32_t mark);

ls_status ls_pair_poll(ls_pair *pair, bool *moved_out);

/* Whether poll would find something that others did. */
bool ls_pair_pending(const ls_pair *pair);
bool ls_pair_idle(const ls_pair *pair); /* nothing posted is in flight */
void ls_pair_count(const ls_pair *pair, int peer, int64_t *sent_out, int64_t *received_out);

LS_C_END
