/* jinja_write.c -- values as text: as print shows them, as they look inside a list, and as JSON.
 *
 * The texts are Python's, to the character: numbers as its repr() writes them (the shortest digits
 * that read back, with an exponent from 1e16 on), strings quoted as it quotes them, JSON with the
 * separators of its json module. */
#include "jinja/jinja_impl.h"

#include <ctype.h>
#include <math.h>
#include <utf8proc.h>

/* Whether a value at this depth may be written behind out; charges for it. */
static bool may_write(ls_jinja_machine *m, ls_jinja_value v, const ls_str *out, int depth)
{
    if (depth > LS_JINJA_DEEP)
        ls_jinja_fail(m, "a value is nested too deeply to be written");
    if (out->len > LS_JINJA_OUTPUT)
        ls_jinja_fail(m, "the text grows beyond %d MiB", LS_JINJA_OUTPUT >> 20);
    return ls_jinja_charge(m, v.kind == LS_JINJA_STR ? (int64_t)v.u.s.len : 1);
}

/* The shortest digits that read back, laid out as Python does. */
static void write_float(double f, ls_str *out)
{
    char text[40], digits[24];
    int precision = 1, n = 0;

    if (!isfinite(f)) {
        ls_str_append(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    do
        snprintf(text, sizeof text, "%.*e", precision - 1, f);
    while (strtod(text, NULL) != f && ++precision <= 17);
    const char *p = text, *e = strchr(text, 'e');
    int exponent = (int)strtol(e + 1, NULL, 10);
    if (*p == '-') {
        ls_str_append_char(out, '-');
        p++;
    }
    for (; p < e; p++)
        if (isdigit((unsigned char)*p))
            digits[n++] = *p;
    if (exponent < -4 || exponent >= 16) {
        ls_str_append_char(out, digits[0]);
        if (n > 1) {
            ls_str_append_char(out, '.');
            ls_str_append_bytes(out, digits + 1, (size_t)n - 1);
        }
        ls_str_printf(out, "e%c%02d", exponent < 0 ? '-' : '+',
                      exponent < 0 ? -exponent : exponent);
        return;
    }
    if (exponent < 0)
        ls_str_append(out, "0.");
    for (int i = exponent + 1; i < 0; i++)
        ls_str_append_char(out, '0');
    for (int i = 0; i <= exponent; i++)
        ls_str_append_char(out, i < n ? digits[i] : '0');
    if (exponent >= 0)
        ls_str_append_char(out, '.');
    int done = exponent < 0 ? 0 : exponent + 1;
    ls_str_append_bytes(out, done < n ? digits + done : "0", done < n ? (size_t)(n - done) : 1);
}

static bool is_printable(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return true;
    }
}

static void repr_string(ls_jinja_value v, ls_str *out)
{
    const char *p = v.u.s.p, *end = p + v.u.s.len;
    char quote = memchr(p, '\'', v.u.s.len) && !memchr(p, '"', v.u.s.len) ? '"' : '\'';
    int n;

    ls_str_append_char(out, quote);
    for (; p < end; p += n) {
        uint32_t c = ls_jinja_char(p, end, &n);
        if (c == '\\' || c == (uint32_t)quote)
            ls_str_printf(out, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            ls_str_append(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (is_printable(c))
            ls_str_append_bytes(out, p, (size_t)n);
        else
            ls_str_printf(out,
                          c < 0x100     ? "\\x%02x"
                          : c < 0x10000 ? "\\u%04x"
                                        : "\\U%08x",
                          (unsigned)c);
    }
    ls_str_append_char(out, quote);
}

static void write_repr(ls_jinja_machine *m, ls_jinja_value v, ls_str *out, int depth);

static void repr_items(ls_jinja_machine *m, ls_jinja_value v, ls_str *out, int depth)
{
    bool dict = v.kind == LS_JINJA_DICT;
    int64_t n = dict ? v.u.dict->count : v.u.list.count;

    ls_str_append_char(out, dict ? '{' : v.tuple ? '(' : '[');
    for (int64_t i = 0; i < n && m->st == LS_OK; i++) {
        if (i)
            ls_str_append(out, ", ");
        if (dict) {
            write_repr(m, v.u.dict->keys[i], out, depth + 1);
            ls_str_append(out, ": ");
        }
        write_repr(m, dict ? v.u.dict->values[i] : v.u.list.items[i], out, depth + 1);
    }
    if (v.tuple && n == 1)
        ls_str_append_char(out, ',');
    ls_str_append_char(out, dict ? '}' : v.tuple ? ')' : ']');
}

/* A value as it looks inside a list: strings in quotes. */
static void write_repr(ls_jinja_machine *m, ls_jinja_value v, ls_str *out, int depth)
{
    if (!may_write(m, v, out, depth))
        return;
    switch (v.kind) {
    case LS_JINJA_STR:
        repr_string(v, out);
        break;
    case LS_JINJA_LIST:
    case LS_JINJA_DICT:
        repr_items(m, v, out, depth);
        break;
    case LS_JINJA_UNDEFINED:
        ls_str_append(out, "Undefined");
        break;
    default:
        ls_jinja_write(m, v, out);
    }
}

void ls_jinja_write(ls_jinja_machine *m, ls_jinja_value v, ls_str *out)
{
    if (!ls_jinja_charge(m, v.kind == LS_JINJA_STR ? (int64_t)v.u.s.len : 1))
        return;
    switch (v.kind) {
    case LS_JINJA_ABSENT:
    case LS_JINJA_UNDEFINED:
        break;
    case LS_JINJA_NONE:
        ls_str_append(out, "None");
        break;
    case LS_JINJA_BOOL:
        ls_str_append(out, v.u.b ? "True" : "False");
        break;
    case LS_JINJA_INT:
        ls_str_printf(out, "%lld", (long long)v.u.i);
        break;
    case LS_JINJA_FLOAT:
        write_float(v.u.f, out);
        break;
    case LS_JINJA_LONG:
    case LS_JINJA_STR:
        ls_str_append_bytes(out, v.u.s.p, v.u.s.len);
        break;
    case LS_JINJA_LIST:
    case LS_JINJA_DICT:
        write_repr(m, v, out, 0);
        break;
    case LS_JINJA_SPACE:
    case LS_JINJA_LOOP:
    case LS_JINJA_CALLABLE:
        ls_jinja_fail(m, "%s cannot be printed", ls_jinja_kind_name(v.kind));
    }
    if (m->st == LS_OK && out->len > LS_JINJA_OUTPUT)
        ls_jinja_fail(m, "the text grows beyond %d MiB", LS_JINJA_OUTPUT >> 20);
}

ls_jinja_value ls_jinja_to_str(ls_jinja_machine *m, ls_jinja_value v)
{
    ls_str text;

    if (v.kind == LS_JINJA_STR)
        return v;
    ls_str_init(&text);
    ls_jinja_write(m, v, &text);
    v = ls_jinja_take(m, &text);
    return v.kind == LS_JINJA_STR ? v : ls_jinja_view("", 0);
}

/* --- JSON -------------------------------------------------------------------------------------
 */

static void write_char(uint32_t c, const char *p, int n, bool ascii, ls_str *out)
{
    static const char plain[] = "\"\\\n\r\t\f\b", escaped[] = "\"\\nrtfb";
    const char *found = c && c < 128 ? strchr(plain, (int)c) : NULL;

    if (found)
        ls_str_printf(out, "\\%c", escaped[found - plain]);
    else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000))
        ls_str_printf(out, "\\u%04x", (unsigned)c);
    else if (ascii && c >= 0x10000)
        ls_str_printf(out, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((c - 0x10000) >> 10)),
                      (unsigned)(0xdc00 + ((c - 0x10000) & 0x3ff)));
    else
        ls_str_append_bytes(out, p, (size_t)n);
}

