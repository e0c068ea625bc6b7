/* jinja_value.c -- what values are, how they compare, and how they are reached into.
 *
 * The rules are Python's, because templates are written for it: true equals 1, text has characters
 * and not bytes, a missing name is false and prints nothing but has no attributes. */
#include "jinja/jinja_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include "base/json.h"

ls_jinja_value ls_jinja_fail(ls_jinja_machine *m, const char *fmt, ...)
{
    char text[500];
    va_list ap;

    if (m->st == LS_OK) {
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        m->st = ls_fail(LS_EDATA, "%s line %d: %s", m->tpl->name, m->line, text);
    }
    return (ls_jinja_value){.kind = LS_JINJA_ABSENT};
}

bool ls_jinja_charge(ls_jinja_machine *m, int64_t n)
{
    if (m->st != LS_OK)
        return false;
    m->steps_left -= 1 + n / 32;
    if (m->steps_left < 0)
        ls_jinja_fail(m, "the template takes too many steps");
    return m->st == LS_OK;
}

void *ls_jinja_alloc(ls_jinja_machine *m, size_t bytes)
{
    void *p = NULL;

    if (m->st != LS_OK)
        return NULL;
    if (bytes > (size_t)m->memory_left) {
        ls_jinja_fail(m, "the template needs more than %d MiB", LS_JINJA_MEMORY >> 20);
        return NULL;
    }
    m->memory_left -= (int64_t)bytes;
    p = ls_arena_alloc(&m->arena, bytes);
    if (!p)
        m->st = LS_ENOMEM;
    return p;
}

ls_jinja_value ls_jinja_undefined(const char *name)
{
    return (ls_jinja_value){.kind = LS_JINJA_UNDEFINED, .u.missing = name};
}

ls_jinja_value ls_jinja_none(void)
{
    return (ls_jinja_value){.kind = LS_JINJA_NONE};
}

ls_jinja_value ls_jinja_bool(bool b)
{
    return (ls_jinja_value){.kind = LS_JINJA_BOOL, .u.b = b};
}

ls_jinja_value ls_jinja_int(int64_t i)
{
    return (ls_jinja_value){.kind = LS_JINJA_INT, .u.i = i};
}

ls_jinja_value ls_jinja_float(double f)
{
    return (ls_jinja_value){.kind = LS_JINJA_FLOAT, .u.f = f};
}

ls_jinja_value ls_jinja_view(const char *p, size_t len)
{
    return (ls_jinja_value){.kind = LS_JINJA_STR, .u.s = {p, len}};
}

ls_jinja_value ls_jinja_copy(ls_jinja_machine *m, const char *p, size_t len)
{
    char *copy = ls_jinja_alloc(m, len + 1);

    if (!copy)
        return (ls_jinja_value){.kind = LS_JINJA_ABSENT};
    memcpy(copy, p, len);
    return ls_jinja_view(copy, len);
}

ls_jinja_value ls_jinja_take(ls_jinja_machine *m, ls_str *text)
{
    ls_jinja_value v = {.kind = LS_JINJA_ABSENT};

    if (m->st == LS_OK && ls_str_status(text) != LS_OK)
        m->st = LS_ENOMEM;
    if (m->st == LS_OK)
        v = ls_jinja_copy(m, text->p, text->len);
    ls_str_release(text);
    return v;
}

ls_jinja_value ls_jinja_list(const ls_jinja_value *items, int64_t count)
{
    return (ls_jinja_value){.kind = LS_JINJA_LIST, .u.list = {items, count}};
}

/* --- dicts ------------------------------------------------------------------------------------
 */

ls_jinja_value ls_jinja_new_dict(ls_jinja_machine *m)
{
    ls_jinja_dict *dict = ls_jinja_alloc(m, sizeof *dict);

    if (!dict)
        return (ls_jinja_value){.kind = LS_JINJA_ABSENT};
    return (ls_jinja_value){.kind = LS_JINJA_DICT, .u.dict = dict};
}

