/* tcp_world.c -- see tcp_world.h. The proxy is one thread with a poll over all its pairs. */
#include "comm/transport/tcp_world.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"
#include "harness.h"
#include "net/sock_io.h"

void world_init(world *w, int ranks)
{
    *w = (world){.ranks = ranks};
    for (int r = 0; r < ranks; r++) {
        ls_sock_address at;
        LS_CHECK_OK(ls_sock_listen(NULL, &w->listen_fd[r]));
        LS_CHECK_OK(ls_sock_local(w->listen_fd[r], &at));
        snprintf(w->address[r], sizeof w->address[r], "%.63s", at.text);
        w->addresses[r] = w->address[r];
    }
    memset(w->secret, 7, sizeof w->secret);
    w->args.generation = 3;
    w->messages = 1200;
}

void world_release(world *w)
{
    for (int r = 0; r < w->ranks; r++)
        ls_sock_close(&w->listen_fd[r]);
}

ls_status world_open(world *w, int rank, ls_transport **transport_out)
{
    ls_tcp_args args = w->args;

    args.rank = rank;
    args.ranks = w->ranks;
    args.addresses = w->addresses;
    args.listen_fd = w->listen_fd[rank];
    args.secret = w->secret;
    return ls_tcp_open(transport_out, &args, ls_test_soon());
}

ls_status world_wait(ls_transport *transport, ls_message *const *messages, int count,
                     int64_t wait_ns)
{
    int64_t until = ls_time_now_ns() + wait_ns;
    int at = 0;

    for (;;) {
        bool moved;
        ls_status st = transport->table->poll(transport, &moved);
        if (st != LS_OK)
            return st;
        while (at < count && messages[at]->done)
            at++;
        if (at == count)
            return LS_OK;
        if (ls_time_now_ns() >= until)
            return ls_fail(LS_EDEADLINE, "message %d of %d is not done", at, count);
        if (!moved)
            transport->table->sleep(transport, until);
    }
}

typedef struct runner {
    world *w;
    int rank;
    world_rank run;
    pthread_barrier_t *both; /* all are open */
    atomic_int *ended;
} runner;

static void *run_rank(void *context)
{
    runner *r = context;
    ls_transport *transport = NULL;

    LS_CHECK_OK(world_open(r->w, r->rank, &transport));
    pthread_barrier_wait(r->both);
    r->run(r->w, r->rank, transport);
    /* Everybody has what it wants before the first closes; what a reset lost is sent once more. */
    for (atomic_fetch_add(r->ended, 1); atomic_load(r->ended) < r->w->ranks; usleep(500)) {
        bool moved;
        (void)transport->table->poll(transport, &moved);
    }
    transport->table->close(transport);
    return NULL;
}

