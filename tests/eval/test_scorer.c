/* test_scorer.c -- scores of spans, perplexity of texts, questions with choices. */
#include "harness.h"

#include <math.h>
#include "base/file.h"
#include "data/tokenizer/bpe_train.h"
#include "eval/eval_choices.h"
#include "eval/eval_text.h"
#include "eval/text_measure.h"
#include "hf/hub.h"

enum { CONTEXT = 16 };

/* A random model with the tokenizer "bytes", which has no token that texts begin with. */
static ls_scorer *open_scorer(void)
{
    ls_hf_folder *folder = NULL;
    ls_scorer *scorer = NULL;
    hub s;

    hub_init(&s, "family: llama, layers: 2, width: 16, heads: 2, context: 16, mlp: 24, vocab: 256, "
                 "init_std: 0.5");
    hub_write(&s, "hf", 1);
    LS_CHECK_OK(ls_bpe_train_write_bytes("hf"));
    LS_CHECK_OK(ls_hf_folder_open(&folder, "hf", -1));
    LS_CHECK_OK(ls_scorer_open(&scorer, folder));
    ls_hf_folder_close(folder);
    hub_release(&s);
    return scorer;
}

static double score(ls_scorer *scorer, const ls_tokens *ids, int64_t first, int64_t count,
                    int64_t scored)
{
    ls_scorer_span span = {.first = first, .count = count, .scored = scored};

    LS_CHECK_OK(ls_scorer_run(scorer, ids, &span, 1));
    return span.log_p;
}

LS_TEST(scorer_sums_what_single_tokens_have)
{
    ls_scorer *scorer = open_scorer();
    double sum = 0;
    ls_tokens ids;

    ls_tokens_init(&ids);
    LS_CHECK_OK(ls_scorer_encode(scorer, "The sun had gone down", 21, false, &ids));
    LS_CHECK_EQ(ids.count, 21);
    for (int64_t n = 6; n <= 12; n++)
        sum += score(scorer, &ids, 0, n, 1);
    LS_CHECK_NEAR(score(scorer, &ids, 0, 12, 7), sum, 1e-5);
    LS_CHECK(sum < -7); /* a random model does not know */
    /* Beyond the context the first tokens are left out. */
    LS_CHECK_NEAR(score(scorer, &ids, 0, 21, 3), score(scorer, &ids, 4, CONTEXT + 1, 3), 0);
    ls_tokens_release(&ids);
    ls_scorer_close(scorer);
}

LS_TEST(scorer_does_not_care_what_is_computed_together)
{
    enum { N = 70 };
    ls_scorer *scorer = open_scorer();
    ls_scorer_span spans[N];
    ls_tokens ids;

    ls_tokens_init(&ids);
    for (int i = 0; i < 200; i++)
        LS_CHECK_OK(ls_scorer_encode(scorer, &"abcdefghij"[i * 7 % 10], 1, true, &ids));
    for (int i = 0; i < N; i++)
        spans[i] = (ls_scorer_span){.first = i, .count = 2 + i * 5 % 30, .scored = 1 + i % 2};
    for (int i = 0; i < N; i++)
        if (spans[i].scored >= spans[i].count)
            spans[i].scored = 1;
    LS_CHECK_OK(ls_scorer_run(scorer, &ids, spans, N));
    for (int i = 0; i < N; i++)
        LS_CHECK(score(scorer, &ids, spans[i].first, spans[i].count, spans[i].scored) ==
                 spans[i].log_p);
    LS_CHECK_OK(ls_scorer_run(scorer, &ids, spans, 0));
    ids.ids[3] = 256;
    LS_CHECK_FAILS(ls_scorer_run(scorer, &ids, spans, N), LS_EUSAGE, "token 256 is outside");
    ls_tokens_release(&ids);
    ls_scorer_close(scorer);
}

LS_TEST(eval_text_scores_each_token_once)
{
    static const char text[] = "The children walked home along the river, tired but happy.";
    enum { LEN = sizeof text - 1 };
    ls_scorer *scorer = open_scorer();
    ls_eval_text r, one;
    double sum = 0;
    ls_tokens ids;

    ls_tokens_init(&ids);
    for (int64_t stride = 1; stride <= CONTEXT; stride++) {
        LS_CHECK_OK(ls_eval_text_run(scorer, text, LEN, stride, &r));
        LS_CHECK_EQ(r.tokens, LEN - 1);
        LS_CHECK_EQ(r.windows, 1 + (LEN - 1 - CONTEXT + stride - 1) / stride);
        LS_CHECK(r.log_p < 0);
    }
    LS_CHECK_EQ(r.bytes, LEN);
    LS_CHECK_EQ(r.words, 10);
    LS_CHECK_OK(ls_eval_text_run(scorer, text, LEN, 0, &one));
    LS_CHECK(one.log_p == r.log_p); /* 0 is the context */
    /* With a stride of 1 each token has as much context as there can be. */
    LS_CHECK_OK(ls_eval_text_run(scorer, text, LEN, 1, &one));
    LS_CHECK_OK(ls_scorer_encode(scorer, text, LEN, false, &ids));
    for (int64_t n = 2; n <= LEN; n++)
        sum += score(scorer, &ids, 0, n, 1);
    LS_CHECK_NEAR(one.log_p, sum, 1e-4);
    LS_CHECK_FAILS(ls_eval_text_run(scorer, "a", 1, 0, &r), LS_EDATA, "no token to predict");
    ls_tokens_release(&ids);
    ls_scorer_close(scorer);
}

