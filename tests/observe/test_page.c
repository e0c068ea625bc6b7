/* test_page.c -- the page of a run: its data against the store, who may ask for it, streams, readers
 * that do not read, a million points. What a browser makes of it: tests/conformance/page.py. */
#include "harness.h"

#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/time.h"
#include "net/sock.h"
#include "observe/page/page_assets.h"
#include "observe/page/page_data.h"
#include "observe/page/page_server.h"
#include "observe/store/store_writer.h"

static void append_to(const char *folder, const char *text)
{
    char path[128];

    LS_CHECK_OK(ls_file_make_dirs(folder));
    snprintf(path, sizeof path, "%s/events.jsonl", folder);
    FILE *f = fopen(path, "ae");
    LS_CHECK(f);
    LS_CHECK(fputs(text, f) >= 0);
    LS_CHECK(fclose(f) == 0);
}

static void add_step(int step, double loss)
{
    char line[256];

    snprintf(line, sizeof line,
             "{\"event\":\"step\",\"step\":%d,\"loss\":%.6f,\"ms\":12.5,\"split\":{\"data\":1.5,"
             "\"forward\":11},\"time\":%d.250}\n",
             step, loss, 1000 + step);
    append_to("runs/a", line);
}

static void begin_run(int steps)
{
    append_to("runs/a",
              "{\"event\":\"rank\",\"rank\":0,\"pid\":1,\"host\":\"a\",\"time\":1000.5}\n"
              "{\"event\":\"start\",\"name\":\"<script>alert(1)</script>\",\"first_step\":"
              "0,\"total_steps\":90,\"settings\":{\"train.lr\":0.1},\"time\":1000.5}\n");
    for (int i = 1; i <= steps; i++)
        add_step(i, i == 7 ? 9 : 1.0 / i);
}

/* --- the data ---------------------------------------------------------------------------------- */

static json_t *parse(const ls_str *text)
{
    json_error_t error;
    json_t *json = json_loadb(text->p, text->len, 0, &error);

    if (!json)
        ls_test_fail(__FILE__, __LINE__, "%s in %.200s", error.text, text->p);
    return json;
}

/* The length of an array under keys "a.b.c"; -1: it is not there. */
static int length(const json_t *json, const char *path)
{
    char keys[128], *rest = NULL;

    snprintf(keys, sizeof keys, "%s", path);
    for (char *key = strtok_r(keys, "/", &rest); key; key = strtok_r(NULL, "/", &rest))
        json = json_object_get(json, key);
    return json ? (int)json_array_size(json) : -1;
}

static json_t *snapshot(ls_page_data *data, int bins, ls_page_cursor *cursor)
{
    int64_t version;
    ls_str text;

    ls_str_init(&text);
    LS_CHECK_OK(ls_page_data_look(data, &version));
    LS_CHECK_OK(ls_page_data_snapshot(data, &(ls_page_request){.bins = bins, .others = true},
                                      cursor, &text));
    LS_CHECK(!strchr(text.p, '<'));
    json_t *json = parse(&text);
    ls_str_release(&text);
    return json;
}

LS_TEST(page_data_is_what_the_store_has)
{
    ls_page_cursor cursor;
    ls_page_data *data;

    begin_run(40);
    append_to("runs/b", "{\"event\":\"start\",\"name\":\"b\",\"first_step\":0}\n");
    append_to("other/c", "{\"event\":\"start\",\"name\":\"c\",\"first_step\":0}\n");
    LS_CHECK_OK(ls_page_data_open("runs/a//", false, &data));
    json_t *json = snapshot(data, 0, &cursor);
    const json_t *run = json_object_get(json, "run");
    LS_CHECK_STR(json_string_value(json_object_get(run, "name")), "<script>alert(1)</script>");
    LS_CHECK_EQ(json_integer_value(json_object_get(run, "steps")), 40);
    LS_CHECK_EQ(length(json, "series/loss/x"), 40);
    LS_CHECK_EQ(length(json, "series/loss/t"), 40);
    LS_CHECK_EQ(length(json, "series/loss/lo"), -1); /* each point is one value */
    LS_CHECK_EQ(length(json, "series/split.forward_ms/m"), 40);
    LS_CHECK_EQ(length(json, "events"), 2);
    LS_CHECK_EQ(length(json, "others"), 1);
    LS_CHECK_STR(json_string_value(json_array_get(json_object_get(json, "others"), 0)), "b");
    json_decref(json);

    /* Put together, the peak of step 7 stays. */
    json = snapshot(data, 4, &cursor);
    const json_t *loss = json_object_get(json_object_get(json, "series"), "loss");
    LS_CHECK_EQ(length(loss, "x"), 4);
    LS_CHECK_NEAR(json_number_value(json_array_get(json_object_get(loss, "hi"), 0)), 9, 0);
    json_decref(json);
    ls_page_data_close(data);
    LS_CHECK_FAILS(ls_page_data_open("runs", false, &data), LS_EIO, "is no run folder");
}

