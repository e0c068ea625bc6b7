/* render.c -- the template interpreter behind a pipe, for tests/conformance/template.py.
 *
 * Reads one JSON object a line: {"template": text, "context": object}, where the text may be the
 * name of a built-in template. Answers each with one line:
 * {"text": ..., "spans": [[begin, end], ...]} or {"error": ...}. Spans count bytes. */
#include <stdlib.h>
#include "base/json.h"
#include "jinja/jinja.h"

static void answer(const json_t *request, ls_str *out)
{
    const json_t *text = json_object_get(request, "template");
    ls_jinja *tpl = NULL;
    ls_jinja_spans spans;
    ls_str rendered;
    ls_json j;

    ls_str_init(&rendered);
    ls_jinja_spans_init(&spans);
    const char *builtin = ls_jinja_builtin(json_string_value(text));
    ls_status st = builtin ? ls_jinja_parse(&tpl, builtin, strlen(builtin), "chat template")
                           : ls_jinja_parse(&tpl, json_string_value(text), json_string_length(text),
                                            "chat template");
    if (st == LS_OK)
        st = ls_jinja_render(
            tpl, &(ls_jinja_args){.context = json_object_get(request, "context"), .spans = &spans},
            &rendered);
    ls_json_begin(&j, out);
    ls_json_open(&j, '{');
    if (st == LS_OK) {
        ls_json_key(&j, "text");
        ls_json_text(&j, rendered.p, rendered.len);
        ls_json_key(&j, "spans");
        ls_json_open(&j, '[');
        for (int i = 0; i < spans.count; i++) {
            ls_json_open(&j, '[');
            ls_json_int(&j, (int64_t)spans.items[i].begin);
            ls_json_int(&j, (int64_t)spans.items[i].end);
            ls_json_close(&j);
        }
        ls_json_close(&j);
    } else {
        ls_json_put_str(&j, "error", ls_err_last()->text);
    }
    ls_json_close(&j);
    ls_str_append_char(out, '\n');
    ls_jinja_free(tpl);
    ls_jinja_spans_release(&spans);
    ls_str_release(&rendered);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    ls_str out;

    ls_str_init(&out);
    while ((len = getline(&line, &cap, stdin)) > 0) {
        json_error_t error;
        json_t *request = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, &error);
        if (!json_is_string(json_object_get(request, "template")) ||
            !json_is_object(json_object_get(request, "context"))) {
            fprintf(stderr, "render: a line is not a request: %s\n", error.text);
            return 1;
        }
        ls_str_clear(&out);
        answer(request, &out);
        json_decref(request);
        fwrite(out.p, 1, out.len, stdout);
        fflush(stdout);
    }
    free(line);
    ls_str_release(&out);
    return 0;
}
