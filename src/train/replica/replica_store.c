/* replica_store.c -- what is kept of a state, and which of it the next view goes on with.
 *
 * Which step? A rank sends its losses when its gradient, that of the copy it holds, and the norm
 * are here. So a rank that has received all losses knows that two ranks can make the update of
 * every part. If any survivor has received all losses of step 8, every other one has made update 8
 * or can make it; if none has, none has made it. Example, ZeRO with 3 ranks, each with its own part
 * and the copy of another; rank 1 dies when rank 0 has received the losses of step 8 and rank 2 has
 * not:
 *
 *     rank 0   received 8   parts 0 and 2 (copy), 8 steps
 *     rank 2   received 7   parts 2 and 1 (copy), 7 steps, with the gradients of the 8th
 *
 * Base 8: rank 2 makes the update of both; then rank 0 gives part 0, rank 2 parts 1 and 2. No rank
 * goes back, and none needs a second version of what it has.
 *
 * What is older. A slice serves of any view, if it is of the very step that the ranks go on with,
 * and of the same origin, the view in which ranks last read a checkpoint, because in fast mode steps that are
 * done again differ. So a spare (cluster/member/view.h) helps. A gradient serves only with those of
 * its own view; so do ZeRO parts. Of two states the newer one is taken, unless a part
 * of it is nowhere. */
#include "train/replica/replica_store.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "parallel/blocking.h"
#include "train/replica/recover.h"
#include "train/replica/replica_impl.h"
#include "train/session/session_impl.h"

_Static_assert(sizeof(ls_replica_record) % 16 == 0, "all-gathers cut at 16 bytes");

ls_replica_layout ls_replica_layout_of(const ls_session *s)
{
    const ls_run *run = s->run;

    if (run && s->args.rejoin && ls_replicas_divides(run))
        return LS_REPLICA_MODEL_PARTS;
    return run && run->mesh.zero > 0 && run->sync == LS_SYNC_ALLREDUCE && !ls_replicas_divides(run)
               ? LS_REPLICA_ZERO_PARTS
               : LS_REPLICA_WHOLE_MODEL;
}

const ls_replica_entry ls_replica_nothing = {.part = {-1, -1}};

struct ls_replica_store *ls_replica_store_of(ls_session *s)
{
    struct ls_replica_store *k = s->recovery.store;

    if (!k && (k = s->recovery.store = ls_mem_alloc(sizeof *k)))
        k->plan = k->holdings[0].entry = k->holdings[1].entry = ls_replica_nothing;
    return k;
}

void ls_replica_holding_close(ls_session *s, ls_replica_holding *h)
{
    for (int i = 0; i < 3; i++) {
        ls_window window = {.base = h->arrays[i], .bytes = h->bytes[i]};
        if (h->windows)
            ls_window_close(&window);
        else
            ls_device_free(s->device, h->arrays[i]);
    }
    for (int p = 0; p < LS_REPLICA_HELD; p++) {
        ls_replica_pieces_close(&h->pieces[p]);
        for (int k = 0; k < LS_REPLICA_ARRAYS; k++) {
            ls_device_free(s->device, h->parts[p][k]);
            ls_device_free(s->device, h->later[p][k]);
        }
    }
    ls_replica_pieces_close(&h->weights);
    *h = (ls_replica_holding){.entry = ls_replica_nothing};
}

void ls_replica_drop(ls_session *session)
{
    struct ls_replica_store *k = session->recovery.store;

    for (int i = 0; i < 2 && k; i++)
        ls_replica_holding_close(session, &k->holdings[i]);
    if (k) {
        ls_mem_free(k->records);
        ls_mem_free(k->sources);
    }
    ls_mem_free(k);
    session->recovery.store = NULL;
}

int64_t ls_replica_bytes(const ls_session *s)
{
    int64_t all = 0;

    for (int i = 0; i < 2 && s->recovery.store; i++) {
        const ls_replica_holding *h = &s->recovery.store->holdings[i];
        for (int k = 0; k < 3 && h->arrays[k]; k++) {
            const ls_window window = {.base = h->arrays[k], .bytes = h->bytes[k]};
            all += h->windows ? ls_window_held(&window) /* pages that are there */ : h->bytes[k];
        }
        for (int p = 0; p < LS_REPLICA_HELD && !h->weights.at; p++)
            for (int k = 0; k < LS_REPLICA_ARRAYS; k++)
                all += (!!h->parts[p][k] + !!h->later[p][k]) * ls_replica_elements(&h->pieces[p]) *
                       (int64_t)sizeof(float);
    }
    return all;
}

/* --- choosing --------------------------------------------------------------------------------- */

bool ls_replica_serves(const ls_session *session, const ls_replica_entry *e,
                       const ls_replica_entry *best)
{
    bool same_view = e->view == best->view;
    bool any_view = ls_replica_layout_of(session) == LS_REPLICA_MODEL_PARTS;

    return ls_replica_is_there(e) && e->cut.ranks == best->cut.ranks &&
           e->cut.shard == best->cut.shard && e->cut.bucket == best->cut.bucket &&
           e->origin == best->origin &&
           ((e->done == best->received && (same_view || any_view)) ||
            (e->done == best->received - 1 && e->ready && same_view));
}

