/* test_wrap.c -- plans are read exactly, and what they say is what happens. */
#include "harness.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/transport/tcp_world.h"
#include "comm/transport/wrap.h"

/* A transport to itself: a send is delivered to the receive of its tag in the same process. */
typedef struct mirror {
    ls_transport transport;
    ls_message *sends, *receives;
    bool closed;
} mirror;

static ls_status mirror_send(ls_transport *transport, ls_message *message)
{
    mirror *m = (mirror *)transport;

    message->done = false;
    message->next_ = m->sends;
    m->sends = message;
    return LS_OK;
}

static ls_status mirror_receive(ls_transport *transport, ls_message *message)
{
    mirror *m = (mirror *)transport;

    message->done = false;
    message->next_ = m->receives;
    m->receives = message;
    return LS_OK;
}

/* Done messages leave: they belong to the caller again. */
static void drop_done(ls_message **at)
{
    while (*at)
        if ((*at)->done)
            *at = (*at)->next_;
        else
            at = &(*at)->next_;
}

static ls_status mirror_poll(ls_transport *transport, bool *moved_out)
{
    mirror *m = (mirror *)transport;

    *moved_out = false;
    for (ls_message *s = m->sends; s; s = s->next_)
        for (ls_message *r = m->receives; r; r = r->next_)
            if (s->tag == r->tag && !s->done && !r->done) {
                if (s->bytes)
                    memcpy(r->data, s->data, (size_t)s->bytes);
                s->done = r->done = *moved_out = true;
            }
    drop_done(&m->sends);
    drop_done(&m->receives);
    return LS_OK;
}

static void mirror_sleep(ls_transport *transport, int64_t until_ns)
{
    (void)transport;
    int64_t left = until_ns - ls_time_now_ns();
    usleep(left > LS_NS_PER_MS ? 1000 : left > 0 ? (unsigned)(left / 1000) + 1 : 0);
}

static void mirror_wake(ls_transport *transport)
{
    (void)transport;
}

static void mirror_count(const ls_transport *transport, int peer, int64_t *sent_out,
                         int64_t *received_out)
{
    (void)transport;
    *sent_out = *received_out = peer;
}

static void mirror_close(ls_transport *transport)
{
    ((mirror *)transport)->closed = true;
}

static const ls_transport_table mirror_table = {.name = "mirror",
                                                .send = mirror_send,
                                                .receive = mirror_receive,
                                                .poll = mirror_poll,
                                                .sleep = mirror_sleep,
                                                .wake = mirror_wake,
                                                .count = mirror_count,
                                                .close = mirror_close};

LS_TEST(wrap_reads_plans_exactly)
{
    static const char *const good[] = {"",
                                       "delay=5ms",
                                       "delay=0.5us,drop=0,corrupt=1",
                                       "kill@120",
                                       "drop@1,drop@2,corrupt@9,stop@3,seed=7",
                                       "delay=1s",
                                       "delay=10ns",
                                       "drop=0.01,corrupt=0.001,kill@120"};
    static const char *const bad[] = {",",         "delay",      "delay=",    "delay=5",
                                      "delay=-1s", "delay=5min", "drop=1.1",  "drop=-0.1",
                                      "drop=nan",  "drop=x",     "drop=0.1x", "kill@0",
                                      "kill@",     "kill@-1",    "kill@1x",   "kill=3",
                                      "drop@",     "jump@3",     "drop=0.1,", "drop=0.1,,kill@3",
                                      "seed=",     "seed=-1",    "seed=1x",   "delay=1e30s"};
    mirror m = {.transport = {&mirror_table}};
    ls_transport *transport;
    char longer[400] = "drop@1";

    for (size_t i = 0; i < LS_COUNT(good); i++) {
        LS_CHECK_OK(ls_wrap_open(&transport, &m.transport, good[i], 1));
        LS_CHECK_STR(transport->table->name, "wrap");
        m.closed = false;
        transport->table->close(transport);
        LS_CHECK(m.closed);
    }
    m.closed = false;
    for (size_t i = 0; i < LS_COUNT(bad); i++)
        LS_CHECK_FAILS(ls_wrap_open(&transport, &m.transport, bad[i], 1), LS_EUSAGE,
                       "cannot be read");
    for (int i = 0; i < 20; i++) /* more than there is room for */
        memcpy(longer + 6 + 7 * i, ",drop@2", 8);
    LS_CHECK_FAILS(ls_wrap_open(&transport, &m.transport, longer, 1), LS_EUSAGE, "cannot be read");
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_wrap_open(&transport, &m.transport, "", 1), LS_ENOMEM);
    LS_CHECK(!m.closed);
}

/* Send count messages of 100 bytes; what[i]: 0 arrived, 1 changed, 2 lost. */
static void try_plan(const char *plan, int count, uint8_t *what)
{
    mirror m = {.transport = {&mirror_table}};
    ls_message sends[64], receives[64];
    uint8_t out[64][100], in[64][100];
    ls_transport *transport;
    bool moved;

    LS_CHECK_OK(ls_wrap_open(&transport, &m.transport, plan, 5));
    for (int i = 0; i < count; i++) {
        memset(out[i], i, sizeof out[i]);
        memset(in[i], 0xee, sizeof in[i]);
        sends[i] = (ls_message){.tag = (uint64_t)i, .data = out[i], .bytes = 100};
        receives[i] = (ls_message){.tag = (uint64_t)i, .data = in[i], .bytes = 100};
        LS_CHECK_OK(transport->table->receive(transport, &receives[i]));
        LS_CHECK_OK(transport->table->send(transport, &sends[i]));
    }
    for (int i = 0; i < 10; i++)
        LS_CHECK_OK(transport->table->poll(transport, &moved));
    for (int i = 0; i < count; i++) {
        int bits = 0;
        LS_CHECK_EQ(sends[i].done, receives[i].done);
        for (int k = 0; k < 100; k++) {
            LS_CHECK_EQ(out[i][k], i); /* the sender's memory is never written */
            bits += __builtin_popcount((unsigned)(in[i][k] ^ out[i][k]));
        }
        what[i] = !sends[i].done ? 2 : bits ? 1 : 0;
        if (sends[i].done)
            LS_CHECK(bits <= 1);
    }
    transport->table->close(transport);
}

