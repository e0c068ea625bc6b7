/* pass_memory.c -- the buffers of a pass: one description, for counting and for cutting. */
#include "model/pass_impl.h"

#include "base/mem.h"
#include "base/time.h"

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

/* Of the pass's type. */
static void *cut_values(cutter *c, const ls_pass_args *args, int64_t n)
{
    return cut(c, n * ls_dtype_bytes(args->type));
}

/* Of all heads of queries, and of the packed product of q, k and v. */
int64_t ls_pass_att_width(const ls_model_shape *s)
{
    return s->H * s->D;
}

int64_t ls_pass_qkv_width(const ls_model_shape *s)
{
    return (s->H + 2 * s->Hkv) * s->D;
}

/* Of the MLP's value before its activation. */
int64_t ls_pass_fc_width(const ls_model_shape *s)
{
    return s->gated ? 2 * s->F : s->F;
}

/* Whether q and k are changed between the product and attention. */
bool ls_pass_turns(const ls_model_shape *s)
{
    return s->rope || s->qk_norm;
}

/* Queries, keys or values (0, 1, 2) in a packed product. */
ls_heads ls_pass_part_of_qkv(const ls_pass *pass, int64_t T, void *qkv, int which)
{
    const ls_model_shape *s = &pass->args.model->shape;
    int64_t first = which == 0 ? 0 : which == 1 ? s->H : s->H + s->Hkv;

    return (ls_heads){ls_pass_at(pass, qkv, first * s->D), T * ls_pass_qkv_width(s),
                      ls_pass_qkv_width(s), s->D};
}

ls_heads ls_pass_heads_of(const ls_pass *pass, int64_t T, void *x)
{
    const ls_model_shape *s = &pass->args.model->shape;

    return (ls_heads){x, T * ls_pass_att_width(s), ls_pass_att_width(s), s->D};
}

/* --- memory ----------------------------------------------------------------------------------- */

static int64_t backward_scratch(const ls_pass_args *args, int threads)
{
    const ls_model_shape *s = &args->model->shape;
    const ls_kernels *k = args->kernels;
    int64_t B = args->B, T = args->T, leaves = args->leaves;
    float *wanted = (float *)(uintptr_t)LS_PARAM_ALIGN; /* only compared with NULL */
    const ls_attention_bwd att = {.type = args->type,
                                  .B = B,
                                  .T = ls_pass_is_cp(args) ? T / 2 : T,
                                  .H = s->H,
                                  .Hkv = s->Hkv,
                                  .D = s->D,
                                  .any_order = args->any_order};
    const ls_norm_bwd norm = {.type = args->type,
                              .M = ls_pass_share(args, B * T),
                              .C = s->C,
                              .T = T,
                              .leaves = ls_pass_divides_rows(args) ? 1 : leaves};
    const ls_embed_bwd embed = {.type = args->type,
                                .M = B * T,
                                .C = s->C,
                                .T = T,
                                .V = s->V,
                                .positions = s->positions,
                                .leaves = leaves};
    const ls_qkv qkv = {.type = args->type,
                        .B = B,
                        .T = T,
                        .H = s->H,
                        .Hkv = s->Hkv,
                        .D = s->qk_wide ? s->H * s->D : s->D,
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

/* Of linear layers that multiply in fp8. */
static int64_t fp8_scratch(const ls_pass_args *args, int threads)
{
    ls_pass_layers at;
    int64_t most = 0;

    ls_pass_layers_of(args->model, 0, &at);
    const ls_pass_layer *const all[LS_LAYERS] = {&at.qkv, &at.proj, &at.fc, &at.out};
    for (int i = 0; i < LS_LAYERS; i++) {
        ls_linear_fwd row = {.type = args->type,
                             .M = args->B * args->T,
                             .N = all[i]->N,
                             .K = all[i]->K,
                             .fp8 = {.x_max = (float *)(uintptr_t)LS_PARAM_ALIGN}};
        most = ls_max_i64(most, args->kernels->scratch(LS_ROW_LINEAR_FWD, &row, threads));
    }
    return most;
}

static int64_t scratch_bytes(const ls_pass_args *args, int threads)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T, most = 0;
    float *wanted = args->training ? (float *)(uintptr_t)LS_PARAM_ALIGN : NULL;
    ls_head head = {.type = args->type,
                    .M = M,
                    .C = s->C,
                    .V = s->V,
                    .leaves = args->leaves,
                    .dh = wanted,
                    .dw = wanted};

    if (args->fp8)
        most = fp8_scratch(args, threads);
    if (ls_pass_is_split(args)) {
        head.part = LS_HEAD_SCORES;
        head.M = ls_pass_head_rows(args);
        head.leaves = 1;
    }
    if (ls_pass_has_head(args)) {
        most = ls_max_i64(most, args->kernels->scratch(LS_ROW_HEAD, &head, threads));
        head.leaves = 1; /* ls_pass_loss() takes all rows as one leaf */
        head.dh = head.dw = NULL;
        most = ls_max_i64(most, args->kernels->scratch(LS_ROW_HEAD, &head, threads));
    }
    return args->training ? ls_max_i64(most, backward_scratch(args, threads)) : most;
}

ls_recompute ls_pass_recompute_of(const ls_pass_args *args, int64_t l)
{
    if (!args->training || l < args->recompute_blocks)
        return args->training ? args->recompute : LS_RECOMPUTE_NONE;
    return args->recompute == LS_RECOMPUTE_FULL ? LS_RECOMPUTE_SELECTIVE : LS_RECOMPUTE_NONE;
}

/* What a selective block makes again: large, and quickly made. */
static void cut_light(cutter *c, const ls_pass_args *args, ls_pass_buffers *b)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T, share = ls_pass_share(args, M);

    b->y1 = s->post_norm ? NULL : cut_values(c, args, share * s->C);
    b->y2 = s->post_norm ? NULL : cut_values(c, args, share * s->C);
    if (!s->gated && (args->training || s->lora_rank))
        b->z = cut_values(c, args, M * s->F);
    b->act = cut_values(c, args, ls_pass_mlp_rows(args, M) * s->F);
    if (s->E > 0 && !ls_pass_is_ep(args))
        b->experts.xs = cut_values(c, args, ls_pass_mlp_rows(args, M) * s->C);
}

