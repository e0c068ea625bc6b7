/* harness.c -- runs each test in its own process, as many at a time as keep the cores busy, and
 * counts.
 *
 *   lineshaft-test [--jobs N] [--list] [--except PART]... [FILTER ...] [--scripts FILE ...]
 *
 * A filter is a part of "path/of/test_file.c:test_name"; what contains PART is left out. Scripts
 * are programs that exit 0 (passed), 77 (skipped, last line says why) or anything else; they get
 * LINESHAFT_ROOT and run in a scratch folder with a limit of 900 s. The last line is "N passed, N
 * failed"; skipped tests are counted on the line before. Beside the seconds that a test took stand
 * those that it computed, on all cores: of many tests, and most scripts, a small part. So there is
 * a job for each core, and twice as many while cores idle (idles); --jobs N is N, always. Scripts
 * come first: short tests at the end keep all cores busy to the last.
 *
 * Some tests look at clocks, and a machine that does something else for a while makes one of them
 * fail. So where at most MOST_AGAIN have failed, each is run once more, alone, when all others are
 * done; one that passes then counts, and is named with the number of those at the end. What a
 * sanitizer has reported, and what was not a matter of time (a signal), stays failed.
 *
 * A test passes when its function returned, and then the process ended with 0. The first is told
 * through shared memory: code under test that calls exit(0) must not look like success. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/time.h"
#include "device/cpu/cpus.h"

extern const ls_test *const __start_ls_tests[];
extern const ls_test *const __stop_ls_tests[];

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { SLOWER = 8 };
/* Absurd sizes must come back as NULL, as they do without a sanitizer. */
const char *__asan_default_options(void) __attribute__((visibility("default")));
const char *__tsan_default_options(void) __attribute__((visibility("default")));
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}
#else
enum { SLOWER = 1 };
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
enum { THREADS_WATCHED = true };
#else
enum { THREADS_WATCHED = false };
#endif

enum { SKIPPED = 77, SCRIPT_SECONDS = 900, MOST_JOBS = 32 };

static char root[PATH_MAX];
static const char *except[8]; /* what is left out */
static int expected_log;

void ls_test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "    %s:%d: ", file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    fflush(NULL);
    _exit(1);
}

void ls_test_check_fails(const char *file, int line, const char *call, ls_status got,
                         ls_status want, const char *part)
{
    const ls_err_record *e = ls_err_last();

    if (got != want)
        ls_test_fail(file, line, "%s gave %s, expected %s (last message: %s)", call,
                     ls_err_name(got), ls_err_name(want), e->text);
    if (!strstr(e->text, part))
        ls_test_fail(file, line, "%s said \"%s\", expected it to contain \"%s\"", call, e->text,
                     part);
}

int64_t ls_test_ms(int64_t ms)
{
    return ms * SLOWER * LS_NS_PER_MS;
}

int ls_test_cpu_threads(void)
{
    ls_cpus cpus;
    int threads = ls_cpus_init(&cpus) == LS_OK ? cpus.threads : 1;

    ls_cpus_release(&cpus);
    return threads;
}

int64_t ls_test_soon(void)
{
    return ls_time_now_ns() + ls_test_ms(30000);
}

int ls_test_times(int n)
{
    return SLOWER > 1 ? (n + 3) / 4 : n;
}

int ls_test_stride(int n)
{
    return SLOWER > 1 ? n : 1;
}

void ls_test_one_thread(void)
{
    if (THREADS_WATCHED)
        ls_test_skip("one thread");
}

void ls_test_check_within(const char *file, int line, int64_t since_ns, int64_t ms)
{
    int64_t took_ns = ls_time_now_ns() - since_ns;

    if (took_ns > ls_test_ms(ms))
        ls_test_fail(file, line, "took %.1f ms, at most %.1f were expected", (double)took_ns / 1e6,
                     (double)ls_test_ms(ms) / 1e6);
}

void ls_test_expect_log(int n)
{
    expected_log = n;
}

void ls_test_skip(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    fflush(NULL);
    _exit(SKIPPED);
}

const char *ls_test_root(void)
{
    return root;
}

typedef struct job {
    pid_t pid; /* 0: free */
    char name[256];
    const ls_test *test; /* NULL: a script */
    char script[PATH_MAX];
    char scratch[64];
    int out; /* what it printed */
    int64_t started_ns, limit_ns;
    bool timed_out;
    bool *returned; /* shared with the test's process */
} job;

enum { MOST_AGAIN = 2 };

static job jobs[MOST_JOBS];
static int sure_jobs, most_jobs; /* at a time: always, while cores idle */
static int passed, failed, skipped;
static job unlucky[MOST_AGAIN];
static int n_unlucky;

static int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *where)
{
    (void)info;
    (void)flag;
    (void)where;
    return remove(path);
}

