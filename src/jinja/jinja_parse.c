/* jinja_parse.c -- tokens to a tree of nodes, by recursive descent.
 *
 * The grammar is Jinja's, in its order of binding, weakest first:
 *   a if c else b;  or;  and;  not;  == != < <= > >= in;  + -;  ~;  * / // %;  **;  - x;
 *   .name [item] (call);  | filter, is test
 * Names of filters, tests and methods are looked up here, so that a template which cannot work is
 * refused before the first conversation. Nesting is limited, because each level is a call in C. */
#include "jinja/jinja_impl.h"

#include "base/mem.h"

typedef struct parser {
    ls_jinja *tpl;
    const ls_jinja_token *t; /* the current token */
    int depth;
    int loops;
    ls_status st; /* sticky; the functions then return NULL */
} parser;

typedef struct node_list {
    ls_jinja_node **items;
    const char **names;
    int count, cap;
} node_list;

static ls_jinja_node *expression(parser *x);
static ls_jinja_node *statements(parser *x, const char *const *ends);

static void fail(parser *x, int line, const char *fmt, ...) LS_PRINTF(3, 4);
static void fail(parser *x, int line, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    if (x->st != LS_OK)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    x->st = ls_fail(LS_EDATA, "%s line %d: %s", x->tpl->name, line, text);
}

static void *take(parser *x, size_t bytes)
{
    void *p = x->st == LS_OK ? ls_arena_alloc(&x->tpl->arena, bytes) : NULL;

    if (!p && x->st == LS_OK)
        x->st = LS_ENOMEM;
    return p;
}

static ls_jinja_node *make(parser *x, ls_jinja_type type, int line)
{
    ls_jinja_node *n = take(x, sizeof *n);

    if (n) {
        n->type = type;
        n->line = line;
    }
    return n;
}

/* One operator over one or two operands. */
static ls_jinja_node *make_over(parser *x, ls_jinja_type type, int line, ls_jinja_node *a,
                                ls_jinja_node *b)
{
    ls_jinja_node *n = make(x, type, line);

    if (n) {
        n->a = a;
        n->b = b;
    }
    return n;
}

static void list_add(parser *x, node_list *list, ls_jinja_node *node, const char *name)
{
    if (list->count == list->cap) {
        int cap = list->cap ? 2 * list->cap : 8;
        ls_jinja_node **items = take(x, (size_t)cap * sizeof *items);
        const char **names = take(x, (size_t)cap * sizeof *names);
        if (!items || !names)
            return;
        for (int i = 0; i < list->count; i++) {
            items[i] = list->items[i];
            names[i] = list->names[i];
        }
        *list = (node_list){items, names, list->count, cap};
    }
    list->items[list->count] = node;
    list->names[list->count++] = name;
}

static void take_list(ls_jinja_node *n, const node_list *list)
{
    if (!n)
        return;
    n->kids = list->items;
    n->names = list->names;
    n->n_kids = n->n_names = list->count;
}

/* --- tokens -----------------------------------------------------------------------------------
 */

static void describe(const ls_jinja_token *t, char *out, size_t cap)
{
    static const struct {
        int type;
        const char *text;
    } names[] = {{LS_JINJA_END, "the end of the template"},
                 {LS_JINJA_DATA, "text"},
                 {LS_JINJA_BLOCK_BEGIN, "\"{%\""},
                 {LS_JINJA_BLOCK_END, "\"%}\""},
                 {LS_JINJA_PRINT_BEGIN, "\"{{\""},
                 {LS_JINJA_PRINT_END, "\"}}\""},
                 {LS_JINJA_STRING, "a string"},
                 {LS_JINJA_WHOLE, "a number"},
                 {LS_JINJA_REAL, "a number"}};

    for (size_t i = 0; i < LS_COUNT(names); i++)
        if (names[i].type == t->type) {
            snprintf(out, cap, "%s", names[i].text);
            return;
        }
    if (t->type == LS_JINJA_WORD)
        snprintf(out, cap, "\"%.40s\"", t->p);
    else if (t->type < 256)
        snprintf(out, cap, "\"%c\"", t->type);
    else
        snprintf(out, cap, "an operator");
}

