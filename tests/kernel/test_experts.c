/* test_experts.c -- routing and experts against their formulas, one token at a time in double. */
#include "harness.h"
#include <math.h>
#include "kernel/kernel_check.h"
#include "kernel/experts.h"

enum { C = 12, F = 20, E = 5, K = 2, M = 24, SEQUENCES = 3 };

typedef struct rig {
    ls_check c;
    ls_route route;
    ls_experts args;
    ls_expert experts[E];
    ls_step_state *state;
    float *logits, *x, *y, *dy, *dx, *dlogits, *fc, *out, *grad;
} rig;

static int32_t *ints(rig *r, const char *name, int64_t n)
{
    return ls_check_ints(&r->c, name, n, 1);
}

static void open_rig(rig *r, const char *isa, int threads, int64_t leaves, bool normalized)
{
    const ls_kernels *kernels;

    ls_check_begin(&r->c, threads);
    LS_CHECK_OK(ls_kernel_pick(isa, &kernels));
    r->logits = ls_check_floats(&r->c, "logits", M * E, 1);
    r->x = ls_check_floats(&r->c, "x", M * C, 1);
    r->dy = ls_check_floats(&r->c, "dy", M * C, 1);
    r->fc = ls_check_floats(&r->c, "fc", E * 2 * F * C, 0.3f);
    r->out = ls_check_floats(&r->c, "out", E * C * F, 0.3f);
    r->y = ls_check_floats(&r->c, "y", M * C, 0);
    r->dx = ls_check_floats(&r->c, "dx", M * C, 0);
    r->dlogits = ls_check_floats(&r->c, "dlogits", M * E, 0);
    r->grad = ls_check_floats(&r->c, "gradients", E * 3 * F * C, 0);
    r->state = ls_check_bytes(&r->c, "state", sizeof *r->state);
    *r->state = (ls_step_state){.grad_scale = 0.5f};
    r->route = (ls_route){.type = LS_F32,
                          .logits = r->logits,
                          .probs = ls_check_floats(&r->c, "probs", M * E, 0),
                          .lse = ls_check_floats(&r->c, "lse", M, 0),
                          .weights = ls_check_floats(&r->c, "weights", M * K, 0),
                          .ids = ints(r, "ids", M * K),
                          .rows = ints(r, "rows", M * K),
                          .slots = ints(r, "slots", M * K),
                          .first = ints(r, "first", E * leaves + 1),
                          .chosen = ints(r, "chosen", SEQUENCES * E),
                          .sequences = SEQUENCES,
                          .M = M,
                          .E = E,
                          .K = K,
                          .leaves = leaves,
                          .normalized = normalized};
    for (int e = 0; e < E; e++) {
        float *g = r->grad + (int64_t)e * 3 * F * C;
        r->experts[e] = (ls_expert){.fc = r->fc + (int64_t)e * 2 * F * C,
                                    .out = r->out + (int64_t)e * C * F,
                                    .dgate = g,
                                    .dup = g + F * C,
                                    .dout = g + 2 * F * C};
    }
    r->args = (ls_experts){
        .kernels = kernels,
        .route = &r->route,
        .experts = r->experts,
        .act = LS_ACT_SILU,
        .C = C,
        .F = F,
        .x = r->x,
        .xs = ls_check_floats(&r->c, "xs", M * K * C, 0),
        .zs = ls_check_floats(&r->c, "zs", M * K * 2 * F, 0),
        .acts = ls_check_floats(&r->c, "acts", M * K * F, 0),
        .ys = ls_check_floats(&r->c, "ys", M * K * C, 0),
        .y = r->y,
        .dy = r->dy,
        .dx = r->dx,
        .dweights = ls_check_floats(&r->c, "dweights", M * K, 0),
        .stack = ls_check_floats(&r->c, "stack", ls_experts_stack(kernels, C, F, leaves) + 1, 0)};
}

static void forward(rig *r)
{
    ls_experts_route(r->c.stream, &r->route);
    ls_experts_forward(r->c.stream, &r->args);
    ls_check_sync(&r->c);
}

static void backward(rig *r, float balance, float z)
{
    ls_experts_backward(r->c.stream, &r->args);
    ls_experts_route_back(r->c.stream, &(ls_route_back){.route = &r->route,
                                                        .dweights = r->args.dweights,
                                                        .balance = balance,
                                                        .z = z,
                                                        .state = r->state,
                                                        .dlogits = r->dlogits});
    ls_check_sync(&r->c);
}