void world_run(world *w, world_rank run)
{
    pthread_t threads[WORLD_RANKS];
    runner runners[WORLD_RANKS];
    pthread_barrier_t both;
    atomic_int ended = 0;

    pthread_barrier_init(&both, NULL, (unsigned)w->ranks);
    for (int r = 0; r < w->ranks; r++) {
        runners[r] = (runner){w, r, run, &both, &ended};
        LS_CHECK_EQ(pthread_create(&threads[r], NULL, run_rank, &runners[r]), 0);
    }
    for (int r = 0; r < w->ranks; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&both);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint8_t *noise;

static void make_noise(void)
{
    size_t blocks = (WORLD_MOST + (64 << 10)) / 16;

    noise = malloc(blocks * 16);
    for (size_t i = 0; i < blocks; i++) {
        ls_rng_block b = ls_rng_philox((ls_rng_key){{1, 2}}, (uint32_t)i, 0, 0, 0);
        memcpy(noise + 16 * i, &b, 16);
    }
}

const uint8_t *world_bytes(uint64_t tag)
{
    pthread_once(&once, make_noise);
    return noise + tag * 13 % (64 << 10);
}

int world_open_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;

    LS_CHECK(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

/* --- traffic --- */

int64_t world_size(uint64_t tag)
{
    ls_rng_block b =
        ls_rng_philox((ls_rng_key){{5, 5}}, (uint32_t)tag, (uint32_t)(tag >> 32), 0, 0);
    uint32_t kind = b.v[0] % 100;

    if (kind < 5)
        return 0;
    if (kind < 60)
        return b.v[1] % 1024;
    if (kind < 90)
        return b.v[1] % (40 << 10);
    if (kind < 99)
        return b.v[1] % (300 << 10);
    return b.v[1] % WORLD_MOST;
}

/* 0 .. count-1 in an order that mixes neighbours up, different for each seed. */
static void mix(int *order, int count, uint32_t seed)
{
    enum { NEAR = 100 };

    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int from = 0; from < count; from += NEAR)
        for (int i = 0; i < NEAR && from + i < count; i++) {
            int n = count - from < NEAR ? count - from : NEAR;
            ls_rng_block b = ls_rng_philox((ls_rng_key){{seed, 3}}, (uint32_t)(from + i), 0, 0, 0);
            int j = from + (int)(b.v[0] % (uint32_t)n), t = order[from + i];
            order[from + i] = order[j];
            order[j] = t;
        }
}

enum { WINDOW = 300 };

typedef struct slot {
    ls_message message;
    bool busy;
} slot;

/* Keep up to WINDOW messages of one direction posted; returns how many have ended. */
static int feed(ls_transport *transport, slot *slots, const int *order, int count, int *next,
                int peer, bool sends, uint64_t first_tag)
{
    int ended = 0;

    for (int i = 0; i < WINDOW; i++) {
        slot *s = &slots[i];
        if (s->busy && s->message.done) {
            if (!sends) {
                LS_CHECK(memcmp(s->message.data, world_bytes(s->message.tag),
                                (size_t)s->message.bytes) == 0);
                ls_mem_free(s->message.data);
            }
            s->busy = false;
            ended++;
        }
        if (!s->busy && *next < count) {
            uint64_t tag = first_tag + (uint64_t)order[(*next)++];
            s->message = (ls_message){.peer = peer, .tag = tag, .bytes = world_size(tag)};
            s->busy = true;
            if (sends) {
                s->message.data = (uint8_t *)(uintptr_t)world_bytes(tag);
                LS_CHECK_OK(transport->table->send(transport, &s->message));
            } else {
                s->message.data = ls_mem_alloc((size_t)s->message.bytes);
                LS_CHECK(s->message.data);
                LS_CHECK_OK(transport->table->receive(transport, &s->message));
            }
        }
    }
    return ended;
}

void world_traffic(world *w, int rank, ls_transport *transport)
{
    slot *out = ls_mem_array(WINDOW, sizeof *out), *in = ls_mem_array(WINDOW, sizeof *in);
    int count = w->messages, next_out = 0, next_in = 0, ended = 0;
    int peer = 1 - rank;
    int64_t until = ls_time_now_ns() + ls_test_ms(60000), sent, received;

    int *sends = ls_mem_array((size_t)count, sizeof *sends);
    int *receives = ls_mem_array((size_t)count, sizeof *receives);
    LS_CHECK(out && in && sends && receives);
    mix(sends, count, (uint32_t)rank + 10);
    mix(receives, count, (uint32_t)rank + 20);
    while (ended < 2 * count) {
        bool moved;
        ended += feed(transport, out, sends, count, &next_out, peer, true, (uint64_t)rank << 40);
        ended += feed(transport, in, receives, count, &next_in, peer, false, (uint64_t)peer << 40);
        LS_CHECK_OK(transport->table->poll(transport, &moved));
        if (!moved && ended < 2 * count)
            transport->table->sleep(transport, until);
        LS_CHECK(ls_time_now_ns() < until);
    }
    transport->table->count(transport, peer, &sent, &received);
    int64_t payload = 0;
    for (int i = 0; i < count; i++)
        payload += world_size(((uint64_t)rank << 40) + (uint64_t)i);
    LS_CHECK(sent >= payload + count * 64);
    ls_mem_free(sends);
    ls_mem_free(receives);
    ls_mem_free(out);
    ls_mem_free(in);
}

/* --- proxy --- */

enum { PAIRS = 64 };

typedef struct pair {
    int fd[2];
    bool connecting;
    long cut_in, flip_in; /* bytes */
} pair;

static long draw(uint32_t *state, long about)
{
    ls_rng_block b = ls_rng_philox((ls_rng_key){{9, 9}}, (*state)++, 0, 0, 0);

    return about == 0 ? 0 : about / 2 + (long)(b.v[0] % (uint32_t)about) + 1;
}

static void reset(int *fd)
{
    struct linger hard = {1, 0};

    if (*fd >= 0)
        setsockopt(*fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    ls_sock_close(fd);
}

static void drop_pair(pair *p)
{
    reset(&p->fd[0]);
    reset(&p->fd[1]);
}

static void take_caller(proxy *x, pair *pairs, uint32_t *state)
{
    ls_sock_address peer, target;
    int fd = -1;

    LS_CHECK_OK(ls_sock_accept(x->listen_fd, 0, &fd, &peer));
    for (int i = 0; fd >= 0 && i < PAIRS; i++) {
        pair *p = &pairs[i];
        if (p->fd[0] >= 0)
            continue;
        LS_CHECK_OK(ls_sock_resolve(x->target, 0, &target));
        if (ls_sock_connect(&target, ls_test_soon(), &p->fd[1]) != LS_OK)
            break;
        p->fd[0] = fd;
        p->cut_in = draw(state, atomic_load(&x->cut_after));
        p->flip_in = draw(state, atomic_load(&x->flip_after));
        return;
    }
    reset(&fd);
}

/* Move bytes from one end to the other; false when the pair is over. */
static bool move(proxy *x, pair *p, int from, uint32_t *state)
{
    static _Thread_local uint8_t bytes[64 << 10];
    ssize_t n = recv(p->fd[from], bytes, sizeof bytes, MSG_DONTWAIT);

    if (n < 0)
        return errno == EAGAIN;
    if (n == 0)
        return false;
    if (p->flip_in > 0 && (p->flip_in -= n) <= 0) {
        bytes[(size_t)draw(state, n - 1) % (size_t)n] ^= 0x20;
        atomic_fetch_add(&x->flips, 1);
        p->flip_in = draw(state, atomic_load(&x->flip_after));
    }
    if (ls_sock_io_write(p->fd[!from], bytes, (size_t)n, ls_test_soon()) != LS_OK)
        return false;
    if (p->cut_in > 0 && (p->cut_in -= n) <= 0) {
        atomic_fetch_add(&x->cuts, 1);
        return false;
    }
    return true;
}

static void *run_proxy(void *context)
{
    proxy *x = context;
    pair pairs[PAIRS];
    uint32_t state = 1;

    for (int i = 0; i < PAIRS; i++)
        pairs[i] = (pair){.fd = {-1, -1}};
    while (!atomic_load(&x->stop)) {
        struct pollfd fds[2 * PAIRS + 1];
        bool frozen = atomic_load(&x->frozen);
        for (int i = 0; i < 2 * PAIRS; i++)
            fds[i] = (struct pollfd){.fd = frozen ? -1 : pairs[i / 2].fd[i % 2], .events = POLLIN};
        fds[2 * PAIRS] = (struct pollfd){.fd = frozen ? -1 : x->listen_fd, .events = POLLIN};
        poll(fds, 2 * PAIRS + 1, 10);
        for (int i = 0; i < 2 * PAIRS; i++)
            if (fds[i].revents && pairs[i / 2].fd[0] >= 0 && !move(x, &pairs[i / 2], i % 2, &state))
                drop_pair(&pairs[i / 2]);
        if (fds[2 * PAIRS].revents)
            take_caller(x, pairs, &state);
    }
    for (int i = 0; i < PAIRS; i++)
        drop_pair(&pairs[i]);
    return NULL;
}

void proxy_start(proxy *p, const char *target)
{
    ls_sock_address at;

    memset(p, 0, sizeof *p);
    LS_CHECK_OK(ls_sock_listen(NULL, &p->listen_fd));
    LS_CHECK_OK(ls_sock_local(p->listen_fd, &at));
    snprintf(p->address, sizeof p->address, "%.63s", at.text);
    snprintf(p->target, sizeof p->target, "%.63s", target);
    LS_CHECK_EQ(pthread_create(&p->thread, NULL, run_proxy, p), 0);
}

void proxy_stop(proxy *p)
{
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
    ls_sock_close(&p->listen_fd);
}
