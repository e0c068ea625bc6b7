/* jinja_text.c -- characters: counting, white space, case, replacing.
 *
 * White space is what Python calls so, in all of Unicode. Case changes character by character with
 * utf8proc; the only mapping to several characters is that of the sharp s. */
#include "jinja/jinja_impl.h"

#include <utf8proc.h>

uint32_t ls_jinja_char(const char *p, const char *end, int *len_out)
{
    const unsigned char *u = (const unsigned char *)p;
    int n = u[0] < 0x80 ? 1 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
    uint32_t c = n == 1 ? u[0] : u[0] & (0xffu >> (n + 1));

    if (n > end - p) { /* never in valid text */
        *len_out = 1;
        return 0xfffd;
    }
    for (int i = 1; i < n; i++)
        c = c << 6 | (u[i] & 0x3fu);
    *len_out = n;
    return c;
}

bool ls_jinja_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

int64_t ls_jinja_chars(const char *p, size_t len)
{
    int64_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)p[i] & 0xc0) != 0x80;
    return n;
}

size_t ls_jinja_char_at(const char *p, size_t len, int64_t n)
{
    size_t i = 0;

    for (; i < len; i++)
        if (((unsigned char)p[i] & 0xc0) != 0x80 && n-- == 0)
            break;
    return i;
}

void ls_jinja_put_char(ls_str *out, uint32_t c)
{
    utf8proc_uint8_t bytes[4];
    utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)c, bytes);

    ls_str_append_bytes(out, bytes, (size_t)n);
}

static bool is_one_of(uint32_t c, ls_jinja_value chars)
{
    int n;

    if (chars.kind != LS_JINJA_STR)
        return ls_jinja_is_space(c);
    for (const char *p = chars.u.s.p, *end = p + chars.u.s.len; p < end; p += n)
        if (ls_jinja_char(p, end, &n) == c)
            return true;
    return false;
}

ls_jinja_value ls_jinja_strip(ls_jinja_value s, ls_jinja_value chars, bool left, bool right)
{
    const char *p = s.u.s.p, *end = p + s.u.s.len;
    int n;

    while (left && p < end && is_one_of(ls_jinja_char(p, end, &n), chars))
        p += n;
    while (right && p < end) {
        const char *last = end - 1;
        while (last > p && ((unsigned char)*last & 0xc0) == 0x80)
            last--;
        if (!is_one_of(ls_jinja_char(last, end, &n), chars))
            break;
        end = last;
    }
    return ls_jinja_view(p, (size_t)(end - p));
}

ls_jinja_value ls_jinja_strip_charged(ls_jinja_machine *m, ls_jinja_value s, ls_jinja_value chars,
                                      bool left, bool right)
{
    int64_t each = chars.kind == LS_JINJA_STR ? (int64_t)chars.u.s.len : 1;

    if (each > 4096)
        return ls_jinja_fail(m, "too many characters to strip");
    return ls_jinja_charge(m, (int64_t)s.u.s.len * each) ? ls_jinja_strip(s, chars, left, right)
                                                         : ls_jinja_undefined("");
}

static void put_upper(ls_str *out, uint32_t c)
{
    if (c == 0xdf)
        ls_str_append(out, "SS");
    else
        ls_jinja_put_char(out, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
}

static bool is_cased(uint32_t c)
{
    return utf8proc_toupper((utf8proc_int32_t)c) != (utf8proc_int32_t)c ||
           utf8proc_tolower((utf8proc_int32_t)c) != (utf8proc_int32_t)c || c == 0xdf;
}

ls_jinja_value ls_jinja_case(ls_jinja_machine *m, ls_jinja_value s, char how)
{
    const char *p = s.u.s.p, *end = p + s.u.s.len;
    bool first = true; /* of the word, or of the text */
    ls_str out;
    int n;

    if (!ls_jinja_charge(m, (int64_t)s.u.s.len * 8))
        return ls_jinja_undefined("");
    ls_str_init(&out);
    for (; p < end; p += n) {
        uint32_t c = ls_jinja_char(p, end, &n);
        if (how == 'u' || (how != 'l' && first && c == 0xdf))
            how == 'u' ? put_upper(&out, c) : ls_str_append(&out, "Ss");
        else if (how != 'l' && first)
            ls_jinja_put_char(&out, (uint32_t)utf8proc_totitle((utf8proc_int32_t)c));
        else
            ls_jinja_put_char(&out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
        first = how == 't' && !is_cased(c);
    }
    return ls_jinja_take(m, &out);
}

ls_jinja_value ls_jinja_replace(ls_jinja_machine *m, ls_jinja_value s, ls_jinja_value from,
                                ls_jinja_value to, int64_t most)
{
    const char *p = s.u.s.p, *end = p + s.u.s.len;
    int64_t done = 0;
    ls_str out;
    int n = 0;

    if (!ls_jinja_charge(m, (int64_t)s.u.s.len))
        return ls_jinja_undefined("");
    ls_str_init(&out);
    while (m->st == LS_OK && (most < 0 || done < most)) {
        /* An empty text to look for stands between all characters. */
        const char *found = from.u.s.len ? memmem(p, (size_t)(end - p), from.u.s.p, from.u.s.len)
                                         : (done && p < end ? p + (ls_jinja_char(p, end, &n), n)
                                            : done          ? NULL
                                                            : p);
        if (!found)
            break;
        ls_str_append_bytes(&out, p, (size_t)(found - p));
        ls_str_append_bytes(&out, to.u.s.p, to.u.s.len);
        p = found + from.u.s.len;
        done++;
        if (out.len > LS_JINJA_OUTPUT)
            ls_jinja_fail(m, "a text grows beyond %d MiB", LS_JINJA_OUTPUT >> 20);
    }
    ls_str_append_bytes(&out, p, (size_t)(end - p));
    return ls_jinja_take(m, &out);
}
