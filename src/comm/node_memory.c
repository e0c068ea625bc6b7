/* node_memory.c -- the shared-memory segment (node/shm_segment.h) and its flight recorders
 * (node/flight_recorder.h) as the process sees them that starts the ranks.
 *
 *     starter                       ranks
 *     create: fd 9 ---inherit--->   open, join, meet; collectives; flight recorders fill up
 *     break: "node1 is lost" --->   every call fails with this reason, also one that sleeps
 *     write: rank-0.txt, ...        (they may be dead: the memory outlives them)
 *
 * The starter maps the memory for each call and unmaps it again, so it never keeps an old one. */
#include "comm/node_memory.h"

#include <limits.h>
#include "base/file.h"
#include "comm/node/flight_recorder.h"
#include "comm/node/shm_segment.h"

_Static_assert((int)LS_NODE_MEMORY_RANKS == (int)LS_SHM_SEGMENT_RANKS, "one limit, two names");
_Static_assert((int)LS_NODE_MEMORY_TEXT == (int)LS_FLIGHT_RECORDER_TEXT, "one limit, two names");

ls_status ls_node_memory_create(uint64_t generation, int ranks, int *fd_out)
{
    return ls_shm_segment_create(&(ls_shm_segment_args){.generation = generation, .ranks = ranks},
                                 fd_out);
}

ls_status ls_node_memory_break(int fd, uint64_t generation, const char *why)
{
    ls_shm_segment *segment = NULL;
    ls_status st = ls_shm_segment_open(&segment, fd, generation);

    if (st == LS_OK)
        ls_shm_segment_abort(segment, LS_SHM_SEGMENT_AGENT, LS_EPEER, "%s", why);
    ls_shm_segment_close(segment);
    return st;
}

ls_status ls_node_memory_write(int fd, uint64_t generation, const char *folder, const char *cause,
                               int local, ls_node_memory_post_mortem *out)
{
    char path[PATH_MAX];
    ls_node_memory_post_mortem found = {.written = 0};
    ls_shm_segment *segment = NULL;
    ls_flight_recorder_record last;
    ls_status st;

    LS_TRY(st, ls_shm_segment_open(&segment, fd, generation), out);
    for (int i = 0; i < ls_shm_segment_ranks(segment); i++) {
        if (!ls_flight_recorder_used(segment, i))
            continue;
        LS_TRY(st, ls_file_make_dirs(folder), out);
        snprintf(path, sizeof path, "%s/rank-%d.txt", folder, ls_shm_segment_rank(segment, i));
        LS_TRY(st, ls_flight_recorder_write(segment, i, cause, path), out);
        found.written++;
    }
    if (local >= 0 && local < ls_shm_segment_ranks(segment) &&
        ls_flight_recorder_find(segment, local, -1, &last))
        ls_flight_recorder_call(&last, found.call);
    *out = found;
out:
    ls_shm_segment_close(segment);
    return st;
}
