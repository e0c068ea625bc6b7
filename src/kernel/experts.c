/* experts.c -- routing and experts, over the rows of the table.
 *
 * What is computed for a token alone (softmax, choice, weighted sums) is a task for a block of
 * tokens. Sorting is one pass over choices. Experts follow one another, each with the threads of
 * the whole pool in its products; an expert that no token chose costs nothing forward, and in
 * backward gets a gradient of zeros.
 *
 * Example: M = 3, K = 2, choices (2 0) (0 1) (2 1). Rows by expert: 0: tokens 0 1, 1: tokens 1 2,
 * 2: tokens 0 2. slots = 1 2 | 3 5 | 0 4, rows = (4 0) (1 2) (5 3).
 *
 * exp and log are our own, in double, so that bits do not depend on the C library.
 *
 * On a GPU only the device knows how many rows an expert has. Each product is then one row of the table
 * over groups of rows (ls_groups), of all routed rows, whose number the host knows; what is no row is
 * the device's own (ls_experts_table). */
#include "kernel/experts.h"

#include <math.h>
#include "base/pool.h"
#include "device/plugin.h"
#include "kernel/cpu/leaves.h"
#include "kernel/cpu/ref_impl.h"

enum { BLOCK = 32 }; /* tokens of a task */

/* One function for each of n tokens, rows or stretches; a task takes a block of them. */
typedef struct walk {
    void (*each)(const void *args, int64_t i);
    const void *args;
    int64_t n;
} walk;

static void walk_task(void *context, int64_t index, int worker)
{
    const walk *w = context;

    (void)worker;
    for (int64_t i = index * BLOCK; i < ls_min_i64(w->n, (index + 1) * BLOCK); i++)
        w->each(w->args, i);
}

static void run_walk(ls_stream *stream, walk w)
{
    if (!ls_stream_failed(stream))
        ls_pool_run(ls_stream_pool(stream), walk_task, &w, (w.n + BLOCK - 1) / BLOCK);
}

/* What the device of a stream brings; NULL: it is done here. */
static const ls_experts_table *device_of(const ls_stream *stream)
{
    const ls_plugin *plugin = ls_device_plugin(ls_stream_device(stream));
    const ls_kernels *kernels = plugin ? plugin->kernels : NULL;

    return kernels ? kernels->experts : NULL;
}

/* --- numbers ----------------------------------------------------------------------------------
 */

/* Apart, so that the others stay small. */
static __attribute__((noinline)) float load_f16(const void *x, int64_t i)
{
    return (float)ls_ref_wide_f16(((const uint16_t *)x)[i]);
}

static __attribute__((noinline)) void store_f16(void *x, int64_t i, float value)
{
    ((uint16_t *)x)[i] = ls_ref_f16((double)value);
}

