/* pass_backward.c -- the gradient of the transformer, from the head down to the embedding.
 *
 * It walks the list of pass.c upwards; what is frozen is skipped, and where nothing below is trained
 * the walk ends. `dstream` is the gradient of the stream. With norms before the layers a branch reads
 * it, and the norm that the branch began with adds what comes out:
 *
 *   dstream -> out, act, fc -> dy -> norm2: dstream += ...   then attention and norm1 likewise
 *
 * With norms behind them it passes through the norm first, and the product that the branch began with
 * adds what comes out:
 *
 *   dstream -> norm2 -> dbranch -> out, act -> fc: dstream += ...   then norm1 and attention likewise
 */
#include "model/pass_impl.h"

#include <math.h>

/* Gradients of one part of a layer: N columns of dy. Nothing for what is frozen. */
static void part_back(const ls_pass *pass, const ls_pass_call *call, const ls_pass_layer *at,
                      const void *x, const void *dy, ls_place w, ls_place b, int64_t N,
                      const ls_fp8 *fp8)
{
    float *dw = ls_pass_gradient(call, w);
    float *db = at->bias_summed ? NULL : ls_pass_gradient(call, b);

    if (!dw && !db)
        return;
    pass->args.kernels->linear_bwd_w(pass->args.stream,
                                     &(ls_linear_bwd_w){.type = pass->args.type,
                                                        .tf32 = pass->args.tf32,
                                                        .x = x,
                                                        .dy = dy,
                                                        .dw = dw,
                                                        .db = db,
                                                        .M = call->B * call->T,
                                                        .N = N,
                                                        .K = at->K,
                                                        .ldy = at->N,
                                                        .layout = pass->args.model->shape.layout,
                                                        .leaves = call->leaves,
                                                        .accumulate = call->accumulate,
                                                        .fp8 = *fp8});
}

/* Whether the gradients of all parts, of `unit` elements per output, lie side by side like the
 * parts themselves (or are all frozen). */
static bool side_by_side(const ls_pass_layer *at, const ls_place *places, int64_t unit)
{
    for (int i = 1; i < at->n_parts; i++) {
        bool frozen = places[0].g < 0 && places[i].g < 0;
        if (!frozen && places[i].g != places[i - 1].g + at->widths[i - 1] * unit)
            return false;
    }
    return true;
}

/* Notes in fp8 that dy is kept for the product that follows, where it is. */
void ls_pass_parts_back(const ls_pass *pass, const ls_pass_call *call, const ls_pass_layer *at,
                        const void *x, void *dy, ls_fp8 *fp8)
{
    const ls_fp8 none = {.x_max = NULL};

    if (side_by_side(at, at->w, at->K) && side_by_side(at, at->b, 1)) {
        part_back(pass, call, at, x, dy, at->w[0], at->b[0], at->N, fp8);
        fp8->dy_kept = at->w[0].g >= 0 && call->leaves == 1;
        return;
    }
    for (int i = 0; i < at->n_parts; dy = ls_pass_at(pass, dy, at->widths[i]), i++)
        part_back(pass, call, at, x, dy, at->w[i], at->b[i], at->widths[i], &none);
}

/* Gradients of the adapters of a layer, and their share of dx. */
static void adapt_back(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                       const ls_pass_layer *at, const void *x, void *dy, void *dx)
{
    const ls_kernels *k = pass->args.kernels;
    const ls_model_shape *s = &pass->args.model->shape;
    int64_t M = call->B * call->T, rank = s->lora_rank;

    for (int i = at->adapter; i < at->adapter + at->n_adapters; i++) {
        const ls_adapter *a = &pass->args.model->blocks[l].adapters[i];
        if (a->a.w < 0)
            continue;
        ls_linear_bwd_w back = {.type = pass->args.type,
                                .tf32 = pass->args.tf32,
                                .x = pass->blocks[l].small[i],
                                .dy = ls_pass_at(pass, dy, a->first),
                                .dw = ls_pass_gradient(call, a->b),
                                .M = M,
                                .N = a->N,
                                .K = rank,
                                .ldy = at->N,
                                .layout = LS_LAYOUT_NK,
                                .leaves = call->leaves,
                                .accumulate = call->accumulate};
        k->linear_bwd_w(pass->args.stream, &back);
        k->linear_bwd_x(pass->args.stream, &(ls_linear_bwd_x){.type = pass->args.type,
                                                              .tf32 = pass->args.tf32,
                                                              .dy = ls_pass_at(pass, dy, a->first),
                                                              .w = ls_pass_weight(pass, call, a->b),
                                                              .dx = pass->dsmall,
                                                              .M = M,
                                                              .N = a->N,
                                                              .K = rank,
                                                              .ldy = at->N,
                                                              .layout = LS_LAYOUT_NK});
        ls_pass_scale(pass, pass->dsmall, M * rank);
        back.x = x;
        back.dy = pass->dsmall;
        back.dw = ls_pass_gradient(call, a->a);
        back.N = rank;
        back.K = a->K;
        back.ldy = rank;
        k->linear_bwd_w(pass->args.stream, &back);
        k->linear_bwd_x(pass->args.stream, &(ls_linear_bwd_x){.type = pass->args.type,
                                                              .tf32 = pass->args.tf32,
                                                              .dy = pass->dsmall,
                                                              .w = ls_pass_weight(pass, call, a->a),
                                                              .dx = dx,
                                                              .M = M,
                                                              .N = rank,
                                                              .K = a->K,
                                                              .layout = LS_LAYOUT_NK,
                                                              .accumulate = true});
    }
}

