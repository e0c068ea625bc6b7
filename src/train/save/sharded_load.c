/* sharded_load.c -- every rank reads its part of a checkpoint.
 *
 * The first rank looks for the newest checkpoint that is whole, as it can see; each rank then reads
 * its parts, with their checksums. When one rank finds a part damaged, all give this checkpoint up and
 * the first rank proposes the one before. What all ranks of a mesh slice have in common (the weights
 * of ZeRO 1, a range of which each has read) is gathered at the end.
 *
 *     first rank     propose 400       propose 300       gather common
 *     rank 1         read: damaged     read              gather common
 *     all            reject            take 300, resume                    */
#include "train/save/sharded_save_impl.h"

#include "base/mem.h"
#include "base/time.h"
#include "layout/ckpt_ranges.h"
#include "parallel/blocking.h"
#include "train/session/model_groups.h"
#include "train/step/pipeline.h"

enum { KINDS = LS_SAVE_KINDS };

/* The own parts of the checkpoint that the first rank has found. Its names may take a while to be
 * seen here. */
static ls_status load_own(ls_session *s, int64_t step)
{
    const struct ls_sharded_save *p = s->save.sharded;
    ls_ckpt *ckpt = NULL;
    ls_status st;

    LS_TRY(st,
           ls_ckpt_await(p->store, step, ls_time_now_ns() + LS_SHARDED_SAVE_SEEN_S * LS_NS_PER_S,
                         &ckpt),
           out);
    LS_TRY(st, ls_ckpt_load_parts(ckpt, p->wants, p->n_wants, &s->loaded.read), out);
out:
    ls_ckpt_free(ckpt);
    return st;
}

ls_status ls_sharded_save_share_reason(ls_session *s, int rank, ls_status code)
{
    char text[sizeof ls_err_last()->text] = "", both[sizeof text];
    ls_status st;

    if (s->mesh.rank == rank)
        memcpy(text, ls_err_last()->text, sizeof text);
    st = ls_dp_broadcast(s->dp, rank, text, sizeof text);
    if (st != LS_OK || s->mesh.rank == rank)
        return st == LS_OK ? code : st;
    text[sizeof text - 1] = '\0';
    if (rank > 0)
        snprintf(both, sizeof both, "rank %d: %.*s", rank, (int)sizeof both - 32, text);
    return ls_fail(code, "%s", rank > 0 ? both : text);
}

int ls_sharded_save_find(const double *numbers, int ranks, double number)
{
    for (int r = 0; r < ranks; r++)
        if (numbers[r] == number)
            return r;
    return -1;
}

/* All ranks read their parts of a step. *damaged_out: one of them could not; the record says why.
 */
static ls_status load_together(ls_session *s, int64_t step, bool *damaged_out)
{
    int ranks = s->mesh.ranks;
    double *states = ls_mem_array(2 * (size_t)ranks, sizeof *states);
    ls_status st = LS_OK, own = states ? load_own(s, step) : LS_ENOMEM;

    LS_TRY(st, states ? LS_OK : LS_ENOMEM, out);
    states[s->mesh.rank] = own == LS_OK ? 0 : own == LS_EDATA || own == LS_EIO ? 1 : 2;
    states[ranks + s->mesh.rank] = own == LS_OK ? (double)s->loaded.read.bytes : 0;
    LS_TRY(st, ls_dp_sum_numbers(s->dp, LS_F64, states, 2 * ranks), out);
    s->loaded.most_bytes = 0;
    for (int r = 0; r < ranks; r++)
        s->loaded.most_bytes = ls_max_i64(s->loaded.most_bytes, (int64_t)states[ranks + r]);
    int worst = ls_sharded_save_find(states, ranks, 2);
    *damaged_out = worst < 0 && ls_sharded_save_find(states, ranks, 1) >= 0;
    if (worst < 0)
        worst = ls_sharded_save_find(states, ranks, 1);
    if (worst >= 0)
        st = ls_sharded_save_share_reason(s, worst, s->mesh.rank == worst ? own : LS_EDATA);
out:
    ls_mem_free(states);
    return st;
}

/* What each rank has read of what all ranks of its slice have. */
static ls_status gather_common(ls_session *s)
{
    const ls_mesh *mesh_slice = ls_model_groups_replicas(s);
    void *arrays[KINDS];
    ls_status st = LS_OK;

    ls_save_live(s, arrays);
    for (int k = 0; k < ls_optim_kinds(s->run); k++) {
        if (s->mesh.pp > 1)
            LS_TRY(st, ls_pipeline_complete(s->step, arrays[k]), out);
        if (ls_ckpt_ranges_divided(mesh_slice, k) || ls_mesh_ranks(mesh_slice) < 2)
            continue;
        LS_TRY(st,
               ls_blocking_all_gather(ls_model_groups_replica_comm(s), LS_F32, arrays[k],
                                      ls_ckpt_ranges_array(s->run, &s->model, mesh_slice, k),
                                      ls_save_deadline()),
               out);
    }
out:
    return st;
}

/* The first rank's next candidate: its step, -1 when there is none. */
static ls_status next_step(ls_session *s, ls_ckpt_search *search, const ls_ckpt **ckpt_out,
                           int64_t *step_out)
{
    ls_status st = LS_OK;

    *step_out = -1;
    if (search) {
        st = ls_ckpt_search_next(search, ckpt_out);
        if (st == LS_OK && *ckpt_out)
            *step_out = ls_ckpt_about(*ckpt_out)->step;
    }
    return st == LS_OK ? ls_dp_broadcast(s->dp, 0, step_out, sizeof *step_out) : st;
}

ls_status ls_sharded_save_load(ls_session *s, ls_ckpt_info *info_out, bool *found_out)
{
    ls_ckpt_search *search = NULL;
    const ls_ckpt *ckpt = NULL;
    int64_t step = 0;
    ls_status st = LS_OK;

    *found_out = false;
    if (s->mesh.rank == 0)
        LS_TRY(st, ls_ckpt_search_open(&search, s->save.store), out);
    for (bool damaged = true; damaged;) {
        LS_TRY(st, next_step(s, search, &ckpt, &step), out);
        if (step < 0)
            goto out;
        st = load_together(s, step, &damaged);
        if (st != LS_OK && !damaged)
            goto out;
        if (damaged && search)
            LS_TRY(st, ls_ckpt_search_reject(search, ls_err_last()->text), out);
    }
    LS_TRY(st, gather_common(s), out);
    if (search)
        LS_TRY(st, ls_ckpt_search_take(search, info_out), out);
    *found_out = true;
out:
    ls_ckpt_search_close(search);
    return st;
}
