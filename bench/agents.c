/* agents.c -- many agents at one coordinator: how long they take to join, how long until all know
 * of one that is lost, and what that costs the coordinator.
 *
 *   make build/release/bench-agents && build/release/bench-agents [AGENTS]
 *
 * This process is the coordinator, with the code that jobs use (cluster/rendezvous.h); a child
 * plays all agents in one epoll loop, over loopback, with real hellos and frames. When all have the
 * list of members, the first agent closes its connection, which is how a dead node looks; the time
 * is taken until the last of the others has been told. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/parcel.h"
#include "cluster/rendezvous.h"
#include "net/frame.h"
#include "net/sock.h"

enum { MOST = LS_MEMBERS_NODES - 1, AT_ONCE = 64, LIMIT = 2 * LS_WORK_BYTES, WAIT_S = 120 };
enum { PROTOCOL = 1, JOIN = 1, VIEW = 2, STOP = 5 }; /* of rendezvous.c */

static const uint8_t secret[32] = "agents of a bench know this one";

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "agents: %s: %s\n", what, ls_err_last()->text);
    exit(1);
}

static void must(ls_status st, const char *what)
{
    if (st != LS_OK)
        give_up(what);
}

/* --- the agents --------------------------------------------------------------------------------
 */

typedef struct agent {
    enum { IDLE, CONNECTS, GREETS, JOINS, RUNS, TOLD } state;
    int fd;
    ls_hello hello;
    ls_frame_link link;
} agent;

static agent agents[MOST];
static int epoll_fd, counts[TOLD + 1];

static void enter(agent *a, int state)
{
    counts[a->state]--;
    a->state = state;
    counts[state]++;
}

static void watch(agent *a, uint32_t events, int op)
{
    struct epoll_event e = {.events = events, .data.u32 = (uint32_t)(a - agents)};

    if (epoll_ctl(epoll_fd, op, a->fd, &e) != 0)
        give_up("cannot watch a socket");
}

/* The gate hears 128 strangers at a time and sends the oldest away for the newest, so who has sent
 * its JOIN may still be refused: it tries again, as an agent in a crowd has to. */
static int waiting[MOST], n_waiting, refused;

static void try_again(agent *a)
{
    ls_frame_release(&a->link);
    ls_sock_close(&a->fd);
    enter(a, IDLE);
    waiting[n_waiting++] = (int)(a - agents);
    refused++;
}

static void call(agent *a, const ls_sock_address *to)
{
    must(ls_sock_connect_begin(to, &a->fd), "connect");
    enter(a, CONNECTS);
    watch(a, EPOLLOUT, EPOLL_CTL_ADD);
}

static void join(agent *a)
{
    static char version[96];
    char hex[LS_HASH_HEX], host[32];
    ls_file_map map;
    ls_str bytes;

    if (!*version) { /* as rendezvous.c says it */
        must(ls_file_map_open(&map, "/proc/self/exe"), "read this program");
        ls_hash_hex(ls_hash_bytes(map.bytes, map.len), hex);
        ls_file_map_close(&map);
        snprintf(version, sizeof version, "%s %.12s", LS_VERSION, hex);
    }
    snprintf(host, sizeof host, "node%05d", (int)(a - agents));
    ls_str_init(&bytes);
    ls_parcel_put(&bytes, PROTOCOL, 2);
    ls_parcel_put_text(&bytes, version);
    ls_parcel_put_text(&bytes, "");
    ls_parcel_put(&bytes, 0, 8);
    ls_parcel_put(&bytes, 1, 2);
    ls_parcel_put_text(&bytes, host);
    ls_parcel_put_text(&bytes, "127.0.0.1");
    ls_parcel_put(&bytes, 0, 2);
    ls_frame_init(&a->link, a->fd, &a->hello, LIMIT);
    ls_hello_release(&a->hello);
    must(ls_frame_send(&a->link, JOIN, bytes.p, bytes.len), "join");
    ls_str_release(&bytes);
    enter(a, JOINS);
}

static void hear(agent *a)
{
    bool got = true;
    ls_frame frame;

    while (got) {
        ls_status st = ls_frame_receive(&a->link, &frame, &got);
        if (st != LS_OK && a->state == JOINS) {
            a->fd = -1; /* the link's */
            try_again(a);
            return;
        }
        must(st, "an agent");
        if (got && frame.type == VIEW && a->state == JOINS)
            enter(a, RUNS);
        else if (got && frame.type == STOP && a->state == RUNS)
            enter(a, TOLD);
    }
}