/* By which of two states training goes on: the one that has come farther. */
static bool is_newer(const ls_replica_entry *a, const ls_replica_entry *b)
{
    if (a->origin != b->origin)
        return a->origin > b->origin;
    return a->received != b->received ? a->received > b->received : a->view > b->view;
}

/* The newest state that any rank has a part of, older than `than`; any state if `than` is empty.
 * The same on all ranks. */
static ls_replica_entry find_newest(const struct ls_replica_store *k, int ranks,
                                    const ls_replica_entry *than)
{
    ls_replica_entry best = ls_replica_nothing;

    for (int i = 0; i < 2 * ranks; i++) {
        const ls_replica_entry *e = &k->records[i / 2].entry[i % 2];
        if (ls_replica_is_there(e) && (!ls_replica_is_there(than) || is_newer(than, e)) &&
            (!ls_replica_is_there(&best) || is_newer(e, &best)))
            best = *e;
    }
    return best;
}

/* A rank's entry that serves, with this part as its own or as a copy; NULL: none. */
static const ls_replica_entry *find_part(const ls_session *s, int rank, int held, int part,
                                         const ls_replica_entry *best)
{
    for (int i = 0; i < 2; i++) {
        const ls_replica_entry *e = &s->recovery.store->records[rank].entry[i];
        if (e->part[held] == part && ls_replica_serves(s, e, best))
            return e;
    }
    return NULL;
}

/* Whether a part of a small model has no elements: then any rank gives it. */
static bool is_empty(const ls_session *s, const ls_replica_entry *best, int part)
{
    int64_t trained = s->model.trained;

    if (ls_replica_layout_of(s) != LS_REPLICA_ZERO_PARTS)
        return false;
    ls_mesh_part last =
        ls_reshard_part(&best->cut, trained, ls_reshard_buckets(&best->cut, trained) - 1, part);
    return last.packed + last.count == 0;
}

/* The source of each part: its owner rather than the holder of a copy. Returns how many have one,
 * from the first on. */
static int find_sources(const ls_session *s, int ranks, const ls_replica_entry *best, int *sources)
{
    for (int part = 0; part < best->cut.shard; part++) {
        sources[part] = is_empty(s, best, part) ? 0 : -1;
        for (int held = LS_REPLICA_COPY; held >= LS_REPLICA_OWN; held--)
            for (int r = ranks - 1; r >= 0; r--)
                if (find_part(s, r, held, part, best))
                    sources[part] = r;
        if (sources[part] < 0)
            return part;
    }
    return best->cut.shard;
}

/* Write base, source and met of the chosen state into the view. */
static void write_view(ls_session *s, int ranks, const ls_replica_entry *best)
{
    ls_view_plan *view = &s->args.view.plan;
    const struct ls_replica_store *k = s->recovery.store;

    view->base = view->met = best->received;
    view->spread = true;
    for (int i = 2 * ranks - 1; i >= 0; i--) {
        const ls_replica_entry *e = &k->records[i / 2].entry[i % 2];
        if (!ls_replica_serves(s, e, best) || e->view != best->view)
            continue;
        view->source = e->received == best->received ? i / 2 : view->source;
        view->met = ls_min_i64(view->met, k->records[i / 2].met);
    }
    if (view->first_new && view->met == view->base && view->base > 0)
        view->met--; /* what it did last may not have been finished (recovery_policy.c) */
    for (int part = 0; part < best->cut.shard; part++)
        if (!is_empty(s, best, part) && !find_part(s, k->sources[part], LS_REPLICA_OWN, part, best))
            s->recovery.source = "buddy";
}

/* What the ranks go on with, if all parts of a state are there: all see the same records. */
static ls_status decide(ls_session *s, int ranks)
{
    struct ls_replica_store *k = s->recovery.store;
    ls_replica_entry best = ls_replica_nothing, first = ls_replica_nothing;
    int there, missing = 0;

    while (best = find_newest(k, ranks, &best), ls_replica_is_there(&best)) {
        if (ls_replica_layout_of(s) == LS_REPLICA_MODEL_PARTS &&
            best.cut.shard != ls_replicas_parts(&s->mesh))
            continue;
        ls_mem_free(k->sources);
        k->sources = ls_mem_array((size_t)best.cut.shard, sizeof *k->sources);
        if (!k->sources)
            return LS_ENOMEM;
        there = find_sources(s, ranks, &best, k->sources);
        if (there == best.cut.shard)
            break;
        if (!ls_replica_is_there(&first)) {
            first = best;
            missing = there;
        }
    }
    if (!ls_replica_is_there(&best)) {
        if (ls_replica_is_there(&first) && ls_comm_rank(s->args.comm) == 0)
            ls_log(LS_LOG_INFO, "no rank has part %d of %d of the state any more", missing + 1,
                   first.cut.shard);
        return LS_OK;
    }
    k->plan = best;
    k->view = best.view;
    k->origin = best.origin;
    for (int i = 0; i < 2; i++)
        if (ls_replica_serves(s, &k->holdings[i].entry, &best))
            k->chosen = &k->holdings[i];
    write_view(s, ranks, &best);
    if (k->chosen)
        return ls_replica_catch_up(s, k->chosen, &best);
    if (ls_replica_layout_of(s) == LS_REPLICA_MODEL_PARTS)
        ls_replica_holding_close(s, &k->holdings[0]);
    return LS_OK;
}

