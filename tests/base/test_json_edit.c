/* test_json_edit.c -- one key of a JSON object changed in its text. */
#include "base/json_edit.h"

#include "harness.h"

static void check(const char *text, const char *key, const char *value, const char *wanted)
{
    ls_str s;

    ls_str_init(&s);
    ls_str_append(&s, text);
    LS_CHECK_OK(ls_json_edit_set(&s, key, value));
    LS_CHECK_STR(s.p, wanted);
    ls_str_release(&s);
}

LS_TEST(json_edit_changes_one_value_and_no_other_byte)
{
    check("{\"a\": 1, \"b\" : [2, \"}\"] , \"c\":{}}\n", "b", "null",
          "{\"a\": 1, \"b\" : null , \"c\":{}}\n");
    check("{\"x\": {\"b\": 1},\n \"b\": \"q\\\"}\"\n}", "b", "7",
          "{\"x\": {\"b\": 1},\n \"b\": 7\n}");
    check("{\"big\": 1000000000000000019884624838656}", "big", "\"t\"", "{\"big\": \"t\"}");
}

LS_TEST(json_edit_adds_what_is_missing_behind_the_last)
{
    check("{\n  \"a\": 1\n}\n", "b", "[2]", "{\n  \"a\": 1,\n  \"b\": [2]\n}\n");
    check("{}", "b", "2", "{\n  \"b\": 2\n}");
    check(" { } ", "b", "2", " { \n  \"b\": 2\n} ");
    check("{\"ab\": 1}", "a", "2", "{\"ab\": 1,\n  \"a\": 2}");
}

LS_TEST(json_edit_refuses_what_is_no_object)
{
    static const char *const texts[] = {
        "", "[1]", "{\"a\"", "{\"a\": ", "{\"a\": 1", "{\"b\": \"x}}", "{\"b\\", "{7: 1}"};

    for (size_t i = 0; i < LS_COUNT(texts); i++) {
        ls_str s;
        ls_str_init(&s);
        ls_str_append(&s, texts[i]);
        LS_CHECK_FAILS(ls_json_edit_set(&s, "zz", "1"), LS_EDATA, "is not a JSON object");
        ls_str_release(&s);
    }
}
