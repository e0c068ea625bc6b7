/* cmd_train.c -- lineshaft train: load the run, watch it, let Ctrl-C end it well. */
#include "cli/command.h"

#include <string.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/log.h"
#include "cli/progress.h"
#include "cli/cmds.h"
#include "cli/job_flags.h"
#include "cli/load_run.h"
#include "cli/page_child.h"
#include "cli/report.h"
#include "config/check.h"
#include "config/runfile.h"
#include "launch/run_holder.h"
#include "launch/stop_signals.h"
#include "launch/train_job.h"
#include "train/loop.h"
#include "train/report/profiling.h"
#include "train/save/preempt.h"

/* A step may take a minute: say at once that the key was heard. */
static const char *stop_note(const ls_args *args)
{
    ls_term term;

    ls_term_init(&term, STDERR_FILENO, args);
    if (ls_args_has(args, "quiet") || !term.tty)
        return NULL;
    return term.cursor ? "\r\033[Kfinishing this step, then saving (again: end at once)\n"
                       : "\nfinishing this step, then saving (again: end at once)\n";
}

static void print_json(void *context, const ls_event *event)
{
    ls_str *line = context;

    ls_str_clear(line);
    ls_event_json(event, line);
    ls_str_append_char(line, '\n');
    fwrite(line->p, 1, line->len, stdout);
    fflush(stdout);
}

/* How many steps --profile asks for; 0 without it. */
static ls_status read_profile(const ls_args *args, int64_t *steps_out)
{
    const char *text = ls_args_value(args, "profile");
    char *end = NULL;
    long long n = text ? strtoll(text, &end, 10) : 0;

    if (text && (*text < '0' || *text > '9' || *end || n < 1 || n > LS_PROFILING_MOST)) {
        ls_status st =
            ls_fail(LS_EUSAGE, "--profile is \"%.60s\", not a number of steps from 1 to %d", text,
                    LS_PROFILING_MOST);
        ls_err_hint("A few are enough, as in --profile 5.");
        return st;
    }
    *steps_out = n;
    return LS_OK;
}

static ls_status check_profile(const ls_run *run, int64_t steps)
{
    int64_t all = ls_check_horizon(run);

    if (all == 0 || steps <= all)
        return LS_OK;
    ls_status st = ls_fail(LS_EUSAGE, "--profile is %lld, but the run has only %lld step%s",
                           (long long)steps, (long long)all, all == 1 ? "" : "s");
    ls_err_hint("Give at most %lld; a few are enough, as in --profile 5.", (long long)all);
    return st;
}

/* --- several ranks ----------------------------------------------------------------------------*/

/* Whether the user has said how many ranks there are, or how machines meet. */
static bool has_job_flags(const ls_args *args)
{
    static const char *const flags[] = {"ranks", "nodes", "listen", "join"};

    for (size_t i = 0; i < LS_COUNT(flags); i++)
        if (ls_args_has(args, flags[i]))
            return true;
    return false;
}

/* Progress as the standard output takes it, which may be another one now. */
typedef struct screen {
    const ls_args *args;
    ls_progress progress;
} screen;

static void on_leads(void *context)
{
    screen *s = context;

    ls_progress_init(&s->progress, s->args);
}

static ls_status train(const ls_args *args, const ls_run *run, int64_t profile_steps)
{
    bool json = ls_args_has(args, "json");
    screen shown = {.args = args};
    ls_train_job_rank at = {.leads = on_leads, .context = &shown};
    ls_str line;
    ls_session_args session = {.run = run,
                               .fresh = ls_args_has(args, "fresh"),
                               .sink = json ? print_json : ls_progress_event,
                               .sink_context = json ? (void *)&line : (void *)&shown.progress,
                               .stop = &ls_stop_signals_asked,
                               .stop_by = ls_stop_signals_by_ns,
                               .stop_saved = ls_stop_signals_saved,
                               .profile_steps = profile_steps};
    ls_status st;

    ls_str_init(&line);
    ls_progress_init(&shown.progress, args);
    LS_TRY(st, ls_train_job_join(&at, &session), out);
    ls_stop_signals_begin(&(ls_stop_signals_args){
        .rank = ls_job_rank_here(), .grace_s = run->checkpoint.grace, .note = stop_note(args)});
    st = ls_loop_run(&session);
    if (shown.progress.drawn)
        putchar('\n');
out:
    ls_train_job_leave(&at, st);
    ls_str_release(&line);
    return st;
}

