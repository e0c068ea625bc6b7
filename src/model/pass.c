/* pass.c -- the transformer as calls of the kernel table.
 *
 * The residual stream is never added to on its own: each norm takes the stream and what the block
 * before it produced, writes their sum and the normalised sum (one pass over memory). With L
 * blocks:
 *
 *   in[0] = embed(tokens)                        y1 = norm(in[0])
 *   qkv, turn -> attention -> proj = branch      mid[l] = in[l] + branch,  y2 = norm(mid[l])
 *   fc, act -> out = branch                      in[l+1] = mid[l] + branch, y1 = norm(in[l+1])
 *   after the last block the final norm takes the place of the next block's first.
 *
 * Backward walks the same list upwards with one gradient of the stream, `dstream`, to which every
 * norm adds its share, and stops at the lowest block in which anything is trained. Kept per block:
 * y1, qkv (turned in place; with norms of q and k also the product before), attention output and
 * its log-sum-exp, mid, y2, the MLP's value before and after its activation, the next stream, the
 * statistics of the norms. Without training all blocks share one set of these buffers.
 *
 * An adapter (LoRA) adds scale B (A x) to columns of a product; scale A x is kept for the gradient.
 * A product with an adapter cannot take its activation along: that becomes a step of its own. */
#include "model/pass.h"

#include <math.h>
#include "base/mem.h"
#include "base/time.h"

/* Where dropout happens; block l uses 3 l + these. */
enum { SITE_EMBED = 0, SITE_ATTENTION = 1, SITE_PROJ = 2, SITE_OUT = 3 };

typedef struct block_buffers {
    float *y1, *mean1, *rstd1, *qkv, *turned, *qk_rstd, *att, *lse, *mid, *y2, *mean2, *rstd2, *z,
        *act, *next;
    float *keys, *values;      /* the cache, [B, cache, Hkv, D] each */
    float *small[LS_ADAPTERS]; /* scale A x, [M, rank] */
} block_buffers;

struct ls_pass {
    ls_pass_args args;
    int64_t bytes;
    void *memory; /* owned */
    float *in0, *branch, *yf, *meanf, *rstdf, *rope;
    float *dstream, *dbranch, *dy, *dqkv, *datt, *dz, *dact, *dsmall;
    void *scratch;
    block_buffers *blocks; /* L of them, owned; equal ones when not training, but for the cache */
};

/* Hand out pieces of one buffer; with base NULL it only counts. */
typedef struct cutter {
    char *base;
    int64_t used;
} cutter;

static void *cut(cutter *c, int64_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;

    /* An absurd run file can ask for more than 2^63 bytes in all; stay far above what any machine
     * has instead, so that the ledger refuses it. */
    c->used = ls_min_i64(c->used + ls_round_up(bytes, 256), INT64_MAX / 4);
    return p;
}

static float *cut_floats(cutter *c, int64_t n)
{
    return cut(c, n * (int64_t)sizeof(float));
}

/* --- widths ----------------------------------------------------------------------------------- */

/* Of all heads of queries, and of the packed product of q, k and v. */
static int64_t att_width(const ls_model_shape *s)
{
    return s->H * s->D;
}

static int64_t qkv_width(const ls_model_shape *s)
{
    return (s->H + 2 * s->Hkv) * s->D;
}

/* Of the MLP's value before its activation. */
static int64_t fc_width(const ls_model_shape *s)
{
    return s->gated ? 2 * s->F : s->F;
}

/* Whether q and k are changed between the product and attention. */
static bool turns(const ls_model_shape *s)
{
    return s->rope || s->qk_norm;
}

/* Queries, keys or values (0, 1, 2) in a packed product. */
static ls_heads part_of_qkv(const ls_model_shape *s, int64_t T, float *qkv, int which)
{
    int64_t first = which == 0 ? 0 : which == 1 ? s->H : s->H + s->Hkv;

    return (ls_heads){qkv + first * s->D, T * qkv_width(s), qkv_width(s), s->D};
}

static ls_heads heads_of(const ls_model_shape *s, int64_t T, float *x)
{
    return (ls_heads){x, T * att_width(s), att_width(s), s->D};
}

/* The cache from a position on. */
static ls_heads cached(const ls_pass *pass, float *x, int64_t position)
{
    const ls_model_shape *s = &pass->args.model->shape;
    int64_t time = s->Hkv * s->D;

    return (ls_heads){x + position * time, pass->args.cache * time, time, s->D};
}

/* --- memory ----------------------------------------------------------------------------------- */

static int64_t backward_scratch(const ls_pass_args *args, int threads)
{
    const ls_model_shape *s = &args->model->shape;
    const ls_kernels *k = args->kernels;
    int64_t B = args->B, T = args->T, leaves = args->leaves;
    float *wanted = (float *)(uintptr_t)LS_PARAM_ALIGN; /* only compared with NULL */
    const ls_attention_bwd att = {.B = B, .T = T, .H = s->H, .Hkv = s->Hkv, .D = s->D};
    const ls_norm_bwd norm = {.M = B * T, .C = s->C, .T = T, .leaves = leaves};
    const ls_embed_bwd embed = {.M = B * T,
                                .C = s->C,
                                .T = T,
                                .V = s->V,
                                .positions = s->positions ? s->T : 0,
                                .leaves = leaves};
    const ls_qkv qkv = {.B = B,
                        .T = T,
                        .H = s->H,
                        .Hkv = s->Hkv,
                        .D = s->D,
                        .leaves = leaves,
                        .q_norm = wanted,
                        .k_norm = wanted,
                        .dq_norm = wanted,
                        .dk_norm = wanted};
    int64_t most = k->scratch(LS_ROW_ATTENTION_BWD, &att, threads);

    most = ls_max_i64(most, k->scratch(LS_ROW_NORM_BWD, &norm, threads));
    if (s->qk_norm)
        most = ls_max_i64(most, k->scratch(LS_ROW_QKV_BWD, &qkv, threads));
    return ls_max_i64(most, k->scratch(LS_ROW_EMBED_BWD, &embed, threads));
}

