/* bench_prepare.c -- how each row of the kernel table is prepared and called.
 *
 * A row's buffers are taken when it is prepared and freed when it was measured, so that the largest
 * row alone decides how much memory is needed. They hold harmless numbers: none overflows. */
#include "kernel/bench.h"

#include "base/mem.h"
#include "base/time.h"

/* --- products -----------------------------------------------------------------------------------
 */

static ls_bench_product product_of(const ls_bench_dims *d, int i)
{
    const ls_bench_product all[LS_BENCH_PRODUCTS] = {
        {"qkv", d->C, 3 * d->C, LS_ACT_NONE, LS_ACT_NONE},
        {"proj", d->C, d->C, LS_ACT_NONE, LS_ACT_NONE},
        {"fc", d->C, d->F, LS_ACT_GELU, LS_ACT_NONE},
        {"out", d->F, d->C, LS_ACT_NONE, LS_ACT_GELU},
    };

    return all[i];
}

bool ls_bench_is_linear(ls_row row)
{
    return row == LS_ROW_LINEAR_FWD || row == LS_ROW_LINEAR_BWD_X || row == LS_ROW_LINEAR_BWD_W ||
           row == LS_ROW_PACK;
}

/* --- one case -----------------------------------------------------------------------------------
 */

static void *bytes_of(ls_bench *b, int64_t bytes)
{
    void *p = NULL;

    LS_BUG_IF(b->n_buffers == LS_BENCH_BUFFERS, "a row with more than %d buffers",
              LS_BENCH_BUFFERS);
    if (b->st == LS_OK)
        b->st = ls_device_alloc(b->device, ls_max_i64(bytes, 64), "bench buffer", &p);
    if (p)
        b->buffers[b->n_buffers++] = p, b->buffer_bytes += bytes;
    return p;
}

static void copy_in(ls_bench *b, void *to, const void *from, int64_t bytes)
{
    if (b->st != LS_OK)
        return;
    ls_stream_copy_in(b->stream, to, from, bytes);
    b->st = ls_stream_sync(b->stream, ls_time_now_ns() + 10 * LS_NS_PER_S);
}

/* Numbers of 0.01 to 0.03 and both signs, as floats and as twice as many bf16: a GPU that computes
 * with equal ones takes less power than it would in training, and is faster. */
static void fill_gpu(ls_bench *b, float *p, int64_t n)
{
    enum { PATTERN = 1 << 14 };
    uint16_t pattern[2 * PATTERN];
    int64_t have = ls_min_i64(n, PATTERN);
    uint32_t state = 1;

    for (int i = 0; i < 2 * PATTERN; i++) {
        state = state * 1664525u + 1013904223u;
        pattern[i] = (uint16_t)(0x3c00u | (state >> 16 & 0x80ffu));
    }
    copy_in(b, p, pattern, have * (int64_t)sizeof *p);
    for (; have < n; have *= 2)
        ls_stream_copy(b->stream, p + have, p, ls_min_i64(have, n - have) * (int64_t)sizeof *p);
}

/* n floats, or as many of the type in hand, of harmless values. */
static float *floats(ls_bench *b, int64_t n)
{
    float *p = bytes_of(b, n * (int64_t)sizeof *p);

    if (p && b->gpu)
        fill_gpu(b, p, n);
    else if (p)
        b->kernels->fill(b->stream, &(ls_fill){.x = p, .value = 0.01f, .n = n});
    return p;
}

/* n tokens spread over the vocabulary. */
static int32_t *tokens(ls_bench *b, int64_t n)
{
    int32_t *p = bytes_of(b, n * (int64_t)sizeof *p), block[256];

    for (int64_t first = 0; p && first < n; first += (int64_t)LS_COUNT(block)) {
        int64_t count = ls_min_i64((int64_t)LS_COUNT(block), n - first);
        for (int64_t i = 0; i < count; i++)
            block[i] = (int32_t)((first + i) * 7919 % b->d->V);
        copy_in(b, p + first, block, count * (int64_t)sizeof *block);
    }
    return p;
}

