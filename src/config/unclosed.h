/* unclosed.h -- finds the bracket or quote that a text opens and does not close.
 *
 * A YAML parser notices a missing } only at the next token that does not fit, often lines later, and sometimes reads the next
 * key as part of a value. This finds where the bracket was opened. It runs only on text that the parser has refused. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

typedef struct ls_unclosed {
    char what;     /* { [ " ' or, where extra, } ] */
    bool extra;    /* it closes what was not opened */
    size_t offset; /* byte of the text */
} ls_unclosed;

/* The first bracket or quote that is not closed, or that closes nothing. false: all are in order. */
bool ls_unclosed_find(const char *text, size_t len, ls_unclosed *found_out);

LS_C_END
