/* test_http_server.c -- requests that are well made, slow, too long, torn or nonsense; streams whose
 * readers are idle, slow or gone; TLS. */
#include <openssl/ssl.h>
#include "harness.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"
#include "net/http_server.h"

static atomic_uint_fast64_t stream_of;
static atomic_int closed_streams, ticks;

static void hello(void *context, const ls_http_request *request, ls_http_answer *answer)
{
    char name[32] = "you";

    (void)context;
    ls_http_request_parameter(request, "name", name, sizeof name);
    ls_str_printf(&answer->body, "hello %s", name);
}

static void echo(void *context, const ls_http_request *request, ls_http_answer *answer)
{
    (void)context;
    ls_str_append_bytes(&answer->body, request->body, (size_t)request->body_len);
}

static void large(void *context, const ls_http_request *request, ls_http_answer *answer)
{
    static char bytes[8 << 20];

    (void)context;
    (void)request;
    answer->constant = bytes;
    answer->constant_len = sizeof bytes;
}

static void stream(void *context, const ls_http_request *request, ls_http_answer *answer)
{
    (void)context;
    (void)request;
    answer->type = "text/event-stream";
    answer->stream = true;
    ls_str_append(&answer->body, "first\n");
    atomic_store(&stream_of, answer->stream_id);
}

static bool admit(void *context, const ls_http_request *request, ls_http_answer *answer)
{
    (void)context;
    if (strcmp(request->path, "/secret") != 0)
        return true;
    answer->status = 403;
    ls_str_append(&answer->body, "no");
    return false;
}

static void on_tick(void *context)
{
    (void)context;
    atomic_fetch_add(&ticks, 1);
}

static void on_closed(void *context, uint64_t id)
{
    (void)context;
    (void)id;
    atomic_fetch_add(&closed_streams, 1);
}

static const ls_http_route routes[] = {{"GET", "/", hello},
                                       {"POST", "/echo", echo},
                                       {"GET", "/large", large},
                                       {"GET", "/files/*", hello},
                                       {"GET", "/stream", stream}};

static ls_http_server *start(ls_http_server_args args)
{
    ls_http_server *server = NULL;

    args.routes = routes;
    args.n_routes = LS_COUNT(routes);
    args.admit = admit;
    args.tick = on_tick;
    args.stream_closed = on_closed;
    args.tick_ns = LS_NS_PER_MS;
    LS_CHECK_OK(ls_http_server_open(&server, &args));
    return server;
}

static int call(ls_http_server *server)
{
    int fd = -1;

    LS_CHECK_OK(ls_sock_connect(ls_http_server_address(server), ls_test_soon(), &fd));
    return fd;
}

static void say(int fd, const char *text)
{
    size_t len = strlen(text);

    while (len > 0) {
        LS_CHECK_OK(ls_sock_wait(fd, POLLOUT, ls_test_soon()));
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
        if (n < 0)
            return; /* it was refused before its end */
        text += n;
        len -= (size_t)n;
    }
}

/* What comes until the other side closes, or until text is there. */
static void hear(int fd, const char *until, ls_str *out)
{
    char bytes[4096];

    while (!until || !strstr(out->p, until)) {
        LS_CHECK_OK(ls_sock_wait(fd, POLLIN, ls_test_soon()));
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n <= 0)
            return;
        ls_str_append_bytes(out, bytes, (size_t)n);
    }
}

