/* replica_redo.c -- see replica_redo.h. What is updated how is the optimizer's (optim/optim.h); here
 * is which elements a seat has, packed. */
#include "train/replica/replica_redo.h"

#include "base/mem.h"
#include "base/time.h"
#include "train/replica/replica_copy_impl.h"

bool ls_replica_redo_serves(const ls_run *run)
{
    return !ls_optimizer_is_elementwise(run->train.optimizer);
}

/* The first elements of first .. end-1 that the seat has. */
static bool find_piece(const void *context, int64_t first, int64_t end, ls_optim_piece *piece_out)
{
    const ls_replica_redo_work *w = context;

    for (int b = 0; b < ls_reshard_buckets(&w->cut, w->trained); b++) {
        ls_mesh_part part = ls_reshard_part(&w->cut, w->trained, b, w->seat);
        int64_t from = ls_max_i64(first, part.first);
        int64_t to = ls_min_i64(end, part.first + part.count);
        *piece_out = (ls_optim_piece){
            .first = from, .count = to - from, .place = part.packed + from - part.first};
        if (from < to)
            return true;
    }
    return false;
}

static void update_elements(void *context)
{
    const ls_replica_redo_work *w = context;
    const ls_replica_redo_move *m = w->move;

    ls_replica_copy_make_update(&(ls_replica_copy_move){.run = m->run,
                                                        .kernels = m->kernels,
                                                        .stream = m->stream,
                                                        .cut = m->cut,
                                                        .trained = m->trained,
                                                        .seat = m->seat,
                                                        .arrays = m->arrays,
                                                        .spans = w->spans,
                                                        .first_span = w->first_span,
                                                        .state = m->state,
                                                        .norm = m->norm});
}

ls_status ls_replica_redo_open_work(ls_replica_redo_work *work, const ls_replica_redo_args *args)
{
    ls_replica_redo_work *w = work;
    ls_status st = LS_OK;

    *w = (ls_replica_redo_work){
        .cut = *args->cut, .trained = args->model->trained, .seat = args->seat};
    w->lists = ls_mem_alloc((size_t)ls_optim_work_of(args->run, args->model).list_bytes);
    LS_TRY(st, w->lists ? LS_OK : LS_ENOMEM, out);
    LS_TRY(st,
           ls_replica_copy_spans(args->run, args->model, args->cut, args->seat, &w->spans,
                                 w->first_span),
           out);
    st = ls_optim_open(
        &w->optim,
        &(ls_optim_args){
            .run = args->run,
            .model = args->model,
            .kernels = args->kernels,
            .stream = args->stream,
            .redoes = true,
            .copy_type = LS_F32,
            .work = w->lists,
            .ranks = {.context = w, .ranks = 1, .piece = find_piece, .elements = update_elements}});
out:
    if (st != LS_OK)
        ls_replica_redo_close_work(w);
    return st;
}

void ls_replica_redo_close_work(ls_replica_redo_work *work)
{
    ls_optim_close(work->optim);
    ls_mem_free(work->lists);
    ls_mem_free(work->spans);
    *work = (ls_replica_redo_work){.spans = NULL};
}

ls_status ls_replica_redo_moments(const ls_replica_redo_move *move, ls_replica_redo_work *work)
{
    work->move = move;
    ls_optim_redo(work->optim, &(ls_optim_arrays){.w = move->arrays[LS_REPLICA_COPY_W],
                                                  .m = move->arrays[LS_REPLICA_COPY_M],
                                                  .v = move->arrays[LS_REPLICA_COPY_V],
                                                  .grad = move->arrays[LS_REPLICA_COPY_G],
                                                  .state = move->state,
                                                  .norm = move->norm});
    work->move = NULL;
    return ls_stream_sync(move->stream, ls_time_now_ns() + LS_STEP_WAIT_S * LS_NS_PER_S);
}
