/* many_agents.c -- see many_agents.h. Agents and coordinator share a page of counters; nothing else but the
 * sockets connects them. */
#include "cluster/many_agents.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "cluster/join/rendezvous_impl.h"
#include "cluster/recover/recover_cluster.h"
#include "net/fd_limit.h"

enum { GENERATIONS = 8, PROCESSES = 64, FDS_EACH = 5 };

static const uint8_t secret[32] = "many agents all know this one! ";

/* What all processes see. */
typedef struct segment {
    atomic_int joined, viewed[GENERATIONS];                  /* agents */
    atomic_llong joined_ns, viewed_ns[GENERATIONS], lost_ns; /* when the last of them; the loss */
    atomic_int lose, failed;
    char why[640];
    char version[LS_RENDEZVOUS_VERSION];
} segment;

static void count(atomic_int *number, atomic_llong *when)
{
    atomic_store(when, ls_time_now_ns());
    atomic_fetch_add(number, 1);
}

/* --- agents ----------------------------------------------------------------------------------- */

typedef struct agent {
    ls_rendezvous *r;
    ls_rendezvous_hooks hooks;
    ls_roster roster;
    struct player *player;
    bool met;
    uint64_t generation;
    uint32_t serial;
    char host[32];
} agent;

/* A process full of agents. */
typedef struct player {
    const many_agents_args *args;
    segment *segment;
    const char *address;
    int first, n, epoll_fd;
    agent *agents;
} player;

static _Noreturn void give_up(segment *b, const char *what)
{
    if (atomic_exchange(&b->failed, 1) == 0)
        snprintf(b->why, sizeof b->why, "%s: %.500s", what, ls_err_last()->text);
    _exit(1);
}

static void must(const player *p, ls_status st, const char *what)
{
    if (st != LS_OK)
        give_up(p->segment, what);
}

static void say(agent *a, const ls_member_message *word)
{
    ls_str bytes;

    ls_str_init(&bytes);
    ls_member_message_encode(word, &bytes);
    must(a->player, ls_str_status(&bytes), "an agent's word");
    ls_rendezvous_tell(a->r, 0, bytes.p, bytes.len);
    ls_str_release(&bytes);
}

/* For the worker that is not there: it has as many steps as it has seen views. */
static void report(agent *a)
{
    int64_t steps = (int64_t)a->generation;
    ls_member_message word = {.kind = LS_MEMBER_MESSAGE_REPORT,
                              .report = {.have = steps,
                                         .reached = steps,
                                         .met = steps,
                                         .port = (int32_t)(20000 + (a->serial * 7919) % 40000),
                                         .serial = ++a->serial}};

    ls_config_digest_add(&word.config_digest, "program", "same", 4);
    say(a, &word);
}

static void on_heard(void *context, int node, const uint8_t *bytes, size_t len)
{
    const ls_member_message ready = {.kind = LS_MEMBER_MESSAGE_READY};
    agent *a = context;
    segment *b = a->player->segment;
    ls_member_message word;

    (void)node;
    must(a->player, ls_member_message_decode(&word, bytes, len), "a word to an agent");
    if (word.kind == LS_MEMBER_MESSAGE_REVOKE)
        report(a);
    if (word.kind == LS_MEMBER_MESSAGE_VIEW) {
        uint64_t g = word.view.plan.generation;
        if (word.names.left > 0)
            must(a->player, ls_roster_learn(&a->roster, word.known, word.names.at, word.names.left),
                 "names");
        if (g <= a->generation || g >= GENERATIONS || word.workers != 1 || word.rank[0] < 0 ||
            word.serial[0] != a->serial)
            must(a->player, ls_fail(LS_EDATA, "generation %d", (int)g), "a view of an agent");
        a->generation = g;
        say(a, &ready);
        count(&b->viewed[g], &b->viewed_ns[g]);
    }
    ls_member_message_release(&word);
}