static int64_t scratch_bytes(const ls_pass_args *args, int threads)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T, most;
    float *wanted = args->training ? (float *)(uintptr_t)LS_PARAM_ALIGN : NULL;
    ls_head head = {
        .M = M, .C = s->C, .V = s->V, .leaves = args->leaves, .dh = wanted, .dw = wanted};

    most = args->kernels->scratch(LS_ROW_HEAD, &head, threads);
    head.leaves = 1; /* ls_pass_loss() takes all rows as one leaf */
    head.dh = head.dw = NULL;
    most = ls_max_i64(most, args->kernels->scratch(LS_ROW_HEAD, &head, threads));
    return args->training ? ls_max_i64(most, backward_scratch(args, threads)) : most;
}

static void cut_block(cutter *c, const ls_pass_args *args, int64_t l, block_buffers *b)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T;
    bool keep = args->training;

    b->y1 = cut_floats(c, M * s->C);
    b->mean1 = cut_floats(c, M);
    b->rstd1 = cut_floats(c, M);
    b->qkv = cut_floats(c, M * qkv_width(s));
    b->turned = keep && s->qk_norm ? cut_floats(c, M * qkv_width(s)) : b->qkv;
    b->qk_rstd = keep && s->qk_norm ? cut_floats(c, M * (s->H + s->Hkv)) : NULL;
    b->att = cut_floats(c, M * att_width(s));
    b->lse = cut_floats(c, args->B * s->H * args->T);
    b->mid = cut_floats(c, M * s->C);
    b->y2 = cut_floats(c, M * s->C);
    b->mean2 = cut_floats(c, M);
    b->rstd2 = cut_floats(c, M);
    b->z = keep || s->gated || s->lora_rank ? cut_floats(c, M * fc_width(s)) : NULL;
    b->act = cut_floats(c, M * s->F);
    b->next = cut_floats(c, M * s->C);
    for (int i = 0; i < LS_ADAPTERS; i++)
        if (args->model->blocks[l].adapters[i].a.w >= 0)
            b->small[i] = cut_floats(c, M * s->lora_rank);
}

static void cut_backward(cutter *c, const ls_pass_args *args, ls_pass *pass)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T;

    pass->dstream = cut_floats(c, M * s->C);
    pass->dbranch = s->dropout > 0 ? cut_floats(c, M * s->C) : NULL;
    pass->dy = cut_floats(c, M * s->C);
    pass->dqkv = cut_floats(c, M * qkv_width(s));
    pass->datt = cut_floats(c, M * att_width(s));
    pass->dz = s->gated ? NULL : cut_floats(c, M * s->F);
    pass->dact = s->lora_rank ? cut_floats(c, M * s->F) : NULL;
    pass->dsmall = s->lora_rank ? cut_floats(c, M * s->lora_rank) : NULL;
}

/* The one description of the buffer, used for counting and for cutting. blocks may be NULL. */
static void lay_out(cutter *c, const ls_pass_args *args, int threads, ls_pass *pass)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T, kept = args->B * args->cache * s->Hkv * s->D;

    pass->in0 = cut_floats(c, M * s->C);
    pass->branch = cut_floats(c, M * s->C);
    pass->yf = cut_floats(c, M * s->C);
    pass->meanf = cut_floats(c, M);
    pass->rstdf = cut_floats(c, M);
    pass->rope = s->rope ? cut_floats(c, ls_max_i64(args->T, args->cache) * s->D) : NULL;
    for (int64_t l = 0; l < s->L; l++) {
        block_buffers b = {.y1 = NULL};
        if (l == 0 || args->training)
            cut_block(c, args, l, &b);
        else if (pass->blocks)
            b = pass->blocks[0];
        b.keys = cut_floats(c, kept);
        b.values = cut_floats(c, kept);
        if (pass->blocks)
            pass->blocks[l] = b;
    }
    if (args->training)
        cut_backward(c, args, pass);
    pass->scratch = cut(c, scratch_bytes(args, threads));
}

int64_t ls_pass_bytes(const ls_pass_args *args, int threads)
{
    cutter c = {.base = NULL};
    ls_pass unused = {.blocks = NULL};

    lay_out(&c, args, threads, &unused);
    return ls_round_up(c.used, 4096);
}

