/* pass.c -- a GPT-2 as calls of the kernel table.
 *
 * The residual stream is never added to on its own: each norm takes the stream and what the block
 * before it produced, writes their sum and the normalised sum (one pass over memory). With L
 * blocks:
 *
 *   in[0] = embed(tokens)                       y1 = norm(in[0])
 *   qkv -> attention -> proj = branch           mid[l] = in[l] + branch,  y2 = norm(mid[l])
 *   fc, gelu -> out = branch                    in[l+1] = mid[l] + branch, y1 = norm(in[l+1])
 *   after the last block the final norm takes the place of the next block's first.
 *
 * Backward walks the same list upwards with one gradient of the stream, `dstream`, to which every
 * norm adds its share. Kept per block: y1, qkv, attention output and its log-sum-exp, mid, y2, the
 * MLP's value before and after GELU, the next stream, and two statistics per norm. Without training
 * all blocks share one set of these buffers. */
#include "model/pass.h"

#include <math.h>
#include "base/mem.h"

/* Where dropout happens; block l uses 3 l + these. */
enum { SITE_EMBED = 0, SITE_ATTENTION = 1, SITE_PROJ = 2, SITE_OUT = 3 };

typedef struct block_buffers {
    float *y1, *mean1, *rstd1, *qkv, *att, *lse, *mid, *y2, *mean2, *rstd2, *z, *act, *next;
} block_buffers;

struct ls_pass {
    ls_pass_args args;
    int64_t bytes;
    void *memory; /* owned */
    float *in0, *branch, *yf, *meanf, *rstdf;
    float *dstream, *dbranch, *dy, *dqkv, *datt, *dz;
    void *scratch;
    block_buffers *blocks; /* L of them, owned; equal ones when not training */
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

static ls_heads part_of_qkv(const ls_model_shape *s, int64_t T, float *qkv, int which)
{
    return (ls_heads){qkv + which * s->C, T * 3 * s->C, 3 * s->C, s->D};
}

static ls_heads heads_of(const ls_model_shape *s, int64_t T, float *x)
{
    return (ls_heads){x, T * s->C, s->C, s->D};
}

static int64_t scratch_bytes(const ls_pass_args *args, int threads)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T, leaves = args->leaves, most;
    bool grad = args->training;
    /* Sizes depend on whether gradients are wanted; the pointers are only compared with NULL. */
    float *wanted = grad ? (float *)(uintptr_t)LS_PARAM_ALIGN : NULL;
    ls_head head = {.M = M, .C = s->C, .V = s->V, .leaves = leaves, .dh = wanted, .dw = wanted};

    most = args->kernels->scratch(LS_ROW_HEAD, &head, threads);
    head.leaves = 1; /* ls_pass_loss() takes all rows as one leaf */
    head.dh = head.dw = NULL;
    most = ls_max_i64(most, args->kernels->scratch(LS_ROW_HEAD, &head, threads));
    if (!grad)
        return most;
    const ls_attention_bwd att = {.B = args->B, .T = args->T, .H = s->H, .Hkv = s->H, .D = s->D};
    const ls_norm_bwd norm = {.M = M, .C = s->C, .T = args->T, .leaves = leaves};
    const ls_embed_bwd embed = {
        .M = M, .C = s->C, .T = args->T, .V = s->V, .positions = s->T, .leaves = leaves};
    most = ls_max_i64(most, args->kernels->scratch(LS_ROW_ATTENTION_BWD, &att, threads));
    most = ls_max_i64(most, args->kernels->scratch(LS_ROW_NORM_BWD, &norm, threads));
    return ls_max_i64(most, args->kernels->scratch(LS_ROW_EMBED_BWD, &embed, threads));
}

static void cut_block(cutter *c, const ls_pass_args *args, block_buffers *b)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T;

    b->y1 = cut_floats(c, M * s->C);
    b->mean1 = cut_floats(c, M);
    b->rstd1 = cut_floats(c, M);
    b->qkv = cut_floats(c, M * 3 * s->C);
    b->att = cut_floats(c, M * s->C);
    b->lse = cut_floats(c, args->B * s->H * args->T);
    b->mid = cut_floats(c, M * s->C);
    b->y2 = cut_floats(c, M * s->C);
    b->mean2 = cut_floats(c, M);
    b->rstd2 = cut_floats(c, M);
    b->z = args->training ? cut_floats(c, M * s->F) : NULL;
    b->act = cut_floats(c, M * s->F);
    b->next = cut_floats(c, M * s->C);
}

