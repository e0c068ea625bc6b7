/* cmd_plan_draw.c -- a schedule as text, as a picture and as JSON.
 *
 * In the text the shortest operation is as wide as a label ("F12", with chunks "F12b"), and all
 * others in proportion, so that lines of ranks stand under each other in time. A table that would
 * be wider than MOST_COLUMNS is compressed; labels that do not fit then lose their end. */
#include "cli/plan/cmd_plan.h"

#include <math.h>
#include "base/json.h"
#include "base/time.h"

enum { MOST_COLUMNS = 4000, LABEL = 24 };

/* By ls_pp_schedule_what; sends and receives are not drawn. */
static const char letters[] = "FBIW";
static const char *const words[] = {"forward", "backward", "input_gradient", "weight_gradient"};
static const char *const colors[] = {"#5b8def", "#58a55c", "#3fa7a1", "#e0a83a"};
#define IDLE "#eee"

static bool is_work(const ls_pp_schedule_op *op)
{
    return op->what < LS_PP_SCHEDULE_SEND;
}

/* "F12", and with chunks "F12b". */
static int label_of(const ls_pp_schedule *p, const ls_pp_schedule_op *op, char label[LABEL])
{
    int n = snprintf(label, LABEL, "%c%d", letters[op->what], op->micro);

    if (p->chunks > 26)
        n += snprintf(label + n, LABEL - (size_t)n, ".%d", op->chunk);
    else if (p->chunks > 1)
        n += snprintf(label + n, LABEL - (size_t)n, "%c", 'a' + op->chunk);
    return n;
}

static double shortest(const ls_plan_view *v)
{
    const ls_pp_schedule *p = &v->table;
    double least = v->times.step;

    for (int i = 0; i < p->first[p->ranks]; i++)
        if (is_work(&p->ops[i]) && v->times.end[i] - v->times.start[i] > 0)
            least = fmin(least, v->times.end[i] - v->times.start[i]);
    return least;
}

/* What something costs, with its unit: a time as people read it, operations, or whatever the flags
 * are in. Large numbers keep their digits. */
enum { COST = 48 };
static const char *cost_text(const ls_plan_view *v, double cost, char out[COST])
{
    if (strcmp(v->unit, "ms") == 0)
        return ls_time_text(cost * 1e6, out);
    snprintf(out, COST, cost < 1e5 ? "%.5g%s%s" : "%.0f%s%s", cost, *v->unit ? " " : "", v->unit);
    return out;
}

/* Of flags it has no unit of its own. */
static const char *unit_of(const ls_plan_view *v)
{
    return *v->unit ? "" : " units of time";
}

/* --- text -------------------------------------------------------------------------------------
 */

static int column(double t, double scale)
{
    return (int)(t * scale + 0.5);
}

/* Columns from..from+n-1 of a rank's line. */
static void draw_line(const ls_plan_view *v, int rank, double scale, int from, int n, char *line)
{
    const ls_pp_schedule *p = &v->table;
    char label[LABEL];

    memset(line, '.', (size_t)n);
    line[n] = '\0';
    for (int i = p->first[rank]; i < p->first[rank + 1]; i++) {
        if (!is_work(&p->ops[i]))
            continue;
        int a = column(v->times.start[i], scale), b = column(v->times.end[i], scale);
        int len = label_of(p, &p->ops[i], label);
        for (int k = a < from ? from : a; k < b && k < from + n; k++)
            line[k - from] = k - a < len ? label[k - a] : '=';
    }
}

