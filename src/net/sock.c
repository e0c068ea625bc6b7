/* sock.c -- addresses, listening, connecting and waiting until a deadline.
 *
 * Sockets are non-blocking from birth and waits go through poll(), so a deadline holds whatever the
 * network does. Names are the exception: the resolver has no deadline, so it runs in a thread of
 * its own that is left behind when the time is up. Caller and thread share a small block, and the
 * last of the two frees it.
 *
 * A trap on one host: connecting to a port of the kernel's own range where no process listens can
 * succeed, because the kernel may choose that very port for this end and TCP then opens the socket
 * to itself. Such a socket counts as refused. */
#include "net/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"

enum { BACKLOG = 4096, HOST_BYTES = 256 }; /* the kernel cuts the first to its own limit */

/* --- addresses --- */

static void put_text(ls_sock_address *address)
{
    char host[NI_MAXHOST], port[16];

    if (getnameinfo((struct sockaddr *)&address->storage, address->len, host, sizeof host, port,
                    sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(address->text, sizeof address->text, "(no address)");
        return;
    }
    snprintf(address->text, sizeof address->text,
             address->storage.ss_family == AF_INET6 ? "[%.60s]:%.8s" : "%.60s:%.8s", host, port);
}

/* Cut "host:port" or "[host]:port" in two; false when it is neither. */
static bool split(const char *text, char host[HOST_BYTES], char port[8])
{
    const char *from = text, *colon = strrchr(text, ':'), *end = colon;
    char *stop;

    if (!colon || strlen(colon + 1) > 5 || colon[1] < '0' || colon[1] > '9')
        return false;
    if (*text == '[') {
        from++;
        if (colon == text || colon[-1] != ']')
            return false;
        end = colon - 1;
    } else if (memchr(text, ':', (size_t)(colon - text))) {
        return false; /* an IPv6 address without its brackets: which colon is the last is a guess */
    }
    if (end <= from || end - from >= HOST_BYTES)
        return false;
    memcpy(host, from, (size_t)(end - from));
    host[end - from] = '\0';
    long number = strtol(colon + 1, &stop, 10);
    if (*stop || number > 65535)
        return false;
    snprintf(port, 8, "%u", (unsigned)(uint16_t)number);
    return true;
}

typedef struct lookup {
    char host[HOST_BYTES], port[8];
    struct sockaddr_storage storage;
    socklen_t len;
    int code; /* of getaddrinfo */
    atomic_int holders;
    bool ready; /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t done;
} lookup;

static void leave(lookup *look)
{
    if (atomic_fetch_sub_explicit(&look->holders, 1, memory_order_acq_rel) != 1)
        return;
    pthread_cond_destroy(&look->done);
    pthread_mutex_destroy(&look->lock);
    ls_mem_free(look);
}

static int ask(const char *host, const char *port, int flags, struct sockaddr_storage *storage,
               socklen_t *len)
{
    struct addrinfo want = {.ai_family = AF_UNSPEC,
                            .ai_socktype = SOCK_STREAM,
                            .ai_flags = flags | AI_NUMERICSERV},
                    *found = NULL;
    int code = getaddrinfo(host, port, &want, &found);

    if (code != 0)
        return code;
    memcpy(storage, found->ai_addr, found->ai_addrlen);
    *len = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

static void *look_up(void *context)
{
    lookup *look = context;
    struct sockaddr_storage storage = {0};
    socklen_t len = 0;
    int code = ask(look->host, look->port, 0, &storage, &len);

    pthread_mutex_lock(&look->lock);
    look->storage = storage;
    look->len = len;
    look->code = code;
    look->ready = true;
    pthread_cond_signal(&look->done);
    pthread_mutex_unlock(&look->lock);
    leave(look);
    return NULL;
}

static ls_status start_lookup(lookup *look)
{
    pthread_condattr_t clock;
    pthread_attr_t detached;
    pthread_t thread;

    pthread_mutex_init(&look->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&look->done, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    atomic_store_explicit(&look->holders, 2, memory_order_relaxed);
    int failed = pthread_create(&thread, &detached, look_up, look);
    pthread_attr_destroy(&detached);
    if (!failed)
        return LS_OK;
    atomic_store_explicit(&look->holders, 1, memory_order_relaxed);
    errno = failed;
    return ls_fail_sys(LS_EIO, "cannot start a thread to look up \"%s\"", look->host);
}

static ls_status resolve_name(const char *host, const char *port, int64_t deadline_ns,
                              ls_sock_address *address_out)
{
    ls_status st = LS_OK;
    struct timespec until = {.tv_sec = deadline_ns / LS_NS_PER_S,
                             .tv_nsec = deadline_ns % LS_NS_PER_S};
    lookup *look = ls_mem_alloc(sizeof *look);

    if (!look)
        return LS_ENOMEM;
    snprintf(look->host, sizeof look->host, "%s", host);
    snprintf(look->port, sizeof look->port, "%s", port);
    LS_TRY(st, start_lookup(look), out);
    pthread_mutex_lock(&look->lock);
    while (!look->ready && pthread_cond_timedwait(&look->done, &look->lock, &until) != ETIMEDOUT)
        ;
    bool ready = look->ready;
    int code = look->code;
    if (ready && code == 0) {
        memcpy(&address_out->storage, &look->storage, sizeof look->storage);
        address_out->len = look->len;
    }
    pthread_mutex_unlock(&look->lock);
    if (!ready) {
        st = ls_fail(LS_EDEADLINE, "the name \"%s\" was not found in time", host);
        ls_err_hint("Check the name servers of this host, or give the address in numbers.");
    } else if (code != 0) {
        st = ls_fail(LS_EIO, "cannot find the host \"%s\": %s", host, gai_strerror(code));
    }
out:
    leave(look);
    return st;
}

ls_status ls_sock_resolve(const char *text, int64_t deadline_ns, ls_sock_address *address_out)
{
    ls_sock_address found = {.len = 0};
    char host[HOST_BYTES], port[8];

    if (!split(text, host, port)) {
        ls_status st = ls_fail(LS_EUSAGE, "\"%.100s\" is not an address", text);
        ls_err_hint("Write it as 10.0.0.1:40001, [::1]:40001 or host:40001.");
        return st;
    }
    if (ask(host, port, AI_NUMERICHOST, &found.storage, &found.len) != 0) {
        ls_status st = resolve_name(host, port, deadline_ns, &found);
        if (st != LS_OK)
            return st;
    }
    put_text(&found);
    *address_out = found;
    return LS_OK;
}

ls_status ls_sock_local(int fd, ls_sock_address *address_out)
{
    ls_sock_address found = {.len = sizeof found.storage};

    if (getsockname(fd, (struct sockaddr *)&found.storage, &found.len) != 0)
        return ls_fail_sys(LS_EIO, "cannot read the address of a socket");
    put_text(&found);
    *address_out = found;
    return LS_OK;
}

static bool is_wildcard(const ls_sock_address *address)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)&address->storage;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&address->storage;

    if (address->storage.ss_family == AF_INET)
        return four->sin_addr.s_addr == htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr) &&
            memcmp(six->sin6_addr.s6_addr + 12, "\0\0\0\0", 4) == 0);
}

