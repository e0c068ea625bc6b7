/* jinja_impl.h -- values, nodes and the machine of the template room.
 *
 * While rendering, everything lives in one arena that dies with the render, so values are copied
 * freely and nothing is counted. Values do not change once made, except namespaces. A failure is
 * sticky: the first one is kept in the machine's status, later calls return an absent value, and
 * whoever loops looks at the status. That keeps an expression evaluator readable. */
#pragma once
#include "jinja/jinja.h"
#include "base/arena.h"

enum {
    LS_JINJA_ARGS = 6,          /* most arguments of a filter, test or method */
    LS_JINJA_NESTING = 100,     /* of expressions and statements in a template */
    LS_JINJA_CALLS = 64,        /* of macros in one another */
    LS_JINJA_LEVELS = 1000,     /* of anything while rendering */
    LS_JINJA_DEEP = 300,        /* of lists and dicts in one another */
    LS_JINJA_RANGE = 100 * 1000 /* most numbers of a range() */
};

typedef enum ls_jinja_kind {
    LS_JINJA_ABSENT, /* an argument that was not given; no value of a template */
    LS_JINJA_UNDEFINED,
    LS_JINJA_NONE,
    LS_JINJA_BOOL,
    LS_JINJA_INT,
    LS_JINJA_FLOAT,
    LS_JINJA_LONG, /* a whole number beyond 64 bits: its digits in u.s, to be written only */
    LS_JINJA_STR,
    LS_JINJA_LIST,
    LS_JINJA_DICT,
    LS_JINJA_SPACE, /* a namespace */
    LS_JINJA_LOOP,
    LS_JINJA_CALLABLE
} ls_jinja_kind;

typedef struct ls_jinja_value {
    ls_jinja_kind kind;
    bool tuple; /* a list that prints with round brackets */
    union {
        bool b;
        int64_t i;
        double f;
        const char *missing; /* undefined: the name that was asked for */
        struct {
            const char *p; /* UTF-8, not ended by '\0' */
            size_t len;
        } s;
        struct {
            const struct ls_jinja_value *items;
            int64_t count;
        } list;
        struct ls_jinja_dict *dict; /* DICT and SPACE */
        const struct ls_jinja_loop *loop;
        const struct ls_jinja_callable *call;
    } u;
} ls_jinja_value;

/* In order of insertion. */
typedef struct ls_jinja_dict {
    ls_jinja_value *keys, *values;
    int64_t count, cap;
    int64_t item; /* 1 + its number in the list whose items are followed; 0: not in it */
} ls_jinja_dict;

typedef struct ls_jinja_loop {
    const ls_jinja_value *items;
    int64_t index, count;
    int depth; /* 0: not inside another loop */
} ls_jinja_loop;

typedef struct ls_jinja_callable {
    const struct ls_jinja_node *macro; /* or NULL */
    struct ls_jinja_frame *home;       /* of the macro */
    const struct ls_jinja_row *method; /* or NULL */
    ls_jinja_value self;               /* of the method */
    const struct ls_jinja_function *function;
} ls_jinja_callable;

/* --- the parsed template ----------------------------------------------------------------------
 */
