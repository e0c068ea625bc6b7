/* comm_node.c -- time of collectives among processes of this machine, on a shared-memory segment.
 *
 *   make build/release/bench-comm_node && build/release/bench-comm_node RANKS [KIND
 * [private|staged]]
 *
 * Each line is a size, the median and the best time of a blocking call in microseconds, in place,
 * fp32, as rank 0 saw it. private: buffers outside the shared heap; staged: and the system forbids
 * to read them. */
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/node/shm_coll.h"

enum { MOST_RUNS = 20000 };
#define LONG_NS (60 * LS_NS_PER_S)

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static void need(ls_status st)
{
    if (st == LS_OK)
        return;
    fprintf(stderr, "%s\n", ls_err_last()->text);
    exit(1);
}

static void measure(ls_shm_coll *direct, ls_coll_kind kind, int me, void *memory, int64_t bytes)
{
    static int64_t times[MOST_RUNS];
    ls_coll coll = {.kind = kind, .type = LS_F32, .count = bytes / 4, .in = memory, .out = memory};
    int64_t deadline = ls_time_now_ns() + LONG_NS;
    int runs = (int)ls_max_i64(7, ls_min_i64(MOST_RUNS, 400 * LS_MIB / (bytes + 1024)));

    for (int i = -3; i < runs; i++) {
        if (bytes >= LS_MIB)
            need(ls_shm_coll_run(direct, &(ls_coll){.kind = LS_COLL_BARRIER}, deadline));
        int64_t start = ls_time_now_ns();
        need(ls_shm_coll_run(direct, &coll, deadline));
        times[i > 0 ? i : 0] = ls_time_now_ns() - start;
    }
    if (me > 0)
        return;
    qsort(times, (size_t)runs, sizeof *times, by_size);
    printf("%10lld bytes  median %11.2f us  best %11.2f us\n", (long long)bytes,
           (double)times[runs / 2] / 1e3, (double)times[0] / 1e3);
    fflush(stdout);
}

static void rank(int fd, int me, int ranks, ls_coll_kind kind, bool outside)
{
    static const int64_t sizes[] = {4,      1024,       4096,        16384,       65536,
                                    LS_MIB, 4 * LS_MIB, 16 * LS_MIB, 64 * LS_MIB, 256 * LS_MIB};
    int64_t most = sizes[LS_COUNT(sizes) - 1], deadline = ls_time_now_ns() + LONG_NS;
    int locals[LS_SHM_SEGMENT_RANKS], cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
    ls_shm_segment *segment;
    ls_group group;
    ls_shm_coll *direct;
    void *memory;
    cpu_set_t set;

    need(ls_shm_segment_open(&segment, fd, 1));
    need(ls_shm_segment_join(segment, me, me, "here"));
    need(ls_shm_segment_meet(segment, me, deadline));
    CPU_ZERO(&set);
    CPU_SET((size_t)(me % cpus), &set);
    sched_setaffinity(0, sizeof set, &set);
    for (int i = 0; i < ranks; i++)
        locals[i] = i;
    need(ls_group_open(&group, segment, &(ls_group_args){1, me, locals, ranks}, deadline));
    need(ls_shm_coll_open(&direct, &group));
    memory = outside ? ls_mem_alloc((size_t)most) : NULL;
    if (!outside)
        need(ls_shm_segment_alloc(segment, me, most, "bench", &memory));
    memset(memory, 0, (size_t)most);
    for (size_t i = 0; i < LS_COUNT(sizes); i++)
        measure(direct, kind, me, memory, sizes[i]);
    ls_shm_coll_close(direct);
    ls_shm_segment_leave(segment, me);
    exit(0);
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2, fd;
    ls_coll_kind kind = LS_COLL_ALL_REDUCE;

    for (int k = 0; argc > 2 && k < LS_COLL_KINDS; k++)
        if (strcmp(argv[2], ls_coll_kind_name((ls_coll_kind)k)) == 0)
            kind = (ls_coll_kind)k;
    ls_shm_segment_args args = {.generation = 1, .ranks = ranks};
    args.no_reads = argc > 3 && strcmp(argv[3], "staged") == 0;
    need(ls_shm_segment_create(&args, &fd));
    for (int i = 0; i < ranks; i++)
        if (fork() == 0)
            rank(fd, i, ranks, kind, argc > 3);
    while (wait(NULL) > 0)
        ;
    return 0;
}