static json_t *changes(ls_page_data *data, ls_page_cursor *cursor, bool *again)
{
    int64_t version;
    ls_str text;

    ls_str_init(&text);
    LS_CHECK_OK(ls_page_data_look(data, &version));
    LS_CHECK_OK(ls_page_data_changes(data, cursor, &text, again));
    json_t *json = *again ? NULL : parse(&text);
    ls_str_release(&text);
    return json;
}

LS_TEST(page_data_gives_what_is_new)
{
    ls_page_cursor cursor;
    ls_page_data *data;
    bool again;

    LS_CHECK_OK(ls_page_data_open("runs/a", true, &data)); /* it begins later */
    json_t *json = snapshot(data, 0, &cursor);
    LS_CHECK_STR(json_string_value(json_object_get(json_object_get(json, "run"), "state")),
                 "starting");
    json_decref(json);
    begin_run(10);
    LS_CHECK(!changes(data, &cursor, &again));
    LS_CHECK(again);
    json_decref(snapshot(data, 0, &cursor));
    add_step(11, 0.1);
    add_step(12, 0.2);
    append_to("runs/a", "{\"event\":\"eval\",\"step\":12,\"val_loss\":3}\n");
    json = changes(data, &cursor, &again);
    LS_CHECK_EQ(length(json, "series/loss/x"), 2);
    LS_CHECK_EQ(length(json, "series/val_loss/x"), 1);
    LS_CHECK_EQ(length(json, "events"), 0);
    json_decref(json);
    /* A validation of a step whose loss is known already. */
    append_to("runs/a", "{\"event\":\"checkpoint\",\"step\":12,\"path\":\"x\"}\n");
    json = changes(data, &cursor, &again);
    LS_CHECK_EQ(length(json, "series/loss/x"), -1);
    LS_CHECK_EQ(length(json, "events"), 1);
    json_decref(json);
    json = changes(data, &cursor, &again);
    LS_CHECK_EQ(length(json, "events"), 0);
    json_decref(json);

    /* Steps are made again: the reader needs all of it. */
    append_to("runs/a", "{\"event\":\"incident\",\"step\":8,\"kind\":\"lost\",\"redone\":4}\n");
    add_step(9, 0.5);
    LS_CHECK(!changes(data, &cursor, &again));
    LS_CHECK(again);
    json = snapshot(data, 0, &cursor);
    LS_CHECK_EQ(length(json, "series/loss/x"), 9);
    json_decref(json);

    /* Another file of events (--fresh): another run. */
    LS_CHECK(rename("runs/a/events.jsonl", "runs/a/events.before-1.jsonl") == 0);
    append_to("runs/a", "{\"event\":\"start\",\"name\":\"new\",\"first_step\":0}\n");
    int64_t limit = ls_test_soon();
    do {
        json_decref(changes(data, &cursor, &again));
        usleep(20000);
        LS_CHECK(ls_time_now_ns() < limit);
    } while (!again);
    json = snapshot(data, 0, &cursor);
    LS_CHECK_EQ(length(json, "series/loss/x"), -1);
    json_decref(json);
    ls_page_data_close(data);
}

