/* pass_context.c -- attention of ranks that share sequences (mesh.cp): context parallel.
 *
 * N ranks cut each sequence into 2 N chunks of equal length, and rank r has chunks r and
 * 2 N - 1 - r: one whose queries see little and one whose queries see much. Norms, projections and
 * the MLP work on each token alone and need no other rank. Attention needs the keys and values of
 * all ranks. They go round a ring: each rank passes on what it holds while it computes with it.
 *
 *                            rank 0     rank 1     rank 2
 *   chunks of queries        0 5        1 4        2 3
 *   step 0, keys of chunks   0 5        1 4        2 3        own keys: two triangles, a square
 *   step 1                   2 3        0 5        1 4        from the left: two squares
 *   step 2                   1 4        2 3        0 5        two squares
 *
 * A rank with keys of a lower rank uses its lower chunk for both chunks of queries; with keys of a
 * higher one both chunks of keys for the upper chunk of queries; the rest lies in the future. So
 * all ranks have as much to do in every step. The results of the steps are joined as the tiles of
 * one attention are, by log-sum-exp (ls_attention_pair).
 *
 * Backward sends keys and values round once more, and their gradients one step behind them: a rank
 * computes its part, adds the sum that came from the left and sends it to the right. The owner of
 * the keys keeps its own part; the sum of the others' reaches it after N - 1 steps.
 *
 *   step i of rank r, i > 0:  part = gradient for the keys of rank r - i;  part += sum from r - 1
 *                             part -> r + 1, where it is the sum for step i + 1
 *
 * With `gather` all keys and values arrive in one all-gather while the rank computes with its own: as
 * many bytes, N times the memory. Gradients go back in one reduce-scatter.
 *
 * Gradients for keys and values are sent in fp32, whatever the type. Both ways join in the
 * same order, so the forward pass has the same bits.
 *
 * Where the model is split as well (mesh.tp), a context-parallel group holds the ranks that have the
 * same heads; each rank of a tensor-parallel group belongs to another one. Buffers that are sent lie
 * in memory of their own, since the two groups reach different memory of their ranks. */
#include "model/pass_impl.h"

#include <math.h>
#include "kernel/pieces.h"

bool ls_pass_is_cp(const ls_pass_args *args)
{
    return args->cp_group.ranks > 1;
}

/* Where a chunk, the lower or the upper one of a rank, begins in its sequence. */
static int64_t chunk_first(const ls_pass_args *args, int64_t T, int rank, int which)
{
    return (which == 0 ? rank : 2 * args->cp_group.ranks - 1 - rank) * (T / 2);
}

ls_piece ls_pass_piece(const ls_pass_args *args, int64_t T)
{
    int rank = args->cp_group.rank;

    if (!ls_pass_is_cp(args))
        return (ls_piece){.chunk = 0};
    return (ls_piece){.chunk = T / 2,
                      .first = {chunk_first(args, T, rank, 0), chunk_first(args, T, rank, 1)}};
}

int64_t ls_pass_kv_elements(const ls_pass_args *args, int64_t B, int64_t T)
{
    return ls_round_up(2 * B * T * args->model->shape.Hkv * args->model->shape.D,
                       LS_COLLECTIVES_UNIT);
}

/* --- tensors ---------------------------------------------------------------------------------- */

static ls_heads dense_heads(void *x, int64_t T, int64_t H, int64_t D)
{
    return (ls_heads){x, T * H * D, H * D, D};
}

/* Keys, or values, in a buffer that is sent, of some type. */
static ls_heads half_of(const ls_pass *pass, const ls_pass_call *call, ls_dtype type, void *kv,
                        bool values)
{
    const ls_model_shape *s = &pass->args.model->shape;
    int64_t first = values ? call->B * call->T * s->Hkv * s->D : 0;

    return dense_heads((char *)kv + first * ls_dtype_bytes(type), call->T, s->Hkv, s->D);
}

/* The lower or the upper chunk of a tensor of heads. */
static ls_heads chunk_of(const ls_pass_call *call, ls_dtype type, ls_heads x, int which)
{
    x.p = (char *)x.p + which * (call->T / 2) * x.time * ls_dtype_bytes(type);
    return x;
}

/* What lies at a rank's number in a buffer of all ranks. */
static void *of_rank(const ls_pass *pass, const ls_pass_call *call, ls_dtype type, void *all,
                     int rank)
{
    int64_t n = ls_pass_kv_elements(&pass->args, call->B, call->T);

    return (char *)all + rank * n * ls_dtype_bytes(type);
}