static float load(ls_dtype type, const void *x, int64_t i)
{
    float value;

    if (type == LS_F32)
        return ((const float *)x)[i];
    if (type == LS_F16)
        return load_f16(x, i);
    uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* By rounding to nearest even; what is not a number stays so. */
static void store(ls_dtype type, void *x, int64_t i, float value)
{
    uint32_t bits;

    if (type == LS_F32) {
        ((float *)x)[i] = value;
        return;
    }
    if (type == LS_F16) {
        store_f16(x, i, value);
        return;
    }
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        bits |= 0x00400000u;
    else
        bits += 0x7fffu + (bits >> 16 & 1);
    ((uint16_t *)x)[i] = (uint16_t)(bits >> 16);
}

/* e^x for x <= 0 (or not a number), within 1e-15: e^x = 2^n e^r with |r| <= ln 2 / 2, by its
 * series. */
static double exp_of(double x)
{
    double n, r, sum = 1;

    if (x < -700)
        return 0;
    n = floor(x * 1.4426950408889634 + 0.5);
    r = x - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10;
    for (int i = 14; i > 0; i--)
        sum = 1 + r / i * sum;
    return ldexp(sum, (int)n);
}

/* log of s in [1, 2^31): Halley's steps towards e^y = s, from the exponent. */
static double log_of(double s)
{
    int power;
    double f = frexp(s, &power), y = f - 1; /* f in [1/2, 1): y <= 0 */

    for (int i = 0; i < 4; i++) {
        double e = exp_of(y);
        y += 2 * (f - e) / (f + e);
        y = y > 0 ? 0 : y;
    }
    return y + power * 0.69314718055994530942;
}

/* --- routing ----------------------------------------------------------------------------------
 */

static void softmax(const ls_route *a, int64_t m)
{
    float *p = a->probs + m * a->E;
    double top = (double)load(a->type, a->logits, m * a->E), sum = 0;

    for (int64_t e = 1; e < a->E; e++) {
        double x = (double)load(a->type, a->logits, m * a->E + e);
        top = x > top ? x : top;
    }
    for (int64_t e = 0; e < a->E; e++)
        sum += exp_of((double)load(a->type, a->logits, m * a->E + e) - top);
    for (int64_t e = 0; e < a->E; e++)
        p[e] = (float)(exp_of((double)load(a->type, a->logits, m * a->E + e) - top) / sum);
    a->lse[m] = (float)(top + log_of(sum));
}

static bool is_chosen(const int32_t *ids, int64_t n, int64_t e)
{
    for (int64_t k = 0; k < n; k++)
        if (ids[k] == e)
            return true;
    return false;
}

static void choose(const ls_route *a, int64_t m)
{
    const float *p = a->probs + m * a->E;
    int32_t *ids = a->ids + m * a->K;
    float *weights = a->weights + m * a->K, sum = 0;

    for (int64_t k = 0; k < a->K; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < a->E; e++)
            if (!is_chosen(ids, k, e) && (best < 0 || p[e] > p[best]))
                best = e;
        ids[k] = (int32_t)best;
        weights[k] = p[best];
        sum += p[best];
    }
    for (int64_t k = 0; k < a->K && a->normalized; k++)
        weights[k] /= sum;
}

static void route_token(const void *args, int64_t m)
{
    softmax(args, m);
    choose(args, m);
}

/* Counting sort by (expert, leaf); tokens of a leaf follow each other, so that is by expert, then
 * by token. */
static void sort_choices(const ls_route *a)
{
    int64_t cells = a->E * a->leaves, R = a->M * a->K, leaf_rows = R / a->leaves;
    int32_t at = 0;

    memset(a->first, 0, (size_t)(cells + 1) * sizeof *a->first);
    for (int64_t i = 0; i < R; i++)
        a->first[a->ids[i] * a->leaves + i / leaf_rows]++;
    for (int64_t c = 0; c <= cells; c++) {
        int32_t n = a->first[c];
        a->first[c] = at;
        at += n;
    }
    for (int64_t i = 0; i < R; i++) { /* first[] walks to the end of its cell, and back below */
        int32_t row = a->first[a->ids[i] * a->leaves + i / leaf_rows]++;
        a->rows[i] = row;
        a->slots[row] = (int32_t)i;
    }
    memmove(a->first + 1, a->first, (size_t)cells * sizeof *a->first);
    a->first[0] = 0;
}

/* Tokens of a whole sequence, of which this rank may have a piece. */
static int64_t sequence_tokens(const ls_route *a)
{
    return a->M / a->sequences * ls_max_i64(1, a->ranks);
}

static void count_choices(const ls_route *a)
{
    int64_t R = a->M * a->K, each = R / a->sequences;

    memset(a->chosen, 0, (size_t)(a->sequences * a->E) * sizeof *a->chosen);
    for (int64_t i = 0; i < R; i++)
        a->chosen[i / each * a->E + a->ids[i]]++;
}

void ls_experts_route(ls_stream *stream, const ls_route *a)
{
    const ls_experts_table *device = device_of(stream);

    LS_BUG_IF(a->leaves < 1 || a->M % a->leaves != 0 || a->K > a->E, "%lld tokens in %lld leaves",
              (long long)a->M, (long long)a->leaves);
    LS_BUG_IF(a->sequences < 1 || a->M % a->sequences != 0, "%lld tokens in %lld sequences",
              (long long)a->M, (long long)a->sequences);
    if (device) {
        device->route(stream, a);
        return;
    }
    if (ls_stream_failed(stream))
        return;
    run_walk(stream, (walk){route_token, a, a->M});
    sort_choices(a);
    count_choices(a);
}

