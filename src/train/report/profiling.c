/* profiling.c -- when a profile begins and ends, and where it goes.
 *
 * The clock of a step knows what its parts are (train/step/step_clock.h); it marks the profile after each of
 * them, so that the step itself contains nothing for this. Which steps are noted is decided before
 * the first one, when it is known how many the run still has. Example: 40 steps, of which 30 are
 * done, and N = 9: the warm-up is one step and steps 32 to 40 are noted.
 *
 * Writing happens between steps, so no step's time contains it. */
#include "train/report/profiling.h"

#include <limits.h>
#include "base/file.h"
#include "base/log.h"
#include "kernel/peak.h"
#include "kernel/profile.h"
#include "optim/optim.h"
#include "train/session/session.h"

/* What the parts of the clock are called in a trace. */
static const char *const phases[LS_STEP_TIMES] = {
    [LS_TIME_DATA] = "batch wait",   [LS_TIME_FORWARD] = "forward",
    [LS_TIME_BACKWARD] = "backward", [LS_TIME_REDUCE] = "sum over leaves",
    [LS_TIME_EXCHANGE] = "exchange", [LS_TIME_OPTIMIZER] = "update",
    [LS_TIME_EVAL] = "evaluation",   [LS_TIME_CHECKPOINT] = "checkpoint",
    [LS_TIME_OTHER] = "other",
};
_Static_assert((int)LS_STEP_TIMES <= (int)LS_PROFILE_PHASES, "a profile has room for every part");

enum { ROOM_MOST = 1 << 18 };

/* Rows and laps that the steps to be noted may have. Rows of a call are at most those of a block
 * that trains everything: 9 forward, 16 back; an adapter adds 3 and 7 to each of its 7 places. What
 * is recomputed is forward once more. */
static int64_t room(const ls_session *s)
{
    const ls_run *run = s->run;
    int64_t forwards = run->train.recompute == LS_RECOMPUTE_NONE ? 1 : 2;
    int64_t block = 9 * forwards + 16 + (s->model.shape.lora_rank > 0 ? 7 * (3 * forwards + 7) : 0);
    if (s->mesh.cp > 1) /* pairs of chunks, and what adds up their gradients */
        block += s->mesh.cp * (2 * forwards + 6) + 8;
    int64_t call = s->model.shape.L * block + 16;
    ls_calls calls;

    ls_calls_plan(run, &s->mesh, &calls);
    int64_t step = calls.calls * (call + 8) + 16;
    int64_t windows = run->eval.sequences;
    if (windows == LS_RUN_AUTO)
        windows = 256; /* the loop takes no more */
    int64_t eval = (windows / (calls.most * calls.leaf) + run->eval.sample_tokens + 4) * call;
    int64_t evals = 1 + (run->eval.every > 0 ? s->args.profile_steps / run->eval.every + 1 : 0);

    if (step > ROOM_MOST || eval > ROOM_MOST)
        return ROOM_MOST;
    return ls_min_i64(s->args.profile_steps * step + evals * eval, ROOM_MOST);
}

/* What rows will be held against. Without memory for it the share of peak is left out. */
static void find_peaks(ls_session *s, ls_profile_args *args)
{
    if (ls_device_describe(s->device).host_memory) {
        args->peak_flops = ls_peak_flops(s->device, s->kernels->name);
        args->peak_bytes = ls_peak_bandwidth(s->device);
    } else {
        ls_peak_gpu peak = ls_peak_gpu_of(s->device, s->kernels);
        bool f32 = ls_run_compute_type(s->run) == LS_F32;
        args->peak_flops = f32 ? peak.f32_flops : peak.bf16_flops;
        args->peak_held = f32 ? 0 : peak.bf16_held;
        args->peak_bytes = peak.bytes;
        ls_device_forget_peak(s->device);
    }
    ls_err_clear();
    ls_ledger_forget_peak(); /* that memory is not the run's */
}