static int64_t find_key(ls_jinja_machine *m, const ls_jinja_dict *dict, ls_jinja_value key)
{
    if (!ls_jinja_charge(m, dict->count * 4))
        return -1;
    for (int64_t i = 0; i < dict->count; i++) {
        const ls_jinja_value *k = &dict->keys[i];
        if (k->kind == LS_JINJA_STR && key.kind == LS_JINJA_STR) {
            if (k->u.s.len == key.u.s.len &&
                (key.u.s.len < 64 || ls_jinja_charge(m, (int64_t)key.u.s.len)) &&
                memcmp(k->u.s.p, key.u.s.p, key.u.s.len) == 0)
                return i;
        } else if (ls_jinja_equal(m, *k, key, 0)) {
            return i;
        }
    }
    return -1;
}

/* Append without looking for the key. */
static void dict_add(ls_jinja_machine *m, ls_jinja_dict *dict, ls_jinja_value key,
                     ls_jinja_value value)
{
    if (dict->count == dict->cap) {
        int64_t cap = dict->cap ? 2 * dict->cap : 4;
        ls_jinja_value *keys = ls_jinja_alloc(m, (size_t)cap * 2 * sizeof *keys);
        if (!keys)
            return;
        for (int64_t i = 0; i < dict->count; i++) {
            keys[i] = dict->keys[i];
            keys[cap + i] = dict->values[i];
        }
        dict->keys = keys;
        dict->values = keys + cap;
        dict->cap = cap;
    }
    dict->keys[dict->count] = key;
    dict->values[dict->count++] = value;
}

void ls_jinja_dict_put(ls_jinja_machine *m, ls_jinja_dict *dict, ls_jinja_value key,
                       ls_jinja_value value)
{
    if (key.kind == LS_JINJA_LIST || key.kind == LS_JINJA_DICT) {
        ls_jinja_fail(m, "%s cannot be a key", ls_jinja_kind_name(key.kind));
        return;
    }
    int64_t i = find_key(m, dict, key);
    if (i >= 0)
        dict->values[i] = value;
    else if (m->st == LS_OK)
        dict_add(m, dict, key, value);
}

ls_jinja_value ls_jinja_dict_get(ls_jinja_machine *m, const ls_jinja_dict *dict, ls_jinja_value key)
{
    int64_t i = find_key(m, dict, key);

    return i >= 0 ? dict->values[i] : (ls_jinja_value){.kind = LS_JINJA_ABSENT};
}

/* --- from JSON --------------------------------------------------------------------------------
 */

static ls_jinja_value from_array(ls_jinja_machine *m, const json_t *json, int depth)
{
    size_t n = json_array_size(json);
    ls_jinja_value *items = ls_jinja_alloc(m, n * sizeof *items);

    for (size_t i = 0; items && i < n && m->st == LS_OK; i++)
        items[i] = ls_jinja_from_json(m, json_array_get(json, i), depth + 1);
    return ls_jinja_list(items, (int64_t)n);
}

/* A number that jansson cannot hold, as Python reads it; absent: the object is none. */
static ls_jinja_value from_number(ls_jinja_machine *m, const json_t *json)
{
    const char *text = json_string_value(json_object_get(json, LS_JSON_NUMBER));
    size_t n = text ? strlen(text) : 0, sign = n && *text == '-';
    char *end = NULL;

    if (n == sign || json_object_size(json) != 1)
        return (ls_jinja_value){.kind = LS_JINJA_ABSENT};
    if (strspn(text + sign, "0123456789") + sign == n) {
        ls_jinja_value v = ls_jinja_copy(m, text, n);
        v.kind = v.kind == LS_JINJA_STR ? LS_JINJA_LONG : v.kind;
        return v;
    }
    double f = strtod(text, &end); /* NaN, Infinity, 1e999 */
    return *end ? (ls_jinja_value){.kind = LS_JINJA_ABSENT} : ls_jinja_float(f);
}