/* Through the choice, the softmax and the two losses of one token. p' is d loss / d softmax:
 * d logit = p (p' - sum p p'). */
static void route_back_token(const void *args, int64_t m)
{
    const ls_route_back *b = args;
    const ls_route *a = b->route;
    const float *p = a->probs + m * a->E, *dw = b->dweights + m * a->K;
    const float *weights = a->weights + m * a->K;
    const int32_t *ids = a->ids + m * a->K;
    int64_t n = a->M / a->sequences;
    const int32_t *choices = a->chosen + m / n * a->E; /* of its sequence */
    double scale = (double)b->state->grad_scale, chosen = 0, mean = 0, sum = 0;

    for (int64_t k = 0; k < a->K; k++) {
        mean += (double)dw[k] * (double)weights[k];
        chosen += (double)p[ids[k]];
    }
    for (int pass = 0; pass < 2; pass++)
        for (int64_t e = 0; e < a->E; e++) {
            double dp = 0, share = (double)choices[e] / (double)sequence_tokens(a);
            for (int64_t k = 0; k < a->K; k++)
                if (ids[k] == e)
                    dp = a->normalized ? ((double)dw[k] - mean) / chosen : (double)dw[k];
            dp += scale * (double)b->balance * (double)a->E * share;
            if (pass == 0)
                sum += (double)p[e] * dp;
            else
                store(a->type, b->dlogits, m * a->E + e,
                      (float)((double)p[e] *
                              (dp - sum + 2 * scale * (double)b->z * (double)a->lse[m])));
        }
}

void ls_experts_route_back(ls_stream *stream, const ls_route_back *a)
{
    const ls_experts_table *device = device_of(stream);

    if (device)
        device->route_back(stream, a);
    else
        run_walk(stream, (walk){route_back_token, a, a->route->M});
}

/* --- experts ----------------------------------------------------------------------------------
 */

static ls_dtype type_of(const ls_experts *a)
{
    return a->route->type;
}

/* Element n of a tensor. */
static void *at(const ls_experts *a, void *x, int64_t n)
{
    return (char *)x + n * ls_dtype_bytes(type_of(a));
}

static const void *at_const(const ls_experts *a, const void *x, int64_t n)
{
    return (const char *)x + n * ls_dtype_bytes(type_of(a));
}

static void gather_row(const void *args, int64_t i)
{
    const ls_experts *a = args;
    const ls_route *r = a->route;

    memcpy(at(a, a->xs, i * a->C), at_const(a, a->x, r->slots[i] / r->K * a->C),
           (size_t)(a->C * ls_dtype_bytes(type_of(a))));
}

/* y = add + sum of weight * ys, in the order of choices. */
static void combine_token(const void *args, int64_t m)
{
    const ls_experts *a = args;
    const ls_route *r = a->route;
    ls_dtype type = type_of(a);

    for (int64_t c = 0; c < a->C; c++) {
        float sum = 0;
        for (int64_t k = m * r->K; k < (m + 1) * r->K; k++)
            sum += r->weights[k] * load(type, a->ys, r->rows[k] * a->C + c);
        store(type, a->y, m * a->C + c, a->add ? load(type, a->add, m * a->C + c) + sum : sum);
    }
}

/* Rows that go through the MLPs together: those of one expert, or of all by groups. */
typedef struct batch {
    int64_t first, n;
    bool groups;
} batch;

static batch rows_of(const ls_route *r, int64_t e)
{
    int64_t first = r->first[e * r->leaves];

    return (batch){.first = first, .n = r->first[(e + 1) * r->leaves] - first};
}

/* All routed rows: the first of the experts then stands for all. */
static batch all_rows(const ls_route *r)
{
    return (batch){.n = r->M * r->K, .groups = true};
}

