/* shm_coll.h -- collectives among ranks of one node that reach each other's memory.
 *
 * A rank publishes what it asks for and where its buffers lie; when all have done so, each one
 * fetches what it needs. Nothing moves before all members are seen to ask for the same; otherwise
 * LS_EUSAGE names two ranks and their calls. Sums run in the order of the members, so the bits are
 * the same on all ranks, in every run, however the buffers were cut.
 *
 * Calls come from one thread at a time. The first failure breaks the segment: this and every later
 * call fails with the same reason, and so do those of the other ranks. */
#pragma once
#include "comm/coll.h"
#include "comm/node/group.h"

LS_C_BEGIN

typedef struct ls_shm_coll ls_shm_coll;
typedef uint64_t ls_shm_coll_ticket;

enum { LS_SHM_COLL_OPS = 16 };       /* collectives in flight */
enum { LS_SHM_COLL_MESSAGES = 128 }; /* sends and receives in flight, some of which wait for long */

/* The group is borrowed and used by this alone. */
ls_status ls_shm_coll_open(ls_shm_coll **direct_out, ls_group *group);

/* Waits for no rank. An operation in flight becomes a failure for the others. NULL is allowed. */
void ls_shm_coll_close(ls_shm_coll *direct);

/* Start a collective, which owns its buffers and tables until it is done. LS_EBUSY: too many are in
 * flight. LS_EUSAGE: the call makes no sense. In both cases nothing was started. */
ls_status ls_shm_coll_start(ls_shm_coll *direct, const ls_coll *coll,
                            ls_shm_coll_ticket *ticket_out);

/* Move everything in flight as far as it goes now (about a MiB for each); *done_out: whether this
 * one is done. */
ls_status ls_shm_coll_poll(ls_shm_coll *direct, ls_shm_coll_ticket ticket, bool *done_out);

/* Until it is done. LS_EDEADLINE names the ranks that did not come and where they are, and breaks
 * the segment. */
ls_status ls_shm_coll_wait(ls_shm_coll *direct, ls_shm_coll_ticket ticket, int64_t deadline_ns);

/* Start and wait; waits for a free slot, too. */
ls_status ls_shm_coll_run(ls_shm_coll *direct, const ls_coll *coll, int64_t deadline_ns);

LS_C_END