/* Whether the activation's gradient is part of the product out of the MLP. */
static bool act_joins_out(const ls_model_shape *s, const ls_block_params *p,
                          const ls_pass_layers *at)
{
    return !s->gated && !ls_pass_has_adapter(p, &at->out);
}

/* Whether the row that made the gradient of a layer's output has left its largest magnitude: norms
 * do, and an activation that is a row of its own. */
static bool dy_max_is_known(const ls_pass *pass, int64_t l, const ls_pass_layer *at)
{
    ls_pass_layers all;

    ls_pass_layers_of(pass->args.model, l, &all);
    return at->which == LS_LAYER_FC
               ? !act_joins_out(&pass->args.model->shape, &pass->args.model->blocks[l], &all)
               : at->which != LS_LAYER_QKV;
}

/* The gradient of a layer's input, without what its adapters add; with act, through the activation
 * below it; or `onto` what is there. */
static void input_back(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                       const ls_pass_layer *at, const void *dy, ls_act act, const void *z,
                       const ls_fp8 *fp8, bool onto, void *dx)
{
    const void *packed = ls_pass_packed(pass, call, l, at->which, true);

    pass->args.kernels->linear_bwd_x(pass->args.stream,
                                     &(ls_linear_bwd_x){.type = pass->args.type,
                                                        .tf32 = pass->args.tf32,
                                                        .dy = dy,
                                                        .w = ls_pass_weight(pass, call, at->w[0]),
                                                        .packed = packed,
                                                        .z = z,
                                                        .dx = dx,
                                                        .M = call->B * call->T,
                                                        .N = at->N,
                                                        .K = at->K,
                                                        .layout = pass->args.model->shape.layout,
                                                        .act = act,
                                                        .accumulate = onto,
                                                        .fp8 = *fp8});
}

/* Gradients of a layer's parameters, unless they come later, then of its input into dx; with act,
 * through the activation below it, whose input was z. dx may be x: the parameters' gradients come
 * first, where they do not come later. onto: dx is added to what is there. */
static void linear_back(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                        const ls_pass_layer *at, const void *x, void *dy, ls_act act, const void *z,
                        bool onto, void *dx)
{
    ls_fp8 fp8 = ls_pass_fp8(pass, l, at, true, dy_max_is_known(pass, l, at));
    bool adapted = ls_pass_has_adapter(&pass->args.model->blocks[l], at);

    LS_BUG_IF(adapted && (act != LS_ACT_NONE || dx == x), "an adapter needs its input");
    if (ls_pass_is_dora(&pass->args, l, at))
        dy = ls_pass_dora_backward(pass, call, l, at, dy);
    if (!pass->late)
        ls_pass_parts_back(pass, call, at, x, dy, &fp8);
    input_back(pass, call, l, at, dy, act, z, &fp8, onto, dx);
    if (adapted)
        adapt_back(pass, call, l, at, x, dy, dx);
}

/* The same of a layer that begins a branch, down to pass->dy, or, with norms behind the layers, onto
 * the gradient of the stream. On one rank that is all. Else dx is a part of a sum: rows of x come
 * while dx is made, and dx is sent while the gradients of the parameters are. */