static int32_t *cut_ints(cutter *c, int64_t n)
{
    return cut(c, n * (int64_t)sizeof(int32_t));
}

/* z of a gated MLP, and what experts have beside it. */
static void cut_gated(cutter *c, const ls_pass_args *args, ls_pass_buffers *block)
{
    const ls_model_shape *s = &args->model->shape;
    ls_pass_experts *b = &block->experts;
    int64_t M = args->B * args->T, R = M * s->K;

    block->z = cut_values(c, args, ls_pass_mlp_rows(args, M) * ls_pass_fc_width(s));
    if (s->E == 0)
        return;
    b->logits = cut_values(c, args, M * s->E);
    b->probs = cut_floats(c, M * s->E);
    b->lse = cut_floats(c, M);
    b->weights = cut_floats(c, R);
    b->ids = cut_ints(c, R);
    b->rows = cut_ints(c, R);
    b->slots = cut_ints(c, R);
    b->first = cut_ints(c, s->E * ls_max_i64(args->leaves, 1) + 1);
    b->chosen = cut_ints(c, args->B * s->E);
    b->ys = cut_values(c, args, R * s->C);
    if (!ls_pass_is_ep(args))
        return;
    b->xs = cut_values(c, args, ls_pass_mlp_rows(args, M) * s->C);
    int64_t stretches = args->model->split.ep_ranks * args->model->split.experts;
    b->by_source = cut_ints(c, stretches + 1);
    b->by_expert = cut_ints(c, stretches + 1);
    b->first_here = cut_ints(c, args->model->split.experts + 1);
}

/* What rows pass through on their way to other ranks and back, of all blocks. */
static void cut_ep(cutter *c, const ls_pass_args *args, ls_pass_ep_buffers *ep)
{
    const ls_model_shape *s = &args->model->shape;
    const ls_model_split *split = &args->model->split;
    int64_t here = ls_pass_ep_rows(args) * s->C;

    ep->away = cut_values(c, args, args->B * args->T * s->K * s->C);
    ep->come_rows = cut_values(c, args, here);
    ep->grouped = cut_values(c, args, here);
    ep->elements = cut(c, 2 * split->ep_ranks * (int64_t)sizeof *ep->elements);
    ep->own = cut_ints(c, s->E);
    ep->come = cut_ints(c, split->ep_ranks * split->experts);
}