/* Angles of all positions, a piece at a time. */
static ls_status send_rope(const ls_pass *pass)
{
    enum { PIECE = 256 };
    const ls_model *model = pass->args.model;
    int64_t D = model->shape.D, positions = ls_max_i64(pass->args.T, pass->args.cache);
    float *piece = ls_mem_array((size_t)(PIECE * D), sizeof *piece);
    ls_status st = LS_OK;

    if (!piece)
        return LS_ENOMEM;
    for (int64_t t = 0; t < positions && st == LS_OK; t += PIECE) {
        int64_t n = ls_min_i64(PIECE, positions - t);
        ls_model_rope(model, t, n, piece);
        ls_stream_copy_in(pass->args.stream, pass->rope + t * D, piece,
                          n * D * (int64_t)sizeof *piece);
        st = ls_stream_sync(pass->args.stream, ls_time_now_ns() + 60 * LS_NS_PER_S);
    }
    ls_mem_free(piece);
    return st;
}

ls_status ls_pass_open(ls_pass **pass_out, const ls_pass_args *args)
{
    ls_status st = LS_OK;
    ls_device *device = ls_stream_device(args->stream);
    int threads = ls_device_describe(device).threads;
    ls_pass *pass = ls_mem_alloc(sizeof *pass);

    if (!pass)
        return LS_ENOMEM;
    LS_BUG_IF(args->training && args->cache, "a pass for training keeps no cache");
    pass->args = *args;
    pass->blocks = ls_mem_array((size_t)args->model->shape.L, sizeof *pass->blocks);
    if (!pass->blocks) {
        st = LS_ENOMEM;
        goto out;
    }
    pass->bytes = ls_pass_bytes(args, threads);
    LS_TRY(st, ls_device_alloc(device, pass->bytes, "activations", &pass->memory), out);
    cutter c = {.base = pass->memory};
    lay_out(&c, args, threads, pass);
    if (pass->rope)
        LS_TRY(st, send_rope(pass), out);
    *pass_out = pass;
out:
    if (st != LS_OK)
        ls_pass_close(pass);
    return st;
}

void ls_pass_close(ls_pass *pass)
{
    if (!pass)
        return;
    ls_device_free(ls_stream_device(pass->args.stream), pass->memory);
    ls_mem_free(pass->blocks);
    ls_mem_free(pass);
}

/* The tied gradient has two parts that ordered mode keeps apart. */
static bool parts_tied(const ls_model *model, bool ordered)
{
    return ordered && model->shape.tied && model->wte.g >= 0;
}

int64_t ls_pass_grad_elements(const ls_model *model, bool ordered)
{
    return model->trained + (parts_tied(model, ordered)
                                 ? ls_round_up(model->shape.V * model->shape.C, LS_PARAM_ALIGN)
                                 : 0);
}

static ls_dropout drop_at(const ls_pass *pass, const ls_pass_call *call, int64_t l, int site)
{
    return (ls_dropout){.p = call->dropout ? pass->args.model->shape.dropout : 0,
                        .site = (uint32_t)(site == SITE_EMBED ? 0 : 3 * l + site),
                        .state = call->state};
}

/* A parameter that a call reads, or NULL where the model has none; likewise its gradient. */
static const float *weight(const ls_pass_call *call, ls_place p)
{
    return p.w >= 0 ? call->w + p.w : NULL;
}

static float *gradient(const ls_pass_call *call, ls_place p)
{
    return p.g >= 0 ? call->grad + p.g : NULL;
}

/* --- forward ------------------------------------------------------------------------------ */

/* A linear layer of the blocks: y = act(x W + b), and its adapters. */
typedef struct layer {
    int64_t K, N;
    const ls_place *w, *b; /* n_parts of them each, side by side in the weights */
    const int64_t *widths; /* outputs of each part */
    int n_parts;
    int adapter, n_adapters; /* the first one in ls_block_params.adapters, and how many there may be
                              * side by side */
} layer;

static bool has_adapter(const ls_block_params *p, const layer *at)
{
    for (int i = at->adapter; i < at->adapter + at->n_adapters; i++)
        if (p->adapters[i].a.w >= 0)
            return true;
    return false;
}

/* y[:, first ..] += B (scale A x) for each adapter of a layer. */
static void adapt(const ls_pass *pass, const ls_pass_call *call, int64_t l, const layer *at,
                  const float *x, float *y)
{
    const ls_kernels *k = pass->args.kernels;
    const ls_model_shape *s = &pass->args.model->shape;
    int64_t M = call->B * call->T, rank = s->lora_rank;

    for (int i = at->adapter; i < at->adapter + at->n_adapters; i++) {
        const ls_adapter *a = &pass->args.model->blocks[l].adapters[i];
        float *small = pass->blocks[l].small[i];
        if (a->a.w < 0)
            continue;
        k->linear_fwd(pass->args.stream, &(ls_linear_fwd){.x = x,
                                                          .w = call->w + a->a.w,
                                                          .y = small,
                                                          .M = M,
                                                          .N = rank,
                                                          .K = a->K,
                                                          .layout = LS_LAYOUT_NK});
        k->scale(pass->args.stream, &(ls_scale){.x = small, .value = s->lora_scale, .n = M * rank});
        k->linear_fwd(pass->args.stream, &(ls_linear_fwd){.x = small,
                                                          .w = call->w + a->b.w,
                                                          .y = y + a->first,
                                                          .M = M,
                                                          .N = a->N,
                                                          .K = rank,
                                                          .ldy = at->N,
                                                          .layout = LS_LAYOUT_NK,
                                                          .accumulate = true});
    }
}

