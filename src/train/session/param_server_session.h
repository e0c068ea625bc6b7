/* param_server_session.h -- a run whose weights live at servers (sync: ps, parallel/param_server.h).
 *
 * Every rank computes the gradient of its part of each batch; the first ps.servers of them also
 * serve, each with a thread that keeps a part of the weights and moments and makes its updates.
 *
 *   step s:  begin   weights that the step needs, from the servers
 *            (train/step/step.c: forward, backward, norm of the own gradient)
 *            push    the gradient, to the servers
 *
 * With ps.staleness 0 a step is one update with everybody's gradient, and loss and norm are those
 * of all. Otherwise a push is an update by itself, which counts as its share of the step, and loss
 * and norm are the first rank's own; ranks meet after each ps.meet steps, and at the end. What is
 * validated and saved are the servers' weights, which are gathered when all pushes have come. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

typedef struct ls_param_server_session ls_param_server_session;

/* Takes its memory; by all ranks. */
ls_status ls_param_server_session_open(ls_session *session);
void ls_param_server_session_close(ls_session *session);

/* The moments of the own part: 1 the first ones, 2 the second. */
float *ls_param_server_session_moments(const ls_session *session, int kind);

/* Where the run begins, or goes on: weights and moments are there. By all ranks. */
ls_status ls_param_server_session_start(ls_session *session);

/* Before a step: its weights. Of an embedding that nothing else reads, the rows of this batch. */
ls_status ls_param_server_session_begin(ls_session *session, const ls_step_batch *batch,
                                        ls_step_clock *clock);

/* After it: its gradient. A result that is not finite is pushed as such, and changes nothing. */
ls_status ls_param_server_session_push(ls_session *session, ls_step_result *result,
                                       ls_step_clock *clock);

/* Whether ranks meet after the step that was done last; their mean loss where they do. */
bool ls_param_server_session_meets(const ls_session *session);
ls_status ls_param_server_session_meet(ls_session *session, ls_step_result *result,
                                       ls_step_clock *clock);

/* All weights, once every rank has pushed the steps that were done; by all ranks. */
ls_status ls_param_server_session_gather(ls_session *session);

/* The same, and no server makes an update before the other is called, by all ranks: moments may be
 * read meanwhile. The second one hands on what came of that. */
ls_status ls_param_server_session_hold(ls_session *session);
ls_status ls_param_server_session_release(ls_session *session, ls_status result);

/* The run has ended well: servers have nothing more to answer. By all ranks. */
ls_status ls_param_server_session_end(ls_session *session);

/* Pushes so far, bytes that this rank has sent to others for them, for pulls and for answers, and
 * the most steps that its server has seen a rank ahead of another. */
typedef struct ls_param_server_session_counts {
    int64_t pushes, bytes, ahead;
} ls_param_server_session_counts;
ls_param_server_session_counts ls_param_server_session_counted(const ls_session *session);

LS_C_END
