/* replica_repeat.c -- an update that needs all ranks, made again when one dies in the middle of it.
 *
 * LAMB and Muon exchange norms and matrices while they update. A rank that dies then leaves the
 * others with states that are neither of the step before nor of the one behind it, and no rank can
 * end the update alone, as one that goes element by element. Instead each rank keeps the state from
 * before the last update, and the gradient of it: of its own part, and of the copy that it holds.
 *
 *     step 8: losses received
 *     prepare     own part    weights, moments of 7; gradient of 8
 *                 copy        the same; its moments make update 7 only now
 *     update      in place, with other ranks
 *
 *     a death, then or later
 *     restore     states of 7 and gradients of 8 move to their owners in the new mesh, and its ranks
 *                 make update 8 together
 *
 * So a copy's moments follow one update behind, without other ranks: moments depend on nothing but
 * the gradients of their own elements. Its weights do not; but with mesh.zero: 1, the only stage that
 * these optimizers have, every rank has all of them after an update. How an optimizer updates
 * moments alone is its own affair (ls_optim_redo); here is which elements the pieces have. */
#include "base/mem.h"
#include "base/time.h"
#include "train/replica/replica_impl.h"

bool ls_replica_repeats(const ls_run *run)
{
    return !ls_optimizer_is_elementwise(run->train.optimizer);
}

/* ls_optim_ranks.piece */
static bool find_piece(const void *context, int64_t first, int64_t end, ls_optim_piece *piece_out)
{
    const ls_replica_pieces *pieces = ((const ls_replica_repeat *)context)->update.pieces;

    return ls_optim_find_piece(pieces->at, pieces->n, first, end, piece_out);
}

/* ls_optim_ranks.elements */
static void update_elements(void *context)
{
    const ls_replica_repeat *r = context;

    for (int i = 0; i < r->update.pieces->n; i++)
        ls_replica_update_piece(&r->update, i, r->gradient + r->update.pieces->at[i].packed);
}

ls_status ls_replica_repeat_open(ls_replica_repeat *r, const ls_model *model,
                                 const ls_replica_update *update)
{
    ls_status st = LS_OK;

    *r = (ls_replica_repeat){.update = *update};
    r->lists = ls_mem_alloc((size_t)ls_optim_work_of(update->run, model).list_bytes);
    LS_TRY(st, r->lists ? LS_OK : LS_ENOMEM, out);
    const ls_optim_ranks ranks = {
        .context = r, .ranks = 1, .piece = find_piece, .elements = update_elements};
    st = ls_optim_open(&r->optim, &(ls_optim_args){.run = update->run,
                                                   .model = model,
                                                   .kernels = update->kernels,
                                                   .stream = update->stream,
                                                   .redoes = true,
                                                   .copy_type = LS_F32,
                                                   .work = r->lists,
                                                   .ranks = ranks});
out:
    if (st != LS_OK)
        ls_replica_repeat_close(r);
    return st;
}

void ls_replica_repeat_close(ls_replica_repeat *repeat)
{
    ls_optim_close(repeat->optim);
    ls_mem_free(repeat->lists);
    *repeat = (ls_replica_repeat){.optim = NULL};
}

ls_status ls_replica_repeat_moments(ls_replica_repeat *repeat, float *const *arrays,
                                    const ls_replica_scalars *numbers)
{
    ls_replica_update *u = &repeat->update;

    u->w = arrays[LS_REPLICA_W];
    u->m = arrays[LS_REPLICA_M];
    u->v = arrays[LS_REPLICA_V];
    u->numbers = numbers;
    repeat->gradient = arrays[LS_REPLICA_G];
    ls_optim_redo(repeat->optim, &(ls_optim_arrays){.w = u->w,
                                                    .m = u->m,
                                                    .v = u->v,
                                                    .grad = arrays[LS_REPLICA_G],
                                                    .state = &numbers->state,
                                                    .norm = &numbers->norm});
    return ls_stream_sync(u->stream, ls_step_deadline());
}
