/* pass_impl.h -- what the files of the pass share; for the model room only. */
#pragma once
#include "kernel/experts.h"
#include "model/pass.h"

/* Where dropout happens; block l uses 3 l + these. */
enum { SITE_EMBED = 0, SITE_ATTENTION = 1, SITE_PROJ = 2, SITE_OUT = 3 };

/* Where the own rows for each expert begin, and where those do that have come (pass_expert_parallel.c). */
typedef struct ls_pass_tables {
    int32_t *first, *by_source, *by_expert, *first_here;
} ls_pass_tables;

/* What a mixture of experts keeps beside z and act, which then hold routed rows. Where experts are
 * divided, z, act and xs hold the rows that have come, ys those that have come back. */
typedef struct ls_pass_experts {
    void *logits, *xs, *ys; /* of the pass's type */
    float *probs, *lse, *weights;
    int32_t *ids, *rows, *slots, *first, *chosen;
    int32_t *by_source, *by_expert,
        *first_here;     /* of rows that have come (pass_expert_parallel.c) */
    ls_pass_tables host; /* these and first as the host reads them: the same, or on a device with a
                          * memory of its own others */
} ls_pass_experts;

/* Rows on their way to experts of other ranks, and how many. */
typedef struct ls_pass_ep_buffers {
    void *away;          /* own rows, by expert */
    void *come_rows;     /* by source */
    void *grouped;       /* by expert */
    int64_t *elements;   /* [2][ranks]: of own rows for each rank, and of those from it */
    int32_t *own, *come; /* rows of each expert: own ones, [E]; [ranks][experts] */
} ls_pass_ep_buffers;

/* What one block computes: of the pass's type, but for the statistics. */
/* Of a layer with DoRA, N outputs: what it makes before lengths count, [M, N], and the lengths of its
 * outputs, [N] each (kernel/dora.h). */
typedef struct ls_pass_dora {
    void *z;
    float *factor, *inverse;
} ls_pass_dora;

typedef struct ls_pass_buffers {
    void *y1, *qkv, *turned, *att, *mid, *y2, *z, *act, *next;
    void *end1, *end2; /* with norms behind the layers, which then have no y1 and y2: what attention
                        * and MLP end with, before it is normalised */
    float *mean1, *rstd1, *qk_rstd, *lse, *mean2, *rstd2;
    ls_pass_experts experts;
    void *keys, *values;      /* the cache, [B, cache, Hkv, D] each */
    void *small[LS_ADAPTERS]; /* scale A x, [M, rank] */
    ls_pass_dora dora[LS_LAYERS];
} ls_pass_buffers;

/* What the first half of a block's backward leaves for the second: gradients of the outputs of its
 * products. */
typedef struct ls_pass_late {
    void *dqkv, *dproj, *dz, *dout; /* of the MLP's: NULL with experts */
} ls_pass_late;

/* What a call keeps outside of blocks: the embedding, and what the final norm makes. */
typedef struct ls_pass_ends {
    void *in0, *yf;
    float *meanf, *rstdf;
} ls_pass_ends;

/* What ranks that share sequences send to each other (pass_context.c). */
typedef struct ls_pass_cp_buffers {
    void *kv[2]; /* keys and values of a rank, [2][B, T, Hkv, D], and the next ones; with gather the
                  * own ones, and those of all ranks */
    float *dkv;  /* gradient of the own ones */
    float *part[2], *sum; /* of another rank's, and the one before, which is on its way; what other
                           * ranks have added up */
    float *all;           /* with gather: of all ranks' */
    float *wide;          /* [B, T, H, D]: of the queries; and the result, where it is not fp32 */
} ls_pass_cp_buffers;

struct ls_pass {
    ls_pass_args args;
    bool discrete; /* the device has a memory of its own */
    int64_t bytes;
    void *memory;    /* owned */
    void *cp_memory; /* owned: of cp, which the ranks of the group reach; NULL: no group */
    void *in0, *branch, *yf;
    void *whole_x, *whole_y; /* where streams are divided: all rows of one, and of a sum's part */
    float *scores, *all_scores; /* of the head of a split model: this rank's, and all ranks' */
    float *qk_sums;             /* [2, M]: of q and k, where ranks normalise them together */
    float *meanf, *rstdf, *rope;
    ls_pass_cp_buffers cp;
    ls_pass_ends *ends;   /* owned: of each slot; those of the call at hand are above */
    ls_pass_buffers *all; /* owned: blocks of each slot */
    void *dstream, *dbranch, *dy, *dqkv, *datt, *dz, *dact, *dsmall;
    void *dlogits;           /* of a router, [M, E] */
    float *dweights, *stack; /* of experts: [M, K], and sums over leaves */
    int64_t stack_floats;    /* of that */
    ls_expert *experts;      /* owned, E of them: those of the block at hand */
    ls_pass_ep_buffers ep;
    void *ep_tables; /* owned, host: tables of all blocks, where the device has a memory of its own
                       */
    float *spare;  /* [D]: the gradient of a norm of q or k that is frozen while the other is not */
    void *dora_dz; /* with DoRA: the gradient of a layer's z */
    float *wide;   /* in bf16 with adapters: [M, rank], while it is scaled */
    void *logits;  /* in bf16: [V], before they are widened */
    void *scratch;
    float *maxima;       /* with fp8: [L][2][LS_LAYERS], cells of what each layer reads and of its
                          * gradient */
    ls_pass_late *lates; /* owned: blocks of each late place */
    ls_pass_late *late;  /* L of them, of the call at hand, in a half of backward; else NULL */
    ls_pass_buffers *blocks; /* L of them, of the slot at hand; equal ones when not training, but
                              * for the cache */
};

