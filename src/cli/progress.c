/* progress.c -- drawing events for people.
 *
 * The bar is one line that never reaches the right edge: a line that wraps cannot be drawn over,
 * and a few free columns take the "^C" that a terminal echoes. So the width is asked before each
 * drawing, the bar gets shorter first, and what no longer fits is left out whole, from the right;
 * the line begins with what matters most. Figures that jump from step to step are smoothed. */
#include "cli/progress.h"

#include <math.h>
#include <string.h>
#include <unistd.h>
#include "base/time.h"

static const double SLOW = 1.25; /* times the median: worth a line */
enum { SLOW_SHOWN = 8 };
enum { BAR_LONG = 24, BAR_SHORT = 10, EDGE = 4, DRAW_MS = 100, LINE_S = 5, LINE_MOST = 1000 };
/* From here on a line has room for the bar beside learning rate and gradient norm. */
enum { WIDE = 96 };

void ls_progress_init(ls_progress *progress, const ls_args *args)
{
    *progress = (ls_progress){.quiet = ls_args_has(args, "quiet"),
                              .verbose = ls_args_has(args, "verbose"),
                              .first_loss = (double)NAN,
                              .val_loss = (double)NAN};
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

/* A name or a text that a run file brought along. */
static void show_foreign(const char *text)
{
    ls_term_text((const unsigned char *)text, strlen(text), stdout);
}

static void show_run(const ls_event_start *e)
{
    char parameters[16], trained[16], train[16], validation[16];

    short_number((double)e->parameters, parameters, sizeof parameters);
    short_number((double)e->trained, trained, sizeof trained);
    short_number((double)e->train_tokens, train, sizeof train);
    short_number((double)e->validation_tokens, validation, sizeof validation);
    printf("run     ");
    show_foreign(e->name);
    printf(", in ");
    show_foreign(e->out);
    putchar('\n');
    printf("model   %s, %s parameters", e->family, parameters);
    if (e->trained < e->parameters)
        printf(", %s of them trained", trained);
    printf(", vocabulary %lld\n", (long long)e->vocab);
    printf("data    %s tokens to train on, %s to validate\n", train, validation);
    printf("batch   %lld sequence%s of %lld tokens, in leaves of %lld, %lld per call\n",
           (long long)e->sequences, ls_str_plural(e->sequences), (long long)e->context,
           (long long)e->leaf, (long long)e->group);
    if (e->recompute.chosen || strcmp(e->recompute.level, "none") != 0) {
        printf("        recompute %s", e->recompute.level);
        if (strcmp(e->recompute.level, "none") != 0)
            printf(" in %lld of %lld blocks", (long long)e->recompute.blocks,
                   (long long)e->recompute.of);
        printf("%s\n", e->recompute.chosen ? ", chosen by the free memory" : "");
    }
    printf("train   %s, learning rate %.4g", e->optimizer, e->lr);
    if (e->lr_factor < 1 || e->lr_factor > 1)
        printf(" (%.4g times %.4g, by train.lr_rule)", e->lr / e->lr_factor, e->lr_factor);
    printf(", %lld step%s of warm-up", (long long)e->warmup, e->warmup == 1 ? "" : "s");
    if (e->warmup_written > 0)
        printf(" (train.warmup: %lld is longer than the run)", (long long)e->warmup_written);
    printf("\n");
    if (e->epochs > 0)
        printf("        %g epoch%s of %lld sequences: %lld steps\n", e->epochs,
               e->epochs > 1 ? "s" : "", (long long)e->windows, (long long)e->total_steps);
}

/* What the sums promise: mesh.tp and mesh.cp cut sums themselves (docs/guide/parallel.md). */
static const char *bits_of(const ls_event_start *e)
{
    if (strcmp(e->reduce, "ordered") != 0 || e->ranks < 2 || strcmp(e->sync, "allreduce") != 0)
        return "";
    return e->tp > 1 || e->cp > 1 ? ": the bits of this mesh, not of one process"
                                  : ": the bits of one process";
}

static void show_place(const ls_event_start *e)
{
    printf("device  %s", e->device);
    if (e->cards > 0 && e->ranks > 1)
        printf(", %d ranks on %d card%s", e->ranks, e->cards, e->cards == 1 ? "" : "s");
    printf("\n        %s kernels, %s sums%s\n", e->kernels, e->reduce, bits_of(e));
    if (e->collectives)
        printf("        exchange of %s %s: %s\n", e->collectives_axes,
               strcmp(e->collectives, "nccl") == 0 ? "by NCCL" : "through the host's memory",
               e->collectives_why);
    if (e->pp > 1) {
        int pipelines = e->ranks / e->pp / e->tp;
        printf("mesh    %d pipeline%s of %d %s, schedule %s", pipelines, pipelines == 1 ? "" : "s",
               e->pp, e->tp > 1 ? "tensor-parallel groups" : "ranks", e->schedule);
        if (e->chunks > 1)
            printf(", %lld chunks each", (long long)e->chunks);
        printf("\n");
    }
    if (e->tp > 1)
        printf("mesh    %d tensor-parallel group%s of %d ranks\n", e->ranks / e->tp,
               e->ranks == e->tp ? "" : "s", e->tp);
    if (e->cp > 1)
        printf("mesh    %d context-parallel group%s of %d ranks\n", e->ranks / e->cp,
               e->ranks == e->cp ? "" : "s", e->cp);
    if (strcmp(e->compress, "none") != 0)
        printf("mesh    %d ranks on %d nodes, gradients between nodes as %s\n", e->ranks, e->nodes,
               e->compress);
    if (e->unused_compress)
        printf("mesh    exchange.compress: %s has no use: %s\n", e->unused_compress,
               e->ranks > 1 ? "all ranks are on one node" : "there is one rank");
}

/* One line; with -v what it is made of. */
static void show_memory(const ls_progress *p, const ls_ledger *ledger)
{
    double host = (double)ls_ledger_host_total(ledger) / (double)LS_MIB;
    ls_str table;

    if (!p->verbose) {
        printf("memory  %.1f MiB needed", (double)ls_ledger_total(ledger) / (double)LS_MIB);
        if (host > 0)
            printf(", and %.1f MiB of the host", host);
        printf(" (-v: for what)\n");
        return;
    }
    ls_str_init(&table);
    ls_ledger_print(ledger, &table);
    printf("memory\n%s", table.p);
    ls_str_release(&table);
}

static void show_start(ls_progress *p, const ls_event_start *e)
{
    if (p->quiet)
        return;
    show_run(e);
    show_place(e);
    show_memory(p, e->ledger);
    if (e->first_step > 0)
        printf("resumed after step %lld\n", (long long)e->first_step);
    if (*e->overridden)
        printf("        with --override: %s\n", e->overridden);
    if (p->term.cursor) { /* a first step may take long: show that it is under way */
        printf("step %lld is under way", (long long)e->first_step + 1);
        p->drawn = true;
    }
    fflush(stdout);
}

static void smooth(ls_progress *p, const ls_event_step *e)
{
    double ms = (double)ls_step_clock_wall_ns(e->clock) / 1e6;
    double keep = p->smooth_ms > 0 ? 0.9 : 0;

    p->smooth_ms = keep * p->smooth_ms + (1 - keep) * ms;
    for (int i = 0; i < LS_STEP_TIMES; i++)
        p->split[i] = keep * p->split[i] + (1 - keep) * (double)e->clock->parts_ns[i] / 1e6;
}

/* Append a part of the line unless the line would then be wider than width. Parts begin with two spaces, of
 * which a narrow line has one. */
static bool fit(ls_str *line, int width, const char *part)
{
    part += width < WIDE && part[0] == ' ' && part[1] == ' ';
    if ((long)(line->len + strlen(part)) > width) /* a window may be narrower than EDGE */
        return false;
    ls_str_append(line, part);
    return true;
}

/* " forward 31% backward 60% ..." of the parts that matter, as many as fit. */
static void fit_split(const ls_progress *p, int width, ls_str *line)
{
    char part[48];
    double sum = 0;
    bool fits = true, first = true;

    for (int i = 0; i < LS_STEP_TIMES; i++)
        sum += p->split[i];
    for (int i = 0; i < LS_STEP_TIMES && sum > 0 && fits; i++) {
        if (p->split[i] < 0.01 * sum)
            continue;
        snprintf(part, sizeof part, "%s %s %.0f%%", first ? " " : "", ls_step_time_names[i],
                 100 * p->split[i] / sum);
        fits = fit(line, width, part);
        first = false;
    }
}

static void loss_text(double loss, char *out, size_t cap)
{
    /* A loss that runs away must not push everything else out of the line. */
    snprintf(out, cap, fabs(loss) < 1000 ? "%.3f" : "%.3g", loss);
}

static void fit_bar(const ls_event_step *e, int width, ls_str *line)
{
    int length = width >= 130 ? BAR_LONG : width >= WIDE ? BAR_SHORT : 0;
    int full = (int)(length * e->step / e->total_steps);

    if (length == 0)
        return;
    ls_str_append_char(line, '[');
    for (int i = 0; i < length; i++)
        ls_str_append_char(line, i < full ? '#' : '.');
    ls_str_append(line, "] ");
}

/* "  margin 0.12  right 75 %": how much more reward chosen answers have, and of how many pairs. */
static void preference_text(const ls_event_preference *e, char *out, size_t size)
{
    int n = 0;

    out[0] = '\0';
    if (e->kind == LS_PREFERENCE_NONE)
        return;
    n = snprintf(out, size, "  margin %.4g", e->chosen - e->rejected);
    if (e->kind != LS_PREFERENCE_KTO)
        snprintf(out + n, size - (size_t)n, "  right %.0f %%", 100 * e->accuracy);
}

void ls_progress_line(const ls_progress *p, const ls_event_step *e, bool bar, int width,
                      ls_str *line)
{
    char part[64], number[24];
    double tokens_per_ms = p->smooth_ms > 0 ? (double)e->step_tokens / p->smooth_ms : 0;

    if (bar && e->total_steps > 0)
        fit_bar(e, width, line);
    if (e->total_steps > 0)
        snprintf(part, sizeof part, "step %lld/%lld", (long long)e->step,
                 (long long)e->total_steps);
    else
        snprintf(part, sizeof part, "step %lld", (long long)e->step);
    bool fits = fit(line, width, part);
    loss_text(e->loss, number, sizeof number);
    snprintf(part, sizeof part, "  loss %s", number);
    fits = fits && fit(line, width, part);
    if (!isnan(p->val_loss)) {
        loss_text(p->val_loss, number, sizeof number);
        snprintf(part, sizeof part, "  val %s", number);
        fits = fits && fit(line, width, part);
    }
    preference_text(&e->preference, part, sizeof part);
    fits = fits && fit(line, width, part);
    short_number(tokens_per_ms * 1e3, number, sizeof number);
    snprintf(part, sizeof part, "  %s tok/s", number);
    fits = fits && fit(line, width, part);
    if (e->total_steps > 0 && tokens_per_ms > 0) {
        duration((double)e->tokens_left / tokens_per_ms / 1e3, number, sizeof number);
        snprintf(part, sizeof part, "  eta %s", number);
        fits = fits && fit(line, width, part);
    }
    snprintf(part, sizeof part, "  lr %.3g", e->lr);
    fits = fits && fit(line, width, part);
    snprintf(part, sizeof part, "  grad %.3g", e->grad_norm);
    fits = fits && fit(line, width, part);
    snprintf(part, sizeof part, "  epoch %.2f", e->epoch);
    fits = fits && fit(line, width, part);
    if (fits)
        fit_split(p, width, line);
}

static void show_step(ls_progress *p, const ls_event_step *e)
{
    int64_t now = ls_time_now_ns();
    bool last = e->total_steps > 0 && e->step == e->total_steps, over = p->term.cursor;
    int64_t wait = over ? DRAW_MS * LS_NS_PER_MS : LINE_S * LS_NS_PER_S;
    ls_str line;

    smooth(p, e);
    if (isnan(p->first_loss))
        p->first_loss = e->loss;
    if (p->quiet || (!last && p->shown_ns && now - p->shown_ns < wait))
        return;
    p->shown_ns = now;
    ls_str_init(&line);
    if (over) {
        ls_term_measure(&p->term);
        ls_progress_line(p, e, true, p->term.width - EDGE, &line);
        printf("\r%s\033[K", line.p);
        p->drawn = true;
    } else {
        ls_progress_line(p, e, false, LINE_MOST, &line);
        printf("%s\n", line.p);
    }
    ls_str_release(&line);
    fflush(stdout);
}

/* Where the lowest loss is looked for: how this one stands to it. */
static void show_best(const ls_event_eval *e)
{
    if (e->best_step < 0)
        return;
    if (e->best_step == e->step) {
        printf(", the best so far");
        return;
    }
    printf(", the best is that of step %lld", (long long)e->best_step);
    if (e->patience > 0)
        printf(" (%lld of %lld evaluations without a better one)", (long long)e->since_best,
               (long long)e->patience);
}

/* On a line of its own, which stays. */
static void show_eval(ls_progress *p, const ls_event_eval *e)
{
    char loss[24], before[24], rewards[64];

    loss_text(e->val_loss, loss, sizeof loss);
    loss_text(p->val_loss, before, sizeof before);
    clear_bar(p);
    if (!p->quiet) {
        printf("validation after step %lld: loss %s", (long long)e->step, loss);
        if (!isnan(p->val_loss))
            printf(" (before: %s)", before);
        preference_text(&e->preference, rewards, sizeof rewards);
        printf("%s", rewards);
        show_best(e);
        printf("\n");
    }
    p->val_loss = e->val_loss;
    fflush(stdout);
}

/* A sample on lines of its own. What is not UTF-8, or could move the cursor, is shown as a dot. */
static void show_sample(ls_progress *p, const ls_event_sample *e)
{
    const unsigned char *t = (const unsigned char *)e->text;
    size_t len = e->text_len;

    while (len > 0 && t[len - 1] == '\n')
        len--;
    clear_bar(p);
    printf("--- after step %lld: %s", (long long)e->step, ls_term_code(&p->term, LS_TERM_BOLD));
    show_foreign(e->prompt);
    printf("%s", ls_term_code(&p->term, LS_TERM_PLAIN));
    ls_term_text(t, len, stdout);
    printf("\n---\n");
    fflush(stdout);
}

/* How ranks share a batch, and which of them are slow. */
static void show_ranks(const ls_event_balance *e)
{
    int64_t least = e->sequences, most = 0;
    int slow = 0;

    for (int r = 0; r < e->ranks; r++) {
        least = ls_min_i64(least, e->slices[r].sequences);
        most = ls_max_i64(most, e->slices[r].sequences);
    }
    printf("ranks   %d, with %lld", e->ranks, (long long)least);
    if (most > least)
        printf(" to %lld", (long long)most);
    printf(" of %lld sequence%s\n", (long long)e->sequences, ls_str_plural(e->sequences));
    for (int r = 0; r < e->ranks; r++) {
        if (e->slices[r].ratio < SLOW || slow++ == SLOW_SHOWN)
            continue;
        printf("        rank %d (%s) needs %.1f x the median per leaf and has %lld of them\n", r,
               e->slices[r].host, e->slices[r].ratio, (long long)e->slices[r].sequences);
    }
}

static void show_summary(const ls_progress *p, const ls_event_summary *e)
{
    char took[24], speed[16];

    duration(e->seconds, took, sizeof took);
    short_number(e->tokens_per_s, speed, sizeof speed);
    if (strcmp(e->stopped_by, "done") == 0)
        printf("already finished, after step %lld", (long long)e->steps);
    else
        printf("%s after step %lld",
               strcmp(e->stopped_by, "interrupt") == 0 ? "stopped" : "finished",
               (long long)e->steps);
    if (!isnan(e->loss))
        printf(fabs(e->loss) < 1000 ? ": loss %.4f" : ": loss %.4g", e->loss);
    if (!isnan(e->val_loss))
        printf(fabs(e->val_loss) < 1000 ? ", validation loss %.4f" : ", validation loss %.4g",
               e->val_loss);
    printf("\n");
    if (e->steps_here > 1 && e->loss > 1.1 * p->first_loss)
        printf("        training diverged: the loss was %.4g at first; lower train.lr or lengthen "
               "train.warmup\n",
               p->first_loss);
    if (strcmp(e->stopped_by, "patience") == 0)
        printf("        stopped early: %lld evaluation%s without a better validation loss\n",
               (long long)e->patience, e->patience == 1 ? "" : "s");
    if (e->steps_here > 0)
        printf("speed   %s tok/s (%s); %lld step%s in %s, the first after %.2f s\n", speed,
               e->is_mean ? "mean" : "median", (long long)e->steps_here,
               e->steps_here == 1 ? "" : "s", took, e->start_to_first_step_s);
    if (e->steps_here > 0 && e->peak_flops > 0) /* not known on a GPU */
        printf("        MFU %.1f %% of %.0f GFLOP/s measured here (6 N + 6 L C T per token)\n",
               100 * e->mfu, e->peak_flops / 1e9);
    if (e->balance)
        show_ranks(e->balance);
    printf("memory  peak %.1f MiB, ledger %.1f MiB (%+.1f %%)\n",
           (double)e->peak_bytes / (double)LS_MIB, (double)e->ledger_bytes / (double)LS_MIB,
           100.0 * (double)(e->peak_bytes - e->ledger_bytes) / (double)e->ledger_bytes);
    if (e->exchanges > 0)
        printf("agreed  %lld time%s; the first rank sent %.2f MiB for it\n",
               (long long)e->exchanges, e->exchanges == 1 ? "" : "s",
               (double)e->exchange_bytes / (double)LS_MIB);
    if (e->pushes > 0)
        printf("pushed  %lld time%s; the first rank sent %.2f MiB to servers and workers and saw a "
               "rank %lld step%s ahead\n",
               (long long)e->pushes, ls_str_plural(e->pushes),
               (double)e->push_bytes / (double)LS_MIB, (long long)e->ahead,
               ls_str_plural(e->ahead));
    if (e->sent_bytes > 0)
        printf("traffic %.2f MiB sent, %.2f MiB received by the first rank, between machines\n",
               (double)e->sent_bytes / (double)LS_MIB, (double)e->received_bytes / (double)LS_MIB);
    if (e->energy_j > 0)
        printf("energy  %.1f kJ, %.0f W on average, %.3g mJ per token\n", e->energy_j / 1e3,
               e->power_w, 1e3 * e->joules_per_token);
    printf("weights %s\n", e->weights_hash);
    if (e->best)
        printf("best    step %lld, validation loss %.4f: `lineshaft generate %s`\n",
               (long long)e->best_step, e->best_loss, e->best);
    fflush(stdout);
}

/* The mesh that was chosen, and the next best. */
static void show_mesh(const ls_progress *p, const ls_mesh_choice *choice)
{
    enum { SHOWN = 4 };
    ls_str text;

    ls_str_init(&text);
    ls_mesh_choice_tell(choice, SHOWN, &text);
    if (!p->quiet && ls_str_status(&text) == LS_OK)
        printf("%s\n", text.p);
    ls_str_release(&text);
    fflush(stdout);
}

void ls_progress_event(void *context, const ls_event *event)
{
    ls_progress *p = context;

    switch (event->kind) {
    case LS_EVENT_MESH:
        show_mesh(p, event->mesh.choice);
        break;
    case LS_EVENT_START:
        show_start(p, &event->start);
        break;
    case LS_EVENT_STEP:
        show_step(p, &event->step);
        break;
    case LS_EVENT_EVAL:
        show_eval(p, &event->eval);
        break;
    case LS_EVENT_SAMPLE:
        if (!p->quiet)
            show_sample(p, &event->sample);
        break;
    case LS_EVENT_CHECKPOINT:
        clear_bar(p);
        if (!p->quiet)
            printf("saved step %lld: %.1f MiB written, %.1f MiB unchanged, %.2f s, %.2f GB/s\n",
                   (long long)event->checkpoint.step,
                   (double)event->checkpoint.bytes_written / (double)LS_MIB,
                   (double)event->checkpoint.bytes_reused / (double)LS_MIB,
                   event->checkpoint.seconds, ls_event_rate(&event->checkpoint));
        fflush(stdout);
        break;
    case LS_EVENT_PROFILE: /* asked for: shown even when quiet */
        clear_bar(p);
        printf("%sopen %s/trace.json with https://ui.perfetto.dev or chrome://tracing\n",
               event->profile.table, event->profile.path);
        fflush(stdout);
        break;
    case LS_EVENT_SUMMARY:
        clear_bar(p);
        if (!p->quiet)
            show_summary(p, &event->summary);
        break;
    case LS_EVENT_RANK:
    case LS_EVENT_BALANCE:
    case LS_EVENT_INCIDENT: /* the log has shown it */
        break;
    }
}