void ls_plan_draw(const ls_plan_view *view, int width, ls_str *out)
{
    const ls_pp_schedule *p = &view->table;
    char label[LABEL], line[MOST_COLUMNS + 1];
    const ls_pp_schedule_op widest = {.micro = p->micros - 1, .chunk = p->chunks - 1};
    int cell = label_of(p, &widest, label),
        margin = snprintf(label, LABEL, "rank %d", p->ranks - 1);
    double scale = fmin(cell / shortest(view), MOST_COLUMNS / view->times.step);
    int all = column(view->times.step, scale), piece = all;

    if (width > 0 && width - margin - 2 < all)
        piece = width - margin - 2 < 2 * cell ? 2 * cell : (width - margin - 2) / cell * cell;
    for (int from = 0; from < all; from += piece) {
        if (from > 0)
            ls_str_append_char(out, '\n');
        for (int r = 0; r < p->ranks; r++) {
            int n = all - from < piece ? all - from : piece;
            snprintf(label, LABEL, "rank %d", r);
            draw_line(view, r, scale, from, n, line);
            ls_str_printf(out, "%-*s  %s\n", margin, label, line);
        }
    }
    ls_str_append(out, "\nTime runs to the right. F0: forward of micro-batch 0");
    ls_str_append(out, p->kind == LS_PP_SCHEDULE_ZERO_BUBBLE
                           ? ", I0: its input gradient, W0: its weight gradient"
                           : ", B0: its backward");
    ls_str_append(out, p->chunks > 1 ? ", a, b: chunks of layers, .: idle\n" : ", .: idle\n");
}

/* "embedding, 0-2", "9-11, head". */
static void say_layers(const ls_plan_view *v, int stage, ls_str *out)
{
    const ls_stage *s = &v->stages[stage];
    int64_t first = s->unit > 0 ? s->unit - 1 : 0, last = first + s->blocks - 1;
    const char *join = "";

    if (s->unit == 0) {
        ls_str_append(out, "embedding");
        join = ", ";
    }
    if (s->blocks > 0) {
        ls_str_printf(out, "%s%lld", join, (long long)first);
        if (last > first)
            ls_str_printf(out, "-%lld", (long long)last);
        join = ", ";
    }
    if (s->unit + s->units == v->layers + 2)
        ls_str_printf(out, "%shead%s", join, s->copies ? " (with a copy of the embedding)" : "");
}

static void tell_rank(const ls_plan_view *v, int rank, ls_str *out)
{
    const ls_pp_schedule *p = &v->table;
    int64_t elements = 0;
    char busy[COST];

    ls_str_printf(out, "%4d  %12s  %5.1f %%  %11d", rank, cost_text(v, v->times.busy[rank], busy),
                  100 * (1 - v->times.busy[rank] / v->times.step), v->peaks[rank]);
    for (int c = 0; c < p->chunks && v->stages; c++)
        elements += v->stages[c * p->ranks + rank].elements;
    if (v->stages)
        ls_str_printf(out, "  %13lld  ", (long long)elements);
    for (int c = 0; c < p->chunks && v->stages; c++) {
        ls_str_append(out, c > 0 ? "; " : "");
        say_layers(v, c * p->ranks + rank, out);
    }
    ls_str_append_char(out, '\n');
}

void ls_plan_summary(const ls_plan_view *view, ls_str *out)
{
    const ls_pp_schedule *p = &view->table;
    char step[COST];

    ls_str_printf(out, "%s: %d stage%s, %d micro-batch%s", ls_pp_schedule_names[p->kind], p->ranks,
                  p->ranks == 1 ? "" : "s", p->micros, p->micros == 1 ? "" : "es");
    if (p->chunks > 1)
        ls_str_printf(out, ", %d chunks on each", p->chunks);
    ls_str_printf(out, "; a step takes %s%s, bubble %.1f %%",
                  cost_text(view, view->times.step, step), unit_of(view), 100 * view->times.bubble);
    if (view->formula >= 0)
        ls_str_printf(out, " (formula: %.1f %%)", 100 * view->formula);
    ls_str_printf(out, "\n\nrank  %12s  %7s  activations%s\n", "computes", "idle",
                  view->stages ? "     parameters  layers" : "");
    for (int r = 0; r < p->ranks; r++)
        tell_rank(view, r, out);
    ls_str_printf(out, "\nactivations: the most %s that a rank keeps at a time\n",
                  p->chunks > 1 ? "micro-batches of a chunk" : "micro-batches");
}

/* --- picture ----------------------------------------------------------------------------------
 */

