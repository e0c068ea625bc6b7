/* mesh_choice_time.c -- how long a step takes on a mesh, predicted: to compare meshes, not to promise.
 *
 *   a stage   its operations / speed / tp / cp, and what ranks exchange in each block, see
 *             meets_of(); what is recomputed is a share of forward once more
 *   a step    the table of the schedule, run by the clock with the links between stages; a pipeline
 *             of one stage is just its calls
 *   sums      what a rank has of the gradient, over dp ranks: all-reduce by the model of the links,
 *             inside a node and between nodes; ZeRO 2 and 3 once for each call, and with 3 weights
 *             are gathered twice for each call. With ep over those that have the same experts, and
 *             everything else once more among the ranks that divide experts
 *   hidden    sums go on beside backward of the last call, with ZeRO 2 and 3 beside all calls; of a
 *             pipeline beside nothing, since its last backward is the first stage's last work; with
 *             ep beside nothing, since experts get rows until the last round is over
 *   ZeRO pp   ZeRO 2 and 3 in a pipeline: what the units of a stage send to other pipelines in every
 *             micro-batch makes it slower by what its work does not hide, and with that all who
 *             wait for it, see wait_of(). New weights of ZeRO 2 come once in a step
 *   update    bytes of weights, moments and gradients that a rank updates
 *
 * Example: 10M parameters, 2 ranks of 40 Gflop/s on one node, 2048 tokens a step: work 1.6 s, sums
 * of 40 MB at 0.12 ns a byte 5 ms, update 28 bytes x 10M x 0.1 ns 28 ms. */
#include "plan/mesh_choice_impl.h"

#include <math.h>
#include "base/mem.h"
#include "layout/stage_plan.h"

/* What an update moves of an element, in bytes, and how fast a rank moves bytes. */
static const double update_bytes = 28, update_ns = 0.1;
/* Of the work beside which sums go on, the share that hides them. */
static const double hides = 0.7;
/* What of a forward is made again: all; the product into a plain MLP; what is quickly made. */
static const double again_full = 1, again_plain = 0.33, again_gated = 0.05;

double ls_mesh_choice_gflops(const ls_kernels *kernels, int threads)
{
    static const struct {
        const char *name;
        double each;
    } rows[] = {{"reference", 1}, {"generic", 8}, {"avx2", 25}, {"avx512", 40}, {"cuda", 1e5}};
    double each = 8;

    for (size_t i = 0; i < LS_COUNT(rows); i++)
        if (strcmp(kernels->name, rows[i].name) == 0)
            each = rows[i].each;
    return each * (threads > 0 ? threads : 1);
}

static int node_of(const ls_mesh_choice_facts *f, int rank)
{
    return rank / f->per_node;
}

/* n ranks, from the first on, with a distance of `apart`: how many nodes they are on. */
static int nodes_of(const ls_mesh_choice_facts *f, int n, int discrete)
{
    int nodes = 1;

    for (int i = 1; i < n; i++)
        nodes += node_of(f, i * discrete) != node_of(f, (i - 1) * discrete);
    return nodes;
}

/* A collective of n ranks that lie so; others do the same at the same time, and share the wires. */
static double collective(const ls_mesh_choice_facts *f, ls_coll_kind kind, int n, int discrete,
                         int64_t count)
{
    const ls_coll coll = {.kind = kind, .type = LS_F32, .count = count};
    int nodes = nodes_of(f, n, discrete), here = (int)ls_min_i64(f->per_node, f->ranks);
    ls_cost_query q = {
        .ranks = n, .link = f->inside, .combine_ns_per_byte = f->combine_ns_per_byte};
    ls_cost_levels levels;
    ls_cost_choice choice;

    if (n < 2 || count < 1)
        return 0;
    if (nodes > 1 && n > nodes && kind == LS_COLL_ALL_REDUCE) {
        ls_cost_nodes both = {.nodes = nodes,
                              .per_node = n / nodes,
                              .memory = {.meet_ns = f->inside.alpha_ns + f->inside.message_ns,
                                         .cached_ns_per_byte = f->inside.ns_per_byte,
                                         .ns_per_byte = f->inside.ns_per_byte},
                              .between = f->between,
                              .combine_ns_per_byte = f->combine_ns_per_byte};
        both.between.ns_per_byte *= fmax(1, (double)here / both.per_node);
        both.around = both.between;
        ls_cost_hierarchy(&both, &coll, false, &levels);
        return levels.time_ns;
    }
    if (nodes > 1) {
        q.link = f->between;
        q.link.ns_per_byte *= fmax(1, (double)here * nodes / n);
    }
    ls_cost_choose(&q, &coll, false, &choice);
    return choice.best < 0 ? 0 : choice.rows[choice.best].time_ns;
}

