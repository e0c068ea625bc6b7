/* progress.h -- a training run as a person watches it.
 *
 * On a terminal: one line that is drawn over, with a bar, losses, speed, time to go and where the
 * time of the last steps went. Elsewhere: a line at a time, at most one every few seconds. */
#pragma once
#include "train/event.h"

typedef struct ls_progress {
    bool tty, quiet;
    bool drawn;             /* the bar is on the screen */
    int64_t shown_ns;       /* when it was last drawn */
    int64_t begun_ns;       /* first step of this process */
    int64_t begun_step;     /* steps done before it */
    double val_loss;        /* last one; NaN: none */
    double smooth_ms;       /* of a step */
    double split[LS_PARTS]; /* smoothed ms of each part */
    int64_t total_steps;
    bool sampled; /* a text sample was shown */
} ls_progress;

void ls_progress_init(ls_progress *progress, bool quiet);

/* An ls_event_sink; context is the progress. Writes to standard output. */
void ls_progress_event(void *context, const ls_event *event);