static ls_jinja_value from_object(ls_jinja_machine *m, const json_t *json, int depth)
{
    ls_jinja_value number = from_number(m, json);

    if (number.kind != LS_JINJA_ABSENT)
        return number;
    ls_jinja_value v = ls_jinja_new_dict(m);
    json_t *object =
        json_incref((json_t *)(uintptr_t)json); /* iterating needs one that is not const */
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        if (m->st != LS_OK)
            break;
        /* Keys of an object differ, so there is nothing to look for. */
        dict_add(m, v.u.dict, ls_jinja_copy(m, key, strlen(key)),
                 ls_jinja_from_json(m, value, depth + 1));
    }
    json_decref(object);
    return v;
}

ls_jinja_value ls_jinja_from_json(ls_jinja_machine *m, const json_t *json, int depth)
{
    if (depth > LS_JINJA_DEEP)
        return ls_jinja_fail(m, "the input is nested too deeply");
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return from_object(m, json, depth);
    case JSON_ARRAY:
        return from_array(m, json, depth);
    case JSON_STRING:
        return ls_jinja_copy(m, json_string_value(json), json_string_length(json));
    case JSON_INTEGER:
        return ls_jinja_int(json_integer_value(json));
    case JSON_REAL:
        return ls_jinja_float(json_real_value(json));
    case JSON_TRUE:
    case JSON_FALSE:
        return ls_jinja_bool(json_is_true(json));
    case JSON_NULL:
        break;
    }
    return ls_jinja_none();
}

/* --- questions --------------------------------------------------------------------------------
 */

const char *ls_jinja_kind_name(ls_jinja_kind kind)
{
    static const char *const names[] = {"nothing",
                                        "an undefined value",
                                        "none",
                                        "a boolean",
                                        "a whole number",
                                        "a number",
                                        "a number beyond 64 bits",
                                        "a text",
                                        "a list",
                                        "a dict",
                                        "a namespace",
                                        "a loop",
                                        "a function"};

    return names[kind];
}

bool ls_jinja_truth(ls_jinja_value v)
{
    switch (v.kind) {
    case LS_JINJA_ABSENT:
    case LS_JINJA_UNDEFINED:
    case LS_JINJA_NONE:
        return false;
    case LS_JINJA_BOOL:
        return v.u.b;
    case LS_JINJA_INT:
        return v.u.i != 0;
    case LS_JINJA_FLOAT:
        return v.u.f != 0;
    case LS_JINJA_STR:
        return v.u.s.len != 0;
    case LS_JINJA_LIST:
        return v.u.list.count != 0;
    case LS_JINJA_DICT:
        return v.u.dict->count != 0;
    case LS_JINJA_LONG:
    case LS_JINJA_SPACE:
    case LS_JINJA_LOOP:
    case LS_JINJA_CALLABLE:
        break;
    }
    return true;
}

static bool equal_lists(ls_jinja_machine *m, ls_jinja_value a, ls_jinja_value b, int depth)
{
    if (a.tuple != b.tuple || a.u.list.count != b.u.list.count)
        return false;
    for (int64_t i = 0; i < a.u.list.count && m->st == LS_OK; i++)
        if (!ls_jinja_equal(m, a.u.list.items[i], b.u.list.items[i], depth + 1))
            return false;
    return true;
}

static bool equal_dicts(ls_jinja_machine *m, const ls_jinja_dict *a, const ls_jinja_dict *b,
                        int depth)
{
    if (a->count != b->count)
        return false;
    for (int64_t i = 0; i < a->count && m->st == LS_OK; i++) {
        ls_jinja_value other = ls_jinja_dict_get(m, b, a->keys[i]);
        if (other.kind == LS_JINJA_ABSENT || !ls_jinja_equal(m, a->values[i], other, depth + 1))
            return false;
    }
    return true;
}

