/* cmd_launch.c -- `lineshaft launch`: somebody's program as many processes. */
#include "cli/cmds.h"
#include "cli/job_flags.h"
#include "cli/report.h"
#include "launch/restart.h"

static ls_status run_launch(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    ls_agent_result result = {.worker = -1};
    ls_agent_args job = {.command = args->rest};
    ls_launch_nodes nodes;
    int64_t restarts;

    (void)out;
    LS_TRY(st, ls_job_flags_agent(args, 1, &job), out);
    LS_TRY(st, ls_args_number(args, "restarts", 0, 0, 1000000, &restarts), out);
    LS_TRY(st, ls_agent_check(&job), out);
    LS_TRY(st, ls_job_flags_nodes(args, &nodes), out);
    bool several = nodes.listen || nodes.join;
    if (several && restarts > 0) {
        st = ls_fail(LS_EUSAGE, "--restarts is for one machine");
        ls_err_hint("Where several take part, let the scheduler start all of them again.");
        goto out;
    }
    if (several)
        LS_TRY(st, ls_launch_nodes_run(&nodes, &job, &result), out);
    else
        LS_TRY(st, ls_restart_run(&job, restarts, &result), out);
    st = ls_report_job(&result, args);
out:
    return st;
}

static const ls_flag flags[] = {
    {"ranks", 'n', "N", false, "How many processes to start on this machine; 1 unless given."},
    {"log-dir", 0, "DIR", false, "Write what each rank prints to DIR/rank-N.log as well."},
    {"grace", 0, "SECONDS", false,
     "How long ranks may take to end after another one failed, before they are killed; 10 unless "
     "given."},
    {"restarts", 0, "N", false,
     "On one machine: start all ranks again when one fails, at most N times; 0 unless given."},
    {"nodes", 0, "N", false,
     "On the first of several machines: how many take part; 2 unless given."},
    {"listen", 0, "ADDRESS:PORT", false, "On the first machine: where the others join."},
    {"join", 0, "ADDRESS:PORT", false, "On the other machines: the first one's address."},
    {"secret", 0, "FILE", false,
     "With several machines: a file of 32 random bytes that all of them have, and nobody else."},
    {"wait", 0, "SECONDS", false,
     "How long machines wait for each other at the start; 300 unless given."},
    {.name = NULL},
};
const ls_command ls_cmd_launch = {
    .name = "launch",
    .summary = "run a program as several processes",
    .arguments = "-- COMMAND [ARGUMENT ...]",
    .about =
        "Starts N copies of a command. Each finds its rank and the others in RANK, WORLD_SIZE, "
        "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and has its own share of the "
        "cores. Their output appears line by line, after the number of the rank.\n\n"
        "When a rank fails, the others are stopped, its last lines are shown, and its exit code "
        "becomes that of launch (128 + n for signal n). Ctrl-C and SIGTERM are passed on once; the "
        "second time everything is killed. No process that the ranks have started is left behind, "
        "even when launch itself is killed.\n\n"
        "With --restarts N a job that fails is started again as a whole, at most N times; "
        "TORCHELASTIC_RESTART_COUNT and LINESHAFT_RESTARTS hold the number of restarts. A job that "
        "ends twice in a row with the same exit code and the same last line is not started again: "
        "launch exits with 10, because it would fail again. Do not requeue it.\n\n"
        "On several machines, give --listen to the first; on the others run `lineshaft agent`, or "
        "the same command with --join. The machines prove to each other that they know the secret, "
        "agree on the numbers of the ranks, and end together with one exit code.",
    .examples =
        "lineshaft launch -n 4 -- python3 train.py --lr 0.1  # 4 ranks\n"
        "lineshaft launch -n 2 --log-dir logs -- ./program   # and keep their output\n"
        "lineshaft launch -n 4 --restarts 3 -- python3 train.py  # again, when a rank fails\n"
        "lineshaft launch -n 8 --nodes 2 --listen 10.0.0.1:7000 --secret job.secret -- ./x  # the "
        "first of two machines\n"
        "lineshaft launch -n 8 --join 10.0.0.1:7000 --secret job.secret -- ./x  # the other",
    .flags = flags,
    .run = run_launch,
};
