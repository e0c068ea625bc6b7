/* test_best_loss.c -- which validation loss is the best, when patience is over, and how both are kept. */
#include <math.h>
#include "harness.h"
#include "model/tiny.h"
#include "train/save/best_loss.h"

static ls_session session_of(ls_run *run, int64_t patience, ls_keep_best best)
{
    *run = ls_tiny_run();
    run->train.patience = patience;
    run->checkpoint.best = best;
    return (ls_session){.run = run, .progress.best = {.step = -1, .judged = -1}};
}

static void judge(ls_session *s, int64_t step, double loss)
{
    s->step_number = step;
    s->progress.val_loss = loss;
    ls_best_loss_judge(s);
}

/* The example of best_loss.c. */
LS_TEST(best_loss_counts_evaluations_without_a_lower_one)
{
    static const double losses[] = {2.31, 2.12, 2.14, 2.12, 2.20};
    static const int best[] = {100, 200, 200, 200, 200}, since[] = {0, 0, 1, 2, 3};
    ls_run run;
    ls_session s = session_of(&run, 3, LS_KEEP_BEST_AUTO);

    for (int i = 0; i < 5; i++) {
        LS_CHECK(!ls_best_loss_is_over(&s));
        judge(&s, 100 * (i + 1), losses[i]);
        LS_CHECK_EQ(s.progress.best.step, best[i]);
        LS_CHECK_EQ(s.progress.best.since, since[i]);
        LS_CHECK_EQ(ls_best_loss_is_now(&s), i < 2);
        judge(&s, 100 * (i + 1), losses[i]); /* ranks that meet again: it counts once */
        LS_CHECK_EQ(s.progress.best.since, since[i]);
    }
    LS_CHECK(ls_best_loss_is_over(&s));
}

LS_TEST(best_loss_is_no_nan)
{
    ls_run run;
    ls_session s = session_of(&run, 2, LS_KEEP_BEST_OFF);

    judge(&s, 10, (double)NAN);
    LS_CHECK_EQ(s.progress.best.step, -1);
    judge(&s, 20, 3);
    LS_CHECK_EQ(s.progress.best.step, 20);
    LS_CHECK(!ls_best_loss_is_now(&s)); /* checkpoint.best: false: it is not kept */
    judge(&s, 30, (double)NAN);
    judge(&s, 40, (double)NAN);
    LS_CHECK(ls_best_loss_is_over(&s));
    s = session_of(&run, 0, LS_KEEP_BEST_AUTO); /* nobody asks */
    judge(&s, 10, 1);
    LS_CHECK_EQ(s.progress.best.judged, -1);
}

/* As a checkpoint keeps it, to the last bit, between other words. */
LS_TEST(best_loss_is_what_was_written)
{
    const ls_session_best best = {.step = 1200, .loss = 2.0 / 3, .since = 4, .judged = 1600};
    ls_session_best back = {.step = -1, .judged = -1};
    char text[LS_BEST_LOSS_TEXT], around[400];

    ls_best_loss_write(&back, text);
    LS_CHECK_STR(text, "");
    ls_best_loss_write(&best, text);
    snprintf(around, sizeof around, "0123abcd%s loss_scale=4 good=1 overflows=0", text);
    LS_CHECK_OK(ls_best_loss_read(&back, around));
    LS_CHECK(back.step == best.step && back.since == best.since && back.judged == best.judged);
    LS_CHECK(!memcmp(&back.loss, &best.loss, sizeof best.loss));
    LS_CHECK_OK(ls_best_loss_read(&back, "0123abcd")); /* an old checkpoint: nothing changes */
    LS_CHECK_EQ(back.step, 1200);
    LS_CHECK_FAILS(ls_best_loss_read(&back, " best_step=5 best_loss=x"), LS_EDATA,
                   "cannot be read");
    LS_CHECK_FAILS(ls_best_loss_read(&back, " best_step=5 best_loss=1 since=-1 judged=5"), LS_EDATA,
                   "cannot be read");
}
