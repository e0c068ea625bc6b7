/* http_request.c -- see http_request.h.
 *
 *     GET /api/points?name=loss HTTP/1.1\r\n      request line: method, target, version
 *     Host: 127.0.0.1:8080\r\n                    headers
 *     \r\n                                        the empty line ends the head
 *
 * Each separator becomes '\0', so that every text ends where the next one begins. */
#include "net/http_request.h"

#include <string.h>
#include <strings.h>

static bool is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* "%41+b" as "A+b" (or "A b" in a query), to out, which may be text itself. False: not a code, or a
 * zero byte. */
static bool decode(const char *text, size_t len, bool plus, char *out)
{
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '%') {
            int high = i + 2 < len ? hex(text[i + 1]) : -1, low = high < 0 ? -1 : hex(text[i + 2]);
            if (low < 0 || 16 * high + low == 0)
                return false;
            c = (char)(16 * high + low);
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        *out++ = c;
    }
    *out = '\0';
    return true;
}

size_t ls_http_request_head(const char *text, size_t len)
{
    const char *end = len ? memmem(text, len, "\r\n\r\n", 4) : NULL;

    return end ? (size_t)(end - text) + 4 : 0;
}

static int refuse(int status, const char *why, const char **why_out)
{
    *why_out = why;
    return status;
}

static int parse_line(ls_http_request *r, char *line, const char **why)
{
    char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;

    if (!version || target == line)
        return refuse(400, "not a request line", why);
    *target++ = *version++ = '\0';
    for (const char *c = line; *c; c++)
        if (!is_token(*c))
            return refuse(400, "not a method", why);
    for (const char *c = target; *c; c++)
        if (*c <= ' ' || *c >= 127)
            return refuse(400, "not a target", why);
    if (strncmp(version, "HTTP/1.", 7) != 0 || strlen(version) != 8)
        return refuse(505, "only HTTP/1.1 is spoken here", why);
    if (version[7] != '0' && version[7] != '1')
        return refuse(505, "only HTTP/1.1 is spoken here", why);
    if (*target != '/')
        return refuse(400, "the target does not begin with /", why);
    char *query = strchr(target, '?');
    if (query)
        *query++ = '\0';
    if (!decode(target, strlen(target), false, target))
        return refuse(400, "not a path", why);
    r->method = line;
    r->path = target;
    r->query = query ? query : "";
    r->keep_alive = version[7] == '1';
    return 0;
}

static int parse_header(ls_http_request *r, char *line, const char **why)
{
    char *colon = strchr(line, ':'), *end;

    if (r->n_headers == LS_HTTP_HEADERS)
        return refuse(431, "too many headers", why);
    if (!colon || colon == line)
        return refuse(400, "not a header", why);
    for (const char *c = line; c < colon; c++)
        if (!is_token(*c))
            return refuse(400, "not the name of a header", why);
    *colon++ = '\0';
    while (*colon == ' ' || *colon == '\t')
        colon++;
    end = colon + strlen(colon);
    while (end > colon && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = '\0';
    for (const char *c = colon; *c; c++)
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == 127)
            return refuse(400, "a header has a control character", why);
    r->headers[r->n_headers++] = (ls_http_header){line, colon};
    return 0;
}

/* What the headers say about the request itself; each of these may be there only once. */
static int read_meaning(ls_http_request *r, const char **why)
{
    int hosts = 0, lengths = 0;

    for (int i = 0; i < r->n_headers; i++) {
        const char *name = r->headers[i].name, *value = r->headers[i].value;
        if (strcasecmp(name, "host") == 0) {
            hosts++;
        } else if (strcasecmp(name, "transfer-encoding") == 0) {
            return refuse(501, "a body needs a Content-Length here", why);
        } else if (strcasecmp(name, "expect") == 0) {
            return refuse(417, "no expectation is met here", why);
        } else if (strcasecmp(name, "content-length") == 0) {
            if (lengths++ || !*value || strlen(value) > 15)
                return refuse(400, "not a Content-Length", why);
            for (; *value; value++) {
                if (*value < '0' || *value > '9')
                    return refuse(400, "not a Content-Length", why);
                r->body_len = 10 * r->body_len + (*value - '0');
            }
        } else if (strcasecmp(name, "connection") == 0 && strcasecmp(value, "close") == 0) {
            r->keep_alive = false;
        }
    }
    if (hosts != 1)
        return refuse(400, "one Host header is needed", why);
    return 0;
}

int ls_http_request_parse(ls_http_request *request, char *head, size_t len, const char **why_out)
{
    int status = 0, line = 0;
    char *at = head;

    *request = (ls_http_request){.method = "", .path = "/", .query = "", .body = "", .peer = ""};
    if (len < 4 || memchr(head, '\0', len) || memcmp(head + len - 4, "\r\n\r\n", 4) != 0)
        return refuse(400, "not a request", why_out);
    head[len - 2] = '\0';
    for (; status == 0 && *at; line++) {
        char *end = strstr(at, "\r\n");
        *end = '\0';
        if (strpbrk(at, "\r\n"))
            return refuse(400, "a line ends in the middle", why_out);
        status = line == 0 ? parse_line(request, at, why_out) : parse_header(request, at, why_out);
        at = end + 2;
    }
    if (status == 0 && line == 0)
        return refuse(400, "not a request line", why_out);
    return status ? status : read_meaning(request, why_out);
}

const char *ls_http_request_header(const ls_http_request *request, const char *name)
{
    for (int i = 0; i < request->n_headers; i++)
        if (strcasecmp(request->headers[i].name, name) == 0)
            return request->headers[i].value;
    return NULL;
}

bool ls_http_request_parameter(const ls_http_request *request, const char *name, char *out,
                               size_t size)
{
    size_t n = strlen(name);

    for (const char *at = request->query; *at;) {
        size_t len = strcspn(at, "&");
        if (len > n && strncmp(at, name, n) == 0 && at[n] == '=')
            return len - n - 1 < size && decode(at + n + 1, len - n - 1, true, out);
        at += len + (at[len] == '&');
    }
    return false;
}

bool ls_http_request_cookie(const ls_http_request *request, const char *name, char *out,
                            size_t size)
{
    const char *at = ls_http_request_header(request, "cookie");
    size_t n = strlen(name);

    while (at && *at) {
        at += strspn(at, " ;");
        size_t len = strcspn(at, ";");
        if (len > n && strncmp(at, name, n) == 0 && at[n] == '=') {
            if (len - n > size)
                return false;
            memcpy(out, at + n + 1, len - n - 1);
            out[len - n - 1] = '\0';
            return true;
        }
        at += len;
    }
    return false;
}
