/* eval_choices.c -- questions of a JSONL file, by the rules of lm_eval's multiple_choice tasks.
 *
 * All choices of all questions become spans first, so that the scorer can compute those of similar
 * length together. Of equal scores the first choice wins, as with numpy's argmax. */
#include "eval/eval_choices.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "base/json_line.h"
#include "data/tokenizer/utf8.h"
#include "eval/text_measure.h"

#include <jansson.h>

typedef struct question {
    int64_t line;
    int64_t first, count, gold; /* of its choices */
} question;

typedef struct job {
    ls_scorer *scorer;
    const char *delimiter, *name;
    ls_tokens ids;
    question *questions; /* owned */
    int64_t n, cap;
    ls_scorer_span *spans; /* one a choice, owned */
    int64_t *characters;   /* likewise */
    int64_t n_choices, cap_choices;
    ls_str whole; /* scratch: query, delimiter, choice */
} job;

static ls_status LS_PRINTF(3, 4) wrong(const job *j, int64_t line, const char *fmt, ...)
{
    char what[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    ls_status st = ls_fail(LS_EDATA, "\"%s\", line %lld: %s", j->name, (long long)line, what);
    ls_err_hint(
        "A line is such as {\"query\": \"The sky is\", \"choices\": [\"blue\", \"cheese\"], "
        "\"gold\": 0}.");
    return st;
}

/* --- spans ------------------------------------------------------------------------------------ */

static ls_status reserve(job *j)
{
    if (j->n == j->cap) {
        int64_t cap = j->cap ? 2 * j->cap : 256;
        question *more = ls_mem_resize(j->questions, (size_t)cap * sizeof *more);
        if (!more)
            return LS_ENOMEM;
        j->questions = more;
        j->cap = cap;
    }
    return LS_OK;
}

static ls_status reserve_choices(job *j, int64_t more)
{
    int64_t cap = j->cap_choices ? j->cap_choices : 1024;

    while (cap < j->n_choices + more)
        cap *= 2;
    if (cap == j->cap_choices)
        return LS_OK;
    ls_scorer_span *spans = ls_mem_resize(j->spans, (size_t)cap * sizeof *spans);
    if (spans)
        j->spans = spans;
    int64_t *characters = ls_mem_resize(j->characters, (size_t)cap * sizeof *characters);
    if (characters)
        j->characters = characters;
    if (!spans || !characters)
        return LS_ENOMEM;
    j->cap_choices = cap;
    return LS_OK;
}

/* A query that is empty: the choice alone, behind the token that texts begin with. Where that is the
 * choice's own first token, it is not scored. */
static ls_status encode_alone(job *j, const char *choice, int64_t *context_out)
{
    int32_t prefix = ls_scorer_prefix(j->scorer);
    int64_t before = j->ids.count;
    ls_status st;

    if (prefix < 0) {
        st = ls_fail(LS_EUSAGE, "a query is empty, and the tokenizer has no token that texts begin "
                                "or end with to predict the first one from");
        return st;
    }
    LS_TRY(st, ls_tokens_reserve(&j->ids, 1), out);
    j->ids.ids[j->ids.count++] = prefix;
    LS_TRY(st, ls_scorer_encode(j->scorer, choice, strlen(choice), true, &j->ids), out);
    if (j->ids.count > before + 1 && j->ids.ids[before + 1] == prefix) {
        j->ids.count--;
        memmove(j->ids.ids + before, j->ids.ids + before + 1,
                (size_t)(j->ids.count - before) * sizeof *j->ids.ids);
    }
    *context_out = 1;
out:
    return st;
}

/* Query and choice as one text; the tokens behind those of the query alone are scored. */
static ls_status encode_pair(job *j, const char *query, size_t len, int64_t *context_out)
{
    int64_t before = j->ids.count;
    ls_status st;

    LS_TRY(st, ls_scorer_encode(j->scorer, query, len, false, &j->ids), out);
    *context_out = j->ids.count - before;
    j->ids.count = before;
    st = ls_scorer_encode(j->scorer, j->whole.p, j->whole.len, false, &j->ids);
out:
    return st;
}

static ls_status add_choice(job *j, int64_t line, const char *query, const char *choice)
{
    ls_scorer_span *span = &j->spans[j->n_choices];
    int64_t first = j->ids.count, context = 0;
    size_t len = ls_text_measure_trimmed(query, strlen(query));
    ls_status st;

    ls_str_clear(&j->whole);
    if (len)
        ls_str_append(&j->whole, query);
    ls_str_append(&j->whole, j->delimiter);
    ls_str_append(&j->whole, choice);
    LS_TRY(st, ls_str_status(&j->whole), out);
    LS_TRY(st, len ? encode_pair(j, query, len, &context) : encode_alone(j, j->whole.p, &context),
           out);
    *span = (ls_scorer_span){
        .first = first, .count = j->ids.count - first, .scored = j->ids.count - first - context};
    if (span->scored < 1 || context < 1)
        st = wrong(j, line, "\"%.60s\" has no token of its own behind the query", choice);
    else if (span->scored > ls_scorer_context(j->scorer))
        st = wrong(j, line, "a choice has %lld tokens, and the model's context is %lld",
                   (long long)span->scored, (long long)ls_scorer_context(j->scorer));
    j->characters[j->n_choices++] = ls_text_measure_characters(choice, strlen(choice));
out:
    return st;
}

/* --- reading ---------------------------------------------------------------------------------- */

static json_t *one_of(const json_t *line, const char *const *names)
{
    json_t *value = NULL;

    for (int i = 0; names[i] && !value; i++)
        value = json_object_get(line, names[i]);
    return value;
}

/* The number of the right choice; -1: none. */
static int64_t find_gold(const json_t *choices, const json_t *gold)
{
    if (json_is_integer(gold)) {
        json_int_t n = json_integer_value(gold);
        return n >= 0 && n < (json_int_t)json_array_size(choices) ? (int64_t)n : -1;
    }
    for (size_t i = 0; json_is_string(gold) && i < json_array_size(choices); i++)
        if (json_equal(json_array_get(choices, i), gold))
            return (int64_t)i;
    return -1;
}

static ls_status add_question(job *j, int64_t line, const json_t *object)
{
    static const char *const queries[] = {"query", "question", "context", NULL};
    static const char *const golds[] = {"gold", "answer", "label", NULL};
    const json_t *query = one_of(object, queries);
    const json_t *choices = json_object_get(object, "choices"), *choice;
    int64_t gold = find_gold(choices, one_of(object, golds));
    size_t i;
    ls_status st;

    if (!json_is_string(query))
        return wrong(j, line, "it has no \"query\" with a text");
    if (json_array_size(choices) < 2)
        return wrong(j, line, "it has no \"choices\" with two texts or more");
    if (gold < 0)
        return wrong(j, line, "\"gold\" is neither the number nor the text of a choice");
    LS_TRY(st, reserve(j), out);
    LS_TRY(st, reserve_choices(j, (int64_t)json_array_size(choices)), out);
    j->questions[j->n++] = (question){.line = line,
                                      .first = j->n_choices,
                                      .count = (int64_t)json_array_size(choices),
                                      .gold = gold};
    json_array_foreach(choices, i, choice)
    {
        if (json_string_length(choice) == 0)
            return wrong(j, line, "choice %zu is not a text, or is empty", i);
        LS_TRY(st, add_choice(j, line, json_string_value(query), json_string_value(choice)), out);
    }
out:
    return st;
}

static ls_status read_line(job *j, int64_t line, const char *at, size_t n)
{
    static const char *const used[] = {"query", "question", "context", "choices",
                                       "gold",  "answer",   "label",   NULL};
    ls_json_line_found found;
    json_error_t error;

    if (ls_utf8_valid(at, n) != n)
        return wrong(j, line, "it is not UTF-8");
    json_t *object = ls_json_line_parse(at, n, used, &found, &error);
    ls_status st =
        object && found.surrogate
            ? wrong(j, line, "a text has half of a surrogate pair, which is no character")
        : json_is_object(object) ? add_question(j, line, object)
        : object                 ? wrong(j, line, "it is not a JSON object")
                                 : wrong(j, line, "it is not JSON: %s", error.text);
    json_decref(object);
    return st;
}

static ls_status read_lines(job *j, const char *text, size_t len)
{
    const char *end = text + len;
    int64_t line = 1;
    ls_status st = LS_OK;

    for (const char *at = text; at < end && st == LS_OK; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((stop ? stop : end) - at);
        if (ls_text_measure_trimmed(at, n) > 0) {
            st = read_line(j, line, at, n);
        }
        at += n + 1;
    }
    if (st == LS_OK && j->n == 0)
        st = ls_fail(LS_EDATA, "\"%s\" has no question", j->name);
    return st;
}

/* --- the result ------------------------------------------------------------------------------- */

static bool is_right(const job *j, const question *q, bool norm)
{
    int64_t best = 0;
    double best_score = 0;

    for (int64_t i = 0; i < q->count; i++) {
        double score = j->spans[q->first + i].log_p;
        if (norm)
            score /= (double)j->characters[q->first + i];
        if (i == 0 || score > best_score) {
            best = i;
            best_score = score;
        }
    }
    return best == q->gold;
}

/* Of a share p of n: the deviation of single answers by the root of their number. */
static double error_of(double p, int64_t n)
{
    return n > 1 ? sqrt(p * (1 - p) / (double)(n - 1)) : 0;
}

ls_status ls_eval_choices_run(ls_scorer *scorer, const char *text, size_t len,
                              const char *delimiter, const char *name, ls_eval_choices *result_out)
{
    job j = {.scorer = scorer, .delimiter = delimiter, .name = name};
    int64_t right = 0, right_norm = 0;
    ls_status st;

    ls_tokens_init(&j.ids);
    ls_str_init(&j.whole);
    LS_TRY(st, read_lines(&j, text, len), out);
    LS_TRY(st, ls_scorer_run(scorer, &j.ids, j.spans, j.n_choices), out);
    for (int64_t i = 0; i < j.n; i++) {
        right += is_right(&j, &j.questions[i], false);
        right_norm += is_right(&j, &j.questions[i], true);
    }
    ls_eval_choices r = {.questions = j.n,
                         .choices = j.n_choices,
                         .acc = (double)right / (double)j.n,
                         .acc_norm = (double)right_norm / (double)j.n};
    r.acc_error = error_of(r.acc, j.n);
    r.acc_norm_error = error_of(r.acc_norm, j.n);
    *result_out = r;
out:
    ls_tokens_release(&j.ids);
    ls_str_release(&j.whole);
    ls_mem_free(j.questions);
    ls_mem_free(j.spans);
    ls_mem_free(j.characters);
    return st;
}
