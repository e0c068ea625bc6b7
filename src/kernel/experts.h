/* experts.h -- a mixture of experts beside the table of rows: routing, and the MLPs of all experts.
 *
 * Every token goes to K of E experts, each an MLP of its own, and none is dropped: routed rows are
 * sorted by expert, so that an expert multiplies its rows side by side, by the rows of the table.
 *
 *   logits [M, E] -> softmax -> the K largest -> weights (divided by their sum where normalised)
 *   y = sum over choices k of weight[k] * out(act(gate(x)) * up(x)) of expert k
 *
 * Two losses keep the router useful; both count for each token like its own loss, per layer. The
 * balance loss of a sequence of n tokens is E sum over e of (choices of e in it / n) (mean of
 * softmax e) (Fedus et al., arXiv:2101.03961, and as transformers counts choices: K where all are
 * used alike). It is that of a sequence, and not of what is computed at a time, so that it does not
 * depend on leaves, calls and ranks. The z loss is the square of log sum exp of a token's logits
 * (Zoph et al., arXiv:2202.08906).
 *
 * Bits: a token's result does not depend on the tokens beside it; gradients of weights are sums
 * along the tree over leaves; choices of equal weight fall to the lower number.
 *
 * What is routed where decides the shapes of products, and the host of a GPU would have to wait to
 * know it. So there the products of all experts are one row of the table, which reads on the device
 * where the rows of each begin (ls_groups), and the rest is what the device brings in a table of
 * its own. Nothing here waits, and all of it can be recorded. */
#pragma once
#include "kernel/kernel.h"

LS_C_BEGIN

/* R = M K routed rows, by expert, then by token. */
typedef struct ls_route {
    ls_dtype type;
    const void *logits; /* [M, E] */
    float *probs;       /* [M, E]: softmax; from here on written by ls_experts_route() */
    float *lse;         /* [M] */
    float *weights;     /* [M, K], the largest first */
    int32_t *ids;       /* [M, K]: experts */
    int32_t *rows;      /* [M, K]: the routed row of each choice */
    int32_t *slots;     /* [R]: token * K + choice of each routed row */
    int32_t *first;     /* [E * leaves + 1]: where the rows of each expert begin, leaf by leaf */
    int32_t *chosen;    /* [sequences, E]: choices of each expert */
    int64_t M, E, K, leaves, sequences;
    int64_t ranks; /* that share each sequence, in pieces of as many tokens: then `chosen` must be
                    * summed over them before the losses are asked for; 0 counts as one */
    bool normalized;
} ls_route;

void ls_experts_route(ls_stream *stream, const ls_route *a);

/* dlogits [M, E], of route's type, from the gradients of weights [M, K] and of the two losses,
 * which count `balance` and `z` times a token's own. */
typedef struct ls_route_back {
    const ls_route *route;
    const float *dweights;
    float balance, z;
    const ls_step_state *state; /* grad_scale */
    void *dlogits;
} ls_route_back;

void ls_experts_route_back(ls_stream *stream, const ls_route_back *a);

/* The weights of one expert, gate and up side by side; [outputs, inputs]. */
typedef struct ls_expert {
    const void *fc;            /* [2 F, C] */
    const void *out;           /* [C, F] */
    float *dgate, *dup, *dout; /* gradients; NULL: none is wanted */
} ls_expert;

typedef struct ls_experts {
    const ls_kernels *kernels;
    const ls_route *route;
    const ls_expert *experts; /* [E] */
    ls_act act;
    int64_t C, F;
    const void *x;             /* [M, C] */
    void *xs, *zs, *acts, *ys; /* [R, C], [R, 2 F], [R, F], [R, C]: written by forward, kept for
                                * backward, which leaves gradients there */
    const void *add;           /* [M, C] or NULL: what y is added to; forward */
    void *y;                   /* [M, C]; forward */
    const void *dy;            /* [M, C]; backward, and what follows */
    void *dx;                  /* [M, C] */
    float *dweights;           /* [M, K] */
    float *stack;              /* ls_experts_stack() floats, with several leaves */
    int64_t stack_floats;      /* how many those are; on a GPU */
    bool accumulate;           /* gradients of weights */
} ls_experts;

void ls_experts_forward(ls_stream *stream, const ls_experts *a);
void ls_experts_backward(ls_stream *stream, const ls_experts *a);

/* The steps of the two, for callers that do something in between (model/pass_expert_parallel.c).
 * Forward: x to xs; xs to ys, of which the route says E, leaves and first only, and on a GPU how
 * many rows, M K; ys to y. Backward: dy to dweights and dys, in ys; dys to gradients and dxs, in
 * xs; dxs to dx. Activate: zs to acts alone. */
void ls_experts_gather(ls_stream *stream, const ls_experts *a);
void ls_experts_apply(ls_stream *stream, const ls_experts *a);
void ls_experts_activate(ls_stream *stream, const ls_experts *a);
void ls_experts_combine(ls_stream *stream, const ls_experts *a);
void ls_experts_spread(ls_stream *stream, const ls_experts *a);
void ls_experts_apply_back(ls_stream *stream, const ls_experts *a);
void ls_experts_collect(ls_stream *stream, const ls_experts *a);

/* Rows that lie by source, then by expert, to where they lie by expert, then by source; or back. */
typedef struct ls_regroup {
    const int32_t *by_source; /* [sources * experts + 1]: where each stretch begins */
    const int32_t *by_expert; /* [experts * sources + 1] */
    int64_t sources, experts;
    int64_t row_bytes;
    const void *from;
    void *to;
    bool back;
} ls_regroup;

void ls_experts_regroup(ls_stream *stream, const ls_regroup *a);

/* Floats that the sums of gradients over leaves need beside their result. */
int64_t ls_experts_stack(const ls_kernels *kernels, int64_t C, int64_t F, int64_t leaves);

/* A GPU's: the functions above of these names, but for what rows do. The same words describe them,
 * and all pointers are to device memory but those to structs. */
struct ls_experts_table {
    uint64_t stamp; /* ls_experts_stamp() */
    void (*route)(ls_stream *stream, const ls_route *a);
    void (*route_back)(ls_stream *stream, const ls_route_back *a);
    void (*gather)(ls_stream *stream, const ls_experts *a);
    void (*combine)(ls_stream *stream, const ls_experts *a);
    void (*spread)(ls_stream *stream, const ls_experts *a);
    void (*collect)(ls_stream *stream, const ls_experts *a);
    void (*regroup)(ls_stream *stream, const struct ls_regroup *a);
    int64_t (*stack)(int64_t leaves); /* as ls_experts_stack() */
};

/* As ls_kernel_stamp(). */
static inline uint64_t ls_experts_stamp(void)
{
    return (sizeof(ls_experts_table) * 1000003u + sizeof(ls_route)) * 1000003u +
           sizeof(ls_route_back) * 4099u + sizeof(ls_experts) + sizeof(ls_regroup);
}

LS_C_END
