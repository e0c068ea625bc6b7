/* cudnn.cu -- attention as cuDNN operation graphs, in bf16.
 *
 * docs/design/cuda-attention.md says why cuDNN, what the graphs must look like and which spellings
 * are traps. Forward: product, scale, mask, softmax, product. Backward: weights from the saved
 * log-sum-exp, then five products. Written straight, dq makes cuDNN keep ds in its workspace
 * (B H T T bf16) and sum in one order, so that two runs have equal bits; with an fp32 tensor in
 * between, blocks add to that in any order, without the workspace and its traffic.
 *
 * The workspace of the ordered way is large. Scratch is asked for as many sequences as
 * MOST_WORKSPACE allows, at least one, and the batch is done in as many calls; the other way takes
 * the whole batch, and where cuDNN refuses it the ordered one runs in the scratch there is. A plan
 * is made for each shape, strides and number of sequences; a shape that cuDNN refuses is remembered
 * and goes to our own kernels. */
#include "kernel/cuda/cuda_attention.cuh"

#include "kernel/cuda/cugraph.cuh"

#include <math.h>

enum { PLANS = 64 };
static const int64_t MOST_WORKSPACE = (int64_t)2 << 30, SPARE = (int64_t)16 << 20;

/* Numbers of the tensors that live in memory. */
enum {
    ID_Q = 1,
    ID_K,
    ID_V,
    ID_O,
    ID_STATS, /* log-sum-exp */
    ID_DO,
    ID_DQ,
    ID_DK,
    ID_DV,
    ID_DELTA,  /* do . o, fp32 */
    ID_DQ_SUM, /* dq in fp32, added to in any order */
    ID_SCALE,  /* these three are scalars in host memory */
    ID_NEG_INF,
    ID_ONE,
    ID_END,
};

/* What a plan is made for; compared as bytes. */
typedef struct key {
    int64_t B, T, H, Hkv, D;
    int64_t strides[8][3]; /* q k v o do dq dk dv */
    int64_t backward, any_order, keep_lse, type;
} key;

typedef struct plan {
    bool used, refused;
    key k;
    ls_cugraph g;
} plan;

typedef struct plans {
    cudnnHandle_t handle;
    int count;
    plan of[PLANS];
} plans;

static ls_status cudnn_ok(cudnnStatus_t status, const char *what)
{
    char text[400] = "";

    if (status == CUDNN_STATUS_SUCCESS)
        return LS_OK;
    cudnnGetLastErrorString(text, sizeof text);
    return ls_fail(LS_EFAIL, "cannot %s in cuDNN: %s %s", what, cudnnGetErrorString(status), text);
}

static void drop_plans(void *all)
{
    plans *ps = (plans *)all;

    for (int i = 0; i < ps->count; i++)
        ls_cugraph_release(&ps->of[i].g);
    if (ps->handle)
        cudnnDestroy(ps->handle);
    ls_mem_free(ps);
}

static ls_status get_plans(ls_cuda_stream *s, plans **out)
{
    ls_cuda_device *d = s->device;

    if (!d->attention) {
        plans *ps = (plans *)ls_mem_alloc(sizeof *ps);
        if (!ps)
            return LS_ENOMEM;
        ls_status st = cudnn_ok(cudnnCreate(&ps->handle), "start");
        if (st != LS_OK) {
            ls_mem_free(ps);
            return st;
        }
        d->attention = ps;
        d->drop_attention = drop_plans;
    }
    *out = (plans *)d->attention;
    return cudnn_ok(cudnnSetStream((*out)->handle, s->stream), "choose a stream");
}

/* --- the graphs ----------------------------------------------------------------------------- */

static ls_culayout layout(const key *k, int which, int64_t heads)
{
    const int64_t *s = k->strides[which];

    return {{k->B, heads, k->T, k->D}, {s[0], s[2], s[1], 1}};
}

static ls_cudesc tensor(ls_cugraph *g, int64_t id, const ls_culayout &l)
{
    return ls_cugraph_real(g, id, g->narrow, l);
}

enum { Q, K, V, O, DO, DQ, DK, DV };

