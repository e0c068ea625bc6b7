/* jinja_filter.c -- filters, tests and functions: tables of names, and what they do.
 *
 * A new one is a row. Where Jinja gives a generator we give a list, which can do more and prints
 * differently; nothing that prints one is of use. */
#include "jinja/jinja_impl.h"

#include <errno.h>
#include <math.h>
#include <time.h>

static const ls_jinja_value absent = {.kind = LS_JINJA_ABSENT};

static bool is_text(ls_jinja_value v)
{
    return v.kind == LS_JINJA_STR;
}

/* A text that ends in '\0', for looking up names. */
static const char *name_of(ls_jinja_machine *m, ls_jinja_value v)
{
    v = ls_jinja_to_str(m, v);
    v = m->st == LS_OK ? ls_jinja_copy(m, v.u.s.p, v.u.s.len) : v;
    return m->st == LS_OK ? v.u.s.p : "";
}

static int64_t whole_or(ls_jinja_value v, int64_t otherwise)
{
    return ls_jinja_is_whole(v) ? ls_jinja_whole(v) : otherwise;
}

/* A new list with room for as many items as all has. */
static ls_jinja_value *same_room(ls_jinja_machine *m, ls_jinja_value all)
{
    if (!ls_jinja_charge(m, all.u.list.count * 8))
        return NULL;
    return ls_jinja_alloc(m, (size_t)all.u.list.count * sizeof(ls_jinja_value));
}

/* "a.b.0": attribute after attribute. */
static ls_jinja_value reach(ls_jinja_machine *m, ls_jinja_value v, ls_jinja_value path)
{
    if (path.kind == LS_JINJA_INT)
        return ls_jinja_item(m, v, path);
    const char *p = name_of(m, path);
    while (m->st == LS_OK && *p) {
        size_t n = strcspn(p, ".");
        bool digits = n && n < 10 && strspn(p, "0123456789") == n;
        ls_jinja_value key = digits ? ls_jinja_int(strtoll(p, NULL, 10)) : ls_jinja_copy(m, p, n);
        v = ls_jinja_item(m, v, key);
        p += n + (p[n] == '.');
    }
    return v;
}

/* --- text -------------------------------------------------------------------------------------
 */

static ls_jinja_value f_trim(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    v = ls_jinja_to_str(m, v);
    return m->st == LS_OK ? ls_jinja_strip_charged(m, v, a[0], true, true) : absent;
}

LS_JINJA_RUN(f_upper, ls_jinja_case(m, ls_jinja_to_str(m, v), 'u'))
LS_JINJA_RUN(f_lower, ls_jinja_case(m, ls_jinja_to_str(m, v), 'l'))
LS_JINJA_RUN(f_capitalize, ls_jinja_case(m, ls_jinja_to_str(m, v), 'c'))

/* Unlike the method, words begin only after white space and - ( { [ <. */
static ls_jinja_value f_title(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    ls_str out;
    int n;

    (void)a;
    v = ls_jinja_to_str(m, v);
    const char *p = v.u.s.p, *end = p + v.u.s.len;
    ls_str_init(&out);
    while (p < end && m->st == LS_OK) {
        const char *from = p;
        uint32_t c = ls_jinja_char(p, end, &n);
        bool gap = ls_jinja_is_space(c) || (c < 128 && strchr("-({[<", (int)c) && c);
        for (; p < end; p += n) {
            c = ls_jinja_char(p, end, &n);
            if (gap != (ls_jinja_is_space(c) || (c < 128 && strchr("-({[<", (int)c) && c)))
                break;
        }
        ls_jinja_value word =
            ls_jinja_case(m, ls_jinja_view(from, (size_t)(p - from)), gap ? 'l' : 'c');
        if (m->st == LS_OK)
            ls_str_append_bytes(&out, word.u.s.p, word.u.s.len);
    }
    return ls_jinja_take(m, &out);
}

static ls_jinja_value f_replace(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    ls_jinja_value text = ls_jinja_to_str(m, v), from = ls_jinja_to_str(m, a[0]),
                   to = ls_jinja_to_str(m, a[1]);

    return m->st == LS_OK ? ls_jinja_replace(m, text, from, to, whole_or(a[2], -1)) : absent;
}

LS_JINJA_RUN(f_string, ls_jinja_to_str(m, v))

