/* batch_slice.h -- which sequences of which step this rank takes, and what events say about it.
 *
 * The batch of a step (config/ramp.h) is cut into one slice per rank (layout/mesh.h). A step's
 * slices are settled when the loader begins to read it, which is while the step before it runs; so
 * weights that are found after step s (train/session/balance.h) hold from step s + 2 on, on all ranks. */
#pragma once
#include "data/corpus/loader.h"
#include "train/session/balance.h"
#include "train/session/event.h"

LS_C_BEGIN

typedef struct ls_session ls_session;

enum {
    LS_BATCH_SLICE_AHEAD = 2
}; /* steps whose slices are known: the one that runs, and the next */

typedef struct ls_batch_slice {
    ls_ordered_run *runs[LS_BATCH_SLICE_AHEAD]; /* owned: of all ranks, by step number modulo */
    int64_t leaves[LS_BATCH_SLICE_AHEAD];
    ls_ordered_run *set; /* owned: as the step has them */
    int64_t set_leaves;  /* 0: as it was opened */
    ls_balance balance;
    double *reported;       /* owned: ratios of stragglers as reported; 0: not */
    ls_event_slice *slices; /* owned: what events say of each rank */
    char (*hosts)[64];      /* owned: names of the ranks' machines, on the first rank */
} ls_batch_slice;

ls_status ls_batch_slice_open(ls_session *session); /* the mesh is known; it gets its weights */
void ls_batch_slice_close(ls_session *session);

/* What the loader asks; context is the session. */
ls_loader_slice ls_batch_slice_of_step(void *context, int64_t step);

/* Before a step: the step gets its slices, where they are others than before. */
ls_status ls_batch_slice_begin(ls_session *session);

/* After a step: times are noted, and at the end of a window slices may change, and ranks that need
 * much longer than others are reported. */
void ls_batch_slice_note(ls_session *session);

/* How a whole batch is shared now; valid until the next call. */
ls_event_balance ls_batch_slice_event(ls_session *session);

LS_C_END
