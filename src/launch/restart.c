/* restart.c -- the ranks of a job are started again as a whole.
 *
 *     attempt 0   exit 1, "loss is nan"     LINESHAFT_RESTARTS=0
 *     attempt 1   exit 137 (killed)         LINESHAFT_RESTARTS=1   another failure: again
 *     attempt 2   exit 1, "loss is nan"     LINESHAFT_RESTARTS=2   not as the one before: again
 *     attempt 3   exit 1, "loss is nan"     LINESHAFT_RESTARTS=3   the same twice in a row: the end
 *
 * A program that fails in the same way twice would fail a third time. */
#include "launch/restart.h"

#include <signal.h>
#include "base/log.h"

/* How an attempt ended, to be compared with the next one. */
typedef struct attempt {
    int code;
    char said[256]; /* the last line of the rank that failed first */
} attempt;

static attempt describe(const ls_agent_result *result)
{
    attempt a = {.code = result->exit_code};
    const char *end = result->last_lines + strlen(result->last_lines);

    while (end > result->last_lines && end[-1] == '\n')
        end--;
    const char *from = end;
    while (from > result->last_lines && from[-1] != '\n')
        from--;
    snprintf(a.said, sizeof a.said, "%.*s", (int)(end - from), from);
    return a;
}

/* The same failure twice is a mistake of the program. A signal from outside may not come again. */
static bool is_same(const attempt *a, const attempt *b)
{
    static const int outside[] = {SIGKILL, SIGTERM, SIGINT, SIGHUP};

    for (size_t i = 0; i < LS_COUNT(outside); i++)
        if (a->code == 128 + outside[i])
            return false;
    return a->code == b->code && strcmp(a->said, b->said) == 0;
}

ls_status ls_restart_run(ls_agent_args *job, int64_t restarts, ls_agent_result *result)
{
    attempt before = {.code = 0}, now;
    char text[3][64];
    const char *settings[] = {text[0], text[1], text[2], NULL};
    ls_status st = LS_OK;

    job->settings = settings;
    snprintf(text[2], sizeof text[2], "TORCHELASTIC_MAX_RESTARTS=%lld", (long long)restarts);
    for (int64_t n = 0;; n++, before = now) {
        snprintf(text[0], sizeof text[0], "LINESHAFT_RESTARTS=%lld", (long long)n);
        snprintf(text[1], sizeof text[1], "TORCHELASTIC_RESTART_COUNT=%lld", (long long)n);
        *result = (ls_agent_result){.worker = -1};
        LS_TRY(st, ls_agent_run(job, result), out);
        now = describe(result);
        if (result->cause.code == LS_OK || result->cause.code == LS_EINTR || restarts == 0)
            break;
        if (n > 0 && is_same(&now, &before)) {
            result->exit_code = ls_err_exit_code(LS_ENORETRY);
            snprintf(result->note, sizeof result->note,
                     "the same error came twice in a row: not started again");
            break;
        }
        if (n == restarts) {
            snprintf(result->note, sizeof result->note, "it was started again %lld time%s",
                     (long long)n, n == 1 ? "" : "s");
            break;
        }
        ls_log(LS_LOG_WARN, "%s: started again (%lld of %lld)", result->cause.text,
               (long long)n + 1, (long long)restarts);
    }
out:
    job->settings = NULL;
    return st;
}