/* The blocks of the part of the model that a pass computes: the first, and the one behind the
 * last. Both ends may be there without a block. */
static inline int64_t ls_pass_first_block(const ls_pass_args *args)
{
    return args->units ? ls_max_i64(args->unit, 1) - 1 : 0;
}
static inline int64_t ls_pass_end_block(const ls_pass_args *args)
{
    int64_t L = args->model->shape.L;

    return args->units ? ls_min_i64(args->unit + args->units - 1, L) : L;
}
static inline bool ls_pass_has_embedding(const ls_pass_args *args)
{
    return args->units == 0 || args->unit == 0;
}
static inline bool ls_pass_has_head(const ls_pass_args *args)
{
    return args->units == 0 || args->unit + args->units == args->model->shape.L + 2;
}
static inline int ls_pass_slots(const ls_pass_args *args)
{
    return args->slots > 1 ? args->slots : 1;
}

/* The buffers of a call and of its slot become those of the pass. */
void ls_pass_take(ls_pass *pass, const ls_pass_call *call);

/* A linear layer of the blocks: y = act(x W + b), and its adapters. */
typedef struct ls_pass_layer {
    ls_layer which;
    int64_t K, N;
    const ls_place *w, *b; /* n_parts of them each, side by side in the weights */
    const int64_t *widths; /* outputs of each part */
    int n_parts;
    int adapter, n_adapters; /* the first one in ls_block_params.adapters, and how many there may be
                              * side by side */
    bool bias_summed;        /* backward: the norm above has made the gradient of the bias */
    bool no_bias;            /* forward: it ends in a sum over ranks, and the first adds the bias */
} ls_pass_layer;

/* The layers of a block. widths hold the outputs of the parts of the packed ones. */
typedef struct ls_pass_layers {
    int64_t qkv_widths[3], fc_widths[2];
    ls_pass_layer qkv, proj, fc, out;
} ls_pass_layers;

/* Widths: of all heads of queries, of the packed product of q, k and v, and of the MLP's value
 * before its activation. */
int64_t ls_pass_att_width(const ls_model_shape *s);
int64_t ls_pass_qkv_width(const ls_model_shape *s);
int64_t ls_pass_fc_width(const ls_model_shape *s);

/* Whether other ranks have experts of the model; rows that those of this rank see at most. */
bool ls_pass_is_ep(const ls_pass_args *args);
int64_t ls_pass_ep_rows(const ls_pass_args *args);

/* Numbers of rows where the host reads them; undone when the pass is closed. */
ls_status ls_pass_ep_open(ls_pass *pass);
void ls_pass_ep_close(ls_pass *pass);

/* Rows that the MLPs of a block see for M tokens, at most. */
static inline int64_t ls_pass_mlp_rows(const ls_pass_args *args, int64_t M)
{
    const ls_model_shape *s = &args->model->shape;

    return ls_pass_is_ep(args) ? ls_pass_ep_rows(args) : s->E > 0 ? M * s->K : M;
}

/* A block's MLP as a mixture of experts: from y2 to next (or branch), and from the gradient of its
 * output to that of its input, in pass->dy. */
void ls_pass_experts_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l);
void ls_pass_experts_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                              const void *dbranch);

/* Whether ranks that have parts of experts take the router's logits of the first of them. */
bool ls_pass_shares_logits(const ls_pass_args *args);

/* What backward reads of it, made again (ls_pass_recompute()). */
void ls_pass_experts_again(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                           ls_recompute level);

/* The experts of block l that this rank has, in this call: their weights, and gradients where they
 * are wanted. */
ls_experts ls_pass_experts_of(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                              const ls_route *route, bool back);

/* As ls_experts_forward() and ls_experts_backward(), where experts are divided (pass_expert_parallel.c). */
void ls_pass_ep_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                        const ls_experts *own);
void ls_pass_ep_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                         const ls_experts *own);
void ls_pass_ep_again(const ls_pass *pass, const ls_pass_call *call, int64_t l);

