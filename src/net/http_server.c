/* http_server.c -- one thread, one epoll, a table of connections.
 *
 *     READ    bytes come until head and body are complete; deadline request_ns from the first byte,
 *             idle_ns before it                            --answer()-->  WRITE
 *     WRITE   the answer goes out; deadline request_ns since bytes last went
 *             --all sent-->  READ (keep-alive), STREAM or LINGER
 *     STREAM  as WRITE, but an empty queue has no deadline; what the reader sends is thrown away
 *     LINGER  the last answer is sent; what still comes is thrown away for LINGER_MS, because closing
 *             a socket with unread bytes takes the answer from the reader
 *
 * Other threads never touch a connection. They append to the mailbox under the lock and wake the
 * thread; the same lock guards `places`, by which a writer knows whether its stream is there, and
 * how far its reader is behind.
 *
 * A full table drops the connection that has been silent between two requests for longest; when
 * all are busy, the newcomer is closed at once. */
#include "net/http_server.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/pool.h"
#include "base/time.h"
#include "net/tls.h"

enum { READ_BYTES = 16 << 10, DRAIN_MOST = 64, LOOK_MS = 250, LINGER_MS = 1000 };
static const uint64_t LISTENS = UINT64_MAX, WAKES = UINT64_MAX - 1;

typedef enum state { READ, WRITE, STREAM, LINGER } state;

typedef struct connection {
    int fd; /* -1: free */
    state state;
    uint64_t id;
    ls_tls *tls; /* NULL: plain */
    ls_sock_address peer;
    ls_str in, out;
    size_t sent; /* of out */
    const char *constant;
    size_t constant_left; /* to be sent behind out */
    int64_t deadline_ns;
    bool heard;   /* bytes of a request are here */
    bool closing; /* after what is queued */
    bool streams; /* after the answer */
    int tls_wait; /* POLLOUT: reading waits for that; else 0 */
    int events;   /* in epoll now */
} connection;

/* What other threads may see of a connection. */
typedef struct place {
    uint64_t id;   /* of the stream that is open here; 0: none */
    size_t queued; /* bytes that its reader has not taken */
} place;

typedef struct letter {
    uint64_t id;
    size_t len;
    bool ends;
} letter;

struct ls_http_server {
    ls_http_server_args args;
    ls_sock_address at;
    ls_tls_server *tls;
    int listen_fd, epoll_fd, wake_fd;
    bool started;
    pthread_t thread;
    atomic_bool stop;
    atomic_int busy;
    connection *connections; /* args.connections of them */
    uint64_t last_id;
    int streams;
    bool deaf; /* descriptors have run out: no caller is accepted until the next look */
    int64_t tick_at_ns, look_at_ns;
    pthread_mutex_t lock;
    place *places;  /* one for each connection */
    ls_str mailbox; /* letters, each followed by its bytes */
    ls_str reading; /* the mailbox before, in the thread */
};

/* --- connections ------------------------------------------------------------------------------ */

static void watch(ls_http_server *server, connection *c)
{
    size_t index = (size_t)(c - server->connections);
    bool writes = c->sent < c->out.len || c->constant_left > 0;
    int events = (c->state == WRITE ? 0 : EPOLLIN) | (writes || c->tls_wait ? EPOLLOUT : 0);
    struct epoll_event event = {.events = (uint32_t)events, .data.u64 = index};

    if (events != c->events)
        epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
    c->events = events;
}

static void leave_stream(ls_http_server *server, connection *c)
{
    pthread_mutex_lock(&server->lock);
    server->places[c - server->connections] = (place){0};
    pthread_mutex_unlock(&server->lock);
    if (!c->streams)
        return;
    c->streams = false;
    server->streams--;
    if (server->args.stream_closed)
        server->args.stream_closed(server->args.context, c->id);
}

static void drop(ls_http_server *server, connection *c)
{
    if (c->fd < 0)
        return;
    leave_stream(server, c);
    ls_tls_close(c->tls);
    ls_sock_close(&c->fd); /* leaves the epoll by itself */
    ls_str_release(&c->in);
    ls_str_release(&c->out);
    *c = (connection){.fd = -1};
    atomic_fetch_sub(&server->busy, 1);
}

