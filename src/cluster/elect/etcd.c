/* etcd.c -- requests to etcd's JSON gateway and their answers.
 *
 * 64-bit numbers are texts in that JSON, keys and values are base64, and fields that are zero or
 * false are left out. Writing key "a" = "2" if it is "1" now, with its answer:
 *
 *   POST /v3/kv/txn
 *     {"compare": [{"key": "YQ==", "result": "EQUAL", "target": "VALUE", "value": "MQ=="}],
 *      "success": [{"requestPut": {"key": "YQ==", "value": "Mg=="}}]}
 *   answer
 *     {"header": {...}, "succeeded": true}     without "succeeded": it was not "1"
 *
 * The server that answered last is asked first; when it does not answer, the next one is tried,
 * until the deadline. */
#include "cluster/elect/etcd.h"

#include <inttypes.h>
#include <jansson.h>
#include <time.h>
#include "base/json.h"
#include "base/mem.h"
#include "base/time.h"
#include "net/http_client.h"

enum { PATH = 256, TRY_S = 2, PAUSE_MS = 100 };

struct ls_etcd {
    const char *urls[LS_ETCD_URLS];
    int n_urls, at; /* the one that answered last */
    ls_http_client *client;
    ls_str body, answer;
    char why[400]; /* of the last that did not */
};

