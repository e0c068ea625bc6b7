/* test_unclosed.c -- the bracket or quote that was forgotten is found where it begins. */
#include "harness.h"
#include "config/unclosed.h"

static void expect(const char *text, long offset, bool extra)
{
    ls_unclosed found = {0};
    bool any = ls_unclosed_find(text, strlen(text), &found);

    LS_CHECK_EQ(any ? (long)found.offset : -1, offset);
    LS_CHECK_EQ(found.extra, extra);
}

LS_TEST(unclosed_brackets_and_quotes_are_found_where_they_begin)
{
    expect("a: {b: 1\nc: {d: 2}\n", 3, false); /* the next key ends it */
    expect("a: {b: [1, 2}\n", 7, false);       /* another bracket closes */
    expect("a: {b: 1", 3, false);              /* the end */
    expect("a: \"b\nc: \"d\"\n", 3, false);    /* a quote that swallows a key */
    expect("a: 'it''s\n", 3, false);           /* two are one */
    expect("a: {b: 1}}\n", 9, true);
}

LS_TEST(unclosed_lets_pass_what_is_in_order)
{
    expect("a: {b: [1, 2], c: \"}\"} # {\nd: it's [\ne: x\n", -1, false);
    expect("a: |\n  { [\n\n  \"\nb: 'x'\n", -1, false);
    expect("a: {b: 1,\n  c: 2}\n- [x]\n", -1, false);
    expect("a: \"x \\\" y\nz\"\n", -1, false);
    expect("", -1, false);
}
