/* tiny.h -- a small run made by hand, for tests of model and train. */
#pragma once
#include "base/rng.h"
#include "config/run.h"

static inline ls_run ls_tiny_run(void)
{
    ls_run run = {.name = "tiny", .out = "out"};

    run.model.layers = 2;
    run.model.width = 24;
    run.model.import = "";
    run.model.heads = run.model.kv_heads = 3;
    run.model.head_size = 8;
    run.model.bias = LS_BIAS_ALL;
    run.model.tied = LS_TIED_YES;
    run.model.norm_eps = 1e-5;
    run.model.rope_theta = 10000;
    run.model.context = 13;
    run.model.mlp = 40;
    run.model.vocab = LS_RUN_AUTO;
    run.model.init_std = 0.2;
    run.batch.sequences = 6;
    run.batch.leaf = 1;
    run.batch.group = 1;
    run.train.steps = 10;
    run.train.lr = 1e-2;
    run.train.min_lr = 1e-3;
    run.train.beta1 = 0.9;
    run.train.beta2 = 0.95;
    run.train.eps = 1e-8;
    run.train.weight_decay = 0.1;
    run.train.clip = 1.0;
    run.train.seed = 5;
    run.train.reduce = LS_REDUCE_ORDERED;
    return run;
}

/* n token numbers below V. */
static inline void ls_tiny_tokens(uint32_t seed, int64_t n, int32_t V, int32_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (int32_t)(ls_rng_philox(ls_rng_derive(seed, 1, 2), (uint32_t)i, 0, 0, 0).v[0] %
                           (uint32_t)V);
}
