/* ucx_chunk.c -- messages of a transport as chunks, each one an active message of UCX.
 *
 * A message is cut into chunks of 256 KiB. Each travels behind a frame of 64 bytes that names its
 * message, so sends and receives meet here, by rank and a tag of 64 bits, and not in UCX, whose own
 * tags have no room for rank, generation and tag. Short chunks travel with their frame. For a long
 * one only the frame does, and the receiver fetches the bytes when it knows where to put them
 * (UCX's rendezvous), so a late receiver holds no memory for them.
 *
 *     sender                                   receiver
 *     message 0.6 MiB                          posted with (rank, tag)
 *     |--- chunk 0 ---|--- chunk 1 ---|- 2 -|
 *            | frame 0      | frame 1           no post yet: unclaimed
 *            '------------------------------->  post: fetch into data + offset
 *                                                     or, adding: fetch into a stage, combine
 *            <----- fetch (UCX) -------------
 *            ------ bytes ------------------->  CRC32C, settled += len, next fetch
 *     window: 4 chunks of a message in flight   8 stages for all messages
 *
 * Every message has its own window: a message whose receive is not posted yet holds up no other.
 * Stages are taken only by chunks whose receive is posted, so each becomes free by itself. Nothing
 * is fetched inside UCX's callbacks; they only queue, and the pump behind each progress call starts
 * fetches. */
#include "comm/transport/ucx_impl.h"

#if LS_UCX_HEADERS
#include <string.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/time.h"

static const uint32_t magic = UINT32_C(0x58434c31); /* "1LCX" */

/* --- records -------------------------------------------------------------------------------- */

/* A blank record of a message, from the free list or new. */
static ls_ucx_post *take_post(ls_ucx *u, ls_message *message)
{
    ls_ucx_post *p = u->free_posts;

    if (p) {
        u->free_posts = p->next;
    } else {
        p = ls_mem_alloc(sizeof *p);
        if (!p)
            return NULL;
        p->all = u->all_posts;
        u->all_posts = p;
    }
    *p = (ls_ucx_post){.message = message, .all = p->all};
    u->links[message->peer].posts++;
    return p;
}

static ls_ucx_transfer *take_transfer(ls_ucx *u, int peer)
{
    ls_ucx_transfer *f = u->free_transfers;

    if (f) {
        u->free_transfers = f->next;
    } else {
        f = ls_mem_alloc(sizeof *f);
        if (!f)
            return NULL;
        f->all = u->all_transfers;
        u->all_transfers = f;
    }
    *f = (ls_ucx_transfer){.transport = u, .peer = peer, .all = f->all};
    return f;
}

static void give_transfer(ls_ucx *u, ls_ucx_transfer *f)
{
    if (f->stage)
        u->stages[u->stage_count++] = f->stage;
    f->stage = NULL;
    f->data = NULL;
    f->next = u->free_transfers;
    u->free_transfers = f;
}

static void finish(ls_ucx *u, ls_ucx_post *p)
{
    u->links[p->message->peer].posts--;
    p->message->next_ = u->finished;
    u->finished = p->message;
    p->next = u->free_posts;
    u->free_posts = p;
}

static void enqueue(ls_ucx_queue *q, ls_ucx_transfer *f)
{
    f->next = NULL;
    if (!q->first)
        q->last = &q->first;
    *q->last = f;
    q->last = &f->next;
}

static ls_ucx_transfer *dequeue(ls_ucx_queue *q)
{
    ls_ucx_transfer *f = q->first;

    if (f)
        q->first = f->next;
    return f;
}

static unsigned bucket(int peer, uint64_t tag)
{
    uint64_t x = (tag ^ ((uint64_t)peer << 48)) * UINT64_C(0x9e3779b97f4a7c15);

    return (unsigned)(x >> 54); /* the upper 10 bits: LS_UCX_BUCKETS */
}
_Static_assert(LS_UCX_BUCKETS == 1 << 10, "bucket() takes ten bits");

static int64_t chunks_of(int64_t bytes)
{
    return bytes ? (bytes - 1) / LS_UCX_CHUNK_BYTES + 1 : 1;
}

static void refuse(ls_ucx *u, int peer, const char *what)
{
    ls_fail(LS_EDATA, "rank %d sent %s", peer, what);
    ls_ucx_break(u);
}

