/* pass.c -- the transformer as calls of the kernel table.
 *
 * The residual stream is never added to on its own: the product that ends a branch adds the stream
 * to its result, and the norm after it reads the sum. With L blocks:
 *
 *   in[0] = embed(tokens)                        y1 = norm(in[0])
 *   qkv, turn -> attention                       mid[l] = in[l] + proj,   y2 = norm(mid[l])
 *   fc, act                                      in[l+1] = mid[l] + out,  y1 = norm(in[l+1])
 *   after the last block the final norm takes the place of the next block's first.
 *
 * With norms behind the layers (post_norm) products read the stream itself and end in buffers of
 * their own, since backward needs what was normalised:
 *
 *   qkv of in[l] -> attention -> proj = end1             mid[l]  = in[l]  + norm(end1)
 *   fc of mid[l] -> act       -> out  = end2             in[l+1] = mid[l] + norm(end2)
 *
 * With dropout the product ends in `branch`, and the norm takes stream and branch, writes their sum
 * and the normalised sum in one pass over memory. So it is too where the model is split between
 * ranks, since the product is then a part of a sum (pass_tensor.c).
 *
 * Backward walks the same list upwards with one gradient of the stream, `dstream`, to which every
 * norm adds its share, and stops at the lowest block in which anything is trained. Kept per block:
 * y1, qkv (turned in place; with norms of q and k also the product before), attention output and
 * its log-sum-exp, mid, y2, the MLP's value before and after its activation, the next stream, the
 * statistics of the norms. Without training all blocks share one set of these buffers.
 *
 * Blocks that recompute share buffers too: backward makes again what another block has overwritten,
 * by the same rows from the same tensors, so that the bits are those of forward. The streams
 * between blocks are always kept. Selective makes y1 and y2 again from the streams; the activation
 * from the gated value before it; in a plain MLP, where the activation is part of the product, that
 * product. Full makes everything again but the product that ends the block. The last block that
 * shares is spared: its tensors are still there. Of experts selective makes the rows that they read
 * again, and their activations.
 *
 * An adapter (LoRA) adds scale B (A x) to columns of a product; scale A x is kept for the gradient. With DoRA
 * these columns then get lengths (pass_dora.c).
 * A product with an adapter cannot include its activation, which is a separate row then. */
#include "model/pass_impl.h"

#include <math.h>
#include "config/model_families.h"

/* Tensors of a block that can be looked into. */
enum { PER_BLOCK = 8 };

ls_dropout ls_pass_drop_at(const ls_pass *pass, const ls_pass_call *call, int64_t l, int site)
{
    return (ls_dropout){.p = call->dropout ? pass->args.model->shape.dropout : 0,
                        .site = (uint32_t)(site == SITE_EMBED ? 0 : 3 * l + site),
                        .state = call->state,
                        .first_head = (uint32_t)pass->args.model->split.head,
                        .piece = ls_pass_piece(&pass->args, call->T)};
}

float *ls_pass_max(const ls_pass *pass, int64_t l, ls_layer layer, bool gradient)
{
    bool inner = l > 0 && l < pass->args.model->shape.L - 1;

    return pass->maxima && inner ? pass->maxima + (2 * l + gradient) * LS_LAYERS + layer : NULL;
}

ls_fp8 ls_pass_fp8(const ls_pass *pass, int64_t l, const ls_pass_layer *at, bool x_known,
                   bool dy_known)
{
    return (ls_fp8){.x_max = ls_pass_max(pass, l, at->which, false),
                    .dy_max = ls_pass_max(pass, l, at->which, true),
                    .x_known = x_known,
                    .dy_known = dy_known,
                    .scratch = pass->scratch};
}

const void *ls_pass_weight(const ls_pass *pass, const ls_pass_call *call, ls_place p)
{
    return p.w >= 0 ? (const char *)call->w + p.w * ls_dtype_bytes(pass->args.type) : NULL;
}

const void *ls_pass_packed(const ls_pass *pass, const ls_pass_call *call, int64_t l, ls_layer of,
                           bool back)
{
    return ls_packed_weights_find(pass->args.packs, call->w, l, of, back, call->B * call->T);
}

float *ls_pass_gradient(const ls_pass_call *call, ls_place p)
{
    return p.g >= 0 ? call->grad + p.g : NULL;
}

/* The cache from a position on. */
static ls_heads cached(const ls_pass *pass, void *x, int64_t position)
{
    const ls_model_shape *s = &pass->args.model->shape;
    int64_t time = s->Hkv * s->D;

    return (ls_heads){ls_pass_at(pass, x, position * time), pass->args.cache * time, time, s->D};
}

bool ls_pass_has_adapter(const ls_block_params *p, const ls_pass_layer *at)
{
    for (int i = at->adapter; i < at->adapter + at->n_adapters; i++)
        if (p->adapters[i].a.w >= 0)
            return true;
    return false;
}

