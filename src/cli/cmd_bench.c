/* cmd_bench.c -- `lineshaft bench kernels`: every row of the kernel table at the shapes of a model.
 *
 * A row is prepared (buffers, arguments), run once to warm up, then again and again for about 0.2
 * s; the median counts, because a neighbour on the machine spoils a mean. What a row must compute
 * and move at least is a formula of the shape (kernel/cost.h), so that rates of different versions
 * compare. Products are held against the measured fma peak, everything else against the bandwidth
 * that a plain loop reaches over as much memory as the row works on, so that a row whose data stay
 * in a cache is held against that cache.
 *
 * A ceiling is measured right before and right after its row and the larger of the two counts. When
 * they are far apart, or the fma peak is far below the best one seen, something else ran on the
 * machine, and the row says so.
 *
 * On a GPU a row is timed by events around as many calls as take about 5 ms, and held against what
 * the card was measured to do (kernel/peak.h): a product of its own type, or a copy. */
#include "cli/cmd_bench.h"

#include <inttypes.h>
#include "base/json.h"
#include "base/mem.h"
#include "base/time.h"
#include "device/device.h"
#include "kernel/cost.h"
#include "kernel/kernel.h"
#include "kernel/peak.h"

/* --- shapes ------------------------------------------------------------------------------------
 */

typedef struct dims {
    const char *name;
    int64_t B, T, C, F, V, H;
    int64_t n;      /* elements of flat rows: add, cast, adamw, ... */
    int64_t leaves; /* of rows that sum over tokens, as ordered mode calls them */
} dims;

static const dims all_dims[] = {
    {"small", 12, 64, 128, 512, 256, 4, 1 << 20, 2}, /* nanoGPT's small task */
    {"10m", 12, 256, 384, 1536, 256, 6, 10 << 20, 2},
    {"124m", 4, 256, 768, 3072, 50304, 12, 16 << 20, 1}, /* flat rows: a part of the parameters */
    {"gpt2", 64, 1024, 768, 3072, 50304, 12, 124 << 20, 1}, /* the same, a batch for a GPU */
};

/* A product of a block: M rows of K inputs and N outputs. */
typedef struct product {
    const char *name;
    int64_t K, N;
    ls_act act;   /* rides on the product forward */
    ls_act below; /* made its input: rides on the gradient of the input */
} product;

enum { PRODUCTS = 4 };

static product product_of(const dims *d, int i)
{
    const product all[PRODUCTS] = {
        {"qkv", d->C, 3 * d->C, LS_ACT_NONE, LS_ACT_NONE},
        {"proj", d->C, d->C, LS_ACT_NONE, LS_ACT_NONE},
        {"fc", d->C, d->F, LS_ACT_GELU, LS_ACT_NONE},
        {"out", d->F, d->C, LS_ACT_NONE, LS_ACT_GELU},
    };

    return all[i];
}

/* Rows that are shown for each product. */
static bool is_linear(ls_row row)
{
    return row == LS_ROW_LINEAR_FWD || row == LS_ROW_LINEAR_BWD_X || row == LS_ROW_LINEAR_BWD_W ||
           row == LS_ROW_PACK;
}

/* --- one case -----------------------------------------------------------------------------------
 */

enum { MOST_BUFFERS = 24, MOST_RUNS = 2000 };

typedef struct bench {
    ls_device *device; /* owned */
    ls_stream *stream; /* owned */
    const ls_kernels *kernels;
    const dims *d;
    bool gpu;
    ls_dtype type;               /* of activations and weights */
    ls_peak_gpu peak;            /* of a GPU */
    ls_event *begin, *end;       /* of a GPU; owned */
    product product;             /* of the linear row in hand */
    double best_flops;           /* per second: the largest fma peak so far; 0: not measured */
    int n_shown, n_busy;         /* rows, and those during which the machine was busy */
    ls_status st;                /* sticky: the first allocation that failed */
    void *buffers[MOST_BUFFERS]; /* of the row in hand */
    int n_buffers;
    int64_t buffer_bytes;
    union {
        ls_dtype type; /* the first member of all that have one */
        ls_linear_fwd linear_fwd;
        ls_linear_bwd_x linear_bwd_x;
        ls_linear_bwd_w linear_bwd_w;
        ls_qkv qkv;
        ls_attention_fwd attention_fwd;
        ls_attention_bwd attention_bwd;
        ls_norm_fwd norm_fwd;
        ls_norm_bwd norm_bwd;
        ls_act_args act;
        ls_embed_fwd embed_fwd;
        ls_embed_bwd embed_bwd;
        ls_head head;
        ls_sum sum;
        ls_add add;
        ls_scale scale;
        ls_cast cast;
        ls_fill fill;
        ls_norm2 norm2;
        ls_adamw adamw;
        ls_lamb lamb;
        ls_momentum momentum;
        ls_muon muon;
        ls_pack pack;
    } args;
} bench;