/* --- sending -------------------------------------------------------------------------------- */

static void make_ready(ls_ucx *u, ls_ucx_post *p)
{
    if (p->queued)
        return;
    p->queued = true;
    p->next = u->ready;
    u->ready = p;
}

/* UCX is done with a transfer: of a message, start its next chunk or finish it; of a heartbeat,
 * allow the next one. */
static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    ls_ucx_transfer *f = user_data;
    ls_ucx *u = f->transport;
    ls_ucx_post *p = f->post;
    int peer = f->peer;

    u->api.ucp_request_free(request);
    if (status != UCS_OK) {
        ls_ucx_break_peer(u, peer, u->api.ucs_status_string(status));
    } else if (p) {
        if (f->frame.len > LS_UCX_EAGER_BYTES)
            u->links[peer].heard_ns = ls_time_now_ns(); /* it has fetched this: it is alive */
        p->transfers--;
        if (p->chunks)
            make_ready(u, p);
        else if (!p->transfers)
            finish(u, p);
    } else {
        u->links[peer].beating = false;
    }
    give_transfer(u, f);
}

/* Give a transfer to UCX. True when it left at once. */
static bool launch(ls_ucx *u, ls_ucx_transfer *f, const void *data)
{
    int peer = f->peer;
    bool fetched = f->frame.len > LS_UCX_EAGER_BYTES;
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = fetched ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER,
        .cb = {.send = on_sent},
        .user_data = f,
    };
    ls_ucx_link *link = &u->links[peer];
    ucs_status_ptr_t r = u->api.ucp_am_send_nbx(link->ep, LS_UCX_AM_ID, &f->frame, sizeof f->frame,
                                                data, (size_t)f->frame.len, &param);

    link->spoke_ns = ls_time_now_ns();
    atomic_fetch_add_explicit(&link->sent_bytes, (int64_t)sizeof f->frame + f->frame.len,
                              memory_order_relaxed);
    if (UCS_PTR_IS_ERR(r))
        ls_ucx_break_peer(u, peer, u->api.ucs_status_string(UCS_PTR_STATUS(r)));
    return r == NULL;
}

static void fill_frame(const ls_ucx *u, ls_ucx_frame *frame, ls_ucx_kind kind)
{
    *frame = (ls_ucx_frame){
        .magic = magic,
        .kind = kind,
        .from = (uint32_t)u->args.rank,
        .key = u->args.key,
        .generation = u->args.generation,
    };
}

/* The next chunk of a message: its frame with a checksum, and its bytes by UCX. */
static void send_chunk(ls_ucx *u, ls_ucx_post *p)
{
    const ls_message *m = p->message;
    const char *data = (const char *)m->data + p->begun;
    ls_ucx_transfer *f = take_transfer(u, m->peer);

    if (!f) {
        ls_ucx_break(u);
        return;
    }
    fill_frame(u, &f->frame, LS_UCX_CHUNK);
    f->post = p;
    f->frame.tag = m->tag;
    f->frame.bytes = m->bytes;
    f->frame.offset = p->begun;
    f->frame.len = ls_min_i64(m->bytes - p->begun, LS_UCX_CHUNK_BYTES);
    f->frame.crc = ls_hash_crc32c(0, data, (size_t)f->frame.len);
    p->begun += f->frame.len;
    p->chunks--;
    if (launch(u, f, data))
        give_transfer(u, f);
    else
        p->transfers++;
}

static void send_chunks(ls_ucx *u, ls_ucx_post *p)
{
    if (ls_ucx_reach(u, p->message->peer) != LS_OK)
        return;
    while (!u->failed && p->chunks && p->transfers < LS_UCX_WINDOW)
        send_chunk(u, p);
    if (!u->failed && !p->chunks && !p->transfers)
        finish(u, p);
}

ls_status ls_ucx_post_send(ls_ucx *u, ls_message *message)
{
    ls_ucx_post *p = take_post(u, message);

    if (!p)
        return ls_err_last()->code;
    p->chunks = chunks_of(message->bytes);
    if (u->links[message->peer].gone)
        ls_ucx_break_peer(u, message->peer, "it closed");
    else
        send_chunks(u, p);
    return LS_OK;
}