/* The rest of a block, but for its end. */
static void cut_heavy(cutter *c, const ls_pass_args *args, int64_t l, ls_pass_buffers *b)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T, share = ls_pass_share(args, M);
    bool keep = args->training;

    b->mean1 = cut_floats(c, share);
    b->rstd1 = cut_floats(c, share);
    b->qkv = cut_values(c, args, M * ls_pass_qkv_width(s));
    b->turned = keep && s->qk_norm ? cut_values(c, args, M * ls_pass_qkv_width(s)) : b->qkv;
    b->qk_rstd = keep && s->qk_norm ? cut_floats(c, M * (s->H + s->Hkv)) : NULL;
    b->att = cut_values(c, args, M * ls_pass_att_width(s));
    b->lse = cut_floats(c, args->B * s->H * args->T);
    b->end1 = s->post_norm ? cut_values(c, args, share * s->C) : NULL;
    b->mid = cut_values(c, args, share * s->C);
    if (!s->post_norm) {
        b->mean2 = cut_floats(c, share);
        b->rstd2 = cut_floats(c, share);
    }
    if (s->gated && !ls_pass_is_ep(args))
        cut_gated(c, args, b);
    for (int i = 0; i < LS_ADAPTER_DOWN; i++)
        if (args->model->blocks[l].adapters[i].a.w >= 0)
            b->small[i] = cut_values(c, args, M * s->lora_rank);
}

/* What layers of block l with DoRA make, and their lengths. */
static void cut_dora(cutter *c, const ls_pass_args *args, int64_t l, ls_pass_buffers *b)
{
    ls_pass_layers at;

    ls_pass_layers_of(args->model, l, &at);
    const ls_pass_layer *const all[LS_LAYERS] = {&at.qkv, &at.proj, &at.fc, &at.out};
    for (int i = 0; i < LS_LAYERS; i++) {
        if (!ls_pass_is_dora(args, l, all[i]))
            continue;
        if (args->training || l == ls_pass_first_block(args)) /* else all share the first one's */
            b->dora[i].z = cut_values(c, args, args->B * args->T * all[i]->N);
        b->dora[i].factor = cut_floats(c, all[i]->N);
        b->dora[i].inverse = cut_floats(c, all[i]->N);
    }
}

/* What is kept always: what the product that ends a block makes, with the norm behind it where there
 * is one, and rows of experts that would have to travel between ranks again. */
static void cut_end(cutter *c, const ls_pass_args *args, int64_t l, ls_pass_buffers *b)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T, share = ls_pass_share(args, M);

    b->next = cut_values(c, args, share * s->C);
    if (s->post_norm) {
        b->end2 = cut_values(c, args, share * s->C);
        b->mean2 = cut_floats(c, share);
        b->rstd2 = cut_floats(c, share);
    }
    if (ls_pass_is_ep(args))
        cut_gated(c, args, b);
    if (args->model->blocks[l].adapters[LS_ADAPTER_DOWN].a.w >= 0)
        b->small[LS_ADAPTER_DOWN] = cut_values(c, args, M * s->lora_rank);
}

/* Block l: its own buffers, and those that it shares. */
static ls_pass_buffers cut_block(cutter *c, const ls_pass_args *args, int64_t l,
                                 const ls_pass_buffers *shared)
{
    ls_recompute level = ls_pass_recompute_of(args, l);
    ls_pass_buffers b = *shared;

    if (level == LS_RECOMPUTE_NONE)
        cut_light(c, args, &b);
    if (level != LS_RECOMPUTE_FULL)
        cut_heavy(c, args, l, &b);
    cut_end(c, args, l, &b);
    return b;
}

/* What blocks that recompute share, of all slots: the first one recomputes most. All have the same
 * adapters. */