static void build_forward(ls_cugraph *g, const key *k)
{
    ls_culayout scores = ls_cugraph_dense(k->B, k->H, k->T, k->T);
    ls_culayout rows = ls_cugraph_dense(k->B, k->H, k->T, 1);
    ls_cudesc q = tensor(g, ID_Q, layout(k, Q, k->H));
    ls_cudesc kt = tensor(g, ID_K, ls_cugraph_transposed(layout(k, K, k->Hkv)));
    ls_cudesc v = tensor(g, ID_V, layout(k, V, k->Hkv));
    ls_cudesc o = tensor(g, ID_O, layout(k, O, k->H));
    ls_cudesc stats = k->keep_lse ? ls_cugraph_real(g, ID_STATS, CUDNN_DATA_FLOAT, rows)
                                  : ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, rows);
    ls_cudesc raw = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, scores);
    ls_cudesc top = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, rows);
    ls_cudesc sum = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, rows);
    ls_cudesc p = ls_cugraph_virtual(g, g->narrow, scores);

    ls_cugraph_matmul(g, q, kt, raw);
    ls_cudesc x =
        ls_cugraph_map(g, CUDNN_POINTWISE_MUL, raw, ls_cugraph_scalar(g, ID_SCALE), scores);
    x = ls_cugraph_mask(g, x, ls_cugraph_scalar(g, ID_NEG_INF), scores);
    ls_cugraph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, x, top);
    x = ls_cugraph_map(g, CUDNN_POINTWISE_SUB, x, top, scores);
    x = ls_cugraph_map(g, CUDNN_POINTWISE_EXP, x, NULL, scores);
    ls_cugraph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, x, sum);
    ls_cudesc log_sum = ls_cugraph_map(g, CUDNN_POINTWISE_LOG, sum, NULL, rows);
    ls_cugraph_apply(g, CUDNN_POINTWISE_ADD, top, log_sum, stats);
    ls_cugraph_apply(g, CUDNN_POINTWISE_DIV, x, sum, p);
    ls_cugraph_matmul(g, p, v, o);
}

/* out[kv heads] = at * b, summed over the query heads that share a key head. */
static void matmul_grouped(ls_cugraph *g, const key *k, ls_cudesc at, ls_cudesc b, ls_cudesc out)
{
    if (k->H == k->Hkv) {
        ls_cugraph_matmul(g, at, b, out);
        return;
    }
    ls_cudesc full = ls_cugraph_virtual(g, g->narrow, ls_cugraph_dense(k->B, k->H, k->T, k->D));
    ls_cugraph_matmul(g, at, b, full);
    ls_cugraph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, full, out);
}

/* delta = sum of do * o over a row. Without the product with one, the place of dropout, the plan
 * is accepted and delta never written. */
static ls_cudesc build_delta(ls_cugraph *g, const key *k, ls_cudesc dout)
{
    ls_culayout rows = ls_cugraph_dense(k->B, k->H, k->T, 1);
    ls_cudesc o = tensor(g, ID_O, layout(k, O, k->H));
    ls_cudesc sum = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, rows);
    ls_cudesc delta = ls_cugraph_real(g, ID_DELTA, CUDNN_DATA_FLOAT, rows);
    ls_cudesc both =
        ls_cugraph_map(g, CUDNN_POINTWISE_MUL, dout, o, ls_cugraph_dense(k->B, k->H, k->T, k->D));

    ls_cugraph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, both, sum);
    ls_cugraph_apply(g, CUDNN_POINTWISE_MUL, sum, ls_cugraph_scalar(g, ID_ONE), delta);
    return delta;
}

/* dq = ds k; cuDNN clears the fp32 sum itself. */
static void build_dq(ls_cugraph *g, const key *k, ls_cudesc ds, ls_cudesc keys)
{
    ls_cudesc dq = tensor(g, ID_DQ, layout(k, DQ, k->H));

    if (!k->any_order) {
        ls_cugraph_matmul(g, ds, keys, dq);
        return;
    }
    ls_cudesc sum =
        ls_cugraph_real(g, ID_DQ_SUM, CUDNN_DATA_FLOAT, ls_cugraph_dense(k->B, k->H, k->T, k->D));
    ls_cugraph_matmul(g, ds, keys, sum);
    ls_cugraph_apply(g, CUDNN_POINTWISE_IDENTITY, sum, NULL, dq);
}

