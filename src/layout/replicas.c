/* replicas.c -- see replicas.h for parts, owners and holders, with examples.
 *
 * Parts are numbered slice by slice: stage of the pipeline, then place in the tensor-parallel and
 * expert-parallel groups, then, where ZeRO divides a slice, the rank's number among those that have
 * it. With a whole model the part is the rank's place in its shard group. */
#include "layout/replicas.h"

#include <string.h>
#include "layout/expert_zero.h"

/* --- parts ------------------------------------------------------------------------------------ */

bool ls_replicas_divides(const ls_run *run)
{
    return run->mesh.pp > 1 || run->mesh.tp > 1 || run->mesh.ep > 1;
}

int ls_replicas_unit(const ls_run *run)
{
    int64_t pp = ls_max_i64(1, run->mesh.pp), tp = ls_max_i64(1, run->mesh.tp);
    int64_t cp = ls_max_i64(1, run->mesh.cp), ep = ls_max_i64(1, run->mesh.ep), beside = ep;

    while (beside % cp != 0 && beside < LS_MESH_RANKS)
        beside += ep;
    return (int)ls_min_i64(pp * tp * beside, LS_MESH_RANKS);
}

bool ls_replicas_knows(const ls_run *run)
{
    bool groups = run->mesh.shard && strcmp(run->mesh.shard, "world") != 0;
    bool pipelines = run->mesh.pp > 1 && run->mesh.ep < 2; /* divided by indices of the model */

    return !ls_replicas_divides(run) || run->mesh.zero == 0 ||
           (!groups && (run->mesh.zero == 1 || pipelines));
}

/* Ranks with the same slice of the model. */
static int same_slice(const ls_mesh *mesh)
{
    return ls_mesh_ranks(mesh) / ls_mesh_mp(mesh) / ls_mesh_pp(mesh);
}

/* By how many of them a slice is divided. */
static int shares_of(const ls_mesh *mesh)
{
    if (mesh->zero == 0)
        return 1;
    return ls_mesh_whole(mesh) ? ls_mesh_shard_ranks(mesh) : same_slice(mesh);
}

int ls_replicas_parts(const ls_mesh *mesh)
{
    return ls_mesh_pp(mesh) * ls_mesh_mp(mesh) * shares_of(mesh);
}

int ls_replicas_part(const ls_mesh *mesh, int rank)
{
    int width = ls_mesh_mp(mesh), group = rank / width, shares = shares_of(mesh);
    int slice = group / same_slice(mesh) * width + rank % width;

    if (mesh->zero > 0 && ls_mesh_whole(mesh))
        return ls_mesh_shard_rank(mesh, rank);
    return slice * shares + group % same_slice(mesh) % shares;
}

int ls_replicas_pieces(const ls_run *run, const ls_model *model, const ls_mesh *replicas, int rank,
                       ls_mesh_part *pieces_out)
{
    int n = ls_mesh_buckets(replicas, model->trained);

    if (ls_expert_zero_divides(run, model, replicas))
        return ls_expert_zero_parts(model, replicas, rank, pieces_out);
    for (int i = 0; i < n && pieces_out; i++)
        pieces_out[i] = ls_mesh_part_of(replicas, model->trained, i, rank);
    return n;
}

/* --- copies at a peer ------------------------------------------------------------------------- */

/* What a run asks for that leaves nothing to copy, or no rank to copy it. Where heal.buddies is on,
 * config has refused all of these already. */
static bool can(const ls_run *run)
{
    return run->heal.mode == LS_HEAL_ON && run->sync == LS_SYNC_ALLREDUCE && run->mesh.zero > 0 &&
           ls_replicas_knows(run) &&
           (!ls_replicas_divides(run) || ls_optimizer_is_elementwise(run->train.optimizer)) &&
           run->device.kind != LS_DEVICE_CUDA && run->device.offload != LS_OFFLOAD_DISK;
}

ls_status ls_replicas_choose(ls_mesh *mesh, const ls_run *run, bool heals)
{
    mesh->buddies = false;
    if (run->heal.buddies == LS_REPLICA_PEERS_OFF || mesh->zero == 0)
        return LS_OK;
    if (run->heal.buddies == LS_REPLICA_PEERS_ON && !heals) {
        ls_fail(LS_EUSAGE, "heal.buddies is on, but nobody replaces ranks that die here: the first "
                           "failure ends the run");
        ls_err_hint("Leave heal.buddies at auto: then there are copies where ranks are replaced.");
        return LS_EUSAGE;
    }
    mesh->buddies = heals && can(run);
    return LS_OK;
}

/* From an owner to its holder. */
static int shift_of(const ls_mesh *mesh)
{
    const ls_mesh_place *places = mesh->places;
    int n = ls_mesh_ranks(mesh), best = 1, least = n + 1;

    if (!places)
        return (int)ls_max_i64(1, n / 2);
    for (int k = 1; k < n; k++) {
        int near = 0;
        for (int r = 0; r < n; r++)
            near += places[r].node == places[(r + k) % n].node;
        if (near < least) {
            least = near;
            best = k;
        }
    }
    return best;
}

int ls_replicas_holder(const ls_mesh *mesh, int rank)
{
    return (rank + shift_of(mesh)) % ls_mesh_ranks(mesh);
}

int ls_replicas_owner(const ls_mesh *mesh, int rank)
{
    int n = ls_mesh_ranks(mesh);

    return (rank + n - shift_of(mesh)) % n;
}

bool ls_replicas_in_moments(const ls_model *model, const ls_mesh *replicas)
{
    bool sliced = model->split.ranks > 1 || model->split.ep_ranks > 1;

    return sliced && replicas && replicas->buddies && replicas->zero == 1 &&
           ls_mesh_pp(replicas) == 1 && ls_mesh_ranks(replicas) > 1;
}

int64_t ls_replicas_place(int64_t own)
{
    return ls_round_up(own, LS_PARAM_ALIGN);
}

int64_t ls_replicas_moments(const ls_run *run, const ls_model *model, const ls_mesh *replicas,
                            int64_t own)
{
    int64_t most = 0;

    if (!ls_replicas_in_moments(model, replicas))
        return own;
    for (int r = 0; r < ls_mesh_ranks(replicas); r++) {
        ls_mesh other = *replicas;
        other.rank = r;
        most = ls_max_i64(most, ls_expert_zero_divides(run, model, replicas)
                                    ? ls_expert_zero_own(model, &other)
                                    : ls_mesh_own(replicas, model->trained, r));
    }
    return ls_replicas_place(own) + most;
}