static void unexpected(parser *x, const char *wanted)
{
    char found[64];

    describe(x->t, found, sizeof found);
    fail(x, x->t->line, "%s is expected, not %s", wanted, found);
}

static bool is_word(const ls_jinja_token *t, const char *word)
{
    return t->type == LS_JINJA_WORD && strcmp(t->p, word) == 0;
}

static bool skip(parser *x, int type)
{
    if (x->st != LS_OK || x->t->type != type)
        return false;
    x->t++;
    return true;
}

static bool skip_word(parser *x, const char *word)
{
    if (x->st != LS_OK || !is_word(x->t, word))
        return false;
    x->t++;
    return true;
}

static void expect(parser *x, int type, const char *wanted)
{
    if (!skip(x, type))
        unexpected(x, wanted);
}

static const char *expect_name(parser *x, const char *wanted)
{
    const ls_jinja_token *t = x->t;

    if (!skip(x, LS_JINJA_WORD)) {
        unexpected(x, wanted);
        return "";
    }
    return t->p;
}

static bool enter(parser *x)
{
    if (++x->depth > LS_JINJA_NESTING)
        fail(x, x->t->line, "expressions or blocks are nested too deeply");
    return x->st == LS_OK;
}

/* --- expressions ------------------------------------------------------------------------------
 */

/* ( a, b, name=c ): the opening bracket is the current token. */
static void arguments(parser *x, node_list *list)
{
    bool named = false;

    expect(x, '(', "\"(\"");
    while (x->st == LS_OK && !skip(x, ')')) {
        if (list->count) {
            expect(x, ',', "\",\" or \")\"");
            if (skip(x, ')'))
                break;
        }
        if (x->t->type == '*' || x->t->type == LS_JINJA_POW) {
            fail(x, x->t->line, "\"*\" before an argument is not supported");
            break;
        }
        const char *name = NULL;
        if (x->t->type == LS_JINJA_WORD && x->t[1].type == '=') {
            name = x->t->p;
            named = true;
            x->t += 2;
        } else if (named) {
            fail(x, x->t->line, "an argument without a name follows one with a name");
        }
        list_add(x, list, expression(x), name);
    }
}

/* a, b, c or only a; empty only where brackets allow it. */
static ls_jinja_node *tuple(parser *x, bool bracketed)
{
    node_list list = {0};
    int line = x->t->line;
    bool comma = false;

    if (bracketed && x->t->type == ')') {
        comma = true;
    } else {
        list_add(x, &list, expression(x), NULL);
        while (skip(x, ',')) {
            comma = true;
            int type = x->t->type;
            if (type == ')' || type == LS_JINJA_PRINT_END || type == LS_JINJA_BLOCK_END)
                break;
            list_add(x, &list, expression(x), NULL);
        }
    }
    if (!comma)
        return x->st == LS_OK ? list.items[0] : NULL;
    ls_jinja_node *n = make(x, LS_JINJA_ITEMS, line);
    take_list(n, &list);
    if (n)
        n->constant.tuple = true;
    return n;
}

static ls_jinja_node *list_or_dict(parser *x, bool dict)
{
    node_list list = {0};
    int line = x->t->line, close = dict ? '}' : ']';

    x->t++;
    while (x->st == LS_OK && !skip(x, close)) {
        if (list.count) {
            expect(x, ',', "\",\"");
            if (skip(x, close))
                break;
        }
        list_add(x, &list, expression(x), NULL);
        if (dict) {
            expect(x, ':', "\":\"");
            list_add(x, &list, expression(x), NULL);
        }
    }
    ls_jinja_node *n = make(x, dict ? LS_JINJA_PAIRS : LS_JINJA_ITEMS, line);
    take_list(n, &list);
    return n;
}

