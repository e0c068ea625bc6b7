/* err.h -- a failure is recorded once, by the first function that knows the reason.
 *
 * A function that can fail returns ls_status. The function that knows why calls ls_fail() (or
 * ls_fail_sys() when errno holds the reason) and returns its value; callers pass the status on
 * untouched. The record of the last failure lives per thread and is copied by value from thread to
 * thread. Rooms never print and never exit: only cli/ shows a record. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

typedef enum ls_status {
    LS_OK = 0,
    LS_EFAIL,     /* anything without a class of its own */
    LS_EUSAGE,    /* the command line or the run file cannot be meant as written */
    LS_EIO,       /* the operating system refused: open, read, write, disk full */
    LS_EDATA,     /* bytes were read but are damaged or of the wrong kind */
    LS_ENOMEM,    /* memory is exhausted, or the ledger says it would be */
    LS_EBUSY,     /* somebody else holds it */
    LS_ENUMERIC,  /* NaN or Inf where a number must be */
    LS_EDEADLINE, /* waited as long as the caller allowed */
    LS_EPEER,     /* another rank failed first */
    LS_ENORETRY,  /* it failed again and again, and another start would end so too */
    LS_EUNSAVED,  /* stopped on request, without saving: the checkpoint before is as it was */
    LS_EINTR      /* stopped on request; what was asked to be saved is saved */
} ls_status;

typedef struct ls_err_record {
    ls_status code;
    char text[640];  /* what could not be done, to which object, why */
    char hint[320];  /* one sentence the reader can act on, or "" */
    char doing[320]; /* the long work in progress, outermost first, or "" */
    const char *file;
    int line;
    int unreached; /* the rank that could not be reached, from 1; 0: it is not about that */
} ls_err_record;

/* Record a failure on this thread and return code. The message is lower case, without a full stop,
 * with names in double quotes. ls_fail_sys() appends strerror(errno). A message that is too long
 * loses its middle, not its end. Where the reason is a limit of this process (file size, open files,
 * address space), the record gets a hint at once. The arguments may point into the last record. */
#define ls_fail(code, ...) ls_err_raise((code), __FILE__, __LINE__, false, __VA_ARGS__)
#define ls_fail_sys(code, ...) ls_err_raise((code), __FILE__, __LINE__, true, __VA_ARGS__)
ls_status ls_err_raise(ls_status code, const char *file, int line, bool add_errno, const char *fmt,
                       ...) LS_PRINTF(5, 6);

/* Add a hint to the record that ls_fail() just made. */
void ls_err_hint(const char *fmt, ...) LS_PRINTF(1, 2);

/* And that it is about a rank that could not be reached. */
void ls_err_unreached(int rank);

/* Long work says what it is doing, and pops it again, even when it failed. */
void ls_err_doing(const char *fmt, ...) LS_PRINTF(1, 2);
void ls_err_done(void);

/* The last record of this thread; code is LS_OK when nothing failed since the last clear. */
const ls_err_record *ls_err_last(void);
void ls_err_clear(void);

/* Make another thread's record this thread's last one; returns its code. */
ls_status ls_err_adopt(const ls_err_record *record);

/* Short lower-case name of a class ("usage", "io"), and the exit code of a process that ends so. */
const char *ls_err_name(ls_status code);
int ls_err_exit_code(ls_status code);

/* Our own mistake: abort with message and place, in release builds too. Never for input, files,
 * the network or a device's answer. */
#define LS_BUG_IF(cond, ...)                                    \
    do {                                                        \
        if (__builtin_expect(!!(cond), 0))                      \
            ls_err_bug(__FILE__, __LINE__, #cond, __VA_ARGS__); \
    } while (0)
_Noreturn void ls_err_bug(const char *file, int line, const char *cond, const char *fmt, ...)
    LS_PRINTF(4, 5);

/* st = call; leave through label when it failed. Hides no name. */
#define LS_TRY(st, call, label) \
    do {                        \
        (st) = (call);          \
        if ((st) != LS_OK)      \
            goto label;         \
    } while (0)

LS_C_END
