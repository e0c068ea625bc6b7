/* test_row_cost.c -- what rows cost, counted by hand. */
#include "harness.h"
#include "kernel/row_cost.h"

static char there[1]; /* a pointer that is not NULL and is never followed */

static void check(ls_row row, const void *args, double flops, double bytes)
{
    ls_cost cost = ls_cost_of(row, args, 11);

    LS_CHECK_NEAR(cost.flops, flops, 0);
    LS_CHECK_NEAR(cost.bytes, bytes, 0);
    LS_CHECK_EQ(ls_cost_in_flops(row), flops > 0);
}

LS_TEST(cost_of_products)
{
    check(LS_ROW_LINEAR_FWD, &(ls_linear_fwd){.M = 3, .N = 5, .K = 7}, 2 * 105, 0);
    check(LS_ROW_LINEAR_BWD_X, &(ls_linear_bwd_x){.M = 3, .N = 5, .K = 7}, 2 * 105, 0);
    check(LS_ROW_LINEAR_BWD_W, &(ls_linear_bwd_w){.M = 3, .N = 5, .K = 7}, 2 * 105, 0);
    check(LS_ROW_HEAD, &(ls_head){.M = 3, .C = 5, .V = 7}, 2 * 105, 0);
    check(LS_ROW_HEAD, &(ls_head){.M = 3, .C = 5, .V = 7, .dh = there}, 4 * 105, 0);
    check(LS_ROW_HEAD, &(ls_head){.M = 3, .C = 5, .V = 7, .dh = there, .dw = (float *)there},
          6 * 105, 0);
    /* beyond 2^31 and 2^53 nothing wraps */
    check(LS_ROW_LINEAR_FWD, &(ls_linear_fwd){.M = 1 << 20, .N = 1 << 20, .K = 1 << 20},
          2.0 * 0x1p60, 0);
}

/* Positions seen, one query at a time. */
static double seen(int64_t T, int64_t past, int64_t window)
{
    double n = 0;

    for (int64_t t = past; t < past + T; t++)
        for (int64_t s = 0; s <= t; s++)
            n += window == 0 || s > t - window;
    return n;
}

LS_TEST(cost_of_attention_counts_what_is_seen)
{
    for (int64_t T = 1; T <= 6; T++)
        for (int64_t past = 0; past <= 5; past++)
            for (int64_t window = 0; window <= 12; window++)
                check(LS_ROW_ATTENTION_FWD,
                      &(ls_attention_fwd){
                          .B = 2, .T = T, .H = 3, .Hkv = 1, .D = 4, .past = past, .window = window},
                      2 * 2 * 2 * 3 * 4 * seen(T, past, window), 0);
    check(LS_ROW_ATTENTION_BWD, &(ls_attention_bwd){.B = 2, .T = 5, .H = 3, .D = 4, .window = 2},
          5 * 2 * 2 * 3 * 4 * seen(5, 0, 2), 0);
}

LS_TEST(cost_of_rows_at_the_speed_of_memory)
{
    const ls_qkv qkv = {.B = 2, .T = 3, .H = 4, .Hkv = 2, .D = 8};
    ls_norm_bwd norm = {.M = 3, .C = 5};
    ls_embed_bwd embed = {.M = 6, .C = 5, .T = 3, .V = 9, .positions = 4};

    check(LS_ROW_QKV_FWD, &qkv, 0, 4 * 2 * 6 * 8 * 8);
    check(LS_ROW_QKV_BWD, &qkv, 0, 4 * 2 * 6 * 8 * 8);
    check(LS_ROW_NORM_FWD, &(ls_norm_fwd){.M = 3, .C = 5}, 0, 4 * 2 * 15);
    check(LS_ROW_NORM_FWD, &(ls_norm_fwd){.M = 3, .C = 5, .x = there}, 0, 4 * 4 * 15);
    check(LS_ROW_NORM_BWD, &norm, 0, 4 * 3 * 15);
    norm.add_to_dsum = true;
    norm.dx = there;
    check(LS_ROW_NORM_BWD, &norm, 0, 4 * 5 * 15);
    norm.type = LS_BF16;
    check(LS_ROW_NORM_BWD, &norm, 0, 2 * 5 * 15);
    check(LS_ROW_ACT_FWD, &(ls_act_args){.M = 3, .F = 5}, 0, 4 * 2 * 15);
    check(LS_ROW_ACT_FWD, &(ls_act_args){.M = 3, .F = 5, .gated = true}, 0, 4 * 3 * 15);
    check(LS_ROW_ACT_BWD, &(ls_act_args){.M = 3, .F = 5}, 0, 4 * 3 * 15);
    check(LS_ROW_ACT_BWD, &(ls_act_args){.M = 3, .F = 5, .gated = true}, 0, 4 * 5 * 15);
    check(LS_ROW_EMBED_FWD, &(ls_embed_fwd){.M = 6, .C = 5, .T = 3, .V = 9}, 0, 4 * 12 * 5);
    check(LS_ROW_EMBED_FWD, &(ls_embed_fwd){.M = 6, .C = 5, .T = 3, .V = 9, .wpe = there}, 0,
          4 * 15 * 5);
    embed.dwte = (float *)there;
    check(LS_ROW_EMBED_BWD, &embed, 0, 4 * 5 * (6 + 9));
    embed.dwpe = (float *)there;
    check(LS_ROW_EMBED_BWD, &embed, 0, 4 * 5 * (6 + 9 + 4));
    embed.accumulate = true;
    check(LS_ROW_EMBED_BWD, &embed, 0, 4 * 5 * (6 + 2 * 6 + 2 * 3));
}

