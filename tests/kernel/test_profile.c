/* test_profile.c -- what a profile notes of rows, laps and steps that are made up here.
 *
 * profile.c is compiled a second time against a device that claims to work later, so that the way
 * by events is tried on every machine; a CPU's events are points in time as well. */
#include "harness.h"
#include "kernel/profile.h"

static ls_device_info describe_as_later(const ls_device *device)
{
    ls_device_info info = ls_device_describe(device);

    info.host_memory = false;
    return info;
}

#define ls_device_describe describe_as_later
#define ls_profile_open later_open
#define ls_profile_close later_close
#define ls_profile_kernels later_kernels
#define ls_profile_begin later_begin
#define ls_profile_lap later_lap
#define ls_profile_end later_end
/* The contract of the renamed ones. */
ls_status later_open(ls_profile **profile_out, const ls_profile_args *args);
void later_close(ls_profile *profile);
const ls_kernels *later_kernels(const ls_profile *profile);
void later_begin(ls_profile *profile, int64_t number, int64_t begin_ns);
void later_lap(ls_profile *profile, int phase, int64_t begin_ns, int64_t end_ns);
ls_status later_end(ls_profile *profile, int64_t end_ns);
#include "kernel/profile.c"
#undef ls_device_describe
#undef ls_profile_open
#undef ls_profile_close
#undef ls_profile_kernels
#undef ls_profile_begin
#undef ls_profile_lap
#undef ls_profile_end

#include "fake/cupti.h"
#include "kernel/trace.h"

enum { N = 20000, FORWARD = 0, UPDATE = 1, ASIDE = 2 };

static const char *const phases[] = {"forward", "update", "evaluation"};

typedef struct fixture {
    ls_device *device;
    ls_stream *stream;
    const ls_kernels *inner;
    float *x;
    double *sum;
    ls_profile *profile;
    int64_t mark_ns;
} fixture;

static void open_device(fixture *f)
{
    void *memory;

    *f = (fixture){0};
    LS_CHECK_OK(ls_kernel_pick("generic", &f->inner));
    LS_CHECK_OK(ls_device_open(&f->device, "cpu", 2));
    LS_CHECK_OK(ls_stream_create(&f->stream, f->device));
    LS_CHECK_OK(ls_device_alloc(f->device, N * 4, "x", &memory));
    f->x = memory;
    LS_CHECK_OK(ls_device_alloc(f->device, 8, "sum", &memory));
    f->sum = memory;
}

static void close_device(fixture *f)
{
    ls_device_free(f->device, f->x);
    ls_device_free(f->device, f->sum);
    ls_stream_free(f->stream);
    ls_device_close(f->device);
}

static ls_profile_args args_of(const fixture *f, int64_t room)
{
    return (ls_profile_args){.stream = f->stream,
                             .kernels = f->inner,
                             .phases = phases,
                             .n_phases = 3,
                             .aside = 1 << ASIDE,
                             .room = room,
                             .peak_flops = 1e12,
                             .peak_bytes = 1e9};
}

static void lap(fixture *f, int phase)
{
    int64_t now = ls_time_now_ns();

    ls_profile_lap(f->profile, phase, f->mark_ns, now);
    f->mark_ns = now;
}

/* fill and scale in "forward", sum in "update", with aside also a scale in "evaluation". */
static void run_step(fixture *f, const ls_kernels *k, int64_t number, bool aside)
{
    f->mark_ns = ls_time_now_ns();
    ls_profile_begin(f->profile, number, f->mark_ns);
    k->fill(f->stream, &(ls_fill){.x = f->x, .value = 3, .n = N});
    k->scale(f->stream, &(ls_scale){.x = f->x, .value = 2, .n = N});
    lap(f, FORWARD);
    k->sum(f->stream, &(ls_sum){.x = f->x, .out = f->sum, .n = N, .segments = 1});
    lap(f, UPDATE);
    if (aside) {
        k->scale(f->stream, &(ls_scale){.x = f->x, .value = 1, .n = N});
        lap(f, ASIDE);
    }
    LS_CHECK_OK(ls_profile_end(f->profile, f->mark_ns));
}

