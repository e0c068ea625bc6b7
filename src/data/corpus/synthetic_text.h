/* synthetic_text.h -- simple English stories out of our own grammar.
 *
 * Text to learn from without a download: short sentences, few words, a plot (somebody wants
 * something, something goes wrong, somebody helps, it ends well). A small model that reads single
 * bytes learns words in seconds and sentences in a minute. Story number n of a seed is always the
 * same text, on every machine. */
#pragma once
#include "base/str.h"

LS_C_BEGIN

/* Raised when the text of any story changes, so that cached tokens are made again. */
#define LS_SYNTHETIC_TEXT_VERSION 1

/* Append story number `number` of seed: a few paragraphs, each ending in a line end. */
ls_status ls_synthetic_text_story(uint64_t seed, int64_t number, ls_str *out);

LS_C_END
