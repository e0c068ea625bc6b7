/* discrete_device.c -- the entries of the CPU's device and all rows, each between unlock and lock.
 *
 * The rows do their work at once, so results could be seen too early; copies to the host are
 * therefore kept and handed over by sync. Of streams it is known which rows they have waited for.
 */
#include "train/discrete_device.h"

#include <sys/mman.h>
#include <unistd.h>
#include "base/mem.h"
#include "device/device_impl.h"
#include "harness.h"
#include "kernel/experts.h"

enum { MOST_COPIES = 1024, MOST_STREAMS = 8 };

/* A copy that a wait for its stream ends. */
typedef struct pending {
    const ls_stream *stream;
    int64_t number;   /* of all copies */
    void *to;         /* host memory, or NULL */
    const void *from; /* host memory, or NULL */
    void *bytes;      /* owned: as they were when it was queued */
    size_t n;
} pending;

typedef struct recording recording;
static recording *recorded; /* a graph; NULL: work is done */

static const ls_kernels *real;
static ls_device_ops ops;
static ls_kernels table;
static ls_plugin plugin;
static pending copies[MOST_COPIES];
static int n_copies;
static int64_t copies_queued, waits, launches;
static const ls_stream *first_stream; /* where rows were queued first: that of the steps */
static struct {
    const ls_stream *stream;
    int64_t rows[MOST_STREAMS]; /* of each stream, so many come before what is queued on it next, */
    const ls_stream *after;     /* and of this stream's copies */
    int64_t copies;             /* those up to this one */
} seen[MOST_STREAMS];
static int of_card, of_cards;
static bool of_fp8, moves_beside_sums;

/* What an event stands behind. */
typedef struct mark {
    const ls_stream *stream, *after;
    int64_t copies, after_copies, rows[MOST_STREAMS];
} mark;

static void protect(const ls_device *d, int how)
{
    for (int i = 0; i < LS_DEVICE_BUFFERS; i++)
        if (d->buffers[i].memory)
            LS_CHECK_EQ(mprotect(d->buffers[i].memory, (size_t)d->buffers[i].bytes, how), 0);
    for (int i = 0; i < LS_DEVICE_WINDOWS; i++)
        if (d->windows[i].turns)
            LS_CHECK_EQ(mprotect(d->windows[i].turns, (size_t)d->windows[i].turned, how), 0);
}

/* Between the two it is the CPU's device, which brings no table of its own. */
static void unlock(ls_device *d)
{
    d->plugin = NULL;
    protect(d, PROT_READ | PROT_WRITE);
}

static void lock(ls_device *d)
{
    d->plugin = &plugin;
    protect(d, PROT_NONE);
}

static bool on_device(const ls_device *d, const void *p)
{
    for (int i = 0; i < LS_DEVICE_BUFFERS; i++) {
        const char *first = d->buffers[i].memory;
        if (first && (const char *)p >= first && (const char *)p < first + d->buffers[i].bytes)
            return true;
    }
    for (int i = 0; i < LS_DEVICE_WINDOWS; i++) {
        const char *first = d->windows[i].turns;
        if (first && (const char *)p >= first && (const char *)p < first + d->windows[i].turned)
            return true;
    }
    return false;
}

static void *discrete_alloc(ls_device *device, int64_t bytes)
{
    void *p = ls_device_cpu.alloc(device, bytes);

    if (p)
        LS_CHECK_EQ(mprotect(p, (size_t)bytes, PROT_NONE), 0);
    return p;
}

/* Windows: addresses that become memory where they are backed. */
enum { WINDOW_PAGE = 8192 };

static int64_t discrete_window_page(const ls_device *device)
{
    (void)device;
    return WINDOW_PAGE;
}

static void *discrete_window_open(ls_device *device, int64_t bytes)
{
    void *base =
        mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    (void)device;
    return base == MAP_FAILED ? NULL : base;
}

static bool discrete_window_back(ls_device *device, void *at, int64_t bytes)
{
    (void)device;
    (void)at;
    LS_CHECK_EQ(bytes % WINDOW_PAGE, 0);
    return true; /* as soon as it is listed, rows unlock it */
}

