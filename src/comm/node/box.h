/* box.h -- the black box: the last operations of each rank, readable by all ranks of its node and
 * by the agent, also when that rank hangs, is stopped or is dead. */
#pragma once
#include "comm/coll.h"
#include "comm/node/board.h"

LS_C_BEGIN

enum { LS_BOX_COMM = 1 << 16, LS_BOX_MESSAGES = 1 << 17 };
enum { LS_BOX_RECORDS = 64, LS_BOX_TEXT = 256 };

typedef enum ls_box_state { LS_BOX_NONE, LS_BOX_ENTERED, LS_BOX_LEFT, LS_BOX_FAILED } ls_box_state;

typedef struct ls_box_record {
    ls_coll_kind kind;
    ls_coll_op op;
    ls_dtype type;
    ls_box_state state;
    int group;    /* number on this board, or one of the above and the communicator's */
    uint64_t seq; /* in that group, from 1 */
    int64_t bytes, step, entered_ns, left_ns;
} ls_box_record;

/* An operation begins; step and times are filled in. Times have the resolution of the kernel's
 * tick, a few ms: they say since when somebody waits, they do not measure. */
uint64_t ls_box_enter(ls_board *board, int local, const ls_box_record *record);
void ls_box_leave(ls_board *board, int local, uint64_t ticket, ls_box_state state);

void ls_box_set_step(ls_board *board, int local, int64_t step);

/* The records of a rank, oldest first; at most LS_BOX_RECORDS. Returns how many. */
int ls_box_read(const ls_board *board, int local, ls_box_record *records_out);

/* The one that tells where a rank is: the oldest that it is in, those of this group first; else the
 * last one, of this group if there is one. false: it was in none. */
bool ls_box_find(const ls_board *board, int local, int group, ls_box_record *record_out);

/* "broadcast 17 (4096 bytes of bf16, step 40)" */
const char *ls_box_call(const ls_box_record *record, char text_out[LS_BOX_TEXT]);

/* Where the rank of such a record is, to follow its name and a colon: "it has been in all_reduce 17
 * (40 bytes of f32, step 40) for 3.2 s", "it has not been in a collective for 3.2 s, the last was
 * ..."; NULL: it was in none. */
const char *ls_box_say(const ls_box_record *record, char text_out[LS_BOX_TEXT]);

/* The same of a rank of this board, with "; it is stopped by a signal" where the system says so. */
const char *ls_box_where(const ls_board *board, int local, char text_out[LS_BOX_TEXT]);
bool ls_box_stopped(const ls_board *board, int local);

/* Whether a rank was in anything, and its records as a file for people (box_file.c); cause: one
 * line about why it is written. */
bool ls_box_used(const ls_board *board, int local);
ls_status ls_box_write(const ls_board *board, int local, const char *cause, const char *path);

LS_C_END