static void linear(const ls_pass *pass, const ls_pass_call *call, int64_t l, const layer *at,
                   const float *x, float *y)
{
    pass->args.kernels->linear_fwd(pass->args.stream,
                                   &(ls_linear_fwd){.x = x,
                                                    .w = weight(call, at->w[0]),
                                                    .b = weight(call, at->b[0]),
                                                    .y = y,
                                                    .M = call->B * call->T,
                                                    .N = at->N,
                                                    .K = at->K,
                                                    .layout = pass->args.model->shape.layout});
    adapt(pass, call, l, at, x, y);
}

/* The layers of a block. widths hold the outputs of the parts of the packed ones. */
typedef struct block_layers {
    int64_t qkv_widths[3], fc_widths[2];
    layer qkv, proj, fc, out;
} block_layers;

static void layers_of(const ls_model *model, int64_t l, block_layers *to)
{
    const ls_model_shape *s = &model->shape;
    const ls_block_params *p = &model->blocks[l];
    bool parted = s->family != LS_FAMILY_GPT2;

    *to = (block_layers){
        .qkv_widths = {parted ? att_width(s) : qkv_width(s), s->Hkv * s->D, s->Hkv * s->D},
        .fc_widths = {s->F, s->F},
        .qkv = {s->C, qkv_width(s), p->qkv_w, p->qkv_b, to->qkv_widths, parted ? 3 : 1,
                LS_ADAPTER_Q, 3},
        .proj = {att_width(s), s->C, &p->proj_w, &p->proj_b, NULL, 1, LS_ADAPTER_O, 1},
        .fc = {s->C, fc_width(s), p->fc_w, p->fc_b, to->fc_widths, s->gated ? 2 : 1,
               LS_ADAPTER_GATE, 2},
        .out = {s->F, s->C, &p->out_w, &p->out_b, NULL, 1, LS_ADAPTER_DOWN, 1}};
}

/* sum = stream + dropout(x); y = norm(sum). */
static void norm(const ls_pass *pass, const ls_pass_call *call, ls_norm_fwd args, ls_place w,
                 ls_place b, ls_dropout drop)
{
    const ls_model_shape *s = &pass->args.model->shape;

    args.kind = s->norm;
    args.w = weight(call, w);
    args.b = weight(call, b);
    if (s->norm == LS_NORM_RMS)
        args.mean = NULL;
    args.M = call->B * call->T;
    args.C = s->C;
    args.T = call->T;
    args.eps = s->eps;
    args.drop = drop;
    pass->args.kernels->norm_fwd(pass->args.stream, &args);
}

static const float *stream_into(const ls_pass *pass, int64_t l)
{
    return l == 0 ? pass->in0 : pass->blocks[l - 1].next;
}

/* The row between the packed product and attention, for the forward pass or the gradient. */
static ls_qkv qkv_row(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];

    return (ls_qkv){.rope = pass->rope,
                    .past = call->past,
                    .q_norm = weight(call, p->q_norm),
                    .k_norm = weight(call, p->k_norm),
                    .eps = s->eps,
                    .rstd = pass->blocks[l].qk_rstd,
                    .B = call->B,
                    .T = call->T,
                    .H = s->H,
                    .Hkv = s->Hkv,
                    .D = s->D};
}

static void attention(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const block_buffers *b = &pass->blocks[l];
    ls_heads q = part_of_qkv(s, call->T, b->turned, 0);
    ls_heads k = part_of_qkv(s, call->T, b->turned, 1);
    ls_heads v = part_of_qkv(s, call->T, b->turned, 2);
    bool cache = pass->args.cache > 0;

    if (cache || turns(s)) {
        ls_qkv row = qkv_row(pass, call, l);
        row.packed = b->qkv;
        row.q = q;
        row.k = cache ? cached(pass, b->keys, call->past) : k;
        row.v = cache ? cached(pass, b->values, call->past) : v;
        pass->args.kernels->qkv_fwd(pass->args.stream, &row);
    }
    pass->args.kernels->attention_fwd(
        pass->args.stream, &(ls_attention_fwd){.q = q,
                                               .k = cache ? cached(pass, b->keys, 0) : k,
                                               .v = cache ? cached(pass, b->values, 0) : v,
                                               .o = heads_of(s, call->T, b->att),
                                               .lse = b->lse,
                                               .start = call->start,
                                               .B = call->B,
                                               .T = call->T,
                                               .H = s->H,
                                               .Hkv = s->Hkv,
                                               .D = s->D,
                                               .past = call->past,
                                               .window = pass->args.model->blocks[l].window,
                                               .scale = 1.0f / sqrtf((float)s->D),
                                               .drop = drop_at(pass, call, l, SITE_ATTENTION)});
}

/* Whether the activation rides on the product into the MLP, and its gradient on the one out. */
static bool act_rides_in(const ls_model_shape *s, const ls_block_params *p, const block_layers *at)
{
    return !s->gated && !has_adapter(p, &at->fc);
}

static bool act_rides_out(const ls_model_shape *s, const ls_block_params *p, const block_layers *at)
{
    return !s->gated && !has_adapter(p, &at->out);
}

