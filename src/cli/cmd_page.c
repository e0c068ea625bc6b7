/* cmd_page.c -- lineshaft page: a run in a browser, while it trains or after it, or as one file. */
#include "cli/command.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "cli/cmds.h"
#include "cli/term.h"
#include "observe/page/page_assets.h"
#include "observe/page/page_data.h"
#include "observe/page/page_server.h"

enum { FILE_BINS = 1500, NICE = 10, LAST_MS = 1200 };

static ls_status print_file(const ls_args *args, ls_str *out)
{
    ls_page_data *data = NULL;
    ls_str json;
    ls_status st;

    ls_str_init(&json);
    LS_TRY(st, ls_page_data_open(args->rest[0], false, &data), out);
    LS_TRY(st,
           ls_page_data_snapshot(
               data, &(ls_page_request){.bins = FILE_BINS, .with = ls_args_value(args, "with")},
               NULL, &json),
           out);
    st = ls_page_assets_alone(&json, out);
out:
    ls_page_data_close(data);
    ls_str_release(&json);
    return st;
}

/* Until a signal comes, or with --until-eof also until standard input ends. */
static ls_status wait_for_end(const sigset_t *ends, bool until_eof)
{
    struct pollfd wait[2] = {{.fd = signalfd(-1, ends, SFD_CLOEXEC), .events = POLLIN},
                             {.fd = until_eof ? STDIN_FILENO : -1, .events = POLLIN}};
    struct signalfd_siginfo signal_read;
    char bytes[256];
    bool over = false;

    if (wait[0].fd < 0)
        return ls_fail_sys(LS_EIO, "cannot wait for signals");
    while (!over) {
        if (poll(wait, 2, -1) < 0 && errno != EINTR)
            break;
        over = wait[0].revents && read(wait[0].fd, &signal_read, sizeof signal_read) > 0;
        if (wait[1].revents && read(STDIN_FILENO, bytes, sizeof bytes) <= 0) {
            usleep(LAST_MS * 1000); /* readers see the end of the run */
            over = true;
        }
    }
    close(wait[0].fd);
    return LS_OK;
}

/* It belongs to another program: the keys of the terminal are not for it, and it never competes. */
static void serve_another(void)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    setpriority(PRIO_PROCESS, 0, NICE);
}

static ls_status serve(const ls_args *args, ls_str *out)
{
    bool until_eof = ls_args_has(args, "until-eof");
    ls_page_server *server = NULL;
    sigset_t ends;
    ls_status st;

    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    if (until_eof)
        serve_another();
    else
        sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    LS_TRY(st,
           ls_page_server_open(&server,
                               &(ls_page_server_args){.folder = args->rest[0],
                                                      .early = until_eof,
                                                      .listen = ls_args_value(args, "listen"),
                                                      .cert_file = ls_args_value(args, "cert"),
                                                      .key_file = ls_args_value(args, "key"),
                                                      .host = ls_args_value(args, "host"),
                                                      .with = ls_args_value(args, "with"),
                                                      .nice = NICE}),
           out);
    ls_str_printf(out, "%s\n", ls_page_server_url(server));
    LS_TRY(st, ls_term_print(out), out);
    if (!until_eof && !ls_args_has(args, "quiet") && isatty(STDERR_FILENO))
        fputs("open this address in a browser; Ctrl-C ends the page, not the run\n", stderr);
    st = wait_for_end(&ends, until_eof);
out:
    ls_page_server_close(server);
    sigprocmask(SIG_UNBLOCK, &ends, NULL);
    return st;
}

static ls_status run(const ls_args *args, ls_str *out)
{
    ls_status st = ls_args_has(args, "html") ? print_file(args, out) : serve(args, out);

    if (st == LS_EIO && ls_args_has(args, "html"))
        ls_err_hint(
            "Give a run folder (out: of its run file); \"lineshaft runs list\" finds them.");
    return st;
}

static const ls_flag flags[] = {
    {.name = "html",
     .doc = "Print the page as one HTML file that needs no server and no network, and end."},
    {.name = "with",
     .value = "RUN",
     .doc = "Compare with this run: its curves, and the settings that differ."},
    {.name = "listen",
     .value = "ADDRESS",
     .doc = "Listen there (default: 127.0.0.1:0; port 0: any that is free). Other addresses than "
            "loopback need --cert and --key."},
    {.name = "cert", .value = "FILE", .doc = "Speak TLS with this certificate (PEM)."},
    {.name = "key", .value = "FILE", .doc = "Its private key (PEM)."},
    {.name = "host",
     .value = "NAME",
     .doc = "Answer also requests for this host name, as the certificate has it."},
    {.name = "until-eof",
     .doc = "End when standard input ends, and wait for a run that has not begun: for programs "
            "that start it."},
    {.name = NULL},
};

const ls_command ls_cmd_page = {
    .name = "page",
    .summary = "show a run in a browser, live or as one file",
    .arguments = "RUN",
    .about =
        "Prints an address; a browser on this machine shows the run there, and follows it while "
        "it trains: loss, learning rate, gradient norm, speed, where the time of a step goes, "
        "memory, checkpoints, failures, samples of text, settings. RUN is a run folder. The page "
        "is inside this program and needs no network. The address holds a random token: without "
        "it nothing is shown.\n\n"
        "On another machine: \"ssh -L 8080:127.0.0.1:PORT HOST\", with the port of the printed "
        "address, then open http://127.0.0.1:8080/?token=... here. The page only reads; the run "
        "is as before when it ends. See docs/guide/observe.md.",
    .examples = "lineshaft page runs/demo                     # serve it until Ctrl-C\n"
                "lineshaft page runs/demo --html > demo.html  # one file, to send\n"
                "lineshaft page runs/b --with runs/a          # beside another run\n"
                "lineshaft page runs/demo --listen 127.0.0.1:8080  # always the same port\n",
    .flags = flags,
    .run = run,
};