static void build_backward(ls_cugraph *g, const key *k)
{
    ls_culayout scores = ls_cugraph_dense(k->B, k->H, k->T, k->T);
    ls_cudesc dout = tensor(g, ID_DO, layout(k, DO, k->H));
    ls_cudesc delta = build_delta(g, k, dout);
    ls_cudesc q = tensor(g, ID_Q, layout(k, Q, k->H));
    ls_cudesc kt = tensor(g, ID_K, ls_cugraph_transposed(layout(k, K, k->Hkv)));
    ls_cudesc vt = tensor(g, ID_V, ls_cugraph_transposed(layout(k, V, k->Hkv)));
    ls_cudesc stats =
        ls_cugraph_real(g, ID_STATS, CUDNN_DATA_FLOAT, ls_cugraph_dense(k->B, k->H, k->T, 1));
    ls_cudesc dk = tensor(g, ID_DK, layout(k, DK, k->Hkv));
    ls_cudesc dv = tensor(g, ID_DV, layout(k, DV, k->Hkv));
    ls_cudesc scale = ls_cugraph_scalar(g, ID_SCALE);
    ls_cudesc raw = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, scores);
    ls_cudesc dp = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, scores);

    ls_cugraph_matmul(g, q, kt, raw);
    ls_cudesc x = ls_cugraph_map(g, CUDNN_POINTWISE_MUL, raw, scale, scores);
    x = ls_cugraph_map(g, CUDNN_POINTWISE_SUB, x, stats, scores);
    x = ls_cugraph_mask(g, x, ls_cugraph_scalar(g, ID_NEG_INF), scores);
    ls_cudesc p = ls_cugraph_map(g, CUDNN_POINTWISE_EXP, x, NULL, scores);
    matmul_grouped(g, k, ls_cugraph_reshape(g, p, ls_cugraph_transposed(scores)), dout, dv);
    ls_cugraph_matmul(g, dout, vt, dp);
    x = ls_cugraph_map(g, CUDNN_POINTWISE_SUB, dp, delta, scores);
    x = ls_cugraph_map(g, CUDNN_POINTWISE_MUL, x, p, scores);
    ls_cudesc ds = ls_cugraph_map(g, CUDNN_POINTWISE_MUL, x, scale, scores);
    matmul_grouped(g, k, ls_cugraph_reshape(g, ds, ls_cugraph_transposed(scores)), q, dk);
    build_dq(g, k, ds, ls_cugraph_reshape(g, kt, layout(k, K, k->Hkv)));
}

/* --- plans ---------------------------------------------------------------------------------- */

/* The plan of a key, made when it is new; NULL: none (refused, or no room for another). */
static ls_cugraph *plan_of(ls_cuda_stream *s, plans *ps, const key *k)
{
    int i = 0;

    while (i < ps->count && memcmp(&ps->of[i].k, k, sizeof *k) != 0)
        i++;
    if (i == ps->count) {
        if (i == PLANS || s->recording)
            return NULL;
        plan *p = &ps->of[ps->count++];
        p->k = *k;
        ls_cugraph_init(&p->g, ps->handle,
                        k->type == LS_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16);
        if (k->backward)
            build_backward(&p->g, k);
        else
            build_forward(&p->g, k);
        p->refused = !ls_cugraph_finish(&p->g);
    }
    return ps->of[i].refused ? NULL : &ps->of[i].g;
}

static bool heads_fit(const ls_heads *h)
{
    return ls_cuda_aligned(h->p, 16) && h->batch % 8 == 0 && h->time % 8 == 0 && h->head % 8 == 0;
}

static void set_strides(key *k, int which, const ls_heads *h)
{
    k->strides[which][0] = h->batch;
    k->strides[which][1] = h->time;
    k->strides[which][2] = h->head;
}

