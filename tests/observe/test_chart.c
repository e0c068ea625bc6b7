/* test_chart.c -- curves as SVG and as dots: ranges, gaps, text of unknown origin, widths. */
#include "harness.h"
#include "observe/chart.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 60, HEIGHT = 12 };

static ls_chart_point point(double x, double y)
{
    return (ls_chart_point){.x = x, .min = y, .max = y, .mean = y};
}

static ls_chart chart_of(const ls_chart_point *points, int n)
{
    return (ls_chart){.title = "loss",
                      .x_label = "steps",
                      .curves = {{.label = "a", .points = points, .n = n}},
                      .n = 1};
}

static int count(const char *text, const char *word)
{
    int n = 0;

    for (; (text = strstr(text, word)); text += strlen(word))
        n++;
    return n;
}

/* Columns of the widest line; a character of several bytes is one. */
static int widest(const char *text)
{
    int most = 0, now = 0;

    for (; *text; text++) {
        now = *text == '\n' ? 0 : now + (((unsigned char)*text & 0xc0) != 0x80);
        most = now > most ? now : most;
    }
    return most;
}

LS_TEST(chart_smoothing_begins_with_the_first_value)
{
    ls_chart_point p[] = {point(1, 4), point(2, 4), point(3, 10)};

    ls_chart_smooth(p, 3, 0.5);
    LS_CHECK(p[0].mean == 4 && p[1].mean == 4);
    /* weights 1/8, 1/4, 1/2 over 7/8 */
    LS_CHECK(fabs(p[2].mean - (4 * 0.125 + 4 * 0.25 + 10 * 0.5) / 0.875) < 1e-12);
    LS_CHECK(p[2].max == 10);
    ls_chart_smooth(p, 3, 0);
    LS_CHECK(p[0].mean == 4);
}

LS_TEST(chart_svg_escapes_names_and_leaves_gaps)
{
    const ls_chart_point p[] = {point(0, 1), point(1, 2), point(2, (double)NAN), point(3, 2),
                                point(4, 1)};
    ls_chart c = chart_of(p, 5);
    ls_str out;

    c.curves[0].label = "<script>alert(1)</script>&\x01";
    c.title = "a<b";
    ls_str_init(&out);
    ls_chart_svg(&c, 400, 200, &out);
    LS_CHECK(!strstr(out.p, "<script") && strstr(out.p, "&lt;script>") && strstr(out.p, "&amp; "));
    LS_CHECK_EQ(count(out.p, "a&lt;b"), 2);
    LS_CHECK_EQ(count(out.p, "M"), 2); /* the line begins again behind the gap */
    LS_CHECK(!strstr(out.p, "nan") && !strstr(out.p, "inf"));
    LS_CHECK_EQ(count(out.p, "fill-opacity"), 0);
    ls_str_release(&out);
}

LS_TEST(chart_svg_shows_peaks_as_a_band)
{
    const ls_chart_point p[] = {{.x = 0, .min = 1, .max = 9, .mean = 2},
                                {.x = 8, .min = 1, .max = 3, .mean = 2}};
    ls_chart c = chart_of(p, 2);
    ls_str out;

    ls_str_init(&out);
    ls_chart_svg(&c, 400, 200, &out);
    LS_CHECK_EQ(count(out.p, "fill-opacity"), 1);
    LS_CHECK(strstr(out.p, ">8<") || strstr(out.p, ">9<") || strstr(out.p, ">10<"));
    ls_str_release(&out);
}

LS_TEST(chart_leaves_out_what_a_logarithm_cannot_show)
{
    const ls_chart_point p[] = {point(0, 100), point(1, 0), point(2, -3), point(3, 1)};
    ls_chart c = chart_of(p, 4);
    ls_str out;

    c.log_y = true;
    ls_str_init(&out);
    ls_chart_svg(&c, 400, 300, &out);
    LS_CHECK_EQ(count(out.p, "M"), 2);
    LS_CHECK(strstr(out.p, ">100<") && strstr(out.p, ">1<"));
    ls_str_clear(&out);
    ls_chart_text(&c, WIDTH, HEIGHT, NULL, &out);
    LS_CHECK_OK(ls_str_status(&out));
    ls_str_release(&out);
}

LS_TEST(chart_of_nothing_or_of_one_value_is_drawn)
{
    const ls_chart_point one = point(5, 0), none = point(1, (double)INFINITY);
    const ls_chart_point *points[] = {&one, &none, NULL};
    ls_str out;

    ls_str_init(&out);
    for (int i = 0; i < 3; i++) {
        ls_chart c = chart_of(points[i], points[i] != NULL);
        ls_str_clear(&out);
        ls_chart_svg(&c, 300, 200, &out);
        LS_CHECK(strstr(out.p, "</svg>") && !strstr(out.p, "nan"));
        ls_str_clear(&out);
        ls_chart_text(&c, WIDTH, HEIGHT, NULL, &out);
        LS_CHECK(strstr(out.p, "loss over steps") && !strstr(out.p, "nan"));
    }
    ls_str_release(&out);
}

LS_TEST(chart_text_keeps_its_width_and_names_curves)
{
    static const char *const styles[LS_CHART_CURVES + 1] = {
        "\033[31m", "\033[32m", [LS_CHART_CURVES] = "\033[0m"};
    ls_chart_point falls[100], rises[100];
    ls_str out;

    for (int i = 0; i < 100; i++) {
        falls[i] = point(i, 100 - i);
        rises[i] = point(i, i);
    }
    ls_chart c = chart_of(falls, 100);
    c.curves[c.n++] = (ls_chart_curve){.label = "b", .points = rises, .n = 100};
    ls_str_init(&out);
    ls_chart_text(&c, WIDTH, HEIGHT, NULL, &out);
    LS_CHECK(widest(out.p) <= WIDTH);
    LS_CHECK_EQ(count(out.p, "\n"), 1 + HEIGHT + 2 + 2);
    LS_CHECK(strstr(out.p, "a  a\n") && strstr(out.p, "b  b\n") && strstr(out.p, "bbb"));
    ls_str_clear(&out);
    ls_chart_text(&c, WIDTH, HEIGHT, styles, &out);
    LS_CHECK(strstr(out.p, "\033[31m") && strstr(out.p, "\033[32m") && !strstr(out.p, "bbb"));
    ls_str_release(&out);
}