/* The one description of the buffer, used for counting and for cutting. blocks may be NULL. */
static void lay_out(cutter *c, const ls_pass_args *args, int threads, ls_pass *pass)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T;

    pass->in0 = cut_floats(c, M * s->C);
    pass->branch = cut_floats(c, M * s->C);
    pass->yf = cut_floats(c, M * s->C);
    pass->meanf = cut_floats(c, M);
    pass->rstdf = cut_floats(c, M);
    for (int64_t l = 0; l < s->L; l++) {
        block_buffers b = {.y1 = NULL};
        if (l == 0 || args->training)
            cut_block(c, args, &b);
        else if (pass->blocks)
            b = pass->blocks[0];
        if (pass->blocks)
            pass->blocks[l] = b;
    }
    if (args->training) {
        pass->dstream = cut_floats(c, M * s->C);
        pass->dbranch = s->dropout > 0 ? cut_floats(c, M * s->C) : NULL;
        pass->dy = cut_floats(c, M * s->C);
        pass->dqkv = cut_floats(c, M * 3 * s->C);
        pass->datt = cut_floats(c, M * s->C);
        pass->dz = cut_floats(c, M * s->F);
    }
    pass->scratch = cut(c, scratch_bytes(args, threads));
}

int64_t ls_pass_bytes(const ls_pass_args *args, int threads)
{
    cutter c = {.base = NULL};
    ls_pass unused = {.blocks = NULL};

    lay_out(&c, args, threads, &unused);
    return ls_round_up(c.used, 4096);
}

