/* kernel.h -- the one table of operations that a model is made of.
 *
 * A row takes a stream and a struct of device pointers and shapes, queues its work and returns; it
 * has no result for the host, reads no host memory after it returns, and reports failure through
 * the stream. Numbers that change from step to step (dropout key, learning rate, clip factor, loss
 * scale) are read from device memory (ls_step_state), so that a GPU can replay a recorded graph.
 * Rows are as large as a GPU can fuse: bias, activation and residual add belong to the product,
 * dropout (with its residual add) to the norm, the loss to the head.
 *
 * Shapes. B sequences of T tokens, M = B * T rows; C width; H query heads and Hkv key/value heads
 * of D; F inner MLP width; V vocabulary. All tensors are dense and row-major unless a stride is
 * given. Activations and the parameters that a row reads have type `type` (LS_F32 or LS_BF16, in
 * tables that know it LS_F16);
 * gradients of parameters, statistics and losses are fp32.
 *
 * Leaves. A call covers `leaves` leaves of M / leaves rows each. Rows that sum over tokens
 * (gradients of parameters) must give the sum over the perfect binary tree over leaves: leaf sums
 * first, each in an order that depends only on the rows of that leaf, then pairs, then pairs of
 * pairs; a missing right sibling is skipped. leaves = 1 sums all rows in one go (fast mode). With
 * `accumulate`, the result is added to what is there: there + sum.
 *
 * Determinism. For given arguments the bits of every result are the same for any number of threads
 * and for the avx512, avx2 and generic versions: each output element is one chain of fma over fixed
 * blocks, reductions go over 16 virtual lanes and a fixed tree, exp and tanh are ours.
 * Products of two bf16 matrices by AVX512_BF16 or AMX have bits of their own: cpu/dot/dot.h. */
#pragma once
#include "base/dtype.h"
#include "device/device.h"
#include "kernel/preference.h"
#include "kernel/rounding.h"

LS_C_BEGIN

/* Device memory, written by the host between calls. */
typedef struct ls_step_state {
    uint32_t key[2];    /* dropout key, from (seed, step) */
    uint32_t first_seq; /* global number of the call's first sequence inside the batch */
    float grad_scale;   /* d loss / d (sum of token losses): 1 / tokens of the global batch */
    float lr, beta1, beta2, eps, weight_decay;
    float bias1, bias2; /* 1 - beta^t of this step */
    float clip;         /* largest gradient norm; 0: off */
    float loss_scale;   /* gradients are this many times too large, a power of two (norm2) */
    float momentum;     /* of Muon's matrices, and of SGD */
    float gain;         /* SGD: what a gradient adds to its sum; 1, or for a share of a step less */
    float kl;           /* KTO: how far the model is from its reference, over the global batch */
    bool nesterov;      /* SGD */
} ls_step_state;

/* Where ranks share sequences (model/pass_context.c), a rank has a piece of each: two chunks of
 * `chunk` positions that begin at first[0] and first[1], one behind the other in its tensors. chunk
 * 0: it has whole sequences. */
typedef struct ls_piece {
    int64_t chunk, first[2];
} ls_piece;

/* The position in its sequence of token t of a piece. */
static inline int64_t ls_piece_position(const ls_piece *piece, int64_t t)
{
    return piece->chunk > 0 ? piece->first[t >= piece->chunk] + t % piece->chunk : t;
}

/* Dropout of probability p (0: off). An element is kept when the uniform value of Philox with key
 * state->key is >= p, and kept values are divided by 1 - p. Counter of element (row, column) of an
 * [M, C] tensor: {column / 4, row % T, first_seq + row / T, site << 16}, word column % 4. Counter
 * of attention weight (b, h, t, s): {s / 4, t, first_seq + b, site << 16 | (h + 1)}, word s % 4.
 * Where a rank has some rows or heads only, both are counted in the whole: row + first_row, h +
 * first_head; and where it has pieces of sequences, the position in the sequence stands for row %
 * T. */
typedef struct ls_dropout {
    float p;
    uint32_t site; /* unique per place in the model, below 65536 */
    const ls_step_state *state;
    int64_t first_row;   /* rows of the call before the tensor's first one */
    uint32_t first_head; /* heads of the model before the tensor's first one */
    ls_piece piece;      /* of an [M, C] tensor */
} ls_dropout;

typedef enum ls_act { LS_ACT_NONE, LS_ACT_GELU, LS_ACT_SILU } ls_act; /* GELU: the tanh form */

/* How a weight of K inputs and N outputs lies in memory. */
typedef enum ls_layout {
    LS_LAYOUT_KN, /* [inputs, outputs], as GPT-2's Conv1D stores it */
    LS_LAYOUT_NK  /* [outputs, inputs], as Linear stores it */
} ls_layout;

