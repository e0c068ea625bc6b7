/* jinja_eval.c -- running a template: expressions to values, statements to text.
 *
 * Variables live in frames. A loop iteration, a macro call and a captured block each have a frame of
 * their own; an if does not. What is set inside is gone afterwards, as in Jinja. A macro sees the
 * frames around its definition, not those of its caller. */
#include "jinja/jinja_impl.h"

#include <limits.h>
#include <math.h>
#include "base/mem.h"

static const ls_jinja_value absent = {.kind = LS_JINJA_ABSENT};

static ls_jinja_value eval(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n);
static void run(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n);

/* One level further down; each is a few calls in C. The caller takes it back. */
static bool sink(ls_jinja_machine *m)
{
    if (++m->depth > LS_JINJA_LEVELS)
        ls_jinja_fail(m, "the template is nested too deeply");
    return m->st == LS_OK;
}

/* --- frames -----------------------------------------------------------------------------------
 */

static ls_jinja_frame *new_frame(ls_jinja_machine *m, ls_jinja_frame *parent)
{
    ls_jinja_frame *f = ls_jinja_alloc(m, sizeof *f);

    if (f)
        f->parent = parent;
    return f;
}

static void assign(ls_jinja_machine *m, ls_jinja_frame *f, const char *name, ls_jinja_value value)
{
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->names[i], name) == 0) {
            f->values[i] = value;
            return;
        }
    if (f->count == f->cap) {
        int cap = f->cap ? 2 * f->cap : 4;
        const char **names = ls_jinja_alloc(m, (size_t)cap * sizeof *names);
        ls_jinja_value *values = ls_jinja_alloc(m, (size_t)cap * sizeof *values);
        if (!names || !values)
            return;
        for (int i = 0; i < f->count; i++) {
            names[i] = f->names[i];
            values[i] = f->values[i];
        }
        f->names = names;
        f->values = values;
        f->cap = cap;
    }
    f->names[f->count] = name;
    f->values[f->count++] = value;
}

static ls_jinja_value look_up(ls_jinja_machine *m, const ls_jinja_frame *f, const char *name)
{
    for (; f; f = f->parent)
        for (int i = 0; i < f->count; i++)
            if (strcmp(f->names[i], name) == 0)
                return f->values[i];
    const ls_jinja_function *function = ls_jinja_find_function(name);
    if (!function)
        return ls_jinja_undefined(name);
    ls_jinja_callable *call = ls_jinja_alloc(m, sizeof *call);
    if (!call)
        return absent;
    call->function = function;
    return (ls_jinja_value){.kind = LS_JINJA_CALLABLE, .u.call = call};
}

/* --- operators --------------------------------------------------------------------------------
 */

static ls_jinja_value join(ls_jinja_machine *m, ls_jinja_value a, ls_jinja_value b)
{
    size_t len = a.u.s.len + b.u.s.len;
    char *text = ls_jinja_charge(m, (int64_t)len) ? ls_jinja_alloc(m, len + 1) : NULL;

    if (!text)
        return absent;
    memcpy(text, a.u.s.p, a.u.s.len);
    memcpy(text + a.u.s.len, b.u.s.p, b.u.s.len);
    return ls_jinja_view(text, len);
}

static ls_jinja_value join_lists(ls_jinja_machine *m, ls_jinja_value a, ls_jinja_value b)
{
    int64_t count = a.u.list.count + b.u.list.count;
    ls_jinja_value *items =
        ls_jinja_charge(m, count * 8) ? ls_jinja_alloc(m, (size_t)count * sizeof *items) : NULL;

    if (!items)
        return absent;
    for (int64_t i = 0; i < count; i++)
        items[i] = i < a.u.list.count ? a.u.list.items[i] : b.u.list.items[i - a.u.list.count];
    ls_jinja_value v = ls_jinja_list(items, count);
    v.tuple = a.tuple;
    return v;
}

/* A text or a list this many times. */
static ls_jinja_value repeat(ls_jinja_machine *m, ls_jinja_value a, int64_t times)
{
    bool text = a.kind == LS_JINJA_STR;
    size_t one = text ? a.u.s.len : (size_t)a.u.list.count * sizeof(ls_jinja_value), all;

    times = times < 0 ? 0 : times;
    if (__builtin_mul_overflow(one, (size_t)times, &all))
        all = SIZE_MAX / 2;
    char *to = ls_jinja_alloc(m, all + 1);
    if (!to || !ls_jinja_charge(m, (int64_t)all))
        return absent;
    for (int64_t i = 0; one && i < times; i++)
        memcpy(to + (size_t)i * one, text ? (const void *)a.u.s.p : a.u.list.items, one);
    if (text)
        return ls_jinja_view(to, all);
    ls_jinja_value v =
        ls_jinja_list((const ls_jinja_value *)(const void *)to, a.u.list.count * times);
    v.tuple = a.tuple;
    return v;
}

