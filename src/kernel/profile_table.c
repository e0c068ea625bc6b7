/* profile_table.c -- a profile as a table by row, for people and as JSON.
 *
 * A step is its wall time without the phases that are aside (a validation would make every share of
 * a short profile meaningless). Rows of the other phases, slowest first, and the time in no row sum
 * to it. */
#include "kernel/profile_impl.h"

enum { SLOWEST = 3 };

void ls_profile_raise_peaks(ls_profile *profile, double flops, double bytes)
{
    ls_profile_args *a = &profile->args;

    a->peak_flops = flops > a->peak_flops ? flops : a->peak_flops;
    a->peak_bytes = bytes > a->peak_bytes ? bytes : a->peak_bytes;
}

/* Slowest first; rows of equal time in the order of the table. */
static int by_time(const void *a, const void *b)
{
    const ls_profile_row *x = a, *y = b;

    if (x->ms > y->ms || x->ms < y->ms)
        return x->ms > y->ms ? -1 : 1;
    return (int)x->row - (int)y->row;
}

static void sum_rows(const ls_profile *p, ls_profile_figures *f)
{
    double steps = (double)p->steps;

    for (int row = 0; row < LS_ROWS; row++) {
        ls_profile_total t = {0};
        for (int phase = 0; phase < p->args.n_phases; phase++)
            if (ls_profile_counts(p, phase)) {
                t.calls += p->totals[phase][row].calls;
                t.ns += p->totals[phase][row].ns;
                t.work += p->totals[phase][row].work;
            }
        if (t.calls == 0)
            continue;
        ls_profile_row *r = &f->rows[f->n_rows++];
        double peak = ls_profile_peak(p, (ls_row)row);
        *r = (ls_profile_row){.row = (ls_row)row,
                              .calls = (double)t.calls / steps,
                              .ms = (double)t.ns / 1e6 / steps,
                              .rate = t.ns > 0 ? t.work / ((double)t.ns / 1e9) : 0};
        r->share = f->step_ms > 0 ? r->ms / f->step_ms : 0;
        r->peak_share = peak > 0 ? r->rate / peak : 0;
        f->none_ms -= r->ms;
    }
    qsort(f->rows, (size_t)f->n_rows, sizeof f->rows[0], by_time);
}

/* How much of the time of all rows, whatever their phase, workers were in tasks. */
static void sum_workers(const ls_profile *p, ls_profile_figures *f)
{
    int64_t ns = 0;

    for (int phase = 0; phase < p->args.n_phases; phase++)
        for (int row = 0; row < LS_ROWS; row++)
            ns += p->totals[phase][row].ns;
    for (int i = 0; i < p->n_workers && ns > 0; i++) {
        double busy = (double)p->workers[i].busy_ns / (double)ns;
        f->busy_mean += busy / p->n_workers;
        f->busy_least = i == 0 || busy < f->busy_least ? busy : f->busy_least;
        f->dropped += p->workers[i].dropped;
    }
}

void ls_profile_sum(const ls_profile *profile, ls_profile_figures *figures_out)
{
    const ls_profile *p = profile;
    ls_profile_figures *f = figures_out;
    int64_t aside_ns = 0;

    *f = (ls_profile_figures){.steps = p->steps, .first = p->first, .last = p->last};
    if (p->steps == 0)
        return;
    for (int phase = 0; phase < p->args.n_phases; phase++)
        aside_ns += ls_profile_counts(p, phase) ? 0 : p->phase_ns[phase];
    f->aside_ms = (double)aside_ns / 1e6;
    f->step_ms = (double)(p->wall_ns - aside_ns) / 1e6 / (double)p->steps;
    f->none_ms = f->step_ms;
    f->dropped = p->dropped + p->inner_dropped;
    sum_rows(p, f);
    f->none_share = f->step_ms > 0 ? f->none_ms / f->step_ms : 0;
    sum_workers(p, f);
}

