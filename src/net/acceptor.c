/* acceptor.c -- callers in a table, an epoll of their own.
 *
 * The table begins with LS_ACCEPTOR_CALLERS places, and grows to what its owner allows: where many
 * callers are expected at once, none of them may be dropped for the next.
 *
 * The acceptor's epoll descriptor nests in that of its owner, so the owner watches one descriptor
 * for any number of callers. Time is looked at whenever the acceptor is asked: the owner asks at
 * least as often as its heartbeat, which is soon enough for a slow caller.
 *
 * Making room by dropping the oldest caller, not by refusing the newest: an honest handshake takes
 * a few round trips, so under a flood the oldest is almost surely a stranger. */
#include "net/acceptor.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

typedef struct caller {
    int fd; /* -1: free */
    int64_t since_ns;
    ls_sock_address peer;
    ls_handshake handshake;
} caller;

struct ls_acceptor {
    ls_acceptor_args args;
    int epoll_fd;
    uint64_t refused;
    int64_t second; /* of the last audit line */
    int lines;      /* in that second */
    uint64_t unsaid;
    int64_t look_ns; /* when slow callers are looked for next */
    caller *callers; /* owned */
    int room;        /* of them */
    int busy;        /* in use */
};

/* Where an epoll event is of the listening socket, not of a caller. */
static const uint64_t LISTENS = UINT64_MAX;

static ls_status watch(ls_acceptor *acceptor, int fd, int events, int operation, uint64_t index)
{
    struct epoll_event event = {.events = (uint32_t)events, .data.u64 = index};

    if (epoll_ctl(acceptor->epoll_fd, operation, fd, &event) == 0)
        return LS_OK;
    return ls_fail_sys(LS_EIO, "cannot watch a socket");
}

static ls_status make_places(ls_acceptor *acceptor, int room)
{
    caller *callers = ls_mem_resize(acceptor->callers, (size_t)room * sizeof *callers);

    if (!callers)
        return LS_ENOMEM;
    for (int i = acceptor->room; i < room; i++)
        callers[i] = (caller){.fd = -1};
    acceptor->callers = callers;
    acceptor->room = room;
    return LS_OK;
}

ls_status ls_acceptor_open(ls_acceptor **acceptor_out, const ls_acceptor_args *args)
{
    ls_status st = LS_OK;
    ls_acceptor *acceptor = ls_mem_alloc(sizeof *acceptor);

    if (!acceptor)
        return LS_ENOMEM;
    acceptor->args = *args;
    if (acceptor->args.handshake_ns <= 0)
        acceptor->args.handshake_ns = 10 * LS_NS_PER_S;
    acceptor->epoll_fd = -1;
    LS_TRY(st, make_places(acceptor, LS_ACCEPTOR_CALLERS), out);
    acceptor->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (acceptor->epoll_fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot make an epoll descriptor");
        goto out;
    }
    LS_TRY(st, watch(acceptor, args->listen_fd, EPOLLIN, EPOLL_CTL_ADD, LISTENS), out);
    *acceptor_out = acceptor;
    acceptor = NULL;
out:
    ls_acceptor_close(acceptor);
    return st;
}

static void drop(ls_acceptor *acceptor, caller *who)
{
    acceptor->busy -= who->fd >= 0;
    ls_sock_close(&who->fd); /* leaves the epoll by itself */
    ls_handshake_release(&who->handshake);
}

void ls_acceptor_close(ls_acceptor *acceptor)
{
    if (!acceptor)
        return;
    for (int i = 0; i < acceptor->room; i++)
        drop(acceptor, &acceptor->callers[i]);
    ls_mem_free(acceptor->callers);
    ls_sock_close(&acceptor->epoll_fd);
    ls_mem_free(acceptor);
}

int ls_acceptor_fd(const ls_acceptor *acceptor)
{
    return acceptor->epoll_fd;
}

uint64_t ls_acceptor_refused(const ls_acceptor *acceptor)
{
    return acceptor->refused;
}

void ls_acceptor_refuse(ls_acceptor *acceptor, const ls_sock_address *peer, const char *why)
{
    int64_t second = ls_time_now_ns() / LS_NS_PER_S;

    acceptor->refused++;
    if (second != acceptor->second) {
        acceptor->second = second;
        acceptor->lines = 0;
    }
    if (acceptor->lines >= LS_ACCEPTOR_LINES) {
        acceptor->unsaid++;
        return;
    }
    acceptor->lines++;
    if (acceptor->unsaid)
        ls_log(LS_LOG_WARN, "refused %s: %s (and %llu before it, not listed)", peer->text, why,
               (unsigned long long)acceptor->unsaid);
    else
        ls_log(LS_LOG_WARN, "refused %s: %s", peer->text, why);
    acceptor->unsaid = 0;
}

