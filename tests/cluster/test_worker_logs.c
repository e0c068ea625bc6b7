/* test_worker_logs.c -- lines, pieces, floods, slow readers, files: nothing lost, nothing mixed. */
#include "harness.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/jobs.h"
#include "cluster/node/worker_logs.h"

LS_TEST(logs_end_lines_that_have_no_end)
{
    jobs_run run;

    jobs_do(&run, (ls_agent_args){.workers = 1}, "printf 'a\\n\\nb\\nc'; printf x >&2");
    LS_CHECK_STR(run.out.p, "[0] a\n[0] \n[0] b\n[0] c\n");
    LS_CHECK_STR(run.err.p, "[0] x\n");
    jobs_release(&run);
    jobs_do(&run, (ls_agent_args){.workers = 1}, ":");
    LS_CHECK_STR(run.out.p, "");
    jobs_release(&run);
}

LS_TEST(logs_keep_every_byte)
{
    jobs_run run;

    jobs_do(&run, (ls_agent_args){.workers = 1, .log_dir = "a/b"},
            "i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %o $i)\"; i=$((i+1)); done");
    char want[300], *p = want;
    memcpy(p, "[0] ", 4);
    p += 4;
    for (int i = 0; i < 256; i++) {
        *p++ = (char)i;
        if (i == '\n') {
            memcpy(p, "[0] ", 4);
            p += 4;
        }
    }
    *p++ = '\n';
    LS_CHECK_EQ(run.out.len, p - want);
    LS_CHECK(memcmp(run.out.p, want, run.out.len) == 0);
    ls_str file;
    ls_str_init(&file);
    LS_CHECK_OK(ls_file_read("a/b/rank-0.log", 1000, &file));
    LS_CHECK_EQ(file.len, 256); /* as they were written */
    for (int i = 0; i < 256; i++)
        LS_CHECK_EQ((unsigned char)file.p[i], i);
    ls_str_release(&file);
    jobs_release(&run);
}

/* Pieces of a long line put together again. */
static size_t join(const ls_str *out, const char *label, ls_str *line)
{
    char first[16], next[16];
    const char *p = out->p, *end = out->p + out->len;
    size_t pieces = 0;

    snprintf(first, sizeof first, "[%s] ", label);
    snprintf(next, sizeof next, "[%s]+ ", label);
    while (p < end) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        const char *head = pieces ? next : first;
        LS_CHECK(eol && strncmp(p, head, strlen(head)) == 0);
        p += strlen(head);
        ls_str_append_bytes(line, p, (size_t)(eol - p));
        p = eol + 1;
        pieces++;
    }
    return pieces;
}

LS_TEST(logs_show_long_lines_in_pieces)
{
    static const int sizes[] = {LS_WORKER_LOGS_PIECE - 1, LS_WORKER_LOGS_PIECE,
                                LS_WORKER_LOGS_PIECE + 1, 3 * LS_WORKER_LOGS_PIECE, 1000003};

    for (size_t i = 0; i < LS_COUNT(sizes); i++) {
        char command[128];
        jobs_run run;
        ls_str line;
        ls_str_init(&line);
        snprintf(command, sizeof command, "head -c %d /dev/zero | tr '\\0' x; echo", sizes[i]);
        jobs_do(&run, (ls_agent_args){.workers = 1}, command);
        size_t pieces = join(&run.out, "0", &line);
        LS_CHECK_EQ(line.len, sizes[i]);
        LS_CHECK_EQ(pieces, (sizes[i] + LS_WORKER_LOGS_PIECE - 1) / LS_WORKER_LOGS_PIECE);
        ls_str_release(&line);
        jobs_release(&run);
    }
}

/* Every line of the output is a whole line of one rank, and each rank's come in their order. */
LS_TEST(logs_do_not_mix_floods)
{
    enum { RANKS = 4, LINES = 20000 };
    jobs_run run;
    int next[RANKS] = {0};

    jobs_do(&run, (ls_agent_args){.workers = RANKS, .log_dir = "logs"},
            "seq -f \"$RANK says %.0f and a few words more\" 0 19999; "
            "seq -f \"$RANK says %.0f and a few words more\" 0 4 >&2");
    LS_CHECK_EQ(run.result.exit_code, 0);
    for (char *p = run.out.p, *eol; *p; p = eol + 1) {
        int label, rank, number, used = 0;
        eol = strchr(p, '\n');
        LS_CHECK(eol);
        *eol = '\0';
        LS_CHECK(sscanf(p, "[%d] %d says %d and a few words more%n", &label, &rank, &number,
                        &used) == 3 &&
                 p + used == eol);
        LS_CHECK(label == rank && rank >= 0 && rank < RANKS);
        LS_CHECK_EQ(number, next[rank]++);
    }
    for (int r = 0; r < RANKS; r++) {
        char path[32];
        ls_str file;
        LS_CHECK_EQ(next[r], LINES);
        snprintf(path, sizeof path, "logs/rank-%d.log", r);
        ls_str_init(&file);
        LS_CHECK_OK(ls_file_read(path, 10 << 20, &file));
        int lines = 0;
        for (const char *p = file.p; (p = strchr(p, '\n')); p++)
            lines++;
        LS_CHECK_EQ(lines, LINES + 5);
        ls_str_release(&file);
    }
    jobs_release(&run);
}