/* --- for people ----------------------------------------------------------------------------- */

static void put_title(const ls_profile *p, const ls_profile_figures *f, ls_str *out)
{
    if (f->steps == 1)
        ls_str_printf(out, "profile of step %lld: %.3f ms", (long long)f->first, f->step_ms);
    else
        ls_str_printf(out, "profile of steps %lld to %lld: %.3f ms a step", (long long)f->first,
                      (long long)f->last, f->step_ms);
    if (f->aside_ms > 0) {
        ls_str_append(out, ", without ");
        bool first = true;
        for (int phase = 0; phase < p->args.n_phases; phase++)
            if (!ls_profile_counts(p, phase) && p->phase_ns[phase] > 0) {
                ls_str_printf(out, "%s%s", first ? "" : " and ", p->args.phases[phase]);
                first = false;
            }
        ls_str_printf(out, " (%.1f ms in all)", f->aside_ms);
    }
    ls_str_printf(out, "\n%s, %s kernels", p->device.name, p->args.kernels->name);
    if (p->args.peak_flops > 0 || p->args.peak_bytes > 0) {
        char flops[32], bytes[32];
        ls_profile_put_rate(p->args.peak_flops, true, flops);
        ls_profile_put_rate(p->args.peak_bytes, false, bytes);
        bytes[strcspn(bytes, "/") + 2] = '\0'; /* nothing behind "GB/s" */
        ls_str_printf(out, "\nmeasured peaks: %s, %s", flops, bytes);
        if (p->args.peak_held > 0) {
            ls_profile_put_rate(p->args.peak_held, true, flops);
            ls_str_printf(out, "; for a while: %s", flops);
        }
    }
    ls_str_append(out, "\n\n");
}

/* A GPU's are a thousand times a CPU's. */
void ls_profile_put_rate(double rate, bool flops, char text_out[32])
{
    bool large = rate >= (flops ? 1e13 : 1e12);

    snprintf(text_out, 32, "%.*f %c%s", large && !flops ? 2 : 1, rate / (large ? 1e12 : 1e9),
             large ? 'T' : 'G', flops ? "FLOP/s" : "B/s   ");
}

static void put_row(const ls_profile_row *r, ls_str *out)
{
    char rate[32], share[16] = "-";

    ls_profile_put_rate(r->rate, ls_cost_in_flops(r->row), rate);
    if (r->peak_share > 0)
        snprintf(share, sizeof share, "%.0f %%", 100 * r->peak_share);
    ls_str_printf(out, "%-14s %12.1f %12.3f %8.1f %% %18s %9s\n", ls_kernel_rows[r->row].name,
                  r->calls, r->ms, 100 * r->share, rate, share);
}

/* "slowest: head 31 % of the step (88 % of peak), linear_fwd 22 % (90 %), ..." */
static void put_verdict(const ls_profile_figures *f, ls_str *out)
{
    ls_str_append(out, "slowest:");
    for (int i = 0; i < f->n_rows && i < SLOWEST; i++) {
        const ls_profile_row *r = &f->rows[i];
        ls_str_printf(out, "%s %s %.0f %%%s", i ? "," : "", ls_kernel_rows[r->row].name,
                      100 * r->share, i ? "" : " of the step");
        if (r->peak_share > 0)
            ls_str_printf(out, " (%.0f %%%s)", 100 * r->peak_share, i ? "" : " of peak");
    }
    ls_str_append_char(out, '\n');
}

