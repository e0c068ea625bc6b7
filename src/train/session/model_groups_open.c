/* model_groups_open.c -- which ranks form the groups of model_groups.h, and their communicators.
 *
 *   6 ranks, mesh.tp: 2     tp group    0     1     2       each rank: a slice of every layer; with
 *   (or mesh.ep: 2)                                         mesh.ep: some of the experts
 *                           ranks      0 1   2 3   4 5
 *
 *                           replicas   0, 2, 4   and   1, 3, 5      have the same part, and sum its
 *                                                                   gradient once in a step
 *
 * With a pipeline (mesh.pp) each stage of a pipeline is a tensor-parallel group. The ranks of the
 * same place in their groups are a slice of the mesh, and a slice is a mesh of pipelines of its own
 * (layout/mesh.h): all that pipelines do, they do in each slice.
 *
 *   8 ranks, mesh.pp: 2, mesh.tp: 2         slice 0                 slice 1
 *                                 stage 0    0 --- 2  gradients     1 --- 3
 *                                            |     |  along a row,  |     |
 *                                 stage 1    4 --- 6  activations   5 --- 7     tp groups: 0 1, 2 3,
 *                                                     along a column            4 5, 6 7
 *
 * With both mesh.tp and mesh.ep the tensor-parallel groups side by side divide the experts, and all
 * of their ranks hold one model: rank i of them has place i % tp in its tp group, and the experts of
 * group i / tp. Each rank is in one small communicator of its tp group, and in one of the ranks that
 * have its place in the other groups.
 *
 *   8 ranks, mesh.ep: 2, mesh.tp: 2     one model     0 1 2 3        4 5 6 7
 *                                       tensors       0 1   2 3      4 5   6 7
 *                                       experts       0 2   1 3      4 6   5 7
 *                                       replicas      0 4   1 5   2 6   3 7            */
#include "train/session/model_groups.h"

#include "base/log.h"
#include "base/mem.h"
#include "parallel/blocking.h"
#include "train/session/session_impl.h"

const ls_model *ls_model_groups_whole(const ls_session *session)
{
    return session->groups.whole.params ? &session->groups.whole : &session->model;
}

const ls_mesh *ls_model_groups_mesh(const ls_session *session)
{
    return session->mesh.tp > 1 ? &session->groups.tp_slice : &session->mesh;
}

const ls_mesh *ls_model_groups_replicas(const ls_session *session)
{
    return ls_mesh_mp(&session->mesh) > 1 ? &session->groups.replicas : &session->mesh;
}

ls_comm *ls_model_groups_replica_comm(const ls_session *session)
{
    return ls_mesh_mp(&session->mesh) > 1 ? session->groups.replica_comm : session->args.comm;
}

bool ls_model_groups_is_first(const ls_session *session)
{
    return session->mesh.rank % ls_mesh_tp(&session->mesh) == 0;
}

ls_status ls_model_groups_models(ls_session *s)
{
    int tp = ls_mesh_tp(&s->mesh), ep = ls_mesh_ep(&s->mesh);
    int64_t vocab = ls_tokenizer_vocab(s->data.tokenizer);
    ls_model_split split = {.rank = s->mesh.rank % tp,
                            .ranks = tp,
                            .ep_rank = s->mesh.rank / tp % ep,
                            .ep_ranks = ep,
                            .sequence = tp > 1 && s->run->mesh.sp};
    ls_status st = LS_OK;

    ls_model_release(&s->model);
    if (tp * ep > 1 && !s->groups.whole.params) /* else a save may still read its names */
        LS_TRY(st, ls_model_init(&s->groups.whole, s->run, vocab), out);
    st = ls_model_init_split(&s->model, s->run, vocab, split);
out:
    return st;
}

/* Whether some groups of `ranks` neighbours are on several nodes. */
static bool spans_nodes(const ls_session *s, int ranks)
{
    bool spans = false;

    for (int r = 0; r < s->mesh.ranks && s->mesh.places; r++)
        spans |= s->mesh.places[r].node != s->mesh.places[r / ranks * ranks].node;
    return spans;
}