/* The whole of it for one token, from the definition. */
static void naive(const rig *r, int64_t m, double y[C])
{
    double p[E], top = -1e300, sum = 0, chosen = 0;
    bool taken[E] = {false};

    for (int e = 0; e < E; e++)
        top = fmax(top, (double)r->logits[m * E + e]);
    for (int e = 0; e < E; e++)
        sum += p[e] = exp((double)r->logits[m * E + e] - top);
    for (int k = 0; k < K; k++) {
        int best = -1;
        for (int e = 0; e < E; e++)
            if (!taken[e] && (best < 0 || p[e] > p[best]))
                best = e;
        taken[best] = true;
        chosen += p[best] / sum;
    }
    memset(y, 0, C * sizeof *y);
    for (int e = 0; e < E; e++) {
        double act[F], weight = p[e] / sum / (r->route.normalized ? chosen : 1);
        if (!taken[e])
            continue;
        for (int f = 0; f < F; f++) {
            double gate = 0, up = 0;
            for (int c = 0; c < C; c++) {
                gate += (double)r->x[m * C + c] * (double)r->fc[(e * 2 * F + f) * C + c];
                up += (double)r->x[m * C + c] * (double)r->fc[(e * 2 * F + F + f) * C + c];
            }
            act[f] = gate / (1 + exp(-gate)) * up;
        }
        for (int c = 0; c < C; c++)
            for (int f = 0; f < F; f++)
                y[c] += weight * act[f] * (double)r->out[(e * C + c) * F + f];
    }
}

/* grad_scale times the objective whose gradient backward makes: y . dy / grad_scale, and losses. */
/* The two losses of a token, summed over all tokens: balance and z, each counted once. */
static void losses_of(const ls_route *route, double *balance_out, double *z_out)
{
    int64_t n = route->M / route->sequences;
    double together = (double)(n * (route->ranks > 1 ? route->ranks : 1)), balance = 0, z = 0;

    for (int64_t m = 0; m < route->M; m++) {
        for (int64_t e = 0; e < route->E; e++)
            balance += (double)route->E * (double)route->chosen[m / n * route->E + e] / together *
                       (double)route->probs[m * route->E + e];
        z += (double)route->lse[m] * (double)route->lse[m];
    }
    *balance_out = balance;
    *z_out = z;
}

static double objective(rig *r, double balance, double z)
{
    double sum = 0, own, square;

    forward(r);
    for (int64_t i = 0; i < M * C; i++)
        sum += (double)r->y[i] * (double)r->dy[i];
    losses_of(&r->route, &own, &square);
    return sum + (double)r->state->grad_scale * (balance * own + z * square);
}

LS_TEST(experts_compute_what_the_definition_says)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);

    for (int i = 0; i < n; i++)
        for (int normalized = 0; normalized < 2; normalized++) {
            rig r;
            open_rig(&r, list[i]->name, 2, 3, normalized);
            forward(&r);
            for (int64_t m = 0; m < M; m++) {
                double want[C];
                naive(&r, m, want);
                for (int c = 0; c < C; c++)
                    LS_CHECK_NEAR(r.y[m * C + c], want[c], 1e-5 * (1 + fabs(want[c])));
            }
            ls_check_end(&r.c);
        }
}

/* Every choice has one row, rows of an expert lie together, leaf by leaf, in token order. */
LS_TEST(experts_sort_choices_by_expert_leaf_and_token)
{
    rig r;

    open_rig(&r, "reference", 1, 4, true);
    forward(&r);
    for (int64_t cell = 0; cell < E * 4; cell++)
        for (int32_t row = r.route.first[cell]; row < r.route.first[cell + 1]; row++) {
            int32_t slot = r.route.slots[row];
            LS_CHECK_EQ(r.route.rows[slot], row);
            LS_CHECK_EQ(r.route.ids[slot], cell / 4);
            LS_CHECK_EQ(slot / K / (M / 4), cell % 4);
            LS_CHECK(row == r.route.first[cell] || slot > r.route.slots[row - 1]);
        }
    LS_CHECK_EQ(r.route.first[0], 0);
    LS_CHECK_EQ(r.route.first[E * 4], M * K);
    for (int64_t m = 0; m < M; m++)
        LS_CHECK_NEAR(r.route.weights[m * K] + r.route.weights[m * K + 1], 1, 1e-6);
    ls_check_end(&r.c);
}