void ls_pass_layers_of(const ls_model *model, int64_t l, ls_pass_layers *to)
{
    const ls_model_shape *s = &model->shape;
    const ls_block_params *p = &model->blocks[l];
    bool parted = ls_families_row(s->family)->names.qkv[1] != NULL;
    bool other = model->split.rank > 0;

    *to =
        (ls_pass_layers){.qkv_widths = {parted ? ls_pass_att_width(s) : ls_pass_qkv_width(s),
                                        s->Hkv * s->D, s->Hkv * s->D},
                         .fc_widths = {s->F, s->F},
                         .qkv = {LS_LAYER_QKV, s->C, ls_pass_qkv_width(s), p->qkv_w, p->qkv_b,
                                 to->qkv_widths, parted ? 3 : 1, LS_ADAPTER_Q, 3, false, false},
                         .proj = {LS_LAYER_PROJ, ls_pass_att_width(s), s->C, &p->proj_w, &p->proj_b,
                                  NULL, 1, LS_ADAPTER_O, 1, false, other},
                         .fc = {LS_LAYER_FC, s->C, ls_pass_fc_width(s), p->fc_w, p->fc_b,
                                to->fc_widths, s->gated ? 2 : 1, LS_ADAPTER_GATE, 2, false, false},
                         .out = {LS_LAYER_OUT, s->F, s->C, &p->out_w, &p->out_b, NULL, 1,
                                 LS_ADAPTER_DOWN, 1, false, other}};
}

const void *ls_pass_stream_into(const ls_pass *pass, int64_t l)
{
    return l == ls_pass_first_block(&pass->args) ? pass->in0 : pass->blocks[l - 1].next;
}

void *ls_pass_attention_input(const ls_pass *pass, int64_t l)
{
    return pass->args.model->shape.post_norm ? (void *)(uintptr_t)ls_pass_stream_into(pass, l)
                                             : pass->blocks[l].y1;
}

void *ls_pass_mlp_input(const ls_pass *pass, int64_t l)
{
    return pass->args.model->shape.post_norm ? pass->blocks[l].mid : pass->blocks[l].y2;
}

void ls_pass_take(ls_pass *pass, const ls_pass_call *call)
{
    const ls_pass_ends *ends = &pass->ends[call->slot];

    LS_BUG_IF(call->slot < 0 || call->slot >= ls_pass_slots(&pass->args), "slot %d of %d",
              call->slot, ls_pass_slots(&pass->args));
    pass->blocks = pass->all + call->slot * pass->args.model->shape.L;
    pass->in0 = call->in ? call->in : ends->in0;
    pass->yf = ends->yf;
    pass->meanf = ends->meanf;
    pass->rstdf = ends->rstdf;
    if (!call->dstream)
        return;
    pass->dstream = call->dstream;
    if (pass->args.model->shape.dropout > 0)
        pass->dbranch =
            ls_pass_at(pass, call->dstream, ls_pass_stream(pass->args.model, call->B * call->T));
}

int ls_pass_border(const ls_model *model)
{
    return model->shape.dropout > 0 ? 2 : 1;
}

const void *ls_pass_out(const ls_pass *pass, int slot, const void *in)
{
    int64_t end = ls_pass_end_block(&pass->args);
    const void *first = in ? in : pass->ends[slot].in0;

    return end == ls_pass_first_block(&pass->args)
               ? first
               : pass->all[slot * pass->args.model->shape.L + end - 1].next;
}

ls_qkv ls_pass_qkv_row(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];

    return (ls_qkv){.type = pass->args.type,
                    .rope = pass->rope,
                    .past = call->past,
                    .q_norm = s->qk_wide ? NULL : ls_pass_weight(pass, call, p->q_norm),
                    .k_norm = s->qk_wide ? NULL : ls_pass_weight(pass, call, p->k_norm),
                    .eps = s->eps,
                    .rstd = pass->blocks[l].qk_rstd,
                    .B = call->B,
                    .T = call->T,
                    .H = s->H,
                    .Hkv = s->Hkv,
                    .D = s->D};
}

ls_qkv ls_pass_wide_norm(const ls_pass *pass, const ls_pass_call *call, int64_t l, int which)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];
    float *rstd = pass->blocks[l].qk_rstd;

    return (ls_qkv){.type = pass->args.type,
                    .q_norm = ls_pass_weight(pass, call, which ? p->k_norm : p->q_norm),
                    .eps = s->eps,
                    .rstd = rstd ? rstd + which * call->B * call->T : NULL,
                    .B = call->B,
                    .T = call->T,
                    .H = 1,
                    .D = (which ? s->Hkv : s->H) * s->D,
                    .ld = ls_pass_qkv_width(s)};
}

int64_t ls_pass_wide_at(const ls_model_shape *s, int which)
{
    return which ? s->H * s->D : 0;
}

void ls_pass_scale(const ls_pass *pass, void *x, int64_t n)
{
    const ls_kernels *k = pass->args.kernels;
    ls_dtype type = pass->args.type;
    float *wide = type == LS_F32 ? x : pass->wide;
    ls_cast cast = {.from_type = type, .to_type = LS_F32, .from = x, .to = wide, .n = n};

    if (type != LS_F32)
        k->cast(pass->args.stream, &cast);
    k->scale(pass->args.stream,
             &(ls_scale){.x = wide, .value = pass->args.model->shape.lora_scale, .n = n});
    if (type == LS_F32)
        return;
    cast = (ls_cast){.from_type = LS_F32, .to_type = type, .from = wide, .to = x, .n = n};
    k->cast(pass->args.stream, &cast);
}

/* --- forward ------------------------------------------------------------------------------ */

