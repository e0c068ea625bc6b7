/* cmd_agent.c -- `lineshaft agent`: this machine for a job that was started on another one.
 *
 * It asks the first machine what to run (cluster/member/job_spec.h) and is from then on what the same command
 * with --join would have been (launch/job.h). It goes to one job and ends with it: nobody can send work to
 * a machine on which nobody has started an agent. Only when the job has taken it for lost and goes
 * on does it ask once more. */
#include "cli/cmds.h"
#include "cli/job_flags.h"
#include "cli/report.h"

static ls_status run_agent(const ls_args *args, ls_str *out)
{
    ls_launch_nodes nodes = {.join = ls_args_value(args, "join"),
                             .secret = ls_args_value(args, "secret"),
                             .secret_fd = -1,
                             .notice = ls_job_flags_notice};
    ls_agent_args agent = {.workers = 0};
    ls_agent_result result = {.worker = -1};
    ls_status st;

    (void)out;
    if (!nodes.join) {
        ls_fail(LS_EUSAGE, "agent needs --join ADDRESS:PORT");
        ls_err_hint("It is the address that the first machine was given with --listen.");
        return LS_EUSAGE;
    }
    LS_TRY(st, ls_args_number(args, "wait", 300, 1, 86400, &nodes.wait_s), out);
    LS_TRY(st, ls_job_flags_agent(args, 0, &agent), out);
    if (ls_args_has(args, "ranks") && agent.workers == 0)
        return ls_fail(LS_EUSAGE, "--ranks must be at least 1");
    LS_TRY(st, ls_job_run_agent(&nodes, &agent, &result), out);
    st = ls_report_job(&result, args);
out:
    return st;
}

static const ls_flag flags[] = {
    {"join", 0, "ADDRESS:PORT", false,
     "The address that the first machine listens on; several, with commas, where another one may "
     "have taken over."},
    {"secret", 0, "FILE", false,
     "A file of 32 random bytes that all machines of the job have, and nobody else."},
    {"ranks", 'n', "N", false,
     "How many processes to start here; as many as on the first machine unless given."},
    {"log-dir", 0, "DIR", false, "Write what each rank prints here to DIR/rank-N.log as well."},
    {"grace", 0, "SECONDS", false,
     "How long ranks may take to end after another one failed, before they are killed; 10 unless "
     "given."},
    {"wait", 0, "SECONDS", false,
     "How long to wait for the other machines at the start; 300 unless given."},
    {.name = NULL},
};
const ls_command ls_cmd_agent = {
    .name = "agent",
    .summary = "join a job that another machine has started",
    .about =
        "Joins the job that `lineshaft launch --listen ADDRESS:PORT`, or another command with "
        "--listen, has started on the first machine. It starts the job's program here and ends "
        "when the job ends, with its exit code. It may be started before the first machine.\n\n"
        "The program runs in the agent's folder and environment, by the name that was given on the "
        "first machine, so it must exist here too. An agent may join a run of `lineshaft train` "
        "while it trains: this machine becomes part of the run at the end of a step, or waits as a "
        "spare (heal.max_nodes). A machine that was cut off joins again when it is back. When the "
        "first machine is lost and more than half of the others are left, one of them takes over, "
        "at the same port if that is free. Both sides prove that they know the secret. Anyone who "
        "holds the secret can run a program here as this user while an agent is waiting; an agent "
        "takes one job and ends with it.",
    .examples = "lineshaft agent --join 10.0.0.1:7000 --secret job.secret  # the same number of "
                "ranks\nlineshaft agent --join 10.0.0.1:7000 --secret job.secret -n 2  # or only "
                "two\nlineshaft agent --join 10.0.0.1:7000,10.0.0.2:7000 --secret job.secret  # "
                "whichever answers",
    .flags = flags,
    .run = run_agent,
};
