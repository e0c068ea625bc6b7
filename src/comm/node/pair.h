/* pair.h -- messages between two ranks of a group, through rings in the segment.
 *
 * The contract is that of a transport (transport/transport.h); transport/shm.c puts it behind that
 * table. A send and the receive of the same tag meet, whichever was posted first. Small messages
 * travel in the ring. Others are offered there; the receiver fetches them straight from the
 * sender's memory, or over a stage in the heap where it cannot read that memory. One ls_pair uses
 * the rings of a group. */
#pragma once
#include "comm/node/group.h"
#include "comm/transport/transport.h"

LS_C_BEGIN

typedef struct ls_pair ls_pair;

/* The group is borrowed. mismatch: the status of a message whose two ends differ in length. */
ls_status ls_pair_open(ls_pair **pair_out, ls_group *group, ls_status mismatch);
void ls_pair_close(ls_pair *pair); /* NULL is allowed; frees memory, sends nothing */

/* Post a message; message->peer is a position in the group, not this rank. mark: what both ends
 * must pass alike; 0: not compared. */
ls_status ls_pair_send(ls_pair *pair, ls_message *message, uint32_t mark);
ls_status ls_pair_receive(ls_pair *pair, ls_message *message, uint32_t mark);

ls_status ls_pair_poll(ls_pair *pair, bool *moved_out);

/* Whether another rank has written something that poll would find. */
bool ls_pair_pending(const ls_pair *pair);
bool ls_pair_idle(const ls_pair *pair); /* nothing posted is in flight */
void ls_pair_count(const ls_pair *pair, int peer, int64_t *sent_out, int64_t *received_out);

LS_C_END
