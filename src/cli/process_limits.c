/* process_limits.c -- what the limits of a process are turned into.
 *
 *     ulimit -s 64       64 KiB < STACK_BYTES, and not to be raised: refused with a sentence
 *     ulimit -f 100      SIGXFSZ is ignored, write() says EFBIG
 *     ulimit -t 600      soft 600, hard 600: SIGKILL after 600 s. Now soft 540: SIGXCPU after 540 s
 *
 * The kernel repeats SIGXCPU every second from there on. The handler writes what was prepared when it
 * was set, because little may be called there. */
#include "cli/process_limits.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include "cluster/node/error_channel.h"

enum { STACK_BYTES = 1 << 20, STACK_WANTED = 8 << 20, MOST_KEPT_S = 60 };

static ls_err_record cpu_time;
static char cpu_text[1024];

static ls_status check_stack(void)
{
    struct rlimit limit;
    pthread_attr_t attr;
    ls_status st = LS_OK;

    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= STACK_WANTED)
        return LS_OK;
    limit.rlim_cur = limit.rlim_max < STACK_WANTED ? limit.rlim_max : STACK_WANTED;
    if (limit.rlim_cur < STACK_BYTES) {
        st = ls_fail(LS_ENOMEM,
                     "the stack of this process may have %lld KiB only, but %d KiB are needed",
                     (long long)(limit.rlim_cur >> 10), STACK_BYTES >> 10);
        ls_err_hint("Raise the limit with \"ulimit -s 8192\".");
        return st;
    }
    /* The C library took the size for threads from the limit as it was. */
    if (setrlimit(RLIMIT_STACK, &limit) == 0 && pthread_getattr_default_np(&attr) == 0) {
        if (pthread_attr_setstacksize(&attr, (size_t)limit.rlim_cur) == 0)
            (void)pthread_setattr_default_np(&attr);
        pthread_attr_destroy(&attr);
    }
    return st;
}

static void on_cpu_time(int number LS_UNUSED)
{
    if (!ls_error_channel_send(&cpu_time) && write(STDERR_FILENO, cpu_text, strlen(cpu_text)) < 0)
        _exit(1);
    _exit(ls_err_exit_code(LS_EIO));
}

static void take_cpu_time(void)
{
    struct sigaction action = {.sa_handler = on_cpu_time};
    struct rlimit limit;

    if (getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return;
    ls_fail(LS_EIO, "this process has used the CPU time that it may use (ulimit -t: %lld s)",
            (long long)limit.rlim_cur);
    ls_err_hint("Raise the limit with \"ulimit -t unlimited\", or that of the batch system.");
    cpu_time = *ls_err_last();
    ls_err_clear();
    snprintf(cpu_text, sizeof cpu_text, "lineshaft: error: %s\n  hint: %s\n", cpu_time.text,
             cpu_time.hint);
    if (limit.rlim_cur == limit.rlim_max && limit.rlim_max > 1) {
        int64_t kept = ls_min_i64((int64_t)limit.rlim_max / 10, MOST_KEPT_S);
        limit.rlim_cur -= (rlim_t)ls_max_i64(kept, 1);
        (void)setrlimit(RLIMIT_CPU, &limit);
    }
    sigemptyset(&action.sa_mask);
    sigaction(SIGXCPU, &action, NULL);
}

ls_status ls_process_limits_begin(void)
{
    ls_status st = check_stack();

    signal(SIGXFSZ, SIG_IGN);
    take_cpu_time();
    return st;
}