/* The reader of our output sleeps: workers wait, nothing is lost, and a death is still seen. */
LS_TEST(logs_wait_for_a_slow_reader)
{
    int ends[2], total = 0;
    char block[4096];
    ssize_t n;

    LS_CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    LS_CHECK(pid >= 0);
    if (pid == 0) {
        const char *words[] = {"sh", "-c", "seq 1 100000; >finished$RANK", NULL};
        ls_agent_result result;
        close(ends[0]);
        ls_status st = ls_agent_run(
            &(ls_agent_args){.command = words, .workers = 2, .out_fd = ends[1]}, &result);
        _exit(st == LS_OK ? result.exit_code : 99);
    }
    close(ends[1]);
    usleep(300000);
    LS_CHECK(!ls_file_exists("finished0")); /* 600 KiB do not fit into pipes and buffers */
    while ((n = read(ends[0], block, sizeof block)) > 0)
        for (ssize_t i = 0; i < n; i++)
            total += block[i] == '\n';
    LS_CHECK_EQ(total, 200000);
    int status;
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(ends[0]);
}

LS_TEST(logs_give_up_on_a_reader_that_never_reads)
{
    int ends[2];

    jobs_mark();
    LS_CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    LS_CHECK(pid >= 0);
    if (pid == 0) {
        const char *words[] = {"yes", NULL};
        ls_agent_result result;
        signal(SIGINT, SIG_DFL);
        ls_status st = ls_agent_run(
            &(ls_agent_args){.command = words, .workers = 2, .out_fd = ends[1]}, &result);
        _exit(st == LS_OK ? result.exit_code : 99);
    }
    struct pollfd printed = {.fd = ends[0], .events = POLLIN};
    LS_CHECK_EQ(poll(&printed, 1, (int)(ls_test_ms(30000) / LS_NS_PER_MS)), 1);
    usleep(100000);
    kill(pid, SIGTERM); /* ends the workers */
    usleep(200000);
    LS_CHECK_EQ(waitpid(pid, NULL, WNOHANG), 0); /* still wants to print */
    kill(pid, SIGINT); /* another: two of a kind that were not yet seen are one */
    int status;
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 130);
    JOBS_EXPECT_NONE();
}

LS_TEST(logs_say_that_output_cannot_be_written)
{
    const char *words[] = {"echo", "x", NULL}, *fails[] = {"sh", "-c", "echo x; exit 3", NULL};
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    ls_agent_result result;

    LS_CHECK(full >= 0);
    LS_CHECK_FAILS(
        ls_agent_run(&(ls_agent_args){.command = words, .workers = 2, .out_fd = full}, &result),
        LS_EIO, "cannot write what the workers print: No space left");
    /* The failure of a worker is more important. */
    LS_EXPECT_LOG(1);
    LS_CHECK_OK(
        ls_agent_run(&(ls_agent_args){.command = fails, .workers = 1, .out_fd = full}, &result));
    LS_CHECK_EQ(result.exit_code, 3);
}

LS_TEST(logs_keep_the_last_lines)
{
    jobs_run run;

    jobs_do(&run, (ls_agent_args){.workers = 1}, "seq 1 5000 >&2; echo out; exit 1");
    size_t len = strlen(run.result.last_lines);
    LS_CHECK(len > LS_WORKER_LOGS_TAIL - 8 && len <= LS_WORKER_LOGS_TAIL);
    LS_CHECK_STR(run.result.last_lines + len - 10, "4999\n5000\n");
    int first;
    LS_CHECK(sscanf(run.result.last_lines, "%d", &first) == 1 && first > 4000); /* a whole line */
    jobs_release(&run);
    jobs_do(&run, (ls_agent_args){.workers = 1}, "echo only out; exit 1");
    LS_CHECK_STR(run.result.last_lines, "only out\n");
    jobs_release(&run);
    jobs_do(&run, (ls_agent_args){.workers = 1}, "head -c 5000 /dev/zero | tr '\\0' y; exit 1");
    LS_CHECK_EQ(strlen(run.result.last_lines), LS_WORKER_LOGS_TAIL);
    jobs_release(&run);
}

LS_TEST(logs_open_fails_whole)
{
    const char *labels[] = {"0", "1"};
    int files = jobs_files();

    for (uint64_t n = 1; n < 40; n++) {
        ls_worker_logs *logs = NULL;
        ls_mem_fail_nth(n);
        ls_status st = ls_worker_logs_open(&logs, &(ls_worker_logs_args){.workers = 2,
                                                                         .out_fd = 1,
                                                                         .err_fd = 2,
                                                                         .labels = labels,
                                                                         .stem = "",
                                                                         .folder = "f"});
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            ls_worker_logs_free(logs);
        LS_CHECK_EQ(jobs_files(), files);
        if (st == LS_OK)
            return;
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    LS_CHECK(!"never enough memory");
}
