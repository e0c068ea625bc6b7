/* registry.c -- the tables of all implementations, what each row promises, and the choice.
 *
 * The tables are complete: a hole is a mistake of ours and stops the program the first time a table
 * is asked for. cpu/isa.h tests what the CPU has. */
#include "kernel/kernel.h"

#include <stdlib.h>
#include "base/str.h"
#include "kernel/cpu/dot/dot.h"
#include "kernel/cpu/isa.h"
#include "kernel/cpu/rows_shared.h"

/* --- what each row promises ---------------------------------------------------------------------
 */

const ls_kernel_row ls_kernel_rows[LS_ROWS] = {
    {LS_ROW_LINEAR_FWD, "linear_fwd", "y = act(x W + b)", 2e-5,
     "a chain of K fma in fp32 against double; K up to 4096"},
    {LS_ROW_LINEAR_BWD_X, "linear_bwd_x", "dx = (dy W^T) act'(z)", 2e-5,
     "a chain of N fma in fp32 against double"},
    {LS_ROW_LINEAR_BWD_W, "linear_bwd_w", "dw = x^T dy, db = sum dy", 2e-5,
     "a chain over the rows of a leaf in fp32 against double"},
    {LS_ROW_QKV_FWD, "qkv_fwd", "q, k, v = split(packed), q and k normalised and rotated", 2e-6,
     "a mean of squares over 16 lanes, then two products and one sum per element"},
    {LS_ROW_QKV_BWD, "qkv_bwd", "packed, dq_norm, dk_norm of qkv_fwd", 2e-5,
     "differences of fp32 means; dq_norm and dk_norm are sums over all rows and heads"},
    {LS_ROW_ATTENTION_FWD, "attention_fwd", "o = softmax(scale q k^T, causal) v", 2e-5,
     "exp within 2 units, sums over T in fp32, rescaled per block"},
    {LS_ROW_ATTENTION_BWD, "attention_bwd", "dq, dk, dv of attention_fwd", 5e-5,
     "probabilities are made again from lse; two products and a difference of sums"},
    {LS_ROW_NORM_FWD, "norm_fwd", "sum = stream + dropout(x), y = norm(sum) w + b", 1e-5,
     "mean and variance in two fp32 passes over 16 lanes"},
    {LS_ROW_NORM_BWD, "norm_bwd", "dsum, dx, dw, db of norm_fwd", 2e-5,
     "differences of fp32 means; dw and db are sums over all rows"},
    {LS_ROW_ACT_FWD, "act_fwd", "y = act(x), or act(gate) up", 2e-6,
     "exp within 2 units, one division"},
    {LS_ROW_ACT_BWD, "act_bwd", "dx of act_fwd", 5e-6,
     "exp within 2 units, multiplied by up to x^3 where the slope turns"},
    {LS_ROW_EMBED_FWD, "embed_fwd", "y = dropout(wte[token] + wpe[position] + noise)", 1e-6,
     "one sum and one product"},
    {LS_ROW_EMBED_BWD, "embed_bwd", "dwte[token] = sum of dy, dwpe[position] = sum of dy", 1e-5,
     "a chain of fp32 sums over the rows of a token"},
    {LS_ROW_HEAD, "head", "losses = -log softmax(h W^T)[target], dh, dw", 1e-5,
     "a chain of C fma, then exp within 2 units and a sum over V"},
    {LS_ROW_PREFERENCE, "preference", "loss of two answers, and the weight of each token in it",
     1e-6, "sums and losses in double, rounded once"},
    {LS_ROW_SUM, "sum", "out = sum of a segment, in double", 1e-7, "double on both sides"},
    {LS_ROW_ADD, "add", "out = a + b", 0, "one rounding, the same one"},
    {LS_ROW_SCALE, "scale", "x = value x", 0, "one rounding, the same one"},
    {LS_ROW_CAST, "cast", "to = from, to nearest even", 0, "one rounding, the same one"},
    {LS_ROW_FILL, "fill", "x = value", 0, "nothing is computed"},
    {LS_ROW_NORM2, "norm2", "norm of x, clip factor, first bad block", 1e-5,
     "128 fp32 chains of 128 squares per block; blocks in double"},
    {LS_ROW_ADAMW, "adamw", "m, v, w of AdamW", 1e-6,
     "about ten roundings; 1 / bias is a factor rounded once"},
    {LS_ROW_LION, "lion", "w -= lr (sign(b1 m + (1 - b1) g) + decay w), m", 1e-6, "four roundings"},
    {LS_ROW_SGD, "sgd", "m = momentum m + g, w -= lr m or lr (g + momentum m)", 1e-6,
     "five roundings"},
    {LS_ROW_LAMB, "lamb", "u, m, v of AdamW, w -= lr |w| / |u| u", 1e-5,
     "norms of 64 fp32 chains of 256 squares per piece; pieces in double"},
    {LS_ROW_MOMENTUM, "momentum", "m, and its look ahead", 1e-6, "three roundings"},
    {LS_ROW_MUON, "muon", "x = from, x / |x|, a I + b from + c x, or w -= lr scale x", 1e-6,
     "at most three roundings"},
    {LS_ROW_PACK, "pack", "w in the order in which products read it", 0, "nothing is computed"},
};

