/* tpl_impl.h -- values, nodes and the machine of the template room.
 *
 * While rendering, everything lives in one arena that dies with the render, so values are copied
 * freely and nothing is counted. Values do not change once made, except namespaces. A failure is
 * sticky: the first one is kept in the machine's status, later calls return an absent value, and
 * whoever loops looks at the status. That keeps an expression evaluator readable. */
#pragma once
#include "template/template.h"
#include "base/arena.h"

enum {
    LS_TPL_ARGS = 6,          /* most arguments of a filter, test or method */
    LS_TPL_NESTING = 100,     /* of expressions and statements in a template */
    LS_TPL_CALLS = 64,        /* of macros in one another */
    LS_TPL_LEVELS = 1000,     /* of anything while rendering */
    LS_TPL_DEEP = 300,        /* of lists and dicts in one another */
    LS_TPL_RANGE = 100 * 1000 /* most numbers of a range() */
};

typedef enum ls_tpl_kind {
    LS_TPL_ABSENT, /* an argument that was not given; no value of a template */
    LS_TPL_UNDEFINED,
    LS_TPL_NONE,
    LS_TPL_BOOL,
    LS_TPL_INT,
    LS_TPL_FLOAT,
    LS_TPL_STR,
    LS_TPL_LIST,
    LS_TPL_DICT,
    LS_TPL_SPACE, /* a namespace */
    LS_TPL_LOOP,
    LS_TPL_CALLABLE
} ls_tpl_kind;

typedef struct ls_tpl_value {
    ls_tpl_kind kind;
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
            const struct ls_tpl_value *items;
            int64_t count;
        } list;
        struct ls_tpl_dict *dict; /* DICT and SPACE */
        const struct ls_tpl_loop *loop;
        const struct ls_tpl_callable *call;
    } u;
} ls_tpl_value;

/* In order of insertion. */
typedef struct ls_tpl_dict {
    ls_tpl_value *keys, *values;
    int64_t count, cap;
} ls_tpl_dict;

typedef struct ls_tpl_loop {
    const ls_tpl_value *items;
    int64_t index, count;
    int depth; /* 0: not inside another loop */
} ls_tpl_loop;

typedef struct ls_tpl_callable {
    const struct ls_tpl_node *macro; /* or NULL */
    struct ls_tpl_frame *home;       /* of the macro */
    const struct ls_tpl_row *method; /* or NULL */
    ls_tpl_value self;               /* of the method */
    const struct ls_tpl_function *function;
} ls_tpl_callable;

/* --- the parsed template ----------------------------------------------------------------------
 */
typedef enum ls_tpl_type {
    /* expressions; a, b, c, d are operands */
    LS_TPL_CONST,
    LS_TPL_NAME,   /* name */
    LS_TPL_ITEMS,  /* kids; tuple in constant.tuple */
    LS_TPL_PAIRS,  /* kids: key, value, key, value */
    LS_TPL_ATTR,   /* a . name */
    LS_TPL_ITEM,   /* a [ b ] */
    LS_TPL_SLICE,  /* a [ b : c : d ]; each of them may be NULL */
    LS_TPL_CALL,   /* a ( kids ) */
    LS_TPL_FILTER, /* a | row ( kids ); a is NULL in a filter block */
    LS_TPL_TEST,   /* a is row ( kids ) */
    LS_TPL_NOT,
    LS_TPL_NEGATE,
    LS_TPL_PLUS,
    LS_TPL_ARITHMETIC, /* a op b */
    LS_TPL_CONCAT,     /* a ~ b */
    LS_TPL_COMPARE,    /* kids[0] ops[0] kids[1] ops[1] kids[2] ... */
    LS_TPL_AND,
    LS_TPL_OR,
    LS_TPL_IF_ELSE, /* b if a else c; c may be NULL */
    /* statements; next links them */
    LS_TPL_TEXT,      /* constant */
    LS_TPL_PRINT,     /* a */
    LS_TPL_IF,        /* if a body else orelse */
    LS_TPL_FOR,       /* for names in a if b: body, else orelse; b may be NULL */
    LS_TPL_SET,       /* names (or name . names[0] when name is given) = a */
    LS_TPL_SET_TO,    /* the same = body, through the filters a */
    LS_TPL_MACRO,     /* name, names, kids are defaults or NULL, body */
    LS_TPL_CALL_WITH, /* a is the call; names, kids, body as in a macro: its caller() */
    LS_TPL_FILTERED,  /* body through the filters a */
    LS_TPL_WITH,      /* names = kids, body */
    LS_TPL_GENERATION,
    LS_TPL_BREAK,
    LS_TPL_CONTINUE
} ls_tpl_type;