ls_status ls_replica_choose(ls_session *s)
{
    ls_replica_layout layout = ls_replica_layout_of(s);
    struct ls_replica_store *k;
    ls_status st = LS_OK;

    if (layout == LS_REPLICA_WHOLE_MODEL || s->args.view.plan.generation < 2 ||
        s->args.view.plan.base >= 0)
        return LS_OK;
    if (!(k = ls_replica_store_of(s)))
        return LS_ENOMEM;
    int ranks = ls_comm_ranks(s->args.comm), me = ls_comm_rank(s->args.comm);
    k->chosen = NULL;
    k->plan = ls_replica_nothing;
    ls_mem_free(k->records);
    k->records = ls_mem_array((size_t)ranks, sizeof *k->records);
    LS_TRY(st, k->records ? LS_OK : LS_ENOMEM, out);
    if (layout == LS_REPLICA_ZERO_PARTS &&
        ls_optimizer_of(s->run->train.optimizer)->reach == LS_REACH_MATRIX && ranks == 1)
        goto out; /* one rank has second moments in another order: from the checkpoint */
    k->records[me] = (ls_replica_record){.entry = {k->holdings[0].entry, k->holdings[1].entry},
                                         .met = s->progress.met};
    LS_TRY(st,
           ls_blocking_all_gather(s->args.comm, LS_U8, k->records,
                                  ranks * (int64_t)sizeof *k->records, ls_session_deadline()),
           out);
    (void)ls_step_test_point("recover.told", me, -1);
    st = decide(s, ranks);
out:
    return st;
}

/* --- going on --------------------------------------------------------------------------------- */

int64_t ls_replica_bucket(const ls_session *session, int64_t proposed)
{
    const struct ls_replica_store *k = session->recovery.store;

    return k && ls_replica_is_there(&k->plan) && k->plan.cut.bucket > 0 &&
                   ls_replica_layout_of(session) == LS_REPLICA_MODEL_PARTS &&
                   ls_recover_in_memory(session)
               ? k->plan.cut.bucket
               : proposed;
}

int64_t ls_replica_step(const ls_session *s)
{
    const struct ls_replica_store *k = s->recovery.store;
    bool whole = k && ls_replica_layout_of(s) == LS_REPLICA_WHOLE_MODEL &&
                 ls_replica_is_there(&k->holdings[0].entry);

    return whole ? k->holdings[0].entry.done : -1;
}

int ls_replica_part(const ls_session *s)
{
    const struct ls_replica_store *k = s->recovery.store;

    return k && ls_replica_layout_of(s) == LS_REPLICA_MODEL_PARTS
               ? (int)k->holdings[0].entry.part[LS_REPLICA_OWN]
               : -1;
}

void *const *ls_replica_reuse(const ls_session *s)
{
    const ls_replica_holding *h = s->recovery.store ? &s->recovery.store->holdings[0] : NULL;

    if (!h || !ls_replica_is_there(&h->entry) || h->reused)
        return NULL;
    if (ls_replica_layout_of(s) == LS_REPLICA_WHOLE_MODEL)
        return h->arrays;
    return ls_replica_layout_of(s) == LS_REPLICA_MODEL_PARTS && ls_recover_in_memory(s) &&
                   h->entry.part[LS_REPLICA_OWN] == ls_replicas_part(&s->mesh, s->mesh.rank)
               ? h->arrays
               : NULL;
}

void ls_replica_reused(ls_session *s)
{
    if (!ls_replica_reuse(s))
        return;
    ls_replica_holding *h = &s->recovery.store->holdings[0];
    memset(h->arrays, 0, sizeof h->arrays);
    s->step_number = h->entry.done;
    s->recovery.has_state = true;
    h->reused = true;
    if (ls_replica_layout_of(s) == LS_REPLICA_WHOLE_MODEL)
        ls_replica_holding_close(s, h); /* the step may be overtaken: what it has is not known */
}

void ls_replica_begin(ls_session *s)
{
    struct ls_replica_store *k = s->args.rejoin ? ls_replica_store_of(s) : s->recovery.store;

    if (!k)
        return;
    for (int i = 0; i < 2; i++)
        ls_replica_holding_close(s, &k->holdings[i]);
    k->chosen = NULL;
    k->origin = ls_recover_in_memory(s) ? k->origin : s->args.view.plan.generation;
    k->view = s->args.view.plan.generation;
}