static void child(const ls_test *test, const char *script, const job *j)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives a runner that was stopped */
    dup2(j->out, STDOUT_FILENO);
    dup2(j->out, STDERR_FILENO);
    close_range(3, ~0u, 0); /* what other jobs print; a test begins with three, however many run */
    if (chdir(j->scratch) != 0)
        _exit(1);
    setenv("LINESHAFT_ROOT", root, 1);
    setenv("XDG_CACHE_HOME", j->scratch, 1); /* a test leaves nothing at home */
    unsetenv("LINESHAFT_FAULT");
    setenv("LINESHAFT_BF16", "off", 0); /* bits are compared across instruction sets */
    if (script) {
        execl(script, script, (char *)NULL);
        fprintf(stderr, "cannot run %s: %s\n", script, strerror(errno));
        _exit(1);
    }
    test->run();
    uint64_t logged = ls_log_count(LS_LOG_ERROR) + ls_log_count(LS_LOG_WARN);
    if (logged != (uint64_t)expected_log)
        ls_test_fail(test->file, 0, "logged %llu warnings and errors, announced %d",
                     (unsigned long long)logged, expected_log);
    fflush(NULL);
    *j->returned = true;
    exit(0); /* not _exit: the leak checker runs here */
}

static void start(job *j)
{
    const ls_test *test = j->test;
    const char *script = test ? NULL : j->script;
    FILE *f = tmpfile();

    memcpy(j->scratch, "/tmp/lineshaft-test.XXXXXX", 27);
    if (!f || !mkdtemp(j->scratch)) {
        perror("cannot make a scratch folder");
        exit(1);
    }
    j->out = dup(fileno(f));
    fclose(f);
    j->started_ns = ls_time_now_ns();
    j->timed_out = false;
    j->limit_ns = (int64_t)(test ? test->seconds : SCRIPT_SECONDS) * SLOWER * LS_NS_PER_S;
    *j->returned = script != NULL; /* a script has only its exit code */
    fflush(NULL);
    j->pid = fork();
    if (j->pid < 0) {
        perror("cannot start a process");
        exit(1);
    }
    if (j->pid == 0)
        child(test, script, j);
}

static void show_output(const job *j)
{
    char block[4096];
    ssize_t n;

    lseek(j->out, 0, SEEK_SET);
    while ((n = read(j->out, block, sizeof block)) > 0)
        fwrite(block, 1, (size_t)n, stdout);
}

/* The last line of what the job printed, for reasons. */
static void show_last_line(const job *j)
{
    char text[1024];
    off_t end = lseek(j->out, 0, SEEK_END);
    off_t from = end > (off_t)sizeof text - 1 ? end - (off_t)sizeof text + 1 : 0;
    ssize_t n = pread(j->out, text, sizeof text - 1, from);

    while (n > 0 && text[n - 1] == '\n')
        n--;
    text[n > 0 ? n : 0] = '\0';
    const char *line = strrchr(text, '\n');
    line = line ? line + 1 : text;
    puts(*line ? line : "no reason given");
}

/* Whether it may have failed by bad luck: it ended by itself or was too slow, and no sanitizer has
 * said anything. */
static bool may_be_luck(const job *j, int status)
{
    static const char *const words[] = {"Sanitizer", "runtime error:"};
    char block[4096 + 1];
    off_t at = 0;
    ssize_t n;

    if (WIFSIGNALED(status) && !j->timed_out)
        return false;
    while ((n = pread(j->out, block, sizeof block - 1, at)) > 0) {
        block[n] = '\0';
        for (ssize_t i = 0; i < n; i++) /* a text as a string, whatever it holds */
            block[i] = block[i] ? block[i] : ' ';
        for (size_t i = 0; i < LS_COUNT(words); i++)
            if (strstr(block, words[i]))
                return false;
        at += n > 16 ? n - 16 : n; /* a word may lie across two blocks */
    }
    return true;
}

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