static void check_gradient(rig *r, float *x, int64_t n, const float *grad, double balance, double z)
{
    const float h = 1e-3f;

    for (int64_t i = 0; i < n; i += 7 * ls_test_stride(5)) {
        float kept = x[i];
        x[i] = kept + h;
        double up = objective(r, balance, z);
        x[i] = kept - h;
        double down = objective(r, balance, z);
        x[i] = kept;
        double want = (up - down) / (2 * (double)h);
        LS_CHECK_NEAR(grad[i], want, 2e-3 + 0.01 * fabs(want));
    }
}

LS_TEST(experts_gradients_match_finite_differences)
{
    for (int normalized = 0; normalized < 2; normalized++) {
        rig r;
        open_rig(&r, "reference", 1, 3, normalized);
        forward(&r);
        backward(&r, 0.25f, 0.125f);
        float *dx = ls_check_copy(&r.c, "dx kept", r.dx, M * C);
        float *dlogits = ls_check_copy(&r.c, "dlogits kept", r.dlogits, M * E);
        float *grad = ls_check_copy(&r.c, "gradients kept", r.grad, E * 3 * F * C);
        check_gradient(&r, r.x, M * C, dx, 0, 0);
        check_gradient(&r, r.logits, M * E, dlogits, 0.25, 0.125);
        for (int e = 0; e < E; e++) {
            float *g = grad + (int64_t)e * 3 * F * C;
            check_gradient(&r, r.fc + (int64_t)e * 2 * F * C, 2 * F * C, g, 0, 0);
            check_gradient(&r, r.out + (int64_t)e * C * F, C * F, g + 2 * F * C, 0, 0);
        }
        ls_check_end(&r.c);
    }
}

/* Where all tokens choose alike, others get a gradient of zeros, or keep what they had. */
LS_TEST(experts_that_nobody_chose_get_zeros)
{
    rig r;

    open_rig(&r, "auto", 2, 3, true);
    for (int64_t i = 0; i < M * E; i++)
        r.logits[i] = i % E < 2 ? 8.0f - (float)(i % E) : -8.0f;
    for (int64_t i = 0; i < E * 3 * F * C; i++)
        r.grad[i] = 7;
    forward(&r);
    backward(&r, 0, 0);
    for (int64_t i = 2 * 3 * F * C; i < E * 3 * F * C; i++)
        LS_CHECK_EQ(r.grad[i] != 0, 0);
    r.args.accumulate = true;
    for (int64_t i = 0; i < E * 3 * F * C; i++)
        r.grad[i] = 7;
    forward(&r);
    backward(&r, 0, 0);
    for (int64_t i = 2 * 3 * F * C; i < E * 3 * F * C; i++)
        LS_CHECK_EQ(r.grad[i], 7);
    ls_check_end(&r.c);
}

/* Balanced routing costs K, all tokens on the same experts more. */
LS_TEST(experts_balance_loss_is_least_where_all_are_used_alike)
{
    double even, one, z;
    rig r;

    open_rig(&r, "reference", 1, 1, true);
    for (int64_t i = 0; i < M * E; i++)
        r.logits[i] = 0.001f * (float)((i / E + i % E) % E);
    forward(&r);
    losses_of(&r.route, &even, &z);
    LS_CHECK_NEAR(even / M, K, 0.01);
    LS_CHECK_NEAR(z / M, log((double)E) * log((double)E), 0.01);
    for (int64_t i = 0; i < M * E; i++)
        r.logits[i] = i % E < K ? 3 : 0;
    forward(&r);
    losses_of(&r.route, &one, &z);
    LS_CHECK(one > 1.5 * even);
    ls_check_end(&r.c);
}

/* The loss is that of each sequence, so its gradient does not know how tokens are grouped. */
LS_TEST(experts_balance_loss_does_not_depend_on_leaves)
{
    static const int64_t leaves[] = {1, 2, 3, 8};
    float want[M * E];

    for (size_t i = 0; i < LS_COUNT(leaves); i++) {
        rig r;
        open_rig(&r, "auto", 2, leaves[i], true);
        forward(&r);
        backward(&r, 0.25f, 0.125f);
        if (i == 0)
            memcpy(want, r.dlogits, sizeof want);
        for (int64_t k = 0; k < M * E; k++)
            LS_CHECK_EQ(r.dlogits[k], want[k]);
        for (int64_t s = 0; s < SEQUENCES; s++) {
            int32_t choices = 0;
            for (int e = 0; e < E; e++)
                choices += r.route.chosen[s * E + e];
            LS_CHECK_EQ(choices, M / SEQUENCES * K);
        }
        ls_check_end(&r.c);
    }
}

