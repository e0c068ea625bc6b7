/* jinja_test.c -- what may stand behind "is", and the functions that templates may call. */
#include "jinja/jinja_impl.h"

#include <time.h>

static const ls_jinja_value absent = {.kind = LS_JINJA_ABSENT};

#define TEST(name, condition) LS_JINJA_RUN(name, ls_jinja_bool(condition))

static int64_t whole(ls_jinja_machine *m, ls_jinja_value v)
{
    if (!ls_jinja_is_whole(v))
        ls_jinja_fail(m, "%s is not a whole number", ls_jinja_kind_name(v.kind));
    return ls_jinja_is_whole(v) ? ls_jinja_whole(v) : 0;
}

static bool divides(ls_jinja_machine *m, ls_jinja_value v, ls_jinja_value by)
{
    int64_t n = whole(m, v), d = whole(m, by);

    if (m->st == LS_OK && d == 0)
        ls_jinja_fail(m, "a number is divided by 0");
    return m->st == LS_OK && (d == -1 || n % d == 0);
}

static bool is_case(ls_jinja_machine *m, ls_jinja_value v, char how)
{
    char other = how == 'u' ? 'l' : 'u';

    v = ls_jinja_to_str(m, v);
    ls_jinja_value same = ls_jinja_case(m, v, how), changed = ls_jinja_case(m, v, other);
    return m->st == LS_OK && ls_jinja_equal(m, v, same, 0) && !ls_jinja_equal(m, v, changed, 0);
}

static bool is_same(ls_jinja_machine *m, ls_jinja_value a, ls_jinja_value b)
{
    return a.kind == b.kind && ls_jinja_equal(m, a, b, 0);
}

/* Also of what is undefined: it can be looped over, and has no items. */
TEST(t_iterable, v.kind == LS_JINJA_STR || v.kind == LS_JINJA_LIST || v.kind == LS_JINJA_DICT ||
                     v.kind == LS_JINJA_UNDEFINED)
TEST(t_defined, v.kind != LS_JINJA_UNDEFINED)
TEST(t_undefined, v.kind == LS_JINJA_UNDEFINED)
TEST(t_none, v.kind == LS_JINJA_NONE)
TEST(t_string, v.kind == LS_JINJA_STR)
TEST(t_mapping, v.kind == LS_JINJA_DICT)
TEST(t_true, v.kind == LS_JINJA_BOOL && v.u.b)
TEST(t_false, v.kind == LS_JINJA_BOOL && !v.u.b)
TEST(t_boolean, v.kind == LS_JINJA_BOOL)
TEST(t_number, ls_jinja_is_number(v) || v.kind == LS_JINJA_LONG)
TEST(t_integer, v.kind == LS_JINJA_INT || v.kind == LS_JINJA_LONG)
TEST(t_float, v.kind == LS_JINJA_FLOAT)
TEST(t_callable, v.kind == LS_JINJA_CALLABLE)
TEST(t_odd, !divides(m, v, ls_jinja_int(2)))
TEST(t_even, divides(m, v, ls_jinja_int(2)))
TEST(t_divisible, divides(m, v, a[0]))
TEST(t_lower, is_case(m, v, 'l'))
TEST(t_upper, is_case(m, v, 'u'))
TEST(t_eq, ls_jinja_equal(m, v, a[0], 0))
TEST(t_ne, !ls_jinja_equal(m, v, a[0], 0))
TEST(t_lt, ls_jinja_order(m, v, a[0], 0) < 0)
TEST(t_le, ls_jinja_order(m, v, a[0], 0) <= 0)
TEST(t_gt, ls_jinja_order(m, v, a[0], 0) > 0)
TEST(t_ge, ls_jinja_order(m, v, a[0], 0) >= 0)
TEST(t_in, ls_jinja_contains(m, a[0], v))
TEST(t_same, is_same(m, v, a[0]))

#define PLAIN(name, run)                         \
    {                                            \
        name, run, 0, 0, {NULL}, LS_JINJA_ABSENT \
    }
#define WITH(name, run)                             \
    {                                               \
        name, run, 1, 1, {"other"}, LS_JINJA_ABSENT \
    }

static const ls_jinja_row tests[] = {
    PLAIN("defined", t_defined),
    PLAIN("undefined", t_undefined),
    PLAIN("none", t_none),
    PLAIN("string", t_string),
    PLAIN("mapping", t_mapping),
    PLAIN("iterable", t_iterable),
    PLAIN("sequence", t_iterable),
    PLAIN("true", t_true),
    PLAIN("false", t_false),
    PLAIN("boolean", t_boolean),
    PLAIN("number", t_number),
    PLAIN("integer", t_integer),
    PLAIN("float", t_float),
    PLAIN("callable", t_callable),
    PLAIN("odd", t_odd),
    PLAIN("even", t_even),
    PLAIN("lower", t_lower),
    PLAIN("upper", t_upper),
    WITH("divisibleby", t_divisible),
    WITH("eq", t_eq),
    WITH("equalto", t_eq),
    WITH("==", t_eq),
    WITH("ne", t_ne),
    WITH("!=", t_ne),
    WITH("lt", t_lt),
    WITH("lessthan", t_lt),
    WITH("<", t_lt),
    WITH("le", t_le),
    WITH("<=", t_le),
    WITH("gt", t_gt),
    WITH("greaterthan", t_gt),
    WITH(">", t_gt),
    WITH("ge", t_ge),
    WITH(">=", t_ge),
    WITH("in", t_in),
    WITH("sameas", t_same),
};

