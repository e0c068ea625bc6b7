/* optim.h -- what the optimizer of a run keeps for each parameter, and what it works in.
 *
 * All optimizers have a first moment of every trained parameter. AdamW and LAMB have a second one
 * as well; Muon has none for the matrices of blocks, which are most of a model, so the second
 * moments of the others lie close together (each begins on a multiple of LS_PARAM_ALIGN). Where
 * ranks divide the moments, each keeps those of its part in the order of the gradients, gaps
 * included. Pure arithmetic. */
#pragma once
#include "config/run.h"
#include "model/model.h"

LS_C_BEGIN

/* Whether Muon updates this parameter: a trained matrix of a block. */
bool ls_optim_is_matrix(const ls_run *run, const ls_param *p);

/* Elements of the second moments where one rank has all of them. */
int64_t ls_optim_seconds(const ls_run *run, const ls_model *model);

/* Element of parameter i there; -1: it has none. */
int64_t ls_optim_second(const ls_run *run, const ls_model *model, int i);

/* What an optimizer needs beside the moments; 0 bytes for AdamW. */
typedef struct ls_optim_work {
    int64_t pieces, tensors; /* lamb: of all parameters, whoever updates them */
    int64_t matrix, square;  /* muon: elements of the largest matrix, and of the largest square */
    int64_t bytes;
} ls_optim_work;
ls_optim_work ls_optim_work_of(const ls_run *run, const ls_model *model);

LS_C_END