ls_status ls_profiling_open(ls_session *s)
{
    ls_profile_args args = {.stream = s->stream,
                            .kernels = s->kernels,
                            .phases = phases,
                            .n_phases = LS_STEP_TIMES,
                            .aside = 1u << LS_TIME_EVAL | 1u << LS_TIME_CHECKPOINT,
                            .updated = ls_optim_elementwise(s->run, &s->model),
                            .inside = true};
    ls_status st = LS_OK;

    if (s->args.profile_steps <= 0)
        return LS_OK;
    args.room = room(s);
    find_peaks(s, &args);
    LS_TRY(st, ls_profile_open(&s->profiling.profile, &args), out);
    s->kernels = ls_profile_kernels(s->profiling.profile);
out:
    return st;
}

void ls_profiling_close(ls_session *session)
{
    ls_profile_close(session->profiling.profile);
    session->profiling = (ls_session_profiling){0};
}

static void plan(ls_session *s)
{
    ls_session_profiling *p = &s->profiling;
    int64_t steps = s->args.profile_steps, remain = s->progress.total_steps - s->step_number;

    p->planned = true;
    p->left = steps;
    p->warm = LS_PROFILING_WARM;
    if (s->progress.total_steps > 0)
        p->warm = ls_max_i64(0, ls_min_i64(LS_PROFILING_WARM, remain - steps));
}

void ls_profiling_begin(ls_session *session, ls_step_clock *clock)
{
    ls_session_profiling *p = &session->profiling;

    if (!p->profile || p->told)
        return;
    if (!p->planned)
        plan(session);
    if (p->warm-- > 0)
        return;
    p->warm = 0;
    ls_profile_begin(p->profile, session->step_number + 1, clock->begun_ns);
    clock->profile = p->profile;
}

static ls_status write_file(const char *folder, const char *name, const ls_str *text)
{
    char path[PATH_MAX + 32];
    ls_status st = ls_str_status(text);

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return st == LS_OK ? ls_file_write_atomic(path, text->p, text->len) : st;
}

/* All three files; the table stays in text. */
static ls_status write_files(ls_profile *profile, const char *folder, ls_str *text)
{
    ls_status st = LS_OK;

    LS_TRY(st, ls_file_make_dirs(folder), out);
    ls_profile_trace(profile, text);
    LS_TRY(st, write_file(folder, "trace.json", text), out);
    ls_str_clear(text);
    ls_profile_json(profile, text);
    LS_TRY(st, write_file(folder, "table.json", text), out);
    ls_str_clear(text);
    ls_profile_table(profile, text);
    LS_TRY(st, write_file(folder, "table.txt", text), out);
out:
    return st;
}

static void give_up(ls_session *s)
{
    ls_log(LS_LOG_WARN, "there is no profile: %s", ls_err_last()->text);
    ls_err_clear();
    ls_profile_stop(s->profiling.profile);
    s->profiling.told = true;
}

static void report(ls_session *s)
{
    char folder[PATH_MAX];
    ls_profile_figures f;
    ls_str text;

    ls_profile_stop(s->profiling.profile);
    if (ls_device_describe(s->device).host_memory)
        ls_profile_raise_peaks(s->profiling.profile, ls_peak_flops(s->device, s->kernels->name), 0);
    snprintf(folder, sizeof folder, "%s/profile", s->run->out);
    ls_str_init(&text);
    if (write_files(s->profiling.profile, folder, &text) != LS_OK) {
        give_up(s);
    } else {
        s->profiling.told = true;
        ls_profile_sum(s->profiling.profile, &f);
        ls_session_emit(s, &(ls_event){.kind = LS_EVENT_PROFILE,
                                       .profile = {.step = f.last,
                                                   .steps = f.steps,
                                                   .dropped = f.dropped,
                                                   .step_ms = f.step_ms,
                                                   .path = folder,
                                                   .table = text.p}});
    }
    ls_str_release(&text);
}

void ls_profiling_end(ls_session *session, ls_step_clock *clock)
{
    ls_session_profiling *p = &session->profiling;

    if (!clock->profile)
        return;
    clock->profile = NULL;
    if (ls_profile_end(p->profile, clock->mark_ns) != LS_OK) {
        give_up(session);
        return;
    }
    if (--p->left == 0)
        report(session);
}

void ls_profiling_finish(ls_session *session)
{
    ls_session_profiling *p = &session->profiling;

    if (!p->profile || p->told)
        return;
    if (p->planned && p->left < session->args.profile_steps) {
        report(session);
        return;
    }
    ls_log(LS_LOG_WARN, "there is no profile: the run ended before a step could be noted");
    p->told = true;
}
