/* test_decode_stop.c -- text that ends before a stop string, cut into pieces in every way. */
#include "base/mem.h"
#include "harness.h"
#include "model/decode_stop.h"

/* Feed text in pieces of `size` bytes; what came out, and before the end. */
static int feed(const char *const *strings, int n, const char *text, size_t size, ls_str *out)
{
    ls_decode_stop stop;
    size_t len = strlen(text);

    ls_str_clear(out);
    ls_decode_stop_init(&stop, strings, n);
    for (size_t i = 0; i < len; i += size) {
        size_t piece = len - i < size ? len - i : size, before = out->len;
        LS_CHECK_OK(ls_decode_stop_feed(&stop, text + i, piece, out));
        /* What comes out is always a beginning of the text. */
        LS_CHECK(memcmp(out->p, text, out->len) == 0 && out->len >= before &&
                 out->len <= i + piece);
    }
    int hit = stop.hit;
    LS_CHECK_OK(ls_decode_stop_end(&stop, out));
    ls_decode_stop_release(&stop);
    return hit;
}

LS_TEST(decode_stop_ends_the_text_before_the_string_however_it_is_cut)
{
    static const char *const stops[] = {"\n\nUser:", "END", "\xe2\x82\xac\xe2\x82\xac", "aab"};
    static const struct {
        const char *text, *want;
        int hit;
    } rows[] = {
        {"Hello.\n\nUser: hi", "Hello.", 0},
        {"Hello.\n\n\nUser: hi", "Hello.\n", 0},
        {"Hello.\n\nUsed", "Hello.\n\nUsed", -1},
        {"Hello.\n\nUse", "Hello.\n\nUse", -1},
        {"ENEND", "EN", 1},
        {"END", "", 1},
        {"costs 5 \xe2\x82\xac", "costs 5 \xe2\x82\xac", -1},
        {"costs \xe2\x82\xac\xe2\x82\xac 5", "costs ", 2},
        {"aaaab", "aa", 3},
        {"aaaac", "aaaac", -1},
        {"", "", -1},
    };
    ls_str out;

    ls_str_init(&out);
    for (size_t r = 0; r < LS_COUNT(rows); r++)
        for (size_t size = 1; size <= strlen(rows[r].text) + 1; size++) {
            LS_CHECK_EQ(feed(stops, LS_COUNT(stops), rows[r].text, size, &out), rows[r].hit);
            LS_CHECK_STR(out.p, rows[r].want);
        }
    ls_str_release(&out);
}

LS_TEST(decode_stop_holds_back_only_what_could_become_a_stop_string)
{
    static const char *const stops[] = {"stop"};
    ls_decode_stop stop;
    ls_str out;

    ls_str_init(&out);
    ls_decode_stop_init(&stop, stops, 1);
    LS_CHECK_OK(ls_decode_stop_feed(&stop, "one sto", 7, &out));
    LS_CHECK_STR(out.p, "one ");
    LS_CHECK_OK(ls_decode_stop_feed(&stop, "re st", 5, &out));
    LS_CHECK_STR(out.p, "one store ");
    LS_CHECK_OK(ls_decode_stop_feed(&stop, "op it", 5, &out));
    LS_CHECK_EQ(stop.hit, 0);
    LS_CHECK_OK(ls_decode_stop_feed(&stop, "more", 4, &out)); /* too late */
    LS_CHECK_OK(ls_decode_stop_end(&stop, &out));
    LS_CHECK_STR(out.p, "one store ");
    ls_decode_stop_release(&stop);
    ls_str_release(&out);
}

LS_TEST(decode_stop_without_strings_holds_nothing)
{
    ls_str out;

    ls_str_init(&out);
    LS_CHECK_EQ(feed(NULL, 0, "any text", 3, &out), -1);
    LS_CHECK_STR(out.p, "any text");
    ls_str_release(&out);
}

LS_TEST(decode_stop_of_two_takes_the_one_that_begins_first)
{
    static const char *const stops[] = {"cd", "bcde", "bc"};
    ls_str out;

    ls_str_init(&out);
    LS_CHECK_EQ(feed(stops, 3, "abcdef", 6, &out), 1); /* both begin at b: the one given first */
    LS_CHECK_STR(out.p, "a");
    ls_str_release(&out);
}

LS_TEST(decode_stop_says_when_there_is_no_memory)
{
    static const char *const stops[] = {"x"};
    ls_decode_stop stop;
    ls_str out;

    ls_str_init(&out);
    ls_decode_stop_init(&stop, stops, 1);
    ls_mem_fail_nth(1);
    LS_CHECK_FAILS(ls_decode_stop_feed(&stop, "abc", 3, &out), LS_ENOMEM, "");
    ls_decode_stop_release(&stop);
    ls_str_release(&out);
}