static ls_groups groups_of(const ls_experts *a)
{
    return (ls_groups){.first = a->route->first,
                       .step = sizeof *a->experts,
                       .n = a->route->E,
                       .leaves = a->route->leaves,
                       .stack = a->stack,
                       .stack_floats = a->stack_floats};
}

/* zs to acts, of rows first .. first + n - 1. */
static void activate(ls_stream *stream, const ls_experts *a, int64_t first, int64_t n)
{
    a->kernels->act_fwd(stream, &(ls_act_args){.type = type_of(a),
                                               .act = a->act,
                                               .gated = true,
                                               .x = at(a, a->zs, first * 2 * a->F),
                                               .y = at(a, a->acts, first * a->F),
                                               .M = n,
                                               .F = a->F});
}

/* y = x W^T, by the weight of the expert that each row is for. */
static void multiply(ls_stream *stream, const ls_experts *a, batch r, const void *const *w, void *x,
                     int64_t K, void *y, int64_t N)
{
    ls_groups groups = groups_of(a);

    groups.w = w;
    a->kernels->linear_fwd(stream, &(ls_linear_fwd){.type = type_of(a),
                                                    .x = at(a, x, r.first * K),
                                                    .w = *w,
                                                    .y = at(a, y, r.first * N),
                                                    .M = r.n,
                                                    .N = N,
                                                    .K = K,
                                                    .layout = LS_LAYOUT_NK,
                                                    .groups = r.groups ? &groups : NULL});
}

static void forward(ls_stream *stream, const ls_experts *a, batch r, const ls_expert *expert)
{
    if (r.n == 0)
        return;
    multiply(stream, a, r, &expert->fc, a->xs, a->C, a->zs, 2 * a->F);
    activate(stream, a, r.first, r.n);
    multiply(stream, a, r, &expert->out, a->acts, a->F, a->ys, a->C);
}

void ls_experts_gather(ls_stream *stream, const ls_experts *a)
{
    const ls_experts_table *device = device_of(stream);

    if (device)
        device->gather(stream, a);
    else
        run_walk(stream, (walk){gather_row, a, a->route->M * a->route->K});
}

void ls_experts_apply(ls_stream *stream, const ls_experts *a)
{
    if (device_of(stream)) {
        forward(stream, a, all_rows(a->route), a->experts);
        return;
    }
    for (int64_t e = 0; e < a->route->E && !ls_stream_failed(stream); e++)
        forward(stream, a, rows_of(a->route, e), &a->experts[e]);
}

void ls_experts_activate(ls_stream *stream, const ls_experts *a)
{
    int64_t n = device_of(stream) ? a->route->M * a->route->K
                                  : a->route->first[a->route->E * a->route->leaves];

    if (n > 0 && !ls_stream_failed(stream))
        activate(stream, a, 0, n);
}

void ls_experts_combine(ls_stream *stream, const ls_experts *a)
{
    const ls_experts_table *device = device_of(stream);

    if (device)
        device->combine(stream, a);
    else
        run_walk(stream, (walk){combine_token, a, a->route->M});
}

void ls_experts_forward(ls_stream *stream, const ls_experts *a)
{
    ls_experts_gather(stream, a);
    ls_experts_apply(stream, a);
    ls_experts_combine(stream, a);
}

/* Stretch number `index` by source: of source index / experts. */
static void regroup_task(void *context, int64_t index, int worker)
{
    const ls_regroup *a = context;
    int64_t source = index / a->experts, e = index % a->experts;
    int64_t rows = a->by_source[index + 1] - a->by_source[index];
    int64_t one = a->by_source[index] * a->row_bytes;
    int64_t other = a->by_expert[e * a->sources + source] * a->row_bytes;

    (void)worker;
    memcpy((char *)a->to + (a->back ? one : other), (const char *)a->from + (a->back ? other : one),
           (size_t)(rows * a->row_bytes));
}

void ls_experts_regroup(ls_stream *stream, const ls_regroup *a)
{
    const ls_experts_table *device = device_of(stream);
    ls_regroup args = *a;

    if (device)
        device->regroup(stream, a);
    else if (!ls_stream_failed(stream))
        ls_pool_run(ls_stream_pool(stream), regroup_task, &args, a->sources * a->experts);
}