static ls_pass_buffers cut_shared(cutter *c, const ls_pass_args *args)
{
    int64_t first = ls_pass_first_block(args);
    bool none = first == ls_pass_end_block(args);
    ls_recompute most = none ? LS_RECOMPUTE_NONE : ls_pass_recompute_of(args, first);
    ls_pass_buffers shared = {.y1 = NULL};

    if (most != LS_RECOMPUTE_NONE)
        cut_light(c, args, &shared);
    if (most == LS_RECOMPUTE_FULL)
        cut_heavy(c, args, first, &shared);
    return shared;
}

/* Whether the norm of q, or of k, is trained without the other somewhere: rows make both. */
static bool trains_one_norm(const ls_model *model)
{
    bool one = false;

    for (int64_t l = 0; l < model->shape.L && !model->shape.qk_wide; l++)
        one |= (model->blocks[l].q_norm.g >= 0) != (model->blocks[l].k_norm.g >= 0);
    return one;
}

static void cut_backward(cutter *c, const ls_pass_args *args, ls_pass *pass)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T, share = ls_pass_share(args, M);
    bool halves = args->late > 0; /* late places have dqkv and dz, and activations are kept */

    pass->dstream = args->units ? NULL : cut_values(c, args, share * s->C); /* calls bring both */
    bool branch = s->post_norm || (s->dropout > 0 && !args->units);
    pass->dbranch = branch ? cut_values(c, args, share * s->C) : NULL;
    pass->dy = cut_values(c, args, share * s->C);
    pass->dqkv = halves ? NULL : cut_values(c, args, M * ls_pass_qkv_width(s));
    pass->datt = cut_values(c, args, M * ls_pass_att_width(s));
    pass->dz = halves || s->gated ? NULL : cut_values(c, args, M * s->F);
    bool keeps_act = halves && s->gated && s->E == 0;
    pass->dact = s->lora_rank || keeps_act ? cut_values(c, args, M * s->F) : NULL;
    if (s->dora)
        pass->dora_dz = cut_values(c, args,
                                   M * ls_max_i64(ls_max_i64(ls_pass_qkv_width(s), s->C),
                                                  s->E > 0 ? 0 : ls_pass_fc_width(s)));
    pass->spare = trains_one_norm(args->model) ? cut_floats(c, s->D) : NULL;
    pass->dsmall = s->lora_rank ? cut_values(c, args, M * s->lora_rank) : NULL;
    if (s->E > 0) {
        pass->dlogits = cut_values(c, args, M * s->E);
        pass->dweights = cut_floats(c, M * s->K);
        pass->stack_floats = ls_experts_stack(args->kernels, s->C, s->F, args->leaves);
        pass->stack = cut_floats(c, pass->stack_floats);
    }
}

static ls_pass_ends cut_ends(cutter *c, const ls_pass_args *args)
{
    int64_t share = ls_pass_share(args, args->B * args->T);
    ls_pass_ends ends = {.in0 = NULL};

    ends.yf = cut_values(c, args, share * args->model->shape.C);
    ends.meanf = cut_floats(c, share);
    ends.rstdf = cut_floats(c, share);
    return ends;
}

/* What a call keeps until its backward. */
static void lay_out_slot(cutter *c, const ls_pass_args *args, ls_pass *pass, int slot,
                         const ls_pass_buffers *shared)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t share = ls_pass_share(args, args->B * args->T);
    int64_t kept = args->B * args->cache * s->Hkv * s->D, first = ls_pass_first_block(args);
    ls_pass_buffers *blocks = pass->all ? pass->all + slot * s->L : NULL;
    ls_pass_ends ends = {.yf = NULL};

    /* A branch ends beside the stream. */
    bool beside = s->dropout > 0 || s->post_norm || ls_pass_is_split(args);
    if (ls_pass_has_head(args) || (slot == 0 && beside))
        ends = cut_ends(c, args);
    else if (pass->ends) /* its content is never read */
        ends = pass->ends[0];
    if (ls_pass_has_embedding(args))
        ends.in0 = cut_values(c, args, share * s->C);
    if (pass->ends)
        pass->ends[slot] = ends;
    for (int64_t l = first; l < ls_pass_end_block(args); l++) {
        ls_pass_buffers b = {.y1 = NULL};
        if (l == first || args->training)
            b = cut_block(c, args, l, shared);
        else if (blocks)
            b = blocks[first];
        cut_dora(c, args, l, &b);
        b.keys = cut_values(c, args, kept);
        b.values = cut_values(c, args, kept);
        if (blocks)
            blocks[l] = b;
    }
}

