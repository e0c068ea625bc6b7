/* test_bpe_train.c -- merges known by hand, merges of a slow trainer, bad input, lost memory. */
#include "data/tokenizer/bpe_train.h"

#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "harness.h"

static void put_text(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

/* Arguments for one file "a.txt". */
static ls_bpe_train_args on_file(int32_t vocab, int64_t min_count)
{
    static const char *const files[] = {"a.txt"};

    return (ls_bpe_train_args){
        .files = files, .n_files = 1, .vocab = vocab, .min_count = min_count};
}

/* All merges, each followed by ';'. */
static void read_merges(const ls_bpe_train *train, ls_str *out)
{
    ls_str_clear(out);
    for (int32_t i = 0; i < ls_bpe_train_count(train).merges; i++) {
        LS_CHECK_OK(ls_bpe_train_merge(train, i, out));
        ls_str_append_char(out, ';');
    }
}

static ls_bpe_train_stats train_merges(const ls_bpe_train_args *args, ls_str *out)
{
    ls_bpe_train *train;

    LS_CHECK_OK(ls_bpe_train_create(&train, args));
    ls_bpe_train_stats stats = ls_bpe_train_count(train);
    read_merges(train, out);
    ls_bpe_train_free(train);
    return stats;
}

static ls_bpe_train_stats expect(const char *text, int64_t min_count, const char *merges)
{
    ls_bpe_train_args args = on_file(1000, min_count);
    ls_str got;

    ls_str_init(&got);
    put_text("a.txt", text);
    ls_bpe_train_stats stats = train_merges(&args, &got);
    LS_CHECK_STR(got.p, merges);
    ls_str_release(&got);
    return stats;
}

LS_TEST(bpe_train_finds_merges_known_by_hand)
{
    /* aa occurs 4 times; then ab and aa+a twice, of which ab has the smaller ids. */
    ls_bpe_train_stats stats = expect("aaabdaaabac", 2, "a a;a b;aa ab;");
    LS_CHECK_EQ(stats.vocab, 259);
    LS_CHECK_EQ(stats.bytes, 11);
    LS_CHECK_EQ(stats.tokens, 5); /* aaab d aaab a c */
    LS_CHECK_EQ(stats.words, 1);
    expect("low lower lowest low", 2, "l o;lo w;Ġ low;Ġlow e;"); /* low once without a space */
}

LS_TEST(bpe_train_breaks_ties_by_ids)
{
    expect("cd ab", 1, "a b;c d;Ġ ab;"); /* a space comes after the letters */
    expect("!a a!", 1, "Ġ a;");          /* ! is cut off */
    expect("aaaaa", 1, "a a;aa a;aa aaa;");
}

LS_TEST(bpe_train_works_on_bytes_of_any_script)
{
    expect("\xc3\xa9\xc3\xa9 \xc3\xa9", 2, "Ã ©;");
    expect("\xe4\xb8\xad\xe6\x96\x87\xe4\xb8\xad\xe6\x96\x87", 2,
           "¸ Ń;ä ¸Ń;æ ĸ;ä¸Ń æĸ;ä¸Ńæĸ ĩ;"); /* every kind of byte: 0xad is U+0143 */
    expect("\x01\x7f\x01\x7f", 2, "ā ġ;");
}

LS_TEST(bpe_train_stops_at_the_vocabulary)
{
    ls_bpe_train_args args = on_file(258, 1);
    const char *specials[] = {"<|endoftext|>"};
    ls_str got;

    ls_str_init(&got);
    put_text("a.txt", "aaabdaaabac");
    LS_CHECK_EQ(train_merges(&args, &got).vocab, 258);
    LS_CHECK_STR(got.p, "a a;a b;");
    args.specials = specials;
    args.n_specials = 1;
    LS_CHECK_EQ(train_merges(&args, &got).vocab, 258);
    LS_CHECK_STR(got.p, "a a;");
    args.vocab = 257;
    LS_CHECK_EQ(train_merges(&args, &got).tokens, 11);
    LS_CHECK_STR(got.p, "");
    ls_str_release(&got);
}

/* --- against a trainer that counts everything anew each time ---------------------------------- */

enum { WORDS = 12, LONGEST = 24, SLOW_TOKENS = 64 };

typedef struct slow {
    int ids[WORDS][LONGEST], len[WORDS], count[WORDS];
    char text[SLOW_TOKENS][LONGEST + 1]; /* token 0: a, 1: b */
    int tokens;
} slow;

static int64_t slow_pair(const slow *s, int *left_out, int *right_out)
{
    static int64_t counts[SLOW_TOKENS][SLOW_TOKENS];
    int64_t best = 0;

    memset(counts, 0, sizeof counts);
    for (int w = 0; w < WORDS; w++)
        for (int i = 0; i + 1 < s->len[w]; i++)
            counts[s->ids[w][i]][s->ids[w][i + 1]] += s->count[w];
    for (int l = 0; l < s->tokens; l++)
        for (int r = 0; r < s->tokens; r++)
            if (counts[l][r] > best) {
                best = counts[l][r];
                *left_out = l;
                *right_out = r;
            }
    return best;
}

static void slow_merge(slow *s, int left, int right, int id)
{
    for (int w = 0; w < WORDS; w++) {
        int n = 0;
        for (int i = 0; i < s->len[w]; i++) {
            bool here = s->ids[w][i] == left && i + 1 < s->len[w] && s->ids[w][i + 1] == right;
            s->ids[w][n++] = here ? id : s->ids[w][i];
            i += here;
        }
        s->len[w] = n;
    }
}

/* Merges until none is left. */
static void slow_train(slow *s, ls_str *out)
{
    int left = 0, right = 0;

    memcpy(s->text[0], "a", 2);
    memcpy(s->text[1], "b", 2);
    s->tokens = 2;
    while (s->tokens < SLOW_TOKENS && slow_pair(s, &left, &right) > 0) {
        char text[2 * LONGEST + 2];
        snprintf(text, sizeof text, "%s%s", s->text[left], s->text[right]);
        LS_CHECK(strlen(text) <= LONGEST);
        for (int i = 0; i < s->tokens; i++)
            LS_CHECK(strcmp(s->text[i], text) != 0); /* no token has two spellings */
        memcpy(s->text[s->tokens], text, strlen(text) + 1);
        ls_str_printf(out, "%s %s;", s->text[left], s->text[right]);
        slow_merge(s, left, right, s->tokens++);
    }
}

LS_TEST_SECONDS(bpe_train_equals_a_slow_trainer, 60)
{
    ls_bpe_train_args args = on_file(256 + SLOW_TOKENS - 2, 1);
    ls_str text, want, got;

    ls_str_init(&text);
    ls_str_init(&want);
    ls_str_init(&got);
    args.pattern = "[ab]+"; /* the spaces between are words of their own */
    for (uint32_t round = 0; round < 300; round++) {
        slow s = {.tokens = 0};
        ls_str_clear(&text);
        ls_str_clear(&want);
        uint64_t draw = 0;
        for (int w = 0; w < WORDS; w++) {
            draw =
                draw * 6364136223846793005u + round * 2862933555777941757u + 1442695040888963407u;
            s.len[w] = 1 + (int)((draw >> 40) % (LONGEST - 1));
            s.count[w] = 1 + (int)((draw >> 34) % 3);
            for (int i = 0; i < s.len[w]; i++)
                s.ids[w][i] = (int)(draw >> (i + 8) & 1);
            for (int k = 0; k < s.count[w]; k++) {
                for (int i = 0; i < s.len[w]; i++)
                    ls_str_append_char(&text, s.ids[w][i] ? 'b' : 'a');
                ls_str_append_char(&text, ' ');
            }
        }
        put_text("a.txt", text.p);
        slow_train(&s, &want);
        train_merges(&args, &got);
        LS_CHECK_STR(got.p, want.p);
    }
    ls_str_release(&text);
    ls_str_release(&want);
    ls_str_release(&got);
}

/* --- special tokens --------------------------------------------------------------------------- */

LS_TEST(bpe_train_cuts_special_tokens_out)
{
    const char *specials[] = {"<|end|>", "<|end|>!", "Ġa"};
    ls_bpe_train_args args = on_file(1000, 2);
    ls_str got;

    ls_str_init(&got);
    args.specials = specials;
    args.n_specials = 2;
    put_text("a.txt", "xy<|end|>xy<|end|>!xy<|end|><|end|>");
    ls_bpe_train_stats stats = train_merges(&args, &got);
    LS_CHECK_STR(got.p, "x y;");
    LS_CHECK_EQ(stats.bytes, 6);
    LS_CHECK_EQ(stats.vocab, 259);
    /* A token that would be written like a special one is not made. */
    args.n_specials = 3;
    put_text("a.txt", "b a a a ab ab");
    train_merges(&args, &got);
    LS_CHECK_STR(got.p, "a b;Ġ ab;");
    ls_str_release(&got);
}

static void fails(const ls_bpe_train_args *args, ls_status status, const char *part)
{
    ls_bpe_train *train = NULL;

    LS_CHECK_FAILS(ls_bpe_train_create(&train, args), status, part);
    LS_CHECK(!train);
}

static void fails_with(const char *special, const char *part)
{
    ls_bpe_train_args args = on_file(1000, 2);
    const char *specials[] = {"<|endoftext|>", special};

    args.specials = specials;
    args.n_specials = 2;
    fails(&args, LS_EUSAGE, part);
}

LS_TEST(bpe_train_refuses_bad_arguments)
{
    ls_bpe_train_args args = on_file(100, 2);

    put_text("a.txt", "text");
    fails(&args, LS_EUSAGE, "a vocabulary of 100 is too small: 256 bytes and 0 special tokens");
    args.vocab = INT32_MAX;
    fails(&args, LS_EUSAGE, "too large");
    args = on_file(1000, 2);
    args.pattern = "(unclosed";
    fails(&args, LS_EDATA, "");
    args.pattern = NULL;
    put_text("a.txt", "");
    fails(&args, LS_EDATA, "no text to train on in \"a.txt\"");
    put_text("a.txt", "bad \xff bytes");
    fails(&args, LS_EDATA, "UTF-8");
    args.utf8 = LS_UTF8_REPLACE;
    ls_bpe_train *train;
    LS_CHECK_OK(ls_bpe_train_create(&train, &args));
    ls_bpe_train_free(train);
    args.files = (const char *const[]){"nowhere.txt"};
    fails(&args, LS_EIO, "nowhere.txt");
    fails_with("", "empty");
    fails_with("<|endoftext|>", "twice");
    fails_with("<\xff>", "number 2 is not UTF-8");
    fails_with("a", "one byte already");
    fails_with("\xc4\xa0", "one byte already");
}

/* --- where text is cut ------------------------------------------------------------------------ */

/* Words, blank lines, runs of blanks, special tokens, other scripts, in any order. */
static void tell(ls_str *out, size_t bytes)
{
    static const char *const parts[] = {
        "word", " other", " ",       "\n",       "\n\n",         "\t",  "  ",  "'s", " 1234", ",",
        "!",    "\r\n\n", "<|end|>", "\xc3\xa9", "\xe4\xb8\xad", " <|", "end", "|>", "x"};
    uint64_t draw = 7;

    ls_str_clear(out);
    while (out->len < bytes) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        ls_str_append(out, parts[(draw >> 33) % LS_COUNT(parts)]);
    }
    LS_CHECK_OK(ls_str_status(out));
}

