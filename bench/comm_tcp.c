/* comm_tcp.c -- the TCP transport beside plain sockets: latency and goodput between two processes.
 *
 *   make build/release/bench-comm_tcp
 *   build/release/bench-comm_tcp                        both ranks on loopback
 *   ... --rank 0 --addresses 10.0.0.1:7000,10.0.0.2:7000   one rank here, the other elsewhere
 *   ... [--sockets N] [--chunk BYTES] [--eager BYTES] [--spin NS] [--mib 256]
 *
 * Ping-pong of small messages (half of the round trip, median and best tenth) and one-way goodput
 * of large ones, each beside the same thing over one plain blocking socket on the same path; large
 * ones with and without MSG_ZEROCOPY, and how many writes the kernel copied all the same. Plain
 * ping-pong is given for a blocking and for a spinning reader. */
#include <errno.h>
#include <time.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/transport/tcp.h"
#include "../tests/net/sock_io.h"

enum { ROUNDS = 2000 };

typedef struct bench {
    int rank;
    char addresses[2][64];
    int listen_fd;
    ls_tcp_args args;
    int64_t mib;
    uint8_t *memory;
} bench;

static void check(ls_status st)
{
    if (st == LS_OK)
        return;
    fprintf(stderr, "%s\n", ls_err_last()->text);
    exit(1);
}

static int64_t soon(void)
{
    return ls_time_now_ns() + 20 * LS_NS_PER_S;
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static void show(const char *what, int64_t bytes, int64_t *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, by_size);
    printf("%-22s %8lld B  median %8.2f us  best tenth %8.2f us\n", what, (long long)bytes,
           (double)times[count / 2] / 2000, (double)times[count / 10] / 2000);
    fflush(stdout);
}

/* --- plain sockets --- */

static int plain_connect(bench *b)
{
    ls_sock_options options = {0};
    ls_sock_address at, peer;
    int fd = -1;

    if (b->rank == 1) {
        check(ls_sock_accept(b->listen_fd, soon(), &fd, &peer));
    } else {
        check(ls_sock_resolve(b->addresses[1], soon(), &at));
        check(ls_sock_connect(&at, soon(), &fd));
    }
    check(ls_sock_tune(fd, &options));
    return fd;
}

/* Exactly len bytes; a spinning reader never sleeps. */
static void plain_read(int fd, uint8_t *bytes, size_t len, bool spin)
{
    size_t at = 0;

    if (!spin) {
        check(ls_sock_io_read(fd, bytes, len, soon()));
        return;
    }
    while (at < len) {
        ssize_t n = recv(fd, bytes + at, len - at, MSG_DONTWAIT);
        if (n > 0)
            at += (size_t)n;
    }
}

static void plain_ping(bench *b, int fd, int64_t bytes, bool spin)
{
    static int64_t times[ROUNDS];
    size_t len = (size_t)bytes;

    for (int i = 0; i < ROUNDS; i++) {
        int64_t began = ls_time_now_ns();
        if (b->rank == 0)
            check(ls_sock_io_write(fd, b->memory, len, soon()));
        plain_read(fd, b->memory, len, spin);
        if (b->rank == 1)
            check(ls_sock_io_write(fd, b->memory, len, soon()));
        times[i] = ls_time_now_ns() - began;
    }
    if (b->rank == 0)
        show(spin ? "plain socket, spinning" : "plain socket, poll", bytes, times, ROUNDS);
}

