/* head.c -- logits, softmax, loss and their gradients, a chunk of rows at a time.
 *
 * For each leaf, for each chunk of its rows: logits = h W^T into scratch; per row the loss, and
 * dlogits = (softmax - onehot) * grad_scale in place; dh = dlogits W; dw += dlogits^T h. Row by row
 * losses and dh do not depend on chunks at all. dw sums over rows: a chunk is at most one block of
 * K of the product, chunk sums are added in order within a leaf and leaves along the tree, so that
 * the bits depend only on the rows of a leaf. A chunk never crosses a leaf and its length depends
 * only on V and the leaf.
 *
 * dw of a leaf grows over its chunks, so its partial sum must lie somewhere: in dw itself where
 * that is free, else in scratch, [V, C] for each level of the binary counter over leaves (see
 * gemm.c). Scratch, beside the logits of one chunk:
 *   one leaf    nothing: its chunks go into dw one after the other, with accumulate or without
 *   n leaves    floor(log2 n) buffers; one more with accumulate
 * Keeping the dlogits of a whole leaf instead would cost rows x V, which is more as soon as a leaf
 * has more rows than the model is wide; computing logits twice would cost a third more time. */
#include "kernel/cpu/leaves.h"
#include "kernel/cpu/rows_basic.h"
#include "kernel/cpu/rows_linear.h"
#include "kernel/cpu/simd/gemm.h"

enum {
    LOGIT_BYTES = 64 << 20, /* of a chunk, when that leaves it CHUNK_LEAST rows */
    CHUNK_LEAST = 16,
    TASK_ROWS = 8 /* of the softmax */
};

typedef struct job {
    const ls_head *a;
    ls_stream *stream;
    int64_t leaf_rows;
    int64_t chunk; /* rows of a full chunk */
    float *logits; /* [chunk, V] in scratch */
    float *sums;   /* [V, C] buffers in scratch, or NULL */
    float grad_scale;
    int64_t first; /* rows of the current chunk */
    int64_t rows;
} job;

static int64_t chunk_rows(const ls_head *a)
{
    int64_t most = LOGIT_BYTES / 4 / ls_max_i64(a->V, 1) / CHUNK_LEAST * CHUNK_LEAST;

    most = ls_max_i64(CHUNK_LEAST, ls_min_i64(most, LS_GEMM_KC));
    return ls_max_i64(1, ls_min_i64(most, a->M / a->leaves));
}

/* Buffers of [V, C] that the sum over leaves needs in scratch. Whether dw is given does not count:
 * the question is asked before there are pointers. */
static int64_t sum_buffers(const ls_head *a)
{
    if (a->leaves == 1)
        return 0;
    return ls_leaves_depth(a->leaves) - (a->accumulate ? 0 : 1);
}

static int64_t logit_floats(const ls_head *a)
{
    return ls_round_up(chunk_rows(a) * a->V, 64);
}

int64_t LS_ISA_NAME(ls_head_scratch)(const ls_head *a, int threads)
{
    (void)threads;
    return 4 * (logit_floats(a) + sum_buffers(a) * a->V * a->C);
}

static float row_largest(const float *x, int64_t n)
{
    ls_v16 most = v_set(-INFINITY);
    int64_t i = 0;

    for (; i + LS_LANES <= n; i += LS_LANES)
        most = v_max(v_load(x + i), most);
    if (i < n)
        most = v_max(v_load_part(x + i, n - i, -INFINITY), most);
    return v_largest(most);
}

/* e^(x - most). v_exp bounds its argument and so hides Inf; adding 0 * d turns it into NaN, so that
 * a broken logit shows in the loss. */
LS_HELPER ls_v16 exp_from(ls_v16 x, float most)
{
    ls_v16 d = v_sub(x, v_set(most));

    return v_fma(d, v_set(0), v_exp(d));
}

/* Replace x by e^(x - most) where keep is set, and return the sum: sixteen lanes, each in blocks of
 * 64 so that long rows lose no digits. */
LS_INLINE float row_exp(float *x, int64_t n, float most, bool keep)
{
    ls_v16 total = v_set(0);
    int64_t i = 0;

    while (i < n) {
        int64_t end = ls_min_i64(n, i + 64 * LS_LANES);
        ls_v16 sum = v_set(0);
        for (; i + LS_LANES <= end; i += LS_LANES) {
            ls_v16 e = exp_from(v_load(x + i), most);
            if (keep)
                v_store(x + i, e);
            sum = v_add(sum, e);
        }
        if (i < end) {
            float last[LS_LANES];
            v_store(last, exp_from(v_load_part(x + i, end - i, most), most));
            if (keep)
                memcpy(x + i, last, (size_t)(end - i) * sizeof *last);
            sum = v_add(sum, v_load_part(last, end - i, 0));
            i = end;
        }
        total = v_add(total, sum);
    }
    return v_sum(total);
}

static void row_scale(float *x, int64_t n, float by)
{
    ls_v16 f = v_set(by);
    int64_t i = 0;

    for (; i + LS_LANES <= n; i += LS_LANES)
        v_store(x + i, v_mul(v_load(x + i), f));
    if (i < n)
        v_store_part(x + i, n - i, v_mul(v_load_part(x + i, n - i, 0), f));
}