static void column_back(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                        const ls_pass_layer *at, void *share, void *dy)
{
    ls_fp8 none = {.x_max = NULL};
    bool adapted = ls_pass_has_adapter(&pass->args.model->blocks[l], at);
    bool onto = pass->args.model->shape.post_norm;
    void *into = onto ? pass->dstream : pass->dy, *dx = ls_pass_part(pass, into), *x = NULL;
    int coming = -1, going;

    if (!ls_pass_is_split(&pass->args)) {
        linear_back(pass, call, l, at, share, dy, LS_ACT_NONE, NULL, onto, dx);
        return;
    }
    if (!pass->late || adapted)
        x = ls_pass_whole_start(pass, call, share, pass->whole_x, &coming);
    onto = onto && ls_pass_part_onto(pass, call, into);
    input_back(pass, call, l, at, dy, LS_ACT_NONE, NULL, &none, onto, dx);
    ls_pass_wait(pass, coming);
    adapt_back(pass, call, l, at, x, dy, dx);
    going = ls_pass_join_start(pass, call, into);
    if (!pass->late)
        ls_pass_parts_back(pass, call, at, x, dy, &none);
    ls_pass_wait(pass, going);
}

/* The gradients of a norm that has seen no row. */
static void clear_norm(const ls_pass *pass, const ls_norm_bwd *args)
{
    if (args->dw)
        pass->args.kernels->fill(pass->args.stream, &(ls_fill){.x = args->dw, .n = args->C});
    if (args->db)
        pass->args.kernels->fill(pass->args.stream, &(ls_fill){.x = args->db, .n = args->C});
}

/* The norm's share of dstream, and dx, the gradient of what was added just before it: by the layer
 * `below`, whose bias gets its gradient here where the row can sum; NULL: the embedding. Of a norm
 * behind a layer, from dy = dstream to dsum = dbranch, the gradient of what that layer made. */
static void norm_back(const ls_pass *pass, const ls_pass_call *call, ls_norm_bwd args, ls_place w,
                      ls_place b, ls_dropout drop, const ls_place *below)
{
    const ls_model_shape *s = &pass->args.model->shape;
    bool shares = ls_pass_divides_rows(&pass->args);

    args.type = pass->args.type;
    args.kind = s->norm;
    args.dy = args.dy ? args.dy : pass->dy;
    args.w = ls_pass_weight(pass, call, w);
    args.dsum = args.dsum ? args.dsum : pass->dstream;
    args.dx = drop.p > 0 ? pass->dbranch : NULL;
    args.dw = ls_pass_gradient(call, w);
    args.db = ls_pass_gradient(call, b);
    args.dx_sum = below && ls_pass_norms_sum(&pass->args) ? ls_pass_gradient(call, *below) : NULL;
    if (s->norm == LS_NORM_RMS)
        args.mean = NULL;
    args.M = ls_pass_own_rows(pass, call, &drop.first_row);
    args.C = s->C;
    args.T = call->T;
    args.leaves = shares ? 1 : call->leaves; /* a share of rows goes across leaves */
    args.accumulate = call->accumulate;
    args.drop = drop;
    args.scratch = pass->scratch;
    if (args.M > 0)
        pass->args.kernels->norm_bwd(pass->args.stream, &args);
    else if (!args.accumulate)
        clear_norm(pass, &args);
}

/* Where the gradient of the packed product of q, k and v goes. */
static void *dqkv_of(const ls_pass *pass, int64_t l)
{
    return pass->late ? pass->late[l].dqkv : pass->dqkv;
}

/* The gradient of a product's output is kept for the second half; the walk goes on with its own. */
static void keep_late(const ls_pass *pass, const ls_pass_call *call, void *late, const void *dy)
{
    int64_t n = call->B * call->T * pass->args.model->shape.C;

    if (late)
        ls_stream_copy(pass->args.stream, late, dy, n * ls_dtype_bytes(pass->args.type));
}

/* Through the norm of all heads of q or k (0, 1), in place: the row of it. */
static ls_qkv wide_norm_back(const ls_pass *pass, const ls_pass_call *call, int64_t l, int which)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];
    int64_t at = ls_pass_wide_at(s, which);
    ls_qkv row = ls_pass_wide_norm(pass, call, l, which);

    row.packed = ls_pass_at(pass, dqkv_of(pass, l), at);
    row.q = ls_pass_part_of_qkv(pass, call->T, dqkv_of(pass, l), which);
    row.product = ls_pass_at(pass, pass->blocks[l].qkv, at);
    row.dq_norm = ls_pass_gradient(call, which ? p->k_norm : p->q_norm);
    row.leaves = call->leaves;
    row.accumulate = call->accumulate;
    row.scratch = pass->scratch;
    return row;
}

