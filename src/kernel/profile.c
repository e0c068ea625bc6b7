/* profile.c -- noting what the rows of some steps do.
 *
 * The table of a profile is the real one with each row replaced by a function that finds the
 * profile through the stream, so that nothing is global:
 *
 *   model -> watch_linear_fwd(stream, args) -> profile = watcher of stream
 *            begin: cost, a free span, the time     (or an event of the device)
 *            profile->args.kernels->linear_fwd(stream, args)
 *            end: the time                          (or a second event)
 *
 * A run without a profile uses the real table and pays nothing. A lap is named when it ends, so
 * calls wait in `lap` and in spans without a phase until then. Totals are kept beside the spans:
 * they stay complete when the spans are full. On a device that works later they can only come from
 * its events, when the step has ended.
 *
 * What must hold: spans of one step lie behind each other, step_first .. n; outside of a step
 * `active` is false, no row is noted and the pool is not watched. */
#include "kernel/profile_impl.h"

#include "base/mem.h"
#include "base/time.h"

enum { MOST_EVENTS = 32768, BUSY_ROOM = 1 << 19, BUSY_LEAST = 4096 };

/* --- one call ------------------------------------------------------------------------------- */

typedef struct mark {
    ls_profile_span *span; /* NULL: not noted, or no room */
    double work;
    int64_t begin_ns;
} mark;

static ls_profile_span *take_span(ls_profile *p)
{
    if (p->n == p->args.room) {
        p->dropped++;
        return NULL;
    }
    p->spans[p->n] = (ls_profile_span){.step = p->number, .events = -1};
    return &p->spans[p->n++];
}

/* Two events for a call, the first recorded. A call without them leaves no span. */
static bool take_events(ls_profile *p, ls_profile_span *span, ls_stream *stream)
{
    if (p->used_events + 2 > p->n_events) {
        p->n--;
        p->dropped++;
        return false;
    }
    span->events = p->used_events;
    p->used_events += 2;
    ls_event_record(p->events[span->events], stream);
    return true;
}

static mark call_begin(ls_profile *p, ls_stream *stream, ls_row row, const void *args)
{
    mark m = {0};

    if (!p->active)
        return m;
    ls_cost cost = ls_cost_of(row, args, p->args.updated);
    m.work = cost.flops + cost.bytes;
    m.span = take_span(p);
    if (m.span) {
        m.span->kind = LS_PROFILE_CALL;
        m.span->row = (int)row;
        m.span->work = m.work;
        memcpy(m.span->dims, cost.dims, sizeof cost.dims);
        if (p->later && !take_events(p, m.span, stream))
            m.span = NULL;
    }
    if (m.span && p->cupti) /* by its number the kernels will find it */
        ls_cupti_push(p->cupti, (uint64_t)(m.span - p->spans) + 1);
    m.begin_ns = ls_time_now_ns();
    return m;
}

static void add_call(ls_profile_total *total, double work, int64_t ns)
{
    total->calls++;
    total->ns += ns;
    total->work += work;
}

static void call_end(ls_profile *p, ls_stream *stream, ls_row row, mark m)
{
    int64_t end_ns = p->active ? ls_time_now_ns() : 0;

    if (!p->active)
        return;
    if (m.span && p->cupti)
        ls_cupti_pop(p->cupti);
    if (p->later) {
        if (m.span)
            ls_event_record(p->events[m.span->events + 1], stream);
        return;
    }
    add_call(&p->lap[row], m.work, end_ns - m.begin_ns);
    if (m.span) {
        m.span->begin_ns = m.begin_ns;
        m.span->end_ns = end_ns;
    }
}

