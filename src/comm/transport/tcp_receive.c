/* tcp_receive.c -- what comes in: headers are checked, payloads go straight to where they belong.
 *
 *   socket --recvmsg--> [ rest of the payload | read-ahead buffer ]
 *                          |                     headers, small payloads, the first bytes
 *                          v                     of large ones
 *              the receive's memory        a message that replaces
 *              this channel's staging      one that is added: combined when its checksum is right
 *              a block                     a small message whose receive is not posted yet
 *
 * One recvmsg() fills the rest of the current payload and reads on into the buffer, so a chunk
 * costs about one call. The checksum is computed over each piece as it arrives. A frame counts as
 * received when it is complete and its checksum is right. What a broken connection or a damaged
 * frame leaves in the receive's memory, the repeated frame overwrites; staging is simply dropped.
 *
 * Worked example, a chunk of 256 KiB on channel 1, whose buffer has 1024 bytes:
 *
 *     recvmsg   1024 bytes      into the buffer: the header and 960 bytes of payload, which are
 *                               copied to their place
 *     recvmsg   200000 bytes    straight to their place, behind the 960
 *     recvmsg    62208 bytes    61184 to their place: the payload is complete, its checksum is
 *                               compared; 1024 into the buffer: the next frame
 *
 * Sizes come from the other side and are accepted only within the limits of tcp_wire.c, of the
 * posted receive and of the credit. Anything else is damage: the connection is dropped and the
 * frame requested again (tcp_link.c counts how often). */
#include "comm/transport/tcp_impl.h"

#include <errno.h>
#include <sys/uio.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/time.h"

enum { READ_MOST = 4 << 20 }; /* bytes of one channel before others have their turn */

void ls_tcp_reset_input(ls_tcp_channel *channel)
{
    if (channel->in_payload && channel->post)
        channel->post->coming -= channel->head.length;
    ls_tcp_free_block(channel->link->tcp, channel->block);
    channel->block = NULL;
    channel->post = NULL;
    channel->in_payload = false;
    channel->in_at = channel->in_len = 0;
}

/* --- completing receives --- */

/* Room that a small message had is the peer's again. */
static void consume(ls_tcp_link *link, int64_t bytes)
{
    link->consumed += ls_tcp_credit(bytes);
    if (link->consumed - link->consumed_told >= LS_TCP_POOL / 4)
        ls_tcp_note(&link->channels[0], LS_TCP_WIRE_HEARTBEAT, 0, 0);
}

static void finish_receive(ls_tcp_link *link, ls_tcp_posted *post)
{
    post->message->done = true;
    link->tcp->moved = true;
    link->small -= !post->ready;
    ls_tcp_remove(link, post);
    ls_tcp_free_post(link->tcp, post);
}

static bool sizes_differ(ls_tcp_link *link, uint64_t tag, int64_t sent, int64_t expected)
{
    if (sent == expected)
        return false;
    ls_fail(LS_EDATA, "%s sends %lld bytes with tag %llx, but rank %d expects %lld of them",
            link->name, (long long)sent, (unsigned long long)tag, link->tcp->args.rank,
            (long long)expected);
    ls_tcp_fail(link->tcp);
    return true;
}

/* --- the table's receive --- */

/* A receive is posted. Its message has come already (then it is done at once), was announced, or is
 * still to come; a large or announced one says READY. */
