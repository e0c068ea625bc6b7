/* stop_signals.c -- SIGTERM, SIGUSR1, Ctrl-C, SIGXCPU and SIGPIPE become a flag and a deadline. Handlers
 * only store, read clocks, write and _exit, which is allowed there.
 *
 * Slurm: SLURM_JOB_END_TIME is the time limit of the job (walltime). A signal that comes before it has until
 * then; a preempted job may have less, and nothing in its environment says so. After it, SIGKILL comes
 * when KillWait has passed, 30 s unless the site says otherwise. To take more time than there is
 * does no harm: the checkpoint before stays.
 *
 *     0 s      SIGTERM: the flag is set, the step goes on; SLURM_JOB_END_TIME is in 90 s
 *     4 s      the step ends, the save begins
 *     31 s     the manifest has its name: ls_stop_signals_saved(), and the run ends by itself
 *     90 s     else SIGALRM: the process ends as LS_EUNSAVED */
#include "launch/stop_signals.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/time.h"

enum { TWICE_MS = 500, KILL_WAIT_S = 30 };

volatile sig_atomic_t ls_stop_signals_asked;
static ls_stop_signals_args how;
static int64_t slurm_end_s; /* wall clock; 0: none, -1: not looked up */
static _Atomic int64_t asked_ns, by_ns;

static void say(const char *text)
{
    if (text && write(STDERR_FILENO, text, strlen(text)) < 0)
        how.note = NULL; /* nobody reads it */
}

/* Seconds from now; 0: no limit. */
static int64_t grace(void)
{
    if (how.grace_s > 0 || slurm_end_s == 0)
        return how.grace_s;
    int64_t left = slurm_end_s > 0 ? slurm_end_s - (int64_t)time(NULL) : 0;
    return left > 0 ? left : KILL_WAIT_S;
}

static void leave(const char *why)
{
    say(why);
    _exit(ls_err_exit_code(LS_EUNSAVED));
}

static void on_stop(int number LS_UNUSED)
{
    int64_t now = ls_time_now_ns(), before = atomic_load(&asked_ns), seconds;
    int error = errno;

    if (before == 0) {
        seconds = grace();
        atomic_store(&asked_ns, now);
        atomic_store(&by_ns, seconds ? now + seconds * LS_NS_PER_S : 0);
        ls_stop_signals_asked = 1;
        alarm((unsigned)ls_min_i64(seconds, 1 << 30)); /* 0: none */
        say(how.note);
    } else if (!how.rank && now - before >= TWICE_MS * LS_NS_PER_MS) {
        leave("lineshaft: stopped: asked twice, ended without saving\n");
    }
    errno = error;
}

static void on_time(int number LS_UNUSED)
{
    leave("lineshaft: stopped: the grace time is over, ended without saving\n");
}

/* `train --json | head`: the reader is gone, so stop, but not without saving. */
static void on_reader_gone(int number LS_UNUSED)
{
    ls_stop_signals_asked = 1;
}

/* The kernel says it every second from now on. */
static void on_cpu_time(int number)
{
    if (atomic_load(&asked_ns) != 0)
        return;
    say("lineshaft: warning: the CPU time that this process may use is almost used up (ulimit "
        "-t)\n");
    on_stop(number);
}

static void take(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

void ls_stop_signals_begin(const ls_stop_signals_args *args)
{
    const char *job = getenv("SLURM_JOB_ID"), *end = getenv("SLURM_JOB_END_TIME");

    how = *args;
    slurm_end_s = !job || !*job ? 0 : end && *end ? strtoll(end, NULL, 10) : -1;
    take(SIGALRM, on_time);
    take(SIGINT, on_stop);
    take(SIGTERM, on_stop);
    take(SIGUSR1, on_stop);
    take(SIGXCPU, on_cpu_time);
    take(SIGPIPE, on_reader_gone);
}

int64_t ls_stop_signals_by_ns(void)
{
    return atomic_load(&by_ns);
}

void ls_stop_signals_saved(void)
{
    alarm(0);
}
