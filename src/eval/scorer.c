/* scorer.c -- spans in batches through the pass that computes losses.
 *
 * Spans are sorted by length, longest first, and computed a few at a time, each a row of one call
 * that is padded behind. Attention looks back only, so padding changes no bit of what stands before
 * it. The first call is the largest one: when it fits into memory, all do. */
#include "eval/scorer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/time.h"
#include "device/device.h"
#include "kernel/kernel.h"
#include "model/pass.h"

enum {
    CALL_TOKENS = 2048, /* of a call, about */
    CALL_ROWS = 32      /* spans of a call, at most */
};

struct ls_scorer {
    ls_model model;
    ls_tokenizer *tok;
    ls_device *device;
    ls_stream *stream;
    const ls_kernels *kernels;
    void *w; /* flat parameters, device memory */
    ls_scorer_progress *progress;
    void *context;
};

/* --- the model -------------------------------------------------------------------------------- */

static ls_status load(ls_scorer *s, const ls_hf_folder *folder)
{
    int64_t bytes = s->model.flat * (int64_t)sizeof(float);
    float *host = NULL;
    ls_status st;

    LS_TRY(st, ls_device_alloc(s->device, bytes, "weights", &s->w), out);
    if (ls_device_describe(s->device).host_memory) {
        st = ls_hf_folder_load(folder, &s->model, s->w);
        goto out;
    }
    host = ls_mem_array((size_t)s->model.flat, sizeof *host);
    if (!host) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, ls_hf_folder_load(folder, &s->model, host), out);
    ls_stream_copy_in(s->stream, s->w, host, bytes);
    st = ls_stream_sync(s->stream, ls_time_now_ns() + 600 * LS_NS_PER_S);
out:
    ls_mem_free(host);
    return st;
}

ls_status ls_scorer_open(ls_scorer **scorer_out, const ls_hf_folder *folder)
{
    ls_scorer *s = ls_mem_alloc(sizeof *s);
    ls_status st;

    if (!s)
        return LS_ENOMEM;
    LS_TRY(st, ls_hf_folder_tokenizer(folder, &s->tok), out);
    LS_TRY(st, ls_model_init(&s->model, ls_hf_folder_run(folder), ls_tokenizer_vocab(s->tok)), out);
    LS_TRY(st, ls_hf_folder_check(folder, &s->model), out);
    LS_TRY(st, ls_kernel_pick("auto", &s->kernels), out);
    LS_TRY(st, ls_device_open(&s->device, "auto", 0), out);
    LS_TRY(st, ls_stream_create(&s->stream, s->device), out);
    LS_TRY(st, load(s, folder), out);
    *scorer_out = s;
out:
    if (st != LS_OK)
        ls_scorer_close(s);
    return st;
}

void ls_scorer_close(ls_scorer *s)
{
    if (!s)
        return;
    if (s->device)
        ls_device_free(s->device, s->w);
    ls_stream_free(s->stream);
    ls_device_close(s->device);
    ls_model_release(&s->model);
    ls_tokenizer_free(s->tok);
    ls_mem_free(s);
}

void ls_scorer_watch(ls_scorer *s, ls_scorer_progress *progress, void *context)
{
    s->progress = progress;
    s->context = context;
}

int64_t ls_scorer_context(const ls_scorer *s)
{
    return s->model.shape.T;
}

int32_t ls_scorer_prefix(const ls_scorer *s)
{
    int32_t bos = ls_tokenizer_bos(s->tok);

    return bos >= 0 ? bos : ls_tokenizer_eos(s->tok);
}

ls_status ls_scorer_encode(const ls_scorer *s, const char *text, size_t len, bool plain,
                           ls_tokens *ids)
{
    int64_t before = ids->count;
    int32_t prefix = ls_scorer_prefix(s);
    ls_status st = ls_tokenizer_encode(s->tok, text, len, LS_ENCODE_SPECIAL, ids);

    if (st != LS_OK || plain || (prefix >= 0 && ids->count > before && ids->ids[before] == prefix))
        return st;
    ids->count = before;
    return ls_tokenizer_encode(s->tok, text, len, LS_ENCODE_SPECIAL | LS_ENCODE_TEMPLATE, ids);
}

/* --- a call ----------------------------------------------------------------------------------- */

/* Rows of a call and its memory. */
typedef struct batch {
    ls_pass *pass;
    void *memory;  /* device: tokens, targets, losses */
    int32_t *ids;  /* host: tokens, targets; owned */
    float *losses; /* host, owned */
    int64_t B, T;  /* the largest call */
} batch;

static void batch_close(ls_scorer *s, batch *b)
{
    ls_pass_close(b->pass);
    ls_device_free(s->device, b->memory);
    ls_mem_free(b->ids);
    ls_mem_free(b->losses);
}