static void open_agent(player *p, int i)
{
    const many_agents_args *how = p->args;
    agent *a = &p->agents[i];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};

    *a = (agent){.player = p};
    snprintf(a->host, sizeof a->host, "node%05d", p->first + i);
    ls_roster_init(&a->roster);
    a->hooks = (ls_rendezvous_hooks){.heartbeat_ns = how->heartbeat_ns,
                                     .suspect_ns = how->suspect_ns,
                                     .dead_ns = how->dead_ns,
                                     .heard = on_heard,
                                     .context = a};
    must(p,
         ls_rendezvous_open(&a->r,
                            &(ls_rendezvous_args){.address = p->address,
                                                  .secret = secret,
                                                  .ranks = 1,
                                                  .host = a->host,
                                                  .version = p->segment->version},
                            ls_time_now_ns() + how->wait_ns),
         "an agent cannot join");
    must(p, ls_rendezvous_attach(a->r, &a->hooks), "an agent");
    if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, ls_rendezvous_fd(a->r), &event) != 0)
        must(p, ls_fail_sys(LS_EIO, "cannot watch it"), "an agent");
}

/* What it does when it has the list of members. */
static void begin_agent(agent *a)
{
    must(a->player, ls_rendezvous_learn(a->r, &a->roster), "names");
    a->met = true;
    count(&a->player->segment->joined, &a->player->segment->joined_ns);
    report(a);
}

static void attend(agent *a)
{
    if (!a->r)
        return;
    if (a->met) {
        must(a->player, ls_rendezvous_attend(a->r), "an agent was sent away");
        return;
    }
    ls_status st = ls_rendezvous_meet(a->r, 0);
    if (st == LS_OK)
        begin_agent(a);
    else if (st != LS_EDEADLINE)
        give_up(a->player->segment, "an agent could not meet the others");
}

/* The first agent of the first process is the one that is lost. */
static void lose_one(player *p)
{
    agent *a = &p->agents[0];

    atomic_store(&p->segment->lost_ns, ls_time_now_ns());
    if (p->args->silent)
        (void)epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, ls_rendezvous_fd(a->r), NULL);
    else
        ls_rendezvous_close(a->r);
    a->r = NULL; /* where it is silent, its sockets stay open, and nobody attends to them */
}

static _Noreturn void play(player *p)
{
    struct epoll_event events[256];
    char who[32];

    snprintf(who, sizeof who, "%d agents", p->n);
    must(p, ls_fd_limit_make(FDS_EACH * p->n, who), "agents");
    p->agents = ls_mem_array((size_t)p->n, sizeof *p->agents);
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!p->agents || p->epoll_fd < 0)
        give_up(p->segment, "no room for agents");
    for (int i = 0; i < p->n; i++)
        open_agent(p, i);
    for (;;) {
        int n = epoll_wait(p->epoll_fd, events, LS_COUNT(events), 10);
        for (int i = 0; i < n; i++)
            attend(&p->agents[events[i].data.u32]);
        if (p->first == 0 && atomic_exchange(&p->segment->lose, 0))
            lose_one(p);
    }
}

/* --- the coordinator's own worker ------------------------------------------------------------- */

typedef struct coordinator {
    const many_agents_args *args;
    segment *segment;
    ls_rendezvous *r;
    ls_recover_cluster *recover_cluster;
    ls_worker_channel *channel;
    int revoked[2], memory_fd; /* a pipe to the worker; what stands for its shared memory */
    pid_t worker, players[PROCESSES];
    int n_players;
} coordinator;

static ls_status on_make(void *context, uint64_t generation, int ranks, int *fd_out)
{
    (void)generation;
    (void)ranks;
    *fd_out = ((const coordinator *)context)->memory_fd;
    return LS_OK;
}

static void on_revoke(void *context, const char *why)
{
    (void)why;
    (void)!write(((const coordinator *)context)->revoked[1], "r", 1);
}

/* Reports, is ready, and reports again when its view is given up. */
static _Noreturn void work(coordinator *c)
{
    char text[16], byte;
    int64_t steps = 0;

    close(c->revoked[1]);
    snprintf(text, sizeof text, "%d", ls_worker_channel_ends(c->channel)[0]);
    setenv("LINESHAFT_FD_HEAL", text, 1);
    for (;; steps++) {
        ls_worker_channel_view view;
        ls_worker_channel_fds fds;
        ls_err_clear();
        if (ls_worker_channel_ask(&(ls_view_report){.have = steps, .reached = steps, .met = steps},
                                  NULL, &view, &fds) != LS_OK)
            _exit(0);
        close(fds.segment);
        close(fds.members);
        ls_worker_channel_ready();
        if (read(c->revoked[0], &byte, 1) != 1)
            _exit(0);
    }
}

