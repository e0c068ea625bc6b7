/* group.h -- ranks of one node that communicate: the local part of a communicator.
 *
 * The members agree on one of the segment's group numbers by a key that all of them know and that
 * no other living group has. The first member of the list takes the number, the others find it. The
 * memory of a group is reused when all members have closed it. */
#pragma once
#include "comm/node/shm_segment.h"

LS_C_BEGIN

typedef struct ls_group {
    ls_shm_segment *segment; /* borrowed; NULL: not open */
    int number, members;
    int me;                                /* position in the list */
    int local;                             /* its local rank */
    uint16_t locals[LS_SHM_SEGMENT_RANKS]; /* local rank of each member */
} ls_group;

/* locals: the local ranks of the members, in the order of the list; `local` is one of them. All
 * have met (ls_shm_segment_meet). key: not 0. LS_EBUSY: all groups of the segment are in use. */
typedef struct ls_group_args {
    uint64_t key;
    int local;
    const int *locals;
    int members;
} ls_group_args;
ls_status ls_group_open(ls_group *group, ls_shm_segment *segment, const ls_group_args *args,
                        int64_t deadline_ns);
void ls_group_close(ls_group *group); /* safe on one that is not open */

LS_C_END
