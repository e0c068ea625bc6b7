/* simd_head.c -- logits, softmax, loss and their gradients, a chunk of rows at a time.
 *
 * For each chunk: logits = h W^T into scratch; per row the loss, and dlogits = (softmax - onehot) *
 * grad_scale in place; dh = dlogits W; dw (+)= dlogits^T h. Row by row losses and dh do not depend
 * on chunks at all. dw sums over rows, first those of a leaf, then along the tree over leaves.
 *
 * A chunk is a group of 1, 2, 4, ... leaves whose logits fit into LOGIT_BYTES: such a group is a
 * subtree, so its dw is one product with the tree inside, and only sums of groups need memory of
 * their own. A leaf that does not fit is taken in chunks of one block of K of the product, whose
 * sums are added in order, as the product would. So the bits depend on neither.
 *
 * dw of a group grows over its chunks, so its partial sum must lie somewhere: in dw itself where
 * that is free, else in scratch, [V, C] for each level of the binary counter over groups (see
 * leaves.h). Scratch, beside the logits of one chunk:
 *   one group   nothing: it goes into dw, with accumulate or without
 *   n groups    floor(log2 n) buffers; one more with accumulate
 *
 * In parts, all rows are one chunk: SCORES leaves e^(logit - largest) in scratch, with the largest
 * of this rank's own logits, and JOIN multiplies by what the other ranks make of it. */
#include "kernel/cpu/leaves.h"
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/gemm.h"

enum {
    LOGIT_BYTES = 256 << 20, /* of a chunk, when that leaves it one block of K */
    TASK_ROWS = 8            /* of the softmax */
};

typedef struct job {
    const ls_head *a;
    ls_stream *stream;
    int64_t leaf_rows;
    int64_t group; /* leaves */
    int64_t chunk; /* rows of a full chunk: a group, or a part of a leaf */
    float *logits; /* [chunk, V] in scratch */
    float *sums;   /* [V, C] buffers in scratch, or NULL */
    float grad_scale;
    int64_t first; /* rows of the current chunk */
    int64_t rows;
} job;

/* Leaves that are taken together, at least one. */
static int64_t group_leaves(const ls_head *a)
{
    int64_t bytes = 4 * ls_max_i64(a->V, 1) * ls_max_i64(a->M / a->leaves, 1), group = 1;

    while (group < a->leaves && 2 * group * bytes <= LOGIT_BYTES)
        group *= 2;
    return group;
}

static int64_t chunk_rows(const ls_head *a)
{
    int64_t leaf_rows = a->M / a->leaves;

    if (a->part != LS_HEAD_WHOLE)
        return ls_max_i64(1, a->M);
    if (4 * a->V * leaf_rows > LOGIT_BYTES)
        return ls_min_i64(leaf_rows, LS_GEMM_KC);
    return ls_max_i64(1, ls_min_i64(group_leaves(a), a->leaves) * leaf_rows);
}

static int64_t groups_of(const ls_head *a)
{
    int64_t group = group_leaves(a);

    return (a->leaves + group - 1) / group;
}

/* Buffers of [V, C] that the sum over groups needs in scratch. Whether dw is given does not count:
 * the question is asked before there are pointers. */
static int64_t sum_buffers(const ls_head *a)
{
    if (groups_of(a) == 1)
        return 0;
    return ls_leaves_depth(groups_of(a)) - (a->accumulate ? 0 : 1);
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

/* What the gradient of a row is multiplied by. */
static float scale_of(const job *j, int64_t row)
{
    return j->a->weights ? j->grad_scale * j->a->weights[row] : j->grad_scale;
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
        float scale = scale_of(j, j->first + row);
        row_scale(x, V, scale / sum);
        x[target] -= scale;
    }
}

static void softmax_task(void *context, int64_t index, int worker)
{
    const job *j = context;

    (void)worker;
    for (int64_t r = index * TASK_ROWS; r < ls_min_i64((index + 1) * TASK_ROWS, j->rows); r++)
        softmax_row(j, r);
}

