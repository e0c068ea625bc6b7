/* test_pretokenizer.c -- pieces of the known patterns against PCRE2's, hostile patterns, memory. */
#include "data/tokenizer/pretokenizer.h"

#include "data/tokenizer/pretokenizer_impl.h"
#include "base/mem.h"
#include "base/str.h"
#include "harness.h"

/* A pattern and a work area, opened together. */
typedef struct cutter {
    ls_pretokenizer *pretokenizer;
    ls_pretokenizer_work *work;
} cutter;

static void cutter_open(cutter *c, const char *pattern)
{
    LS_CHECK_OK(ls_pretokenizer_open(&c->pretokenizer, pattern));
    LS_CHECK_OK(ls_pretokenizer_work_open(&c->work, c->pretokenizer));
}

static void cutter_close(cutter *c)
{
    ls_pretokenizer_work_free(c->work);
    ls_pretokenizer_free(c->pretokenizer);
}

static const char *pieces(cutter *c, const char *text, ls_str *out)
{
    size_t len = strlen(text);

    ls_str_clear(out);
    for (size_t at = 0; at < len;) {
        size_t end = ls_pretokenizer_next(c->work, (const unsigned char *)text, len, at);
        LS_CHECK(end > at && end <= len);
        ls_str_printf(out, "%s%.*s", at ? "|" : "", (int)(end - at), text + at);
        at = end;
    }
    return out->p;
}

static void check_pieces(const char *pattern, const char *text, const char *want)
{
    cutter c;
    ls_str out;

    ls_str_init(&out);
    cutter_open(&c, pattern);
    LS_CHECK_STR(pieces(&c, text, &out), want);
    cutter_close(&c);
    ls_str_release(&out);
}

LS_TEST(known_patterns_cut_as_their_expressions_say)
{
    check_pieces("gpt2", "I'm here,  it'S 1234!\n\n  x ",
                 "I|'m| here|,| | it|'|S| 1234|!|\n\n | x| ");
    check_pieces("llama3", "I'm here,  it'S 1234!\n\n  x ",
                 "I|'m| here|,| | it|'S| |123|4|!\n\n| | x| ");
    check_pieces("qwen2", "I'LL pay 12.50\t\xe2\x82\xac \r\n \n a",
                 "I|'LL| pay| |1|2|.|5|0|\t|\xe2\x82\xac| \r\n \n| a");
    check_pieces("qwen2", "it'\xc5\xbf d'accord (yes)\n", "it|'\xc5\xbf| d|'accord| (|yes|)\n");
    check_pieces("gpt2",
                 "\xc3\xa9t\xc3\xa9\xe3\x80\x80\xe3\x80\x80\xe6\x97\xa5\xe6\x9c\xac 3\xc2\xbd",
                 "\xc3\xa9t\xc3\xa9|\xe3\x80\x80|\xe3\x80\x80|\xe6\x97\xa5\xe6\x9c\xac| 3\xc2\xbd");
}

LS_TEST(any_other_pattern_cuts_at_matches_and_between)
{
    check_pieces("[0-9]{2}", "ab12345c", "ab|12|34|5c");
    check_pieces("a*", "baac", "b|aa|c");
    check_pieces("(?=b)", "abab", "a|ba|b");
    check_pieces("^x|y$", "x\nxy\ny", "x|\n|x|y|\n|y");
    check_pieces("\\p{Lu}+", "abCDe\xc3\x89", "ab|CD|e|\xc3\x89");
}

/* One code point as UTF-8. */
static size_t put_code(uint32_t c, char *out)
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(n == 1 ? c : (0xf00u >> n) | c);
    out[n] = '\0';
    return n;
}

/* Whether the pattern matches the one character c; a control character in front shows it as a cut.
 */
static bool matches(cutter *set, uint32_t c)
{
    char text[8] = "\x01";
    size_t n = put_code(c, text + 1);

    return ls_pretokenizer_next(set->work, (const unsigned char *)text, n + 1, 0) == 1;
}