LS_TEST(bpe_train_words_do_not_depend_on_pieces)
{
    static const char *const patterns[] = {"gpt2", "llama3", "qwen2", "\\s+|\\w+"};
    const char *specials[] = {"<|end|>"};
    ls_bpe_train_args args = on_file(700, 2);
    ls_str text, line, one, many;
    ls_json j;

    ls_str_init(&text);
    ls_str_init(&line);
    ls_str_init(&one);
    ls_str_init(&many);
    tell(&text, 700000);
    put_text("a.txt", text.p); /* in pieces of 64 KiB */
    ls_json_begin(&j, &line);
    ls_json_open(&j, '{');
    ls_json_put_str(&j, "text", text.p);
    ls_json_close(&j);
    put_text("a.jsonl", line.p); /* whole */
    args.specials = specials;
    args.n_specials = 1;
    for (size_t i = 0; i < LS_COUNT(patterns); i++) {
        args.pattern = patterns[i];
        args.files = (const char *const[]){"a.txt"};
        ls_bpe_train_stats a = train_merges(&args, &one);
        args.files = (const char *const[]){"a.jsonl"};
        ls_bpe_train_stats b = train_merges(&args, &many);
        LS_CHECK(memcmp(&a, &b, sizeof a) == 0);
        LS_CHECK(a.merges > 20);
        LS_CHECK_STR(one.p, many.p);
    }
    ls_str_release(&text);
    ls_str_release(&line);
    ls_str_release(&one);
    ls_str_release(&many);
}