static void *bytes_of(bench *b, int64_t bytes)
{
    void *p = NULL;

    LS_BUG_IF(b->n_buffers == MOST_BUFFERS, "a row with more than %d buffers", MOST_BUFFERS);
    if (b->st == LS_OK)
        b->st = ls_device_alloc(b->device, ls_max_i64(bytes, 64), "bench buffer", &p);
    if (p)
        b->buffers[b->n_buffers++] = p, b->buffer_bytes += bytes;
    return p;
}

static void copy_in(bench *b, void *to, const void *from, int64_t bytes)
{
    if (b->st != LS_OK)
        return;
    ls_stream_copy_in(b->stream, to, from, bytes);
    b->st = ls_stream_sync(b->stream, ls_time_now_ns() + 10 * LS_NS_PER_S);
}

/* Numbers of 0.01 to 0.03 and both signs, as floats and as twice as many bf16: a GPU that computes
 * with equal ones takes less power than it would in training, and is faster. */
static void fill_gpu(bench *b, float *p, int64_t n)
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
static float *floats(bench *b, int64_t n)
{
    float *p = bytes_of(b, n * (int64_t)sizeof *p);

    if (p && b->gpu)
        fill_gpu(b, p, n);
    else if (p)
        b->kernels->fill(b->stream, &(ls_fill){.x = p, .value = 0.01f, .n = n});
    return p;
}

/* n tokens spread over the vocabulary. */
static int32_t *tokens(bench *b, int64_t n)
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

static const ls_step_state *state(bench *b)
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

static int64_t rows_of(const bench *b)
{
    return b->d->B * b->d->T;
}

static void prepare_linear_fwd(bench *b)
{
    const product *p = &b->product;
    int64_t M = rows_of(b);

    b->args.linear_fwd = (ls_linear_fwd){.x = floats(b, M * p->K),
                                         .w = floats(b, p->K * p->N),
                                         .b = floats(b, p->N),
                                         .y = floats(b, M * p->N),
                                         .z = p->act ? floats(b, M * p->N) : NULL,
                                         .M = M,
                                         .N = p->N,
                                         .K = p->K,
                                         .act = p->act};
}

static void prepare_linear_bwd_x(bench *b)
{
    const product *p = &b->product;
    int64_t M = rows_of(b);

    b->args.linear_bwd_x = (ls_linear_bwd_x){.dy = floats(b, M * p->N),
                                             .w = floats(b, p->K * p->N),
                                             .z = p->below ? floats(b, M * p->K) : NULL,
                                             .dx = floats(b, M * p->K),
                                             .M = M,
                                             .N = p->N,
                                             .K = p->K,
                                             .act = p->below};
}

static void prepare_linear_bwd_w(bench *b)
{
    const product *p = &b->product;
    int64_t M = rows_of(b);

    b->args.linear_bwd_w = (ls_linear_bwd_w){.x = floats(b, M * p->K),
                                             .dy = floats(b, M * p->N),
                                             .dw = floats(b, p->K * p->N),
                                             .db = floats(b, p->N),
                                             .M = M,
                                             .N = p->N,
                                             .K = p->K,
                                             .leaves = b->d->leaves};
}

/* Heads beside each other in rows of `wide` floats, from column `first` on. */
static ls_heads heads(const bench *b, float *p, int64_t wide, int64_t first)
{
    return (ls_heads){.p = p ? (char *)p + first * ls_dtype_bytes(b->type) : NULL,
                      .batch = b->d->T * wide,
                      .time = wide,
                      .head = b->d->C / b->d->H};
}

static void prepare_qkv(bench *b)
{
    int64_t M = rows_of(b), C = b->d->C, H = b->d->H;

    b->args.qkv = (ls_qkv){.packed = floats(b, M * 3 * C),
                           .q = heads(b, floats(b, M * C), C, 0),
                           .k = heads(b, floats(b, M * C), C, 0),
                           .v = heads(b, floats(b, M * C), C, 0),
                           .rope = floats(b, b->d->T * C / H),
                           .B = b->d->B,
                           .T = b->d->T,
                           .H = H,
                           .Hkv = H,
                           .D = C / H};
}

static void prepare_attention_fwd(bench *b)
{
    int64_t M = rows_of(b), C = b->d->C, H = b->d->H;
    float *packed = floats(b, M * 3 * C);

    b->args.attention_fwd = (ls_attention_fwd){.q = heads(b, packed, 3 * C, 0),
                                               .k = heads(b, packed, 3 * C, C),
                                               .v = heads(b, packed, 3 * C, 2 * C),
                                               .o = heads(b, floats(b, M * C), C, 0),
                                               .lse = floats(b, M * H),
                                               .B = b->d->B,
                                               .T = b->d->T,
                                               .H = H,
                                               .Hkv = H,
                                               .D = C / H,
                                               .scale = 0.125f};
}

