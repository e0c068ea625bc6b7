/* kin.h -- which ranks have the same part of a state.
 *
 * Where ranks have a model together (mesh.pp, mesh.tp) each has a part of weights and moments. Its
 * kin are the ranks that have the same part: those of the same post and place in other lines and
 * teams. Where lines divide what they update (mesh.zero with mesh.pp) nobody has kin.
 *
 *     8 ranks, mesh.pp: 2, mesh.tp: 2      rank   0 1 2 3 4 5 6 7
 *                                          part   0 1 0 1 2 3 2 3
 *
 * Pure arithmetic. */
#pragma once
#include "parallel/mesh.h"

LS_C_BEGIN

/* Ranks that have a model together: without one of each part a run cannot go on. */
int ls_kin_unit(const ls_run *run);

/* How many parts there are, and which one a rank has. */
int ls_kin_parts(const ls_mesh *mesh);
int ls_kin_part(const ls_mesh *mesh, int rank);

LS_C_END
