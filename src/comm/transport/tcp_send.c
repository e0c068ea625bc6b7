/* tcp_send.c -- what goes out: small messages at once, large ones when the other side is ready.
 *
 *   small, and credit left                     large, or no credit
 *   sender                receiver             sender                 receiver
 *   send: EAGER  ------>  (into the receive,   send                   receive: posted
 *     done when the        or into a block           <-- READY ---------
 *     kernel has it        until it comes)     CHUNK 0 ---- channel 1 ---->  into the receive
 *            <- consumed -                     CHUNK 1 ---- channel 2 ---->  into the receive
 *                                              done  <--- ack ---------
 *
 * A receiver says READY when a large receive is posted, without being asked: collectives post
 * receives early, so READY has usually come before the send, and no round trip is paid. A send
 * that waits longer than ANNOUNCE_NS (or has no credit) says ANNOUNCE, so that a receiver which
 * expects another size finds out, and one of a small message knows that it must say READY.
 *
 * No message ever waits for room at the other side: small ones have theirs by credit (LS_TCP_POOL
 * bytes for each peer), chunks have the caller's buffer, and control frames are few and small. So a
 * socket can always be read to its end, and no tag can block another.
 *
 * Worked example of credit: a message of 100 bytes uses 64 (header) + 128 (rounded up) = 192 of the
 * 1 MiB that each peer has. So 5461 of them may be under way to a rank that takes none. The next
 * one goes the way of a large message: ANNOUNCE at once, its bytes after READY. The receiver reports
 * what it has taken with its next frame in the other direction, at the latest after a quarter of
 * the pool (1366 such messages) by a heartbeat.
 *
 * Kept frames of a channel, oldest first (chunks point into the caller's memory, nothing is
 * copied):
 *
 *   first                unsent            last
 *    [5]  [6]  [7]  [8]  [9.....]  [10]  [11]
 *    written, not yet     |sent_of|  to be written
 *    confirmed
 *
 * A break sets unsent back to first; the other side's RESUME then confirms what did arrive. Header
 * and checksum of a frame are made when it is about to be written, while its bytes go through the
 * cache anyway. Channels take the next chunk of the oldest message whenever they can write, so a
 * slow socket takes fewer.
 *
 * Whether the kernel copies chunks or sends them out of that memory: tcp_zerocopy.c. */
#include "comm/transport/tcp_impl.h"

#include <errno.h>
#include <sys/epoll.h>
#include "base/hash.h"
#include "base/time.h"

enum { VECTORS = 32, BURST = 1 << 20, HOLD_BYTES = 8 << 10 };
static const int64_t ANNOUNCE_NS = 20 * LS_NS_PER_MS;

/* --- frames --- */

/* Number a frame and put it behind the others of its channel. */
static void queue_frame(ls_tcp_channel *channel, ls_tcp_frame *frame)
{
    frame->wire.channel = (uint8_t)channel->index;
    frame->wire.generation = channel->link->tcp->args.generation;
    frame->wire.sequence = ++channel->counted;
    if (channel->last)
        channel->last->next = frame;
    else
        channel->first = frame;
    channel->last = frame;
    if (!channel->unsent)
        channel->unsent = frame;
    channel->kept++;
}

void ls_tcp_say(ls_tcp_link *link, ls_tcp_wire_kind kind, uint64_t tag, int64_t bytes)
{
    ls_tcp_frame *frame = ls_tcp_new_frame(link->tcp);

    if (!frame) {
        ls_tcp_fail(link->tcp);
        return;
    }
    frame->wire.kind = (uint8_t)kind;
    frame->wire.tag = tag;
    frame->wire.offset = (uint64_t)bytes;
    queue_frame(&link->channels[0], frame);
    ls_tcp_pump(&link->channels[0]);
}