static void write_string(ls_jinja_value v, bool ascii, ls_str *out)
{
    const char *p = v.u.s.p, *end = p + v.u.s.len;
    int n;

    ls_str_append_char(out, '"');
    for (; p < end; p += n) {
        uint32_t c = ls_jinja_char(p, end, &n);
        write_char(c, p, n, ascii, out);
    }
    ls_str_append_char(out, '"');
}

/* Keys are strings in JSON; Python turns numbers, booleans and none into them. */
static void write_key(ls_jinja_machine *m, ls_jinja_value key, const ls_jinja_json_style *style,
                      ls_str *out)
{
    if (key.kind == LS_JINJA_STR) {
        write_string(key, style->ascii, out);
        return;
    }
    ls_str_append_char(out, '"');
    ls_jinja_write_json(m, key, style, out, LS_JINJA_DEEP);
    ls_str_append_char(out, '"');
}

static void write_line(const ls_jinja_json_style *style, ls_str *out, int depth)
{
    if (style->indent < 0)
        return;
    ls_str_append_char(out, '\n');
    for (int64_t i = 0; i < (int64_t)style->indent * depth; i++)
        ls_str_append_char(out, ' ');
}

static int by_key(ls_jinja_machine *m, const ls_jinja_value *a, const ls_jinja_value *b,
                  const void *context)
{
    const ls_jinja_dict *dict = context;

    return ls_jinja_order(m, dict->keys[a->u.i], dict->keys[b->u.i], 0);
}

