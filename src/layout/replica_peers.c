/* replica_peers.c -- see replica_peers.h. */
#include "layout/replica_peers.h"

#include "layout/replicas.h"

/* What a run asks for that leaves nothing to copy, or nobody who could copy it. What is said here
 * was refused by config already where heal.buddies is on. */
static bool can(const ls_run *run)
{
    return run->heal.mode == LS_HEAL_ON && run->sync == LS_SYNC_ALLREDUCE && run->mesh.zero > 0 &&
           ls_replicas_knows(run) &&
           (!ls_replicas_divides(run) || ls_optimizer_is_elementwise(run->train.optimizer)) &&
           run->device.kind != LS_DEVICE_CUDA && run->device.offload != LS_OFFLOAD_DISK;
}

ls_status ls_replica_peers_choose(ls_mesh *mesh, const ls_run *run, bool heals)
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

static int node_of(const ls_mesh *mesh, int rank)
{
    return mesh->places ? mesh->places[rank].node : 0;
}

/* By how much buddies are shifted. */
static int shift_of(const ls_mesh *mesh)
{
    int n = ls_mesh_ranks(mesh), best = 1, least = n + 1;

    for (int k = 1; k < n; k++) {
        int near = 0;
        for (int r = 0; r < n; r++)
            near += node_of(mesh, r) == node_of(mesh, (r + k) % n);
        if (near < least) {
            least = near;
            best = k;
        }
    }
    return best;
}

int ls_replica_peers_of(const ls_mesh *mesh, int rank)
{
    return (rank + shift_of(mesh)) % ls_mesh_ranks(mesh);
}

int ls_replica_peers_ward(const ls_mesh *mesh, int rank)
{
    int n = ls_mesh_ranks(mesh);

    return (rank + n - shift_of(mesh)) % n;
}

int64_t ls_replica_peers_step_bytes(const ls_mesh *mesh, int64_t trained, int rank)
{
    return ls_replica_peers_send(mesh) ? ls_mesh_own(mesh, trained, rank) * (int64_t)sizeof(float)
                                       : 0;
}
