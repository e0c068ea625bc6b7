/* test_preference_data.c -- lines of preferences: laid into windows, kept in order, refused by their place. */
#include "data/chat/preference_data.h"

#include "base/mem.h"
#include "data/corpus/token_shard.h"
#include "harness.h"

/* The windows of the lines as text: tokens, "." for the separator, upper case where a token is a
 * target; | between documents, / between windows. */
static void show(const char *path, ls_str *out)
{
    ls_token_shard shard;
    int64_t document = 0;

    LS_CHECK_OK(ls_token_shard_open(&shard, path));
    LS_CHECK_OK(ls_token_shard_verify(&shard));
    for (int64_t i = 0; i < shard.tokens; i++) {
        int32_t id;
        LS_CHECK_OK(ls_token_shard_read(&shard, i, 1, &id));
        if (i > 0 && i % shard.window == 0)
            ls_str_append_char(out, '/');
        if (document < shard.documents && ls_token_shard_start(&shard, document) == i &&
            document++ && i % shard.window != 0)
            ls_str_append_char(out, '|');
        char c = id >= ' ' && id < 128 ? (char)id : '.';
        bool target = ls_token_shard_is_target(&shard, i);
        ls_str_append_char(out, target && c >= 'a' && c <= 'z' ? (char)(c - 32)
                                : target && c == '.'           ? '!'
                                                               : c);
    }
    ls_token_shard_close(&shard);
}

static ls_status build(ls_objective objective, const char *lines, int64_t window, bool skip)
{
    FILE *file = fopen("p.jsonl", "w");
    const char *name = "p.jsonl";
    ls_tokenizer *tok;

    LS_CHECK(file);
    fputs(lines, file);
    fclose(file);
    LS_CHECK_OK(ls_tokenizer_open(&tok, "bytes"));
    ls_status st = ls_preference_data_build(&(ls_preference_data_args){.objective = objective,
                                                                       .tok = tok,
                                                                       .out = "p.lst",
                                                                       .files = &name,
                                                                       .n_files = 1,
                                                                       .name = name,
                                                                       .skip_bad = skip,
                                                                       .window = window});
    ls_tokenizer_free(tok);
    return st;
}

static void check(ls_objective objective, const char *lines, int64_t window, const char *want)
{
    ls_str got;

    ls_str_init(&got);
    LS_CHECK_OK(build(objective, lines, window, false));
    show("p.lst", &got);
    LS_CHECK_STR(got.p, want);
    ls_str_release(&got);
}

#define PAIR "{\"prompt\": \"pqr\", \"chosen\": \"cc\", \"rejected\": \"n\"}\n"

LS_TEST(preference_data_is_a_pair_a_window)
{
    /* "!" is the end token as a target */
    check(LS_OBJECTIVE_DPO, PAIR, 16, "pqrCC!|pqrN!|.....");
    check(LS_OBJECTIVE_DPO, PAIR PAIR, 12, "pqrCC!|pqrN!|./pqrCC!|pqrN!|.");
    check(LS_OBJECTIVE_ORPO, PAIR, 16, "pQRCC!|pqrN!|.....");
}

LS_TEST(preference_data_finds_the_prompt)
{
    check(LS_OBJECTIVE_DPO, "{\"chosen\": \"do: yes\", \"rejected\": \"do: no\"}\n", 20,
          "do: YES!|do: NO!|.....");
    check(LS_OBJECTIVE_DPO, "{\"prompt\": \"\", \"chosen\": \"aa\", \"rejected\": \"bb\"}\n", 8,
          "aA!|bB!|..");
}

LS_TEST(preference_data_cuts_and_drops)
{
    LS_EXPECT_LOG(1);
    check(LS_OBJECTIVE_DPO,
          PAIR "{\"prompt\": \"pqrstuvwxyz\", \"chosen\": \"c\", \"rejected\": \"n\"}\n"
               "{\"prompt\": \"p\", \"chosen\": \"cccccccc\", \"rejected\": \"n\"}\n",
          12, "pqrCC!|pqrN!|./pCCCCC|pN!|...");
}

/* Each takes the answer of the line before, the first of the last, and comes last; the mark of a
 * window's first token says that the answer is desirable. */
LS_TEST(preference_data_of_kto)
{
    check(LS_OBJECTIVE_KTO,
          "{\"prompt\": \"a\", \"completion\": \"x\", \"label\": true}\n"
          "{\"prompt\": \"b\", \"completion\": \"yy\", \"label\": false}\n"
          "{\"prompt\": \"c\", \"completion\": \"z\", \"label\": 1}\n",
          8, "bYY!|bX!|./CZ!|cYY!|./AX!|aZ!|..");
}

LS_TEST(preference_data_names_a_bad_line)
{
    static const struct {
        ls_objective objective;
        const char *line, *why;
    } bad[] = {
        {LS_OBJECTIVE_DPO, "{\"prompt\": \"a\"}\n", "p.jsonl:2: the line has no \"chosen\""},
        {LS_OBJECTIVE_DPO, "{\"prompt\": \"a\", \"chosen\": \"b\"}\n",
         "p.jsonl:2: the line has no \"rejected\""},
        {LS_OBJECTIVE_DPO, "{\"prompt\": \"a\\ud800\", \"chosen\": \"b\", \"rejected\": \"c\"}\n",
         "p.jsonl:2: the text has half of a surrogate pair"},
        {LS_OBJECTIVE_DPO, "{\"prompt\": \"a\", \"chosen\": [1], \"rejected\": [2]}\n",
         "p.jsonl:2: there are messages"},
        {LS_OBJECTIVE_DPO, "{\"prompt\": \"a\", \"chosen\": 3, \"rejected\": \"b\"}\n",
         "p.jsonl:2: prompt"},
        {LS_OBJECTIVE_DPO, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": [1]}\n",
         "p.jsonl:2: prompt"},
        {LS_OBJECTIVE_DPO, "{\"prompt\": [1], \"chosen\": [1], \"rejected\": []}\n",
         "p.jsonl:2: an answer"},
        {LS_OBJECTIVE_DPO, "{\"prompt\": [1], \"chosen\": [1], \"rejected\": [1]}\n",
         "p.jsonl:2: there are messages"},
        {LS_OBJECTIVE_DPO, "[1]\n", "p.jsonl:2"},
        {LS_OBJECTIVE_DPO, "{\"prompt\": \"a\n", "p.jsonl:2"},
    };

    for (size_t i = 0; i < LS_COUNT(bad); i++) {
        char lines[256];
        snprintf(lines, sizeof lines, PAIR "%s", bad[i].line);
        LS_CHECK_FAILS(build(bad[i].objective, lines, 16, false), LS_EDATA, bad[i].why);
        LS_CHECK(!ls_file_exists("p.lst"));
    }
    LS_CHECK_FAILS(build(LS_OBJECTIVE_KTO,
                         "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": 2}\n", 16, false),
                   LS_EDATA, "p.jsonl:1: \"label\" is neither true nor false");
    LS_CHECK_FAILS(build(LS_OBJECTIVE_KTO,
                         "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}\n", 16,
                         false),
                   LS_EDATA, "has one line");
    LS_CHECK_FAILS(build(LS_OBJECTIVE_KTO, PAIR, 16, false), LS_EDATA,
                   "p.jsonl:1: the line has no \"completion\"");
    LS_CHECK(strstr(ls_err_last()->hint, "These are pairs"));
    LS_EXPECT_LOG(2); /* the line, and how many there were */
    LS_CHECK_OK(build(LS_OBJECTIVE_DPO, PAIR "{\"prompt\": \"a\"}\n" PAIR, 16, true));
}