/* What forward and backward keys have in common, of B sequences. */
template <typename ARGS> static key key_of(const ARGS *a, int64_t B)
{
    key k;

    memset(&k, 0, sizeof k); /* compared as bytes */
    k.B = B;
    k.T = a->T;
    k.H = a->H;
    k.Hkv = a->Hkv;
    k.D = a->D;
    k.type = a->type;
    set_strides(&k, Q, &a->q);
    set_strides(&k, K, &a->k);
    set_strides(&k, V, &a->v);
    set_strides(&k, O, &a->o);
    return k;
}

/* A shape that cuDNN can have, as far as we know before asking. */
static bool shape_fits(ls_dtype type, int64_t T, int64_t D)
{
    return ls_dtype_bytes(type) == 2 && D % 8 == 0 && D <= 128 && T >= 2;
}

static void *moved(const ls_heads *h, int64_t sequences)
{
    return (char *)h->p + sequences * h->batch * 2;
}

ls_status ls_cudnn_attention_fwd(ls_cuda_stream *s, const ls_attention_fwd *a, bool *done_out)
{
    plans *ps = NULL;
    key k = key_of(a, a->B);
    float scale = a->scale, neg_inf = -INFINITY;
    void *pointers[ID_END] = {};

    *done_out = false;
    if (!shape_fits(a->type, a->T, a->D) || a->start || a->window > 0 || a->past > 0 ||
        a->drop.p > 0 || !heads_fit(&a->q) || !heads_fit(&a->k) || !heads_fit(&a->v) ||
        !heads_fit(&a->o) || (a->lse && !ls_cuda_aligned(a->lse, 16)))
        return LS_OK;
    ls_status st = get_plans(s, &ps);
    if (st != LS_OK)
        return st;
    k.keep_lse = a->lse != NULL;
    ls_cugraph *g = plan_of(s, ps, &k);
    if (!g || g->workspace_bytes > LS_CUDA_WORKSPACE)
        return LS_OK;
    pointers[ID_Q] = a->q.p;
    pointers[ID_K] = a->k.p;
    pointers[ID_V] = a->v.p;
    pointers[ID_O] = a->o.p;
    pointers[ID_STATS] = a->lse;
    pointers[ID_SCALE] = &scale;
    pointers[ID_NEG_INF] = &neg_inf;
    *done_out = true;
    return cudnn_ok(ls_cugraph_run(g, pointers, s->workspace), "queue attention");
}

/* --- the gradient --------------------------------------------------------------------------- */

/* dk and dv of all query heads of one sequence, where they share key heads. */
static int64_t grouped_bytes(const ls_attention_bwd *a)
{
    return a->H == a->Hkv ? 0 : a->H * 2 * ls_round_up(a->T, 128) * a->D * 2;
}

/* Workspace of one sequence in order: ds, and those. */
static int64_t ordered_bytes(const ls_attention_bwd *a)
{
    int64_t T = ls_round_up(a->T, 128);

    return a->H * (T * T * 2 + T * 4) + grouped_bytes(a);
}

static int64_t dq_sum_bytes(const ls_attention_bwd *a)
{
    return ls_round_up(a->B * a->H * a->T * a->D * (int64_t)sizeof(float), 256);
}

static int64_t delta_bytes(const ls_attention_bwd *a)
{
    return ls_round_up(a->B * a->H * a->T * (int64_t)sizeof(float), 256);
}

/* What lies behind delta: as many sequences in order as MOST_WORKSPACE allows; or the whole batch
 * in any order, which is enough for one sequence in order too. */
static int64_t room_bytes(const ls_attention_bwd *a)
{
    int64_t one = ordered_bytes(a), most = ls_max_i64(1, MOST_WORKSPACE / one);

    if (a->any_order)
        return ls_max_i64(one, dq_sum_bytes(a) + a->B * grouped_bytes(a)) + SPARE;
    int64_t calls = (a->B + most - 1) / most;
    return (a->B + calls - 1) / calls * one + SPARE;
}

int64_t ls_cudnn_attention_scratch(const ls_attention_bwd *a)
{
    if (!shape_fits(a->type, a->T, a->D) || a->B == 0)
        return 0;
    return delta_bytes(a) + room_bytes(a);
}

