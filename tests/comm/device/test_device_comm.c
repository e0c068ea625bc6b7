/* test_device_comm.c -- device communicators through the host, and how a provider is chosen. */
#include "comm/device/device_contract.h"
#include "comm/node/ranks.h"
#include "comm/worlds.h"

#include "comm/device/cuda/nccl_library.h"

static ls_device *open_cpu(void)
{
    ls_device *device;

    LS_CHECK_OK(ls_device_open(&device, "cpu", 1));
    return device;
}

static void keep_contract(ls_world *world, ls_comm *comm)
{
    ls_device *device = open_cpu();

    (void)world;
    ls_device_contract(comm, device, "host");
    ls_device_close(device);
}

LS_TEST(device_collectives_through_the_host_have_the_right_numbers)
{
    static const char *const shapes[] = {"1", "2", "3", "1+1", "2+1"};

    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        ls_world_run(shapes[i], NULL, keep_contract);
}

/* auto goes to the host where the device is no GPU; nccl is refused with that reason, on all ranks. */
static void choose(ls_world *world, ls_comm *comm)
{
    ls_device *device = open_cpu();
    ls_device_comm_choice choice;

    (void)world;
    LS_CHECK_OK(ls_device_comm_choose(comm, device, "auto", ls_test_soon(), &choice));
    LS_CHECK_STR(choice.provider, "host");
    LS_CHECK(strstr(choice.why, "rank 0 on \"") && strstr(choice.why, "it needs an NVIDIA GPU"));
    LS_CHECK(choice.shared_cards); /* the same machine, no card */
    LS_CHECK_FAILS(ls_device_comm_choose(comm, device, "nccl", ls_test_soon(), &choice), LS_EUSAGE,
                   "exchange.device cannot be nccl: rank 0 on");
    LS_CHECK_OK(ls_device_comm_choose(comm, device, "host", ls_test_soon(), &choice));
    LS_CHECK_STR(choice.why, "as asked for");
    ls_device_close(device);
}

LS_TEST(a_provider_is_chosen_with_a_reason)
{
    ls_world_run("2", NULL, choose);
}

/* A rank that is gone: the others' call fails with its name. */
static void lose_one(ls_world *world, ls_comm *comm)
{
    ls_device *device = open_cpu();
    ls_stream *stream;
    ls_device_comm *dc;
    float x[64] = {0};
    const ls_coll coll = {
        .kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = 64, .in = x, .out = x};

    (void)world;
    LS_CHECK_OK(ls_stream_create(&stream, device));
    LS_CHECK_OK(ls_device_comm_open(
        &dc,
        &(ls_device_comm_args){.comm = comm, .device = device, .provider = "host", .axis = "dp"},
        ls_test_soon()));
    /* A sum first: when rank 1 has it, all ranks have opened. Another one may lose rank 1 in it already. */
    ls_status st = ls_device_comm_queue(dc, stream, &coll);
    if (ls_comm_rank(comm) == 1) {
        LS_CHECK_OK(st);
        ls_comm_abort(comm, "it has had enough");
    }
    LS_CHECK_FAILS(ls_device_comm_queue(dc, stream, &coll), LS_EPEER, "it has had enough");
    LS_CHECK_FAILS(ls_device_comm_check(dc), LS_EPEER, "it has had enough");
    ls_device_comm_close(dc);
    ls_stream_free(stream);
    ls_device_close(device);
}

LS_TEST(a_lost_rank_ends_a_device_collective)
{
    ls_world_run("3", NULL, lose_one);
}

LS_TEST(nccl_is_found_or_a_reason_is)
{
    char why[160] = "";
    const ls_nccl *n = ls_nccl_find(why);

    if (n) {
        LS_CHECK(n->version >= LS_NCCL_LEAST);
        LS_CHECK(n == ls_nccl_find(why)); /* once */
        LS_CHECK(n->error_text(LS_NCCL_IN_PROGRESS)[0]);
    } else {
        LS_CHECK(why[0]);
    }
}

LS_TEST(a_wrong_nccl_is_named)
{
    char why[160] = "";

    LS_CHECK_EQ(setenv("LINESHAFT_NCCL", "/nowhere/libnccl.so.2", 1), 0);
    LS_CHECK(!ls_nccl_find(why));
    LS_CHECK_STR(why, "cannot open \"/nowhere/libnccl.so.2\", which LINESHAFT_NCCL names");
    LS_CHECK_EQ(setenv("LINESHAFT_NCCL", "libm.so.6", 1), 0);
    LS_CHECK(!ls_nccl_find(why));
    LS_CHECK_STR(why, "\"libnccl.so.2\" lacks ncclGetVersion");
}