static void prepare_attention_bwd(bench *b)
{
    int64_t M = rows_of(b), C = b->d->C, H = b->d->H;
    float *packed = floats(b, M * 3 * C), *grad = floats(b, M * 3 * C);
    ls_attention_bwd *a = &b->args.attention_bwd;

    *a = (ls_attention_bwd){.q = heads(b, packed, 3 * C, 0),
                            .k = heads(b, packed, 3 * C, C),
                            .v = heads(b, packed, 3 * C, 2 * C),
                            .o = heads(b, floats(b, M * C), C, 0),
                            .dout = heads(b, floats(b, M * C), C, 0),
                            .dq = heads(b, grad, 3 * C, 0),
                            .dk = heads(b, grad, 3 * C, C),
                            .dv = heads(b, grad, 3 * C, 2 * C),
                            .lse = floats(b, M * H),
                            .B = b->d->B,
                            .T = b->d->T,
                            .H = H,
                            .Hkv = H,
                            .D = C / H,
                            .scale = 0.125f,
                            .any_order = true};
}

static void prepare_norm_fwd(bench *b)
{
    int64_t M = rows_of(b), C = b->d->C;

    b->args.norm_fwd = (ls_norm_fwd){.stream = floats(b, M * C),
                                     .x = floats(b, M * C),
                                     .sum = floats(b, M * C),
                                     .y = floats(b, M * C),
                                     .w = floats(b, C),
                                     .b = floats(b, C),
                                     .mean = floats(b, M),
                                     .rstd = floats(b, M),
                                     .M = M,
                                     .C = C,
                                     .T = b->d->T,
                                     .eps = 1e-5f};
}

static void prepare_norm_bwd(bench *b)
{
    int64_t M = rows_of(b), C = b->d->C;

    b->args.norm_bwd = (ls_norm_bwd){.dy = floats(b, M * C),
                                     .sum = floats(b, M * C),
                                     .w = floats(b, C),
                                     .mean = floats(b, M),
                                     .rstd = floats(b, M),
                                     .dsum = floats(b, M * C),
                                     .add_to_dsum = true,
                                     .dx = floats(b, M * C),
                                     .dw = floats(b, C),
                                     .db = floats(b, C),
                                     .M = M,
                                     .C = C,
                                     .T = b->d->T,
                                     .leaves = b->d->leaves};
}

static void prepare_act(bench *b)
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

static void prepare_embed_fwd(bench *b)
{
    int64_t M = rows_of(b), C = b->d->C;

    b->args.embed_fwd = (ls_embed_fwd){.tokens = tokens(b, M),
                                       .wte = floats(b, b->d->V * C),
                                       .wpe = floats(b, b->d->T * C),
                                       .y = floats(b, M * C),
                                       .M = M,
                                       .C = C,
                                       .T = b->d->T,
                                       .V = b->d->V};
}

static void prepare_embed_bwd(bench *b)
{
    int64_t M = rows_of(b), C = b->d->C;

    b->args.embed_bwd = (ls_embed_bwd){.tokens = tokens(b, M),
                                       .dy = floats(b, M * C),
                                       .dwte = floats(b, b->d->V * C),
                                       .dwpe = floats(b, b->d->T * C),
                                       .M = M,
                                       .C = C,
                                       .T = b->d->T,
                                       .V = b->d->V,
                                       .positions = b->d->T,
                                       .leaves = b->d->leaves};
}

static void prepare_head(bench *b)
{
    int64_t M = rows_of(b), C = b->d->C, V = b->d->V;

    b->args.head = (ls_head){.h = floats(b, M * C),
                             .w = floats(b, V * C),
                             .targets = tokens(b, M),
                             .losses = floats(b, M),
                             .dh = floats(b, M * C),
                             .dw = floats(b, V * C),
                             .state = state(b),
                             .M = M,
                             .C = C,
                             .V = V,
                             .leaves = b->d->leaves};
}

static void prepare_sum(bench *b)
{
    b->args.sum =
        (ls_sum){.x = floats(b, b->d->n), .out = bytes_of(b, 16 * 8), .n = b->d->n, .segments = 16};
}

static void prepare_add(bench *b)
{
    float *sum = floats(b, b->d->n);

    b->args.add = (ls_add){.a = sum, .b = floats(b, b->d->n), .out = sum, .n = b->d->n};
}

static void prepare_scale(bench *b)
{
    b->args.scale = (ls_scale){.x = floats(b, b->d->n), .value = 1, .n = b->d->n};
}

static void prepare_cast(bench *b)
{
    b->args.cast = (ls_cast){.from_type = LS_F32,
                             .to_type = LS_BF16,
                             .from = floats(b, b->d->n),
                             .to = bytes_of(b, b->d->n * 2),
                             .n = b->d->n};
}

static void prepare_fill(bench *b)
{
    b->args.fill = (ls_fill){.x = floats(b, b->d->n), .value = 1, .n = b->d->n};
}

static void prepare_norm2(bench *b)
{
    b->args.norm2 = (ls_norm2){.x = floats(b, b->d->n),
                               .partials = floats(b, b->d->n / LS_NORM_BLOCK + 1),
                               .result = bytes_of(b, sizeof(ls_norm_result)),
                               .state = state(b),
                               .n = b->d->n};
}

