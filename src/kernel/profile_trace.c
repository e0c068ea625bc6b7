/* profile_trace.c -- a profile in the Chrome trace event format, which Perfetto reads too.
 *
 * Every span is a complete event ("ph": "X") with ts and dur in microseconds since the first step.
 * Viewers draw events of one track as a stack, so they must nest: a step holds its laps, a lap its
 * calls. Events are written from the outside in, by begin; of two with the same begin the enclosing
 * one comes first. The tracks:
 *
 *   0      host: steps, laps and, on a device that works at once, calls
 *   1      device: calls on a device that works later, by its own clock
 *   2 + w  worker w of the pool: when it was in tasks, named after the call they belong to
 *   then   kernels: what the device did inside of calls. A kernel may begin before the one before
 * it has ended; it is then drawn on the next such track that is free. */
#include "kernel/profile_impl.h"

#include <math.h>

enum { PROCESS = 1, HOST = 0, DEVICE = 1, WORKERS = 2, LANES = 4 };

static int by_begin(const void *a, const void *b)
{
    const ls_profile_span *x = a, *y = b;

    if (x->begin_ns != y->begin_ns)
        return x->begin_ns < y->begin_ns ? -1 : 1;
    if (x->kind != y->kind)
        return (int)x->kind - (int)y->kind;
    return (x->end_ns > y->end_ns) - (x->end_ns < y->end_ns);
}

/* Names a track, or with tid -1 the process, and says where to show it. */
static void put_name(ls_json *j, int tid, const char *name)
{
    ls_json_open(j, '{');
    ls_json_put_str(j, "ph", "M");
    ls_json_put_int(j, "pid", PROCESS);
    if (tid >= 0)
        ls_json_put_int(j, "tid", tid);
    ls_json_put_str(j, "name", tid < 0 ? "process_name" : "thread_name");
    ls_json_key(j, "args");
    ls_json_open(j, '{');
    ls_json_put_str(j, "name", name);
    ls_json_close(j);
    ls_json_close(j);
    if (tid < 0)
        return;
    ls_json_open(j, '{');
    ls_json_put_str(j, "ph", "M");
    ls_json_put_int(j, "pid", PROCESS);
    ls_json_put_int(j, "tid", tid);
    ls_json_put_str(j, "name", "thread_sort_index");
    ls_json_key(j, "args");
    ls_json_open(j, '{');
    ls_json_put_int(j, "sort_index", tid);
    ls_json_close(j);
    ls_json_close(j);
}

static void put_names(const ls_profile *p, ls_json *j)
{
    char name[32];

    put_name(j, -1, "lineshaft");
    put_name(j, HOST, "host");
    if (p->later)
        put_name(j, DEVICE, "device");
    for (int i = 0; i < p->n_workers; i++) {
        snprintf(name, sizeof name, "worker %d", i);
        put_name(j, WORKERS + i, name);
    }
    for (int i = 0; p->n_inner > 0 && i < LANES; i++) {
        snprintf(name, sizeof name, "kernels");
        if (i > 0)
            snprintf(name, sizeof name, "kernels at once %d", i + 1);
        put_name(j, WORKERS + p->n_workers + i, name);
    }
}

/* All of an event but its args, which the caller opens. */
static void open_event(ls_json *j, const char *name, const char *category, int tid,
                       int64_t begin_ns, int64_t end_ns)
{
    ls_json_open(j, '{');
    ls_json_put_str(j, "name", name);
    ls_json_put_str(j, "cat", category);
    ls_json_put_str(j, "ph", "X");
    ls_json_put_int(j, "pid", PROCESS);
    ls_json_put_int(j, "tid", tid);
    ls_json_put_num(j, "ts", (double)begin_ns / 1e3);
    ls_json_put_num(j, "dur", (double)(end_ns - begin_ns) / 1e3);
}

static void put_call(const ls_profile *p, ls_json *j, const ls_profile_span *s, int64_t zero_ns)
{
    bool flops = ls_cost_in_flops((ls_row)s->row);
    int64_t ns = s->end_ns - s->begin_ns;

    open_event(j, ls_kernel_rows[s->row].name, "kernel", p->later ? DEVICE : HOST,
               s->begin_ns - zero_ns, s->end_ns - zero_ns);
    ls_json_key(j, "args");
    ls_json_open(j, '{');
    for (int i = 0; i < LS_COST_DIMS && ls_cost_dims[s->row][i]; i++)
        ls_json_put_int(j, ls_cost_dims[s->row][i], s->dims[i]);
    if (ns > 0) /* operations per nanosecond, to two digits */
        ls_json_put_num(j, flops ? "gflops" : "gb_per_s", round(s->work / (double)ns * 100) / 100);
    ls_json_put_str(j, "phase", p->args.phases[s->phase]);
    ls_json_put_int(j, "step", s->step);
    ls_json_close(j);
    ls_json_close(j);
}