static ls_jinja_value f_indent(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    ls_jinja_value text = ls_jinja_to_str(m, v);
    ls_jinja_value pad = is_text(a[0]) ? a[0] : absent;
    int64_t width = ls_min_i64(1000, ls_max_i64(0, whole_or(a[0], 4)));
    bool first = ls_jinja_truth(a[1]), blank = ls_jinja_truth(a[2]);
    ls_str out;

    ls_str_init(&out);
    const char *p = text.u.s.p, *end = p + text.u.s.len;
    for (bool begin = true; m->st == LS_OK && (p < end || begin); begin = false) {
        const char *stop = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
        stop = stop ? stop : end;
        if (begin ? first : blank || stop > p) {
            if (is_text(pad))
                ls_str_append_bytes(&out, pad.u.s.p, pad.u.s.len);
            for (int64_t i = 0; !is_text(pad) && i < width; i++)
                ls_str_append_char(&out, ' ');
        }
        ls_str_append_bytes(&out, p, (size_t)(stop - p));
        if (stop < end)
            ls_str_append_char(&out, '\n');
        if (out.len > LS_JINJA_OUTPUT || !ls_jinja_charge(m, stop - p))
            ls_jinja_fail(m, "a text grows beyond %d MiB", LS_JINJA_OUTPUT >> 20);
        p = stop < end ? stop + 1 : end;
    }
    return ls_jinja_take(m, &out);
}

static ls_jinja_value f_join(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    ls_jinja_value all = ls_jinja_iterate(m, v), between = a[0].kind == LS_JINJA_ABSENT
                                                               ? ls_jinja_view("", 0)
                                                               : ls_jinja_to_str(m, a[0]);
    ls_str out;

    ls_str_init(&out);
    for (int64_t i = 0; i < all.u.list.count && m->st == LS_OK; i++) {
        ls_jinja_value item = all.u.list.items[i];
        if (i)
            ls_jinja_write(m, between, &out);
        if (a[1].kind != LS_JINJA_ABSENT)
            item = reach(m, item, a[1]);
        ls_jinja_write(m, item, &out);
    }
    return ls_jinja_take(m, &out);
}

static ls_jinja_value f_tojson(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    int64_t indent = whole_or(a[1], -1);
    ls_jinja_json_style style = {.ascii = ls_jinja_truth(a[0]),
                                 .sort = ls_jinja_truth(a[3]),
                                 .indent = (int)ls_min_i64(indent, 100),
                                 .item =
                                     ls_jinja_view(indent >= 0 ? "," : ", ", indent >= 0 ? 1 : 2),
                                 .colon = ls_jinja_view(": ", 2)};
    ls_str out;

    if (is_text(a[1]))
        return ls_jinja_fail(m, "tojson can indent by a number of blanks only");
    if (a[2].kind == LS_JINJA_LIST && a[2].u.list.count == 2 && is_text(a[2].u.list.items[0]) &&
        is_text(a[2].u.list.items[1])) {
        style.item = a[2].u.list.items[0];
        style.colon = a[2].u.list.items[1];
    } else if (a[2].kind != LS_JINJA_ABSENT && a[2].kind != LS_JINJA_NONE) {
        return ls_jinja_fail(m, "the separators of tojson are not two texts");
    }
    ls_str_init(&out);
    ls_jinja_write_json(m, v, &style, &out, 0);
    return ls_jinja_take(m, &out);
}

/* --- numbers ----------------------------------------------------------------------------------
 */

/* The number a text holds, with white space around it; false: none. */
static bool parse_number(ls_jinja_machine *m, ls_jinja_value text, bool *whole, ls_jinja_value *out)
{
    ls_jinja_value bare = ls_jinja_strip(text, absent, true, true);
    const char *p = name_of(m, bare);
    char *end;

    if (m->st != LS_OK || !*p || strspn(p, "+-0123456789.eE") != strlen(p))
        return false;
    errno = 0;
    long long i = strtoll(p, &end, 10);
    *whole = *end == '\0' && errno == 0;
    if (*whole) {
        *out = ls_jinja_int(i);
        return true;
    }
    *out = ls_jinja_float(strtod(p, &end));
    return *end == '\0';
}