ls_status ls_tcp_receive(ls_tcp_link *link, ls_message *message)
{
    ls_tcp *tcp = link->tcp;
    ls_tcp_posted *early = ls_tcp_find(link, LS_TCP_EARLY, message->tag);
    ls_tcp_posted *told = ls_tcp_find(link, LS_TCP_TOLD, message->tag);

    LS_BUG_IF(ls_tcp_find(link, LS_TCP_RECEIVE, message->tag), "tag %llx is received twice",
              (unsigned long long)message->tag);
    LS_BUG_IF(message->add && message->bytes % ls_dtype_bytes(message->type) != 0,
              "%lld bytes are to be added", (long long)message->bytes);
    if (early) {
        if (sizes_differ(link, message->tag, early->bytes, message->bytes))
            return tcp->failure.code;
        ls_message_put(message, 0, early->block ? early->block->bytes : NULL, early->bytes);
        message->done = true;
        consume(link, early->bytes);
        ls_tcp_remove(link, early);
        ls_tcp_free_post(tcp, early);
        return LS_OK;
    }
    if (told && sizes_differ(link, message->tag, told->bytes, message->bytes))
        return tcp->failure.code;
    ls_tcp_posted *post = ls_tcp_insert(link, LS_TCP_RECEIVE, message->tag, message->bytes);
    if (!post)
        return ls_err_last()->code;
    post->message = message;
    post->announced = told != NULL;
    if (told) {
        ls_tcp_remove(link, told);
        ls_tcp_free_post(tcp, told);
    }
    if (told || message->bytes > tcp->args.eager_bytes) {
        post->ready = true;
        ls_tcp_want(link, true);
        ls_tcp_say(link, LS_TCP_WIRE_READY, message->tag, message->bytes);
    }
    link->small += !post->ready;
    return LS_OK;
}

/* --- frames with a payload --- */

static bool make_staging(ls_tcp_channel *channel)
{
    ls_tcp *tcp = channel->link->tcp;

    if (!channel->staging)
        channel->staging =
            ls_mem_alloc((size_t)ls_max_i64(tcp->args.chunk_bytes, tcp->args.eager_bytes));
    if (!channel->staging)
        ls_tcp_fail(tcp);
    return channel->staging != NULL;
}

static void begin_block(ls_tcp_channel *channel)
{
    ls_tcp *tcp = channel->link->tcp;

    channel->block = ls_tcp_new_block(tcp, channel->head.length);
    if (!channel->block)
        ls_tcp_fail(tcp);
    else
        channel->to = channel->block->bytes;
}

/* A small message begins: straight into its receive, into staging where it is added, or into a
 * block where no receive is posted yet. */
static void begin_eager(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    const ls_tcp_wire *head = &channel->head;
    ls_tcp_posted *post = ls_tcp_find(link, LS_TCP_RECEIVE, head->tag);

    if (channel->index != 0 || head->length > link->tcp->args.eager_bytes) {
        ls_tcp_damage(channel, "a small message that is not small");
        return;
    }
    if (post && sizes_differ(link, head->tag, head->length, post->bytes))
        return;
    if (post && post->ready) {
        ls_tcp_damage(channel, "a small message that was announced as a large one");
        return;
    }
    channel->post = post;
    if (head->length == 0)
        return;
    if (!post)
        begin_block(channel);
    else if (!post->message->add)
        channel->to = post->message->data;
    else if (make_staging(channel))
        channel->to = channel->staging;
}

/* A chunk of a large message begins: into the memory of its receive, or into staging where it is
 * added. */
static void begin_chunk(ls_tcp_channel *channel)
{
    const ls_tcp_wire *head = &channel->head;
    ls_tcp_posted *post = ls_tcp_find(channel->link, LS_TCP_RECEIVE, head->tag);
    int64_t offset = (int64_t)head->offset, chunk = channel->link->tcp->args.chunk_bytes;

    /* Chunks begin at multiples of chunk_bytes, which every element size divides. */
    if (!post || !post->ready || (head->length == 0) != (post->bytes == 0) ||
        head->length > chunk || offset % chunk != 0 || offset + head->length > post->bytes ||
        post->coming + head->length > post->left ||
        (head->length != chunk && offset + head->length != post->bytes)) {
        ls_tcp_damage(channel, "a chunk that nobody asked for");
        return;
    }
    channel->post = post;
    if (head->length == 0) /* an empty message that found no credit */
        return;
    if (!post->message->add)
        channel->to = (uint8_t *)post->message->data + offset;
    else if (make_staging(channel))
        channel->to = channel->staging;
}

/* A small message is complete and its checksum right: it goes to its receive, or waits for it as an
 * early message. */