static const ls_profile_row *row_of(const ls_profile_figures *figures, ls_row row)
{
    for (int i = 0; i < figures->n_rows; i++)
        if (figures->rows[i].row == row)
            return &figures->rows[i];
    ls_test_fail(__FILE__, __LINE__, "row %s is not in the table", ls_kernel_rows[row].name);
}

static void check_sums(const ls_profile_figures *figures)
{
    double ms = figures->none_ms, share = figures->none_share;

    for (int i = 0; i < figures->n_rows; i++) {
        ms += figures->rows[i].ms;
        share += figures->rows[i].share;
        LS_CHECK(i == 0 || figures->rows[i].ms <= figures->rows[i - 1].ms);
    }
    LS_CHECK_NEAR(ms, figures->step_ms, 1e-9 * figures->step_ms);
    LS_CHECK_NEAR(share, 1, 1e-9);
    LS_CHECK(figures->none_ms >= 0);
}

static void trace_of(ls_profile *profile, ls_str *text, ls_trace *trace)
{
    ls_str_init(text);
    ls_profile_trace(profile, text);
    LS_CHECK_OK(ls_str_status(text));
    ls_trace_read(trace, text->p, text->len);
}

LS_TEST(profile_counts_calls_of_steps_only)
{
    ls_profile_figures figures;
    fixture f;

    open_device(&f);
    ls_profile_args args = args_of(&f, 1000);
    LS_CHECK_OK(ls_profile_open(&f.profile, &args));
    const ls_kernels *k = ls_profile_kernels(f.profile);
    LS_CHECK_STR(k->name, "generic");
    LS_CHECK(k->scratch == f.inner->scratch && k->fill != f.inner->fill);
    ls_profile_sum(f.profile, &figures);
    LS_CHECK(figures.steps == 0 && figures.n_rows == 0 && !(figures.step_ms > 0));
    k->fill(f.stream, &(ls_fill){.x = f.x, .value = 3, .n = N}); /* before a step: not noted */
    lap(&f, FORWARD);
    run_step(&f, k, 5, false);
    k->fill(f.stream, &(ls_fill){.x = f.x, .value = 3, .n = N}); /* between steps: neither */
    run_step(&f, k, 6, true);
    LS_CHECK_NEAR(*f.sum, 6.0 * N, 0); /* the real rows ran */
    ls_profile_sum(f.profile, &figures);
    LS_CHECK(figures.steps == 2 && figures.first == 5 && figures.last == 6);
    LS_CHECK_EQ(figures.n_rows, 3);
    LS_CHECK_EQ(figures.dropped, 0);
    LS_CHECK_NEAR(row_of(&figures, LS_ROW_FILL)->calls, 1, 0);
    LS_CHECK_NEAR(row_of(&figures, LS_ROW_SCALE)->calls, 1, 0); /* the one aside does not count */
    LS_CHECK(figures.aside_ms > 0 && figures.busy_mean > 0);
    LS_CHECK(figures.busy_least <= figures.busy_mean && figures.busy_mean <= 1);
    const ls_profile_row *fill = row_of(&figures, LS_ROW_FILL);
    LS_CHECK_NEAR(fill->rate * fill->ms / 1e3, 4.0 * N, 1); /* bytes of its one call a step */
    LS_CHECK_NEAR(fill->peak_share, fill->rate / 1e9, 1e-9);
    check_sums(&figures);
    ls_profile_close(f.profile);
    LS_CHECK(!ls_stream_watcher(f.stream));
    close_device(&f);
}

