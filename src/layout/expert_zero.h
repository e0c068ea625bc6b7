/* expert_zero.h -- what a rank updates where ranks divide experts (mesh.ep) and ZeRO divides the update.
 *
 * Replicas (layout/mesh.h) divide all that they have, bucket by bucket. The ranks that divide experts
 * own the same elements after that, but only the experts among them differ: they have everything else
 * several times. So each run of elements that are no experts is divided once more, among the ranks
 * that divide experts. An expert's moments then lie with its replicas, a part with each; those of
 * everything else with all ranks.
 *
 *     4 ranks, mesh.ep: 2; d: elements of everything else, x: of experts; one bucket
 *
 *     elements           d d d d x x x x   d d d d x x x x
 *     replica            0 0 0 0 0 0 0 0   1 1 1 1 1 1 1 1
 *     expert rank        0 0 1 1 both      0 0 1 1 both        x are other experts on each of them
 *
 * In a pipeline the pipelines divide their chunks (stage_plan.h), and nothing is divided again. */
#pragma once
#include "model/model.h"
#include "layout/mesh.h"

LS_C_BEGIN

/* Whether the update is divided so. replicas: NULL where there are none. */
bool ls_expert_zero_divides(const ls_run *run, const ls_model *model, const ls_mesh *replicas);

/* The parts that a replica with this model's experts updates, one after the other, ascending, and
 * packed one behind the other; *walk is zero at first. false: there are no more. */
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
