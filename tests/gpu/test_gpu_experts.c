/* test_gpu_experts.c -- routing and experts on a GPU against the CPU's (kernel/experts.h), in all
 * types: odd sizes, experts that nobody or everybody chooses, many of them, leaves, frozen weights.
 */
#include "gpu/gpu.h"

#include <math.h>
#include "base/time.h"
#include "kernel/experts.h"

typedef enum skew { EVEN, ALL_TO_FEW, SOME_EMPTY } skew;

typedef struct shape {
    int64_t M, E, K, C, F, leaves, sequences;
    skew skew;
    bool normalized, frozen, accumulate;
} shape;

enum { MOST = 256 };

/* One mixture on both sides. */
typedef struct rig {
    shape s;
    ls_gpu_tensor logits, x, fc, out, add, y, dy, dx, dlogits, xs, zs, acts, ys;
    ls_gpu_tensor probs, lse, weights, dweights, grad, stack;
    ls_gpu_tensor ids, rows, slots, first, chosen;
    ls_step_state state;
    void *device_state;
    float *host_stack; /* owned */
    ls_expert here[MOST], there[MOST];
} rig;

static void bend(ls_gpu *g, rig *r)
{
    const shape *s = &r->s;

    for (int64_t i = 0; i < s->M * s->E && s->skew != EVEN; i++) {
        int64_t e = i % s->E;
        if (s->skew == ALL_TO_FEW && e < s->K)
            r->logits.host[i] += 20;
        if (s->skew == SOME_EMPTY && e % 3 == 1)
            r->logits.host[i] -= 20;
    }
    ls_gpu_send(g, &r->logits);
}

/* The weights of all experts, and where their gradients go: three matrices each. */
static void list_experts(ls_gpu *g, rig *r)
{
    int64_t C = r->s.C, F = r->s.F, bytes = ls_dtype_bytes(g->type);

    for (int64_t e = 0; e < r->s.E; e++) {
        float *host = r->grad.host + e * 3 * F * C, *device = r->grad.device;
        device += e * 3 * F * C;
        r->here[e] = (ls_expert){.fc = r->fc.host + e * 2 * F * C,
                                 .out = r->out.host + e * F * C,
                                 .dgate = host,
                                 .dup = host + F * C,
                                 .dout = host + 2 * F * C};
        r->there[e] = (ls_expert){.fc = (char *)r->fc.device + e * 2 * F * C * bytes,
                                  .out = (char *)r->out.device + e * F * C * bytes,
                                  .dgate = device,
                                  .dup = device + F * C,
                                  .dout = device + 2 * F * C};
        if (r->s.frozen && e % 2 == 1)
            r->here[e].dup = r->there[e].dup = NULL;
        if (r->s.frozen && e % 3 == 2)
            r->here[e].dout = r->there[e].dout = NULL;
    }
}

