/* test_exec.c -- schedules as messages, over a transport that delivers in any order and may
 * fail. */
#include "base/mem.h"
#include "base/rng.h"
#include "comm/algo/algo.h"
#include "comm/coll_case.h"
#include "comm/exec.h"
#include "harness.h"

/* --- a transport in one thread ------------------------------------------------------------------
 *
 * All ranks live in one thread. A send and its receive meet at some poll, in an order that a seed
 * decides; either may have been posted first. */

enum { RANKS = 7, POSTS = 4096 };

typedef struct post {
    int from, to;
    ls_message *message;
    bool send;
} post;

typedef struct network {
    post posts[POSTS];
    int count, sends;
    int fails_at; /* the send that fails; 0: none */
    uint32_t turn, seed;
} network;

typedef struct endpoint { /* of one rank */
    ls_transport base;
    network *network;
    int rank;
} endpoint;

static ls_status post_message(endpoint *d, ls_message *m, bool send)
{
    network *o = d->network;

    LS_CHECK(o->count < POSTS);
    m->done = false;
    o->sends += send;
    if (send && o->sends == o->fails_at)
        return ls_fail(LS_EPEER, "the network is down");
    o->posts[o->count++] =
        send ? (post){d->rank, m->peer, m, true} : (post){m->peer, d->rank, m, false};
    return LS_OK;
}

static ls_status network_send(ls_transport *transport, ls_message *m)
{
    return post_message((endpoint *)transport, m, true);
}

static ls_status network_receive(ls_transport *transport, ls_message *m)
{
    return post_message((endpoint *)transport, m, false);
}

static const ls_transport_table network_table = {
    .name = "network", .send = network_send, .receive = network_receive};

static void deliver(const ls_message *from, ls_message *to)
{
    const void *sources[2] = {to->data, from->data};
    int64_t count = to->bytes / ls_dtype_bytes(to->type);

    LS_CHECK_EQ(from->bytes, to->bytes);
    if (to->add)
        ls_combine_run(&(ls_combine){.type = to->type,
                                     .op = to->op,
                                     .from = sources,
                                     .sources = 2,
                                     .to = &to->data,
                                     .targets = 1,
                                     .scale = 1},
                       count);
    else if (to->bytes)
        memcpy(to->data, from->data, (size_t)to->bytes);
}

static bool meet(const post *a, const post *b)
{
    return a->send && !b->send && a->from == b->from && a->to == b->to &&
           a->message->tag == b->message->tag;
}

/* Deliver one message that can be delivered, chosen by chance; false: there is none. */
static bool deliver_one(network *o)
{
    ls_rng_block b = ls_rng_philox((ls_rng_key){{o->seed, 1}}, o->turn++, 0, 0, 0);

    for (int k = 0; k < o->count; k++) {
        int i = (int)((b.v[0] + (uint32_t)k) % (uint32_t)o->count);
        for (int j = 0; j < o->count; j++) {
            if (!meet(&o->posts[i], &o->posts[j]))
                continue;
            deliver(o->posts[i].message, o->posts[j].message);
            o->posts[i].message->done = o->posts[j].message->done = true;
            int high = i > j ? i : j, low = i > j ? j : i;
            o->posts[high] = o->posts[--o->count];
            o->posts[low] = o->posts[--o->count];
            return true;
        }
    }
    return false;
}

/* --- ranks -------------------------------------------------------------------------------------
 */

typedef struct ring {
    network network;
    endpoint endpoints[RANKS];
    ls_exec execs[RANKS];
    ls_sched scheds[RANKS];
    ls_coll colls[RANKS];
    void *in[RANKS], *out[RANKS];
} ring;

static int peers[RANKS] = {0, 1, 2, 3, 4, 5, 6};

static ring *new_ring(uint32_t seed)
{
    ring *g = ls_mem_alloc(sizeof *g);

    LS_CHECK(g);
    g->network.seed = seed;
    for (int r = 0; r < RANKS; r++)
        g->endpoints[r] = (endpoint){{&network_table}, &g->network, r};
    return g;
}