/* Ranks of one model are best kept where memory is shared. */
static void warn_of_nodes(const ls_session *s)
{
    if (spans_nodes(s, ls_mesh_mp(&s->mesh)) && ls_session_is_first(s))
        ls_log(LS_LOG_WARN,
               "ranks that share one model (mesh.%s) are on several nodes: every "
               "layer waits for the network between them",
               spans_nodes(s, ls_mesh_tp(&s->mesh)) ? "tp" : "ep");
}

/* Stages of ZeRO that divide nothing here: no other rank has the same experts, and layers. */
static void warn_of_zero(const ls_session *s)
{
    bool pipeline = ls_mesh_pp(&s->groups.replicas) > 1;

    if (s->run->mesh.zero > 1 && s->mesh.ep > 1 && ls_mesh_pipelines(&s->groups.replicas) < 2 &&
        ls_session_is_first(s))
        ls_log(LS_LOG_WARN,
               "mesh.zero: %lld divides no more than %d does: ranks that have the same %sexperts "
               "divide gradients and weights, and here each has others (mesh.ep: %d of %d)",
               (long long)s->run->mesh.zero, pipeline ? 0 : 1, pipeline ? "layers and " : "",
               s->mesh.ep, ls_mesh_pipelines(&s->groups.tp_slice));
}

/* What ranks with slices of tensors exchange, and ranks that divide experts: all ranks of the model,
 * or with both axes some of them each. */
static ls_status open_tensors(ls_session *s)
{
    int tp = ls_mesh_tp(&s->mesh), ep = ls_mesh_ep(&s->mesh),
        me = ls_comm_rank(s->groups.model_comm);
    bool both = tp > 1 && ep > 1;
    ls_status st = LS_OK;

    if (both) {
        LS_TRY(st,
               ls_blocking_sub(s->groups.model_comm, me / tp * tp, 1, tp, ls_session_deadline(),
                               &s->groups.tp_comm),
               out);
        LS_TRY(st,
               ls_blocking_sub(s->groups.model_comm, me % tp, tp, ep, ls_session_deadline(),
                               &s->groups.ep_comm),
               out);
    }
    if (tp > 1)
        LS_TRY(st,
               ls_mp_group_open(&s->groups.tp, both ? s->groups.tp_comm : s->groups.model_comm,
                                s->model.split.kv_copies),
               out);
    if (ep > 1)
        LS_TRY(st,
               ls_mp_group_open(&s->groups.ep, both ? s->groups.ep_comm : s->groups.model_comm, 1),
               out);
out:
    return st;
}

/* Ranks that divide experts own the same elements of everything else, so their buckets are equal,
 * whatever links each has to its replicas. */
static ls_status agree_on_bucket(ls_session *s)
{
    double most = (double)s->groups.replicas.bucket;
    ls_status st = LS_OK;

    if (s->mesh.ep > 1)
        st = ls_blocking_reduce(s->groups.model_comm, LS_COLL_MAX, LS_F64, &most, 1,
                                ls_session_deadline());
    s->groups.replicas.bucket = (int64_t)most;
    return st;
}

ls_status ls_model_groups_open(ls_session *s)
{
    int mp_group = ls_mesh_mp(&s->mesh), mp_groups = s->mesh.ranks / mp_group, rank = s->mesh.rank;
    ls_status st = LS_OK;

    if (mp_group == 1)
        return LS_OK;
    warn_of_nodes(s);
    warn_of_zero(s);
    LS_TRY(st,
           ls_blocking_sub(s->args.comm, rank / mp_group * mp_group, 1, mp_group,
                           ls_session_deadline(), &s->groups.model_comm),
           out);
    if (mp_groups > 1)
        LS_TRY(st,
               ls_blocking_sub(s->args.comm, rank % mp_group, mp_group, mp_groups,
                               ls_session_deadline(), &s->groups.replica_comm),
               out);
    LS_TRY(st, open_tensors(s), out);
    if (mp_groups > 1 && s->mesh.pp < 2) {
        s->groups.replicas.bucket = ls_dp_bucket_blocks(
            s->groups.replica_comm, &s->groups.replicas,
            s->mesh.ep > 1 ? s->model.trained : s->groups.whole.trained / mp_group,
            s->run->mesh.bucket);
        LS_TRY(st, agree_on_bucket(s), out);
    }
out:
    return st;
}

