/* sync.h -- how ranks combine what they learn: a row of functions for each value of `sync:`.
 *
 *   allreduce     gradients are summed inside of every step (train/step): nothing is left to do here
 *   local         each rank trains by itself and exchanges weights every local.steps steps
 *   ps            servers hold the weights: a step begins with a pull and ends with a push
 *
 * The session takes its row once, when it opens (train/sync/sync_modes.h); the loop calls the row and
 * never asks for the mode. A new mode is a new file with a row. Functions that a mode does not need
 * are NULL.
 *
 *   open, start, { begin, the step, end, exchange, meets? { show, validate, show;
 *                  save_begin, save, save_end } }, finish, leave, close                             */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

typedef struct ls_sync_mode {
    /* Memory, and what ranks exchange; then the state of step_number is there. By all ranks. */
    ls_status (*open)(ls_session *session);
    void (*close)(ls_session *session);
    ls_status (*start)(ls_session *session);

    /* Before a step: its weights; batch may be changed. */
    ls_status (*begin)(ls_session *session, ls_step_batch *batch, ls_step_clock *clock);
    /* Its gradient and loss are there; step_number does not count it yet. */
    ls_status (*end)(ls_session *session, ls_step_result *result, ls_step_clock *clock);
    /* It counts. */
    ls_status (*exchange)(ls_session *session, ls_step_result *result, ls_step_clock *clock);
    /* Whether ranks do something together after the step that was done last; NULL: always. */
    bool (*meets)(const ls_session *session);

    /* Around validation: the step's pass reads the weights that a checkpoint has, and its own again. */
    ls_status (*show)(ls_session *session, bool shared);
    /* Around the beginning of a save in the background. */
    ls_status (*save_begin)(ls_session *session);
    ls_status (*save_end)(ls_session *session, ls_status result);
    /* The arrays that are saved, where they are not those of the step. */
    void (*live)(const ls_session *session, void *arrays[3]);
    bool copies_at_once; /* these change beside steps: a save may not copy them in the background */

    /* After the last step, before the last save; and after the summary, when all went well. */
    ls_status (*finish)(ls_session *session);
    ls_status (*leave)(ls_session *session);
    void (*count)(const ls_session *session, ls_event_summary *summary);
} ls_sync_mode;

/* Call a function of the session's row, for example LS_SYNC_CALL(s, show, (s, true)); LS_OK where the
 * mode does not need it. */
#define LS_SYNC_CALL(session, function, arguments) \
    ((session)->sync.mode->function ? (session)->sync.mode->function arguments : LS_OK)

/* Those that return no status, or pass one on. */
static inline bool ls_sync_meets(const ls_session *s)
{
    return !s->sync.mode->meets || s->sync.mode->meets(s);
}
static inline ls_status ls_sync_save_end(ls_session *s, ls_status result)
{
    return s->sync.mode->save_end ? s->sync.mode->save_end(s, result) : result;
}
static inline void ls_sync_live(const ls_session *s, void *arrays[3])
{
    if (s->sync.mode->live)
        s->sync.mode->live(s, arrays);
}
static inline void ls_sync_count(const ls_session *s, ls_event_summary *summary)
{
    if (s->sync.mode->count)
        s->sync.mode->count(s, summary);
}

/* Also of a session that was never open. */
static inline void ls_sync_close(ls_session *s)
{
    if (s->sync.mode && s->sync.mode->close)
        s->sync.mode->close(s);
}

LS_C_END
