/* decode.c -- what of a history is new, and the logits after it.
 *
 * held[0..n_held-1] are the tokens whose keys and values the cache has, at positions 0, 1, ... A
 * history is read from `first` on; as far as it begins with what is held nothing is computed again.
 * The last token is always computed: its logits are wanted. So a chat that grows, a retry from an
 * earlier point and an unrelated text are the same case, and nothing has to be announced.
 *
 * Where the history outgrows a cache of c = 8 positions (a half is 4):
 *
 *   n        1 .. 8   9 .. 12   13 .. 16   ...
 *   first    0        4         8          ...      read again at n = 9, 13, ...: 5 tokens each
 */
#include "model/decode.h"

#include <math.h>
#include "base/mem.h"
#include "base/time.h"

struct ls_decode {
    const ls_model *model;
    ls_pass *pass;
    ls_stream *stream;
    int64_t T, cache; /* of the pass */
    bool whole;       /* without a cache every call is of T tokens */
    void *memory;     /* owned, device: tokens, then logits */
    int32_t *tokens;  /* [T] */
    float *logits;    /* [V] */
    float *host;      /* [V], owned */
    int32_t *counts;  /* [V], owned, zero between calls */
    void *scratch;    /* of the choice, owned */
    int32_t *held;    /* [cache], owned */
    int64_t n_held;
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
    ls_pass_args about = ls_pass_describe(pass);
    size_t V = (size_t)model->shape.V;
    ls_decode *d = ls_mem_alloc(sizeof *d);

    if (!d)
        return LS_ENOMEM;
    LS_BUG_IF(model->shape.positions && about.cache > model->shape.positions,
              "a cache of %lld positions for a model of %lld", (long long)about.cache,
              (long long)model->shape.positions);
    d->model = model;
    d->pass = pass;
    d->stream = stream;
    d->T = ls_min_i64(about.T, model->shape.T);
    d->cache = about.cache;
    d->whole = !ls_device_describe(ls_stream_device(stream)).host_memory;
    d->host = ls_mem_array(V, sizeof *d->host);
    d->counts = ls_mem_array(V, sizeof *d->counts);
    d->scratch = ls_mem_alloc(ls_sampling_bytes(model->shape.V));
    d->held = ls_mem_array((size_t)d->cache, sizeof *d->held);
    if (!d->host || !d->counts || !d->scratch || !d->held) {
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
    ls_mem_free(decode->counts);
    ls_mem_free(decode->scratch);
    ls_mem_free(decode->held);
    ls_mem_free(decode);
}

void ls_decode_forget(ls_decode *decode)
{
    decode->n_held = 0;
}

const float *ls_decode_logits(const ls_decode *decode)
{
    return decode->host;
}

int64_t ls_decode_first(int64_t n, int64_t cache)
{
    int64_t half = ls_max_i64(cache / 2, 1);

    return n <= cache ? 0 : ls_round_up(n - cache, half);
}

/* One call of the model over T tokens after `past` others; their logits only where wanted. A wrong
 * token is refused here, since a stream on which work failed stays so.
 * A GPU prepares each size of call when it first comes, which takes longer than computing: there a
 * text without a cache is filled up to T with tokens of earlier calls (0 at first), which the ones
 * before them do not see. */
static ls_status call_model(ls_decode *d, const void *w, const int32_t *tokens, int64_t T,
                            int64_t past, bool logits)
{
    const ls_pass_call call = {.w = w,
                               .tokens = d->tokens,
                               .B = 1,
                               .T = d->whole && !d->cache ? d->T : T,
                               .past = past,
                               .leaves = 1};
    int64_t V = d->model->shape.V;

    for (int64_t i = 0; i < T; i++)
        if (tokens[i] < 0 || tokens[i] >= V)
            return ls_fail(LS_EUSAGE, "token %d is outside the model's vocabulary of %lld",
                           tokens[i], (long long)V);
    ls_stream_copy_in(d->stream, d->tokens, tokens, T * (int64_t)sizeof *tokens);
    if (logits)
        ls_pass_logits(d->pass, &call, T - 1, d->logits);
    else
        ls_pass_forward(d->pass, &call);
    return LS_OK;
}

static ls_status wait_for(ls_decode *d)
{
    return ls_stream_sync(d->stream, ls_time_now_ns() + 600 * LS_NS_PER_S);
}

/* Bring the cache to the first n tokens of a text that fits into it. */
static ls_status read_text(ls_decode *d, const void *w, const int32_t *text, int64_t n, bool logits)
{
    ls_status st = LS_OK;
    int64_t at = 0;

    while (at < n && at < d->n_held && text[at] == d->held[at])
        at++;
    if (at == n && logits)
        at--;
    d->n_held = at; /* what follows is overwritten, or of another text */
    while (at < n) {
        int64_t T = ls_min_i64(d->T, n - at);
        LS_TRY(st, call_model(d, w, text + at, T, at, logits && at + T == n), out);
        /* The tokens' buffer is used again by the next call. */
        LS_TRY(st, wait_for(d), out);
        memcpy(d->held + at, text + at, (size_t)T * sizeof *text);
        d->n_held = at += T;
    }
out:
    return st;
}

ls_status ls_decode_read(ls_decode *decode, const void *w, const int32_t *history, int64_t n)
{
    int64_t first = ls_decode_first(n, decode->cache);

    if (decode->cache == 0)
        return LS_OK;
    return read_text(decode, w, history + first, n - first, false);
}

ls_status ls_decode_next(ls_decode *decode, const void *w, const int32_t *history, int64_t n,
                         const ls_sampling *sampling, uint64_t position, int32_t *token_out)
{
    ls_decode *d = decode;
    /* Rows that no token of the tokenizer uses still have logits; they stand for nothing. */
    int64_t V = d->model->tokens;
    ls_status st;

    if (d->cache > 0) {
        int64_t first = ls_decode_first(n, d->cache);
        LS_TRY(st, read_text(d, w, history + first, n - first, true), out);
    } else {
        int64_t T = ls_min_i64(n, d->T);
        LS_TRY(st, call_model(d, w, history + (n - T), T, 0, true), out);
    }
    ls_stream_copy_out(d->stream, d->host, d->logits, d->model->shape.V * (int64_t)sizeof *d->host);
    LS_TRY(st, wait_for(d), out);
    for (int64_t i = 0; i < V; i++)
        if (!(d->host[i] < INFINITY)) {
            st = ls_fail(LS_ENUMERIC, "the model gives token %lld a logit that is not a number",
                         (long long)i);
            ls_err_hint("Its weights are damaged or training diverged: try an earlier checkpoint.");
            goto out;
        }
    ls_sampling_penalize(d->host, d->counts, V, history, n, sampling);
    *token_out = ls_sampling_choose(d->host, d->scratch, V, sampling, position);
out:
    return st;
}