static connection *find_place(ls_http_server *server)
{
    connection *idle = NULL;

    for (int i = 0; i < server->args.connections; i++) {
        connection *c = &server->connections[i];
        if (c->fd < 0)
            return c;
        if (c->state == READ && !c->heard && (!idle || c->deadline_ns < idle->deadline_ns))
            idle = c;
    }
    if (idle)
        drop(server, idle);
    return idle;
}

static void welcome(ls_http_server *server, int fd, const ls_sock_address *peer)
{
    connection *c = find_place(server);
    struct epoll_event event = {.events = EPOLLIN};

    if (!c) {
        ls_sock_close(&fd);
        return;
    }
    *c = (connection){.fd = fd, .peer = *peer, .id = ++server->last_id, .events = EPOLLIN};
    ls_str_init(&c->in);
    ls_str_init(&c->out);
    atomic_fetch_add(&server->busy, 1);
    c->deadline_ns = ls_time_now_ns() + server->args.idle_ns;
    event.data.u64 = (uint64_t)(c - server->connections);
    (void)ls_sock_tune(fd, &(ls_sock_options){.keepalive_ns = 30 * LS_NS_PER_S});
    if (server->tls) {
        c->tls = ls_tls_accept(server->tls, fd);
        c->deadline_ns = ls_time_now_ns() + server->args.request_ns;
    }
    if ((server->tls && !c->tls) || epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        drop(server, c);
}

static void listen_to(ls_http_server *server, bool on)
{
    struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.u64 = LISTENS};

    server->deaf = !on;
    epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, server->listen_fd, &event);
}

static void accept_all(ls_http_server *server)
{
    for (int i = 0; i < DRAIN_MOST; i++) {
        ls_sock_address peer;
        int fd = -1;
        if (ls_sock_accept(server->listen_fd, 0, &fd, &peer) != LS_OK) {
            listen_to(server, false);
            return;
        }
        if (fd < 0)
            return;
        welcome(server, fd, &peer);
    }
}

/* --- answers ---------------------------------------------------------------------------------- */

static const char *reason(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 204:
        return "No Content";
    case 302:
        return "Found";
    case 303:
        return "See Other";
    case 304:
        return "Not Modified";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 413:
        return "Content Too Large";
    case 417:
        return "Expectation Failed";
    case 421:
        return "Misdirected Request";
    case 429:
        return "Too Many Requests";
    case 431:
        return "Request Header Fields Too Large";
    case 501:
        return "Not Implemented";
    case 503:
        return "Service Unavailable";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return status < 500 ? "Error" : "Internal Server Error";
    }
}