LS_TEST(wrap_drops_and_corrupts_the_nth)
{
    uint8_t what[64], again[64];
    int lost = 0, changed = 0;

    try_plan("drop@3,corrupt@5,drop@64", 64, what);
    for (int i = 0; i < 64; i++)
        LS_CHECK_EQ(what[i], i == 2 || i == 63 ? 2 : i == 4 ? 1 : 0);
    try_plan("drop=0.3,corrupt=0.3", 64, what);
    try_plan("drop=0.3,corrupt=0.3", 64, again);
    LS_CHECK(memcmp(what, again, sizeof what) == 0); /* a plan can be repeated */
    for (int i = 0; i < 64; i++) {
        lost += what[i] == 2;
        changed += what[i] == 1;
    }
    LS_CHECK(lost > 8 && lost < 32 && changed > 5 && changed < 32);
    try_plan("drop=0.3,corrupt=0.3,seed=9", 64, again);
    LS_CHECK(memcmp(what, again, sizeof what) != 0);
    try_plan("", 64, what);
    for (int i = 0; i < 64; i++)
        LS_CHECK_EQ(what[i], 0);
}

LS_TEST(wrap_delays)
{
    mirror m = {.transport = {&mirror_table}};
    char out = 'x', in = 0;
    ls_message send = {.tag = 1, .data = &out, .bytes = 1}, empty = {.tag = 2};
    ls_message receive = {.tag = 1, .data = &in, .bytes = 1}, nothing = {.tag = 2, .data = &in};
    ls_message *all[] = {&receive, &send, &nothing, &empty};
    ls_transport *transport;

    LS_CHECK_OK(ls_wrap_open(&transport, &m.transport, "delay=30ms,corrupt@2", 1));
    int64_t began = ls_time_now_ns();
    LS_CHECK_OK(transport->table->receive(transport, &receive));
    LS_CHECK_OK(transport->table->send(transport, &send));
    LS_CHECK_OK(transport->table->receive(transport, &nothing));
    LS_CHECK_OK(transport->table->send(transport, &empty)); /* no byte to change */
    ls_status early = world_wait(transport, all, 4, 10 * LS_NS_PER_MS);
    LS_CHECK(early == LS_EDEADLINE || ls_time_now_ns() - began >= 30 * LS_NS_PER_MS);
    LS_CHECK_OK(world_wait(transport, all, 4, WORLD_SOON));
    LS_CHECK(ls_time_now_ns() - began >= 30 * LS_NS_PER_MS);
    LS_CHECK_EQ(in, 'x');
    transport->table->close(transport);
}

LS_TEST(wrap_kills_and_stops)
{
    for (int stop = 0; stop < 2; stop++) {
        int status = 0;
        pid_t pid = fork();
        LS_CHECK(pid >= 0);
        if (pid == 0) {
            mirror m = {.transport = {&mirror_table}};
            ls_message messages[3] = {{.tag = 1}, {.tag = 2}, {.tag = 3}};
            ls_transport *transport;
            LS_CHECK_OK(ls_wrap_open(&transport, &m.transport, stop ? "stop@3" : "kill@3", 1));
            for (int i = 0; i < 3; i++)
                if (transport->table->send(transport, &messages[i]) != LS_OK)
                    _exit(9);
            _exit(messages[2].tag == 3 ? 0 : 8);
        }
        LS_CHECK(waitpid(pid, &status, WUNTRACED) == pid);
        if (stop) {
            LS_CHECK(WIFSTOPPED(status));
            kill(pid, SIGCONT);
            LS_CHECK(waitpid(pid, &status, 0) == pid);
            LS_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        } else {
            LS_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        }
    }
}

/* Around the real thing: a delayed TCP transport, and one that is closed with messages held. */
static void wrapped_tcp(world *w, int rank, ls_transport *inner)
{
    ls_transport *transport;
    mirror m = {.transport = {&mirror_table}};
    uint64_t number = 77 + (uint64_t)rank, got = 0;
    ls_message send = {.peer = 1 - rank, .tag = 1, .data = &number, .bytes = 8};
    ls_message receive = {.peer = 1 - rank, .tag = 1, .data = &got, .bytes = 8};
    ls_message *both[] = {&send, &receive};
    int64_t sent, received;

    (void)w;
    LS_CHECK_OK(ls_wrap_open(&transport, inner, "delay=5ms", 1));
    LS_CHECK_OK(transport->table->receive(transport, &receive));
    LS_CHECK_OK(transport->table->send(transport, &send));
    LS_CHECK_OK(world_wait(transport, both, 2, WORLD_SOON));
    LS_CHECK_EQ(got, 77 + (1 - rank));
    transport->table->wake(transport);
    transport->table->count(transport, 1 - rank, &sent, &received);
    LS_CHECK(sent >= 72 && received >= 72);
    ls_mem_free(transport); /* the test closes the inner one itself */
    LS_CHECK_OK(ls_wrap_open(&transport, &m.transport, "delay=10s,corrupt=1", 1));
    LS_CHECK_OK(transport->table->send(transport, &send));
    transport->table->close(transport);
}

LS_TEST(wrap_goes_around_tcp)
{
    world w;

    world_init(&w, 2);
    world_run(&w, wrapped_tcp);
    world_release(&w);
}