/* From datt to the gradients of q, k and v in dqkv. */
static void attention_alone_back(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_pass_buffers *b = &pass->blocks[l];

    pass->args.kernels->attention_bwd(
        pass->args.stream,
        &(ls_attention_bwd){.type = pass->args.type,
                            .q = ls_pass_part_of_qkv(pass, call->T, b->turned, 0),
                            .k = ls_pass_part_of_qkv(pass, call->T, b->turned, 1),
                            .v = ls_pass_part_of_qkv(pass, call->T, b->turned, 2),
                            .o = ls_pass_heads_of(pass, call->T, b->att),
                            .dout = ls_pass_heads_of(pass, call->T, pass->datt),
                            .dq = ls_pass_part_of_qkv(pass, call->T, dqkv_of(pass, l), 0),
                            .dk = ls_pass_part_of_qkv(pass, call->T, dqkv_of(pass, l), 1),
                            .dv = ls_pass_part_of_qkv(pass, call->T, dqkv_of(pass, l), 2),
                            .lse = b->lse,
                            .start = call->start,
                            .B = call->B,
                            .T = call->T,
                            .H = s->H,
                            .Hkv = s->Hkv,
                            .D = s->D,
                            .window = pass->args.model->blocks[l].window,
                            .scale = 1.0f / sqrtf((float)s->D),
                            .any_order = pass->args.any_order,
                            .drop = ls_pass_drop_at(pass, call, l, SITE_ATTENTION),
                            .scratch = pass->scratch});
}

/* The gradient of a norm of q or k; where only the other is wanted, a place for it. */
static float *norm_gradient(const ls_pass *pass, const ls_pass_call *call, ls_place own,
                            ls_place other)
{
    return pass->args.model->shape.qk_wide ? NULL
           : own.g < 0 && other.g >= 0     ? pass->spare
                                           : ls_pass_gradient(call, own);
}

static void attention_back(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];

    if (ls_pass_is_cp(&pass->args))
        ls_pass_cp_backward(pass, call, l, dqkv_of(pass, l));
    else
        attention_alone_back(pass, call, l);
    if (!ls_pass_turns(s))
        return;
    ls_qkv row = ls_pass_qkv_row(pass, call, l);
    row.packed = dqkv_of(pass, l);
    row.q = ls_pass_part_of_qkv(pass, call->T, dqkv_of(pass, l), 0);
    row.k = ls_pass_part_of_qkv(pass, call->T, dqkv_of(pass, l), 1);
    row.v = ls_pass_part_of_qkv(pass, call->T, dqkv_of(pass, l), 2);
    row.product = pass->blocks[l].qkv;
    row.dq_norm = norm_gradient(pass, call, p->q_norm, p->k_norm);
    row.dk_norm = norm_gradient(pass, call, p->k_norm, p->q_norm);
    row.leaves = call->leaves;
    row.accumulate = call->accumulate;
    row.scratch = pass->scratch;
    pass->args.kernels->qkv_bwd(pass->args.stream, &row);
    if (s->qk_wide)
        ls_pass_wide_norms(
            pass, call,
            (ls_qkv[]){wide_norm_back(pass, call, l, 0), wide_norm_back(pass, call, l, 1)}, false);
}

/* From the gradient of the MLP's output to that of its input, as column_back() leaves it. */
static void mlp_back(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                     const ls_pass_layers *at, void *dbranch)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];
    const ls_pass_buffers *b = &pass->blocks[l];
    void *dz = pass->late ? pass->late[l].dz : pass->dz;

    if (s->E > 0) {
        ls_pass_experts_backward(pass, call, l, dbranch);
        return;
    }
    if (act_joins_out(s, p, at)) {
        linear_back(pass, call, l, &at->out, b->act, dbranch, s->act, b->z, false, dz);
    } else {
        /* An adapter still reads act while dx is made, and a second half of backward reads it
         * later; without them dx may take its place. */
        bool read = ls_pass_has_adapter(p, &at->out) || pass->late;
        void *dact = read ? pass->dact : b->act;
        dz = pass->late ? dz : b->z;
        linear_back(pass, call, l, &at->out, b->act, dbranch, LS_ACT_NONE, NULL, false, dact);
        pass->args.kernels->act_bwd(pass->args.stream,
                                    &(ls_act_args){.type = pass->args.type,
                                                   .act = s->act,
                                                   .gated = s->gated,
                                                   .x = b->z,
                                                   .dy = dact,
                                                   .dx = dz,
                                                   .max = ls_pass_max(pass, l, LS_LAYER_FC, true),
                                                   .M = call->B * call->T,
                                                   .F = s->F});
    }
    column_back(pass, call, l, &at->fc, ls_pass_mlp_input(pass, l), dz);
}

