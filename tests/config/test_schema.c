/* test_schema.c -- the documents made from the table, and that the copies in docs/ are fresh. */
#include "harness.h"
#include <jansson.h>
#include "base/mem.h"
#include "config/option.h"
#include "config/schema.h"
#include "golden/golden.h"

LS_TEST(schema_describes_every_option)
{
    ls_str text;
    json_error_t error;

    ls_str_init(&text);
    LS_CHECK_OK(ls_schema_json(&text));
    json_t *root = json_loads(text.p, JSON_REJECT_DUPLICATES, &error);
    LS_CHECK(root != NULL);
    LS_CHECK(strstr(json_string_value(json_object_get(root, "$schema")), "2020-12"));
    json_t *top = json_object_get(root, "properties");
    for (int i = 0; i < ls_option_count; i++) {
        const ls_option *row = &ls_options[i];
        const char *leaf = ls_option_leaf(row);
        json_t *where = top;
        if (leaf != row->key) {
            char section[64];
            snprintf(section, sizeof section, "%.*s", (int)(leaf - row->key) - 1, row->key);
            json_t *object = json_object_get(top, section);
            LS_CHECK(json_is_false(json_object_get(object, "additionalProperties")));
            where = json_object_get(object, "properties");
        }
        json_t *option = json_object_get(where, leaf);
        LS_CHECK(json_is_object(option));
        LS_CHECK(json_array_size(json_object_get(option, "anyOf")) > 0);
        LS_CHECK_EQ(json_object_get(option, "default") == NULL, row->preset == NULL);
    }
    json_t *required = json_object_get(json_object_get(top, "model"), "required");
    LS_CHECK_EQ(json_array_size(required), 4);
    json_decref(root);
    ls_str_release(&text);
}

LS_TEST(schema_survives_every_failed_allocation)
{
    ls_status st = LS_ENOMEM;

    for (uint64_t n = 1; st != LS_OK; n++) {
        ls_str text;
        LS_CHECK(n < 1000);
        ls_str_init(&text);
        ls_mem_fail_nth(n);
        st = ls_schema_json(&text);
        ls_mem_fail_nth(0);
        ls_str_release(&text);
        LS_CHECK(st == LS_OK || st == LS_ENOMEM);
    }
}

LS_TEST(schema_reference_page_is_fresh)
{
    ls_str text;

    ls_str_init(&text);
    LS_CHECK_OK(ls_schema_markdown(&text));
    for (int i = 0; i < ls_option_count; i++) {
        char cell[96];
        snprintf(cell, sizeof cell, "| `%s` |", ls_options[i].key);
        LS_CHECK(strstr(text.p, cell));
    }
    ls_golden_check("docs/reference/run-file.md", &text,
                    "lineshaft config reference > docs/reference/run-file.md");
    ls_str_release(&text);
}
