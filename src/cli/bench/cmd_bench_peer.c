/* cmd_bench_peer.c -- `lineshaft bench comm --peer`: the same collectives by OpenMPI, MPICH and
 * Gloo.
 *
 * The peers' programs are those of bench/peers, embedded in this one: their text is written to a
 * folder, compiled by the compiler of each MPI library, and removed afterwards. All of them, and
 * ours, time a call from a barrier until its slowest rank is done, and print an object with "us".
 * Each row is measured in ROUNDS rounds, one process after the other in an order that turns from
 * round to round; the median of the rounds is shown. MPI runs as its manual says for ranks of one
 * machine: bound to cores where there are enough, yielding where not. */
#include "cli/bench/cmd_bench_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/time.h"
#include "cluster/node/spawn.h"

enum { PEERS = 4, ROUNDS = 3, WORDS = 32, ANSWER = 4096, LIMIT_S = 300 };
enum { OURS, OPENMPI, MPICH, GLOO };

/* The text of a file of this source tree, as a string. */
#define TEXT_OF(name, path)                                                    \
    __asm__(".section .rodata\n.global " #name "\n" #name ":\n.incbin \"" path \
            "\"\n.byte 0\n.previous\n");                                       \
    extern const char name[]
TEXT_OF(ls_bench_peer_mpi, "bench/peers/allreduce_mpi.c");
TEXT_OF(ls_bench_peer_gloo, "bench/peers/allreduce_gloo.py");

static const char *const names[PEERS] = {"ours", "openmpi", "mpich", "gloo"};
static const char *const needs[PEERS] = {NULL, "mpirun.openmpi and mpicc.openmpi",
                                         "mpirun.mpich and mpicc.mpich", "python3 with torch"};

typedef struct contest {
    const ls_bench_peer_args *args;
    char dir[32]; /* made for this; "": not yet */
    bool here[PEERS];
} contest;

/* --- processes --------------------------------------------------------------------------------*/

static _Noreturn void be_command(const contest *c, const char *const *words, int out_fd)
{
    static const char *const settings[] = {
        "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        /* What they free stays theirs, which saves a third of their time at 64 MiB. */
        "MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=8000000000", "MALLOC_TOP_PAD_=268435456"};
    char ranks[32], **argv = (char **)(uintptr_t)words;
    int err_fd = openat(AT_FDCWD, "/dev/null", O_RDWR);

    setpgid(0, 0);
    snprintf(ranks, sizeof ranks, "%d", c->args->ranks);
    setenv("RANKS", ranks, 1);
    for (size_t i = 0; words[0][0] != '/' && i < LS_COUNT(settings); i++)
        putenv((char *)(uintptr_t)settings[i]);
    dup2(err_fd, 0);
    dup2(out_fd, 1);
    dup2(err_fd, 2);
    execvp(words[0], argv);
    _exit(127);
}

