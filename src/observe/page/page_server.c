/* page_server.c -- see page_server.h.
 *
 * One thread, that of the HTTP server, reads the store and answers; it looks for news every half
 * second while somebody watches, and not at all otherwise. Each stream has a cursor. Streams with the
 * same cursor get the same bytes, so that ten windows cost one reading. A reader that falls behind is
 * cut off by the HTTP server (stream_most) and comes back by itself, with a snapshot.
 *
 * A request is admitted if all of these hold:
 *
 *     Host             127.0.0.1, localhost, [::1] (any port: tunnels), the address, or --host
 *     Origin           absent, or the same host and scheme
 *     Sec-Fetch-Site   absent, none, same-origin; a link from elsewhere may open "/" itself
 *     token            in the query or the cookie, compared in constant time */
#include "observe/page/page_server.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/mem.h"
#include "base/time.h"
#include "net/http_server.h"
#include "net/mac.h"
#include "net/secret.h"
#include "observe/page/page_assets.h"
#include "observe/page/page_data.h"

enum { STREAMS = 32, TOKEN_BYTES = 16, TOKEN_HEX = 2 * TOKEN_BYTES, BINS_MOST = 5000 };
enum { BEAT_MS = 5000, RESOLVE_S = 5 };

typedef struct reader {
    uint64_t id; /* of its stream; 0: free */
    int bins;
    char with[PATH_MAX]; /* "": none */
    ls_page_cursor cursor;
} reader;

struct ls_page_server {
    ls_page_server_args args;
    ls_http_server *http;
    ls_page_data *data;
    char token[TOKEN_HEX + 1], cookie[32];
    char address[LS_SOCK_TEXT], host[256]; /* that it listens at, without the port; args.host */
    char url[160];
    char with[PATH_MAX];
    ls_str html;     /* of "/" */
    reader *readers; /* STREAMS of them */
    int64_t beat_ns; /* when readers hear something next, though nothing is new */
    int64_t version; /* that readers have */
    ls_str message;  /* reused */
};

/* --- who may ask ------------------------------------------------------------------------------- */

/* a comes from outside; its length is no secret, and the time does not depend on the rest. */
static bool same_token(const char *a, const char *b)
{
    return strlen(a) == TOKEN_HEX &&
           ls_mac_equal((const uint8_t *)a, (const uint8_t *)b, TOKEN_HEX);
}

static bool has_token(const ls_page_server *s, const ls_http_request *request)
{
    char token[64];

    if (ls_http_request_parameter(request, "token", token, sizeof token))
        return same_token(token, s->token);
    return ls_http_request_cookie(request, s->cookie, token, sizeof token) &&
           same_token(token, s->token);
}

/* "host:port" or "[::1]:port" without its port. */
static size_t host_len(const char *text)
{
    const char *end = *text == '[' ? strchr(text, ']') : strchr(text, ':');

    if (*text == '[')
        return end ? (size_t)(end + 1 - text) : 0;
    return end ? (size_t)(end - text) : strlen(text);
}

static bool is_host(const char *host, size_t len, const char *name)
{
    return *name && strlen(name) == len && strncasecmp(host, name, len) == 0;
}

static bool knows_host(const ls_page_server *s, const char *host)
{
    size_t len = host_len(host);

    if (strspn(host + len, ":0123456789") != strlen(host + len))
        return false;
    if (!s->args.cert_file && (is_host(host, len, "127.0.0.1") || is_host(host, len, "localhost") ||
                               is_host(host, len, "[::1]")))
        return true;
    return is_host(host, len, s->address) || is_host(host, len, s->host);
}

/* An Origin is "http://" and the Host of this request. */
static bool same_origin(const ls_http_request *request, const char *origin, const char *host)
{
    const char *scheme = request->tls ? "https://" : "http://";
    size_t len = strlen(scheme);

    return strncasecmp(origin, scheme, len) == 0 && strcasecmp(origin + len, host) == 0;
}

/* Whether the browser says that the request comes from this page, or from a person. */
static bool from_here(const ls_http_request *request)
{
    const char *site = ls_http_request_header(request, "sec-fetch-site");
    const char *mode = ls_http_request_header(request, "sec-fetch-mode");
    const char *target = ls_http_request_header(request, "sec-fetch-dest");

    if (!site || strcmp(site, "none") == 0 || strcmp(site, "same-origin") == 0)
        return true;
    return strcmp(request->path, "/") == 0 && mode && strcmp(mode, "navigate") == 0 && target &&
           strcmp(target, "document") == 0;
}