static void mlp(const ls_pass *pass, const ls_pass_call *call, int64_t l, const block_layers *at)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];
    const block_buffers *b = &pass->blocks[l];
    const ls_kernels *k = pass->args.kernels;
    int64_t M = call->B * call->T;

    if (act_rides_in(s, p, at)) {
        k->linear_fwd(pass->args.stream, &(ls_linear_fwd){.x = b->y2,
                                                          .w = weight(call, p->fc_w[0]),
                                                          .b = weight(call, p->fc_b[0]),
                                                          .y = b->act,
                                                          .z = b->z,
                                                          .M = M,
                                                          .N = s->F,
                                                          .K = s->C,
                                                          .layout = s->layout,
                                                          .act = s->act});
    } else {
        linear(pass, call, l, &at->fc, b->y2, b->z);
        k->act_fwd(
            pass->args.stream,
            &(ls_act_args){
                .act = s->act, .gated = s->gated, .x = b->z, .y = b->act, .M = M, .F = s->F});
    }
    linear(pass, call, l, &at->out, b->act, pass->branch);
}

static void block_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_block_params *p = &pass->args.model->blocks[l];
    const block_buffers *b = &pass->blocks[l];
    block_layers at;

    layers_of(pass->args.model, l, &at);
    /* What the block before added becomes part of the stream in this block's first norm. */
    ls_norm_fwd n1 = {.stream = pass->in0, .y = b->y1, .mean = b->mean1, .rstd = b->rstd1};
    if (l > 0) {
        n1.stream = pass->blocks[l - 1].mid;
        n1.x = pass->branch;
        n1.sum = pass->blocks[l - 1].next;
    }
    norm(pass, call, n1, p->ln1_w, p->ln1_b, drop_at(pass, call, l - 1, SITE_OUT));
    linear(pass, call, l, &at.qkv, b->y1, b->qkv);
    attention(pass, call, l);
    linear(pass, call, l, &at.proj, b->att, pass->branch);
    norm(pass, call,
         (ls_norm_fwd){.stream = stream_into(pass, l),
                       .x = pass->branch,
                       .sum = b->mid,
                       .y = b->y2,
                       .mean = b->mean2,
                       .rstd = b->rstd2},
         p->ln2_w, p->ln2_b, drop_at(pass, call, l, SITE_PROJ));
    mlp(pass, call, l, &at);
}

void ls_pass_forward(ls_pass *pass, const ls_pass_call *call)
{
    const ls_model *model = pass->args.model;
    const ls_model_shape *s = &model->shape;
    const block_buffers *last = &pass->blocks[s->L - 1];

    LS_BUG_IF(call->B > pass->args.B || call->T > pass->args.T || call->leaves > pass->args.leaves,
              "a call of %lld x %lld tokens in a pass made for %lld x %lld", (long long)call->B,
              (long long)call->T, (long long)pass->args.B, (long long)pass->args.T);
    LS_BUG_IF(call->past && call->past + call->T > pass->args.cache,
              "%lld tokens after %lld others in a cache of %lld", (long long)call->T,
              (long long)call->past, (long long)pass->args.cache);
    pass->args.kernels->embed_fwd(pass->args.stream,
                                  &(ls_embed_fwd){.tokens = call->tokens,
                                                  .wte = weight(call, model->wte),
                                                  .wpe = weight(call, model->wpe),
                                                  .y = pass->in0,
                                                  .M = call->B * call->T,
                                                  .C = s->C,
                                                  .T = call->T,
                                                  .V = s->V,
                                                  .past = call->past,
                                                  .drop = drop_at(pass, call, 0, SITE_EMBED)});
    for (int64_t l = 0; l < s->L; l++)
        block_forward(pass, call, l);
    norm(pass, call,
         (ls_norm_fwd){.stream = last->mid,
                       .x = pass->branch,
                       .sum = last->next,
                       .y = pass->yf,
                       .mean = pass->meanf,
                       .rstd = pass->rstdf},
         model->lnf_w, model->lnf_b, drop_at(pass, call, s->L - 1, SITE_OUT));
}

/* --- backward ----------------------------------------------------------------------------- */

/* Gradients of one part of a layer: N columns of dy. Nothing for what is frozen. */
static void part_back(const ls_pass *pass, const ls_pass_call *call, const layer *at,
                      const float *x, const float *dy, ls_place w, ls_place b, int64_t N)
{
    float *dw = gradient(call, w), *db = gradient(call, b);

    if (!dw && !db)
        return;
    pass->args.kernels->linear_bwd_w(pass->args.stream,
                                     &(ls_linear_bwd_w){.x = x,
                                                        .dy = dy,
                                                        .dw = dw,
                                                        .db = db,
                                                        .M = call->B * call->T,
                                                        .N = N,
                                                        .K = at->K,
                                                        .ldy = at->N,
                                                        .layout = pass->args.model->shape.layout,
                                                        .leaves = call->leaves,
                                                        .accumulate = call->accumulate});
}

/* Whether the gradients of all parts, of `unit` elements per output, lie side by side like the
 * parts themselves (or are all frozen). */
static bool side_by_side(const layer *at, const ls_place *places, int64_t unit)
{
    for (int i = 1; i < at->n_parts; i++) {
        bool frozen = places[0].g < 0 && places[i].g < 0;
        if (!frozen && places[i].g != places[i - 1].g + at->widths[i - 1] * unit)
            return false;
    }
    return true;
}

