/* trace.h -- reading a trace as a viewer would, and refusing what it could not draw. */
#pragma once
#include <jansson.h>
#include "harness.h"

enum { LS_TRACE_TRACKS = 16, LS_TRACE_MOST = 100000 };

typedef struct ls_trace_event {
    const char *name, *category; /* borrowed from json */
    int64_t begin_ns, end_ns;
    int track;
    json_t *args; /* borrowed; NULL: none */
} ls_trace_event;

typedef struct ls_trace {
    json_t *json;           /* owned */
    ls_trace_event *events; /* complete ones, in the order of the file; owned */
    int n;
    const char *tracks[LS_TRACE_TRACKS]; /* names */
} ls_trace;

/* Parse and check: valid JSON, every event complete or a name, its track named, no time negative,
 * and on each track any two events either apart or one inside the other, the outer one first. */
void ls_trace_read(ls_trace *trace, const char *text, size_t len);
void ls_trace_release(ls_trace *trace);

/* How many events have this category and name; NULL: any. */
int ls_trace_count(const ls_trace *trace, const char *category, const char *name);
/* The i-th of them. */
const ls_trace_event *ls_trace_find(const ls_trace *trace, const char *category, const char *name,
                                    int i);
/* The innermost event of a category around another one on the same track, or NULL. */
const ls_trace_event *ls_trace_around(const ls_trace *trace, const ls_trace_event *inner,
                                      const char *category);