static ls_status open_worker(coordinator *c)
{
    ls_status st;

    c->memory_fd = memfd_create("board", MFD_CLOEXEC);
    if (c->memory_fd < 0 || pipe(c->revoked) != 0)
        return ls_fail_sys(LS_EIO, "cannot make a worker");
    LS_TRY(st,
           ls_worker_channel_open(&c->channel,
                                  &(ls_worker_channel_args){.workers = 1,
                                                            .patience_ns = c->args->wait_ns,
                                                            .make = on_make,
                                                            .revoke = on_revoke,
                                                            .context = c,
                                                            .say = ls_recover_cluster_say,
                                                            .say_context = c->recover_cluster}),
           out);
    ls_recover_cluster_bind(c->recover_cluster, c->channel);
out:
    return st;
}

/* --- the coordinator -------------------------------------------------------------------------- */

static ls_status open_coordinator(coordinator *c)
{
    const many_agents_args *a = c->args;
    ls_status st;

    LS_TRY(st,
           ls_rendezvous_open(&c->r,
                              &(ls_rendezvous_args){.hosts = true,
                                                    .address = "127.0.0.1:0",
                                                    .nodes = a->agents + 1,
                                                    .secret = secret,
                                                    .ranks = 1,
                                                    .generation = 1,
                                                    .grace_ns = LS_NS_PER_S,
                                                    .version = c->segment->version},
                              ls_time_now_ns() + LS_NS_PER_S),
           out);
    LS_TRY(st,
           ls_recover_cluster_open(&c->recover_cluster,
                                   &(ls_recover_cluster_args){.rules = {.least = 1},
                                                              .min_nodes = 1,
                                                              .patience_ns = a->wait_ns,
                                                              .heartbeat_ns = a->heartbeat_ns,
                                                              .suspect_ns = a->suspect_ns,
                                                              .dead_ns = a->dead_ns,
                                                              .failover = a->failover},
                                   true, c->r),
           out);
    st = open_worker(c);
out:
    return st;
}

static ls_status start(coordinator *c)
{
    int n = c->args->agents, parts = c->args->processes;

    fflush(NULL);
    for (int i = 0; i <= parts; i++) {
        player p = {.args = c->args,
                    .segment = c->segment,
                    .address = ls_rendezvous_address(c->r),
                    .first = n * i / parts,
                    .n = n * (i + 1) / parts - n * i / parts};
        pid_t pid = fork();
        if (pid < 0)
            return ls_fail_sys(LS_EIO, "cannot start processes of agents");
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (i == parts)
                work(c);
            play(&p);
        }
        if (i == parts)
            c->worker = pid;
        else
            c->players[c->n_players++] = pid;
    }
    ls_worker_channel_started(c->channel, 0, c->worker);
    return LS_OK;
}

static ls_status check_time(const coordinator *c, int64_t deadline_ns, const char *what)
{
    if (atomic_load(&c->segment->failed))
        return ls_fail(LS_EFAIL, "%s", c->segment->why);
    if (ls_time_now_ns() > deadline_ns)
        return ls_fail(LS_EDEADLINE, "%s: not in time; %d agents have joined", what,
                       atomic_load(&c->segment->joined));
    return LS_OK;
}

/* Until so many agents have a view of this generation. */
static ls_status await_view(coordinator *c, int generation, int agents, int64_t deadline_ns)
{
    struct pollfd fds[2] = {{.fd = ls_rendezvous_fd(c->r), .events = POLLIN},
                            {.fd = ls_worker_channel_fd(c->channel), .events = POLLIN}};
    ls_status st = LS_OK;

    while (atomic_load(&c->segment->viewed[generation]) < agents) {
        poll(fds, 2, 5);
        LS_TRY(st, ls_rendezvous_attend(c->r), out);
        if (ls_worker_channel_attend(c->channel).task == LS_WORKER_CHANNEL_STOP)
            return LS_EFAIL;
        LS_TRY(st, check_time(c, deadline_ns, "a view"), out);
    }
out:
    return st;
}

