/* jinja_method.c -- what texts and dicts can be asked to do: a table of methods. */
#include "jinja/jinja_impl.h"

static const ls_jinja_value absent = {.kind = LS_JINJA_ABSENT};

/* Whether v is a text; says so when it is not. */
static bool need_text(ls_jinja_machine *m, ls_jinja_value v)
{
    if (v.kind != LS_JINJA_STR)
        ls_jinja_fail(m, "a text is expected as the argument of a method, not %s",
                      ls_jinja_kind_name(v.kind));
    return m->st == LS_OK;
}

static bool begins(ls_jinja_value v, ls_jinja_value with)
{
    return with.u.s.len <= v.u.s.len && memcmp(v.u.s.p, with.u.s.p, with.u.s.len) == 0;
}

static bool ends(ls_jinja_value v, ls_jinja_value with)
{
    return with.u.s.len <= v.u.s.len &&
           memcmp(v.u.s.p + v.u.s.len - with.u.s.len, with.u.s.p, with.u.s.len) == 0;
}

/* startswith and endswith take a text or a tuple of them. */
static ls_jinja_value any_of(ls_jinja_machine *m, ls_jinja_value v, ls_jinja_value with,
                             bool (*holds)(ls_jinja_value, ls_jinja_value))
{
    if (!ls_jinja_charge(m, with.kind == LS_JINJA_STR ? (int64_t)with.u.s.len : 1))
        return absent;
    if (with.kind == LS_JINJA_LIST && with.tuple) {
        for (int64_t i = 0; i < with.u.list.count && m->st == LS_OK; i++)
            if (need_text(m, with.u.list.items[i]) &&
                ls_jinja_charge(m, (int64_t)with.u.list.items[i].u.s.len) &&
                holds(v, with.u.list.items[i]))
                return ls_jinja_bool(true);
        return ls_jinja_bool(false);
    }
    return need_text(m, with) ? ls_jinja_bool(holds(v, with)) : absent;
}

LS_JINJA_RUN(m_startswith, any_of(m, v, a[0], begins))
LS_JINJA_RUN(m_endswith, any_of(m, v, a[0], ends))

static ls_jinja_value strip(ls_jinja_machine *m, ls_jinja_value v, ls_jinja_value chars, bool left,
                            bool right)
{
    if (chars.kind != LS_JINJA_ABSENT && chars.kind != LS_JINJA_NONE && !need_text(m, chars))
        return absent;
    return ls_jinja_strip_charged(m, v, chars, left, right);
}

LS_JINJA_RUN(m_strip, strip(m, v, a[0], true, true))
LS_JINJA_RUN(m_lstrip, strip(m, v, a[0], true, false))
LS_JINJA_RUN(m_rstrip, strip(m, v, a[0], false, true))
LS_JINJA_RUN(m_upper, ls_jinja_case(m, v, 'u'))
LS_JINJA_RUN(m_lower, ls_jinja_case(m, v, 'l'))
LS_JINJA_RUN(m_title, ls_jinja_case(m, v, 't'))
LS_JINJA_RUN(m_capitalize, ls_jinja_case(m, v, 'c'))

static ls_jinja_value m_replace(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    if (!need_text(m, a[0]) || !need_text(m, a[1]))
        return absent;
    return ls_jinja_replace(m, v, a[0], a[1], a[2].kind == LS_JINJA_INT ? a[2].u.i : -1);
}

static ls_jinja_value m_removeprefix(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    if (!need_text(m, a[0]) || !ls_jinja_charge(m, (int64_t)a[0].u.s.len) || !begins(v, a[0]))
        return v;
    return ls_jinja_view(v.u.s.p + a[0].u.s.len, v.u.s.len - a[0].u.s.len);
}

static ls_jinja_value m_removesuffix(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    if (!need_text(m, a[0]) || !ls_jinja_charge(m, (int64_t)a[0].u.s.len) || !ends(v, a[0]))
        return v;
    return ls_jinja_view(v.u.s.p, v.u.s.len - a[0].u.s.len);
}

/* --- looking for and splitting ----------------------------------------------------------------
 */

/* The last place of what in v, or NULL. A place whose ends agree is charged before it is compared:
 * a long row of one letter agrees nearly everywhere. */
static const char *find_last(ls_jinja_machine *m, ls_jinja_value v, ls_jinja_value what)
{
    size_t n = what.u.s.len;

    if (n == 0 || n > v.u.s.len)
        return n ? NULL : v.u.s.p + v.u.s.len;
    for (const char *p = v.u.s.p + v.u.s.len - n;; p--) {
        if (p[0] == what.u.s.p[0] && p[n - 1] == what.u.s.p[n - 1]) {
            if (!ls_jinja_charge(m, (int64_t)n))
                return NULL;
            if (memcmp(p, what.u.s.p, n) == 0)
                return p;
        }
        if (p == v.u.s.p)
            return NULL;
    }
}