static void free_ring(ring *g)
{
    for (int r = 0; r < RANKS; r++) {
        ls_exec_release(&g->execs[r]);
        ls_exec_release(&g->execs[r]); /* twice is safe */
        ls_sched_release(&g->scheds[r]);
    }
    ls_mem_free(g);
}

static void plan(ring *g, const ls_algo *algo, const ls_call *c, int n, int64_t chunk)
{
    for (int r = 0; r < n; r++) {
        size_t bytes = (size_t)ls_call_bytes(c, n, r);
        g->in[r] = ls_mem_alloc(bytes);
        g->out[r] = c->in_place ? g->in[r] : ls_mem_alloc(bytes);
        LS_CHECK(g->in[r] && g->out[r]);
        g->colls[r] = ls_call_fill(c, n, r, g->in[r], g->out[r]);
        ls_sched_release(&g->scheds[r]);
        LS_CHECK_OK(ls_sched_build(&g->scheds[r], &(ls_sched_args){.algo = algo,
                                                                   .kind = c->kind,
                                                                   .ranks = n,
                                                                   .rank = r,
                                                                   .peer = c->root,
                                                                   .count = c->count,
                                                                   .chunk = chunk,
                                                                   .in_place = c->in_place}));
    }
}

static void forget(ring *g, const ls_call *c, int n)
{
    for (int r = 0; r < n; r++) {
        if (!c->in_place)
            ls_mem_free(g->out[r]);
        ls_mem_free(g->in[r]);
    }
}

static ls_status begin(ring *g, int r, int n, const char *algo)
{
    return ls_exec_begin(&g->execs[r],
                         &(ls_exec_args){.transport = &g->endpoints[r].base,
                                         .peers = peers,
                                         .coll = &g->colls[r],
                                         .sched = &g->scheds[r],
                                         .ranks = n,
                                         .rank = r,
                                         .tag = (uint64_t)3 << LS_EXEC_TAG_BITS},
                         algo);
}

/* Until all are done, or one fails: its status. */
static ls_status move(ring *g, int n)
{
    for (;;) {
        int ended = 0;
        for (int r = 0; r < n; r++) {
            bool done = false;
            ls_status st = ls_exec_poll(&g->execs[r], &done);
            if (st != LS_OK)
                return st;
            ended += done;
        }
        if (ended == n)
            return LS_OK;
        if (!deliver_one(&g->network))
            return ls_fail(LS_EDEADLINE, "%d of %d are done and nothing is under way", ended, n);
    }
}

static void run_call(ring *g, const ls_algo *algo, const ls_call *c, int n, int64_t chunk)
{
    plan(g, algo, c, n, chunk);
    for (int r = 0; r < n; r++)
        LS_CHECK_OK(begin(g, r, n, algo->name));
    if (move(g, n) != LS_OK)
        ls_test_fail(__FILE__, __LINE__, "%s by %s, %lld elements, %d ranks: %s",
                     ls_coll_kind_name(c->kind), algo->name, (long long)c->count, n,
                     ls_err_last()->text);
    LS_CHECK_EQ(g->network.count, 0); /* nobody said more than was heard */
    for (int r = 0; r < n; r++)
        ls_call_check(c, n, r, g->out[r]);
    forget(g, c, n);
}

LS_TEST(exec_runs_every_algorithm_in_any_order_of_delivery)
{
    static const int64_t counts[] = {0, 1, 17, 1000};
    uint32_t seed = 0;

    for (int a = 0; a < ls_algos_count; a++)
        for (int kind = 0; kind <= LS_COLL_GATHER; kind++)
            for (int n = 1; n <= RANKS && ls_algo_does(ls_algos[a], (ls_coll_kind)kind);
                 n += n < 4 ? 1 : 3)
                for (size_t i = 0; i < 2 * LS_COUNT(counts); i++) {
                    ring *g = new_ring(++seed);
                    ls_call c = {.kind = (ls_coll_kind)kind,
                                 .op = (ls_coll_op)(seed % 4),
                                 .type = seed % 2 || seed % 4 == 3 ? LS_F32 : LS_I64,
                                 .count = counts[i / 2],
                                 .in_place = i & 1,
                                 .root = (int)seed % n};
                    if (c.op == LS_COLL_MEAN)
                        c.type = LS_F32;
                    run_call(g, ls_algos[a], &c, n, ls_algos[a]->cuts && i % 3 ? 48 : 0);
                    free_ring(g);
                }
}