void ls_tcp_answer(ls_tcp_link *link, int about, const uint8_t *bytes, int len)
{
    ls_tcp *tcp = link->tcp;
    ls_tcp_frame *frame = ls_tcp_new_frame(tcp);
    ls_tcp_block *block = ls_tcp_new_block(tcp, (size_t)len);

    if (!frame || !block) { /* the peer does without the answer */
        ls_tcp_free_block(tcp, block);
        if (frame)
            ls_tcp_free_frame(tcp, frame);
        return;
    }
    memcpy(block->bytes, bytes, (size_t)len);
    frame->wire.kind = LS_TCP_WIRE_WHERE;
    frame->wire.tag = (uint64_t)about;
    frame->wire.length = (uint32_t)len;
    frame->block = block;
    frame->payload = block->bytes;
    queue_frame(&link->channels[0], frame);
    ls_tcp_pump(&link->channels[0]);
}

static void fill_note(ls_tcp_channel *channel, ls_tcp_wire_kind kind, uint64_t tag, uint64_t offset)
{
    ls_tcp_link *link = channel->link;
    ls_tcp_wire wire = {.kind = (uint8_t)kind,
                        .channel = (uint8_t)channel->index,
                        .generation = link->tcp->args.generation,
                        .tag = tag,
                        .offset = offset,
                        .ack = channel->received,
                        .consumed = link->consumed};

    ls_tcp_wire_put(&wire, channel->note);
    channel->note_left = LS_TCP_WIRE_BYTES;
    channel->note_wanted = false;
    channel->told = channel->received;
    link->consumed_told = link->consumed;
}

void ls_tcp_note(ls_tcp_channel *channel, ls_tcp_wire_kind kind, uint64_t tag, uint64_t offset)
{
    if (kind == LS_TCP_WIRE_HEARTBEAT) {
        channel->note_wanted = true;
    } else if (channel->note_left == 0 && channel->sent_of == 0) {
        fill_note(channel, kind, tag, offset);
    } /* else: a nudge that finds no room is sent again by the next tick */
    ls_tcp_pump(channel);
}

/* The next chunk of the oldest message whose receive is ready, as a frame of this channel. */
static ls_tcp_frame *cut_chunk(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    ls_tcp *tcp = link->tcp;
    ls_tcp_posted *post = link->bulk_first;

    if (channel->index == 0 || !post || channel->kept >= LS_TCP_KEEP)
        return NULL;
    ls_tcp_frame *frame = ls_tcp_new_frame(tcp);
    if (!frame) {
        ls_tcp_fail(tcp);
        return NULL;
    }
    frame->wire.kind = LS_TCP_WIRE_CHUNK_OF;
    frame->wire.flags = post->announced ? LS_TCP_WIRE_ANNOUNCED : 0;
    frame->wire.tag = post->tag;
    frame->wire.offset = (uint64_t)post->cut;
    frame->wire.length = (uint32_t)ls_min_i64(tcp->args.chunk_bytes, post->bytes - post->cut);
    if (frame->wire.length)
        frame->payload = (const uint8_t *)post->message->data + post->cut;
    frame->post = post;
    post->cut += frame->wire.length;
    if (post->cut == post->bytes) {
        link->bulk_first = post->next;
        if (!link->bulk_first)
            link->bulk_last = NULL;
    }
    queue_frame(channel, frame);
    return frame;
}

static void finish_header(const ls_tcp_channel *channel, ls_tcp_frame *frame)
{
    if (!frame->summed && frame->wire.length)
        frame->wire.crc = ls_hash_crc32c(0, frame->payload, frame->wire.length);
    frame->summed = true;
    frame->wire.ack = channel->received;
    frame->wire.consumed = channel->link->consumed;
    ls_tcp_wire_put(&frame->wire, frame->header);
}

/* --- writing --- */

/* List what the next write sends: a control note first, then frames from the first unsent byte on.
 * Chunks are cut here, so that only a channel that can write takes one. */