LS_TEST_SECONDS(character_sets_are_those_of_unicode, 60)
{
    static const char *const sets[] = {"\\p{L}", "\\p{N}", "\\s", "\\p{Cn}"};
    unsigned char *classes = ls_mem_alloc(LS_PRETOKENIZER_CODES);
    cutter c[4];
    int newer = 0;

    LS_CHECK(classes);
    ls_pretokenizer_fill(classes);
    for (int i = 0; i < 4; i++)
        cutter_open(&c[i], sets[i]);
    for (uint32_t code = 2; code < 0x110000; code++) {
        char text[8];
        size_t n;
        if (code >= 0xd800 && code < 0xe000)
            continue;
        put_code(code, text);
        int class = ls_pretokenizer_class_at(classes, (const unsigned char *)text, &n);
        int want = matches(&c[0], code)   ? LS_PRETOKENIZER_LETTER
                   : matches(&c[1], code) ? LS_PRETOKENIZER_NUMBER
                   : matches(&c[2], code) ? LS_PRETOKENIZER_SPACE
                                          : LS_PRETOKENIZER_OTHER;
        if (code == '\r' || code == '\n')
            want = LS_PRETOKENIZER_NEWLINE;
        if (class != want) { /* only characters that this PCRE2 does not know yet */
            if (!matches(&c[3], code))
                ls_test_fail(__FILE__, __LINE__, "U+%04X is %d, expected %d", code, class, want);
            newer++;
        }
    }
    LS_CHECK(newer < 20000);
    for (int i = 0; i < 4; i++)
        cutter_close(&c[i]);
    ls_mem_free(classes);
}

/* The next of a row of pseudo-random numbers below n. */
static uint64_t below(uint64_t *state, uint64_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % n;
}

/* A character that makes trouble, or any of the first planes that every Unicode version knows. */
static uint32_t random_code(uint64_t *rng)
{
    static const uint32_t odd[] = {' ',    ' ',    '\n',   '\r',   '\t',    '\'',   's',    'S',
                                   'r',    'e',    'l',    'L',    'V',     'E',    'm',    'd',
                                   't',    '1',    '2',    '.',    '!',     0x85,   0xa0,   0x17f,
                                   0x2028, 0x3000, 0x0301, 0x200d, 0x1f600, 0x4e2d, 0x0663, 0x2167,
                                   0xe9,   0x212a, 0x0bbe, 0x1d7d8};

    if (below(rng, 4))
        return odd[below(rng, LS_COUNT(odd))];
    return 1 + (uint32_t)below(rng, 0x500);
}

LS_TEST_SECONDS(scanners_cut_as_pcre2_does, 60)
{
    static const char *const names[] = {LS_PRETOKENIZER_GPT2, LS_PRETOKENIZER_LLAMA3,
                                        LS_PRETOKENIZER_QWEN2};
    uint64_t rng = 7;
    ls_str a, b, text, wrapped;

    ls_str_init(&a);
    ls_str_init(&b);
    ls_str_init(&text);
    ls_str_init(&wrapped);
    for (size_t k = 0; k < LS_COUNT(names); k++) {
        cutter ours, theirs;
        cutter_open(&ours, names[k]);
        ls_str_clear(&wrapped); /* another text, so that it is not recognised */
        ls_str_printf(&wrapped, "(?:%s)", ls_pretokenizer_pattern(ours.pretokenizer));
        cutter_open(&theirs, wrapped.p);
        LS_CHECK(ls_pretokenizer_is_known(ours.pretokenizer) &&
                 !ls_pretokenizer_is_known(theirs.pretokenizer));
        for (int round = 0; round < 20000; round++) {
            int n = 1 + (int)below(&rng, 24);
            ls_str_clear(&text);
            for (int i = 0; i < n; i++) {
                char one[8];
                put_code(random_code(&rng), one);
                ls_str_append(&text, one);
            }
            if (strcmp(pieces(&ours, text.p, &a), pieces(&theirs, text.p, &b)) != 0)
                ls_test_fail(__FILE__, __LINE__, "%s: \"%s\" is not \"%s\"", names[k], a.p, b.p);
        }
        cutter_close(&ours);
        cutter_close(&theirs);
    }
    ls_str_release(&a);
    ls_str_release(&b);
    ls_str_release(&text);
    ls_str_release(&wrapped);
}