static void finish_eager(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    const ls_tcp_wire *head = &channel->head;
    /* The receive may have been posted while the message came into a block. */
    ls_tcp_posted *post =
        channel->post ? channel->post : ls_tcp_find(link, LS_TCP_RECEIVE, head->tag);

    if (post && sizes_differ(link, head->tag, head->length, post->bytes))
        return;
    if (post) {
        if (channel->block || post->message->add)
            ls_message_put(post->message, 0, channel->to, head->length);
        finish_receive(link, post);
        consume(link, head->length);
        return;
    }
    ls_tcp_posted *early = ls_tcp_insert(link, LS_TCP_EARLY, head->tag, head->length);
    if (!early) {
        ls_tcp_fail(link->tcp);
        return;
    }
    early->block = channel->block;
    channel->block = NULL;
}

/* The message is complete: its sender waits for the confirmations of all channels. */
static void confirm_all(ls_tcp_link *link)
{
    for (int c = 1; c < link->tcp->channels; c++)
        if (link->channels[c].received != link->channels[c].told)
            ls_tcp_note(&link->channels[c], LS_TCP_WIRE_HEARTBEAT, 0, 0);
}

/* A chunk is complete: combine it if it is added, and complete the message with the last one. */
static void finish_chunk(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    ls_tcp_posted *post = channel->post;
    const ls_tcp_wire *head = &channel->head;

    if (post->message->add)
        ls_message_put(post->message, (int64_t)head->offset, channel->staging, head->length);
    post->left -= head->length;
    link->tcp->moved = true;
    if (post->left > 0) {
        if (channel->received - channel->told >= LS_TCP_KEEP / 8)
            ls_tcp_note(channel, LS_TCP_WIRE_HEARTBEAT, 0, 0);
        return;
    }
    if ((head->flags & LS_TCP_WIRE_ANNOUNCED) && !post->announced &&
        !ls_tcp_insert(link, LS_TCP_SWALLOW, post->tag, post->bytes)) {
        ls_tcp_fail(link->tcp);
        return;
    }
    finish_receive(link, post);
    confirm_all(link);
}

static void finish_failed(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    char text[LS_TCP_WIRE_FAIL + 1];

    snprintf(text, sizeof text, "%.*s", (int)channel->head.length, (const char *)channel->to);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
    if (strstr(text, " (said rank ")) /* passed on by another rank */
        ls_fail(LS_EPEER, "%s", text);
    else
        ls_fail(LS_EPEER, "%s (said rank %llu)", text, (unsigned long long)channel->head.offset);
    ls_tcp_fail_as(link->tcp,
                   (int)ls_min_i64((int64_t)channel->head.offset, link->tcp->args.ranks));
}

/* --- frames without one --- */

/* The peer has posted the receive of a large message: start its send, or note it for the send to
 * come. */
static void on_ready(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    const ls_tcp_wire *head = &channel->head;
    ls_tcp_posted *post = ls_tcp_find(link, LS_TCP_SEND, head->tag);

    if (!post) {
        if (!ls_tcp_insert(link, LS_TCP_CLEARED, head->tag, (int64_t)head->offset))
            ls_tcp_fail(link->tcp);
        return;
    }
    if (post->ready) {
        ls_tcp_damage(channel, "a receive that was ready before");
        return;
    }
    if (ls_tcp_check_send(link, head->tag, post->bytes, (int64_t)head->offset) != LS_OK)
        ls_tcp_fail(link->tcp);
    else
        ls_tcp_start_bulk(link, post);
}

/* A send waits at the peer: compare sizes, and answer READY once the receive is posted. */
static void on_announce(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    const ls_tcp_wire *head = &channel->head;
    ls_tcp_posted *post = ls_tcp_find(link, LS_TCP_RECEIVE, head->tag);
    ls_tcp_posted *swallow = ls_tcp_find(link, LS_TCP_SWALLOW, head->tag);

    if (swallow) {
        ls_tcp_remove(link, swallow);
        ls_tcp_free_post(link->tcp, swallow);
    } else if (!post) {
        if (!ls_tcp_insert(link, LS_TCP_TOLD, head->tag, (int64_t)head->offset))
            ls_tcp_fail(link->tcp);
    } else if (!sizes_differ(link, head->tag, (int64_t)head->offset, post->bytes)) {
        post->announced = true;
        if (!post->ready) {
            link->small--;
            post->ready = true;
            ls_tcp_want(link, true);
            ls_tcp_say(link, LS_TCP_WIRE_READY, head->tag, post->bytes);
        }
    }
}

