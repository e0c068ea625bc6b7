/* test_jinja.c -- the template language, construct by construct, and its refusals.
 *
 * What each construct writes was taken from jinja2 with transformers' settings;
 * tests/conformance/template.py compares far more of it with the original. */
#include "jinja/jinja.h"

#include "base/mem.h"
#include "harness.h"

static const char variables[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":"
    "\"Gr\\u00fc\\u00dfe \\ud83d\\ude00\"}],\"n\":3,\"f\":1.5,\"x\":null,\"t\":true,\"s\":\" a b "
    "\","
    "\"d\":{\"b\":1,\"a\":[1,2.0,null,true,\"\\n\\\"\"]},"
    "\"long\":{\"\xef\xb7\x90\":\"-18446744073709551615\"},"
    "\"nan\":{\"\xef\xb7\x90\":\"NaN\"},\"other\":{\"\xef\xb7\x90\":\"red\"}}";

static ls_status render(const char *text, int64_t steps, ls_jinja_spans *spans, ls_str *out)
{
    ls_jinja *tpl = NULL;
    json_error_t error;
    json_t *context = json_loads(variables, 0, &error);
    ls_status st = ls_jinja_parse(&tpl, text, strlen(text), "chat template");

    LS_CHECK(context);
    if (st == LS_OK)
        st = ls_jinja_render(
            tpl,
            &(ls_jinja_args){.context = context, .now = 1721952000, .steps = steps, .spans = spans},
            out);
    ls_jinja_free(tpl);
    json_decref(context);
    return st;
}

static void check(const char *text, const char *want)
{
    ls_str out;

    ls_str_init(&out);
    LS_CHECK_OK(render(text, 0, NULL, &out));
    if (strcmp(out.p, want) != 0)
        ls_test_fail(__FILE__, __LINE__, "%s gives \"%s\", expected \"%s\"", text, out.p, want);
    ls_str_release(&out);
}

static void check_refused(const char *text, const char *says)
{
    ls_str out;

    ls_str_init(&out);
    LS_CHECK_FAILS(render(text, 0, NULL, &out), LS_EDATA, says);
    ls_str_release(&out);
}

LS_TEST(values_print_as_in_python)
{
    check("{{ n }}|{{ f }}|{{ x }}|{{ t }}|{{ s }}|{{ missing }}", "3|1.5|None|True| a b |");
    check("{{ d }}", "{'b': 1, 'a': [1, 2.0, None, True, '\\n\"']}");
    check("{{ [1, (2,), \"it's\", {'k': none}] }}", "[1, (2,), \"it's\", {'k': None}]");
    check("{{ 1e16 }} {{ 1.0e5 }} {{ 0.0001 }} {{ 0.00001 }} {{ 0.1 + 0.2 }}",
          "1e+16 100000.0 0.0001 1e-05 0.30000000000000004");
    check("{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }}", "3 -4 2 3.5 1024");
    check("{{ d | tojson }}", "{\"b\": 1, \"a\": [1, 2.0, null, true, \"\\n\\\"\"]}");
    check("{{ {'a': [1]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ]\n}");
    check("{{ messages[1].content | tojson(ensure_ascii=true) }}",
          "\"Gr\\u00fc\\u00dfe \\ud83d\\ude00\"");
}

LS_TEST(text_counts_characters)
{
    check("{{ messages[1].content | length }}{{ messages[1].content[-1] }}", "7\xf0\x9f\x98\x80");
    check("{{ messages[1].content[::-1] }}", "\xf0\x9f\x98\x80 e\xc3\x9f\xc3\xbcrG");
    check("{{ messages[1].content[1:4] }}|{{ messages[1].content.upper() }}",
          "r\xc3\xbc\xc3\x9f|GR\xc3\x9cSSE \xf0\x9f\x98\x80");
    check("{{ s.strip() }}|{{ s | trim }}|{{ s.split() }}|{{ s.replace(' ', '') }}",
          "a b|a b|['a', 'b']|ab");
}

/* What Python reads from JSON and 64 bits do not hold: written as it was, not computed with. */
LS_TEST(numbers_beyond_64_bits_are_written_as_they_are)
{
    check("{{ long }} {{ [long, nan] | tojson }}",
          "-18446744073709551615 [-18446744073709551615, NaN]");
    check("{{ long is number }} {{ long is integer }} {{ long is string }} {{ long == long }}",
          "True True False True");
    check("{{ 'yes' if long else 'no' }} {{ long | int }} {{ long | float }}",
          "yes -18446744073709551615 -1.8446744073709552e+19");
    check("{{ nan }} {{ nan == nan }} {{ other is mapping }}", "nan False True");
    check_refused("{{ long + 1 }}", "a number beyond 64 bits");
    check_refused("{{ long < 1 }}", "a number beyond 64 bits");
}

LS_TEST(loops_and_names)
{
    check(
        "{% for m in messages %}{{ loop.index }}{{ m.role }}{{ ',' if not loop.last }}{% endfor %}",
        "1user,2assistant");
    check("{% for m in messages if m.role == 'x' %}a{% else %}none{% endfor %}", "none");
    check("{% set a = 1 %}{% for i in range(3) %}{% set a = a + i %}{{ a }}{% endfor %}{{ a }}",
          "1231");
    check(
        "{% set ns = namespace(a=0) %}{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif "
        "%}{% if i == 3 %}{% break %}{% endif %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
        "2");
    check("{% macro m(a, b=2) %}{{ a }}{{ b }}{{ n }}{% endmacro %}{{ m(1) }}{{ m(b=4, a=3) }}",
          "123343");
    check("{% for k, v in d.items() %}{{ k }}{% endfor %}{{ d.get('z') }}{{ d.get('z', 5) }}",
          "baNone5");
    check("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024");
}

LS_TEST(white_space_is_dropped_around_blocks)
{
    check("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
    check("a  {%- if true -%}  \n b {%- endif %} c", "ab c");
    check("a\n  {%+ if true +%}\nb{% endif %}", "a\n  \nb");
    check("  {# c #}\nx {{- n -}} y\n\n", "x3y\n");
    check("{% raw %}{{ n }}{% endraw %}", "{{ n }}");
}

LS_TEST(generation_blocks_give_their_places)
{
    ls_jinja_spans spans;
    ls_str out;

    ls_str_init(&out);
    ls_jinja_spans_init(&spans);
    LS_CHECK_OK(render("{% for m in messages %}<{% generation %}{{ m.content[0] }}"
                       "{% generation %}{{ m.content[1:] }}{% endgeneration %}{% endgeneration %}>"
                       "{% endfor %}{% generation %}{% endgeneration %}",
                       0, &spans, &out));
    LS_CHECK_EQ(spans.count, 2);
    LS_CHECK_EQ(spans.items[0].begin, 1);
    LS_CHECK_EQ(spans.items[0].end, 3);
    LS_CHECK_EQ(spans.items[1].begin, 5);
    LS_CHECK_EQ(spans.items[1].end, out.len - 1);
    ls_jinja_spans_release(&spans);
    ls_str_release(&out);
}

LS_TEST(what_is_not_supported_is_refused_by_line_and_name)
{
    check_refused("a\n\n{{ n | foo }}", "chat template line 3: filter \"foo\" is not supported");
    check_refused("{{ n is foo }}", "line 1: test \"foo\" is not supported");
    check_refused("{{ s.encode() }}", "method \"encode\" is not supported");
    check_refused("{{ [1] | map('foo') }}", "filter \"foo\" is not supported");
    check_refused("{{ [1] | select('foo') }}", "test \"foo\" is not supported");
    check_refused("{% include 'x' %}", "block \"include\" is not supported");
    check_refused("{% endif %}", "block \"endif\" is not open here");
    check_refused("{% for i in n recursive %}{% endfor %}", "recursive loops are not supported");
    check_refused("{{ f(*a) }}", "\"*\" before an argument");
    check_refused("\n{% if n %}", "line 2: the block that begins here has no \"endif\"");
    check_refused("{% break %}", "outside of a loop");
    check_refused("{{ n", "the tag does not end");
    check_refused("{{ 'a }}", "a string does not end");
    check_refused("{# a", "the comment does not end");
    check_refused("{{ (n] }}", "a bracket is closed that was not opened");
    check_refused("{{ n ! }}", "\"!\" has no meaning here");
    check_refused("{{ }}", "an expression is expected, not \"}}\"");
    check_refused("{{ 99999999999999999999 }}", "a number is too large");
    check_refused("\xff", "not UTF-8");
}

LS_TEST(mistakes_are_reported)
{
    check_refused("\n{{ missing.a }}", "line 2: \"missing\" is undefined");
    check_refused("{{ none.a.b }}", "\"a\" is undefined");
    check_refused("{{ raise_exception('no') }}", "the template refuses this: no");
    check_refused("{{ n + s }}", "\"+\" is not possible between a whole number and a text");
    check_refused("{{ n < s }}", "have no order");
    check_refused("{{ 1 // 0 }}", "divided by 0");
    check_refused("{{ n() }}", "a whole number cannot be called");
    check_refused("{{ missing | tojson }}", "cannot be written as JSON");
    check_refused("{% for i in n %}{% endfor %}", "cannot be looped over");
    check_refused("{% set n.a = 1 %}", "\"n\" is not a namespace");
    check_refused("{{ 9223372036854775807 + 1 }}", "beyond 64 bits");
    check_refused("{% set a, b = [1] %}", "1 values cannot be given to 2 names");
    check_refused("{{ namespace }}", "cannot be printed");
    check_refused("{{ s.split('') }}", "split at nothing");
    check_refused("{{ s.join([1]) }}", "a text is expected");
    check_refused("{{ {[1]: 2} }}", "cannot be a key");
}

/* A template that never ends, or wants everything, ends with an error. */
LS_TEST(hostile_templates_end)
{
    ls_str text;

    check_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "more than 64 deep");
    check_refused("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                  "the template ");
    check_refused("{{ range(100001) }}", "more than 100000 numbers");
    check_refused("{{ range(5, 9, 0) }}", "the step of a range is 0");
    check_refused("{{ range(5, nothing, -0) }}", "number");
    check_refused("{{ 'x' * 999999999999 }}", "needs more than 256 MiB");
    check_refused("{% set ns = namespace(a='xxxxxxxx') %}{% for i in range(99) %}"
                  "{% set ns.a = ns.a + ns.a %}{% endfor %}",
                  "needs more than 256 MiB");
    check_refused("{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}", "MiB");
    check_refused("{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}"
                  "{% endfor %}{{ ns.a }}",
                  "nested too deeply");
    check_refused("{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}"
                  "{% endfor %}{{ ns.a == [ns.a] }}{{ ns.a | tojson }}",
                  "nested too deeply");
    check_refused("{{ 2 ** 2 ** 99 }}", "beyond 64 bits");
    ls_str_init(&text);
    for (int i = 0; i < 5000; i++)
        ls_str_append(&text, "{% if n %}");
    check_refused(text.p, "nested too deeply");
    ls_str_clear(&text);
    ls_str_append(&text, "{{ ");
    for (int i = 0; i < 5000; i++)
        ls_str_append(&text, "(");
    check_refused(text.p, "nested too deeply");
    ls_str_clear(&text);
    ls_str_append(&text, "{{ 0"); /* to the left it is one level for the parser, not for the rest */
    for (int i = 0; i < 50000; i++)
        ls_str_append(&text, "+1");
    ls_str_append(&text, " }}");
    check_refused(text.p, "nested too deeply");
    ls_str_clear(&text);
    ls_str_append(&text, "{% filter trim");
    for (int i = 0; i < 50000; i++)
        ls_str_append(&text, "|trim");
    ls_str_append(&text, " %}x{% endfilter %}");
    check_refused(text.p, "nested too deeply");
    ls_str_release(&text);
}

LS_TEST(built_in_templates_parse)
{
    static const char *const names[] = {"chatml", "llama3", "qwen"};
    ls_jinja *tpl;

    for (size_t i = 0; i < LS_COUNT(names); i++) {
        const char *text = ls_jinja_builtin(names[i]);
        LS_CHECK(text);
        LS_CHECK_OK(ls_jinja_parse(&tpl, text, strlen(text), names[i]));
        LS_CHECK(!ls_jinja_marks(tpl));
        ls_jinja_free(tpl);
    }
    LS_CHECK(!ls_jinja_builtin("gpt9"));
}

LS_TEST(every_failing_allocation_is_reported)
{
    static const char text[] =
        "{% macro m(a) %}{{ a | upper }}{% endmacro %}{% set ns = namespace(x=[1]) %}"
        "{% for k, v in d.items() %}{% set ns.x = ns.x + [v] %}{{ m(k) }}{% generation %}{{ ns.x | "
        "tojson }}{% endgeneration %}{% endfor %}{% set b %}{{ s }}{% endset %}{{ b.split() }}";
    uint64_t n = 1;

    for (;; n++) {
        ls_jinja_spans spans;
        ls_str out;
        ls_str_init(&out);
        ls_jinja_spans_init(&spans);
        ls_mem_fail_nth(n);
        ls_status st = render(text, 0, &spans, &out);
        ls_mem_fail_nth(0);
        ls_jinja_spans_release(&spans);
        ls_str_release(&out);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    LS_CHECK(n > 10);
}

/* What costs the product of two lengths is charged as that: each of these would take hours. */
LS_TEST(long_texts_cannot_keep_it_busy)
{
    static const char long_text[] = "{% set s = 'a' * 4000000 %}";
    static const char *const work[] = {
        "{{ s.rfind('a' * 1000000 + 'b' + 'a') }}",
        "{{ s.rsplit('a' * 1000000 + 'b' + 'a', 1) }}",
        "{{ s | trim('bcd' * 1000 + 'a') }}",
        "{% for i in range(100000) %}{{ s.startswith(s) }}{% endfor %}",
        "{% for i in range(100000) %}{{ s.startswith(('b', s)) }}{% endfor %}",
        "{% for i in range(100000) %}{% set t = s.removesuffix(s) %}{% endfor %}",
        "{% set k, d = s ~ 1, {s ~ 2: 1} %}{% for i in range(99999) %}{{ k in d }}{% endfor %}"};
    char text[300];

    for (size_t i = 0; i < LS_COUNT(work); i++) {
        snprintf(text, sizeof text, "%s%s", long_text, work[i]);
        check_refused(text, "takes too many steps");
    }
    check_refused("{{ 'a' | trim('b' * 5000) }}", "too many characters to strip");
    check("{{ 'abcabc'.rfind('bc') }} {{ 'abc'.rfind('') }} {{ ''.rfind('') }} {{ 'a'.rfind('ab') "
          "}} {{ 'abab'.rsplit('ab', 1) }} {{ 'aaa'.rfind('aa') }}",
          "4 3 0 -1 ['ab', ''] 1");
}