static void write_items(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_json_style *style,
                        ls_str *out, int depth)
{
    bool dict = v.kind == LS_JINJA_DICT;
    int64_t n = dict ? v.u.dict->count : v.u.list.count;
    ls_jinja_value *order = NULL;

    if (dict && style->sort) {
        order = ls_jinja_alloc(m, (size_t)n * sizeof *order);
        for (int64_t i = 0; order && i < n; i++)
            order[i] = ls_jinja_int(i);
        if (order)
            ls_jinja_sort(m, order, n, by_key, v.u.dict);
    }
    ls_str_append_char(out, dict ? '{' : '[');
    for (int64_t i = 0; i < n && m->st == LS_OK; i++) {
        int64_t at = order ? order[i].u.i : i;
        if (i)
            ls_str_append_bytes(out, style->item.u.s.p, style->item.u.s.len);
        write_line(style, out, depth + 1);
        if (dict) {
            write_key(m, v.u.dict->keys[at], style, out);
            ls_str_append_bytes(out, style->colon.u.s.p, style->colon.u.s.len);
        }
        ls_jinja_write_json(m, dict ? v.u.dict->values[at] : v.u.list.items[at], style, out,
                            depth + 1);
    }
    if (n)
        write_line(style, out, depth);
    ls_str_append_char(out, dict ? '}' : ']');
}

void ls_jinja_write_json(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_json_style *style,
                         ls_str *out, int depth)
{
    if (!may_write(m, v, out, depth))
        return;
    switch (v.kind) {
    case LS_JINJA_NONE:
        ls_str_append(out, "null");
        break;
    case LS_JINJA_BOOL:
        ls_str_append(out, v.u.b ? "true" : "false");
        break;
    case LS_JINJA_FLOAT:
        if (isfinite(v.u.f))
            write_float(v.u.f, out);
        else
            ls_str_append(out, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity");
        break;
    case LS_JINJA_INT:
    case LS_JINJA_LONG:
        ls_jinja_write(m, v, out);
        break;
    case LS_JINJA_STR:
        write_string(v, style->ascii, out);
        break;
    case LS_JINJA_LIST:
    case LS_JINJA_DICT:
        write_items(m, v, style, out, depth);
        break;
    default:
        ls_jinja_fail(m, "%s cannot be written as JSON", ls_jinja_kind_name(v.kind));
    }
}