LS_TEST(page_data_of_a_million_points_is_quick)
{
    enum { STEPS = 100000 };
    static const char *const names[] = {"loss",
                                        "lr",
                                        "grad_norm",
                                        "tokens_per_s",
                                        "step_ms",
                                        "split.data_ms",
                                        "split.eval_ms",
                                        "split.other_ms",
                                        "split.forward_ms",
                                        "split.backward_ms"};
    ls_store_writer writer;
    ls_page_cursor cursor;
    ls_page_data *data;

    ls_test_one_thread();
    begin_run(0);
    LS_CHECK_OK(ls_store_writer_open(&writer, "runs/a", NULL));
    LS_CHECK_OK(ls_store_db_begin(&writer.db));
    for (int step = 1; step <= STEPS; step++)
        for (size_t i = 0; i < LS_COUNT(names); i++)
            LS_CHECK_OK(
                ls_store_db_put(&writer.db, &(ls_store_point){.name = names[i],
                                                              .unit = "",
                                                              .rank = -1,
                                                              .x = step,
                                                              .time_ms = 1000 * step,
                                                              .value = step == 77777 ? 1e9 : 1}));
    LS_CHECK_OK(ls_store_db_commit(&writer.db));
    int64_t began = ls_time_now_ns();
    LS_CHECK_OK(ls_page_data_open("runs/a", false, &data));
    json_t *json = snapshot(data, 0, &cursor);
    LS_CHECK_WITHIN(began, 1000);
    const json_t *loss = json_object_get(json_object_get(json, "series"), "loss");
    double most = 0;
    for (int i = 0; i < length(loss, "hi"); i++)
        most =
            fmax(most, json_number_value(json_array_get(json_object_get(loss, "hi"), (size_t)i)));
    LS_CHECK(length(loss, "x") <= LS_PAGE_BINS && length(loss, "x") > LS_PAGE_BINS / 4);
    LS_CHECK_NEAR(most, 1e9, 0); /* one step of a hundred thousand */
    json_decref(json);
    ls_page_data_close(data);
    ls_store_writer_close(&writer);
}

LS_TEST(page_in_one_file_holds_no_markup_of_the_run)
{
    ls_page_data *data;
    ls_str json, html;

    begin_run(3);
    append_to("runs/a", "{\"event\":\"sample\",\"step\":3,\"prompt\":\"</script><img src=x>\","
                        "\"text\":\"<!--\"}\n");
    ls_str_init(&json);
    ls_str_init(&html);
    LS_CHECK_OK(ls_page_data_open("runs/a", false, &data));
    LS_CHECK_OK(ls_page_data_snapshot(data, &(ls_page_request){.bins = 0}, NULL, &json));
    LS_CHECK_OK(ls_page_assets_alone(&json, &html));
    LS_CHECK(!strstr(html.p, "<script>alert"));
    LS_CHECK(!strstr(html.p, "<img"));
    LS_CHECK(strstr(html.p, "\\u003cimg src=x>"));
    LS_CHECK(strstr(html.p, "default-src 'none'; base-uri 'none'; form-action 'none'; script-src "
                            "'sha256-"));
    LS_CHECK(!strstr(html.p, "unsafe-inline"));
    LS_CHECK(!strstr(html.p, "http://") && !strstr(html.p, "https://"));
    ls_page_data_close(data);
    ls_str_release(&json);
    ls_str_release(&html);
}

/* --- the server -------------------------------------------------------------------------------- */

typedef struct place {
    ls_page_server *server;
    ls_sock_address at;
    char host[64], token[64];
} place;

static place serve(ls_page_server_args args)
{
    place p = {.server = NULL};

    args.folder = "runs/a";
    args.tick_ns = 5 * LS_NS_PER_MS;
    LS_CHECK_OK(ls_page_server_open(&p.server, &args));
    LS_CHECK_EQ(sscanf(ls_page_server_url(p.server), "http://%63[^/]/?token=%63s", p.host, p.token),
                2);
    LS_CHECK_OK(ls_sock_resolve(p.host, 0, &p.at));
    LS_CHECK_EQ(strlen(p.token), 32);
    return p;
}

static int call(const place *p)
{
    int fd = -1;

    LS_CHECK_OK(ls_sock_connect(&p->at, ls_test_soon(), &fd));
    return fd;
}

