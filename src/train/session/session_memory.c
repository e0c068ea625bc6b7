/* session_memory.c -- fits the run into the memory that is free, before anything large is taken.
 *
 * What the user left open is chosen here: the size of calls on a GPU, and how much is recomputed.
 * The order is that of cost: calls as large as fit, then as little recomputation as fits. */
#include "train/session/session_impl.h"

#include "config/option.h"
#include "config/explain.h"
#include "parallel/blocking.h"
#include "train/session/model_groups.h"

/* On a GPU, whose memory is for this run alone, calls whose size the user has not set are as large as
 * fit, on all ranks. */
static ls_status fit_group(ls_session *s, const ls_memory_args *memory, int64_t free_bytes)
{
    double group = (double)ls_memory_fit_group(memory, free_bytes);
    ls_status st = LS_OK;

    if (s->mesh.ranks > 1)
        st =
            ls_blocking_reduce(s->args.comm, LS_COLL_MIN, LS_F64, &group, 1, ls_session_deadline());
    s->fitted.batch.group = (int64_t)group;
    return st;
}

/* Then as little is recomputed as fits, where that is left to us, rather than packed weights kept.
 * No bit depends on it, so ranks may choose differently, except inside of a tp or cp group. */
ls_status ls_session_fit_run(ls_session *s, ls_memory_args *memory, int64_t free_bytes)
{
    int at = ls_option_index(ls_option_find("batch.group"));
    bool recompute = s->run->train.recompute == LS_RECOMPUTE_AUTO;
    ls_status st = LS_OK;

    if (s->run != &s->fitted)
        s->fitted = *s->run;
    s->run = memory->run = &s->fitted;
    memory->pack = s->run->device.pack == LS_PACKING_ON;
    if (recompute)
        s->fitted.train.recompute = LS_RECOMPUTE_NONE;
    if (s->discrete && s->run->origins[at].automatic)
        LS_TRY(st, fit_group(s, memory, free_bytes), out);
    if (recompute) {
        ls_run chosen;
        ls_memory_fit_recompute(memory, free_bytes, &chosen);
        s->fitted = chosen;
        LS_TRY(st, ls_model_groups_agree(s), out);
    }
out:
    return st;
}

/* What of the program is touched after memory was planned: code of steps and saves, stacks of
 * threads, small objects; on the first rank also events and commits. Measured. */
enum { LATER_BYTES = 1408 << 10, FIRST_BYTES = 320 << 10 };

/* What the ledger is made of. */
ls_memory_args ls_session_memory(ls_session *s, const ls_device_info *info, int64_t kept)
{
    ls_loader_args loader = ls_session_loader_args(s);
    int64_t program = ls_ledger_resident_bytes() - kept;

    if (!s->discrete) /* threads have a line of their own */
        program -= (int64_t)info->threads * LS_STREAM_THREAD_BYTES;
    program -= ls_corpus_present_bytes(s->data.corpus); /* so have shards */
    program += LATER_BYTES + (ls_session_is_first(s) ? FIRST_BYTES : 0);
    return (ls_memory_args){.run = s->run,
                            .mesh = ls_model_groups_mesh(s),
                            .model = &s->model,
                            .world = &s->mesh,
                            .whole = ls_model_groups_whole(s),
                            .sums = ls_mesh_mp(&s->mesh) > 1 ? &s->groups.replicas : NULL,
                            .kernels = s->kernels,
                            .threads = info->threads,
                            .discrete = s->discrete,
                            .collectives = ls_session_collectives(s) != NULL,
                            .page = info->window_page,
                            .fixed_bytes = info->fixed_bytes,
                            .program_bytes = program,
                            .loader_bytes = ls_loader_bytes(&loader),
                            .mapped_bytes = ls_corpus_mapped_bytes(s->data.corpus)};
}
