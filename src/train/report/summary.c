/* summary.c -- the figures of a run. The speed that counts is the median: a step that also validates,
 * or waits for a checkpoint, is slower than what the run sustains between.
 *
 *     steps 11 .. 15    1000  1010   400 (validation)  1005   990 tokens/s      median 1000
 *     MFU               1000 tokens/s x 6.0e8 operations a token = 6.0e11 a second,
 *                       of a measured peak of 1.5e12: 40 %
 *
 * The record of speeds is bounded: when 4096 are there every second one goes, and from then on every
 * second step is noted, later every fourth. So a median covers the whole run. */
#include "train/report/summary.h"

#include <limits.h>
#include <math.h>
#include <unistd.h>
#include "base/log.h"
#include "base/time.h"
#include "config/ramp.h"
#include "kernel/peak.h"
#include "train/replica/replica_send.h"
#include "train/save/best_loss.h"
#include "train/save/save.h"
#include "train/session/model_groups.h"
#include "train/session/sync.h"

enum { WARM_STEPS = 10 }; /* at first caches and clocks are cold */

void ls_summary_init(ls_summary *summary)
{
    *summary = (ls_summary){.stride = 1};
}

void ls_summary_close(ls_summary *summary)
{
    ls_nvml_close(summary->nvml);
    summary->nvml = NULL;
}

/* Of ranks that share a card the first one watches it. */
static bool watches_card(const ls_session *s)
{
    for (int r = 0; r < s->mesh.rank && s->gpu.cards; r++)
        if (ls_session_same_card(&s->gpu.cards[r], &s->gpu.cards[s->mesh.rank]))
            return false;
    return s->discrete;
}

/* Without NVML there is nothing to report; `lineshaft doctor` says why. */
void ls_summary_begin(ls_summary *summary, const ls_session *session)
{
    char why[160];

    if (summary->begun_ns > 0)
        return;
    if (watches_card(session))
        ls_nvml_open(&summary->nvml, ls_device_describe(session->device).bus_id, why);
    summary->begun_ns = ls_time_now_ns();
    if (session->args.comm)
        ls_comm_traffic(session->args.comm, &summary->sent, &summary->received);
    ls_nvml_read(summary->nvml, &summary->begun);
}

void ls_summary_end(ls_summary *summary)
{
    double errors;

    ls_nvml_read(summary->nvml, &summary->ended);
    summary->trained_s = (double)(ls_time_now_ns() - summary->begun_ns) / 1e9;
    errors = summary->ended.uncorrected - summary->begun.uncorrected;
    if (errors > 0)
        ls_log(LS_LOG_WARN,
               "the GPU's memory had %.0f errors that could not be corrected while this run "
               "trained: do not trust its weights",
               errors);
    if (summary->ended.xids > 0)
        ls_log(LS_LOG_WARN,
               "the GPU reported %lld errors while this run trained, the last is XID "
               "%lld: see the kernel's log",
               (long long)summary->ended.xids, (long long)summary->ended.last_xid);
}

/* --- while it trains --------------------------------------------------------------------------- */

void ls_summary_count(ls_summary *summary, int64_t tokens)
{
    summary->steps++;
    summary->tokens += tokens;
    if (summary->steps == 1)
        summary->first_step_s = (double)ls_time_since_start_ns() / 1e9;
}

/* A bounded, evenly thinned record for the median: when it is full every second one goes. */
void ls_summary_note_speed(ls_summary *summary, double tokens_per_s)
{
    int64_t n = summary->steps - WARM_STEPS - 1;

    if (n < 0 || n % summary->stride != 0)
        return;
    if (summary->n_speeds == LS_SUMMARY_SPEEDS) {
        for (int i = 0; i < LS_SUMMARY_SPEEDS / 2; i++)
            summary->speeds[i] = summary->speeds[2 * i];
        summary->n_speeds = LS_SUMMARY_SPEEDS / 2;
        summary->stride *= 2;
        if (n % summary->stride != 0)
            return;
    }
    summary->speeds[summary->n_speeds++] = tokens_per_s;
}

void ls_summary_note_foreign(ls_summary *summary, const ls_session *session)
{
    int64_t bytes =
        session->args.comm && !session->discrete ? ls_comm_foreign_bytes(session->args.comm) : 0;

    summary->foreign = summary->foreign == 0 ? bytes : ls_max_i64(summary->foreign, bytes);
}

