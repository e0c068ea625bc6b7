/* test_value.c -- numbers with units, texts, lists, and printing what reads back. */
#include "harness.h"
#include "config/value.h"

static ls_status set(ls_run *run, const char *key, const char *text, bool quoted)
{
    ls_value_item item = {text, quoted, "here"};
    ls_value value = {&item, 1, false, "here"};

    return ls_value_set(ls_option_find(key), run, &value);
}

LS_TEST(value_reads_numbers_with_units)
{
    static const struct {
        const char *text;
        int64_t want;
    } cases[] = {{"0", 0},
                 {"500", 500},
                 {"+7", 7},
                 {"1e4", 10000},
                 {"10k", 10000},
                 {"10K", 10000},
                 {"64M", 64000000},
                 {"1.5M", 1500000},
                 {"64.1k", 64100},
                 {"2G", 2000000000},
                 {"1T", 1000000000000},
                 {"4KiB", 4096},
                 {"4GiB", 4LL << 30},
                 {"9007199254740991", 9007199254740991}};
    ls_run run = {.path = NULL};

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        LS_CHECK_OK(set(&run, "train.tokens", cases[i].text, false));
        LS_CHECK_EQ(run.train.tokens, cases[i].want);
    }
}

LS_TEST(value_refuses_what_is_no_count)
{
    static const char *const bad[] = {
        "",    "x",   "-1",  "1.5",  "10 k", "10kk", "k",     "0x10",
        "inf", "nan", "1e",  "1e99", " 5",   "5 ",   "1,000", "9007199254740992",
        "64B", "10%", "--3", "auto", "1e-3", ".",    "1..2"};
    ls_run run = {.train.tokens = 77};

    for (size_t i = 0; i < LS_COUNT(bad); i++)
        LS_CHECK_FAILS(set(&run, "train.tokens", bad[i], false), LS_EUSAGE,
                       "here: train.tokens must be a whole number, at least 0, not ");
    LS_CHECK_EQ(run.train.tokens, 77);
    LS_CHECK_FAILS(set(&run, "train.tokens", "5", true), LS_EUSAGE, "not \"5\"");
    LS_CHECK(strstr(ls_err_last()->hint, "quotes"));
}

LS_TEST(value_reads_shares_and_times)
{
    ls_run run = {.path = NULL};

    LS_CHECK_OK(set(&run, "data.validation", "10%", false));
    LS_CHECK_NEAR(run.data.validation, 0.1, 0);
    LS_CHECK_OK(set(&run, "train.lr", "1e-3", false));
    LS_CHECK_NEAR(run.train.lr, 1e-3, 0);
    LS_CHECK_OK(set(&run, "train.lr", ".5", false));
    LS_CHECK_OK(set(&run, "train.seconds", "90", false));
    LS_CHECK_NEAR(run.train.seconds, 90, 0);
    LS_CHECK_OK(set(&run, "train.seconds", "1h30m", false));
    LS_CHECK_NEAR(run.train.seconds, 5400, 0);
    LS_CHECK_OK(set(&run, "train.seconds", "1d2h3m4.5s", false));
    LS_CHECK_NEAR(run.train.seconds, 86400 + 7200 + 180 + 4.5, 0);
    LS_CHECK_FAILS(set(&run, "train.seconds", "30m1h", false), LS_EUSAGE, "a time such as");
    LS_CHECK_FAILS(set(&run, "train.seconds", "1h30", false), LS_EUSAGE, "a time such as");
    LS_CHECK_FAILS(set(&run, "train.seconds", "-5", false), LS_EUSAGE, "a time such as");
    LS_CHECK_FAILS(set(&run, "train.seconds", "5y", false), LS_EUSAGE, "a time such as");
    LS_CHECK_FAILS(set(&run, "train.lr", "0", false), LS_EUSAGE, "a number above 0 and at most");
    LS_CHECK_FAILS(set(&run, "model.dropout", "1", false), LS_EUSAGE, "at least 0 and below 1");
}

