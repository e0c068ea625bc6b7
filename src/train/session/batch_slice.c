/* batch_slice.c -- when slices are settled, and when they may move.
 *
 *   step s:  ls_loader_next() asks for the slices of step s + 1 (ls_batch_slice_of_step)
 *            ls_batch_slice_begin() gives the slices of step s to train/step/step.c, which were settled then
 *            the step runs; every rank learns how long each one computed
 *            ls_batch_slice_note() may change the weights; the next slices that are asked for are those
 *            of step s + 2
 *
 * The loader reads ahead, so the slices of step s + 1 are fixed before step s has been timed. All ranks
 * must switch at the same step: with two steps between measuring and switching no message is needed. */
#include "train/session/batch_slice.h"

#include "base/log.h"
#include "base/mem.h"
#include "config/ramp.h"
#include "train/session/session.h"
#include "train/session/model_groups.h"

static const double SLOW = 1.25;  /* times the median: a straggler */
static const double AGAIN = 1.25; /* times slower or faster than reported: reported again */

ls_status ls_batch_slice_open(ls_session *s)
{
    ls_batch_slice *x = &s->data.slice;
    size_t n = (size_t)ls_model_groups_mesh(s)->ranks;
    bool there = true;
    ls_status st;

    for (int i = 0; i < LS_BATCH_SLICE_AHEAD; i++) {
        x->runs[i] = ls_mem_array(n, sizeof *x->runs[i]);
        there = there && x->runs[i];
    }
    x->set = ls_mem_array(n, sizeof *x->set);
    x->reported = ls_mem_array(n, sizeof *x->reported);
    x->slices = ls_mem_array(n, sizeof *x->slices);
    if (!there || !x->set || !x->reported || !x->slices)
        return ls_fail(LS_ENOMEM, "no memory for the slices of %d ranks", s->mesh.ranks);
    st = ls_balance_init(&x->balance, ls_model_groups_mesh(s)->ranks, s->mesh.weights);
    if (st == LS_OK && s->mesh.balance)
        s->mesh.weights = x->balance.weights;
    return st;
}

void ls_batch_slice_close(ls_session *session)
{
    ls_batch_slice *x = &session->data.slice;

    for (int i = 0; i < LS_BATCH_SLICE_AHEAD; i++)
        ls_mem_free(x->runs[i]);
    ls_mem_free(x->set);
    ls_mem_free(x->reported);
    ls_mem_free(x->slices);
    ls_mem_free(x->hosts);
    ls_balance_release(&x->balance);
    *x = (ls_batch_slice){.set = NULL};
}

ls_loader_slice ls_batch_slice_of_step(void *context, int64_t step)
{
    ls_session *s = context;
    ls_ordered_run *runs = s->data.slice.runs[step % LS_BATCH_SLICE_AHEAD];
    int64_t leaves = ls_calls_leaves(s->run, step), leaf = ls_calls_leaf(s->run);

    const ls_mesh *mesh = ls_model_groups_mesh(s);
    int64_t pieces = leaves * ls_mesh_cp(mesh);

    ls_mesh_split(mesh, pieces, runs);
    s->data.slice.leaves[step % LS_BATCH_SLICE_AHEAD] = pieces;
    ls_ordered_run own = ls_mesh_cp_leaves(mesh, mesh->rank, runs[mesh->rank]);
    return (ls_loader_slice){.position = ls_ramp_samples(s->run, step),
                             .sequences = leaves * leaf,
                             .first = own.first * leaf,
                             .own = own.count * leaf};
}

ls_status ls_batch_slice_begin(ls_session *session)
{
    ls_batch_slice *x = &session->data.slice;
    int at = (int)(session->step_number % LS_BATCH_SLICE_AHEAD);
    size_t bytes = (size_t)ls_model_groups_mesh(session)->ranks * sizeof *x->set;

    if (session->mesh.independent) /* its part of the batch stays */
        return LS_OK;
    if (x->leaves[at] == x->set_leaves && memcmp(x->runs[at], x->set, bytes) == 0)
        return LS_OK;
    memcpy(x->set, x->runs[at], bytes);
    x->set_leaves = x->leaves[at];
    return ls_step_split(session->step, x->set, x->set_leaves);
}

ls_event_balance ls_batch_slice_event(ls_session *s)
{
    ls_batch_slice *x = &s->data.slice;
    ls_ordered_run runs[LS_MESH_RANKS];
    const ls_mesh *mesh = ls_model_groups_mesh(s);
    int64_t leaf = ls_calls_leaf(s->run);

    ls_mesh_split(mesh, s->run->batch.sequences / leaf * ls_mesh_cp(mesh), runs);
    for (int r = 0; r < mesh->ranks; r++)
        x->slices[r] = (ls_event_slice){.host = x->hosts ? x->hosts[r * ls_mesh_tp(&s->mesh)] : "",
                                        .sequences = runs[r].count * leaf,
                                        .ms_per_leaf = x->balance.medians[r] / 1e6,
                                        .ratio = ls_balance_ratio(&x->balance, mesh->ranks, r)};
    return (ls_event_balance){.step = s->step_number,
                              .from_step = s->step_number + LS_BATCH_SLICE_AHEAD,
                              .ranks = mesh->ranks,
                              .sequences = s->run->batch.sequences,
                              .slices = x->slices};
}

static void report_straggler(ls_session *s, const ls_event_balance *now, int rank)
{
    const ls_event_slice *slice = &now->slices[rank];
    char text[240];

    snprintf(text, sizeof text,
             "rank %d (%s) needs %.1f x the median per leaf; it now takes %lld of %lld sequences",
             rank, slice->host, slice->ratio, (long long)slice->sequences,
             (long long)now->sequences);
    ls_log(LS_LOG_WARN, "%s", text);
    ls_session_incident(s, now->step, "straggler", "slices follow the speed of ranks", text);
}

/* A straggler is reported once, and again when its ratio has changed much. */
static void report_stragglers(ls_session *s, const ls_event_balance *now)
{
    for (int r = 0; r < now->ranks; r++) {
        double ratio = now->slices[r].ratio, *reported = &s->data.slice.reported[r];
        if (ratio < SLOW) {
            *reported = 0;
        } else if (*reported == 0 || ratio > AGAIN * *reported || ratio < *reported / AGAIN) {
            *reported = ratio;
            report_straggler(s, now, r);
        }
    }
}

void ls_batch_slice_note(ls_session *s)
{
    ls_batch_slice *x = &s->data.slice;
    bool changed;

    if (ls_model_groups_mesh(s)->ranks == 1 || s->mesh.independent ||
        !ls_balance_note(&x->balance, ls_model_groups_mesh(s)->ranks, x->set,
                         ls_step_work_ns(s->step)) ||
        !s->mesh.balance)
        return;
    changed =
        ls_balance_decide(&x->balance, &s->mesh, s->run->batch.sequences / ls_calls_leaf(s->run));
    if (s->mesh.rank > 0)
        return;
    ls_event_balance now = ls_batch_slice_event(s);
    if (changed)
        ls_session_emit(s, &(ls_event){.kind = LS_EVENT_BALANCE, .balance = now});
    report_stragglers(s, &now);
}