typedef struct ls_tpl_node {
    ls_tpl_type type;
    int op; /* of LS_TPL_ARITHMETIC: a token */
    int line;
    struct ls_tpl_node *a, *b, *c, *d, *body, *orelse, *next;
    struct ls_tpl_node **kids;
    const char **names; /* of kids: NULL for one without a name */
    const int *ops;
    int n_kids, n_names;
    const char *name;
    const struct ls_tpl_row *row;
    ls_tpl_value constant;
} ls_tpl_node;

struct ls_template {
    ls_arena arena; /* owns everything below */
    const char *name;
    ls_tpl_node *body;
    bool marks;
};

/* --- tokens -----------------------------------------------------------------------------------
 */
enum {
    LS_TPL_END = 256, /* below: the character itself */
    LS_TPL_DATA,
    LS_TPL_BLOCK_BEGIN,
    LS_TPL_BLOCK_END,
    LS_TPL_PRINT_BEGIN,
    LS_TPL_PRINT_END,
    LS_TPL_WORD,
    LS_TPL_STRING,
    LS_TPL_WHOLE,
    LS_TPL_REAL,
    LS_TPL_EQ,
    LS_TPL_NE,
    LS_TPL_LE,
    LS_TPL_GE,
    LS_TPL_FLOORDIV,
    LS_TPL_POW,
    LS_TPL_IN, /* these two are made by the parser */
    LS_TPL_NOT_IN
};

typedef struct ls_tpl_token {
    int type, line;
    const char *p; /* word (ends in '\0'), string or data */
    size_t len;
    int64_t whole;
    double real;
} ls_tpl_token;

/* All tokens of a text, in the template's arena; the last one is LS_TPL_END. */
ls_status ls_tpl_lex(ls_template *tpl, const char *text, size_t len, ls_tpl_token **out);

/* --- the machine ------------------------------------------------------------------------------
 */
typedef struct ls_tpl_frame {
    struct ls_tpl_frame *parent;
    const char **names;
    ls_tpl_value *values;
    int count, cap;
} ls_tpl_frame;

typedef struct ls_tpl_machine {
    const ls_template *tpl;
    const ls_template_args *args;
    ls_arena arena;
    ls_status st; /* sticky */
    int64_t steps_left, memory_left;
    int line;         /* of what is being computed, for messages */
    int depth;        /* expressions and statements inside one another */
    int calls;        /* macros inside one another */
    int loops;        /* loops inside one another */
    int captures;     /* outputs that are not the final one */
    ls_tpl_type jump; /* LS_TPL_BREAK or LS_TPL_CONTINUE on its way to a loop, else LS_TPL_TEXT */
    ls_str *out;
} ls_tpl_machine;

/* A filter, test or method: how it is named and called. args has LS_TPL_ARGS places. */
typedef ls_tpl_value (*ls_tpl_run)(ls_tpl_machine *m, ls_tpl_value self, const ls_tpl_value *args);
typedef struct ls_tpl_row {
    const char *name;
    ls_tpl_run run;
    int least, most;
    const char *params[LS_TPL_ARGS]; /* names of the arguments */
    ls_tpl_kind of;                  /* methods: of which kind of value */
} ls_tpl_row;

typedef struct ls_tpl_function {
    const char *name;
    ls_tpl_value (*run)(ls_tpl_machine *m, const ls_tpl_value *args, const char *const *names,
                        int n);
} ls_tpl_function;

/* NULL: there is none of that name. */
const ls_tpl_row *ls_tpl_find_filter(const char *name);
const ls_tpl_row *ls_tpl_find_test(const char *name);
const ls_tpl_row *ls_tpl_find_method(const char *name, ls_tpl_kind of); /* ABSENT: of any */
const ls_tpl_function *ls_tpl_find_function(const char *name);

/* Arguments into the places of a row; what is not given becomes ABSENT. */
bool ls_tpl_bind(ls_tpl_machine *m, const ls_tpl_row *row, const ls_tpl_value *args,
                 const char *const *names, int n, ls_tpl_value *bound_out);

/* Fail with the template's name and line in front. Returns an absent value. */
ls_tpl_value ls_tpl_fail(ls_tpl_machine *m, const char *fmt, ...) LS_PRINTF(2, 3);
/* Work in proportion to n bytes or elements; false when the limit is reached. */
bool ls_tpl_charge(ls_tpl_machine *m, int64_t n);
void *ls_tpl_alloc(ls_tpl_machine *m, size_t bytes);

/* --- values -----------------------------------------------------------------------------------
 */