/* --- stages ------------------------------------------------------------------------------------
 */

typedef struct stages {
    ls_stage *all;
    double *forward, *backward, *weight; /* forward holds these, */
    double
        *waits; /* and this: what of them a micro-batch waits for other pipelines (ZeRO 2 and 3) */
    int n;
    int64_t elements; /* of the largest of a rank */
} stages;

static double again_of(const ls_mesh_choice_case *one, const ls_mesh_choice_row *row)
{
    if (row->recompute == LS_RECOMPUTE_NONE || row->recompute == LS_RECOMPUTE_AUTO)
        return 0;
    return row->recompute == LS_RECOMPUTE_FULL ? again_full
           : one->whole->shape.gated           ? again_gated
                                               : again_plain;
}

/* What a cp group passes on in a block, `elements` at a time: its slowest link, cp - 1 times. */
static double around(const ls_mesh_choice_facts *f, int cp, int discrete, int64_t count)
{
    ls_cost_link link = nodes_of(f, cp, discrete) > 1 ? f->between : f->inside;
    double bytes = (double)count * (double)sizeof(float);

    return (cp - 1) * (link.alpha_ns + link.message_ns + bytes * link.ns_per_byte);
}

/* How long ranks wait for each other in a block, forward and backward.
 *
 *   tp   two sums of the stream each way; where norms go over all heads, of two numbers more
 *   cp   keys and values around the cp group; backward once more, with their gradients
 *   ep   rows to K experts and back, each way */
typedef struct meets {
    double forward, backward;
} meets;

static meets meets_of(const ls_mesh_choice_case *one, int64_t B)
{
    const ls_mesh_choice_facts *f = one->facts;
    const ls_model_shape *shape = &one->whole->shape;
    int tp = ls_mesh_tp(&one->mesh), cp = ls_mesh_cp(&one->mesh);
    int ep = ls_mesh_ep(&one->mesh);
    int64_t tokens = B * one->run->model.context / cp;
    double norms = shape->qk_wide ? collective(f, LS_COLL_ALL_REDUCE, tp, 1, 2 * tokens) : 0;
    double sums = 2 * collective(f, LS_COLL_ALL_REDUCE, tp, 1, tokens * shape->C) + norms;
    double keys = around(f, cp, tp, 2 * tokens * shape->Hkv * shape->D / tp);
    double rows = 2 * collective(f, LS_COLL_ALL_TO_ALL, ep, tp, tokens * shape->K * shape->C / ep);

    return (meets){.forward = sums + keys + rows, .backward = sums + 2 * keys + rows};
}

/* Elements of experts that are trained, of a rank that has all experts of its layers; stages have
 * about as many. */
static int64_t in_experts(const ls_mesh_choice_case *one)
{
    const ls_model *model = one->whole;
    int64_t n = 0;

    for (int i = 0; i < model->n_params; i++)
        n += model->params[i].expert && model->params[i].trained >= 0 ? model->params[i].count : 0;
    return n / ls_mesh_tp(&one->mesh) / ls_mesh_pp(&one->mesh);
}

/* The ranks that divide what each of them has: how many, how far apart, and what of it. */
typedef struct sharers {
    int ranks, discrete, zero;
} sharers;

static sharers sharers_of(const ls_mesh_choice_case *one)
{
    if (one->mesh.ep > 1)
        return (sharers){.ranks = ls_mesh_pipelines(&one->replicas),
                         .discrete = ls_mesh_mp(&one->mesh),
                         .zero = one->replicas.zero};
    return (sharers){.ranks = ls_mesh_pipelines(&one->mp_groups),
                     .discrete = ls_mesh_tp(&one->mesh),
                     .zero = one->mesh.zero};
}

/* Whether pipelines exchange in every micro-batch. */
static bool in_every_micro(const ls_mesh_choice_case *one)
{
    sharers with = sharers_of(one);

    return ls_mesh_pp(&one->mp_groups) > 1 && with.ranks > 1 && with.zero > 1;
}

/* What a pass of `units` units waits, each of which takes `each` to come or go: for the first that
 * it needs, and for what its work does not hide. */
static double wait_of(double work, double units, double each, bool needs)
{
    double first = needs ? each : 0;

    return first + fmax(0, units * each - first - hides * work);
}

/* ZeRO 2 and 3 of stage i, of which a rank has `elements`: gradients of a unit leave when
 * they are whole, after the second half where backward is cut; with 3 the weights of a unit come
 * before it is computed, in that half too if it recomputes. */
