/* bench_measure.c -- the time of a row, and what it is held against.
 *
 * A row is prepared (buffers, arguments), run once to warm up, then again and again for about 0.2
 * s; the median counts, because a neighbour on the machine spoils a mean. What a row must compute
 * and move at least is a formula of the shape (kernel/row_cost.h), so that rates of different
 * versions compare. Products are held against the measured fma peak, everything else against the
 * bandwidth that a plain loop reaches over as much memory as the row works on, so that a row whose
 * data stay in a cache is held against that cache.
 *
 * A ceiling is measured right before and right after its row and the larger of the two counts. When
 * they are far apart, or the fma peak is far below the best one seen, something else ran on the
 * machine, and the row says so.
 *
 * On a GPU a row is timed by events around as many calls as take about 5 ms, and held against what
 * the card was measured to do (kernel/peak.h): a product of its own type, or a copy. */
#include "kernel/bench.h"

#include "base/time.h"
#include "kernel/row_cost.h"

enum { MOST_RUNS = 2000 };

static int compare_ns(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

/* The median time of one call in seconds, by events around several. */
static ls_status measure_gpu(ls_bench *b, ls_row row, double *seconds_out)
{
    const int64_t enough_ns = 200 * LS_NS_PER_MS, group_ns = 5 * LS_NS_PER_MS;
    int64_t times[MOST_RUNS], spent = 0, calls = 1;
    ls_status st = LS_OK;
    int n = 0;

    for (int i = -2; i < MOST_RUNS && (n < 3 || spent < enough_ns); i++) {
        double ms = 0;
        ls_event_record(b->begin, b->stream);
        for (int64_t k = 0; k < calls; k++)
            ls_bench_run(b, row);
        ls_event_record(b->end, b->stream);
        LS_TRY(st, ls_stream_sync(b->stream, ls_time_now_ns() + 600 * LS_NS_PER_S), out);
        LS_TRY(st, ls_event_between(b->begin, b->end, &ms), out);
        int64_t ns = ls_max_i64((int64_t)(ms * (double)LS_NS_PER_MS), calls);
        if (i == -1) /* the first warms up, the second says how many make a group */
            calls = ls_max_i64(1, ls_min_i64(group_ns / ns, 1000));
        if (i < 0)
            continue;
        times[n++] = ns / calls;
        spent += ns;
    }
    qsort(times, (size_t)n, sizeof *times, compare_ns);
    *seconds_out = (double)times[n / 2] / 1e9;
out:
    return st;
}

/* The median time of one call in seconds. */
static ls_status measure(ls_bench *b, ls_row row, double *seconds_out)
{
    const int64_t enough_ns = 200 * LS_NS_PER_MS;
    int64_t times[MOST_RUNS], spent = 0;
    int n = 0;

    for (int i = -1; i < MOST_RUNS && (n < 3 || spent < enough_ns); i++) {
        int64_t start = ls_time_now_ns();
        ls_bench_run(b, row);
        ls_status st = ls_stream_sync(b->stream, start + 600 * LS_NS_PER_S);
        if (st != LS_OK)
            return st;
        int64_t ns = ls_time_now_ns() - start;
        if (i < 0 && ns < 5 * enough_ns) /* the first warms up; a very slow one counts */
            continue;
        times[n++] = ns;
        spent += ns;
        if (ns >= 5 * enough_ns)
            break;
    }
    qsort(times, (size_t)n, sizeof *times, compare_ns);
    *seconds_out = (double)times[n / 2] / 1e9;
    return LS_OK;
}

static ls_peak_traffic traffic_of(ls_row row)
{
    switch (row) {
    case LS_ROW_SUM:
    case LS_ROW_NORM2:
        return LS_PEAK_READ;
    case LS_ROW_FILL:
        return LS_PEAK_WRITE;
    case LS_ROW_SCALE:
    case LS_ROW_ADAMW: /* four read, three of them written */
    case LS_ROW_LAMB:
    case LS_ROW_MOMENTUM:
    case LS_ROW_MUON:
        return LS_PEAK_UPDATE;
    case LS_ROW_QKV_FWD:
    case LS_ROW_QKV_BWD:
    case LS_ROW_ACT_FWD:
    case LS_ROW_ACT_BWD:
    case LS_ROW_EMBED_FWD:
    case LS_ROW_CAST:
    case LS_ROW_PACK:
        return LS_PEAK_COPY;
    default:
        return LS_PEAK_ADD;
    }
}

static double ceiling_of(const ls_bench *b, const ls_bench_figure *f)
{
    if (b->gpu && f->flops > 0)
        return b->type == LS_BF16 ? b->peak.bf16_flops : b->peak.f32_flops;
    if (b->gpu)
        return b->peak.bytes;
    if (f->flops > 0)
        return ls_peak_flops(b->device, b->kernels->name);
    return ls_peak_bytes(b->device, b->kernels->name, traffic_of(f->row), f->working_bytes);
}

const char *ls_bench_level(const ls_bench *b, const ls_bench_figure *f)
{
    if (b->gpu)
        return f->flops <= 0 ? "memory" : b->type == LS_BF16 ? "bf16" : "fp32";
    if (f->flops > 0)
        return "fma";
    return ls_peak_level(f->working_bytes, ls_device_describe(b->device).threads);
}

static void judge(ls_bench *b, ls_bench_figure *f, double before, double after)
{
    double low = before < after ? before : after;

    f->ceiling = before > after ? before : after;
    f->share = f->ceiling > 0 ? (f->flops + f->bytes) / f->seconds / f->ceiling : 0;
    f->busy = low < 0.85 * f->ceiling;
    if (f->flops > 0) {
        b->best_flops = f->ceiling > b->best_flops ? f->ceiling : b->best_flops;
        f->busy = f->busy || f->ceiling < 0.9 * b->best_flops;
    }
    b->n_shown++;
    b->n_busy += f->busy;
}

ls_status ls_bench_measure(ls_bench *b, ls_row row, int which, ls_bench_figure *figure_out)
{
    ls_bench_figure f = {.row = row};
    double before = 0;
    ls_status st;

    ls_bench_prepare(b, row, which);
    if (ls_bench_is_linear(row))
        f.product = b->product.name;
    ls_cost cost = ls_cost_of(row, &b->args, b->d->n);
    f.flops = cost.flops;
    f.bytes = cost.bytes;
    /* Of a large table only the rows in use count; in place, a buffer counts once. */
    f.working_bytes = ls_min_i64(b->buffer_bytes, (int64_t)f.bytes);
    st = b->st;
    if (st == LS_OK) {
        before = ceiling_of(b, &f);
        st = b->gpu ? measure_gpu(b, row, &f.seconds) : measure(b, row, &f.seconds);
    }
    ls_bench_drop(b);
    if (st != LS_OK)
        return st;
    judge(b, &f, before, ceiling_of(b, &f));
    *figure_out = f;
    return LS_OK;
}