static ls_jinja_value f_int(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    ls_jinja_value otherwise = a[0].kind == LS_JINJA_ABSENT ? ls_jinja_int(0) : a[0];
    bool whole = false;

    if (v.kind == LS_JINJA_LONG)
        return v;
    if (is_text(v) && !parse_number(m, v, &whole, &v))
        return otherwise;
    if (v.kind == LS_JINJA_FLOAT)
        return fabs(v.u.f) < 9.2e18 ? ls_jinja_int((int64_t)v.u.f) : otherwise;
    return ls_jinja_is_number(v) ? ls_jinja_int(whole_or(v, 0)) : otherwise;
}

static ls_jinja_value f_float(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    bool whole = false;

    if (v.kind == LS_JINJA_LONG)
        return ls_jinja_float(strtod(v.u.s.p, NULL));
    if ((is_text(v) && !parse_number(m, v, &whole, &v)) || !ls_jinja_is_number(v))
        return a[0].kind == LS_JINJA_ABSENT ? ls_jinja_float(0) : a[0];
    return v.kind == LS_JINJA_FLOAT ? v : ls_jinja_float((double)whole_or(v, 0));
}

static ls_jinja_value f_abs(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    (void)a;
    if (v.kind == LS_JINJA_FLOAT)
        return ls_jinja_float(fabs(v.u.f));
    int64_t i = whole_or(v, 0);
    if (!ls_jinja_is_number(v) || i == INT64_MIN)
        return ls_jinja_fail(m, "%s has no absolute value", ls_jinja_kind_name(v.kind));
    return ls_jinja_int(i < 0 ? -i : i);
}

/* --- lists ------------------------------------------------------------------------------------
 */

LS_JINJA_RUN(f_length, ls_jinja_int(ls_jinja_length(m, v)))

static ls_jinja_value f_default(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    (void)m;
    if (v.kind == LS_JINJA_UNDEFINED || (ls_jinja_truth(a[1]) && !ls_jinja_truth(v)))
        return a[0].kind == LS_JINJA_ABSENT ? ls_jinja_view("", 0) : a[0];
    return v;
}

static ls_jinja_value f_first(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    ls_jinja_value all = ls_jinja_iterate(m, v);

    (void)a;
    return all.u.list.count ? all.u.list.items[0] : ls_jinja_undefined("the first of nothing");
}

static ls_jinja_value f_last(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    ls_jinja_value all = ls_jinja_iterate(m, v);
    int64_t n = all.u.list.count;

    (void)a;
    return n ? all.u.list.items[n - 1] : ls_jinja_undefined("the last of nothing");
}

static ls_jinja_value f_list(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    (void)a;
    v = ls_jinja_iterate(m, v);
    v.tuple = false;
    return v;
}

static ls_jinja_value f_reverse(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    const ls_jinja_value bounds[3] = {absent, absent, ls_jinja_int(-1)};

    (void)a;
    v = is_text(v) ? v : ls_jinja_iterate(m, v);
    v = m->st == LS_OK ? ls_jinja_slice(m, v, bounds) : v;
    v.tuple = false;
    return v;
}

static ls_jinja_value f_items(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    const ls_jinja_row *row = ls_jinja_find_method("items", LS_JINJA_DICT);

    if (v.kind == LS_JINJA_UNDEFINED)
        return ls_jinja_list(NULL, 0);
    if (v.kind != LS_JINJA_DICT)
        return ls_jinja_fail(m, "%s has no items", ls_jinja_kind_name(v.kind));
    return row->run(m, v, a);
}

/* Run the filter or test that a text names over one value; the arguments behind it go along. */
static ls_jinja_value by_name(ls_jinja_machine *m, bool filter, ls_jinja_value name,
                              ls_jinja_value v, const ls_jinja_value *rest, int n)
{
    ls_jinja_value bound[LS_JINJA_ARGS];
    const char *text = name_of(m, name);
    const ls_jinja_row *row = filter ? ls_jinja_find_filter(text) : ls_jinja_find_test(text);

    while (n > 0 && rest[n - 1].kind == LS_JINJA_ABSENT)
        n--;
    if (m->st == LS_OK && !row)
        return ls_jinja_fail(m, "%s \"%.80s\" is not supported", filter ? "filter" : "test", text);
    if (m->st != LS_OK || !ls_jinja_bind(m, row, rest, NULL, n, bound))
        return absent;
    return row->run(m, v, bound);
}

