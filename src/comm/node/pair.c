/* pair.c -- rings from each rank to each other one, and the protocol of their entries.
 *
 *      sender                                   receiver
 *      SHORT  tag, bytes, the bytes  ------->   copied or combined; nothing comes back
 *      OFFER  tag, bytes, where      ------->   fetched when its receive is posted
 *             done  <-------------------------  DONE
 *      OFFER  tag, bytes, "stage"    ------->   when its receive is posted:
 *             copies a chunk  <---------------  MORE
 *      CHUNK  where on the stage     ------->   taken
 *             next chunk, or done  <----------  MORE, or DONE
 *
 * Worked examples: 300 bytes fit into an entry and are one SHORT. 1 MiB in the heap is an OFFER and
 * a DONE, and the bytes are read where they lie. 1 MiB that the receiver cannot read goes over a
 * stage of 256 KiB: an OFFER and 4 CHUNKs one way, 4 MOREs and a DONE the other way.
 *
 * A ring has 16 entries of 512 bytes: 8320 bytes with its two counters, 12 KiB in whole pages. A
 * group of 8 ranks has room for 64 rings; those that no message uses take no memory.
 *
 * A receiver always empties its rings: an entry without a posted receive goes to a list of its own,
 * so a message never waits behind another one. What a full ring does not take waits on a list, too.
 * A writer sets a bit for itself in the receiver's `senders`, so a poll looks at one cache line,
 * whatever the number of ranks, and only at rings in use: their pages exist from the first message
 * on.
 *
 * A ticket names a message of the rank that gave it; it is looked up among the messages in
 * flight. */
#include "comm/node/pair.h"

#include "base/mem.h"
#include "base/tsan.h"
#include "comm/node/shm_segment_impl.h"
#include "comm/node/peer_memory.h"
#include "comm/node/wait.h"

enum { SHORT = 1, OFFER, DONE, MORE, CHUNK };
enum {
    INLINE_BYTES = sizeof((ls_shm_segment_entry *)0)->inline_bytes,
    CHUNK_BYTES = 1 << 18,
    HEAD_BYTES = 64
};

/* A message in flight, on one of a peer's lists. */
typedef struct pending {
    struct pending *next;
    ls_message *message; /* NULL: it came before its receive was posted */
    uint32_t mark;
    uint64_t ticket;            /* ours, or of the sender once it is matched */
    int64_t at;                 /* bytes sent or received so far */
    ls_shm_segment_entry entry; /* the entry that came, or the one to write */
} pending;

/* Messages are allocated many at a time and reused: a step that repeats takes no memory. */
typedef struct pending_block {
    struct pending_block *next;
    pending pending[64];
} pending_block;

typedef struct list {
    pending *first, **end; /* end: valid unless the list is empty */
} list;

typedef struct side {
    bool committed; /* the ring to it exists */
    list to_write;  /* entries that found the ring full */
    list offered;   /* sends whose receiver has not fetched all */
    list wanted;    /* receives without a message */
    list early;     /* messages without a receive */
    list fetching;  /* receives that come over a stage */
    int64_t sent, received;
} side;

struct ls_pair {
    ls_group *group;
    ls_shm_segment *segment;
    ls_shm_segment_member *member;
    ls_status mismatch;
    uint64_t tickets;
    int in_flight;
    char *stage; /* owned, in the heap; half for each of two chunks would win little */
    pending *stage_user;
    pending_block *pending_block;    /* all there are; owned */
    pending *idle;                   /* of them */
    char *scratch;                   /* owned */
    side side[LS_SHM_SEGMENT_RANKS]; /* of each member */
};

/* --- lists ------------------------------------------------------------------------------------ */

static void append(list *l, pending *x)
{
    if (!l->first)
        l->end = &l->first;
    x->next = NULL;
    *l->end = x;
    l->end = &x->next;
}

static pending *take(list *l, pending **at)
{
    pending *x = *at;

    *at = x->next;
    if (!x->next)
        l->end = at;
    return x;
}

static pending **find_tag(list *l, uint64_t tag)
{
    pending **at = &l->first;

    while (*at && ((*at)->message ? (*at)->message->tag : (*at)->entry.tag) != tag)
        at = &(*at)->next;
    return at;
}

static pending **find_ticket(list *l, uint64_t ticket)
{
    pending **at = &l->first;

    while (*at && (*at)->ticket != ticket)
        at = &(*at)->next;
    return at;
}

