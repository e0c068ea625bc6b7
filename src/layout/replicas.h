/* replicas.h -- which ranks have the same part of a state, and which go on only together.
 *
 * Where ranks have a model together (mesh.pp, mesh.tp, mesh.ep) each has a part of weights and
 * moments. Its kin are the ranks that have the same part: those of the same post, the same place in
 * a team and the same experts. Where equals divide what they update (mesh.zero) nobody has kin.
 *
 *     8 ranks, mesh.pp: 2, mesh.tp: 2      rank   0 1 2 3 4 5 6 7
 *                                          part   0 1 0 1 2 3 2 3
 *     6 ranks, mesh.ep: 2                  rank   0 1 2 3 4 5
 *                                          part   0 1 0 1 0 1      experts, and everything else
 *     8 ranks, mesh.ep: 2, mesh.tp: 2      rank   0 1 2 3 4 5 6 7
 *                                          part   0 1 2 3 0 1 2 3
 *
 * Ranks that share sequences (mesh.cp) are kin of each other: a ring is of the same post, place and
 * experts. But it needs all of its places.
 *
 *     8 ranks, mesh.cp: 2, mesh.tp: 2      rank   0 1 2 3 4 5 6 7     rings 0 2, 1 3, 4 6, 5 7
 *                                          part   0 1 0 1 0 1 0 1
 *
 * Pure arithmetic. */
#pragma once
#include "layout/mesh.h"

LS_C_BEGIN

/* Ranks that have a model or its sequences together: a run goes on with a multiple of so many.
 * Experts are divided by ranks of a ring too, so these two count once as far as they agree. */
int ls_replicas_unit(const ls_run *run);

/* Whether ranks have parts of the model; and whether who has which is known here, so that memory
 * of others may serve when one dies: not where, but by the lines of a pipeline, weights or
 * gradients of such parts are divided once more, or by groups. Then all load a checkpoint. */
bool ls_replicas_divides(const ls_run *run);
bool ls_replicas_knows(const ls_run *run);

/* How many parts there are, and which one a rank has. */
int ls_replicas_parts(const ls_mesh *mesh);
int ls_replicas_part(const ls_mesh *mesh, int rank);

LS_C_END
