/* unclosed.h -- the bracket or quote that somebody forgot.
 *
 * A YAML parser notices a missing } where the next thing does not fit, often lines later, and sometimes reads the next key
 * as part of a value. This finds where the bracket was opened. It only explains an error that was found: a text that the
 * parser accepts is not asked about. */
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