/* map('filter', arguments) or map(attribute='a.b', default=x). */
static ls_jinja_value f_map(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    ls_jinja_value all = ls_jinja_iterate(m, v), *items = same_room(m, all);

    if (a[0].kind == LS_JINJA_ABSENT && a[4].kind == LS_JINJA_ABSENT)
        return ls_jinja_fail(m, "\"map\" needs a filter or an attribute");
    for (int64_t i = 0; items && i < all.u.list.count && m->st == LS_OK; i++) {
        if (a[4].kind != LS_JINJA_ABSENT) {
            items[i] = reach(m, all.u.list.items[i], a[4]);
            if (items[i].kind == LS_JINJA_UNDEFINED && a[5].kind != LS_JINJA_ABSENT)
                items[i] = a[5];
        } else {
            items[i] = by_name(m, true, a[0], all.u.list.items[i], a + 1, 3);
        }
    }
    return ls_jinja_list(items, items ? all.u.list.count : 0);
}

/* The items whose attribute (or that themselves) pass a test, or do not. */
static ls_jinja_value choose(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a,
                             bool attribute, bool wanted)
{
    ls_jinja_value all = ls_jinja_iterate(m, v), *items = same_room(m, all);
    const ls_jinja_value *test = a + attribute;
    int64_t n = 0;

    for (int64_t i = 0; items && i < all.u.list.count && m->st == LS_OK; i++) {
        ls_jinja_value item = all.u.list.items[i];
        if (attribute)
            item = reach(m, item, a[0]);
        if (test[0].kind != LS_JINJA_ABSENT && m->st == LS_OK)
            item = by_name(m, false, test[0], item, test + 1, 2);
        if (ls_jinja_truth(item) == wanted)
            items[n++] = all.u.list.items[i];
    }
    return ls_jinja_list(items, n);
}

LS_JINJA_RUN(f_select, choose(m, v, a, false, true))
LS_JINJA_RUN(f_reject, choose(m, v, a, false, false))
LS_JINJA_RUN(f_selectattr, choose(m, v, a, true, true))
LS_JINJA_RUN(f_rejectattr, choose(m, v, a, true, false))

typedef struct sorting {
    bool cased, reverse;
    int place; /* of a pair, -1: the value itself */
    ls_jinja_value attribute;
} sorting;

static int by_sorting(ls_jinja_machine *m, const ls_jinja_value *a, const ls_jinja_value *b,
                      const void *context)
{
    const sorting *s = context;
    ls_jinja_value x = s->place < 0 ? *a : a->u.list.items[s->place];
    ls_jinja_value y = s->place < 0 ? *b : b->u.list.items[s->place];

    if (s->attribute.kind != LS_JINJA_ABSENT) {
        x = reach(m, x, s->attribute);
        y = reach(m, y, s->attribute);
    }
    if (!s->cased && is_text(x) && is_text(y)) {
        x = ls_jinja_case(m, x, 'l');
        y = ls_jinja_case(m, y, 'l');
    }
    if (m->st != LS_OK)
        return 0;
    int order = ls_jinja_order(m, x, y, 0);
    return s->reverse ? -order : order;
}

static ls_jinja_value sorted(ls_jinja_machine *m, ls_jinja_value all, const sorting *how)
{
    ls_jinja_value *items = same_room(m, all);

    if (!items)
        return absent;
    if (all.u.list.count)
        memcpy(items, all.u.list.items, (size_t)all.u.list.count * sizeof *items);
    ls_jinja_sort(m, items, all.u.list.count, by_sorting, how);
    return ls_jinja_list(items, all.u.list.count);
}

static ls_jinja_value f_sort(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    return sorted(m, ls_jinja_iterate(m, v),
                  &(sorting){.reverse = ls_jinja_truth(a[0]),
                             .cased = ls_jinja_truth(a[1]),
                             .place = -1,
                             .attribute = a[2].kind == LS_JINJA_NONE ? absent : a[2]});
}

static ls_jinja_value f_dictsort(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    bool by_value = is_text(a[1]) && a[1].u.s.len == 5 && memcmp(a[1].u.s.p, "value", 5) == 0;
    ls_jinja_value pairs = f_items(m, v, a);

    if (m->st != LS_OK)
        return absent;
    return sorted(m, pairs,
                  &(sorting){.cased = ls_jinja_truth(a[0]),
                             .place = by_value,
                             .reverse = ls_jinja_truth(a[2]),
                             .attribute = absent});
}

