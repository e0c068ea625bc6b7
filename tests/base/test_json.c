/* test_json.c -- whatever the writer writes, jansson reads back. */
#include <jansson.h>

#include "harness.h"
#include "base/json.h"
#include "base/mem.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static json_t *read_back(const ls_str *text)
{
    json_error_t error;
    json_t *got = json_loadb(text->p, text->len,
                             JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);

    if (!got)
        ls_test_fail(__FILE__, __LINE__, "\"%s\": %s", text->p, error.text);
    return got;
}

LS_TEST(json_lines_are_indented)
{
    ls_str s;
    ls_json j;

    ls_str_init(&s);
    ls_json_begin_lines(&j, &s, 2);
    ls_json_open(&j, '{');
    ls_json_put_int(&j, "a", 1);
    ls_json_key(&j, "b");
    ls_json_open(&j, '[');
    ls_json_int(&j, 2);
    ls_json_open(&j, '{');
    ls_json_close(&j);
    ls_json_close(&j);
    ls_json_key(&j, "c");
    ls_json_open(&j, '[');
    ls_json_close(&j);
    ls_json_close(&j);
    LS_CHECK_STR(s.p, "{\n  \"a\": 1,\n  \"b\": [\n    2,\n    {}\n  ],\n  \"c\": []\n}");
    ls_str_release(&s);
}

LS_TEST(json_nested_values_read_back)
{
    ls_str s;
    ls_json j;
    json_int_t step, deep;
    double loss;
    const char *name;
    int yes;

    ls_str_init(&s);
    ls_json_begin(&j, &s);
    ls_json_open(&j, '{');
    ls_json_put_int(&j, "step", INT64_MIN);
    ls_json_put_num(&j, "loss", 0.1);
    ls_json_put_str(&j, "name", "a \"b\" \\ c\n\t\r\b\x01\x7f");
    ls_json_put_bool(&j, "yes", true);
    ls_json_put_str(&j, "none", NULL);
    ls_json_key(&j, "split");
    ls_json_open(&j, '[');
    ls_json_open(&j, '{');
    ls_json_close(&j);
    ls_json_open(&j, '[');
    ls_json_int(&j, 7);
    ls_json_close(&j);
    ls_json_bool(&j, false);
    ls_json_close(&j);
    ls_json_key(&j, "quoted \"key\"");
    ls_json_int(&j, 1);
    ls_json_close(&j);
    LS_CHECK_EQ(j.depth, 0);
    LS_CHECK_OK(ls_str_status(&s));

    json_t *got = read_back(&s);
    LS_CHECK_EQ(json_unpack(got, "{s:I s:f s:s s:b s:n s:[{},[I],b] s:i!}", "step", &step, "loss",
                            &loss, "name", &name, "yes", &yes, "none", "split", &deep, &(int){0},
                            "quoted \"key\"", &(int){0}),
                0);
    LS_CHECK(step == INT64_MIN);
    LS_CHECK(loss == 0.1);
    LS_CHECK_STR(name, "a \"b\" \\ c\n\t\r\b\x01\x7f");
    LS_CHECK(yes);
    LS_CHECK_EQ(deep, 7);
    json_decref(got);
    LS_CHECK(!strchr(s.p, '\n')); /* an event is one line, whatever it holds */
    ls_str_release(&s);
}

static void write_text(ls_str *s, const char *bytes, size_t len)
{
    ls_json j;

    ls_str_clear(s);
    ls_json_begin(&j, s);
    ls_json_text(&j, bytes, len);
}

LS_TEST(json_every_byte_and_pair_of_bytes_makes_valid_text)
{
    ls_str s;

    ls_str_init(&s);
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            char bytes[2] = {(char)a, (char)b};
            write_text(&s, bytes, 2);
            json_t *got = read_back(&s);
            const char *text = json_string_value(got);
            if (a < 128 && b < 128)
                LS_CHECK(json_string_length(got) == 2 && memcmp(text, bytes, 2) == 0);
            json_decref(got);
        }
    ls_str_release(&s);
}

LS_TEST(json_invalid_utf8_becomes_replacement_characters)
{
    static const struct {
        const char *bytes, *want;
    } cases[] = {
        {"caf\xc3\xa9", "caf\xc3\xa9"},                           /* valid, 2 bytes */
        {"\xe2\x82\xac", "\xe2\x82\xac"},                         /* valid, 3 bytes */
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},                 /* valid, 4 bytes */
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},                 /* the last character */
        {"a\xc3", "a\xef\xbf\xbd"},                               /* cut short at the end */
        {"\xc3(", "\xef\xbf\xbd("},                               /* cut short in the middle */
        {"\x80z", "\xef\xbf\xbdz"},                               /* begins in the middle */
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},                 /* "/" in two bytes */
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* half of a surrogate pair */
        {"\xf5\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* too high */
        {"\xff", "\xef\xbf\xbd"},
    };
    ls_str s;

    ls_str_init(&s);
    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        write_text(&s, cases[i].bytes, strlen(cases[i].bytes));
        json_t *got = read_back(&s);
        LS_CHECK_STR(json_string_value(got), cases[i].want);
        json_decref(got);
    }
    write_text(&s, "a\0b", 3);
    LS_CHECK_STR(s.p, "\"a\\u0000b\"");
    write_text(&s, "", 0);
    LS_CHECK_STR(s.p, "\"\"");
    ls_str_release(&s);
}

