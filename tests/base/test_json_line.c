/* test_json_line.c -- JSON that Python writes and jansson does not read. (Lines of data: tests/data/test_source.c.) */
#include "base/json_line.h"

#include "harness.h"
#include "base/mem.h"

static json_t *parse(const char *text)
{
    json_error_t error;

    return ls_json_line_parse_file(text, strlen(text), JSON_REJECT_DUPLICATES, &error);
}

LS_TEST(json_line_file_has_texts_where_numbers_have_no_form)
{
    json_t *file =
        parse("{\"n\": 1000000000000000019884624838656, \"x\": [NaN, -Infinity, 1e999, 2], "
              "\"i\": 9223372036854775807, \"s\": \"NaN\"}");

    LS_CHECK(json_is_object(file));
    LS_CHECK_STR(json_string_value(json_object_get(file, "n")), "1000000000000000019884624838656");
    const json_t *list = json_object_get(file, "x");
    LS_CHECK_STR(json_string_value(json_array_get(list, 0)), "NaN");
    LS_CHECK_STR(json_string_value(json_array_get(list, 1)), "-Infinity");
    LS_CHECK_STR(json_string_value(json_array_get(list, 2)), "1e999");
    LS_CHECK_EQ(json_integer_value(json_array_get(list, 3)), 2);
    LS_CHECK_EQ(json_integer_value(json_object_get(file, "i")), INT64_MAX);
    LS_CHECK_STR(json_string_value(json_object_get(file, "s")), "NaN");
    json_decref(file);
}

LS_TEST(json_line_file_stays_none_where_it_is_none)
{
    static const char *const texts[] = {
        "", "{", "{\"a\": NaN", "{\"a\": nan}", "{\"a\": 1, \"a\": NaN}", "{NaN: 1"};

    for (size_t i = 0; i < LS_COUNT(texts); i++)
        LS_CHECK(parse(texts[i]) == NULL);
}

LS_TEST(json_line_survives_lack_of_memory)
{
    for (int64_t n = 1; n < 8; n++) {
        ls_mem_fail_nth(n);
        json_t *file = parse("{\"n\": 1000000000000000019884624838656}");
        ls_mem_fail_nth(0);
        json_decref(file);
    }
}