const ls_jinja_row *ls_jinja_find_test(const char *name)
{
    for (size_t i = 0; i < LS_COUNT(tests); i++)
        if (strcmp(tests[i].name, name) == 0)
            return &tests[i];
    return NULL;
}

/* --- functions --------------------------------------------------------------------------------
 */

static bool takes(ls_jinja_machine *m, const char *name, const char *const *names, int n, int least,
                  int most)
{
    bool named = false;

    for (int i = 0; i < n; i++)
        named |= names[i] != NULL;
    if (named || n < least || n > most)
        ls_jinja_fail(m, "\"%s\" cannot be called with these arguments", name);
    return m->st == LS_OK;
}

/* Named arguments, and the items of a dict in front of them. */
static ls_jinja_value make_dict(ls_jinja_machine *m, const ls_jinja_value *args,
                                const char *const *names, int n)
{
    ls_jinja_value v = ls_jinja_new_dict(m);

    for (int i = 0; i < n && m->st == LS_OK; i++) {
        if (names[i]) {
            ls_jinja_dict_put(m, v.u.dict, ls_jinja_view(names[i], strlen(names[i])), args[i]);
        } else if (i == 0 && args[0].kind == LS_JINJA_DICT) {
            for (int64_t k = 0; k < args[0].u.dict->count && m->st == LS_OK; k++)
                ls_jinja_dict_put(m, v.u.dict, args[0].u.dict->keys[k], args[0].u.dict->values[k]);
        } else {
            ls_jinja_fail(m, "a dict or namespace is made of names with values");
        }
    }
    return v;
}

static ls_jinja_value make_space(ls_jinja_machine *m, const ls_jinja_value *args,
                                 const char *const *names, int n)
{
    ls_jinja_value v = make_dict(m, args, names, n);

    v.kind = m->st == LS_OK ? LS_JINJA_SPACE : LS_JINJA_ABSENT;
    return v;
}

static ls_jinja_value raise_exception(ls_jinja_machine *m, const ls_jinja_value *args,
                                      const char *const *names, int n)
{
    if (!takes(m, "raise_exception", names, n, 1, 1))
        return absent;
    ls_jinja_value text = ls_jinja_to_str(m, args[0]);
    return ls_jinja_fail(m, "the template refuses this: %.*s",
                         (int)ls_min_i64(300, (int64_t)text.u.s.len), text.u.s.p);
}

static ls_jinja_value strftime_now(ls_jinja_machine *m, const ls_jinja_value *args,
                                   const char *const *names, int n)
{
    char text[256], format[128];
    time_t now = (time_t)m->args->now;
    struct tm parts;

    if (!takes(m, "strftime_now", names, n, 1, 1))
        return absent;
    ls_jinja_value how = ls_jinja_to_str(m, args[0]);
    if (how.u.s.len >= sizeof format || memchr(how.u.s.p, '\0', how.u.s.len) ||
        !gmtime_r(&now, &parts))
        return ls_jinja_fail(m, "strftime_now has a format that is too long");
    memcpy(format, how.u.s.p, how.u.s.len);
    format[how.u.s.len] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t len = strftime(text, sizeof text, format, &parts);
#pragma GCC diagnostic pop
    return ls_jinja_copy(m, text, len);
}

static ls_jinja_value range(ls_jinja_machine *m, const ls_jinja_value *args,
                            const char *const *names, int n)
{
    if (!takes(m, "range", names, n, 1, 3))
        return absent;
    int64_t from = n > 1 ? whole(m, args[0]) : 0, to = whole(m, args[n > 1]);
    int64_t step = n > 2 ? whole(m, args[2]) : 1, count = 0;
    if (m->st != LS_OK)
        return absent;
    if (step == 0)
        return ls_jinja_fail(m, "the step of a range is 0");
    const int64_t far = INT64_C(1) << 60;
    if (from > far || from < -far || to > far || to < -far || step > far || step < -far)
        return ls_jinja_fail(m, "a range has more than %d numbers", LS_JINJA_RANGE);
    if (step > 0 ? from < to : from > to)
        count = (step > 0 ? to - from - 1 : from - to - 1) / (step > 0 ? step : -step) + 1;
    if (count > LS_JINJA_RANGE)
        return ls_jinja_fail(m, "a range has more than %d numbers", LS_JINJA_RANGE);
    ls_jinja_value *items =
        ls_jinja_charge(m, count * 8) ? ls_jinja_alloc(m, (size_t)count * sizeof *items) : NULL;
    for (int64_t i = 0; items && i < count; i++)
        items[i] = ls_jinja_int(from + i * step);
    return ls_jinja_list(items, items ? count : 0);
}

const ls_jinja_function *ls_jinja_find_function(const char *name)
{
    static const ls_jinja_function functions[] = {{"namespace", make_space},
                                                  {"dict", make_dict},
                                                  {"raise_exception", raise_exception},
                                                  {"strftime_now", strftime_now},
                                                  {"range", range}};

    for (size_t i = 0; i < LS_COUNT(functions); i++)
        if (strcmp(functions[i].name, name) == 0)
            return &functions[i];
    return NULL;
}