/* From the gradient of what the MLP made, of which this rank may have a share of the rows. */
static void mlp_branch_back(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                            const ls_pass_layers *at, void *dbranch)
{
    void *dout = ls_pass_whole(pass, call, dbranch, pass->whole_y);

    keep_late(pass, call, pass->late ? pass->late[l].dout : NULL, dout);
    mlp_back(pass, call, l, at, dout);
}

/* Likewise of what attention made. */
static void attention_branch_back(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                                  const ls_pass_layers *at, void *dbranch)
{
    void *dproj = ls_pass_whole(pass, call, dbranch, pass->whole_y);

    keep_late(pass, call, pass->late ? pass->late[l].dproj : NULL, dproj);
    linear_back(pass, call, l, &at->proj, pass->blocks[l].att, dproj, LS_ACT_NONE, NULL, false,
                pass->datt);
    attention_back(pass, call, l);
    column_back(pass, call, l, &at->qkv, ls_pass_attention_input(pass, l), dqkv_of(pass, l));
}

/* A block whose norms stand before its layers. */
static void pre_norm_back(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                          const ls_pass_layers *at)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];
    const ls_pass_buffers *b = &pass->blocks[l];
    bool drops = call->dropout && s->dropout > 0;
    void *dbranch = drops ? pass->dbranch : pass->dstream;
    bool below = l > ls_pass_first_block(&pass->args); /* else its bias is another part's */
    ls_dropout none = {.p = 0};

    mlp_branch_back(pass, call, l, at, dbranch);
    norm_back(pass, call,
              (ls_norm_bwd){.sum = b->mid,
                            .mean = b->mean2,
                            .rstd = b->rstd2,
                            .add_to_dsum = true,
                            .dx_max = ls_pass_max(pass, l, LS_LAYER_PROJ, true)},
              p->ln2_w, p->ln2_b, ls_pass_drop_at(pass, call, l, SITE_PROJ), at->proj.b);
    attention_branch_back(pass, call, l, at, dbranch);
    norm_back(pass, call,
              (ls_norm_bwd){.sum = ls_pass_stream_into(pass, l),
                            .mean = b->mean1,
                            .rstd = b->rstd1,
                            .add_to_dsum = true,
                            .dx_max = ls_pass_max(pass, l - 1, LS_LAYER_OUT, true)},
              p->ln1_w, p->ln1_b, l > 0 ? ls_pass_drop_at(pass, call, l - 1, SITE_OUT) : none,
              below ? &p[-1].out_b : NULL);
}

/* A block whose norms stand behind its layers. */
static void post_norm_back(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                           const ls_pass_layers *at)
{
    const ls_block_params *p = &pass->args.model->blocks[l];
    const ls_pass_buffers *b = &pass->blocks[l];
    ls_dropout none = {.p = 0};

    norm_back(pass, call,
              (ls_norm_bwd){.dy = pass->dstream,
                            .sum = b->end2,
                            .mean = b->mean2,
                            .rstd = b->rstd2,
                            .dsum = pass->dbranch,
                            .dx_max = ls_pass_max(pass, l, LS_LAYER_OUT, true)},
              p->ln2_w, p->ln2_b, none, at->out.b);
    mlp_branch_back(pass, call, l, at, pass->dbranch);
    norm_back(pass, call,
              (ls_norm_bwd){.dy = pass->dstream,
                            .sum = b->end1,
                            .mean = b->mean1,
                            .rstd = b->rstd1,
                            .dsum = pass->dbranch,
                            .dx_max = ls_pass_max(pass, l, LS_LAYER_PROJ, true)},
              p->ln1_w, p->ln1_b, none, at->proj.b);
    attention_branch_back(pass, call, l, at, pass->dbranch);
}