static void say(int fd, const char *text)
{
    LS_CHECK_OK(ls_sock_wait(fd, POLLOUT, ls_test_soon()));
    LS_CHECK_EQ(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* Until the other side closes, or until text has come; false: it closed before. */
static bool hear(int fd, const char *until, ls_str *out)
{
    char bytes[65536];

    while (!until || !strstr(out->p, until)) {
        LS_CHECK_OK(ls_sock_wait(fd, POLLIN, ls_test_soon()));
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n <= 0)
            return false;
        ls_str_append_bytes(out, bytes, (size_t)n);
    }
    return true;
}

/* The status of a request; {T} in target and headers is the token, {C} the name of the cookie. */
static int ask(const place *p, const char *target, const char *host, const char *headers,
               ls_str *answer_out)
{
    char request[2048];
    int fd = call(p), status = 0;
    ls_str answer;

    ls_str_init(&answer);
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n",
             target, host, headers);
    say(fd, request);
    hear(fd, NULL, &answer);
    LS_CHECK_EQ(sscanf(answer.p, "HTTP/1.1 %d", &status), 1);
    ls_sock_close(&fd);
    if (answer_out)
        ls_str_append_bytes(answer_out, answer.p, answer.len);
    ls_str_release(&answer);
    return status;
}

static int ask_with_token(const place *p, const char *path, const char *host, const char *headers)
{
    char target[256];

    snprintf(target, sizeof target, "%s%stoken=%s", path, strchr(path, '?') ? "&" : "?", p->token);
    return ask(p, target, host, headers, NULL);
}

LS_TEST(page_server_asks_for_the_token)
{
    static const char *const paths[] = {"/", "/page", "/stream", "/range", "/page.js", "/none"};
    char target[128], cookie[128], header[256];
    ls_str answer;

    begin_run(3);
    place p = serve((ls_page_server_args){0});
    for (size_t i = 0; i < LS_COUNT(paths); i++) {
        LS_CHECK_EQ(ask(&p, paths[i], p.host, "", NULL), 403);
        snprintf(target, sizeof target, "%s?token=", paths[i]);
        LS_CHECK_EQ(ask(&p, target, p.host, "", NULL), 403);
        snprintf(target, sizeof target, "%s?token=%.31s", paths[i], p.token);
        LS_CHECK_EQ(ask(&p, target, p.host, "", NULL), 403);
        snprintf(target, sizeof target, "%s?token=%s0", paths[i], p.token);
        LS_CHECK_EQ(ask(&p, target, p.host, "", NULL), 403);
        for (int k = 0; k < 32; k += 31) { /* one digit is another */
            snprintf(target, sizeof target, "%s?token=%s", paths[i], p.token);
            char *digit = strstr(target, p.token) + k;
            *digit = *digit == '0' ? '1' : '0';
            LS_CHECK_EQ(ask(&p, target, p.host, "", NULL), 403);
        }
    }
    ls_str_init(&answer);
    snprintf(target, sizeof target, "/?token=%s", p.token);
    LS_CHECK_EQ(ask(&p, target, p.host, "", &answer), 200);
    LS_CHECK(strstr(answer.p, "Content-Security-Policy: default-src 'none'; script-src 'self';"));
    LS_CHECK(strstr(answer.p, "HttpOnly; SameSite=Strict\r\n"));
    LS_CHECK(!strstr(strstr(answer.p, "\r\n\r\n"), p.token)); /* not in the page itself */
    const char *set = strstr(answer.p, "Set-Cookie: ");
    LS_CHECK(set && sscanf(set, "Set-Cookie: %127[^;]", cookie) == 1);
    snprintf(header, sizeof header, "Cookie: a=b; %s\r\n", cookie);
    LS_CHECK_EQ(ask(&p, "/page", p.host, header, NULL), 200);
    LS_CHECK_EQ(ask(&p, "/page.js", p.host, header, NULL), 200);
    cookie[strlen(cookie) - 1] ^= 1;
    snprintf(header, sizeof header, "Cookie: %s\r\n", cookie);
    LS_CHECK_EQ(ask(&p, "/page", p.host, header, NULL), 403);
    ls_str_release(&answer);
    ls_page_server_close(p.server);
}