static ls_jinja_value find(ls_jinja_machine *m, ls_jinja_value v, ls_jinja_value what, bool last)
{
    if (!need_text(m, what) || !ls_jinja_charge(m, (int64_t)v.u.s.len))
        return absent;
    const char *p = last ? find_last(m, v, what)
                         : (const char *)memmem(v.u.s.p, v.u.s.len, what.u.s.p, what.u.s.len);
    return ls_jinja_int(p ? ls_jinja_chars(v.u.s.p, (size_t)(p - v.u.s.p)) : -1);
}

LS_JINJA_RUN(m_find, find(m, v, a[0], false))
LS_JINJA_RUN(m_rfind, find(m, v, a[0], true))

static ls_jinja_value m_count(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    int64_t n = 0;
    const char *p = v.u.s.p, *end = p + v.u.s.len, *found;

    if (!need_text(m, a[0]) || !ls_jinja_charge(m, (int64_t)v.u.s.len))
        return absent;
    if (a[0].u.s.len == 0)
        return ls_jinja_int(ls_jinja_chars(p, v.u.s.len) + 1);
    for (; (found = memmem(p, (size_t)(end - p), a[0].u.s.p, a[0].u.s.len)); n++)
        p = found + a[0].u.s.len;
    return ls_jinja_int(n);
}

/* Parts of a text, in a list that grows. */
typedef struct parts {
    ls_jinja_value *items;
    int64_t count, cap;
} parts;

static void add_part(ls_jinja_machine *m, parts *list, const char *from, const char *to)
{
    if (list->count == list->cap) {
        int64_t cap = list->cap ? 2 * list->cap : 8;
        ls_jinja_value *items = ls_jinja_alloc(m, (size_t)cap * sizeof *items);
        if (!items)
            return;
        for (int64_t i = 0; i < list->count; i++)
            items[i] = list->items[i];
        list->items = items;
        list->cap = cap;
    }
    list->items[list->count++] = ls_jinja_view(from, (size_t)(to - from));
}

/* At white space: parts are what stands between, empty ones do not count. */
static void split_at_space(ls_jinja_machine *m, ls_jinja_value v, int64_t most, parts *list)
{
    const char *p = v.u.s.p, *end = p + v.u.s.len;
    int n;

    for (;;) {
        while (p < end && ls_jinja_is_space(ls_jinja_char(p, end, &n)))
            p += n;
        if (p == end || m->st != LS_OK)
            return;
        const char *from = p;
        if (most >= 0 && list->count == most) { /* the rest in one piece */
            add_part(m, list, p, end);
            return;
        }
        while (p < end && !ls_jinja_is_space(ls_jinja_char(p, end, &n)))
            p += n;
        add_part(m, list, from, p);
    }
}

static ls_jinja_value m_split(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    parts list = {0};
    int64_t most = a[1].kind == LS_JINJA_INT ? a[1].u.i : -1;
    const char *p = v.u.s.p, *end = p + v.u.s.len, *found;

    if (!ls_jinja_charge(m, (int64_t)v.u.s.len))
        return absent;
    if (a[0].kind == LS_JINJA_ABSENT || a[0].kind == LS_JINJA_NONE) {
        split_at_space(m, v, most, &list);
        return ls_jinja_list(list.items, list.count);
    }
    if (!need_text(m, a[0]))
        return absent;
    if (a[0].u.s.len == 0)
        return ls_jinja_fail(m, "a text cannot be split at nothing");
    while (m->st == LS_OK && (most < 0 || list.count < most) &&
           (found = memmem(p, (size_t)(end - p), a[0].u.s.p, a[0].u.s.len))) {
        add_part(m, &list, p, found);
        p = found + a[0].u.s.len;
    }
    add_part(m, &list, p, end);
    return ls_jinja_list(list.items, list.count);
}

/* From the right, at a given text; without a limit it is split(). */
static ls_jinja_value m_rsplit(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    parts list = {0};
    int64_t most = a[1].kind == LS_JINJA_INT ? a[1].u.i : -1;

    if (most < 0)
        return m_split(m, v, a);
    if (!need_text(m, a[0]) || !ls_jinja_charge(m, (int64_t)v.u.s.len))
        return absent;
    if (a[0].u.s.len == 0)
        return ls_jinja_fail(m, "a text cannot be split at nothing");
    const char *found;
    while (m->st == LS_OK && list.count < most && (found = find_last(m, v, a[0]))) {
        add_part(m, &list, found + a[0].u.s.len, v.u.s.p + v.u.s.len);
        v.u.s.len = (size_t)(found - v.u.s.p);
    }
    add_part(m, &list, v.u.s.p, v.u.s.p + v.u.s.len);
    for (int64_t i = 0; m->st == LS_OK && i < list.count / 2; i++) {
        ls_jinja_value other = list.items[i];
        list.items[i] = list.items[list.count - 1 - i];
        list.items[list.count - 1 - i] = other;
    }
    return ls_jinja_list(list.items, list.count);
}

