/* test_pp_schedule.c -- tables of pipelines: right, free of deadlock, and as good as the formulas say;
 * and the proof finds what is wrong in a table. */
#include "harness.h"
#include "base/mem.h"
#include "layout/pp_schedule.h"

enum { RANKS = 16, MICROS = 64, CHUNKS = 4 };

/* Equal stages: forward, backward and weight of a rank, over all its chunks. */
typedef struct equal {
    double forward[RANKS * CHUNKS], backward[RANKS * CHUNKS], weight[RANKS * CHUNKS];
    ls_pp_schedule_costs costs;
} equal;

static void set_equal(equal *e, const ls_pp_schedule_ask *ask)
{
    for (int s = 0; s < ask->ranks * ask->chunks; s++) {
        e->forward[s] = ask->forward / ask->chunks;
        e->backward[s] = ask->backward / ask->chunks;
        e->weight[s] = ask->weight / ask->chunks;
    }
    e->costs =
        (ls_pp_schedule_costs){.forward = e->forward, .backward = e->backward, .weight = e->weight};
}

/* The peak of a rank, as ls_pp_schedule_prove() counts it: gpipe keeps all; 1F1B its warm-up and one
 * more (arXiv:2104.04473, 2.2.1), interleaved likewise, in chunks; zero-bubble as many as 1F1B's first
 * rank on every rank, because gradients of weights lag (arXiv:2401.10241, 2.2). Never more than there
 * are. */
static int formula_peak(const ls_pp_schedule_ask *ask, int rank)
{
    int all = ask->micros * ask->chunks, n = all, behind = ask->ranks - 1 - rank;
    int groups = ask->micros > ask->ranks ? ask->micros / ask->ranks : 1;
    int group = (ask->micros + groups - 1) / groups;

    if (ask->kind == LS_PP_SCHEDULE_ZERO_BUBBLE)
        n = ask->ranks;
    else if (ask->kind == LS_PP_SCHEDULE_1F1B)
        n = 1 + behind;
    else if (ask->kind == LS_PP_SCHEDULE_INTERLEAVED)
        n = 1 + 2 * behind + (ask->chunks - 1) * group;
    return n < all ? n : all;
}

/* A weight gradient lags by `rank` micro-batches, and comes behind the input gradient of its turn. */
static int formula_late(const ls_pp_schedule_ask *ask, int rank)
{
    if (ask->kind != LS_PP_SCHEDULE_ZERO_BUBBLE)
        return 0;
    return rank + 1 < ask->micros ? rank + 1 : ask->micros;
}

/* The most micro-batches of a rank that are between the halves of their backward. */
static int count_late(const ls_pp_schedule *p, int rank)
{
    int now = 0, most = 0;

    for (int i = p->first[rank]; i < p->first[rank + 1]; i++) {
        now += (p->ops[i].what == LS_PP_SCHEDULE_BACKWARD_INPUT) -
               (p->ops[i].what == LS_PP_SCHEDULE_BACKWARD_WEIGHT);
        most = now > most ? now : most;
    }
    return most;
}

/* Micro-batches go back, and their weight gradients are made, in ascending order in every chunk:
 * sums along the tree over leaves need it. */
static void check_order(const ls_pp_schedule *p, int rank)
{
    int next[2][CHUNKS] = {{0}};

    for (int i = p->first[rank]; i < p->first[rank + 1]; i++) {
        const ls_pp_schedule_op *op = &p->ops[i];
        bool input =
            op->what == LS_PP_SCHEDULE_BACKWARD || op->what == LS_PP_SCHEDULE_BACKWARD_INPUT;
        bool weight =
            op->what == LS_PP_SCHEDULE_BACKWARD || op->what == LS_PP_SCHEDULE_BACKWARD_WEIGHT;
        if (input && op->micro != next[0][op->chunk]++)
            ls_test_fail(__FILE__, __LINE__, "%s: rank %d goes back out of order",
                         ls_pp_schedule_names[p->kind], rank);
        if (weight && op->micro != next[1][op->chunk]++)
            ls_test_fail(__FILE__, __LINE__, "%s: rank %d makes weight gradients out of order",
                         ls_pp_schedule_names[p->kind], rank);
    }
}