/* What a call keeps between the halves of its backward. */
static void lay_out_late(cutter *c, const ls_pass_args *args, ls_pass *pass, int place)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T;

    for (int64_t l = ls_pass_first_block(args); l < ls_pass_end_block(args); l++) {
        ls_pass_late late = {.dqkv = cut_values(c, args, M * ls_pass_qkv_width(s)),
                             .dproj = cut_values(c, args, M * s->C)};
        if (s->E == 0) {
            late.dz = cut_values(c, args, M * ls_pass_fc_width(s));
            late.dout = cut_values(c, args, M * s->C);
        }
        if (pass->lates)
            pass->lates[place * s->L + l] = late;
    }
}

/* What the ranks of a split model need to meet. */
static void cut_meeting(cutter *c, const ls_pass_args *args, ls_pass *pass)
{
    int64_t ranks = args->model->split.ranks, scores = ls_pass_scores(ls_pass_head_rows(args));
    int64_t all = ranks * ls_pass_share(args, args->B * args->T) * args->model->shape.C;

    if (ls_pass_divides_rows(args)) {
        pass->whole_x = cut_values(c, args, all);
        pass->whole_y = cut_values(c, args, all);
    }
    pass->scores = cut_floats(c, scores);
    pass->all_scores = cut_floats(c, ranks * scores);
    if (args->model->shape.qk_wide)
        pass->qk_sums = cut_floats(c, 2 * args->B * args->T);
}

/* What ranks that share sequences send to each other. */
static void cut_cp(cutter *c, const ls_pass_args *args, ls_pass_cp_buffers *t)
{
    int64_t n = ls_pass_kv_elements(args, args->B, args->T);
    bool gather = args->cp_group.gather;

    t->kv[0] = cut_values(c, args, n);
    t->kv[1] = cut_values(c, args, gather ? args->cp_group.ranks * n : n);
    if (args->training || args->type != LS_F32)
        t->wide = cut_floats(c, args->B * args->T * ls_pass_att_width(&args->model->shape));
    if (!args->training)
        return;
    t->dkv = cut_floats(c, n);
    if (gather)
        t->all = cut_floats(c, args->cp_group.ranks * n);
    for (int i = 0; i < 2 && !gather; i++)
        t->part[i] = cut_floats(c, n);
    if (!gather)
        t->sum = cut_floats(c, n);
}

/* The one description of the buffer, used for counting and for cutting: then ends and all are
 * there. What context-parallel ranks send lies in another one. */
static void lay_out(cutter *c, const ls_pass_args *args, int threads, ls_pass *pass)
{
    const ls_model_shape *s = &args->model->shape;
    int64_t M = args->B * args->T, share = ls_pass_share(args, M);
    bool branch = s->dropout > 0 || s->post_norm || ls_pass_is_split(args);

    pass->branch = branch ? cut_values(c, args, share * s->C) : NULL;
    if (ls_pass_is_split(args))
        cut_meeting(c, args, pass);
    if (ls_pass_is_ep(args))
        cut_ep(c, args, &pass->ep);
    pass->maxima = args->fp8 ? cut_floats(c, s->L * 2 * LS_LAYERS) : NULL;
    pass->rope = s->rope ? cut_floats(c, ls_max_i64(args->T, args->cache) * s->D) : NULL;
    if (args->type != LS_F32) {
        pass->wide = s->lora_rank ? cut_floats(c, M * s->lora_rank) : NULL;
        pass->logits = cut_values(c, args, s->V);
    }
    ls_pass_buffers shared = cut_shared(c, args);
    for (int slot = 0; slot < ls_pass_slots(args); slot++)
        lay_out_slot(c, args, pass, slot, &shared);
    for (int place = 0; place < args->late; place++)
        lay_out_late(c, args, pass, place);
    if (args->training)
        cut_backward(c, args, pass);
    pass->scratch = cut(c, scratch_bytes(args, threads));
}

static int64_t own_bytes(const ls_pass_args *args, int threads)
{
    cutter c = {.base = NULL};
    ls_pass unused = {.all = NULL};

    lay_out(&c, args, threads, &unused);
    return ls_round_up(c.used, 4096);
}

