/* cupti.h -- what a GPU did and when, kernel by kernel, as NVIDIA's CUPTI records it.
 *
 * CUPTI comes with the CUDA toolkit (and with PyTorch). It is opened at run time through
 * declarations of our own, so that the program needs neither its header nor its library. It may be
 * missing, of a version whose records we do not know, or in use by another profiler: then there is
 * a reason instead. LINESHAFT_CUPTI names the library where it is not found by itself.
 *
 * CUPTI knows one listener in a process, so one of these can be open at a time. Records come from
 * threads of CUPTI; everything else is for one thread. Nothing happens, and nothing is loaded,
 * before one is opened; a stopped one costs nothing more. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

typedef struct ls_cupti ls_cupti;

typedef enum ls_cupti_kind { LS_CUPTI_KERNEL, LS_CUPTI_COPY, LS_CUPTI_SET } ls_cupti_kind;

/* One kernel, copy or fill, as the card did it. */
typedef struct ls_cupti_span {
    int64_t begin_ns, end_ns; /* by the clock of base/time.h */
    uint64_t tag;             /* what was pushed when it was queued; 0: nothing, or not known */
    ls_cupti_kind kind;
    int name;      /* see ls_cupti_name() */
    int64_t bytes; /* read and written, of copies and fills; else 0 */
} ls_cupti_span;

/* Open the library and begin to record. At most `room` spans are held between two collections.
 * NULL, or a sentence's end that says why not ("there is no "libcupti.so.13""), which lies in the
 * caller's buffer. */
const char *ls_cupti_open(ls_cupti **cupti_out, int64_t room, char why_out[160]);
void ls_cupti_close(ls_cupti *cupti); /* NULL is allowed; names go with it */

/* What the card begins before now is not of interest. At first nothing is. */
void ls_cupti_begin(ls_cupti *cupti);

/* Around what this thread queues: its kernels have this tag, which is not 0. They nest. */
void ls_cupti_push(ls_cupti *cupti, uint64_t tag);
void ls_cupti_pop(ls_cupti *cupti);

/* What the card did since the last begin, by begin; the caller has waited for it. Borrowed until
 * the next begin. Nothing is of interest any more. */
int64_t ls_cupti_collect(ls_cupti *cupti, const ls_cupti_span **spans_out);

/* Spans that were lost so far: no room, or CUPTI lost them. */
int64_t ls_cupti_dropped(const ls_cupti *cupti);

/* No begin will follow: recording ends. Names stay. */
void ls_cupti_stop(ls_cupti *cupti);

/* The name of a span's kernel, short; of a copy or a fill, what it was ("copy host to device"). */
const char *ls_cupti_name(const ls_cupti *cupti, int index);

/* --- parts, for tests ----------------------------------------------------------------------- */

enum { LS_CUPTI_NAME = 100 }; /* most bytes of a name, with its end */

/* A kernel's name for people, out of what a demangler made of it: without return type, arguments
 * and anonymous namespaces. A name that is too long keeps its begin and its end. */
void ls_cupti_shorten(const char *name, char short_out[LS_CUPTI_NAME]);

/* The innermost name inside a mangled one, where there is no demangler; other names as they are. */
void ls_cupti_unmangle(const char *mangled, char short_out[LS_CUPTI_NAME]);

/* One moment by two clocks. */
typedef struct ls_cupti_moment {
    int64_t ours, theirs; /* ns */
} ls_cupti_moment;

/* A time of theirs by our clock: at a and at b exact, in between and beyond on the straight line
 * through both. */
int64_t ls_cupti_align(ls_cupti_moment a, ls_cupti_moment b, int64_t theirs);

LS_C_END
