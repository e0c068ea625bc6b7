/* json.h -- writing JSON; reading is jansson's.
 *
 * The writer appends to a string and never touches the heap beyond that string's growth, so a step
 * event costs nothing once the string has grown. It cannot produce an unbalanced text: a wrong call
 * is a bug and aborts. One begin, one value; begin again for the next line. */
#pragma once
#include "base/str.h"

LS_C_BEGIN

/* What Python's json reads and jansson cannot hold (NaN, Infinity, whole numbers beyond 64 bits) is
 * an object with this key alone, U+FDD0, which is no character; its value is the text. */
#define LS_JSON_NUMBER "\xef\xb7\x90"

typedef struct ls_json {
    ls_str *out;    /* borrowed */
    int depth;      /* open objects and arrays */
    bool comma[24]; /* the next value at this depth needs one */
    char open[24];  /* '{' or '[' */
    bool after_key;
    int indent; /* spaces per depth; 0: all in one line */
} ls_json;

void ls_json_begin(ls_json *json, ls_str *out);
/* For files that people read: every value of an object or array on its own line, a space after each
 * colon. */
void ls_json_begin_lines(ls_json *json, ls_str *out, int indent);
void ls_json_open(ls_json *json, char bracket); /* '{' or '[' */
void ls_json_close(ls_json *json);
void ls_json_key(ls_json *json, const char *key);
void ls_json_str(ls_json *json, const char *value);              /* NULL gives null */
void ls_json_text(ls_json *json, const char *bytes, size_t len); /* invalid UTF-8 becomes U+FFFD */
void ls_json_int(ls_json *json, int64_t value);
void ls_json_num(ls_json *json, double value); /* shortest text that reads back; NaN, Inf: null */
/* The same with at most so many significant digits: curves of a picture need no more. */
void ls_json_round(ls_json *json, double value, int digits);
/* A value that is JSON already, as it is. */
void ls_json_raw(ls_json *json, const char *text, size_t len);
void ls_json_bool(ls_json *json, bool value);

/* Key and value in one. */
void ls_json_put_str(ls_json *json, const char *key, const char *value);
void ls_json_put_int(ls_json *json, const char *key, int64_t value);
void ls_json_put_num(ls_json *json, const char *key, double value);
void ls_json_put_bool(ls_json *json, const char *key, bool value);
void ls_json_put_open(ls_json *json, const char *key, char bracket); /* up to its ls_json_close() */

LS_C_END
