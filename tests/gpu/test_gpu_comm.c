/* test_gpu_comm.c -- device communicators between ranks on GPUs: by NCCL and through the host.
 *
 * Ranks are processes, and this one does not touch the driver: a process that has cannot be forked.
 * Where there are fewer cards than ranks, ranks share them. */
#include <signal.h>
#include <time.h>
#include <unistd.h>
#include "base/time.h"
#include "comm/device/device_contract.h"
#include "comm/worlds.h"
#include "parallel/mp_device_contract.h"

static void need_gpu(void)
{
    char driver[256];

    ls_device_driver(driver);
    if (!driver[0] && !getenv("LINESHAFT_GPU_TEST"))
        ls_test_skip("there is no NVIDIA driver");
}

static ls_device *open_gpu(int rank)
{
    ls_device *device;

    LS_CHECK_OK(ls_device_open_with(&device, &(ls_device_args){.kind = "cuda", .card = rank}));
    return device;
}

static void keep_contract(ls_world *world, ls_comm *comm)
{
    ls_device *device = open_gpu(ls_comm_rank(comm));

    ls_device_contract(comm, device, world->context);
    ls_device_close(device);
}

LS_TEST_SECONDS(gpu_collectives_by_nccl_have_the_right_numbers, 300)
{
    static char nccl[] = "nccl";

    need_gpu();
    ls_world_run("1", nccl, keep_contract);
    ls_world_run("2", nccl, keep_contract);
    ls_world_run("4", nccl, keep_contract);
}

LS_TEST_SECONDS(gpu_collectives_through_the_host_have_the_right_numbers, 300)
{
    static char host[] = "host";

    need_gpu();
    ls_world_run("2", host, keep_contract);
    ls_world_run("3", host, keep_contract);
}

/* Moves of tensors inside of a pass. The world's context: the provider. */
static void keep_moves(ls_world *world, ls_comm *comm)
{
    ls_device *device = open_gpu(ls_comm_rank(comm));
    ls_device_comm_choice choice;
    ls_stream *stream;

    LS_CHECK_OK(ls_device_comm_choose(comm, device, world->context, ls_test_soon(), &choice));
    LS_CHECK_STR(choice.provider, world->context);
    LS_CHECK_OK(ls_stream_create(&stream, device));
    mp_device_contract(comm, stream, choice.provider);
    ls_stream_free(stream);
    ls_device_close(device);
}

LS_TEST_SECONDS(gpu_moves_by_nccl_keep_the_contract, 300)
{
    static char nccl[] = "nccl";

    need_gpu();
    ls_world_run("2", nccl, keep_moves);
    ls_world_run("4", nccl, keep_moves);
}

LS_TEST_SECONDS(gpu_moves_through_the_host_keep_the_contract, 300)
{
    static char host[] = "host";

    need_gpu();
    ls_world_run("3", host, keep_moves);
}

static void lose_while_moving(ls_world *world, int rank)
{
    ls_comm_args args = ls_world_args(world, rank);
    ls_device_comm_choice choice;
    ls_device *device;
    ls_stream *stream;
    ls_comm *comm;

    LS_CHECK_OK(ls_comm_open(&comm, &args, ls_test_soon()));
    device = open_gpu(rank);
    LS_CHECK_OK(ls_stream_create(&stream, device));
    LS_CHECK_OK(ls_device_comm_choose(comm, device, "nccl", ls_test_soon(), &choice));
    mp_device_loses_rank_1(comm, stream, choice.provider);
    ls_stream_free(stream);
    ls_device_close(device);
    ls_comm_close(comm);
}

LS_TEST_SECONDS(gpu_moves_end_when_a_rank_is_killed, 120)
{
    ls_world world;

    need_gpu();
    ls_world_init(&world, "4", NULL);
    for (int r = 0; r < 4; r++)
        ls_world_fork(&world, r, lose_while_moving);
    ls_world_forked(&world);
    for (int r = 0; r < 4; r++)
        ls_world_join(&world, r, r == 1 ? SIGKILL : 0);
    ls_world_release(&world);
}

/* A rank with an open communicator of each kind, by NCCL. */
typedef struct member {
    ls_comm *comm;
    ls_device *device;
    ls_stream *stream;
    ls_device_comm *dc;
    float *x;
    ls_coll sum;
} member;