/* --- opening --- */

static int new_socket(const ls_sock_address *address)
{
    return socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

uint16_t ls_sock_port(const ls_sock_address *address)
{
    return ntohs(address->storage.ss_family == AF_INET6
                     ? ((const struct sockaddr_in6 *)&address->storage)->sin6_port
                     : ((const struct sockaddr_in *)&address->storage)->sin_port);
}

void ls_sock_set_port(ls_sock_address *address, uint16_t port)
{
    if (address->storage.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&address->storage)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)&address->storage)->sin_port = htons(port);
}

ls_status ls_sock_listen(const ls_sock_address *at, int *fd_out)
{
    ls_status st = LS_OK;
    ls_sock_address loopback;
    int fd = -1, on = 1;

    if (!at) {
        LS_TRY(st, ls_sock_resolve("127.0.0.1:0", 0, &loopback), out);
        at = &loopback;
    }
    if (is_wildcard(at)) {
        st = ls_fail(LS_EUSAGE, "cannot listen at %s: that is every interface of this host",
                     at->text);
        ls_err_hint("Name the address of one interface, such as 10.0.0.1:0.");
        goto out;
    }
    fd = new_socket(at);
    /* A port given by hand is free again at once after its owner died. */
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, (const struct sockaddr *)&at->storage, at->len) != 0 || listen(fd, BACKLOG) != 0) {
        int error = errno;
        st = ls_fail_sys(LS_EIO, "cannot listen at %s", at->text);
        if (error == EADDRNOTAVAIL)
            ls_err_hint("No interface of this host has that address (see \"ip address\").");
        else if (error == EADDRINUSE)
            ls_err_hint("Another process listens there (see \"ss -ltnp\"): take another port, or 0 "
                        "for one that is free.");
        goto out;
    }
    *fd_out = fd;
    fd = -1;
out:
    ls_sock_close(&fd);
    return st;
}

ls_status ls_sock_connect_begin(const ls_sock_address *to, int *fd_out)
{
    int fd = new_socket(to);

    if (fd < 0)
        return ls_fail_sys(LS_EIO, "cannot make a socket for %s", to->text);
    if (connect(fd, (const struct sockaddr *)&to->storage, to->len) != 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        int why = errno;
        ls_status st = ls_fail_sys(LS_EIO, "cannot connect to %s", to->text);
        ls_sock_close(&fd);
        errno = why;
        return st;
    }
    *fd_out = fd;
    return LS_OK;
}

int ls_sock_connect_result(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    struct sockaddr_storage own = {0}, other = {0};
    socklen_t own_len = sizeof own, other_len = sizeof other, len = sizeof(int);
    int why = 0;

    if (poll(&ready, 1, 0) == 0)
        return EINPROGRESS;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len) != 0)
        return errno;
    if (why != 0)
        return why;
    if (getpeername(fd, (struct sockaddr *)&other, &other_len) != 0)
        return errno == ENOTCONN ? EINPROGRESS : errno;
    if (getsockname(fd, (struct sockaddr *)&own, &own_len) == 0 && own_len == other_len &&
        memcmp(&own, &other, own_len) == 0)
        return ECONNREFUSED;
    return 0;
}