static const char *number(ls_str *s, double value)
{
    ls_json j;

    ls_str_clear(s);
    ls_json_begin(&j, s);
    ls_json_num(&j, value);
    return s->p;
}

LS_TEST(json_takes_rounded_numbers_and_json_as_it_is)
{
    ls_str s;
    ls_json j;

    ls_str_init(&s);
    ls_json_begin(&j, &s);
    ls_json_open(&j, '[');
    ls_json_round(&j, 1.0 / 3, 4);
    ls_json_round(&j, 123456789, 3);
    ls_json_round(&j, (double)NAN, 4);
    ls_json_raw(&j, "{\"a\":1}", 7);
    ls_json_int(&j, 2);
    ls_json_close(&j);
    LS_CHECK_STR(s.p, "[0.3333,1.23e+08,null,{\"a\":1},2]");
    json_decref(read_back(&s));
    ls_str_release(&s);
}

LS_TEST(json_numbers_are_short_and_read_back_to_the_last_bit)
{
    ls_str s;
    uint64_t bits = 1;

    ls_str_init(&s);
    LS_CHECK_STR(number(&s, 0), "0");
    LS_CHECK_STR(number(&s, 0.1), "0.1");
    LS_CHECK_STR(number(&s, -2.5), "-2.5");
    LS_CHECK_STR(number(&s, 1e300), "1e+300");
    LS_CHECK_STR(number(&s, 1.0 / 3), "0.3333333333333333");
    LS_CHECK_STR(number(&s, (double)NAN), "null");
    LS_CHECK_STR(number(&s, (double)INFINITY), "null");
    LS_CHECK_STR(number(&s, -(double)INFINITY), "null");
    for (int i = 0; i < 3000; i++) { /* all exponents, subnormal ones too */
        double value;
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        number(&s, value);
        json_t *got = read_back(&s);
        LS_CHECK(json_number_value(got) == value);
        json_decref(got);
    }
    ls_str_release(&s);
}

LS_TEST(json_reuse_of_a_grown_string_does_not_touch_the_heap)
{
    ls_str s;
    ls_json j;
    uint64_t calls = 0;

    ls_str_init(&s);
    for (int round = 0; round < 3; round++) {
        if (round == 1)
            calls = ls_mem_calls();
        ls_str_clear(&s);
        ls_json_begin(&j, &s);
        ls_json_open(&j, '{');
        for (int i = 0; i < 100; i++) {
            char key[16];
            snprintf(key, sizeof key, "k%d", i);
            ls_json_put_num(&j, key, i / 7.0);
        }
        ls_json_close(&j);
    }
    LS_CHECK_EQ(ls_mem_calls(), calls);
    ls_str_release(&s);
}

LS_TEST(json_out_of_memory_is_found_at_the_end)
{
    ls_str s;
    ls_json j;

    ls_str_init(&s);
    ls_mem_fail_nth(2);
    ls_json_begin(&j, &s);
    ls_json_open(&j, '[');
    for (int i = 0; i < 1000; i++)
        ls_json_int(&j, i);
    ls_json_close(&j);
    LS_CHECK_FAILS(ls_str_status(&s), LS_ENOMEM, "cannot grow");
    ls_str_release(&s);
}

/* Wrong calls: each must abort, because each would make a text that is not JSON. */
static void wrong_call(int which)
{
    ls_str s;
    ls_json j;

    ls_str_init(&s);
    ls_json_begin(&j, &s);
    switch (which) {
    case 0: /* a value without a key */
        ls_json_open(&j, '{');
        ls_json_int(&j, 1);
        break;
    case 1: /* a key in an array */
        ls_json_open(&j, '[');
        ls_json_key(&j, "k");
        break;
    case 2: /* two keys */
        ls_json_open(&j, '{');
        ls_json_key(&j, "k");
        ls_json_key(&j, "k");
        break;
    case 3: /* a key without a value */
        ls_json_open(&j, '{');
        ls_json_key(&j, "k");
        ls_json_close(&j);
        break;
    case 4: /* nothing is open */
        ls_json_close(&j);
        break;
    case 5: /* a key outside */
        ls_json_key(&j, "k");
        break;
    case 6: /* too deep */
        for (int i = 0; i < 30; i++)
            ls_json_open(&j, '[');
        break;
    case 7: /* two texts in one */
        ls_json_int(&j, 1);
        ls_json_int(&j, 2);
        break;
    case 8: /* no such bracket */
        ls_json_open(&j, '(');
        break;
    }
}

LS_TEST(json_wrong_calls_abort)
{
    for (int which = 0; which <= 8; which++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            wrong_call(which);
            _exit(0);
        }
        LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
            ls_test_fail(__FILE__, __LINE__, "wrong call %d did not abort", which);
    }
}
