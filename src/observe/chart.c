/* chart.c -- see chart.h.
 *
 * Both pictures share the frame: the range of all curves, made a little wider so that round numbers
 * mark its axes.
 *
 *     3.5 |          one cell of a terminal has 2 x 4 dots (Braille)      (0,0) 01 08 (1,0)
 *         | .                                                                   02 10
 *     3.0 |  .'.                                                                04 20
 *         |     '..                                                       (0,3) 40 80 (1,3)
 *     2.5 +--------
 *         0       10
 */
#include "observe/chart.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"

/* --- the frame --------------------------------------------------------------------------------- */

typedef struct axis {
    double from, to,
        step; /* marks at from, from + step ... to; on a logarithmic axis of exponents */
    bool log;
} axis;

/* Where a value lies between the ends, 0 to 1. */
static double place(const axis *a, double value)
{
    double v = a->log ? log10(value) : value;

    return (v - a->from) / (a->to - a->from);
}

/* The largest of 1, 2, 5 times a power of ten that gives at least `marks` steps over the span. */
static double round_step(double span, int marks)
{
    double raw = span / marks, power = pow(10, floor(log10(raw)));

    return raw >= 5 * power ? 5 * power : raw >= 2 * power ? 2 * power : power;
}

static axis make_axis(double from, double to, int marks, bool is_log)
{
    axis a = {.log = is_log};

    if (is_log) {
        from = log10(from);
        to = log10(to);
    }
    if (!(to > from)) { /* one value: a frame around it */
        double around = fabs(from) > 0 ? fabs(from) * 0.1 : 1;
        from -= around;
        to += around;
    }
    a.step = round_step(to - from, marks);
    a.from = floor(from / a.step) * a.step;
    a.to = ceil(to / a.step) * a.step;
    return a;
}

static bool is_shown(const ls_chart *c, double value)
{
    return isfinite(value) && (!c->log_y || value > 0);
}

typedef struct frame {
    axis x, y;
    bool empty;
} frame;

/* with_bands: the smallest and largest values count, too. */
static frame make_frame(const ls_chart *c, int x_marks, int y_marks, bool with_bands)
{
    double x0 = (double)INFINITY, x1 = -x0, y0 = x0, y1 = -x0;

    for (int k = 0; k < c->n; k++)
        for (int i = 0; i < c->curves[k].n; i++) {
            const ls_chart_point *p = &c->curves[k].points[i];
            double low = with_bands && is_shown(c, p->min) ? p->min : p->mean;
            double high = with_bands && is_shown(c, p->max) ? p->max : p->mean;
            if (!is_shown(c, p->mean))
                continue;
            x0 = fmin(x0, p->x);
            x1 = fmax(x1, p->x);
            y0 = fmin(y0, low);
            y1 = fmax(y1, high);
        }
    if (x0 > x1)
        return (frame){.empty = true};
    frame f = {.x = make_axis(x0, x1, x_marks, false), .y = make_axis(y0, y1, y_marks, c->log_y)};
    f.x.from = fmax(f.x.from, fmin(x0, 0)); /* no empty space before the first step */
    return f;
}

static int marks_of(const axis *a)
{
    return (int)lround((a->to - a->from) / a->step) + 1;
}

/* The i-th mark of an axis, and where it lies. */
static double mark_at(const axis *a, int i, char text[32])
{
    double at = a->from + i * a->step;

    if (fabs(at) < a->step * 1e-9)
        at = 0;
    snprintf(text, 32, "%.4g", a->log ? pow(10, at) : at);
    return (at - a->from) / (a->to - a->from);
}

void ls_chart_smooth(ls_chart_point *points, int n, double weight)
{
    double sum = 0, share = 0;

    for (int i = 0; i < n && weight > 0; i++) {
        sum = weight * sum + (1 - weight) * points[i].mean;
        share = weight * share + (1 - weight);
        points[i].mean = sum / share;
    }
}

/* --- SVG --------------------------------------------------------------------------------------- */

enum { LEFT = 64, RIGHT = 16, TOP = 36, BOTTOM = 48, LEGEND = 18 };