/* A product in fp8: x and W rounded to e4m3, gradients to e5m2, each with one scale for the tensor,
 * which its largest magnitude gives; sums in fp32, the result of `type`. The largest magnitudes lie
 * in cells of device memory: code that makes a tensor may leave its own there (y_max, dx_max
 * below), which saves a pass. A cell is 0 before. Only tables with fp8; a row that cannot (M, N or
 * K no multiple of 16, several leaves) computes in `type`. */
typedef struct ls_fp8 {
    float *x_max, *dy_max;  /* x_max NULL: not in fp8 */
    bool x_known, dy_known; /* the cell has been filled; else the row does it */
    bool dy_kept;           /* linear_bwd_x: scratch holds dy as linear_bwd_w left it */
    void *scratch;
} ls_fp8;

/* Products of many weights at once, for rows that lie by group: rows first[g * leaves] to first[(g
 * + 1) * leaves] - 1 are group g's, leaf by leaf, and its own weight (layout NK) is what they are
 * multiplied by; all M rows belong to groups. `first` is read when the work is done, so that no
 * kernel has to wait for it; where the pointers are, when it is queued. Without bias, activation,
 * z, add and fp8, and linear_fwd and linear_bwd_x without accumulate. Only tables with
 * `experts`. */
typedef struct ls_groups {
    const int32_t *first; /* [n * leaves + 1], device memory */
    const void *const *w; /* n of them; linear_fwd, linear_bwd_x */
    float *const *dw;     /* linear_bwd_w; NULL: none is wanted */
    int64_t step;         /* bytes from one of these pointers to the next */
    int64_t n, leaves;
    float *stack; /* linear_bwd_w of several leaves: ls_experts_stack() floats, device memory */
    int64_t stack_floats;
} ls_groups;

/* linear_fwd: y = act(x W + b). z, where given, keeps the value before the activation. With
 * add: y = add + x W + b, without an activation; the residual stream. accumulate: y += x W, without
 * bias and activation. The rows of y may lie apart (ldy), so that a
 * product can go into some columns of a wider tensor. */
typedef struct ls_linear_fwd {
    ls_dtype type;
    const void *x;      /* [M, K] */
    const void *w;      /* by layout */
    const void *packed; /* w as the pack row laid it out for this, or NULL */
    const void *b;      /* [N] or NULL */
    void *y;            /* [M, N] */
    void *z;            /* [M, N] or NULL; needed by the activation's gradient */
    const void *add;    /* [M, N] or NULL; may equal y */
    int64_t M, N, K;
    int64_t ldy; /* elements from row to row of y; 0: N. Anything else only without z and add */
    ls_layout layout;
    ls_act act;
    bool accumulate;
    bool tf32; /* fp32 only: what is multiplied may be rounded to 10 bits of fraction */
    ls_fp8 fp8;
    /* NULL: one weight for all rows */
    const ls_groups *groups;
} ls_linear_fwd;

/* linear_bwd_x: dx = (dy W^T) * act'(z), where act and z belong to the layer *below*, whose output
 * is this layer's input; act NONE leaves the factor out. */
typedef struct ls_linear_bwd_x {
    ls_dtype type;
    const void *dy; /* [M, N] */
    const void *w;
    const void *packed; /* w as the pack row laid it out for this, or NULL */
    const void *z;      /* [M, K] or NULL */
    void *dx;           /* [M, K] */
    int64_t M, N, K;
    int64_t ldy; /* elements from row to row of dy; 0: N */
    ls_layout layout;
    ls_act act;
    bool accumulate; /* dx += (only with act NONE) */
    bool tf32;       /* as in ls_linear_fwd */
    ls_fp8 fp8;      /* x_max is not read, but says that it is to be fp8 */
    /* NULL: one weight for all rows */
    const ls_groups *groups;
} ls_linear_bwd_x;

/* pack: a weight in the order in which products read it, so that rows which get it need not make
 * that order in every call. Wherever w is read, packed must hold the same values; the product then
 * has the same bits. Not every table has this row: see pack_bytes. */
typedef enum ls_pack_use {
    LS_PACK_FORWARD, /* linear_fwd; the head's logits (K = C, N = V, layout NK) */
    LS_PACK_BACK,    /* linear_bwd_x */
    LS_PACK_HEAD     /* the head's dh: K, N and layout as forward */
} ls_pack_use;

typedef struct ls_pack {
    ls_dtype type;
    const void *w; /* by layout */
    void *packed;  /* pack_bytes() of them, aligned to 64 bytes */
    int64_t M;     /* rows of the products that will read it */
    int64_t N, K;
    ls_layout layout;
    ls_pack_use use;
} ls_pack;

/* linear_bwd_w: dw = x^T dy in the weight's own layout, db = sum over rows of dy; tree over leaves.
 * Either may be NULL. */
