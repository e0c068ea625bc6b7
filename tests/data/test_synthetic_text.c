/* test_synthetic_text.c -- the stories are text, differ, and are the same everywhere. */
#include "data/corpus/synthetic_text.h"

#include <ctype.h>
#include "data/tokenizer/utf8.h"
#include "base/hash.h"
#include "harness.h"

/* Whole stories, number 0 first, with an empty line between them: at least this many bytes. */
static void write_stories(uint64_t seed, size_t bytes, ls_str *out)
{
    for (int64_t i = 0; out->len < bytes; i++) {
        if (i)
            ls_str_append_char(out, '\n');
        LS_CHECK_OK(ls_synthetic_text_story(seed, i, out));
    }
}

LS_TEST(stories_are_the_same_for_a_seed)
{
    ls_str a, b;

    ls_str_init(&a);
    ls_str_init(&b);
    write_stories(1, 100000, &a);
    write_stories(1, 100000, &b);
    LS_CHECK(a.len >= 100000 && a.len < 103000);
    LS_CHECK_EQ(a.len, b.len);
    LS_CHECK(memcmp(a.p, b.p, a.len) == 0);
    ls_str_clear(&b);
    write_stories(2, 1000, &b);
    LS_CHECK(memcmp(a.p, b.p, 200) != 0);
    ls_str_release(&a);
    ls_str_release(&b);
}

/* A changed grammar must raise LS_SYNTHETIC_TEXT_VERSION, so that cached tokens are made again. */
LS_TEST(stories_match_their_version)
{
    char hex[LS_HASH_HEX];
    ls_str text;

    ls_str_init(&text);
    write_stories(1, 200000, &text);
    ls_hash_hex(ls_hash_bytes(text.p, text.len), hex);
    LS_CHECK_EQ(LS_SYNTHETIC_TEXT_VERSION, 1);
    LS_CHECK_STR(hex, "a8bf6cfec5626e8692cc3913a509dd93");
    ls_str_release(&text);
}

static void check_sentences(const char *text)
{
    size_t n = strlen(text);

    LS_CHECK(n > 200 && n < 3000);
    LS_CHECK(isupper((unsigned char)text[0]) || text[0] == '"');
    LS_CHECK(text[n - 1] == '\n');
    LS_CHECK(strchr(".!?\"", text[n - 2]));
    LS_CHECK_EQ(strcspn(text, "{}|/"), n);
    LS_CHECK(!strstr(text, "  ") && !strstr(text, " \n") && !strstr(text, "\n\n"));
    LS_CHECK(!strstr(text, " a a") && !strstr(text, " a o") && !strstr(text, " a e"));
    int quotes = 0;
    for (const char *p = text; *p; p++) {
        quotes += *p == '"';
        LS_CHECK(*p == '\n' || (*p >= ' ' && *p < 0x7f));
        if ((*p == '.' || *p == '!' || *p == '?') && p[1] == ' ' && quotes % 2 == 0)
            LS_CHECK(isupper((unsigned char)p[2]) || p[2] == '"');
    }
    LS_CHECK_EQ(quotes % 2, 0);
}

LS_TEST(stories_read_like_sentences)
{
    ls_str text;

    ls_str_init(&text);
    for (int64_t i = 0; i < 3000; i++) {
        ls_str_clear(&text);
        LS_CHECK_OK(ls_synthetic_text_story(7, i, &text));
        check_sentences(text.p);
    }
    ls_str_release(&text);
}

LS_TEST(stories_rarely_repeat)
{
    enum { N = 2000 };
    static ls_hash seen[N];
    ls_str text;

    ls_str_init(&text);
    for (int i = 0; i < N; i++) {
        ls_str_clear(&text);
        LS_CHECK_OK(ls_synthetic_text_story(1, i, &text));
        seen[i] = ls_hash_bytes(text.p, text.len);
        for (int k = 0; k < i; k++)
            LS_CHECK(!ls_hash_equal(seen[i], seen[k]));
    }
    ls_str_release(&text);
}
