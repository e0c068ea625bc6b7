/* death_watch.h -- notices that a rank of this node has died.
 *
 * Each rank (or one agent for all) has a thread that waits for the ends of the processes in the
 * segment. The first one that ends without having left breaks the segment with its name and, where
 * the system reports it, the signal. That takes milliseconds. */
#pragma once
#include "comm/node/shm_segment.h"

LS_C_BEGIN

typedef struct ls_death_watch ls_death_watch;

/* Watch all processes of the segment but this one. local: the rank that reports, or
 * LS_SHM_SEGMENT_AGENT. Ranks that join later are found within 20 ms. */
ls_status ls_death_watch_open(ls_death_watch **watch_out, ls_shm_segment *segment, int local);
void ls_death_watch_close(ls_death_watch *watch); /* NULL is allowed */

LS_C_END