/* One row of the chunk: its loss, and its logits become their gradient. */
static void softmax_row(const job *j, int64_t row)
{
    const ls_head *a = j->a;
    int64_t V = a->V;
    float *x = j->logits + row * V, *loss = a->losses + j->first + row;
    int32_t target = a->targets[j->first + row];
    float most, sum, hit, log_sum[LS_LANES];

    if (target < 0) {
        *loss = 0;
        memset(x, 0, (size_t)V * sizeof *x);
        return;
    }
    most = row_largest(x, V);
    hit = x[target];
    sum = a->dh ? row_exp(x, V, most, true) : row_exp(x, V, most, false);
    v_store(log_sum, v_log(v_set(sum)));
    *loss = log_sum[0] + (most - hit);
    if (a->dh) {
        row_scale(x, V, j->grad_scale / sum);
        x[target] -= j->grad_scale;
    }
}

static void softmax_task(void *context, int64_t index, int worker)
{
    const job *j = context;

    (void)worker;
    for (int64_t r = index * TASK_ROWS; r < ls_min_i64((index + 1) * TASK_ROWS, j->rows); r++)
        softmax_row(j, r);
}

static void chunk_logits(const job *j)
{
    const ls_head *a = j->a;
    ls_gemm g = {.a = (const float *)a->h + j->first * a->C, .a_m = a->C, .a_k = 1, .b = a->w};

    g.b_k = 1;
    g.b_n = a->C;
    g.M = j->rows;
    g.N = g.ld = a->V;
    g.K = a->C;
    g.leaves = 1;
    g.out = j->logits;
    g.finish = LS_ISA_NAME(ls_gemm_store);
    LS_ISA_NAME(ls_gemm_run)(j->stream, &g);
}

static void chunk_dh(const job *j)
{
    const ls_head *a = j->a;
    ls_gemm g = {.a = j->logits, .a_m = a->V, .a_k = 1, .b = a->w, .b_k = a->C, .b_n = 1};

    g.M = j->rows;
    g.N = g.ld = a->C;
    g.K = a->V;
    g.leaves = 1;
    g.out = (float *)a->dh + j->first * a->C;
    g.finish = LS_ISA_NAME(ls_gemm_store);
    LS_ISA_NAME(ls_gemm_run)(j->stream, &g);
}

static void chunk_dw(const job *j, float *into, bool add)
{
    const ls_head *a = j->a;
    ls_gemm g = {.a = j->logits, .a_m = 1, .a_k = a->V, .b_k = a->C, .b_n = 1};

    g.b = (const float *)a->h + j->first * a->C;
    g.M = a->V;
    g.N = g.ld = a->C;
    g.K = j->rows;
    g.leaves = 1;
    g.out = into;
    g.accumulate = add;
    g.finish = LS_ISA_NAME(ls_gemm_store);
    LS_ISA_NAME(ls_gemm_run)(j->stream, &g);
}

/* into = into + from */
static void add_buffer(const job *j, float *into, const float *from)
{
    ls_add args = {.a = into, .b = from, .out = into, .n = j->a->V * j->a->C};

    LS_ISA_NAME(ls_add_row)(j->stream, &args);
}

/* Level i of the counter over leaves; the lowest is dw itself where it may be overwritten. */
static float *level(const job *j, int i)
{
    int64_t at = j->a->accumulate ? i : i - 1;

    return at < 0 ? j->a->dw : j->sums + at * j->a->V * j->a->C;
}

/* All chunks of a leaf; its dw is left in `into`. direct: add to what is there. */
static void run_leaf(job *j, int64_t leaf, float *into, bool direct)
{
    for (int64_t r = 0; r < j->leaf_rows; r += j->chunk) {
        j->first = leaf * j->leaf_rows + r;
        j->rows = ls_min_i64(j->chunk, j->leaf_rows - r);
        chunk_logits(j);
        ls_pool_run(ls_stream_pool(j->stream), softmax_task, j,
                    (j->rows + TASK_ROWS - 1) / TASK_ROWS);
        if (!j->a->dh)
            continue;
        chunk_dh(j);
        if (into)
            chunk_dw(j, into, r > 0 || direct);
    }
}

static void run_leaves(job *j)
{
    const ls_head *a = j->a;
    int top = -1;

    for (int64_t leaf = 0; leaf < a->leaves; leaf++) {
        run_leaf(j, leaf, level(j, ++top), false);
        for (int i = ls_leaves_merges(leaf, a->leaves, top); i > 0; i--, top--)
            add_buffer(j, level(j, top - 1), level(j, top));
    }
    if (a->accumulate)
        add_buffer(j, a->dw, level(j, 0));
}

void LS_ISA_NAME(ls_head_row)(ls_stream *stream, const ls_head *a)
{
    job j = {.a = a, .stream = stream, .logits = a->scratch};

    LS_BUG_IF(a->type != LS_F32, "head of type %d", (int)a->type);
    LS_BUG_IF(a->leaves < 1 || a->M % a->leaves != 0, "%lld leaves of %lld rows",
              (long long)a->leaves, (long long)a->M);
    if (!ls_head_check_targets(stream, a))
        return;
    j.leaf_rows = a->M / a->leaves;
    j.chunk = chunk_rows(a);
    j.sums = j.logits + logit_floats(a);
    j.grad_scale = a->dh ? a->state->grad_scale : 0;
    if (!a->dh || !a->dw)
        for (int64_t leaf = 0; leaf < a->leaves; leaf++)
            run_leaf(&j, leaf, NULL, false);
    else if (a->leaves == 1)
        run_leaf(&j, 0, a->dw, a->accumulate);
    else
        run_leaves(&j);
}
