/* frame.c -- header (length, type, zero, number; 16 bytes), payload, MAC (32 bytes).
 *
 * The length is believed before the MAC is checked, because the MAC comes last; therefore it is
 * limited, and memory grows with the bytes that really came: twice what is there, never what a
 * header promises. */
#include "net/frame.h"

#include <errno.h>
#include <sys/socket.h>
#include "base/mem.h"
#include "net/sock.h"
#include "net/wire.h"

enum { AT_LENGTH = 0, AT_TYPE = 4, AT_ZERO = 6, AT_NUMBER = 8, FIRST_CAP = 512, KEPT_CAP = 4096 };

void ls_frame_init(ls_frame_link *link, int fd, const ls_handshake *handshake, uint32_t limit_bytes)
{
    *link = (ls_frame_link){.fd = fd, .limit = limit_bytes};
    memcpy(link->send_key, handshake->send_key, LS_HANDSHAKE_KEY);
    memcpy(link->receive_key, handshake->receive_key, LS_HANDSHAKE_KEY);
}

void ls_frame_release(ls_frame_link *link)
{
    ls_sock_close(&link->fd);
    ls_mem_free(link->in);
    ls_mem_free(link->out);
    explicit_bzero(link, sizeof *link);
    link->fd = -1;
}

static ls_status grow(uint8_t **bytes, size_t *cap, size_t want)
{
    size_t bigger = *cap ? *cap : FIRST_CAP;

    while (bigger < want)
        bigger *= 2;
    if (bigger == *cap)
        return LS_OK;
    uint8_t *p = ls_mem_resize(*bytes, bigger);
    if (!p)
        return LS_ENOMEM;
    *bytes = p;
    *cap = bigger;
    return LS_OK;
}

ls_status ls_frame_send(ls_frame_link *link, uint16_t type, const void *payload, size_t bytes)
{
    ls_status st = LS_OK;
    size_t whole = LS_FRAME_HEADER + bytes + LS_FRAME_MAC;

    if (bytes > link->limit)
        return ls_fail(LS_EUSAGE, "a control message of %zu bytes is longer than %u", bytes,
                       link->limit);
    if (link->out_at > 0) {
        memmove(link->out, link->out + link->out_at, link->out_len - link->out_at);
        link->out_len -= link->out_at;
        link->out_at = 0;
    }
    if (link->out_len + whole > 4 * ((size_t)link->limit + LS_FRAME_HEADER + LS_FRAME_MAC))
        return ls_fail(LS_EBUSY, "%zu bytes of control messages wait for a side that does not read",
                       link->out_len);
    LS_TRY(st, grow(&link->out, &link->out_cap, link->out_len + whole), out);
    uint8_t *at = link->out + link->out_len;
    ls_wire_put32(at + AT_LENGTH, (uint32_t)bytes);
    ls_wire_put16(at + AT_TYPE, type);
    ls_wire_put16(at + AT_ZERO, 0);
    ls_wire_put64(at + AT_NUMBER, link->sent);
    if (bytes)
        memcpy(at + LS_FRAME_HEADER, payload, bytes);
    ls_mac_part part = {at, LS_FRAME_HEADER + bytes};
    LS_TRY(st, ls_mac_hmac(link->send_key, LS_HANDSHAKE_KEY, &part, 1, at + part.len), out);
    link->out_len += whole;
    link->sent++;
    st = ls_frame_flush(link);
out:
    return st;
}

ls_status ls_frame_flush(ls_frame_link *link)
{
    while (link->out_at < link->out_len) {
        ssize_t n =
            send(link->fd, link->out + link->out_at, link->out_len - link->out_at, MSG_NOSIGNAL);
        if (n >= 0) {
            link->out_at += (size_t)n;
            link->sent_bytes += (size_t)n;
        } else if (errno == EAGAIN)
            return LS_OK;
        else if (errno != EINTR)
            return ls_fail_sys(LS_EIO, "cannot send a control message");
    }
    if (link->out_cap > KEPT_CAP) { /* a list of members is long, rare, and sent to thousands */
        ls_mem_free(link->out);
        link->out = NULL;
        link->out_at = link->out_len = link->out_cap = 0;
    }
    return LS_OK;
}

