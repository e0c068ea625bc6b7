/* fuzz_probe.c -- any datagrams at a node that answers questions of others: nobody who does not
 * know the secret gets an answer, and nothing but an answer settles a question.
 *
 * Input: a length, and a datagram of that many bytes, again and again. */
#include <stdlib.h>
#include <unistd.h>
#include "base/log.h"
#include "cluster/join/probe.h"
#include "net/sock.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void drop_line(ls_log_level level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t secret[32] = "only this one is right";
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    uint8_t got[LS_PROBE_BYTES];
    ls_sock_address to;
    ls_probe *probe = NULL;
    char text[40];
    uint32_t tag;
    bool reached;

    ls_log_set_sink(drop_line, NULL, LS_LOG_ERROR);
    if (fd < 0 || ls_probe_open(&probe, "127.0.0.1", secret) != LS_OK ||
        ls_probe_ask(probe, "127.0.0.1", 9, 1, INT64_MAX) != LS_OK)
        abort();
    snprintf(text, sizeof text, "127.0.0.1:%d", ls_probe_port(probe));
    if (ls_sock_resolve(text, 0, &to) != LS_OK)
        abort();
    while (size > 0) {
        size_t len = data[0] <= size - 1 ? data[0] : size - 1;
        (void)!sendto(fd, data + 1, len, 0, (const struct sockaddr *)&to.storage, to.len);
        if (ls_probe_next(probe, 0, &tag, &reached))
            abort();
        data += 1 + len;
        size -= 1 + len;
    }
    if (recv(fd, got, sizeof got, 0) >= 0)
        abort();
    ls_probe_close(probe);
    close(fd);
    return 0;
}