/* y[:, first ..] += B (scale A x) for each adapter of a layer. */
static void adapt(const ls_pass *pass, const ls_pass_call *call, int64_t l, const ls_pass_layer *at,
                  const void *x, void *y)
{
    const ls_kernels *k = pass->args.kernels;
    const ls_model_shape *s = &pass->args.model->shape;
    int64_t M = call->B * call->T, rank = s->lora_rank;

    for (int i = at->adapter; i < at->adapter + at->n_adapters; i++) {
        const ls_adapter *a = &pass->args.model->blocks[l].adapters[i];
        void *small = pass->blocks[l].small[i];
        if (a->a.w < 0)
            continue;
        k->linear_fwd(pass->args.stream, &(ls_linear_fwd){.type = pass->args.type,
                                                          .tf32 = pass->args.tf32,
                                                          .x = x,
                                                          .w = ls_pass_weight(pass, call, a->a),
                                                          .y = small,
                                                          .M = M,
                                                          .N = rank,
                                                          .K = a->K,
                                                          .layout = LS_LAYOUT_NK});
        ls_pass_scale(pass, small, M * rank);
        k->linear_fwd(pass->args.stream, &(ls_linear_fwd){.type = pass->args.type,
                                                          .tf32 = pass->args.tf32,
                                                          .x = small,
                                                          .w = ls_pass_weight(pass, call, a->b),
                                                          .y = ls_pass_at(pass, y, a->first),
                                                          .M = M,
                                                          .N = a->N,
                                                          .K = rank,
                                                          .ldy = at->N,
                                                          .layout = LS_LAYOUT_NK,
                                                          .accumulate = true});
    }
}

/* Whether the activation is part of the product into the MLP. */
static bool act_joins_fc(const ls_model_shape *s, const ls_block_params *p,
                         const ls_pass_layers *at)
{
    return !s->gated && !ls_pass_has_adapter(p, &at->fc);
}

/* Whether the row that made a layer's input has left its largest magnitude: norms do, and an
 * activation that is a row of its own. */
static bool max_is_known(const ls_pass *pass, int64_t l, const ls_pass_layer *at)
{
    ls_pass_layers all;

    ls_pass_layers_of(pass->args.model, l, &all);
    return at->which == LS_LAYER_OUT
               ? !act_joins_fc(&pass->args.model->shape, &pass->args.model->blocks[l], &all)
               : at->which != LS_LAYER_PROJ && !pass->args.model->shape.post_norm;
}

/* Some rows of a call. */
typedef struct stretch {
    int64_t first, n;
} stretch;

/* Where a product goes: y = act(z), z = x W + b, which is kept where z is given; or y = add + x W +
 * b. Its first row is that of the call, unless y is for these rows alone. */
typedef struct result {
    void *y, *z;
    const void *add;
    ls_act act;
    bool alone;
} result;

/* Some rows of a product; x begins with the first of them, the others with row 0. */
static void product(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                    const ls_pass_layer *at, stretch r, const void *x, result to)
{
    int64_t size = ls_dtype_bytes(pass->args.type);

    if (r.n == 0)
        return;
    pass->args.kernels->linear_fwd(
        pass->args.stream,
        &(ls_linear_fwd){
            .type = pass->args.type,
            .tf32 = pass->args.tf32,
            .x = x,
            .w = ls_pass_weight(pass, call, at->w[0]),
            .packed = ls_packed_weights_find(pass->args.packs, call->w, l, at->which, false, r.n),
            .b = at->no_bias ? NULL : ls_pass_weight(pass, call, at->b[0]),
            .y = to.alone ? to.y : ls_pass_at(pass, to.y, r.first * at->N),
            .z = to.z ? ls_pass_at(pass, to.z, r.first * at->N) : NULL,
            .add = to.add ? (const char *)to.add + r.first * at->N * size : NULL,
            .M = r.n,
            .N = at->N,
            .K = at->K,
            .layout = pass->args.model->shape.layout,
            .act = to.act,
            .fp8 = ls_pass_fp8(pass, l, at, max_is_known(pass, l, at), false)});
}

/* The same of a layer with DoRA: lengths count before bias and `add`. */
static void dora_linear(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                        const ls_pass_layer *at, const void *x, const void *add, void *y)
{
    void *z = pass->blocks[l].dora[at->which].z;
    ls_pass_layer bare = *at;

    bare.no_bias = true;
    product(pass, call, l, &bare, (stretch){0, call->B * call->T}, x, (result){.y = z});
    adapt(pass, call, l, at, x, z);
    ls_pass_dora_forward(pass, call, l, at, add, y);
}

/* y = x W + b and what adapters add to it; or add + that. */
static void linear(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                   const ls_pass_layer *at, const void *x, const void *add, void *y)
{
    if (ls_pass_is_dora(&pass->args, l, at)) {
        dora_linear(pass, call, l, at, x, add, y);
        return;
    }
    product(pass, call, l, at, (stretch){0, call->B * call->T}, x, (result){.y = y, .add = add});
    adapt(pass, call, l, at, x, y);
}

/* A layer that reads a norm's output, of which this rank may have a share of the rows: it
 * multiplies these while the others come. */