ls_status ls_pass_open(ls_pass **pass_out, const ls_pass_args *args)
{
    ls_status st = LS_OK;
    ls_device *device = ls_stream_device(args->stream);
    int threads = ls_device_describe(device).threads;
    ls_pass *pass = ls_mem_alloc(sizeof *pass);

    if (!pass)
        return LS_ENOMEM;
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

int64_t ls_pass_grad_elements(const ls_model *model, bool ordered)
{
    return model->flat +
           (ordered ? ls_round_up(model->shape.V * model->shape.C, LS_PARAM_ALIGN) : 0);
}

static ls_dropout drop_at(const ls_pass *pass, const ls_pass_call *call, int64_t l, int site)
{
    return (ls_dropout){.p = call->dropout ? pass->args.model->shape.dropout : 0,
                        .site = (uint32_t)(site == SITE_EMBED ? 0 : 3 * l + site),
                        .state = call->state};
}

/* --- forward ------------------------------------------------------------------------------ */

static void linear(const ls_pass *pass, int64_t M, const float *x, const float *w, const float *b,
                   int64_t K, int64_t N, ls_act act, float *z, float *y)
{
    pass->args.kernels->linear_fwd(pass->args.stream, &(ls_linear_fwd){.x = x,
                                                                       .w = w,
                                                                       .b = b,
                                                                       .y = y,
                                                                       .z = z,
                                                                       .M = M,
                                                                       .N = N,
                                                                       .K = K,
                                                                       .layout = LS_LAYOUT_KN,
                                                                       .act = act});
}

/* sum = stream + dropout(x); y = norm(sum). l and site name the dropout that x goes through. */
static void norm(const ls_pass *pass, const ls_pass_call *call, ls_norm_fwd args, ls_dropout drop)
{
    args.kind = LS_NORM_LAYER;
    args.M = call->B * call->T;
    args.C = pass->args.model->shape.C;
    args.T = call->T;
    args.eps = pass->args.model->shape.eps;
    args.drop = drop;
    pass->args.kernels->norm_fwd(pass->args.stream, &args);
}

static const float *stream_into(const ls_pass *pass, int64_t l)
{
    return l == 0 ? pass->in0 : pass->blocks[l - 1].next;
}

static void attention(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const block_buffers *b = &pass->blocks[l];

    pass->args.kernels->attention_fwd(
        pass->args.stream, &(ls_attention_fwd){.q = part_of_qkv(s, call->T, b->qkv, 0),
                                               .k = part_of_qkv(s, call->T, b->qkv, 1),
                                               .v = part_of_qkv(s, call->T, b->qkv, 2),
                                               .o = heads_of(s, call->T, b->att),
                                               .lse = b->lse,
                                               .start = call->start,
                                               .B = call->B,
                                               .T = call->T,
                                               .H = s->H,
                                               .Hkv = s->H,
                                               .D = s->D,
                                               .scale = 1.0f / sqrtf((float)s->D),
                                               .drop = drop_at(pass, call, l, SITE_ATTENTION)});
}

static void block_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model *model = pass->args.model;
    const ls_model_shape *s = &model->shape;
    const ls_block_params *p = &model->blocks[l];
    const block_buffers *b = &pass->blocks[l];
    const float *w = call->w;
    int64_t M = call->B * call->T;

    /* What the block before added becomes part of the stream in this block's first norm. */
    ls_norm_fwd n1 = {.stream = pass->in0,
                      .y = b->y1,
                      .w = w + p->ln1_w,
                      .b = w + p->ln1_b,
                      .mean = b->mean1,
                      .rstd = b->rstd1};
    if (l > 0) {
        n1.stream = pass->blocks[l - 1].mid;
        n1.x = pass->branch;
        n1.sum = pass->blocks[l - 1].next;
    }
    norm(pass, call, n1, drop_at(pass, call, l - 1, SITE_OUT));
    linear(pass, M, b->y1, w + p->qkv_w, w + p->qkv_b, s->C, 3 * s->C, LS_ACT_NONE, NULL, b->qkv);
    attention(pass, call, l);
    linear(pass, M, b->att, w + p->proj_w, w + p->proj_b, s->C, s->C, LS_ACT_NONE, NULL,
           pass->branch);
    norm(pass, call,
         (ls_norm_fwd){.stream = stream_into(pass, l),
                       .x = pass->branch,
                       .sum = b->mid,
                       .y = b->y2,
                       .w = w + p->ln2_w,
                       .b = w + p->ln2_b,
                       .mean = b->mean2,
                       .rstd = b->rstd2},
         drop_at(pass, call, l, SITE_PROJ));
    linear(pass, M, b->y2, w + p->fc_w, w + p->fc_b, s->C, s->F, LS_ACT_GELU, b->z, b->act);
    linear(pass, M, b->act, w + p->out_w, w + p->out_b, s->F, s->C, LS_ACT_NONE, NULL,
           pass->branch);
}

void ls_pass_forward(ls_pass *pass, const ls_pass_call *call)
{
    const ls_model *model = pass->args.model;
    const ls_model_shape *s = &model->shape;
    const block_buffers *last = &pass->blocks[s->L - 1];

    LS_BUG_IF(call->B > pass->args.B || call->T > pass->args.T || call->leaves > pass->args.leaves,
              "a call of %lld x %lld tokens in a pass made for %lld x %lld", (long long)call->B,
              (long long)call->T, (long long)pass->args.B, (long long)pass->args.T);
    pass->args.kernels->embed_fwd(pass->args.stream,
                                  &(ls_embed_fwd){.tokens = call->tokens,
                                                  .wte = call->w + model->wte,
                                                  .wpe = call->w + model->wpe,
                                                  .y = pass->in0,
                                                  .M = call->B * call->T,
                                                  .C = s->C,
                                                  .T = call->T,
                                                  .V = s->V,
                                                  .drop = drop_at(pass, call, 0, SITE_EMBED)});
    for (int64_t l = 0; l < s->L; l++)
        block_forward(pass, call, l);
    norm(pass, call,
         (ls_norm_fwd){.stream = last->mid,
                       .x = pass->branch,
                       .sum = last->next,
                       .y = pass->yf,
                       .w = call->w + model->lnf_w,
                       .b = call->w + model->lnf_b,
                       .mean = pass->meanf,
                       .rstd = pass->rstdf},
         drop_at(pass, call, s->L - 1, SITE_OUT));
}

/* --- backward ----------------------------------------------------------------------------- */

