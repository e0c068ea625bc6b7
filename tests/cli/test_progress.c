/* test_progress.c -- the progress line: it fits its window, whole words only, and stays readable.
 */
#include "harness.h"
#include <math.h>
#include "cli/progress.h"

static void a_step(ls_progress *p, ls_step_clock *clock, ls_event_step *e)
{
    *clock = (ls_step_clock){.begun_ns = 0};
    *p = (ls_progress){.val_loss = 1.438, .smooth_ms = 50};
    p->split[LS_TIME_FORWARD] = 16;
    p->split[LS_TIME_BACKWARD] = 33;
    p->split[LS_TIME_OPTIMIZER] = 1;
    *e = (ls_event_step){.step = 260,
                         .total_steps = 800,
                         .loss = 1.4123,
                         .lr = 2.5e-4,
                         .grad_norm = 0.5234,
                         .epoch = 0.648,
                         .tokens = 260 * 1024,
                         .step_tokens = 1024,
                         .tokens_left = 540 * 1024,
                         .clock = clock};
}

static const char *line_of(const ls_progress *p, const ls_event_step *e, int width, ls_str *line)
{
    ls_str_clear(line);
    ls_progress_line(p, e, true, width, line);
    return line->p;
}

LS_TEST(progress_line_drops_whole_parts_from_the_right)
{
    ls_progress p;
    ls_step_clock clock;
    ls_event_step e;
    ls_str line;

    a_step(&p, &clock, &e);
    ls_str_init(&line);
    LS_CHECK_STR(line_of(&p, &e, 156, &line),
                 "[#######.................] step 260/800  loss 1.412  val 1.438  20.5k tok/s  "
                 "eta 0:27  lr 0.00025  grad 0.523  epoch 0.65  forward 32% backward 66%");
    LS_CHECK_STR(
        line_of(&p, &e, 96, &line),
        "[###.......] step 260/800  loss 1.412  val 1.438  20.5k tok/s  eta 0:27  lr 0.00025  "
        "grad 0.523");
    /* A terminal of 80 columns. */
    LS_CHECK_STR(line_of(&p, &e, 76, &line),
                 "step 260/800 loss 1.412 val 1.438 20.5k tok/s eta 0:27 lr 0.00025 grad 0.523");
    LS_CHECK_STR(line_of(&p, &e, 40, &line), "step 260/800 loss 1.412 val 1.438");
    LS_CHECK_STR(line_of(&p, &e, 12, &line), "step 260/800");
    LS_CHECK_STR(line_of(&p, &e, -3, &line), "");
    for (int width = 0; width < 200; width++)
        LS_CHECK((int)strlen(line_of(&p, &e, width, &line)) <= width);
    ls_str_release(&line);
}

LS_TEST(progress_line_without_an_end_and_with_a_wild_loss)
{
    ls_progress p;
    ls_step_clock clock;
    ls_event_step e;
    ls_str line;

    a_step(&p, &clock, &e);
    ls_str_init(&line);
    e.total_steps = 0; /* ends by time: nothing to draw a bar of, no time to go */
    e.loss = 129776928.375;
    p.val_loss = (double)NAN;
    LS_CHECK_STR(line_of(&p, &e, 76, &line),
                 "step 260 loss 1.3e+08 20.5k tok/s lr 0.00025 grad 0.523 epoch 0.65");
    ls_str_release(&line);
}