static void put_answer(ls_http_server *server, connection *c, const ls_http_answer *a, bool head)
{
    size_t len = a->constant ? a->constant_len : a->body.len;
    bool lost = a->body.failed || a->headers.failed;

    if (lost) { /* no memory for the answer: say so with what needs none */
        ls_str_printf(&c->out, "HTTP/1.1 503 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                      reason(503));
        c->closing = true;
        return;
    }
    ls_str_printf(&c->out, "HTTP/1.1 %d %s\r\n", a->status, reason(a->status));
    ls_str_printf(&c->out, "Content-Type: %s\r\n", a->type);
    ls_str_append(&c->out, a->headers.p);
    ls_str_append(&c->out, "X-Content-Type-Options: nosniff\r\n");
    if (!strstr(a->headers.p, "Cache-Control:"))
        ls_str_append(&c->out, "Cache-Control: no-store\r\n");
    if (a->stream && !head) {
        c->streams = true;
        server->streams++;
    } else {
        ls_str_printf(&c->out, "Content-Length: %zu\r\n", len);
    }
    ls_str_printf(&c->out, "Connection: %s\r\n\r\n",
                  c->streams || c->closing ? "close" : "keep-alive");
    if (!head && a->constant) {
        c->constant = a->constant;
        c->constant_left = len;
    } else if (!head) {
        ls_str_append_bytes(&c->out, a->body.p, a->body.len);
    }
    pthread_mutex_lock(&server->lock);
    server->places[c - server->connections] = (place){.id = c->streams ? c->id : 0};
    pthread_mutex_unlock(&server->lock);
}

static void refuse(ls_http_answer *a, int status, const char *why)
{
    a->status = status;
    ls_str_clear(&a->body);
    ls_str_printf(&a->body, "%s\n", why);
}

static bool fits(const ls_http_route *route, const char *path)
{
    size_t n = strlen(route->path);

    if (n > 0 && route->path[n - 1] == '*')
        return strncmp(route->path, path, n - 1) == 0;
    return strcmp(route->path, path) == 0;
}

static void call_route(ls_http_server *server, const ls_http_request *request, ls_http_answer *a)
{
    const char *method = strcmp(request->method, "HEAD") == 0 ? "GET" : request->method;
    bool here = false;

    if (server->args.admit && !server->args.admit(server->args.context, request, a))
        return;
    for (int i = 0; i < server->args.n_routes; i++) {
        const ls_http_route *route = &server->args.routes[i];
        if (!fits(route, request->path))
            continue;
        here = true;
        if (strcmp(route->method, method) == 0) {
            route->handler(server->args.context, request, a);
            return;
        }
    }
    refuse(a, here ? 405 : 404, here ? "not with this method" : "there is no such page");
}

/* Answer the request whose head and body are in c->in, or refuse it with a status. */
static void answer(ls_http_server *server, connection *c, ls_http_request *request, int refused,
                   const char *why)
{
    ls_http_answer a = {.status = 200, .type = "text/plain; charset=utf-8", .stream_id = c->id};

    ls_str_init(&a.headers);
    ls_str_init(&a.body);
    request->tls = c->tls != NULL;
    request->peer = c->peer.text;
    c->closing = refused || !request->keep_alive;
    if (refused)
        refuse(&a, refused, why);
    else
        call_route(server, request, &a);
    put_answer(server, c, &a, strcmp(request->method, "HEAD") == 0);
    ls_str_release(&a.headers);
    ls_str_release(&a.body);
    c->state = WRITE;
    c->deadline_ns = ls_time_now_ns() + server->args.request_ns;
    if (ls_str_status(&c->out) != LS_OK)
        drop(server, c);
}

/* A complete request in c->in is answered. */
static void look_at_input(ls_http_server *server, connection *c)
{
    size_t head = ls_http_request_head(c->in.p, c->in.len);
    ls_http_request request = {.method = ""};
    const char *why = "";
    int status = 0;

    if (!head) {
        if (c->in.len > LS_HTTP_HEAD_MOST)
            answer(server, c, &request, 431, "the head of the request is too long");
        return;
    }
    if (head > LS_HTTP_HEAD_MOST) {
        answer(server, c, &request, 431, "the head of the request is too long");
        return;
    }
    char *copy = ls_mem_alloc(head + 1); /* the bytes stay as they are until the body is here */
    if (!copy) {
        answer(server, c, &request, 503, "no memory");
        return;
    }
    memcpy(copy, c->in.p, head);
    status = ls_http_request_parse(&request, copy, head, &why);
    if (status == 0 && request.body_len > server->args.body_most) {
        status = 413;
        why = "the body is too long";
    }
    size_t all = status ? head : head + (size_t)request.body_len;
    if (c->in.len >= all) {
        char last = c->in.p[all];
        request.body = c->in.p + head;
        c->in.p[all] = '\0';
        answer(server, c, &request, status, why);
        if (c->fd >= 0 && !c->closing) { /* what follows is the next request */
            c->in.p[all] = last;
            memmove(c->in.p, c->in.p + all, c->in.len - all + 1);
            c->in.len -= all;
        }
    }
    ls_mem_free(copy);
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* Send what is queued; false: the connection is gone. */
static bool send_some(ls_http_server *server, connection *c)
{
    place *p = &server->places[c - server->connections];

    while (c->sent < c->out.len || c->constant_left > 0) {
        bool own = c->sent < c->out.len;
        const char *from = own ? c->out.p + c->sent : c->constant;
        size_t len = own ? c->out.len - c->sent : c->constant_left;
        int wait = 0;
        ssize_t n =
            c->tls ? ls_tls_write(c->tls, from, len, &wait) : send(c->fd, from, len, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n <= 0) {
            drop(server, c);
            return false;
        }
        c->deadline_ns = ls_time_now_ns() + server->args.request_ns;
        if (own) {
            c->sent += (size_t)n;
        } else {
            c->constant += n;
            c->constant_left -= (size_t)n;
        }
        if (c->streams) {
            pthread_mutex_lock(&server->lock);
            p->queued -= (size_t)ls_min_i64(n, (int64_t)p->queued);
            pthread_mutex_unlock(&server->lock);
        }
    }
    ls_str_clear(&c->out);
    c->sent = 0;
    return true;
}

/* What was sent makes room, even where the queue of a stream is never empty. */
static void forget_sent(connection *c)
{
    if (c->sent < READ_BYTES || c->sent < c->out.len / 2)
        return;
    memmove(c->out.p, c->out.p + c->sent, c->out.len - c->sent + 1);
    c->out.len -= c->sent;
    c->sent = 0;
}

/* After everything queued was sent: the next state. False: the connection is gone. */
static bool after_sending(ls_http_server *server, connection *c)
{
    if (c->sent < c->out.len || c->constant_left > 0)
        return true;
    if (c->closing) {
        leave_stream(server, c);
        ls_tls_close(c->tls);
        c->tls = NULL;
        c->tls_wait = 0;
        shutdown(c->fd, SHUT_WR);
        c->state = LINGER;
        c->deadline_ns = ls_time_now_ns() + LINGER_MS * LS_NS_PER_MS;
        return true;
    }
    if (c->state != WRITE)
        return true;
    if (c->streams) {
        c->state = STREAM;
        return true;
    }
    c->state = READ;
    c->heard = c->in.len > 0;
    c->deadline_ns = ls_time_now_ns() + (c->heard ? server->args.request_ns : server->args.idle_ns);
    return true;
}

/* Bytes from the reader of a stream mean nothing; that it closes does. */
static bool receive(ls_http_server *server, connection *c)
{
    char bytes[READ_BYTES];

    for (int i = 0; i < DRAIN_MOST && c->state != WRITE; i++) {
        int wait = POLLIN;
        ssize_t n = c->tls ? ls_tls_read(c->tls, bytes, sizeof bytes, &wait)
                           : recv(c->fd, bytes, sizeof bytes, 0);
        c->tls_wait = n < 0 && errno == EAGAIN && wait == POLLOUT ? POLLOUT : 0;
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n <= 0) {
            drop(server, c);
            return false;
        }
        if (c->state != READ)
            continue;
        if (!c->heard)
            c->deadline_ns = ls_time_now_ns() + server->args.request_ns;
        c->heard = true;
        ls_str_append_bytes(&c->in, bytes, (size_t)n);
        if (ls_str_status(&c->in) != LS_OK) {
            drop(server, c);
            return false;
        }
        look_at_input(server, c);
        if (c->fd < 0)
            return false;
    }
    return true;
}

/* Do with a connection what can be done now. Requests that came in one piece are answered one after
 * the other. */
static void serve(ls_http_server *server, connection *c)
{
    for (int i = 0; i < DRAIN_MOST; i++) {
        if (c->state == READ && c->in.len > 0)
            look_at_input(server, c);
        if (c->fd < 0 || (c->state != WRITE && !receive(server, c)))
            return;
        if (c->state == READ)
            break;
        state before = c->state;
        if (!send_some(server, c) || !after_sending(server, c))
            return;
        if (c->state == before)
            break;
    }
    forget_sent(c);
    watch(server, c);
}

/* --- the mailbox ------------------------------------------------------------------------------ */

static void wake(const ls_http_server *server)
{
    uint64_t one = 1;

    (void)!write(server->wake_fd, &one, sizeof one);
}

static connection *find(ls_http_server *server, uint64_t id)
{
    for (int i = 0; i < server->args.connections; i++)
        if (server->connections[i].fd >= 0 && server->connections[i].id == id)
            return &server->connections[i];
    return NULL;
}

static ls_status mail(ls_http_server *server, const letter *what, const void *bytes)
{
    ls_status st = LS_EPEER;

    pthread_mutex_lock(&server->lock);
    for (int i = 0; i < server->args.connections; i++) {
        place *p = &server->places[i];
        if (what->id == 0 || p->id != what->id)
            continue;
        bool behind = p->queued + what->len > server->args.stream_most;
        letter sent = {.id = what->id, .len = behind ? 0 : what->len, .ends = behind || what->ends};
        p->queued += sent.len;
        ls_str_append_bytes(&server->mailbox, &sent, sizeof sent);
        ls_str_append_bytes(&server->mailbox, bytes, sent.len);
        if (sent.ends)
            p->id = 0; /* nothing more is taken */
        st = behind ? LS_EPEER : ls_str_status(&server->mailbox);
        break;
    }
    pthread_mutex_unlock(&server->lock);
    if (st == LS_OK || what->len > 0)
        wake(server);
    return st;
}

ls_status ls_http_server_write(ls_http_server *server, uint64_t stream_id, const void *bytes,
                               size_t len)
{
    return mail(server, &(letter){.id = stream_id, .len = len}, bytes);
}

void ls_http_server_end(ls_http_server *server, uint64_t stream_id)
{
    (void)mail(server, &(letter){.id = stream_id, .ends = true}, "");
}

static void open_mail(ls_http_server *server)
{
    ls_str old;

    pthread_mutex_lock(&server->lock);
    old = server->mailbox;
    server->mailbox = server->reading;
    pthread_mutex_unlock(&server->lock);
    server->reading = old;
    for (size_t at = 0; at + sizeof(letter) <= old.len && !old.failed;) {
        letter l;
        memcpy(&l, old.p + at, sizeof l);
        at += sizeof l;
        connection *c = find(server, l.id);
        if (c) {
            bool quiet = c->sent == c->out.len;
            ls_str_append_bytes(&c->out, old.p + at, l.len);
            c->closing |= l.ends;
            if (quiet)
                c->deadline_ns = ls_time_now_ns() + server->args.request_ns;
            if (ls_str_status(&c->out) != LS_OK)
                drop(server, c);
            else
                serve(server, c);
        }
        at += l.len;
    }
    ls_str_clear(&server->reading);
}

/* --- the thread ------------------------------------------------------------------------------- */

static void drop_late(ls_http_server *server, int64_t now)
{
    if (now < server->look_at_ns)
        return;
    server->look_at_ns = now + LOOK_MS * LS_NS_PER_MS;
    if (server->deaf)
        listen_to(server, true);
    for (int i = 0; i < server->args.connections; i++) {
        connection *c = &server->connections[i];
        bool waits = c->state != STREAM || c->sent < c->out.len;
        if (c->fd >= 0 && waits && now >= c->deadline_ns)
            drop(server, c);
    }
}

static void tick(ls_http_server *server)
{
    int64_t now = ls_time_now_ns();

    if (server->streams == 0 || !server->args.tick || now < server->tick_at_ns)
        return;
    server->tick_at_ns = now + server->args.tick_ns;
    server->args.tick(server->args.context);
}

static int wait_ms(const ls_http_server *server)
{
    if (server->streams > 0 && server->args.tick)
        return (int)ls_min_i64(LOOK_MS, ls_max_i64(1, server->args.tick_ns / LS_NS_PER_MS));
    return atomic_load(&server->busy) > 0 || server->deaf ? LOOK_MS : -1;
}

static void *run(void *context)
{
    ls_http_server *server = context;
    struct epoll_event events[64];
    uint64_t count;

    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), server->args.nice);
    while (!atomic_load(&server->stop)) {
        int n = epoll_wait(server->epoll_fd, events, (int)LS_COUNT(events), wait_ms(server));
        for (int i = 0; i < n; i++) {
            uint64_t index = events[i].data.u64;
            if (index == LISTENS) {
                accept_all(server);
            } else if (index == WAKES) {
                (void)!read(server->wake_fd, &count, sizeof count);
            } else if (server->connections[index].fd >= 0) {
                serve(server, &server->connections[index]);
            }
        }
        open_mail(server);
        drop_late(server, ls_time_now_ns());
        tick(server);
    }
    return NULL;
}

