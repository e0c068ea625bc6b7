/* cmd_lab.c -- `lineshaft lab`: a command on several hosts that are made for it, on this machine.
 *
 * The agent runs the command once per host, as it runs ranks; the hosts are namespaces that live as
 * long as this process and the commands. So there is nothing to remove, and nothing that a crash
 * could leave behind. */
#include "cli/cmd_launch.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "cli/cmds.h"
#include "cli/term.h"
#include "cluster/node/worker_env.h"
#include "cluster/node/lab.h"
#include "net/secret.h"

enum { OPEN_S = 60, SETTINGS = 4 };

typedef struct host {
    char text[SETTINGS][64];
    const char *list[SETTINGS + 2]; /* NAME=VALUE, with the addresses of all, NULL-terminated */
} host;

static void set_host(host *h, const ls_lab *lab, int i, int n, const char *addresses)
{
    snprintf(h->text[0], sizeof h->text[0], "LINESHAFT_LAB_NODE=%d", i);
    snprintf(h->text[1], sizeof h->text[1], "LINESHAFT_LAB_NODES=%d", n);
    snprintf(h->text[2], sizeof h->text[2], "LINESHAFT_LAB_ADDRESS=%s", ls_lab_address(lab, i));
    for (int k = 0; k < 3; k++)
        h->list[k] = h->text[k];
    h->list[3] = addresses;
    h->list[4] = NULL;
}

/* A secret for jobs between the hosts, as a file without a name that all of them inherit. */
static ls_status make_secret(int *fd_out)
{
    uint8_t bytes[LS_SECRET_BYTES];
    ls_status st;

    LS_TRY(st, ls_secret_random(bytes, sizeof bytes), out);
    *fd_out = memfd_create("secret", MFD_CLOEXEC);
    if (*fd_out < 0 || pwrite(*fd_out, bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        st = ls_fail_sys(LS_EIO, "cannot make a secret for the hosts");
out:
    explicit_bzero(bytes, sizeof bytes);
    return st;
}

static ls_status run_command(const ls_lab *lab, int n, const ls_args *args)
{
    ls_status st = LS_ENOMEM;
    ls_agent_host *hosts = ls_mem_array((size_t)n, sizeof *hosts);
    host *own = ls_mem_array((size_t)n, sizeof *own);
    ls_agent_result result = {.worker = -1};
    ls_agent_fd secret = {.name = "LAB_SECRET", .fd = -1};
    int64_t grace;
    ls_str all;

    ls_str_init(&all);
    if (!hosts || !own)
        goto out;
    LS_TRY(st, ls_launch_number(args, "grace", LS_AGENT_GRACE_S, 1, 86400, &grace), out);
    ls_str_append(&all, "LINESHAFT_LAB_ADDRESSES=");
    for (int i = 0; i < n; i++)
        ls_str_printf(&all, "%s%s", i ? " " : "", ls_lab_address(lab, i));
    LS_TRY(st, ls_str_status(&all), out);
    for (int i = 0; i < n; i++) {
        set_host(&own[i], lab, i, n, all.p);
        hosts[i] = (ls_agent_host){
            .name = ls_lab_host(lab, i), .net_fd = ls_lab_net_fd(lab, i), .settings = own[i].list};
    }
    LS_TRY(st, make_secret(&secret.fd), out);
    const ls_agent_args job = {.command = args->rest,
                               .workers = n,
                               .hosts = hosts,
                               .fds = &secret,
                               .n_fds = 1,
                               .log_dir = ls_args_value(args, "log-dir"),
                               .grace_ns = grace * LS_NS_PER_S,
                               .go_on = !ls_args_has(args, "fail-fast"),
                               .anywhere = true};
    st = ls_agent_run(&job, &result);
out:
    if (secret.fd >= 0)
        close(secret.fd);
    ls_str_release(&all);
    ls_mem_free(hosts);
    ls_mem_free(own);
    return st == LS_OK ? ls_launch_end(&result, args) : st;
}

/* Without a command: say how to get in, and wait to be ended. */
static ls_status stand_by(const ls_lab *lab, int n, const char *link)
{
    ls_status st = LS_OK;
    ls_str text;
    sigset_t end;

    ls_str_init(&text);
    ls_str_printf(&text, "%d host%s, link: %s. Enter one with:\n", n, n == 1 ? "" : "s", link);
    for (int i = 0; i < n; i++)
        ls_str_printf(&text, "  nsenter --net=/proc/%d/fd/%d bash  # %s, %s\n", (int)getpid(),
                      ls_lab_net_fd(lab, i), ls_lab_host(lab, i), ls_lab_address(lab, i));
    ls_str_append(&text, "Ctrl-C removes them.\n");
    sigemptyset(&end);
    sigaddset(&end, SIGINT);
    sigaddset(&end, SIGTERM);
    sigaddset(&end, SIGHUP);
    sigprocmask(SIG_BLOCK, &end, NULL);
    LS_TRY(st, ls_term_print(&text), out);
    fflush(stdout);
    while (sigwaitinfo(&end, NULL) < 0)
        ;
out:
    ls_str_release(&text);
    return st;
}

static ls_status run_lab(const ls_args *args)
{
    ls_status st = LS_OK;
    const char *link = ls_args_value(args, "link"), *burst = ls_args_value(args, "burst");
    ls_lab *lab = NULL;
    int64_t n;

    link = link ? link : "none";
    LS_TRY(st, ls_launch_number(args, "nodes", 2, 1, LS_LAB_NODES, &n), out);
    const ls_lab_args how = {.nodes = (int)n, .link = link, .burst = burst ? burst : "auto"};
    LS_TRY(st, ls_lab_open(&lab, &how, ls_time_now_ns() + OPEN_S * LS_NS_PER_S), out);
    if (args->n_rest > 0)
        st = run_command(lab, (int)n, args);
    else
        st = stand_by(lab, (int)n, link);
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
     "How much may pass a link at once: 256kb, 2mb; auto, the default, goes by the speed."},
    {"fail-fast", 0, NULL, false, "Stop all hosts when the command fails on one."},
    {"log-dir", 0, "DIR", false, "Write what each host prints to DIR/labN.log as well."},
    {"grace", 0, "SECONDS", false, "How long hosts may take to end before they are killed; 10."},
    {.name = NULL},
};
const ls_command ls_cmd_lab = {
    .name = "lab",
    .summary = "make several hosts on this machine and run a command on each",
    .arguments = "-- [COMMAND [ARGUMENT ...]]",
    .least = 0,
    .most = -1,
    .about =
        "Makes N network namespaces on a bridge, each with the address 10.77.0.1, 10.77.0.2 and so "
        "on, a host name (lab0, lab1, ...) and a link of the given speed, and runs the command on "
        "all of them at the same time. What it prints appears behind the host's name. A host finds "
        "itself in LINESHAFT_LAB_NODE, LINESHAFT_LAB_ADDRESS, LINESHAFT_LAB_NODES and "
        "LINESHAFT_LAB_ADDRESSES. Files and memory are shared with the machine.\n\n"
        "A host on which the command fails does not end the others, as it would not in a rack; the "
        "exit code is that of the first failure. Without a command it says how to enter a host, "
        "and waits for Ctrl-C. Nothing is left behind, also after a crash. Needs root.",
    .examples = "lineshaft lab --nodes 4 --link 1gbit -- ip addr  # see the network\n"
                "lineshaft lab --nodes 2 --link 10gbit            # hosts to enter",
    .flags = flags,
    .run = run_lab,
};