/* A gradient whose norm is 1. */
static const ls_norm_result *good_norm(bench *b)
{
    const ls_norm_result result = {.norm = 1, .factor = 1, .bad_block = -1};
    void *there = bytes_of(b, sizeof result);

    copy_in(b, there, &result, sizeof result);
    return there;
}

/* One span over everything. */
static const ls_adamw_span *one_span(bench *b)
{
    const ls_adamw_span span = {.count = b->d->n, .decay = 1, .rate = 1};
    void *there = bytes_of(b, sizeof span);

    copy_in(b, there, &span, sizeof span);
    return there;
}

static void prepare_adamw(bench *b)
{
    b->args.adamw = (ls_adamw){.w = floats(b, b->d->n),
                               .m = floats(b, b->d->n),
                               .v = floats(b, b->d->n),
                               .grad = floats(b, b->d->n),
                               .spans = one_span(b),
                               .n_spans = 1,
                               .state = state(b),
                               .result = good_norm(b)};
}

/* The first part, which has most of the work, on one tensor. */
static void prepare_lamb(bench *b)
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
    b->args.lamb = (ls_lamb){.w = floats(b, n),
                             .m = floats(b, n),
                             .v = floats(b, n),
                             .grad = floats(b, n),
                             .pieces = list,
                             .tensors = tensors,
                             .squares = floats(b, 2 * count),
                             .ratios = floats(b, 1),
                             .n_pieces = count,
                             .n_tensors = 1,
                             .n_squares = count,
                             .n = n,
                             .state = state(b),
                             .result = good_norm(b)};
    ls_mem_free(pieces);
}

static void prepare_momentum(bench *b)
{
    b->args.momentum = (ls_momentum){.m = floats(b, b->d->n),
                                     .grad = floats(b, b->d->n),
                                     .spans = one_span(b),
                                     .n_spans = 1,
                                     .n = b->d->n,
                                     .state = state(b),
                                     .result = good_norm(b)};
}

/* The part that changes the weights, on a square that is nearly as large as the flat rows. */
static void prepare_muon(bench *b)
{
    int64_t side = 1;

    while ((side + 1) * (side + 1) <= b->d->n)
        side++;
    b->args.muon = (ls_muon){.part = LS_MUON_STEP,
                             .x = floats(b, side * side),
                             .w = floats(b, side * side),
                             .rows = side,
                             .cols = side,
                             .ld = side,
                             .scale = 1,
                             .state = state(b),
                             .result = good_norm(b)};
}

static void prepare_pack(bench *b)
{
    const product *p = &b->product;
    ls_pack a = {.M = rows_of(b), .N = p->N, .K = p->K};

    a.w = floats(b, p->K * p->N);
    a.packed = bytes_of(b, b->kernels->pack_bytes(&a));
    b->args.pack = a;
}

/* --- the table ----------------------------------------------------------------------------------
 */

#define RUN(field, member)                             \
    static void run_##field(bench *b)                  \
    {                                                  \
        b->kernels->field(b->stream, &b->args.member); \
    }
RUN(linear_fwd, linear_fwd)
RUN(linear_bwd_x, linear_bwd_x)
RUN(linear_bwd_w, linear_bwd_w)
RUN(qkv_fwd, qkv)
RUN(qkv_bwd, qkv)
RUN(attention_fwd, attention_fwd)
RUN(attention_bwd, attention_bwd)
RUN(norm_fwd, norm_fwd)
RUN(norm_bwd, norm_bwd)
RUN(act_fwd, act)
RUN(act_bwd, act)
RUN(embed_fwd, embed_fwd)
RUN(embed_bwd, embed_bwd)
RUN(head, head)
RUN(sum, sum)
RUN(add, add)
RUN(scale, scale)
RUN(cast, cast)
RUN(fill, fill)
RUN(norm2, norm2)
RUN(adamw, adamw)
RUN(lamb, lamb)
RUN(momentum, momentum)
RUN(muon, muon)
RUN(pack, pack)