/* Colours that people with colour blindness tell apart (Okabe and Ito). They stand at the elements, where
 * every program reads them; a page with dark colours takes lighter ones from the style. */
enum { COLORS = 8 };
static const char *const colors[COLORS] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                           "#b58900", "#56b4e9", "#7a5195", "#666666"};
static const char *const dark_colors[COLORS] = {"#4aa8e0", "#ff8c42", "#35c99b", "#e59cc4",
                                                "#e3c04f", "#56b4e9", "#b48ad6", "#aaaaaa"};

static void put_style(ls_str *out)
{
    ls_str_append(out, "<style>svg{font:12px system-ui,sans-serif;background:#fff;color:#222}"
                       "text{fill:currentColor}.grid{stroke:currentColor;stroke-opacity:.15}"
                       "@media(prefers-color-scheme:dark){svg{background:#16181c;color:#e6e6e6}");
    for (int i = 0; i < COLORS; i++)
        ls_str_printf(out, ".s%d{stroke:%s}.f%d{fill:%s}", i, dark_colors[i], i, dark_colors[i]);
    ls_str_append(out, "}</style>\n");
}

/* Text of unknown origin inside of an element. */
static void put_text(const char *text, ls_str *out)
{
    for (const char *p = text; *p; p++)
        if (*p == '<')
            ls_str_append(out, "&lt;");
        else if (*p == '&')
            ls_str_append(out, "&amp;");
        else
            ls_str_append_char(out, (unsigned char)*p < ' ' ? ' ' : *p);
}

typedef struct svg {
    const ls_chart *chart;
    frame f;
    double width, height; /* of the field inside the axes */
    ls_str *out;
} svg;

static double x_at(const svg *s, double x)
{
    return LEFT + s->width * place(&s->f.x, x);
}

static double y_at(const svg *s, double y)
{
    return TOP + s->height * (1 - place(&s->f.y, y));
}

static void put_axes(const svg *s)
{
    char text[32];

    for (int i = 0; i < marks_of(&s->f.y); i++) {
        double y = TOP + s->height * (1 - mark_at(&s->f.y, i, text));
        ls_str_printf(s->out,
                      "<line class=\"grid\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                      "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                      LEFT, LEFT + s->width, y, y, LEFT - 6, y + 4, text);
    }
    for (int i = 0; i < marks_of(&s->f.x); i++) {
        double at = mark_at(&s->f.x, i, text), x = LEFT + s->width * at;
        if (at < -1e-9 || at > 1 + 1e-9)
            continue;
        ls_str_printf(s->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x,
                      TOP + s->height + 18, text);
    }
    ls_str_printf(s->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">",
                  LEFT + s->width / 2, TOP + s->height + 36);
    put_text(s->chart->x_label, s->out);
    ls_str_append(s->out, "</text>\n");
}

/* From the first point to the last along the largest values, back along the smallest. */
static void put_band(const svg *s, const ls_chart_curve *c, int number)
{
    bool any = false;

    for (int i = 0; i < c->n && !any; i++)
        any = is_shown(s->chart, c->points[i].min) && c->points[i].min < c->points[i].max;
    if (!any)
        return;
    ls_str_printf(s->out, "<path class=\"f%d\" fill=\"%s\" fill-opacity=\".18\" d=\"",
                  number % COLORS, colors[number % COLORS]);
    for (int i = 0, k = 0; i < 2 * c->n; i++) {
        const ls_chart_point *p = &c->points[i < c->n ? i : 2 * c->n - 1 - i];
        double y = i < c->n ? p->max : p->min;
        if (is_shown(s->chart, y))
            ls_str_printf(s->out, "%c%.1f %.1f", k++ ? 'L' : 'M', x_at(s, p->x), y_at(s, y));
    }
    ls_str_append(s->out, "Z\"/>\n");
}