static void on_ask(ls_tcp_channel *channel)
{
    ls_tcp *tcp = channel->link->tcp;
    uint8_t bytes[LS_TCP_ANSWER_BYTES];
    int len = 0;

    if (tcp->args.answer && channel->head.tag < (uint64_t)tcp->args.ranks)
        len = tcp->args.answer(tcp->args.context, (int)channel->head.tag, channel->head.offset,
                               bytes);
    if (len > 0)
        ls_tcp_answer(channel->link, (int)channel->head.tag, bytes, len);
}

static void on_where(ls_tcp_channel *channel)
{
    ls_tcp *tcp = channel->link->tcp;
    const ls_tcp_wire *head = &channel->head;

    if (tcp->args.answered && head->tag < (uint64_t)tcp->args.ranks && head->length)
        tcp->args.answered(tcp->args.context, (int)head->tag, channel->to, (int)head->length);
}

/* --- reading --- */

/* A payload (or none) is complete. */
static void finish_frame(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    int kind = channel->head.kind;

    if (channel->in_payload && channel->post)
        channel->post->coming -= channel->head.length;
    channel->in_payload = false;
    if (channel->head.length && channel->crc != channel->head.crc) {
        ls_tcp_damage(channel, "a payload whose checksum is wrong");
        return;
    }
    if (ls_tcp_wire_counted(kind)) {
        channel->received = channel->head.sequence;
        channel->damages = 0;
    }
    if (kind == LS_TCP_WIRE_EAGER)
        finish_eager(channel);
    else if (kind == LS_TCP_WIRE_CHUNK_OF)
        finish_chunk(channel);
    else if (kind == LS_TCP_WIRE_READY)
        on_ready(channel);
    else if (kind == LS_TCP_WIRE_ANNOUNCE)
        on_announce(channel);
    else if (kind == LS_TCP_WIRE_ASK)
        on_ask(channel);
    else if (kind == LS_TCP_WIRE_WHERE)
        on_where(channel);
    else if (kind == LS_TCP_WIRE_FAILED)
        finish_failed(channel);
    else if (kind == LS_TCP_WIRE_BYE)
        ls_tcp_bye(channel);
    else if (kind == LS_TCP_WIRE_NUDGE && channel->head.offset > 0 &&
             channel->head.offset < (uint64_t)link->tcp->channels &&
             link->channels[channel->head.offset].state == LS_TCP_OPEN)
        ls_tcp_break(&link->channels[channel->head.offset], "the other side gave it up");
    ls_tcp_free_block(link->tcp, channel->block);
    channel->block = NULL;
    channel->post = NULL;
}

/* A sound header: take its confirmations and find the place of its payload. */
static void begin_frame(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    const ls_tcp_wire *head = &channel->head;

    if (channel->state == LS_TCP_RESUMING || head->kind == LS_TCP_WIRE_RESUME) {
        ls_tcp_resume(channel, head);
        return;
    }
    if (ls_tcp_wire_counted(head->kind) && head->sequence != channel->received + 1) {
        ls_tcp_damage(channel, "a frame out of sequence");
        return;
    }
    /* Counts wrap; frames of different channels overtake each other. */
    if (link->credit_used - head->consumed < link->credit_used - link->credit_back)
        link->credit_back = head->consumed;
    ls_tcp_confirm(channel, head->ack);
    if (channel->state != LS_TCP_OPEN)
        return;
    channel->to = NULL;
    channel->got = 0;
    channel->crc = 0;
    if (head->kind == LS_TCP_WIRE_EAGER)
        begin_eager(channel);
    else if (head->kind == LS_TCP_WIRE_CHUNK_OF)
        begin_chunk(channel);
    else if (head->length)
        begin_block(channel);
    if (channel->state != LS_TCP_OPEN || ls_tcp_failed(link->tcp))
        return;
    channel->in_payload = head->length > 0;
    if (channel->in_payload && channel->post)
        channel->post->coming += head->length;
    if (!channel->in_payload)
        finish_frame(channel);
}