static void block_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    ls_pass_layers at;

    ls_pass_layers_of(pass->args.model, l, &at);
    at.proj.bias_summed = at.out.bias_summed = ls_pass_norms_sum(&pass->args);
    if (pass->args.model->shape.post_norm)
        post_norm_back(pass, call, l, &at);
    else
        pre_norm_back(pass, call, l, &at);
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
        pass->args.kernels->fill(
            pass->args.stream,
            &(ls_fill){.x = ls_pass_gradient(call, model->wpe), .n = s->positions * s->C});
    pass->args.kernels->embed_bwd(
        pass->args.stream,
        &(ls_embed_bwd){.type = pass->args.type,
                        .tokens = call->tokens,
                        .dy = ls_pass_whole(pass, call, pass->dstream, pass->whole_y),
                        .dwte = ls_pass_gradient(call, model->wte),
                        .dwpe = ls_pass_gradient(call, model->wpe),
                        .M = call->B * call->T,
                        .C = s->C,
                        .T = call->T,
                        .V = s->V,
                        .first = model->split.token,
                        .vocab = model->whole.V,
                        .positions = s->positions,
                        .leaves = call->leaves,
                        .piece = ls_pass_piece(&pass->args, call->T),
                        .start = call->restart ? call->start : NULL,
                        .accumulate = call->accumulate || adds,
                        .drop = ls_pass_drop_at(pass, call, 0, SITE_EMBED),
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

void ls_pass_report(const ls_pass *pass, const ls_pass_call *call, int64_t unit)
{
    const ls_model *model = pass->args.model;

    if (!call->complete)
        return;
    if (unit <= model->shape.L + 1)
        call->complete(call->context, ls_model_complete(model, unit));
    else if (ls_pass_parts_tied(model, call->ordered))
        call->complete(call->context, model->trained);
}

/* The head and the final norm. */
static void head_back(const ls_pass *pass, const ls_pass_call *call)
{
    const ls_model *model = pass->args.model;
    int64_t L = model->shape.L;
    /* A norm behind the last block has summed its bias already. */
    bool below = ls_pass_first_block(&pass->args) < L && !model->shape.post_norm;

    ls_pass_head(pass, call, true);
    ls_pass_report(pass, call, L + 2);
    norm_back(pass, call,
              (ls_norm_bwd){
                  .sum = ls_pass_stream_into(pass, L), .mean = pass->meanf, .rstd = pass->rstdf},
              model->lnf_w, model->lnf_b, ls_pass_drop_at(pass, call, L - 1, SITE_OUT),
              below ? &model->blocks[L - 1].out_b : NULL);
    ls_pass_report(pass, call, L + 1);
}

int64_t ls_pass_lowest(const ls_pass_args *args)
{
    return ls_max_i64(lowest_trained(args->model), ls_pass_first_block(args));
}

/* All of backward, or, with late places at hand, its first half. */
static void walk_down(ls_pass *pass, const ls_pass_call *call)
{
    const ls_pass_args *part = &pass->args;

    LS_BUG_IF(!part->training, "backward in a pass that keeps nothing for it");
    if (ls_pass_has_head(part))
        head_back(pass, call);
    for (int64_t l = ls_pass_end_block(part) - 1; l >= ls_pass_lowest(part); l--) {
        ls_pass_need(call, 1 + l);
        ls_pass_recompute(pass, call, l);
        block_backward(pass, call, l);
        if (l > 0)
            ls_pass_report(pass, call, 1 + l);
    }
    if (ls_pass_has_embedding(part))
        embed_back(pass, call);
    ls_pass_report(pass, call, 0);
}

void ls_pass_backward(ls_pass *pass, const ls_pass_call *call)
{
    LS_BUG_IF(pass->args.late > 0, "a whole backward in a pass made for halves");
    ls_pass_take(pass, call);
    walk_down(pass, call);
}

void ls_pass_backward_first(ls_pass *pass, const ls_pass_call *call)
{
    ls_pass_take_late(pass, call);
    walk_down(pass, call);
    pass->late = NULL;
}

void ls_pass_walk(const ls_pass *pass, const ls_pass_call *call, bool backward)
{
    int64_t L = pass->args.model->shape.L;

    for (int64_t unit = 0; unit <= L + 1; unit++)
        ls_pass_need(call, unit);
    if (!backward)
        return;
    ls_pass_report(pass, call, L + 2);
    ls_pass_report(pass, call, L + 1);
    for (int64_t l = L - 1; l >= lowest_trained(pass->args.model); l--) {
        ls_pass_need(call, 1 + l);
        if (l > 0)
            ls_pass_report(pass, call, 1 + l);
    }
    ls_pass_report(pass, call, 0);
}

void ls_pass_tie(ls_pass *pass, float *grad)
{
    const ls_model *model = pass->args.model;

    if (!ls_pass_parts_tied(model, true))
        return;
    pass->args.kernels->add(pass->args.stream, &(ls_add){.a = grad + model->wte.g,
                                                         .b = grad + model->trained,
                                                         .out = grad + model->wte.g,
                                                         .n = model->shape.V * model->shape.C});
}
