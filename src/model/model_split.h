/* model_split.h -- one model on several ranks: which part of it each of them has.
 *
 * Tensor parallel (mesh.tp) divides heads, the MLP's inner width and the vocabulary, not the width of
 * the stream. So a rank's model is a model with fewer heads, a narrower MLP and fewer tokens, and its
 * products are plain products of smaller matrices:
 *
 *   q, k, v and the way into the MLP   by outputs: each rank makes its own heads, its own columns
 *   the two ways back to the stream    by inputs: each rank makes a part of the sum of all columns
 *   embedding and head                 by tokens
 *   norms over all heads (OLMo-2)      by heads, with a sum over ranks in between (pass_tensor.c)
 *   other norms, biases after a sum, positions, the router of experts: every rank has them whole
 *
 * Expert parallel (mesh.ep): a rank has some of the experts, and everything else; and it has tokens
 * of its own. Both together: of these experts, as of everything, it has the part of its place.
 *
 * A parameter knows its box, its place in the whole tensor: initial values, checkpoints and hashes
 * go by elements of the whole, and do not depend on the split.
 *
 * A parameter that several ranks copy gets equal gradients on all of them if each copy sees all uses.
 * Where a copy sees some uses only, its gradient is a part of a sum (`partial`), which is added up
 * once in a step. With tensor parallel these are the norms of q and k (own heads), keys and values
 * that ranks share (own queries), the router (own part of the experts), and with `sequence` the norms
 * of the stream (own rows). With expert parallel everything but the experts is such a part (own
 * tokens); experts never are, since all tokens reach them. */
#pragma once
#include "base/err.h"
#include "config/run.h"

LS_C_BEGIN

struct ls_model_shape;

/* The part of a rank. Zeroed: all of it, on one rank. */
typedef struct ls_model_split {
    int rank, ranks;       /* of those that have parts of the same tensors; */
    int ep_rank, ep_ranks; /* of those that divide experts. ranks are never 0 in a model */
    bool sequence;         /* rows of the streams between layers are divided as well */
    int64_t head;          /* the first of its query heads, */
    int64_t kv_head;       /* of its key/value heads, */
    int64_t inner;         /* of its columns of the MLP, */
    int64_t token;         /* of its tokens */
    int kv_copies; /* ranks side by side that have the same key/value head; 1 where none do */
    int64_t expert, experts; /* the first of its experts, and how many */
} ls_model_split;

/* Where a tensor lies in the whole one. */
typedef struct ls_param_box {
    int64_t shape[2]; /* of the whole */
    int dim;          /* that is divided; -1: none, it is the whole */
    int parts;        /* stretches of equal length along it, each divided alike: q, k and v in one
                       * weight of GPT-2; else 1 */
    int64_t from;     /* where this rank's piece of a stretch begins */
    int copies;       /* of `ranks` those side by side, from a multiple of it on, that have this
                       * same box, */
    bool partial;     /* and gradients that are parts of a sum */
} ls_param_box;

/* The part of split->rank and split->ep_rank: makes *shape, the shape of the whole, that of the
 * part, and fills in the rest of *split. LS_EUSAGE: it cannot be divided, with the reason. */
ls_status ls_model_split_make(ls_model_split *split, const ls_run *run,
                              struct ls_model_shape *shape);

/* The element of the whole tensor that is element `at` of a tensor of this shape in its box, and
 * how many from there on lie side by side in both. */
int64_t ls_param_box_whole(const ls_param_box *box, const int64_t shape[2], int64_t at,
                           int64_t *run_out);

LS_C_END
