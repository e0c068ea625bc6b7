/* trust.h -- what a rank of a pipeline has alone, kept by a rank of another line too.
 *
 * With mesh.pp and mesh.zero the lines divide the moments of a stage, so nobody else has a rank's.
 * Where ranks that die are replaced (mesh.buddies), its buddy, the rank of the same post in another
 * line, keeps them in trust: in the same windows as its own, at their indices; the weights of the
 * stage are there anyway. In every step:
 *
 *   exchange   sums and norm are there: the gradient of the own part to the buddy, the ward's from
 *              it; only then this rank tells its loss
 *   update     the own part; then the ward's, from the same numbers: the same bits
 *
 * Who dies is replaced from its buddy (train/estate.h). Nothing happens where there is no pipeline,
 * or nothing is divided. */
#pragma once
#include "train/line.h"

LS_C_BEGIN

/* The state is there: the own moments to the buddy, the ward's from it. By all ranks. */
ls_status ls_trust_begin(ls_step *step);

/* By the step, in this order. */
ls_status ls_trust_exchange(ls_step *step);
void ls_trust_update(ls_step *step);

/* Whether a ward's moments are here; what they are of chunk i; and bytes sent to the buddy. */
bool ls_trust_holds(const ls_step *step);
ls_pipe_range ls_trust_part(const ls_step *step, int i);
int64_t ls_trust_sent(const ls_step *step); /* NULL is allowed */

LS_C_END
