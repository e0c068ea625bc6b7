/* stage_split.h -- which layers of a model each stage of a pipeline has, by what they cost.
 *
 * A model's units (ls_param.unit) are the embedding, its blocks, and the final norm with the head;
 * a stage is a run of them. They are cut so that the slowest stage, which sets the pace, is as fast
 * as it can be. A tied embedding lies on the first stage and on the last one. */
#pragma once
#include "model/model.h"

LS_C_BEGIN

typedef struct ls_stage {
    int64_t unit, units;              /* the first, and how many */
    double forward, backward, weight; /* operations for one micro-batch; weight: the part of
                                       * backward that its second half makes (model/pass.h):
                                       * gradients of weights of blocks */
    int64_t elements;                 /* parameters that it holds, a copy of a tied embedding too */
    int64_t trained;                  /* of these */
    int64_t blocks;                   /* of its units */
    bool copies;                      /* it is last and holds a copy of the first one's embedding */
} ls_stage;

/* Cut n pieces of these costs, in order, into `runs` runs, none of them empty, so that the largest
 * sum is the smallest possible one; among such cuts the most even (least sum of squares).
 * first_out [runs + 1]: where each begins, and n. 1 <= runs <= n. */
ls_status ls_stage_split_split(const double *costs, int n, int runs, int *first_out);

/* The stages of a model for micro-batches of B sequences of T tokens. stages_out [n]. LS_EUSAGE:
 * the model has fewer layers than that. */
ls_status ls_stage_split_plan(const ls_model *model, int n, int64_t B, int64_t T,
                              ls_stage *stages_out);

LS_C_END