static ls_jinja_value whole_arithmetic(ls_jinja_machine *m, int op, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool over = false;

    if ((op == LS_JINJA_FLOORDIV || op == '%') && b == 0)
        return ls_jinja_fail(m, "a number is divided by 0");
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &result);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &result);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &result);
        break;
    case LS_JINJA_FLOORDIV:
        over = a == INT64_MIN && b == -1;
        result = over ? 0 : a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
        break;
    case '%': /* of the sign of the divisor */
        result = b == -1 ? 0 : a % b;
        result += result && (result < 0) != (b < 0) ? b : 0;
        break;
    case LS_JINJA_POW:
        result = 1;
        for (int64_t i = 0; i < b && !over; i++)
            over = __builtin_mul_overflow(result, a, &result) || !ls_jinja_charge(m, 1);
        break;
    }
    return over ? ls_jinja_fail(m, "a number grows beyond 64 bits") : ls_jinja_int(result);
}

static ls_jinja_value real_arithmetic(ls_jinja_machine *m, int op, double a, double b)
{
    if ((op == '/' || op == LS_JINJA_FLOORDIV || op == '%') && b == 0)
        return ls_jinja_fail(m, "a number is divided by 0");
    switch (op) {
    case '+':
        return ls_jinja_float(a + b);
    case '-':
        return ls_jinja_float(a - b);
    case '*':
        return ls_jinja_float(a * b);
    case '/':
        return ls_jinja_float(a / b);
    case LS_JINJA_FLOORDIV:
        return ls_jinja_float(floor(a / b));
    case '%': {
        double rest = fmod(a, b);
        return ls_jinja_float(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
    }
    default:
        return ls_jinja_float(pow(a, b));
    }
}

static ls_jinja_value arithmetic(ls_jinja_machine *m, int op, ls_jinja_value a, ls_jinja_value b)
{
    char symbol[3] = {(char)op, '\0', '\0'};
    bool numbers = ls_jinja_is_number(a) && ls_jinja_is_number(b);

    if (numbers && ls_jinja_is_whole(a) && ls_jinja_is_whole(b) && op != '/' &&
        !(op == LS_JINJA_POW && ls_jinja_whole(b) < 0))
        return whole_arithmetic(m, op, ls_jinja_whole(a), ls_jinja_whole(b));
    if (numbers)
        return real_arithmetic(m, op, ls_jinja_real(a), ls_jinja_real(b));
    if (op == '+' && a.kind == LS_JINJA_STR && b.kind == LS_JINJA_STR)
        return join(m, a, b);
    if (op == '+' && a.kind == LS_JINJA_LIST && b.kind == LS_JINJA_LIST && a.tuple == b.tuple)
        return join_lists(m, a, b);
    if (op == '*' && ls_jinja_is_whole(b) && (a.kind == LS_JINJA_STR || a.kind == LS_JINJA_LIST))
        return repeat(m, a, ls_jinja_whole(b));
    if (op == '*' && ls_jinja_is_whole(a) && (b.kind == LS_JINJA_STR || b.kind == LS_JINJA_LIST))
        return repeat(m, b, ls_jinja_whole(a));
    if (a.kind == LS_JINJA_UNDEFINED || b.kind == LS_JINJA_UNDEFINED)
        return ls_jinja_fail(m, "\"%.80s\" is undefined",
                             a.kind == LS_JINJA_UNDEFINED ? a.u.missing : b.u.missing);
    if (op == LS_JINJA_FLOORDIV || op == LS_JINJA_POW)
        symbol[0] = symbol[1] = op == LS_JINJA_POW ? '*' : '/';
    return ls_jinja_fail(m, "\"%s\" is not possible between %s and %s", symbol,
                         ls_jinja_kind_name(a.kind), ls_jinja_kind_name(b.kind));
}

static bool holds(ls_jinja_machine *m, int op, ls_jinja_value a, ls_jinja_value b)
{
    switch (op) {
    case LS_JINJA_EQ:
        return ls_jinja_equal(m, a, b, 0);
    case LS_JINJA_NE:
        return !ls_jinja_equal(m, a, b, 0);
    case LS_JINJA_IN:
        return ls_jinja_contains(m, b, a);
    case LS_JINJA_NOT_IN:
        return !ls_jinja_contains(m, b, a);
    default:
        break;
    }
    int order = ls_jinja_order(m, a, b, 0);
    /* NaN is neither below nor above nor equal. */
    if ((a.kind == LS_JINJA_FLOAT && isnan(a.u.f)) || (b.kind == LS_JINJA_FLOAT && isnan(b.u.f)))
        return false;
    return op == '<'           ? order < 0
           : op == '>'         ? order > 0
           : op == LS_JINJA_LE ? order <= 0
                               : order >= 0;
}

static ls_jinja_value compare(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value left = eval(m, f, n->kids[0]);

    for (int i = 1; i < n->n_kids && m->st == LS_OK; i++) {
        ls_jinja_value right = eval(m, f, n->kids[i]);
        if (m->st != LS_OK || !holds(m, n->ops[i - 1], left, right))
            return ls_jinja_bool(false);
        left = right;
    }
    return ls_jinja_bool(true);
}

/* --- calls ------------------------------------------------------------------------------------
 */

static ls_jinja_value *eval_all(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value *values = ls_jinja_alloc(m, (size_t)n->n_kids * sizeof *values);

    for (int i = 0; values && i < n->n_kids && m->st == LS_OK; i++)
        values[i] = eval(m, f, n->kids[i]);
    return values;
}

bool ls_jinja_bind(ls_jinja_machine *m, const ls_jinja_row *row, const ls_jinja_value *args,
                   const char *const *names, int n, ls_jinja_value *bound_out)
{
    for (int i = 0; i < LS_JINJA_ARGS; i++)
        bound_out[i] = absent;
    for (int i = 0; i < n; i++) {
        int place = names && names[i] ? -1 : i;
        for (int k = 0; place < 0 && k < row->most; k++)
            if (row->params[k] && strcmp(row->params[k], names[i]) == 0)
                place = k;
        if (place < 0)
            ls_jinja_fail(m, "\"%s\" has no argument \"%.80s\"", row->name, names[i]);
        else if (place >= row->most)
            ls_jinja_fail(m, "\"%s\" has too many arguments", row->name);
        else
            bound_out[place] = args[i];
        if (m->st != LS_OK)
            return false;
    }
    for (int i = 0; i < row->least; i++)
        if (bound_out[i].kind == LS_JINJA_ABSENT)
            ls_jinja_fail(m, "\"%s\" needs an argument \"%s\"", row->name, row->params[i]);
    return m->st == LS_OK;
}

/* Run statements with their output caught. */
static ls_jinja_value capture(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *body)
{
    ls_str *outer = m->out, text;

    ls_str_init(&text);
    m->out = &text;
    m->captures++;
    run(m, f, body);
    m->captures--;
    m->out = outer;
    return ls_jinja_take(m, &text);
}

/* Arguments of a macro into its frame. */
static void bind_macro(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *macro,
                       const ls_jinja_value *args, const char *const *names, int n)
{
    for (int p = 0; p < macro->n_names && m->st == LS_OK; p++) {
        ls_jinja_value value = absent;
        for (int i = 0; i < n; i++)
            if (names && names[i] ? strcmp(names[i], macro->names[p]) == 0 : i == p)
                value = args[i];
        if (value.kind == LS_JINJA_ABSENT)
            value =
                macro->kids[p] ? eval(m, f, macro->kids[p]) : ls_jinja_undefined(macro->names[p]);
        assign(m, f, macro->names[p], value);
    }
    for (int i = 0; i < n && m->st == LS_OK; i++) {
        bool known = names && names[i] ? strcmp(names[i], "caller") == 0 : i < macro->n_names;
        for (int p = 0; names && names[i] && p < macro->n_names; p++)
            known |= strcmp(names[i], macro->names[p]) == 0;
        if (!known)
            ls_jinja_fail(m, "macro \"%.80s\" takes %d arguments, none more or of another name",
                          macro->name, macro->n_names);
        if (names && names[i] && strcmp(names[i], "caller") == 0)
            assign(m, f, "caller", args[i]);
    }
}

static ls_jinja_value call_macro(ls_jinja_machine *m, const ls_jinja_callable *call,
                                 const ls_jinja_value *args, const char *const *names, int n)
{
    ls_jinja_frame *f = new_frame(m, call->home);
    ls_jinja_value v = absent;

    if (!f)
        return absent;
    if (++m->calls > LS_JINJA_CALLS)
        return ls_jinja_fail(m, "macros call each other more than %d deep", LS_JINJA_CALLS);
    bind_macro(m, f, call->macro, args, names, n);
    if (m->st == LS_OK)
        v = capture(m, f, call->macro->body);
    m->calls--;
    return v;
}

static ls_jinja_value call_value(ls_jinja_machine *m, ls_jinja_value target,
                                 const ls_jinja_value *args, const char *const *names, int n)
{
    ls_jinja_value bound[LS_JINJA_ARGS];

    if (m->st != LS_OK)
        return absent;
    if (target.kind == LS_JINJA_UNDEFINED)
        return ls_jinja_fail(m, "\"%.80s\" is undefined", target.u.missing);
    if (target.kind != LS_JINJA_CALLABLE)
        return ls_jinja_fail(m, "%s cannot be called", ls_jinja_kind_name(target.kind));
    const ls_jinja_callable *call = target.u.call;
    if (call->macro)
        return call_macro(m, call, args, names, n);
    if (call->function)
        return call->function->run(m, args, names, n);
    if (!ls_jinja_bind(m, call->method, args, names, n, bound))
        return absent;
    return call->method->run(m, call->self, bound);
}

static ls_jinja_value eval_call(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value target = eval(m, f, n->a);
    ls_jinja_value *args = m->st == LS_OK ? eval_all(m, f, n) : NULL;

    m->line = n->line;
    return args ? call_value(m, target, args, n->names, n->n_kids) : absent;
}

/* A filter or test over a value that is already there. */
static ls_jinja_value apply(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n,
                            ls_jinja_value self)
{
    ls_jinja_value bound[LS_JINJA_ARGS];
    ls_jinja_value *args = m->st == LS_OK ? eval_all(m, f, n) : NULL;

    m->line = n->line;
    if (!args || !ls_jinja_bind(m, n->row, args, n->names, n->n_kids, bound))
        return absent;
    return n->row->run(m, self, bound);
}

/* A chain of filters whose innermost has no operand: of a block's text. */
static ls_jinja_value apply_chain(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n,
                                  ls_jinja_value text)
{
    if (!n || m->st != LS_OK)
        return text;
    if (sink(m))
        text = apply_chain(m, f, n->a, text);
    m->depth--;
    return m->st == LS_OK ? apply(m, f, n, text) : text;
}

/* --- expressions ------------------------------------------------------------------------------
 */

static ls_jinja_value eval_items(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value *items = eval_all(m, f, n);
    ls_jinja_value v;

    if (n->type == LS_JINJA_ITEMS) {
        v = ls_jinja_list(items, items ? n->n_kids : 0);
        v.tuple = n->constant.tuple;
        return v;
    }
    v = ls_jinja_new_dict(m);
    for (int i = 0; items && i + 1 < n->n_kids && m->st == LS_OK; i += 2)
        ls_jinja_dict_put(m, v.u.dict, items[i], items[i + 1]);
    return v;
}

static ls_jinja_value eval_slice(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value a = eval(m, f, n->a);
    ls_jinja_value bounds[3] = {n->b ? eval(m, f, n->b) : absent, n->c ? eval(m, f, n->c) : absent,
                                n->d ? eval(m, f, n->d) : absent};

    return m->st == LS_OK ? ls_jinja_slice(m, a, bounds) : absent;
}

static ls_jinja_value eval_sign(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value a = eval(m, f, n->a);

    if (m->st != LS_OK)
        return absent;
    if (a.kind == LS_JINJA_FLOAT)
        return n->type == LS_JINJA_PLUS ? a : ls_jinja_float(-a.u.f);
    if (!ls_jinja_is_whole(a))
        return ls_jinja_fail(m, "%s has no sign", ls_jinja_kind_name(a.kind));
    return whole_arithmetic(m, n->type == LS_JINJA_PLUS ? '+' : '-', 0, ls_jinja_whole(a));
}

static ls_jinja_value eval_pair(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value a = eval(m, f, n->a), b = m->st == LS_OK ? eval(m, f, n->b) : absent;

    m->line = n->line;
    if (m->st != LS_OK)
        return absent;
    if (n->type == LS_JINJA_ITEM)
        return ls_jinja_item(m, a, b);
    if (n->type == LS_JINJA_ARITHMETIC)
        return arithmetic(m, n->op, a, b);
    a = ls_jinja_to_str(m, a);
    b = ls_jinja_to_str(m, b);
    return m->st == LS_OK ? join(m, a, b) : absent;
}

static ls_jinja_value eval_node(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value a;

    switch (n->type) {
    case LS_JINJA_CONST:
        return n->constant;
    case LS_JINJA_NAME:
        return look_up(m, f, n->name);
    case LS_JINJA_ITEMS:
    case LS_JINJA_PAIRS:
        return eval_items(m, f, n);
    case LS_JINJA_ATTR:
        a = eval(m, f, n->a);
        return m->st == LS_OK ? ls_jinja_attribute(m, a, n->name) : absent;
    case LS_JINJA_ITEM:
    case LS_JINJA_ARITHMETIC:
    case LS_JINJA_CONCAT:
        return eval_pair(m, f, n);
    case LS_JINJA_SLICE:
        return eval_slice(m, f, n);
    case LS_JINJA_CALL:
        return eval_call(m, f, n);
    case LS_JINJA_FILTER:
    case LS_JINJA_TEST:
        a = eval(m, f, n->a);
        return m->st == LS_OK ? apply(m, f, n, a) : absent;
    case LS_JINJA_NOT:
        return ls_jinja_bool(!ls_jinja_truth(eval(m, f, n->a)));
    case LS_JINJA_NEGATE:
    case LS_JINJA_PLUS:
        return eval_sign(m, f, n);
    case LS_JINJA_COMPARE:
        return compare(m, f, n);
    case LS_JINJA_AND:
    case LS_JINJA_OR:
        a = eval(m, f, n->a);
        return ls_jinja_truth(a) == (n->type == LS_JINJA_OR) ? a : eval(m, f, n->b);
    case LS_JINJA_IF_ELSE:
        if (ls_jinja_truth(eval(m, f, n->a)))
            return eval(m, f, n->b);
        return n->c ? eval(m, f, n->c) : ls_jinja_undefined("an if without else");
    default:
        LS_BUG_IF(true, "node %d is no expression", (int)n->type);
    }
    return absent;
}

static ls_jinja_value eval(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value v = absent;

    m->line = n->line;
    if (sink(m) && ls_jinja_charge(m, 1))
        v = eval_node(m, f, n);
    m->depth--;
    return v;
}

/* --- statements -------------------------------------------------------------------------------
 */

static void unpack(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n,
                   ls_jinja_value value)
{
    if (n->n_names == 1) {
        assign(m, f, n->names[0], value);
        return;
    }
    value = ls_jinja_iterate(m, value);
    if (m->st == LS_OK && value.u.list.count != n->n_names)
        ls_jinja_fail(m, "%lld values cannot be given to %d names", (long long)value.u.list.count,
                      n->n_names);
    for (int i = 0; i < n->n_names && m->st == LS_OK; i++)
        assign(m, f, n->names[i], value.u.list.items[i]);
}

static void run_set(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n,
                    ls_jinja_value value)
{
    if (m->st != LS_OK)
        return;
    if (!n->name) {
        unpack(m, f, n, value);
        return;
    }
    ls_jinja_value space = look_up(m, f, n->name);
    if (space.kind != LS_JINJA_SPACE)
        ls_jinja_fail(m, "\"%.80s\" is not a namespace, so \"%.80s\" in it cannot be set", n->name,
                      n->names[0]);
    else
        ls_jinja_dict_put(m, space.u.dict, ls_jinja_view(n->names[0], strlen(n->names[0])), value);
}

/* The items of a loop that pass its condition. */
static ls_jinja_value pick(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n,
                           ls_jinja_value all)
{
    ls_jinja_value *items = ls_jinja_alloc(m, (size_t)all.u.list.count * sizeof *items);
    int64_t count = 0;

    for (int64_t i = 0; items && i < all.u.list.count && m->st == LS_OK; i++) {
        ls_jinja_frame *inner = new_frame(m, f);
        if (!inner)
            break;
        unpack(m, inner, n, all.u.list.items[i]);
        if (m->st == LS_OK && ls_jinja_truth(eval(m, inner, n->b)))
            items[count++] = all.u.list.items[i];
    }
    return ls_jinja_list(items, count);
}

/* The body of a loop for one item, noted where the item is one of those that are followed. */
static void run_turn(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n,
                     ls_jinja_value item)
{
    ls_jinja_item_spans *spans = m->args->item_spans;
    size_t begin = m->out->len;

    if (!spans || m->captures || m->in_item || item.kind != LS_JINJA_DICT || !item.u.dict->item) {
        run(m, f, n->body);
        return;
    }
    m->in_item = true;
    run(m, f, n->body);
    m->in_item = false;
    if (m->st != LS_OK || m->out->len == begin)
        return;
    ls_jinja_item_span *items = ls_mem_one_more(spans->items, (size_t)spans->count, sizeof *items);
    if (!items) {
        m->st = LS_ENOMEM;
        return;
    }
    spans->items = items;
    items[spans->count++] = (ls_jinja_item_span){{begin, m->out->len}, item.u.dict->item - 1};
}

static void run_for(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value all = eval(m, f, n->a);

    if (m->st == LS_OK)
        all = ls_jinja_iterate(m, all);
    if (m->st == LS_OK && n->b)
        all = pick(m, f, n, all);
    if (m->st != LS_OK)
        return;
    ls_jinja_loop *loop = ls_jinja_alloc(m, sizeof *loop);
    if (!loop)
        return;
    *loop = (ls_jinja_loop){all.u.list.items, 0, all.u.list.count, m->loops++};
    for (; loop->index < loop->count && m->st == LS_OK; loop->index++) {
        ls_jinja_frame *inner = ls_jinja_charge(m, 1) ? new_frame(m, f) : NULL;
        if (!inner)
            break;
        unpack(m, inner, n, loop->items[loop->index]);
        assign(m, inner, "loop", (ls_jinja_value){.kind = LS_JINJA_LOOP, .u.loop = loop});
        run_turn(m, inner, n, loop->items[loop->index]);
        ls_jinja_type jump = m->jump;
        m->jump = LS_JINJA_NODE_TEXT;
        if (jump == LS_JINJA_BREAK)
            break;
    }
    m->loops--;
    if (loop->count == 0)
        run(m, f, n->orelse);
}

static ls_jinja_value make_macro(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_callable *call = ls_jinja_alloc(m, sizeof *call);

    if (!call)
        return absent;
    call->macro = n;
    call->home = f;
    return (ls_jinja_value){.kind = LS_JINJA_CALLABLE, .u.call = call};
}

/* The call of a call block, with its body as one more argument. */
static ls_jinja_value call_with(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value target = eval(m, f, n->a->a);
    int count = n->a->n_kids;
    ls_jinja_value *args = ls_jinja_alloc(m, ((size_t)count + 1) * sizeof *args);
    const char **names = ls_jinja_alloc(m, ((size_t)count + 1) * sizeof *names);

    for (int i = 0; args && names && i < count && m->st == LS_OK; i++) {
        args[i] = eval(m, f, n->a->kids[i]);
        names[i] = n->a->names[i];
    }
    if (!args || !names || m->st != LS_OK)
        return absent;
    args[count] = make_macro(m, f, n);
    names[count] = "caller";
    return call_value(m, target, args, names, count + 1);
}

static void run_generation(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_spans *spans = m->args->spans;
    size_t begin = m->out->len;
    int outside = spans ? spans->count : 0;
    ls_jinja_frame *inner = new_frame(m, f);

    if (!inner)
        return;
    run(m, inner, n->body);
    if (!spans || m->captures || m->st != LS_OK || m->out->len == begin)
        return;
    spans->count = outside; /* blocks inside are part of this one */
    m->st = ls_jinja_spans_add(spans, (ls_jinja_span){begin, m->out->len});
}

static void run_with(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_frame *inner = new_frame(m, f);

    for (int i = 0; inner && i < n->n_kids && m->st == LS_OK; i++)
        assign(m, inner, n->names[i], eval(m, f, n->kids[i]));
    if (inner)
        run(m, inner, n->body);
}

/* The statements that catch their body's text. */
static void run_captured(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_frame *inner = new_frame(m, f);
    ls_jinja_value text = inner ? capture(m, inner, n->body) : absent;

    text = apply_chain(m, f, n->a, text);
    if (m->st != LS_OK)
        return;
    if (n->type == LS_JINJA_SET_TO)
        run_set(m, f, n, text);
    else
        ls_jinja_write(m, text, m->out);
}

static void run_one(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    ls_jinja_value v;

    switch (n->type) {
    case LS_JINJA_NODE_TEXT:
        ls_jinja_write(m, n->constant, m->out);
        break;
    case LS_JINJA_PRINT:
        v = eval(m, f, n->a);
        ls_jinja_write(m, v, m->out);
        break;
    case LS_JINJA_IF:
        v = eval(m, f, n->a);
        run(m, f, ls_jinja_truth(v) ? n->body : n->orelse);
        break;
    case LS_JINJA_FOR:
        run_for(m, f, n);
        break;
    case LS_JINJA_SET:
        v = eval(m, f, n->a);
        run_set(m, f, n, v);
        break;
    case LS_JINJA_SET_TO:
    case LS_JINJA_FILTERED:
        run_captured(m, f, n);
        break;
    case LS_JINJA_MACRO:
        assign(m, f, n->name, make_macro(m, f, n));
        break;
    case LS_JINJA_CALL_WITH:
        v = call_with(m, f, n);
        ls_jinja_write(m, v, m->out);
        break;
    case LS_JINJA_WITH:
        run_with(m, f, n);
        break;
    case LS_JINJA_GENERATION:
        run_generation(m, f, n);
        break;
    case LS_JINJA_BREAK:
    case LS_JINJA_CONTINUE:
        m->jump = n->type;
        break;
    default:
        LS_BUG_IF(true, "node %d is no statement", (int)n->type);
    }
}

static void run(ls_jinja_machine *m, ls_jinja_frame *f, const ls_jinja_node *n)
{
    for (; n && m->st == LS_OK && m->jump == LS_JINJA_NODE_TEXT; n = n->next) {
        m->line = n->line;
        if (!ls_jinja_charge(m, 1))
            break;
        if (sink(m))
            run_one(m, f, n);
        m->depth--;
        if (m->out->failed && m->st == LS_OK)
            m->st = LS_ENOMEM;
    }
}

/* Number the objects of the list whose items are followed. */
static void follow_items(const ls_jinja_machine *m, const ls_jinja_frame *root)
{
    const char *list = m->args->list;

    for (int i = 0; list && i < root->count; i++)
        if (strcmp(root->names[i], list) == 0 && root->values[i].kind == LS_JINJA_LIST)
            for (int64_t k = 0; k < root->values[i].u.list.count; k++)
                if (root->values[i].u.list.items[k].kind == LS_JINJA_DICT)
                    root->values[i].u.list.items[k].u.dict->item = k + 1;
}

ls_status ls_jinja_render(const ls_jinja *tpl, const ls_jinja_args *args, ls_str *out)
{
    ls_jinja_machine m = {.tpl = tpl,
                          .args = args,
                          .steps_left = args->steps ? args->steps : LS_JINJA_STEPS,
                          .memory_left = LS_JINJA_MEMORY,
                          .line = 1,
                          .jump = LS_JINJA_NODE_TEXT,
                          .out = out};

    ls_arena_init(&m.arena);
    if (args->spans)
        args->spans->count = 0;
    if (args->item_spans)
        args->item_spans->count = 0;
    ls_jinja_frame *root = new_frame(&m, NULL);
    ls_jinja_value context = root ? ls_jinja_from_json(&m, args->context, 0) : absent;
    if (m.st == LS_OK && context.kind == LS_JINJA_DICT) {
        for (int64_t i = 0; i < context.u.dict->count && m.st == LS_OK; i++)
            assign(&m, root, context.u.dict->keys[i].u.s.p, context.u.dict->values[i]);
        follow_items(&m, root);
        run(&m, root, tpl->body);
    }
    if (m.st == LS_OK)
        m.st = ls_str_status(out);
    ls_arena_release(&m.arena);
    return m.st;
}

void ls_jinja_spans_init(ls_jinja_spans *spans)
{
    *spans = (ls_jinja_spans){.items = NULL};
}

ls_status ls_jinja_spans_add(ls_jinja_spans *spans, ls_jinja_span span)
{
    ls_jinja_span *items = ls_mem_one_more(spans->items, (size_t)spans->count, sizeof *items);

    if (!items)
        return LS_ENOMEM;
    spans->items = items;
    spans->items[spans->count++] = span;
    return LS_OK;
}

void ls_jinja_spans_release(ls_jinja_spans *spans)
{
    ls_mem_free(spans->items);
    ls_jinja_spans_init(spans);
}