static const struct {
    void (*prepare)(bench *b);
    void (*run)(bench *b);
} cases[LS_ROWS] = {
    [LS_ROW_LINEAR_FWD] = {prepare_linear_fwd, run_linear_fwd},
    [LS_ROW_LINEAR_BWD_X] = {prepare_linear_bwd_x, run_linear_bwd_x},
    [LS_ROW_LINEAR_BWD_W] = {prepare_linear_bwd_w, run_linear_bwd_w},
    [LS_ROW_QKV_FWD] = {prepare_qkv, run_qkv_fwd},
    [LS_ROW_QKV_BWD] = {prepare_qkv, run_qkv_bwd},
    [LS_ROW_ATTENTION_FWD] = {prepare_attention_fwd, run_attention_fwd},
    [LS_ROW_ATTENTION_BWD] = {prepare_attention_bwd, run_attention_bwd},
    [LS_ROW_NORM_FWD] = {prepare_norm_fwd, run_norm_fwd},
    [LS_ROW_NORM_BWD] = {prepare_norm_bwd, run_norm_bwd},
    [LS_ROW_ACT_FWD] = {prepare_act, run_act_fwd},
    [LS_ROW_ACT_BWD] = {prepare_act, run_act_bwd},
    [LS_ROW_EMBED_FWD] = {prepare_embed_fwd, run_embed_fwd},
    [LS_ROW_EMBED_BWD] = {prepare_embed_bwd, run_embed_bwd},
    [LS_ROW_HEAD] = {prepare_head, run_head},
    [LS_ROW_SUM] = {prepare_sum, run_sum},
    [LS_ROW_ADD] = {prepare_add, run_add},
    [LS_ROW_SCALE] = {prepare_scale, run_scale},
    [LS_ROW_CAST] = {prepare_cast, run_cast},
    [LS_ROW_FILL] = {prepare_fill, run_fill},
    [LS_ROW_NORM2] = {prepare_norm2, run_norm2},
    [LS_ROW_ADAMW] = {prepare_adamw, run_adamw},
    [LS_ROW_LAMB] = {prepare_lamb, run_lamb},
    [LS_ROW_MOMENTUM] = {prepare_momentum, run_momentum},
    [LS_ROW_MUON] = {prepare_muon, run_muon},
    [LS_ROW_PACK] = {prepare_pack, run_pack},
};

/* Rows with scratch get it once their shapes are known. */
static void prepare_scratch(bench *b, ls_row row)
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

/* --- measuring ----------------------------------------------------------------------------------
 */