/* Meet in short waits, so that an agent that failed is noticed. */
static ls_status meet(coordinator *c, int64_t deadline_ns)
{
    ls_status st = LS_EDEADLINE;

    while (st == LS_EDEADLINE) {
        st = ls_rendezvous_meet(c->r, ls_time_now_ns() + LS_NS_PER_S);
        ls_status late = check_time(c, deadline_ns, "joining");
        if (st == LS_EDEADLINE && late != LS_OK)
            return late;
    }
    return st == LS_OK ? ls_recover_cluster_begin(c->recover_cluster) : st;
}

static double memory_mb(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

static double cpu_s(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static double between(int64_t from, int64_t to)
{
    return (double)(to - from) / 1e9;
}

/* To agents that are still here. */
static uint64_t sent_bytes(const ls_rendezvous *r)
{
    uint64_t bytes = 0;

    for (int i = 0; i < r->n_peers; i++)
        bytes += r->peers[i].linked ? r->peers[i].link.sent_bytes : 0;
    return bytes;
}

static ls_status live(coordinator *c, many_agents_result *out)
{
    segment *b = c->segment;
    int n = c->args->agents;
    int64_t began = ls_time_now_ns(), deadline_ns = began + c->args->wait_ns;
    ls_status st;

    out->before_mb = memory_mb();
    LS_TRY(st, start(c), out);
    LS_TRY(st, meet(c, deadline_ns), out);
    LS_TRY(st, await_view(c, 1, n, deadline_ns), out);
    out->joined_bytes = sent_bytes(c->r);
    out->change_cpu_s = -cpu_s();
    atomic_store(&b->lose, 1);
    LS_TRY(st, await_view(c, 2, n - 1, deadline_ns), out);
    out->changed_bytes = sent_bytes(c->r) - out->joined_bytes;
    out->join_s = between(began, atomic_load(&b->joined_ns));
    out->first_view_s = between(atomic_load(&b->joined_ns), atomic_load(&b->viewed_ns[1]));
    out->change_s = between(atomic_load(&b->lost_ns), atomic_load(&b->viewed_ns[2]));
    out->peak_mb = memory_mb();
    out->cpu_s = cpu_s();
    out->change_cpu_s += out->cpu_s;
out:
    return st;
}

static void end(coordinator *c)
{
    for (int i = 0; i < c->n_players; i++)
        kill(c->players[i], SIGKILL);
    if (c->worker > 0)
        kill(c->worker, SIGKILL);
    for (int i = 0; i < c->n_players; i++)
        waitpid(c->players[i], NULL, 0);
    if (c->worker > 0)
        waitpid(c->worker, NULL, 0);
    if (c->recover_cluster)
        ls_recover_cluster_bind(c->recover_cluster, NULL);
    ls_worker_channel_close(c->channel);
    ls_recover_cluster_close(c->recover_cluster);
    ls_rendezvous_close(c->r);
    for (int i = 0; i < 2; i++)
        if (c->revoked[i] > 0)
            close(c->revoked[i]);
    if (c->memory_fd > 0)
        close(c->memory_fd);
}

ls_status many_agents_run(const many_agents_args *args, many_agents_result *result_out)
{
    coordinator c = {.args = args};
    ls_status st;

    LS_BUG_IF(args->processes < 1 || args->processes > PROCESSES || args->agents < args->processes,
              "%d agents in %d processes", args->agents, args->processes);
    c.segment =
        mmap(NULL, sizeof *c.segment, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c.segment == MAP_FAILED)
        return ls_fail_sys(LS_ENOMEM, "cannot share memory with agents");
    ls_rendezvous_own_version(c.segment->version);
    *result_out = (many_agents_result){.join_s = 0};
    LS_TRY(st, open_coordinator(&c), out);
    st = live(&c, result_out);
out:
    end(&c);
    munmap(c.segment, sizeof *c.segment);
    return st;
}
