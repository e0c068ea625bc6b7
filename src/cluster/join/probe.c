/* probe.c -- magic 4, kind 1, zero 3, random number 24, HMAC 32 over a label and what is before.
 *
 * A datagram of any other form is dropped without an answer: it may come from anybody. A
 * question that somebody recorded and sends again gets an answer of the same size, which is of use
 * to nobody. */
#include "cluster/join/probe.h"

#include <errno.h>
#include <sys/socket.h>
#include "base/mem.h"
#include "base/time.h"
#include "cluster/member/members.h"
#include "net/mac.h"
#include "net/secret.h"
#include "net/sock.h"

enum { ASKS = 1, ANSWERS = 2, AT_KIND = 4, AT_NONCE = 8, NONCE = 24, AT_MAC = 32, READS = 64 };
_Static_assert(AT_NONCE + NONCE == AT_MAC && AT_MAC + LS_MAC_BYTES == LS_PROBE_BYTES, "64 bytes");

static const uint8_t magic[AT_KIND] = {'L', 's', 'p', '1'};
static const char label[] = "lineshaft probe 1";

typedef struct question {
    bool open, answered;
    uint8_t nonce[NONCE];
    uint32_t tag;
    int64_t deadline_ns;
} question;

struct ls_probe {
    int fd;
    uint16_t port;
    const uint8_t *secret; /* borrowed */
    question questions[LS_PROBE_OPEN];
};

static ls_status address_of(const char *ip, uint16_t port, ls_sock_address *address_out)
{
    char text[LS_SOCK_TEXT];

    ls_members_format(ip, port, text, sizeof text);
    return ls_sock_resolve(text, 0, address_out); /* numbers: nobody is asked */
}

ls_status ls_probe_open(ls_probe **probe_out, const char *ip, const uint8_t *secret)
{
    ls_status st = LS_OK;
    ls_sock_address at;
    ls_probe *p = ls_mem_alloc(sizeof *p);

    if (!p)
        return LS_ENOMEM;
    p->fd = -1;
    p->secret = secret;
    LS_TRY(st, address_of(ip, 0, &at), out);
    p->fd = socket(at.storage.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->fd < 0 || bind(p->fd, (const struct sockaddr *)&at.storage, at.len) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot open a socket at %s for other nodes' questions", ip);
        goto out;
    }
    LS_TRY(st, ls_sock_local(p->fd, &at), out);
    p->port = ls_sock_port(&at);
    *probe_out = p;
out:
    if (st != LS_OK)
        ls_probe_close(p);
    return st;
}

void ls_probe_close(ls_probe *probe)
{
    if (!probe)
        return;
    ls_sock_close(&probe->fd);
    ls_mem_free(probe);
}

int ls_probe_fd(const ls_probe *probe)
{
    return probe->fd;
}

uint16_t ls_probe_port(const ls_probe *probe)
{
    return probe->port;
}

static ls_status seal(const ls_probe *p, uint8_t *bytes, uint8_t mac_out[LS_MAC_BYTES])
{
    const ls_mac_part parts[] = {{label, sizeof label}, {bytes, AT_MAC}};

    return ls_mac_hmac(p->secret, LS_SECRET_BYTES, parts, (int)LS_COUNT(parts), mac_out);
}

static ls_status send_to(const ls_probe *p, uint8_t kind, const uint8_t *nonce,
                         const struct sockaddr_storage *to, socklen_t len)
{
    uint8_t bytes[LS_PROBE_BYTES] = {0};
    ls_status st;

    memcpy(bytes, magic, sizeof magic);
    bytes[AT_KIND] = kind;
    memcpy(bytes + AT_NONCE, nonce, NONCE);
    LS_TRY(st, seal(p, bytes, bytes + AT_MAC), out);
    if (sendto(p->fd, bytes, sizeof bytes, MSG_NOSIGNAL, (const struct sockaddr *)to, len) < 0)
        st = ls_fail_sys(LS_EIO, "cannot ask a node whether it is there");
out:
    return st;
}

/* A question is a place in a table until it is answered or too late; its random number is what an answer
 * is recognised by. */
ls_status ls_probe_ask(ls_probe *probe, const char *ip, uint16_t port, uint32_t tag,
                       int64_t deadline_ns)
{
    ls_sock_address to;
    question *q = NULL;
    ls_status st;

    for (int i = 0; i < LS_PROBE_OPEN && !q; i++)
        q = probe->questions[i].open ? NULL : &probe->questions[i];
    if (!q)
        return ls_fail(LS_EBUSY, "%d questions to other nodes are open", LS_PROBE_OPEN);
    LS_TRY(st, address_of(ip, port, &to), out);
    *q = (question){.tag = tag, .deadline_ns = deadline_ns};
    LS_TRY(st, ls_secret_random(q->nonce, NONCE), out);
    LS_TRY(st, send_to(probe, ASKS, q->nonce, &to.storage, to.len), out);
    q->open = true;
out:
    return st;
}

static bool is_ours(const ls_probe *p, uint8_t *bytes, ssize_t len)
{
    uint8_t mac[LS_MAC_BYTES];

    return len == LS_PROBE_BYTES && memcmp(bytes, magic, sizeof magic) == 0 &&
           seal(p, bytes, mac) == LS_OK && ls_mac_equal(mac, bytes + AT_MAC, sizeof mac);
}

static void read_some(ls_probe *p)
{
    for (int i = 0; i < READS; i++) {
        uint8_t bytes[LS_PROBE_BYTES + 1];
        struct sockaddr_storage from;
        socklen_t len = sizeof from;
        ssize_t n = recvfrom(p->fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &len);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0 || !is_ours(p, bytes, n))
            continue; /* an error is of something that was sent before: nobody listens there */
        if (bytes[AT_KIND] == ASKS)
            (void)send_to(p, ANSWERS, bytes + AT_NONCE, &from, len); /* it will be asked again */
        for (int k = 0; k < LS_PROBE_OPEN && bytes[AT_KIND] == ANSWERS; k++)
            if (p->questions[k].open && memcmp(p->questions[k].nonce, bytes + AT_NONCE, NONCE) == 0)
                p->questions[k].answered = true;
    }
}

bool ls_probe_next(ls_probe *probe, int64_t now, uint32_t *tag_out, bool *reached_out)
{
    read_some(probe);
    for (int i = 0; i < LS_PROBE_OPEN; i++) {
        question *q = &probe->questions[i];
        if (!q->open || (!q->answered && now < q->deadline_ns))
            continue;
        q->open = false;
        *tag_out = q->tag;
        *reached_out = q->answered;
        return true;
    }
    return false;
}
