/* worlds.c -- see worlds.h. */
#include "comm/worlds.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "comm/node/shm_segment.h"
#include "comm/node/ranks.h"
#include "net/sock.h"

static void add_rank(ls_world *w, int node, bool listens)
{
    ls_comm_member *m = &w->members[w->ranks];
    ls_sock_address at;

    LS_CHECK(w->ranks < LS_WORLD_RANKS);
    *m = (ls_comm_member){.node = node};
    snprintf(m->host, sizeof m->host, "node%d", node);
    w->listen_fd[w->ranks] = -1;
    if (listens) {
        LS_CHECK_OK(ls_sock_listen(NULL, &w->listen_fd[w->ranks]));
        LS_CHECK_OK(ls_sock_local(w->listen_fd[w->ranks], &at));
        snprintf(m->address, sizeof m->address, "%.63s", at.text);
    }
    w->ranks++;
}

void ls_world_init(ls_world *world, const char *shape, void *context)
{
    ls_world *w = world;
    bool several = strchr(shape, '+') != NULL;

    *w = (ls_world){.generation = 7, .context = context};
    memset(w->secret, 9, sizeof w->secret);
    for (const char *p = shape; *p; p += p[1] == '+' ? 2 : 1) {
        int n = *p - '0', node = w->nodes++;
        w->segment_fd[node] = -1;
        if (n > 1)
            LS_CHECK_OK(ls_shm_segment_create(&(ls_shm_segment_args){.generation = w->generation,
                                                                     .ranks = n,
                                                                     .heap_bytes = 64 * LS_MIB},
                                              &w->segment_fd[node]));
        for (int i = 0; i < n; i++)
            add_rank(w, node, several);
    }
}

/* All descriptors but those of one rank; -1: all. */
static void close_others(ls_world *w, int rank)
{
    for (int r = 0; r < w->ranks; r++)
        if (r != rank && w->listen_fd[r] >= 0) {
            close(w->listen_fd[r]);
            w->listen_fd[r] = -1;
        }
    for (int i = 0; i < w->nodes; i++)
        if ((rank < 0 || w->members[rank].node != i) && w->segment_fd[i] >= 0) {
            close(w->segment_fd[i]);
            w->segment_fd[i] = -1;
        }
}

void ls_world_release(ls_world *world)
{
    close_others(world, -1);
    for (int r = 0; r < world->ranks; r++)
        if (world->pids[r] > 0) {
            kill(world->pids[r], SIGKILL);
            waitpid(world->pids[r], NULL, 0);
        }
    world->ranks = 0;
}

ls_comm_args ls_world_args(const ls_world *world, int rank)
{
    const ls_world *w = world;

    return (ls_comm_args){.rank = rank,
                          .ranks = w->ranks,
                          .generation = w->generation,
                          .members = w->members,
                          .segment_fd = w->segment_fd[w->members[rank].node],
                          .listen_fd = w->listen_fd[rank],
                          .secret = w->nodes > 1 ? w->secret : NULL,
                          .transport = "tcp"};
}

void ls_world_fork(ls_world *world, int rank, ls_world_rank body)
{
    fflush(NULL);
    int pid = fork();

    LS_CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        memset(world->pids, 0, sizeof world->pids);
        close_others(world, rank);
        body(world, rank);
        close_others(world, -1);
        exit(0);
    }
    world->pids[rank] = pid;
}

void ls_world_forked(ls_world *world)
{
    close_others(world, -1);
}

void ls_world_join(ls_world *world, int rank, int signal)
{
    int status = 0;

    LS_CHECK_EQ(waitpid(world->pids[rank], &status, 0), world->pids[rank]);
    world->pids[rank] = 0;
    if (signal) {
        LS_CHECK(WIFSIGNALED(status));
        LS_CHECK_EQ(WTERMSIG(status), signal);
    } else {
        LS_CHECK_EQ(status, 0);
    }
}

/* --- all ranks with a communicator ------------------------------------------------------------ */

typedef struct rank_of {
    pthread_t thread;
    ls_world *world;
    int rank;
    ls_world_body body;
} rank_of;

static void play(ls_world *w, int rank, ls_world_body body)
{
    ls_comm_args args = ls_world_args(w, rank);
    ls_comm *comm = NULL;

    LS_CHECK_OK(ls_comm_open(&comm, &args, ls_test_soon()));
    LS_CHECK_EQ(ls_comm_rank(comm), rank);
    LS_CHECK_EQ(ls_comm_ranks(comm), w->ranks);
    body(w, comm);
    ls_comm_close(comm);
}

typedef struct body_of {
    ls_world_body body;
    void *context;
} body_of;

static void play_process(ls_world *w, int rank)
{
    body_of b = *(body_of *)w->context;

    w->context = b.context;
    play(w, rank, b.body);
}

void ls_world_run(const char *shape, void *context, ls_world_body body)
{
    body_of b = {body, context};
    ls_world w;

    ls_world_init(&w, shape, &b);
    for (int r = 0; r < w.ranks; r++)
        ls_world_fork(&w, r, play_process);
    ls_world_forked(&w);
    for (int r = 0; r < w.ranks; r++)
        ls_world_join(&w, r, 0);
    ls_world_release(&w);
}

static void *play_thread(void *arg)
{
    rank_of *r = arg;

    play(r->world, r->rank, r->body);
    return NULL;
}

int64_t ls_world_sent(ls_comm *comm)
{
    int64_t sent, received;

    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_test_soon()));
    ls_comm_traffic(comm, &sent, &received);
    return sent;
}

void ls_world_run_threads(const char *shape, void *context, ls_world_body body)
{
    rank_of ranks[LS_WORLD_RANKS];
    ls_world w;

    ls_world_init(&w, shape, context);
    for (int r = 0; r < w.ranks; r++) {
        ranks[r] = (rank_of){.world = &w, .rank = r, .body = body};
        LS_CHECK_EQ(pthread_create(&ranks[r].thread, NULL, play_thread, &ranks[r]), 0);
    }
    for (int r = 0; r < w.ranks; r++)
        pthread_join(ranks[r].thread, NULL);
    ls_world_release(&w);
}