LS_TEST(profile_trace_nests)
{
    ls_trace t;
    ls_str text;
    fixture f;

    open_device(&f);
    ls_profile_args args = args_of(&f, 1000);
    LS_CHECK_OK(ls_profile_open(&f.profile, &args));
    for (int64_t i = 1; i <= 3; i++)
        run_step(&f, ls_profile_kernels(f.profile), i, i == 2);
    trace_of(f.profile, &text, &t);
    LS_CHECK_STR(t.tracks[0], "host");
    LS_CHECK(!t.tracks[1]);
    LS_CHECK_STR(t.tracks[2], "worker 0");
    LS_CHECK_STR(t.tracks[3], "worker 1");
    LS_CHECK_EQ(ls_trace_count(&t, "step", NULL), 3);
    LS_CHECK_EQ(ls_trace_count(&t, "phase", NULL), 7);
    LS_CHECK_EQ(ls_trace_count(&t, "kernel", NULL), 10);
    LS_CHECK_EQ(ls_trace_count(&t, "kernel", "scale"), 4);
    LS_CHECK_EQ(ls_trace_count(&t, "pool", "tasks"), 0); /* each is named after its row */
    LS_CHECK(ls_trace_count(&t, "pool", "fill") >= 3);
    for (int i = 0; i < 10; i++) {
        const ls_trace_event *call = ls_trace_find(&t, "kernel", NULL, i);
        const ls_trace_event *phase = ls_trace_around(&t, call, "phase");
        const ls_trace_event *step = ls_trace_around(&t, call, "step");
        char name[32];
        LS_CHECK(phase && step);
        LS_CHECK_STR(json_string_value(json_object_get(call->args, "phase")), phase->name);
        snprintf(name, sizeof name, "step %d",
                 (int)json_integer_value(json_object_get(call->args, "step")));
        LS_CHECK_STR(step->name, name);
        LS_CHECK_EQ(json_integer_value(json_object_get(call->args, "n")), N);
        double rate = json_number_value(json_object_get(call->args, "gb_per_s"));
        double each = strcmp(call->name, "scale") == 0 ? 8 : 4;
        LS_CHECK_NEAR(rate, each * N / (double)(call->end_ns - call->begin_ns), 0.0051);
    }
    LS_CHECK_EQ(ls_trace_find(&t, "step", "step 1", 0)->begin_ns, 0);
    ls_trace_release(&t);
    ls_str_release(&text);
    ls_profile_close(f.profile);
    close_device(&f);
}

/* A trace without room says what it lacks; the table has everything. */
LS_TEST(profile_full_trace_says_so)
{
    ls_profile_figures figures;
    ls_trace t;
    ls_str text;
    fixture f;

    open_device(&f);
    for (int64_t room = 1; room <= 13; room++) {
        ls_profile_args args = args_of(&f, room);
        LS_CHECK_OK(ls_profile_open(&f.profile, &args));
        run_step(&f, ls_profile_kernels(f.profile), 1, false); /* 3 calls, 2 laps, 1 step */
        run_step(&f, ls_profile_kernels(f.profile), 2, false);
        ls_profile_sum(f.profile, &figures);
        LS_CHECK_EQ(figures.dropped, ls_max_i64(12 - room, 0));
        LS_CHECK_NEAR(row_of(&figures, LS_ROW_FILL)->calls, 1, 0);
        check_sums(&figures);
        trace_of(f.profile, &text, &t);
        LS_CHECK_EQ(ls_trace_count(&t, "step", NULL) + ls_trace_count(&t, "phase", NULL) +
                        ls_trace_count(&t, "kernel", NULL),
                    ls_min_i64(room, 12));
        ls_trace_release(&t);
        ls_str_clear(&text);
        ls_profile_table(f.profile, &text);
        LS_CHECK_EQ(strstr(text.p, "the trace was full") != NULL, room < 12);
        LS_CHECK(!strstr(text.p, "and so does this table"));
        ls_str_release(&text);
        ls_profile_close(f.profile);
    }
    close_device(&f);
}

