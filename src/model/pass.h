/* pass.h -- one call of the model: forward, backward, loss, logits, over the kernel table.
 *
 * A pass owns the activations of calls of up to B sequences of up to T tokens, in one device buffer
 * whose size is known before it is allocated (ls_pass_bytes). The model is written once, here, over
 * kernel.h; it does not know on which device it runs. Everything is queued on the stream.
 *
 * A pass has a type, fp32, bf16 or fp16: that of the weights it reads, of the activations and of
 * the cache. Statistics, losses, logits and gradients of parameters are fp32 always. */
#pragma once
#include "device/device.h"
#include "model/collectives.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "model/packed_weights.h"

LS_C_BEGIN

typedef struct ls_pass ls_pass;

/* Ranks that share each sequence (pass_context.c); zeroed where each has whole ones. Where the model
 * is split, those that have the same part of it. */
typedef struct ls_pass_cp {
    int rank, ranks;
    bool gather; /* keys and values of all ranks come at once, not one after the other */
    const ls_collectives *collectives; /* borrowed: how they meet */
} ls_pass_cp;

typedef struct ls_pass_args {
    const ls_model *model;     /* borrowed for the pass's life */
    const ls_kernels *kernels; /* borrowed */
    ls_stream *stream;         /* borrowed */
    ls_dtype type;             /* LS_F32 or LS_BF16; LS_F16 where the kernels know it */
    int64_t B, T;           /* largest call; with cp_group T is what a rank has of each sequence, in
                               * two chunks, and every call has it */
    int64_t leaves;         /* most leaves of a training call */
    bool training;          /* keep what backward needs */
    bool fp8;               /* linear layers of all blocks but the first and the last multiply
                               * in fp8 (kernel.h); type is bf16 */
    bool tf32;              /* products of fp32 are made in tf32, where the kernels know it */
    bool any_order;         /* sums of the gradient may be made in any order, where that is
                               * quicker: two runs can differ in the last bits */
    ls_recompute recompute; /* what backward makes again instead of keeping it; never auto. No
                               * bit depends on it */
    int64_t
        recompute_blocks; /* this many, from the first, do that; with full the others are selective */
    int64_t unit, units;      /* the part of the model that it computes: the first unit
                               * (ls_param.unit) and how many; 0 units: all of it */
    int slots;                /* calls whose activations are kept at a time; 0 counts as one */
    int late;                 /* calls between the two halves of backward at a time (below); 0:
                               * backward is not cut */
    int64_t cache;            /* positions whose keys and values are kept between calls, so that a
                               * text can be read piece by piece; 0: none; not with training */
    ls_packed_weights *packs; /* borrowed: of the weights that calls read; NULL: none */
    const ls_collectives
        *collectives; /* borrowed: how the ranks of a split model meet; NULL where it is
                               * whole. All of them make the same calls */
    const ls_collectives
        *ep_group;       /* likewise of ranks that divide experts: all make the same number of calls
                               * (ls_pass_serve) */
    int64_t reach;       /* where experts are divided: tokens of the largest call of any rank,
                               * the same on all; less than B T: as many */
    ls_pass_cp cp_group; /* like collectives, of ranks that share sequences */
} ls_pass_args;

/* Where a sequence holds two answers to one prompt (kernel/preference.h): the loss is made of what
 * the model thinks of both. Each call works on its own sequences of these arrays. */
typedef struct ls_pass_preference {
    ls_preference_objective objective;
    const ls_preference_reference *references; /* [B] */
    float *weights;                            /* [B, T]: of each token's loss in the gradient */
    float *numbers;                            /* as of the preference row, `stride` apart */
    int64_t stride;
} ls_pass_preference;

/* One call. All pointers are device memory. */
typedef struct ls_pass_call {
    const void *w;          /* flat parameters, of the pass's type */
    const int32_t *tokens;  /* [B, T] */
    const int32_t *targets; /* [B, T], -1: no loss; NULL for logits */
    const int32_t *start;   /* [B, T] or NULL: first position each token may see, in its sequence */
    bool restart; /* learned positions count from there, as in a call of that document alone;
                             * rotary ones need not, since only differences count */
    int64_t B, T;
    int64_t past; /* positions before tokens that the cache holds; needs a cache unless 0 */
    bool dropout; /* apply the model's dropout, and noise on embeddings, keyed by state */
    const ls_step_state *state;
    float *losses;                 /* [B, T]: loss of each token */
    ls_pass_preference preference; /* objective.kind: what the loss is made of */
    float *grad;                   /* of what is trained; see ls_pass_grad_elements */
    int64_t leaves;                /* tree of sums over this many leaves; 1 in fast mode */
    bool ordered;                  /* keep the head's part of the tied gradient apart */
    bool accumulate;               /* add to grad */
    float *tied; /* ordered: the head's part of the tied gradient; NULL: behind grad's others */
    int slot;    /* that keeps this call's activations, from forward to backward */
    int late;    /* the place that keeps what the second half of its backward needs */
    /* Where the pass computes a part of the model, ls_pass_stream() of its type: the stream from
     * the part before, which stays until backward; and for backward ls_pass_border() such tensors,
     * one behind the other: the gradient from the part behind (anything, where the head is in this
     * part), in place of which that for the part before comes. */
    void *in, *dstream;
    /* Called while backward goes down the model: of this call, elements `from` and above of grad are
     * complete. From high to low, 0 at the end. NULL: not reported. */
    void (*complete)(void *context, int64_t from);
    /* Asked for before the weights of a unit of the model (ls_param.unit) are read, in forward and
     * in backward; L + 1 also stands for the head. NULL: all are there. */
    void (*need)(void *context, int64_t unit);
    /* Called while forward goes up the model: tensors below number `ready` (ls_pass_computed) that
     * were not reported before are there, some of them only until it returns. NULL: not reported. */
    void (*made)(void *context, int ready);
    void *context;
} ls_pass_call;