/* used: by it and all of its children that it has waited for. */
static void finish(job *j, int status, const struct rusage *used)
{
    double seconds = (double)(ls_time_now_ns() - j->started_ns) / 1e9;
    double computed = seconds_of(used->ru_utime) + seconds_of(used->ru_stime);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;

    kill(-j->pid, SIGKILL); /* whatever it left behind */
    if (code == 0 && *j->returned) {
        passed++;
        printf("  ok     %s (%.1f s, computed %.1f s)\n", j->name, seconds, computed);
    } else if (code == SKIPPED) {
        skipped++;
        printf("  skip   %s: ", j->name);
        show_last_line(j);
    } else {
        failed++;
        printf("  FAILED %s (%.1f s)%s", j->name, seconds, j->timed_out ? ": time limit" : "");
        if (WIFSIGNALED(status) && !j->timed_out)
            printf(": %s", strsignal(WTERMSIG(status)));
        if (code == 0)
            printf(": the process ended before the test did");
        printf("\n");
        show_output(j);
        if (n_unlucky < MOST_AGAIN && may_be_luck(j, status))
            unlucky[n_unlucky++] = *j;
    }
    fflush(stdout);
    close(j->out);
    nftw(j->scratch, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    j->pid = 0;
}

/* Whether more than a third of this machine's time was nobody's since this was last answered, a
 * quarter of a second ago or longer. */
static bool idles(void)
{
    static int64_t since_ns;
    static long long was_idle, was_all;
    long long t[8] = {0}, all = 0;
    int64_t now = ls_time_now_ns();
    FILE *f = now - since_ns > 250 * LS_NS_PER_MS ? fopen("/proc/stat", "r") : NULL;

    if (!f)
        return false;
    int n = fscanf(f, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", &t[0], &t[1], &t[2], &t[3],
                   &t[4], &t[5], &t[6], &t[7]);
    fclose(f);
    for (int i = 0; i < n; i++)
        all += t[i];
    bool idle = n == 8 && since_ns > 0 && 3 * (t[3] - was_idle) > all - was_all;
    since_ns = now;
    was_idle = t[3];
    was_all = all;
    return idle;
}

/* Count who has ended and stop who is late; how many still run. */
static int look(void)
{
    int running = 0;

    for (job *j = jobs; j < jobs + MOST_JOBS; j++) {
        struct rusage used;
        int status;
        if (!j->pid)
            continue;
        if (wait4(j->pid, &status, WNOHANG, &used) == j->pid) {
            finish(j, status, &used);
            continue;
        }
        running++;
        if (!j->timed_out && ls_time_now_ns() - j->started_ns > j->limit_ns) {
            j->timed_out = true;
            kill(-j->pid, SIGKILL);
        }
    }
    return running;
}

/* When another job may begin. */
static job *free_slot(void)
{
    for (;;) {
        int running = look();
        for (job *j = jobs; j < jobs + most_jobs; j++)
            if (!j->pid && (running < sure_jobs || idles()))
                return j;
        usleep(2000);
    }
}

static void wait_for_all(void)
{
    while (look() > 0)
        usleep(2000);
}

static bool wanted(const char *name, char **filters, int n)
{
    for (size_t i = 0; i < LS_COUNT(except); i++)
        if (except[i] && strstr(name, except[i]))
            return false;
    for (int i = 0; i < n; i++)
        if (strstr(name, filters[i]))
            return true;
    return n == 0;
}

static void run_tests(char **filter, int filters, bool list)
{
    for (const ls_test *const *t = __start_ls_tests; t < __stop_ls_tests; t++) {
        char name[256];
        snprintf(name, sizeof name, "%s:%s", (*t)->file, (*t)->name);
        if (!wanted(name, filter, filters))
            continue;
        if (list) {
            puts(name);
            continue;
        }
        job *j = free_slot();
        memcpy(j->name, name, sizeof name);
        j->test = *t;
        start(j);
    }
}

static void run_script(const char *script)
{
    job *j = free_slot();

    if (!realpath(script, j->script)) {
        failed++;
        printf("  FAILED %s: %s\n", script, strerror(errno));
        return;
    }
    snprintf(j->name, sizeof j->name, "%s", script);
    j->test = NULL;
    start(j);
}

/* Those that failed, once more, when nothing else runs. */
static void run_again(void)
{
    int n = n_unlucky, lucky = passed;

    if (failed > n)
        return;
    n_unlucky = MOST_AGAIN; /* there is no third time */
    for (int i = 0; i < n; i++) {
        bool *returned = jobs[0].returned;
        printf("  again  %s, alone:\n", unlucky[i].name);
        failed--;
        jobs[0] = unlucky[i];
        jobs[0].returned = returned;
        start(&jobs[0]);
        wait_for_all();
    }
    if (passed > lucky)
        printf("%d passed only when run again, alone\n", passed - lucky);
}

int main(int argc, char **argv)
{
    int filters = 0, scripts = argc;
    size_t excepts = 0;
    bool list = false;
    char **filter = argv; /* names move to the front of argv */
    bool *returned = mmap(NULL, MOST_JOBS * sizeof *returned, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    sure_jobs = ls_test_cpu_threads();
    most_jobs = 2 * sure_jobs;
    for (int i = 1; i < argc && scripts == argc; i++) {
        if (strcmp(argv[i], "--jobs") == 0 && i + 1 < argc)
            sure_jobs = most_jobs = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--except") == 0 && i + 1 < argc && excepts < LS_COUNT(except))
            except[excepts++] = argv[++i];
        else if (strcmp(argv[i], "--list") == 0)
            list = true;
        else if (strcmp(argv[i], "--scripts") == 0)
            scripts = i + 1;
        else
            filter[filters++] = argv[i];
    }
    most_jobs = most_jobs < 1 ? 1 : most_jobs > MOST_JOBS ? MOST_JOBS : most_jobs;
    sure_jobs = sure_jobs < 1 ? 1 : sure_jobs > most_jobs ? most_jobs : sure_jobs;
    if (returned == MAP_FAILED || !getcwd(root, sizeof root)) {
        perror("cannot start");
        return 1;
    }
    for (int i = 0; i < MOST_JOBS; i++)
        jobs[i].returned = &returned[i];
    for (int i = scripts; i < argc; i++)
        if (wanted(argv[i], filter, filters)) {
            if (list)
                puts(argv[i]);
            else
                run_script(argv[i]);
        }
    run_tests(filter, filters, list);
    wait_for_all();
    if (list)
        return 0;
    run_again();
    if (skipped)
        printf("%d skipped\n", skipped);
    printf("%d passed, %d failed\n", passed, failed);
    return failed || passed + skipped == 0; /* a filter that finds nothing is a mistake */
}