static void put_span(const ls_profile *p, ls_json *j, const ls_profile_span *s, int64_t zero_ns)
{
    char name[40];

    if (s->kind == LS_PROFILE_CALL) {
        put_call(p, j, s, zero_ns);
        return;
    }
    if (s->kind == LS_PROFILE_STEP)
        snprintf(name, sizeof name, "step %lld", (long long)s->step);
    else
        snprintf(name, sizeof name, "%s", p->args.phases[s->phase]);
    open_event(j, name, s->kind == LS_PROFILE_STEP ? "step" : "phase", HOST, s->begin_ns - zero_ns,
               s->end_ns - zero_ns);
    ls_json_close(j);
}

/* A worker's times. Calls and times are both in order, so one walk along both finds each name. */
static void put_worker(const ls_profile *p, ls_json *j, int worker, int64_t zero_ns)
{
    const ls_profile_worker *w = &p->workers[worker];
    const ls_profile_span *call = NULL;
    int64_t at = 0;

    for (int64_t i = 0; i < w->n; i++) {
        const ls_profile_busy *b = &w->spans[i];
        for (; at < p->n && p->spans[at].begin_ns <= b->begin_ns; at++)
            if (p->spans[at].kind == LS_PROFILE_CALL)
                call = &p->spans[at];
        bool inside = call && b->begin_ns <= call->end_ns;
        open_event(j, inside ? ls_kernel_rows[call->row].name : "tasks", "pool", WORKERS + worker,
                   b->begin_ns - zero_ns, b->end_ns - zero_ns);
        ls_json_key(j, "args");
        ls_json_open(j, '{');
        ls_json_put_int(j, "tasks", b->tasks);
        ls_json_close(j);
        ls_json_close(j);
    }
}

/* Kernels in order of their begin, each on the first track that is free; more at once than there
 * are tracks are left out. */
static void put_inner(const ls_profile *p, ls_json *j, int64_t zero_ns)
{
    int64_t free_ns[LANES];

    for (int i = 0; i < LANES; i++)
        free_ns[i] = INT64_MIN;
    for (int64_t i = 0; i < p->n_inner; i++) {
        const ls_profile_inner *k = &p->inner[i];
        int lane = 0;
        while (lane < LANES && free_ns[lane] > k->begin_ns)
            lane++;
        if (lane == LANES)
            continue;
        free_ns[lane] = k->end_ns;
        open_event(j, ls_cupti_name(p->cupti, k->name), "device", WORKERS + p->n_workers + lane,
                   k->begin_ns - zero_ns, k->end_ns - zero_ns);
        ls_json_key(j, "args");
        ls_json_open(j, '{');
        ls_json_put_str(j, "row", k->row < LS_ROWS ? ls_kernel_rows[k->row].name : "none");
        if (k->phase >= 0)
            ls_json_put_str(j, "phase", p->args.phases[k->phase]);
        ls_json_put_int(j, "step", k->step);
        ls_json_close(j);
        ls_json_close(j);
    }
}

static void put_about(const ls_profile *p, ls_json *j)
{
    ls_profile_figures f;

    ls_profile_sum(p, &f);
    ls_json_key(j, "otherData");
    ls_json_open(j, '{');
    ls_json_put_str(j, "program", "lineshaft " LS_VERSION);
    ls_json_put_str(j, "device", p->device.name);
    ls_json_put_str(j, "kernels", p->args.kernels->name);
    ls_json_put_int(j, "dropped", f.dropped);
    ls_json_close(j);
}

void ls_profile_trace(ls_profile *profile, ls_str *text_out)
{
    ls_profile *p = profile;
    ls_json j;

    LS_BUG_IF(p->active, "the trace of a step that has not ended");
    qsort(p->spans, (size_t)p->n, sizeof *p->spans, by_begin);
    int64_t zero_ns = p->n > 0 ? p->spans[0].begin_ns : 0;
    ls_json_begin(&j, text_out);
    ls_json_open(&j, '{');
    ls_json_put_str(&j, "displayTimeUnit", "ms");
    put_about(p, &j);
    ls_json_key(&j, "traceEvents");
    ls_json_open(&j, '[');
    put_names(p, &j);
    for (int64_t i = 0; i < p->n; i++)
        put_span(p, &j, &p->spans[i], zero_ns);
    for (int i = 0; i < p->n_workers; i++)
        put_worker(p, &j, i, zero_ns);
    put_inner(p, &j, zero_ns);
    ls_json_close(&j);
    ls_json_close(&j);
    ls_str_append_char(text_out, '\n');
}