/* Take the kernel's words that pages are free again; returns how many. */
static int64_t reap(int fd, bool *copied)
{
    char control[256];
    struct msghdr word = {.msg_control = control, .msg_controllen = sizeof control};
    int64_t freed = 0;

    while (recvmsg(fd, &word, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) {
        struct sock_extended_err error;
        memcpy(&error, CMSG_DATA(CMSG_FIRSTHDR(&word)), sizeof error);
        freed += (int64_t)error.ee_data - error.ee_info + 1;
        *copied = *copied || (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED);
        word.msg_controllen = sizeof control;
    }
    return freed;
}

static void plain_flow(bench *b, int fd, int64_t bytes, bool zerocopy)
{
    int64_t all = b->mib << 20, waiting = 0;
    int on = 1;
    bool copied = false;
    uint8_t word = 0;

    if (zerocopy && setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) != 0)
        zerocopy = false;
    int64_t began = ls_time_now_ns();
    for (int64_t done = 0; done < all; done += bytes) {
        if (b->rank == 1) {
            plain_read(fd, b->memory, (size_t)bytes, false);
            continue;
        }
        for (int64_t at = 0; at < bytes;) {
            ssize_t n = send(fd, b->memory + at, (size_t)(bytes - at),
                             MSG_NOSIGNAL | (zerocopy ? MSG_ZEROCOPY : 0));
            waiting += zerocopy && n >= 0;
            at += n > 0 ? n : 0;
            if (n < 0 && errno == ENOBUFS)
                waiting -= reap(fd, &copied);
            else if (n < 0)
                (void)ls_sock_wait(fd, POLLOUT, ls_time_now_ns() + LS_NS_PER_S);
        }
        if (zerocopy)
            waiting -= reap(fd, &copied);
    }
    if (b->rank == 1)
        check(ls_sock_io_write(fd, &word, 1, soon()));
    else
        plain_read(fd, &word, 1, false);
    double seconds = (double)(ls_time_now_ns() - began) / 1e9;
    while (waiting > 0) {
        waiting -= reap(fd, &copied);
        usleep(100);
    }
    if (b->rank == 0)
        printf("%-22s %8lld B  %8.1f MB/s%s\n", zerocopy ? "plain, MSG_ZEROCOPY" : "plain socket",
               (long long)bytes, (double)all / 1e6 / seconds,
               copied ? "  (the kernel copied all the same)" : "");
    fflush(stdout);
}

/* --- the transport --- */

static void wait_for(ls_transport *transport, const ls_message *message)
{
    while (!message->done) {
        bool moved;
        check(transport->table->poll(transport, &moved));
        if (!moved && !message->done)
            transport->table->sleep(transport, soon());
    }
}

static void transport_ping(bench *b, ls_transport *transport, int64_t bytes, uint64_t *tag)
{
    static int64_t times[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        ls_message out = {.peer = 1 - b->rank, .tag = *tag, .data = b->memory, .bytes = bytes};
        ls_message in = out;
        in.data = b->memory + bytes;
        int64_t began = ls_time_now_ns();
        check(transport->table->receive(transport, &in));
        if (b->rank == 0)
            check(transport->table->send(transport, &out));
        wait_for(transport, &in);
        if (b->rank == 1)
            check(transport->table->send(transport, &out));
        times[i] = ls_time_now_ns() - began;
        wait_for(transport, &out);
        ++*tag;
    }
    if (b->rank == 0)
        show("carrier", bytes, times, ROUNDS);
}

static void transport_flow(bench *b, ls_transport *transport, int64_t bytes, uint64_t *tag,
                           bool add)
{
    enum { AHEAD = 4 };
    ls_message messages[AHEAD];
    int64_t count = (b->mib << 20) / bytes, began = ls_time_now_ns();

    for (int64_t i = 0; i < count + AHEAD; i++) {
        ls_message *m = &messages[i % AHEAD];
        if (i >= AHEAD)
            wait_for(transport, m);
        if (i >= count)
            continue;
        *m = (ls_message){.peer = 1 - b->rank,
                          .tag = (*tag)++,
                          .data = b->memory,
                          .bytes = bytes,
                          .add = add,
                          .op = LS_COMBINE_SUM,
                          .type = LS_F32};
        check(b->rank == 0 ? transport->table->send(transport, m)
                           : transport->table->receive(transport, m));
    }
    double seconds = (double)(ls_time_now_ns() - began) / 1e9;
    if (b->rank == 0) {
        ls_tcp_stats stats;
        char what[64];
        ls_tcp_stats_get(transport, &stats);
        snprintf(what, sizeof what, "carrier%s%s", add ? ", added" : "",
                 b->args.zerocopy == LS_TCP_ZEROCOPY_ON ? ", ZEROCOPY" : "");
        printf("%-24s %8lld B  %8.1f MB/s", what, (long long)bytes,
               (double)(count * bytes) / 1e6 / seconds);
        if (stats.lent > 0)
            printf("  (%lld of %lld writes so far were copied)", (long long)stats.copied,
                   (long long)stats.lent);
        printf("\n");
    }
    fflush(stdout);
}