static int64_t cp_bytes(const ls_pass_args *args)
{
    cutter c = {.base = NULL};
    ls_pass_cp_buffers unused = {.dkv = NULL};

    if (ls_pass_is_cp(args))
        cut_cp(&c, args, &unused);
    return ls_round_up(c.used, 4096);
}

int64_t ls_pass_bytes(const ls_pass_args *args, int threads)
{
    return own_bytes(args, threads) + cp_bytes(args);
}

/* Angles of all positions, some at a time; of this rank's positions where ranks share sequences. */
static ls_status send_rope(const ls_pass *pass)
{
    enum { PIECE = 256 };
    const ls_model *model = pass->args.model;
    int64_t D = model->shape.D, positions = ls_max_i64(pass->args.T, pass->args.cache);
    ls_piece own = ls_pass_piece(&pass->args, pass->args.T);
    float *piece = ls_mem_array((size_t)(PIECE * D), sizeof *piece);
    ls_status st = LS_OK;

    if (!piece)
        return LS_ENOMEM;
    for (int64_t t = 0, n; t < positions && st == LS_OK; t += n) {
        n = ls_min_i64(PIECE, own.chunk ? own.chunk - t % own.chunk : positions - t);
        ls_model_rope(model, ls_piece_position(&own, t), n, piece);
        ls_stream_copy_in(pass->args.stream, pass->rope + t * D, piece,
                          n * D * (int64_t)sizeof *piece);
        st = ls_stream_sync(pass->args.stream, ls_time_now_ns() + 60 * LS_NS_PER_S);
    }
    ls_mem_free(piece);
    return st;
}

bool ls_pass_norms_sum(const ls_pass_args *args)
{
    return args->kernels->norm_sums && !ls_pass_is_split(args) && args->units == 0 &&
           args->late == 0;
}

/* Bytes of the largest of some moves, of host memory that they pass through. */
int64_t ls_pass_place(const ls_pass_args *args)
{
    int64_t ranks = args->model->split.ranks, M = args->B * args->T, size = sizeof(float);
    int64_t stream = ls_pass_share(args, M) * args->model->shape.C * ls_dtype_bytes(args->type);
    ls_collectives_move moved =
        ls_pass_divides_rows(args) ? LS_COLLECTIVES_GATHER : LS_COLLECTIVES_SUM;
    int64_t scores = ls_pass_scores(ls_pass_head_rows(args)) * size;
    int64_t most = ls_max_i64(ls_collectives_place(moved, ranks, stream),
                              ls_collectives_place(LS_COLLECTIVES_GATHER, ranks, scores));
    int64_t routed = M * args->model->shape.E * ls_dtype_bytes(args->type);

    if (ls_pass_shares_logits(args))
        most = ls_max_i64(most, ls_collectives_place(LS_COLLECTIVES_SUM, ranks, routed));

    return ls_max_i64(most, args->model->whole.V * size); /* logits of a token */
}

int64_t ls_pass_cp_place(const ls_pass_args *args)
{
    int64_t n = ls_pass_kv_elements(args, args->B, args->T);
    int64_t size = args->training ? (int64_t)sizeof(float) : ls_dtype_bytes(args->type);
    int64_t chosen = args->B * args->model->shape.E * (int64_t)sizeof(int32_t);

    return ls_max_i64(
        ls_collectives_place(args->cp_group.gather ? LS_COLLECTIVES_GATHER : LS_COLLECTIVES_SHIFT,
                             args->cp_group.ranks, n * size),
        ls_collectives_place(LS_COLLECTIVES_SUM, args->cp_group.ranks, chosen));
}

int64_t ls_pass_ep_place(const ls_pass_args *args)
{
    return ls_pass_ep_rows(args) * args->model->shape.C * ls_dtype_bytes(args->type);
}

/* The group whose ranks reach the activations of a pass; NULL: there is none. */
static const ls_collectives *collectives_of(const ls_pass *pass)
{
    return pass->args.collectives ? pass->args.collectives : pass->args.ep_group;
}