static bool worth_another_try(int why)
{
    return why == ECONNREFUSED || why == ECONNRESET || why == ETIMEDOUT || why == EHOSTUNREACH ||
           why == ENETUNREACH || why == EADDRNOTAVAIL || why == EAGAIN;
}

/* One attempt. 0: *fd_out is connected; else an errno. */
static int try_connect(const ls_sock_address *to, int64_t deadline_ns, int *fd_out)
{
    int fd = -1, why;

    if (ls_sock_connect_begin(to, &fd) != LS_OK)
        return errno ? errno : EIO;
    while ((why = ls_sock_connect_result(fd)) == EINPROGRESS)
        if (ls_sock_wait(fd, POLLOUT, deadline_ns) != LS_OK) {
            why = ETIMEDOUT;
            break;
        }
    if (why == 0)
        *fd_out = fd;
    else
        ls_sock_close(&fd);
    return why;
}

ls_status ls_sock_connect(const ls_sock_address *to, int64_t deadline_ns, int *fd_out)
{
    int64_t began = ls_time_now_ns(), pause_ns = 5 * LS_NS_PER_MS;

    for (;;) {
        int why = try_connect(to, deadline_ns, fd_out);
        int64_t now = ls_time_now_ns();
        if (why == 0)
            return LS_OK;
        errno = why;
        if (!worth_another_try(why))
            return ls_fail_sys(LS_EIO, "cannot connect to %s", to->text);
        if (now >= deadline_ns)
            return ls_fail_sys(LS_EDEADLINE, "cannot connect to %s within %.1f s", to->text,
                               (double)(now - began) / 1e9);
        int64_t wait_ns = ls_min_i64(pause_ns, deadline_ns - now);
        nanosleep(
            &(struct timespec){.tv_sec = wait_ns / LS_NS_PER_S, .tv_nsec = wait_ns % LS_NS_PER_S},
            NULL);
        pause_ns = ls_min_i64(pause_ns * 2, 200 * LS_NS_PER_MS);
    }
}

ls_status ls_sock_accept(int listen_fd, int64_t deadline_ns, int *fd_out, ls_sock_address *peer_out)
{
    for (;;) {
        ls_sock_address peer = {.len = sizeof peer.storage};
        int fd = accept4(listen_fd, (struct sockaddr *)&peer.storage, &peer.len,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            put_text(&peer);
            *peer_out = peer;
            *fd_out = fd;
            return LS_OK;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return ls_fail_sys(LS_EIO, "cannot accept a connection");
        if (deadline_ns == 0) {
            *fd_out = -1;
            return LS_OK;
        }
        if (ls_sock_wait(listen_fd, POLLIN, deadline_ns) != LS_OK)
            return ls_fail(LS_EDEADLINE, "nobody connected in time");
    }
}

static ls_status set(int fd, int level, int option, int value, const char *what)
{
    if (setsockopt(fd, level, option, &value, sizeof value) == 0)
        return LS_OK;
    return ls_fail_sys(LS_EIO, "cannot set %s of a socket to %d", what, value);
}

ls_status ls_sock_tune(int fd, const ls_sock_options *options)
{
    ls_status st = LS_OK;
    int ms = (int)(options->user_timeout_ns / LS_NS_PER_MS);
    int seconds = (int)ls_max_i64(1, options->keepalive_ns / LS_NS_PER_S);

    LS_TRY(st, set(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"), out);
    if (ms > 0)
        LS_TRY(st, set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, ms, "TCP_USER_TIMEOUT"), out);
    if (options->keepalive_ns > 0) {
        LS_TRY(st, set(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"), out);
        LS_TRY(st, set(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds, "TCP_KEEPIDLE"), out);
        LS_TRY(st, set(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds, "TCP_KEEPINTVL"), out);
        LS_TRY(st, set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT"), out);
    }
out:
    return st;
}

int64_t ls_sock_unanswered_ns(int fd)
{
    struct tcp_info info = {.tcpi_unacked = 0};
    socklen_t len = sizeof info;

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 || info.tcpi_unacked == 0)
        return 0;
    return (int64_t)info.tcpi_last_ack_recv * LS_NS_PER_MS;
}

/* --- reading and writing --- */

ls_status ls_sock_wait(int fd, int events, int64_t deadline_ns)
{
    for (;;) {
        struct pollfd ready = {.fd = fd, .events = (short)events};
        int64_t left = deadline_ns - ls_time_now_ns();
        /* Round up: a wait must not end just before its deadline and spin there. */
        int64_t ms = left <= 0 ? 0 : (left - 1) / LS_NS_PER_MS + 1;
        int n = poll(&ready, 1, (int)ls_min_i64(ms, 1000));
        if (n > 0)
            return LS_OK;
        if (left <= 0)
            return LS_EDEADLINE;
        if (n < 0 && errno != EINTR)
            return ls_fail_sys(LS_EIO, "cannot wait for a socket");
    }
}

void ls_sock_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}
