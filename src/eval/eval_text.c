/* eval_text.c -- windows over a long text.
 *
 * The token before the first one is the prefix, so that every token is predicted. The first window
 * predicts as many tokens as the context has, and each following one the next `stride`:
 *
 *   context 4, stride 2      prefix  a b c d e f g h
 *   window 1                 [prefix a b c] predicts a b c d
 *   window 2                          [b c d e] predicts e f, from at least 3 tokens
 *   window 3                              [d e f g] predicts g h
 *
 * With the stride of the context, windows share one token; that is what lm_eval computes. */
#include "eval/eval_text.h"

#include "base/mem.h"
#include "eval/text_measure.h"

/* Tokens of the text, behind the prefix where there is one. */
static ls_status encode(const ls_scorer *scorer, const char *text, size_t len, ls_tokens *ids)
{
    int32_t prefix = ls_scorer_prefix(scorer);
    ls_status st = LS_OK;

    if (prefix >= 0) {
        LS_TRY(st, ls_tokens_reserve(ids, 1), out);
        ids->ids[ids->count++] = prefix;
    }
    LS_TRY(st, ls_scorer_encode(scorer, text, len, false, ids), out);
    if (ids->count < 2)
        st = ls_fail(LS_EDATA, "the text has no token to predict");
out:
    return st;
}

/* The windows over ids; owned by the caller. */
static ls_status make_windows(const ls_scorer *scorer, const ls_tokens *ids, int64_t stride,
                              ls_scorer_span **spans_out, int64_t *n_out)
{
    int64_t T = ls_scorer_context(scorer), all = ids->count - 1, n = 0;
    ls_scorer_span *spans = ls_mem_array((size_t)(all / stride + 2), sizeof *spans);

    if (!spans)
        return LS_ENOMEM;
    for (int64_t done = 0; done < all;) {
        int64_t scored = ls_min_i64(done ? stride : T, all - done);
        int64_t from = done + scored - T > 0 ? done + scored - T : 0;
        done += scored;
        spans[n++] = (ls_scorer_span){.first = from, .count = done + 1 - from, .scored = scored};
    }
    *spans_out = spans;
    *n_out = n;
    return LS_OK;
}

ls_status ls_eval_text_run(ls_scorer *scorer, const char *text, size_t len, int64_t stride,
                           ls_eval_text *result_out)
{
    ls_eval_text r = {.bytes = (int64_t)len, .words = ls_text_measure_words(text, len)};
    ls_scorer_span *spans = NULL;
    ls_tokens ids;
    ls_status st;

    ls_tokens_init(&ids);
    LS_TRY(st, encode(scorer, text, len, &ids), out);
    LS_TRY(st,
           make_windows(scorer, &ids, stride > 0 ? stride : ls_scorer_context(scorer), &spans,
                        &r.windows),
           out);
    LS_TRY(st, ls_scorer_run(scorer, &ids, spans, r.windows), out);
    for (int64_t i = 0; i < r.windows; i++) {
        r.tokens += spans[i].scored;
        r.log_p += spans[i].log_p;
    }
    *result_out = r;
out:
    ls_mem_free(spans);
    ls_tokens_release(&ids);
    return st;
}