static ls_jinja_node *constant(parser *x, ls_jinja_value value)
{
    ls_jinja_node *n = make(x, LS_JINJA_CONST, x->t->line);

    if (n)
        n->constant = value;
    x->t++;
    return n;
}

/* Strings side by side are one. */
static ls_jinja_node *string(parser *x)
{
    ls_jinja_node *n = constant(x, ls_jinja_view(x->t->p, x->t->len));

    while (n && x->t->type == LS_JINJA_STRING) {
        size_t len = n->constant.u.s.len + x->t->len;
        char *both = take(x, len + 1);
        if (!both)
            return NULL;
        memcpy(both, n->constant.u.s.p, n->constant.u.s.len);
        memcpy(both + n->constant.u.s.len, x->t->p, x->t->len);
        n->constant = ls_jinja_view(both, len);
        x->t++;
    }
    return n;
}

static ls_jinja_node *word(parser *x)
{
    const char *name = x->t->p;

    if (strcmp(name, "true") == 0 || strcmp(name, "True") == 0)
        return constant(x, ls_jinja_bool(true));
    if (strcmp(name, "false") == 0 || strcmp(name, "False") == 0)
        return constant(x, ls_jinja_bool(false));
    if (strcmp(name, "none") == 0 || strcmp(name, "None") == 0)
        return constant(x, ls_jinja_none());
    ls_jinja_node *n = make(x, LS_JINJA_NAME, x->t->line);
    if (n)
        n->name = name;
    x->t++;
    return n;
}

static ls_jinja_node *primary(parser *x)
{
    ls_jinja_node *n = NULL;

    if (x->st != LS_OK)
        return NULL;
    switch (x->t->type) {
    case LS_JINJA_WORD:
        return word(x);
    case LS_JINJA_STRING:
        return string(x);
    case LS_JINJA_WHOLE:
        return constant(x, ls_jinja_int(x->t->whole));
    case LS_JINJA_REAL:
        return constant(x, ls_jinja_float(x->t->real));
    case '(':
        x->t++;
        n = tuple(x, true);
        expect(x, ')', "\")\"");
        return n;
    case '[':
        return list_or_dict(x, false);
    case '{':
        return list_or_dict(x, true);
    default:
        unexpected(x, "an expression");
        return NULL;
    }
}

/* What stands in square brackets behind a. */
static ls_jinja_node *subscript(parser *x, ls_jinja_node *a)
{
    ls_jinja_node *parts[3] = {NULL, NULL, NULL};
    int line = x->t->line, part = 0;

    x->t++;
    while (x->st == LS_OK && x->t->type != ']') {
        if (x->t->type == ':' && part < 2) {
            x->t++;
            part++;
        } else if (parts[part]) {
            unexpected(x, "\"]\"");
        } else {
            parts[part] = expression(x);
        }
    }
    expect(x, ']', "\"]\"");
    if (part == 0 && !parts[0])
        fail(x, line, "there is nothing between the square brackets");
    ls_jinja_node *n = make_over(x, part ? LS_JINJA_SLICE : LS_JINJA_ITEM, line, a, parts[0]);
    if (n && part) {
        n->c = parts[1];
        n->d = parts[2];
    }
    return n;
}

static ls_jinja_node *call(parser *x, ls_jinja_node *a)
{
    node_list list = {0};
    int line = x->t->line;

    if (a && a->type == LS_JINJA_ATTR && !ls_jinja_find_method(a->name, LS_JINJA_ABSENT))
        fail(x, line, "method \"%s\" is not supported", a->name);
    arguments(x, &list);
    ls_jinja_node *n = make_over(x, LS_JINJA_CALL, line, a, NULL);
    take_list(n, &list);
    return n;
}