LS_TEST(value_knows_auto_only_where_it_is_allowed)
{
    ls_run run = {.path = NULL};

    LS_CHECK_OK(set(&run, "batch.leaf", "auto", false));
    LS_CHECK_EQ(run.batch.leaf, LS_RUN_AUTO);
    LS_CHECK(ls_value_is_auto(ls_option_find("batch.leaf"), &run));
    LS_CHECK_FAILS(set(&run, "batch.sequences", "auto", false), LS_EUSAGE, "not \"auto\"");
    LS_CHECK_OK(set(&run, "name", "auto", false));
    LS_CHECK(run.name == NULL);
    LS_CHECK_OK(set(&run, "name", "auto", true));
    LS_CHECK_STR(run.name, "auto");
    ls_arena_release(&run.arena);
}

LS_TEST(value_says_what_this_version_lacks)
{
    ls_run run = {.path = NULL};

    LS_CHECK_FAILS(set(&run, "precision", "fp4", false), LS_EUSAGE,
                   "precision must be fp32, tf32, bf16, fp16 or fp8, not \"fp4\"");
    LS_CHECK_FAILS(set(&run, "mesh.zero", "4", false), LS_EUSAGE,
                   "must be a whole number from 0 to 3, not \"4\"");
    LS_CHECK_FAILS(set(&run, "ps.staleness", "-2", false), LS_EUSAGE, "from -1 to 1000000");
    LS_CHECK_FAILS(set(&run, "train.reduce", "orderd", false), LS_EUSAGE, "ordered or fast");
    LS_CHECK_STR(ls_err_last()->hint, "Did you mean \"ordered\"?");
    LS_CHECK_FAILS(set(&run, "device.kind", "gpu", false), LS_EUSAGE, "auto, cpu or cuda");
    LS_CHECK_STR(ls_err_last()->hint, "Did you mean \"cuda\"?");
    LS_CHECK_FAILS(set(&run, "precision", "BFloat16", false), LS_EUSAGE, "not \"BFloat16\"");
    LS_CHECK_STR(ls_err_last()->hint, "Did you mean \"bf16\"?");
}

LS_TEST(value_prints_what_reads_back)
{
    static const char *const texts[] = {
        "plain", "two words", "auto",       "no",  "12",    "",  "a: b", "#x",
        "\"q\"", "tab\there", "\xc3\xa4\n", "[x]", "*star", "-", "NaN",  "~/x"};
    static const double numbers[] = {0, 1e-8, 0.1, 1.0 / 3, 1e300, 123456789.125, 3e-5, 100};
    ls_run run = {.path = NULL};
    ls_str out;

    ls_str_init(&out);
    for (size_t i = 0; i < LS_COUNT(texts); i++) {
        run.eval.sample = texts[i];
        ls_str_clear(&out);
        ls_value_print(ls_option_find("eval.sample"), &run, &out);
        LS_CHECK(out.p[0] == '"' || strcmp(out.p, texts[i]) == 0);
        LS_CHECK((out.p[0] == '"') == (i > 0)); /* only the first one needs no quotes */
    }
    for (size_t i = 0; i < LS_COUNT(numbers); i++) {
        run.train.target_loss = numbers[i];
        ls_str_clear(&out);
        ls_value_print(ls_option_find("train.target_loss"), &run, &out);
        run.train.target_loss = -1;
        LS_CHECK_OK(set(&run, "train.target_loss", out.p, false));
        LS_CHECK(run.train.target_loss == numbers[i]);
    }
    ls_str_release(&out);
}

LS_TEST(value_quotes_only_what_a_line_can_hold)
{
    char out[64], text[80];

    ls_value_quote("a\nb", out, sizeof out);
    LS_CHECK_STR(out, "\"a?b\"");
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    memcpy(text + 47, "\xc3\xa4", 2); /* the cut would fall inside this character */
    ls_value_quote(text, out, sizeof out);
    LS_CHECK_EQ(strlen(out), 1 + 47 + 3 + 1);
}

LS_TEST(value_finds_the_first_byte_that_is_not_utf8)
{
    static const struct {
        const char *text;
        int bad; /* -1: all good */
    } cases[] = {{"plain", -1},           {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", -1},
                 {"ab\xff", 2},           {"\xc3", 0},
                 {"a\xc0\x80", 1},        {"\xed\xa0\x80", 0},
                 {"\xf4\x90\x80\x80", 0}, {"\x80", 0}};

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        size_t bad = 99;
        bool good = ls_value_is_utf8(cases[i].text, strlen(cases[i].text), &bad);
        LS_CHECK_EQ(good ? -1 : (int)bad, cases[i].bad);
    }
}