static bool forbid(ls_http_answer *answer, const char *why)
{
    answer->status = 403;
    ls_str_printf(&answer->body, "%s\n", why);
    return false;
}

static bool admit(void *context, const ls_http_request *request, ls_http_answer *answer)
{
    const ls_page_server *s = context;
    const char *host = ls_http_request_header(request, "host");
    const char *origin = ls_http_request_header(request, "origin");

    ls_str_append(&answer->headers,
                  "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src "
                  "'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                  "frame-ancestors 'none'\r\n"
                  "X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n"
                  "Cross-Origin-Resource-Policy: same-origin\r\n"
                  "Cross-Origin-Opener-Policy: same-origin\r\n");
    if (!host || !knows_host(s, host))
        return forbid(answer, "This server is not known by that name: ask for the address that "
                              "lineshaft printed (or give it the name with --host).");
    if ((origin && !same_origin(request, origin, host)) || !from_here(request))
        return forbid(answer, "A request from another site is refused.");
    if (!has_token(s, request))
        return forbid(answer, "The token is missing or wrong: open the whole address that "
                              "lineshaft printed, with ?token=...");
    return true;
}

/* --- answers ----------------------------------------------------------------------------------- */

static void page(void *context, const ls_http_request *request, ls_http_answer *answer)
{
    const ls_page_server *s = context;

    answer->type = "text/html; charset=utf-8";
    answer->constant = s->html.p;
    answer->constant_len = s->html.len;
    ls_str_printf(&answer->headers, "Set-Cookie: %s=%s; Path=/; HttpOnly; SameSite=Strict%s\r\n",
                  s->cookie, s->token, request->tls ? "; Secure" : "");
}

static void asset(void *context, const ls_http_request *request, ls_http_answer *answer)
{
    (void)context;
    for (const ls_page_asset *a = ls_page_assets; a->path; a++) {
        if (strcmp(a->path, request->path) != 0)
            continue;
        answer->type = a->type;
        answer->constant = a->text;
        answer->constant_len = strlen(a->text);
        return;
    }
    answer->status = 404;
    ls_str_append(&answer->body, "there is no such page\n");
}

/* A whole number of the query; fallback where it is none. */
static int64_t number(const ls_http_request *request, const char *name, int64_t fallback)
{
    char text[24], *end;

    if (!ls_http_request_parameter(request, name, text, sizeof text))
        return fallback;
    long long value = strtoll(text, &end, 10);
    return *end || end == text ? fallback : value;
}

static int bins_of(const ls_http_request *request)
{
    int64_t bins = number(request, "bins", LS_PAGE_BINS);

    return (int)ls_max_i64(2, ls_min_i64(bins, BINS_MOST));
}

/* The folder to compare with: "-" is none, no word is the one of --with. */
static void with_of(ls_page_server *s, const ls_http_request *request, char out[PATH_MAX])
{
    char name[NAME_MAX + 1];

    snprintf(out, PATH_MAX, "%s", s->with);
    if (!ls_http_request_parameter(request, "with", name, sizeof name))
        return;
    if (!ls_page_data_beside(s->data, name, out, PATH_MAX))
        *out = '\0';
}

static ls_status snapshot(ls_page_server *s, int bins, const char *with, ls_page_cursor *cursor,
                          ls_str *out)
{
    int64_t version;
    ls_status st = ls_page_data_look(s->data, &version);

    if (st != LS_OK)
        return st;
    st = ls_page_data_snapshot(
        s->data, &(ls_page_request){.bins = bins, .with = *with ? with : NULL, .others = true},
        cursor, out);
    if (st != LS_OK && *with) { /* the other run cannot be read: show this one */
        ls_err_clear();
        st = ls_page_data_snapshot(s->data, &(ls_page_request){.bins = bins, .others = true},
                                   cursor, out);
    }
    return st;
}

/* A failure of the store is an answer: the page shows it, and asks again. */
static void put_failure(ls_http_answer *answer)
{
    answer->status = 503;
    answer->type = "text/plain; charset=utf-8";
    ls_str_clear(&answer->body);
    ls_str_printf(&answer->body, "%s\n", ls_err_last()->text);
    ls_err_clear();
}

