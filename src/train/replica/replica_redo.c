/* replica_redo.c -- see replica_redo.h. */
#include "train/replica/replica_redo.h"

#include "base/mem.h"
#include "base/time.h"
#include "plan/memory.h"
#include "optim/optim.h"
#include "train/replica/replica_copy_impl.h"

bool ls_replica_redo_serves(const ls_run *run)
{
    return run->train.optimizer != LS_OPTIMIZER_ADAMW;
}

/* The first elements of first .. end-1 that a seat has: how many, and where they lie packed. */
static int64_t find_piece(const ls_reshard_cut *cut, int64_t trained, int seat, int64_t first,
                          int64_t end, int64_t *place_out)
{
    for (int b = 0; b < ls_reshard_buckets(cut, trained); b++) {
        ls_mesh_part part = ls_reshard_part(cut, trained, b, seat);
        int64_t from = ls_max_i64(first, part.first);
        int64_t to = ls_min_i64(end, part.first + part.count);
        *place_out = part.packed + from - part.first;
        if (from < to)
            return to - from;
    }
    return 0;
}

/* The pieces of a tensor, as lamb.c cuts it; a piece is one rank's. */
static void cut_pieces(ls_replica_redo_work *w, const ls_reshard_cut *cut, int64_t trained,
                       int seat, const ls_param *p)
{
    int64_t end = p->trained + p->count, next, place;

    for (int64_t at = p->trained; at < end; at = next) {
        next = ls_min_i64(end, (at / LS_NORM_BLOCK + 1) * LS_NORM_BLOCK);
        int64_t n = find_piece(cut, trained, seat, at, next, &place);
        if (n > 0)
            w->pieces[w->n_pieces++] = (ls_lamb_piece){.first = place,
                                                       .count = n,
                                                       .w_first = place,
                                                       .g_first = place,
                                                       .number = w->n_squares,
                                                       .decay = p->decay ? 1.0f : 0.0f};
        w->elements += n;
        w->n_squares++;
    }
}

/* A matrix of Muon may lie in several buckets. */
static void cut_matrix(ls_replica_redo_work *w, const ls_reshard_cut *cut, int64_t trained,
                       int seat, const ls_param *p)
{
    for (int b = 0; b < ls_reshard_buckets(cut, trained); b++) {
        ls_mesh_part part = ls_reshard_part(cut, trained, b, seat);
        int64_t from = ls_max_i64(p->trained, part.first);
        int64_t to = ls_min_i64(p->trained + p->count, part.first + part.count);
        int64_t place = part.packed + from - part.first;
        if (from >= to)
            continue;
        w->matrices[w->n_matrices++] =
            (ls_adamw_span){.first = place, .w_first = place, .count = to - from};
        w->elements += to - from;
    }
}

ls_status ls_replica_redo_open_work(ls_replica_redo_work *work, const ls_run *run,
                                    const ls_model *model, const ls_reshard_cut *cut, int seat)
{
    bool lamb = run->train.optimizer == LS_OPTIMIZER_LAMB;
    ls_optim_work most = ls_optim_work_of(run, model);
    ls_replica_redo_work *w = work;
    ls_status st = LS_OK;

    *w = (ls_replica_redo_work){.spans = NULL};
    if (lamb) {
        w->pieces = ls_mem_array((size_t)most.pieces, sizeof *w->pieces);
        w->squares = ls_mem_array((size_t)(2 * most.pieces), sizeof *w->squares);
    } else {
        w->matrices = ls_mem_array((size_t)ls_memory_spans(model), sizeof *w->matrices);
        LS_TRY(st, ls_replica_copy_spans(run, model, cut, seat, &w->spans, w->first_span), out);
    }
    LS_TRY(st, (w->pieces && w->squares) || w->matrices ? LS_OK : LS_ENOMEM, out);
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (lamb && p->trained >= 0)
            cut_pieces(w, cut, model->trained, seat, p);
        else if (!lamb && ls_optim_is_matrix(run, p))
            cut_matrix(w, cut, model->trained, seat, p);
    }
out:
    if (st != LS_OK)
        ls_replica_redo_close_work(w);
    return st;
}

void ls_replica_redo_close_work(ls_replica_redo_work *work)
{
    ls_mem_free(work->spans);
    ls_mem_free(work->pieces);
    ls_mem_free(work->squares);
    ls_mem_free(work->matrices);
    *work = (ls_replica_redo_work){.spans = NULL};
}

static void lamb(const ls_replica_redo_move *m, const ls_replica_redo_work *w)
{
    m->kernels->lamb(m->stream, &(ls_lamb){.part = LS_LAMB_DIRECTION,
                                           .w = m->arrays[LS_REPLICA_COPY_W],
                                           .m = m->arrays[LS_REPLICA_COPY_M],
                                           .v = m->arrays[LS_REPLICA_COPY_V],
                                           .grad = m->arrays[LS_REPLICA_COPY_G],
                                           .pieces = w->pieces,
                                           .squares = w->squares,
                                           .n_pieces = w->n_pieces,
                                           .n_squares = w->n_squares,
                                           .n = w->elements,
                                           .copy_type = LS_F32,
                                           .state = m->state,
                                           .result = m->norm});
}

static void muon(const ls_replica_redo_move *m, const ls_replica_redo_work *w)
{
    ls_replica_copy_make_update(&(ls_replica_copy_move){.kernels = m->kernels,
                                                        .stream = m->stream,
                                                        .cut = m->cut,
                                                        .trained = m->trained,
                                                        .seat = m->seat,
                                                        .arrays = m->arrays,
                                                        .spans = w->spans,
                                                        .first_span = w->first_span,
                                                        .state = m->state,
                                                        .norm = m->norm});
    m->kernels->momentum(m->stream, &(ls_momentum){.m = m->arrays[LS_REPLICA_COPY_M],
                                                   .grad = m->arrays[LS_REPLICA_COPY_G],
                                                   .spans = w->matrices,
                                                   .n_spans = w->n_matrices,
                                                   .n = w->elements,
                                                   .state = m->state,
                                                   .result = m->norm});
}

ls_status ls_replica_redo_moments(const ls_replica_redo_move *move,
                                  const ls_replica_redo_work *work)
{
    if (move->run->train.optimizer == LS_OPTIMIZER_LAMB)
        lamb(move, work);
    else
        muon(move, work);
    return ls_stream_sync(move->stream, ls_time_now_ns() + LS_STEP_WAIT_S * LS_NS_PER_S);
}