LS_TEST(profile_table_reads_well)
{
    ls_str text;
    fixture f;
    double share[4];

    open_device(&f);
    ls_profile_args args = args_of(&f, 1000);
    LS_CHECK_OK(ls_profile_open(&f.profile, &args));
    ls_str_init(&text);
    ls_profile_table(f.profile, &text); /* nothing noted: no rows, no division by zero */
    LS_CHECK(strstr(text.p, "in no kernel") && !strstr(text.p, "nan") &&
             !strstr(text.p, "slowest"));
    run_step(&f, ls_profile_kernels(f.profile), 7, true);
    ls_str_clear(&text);
    ls_profile_table(f.profile, &text);
    LS_CHECK(strncmp(text.p, "profile of step 7: ", 19) == 0);
    LS_CHECK(strstr(text.p, "without evaluation (") && strstr(text.p, "generic kernels"));
    LS_CHECK(strstr(text.p, "measured peaks: 1000.0 GFLOP/s, 1.0 GB/s"));
    LS_CHECK(strstr(text.p, "\nslowest: ") && strstr(text.p, "\nthreads: in tasks for "));
    static const char *const rows[] = {"\nfill ", "\nscale ", "\nsum ", "\nin no kernel "};
    for (int i = 0; i < 4; i++) {
        const char *at = strstr(text.p, rows[i]);
        double calls, ms;
        LS_CHECK(at);
        at += strlen(rows[i]);
        LS_CHECK_EQ(i < 3 ? sscanf(at, "%lf %lf %lf %%", &calls, &ms, &share[i])
                          : 1 + sscanf(at, "%lf %lf %%", &ms, &share[i]),
                    3);
    }
    LS_CHECK_NEAR(share[0] + share[1] + share[2] + share[3], 100, 0.3); /* of rounding */
    run_step(&f, ls_profile_kernels(f.profile), 8, true);
    ls_str_clear(&text);
    ls_profile_table(f.profile, &text);
    LS_CHECK(strncmp(text.p, "profile of steps 7 to 8: ", 25) == 0);
    ls_str_release(&text);
    ls_profile_close(f.profile);
    close_device(&f);
}

LS_TEST(profile_json_has_the_figures)
{
    ls_profile_figures figures;
    json_error_t error;
    ls_str text;
    fixture f;

    open_device(&f);
    ls_profile_args args = args_of(&f, 1000);
    args.peak_bytes = 0; /* not known: no share of it */
    LS_CHECK_OK(ls_profile_open(&f.profile, &args));
    run_step(&f, ls_profile_kernels(f.profile), 7, true);
    ls_str_init(&text);
    ls_profile_json(f.profile, &text);
    ls_profile_sum(f.profile, &figures);
    json_t *json = json_loadb(text.p, text.len, 0, &error), *row;
    LS_CHECK(json);
    double ms = json_number_value(json_object_get(json, "no_kernel_ms"));
    size_t i;
    json_array_foreach(json_object_get(json, "rows"), i, row)
    {
        ms += json_number_value(json_object_get(row, "ms"));
        LS_CHECK_STR(json_string_value(json_object_get(row, "row")),
                     ls_kernel_rows[figures.rows[i].row].name);
        LS_CHECK(json_number_value(json_object_get(row, "bytes_per_s")) > 0);
        LS_CHECK(!json_object_get(row, "peak_share") && !json_object_get(row, "flops_per_s"));
    }
    LS_CHECK_EQ(i, 3);
    LS_CHECK_NEAR(ms, json_number_value(json_object_get(json, "step_ms")), 1e-9);
    LS_CHECK_EQ(json_integer_value(json_object_get(json, "steps")), 1);
    json_decref(json);
    ls_str_release(&text);
    ls_profile_close(f.profile);
    close_device(&f);
}

/* Every row of the table is watched, is counted as itself, and reaches the real one. */
static ls_row reached;
static int reached_calls;
#define REACH(NAME, field, type)                              \
    static void reach_##field(ls_stream *s, const type *args) \
    {                                                         \
        (void)s;                                              \
        (void)args;                                           \
        reached = LS_ROW_##NAME;                              \
        reached_calls++;                                      \
    }