#define WATCH(name, field, type)                                   \
    static void watch_##field(ls_stream *stream, const type *args) \
    {                                                              \
        ls_profile *p = ls_stream_watcher(stream);                 \
        mark m = call_begin(p, stream, LS_ROW_##name, args);       \
        p->args.kernels->field(stream, args);                      \
        call_end(p, stream, LS_ROW_##name, m);                     \
    }
LS_KERNEL_ROWS(WATCH)
WATCH(PACK, pack, ls_pack)

#define REPLACE(name, field, type) table->field = watch_##field;
static void fill_table(ls_kernels *table, const ls_kernels *inner)
{
    *table = *inner;
    LS_KERNEL_ROWS(REPLACE)
    if (inner->pack)
        table->pack = watch_pack;
}

/* --- workers -------------------------------------------------------------------------------- */

static void note_busy(void *context, int worker, int64_t begin_ns, int64_t end_ns, int64_t tasks)
{
    ls_profile *p = context;
    ls_profile_worker *w = &p->workers[worker];

    w->busy_ns += end_ns - begin_ns;
    if (w->n == w->room) {
        w->dropped++;
        return;
    }
    w->spans[w->n++] = (ls_profile_busy){begin_ns, end_ns, tasks};
}

static ls_status open_workers(ls_profile *p)
{
    if (!p->pool)
        return LS_OK;
    int n = ls_pool_threads(p->pool);
    int64_t room = ls_max_i64(BUSY_ROOM / n, BUSY_LEAST);
    p->worker_memory = ls_mem_alloc(((size_t)n + 1) * sizeof *p->workers);
    p->busy = ls_mem_array((size_t)n * (size_t)room, sizeof *p->busy);
    if (!p->worker_memory || !p->busy)
        return LS_ENOMEM;
    /* Aligned by hand, so that workers do not share a cache line. */
    uintptr_t at = (uintptr_t)p->worker_memory, line = _Alignof(ls_profile_worker);
    p->workers = (ls_profile_worker *)((char *)p->worker_memory + (line - at % line) % line);
    p->n_workers = n;
    for (int i = 0; i < n; i++)
        p->workers[i] = (ls_profile_worker){.spans = p->busy + i * room, .room = room};
    return LS_OK;
}

/* --- the profile ---------------------------------------------------------------------------- */

static ls_status open_events(ls_profile *p)
{
    ls_device *device = ls_stream_device(p->args.stream);
    int64_t n = ls_min_i64(2 * p->args.room, MOST_EVENTS);
    ls_status st = LS_OK;

    if (!p->later)
        return LS_OK;
    LS_TRY(st, ls_event_create(&p->anchor, device), out);
    p->events = ls_mem_array((size_t)n, sizeof *p->events);
    if (!p->events)
        return LS_ENOMEM;
    for (; p->n_events < n; p->n_events++)
        LS_TRY(st, ls_event_create(&p->events[p->n_events], device), out);
out:
    return st;
}

ls_status ls_profile_open(ls_profile **profile_out, const ls_profile_args *args)
{
    ls_status st = LS_OK;
    ls_profile *p = ls_mem_alloc(sizeof *p);

    if (!p)
        return LS_ENOMEM;
    LS_BUG_IF(args->n_phases > LS_PROFILE_PHASES || args->room < 1, "a profile of %d phases",
              args->n_phases);
    p->args = *args;
    fill_table(&p->table, args->kernels);
    p->device = ls_device_describe(ls_stream_device(args->stream));
    p->later = !p->device.host_memory;
    p->pool = ls_stream_pool(args->stream);
    p->spans = ls_mem_array((size_t)args->room, sizeof *p->spans);
    if (!p->spans) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, open_workers(p), out);
    LS_TRY(st, open_events(p), out);
    LS_TRY(st, ls_profile_inside_open(p), out);
    ls_stream_watch(args->stream, p);
    *profile_out = p;
out:
    if (st != LS_OK)
        ls_profile_close(p);
    return st;
}

void ls_profile_close(ls_profile *profile)
{
    ls_profile *p = profile;

    if (!p)
        return;
    if (p->active && p->pool) /* the step failed half-way */
        ls_pool_watch(p->pool, NULL, NULL);
    if (ls_stream_watcher(p->args.stream) == p)
        ls_stream_watch(p->args.stream, NULL);
    ls_profile_inside_close(p);
    for (int i = 0; i < p->n_events; i++)
        ls_event_free(p->events[i]);
    ls_event_free(p->anchor);
    ls_mem_free(p->events);
    ls_mem_free(p->worker_memory);
    ls_mem_free(p->busy);
    ls_mem_free(p->spans);
    ls_mem_free(p);
}

const ls_kernels *ls_profile_kernels(const ls_profile *profile)
{
    return &profile->table;
}

void ls_profile_begin(ls_profile *profile, int64_t number, int64_t begin_ns)
{
    ls_profile *p = profile;

    LS_BUG_IF(p->active, "step %lld begins inside of a step", (long long)number);
    p->active = true;
    p->number = number;
    p->begin_ns = begin_ns;
    p->step_first = p->lap_first = p->n;
    p->used_events = 0;
    if (p->cupti)
        ls_cupti_begin(p->cupti);
    if (p->later)
        ls_event_record(p->anchor, p->args.stream);
    if (p->pool)
        ls_pool_watch(p->pool, note_busy, p);
}

void ls_profile_lap(ls_profile *profile, int phase, int64_t begin_ns, int64_t end_ns)
{
    ls_profile *p = profile;

    if (!p->active)
        return;
    LS_BUG_IF(phase < 0 || phase >= p->args.n_phases, "phase %d of a profile", phase);
    p->phase_ns[phase] += end_ns - begin_ns;
    for (int row = 0; row < LS_ROWS; row++) {
        p->totals[phase][row].calls += p->lap[row].calls;
        p->totals[phase][row].ns += p->lap[row].ns;
        p->totals[phase][row].work += p->lap[row].work;
        p->lap[row] = (ls_profile_total){0};
    }
    for (int64_t i = p->lap_first; i < p->n; i++)
        p->spans[i].phase = phase;
    ls_profile_span *span = end_ns > begin_ns ? take_span(p) : NULL;
    if (span) {
        span->kind = LS_PROFILE_LAP;
        span->phase = phase;
        span->begin_ns = begin_ns;
        span->end_ns = end_ns;
    }
    p->lap_first = p->n;
}

/* When the calls of this step began and ended, by the device's events. */
static ls_status read_events(ls_profile *p)
{
    ls_status st = LS_OK;

    for (int64_t i = p->step_first; i < p->n; i++) {
        ls_profile_span *span = &p->spans[i];
        double begin, end;
        if (span->events < 0)
            continue;
        LS_TRY(st, ls_event_between(p->anchor, p->events[span->events], &begin), out);
        LS_TRY(st, ls_event_between(p->anchor, p->events[span->events + 1], &end), out);
        span->begin_ns = p->begin_ns + (int64_t)(begin * (double)LS_NS_PER_MS);
        span->end_ns = p->begin_ns + (int64_t)(end * (double)LS_NS_PER_MS);
        add_call(&p->totals[span->phase][span->row], span->work, span->end_ns - span->begin_ns);
    }
out:
    return st;
}

ls_status ls_profile_end(ls_profile *profile, int64_t end_ns)
{
    ls_profile *p = profile;
    ls_status st = LS_OK;

    LS_BUG_IF(!p->active, "a step of a profile ends that did not begin");
    p->active = false;
    if (p->pool)
        ls_pool_watch(p->pool, NULL, NULL);
    LS_TRY(st, read_events(p), out);
    ls_profile_inside_end(p);
    ls_profile_span *span = take_span(p);
    if (span) {
        span->kind = LS_PROFILE_STEP;
        span->begin_ns = p->begin_ns;
        span->end_ns = end_ns;
    }
    if (p->steps++ == 0)
        p->first = p->number;
    p->last = p->number;
    p->wall_ns += end_ns - p->begin_ns;
out:
    return st;
}