static void put_back(ls_pair *p, pending *x)
{
    x->next = p->idle;
    p->idle = x;
}

/* A blank one; NULL when there is no memory. */
static pending *new_pending(ls_pair *p)
{
    pending *x = p->idle;

    if (!x) {
        pending_block *more = ls_mem_alloc(sizeof *more);
        if (!more)
            return NULL;
        more->next = p->pending_block;
        p->pending_block = more;
        for (size_t i = 0; i < LS_COUNT(more->pending); i++)
            put_back(p, &more->pending[i]);
        x = p->idle;
    }
    p->idle = x->next;
    memset(x, 0, offsetof(pending, entry));
    return x;
}

/* --- rings ------------------------------------------------------------------------------------ */

static ls_shm_segment_ring *ring_to(const ls_pair *p, int to)
{
    return ls_shm_segment_ring_at(p->segment, p->group->number, p->group->local,
                                  p->group->locals[to]);
}

static ls_shm_segment_ring *ring_from(const ls_pair *p, int from)
{
    return ls_shm_segment_ring_at(p->segment, p->group->number, p->group->locals[from],
                                  p->group->local);
}

static void tell(ls_pair *p, int to)
{
    int me = p->group->local;
    ls_shm_segment_member *member =
        ls_shm_segment_member_at(p->segment, p->group->number, p->group->locals[to]);

    atomic_fetch_or(&member->senders[me / 64], UINT64_C(1) << (me % 64));
    if (ls_wait_anybody(p->segment))
        ls_wait_wake(p->segment, p->group->locals[to]);
}

static bool try_write(ls_pair *p, int to, const ls_shm_segment_entry *e, int64_t inline_bytes)
{
    ls_shm_segment_ring *ring = ring_to(p, to);
    uint64_t put = atomic_load_explicit(&ring->put, memory_order_relaxed);

    if (put - atomic_load_explicit(&ring->taken, memory_order_acquire) >= LS_SHM_SEGMENT_RING)
        return false;
    memcpy(&ring->entry[put % LS_SHM_SEGMENT_RING], e,
           offsetof(ls_shm_segment_entry, inline_bytes) + (size_t)inline_bytes);
    atomic_store_explicit(&ring->put, put + 1, memory_order_release);
    p->side[to].sent += HEAD_BYTES + (e->kind == SHORT || e->kind == CHUNK ? e->bytes : 0);
    tell(p, to);
    return true;
}

static int64_t inline_of(const ls_shm_segment_entry *e)
{
    return e->kind == SHORT ? e->bytes : 0;
}

static void done(ls_pair *p, ls_message *m)
{
    LS_TSAN_ACQUIRE(m->data);
    m->done = true;
    p->in_flight--;
}

static ls_status commit_ring(ls_pair *p, int to)
{
    int64_t at = (char *)ring_to(p, to) - p->segment->base;
    int64_t bytes = ls_round_up((int64_t)sizeof(ls_shm_segment_ring), LS_SHM_SEGMENT_PAGE);
    ls_status st = LS_OK;

    if (!p->side[to].committed)
        st = ls_shm_segment_commit(p->segment, at, bytes, "messages between two ranks");
    p->side[to].committed = st == LS_OK;
    return st;
}

/* Write into the ring, or queue behind entries that wait for room. The message, if any, is done
 * when the entry is in the ring: a rank that closes after its messages are done loses none. */
static ls_status write_entry(ls_pair *p, int to, const ls_shm_segment_entry *e, ls_message *last_of)
{
    side *other = &p->side[to];
    ls_status st = commit_ring(p, to);

    if (st != LS_OK)
        return st;
    if (!other->to_write.first && try_write(p, to, e, inline_of(e))) {
        if (last_of)
            done(p, last_of);
        return LS_OK;
    }
    pending *x = new_pending(p);
    if (!x)
        return LS_ENOMEM;
    x->message = last_of;
    memcpy(&x->entry, e, offsetof(ls_shm_segment_entry, inline_bytes) + (size_t)inline_of(e));
    append(&other->to_write, x);
    return LS_OK;
}

static bool flush(ls_pair *p, int to)
{
    list *l = &p->side[to].to_write;
    bool moved = false;

    while (l->first && try_write(p, to, &l->first->entry, inline_of(&l->first->entry))) {
        if (l->first->message)
            done(p, l->first->message);
        put_back(p, take(l, &l->first));
        moved = true;
    }
    return moved;
}