LS_TEST(exec_ends_a_barrier_when_all_have_come)
{
    const ls_algo *algo = ls_algo_find("dissemination");
    ls_call c = {.kind = LS_COLL_BARRIER};
    ring *g = new_ring(1);

    for (int r = 0; r < 5; r++) {
        g->colls[r] = (ls_coll){.kind = LS_COLL_BARRIER};
        LS_CHECK_OK(ls_sched_build(
            &g->scheds[r], &(ls_sched_args){.algo = algo, .kind = c.kind, .ranks = 5, .rank = r}));
    }
    for (int r = 0; r < 4; r++)
        LS_CHECK_OK(begin(g, r, 5, algo->name));
    for (;;) { /* rank 4 has not come: nobody gets out */
        for (int r = 0; r < 4; r++) {
            bool done = true;
            LS_CHECK_OK(ls_exec_poll(&g->execs[r], &done));
            LS_CHECK(!done);
        }
        if (!deliver_one(&g->network))
            break;
    }
    LS_CHECK_OK(begin(g, 4, 5, algo->name));
    LS_CHECK_OK(move(g, 5));
    free_ring(g);
}

LS_TEST(exec_takes_its_memory_once)
{
    const ls_algo *algo = ls_algo_find("ring");
    ls_call c = {.kind = LS_COLL_ALL_REDUCE, .count = 999};
    ring *g = new_ring(5);

    plan(g, algo, &c, 4, 32);
    for (int k = 0; k < 3; k++) {
        uint64_t before = ls_mem_calls();
        for (int r = 0; r < 4; r++)
            LS_CHECK_OK(begin(g, r, 4, algo->name));
        LS_CHECK_OK(move(g, 4));
        LS_CHECK(k == 0 || ls_mem_calls() == before);
    }
    forget(g, &c, 4);
    free_ring(g);
}

LS_TEST(exec_without_memory_can_begin_again)
{
    const ls_algo *algo = ls_algo_find("pairwise");
    ls_call c = {.kind = LS_COLL_ALL_REDUCE, .count = 100};
    ring *g = new_ring(5);

    plan(g, algo, &c, 3, 16);
    for (uint64_t n = 1; n <= 2; n++) { /* states, and what is kept aside */
        ls_mem_fail_nth(n);
        LS_CHECK_FAILS(begin(g, 0, 3, algo->name), LS_ENOMEM, "");
        ls_mem_fail_nth(0);
        LS_CHECK_EQ(g->network.count, 0);
    }
    for (int r = 0; r < 3; r++)
        LS_CHECK_OK(begin(g, r, 3, algo->name));
    LS_CHECK_OK(move(g, 3));
    for (int r = 0; r < 3; r++)
        ls_call_check(&c, 3, r, g->out[r]);
    forget(g, &c, 3);
    free_ring(g);
}

LS_TEST(exec_passes_the_failure_of_a_transport_on)
{
    const ls_algo *algo = ls_algo_find("ring");
    ls_call c = {.kind = LS_COLL_ALL_REDUCE, .count = 100};

    for (int at = 1;; at++) {
        ring *g = new_ring((uint32_t)at);
        ls_status st = LS_OK;
        g->network.fails_at = at;
        plan(g, algo, &c, 3, 16);
        for (int r = 0; st == LS_OK && r < 3; r++)
            st = begin(g, r, 3, algo->name);
        if (st == LS_OK)
            st = move(g, 3);
        bool reached = g->network.sends >= at;
        if (reached)
            LS_CHECK_FAILS(st, LS_EPEER, "network is down");
        forget(g, &c, 3);
        free_ring(g);
        if (!reached) {
            LS_CHECK_OK(st);
            LS_CHECK(at > 10);
            break;
        }
    }
}

