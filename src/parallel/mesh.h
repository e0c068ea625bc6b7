/* mesh.h -- how a run is spread over ranks: who takes which leaves, who owns which parameters.
 *
 * Data parallel: every rank has the whole model and takes a run of the batch's leaves: nearly equal
 * ones, or by weights, so that the rank that ends last ends as early as whole leaves allow. A rank
 * may have none. Example: 24 leaves, weights 1 1 0.5: 10, 10 and 4. Parameters are divided by
 * owner, in equal parts that begin at borders of norm blocks (kernel.h), so that the squares of a
 * block are summed by one rank. Example: 40 blocks, 3 ranks: 14 each, of which the last has 12 and
 * padding. Pure arithmetic. */
#pragma once
#include "comm/ordered.h"
#include "config/run.h"

LS_C_BEGIN

typedef struct ls_mesh {
    int ranks, rank; /* 0 ranks count as one: alone */
    int zero;        /* 0: every rank updates everything; 1: each what it owns */
    int local;       /* ranks on this machine */
    /* Leaves in a second, of each rank, up to a factor; borrowed; NULL: equal. */
    const double *weights;
    /* The weights change while the run goes on: no rank has more than twice an equal share, and
     * each keeps a leaf while there are enough, so that its speed stays known. */
    bool balance;
} ls_mesh;

enum { LS_MESH_RANKS = 4096 }; /* at most */

/* The mesh that a run asks for, on so many ranks. LS_EUSAGE: it cannot be had; why, and what can.
 */
ls_status ls_mesh_init(ls_mesh *mesh, const ls_run *run, int ranks, int rank);

static inline int ls_mesh_ranks(const ls_mesh *mesh)
{
    return mesh && mesh->ranks > 1 ? mesh->ranks : 1;
}

/* The leaves of all ranks, or of one. */
void ls_mesh_split(const ls_mesh *mesh, int64_t leaves, ls_ordered_run *runs_out);
ls_ordered_run ls_mesh_leaves(const ls_mesh *mesh, int64_t leaves, int rank);

/* The most leaves that a rank has with any weights, where these may change; else as it has. */
int64_t ls_mesh_most(const ls_mesh *mesh, int64_t leaves, int rank);

/* The part of `trained` parameters that a rank owns. */
typedef struct ls_mesh_part {
    int64_t first, count; /* count: without padding, may be 0 */
    int64_t each;         /* elements of every rank's part, padding included */
} ls_mesh_part;
ls_mesh_part ls_mesh_part_of(const ls_mesh *mesh, int64_t trained, int rank);

LS_C_END