static void refuse(ls_acceptor *acceptor, caller *who, const char *why)
{
    ls_acceptor_refuse(acceptor, &who->peer, why);
    drop(acceptor, who);
}

static caller *make_room(ls_acceptor *acceptor)
{
    if (acceptor->busy == acceptor->room && acceptor->room < acceptor->args.callers)
        (void)make_places(acceptor, (int)ls_min_i64(2 * acceptor->room, acceptor->args.callers));
    caller *oldest = &acceptor->callers[0];
    for (int i = 0; i < acceptor->room; i++) {
        caller *who = &acceptor->callers[i];
        if (who->fd < 0)
            return who;
        if (who->since_ns < oldest->since_ns)
            oldest = who;
    }
    refuse(acceptor, oldest, "it made room for newer callers");
    return oldest;
}

static ls_status welcome(ls_acceptor *acceptor, int fd, const ls_sock_address *peer)
{
    caller *who = make_room(acceptor);
    int64_t now = ls_time_now_ns();
    ls_handshake_args args = {.secret = acceptor->args.secret,
                              .self = acceptor->args.self,
                              .deadline_ns = now + acceptor->args.handshake_ns};
    ls_status st = ls_handshake_begin(&who->handshake, &args);

    who->fd = fd;
    acceptor->busy++;
    who->peer = *peer;
    who->since_ns = now;
    if (st == LS_OK)
        st = watch(acceptor, fd, EPOLLIN, EPOLL_CTL_ADD, (uint64_t)(who - acceptor->callers));
    if (st != LS_OK)
        refuse(acceptor, who, ls_err_last()->text);
    return LS_OK;
}

static ls_status accept_all(ls_acceptor *acceptor)
{
    for (int i = 0; i < LS_ACCEPTOR_CALLERS; i++) { /* and then hear what they say */
        ls_sock_address peer;
        int fd = -1;
        ls_status st = ls_sock_accept(acceptor->args.listen_fd, 0, &fd, &peer);
        /* Out of descriptors for the moment is not the end of the acceptor. */
        if (st != LS_OK || fd < 0)
            return errno == EMFILE || errno == ENFILE || errno == EAGAIN ? LS_OK : st;
        welcome(acceptor, fd, &peer);
    }
    return LS_OK;
}

/* One more step with a caller; *passed_out when its handshake is complete. */
static void hear(ls_acceptor *acceptor, caller *who, bool *passed_out)
{
    ls_status st = ls_handshake_step(&who->handshake, who->fd, passed_out);

    if (st == LS_EIO && !ls_handshake_heard(&who->handshake)) {
        drop(acceptor, who); /* came, said nothing, left */
        return;
    }
    if (st != LS_OK)
        refuse(acceptor, who, ls_err_last()->text);
    else if (!*passed_out)
        (void)watch(acceptor, who->fd, ls_handshake_events(&who->handshake), EPOLL_CTL_MOD,
                    (uint64_t)(who - acceptor->callers));
}

static void drop_slow(ls_acceptor *acceptor)
{
    int64_t now = ls_time_now_ns();

    if (now < acceptor->look_ns)
        return;
    acceptor->look_ns = now + 50 * LS_NS_PER_MS;
    for (int i = 0; i < acceptor->room; i++) {
        caller *who = &acceptor->callers[i];
        if (who->fd < 0 || now < who->handshake.args.deadline_ns)
            continue;
        if (ls_handshake_heard(&who->handshake))
            refuse(acceptor, who, "its handshake did not come in time");
        else
            drop(acceptor, who); /* a caller that only probed whether this side lives */
    }
}

ls_status ls_acceptor_next(ls_acceptor *acceptor, int *fd_out, ls_handshake *handshake_out,
                           ls_sock_address *peer_out)
{
    struct epoll_event events[16];
    ls_status st = LS_OK;
    int n;

    *fd_out = -1;
    drop_slow(acceptor);
    do {
        n = epoll_wait(acceptor->epoll_fd, events, (int)LS_COUNT(events), 0);
        for (int i = 0; i < n; i++) {
            uint64_t index = events[i].data.u64;
            bool passed = false;
            if (index == LISTENS) {
                LS_TRY(st, accept_all(acceptor), out);
                continue;
            }
            caller *who = &acceptor->callers[index];
            if (who->fd >= 0)
                hear(acceptor, who, &passed);
            if (passed) {
                epoll_ctl(acceptor->epoll_fd, EPOLL_CTL_DEL, who->fd, NULL);
                *fd_out = who->fd;
                *handshake_out = who->handshake;
                *peer_out = who->peer;
                who->fd = -1; /* the caller's now */
                acceptor->busy--;
                drop(acceptor, who);
                goto out; /* what else is ready will be ready again */
            }
        }
    } while (n == (int)LS_COUNT(events));
out:
    return st;
}