LS_TEST(bad_patterns_are_refused)
{
    ls_pretokenizer *p = NULL;
    char *longer = ls_mem_alloc(20000);

    LS_CHECK_FAILS(ls_pretokenizer_open(&p, "a(b"), LS_EDATA, "wrong at byte 3");
    LS_CHECK_FAILS(ls_pretokenizer_open(&p, "[a-z&&[^b]]"), LS_EDATA, "\"&&\" at byte 4");
    LS_CHECK_FAILS(ls_pretokenizer_open(&p, "[a[b]]"), LS_EDATA, "inside a class");
    LS_CHECK_FAILS(ls_pretokenizer_open(&p, "a\\h+"), LS_EDATA,
                   "escape in another sense at byte 1");
    LS_CHECK_FAILS(ls_pretokenizer_open(&p, "[\\S]"), LS_EDATA, "escape in another sense");
    LS_CHECK_FAILS(ls_pretokenizer_open(&p, "(?im:a.b)"), LS_EDATA, "option \"m\"");
    LS_CHECK_FAILS(ls_pretokenizer_open(&p, "(*UTF)a"), LS_EDATA, "verb");
    LS_CHECK_FAILS(ls_pretokenizer_open(&p, "a\\"), LS_EDATA, "wrong");
    LS_CHECK_FAILS(ls_pretokenizer_open(&p, "\\C"), LS_EDATA, "wrong");
    memset(longer, 'a', 19999);
    LS_CHECK_FAILS(ls_pretokenizer_open(&p, longer), LS_EDATA, "19999 bytes");
    LS_CHECK(!p);
    ls_mem_free(longer);
    check_pieces("\\w+", "a\xc2\xb2_\xcc\x81-b", "a\xc2\xb2_\xcc\x81|-|b");
    check_pieces("\\bb", "ab b", "ab |b");
    check_pieces("[\\sx]", "a\xe1\xa0\x8e b", "a\xe1\xa0\x8e| |b"); /* U+180E is no space */
    check_pieces("[^]]", "x]a", "x|]|a");
    check_pieces("[]a]+", "x]a", "x|]a");
    check_pieces("[[:alpha:]]+", "1ab", "1|ab");
}

LS_TEST(a_pattern_that_explodes_is_stopped)
{
    cutter c;
    unsigned char text[64];

    memset(text, 'a', sizeof text);
    cutter_open(&c, "(?:a|aa)+[bc]");
    LS_CHECK_EQ(ls_pretokenizer_next(c.work, text, sizeof text, 0), 0);
    LS_CHECK_EQ(ls_err_last()->code, LS_EDATA);
    LS_CHECK(strstr(ls_err_last()->text, "gives up at byte 0"));
    cutter_close(&c);
    cutter_open(&c, "(a|(?1)(?1))+$"); /* recursion without end, or nearly */
    (void)ls_pretokenizer_next(c.work, text, sizeof text, 0);
    cutter_close(&c);
}

LS_TEST(pretok_survives_failing_memory)
{
    for (uint64_t nth = 1; nth < 12; nth++) {
        ls_pretokenizer *p = NULL;
        ls_pretokenizer_work *w = NULL;
        ls_mem_fail_nth(nth);
        if (ls_pretokenizer_open(&p, nth & 1 ? "gpt2" : "a+b") == LS_OK &&
            ls_pretokenizer_work_open(&w, p) == LS_OK)
            LS_CHECK(nth > 3);
        ls_mem_fail_nth(0);
        ls_pretokenizer_work_free(w);
        ls_pretokenizer_free(p);
    }
}
