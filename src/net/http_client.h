/* http_client.h -- one HTTP request at a time, with a deadline: JSON to a URL, and what comes back.
 *
 * libcurl does the work; it is opened when the first request is made, so that a program that makes
 * none starts without it. Proxies of the environment are not used, redirects are not followed, and
 * an answer of more than LS_HTTP_CLIENT_MOST bytes is refused. One thread per handle. */
#pragma once
#include "base/err.h"
#include "base/str.h"

LS_C_BEGIN

enum { LS_HTTP_CLIENT_MOST = 4 << 20 };

typedef struct ls_http_client ls_http_client; /* keeps its connection for the next request */

/* LS_EUSAGE: libcurl is not here, or this program was built without its headers. */
ls_status ls_http_client_open(ls_http_client **client_out);
void ls_http_client_close(ls_http_client *client); /* NULL is allowed */

/* POST body to url; the answer's text and status (200, 404 ...). LS_EIO: no server answers there,
 * and why. LS_EDEADLINE: not in time. LS_EUSAGE: no http or https URL. */
ls_status ls_http_client_post(ls_http_client *client, const char *url, const char *body,
                              int64_t deadline_ns, ls_str *answer_out, long *status_out);

LS_C_END