static int compare_ns(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

/* The median time of one call in seconds, by events around several. */
static ls_status measure_gpu(bench *b, ls_row row, double *seconds_out)
{
    const int64_t enough_ns = 200 * LS_NS_PER_MS, group_ns = 5 * LS_NS_PER_MS;
    int64_t times[MOST_RUNS], spent = 0, calls = 1;
    ls_status st = LS_OK;
    int n = 0;

    for (int i = -2; i < MOST_RUNS && (n < 3 || spent < enough_ns); i++) {
        double ms = 0;
        ls_event_record(b->begin, b->stream);
        for (int64_t k = 0; k < calls; k++)
            cases[row].run(b);
        ls_event_record(b->end, b->stream);
        LS_TRY(st, ls_stream_sync(b->stream, ls_time_now_ns() + 600 * LS_NS_PER_S), out);
        LS_TRY(st, ls_event_between(b->begin, b->end, &ms), out);
        int64_t ns = ls_max_i64((int64_t)(ms * (double)LS_NS_PER_MS), calls);
        if (i == -1) /* the first warms up, the second says how many make a group */
            calls = ls_max_i64(1, ls_min_i64(group_ns / ns, 1000));
        if (i < 0)
            continue;
        times[n++] = ns / calls;
        spent += ns;
    }
    qsort(times, (size_t)n, sizeof *times, compare_ns);
    *seconds_out = (double)times[n / 2] / 1e9;
out:
    return st;
}

/* The median time of one call in seconds. */
static ls_status measure(bench *b, ls_row row, double *seconds_out)
{
    const int64_t enough_ns = 200 * LS_NS_PER_MS;
    int64_t times[MOST_RUNS], spent = 0;
    int n = 0;

    for (int i = -1; i < MOST_RUNS && (n < 3 || spent < enough_ns); i++) {
        int64_t start = ls_time_now_ns();
        cases[row].run(b);
        ls_status st = ls_stream_sync(b->stream, start + 600 * LS_NS_PER_S);
        if (st != LS_OK)
            return st;
        int64_t ns = ls_time_now_ns() - start;
        if (i < 0 && ns < 5 * enough_ns) /* the first warms up; a very slow one counts */
            continue;
        times[n++] = ns;
        spent += ns;
        if (ns >= 5 * enough_ns)
            break;
    }
    qsort(times, (size_t)n, sizeof *times, compare_ns);
    *seconds_out = (double)times[n / 2] / 1e9;
    return LS_OK;
}

typedef struct figure {
    ls_row row;
    const char *product; /* of a linear row; otherwise NULL */
    double seconds, flops, bytes;
    int64_t working_bytes; /* what a row that is not a product works on */
    double ceiling;        /* operations or bytes per second; 0 when it could not be measured */
    double share;          /* of the ceiling */
    bool busy;             /* something else ran on the machine */
} figure;

static ls_peak_traffic traffic_of(ls_row row)
{
    switch (row) {
    case LS_ROW_SUM:
    case LS_ROW_NORM2:
        return LS_PEAK_READ;
    case LS_ROW_FILL:
        return LS_PEAK_WRITE;
    case LS_ROW_SCALE:
    case LS_ROW_ADAMW: /* four read, three of them written */
    case LS_ROW_LAMB:
    case LS_ROW_MOMENTUM:
    case LS_ROW_MUON:
        return LS_PEAK_UPDATE;
    default:
        return LS_PEAK_ADD;
    }
}

static double ceiling_of(const bench *b, const figure *f)
{
    if (b->gpu && f->flops > 0)
        return b->type == LS_BF16 ? b->peak.bf16_flops : b->peak.f32_flops;
    if (b->gpu)
        return b->peak.bytes;
    if (f->flops > 0)
        return ls_peak_flops(b->device, b->kernels->name);
    return ls_peak_bytes(b->device, b->kernels->name, traffic_of(f->row), f->working_bytes);
}

/* Where a row's ceiling comes from, for people. */
static const char *level_of(const bench *b, const figure *f)
{
    if (b->gpu)
        return f->flops <= 0 ? "memory" : b->type == LS_BF16 ? "bf16" : "fp32";
    if (f->flops > 0)
        return "fma";
    return ls_peak_level(f->working_bytes, ls_device_describe(b->device).threads);
}

static void judge(bench *b, figure *f, double before, double after)
{
    double low = before < after ? before : after;

    f->ceiling = before > after ? before : after;
    f->share = f->ceiling > 0 ? (f->flops + f->bytes) / f->seconds / f->ceiling : 0;
    f->busy = low < 0.85 * f->ceiling;
    if (f->flops > 0) {
        b->best_flops = f->ceiling > b->best_flops ? f->ceiling : b->best_flops;
        f->busy = f->busy || f->ceiling < 0.9 * b->best_flops;
    }
    b->n_shown++;
    b->n_busy += f->busy;
}

/* Prepare, measure and free one row, or one product of it. */
static ls_status bench_row(bench *b, ls_row row, int which, figure *figure_out)
{
    figure f = {.row = row};
    double before = 0;
    ls_status st;

    b->product = product_of(b->d, which);
    if (is_linear(row))
        f.product = b->product.name;
    b->buffer_bytes = 0;
    memset(&b->args, 0, sizeof b->args); /* type 0 is LS_F32 */
    cases[row].prepare(b);
    if (row <= LS_ROW_HEAD) /* rows after it are for floats */
        b->args.type = b->type;
    prepare_scratch(b, row);
    ls_cost cost = ls_cost_of(row, &b->args, b->d->n);
    f.flops = cost.flops;
    f.bytes = cost.bytes;
    /* Of a large table only the rows in use count; in place, a buffer counts once. */
    f.working_bytes = ls_min_i64(b->buffer_bytes, (int64_t)f.bytes);
    st = b->st;
    if (st == LS_OK) {
        before = ceiling_of(b, &f);
        st = b->gpu ? measure_gpu(b, row, &f.seconds) : measure(b, row, &f.seconds);
    }
    for (int i = 0; i < b->n_buffers; i++)
        ls_device_free(b->device, b->buffers[i]);
    b->n_buffers = 0;
    if (st != LS_OK)
        return st;
    judge(b, &f, before, ceiling_of(b, &f));
    *figure_out = f;
    return LS_OK;
}

/* --- the command --------------------------------------------------------------------------------
 */

static void show_head(bench *b)
{
    ls_device_info info = ls_device_describe(b->device);

    printf("%s, %s kernels\nshape %s (B %" PRId64 ", T %" PRId64 ", C %" PRId64 ", F %" PRId64
           ", V %" PRId64 ", H %" PRId64 ")\n",
           info.name, b->kernels->name, b->d->name, b->d->B, b->d->T, b->d->C, b->d->F, b->d->V,
           b->d->H);
    if (b->gpu) {
        printf(
            "measured peaks: %.1f TFLOP/s in bf16 (%.1f for a while), %.1f in fp32, %.2f TB/s\n\n",
            b->peak.bf16_flops / 1e12, b->peak.bf16_held / 1e12, b->peak.f32_flops / 1e12,
            b->peak.bytes / 1e12);
    } else {
        b->best_flops = ls_peak_flops(b->device, b->kernels->name);
        printf("measured peaks: %.1f GFLOP/s, %.1f GB/s from memory\n\n", b->best_flops / 1e9,
               ls_peak_bandwidth(b->device) / 1e9);
    }
    printf("%-14s %-5s %10s %15s %8s %16s  %s\n", "row", "", "ms", "rate", "share", "of ceiling",
           "formula");
}

static void show_figure(const bench *b, const figure *f)
{
    char rate[32], ceiling[32];

    double unit = b->gpu ? 1e12 : 1e9;

    snprintf(rate, sizeof rate, "%.*f %c%s", b->gpu && f->flops <= 0 ? 2 : 1,
             (f->flops + f->bytes) / f->seconds / unit, b->gpu ? 'T' : 'G',
             f->flops > 0 ? "FLOP/s" : "B/s");
    snprintf(ceiling, sizeof ceiling, "%.1f %s", f->ceiling / unit, level_of(b, f));
    printf("%-14s %-5s %10.3f %15s %5.0f %%%s %16s  %s\n", ls_kernel_rows[f->row].name,
           f->product ? f->product : "", f->seconds * 1e3, rate, f->share * 100,
           f->busy ? "*" : " ", ceiling, ls_kernel_rows[f->row].formula);
    fflush(stdout);
}

static void show_foot(const bench *b)
{
    if (b->n_busy > 0)
        printf("\n* the machine was busy: the ceiling moved while %d of %d rows were measured; "
               "their figures are too low\n",
               b->n_busy, b->n_shown);
}

static ls_status show_json(const bench *b, const figure *f)
{
    ls_status st;
    ls_json json;
    ls_str line;

    ls_str_init(&line);
    ls_json_begin(&json, &line);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "event", "bench");
    ls_json_put_str(&json, "row", ls_kernel_rows[f->row].name);
    if (f->product)
        ls_json_put_str(&json, "product", f->product);
    ls_json_put_str(&json, "kernels", b->kernels->name);
    ls_json_put_int(&json, "threads", ls_device_describe(b->device).threads);
    ls_json_put_str(&json, "shape", b->d->name);
    ls_json_put_num(&json, "ms", f->seconds * 1e3);
    if (f->flops > 0)
        ls_json_put_num(&json, "flops_per_s", f->flops / f->seconds);
    else
        ls_json_put_num(&json, "bytes_per_s", f->bytes / f->seconds);
    ls_json_put_num(&json, "peak", f->ceiling);
    ls_json_put_str(&json, "level", level_of(b, f));
    if (f->flops <= 0)
        ls_json_put_int(&json, "working_bytes", f->working_bytes);
    ls_json_put_num(&json, "share", f->share);
    ls_json_put_bool(&json, "busy", f->busy);
    ls_json_close(&json);
    st = ls_str_status(&line);
    if (st == LS_OK) {
        puts(line.p);
        fflush(stdout);
    }
    ls_str_release(&line);
    return st;
}

