/* cmd_lab.c -- `lineshaft lab`: a command on several hosts that are made for it, on this machine.
 *
 * The agent runs the command once per host, as it runs ranks; the hosts are namespaces that live as
 * long as this process and the commands. So there is nothing to remove, and nothing that a crash
 * could leave behind. */
#include <signal.h>
#include <unistd.h>
#include "base/time.h"
#include "cli/cmds.h"
#include "cli/report.h"
#include "launch/lab_job.h"

enum { OPEN_S = 60 };

static ls_status run_command(const ls_lab *lab, int n, const ls_args *args)
{
    ls_agent_result result = {.worker = -1};
    int64_t grace;
    ls_status st;

    LS_TRY(st, ls_args_number(args, "grace", LS_AGENT_GRACE_S, 1, 86400, &grace), out);
    ls_agent_args agent = {.command = args->rest,
                           .log_dir = ls_args_value(args, "log-dir"),
                           .grace_ns = grace * LS_NS_PER_S,
                           .go_on = !ls_args_has(args, "fail-fast")};
    LS_TRY(st, ls_lab_job_run(lab, n, &agent, &result), out);
    st = ls_report_job(&result, args);
out:
    return st;
}

/* Without a command: say how to get in, and wait to be ended. */
static ls_status stand_by(const ls_lab *lab, int n, const char *link, ls_str *out)
{
    ls_status st = LS_OK;
    sigset_t end;

    ls_str_printf(out, "%d host%s, link: %s. Enter one with:\n", n, n == 1 ? "" : "s", link);
    for (int i = 0; i < n; i++)
        ls_str_printf(out, "  nsenter --net=/proc/%d/fd/%d bash  # %s, %s\n", (int)getpid(),
                      ls_lab_net_fd(lab, i), ls_lab_host(lab, i), ls_lab_address(lab, i));
    ls_str_append(out, "Ctrl-C removes them.\n");
    sigemptyset(&end);
    sigaddset(&end, SIGINT);
    sigaddset(&end, SIGTERM);
    sigaddset(&end, SIGHUP);
    sigprocmask(SIG_BLOCK, &end, NULL);
    LS_TRY(st, ls_term_print(out), out);
    while (sigwaitinfo(&end, NULL) < 0)
        ;
out:
    return st;
}

static ls_status run_lab(const ls_args *args, ls_str *out)
{
    ls_status st = LS_OK;
    const char *link = ls_args_value(args, "link"), *burst = ls_args_value(args, "burst");
    ls_lab *lab = NULL;
    int64_t n;

    link = link ? link : "none";
    LS_TRY(st, ls_args_number(args, "nodes", 2, 1, LS_LAB_NODES, &n), out);
    const ls_lab_args how = {.nodes = (int)n, .link = link, .burst = burst ? burst : "auto"};
    LS_TRY(st, ls_lab_open(&lab, &how, ls_time_now_ns() + OPEN_S * LS_NS_PER_S), out);
    if (args->n_rest > 0)
        st = run_command(lab, (int)n, args);
    else
        st = stand_by(lab, (int)n, link, out);
out:
    ls_lab_close(lab);
    return st;
}

static const ls_flag flags[] = {
    {"nodes", 0, "N", false, "How many hosts to make; 2 unless given."},
    {"link", 0, "SPEED", false,
     "Speed of each host's link, both ways: 100mbit, 1gbit, 10gbit; "
     "none: no limit, which is the default."},
    {"burst", 0, "BYTES", false,
     "How much may pass a link in one burst: 256kb, 2mb; auto, the default, follows the speed."},
    {"fail-fast", 0, NULL, false, "Stop all hosts when the command fails on one."},
    {"log-dir", 0, "DIR", false, "Write what each host prints to DIR/labN.log as well."},
    {"grace", 0, "SECONDS", false,
     "How long hosts may take to end before they are killed; 10 unless given."},
    {.name = NULL},
};
const ls_command ls_cmd_lab = {
    .name = "lab",
    .summary = "make several hosts on this machine and run a command on each",
    .arguments = "-- [COMMAND [ARGUMENT ...]]",
    .about = "Makes N network namespaces on a bridge, each with the address 10.77.0.1, 10.77.0.2 "
             "and so on, a host name (lab0, lab1, ...) and a link of the given speed, and runs the "
             "command on all of them at the same time. Its output appears after the host's name. "
             "Each host finds its number, its address and those of all hosts in "
             "LINESHAFT_LAB_NODE, LINESHAFT_LAB_ADDRESS, LINESHAFT_LAB_NODES and "
             "LINESHAFT_LAB_ADDRESSES. Files and memory are shared with the machine.\n\n"
             "A host on which the command fails does not end the others, as in a rack; the exit "
             "code is that of the first failure. Without a command, lab prints how to enter a "
             "host, and waits for Ctrl-C. Nothing is left behind, even after a crash. Needs root.",
    .examples = "lineshaft lab --nodes 4 --link 1gbit -- ip addr  # see the network\n"
                "lineshaft lab --nodes 2 --link 10gbit            # hosts to enter",
    .flags = flags,
    .run = run_lab,
};
