/* test_tokenizer.c -- bytes in, bytes out; streams that never split a character. */
#include "data/tokenizer/tokenizer.h"

#include "data/tokenizer/utf8.h"
#include "base/mem.h"
#include "harness.h"

LS_TEST(bytes_round_trip_every_value)
{
    ls_tokenizer *tok;
    ls_tokens ids;
    ls_str text;
    unsigned char all[512];

    for (int i = 0; i < 512; i++)
        all[i] = (unsigned char)(i * 7);
    ls_tokens_init(&ids);
    ls_str_init(&text);
    LS_CHECK_OK(ls_tokenizer_open(&tok, "bytes"));
    LS_CHECK_EQ(ls_tokenizer_vocab(tok), 256);
    LS_CHECK_EQ(ls_tokenizer_separator(tok), 0);
    LS_CHECK_OK(ls_tokenizer_encode(tok, all, sizeof all, 0, &ids));
    LS_CHECK_EQ(ids.count, 512);
    LS_CHECK_EQ(ids.ids[3], 21);
    LS_CHECK_OK(ls_tokenizer_decode(tok, ids.ids, ids.count, &text));
    LS_CHECK_EQ(text.len, sizeof all);
    LS_CHECK(memcmp(text.p, all, sizeof all) == 0);
    ls_tokens_release(&ids);
    ls_str_release(&text);
    ls_tokenizer_free(tok);
}

LS_TEST(unknown_tokenizer_and_id_are_refused)
{
    ls_tokenizer *tok = NULL;
    ls_str text;

    ls_str_init(&text);
    LS_CHECK_FAILS(ls_tokenizer_open(&tok, "words"), LS_EUSAGE, "no tokenizer \"words\"");
    LS_CHECK(!tok);
    LS_CHECK_OK(ls_tokenizer_open(&tok, "bytes"));
    LS_CHECK_FAILS(ls_tokenizer_decode(tok, (int32_t[]){65, 256}, 2, &text), LS_EDATA, "256");
    LS_CHECK(strstr(ls_err_last()->hint, "id number 2"));
    LS_CHECK_FAILS(ls_tokenizer_decode(tok, (int32_t[]){-1}, 1, &text), LS_EDATA, "-1");
    ls_str_release(&text);
    ls_tokenizer_free(tok);
}

/* Feed bytes one by one; after each, what came out so far must be valid UTF-8. */
static void check_stream(const char *bytes, const char *want)
{
    ls_tokenizer *tok;
    ls_tokenizer_stream stream;
    ls_str out;

    ls_str_init(&out);
    LS_CHECK_OK(ls_tokenizer_open(&tok, "bytes"));
    ls_tokenizer_stream_begin(&stream, tok);
    for (const char *p = bytes; *p; p++) {
        LS_CHECK_OK(ls_tokenizer_stream_feed(&stream, (unsigned char)*p, &out));
        LS_CHECK_EQ(ls_utf8_valid(out.p, out.len), out.len);
    }
    LS_CHECK_OK(ls_tokenizer_stream_end(&stream, &out));
    LS_CHECK_STR(out.p, want);
    /* Cleaning the whole at once replaces the same parts. */
    ls_str_clear(&out);
    ls_utf8_append_clean(&out, bytes, strlen(bytes));
    LS_CHECK_STR(out.p, want);
    ls_str_release(&out);
    ls_tokenizer_free(tok);
}

#define BAD LS_UTF8_REPLACEMENT

LS_TEST(stream_gives_whole_characters)
{
    check_stream("plain", "plain");
    check_stream("\xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80!",
                 "\xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80!");
    check_stream("a\xe2\x82", "a" BAD);                /* cut off */
    check_stream("\xe2\x82z", BAD "z");                /* cut short */
    check_stream("\xff\xfe", BAD BAD);                 /* never valid */
    check_stream("\xc0\xaf", BAD BAD);                 /* overlong */
    check_stream("\xed\xa0\x80", BAD BAD BAD);         /* surrogate */
    check_stream("\xf4\x90\x80\x80", BAD BAD BAD BAD); /* above U+10FFFF */
    check_stream("\xf0\x9f\xe2\x82\xac", BAD "\xe2\x82\xac");
    check_stream("\xe0\x9f\xbf", BAD BAD BAD);
    check_stream("\x80", BAD);
}

LS_TEST(valid_prefix_stops_at_the_first_offence)
{
    LS_CHECK_EQ(ls_utf8_valid("0123456789abcdef\xff", 17), 16);
    LS_CHECK_EQ(ls_utf8_valid("01234567\xe2\x82\xac", 11), 11);
    LS_CHECK_EQ(ls_utf8_valid("01234567\xe2\x82\xac", 10), 8);
    LS_CHECK_EQ(ls_utf8_valid("", 0), 0);
}

LS_TEST(every_failing_allocation_is_reported)
{
    for (uint64_t n = 1;; n++) {
        ls_tokenizer *tok = NULL;
        ls_tokens ids;
        ls_tokens_init(&ids);
        ls_mem_fail_nth(n);
        ls_status st = ls_tokenizer_open(&tok, "bytes");
        if (st == LS_OK)
            st = ls_tokenizer_encode(tok, "hello", 5, 0, &ids);
        ls_mem_fail_nth(0);
        ls_tokens_release(&ids);
        ls_tokenizer_free(tok);
        if (st == LS_OK) {
            LS_CHECK(n > 2);
            break;
        }
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
}