static int gather(ls_tcp_channel *channel, struct iovec *vectors)
{
    ls_tcp_frame *frame = channel->unsent;
    size_t of = channel->sent_of, bytes = 0;
    int n = 0;

    if (channel->note_wanted && channel->note_left == 0 && of == 0)
        fill_note(channel, LS_TCP_WIRE_HEARTBEAT, 0, 0);
    if (channel->note_left)
        vectors[n++] = (struct iovec){channel->note + LS_TCP_WIRE_BYTES - channel->note_left,
                                      channel->note_left};
    if (channel->state != LS_TCP_OPEN)
        return n;
    while (n + 2 <= VECTORS && bytes < BURST) {
        if (!frame)
            frame = cut_chunk(channel);
        if (!frame)
            break;
        if (of == 0)
            finish_header(channel, frame);
        if (of < LS_TCP_WIRE_BYTES)
            vectors[n++] = (struct iovec){frame->header + of, LS_TCP_WIRE_BYTES - of};
        size_t from = of > LS_TCP_WIRE_BYTES ? of - LS_TCP_WIRE_BYTES : 0;
        if (frame->wire.length > from)
            vectors[n++] = (struct iovec){(uint8_t *)(uintptr_t)frame->payload + from,
                                          frame->wire.length - from};
        bytes += LS_TCP_WIRE_BYTES + frame->wire.length - of;
        of = 0;
        frame = frame->next;
    }
    return n;
}

/* The kernel took n bytes of what gather() listed. */
static void advance(ls_tcp_channel *channel, size_t n)
{
    ls_tcp_link *link = channel->link;
    size_t note = channel->note_left < n ? channel->note_left : n;

    link->sent_bytes += (int64_t)n;
    channel->note_left -= note;
    n -= note;
    while (n > 0) {
        ls_tcp_frame *frame = channel->unsent;
        size_t left = LS_TCP_WIRE_BYTES + frame->wire.length - channel->sent_of;
        if (channel->sent_of == 0) { /* with the header went the confirmations in it */
            channel->told = frame->wire.ack;
            link->consumed_told = frame->wire.consumed;
        }
        if (n < left) {
            channel->sent_of += n;
            return;
        }
        n -= left;
        channel->sent_of = 0;
        channel->written = frame->wire.sequence;
        channel->unsent = frame->next;
        if (frame->message) {
            frame->message->done = true;
            frame->message = NULL;
        }
        link->tcp->moved = true;
    }
}

void ls_tcp_pump(ls_tcp_channel *channel)
{
    struct iovec vectors[VECTORS];

    if (channel->state != LS_TCP_OPEN && channel->state != LS_TCP_RESUMING)
        return;
    for (;;) {
        struct msghdr out = {.msg_iov = vectors};
        out.msg_iovlen = (size_t)gather(channel, vectors);
        if (out.msg_iovlen == 0) {
            ls_tcp_watch(channel, EPOLLIN);
            return;
        }
        int lend = ls_tcp_zerocopy_flag(channel, vectors, out.msg_iovlen);
        ssize_t n = sendmsg(channel->fd, &out, MSG_NOSIGNAL | MSG_DONTWAIT | lend);
        if (n < 0 && errno == EINTR)
            continue;
        /* No more memory may be locked, or this memory cannot be (a device's). */
        if (n < 0 && (errno == ENOBUFS || errno == EFAULT) && lend) {
            ls_tcp_zerocopy_refused(channel);
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) {
            ls_tcp_watch(channel, EPOLLIN | EPOLLOUT);
            return;
        }
        if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
            return; /* its last frames may be unread: the reader finds the end after them */
        if (n < 0) {
            ls_tcp_break(channel, strerror(errno));
            return;
        }
        channel->link->tcp->stats.writes++;
        if (lend)
            ls_tcp_zerocopy_lent(channel);
        channel->link->said_ns = ls_time_now_ns();
        advance(channel, (size_t)n);
    }
}

void ls_tcp_pump_bulk(ls_tcp_link *link)
{
    for (int c = 1; c < link->tcp->channels && link->bulk_first; c++)
        if (!(link->channels[c].watched & EPOLLOUT)) /* else it is full */
            ls_tcp_pump(&link->channels[c]);
}

