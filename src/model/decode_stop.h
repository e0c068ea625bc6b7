/* decode_stop.h -- texts at which an answer ends.
 *
 * The text that a model writes goes through here on its way out. It ends before the first stop
 * string; what could still become one is held back until more text decides. Works on bytes: the
 * border between two tokens, or inside a character, means nothing here. */
#pragma once
#include "base/str.h"

LS_C_BEGIN

typedef struct ls_decode_stop {
    const char *const *strings; /* borrowed; none is empty */
    int n;
    ls_str held; /* what could still become a stop string */
    int hit;     /* the one that was met; -1: none yet */
} ls_decode_stop;

void ls_decode_stop_init(ls_decode_stop *stop, const char *const *strings, int n);
void ls_decode_stop_release(ls_decode_stop *stop);

/* Append to out what of the text may be shown. After a hit nothing comes out any more. Where two
 * stop strings are met at once, the one that begins first counts, then the one given first. */
ls_status ls_decode_stop_feed(ls_decode_stop *stop, const char *text, size_t len, ls_str *out);

/* The text ended: what was held back is no stop string. */
ls_status ls_decode_stop_end(ls_decode_stop *stop, ls_str *out);

LS_C_END
