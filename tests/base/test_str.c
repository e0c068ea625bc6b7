/* test_str.c -- growing strings. */
#include "harness.h"
#include "base/mem.h"
#include "base/str.h"

LS_TEST(str_grows_and_stays_terminated)
{
    ls_str s;

    ls_str_init(&s);
    LS_CHECK_STR(s.p, "");
    for (int i = 0; i < 1000; i++)
        ls_str_printf(&s, "%d,", i);
    LS_CHECK_OK(ls_str_status(&s));
    LS_CHECK_EQ(s.len, 3890);
    LS_CHECK_EQ(s.p[s.len], 0);
    ls_str_release(&s);
    LS_CHECK_STR(s.p, "");
}

LS_TEST(str_remembers_that_memory_ran_out)
{
    ls_str s;

    ls_str_init(&s);
    ls_mem_fail_nth(1);
    ls_str_append(&s, "lost");
    ls_str_append(&s, "also lost");
    LS_CHECK_FAILS(ls_str_status(&s), LS_ENOMEM, "cannot grow");
    LS_CHECK_STR(s.p, "");
    ls_str_release(&s);
}

LS_TEST(str_distance_counts_edits)
{
    LS_CHECK_EQ(ls_str_distance("batch", "Batch"), 0);
    LS_CHECK_EQ(ls_str_distance("bacth", "batch"), 2);
    LS_CHECK_EQ(ls_str_distance("", "abc"), 3);
}

/* A character that the C locale cannot write is lost, and the string says so. */
LS_TEST(str_printf_that_cannot_be_formatted_is_not_silent)
{
    ls_str s;

    ls_str_init(&s);
    ls_str_append(&s, "kept");
    ls_str_printf(&s, "%ls", L"\x1f600");
    LS_CHECK(ls_str_status(&s) != LS_OK);
    LS_CHECK_STR(s.p, "kept");
    ls_str_release(&s);
}

LS_TEST(str_clear_keeps_the_capacity)
{
    ls_str s;

    ls_str_init(&s);
    ls_str_clear(&s);
    ls_str_reserve(&s, 1000);
    LS_CHECK_STR(s.p, "");
    uint64_t calls = ls_mem_calls();
    for (int i = 0; i < 10; i++) {
        ls_str_clear(&s);
        for (int k = 0; k < 999; k++)
            ls_str_append_char(&s, 'x');
    }
    LS_CHECK_EQ(s.len, 999);
    LS_CHECK_EQ(ls_mem_calls(), calls);
    ls_str_append_bytes(&s, "a\0b", 3);
    LS_CHECK_EQ(s.len, 1002);
    LS_CHECK(memcmp(s.p + 999, "a\0b", 4) == 0);
    ls_str_append_bytes(&s, NULL, 0);
    LS_CHECK_EQ(s.len, 1002);
    ls_str_release(&s);
}

LS_TEST(str_makes_control_characters_visible)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"plain \"text\" \\ caf\xc3\xa9 \xe2\x82\xac",
         "plain \"text\" \\ caf\xc3\xa9 \xe2\x82\xac"},
        {"\033]0;title\007", "\\x1b]0;title\\x07"},
        {"one\ntwo\tthree\r", "one\\ntwo\\tthree\\x0d"},
        {"\x7f\x9b"
         "31m",
         "\\x7f\\x9b31m"},
        {"\xc2\x9b"
         "2J",
         "\\xc2\\x9b2J"}, /* U+009B begins a sequence, too */
        {"\xc2\xa0", "\xc2\xa0"},
        {"cut \xe2\x82", "cut \\xe2\\x82"},
    };
    ls_str s;

    ls_str_init(&s);
    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        ls_str_clear(&s);
        ls_str_append_visible(&s, cases[i].text, strlen(cases[i].text));
        LS_CHECK_STR(s.p, cases[i].shown);
    }
    ls_str_clear(&s);
    ls_str_append_visible(&s, "a\0b", 3);
    LS_CHECK_STR(s.p, "a\\x00b");
    ls_str_release(&s);
}