void ls_tcp_confirm(ls_tcp_channel *channel, uint64_t ack)
{
    ls_tcp_link *link = channel->link;

    if (ack > channel->written || ack < channel->confirmed) {
        ls_tcp_damage(channel, "a confirmation of what was never sent");
        return;
    }
    while (channel->first && channel->first->wire.sequence <= ack) {
        ls_tcp_frame *frame = channel->first;
        ls_tcp_posted *post = frame->post;
        channel->first = frame->next;
        if (!channel->first)
            channel->last = NULL;
        if (channel->unsent == frame) /* written once, then set back by a break */
            channel->unsent = frame->next;
        channel->kept--;
        if (frame->message) /* likewise */
            frame->message->done = true;
        if (post) {
            post->left -= frame->wire.length;
            if (post->left == 0) {
                post->message->done = true;
                ls_tcp_remove(link, post);
                ls_tcp_free_post(link->tcp, post);
            }
        }
        link->tcp->moved = true;
        ls_tcp_free_frame(link->tcp, frame);
    }
    channel->confirmed = ack;
}

/* --- messages --- */

static void leave_waiting(ls_tcp_link *link, ls_tcp_posted *post)
{
    *(post->prev ? &post->prev->next : &link->waiting_first) = post->next;
    *(post->next ? &post->next->prev : &link->waiting_last) = post->prev;
    post->prev = post->next = NULL;
}

/* The other side is ready for this send. */
void ls_tcp_start_bulk(ls_tcp_link *link, ls_tcp_posted *post)
{
    if (post->since_ns)
        leave_waiting(link, post);
    post->ready = true;
    if (link->bulk_last)
        link->bulk_last->next = post;
    else
        link->bulk_first = post;
    link->bulk_last = post;
    ls_tcp_want(link, true);
    ls_tcp_pump_bulk(link);
}

static void announce(ls_tcp_link *link, ls_tcp_posted *post)
{
    post->announced = true;
    ls_tcp_say(link, LS_TCP_WIRE_ANNOUNCE, post->tag, post->bytes);
}

void ls_tcp_announce_old(ls_tcp_link *link, int64_t now_ns)
{
    for (ls_tcp_posted *p = link->waiting_first; p && now_ns - p->since_ns > ANNOUNCE_NS;
         p = p->next)
        if (!p->announced)
            announce(link, p);
}

/* Small messages leave with the next poll, so that messages sent together share a write: a write is
 * most of what they cost the kernel. */
static void hold(ls_tcp_link *link, const ls_message *message)
{
    ls_tcp *tcp = link->tcp;

    if (message->bytes > HOLD_BYTES) {
        ls_tcp_pump(&link->channels[0]);
        return;
    }
    if (!link->held)
        tcp->held[tcp->held_count++] = link->peer;
    link->held = true;
    link->urgent |= !message->rides;
}

void ls_tcp_pump_held(ls_tcp *tcp, bool all)
{
    int count = tcp->held_count;

    tcp->held_count = 0;
    for (int i = 0; i < count; i++) {
        ls_tcp_link *link = &tcp->links[tcp->held[i]];
        if (!all && !link->urgent) {
            tcp->held[tcp->held_count++] = link->peer;
            continue;
        }
        link->held = link->urgent = false;
        ls_tcp_pump(&link->channels[0]);
    }
}