static bool is_line_end(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

static ls_jinja_value m_splitlines(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    parts list = {0};
    const char *p = v.u.s.p, *end = p + v.u.s.len;
    bool keep = ls_jinja_truth(a[0]);
    int n = 0;

    if (!ls_jinja_charge(m, (int64_t)v.u.s.len))
        return absent;
    while (p < end && m->st == LS_OK) {
        const char *from = p, *stop;
        while (p < end && !is_line_end(ls_jinja_char(p, end, &n)))
            p += n;
        stop = p;
        if (p < end)
            p += *p == '\r' && p + 1 < end && p[1] == '\n' ? 2 : n;
        add_part(m, &list, from, keep ? p : stop);
    }
    return ls_jinja_list(list.items, list.count);
}

static ls_jinja_value m_join(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    ls_jinja_value all = ls_jinja_iterate(m, a[0]);
    ls_str out;

    ls_str_init(&out);
    for (int64_t i = 0; i < all.u.list.count && m->st == LS_OK; i++) {
        if (i)
            ls_jinja_write(m, v, &out);
        if (need_text(m, all.u.list.items[i]))
            ls_jinja_write(m, all.u.list.items[i], &out);
    }
    return ls_jinja_take(m, &out);
}

/* --- dicts ------------------------------------------------------------------------------------
 */

static ls_jinja_value m_get(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    ls_jinja_value found = ls_jinja_dict_get(m, v.u.dict, a[0]);

    if (found.kind != LS_JINJA_ABSENT)
        return found;
    return a[1].kind == LS_JINJA_ABSENT ? ls_jinja_none() : a[1];
}

LS_JINJA_RUN(m_keys, ls_jinja_list(v.u.dict->keys, v.u.dict->count))
LS_JINJA_RUN(m_values, ls_jinja_list(v.u.dict->values, v.u.dict->count))

static ls_jinja_value m_items(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    int64_t n = v.u.dict->count;
    ls_jinja_value *pairs =
        ls_jinja_charge(m, n * 16) ? ls_jinja_alloc(m, (size_t)n * 3 * sizeof *pairs) : NULL;

    (void)a;
    if (!pairs)
        return absent;
    ls_jinja_value *parts_of = pairs + n; /* behind the list: its pairs */
    for (int64_t i = 0; i < n; i++) {
        parts_of[2 * i] = v.u.dict->keys[i];
        parts_of[2 * i + 1] = v.u.dict->values[i];
        pairs[i] = ls_jinja_list(parts_of + 2 * i, 2);
        pairs[i].tuple = true;
    }
    return ls_jinja_list(pairs, n);
}

static const ls_jinja_row methods[] = {
    {"startswith", m_startswith, 1, 1, {"prefix"}, LS_JINJA_STR},
    {"endswith", m_endswith, 1, 1, {"suffix"}, LS_JINJA_STR},
    {"strip", m_strip, 0, 1, {NULL}, LS_JINJA_STR},
    {"lstrip", m_lstrip, 0, 1, {NULL}, LS_JINJA_STR},
    {"rstrip", m_rstrip, 0, 1, {NULL}, LS_JINJA_STR},
    {"upper", m_upper, 0, 0, {NULL}, LS_JINJA_STR},
    {"lower", m_lower, 0, 0, {NULL}, LS_JINJA_STR},
    {"title", m_title, 0, 0, {NULL}, LS_JINJA_STR},
    {"capitalize", m_capitalize, 0, 0, {NULL}, LS_JINJA_STR},
    {"replace", m_replace, 2, 3, {"old", "new", "count"}, LS_JINJA_STR},
    {"removeprefix", m_removeprefix, 1, 1, {"prefix"}, LS_JINJA_STR},
    {"removesuffix", m_removesuffix, 1, 1, {"suffix"}, LS_JINJA_STR},
    {"find", m_find, 1, 1, {"sub"}, LS_JINJA_STR},
    {"rfind", m_rfind, 1, 1, {"sub"}, LS_JINJA_STR},
    {"count", m_count, 1, 1, {"sub"}, LS_JINJA_STR},
    {"split", m_split, 0, 2, {"sep", "maxsplit"}, LS_JINJA_STR},
    {"rsplit", m_rsplit, 0, 2, {"sep", "maxsplit"}, LS_JINJA_STR},
    {"splitlines", m_splitlines, 0, 1, {"keepends"}, LS_JINJA_STR},
    {"join", m_join, 1, 1, {"iterable"}, LS_JINJA_STR},
    {"get", m_get, 1, 2, {"key", "default"}, LS_JINJA_DICT},
    {"keys", m_keys, 0, 0, {NULL}, LS_JINJA_DICT},
    {"values", m_values, 0, 0, {NULL}, LS_JINJA_DICT},
    {"items", m_items, 0, 0, {NULL}, LS_JINJA_DICT},
};

const ls_jinja_row *ls_jinja_find_method(const char *name, ls_jinja_kind of)
{
    for (size_t i = 0; i < LS_COUNT(methods); i++)
        if (strcmp(methods[i].name, name) == 0 && (of == LS_JINJA_ABSENT || methods[i].of == of))
            return &methods[i];
    return NULL;
}