static ls_jinja_node *postfix(parser *x, ls_jinja_node *n)
{
    while (x->st == LS_OK) {
        if (x->t->type == '.') {
            const ls_jinja_token *name = ++x->t;
            if (skip(x, LS_JINJA_WHOLE)) {
                n = make_over(x, LS_JINJA_ITEM, name->line, n, make(x, LS_JINJA_CONST, name->line));
                if (n)
                    n->b->constant = ls_jinja_int(name->whole);
                continue;
            }
            n = make_over(x, LS_JINJA_ATTR, name->line, n, NULL);
            const char *text = expect_name(x, "a name");
            if (n)
                n->name = text;
        } else if (x->t->type == '[') {
            n = subscript(x, n);
        } else if (x->t->type == '(') {
            n = call(x, n);
        } else {
            break;
        }
    }
    return n;
}

/* Filters and tests named by a string argument are looked up now too: map('upper'). */
static void check_inner(parser *x, const ls_jinja_node *n)
{
    static const struct {
        const char *outer;
        int place;
        bool filter;
    } rows[] = {{"map", 0, true},
                {"select", 0, false},
                {"reject", 0, false},
                {"selectattr", 1, false},
                {"rejectattr", 1, false}};

    for (size_t i = 0; n && i < LS_COUNT(rows); i++) {
        int place = rows[i].place;
        if (strcmp(n->row->name, rows[i].outer) != 0 || place >= n->n_kids || n->names[place] ||
            n->kids[place]->type != LS_JINJA_CONST || n->kids[place]->constant.kind != LS_JINJA_STR)
            continue;
        const char *name = n->kids[place]->constant.u.s.p;
        if (rows[i].filter ? !ls_jinja_find_filter(name) : !ls_jinja_find_test(name))
            fail(x, n->line, "%s \"%s\" is not supported", rows[i].filter ? "filter" : "test",
                 name);
    }
}

/* The name and arguments of a filter; the bar was skipped. */
static ls_jinja_node *filter(parser *x, ls_jinja_node *a)
{
    node_list list = {0};
    int line = x->t->line;
    const char *name = expect_name(x, "the name of a filter");
    const ls_jinja_row *row = ls_jinja_find_filter(name);

    if (!row)
        fail(x, line, "filter \"%s\" is not supported", name);
    if (x->st == LS_OK && x->t->type == '(')
        arguments(x, &list);
    ls_jinja_node *n = make_over(x, LS_JINJA_FILTER, line, a, NULL);
    take_list(n, &list);
    if (n)
        n->row = row;
    check_inner(x, n);
    return n;
}

static bool begins_argument(const ls_jinja_token *t)
{
    return t->type == LS_JINJA_STRING || t->type == LS_JINJA_WHOLE || t->type == LS_JINJA_REAL ||
           t->type == '[' || t->type == '{' ||
           (t->type == LS_JINJA_WORD && !is_word(t, "else") && !is_word(t, "or") &&
            !is_word(t, "and"));
}

static ls_jinja_node *test(parser *x, ls_jinja_node *a)
{
    node_list list = {0};
    int line = x->t->line;
    bool negated = skip_word(x, "not");
    const char *name = expect_name(x, "the name of a test");
    const ls_jinja_row *row = ls_jinja_find_test(name);

    if (!row)
        fail(x, line, "test \"%s\" is not supported", name);
    if (x->st == LS_OK && x->t->type == '(') {
        arguments(x, &list);
    } else if (x->st == LS_OK && begins_argument(x->t)) {
        if (is_word(x->t, "is"))
            fail(x, line, "two tests cannot follow each other");
        list_add(x, &list, postfix(x, primary(x)), NULL);
    }
    ls_jinja_node *n = make_over(x, LS_JINJA_TEST, line, a, NULL);
    take_list(n, &list);
    if (n)
        n->row = row;
    return negated ? make_over(x, LS_JINJA_NOT, line, n, NULL) : n;
}

