/* profile_inside.c -- the kernels inside of rows, on a device whose kernels can be listened to.
 *
 * While a call queues, its span's number is the tag of all it queues (profile.c); when the step has
 * ended, the device reports its kernels with their tags, and each finds its call. A call's
 * operations or bytes are those of the row, not of a kernel; they are counted for a kernel that
 * takes more than half of the call, so that a product has its rate, the small sum behind it has
 * none, and of several products in one call (head) none has all:
 *
 *   linear_bwd_w, 10 GFLOP:   nvjet_tst_128x256 20 us -> 500 TFLOP/s     reduce 2 us -> -
 *
 * Times are the device's without the gaps between kernels, so a row takes a little longer than its
 * kernels together. */
#include "kernel/profile_impl.h"

#include "base/mem.h"

enum { INNER_MOST = 1 << 18, INNER_EACH = 4, IN_ROW_MOST = 4, SLOWEST_MOST = 20 };

ls_status ls_profile_inside_open(ls_profile *p)
{
    if (!p->later || !p->args.inside)
        return LS_OK;
    p->inner_room = ls_min_i64(INNER_EACH * p->args.room, INNER_MOST);
    p->inner = ls_mem_array((size_t)p->inner_room, sizeof *p->inner);
    if (!p->inner)
        return LS_ENOMEM;
    ls_cupti_open(&p->cupti, p->inner_room, p->no_cupti);
    return LS_OK;
}

void ls_profile_inside_close(ls_profile *p)
{
    ls_cupti_close(p->cupti);
    ls_mem_free(p->inner);
}

void ls_profile_stop(ls_profile *profile)
{
    if (profile->cupti)
        ls_cupti_stop(profile->cupti);
}

/* The call of this step with that tag; NULL: none. */
static const ls_profile_span *call_of(const ls_profile *p, uint64_t tag)
{
    int64_t i = (int64_t)tag - 1;

    if (tag == 0 || i < p->step_first || i >= p->n || p->spans[i].kind != LS_PROFILE_CALL)
        return NULL;
    return &p->spans[i];
}

/* Counts the work of calls for the kernels that take most of them. Kernels of a call are
 * neighbours, but for those of another stream that began between them. */
static void count_work(ls_profile *p, const ls_cupti_span *spans, int64_t n, int64_t first)
{
    for (int64_t i = 0; i < n; i++) {
        const ls_profile_span *call = call_of(p, spans[i].tag);
        int64_t length = spans[i].end_ns - spans[i].begin_ns;
        int64_t all = 0; /* of the call */
        if (!call) {
            p->inner[first + i].work = (double)spans[i].bytes;
            continue;
        }
        for (int64_t k = ls_max_i64(0, i - 64); k < n && k <= i + 64; k++)
            all += spans[k].tag == spans[i].tag ? spans[k].end_ns - spans[k].begin_ns : 0;
        p->inner[first + i].work = 2 * length > all ? call->work : 0;
    }
}

void ls_profile_inside_end(ls_profile *p)
{
    const ls_cupti_span *spans = NULL;
    int64_t first = p->n_inner;

    if (!p->cupti)
        return;
    int64_t all = ls_cupti_collect(p->cupti, &spans);
    int64_t n = ls_min_i64(all, p->inner_room - p->n_inner);
    for (int64_t i = 0; i < n; i++) {
        const ls_profile_span *call = call_of(p, spans[i].tag);
        int64_t begin_ns = ls_max_i64(spans[i].begin_ns, p->begin_ns); /* clocks agree to 1 us */
        p->inner[p->n_inner++] = (ls_profile_inner){.begin_ns = begin_ns,
                                                    .end_ns = ls_max_i64(spans[i].end_ns, begin_ns),
                                                    .step = p->number,
                                                    .row = call ? call->row : LS_ROWS,
                                                    .phase = call ? call->phase : -1,
                                                    .name = spans[i].name};
    }
    count_work(p, spans, n, first);
    p->inner_full += all - n;
    p->inner_dropped = p->inner_full + ls_cupti_dropped(p->cupti);
    if (p->steps == 0 && all == 0) {
        snprintf(p->no_cupti, sizeof p->no_cupti, "CUPTI saw none");
        ls_cupti_close(p->cupti);
        p->cupti = NULL;
    }
}

/* --- sums ----------------------------------------------------------------------------------- */

typedef struct group {
    int row, name;
    int64_t calls, ns, work_ns; /* work_ns: of the kernels that work was counted for */
    double work;
} group;

static int slowest_first(const void *a, const void *b)
{
    const ls_profile_kernel *x = a, *y = b;

    if (x->ms > y->ms || x->ms < y->ms)
        return x->ms > y->ms ? -1 : 1;
    return x->row != y->row ? x->row - y->row : strcmp(x->name, y->name);
}

static group *group_of(group *groups, int *n, int row, int name)
{
    for (int i = 0; i < *n; i++)
        if (groups[i].row == row && groups[i].name == name)
            return &groups[i];
    if (*n == LS_PROFILE_KERNELS)
        return NULL;
    groups[*n] = (group){.row = row, .name = name};
    return &groups[(*n)++];
}

