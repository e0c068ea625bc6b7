/* trace.c -- traces, checked. */
#include "kernel/trace.h"

#include <math.h>
#include <stdlib.h>

static const char *text_of(json_t *event, const char *key)
{
    json_t *value = json_object_get(event, key);

    LS_CHECK(json_is_string(value));
    return json_string_value(value);
}

static int64_t ns_of(json_t *event, const char *key)
{
    json_t *value = json_object_get(event, key);

    LS_CHECK(json_is_number(value) && json_number_value(value) >= 0);
    return (int64_t)llround(json_number_value(value) * 1e3);
}

static void read_name(ls_trace *t, json_t *event)
{
    json_t *tid = json_object_get(event, "tid");

    if (strcmp(text_of(event, "name"), "thread_name") != 0)
        return;
    LS_CHECK(json_is_integer(tid) && json_integer_value(tid) < LS_TRACE_TRACKS);
    t->tracks[json_integer_value(tid)] = text_of(json_object_get(event, "args"), "name");
}

static void read_event(ls_trace *t, json_t *event)
{
    LS_CHECK(json_is_integer(json_object_get(event, "pid")));
    LS_CHECK(json_is_integer(json_object_get(event, "tid")));
    LS_CHECK(t->n < LS_TRACE_MOST);
    ls_trace_event *e = &t->events[t->n++];
    *e = (ls_trace_event){.name = text_of(event, "name"),
                          .category = text_of(event, "cat"),
                          .begin_ns = ns_of(event, "ts"),
                          .track = (int)json_integer_value(json_object_get(event, "tid")),
                          .args = json_object_get(event, "args")};
    e->end_ns = e->begin_ns + ns_of(event, "dur");
    LS_CHECK(e->track >= 0 && e->track < LS_TRACE_TRACKS && t->tracks[e->track]);
}

/* A stack of open events, as a viewer builds it: each next one begins inside the top or after it.
 */
static void check_track(const ls_trace *t, int track)
{
    const ls_trace_event *open[16];
    int depth = 0;

    for (int i = 0; i < t->n; i++) {
        const ls_trace_event *e = &t->events[i];
        if (e->track != track)
            continue;
        LS_CHECK(depth == 0 || e->begin_ns >= open[depth - 1]->begin_ns);
        while (depth > 0 && open[depth - 1]->end_ns <= e->begin_ns)
            depth--;
        LS_CHECK(depth == 0 || e->end_ns <= open[depth - 1]->end_ns);
        LS_CHECK(depth < (int)LS_COUNT(open));
        open[depth++] = e;
    }
}

void ls_trace_read(ls_trace *trace, const char *text, size_t len)
{
    json_error_t error;
    json_t *event;
    size_t i;

    *trace = (ls_trace){.json = json_loadb(text, len, 0, &error)};
    if (!trace->json)
        ls_test_fail(__FILE__, __LINE__, "the trace is not JSON: %s", error.text);
    trace->events = calloc(LS_TRACE_MOST, sizeof *trace->events);
    LS_CHECK(trace->events);
    json_t *all = json_object_get(trace->json, "traceEvents");
    LS_CHECK(json_is_array(all));
    json_array_foreach(all, i, event)
    {
        const char *kind = text_of(event, "ph");
        LS_CHECK(strcmp(kind, "M") == 0 || strcmp(kind, "X") == 0);
        if (*kind == 'M')
            read_name(trace, event);
        else
            read_event(trace, event);
    }
    for (int track = 0; track < LS_TRACE_TRACKS; track++)
        check_track(trace, track);
}

void ls_trace_release(ls_trace *trace)
{
    json_decref(trace->json);
    free(trace->events);
}

static bool is(const char *text, const char *want)
{
    return !want || strcmp(text, want) == 0;
}

int ls_trace_count(const ls_trace *trace, const char *category, const char *name)
{
    int n = 0;

    for (int i = 0; i < trace->n; i++)
        n += is(trace->events[i].category, category) && is(trace->events[i].name, name);
    return n;
}

const ls_trace_event *ls_trace_find(const ls_trace *trace, const char *category, const char *name,
                                    int i)
{
    for (int k = 0; k < trace->n; k++)
        if (is(trace->events[k].category, category) && is(trace->events[k].name, name) && i-- == 0)
            return &trace->events[k];
    ls_test_fail(__FILE__, __LINE__, "the trace lacks %s %s", category, name ? name : "events");
}

const ls_trace_event *ls_trace_around(const ls_trace *trace, const ls_trace_event *inner,
                                      const char *category)
{
    const ls_trace_event *found = NULL;

    for (const ls_trace_event *e = trace->events; e < inner; e++)
        if (e->track == inner->track && strcmp(e->category, category) == 0 &&
            e->begin_ns <= inner->begin_ns && inner->end_ns <= e->end_ns)
            found = e;
    return found;
}