static ls_jinja_node *unary(parser *x, bool filters)
{
    ls_jinja_node *n = NULL;
    int type = x->t->type, line = x->t->line;

    if (!enter(x))
        return NULL;
    if (type == '-' || type == '+') {
        x->t++;
        n = make_over(x, type == '-' ? LS_JINJA_NEGATE : LS_JINJA_PLUS, line, unary(x, false),
                      NULL);
    } else {
        n = primary(x);
    }
    n = postfix(x, n);
    while (filters && x->st == LS_OK) {
        if (skip(x, '|'))
            n = filter(x, n);
        else if (skip_word(x, "is"))
            n = test(x, n);
        else if (x->t->type == '(')
            n = call(x, n);
        else
            break;
    }
    x->depth--;
    return n;
}

/* Levels of binary operators that associate to the left, weakest first. */
static ls_jinja_node *binary(parser *x, int level)
{
    static const int ops[4][4] = {
        {'+', '-'}, {'~'}, {'*', '/', LS_JINJA_FLOORDIV, '%'}, {LS_JINJA_POW}};
    ls_jinja_node *n = level == 4 ? unary(x, true) : binary(x, level + 1);

    while (level < 4 && x->st == LS_OK) {
        int type = x->t->type, line = x->t->line, found = 0;
        for (int i = 0; i < 4 && ops[level][i]; i++)
            found |= ops[level][i] == type;
        if (!found)
            break;
        x->t++;
        n = make_over(x, type == '~' ? LS_JINJA_CONCAT : LS_JINJA_ARITHMETIC, line, n,
                      binary(x, level + 1));
        if (n)
            n->op = type;
    }
    return n;
}

/* The operator of a comparison, skipped; 0: none. */
static int comparison(parser *x)
{
    int type = x->t->type;

    if (type == LS_JINJA_EQ || type == LS_JINJA_NE || type == LS_JINJA_LE || type == LS_JINJA_GE ||
        type == '<' || type == '>') {
        x->t++;
        return type;
    }
    if (skip_word(x, "in"))
        return LS_JINJA_IN;
    if (is_word(x->t, "not") && is_word(x->t + 1, "in")) {
        x->t += 2;
        return LS_JINJA_NOT_IN;
    }
    return 0;
}

static ls_jinja_node *compare(parser *x)
{
    node_list list = {0};
    int line = x->t->line, ops[LS_JINJA_NESTING], n_ops = 0, op;
    ls_jinja_node *n = binary(x, 0);

    while (x->st == LS_OK && (op = comparison(x))) {
        if (n_ops == 0)
            list_add(x, &list, n, NULL);
        if (n_ops == LS_JINJA_NESTING)
            fail(x, line, "too many comparisons in a row");
        else
            ops[n_ops++] = op;
        list_add(x, &list, binary(x, 0), NULL);
    }
    if (n_ops == 0 || x->st != LS_OK)
        return n;
    n = make(x, LS_JINJA_COMPARE, line);
    int *copy = take(x, (size_t)n_ops * sizeof *copy);
    if (!copy || !n)
        return NULL;
    memcpy(copy, ops, (size_t)n_ops * sizeof *copy);
    n->ops = copy;
    take_list(n, &list);
    return n;
}

static ls_jinja_node *negation(parser *x)
{
    int line = x->t->line;

    if (!is_word(x->t, "not"))
        return compare(x);
    x->t++;
    if (!enter(x))
        return NULL;
    ls_jinja_node *n = make_over(x, LS_JINJA_NOT, line, negation(x), NULL);
    x->depth--;
    return n;
}

static ls_jinja_node *both(parser *x)
{
    ls_jinja_node *n = negation(x);

    while (skip_word(x, "and"))
        n = make_over(x, LS_JINJA_AND, x->t->line, n, negation(x));
    return n;
}