LS_TEST(bpe_train_does_not_depend_on_the_order_of_files)
{
    ls_bpe_train_args args = on_file(500, 2);
    ls_str one, two;

    ls_str_init(&one);
    ls_str_init(&two);
    put_text("a.txt", "the cat and the dog and the bird");
    args.n_files = 2;
    args.files = (const char *const[]){"a.txt", "builtin:stories:20K"};
    ls_bpe_train_stats a = train_merges(&args, &one);
    args.files = (const char *const[]){"builtin:stories:20K", "a.txt"};
    ls_bpe_train_stats b = train_merges(&args, &two);
    LS_CHECK_STR(one.p, two.p);
    LS_CHECK(memcmp(&a, &b, sizeof a) == 0);
    LS_CHECK(a.vocab == 500);
    ls_str_release(&one);
    ls_str_release(&two);
}

LS_TEST(bpe_train_survives_one_giant_word)
{
    ls_bpe_train_args args = on_file(2000, 2);
    ls_str text, got;
    uint64_t draw = 3;

    ls_str_init(&text);
    ls_str_init(&got);
    while (text.len < 1500000) { /* longer than what is held at a time */
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        ls_str_append_char(&text, (char)('a' + (draw >> 33) % 26));
    }
    put_text("a.txt", text.p);
    ls_bpe_train_stats stats = train_merges(&args, &got);
    LS_CHECK_EQ(stats.bytes, (int64_t)text.len);
    LS_CHECK_EQ(stats.vocab, 2000);
    LS_CHECK(stats.words <= 3);
    LS_CHECK(stats.tokens < stats.bytes / 5 * 3);
    memset(text.p, 'a', text.len); /* and one of a single letter */
    put_text("a.txt", text.p);
    stats = train_merges(&args, &got);
    LS_CHECK(stats.tokens < 32);
    ls_str_release(&text);
    ls_str_release(&got);
}