void ls_ucx_say(ls_ucx *u, int peer, ls_ucx_kind kind)
{
    ls_ucx_transfer *f = take_transfer(u, peer);

    if (!f)
        return; /* the next one will do */
    fill_frame(u, &f->frame, kind);
    u->links[peer].beating = true;
    if (launch(u, f, NULL)) {
        u->links[peer].beating = false;
        give_transfer(u, f);
    }
}

/* --- receiving ------------------------------------------------------------------------------ */

static ls_ucx_post *find_post(ls_ucx *u, int peer, uint64_t tag)
{
    ls_ucx_post *p = u->posted[bucket(peer, tag)];

    while (p && (p->message->peer != peer || p->message->tag != tag))
        p = p->next;
    return p;
}

static void unlink_post(ls_ucx *u, ls_ucx_post *p)
{
    ls_ucx_post **at = &u->posted[bucket(p->message->peer, p->message->tag)];

    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
}

/* The chunk is in place. True when the message is whole. A message of 0.6 MiB has chunks 0, 1 and
 * 2, at places 1, 2 and 3, which make 6. When chunk 0 came twice instead of chunk 1, they make 5: the
 * bytes that were counted are not those of the message. */
static bool settle(ls_ucx *u, ls_ucx_post *p, const ls_ucx_frame *frame)
{
    int64_t chunks = chunks_of(p->message->bytes);

    p->settled += frame->len;
    p->places += frame->offset / LS_UCX_CHUNK_BYTES + 1;
    if (p->settled < p->message->bytes)
        return false;
    if (p->settled > p->message->bytes || p->transfers || p->places != chunks * (chunks + 1) / 2) {
        refuse(u, p->message->peer, "a chunk twice");
        return false;
    }
    unlink_post(u, p);
    finish(u, p);
    return true;
}

static bool crc_fits(ls_ucx *u, const ls_ucx_frame *frame, const void *bytes)
{
    if (ls_hash_crc32c(0, bytes, (size_t)frame->len) == frame->crc)
        return true;
    refuse(u, (int)frame->from, "a chunk that was damaged on its way: its checksum does not fit");
    return false;
}

/* Bytes that lie in memory of UCX or in a stage go where they belong. */
static bool place(ls_ucx *u, ls_ucx_post *p, const ls_ucx_frame *frame, const void *bytes)
{
    if (!crc_fits(u, frame, bytes))
        return false;
    ls_message_put(p->message, frame->offset, bytes, frame->len);
    return settle(u, p, frame);
}

static bool size_fits(ls_ucx *u, const ls_ucx_post *p, const ls_ucx_frame *frame)
{
    if (p->message->bytes == frame->bytes)
        return true;
    ls_fail(
        LS_EDATA,
        "rank %u sent %lld bytes where rank %d expects %lld (tag %016llx): the ranks do not ask "
        "for the same",
        frame->from, (long long)frame->bytes, u->args.rank, (long long)p->message->bytes,
        (unsigned long long)frame->tag);
    ls_ucx_break(u);
    return false;
}

static void fetched(ls_ucx *u, ls_ucx_transfer *f)
{
    ls_ucx_post *p = f->post;
    ls_ucx_link *link = &u->links[f->peer];

    link->heard_ns = ls_time_now_ns();
    p->transfers--;
    if (f->stage)
        place(u, p, &f->frame, f->stage);
    else if (crc_fits(u, &f->frame, (char *)p->message->data + f->frame.offset))
        settle(u, p, &f->frame);
    give_transfer(u, f);
}

static void on_fetched(void *request, ucs_status_t status, size_t len, void *user_data)
{
    ls_ucx_transfer *f = user_data;
    ls_ucx *u = f->transport;

    u->api.ucp_request_free(request);
    if (status != UCS_OK)
        ls_ucx_break_peer(u, f->peer, u->api.ucs_status_string(status));
    else if (len != (size_t)f->frame.len)
        refuse(u, f->peer, "a chunk that is shorter than it said");
    else if (!u->failed)
        fetched(u, f);
}

static void start_fetch(ls_ucx *u, ls_ucx_transfer *f)
{
    char *to = f->stage ? f->stage : (char *)f->post->message->data + f->frame.offset;
    void *from = f->data;
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb = {.recv_am = on_fetched},
        .user_data = f,
    };

    f->data = NULL; /* UCX takes it, even when it fails */
    ucs_status_ptr_t r =
        u->api.ucp_am_recv_data_nbx(u->worker, from, to, (size_t)f->frame.len, &param);
    if (UCS_PTR_IS_ERR(r))
        ls_ucx_break_peer(u, f->peer, u->api.ucs_status_string(UCS_PTR_STATUS(r)));
}