/* --- in parts -------------------------------------------------------------------------------- */

static void scores_row(const job *j, int64_t row)
{
    const ls_head *a = j->a;
    float *x = j->logits + row * a->V, *scores = a->scores + 3 * row;
    int64_t target = a->targets[row] - a->first;

    scores[0] = row_largest(x, a->V);
    scores[2] = a->targets[row] >= 0 && target >= 0 && target < a->V ? x[target] : 0;
    scores[1] = a->dh ? row_exp(x, a->V, scores[0], true) : row_exp(x, a->V, scores[0], false);
}

/* e^x, of one number. */
static float exp_one(float x)
{
    float out[LS_LANES];

    v_store(out, exp_from(v_set(x), 0));
    return out[0];
}

static void join_row(const job *j, int64_t row)
{
    const ls_head *a = j->a;
    float *x = j->logits + row * a->V, most = -INFINITY, sum = 0, hit = 0, log_sum[LS_LANES];
    int64_t target = a->targets[row] - a->first;

    if (a->targets[row] < 0) {
        a->losses[row] = 0;
        if (a->dh)
            memset(x, 0, (size_t)a->V * sizeof *x);
        return;
    }
    for (int64_t r = 0; r < a->ranks; r++)
        most = fmaxf(most, a->all[r * a->rank_stride + 3 * row]);
    for (int64_t r = 0; r < a->ranks; r++) {
        const float *scores = a->all + r * a->rank_stride + 3 * row;
        sum += scores[1] * exp_one(scores[0] - most);
        hit += scores[2];
    }
    v_store(log_sum, v_log(v_set(sum)));
    a->losses[row] = log_sum[0] + (most - hit);
    if (!a->dh)
        return;
    float scale = scale_of(j, row);
    row_scale(x, a->V, scale * exp_one(a->all[a->rank * a->rank_stride + 3 * row] - most) / sum);
    if (target >= 0 && target < a->V)
        x[target] -= scale;
}

static void part_task(void *context, int64_t index, int worker)
{
    const job *j = context;

    (void)worker;
    for (int64_t r = index * TASK_ROWS; r < ls_min_i64((index + 1) * TASK_ROWS, j->rows); r++)
        if (j->a->part == LS_HEAD_SCORES)
            scores_row(j, r);
        else
            join_row(j, r);
}

/* --- products --------------------------------------------------------------------------------- */

static void chunk_logits(const job *j)
{
    const ls_head *a = j->a;
    ls_gemm g = {.a_type = a->type, .a = a->h, .a_m = a->C, .a_k = 1, .leaves = 1};

    g.a = (const char *)a->h + j->first * a->C * ls_dtype_bytes(a->type);
    g.b_type = a->type;
    g.b = a->w;
    g.packed = a->packed;
    g.b_k = 1;
    g.b_n = a->C;
    g.M = j->rows;
    g.N = g.ld = a->V;
    g.K = a->C;
    g.out = j->logits;
    g.finish = LS_ISA_NAME(ls_gemm_store);
    LS_ISA_NAME(ls_gemm_run)(j->stream, &g);
}

static void chunk_dh(const job *j)
{
    const ls_head *a = j->a;
    ls_gemm g = {.a = j->logits, .a_m = a->V, .a_k = 1, .b = a->w, .b_k = a->C, .b_n = 1};

    g.b_type = a->type;
    g.packed = a->packed_back;
    g.M = j->rows;
    g.N = g.ld = a->C;
    g.K = a->V;
    g.leaves = 1;
    g.out_type = a->type;
    g.out = (char *)a->dh + j->first * a->C * ls_dtype_bytes(a->type);
    g.finish = LS_ISA_NAME(ls_gemm_store);
    LS_ISA_NAME(ls_gemm_run)(j->stream, &g);
}

