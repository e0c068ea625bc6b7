/* pretokenizer.h -- where a text is cut into pieces before BPE merges inside each of them.
 *
 * A pre-tokenizer is a pattern: the pieces are its matches, and the text between matches, in order,
 * so that the pieces joined are the text. The patterns of GPT-2, Llama-3 and Qwen2 are scanned by
 * hand-written code (same pieces, many times faster), any other by PCRE2. Read-only after opening,
 * so threads may share it; what a thread needs to match lies in its own ls_pretokenizer_work. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_pretokenizer ls_pretokenizer;
typedef struct ls_pretokenizer_work ls_pretokenizer_work;

#define LS_PRETOKENIZER_GPT2 "gpt2" /* names that stand for the known patterns */
#define LS_PRETOKENIZER_LLAMA3 "llama3"
#define LS_PRETOKENIZER_QWEN2 "qwen2"

/* pattern is a name above, or a regular expression as tokenizer.json has it. LS_EDATA: it cannot
 * be compiled; the message has the place. */
ls_status ls_pretokenizer_open(ls_pretokenizer **out, const char *pattern);
void ls_pretokenizer_free(ls_pretokenizer *pretokenizer); /* NULL is allowed */
/* The regular expression, also of a name. */
const char *ls_pretokenizer_pattern(const ls_pretokenizer *pretokenizer);
/* Scanned by our own code: never looks back, and no piece goes on over a blank after a character
 * that is not white space. */
bool ls_pretokenizer_is_known(const ls_pretokenizer *pretokenizer);

ls_status ls_pretokenizer_work_open(ls_pretokenizer_work **out,
                                    const ls_pretokenizer *pretokenizer);
void ls_pretokenizer_work_free(ls_pretokenizer_work *work); /* NULL is allowed */

/* The end of the piece that begins at `at` (at < len, on a character); text is valid UTF-8. 0: the
 * pattern took too many steps on this text and was stopped (LS_EDATA); never for a known one. */
size_t ls_pretokenizer_next(ls_pretokenizer_work *work, const unsigned char *text, size_t len,
                            size_t at);

LS_C_END