bool ls_jinja_equal(ls_jinja_machine *m, ls_jinja_value a, ls_jinja_value b, int depth)
{
    if (depth > LS_JINJA_DEEP) {
        ls_jinja_fail(m, "values are nested too deeply to compare");
        return false;
    }
    if (!ls_jinja_charge(m, a.kind == LS_JINJA_STR ? (int64_t)a.u.s.len : 1))
        return false;
    if (ls_jinja_is_number(a) && ls_jinja_is_number(b))
        return ls_jinja_is_whole(a) && ls_jinja_is_whole(b) ? ls_jinja_whole(a) == ls_jinja_whole(b)
                                                            : ls_jinja_real(a) == ls_jinja_real(b);
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case LS_JINJA_LONG:
    case LS_JINJA_STR:
        return a.u.s.len == b.u.s.len && memcmp(a.u.s.p, b.u.s.p, a.u.s.len) == 0;
    case LS_JINJA_LIST:
        return equal_lists(m, a, b, depth);
    case LS_JINJA_DICT:
        return equal_dicts(m, a.u.dict, b.u.dict, depth);
    case LS_JINJA_SPACE:
        return a.u.dict == b.u.dict;
    case LS_JINJA_LOOP:
        return a.u.loop == b.u.loop;
    case LS_JINJA_CALLABLE:
        return a.u.call == b.u.call;
    default:
        return true; /* none and undefined */
    }
}

int ls_jinja_order(ls_jinja_machine *m, ls_jinja_value a, ls_jinja_value b, int depth)
{
    if (!ls_jinja_charge(m, a.kind == LS_JINJA_STR ? (int64_t)a.u.s.len : 1))
        return 0;
    if (ls_jinja_is_number(a) && ls_jinja_is_number(b)) {
        if (ls_jinja_is_whole(a) && ls_jinja_is_whole(b))
            return (ls_jinja_whole(a) > ls_jinja_whole(b)) -
                   (ls_jinja_whole(a) < ls_jinja_whole(b));
        return (ls_jinja_real(a) > ls_jinja_real(b)) - (ls_jinja_real(a) < ls_jinja_real(b));
    }
    if (a.kind == LS_JINJA_STR && b.kind == LS_JINJA_STR) { /* UTF-8 sorts as its characters do */
        size_t n = a.u.s.len < b.u.s.len ? a.u.s.len : b.u.s.len;
        int c = memcmp(a.u.s.p, b.u.s.p, n);
        return c ? c : (a.u.s.len > b.u.s.len) - (a.u.s.len < b.u.s.len);
    }
    if (a.kind != LS_JINJA_LIST || b.kind != LS_JINJA_LIST || depth > LS_JINJA_DEEP) {
        ls_jinja_fail(m, "%s and %s have no order", ls_jinja_kind_name(a.kind),
                      ls_jinja_kind_name(b.kind));
        return 0;
    }
    int64_t n = ls_min_i64(a.u.list.count, b.u.list.count);
    for (int64_t i = 0; i < n && m->st == LS_OK; i++)
        if (!ls_jinja_equal(m, a.u.list.items[i], b.u.list.items[i], depth))
            return ls_jinja_order(m, a.u.list.items[i], b.u.list.items[i], depth + 1);
    return (a.u.list.count > b.u.list.count) - (a.u.list.count < b.u.list.count);
}