typedef struct ls_linear_bwd_w {
    ls_dtype type;
    const void *x;  /* [M, K] */
    const void *dy; /* [M, N] */
    float *dw;
    float *db; /* [N] or NULL */
    int64_t M, N, K;
    int64_t ldy; /* elements from row to row of dy; 0: N */
    ls_layout layout;
    int64_t leaves;
    bool accumulate;
    bool tf32; /* as in ls_linear_fwd */
    ls_fp8 fp8;
    /* NULL: one weight for all rows */
    const ls_groups *groups;
} ls_linear_bwd_w;

/* A tensor of heads inside another tensor: element (b, t, h, d) is at p[b*batch + t*time + h*head +
 * d], strides in elements. */
typedef struct ls_heads {
    void *p;
    int64_t batch, time, head;
} ls_heads;

/* What a row makes where a norm goes over more than this rank has (ls_qkv.sums). */
typedef enum ls_qkv_part {
    LS_QKV_WHOLE, /* all of it, of heads that are here */
    LS_QKV_SUMS,  /* sums alone: of x^2, backward of dy w x rstd; nothing else is written */
    LS_QKV_APPLY  /* the rest, by sums that are those of all ranks */
} ls_qkv_part;

/* qkv_fwd: split the packed product [M, (H + 2 Hkv) D] into q, k, v; where q_norm and k_norm are
 * given, each head of q and k is first normalised (RMS over D, times the weight); then q and k are
 * turned. Pair i of position t turns (a, b) = (x[i], x[i + D/2]) into (a c - b s, b c + a s) with
 * c, s = rope[past + t][i]. q, k and v may be views of packed itself, except with norms and a
 * gradient to come, which needs the product as it was.
 * qkv_bwd: the gradient, from dq, dk, dv back to packed, which may be where they are. */
typedef struct ls_qkv {
    ls_dtype type;
    void *packed;                /* [M, (H + 2 Hkv) D]; read by fwd, written by bwd */
    ls_heads q, k, v;            /* written by fwd, read by bwd */
    const float *rope;           /* [positions, D / 2, 2]: cosine, sine; or NULL: no turning */
    int64_t past;                /* position of the first token */
    const void *q_norm, *k_norm; /* [D] each, or both NULL */
    float eps;
    float *rstd;         /* [M, H + Hkv], with norms: written by fwd unless NULL, read by bwd */
    const void *product; /* bwd with norms: what packed was in fwd */
    float *dq_norm, *dk_norm; /* bwd with norms: [D] each, or both NULL; tree over leaves */
    int64_t B, T, H, Hkv, D;
    int64_t ld;      /* elements from a row of packed, and of product, to the next; 0: side by side.
                      * On a GPU only with one head and Hkv 0: then there are queries alone, or what
                      * is like them, and k_norm and dk_norm are not used */
    int64_t leaves;  /* bwd with norms */
    bool accumulate; /* dq_norm, dk_norm */
    void *scratch;   /* bwd with norms */
    /* Norms over heads of which each of `ranks` ranks holds an equal part; on a GPU with ld only. */
    ls_qkv_part part;
    float *sums;   /* [M, H + Hkv]: written by LS_QKV_SUMS, then to be summed over the ranks */
    int64_t ranks; /* 0 counts as one */
} ls_qkv;

/* Attention of a chunk of T queries to a chunk of T keys of the same sequence, for ranks that share
 * sequences (no past). Either they are the same positions, and a query sees keys
 * up to its own; or the keys end before the queries begin. start, window and dropout go by
 * positions in the sequence. What comes out is fp32, whatever the type. Forward with `join`: o and
 * lse hold what the queries have seen of other keys, and get the outcome of both: with a and b the
 * two sums of exp, o = (a o_there + b o_new) / (a + b). A query that sees no key adds nothing.
 * Backward: lse and o (of `type`) are those over all keys, and dq, dk, dv are added to what is
 * there. */
typedef struct ls_attention_pair {
    bool on;
    bool join;
    int64_t q_first, k_first; /* position of the first query and of the first key */
    int64_t row;              /* elements from head to head of lse, and from sequence to sequence of
                               * start */
} ls_attention_pair;

/* attention_fwd: o = softmax(scale q k^T, causal) v per head; query head h reads key head
 * h / (H / Hkv). Position t sees s with first <= s <= t, where first is the largest of 0,
 * start[b][t] (where given) and t - window + 1 (where window > 0). Scores are never stored whole;
 * lse[b][h][t] keeps the natural logarithm of the sum of exp for the gradient.
 * With past > 0 the T queries are the last ones of past + T positions: k and v hold all of these,
 * query t stands at position past + t; no start and no dropout. Its bits are those of the same
 * query in a call over all positions. */
