/* progress.h -- a training run as a person watches it.
 *
 * On a terminal: one line that is drawn over, with a bar, losses, speed, time to go and where the
 * time of the last steps went. Elsewhere: a line at a time, at most one every few seconds. */
#pragma once
#include "cli/term.h"
#include "train/session/event.h"

typedef struct ls_progress {
    ls_term term; /* of standard output */
    bool quiet, verbose;
    bool drawn;                  /* the bar is on the screen */
    int64_t shown_ns;            /* when it was last drawn */
    double first_loss;           /* of this start; NaN: none yet */
    double val_loss;             /* last one; NaN: none */
    double smooth_ms;            /* of a step */
    double split[LS_STEP_TIMES]; /* smoothed ms of each part */
} ls_progress;

void ls_progress_init(ls_progress *progress, const ls_args *args);

/* What is shown of a step, at most width columns, with or without the bar. */
void ls_progress_line(const ls_progress *progress, const ls_event_step *step, bool bar, int width,
                      ls_str *line_out);

/* An ls_event_sink; context is the progress. Writes to standard output. */
void ls_progress_event(void *context, const ls_event *event);
