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
     "The 32 bytes that all machines of the job have in this file, and nobody else."},
    {"ranks", 'n', "N", false, "How many processes to start here; as many as there unless given."},
    {"log-dir", 0, "DIR", false, "Write what each rank prints here to DIR/rank-N.log as well."},
    {"grace", 0, "SECONDS", false,
     "How long ranks may take to end after another one failed, before they are killed; 10."},
    {"wait", 0, "SECONDS", false, "How long to wait for the other machines at the start; 300."},
    {.name = NULL},
};
const ls_command ls_cmd_agent = {
    .name = "agent",
    .summary = "run this machine's part of a job that another machine holds",
    .about =
        "Joins the job that `lineshaft launch --listen ADDRESS:PORT` (or another command with "
        "--listen) holds on the first machine, starts its program here, and ends with the job and "
        "its exit code. It may be started before the first machine.\n\n"
        "The program is run in the folder and with the environment of the agent, by the name that "
        "was given on the first machine: it must be found here, too. A run of `lineshaft train` "
        "may "
        "be joined while it trains: this machine becomes part of it at the end of a step, or waits "
        "as a spare (heal.max_nodes); when it was cut off and is back, it joins again. When the "
        "first machine is lost, another one takes over where more than half are left, at the same "
        "port if it is free there. Both sides prove that they "
        "know the secret. Who knows it can have a program run here, by this user, for as long as "
        "an agent waits; an agent takes one job and ends with it.",
    .examples =
        "lineshaft agent --join 10.0.0.1:7000 --secret job.secret  # as many ranks as there\n"
        "lineshaft agent --join 10.0.0.1:7000 --secret job.secret -n 2  # or only two\n"
        "lineshaft agent --join 10.0.0.1:7000,10.0.0.2:7000 --secret job.secret  # whoever answers",
    .flags = flags,
    .run = run_agent,
};
