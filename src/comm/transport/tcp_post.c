/* tcp_post.c -- the map from tags to posted messages of a link, and memory that is reused.
 *
 *     key (kind, tag) -> hash -> chain of records (posted send or receive, READY, early, ...)
 *
 * Which records a message has at its receiver (R) and its sender (S), by what comes first:
 *
 *     small   receive, then bytes    R: RECEIVE until they are there
 *             bytes, then receive    R: EARLY with a block, which the receive empties
 *     large   receive, then send     S: CLEARED when READY comes; the send starts at once
 *             send, then receive     S: SEND, waiting for READY; after 20 ms it says ANNOUNCE,
 *                                    R: TOLD until the receive is posted
 *             ANNOUNCE comes last    R: SWALLOW, because the message was complete before
 *
 * The map doubles when it is full. Free records, frames and blocks go to lists, so that after the
 * first steps of a run the heap is not touched. All of it is bounded: records by LS_TCP_POSTS for
 * each side of a link, blocks by the credit, frames by both and by LS_TCP_KEEP. */
#include "comm/transport/tcp_impl.h"

#include "base/mem.h"

static uint32_t bucket_of(const ls_tcp_link *link, ls_tcp_post_kind kind, uint64_t tag)
{
    uint64_t x = (tag + (uint64_t)kind) * UINT64_C(0x9E3779B97F4A7C15);

    return (uint32_t)(x >> 32) & (uint32_t)(link->bucket_count - 1);
}

ls_tcp_posted *ls_tcp_find(const ls_tcp_link *link, ls_tcp_post_kind kind, uint64_t tag)
{
    if (link->bucket_count == 0)
        return NULL;
    for (ls_tcp_posted *p = link->buckets[bucket_of(link, kind, tag)]; p; p = p->chain)
        if (p->tag == tag && p->kind == kind)
            return p;
    return NULL;
}

/* Twice as many buckets; every record goes into its new one. */
static ls_status grow_map(ls_tcp_link *link)
{
    ls_tcp_posted **old = link->buckets;
    int n = link->bucket_count;
    ls_tcp_posted **wider = ls_mem_array((size_t)(n ? 2 * n : LS_TCP_BUCKETS), sizeof *wider);

    if (!wider)
        return LS_ENOMEM;
    link->buckets = wider;
    link->bucket_count = n ? 2 * n : LS_TCP_BUCKETS;
    for (int i = 0; i < n; i++)
        for (ls_tcp_posted *p = old[i], *after; p; p = after) {
            uint32_t at = bucket_of(link, p->kind, p->tag);
            after = p->chain;
            p->chain = wider[at];
            wider[at] = p;
        }
    ls_mem_free(old);
    return LS_OK;
}

/* Made by what the peer sent, not by a call on this side. */
static bool is_foreign(ls_tcp_post_kind kind)
{
    return kind != LS_TCP_RECEIVE && kind != LS_TCP_SEND;
}

/* Records are allocated several at a time, so that the largest number ever needed is there early: a
 * step that repeats takes no memory, whatever order messages come in. */
enum { MORE_RECORDS = 128, MORE_BYTES = 16 << 10, MORE_BLOCKS = 8 };

/* A free record keeps the next one in its first bytes. */
static void give(void **list, void *record)
{
    memcpy(record, list, sizeof *list);
    *list = record;
}

/* A free record of this size; NULL when memory is short. */
static void *take(void **list, size_t bytes, int64_t more)
{
    for (bool empty = !*list; empty && more > 0; more--) {
        void *record = ls_mem_alloc(bytes);
        if (!record)
            break;
        give(list, record);
    }
    void *record = *list;
    if (record)
        memcpy(list, record, sizeof *list);
    return record;
}

static void free_list(void **list)
{
    while (*list)
        ls_mem_free(take(list, 0, 0));
}

/* A new record in the map, within the limits of each side: LS_EBUSY for this side's messages,
 * LS_EDATA for a peer that sends without end. */
