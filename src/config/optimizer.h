/* optimizer.h -- the optimizers of the run file, one row of facts each.
 *
 * A row holds the facts needed by all code except the update itself: its name in the run file, how
 * many moments it keeps, what it reads of other elements, which options it has and their defaults.
 * The update is a file of optim/ with the same name (optim/optim_impl.h). */
#pragma once
#include "base/base.h"

LS_C_BEGIN

/* What the update of an element reads beside its own gradient and moments. */
typedef enum ls_optimizer_reach {
    LS_REACH_ELEMENT, /* nothing: a part of a weight is updated by itself, anywhere, more than once */
    LS_REACH_TENSOR, /* norms of its tensor: ranks with parts of one exchange sums */
    LS_REACH_MATRIX  /* the matrix of a block: one rank updates it, and all others get it */
} ls_optimizer_reach;

/* Options that not all of them read. */
enum {
    LS_READS_BETAS = 1,    /* train.beta1, train.beta2 */
    LS_READS_EPS = 2,      /* train.eps */
    LS_READS_MOMENTUM = 4, /* train.momentum */
    LS_READS_ADAMW_LR = 8, /* train.adamw_lr */
    LS_READS_NESTEROV = 16 /* train.nesterov */
};

/* X(ENUM, name, doc, facts): the table itself; doc is a clause of the reference. */
#define LS_OPTIMIZERS(X)                                                                          \
    X(ADAMW, adamw, "Adam with decoupled weight decay; it keeps two more numbers per weight",     \
      .reach = LS_REACH_ELEMENT, .moments = 2, .kinds = {"adam.m", "adam.v"},                     \
      .reads = LS_READS_BETAS | LS_READS_EPS, .lr = 1e-3, .beta2 = 0.95, .weight_decay = 0.1,     \
      .momentum = 0.95)                                                                           \
    X(LAMB, lamb,                                                                                 \
      "AdamW's direction with steps as long as each tensor's weights ask for, made for large "    \
      "batches; two more numbers per weight",                                                     \
      .reach = LS_REACH_TENSOR, .moments = 2, .kinds = {"adam.m", "adam.v"},                      \
      .reads = LS_READS_BETAS | LS_READS_EPS, .lr = 1e-3, .beta2 = 0.95, .weight_decay = 0.1,     \
      .momentum = 0.95)                                                                           \
    X(MUON, muon,                                                                                 \
      "orthogonal steps for the matrices of blocks, AdamW for the rest; one more number per "     \
      "weight of a matrix, two of the rest",                                                      \
      .reach = LS_REACH_MATRIX, .moments = 2, .kinds = {"adam.m", "adam.v"},                      \
      .matrix_kind = "muon.m",                                                                    \
      .reads = LS_READS_BETAS | LS_READS_EPS | LS_READS_MOMENTUM | LS_READS_ADAMW_LR, .lr = 1e-3, \
      .beta2 = 0.95, .weight_decay = 0.1, .momentum = 0.95)                                       \
    X(LION, lion,                                                                                 \
      "steps of one size towards the sign of a mean of gradients; one more number per "           \
      "weight",                                                                                   \
      .reach = LS_REACH_ELEMENT, .moments = 1, .kinds = {"lion.m"}, .reads = LS_READS_BETAS,      \
      .lr = 1e-4, .beta2 = 0.99, .weight_decay = 1, .momentum = 0.95)                             \
    X(SGD, sgd,                                                                                   \
      "stochastic gradient descent with momentum, as torch.optim.SGD: weight decay is part of "   \
      "the "                                                                                      \
      "gradient; one more number per weight",                                                     \
      .reach = LS_REACH_ELEMENT, .moments = 1, .kinds = {"sgd.m"},                                \
      .reads = LS_READS_MOMENTUM | LS_READS_NESTEROV, .lr = 0.1, .beta2 = 0.95, .momentum = 0.9)

#define LS_OPTIMIZER_ENUM(id, name, doc, ...) LS_OPTIMIZER_##id,
typedef enum ls_optimizer { LS_OPTIMIZERS(LS_OPTIMIZER_ENUM) LS_OPTIMIZER_COUNT } ls_optimizer;
#undef LS_OPTIMIZER_ENUM

/* Defaults that do not depend on it. */
#define LS_OPTIMIZER_BETA1 0.9
#define LS_OPTIMIZER_EPS 1e-8

enum { LS_OPTIMIZER_MOMENTS = 2 }; /* most numbers that one keeps of a parameter */

typedef struct ls_optimizer_facts {
    const char *name; /* in the run file */
    ls_optimizer_reach reach;
    int moments;                              /* of each parameter; of a matrix of a block 1 */
    const char *kinds[LS_OPTIMIZER_MOMENTS];  /* with LS_REACH_MATRIX; names in checkpoints, */
    const char *matrix_kind;                  /* that of a matrix's moment; or NULL */
    unsigned reads;                           /* LS_READS_...; defaults of train.: */
    double lr, beta2, weight_decay, momentum; /* auto of these options */
} ls_optimizer_facts;

const ls_optimizer_facts *ls_optimizer_of(ls_optimizer kind);

/* Whether parts of weights may be updated by themselves: by ranks that have some, chunk by chunk,
 * by servers, and again by a rank that has a copy. */
bool ls_optimizer_is_elementwise(ls_optimizer kind);

LS_C_END
