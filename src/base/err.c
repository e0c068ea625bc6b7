/* err.c -- the error record of each thread.
 *
 * Fixed-size buffers, no heap: a record can be made when memory is exhausted, and it is copied by
 * value to the thread or process that shows it. The stack of "doing" lines is joined into the
 * record at the moment of failure, because by the time it is printed the work is unwound. */
#include "base/err.h"

#include <errno.h>
#include <execinfo.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <unistd.h>

enum { DOING_DEPTH = 6, DOING_CHARS = 160, LONGEST = 8192 };

static _Thread_local ls_err_record last;
static _Thread_local char doing_stack[DOING_DEPTH][DOING_CHARS];
static _Thread_local int doing_depth;

static void join_doing(char *out, size_t cap)
{
    int top = doing_depth < DOING_DEPTH ? doing_depth : DOING_DEPTH;
    size_t used = 0;

    out[0] = '\0';
    for (int i = 0; i < top && used < cap; i++) {
        if (i > 0 && strcmp(doing_stack[i], doing_stack[i - 1]) == 0)
            continue; /* two rooms say the same of one thing */
        int n = snprintf(out + used, cap - used, "%s%s", i ? ", " : "", doing_stack[i]);
        used += n > 0 ? (size_t)n : 0;
    }
}

/* A path may be thousands of bytes long, and the reason stands at the end: what does not fit is cut
 * out of the middle. */
static void keep_ends(char *out, size_t cap, const char *text)
{
    size_t n = strlen(text), head = cap / 2, tail = cap - 1 - head - 3;

    if (n < cap)
        memcpy(out, text, n + 1);
    else
        snprintf(out, cap, "%.*s...%s", (int)head, text, text + n - tail);
}

/* A limit of the process is a reason that a user can remove, wherever it is met. */
static void hint_at_limit(int reason)
{
    static const struct {
        int reason, resource;
        const char *unit, *flag;
    } limits[] = {
        {EFBIG, RLIMIT_FSIZE, "bytes in a file", "-f"},
        {EMFILE, RLIMIT_NOFILE, "open files", "-n"},
        {ENOMEM, RLIMIT_AS, "bytes of address space", "-v"},
    };
    struct rlimit most;

    for (size_t i = 0; i < LS_COUNT(limits); i++)
        if (reason == limits[i].reason && getrlimit(limits[i].resource, &most) == 0 &&
            most.rlim_cur != RLIM_INFINITY)
            snprintf(last.hint, sizeof last.hint,
                     "This process may have %lld %s: raise the limit with \"ulimit %s\".",
                     (long long)most.rlim_cur, limits[i].unit, limits[i].flag);
}

ls_status ls_err_raise(ls_status code, const char *file, int line, bool add_errno, const char *fmt,
                       ...)
{
    int saved = errno;
    char text[LONGEST]; /* apart from the record, whose own text may be among the arguments */
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (add_errno && n >= 0 && (size_t)n < sizeof text)
        snprintf(text + n, sizeof text - (size_t)n, ": %s", strerror(saved));
    last.code = code;
    last.file = file;
    last.line = line;
    last.unreached = 0;
    last.hint[0] = '\0';
    hint_at_limit(add_errno ? saved : code == LS_ENOMEM ? ENOMEM : 0);
    keep_ends(last.text, sizeof last.text, n < 0 ? fmt : text);
    join_doing(last.doing, sizeof last.doing);
    errno = saved;
    return code;
}

void ls_err_hint(const char *fmt, ...)
{
    char text[LONGEST];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    keep_ends(last.hint, sizeof last.hint, n < 0 ? fmt : text);
}

void ls_err_unreached(int rank)
{
    last.unreached = rank + 1;
}

void ls_err_doing(const char *fmt, ...)
{
    if (doing_depth < DOING_DEPTH) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(doing_stack[doing_depth], DOING_CHARS, fmt, ap);
        va_end(ap);
    }
    doing_depth++;
}

void ls_err_done(void)
{
    LS_BUG_IF(doing_depth == 0, "ls_err_done() without ls_err_doing()");
    doing_depth--;
}

const ls_err_record *ls_err_last(void)
{
    return &last;
}

void ls_err_clear(void)
{
    last = (ls_err_record){.code = LS_OK};
}

ls_status ls_err_adopt(const ls_err_record *record)
{
    last = *record;
    return record->code;
}

/* One table: class name and exit code (documented in docs/reference/exit-codes.md). */
static const struct {
    const char *name;
    int exit_code;
} classes[] = {
    [LS_OK] = {"ok", 0},
    [LS_EFAIL] = {"failure", 1},
    [LS_EUSAGE] = {"usage", 2},
    [LS_EIO] = {"io", 3},
    [LS_EDATA] = {"data", 4},
    [LS_ENOMEM] = {"memory", 5},
    [LS_EBUSY] = {"busy", 6},
    [LS_ENUMERIC] = {"numeric", 7},
    [LS_EDEADLINE] = {"deadline", 8},
    [LS_EPEER] = {"peer", 9},
    [LS_ENORETRY] = {"noretry", 10},
    [LS_EUNSAVED] = {"unsaved", 11},
    [LS_EINTR] = {"interrupted", 130},
};

const char *ls_err_name(ls_status code)
{
    return (size_t)code < LS_COUNT(classes) ? classes[code].name : "unknown";
}

int ls_err_exit_code(ls_status code)
{
    return (size_t)code < LS_COUNT(classes) ? classes[code].exit_code : 1;
}

void ls_err_bug(const char *file, int line, const char *cond, const char *fmt, ...)
{
    char text[512];
    void *frames[32];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "lineshaft: bug at %s:%d: %s (%s)\n", file, line, text, cond);
    fflush(stderr);
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
    abort();
}