typedef struct ls_attention_fwd {
    ls_dtype type;
    ls_heads q, k, v;     /* read */
    ls_heads o;           /* written */
    float *lse;           /* [B, H, T], written; NULL: no gradient will be asked for */
    const int32_t *start; /* [B, T] or NULL: first position each token may see */
    int64_t B, T, H, Hkv, D;
    int64_t past;   /* positions of k and v before the first query */
    int64_t window; /* 0: none */
    float scale;
    ls_dropout drop;
    ls_attention_pair pair;
} ls_attention_fwd;

/* attention_bwd: dq, dk, dv from do, o, q, k, v, lse. Scratch: see ls_kernels.scratch. With
 * any_order a GPU may add to dq in any order: quicker and in less scratch, but two calls can differ
 * in the last bits. */
typedef struct ls_attention_bwd {
    ls_dtype type;
    ls_heads q, k, v, o, dout; /* read */
    ls_heads dq, dk, dv;       /* written */
    const float *lse;
    const int32_t *start;
    int64_t B, T, H, Hkv, D;
    int64_t window;
    float scale;
    bool any_order;
    ls_dropout drop;
    ls_attention_pair pair;
    void *scratch;
} ls_attention_bwd;

typedef enum ls_norm_kind { LS_NORM_LAYER, LS_NORM_RMS } ls_norm_kind;

/* norm_fwd: sum = stream + dropout(x); y = norm(sum) * w + b. Without x the stream is taken as it
 * is and sum is not written. mean and rstd ([M]) are kept for the gradient; RMS leaves mean and b
 * NULL. sum may equal stream. */
typedef struct ls_norm_fwd {
    ls_dtype type;
    ls_norm_kind kind;
    const void *stream; /* [M, C] residual stream */
    const void *x;      /* [M, C] what a block adds, or NULL */
    void *sum;          /* [M, C], or NULL when x is */
    void *y;            /* [M, C] */
    const void *w, *b;  /* [C]; b may be NULL */
    float *mean, *rstd; /* [M] */
    float *y_max;       /* a cell for the largest magnitude of y, or NULL; only tables with fp8 */
    int64_t M, C, T;
    float eps;
    ls_dropout drop;
} ls_norm_fwd;

/* norm_bwd: dsum (+)= gradient through the norm; then, where dx is given, dx = dsum through the
 * dropout that x went through. dw, db: tree over leaves, and so dx_sum, the columns of dx (of dsum
 * where there is no dx): the gradient of the bias of the layer that made x. */
typedef struct ls_norm_bwd {
    ls_dtype type;
    ls_norm_kind kind;
    const void *dy;  /* [M, C] */
    const void *sum; /* [M, C] what was normalised */
    const void *w;
    const float *mean, *rstd;
    void *dsum;       /* [M, C] gradient of the residual stream */
    bool add_to_dsum; /* dsum holds the gradient that comes from above the norm */
    void *dx;         /* [M, C] or NULL */
    float *dw, *db;   /* [C]; either may be NULL */
    float *dx_sum;    /* [C] or NULL; only for tables that norm_sums */
    float *dx_max;    /* a cell for the largest magnitude of dx (of dsum where there is no dx), or
                       * NULL; only tables with fp8 */
    int64_t M, C, T, leaves;
    bool accumulate; /* dw, db, dx_sum */
    ls_dropout drop;
    void *scratch;
} ls_norm_bwd;

/* act_fwd: y = act(x) for plain, y = act(gate) * up for gated (x is [M, 2 F]: gate, then up).
 * act_bwd: dx from dy and x. */
typedef struct ls_act_args {
    ls_dtype type;
    ls_act act;
    bool gated;
    const void *x;  /* [M, F], or [M, 2 F] when gated */
    void *y;        /* [M, F]; written by fwd, unused by bwd */
    const void *dy; /* [M, F]; bwd only */
    void *dx;       /* like x; bwd only; may equal x */
    float *max;     /* a cell for the largest magnitude of y or dx, or NULL; only tables with fp8 */
    int64_t M, F;
} ls_act_args;

/* embed_fwd: y[row] = dropout(wte[token] + wpe[past + row % T] + noise), or, where documents have a
 * `start`, from which positions count, wpe[past + row % T - start[row]]. A token outside [0, V) fails the
 * stream. The noise (kernel/noise.h) of element (row, column) has the counter of its dropout at a
 * site of its own. embed_bwd: dwte and dwpe, either may be NULL; every row of dwte is written (or added to),
 * in token order. With `vocab`, wte holds only tokens first .. first + V - 1 of this many: others
 * count as a vector of zeros, and have no gradient here. */
