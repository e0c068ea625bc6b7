/* test_stage_split.c -- layers over stages: the cut is the best one, and counts what it should. */
#include "harness.h"
#include "base/mem.h"
#include "model/tiny.h"
#include "layout/stage_split.h"

enum { MOST = 12 };

typedef struct cut {
    double largest, squares;
} cut;

static cut measure(const double *costs, const int *first, int runs)
{
    cut c = {0};

    for (int k = 0; k < runs; k++) {
        double sum = 0;
        for (int i = first[k]; i < first[k + 1]; i++)
            sum += costs[i];
        c.largest = sum > c.largest ? sum : c.largest;
        c.squares += sum * sum;
    }
    return c;
}

/* The best of all cuts, by trying them. */
static void try_all(const double *costs, int n, int runs, int at, int *first, cut *best)
{
    if (at == runs) {
        first[runs] = n;
        cut c = measure(costs, first, runs);
        if (best->largest < 0 || c.largest < best->largest ||
            (c.largest <= best->largest && c.squares < best->squares))
            *best = c;
        return;
    }
    for (int i = first[at - 1] + 1; i <= n - (runs - at); i++) {
        first[at] = i;
        try_all(costs, n, runs, at + 1, first, best);
    }
}

LS_TEST(stages_are_cut_as_well_as_trying_all_cuts_can)
{
    int stride = ls_test_stride(5), tried = 0;

    for (uint32_t seed = 0; seed < 60; seed++)
        for (int n = 1; n <= MOST; n++)
            for (int runs = 1; runs <= n; runs++) {
                double costs[MOST];
                int got[MOST + 1], first[MOST + 1] = {0};
                cut best = {.largest = -1};
                if (tried++ % stride)
                    continue;
                for (int i = 0; i < n; i++) /* small whole numbers, so that there are ties */
                    costs[i] = ls_rng_philox(ls_rng_derive(seed, 3, 4), (uint32_t)i, 0, 0, 0).v[0] %
                               (seed % 3 ? 5 : 50);
                LS_CHECK_OK(ls_stage_split_split(costs, n, runs, got));
                LS_CHECK_EQ(got[0], 0);
                LS_CHECK_EQ(got[runs], n);
                for (int k = 0; k < runs; k++)
                    LS_CHECK(got[k] < got[k + 1]);
                try_all(costs, n, runs, 1, first, &best);
                cut c = measure(costs, got, runs);
                LS_CHECK_NEAR(c.largest, best.largest, 1e-9);
                LS_CHECK_NEAR(c.squares, best.squares, 1e-9);
            }
}

static void plan(const ls_run *run, int64_t vocab, int n, ls_stage *stages)
{
    ls_model model;
    int64_t unit = 0;

    LS_CHECK_OK(ls_model_init(&model, run, vocab));
    LS_CHECK_OK(ls_stage_split_plan(&model, n, 2, model.shape.T, stages));
    for (int k = 0; k < n; k++) {
        LS_CHECK_EQ(stages[k].unit, unit);
        unit += stages[k].units;
    }
    LS_CHECK_EQ(unit, model.shape.L + 2);
    ls_model_release(&model);
}

LS_TEST(stages_of_a_model_count_embedding_and_head)
{
    ls_run run = ls_tiny_run();
    ls_stage small[4], large[4], one;
    ls_model model;

    run.model.layers = 12;
    plan(&run, 19, 4, small);
    for (int k = 0; k < 4; k++)
        LS_CHECK_EQ(small[k].blocks, 3); /* a head of 19 rows is nothing */
    plan(&run, 1000, 4, large);
    LS_CHECK(large[3].blocks < large[0].blocks); /* one of 1000 is a few blocks */
    LS_CHECK(large[3].copies && !large[0].copies);

    /* Everything is somewhere once, and the tied embedding a second time on the last stage. */
    LS_CHECK_OK(ls_model_init(&model, &run, 1000));
    int64_t elements = 0;
    double forward = 0, backward = 0;
    for (int k = 0; k < 4; k++) {
        elements += large[k].elements;
        forward += large[k].forward;
        backward += large[k].backward;
    }
    LS_CHECK_EQ(elements, model.elements + model.shape.V * model.shape.C);
    LS_CHECK_OK(ls_stage_split_plan(&model, 1, 2, model.shape.T, &one));
    LS_CHECK_EQ(one.elements, model.elements);
    LS_CHECK_NEAR(one.forward, forward, 1e-9 * forward);
    LS_CHECK_NEAR(one.backward, backward, 1e-9 * backward);
    /* All matrices but the embedding's tables once, and attention: llm.c's 6 N + 6 L H D T a token,
     * but for what its convention leaves out or counts more of (vectors, positions, 7/6 of backward
     * attention, the diagonal). */
    double whole = ls_model_flops_per_token(&model, model.shape.T) * 2 * (double)model.shape.T;
    LS_CHECK(one.forward + one.backward > 0.95 * whole);
    LS_CHECK(one.forward + one.backward < 1.1 * whole);
    ls_model_release(&model);
}

LS_TEST(stages_of_frozen_layers_make_no_gradient_of_weights)
{
    const char *frozen[] = {"transformer.h.[0-3].*", "transformer.w*"};
    ls_run run = ls_tiny_run();
    ls_stage stages[2];

    run.model.layers = 8;
    run.train.freeze = (ls_run_list){frozen, 2};
    plan(&run, 19, 2, stages);
    LS_CHECK(stages[0].blocks > stages[1].blocks);
    LS_CHECK(stages[0].weight < stages[1].weight);
}

LS_TEST(stages_need_a_layer_each)
{
    ls_run run = ls_tiny_run();
    ls_stage stages[3];
    ls_model model;
    int first[3];

    LS_CHECK_OK(ls_model_init(&model, &run, 19));
    LS_CHECK_FAILS(ls_stage_split_plan(&model, 3, 1, 13, stages), LS_EUSAGE,
                   "3 stages cannot share 2 layers");
    for (uint64_t n = 1; n <= 6; n++) {
        ls_mem_fail_nth(n);
        LS_CHECK_EQ(ls_stage_split_plan(&model, 2, 1, 13, stages), LS_ENOMEM);
    }
    ls_mem_fail_nth(0);
    ls_model_release(&model);
    LS_CHECK_OK(ls_stage_split_split((const double[]){3, 1, 1}, 3, 2, first));
    LS_CHECK_EQ(first[1], 1);
}