static ls_jinja_node *either(parser *x)
{
    ls_jinja_node *n = both(x);

    while (skip_word(x, "or"))
        n = make_over(x, LS_JINJA_OR, x->t->line, n, both(x));
    return n;
}

static ls_jinja_node *expression(parser *x)
{
    ls_jinja_node *n = NULL;

    if (!enter(x))
        return NULL;
    n = either(x);
    while (x->st == LS_OK && skip_word(x, "if")) {
        ls_jinja_node *choice = make_over(x, LS_JINJA_IF_ELSE, x->t->line, either(x), n);
        if (skip_word(x, "else")) {
            ls_jinja_node *other = expression(x);
            if (choice)
                choice->c = other;
        }
        n = choice;
    }
    x->depth--;
    return n;
}

/* --- statements -------------------------------------------------------------------------------
 */

static const char *const end_if[] = {"elif", "else", "endif", NULL};
static const char *const end_else[] = {"endif", NULL};
static const char *const end_for[] = {"else", "endfor", NULL};
static const char *const end_for_else[] = {"endfor", NULL};
static const char *const end_set[] = {"endset", NULL};
static const char *const end_macro[] = {"endmacro", NULL};
static const char *const end_call[] = {"endcall", NULL};
static const char *const end_filter[] = {"endfilter", NULL};
static const char *const end_with[] = {"endwith", NULL};
static const char *const end_generation[] = {"endgeneration", NULL};

/* The end of the opening tag, the body, and the word that ends it. */
static ls_jinja_node *block(parser *x, const char *const *ends)
{
    expect(x, LS_JINJA_BLOCK_END, "\"%}\"");
    ls_jinja_node *body = statements(x, ends);
    if (x->st == LS_OK)
        x->t++;
    return body;
}

/* if or elif was skipped. */
static ls_jinja_node *if_block(parser *x)
{
    ls_jinja_node *n = make_over(x, LS_JINJA_IF, x->t->line, expression(x), NULL);

    if (!enter(x))
        return NULL;
    ls_jinja_node *body = block(x, end_if);
    if (!n || x->st != LS_OK)
        return NULL;
    n->body = body;
    if (is_word(x->t - 1, "elif"))
        n->orelse = if_block(x);
    else if (is_word(x->t - 1, "else"))
        n->orelse = block(x, end_else);
    x->depth--;
    return n;
}

/* a, b or (a, b) to be assigned. */
static void targets(parser *x, ls_jinja_node *n)
{
    node_list list = {0};
    bool bracket = skip(x, '(');

    do
        list_add(x, &list, NULL, expect_name(x, "a name"));
    while (skip(x, ',') && x->t->type == LS_JINJA_WORD && !is_word(x->t, "in"));
    if (bracket)
        expect(x, ')', "\")\"");
    take_list(n, &list);
}

static ls_jinja_node *for_block(parser *x)
{
    ls_jinja_node *n = make(x, LS_JINJA_FOR, x->t->line);

    if (!n)
        return NULL;
    targets(x, n);
    if (!skip_word(x, "in"))
        unexpected(x, "\"in\"");
    /* Not expression(): an "if" behind the list filters it. */
    n->a = either(x);
    if (x->st == LS_OK && x->t->type == ',')
        fail(x, x->t->line, "a list without brackets cannot be looped over");
    if (skip_word(x, "if"))
        n->b = expression(x);
    if (x->st == LS_OK && is_word(x->t, "recursive"))
        fail(x, x->t->line, "recursive loops are not supported");
    x->loops++;
    n->body = block(x, end_for);
    x->loops--;
    if (x->st == LS_OK && is_word(x->t - 1, "else"))
        n->orelse = block(x, end_for_else);
    return n;
}

