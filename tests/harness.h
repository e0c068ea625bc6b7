/* harness.h -- the project's own test runner.
 *
 * LS_TEST(name) { ... } defines a test. Each runs in its own process with a time limit (60 s unless
 * LS_TEST_SECONDS(name, n) says otherwise), in an empty scratch folder that is removed afterwards.
 * A warning or error in the log that the test did not announce with LS_EXPECT_LOG() fails it.
 *
 * A test must pass on a machine that does other things at the same time. So it waits for what it
 * needs, with a deadline that only a hang can reach (ls_test_soon), and does not sleep for as long
 * as things usually take. Where it proves that something is quick, the limit is what tells an event
 * from a timeout (LS_CHECK_WITHIN), at least ten times what a quiet machine takes. All these limits
 * are eight times longer under a sanitizer. */
#pragma once
#include "base/base.h"
#include "base/err.h"

typedef struct ls_test {
    const char *name;
    const char *file;
    void (*run)(void);
    int seconds;
} ls_test;

#define LS_TEST_SECONDS(test_name, limit)                                                      \
    static void test_name(void);                                                               \
    static const ls_test test_name##_row = {#test_name, __FILE__, test_name, limit};           \
    static const ls_test *const test_name##_entry __attribute__((used, section("ls_tests"))) = \
        &test_name##_row;                                                                      \
    static void test_name(void)
#define LS_TEST(test_name) LS_TEST_SECONDS(test_name, 60)

#define LS_CHECK(cond)                                     \
    do {                                                   \
        if (!(cond))                                       \
            ls_test_fail(__FILE__, __LINE__, "%s", #cond); \
    } while (0)
/* Equal integers, or where got is a float or a double, equal numbers. */
#define LS_CHECK_EQ(got, want)                                                                  \
    do {                                                                                        \
        __typeof__(1 ? (got) : (got)) got_ = (got);                                             \
        __typeof__(1 ? (want) : (want)) want_ = (want);                                         \
        if (_Generic(got_, float : 1, double : 1, default : 0))                                 \
            ls_test_check_number(__FILE__, __LINE__, #got, (double)got_, (double)want_);        \
        else                                                                                    \
            ls_test_check_integer(__FILE__, __LINE__, #got, (long long)got_, (long long)want_); \
    } while (0)
#define LS_CHECK_STR(got, want)                                                                   \
    do {                                                                                          \
        const char *got_ = (got), *want_ = (want);                                                \
        if (strcmp(got_, want_) != 0)                                                             \
            ls_test_fail(__FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", #got, got_, want_); \
    } while (0)
/* got lies within tolerance of want; NaN never does. */
#define LS_CHECK_NEAR(got, want, tolerance)                                                       \
    do {                                                                                          \
        double got_ = (double)(got), want_ = (double)(want);                                      \
        if (!(got_ - want_ <= (tolerance) && want_ - got_ <= (tolerance)))                        \
            ls_test_fail(__FILE__, __LINE__, "%s is %.9g, expected %.9g within %.3g", #got, got_, \
                         want_, (double)(tolerance));                                             \
    } while (0)
/* The call succeeds; its error message is shown when it does not. */
#define LS_CHECK_OK(call)                                                                  \
    do {                                                                                   \
        if ((call) != LS_OK)                                                               \
            ls_test_fail(__FILE__, __LINE__, "%s failed: %s", #call, ls_err_last()->text); \
    } while (0)
/* The call fails with this class, and its message contains text. */
#define LS_CHECK_FAILS(call, status, part) \
    ls_test_check_fails(__FILE__, __LINE__, #call, (call), (status), (part))

/* No more than this has passed since ns, in ms of a quiet machine. */
#define LS_CHECK_WITHIN(since_ns, ms) ls_test_check_within(__FILE__, __LINE__, (since_ns), (ms))

_Noreturn void ls_test_fail(const char *file, int line, const char *fmt, ...) LS_PRINTF(3, 4);
void ls_test_check_fails(const char *file, int line, const char *call, ls_status got,
                         ls_status want, const char *part);

static inline void ls_test_check_integer(const char *file, int line, const char *what,
                                         long long got, long long want)
{
    if (got != want)
        ls_test_fail(file, line, "%s is %lld, expected %lld", what, got, want);
}

static inline void ls_test_check_number(const char *file, int line, const char *what, double got,
                                        double want)
{
    if (!(got >= want && got <= want))
        ls_test_fail(file, line, "%s is %.17g, expected %.17g", what, got, want);
}

void ls_test_check_within(const char *file, int line, int64_t since_ns, int64_t ms);

/* ns: how long something may take that takes at most ms on a quiet machine without a sanitizer. */
int64_t ls_test_ms(int64_t ms);

/* A deadline for what comes for sure: half a minute from now, more under a sanitizer. */
int64_t ls_test_soon(void);

/* What `device.threads: auto` means on this machine; at least 1. */
int ls_test_cpu_threads(void);

/* How often to repeat what a single run may miss: n times, a quarter of it under a sanitizer. */
int ls_test_times(int n);

/* The stride through a list of cases of which each n-th will do under a sanitizer: 1, or n. */
int ls_test_stride(int n);

/* This test has one thread, and so nothing for ThreadSanitizer, under which it takes ten times as
 * long: there it ends here, as skipped. */
void ls_test_one_thread(void);

/* This test will log n warnings and errors in all. */
void ls_test_expect_log(int n);
#define LS_EXPECT_LOG(n) ls_test_expect_log(n)

/* End this test as skipped, with the reason. */
_Noreturn void ls_test_skip(const char *fmt, ...) LS_PRINTF(1, 2);

/* The project's root folder (where make ran), for tests that read examples or shared data. */
const char *ls_test_root(void);
