/* test_mp_device.c -- moves of a model-parallel group by collectives of device memory, through the
 * host, which every device has; by NCCL: tests/gpu/test_gpu_comm.c. Whole models: test_mp_group.c,
 * test_context.c, test_expert.c. */
#include <signal.h>
#include "base/time.h"
#include "comm/worlds.h"
#include "parallel/comm_world.h"
#include "parallel/mp_device_contract.h"

static void keep_contract(ls_world *world, ls_comm *comm)
{
    ls_stream *stream = open_stream();

    (void)world;
    mp_device_contract(comm, stream, "host");
    LS_CHECK_EQ(ls_device_used_bytes(ls_stream_device(stream)), 0);
    close_stream(stream);
}

LS_TEST_SECONDS(device_moves_through_the_host_keep_the_contract, 120)
{
    static const char *const worlds[] = {"2", "3", "4", "1+1", "2+2"};

    for (size_t i = 0; i < LS_COUNT(worlds); i++)
        ls_world_run(worlds[i], NULL, keep_contract);
}

/* The same on threads, for the thread sanitizer: on two nodes, because it does not see that threads of
 * one node meet in memory which each of them has mapped for itself (base/tsan.h). */
LS_TEST_SECONDS(device_moves_of_threads_keep_the_contract, 60)
{
    ls_world_run_threads("1+1", NULL, keep_contract);
}

static void lose_rank_1(ls_world *world, int rank)
{
    ls_comm_args args = ls_world_args(world, rank);
    ls_stream *stream = open_stream();
    ls_comm *comm;

    LS_CHECK_OK(ls_comm_open(&comm, &args, ls_test_soon()));
    mp_device_loses_rank_1(comm, stream, "host");
    ls_comm_close(comm);
    close_stream(stream);
}

static void kill_one_of(const char *shape, int n)
{
    ls_world world;

    ls_world_init(&world, shape, NULL);
    for (int r = 0; r < n; r++)
        ls_world_fork(&world, r, lose_rank_1);
    ls_world_forked(&world);
    for (int r = 0; r < n; r++)
        ls_world_join(&world, r, r == 1 ? SIGKILL : 0);
    ls_world_release(&world);
}

LS_TEST_SECONDS(device_moves_end_when_a_rank_is_killed, 60)
{
    kill_one_of("2", 2);
    kill_one_of("4", 4);
    kill_one_of("1+1+1", 3);
}