/* The same memory at several addresses. */
static bool discrete_window_turn(ls_device *device, void *at, int64_t bytes, int64_t period)
{
    int fd = memfd_create("turns", MFD_CLOEXEC);

    (void)device;
    LS_CHECK(bytes % WINDOW_PAGE == 0 && period % WINDOW_PAGE == 0);
    LS_CHECK(fd >= 0 && ftruncate(fd, period) == 0);
    for (int64_t done = 0; done < bytes; done += period)
        LS_CHECK(mmap((char *)at + done, (size_t)ls_device_turn(bytes, period, done), PROT_NONE,
                      MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
    LS_CHECK_EQ(close(fd), 0);
    return true;
}

static void discrete_window_drop(ls_device *device, void *at, int64_t bytes)
{
    (void)device;
    LS_CHECK_EQ(mprotect(at, (size_t)bytes, PROT_NONE), 0);
}

static void discrete_window_close(ls_device *device, void *base, int64_t bytes)
{
    (void)device;
    LS_CHECK_EQ(munmap(base, (size_t)bytes), 0);
}

static void discrete_describe(const ls_device *device, ls_device_info *info_out)
{
    ls_device_cpu.describe(device, info_out);
    info_out->host_memory = false;
    info_out->card = of_card;
    info_out->cards = of_cards;
    info_out->fp8 = of_fp8;
}

/* What comes before what a stream does next. */
static int before(const ls_stream *stream)
{
    int at = -1;

    for (int i = 0; i < MOST_STREAMS; i++) {
        if (seen[i].stream == stream)
            return i;
        at = seen[i].stream ? at : i;
    }
    LS_CHECK(at >= 0);
    int64_t rows = seen[at].rows[at]; /* of a stream that is closed: they are counted on */
    memset(&seen[at], 0, sizeof seen[at]);
    seen[at].stream = stream;
    seen[at].rows[at] = rows;
    return at;
}

static void count_row(const ls_stream *stream)
{
    int at = before(stream);

    seen[at].rows[at]++;
    first_stream = first_stream ? first_stream : stream;
}

/* A copy to the host comes behind the rows of all streams; every other one of a second stream behind
 * those of the first. Else it would copy too early. Moves inside of a pass go on while a side stream
 * adds gradients, with which they have nothing to do: then only the rows of the first come before. */
static void check_order(const ls_stream *stream, bool to_host)
{
    int at = before(stream);
    bool all = to_host && !moves_beside_sums;

    for (int i = 0; i < MOST_STREAMS; i++)
        if (seen[i].stream && (all || seen[i].stream == first_stream))
            LS_CHECK_EQ(seen[at].rows[i], seen[i].rows[i]);
}

static void copy_now(ls_stream *stream, void *dst, const void *src, int64_t bytes)
{
    ls_device *d = ls_stream_device(stream);
    bool to_host = !on_device(d, dst), from_host = !on_device(d, src);
    pending *p = &copies[n_copies];

    LS_CHECK(!(to_host && from_host));
    check_order(stream, to_host);
    unlock(d);
    if (to_host || from_host) {
        LS_CHECK(n_copies < MOST_COPIES);
        *p = (pending){.stream = stream,
                       .number = ++copies_queued,
                       .to = to_host ? dst : NULL,
                       .from = from_host ? src : NULL,
                       .bytes = malloc((size_t)bytes),
                       .n = (size_t)bytes};
        LS_CHECK(p->bytes);
        memcpy(p->bytes, src, p->n);
        n_copies++;
    }
    if (!to_host)
        memcpy(dst, src, (size_t)bytes);
    lock(d);
}

/* Copies of this stream up to that number are done. */
static void deliver(const ls_stream *stream, int64_t number)
{
    int kept = 0;

    for (int i = 0; i < n_copies; i++) {
        const pending *p = &copies[i];
        if (p->stream != stream || p->number > number) {
            copies[kept++] = *p;
            continue;
        }
        if (p->from)
            LS_CHECK(memcmp(p->from, p->bytes, p->n) == 0); /* host memory changed before sync */
        if (p->to)
            memcpy(p->to, p->bytes, p->n);
        free(p->bytes);
    }
    n_copies = kept;
}

static ls_status discrete_sync(ls_stream *stream, int64_t deadline_ns)
{
    LS_CHECK(!recorded);
    waits++;
    deliver(stream, copies_queued);
    return ls_device_cpu.sync(stream, deadline_ns);
}

static void discrete_stream_close(ls_stream *stream)
{
    int kept = 0;

    for (int i = 0; i < n_copies; i++) /* its copies are nobody's now */
        if (copies[i].stream == stream)
            free(copies[i].bytes);
        else
            copies[kept++] = copies[i];
    n_copies = kept;
    for (int i = 0; i < MOST_STREAMS; i++)
        if (seen[i].stream == stream)
            seen[i].stream = NULL;
    first_stream = first_stream == stream ? NULL : first_stream;
}

static ls_status discrete_event_open(ls_event *event)
{
    event->native = calloc(1, sizeof(mark));
    LS_CHECK(event->native);
    return LS_OK;
}

static void discrete_event_close(ls_event *event)
{
    free(event->native);
}

static void discrete_event_record(ls_event *event, ls_stream *stream)
{
    int at = before(stream);

    LS_CHECK(!recorded);
    *(mark *)event->native = (mark){.stream = stream,
                                    .after = seen[at].after,
                                    .copies = copies_queued,
                                    .after_copies = seen[at].copies};
    memcpy(((mark *)event->native)->rows, seen[at].rows, sizeof seen[at].rows);
    ls_device_cpu.event_record(event, stream);
}

static void discrete_stream_wait(ls_stream *stream, ls_event *event)
{
    const mark *m = event->native;
    int at = before(stream);

    for (int i = 0; i < MOST_STREAMS; i++)
        seen[at].rows[i] = ls_max_i64(seen[at].rows[i], m->rows[i]);
    seen[at].after = m->stream;
    seen[at].copies = m->copies;
}

static ls_status discrete_event_sync(ls_event *event, int64_t deadline_ns)
{
    const mark *m = event->native;

    waits++;
    if (m->after)
        deliver(m->after, m->after_copies);
    deliver(m->stream, m->copies);
    return ls_device_cpu.event_sync(event, deadline_ns);
}

/* --- graphs: a list of rows and copies, done again when launched -------------------------------
 */

enum { MOST_WORK = 4096 };

typedef struct work {
    void (*row)(ls_stream *stream, const void *args); /* NULL: a copy */
    void *args;                                       /* owned */
    void *dst;
    const void *src;
    int64_t bytes;
} work;

struct recording {
    work list[MOST_WORK];
    int n;
};

static bool record(work w)
{
    if (!recorded)
        return false;
    LS_CHECK(recorded->n < MOST_WORK);
    recorded->list[recorded->n++] = w;
    return true;
}

static bool record_row(void (*row)(ls_stream *, const void *), const void *args, size_t bytes)
{
    work w = {.row = row};

    if (!recorded)
        return false;
    w.args = malloc(bytes);
    LS_CHECK(w.args);
    memcpy(w.args, args, bytes);
    return record(w);
}

static void discrete_copy(ls_stream *stream, void *dst, const void *src, int64_t bytes)
{
    if (!record((work){.dst = dst, .src = src, .bytes = bytes}))
        copy_now(stream, dst, src, bytes);
}

static ls_status discrete_graph_begin(ls_stream *stream)
{
    (void)stream;
    LS_CHECK(!recorded);
    recorded = calloc(1, sizeof *recorded);
    LS_CHECK(recorded);
    return LS_OK;
}

static ls_status discrete_graph_end(ls_stream *stream, void **native_out)
{
    (void)stream;
    LS_CHECK(recorded);
    *native_out = recorded;
    recorded = NULL;
    return LS_OK;
}

static void discrete_graph_launch(void *graph, ls_stream *stream)
{
    const recording *r = graph;

    LS_CHECK(!recorded);
    for (int i = 0; i < r->n; i++)
        if (r->list[i].row)
            r->list[i].row(stream, r->list[i].args);
        else
            copy_now(stream, r->list[i].dst, r->list[i].src, r->list[i].bytes);
    launches++;
}

static void discrete_graph_free(ls_device *device, void *graph)
{
    recording *r = graph;

    (void)device;
    for (int i = 0; i < r->n; i++)
        free(r->list[i].args);
    free(r);
}

#define ROW_BY(name, args, work)                                \
    static void name##_again(ls_stream *stream, const void *a); \
    static void name##_row(ls_stream *stream, const args *a)    \
    {                                                           \
        ls_device *d = ls_stream_device(stream);                \
        if (record_row(name##_again, a, sizeof *a))             \
            return;                                             \
        count_row(stream);                                      \
        unlock(d);                                              \
        work(stream, a);                                        \
        lock(d);                                                \
    }                                                           \
    static void name##_again(ls_stream *stream, const void *a)  \
    {                                                           \
        name##_row(stream, a);                                  \
    }
#define ROW(name, args) ROW_BY(name, args, real->name)

/* --- products of groups, one after the other ---------------------------------------------------
 */

/* Pointer g of those that lie `step` bytes apart. */
static void *pointer_at(const void *first, int64_t step, int64_t g)
{
    void *p;

    memcpy(&p, (const char *)first + g * step, sizeof p);
    return p;
}

/* Rows of a group, and where they begin. */
static int64_t rows_of(const ls_groups *groups, int64_t g, int64_t *first_out)
{
    *first_out = groups->first[g * groups->leaves];
    return groups->first[(g + 1) * groups->leaves] - *first_out;
}

static void any_linear_fwd(ls_stream *stream, const ls_linear_fwd *a)
{
    const ls_groups *groups = a->groups;
    int64_t size = ls_dtype_bytes(a->type), first;

    if (!groups) {
        real->linear_fwd(stream, a);
        return;
    }
    for (int64_t g = 0; g < groups->n; g++) {
        ls_linear_fwd one = *a;
        one.groups = NULL;
        one.M = rows_of(groups, g, &first);
        one.x = (const char *)a->x + first * a->K * size;
        one.y = (char *)a->y + first * a->N * size;
        one.w = pointer_at(groups->w, groups->step, g);
        if (one.M > 0)
            real->linear_fwd(stream, &one);
    }
}

static void any_linear_bwd_x(ls_stream *stream, const ls_linear_bwd_x *a)
{
    const ls_groups *groups = a->groups;
    int64_t size = ls_dtype_bytes(a->type), first;

    if (!groups) {
        real->linear_bwd_x(stream, a);
        return;
    }
    for (int64_t g = 0; g < groups->n; g++) {
        ls_linear_bwd_x one = *a;
        one.groups = NULL;
        one.M = rows_of(groups, g, &first);
        one.dy = (const char *)a->dy + first * a->N * size;
        one.dx = (char *)a->dx + first * a->K * size;
        one.w = pointer_at(groups->w, groups->step, g);
        if (one.M > 0)
            real->linear_bwd_x(stream, &one);
    }
}

/* The gradient of leaves first .. first+n-1 of a group, along the tree over leaves. */
static void sum_leaves(ls_stream *stream, const ls_linear_bwd_w *a, const int32_t *cell, int64_t n,
                       float *dw)
{
    int64_t size = ls_dtype_bytes(a->type), elements = a->N * a->K, half = 1;
    ls_linear_bwd_w one = *a;

    if (n > 1) {
        float *other = malloc((size_t)elements * sizeof *other);
        LS_CHECK(other);
        while (2 * half < n)
            half *= 2;
        one.accumulate = false;
        sum_leaves(stream, &one, cell, half, dw);
        sum_leaves(stream, &one, cell + half, n - half, other);
        real->add(stream, &(ls_add){.a = dw, .b = other, .out = dw, .n = elements});
        free(other);
        return;
    }
    one.groups = NULL;
    one.leaves = 1;
    one.M = cell[1] - cell[0];
    one.x = (const char *)a->x + cell[0] * a->K * size;
    one.dy = (const char *)a->dy + cell[0] * (a->ldy ? a->ldy : a->N) * size;
    one.dw = dw;
    if (one.M > 0)
        real->linear_bwd_w(stream, &one);
    else if (!one.accumulate)
        real->fill(stream, &(ls_fill){.x = dw, .n = elements});
}

static void any_linear_bwd_w(ls_stream *stream, const ls_linear_bwd_w *a)
{
    const ls_groups *groups = a->groups;
    int64_t elements = a->N * a->K;

    if (!groups) {
        real->linear_bwd_w(stream, a);
        return;
    }
    for (int64_t g = 0; g < groups->n; g++) {
        const int32_t *cell = &groups->first[g * groups->leaves];
        float *dw = pointer_at(groups->dw, groups->step, g), *sum;
        if (dw && (groups->leaves == 1 || !a->accumulate))
            sum_leaves(stream, a, cell, groups->leaves, dw);
        if (!dw || groups->leaves == 1 || !a->accumulate)
            continue;
        sum = malloc((size_t)elements * sizeof *sum);
        LS_CHECK(sum);
        sum_leaves(stream, a, cell, groups->leaves, sum);
        real->add(stream, &(ls_add){.a = dw, .b = sum, .out = dw, .n = elements});
        free(sum);
    }
}

ROW_BY(linear_fwd, ls_linear_fwd, any_linear_fwd)
ROW_BY(linear_bwd_x, ls_linear_bwd_x, any_linear_bwd_x)
ROW_BY(linear_bwd_w, ls_linear_bwd_w, any_linear_bwd_w)
ROW(qkv_fwd, ls_qkv)
ROW(qkv_bwd, ls_qkv)
ROW(attention_fwd, ls_attention_fwd)
ROW(attention_bwd, ls_attention_bwd)
ROW(norm_fwd, ls_norm_fwd)
ROW(norm_bwd, ls_norm_bwd)
ROW(act_fwd, ls_act_args)
ROW(act_bwd, ls_act_args)
ROW(embed_fwd, ls_embed_fwd)
ROW(embed_bwd, ls_embed_bwd)
ROW(head, ls_head)
ROW(preference, ls_preference)
ROW(sum, ls_sum)
ROW(add, ls_add)
ROW(scale, ls_scale)
ROW(cast, ls_cast)
ROW(fill, ls_fill)
ROW(norm2, ls_norm2)
ROW(adamw, ls_optimizer_update)
ROW(lamb, ls_lamb)
ROW(momentum, ls_momentum)
ROW(muon, ls_muon)
ROW_BY(route, ls_route, ls_experts_route)
ROW_BY(route_back, ls_route_back, ls_experts_route_back)
ROW_BY(gather, ls_experts, ls_experts_gather)
ROW_BY(combine, ls_experts, ls_experts_combine)
ROW_BY(spread, ls_experts, ls_experts_spread)
ROW_BY(collect, ls_experts, ls_experts_collect)
ROW_BY(regroup, ls_regroup, ls_experts_regroup)

static int64_t no_stack(int64_t leaves)
{
    (void)leaves;
    return 0;
}

static const ls_experts_table experts = {.stamp = 0,
                                         .route = route_row,
                                         .route_back = route_back_row,
                                         .gather = gather_row,
                                         .combine = combine_row,
                                         .spread = spread_row,
                                         .collect = collect_row,
                                         .regroup = regroup_row,
                                         .stack = no_stack};

ls_device *ls_discrete_device_open(const char *isa, int threads, const ls_kernels **kernels_out)
{
    ls_device *device = NULL;

    LS_CHECK_OK(ls_kernel_pick(isa, &real));
    LS_CHECK_OK(ls_device_open(&device, "cpu", threads));
    ops = ls_device_cpu;
    ops.kind = "apart";
    ops.describe = discrete_describe;
    ops.alloc = discrete_alloc;
    ops.window_page = discrete_window_page;
    ops.window_open = discrete_window_open;
    ops.window_back = discrete_window_back;
    ops.window_turn = discrete_window_turn;
    ops.window_drop = discrete_window_drop;
    ops.window_close = discrete_window_close;
    ops.copy = discrete_copy;
    ops.sync = discrete_sync;
    ops.stream_close = discrete_stream_close;
    ops.event_open = discrete_event_open;
    ops.event_close = discrete_event_close;
    ops.event_record = discrete_event_record;
    ops.stream_wait = discrete_stream_wait;
    ops.event_sync = discrete_event_sync;
    ops.graphs = true;
    ops.graph_begin = discrete_graph_begin;
    ops.graph_end = discrete_graph_end;
    ops.graph_launch = discrete_graph_launch;
    ops.graph_free = discrete_graph_free;
    device->ops = &ops;
    table = (ls_kernels){.name = real->name,
                         .f16 = real->f16,
                         .linear_fwd = linear_fwd_row,
                         .linear_bwd_x = linear_bwd_x_row,
                         .linear_bwd_w = linear_bwd_w_row,
                         .qkv_fwd = qkv_fwd_row,
                         .qkv_bwd = qkv_bwd_row,
                         .attention_fwd = attention_fwd_row,
                         .attention_bwd = attention_bwd_row,
                         .norm_fwd = norm_fwd_row,
                         .norm_bwd = norm_bwd_row,
                         .act_fwd = act_fwd_row,
                         .act_bwd = act_bwd_row,
                         .embed_fwd = embed_fwd_row,
                         .embed_bwd = embed_bwd_row,
                         .head = head_row,
                         .sum = sum_row,
                         .add = add_row,
                         .scale = scale_row,
                         .cast = cast_row,
                         .fill = fill_row,
                         .norm2 = norm2_row,
                         .adamw = adamw_row,
                         .lamb = lamb_row,
                         .momentum = momentum_row,
                         .muon = muon_row,
                         .scratch = real->scratch,
                         .experts = &experts};
    plugin = (ls_plugin){.kernels = &table};
    device->plugin = &plugin;
    *kernels_out = &table;
    return device;
}

int64_t ls_discrete_device_launches(void)
{
    return launches;
}

int64_t ls_discrete_device_waits(void)
{
    return waits;
}

void ls_discrete_device_is(int card, int cards, bool fp8)
{
    of_card = card;
    of_cards = cards;
    of_fp8 = fp8;
}

void ls_discrete_device_moves_beside_sums(bool on)
{
    moves_beside_sums = on;
}

void ls_discrete_device_close(ls_device *device)
{
    /* What was queued and never waited for: nobody will look at it any more. */
    for (int i = 0; i < n_copies; i++)
        free(copies[i].bytes);
    n_copies = 0;
    ls_device_close(device);
}