static const ls_step_state *state(ls_bench *b)
{
    const ls_step_state s = {.grad_scale = 1e-3f,
                             .lr = 1e-3f,
                             .beta1 = 0.9f,
                             .beta2 = 0.99f,
                             .eps = 1e-8f,
                             .bias1 = 0.1f,
                             .bias2 = 0.01f,
                             .clip = 1};
    ls_step_state *p = bytes_of(b, sizeof s);

    copy_in(b, p, &s, sizeof s);
    return p;
}

static int64_t rows_of(const ls_bench *b)
{
    return b->d->B * b->d->T;
}

/* The arguments of a row, for the union. */
#define ARGS(row, ...)       \
    b->args.row = (ls_##row) \
    {                        \
        __VA_ARGS__          \
    }

static void prepare_linear_fwd(ls_bench *b)
{
    const ls_bench_product *p = &b->product;
    int64_t M = rows_of(b);

    ARGS(linear_fwd, .x = floats(b, M * p->K), .w = floats(b, p->K * p->N), .b = floats(b, p->N),
         .y = floats(b, M * p->N), .z = p->act ? floats(b, M * p->N) : NULL, .M = M, .N = p->N,
         .K = p->K, .act = p->act);
}

static void prepare_linear_bwd_x(ls_bench *b)
{
    const ls_bench_product *p = &b->product;
    int64_t M = rows_of(b);

    ARGS(linear_bwd_x, .dy = floats(b, M * p->N), .w = floats(b, p->K * p->N),
         .z = p->below ? floats(b, M * p->K) : NULL, .dx = floats(b, M * p->K), .M = M, .N = p->N,
         .K = p->K, .act = p->below);
}

static void prepare_linear_bwd_w(ls_bench *b)
{
    const ls_bench_product *p = &b->product;
    int64_t M = rows_of(b);

    ARGS(linear_bwd_w, .x = floats(b, M * p->K), .dy = floats(b, M * p->N),
         .dw = floats(b, p->K * p->N), .db = floats(b, p->N), .M = M, .N = p->N, .K = p->K,
         .leaves = b->d->leaves);
}

/* Heads beside each other in rows of `wide` floats, from column `first` on. */
static ls_heads heads(const ls_bench *b, float *p, int64_t wide, int64_t first)
{
    return (ls_heads){.p = p ? (char *)p + first * ls_dtype_bytes(b->type) : NULL,
                      .batch = b->d->T * wide,
                      .time = wide,
                      .head = b->d->C / b->d->H};
}

static void prepare_qkv(ls_bench *b)
{
    int64_t M = rows_of(b), C = b->d->C, H = b->d->H;

    ARGS(qkv, .packed = floats(b, M * 3 * C), .q = heads(b, floats(b, M * C), C, 0),
         .k = heads(b, floats(b, M * C), C, 0), .v = heads(b, floats(b, M * C), C, 0),
         .rope = floats(b, b->d->T * C / H), .B = b->d->B, .T = b->d->T, .H = H, .Hkv = H,
         .D = C / H);
}

static void prepare_attention_fwd(ls_bench *b)
{
    int64_t M = rows_of(b), C = b->d->C, H = b->d->H;
    float *packed = floats(b, M * 3 * C);

    ARGS(attention_fwd, .q = heads(b, packed, 3 * C, 0), .k = heads(b, packed, 3 * C, C),
         .v = heads(b, packed, 3 * C, 2 * C), .o = heads(b, floats(b, M * C), C, 0),
         .lse = floats(b, M * H), .B = b->d->B, .T = b->d->T, .H = H, .Hkv = H, .D = C / H,
         .scale = 0.125f);
}

static void prepare_attention_bwd(ls_bench *b)
{
    int64_t M = rows_of(b), C = b->d->C, H = b->d->H;
    float *packed = floats(b, M * 3 * C), *grad = floats(b, M * 3 * C);

    ARGS(attention_bwd, .q = heads(b, packed, 3 * C, 0), .k = heads(b, packed, 3 * C, C),
         .v = heads(b, packed, 3 * C, 2 * C), .o = heads(b, floats(b, M * C), C, 0),
         .dout = heads(b, floats(b, M * C), C, 0), .dq = heads(b, grad, 3 * C, 0),
         .dk = heads(b, grad, 3 * C, C), .dv = heads(b, grad, 3 * C, 2 * C),
         .lse = floats(b, M * H), .B = b->d->B, .T = b->d->T, .H = H, .Hkv = H, .D = C / H,
         .scale = 0.125f, .any_order = true);
}

static void prepare_norm_fwd(ls_bench *b)
{
    int64_t M = rows_of(b), C = b->d->C;

    ARGS(norm_fwd, .stream = floats(b, M * C), .x = floats(b, M * C), .sum = floats(b, M * C),
         .y = floats(b, M * C), .w = floats(b, C), .b = floats(b, C), .mean = floats(b, M),
         .rstd = floats(b, M), .M = M, .C = C, .T = b->d->T, .eps = 1e-5f);
}

static void prepare_norm_bwd(ls_bench *b)
{
    int64_t M = rows_of(b), C = b->d->C;

    ARGS(norm_bwd, .dy = floats(b, M * C), .sum = floats(b, M * C), .w = floats(b, C),
         .mean = floats(b, M), .rstd = floats(b, M), .dsum = floats(b, M * C), .add_to_dsum = true,
         .dx = floats(b, M * C), .dw = floats(b, C), .db = floats(b, C), .M = M, .C = C,
         .T = b->d->T, .leaves = b->d->leaves);
}

static void prepare_act(ls_bench *b)
{
    int64_t M = rows_of(b), F = b->d->F;

    b->args.act = (ls_act_args){.act = LS_ACT_GELU,
                                .x = floats(b, M * F),
                                .y = floats(b, M * F),
                                .dy = floats(b, M * F),
                                .dx = floats(b, M * F),
                                .M = M,
                                .F = F};
}

static void prepare_embed_fwd(ls_bench *b)
{
    int64_t M = rows_of(b), C = b->d->C;

    ARGS(embed_fwd, .tokens = tokens(b, M), .wte = floats(b, b->d->V * C),
         .wpe = floats(b, b->d->T * C), .y = floats(b, M * C), .M = M, .C = C, .T = b->d->T,
         .V = b->d->V);
}

static void prepare_embed_bwd(ls_bench *b)
{
    int64_t M = rows_of(b), C = b->d->C;

    ARGS(embed_bwd, .tokens = tokens(b, M), .dy = floats(b, M * C), .dwte = floats(b, b->d->V * C),
         .dwpe = floats(b, b->d->T * C), .M = M, .C = C, .T = b->d->T, .V = b->d->V,
         .positions = b->d->T, .leaves = b->d->leaves);
}

static void prepare_head(ls_bench *b)
{
    int64_t M = rows_of(b), C = b->d->C, V = b->d->V;

    ARGS(head, .h = floats(b, M * C), .w = floats(b, V * C), .targets = tokens(b, M),
         .losses = floats(b, M), .dh = floats(b, M * C), .dw = floats(b, V * C), .state = state(b),
         .M = M, .C = C, .V = V, .leaves = b->d->leaves);
}

static void prepare_preference(ls_bench *b)
{
    int64_t B = b->d->B, T = b->d->T;
    void *tokens = bytes_of(b, B * T * 4); /* zeros: all targets count, one document */

    ARGS(preference, .objective = {.kind = LS_PREFERENCE_DPO, .beta = 0.1},
         .losses = floats(b, B * T), .targets = tokens, .start = tokens,
         .weights = floats(b, B * T), .numbers = floats(b, LS_PREFERENCE_NUMBERS * B), .B = B,
         .T = T, .stride = B);
}

static void prepare_sum(ls_bench *b)
{
    ARGS(sum, .x = floats(b, b->d->n), .out = bytes_of(b, 16 * 8), .n = b->d->n, .segments = 16);
}

static void prepare_add(ls_bench *b)
{
    float *sum = floats(b, b->d->n);

    ARGS(add, .a = sum, .b = floats(b, b->d->n), .out = sum, .n = b->d->n);
}

static void prepare_scale(ls_bench *b)
{
    ARGS(scale, .x = floats(b, b->d->n), .value = 1, .n = b->d->n);
}

static void prepare_cast(ls_bench *b)
{
    ARGS(cast, .from_type = LS_F32, .to_type = LS_BF16, .from = floats(b, b->d->n),
         .to = bytes_of(b, b->d->n * 2), .n = b->d->n);
}

static void prepare_fill(ls_bench *b)
{
    ARGS(fill, .x = floats(b, b->d->n), .value = 1, .n = b->d->n);
}

static void prepare_norm2(ls_bench *b)
{
    ARGS(norm2, .x = floats(b, b->d->n), .partials = floats(b, b->d->n / LS_NORM_BLOCK + 1),
         .result = bytes_of(b, sizeof(ls_norm_result)), .state = state(b), .n = b->d->n);
}

/* A gradient whose norm is 1. */
static const ls_norm_result *good_norm(ls_bench *b)
{
    const ls_norm_result result = {.norm = 1, .factor = 1, .bad_block = -1};
    void *there = bytes_of(b, sizeof result);

    copy_in(b, there, &result, sizeof result);
    return there;
}

/* One span over everything. */
static const ls_optimizer_span *one_span(ls_bench *b)
{
    const ls_optimizer_span span = {.count = b->d->n, .decay = 1, .rate = 1};
    void *there = bytes_of(b, sizeof span);

    copy_in(b, there, &span, sizeof span);
    return there;
}

static void prepare_optimizer_update(ls_bench *b)
{
    ARGS(optimizer_update, .w = floats(b, b->d->n), .m = floats(b, b->d->n),
         .v = floats(b, b->d->n), .grad = floats(b, b->d->n), .spans = one_span(b), .n_spans = 1,
         .state = state(b), .result = good_norm(b));
}

/* The first part, which has most of the work, on one tensor. */
static void prepare_lamb(ls_bench *b)
{
    int64_t n = b->d->n, count = (n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    const ls_lamb_tensor tensor = {.count = count, .adapts = true};
    ls_lamb_piece *pieces = ls_mem_array((size_t)count, sizeof *pieces);
    int64_t bytes = count * (int64_t)sizeof *pieces;
    void *tensors = bytes_of(b, sizeof tensor), *list = bytes_of(b, bytes);

    if (!pieces) {
        b->st = LS_ENOMEM;
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t first = i * LS_NORM_BLOCK, most = ls_min_i64(LS_NORM_BLOCK, n - first);
        pieces[i] = (ls_lamb_piece){.first = first,
                                    .count = most,
                                    .w_first = first,
                                    .g_first = first,
                                    .number = i,
                                    .decay = 1};
    }
    copy_in(b, tensors, &tensor, sizeof tensor);
    copy_in(b, list, pieces, bytes);
    ARGS(lamb, .w = floats(b, n), .m = floats(b, n), .v = floats(b, n), .grad = floats(b, n),
         .pieces = list, .tensors = tensors, .squares = floats(b, 2 * count),
         .ratios = floats(b, 1), .n_pieces = count, .n_tensors = 1, .n_squares = count, .n = n,
         .state = state(b), .result = good_norm(b));
    ls_mem_free(pieces);
}

static void prepare_momentum(ls_bench *b)
{
    ARGS(momentum, .m = floats(b, b->d->n), .grad = floats(b, b->d->n), .spans = one_span(b),
         .n_spans = 1, .n = b->d->n, .state = state(b), .result = good_norm(b));
}

/* The part that changes the weights, on a square that is nearly as large as the flat rows. */
static void prepare_muon(ls_bench *b)
{
    int64_t side = 1;

    while ((side + 1) * (side + 1) <= b->d->n)
        side++;
    ARGS(muon, .part = LS_MUON_STEP, .x = floats(b, side * side), .w = floats(b, side * side),
         .rows = side, .cols = side, .ld = side, .scale = 1, .state = state(b),
         .result = good_norm(b));
}

static void prepare_pack(ls_bench *b)
{
    const ls_bench_product *p = &b->product;
    ls_pack a = {.M = rows_of(b), .N = p->N, .K = p->K};

    a.w = floats(b, p->K * p->N);
    a.packed = bytes_of(b, b->kernels->pack_bytes(&a));
    b->args.pack = a;
}

/* --- the table ----------------------------------------------------------------------------------
 */

/* Each row: its kernel, and its arguments, which prepare_*() makes. */
#define ROWS(X)                                           \
    X(LS_ROW_LINEAR_FWD, linear_fwd, linear_fwd)          \
    X(LS_ROW_LINEAR_BWD_X, linear_bwd_x, linear_bwd_x)    \
    X(LS_ROW_LINEAR_BWD_W, linear_bwd_w, linear_bwd_w)    \
    X(LS_ROW_QKV_FWD, qkv_fwd, qkv)                       \
    X(LS_ROW_QKV_BWD, qkv_bwd, qkv)                       \
    X(LS_ROW_ATTENTION_FWD, attention_fwd, attention_fwd) \
    X(LS_ROW_ATTENTION_BWD, attention_bwd, attention_bwd) \
    X(LS_ROW_NORM_FWD, norm_fwd, norm_fwd)                \
    X(LS_ROW_NORM_BWD, norm_bwd, norm_bwd)                \
    X(LS_ROW_ACT_FWD, act_fwd, act)                       \
    X(LS_ROW_ACT_BWD, act_bwd, act)                       \
    X(LS_ROW_EMBED_FWD, embed_fwd, embed_fwd)             \
    X(LS_ROW_EMBED_BWD, embed_bwd, embed_bwd)             \
    X(LS_ROW_HEAD, head, head)                            \
    X(LS_ROW_PREFERENCE, preference, preference)          \
    X(LS_ROW_SUM, sum, sum)                               \
    X(LS_ROW_ADD, add, add)                               \
    X(LS_ROW_SCALE, scale, scale)                         \
    X(LS_ROW_CAST, cast, cast)                            \
    X(LS_ROW_FILL, fill, fill)                            \
    X(LS_ROW_NORM2, norm2, norm2)                         \
    X(LS_ROW_ADAMW, adamw, optimizer_update)              \
    X(LS_ROW_LION, lion, optimizer_update)                \
    X(LS_ROW_SGD, sgd, optimizer_update)                  \
    X(LS_ROW_LAMB, lamb, lamb)                            \
    X(LS_ROW_MOMENTUM, momentum, momentum)                \
    X(LS_ROW_MUON, muon, muon)                            \
    X(LS_ROW_PACK, pack, pack)

#define RUN(row, kernel, member)                        \
    static void run_##kernel(ls_bench *b)               \
    {                                                   \
        b->kernels->kernel(b->stream, &b->args.member); \
    }
ROWS(RUN)

#define CASE(row, kernel, member) [row] = {prepare_##member, run_##kernel},
static const struct {
    void (*prepare)(ls_bench *b);
    void (*run)(ls_bench *b);
} cases[LS_ROWS] = {ROWS(CASE)};

/* Rows with scratch get it once their shapes are known. */
static void prepare_scratch(ls_bench *b, ls_row row)
{
    int threads = ls_device_describe(b->device).threads;
    int64_t bytes = b->kernels->scratch(row, &b->args, threads);
    void *scratch = bytes > 0 ? bytes_of(b, bytes) : NULL;

    if (row == LS_ROW_NORM_BWD)
        b->args.norm_bwd.scratch = scratch;
    else if (row == LS_ROW_EMBED_BWD)
        b->args.embed_bwd.scratch = scratch;
    else if (row == LS_ROW_HEAD)
        b->args.head.scratch = scratch;
    else if (row == LS_ROW_ATTENTION_BWD)
        b->args.attention_bwd.scratch = scratch;
}

void ls_bench_prepare(ls_bench *b, ls_row row, int which)
{
    b->product = product_of(b->d, which);
    b->buffer_bytes = 0;
    memset(&b->args, 0, sizeof b->args); /* type 0 is LS_F32 */
    cases[row].prepare(b);
    if (row <= LS_ROW_HEAD) /* rows after it are for floats */
        b->args.type = b->type;
    prepare_scratch(b, row);
}

void ls_bench_run(ls_bench *b, ls_row row)
{
    cases[row].run(b);
}

void ls_bench_drop(ls_bench *b)
{
    for (int i = 0; i < b->n_buffers; i++)
        ls_device_free(b->device, b->buffers[i]);
    b->n_buffers = 0;
}
