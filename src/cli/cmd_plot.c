/* cmd_plot.c -- lineshaft plot: curves of runs, in the terminal or as an SVG file. */
#include "cli/command.h"

#include <math.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cmds.h"
#include "cli/term.h"
#include "observe/chart.h"

enum { SVG_WIDTH = 900, SVG_HEIGHT = 480, LINES = 18, BINS = 1500 };

/* What the flags ask for, and the curves as they are gathered. */
typedef struct plot {
    const char *series[LS_CHART_CURVES]; /* names, cut out of names_text */
    int n_series;
    char names_text[256];
    bool by_time;
    double smooth;
    ls_chart chart;
    char labels[LS_CHART_CURVES][256];
    ls_chart_point *points[LS_CHART_CURVES]; /* owned */
} plot;

/* "loss,val_loss" cut at its commas. */
static ls_status cut_names(plot *p, const char *list)
{
    char *rest = NULL;

    if (snprintf(p->names_text, sizeof p->names_text, "%s", list) >= (int)sizeof p->names_text)
        return ls_fail(LS_EUSAGE, "the list of series is too long");
    for (char *name = strtok_r(p->names_text, ",", &rest); name;
         name = strtok_r(NULL, ",", &rest)) {
        if (p->n_series == LS_CHART_CURVES)
            return ls_fail(LS_EUSAGE, "a plot has at most %d curves", LS_CHART_CURVES);
        p->series[p->n_series++] = name;
    }
    return LS_OK;
}

/* Hours since the first point that has a time. */
static double hours(const ls_run_point *p, int64_t began_ms)
{
    return (double)(p->time_ms - began_ms) / 3.6e6;
}

static ls_status take_points(plot *p, const ls_run_point *from, int n, const char *run)
{
    ls_chart_point *to = ls_mem_array((size_t)n, sizeof *to);
    ls_chart_curve *curve = &p->chart.curves[p->chart.n];
    int kept = 0;

    if (n > 0 && !to)
        return LS_ENOMEM;
    p->points[p->chart.n] = to;
    for (int i = 0; i < n; i++) {
        if (p->by_time && from[i].time_ms <= 0) {
            ls_fail(LS_EUSAGE, "\"%s\" does not say when its steps were made", run);
            ls_err_hint("Its version kept no times; leave --x out.");
            return LS_EUSAGE;
        }
        if (from[i].count > 0)
            to[kept++] = (ls_chart_point){.x = p->by_time ? hours(&from[i], from[0].time_ms)
                                                          : (double)from[i].x,
                                          .min = from[i].min,
                                          .max = from[i].max,
                                          .mean = from[i].mean};
    }
    ls_chart_smooth(to, kept, p->smooth);
    curve->label = p->labels[p->chart.n++];
    curve->points = to;
    curve->n = kept;
    return LS_OK;
}

/* One series of one run; nothing where the run has no such series, unless it was asked for by name. */
static ls_status add_curve(plot *p, ls_run_store *store, const char *run, const char *name,
                           bool asked)
{
    ls_run_point *points = NULL;
    int n = 0;
    ls_status st;

    if (p->chart.n == LS_CHART_CURVES)
        return ls_fail(LS_EUSAGE, "a plot has at most %d curves", LS_CHART_CURVES);
    LS_TRY(st,
           ls_run_store_points(store, name, LS_RUN_WHOLE, INT64_MIN, INT64_MAX, BINS, &points, &n),
           out);
    if (n == 0 && asked) {
        st = ls_fail(LS_EUSAGE, "\"%s\" has no values of the series \"%s\"", run, name);
        ls_err_hint("\"lineshaft runs show RUN --json\" lists the series of a run.");
    }
    if (st != LS_OK || n == 0)
        goto out;
    snprintf(p->labels[p->chart.n], sizeof p->labels[0], "%s%s%s", run, p->n_series > 1 ? " " : "",
             p->n_series > 1 ? name : "");
    st = take_points(p, points, n, run);
out:
    ls_mem_free(points);
    return st;
}

static ls_status gather(plot *p, const ls_args *args)
{
    bool asked = ls_args_has(args, "series");
    ls_status st = LS_OK;

    for (int i = 0; i < args->n_rest; i++) {
        ls_run_store *store = NULL;
        LS_TRY(st, ls_run_store_open(args->rest[i], &store), out);
        for (int k = 0; k < p->n_series && st == LS_OK; k++)
            st = add_curve(p, store, args->rest[i], p->series[k], asked);
        ls_run_store_close(store);
        LS_TRY(st, st, out);
    }
    if (p->chart.n == 0)
        st = ls_fail(LS_EUSAGE, "\"%s\" has made no step yet", args->rest[0]);
out:
    return st;
}

