/* error_feedback.c -- residuals between ranks, checkpoints and other meshes.
 *
 * Worked example: two nodes saved vectors r0 and r1, and owners rs. Resumed on
 *
 *     two nodes               r0 to node 0, r1 to node 1, rs to the owners: the same bits
 *     three nodes             (r0 + r1) divided among the nodes that send each element, rs to the owners
 *     one node, uncompressed  r0 + r1 + rs added to the first gradient                                */
#include "train/save/error_feedback.h"

#include "base/log.h"
#include "base/mem.h"
#include "train/save/save.h"

int ls_error_feedback_vectors(const ls_session *session)
{
    return session->dp ? ls_dp_residuals(ls_dp_args_of(session->dp)) : 0;
}

static float *vector(const ls_session *s, int v)
{
    return s->feedback.vectors + v * s->model.trained;
}

static bool has_sum(const ls_session *s)
{
    return ls_error_feedback_vectors(s) > s->mesh.nodes;
}

static void forget(ls_session *s)
{
    memset(s->feedback.vectors, 0,
           (size_t)(ls_error_feedback_vectors(s) * s->model.trained) * sizeof *s->feedback.vectors);
}

/* In host memory: the host adds them up, and a checkpoint is written from it. */
static ls_status alloc_feedbacks(ls_session *s, int64_t bytes, void **memory_out)
{
    static const char what[] = "residuals of all nodes";

    return s->discrete ? ls_device_host_alloc(s->device, bytes, what, memory_out)
                       : ls_device_alloc(s->device, bytes, what, memory_out);
}

ls_status ls_error_feedback_open(ls_session *s)
{
    int n = ls_error_feedback_vectors(s);
    void *memory;
    ls_status st = LS_OK;

    if (n == 0)
        return LS_OK;
    s->feedback.kinds = ls_mem_array((size_t)n, sizeof *s->feedback.kinds);
    if (!s->feedback.kinds)
        return ls_fail(LS_ENOMEM, "no memory for the names of the residuals of %d nodes",
                       s->mesh.nodes);
    LS_TRY(st, alloc_feedbacks(s, n * s->model.trained * (int64_t)sizeof(float), &memory), out);
    s->feedback.vectors = memory;
    forget(s);
    for (int v = 0; v < n; v++) {
        bool sum = v == s->mesh.nodes;
        int at = s->snapshot.n_rows + s->feedback.n_rows;
        snprintf(s->feedback.kinds[v], sizeof s->feedback.kinds[v], sum ? "owed.sum" : "owed.%d",
                 v);
        (void)ls_save_rows(&s->model, s->feedback.kinds[v], vector(s, v), s->snapshot.rows + at);
        s->feedback.n_rows +=
            ls_save_rows(&s->model, s->feedback.kinds[v], vector(s, v), s->snapshot.live_rows + at);
    }
out:
    return st;
}

void ls_error_feedback_close(ls_session *session)
{
    if (session->discrete)
        ls_device_host_free(session->device, session->feedback.vectors,
                            ls_error_feedback_vectors(session) * session->model.trained *
                                (int64_t)sizeof *session->feedback.vectors);
    else
        ls_device_free(session->device, session->feedback.vectors);
    ls_mem_free(session->feedback.kinds);
    ls_mem_free(session->feedback.unpaid);
    session->feedback.vectors = NULL;
    session->feedback.kinds = NULL;
    session->feedback.unpaid = NULL;
}

ls_status ls_error_feedback_collect(ls_session *session)
{
    return ls_error_feedback_vectors(session)
               ? ls_dp_collect_residuals(session->dp, session->feedback.vectors)
               : LS_OK;
}

/* --- taking up ----------------------------------------------------------------------------------
 */

/* The vectors of a checkpoint: of how many nodes, and whether owners had some. */
static void count_vectors(const ls_ckpt *ckpt, int *nodes_out, bool *sum_out)
{
    *nodes_out = 0;
    *sum_out = false;
    for (int i = 0; i < ls_ckpt_count(ckpt); i++) {
        const char *kind = ls_ckpt_nth(ckpt, i).kind;
        int node = -1;
        if (strcmp(kind, "owed.sum") == 0)
            *sum_out = true;
        else if (sscanf(kind, "owed.%d", &node) == 1 && node >= *nodes_out)
            *nodes_out = node + 1;
    }
}

static ls_status load_vector(const ls_session *s, const ls_ckpt *ckpt, const char *kind, float *to)
{
    ls_ckpt_tensor *rows = ls_mem_array((size_t)s->model.n_params, sizeof *rows);
    ls_status st;

    if (!rows)
        return ls_fail(LS_ENOMEM, "no memory to read residuals");
    st = ls_ckpt_load(ckpt, rows, ls_save_rows(&s->model, kind, to, rows));
    ls_mem_free(rows);
    return st;
}