LS_TEST(cost_of_flat_rows)
{
    check(LS_ROW_PREFERENCE, &(ls_preference){.B = 2, .T = 7}, 0, 4 * 4 * 14);
    check(LS_ROW_SUM, &(ls_sum){.n = 7}, 0, 28);
    check(LS_ROW_ADD, &(ls_add){.n = 7}, 0, 84);
    check(LS_ROW_SCALE, &(ls_scale){.n = 7}, 0, 56);
    check(LS_ROW_CAST, &(ls_cast){.n = 7, .from_type = LS_BF16, .to_type = LS_F32}, 0, 42);
    check(LS_ROW_FILL, &(ls_fill){.n = 7}, 0, 28);
    check(LS_ROW_NORM2, &(ls_norm2){.n = 7}, 0, 28);
    check(LS_ROW_ADAMW, &(ls_optimizer_update){.n_spans = 2}, 0,
          28 * 11); /* elements: told beside args */
    check(LS_ROW_LION, &(ls_optimizer_update){.n_spans = 2}, 0, 20 * 11);
    check(LS_ROW_SGD, &(ls_optimizer_update){.n_spans = 2}, 0, 20 * 11);
    check(LS_ROW_ADAMW, &(ls_optimizer_update){.n_spans = 2, .copy = there, .copy_type = LS_BF16},
          0, 30 * 11);
    check(LS_ROW_PACK, &(ls_pack){.N = 5, .K = 7}, 0, 2 * 4 * 35);
    check(LS_ROW_LAMB, &(ls_lamb){.n = 7}, 0, 28 * 7);
    check(LS_ROW_LAMB,
          &(ls_lamb){.part = LS_LAMB_STEP, .n = 7, .copy = there, .copy_type = LS_BF16}, 0, 14 * 7);
    check(LS_ROW_MOMENTUM, &(ls_momentum){.n = 7}, 0, 16 * 7);
    check(LS_ROW_MUON, &(ls_muon){.part = LS_MUON_SCALE, .rows = 2, .cols = 3}, 0, 8 * 6);
    check(
        LS_ROW_MUON,
        &(ls_muon){.part = LS_MUON_STEP, .rows = 2, .cols = 3, .copy = there, .copy_type = LS_BF16},
        0, 14 * 6);
}

/* Every row has named dims, and dims without a name are 0. */
LS_TEST(cost_dims_are_named)
{
    ls_cost cost =
        ls_cost_of(LS_ROW_ATTENTION_FWD, &(ls_attention_fwd){.B = 2, .T = 3, .H = 4, .D = 5}, 0);

    LS_CHECK(cost.dims[0] == 2 && cost.dims[1] == 3 && cost.dims[2] == 4 && cost.dims[3] == 5);
    LS_CHECK_STR(ls_cost_dims[LS_ROW_ATTENTION_FWD][3], "D");
    cost = ls_cost_of(LS_ROW_HEAD, &(ls_head){.M = 2, .C = 3, .V = 4}, 0);
    LS_CHECK(cost.dims[0] == 2 && cost.dims[1] == 3 && cost.dims[2] == 4 && cost.dims[3] == 0);
    cost = ls_cost_of(LS_ROW_ADAMW, &(ls_optimizer_update){0}, 99);
    LS_CHECK_EQ(cost.dims[0], 99);
    for (int row = 0; row < LS_ROWS; row++)
        LS_CHECK(ls_cost_dims[row][0]);
}