static void parts_back(const ls_pass *pass, const ls_pass_call *call, const layer *at,
                       const float *x, const float *dy)
{
    if (side_by_side(at, at->w, at->K) && side_by_side(at, at->b, 1)) {
        part_back(pass, call, at, x, dy, at->w[0], at->b[0], at->N);
        return;
    }
    for (int i = 0; i < at->n_parts; dy += at->widths[i], i++)
        part_back(pass, call, at, x, dy, at->w[i], at->b[i], at->widths[i]);
}

/* Gradients of the adapters of a layer, and their share of dx. */
static void adapt_back(const ls_pass *pass, const ls_pass_call *call, int64_t l, const layer *at,
                       const float *x, const float *dy, float *dx)
{
    const ls_kernels *k = pass->args.kernels;
    const ls_model_shape *s = &pass->args.model->shape;
    int64_t M = call->B * call->T, rank = s->lora_rank;

    for (int i = at->adapter; i < at->adapter + at->n_adapters; i++) {
        const ls_adapter *a = &pass->args.model->blocks[l].adapters[i];
        if (a->a.w < 0)
            continue;
        ls_linear_bwd_w back = {.x = pass->blocks[l].small[i],
                                .dy = dy + a->first,
                                .dw = gradient(call, a->b),
                                .M = M,
                                .N = a->N,
                                .K = rank,
                                .ldy = at->N,
                                .layout = LS_LAYOUT_NK,
                                .leaves = call->leaves,
                                .accumulate = call->accumulate};
        k->linear_bwd_w(pass->args.stream, &back);
        k->linear_bwd_x(pass->args.stream, &(ls_linear_bwd_x){.dy = dy + a->first,
                                                              .w = call->w + a->b.w,
                                                              .dx = pass->dsmall,
                                                              .M = M,
                                                              .N = a->N,
                                                              .K = rank,
                                                              .ldy = at->N,
                                                              .layout = LS_LAYOUT_NK});
        k->scale(pass->args.stream,
                 &(ls_scale){.x = pass->dsmall, .value = s->lora_scale, .n = M * rank});
        back.x = x;
        back.dy = pass->dsmall;
        back.dw = gradient(call, a->a);
        back.N = rank;
        back.K = a->K;
        back.ldy = rank;
        k->linear_bwd_w(pass->args.stream, &back);
        k->linear_bwd_x(pass->args.stream, &(ls_linear_bwd_x){.dy = pass->dsmall,
                                                              .w = call->w + a->a.w,
                                                              .dx = dx,
                                                              .M = M,
                                                              .N = rank,
                                                              .K = a->K,
                                                              .layout = LS_LAYOUT_NK,
                                                              .accumulate = true});
    }
}

/* Gradients of a layer's parameters, then of its input into dx; with act, through the activation
 * below it, whose input was z. dx may be x: the parameters' gradients come first. */
static void linear_back(const ls_pass *pass, const ls_pass_call *call, int64_t l, const layer *at,
                        const float *x, const float *dy, ls_act act, const float *z, float *dx)
{
    bool adapted = has_adapter(&pass->args.model->blocks[l], at);

    LS_BUG_IF(adapted && (act != LS_ACT_NONE || dx == x), "an adapter needs its input");
    parts_back(pass, call, at, x, dy);
    pass->args.kernels->linear_bwd_x(pass->args.stream,
                                     &(ls_linear_bwd_x){.dy = dy,
                                                        .w = weight(call, at->w[0]),
                                                        .z = z,
                                                        .dx = dx,
                                                        .M = call->B * call->T,
                                                        .N = at->N,
                                                        .K = at->K,
                                                        .layout = pass->args.model->shape.layout,
                                                        .act = act});
    if (adapted)
        adapt_back(pass, call, l, at, x, dy, dx);
}

/* The norm's share of dstream, and dx, the gradient of what was added just before it. */
static void norm_back(const ls_pass *pass, const ls_pass_call *call, ls_norm_bwd args, ls_place w,
                      ls_place b, ls_dropout drop)
{
    const ls_model_shape *s = &pass->args.model->shape;

    args.kind = s->norm;
    args.dy = pass->dy;
    args.w = weight(call, w);
    args.dsum = pass->dstream;
    args.dx = drop.p > 0 ? pass->dbranch : NULL;
    args.dw = gradient(call, w);
    args.db = gradient(call, b);
    if (s->norm == LS_NORM_RMS)
        args.mean = NULL;
    args.M = call->B * call->T;
    args.C = s->C;
    args.T = call->T;
    args.leaves = call->leaves;
    args.accumulate = call->accumulate;
    args.drop = drop;
    args.scratch = pass->scratch;
    pass->args.kernels->norm_bwd(pass->args.stream, &args);
}