bool ls_jinja_contains(ls_jinja_machine *m, ls_jinja_value where, ls_jinja_value what)
{
    if (where.kind == LS_JINJA_STR && what.kind == LS_JINJA_STR) {
        return ls_jinja_charge(m, (int64_t)where.u.s.len) &&
               memmem(where.u.s.p, where.u.s.len, what.u.s.p, what.u.s.len);
    } else if (where.kind == LS_JINJA_DICT) {
        return find_key(m, where.u.dict, what) >= 0;
    } else if (where.kind == LS_JINJA_UNDEFINED) {
        return false;
    } else if (where.kind != LS_JINJA_LIST) {
        ls_jinja_fail(m, "%s cannot be looked for in %s", ls_jinja_kind_name(what.kind),
                      ls_jinja_kind_name(where.kind));
        return false;
    }
    for (int64_t i = 0; i < where.u.list.count && m->st == LS_OK; i++)
        if (ls_jinja_equal(m, where.u.list.items[i], what, 0))
            return true;
    return false;
}

static ls_jinja_value characters(ls_jinja_machine *m, ls_jinja_value v)
{
    int64_t n = ls_jinja_chars(v.u.s.p, v.u.s.len);
    ls_jinja_value *items = ls_jinja_alloc(m, (size_t)n * sizeof *items);
    const char *p = v.u.s.p, *end = p + v.u.s.len;
    int len;

    for (int64_t i = 0; items && i < n; i++, p += len) {
        ls_jinja_char(p, end, &len);
        items[i] = ls_jinja_view(p, (size_t)len);
    }
    return ls_jinja_list(items, items ? n : 0);
}

ls_jinja_value ls_jinja_iterate(ls_jinja_machine *m, ls_jinja_value v)
{
    switch (v.kind) {
    case LS_JINJA_UNDEFINED:
        return ls_jinja_list(NULL, 0);
    case LS_JINJA_STR:
        return ls_jinja_charge(m, (int64_t)v.u.s.len * 32) ? characters(m, v)
                                                           : ls_jinja_list(NULL, 0);
    case LS_JINJA_LIST:
        return v;
    case LS_JINJA_DICT:
        return ls_jinja_list(v.u.dict->keys, v.u.dict->count);
    default:
        ls_jinja_fail(m, "%s cannot be looped over", ls_jinja_kind_name(v.kind));
        return ls_jinja_list(NULL, 0);
    }
}

int64_t ls_jinja_length(ls_jinja_machine *m, ls_jinja_value v)
{
    switch (v.kind) {
    case LS_JINJA_UNDEFINED:
        return 0;
    case LS_JINJA_STR:
        return ls_jinja_charge(m, (int64_t)v.u.s.len) ? ls_jinja_chars(v.u.s.p, v.u.s.len) : 0;
    case LS_JINJA_LIST:
        return v.u.list.count;
    case LS_JINJA_DICT:
        return v.u.dict->count;
    default:
        ls_jinja_fail(m, "%s has no length", ls_jinja_kind_name(v.kind));
        return 0;
    }
}

/* --- reaching in ------------------------------------------------------------------------------
 */

static ls_jinja_value loop_attribute(const ls_jinja_loop *loop, const char *name)
{
    int64_t i = loop->index, n = loop->count;

    if (strcmp(name, "index") == 0)
        return ls_jinja_int(i + 1);
    if (strcmp(name, "index0") == 0)
        return ls_jinja_int(i);
    if (strcmp(name, "revindex") == 0)
        return ls_jinja_int(n - i);
    if (strcmp(name, "revindex0") == 0)
        return ls_jinja_int(n - i - 1);
    if (strcmp(name, "first") == 0)
        return ls_jinja_bool(i == 0);
    if (strcmp(name, "last") == 0)
        return ls_jinja_bool(i == n - 1);
    if (strcmp(name, "length") == 0)
        return ls_jinja_int(n);
    if (strcmp(name, "depth") == 0)
        return ls_jinja_int(loop->depth + 1);
    if (strcmp(name, "depth0") == 0)
        return ls_jinja_int(loop->depth);
    if (strcmp(name, "previtem") == 0 && i > 0)
        return loop->items[i - 1];
    if (strcmp(name, "nextitem") == 0 && i + 1 < n)
        return loop->items[i + 1];
    return ls_jinja_undefined(name);
}