static ls_jinja_value f_unique(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a)
{
    ls_jinja_value all = ls_jinja_iterate(m, v), *items = same_room(m, all),
                   *keys = same_room(m, all);
    bool cased = ls_jinja_truth(a[0]);
    int64_t n = 0;

    for (int64_t i = 0; items && keys && i < all.u.list.count && m->st == LS_OK; i++) {
        ls_jinja_value key = all.u.list.items[i];
        if (a[1].kind != LS_JINJA_ABSENT)
            key = reach(m, key, a[1]);
        if (!cased && is_text(key))
            key = ls_jinja_case(m, key, 'l');
        if (m->st == LS_OK && !ls_jinja_contains(m, ls_jinja_list(keys, n), key)) {
            keys[n] = key;
            items[n++] = all.u.list.items[i];
        }
    }
    return ls_jinja_list(items, n);
}

static ls_jinja_value extreme(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a,
                              int sign)
{
    ls_jinja_value all = ls_jinja_iterate(m, v),
                   best = ls_jinja_undefined("the largest of nothing");
    const sorting how = {.cased = ls_jinja_truth(a[0]), .place = -1, .attribute = a[1]};

    for (int64_t i = 0; i < all.u.list.count && m->st == LS_OK; i++)
        if (i == 0 || sign * by_sorting(m, &all.u.list.items[i], &best, &how) > 0)
            best = all.u.list.items[i];
    return best;
}

LS_JINJA_RUN(f_max, extreme(m, v, a, 1))
LS_JINJA_RUN(f_min, extreme(m, v, a, -1))
LS_JINJA_RUN(f_safe, v)

static const ls_jinja_row filters[] = {
    {"trim", f_trim, 0, 1, {"chars"}, 0},
    {"upper", f_upper, 0, 0, {NULL}, 0},
    {"lower", f_lower, 0, 0, {NULL}, 0},
    {"capitalize", f_capitalize, 0, 0, {NULL}, 0},
    {"title", f_title, 0, 0, {NULL}, 0},
    {"replace", f_replace, 2, 3, {"old", "new", "count"}, 0},
    {"string", f_string, 0, 0, {NULL}, 0},
    {"indent", f_indent, 0, 3, {"width", "first", "blank"}, 0},
    {"join", f_join, 0, 2, {"d", "attribute"}, 0},
    {"tojson", f_tojson, 0, 4, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0},
    {"int", f_int, 0, 1, {"default"}, 0},
    {"float", f_float, 0, 1, {"default"}, 0},
    {"abs", f_abs, 0, 0, {NULL}, 0},
    {"length", f_length, 0, 0, {NULL}, 0},
    {"count", f_length, 0, 0, {NULL}, 0},
    {"default", f_default, 0, 2, {"default_value", "boolean"}, 0},
    {"d", f_default, 0, 2, {"default_value", "boolean"}, 0},
    {"first", f_first, 0, 0, {NULL}, 0},
    {"last", f_last, 0, 0, {NULL}, 0},
    {"list", f_list, 0, 0, {NULL}, 0},
    {"reverse", f_reverse, 0, 0, {NULL}, 0},
    {"items", f_items, 0, 0, {NULL}, 0},
    {"map", f_map, 0, 6, {NULL, NULL, NULL, NULL, "attribute", "default"}, 0},
    {"select", f_select, 0, 3, {NULL}, 0},
    {"reject", f_reject, 0, 3, {NULL}, 0},
    {"selectattr", f_selectattr, 1, 4, {"attribute"}, 0},
    {"rejectattr", f_rejectattr, 1, 4, {"attribute"}, 0},
    {"sort", f_sort, 0, 3, {"reverse", "case_sensitive", "attribute"}, 0},
    {"dictsort", f_dictsort, 0, 3, {"case_sensitive", "by", "reverse"}, 0},
    {"unique", f_unique, 0, 2, {"case_sensitive", "attribute"}, 0},
    {"max", f_max, 0, 2, {"case_sensitive", "attribute"}, 0},
    {"min", f_min, 0, 2, {"case_sensitive", "attribute"}, 0},
    {"safe", f_safe, 0, 0, {NULL}, 0},
};

const ls_jinja_row *ls_jinja_find_filter(const char *name)
{
    for (size_t i = 0; i < LS_COUNT(filters); i++)
        if (strcmp(filters[i].name, name) == 0)
            return &filters[i];
    return NULL;
}