enum {
    ROW = 30,
    LEFT = 70,
    RIGHT = 30, /* half of the last time of the axis */
    TOP = 46,
    AXIS = 22,   /* times, below the rows */
    LEGEND = 26, /* below them */
    TICK_PX = 90,
    SHORTEST_PX = 26,
    MOST_PX = 16000,
    LEAST_PX = 620
};

static void svg_op(const ls_plan_view *v, int i, int rank, double scale, ls_str *out)
{
    const ls_pp_schedule_op *op = &v->table.ops[i];
    double x = LEFT + v->times.start[i] * scale;
    double wide = (v->times.end[i] - v->times.start[i]) * scale;
    int y = TOP + rank * ROW;
    char label[LABEL];
    int len = label_of(&v->table, op, label);

    ls_str_printf(out,
                  "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
                  "fill-opacity=\"%.2f\" stroke=\"#fff\"/>\n",
                  x, y, wide, ROW - 4, colors[op->what],
                  1 - 0.55 * op->chunk / (double)v->table.chunks);
    if (wide >= 7 * len)
        ls_str_printf(out, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                      x + wide / 2, y + ROW / 2 + 2, label);
}

/* One entry, and where the next one begins. */
static int svg_entry(int x, int y, const char *color, const char *name, ls_str *out)
{
    ls_str_printf(out,
                  "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/>\n"
                  "<text x=\"%d\" y=\"%d\">%s</text>\n",
                  x, y, color, x + 20, y + 11, name);
    return x + 20 + 7 * (int)strlen(name) + 14;
}

/* Times at round numbers, as many as have room. */
static void svg_axis(const ls_plan_view *v, int y, double scale, ls_str *out)
{
    double least = TICK_PX / scale, round = pow(10, floor(log10(least)));
    double each = round * (least <= round       ? 1
                           : least <= 2 * round ? 2
                           : least <= 5 * round ? 5
                                                : 10);
    char text[COST];

    for (int64_t i = 0; (double)i * each <= v->times.step; i++) {
        double x = LEFT + (double)i * each * scale;
        ls_str_printf(out,
                      "<path d=\"M%.2f %dv4\" stroke=\"#888\"/>\n<text x=\"%.2f\" y=\"%d\" "
                      "text-anchor=\"middle\" fill=\"#555\">%s</text>\n",
                      x, y, x, y + 15, cost_text(v, (double)i * each, text));
    }
}

static void svg_legend(const ls_plan_view *v, int y, ls_str *out)
{
    static const char *const names[] = {"forward", "backward", "input gradient", "weight gradient"};
    bool split = v->table.kind == LS_PP_SCHEDULE_ZERO_BUBBLE;
    int x = LEFT;

    for (int what = 0; what < LS_PP_SCHEDULE_SEND; what++)
        if (what == LS_PP_SCHEDULE_FORWARD || split == (what != LS_PP_SCHEDULE_BACKWARD))
            x = svg_entry(x, y, colors[what], names[what], out);
    x = svg_entry(x, y, IDLE, "idle", out);
    ls_str_printf(out, "<text x=\"%d\" y=\"%d\">F3: forward of micro-batch 3%s</text>\n", x, y + 11,
                  v->table.chunks > 1 ? "; a, b: chunks of layers, later ones paler" : "");
}