ls_tpl_value ls_tpl_undefined(const char *name);
ls_tpl_value ls_tpl_none(void);
ls_tpl_value ls_tpl_bool(bool b);
ls_tpl_value ls_tpl_int(int64_t i);
ls_tpl_value ls_tpl_float(double f);
ls_tpl_value ls_tpl_view(const char *p, size_t len);                    /* borrowed */
ls_tpl_value ls_tpl_copy(ls_tpl_machine *m, const char *p, size_t len); /* in the arena */
ls_tpl_value ls_tpl_take(ls_tpl_machine *m, ls_str *text); /* copied; text is released */
ls_tpl_value ls_tpl_list(const ls_tpl_value *items, int64_t count);
ls_tpl_value ls_tpl_new_dict(ls_tpl_machine *m);
void ls_tpl_dict_put(ls_tpl_machine *m, ls_tpl_dict *dict, ls_tpl_value key, ls_tpl_value value);
/* ABSENT: no such key. */
ls_tpl_value ls_tpl_dict_get(ls_tpl_machine *m, const ls_tpl_dict *dict, ls_tpl_value key);
ls_tpl_value ls_tpl_from_json(ls_tpl_machine *m, const json_t *json, int depth);

const char *ls_tpl_kind_name(ls_tpl_kind kind);
bool ls_tpl_truth(ls_tpl_value v);
bool ls_tpl_equal(ls_tpl_machine *m, ls_tpl_value a, ls_tpl_value b, int depth);
/* Below, at or above 0; fails for values without an order. */
int ls_tpl_order(ls_tpl_machine *m, ls_tpl_value a, ls_tpl_value b, int depth);
bool ls_tpl_contains(ls_tpl_machine *m, ls_tpl_value where, ls_tpl_value what);
/* What a for loop would walk over, as a list; fails for values that are not iterable. */
ls_tpl_value ls_tpl_iterate(ls_tpl_machine *m, ls_tpl_value v);
int64_t ls_tpl_length(ls_tpl_machine *m, ls_tpl_value v);

/* The text that print writes, and what it looks like inside a list. */
void ls_tpl_write(ls_tpl_machine *m, ls_tpl_value v, ls_str *out);
void ls_tpl_write_repr(ls_tpl_machine *m, ls_tpl_value v, ls_str *out, int depth);
ls_tpl_value ls_tpl_to_str(ls_tpl_machine *m, ls_tpl_value v);

typedef struct ls_tpl_json_style {
    bool ascii, sort;
    int indent;               /* -1: one line */
    ls_tpl_value item, colon; /* strings between items, and after a key */
} ls_tpl_json_style;
void ls_tpl_write_json(ls_tpl_machine *m, ls_tpl_value v, const ls_tpl_json_style *style,
                       ls_str *out, int depth);

/* Items of a list in rising order, stable; by decides between two. */
typedef int (*ls_tpl_order_by)(ls_tpl_machine *m, const ls_tpl_value *a, const ls_tpl_value *b,
                               const void *context);
void ls_tpl_sort(ls_tpl_machine *m, ls_tpl_value *items, int64_t n, ls_tpl_order_by by,
                 const void *context);

/* a.name and a[key]: undefined when it is not there. */
ls_tpl_value ls_tpl_attribute(ls_tpl_machine *m, ls_tpl_value a, const char *name);
ls_tpl_value ls_tpl_item(ls_tpl_machine *m, ls_tpl_value a, ls_tpl_value key);
ls_tpl_value ls_tpl_slice(ls_tpl_machine *m, ls_tpl_value a, const ls_tpl_value bounds[3]);

/* --- text -------------------------------------------------------------------------------------
 * Strings are UTF-8 and valid, positions in them count characters. */
uint32_t ls_tpl_char(const char *p, const char *end, int *len_out);
bool ls_tpl_is_space(uint32_t c);
int64_t ls_tpl_chars(const char *p, size_t len);
/* Byte at which character number n begins, at most len. */
size_t ls_tpl_char_at(const char *p, size_t len, int64_t n);
void ls_tpl_put_char(ls_str *out, uint32_t c);
/* Without white space (chars absent) or without the given characters, on either side. */
ls_tpl_value ls_tpl_strip(ls_tpl_value s, ls_tpl_value chars, bool left, bool right);
/* The same for what a template asks for: it may name many characters. */
ls_tpl_value ls_tpl_strip_charged(ls_tpl_machine *m, ls_tpl_value s, ls_tpl_value chars, bool left,
                                  bool right);
/* How: 'u' upper, 'l' lower, 'c' first upper and the rest lower, 't' so in each word. */
ls_tpl_value ls_tpl_case(ls_tpl_machine *m, ls_tpl_value s, char how);
ls_tpl_value ls_tpl_replace(ls_tpl_machine *m, ls_tpl_value s, ls_tpl_value from, ls_tpl_value to,
                            int64_t most);