LS_TEST(page_server_refuses_other_sites)
{
    static const struct {
        const char *path, *host, *headers; /* host NULL: the right one */
        int status;
    } cases[] = {
        {"/page", "evil.example", "", 403}, /* DNS rebinding */
        {"/page", "127.0.0.1.evil.example:1", "", 403},
        {"/page", "127.0.0.1@evil.example", "", 403},
        {"/page", "localhost:80.evil", "", 403},
        {"/page", "", "", 403},
        {"/page", "[::1", "", 403},
        {"/page", "localhost:8080", "", 200}, /* a tunnel */
        {"/page", "LOCALHOST", "", 200},
        {"/page", "[::1]:9", "", 200},
        {"/page", "localhost:1", "Origin: http://localhost:1\r\n", 200},
        {"/page", "localhost:1", "Origin: http://localhost:2\r\n", 403},
        {"/page", "localhost:1", "Origin: https://localhost:1\r\n", 403},
        {"/page", NULL, "Origin: http://evil.example\r\n", 403},
        {"/page", NULL, "Origin: null\r\n", 403},
        {"/page", NULL, "Sec-Fetch-Site: same-origin\r\n", 200},
        {"/page", NULL, "Sec-Fetch-Site: none\r\n", 200},
        {"/page", NULL, "Sec-Fetch-Site: same-site\r\n", 403},
        {"/stream", NULL, "Sec-Fetch-Site: cross-site\r\n", 403},
        {"/page.js", NULL, "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n", 403},
        {"/", NULL, "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n", 403},
        {"/", NULL,
         "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n",
         403},
        {"/", NULL,
         "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
         200},
    };

    begin_run(3);
    place p = serve((ls_page_server_args){0});
    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        int got = ask_with_token(&p, cases[i].path, cases[i].host ? cases[i].host : p.host,
                                 cases[i].headers);
        if (got != cases[i].status)
            ls_test_fail(__FILE__, __LINE__, "case %zu: %d, expected %d", i, got, cases[i].status);
    }
    ls_page_server_close(p.server);
}

LS_TEST(page_server_gives_only_its_own_files)
{
    static const char *const paths[] = {
        "/../page.js", "/%2e%2e/%2e%2e/etc/passwd", "/events.jsonl", "/run.db", "//page.js",
        "/page.js/",   "/..%2fa%2fevents.jsonl"};
    static const char *const others[] = {"/page?with=../a/../b", "/page?with=%2e%2e",
                                         "/page?with=/etc",      "/page?with=.hidden",
                                         "/page?with=a",         "/page?with=none"};
    char target[256];
    ls_str answer;

    begin_run(3);
    append_to("runs/b", "{\"event\":\"start\",\"name\":\"bb\",\"first_step\":0}\n");
    append_to("runs/.hidden", "{\"event\":\"start\",\"name\":\"h\",\"first_step\":0}\n");
    place p = serve((ls_page_server_args){0});
    for (size_t i = 0; i < LS_COUNT(paths); i++)
        LS_CHECK_EQ(ask_with_token(&p, paths[i], p.host, ""), 404);
    ls_str_init(&answer);
    for (size_t i = 0; i < LS_COUNT(others); i++) {
        ls_str_clear(&answer);
        snprintf(target, sizeof target, "%s&token=%s", others[i], p.token);
        LS_CHECK_EQ(ask(&p, target, p.host, "", &answer), 200);
        LS_CHECK(!strstr(answer.p, "\"with\":"));
    }
    snprintf(target, sizeof target, "/page?with=b&token=%s", p.token);
    LS_CHECK_EQ(ask(&p, target, p.host, "", &answer), 200);
    LS_CHECK(strstr(answer.p, "\"with\":{\"name\":\"b\""));
    ls_str_clear(&answer);
    snprintf(target, sizeof target, "/range?from=2&to=2&bins=9&token=%s", p.token);
    LS_CHECK_EQ(ask(&p, target, p.host, "", &answer), 200);
    LS_CHECK(strstr(answer.p, "\"loss\":{\"unit\":\"\",\"x\":[2],\"m\":[0.5]"));
    ls_str_release(&answer);
    ls_page_server_close(p.server);
}

static int open_stream(const place *p, ls_str *heard)
{
    char request[256];
    int fd = call(p);

    snprintf(request, sizeof request, "GET /stream?token=%s HTTP/1.1\r\nHost: %s\r\n\r\n", p->token,
             p->host);
    say(fd, request);
    LS_CHECK(hear(fd, "event: snapshot\ndata: {", heard));
    return fd;
}