/* Whether q and k are changed between the product and attention. */
bool ls_pass_turns(const ls_model_shape *s);

/* Element n of a tensor of the pass's type. */
static inline void *ls_pass_at(const ls_pass *pass, void *x, int64_t n)
{
    return (char *)x + n * ls_dtype_bytes(pass->args.type);
}

/* Queries, keys or values (0, 1, 2) in a packed product; heads of attention's output. */
ls_heads ls_pass_part_of_qkv(const ls_pass *pass, int64_t T, void *qkv, int which);
ls_heads ls_pass_heads_of(const ls_pass *pass, int64_t T, void *x);

/* The cell for the largest magnitude of what a layer of block l reads, or of the gradient of its
 * output; NULL where the block does not multiply in fp8. */
float *ls_pass_max(const ls_pass *pass, int64_t l, ls_layer layer, bool gradient);

/* How a layer's product is to be made, of tensors whose cells are filled or not. */
ls_fp8 ls_pass_fp8(const ls_pass *pass, int64_t l, const ls_pass_layer *at, bool x_known,
                   bool dy_known);

/* A parameter that a call reads, or NULL where the model has none; likewise its gradient, NULL also
 * where it is frozen. */
const void *ls_pass_weight(const ls_pass *pass, const ls_pass_call *call, ls_place p);
float *ls_pass_gradient(const ls_pass_call *call, ls_place p);

/* A layer's weight as a call's products read it best, or NULL: as it lies. */
const void *ls_pass_packed(const ls_pass *pass, const ls_pass_call *call, int64_t l, ls_layer of,
                           bool back);

/* Ask for the weights of a unit. */
static inline void ls_pass_need(const ls_pass_call *call, int64_t unit)
{
    if (call->need)
        call->need(call->context, unit);
}

/* Report that backward went through a unit of the model; L + 2: the head, whose gradient may lie behind all. */
void ls_pass_report(const ls_pass *pass, const ls_pass_call *call, int64_t unit);

/* The layers of block l; they point into the model and into *to itself. */
void ls_pass_layers_of(const ls_model *model, int64_t l, ls_pass_layers *to);
bool ls_pass_has_adapter(const ls_block_params *p, const ls_pass_layer *at);

/* --- DoRA (pass_dora.c) ---------------------------------------------------------------------------- */

/* Whether outputs of a layer of block l have trained lengths. */
bool ls_pass_is_dora(const ls_pass_args *args, int64_t l, const ls_pass_layer *at);

/* Forward: the lengths, unless those of the call before hold, and y = f z + bias, or add + that. Backward:
 * the gradient of z out of that of y, and the gradients of lengths. */
void ls_pass_dora_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                          const ls_pass_layer *at, const void *add, void *y);
void *ls_pass_dora_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                            const ls_pass_layer *at, const void *dy);

/* The dropout at a site of block l; what enters block l; the row between the packed product and
 * attention, without the tensors that differ between forward and backward. */
ls_dropout ls_pass_drop_at(const ls_pass *pass, const ls_pass_call *call, int64_t l, int site);
const void *ls_pass_stream_into(const ls_pass *pass, int64_t l);

/* What attention and the MLP of block l read: a norm's output, or the stream itself. */
void *ls_pass_attention_input(const ls_pass *pass, int64_t l);
void *ls_pass_mlp_input(const ls_pass *pass, int64_t l);

ls_qkv ls_pass_qkv_row(const ls_pass *pass, const ls_pass_call *call, int64_t l);

/* Where all heads are normalised together, the row of that, of q or k (0, 1): heads as one that
 * lies in the packed product. Its element there. */
ls_qkv ls_pass_wide_norm(const ls_pass *pass, const ls_pass_call *call, int64_t l, int which);
int64_t ls_pass_wide_at(const ls_model_shape *s, int which);

/* Make both rows, forward or back; ranks that have heads of the model each sum between
 * (pass_tensor.c).
 */
void ls_pass_wide_norms(const ls_pass *pass, const ls_pass_call *call, const ls_qkv rows[2],
                        bool forward);

/* x = scale x, for an adapter's small tensor of n elements. The row knows fp32 only. */
void ls_pass_scale(const ls_pass *pass, void *x, int64_t n);

/* Whether ordered mode keeps two parts of the tied gradient apart. */
bool ls_pass_parts_tied(const ls_model *model, bool ordered);

/* Whether norms make the gradients of the biases below them (kernel.h): where the layer below is in
 * the same pass, and its gradient is all there when the norm comes to it. */
bool ls_pass_norms_sum(const ls_pass_args *args);

/* What backward of block l makes again; none where it is all kept. */
ls_recompute ls_pass_recompute_of(const ls_pass_args *args, int64_t l);

