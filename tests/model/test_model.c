/* test_model.c -- the parameter table: names, sizes, starting values. */
#include "harness.h"
#include "model/model.h"
#include "model/tiny.h"

LS_TEST(model_gpt2_has_its_published_size)
{
    ls_run run = ls_tiny_run();
    ls_model model;

    run.model.layers = 12;
    run.model.width = 768;
    run.model.heads = run.model.kv_heads = 12;
    run.model.head_size = 64;
    run.model.context = 1024;
    run.model.mlp = 3072;
    LS_CHECK_OK(ls_model_init(&model, &run, 50257));
    LS_CHECK_EQ(model.elements, 124439808);
    LS_CHECK_EQ(model.n_params, 12 * 12 + 4);
    LS_CHECK_STR(model.params[0].name, "transformer.wte.weight");
    LS_CHECK_STR(model.params[4].name, "transformer.h.0.attn.c_attn.weight");
    LS_CHECK_EQ(model.params[4].shape[0], 768);
    LS_CHECK_EQ(model.params[4].shape[1], 2304);
    LS_CHECK(model.params[4].decay && !model.params[5].decay);
    ls_model_release(&model);
}

LS_TEST(model_parameters_do_not_overlap_and_can_be_found)
{
    ls_run run = ls_tiny_run();
    ls_model model;

    LS_CHECK_OK(ls_model_init(&model, &run, 17));
    for (int i = 0; i < model.n_params; i++) {
        const ls_param *p = &model.params[i];
        LS_CHECK_EQ(p->first % LS_PARAM_ALIGN, 0);
        LS_CHECK(p->first + p->count <= (i + 1 < model.n_params ? p[1].first : model.flat));
        LS_CHECK(ls_model_find(&model, p->name) == p);
    }
    ls_model_release(&model);
}

LS_TEST(model_starts_the_same_in_any_pieces)
{
    ls_run run = ls_tiny_run();
    ls_model model;
    float whole[17 * 24], pieces[17 * 24];

    LS_CHECK_OK(ls_model_init(&model, &run, 17));
    const ls_param *p = &model.params[0];
    ls_model_start(p, 7, 0, p->count, whole);
    for (int64_t k = 0; k < p->count; k += 5)
        ls_model_start(p, 7, k, ls_min_i64(5, p->count - k), pieces + k);
    LS_CHECK(memcmp(whole, pieces, sizeof whole) == 0);
    ls_model_start(p, 8, 0, p->count, pieces);
    LS_CHECK(memcmp(whole, pieces, sizeof whole) != 0);
    ls_model_start(&model.params[1], 7, 0, 24, pieces);
    LS_CHECK(memcmp(whole, pieces, 24 * sizeof *whole) != 0);
    ls_model_release(&model);
}

LS_TEST(model_refuses_a_vocabulary_smaller_than_the_tokenizer)
{
    ls_run run = ls_tiny_run();
    ls_model model;

    run.model.vocab = 16;
    LS_CHECK_FAILS(ls_model_init(&model, &run, 17), LS_EUSAGE, "17 tokens");
}