LS_TEST(page_server_sends_new_steps)
{
    ls_str one, two;

    begin_run(3);
    place p = serve((ls_page_server_args){0});
    ls_str_init(&one);
    ls_str_init(&two);
    int a = open_stream(&p, &one), b = open_stream(&p, &two);
    LS_CHECK(hear(a, "\n\n", &one));
    LS_CHECK(strstr(one.p, "\"loss\":{\"unit\":\"\",\"x\":[1,2,3]"));
    add_step(4, 0.125);
    LS_CHECK(hear(a, "event: changes\ndata: ", &one));
    LS_CHECK(hear(a, "\"loss\":{\"unit\":\"\",\"x\":[4],\"m\":[0.125]", &one));
    LS_CHECK(hear(b, "\"loss\":{\"unit\":\"\",\"x\":[4],\"m\":[0.125]", &two));
    ls_sock_close(&b);
    append_to("runs/a", "{\"event\":\"incident\",\"step\":2,\"kind\":\"lost\",\"redone\":2}\n");
    add_step(3, 0.25);
    LS_CHECK(hear(a, "\"x\":[1,2,3],\"m\":[1,0.5,0.25]", &one)); /* all of it again */
    ls_sock_close(&a);
    ls_str_release(&one);
    ls_str_release(&two);
    ls_page_server_close(p.server);
}

/* A reader that takes nothing is cut off; one that reads misses nothing meanwhile. */
LS_TEST(page_server_drops_a_reader_that_does_not_read)
{
    enum { TEXT = 1 << 20, MOST = 24 };
    char *line = malloc(TEXT + 128), mark[32];
    ls_str heard, deaf_heard;

    LS_CHECK(line);
    begin_run(3);
    place p = serve((ls_page_server_args){.stream_most = 3 << 20});
    ls_str_init(&heard);
    ls_str_init(&deaf_heard);
    int deaf = open_stream(&p, &deaf_heard), reader = open_stream(&p, &heard);
    /* More than the kernel holds for the two ends of a connection. */
    for (int i = 0; i < MOST; i++) {
        int len = snprintf(line, 128, "{\"event\":\"sample\",\"step\":%d,\"text\":\"", i);
        memset(line + len, 'x', TEXT);
        snprintf(line + len + TEXT, 64, "mark%d.\"}\n", i);
        append_to("runs/a", line);
        snprintf(mark, sizeof mark, "mark%d.", i);
        ls_str_clear(&heard);
        LS_CHECK(hear(reader, mark, &heard));
    }
    ls_str_clear(&deaf_heard);
    hear(deaf, "mark23.", &deaf_heard);
    LS_CHECK(!strstr(deaf_heard.p, "mark23."));
    ls_sock_close(&deaf);
    ls_sock_close(&reader);
    ls_str_release(&heard);
    ls_str_release(&deaf_heard);
    free(line);
    ls_page_server_close(p.server);
}

LS_TEST(page_server_listens_where_it_may)
{
    ls_page_server *server = NULL;

    begin_run(1);
    LS_CHECK_FAILS(ls_page_server_open(
                       &server, &(ls_page_server_args){.folder = "runs/a", .listen = "0.0.0.0:0"}),
                   LS_EUSAGE, "without encryption");
    LS_CHECK_FAILS(ls_page_server_open(
                       &server, &(ls_page_server_args){.folder = "runs/a", .listen = "10.1.2.3:0"}),
                   LS_EUSAGE, "without encryption");
    LS_CHECK_FAILS(ls_page_server_open(&server, &(ls_page_server_args){.folder = "runs/a",
                                                                       .cert_file = "cert.pem"}),
                   LS_EUSAGE, "needed together");
    LS_CHECK_FAILS(ls_page_server_open(&server, &(ls_page_server_args){.folder = "nothing"}),
                   LS_EIO, "is no run folder");
    LS_CHECK_OK(ls_page_server_open(
        &server, &(ls_page_server_args){.folder = "runs/a", .listen = "127.0.0.2:0"}));
    LS_CHECK(strncmp(ls_page_server_url(server), "http://127.0.0.2:", 17) == 0);
    ls_page_server_close(server);
}