/* --- opening ---------------------------------------------------------------------------------- */

ls_status ls_pair_open(ls_pair **pair_out, ls_group *group, ls_status mismatch)
{
    ls_pair *p = ls_mem_alloc(sizeof *p);

    if (!p)
        return LS_ENOMEM;
    p->group = group;
    p->segment = group->segment;
    p->mismatch = mismatch;
    p->member = ls_shm_segment_member_at(p->segment, group->number, group->local);
    *pair_out = p;
    return LS_OK;
}

void ls_pair_close(ls_pair *pair)
{
    if (!pair)
        return;
    for (pending_block *x = pair->pending_block, *next; x; x = next) {
        next = x->next;
        ls_mem_free(x);
    }
    ls_shm_segment_free(pair->segment, pair->group->local, pair->stage);
    ls_mem_free(pair->scratch);
    ls_mem_free(pair);
}

/* --- sending ---------------------------------------------------------------------------------- */

ls_status ls_pair_send(ls_pair *pair, ls_message *message, uint32_t mark)
{
    ls_shm_segment_entry e = {
        .kind = SHORT, .how = mark, .tag = message->tag, .bytes = message->bytes};

    LS_BUG_IF(message->peer < 0 || message->peer >= pair->group->members ||
                  message->peer == pair->group->me || message->bytes < 0,
              "a message of %lld bytes to rank %d", (long long)message->bytes, message->peer);
    message->done = false;
    pair->in_flight++;
    if (message->bytes <= INLINE_BYTES) {
        if (message->bytes)
            memcpy(e.inline_bytes, message->data, (size_t)message->bytes);
        return write_entry(pair, message->peer, &e, message);
    }
    pending *x = new_pending(pair);
    if (!x)
        return LS_ENOMEM;
    x->message = message;
    x->ticket = e.ticket = ++pair->tickets;
    append(&pair->side[message->peer].offered, x);
    e.kind = OFFER;
    LS_TSAN_RELEASE(message->data);
    e.how = mark << 8 | ls_peer_memory_find(pair->segment, pair->group->local,
                                            &pair->group->locals[message->peer], 1, message->data,
                                            message->bytes, &e.at);
    return write_entry(pair, message->peer, &e, NULL);
}

/* The next chunk of a send onto the stage, which serves one message at a time. */
static ls_status send_chunk(ls_pair *p, int to, pending *x)
{
    ls_shm_segment_entry e = {.kind = CHUNK, .tag = x->message->tag, .ticket = x->ticket};
    ls_status st = LS_OK;
    void *memory;

    if (!p->stage) {
        LS_TRY(st,
               ls_shm_segment_alloc(p->segment, p->group->local, CHUNK_BYTES,
                                    "messages that others cannot read", &memory),
               out);
        p->stage = memory;
    }
    p->stage_user = x;
    e.bytes = ls_min_i64(CHUNK_BYTES, x->message->bytes - x->at);
    e.at = (uint64_t)(p->stage - p->segment->heap);
    memcpy(p->stage, (char *)x->message->data + x->at, (size_t)e.bytes);
    x->at += e.bytes;
    st = write_entry(p, to, &e, NULL);
out:
    return st;
}

/* --- receiving -------------------------------------------------------------------------------- */

/* Copy or combine the bytes of an offer, straight from where the sender's memory can be read;
 * memory of another process that is to be combined goes through a scratch piece by piece. */
static ls_status fetch(ls_pair *p, int from, const ls_message *m, const ls_shm_segment_entry *e)
{
    int local = p->group->locals[from];
    ls_peer_memory_how how = (ls_peer_memory_how)(e->how & 0xff);
    char *memory = ls_peer_memory_pointer(p->segment, local, how, e->at);
    ls_status st = LS_OK;

    if (how == LS_PEER_MEMORY_HEAP && !ls_shm_segment_in_heap(p->segment, memory, e->bytes))
        return ls_fail(LS_EDATA, "a message was offered that does not lie in shared memory");
    if (memory) {
        LS_TSAN_ACQUIRE(memory);
        ls_message_put(m, 0, memory, m->bytes);
        LS_TSAN_RELEASE(memory);
        return LS_OK;
    }
    if (!m->add)
        return ls_peer_memory_read(p->segment, local, e->at, m->data, m->bytes);
    if (!p->scratch)
        p->scratch = ls_mem_alloc(CHUNK_BYTES);
    if (!p->scratch)
        return LS_ENOMEM;
    for (int64_t at = 0; at < m->bytes && st == LS_OK; at += CHUNK_BYTES) {
        int64_t bytes = ls_min_i64(CHUNK_BYTES, m->bytes - at);
        st = ls_peer_memory_read(p->segment, local, e->at + (uint64_t)at, p->scratch, bytes);
        if (st == LS_OK)
            ls_message_put(m, at, p->scratch, bytes);
    }
    return st;
}