/* Start this command as ranks. */
static ls_status run_ranks(const ls_args *args, const ls_run *run)
{
    ls_agent_result result = {.worker = -1};
    ls_job_args job = {.ranks = 1};
    ls_status st;

    LS_TRY(st, ls_job_flags_read(args, ls_train_job_ranks(run), &job), out);
    LS_TRY(st, ls_train_job_run(run, &job, &result), out);
    st = ls_report_job(&result, args);
out:
    return st;
}

/* A run that was finished before, and that a scheduler has started again: nothing is opened. */
static ls_status show_finished(const ls_args *args, const ls_run *run, bool *finished_out,
                               ls_str *out)
{
    static const char key[] = ",\"stopped_by\":";
    ls_str summary;
    ls_status st;

    ls_str_init(&summary);
    LS_TRY(st, ls_preempt_finished(run, finished_out, &summary), out);
    const char *end = *finished_out ? strstr(summary.p, key) : NULL;
    *finished_out = end != NULL;
    if (!end)
        goto out;
    if (ls_args_has(args, "json"))
        ls_str_printf(out, "%.*s%s\"done\"}\n", (int)(end - summary.p), summary.p, key);
    else
        ls_str_printf(out,
                      "\"%s\" is finished: nothing to do. More train.steps go on from it, --fresh "
                      "begins anew.\n",
                      run->out);
out:
    ls_str_release(&summary);
    return st;
}

/* The page of the run, by the process that the user started on the first machine. */
static void open_page(const ls_args *args, const ls_run *run)
{
    char url[256];

    if (ls_job_rank_here() || ls_args_has(args, "join") || !ls_page_child_wanted(args))
        return;
    ls_page_child_start(run->out, url, sizeof url);
    if (*url)
        fprintf(ls_args_has(args, "json") ? stderr : stdout, "page    %s\n", url);
    else
        ls_log(LS_LOG_WARN,
               "the page of the run could not be opened: \"lineshaft page %s\" says why", run->out);
    fflush(stdout);
}

/* What `lineshaft drill` wants to go wrong in this process. */
static ls_status plan_faults(void)
{
    const char *rank = getenv("LINESHAFT_RANK");

    return ls_fault_plan(getenv("LINESHAFT_DRILL"), rank ? (int)strtol(rank, NULL, 10) : 0);
}

static ls_status run_train(const ls_args *args, ls_str *out)
{
    int64_t profile_steps = 0;
    bool finished = false;
    ls_job_args job = {.ranks = 1};
    ls_run run;
    ls_status st;

    if (ls_args_has(args, "print")) {
        ls_str_append(out, ls_load_run_demo);
        return LS_OK;
    }
    st = plan_faults();
    if (st == LS_OK)
        st = read_profile(args, &profile_steps);
    if (st == LS_OK) /* mistakes are found even where the run has nothing to do */
        st = ls_job_flags_read(args, job.ranks, &job);
    if (st == LS_OK)
        st = ls_load_run_read(&run, args, args->n_rest > 0 ? args->rest[0] : NULL);
    if (st != LS_OK)
        return st;
    st = check_profile(&run, profile_steps);
    if (st == LS_OK && *run.model.import && strcmp(run.model.import, run.data.tokenizer) != 0)
        st = ls_load_run_prove(&run); /* for its warning */
    if (st == LS_OK && !ls_job_rank_here() && !ls_args_has(args, "fresh") && profile_steps == 0)
        st = show_finished(args, &run, &finished, out);
    if (st == LS_OK && !finished)
        st = ls_run_holder_run(&run, ls_args_has(args, "join"));
    if (finished || st != LS_OK) {
        ls_runfile_release(&run);
        return st;
    }
    open_page(args, &run);
    if (ls_train_job_is_needed(&run, has_job_flags(args)))
        st = run_ranks(args, &run);
    else
        st = train(args, &run, profile_steps);
    ls_run_holder_end();
    ls_runfile_release(&run);
    return st;
}