static ls_status read_flags(plot *p, const ls_args *args)
{
    const char *series = ls_args_value(args, "series"), *x = ls_args_value(args, "x");
    const char *smooth = ls_args_value(args, "smooth");
    char *end = NULL;

    p->by_time = x && strcmp(x, "time") == 0;
    p->chart.x_label = p->by_time ? "hours" : "steps";
    p->chart.log_y = ls_args_has(args, "log");
    p->smooth = smooth ? strtod(smooth, &end) : 0;
    if (smooth && (*end || end == smooth || !(p->smooth >= 0 && p->smooth < 1)))
        return ls_fail(LS_EUSAGE,
                       "--smooth takes a number from 0 up to, but not including, 1; not "
                       "\"%s\"",
                       smooth);
    return cut_names(p, series ? series : args->n_rest == 1 ? "loss,val_loss" : "loss");
}

/* --- output ------------------------------------------------------------------------------------ */

static void draw_in_terminal(const plot *p, const ls_args *args, int lines, ls_str *out)
{
    static const ls_term_style colors[] = {LS_TERM_CYAN, LS_TERM_YELLOW, LS_TERM_GREEN,
                                           LS_TERM_RED};
    const char *styles[LS_CHART_CURVES + 1];
    ls_term term;

    ls_term_init(&term, STDOUT_FILENO, args);
    for (int k = 0; k < LS_CHART_CURVES; k++)
        styles[k] = ls_term_code(&term, colors[(size_t)k % LS_COUNT(colors)]);
    styles[LS_CHART_CURVES] = ls_term_code(&term, LS_TERM_PLAIN);
    bool told_apart = term.color && p->chart.n <= (int)LS_COUNT(colors);
    ls_chart_text(&p->chart, term.width, lines, told_apart ? styles : NULL, out);
}

static ls_status write_svg(const plot *p, const char *path, int width, int height, ls_str *out)
{
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    ls_chart_svg(&p->chart, width, height, &text);
    LS_TRY(st, ls_str_status(&text), out);
    if (strcmp(path, "-") == 0) {
        ls_str_append_bytes(out, text.p, text.len);
        goto out;
    }
    LS_TRY(st, ls_file_write_atomic(path, text.p, text.len), out);
    ls_str_printf(out, "%s: %d curve%s\n", path, p->chart.n, p->chart.n == 1 ? "" : "s");
out:
    ls_str_release(&text);
    return st;
}

static ls_status run(const ls_args *args, ls_str *out)
{
    const char *svg = ls_args_value(args, "svg");
    plot *p = ls_mem_alloc(sizeof *p);
    char title[256];
    int64_t width, height;
    ls_status st = p ? LS_OK : LS_ENOMEM;

    if (st != LS_OK)
        return st;
    LS_TRY(st, read_flags(p, args), out);
    LS_TRY(st, ls_args_number(args, "width", SVG_WIDTH, 200, 10000, &width), out);
    LS_TRY(st,
           ls_args_number(args, "height", svg ? SVG_HEIGHT : LINES, svg ? 150 : 4, 10000, &height),
           out);
    LS_TRY(st, gather(p, args), out);
    snprintf(title, sizeof title, "%s%s", p->n_series == 1 ? p->series[0] : "loss",
             p->chart.log_y ? " (logarithmic)" : "");
    for (int k = 1; k < p->n_series; k++)
        snprintf(title + strlen(title), sizeof title - strlen(title), ", %s", p->series[k]);
    p->chart.title = title;
    if (svg)
        st = write_svg(p, svg, (int)width, (int)height, out);
    else
        draw_in_terminal(p, args, (int)height, out);
out:
    for (int k = 0; k < LS_CHART_CURVES; k++)
        ls_mem_free(p->points[k]);
    ls_mem_free(p);
    return st;
}

static const ls_flag flags[] = {
    {.name = "series",
     .value = "NAME,...",
     .doc =
         "Draw these series (default: loss, for one run also val_loss); \"lineshaft runs show RUN "
         "--json\" lists them."},
    {.name = "x", .value = "step|time", .doc = "Draw over steps (the default) or hours."},
    {.name = "log", .doc = "Make the y axis logarithmic."},
    {.name = "smooth",
     .value = "W",
     .doc = "Smooth curves: each value is W of the one before it and the rest of its own (0.9)."},
    {.name = "svg", .value = "FILE", .doc = "Write an SVG picture instead; - is standard output."},
    {.name = "width", .value = "N", .doc = "Pixels of the picture (default: 900)."},
    {.name = "height",
     .value = "N",
     .doc = "Pixels of the picture (default: 480), or lines in the terminal (default: 18)."},
    {.name = NULL},
};

const ls_command ls_cmd_plot = {
    .name = "plot",
    .summary = "draw curves of runs",
    .arguments = "RUN ...",
    .about =
        "Draws what runs have reported: in the terminal, or as an SVG picture that every browser "
        "shows. Each RUN is a run folder, also of a run that trains now. Where a point of the "
        "picture stands for several steps, a pale band shows their smallest and largest value.",
    .examples =
        "lineshaft plot runs/demo                                # loss and validation loss\n"
        "lineshaft plot runs/a runs/b --smooth 0.9 --svg ab.svg  # two runs, for a report\n"
        "lineshaft plot runs/demo --series tokens_per_s --x time # speed over hours\n",
    .flags = flags,
    .run = run,
};