/* --- experts, back ----------------------------------------------------------------------------
 */

/* dweight = dy . ys, then dys = weight dy in the place of ys. */
static void spread_row(const void *args, int64_t i)
{
    const ls_experts *a = args;
    const ls_route *r = a->route;
    ls_dtype type = type_of(a);
    int64_t slot = r->slots[i], m = slot / r->K;
    float weight = r->weights[slot];
    double dot = 0;

    for (int64_t c = 0; c < a->C; c++) {
        float dy = load(type, a->dy, m * a->C + c);
        dot += (double)dy * (double)load(type, a->ys, i * a->C + c);
        store(type, a->ys, i * a->C + c, weight * dy);
    }
    a->dweights[slot] = (float)dot;
}

/* dx = sum of dxs, in the order of choices. */
static void collect_token(const void *args, int64_t m)
{
    const ls_experts *a = args;
    const ls_route *r = a->route;
    ls_dtype type = type_of(a);

    for (int64_t c = 0; c < a->C; c++) {
        float sum = 0;
        for (int64_t k = m * r->K; k < (m + 1) * r->K; k++)
            sum += load(type, a->xs, r->rows[k] * a->C + c);
        store(type, a->dx, m * a->C + c, sum);
    }
}

/* A product: x [rows, K], dy [rows, N] with ldy; both of all routed rows. */
typedef struct product {
    void *x, *dy;
    int64_t N, K, ldy;
} product;

/* dw of rows first .. first + n - 1; NULL: of all experts, by groups. */
static void sum_rows(ls_stream *stream, const ls_experts *a, const product *p, int64_t first,
                     int64_t n, float *dw, bool accumulate, const ls_groups *groups)
{
    if (n == 0 && !accumulate && !groups)
        a->kernels->fill(stream, &(ls_fill){.x = dw, .n = p->N * p->K});
    if (n == 0 && !groups)
        return;
    a->kernels->linear_bwd_w(stream, &(ls_linear_bwd_w){.type = type_of(a),
                                                        .x = at(a, p->x, first * p->K),
                                                        .dy = at(a, p->dy, first * p->ldy),
                                                        .dw = dw,
                                                        .M = n,
                                                        .N = p->N,
                                                        .K = p->K,
                                                        .ldy = p->ldy,
                                                        .layout = LS_LAYOUT_NK,
                                                        .leaves = groups ? groups->leaves : 1,
                                                        .accumulate = accumulate,
                                                        .groups = groups});
}

/* The gradient of the weight of an expert with several leaves, the first of whose cells is given: leaf
 * sums joined along the tree over leaves. */
static void sum_leaves(ls_stream *stream, const ls_experts *a, const product *p,
                       const int32_t *cell, float *dw)
{
    int64_t size = p->N * p->K, leaves = a->route->leaves;
    int top = -1;

    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        sum_rows(stream, a, p, cell[leaf], cell[leaf + 1] - cell[leaf], a->stack + ++top * size,
                 false, NULL);
        for (int merges = ls_leaves_merges(leaf, leaves, top); merges > 0; merges--, top--) {
            float *below = a->stack + (top - 1) * size;
            a->kernels->add(stream,
                            &(ls_add){.a = below, .b = below + size, .out = below, .n = size});
        }
    }
    if (a->accumulate)
        a->kernels->add(stream, &(ls_add){.a = dw, .b = a->stack, .out = dw, .n = size});
    else
        memcpy(dw, a->stack, (size_t)size * sizeof *dw);
}

/* The gradient of a weight of an expert, or of that weight of all. */
static void weights_back(ls_stream *stream, const ls_experts *a, batch r, product p,
                         const ls_expert *expert, float *const *dw)
{
    ls_groups groups = groups_of(a);

    groups.dw = dw;
    if (r.groups)
        sum_rows(stream, a, &p, 0, r.n, NULL, a->accumulate, &groups);
    else if (*dw && a->route->leaves == 1)
        sum_rows(stream, a, &p, r.first, r.n, *dw, a->accumulate, NULL);
    else if (*dw)
        sum_leaves(stream, a, &p, &a->route->first[(expert - a->experts) * a->route->leaves], *dw);
}

