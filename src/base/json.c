/* json.c -- a JSON writer over a growing string. */
#include "base/json.h"

#include <math.h>

void ls_json_begin(ls_json *json, ls_str *out)
{
    *json = (ls_json){.out = out};
}

void ls_json_begin_lines(ls_json *json, ls_str *out, int indent)
{
    *json = (ls_json){.out = out, .indent = indent};
}

static void new_line(ls_json *json)
{
    if (!json->indent)
        return;
    ls_str_append_char(json->out, '\n');
    for (int i = 0; i < json->depth * json->indent; i++)
        ls_str_append_char(json->out, ' ');
}

static void before_value(ls_json *json)
{
    if (json->after_key) {
        json->after_key = false;
        return;
    }
    LS_BUG_IF(json->depth && json->open[json->depth] == '{', "a JSON value without a key");
    LS_BUG_IF(json->depth == 0 && json->comma[0], "a second JSON value after the first");
    if (json->comma[json->depth])
        ls_str_append_char(json->out, ',');
    json->comma[json->depth] = true;
    if (json->depth)
        new_line(json);
}

void ls_json_open(ls_json *json, char bracket)
{
    LS_BUG_IF(bracket != '{' && bracket != '[', "JSON has no bracket '%c'", bracket);
    before_value(json);
    json->depth++;
    LS_BUG_IF(json->depth >= (int)LS_COUNT(json->open), "JSON nested too deeply");
    json->open[json->depth] = bracket;
    json->comma[json->depth] = false;
    ls_str_append_char(json->out, bracket);
}

void ls_json_close(ls_json *json)
{
    LS_BUG_IF(json->depth == 0 || json->after_key, "closing JSON that is not open");
    char bracket = json->open[json->depth] == '{' ? '}' : ']';
    bool empty = !json->comma[json->depth];
    json->depth--;
    if (!empty)
        new_line(json);
    ls_str_append_char(json->out, bracket);
}

static void put_escaped(ls_str *out, const char *bytes, size_t len)
{
    const unsigned char *p = (const unsigned char *)bytes;

    ls_str_append_char(out, '"');
    for (size_t i = 0; i < len;) {
        size_t n = ls_str_utf8_len(p + i, len - i);
        if (n == 0) {
            ls_str_append(out, "\xef\xbf\xbd");
            i++;
            continue;
        }
        if (p[i] == '"' || p[i] == '\\')
            ls_str_append_char(out, '\\');
        if (p[i] == '\n')
            ls_str_append(out, "\\n");
        else if (p[i] == '\t')
            ls_str_append(out, "\\t");
        else if (p[i] < 0x20 || p[i] == 0x7f)
            ls_str_printf(out, "\\u%04x", p[i]);
        else if (n == 2 && p[i] == 0xc2 && p[i + 1] < 0xa0) /* control, too */
            ls_str_printf(out, "\\u%04x", p[i + 1]);
        else
            ls_str_append_bytes(out, p + i, n);
        i += n;
    }
    ls_str_append_char(out, '"');
}

void ls_json_key(ls_json *json, const char *key)
{
    LS_BUG_IF(json->depth == 0 || json->open[json->depth] != '{' || json->after_key,
              "JSON key \"%s\" outside an object", key);
    if (json->comma[json->depth])
        ls_str_append_char(json->out, ',');
    json->comma[json->depth] = true;
    new_line(json);
    put_escaped(json->out, key, strlen(key));
    ls_str_append(json->out, json->indent ? ": " : ":");
    json->after_key = true;
}

void ls_json_text(ls_json *json, const char *bytes, size_t len)
{
    before_value(json);
    put_escaped(json->out, bytes, len);
}

void ls_json_str(ls_json *json, const char *value)
{
    if (value) {
        ls_json_text(json, value, strlen(value));
        return;
    }
    before_value(json);
    ls_str_append(json->out, "null");
}

void ls_json_int(ls_json *json, int64_t value)
{
    before_value(json);
    ls_str_printf(json->out, "%lld", (long long)value);
}

void ls_json_num(ls_json *json, double value)
{
    char text[40];

    before_value(json);
    if (!isfinite(value)) {
        ls_str_append(json->out, "null");
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    ls_str_append(json->out, text);
}

void ls_json_round(ls_json *json, double value, int digits)
{
    before_value(json);
    if (isfinite(value))
        ls_str_printf(json->out, "%.*g", digits, value);
    else
        ls_str_append(json->out, "null");
}

void ls_json_raw(ls_json *json, const char *text, size_t len)
{
    before_value(json);
    ls_str_append_bytes(json->out, text, len);
}

void ls_json_bool(ls_json *json, bool value)
{
    before_value(json);
    ls_str_append(json->out, value ? "true" : "false");
}

void ls_json_put_str(ls_json *json, const char *key, const char *value)
{
    ls_json_key(json, key);
    ls_json_str(json, value);
}

void ls_json_put_int(ls_json *json, const char *key, int64_t value)
{
    ls_json_key(json, key);
    ls_json_int(json, value);
}

void ls_json_put_num(ls_json *json, const char *key, double value)
{
    ls_json_key(json, key);
    ls_json_num(json, value);
}

void ls_json_put_bool(ls_json *json, const char *key, bool value)
{
    ls_json_key(json, key);
    ls_json_bool(json, value);
}

void ls_json_put_open(ls_json *json, const char *key, char bracket)
{
    ls_json_key(json, key);
    ls_json_open(json, bracket);
}