/* --- the tables ---------------------------------------------------------------------------------
 */

#define ROW_generic(upper, lower, args) .lower = ls_##lower##_row_generic,
#define ROW_avx2(upper, lower, args) .lower = ls_##lower##_row_avx2,
#define ROW_avx512(upper, lower, args) .lower = ls_##lower##_row_avx512,
#define ROW_reference(upper, lower, args) .lower = ls_ref_##lower,

#define LS_KERNELS(isa)                                                         \
    static int64_t scratch_##isa(ls_row row, const void *args, int threads)     \
    {                                                                           \
        switch (row) {                                                          \
        case LS_ROW_ATTENTION_BWD:                                              \
            return ls_attention_bwd_scratch_##isa(args, threads);               \
        case LS_ROW_HEAD:                                                       \
            return ls_head_scratch_##isa(args, threads);                        \
        case LS_ROW_NORM_BWD:                                                   \
            return ls_norm_bwd_scratch(args);                                   \
        case LS_ROW_EMBED_BWD:                                                  \
            return ls_embed_bwd_scratch(args);                                  \
        case LS_ROW_QKV_BWD:                                                    \
            return ls_qkv_bwd_scratch(args);                                    \
        default:                                                                \
            return 0;                                                           \
        }                                                                       \
    }                                                                           \
    static const ls_kernels kernels_##isa = {.name = #isa,                      \
                                             .pack = ls_pack_row_##isa,         \
                                             .scratch = scratch_##isa,          \
                                             .pack_bytes = ls_pack_bytes_##isa, \
                                             LS_KERNEL_ROWS(ROW_##isa)}

LS_KERNELS(generic);
#if defined(__x86_64__)
LS_KERNELS(avx2);
LS_KERNELS(avx512);
#endif

static int64_t scratch_reference(ls_row row, const void *args, int threads)
{
    switch (row) {
    case LS_ROW_HEAD:
        return ls_ref_head_scratch(args, threads);
    case LS_ROW_EMBED_BWD:
        return ls_embed_bwd_scratch(args);
    default:
        return 0;
    }
}

static const ls_kernels kernels_reference = {
    .name = "reference",
    .f16 = true,
    .scratch = scratch_reference,
    LS_KERNEL_ROWS(ROW_reference) /* all but pack */
};

/* --- the choice ---------------------------------------------------------------------------------
 */

/* What the CPU lacks for a table, or NULL. */
static const char *lacks_nothing(void)
{
    return NULL;
}

/* Best first. */
static const struct {
    const ls_kernels *kernels;
    const char *(*lacks)(void);
} tables[] = {
#if defined(__x86_64__)
    {&kernels_avx512, ls_isa_lacks_avx512},
    {&kernels_avx2, ls_isa_lacks_avx2},
#endif
    {&kernels_generic, lacks_nothing},
    {&kernels_reference, lacks_nothing},
};

/* The rows lie in the struct in the order of the enum. */
_Static_assert(offsetof(ls_kernels, pack) - offsetof(ls_kernels, linear_fwd) ==
                   LS_ROW_PACK * sizeof(void (*)(void)),
               "ls_kernels and ls_row disagree");

static void check_complete(const ls_kernels *kernels)
{
    for (int row = 0; row < LS_ROWS; row++) {
        void (*function)(void);
        memcpy(&function,
               (const char *)kernels + offsetof(ls_kernels, linear_fwd) +
                   (size_t)row * sizeof function,
               sizeof function);
        LS_BUG_IF(!function && (row != LS_ROW_PACK || kernels->pack_bytes),
                  "the \"%s\" kernels have no %s", kernels->name, ls_kernel_rows[row].name);
        LS_BUG_IF(ls_kernel_rows[row].row != (ls_row)row, "ls_kernel_rows[%d] is out of order",
                  row);
    }
    LS_BUG_IF(!kernels->scratch, "the \"%s\" kernels have no scratch", kernels->name);
}

static const ls_bf16_way way_of[LS_DOTS] = {[LS_DOT_OFF] = LS_BF16_WIDENED,
                                            [LS_DOT_AVX512] = LS_BF16_AVX512,
                                            [LS_DOT_AMX] = LS_BF16_AMX,
                                            [LS_DOT_EMULATE_AVX512] = LS_BF16_AVX512,
                                            [LS_DOT_EMULATE_AMX] = LS_BF16_AMX};

static bool multiplies_pairs(const ls_kernels *kernels)
{
    return strcmp(kernels->name, "avx512") == 0;
}

ls_bf16_way ls_kernel_bf16(const ls_kernels *kernels)
{
    return multiplies_pairs(kernels) ? way_of[ls_dot_chosen()] : LS_BF16_WIDENED;
}

/* What the variable names counts as all that there is. */
bool ls_kernel_bf16_has(const ls_kernels *kernels, ls_bf16_way way)
{
    static const ls_dot real[] = {LS_DOT_OFF, LS_DOT_AVX512, LS_DOT_AMX};
    const char *asked = getenv(LS_DOT_VARIABLE);

    if (way == LS_BF16_WIDENED || way == ls_kernel_bf16(kernels))
        return true;
    return multiplies_pairs(kernels) && (!asked || strcmp(asked, "auto") == 0) &&
           !ls_dot_obstacle(real[way]);
}

ls_status ls_kernel_bf16_take(const ls_kernels *kernels, ls_bf16_way way)
{
    static const ls_dot real[] = {LS_DOT_OFF, LS_DOT_AVX512, LS_DOT_AMX};

    if (way == ls_kernel_bf16(kernels))
        return LS_OK;
    if (setenv(LS_DOT_VARIABLE, ls_dot_name(real[way]), 1) != 0)
        return ls_fail_sys(LS_ENOMEM, "cannot set an environment variable");
    return ls_dot_choose();
}

ls_status ls_kernel_pick(const char *name, const ls_kernels **kernels_out)
{
    bool any = strcmp(name, "auto") == 0;

    for (size_t i = 0; i < LS_COUNT(tables); i++) {
        const char *lacks = tables[i].lacks();
        if (!any && strcmp(name, tables[i].kernels->name) != 0)
            continue;
        if (any && lacks)
            continue;
        if (lacks) {
            ls_status st =
                ls_fail(LS_EUSAGE, "cannot use the \"%s\" kernels: this CPU lacks %s", name, lacks);
            ls_err_hint("Use \"auto\", which takes the fastest kernels that this CPU can run.");
            return st;
        }
        check_complete(tables[i].kernels);
        if (ls_dot_choose() != LS_OK)
            return LS_EUSAGE;
        *kernels_out = tables[i].kernels;
        return LS_OK;
    }
    ls_status st = ls_fail(LS_EUSAGE, "there are no kernels named \"%s\"", name);
    ls_err_hint("The names are auto, avx512, avx2, generic and reference.");
    return st;
}

int ls_kernel_list(const ls_kernels **list_out, int most)
{
    int n = 0;

    for (size_t i = 0; i < LS_COUNT(tables) && n < most; i++) {
        if (tables[i].lacks())
            continue;
        check_complete(tables[i].kernels);
        list_out[n++] = tables[i].kernels;
    }
    return n;
}
