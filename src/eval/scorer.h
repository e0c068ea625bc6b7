/* scorer.h -- log-probabilities of tokens under a model.
 *
 * A span is a row of tokens of which the last ones are scored, each given all before it:
 *
 *   tokens   the  sun  had  gone  down      scored 2: log p(gone | the sun had)
 *                           ^^^^^^^^^^^              + log p(down | the sun had gone)
 *
 * Not thread-safe: one thread a scorer. */
#pragma once
#include "data/tokenizer/tokenizer.h"
#include "hf/hf_folder.h"

LS_C_BEGIN

typedef struct ls_scorer ls_scorer;

/* Told after each call: spans done, and in all. */
typedef void ls_scorer_progress(void *context, int64_t done, int64_t all);

/* Read the model into memory, on a GPU where the program has one. The folder may be closed
 * afterwards. LS_EUSAGE: no tokenizer lies beside the model. */
ls_status ls_scorer_open(ls_scorer **scorer_out, const ls_hf_folder *folder);
void ls_scorer_close(ls_scorer *scorer); /* NULL is allowed */
void ls_scorer_watch(ls_scorer *scorer, ls_scorer_progress *progress, void *context);

int64_t ls_scorer_context(const ls_scorer *scorer); /* tokens that a span can be scored from */

/* The ids of a text as they stand in a document: with what the tokenizer puts around it, unless the
 * text has its first token already; special tokens that are spelled out count as such. plain: only
 * the text's own ids. Appended to ids. */
ls_status ls_scorer_encode(const ls_scorer *scorer, const char *text, size_t len, bool plain,
                           ls_tokens *ids);

/* The token that the first one of a text is predicted from: the one that texts begin with, else
 * the one that they end with; -1: none. */
int32_t ls_scorer_prefix(const ls_scorer *scorer);

typedef struct ls_scorer_span {
    int64_t first, count; /* tokens; longer than the context + 1: the first ones are left out */
    int64_t scored;       /* the last ones, at most count - 1 and the context */
    double log_p;         /* the result: sum of natural logarithms */
} ls_scorer_span;

/* Fill log_p of n spans of ids. LS_EUSAGE: an id outside the vocabulary. LS_ENUMERIC: the model's
 * losses are not numbers. */
ls_status ls_scorer_run(ls_scorer *scorer, const ls_tokens *ids, ls_scorer_span *spans, int64_t n);

LS_C_END
