/* replica_moments.h -- what equals keep for each other where ranks have a model together (mesh.tp, mesh.ep)
 * and divide its moments (mesh.zero: 1), without a pipeline, which has its own way (stage_plan.h).
 *
 * Equals have the same weights, so only moments are kept twice: behind a rank's own ones lie those
 * of its ward, another equal. The shift is half of the equals: that is another machine wherever
 * none has more than half of them, side by side.
 *
 *     8 ranks, mesh.tp: 2       equals   0 2 4 6 and 1 3 5 7
 *                               ward of  0 2 4 6     is 4 6 0 2
 *
 *     moments of rank 0         own parts | room for those of rank 4
 *
 * Pure. */
#pragma once
#include "model/model.h"
#include "layout/mesh.h"

LS_C_BEGIN

/* Whether it is so. equals: NULL where there are none. */
bool ls_replica_moments_serves(const ls_model *model, const ls_mesh *replicas);

/* Whose parts an equal keeps, and who keeps its own. */
int ls_replica_moments_of(const ls_mesh *replicas, int rank);
int ls_replica_moments_buddy(const ls_mesh *replicas, int rank);

/* What an equal updates, part by part, packed as its own moments are. parts_out may be NULL.
 * Returns how many. */
int ls_replica_moments_parts(const ls_run *run, const ls_model *model, const ls_mesh *replicas,
                             int rank, ls_mesh_part *parts_out);

/* Where the ward's moments begin among this rank's, which has `own` ones; and all of them: `own`
 * where it keeps no others. The room is the same whoever the ward is. */
int64_t ls_replica_moments_place(int64_t own);
int64_t ls_replica_moments_moments(const ls_run *run, const ls_model *model,
                                   const ls_mesh *replicas, int64_t own);

LS_C_END