LS_TEST(bpe_train_drops_rare_words_past_its_limit)
{
    ls_bpe_train_args args = on_file(300, 2);
    ls_str text, got;

    ls_str_init(&text);
    ls_str_init(&got);
    for (int i = 0; i < 5000; i++)
        ls_str_printf(&text, "zq n%dx%dy\n", i * 7919 % 10007, i);
    put_text("a.txt", text.p);
    args.word_bytes = 4096;
    ls_bpe_train_stats stats = train_merges(&args, &got);
    LS_CHECK(stats.dropped_words > 1000);
    LS_CHECK(stats.words < 4096);
    LS_CHECK(strstr(got.p, "z q;"));
    args.word_bytes = 0;
    LS_CHECK_EQ(train_merges(&args, &got).dropped_words, 0);
    ls_str_release(&text);
    ls_str_release(&got);
}

/* --- files ------------------------------------------------------------------------------------ */

static json_t *load(const char *path)
{
    json_error_t why;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why);

    if (!root)
        ls_test_fail(__FILE__, __LINE__, "%s:%d: %s", path, why.line, why.text);
    return root;
}

static const char *text_at(const json_t *object, const char *a, const char *b)
{
    const json_t *value = json_object_get(object, a);
    const char *text = json_string_value(b ? json_object_get(value, b) : value);

    return text ? text : "";
}

