/* kin.h -- which ranks have the same part of a state, and which go on only together.
 *
 * Where ranks have a model together (mesh.pp, mesh.tp, mesh.ep) each has a part of weights and
 * moments. Its kin are the ranks that have the same part: those of the same post and place in other
 * lines and teams. Where lines divide what they update (mesh.zero with mesh.pp) nobody has kin.
 *
 *     8 ranks, mesh.pp: 2, mesh.tp: 2      rank   0 1 2 3 4 5 6 7
 *                                          part   0 1 0 1 2 3 2 3
 *     6 ranks, mesh.ep: 2                  rank   0 1 2 3 4 5
 *                                          part   0 1 0 1 0 1      experts, and everything else
 *
 * Ranks that share sequences (mesh.cp) have everything each, but a ring needs all of its places.
 *
 * Pure arithmetic. */
#pragma once
#include "parallel/mesh.h"

LS_C_BEGIN

/* Ranks that have a model or its sequences together: a run goes on with a multiple of so many. */
int ls_kin_unit(const ls_run *run);

/* Whether ranks have parts of the model; and whether it is known here who has which: of the widths
 * that lie side by side (pp and tp, cp, ep) one may be above 1, and lines of a pipeline divide what
 * they update (mesh.zero 1) at most. */
bool ls_kin_divides(const ls_run *run);
bool ls_kin_knows(const ls_run *run);

/* How many parts there are, and which one a rank has. */
int ls_kin_parts(const ls_mesh *mesh);
int ls_kin_part(const ls_mesh *mesh, int rank);

LS_C_END