/* Whether gate and up are one matrix in the gradients of every expert, as they are in weights. */
static bool gate_meets_up(const ls_experts *a)
{
    for (int64_t e = 0; e < a->route->E; e++) {
        const ls_expert *expert = &a->experts[e];
        if (expert->dgate ? expert->dup != expert->dgate + a->F * a->C : expert->dup != NULL)
            return false;
    }
    return true;
}

/* dx = dy W. */
static void multiply_back(ls_stream *stream, const ls_experts *a, batch r, const void *const *w,
                          void *dy, int64_t N, void *dx, int64_t K)
{
    ls_groups groups = groups_of(a);

    groups.w = w;
    a->kernels->linear_bwd_x(stream, &(ls_linear_bwd_x){.type = type_of(a),
                                                        .dy = at(a, dy, r.first * N),
                                                        .w = *w,
                                                        .dx = at(a, dx, r.first * K),
                                                        .M = r.n,
                                                        .N = N,
                                                        .K = K,
                                                        .layout = LS_LAYOUT_NK,
                                                        .groups = r.groups ? &groups : NULL});
}

/* Everything of some rows, each gradient in the place of what it is the gradient of. */
static void back(ls_stream *stream, const ls_experts *a, batch r, const ls_expert *expert)
{
    int64_t C = a->C, F = a->F;
    void *zs = at(a, a->zs, r.first * 2 * F);

    weights_back(stream, a, r, (product){a->acts, a->ys, C, F, C}, expert, &expert->dout);
    if (r.n > 0) {
        multiply_back(stream, a, r, &expert->out, a->ys, C, a->acts, F);
        a->kernels->act_bwd(stream, &(ls_act_args){.type = type_of(a),
                                                   .act = a->act,
                                                   .gated = true,
                                                   .x = zs,
                                                   .dy = at(a, a->acts, r.first * F),
                                                   .dx = zs,
                                                   .M = r.n,
                                                   .F = F});
    }
    if (r.groups && gate_meets_up(a)) {
        weights_back(stream, a, r, (product){a->xs, a->zs, 2 * F, C, 2 * F}, expert,
                     &expert->dgate);
    } else {
        weights_back(stream, a, r, (product){a->xs, a->zs, F, C, 2 * F}, expert, &expert->dgate);
        weights_back(stream, a, r, (product){a->xs, at(a, a->zs, F), F, C, 2 * F}, expert,
                     &expert->dup);
    }
    if (r.n > 0)
        multiply_back(stream, a, r, &expert->fc, a->zs, 2 * F, a->xs, C);
}

void ls_experts_spread(ls_stream *stream, const ls_experts *a)
{
    const ls_experts_table *device = device_of(stream);

    if (device)
        device->spread(stream, a);
    else
        run_walk(stream, (walk){spread_row, a, a->route->M * a->route->K});
}

void ls_experts_apply_back(ls_stream *stream, const ls_experts *a)
{
    if (device_of(stream)) {
        back(stream, a, all_rows(a->route), a->experts);
        return;
    }
    for (int64_t e = 0; e < a->route->E && !ls_stream_failed(stream); e++)
        back(stream, a, rows_of(a->route, e), &a->experts[e]);
}

void ls_experts_collect(ls_stream *stream, const ls_experts *a)
{
    const ls_experts_table *device = device_of(stream);

    if (device)
        device->collect(stream, a);
    else
        run_walk(stream, (walk){collect_token, a, a->route->M});
}

void ls_experts_backward(ls_stream *stream, const ls_experts *a)
{
    ls_experts_spread(stream, a);
    ls_experts_apply_back(stream, a);
    ls_experts_collect(stream, a);
}

int64_t ls_experts_stack(const ls_kernels *kernels, int64_t C, int64_t F, int64_t leaves)
{
    if (kernels->experts)
        return kernels->experts->stack(leaves);
    return leaves > 1 ? ls_leaves_depth(leaves) * C * F : 0;
}
