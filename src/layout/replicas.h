/* replicas.h -- which part of the training state each rank holds, and which ranks hold it too.
 *
 * A *part* is what one rank updates: its slice of the model (mesh.pp, mesh.tp, mesh.ep), or with
 * ZeRO its share of that slice. Ranks with the same part are replicas: a part that is lost with one
 * of them is still there.
 *
 *     8 ranks, mesh.pp: 2, mesh.tp: 2      rank   0 1 2 3 4 5 6 7
 *                                          part   0 1 0 1 2 3 2 3
 *     6 ranks, mesh.ep: 2                  rank   0 1 2 3 4 5
 *                                          part   0 1 0 1 0 1      experts, and everything else
 *     8 ranks, mesh.cp: 2, mesh.tp: 2      rank   0 1 2 3 4 5 6 7
 *                                          part   0 1 0 1 0 1 0 1  sharing a sequence divides no state
 *     4 ranks, mesh.tp: 2, mesh.zero: 1    rank   0 1 2 3
 *                                          part   0 2 1 3          ZeRO: no two ranks have the same
 *     4 ranks, mesh.zero: 1, shard: 2      rank   0 1 2 3
 *                                          part   0 1 0 1          the two groups are replicas
 *
 * Where ZeRO leaves a part with one rank, its *owner*, and dead ranks are replaced, another rank of
 * those that divide, its *holder*, keeps a copy: it receives the gradient of the part in every step
 * and makes the same update. Holders are the owners shifted by one number, the same for all, so
 * every rank is the holder of one other: the shift with which the fewest copies lie on the machine
 * of their owner, or half of the ranks where machines are not known.
 *
 *     4 ranks on one node           holder of 0 1 2 3 is 1 2 3 0
 *     ranks 0 1 | 2 3 on two nodes  holder of 0 1 2 3 is 2 3 0 1
 *
 * Where ranks have slices of a model (mesh.tp, mesh.ep) and divide its moments, weights are at all
 * replicas of the slice, and copied moments lie behind a rank's own:
 *
 *     moments of rank 0             own pieces | room for those of the owner whose copy it holds
 *
 * Pipelines put them at their indices of the whole model (layout/stage_plan.h). Pure arithmetic. */
#pragma once
#include "model/model.h"
#include "layout/mesh.h"

LS_C_BEGIN

/* --- parts ------------------------------------------------------------------------------------ */

/* Ranks that share a model or its sequences: a run goes on with a multiple of this number. Ranks of
 * a cp group divide experts too, so cp and ep count once as far as they agree. */
int ls_replicas_unit(const ls_run *run);

/* Whether ranks have slices of the model; and whether this file knows which rank has which part, so that
 * the memory of others may serve when a rank dies. Not where slices are divided further than their
 * moments, but for pipelines, nor by shard groups: then all ranks load a checkpoint. */
bool ls_replicas_divides(const ls_run *run);
bool ls_replicas_knows(const ls_run *run);

/* How many parts there are, and which one a rank has. */
int ls_replicas_parts(const ls_mesh *mesh);
int ls_replicas_part(const ls_mesh *mesh, int rank);

/* The pieces of the model that a rank of those with the same slice updates, packed as its moments
 * are. pieces_out may be NULL. Returns how many. Not for pipelines. */
int ls_replicas_pieces(const ls_run *run, const ls_model *model, const ls_mesh *replicas, int rank,
                       ls_mesh_part *pieces_out);

/* --- copies at a peer ------------------------------------------------------------------------- */

/* Whether ranks of this mesh keep copies, into mesh->buddies. heals: ranks that die are replaced.
 * LS_EUSAGE: the run asks for copies (heal.buddies: on), but nothing would use them. */
ls_status ls_replicas_choose(ls_mesh *mesh, const ls_run *run, bool heals);

/* Whether copies are sent: no other shard group has the same parts. */
static inline bool ls_replicas_sends(const ls_mesh *mesh)
{
    return mesh && mesh->buddies && ls_mesh_shard_groups(mesh) == 1;
}

/* Which rank holds the copy of a rank's part; and the owner of the copy that a rank holds. */
int ls_replicas_holder(const ls_mesh *mesh, int rank);
int ls_replicas_owner(const ls_mesh *mesh, int rank);

/* Whether copied moments lie behind the own ones. replicas: the ranks with the same slice; NULL:
 * there are no others. */
bool ls_replicas_in_moments(const ls_model *model, const ls_mesh *replicas);

/* Where the copy begins among the moments of a rank that has `own` ones; and the size of both:
 * `own` where there is no copy. The room is the same whoever the owner is. */
int64_t ls_replicas_place(int64_t own);
int64_t ls_replicas_moments(const ls_run *run, const ls_model *model, const ls_mesh *replicas,
                            int64_t own);

LS_C_END
