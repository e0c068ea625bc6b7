/* wait.h -- waiting for a word of the segment to change, until a deadline or until the segment
 * breaks.
 *
 *     ls_wait_begin(&wait, segment, local, deadline_ns);
 *     while (turn == LS_WAIT_ON && !there(...))
 *         turn = ls_wait_once(&wait);
 *     ls_wait_end(&wait);
 *
 * A turn spins while there are no more ranks than CPUs, and yields otherwise. After a while a turn
 * announces that it will sleep, so that the caller's next look decides; the turn after that sleeps,
 * in slices. A rank that writes a word on which another may be waiting writes it in sequentially
 * consistent order and then asks ls_wait_anybody(): a system call is made only when some rank
 * sleeps. */
#pragma once
#include "comm/node/shm_segment.h"

LS_C_BEGIN

typedef enum ls_wait_turn {
    LS_WAIT_ON,
    LS_WAIT_LATE,  /* the deadline has passed */
    LS_WAIT_BROKEN /* the segment is broken: ls_shm_segment_failure() says why */
} ls_wait_turn;

typedef struct ls_wait {
    ls_shm_segment *segment;
    int local;
    bool announced;
    uint32_t turns, wakeups;
    int64_t deadline_ns, since_ns;
} ls_wait;

void ls_wait_begin(ls_wait *wait, ls_shm_segment *segment, int local, int64_t deadline_ns);
ls_wait_turn ls_wait_once(ls_wait *wait);

/* Something else happened: spin for a while again. */
void ls_wait_moved(ls_wait *wait);
void ls_wait_end(ls_wait *wait);

/* Wake the threads of a rank that sleep. */
void ls_wait_wake(ls_shm_segment *segment, int local);

/* Whether any rank sleeps: only then a writer looks for ranks to wake. */
bool ls_wait_anybody(const ls_shm_segment *segment);

LS_C_END