void ls_plan_svg(const ls_plan_view *view, ls_str *out)
{
    const ls_pp_schedule *p = &view->table;
    double scale = fmin(SHORTEST_PX / shortest(view), MOST_PX / view->times.step);
    int rows = p->ranks * ROW, high = TOP + rows + AXIS + LEGEND, len;
    char chunks[48] = "", title[200], step[COST];

    if (p->chunks > 1)
        snprintf(chunks, sizeof chunks, ", %d chunks", p->chunks);
    len = snprintf(title, sizeof title,
                   "%s, %d stage%s, %d micro-batch%s%s: a step takes %s%s, bubble %.1f %%",
                   ls_pp_schedule_names[p->kind], p->ranks, p->ranks == 1 ? "" : "s", p->micros,
                   p->micros == 1 ? "" : "es", chunks, cost_text(view, view->times.step, step),
                   unit_of(view), 100 * view->times.bubble);
    double inner = fmax(ceil(view->times.step * scale), fmax(LEAST_PX, 8 * len));
    int wide = LEFT + (int)inner + RIGHT;
    ls_str_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
                  "<text x=\"%d\" y=\"24\" font-size=\"15\">%s</text>\n",
                  wide, high, wide, high, LEFT, title);
    for (int r = 0; r < p->ranks; r++) {
        ls_str_printf(out,
                      "<text x=\"10\" y=\"%d\">rank %d</text>\n<rect x=\"%d\" y=\"%d\" "
                      "width=\"%.2f\" height=\"%d\" fill=\"" IDLE "\"/>\n",
                      TOP + r * ROW + ROW / 2 + 2, r, LEFT, TOP + r * ROW, view->times.step * scale,
                      ROW - 4);
        for (int i = p->first[r]; i < p->first[r + 1]; i++)
            if (is_work(&p->ops[i]))
                svg_op(view, i, r, scale, out);
    }
    svg_axis(view, TOP + rows, scale, out);
    svg_legend(view, TOP + rows + AXIS, out);
    ls_str_append(out, "</svg>\n");
}

/* --- JSON -------------------------------------------------------------------------------------
 */

static void json_stage(const ls_stage *s, ls_json *json)
{
    ls_json_open(json, '{');
    ls_json_put_int(json, "unit", s->unit);
    ls_json_put_int(json, "units", s->units);
    ls_json_put_int(json, "layers", s->blocks);
    ls_json_put_int(json, "parameters", s->elements);
    ls_json_put_num(json, "forward_operations", s->forward);
    ls_json_put_num(json, "backward_operations", s->backward);
    ls_json_close(json);
}

static void json_rank(const ls_plan_view *v, int rank, ls_json *json)
{
    const ls_pp_schedule *p = &v->table;

    ls_json_open(json, '{');
    ls_json_put_int(json, "rank", rank);
    ls_json_put_num(json, "busy", v->times.busy[rank]);
    ls_json_put_num(json, "idle", v->times.step - v->times.busy[rank]);
    ls_json_put_int(json, "peak_activations", v->peaks[rank]);
    if (v->stages) {
        ls_json_key(json, "chunks");
        ls_json_open(json, '[');
        for (int c = 0; c < p->chunks; c++)
            json_stage(&v->stages[c * p->ranks + rank], json);
        ls_json_close(json);
    }
    ls_json_key(json, "operations");
    ls_json_open(json, '[');
    for (int i = p->first[rank]; i < p->first[rank + 1]; i++) {
        const ls_pp_schedule_op *op = &p->ops[i];
        if (!is_work(op))
            continue;
        ls_json_open(json, '{');
        ls_json_put_str(json, "what", words[op->what]);
        ls_json_put_int(json, "micro_batch", op->micro);
        ls_json_put_int(json, "chunk", op->chunk);
        ls_json_put_num(json, "start", v->times.start[i]);
        ls_json_put_num(json, "end", v->times.end[i]);
        ls_json_close(json);
    }
    ls_json_close(json);
    ls_json_close(json);
}

void ls_plan_json(const ls_plan_view *view, ls_str *out)
{
    const ls_pp_schedule *p = &view->table;
    ls_json json;

    ls_json_begin(&json, out);
    ls_json_open(&json, '{');
    ls_json_put_str(&json, "schedule", ls_pp_schedule_names[p->kind]);
    ls_json_put_int(&json, "stages", p->ranks);
    ls_json_put_int(&json, "micro_batches", p->micros);
    ls_json_put_int(&json, "chunks", p->chunks);
    ls_json_put_str(&json, "unit", view->unit);
    ls_json_put_num(&json, "step", view->times.step);
    ls_json_put_num(&json, "bubble", view->times.bubble);
    ls_json_put_num(&json, "bubble_formula", view->formula >= 0 ? view->formula : (double)NAN);
    ls_json_key(&json, "ranks");
    ls_json_open(&json, '[');
    for (int r = 0; r < p->ranks; r++)
        json_rank(view, r, &json);
    ls_json_close(&json);
    ls_json_close(&json);
    ls_str_append_char(out, '\n');
}
