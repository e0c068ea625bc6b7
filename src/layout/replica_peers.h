/* replica_peers.h -- who keeps a second copy of what a rank has alone.
 *
 * With ZeRO a rank has moments (and with stage 3 weights) that nobody else has. Its buddy, another
 * rank, keeps the same parts in its own memory: it hears the reduced gradient of them in every step
 * and makes the same update (of LAMB and Muon the moments; weights come from all). The rank that a
 * buddy keeps them for is its ward. Buddies are the ranks shifted by one number, the same for all,
 * so that everybody has one buddy and one ward; of all numbers the first with which fewest buddies
 * share a machine with their ward.
 *
 *     4 ranks on one node           buddy of 0 1 2 3 is 1 2 3 0
 *     ranks 0 1 | 2 3 on two nodes  buddy of 0 1 2 3 is 2 3 0 1
 *
 * With a pipeline (mesh.pp) the ranks of a post are such ranks, by their lines (layout/stage_plan.h); in
 * teams without one (mesh.tp, mesh.ep) those that have the same part (layout/replica_moments.h). With shard
 * groups (mesh.h) twins have the same parts, and nothing is sent. Pure arithmetic. */
#pragma once
#include "layout/mesh.h"

LS_C_BEGIN

/* Whether ranks of this mesh are to keep copies, into mesh->buddies. heals: somebody replaces ranks
 * that die. LS_EUSAGE: asked for (heal.buddies: on), but it would serve nothing. */
ls_status ls_replica_peers_choose(ls_mesh *mesh, const ls_run *run, bool heals);

/* Whether copies are sent: there are no twins. */
static inline bool ls_replica_peers_send(const ls_mesh *mesh)
{
    return mesh && mesh->buddies && ls_mesh_shard_groups(mesh) == 1;
}

/* Who keeps the parts of a rank; and whose parts a rank keeps. */
int ls_replica_peers_of(const ls_mesh *mesh, int rank);
int ls_replica_peers_ward(const ls_mesh *mesh, int rank);

/* Bytes that a rank sends to its buddy in a step: fp32 gradients. Before the first one it sends as
 * many for each of its moments, and with zero 3 for its weights. */
int64_t ls_replica_peers_step_bytes(const ls_mesh *mesh, int64_t trained, int rank);

LS_C_END