/* What context-parallel ranks send lies in memory that they reach. */
static ls_status alloc_memory(ls_pass *pass, ls_device *device)
{
    const ls_collectives *g = collectives_of(pass), *cp_group = pass->args.cp_group.collectives;
    ls_status st;

    LS_TRY(st,
           g ? g->alloc(g->context, pass->bytes, "activations", &pass->memory)
             : ls_device_alloc(device, pass->bytes, "activations", &pass->memory),
           out);
    if (cp_group)
        st = cp_group->alloc(cp_group->context, cp_bytes(&pass->args), "keys and values",
                             &pass->cp_memory);
out:
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
    LS_BUG_IF(args->recompute == LS_RECOMPUTE_AUTO, "a pass that has to choose what to recompute");
    LS_BUG_IF((args->model->split.ranks > 1) != (args->collectives != NULL),
              "a pass of a part of a model without collectives, or of a whole one with them");
    LS_BUG_IF(ls_pass_is_ep(args) != (args->ep_group != NULL),
              "a pass of some experts without collectives, or of all with them");
    LS_BUG_IF(ls_pass_is_cp(args) != (args->cp_group.collectives != NULL) ||
                  (ls_pass_is_cp(args) && (args->cache || args->T % 2)),
              "%d context-parallel ranks, %lld tokens", args->cp_group.ranks, (long long)args->T);
    LS_BUG_IF(args->training && args->cache, "a pass for training keeps no cache");
    LS_BUG_IF((unsigned)args->type > (args->kernels->f16 ? LS_F16 : LS_BF16), "a pass of type %d",
              (int)args->type);
    LS_BUG_IF(args->fp8 && (args->units || ls_pass_is_split(args)),
              "magnitudes of a tensor, of which a rank sees a part, or another call's");
    LS_BUG_IF(args->model->shape.post_norm &&
                  (args->model->shape.E > 0 || args->model->shape.dropout > 0),
              "norms behind experts, or behind what is dropped");
    LS_BUG_IF(args->late > 0 && !args->training, "a backward in halves of a pass without one");
    size_t slots = (size_t)ls_pass_slots(args), late = (size_t)args->late;
    pass->args = *args;
    pass->discrete = !ls_device_describe(device).host_memory;
    pass->all = ls_mem_array(slots * (size_t)args->model->shape.L, sizeof *pass->all);
    pass->ends = ls_mem_array(slots, sizeof *pass->ends);
    pass->lates = ls_mem_array(late * (size_t)args->model->shape.L, sizeof *pass->lates);
    pass->experts = ls_mem_array((size_t)args->model->shape.E, sizeof *pass->experts);
    if (!pass->all || !pass->ends || !pass->lates || !pass->experts) {
        st = LS_ENOMEM;
        goto out;
    }
    pass->bytes = own_bytes(args, threads);
    LS_TRY(st, alloc_memory(pass, device), out);
    cutter c = {.base = pass->memory}, cp = {.base = pass->cp_memory};
    lay_out(&c, args, threads, pass);
    if (cp.base)
        cut_cp(&cp, args, &pass->cp);
    LS_TRY(st, ls_pass_ep_open(pass), out);
    ls_pass_take(pass, &(ls_pass_call){.slot = 0});
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
    if (collectives_of(pass))
        collectives_of(pass)->free(collectives_of(pass)->context, pass->memory);
    else
        ls_device_free(ls_stream_device(pass->args.stream), pass->memory);
    if (pass->args.cp_group.collectives)
        pass->args.cp_group.collectives->free(pass->args.cp_group.collectives->context,
                                              pass->cp_memory);
    ls_pass_ep_close(pass);
    ls_mem_free(pass->all);
    ls_mem_free(pass->ends);
    ls_mem_free(pass->lates);
    ls_mem_free(pass->experts);
    ls_mem_free(pass);
}

ls_pass_args ls_pass_describe(const ls_pass *pass)
{
    return pass->args;
}

/* The tied gradient has two parts that ordered mode keeps apart. */
bool ls_pass_parts_tied(const ls_model *model, bool ordered)
{
    return ordered && model->shape.tied && model->wte.g >= 0;
}

int64_t ls_pass_grad_elements(const ls_model *model, bool ordered)
{
    return model->trained + (ls_pass_parts_tied(model, ordered)
                                 ? ls_round_up(model->shape.V * model->shape.C, LS_PARAM_ALIGN)
                                 : 0);
}
