/* tls.h -- the server's side of TLS over a socket that does not block (OpenSSL).
 *
 * A call that would wait says for what (POLLIN or POLLOUT) and is repeated when the socket is ready. */
#pragma once
#include <sys/types.h>
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_tls_server ls_tls_server; /* certificate and key */
typedef struct ls_tls ls_tls;               /* one connection */

/* LS_EUSAGE: a file is missing. LS_EDATA: it is not PEM, or the key is not that of the
 * certificate. */
ls_status ls_tls_server_open(ls_tls_server **server_out, const char *cert_file,
                             const char *key_file);
void ls_tls_server_close(ls_tls_server *server); /* NULL is allowed */

/* NULL: no memory. fd is borrowed. */
ls_tls *ls_tls_accept(ls_tls_server *server, int fd);
void ls_tls_close(ls_tls *tls); /* NULL is allowed */

/* As recv() and send(): bytes, 0 at the end, -1 with errno EAGAIN (*wait_out: for what) or EPROTO.
 * The handshake happens inside. */
ssize_t ls_tls_read(ls_tls *tls, void *bytes, size_t len, int *wait_out);
ssize_t ls_tls_write(ls_tls *tls, const void *bytes, size_t len, int *wait_out);

LS_C_END