/* The sum of all vectors of a checkpoint, or of those of nodes only, to `sum`; by way of `other`.
 */
static ls_status load_sum(const ls_session *s, const ls_ckpt *ckpt, int vectors, int nodes,
                          float *sum, float *other)
{
    char kind[16];
    ls_status st = LS_OK;

    memset(sum, 0, (size_t)s->model.trained * sizeof *sum);
    for (int v = 0; v < vectors; v++) {
        snprintf(kind, sizeof kind, v < nodes ? "owed.%d" : "owed.sum", v);
        LS_TRY(st, load_vector(s, ckpt, kind, other), out);
        for (int64_t i = 0; i < s->model.trained; i++)
            sum[i] += other[i];
    }
    memset(other, 0, (size_t)s->model.trained * sizeof *other);
out:
    return st;
}

/* For a run that compresses: to its vectors, each to its own where there are as many nodes. */
static ls_status load_feedbacks(ls_session *s, const ls_ckpt *ckpt, int nodes, bool sum)
{
    bool keeps = sum && has_sum(s);
    ls_status st = LS_OK;

    for (int v = 0; v < nodes && nodes == s->mesh.nodes && sum == has_sum(s); v++)
        LS_TRY(st, load_vector(s, ckpt, s->feedback.kinds[v], vector(s, v)), out);
    if (nodes != s->mesh.nodes || sum != has_sum(s))
        LS_TRY(st, load_sum(s, ckpt, nodes + (sum && !keeps), nodes, vector(s, 0), vector(s, 1)),
               out);
    if (keeps)
        LS_TRY(st, load_vector(s, ckpt, "owed.sum", vector(s, s->mesh.nodes)), out);
out:
    return st;
}

/* For a run that does not: kept until the first step. */
static ls_status load_unpaid(ls_session *s, const ls_ckpt *ckpt, int nodes, bool sum)
{
    float *two = ls_mem_array(2 * (size_t)s->model.trained, sizeof *two);
    ls_status st;

    if (!two)
        return ls_fail(LS_ENOMEM, "no memory for residuals of an earlier exchange");
    s->feedback.unpaid = two;
    st = load_sum(s, ckpt, nodes + sum, nodes, two, two + s->model.trained);
    if (st == LS_OK)
        ls_log(LS_LOG_INFO, "residuals of %d nodes are added to the gradient of the next step",
               nodes);
    return st;
}

ls_status ls_error_feedback_load(ls_session *s, int64_t step)
{
    ls_ckpt *ckpt = NULL;
    int nodes;
    bool sum;
    ls_status st;

    LS_TRY(st, ls_ckpt_find(s->save.store, step, &ckpt, NULL), out);
    count_vectors(ckpt, &nodes, &sum);
    if (nodes == 0)
        goto out;
    st = s->feedback.vectors ? load_feedbacks(s, ckpt, nodes, sum)
                             : load_unpaid(s, ckpt, nodes, sum);
    if (st == LS_EDATA) { /* weights and moments are whole: residuals are the lesser part */
        ls_log(LS_LOG_WARN, "residuals of step %lld are dropped: %s", (long long)step,
               ls_err_last()->text);
        if (s->feedback.vectors)
            forget(s);
        ls_mem_free(s->feedback.unpaid);
        s->feedback.unpaid = NULL;
        st = LS_OK;
    }
out:
    ls_ckpt_free(ckpt);
    return st;
}

ls_status ls_error_feedback_share(ls_session *s)
{
    int64_t bytes = s->model.trained * (int64_t)sizeof(float);
    unsigned char word = s->feedback.unpaid != NULL;
    ls_status st = LS_OK;

    if (ls_error_feedback_vectors(s))
        return ls_dp_scatter_residuals(s->dp, s->feedback.vectors);
    if (s->dp)
        LS_TRY(st, ls_dp_broadcast(s->dp, 0, &word, sizeof word), out);
    if (!word)
        goto out;
    if (!s->feedback.unpaid)
        s->feedback.unpaid = ls_mem_array((size_t)s->model.trained, sizeof *s->feedback.unpaid);
    LS_TRY(st, s->feedback.unpaid ? LS_OK : LS_ENOMEM, out);
    if (s->dp)
        LS_TRY(st, ls_dp_broadcast(s->dp, 0, s->feedback.unpaid, bytes), out);
    st = ls_step_add_residual(s->step, s->feedback.unpaid);
out:
    ls_mem_free(s->feedback.unpaid);
    s->feedback.unpaid = NULL;
    return st;
}
