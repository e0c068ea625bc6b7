/* shm_segment.h -- the memory that the ranks of one node share.
 *
 * A segment is one anonymous memory file. The process that starts the ranks creates it and lets
 * them inherit it, or the first rank does and hands it over through a socket. It goes when the last
 * process that holds it ends, however that happens. Each process opens it once; a process that
 * plays several ranks (tests do) joins once for each.
 *
 *   header | processes: identity, wakeups, reason, flight recorder | groups | heap of each rank
 *
 * A *local* rank is a number below ls_shm_segment_ranks(). Its rank in the world stands in its
 * identity, which messages show. The first failure breaks the whole segment for good. Calls may
 * come from any thread, except that each local rank is joined once. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_shm_segment ls_shm_segment;

enum {
    LS_SHM_SEGMENT_RANKS = 256,
    LS_SHM_SEGMENT_GROUPS = 64,
    LS_SHM_SEGMENT_NAME = 128,
    LS_SHM_SEGMENT_AGENT = -1
};

typedef struct ls_shm_segment_args {
    uint64_t generation;
    int ranks;          /* on this node: 1 .. LS_SHM_SEGMENT_RANKS */
    int64_t heap_bytes; /* the most that one rank can allocate; 0: as much as the machine has */
    bool no_reads; /* behave as if the system did not allow reading the memory of other processes */
} ls_shm_segment_args;

/* Make one. The caller owns *fd_out; programs started later do not inherit it unless the caller
 * says so. */
ls_status ls_shm_segment_create(const ls_shm_segment_args *args, int *fd_out);

/* Map it. fd stays the caller's and may be closed at once. LS_EDATA: not a segment, or of another
 * version. LS_EUSAGE: of another generation. */
ls_status ls_shm_segment_open(ls_shm_segment **segment_out, int fd, uint64_t generation);

/* Waits for no rank. Ranks that were joined and not left look like a failure to the others when the
 * process ends. NULL is allowed. */
void ls_shm_segment_close(ls_shm_segment *segment);

int ls_shm_segment_ranks(const ls_shm_segment *segment);

/* Join as local rank `local`, which is rank `rank` of the world. LS_EBUSY: another process has
 * joined as it. */
ls_status ls_shm_segment_join(ls_shm_segment *segment, int local, int rank, const char *host);

/* Wait until all have joined and know which memory of each other they can read. LS_EDEADLINE names
 * the ranks that did not come. */
ls_status ls_shm_segment_meet(ls_shm_segment *segment, int local, int64_t deadline_ns);

/* From now on the end of this process is no failure. */
void ls_shm_segment_leave(ls_shm_segment *segment, int local);

/* Memory that all ranks of the node read and write: zeroed, aligned to 4096 bytes. LS_ENOMEM says
 * how much there is. The pages of handed-out memory exist; they cannot run out later. */
ls_status ls_shm_segment_alloc(ls_shm_segment *segment, int local, int64_t bytes, const char *what,
                               void **memory_out);
void ls_shm_segment_free(ls_shm_segment *segment, int local, void *memory); /* NULL is allowed */

/* Resident bytes of this process that are memory of other ranks, because it has read it, less its
 * own handed-out bytes that are not resident here: those are in use all the same. */
int64_t ls_shm_segment_foreign_bytes(ls_shm_segment *segment, int local);

/* Break the segment: every call of every rank fails with this text, under this code (LS_EPEER
 * unless all ranks contributed to it). local: the rank that reports it, or LS_SHM_SEGMENT_AGENT.
 * The first reason stays. */
void ls_shm_segment_abort(ls_shm_segment *segment, int local, ls_status code, const char *fmt, ...)
    LS_PRINTF(4, 5);
bool ls_shm_segment_aborted(const ls_shm_segment *segment);

/* The same for a shortage or mistake of this rank alone, which is none of the others: they fail
 * with LS_EPEER and "rank 3 (pid 123 on node7)" before this text. Does nothing when it is broken. */
void ls_shm_segment_give_up(ls_shm_segment *segment, int local, const char *fmt, ...)
    LS_PRINTF(3, 4);

/* Fail with the reason for which the segment is broken; LS_OK when it is not. */
ls_status ls_shm_segment_failure(const ls_shm_segment *segment);

/* The rank in the world of a local rank; -1: it has not joined. */
int ls_shm_segment_rank(const ls_shm_segment *segment, int local);

/* "rank 3 (pid 123 on node7)", or "local rank 3" when it never joined. */
const char *ls_shm_segment_name(const ls_shm_segment *segment, int local,
                                char name_out[LS_SHM_SEGMENT_NAME]);

LS_C_END