/* A value that cannot be shown leaves a gap. */
static void put_line(const svg *s, const ls_chart_curve *c, int number)
{
    bool pen = false;

    ls_str_printf(s->out,
                  "<path class=\"s%d\" stroke=\"%s\" fill=\"none\" stroke-width=\"1.6\" "
                  "stroke-linejoin=\"round\" d=\"",
                  number % COLORS, colors[number % COLORS]);
    for (int i = 0; i < c->n; i++) {
        const ls_chart_point *p = &c->points[i];
        if (is_shown(s->chart, p->mean))
            ls_str_printf(s->out, "%c%.1f %.1f", pen ? 'L' : 'M', x_at(s, p->x), y_at(s, p->mean));
        pen = is_shown(s->chart, p->mean);
    }
    ls_str_append(s->out, "\"/>\n");
}

static void put_legend(const svg *s)
{
    for (int k = 0; k < s->chart->n; k++) {
        double y = TOP + 8 + LEGEND * k, x = LEFT + s->width - 10;
        ls_str_printf(s->out,
                      "<rect class=\"f%d\" fill=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"10\" "
                      "height=\"10\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">",
                      k % COLORS, colors[k % COLORS], x, y, x - 6, y + 9);
        put_text(s->chart->curves[k].label, s->out);
        ls_str_append(s->out, "</text>\n");
    }
}

void ls_chart_svg(const ls_chart *chart, int width, int height, ls_str *out)
{
    svg s = {.chart = chart,
             .f = make_frame(chart, 6, 5, true),
             .width = width - LEFT - RIGHT,
             .height = height - TOP - BOTTOM,
             .out = out};

    ls_str_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                  "height=\"%d\" role=\"img\">\n<title>",
                  width, height, width, height);
    put_text(chart->title, out);
    ls_str_append(out, "</title>\n");
    put_style(out);
    ls_str_printf(out, "<text x=\"%d\" y=\"22\" font-weight=\"600\">", LEFT);
    put_text(chart->title, out);
    ls_str_append(out, "</text>\n");
    if (!s.f.empty) {
        put_axes(&s);
        for (int k = 0; k < chart->n; k++)
            put_band(&s, &chart->curves[k], k);
        for (int k = 0; k < chart->n; k++)
            put_line(&s, &chart->curves[k], k);
        put_legend(&s);
    }
    ls_str_append(out, "</svg>\n");
}

/* --- terminal ---------------------------------------------------------------------------------- */

enum { MARGIN = 10, DOTS_X = 2, DOTS_Y = 4 };

/* Cells of Braille, and which curve was drawn last in each. */
typedef struct canvas {
    int width, height; /* cells */
    unsigned char *dots, *curve;
} canvas;

static void set_dot(canvas *c, int x, int y, int curve)
{
    static const unsigned char bits[DOTS_Y][DOTS_X] = {{1, 8}, {2, 16}, {4, 32}, {64, 128}};

    if (x < 0 || y < 0 || x >= c->width * DOTS_X || y >= c->height * DOTS_Y)
        return;
    int cell = y / DOTS_Y * c->width + x / DOTS_X;
    c->dots[cell] |= bits[y % DOTS_Y][x % DOTS_X];
    c->curve[cell] = (unsigned char)curve;
}

static void draw_line(canvas *c, const double from[2], const double to[2], int curve)
{
    int steps = (int)fmax(fabs(to[0] - from[0]), fabs(to[1] - from[1])) + 1;

    for (int i = 0; i <= steps; i++)
        set_dot(c, (int)lround(from[0] + (to[0] - from[0]) * i / steps),
                (int)lround(from[1] + (to[1] - from[1]) * i / steps), curve);
}

static void draw_curve(canvas *c, const ls_chart *chart, const frame *f, int number)
{
    const ls_chart_curve *curve = &chart->curves[number];
    double last[2], now[2];
    bool pen = false;

    for (int i = 0; i < curve->n; i++) {
        const ls_chart_point *p = &curve->points[i];
        if (is_shown(chart, p->mean)) {
            now[0] = place(&f->x, p->x) * (c->width * DOTS_X - 1);
            now[1] = (1 - place(&f->y, p->mean)) * (c->height * DOTS_Y - 1);
            draw_line(c, pen ? last : now, now, number);
            memcpy(last, now, sizeof last);
        }
        pen = is_shown(chart, p->mean);
    }
}