/* Bytes of device memory that a pass of these arguments takes (the stream may be NULL). */
int64_t ls_pass_bytes(const ls_pass_args *args, int threads);

ls_status ls_pass_open(ls_pass **pass_out, const ls_pass_args *args);
void ls_pass_close(ls_pass *pass);                  /* NULL is allowed */
ls_pass_args ls_pass_describe(const ls_pass *pass); /* what it was opened with */

/* Bytes of host memory that the largest move of a call passes through (ls_collectives_place), where the
 * pass's tensors lie on a device: of a split model; of ranks that share sequences; and of those
 * that divide experts, what comes, as much as what goes. */
int64_t ls_pass_place(const ls_pass_args *args);
int64_t ls_pass_cp_place(const ls_pass_args *args);
int64_t ls_pass_ep_place(const ls_pass_args *args);

/* Elements of a gradient buffer. In ordered mode a tied wte's two gradients, from the embedding and
 * from the head it is tied to, are summed over leaves separately: (tree of embedding parts) + (tree
 * of head parts). Otherwise the bits would depend on how leaves are grouped into calls, and later
 * on which pipeline stages hold the two ends. The head's part lies behind the flat parameters. */
int64_t ls_pass_grad_elements(const ls_model *model, bool ordered);

/* Forward up to the final norm; then the head, its loss and the whole backward. */
void ls_pass_forward(ls_pass *pass, const ls_pass_call *call);
void ls_pass_backward(ls_pass *pass, const ls_pass_call *call);

/* Backward in two halves, in a pass that has places for it (args.late): the first makes the
 * gradient for the part before, and of parameters all but the weights and biases of the blocks'
 * products; these are made by the second, when there is time, out of the activations of call->slot
 * and of what the first has left in place call->late. Together they make the bits of
 * ls_pass_backward(). The head, embeddings, norms, experts and adapters belong to the first half.
 */
void ls_pass_backward_first(ls_pass *pass, const ls_pass_call *call);
void ls_pass_backward_second(ls_pass *pass, const ls_pass_call *call);

/* Whether the second half makes the gradient of a parameter. */
bool ls_pass_is_late(const ls_model *model, const ls_param *param);

/* What a gradient between parts is made of: that of the stream, and with dropout what that leaves
 * of it for the branch that ends the part before. It is made by the norm that follows, of numbers
 * that were not rounded yet, so it cannot be made on the other side. */
int ls_pass_border(const ls_model *model);

/* Elements of a stream between parts, of a call of this many tokens: all rows, or of a split model
 * whose rows are divided this rank's share of them, as many on every rank. */
int64_t ls_pass_stream(const ls_model *model, int64_t tokens);

/* Where the pass computes a part of the model: the stream for the part behind, after forward, until
 * the slot is used again. */
const void *ls_pass_out(const ls_pass *pass, int slot, const void *in);

/* What the two report and ask for, in the same order, without computing anything: for a rank that has
 * no call while others have one. */
void ls_pass_walk(const ls_pass *pass, const ls_pass_call *call, bool backward);

/* Where experts are divided (model_split.h) all ranks make the same number of calls, each with its own tokens. A
 * rank that has no tokens while others have some calls this instead, forward and then backward (or
 * its first half): its experts serve theirs. Of the call w, grad, accumulate and slot count, and
 * what is reported and asked for, as by ls_pass_walk(). */
void ls_pass_serve(ls_pass *pass, const ls_pass_call *call, bool backward);

/* Add the head's part of the tied gradient to the embedding's, once, when the sums are complete.
 * Nothing to do where the head is not tied or not trained. */
void ls_pass_tie(ls_pass *pass, float *grad);

/* A tensor that a call computed, to be looked into when a number is not one. */
typedef struct ls_pass_tensor {
    char name[LS_PARAM_NAME]; /* of the module that made it: "transformer.h.0.attn.c_attn" */
    const void *x;            /* device memory */
    ls_dtype type;
    int64_t n;
} ls_pass_tensor;

/* Number i of what the last training forward computed, in the order of computation; false past the
 * end. Where backward recomputes, blocks share buffers: then look when `made` reports it. */
bool ls_pass_computed(const ls_pass *pass, const ls_pass_call *call, int i,
                      ls_pass_tensor *tensor_out);

/* Losses only (no dropout, no gradient); of a part of the model its forward, and losses where the
 * head is in it. */
void ls_pass_loss(ls_pass *pass, const ls_pass_call *call);

/* Logits of the whole vocabulary of token number `row` of the call. With a cache, the call's keys
 * and values are kept at positions past .. past+T-1. */
void ls_pass_logits(ls_pass *pass, const ls_pass_call *call, int64_t row, float *logits);

LS_C_END
