/* chart.h -- curves of runs as a picture: SVG for a file, dots of Braille for a terminal.
 *
 * A curve is drawn by its means; where a point stands for several values (run_store.h) the SVG shows
 * their smallest and largest as a pale band behind the line, so that no peak is hidden. */
#pragma once
#include "observe/store/run_store.h"

LS_C_BEGIN

enum { LS_CHART_CURVES = 16 };

typedef struct ls_chart_point {
    double x, min, max, mean; /* of finite numbers only; x rises */
} ls_chart_point;

typedef struct ls_chart_curve {
    const char *label;            /* borrowed, any text */
    const ls_chart_point *points; /* borrowed */
    int n;
} ls_chart_curve;

typedef struct ls_chart {
    const char *title, *x_label; /* borrowed, any text */
    ls_chart_curve curves[LS_CHART_CURVES];
    int n;
    bool log_y; /* values that are not positive are left out */
} ls_chart;

/* A document of its own; it follows the reader's light or dark colours. */
void ls_chart_svg(const ls_chart *chart, int width, int height, ls_str *out);

/* `width` columns; a title, `height` lines of dots, the axis, and where there are several curves a
 * line for each. styles: escape sequences
 * for the colour of each curve, and in [LS_CHART_CURVES] back to normal; NULL: no
 * colours, and letters for the dots of several curves. */
void ls_chart_text(const ls_chart *chart, int width, int height, const char *const *styles,
                   ls_str *out);

/* Exponential smoothing of the means in place: each is `weight` of the one before it and the rest of its
 * own; the beginning is corrected for what was not there, so the first value stays. 0: nothing. */
void ls_chart_smooth(ls_chart_point *points, int n, double weight);

LS_C_END