static ls_status check_ends(const ls_pair *p, const pending *x, const ls_shm_segment_entry *e)
{
    uint32_t mark = e->kind == SHORT ? e->how : e->how >> 8;
    char name[2][LS_SHM_SEGMENT_NAME];

    if (x->message->bytes == e->bytes && (mark == 0 || x->mark == 0 || mark == x->mark))
        return LS_OK;
    ls_shm_segment_name(p->segment, p->group->locals[x->message->peer], name[0]);
    ls_shm_segment_name(p->segment, p->group->local, name[1]);
    if (x->message->bytes == e->bytes)
        return ls_fail(p->mismatch, "%s sends another type of elements than %s expects", name[0],
                       name[1]);
    return ls_fail(p->mismatch, "%s sends %lld bytes where %s expects %lld", name[0],
                   (long long)e->bytes, name[1], (long long)x->message->bytes);
}

/* A receive and its send have met. x is given away. */
static ls_status match(ls_pair *p, int from, pending *x, const ls_shm_segment_entry *e)
{
    ls_shm_segment_entry answer = {.kind = DONE, .ticket = e->ticket};
    ls_message *m = x->message;
    ls_status st;

    LS_TRY(st, check_ends(p, x, e), out);
    if (e->kind == OFFER && (e->how & 0xff) == LS_PEER_MEMORY_STAGE) {
        x->ticket = e->ticket;
        x->at = 0;
        append(&p->side[from].fetching, x);
        answer.kind = MORE;
        return write_entry(p, from, &answer, NULL);
    }
    if (e->kind == SHORT) {
        ls_message_put(m, 0, e->inline_bytes, m->bytes);
        done(p, m);
    } else {
        LS_TRY(st, fetch(p, from, m, e), out);
        p->side[from].received += m->bytes;
        st = write_entry(p, from, &answer, m);
    }
out:
    put_back(p, x);
    return st;
}

ls_status ls_pair_receive(ls_pair *pair, ls_message *message, uint32_t mark)
{
    side *other = &pair->side[message->peer];
    pending **early = find_tag(&other->early, message->tag);
    pending *x = new_pending(pair);

    if (!x)
        return LS_ENOMEM;
    message->done = false;
    pair->in_flight++;
    x->message = message;
    x->mark = mark;
    if (!*early) {
        append(&other->wanted, x);
        return LS_OK;
    }
    pending *came = take(&other->early, early);
    ls_status st = match(pair, message->peer, x, &came->entry);
    put_back(pair, came);
    return st;
}

/* A chunk lies on the sender's stage. */
static ls_status take_chunk(ls_pair *p, int from, const ls_shm_segment_entry *e)
{
    ls_shm_segment_entry answer = {.kind = MORE, .ticket = e->ticket};
    list *l = &p->side[from].fetching;
    pending **at = find_ticket(l, e->ticket);
    ls_message *complete = NULL;
    char name[LS_SHM_SEGMENT_NAME];

    if (!*at || e->bytes < 0 || e->bytes > (*at)->message->bytes - (*at)->at ||
        !ls_shm_segment_in_heap(p->segment, p->segment->heap + e->at, e->bytes))
        return ls_fail(LS_EDATA, "%s sent a chunk that nobody asked for",
                       ls_shm_segment_name(p->segment, p->group->locals[from], name));
    ls_message_put((*at)->message, (*at)->at, p->segment->heap + e->at, e->bytes);
    (*at)->at += e->bytes;
    if ((*at)->at == (*at)->message->bytes) {
        answer.kind = DONE;
        complete = (*at)->message;
        put_back(p, take(l, at));
    }
    return write_entry(p, from, &answer, complete);
}

/* --- what arrives ----------------------------------------------------------------------------- */