LS_KERNEL_ROWS(REACH)
REACH(PACK, pack, ls_pack)
#define FIELD(NAME, field, type) .field = reach_##field,
static const ls_kernels reaching = {.name = "reaching", LS_KERNEL_ROWS(FIELD).pack = reach_pack};

LS_TEST(profile_watches_every_row)
{
    fixture f;

    open_device(&f);
    f.inner = &reaching;
    ls_profile_args args = args_of(&f, 1000);
#define TRY(NAME, field, type)                                                 \
    {                                                                          \
        ls_profile_figures figures;                                            \
        const type a = {0};                                                    \
        LS_CHECK_OK(ls_profile_open(&f.profile, &args));                       \
        ls_profile_begin(f.profile, 1, ls_time_now_ns());                      \
        ls_profile_kernels(f.profile)->field(f.stream, &a);                    \
        LS_CHECK_EQ(reached, LS_ROW_##NAME);                                   \
        LS_CHECK_STR(#field, ls_kernel_rows[LS_ROW_##NAME].name);              \
        lap(&f, FORWARD);                                                      \
        LS_CHECK_OK(ls_profile_end(f.profile, f.mark_ns));                     \
        ls_profile_sum(f.profile, &figures);                                   \
        LS_CHECK(figures.n_rows == 1 && figures.rows[0].row == LS_ROW_##NAME); \
        ls_profile_close(f.profile);                                           \
    }
    LS_KERNEL_ROWS(TRY)
    TRY(PACK, pack, ls_pack)
    LS_CHECK_EQ(reached_calls, LS_ROWS);
    close_device(&f);
}

/* The same step on a device that works later: rows on a track of their own, times from events. */
static void run_later(fixture *f, int64_t number)
{
    const ls_kernels *k = later_kernels(f->profile);
    int64_t begin = ls_time_now_ns();

    later_begin(f->profile, number, begin);
    k->fill(f->stream, &(ls_fill){.x = f->x, .value = 3, .n = N});
    k->scale(f->stream, &(ls_scale){.x = f->x, .value = 2, .n = N});
    int64_t middle = ls_time_now_ns();
    later_lap(f->profile, FORWARD, begin, middle);
    k->sum(f->stream, &(ls_sum){.x = f->x, .out = f->sum, .n = N, .segments = 1});
    int64_t end = ls_time_now_ns();
    later_lap(f->profile, UPDATE, middle, end);
    LS_CHECK_OK(later_end(f->profile, end));
}

LS_TEST(profile_by_events)
{
    ls_profile_figures figures;
    ls_trace t;
    ls_str text;
    fixture f;

    open_device(&f);
    ls_profile_args args = args_of(&f, 1000);
    LS_CHECK_OK(later_open(&f.profile, &args));
    run_later(&f, 1);
    run_later(&f, 2);
    LS_CHECK_NEAR(*f.sum, 6.0 * N, 0);
    ls_profile_sum(f.profile, &figures);
    LS_CHECK_EQ(figures.n_rows, 3);
    LS_CHECK_NEAR(row_of(&figures, LS_ROW_SCALE)->calls, 1, 0);
    check_sums(&figures);
    trace_of(f.profile, &text, &t);
    LS_CHECK_STR(t.tracks[1], "device");
    LS_CHECK_EQ(ls_trace_count(&t, "kernel", NULL), 6);
    for (int i = 0; i < 6; i++) {
        const ls_trace_event *call = ls_trace_find(&t, "kernel", NULL, i);
        bool update = strcmp(call->name, "sum") == 0;
        LS_CHECK_EQ(call->track, 1);
        LS_CHECK_STR(json_string_value(json_object_get(call->args, "phase")),
                     update ? "update" : "forward");
    }
    ls_trace_release(&t);
    ls_str_release(&text);
    later_close(f.profile);

    args.room = 2; /* two calls and four events; the third finds neither */
    LS_CHECK_OK(later_open(&f.profile, &args));
    run_later(&f, 1);
    ls_profile_sum(f.profile, &figures);
    LS_CHECK(figures.n_rows == 2 && figures.dropped == 4);
    ls_str_init(&text);
    ls_profile_table(f.profile, &text);
    LS_CHECK(strstr(text.p, "and so does this table"));
    ls_str_release(&text);
    later_close(f.profile);
    close_device(&f);
}

/* Rows that launch: fill one kernel, scale two of which the first is longer, sum none. */
static ls_fake_cupti fake;
static const ls_kernels *launching_inner;

static void launch_fill(ls_stream *s, const ls_fill *a)
{
    int64_t begin = ls_time_now_ns();

    launching_inner->fill(s, a);
    fake.kernel("_Z9fill_rowsIfEvPT_", begin, begin + 1000);
}

static void launch_scale(ls_stream *s, const ls_scale *a)
{
    int64_t begin = ls_time_now_ns();

    launching_inner->scale(s, a);
    fake.kernel("_Z5scaleIfEvPT_", begin, begin + 4000);
    fake.kernel("_Z6finishv", begin + 3000, begin + 5000); /* begins before the other has ended */
}

LS_TEST(profile_shows_the_kernels_inside_of_rows)
{
    ls_profile_kernel inside[LS_PROFILE_KERNELS];
    ls_kernels launching;
    json_error_t error;
    ls_trace t;
    ls_str text;
    fixture f;

    fake = ls_fake_cupti_use();
    open_device(&f);
    launching_inner = f.inner;
    launching = *f.inner;
    launching.fill = launch_fill;
    launching.scale = launch_scale;
    f.inner = &launching;
    ls_profile_args args = args_of(&f, 1000);
    args.inside = true;
    LS_CHECK_OK(later_open(&f.profile, &args));
    LS_CHECK(*fake.enabled > 0);
    int64_t before = ls_time_now_ns() - LS_NS_PER_S; /* of a step: not noted */
    fake.kernel("_Z5earlyv", before, before + 1000);
    run_later(&f, 1);
    fake.copy(2, 64, before, before + 100);
    run_later(&f, 2);
    ls_profile_stop(f.profile);
    LS_CHECK_EQ(*fake.enabled, 0);
    LS_CHECK_EQ(ls_profile_inside(f.profile, inside), 3);
    LS_CHECK_STR(inside[0].name, "scale<float>");
    LS_CHECK_EQ(inside[0].row, LS_ROW_SCALE);
    LS_CHECK_NEAR(inside[0].calls, 1, 0);
    LS_CHECK_NEAR(inside[0].ms, 4e-3, 1e-4);
    LS_CHECK_NEAR(inside[0].rate, 8.0 * N / 4e-6, 0.05 * 8.0 * N / 4e-6); /* the row's bytes */
    LS_CHECK_NEAR(inside[0].peak_share, inside[0].rate / 1e9, 1e-6);
    LS_CHECK_STR(inside[1].name, "finish");
    LS_CHECK_NEAR(inside[1].rate, 0, 0); /* never the longest of its call */
    LS_CHECK_STR(inside[2].name, "fill_rows<float>");
    LS_CHECK_EQ(inside[2].row, LS_ROW_FILL);

    trace_of(f.profile, &text, &t);
    LS_CHECK_STR(t.tracks[1], "device");
    LS_CHECK_STR(t.tracks[4], "kernels"); /* behind two workers */
    LS_CHECK_STR(t.tracks[5], "kernels at once 2");
    LS_CHECK_EQ(ls_trace_count(&t, "device", NULL), 6);
    const ls_trace_event *finish = ls_trace_find(&t, "device", "finish", 1);
    LS_CHECK_EQ(finish->track, 5);
    LS_CHECK_EQ(ls_trace_find(&t, "device", "scale<float>", 0)->track, 4);
    LS_CHECK_STR(json_string_value(json_object_get(finish->args, "row")), "scale");
    LS_CHECK_STR(json_string_value(json_object_get(finish->args, "phase")), "forward");
    LS_CHECK_EQ(json_integer_value(json_object_get(finish->args, "step")), 2);
    ls_trace_release(&t);

    ls_str_clear(&text);
    ls_profile_table(f.profile, &text);
    const char *row = strstr(text.p, "\nscale "), *under = strstr(text.p, "\n  kernel ");
    LS_CHECK(row && under && strstr(text.p, "\nkernels, the slowest first\n"));
    LS_CHECK(strstr(row, "  scale<float>\n") && !strstr(text.p, "not known"));
    ls_str_clear(&text);
    ls_profile_json(f.profile, &text);
    json_t *json = json_loadb(text.p, text.len, 0, &error);
    json_t *list = json_object_get(json, "inside");
    LS_CHECK_EQ(json_array_size(list), 3);
    LS_CHECK_STR(json_string_value(json_object_get(json_array_get(list, 0), "kernel")),
                 "scale<float>");
    LS_CHECK(!json_object_get(json_array_get(list, 1), "bytes_per_s"));
    json_decref(json);
    ls_str_release(&text);
    later_close(f.profile);
    close_device(&f);
}

/* Without CUPTI, or with one that sees nothing, the table has all the rest and says why. */
LS_TEST(profile_goes_on_without_cupti)
{
    ls_profile_figures figures;
    ls_str text;
    fixture f;

    ls_fake_cupti_use();
    open_device(&f);
    ls_profile_args args = args_of(&f, 1000);
    args.inside = true;
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            LS_CHECK_EQ(setenv("LINESHAFT_CUPTI", "libnothing.so.13", 1), 0);
        LS_CHECK_OK(later_open(&f.profile, &args));
        run_later(&f, 1);
        run_later(&f, 2);
        ls_profile_stop(f.profile);
        ls_profile_sum(f.profile, &figures);
        LS_CHECK(figures.n_rows == 3 && figures.dropped == 0);
        ls_str_init(&text);
        ls_profile_table(f.profile, &text);
        LS_CHECK(strstr(text.p, i == 1 ? "\nthe kernels inside of rows are not known: there is no "
                                         "\"libnothing.so.13\"\n"
                                       : "\nthe kernels inside of rows are not known: CUPTI saw "
                                         "none\n"));
        ls_str_clear(&text);
        ls_profile_json(f.profile, &text);
        LS_CHECK(strstr(text.p, "\"kernels_not_known\": "));
        ls_str_release(&text);
        later_close(f.profile);
    }
    close_device(&f);
}

LS_TEST(profile_rates_have_units_that_fit)
{
    char text[32];

    ls_profile_put_rate(26.2e9, true, text);
    LS_CHECK_STR(text, "26.2 GFLOP/s");
    ls_profile_put_rate(640.12e12, true, text);
    LS_CHECK_STR(text, "640.1 TFLOP/s");
    ls_profile_put_rate(2.84e9, false, text);
    LS_CHECK_STR(text, "2.8 GB/s   ");
    ls_profile_put_rate(3.456e12, false, text);
    LS_CHECK_STR(text, "3.46 TB/s   ");
}

LS_TEST(profile_open_survives_every_failing_allocation)
{
    fixture f;

    open_device(&f);
    ls_profile_args args = args_of(&f, 3);
    for (int later = 0; later < 2; later++) {
        uint64_t n = 1;
        for (;; n++) {
            ls_mem_fail_nth(n);
            ls_status st =
                later ? later_open(&f.profile, &args) : ls_profile_open(&f.profile, &args);
            if (st == LS_OK)
                break;
            LS_CHECK_EQ(st, LS_ENOMEM);
            LS_CHECK(!ls_stream_watcher(f.stream));
        }
        ls_mem_fail_nth(0);
        LS_CHECK_EQ(n, later ? 13 : 5); /* itself, spans, workers, their spans; events */
        (later ? later_close : ls_profile_close)(f.profile);
    }
    ls_profile_close(NULL);
    close_device(&f);
}
