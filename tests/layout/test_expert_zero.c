/* test_expert_zero.c -- who updates what where ranks divide experts: everything once. */
#include "base/mem.h"
#include "harness.h"
#include "model/tiny.h"
#include "layout/expert_zero.h"

static ls_run run_of(int ep)
{
    ls_run run = ls_tiny_run();

    run.model.family = LS_FAMILY_MIXTRAL;
    run.model.bias = LS_BIAS_NONE;
    run.model.width = 72;
    run.model.experts = 4;
    run.model.experts_used = 2;
    run.model.experts_norm = true;
    run.mesh.ep = ep;
    run.mesh.zero = 1;
    return run;
}

/* Count how often these replicas update each element; returns how many elements are updated. */
static int64_t count(const ls_model *model, ls_mesh replicas, uint8_t *times)
{
    int n = ls_expert_zero_parts(model, &replicas, replicas.rank, NULL);
    ls_mesh_part *parts = ls_mem_array((size_t)n, sizeof *parts);
    int64_t packed = 0;

    LS_CHECK(parts && n >= 1);
    LS_CHECK_EQ(ls_expert_zero_parts(model, &replicas, replicas.rank, parts), n);
    for (int i = 0; i < n; i++) {
        LS_CHECK_EQ(parts[i].packed, packed);
        LS_CHECK(i == 0 || parts[i].first >= parts[i - 1].first + parts[i - 1].count);
        packed += parts[i].count;
        for (int64_t k = 0; k < parts[i].count; k++)
            times[parts[i].first + k]++;
    }
    LS_CHECK_EQ(ls_expert_zero_own(model, &replicas), packed);
    ls_mem_free(parts);
    return packed;
}

LS_TEST(ep_parts_have_everything_once)
{
    for (int ep = 2; ep <= 4; ep += 2)
        for (int ranks = 1; ranks <= 3; ranks++)
            for (int bucket = 0; bucket <= 1; bucket++) {
                ls_run run = run_of(ep);
                ls_model models[4];
                uint8_t *times[4];
                int64_t most = 0;
                for (int f = 0; f < ep; f++) {
                    LS_CHECK_OK(ls_model_init_split(
                        &models[f], &run, 67, (ls_model_split){.ep_rank = f, .ep_ranks = ep}));
                    LS_CHECK_EQ(models[f].trained, models[0].trained);
                    times[f] = ls_mem_array((size_t)models[f].trained, 1);
                    LS_CHECK(times[f]);
                    for (int r = 0; r < ranks; r++) {
                        ls_mesh replicas = {.ranks = ranks, .rank = r, .zero = 1, .bucket = bucket};
                        LS_CHECK(ls_expert_zero_divides(&run, &models[f], &replicas));
                        most = ls_max_i64(most, count(&models[f], replicas, times[f]));
                    }
                }
                LS_CHECK(most < models[0].trained);
                for (int i = 0; i < models[0].n_params; i++)
                    for (int64_t k = 0; k < models[0].params[i].count; k++) {
                        int all = 0;
                        for (int f = 0; f < ep; f++) {
                            int one = times[f][models[f].params[i].trained + k];
                            LS_CHECK(!models[f].params[i].expert || one == 1);
                            all += one;
                        }
                        LS_CHECK_EQ(all, models[0].params[i].expert ? ep : 1);
                    }
                for (int f = 0; f < ep; f++) {
                    ls_model_release(&models[f]);
                    ls_mem_free(times[f]);
                }
            }
}