static void columns(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                    const ls_pass_layer *at, void *share, result to)
{
    stretch all = {0, call->B * call->T}, own;
    int coming;

    if (ls_pass_is_dora(&pass->args, l, at)) { /* on one rank */
        dora_linear(pass, call, l, at, share, NULL, to.y);
        return;
    }
    void *x = ls_pass_whole_start(pass, call, share, pass->whole_x, &coming);

    own.n = ls_pass_own_rows(pass, call, &own.first);
    if (coming < 0) {
        product(pass, call, l, at, all, x, to);
    } else {
        stretch before = {0, ls_min_i64(own.first, all.n)}, behind = {own.first + own.n, 0};
        behind.n = ls_max_i64(0, all.n - behind.first);
        product(pass, call, l, at, own, share, to);
        ls_pass_wait(pass, coming);
        product(pass, call, l, at, before, x, to);
        product(pass, call, l, at, behind, ls_pass_at(pass, x, behind.first * at->K), to);
    }
    adapt(pass, call, l, at, x, to.y);
}

/* sum = stream + dropout(x); y = norm(sum). */
static void norm(const ls_pass *pass, const ls_pass_call *call, ls_norm_fwd args, ls_place w,
                 ls_place b, ls_dropout drop)
{
    const ls_model_shape *s = &pass->args.model->shape;

    args.type = pass->args.type;
    args.kind = s->norm;
    args.w = ls_pass_weight(pass, call, w);
    args.b = ls_pass_weight(pass, call, b);
    if (s->norm == LS_NORM_RMS)
        args.mean = NULL;
    args.M = ls_pass_own_rows(pass, call, &drop.first_row);
    args.C = s->C;
    args.T = call->T;
    args.eps = s->eps;
    args.drop = drop;
    if (args.M > 0)
        pass->args.kernels->norm_fwd(pass->args.stream, &args);
}

bool ls_pass_ends_beside(const ls_pass *pass, const ls_pass_call *call, int64_t l, int site)
{
    return !pass->args.model->shape.post_norm &&
           (ls_pass_is_split(&pass->args) || ls_pass_drop_at(pass, call, l, site).p > 0);
}

/* A product of which each rank has a part of the sum, which goes to `to`: between nodes one half of
 * its rows is sent while the other is made. */
static void join_product(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                         const ls_pass_layer *at, const void *x, void *to)
{
    bool adapted = ls_pass_has_adapter(&pass->args.model->blocks[l], at);
    int64_t M = call->B * call->T, size = ls_dtype_bytes(pass->args.type);
    int going[2] = {-1, -1};
    ls_pass_half half;

    if (adapted || !ls_pass_half_of(pass, call, to, 0, &half)) {
        linear(pass, call, l, at, x, NULL, ls_pass_part(pass, to));
        ls_pass_join(pass, call, to);
        return;
    }
    for (int which = 0; which < 2; which++) {
        ls_pass_half_of(pass, call, to, which, &half);
        for (int i = 0; i < half.pieces; i++) {
            stretch rows = {half.first + i * half.stride, 0};
            rows.n = ls_max_i64(0, ls_min_i64(half.rows, M - rows.first));
            product(pass, call, l, at, rows, (const char *)x + rows.first * at->K * size,
                    (result){.y = ls_pass_at(pass, half.to, i * half.rows * at->N), .alone = true});
        }
        going[which] = ls_pass_join_half(pass, &half, to);
    }
    for (int which = 0; which < 2; which++)
        ls_pass_wait(pass, going[which]);
}

/* stream + norm(x), where the norm stands behind the layer that made x. No row of the table adds
 * after a norm, so a second norm makes the sum, and its own result is never read. */
static void norm_behind(const ls_pass *pass, const ls_pass_call *call, ls_norm_fwd args, ls_place w,
                        ls_place b, const void *stream, void *sum)
{
    ls_norm_fwd add = {.stream = stream,
                       .x = pass->branch,
                       .sum = sum,
                       .y = pass->yf,
                       .mean = pass->meanf,
                       .rstd = pass->rstdf};

    args.y = pass->branch;
    norm(pass, call, args, w, b, (ls_dropout){0});
    norm(pass, call, add, w, b, (ls_dropout){0});
}

/* The end of attention or of the MLP, and the norm behind it. */
static void end_before_norm(const ls_pass *pass, const ls_pass_call *call, int64_t l, int site,
                            const ls_pass_layer *at, const void *x)
{
    const ls_block_params *p = &pass->args.model->blocks[l];
    const ls_pass_buffers *b = &pass->blocks[l];
    ls_norm_fwd first = {.stream = b->end1, .mean = b->mean1, .rstd = b->rstd1};
    ls_norm_fwd second = {.stream = b->end2, .mean = b->mean2, .rstd = b->rstd2};

    join_product(pass, call, l, at, x, site == SITE_PROJ ? b->end1 : b->end2);
    if (site == SITE_PROJ)
        norm_behind(pass, call, first, p->ln1_w, p->ln1_b, ls_pass_stream_into(pass, l), b->mid);
    else
        norm_behind(pass, call, second, p->ln2_w, p->ln2_b, b->mid, b->next);
}

/* The last product of a branch: into the stream itself where nothing is dropped on the way. */
static void end_branch(const ls_pass *pass, const ls_pass_call *call, int64_t l, int site,
                       const ls_pass_layer *at, const void *x)
{
    const ls_pass_buffers *b = &pass->blocks[l];

    if (pass->args.model->shape.post_norm) {
        end_before_norm(pass, call, l, site, at, x);
    } else if (ls_pass_ends_beside(pass, call, l, site)) {
        join_product(pass, call, l, at, x, pass->branch);
    } else if (site == SITE_PROJ)
        linear(pass, call, l, at, x, ls_pass_stream_into(pass, l), b->mid);
    else
        linear(pass, call, l, at, x, b->mid, b->next);
}