ls_tcp_posted *ls_tcp_insert(ls_tcp_link *link, ls_tcp_post_kind kind, uint64_t tag, int64_t bytes)
{
    ls_tcp *tcp = link->tcp;

    if (is_foreign(kind) && link->foreign >= 2 * LS_TCP_POSTS) {
        ls_fail(LS_EDATA, "%s has more than %d messages under way", link->name, LS_TCP_POSTS);
        return NULL;
    }
    if (!is_foreign(kind) && link->posted >= LS_TCP_POSTS) {
        ls_fail(LS_EBUSY, "more than %d messages are under way to %s", LS_TCP_POSTS, link->name);
        return NULL;
    }
    if (link->records >= link->bucket_count && grow_map(link) != LS_OK)
        return NULL;
    ls_tcp_posted *post = take(&tcp->free_posts, sizeof *post, MORE_RECORDS);
    if (!post)
        return NULL;
    *post = (ls_tcp_posted){.kind = kind, .tag = tag, .bytes = bytes, .left = bytes};
    uint32_t at = bucket_of(link, kind, tag);
    post->chain = link->buckets[at];
    link->buckets[at] = post;
    link->records++;
    *(is_foreign(kind) ? &link->foreign : &link->posted) += 1;
    return post;
}

void ls_tcp_remove(ls_tcp_link *link, ls_tcp_posted *post)
{
    ls_tcp_posted **at = &link->buckets[bucket_of(link, post->kind, post->tag)];

    while (*at != post)
        at = &(*at)->chain;
    *at = post->chain;
    link->records--;
    *(is_foreign(post->kind) ? &link->foreign : &link->posted) -= 1;
}

void ls_tcp_free_post(ls_tcp *tcp, ls_tcp_posted *post)
{
    ls_tcp_free_block(tcp, post->block);
    give(&tcp->free_posts, post);
}

/* A blank frame from the free list, or NULL when memory is short. */
ls_tcp_frame *ls_tcp_new_frame(ls_tcp *tcp)
{
    ls_tcp_frame *frame = take(&tcp->free_frames, sizeof *frame, MORE_RECORDS);

    if (frame) { /* the header is written later, whole */
        frame->next = NULL;
        frame->wire = (ls_tcp_wire){0};
        frame->payload = NULL;
        frame->block = NULL;
        frame->post = NULL;
        frame->message = NULL;
        frame->summed = false;
    }
    return frame;
}

void ls_tcp_free_frame(ls_tcp *tcp, ls_tcp_frame *frame)
{
    ls_tcp_free_block(tcp, frame->block);
    give(&tcp->free_frames, frame);
}

ls_tcp_block *ls_tcp_new_block(ls_tcp *tcp, size_t bytes)
{
    size_t room = 256;
    int size = 0;

    while (room < bytes) {
        room *= 4;
        size++;
    }
    LS_BUG_IF(size >= LS_TCP_SIZES, "a small message of %zu bytes", bytes);
    ls_tcp_block *block = take(&tcp->free_blocks[size], sizeof *block + room,
                               ls_max_i64(MORE_BLOCKS, MORE_BYTES / (int64_t)room));
    if (block)
        block->size = size;
    return block;
}

void ls_tcp_free_block(ls_tcp *tcp, ls_tcp_block *block)
{
    if (block)
        give(&tcp->free_blocks[block->size], block);
}

/* Everything that a link still holds. */
static void free_link(ls_tcp *tcp, ls_tcp_link *link)
{
    for (int i = 0; i < link->bucket_count; i++)
        for (ls_tcp_posted *p = link->buckets[i], *after; p; p = after) {
            after = p->chain;
            ls_tcp_free_post(tcp, p);
        }
    for (int c = 0; link->channels && c < tcp->channels; c++) {
        ls_tcp_channel *channel = &link->channels[c];
        ls_tcp_free_block(tcp, channel->block);
        for (ls_tcp_frame *f = channel->first, *after; f; f = after) {
            after = f->next;
            ls_tcp_free_frame(tcp, f);
        }
        ls_mem_free(channel->handshake);
        ls_mem_free(channel->in);
        ls_mem_free(channel->staging);
    }
    ls_mem_free(link->channels);
    ls_mem_free(link->buckets);
}

void ls_tcp_free_all(ls_tcp *tcp)
{
    for (int r = 0; tcp->links && r < tcp->args.ranks; r++)
        free_link(tcp, &tcp->links[r]);
    ls_mem_free(tcp->links);
    ls_mem_free(tcp->used);
    ls_mem_free(tcp->held);
    free_list(&tcp->free_frames);
    free_list(&tcp->free_posts);
    for (int i = 0; i < LS_TCP_SIZES; i++)
        free_list(&tcp->free_blocks[i]);
}