/* A table proves, holds as many activations as the formula says, and has its bubble. */
static void check_table(const ls_pp_schedule_ask *ask)
{
    double work = ask->micros * (ask->forward + ask->backward);
    int peaks[RANKS];
    ls_pp_schedule table;
    ls_pp_schedule_times times;
    equal e;

    LS_CHECK_OK(ls_pp_schedule_init(&table, ask->kind, ask->ranks, ask->micros, ask->chunks));
    LS_CHECK_OK(ls_pp_schedule_prove(&table, peaks));
    for (int r = 0; r < ask->ranks; r++)
        if (peaks[r] != formula_peak(ask, r))
            ls_test_fail(__FILE__, __LINE__, "%s p=%d m=%d v=%d rank %d holds %d, not %d",
                         ls_pp_schedule_names[ask->kind], ask->ranks, ask->micros, ask->chunks, r,
                         peaks[r], formula_peak(ask, r));
    for (int r = 0; r < ask->ranks; r++) {
        LS_CHECK_EQ(count_late(&table, r), formula_late(ask, r));
        check_order(&table, r);
    }
    set_equal(&e, ask);
    LS_CHECK_OK(ls_pp_schedule_simulate(&table, &e.costs, &times));
    if (ls_pp_schedule_is_known(ask)) {
        double idle = times.step - work, want = ls_pp_schedule_idle(ask);
        if (idle - want > 1e-9 * times.step || want - idle > 1e-9 * times.step)
            ls_test_fail(__FILE__, __LINE__, "%s p=%d m=%d v=%d idles %g, not %g",
                         ls_pp_schedule_names[ask->kind], ask->ranks, ask->micros, ask->chunks,
                         idle, want);
        LS_CHECK_NEAR(times.bubble, want / (work + want), 1e-9);
    }
    ls_pp_schedule_times_release(&times);
    ls_pp_schedule_release(&table);
}

/* All tables of a kind up to p = 16, m = 64, v = 4, with costs of a forward, a backward and its
 * half for weights. */
static void check_kind(ls_pp_schedule_kind kind, double forward, double backward, double weight)
{
    int chunks = kind == LS_PP_SCHEDULE_INTERLEAVED ? CHUNKS : 1, n = 0,
        stride = ls_test_stride(11);

    for (int p = 1; p <= RANKS; p++)
        for (int m = 1; m <= MICROS; m++)
            for (int v = 1; v <= chunks; v++)
                if (n++ % stride == 0)
                    check_table(&(ls_pp_schedule_ask){.kind = kind,
                                                      .ranks = p,
                                                      .micros = m,
                                                      .chunks = v,
                                                      .forward = forward,
                                                      .backward = backward,
                                                      .weight = weight});
}

LS_TEST(pipeline_gpipe_is_proved_and_as_its_formulas_say)
{
    check_kind(LS_PP_SCHEDULE_GPIPE, 1, 2, 1);
    check_kind(LS_PP_SCHEDULE_GPIPE, 3, 5, 2);
}

LS_TEST(pipeline_1f1b_is_proved_and_as_its_formulas_say)
{
    check_kind(LS_PP_SCHEDULE_1F1B, 1, 2, 1);
    check_kind(LS_PP_SCHEDULE_1F1B, 3, 5, 2);
}

LS_TEST(pipeline_interleaved_is_proved_and_as_its_formulas_say)
{
    check_kind(LS_PP_SCHEDULE_INTERLEAVED, 1, 2, 1);
}

LS_TEST(pipeline_zero_bubble_is_proved_and_as_its_formulas_say)
{
    check_kind(LS_PP_SCHEDULE_ZERO_BUBBLE, 1, 2, 1);
    check_kind(LS_PP_SCHEDULE_ZERO_BUBBLE, 2, 3, 1);
    check_kind(LS_PP_SCHEDULE_ZERO_BUBBLE, 1, 3, 2); /* no formula: proof and peaks only */
}

/* Figures of the papers: 4 stages, 8 micro-batches, backward twice as long as forward. */
LS_TEST(pipeline_figures_of_the_papers_come_out)
{
    static const double idle[LS_PP_SCHEDULE_KINDS] = {9, 9, 4.5, 3};
    static const int peaks[LS_PP_SCHEDULE_KINDS][2] = {{8, 8}, {4, 1}, {11, 5}, {4, 4}};

    for (int kind = 0; kind < LS_PP_SCHEDULE_KINDS; kind++) {
        ls_pp_schedule_ask ask = {.kind = (ls_pp_schedule_kind)kind,
                                  .ranks = 4,
                                  .micros = 8,
                                  .chunks = kind == LS_PP_SCHEDULE_INTERLEAVED ? 2 : 1,
                                  .forward = 1,
                                  .backward = 2,
                                  .weight = 1};
        LS_CHECK_NEAR(ls_pp_schedule_idle(&ask), idle[kind], 1e-12);
        LS_CHECK_EQ(formula_peak(&ask, 0), peaks[kind][0]);
        LS_CHECK_EQ(formula_peak(&ask, 3), peaks[kind][1]);
        check_table(&ask);
    }
}

/* --- time ------------------------------------------------------------------------------------- */

