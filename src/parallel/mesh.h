/* mesh.h -- how a run is spread over ranks: who takes which leaves, who owns which parameters.
 *
 * Data parallel: every rank has the whole model and takes a run of the batch's leaves, nearly equal
 * ones; a rank may have none. Parameters are divided by owner, in equal parts that begin at borders
 * of norm blocks (kernel.h), so that the squares of a block are summed by one rank. Example: 40
 * blocks, 3 ranks: 14 each, of which the last has 12 and padding. Pure arithmetic. */
#pragma once
#include "comm/ordered.h"
#include "config/run.h"

LS_C_BEGIN

typedef struct ls_mesh {
    int ranks, rank; /* 0 ranks count as one: alone */
    int zero;        /* 0: every rank updates everything; 1: each what it owns */
    int local;       /* ranks on this machine */
    bool replicas;   /* sync: local: each rank trains by itself, gradients are not exchanged */
} ls_mesh;

/* The mesh that a run asks for, on so many ranks. LS_EUSAGE: it cannot be had; why, and what can.
 */
ls_status ls_mesh_init(ls_mesh *mesh, const ls_run *run, int ranks, int rank);

static inline int ls_mesh_ranks(const ls_mesh *mesh)
{
    return mesh && mesh->ranks > 1 ? mesh->ranks : 1;
}

/* The leaves of a rank. */
ls_ordered_run ls_mesh_leaves(const ls_mesh *mesh, int64_t leaves, int rank);

/* The part of `trained` parameters that a rank owns. */
typedef struct ls_mesh_part {
    int64_t first, count; /* count: without padding, may be 0 */
    int64_t each;         /* elements of every rank's part, padding included */
} ls_mesh_part;
ls_mesh_part ls_mesh_part_of(const ls_mesh *mesh, int64_t trained, int rank);

LS_C_END