/* --- opening ---------------------------------------------------------------------------------- */

static void fill_defaults(ls_http_server_args *args)
{
    if (args->body_most <= 0)
        args->body_most = 1 << 20;
    if (args->connections <= 0)
        args->connections = 256;
    if (args->request_ns <= 0)
        args->request_ns = 10 * LS_NS_PER_S;
    if (args->idle_ns <= 0)
        args->idle_ns = 60 * LS_NS_PER_S;
    if (args->stream_most == 0)
        args->stream_most = 4 << 20;
}

static ls_status open_sockets(ls_http_server *server)
{
    struct epoll_event listens = {.events = EPOLLIN, .data.u64 = LISTENS},
                       wakes = {.events = EPOLLIN, .data.u64 = WAKES};
    ls_status st;

    LS_TRY(st, ls_sock_listen(server->args.at, &server->listen_fd), out);
    LS_TRY(st, ls_sock_local(server->listen_fd, &server->at), out);
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->epoll_fd < 0 || server->wake_fd < 0 ||
        epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, server->listen_fd, &listens) != 0 ||
        epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, server->wake_fd, &wakes) != 0)
        st = ls_fail_sys(LS_EIO, "cannot watch sockets");
out:
    return st;
}

/* Signals are the other threads' to take. SIGPIPE, which OpenSSL may cause, stays pending here. */
static ls_status start(ls_http_server *server)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = ls_pool_start_apart(&server->thread, run, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        errno = failed;
        return ls_fail_sys(LS_EIO, "cannot start the thread of an HTTP server");
    }
    server->started = true;
    return LS_OK;
}

