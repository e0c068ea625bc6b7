/* job_spec.h -- what a job runs, as the first node sends it to agents that join with nothing. */
#pragma once
#include "base/err.h"
#include "base/str.h"

LS_C_BEGIN

enum { LS_JOB_SPEC_WORDS = 256, LS_JOB_SPEC_BYTES = 128 << 10 };

/* What an agent must know of a job that heals (recover_cluster.h). */
typedef struct ls_job_spec_heal {
    uint32_t patience_ms; /* 0: it does not heal */
    uint32_t heartbeat_ms, suspect_ms, dead_ms;
    /* For an agent that may coordinate the job one day. */
    uint32_t failover, restarts, least, unit;
    uint32_t min_nodes, max_nodes, grow_wait_ms, quarantine, cool_ms;
} ls_job_spec_heal;

typedef struct ls_job_spec {
    int ranks;    /* of the first node: as many start elsewhere, unless the agent says otherwise */
    bool meeting; /* a command of lineshaft whose ranks meet (comm): they need more than words */
    ls_job_spec_heal heal;
    const char *words[LS_JOB_SPEC_WORDS + 1]; /* NULL-terminated, in text */
    ls_str text;
} ls_job_spec;

void ls_job_spec_init(ls_job_spec *work);
void ls_job_spec_release(ls_job_spec *work);

/* As bytes and back. words: NULL-terminated; heal: NULL: it does not. LS_EUSAGE: too long to be
 * sent. LS_EDATA: damaged. */
ls_status ls_job_spec_encode(const char *const *words, int ranks, bool meeting,
                             const ls_job_spec_heal *heal, ls_str *out);
ls_status ls_job_spec_decode(ls_job_spec *work, const void *bytes, size_t len);

LS_C_END