static ls_jinja_value method(ls_jinja_machine *m, ls_jinja_value self, const char *name)
{
    const ls_jinja_row *row = ls_jinja_find_method(name, self.kind);
    ls_jinja_callable *call = row ? ls_jinja_alloc(m, sizeof *call) : NULL;

    if (!call)
        return ls_jinja_undefined(name);
    call->method = row;
    call->self = self;
    return (ls_jinja_value){.kind = LS_JINJA_CALLABLE, .u.call = call};
}

ls_jinja_value ls_jinja_attribute(ls_jinja_machine *m, ls_jinja_value a, const char *name)
{
    ls_jinja_value key = ls_jinja_view(name, strlen(name)), found;

    switch (a.kind) {
    case LS_JINJA_UNDEFINED:
        return ls_jinja_fail(m, "\"%.80s\" is undefined, so it has no \"%.80s\"", a.u.missing,
                             name);
    case LS_JINJA_LOOP:
        return loop_attribute(a.u.loop, name);
    case LS_JINJA_SPACE:
        found = ls_jinja_dict_get(m, a.u.dict, key);
        return found.kind == LS_JINJA_ABSENT ? ls_jinja_undefined(name) : found;
    case LS_JINJA_DICT: /* methods hide keys, as in Python */
        found = method(m, a, name);
        if (found.kind == LS_JINJA_UNDEFINED)
            found = ls_jinja_dict_get(m, a.u.dict, key);
        return found.kind == LS_JINJA_ABSENT ? ls_jinja_undefined(name) : found;
    default:
        return method(m, a, name);
    }
}

/* A name for messages and methods that ends in '\0'. */
static const char *name_of(ls_jinja_machine *m, ls_jinja_value key)
{
    ls_jinja_value text = ls_jinja_to_str(m, key);

    if (m->st == LS_OK)
        text = ls_jinja_copy(m, text.u.s.p, text.u.s.len);
    return m->st == LS_OK ? text.u.s.p : "";
}

static ls_jinja_value by_number(ls_jinja_machine *m, ls_jinja_value a, int64_t i)
{
    int64_t n = ls_jinja_length(m, a);

    i += i < 0 ? n : 0;
    if (i < 0 || i >= n)
        return ls_jinja_undefined("an element past the end");
    if (a.kind == LS_JINJA_LIST)
        return a.u.list.items[i];
    size_t from = ls_jinja_char_at(a.u.s.p, a.u.s.len, i);
    return ls_jinja_view(a.u.s.p + from, ls_jinja_char_at(a.u.s.p + from, a.u.s.len - from, 1));
}

ls_jinja_value ls_jinja_item(ls_jinja_machine *m, ls_jinja_value a, ls_jinja_value key)
{
    if (a.kind == LS_JINJA_UNDEFINED)
        return ls_jinja_fail(m, "\"%.80s\" is undefined, so it has no items", a.u.missing);
    if (a.kind == LS_JINJA_DICT) { /* keys hide methods here */
        ls_jinja_value found = ls_jinja_dict_get(m, a.u.dict, key);
        if (found.kind != LS_JINJA_ABSENT)
            return found;
    }
    if ((a.kind == LS_JINJA_LIST || a.kind == LS_JINJA_STR) &&
        (key.kind == LS_JINJA_INT || key.kind == LS_JINJA_BOOL))
        return by_number(m, a, ls_jinja_whole(key));
    const char *name = name_of(m, key);
    if (key.kind == LS_JINJA_STR)
        return ls_jinja_attribute(m, a, name);
    return ls_jinja_undefined(name);
}

/* One bound of a slice of n elements that walks in direction step. */
static int64_t bound(ls_jinja_value v, int64_t n, int64_t step, bool last)
{
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;

    if (v.kind != LS_JINJA_INT && v.kind != LS_JINJA_BOOL)
        return (step > 0) == last ? high : low;
    int64_t i = ls_jinja_whole(v);
    i += i < 0 ? n : 0;
    return i < low ? low : i > high ? high : i;
}