static ls_status find_dims(const char *name, const dims **dims_out)
{
    for (size_t i = 0; i < LS_COUNT(all_dims); i++)
        if (strcmp(all_dims[i].name, name) == 0) {
            *dims_out = &all_dims[i];
            return LS_OK;
        }
    ls_status st = ls_fail(LS_EUSAGE, "there is no shape named \"%s\"", name);
    ls_err_hint("The shapes are small, 10m, 124m and gpt2.");
    return st;
}

/* LS_ROWS stands for all rows. */
static ls_status find_row(const char *name, ls_row *row_out)
{
    int near = 0;

    if (!name) {
        *row_out = LS_ROWS;
        return LS_OK;
    }
    for (int i = 0; i < LS_ROWS; i++) {
        if (strcmp(ls_kernel_rows[i].name, name) == 0) {
            *row_out = (ls_row)i;
            return LS_OK;
        }
        if (ls_str_distance(name, ls_kernel_rows[i].name) <
            ls_str_distance(name, ls_kernel_rows[near].name))
            near = i;
    }
    ls_status st = ls_fail(LS_EUSAGE, "there is no kernel row named \"%s\"", name);
    ls_err_hint("The nearest name is \"%s\"; without --row all are shown.",
                ls_kernel_rows[near].name);
    return st;
}

static ls_status find_threads(const char *text, int *threads_out)
{
    char *end = NULL;
    long n = text ? strtol(text, &end, 10) : 0;

    if (text && (end == text || *end || n < 1 || n > 1024)) {
        ls_status st = ls_fail(LS_EUSAGE, "--threads is \"%s\", not a number from 1 to 1024", text);
        ls_err_hint("Leave it out to use every core that this process may use.");
        return st;
    }
    *threads_out = (int)n;
    return LS_OK;
}

/* The device, its kernels and the type of the numbers; on a GPU what it can do. */
static ls_status open_device(bench *b, const ls_args *args, int threads)
{
    const char *kind = ls_args_value(args, "device"), *isa = ls_args_value(args, "isa");
    const char *precision = ls_args_value(args, "precision");
    ls_status st = LS_OK;

    b->gpu = kind && strcmp(kind, "cuda") == 0;
    b->type = b->gpu ? LS_BF16 : LS_F32;
    if (precision) {
        b->type = strcmp(precision, "bf16") == 0 ? LS_BF16 : LS_F32;
        if (b->type == LS_F32 && strcmp(precision, "fp32") != 0)
            return ls_fail(LS_EUSAGE, "--precision is \"%s\", not fp32 or bf16", precision);
        if (b->type == LS_BF16 && !b->gpu) {
            st = ls_fail(LS_EUSAGE, "--precision bf16 is for a GPU");
            ls_err_hint("Add --device cuda.");
            return st;
        }
    }
    LS_TRY(st, ls_device_open(&b->device, kind ? kind : "cpu", threads), out);
    LS_TRY(st, ls_kernel_for(b->device, isa ? isa : "auto", &b->kernels), out);
    LS_TRY(st, ls_stream_create(&b->stream, b->device), out);
    if (!b->gpu)
        return LS_OK;
    LS_TRY(st, ls_event_create(&b->begin, b->device), out);
    LS_TRY(st, ls_event_create(&b->end, b->device), out);
    b->peak = ls_peak_gpu_of(b->device, b->kernels);
out:
    return st;
}