static void ask(ls_http_server *server, const char *text, const char *expected)
{
    int fd = call(server);
    ls_str answer;

    ls_str_init(&answer);
    say(fd, text);
    hear(fd, NULL, &answer);
    if (!strstr(answer.p, expected))
        ls_test_fail(__FILE__, __LINE__, "\"%.80s\" gave \"%.200s\", not \"%s\"", text, answer.p,
                     expected);
    ls_str_release(&answer);
    ls_sock_close(&fd);
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

LS_TEST(http_server_answers)
{
    ls_http_server *server = start((ls_http_server_args){0});

    ask(server, GET("/"), "200 OK");
    ask(server, GET("/?name=w%6frld+2&x=1"), "\r\n\r\nhello world 2");
    ask(server, GET("/files/a%20b"), "hello you");
    ask(server, GET("/none"), "404 Not Found");
    ask(server, GET("/secret"), "403 Forbidden");
    ask(server, "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "405 Method");
    ask(server, "HEAD / HTTP/1.0\r\nHost: a\r\n\r\n", "Content-Length: 9");
    ask(server, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" GET("/?name=next"),
        "\r\n\r\nabcHTTP/1.1 200 OK");
    ls_http_server_close(server);
}

LS_TEST(http_server_refuses_what_is_no_request)
{
    ls_http_server *server = start((ls_http_server_args){.body_most = 1000});
    static const char *const bad[][2] = {
        {"\r\n\r\n", "400"},
        {"GET\r\n\r\n", "400"},
        {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", "505"},
        {"GET / HTTP/1.15\r\nHost: a\r\n\r\n", "505"},
        {"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
        {"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
        {"GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
        {"GET / HTTP/1.1\r\n\r\n", "400"},
        {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"},
        {"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", "400"},
        {"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", "400"},
        {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", "400"},
        {"GET / HTTP/1.1\r\nHost: a\001\r\n\r\n", "400"},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\n", "400"},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", "400"},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", "413"},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999999999999\r\n\r\n", "400"},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "501"},
    };

    for (size_t i = 0; i < LS_COUNT(bad); i++)
        ask(server, bad[i][0], bad[i][1]);
    ls_http_server_close(server);
}

LS_TEST(http_server_bounds_head_and_headers)
{
    ls_http_server *server = start((ls_http_server_args){0});
    ls_str text;

    ls_str_init(&text);
    ls_str_append(&text, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
    for (int i = 0; i < 100000; i++)
        ls_str_append_char(&text, 'x');
    ask(server, text.p, "431 ");
    ls_str_clear(&text);
    ls_str_append(&text, "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < 100; i++)
        ls_str_append(&text, "X: y\r\n");
    ls_str_append(&text, "\r\n");
    ask(server, text.p, "431 ");
    ls_str_release(&text);
    ls_http_server_close(server);
}

/* A client that sends a byte now and then, one that sends half of a body, and one that reads
 * nothing: each is dropped in time, and others are served meanwhile. */
LS_TEST(http_server_drops_slow_clients)
{
    ls_http_server *server =
        start((ls_http_server_args){.request_ns = 300 * LS_NS_PER_MS, .idle_ns = LS_NS_PER_S});
    int slow = call(server), half = call(server), deaf = call(server), silent = call(server);
    int64_t limit = ls_test_soon();

    say(half, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
    say(deaf, GET("/large"));
    while (ls_http_server_connections(server) < 4)
        usleep(1000);
    for (int i = 0; ls_http_server_connections(server) > 0; i++) {
        if (i % 20 == 0)
            (void)!send(slow, "G", 1, MSG_NOSIGNAL);
        if (i == 5)
            ask(server, GET("/"), "200 OK");
        LS_CHECK(ls_time_now_ns() < limit);
        usleep(5000);
    }
    ls_sock_close(&slow);
    ls_sock_close(&half);
    ls_sock_close(&deaf);
    ls_sock_close(&silent);
    ls_http_server_close(server);
}

LS_TEST(http_server_makes_room_in_a_full_table)
{
    ls_http_server *server = start((ls_http_server_args){.connections = 8});
    int fds[20];

    for (size_t i = 0; i < LS_COUNT(fds); i++)
        fds[i] = call(server); /* says nothing */
    ask(server, GET("/"), "200 OK");
    LS_CHECK(ls_http_server_connections(server) <= 8);
    for (size_t i = 0; i < LS_COUNT(fds); i++)
        ls_sock_close(&fds[i]);
    ls_http_server_close(server);
}

/* --- streams ----------------------------------------------------------------------------------- */

static uint64_t open_stream(int fd, ls_str *heard)
{
    say(fd, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    hear(fd, "first\n", heard);
    return atomic_load(&stream_of);
}

LS_TEST(http_server_streams_to_many_idle_readers)
{
    enum { READERS = 120 };
    ls_http_server *server = start((ls_http_server_args){.request_ns = 200 * LS_NS_PER_MS});
    int fds[READERS];
    uint64_t ids[READERS];
    ls_str heard;

    ls_str_init(&heard);
    for (int i = 0; i < READERS; i++) {
        fds[i] = call(server);
        ls_str_clear(&heard);
        ids[i] = open_stream(fds[i], &heard);
    }
    usleep(400000); /* longer than a request may take: a stream without news stays */
    LS_CHECK(atomic_load(&ticks) > 0);
    for (int i = 0; i < READERS; i++)
        LS_CHECK_OK(ls_http_server_write(server, ids[i], "second\n", 7));
    for (int i = 0; i < READERS; i++) {
        ls_str_clear(&heard);
        hear(fds[i], "second\n", &heard);
        LS_CHECK(strstr(heard.p, "second\n"));
    }
    ls_http_server_end(server, ids[0]);
    hear(fds[0], NULL, &heard); /* ends */
    for (int i = 0; i < READERS; i++)
        ls_sock_close(&fds[i]);
    for (int64_t limit = ls_test_soon(); atomic_load(&closed_streams) < READERS;) {
        LS_CHECK(ls_time_now_ns() < limit);
        usleep(1000);
    }
    LS_CHECK_EQ(ls_http_server_write(server, ids[1], "x", 1), LS_EPEER);
    ls_str_release(&heard);
    ls_http_server_close(server);
}

LS_TEST(http_server_cuts_a_reader_that_is_too_far_behind)
{
    static char block[64 << 10];
    ls_http_server *server = start((ls_http_server_args){.stream_most = 1 << 20});
    ls_str heard;

    ls_str_init(&heard);
    int fd = call(server), others = 0;
    uint64_t id = open_stream(fd, &heard);
    while (others < 10000 && ls_http_server_write(server, id, block, sizeof block) == LS_OK)
        others++;
    LS_CHECK(others >= 16 && others < 10000);
    ask(server, GET("/"), "200 OK");
    ls_sock_close(&fd);
    ls_str_release(&heard);
    ls_http_server_close(server);
}

/* Random requests, torn at random places: the server survives and answers the next one. */
LS_TEST(http_server_survives_garbage)
{
    static const char *const words[] = {"GET ",
                                        "/ ",
                                        "HTTP/1.1\r\n",
                                        "Host: a\r\n",
                                        "\r\n",
                                        "Content-Length: 5\r\n",
                                        "%",
                                        "\0x",
                                        "POST /echo ",
                                        ":",
                                        "\r\n\r\n",
                                        "Connection: keep-alive\r\n",
                                        "\xff",
                                        "abc",
                                        "/stream ",
                                        "Cookie: a=b; c\r\n"};
    ls_http_server *server = start((ls_http_server_args){.request_ns = LS_NS_PER_S});

    for (uint32_t i = 0; i < 300; i++) {
        int fd = call(server);
        for (uint32_t k = 0; k < 12; k++) {
            uint32_t x = ls_rng_philox((ls_rng_key){{7, 9}}, i, k, 0, 0).v[0];
            const char *word = words[x % LS_COUNT(words)];
            (void)!send(fd, word, *word ? strlen(word) : 2, MSG_NOSIGNAL);
        }
        ls_sock_close(&fd);
    }
    ask(server, GET("/"), "200 OK");
    ls_http_server_close(server);
}

LS_TEST(http_server_open_frees_what_it_took_when_memory_ends)
{
    for (uint64_t n = 1; n < 40; n++) {
        ls_http_server *server = NULL;
        ls_http_server_args args = {.routes = routes, .n_routes = LS_COUNT(routes)};
        ls_mem_fail_nth(n);
        ls_status st = ls_http_server_open(&server, &args);
        ls_mem_fail_nth(0);
        LS_CHECK(st == LS_OK || st == LS_ENOMEM);
        ls_http_server_close(server);
    }
}

/* --- TLS --------------------------------------------------------------------------------------- */

LS_TEST(http_server_speaks_tls)
{
    if (system("openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 "
               "-subj /CN=localhost >openssl.log 2>&1") != 0)
        ls_test_skip("there is no openssl command to make a certificate");
    ls_http_server_args args = {.cert_file = "cert.pem", .key_file = "key.pem"};
    ls_http_server *server = start(args), *other = NULL;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(context);
    char bytes[9000];
    size_t got = 0;
    int fd = call(server), n = 1;

    ask(server, GET("/"), ""); /* not encrypted: closed */
    fcntl(fd, F_SETFL, 0);     /* let OpenSSL wait */
    LS_CHECK(SSL_set_fd(ssl, fd) == 1 && SSL_connect(ssl) == 1);
    for (int i = 0; i < 3; i++) {
        static const char two[] = "GET /large HTTP/1.1\r\nHost: a\r\n\r\n";
        LS_CHECK(SSL_write(ssl, two, sizeof two - 1) > 0);
    }
    LS_CHECK(SSL_write(ssl, GET("/?name=tls"), sizeof GET("/?name=tls") - 1) > 0);
    while (n > 0 && (n = SSL_read(ssl, bytes, sizeof bytes - 1)) > 0)
        got += (size_t)n;
    LS_CHECK(got > 3 * (8 << 20) && got < 3 * (8 << 20) + 4096);
    SSL_free(ssl);
    SSL_CTX_free(context);
    ls_sock_close(&fd);
    ls_http_server_close(server);
    args.key_file = "openssl.log";
    LS_CHECK_FAILS(ls_http_server_open(&other, &args), LS_EDATA, "cannot be used");
    args.cert_file = "none.pem";
    LS_CHECK_FAILS(ls_http_server_open(&other, &args), LS_EUSAGE, "none.pem");
}