typedef struct ls_embed_fwd {
    ls_dtype type;
    const int32_t *tokens; /* [M] */
    const void *wte;       /* [V, C] */
    const void *wpe;       /* [past + T, C] or NULL */
    void *y;               /* [M, C] */
    int64_t M, C, T, V;
    int64_t first, vocab; /* see above; 0: wte is whole */
    int64_t past;         /* position of the first token */
    ls_piece piece;       /* whose positions count instead of row % T */
    const int32_t *start; /* [M] or NULL: the position where the document of a token begins */
    float noise;          /* largest magnitude of it; 0: none */
    ls_dropout drop;      /* with noise its state, first_row and piece are read, whatever p is */
} ls_embed_fwd;

typedef struct ls_embed_bwd {
    ls_dtype type;
    const int32_t *tokens;
    const void *dy; /* [M, C] */
    float *dwte;    /* [V, C] */
    float *dwpe;    /* [positions, C] or NULL; rows where no token stands get zero (or stay) */
    int64_t M, C, T, V, positions, leaves;
    int64_t first, vocab; /* as in ls_embed_fwd */
    ls_piece piece;
    const int32_t *start;
    bool accumulate;
    ls_dropout drop;
    void *scratch;
} ls_embed_bwd;

/* head: logits = h W^T, a chunk at a time and never whole; losses[row] = -log
 * softmax(logits)[target] (0 where target is -1); where dh is given, the gradients of grad_scale *
 * sum of losses, each times its weight: dh = dlogits W, dw = dlogits^T h with the tree over leaves.
 * With one leaf and accumulate, a leaf whose logits would be too large is added to dw in parts.
 *
 * Where other ranks have the other tokens, the row is called twice, for rows whose logits fit into
 * memory at a time and with one leaf. LS_HEAD_SCORES leaves the logits in
 * scratch, and three numbers of each row in scores: the largest logit, the sum of exp(logit -
 * largest), and the target's logit, 0 where another rank has it. LS_HEAD_JOIN reads the scores of
 * all ranks and what is in scratch, and does the rest: losses of the whole vocabulary, and this
 * rank's share of dh, which is to be summed over ranks. dh is given in both calls or in none. */
typedef enum ls_head_part { LS_HEAD_WHOLE, LS_HEAD_SCORES, LS_HEAD_JOIN } ls_head_part;
typedef struct ls_head {
    ls_dtype type;
    const void *h;              /* [M, C] */
    const void *w;              /* [V, C] */
    const void *packed;         /* w as the pack row laid it out for logits, or NULL */
    const void *packed_back;    /* and for dh */
    const int32_t *targets;     /* [M], -1: no loss */
    float *losses;              /* [M] */
    const float *weights;       /* [M]: of each row's loss in the gradients; NULL: 1 */
    void *dh;                   /* [M, C] or NULL: loss only */
    float *dw;                  /* [V, C] or NULL */
    const ls_step_state *state; /* grad_scale; may be NULL when dh is */
    int64_t M, C, V, leaves;
    ls_head_part part;
    int64_t first, vocab; /* parts: w holds tokens first .. first + V - 1 of this many */
    float *scores;        /* SCORES: [M, 3] */
    const float *all;     /* JOIN: those of each rank, `rank_stride` floats from rank to rank */
    int64_t ranks, rank, rank_stride;
    bool accumulate; /* dw */
    bool tf32;       /* as in ls_linear_fwd */
    void *scratch;
} ls_head;

/* preference: B sequences that each hold two answers to one prompt (preference.h has the formulas).
 * Out of the losses of their tokens it makes what each sequence adds to the loss, the numbers that
 * are reported, and the weight of each token's loss in the gradient.
 *
 * The answers are isolated documents: start is 0 in the first, and not in the second. */
typedef struct ls_preference {
    ls_preference_objective objective;
    const float *losses;                       /* [B, T]: of the head; 0 where the target is -1 */
    const int32_t *targets;                    /* [B, T], -1: no loss */
    const int32_t *start;                      /* [B, T] */
    const ls_preference_reference *references; /* [B]; NULL: all are zero */
    const ls_step_state *state;                /* kl; NULL: 0 */
    float *weights;                            /* [B, T] */
    float *numbers; /* [LS_PREFERENCE_NUMBERS], each B floats, `stride` apart */
    int64_t B, T, stride;
} ls_preference;

/* sum: out[g] = sum of segment g of n/segments elements, in double. */
typedef struct ls_sum {
    const float *x; /* [n] */
    double *out;    /* [segments] */
    int64_t n, segments;
} ls_sum;

/* add: out = a + b, element by element; out may equal a or b. One node of the tree over leaves. */
typedef struct ls_add {
    const float *a, *b;
    float *out;
    int64_t n;
} ls_add;

/* scale: x = value * x. */
typedef struct ls_scale {
    float *x;
    float value;
    int64_t n;
} ls_scale;

/* cast: to_type <- from_type, rounded to nearest even. F32, BF16 and F16. From F32 to BF16 also as
 * `rounding` says. */
typedef struct ls_cast {
    ls_dtype from_type, to_type;
    const void *from;
    void *to;
    int64_t n;
    ls_rounding rounding;
} ls_cast;

