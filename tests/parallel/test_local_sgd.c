/* test_local_sgd.c -- replicas agree: the weights that Nesterov's formula gives, the same bits on all,
 * also while they go on training; the bytes that are taken and sent. */
#include <math.h>
#include <sys/stat.h>
#include "base/mem.h"
#include "comm/node/ranks.h"
#include "comm/worlds.h"
#include "parallel/local_sgd.h"

enum { COUNT = 5 * LS_CODEC_BLOCK + 77, ROUNDS = 3 };

static const ls_codec_kind kinds[] = {LS_CODEC_NONE, LS_CODEC_BF16, LS_CODEC_INT8};

static ls_local_sgd_args args_of(int ranks, ls_codec_kind kind, int64_t count, bool delayed)
{
    return (ls_local_sgd_args){.ranks = ranks,
                               .count = count,
                               .codec = ls_codec_of(kind, 1),
                               .lr = 0.7,
                               .momentum = 0.9,
                               .delayed = delayed};
}

static ls_local_sgd *open_local(ls_comm *comm, ls_pool *pool, ls_local_sgd_args args)
{
    ls_local_sgd *local;

    args.comm = comm;
    args.pool = pool;
    LS_CHECK_OK(ls_local_sgd_open(&local, &args));
    return local;
}

static void meet(ls_comm *comm)
{
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_ranks_in_ms(20000)));
}

/* How far a replica walks in a round. */
static float walk(int rank, int round, int64_t i)
{
    return (float)((i * 7919 + rank * 104729 + round * 31) % 2001 - 1000) * 1e-4F;
}

/* Tokens of a replica: uneven ones. */
static double tokens_of(int rank)
{
    return 100.0 * (rank + 1);
}

/* What each step rounds away at most, as a share of the largest difference: twice, at the sender
 * and at the owner of the mean. */
static double rounding(ls_codec_kind kind)
{
    return kind == LS_CODEC_INT8 ? 2 * 0.5 / 127 : kind == LS_CODEC_BF16 ? 2.0 / 256 : 1e-5;
}

/* Everybody has the first rank's bits. */
static void check_same_part(ls_comm *comm, const float *x, int64_t n)
{
    float *first = ls_mem_array((size_t)n + 1, sizeof *first);

    LS_CHECK(first);
    memcpy(first, x, (size_t)n * sizeof *x);
    LS_CHECK_OK(ls_comm_run(
        comm,
        &(ls_coll){
            .kind = LS_COLL_BROADCAST, .type = LS_F32, .count = n, .in = first, .out = first},
        ls_ranks_in_ms(20000)));
    LS_CHECK_EQ(memcmp(first, x, (size_t)n * sizeof *x), 0);
    ls_mem_free(first);
}

/* The formula, in fp64, without packing: of this element after each round. */
static void follow(int ranks, int round, int64_t i, double *common, double *momentum)
{
    double mean = 0, all = 0;

    for (int r = 0; r < ranks; r++)
        all += tokens_of(r);
    for (int r = 0; r < ranks; r++)
        mean -= (double)walk(r, round, i) * tokens_of(r) / all;
    *momentum = 0.9 * *momentum + mean;
    *common -= 0.7 * (mean + 0.9 * *momentum);
}

static void agree(ls_comm *comm, ls_pool *pool, ls_codec_kind kind, bool delayed)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);
    ls_local_sgd *local = open_local(comm, pool, args_of(n, kind, COUNT, delayed));
    float *own = ls_mem_array(COUNT, sizeof *own), *common = ls_local_sgd_arrays_of(local).common;
    double *want = ls_mem_array(COUNT, sizeof *want), *v = ls_mem_array(COUNT, sizeof *v);

    LS_CHECK(own && want && v);
    for (int64_t i = 0; i < COUNT; i++)
        want[i] = (double)(own[i] = common[i] = (float)(i % 13) * 0.01F);
    for (int round = 0; round < ROUNDS; round++) {
        for (int64_t i = 0; i < COUNT; i++) /* what came before is kept, and not walked again */
            own[i] = common[i] + walk(me, round, i);
        LS_CHECK(!ls_local_sgd_begun(local));
        LS_CHECK_OK(ls_local_sgd_begin(local, own, tokens_of(me)));
        LS_CHECK(ls_local_sgd_begun(local));
        for (int k = 0; k < 3 && delayed; k++) {
            LS_CHECK_OK(ls_local_sgd_poll(local));
            for (int64_t i = 0; i < COUNT; i++)
                own[i] += 0.25F * (float)(me + 1);
        }
        LS_CHECK_OK(ls_local_sgd_end(local, own));
        for (int64_t i = 0; i < COUNT; i++) {
            double since = delayed ? 0.75 * (me + 1) : 0;
            follow(n, round, i, &want[i], &v[i]);
            LS_CHECK_NEAR(common[i], want[i], 0.1 * rounding(kind) * 2 * (round + 1) * (round + 1));
            LS_CHECK_NEAR((double)own[i] - since, common[i], since ? 2e-6 : 0);
        }
        check_same_part(comm, common, COUNT);
        check_same_part(comm, ls_local_sgd_arrays_of(local).momentum, COUNT);
    }
    ls_local_sgd_close(local);
    ls_mem_free(own);
    ls_mem_free(want);
    ls_mem_free(v);
    meet(comm);
}

static void agreeing(ls_world *w, ls_comm *comm)
{
    ls_pool *pool;

    (void)w;
    LS_CHECK_OK(ls_pool_create(&pool, 2));
    for (size_t k = 0; k < LS_COUNT(kinds); k++) {
        agree(comm, pool, kinds[k], false);
        agree(comm, pool, kinds[k], true);
    }
    ls_pool_free(pool);
}