static const ls_flag flags[] = {
    LS_LOAD_RUN_SET_FLAG,
    {.name = "override",
     .value = "KEY=VALUE",
     .repeats = true,
     .doc = "Replace one setting, also when a run is resumed whose checkpoint has another, as in "
            "train.lr=1e-5: learning rate, schedule and the other settings of an update."},
    LS_JOB_FLAGS,
    {.name = "json",
     .letter = 'j',
     .doc = "Print one JSON object per event instead of a progress display."},
    {.name = "fresh",
     .doc = "Put earlier checkpoints of the run folder aside and start at step 0."},
    {.name = "profile",
     .value = "N",
     .doc = "Profile N steps, kernel by kernel, after 2 steps of warm-up: print a table, and write "
            "a trace to the run folder."},
    {.name = "page",
     .doc = "Serve the page of the run on this machine and print its address, also when no person "
            "is at a terminal."},
    {.name = "no-page", .doc = "Serve no page, also when a person is at the terminal."},
    {.name = "print", .doc = "Print the run file of the demonstration and do nothing else."},
    {.name = NULL},
};

const ls_command ls_cmd_train = {
    .name = "train",
    .summary = "train a model from a run file, or resume it",
    .arguments = "[RUN]",
    .about = "RUN is a YAML run file (see docs/reference/run-file.md). Without it a small "
             "demonstration is trained on text that lineshaft makes itself.\n\n"
             "The run folder (out:) keeps events.jsonl, token shards and checkpoints. When it "
             "already holds a checkpoint of the same run, training goes on exactly where it "
             "stopped: same samples, same bits. Ctrl-C finishes the step, saves and exits with "
             "130; a second Ctrl-C ends at once.\n\n"
             "At a terminal the run has a page in the browser: its address, with a random token, "
             "is printed first, and works on this machine only. It is served by a process of its "
             "own, with a lower priority, which ends with the run; `lineshaft page` shows the run "
             "again later. --no-page leaves it out.\n\n"
             "SIGTERM and SIGUSR1, which schedulers send, do the same. With checkpoint.grace the "
             "run has that many seconds to end: it saves if a save fits into them, and otherwise "
             "exits with 11; the previous checkpoint stays whole. A finished run that is started "
             "again exits with 0 at once.\n\n"
             "With -n N (or mesh.dp in the run file) N processes share each batch; in ordered mode "
             "the losses and weights are the same bits for any N, and with mesh.pp, which gives "
             "each process some of the layers. With mesh.tp it holds a slice of every layer, with "
             "mesh.cp a piece of every sequence, with mesh.ep some of the experts: these agree "
             "within rounding. With mesh: auto lineshaft chooses. See docs/guide/parallel.md, also "
             "for machines that compute unlike each other.\n\n"
             "A process that dies is started again; when it has died too often, the run goes on "
             "without it. The run also goes on without a machine that is lost, even this one when "
             "more than two take part. The other processes keep their memory and repeat only the "
             "step in flight (heal.* in the run file). `lineshaft agent` on another machine joins "
             "a run that is already training. See docs/guide/failures.md.",
    .examples = "lineshaft train  # the demonstration\n"
                "lineshaft train run.yaml  # train, or go on\n"
                "lineshaft train run.yaml --set train.lr=3e-4  # override one setting\n"
                "lineshaft train run.yaml --override train.lr=1e-5  # go on with another rate\n"
                "lineshaft train run.yaml -n 4  # four processes share the work\n"
                "lineshaft train run.yaml --set mesh.pp=2  # each of two has half of the layers\n"
                "lineshaft train run.yaml --set mesh.tp=2  # two processes share the model\n"
                "lineshaft train run.yaml -n 4 --set mesh=auto  # the mesh that is best here\n"
                "lineshaft train run.yaml --set mesh.cp=2  # two processes share each sequence\n"
                "lineshaft train run.yaml --set mesh.ep=2  # each of two has half of the experts\n"
                "lineshaft train run.yaml -n 4 --set heal.mode=off  # one that dies ends the run\n"
                "lineshaft train run.yaml --json  # events for programs, one a line\n"
                "lineshaft train run.yaml --profile 5  # where the time goes\n"
                "lineshaft train --print  # a run file to start from",
    .flags = flags,
    .run = run_train,
};