/* Over the ranks of comm, as one number: 0 none, n = 1 .. L selective in n blocks, n = L + 1 .. 2 L full in
 * n - L. Of 4 blocks: selective in 3 here (3) and full in 2 there (6) become full in 2. */
static ls_status agree_on_recompute(ls_comm *comm, int64_t L, ls_run *run)
{
    int64_t blocks = run->train.recompute_blocks == LS_RUN_AUTO ? L : run->train.recompute_blocks;
    ls_recompute level = run->train.recompute;
    double most = level == LS_RECOMPUTE_NONE ? 0 : (double)blocks;
    ls_status st;

    if (level == LS_RECOMPUTE_FULL)
        most += (double)L;
    st = ls_blocking_reduce(comm, LS_COLL_MAX, LS_F64, &most, 1, ls_session_deadline());
    if (st != LS_OK)
        return st;
    blocks = (int64_t)most;
    run->train.recompute = blocks == 0   ? LS_RECOMPUTE_NONE
                           : blocks <= L ? LS_RECOMPUTE_SELECTIVE
                                         : LS_RECOMPUTE_FULL;
    run->train.recompute_blocks = blocks == 0 ? LS_RUN_AUTO : blocks <= L ? blocks : blocks - L;
    return LS_OK;
}

ls_status ls_model_groups_agree(ls_session *s)
{
    int64_t L = s->model.shape.L;
    ls_status st = LS_OK;

    if (ls_mesh_cp(&s->mesh) > 1)
        LS_TRY(st, agree_on_recompute(s->args.comm, L, &s->fitted), out);
    if (s->groups.model_comm)
        st = agree_on_recompute(s->groups.model_comm, L, &s->fitted);
out:
    return st;
}

ls_status ls_model_groups_open_dp(ls_dp **dp_out, const ls_run *run, ls_dp_args args)
{
    int ranks = ls_mesh_ranks(&args.mesh), *merges = NULL;
    ls_status st;

    if (args.ordered && args.rounds > 0) {
        merges = ls_mem_array((size_t)args.rounds * (size_t)ranks, sizeof *merges);
        if (!merges)
            return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", ranks);
        ls_calls_feed(run, &args.mesh, args.rounds, merges);
        args.merges = merges;
    }
    st = ls_dp_open(dp_out, &args);
    ls_mem_free(merges);
    return st;
}

ls_status ls_model_groups_open_sums(ls_session *s)
{
    int tp = ls_mesh_tp(&s->mesh);
    ls_status st = LS_OK;

    if (s->groups.replica_comm) {
        ls_dp_args dp = ls_memory_dp(s->run, &s->model, &s->groups.replicas);
        dp.comm = s->groups.replica_comm;
        dp.by_device = ls_session_collectives(s) && ls_memory_by_device(s->run, &s->mesh, &dp);
        LS_TRY(st, ls_model_groups_open_dp(&s->groups.replica_dp, s->run, dp), out);
    }
    if (s->mesh.ep < 2 || tp == 1)
        goto out;
    LS_TRY(st,
           ls_blocking_sub(s->args.comm, s->mesh.rank % tp, tp, s->groups.tp_slice.ranks,
                           ls_session_deadline(), &s->groups.slice_comm),
           out);
    ls_dp_args numbers = {
        .comm = s->groups.slice_comm, .mesh = s->groups.tp_slice, .leaves = 1, .trained = 1};
    numbers.mesh.zero = numbers.mesh.cp = 0;
    st = ls_dp_open(&s->groups.slice_dp, &numbers);
out:
    return st;
}

void ls_model_groups_close(ls_session *s)
{
    ls_dp_close(s->groups.replica_dp);
    ls_dp_close(s->groups.slice_dp);
    ls_mp_group_close(s->groups.tp);
    ls_mp_group_close(s->groups.ep);
    ls_comm_close(s->groups.tp_comm);
    ls_comm_close(s->groups.ep_comm);
    ls_comm_close(s->groups.slice_comm);
    ls_comm_close(s->groups.replica_comm);
    ls_comm_close(s->groups.model_comm);
    s->groups.replica_dp = s->groups.slice_dp = NULL;
    s->groups.tp = s->groups.ep = NULL;
    s->groups.tp_comm = s->groups.ep_comm = s->groups.slice_comm = s->groups.replica_comm =
        s->groups.model_comm = NULL;
}