/* Nor how many ranks share a sequence, when they have added up what they counted. */
LS_TEST(experts_balance_loss_of_pieces_is_that_of_sequences)
{
    enum { RANKS = 2, TOKENS = M / SEQUENCES, PIECE = TOKENS / RANKS };
    const ls_route_back losses = {.balance = 0.25f, .z = 0.125f};
    double want[2], got[2] = {0};
    int32_t chosen[SEQUENCES * E] = {0};
    rig whole, part[RANKS];

    open_rig(&whole, "reference", 1, 1, true);
    ls_experts_route(whole.c.stream, &whole.route);
    losses_of(&whole.route, &want[0], &want[1]);
    for (int p = 0; p < RANKS; p++) {
        rig *r = &part[p];
        open_rig(r, "reference", 1, 1, true);
        for (int64_t m = 0; m < M / RANKS; m++)
            memcpy(r->logits + m * E,
                   whole.logits + (m / PIECE * TOKENS + p * PIECE + m % PIECE) * E,
                   E * sizeof *r->logits);
        r->route.M = M / RANKS;
        r->route.ranks = RANKS;
        ls_experts_route(r->c.stream, &r->route);
        for (int i = 0; i < SEQUENCES * E; i++)
            chosen[i] += r->route.chosen[i];
    }
    for (int p = -1; p < RANKS; p++) {
        rig *r = p < 0 ? &whole : &part[p];
        ls_route_back back = losses;
        double balance, z;
        back.route = &r->route;
        back.dweights = r->args.dweights;
        back.state = r->state;
        back.dlogits = r->dlogits;
        memcpy(r->route.chosen, chosen, sizeof chosen);
        memset(r->args.dweights, 0, M * K * sizeof *r->args.dweights);
        ls_experts_route_back(r->c.stream, &back);
        losses_of(&r->route, &balance, &z);
        got[0] += p < 0 ? 0 : balance;
        got[1] += p < 0 ? 0 : z;
        for (int64_t m = 0; p >= 0 && m < M / RANKS; m++)
            for (int e = 0; e < E; e++)
                LS_CHECK_NEAR(r->dlogits[m * E + e],
                              whole.dlogits[(m / PIECE * TOKENS + p * PIECE + m % PIECE) * E + e],
                              1e-9);
    }
    LS_CHECK_NEAR(got[0], want[0], 1e-9 * want[0]);
    LS_CHECK_NEAR(got[1], want[1], 1e-9 * want[1]);
    for (int p = 0; p < RANKS; p++)
        ls_check_end(&part[p].c);
    ls_check_end(&whole.c);
}

/* Rows of three sources and two experts, to their experts and back. */
LS_TEST(experts_regroup_rows_by_expert_and_back)
{
    static const int32_t counts[3][2] = {{2, 1}, {0, 3}, {1, 0}};
    int32_t by_source[7], by_expert[7], from[7], grouped[7], back[7];
    ls_regroup args = {.by_source = by_source,
                       .by_expert = by_expert,
                       .sources = 3,
                       .experts = 2,
                       .row_bytes = sizeof *from,
                       .from = from,
                       .to = grouped};
    ls_check c;

    ls_check_begin(&c, 2);
    by_source[0] = by_expert[0] = 0;
    for (int i = 0; i < 6; i++) {
        by_source[i + 1] = by_source[i] + counts[i / 2][i % 2];
        by_expert[i + 1] = by_expert[i] + counts[i % 3][i / 3];
        for (int32_t row = by_source[i]; row < by_source[i + 1]; row++)
            from[row] = 100 * (i % 2) + 10 * (i / 2) + row - by_source[i];
    }
    ls_experts_regroup(c.stream, &args);
    const int32_t want[7] = {0, 1, 20, 100, 110, 111, 112};
    for (int i = 0; i < 7; i++)
        LS_CHECK_EQ(grouped[i], want[i]);
    args.from = grouped;
    args.to = back;
    args.back = true;
    ls_experts_regroup(c.stream, &args);
    for (int i = 0; i < 7; i++)
        LS_CHECK_EQ(back[i], from[i]);
    ls_check_end(&c);
}
