/* mesh_agree.c -- facts that all ranks agree on, and the choice that each makes of them.
 *
 *                 free memory   threads   program    link between nodes
 *     rank 0      31 GB         4         1.20 GB    1.3 ns/byte
 *     rank 1      29 GB         4         1.22 GB    1.3 ns/byte
 *     agreed      29 GB         4         1.22 GB    1 ns/byte         least, least, most, rounded
 *
 * Every rank makes the same choice out of the same facts, so no rank sends its choice. Facts
 * that differ between ranks are agreed on first: the least memory, the largest program. Links are
 * those that the ranks agreed on when they met (comm/tune.h), rounded to powers of two, and the
 * speed of a rank is assumed by its kernels and threads: so that a second start on the same
 * machines chooses the same mesh, however busy they are.
 *
 * When ranks are lost the mesh stays, because what the others have in memory is cut by it. A new rank
 * learns the mesh from them, with the view in which it was chosen. Of several the newest counts: a
 * rank that waited as a spare may know an older one, which was lost with all its ranks and chosen
 * anew. */
#include "train/session/mesh_agree.h"

#include <math.h>
#include "base/log.h"
#include "base/mem.h"
#include "comm/tune.h"
#include "parallel/blocking.h"
#include "train/session/session_impl.h"

/* The nearest power of two. */
static double rounded(double x)
{
    return x > 0 ? exp2(round(log2(x))) : 0;
}

static ls_cost_link rounded_link(const ls_cost_link *link)
{
    return (ls_cost_link){.alpha_ns = rounded(link->alpha_ns),
                          .message_ns = rounded(link->message_ns),
                          .ns_per_byte = rounded(link->ns_per_byte)};
}

/* Ranks of the node that has fewest. */
static int per_node(const ls_mesh *mesh)
{
    int least = mesh->ranks;

    for (int r = 0; r < mesh->ranks && mesh->places; r++)
        least = mesh->places[r].ranks < least ? mesh->places[r].ranks : least;
    return least;
}

/* What is free for this rank: an equal share of what its machine or its card has. */
static double share_of(const ls_session *s, const ls_device_info *info)
{
    int local = (int)ls_max_i64(1, s->mesh.local), cards = (int)ls_max_i64(1, info->cards);
    int users = s->discrete ? (local + cards - 1) / cards : local;

    return (double)info->free_bytes / users + (double)info->fixed_bytes;
}

/* The same program is some pages larger or smaller at every start. */
enum { PROGRAM_UNIT = 16 << 20 };

static ls_status agree(const ls_session *s, ls_mesh_choice_facts *facts)
{
    ls_device_info info = ls_device_describe(s->device);
    int64_t program = ls_ledger_resident_bytes();
    double least[] = {share_of(s, &info), (double)info.threads, -(double)program,
                      -(double)info.window_page};
    ls_status st = LS_OK;

    if (s->mesh.ranks > 1)
        st = ls_blocking_reduce(s->args.comm, LS_COLL_MIN, LS_F64, least, LS_COUNT(least),
                                ls_session_deadline());
    facts->free_bytes = (int64_t)least[0];
    facts->threads = (int)least[1];
    facts->program_bytes = ls_round_up((int64_t)-least[2], PROGRAM_UNIT);
    facts->fixed_bytes = info.fixed_bytes;
    facts->page = (int64_t)-least[3];
    return st;
}

ls_status ls_mesh_agree_choose(ls_session *s)
{
    ls_tune tune;
    ls_mesh_choice_facts facts = {.ranks = ls_mesh_ranks(&s->mesh),
                                  .per_node = per_node(&s->mesh),
                                  .vocab = ls_tokenizer_vocab(s->data.tokenizer),
                                  .kernels = s->kernels,
                                  .discrete = s->discrete,
                                  .heals = s->args.rejoin != NULL};
    ls_status st;

    ls_tune_init(&tune);
    if (s->args.comm)
        tune = *ls_tune_of(s->args.comm);
    facts.inside = rounded_link(&tune.inside);
    facts.between = rounded_link(&tune.between);
    facts.combine_ns_per_byte = rounded(tune.combine_ns_per_byte);
    LS_TRY(st, agree(s, &facts), out);
    facts.gflops = ls_mesh_choice_gflops(s->kernels, facts.threads);
    LS_TRY(st, ls_mesh_choice_make(s->run, &facts, &s->auto_mesh.choice), out);
    s->auto_mesh.view = s->args.view.plan.generation;
    s->fitted = *s->run;
    ls_mesh_choice_apply(&s->auto_mesh.choice, 0, &s->fitted);
    s->run = &s->fitted;
out:
    return st;
}

/* --- a mesh that was chosen --------------------------------------------------------------------
 */

/* What a rank knows of it. */
typedef struct record {
    uint64_t view; /* in which it was chosen; 0: this rank does not know */
    int64_t ranks; /* that it was chosen for */
    int64_t value[LS_MESH_CHOICE_AXES];
} record;
_Static_assert(sizeof(record) % 16 == 0, "all-gathers cut at 16 bytes");

/* What all ranks know; records: [ranks]. */
static ls_status gather(const ls_session *s, record *records)
{
    record *own = &records[ls_comm_rank(s->args.comm)];

    if (s->auto_mesh.choice.count > 0) {
        *own = (record){.view = s->auto_mesh.view, .ranks = s->auto_mesh.choice.facts.ranks};
        memcpy(own->value, s->auto_mesh.choice.rows[0].value, sizeof own->value);
    }
    return ls_blocking_all_gather(s->args.comm, LS_U8, records,
                                  ls_comm_ranks(s->args.comm) * (int64_t)sizeof *records,
                                  ls_session_deadline());
}

ls_status ls_mesh_agree_recall(ls_session *s, bool *other_out)
{
    int ranks = s->args.comm ? ls_comm_ranks(s->args.comm) : 1;
    record *records = ls_mem_array((size_t)ranks, sizeof *records), best = {.view = 0};
    ls_status st = LS_OK;

    *other_out = false;
    if (!records)
        return LS_ENOMEM;
    if (ranks > 1)
        LS_TRY(st, gather(s, records), out);
    for (int r = 0; r < ranks; r++)
        best = records[r].view > best.view ? records[r] : best;
    if (best.view > s->auto_mesh.view) {
        *other_out = s->auto_mesh.choice.count > 0;
        ls_mesh_choice_release(&s->auto_mesh.choice);
        LS_TRY(st, ls_mesh_choice_adopt(best.value, (int)best.ranks, &s->auto_mesh.choice), out);
        s->auto_mesh.view = best.view;
    }
    if (s->auto_mesh.choice.count > 0 && s->args.comm && ls_comm_rank(s->args.comm) == 0) {
        ls_mesh_choice_row now = s->auto_mesh.choice.rows[0];
        ls_mesh_choice_name(&now, ranks);
        ls_log(LS_LOG_INFO, "mesh: auto keeps its mesh: %s", now.mesh);
    }
out:
    ls_mem_free(records);
    return st;
}

void ls_mesh_agree_report(ls_session *session)
{
    bool whole =
        session->auto_mesh.choice.count > 0 && session->auto_mesh.choice.facts.per_node > 0;

    if (whole && ls_session_is_first(session))
        ls_session_emit(session, &(ls_event){.kind = LS_EVENT_MESH,
                                             .mesh = {.choice = &session->auto_mesh.choice}});
}