static bool take_stage(ls_ucx *u, ls_ucx_transfer *f)
{
    if (!u->stage_memory) {
        u->stage_memory = ls_mem_alloc((size_t)LS_UCX_STAGES * LS_UCX_CHUNK_BYTES);
        if (!u->stage_memory) {
            ls_ucx_break(u);
            return false;
        }
        for (int i = 0; i < LS_UCX_STAGES; i++)
            u->stages[u->stage_count++] = u->stage_memory + (size_t)i * LS_UCX_CHUNK_BYTES;
    }
    if (!u->stage_count)
        return false;
    f->stage = u->stages[--u->stage_count];
    return true;
}

void ls_ucx_pump(ls_ucx *u)
{
    while (!u->failed && u->ready) {
        ls_ucx_post *p = u->ready;

        u->ready = p->next;
        p->queued = false;
        send_chunks(u, p);
    }
    while (!u->failed && u->fetches.first)
        start_fetch(u, dequeue(&u->fetches));
    while (!u->failed && u->staged.first && take_stage(u, u->staged.first))
        start_fetch(u, dequeue(&u->staged));
}

/* A chunk that has to be fetched, for a post that is there. */
static void plan_fetch(ls_ucx *u, ls_ucx_post *p, ls_ucx_transfer *f)
{
    f->post = p;
    p->transfers++;
    enqueue(p->message->add ? &u->staged : &u->fetches, f);
}

/* --- what arrives --------------------------------------------------------------------------- */

/* Stray frames are no error: an old address of another job may have become ours. */
static bool is_ours(const ls_ucx *u, const ls_ucx_frame *frame)
{
    return frame->magic == magic && frame->key == u->args.key &&
           frame->generation == u->args.generation && frame->from < (uint32_t)u->args.ranks &&
           frame->from != (uint32_t)u->args.rank;
}

static bool is_sound(const ls_ucx_frame *frame, size_t len)
{
    return frame->bytes >= 0 && frame->offset >= 0 && frame->offset <= frame->bytes &&
           frame->offset % LS_UCX_CHUNK_BYTES == 0 && (size_t)frame->len == len &&
           frame->len == ls_min_i64(frame->bytes - frame->offset, LS_UCX_CHUNK_BYTES);
}