static void add_pipelines(const ls_mesh_choice_case *one, const ls_mesh_choice_row *row, int i,
                          int64_t elements, stages *s)
{
    sharers with = sharers_of(one);
    double units = (double)(s->all[i].units + s->all[i].copies);
    bool cut = ls_stage_plan_kind(one->run) == LS_PP_SCHEDULE_ZERO_BUBBLE, whole = with.zero < 3;
    int64_t unit = (int64_t)((double)elements / units);
    int64_t read = unit * ls_dtype_bytes(ls_run_compute_type(one->run)) / (int64_t)sizeof(float);
    double sum = collective(one->facts, LS_COLL_REDUCE_SCATTER, with.ranks, with.discrete, unit);
    double come =
        whole ? 0 : collective(one->facts, LS_COLL_ALL_GATHER, with.ranks, with.discrete, read);
    double first = s->backward[i] - (cut ? s->weight[i] : 0);
    double forward = wait_of(s->forward[i], units, come, true);
    double backward =
        cut ? wait_of(first, units, come, true) : come + wait_of(first, units, come + sum, false);
    bool again = cut && row->recompute != LS_RECOMPUTE_NONE;
    double weight = cut ? wait_of(s->weight[i], units, sum + (again ? come : 0), false) : 0;

    s->forward[i] += forward;
    s->backward[i] += backward + weight;
    s->weight[i] += weight;
    s->waits[i] = forward + backward + weight;
}

static ls_status cost_stages(const ls_mesh_choice_case *one, const ls_mesh_choice_row *row,
                             const ls_calls *calls, stages *s)
{
    int pp_ranks = ls_mesh_pp(&one->mp_groups), tp = ls_mesh_tp(&one->mesh);
    int64_t T = one->run->model.context, B = calls->most * calls->leaf;
    double ns = 1 / (one->facts->gflops * tp * ls_mesh_cp(&one->mesh)), again = again_of(one, row);
    meets each = meets_of(one, B);
    int64_t elsewhere = 0; /* elements of experts that others have */
    ls_status st;

    s->n = pp_ranks * (pp_ranks > 1 ? (int)one->run->mesh.chunks : 1);
    s->all = ls_mem_array((size_t)s->n, sizeof *s->all);
    s->forward = ls_mem_array(4 * (size_t)s->n, sizeof *s->forward);
    if (!s->all || !s->forward)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d stages", s->n);
    s->backward = s->forward + s->n;
    s->weight = s->backward + s->n;
    s->waits = s->weight + s->n;
    LS_TRY(st, ls_stage_split_plan(one->whole, s->n, B, T, s->all), out);
    for (int i = 0; i < s->n; i++) {
        double blocks = (double)s->all[i].blocks;
        s->forward[i] = s->all[i].forward * ns + blocks * each.forward;
        s->backward[i] = s->all[i].backward * ns + again * s->forward[i] + blocks * each.backward;
        s->weight[i] = s->all[i].weight * ns;
    }
    for (int pp_rank = 0; pp_rank < pp_ranks; pp_rank++) {
        int64_t own = 0;
        for (int i = pp_rank; i < s->n; i += pp_ranks)
            own += s->all[i].trained;
        s->elements = ls_max_i64(s->elements, own / tp);
    }
    if (one->mesh.ep > 1) {
        elsewhere = in_experts(one) / one->mesh.ep * (one->mesh.ep - 1);
        s->elements -= elsewhere;
    }
    for (int i = 0; i < s->n; i++) {
        s->waits[i] = 0;
        if (in_every_micro(one))
            add_pipelines(one, row, i,
                          ls_max_i64(0, s->all[i].trained / tp - elsewhere * pp_ranks / s->n), s);
    }
out:
    return st;
}

/* The table, run by the clock. */
static ls_status run_table(const ls_mesh_choice_case *one, const ls_calls *calls, const stages *s,
                           ls_mesh_choice_row *row)
{
    int pp_ranks = ls_mesh_pp(&one->mp_groups), each = one->facts->ranks / pp_ranks;
    const ls_pp_schedule_costs costs = {
        .forward = s->forward,
        .backward = s->backward,
        .weight = s->weight,
        .link = nodes_of(one->facts, pp_ranks, each) > 1 ? one->facts->between : one->facts->inside,
        .bytes = calls->most * calls->leaf * one->run->model.context * one->whole->shape.C *
                 ls_dtype_bytes(ls_run_compute_type(one->run)) / ls_mesh_cp(&one->mesh)};
    ls_pp_schedule_times times = {.step = 0};
    ls_pp_schedule table = {.ranks = 0};
    ls_status st;

    LS_TRY(st,
           ls_pp_schedule_init(&table, ls_stage_plan_kind(one->run), pp_ranks,
                               (int)ls_min_i64(ls_max_i64(1, calls->calls), LS_PP_SCHEDULE_MOST),
                               s->n / pp_ranks),
           out);
    LS_TRY(st, ls_pp_schedule_simulate(&table, &costs, &times), out);
    double busiest = 0;
    for (int r = 0; r < pp_ranks; r++) {
        double waits = 0;
        for (int i = r; i < s->n; i += pp_ranks)
            waits += s->waits[i] * table.micros;
        if (times.busy[r] <= busiest)
            continue;
        busiest = times.busy[r];
        row->exchange_ns = waits;
    }
    row->work_ns = busiest - row->exchange_ns;
    row->idle_ns = times.step - busiest;
out:
    ls_pp_schedule_times_release(&times);
    ls_pp_schedule_release(&table);
    return st;
}