static ls_status bench_rows(bench *b, ls_row only, bool json)
{
    ls_status st = LS_OK;

    if (!json)
        show_head(b);
    for (int row = 0; row < LS_ROWS && st == LS_OK; row++) {
        int n = is_linear((ls_row)row) ? PRODUCTS : 1;
        if (only != LS_ROWS && row != (int)only)
            continue;
        if (row == LS_ROW_PACK && !b->kernels->pack) {
            if (only == LS_ROW_PACK)
                st = ls_fail(LS_EUSAGE,
                             "the \"%s\" kernels have no pack row: they read weights "
                             "as they are",
                             b->kernels->name);
            continue;
        }
        for (int i = 0; i < n && st == LS_OK; i++) {
            figure f;
            st = bench_row(b, (ls_row)row, i, &f);
            if (st == LS_OK && json)
                st = show_json(b, &f);
            else if (st == LS_OK)
                show_figure(b, &f);
        }
    }
    if (st == LS_OK && !json)
        show_foot(b);
    return st;
}

static ls_status run_kernels(const ls_args *args)
{
    const char *shape = ls_args_value(args, "shape"), *kind = ls_args_value(args, "device");
    bool gpu = kind && strcmp(kind, "cuda") == 0;
    bench b = {.st = LS_OK};
    ls_row only = LS_ROWS;
    int threads = 0;
    ls_status st;

    LS_TRY(st, find_row(ls_args_value(args, "row"), &only), out);
    LS_TRY(st, find_dims(shape ? shape : gpu ? "gpt2" : "10m", &b.d), out);
    LS_TRY(st, find_threads(ls_args_value(args, "threads"), &threads), out);
    LS_TRY(st, open_device(&b, args, threads), out);
    LS_TRY(st, bench_rows(&b, only, ls_args_has(args, "json")), out);
out:
    ls_event_free(b.begin);
    ls_event_free(b.end);
    ls_stream_free(b.stream);
    ls_device_close(b.device);
    return st;
}

static const ls_flag kernel_flags[] = {
    {"device", 0, "NAME", false, "Where to measure: cpu (default) or cuda."},
    {"precision", 0, "NAME", false,
     "On a GPU, the type of activations and weights: bf16 (default) or fp32."},
    {"isa", 0, "NAME", false,
     "Kernels to measure: auto (default), avx512, avx2, generic or reference."},
    {"threads", 0, "N", false, "Threads to use; default: every core this process may use."},
    {"row", 0, "NAME", false, "Measure this row only, for example norm_fwd."},
    {"shape", 0, "NAME", false,
     "Model shape: small, 10m (default), 124m, which needs about 500 MB, or gpt2 (default on a "
     "GPU): the same model with 64 sequences of 1024."},
    {"json", 'j', NULL, false, "Print one JSON object a line."},
    {0},
};

static const ls_command bench_kernels = {
    .name = "kernels",
    .summary = "time every kernel row at the shapes of a model",
    .about =
        "Times each row of the kernel table for about 0.2 s. Times are medians. The linear rows "
        "are "
        "shown for each product of a block: qkv, proj, fc and out.\n\n"
        "Products are given in GFLOP/s and as a share of the fma peak of the same instructions. "
        "Other rows are given in GB/s and as a share of the bandwidth that a plain loop reaches "
        "over as much memory as the row works on; the level (L1, L2, L3, memory) says where that "
        "lies. Each ceiling is measured before and after its row. A star marks rows during which "
        "it moved because the machine was busy.\n\n"
        "On a GPU (--device cuda) rows are timed by its events and shown in TFLOP/s and TB/s, as a "
        "share of a large product of the same type and of a copy on the card. These ceilings are "
        "measured once for each kind of card and driver, in less than a second, and remembered.",
    .examples =
        "lineshaft bench kernels  # all rows, 10M model, best kernels, all cores\n"
        "lineshaft bench kernels --shape 124m --row head  # one row of a larger model\n"
        "lineshaft bench kernels --isa avx2 --threads 1  # other instructions, one core\n"
        "lineshaft bench kernels --device cuda  # on the GPU, a batch of 64 x 1024 in bf16\n"
        "lineshaft bench kernels --json > kernels.jsonl  # for programs\n",
    .flags = kernel_flags,
    .run = run_kernels,
};

static const ls_command *const bench_subs[] = {&bench_kernels, &ls_bench_comm, NULL};

const ls_command ls_cmd_bench = {
    .name = "bench",
    .summary = "measure what this machine can do",
    .about = "Measures parts of lineshaft on this machine, beside the peaks of the machine itself.",
    .examples = "lineshaft bench kernels  # every row of the kernel table\n"
                "lineshaft bench comm -n 2  # collectives between two ranks\n",
    .subs = bench_subs,
};