static void make_rig(ls_gpu *g, rig *r, const shape *s)
{
    int64_t R = s->M * s->K, C = s->C, F = s->F, E = s->E;
    int64_t floats = ls_experts_stack(g->k, C, F, s->leaves);

    LS_CHECK(E <= MOST);
    r->s = *s;
    r->logits = ls_gpu_values(g, "logits", s->M * E, 1);
    bend(g, r);
    r->x = ls_gpu_values(g, "x", s->M * C, 1);
    r->fc = ls_gpu_values(g, "fc", E * 2 * F * C, 0.15f);
    r->out = ls_gpu_values(g, "out", E * F * C, 0.1f);
    r->add = ls_gpu_values(g, "add", s->M * C, 1);
    r->dy = ls_gpu_values(g, "dy", s->M * C, 0.3f);
    r->y = ls_gpu_values(g, "y", s->M * C, 0);
    r->dx = ls_gpu_values(g, "dx", s->M * C, 0);
    r->dlogits = ls_gpu_values(g, "dlogits", s->M * E, 0);
    r->xs = ls_gpu_values(g, "xs", R * C, 0);
    r->zs = ls_gpu_values(g, "zs", R * 2 * F, 0);
    r->acts = ls_gpu_values(g, "acts", R * F, 0);
    r->ys = ls_gpu_values(g, "ys", R * C, 0);
    r->probs = ls_gpu_floats(g, "probs", s->M * E, 0);
    r->lse = ls_gpu_floats(g, "lse", s->M, 0);
    r->weights = ls_gpu_floats(g, "weights", R, 0);
    r->dweights = ls_gpu_floats(g, "dweights", R, 0);
    r->grad = ls_gpu_floats(g, "gradients", E * 3 * F * C, s->accumulate ? 1 : 0);
    r->stack = ls_gpu_floats(g, "stack", floats, 0);
    r->ids = ls_gpu_ints(g, "ids", R, 1);
    r->rows = ls_gpu_ints(g, "rows", R, 1);
    r->slots = ls_gpu_ints(g, "slots", R, 1);
    r->first = ls_gpu_ints(g, "first", E * s->leaves + 1, 1);
    r->chosen = ls_gpu_ints(g, "chosen", s->sequences * E, 1);
    r->state = (ls_step_state){.grad_scale = 0.5f};
    r->device_state = ls_gpu_bytes(g, "state", &r->state, sizeof r->state).device;
    r->host_stack =
        calloc((size_t)ls_experts_stack(g->reference, C, F, s->leaves) + 1, sizeof(float));
    LS_CHECK(r->host_stack);
    list_experts(g, r);
}

static ls_route route_of(const ls_gpu *g, const rig *r, bool there)
{
    const shape *s = &r->s;

    return (ls_route){.type = there ? g->type : LS_F32,
                      .logits = there ? r->logits.device : r->logits.host,
                      .probs = there ? r->probs.device : r->probs.host,
                      .lse = there ? r->lse.device : r->lse.host,
                      .weights = there ? r->weights.device : r->weights.host,
                      .ids = there ? r->ids.device : r->ids.ints,
                      .rows = there ? r->rows.device : r->rows.ints,
                      .slots = there ? r->slots.device : r->slots.ints,
                      .first = there ? r->first.device : r->first.ints,
                      .chosen = there ? r->chosen.device : r->chosen.ints,
                      .M = s->M,
                      .E = s->E,
                      .K = s->K,
                      .leaves = s->leaves,
                      .sequences = s->sequences,
                      .normalized = s->normalized};
}

static ls_experts experts_of(const ls_gpu *g, const rig *r, const ls_kernels *k,
                             const ls_route *route, bool there)
{
    (void)g;
    return (ls_experts){.kernels = k,
                        .route = route,
                        .experts = there ? r->there : r->here,
                        .act = LS_ACT_SILU,
                        .C = r->s.C,
                        .F = r->s.F,
                        .x = there ? r->x.device : r->x.host,
                        .xs = there ? r->xs.device : r->xs.host,
                        .zs = there ? r->zs.device : r->zs.host,
                        .acts = there ? r->acts.device : r->acts.host,
                        .ys = there ? r->ys.device : r->ys.host,
                        .add = there ? r->add.device : r->add.host,
                        .y = there ? r->y.device : r->y.host,
                        .dy = there ? r->dy.device : r->dy.host,
                        .dx = there ? r->dx.device : r->dx.host,
                        .dweights = there ? r->dweights.device : r->dweights.host,
                        .stack = there ? r->stack.device : r->host_stack,
                        .stack_floats = r->stack.n,
                        .accumulate = r->s.accumulate};
}

static void forward(ls_stream *stream, const ls_route *route, const ls_experts *experts)
{
    ls_experts_route(stream, route);
    ls_experts_forward(stream, experts);
}

static void backward(const rig *r, ls_stream *stream, const ls_route *route,
                     const ls_experts *experts, bool there)
{
    ls_experts_backward(stream, experts);
    ls_experts_route_back(
        stream, &(ls_route_back){.route = route,
                                 .dweights = there ? r->dweights.device : r->dweights.host,
                                 .balance = 0.03f,
                                 .z = 0.02f,
                                 .state = there ? r->device_state : &r->state,
                                 .dlogits = there ? r->dlogits.device : r->dlogits.host});
}

