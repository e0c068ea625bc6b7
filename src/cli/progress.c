/* progress.c -- drawing events for people. */
#include "cli/progress.h"

#include <math.h>
#include <unistd.h>
#include "base/time.h"
#include "data/utf8.h"

enum { BAR = 24, DRAW_MS = 100, LINE_S = 5 };

void ls_progress_init(ls_progress *progress, const ls_args *args)
{
    *progress = (ls_progress){.quiet = ls_args_has(args, "quiet"), .val_loss = NAN};
    ls_term_init(&progress->term, STDOUT_FILENO, args);
}

static void clear_bar(ls_progress *p)
{
    if (p->drawn)
        printf("\r\033[K");
    p->drawn = false;
}

/* "1234" as 1.23k, 12.3M ... */
static void short_number(double x, char *out, size_t cap)
{
    static const char units[] = " kMGT";
    int u = 0;

    while (x >= 999.5 && u < 4) {
        x /= 1000;
        u++;
    }
    if (u == 0)
        snprintf(out, cap, "%.0f", x);
    else
        snprintf(out, cap, "%.*f%c", x < 10 ? 2 : x < 100 ? 1 : 0, x, units[u]);
}

static void duration(double seconds, char *out, size_t cap)
{
    long s = (long)(seconds + 0.5);

    if (s >= 3600)
        snprintf(out, cap, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, cap, "%ld:%02ld", s / 60, s % 60);
}

static void show_start(ls_progress *p, const ls_event_start *e)
{
    char parameters[16], train[16], validation[16];
    ls_str ledger;

    if (p->quiet)
        return;
    short_number((double)e->parameters, parameters, sizeof parameters);
    short_number((double)e->train_tokens, train, sizeof train);
    short_number((double)e->validation_tokens, validation, sizeof validation);
    printf("%s: %s parameters, vocabulary %lld; %s tokens to train on, %s to validate\n", e->name,
           parameters, (long long)e->vocab, train, validation);
    printf(
        "device %s, %s kernels, %s sums; batch of %lld x %lld tokens (leaf %lld, %lld per call)\n",
        e->device, e->kernels, e->reduce, (long long)e->sequences, (long long)e->context,
        (long long)e->leaf, (long long)e->group);
    ls_str_init(&ledger);
    ls_ledger_print(e->ledger, &ledger);
    printf("memory:\n%s", ledger.p);
    ls_str_release(&ledger);
    if (e->first_step > 0)
        printf("resumed after step %lld from %s/checkpoints\n", (long long)e->first_step, e->out);
    fflush(stdout);
}

static void smooth(ls_progress *p, const ls_event_step *e)
{
    double ms = (double)ls_clock_wall_ns(e->clock) / 1e6;
    double keep = p->smooth_ms > 0 ? 0.9 : 0;

    p->smooth_ms = keep * p->smooth_ms + (1 - keep) * ms;
    for (int i = 0; i < LS_PARTS; i++)
        p->split[i] = keep * p->split[i] + (1 - keep) * (double)e->clock->parts_ns[i] / 1e6;
}

/* "fwd 31% bwd 60% ..." of the parts that matter. */
static void split_text(const ls_progress *p, ls_str *out)
{
    double sum = 0;

    for (int i = 0; i < LS_PARTS; i++)
        sum += p->split[i];
    for (int i = 0; i < LS_PARTS && sum > 0; i++)
        if (p->split[i] >= 0.01 * sum)
            ls_str_printf(out, " %s %.0f%%", ls_part_names[i], 100 * p->split[i] / sum);
}

static void step_text(const ls_progress *p, const ls_event_step *e, ls_str *out)
{
    char speed[16], eta[24];
    double per_step_s = p->smooth_ms / 1e3;

    short_number(e->tokens_per_s, speed, sizeof speed);
    if (e->total_steps > 0)
        ls_str_printf(out, "step %lld/%lld", (long long)e->step, (long long)e->total_steps);
    else
        ls_str_printf(out, "step %lld", (long long)e->step);
    ls_str_printf(out, "  loss %.3f", e->loss);
    if (!isnan(p->val_loss))
        ls_str_printf(out, "  val %.3f", p->val_loss);
    ls_str_printf(out, "  %s tok/s", speed);
    if (e->total_steps > 0) {
        duration((double)(e->total_steps - e->step) * per_step_s, eta, sizeof eta);
        ls_str_printf(out, "  eta %s", eta);
    }
    ls_str_append(out, " ");
    split_text(p, out);
}