/* Both sides are here. */
static void meet(const bench *b, int fd)
{
    uint8_t word = 0;

    if (b->rank == 0)
        check(ls_sock_io_write(fd, &word, 1, soon()));
    plain_read(fd, &word, 1, false);
    if (b->rank == 1)
        check(ls_sock_io_write(fd, &word, 1, soon()));
}

static void run(bench *b)
{
    static const int64_t small[] = {8, 1024, 16384, 65536}, large[] = {1 << 20, 16 << 20};
    static const ls_tcp_zerocopy ways[] = {LS_TCP_ZEROCOPY_OFF, LS_TCP_ZEROCOPY_ON};
    static const uint8_t secret[32] = "not a secret: both ranks are us";
    const char *addresses[2] = {b->addresses[0], b->addresses[1]};
    ls_transport *transport = NULL;
    uint64_t tag = 1;
    int fd = plain_connect(b);

    for (size_t i = 0; i < LS_COUNT(small); i++) {
        plain_ping(b, fd, small[i], false);
        plain_ping(b, fd, small[i], true);
    }
    for (size_t i = 0; i < LS_COUNT(large); i++) {
        plain_flow(b, fd, large[i], false);
        plain_flow(b, fd, large[i], true);
    }
    b->args.rank = b->rank;
    b->args.ranks = 2;
    b->args.addresses = addresses;
    b->args.listen_fd = b->listen_fd;
    b->args.secret = secret;
    for (size_t k = 0; k < LS_COUNT(ways); k++) {
        b->args.zerocopy = ways[k];
        meet(b, fd);
        check(ls_tcp_open(&transport, &b->args, soon()));
        for (size_t i = 0; i < LS_COUNT(small) && k == 0; i++)
            transport_ping(b, transport, small[i], &tag);
        for (size_t i = 0; i < LS_COUNT(large); i++) {
            transport_flow(b, transport, large[i], &tag, false);
            transport_flow(b, transport, large[i], &tag, true);
        }
        transport->table->close(transport);
    }
    ls_sock_close(&fd);
}

static int read_args(bench *b, int argc, char **argv)
{
    int rank = -1;

    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--rank") == 0)
            rank = (int)strtol(value, NULL, 10);
        else if (strcmp(argv[i], "--addresses") == 0 && strchr(value, ','))
            snprintf(b->addresses[1], 64, "%.63s", strchr(value, ',') + 1),
                snprintf(b->addresses[0], 64, "%.*s", (int)(strchr(value, ',') - value), value);
        else if (strcmp(argv[i], "--sockets") == 0)
            b->args.sockets = (int)strtol(value, NULL, 10);
        else if (strcmp(argv[i], "--chunk") == 0)
            b->args.chunk_bytes = strtoll(value, NULL, 10);
        else if (strcmp(argv[i], "--eager") == 0)
            b->args.eager_bytes = strtoll(value, NULL, 10);
        else if (strcmp(argv[i], "--spin") == 0)
            b->args.spin_ns = strtoll(value, NULL, 10);
        else if (strcmp(argv[i], "--mib") == 0)
            b->mib = strtoll(value, NULL, 10);
        else
            fprintf(stderr, "unknown option %s\n", argv[i]), exit(2);
    }
    return rank;
}

int main(int argc, char **argv)
{
    bench b = {.mib = 256, .addresses = {"127.0.0.1:0", "127.0.0.1:0"}};
    int rank = read_args(&b, argc, argv), fds[2] = {-1, -1};
    ls_sock_address at;

    b.memory = ls_mem_alloc(32 << 20);
    if (!b.memory)
        return 1;
    memset(b.memory, 0, 32 << 20);
    for (int r = 0; r < 2; r++) {
        if (rank >= 0 && r != rank)
            continue;
        check(ls_sock_resolve(b.addresses[r], soon(), &at));
        check(ls_sock_listen(&at, &fds[r]));
        check(ls_sock_local(fds[r], &at));
        snprintf(b.addresses[r], sizeof b.addresses[r], "%.63s", at.text);
    }
    pid_t child = rank < 0 ? fork() : 0;
    b.rank = rank >= 0 ? rank : child == 0;
    b.listen_fd = fds[b.rank];
    ls_sock_close(&fds[!b.rank]);
    run(&b);
    if (child > 0)
        waitpid(child, NULL, 0);
    ls_sock_close(&b.listen_fd);
    ls_mem_free(b.memory);
    return 0;
}