/* --- base64 ----------------------------------------------------------------------------------- */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Three bytes are four digits of 6 bits: "1" is 0x31, padded 0x310000, digits 12 and 16: "MQ==". */
void ls_etcd_encode64(const char *text, size_t len, ls_str *out)
{
    const unsigned char *p = (const unsigned char *)text;

    for (size_t i = 0; i < len; i += 3) {
        size_t n = len - i < 3 ? len - i : 3;
        uint32_t v =
            (uint32_t)p[i] << 16 | (n > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (n > 2 ? p[i + 2] : 0u);
        for (size_t k = 0; k < 4; k++)
            ls_str_append_char(out, k <= n ? digits[v >> (18 - 6 * k) & 63] : '=');
    }
}

static int digit_of(char c)
{
    const char *d = c ? strchr(digits, c) : NULL;

    return d ? (int)(d - digits) : -1;
}

ls_status ls_etcd_decode64(const char *text, ls_str *out)
{
    size_t len = strlen(text);
    bool bad = len % 4 != 0;

    for (size_t i = 0; i < len && !bad; i += 4) {
        const char *p = text + i;
        int n = i + 4 < len || p[3] != '=' ? 4 : p[2] != '=' ? 3 : 2; /* the rest is padding */
        uint32_t v = 0;
        for (int k = 0; k < n; k++) {
            bad |= digit_of(p[k]) < 0;
            v |= (uint32_t)(digit_of(p[k]) & 63) << (18 - 6 * k);
        }
        for (int k = 0; k < n - 1 && !bad; k++)
            ls_str_append_char(out, (char)(v >> (16 - 8 * k) & 0xff));
    }
    return bad ? ls_fail(LS_EDATA, "\"%.40s\" is not base64", text) : ls_str_status(out);
}

/* --- asking ----------------------------------------------------------------------------------- */

ls_status ls_etcd_open(ls_etcd **etcd_out, const char *const *urls, int n_urls)
{
    ls_status st = LS_OK;

    if (n_urls < 1 || n_urls > LS_ETCD_URLS)
        return ls_fail(LS_EUSAGE, "etcd is asked at 1 to %d URLs, not %d", LS_ETCD_URLS, n_urls);
    for (int i = 0; i < n_urls; i++)
        if ((strncmp(urls[i], "http://", 7) != 0 && strncmp(urls[i], "https://", 8) != 0) ||
            strlen(urls[i]) > PATH - 40)
            return ls_fail(LS_EUSAGE, "\"%.80s\" is no URL of etcd such as http://10.0.0.1:2379",
                           urls[i]);
    ls_etcd *e = ls_mem_alloc(sizeof *e);
    if (!e)
        return LS_ENOMEM;
    ls_str_init(&e->body);
    ls_str_init(&e->answer);
    memcpy(e->urls, urls, (size_t)n_urls * sizeof *urls);
    e->n_urls = n_urls;
    LS_TRY(st, ls_http_client_open(&e->client), out);
    *etcd_out = e;
out:
    if (st != LS_OK)
        ls_etcd_close(e);
    return st;
}

void ls_etcd_close(ls_etcd *etcd)
{
    if (!etcd)
        return;
    ls_http_client_close(etcd->client);
    ls_str_release(&etcd->body);
    ls_str_release(&etcd->answer);
    ls_mem_free(etcd);
}

static void all_urls(const ls_etcd *e, char *text, size_t cap)
{
    size_t at = 0;

    text[0] = '\0';
    for (int i = 0; i < e->n_urls && at < cap; i++)
        at += (size_t)snprintf(text + at, cap - at, "%s%s", i ? ", " : "", e->urls[i]);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

/* What an answer means. LS_EBUSY: ask again, or another one. */
static ls_status judge(ls_etcd *e, const char *url, long status, const json_t *root)
{
    const char *message = text_of(root, "message");

    message = *message ? message : text_of(root, "error");
    if (status == 200 && root && !json_object_get(root, "error"))
        return LS_OK;
    if (status == 429 || status >= 500 || strstr(message, "no leader") ||
        strstr(message, "timed out") || strstr(message, "leader changed")) {
        snprintf(e->why, sizeof e->why, "%.120s says %ld %.200s", url, status, message);
        return LS_EBUSY;
    }
    if (!root || !strstr(message, "etcdserver")) {
        ls_fail(LS_EIO, "%s does not answer as etcd 3.4 does: status %ld", url, status);
        ls_err_hint("heal.etcd names the client URLs of etcd, such as http://10.0.0.1:2379.");
        return LS_EIO;
    }
    return ls_fail(LS_EIO, "etcd at %s refuses: %s", url, message);
}

static ls_status ask_one(ls_etcd *e, const char *path, int64_t deadline_ns, json_t **root_out)
{
    int64_t try_ns = ls_time_now_ns() + TRY_S * LS_NS_PER_S;
    char url[PATH];
    long status = 0;
    json_error_t error;

    snprintf(url, sizeof url, "%s%s%s", e->urls[e->at],
             e->urls[e->at][strlen(e->urls[e->at]) - 1] == '/' ? "" : "/", path);
    ls_status st = ls_http_client_post(e->client, url, e->body.p, ls_min_i64(deadline_ns, try_ns),
                                       &e->answer, &status);
    if (st == LS_EIO || st == LS_EDEADLINE) {
        snprintf(e->why, sizeof e->why, "%.390s", ls_err_last()->text);
        return LS_EBUSY;
    }
    if (st != LS_OK)
        return st;
    json_t *root = json_loadb(e->answer.p, e->answer.len, JSON_DISABLE_EOF_CHECK, &error);
    st = judge(e, url, status, root);
    if (st == LS_OK)
        *root_out = root;
    else
        json_decref(root);
    return st;
}

/* Send the body to the servers in turn until one answers; the answer is the caller's to free. */
static ls_status ask(ls_etcd *e, const char *path, int64_t deadline_ns, json_t **root_out)
{
    const struct timespec pause = {.tv_nsec = PAUSE_MS * LS_NS_PER_MS};
    char urls[300];
    ls_status st = ls_str_status(&e->body);

    for (int tries = 0; st == LS_OK; tries++) {
        st = ask_one(e, path, deadline_ns, root_out);
        if (st != LS_EBUSY)
            return st;
        st = LS_OK;
        e->at = (e->at + 1) % e->n_urls;
        if (ls_time_now_ns() + PAUSE_MS * LS_NS_PER_MS >= deadline_ns) {
            all_urls(e, urls, sizeof urls);
            ls_fail(LS_EDEADLINE, "etcd at %s does not answer: %s", urls, e->why);
            ls_err_hint("Look whether it runs (etcdctl endpoint health), and at heal.etcd.");
            return LS_EDEADLINE;
        }
        if (tries % e->n_urls == e->n_urls - 1)
            nanosleep(&pause, NULL);
    }
    return st;
}

/* --- requests --------------------------------------------------------------------------------- */

static void begin(ls_etcd *e, ls_json *j)
{
    ls_str_clear(&e->body);
    ls_json_begin(j, &e->body);
    ls_json_open(j, '{');
}

static void put_number(ls_json *j, const char *key, int64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%" PRId64, value);
    ls_json_put_str(j, key, text);
}

static void put64(ls_json *j, const char *key, const char *value)
{
    ls_str text;

    ls_str_init(&text);
    ls_etcd_encode64(value, strlen(value), &text);
    ls_json_put_str(j, key, text.p);
    if (text.failed) /* the request must not go out without it */
        j->out->failed = true;
    ls_str_release(&text);
}

static int64_t number_of(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    return json_is_integer(v) ? json_integer_value(v)
                              : strtoll(json_is_string(v) ? json_string_value(v) : "0", NULL, 10);
}

/* A question about leases, which has one number. */
static ls_status ask_number(ls_etcd *etcd, const char *path, const char *key, int64_t number,
                            int64_t deadline_ns, json_t **root_out)
{
    ls_json j;

    begin(etcd, &j);
    put_number(&j, key, number);
    ls_json_close(&j);
    return ask(etcd, path, deadline_ns, root_out);
}

ls_status ls_etcd_lease(ls_etcd *etcd, int ttl_s, int64_t deadline_ns, int64_t *lease_out)
{
    json_t *root = NULL;
    ls_status st;

    LS_TRY(st, ask_number(etcd, "v3/lease/grant", "TTL", ttl_s, deadline_ns, &root), out);
    int64_t lease = number_of(root, "ID");
    if (lease == 0)
        st = ls_fail(LS_EIO, "etcd at %s gave no lease", etcd->urls[etcd->at]);
    else
        *lease_out = lease;
out:
    json_decref(root);
    return st;
}

ls_status ls_etcd_renew(ls_etcd *etcd, int64_t lease, int64_t deadline_ns)
{
    json_t *root = NULL;
    ls_status st;

    LS_TRY(st, ask_number(etcd, "v3/lease/keepalive", "ID", lease, deadline_ns, &root), out);
    if (number_of(json_object_get(root, "result"), "TTL") <= 0)
        st = ls_fail(LS_EPEER, "the lease %" PRIx64 " has run out in etcd", (uint64_t)lease);
out:
    json_decref(root);
    return st;
}

ls_status ls_etcd_end_lease(ls_etcd *etcd, int64_t lease, int64_t deadline_ns)
{
    json_t *root = NULL;
    ls_status st = ask_number(etcd, "v3/lease/revoke", "ID", lease, deadline_ns, &root);

    json_decref(root);
    return st;
}

ls_status ls_etcd_get(ls_etcd *etcd, const char *key, int64_t deadline_ns, ls_str *value_out,
                      bool *found_out)
{
    json_t *root = NULL;
    ls_json j;
    ls_status st;

    begin(etcd, &j);
    put64(&j, "key", key);
    ls_json_close(&j);
    LS_TRY(st, ask(etcd, "v3/kv/range", deadline_ns, &root), out);
    const json_t *kv = json_array_get(json_object_get(root, "kvs"), 0);
    ls_str_clear(value_out);
    if (kv)
        LS_TRY(st, ls_etcd_decode64(text_of(kv, "value"), value_out), out);
    *found_out = kv != NULL;
out:
    json_decref(root);
    return st;
}

static void put_condition(ls_json *j, const ls_etcd_if *c)
{
    ls_json_open(j, '{');
    put64(j, "key", c->key);
    ls_json_put_str(j, "result", "EQUAL");
    ls_json_put_str(j, "target", c->value ? "VALUE" : "CREATE");
    if (c->value)
        put64(j, "value", c->value);
    else
        put_number(j, "create_revision", 0);
    ls_json_close(j);
}

static void put_put(ls_json *j, const ls_etcd_put *p)
{
    ls_json_open(j, '{');
    ls_json_key(j, "requestPut");
    ls_json_open(j, '{');
    put64(j, "key", p->key);
    put64(j, "value", p->value);
    if (p->lease)
        put_number(j, "lease", p->lease);
    ls_json_close(j);
    ls_json_close(j);
}

ls_status ls_etcd_swap(ls_etcd *etcd, const ls_etcd_if *conditions, int n_conditions,
                       const ls_etcd_put *puts, int n_puts, int64_t deadline_ns, bool *done_out)
{
    json_t *root = NULL;
    ls_json j;
    ls_status st;

    begin(etcd, &j);
    ls_json_key(&j, "compare");
    ls_json_open(&j, '[');
    for (int i = 0; i < n_conditions; i++)
        put_condition(&j, &conditions[i]);
    ls_json_close(&j);
    ls_json_key(&j, "success");
    ls_json_open(&j, '[');
    for (int i = 0; i < n_puts; i++)
        put_put(&j, &puts[i]);
    ls_json_close(&j);
    ls_json_close(&j);
    LS_TRY(st, ask(etcd, "v3/kv/txn", deadline_ns, &root), out);
    *done_out = json_is_true(json_object_get(root, "succeeded"));
out:
    json_decref(root);
    return st;
}