/* What a device holds of whole numbers is what the host does. */
static void same_ints(ls_gpu *g, const ls_gpu_tensor *t)
{
    int32_t *got = malloc((size_t)t->n * sizeof *got);

    LS_CHECK(got);
    ls_stream_copy_out(g->stream, got, t->device, t->n * (int64_t)sizeof *got);
    ls_gpu_sync(g);
    for (int64_t i = 0; i < t->n; i++)
        if (got[i] != t->ints[i])
            ls_test_fail(__FILE__, __LINE__, "%s[%lld of %lld] is %d, expected %d", t->name,
                         (long long)i, (long long)t->n, got[i], t->ints[i]);
    free(got);
}

/* Roundings of what is summed up make errors of the size of a tensor's numbers, not of each. */
static void near_by_size(ls_gpu *g, const ls_gpu_tensor *t, double near)
{
    double squares = 0;
    int64_t n = 0;

    for (int64_t i = 0; i < t->n; i++)
        if (!isnan(t->host[i])) {
            squares += (double)t->host[i] * (double)t->host[i];
            n++;
        }
    ls_gpu_near(g, t, near * fmax(1, sqrt(squares / (double)(n ? n : 1))));
}

static void check_forward(ls_gpu *g, rig *r, double near)
{
    const ls_gpu_tensor *ints[] = {&r->ids, &r->rows, &r->slots, &r->first, &r->chosen};
    const ls_gpu_tensor *floats[] = {&r->probs, &r->lse, &r->weights};

    for (size_t i = 0; i < LS_COUNT(ints); i++)
        same_ints(g, ints[i]);
    for (size_t i = 0; i < LS_COUNT(floats); i++)
        ls_gpu_near(g, floats[i], 1e-5);
    ls_gpu_near(g, &r->xs, 0);
    near_by_size(g, &r->acts, near);
    near_by_size(g, &r->y, near);
}

static void check_backward(ls_gpu *g, rig *r, double near)
{
    near_by_size(g, &r->dweights, near);
    near_by_size(g, &r->dx, near);
    near_by_size(g, &r->dlogits, near);
    near_by_size(g, &r->grad, near);
}

static void compare(ls_gpu *g, const void *which)
{
    /* What is kept between products is rounded to 16 bits on the GPU only. */
    double near = g->type == LS_F32 ? 1e-4 : g->type == LS_F16 ? 1e-2 : 6e-2;
    const ls_kernels *cpu;
    rig *r = calloc(1, sizeof *r);

    LS_CHECK(r);
    LS_CHECK_OK(ls_kernel_pick("auto", &cpu));
    make_rig(g, r, which);
    ls_route here = route_of(g, r, false), there = route_of(g, r, true);
    ls_experts a = experts_of(g, r, cpu, &here, false), b = experts_of(g, r, g->k, &there, true);
    forward(g->cpu_stream, &here, &a);
    forward(g->stream, &there, &b);
    check_forward(g, r, near);
    backward(r, g->cpu_stream, &here, &a, false);
    backward(r, g->stream, &there, &b, true);
    check_backward(g, r, near);
    LS_CHECK_OK(ls_stream_sync(g->cpu_stream, ls_time_now_ns() + 60 * LS_NS_PER_S));
    free(r->host_stack);
    free(r);
}