static ls_status batch_open(ls_scorer *s, batch *b, int64_t T, int64_t spans)
{
    int64_t B = ls_min_i64(CALL_TOKENS / T, ls_min_i64(CALL_ROWS, spans));
    ls_status st = LS_ENOMEM;

    *b = (batch){.B = B > 1 ? B : 1, .T = T};
    b->ids = ls_mem_array((size_t)(2 * b->B * T), sizeof *b->ids);
    b->losses = ls_mem_array((size_t)(b->B * T), sizeof *b->losses);
    if (!b->ids || !b->losses)
        goto out;
    LS_TRY(st,
           ls_device_alloc(s->device, 3 * b->B * T * (int64_t)sizeof(float), "losses", &b->memory),
           out);
    st = ls_pass_open(&b->pass, &(ls_pass_args){.model = &s->model,
                                                .kernels = s->kernels,
                                                .stream = s->stream,
                                                .B = b->B,
                                                .T = T,
                                                .leaves = 1});
out:
    if (st != LS_OK)
        batch_close(s, b);
    return st;
}

/* Tokens that a span is computed from: all but the last, or as many as the context has. */
static int64_t inputs_of(const ls_scorer *s, const ls_scorer_span *span)
{
    return ls_min_i64(span->count - 1, s->model.shape.T);
}

/* Row i of a call of T tokens. */
static void put_row(const ls_scorer *s, batch *b, int64_t i, int64_t rows, int64_t T,
                    const ls_tokens *ids, const ls_scorer_span *span)
{
    int64_t n = inputs_of(s, span);
    const int32_t *from = ids->ids + span->first + span->count - 1 - n;
    int32_t *tokens = b->ids + i * T, *targets = b->ids + (rows + i) * T;

    for (int64_t t = 0; t < T; t++) {
        tokens[t] = t < n ? from[t] : 0;
        targets[t] = t < n && t >= n - span->scored ? from[t + 1] : -1;
    }
}

static ls_status sum_row(const ls_scorer *s, const batch *b, int64_t i, int64_t T,
                         ls_scorer_span *span)
{
    int64_t n = inputs_of(s, span);

    span->log_p = 0;
    for (int64_t t = n - span->scored; t < n; t++)
        span->log_p -= (double)b->losses[i * T + t];
    if (!isfinite(span->log_p))
        return ls_fail(LS_ENUMERIC, "the model's losses are not numbers");
    return LS_OK;
}

static ls_status run_call(ls_scorer *s, batch *b, const ls_tokens *ids, ls_scorer_span **spans,
                          int64_t rows)
{
    int64_t T = inputs_of(s, spans[0]), n = rows * T;
    int32_t *tokens = b->memory;
    float *losses = (float *)b->memory + 2 * n;
    ls_status st;

    for (int64_t i = 0; i < rows; i++)
        put_row(s, b, i, rows, T, ids, spans[i]);
    ls_stream_copy_in(s->stream, tokens, b->ids, 2 * n * (int64_t)sizeof *tokens);
    ls_pass_loss(b->pass, &(ls_pass_call){.w = s->w,
                                          .tokens = tokens,
                                          .targets = tokens + n,
                                          .B = rows,
                                          .T = T,
                                          .losses = losses,
                                          .leaves = 1});
    ls_stream_copy_out(s->stream, b->losses, losses, n * (int64_t)sizeof *losses);
    LS_TRY(st, ls_stream_sync(s->stream, ls_time_now_ns() + 3600 * LS_NS_PER_S), out);
    for (int64_t i = 0; i < rows; i++)
        LS_TRY(st, sum_row(s, b, i, T, spans[i]), out);
out:
    return st;
}

/* --- all spans -------------------------------------------------------------------------------- */

static int longer_first(const void *a, const void *b)
{
    const ls_scorer_span *x = *(ls_scorer_span *const *)a, *y = *(ls_scorer_span *const *)b;

    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return (x > y) - (x < y);
}

static ls_status check_ids(const ls_scorer *s, const ls_tokens *ids)
{
    for (int64_t i = 0; i < ids->count; i++)
        if (ids->ids[i] < 0 || ids->ids[i] >= s->model.shape.V)
            return ls_fail(LS_EUSAGE, "token %d is outside of the model's vocabulary of %lld",
                           ids->ids[i], (long long)s->model.shape.V);
    return LS_OK;
}

ls_status ls_scorer_run(ls_scorer *s, const ls_tokens *ids, ls_scorer_span *spans, int64_t n)
{
    ls_scorer_span **order = ls_mem_array((size_t)n, sizeof *order);
    batch b;
    ls_status st = order ? check_ids(s, ids) : LS_ENOMEM;

    if (st != LS_OK || n == 0)
        goto out;
    for (int64_t i = 0; i < n; i++) {
        LS_BUG_IF(spans[i].scored < 1 || spans[i].scored > inputs_of(s, &spans[i]),
                  "%lld of %lld tokens scored", (long long)spans[i].scored,
                  (long long)spans[i].count);
        order[i] = &spans[i];
    }
    qsort(order, (size_t)n, sizeof *order, longer_first);
    LS_TRY(st, batch_open(s, &b, inputs_of(s, order[0]), n), out);
    for (int64_t i = 0, rows; i < n && st == LS_OK; i += rows) {
        rows = ls_min_i64(b.B, n - i);
        st = run_call(s, &b, ids, order + i, rows);
        if (st == LS_OK && s->progress)
            s->progress(s->context, i + rows, n);
    }
    batch_close(s, &b);
out:
    ls_mem_free(order);
    return st;
}