/* The norm after it: y = norm(stream), once sum = stream + dropout(branch) is made. */
static void norm_after(const ls_pass *pass, const ls_pass_call *call, int64_t l, int site,
                       ls_norm_fwd args, ls_place w, ls_place b)
{
    const ls_pass_buffers *at = &pass->blocks[l];
    const void *before = site == SITE_PROJ ? ls_pass_stream_into(pass, l) : at->mid;
    void *sum = site == SITE_PROJ ? at->mid : at->next;
    bool beside = ls_pass_ends_beside(pass, call, l, site);

    args.stream = beside ? before : sum;
    args.x = beside ? pass->branch : NULL;
    args.sum = beside ? sum : NULL;
    norm(pass, call, args, w, b, ls_pass_drop_at(pass, call, l, site));
}

/* q and k, each over all its heads, to where they are turned; v along with them. */
static void normalise_wide(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_pass_buffers *b = &pass->blocks[l];
    int64_t all = call->B * call->T * ls_pass_qkv_width(s);

    if (b->turned != b->qkv)
        ls_stream_copy(pass->args.stream, b->turned, b->qkv, all * ls_dtype_bytes(pass->args.type));
    ls_qkv rows[2];
    for (int which = 0; which < 2; which++) {
        rows[which] = ls_pass_wide_norm(pass, call, l, which);
        rows[which].packed = ls_pass_at(pass, b->qkv, ls_pass_wide_at(s, which));
        rows[which].q = ls_pass_part_of_qkv(pass, call->T, b->turned, which);
    }
    ls_pass_wide_norms(pass, call, rows, true);
}

static void attention(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_pass_buffers *b = &pass->blocks[l];
    ls_heads q = ls_pass_part_of_qkv(pass, call->T, b->turned, 0);
    ls_heads k = ls_pass_part_of_qkv(pass, call->T, b->turned, 1);
    ls_heads v = ls_pass_part_of_qkv(pass, call->T, b->turned, 2);
    bool cache = pass->args.cache > 0;

    if (s->qk_wide)
        normalise_wide(pass, call, l);
    if (cache || ls_pass_turns(s)) {
        ls_qkv row = ls_pass_qkv_row(pass, call, l);
        row.packed = s->qk_wide ? b->turned : b->qkv;
        row.q = q;
        row.k = cache ? cached(pass, b->keys, call->past) : k;
        row.v = cache ? cached(pass, b->values, call->past) : v;
        pass->args.kernels->qkv_fwd(pass->args.stream, &row);
    }
    if (ls_pass_is_cp(&pass->args)) {
        ls_pass_cp_forward(pass, call, l);
        return;
    }
    pass->args.kernels->attention_fwd(
        pass->args.stream,
        &(ls_attention_fwd){.type = pass->args.type,
                            .q = q,
                            .k = cache ? cached(pass, b->keys, 0) : k,
                            .v = cache ? cached(pass, b->values, 0) : v,
                            .o = ls_pass_heads_of(pass, call->T, b->att),
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
                            .drop = ls_pass_drop_at(pass, call, l, SITE_ATTENTION)});
}

static void activate(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_pass_buffers *b = &pass->blocks[l];

    pass->args.kernels->act_fwd(pass->args.stream,
                                &(ls_act_args){.type = pass->args.type,
                                               .act = s->act,
                                               .gated = s->gated,
                                               .x = b->z,
                                               .y = b->act,
                                               .max = ls_pass_max(pass, l, LS_LAYER_OUT, false),
                                               .M = call->B * call->T,
                                               .F = s->F});
}

/* From the MLP's input to the activation. */
static void mlp(const ls_pass *pass, const ls_pass_call *call, int64_t l, const ls_pass_layers *at)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_pass_buffers *b = &pass->blocks[l];
    void *x = ls_pass_mlp_input(pass, l);

    if (act_joins_fc(s, &pass->args.model->blocks[l], at)) {
        columns(pass, call, l, &at->fc, x, (result){.y = b->act, .z = b->z, .act = s->act});
        return;
    }
    columns(pass, call, l, &at->fc, x, (result){.y = b->z});
    activate(pass, call, l);
}

/* The norm that a block begins with, if it does. added: the stream into the block is there; else the norm first
 * adds what the block below has left in the branch. */
static void first_norm(const ls_pass *pass, const ls_pass_call *call, int64_t l, bool added)
{
    const ls_block_params *p = &pass->args.model->blocks[l];
    const ls_pass_buffers *b = &pass->blocks[l];
    ls_norm_fwd args = {.stream = ls_pass_stream_into(pass, l),
                        .y = b->y1,
                        .mean = b->mean1,
                        .rstd = b->rstd1,
                        .y_max = ls_pass_max(pass, l, LS_LAYER_QKV, false)};

    if (pass->args.model->shape.post_norm)
        return;
    if (added || l == ls_pass_first_block(&pass->args))
        norm(pass, call, args, p->ln1_w, p->ln1_b, (ls_dropout){0});
    else
        norm_after(pass, call, l - 1, SITE_OUT, args, p->ln1_w, p->ln1_b);
}