/* How often in a backward, of both halves together: never where no other block or call has taken
 * the buffers meanwhile. */
int ls_pass_times_recomputed(const ls_pass_args *args, int64_t l);

/* Make it, where the buffers that blocks share hold those of another block. */
void ls_pass_recompute(const ls_pass *pass, const ls_pass_call *call, int64_t l);

/* --- ranks of a split model (pass_tensor.c); on one rank nothing happens ------------------------ */

bool ls_pass_is_split(const ls_pass_args *args);
bool ls_pass_divides_rows(const ls_pass_args *args);

/* Rows of each rank's share of the streams of a call of M rows; and those that this rank has of a
 * call, which may be none, and where they begin. */
int64_t ls_pass_share(const ls_pass_args *args, int64_t M);
int64_t ls_pass_own_rows(const ls_pass *pass, const ls_pass_call *call, int64_t *first_out);

/* All rows of a stream of which this rank has a share: gathered into `into`, or the stream itself.
 * They are there when the number was waited for. */
void *ls_pass_whole(const ls_pass *pass, const ls_pass_call *call, void *share, void *into);
void *ls_pass_whole_start(const ls_pass *pass, const ls_pass_call *call, void *share, void *into,
                          int *number_out);

/* Where a product puts its part of a sum over ranks that is to become `share`; make that sum. */
void *ls_pass_part(const ls_pass *pass, void *share);

/* Prepare that part so that the sum is added to what `share` holds. True: the product is added to
 * what lies in the part; false: the product overwrites it, on this rank. */
bool ls_pass_part_onto(const ls_pass *pass, const ls_pass_call *call, void *share);
void ls_pass_join(const ls_pass *pass, const ls_pass_call *call, void *share);

/* Half of the rows of a join, which is sent while the other half is made: `pieces` runs of `rows`
 * rows each, `stride` rows from one to the next, the first of them at `first`. The part of the sum
 * is made in them, one behind the other, from `to` on; rows behind the call's have no meaning. */
typedef struct ls_pass_half {
    int64_t first, rows, stride;
    int pieces;
    void *to;
} ls_pass_half;

/* False: joins are not worth halving here, or cannot be. */
bool ls_pass_half_of(const ls_pass *pass, const ls_pass_call *call, void *share, int which,
                     ls_pass_half *half_out);
int ls_pass_join_half(const ls_pass *pass, const ls_pass_half *half, void *share); /* to wait for */
int ls_pass_join_start(const ls_pass *pass, const ls_pass_call *call, void *share);
void ls_pass_wait(const ls_pass *pass, int number); /* -1: for nothing */

/* The head of a split model, of all rows; rows that are taken at a time, and floats of their scores
 * on one rank. */
void ls_pass_head_parts(const ls_pass *pass, const ls_pass_call *call, ls_head args);
int64_t ls_pass_head_rows(const ls_pass_args *args);
int64_t ls_pass_scores(int64_t rows);

/* Each rank has its own logits among zeros: sum them, so that every rank has all. */
void ls_pass_logits_of_all(const ls_pass *pass, float *logits);

/* --- ranks that share sequences (pass_context.c) --------------------------------------------------
 */

bool ls_pass_is_cp(const ls_pass_args *args);

/* What this rank has of a sequence; of whole ones no piece. */
ls_piece ls_pass_piece(const ls_pass_args *args, int64_t T);

/* Elements of the keys and values that a rank sends. */
int64_t ls_pass_kv_elements(const ls_pass_args *args, int64_t B, int64_t T);

/* Attention of block l, from q, k and v to b->att; and from pass->datt to dqkv. */
void ls_pass_cp_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l);
void ls_pass_cp_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l, void *dqkv);

/* Before a router's losses go backward: choices of experts, of whole sequences. */
void ls_pass_cp_count(const ls_pass *pass, const ls_pass_call *call, int64_t l);

/* Whether a branch ends in a buffer beside the stream, to which the norm after it adds it. */
bool ls_pass_ends_beside(const ls_pass *pass, const ls_pass_call *call, int64_t l, int site);

/* The same for a half of backward, which ends with pass->late NULL again. */
void ls_pass_take_late(ls_pass *pass, const ls_pass_call *call);

/* Blocks of the model that a gradient must reach: the lowest; 0 where the embedding is trained. */
int64_t ls_pass_lowest(const ls_pass_args *args);

/* The gradients of the parameters of a layer, out of its input and the gradient of its output. */
void ls_pass_parts_back(const ls_pass *pass, const ls_pass_call *call, const ls_pass_layer *at,
                        const void *x, void *dy, ls_fp8 *fp8);

/* The head and its loss; with grad also the gradients, dh in pass->dy. */
void ls_pass_head(const ls_pass *pass, const ls_pass_call *call, bool grad);
