/* decode.c -- the last logits of a window, and a choice among them.
 *
 * The choice sorts the candidates by probability, cuts by top-k and top-p, and walks the cumulative
 * sum to a uniform value of Philox keyed by (seed, position): the same seed tells the same story.
 */
#include "model/decode.h"

#include <math.h>
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"

struct ls_decode {
    const ls_model *model;
    ls_pass *pass;
    ls_stream *stream;
    void *memory;    /* owned, device: tokens, then logits */
    int32_t *tokens; /* [T] */
    float *logits;   /* [V] */
    float *host;     /* [V], owned */
    int32_t *order;  /* [V], owned */
};

static int64_t token_bytes(const ls_model *model)
{
    return ls_round_up(model->shape.T * (int64_t)sizeof(int32_t), 256);
}

int64_t ls_decode_bytes(const ls_model *model)
{
    return ls_round_up(token_bytes(model) + model->shape.V * (int64_t)sizeof(float), 4096);
}

ls_status ls_decode_open(ls_decode **decode_out, const ls_model *model, ls_pass *pass,
                         ls_stream *stream)
{
    ls_status st = LS_OK;
    ls_decode *d = ls_mem_alloc(sizeof *d);

    if (!d)
        return LS_ENOMEM;
    d->model = model;
    d->pass = pass;
    d->stream = stream;
    d->host = ls_mem_array((size_t)model->shape.V, sizeof *d->host);
    d->order = ls_mem_array((size_t)model->shape.V, sizeof *d->order);
    if (!d->host || !d->order) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st,
           ls_device_alloc(ls_stream_device(stream), ls_decode_bytes(model), "text samples",
                           &d->memory),
           out);
    d->tokens = d->memory;
    d->logits = (float *)(void *)((char *)d->memory + token_bytes(model));
    *decode_out = d;
out:
    if (st != LS_OK)
        ls_decode_close(d);
    return st;
}

void ls_decode_close(ls_decode *decode)
{
    if (!decode)
        return;
    ls_device_free(ls_stream_device(decode->stream), decode->memory);
    ls_mem_free(decode->host);
    ls_mem_free(decode->order);
    ls_mem_free(decode);
}

ls_status ls_decode_next(ls_decode *decode, const float *w, const int32_t *history, int64_t n,
                         const ls_sampling *sampling, uint64_t position, int32_t *token_out)
{
    const ls_model_shape *s = &decode->model->shape;
    int64_t T = ls_min_i64(n, s->T);
    ls_status st;

    ls_stream_copy_in(decode->stream, decode->tokens, history + (n - T),
                      T * (int64_t)sizeof *history);
    ls_pass_logits(decode->pass,
                   &(ls_pass_call){.w = w, .tokens = decode->tokens, .B = 1, .T = T, .leaves = 1},
                   T - 1, decode->logits);
    ls_stream_copy_out(decode->stream, decode->host, decode->logits,
                       s->V * (int64_t)sizeof *decode->host);
    LS_TRY(st, ls_stream_sync(decode->stream, ls_time_now_ns() + 600 * LS_NS_PER_S), out);
    /* Rows that no token of the tokenizer uses still have logits; they stand for nothing. */
    *token_out =
        ls_decode_pick(decode->host, decode->order, decode->model->tokens, sampling, position);
out:
    return st;
}

static int32_t largest(const float *x, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

/* Heap sort of token numbers by falling logit, equal ones by number: no library sort whose order of
 * equals could differ between machines. */
static bool before(const float *x, int32_t a, int32_t b)
{
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

static void sift(int32_t *order, const float *x, int64_t root, int64_t n)
{
    for (int64_t child = 2 * root + 1; child < n; child = 2 * root + 1) {
        if (child + 1 < n && before(x, order[child], order[child + 1]))
            child++;
        if (!before(x, order[root], order[child]))
            return;
        int32_t t = order[root];
        order[root] = order[child];
        order[child] = t;
        root = child;
    }
}

static void sort_by_logit(int32_t *order, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        order[i] = (int32_t)i;
    for (int64_t i = n / 2 - 1; i >= 0; i--)
        sift(order, x, i, n);
    for (int64_t end = n - 1; end > 0; end--) {
        int32_t t = order[0];
        order[0] = order[end];
        order[end] = t;
        sift(order, x, 0, end);
    }
}

int32_t ls_decode_pick(float *logits, int32_t *order, int64_t V, const ls_sampling *sampling,
                       uint64_t position)
{
    if (sampling->temperature <= 0)
        return largest(logits, V);
    sort_by_logit(order, logits, V);
    int64_t n = sampling->top_k > 0 ? ls_min_i64(sampling->top_k, V) : V;
    double top = (double)logits[order[0]], sum = 0, kept = 0;
    for (int64_t i = 0; i < n; i++) {
        double p = exp(((double)logits[order[i]] - top) / sampling->temperature);
        logits[order[i]] = (float)p;
        sum += p;
    }
    int64_t last = 0;
    while (last < n) {
        kept += (double)logits[order[last++]];
        if (kept >= sampling->top_p * sum)
            break;
    }
    ls_rng_block r = ls_rng_philox(ls_rng_derive(sampling->seed, 0x73616d70, 0), (uint32_t)position,
                                   (uint32_t)(position >> 32), 0, 0);
    double u = (double)ls_rng_uniform(r.v[0]) * kept, walked = 0;
    for (int64_t i = 0; i < last; i++) {
        walked += (double)logits[order[i]];
        if (u < walked)
            return order[i];
    }
    return order[last - 1];
}