bool ls_frame_waiting(const ls_frame_link *link)
{
    return link->out_at < link->out_len;
}

/* Read what the socket has, as far as there is room, and not beyond `want` bytes unless that is
 * allowed. */
static ls_status fill(ls_frame_link *link, size_t want)
{
    ls_status st = LS_OK;

    if (link->in_at > 0) /* frames that were handed out */
        memmove(link->in, link->in + link->in_at, link->in_len - link->in_at);
    link->in_len -= link->in_at;
    link->in_at = 0;
    LS_TRY(st, grow(&link->in, &link->in_cap, link->in_len + 1), out);
    for (;;) {
        size_t most = link->ahead || want > link->in_cap ? link->in_cap : want;
        size_t room = most - link->in_len;
        ssize_t n = recv(link->fd, link->in + link->in_len, room, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            return ls_fail(LS_EIO, "the other side closed the control connection");
        if (n < 0 && errno != EAGAIN)
            return ls_fail_sys(LS_EIO, "cannot read from the control connection");
        link->drained = n < (ssize_t)room;
        link->in_len += n > 0 ? (size_t)n : 0;
        return LS_OK;
    }
out:
    return st;
}

static ls_status judge(const ls_frame_link *link, size_t bytes)
{
    uint8_t mac[LS_FRAME_MAC];
    const uint8_t *at = link->in + link->in_at;
    ls_mac_part part = {at, LS_FRAME_HEADER + bytes};
    ls_status st = ls_mac_hmac(link->receive_key, LS_HANDSHAKE_KEY, &part, 1, mac);

    if (st != LS_OK)
        return st;
    if (!ls_mac_equal(mac, at + part.len, sizeof mac))
        return ls_fail(LS_EDATA, "a control message was changed on its way");
    uint64_t number = ls_wire_get64(at + AT_NUMBER);
    if (number != link->received || ls_wire_get16(at + AT_ZERO) != 0)
        return ls_fail(LS_EDATA, "control message %llu came where %llu was expected",
                       (unsigned long long)number, (unsigned long long)link->received);
    return LS_OK;
}

/* Whether a whole frame is in the buffer, of this many bytes of payload; and how many bytes must be
 * there to know more. */
static ls_status find(const ls_frame_link *link, uint32_t *bytes_out, size_t *want_out,
                      bool *found_out)
{
    size_t here = link->in_len - link->in_at;

    *found_out = false;
    *want_out = LS_FRAME_HEADER;
    if (here < LS_FRAME_HEADER)
        return LS_OK;
    *bytes_out = ls_wire_get32(link->in + link->in_at + AT_LENGTH);
    if (*bytes_out > link->limit)
        return ls_fail(LS_EDATA, "a control message claims %u bytes, the limit is %u", *bytes_out,
                       link->limit);
    *want_out = LS_FRAME_HEADER + (size_t)*bytes_out + LS_FRAME_MAC;
    *found_out = here >= *want_out;
    return LS_OK;
}

/* A read that got less than there was room for has emptied the socket: the next one is not tried
 * before the caller knows that there is nothing, and waits for more. */
ls_status ls_frame_receive(ls_frame_link *link, ls_frame *frame_out, bool *got_out)
{
    ls_status st = LS_OK;
    uint32_t bytes = 0;
    size_t want;
    bool found;

    *got_out = false;
    LS_TRY(st, find(link, &bytes, &want, &found), out);
    while (!found && !link->drained) {
        LS_TRY(st, fill(link, want), out);
        LS_TRY(st, find(link, &bytes, &want, &found), out);
    }
    if (!found) {
        link->drained = false;
        if (link->in_len == link->in_at && link->in_cap > KEPT_CAP) {
            ls_mem_free(link->in);
            link->in = NULL;
            link->in_at = link->in_len = link->in_cap = 0;
        }
        goto out;
    }
    LS_TRY(st, judge(link, bytes), out);
    const uint8_t *at = link->in + link->in_at;
    link->received++;
    link->in_at += LS_FRAME_HEADER + bytes + LS_FRAME_MAC;
    *frame_out = (ls_frame){
        .type = ls_wire_get16(at + AT_TYPE), .payload = at + LS_FRAME_HEADER, .bytes = bytes};
    *got_out = true;
out:
    return st;
}