LS_TEST(bpe_train_writes_both_files)
{
    const char *specials[] = {"<s>", "</s>", "<|\"\\|>"};
    ls_bpe_train_args args = on_file(300, 2);
    ls_bpe_train *train;

    args.specials = specials;
    args.n_specials = 3;
    args.pattern = "llama3";
    put_text("a.txt", "aaabdaaabac\n#versions\n#versions\n#version\n#version\n");
    LS_CHECK_OK(ls_bpe_train_create(&train, &args));
    LS_CHECK_OK(ls_bpe_train_write(train, "new/tok/"));
    int32_t vocab = ls_bpe_train_count(train).vocab;
    json_t *root = load("new/tok/tokenizer.json"), *config = load("new/tok/tokenizer_config.json");
    const json_t *model = json_object_get(root, "model");
    LS_CHECK_STR(text_at(root, "version", NULL), "1.0");
    LS_CHECK_STR(text_at(root, "pre_tokenizer", "type"), "Sequence");
    LS_CHECK_STR(text_at(root, "decoder", "type"), "ByteLevel");
    LS_CHECK_STR(text_at(model, "type", NULL), "BPE");
    LS_CHECK_EQ(json_object_size(json_object_get(model, "vocab")), vocab - 3);
    LS_CHECK_EQ(json_array_size(json_object_get(root, "added_tokens")), 3);
    /* A line that begins with #version would be passed over. */
    LS_CHECK(json_is_array(json_array_get(json_object_get(model, "merges"), 0)));
    LS_CHECK_STR(text_at(config, "bos_token", NULL), "<s>");
    LS_CHECK_STR(text_at(config, "eos_token", NULL), "</s>");
    LS_CHECK_STR(text_at(config, "tokenizer_class", NULL), "PreTrainedTokenizerFast");
    json_decref(root);
    json_decref(config);
    ls_bpe_train_free(train);
}

LS_TEST(bpe_train_replaces_nothing)
{
    ls_bpe_train_args args = on_file(300, 2);
    ls_bpe_train *train;

    put_text("a.txt", "aaabdaaabac");
    LS_CHECK_OK(ls_bpe_train_create(&train, &args));
    LS_CHECK(mkdir("empty", 0755) == 0);
    LS_CHECK_OK(ls_bpe_train_write(train, "empty"));
    json_t *root = load("empty/tokenizer.json");
    LS_CHECK_STR(json_string_value(
                     json_array_get(json_object_get(json_object_get(root, "model"), "merges"), 2)),
                 "aa ab");
    json_decref(root);
    LS_CHECK_FAILS(ls_bpe_train_write(train, "empty"), LS_EUSAGE, "the folder is not empty");
    LS_CHECK_FAILS(ls_bpe_train_write(train, "a.txt"), LS_EUSAGE, "a file of that name");
    LS_CHECK_FAILS(ls_bpe_train_write(train, ""), LS_EUSAGE, "empty");
    LS_CHECK_FAILS(ls_bpe_train_write(train, "a.txt/tok"), LS_EIO, "a.txt");
    LS_CHECK_FAILS(ls_bpe_train_write(train, "/proc/nowhere/tok"), LS_EIO, "/proc/nowhere");
    ls_bpe_train_free(train);
}

LS_TEST_SECONDS(bpe_train_survives_each_failing_allocation, 60)
{
    const char *specials[] = {"<|endoftext|>", "<|pad|>"};
    ls_bpe_train_args args = on_file(300, 1);
    uint64_t n = 0;
    bool done = false;

    args.specials = specials;
    args.n_specials = 2;
    put_text("a.txt", "the cat and the dog and the bird <|pad|> and on\n");
    while (!done) {
        ls_bpe_train *train = NULL;
        ls_mem_fail_nth(++n);
        ls_status st = ls_bpe_train_create(&train, &args);
        if (st == LS_OK)
            st = ls_bpe_train_write(train, "tok");
        ls_mem_fail_nth(0);
        done = st == LS_OK;
        if (!done) {
            LS_CHECK_EQ(st, LS_ENOMEM);
            LS_CHECK(!ls_file_exists("tok"));
        }
        ls_bpe_train_free(train);
    }
    LS_CHECK(n > 20);
    LS_CHECK(ls_file_exists("tok/tokenizer.json"));
}