/* fill: x = value. */
typedef struct ls_fill {
    float *x;
    float value;
    int64_t n;
} ls_fill;

/* norm2: partials[i] = sum of squares of block i of LS_NORM_BLOCK elements (the last may be short),
 * then result: the root of the sum over the perfect binary tree over blocks, the clip factor, and
 * the first block whose sum of squares is not finite in fp32 (-1: none). With
 * `scaled`, x is state->loss_scale times the gradient: the norm is the gradient's own, and the
 * factor takes the scale away. */
enum { LS_NORM_BLOCK = 16384 };
typedef struct ls_norm_result {
    float norm;
    float factor;      /* what gradients are multiplied by: min(1, clip / norm), 1 when clip is 0;
                        * divided by the loss scale */
    int64_t bad_block; /* first block with NaN, Inf or values beyond 1e19, or -1 */
} ls_norm_result;
typedef enum ls_norm_part {
    LS_NORM_WHOLE,
    LS_NORM_SQUARES, /* only the partials of x; result is left alone */
    LS_NORM_JOIN     /* only the result, of partials that are there; x is not read */
} ls_norm_part;
typedef struct ls_norm2 {
    const float *x;
    float *partials; /* [ceil(n / LS_NORM_BLOCK)] */
    ls_norm_result *result;
    const ls_step_state *state; /* clip, loss_scale */
    int64_t n;
    ls_norm_part part;
    bool scaled;
} ls_norm2;

/* adamw: for each span, with g = grad * result->factor: m, v, then w -= lr (m^ / (sqrt(v^) + eps) +
 * decay w). Does nothing at all when result->bad_block >= 0 (the host decides what to do). lion and
 * sgd have the same arguments. */
typedef struct ls_optimizer_span {
    int64_t first, count; /* elements of m, v and grad */
    int64_t w_first; /* the same in w: parameters that are not trained have a place only there */
    float decay;     /* multiplies state->weight_decay: 0 or 1 */
    float rate;      /* multiplies state->lr */
    int64_t v_gap;   /* elements before `first` that have no place in v */
} ls_optimizer_span;
typedef struct ls_optimizer_update {
    float *w, *m, *v;
    const float *grad;
    const ls_optimizer_span *spans; /* device memory */
    int64_t n_spans;
    void *copy; /* the new weights once more, rounded to copy_type, at the places they have
                   in w: what rows of a smaller type read; or NULL */
    ls_dtype copy_type;
    ls_rounding rounding; /* of the copy */
    const ls_step_state *state;
    const ls_norm_result *result;
} ls_optimizer_update;

/* lion: the same arguments, without v: w -= lr (sign(beta1 m + (1 - beta1) g) + decay w), then m =
 * beta2 m + (1 - beta2) g (Chen et al., 2023). */

/* sgd: the same arguments, without v. With g = gain (grad * result->factor + decay w): m = momentum m
 * + g, then w -= lr m, or lr (g + momentum m) with nesterov. */

/* lamb: AdamW's direction with a step as long as the tensor asks for (You et al., 2019), in two
 * parts, between which ranks that have parts of a tensor exchange squares.
 * LS_LAMB_DIRECTION: for each piece, m and v as in adamw, grad becomes u = m^ / (sqrt(v^) + eps) +
 * decay w, and squares[number] and squares[n_squares + number] become the sums of the squares of w
 * and u, in fp32. LS_LAMB_STEP: ratios[t] = |w| / |u|, by sums in double over the perfect binary
 * tree over the tensor's pieces; 1 where either is 0, and for tensors without a ratio of their own;
 * then w -= lr ratio u. Neither does anything when result->bad_block >= 0. */
typedef struct ls_lamb_piece {
    int64_t first, count; /* elements of m and v: at most LS_NORM_BLOCK */
    int64_t w_first;      /* the same in w */
    int64_t g_first;      /* and in grad */
    int64_t number;       /* among the pieces of all tensors */
    int64_t tensor;
    float decay; /* multiplies state->weight_decay: 0 or 1 */
} ls_lamb_piece;
typedef struct ls_lamb_tensor {
    int64_t first, count; /* numbers of its pieces */
    bool adapts;          /* it has its own ratio */
} ls_lamb_tensor;
typedef enum ls_lamb_part { LS_LAMB_DIRECTION, LS_LAMB_STEP } ls_lamb_part;
typedef struct ls_lamb {
    ls_lamb_part part;
    float *w, *m, *v;
    float *grad;
    const ls_lamb_piece *pieces;   /* device memory, as all of these */
    const ls_lamb_tensor *tensors; /* all of them */
    float *squares;                /* [2, n_squares] */
    float *ratios;                 /* [n_tensors] */
    int64_t n_pieces, n_tensors, n_squares;
    int64_t n;  /* elements of all pieces together */
    void *copy; /* as in adamw */
    ls_dtype copy_type;
    ls_rounding rounding;
    const ls_step_state *state;
    const ls_norm_result *result;
} ls_lamb;