typedef enum ls_jinja_type {
    /* expressions; a, b, c, d are operands */
    LS_JINJA_CONST,
    LS_JINJA_NAME,   /* name */
    LS_JINJA_ITEMS,  /* kids; tuple in constant.tuple */
    LS_JINJA_PAIRS,  /* kids: key, value, key, value */
    LS_JINJA_ATTR,   /* a . name */
    LS_JINJA_ITEM,   /* a [ b ] */
    LS_JINJA_SLICE,  /* a [ b : c : d ]; each of them may be NULL */
    LS_JINJA_CALL,   /* a ( kids ) */
    LS_JINJA_FILTER, /* a | row ( kids ); a is NULL in a filter block */
    LS_JINJA_TEST,   /* a is row ( kids ) */
    LS_JINJA_NOT,
    LS_JINJA_NEGATE,
    LS_JINJA_PLUS,
    LS_JINJA_ARITHMETIC, /* a op b */
    LS_JINJA_CONCAT,     /* a ~ b */
    LS_JINJA_COMPARE,    /* kids[0] ops[0] kids[1] ops[1] kids[2] ... */
    LS_JINJA_AND,
    LS_JINJA_OR,
    LS_JINJA_IF_ELSE, /* b if a else c; c may be NULL */
    /* statements; next links them */
    LS_JINJA_NODE_TEXT, /* constant */
    LS_JINJA_PRINT,     /* a */
    LS_JINJA_IF,        /* if a body else orelse */
    LS_JINJA_FOR,       /* for names in a if b: body, else orelse; b may be NULL */
    LS_JINJA_SET,       /* names (or name . names[0] when name is given) = a */
    LS_JINJA_SET_TO,    /* the same = body, through the filters a */
    LS_JINJA_MACRO,     /* name, names, kids are defaults or NULL, body */
    LS_JINJA_CALL_WITH, /* a is the call; names, kids, body as in a macro: its caller() */
    LS_JINJA_FILTERED,  /* body through the filters a */
    LS_JINJA_WITH,      /* names = kids, body */
    LS_JINJA_GENERATION,
    LS_JINJA_BREAK,
    LS_JINJA_CONTINUE
} ls_jinja_type;

typedef struct ls_jinja_node {
    ls_jinja_type type;
    int op; /* of LS_JINJA_ARITHMETIC: a token */
    int line;
    struct ls_jinja_node *a, *b, *c, *d, *body, *orelse, *next;
    struct ls_jinja_node **kids;
    const char **names; /* of kids: NULL for one without a name */
    const int *ops;
    int n_kids, n_names;
    const char *name;
    const struct ls_jinja_row *row;
    ls_jinja_value constant;
} ls_jinja_node;

struct ls_jinja {
    ls_arena arena; /* owns everything below */
    const char *name;
    ls_jinja_node *body;
    bool marks;
};

/* --- tokens -----------------------------------------------------------------------------------
 */
enum {
    LS_JINJA_END = 256, /* below: the character itself */
    LS_JINJA_DATA,
    LS_JINJA_BLOCK_BEGIN,
    LS_JINJA_BLOCK_END,
    LS_JINJA_PRINT_BEGIN,
    LS_JINJA_PRINT_END,
    LS_JINJA_WORD,
    LS_JINJA_STRING,
    LS_JINJA_WHOLE,
    LS_JINJA_REAL,
    LS_JINJA_EQ,
    LS_JINJA_NE,
    LS_JINJA_LE,
    LS_JINJA_GE,
    LS_JINJA_FLOORDIV,
    LS_JINJA_POW,
    LS_JINJA_IN, /* these two are made by the parser */
    LS_JINJA_NOT_IN
};

typedef struct ls_jinja_token {
    int type, line;
    const char *p; /* word (ends in '\0'), string or data */
    size_t len;
    int64_t whole;
    double real;
} ls_jinja_token;

/* All tokens of a text, in the template's arena; the last one is LS_JINJA_END. */
ls_status ls_jinja_lex(ls_jinja *tpl, const char *text, size_t len, ls_jinja_token **out);

/* --- the machine ------------------------------------------------------------------------------
 */
typedef struct ls_jinja_frame {
    struct ls_jinja_frame *parent;
    const char **names;
    ls_jinja_value *values;
    int count, cap;
} ls_jinja_frame;

typedef struct ls_jinja_machine {
    const ls_jinja *tpl;
    const ls_jinja_args *args;
    ls_arena arena;
    ls_status st; /* sticky */
    int64_t steps_left, memory_left;
    int line;           /* of what is being computed, for messages */
    int depth;          /* expressions and statements inside one another */
    int calls;          /* macros inside one another */
    int loops;          /* loops inside one another */
    bool in_item;       /* a loop over followed items is open */
    int captures;       /* outputs that are not the final one */
    ls_jinja_type jump; /* BREAK or CONTINUE on its way to a loop, else LS_JINJA_NODE_TEXT */
    ls_str *out;
} ls_jinja_machine;