/* --- what ranks agree on ------------------------------------------------------------------------
 */

static void differ(ls_coll other, const char *algo, ls_status want, const char *text)
{
    const ls_algo *ring_algo = ls_algo_find("ring");
    ls_call c = {.kind = LS_COLL_ALL_REDUCE, .count = 64};
    ring *g = new_ring(3);
    ls_status st = LS_OK;

    plan(g, ring_algo, &c, 3, 0);
    other.in = g->in[1];
    other.out = g->out[1];
    g->colls[1] = other;
    for (int r = 0; r < 3; r++)
        LS_CHECK_OK(begin(g, r, 3, r == 1 ? algo : "ring"));
    st = move(g, 3);
    if (want == LS_OK)
        LS_CHECK_OK(st);
    else
        LS_CHECK_FAILS(st, want, text);
    forget(g, &c, 3);
    free_ring(g);
}

LS_TEST(exec_compares_what_ranks_ask_for)
{
    differ((ls_coll){.count = 64}, "ring", LS_OK, "");
    differ((ls_coll){.count = 64, .peer = 2}, "ring", LS_OK, ""); /* there is no root */
    differ((ls_coll){.count = 65}, "ring", LS_EUSAGE, "sum of 65 f32, ring");
    differ((ls_coll){.count = 64, .op = LS_COLL_MAX}, "ring", LS_EUSAGE, "max of 64 f32");
    differ((ls_coll){.count = 64, .type = LS_I32}, "ring", LS_EUSAGE, "sum of 64 i32");
    differ((ls_coll){.count = 64}, "tree", LS_EUSAGE, "sum of 64 f32, tree");
    differ((ls_coll){.kind = LS_COLL_REDUCE_SCATTER, .count = 64}, "ring", LS_EUSAGE,
           "reduce_scatter (sum of 64 f32");
    differ((ls_coll){.kind = LS_COLL_BROADCAST, .count = 64, .peer = 2}, "ring", LS_EUSAGE,
           "broadcast (64 f32, root 2");
}

LS_TEST(exec_explains_lengths_that_differ)
{
    ls_exec_fingerprint oath = {.checked = false};
    ls_coll coll = {.count = 5};
    ring *g = new_ring(1);
    ls_exec_args args = {
        .transport = &g->endpoints[0].base, .peers = peers, .coll = &coll, .ranks = 2};
    bool done = true;

    LS_CHECK_OK(ls_exec_fingerprint_begin(&oath, &args, "levels"));
    LS_CHECK_OK(ls_exec_explain(&oath)); /* nothing has been heard */
    LS_CHECK_OK(ls_exec_fingerprint_poll(&oath, &done));
    LS_CHECK(!done);
    oath.theirs = oath.mine;
    oath.theirs.rank = 1;
    oath.theirs.count = 6;
    memset(oath.theirs.algo, 'x',
           sizeof oath.theirs.algo); /* without an end, as no rank sends it */
    oath.heard.done = true;
    LS_CHECK_FAILS(ls_exec_explain(&oath), LS_EUSAGE,
                   "rank 0 for all_reduce (sum of 5 f32, levels)");
    LS_CHECK_FAILS(ls_exec_fingerprint_poll(&oath, &done), LS_EUSAGE,
                   "rank 1 for all_reduce (sum of 6");
    oath.theirs = oath.mine;
    LS_CHECK_OK(ls_exec_fingerprint_poll(&oath, &done));
    LS_CHECK(!done);
    oath.said.done = true;
    LS_CHECK_OK(ls_exec_fingerprint_poll(&oath, &done));
    LS_CHECK(done);
    free_ring(g);
}
