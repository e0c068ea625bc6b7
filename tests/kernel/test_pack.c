/* The pack row: products that read a packed weight have the bits of those that pack it themselves,
 * and read nothing but the packed one. */
#include "kernel/kernel_check.h"

#include "kernel/cpu/dot/dot.h"
#include "kernel/half.h"

/* M, N, K: around the sizes of panels and of blocks of K, more rows than a product of few has. */
static const int64_t shapes[][3] = {{9, 1, 1},    {17, 33, 65},   {14, 64, 384},  {15, 65, 385},
                                    {12, 7, 801}, {13, 500, 769}, {10, 385, 100}, {50, 128, 48}};

enum { WAYS = 3 };
static const ls_dot ways[WAYS] = {LS_DOT_OFF, LS_DOT_EMULATE_AVX512, LS_DOT_EMULATE_AMX};

/* Take a way of multiplying bf16; false where it does not exist. */
static bool go(ls_dot dot)
{
    if (ls_dot_obstacle(dot))
        return false;
    setenv(LS_DOT_VARIABLE, ls_dot_name(dot), 1);
    LS_CHECK_OK(ls_dot_choose());
    return true;
}

/* Pack a copy of w, and make that copy useless for whoever would still read it. */
static void pack_away(ls_check *c, const ls_kernels *v, ls_pack *a, const void *w, void **w_out)
{
    int64_t bytes = a->K * a->N * ls_dtype_bytes(a->type), packed = v->pack_bytes(a);

    LS_CHECK(packed > 0);
    *w_out = ls_check_bytes(c, "weight", bytes);
    memcpy(*w_out, w, (size_t)bytes);
    a->w = *w_out;
    a->packed = ls_check_bytes(c, "packed", packed);
    v->pack(c->stream, a);
    memset(*w_out, 0xff, (size_t)bytes);
}

static void check_linear(const ls_kernels *v, ls_dtype type, const int64_t *s, ls_layout layout)
{
    int64_t M = s[0], N = s[1], K = s[2], size = ls_dtype_bytes(type);
    ls_check c;

    ls_check_begin(&c, 2);
    const void *w = ls_half_values(&c, type, "w", K * N, 0.5f, 0);
    ls_linear_fwd fwd = {.type = type, .w = w, .M = M, .N = N, .K = K, .layout = layout};
    ls_linear_bwd_x back = {.type = type, .w = w, .M = M, .N = N, .K = K, .layout = layout};
    ls_pack pack = {.type = type, .M = M, .N = N, .K = K, .layout = layout};
    void *away;

    fwd.x = ls_half_values(&c, type, "x", M * K, 1, 0);
    back.dy = ls_half_values(&c, type, "dy", M * N, 1, 0);
    void *y = fwd.y = ls_check_bytes(&c, "y", M * N * size);
    void *dx = back.dx = ls_check_bytes(&c, "dx", M * K * size);
    v->linear_fwd(c.stream, &fwd);
    v->linear_bwd_x(c.stream, &back);

    pack_away(&c, v, &pack, w, &away);
    fwd.w = away;
    fwd.packed = pack.packed;
    fwd.y = ls_check_bytes(&c, "y by packed", M * N * size);
    v->linear_fwd(c.stream, &fwd);
    ls_check_same("y", fwd.y, y, M * N * size);

    pack.use = LS_PACK_BACK;
    pack_away(&c, v, &pack, w, &away);
    back.w = away;
    back.packed = pack.packed;
    back.dx = ls_check_bytes(&c, "dx by packed", M * K * size);
    v->linear_bwd_x(c.stream, &back);
    ls_check_same("dx", back.dx, dx, M * K * size);
    ls_check_end(&c);
}

