/* fuzz_jinja.c -- any text as a chat template: parse it, render it, within small limits.
 *
 * The variables are those of a conversation with tools, so that what templates do with them is
 * reached. A hostile template must end with an error, soon. */
#include <stdlib.h>
#include "jinja/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char context[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S \\u00e9\"},{\"role\":\"user\",\"content\":"
    "\"Hi\\n\"},{\"role\":\"assistant\",\"content\":\"<think>a</think>b\",\"tool_calls\":"
    "[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1,2.5,null,true]}}}]}],\"tools\":null,"
    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"n\":3,\"d\":{\"b\":1,\"a\":{\"c\":[]}}"
    "}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ls_jinja *tpl;
    ls_jinja_spans spans;
    ls_str out;
    json_error_t error;

    if (ls_jinja_parse(&tpl, (const char *)data, size, "fuzz") != LS_OK)
        return 0;
    json_t *variables = json_loads(context, 0, &error);
    ls_str_init(&out);
    ls_jinja_spans_init(&spans);
    ls_status st = ls_jinja_render(
        tpl, &(ls_jinja_args){.context = variables, .steps = 100000, .spans = &spans}, &out);
    if (st != LS_OK && st != LS_EDATA && st != LS_ENOMEM)
        abort();
    for (int i = 0; st == LS_OK && i < spans.count; i++)
        if (spans.items[i].begin >= spans.items[i].end || spans.items[i].end > out.len)
            abort();
    ls_jinja_spans_release(&spans);
    ls_str_release(&out);
    json_decref(variables);
    ls_jinja_free(tpl);
    return 0;
}
