/* eval_choices.h -- questions with choices, answered by the likelihood of each.
 *
 * A file has a question on each line:
 *
 *   {"query": "The sky is", "choices": ["blue", "made of cheese"], "gold": 0}
 *
 * query     the text before the answer; also called question or context
 * choices   at least two texts, none of them empty
 * gold      the number of the right one, from 0, or its text; also called answer or label
 *
 * Other keys do not matter. The model reads the query, a delimiter (a blank unless given) and a
 * choice, and the tokens of delimiter and choice are scored. White space at the end of a query counts
 * as part of the choices, so that words begin where the model expects them to.
 *
 * acc       share of questions whose right choice has the highest log-probability
 * acc_norm  the same, with log-probabilities divided by the characters of the choice */
#pragma once
#include "eval/scorer.h"

LS_C_BEGIN

typedef struct ls_eval_choices {
    int64_t questions, choices;
    double acc, acc_norm;
    double acc_error, acc_norm_error; /* standard errors; 0 for a single question */
} ls_eval_choices;

/* name stands in messages. LS_EDATA: a line is not such a question; the message has its number. */
ls_status ls_eval_choices_run(ls_scorer *scorer, const char *text, size_t len,
                              const char *delimiter, const char *name, ls_eval_choices *result_out);

LS_C_END