/* Run a command and keep what it prints. false: it failed, or took too long. */
static bool run(const contest *c, const char *const *words, char answer[ANSWER])
{
    int64_t deadline_ns = ls_time_now_ns() + LIMIT_S * LS_NS_PER_S;
    int fds[2], status = 0;
    size_t len = 0;

    if (pipe2(fds, O_CLOEXEC) != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0)
        be_command(c, words, fds[1]);
    close(fds[1]);
    for (ssize_t n = 1; pid > 0 && n > 0 && len < ANSWER - 1;) {
        struct pollfd p = {.fd = fds[0], .events = POLLIN};
        int64_t ms = (deadline_ns - ls_time_now_ns()) / LS_NS_PER_MS;
        if (ms <= 0 || poll(&p, 1, (int)ms) == 0)
            break;
        n = read(fds[0], answer + len, ANSWER - 1 - len);
        len += n > 0 ? (size_t)n : 0;
        n = n < 0 && errno == EINTR ? 1 : n;
    }
    answer[len] = '\0';
    close(fds[0]);
    if (pid <= 0)
        return false;
    if (ls_time_now_ns() >= deadline_ns)
        kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* --- who is there -----------------------------------------------------------------------------*/

static bool in_path(const char *name)
{
    char path[PATH_MAX];

    return ls_spawn_find(name, path, sizeof path) == LS_OK;
}

static ls_status put_file(const contest *c, const char *name, const char *text)
{
    char path[64];

    snprintf(path, sizeof path, "%s/%s", c->dir, name);
    return ls_file_write_atomic(path, text, strlen(text));
}

static bool compile(const contest *c, const char *library)
{
    char compiler[32], source[64], program[64], answer[ANSWER];

    snprintf(compiler, sizeof compiler, "mpicc.%s", library);
    snprintf(source, sizeof source, "%s/mpi.c", c->dir);
    snprintf(program, sizeof program, "%s/%s", c->dir, library);
    const char *const words[] = {compiler, "-std=gnu11", "-O2", "-o", program, source, NULL};
    return run(c, words, answer);
}

static ls_status find_peers(contest *c)
{
    const char *const torch[] = {"python3", "-c", "import torch.distributed", NULL};
    char answer[ANSWER];
    ls_err_record before = *ls_err_last();
    ls_status st;

    snprintf(c->dir, sizeof c->dir, "/tmp/lineshaft-peer-XXXXXX");
    if (!mkdtemp(c->dir)) {
        c->dir[0] = '\0';
        return ls_fail_sys(LS_EIO, "cannot make a folder in \"/tmp\" for the peers' programs");
    }
    LS_TRY(st, put_file(c, "mpi.c", ls_bench_peer_mpi), out);
    LS_TRY(st, put_file(c, "gloo.py", ls_bench_peer_gloo), out);
    c->here[OURS] = true;
    for (int p = OPENMPI; p <= MPICH; p++) {
        char mpirun[32], mpicc[32];
        snprintf(mpirun, sizeof mpirun, "mpirun.%s", names[p]);
        snprintf(mpicc, sizeof mpicc, "mpicc.%s", names[p]);
        c->here[p] = in_path(mpirun) && in_path(mpicc) && compile(c, names[p]);
    }
    c->here[GLOO] = in_path("python3") && run(c, torch, answer);
    ls_err_adopt(&before);
    for (int p = OPENMPI; p < PEERS; p++)
        if (!c->here[p])
            fprintf(stderr, "lineshaft: %s is not installed (%s)\n", names[p], needs[p]);
out:
    return st;
}

static void remove_files(contest *c)
{
    static const char *const files[] = {"mpi.c", "gloo.py", "openmpi", "mpich"};
    char path[64];

    for (size_t i = 0; *c->dir && i < LS_COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", c->dir, files[i]);
        unlink(path);
    }
    if (*c->dir)
        rmdir(c->dir);
}

/* --- one process ------------------------------------------------------------------------------*/

static void add(const char **words, int *n, const char *const *more)
{
    for (; *more; more++)
        words[(*n)++] = *more;
    words[*n] = NULL;
}

/* Microseconds of the median call; negative: it failed. */
static double time_one(const contest *c, int peer, const char *op, int64_t bytes)
{
    const ls_bench_peer_args *a = c->args;
    bool fits = a->ranks <= (int)sysconf(_SC_NPROCESSORS_ONLN);
    const char *words[WORDS], *at;
    char ranks[16], size[24], seconds[24], tenths[16], program[64], answer[ANSWER];
    int n = 0;

    snprintf(ranks, sizeof ranks, "%d", a->ranks);
    snprintf(size, sizeof size, "%" PRId64, bytes);
    snprintf(seconds, sizeof seconds, "%.1f", a->seconds);
    snprintf(tenths, sizeof tenths, "%.0f", a->seconds * 10);
    snprintf(program, sizeof program, "%s/%s", c->dir, peer == GLOO ? "gloo.py" : names[peer]);
    if (peer == OURS)
        add(words, &n,
            (const char *const[]){"/proc/self/exe", "bench", "comm", "-n", ranks, "--op", op,
                                  "--sizes", size, "--tenths", tenths, "--json", NULL});
    else if (peer == OPENMPI)
        add(words, &n,
            (const char *const[]){"mpirun.openmpi", "-n", ranks, "--bind-to",
                                  fits ? "core" : "none", fits ? NULL : "--oversubscribe", NULL});
    else if (peer == MPICH)
        add(words, &n,
            (const char *const[]){"mpirun.mpich", "-n", ranks, fits ? "-bind-to" : NULL, "core",
                                  NULL});
    else
        add(words, &n, (const char *const[]){"python3", NULL});
    if (peer != OURS)
        add(words, &n, (const char *const[]){program, names[peer], op, size, seconds, NULL});
    if (!run(c, words, answer) || !(at = strstr(answer, "\"us\":")))
        return -1;
    return strtod(at + strlen("\"us\":"), NULL);
}

/* --- rows -------------------------------------------------------------------------------------*/

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void show(const contest *c, const char *op, int64_t bytes, const double us[PEERS])
{
    if (c->args->json)
        printf("{\"op\":\"%s\",\"ranks\":%d,\"bytes\":%" PRId64 ",\"us\":%.3f", op, c->args->ranks,
               bytes, us[OURS]);
    else
        printf("%-14s %12" PRId64 " %12.2f", op, bytes, us[OURS]);
    for (int p = OPENMPI; p < PEERS; p++) {
        bool known = c->here[p] && us[p] >= 0;
        if (c->args->json && known)
            printf(",\"%s_us\":%.3f,\"%s_ratio\":%.3f", names[p], us[p], names[p],
                   us[p] / us[OURS]);
        else if (!c->args->json && known)
            printf(" %12.2f %6.2f", us[p], us[p] / us[OURS]);
        else if (!c->args->json)
            printf(" %12s %6s", c->here[p] ? "failed" : "-", "-");
    }
    printf(c->args->json ? "}\n" : "\n");
    fflush(stdout);
}

static ls_status time_row(const contest *c, const char *op, int64_t bytes)
{
    double us[PEERS][ROUNDS], median[PEERS];

    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < PEERS; i++) {
            int p = (i + round) % PEERS;
            us[p][round] = c->here[p] ? time_one(c, p, op, bytes) : -1;
        }
    for (int p = 0; p < PEERS; p++) {
        qsort(us[p], ROUNDS, sizeof us[p][0], by_size);
        median[p] = us[p][0] < 0 ? -1 : us[p][ROUNDS / 2]; /* one that failed is no figure */
    }
    if (median[OURS] <= 0)
        return ls_fail(LS_EFAIL, "our own %s of %" PRId64 " bytes failed; run it without --peer",
                       op, bytes);
    show(c, op, bytes, median);
    return LS_OK;
}

ls_status ls_bench_peer_run(const ls_bench_peer_args *args)
{
    contest c = {.args = args};
    ls_status st;

    LS_TRY(st, find_peers(&c), out);
    if (!args->json) {
        printf("%d rank%s; us: median of %d rounds in turn; ratio: the peer's time by ours\n",
               args->ranks, args->ranks == 1 ? "" : "s", ROUNDS);
        printf("%-14s %12s %12s", "op", "bytes", "us");
        for (int p = OPENMPI; p < PEERS; p++)
            printf(" %12s %6s", names[p], "ratio");
        printf("\n");
        fflush(stdout);
    }
    for (int o = 0; o < args->n_ops; o++)
        for (int i = 0; i < args->sizes; i++)
            LS_TRY(st, time_row(&c, args->ops[o], args->bytes[i]), out);
out:
    remove_files(&c);
    return st;
}