/* len bytes of the payload have come to their place. */
static void payload_came(ls_tcp_channel *channel, size_t len)
{
    channel->crc = ls_hash_crc32c(channel->crc, channel->to + channel->got, len);
    channel->got += len;
    if (channel->got == channel->head.length)
        finish_frame(channel);
}

static bool alive(const ls_tcp_channel *channel, int fd)
{
    return channel->fd == fd && !ls_tcp_failed(channel->link->tcp) &&
           (channel->state == LS_TCP_OPEN || channel->state == LS_TCP_RESUMING);
}

/* Everything in the buffer that is complete. */
static void parse(ls_tcp_channel *channel)
{
    int fd = channel->fd;

    while (alive(channel, fd) && channel->in_at < channel->in_len) {
        size_t there = channel->in_len - channel->in_at;
        const uint8_t *at = channel->in + channel->in_at;
        if (channel->in_payload) {
            size_t left = channel->head.length - channel->got;
            size_t n = left < there ? left : there;
            memcpy(channel->to + channel->got, at, n);
            channel->in_at += n;
            payload_came(channel, n);
            continue;
        }
        if (there < LS_TCP_WIRE_BYTES)
            break;
        const char *wrong = ls_tcp_wire_get(at, &channel->head);
        channel->in_at += LS_TCP_WIRE_BYTES;
        if (!wrong && channel->head.generation != channel->link->tcp->args.generation)
            wrong = "a frame of another generation";
        if (!wrong && channel->head.channel != channel->index)
            wrong = "a frame of another channel";
        if (wrong)
            ls_tcp_damage(channel, wrong);
        else
            begin_frame(channel);
    }
    if (channel->fd == fd && channel->in_at > 0) { /* what is left is less than a header */
        memmove(channel->in, channel->in + channel->in_at, channel->in_len - channel->in_at);
        channel->in_len -= channel->in_at;
        channel->in_at = 0;
    }
}

static bool make_buffer(ls_tcp_channel *channel)
{
    if (channel->in)
        return true;
    channel->in_cap = channel->index == 0 ? LS_TCP_IN_BYTES : LS_TCP_IN_BULK;
    channel->in = ls_mem_alloc(channel->in_cap);
    if (!channel->in)
        ls_tcp_fail(channel->link->tcp);
    return channel->in != NULL;
}

/* One recvmsg(); *more_out when there may be more to read. */
static void read_once(ls_tcp_channel *channel, size_t *got_out, bool *more_out)
{
    struct iovec vectors[2];
    struct msghdr in = {.msg_iov = vectors};
    size_t payload = 0;

    *more_out = false;
    *got_out = 0;
    if (channel->in_payload) {
        payload = channel->head.length - channel->got;
        vectors[in.msg_iovlen++] = (struct iovec){channel->to + channel->got, payload};
    }
    vectors[in.msg_iovlen++] =
        (struct iovec){channel->in + channel->in_len, channel->in_cap - channel->in_len};
    size_t room = payload + channel->in_cap - channel->in_len;
    ssize_t n = recvmsg(channel->fd, &in, MSG_DONTWAIT);
    if (n <= 0) {
        if (n == 0)
            ls_tcp_break(channel, "it closed the connection");
        else if (errno != EAGAIN && errno != EINTR)
            ls_tcp_break(channel, strerror(errno));
        return;
    }
    channel->link->received_bytes += n;
    *got_out = (size_t)n;
    *more_out = (size_t)n == room;
    size_t direct = payload < (size_t)n ? payload : (size_t)n;
    channel->in_len += (size_t)n - direct;
    if (direct)
        payload_came(channel, direct);
}

void ls_tcp_read(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    size_t all = 0, got = 1;
    int fd = channel->fd;
    bool more = true;

    if (!make_buffer(channel))
        return;
    while (more && all < READ_MOST && alive(channel, fd)) {
        read_once(channel, &got, &more);
        all += got;
        if (alive(channel, fd))
            parse(channel);
        /* A chunk usually comes in pieces: the next may be there already. */
        more = more || (got > 0 && channel->in_payload);
    }
    if (all > 0)
        link->heard_ns = ls_time_now_ns();
    if (link->bulk_first && !ls_tcp_failed(link->tcp))
        ls_tcp_pump_bulk(link);
}
