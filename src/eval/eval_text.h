/* eval_text.h -- the perplexity of a text. */
#pragma once
#include "eval/scorer.h"

LS_C_BEGIN

typedef struct ls_eval_text {
    int64_t tokens;       /* that were predicted */
    int64_t words, bytes; /* of the text; words as lm_eval counts them: between white space */
    int64_t windows;
    double log_p; /* of all tokens, natural logarithm */
} ls_eval_text;

/* Score a text in windows of the context's length, each of which predicts the next stride tokens;
 * 1 <= stride <= context, 0: the context. With less than the context windows overlap, and tokens
 * are predicted from more. LS_EDATA: there is nothing to predict in it. */
ls_status ls_eval_text_run(ls_scorer *scorer, const char *text, size_t len, int64_t stride,
                           ls_eval_text *result_out);

LS_C_END