static void chunk_dw(const job *j, float *into, bool add)
{
    const ls_head *a = j->a;
    ls_gemm g = {.a = j->logits, .a_m = 1, .a_k = a->V, .b_k = a->C, .b_n = 1};

    g.b_type = a->type;
    g.b = (const char *)a->h + j->first * a->C * ls_dtype_bytes(a->type);
    g.M = a->V;
    g.N = g.ld = a->C;
    g.K = j->rows;
    g.leaves = ls_max_i64(1, j->rows / ls_max_i64(j->leaf_rows, 1));
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

/* Level i of the counter over groups; the lowest is dw itself where it may be overwritten. */
static float *level(const job *j, int i)
{
    int64_t at = j->a->accumulate ? i : i - 1;

    return at < 0 ? j->a->dw : j->sums + at * j->a->V * j->a->C;
}

/* All chunks of a group; its dw is left in `into`. direct: add to what is there. */
static void run_group(job *j, int64_t group, float *into, bool direct)
{
    int64_t begin = group * j->group * j->leaf_rows;
    int64_t end = ls_min_i64(j->a->M, begin + j->group * j->leaf_rows);

    for (int64_t r = begin; r < end; r += j->chunk) {
        j->first = r;
        j->rows = ls_min_i64(j->chunk, end - r);
        chunk_logits(j);
        ls_pool_run(ls_stream_pool(j->stream), softmax_task, j,
                    (j->rows + TASK_ROWS - 1) / TASK_ROWS);
        if (!j->a->dh)
            continue;
        chunk_dh(j);
        if (into)
            chunk_dw(j, into, r > begin || direct);
    }
}

static void run_groups(job *j, int64_t groups)
{
    const ls_head *a = j->a;
    int top = -1;

    for (int64_t group = 0; group < groups; group++) {
        run_group(j, group, level(j, ++top), false);
        for (int i = ls_leaves_merges(group, groups, top); i > 0; i--, top--)
            add_buffer(j, level(j, top - 1), level(j, top));
    }
    if (a->accumulate)
        add_buffer(j, a->dw, level(j, 0));
}

static void run_part(job *j)
{
    const ls_head *a = j->a;

    j->rows = a->M;
    if (a->part == LS_HEAD_SCORES)
        chunk_logits(j);
    ls_pool_run(ls_stream_pool(j->stream), part_task, j, (a->M + TASK_ROWS - 1) / TASK_ROWS);
    if (a->part == LS_HEAD_SCORES || !a->dh)
        return;
    chunk_dh(j);
    if (a->dw)
        chunk_dw(j, a->dw, a->accumulate);
}

void LS_ISA_NAME(ls_head_row)(ls_stream *stream, const ls_head *a)
{
    job j = {.a = a, .stream = stream, .logits = a->scratch};
    int64_t groups;

    LS_BUG_IF(a->type != LS_F32 && a->type != LS_BF16, "head of type %d", (int)a->type);
    LS_BUG_IF(a->leaves < 1 || a->M % a->leaves != 0, "%lld leaves of %lld rows",
              (long long)a->leaves, (long long)a->M);
    if (!ls_head_check_targets(stream, a))
        return;
    groups = groups_of(a);
    j.leaf_rows = a->M / a->leaves;
    j.group = group_leaves(a);
    j.chunk = chunk_rows(a);
    j.sums = j.logits + logit_floats(a);
    j.grad_scale = a->dh && a->part != LS_HEAD_SCORES ? a->state->grad_scale : 0;
    if (a->part != LS_HEAD_WHOLE)
        run_part(&j);
    else if (!a->dh || !a->dw)
        for (int64_t group = 0; group < groups; group++)
            run_group(&j, group, NULL, false);
    else if (sum_buffers(a) == 0)
        run_group(&j, 0, a->dw, a->accumulate);
    else
        run_groups(&j, groups);
}
