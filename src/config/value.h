/* value.h -- the value of one option: from text into ls_run, and back.
 *
 * What a user wrote arrives as scalars with their place; the option's row decides what they mean,
 * so `name: 12` is the text "12" and `steps: "12"` is refused. Printing gives text that reads back
 * to the same value. */
#pragma once
#include "base/json.h"
#include "config/option.h"

LS_C_BEGIN

/* One scalar as written. */
typedef struct ls_value_item {
    const char *text;  /* UTF-8, '\0'-terminated */
    bool quoted;       /* in quotes: a text, never a number, a truth value or auto */
    const char *where; /* "run.yaml:3:9", "--set": begins the message when the value is wrong */
} ls_value_item;

/* What was written for one key. Borrowed. */
typedef struct ls_value {
    const ls_value_item *items;
    int count;
    bool list;         /* written as a list; otherwise one item */
    const char *where; /* of the value as a whole */
} ls_value;

/* Put value into the row's field of run; strings and lists are copied to the run's arena.
 * LS_EUSAGE: wrong type or out of range, said with its place. */
ls_status ls_value_set(const ls_option *row, ls_run *run, const ls_value *value);

/* The row's default, from the same parser. Rows without one get auto or zero. */
ls_status ls_value_preset(const ls_option *row, ls_run *run);

/* The row's value as it could stand in a run file: 12, [a.txt], "To be", auto. */
void ls_value_print(const ls_option *row, const ls_run *run, ls_str *out);
void ls_value_json(const ls_option *row, const ls_run *run, ls_json *json);

/* Whether the value is still auto. */
bool ls_value_is_auto(const ls_option *row, const ls_run *run);

/* text in double quotes, shortened and without control characters, for a message. */
void ls_value_quote(const char *text, char *out, size_t cap);

/* Whether bytes are UTF-8 throughout; *bad_out is the offset of the first byte that is not. */
bool ls_value_is_utf8(const char *bytes, size_t len, size_t *bad_out);

LS_C_END