static ls_profile_kernel kernel_of(const ls_profile *p, const group *g, double step_ms)
{
    double steps = (double)p->steps;
    double peak = g->row < LS_ROWS ? ls_profile_peak(p, (ls_row)g->row) : 0;
    ls_profile_kernel k = {.row = g->row,
                           .name = ls_cupti_name(p->cupti, g->name),
                           .calls = (double)g->calls / steps,
                           .ms = (double)g->ns / 1e6 / steps,
                           .rate = g->work_ns > 0 ? g->work / ((double)g->work_ns / 1e9) : 0};

    k.share = step_ms > 0 ? k.ms / step_ms : 0;
    k.peak_share = peak > 0 ? k.rate / peak : 0;
    return k;
}

int ls_profile_inside(const ls_profile *profile, ls_profile_kernel kernels_out[LS_PROFILE_KERNELS])
{
    const ls_profile *p = profile;
    group groups[LS_PROFILE_KERNELS];
    ls_profile_figures f;
    int n = 0;

    for (int64_t i = 0; i < p->n_inner; i++) {
        const ls_profile_inner *k = &p->inner[i];
        if (k->phase >= 0 && !ls_profile_counts(p, k->phase))
            continue;
        group *g = group_of(groups, &n, k->row, k->name);
        if (!g)
            continue;
        g->calls++;
        g->ns += k->end_ns - k->begin_ns;
        if (k->work > 0) {
            g->work += k->work;
            g->work_ns += k->end_ns - k->begin_ns;
        }
    }
    if (n == 0 || p->steps == 0)
        return 0;
    ls_profile_sum(p, &f);
    for (int i = 0; i < n; i++)
        kernels_out[i] = kernel_of(p, &groups[i], f.step_ms);
    qsort(kernels_out, (size_t)n, sizeof *kernels_out, slowest_first);
    return n;
}

/* --- for people and programs ---------------------------------------------------------------- */

static bool in_flops(const ls_profile_kernel *k)
{
    return k->row < LS_ROWS && ls_cost_in_flops((ls_row)k->row);
}

/* The columns of the table of rows, with the kernel's name behind them. */
static void put_kernel(const ls_profile_kernel *k, const char *first, ls_str *out)
{
    char rate[32] = "-        ", share[16] = "-";

    if (k->rate > 0)
        ls_profile_put_rate(k->rate, in_flops(k), rate);
    if (k->peak_share > 0)
        snprintf(share, sizeof share, "%.0f %%", 100 * k->peak_share);
    ls_str_printf(out, "%-14s %12.1f %12.3f %8.1f %% %18s %9s  %s\n", first, k->calls, k->ms,
                  100 * k->share, rate, share, k->name);
}

void ls_profile_inside_row(const ls_profile_kernel *kernels, int n, int row, ls_str *out)
{
    int shown = 0, more = 0;
    double ms = 0;

    for (int i = 0; i < n; i++) {
        if (kernels[i].row != row)
            continue;
        if (shown < IN_ROW_MOST) {
            put_kernel(&kernels[i], "  kernel", out);
            shown++;
        } else {
            more++;
            ms += kernels[i].ms;
        }
    }
    if (more > 0)
        ls_str_printf(out, "  %d more %18s %12.3f\n", more, "", ms);
}

void ls_profile_inside_table(const ls_profile *p, const ls_profile_kernel *kernels, int n,
                             ls_str *out)
{
    if (n == 0) {
        if (*p->no_cupti)
            ls_str_printf(out, "the kernels inside of rows are not known: %s\n", p->no_cupti);
        return;
    }
    ls_str_printf(out, "\nkernels, the slowest%s\n%-14s %12s %12s %10s %18s %9s  %s\n",
                  n > SLOWEST_MOST ? " 20" : " first", "of row", "calls/step", "ms/step", "of step",
                  "rate", "of peak", "name");
    for (int i = 0; i < n && i < SLOWEST_MOST; i++)
        put_kernel(&kernels[i],
                   kernels[i].row < LS_ROWS ? ls_kernel_rows[kernels[i].row].name : "none", out);
}

void ls_profile_inside_json(const ls_profile *p, const ls_profile_kernel *kernels, int n,
                            ls_json *j)
{
    if (*p->no_cupti)
        ls_json_put_str(j, "kernels_not_known", p->no_cupti);
    if (n == 0)
        return;
    ls_json_key(j, "inside");
    ls_json_open(j, '[');
    for (int i = 0; i < n; i++) {
        const ls_profile_kernel *k = &kernels[i];
        ls_json_open(j, '{');
        ls_json_put_str(j, "kernel", k->name);
        if (k->row < LS_ROWS)
            ls_json_put_str(j, "row", ls_kernel_rows[k->row].name);
        ls_json_put_num(j, "calls", k->calls);
        ls_json_put_num(j, "ms", k->ms);
        ls_json_put_num(j, "share", k->share);
        if (k->rate > 0)
            ls_json_put_num(j, in_flops(k) ? "flops_per_s" : "bytes_per_s", k->rate);
        if (k->peak_share > 0)
            ls_json_put_num(j, "peak_share", k->peak_share);
        ls_json_close(j);
    }
    ls_json_close(j);
}