static void copy_heads(const ls_pass *pass, const ls_pass_call *call, ls_heads heads, void *dense,
                       int64_t H, bool back)
{
    ls_pieces a = {.type = pass->args.type,
                   .heads = heads,
                   .dense = dense,
                   .B = call->B,
                   .T = call->T,
                   .H = H,
                   .D = pass->args.model->shape.D};

    (back ? ls_pieces_unpack : ls_pieces_pack)(pass->args.stream, &a);
}

/* The same of all heads by the row that splits a packed product, on a device with a memory of its
 * own; queries that stay where they are are not touched. */
static void split_packed(const ls_pass *pass, const ls_pass_call *call, void *qkv, void *queries,
                         void *kv, bool back)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_kernels *k = pass->args.kernels;
    ls_qkv row = {.type = pass->args.type,
                  .packed = qkv,
                  .q = queries ? dense_heads(queries, call->T, s->H, s->D)
                               : ls_pass_part_of_qkv(pass, call->T, qkv, 0),
                  .k = half_of(pass, call, pass->args.type, kv, false),
                  .v = half_of(pass, call, pass->args.type, kv, true),
                  .B = call->B,
                  .T = call->T,
                  .H = s->H,
                  .Hkv = s->Hkv,
                  .D = s->D};

    (back ? k->qkv_bwd : k->qkv_fwd)(pass->args.stream, &row);
}

/* Copy keys and values, and queries where they are given, from a packed product to buffers that are
 * sent, or back. */
static void copy_kv(const ls_pass *pass, const ls_pass_call *call, void *qkv, void *queries,
                    void *kv, bool back)
{
    if (pass->discrete) {
        split_packed(pass, call, qkv, queries, kv, back);
        return;
    }
    if (queries)
        copy_heads(pass, call, ls_pass_part_of_qkv(pass, call->T, qkv, 0), queries,
                   pass->args.model->shape.H, back);
    for (int i = 0; i < 2; i++)
        copy_heads(pass, call, ls_pass_part_of_qkv(pass, call->T, qkv, 1 + i),
                   half_of(pass, call, pass->args.type, kv, i == 1).p, pass->args.model->shape.Hkv,
                   back);
}

static void clear(const ls_pass *pass, float *x, int64_t n)
{
    pass->args.kernels->fill(pass->args.stream, &(ls_fill){.x = x, .n = n});
}

/* n numbers of fp32, in the type of the pass: where they are, or in `into`. */
static void *narrow(const ls_pass *pass, float *x, void *into, int64_t n)
{
    if (pass->args.type == LS_F32)
        return x;
    pass->args.kernels->cast(
        pass->args.stream,
        &(ls_cast){.from_type = LS_F32, .to_type = pass->args.type, .from = x, .to = into, .n = n});
    return into;
}

/* --- moves ------------------------------------------------------------------------------------ */

static int start(const ls_pass *pass, const ls_pass_call *call, ls_collectives_move move,
                 ls_dtype type, const void *from, void *to)
{
    const ls_collectives *collectives = pass->args.cp_group.collectives;

    return collectives->start(
        collectives->context, pass->args.stream,
        &(ls_collectives_ask){.move = move,
                              .type = type,
                              .from = from,
                              .to = to,
                              .n = ls_pass_kv_elements(&pass->args, call->B, call->T)});
}

static void await(const ls_pass *pass, int number)
{
    const ls_collectives *collectives = pass->args.cp_group.collectives;

    if (number >= 0)
        collectives->wait(collectives->context, pass->args.stream, number);
}

/* The rank whose keys this rank has in a step. */
static int owner_at(const ls_pass *pass, int step)
{
    int n = pass->args.cp_group.ranks;

    return (pass->args.cp_group.rank - step + n) % n;
}

/* --- pairs of chunks -------------------------------------------------------------------------- */

/* Own queries, lower or upper, and keys and values of a rank, lower or upper. */
typedef struct chunk_pair {
    int queries, keys;
    ls_heads q, k, v;
    float *lse;
    const int32_t *start;
    ls_attention_pair pair;
} chunk_pair;

/* Pair i of four with the keys of one rank; false: these queries see none of these keys. Upper
 * keys come first: so that the own chunk, which begins the sums, comes before any other. */
