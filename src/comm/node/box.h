/* box.h -- the black box: the last operations of each rank, readable by all ranks of its node and
 * by the agent, also when that rank hangs, is stopped or is dead. */
#pragma once
#include "comm/coll.h"
#include "comm/node/board.h"

LS_C_BEGIN

enum { LS_BOX_RECORDS = 64, LS_BOX_TEXT = 160 };

typedef enum ls_box_state { LS_BOX_NONE, LS_BOX_ENTERED, LS_BOX_LEFT, LS_BOX_FAILED } ls_box_state;

typedef struct ls_box_record {
    ls_coll_kind kind;
    ls_coll_op op;
    ls_dtype type;
    ls_box_state state;
    int group;    /* number on this board; other rooms may count differently */
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

/* Where it is, to follow its name and a colon: "in all_reduce 17 for 3.2 s (step 40)", "not in a
 * collective for 3.2 s", with ", stopped by a signal" where the system says so. */
const char *ls_box_where(const ls_board *board, int local, char text_out[LS_BOX_TEXT]);

LS_C_END