static void attention_back(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];
    const block_buffers *b = &pass->blocks[l];
    ls_heads dq = part_of_qkv(s, call->T, pass->dqkv, 0);
    ls_heads dk = part_of_qkv(s, call->T, pass->dqkv, 1);
    ls_heads dv = part_of_qkv(s, call->T, pass->dqkv, 2);

    pass->args.kernels->attention_bwd(
        pass->args.stream, &(ls_attention_bwd){.q = part_of_qkv(s, call->T, b->turned, 0),
                                               .k = part_of_qkv(s, call->T, b->turned, 1),
                                               .v = part_of_qkv(s, call->T, b->turned, 2),
                                               .o = heads_of(s, call->T, b->att),
                                               .dout = heads_of(s, call->T, pass->datt),
                                               .dq = dq,
                                               .dk = dk,
                                               .dv = dv,
                                               .lse = b->lse,
                                               .start = call->start,
                                               .B = call->B,
                                               .T = call->T,
                                               .H = s->H,
                                               .Hkv = s->Hkv,
                                               .D = s->D,
                                               .window = p->window,
                                               .scale = 1.0f / sqrtf((float)s->D),
                                               .drop = drop_at(pass, call, l, SITE_ATTENTION),
                                               .scratch = pass->scratch});
    if (!turns(s))
        return;
    ls_qkv row = qkv_row(pass, call, l);
    row.packed = pass->dqkv;
    row.q = dq;
    row.k = dk;
    row.v = dv;
    row.product = b->qkv;
    row.dq_norm = gradient(call, p->q_norm);
    row.dk_norm = gradient(call, p->k_norm);
    row.leaves = call->leaves;
    row.accumulate = call->accumulate;
    row.scratch = pass->scratch;
    pass->args.kernels->qkv_bwd(pass->args.stream, &row);
}

/* From the gradient of the MLP's output to that of its input, in pass->dy. */
static void mlp_back(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                     const block_layers *at, const float *dbranch)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];
    const block_buffers *b = &pass->blocks[l];
    float *dz = pass->dz;

    if (act_rides_out(s, p, at)) {
        linear_back(pass, call, l, &at->out, b->act, dbranch, s->act, b->z, dz);
    } else {
        /* An adapter still reads act while dx is made; without one dx may take its place. */
        bool adapted = has_adapter(p, &at->out);
        float *dact = adapted ? pass->dact : b->act;
        dz = b->z;
        linear_back(pass, call, l, &at->out, b->act, dbranch, LS_ACT_NONE, NULL, dact);
        pass->args.kernels->act_bwd(pass->args.stream, &(ls_act_args){.act = s->act,
                                                                      .gated = s->gated,
                                                                      .x = b->z,
                                                                      .dy = dact,
                                                                      .dx = dz,
                                                                      .M = call->B * call->T,
                                                                      .F = s->F});
    }
    linear_back(pass, call, l, &at->fc, b->y2, dz, LS_ACT_NONE, NULL, pass->dy);
}

static void block_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];
    const block_buffers *b = &pass->blocks[l];
    bool drops = call->dropout && s->dropout > 0;
    const float *dbranch = drops ? pass->dbranch : pass->dstream;
    ls_dropout none = {.p = 0};
    block_layers at;

    layers_of(pass->args.model, l, &at);
    mlp_back(pass, call, l, &at, dbranch);
    norm_back(pass, call,
              (ls_norm_bwd){.sum = b->mid, .mean = b->mean2, .rstd = b->rstd2, .add_to_dsum = true},
              p->ln2_w, p->ln2_b, drop_at(pass, call, l, SITE_PROJ));
    linear_back(pass, call, l, &at.proj, b->att, dbranch, LS_ACT_NONE, NULL, pass->datt);
    attention_back(pass, call, l);
    linear_back(pass, call, l, &at.qkv, b->y1, pass->dqkv, LS_ACT_NONE, NULL, pass->dy);
    norm_back(
        pass, call,
        (ls_norm_bwd){
            .sum = stream_into(pass, l), .mean = b->mean1, .rstd = b->rstd1, .add_to_dsum = true},
        p->ln1_w, p->ln1_b, l > 0 ? drop_at(pass, call, l - 1, SITE_OUT) : none);
}

static void head(const ls_pass *pass, const ls_pass_call *call, bool grad)
{
    const ls_model *model = pass->args.model;
    ls_head args = {.h = pass->yf,
                    .w = weight(call, model->head),
                    .targets = call->targets,
                    .losses = call->losses,
                    .state = call->state,
                    .M = call->B * call->T,
                    .C = model->shape.C,
                    .V = model->shape.V,
                    .leaves = 1,
                    .scratch = pass->scratch};

    if (grad) {
        args.dh = pass->dy;
        args.dw = parts_tied(model, call->ordered) ? call->grad + model->trained
                                                   : gradient(call, model->head);
        args.leaves = call->leaves;
        args.accumulate = call->accumulate;
    }
    pass->args.kernels->head(pass->args.stream, &args);
}

static void embed_back(const ls_pass *pass, const ls_pass_call *call)
{
    const ls_model *model = pass->args.model;
    const ls_model_shape *s = &model->shape;
    /* In fast mode the embedding adds to what the head left in a tied wte, but wpe starts afresh.
     */
    bool adds = s->tied && !call->ordered && !call->accumulate;

    if (model->wte.g < 0 && model->wpe.g < 0)
        return;
    if (adds && model->wpe.g >= 0)
        pass->args.kernels->fill(pass->args.stream,
                                 &(ls_fill){.x = gradient(call, model->wpe), .n = s->T * s->C});
    pass->args.kernels->embed_bwd(pass->args.stream,
                                  &(ls_embed_bwd){.tokens = call->tokens,
                                                  .dy = pass->dstream,
                                                  .dwte = gradient(call, model->wte),
                                                  .dwpe = gradient(call, model->wpe),
                                                  .M = call->B * call->T,
                                                  .C = s->C,
                                                  .T = call->T,
                                                  .V = s->V,
                                                  .positions = s->positions ? s->T : 0,
                                                  .leaves = call->leaves,
                                                  .accumulate = call->accumulate || adds,
                                                  .drop = drop_at(pass, call, 0, SITE_EMBED),
                                                  .scratch = pass->scratch});
}

