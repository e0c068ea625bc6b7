/* sched_text.h -- a schedule as words and as a number, for tests that compare or print it. */
#pragma once
#include "comm/sched.h"

/* A step in words: "3: recv_add out[16+8] = out[16+8] from 2#0 after 1". Returns text. */
char *ls_sched_text(const ls_sched *sched, int32_t step, char *text, size_t bytes);

/* Elements that this rank sends. */
int64_t ls_sched_text_sent(const ls_sched *sched);
