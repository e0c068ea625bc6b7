/* test_shm.c -- messages between ranks of a node, as a transport promises them. */
#include "comm/transport/shm.h"

#include <pthread.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/node/ranks.h"

static void wait_for(ls_transport *c, ls_message *m, int n)
{
    int64_t deadline = ls_test_soon();

    for (int done = 0; done < n;) {
        bool moved;
        LS_CHECK_OK(c->table->poll(c, &moved));
        for (done = 0; done < n && m[done].done;)
            done++;
        if (!moved && done < n)
            c->table->sleep(c, ls_ranks_in_ms(50));
        LS_CHECK(ls_time_now_ns() < deadline);
    }
}

static unsigned char byte_of(int from, int to, int k, int64_t i)
{
    return (unsigned char)((from * 3 + to * 5 + k * 7 + i) % 101);
}

static const int64_t sizes[] = {0, 1, 447, 448, 449, 4096, 300001, 1048579};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Every rank sends to every rank, all sizes at once; receives are posted in the opposite order. */
static void all_pairs(ls_ranks *r)
{
    ls_message out[8 * SIZES], in[8 * SIZES];
    bool shared = r->context != NULL;
    int64_t sent, received, payload = 0;
    ls_transport *c;
    int n = 0;

    LS_CHECK_OK(ls_shm_open(&c, &r->group));
    LS_CHECK_STR(c->table->name, "shm");
    for (int p = 0; p < r->ranks; p++)
        for (int k = 0; k < SIZES && p != r->me; k++) {
            unsigned char *data = ls_ranks_alloc(r, shared, sizes[k] + 1);
            for (int64_t i = 0; i < sizes[k]; i++)
                data[i] = byte_of(r->me, p, k, i);
            out[n++] = (ls_message){.peer = p, .tag = (uint64_t)k, .data = data, .bytes = sizes[k]};
            LS_CHECK_OK(c->table->send(c, &out[n - 1]));
        }
    if (r->me % 2) /* whichever comes first */
        usleep(20000);
    for (int i = 0; i < n; i++) {
        in[i] = out[n - 1 - i];
        in[i].data = ls_ranks_alloc(r, shared, in[i].bytes + 1);
        ((char *)in[i].data)[in[i].bytes] = 0x5a;
        LS_CHECK_OK(c->table->receive(c, &in[i]));
    }
    wait_for(c, in, n);
    wait_for(c, out, n);
    for (int i = 0; i < n; i++) {
        unsigned char *data = in[i].data;
        for (int64_t k = 0; k < in[i].bytes; k++)
            LS_CHECK_EQ(data[k], byte_of(in[i].peer, r->me, (int)in[i].tag, k));
        LS_CHECK_EQ(data[in[i].bytes], 0x5a);
        ls_ranks_free(r, shared, data);
        ls_ranks_free(r, shared, out[i].data);
    }
    for (int k = 0; k < SIZES; k++)
        payload += sizes[k];
    c->table->count(c, r->me ? 0 : 1, &sent, &received);
    LS_CHECK(sent >= payload && sent < payload + 4096);
    LS_CHECK(received >= payload && received < payload + 4096);
    c->table->close(c);
    LS_CHECK(!ls_shm_segment_aborted(r->segment));
}

LS_TEST(shm_carries_all_sizes_between_all_pairs)
{
    int yes;

    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .no_direct = true}, all_pairs);
    ls_ranks_run(&(ls_ranks_args){.ranks = 5, .no_direct = true, .context = &yes}, all_pairs);
    ls_ranks_run(&(ls_ranks_args){.ranks = 3, .no_direct = true, .no_reads = true}, all_pairs);
    ls_ranks_run(&(ls_ranks_args){.ranks = 3, .no_direct = true, .threads = true}, all_pairs);
}

/* Far more messages than a ring holds, received last one first. */
static void flood(ls_ranks *r)
{
    enum { MANY = 500 };
    static const int64_t bytes = 1000;
    ls_message *m = ls_mem_array(MANY, sizeof *m);
    char *data = ls_mem_alloc(MANY * (size_t)bytes);
    ls_transport *c;

    LS_CHECK(m && data);
    LS_CHECK_OK(ls_shm_open(&c, &r->group));
    for (int i = 0; i < MANY; i++) {
        int tag = r->me ? MANY - 1 - i : i;
        int64_t len = tag % 2 ? bytes : 100;
        m[i] = (ls_message){
            .peer = !r->me, .tag = (uint64_t)tag, .data = data + tag * bytes, .bytes = len};
        if (r->me == 0)
            memset(m[i].data, tag % 120, (size_t)len);
        LS_CHECK_OK(r->me ? c->table->receive(c, &m[i]) : c->table->send(c, &m[i]));
    }
    wait_for(c, m, MANY);
    for (int i = 0; r->me && i < MANY; i++)
        LS_CHECK_EQ(((char *)m[i].data)[m[i].bytes - 1], m[i].tag % 120);
    c->table->close(c);
    ls_mem_free(data);
    ls_mem_free(m);
}