/* momentum: for each span, with g = grad * result->factor: m = momentum m + (1 - momentum) g, and
 * grad becomes g + momentum (m - g), Nesterov's look ahead. Does nothing when result->bad_block >=
 * 0. */
typedef struct ls_momentum {
    float *m, *grad;
    const ls_optimizer_span *spans; /* device memory; first is of m, w_first of grad; with count,
                                     * that is all that is read */
    int64_t n_spans;
    int64_t n; /* elements of all spans together */
    const ls_step_state *state;
    const ls_norm_result *result;
} ls_momentum;

/* muon: what stands between the products that make a matrix orthogonal, element by element.
 *   LS_MUON_TAKE   x = from                      x is dense, the rows of from lie ld apart
 *   LS_MUON_SCALE  x = x / max(result->norm, LS_MUON_EPS)
 *   LS_MUON_POLY   x = a I + b from + c x        square: rows of cols = rows, from is dense
 *   LS_MUON_STEP   w -= lr (scale x + weight_decay w)    the rows of w lie ld apart; nothing when
 *                                                        result->bad_block >= 0 */
#define LS_MUON_EPS 1e-7f
typedef enum ls_muon_part { LS_MUON_TAKE, LS_MUON_SCALE, LS_MUON_POLY, LS_MUON_STEP } ls_muon_part;
typedef struct ls_muon {
    ls_muon_part part;
    float *x;          /* [rows, cols] */
    const float *from; /* TAKE: [rows, ld]; POLY: [rows, rows] */
    float *w;          /* STEP: [rows, ld] */
    int64_t rows, cols, ld;
    float a, b, c; /* POLY */
    float scale;   /* STEP */
    void *copy;    /* STEP: w once more, at the same place, as in adamw; or NULL */
    ls_dtype copy_type;
    ls_rounding rounding;
    const ls_step_state *state;   /* STEP */
    const ls_norm_result *result; /* SCALE: of x; STEP: of the whole gradient */
} ls_muon;

/* The rows that every table has, in order: X(name in the enum, name of the function, its arguments).
 * The enum, the table, the declarations of every implementation and the profile are made of this
 * list; pack, which a table may lack, stands behind it. */
#define LS_KERNEL_ROWS(X)                             \
    X(LINEAR_FWD, linear_fwd, ls_linear_fwd)          \
    X(LINEAR_BWD_X, linear_bwd_x, ls_linear_bwd_x)    \
    X(LINEAR_BWD_W, linear_bwd_w, ls_linear_bwd_w)    \
    X(QKV_FWD, qkv_fwd, ls_qkv)                       \
    X(QKV_BWD, qkv_bwd, ls_qkv)                       \
    X(ATTENTION_FWD, attention_fwd, ls_attention_fwd) \
    X(ATTENTION_BWD, attention_bwd, ls_attention_bwd) \
    X(NORM_FWD, norm_fwd, ls_norm_fwd)                \
    X(NORM_BWD, norm_bwd, ls_norm_bwd)                \
    X(ACT_FWD, act_fwd, ls_act_args)                  \
    X(ACT_BWD, act_bwd, ls_act_args)                  \
    X(EMBED_FWD, embed_fwd, ls_embed_fwd)             \
    X(EMBED_BWD, embed_bwd, ls_embed_bwd)             \
    X(HEAD, head, ls_head)                            \
    X(PREFERENCE, preference, ls_preference)          \
    X(SUM, sum, ls_sum)                               \
    X(ADD, add, ls_add)                               \
    X(SCALE, scale, ls_scale)                         \
    X(CAST, cast, ls_cast)                            \
    X(FILL, fill, ls_fill)                            \
    X(NORM2, norm2, ls_norm2)                         \
    X(ADAMW, adamw, ls_optimizer_update)              \
    X(LION, lion, ls_optimizer_update)                \
    X(SGD, sgd, ls_optimizer_update)                  \
    X(LAMB, lamb, ls_lamb)                            \
    X(MOMENTUM, momentum, ls_momentum)                \
    X(MUON, muon, ls_muon)

typedef enum ls_row {
#define LS_ROW_NUMBER(upper, lower, args) LS_ROW_##upper,
    LS_KERNEL_ROWS(LS_ROW_NUMBER) LS_ROW_PACK,
    LS_ROWS
#undef LS_ROW_NUMBER
} ls_row;

/* What a device brings for mixtures of experts beside its rows; see experts.h. */
typedef struct ls_experts_table ls_experts_table;

