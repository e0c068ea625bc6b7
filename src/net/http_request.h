/* http_request.h -- the head of an HTTP/1.1 request, read strictly, and what a handler asks of it.
 *
 * The head is parsed in place: all texts of a request point into the caller's bytes. What two
 * programs could read in two ways (a repeated length, folded lines, two hosts, control characters)
 * is refused rather than guessed. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

enum { LS_HTTP_HEAD_MOST = 16 << 10, LS_HTTP_HEADERS = 64 };

typedef struct ls_http_header {
    const char *name, *value;
} ls_http_header;

typedef struct ls_http_request {
    const char *method; /* "GET", "HEAD", "POST" ... */
    const char *path;   /* begins with '/', percent-decoded, without the query */
    const char *query;  /* behind the '?', as sent; "" */
    ls_http_header headers[LS_HTTP_HEADERS];
    int n_headers;
    int64_t body_len;
    const char *body; /* ends in '\0', which does not count */
    bool keep_alive;
    bool tls;         /* it came encrypted */
    const char *peer; /* address of the caller, as text */
} ls_http_request;

/* Bytes of the head in text, its empty line included; 0: it is not complete. */
size_t ls_http_request_head(const char *text, size_t len);

/* Parse a head of exactly len bytes in place. 0, or the status of the answer that refuses it (400,
 * 431, 501, 505) and why. */
int ls_http_request_parse(ls_http_request *request, char *head, size_t len, const char **why_out);

/* The value of a header, its name in any case; NULL: there is none. */
const char *ls_http_request_header(const ls_http_request *request, const char *name);

/* A parameter of the query, decoded; false: it is not there, or has no room in out. */
bool ls_http_request_parameter(const ls_http_request *request, const char *name, char *out,
                               size_t size);

/* A cookie; false: it is not there, or has no room in out. */
bool ls_http_request_cookie(const ls_http_request *request, const char *name, char *out,
                            size_t size);

LS_C_END