/* The norm between attention and MLP, likewise. */
static void second_norm(const ls_pass *pass, const ls_pass_call *call, int64_t l, bool added)
{
    const ls_block_params *p = &pass->args.model->blocks[l];
    const ls_pass_buffers *b = &pass->blocks[l];
    ls_norm_fwd args = {.stream = b->mid,
                        .y = b->y2,
                        .mean = b->mean2,
                        .rstd = b->rstd2,
                        .y_max = ls_pass_max(pass, l, LS_LAYER_FC, false)};

    if (pass->args.model->shape.post_norm)
        return;
    if (added)
        norm(pass, call, args, p->ln2_w, p->ln2_b, (ls_dropout){0});
    else
        norm_after(pass, call, l, SITE_PROJ, args, p->ln2_w, p->ln2_b);
}

/* From attention's input to the end of its branch. */
static void attend(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                   const ls_pass_layers *at)
{
    const ls_pass_buffers *b = &pass->blocks[l];

    columns(pass, call, l, &at->qkv, ls_pass_attention_input(pass, l), (result){.y = b->qkv});
    attention(pass, call, l);
    end_branch(pass, call, l, SITE_PROJ, &at->proj, b->att);
}

static void block_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_pass_buffers *b = &pass->blocks[l];
    ls_pass_layers at;

    ls_pass_layers_of(pass->args.model, l, &at);
    first_norm(pass, call, l, false);
    attend(pass, call, l, &at);
    second_norm(pass, call, l, false);
    if (pass->args.model->shape.E > 0) {
        ls_pass_experts_forward(pass, call, l);
        return;
    }
    mlp(pass, call, l, &at);
    end_branch(pass, call, l, SITE_OUT, &at.out, b->act);
}

int ls_pass_times_recomputed(const ls_pass_args *args, int64_t l)
{
    bool spared =
        l == ls_pass_end_block(args) - 1 || ls_pass_recompute_of(args, l + 1) == LS_RECOMPUTE_NONE;
    bool alone = ls_pass_slots(args) == 1 && args->late == 0;

    if (ls_pass_recompute_of(args, l) == LS_RECOMPUTE_NONE || (spared && alone))
        return 0;
    return args->late > 0 ? 2 : 1;
}

void ls_pass_recompute(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    ls_recompute level = ls_pass_recompute_of(&pass->args, l);
    ls_pass_layers at;

    if (ls_pass_times_recomputed(&pass->args, l) == 0)
        return; /* no block above, nor another call, has taken the buffers */
    ls_pass_layers_of(pass->args.model, l, &at);
    first_norm(pass, call, l, true);
    if (level == LS_RECOMPUTE_FULL)
        attend(pass, call, l, &at);
    second_norm(pass, call, l, level == LS_RECOMPUTE_SELECTIVE);
    if (s->E > 0)
        ls_pass_experts_again(pass, call, l, level);
    else if (level == LS_RECOMPUTE_SELECTIVE && s->gated)
        activate(pass, call, l);
    else
        mlp(pass, call, l, &at);
}

/* Report that tensors below this number are there. */
static void report_made(const ls_pass_call *call, int64_t ready)
{
    if (call->made)
        call->made(call->context, (int)ready);
}

/* Of a split model each rank has some tokens' vectors, and the first the positions and the noise. All drop
 * alike, so that their sum is dropped too. */
static void embed(const ls_pass *pass, const ls_pass_call *call)
{
    const ls_model *model = pass->args.model;
    const ls_model_shape *s = &model->shape;

    bool first = model->split.rank == 0;

    pass->args.kernels->embed_fwd(
        pass->args.stream,
        &(ls_embed_fwd){.type = pass->args.type,
                        .tokens = call->tokens,
                        .wte = ls_pass_weight(pass, call, model->wte),
                        .wpe = first ? ls_pass_weight(pass, call, model->wpe) : NULL,
                        .y = ls_pass_part(pass, pass->in0),
                        .M = call->B * call->T,
                        .C = s->C,
                        .T = call->T,
                        .V = s->V,
                        .first = model->split.token,
                        .vocab = model->whole.V,
                        .past = call->past,
                        .piece = ls_pass_piece(&pass->args, call->T),
                        .start = call->restart ? call->start : NULL,
                        .noise = call->dropout && first ? s->noise : 0,
                        .drop = ls_pass_drop_at(pass, call, 0, SITE_EMBED)});
    ls_pass_join(pass, call, pass->in0);
}

/* The norm behind the last block of a part: the final one; or, where that block's result was left
 * in the branch, one whose outcome is never read, so that the stream is whole. */
static void end_part(const ls_pass *pass, const ls_pass_call *call)
{
    const ls_model *model = pass->args.model;
    int64_t end = ls_pass_end_block(&pass->args);
    bool blocks = end > ls_pass_first_block(&pass->args), head = ls_pass_has_head(&pass->args);
    ls_norm_fwd args = {.y = pass->yf, .mean = pass->meanf, .rstd = pass->rstdf};

    if (head && !blocks) {
        args.stream = pass->in0;
        norm(pass, call, args, model->lnf_w, model->lnf_b, (ls_dropout){0});
    } else if (head) {
        norm_after(pass, call, end - 1, SITE_OUT, args, model->lnf_w, model->lnf_b);
    } else if (blocks && ls_pass_ends_beside(pass, call, end - 1, SITE_OUT)) {
        const ls_block_params *p = &model->blocks[end - 1];
        norm_after(pass, call, end - 1, SITE_OUT, args, p->ln1_w, p->ln1_b);
    }
}

