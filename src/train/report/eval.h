/* eval.h -- how good the weights are: the validation loss, and a text that the model makes.
 *
 * The first rank reports both as events; all ranks of a run call them together. */
#pragma once
#include "train/session/session.h"

typedef struct ls_eval {
    int32_t *windows; /* tokens, targets and starts of a call of validation windows; owned */
    double *losses;   /* numbers of all windows (ls_eval_numbers); owned */
    ls_preference_reference *references; /* of the pairs of a call; NULL: no pairs; owned */
    ls_str sample;
} ls_eval;

void ls_eval_init(ls_eval *eval);
void ls_eval_release(ls_eval *eval);

/* Memory for the calls of this rank; once more when the ranks have changed. */
ls_status ls_eval_open(ls_eval *eval, const ls_session *session);

/* Windows to measure: n of those for validation, evenly spread; or all n pairs of the corpus, with
 * nothing to compare with. */
typedef struct ls_eval_windows {
    int64_t n;
    bool pairs;
} ls_eval_windows;

/* The numbers of each window under the weights as they are, [ls_step_numbers(), n], on all ranks; and
 * behind them how many targets (or pairs) they have. */
ls_status ls_eval_numbers(const ls_eval *eval, ls_session *session, const ls_eval_windows *which,
                          double *numbers_out);

/* The mean loss of eval.sequences windows, evenly spread over the text that is kept for it, into
 * session->val_loss. */
ls_status ls_eval_loss(ls_eval *eval, ls_session *session);

/* A continuation of eval.sample by up to count tokens. */
ls_status ls_eval_sample(ls_eval *eval, ls_session *session, int64_t count);