static key backward_key(const ls_attention_bwd *a, int64_t B, bool any_order)
{
    key k = key_of(a, B);

    k.backward = 1;
    k.any_order = any_order;
    set_strides(&k, DO, &a->dout);
    set_strides(&k, DQ, &a->dq);
    set_strides(&k, DK, &a->dk);
    set_strides(&k, DV, &a->dv);
    return k;
}

/* The call over the sequences from `first` on; dq_sum NULL: in order. */
static ls_status run_backward(ls_cugraph *g, const ls_attention_bwd *a, int64_t first, void *dq_sum,
                              void *workspace)
{
    float scale = a->scale, neg_inf = -INFINITY, one = 1;
    float *delta = (float *)a->scratch;
    int64_t rows = first * a->H * a->T;
    void *pointers[ID_END] = {};

    pointers[ID_Q] = moved(&a->q, first);
    pointers[ID_K] = moved(&a->k, first);
    pointers[ID_V] = moved(&a->v, first);
    pointers[ID_O] = moved(&a->o, first);
    pointers[ID_STATS] = const_cast<float *>(a->lse) + rows;
    pointers[ID_DO] = moved(&a->dout, first);
    pointers[ID_DQ] = moved(&a->dq, first);
    pointers[ID_DK] = moved(&a->dk, first);
    pointers[ID_DV] = moved(&a->dv, first);
    pointers[ID_DELTA] = delta + rows;
    pointers[ID_DQ_SUM] = dq_sum;
    pointers[ID_SCALE] = &scale;
    pointers[ID_NEG_INF] = &neg_inf;
    pointers[ID_ONE] = &one;
    return cudnn_ok(ls_cugraph_run(g, pointers, workspace), "queue the gradient of attention");
}

/* The whole batch in one call, dq in any order. */
static ls_status backward_any_order(ls_cuda_stream *s, plans *ps, const ls_attention_bwd *a,
                                    bool *done_out)
{
    key k = backward_key(a, a->B, true);
    ls_cugraph *g = plan_of(s, ps, &k);
    char *room = (char *)a->scratch + delta_bytes(a);

    if (!g || dq_sum_bytes(a) + g->workspace_bytes > room_bytes(a))
        return LS_OK;
    *done_out = true;
    return run_backward(g, a, 0, room, room + dq_sum_bytes(a));
}

/* As many sequences at a time as there is room for. */
static ls_status backward_ordered(ls_cuda_stream *s, plans *ps, const ls_attention_bwd *a,
                                  bool *done_out)
{
    int64_t room = room_bytes(a);
    int64_t each = ls_min_i64(a->B, (room - SPARE) / ordered_bytes(a)), rest = a->B % each;
    key whole = backward_key(a, each, false), part = backward_key(a, rest ? rest : each, false);
    /* The last call may be shorter: another plan. Both must be there before anything is queued. */
    ls_cugraph *g = plan_of(s, ps, &whole), *last = plan_of(s, ps, &part);
    ls_status st = LS_OK;

    if (!g || !last || g->workspace_bytes > room || last->workspace_bytes > room)
        return LS_OK;
    *done_out = true;
    for (int64_t first = 0; first < a->B && st == LS_OK; first += each)
        st = run_backward(a->B - first < each ? last : g, a, first, NULL,
                          (char *)a->scratch + delta_bytes(a));
    return st;
}

ls_status ls_cudnn_attention_bwd(ls_cuda_stream *s, const ls_attention_bwd *a, bool *done_out)
{
    plans *ps = NULL;
    const ls_heads *const all[] = {&a->q, &a->k, &a->v, &a->o, &a->dout, &a->dq, &a->dk, &a->dv};
    bool fits = shape_fits(a->type, a->T, a->D) && a->B > 0 && !a->start && a->window <= 0 &&
                a->drop.p <= 0 && a->H * a->T % 4 == 0 && ls_cuda_aligned(a->lse, 16);

    *done_out = false;
    for (const ls_heads *h : all)
        fits = fits && heads_fit(h);
    if (!fits)
        return LS_OK;
    ls_status st = get_plans(s, &ps);
    if (st == LS_OK && a->any_order)
        st = backward_any_order(s, ps, a, done_out);
    if (st == LS_OK && !*done_out)
        st = backward_ordered(s, ps, a, done_out);
    return st;
}