static void page_json(void *context, const ls_http_request *request, ls_http_answer *answer)
{
    ls_page_server *s = context;
    char with[PATH_MAX];

    with_of(s, request, with);
    answer->type = "application/json";
    if (snapshot(s, bins_of(request), with, NULL, &answer->body) != LS_OK)
        put_failure(answer);
}

static void range(void *context, const ls_http_request *request, ls_http_answer *answer)
{
    ls_page_server *s = context;

    answer->type = "application/json";
    if (ls_page_data_range(s->data, number(request, "from", INT64_MIN),
                           number(request, "to", INT64_MAX), bins_of(request),
                           &answer->body) != LS_OK)
        put_failure(answer);
}

/* --- streams ----------------------------------------------------------------------------------- */

static reader *find_reader(ls_page_server *s, uint64_t id)
{
    for (int i = 0; i < STREAMS; i++)
        if (s->readers[i].id == id)
            return &s->readers[i];
    return NULL;
}

static void stream(void *context, const ls_http_request *request, ls_http_answer *answer)
{
    ls_page_server *s = context;
    reader *r = find_reader(s, 0);

    answer->type = "text/event-stream";
    if (strcmp(request->method, "GET") != 0)
        return;
    if (!r) {
        answer->status = 503;
        ls_str_append(&answer->body, "too many windows show this run\n");
        return;
    }
    *r = (reader){.id = 0, .bins = bins_of(request)};
    with_of(s, request, r->with);
    ls_str_append(&answer->body, "retry: 2000\nevent: snapshot\ndata: ");
    if (snapshot(s, r->bins, r->with, &r->cursor, &answer->body) != LS_OK) {
        put_failure(answer);
        return;
    }
    ls_str_append(&answer->body, "\n\n");
    r->id = answer->stream_id;
    answer->stream = true;
}

static void stream_closed(void *context, uint64_t id)
{
    reader *r = find_reader(context, id);

    if (r)
        *r = (reader){.id = 0};
}

/* The message for a reader, in s->message; its cursor moves. */
static ls_status write_news(ls_page_server *s, reader *r)
{
    bool again = false;
    ls_status st;

    ls_str_clear(&s->message);
    ls_str_append(&s->message, "event: changes\ndata: ");
    LS_TRY(st, ls_page_data_changes(s->data, &r->cursor, &s->message, &again), out);
    if (again) {
        ls_str_clear(&s->message);
        ls_str_append(&s->message, "event: snapshot\ndata: ");
        LS_TRY(st, snapshot(s, r->bins, r->with, &r->cursor, &s->message), out);
    }
    ls_str_append(&s->message, "\n\n");
    st = ls_str_status(&s->message);
out:
    return st;
}

static bool same_cursor(const reader *a, const reader *b)
{
    return a->bins == b->bins && strcmp(a->with, b->with) == 0 &&
           memcmp(&a->cursor, &b->cursor, sizeof a->cursor) == 0;
}

static void tick(void *context)
{
    ls_page_server *s = context;
    int64_t version = s->version, now = ls_time_now_ns();
    reader *before = NULL; /* whose message is in s->message, */
    reader was;            /* and what it was before */

    if (ls_page_data_look(s->data, &version) != LS_OK)
        ls_err_clear();
    if (version == s->version && now < s->beat_ns)
        return;
    s->version = version;
    s->beat_ns = now + BEAT_MS * LS_NS_PER_MS;
    for (int i = 0; i < STREAMS; i++) {
        reader *r = &s->readers[i];
        if (r->id == 0)
            continue;
        if (before && same_cursor(&was, r)) {
            r->cursor = before->cursor;
        } else {
            was = *r;
            before = r;
            if (write_news(s, r) != LS_OK) {
                ls_err_clear();
                before = NULL;
                continue;
            }
        }
        /* One that is too far behind is cut off there, and stream_closed() is called. */
        if (ls_http_server_write(s->http, r->id, s->message.p, s->message.len) != LS_OK)
            ls_err_clear();
    }
}

/* --- opening ----------------------------------------------------------------------------------- */

static bool is_loopback(const ls_sock_address *at)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)&at->storage;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)&at->storage;

    if (at->storage.ss_family == AF_INET)
        return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