LS_TEST_SECONDS(pack_gives_products_the_same_bits, 60)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list), tried = 0;

    for (int way = 0; way < WAYS; way++)
        for (int i = 0; i < n && go(ways[way]); i++)
            for (size_t s = 0; s < LS_COUNT(shapes); s += (size_t)ls_test_stride(2))
                for (int layout = LS_LAYOUT_KN; layout <= LS_LAYOUT_NK; layout++, tried++) {
                    bool pairs = ways[way] != LS_DOT_OFF;
                    if (pairs && strcmp(list[i].name, "avx512") != 0)
                        continue;
                    if (!pairs)
                        check_linear(&list[i], LS_F32, shapes[s], (ls_layout)layout);
                    check_linear(&list[i], LS_BF16, shapes[s], (ls_layout)layout);
                }
    LS_CHECK(tried > 0);
}

/* Two leaves; the logits of all rows are one product, so are those of dh. */
static void check_head(const ls_kernels *v, ls_dtype type, int64_t M, int64_t C, int64_t V)
{
    ls_step_state state = {.grad_scale = 0.25f};
    int64_t size = ls_dtype_bytes(type);
    ls_pack pack = {.type = type, .M = M, .N = V, .K = C, .layout = LS_LAYOUT_NK};
    ls_head a = {.type = type, .M = M, .C = C, .V = V, .leaves = 2, .state = &state};
    ls_check c;
    void *away;

    ls_check_begin(&c, 2);
    const void *w = a.w = ls_half_values(&c, type, "w", V * C, 0.5f, 0);
    a.h = ls_half_values(&c, type, "h", M * C, 1, 0);
    a.targets = ls_check_ints(&c, "targets", M, (int32_t)V);
    float *losses = a.losses = ls_check_floats(&c, "losses", M, 0);
    float *dw = a.dw = ls_check_floats(&c, "dw", V * C, 0);
    void *dh = a.dh = ls_check_bytes(&c, "dh", M * C * size);
    a.scratch = ls_check_bytes(&c, "scratch", v->scratch(LS_ROW_HEAD, &a, 2));
    v->head(c.stream, &a);

    pack_away(&c, v, &pack, w, &away);
    a.packed = pack.packed;
    pack.use = LS_PACK_HEAD;
    pack_away(&c, v, &pack, w, &away);
    a.packed_back = pack.packed;
    a.w = away;
    a.losses = ls_check_floats(&c, "losses by packed", M, 0);
    a.dw = ls_check_floats(&c, "dw by packed", V * C, 0);
    a.dh = ls_check_bytes(&c, "dh by packed", M * C * size);
    v->head(c.stream, &a);
    ls_check_same("losses", a.losses, losses, M * 4);
    ls_check_same("dw", a.dw, dw, V * C * 4);
    ls_check_same("dh", a.dh, dh, M * C * size);
    ls_check_end(&c);
}

LS_TEST_SECONDS(pack_gives_the_head_the_same_bits, 60)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int way = 0; way < WAYS; way++)
        for (int i = 0; i < n && go(ways[way]); i++) {
            check_head(&list[i], LS_F32, 20, 33, 130);
            check_head(&list[i], LS_BF16, 20, 33, 130);
            check_head(&list[i], LS_BF16, 24, 385, 70);
        }
}

/* Products of few rows read a weight as it lies, unless they are made of pairs of bf16. */
LS_TEST(pack_is_not_asked_for_by_few_rows)
{
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);
    ls_pack few = {.M = 8, .N = 40, .K = 50}, many = few, half = few;

    many.M = 9;
    half.type = LS_BF16;
    LS_CHECK(go(LS_DOT_OFF));
    for (int i = 0; i < n; i++) {
        LS_CHECK_EQ(list[i].pack_bytes(&few), 0);
        LS_CHECK_EQ(list[i].pack_bytes(&half), 0);
        LS_CHECK(list[i].pack_bytes(&many) >= 4 * 40 * 50);
    }
    if (!go(LS_DOT_EMULATE_AVX512))
        ls_test_skip("%s", ls_dot_obstacle(LS_DOT_EMULATE_AVX512));
    LS_CHECK_STR(list[n - 1].name, "avx512");
    LS_CHECK(list[n - 1].pack_bytes(&half) > 0);
    LS_CHECK(!ls_check_reference()->pack && !ls_check_reference()->pack_bytes);
}