/* Gradients of a linear layer's weight and bias, then of its input into dx. */
static void linear_back(const ls_pass *pass, const ls_pass_call *call, const float *x,
                        const float *dy, int64_t w_at, int64_t b_at, int64_t K, int64_t N,
                        ls_act act, const float *z, float *dx)
{
    const ls_kernels *k = pass->args.kernels;
    int64_t M = call->B * call->T;

    k->linear_bwd_w(pass->args.stream, &(ls_linear_bwd_w){.x = x,
                                                          .dy = dy,
                                                          .dw = call->grad + w_at,
                                                          .db = call->grad + b_at,
                                                          .M = M,
                                                          .N = N,
                                                          .K = K,
                                                          .layout = LS_LAYOUT_KN,
                                                          .leaves = call->leaves,
                                                          .accumulate = call->accumulate});
    k->linear_bwd_x(pass->args.stream, &(ls_linear_bwd_x){.dy = dy,
                                                          .w = call->w + w_at,
                                                          .z = z,
                                                          .dx = dx,
                                                          .M = M,
                                                          .N = N,
                                                          .K = K,
                                                          .layout = LS_LAYOUT_KN,
                                                          .act = act});
}

/* The norm's share of dstream, and dx, the gradient of what was added just before it. */
static void norm_back(const ls_pass *pass, const ls_pass_call *call, ls_norm_bwd args, int64_t w_at,
                      int64_t b_at, ls_dropout drop)
{
    args.kind = LS_NORM_LAYER;
    args.dy = pass->dy;
    args.w = call->w + w_at;
    args.dsum = pass->dstream;
    args.dx = drop.p > 0 ? pass->dbranch : NULL;
    args.dw = call->grad + w_at;
    args.db = call->grad + b_at;
    args.M = call->B * call->T;
    args.C = pass->args.model->shape.C;
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
    const block_buffers *b = &pass->blocks[l];

    pass->args.kernels->attention_bwd(
        pass->args.stream, &(ls_attention_bwd){.q = part_of_qkv(s, call->T, b->qkv, 0),
                                               .k = part_of_qkv(s, call->T, b->qkv, 1),
                                               .v = part_of_qkv(s, call->T, b->qkv, 2),
                                               .o = heads_of(s, call->T, b->att),
                                               .dout = heads_of(s, call->T, pass->datt),
                                               .dq = part_of_qkv(s, call->T, pass->dqkv, 0),
                                               .dk = part_of_qkv(s, call->T, pass->dqkv, 1),
                                               .dv = part_of_qkv(s, call->T, pass->dqkv, 2),
                                               .lse = b->lse,
                                               .start = call->start,
                                               .B = call->B,
                                               .T = call->T,
                                               .H = s->H,
                                               .Hkv = s->H,
                                               .D = s->D,
                                               .scale = 1.0f / sqrtf((float)s->D),
                                               .drop = drop_at(pass, call, l, SITE_ATTENTION),
                                               .scratch = pass->scratch});
}

static void block_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];
    const block_buffers *b = &pass->blocks[l];
    bool drops = call->dropout && s->dropout > 0;
    const float *dbranch = drops ? pass->dbranch : pass->dstream;
    ls_dropout none = {.p = 0};

    linear_back(pass, call, b->act, dbranch, p->out_w, p->out_b, s->F, s->C, LS_ACT_GELU, b->z,
                pass->dz);
    linear_back(pass, call, b->y2, pass->dz, p->fc_w, p->fc_b, s->C, s->F, LS_ACT_NONE, NULL,
                pass->dy);
    norm_back(pass, call,
              (ls_norm_bwd){.sum = b->mid, .mean = b->mean2, .rstd = b->rstd2, .add_to_dsum = true},
              p->ln2_w, p->ln2_b, drop_at(pass, call, l, SITE_PROJ));
    linear_back(pass, call, b->att, dbranch, p->proj_w, p->proj_b, s->C, s->C, LS_ACT_NONE, NULL,
                pass->datt);
    attention_back(pass, call, l);
    linear_back(pass, call, b->y1, pass->dqkv, p->qkv_w, p->qkv_b, s->C, 3 * s->C, LS_ACT_NONE,
                NULL, pass->dy);
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
                    .w = call->w + model->wte,
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
        args.dw = call->grad + (call->ordered ? model->flat : model->wte);
        args.leaves = call->leaves;
        args.accumulate = call->accumulate;
    }
    pass->args.kernels->head(pass->args.stream, &args);
}