LS_TEST_SECONDS(local_replicas_agree_on_nesterovs_weights, 90)
{
    static const char *const shapes[] = {"2", "3", "1+1", "2+1", "8"};

    for (size_t i = 0; i < LS_COUNT(shapes); i += (size_t)ls_test_stride(2))
        ls_world_run(shapes[i], NULL, agreeing);
}

/* Weights of replicas that stayed where they were stay; one that learned from nothing has no say.
 */
static void silent(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);
    ls_pool *pool;
    float own[3];

    (void)w;
    LS_CHECK_OK(ls_pool_create(&pool, 1));
    ls_local_sgd *local = open_local(comm, pool, args_of(n, LS_CODEC_INT8, 3, false));
    float *common = ls_local_sgd_arrays_of(local).common;
    for (int i = 0; i < 3; i++)
        own[i] = common[i] = (float)i;
    LS_CHECK_OK(ls_local_sgd_begin(local, own, 0));
    LS_CHECK_OK(ls_local_sgd_end(local, own));
    for (int i = 0; i < 3; i++)
        LS_CHECK_EQ(own[i], i);
    for (int i = 0; i < 3; i++)
        own[i] = me == 0 ? (float)i - 1 : 1e6F; /* the last one's broken walk does not count */
    LS_CHECK_OK(ls_local_sgd_begin(local, own, me == 0 ? 10 : 0));
    LS_CHECK_OK(ls_local_sgd_end(local, own));
    for (int i = 0; i < 3; i++)
        LS_CHECK_NEAR(own[i], i - 0.7 * 1.9, 0.02);
    ls_local_sgd_close(local);
    ls_pool_free(pool);
    meet(comm);
}

LS_TEST(local_weighs_replicas_by_their_tokens)
{
    ls_world_run("2", NULL, silent);
    ls_world_run("1+1", NULL, silent);
}

/* --- bytes -------------------------------------------------------------------------------------
 */

static int64_t there(const ls_world *w)
{
    struct stat st;

    LS_CHECK_EQ(fstat(w->segment_fd[0], &st), 0);
    return (int64_t)st.st_blocks * 512;
}

/* A communicator of its own needs something too: what it takes without large buffers is known from
 * a tiny exchange. */
static int64_t taken(ls_world *w, ls_comm *comm, ls_pool *pool, const ls_local_sgd_args *args)
{
    int64_t before = there(w), bytes;

    meet(comm);
    ls_local_sgd *local = open_local(comm, pool, *args);
    meet(comm);
    bytes = there(w) - before;
    meet(comm);
    ls_local_sgd_close(local);
    meet(comm);
    return bytes;
}

static void counted(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm);
    ls_pool *pool;

    LS_CHECK_OK(ls_pool_create(&pool, 1));
    for (int i = 0; i < 3; i++)
        meet(comm);
    for (int delayed = 0; delayed < 2; delayed++)
        for (size_t k = 0; k < LS_COUNT(kinds); k++) {
            ls_local_sgd_args small = args_of(n, kinds[k], 1, delayed);
            ls_local_sgd_args large = args_of(n, kinds[k], 40 * LS_CODEC_BLOCK, delayed);
            taken(w, comm, pool, &small); /* what the first one needs for ever is there */
            int64_t more = taken(w, comm, pool, &large) - taken(w, comm, pool, &small);
            LS_CHECK_EQ(more, n * (ls_local_sgd_bytes(&large) - ls_local_sgd_bytes(&small)));
        }
    ls_pool_free(pool);
}

LS_TEST(local_takes_the_bytes_that_it_says)
{
    ls_world_run("2", NULL, counted);
    ls_world_run("3", NULL, counted);
}

static int64_t sent_by(ls_comm *comm)
{
    int64_t sent, received;

    meet(comm);
    ls_comm_traffic(comm, &sent, &received);
    return sent;
}

static void traffic(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm);
    int64_t count = 100 * LS_CODEC_BLOCK;
    float *own = ls_mem_array((size_t)count, sizeof *own);
    ls_pool *pool;

    (void)w;
    LS_CHECK(own);
    LS_CHECK_OK(ls_pool_create(&pool, 1));
    for (size_t k = 0; k < LS_COUNT(kinds); k++) {
        ls_local_sgd_args args = args_of(n, kinds[k], count, false);
        ls_local_sgd *local = open_local(comm, pool, args);
        int64_t before = sent_by(comm), want = ls_local_sgd_sends(&args);
        LS_CHECK_OK(ls_local_sgd_begin(local, own, 1));
        LS_CHECK_OK(ls_local_sgd_end(local, own));
        int64_t sent = sent_by(comm) - before;
        LS_CHECK(sent >= want);
        LS_CHECK_NEAR(sent, want, (double)want * 0.02 + 8192);
        ls_local_sgd_close(local);
    }
    /* int8: a quarter of fp32, and 1/64 for scales. */
    ls_local_sgd_args fp32 = args_of(n, LS_CODEC_NONE, count, false);
    ls_local_sgd_args int8 = args_of(n, LS_CODEC_INT8, count, false);
    LS_CHECK((double)ls_local_sgd_sends(&fp32) / (double)ls_local_sgd_sends(&int8) > 3.9);
    ls_pool_free(pool);
    ls_mem_free(own);
}

LS_TEST_SECONDS(local_sends_the_bytes_that_it_says, 60)
{
    ls_world_run("1+1", NULL, traffic);
    ls_world_run("1+1+1", NULL, traffic);
}
