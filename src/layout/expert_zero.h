/* expert_zero.h -- what a rank updates where ranks divide experts (mesh.ep) and ZeRO divides the update.
 *
 * Equals (layout/mesh.h) divide all that they have, bucket by bucket. Of what one of them owns
 * then, those that divide experts have everything but experts alike, at the same elements: each run
 * of it is divided once more, among them. So who has an expert's moments are equals, each some of
 * them, and of everything else all ranks.
 *
 *     4 ranks, mesh.ep: 2; d: elements of everything else, x: of experts; one bucket
 *
 *     elements           d d d d x x x x   d d d d x x x x
 *     of equal           0 0 0 0 0 0 0 0   1 1 1 1 1 1 1 1
 *     of far rank        0 0 1 1 both      0 0 1 1 both        experts are others on each far rank
 *
 * In a pipeline lines divide their chunks (stage_plan.h), and nothing is divided once more. Pure. */
#pragma once
#include "model/model.h"
#include "layout/mesh.h"

LS_C_BEGIN

/* Whether it is so. equals: NULL where there are none. */
bool ls_expert_zero_divides(const ls_run *run, const ls_model *model, const ls_mesh *replicas);

/* One part after the other that an equal with this model's far rank updates, ascending, and packed
 * one behind the other; *walk is zero at first. false: there are no more. */
typedef struct ls_expert_zero_walk {
    int bucket;
    int64_t done;   /* elements of the bucket's part that were looked at */
    int64_t packed; /* elements of the parts so far */
} ls_expert_zero_walk;
bool ls_expert_zero_next(const ls_model *model, const ls_mesh *replicas, int rank,
                         ls_expert_zero_walk *walk, ls_mesh_part *part_out);

/* All of them: at least one, which may be empty. parts_out may be NULL. Returns how many. */
int ls_expert_zero_parts(const ls_model *model, const ls_mesh *replicas, int rank,
                         ls_mesh_part *parts_out);

/* Elements that the rank of the mesh updates. */
int64_t ls_expert_zero_own(const ls_model *model, const ls_mesh *replicas);

LS_C_END