static double step_of(ls_pp_schedule_kind kind, int ranks, int micros, ls_cost_link link,
                      int64_t bytes)
{
    const ls_pp_schedule_ask ask = {.kind = kind,
                                    .ranks = ranks,
                                    .micros = micros,
                                    .chunks = 1,
                                    .forward = 10,
                                    .backward = 20,
                                    .weight = 10};
    ls_pp_schedule table;
    ls_pp_schedule_times times;
    double step;
    equal e;

    set_equal(&e, &ask);
    e.costs.link = link;
    e.costs.bytes = bytes;
    LS_CHECK_OK(ls_pp_schedule_init(&table, kind, ranks, micros, 1));
    LS_CHECK_OK(ls_pp_schedule_simulate(&table, &e.costs, &times));
    step = times.step;
    ls_pp_schedule_times_release(&times);
    ls_pp_schedule_release(&table);
    return step;
}

LS_TEST(pipeline_links_cost_what_the_model_of_links_says)
{
    const ls_cost_link link = {.alpha_ns = 1, .message_ns = 2, .ns_per_byte = 0.5};

    /* One micro-batch: 3 F, 3 B and 4 messages of 1 + 2 + 0.5 * 8 one after the other. */
    LS_CHECK_NEAR(step_of(LS_PP_SCHEDULE_1F1B, 3, 1, link, 8), 90 + 4 * 7, 1e-9);
    /* A port of 30 a message is slower than a forward: the last of 4 has come after 10 + 4 * 30 +
     * alpha. It goes forward; of the 4 backwards of rank 1 the first runs then; of the messages
     * back, with 30 each behind a backward of 20, the last arrives 20 + 4 * 30 + alpha after that;
     * then rank 0's last backward. */
    LS_CHECK_NEAR(step_of(LS_PP_SCHEDULE_GPIPE, 2, 4, link, 56),
                  10 + 4 * 30 + 1 + 10 + 20 + 4 * 30 + 1 + 20, 1e-9);
    /* Messages beside the work cost nothing but the way of the first and the last. */
    LS_CHECK_NEAR(step_of(LS_PP_SCHEDULE_GPIPE, 2, 8, link, 8), 9 * 30 + 2 * 7, 1e-9);
}

LS_TEST(pipeline_of_uneven_stages_waits_for_the_slowest)
{
    static const double forward[] = {1, 1, 3, 1}, backward[] = {2, 2, 6, 2},
                        weight[] = {1, 1, 3, 1};
    const ls_pp_schedule_costs costs = {.forward = forward, .backward = backward, .weight = weight};

    for (int kind = 0; kind < LS_PP_SCHEDULE_KINDS; kind++) {
        ls_pp_schedule table;
        ls_pp_schedule_times times;
        LS_CHECK_OK(ls_pp_schedule_init(&table, (ls_pp_schedule_kind)kind, 4, 32, 1));
        LS_CHECK_OK(ls_pp_schedule_simulate(&table, &costs, &times));
        LS_CHECK_NEAR(times.busy[2], 32 * 9, 1e-9);
        LS_CHECK(times.step >= 32 * 9 + 2); /* the way to the slowest */
        LS_CHECK(times.step <= 32 * 9 + 3 * 9 + 3 + 6);
        ls_pp_schedule_times_release(&times);
        ls_pp_schedule_release(&table);
    }
}

/* --- what the proof finds --------------------------------------------------------------------- */

static int find(const ls_pp_schedule *p, int rank, ls_pp_schedule_what what, int nth)
{
    for (int i = p->first[rank]; i < p->first[rank + 1]; i++)
        if (p->ops[i].what == what && nth-- == 0)
            return i;
    ls_test_fail(__FILE__, __LINE__, "rank %d has no such operation", rank);
}

static void swap(ls_pp_schedule *p, int a, int b)
{
    ls_pp_schedule_op op = p->ops[a];

    p->ops[a] = p->ops[b];
    p->ops[b] = op;
}