/* A filter, test or method: how it is named and called. args has LS_JINJA_ARGS places. */
typedef ls_jinja_value (*ls_jinja_run)(ls_jinja_machine *m, ls_jinja_value self,
                                       const ls_jinja_value *args);
typedef struct ls_jinja_row {
    const char *name;
    ls_jinja_run run;
    int least, most;
    const char *params[LS_JINJA_ARGS]; /* names of the arguments */
    ls_jinja_kind of;                  /* methods: of which kind of value */
} ls_jinja_row;

/* A run that is one expression of m, v (what it is of) and a (its arguments). */
#define LS_JINJA_RUN(name, value)                                                              \
    static ls_jinja_value name(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_value *a) \
    {                                                                                          \
        (void)m;                                                                               \
        (void)v;                                                                               \
        (void)a;                                                                               \
        return value;                                                                          \
    }

typedef struct ls_jinja_function {
    const char *name;
    ls_jinja_value (*run)(ls_jinja_machine *m, const ls_jinja_value *args, const char *const *names,
                          int n);
} ls_jinja_function;

/* NULL: there is none of that name. */
const ls_jinja_row *ls_jinja_find_filter(const char *name);
const ls_jinja_row *ls_jinja_find_test(const char *name);
const ls_jinja_row *ls_jinja_find_method(const char *name, ls_jinja_kind of); /* ABSENT: of any */
const ls_jinja_function *ls_jinja_find_function(const char *name);

/* Arguments into the places of a row; what is not given becomes ABSENT. */
bool ls_jinja_bind(ls_jinja_machine *m, const ls_jinja_row *row, const ls_jinja_value *args,
                   const char *const *names, int n, ls_jinja_value *bound_out);

/* Fail with the template's name and line in front. Returns an absent value. */
ls_jinja_value ls_jinja_fail(ls_jinja_machine *m, const char *fmt, ...) LS_PRINTF(2, 3);
/* Work in proportion to n bytes or elements; false when the limit is reached. */
bool ls_jinja_charge(ls_jinja_machine *m, int64_t n);
void *ls_jinja_alloc(ls_jinja_machine *m, size_t bytes);

/* --- values -----------------------------------------------------------------------------------
 */
ls_jinja_value ls_jinja_undefined(const char *name);
ls_jinja_value ls_jinja_none(void);
ls_jinja_value ls_jinja_bool(bool b);
ls_jinja_value ls_jinja_int(int64_t i);
ls_jinja_value ls_jinja_float(double f);
ls_jinja_value ls_jinja_view(const char *p, size_t len);                      /* borrowed */
ls_jinja_value ls_jinja_copy(ls_jinja_machine *m, const char *p, size_t len); /* in the arena */
ls_jinja_value ls_jinja_take(ls_jinja_machine *m, ls_str *text); /* copied; text is released */
ls_jinja_value ls_jinja_list(const ls_jinja_value *items, int64_t count);
ls_jinja_value ls_jinja_new_dict(ls_jinja_machine *m);
void ls_jinja_dict_put(ls_jinja_machine *m, ls_jinja_dict *dict, ls_jinja_value key,
                       ls_jinja_value value);
/* ABSENT: no such key. */
ls_jinja_value ls_jinja_dict_get(ls_jinja_machine *m, const ls_jinja_dict *dict,
                                 ls_jinja_value key);
ls_jinja_value ls_jinja_from_json(ls_jinja_machine *m, const json_t *json, int depth);