static ls_status check_address(const ls_page_server_args *args, ls_sock_address *at_out)
{
    const char *text = args->listen ? args->listen : "127.0.0.1:0";
    ls_status st = ls_sock_resolve(text, ls_time_now_ns() + RESOLVE_S * LS_NS_PER_S, at_out);

    if (st != LS_OK)
        return st;
    if (!args->cert_file != !args->key_file) {
        st = ls_fail(LS_EUSAGE, "a certificate and its key are needed together");
        ls_err_hint("Give both --cert and --key, as PEM files.");
    } else if (!args->cert_file && !is_loopback(at_out)) {
        st = ls_fail(LS_EUSAGE, "the page is not shown at %s without encryption", at_out->text);
        ls_err_hint("Give --cert and --key, or listen at 127.0.0.1 and reach it by \"ssh -L "
                    "8080:127.0.0.1:PORT HOST\".");
    }
    return st;
}

static ls_status make_token(ls_page_server *s)
{
    uint8_t bytes[TOKEN_BYTES];
    ls_status st = ls_secret_random(bytes, sizeof bytes);

    for (int i = 0; st == LS_OK && i < TOKEN_BYTES; i++)
        snprintf(s->token + 2 * i, 3, "%02x", bytes[i]);
    return st;
}

static void name_itself(ls_page_server *s)
{
    const ls_sock_address *at = ls_http_server_address(s->http);

    snprintf(s->url, sizeof s->url, "%s://%s/?token=%s", s->args.cert_file ? "https" : "http",
             at->text, s->token);
}

ls_status ls_page_server_open(ls_page_server **server_out, const ls_page_server_args *args)
{
    static const ls_http_route routes[] = {{"GET", "/", page},
                                           {"GET", "/stream", stream},
                                           {"GET", "/page", page_json},
                                           {"GET", "/range", range},
                                           {"GET", "/*", asset}};
    ls_page_server *s = ls_mem_alloc(sizeof *s);
    uint8_t number_of_cookie[4];
    ls_sock_address at;
    ls_status st = s ? LS_OK : LS_ENOMEM;

    if (st != LS_OK)
        return st;
    s->args = *args;
    ls_str_init(&s->html);
    ls_str_init(&s->message);
    snprintf(s->with, sizeof s->with, "%s", args->with ? args->with : "");
    snprintf(s->host, sizeof s->host, "%s", args->host ? args->host : "");
    s->readers = ls_mem_array(STREAMS, sizeof *s->readers);
    if (!s->readers)
        LS_TRY(st, LS_ENOMEM, out);
    LS_TRY(st, check_address(args, &at), out);
    snprintf(s->address, sizeof s->address, "%.*s", (int)host_len(at.text), at.text);
    LS_TRY(st, make_token(s), out);
    /* Cookies know no ports: pages of two runs on one machine need two names. */
    LS_TRY(st, ls_secret_random(number_of_cookie, sizeof number_of_cookie), out);
    snprintf(s->cookie, sizeof s->cookie, "lineshaft_%02x%02x%02x%02x", number_of_cookie[0],
             number_of_cookie[1], number_of_cookie[2], number_of_cookie[3]);
    ls_page_assets_served(&s->html);
    LS_TRY(st, ls_str_status(&s->html), out);
    LS_TRY(st, ls_page_data_open(args->folder, args->early, &s->data), out);
    LS_TRY(st,
           ls_http_server_open(&s->http, &(ls_http_server_args){.at = &at,
                                                                .routes = routes,
                                                                .n_routes = LS_COUNT(routes),
                                                                .context = s,
                                                                .admit = admit,
                                                                .tick = tick,
                                                                .tick_ns = args->tick_ns > 0
                                                                               ? args->tick_ns
                                                                               : LS_NS_PER_S / 2,
                                                                .stream_closed = stream_closed,
                                                                .cert_file = args->cert_file,
                                                                .key_file = args->key_file,
                                                                .body_most = 1,
                                                                .connections = 64,
                                                                .stream_most = args->stream_most,
                                                                .nice = args->nice}),
           out);
    name_itself(s);
    *server_out = s;
    s = NULL;
out:
    ls_page_server_close(s);
    return st;
}

void ls_page_server_close(ls_page_server *s)
{
    if (!s)
        return;
    ls_http_server_close(s->http);
    ls_page_data_close(s->data);
    ls_str_release(&s->html);
    ls_str_release(&s->message);
    ls_mem_free(s->readers);
    ls_mem_free(s);
}

const char *ls_page_server_url(const ls_page_server *s)
{
    return s->url;
}