void ls_pass_forward(ls_pass *pass, const ls_pass_call *call)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_pass_args *part = &pass->args;

    ls_pass_take(pass, call);
    LS_BUG_IF(call->B > pass->args.B || call->T > pass->args.T || call->leaves > pass->args.leaves,
              "a call of %lld x %lld tokens in a pass made for %lld x %lld", (long long)call->B,
              (long long)call->T, (long long)pass->args.B, (long long)pass->args.T);
    LS_BUG_IF(ls_pass_is_cp(part) && call->T != part->T, "%lld tokens of pieces of %lld",
              (long long)call->T, (long long)part->T);
    LS_BUG_IF(call->past && call->past + call->T > pass->args.cache,
              "%lld tokens after %lld others in a cache of %lld", (long long)call->T,
              (long long)call->past, (long long)pass->args.cache);
    if (pass->maxima)
        pass->args.kernels->fill(pass->args.stream,
                                 &(ls_fill){.x = pass->maxima, .n = s->L * 2 * LS_LAYERS});
    ls_pass_need(call, 0);
    if (ls_pass_has_embedding(part))
        embed(pass, call);
    for (int64_t l = ls_pass_first_block(part); l < ls_pass_end_block(part); l++) {
        ls_pass_need(call, 1 + l);
        block_forward(pass, call, l);
        report_made(call,
                    (l + 1) * PER_BLOCK); /* with dropout the stream comes with the next norm */
    }
    ls_pass_need(call, 1 + s->L);
    end_part(pass, call);
    report_made(call, s->L * PER_BLOCK + 2);
}

/* The head: losses only, or with its gradients, then of the weighted losses. */
static void run_head(const ls_pass *pass, const ls_pass_call *call, bool grad, const float *weights)
{
    const ls_model *model = pass->args.model;
    ls_head args = {.type = pass->args.type,
                    .tf32 = pass->args.tf32,
                    .h = ls_pass_whole(pass, call, pass->yf, pass->whole_x),
                    .w = ls_pass_weight(pass, call, model->head),
                    .packed = ls_pass_packed(pass, call, 0, LS_LAYER_HEAD, false),
                    .targets = call->targets,
                    .losses = call->losses,
                    .weights = weights,
                    .state = call->state,
                    .M = call->B * call->T,
                    .C = model->shape.C,
                    .V = model->shape.V,
                    .leaves = 1,
                    .scratch = pass->scratch};

    if (grad) {
        args.dh = ls_pass_part(pass, pass->dy);
        args.packed_back = ls_pass_packed(pass, call, 0, LS_LAYER_HEAD, true);
        args.dw = !ls_pass_parts_tied(model, call->ordered) ? ls_pass_gradient(call, model->head)
                  : call->tied                              ? call->tied
                                                            : call->grad + model->trained;
        args.leaves = call->leaves;
        args.accumulate = call->accumulate;
    }
    if (!ls_pass_is_split(&pass->args)) {
        pass->args.kernels->head(pass->args.stream, &args);
        return;
    }
    ls_pass_head_parts(pass, call, args);
    if (grad)
        ls_pass_join(pass, call, pass->dy);
}

/* The weight of a token in the gradient depends on the losses of its whole sequence: so the head
 * first makes these, and then once more with the gradients. */
void ls_pass_head(const ls_pass *pass, const ls_pass_call *call, bool grad)
{
    const ls_pass_preference *p = &call->preference;

    if (p->objective.kind == LS_PREFERENCE_NONE) {
        run_head(pass, call, grad, NULL);
        return;
    }
    run_head(pass, call, false, NULL);
    pass->args.kernels->preference(pass->args.stream, &(ls_preference){.objective = p->objective,
                                                                       .losses = call->losses,
                                                                       .targets = call->targets,
                                                                       .start = call->start,
                                                                       .references = p->references,
                                                                       .state = call->state,
                                                                       .weights = p->weights,
                                                                       .numbers = p->numbers,
                                                                       .B = call->B,
                                                                       .T = call->T,
                                                                       .stride = p->stride});
    if (grad)
        run_head(pass, call, true, p->weights);
}

/* --- looking ------------------------------------------------------------------------------ */

/* "mlp.gate_proj, up_proj" */
static void name_parts(const char *module, const char *const *parts, int n, char *out, size_t cap)
{
    size_t at = (size_t)snprintf(out, cap, "%s.%s", module, parts[0]);

    for (int i = 1; i < n && parts[i] && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, ", %s", parts[i]);
}

/* What a block computes. */
typedef enum made {
    MADE_NORM1,
    MADE_QKV,
    MADE_ATTENTION,
    MADE_PROJ,
    MADE_NORM2,
    MADE_FC,
    MADE_ACT,
    MADE_OUT
} made;

/* Number k of it, in the order of computation. */
static made made_at(const ls_model_shape *s, int k)
{
    static const made post[PER_BLOCK] = {MADE_QKV, MADE_ATTENTION, MADE_PROJ, MADE_NORM1,
                                         MADE_FC,  MADE_ACT,       MADE_OUT,  MADE_NORM2};

    return s->post_norm ? post[k] : (made)k;
}

