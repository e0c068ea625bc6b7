/* http_client.c -- one libcurl handle, opened at the first request; the answer is collected up to
 * its limit, and libcurl's error text becomes the reason of LS_EIO. */
#include "net/http_client.h"

#include <dlfcn.h>
#include <pthread.h>
#include "base/mem.h"
#include "base/time.h"

#if __has_include(<curl/curl.h>)
#include <curl/curl.h>

#define FUNCTIONS(X) \
    X(global_init)   \
    X(easy_init)     \
    X(easy_setopt)   \
    X(easy_perform)  \
    X(easy_getinfo)  \
    X(easy_cleanup)  \
    X(easy_strerror) \
    X(slist_append)  \
    X(slist_free_all)
#define MEMBER(name) __typeof__(curl_##name) *name;

static struct library {
    void *handle;
    bool sound;
    FUNCTIONS(MEMBER)
} curl;
static pthread_once_t once = PTHREAD_ONCE_INIT;

struct ls_http_client {
    CURL *easy;
    struct curl_slist *headers;
    ls_str *answer; /* during a request */
    bool too_long;
    char why[CURL_ERROR_SIZE];
};

static bool find(const char *name, void *function_out)
{
    void *p = dlsym(curl.handle, name);

    memcpy(function_out, &p, sizeof p);
    return p != NULL;
}

static void load(void)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

    for (size_t i = 0; i < LS_COUNT(names) && !curl.handle; i++)
        curl.handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
#define FIND(name) &&find("curl_" #name, &curl.name)
    curl.sound = curl.handle FUNCTIONS(FIND) && curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

static size_t take(char *bytes, size_t size, size_t n, void *context)
{
    ls_http_client *p = context;

    p->too_long = p->answer->len + size * n > LS_HTTP_CLIENT_MOST;
    if (p->too_long)
        return 0;
    ls_str_append_bytes(p->answer, bytes, size * n);
    return p->answer->failed ? 0 : size * n;
}

ls_status ls_http_client_open(ls_http_client **client_out)
{
    pthread_once(&once, load);
    if (!curl.sound) {
        ls_fail(LS_EUSAGE, "the library libcurl.so.4 is %s",
                curl.handle ? "not as expected" : "not here");
        ls_err_hint("Install it (Debian package libcurl4).");
        return LS_EUSAGE;
    }
    ls_http_client *p = ls_mem_alloc(sizeof *p);
    if (!p)
        return LS_ENOMEM;
    p->easy = curl.easy_init();
    p->headers = p->easy ? curl.slist_append(NULL, "Content-Type: application/json") : NULL;
    if (!p->headers) {
        ls_http_client_close(p);
        return ls_fail(LS_ENOMEM, "no memory for HTTP requests");
    }
    curl.easy_setopt(p->easy, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(p->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl.easy_setopt(p->easy, CURLOPT_PROXY, "");
    curl.easy_setopt(p->easy, CURLOPT_HTTPHEADER, p->headers);
    curl.easy_setopt(p->easy, CURLOPT_ERRORBUFFER, p->why);
    curl.easy_setopt(p->easy, CURLOPT_WRITEFUNCTION, take);
    curl.easy_setopt(p->easy, CURLOPT_WRITEDATA, p);
    curl.easy_setopt(p->easy, CURLOPT_TCP_KEEPALIVE, 1L);
    *client_out = p;
    return LS_OK;
}

void ls_http_client_close(ls_http_client *client)
{
    if (!client)
        return;
    if (client->easy)
        curl.easy_cleanup(client->easy);
    if (client->headers)
        curl.slist_free_all(client->headers);
    ls_mem_free(client);
}

static ls_status judge(const ls_http_client *p, CURLcode code, const char *url)
{
    const char *why = p->why[0] ? p->why : curl.easy_strerror(code);

    switch (code) {
    case CURLE_OK:
        return LS_OK;
    case CURLE_OUT_OF_MEMORY:
        return ls_fail(LS_ENOMEM, "no memory for a request to %s", url);
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
        return ls_fail(LS_EUSAGE, "\"%s\" is no http or https URL", url);
    case CURLE_OPERATION_TIMEDOUT:
        return ls_fail(LS_EDEADLINE, "%s does not answer in time", url);
    default:
        break;
    }
    return p->too_long
               ? ls_fail(LS_EIO, "%s answers with more than %d bytes", url, LS_HTTP_CLIENT_MOST)
               : ls_fail(LS_EIO, "%s does not answer: %s", url, why);
}

ls_status ls_http_client_post(ls_http_client *p, const char *url, const char *body,
                              int64_t deadline_ns, ls_str *answer_out, long *status_out)
{
    int64_t ms = (deadline_ns - ls_time_now_ns()) / LS_NS_PER_MS;

    if (ms <= 0)
        return ls_fail(LS_EDEADLINE, "%s does not answer in time", url);
    p->answer = answer_out;
    p->too_long = false;
    p->why[0] = '\0';
    ls_str_clear(answer_out);
    curl.easy_setopt(p->easy, CURLOPT_URL, url);
    curl.easy_setopt(p->easy, CURLOPT_POSTFIELDS, body);
    curl.easy_setopt(p->easy, CURLOPT_TIMEOUT_MS, (long)ls_min_i64(ms, INT32_MAX));
    ls_status st = judge(p, curl.easy_perform(p->easy), url);
    if (st == LS_OK)
        st = ls_str_status(answer_out);
    if (st == LS_OK)
        curl.easy_getinfo(p->easy, CURLINFO_RESPONSE_CODE, status_out);
    return st;
}

#else

ls_status ls_http_client_open(ls_http_client **client_out LS_UNUSED)
{
    ls_fail(LS_EUSAGE, "this lineshaft was built without libcurl");
    ls_err_hint("Install libcurl4-openssl-dev (\"make deps\") and build it again.");
    return LS_EUSAGE;
}

void ls_http_client_close(ls_http_client *client LS_UNUSED)
{
}

ls_status ls_http_client_post(ls_http_client *client LS_UNUSED, const char *url LS_UNUSED,
                              const char *body LS_UNUSED, int64_t deadline_ns LS_UNUSED,
                              ls_str *answer_out LS_UNUSED, long *status_out LS_UNUSED)
{
    return ls_fail(LS_EUSAGE, "this lineshaft was built without libcurl");
}

#endif