LS_TEST(pipeline_proof_finds_what_is_wrong)
{
    ls_pp_schedule p;

    /* Both send first, as 1F1B without a plan for messages would: rank 0 the next activations, rank
     * 1 a gradient. */
    LS_CHECK_OK(ls_pp_schedule_init(&p, LS_PP_SCHEDULE_1F1B, 2, 4, 1));
    LS_CHECK_OK(ls_pp_schedule_prove(&p, NULL));
    int recv = find(&p, 1, LS_PP_SCHEDULE_RECV, 1), back = find(&p, 1, LS_PP_SCHEDULE_SEND, 0);
    ls_pp_schedule_op late = p.ops[recv];
    memmove(&p.ops[recv], &p.ops[recv + 1], (size_t)(back - recv) * sizeof *p.ops);
    p.ops[back] = late;
    LS_CHECK_FAILS(ls_pp_schedule_prove(&p, NULL), LS_EDATA, "never ends: rank 0 waits at");
    ls_pp_schedule_release(&p);

    LS_CHECK_OK(ls_pp_schedule_init(&p, LS_PP_SCHEDULE_GPIPE, 3, 3, 1));
    swap(&p, find(&p, 2, LS_PP_SCHEDULE_RECV, 0), find(&p, 2, LS_PP_SCHEDULE_FORWARD, 0));
    LS_CHECK_FAILS(ls_pp_schedule_prove(&p, NULL), LS_EDATA, "its input is not there yet");
    ls_pp_schedule_release(&p);

    LS_CHECK_OK(ls_pp_schedule_init(&p, LS_PP_SCHEDULE_GPIPE, 3, 3, 1));
    p.ops[find(&p, 0, LS_PP_SCHEDULE_BACKWARD, 2)].micro = 1;
    LS_CHECK_FAILS(ls_pp_schedule_prove(&p, NULL), LS_EDATA, "a second time");
    ls_pp_schedule_release(&p);

    LS_CHECK_OK(ls_pp_schedule_init(&p, LS_PP_SCHEDULE_ZERO_BUBBLE, 2, 3, 1));
    p.ops[find(&p, 1, LS_PP_SCHEDULE_BACKWARD_WEIGHT, 2)] =
        p.ops[find(&p, 1, LS_PP_SCHEDULE_BACKWARD_WEIGHT, 1)];
    LS_CHECK_FAILS(ls_pp_schedule_prove(&p, NULL), LS_EDATA, "a second time");
    p.first[2]--; /* leaves it out instead */
    LS_CHECK_FAILS(ls_pp_schedule_prove(&p, NULL), LS_EDATA, "leaves out a part of micro-batch 2");
    ls_pp_schedule_release(&p);

    LS_CHECK_OK(ls_pp_schedule_init(&p, LS_PP_SCHEDULE_INTERLEAVED, 4, 4, 2));
    p.ops[find(&p, 1, LS_PP_SCHEDULE_SEND, 0)].peer = 3;
    LS_CHECK_FAILS(ls_pp_schedule_prove(&p, NULL), LS_EDATA, "does not have the other stage");
    p.ops[find(&p, 1, LS_PP_SCHEDULE_SEND, 0)].micro = 4;
    LS_CHECK_FAILS(ls_pp_schedule_prove(&p, NULL), LS_EDATA, "an operation that is none");
    ls_pp_schedule_release(&p);
}

/* Any two neighbours of a rank's list exchanged: the proof says no, or the table still does all
 * work once (exchanging what does not depend on each other is no mistake). */
LS_TEST(pipeline_proof_survives_any_exchange_of_neighbours)
{
    int refused = 0;

    for (int kind = 0; kind < LS_PP_SCHEDULE_KINDS; kind++) {
        ls_pp_schedule p;
        LS_CHECK_OK(ls_pp_schedule_init(&p, (ls_pp_schedule_kind)kind, 4, 8,
                                        kind == LS_PP_SCHEDULE_INTERLEAVED ? 2 : 1));
        for (int r = 0; r < 4; r++)
            for (int i = p.first[r]; i + 1 < p.first[r + 1]; i++) {
                swap(&p, i, i + 1);
                refused += ls_pp_schedule_prove(&p, NULL) != LS_OK;
                swap(&p, i, i + 1);
            }
        LS_CHECK_OK(ls_pp_schedule_prove(&p, NULL));
        ls_pp_schedule_release(&p);
    }
    ls_err_clear();
    LS_CHECK(refused > 100);
}

LS_TEST(pipeline_refuses_what_makes_no_table)
{
    ls_pp_schedule p;

    LS_CHECK_FAILS(ls_pp_schedule_init(&p, LS_PP_SCHEDULE_1F1B, 4, 8, 2), LS_EUSAGE, "one chunk");
    LS_CHECK_FAILS(ls_pp_schedule_init(&p, LS_PP_SCHEDULE_1F1B, 0, 8, 1), LS_EUSAGE, "a stage");
    LS_CHECK_FAILS(ls_pp_schedule_init(&p, LS_PP_SCHEDULE_1F1B, 1 << 15, 1 << 15, 1), LS_EUSAGE,
                   "too many");
    for (uint64_t n = 1; n <= 7; n++) {
        ls_mem_fail_nth(n);
        LS_CHECK_EQ(ls_pp_schedule_init(&p, LS_PP_SCHEDULE_1F1B, 2, 2, 1), LS_ENOMEM);
    }
    ls_mem_fail_nth(0);
}
