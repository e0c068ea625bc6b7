/* ranks.c -- starts ranks for tests of comm. */
#include "comm/node/ranks.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"

int64_t ls_ranks_in_ms(int64_t ms)
{
    return ls_time_now_ns() + ms * LS_NS_PER_MS;
}

void *ls_ranks_alloc(ls_ranks *rank, bool shared, int64_t bytes)
{
    void *memory = NULL;

    if (shared)
        LS_CHECK_OK(ls_shm_segment_alloc(rank->segment, rank->me, bytes, "a test", &memory));
    else
        memory = ls_mem_alloc((size_t)bytes);
    LS_CHECK(memory);
    return memory;
}

void ls_ranks_free(ls_ranks *rank, bool shared, void *memory)
{
    if (shared)
        ls_shm_segment_free(rank->segment, rank->me, memory);
    else
        ls_mem_free(memory);
}

void *ls_ranks_shared(int64_t bytes)
{
    void *memory =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    LS_CHECK(memory != MAP_FAILED);
    return memory;
}

void ls_ranks_make(const ls_ranks_args *args, int *fd_out)
{
    LS_CHECK_OK(ls_shm_segment_create(&(ls_shm_segment_args){.generation = 7,
                                                             .ranks = args->ranks,
                                                             .heap_bytes = 64 * LS_MIB,
                                                             .no_reads = args->no_reads},
                                      fd_out));
}

static void play(ls_ranks *r, const ls_ranks_args *args, ls_ranks_body body)
{
    int64_t deadline = ls_test_soon();
    int locals[LS_SHM_SEGMENT_RANKS];

    for (int i = 0; i < r->ranks; i++)
        locals[i] = i;
    LS_CHECK_OK(ls_shm_segment_join(r->segment, r->me, 10 + r->me, "testhost"));
    LS_CHECK_OK(ls_shm_segment_meet(r->segment, r->me, deadline));
    LS_CHECK_OK(ls_group_open(&r->group, r->segment, &(ls_group_args){99, r->me, locals, r->ranks},
                              deadline));
    if (!args->no_direct)
        LS_CHECK_OK(ls_shm_coll_open(&r->direct, &r->group));
    body(r);
    ls_shm_coll_close(r->direct);
    ls_group_close(&r->group);
    ls_shm_segment_leave(r->segment, r->me);
}

void ls_ranks_start(const ls_ranks_args *args, int fd, ls_ranks_body body, int *pids_out)
{
    fflush(NULL);
    for (int i = 0; i < args->ranks; i++) {
        pids_out[i] = fork();
        LS_CHECK(pids_out[i] >= 0);
        if (pids_out[i] > 0)
            continue;
        ls_ranks r = {.fd = fd, .me = i, .ranks = args->ranks, .context = args->context};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (args->gate && !*args->gate)
            usleep(1000);
        LS_CHECK_OK(ls_shm_segment_open(&r.segment, fd, 7));
        play(&r, args, body);
        ls_shm_segment_close(r.segment);
        exit(0);
    }
}

typedef struct seat {
    pthread_t thread;
    ls_ranks rank;
    const ls_ranks_args *args;
    ls_ranks_body body;
} seat;

static void *thread(void *arg)
{
    seat *s = arg;

    play(&s->rank, s->args, s->body);
    return NULL;
}

static void run_threads(const ls_ranks_args *args, int fd, ls_ranks_body body)
{
    seat *seats = ls_mem_array((size_t)args->ranks, sizeof *seats);
    ls_shm_segment *segment;

    LS_CHECK(seats);
    LS_CHECK_OK(ls_shm_segment_open(&segment, fd, 7));
    for (int i = 0; i < args->ranks; i++) {
        seats[i].rank = (ls_ranks){
            .segment = segment, .fd = fd, .me = i, .ranks = args->ranks, .context = args->context};
        seats[i].args = args;
        seats[i].body = body;
        LS_CHECK_EQ(pthread_create(&seats[i].thread, NULL, thread, &seats[i]), 0);
    }
    for (int i = 0; i < args->ranks; i++)
        pthread_join(seats[i].thread, NULL);
    ls_shm_segment_close(segment);
    ls_mem_free(seats);
}

void ls_ranks_run(const ls_ranks_args *args, ls_ranks_body body)
{
    int pids[LS_SHM_SEGMENT_RANKS], fd, status;

    ls_ranks_make(args, &fd);
    if (args->threads) {
        run_threads(args, fd, body);
    } else {
        ls_ranks_start(args, fd, body, pids);
        for (int i = 0; i < args->ranks; i++) {
            LS_CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
            LS_CHECK_EQ(status, 0);
        }
    }
    close(fd);
}
