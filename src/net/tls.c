/* tls.c -- see tls.h. The handshake happens inside of the first reads, so a connection has no state of
 * its own for it. OpenSSL's queue of errors is emptied after each call: it is per thread, and what
 * one connection leaves there would confuse the next one. */
#include <openssl/err.h>
#include <openssl/ssl.h>
#include "net/tls.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* Both types are names for OpenSSL's own. */
static SSL_CTX *context_of(ls_tls_server *server)
{
    return (SSL_CTX *)(void *)server;
}

static SSL *ssl_of(ls_tls *tls)
{
    return (SSL *)(void *)tls;
}

static ls_status refuse(const char *what, const char *path)
{
    unsigned long code = ERR_get_error();
    const char *why = code ? ERR_reason_error_string(code) : NULL;
    ls_status st;

    if (access(path, R_OK) != 0)
        st = ls_fail_sys(LS_EUSAGE, "cannot read the %s \"%s\"", what, path);
    else
        st = ls_fail(LS_EDATA, "the %s \"%s\" cannot be used: %s", what, path,
                     why ? why : "not in PEM form");
    ls_err_hint("Both files are PEM; a pair for trials: openssl req -x509 -newkey rsa:2048 -nodes "
                "-keyout key.pem -out cert.pem -subj /CN=localhost");
    ERR_clear_error();
    return st;
}

ls_status ls_tls_server_open(ls_tls_server **server_out, const char *cert_file,
                             const char *key_file)
{
    ls_status st = LS_OK;
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());

    if (!context)
        return ls_fail(LS_ENOMEM, "cannot set up TLS");
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    if (SSL_CTX_use_certificate_chain_file(context, cert_file) != 1) {
        st = refuse("certificate", cert_file);
        goto out;
    }
    if (SSL_CTX_use_PrivateKey_file(context, key_file, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(context) != 1) {
        st = refuse("key", key_file);
        goto out;
    }
    *server_out = (ls_tls_server *)(void *)context;
    context = NULL;
out:
    SSL_CTX_free(context);
    return st;
}

void ls_tls_server_close(ls_tls_server *server)
{
    SSL_CTX_free(context_of(server));
}

ls_tls *ls_tls_accept(ls_tls_server *server, int fd)
{
    SSL *ssl = SSL_new(context_of(server));

    if (ssl && SSL_set_fd(ssl, fd) != 1) {
        SSL_free(ssl);
        ssl = NULL;
    }
    if (ssl)
        SSL_set_accept_state(ssl);
    ERR_clear_error();
    return (ls_tls *)(void *)ssl;
}

void ls_tls_close(ls_tls *tls)
{
    if (!tls)
        return;
    if (SSL_is_init_finished(ssl_of(tls)))
        SSL_shutdown(ssl_of(tls)); /* says goodbye; the answer is not waited for */
    SSL_free(ssl_of(tls));
    ERR_clear_error();
}

static ssize_t result(ls_tls *tls, int n, int *wait_out)
{
    int why = n > 0 ? SSL_ERROR_NONE : SSL_get_error(ssl_of(tls), n);

    ERR_clear_error();
    switch (why) {
    case SSL_ERROR_NONE:
        return n;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        *wait_out = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
        errno = EAGAIN;
        return -1;
    default:
        SSL_set_quiet_shutdown(ssl_of(tls), 1); /* after a fatal error nothing may be sent */
        errno = EPROTO;
        return -1;
    }
}

ssize_t ls_tls_read(ls_tls *tls, void *bytes, size_t len, int *wait_out)
{
    return result(tls, SSL_read(ssl_of(tls), bytes, (int)ls_min_i64((int64_t)len, INT_MAX)),
                  wait_out);
}

ssize_t ls_tls_write(ls_tls *tls, const void *bytes, size_t len, int *wait_out)
{
    return result(tls, SSL_write(ssl_of(tls), bytes, (int)ls_min_i64((int64_t)len, INT_MAX)),
                  wait_out);
}
