/* replica_pair.h -- what a rank has alone of a model that ranks have together, kept by another one too.
 *
 * With mesh.pp, mesh.tp or mesh.ep and mesh.zero: 1, or with mesh.pp and any, ranks that have the
 * same part of the model divide its moments, so nobody else has a rank's. Where ranks that die are
 * replaced (mesh.buddies), its buddy, another one of these, keeps them in trust: in the same array
 * as its own, in a pipeline at their indices (layout/stage_plan.h), otherwise behind the own ones
 * (layout/replica_moments.h); the weights are there anyway, but with mesh.zero: 3, which has them copied too. In
 * every step:
 *
 *   exchange   sums and norm are there: the gradient of the own part to the buddy, the ward's from
 *              it; only then this rank tells its loss
 *   update     the own part; then the ward's, from the same numbers: the same bits
 *
 * Who dies is replaced from its buddy (train/replica/replica_parts.h). Nothing happens where nothing is divided in
 * this way. */
#pragma once
#include "train/step/pipeline.h"

LS_C_BEGIN

/* When it is known what the step updates, before its state is there. */
ls_status ls_replica_pair_open(ls_step *step);
void ls_replica_pair_close(ls_step *step);

/* The state is there: the own moments to the buddy, the ward's from it. By all ranks. */
ls_status ls_replica_pair_begin(ls_step *step);

/* By the step, in this order. */
ls_status ls_replica_pair_exchange(ls_step *step);
void ls_replica_pair_update(ls_step *step);

/* Whether a ward's moments are here; whose, as its distance among those who divide; what the ward
 * updates, part by part (packed: where its moments lie here), returning how many these are; and
 * bytes sent to the buddy. */
bool ls_replica_pair_holds(const ls_step *step);
int ls_replica_pair_distance(const ls_step *step);
int ls_replica_pair_parts(const ls_step *step, const ls_mesh_part **parts_out);
int64_t ls_replica_pair_sent(const ls_step *step); /* NULL is allowed */

LS_C_END
