/* jinja.h -- chat templates: the part of the Jinja language that they use, and nothing more.
 *
 * A template is parsed once and may then be rendered by any number of threads. It can compute and
 * write text; it reads no file, starts nothing, and every render ends: steps, memory, output and
 * nesting are limited. Settings are those of the transformers library (a line end after a block tag
 * and blanks before one are dropped, a break or continue ends a loop or its turn, tojson does not
 * escape). What is not supported is refused by line and name, when the template is parsed wherever
 * that can be seen. */
#pragma once
#include "base/str.h"
#include <jansson.h>

LS_C_BEGIN

typedef struct ls_jinja ls_jinja;

/* Limits of one render, and the longest template. */
enum {
    LS_JINJA_STEPS = 20 * 1000 * 1000,
    LS_JINJA_MEMORY = 256 << 20,
    LS_JINJA_OUTPUT = 64 << 20,
    LS_JINJA_TEXT = 4 << 20
};

/* Bytes of the output that {% generation %} blocks wrote. */
typedef struct ls_jinja_span {
    size_t begin, end;
} ls_jinja_span;

typedef struct ls_jinja_spans {
    ls_jinja_span *items; /* owned; in order, without overlap */
    int count;
} ls_jinja_spans;

/* What a loop writes while its variable is one item of a list. */
typedef struct ls_jinja_item_span {
    ls_jinja_span span;
    int64_t item; /* number in the list, from 0 */
} ls_jinja_item_span;

typedef struct ls_jinja_item_spans {
    ls_jinja_item_span *items; /* owned; in order, without overlap */
    int count;
} ls_jinja_item_spans;

typedef struct ls_jinja_args {
    const json_t *context;           /* object: the variables; borrowed during the call. An object
                                      * with the key LS_JSON_NUMBER alone is a number */
    int64_t now;                     /* what strftime_now() returns: seconds since 1970, as UTC */
    int64_t steps;                   /* 0: LS_JINJA_STEPS */
    ls_jinja_spans *spans;           /* filled anew, or NULL */
    const char *list;                /* a variable that holds a list of objects, or NULL */
    ls_jinja_item_spans *item_spans; /* of that list: filled anew; turns that write nothing are not
                                      * in it */
} ls_jinja_args;

/* Parse len bytes of text. name stands in messages ("chat template"): it is followed by a line.
 * LS_EDATA: not a template, or one that uses something that is not supported. */
ls_status ls_jinja_parse(ls_jinja **out, const char *text, size_t len, const char *name);
void ls_jinja_free(ls_jinja *tpl); /* NULL is allowed */

/* Append the rendered text. LS_EDATA: the template refuses its input (raise_exception), uses what
 * is not there, or runs into a limit; the output may then hold a part. */
ls_status ls_jinja_render(const ls_jinja *tpl, const ls_jinja_args *args, ls_str *out);

/* Whether the template marks what a model generates with {% generation %} blocks. */
bool ls_jinja_marks(const ls_jinja *tpl);

/* The text of a built-in template ("chatml", "llama3", "qwen"); NULL: there is none of that name.
 */
const char *ls_jinja_builtin(const char *name);

void ls_jinja_spans_init(ls_jinja_spans *spans);
ls_status ls_jinja_spans_add(ls_jinja_spans *spans, ls_jinja_span span);
void ls_jinja_spans_release(ls_jinja_spans *spans); /* leaves it empty and usable */

LS_C_END
