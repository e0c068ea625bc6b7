/* wait.h -- waiting for a word of the shared-memory segment, with a deadline and an eye on the
 * abort word.
 *
 *     ls_wait_begin(&wait, shared-memory segment, local, deadline_ns);
 *     while (turn == LS_WAIT_ON && !there(...))
 *         turn = ls_wait_once(&wait);
 *     ls_wait_end(&wait);
 *
 * A turn spins while ranks do not exceed CPUs, and yields when they do; after a while it announces
 * that it will sleep, so that what the caller looks at next decides; the turn after that sleeps, in
 * slices. Whoever writes a word that another rank may be waiting for writes it in sequentially
 * consistent order and then asks ls_wait_anybody(): a system call is made only when somebody
 * sleeps. */
#pragma once
#include "comm/node/shm_segment.h"

LS_C_BEGIN

typedef enum ls_wait_turn {
    LS_WAIT_ON,
    LS_WAIT_LATE,  /* the deadline has passed */
    LS_WAIT_BROKEN /* the shared-memory segment is broken: ls_shm_segment_failure() says why */
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

/* Something happened, if not what is waited for: be awake for a while again. */
void ls_wait_moved(ls_wait *wait);
void ls_wait_end(ls_wait *wait);

/* Wake the threads of a rank that sleep. */
void ls_wait_wake(ls_shm_segment *segment, int local);

/* Whether anybody sleeps: only then the writer of a word has to look whom to wake. */
bool ls_wait_anybody(const ls_shm_segment *segment);

LS_C_END