/* --- sums --------------------------------------------------------------------------------------
 */

/* ZeRO 2 and 3, of `ranks` ranks: every call is summed, and with 3 gathered twice. In a
 * pipeline the stages have that already, but for new weights. */
static double sums_in_rounds(const ls_mesh_choice_case *one, const ls_calls *calls, int ranks,
                             int discrete, const stages *s)
{
    double rounds = (double)ls_max_i64(1, calls->calls);
    double scatter = collective(one->facts, LS_COLL_REDUCE_SCATTER, ranks, discrete, s->elements);
    double gather = collective(one->facts, LS_COLL_ALL_GATHER, ranks, discrete, s->elements);

    if (in_every_micro(one))
        return one->mesh.zero == 3 ? 0 : gather;
    return rounds * scatter + (one->mesh.zero == 3 ? 2 * rounds : 1) * gather;
}

/* With mesh.ep: all that a rank has, with its replicas; what is no expert once more among those that divide experts. */
static double sums_of_experts(const ls_mesh_choice_case *one, const ls_calls *calls,
                              const stages *s)
{
    const ls_mesh_choice_facts *f = one->facts;
    int ep = one->mesh.ep, replicas = ls_mesh_pipelines(&one->replicas),
        discrete = ls_mesh_mp(&one->mesh);
    int64_t rest = s->elements - in_experts(one) / ep;
    double once = collective(f, LS_COLL_ALL_REDUCE, ep, ls_mesh_tp(&one->mesh), rest);

    if (one->replicas.zero < 2)
        return collective(f, LS_COLL_ALL_REDUCE, replicas, discrete, s->elements) + once;
    return sums_in_rounds(one, calls, replicas, discrete, s) + once;
}

/* What a rank waits for those that have the same part of the model. */
static double sums_of(const ls_mesh_choice_case *one, const ls_calls *calls, const stages *s,
                      const ls_mesh_choice_row *row)
{
    const ls_mesh_choice_facts *f = one->facts;
    int dp = ls_mesh_pipelines(&one->mp_groups), discrete = ls_mesh_tp(&one->mesh),
        zero = one->mesh.zero;
    double hidden;
    bool pipe = ls_mesh_pp(&one->mp_groups) > 1;
    double sum = collective(f, LS_COLL_ALL_REDUCE, dp, discrete, s->elements);

    if (dp < 2)
        return 0;
    if (one->mesh.ep > 1)
        return sums_of_experts(one, calls, s);
    if (zero < 2) {
        hidden = pipe ? 0 : hides * s->backward[0];
        return fmax(sum * (pipe ? 1 : 0.1), sum - hidden);
    }
    double all = sums_in_rounds(one, calls, dp, discrete, s);
    if (pipe)
        return all;
    return fmax(0.1 * all, all - hides * row->work_ns);
}

ls_status ls_mesh_choice_time(const ls_mesh_choice_case *one, ls_mesh_choice_row *row)
{
    bool ep_group = one->mesh.ep > 1 && ls_mesh_pp(&one->mp_groups) > 1;
    int dividers =
        ls_mesh_pipelines(ep_group ? &one->replicas : &one->mp_groups); /* of an update */
    stages s = {.n = 0};
    ls_calls calls;
    ls_status st;

    ls_calls_plan(one->run, &one->mp_groups, &calls);
    LS_TRY(st, cost_stages(one, row, &calls, &s), out);
    if (s.n > 1)
        LS_TRY(st, run_table(one, &calls, &s, row), out);
    else
        row->work_ns = (s.forward[0] + s.backward[0]) * (double)calls.own / (double)calls.most;
    row->exchange_ns += sums_of(one, &calls, &s, row);
    row->work_ns += update_bytes * update_ns * (double)s.elements /
                    (one->mesh.zero > 0 && !one->mesh.independent ? dividers : 1);
    row->step_ns = row->work_ns + row->idle_ns + row->exchange_ns;
out:
    ls_mem_free(s.all);
    ls_mem_free(s.forward);
    return st;
}