ls_jinja_value ls_jinja_slice(ls_jinja_machine *m, ls_jinja_value a, const ls_jinja_value bounds[3])
{
    for (int i = 0; i < 3; i++)
        if (bounds[i].kind != LS_JINJA_INT && bounds[i].kind != LS_JINJA_BOOL &&
            bounds[i].kind != LS_JINJA_NONE && bounds[i].kind != LS_JINJA_ABSENT)
            return ls_jinja_fail(m, "the bound of a slice is %s, not a whole number",
                                 ls_jinja_kind_name(bounds[i].kind));
    bool stepped = bounds[2].kind == LS_JINJA_INT || bounds[2].kind == LS_JINJA_BOOL;
    int64_t step = stepped ? ls_jinja_whole(bounds[2]) : 1;
    if (step == 0)
        return ls_jinja_fail(m, "the step of a slice is 0");
    if (a.kind == LS_JINJA_UNDEFINED)
        return ls_jinja_fail(m, "\"%.80s\" is undefined, so it has no slice", a.u.missing);
    if (a.kind != LS_JINJA_LIST && a.kind != LS_JINJA_STR)
        return ls_jinja_undefined("a slice");
    int64_t n = ls_jinja_length(m, a), from = bound(bounds[0], n, step, false),
            to = bound(bounds[1], n, step, true), count = 0;
    if (m->st == LS_OK && step > 0 && from < to)
        count = (to - from - 1) / step + 1;
    else if (m->st == LS_OK && step < 0 && from > to)
        count = (from - to - 1) / -ls_max_i64(step, -INT64_MAX) + 1;
    if (a.kind == LS_JINJA_LIST && step == 1) {
        ls_jinja_value part = ls_jinja_list(count ? a.u.list.items + from : NULL, count);
        part.tuple = a.tuple;
        return part;
    }
    if (a.kind == LS_JINJA_STR && step == 1) {
        size_t begin = ls_jinja_char_at(a.u.s.p, a.u.s.len, from);
        return ls_jinja_view(a.u.s.p + begin,
                             ls_jinja_char_at(a.u.s.p + begin, a.u.s.len - begin, count));
    }
    ls_jinja_value all = ls_jinja_iterate(m, a);
    ls_jinja_value *items = ls_jinja_alloc(m, (size_t)count * sizeof *items);
    for (int64_t i = 0; items && i < count; i++)
        items[i] = all.u.list.items[from + i * step];
    if (!items || a.kind == LS_JINJA_LIST) {
        ls_jinja_value part = ls_jinja_list(items, items ? count : 0);
        part.tuple = a.tuple;
        return part;
    }
    ls_str text;
    ls_str_init(&text);
    for (int64_t i = 0; i < count; i++)
        ls_str_append_bytes(&text, items[i].u.s.p, items[i].u.s.len);
    return ls_jinja_take(m, &text);
}

/* A stable merge sort, because the order of a broken comparison must not matter for memory. */
void ls_jinja_sort(ls_jinja_machine *m, ls_jinja_value *items, int64_t n, ls_jinja_order_by by,
                   const void *context)
{
    ls_jinja_value *other = ls_jinja_alloc(m, (size_t)n * sizeof *other);

    for (int64_t width = 1; other && width < n && m->st == LS_OK; width *= 2) {
        for (int64_t low = 0; low < n; low += 2 * width) {
            int64_t middle = ls_min_i64(low + width, n), high = ls_min_i64(low + 2 * width, n);
            int64_t a = low, b = middle;
            for (int64_t k = low; k < high; k++)
                other[k] = a < middle && (b == high || by(m, &items[a], &items[b], context) <= 0)
                               ? items[a++]
                               : items[b++];
        }
        memcpy(items, other, (size_t)n * sizeof *items);
    }
}