static void join(ls_world *world, int rank, int64_t limit_ns, member *m)
{
    ls_comm_args args = ls_world_args(world, rank);
    ls_device_comm_choice choice;
    void *memory;

    LS_CHECK_OK(ls_comm_open(&m->comm, &args, ls_test_soon()));
    m->device = open_gpu(rank);
    LS_CHECK_OK(ls_stream_create(&m->stream, m->device));
    LS_CHECK_OK(ls_device_comm_choose(m->comm, m->device, "nccl", ls_test_soon(), &choice));
    LS_CHECK_OK(ls_device_comm_open(&m->dc,
                                    &(ls_device_comm_args){.comm = m->comm,
                                                           .device = m->device,
                                                           .provider = choice.provider,
                                                           .axis = "dp",
                                                           .limit_ns = limit_ns},
                                    ls_test_soon()));
    LS_CHECK_OK(ls_device_alloc(m->device, 64 << 20, "test", &memory));
    m->x = memory;
    m->sum = (ls_coll){
        .kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = 16 << 20, .in = m->x, .out = m->x};
    ls_device_comm_set_step(m->dc, 7);
    LS_CHECK_OK(ls_device_comm_queue(m->dc, m->stream, &m->sum));
    LS_CHECK_OK(ls_stream_sync(m->stream, ls_test_soon()));
}

static void leave(member *m)
{
    ls_device_comm_close(m->dc);
    ls_device_free(m->device, m->x);
    ls_stream_free(m->stream);
    ls_device_close(m->device);
    ls_comm_close(m->comm);
}

/* The others' streams end, and go on with other work. */
static void lose_rank_1(ls_world *world, int rank)
{
    member m;

    join(world, rank, 0, &m);
    if (rank == 1)
        raise(SIGKILL);
    int64_t begin = ls_time_now_ns();
    ls_status st = ls_device_comm_queue(m.dc, m.stream, &m.sum);
    LS_CHECK_OK(ls_stream_sync(m.stream, ls_test_soon()));
    LS_CHECK(st == LS_OK || st == LS_EPEER);
    LS_CHECK_WITHIN(begin, 5000);
    while (ls_device_comm_check(m.dc) == LS_OK)
        LS_CHECK(ls_time_now_ns() - begin < 10 * LS_NS_PER_S);
    LS_CHECK_FAILS(ls_device_comm_check(m.dc), LS_EPEER, "rank 1");
    ls_stream_copy(m.stream, m.x, m.x + 1024, 1024);
    LS_CHECK_OK(ls_stream_sync(m.stream, ls_test_soon()));
    leave(&m);
}

LS_TEST_SECONDS(gpu_a_killed_rank_ends_the_collectives_of_the_others, 120)
{
    ls_world world;

    need_gpu();
    ls_world_init(&world, "3", NULL);
    for (int r = 0; r < 3; r++)
        ls_world_fork(&world, r, lose_rank_1);
    ls_world_forked(&world);
    for (int r = 0; r < 3; r++)
        ls_world_join(&world, r, r == 1 ? SIGKILL : 0);
    ls_world_release(&world);
}

/* Rank 1 lives and does not come. */
static void wait_in_vain(ls_world *world, int rank)
{
    member m;

    join(world, rank, 2 * LS_NS_PER_S, &m);
    int64_t begin = ls_time_now_ns();
    if (rank == 0) {
        LS_CHECK_OK(ls_device_comm_queue(m.dc, m.stream, &m.sum));
        LS_CHECK_OK(ls_stream_sync(m.stream, ls_test_soon()));
        LS_CHECK(ls_time_now_ns() - begin > 2 * LS_NS_PER_S);
        LS_CHECK_FAILS(ls_device_comm_check(m.dc), LS_EDEADLINE,
                       "rank 0: queued work has not ended for 2 s; last call: device all_reduce 2 "
                       "of 67108864 bytes (dp, step 7)");
    } else {
        while (ls_comm_check(m.comm) == LS_OK) {
            LS_CHECK(ls_time_now_ns() - begin < 30 * LS_NS_PER_S);
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        LS_CHECK_FAILS(ls_comm_check(m.comm), LS_EPEER, "queued work has not ended");
    }
    leave(&m);
}

LS_TEST_SECONDS(gpu_a_rank_that_does_not_come_is_given_up, 120)
{
    ls_world world;

    need_gpu();
    ls_world_init(&world, "2", NULL);
    for (int r = 0; r < 2; r++)
        ls_world_fork(&world, r, wait_in_vain);
    ls_world_forked(&world);
    for (int r = 0; r < 2; r++)
        ls_world_join(&world, r, 0);
    ls_world_release(&world);
}