static bool pair_of(const ls_pass *pass, const ls_pass_call *call, int64_t l, int owner, void *kv,
                    int i, chunk_pair *m_out)
{
    const ls_pass_args *args = &pass->args;
    const ls_pass_buffers *b = &pass->blocks[l];
    int queries = i / 2, keys = 1 - i % 2;
    int64_t window = args->model->blocks[l].window, chunk = call->T / 2;
    int64_t q = chunk_first(args, call->T, args->cp_group.rank, queries);
    int64_t k = chunk_first(args, call->T, owner, keys);
    ls_dtype type = args->type;

    *m_out = (chunk_pair){
        .queries = queries,
        .keys = keys,
        .q = chunk_of(call, type, ls_pass_part_of_qkv(pass, call->T, b->turned, 0), queries),
        .k = chunk_of(call, type, half_of(pass, call, type, kv, false), keys),
        .v = chunk_of(call, type, half_of(pass, call, type, kv, true), keys),
        .lse = b->lse + queries * chunk,
        .start = call->start ? call->start + queries * chunk : NULL,
        .pair = {.on = true, .join = k != q, .q_first = q, .k_first = k, .row = call->T}};
    return k <= q && (window <= 0 || k + chunk > q - window + 1);
}

/* The own queries and the keys of one rank. */
static void forward_with(const ls_pass *pass, const ls_pass_call *call, int64_t l, int owner,
                         void *kv)
{
    const ls_model_shape *s = &pass->args.model->shape;
    void *out = pass->args.type == LS_F32 ? pass->blocks[l].att : pass->cp.wide;
    ls_heads o = dense_heads(out, call->T, s->H, s->D);
    chunk_pair m;

    for (int i = 0; i < 4; i++)
        if (pair_of(pass, call, l, owner, kv, i, &m))
            pass->args.kernels->attention_fwd(
                pass->args.stream,
                &(ls_attention_fwd){.type = pass->args.type,
                                    .q = m.q,
                                    .k = m.k,
                                    .v = m.v,
                                    .o = chunk_of(call, LS_F32, o, m.queries),
                                    .lse = m.lse,
                                    .start = m.start,
                                    .B = call->B,
                                    .T = call->T / 2,
                                    .H = s->H,
                                    .Hkv = s->Hkv,
                                    .D = s->D,
                                    .window = pass->args.model->blocks[l].window,
                                    .scale = 1.0f / sqrtf((float)s->D),
                                    .drop = ls_pass_drop_at(pass, call, l, SITE_ATTENTION),
                                    .pair = m.pair});
}

/* Their gradients: for the queries in `wide`, for the keys and values in dkv, added to both. */
static void backward_with(const ls_pass *pass, const ls_pass_call *call, int64_t l, int owner,
                          void *kv, float *dkv)
{
    const ls_model_shape *s = &pass->args.model->shape;
    ls_dtype type = pass->args.type;
    ls_heads o = ls_pass_heads_of(pass, call->T, pass->blocks[l].att);
    ls_heads dout = ls_pass_heads_of(pass, call->T, pass->datt);
    ls_heads dq = dense_heads(pass->cp.wide, call->T, s->H, s->D);
    ls_heads dk = half_of(pass, call, LS_F32, dkv, false);
    ls_heads dv = half_of(pass, call, LS_F32, dkv, true);
    chunk_pair m;

    for (int i = 0; i < 4; i++)
        if (pair_of(pass, call, l, owner, kv, i, &m))
            pass->args.kernels->attention_bwd(
                pass->args.stream,
                &(ls_attention_bwd){.type = type,
                                    .q = m.q,
                                    .k = m.k,
                                    .v = m.v,
                                    .o = chunk_of(call, type, o, m.queries),
                                    .dout = chunk_of(call, type, dout, m.queries),
                                    .dq = chunk_of(call, LS_F32, dq, m.queries),
                                    .dk = chunk_of(call, LS_F32, dk, m.keys),
                                    .dv = chunk_of(call, LS_F32, dv, m.keys),
                                    .lse = m.lse,
                                    .start = m.start,
                                    .B = call->B,
                                    .T = call->T / 2,
                                    .H = s->H,
                                    .Hkv = s->Hkv,
                                    .D = s->D,
                                    .window = pass->args.model->blocks[l].window,
                                    .scale = 1.0f / sqrtf((float)s->D),
                                    .any_order = pass->args.any_order,
                                    .drop = ls_pass_drop_at(pass, call, l, SITE_ATTENTION),
                                    .pair = m.pair,
                                    .scratch = pass->scratch});
}

/* --- the two ways ----------------------------------------------------------------------------- */

static void cp_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    void *const *kv = pass->cp.kv;
    int n = pass->args.cp_group.ranks;

    for (int i = 0; i < n; i++) {
        int coming = -1;
        if (i + 1 < n)
            coming = start(pass, call, LS_COLLECTIVES_SHIFT, pass->args.type, kv[i % 2],
                           kv[(i + 1) % 2]);
        forward_with(pass, call, l, owner_at(pass, i), kv[i % 2]);
        await(pass, coming);
    }
}

