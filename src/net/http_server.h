/* http_server.h -- a small HTTP/1.1 server in a thread of its own: pages, JSON, and streams.
 *
 * The thread waits in epoll for all connections and calls the handlers, one at a time. A handler
 * fills in an answer and returns; it must not wait. An answer may begin a stream (server-sent
 * events), to which any thread writes until the reader leaves.
 *
 * Strangers are bounded: a head of LS_HTTP_HEAD_MOST bytes, a body of args.body_most, a table of
 * args.connections; a request has args.request_ns to arrive, and an answer or stream whose reader
 * takes nothing for as long ends the connection. It listens at one address, never at the wildcard;
 * with a certificate it speaks only TLS (1.2 or newer). */
#pragma once
#include "base/err.h"
#include "base/str.h"
#include "net/http_request.h"
#include "net/sock.h"

LS_C_BEGIN

typedef struct ls_http_server ls_http_server;

typedef struct ls_http_answer {
    int status;       /* 200 */
    const char *type; /* of the body; a constant text; "text/plain; charset=utf-8" */
    ls_str headers;   /* more of them, "Name: value\r\n" each */
    ls_str body;      /* of a stream: what it begins with */
    /* A body that outlives the server, instead of `body`. NULL: none. */
    const void *constant;
    size_t constant_len;
    bool stream;        /* stays open; written to with ls_http_server_write() */
    uint64_t stream_id; /* of this connection, set before the handler is called; never 0 */
} ls_http_answer;

typedef void (*ls_http_handler)(void *context, const ls_http_request *request,
                                ls_http_answer *answer);

/* A path that ends in '*' is a prefix. A handler of GET also gets HEAD. */
typedef struct ls_http_route {
    const char *method, *path;
    ls_http_handler handler;
} ls_http_route;

typedef struct ls_http_server_args {
    const ls_sock_address *at;   /* NULL: loopback, at a port that the kernel chooses */
    const ls_http_route *routes; /* the first that fits; borrowed until close */
    int n_routes;
    void *context; /* of all handlers */
    /* Called before any route, also for paths without one: whether the request may pass. If not,
     * the answer is its refusal. NULL: all may. */
    bool (*admit)(void *context, const ls_http_request *request, ls_http_answer *answer);
    /* Called in the thread every tick_ns, but only while streams are open. NULL: never. */
    void (*tick)(void *context);
    void (*stream_closed)(void *context, uint64_t stream_id); /* in the thread; NULL: ignored */
    int64_t tick_ns;
    const char *cert_file, *key_file; /* PEM; both or neither */
    int64_t body_most;                /* 0: 1 MiB */
    int connections;                  /* 0: 256 */
    int64_t request_ns;               /* 0: 10 s */
    int64_t idle_ns;                  /* a connection without a request; 0: 60 s */
    size_t stream_most;               /* bytes a stream may be behind; 0: 4 MiB */
    int nice;                         /* of the thread, 0 to 19 */
} ls_http_server_args;

/* Listen and start the thread. LS_EIO: the address cannot be had. LS_EUSAGE, LS_EDATA: the
 * certificate or its key. */
ls_status ls_http_server_open(ls_http_server **server_out, const ls_http_server_args *args);

/* End the thread; streams are cut. Not from a handler. NULL is allowed. */
void ls_http_server_close(ls_http_server *server);

const ls_sock_address *ls_http_server_address(const ls_http_server *server);

/* Append to a stream. LS_EPEER: its reader has left, or is further behind than it may be and is cut
 * off. Any thread. */
ls_status ls_http_server_write(ls_http_server *server, uint64_t stream_id, const void *bytes,
                               size_t len);
/* No more will be written: the connection ends when all of it is sent. Any thread. */
void ls_http_server_end(ls_http_server *server, uint64_t stream_id);

/* Open connections, for tests and metrics. */
int ls_http_server_connections(ls_http_server *server);

LS_C_END