/* What one entry of a ring means; see the protocol at the top. */
static ls_status arrive(ls_pair *p, int from, const ls_shm_segment_entry *e)
{
    side *other = &p->side[from];
    pending **at = &other->wanted.first;

    other->received += HEAD_BYTES + (e->kind == SHORT || e->kind == CHUNK ? e->bytes : 0);
    if (e->kind == SHORT || e->kind == OFFER) {
        at = find_tag(&other->wanted, e->tag);
        if (*at)
            return match(p, from, take(&other->wanted, at), e);
        pending *x = new_pending(p);
        if (!x)
            return LS_ENOMEM;
        memcpy(&x->entry, e, offsetof(ls_shm_segment_entry, inline_bytes) + (size_t)inline_of(e));
        append(&other->early, x);
        return LS_OK;
    }
    if (e->kind == CHUNK)
        return take_chunk(p, from, e);
    at = find_ticket(&other->offered, e->ticket);
    if (!*at)
        return ls_fail(LS_EDATA, "an answer to a message that was not sent");
    if (p->stage_user == *at)
        p->stage_user = NULL;
    else if (e->kind == DONE && (*at)->at == 0)
        other->sent += (*at)->message->bytes;
    if (e->kind == MORE)
        (*at)->mark = 1; /* its turn on the stage comes in ls_pair_poll() */
    if (e->kind != DONE)
        return LS_OK;
    done(p, (*at)->message);
    put_back(p, take(&other->offered, at));
    return LS_OK;
}

/* Read all entries of one ring, and free their places for the sender. */
static ls_status drain(ls_pair *p, int from, bool *moved)
{
    ls_shm_segment_ring *ring = ring_from(p, from);
    uint64_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    uint64_t put = atomic_load_explicit(&ring->put, memory_order_acquire);
    bool full = put - taken == LS_SHM_SEGMENT_RING;

    while (taken < put) {
        ls_shm_segment_entry *e = &ring->entry[taken % LS_SHM_SEGMENT_RING];
        if (e->kind == SHORT && (e->bytes < 0 || e->bytes > INLINE_BYTES))
            return ls_fail(LS_EDATA, "a ring of the node's shared memory is damaged");
        ls_status st = arrive(p, from, e);
        if (st != LS_OK)
            return st;
        atomic_store_explicit(&ring->taken, ++taken, memory_order_release);
        *moved = true;
    }
    if (full)
        tell(p, from); /* it may have more that found no room */
    return LS_OK;
}

/* Sends that wait for the stage, in turn. */
static ls_status use_stage(ls_pair *p, bool *moved)
{
    for (int i = 0; i < p->group->members; i++)
        for (pending *x = p->side[i].offered.first; x && !p->stage_user; x = x->next)
            if (x->mark && x->at < x->message->bytes) {
                x->mark = 0;
                *moved = true;
                ls_status st = send_chunk(p, i, x);
                if (st != LS_OK)
                    return st;
            }
    return LS_OK;
}

ls_status ls_pair_poll(ls_pair *pair, bool *moved_out)
{
    uint64_t who[LS_SHM_SEGMENT_WORDS];
    ls_status st = LS_OK;
    bool moved = false;

    for (int w = 0; w < LS_SHM_SEGMENT_WORDS; w++) {
        who[w] = atomic_load_explicit(&pair->member->senders[w], memory_order_relaxed);
        if (who[w])
            who[w] = atomic_exchange(&pair->member->senders[w], 0);
    }
    for (int i = 0; i < pair->group->members && st == LS_OK; i++) {
        if (ls_shm_segment_set_has(who, pair->group->locals[i]))
            st = drain(pair, i, &moved);
        if (pair->side[i].to_write.first && flush(pair, i))
            moved = true;
    }
    if (st == LS_OK && !pair->stage_user && pair->in_flight)
        st = use_stage(pair, &moved);
    *moved_out = moved;
    return st;
}

bool ls_pair_pending(const ls_pair *pair)
{
    for (int w = 0; w < LS_SHM_SEGMENT_WORDS; w++)
        if (atomic_load(&pair->member->senders[w]))
            return true;
    return false;
}

bool ls_pair_idle(const ls_pair *pair)
{
    return pair->in_flight == 0;
}

void ls_pair_count(const ls_pair *pair, int peer, int64_t *sent_out, int64_t *received_out)
{
    *sent_out = pair->side[peer].sent;
    *received_out = pair->side[peer].received;
}
