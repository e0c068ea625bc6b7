/* json_line.h -- a line of JSON as Python's json module writes and reads it.
 *
 * Python has whole numbers of any length, NaN and Infinity, and texts with half of a surrogate
 * pair. The reader that lineshaft uses has none of them and would refuse the whole line. Where they
 * stand in a field that nobody asked for they do not matter; in one that is used a number is an
 * object with the key LS_JSON_NUMBER, for whoever can read it. */
#pragma once
#include "base/str.h"
#include <jansson.h>

LS_C_BEGIN

/* What a line has in the fields that are used and no text can hold. */
typedef struct ls_json_line_found {
    bool surrogate; /* half of a pair, read as U+FFFD */
} ls_json_line_found;

/* Parse len bytes, valid UTF-8. used: names of fields of the outermost object, ended by NULL.
 * NULL: not JSON, as *error_out says, or no memory. The caller owns the value. */
json_t *ls_json_line_parse(const char *line, size_t len, const char *const *used,
                           ls_json_line_found *found_out, json_error_t *error_out);

/* Parse a file of JSON, with jansson's flags. What JSON has no form for becomes a text: "1e999",
 * "NaN". So it is no matter in a field that nobody reads, and no number in one that somebody does. */
json_t *ls_json_line_parse_file(const char *text, size_t len, size_t flags,
                                json_error_t *error_out);

LS_C_END