/* --- at the end -------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_speed(ls_summary *summary)
{
    double seconds = (double)(ls_time_now_ns() - summary->begun_ns) / 1e9;

    if (summary->n_speeds == 0) /* a run of ten steps or fewer: all of them */
        return summary->steps ? (double)summary->tokens / seconds : 0;
    qsort(summary->speeds, (size_t)summary->n_speeds, sizeof *summary->speeds, by_value);
    return summary->speeds[summary->n_speeds / 2];
}

/* Of all ranks together; more of them than there are cores share these. What a GPU can do at most
 * is not measured here: its share of that is not known. */
static double peak_of_ranks(const ls_session *s)
{
    int here = s->args.local_ranks > 0 ? s->args.local_ranks : s->mesh.ranks;
    double crowd = (double)here * ls_device_describe(s->device).threads /
                   (double)sysconf(_SC_NPROCESSORS_ONLN);

    if (s->discrete)
        return 0;
    return ls_peak_flops(s->device, s->kernels->name) * s->mesh.ranks / (crowd > 1 ? crowd : 1);
}

/* The most memory that this rank used, as its ledger counts. That of ranks other than the first is
 * only in the log (-v). */
static int64_t used_bytes(const ls_summary *summary, const ls_session *s)
{
    int64_t planned = ls_ledger_total(&s->ledger);
    int64_t used = s->discrete
                       ? ls_device_peak_bytes(s->device) + ls_device_describe(s->device).fixed_bytes
                       : ls_ledger_peak_resident_bytes() - summary->foreign;

    ls_log(LS_LOG_INFO, "rank %d used %lld bytes of memory at most, its ledger has %lld: %+.1f %%",
           s->mesh.rank, (long long)used, (long long)planned,
           100.0 * (double)(used - planned) / (double)planned);
    return used;
}

/* The share of what the processors can do at most; 0: that is not known. */
static double share_of_peak(const ls_session *s, double speed, double peak)
{
    double flops = ls_model_flops_per_token(ls_model_groups_whole(s), s->model.shape.T);

    return peak > 0 ? speed * flops / peak : 0;
}

ls_status ls_summary_emit(ls_summary *summary, ls_session *s, const char *stopped_by)
{
    int64_t sent = 0, received = 0, best_step = -1;
    char hash[33], best[PATH_MAX];
    double best_loss = (double)NAN;
    ls_status st = LS_OK;

    double speed = median_speed(summary);
    double energy_j = summary->ended.energy_j - summary->begun.energy_j;
    double seconds = (double)(ls_time_now_ns() - summary->begun_ns) / 1e9;
    ls_summary_note_foreign(summary, s);
    LS_TRY(st, ls_save_weights_hash(s, hash), out);
    int64_t peak_bytes = used_bytes(summary, s);
    if (s->mesh.rank > 0)
        return LS_OK;
    LS_TRY(st, ls_best_loss_kept(s, &best_step, &best_loss), out);
    snprintf(best, sizeof best, "%s/best", s->run->out);
    ls_event_balance balance = ls_batch_slice_event(s);
    if (s->args.comm)
        ls_comm_traffic(s->args.comm, &sent, &received);
    double peak = peak_of_ranks(s);
    ls_event event = {
        .kind = LS_EVENT_SUMMARY,
        .summary = {.steps = s->step_number,
                    .steps_here = summary->steps,
                    .tokens = ls_ramp_samples(s->run, s->step_number) * s->model.shape.T,
                    .seconds = seconds,
                    .tokens_per_s = speed,
                    .is_mean = summary->n_speeds == 0,
                    .loss = s->progress.loss,
                    .val_loss = s->progress.val_loss,
                    .mfu = share_of_peak(s, speed, peak),
                    .peak_flops = peak,
                    .peak_bytes = peak_bytes,
                    .ledger_bytes = ls_ledger_total(&s->ledger),
                    .start_to_first_step_s = summary->first_step_s,
                    .energy_j = summary->steps ? energy_j : (double)NAN,
                    .power_w = energy_j / summary->trained_s,
                    .joules_per_token = energy_j / (double)summary->tokens,
                    .balance = balance.ranks > 1 && s->mesh.pp < 2 ? &balance : NULL,
                    .sent_bytes = sent - summary->sent,
                    .received_bytes = received - summary->received,
                    .buddy_bytes = ls_replica_send_bytes(s->step),
                    .weights_hash = hash,
                    .best = best_step >= 0 ? best : NULL,
                    .best_step = best_step,
                    .best_loss = best_loss,
                    .patience = s->run->train.patience,
                    .stopped_by = stopped_by}};
    ls_sync_count(s, &event.summary);
    ls_session_emit(s, &event);
out:
    return st;
}