LS_TEST_SECONDS(gpu_experts_equal_the_cpus, 120)
{
    static const shape shapes[] = {
        {.M = 37, .E = 4, .K = 2, .C = 40, .F = 24, .leaves = 1, .sequences = 1},
        {.M = 24, .E = 5, .K = 2, .C = 13, .F = 7, .leaves = 3, .sequences = 3, .normalized = true},
        {.M = 260, .E = 8, .K = 2, .C = 64, .F = 96, .leaves = 4, .sequences = 4, .frozen = true},
        {.M = 512,
         .E = 8,
         .K = 1,
         .C = 136,
         .F = 72,
         .leaves = 1,
         .sequences = 2,
         .skew = ALL_TO_FEW},
        {.M = 300,
         .E = 128,
         .K = 8,
         .C = 32,
         .F = 48,
         .leaves = 2,
         .sequences = 3,
         .skew = SOME_EMPTY},
        {.M = 2048,
         .E = 4,
         .K = 2,
         .C = 72,
         .F = 200,
         .leaves = 1,
         .sequences = 4,
         .normalized = true,
         .accumulate = true},
        {.M = 2112,
         .E = 6,
         .K = 2,
         .C = 24,
         .F = 16,
         .leaves = 2,
         .sequences = 2,
         .skew = ALL_TO_FEW,
         .normalized = true,
         .accumulate = true},
        {.M = 1, .E = 16, .K = 4, .C = 64, .F = 64, .leaves = 1, .sequences = 1},
        {.M = 90, .E = 200, .K = 3, .C = 16, .F = 16, .leaves = 5, .sequences = 1},
        {.M = 64,
         .E = 4,
         .K = 4,
         .C = 128,
         .F = 128,
         .leaves = 1,
         .sequences = 8,
         .skew = SOME_EMPTY,
         .normalized = true}};

    ls_gpu_cases(compare, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- leaves ----------------------------------------------------------------------------------- */

/* The gradients of all leaves at once, and of each alone, to be added along the tree. */
static float *gradients(ls_gpu *g, rig *r, int64_t leaf)
{
    ls_route route = route_of(g, r, true);
    ls_experts a = experts_of(g, r, g->k, &route, true);
    int64_t bytes = ls_dtype_bytes(g->type), M = r->s.M / r->s.leaves, from = leaf < 0 ? 0 : leaf;

    if (leaf >= 0) {
        route.M = M;
        route.leaves = 1;
        route.sequences = 1;
        route.logits = (char *)r->logits.device + from * M * r->s.E * bytes;
        a.x = (char *)r->x.device + from * M * r->s.C * bytes;
        a.add = (char *)r->add.device + from * M * r->s.C * bytes;
        a.dy = (char *)r->dy.device + from * M * r->s.C * bytes;
    }
    forward(g->stream, &route, &a);
    ls_experts_backward(g->stream, &a);
    return ls_gpu_fetch(g, &r->grad);
}

static void check_tree(ls_gpu *g, const void *which)
{
    rig *r = calloc(1, sizeof *r);
    float *leaf[4];

    LS_CHECK(r);
    make_rig(g, r, which);
    float *all = gradients(g, r, -1), *again = gradients(g, r, -1);
    for (int i = 0; i < 4; i++)
        leaf[i] = gradients(g, r, i);
    LS_CHECK(memcmp(all, again, (size_t)r->grad.n * sizeof *all) == 0);
    for (int64_t i = 0; i < r->grad.n; i++) {
        float want = (leaf[0][i] + leaf[1][i]) + (leaf[2][i] + leaf[3][i]);
        if (!(want == all[i]))
            ls_test_fail(__FILE__, __LINE__, "gradient %lld is %.9g, its leaves make %.9g",
                         (long long)i, (double)all[i], (double)want);
    }
    for (int i = 0; i < 4; i++)
        free(leaf[i]);
    free(all);
    free(again);
    free(r->host_stack);
    free(r);
}

LS_TEST_SECONDS(gpu_experts_sum_leaves_along_the_tree, 60)
{
    static const shape shapes[] = {
        {.M = 400, .E = 6, .K = 2, .C = 72, .F = 136, .leaves = 4, .sequences = 4},
        {.M = 48,
         .E = 16,
         .K = 3,
         .C = 19,
         .F = 10,
         .leaves = 4,
         .sequences = 4,
         .skew = SOME_EMPTY}};

    ls_gpu_cases(check_tree, shapes, LS_COUNT(shapes), sizeof *shapes);
}