ls_status ls_http_server_open(ls_http_server **server_out, const ls_http_server_args *args)
{
    ls_status st = LS_OK;
    ls_http_server *server = ls_mem_alloc(sizeof *server);

    if (!server)
        return LS_ENOMEM;
    server->args = *args;
    server->listen_fd = server->epoll_fd = server->wake_fd = -1;
    pthread_mutex_init(&server->lock, NULL);
    ls_str_init(&server->mailbox);
    ls_str_init(&server->reading);
    fill_defaults(&server->args);
    int n = server->args.connections;
    server->places = ls_mem_array((size_t)n, sizeof *server->places);
    server->connections = ls_mem_array((size_t)n, sizeof *server->connections);
    for (int i = 0; server->connections && i < n; i++)
        server->connections[i].fd = -1;
    if (!server->connections || !server->places) {
        st = LS_ENOMEM;
        goto out;
    }
    if (args->cert_file)
        LS_TRY(st, ls_tls_server_open(&server->tls, args->cert_file, args->key_file), out);
    LS_TRY(st, open_sockets(server), out);
    LS_TRY(st, start(server), out);
    *server_out = server;
    server = NULL;
out:
    ls_http_server_close(server);
    return st;
}

void ls_http_server_close(ls_http_server *server)
{
    if (!server)
        return;
    if (server->started) {
        atomic_store(&server->stop, true);
        wake(server);
        pthread_join(server->thread, NULL);
    }
    for (int i = 0; server->connections && i < server->args.connections; i++)
        drop(server, &server->connections[i]);
    ls_tls_server_close(server->tls);
    ls_sock_close(&server->listen_fd);
    ls_sock_close(&server->epoll_fd);
    ls_sock_close(&server->wake_fd);
    ls_str_release(&server->mailbox);
    ls_str_release(&server->reading);
    ls_mem_free(server->places);
    ls_mem_free(server->connections);
    pthread_mutex_destroy(&server->lock);
    ls_mem_free(server);
}

const ls_sock_address *ls_http_server_address(const ls_http_server *server)
{
    return &server->at;
}

int ls_http_server_connections(ls_http_server *server)
{
    return atomic_load(&server->busy);
}
