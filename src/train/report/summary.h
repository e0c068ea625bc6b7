/* summary.h -- the figures of a run: speed, memory, energy, traffic; they make the last event.
 *
 * The figures are those of this process: a run that was resumed counts its own steps. Several views
 * of one process (train/replica/recover.h) count as one. */
#pragma once
#include "device/nvml.h"
#include "train/report/gpu_health.h"
#include "train/session/session.h"

LS_C_BEGIN

enum { LS_SUMMARY_SPEEDS = 4096 };

typedef struct ls_summary {
    int64_t steps;       /* done by this process */
    int64_t tokens;      /* in them */
    int64_t begun_ns;    /* when training began; 0: not yet */
    double first_step_s; /* from the start of the process to the first finished step */
    double speeds
        [LS_SUMMARY_SPEEDS]; /* tokens/s of steps after the first ten, thinned out when full */
    int n_speeds, stride;
    int64_t sent, received; /* between machines, when training began */
    int64_t foreign;        /* memory of other ranks that counts as resident here, at most */
    ls_nvml *nvml;          /* owned; NULL: no GPU, or it reports nothing */
    ls_nvml_reading begun;  /* when training began, */
    ls_nvml_reading ended;  /* and when it ended */
    double trained_s;       /* between them */
    ls_gpu_health health;   /* of the GPU so far */
} ls_summary;

void ls_summary_init(ls_summary *summary);
void ls_summary_close(ls_summary *summary);

/* Training begins (only the first view of a process counts), and ends. */
void ls_summary_begin(ls_summary *summary, const ls_session *session);
void ls_summary_end(ls_summary *summary);

/* A step is done; and how fast it was. */
void ls_summary_count(ls_summary *summary, int64_t tokens);
void ls_summary_note_speed(ls_summary *summary, double tokens_per_s);

/* Other ranks' memory counts as resident here while they have it: to be called when all memory is in
 * use, and when training ends. */
void ls_summary_note_foreign(ls_summary *summary, const ls_session *session);

/* Emit the event. By all ranks: the hash of the weights is made together. */
ls_status ls_summary_emit(ls_summary *summary, ls_session *session, const char *stopped_by);

LS_C_END