/* Copy the message into a block behind its header; it is done when the kernel has it. */
static ls_status send_small(ls_tcp_link *link, ls_message *message)
{
    ls_tcp *tcp = link->tcp;
    ls_tcp_frame *frame = ls_tcp_new_frame(tcp);

    if (frame && message->bytes > 0) {
        frame->block = ls_tcp_new_block(tcp, (size_t)message->bytes);
        if (!frame->block) {
            ls_tcp_free_frame(tcp, frame);
            frame = NULL;
        }
    }
    if (!frame)
        return LS_ENOMEM;
    frame->wire.kind = LS_TCP_WIRE_EAGER;
    frame->wire.tag = message->tag;
    frame->wire.length = (uint32_t)message->bytes;
    if (message->bytes > 0) {
        memcpy(frame->block->bytes, message->data, (size_t)message->bytes);
        frame->payload = frame->block->bytes;
    }
    frame->message = message;
    link->credit_used += ls_tcp_credit(message->bytes);
    queue_frame(&link->channels[0], frame);
    hold(link, message);
    return LS_OK;
}

ls_status ls_tcp_check_send(const ls_tcp_link *link, uint64_t tag, int64_t sent, int64_t expected)
{
    return sent == expected
               ? LS_OK
               : ls_fail(LS_EDATA,
                         "rank %d sends %lld bytes with tag %llx, but %s expects %lld of them",
                         link->tcp->args.rank, (long long)sent, (unsigned long long)tag, link->name,
                         (long long)expected);
}

/* Start at once where READY has come; otherwise wait for it in the list of the link. */
static ls_status send_large(ls_tcp_link *link, ls_message *message)
{
    ls_tcp_posted *cleared = ls_tcp_find(link, LS_TCP_CLEARED, message->tag);
    ls_status st = LS_OK;

    if (cleared)
        st = ls_tcp_check_send(link, message->tag, message->bytes, cleared->bytes);
    if (st != LS_OK)
        return st;
    ls_tcp_posted *post = ls_tcp_insert(link, LS_TCP_SEND, message->tag, message->bytes);
    if (!post)
        return ls_err_last()->code;
    post->message = message;
    if (cleared) {
        ls_tcp_remove(link, cleared);
        ls_tcp_free_post(link->tcp, cleared);
        ls_tcp_start_bulk(link, post);
        return LS_OK;
    }
    post->since_ns = ls_time_now_ns();
    post->prev = link->waiting_last;
    *(post->prev ? &post->prev->next : &link->waiting_first) = post;
    link->waiting_last = post;
    ls_tcp_want(link, true);
    if (message->bytes <= link->tcp->args.eager_bytes)
        announce(link, post); /* the receiver of a small message does not say READY unasked */
    return LS_OK;
}

ls_status ls_tcp_send(ls_tcp_link *link, ls_message *message)
{
    uint32_t used = link->credit_used - link->credit_back;

    return message->bytes <= link->tcp->args.eager_bytes &&
                   used + ls_tcp_credit(message->bytes) <= LS_TCP_POOL
               ? send_small(link, message)
               : send_large(link, message);
}

void ls_tcp_last_words(ls_tcp_channel *channel, ls_tcp_wire_kind kind, int said_first,
                       const char *text)
{
    ls_tcp_link *link = channel->link;
    uint8_t bytes[LS_TCP_WIRE_BYTES + LS_TCP_WIRE_FAIL];
    size_t len = strlen(text) < LS_TCP_WIRE_FAIL ? strlen(text) : LS_TCP_WIRE_FAIL;

    if (channel->state != LS_TCP_OPEN)
        return;
    ls_tcp_pump(channel);
    if (channel->state != LS_TCP_OPEN || channel->sent_of || channel->note_left || channel->unsent)
        return; /* the socket is full: the end of the connection must say it */
    ls_tcp_wire wire = {.kind = (uint8_t)kind,
                        .channel = (uint8_t)channel->index,
                        .generation = link->tcp->args.generation,
                        .offset = (uint64_t)said_first,
                        .length = (uint32_t)len,
                        .crc = ls_hash_crc32c(0, text, len),
                        .ack = channel->received,
                        .consumed = link->consumed};
    ls_tcp_wire_put(&wire, bytes);
    memcpy(bytes + LS_TCP_WIRE_BYTES, text, len);
    (void)!send(channel->fd, bytes, LS_TCP_WIRE_BYTES + len, MSG_NOSIGNAL | MSG_DONTWAIT);
}