static void gather_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    void *const *kv = pass->cp.kv;
    ls_dtype type = pass->args.type;
    int coming = start(pass, call, LS_COLLECTIVES_GATHER, type, kv[0], kv[1]);

    forward_with(pass, call, l, pass->args.cp_group.rank, kv[0]);
    await(pass, coming);
    for (int i = 1; i < pass->args.cp_group.ranks; i++) {
        int owner = owner_at(pass, i);
        forward_with(pass, call, l, owner, of_rank(pass, call, type, kv[1], owner));
    }
}

void ls_pass_cp_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_pass_buffers *b = &pass->blocks[l];
    const ls_pass_cp_buffers *t = &pass->cp;

    copy_kv(pass, call, b->turned, NULL, t->kv[0], false);
    (pass->args.cp_group.gather ? gather_forward : cp_forward)(pass, call, l);
    if (pass->args.type != LS_F32)
        narrow(pass, t->wide, b->att,
               call->B * call->T * ls_pass_att_width(&pass->args.model->shape));
}

static void add(const ls_pass *pass, float *to, const float *x, int64_t n)
{
    pass->args.kernels->add(pass->args.stream, &(ls_add){.a = to, .b = x, .out = to, .n = n});
}

/* Keys and values are one step ahead of their gradients. */
static void cp_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_pass_cp_buffers *t = &pass->cp;
    int64_t elements = ls_pass_kv_elements(&pass->args, call->B, call->T);
    int n = pass->args.cp_group.ranks, sum = -1;

    for (int i = 0; i < n; i++) {
        float *part = i == 0 ? t->dkv : t->part[i % 2];
        int coming = -1;
        if (i + 1 < n)
            coming = start(pass, call, LS_COLLECTIVES_SHIFT, pass->args.type, t->kv[i % 2],
                           t->kv[(i + 1) % 2]);
        clear(pass, part, elements);
        backward_with(pass, call, l, owner_at(pass, i), t->kv[i % 2], part);
        if (i > 1) {
            await(pass, sum);
            add(pass, part, t->sum, elements);
        }
        await(pass, coming);
        if (i > 0)
            sum = start(pass, call, LS_COLLECTIVES_SHIFT, LS_F32, part, t->sum);
    }
    await(pass, sum);
    add(pass, t->dkv, t->sum, elements);
}

static void gather_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_pass_cp_buffers *t = &pass->cp;
    ls_dtype type = pass->args.type;
    int n = pass->args.cp_group.ranks, rank = pass->args.cp_group.rank;
    int coming = start(pass, call, LS_COLLECTIVES_GATHER, type, t->kv[0], t->kv[1]);

    clear(pass, t->all, n * ls_pass_kv_elements(&pass->args, call->B, call->T));
    backward_with(pass, call, l, rank, t->kv[0], of_rank(pass, call, LS_F32, t->all, rank));
    await(pass, coming);
    for (int i = 1; i < n; i++) {
        int owner = owner_at(pass, i);
        backward_with(pass, call, l, owner, of_rank(pass, call, type, t->kv[1], owner),
                      of_rank(pass, call, LS_F32, t->all, owner));
    }
    await(pass, start(pass, call, LS_COLLECTIVES_SCATTER, LS_F32, t->all, t->dkv));
}

/* datt, whose last reader is gone, takes the queries' gradient in the pass's type, and the first
 * send buffer those of the keys and values. */
void ls_pass_cp_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l, void *dqkv)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_pass_cp_buffers *t = &pass->cp;
    int64_t queries = call->B * call->T * ls_pass_att_width(s);
    int64_t elements = ls_pass_kv_elements(&pass->args, call->B, call->T);

    copy_kv(pass, call, pass->blocks[l].turned, NULL, t->kv[0], false);
    clear(pass, t->wide, queries);
    (pass->args.cp_group.gather ? gather_backward : cp_backward)(pass, call, l);
    void *dq = narrow(pass, t->wide, pass->datt, queries);
    copy_kv(pass, call, dqkv, dq, narrow(pass, t->dkv, t->kv[0], elements), true);
}

/* --- experts ---------------------------------------------------------------------------------- */

/* Only the balance loss asks for more than the own tokens. */
static bool counts_choices(const ls_pass_args *args)
{
    const ls_model_shape *s = &args->model->shape;

    return ls_pass_is_cp(args) && s->E > 0 && s->balance > 0 && args->model->split.rank == 0;
}

void ls_pass_cp_count(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_collectives *collectives = pass->args.cp_group.collectives;
    int32_t *chosen = pass->blocks[l].experts.chosen;

    if (counts_choices(&pass->args))
        collectives->run(collectives->context, pass->args.stream,
                         &(ls_collectives_ask){.move = LS_COLLECTIVES_SUM,
                                               .type = LS_I32,
                                               .from = chosen,
                                               .to = chosen,
                                               .n = call->B * pass->args.model->shape.E});
}
