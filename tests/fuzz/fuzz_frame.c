/* fuzz_frame.c -- any bytes on a connection whose hello has passed: control frames, and frames of
 * the TCP transport with messages posted.
 *
 * Checksums, MACs and sequence numbers are made right for half of the inputs. */
#include <stdlib.h>
#include "base/hash.h"
#include "base/log.h"
#include "comm/transport/tcp_impl.h"
#include "net/frame.h"
#include "net/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void drop_line(ls_log_level level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

/* --- control frames --- */

static void control(int fds[2], bool seal, bool ahead, const uint8_t *data, size_t size)
{
    ls_handshake hello = {0};
    ls_frame_link in, out;
    ls_frame frame;
    bool got = true;
    ls_status st = LS_OK;

    ls_frame_init(&in, fds[0], &hello, 1000);
    in.ahead = ahead;
    ls_frame_init(&out, fds[1], &hello, 100000);
    fds[0] = fds[1] = -1;
    if (seal) {
        if (ls_frame_send(&out, 3, data, size) != LS_OK)
            abort();
    } else {
        (void)!send(out.fd, data, size, MSG_NOSIGNAL);
    }
    while (st == LS_OK && got) {
        st = ls_frame_receive(&in, &frame, &got);
        if (got && (!seal || frame.bytes != size || memcmp(frame.payload, data, size) != 0))
            abort();
    }
    if (seal && (size <= 1000) != (in.received == 1))
        abort();
    ls_frame_release(&in);
    ls_frame_release(&out);
}

/* --- the transport --- */

enum { POSTS = 6, GENERATION = 9 };

static void post_some(ls_tcp *tcp, ls_message *messages, uint8_t *memory)
{
    static const int64_t sizes[POSTS] = {0, 8, 1000, 20000, 70000, 70000};

    for (int i = 0; i < POSTS; i++) {
        messages[i] = (ls_message){.peer = 0,
                                   .tag = (uint64_t)i,
                                   .data = memory,
                                   .bytes = sizes[i],
                                   .add = i == 2 || i == 4,
                                   .op = LS_COMBINE_SUM,
                                   .type = LS_I32};
        if (i == 5)
            (void)tcp->transport.table->send(&tcp->transport, &messages[i]);
        else
            (void)tcp->transport.table->receive(&tcp->transport, &messages[i]);
    }
}

/* The next frame of the input, made sound: kind, tag, offset and length are the input's. */
static size_t sound_frame(const uint8_t *data, size_t size, uint64_t *sequence, uint8_t channel,
                          uint8_t *out)
{
    ls_tcp_wire wire = {.kind = (uint8_t)(data[0] % LS_TCP_WIRE_KINDS),
                        .channel = channel,
                        .flags = data[1],
                        .generation = GENERATION,
                        .tag = data[2] % 8,
                        .offset = (uint64_t)data[3] << (data[4] % 64),
                        .ack = data[7]};
    uint32_t length = ls_wire_get16(data + 5);

    if (ls_tcp_wire_counted(wire.kind))
        wire.sequence = ++*sequence;
    if (wire.kind == LS_TCP_WIRE_EAGER || wire.kind == LS_TCP_WIRE_CHUNK_OF ||
        wire.kind == LS_TCP_WIRE_FAILED)
        wire.length = length;
    for (uint32_t i = 0; i < wire.length; i++)
        out[LS_TCP_WIRE_BYTES + i] = size > 8 ? data[8 + i % (size - 8)] : 0;
    wire.crc = ls_hash_crc32c(0, out + LS_TCP_WIRE_BYTES, wire.length);
    ls_tcp_wire_put(&wire, out);
    return LS_TCP_WIRE_BYTES + wire.length;
}

static void say_resume(ls_tcp *tcp, int fd, uint8_t channel)
{
    ls_tcp_wire wire = {.kind = LS_TCP_WIRE_RESUME,
                        .channel = channel,
                        .generation = GENERATION,
                        .tag = 5,
                        .offset = (uint64_t)tcp->args.eager_bytes << 32 |
                                  (uint64_t)(tcp->args.chunk_bytes / 64) << 8 |
                                  (uint64_t)tcp->args.sockets};
    uint8_t bytes[LS_TCP_WIRE_BYTES];

    ls_tcp_wire_put(&wire, bytes);
    (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
}

static void transport(int fds[2], uint8_t mode, const uint8_t *data, size_t size)
{
    static uint8_t memory[70000], out[LS_TCP_WIRE_BYTES + 65536];
    static const uint8_t secret[32];
    ls_tcp_args args = {.rank = 1,
                        .ranks = 2,
                        .generation = GENERATION,
                        .listen_fd = -1,
                        .secret = secret,
                        .chunk_bytes = 65536};
    ls_message messages[POSTS];
    uint64_t sequence = 0;
    uint8_t channel = mode & 1;
    bool moved;
    ls_tcp *tcp;

    if (ls_tcp_make(&tcp, &args, 0) != LS_OK)
        abort();
    tcp->links[0].reached = true;
    post_some(tcp, messages, memory);
    ls_tcp_adopt(&tcp->links[0].channels[channel], fds[0]);
    if (mode & 2)
        say_resume(tcp, fds[1], channel);
    if (!(mode & 4))
        (void)!send(fds[1], data, size, MSG_NOSIGNAL);
    while ((mode & 4) && size >= 8) {
        size_t n = sound_frame(data, size, &sequence, channel, out);
        (void)!send(fds[1], out, n, MSG_NOSIGNAL);
        (void)tcp->transport.table->poll(&tcp->transport, &moved);
        data += 8;
        size -= 8;
    }
    for (int i = 0; i < 3; i++)
        (void)tcp->transport.table->poll(&tcp->transport, &moved);
    ls_sock_close(&fds[1]); /* nobody listens to last words */
    tcp->transport.table->close(&tcp->transport);
    fds[0] = -1; /* the transport's */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fds[2];

    ls_log_set_sink(drop_line, NULL, LS_LOG_ERROR);
    if (size == 0 || size > 20000 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0)
        return 0;
    if (data[0] & 0x80)
        control(fds, data[0] & 1, data[0] & 2, data + 1, size - 1);
    else
        transport(fds, data[0], data + 1, size - 1);
    ls_sock_close(&fds[0]);
    ls_sock_close(&fds[1]);
    return 0;
}
