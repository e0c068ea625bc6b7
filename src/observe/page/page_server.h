/* page_server.h -- the page of a run over HTTP, for a browser on this machine or behind an SSH tunnel.
 *
 *     /              the page
 *     /page.js ...   its files
 *     /stream        server-sent events: "snapshot", then "changes" (page_data.h)
 *     /page          a snapshot;  ?with=NAME ?bins=N  as for /stream
 *     /range         ?from=STEP&to=STEP&bins=N: curves seen closer
 *
 * Every request needs the token: 128 random bits in the printed address, which the answer turns into
 * a cookie. What another site in the same browser could send is refused: a Host that is not this
 * server (DNS rebinding), an Origin or a Sec-Fetch-Site that is another site. Without TLS it listens
 * on loopback only. The thread reads the run folder and never writes. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_page_server ls_page_server;

typedef struct ls_page_server_args {
    const char *folder;               /* of the run */
    bool early;                       /* the run may begin later */
    const char *listen;               /* "127.0.0.1:0"; NULL: that */
    const char *cert_file, *key_file; /* PEM; both or NULL */
    const char *host;                 /* one more name by which this server is asked for; NULL */
    const char *with;                 /* folder of the run that it is compared with; NULL */
    int nice;                         /* of the thread */
    int64_t tick_ns;                  /* between two looks at the run; 0: 500 ms */
    size_t stream_most;               /* bytes a reader may be behind; 0: 4 MiB */
} ls_page_server_args;

/* Listen, and serve in a thread. LS_EIO: no run folder, or the address cannot be had. LS_EUSAGE:
 * another address than loopback without a certificate. */
ls_status ls_page_server_open(ls_page_server **server_out, const ls_page_server_args *args);
void ls_page_server_close(ls_page_server *server); /* NULL is allowed */

/* The address with its token: "http://127.0.0.1:40001/?token=...". */
const char *ls_page_server_url(const ls_page_server *server);

LS_C_END