/* The lowest block that a gradient must reach; 0 where the embedding is trained. */
static int64_t lowest_trained(const ls_model *model)
{
    int64_t l = 0;

    if (model->wte.g >= 0 || model->wpe.g >= 0)
        return 0;
    while (l < model->shape.L && !model->blocks[l].trained)
        l++;
    return l;
}

void ls_pass_backward(ls_pass *pass, const ls_pass_call *call)
{
    const ls_model *model = pass->args.model;
    const ls_model_shape *s = &model->shape;
    int64_t lowest = lowest_trained(model);

    LS_BUG_IF(!pass->args.training, "backward in a pass that keeps nothing for it");
    head(pass, call, true);
    norm_back(
        pass, call,
        (ls_norm_bwd){.sum = pass->blocks[s->L - 1].next, .mean = pass->meanf, .rstd = pass->rstdf},
        model->lnf_w, model->lnf_b, drop_at(pass, call, s->L - 1, SITE_OUT));
    for (int64_t l = s->L - 1; l >= lowest; l--)
        block_backward(pass, call, l);
    embed_back(pass, call);
}

void ls_pass_tie(ls_pass *pass, float *grad)
{
    const ls_model *model = pass->args.model;

    if (!parts_tied(model, true))
        return;
    pass->args.kernels->add(pass->args.stream, &(ls_add){.a = grad + model->wte.g,
                                                         .b = grad + model->trained,
                                                         .out = grad + model->wte.g,
                                                         .n = model->shape.V * model->shape.C});
}

/* --- looking ------------------------------------------------------------------------------ */

/* What a block computes, in order, by the names of the modules. */
enum { PER_BLOCK = 8 };
static const char *const gpt2_names[PER_BLOCK] = {
    "ln_1", "attn.c_attn", "attn",    "attn.c_proj + stream",
    "ln_2", "mlp.c_fc",    "mlp.act", "mlp.c_proj + stream"};
static const char *const llama_names[PER_BLOCK] = {"input_layernorm",
                                                   "self_attn.q_proj, k_proj, v_proj",
                                                   "self_attn",
                                                   "self_attn.o_proj + stream",
                                                   "post_attention_layernorm",
                                                   "mlp.gate_proj, up_proj",
                                                   "mlp.act",
                                                   "mlp.down_proj + stream"};

bool ls_pass_computed(const ls_pass *pass, const ls_pass_call *call, int i,
                      ls_pass_tensor *tensor_out)
{
    const ls_model_shape *s = &pass->args.model->shape;
    bool gpt2 = s->family == LS_FAMILY_GPT2;
    int64_t M = call->B * call->T, l = (i - 1) / PER_BLOCK;

    if (i == 0 || l >= s->L) {
        bool last = i != 0;
        *tensor_out = (ls_pass_tensor){.x = last ? pass->yf : pass->in0, .n = M * s->C};
        snprintf(tensor_out->name, sizeof tensor_out->name, "%s",
                 gpt2 ? (last ? "transformer.ln_f" : "transformer.wte + wpe")
                      : (last ? "model.norm" : "model.embed_tokens"));
        return i <= s->L * PER_BLOCK + 1;
    }
    const block_buffers *b = &pass->blocks[l];
    const float *const buffers[PER_BLOCK] = {b->y1, b->qkv, b->att, b->mid,
                                             b->y2, b->z,   b->act, b->next};
    const int64_t widths[PER_BLOCK] = {s->C, qkv_width(s), att_width(s), s->C,
                                       s->C, fc_width(s),  s->F,         s->C};
    int k = (i - 1) % PER_BLOCK;
    *tensor_out = (ls_pass_tensor){.x = buffers[k], .n = M * widths[k]};
    snprintf(tensor_out->name, sizeof tensor_out->name, "%s.%lld.%s",
             gpt2 ? "transformer.h" : "model.layers", (long long)l,
             (gpt2 ? gpt2_names : llama_names)[k]);
    return true;
}

void ls_pass_loss(ls_pass *pass, const ls_pass_call *call)
{
    ls_pass_call quiet = *call;

    quiet.dropout = false;
    ls_pass_forward(pass, &quiet);
    head(pass, &quiet, false);
}

void ls_pass_logits(ls_pass *pass, const ls_pass_call *call, int64_t row, float *logits)
{
    const ls_model_shape *s = &pass->args.model->shape;
    ls_pass_call quiet = *call;

    quiet.dropout = false;
    ls_pass_forward(pass, &quiet);
    pass->args.kernels->linear_fwd(pass->args.stream,
                                   &(ls_linear_fwd){.x = pass->yf + row * s->C,
                                                    .w = weight(call, pass->args.model->head),
                                                    .y = logits,
                                                    .M = 1,
                                                    .N = s->V,
                                                    .K = s->C,
                                                    .layout = LS_LAYOUT_NK});
}