static ls_jinja_node *set_block(parser *x)
{
    ls_jinja_node *n = make(x, LS_JINJA_SET, x->t->line);

    if (!n)
        return NULL;
    if (x->t->type == LS_JINJA_WORD && x->t[1].type == '.') {
        node_list list = {0};
        n->name = x->t->p;
        x->t += 2;
        list_add(x, &list, NULL, expect_name(x, "a name"));
        take_list(n, &list);
    } else {
        targets(x, n);
    }
    if (skip(x, '=')) {
        n->a = tuple(x, false);
        return n;
    }
    n->type = LS_JINJA_SET_TO;
    if (n->n_names != 1)
        fail(x, n->line, "a block can be assigned to one name only");
    while (skip(x, '|'))
        n->a = filter(x, n->a);
    n->body = block(x, end_set);
    return n;
}

/* ( a, b=1 ) of a macro. */
static void parameters(parser *x, ls_jinja_node *n)
{
    node_list list = {0};

    expect(x, '(', "\"(\"");
    while (x->st == LS_OK && !skip(x, ')')) {
        if (list.count) {
            expect(x, ',', "\",\" or \")\"");
            if (skip(x, ')'))
                break;
        }
        const char *name = expect_name(x, "the name of a parameter");
        ls_jinja_node *value = skip(x, '=') ? expression(x) : NULL;
        if (!value && list.count && list.items[list.count - 1])
            fail(x, x->t->line, "parameter \"%s\" has no value, but one before it has", name);
        list_add(x, &list, value, name);
    }
    take_list(n, &list);
}

static ls_jinja_node *macro_block(parser *x, bool caller)
{
    ls_jinja_node *n = make(x, caller ? LS_JINJA_CALL_WITH : LS_JINJA_MACRO, x->t->line);
    int loops = x->loops;

    if (!n)
        return NULL;
    if (!caller)
        n->name = expect_name(x, "the name of a macro");
    else
        n->name = "caller";
    if (!caller || x->t->type == '(')
        parameters(x, n);
    if (caller) {
        n->a = unary(x, true);
        if (x->st == LS_OK && n->a->type != LS_JINJA_CALL)
            fail(x, n->line, "a macro call is expected behind \"call\"");
    }
    x->loops = 0;
    n->body = block(x, caller ? end_call : end_macro);
    x->loops = loops;
    return n;
}

static ls_jinja_node *with_block(parser *x)
{
    ls_jinja_node *n = make(x, LS_JINJA_WITH, x->t->line);
    node_list list = {0};

    while (x->st == LS_OK && x->t->type != LS_JINJA_BLOCK_END) {
        if (list.count)
            expect(x, ',', "\",\"");
        const char *name = expect_name(x, "a name");
        expect(x, '=', "\"=\"");
        list_add(x, &list, expression(x), name);
    }
    take_list(n, &list);
    ls_jinja_node *body = block(x, end_with);
    if (n)
        n->body = body;
    return n;
}

static ls_jinja_node *other_block(parser *x, const char *name, int line)
{
    ls_jinja_node *n = NULL, *body = NULL;

    if (strcmp(name, "filter") == 0) {
        n = make(x, LS_JINJA_FILTERED, line);
        ls_jinja_node *filters = filter(x, NULL);
        while (skip(x, '|'))
            filters = filter(x, filters);
        body = block(x, end_filter);
        if (n)
            n->a = filters;
    } else if (strcmp(name, "generation") == 0) {
        n = make(x, LS_JINJA_GENERATION, line);
        body = block(x, end_generation);
        x->tpl->marks = true;
    } else if (strcmp(name, "break") == 0 || strcmp(name, "continue") == 0) {
        if (!x->loops)
            fail(x, line, "\"%s\" stands outside of a loop", name);
        n = make(x, name[0] == 'b' ? LS_JINJA_BREAK : LS_JINJA_CONTINUE, line);
    } else {
        fail(x, line, "block \"%s\" is not %s", name,
             strncmp(name, "end", 3) == 0 || strncmp(name, "el", 2) == 0 ? "open here"
                                                                         : "supported");
    }
    if (n)
        n->body = body;
    return n;
}