void ls_pass_backward(ls_pass *pass, const ls_pass_call *call)
{
    const ls_model *model = pass->args.model;
    const ls_model_shape *s = &model->shape;

    LS_BUG_IF(!pass->args.training, "backward in a pass that keeps nothing for it");
    head(pass, call, true);
    norm_back(
        pass, call,
        (ls_norm_bwd){.sum = pass->blocks[s->L - 1].next, .mean = pass->meanf, .rstd = pass->rstdf},
        model->lnf_w, model->lnf_b, drop_at(pass, call, s->L - 1, SITE_OUT));
    for (int64_t l = s->L - 1; l >= 0; l--)
        block_backward(pass, call, l);
    /* In fast mode the embedding adds to what the head left in wte, but wpe starts afresh. */
    if (!call->ordered && !call->accumulate)
        pass->args.kernels->fill(pass->args.stream,
                                 &(ls_fill){.x = call->grad + model->wpe, .n = s->T * s->C});
    pass->args.kernels->embed_bwd(pass->args.stream,
                                  &(ls_embed_bwd){.tokens = call->tokens,
                                                  .dy = pass->dstream,
                                                  .dwte = call->grad + model->wte,
                                                  .dwpe = call->grad + model->wpe,
                                                  .M = call->B * call->T,
                                                  .C = s->C,
                                                  .T = call->T,
                                                  .V = s->V,
                                                  .positions = s->T,
                                                  .leaves = call->leaves,
                                                  .accumulate = call->accumulate || !call->ordered,
                                                  .drop = drop_at(pass, call, 0, SITE_EMBED),
                                                  .scratch = pass->scratch});
}

void ls_pass_tie(ls_pass *pass, float *grad)
{
    const ls_model *model = pass->args.model;

    pass->args.kernels->add(pass->args.stream, &(ls_add){.a = grad + model->wte,
                                                         .b = grad + model->flat,
                                                         .out = grad + model->wte,
                                                         .n = model->shape.V * model->shape.C});
}

/* What a block computes, in order. */
static const char *const block_names[] = {"ln_1", "attn.c_attn", "attn",    "attn.c_proj + stream",
                                          "ln_2", "mlp.c_fc",    "mlp.act", "mlp.c_proj + stream"};

bool ls_pass_computed(const ls_pass *pass, const ls_pass_call *call, int i,
                      ls_pass_tensor *tensor_out)
{
    enum { PER_BLOCK = LS_COUNT(block_names) };
    const ls_model_shape *s = &pass->args.model->shape;
    int64_t M = call->B * call->T, l = (i - 1) / PER_BLOCK;

    if (i == 0 || l >= s->L) {
        bool last = i != 0;
        *tensor_out = (ls_pass_tensor){.x = last ? pass->yf : pass->in0, .n = M * s->C};
        snprintf(tensor_out->name, sizeof tensor_out->name, "transformer.%s",
                 last ? "ln_f" : "wte + wpe");
        return i <= s->L * PER_BLOCK + 1;
    }
    const block_buffers *b = &pass->blocks[l];
    const float *const buffers[PER_BLOCK] = {b->y1, b->qkv, b->att, b->mid,
                                             b->y2, b->z,   b->act, b->next};
    const int64_t widths[PER_BLOCK] = {s->C, 3 * s->C, s->C, s->C, s->C, s->F, s->F, s->C};
    int k = (i - 1) % PER_BLOCK;
    *tensor_out = (ls_pass_tensor){.x = buffers[k], .n = M * widths[k]};
    snprintf(tensor_out->name, sizeof tensor_out->name, "transformer.h.%lld.%s", (long long)l,
             block_names[k]);
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
                                                    .w = call->w + pass->args.model->wte,
                                                    .y = logits,
                                                    .M = 1,
                                                    .N = s->V,
                                                    .K = s->C,
                                                    .layout = LS_LAYOUT_NK});
}