static void draw_bar(ls_progress *p, const ls_event_step *e, ls_str *text)
{
    char bar[BAR + 1];
    int full = e->total_steps > 0 ? (int)(BAR * e->step / e->total_steps) : 0;
    int width = p->term.width;

    for (int i = 0; i < BAR; i++)
        bar[i] = i < full ? '#' : '.';
    bar[BAR] = '\0';
    ls_str line;
    ls_str_init(&line);
    if (e->total_steps > 0)
        ls_str_printf(&line, "[%s] ", bar);
    ls_str_append(&line, text->p);
    printf("\r%.*s\033[K", width > 1 ? width - 1 : 1, line.p);
    ls_str_release(&line);
    p->drawn = true;
}

static void show_step(ls_progress *p, const ls_event_step *e)
{
    int64_t now = ls_time_now_ns();
    bool last = e->total_steps > 0 && e->step == e->total_steps;
    int64_t wait = p->term.tty ? DRAW_MS * LS_NS_PER_MS : LINE_S * LS_NS_PER_S;
    ls_str text;

    smooth(p, e);
    if (p->quiet || (!last && p->shown_ns && now - p->shown_ns < wait))
        return;
    p->shown_ns = now;
    ls_str_init(&text);
    step_text(p, e, &text);
    if (p->term.tty)
        draw_bar(p, e, &text);
    else
        printf("%s\n", text.p);
    ls_str_release(&text);
    fflush(stdout);
}

/* A sample on lines of its own. What is not UTF-8, or could move the cursor, is shown as a dot. */
static void show_sample(ls_progress *p, const ls_event_sample *e)
{
    const unsigned char *t = (const unsigned char *)e->text;

    clear_bar(p);
    printf("--- after step %lld: %s%s%s", (long long)e->step, ls_term_code(&p->term, LS_TERM_BOLD),
           e->prompt, ls_term_code(&p->term, LS_TERM_PLAIN));
    for (size_t i = 0; i < e->text_len;) {
        int n = ls_utf8_next(t + i, e->text_len - i);
        bool plain = n > 1 || (n == 1 && ((t[i] >= 0x20 && t[i] != 0x7f) || t[i] == '\n'));
        if (plain)
            fwrite(t + i, 1, (size_t)n, stdout);
        else
            putchar('.');
        i += n > 0 ? (size_t)n : n < 0 ? (size_t)-n : e->text_len - i;
    }
    printf("\n---\n");
    fflush(stdout);
}

static void show_summary(const ls_event_summary *e)
{
    char took[24], speed[16];

    duration(e->seconds, took, sizeof took);
    short_number(e->tokens_per_s, speed, sizeof speed);
    if (strcmp(e->stopped_by, "done") == 0)
        printf("already finished: %lld steps were done before", (long long)e->steps);
    else
        printf("%s after step %lld: %lld steps in %s, %s tok/s (median)",
               strcmp(e->stopped_by, "interrupt") == 0 ? "stopped" : "finished",
               (long long)e->steps, (long long)e->steps_here, took, speed);
    if (!isnan(e->loss))
        printf(", loss %.4f", e->loss);
    if (!isnan(e->val_loss))
        printf(", validation loss %.4f", e->val_loss);
    printf("\n");
    if (e->steps_here > 0)
        printf("MFU %.1f %% of %.0f GFLOP/s measured here (6 N + 6 L C T per token); first step "
               "%.2f s after the start\n",
               100 * e->mfu, e->peak_flops / 1e9, e->start_to_first_step_s);
    printf("memory: peak %.1f MiB, ledger %.1f MiB (%+.1f %%); weights %s\n",
           (double)e->peak_bytes / (double)LS_MIB, (double)e->ledger_bytes / (double)LS_MIB,
           100.0 * (double)(e->peak_bytes - e->ledger_bytes) / (double)e->ledger_bytes,
           e->weights_hash);
    fflush(stdout);
}

void ls_progress_event(void *context, const ls_event *event)
{
    ls_progress *p = context;

    switch (event->kind) {
    case LS_EVENT_START:
        show_start(p, &event->start);
        break;
    case LS_EVENT_STEP:
        show_step(p, &event->step);
        break;
    case LS_EVENT_EVAL:
        p->val_loss = event->eval.val_loss;
        break;
    case LS_EVENT_SAMPLE:
        if (!p->quiet)
            show_sample(p, &event->sample);
        break;
    case LS_EVENT_CHECKPOINT:
        clear_bar(p);
        if (!p->quiet)
            printf("saved step %lld: %.1f MiB written, %.1f MiB unchanged, %.2f s\n",
                   (long long)event->checkpoint.step,
                   (double)event->checkpoint.bytes_written / (double)LS_MIB,
                   (double)event->checkpoint.bytes_reused / (double)LS_MIB,
                   event->checkpoint.seconds);
        fflush(stdout);
        break;
    case LS_EVENT_SUMMARY:
        clear_bar(p);
        show_summary(&event->summary);
        break;
    case LS_EVENT_RANK:
    case LS_EVENT_INCIDENT: /* the log has told it */
        break;
    }
}