static void attend(agent *a)
{
    bool done = false;

    if (a->state == CONNECTS) {
        int error = ls_sock_connect_result(a->fd);
        if (error == EINPROGRESS)
            return;
        if (error)
            give_up("an agent cannot connect");
        must(ls_hello_begin(&a->hello, &(ls_hello_args){.secret = secret,
                                                        .connects = true,
                                                        .self = {.purpose = LS_HELLO_CONTROL},
                                                        .deadline_ns = ls_time_now_ns() +
                                                                       WAIT_S * LS_NS_PER_S}),
             "hello");
        enter(a, GREETS);
    }
    if (a->state == GREETS) {
        if (ls_hello_step(&a->hello, a->fd, &done) != LS_OK) {
            a->link.fd = -1;
            try_again(a);
            return;
        }
        watch(a, done || ls_hello_events(&a->hello) == POLLIN ? EPOLLIN : EPOLLOUT, EPOLL_CTL_MOD);
        if (done)
            join(a);
    }
    if (a->state >= JOINS)
        hear(a);
}

static void play(int n, const char *address)
{
    struct epoll_event events[256];
    ls_sock_address to;
    int64_t began_ns = ls_time_now_ns(), lost_ns = 0;

    must(ls_sock_resolve(address, began_ns + LS_NS_PER_S, &to), "address");
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    counts[IDLE] = n;
    for (int i = n - 1; i >= 0; i--)
        waiting[n_waiting++] = i;
    while (counts[TOLD] < n - 1) {
        while (n_waiting > 0 && counts[CONNECTS] + counts[GREETS] < AT_ONCE)
            call(&agents[waiting[--n_waiting]], &to);
        int ready = epoll_wait(epoll_fd, events, LS_COUNT(events), 1000);
        for (int i = 0; i < ready; i++)
            attend(&agents[events[i].data.u32]);
        if (ls_time_now_ns() - began_ns > WAIT_S * LS_NS_PER_S)
            give_up("not in time");
        if (lost_ns == 0 && counts[RUNS] == n) {
            printf("%d agents joined and know each other after %.3f s; %d calls were refused\n", n,
                   (double)(ls_time_now_ns() - began_ns) / 1e9, refused);
            lost_ns = ls_time_now_ns();
            ls_frame_release(&agents[0].link); /* a node is gone */
        }
    }
    printf("one was lost: all others knew after %.3f s\n",
           (double)(ls_time_now_ns() - lost_ns) / 1e9);
    fflush(stdout);
}

/* --- the coordinator ---------------------------------------------------------------------------
 */

static long peak_kb(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void coordinate(ls_rendezvous *r, int n, pid_t child)
{
    struct pollfd p = {.fd = ls_rendezvous_fd(r), .events = POLLIN};
    int64_t until_ns = ls_time_now_ns() + WAIT_S * LS_NS_PER_S;
    struct rusage usage;
    int status;

    long before = peak_kb();
    must(ls_rendezvous_meet(r, until_ns), "the coordinator");
    while (waitpid(child, &status, WNOHANG) == 0) {
        poll(&p, 1, 10);
        (void)ls_rendezvous_attend(r); /* its failure is what this is about */
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("coordinator: %.1f MB at most, %.1f MB of them for %d agents; %.2f s of a processor\n",
           (double)peak_kb() / 1024, (double)(peak_kb() - before) / 1024, n,
           (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        exit(1);
}

static void raise_files(int n)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_max < (rlim_t)n + 64) {
        fprintf(stderr, "agents: %d agents need %d open files; the limit is %llu\n", n, n + 64,
                (unsigned long long)files.rlim_max);
        exit(1);
    }
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static void drop_line(ls_log_level level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 1000;
    ls_rendezvous *r;

    if (n < 2 || n > MOST) {
        fprintf(stderr, "agents: 2 to %d agents, which is what the protocol of today allows\n",
                MOST);
        return 2;
    }
    raise_files(n);
    ls_log_set_sink(drop_line, NULL, LS_LOG_ERROR); /* refusals are counted */
    must(ls_rendezvous_open(&r,
                            &(ls_rendezvous_args){.hosts = true,
                                                  .address = "127.0.0.1:0",
                                                  .nodes = n + 1,
                                                  .secret = secret,
                                                  .ranks = 1,
                                                  .generation = 1,
                                                  .grace_ns = LS_NS_PER_S},
                            ls_time_now_ns() + LS_NS_PER_S),
         "the coordinator");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        play(n, ls_rendezvous_address(r));
        _exit(0);
    }
    coordinate(r, n, child);
    ls_rendezvous_close(r);
    return 0;
}