/* By the name of the module that makes it; the one that ends a branch also adds the stream. */
static void name_made(const ls_model_shape *s, int64_t l, made what, char *out, size_t cap)
{
    const ls_family_names *n = &ls_families_row(s->family)->names;
    bool norm = what == MADE_NORM1 || what == MADE_NORM2;
    bool ends = s->post_norm ? norm : what == MADE_PROJ || what == MADE_OUT;
    char qkv[64], proj[64], fc[64], act[64], last[64];
    const char *const names[PER_BLOCK] = {n->norm1, qkv, n->attention, proj,
                                          n->norm2, fc,  act,          last};

    name_parts(n->attention, n->qkv, 3, qkv, sizeof qkv);
    snprintf(proj, sizeof proj, "%s.%s", n->attention, n->proj);
    name_parts(n->mlp, n->fc, 2, fc, sizeof fc);
    snprintf(act, sizeof act, "%s.act", n->mlp);
    snprintf(last, sizeof last, "%s.%s", n->mlp, n->out);
    snprintf(out, cap, "%s%s.%lld.%s%s", n->prefix, n->blocks, (long long)l, names[what],
             ends ? " + stream" : "");
}

bool ls_pass_computed(const ls_pass *pass, const ls_pass_call *call, int i,
                      ls_pass_tensor *tensor_out)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_family_names *n = &ls_families_row(s->family)->names;
    int64_t M = call->B * call->T, l = (i - 1) / PER_BLOCK, first;
    int64_t own = ls_pass_own_rows(pass, call, &first);

    if (i == 0 || l >= s->L) {
        bool last = i != 0;
        *tensor_out = (ls_pass_tensor){
            .x = last ? pass->yf : pass->in0, .type = pass->args.type, .n = own * s->C};
        snprintf(tensor_out->name, sizeof tensor_out->name, "%s%s%s%s", n->prefix,
                 last ? n->final_norm : n->embedding, !last && n->positions ? " + " : "",
                 !last && n->positions ? n->positions : "");
        return i <= s->L * PER_BLOCK + 1 &&
               (last ? ls_pass_has_head(&pass->args) : ls_pass_has_embedding(&pass->args));
    }
    if (l < ls_pass_first_block(&pass->args) || l >= ls_pass_end_block(&pass->args))
        return false;
    const ls_pass_buffers *b = &pass->blocks[l];
    made what = made_at(s, (i - 1) % PER_BLOCK);
    bool post = s->post_norm;
    const void *const buffers[PER_BLOCK] = {
        post ? b->mid : b->y1,  b->qkv, b->att, post ? b->end1 : b->mid,
        post ? b->next : b->y2, b->z,   b->act, post ? b->end2 : b->next};
    const int64_t widths[PER_BLOCK] = {
        s->C, ls_pass_qkv_width(s), ls_pass_att_width(s), s->C, s->C, ls_pass_fc_width(s), s->F,
        s->C};
    bool mlp = what == MADE_FC || what == MADE_ACT;
    bool of_all = what == MADE_QKV || what == MADE_ATTENTION;
    int64_t routed = ls_pass_is_ep(&pass->args)
                         ? b->experts.host.first_here[pass->args.model->split.experts]
                         : ls_pass_mlp_rows(&pass->args, M);
    int64_t rows = mlp ? routed : of_all ? M : own;
    *tensor_out =
        (ls_pass_tensor){.x = buffers[what], .type = pass->args.type, .n = rows * widths[what]};
    name_made(s, l, what, tensor_out->name, sizeof tensor_out->name);
    return true;
}

void ls_pass_loss(ls_pass *pass, const ls_pass_call *call)
{
    ls_pass_call quiet = *call;

    quiet.dropout = false;
    ls_pass_forward(pass, &quiet);
    if (ls_pass_has_head(&pass->args))
        ls_pass_head(pass, &quiet, false);
}

void ls_pass_logits(ls_pass *pass, const ls_pass_call *call, int64_t row, float *logits)
{
    const ls_model_shape *s = &pass->args.model->shape;
    bool widen = pass->args.type != LS_F32;
    ls_pass_call quiet = *call;

    quiet.dropout = false;
    ls_pass_forward(pass, &quiet);
    const void *packed =
        ls_packed_weights_find(pass->args.packs, call->w, 0, LS_LAYER_HEAD, false, 1);
    void *h = ls_pass_whole(pass, call, pass->yf, pass->whole_x);
    float *own = logits + pass->args.model->split.token;
    if (ls_pass_is_split(&pass->args))
        pass->args.kernels->fill(pass->args.stream,
                                 &(ls_fill){.x = logits, .n = pass->args.model->whole.V});
    pass->args.kernels->linear_fwd(
        pass->args.stream, &(ls_linear_fwd){.type = pass->args.type,
                                            .tf32 = pass->args.tf32,
                                            .x = ls_pass_at(pass, h, row * s->C),
                                            .w = ls_pass_weight(pass, call, pass->args.model->head),
                                            .packed = packed,
                                            .y = widen ? pass->logits : own,
                                            .M = 1,
                                            .N = s->V,
                                            .K = s->C,
                                            .layout = LS_LAYOUT_NK});
    if (widen)
        pass->args.kernels->cast(pass->args.stream, &(ls_cast){.from_type = pass->args.type,
                                                               .to_type = LS_F32,
                                                               .from = pass->logits,
                                                               .to = own,
                                                               .n = s->V});
    if (ls_pass_is_split(&pass->args))
        ls_pass_logits_of_all(pass, logits);
}