/* U+2800 and the dots of a cell: in the colour of its curve, or where several curves have no colours as its
 * letter. */
static void put_cell(const canvas *c, int cell, int curves, const char *const *styles, ls_str *out)
{
    unsigned char dots = c->dots[cell];
    const char utf8[3] = {(char)0xe2, (char)(0xa0 | dots >> 6), (char)(0x80 | (dots & 0x3f))};

    if (!dots) {
        ls_str_append_char(out, ' ');
        return;
    }
    if (styles)
        ls_str_append(out, styles[c->curve[cell]]);
    if (!styles && curves > 1)
        ls_str_append_char(out, (char)('a' + c->curve[cell]));
    else
        ls_str_append_bytes(out, utf8, sizeof utf8);
    if (styles)
        ls_str_append(out, styles[LS_CHART_CURVES]);
}

static void put_keys(const ls_chart *chart, const char *const *styles, ls_str *out)
{
    for (int k = 0; k < chart->n && chart->n > 1; k++)
        if (styles)
            ls_str_printf(out, "%*s%s--%s %s\n", MARGIN, "", styles[k], styles[LS_CHART_CURVES],
                          chart->curves[k].label);
        else
            ls_str_printf(out, "%*s%c  %s\n", MARGIN, "", 'a' + k, chart->curves[k].label);
}

/* The label of the mark in this line of cells; "" where none is. */
static void label_of(const axis *a, int line, int height, char text[32])
{
    for (int i = 0; i < marks_of(a); i++) {
        double at = mark_at(a, i, text);
        if ((int)lround((1 - at) * (height - 1)) == line)
            return;
    }
    text[0] = '\0';
}

static void put_x_axis(const frame *f, int width, ls_str *out)
{
    int used = 0;
    char text[32];

    ls_str_printf(out, "%*s+", MARGIN - 1, "");
    for (int i = 0; i < width; i++)
        ls_str_append_char(out, '-');
    ls_str_printf(out, "\n%*s", MARGIN, "");
    for (int i = 0; i < marks_of(&f->x); i++) {
        double place_of = mark_at(&f->x, i, text);
        int len = (int)strlen(text), at = (int)lround(place_of * (width - 1)) - len / 2;
        at = at < 0 ? 0 : at + len > width ? width - len : at;
        if (place_of < -1e-9 || place_of > 1 + 1e-9 || at < used + (used > 0))
            continue;
        ls_str_printf(out, "%*s%s", at - used, "", text);
        used = at + len;
    }
    ls_str_append_char(out, '\n');
}

void ls_chart_text(const ls_chart *chart, int width, int height, const char *const *styles,
                   ls_str *out)
{
    canvas c = {.width = width > MARGIN + 8 ? width - MARGIN : 8,
                .height = height < 4 ? 4 : height};
    frame f = make_frame(chart, 6, c.height / 4, false);
    size_t cells = (size_t)c.width * (size_t)c.height;
    char label[32];

    c.dots = ls_mem_alloc(2 * cells);
    c.curve = c.dots + cells;
    if (!c.dots) {
        out->failed = true;
        return;
    }
    ls_str_printf(out, "%s over %s\n", chart->title, chart->x_label);
    for (int k = 0; k < chart->n && !f.empty; k++)
        draw_curve(&c, chart, &f, k);
    for (int y = 0; y < c.height && !f.empty; y++) {
        label_of(&f.y, y, c.height, label);
        ls_str_printf(out, "%*s |", MARGIN - 2, label);
        for (int x = 0; x < c.width; x++)
            put_cell(&c, y * c.width + x, chart->n, styles, out);
        while (out->len > 0 && out->p[out->len - 1] == ' ')
            out->len--;
        ls_str_append_char(out, '\n');
    }
    if (!f.empty)
        put_x_axis(&f, c.width, out);
    put_keys(chart, styles, out);
    ls_mem_free(c.dots);
}