/* The log-probability of text behind the query, by the scorer alone. */
static double of_choice(ls_scorer *scorer, const char *query, const char *choice)
{
    char whole[256];
    ls_tokens ids;

    ls_tokens_init(&ids);
    snprintf(whole, sizeof whole, "%s %s", query, choice);
    LS_CHECK_OK(ls_scorer_encode(scorer, whole, strlen(whole), false, &ids));
    double log_p = score(scorer, &ids, 0, ids.count, (int64_t)strlen(choice) + 1);
    ls_tokens_release(&ids);
    return log_p;
}

LS_TEST(eval_choices_takes_the_most_likely_one)
{
    static const char *const choices[] = {"blue", "green as grass", "red"};
    ls_scorer *scorer = open_scorer();
    ls_eval_choices r;
    int best = 0, best_norm = 0;
    char text[512];

    for (int i = 1; i < 3; i++) {
        double p = of_choice(scorer, "sky is", choices[i]);
        if (p > of_choice(scorer, "sky is", choices[best]))
            best = i;
        if (p / (double)strlen(choices[i]) >
            of_choice(scorer, "sky is", choices[best_norm]) / (double)strlen(choices[best_norm]))
            best_norm = i;
    }
    for (int gold = 0; gold < 3; gold++) {
        int len = snprintf(text, sizeof text,
                           "\n{\"question\":\"sky is\",\"choices\":[\"%s\",\"%s\",\"%s\"],"
                           "\"label\":\"%s\",\"id\":18446744073709551616,\"x\":NaN}\n  \n",
                           choices[0], choices[1], choices[2], choices[gold]);
        LS_CHECK_OK(ls_eval_choices_run(scorer, text, (size_t)len, " ", "q.jsonl", &r));
        LS_CHECK_EQ(r.questions, 1);
        LS_CHECK_EQ(r.choices, 3);
        LS_CHECK_EQ(r.acc == 1, gold == best);
        LS_CHECK_EQ(r.acc_norm == 1, gold == best_norm);
        LS_CHECK(r.acc_error == 0);
    }
    ls_scorer_close(scorer);
}

LS_TEST(eval_choices_says_which_line_is_wrong)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"", "has no question"},
        {"\n[1]", "line 2: it is not a JSON object"},
        {"{\"query\":\"a\xff\"}", "line 1: it is not UTF-8"},
        {"{\"query\":\"a\"", "line 1: it is not JSON"},
        {"{\"choices\":[\"a\",\"b\"],\"gold\":0}", "has no \"query\""},
        {"{\"query\":\"a\",\"choices\":[\"a\"],\"gold\":0}", "has no \"choices\" with two"},
        {"{\"query\":\"a\",\"choices\":[\"a\",\"b\"],\"gold\":2}", "\"gold\" is neither"},
        {"{\"query\":\"a\",\"choices\":[\"a\",\"b\"],\"gold\":\"c\"}", "\"gold\" is neither"},
        {"{\"query\":\"a\",\"choices\":[\"a\",\"b\"]}", "\"gold\" is neither"},
        {"{\"query\":\"a\",\"choices\":[\"a\",\"\"],\"gold\":0}", "choice 1 is not a text"},
        {"{\"query\":\"a\",\"choices\":[3,\"a\"],\"gold\":1}", "choice 0 is not a text"},
        {"{\"query\":\"a\",\"choices\":[\"a\",\"0123456789abcdef\"],\"gold\":0}",
         "a choice has 17 tokens, and the model's context is 16"},
    };
    ls_scorer *scorer = open_scorer();
    ls_eval_choices r;

    for (size_t i = 0; i < LS_COUNT(rows); i++)
        LS_CHECK_FAILS(
            ls_eval_choices_run(scorer, rows[i].text, strlen(rows[i].text), " ", "q", &r), LS_EDATA,
            rows[i].message);
    static const char empty[] = "{\"query\":\" \",\"choices\":[\"a\",\"b\"],\"gold\":0}";
    LS_CHECK_FAILS(ls_eval_choices_run(scorer, empty, sizeof empty - 1, " ", "q", &r), LS_EUSAGE,
                   "a query is empty");
    ls_scorer_close(scorer);
}

LS_TEST(text_measure_counts_as_python_does)
{
    static const char text[] = " na\xc3\xafve\xe3\x80\x80\t\xf0\x9f\xa6\x99 x \xc2\xa0\n";
    enum { LEN = sizeof text - 1 };

    LS_CHECK_EQ(ls_text_measure_words(text, LEN), 5); /* "", naive, llama, x, "" */
    LS_CHECK_EQ(ls_text_measure_words("", 0), 1);
    LS_CHECK_EQ(ls_text_measure_characters(text, LEN), 14);
    LS_CHECK_EQ(ls_text_measure_trimmed(text, LEN), LEN - 4);
    LS_CHECK_EQ(ls_text_measure_trimmed(" \n", 2), 0);
    LS_CHECK_EQ(ls_text_measure_characters("\xff\xc3", 2), 2);
}
