/* text_measure.h -- words, characters and white space of UTF-8 as Python counts them, since the
 * numbers of lm_eval depend on it. Bytes that are no UTF-8 count as a character each. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

/* Parts between runs of white space; an empty one at either end counts too. */
int64_t ls_text_measure_words(const char *text, size_t len);
int64_t ls_text_measure_characters(const char *text, size_t len);
/* Bytes without the white space at the end. */
size_t ls_text_measure_trimmed(const char *text, size_t len);

LS_C_END
