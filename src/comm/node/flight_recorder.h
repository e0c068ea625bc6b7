/* flight_recorder.h -- the last operations of each rank. All ranks of the node and the agent can
 * read them, even when the rank hangs, is stopped or is dead. The file that is written from them is
 * the black box of the rank. */
#pragma once
#include "comm/coll.h"
#include "comm/node/shm_segment.h"

LS_C_BEGIN

enum { LS_FLIGHT_RECORDER_COMM = 1 << 16, LS_FLIGHT_RECORDER_MESSAGES = 1 << 17 };
enum { LS_FLIGHT_RECORDER_RECORDS = 64, LS_FLIGHT_RECORDER_TEXT = 256 };

typedef enum ls_flight_recorder_state {
    LS_FLIGHT_RECORDER_NONE,
    LS_FLIGHT_RECORDER_ENTERED,
    LS_FLIGHT_RECORDER_LEFT,
    LS_FLIGHT_RECORDER_FAILED
} ls_flight_recorder_state;

typedef struct ls_flight_recorder_record {
    ls_coll_kind kind;
    ls_coll_op op;
    ls_dtype type;
    ls_flight_recorder_state state;
    int group;    /* number on this segment, or one of the above plus that of the communicator */
    uint64_t seq; /* in that group, from 1 */
    int64_t bytes, step, entered_ns, left_ns;
} ls_flight_recorder_record;

/* An operation begins; step and times are filled in. Times have the resolution of the kernel's
 * tick, a few ms: enough to say how long a rank has waited, not to measure. */
uint64_t ls_flight_recorder_enter(ls_shm_segment *segment, int local,
                                  const ls_flight_recorder_record *record);
void ls_flight_recorder_leave(ls_shm_segment *segment, int local, uint64_t ticket,
                              ls_flight_recorder_state state);

void ls_flight_recorder_set_step(ls_shm_segment *segment, int local, int64_t step);

/* The records of a rank, oldest first; at most LS_FLIGHT_RECORDER_RECORDS. Returns how many. */
int ls_flight_recorder_read(const ls_shm_segment *segment, int local,
                            ls_flight_recorder_record *records_out);

/* The record that shows where a rank is: the oldest that it is in, those of this group first; else
 * the last one, of this group if there is one. false: there is none. */
bool ls_flight_recorder_find(const ls_shm_segment *segment, int local, int group,
                             ls_flight_recorder_record *record_out);

/* "broadcast 17 (4096 bytes of bf16, step 40)" */
const char *ls_flight_recorder_call(const ls_flight_recorder_record *record,
                                    char text_out[LS_FLIGHT_RECORDER_TEXT]);

/* Text about a record, to follow a name and a colon: "it has been in all_reduce 17 (40 bytes of
 * f32, step 40) for 3.2 s", "it has not been in a collective for 3.2 s, the last was ..."; NULL:
 * there was none. */
const char *ls_flight_recorder_say(const ls_flight_recorder_record *record,
                                   char text_out[LS_FLIGHT_RECORDER_TEXT]);

/* The same for a rank of this segment, with "; it is stopped by a signal" where the system shows
 * that. */
const char *ls_flight_recorder_where(const ls_shm_segment *segment, int local,
                                     char text_out[LS_FLIGHT_RECORDER_TEXT]);
bool ls_flight_recorder_stopped(const ls_shm_segment *segment, int local);

/* Whether a rank has any record; and its records as a text file, the black box
 * (flight_recorder_file.c). cause: one line about why it is written. */
bool ls_flight_recorder_used(const ls_shm_segment *segment, int local);
ls_status ls_flight_recorder_write(const ls_shm_segment *segment, int local, const char *cause,
                                   const char *path);

LS_C_END