/* A block behind "{%", up to its "%}". */
static ls_jinja_node *statement(parser *x)
{
    ls_jinja_node *n = NULL;
    int line = x->t->line;
    const char *name = expect_name(x, "the name of a block");

    if (x->st != LS_OK || !enter(x))
        return NULL;
    if (strcmp(name, "if") == 0)
        n = if_block(x);
    else if (strcmp(name, "for") == 0)
        n = for_block(x);
    else if (strcmp(name, "set") == 0)
        n = set_block(x);
    else if (strcmp(name, "macro") == 0)
        n = macro_block(x, false);
    else if (strcmp(name, "call") == 0)
        n = macro_block(x, true);
    else if (strcmp(name, "with") == 0)
        n = with_block(x);
    else
        n = other_block(x, name, line);
    expect(x, LS_JINJA_BLOCK_END, "\"%}\"");
    x->depth--;
    return n;
}

static bool is_end(const ls_jinja_token *t, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (is_word(t, *ends))
            return true;
    return false;
}

/* Statements up to a block named in ends, which becomes the current token; NULL: to the end. */
static ls_jinja_node *statements(parser *x, const char *const *ends)
{
    ls_jinja_node *first = NULL, **last = &first, *n = NULL;
    int began = x->t->line;

    while (x->st == LS_OK) {
        int type = x->t->type, line = x->t->line;
        if (type == LS_JINJA_END) {
            if (ends)
                fail(x, began, "the block that begins here has no \"%s\"",
                     ends[1] && ends[2] ? ends[2]
                     : ends[1]          ? ends[1]
                                        : ends[0]);
            break;
        }
        if (type == LS_JINJA_DATA) {
            n = constant(x, ls_jinja_view(x->t->p, x->t->len));
            if (n)
                n->type = LS_JINJA_NODE_TEXT;
        } else if (type == LS_JINJA_PRINT_BEGIN) {
            x->t++;
            n = make_over(x, LS_JINJA_PRINT, line, tuple(x, false), NULL);
            expect(x, LS_JINJA_PRINT_END, "\"}}\"");
        } else {
            x->t++;
            if (is_end(x->t, ends))
                break;
            n = statement(x);
        }
        *last = n;
        if (n)
            last = &n->next;
    }
    return first;
}

static ls_status check_text(const char *text, size_t len, const char *name)
{
    if (len > LS_JINJA_TEXT)
        return ls_fail(LS_EDATA, "%s line 1: the template is longer than %d MiB", name,
                       LS_JINJA_TEXT >> 20);
    json_t *valid = json_stringn(text, len); /* NULL unless it is UTF-8 */
    if (!valid)
        return ls_fail(LS_EDATA, "%s line 1: the template is not UTF-8", name);
    json_decref(valid);
    return LS_OK;
}

ls_status ls_jinja_parse(ls_jinja **out, const char *text, size_t len, const char *name)
{
    ls_status st = check_text(text, len, name);
    ls_jinja_token *tokens = NULL;

    if (st != LS_OK)
        return st;
    ls_jinja *tpl = ls_mem_alloc(sizeof *tpl);
    if (!tpl)
        return LS_ENOMEM;
    ls_arena_init(&tpl->arena);
    tpl->name = ls_arena_strdup(&tpl->arena, name);
    if (!tpl->name) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, ls_jinja_lex(tpl, text, len, &tokens), out);
    parser x = {.tpl = tpl, .t = tokens};
    tpl->body = statements(&x, NULL);
    st = x.st;
    if (st == LS_OK)
        *out = tpl;
out:
    if (st != LS_OK)
        ls_jinja_free(tpl);
    return st;
}

void ls_jinja_free(ls_jinja *tpl)
{
    if (!tpl)
        return;
    ls_arena_release(&tpl->arena);
    ls_mem_free(tpl);
}

bool ls_jinja_marks(const ls_jinja *tpl)
{
    return tpl->marks;
}