/* One implementation of every row. */
typedef struct ls_kernels {
    const char *name; /* "reference", "generic", "avx2", "avx512", "cuda" */
    bool norm_sums;   /* norm_bwd takes dx_sum, which saves linear_bwd_w a pass over its dy */
    bool fp8;         /* linear rows know fp8 (on devices that do: ls_device_info) */
    bool f16;         /* rows know LS_F16 */
#define LS_ROW_FUNCTION(upper, lower, args) void (*lower)(ls_stream * stream, const args *a);
    LS_KERNEL_ROWS(LS_ROW_FUNCTION)
#undef LS_ROW_FUNCTION
    void (*pack)(ls_stream *stream, const ls_pack *a); /* NULL where pack_bytes is */
    /* Bytes that the `scratch` of a row must hold for these arguments (whose pointers are not read)
     * on a device of this many threads; 0 for rows without one. Enough also for fewer leaves of as
     * many rows. With several leaves `accumulate` counts; with one it does not. */
    int64_t (*scratch)(ls_row row, const void *args, int threads);
    /* Bytes of a packed weight, whose pointers are not read; 0 when products of M rows do not read
     * one. NULL: this table reads weights as they are. The order belongs to this table, and in bf16
     * to the way that products of pairs were set to when it was made (cpu/dot/dot.h). */
    int64_t (*pack_bytes)(const ls_pack *a);
    /* On a GPU; its linear rows know groups. NULL: experts.c does it all, by rows of one weight. */
    const ls_experts_table *experts;
} ls_kernels;

/* What a row promises, for tests, docs and bench. */
typedef struct ls_kernel_row {
    ls_row row;
    const char *name;
    const char *formula;
    double tolerance;   /* of |got - reference| / (1 + |reference|), fp32 */
    const char *reason; /* for that tolerance */
} ls_kernel_row;
extern const ls_kernel_row ls_kernel_rows[LS_ROWS];

/* The implementation of that name for this device; "auto" takes the fastest this CPU can run.
 * LS_EUSAGE when the CPU lacks the instruction set, with the reason. */
ls_status ls_kernel_pick(const char *name, const ls_kernels **kernels_out);

/* The table for a device: on the CPU as ls_kernel_pick(), on a GPU the one that its plugin brought,
 * whose name is the device's kind ("cuda"); name must then be that or "auto". */
ls_status ls_kernel_for(const ls_device *device, const char *name, const ls_kernels **kernels_out);

/* How CPUs multiply two bf16 matrices: the ways differ in the last bits (cpu/dot/dot.h). Instruction
 * sets alone change no bit. */
typedef enum ls_bf16_way {
    LS_BF16_WIDENED, /* to fp32: every table can */
    LS_BF16_AVX512,  /* AVX512_BF16, */
    LS_BF16_AMX,     /* AMX, or emulations of these, which have the same bits */
    LS_BF16_WAYS
} ls_bf16_way;

/* The way that a table takes in this process; whether LINESHAFT_BF16 and this CPU leave it another
 * one; and take that one from here on, even when kernels are picked again. */
ls_bf16_way ls_kernel_bf16(const ls_kernels *kernels);
bool ls_kernel_bf16_has(const ls_kernels *kernels, ls_bf16_way way);
ls_status ls_kernel_bf16_take(const ls_kernels *kernels, ls_bf16_way way);

/* A number made of the sizes of all arguments: a plugin built against other ones is refused. */
static inline uint64_t ls_kernel_stamp(void)
{
    const size_t sizes[] = {sizeof(ls_kernels),
                            sizeof(ls_step_state),
                            sizeof(ls_linear_fwd),
                            sizeof(ls_linear_bwd_x),
                            sizeof(ls_linear_bwd_w),
                            sizeof(ls_qkv),
                            sizeof(ls_attention_fwd),
                            sizeof(ls_attention_bwd),
                            sizeof(ls_norm_fwd),
                            sizeof(ls_norm_bwd),
                            sizeof(ls_act_args),
                            sizeof(ls_embed_fwd),
                            sizeof(ls_embed_bwd),
                            sizeof(ls_head),
                            sizeof(ls_preference),
                            sizeof(ls_norm_result),
                            sizeof(ls_lamb_piece),
                            sizeof(ls_lamb_tensor),
                            sizeof(ls_lamb),
                            sizeof(ls_optimizer_span),
                            sizeof(ls_optimizer_update),
                            sizeof(ls_momentum),
                            sizeof(ls_muon),
                            sizeof(ls_pack),
                            LS_ROWS + 256 * sizeof(ls_groups)};
    uint64_t stamp = 0;

    for (size_t i = 0; i < LS_COUNT(sizes); i++)
        stamp = stamp * 1000003u + sizes[i];
    return stamp;
}

/* All usable implementations, best first; returns how many. Tests compare them with each other. */
int ls_kernel_list(const ls_kernels **list_out, int most);

LS_C_END