LS_TEST(shm_takes_more_messages_than_a_ring_holds)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .no_direct = true}, flood);
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .no_direct = true, .threads = true}, flood);
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .no_direct = true, .no_reads = true}, flood);
}

static void adds(ls_ranks *r)
{
    static const int64_t counts[] = {10, 5000, 200003};
    bool shared = r->context != NULL;
    ls_transport *c;

    LS_CHECK_OK(ls_shm_open(&c, &r->group));
    for (size_t k = 0; k < LS_COUNT(counts); k++) {
        float *x = ls_ranks_alloc(r, shared, counts[k] * 4);
        for (int64_t i = 0; i < counts[k]; i++)
            x[i] = (float)(i % 1000 + r->me * 3);
        ls_message m = {.peer = !r->me,
                        .tag = k,
                        .data = x,
                        .bytes = counts[k] * 4,
                        .add = r->me == 1,
                        .op = LS_COMBINE_SUM,
                        .type = LS_F32};
        LS_CHECK_OK(r->me ? c->table->receive(c, &m) : c->table->send(c, &m));
        wait_for(c, &m, 1);
        for (int64_t i = 0; r->me && i < counts[k]; i++)
            LS_CHECK_EQ(x[i], 2 * (i % 1000) + 3);
        ls_ranks_free(r, shared, x);
    }
    c->table->close(c);
}

LS_TEST(shm_adds_what_arrives)
{
    int yes;

    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .no_direct = true}, adds);
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .no_direct = true, .context = &yes}, adds);
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .no_direct = true, .no_reads = true}, adds);
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .no_direct = true, .threads = true}, adds);
}

static void lengths_differ(ls_ranks *r)
{
    char x[1000] = {0};
    ls_message m = {.peer = !r->me, .tag = 1, .data = x, .bytes = 900 + r->me};
    ls_status st = LS_OK;
    ls_transport *c;
    bool moved;

    LS_CHECK_OK(ls_shm_open(&c, &r->group));
    LS_CHECK_OK(r->me ? c->table->receive(c, &m) : c->table->send(c, &m));
    while (st == LS_OK)
        st = c->table->poll(c, &moved);
    LS_CHECK_FAILS(st, r->me ? LS_EDATA : LS_EPEER, "sends 900 bytes where rank 11 (pid");
    LS_CHECK_FAILS(c->table->poll(c, &moved), r->me ? LS_EDATA : LS_EPEER, "expects 901");
    c->table->close(c);
}

LS_TEST(shm_finds_lengths_that_differ)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .no_direct = true}, lengths_differ);
}

static void *wake_soon(void *arg)
{
    ls_transport *c = arg;

    usleep(30000);
    c->table->wake(c);
    return NULL;
}

static void sleeps_and_closes(ls_ranks *r)
{
    int64_t start = ls_time_now_ns();
    char x[1000] = {0};
    ls_message m = {.peer = !r->me, .tag = 1, .data = x, .bytes = sizeof x};
    ls_status st = LS_OK;
    pthread_t thread;
    ls_transport *c;
    bool moved;

    LS_CHECK_OK(ls_shm_open(&c, &r->group));
    LS_CHECK_EQ(pthread_create(&thread, NULL, wake_soon, c), 0);
    c->table->sleep(c, ls_test_soon());
    LS_CHECK_WITHIN(start, 10000);
    pthread_join(thread, NULL);
    start = ls_time_now_ns();
    c->table->sleep(c, ls_ranks_in_ms(20)); /* ends by itself */
    LS_CHECK_WITHIN(start, 10000);
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_test_soon()));
    if (r->me) { /* closing with a message in flight is a failure of the others */
        LS_CHECK_OK(c->table->receive(c, &m));
        c->table->close(c);
        return;
    }
    while (st == LS_OK)
        st = c->table->poll(c, &moved);
    LS_CHECK_FAILS(st, LS_EPEER, "closed its communicator with messages in flight");
    c->table->close(c);
}

LS_TEST(shm_sleeps_wakes_and_closes)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 2}, sleeps_and_closes);
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .threads = true}, sleeps_and_closes);
}

static void no_memory(ls_ranks *r)
{
    char x[1000] = {0};
    ls_message m = {.peer = 1, .tag = 1, .data = x, .bytes = sizeof x};
    ls_transport *c;

    LS_CHECK_OK(ls_shm_coll_run(r->direct, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_test_soon()));
    if (r->me)
        return;
    for (int n = 1; n <= 2; n++) {
        ls_mem_fail_nth((uint64_t)n);
        LS_CHECK_EQ(ls_shm_open(&c, &r->group), LS_ENOMEM);
        ls_mem_fail_nth(0);
    }
    LS_CHECK_OK(ls_shm_open(&c, &r->group));
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(c->table->receive(c, &m), LS_ENOMEM);
    ls_mem_fail_nth(0);
    LS_CHECK_EQ(c->table->send(c, &m), LS_ENOMEM); /* broken for good */
    c->table->close(c);
}

LS_TEST(shm_without_memory_fails_for_good)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 2}, no_memory);
}
