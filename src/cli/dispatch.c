/* dispatch.c -- one command from start to exit code.
 *
 * Separate from main.c so that tests can run the program in their own process. Standard output that
 * cannot be written is an error like any other; a reader that went away (`| head`) is none: SIGPIPE
 * keeps its default action and ends the process without a word. */
#include "cli/dispatch.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "cli/args.h"
#include "cli/help.h"
#include "cli/report.h"
#include "base/log.h"
#include "cluster/node/error_channel.h"
#include "cluster/recover/coordinator_process.h"

static void show_log(ls_log_level level, const char *line, void *context)
{
    static const ls_term_style styles[] = {LS_TERM_RED, LS_TERM_YELLOW, LS_TERM_CYAN, LS_TERM_DIM};
    const ls_term *term = context;
    ls_str text;

    ls_str_init(&text);
    ls_str_append_visible(&text, line, strlen(line));
    /* A progress line may stand there. */
    fprintf(stderr, "%slineshaft: %s%s:%s %s\n", term->cursor ? "\r\033[K" : "",
            ls_term_code(term, styles[level]), ls_log_level_name(level),
            ls_term_code(term, LS_TERM_PLAIN), text.failed ? "out of memory" : text.p);
    ls_str_release(&text);
}

static ls_log_level log_level(const ls_args *args)
{
    int more = ls_args_count(args, "verbose");

    if (ls_args_has(args, "quiet"))
        return LS_LOG_ERROR;
    return more == 0 ? LS_LOG_WARN : more == 1 ? LS_LOG_INFO : LS_LOG_DEBUG;
}

/* A page on standard output, or on standard error when it answers a mistake. */
static ls_status show_page(const ls_args *args, bool mistake)
{
    ls_status st = LS_OK;
    ls_term term;
    ls_str text;

    ls_str_init(&text);
    ls_term_init(&term, mistake ? STDERR_FILENO : STDOUT_FILENO, args);
    if (ls_args_has(args, "version"))
        ls_str_append(&text, "lineshaft " LS_VERSION "\n");
    else if (args->command)
        ls_help_command(args->command, &term, &text);
    else
        ls_help_overview(&term, &text);
    if (!args->command)
        ls_term_fold(&term, &text);
    if (mistake)
        fputs(text.p, stderr);
    else
        st = ls_term_print(&text);
    ls_str_release(&text);
    return st;
}

/* A group of commands, or nothing at all, was named: show what there is, but fail. */
static ls_status name_a_command(const ls_args *args)
{
    ls_str full;

    ls_str_init(&full);
    ls_args_full_name(args->command, &full);
    show_page(args, true);
    fputc('\n', stderr);
    ls_fail(LS_EUSAGE, "\"%s\" needs the name of a command", full.p);
    ls_str_release(&full);
    return LS_EUSAGE;
}

static ls_status run(const ls_args *args)
{
    ls_status st;
    ls_str out;

    if (ls_args_has(args, "help") || ls_args_has(args, "version"))
        return show_page(args, false);
    if (!args->command || args->command->subs)
        return name_a_command(args);
    LS_BUG_IF(!args->command->run, "the command \"%s\" does nothing", args->command->name);
    ls_str_init(&out);
    st = args->command->run(args, &out);
    if (st == LS_OK)
        st = ls_term_print(&out);
    ls_str_release(&out);
    return st;
}

int ls_dispatch_main(int argc, const char *const *argv)
{
    ls_status st = LS_OK;
    ls_args args;
    ls_term term;

    if (ls_coordinator_process_is_wanted()) /* started as the coordinator of a job */
        return ls_coordinator_process_serve();
    signal(SIGPIPE, SIG_DFL); /* a parent may have left it ignored */
    st = ls_args_parse(&args, ls_commands, argc, argv);
    ls_term_init(&term, STDERR_FILENO, &args);
    ls_log_set_sink(show_log, &term, log_level(&args));
    if (st == LS_OK)
        st = run(&args);
    if (fflush(stdout) != 0 && st == LS_OK)
        st = ls_fail_sys(LS_EIO, "cannot write to standard output");
    else if (ferror(stdout) && st == LS_OK) /* an earlier write; errno has changed since */
        st = ls_fail(LS_EIO,
                     "standard output was closed, or its disk is full, before all was written");
    /* A command that has printed its answer may leave it to the exit code to say no. */
    if (st != LS_OK && ls_err_last()->code != LS_OK &&
        !ls_error_channel_send(ls_err_last())) /* a worker's agent shows the first cause */
        ls_report_error(ls_err_last(), &term);
    ls_log_set_sink(NULL, NULL, LS_LOG_WARN);
    return ls_err_exit_code(st);
}