void ls_profile_table(const ls_profile *profile, ls_str *text_out)
{
    ls_profile_figures f;
    ls_profile_kernel inside[LS_PROFILE_KERNELS];
    int n = ls_profile_inside(profile, inside);
    bool cached = false;

    ls_profile_sum(profile, &f);
    put_title(profile, &f, text_out);
    ls_str_printf(text_out, "%-14s %12s %12s %10s %18s %9s\n", "row", "calls/step", "ms/step",
                  "of step", "rate", "of peak");
    for (int i = 0; i < f.n_rows; i++) {
        put_row(&f.rows[i], text_out);
        ls_profile_inside_row(inside, n, (int)f.rows[i].row, text_out);
        cached = cached || f.rows[i].peak_share > 1;
    }
    ls_str_printf(text_out, "%-14s %12s %12.3f %8.1f %%\n\n", "in no kernel", "", f.none_ms,
                  100 * f.none_share);
    if (f.n_rows > 0)
        put_verdict(&f, text_out);
    if (f.busy_mean > 0 && profile->n_workers > 1)
        ls_str_printf(text_out,
                      "threads: in tasks for %.0f %% of the kernels' time, the least busy one for "
                      "%.0f %%\n",
                      100 * f.busy_mean, 100 * f.busy_least);
    if (cached)
        ls_str_append(
            text_out,
            "more than 100 % of peak: from a cache, or the peak was measured on a busy machine\n");
    if (f.dropped > 0)
        ls_str_printf(text_out,
                      "the trace was full: it lacks the last %lld spans%s; profile fewer steps\n",
                      (long long)f.dropped, profile->later ? ", and so does this table" : "");
    ls_profile_inside_table(profile, inside, n, text_out);
}

/* --- for programs --------------------------------------------------------------------------- */

static void put_json_row(ls_json *j, const ls_profile_row *r)
{
    ls_json_open(j, '{');
    ls_json_put_str(j, "row", ls_kernel_rows[r->row].name);
    ls_json_put_num(j, "calls", r->calls);
    ls_json_put_num(j, "ms", r->ms);
    ls_json_put_num(j, "share", r->share);
    ls_json_put_num(j, ls_cost_in_flops(r->row) ? "flops_per_s" : "bytes_per_s", r->rate);
    if (r->peak_share > 0)
        ls_json_put_num(j, "peak_share", r->peak_share);
    ls_json_close(j);
}

void ls_profile_json(const ls_profile *profile, ls_str *text_out)
{
    const ls_profile *p = profile;
    ls_profile_kernel inside[LS_PROFILE_KERNELS];
    int n = ls_profile_inside(p, inside);
    ls_profile_figures f;
    ls_json j;

    ls_profile_sum(p, &f);
    ls_json_begin_lines(&j, text_out, 2);
    ls_json_open(&j, '{');
    ls_json_put_int(&j, "first_step", f.first);
    ls_json_put_int(&j, "last_step", f.last);
    ls_json_put_int(&j, "steps", f.steps);
    ls_json_put_num(&j, "step_ms", f.step_ms);
    ls_json_put_num(&j, "aside_ms", f.aside_ms);
    ls_json_put_str(&j, "device", p->device.name);
    ls_json_put_str(&j, "kernels", p->args.kernels->name);
    ls_json_put_num(&j, "peak_flops_per_s", p->args.peak_flops);
    ls_json_put_num(&j, "peak_bytes_per_s", p->args.peak_bytes);
    if (p->args.peak_held > 0)
        ls_json_put_num(&j, "held_flops_per_s", p->args.peak_held);
    ls_json_key(&j, "rows");
    ls_json_open(&j, '[');
    for (int i = 0; i < f.n_rows; i++)
        put_json_row(&j, &f.rows[i]);
    ls_json_close(&j);
    ls_profile_inside_json(p, inside, n, &j);
    ls_json_put_num(&j, "no_kernel_ms", f.none_ms);
    ls_json_put_num(&j, "no_kernel_share", f.none_share);
    if (f.busy_mean > 0) {
        ls_json_put_num(&j, "busy_mean", f.busy_mean);
        ls_json_put_num(&j, "busy_least", f.busy_least);
    }
    ls_json_put_int(&j, "dropped", f.dropped);
    ls_json_close(&j);
    ls_str_append_char(text_out, '\n');
}