/* Booleans are whole numbers, as in Python. */
static inline bool ls_jinja_is_whole(ls_jinja_value v)
{
    return v.kind == LS_JINJA_INT || v.kind == LS_JINJA_BOOL;
}
static inline bool ls_jinja_is_number(ls_jinja_value v)
{
    return ls_jinja_is_whole(v) || v.kind == LS_JINJA_FLOAT;
}
static inline int64_t ls_jinja_whole(ls_jinja_value v)
{
    return v.kind == LS_JINJA_BOOL ? v.u.b : v.u.i;
}
static inline double ls_jinja_real(ls_jinja_value v)
{
    return v.kind == LS_JINJA_FLOAT ? v.u.f : (double)ls_jinja_whole(v);
}

const char *ls_jinja_kind_name(ls_jinja_kind kind);
bool ls_jinja_truth(ls_jinja_value v);
bool ls_jinja_equal(ls_jinja_machine *m, ls_jinja_value a, ls_jinja_value b, int depth);
/* Below, at or above 0; fails for values without an order. */
int ls_jinja_order(ls_jinja_machine *m, ls_jinja_value a, ls_jinja_value b, int depth);
bool ls_jinja_contains(ls_jinja_machine *m, ls_jinja_value where, ls_jinja_value what);
/* What a for loop would walk over, as a list; fails for values that are not iterable. */
ls_jinja_value ls_jinja_iterate(ls_jinja_machine *m, ls_jinja_value v);
int64_t ls_jinja_length(ls_jinja_machine *m, ls_jinja_value v);

/* The text that print writes. */
void ls_jinja_write(ls_jinja_machine *m, ls_jinja_value v, ls_str *out);
ls_jinja_value ls_jinja_to_str(ls_jinja_machine *m, ls_jinja_value v);

typedef struct ls_jinja_json_style {
    bool ascii, sort;
    int indent;                 /* -1: one line */
    ls_jinja_value item, colon; /* strings between items, and after a key */
} ls_jinja_json_style;
void ls_jinja_write_json(ls_jinja_machine *m, ls_jinja_value v, const ls_jinja_json_style *style,
                         ls_str *out, int depth);

/* Items of a list in rising order, stable; by decides between two. */
typedef int (*ls_jinja_order_by)(ls_jinja_machine *m, const ls_jinja_value *a,
                                 const ls_jinja_value *b, const void *context);
void ls_jinja_sort(ls_jinja_machine *m, ls_jinja_value *items, int64_t n, ls_jinja_order_by by,
                   const void *context);

/* a.name and a[key]: undefined when it is not there. */
ls_jinja_value ls_jinja_attribute(ls_jinja_machine *m, ls_jinja_value a, const char *name);
ls_jinja_value ls_jinja_item(ls_jinja_machine *m, ls_jinja_value a, ls_jinja_value key);
ls_jinja_value ls_jinja_slice(ls_jinja_machine *m, ls_jinja_value a,
                              const ls_jinja_value bounds[3]);

/* --- text -------------------------------------------------------------------------------------
 * Strings are UTF-8 and valid, positions in them count characters. */
uint32_t ls_jinja_char(const char *p, const char *end, int *len_out);
bool ls_jinja_is_space(uint32_t c);
int64_t ls_jinja_chars(const char *p, size_t len);
/* Byte at which character number n begins, at most len. */
size_t ls_jinja_char_at(const char *p, size_t len, int64_t n);
void ls_jinja_put_char(ls_str *out, uint32_t c);
/* Without white space (chars absent) or without the given characters, on either side. */
ls_jinja_value ls_jinja_strip(ls_jinja_value s, ls_jinja_value chars, bool left, bool right);
/* The same for what a template asks for: it may name many characters. */
ls_jinja_value ls_jinja_strip_charged(ls_jinja_machine *m, ls_jinja_value s, ls_jinja_value chars,
                                      bool left, bool right);
/* How: 'u' upper, 'l' lower, 'c' first upper and the rest lower, 't' so in each word. */
ls_jinja_value ls_jinja_case(ls_jinja_machine *m, ls_jinja_value s, char how);
ls_jinja_value ls_jinja_replace(ls_jinja_machine *m, ls_jinja_value s, ls_jinja_value from,
                                ls_jinja_value to, int64_t most);
