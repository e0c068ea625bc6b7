/* work.h -- what a job runs, as the first node tells it to agents that join with nothing. */
#pragma once
#include "base/err.h"
#include "base/str.h"

LS_C_BEGIN

enum { LS_WORK_WORDS = 256, LS_WORK_BYTES = 128 << 10 };

/* What an agent must know of a job that heals (league.h). */
typedef struct ls_work_heal {
    uint32_t patience_ms; /* 0: it does not heal */
    uint32_t pulse_ms, suspect_ms, dead_ms;
    /* For who may coordinate it one day. */
    uint32_t succession, restarts, least, unit;
    uint32_t min_nodes, max_nodes, grow_wait_ms, quarantine, cool_ms;
} ls_work_heal;

typedef struct ls_work {
    int ranks;    /* of the first node: as many start elsewhere, unless the agent says otherwise */
    bool meeting; /* a command of lineshaft whose ranks meet (comm): they need more than words */
    ls_work_heal heal;
    const char *words[LS_WORK_WORDS + 1]; /* NULL-terminated, in text */
    ls_str text;
} ls_work;

void ls_work_init(ls_work *work);
void ls_work_release(ls_work *work);

/* As bytes and back. words: NULL-terminated; heal: NULL: it does not. LS_EUSAGE: too long to be
 * sent. LS_EDATA: damaged. */
ls_status ls_work_encode(const char *const *words, int ranks, bool meeting,
                         const ls_work_heal *heal, ls_str *out);
ls_status ls_work_decode(ls_work *work, const void *bytes, size_t len);

LS_C_END