/* Keeps a chunk beyond the callback: where to fetch it, UCX's memory, or a copy. */
static ls_ucx_transfer *keep(ls_ucx *u, const ls_ucx_frame *frame, void *data, uint64_t attr)
{
    ls_ucx_transfer *f = take_transfer(u, (int)frame->from);

    if (!f) {
        ls_ucx_break(u);
        return NULL;
    }
    f->frame = *frame;
    f->fetch = (attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if (frame->len == 0)
        return f;
    f->own = !(attr & (UCP_AM_RECV_ATTR_FLAG_RNDV | UCP_AM_RECV_ATTR_FLAG_DATA));
    f->data = f->own ? ls_mem_alloc((size_t)frame->len) : data;
    if (!f->data) {
        ls_ucx_break(u);
        give_transfer(u, f);
        return NULL;
    }
    if (f->own)
        memcpy(f->data, data, (size_t)frame->len);
    return f;
}

/* A chunk has come. With its receive posted it is placed, or fetched when it is long; otherwise it
 * is kept as unclaimed, up to a limit for each peer. */
static ucs_status_t on_data(ls_ucx *u, const ls_ucx_frame *frame, void *data, uint64_t attr)
{
    ls_ucx_post *p = find_post(u, (int)frame->from, frame->tag);
    ls_ucx_link *link = &u->links[frame->from];

    if (p && !size_fits(u, p, frame))
        return UCS_OK;
    if (p && !(attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        place(u, p, frame, data);
        return UCS_OK;
    }
    ls_ucx_transfer *f = keep(u, frame, data, attr);
    if (!f)
        return UCS_OK;
    if (p) {
        plan_fetch(u, p, f);
    } else {
        ls_ucx_transfer **head = &u->unclaimed[bucket((int)frame->from, frame->tag)];

        f->next = *head;
        *head = f;
        if (++link->unclaimed > LS_UCX_UNCLAIMED)
            refuse(u, (int)frame->from, "more than 65536 chunks that nobody asked for");
    }
    return f->data && !f->own ? UCS_INPROGRESS : UCS_OK;
}

static void on_bye(ls_ucx *u, int peer)
{
    ls_ucx_link *link = &u->links[peer];

    link->gone = true;
    if (link->posts)
        ls_ucx_break_peer(u, peer, "it closed while messages were in flight");
}

/* UCX calls this for every active message. Frames that are not ours are dropped, the sender is
 * noted as alive, and impossible lengths break the link. */
ucs_status_t ls_ucx_on_chunk(void *transport, const void *header, size_t header_len, void *data,
                             size_t len, const ucp_am_recv_param_t *param)
{
    ls_ucx *u = transport;
    ls_ucx_frame frame;

    if (header_len != sizeof frame || u->failed)
        return UCS_OK;
    memcpy(&frame, header, sizeof frame);
    if (!is_ours(u, &frame))
        return UCS_OK;
    ls_ucx_link *link = &u->links[frame.from];
    link->heard = link->wanted = true;
    link->heard_ns = ls_time_now_ns();
    atomic_fetch_add_explicit(&link->received_bytes, (int64_t)(sizeof frame + len),
                              memory_order_relaxed);
    if (frame.kind == LS_UCX_BYE)
        on_bye(u, (int)frame.from);
    if (frame.kind != LS_UCX_CHUNK)
        return UCS_OK;
    if (!is_sound(&frame, len)) {
        refuse(u, (int)frame.from, "a frame whose lengths cannot be");
        return UCS_OK;
    }
    return on_data(u, &frame, data, param->recv_attr);
}

/* --- posting a receive ---------------------------------------------------------------------- */

static void release_data(ls_ucx *u, ls_ucx_transfer *f)
{
    if (f->own)
        ls_mem_free(f->data);
    else if (f->data)
        u->api.ucp_am_data_release(u->worker, f->data);
    f->data = NULL;
}

/* Takes the chunks of a message that came early out of the table. */
static ls_ucx_transfer *claim(ls_ucx *u, const ls_message *m)
{
    ls_ucx_transfer **at = &u->unclaimed[bucket(m->peer, m->tag)], *mine = NULL, *f;

    while ((f = *at)) {
        if (f->peer != m->peer || f->frame.tag != m->tag) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        f->next = mine;
        mine = f;
        u->links[m->peer].unclaimed--;
    }
    return mine;
}

ls_status ls_ucx_post_receive(ls_ucx *u, ls_message *message)
{
    ls_ucx_post *p = take_post(u, message),
                **head = &u->posted[bucket(message->peer, message->tag)];
    ls_ucx_transfer *f, *next;
    bool whole = false;

    if (!p)
        return ls_err_last()->code;
    p->next = *head;
    *head = p;
    for (f = claim(u, message); f; f = next) {
        next = f->next;
        if (whole)
            refuse(u, message->peer, "a chunk twice");
        else if (!u->failed && size_fits(u, p, &f->frame)) {
            if (f->fetch) {
                plan_fetch(u, p, f);
                continue;
            }
            whole = place(u, p, &f->frame, f->data);
        }
        release_data(u, f);
        give_transfer(u, f);
    }
    if (whole || u->failed)
        return LS_OK;
    if (u->links[message->peer].gone)
        ls_ucx_break_peer(u, message->peer, "it closed");
    else if (ls_ucx_reach(u, message->peer) == LS_OK)
        ls_ucx_pump(u);
    return LS_OK;
}

/* --- closing -------------------------------------------------------------------------------- */

void ls_ucx_drop(ls_ucx *u)
{
    for (ls_ucx_transfer *f = u->all_transfers; f; f = f->all)
        release_data(u, f);
}

void ls_ucx_free_memory(ls_ucx *u)
{
    while (u->all_posts) {
        ls_ucx_post *p = u->all_posts;

        u->all_posts = p->all;
        ls_mem_free(p);
    }
    while (u->all_transfers) {
        ls_ucx_transfer *f = u->all_transfers;

        u->all_transfers = f->all;
        ls_mem_free(f);
    }
    ls_mem_free(u->stage_memory);
}
#endif
