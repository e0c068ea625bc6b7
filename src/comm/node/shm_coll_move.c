/* shm_coll_move.c -- where the pieces of a collective lie, and how they travel.
 *
 * Every kind is a set of pieces: "elements of what rank s gives, for rank d". Each rank fetches its
 * own pieces, and only those; where several ranks give the same range it combines them, in the
 * order of ranks. all_reduce of large buffers in the heap, 3 ranks, buffers a b c of ranges 0 1 2:
 *
 *      rank 0   a0 a1 a2        rank 0 reads a0 b0 c0, writes the sum over a0, b0 and c0
 *      rank 1   b0 b1 b2        rank 1 reads a1 b1 c1, writes a1, b1, c1
 *      rank 2   c0 c1 c2        rank 2 reads a2 b2 c2, writes a2, b2, c2
 *
 * Each element is read and written once by one core, which has it in its cache in between, and it
 * does not matter that it is in place: no other rank touches that range. When a rank's out lies
 * outside the heap the others cannot write it: it fetches the ranges that it lacks in a second
 * pass.
 *
 * The pieces of the other kinds; s is the rank that gives, d the one that fetches:
 *
 *                        s gives             the piece for d      goes to
 *      reduce_scatter    its whole buffer    range d              out of d
 *      all_gather        its own range       all of it            range s
 *      broadcast         the root: all       all of it            out
 *      all_to_all        n pieces            piece d              place s
 *      gather            all but the root    all, for the root    place s
 *      barrier           nothing
 *
 * What cannot be read by others at all goes over a stage in the heap, window by window: the owner
 * copies the next elements of each piece there, all fetch, all say so, and so on. The window of
 * piece d lies at d times the window's length. An all_to_all in place takes this way too, because
 * there all ranks write where others still have to read.
 *
 *      in of rank 1, for 3 ranks:  [-piece 0---|-piece 1---|-piece 2---]
 *      window 1 of 3:                  ^^^^        ^^^^        ^^^^      -> stage [0000|1111|2222]
 *
 * With numbers: 3 ranks, fp32, 1,000,000 elements for each. A stage of 1 MiB holds 87381 elements
 * of each piece, so there are 12 windows, and each rank raises its flag 24 times. */
#include <limits.h>
#include "base/mem.h"
#include "comm/node/shm_coll_impl.h"
#include "kernel/combine.h"

enum { AHEAD_BYTES = 4096, AHEAD_PIECE = 512, AHEAD_FROM = 4 << 20 };
#define WHOLE (INT64_MAX / 2) /* a window that has no end */

static int64_t range_len(const ls_shm_coll *d, const ls_shm_coll_op *op, int member,
                         int64_t *first_out)
{
    int64_t len;

    ls_coll_range(op->coll.count, d->n, member, first_out, &len);
    return len;
}

/* --- pieces ----------------------------------------------------------------------------------- */

/* Where the piece of a member goes in out. */
static int64_t place(const ls_shm_coll *d, const ls_shm_coll_op *op, int from)
{
    const ls_coll *c = &op->coll;
    int64_t first = 0;

    switch (c->kind) {
    case LS_COLL_ALL_REDUCE:
    case LS_COLL_ALL_GATHER:
        if (!op->small)
            range_len(d, op, from, &first);
        return first;
    case LS_COLL_REDUCE_SCATTER:
        if (c->in == c->out)
            range_len(d, op, d->me, &first);
        return first;
    case LS_COLL_GATHER:
    case LS_COLL_ALL_TO_ALL:
        for (int i = 0; i < from; i++)
            first += c->out_counts ? c->out_counts[i] : c->count;
        return first;
    default:
        return 0;
    }
}

/* What this rank gives to others: elements, and where they begin. */
static int64_t given(const ls_shm_coll *d, const ls_shm_coll_op *op, const char **data_out)
{
    const ls_coll *c = &op->coll;
    int64_t first, len, sum = 0;

    *data_out = c->in;
    switch (c->kind) {
    case LS_COLL_ALL_GATHER:
        len = range_len(d, op, d->me, &first);
        *data_out += c->in == c->out && len ? first * op->size : 0;
        return len;
    case LS_COLL_BROADCAST:
        return d->me == c->peer ? c->count : 0;
    case LS_COLL_GATHER:
        if (d->me == c->peer && c->in == c->out && c->in)
            *data_out += place(d, op, d->me) * op->size;
        return d->me == c->peer ? 0 : c->count;
    case LS_COLL_ALL_TO_ALL:
        for (int i = 0; i < d->n; i++)
            sum += c->in_counts ? c->in_counts[i] : c->count;
        return sum;
    case LS_COLL_BARRIER:
        return 0;
    default:
        return c->count;
    }
}

int64_t ls_shm_coll_piece(const ls_shm_coll *d, const ls_shm_coll_op *op, int from, int to,
                          int64_t *at_out)
{
    const ls_shm_segment_slot *slot = ls_shm_coll_slot(d, op, from);
    const ls_coll *c = &op->coll;

    *at_out = 0;
    switch (c->kind) {
    case LS_COLL_ALL_REDUCE:
        if (op->small)
            return c->count;
        return range_len(d, op, op->pass == 0 ? to : from, at_out);
    case LS_COLL_REDUCE_SCATTER:
        return range_len(d, op, to, at_out);
    case LS_COLL_ALL_GATHER:
        return ls_coll_range_len(c->count, d->n, from);
    case LS_COLL_BROADCAST:
        return from == c->peer ? c->count : 0;
    case LS_COLL_GATHER:
        return to == c->peer ? slot->count : 0;
    case LS_COLL_ALL_TO_ALL:
        if (slot->tabled) {
            const ls_shm_segment_piece *piece =
                (const ls_shm_segment_piece *)(const void *)slot->data + to;
            *at_out = piece->at;
            return piece->len;
        }
        *at_out = to * slot->count;
        return slot->count;
    default:
        return 0;
    }
}

/* --- publishing ------------------------------------------------------------------------------- */

/* Whether what a rank gives is cut into a piece for each member. */
static bool many_pieces(const ls_shm_coll_op *op)
{
    return ls_coll_reduces(op->coll.kind) || op->coll.kind == LS_COLL_ALL_TO_ALL;
}

static int64_t longest_piece(const ls_shm_coll *d, const ls_shm_coll_op *op, int64_t gives)
{
    const ls_coll *c = &op->coll;
    int64_t longest = 0;

    if (ls_coll_reduces(c->kind))
        return ls_coll_range_len(c->count, d->n, 0);
    if (c->kind != LS_COLL_ALL_TO_ALL)
        return gives;
    for (int i = 0; i < d->n; i++)
        longest = ls_max_i64(longest, c->in_counts ? c->in_counts[i] : c->count);
    return longest;
}

static void write_table(const ls_shm_coll *d, ls_shm_coll_op *op)
{
    ls_shm_segment_piece *table = (ls_shm_segment_piece *)(void *)op->own->data;
    int64_t at = 0;

    for (int i = 0; op->own->tabled && i < d->n; i++) {
        table[i] = (ls_shm_segment_piece){at, op->coll.in_counts[i]};
        at += op->coll.in_counts[i];
    }
}

/* The elements of the current window of every piece of this rank. */
static void fill_stage(ls_shm_coll *d, const ls_shm_coll_op *op)
{
    const char *data;
    int64_t lo = op->window * op->window_len;
    int copies = op->pass == 0 && many_pieces(op) ? d->n : 1;

    given(d, op, &data);
    if (op->pass == 1)
        data = op->coll.out;
    for (int i = 0; i < copies; i++) {
        int64_t at,
            len = ls_shm_coll_piece(d, op, d->me, copies == 1 ? (d->me + 1) % d->n : i, &at);
        if (op->coll.kind == LS_COLL_GATHER) /* to the root, whoever that is */
            len = op->coll.count;
        len = ls_min_i64(len - lo, op->window_len);
        if (len <= 0)
            continue;
        memcpy(op->stage + i * op->window_len * op->size, data + (at + lo) * op->size,
               (size_t)(len * op->size));
        ls_shm_coll_count(d, len * op->size, len * op->size);
    }
}

static ls_status take_stage(ls_shm_coll *d, ls_shm_coll_op *op)
{
    void *memory;

    if (d->idle_stages > 0) {
        op->stage = d->idle_stage[--d->idle_stages];
        return LS_OK;
    }
    ls_status st = ls_shm_segment_alloc(d->segment, d->group->local, LS_SHM_COLL_STAGE_BYTES,
                                        "memory that others cannot read", &memory);
    if (st == LS_OK)
        op->stage = memory;
    return st;
}

static ls_peer_memory_how find(const ls_shm_coll *d, const void *memory, int64_t bytes,
                               uint64_t *at_out)
{
    return ls_peer_memory_find(d->segment, d->group->local, d->group->locals, d->n, memory, bytes,
                               at_out);
}

/* Publish where others find the out of an all_reduce, and a stage when some memory of this rank
 * needs one. */
static ls_status publish_rest(ls_shm_coll *d, ls_shm_coll_op *op, int64_t gives)
{
    ls_shm_segment_slot *own = op->own;
    ls_peer_memory_how out = LS_PEER_MEMORY_NOTHING;
    ls_status st = LS_OK;

    own->longest = longest_piece(d, op, gives);
    if (op->coll.kind == LS_COLL_ALL_REDUCE)
        out = find(d, op->coll.out, gives * op->size, &own->out_at);
    own->how_out = (uint8_t)out;
    if (own->how_in == LS_PEER_MEMORY_STAGE || out == LS_PEER_MEMORY_STAGE) {
        LS_TRY(st, take_stage(d, op), out);
        own->stage_at = (uint64_t)(op->stage - d->segment->heap);
    }
    if (own->how_in == LS_PEER_MEMORY_STAGE)
        fill_stage(d, op);
out:
    return st;
}

/* Publish where the data lies: others fetch it there. */
static ls_status publish_place(ls_shm_coll *d, ls_shm_coll_op *op, const char *data, int64_t gives)
{
    bool in_place = op->coll.kind == LS_COLL_ALL_TO_ALL && op->coll.in == op->coll.out;
    ls_shm_segment_slot *own = op->own;
    ls_peer_memory_how in = LS_PEER_MEMORY_NOTHING;

    write_table(d, op);
    if (gives > 0)
        in = in_place ? LS_PEER_MEMORY_STAGE : find(d, data, gives * op->size, &own->in_at);
    own->how_in = (uint8_t)in;
    return publish_rest(d, op, gives);
}

/* Copy the data into the slot. */
static void publish_data(ls_shm_coll *d, ls_shm_coll_op *op, const char *data, int64_t bytes)
{
    ls_shm_segment_slot *own = op->own;
    bool tiny = bytes <= (int64_t)sizeof own->tiny;

    own->how_in = bytes == 0 ? LS_PEER_MEMORY_NOTHING
                  : tiny     ? LS_PEER_MEMORY_TINY
                             : LS_PEER_MEMORY_SLOT;
    if (bytes > 0)
        memcpy(tiny ? own->tiny : own->data, data, (size_t)bytes);
    ls_shm_coll_count(d, bytes, bytes);
}

ls_status ls_shm_coll_publish(ls_shm_coll *d, ls_shm_coll_op *op)
{
    const ls_coll *c = &op->coll;
    ls_shm_segment_slot *own = op->own;
    const char *data;
    int64_t gives = given(d, op, &data), bytes = gives * op->size;
    bool crowded = atomic_load_explicit(&d->segment->crowded, memory_order_relaxed); /* on all */
    bool all_reduce = c->kind == LS_COLL_ALL_REDUCE &&
                      bytes > (crowded ? LS_SHM_COLL_SHORT_CROWDED_BYTES : LS_SHM_COLL_SHORT_BYTES);

    own->count = c->count;
    own->kind = (uint8_t)c->kind;
    own->op = (uint8_t)c->op;
    own->type = (uint8_t)c->type;
    own->root = c->peer;
    own->tabled = c->kind == LS_COLL_ALL_TO_ALL && c->in_counts;
    op->small = false;
    op->window_len = LS_SHM_COLL_STAGE_BYTES / op->size / (many_pieces(op) ? d->n : 1);
    /* Buffers outside the heap are slow to reach: they use the slot as long as it holds them. */
    if (bytes > LS_SHM_SEGMENT_SMALL_BYTES || own->tabled ||
        (all_reduce && ls_shm_segment_in_heap(d->segment, c->in, bytes) &&
         ls_shm_segment_in_heap(d->segment, c->out, bytes)))
        return publish_place(d, op, data, gives);
    publish_data(d, op, data, bytes);
    return all_reduce ? publish_rest(d, op, gives) : LS_OK;
}

/* --- planning --------------------------------------------------------------------------------- */

void ls_shm_coll_plan(const ls_shm_coll *d, ls_shm_coll_op *op)
{
    int64_t longest = 0;

    op->closing = op->staged = false;
    op->passes = 1;
    op->windows = 1;
    for (int i = 0; i < d->n; i++)
        op->closing |= ls_shm_coll_slot(d, op, i)->how_in > LS_PEER_MEMORY_SLOT;
    op->small = op->coll.kind == LS_COLL_ALL_REDUCE && !op->closing;
    for (int i = 0; i < d->n && op->closing; i++) {
        const ls_shm_segment_slot *slot = ls_shm_coll_slot(d, op, i);
        bool reduce = op->coll.kind == LS_COLL_ALL_REDUCE;
        if (slot->how_in <= LS_PEER_MEMORY_SLOT && !reduce)
            continue;
        op->staged |= slot->how_in == LS_PEER_MEMORY_STAGE ||
                      (reduce && slot->how_out == LS_PEER_MEMORY_STAGE);
        if (reduce && slot->how_out != LS_PEER_MEMORY_HEAP)
            op->passes = 2;
        longest = ls_max_i64(longest, slot->longest);
    }
    if (op->staged)
        op->windows = ls_max_i64(1, (longest + op->window_len - 1) / op->window_len);
    else
        op->window_len = WHOLE;
    op->at = 0;
    op->from = 0;
}

void ls_shm_coll_next(ls_shm_coll *d, ls_shm_coll_op *op)
{
    if (++op->window == op->windows) {
        op->window = 0;
        op->pass++;
    }
    op->from = 0;
    op->at = op->staged ? op->window * op->window_len : 0;
    if ((op->pass == 0 ? op->own->how_in : op->own->how_out) == LS_PEER_MEMORY_STAGE)
        fill_stage(d, op);
}

/* --- moving ----------------------------------------------------------------------------------- */

/* Element `at` of the piece of member s that begins at `first` of what it published: its address,
 * or NULL and where to read it in its process. */
static char *source(const ls_shm_coll *d, const ls_shm_coll_op *op, int s, int64_t first,
                    uint64_t *remote_out)
{
    ls_shm_segment_slot *slot = ls_shm_coll_slot(d, op, s);
    ls_peer_memory_how how = (ls_peer_memory_how)(op->pass == 0 ? slot->how_in : slot->how_out);
    uint64_t start = op->pass == 0 ? slot->in_at : slot->out_at;
    int64_t bytes = (first + op->at) * op->size;
    const char *own;

    if (s == d->me) {
        given(d, op, &own);
        return (char *)(uintptr_t)(op->pass == 0 ? own : op->coll.out) + bytes;
    }
    if (how == LS_PEER_MEMORY_TINY)
        return slot->tiny + bytes;
    if (how == LS_PEER_MEMORY_SLOT)
        return slot->data + bytes;
    if (how == LS_PEER_MEMORY_STAGE) {
        int64_t skip = op->pass == 0 && many_pieces(op) ? d->me * op->window_len : 0;
        return d->segment->heap + slot->stage_at +
               (skip + op->at - op->window * op->window_len) * op->size;
    }
    char *p = ls_peer_memory_pointer(d->segment, d->group->locals[s], how, start);
    *remote_out = start + (uint64_t)bytes;
    return p ? p + bytes : NULL;
}

static ls_status need_scratch(ls_shm_coll *d)
{
    if (!d->scratch)
        d->scratch = ls_mem_alloc(LS_SHM_COLL_SCRATCH_BYTES);
    return d->scratch ? LS_OK : LS_ENOMEM;
}

/* The sources of the range at op->at; those in other processes are read into the scratch, a part
 * for each. */
static ls_status gather_sources(ls_shm_coll *d, ls_shm_coll_op *op, int64_t first, int64_t *len,
                                const void **from)
{
    uint64_t remote[LS_SHM_SEGMENT_RANKS];
    int64_t part = LS_SHM_COLL_SCRATCH_BYTES / d->n / 64 * 64;
    ls_status st = LS_OK;
    bool reads = false;

    for (int i = 0; i < d->n; i++) {
        from[i] = source(d, op, i, first, &remote[i]);
        reads |= !from[i];
    }
    if (!reads)
        return LS_OK;
    LS_TRY(st, need_scratch(d), out);
    *len = ls_min_i64(*len, part / op->size);
    for (int i = 0; i < d->n; i++) {
        if (from[i])
            continue;
        from[i] = d->scratch + i * part;
        LS_TRY(st,
               ls_peer_memory_read(d->segment, d->group->locals[i], remote[i],
                                   d->scratch + i * part, *len * op->size),
               out);
    }
out:
    return st;
}

/* The ranks that get the combined range: this one, and in an all_reduce all whose out is in the
 * heap. */
static int find_targets(const ls_shm_coll *d, const ls_shm_coll_op *op, void **to)
{
    int64_t bytes = (place(d, op, d->me) + op->at) * op->size;
    int n = 0;

    to[n++] = (char *)op->coll.out + bytes;
    if (op->coll.kind != LS_COLL_ALL_REDUCE || op->small)
        return n;
    for (int i = 1; i < d->n; i++) {
        const ls_shm_segment_slot *slot = ls_shm_coll_slot(d, op, (d->me + i) % d->n);
        if (slot->how_out == LS_PEER_MEMORY_HEAP)
            to[n++] = d->segment->heap + slot->out_at + bytes;
    }
    return n;
}

/* Buffers that do not fit the second cache: the processor's own prefetching ends at each page of 4
 * KiB, so the lines of one page ahead are asked for, those that will be written for writing. */
static void combine_ahead(const ls_combine *all, int64_t bytes, int64_t size)
{
    const void *from[LS_SHM_SEGMENT_RANKS];
    void *to[LS_SHM_SEGMENT_RANKS];
    bool written[LS_SHM_SEGMENT_RANKS] = {0};
    ls_combine c = *all;

    c.from = from;
    c.to = to;
    for (int i = 0; i < c.sources; i++)
        for (int t = 0; t < c.targets; t++)
            written[i] |= all->from[i] == all->to[t];
    for (int64_t at = 0; at < bytes; at += AHEAD_PIECE) {
        for (int t = 0; t < c.targets; t++) {
            to[t] = (char *)all->to[t] + at;
            for (int k = 0; k < AHEAD_PIECE; k += LS_SHM_SEGMENT_LINE)
                __builtin_prefetch((char *)to[t] + AHEAD_BYTES + k, 1, 3);
        }
        for (int i = 0; i < c.sources; i++) {
            from[i] = (const char *)all->from[i] + at;
            for (int k = 0; !written[i] && k < AHEAD_PIECE; k += LS_SHM_SEGMENT_LINE)
                __builtin_prefetch((const char *)from[i] + AHEAD_BYTES + k, 0, 3);
        }
        ls_combine_run(&c, ls_min_i64(AHEAD_PIECE, bytes - at) / size);
    }
}

static ls_status combine(ls_shm_coll *d, ls_shm_coll_op *op, int64_t budget, bool *moved_out)
{
    static const ls_combine_op ops[] = {[LS_COLL_SUM] = LS_COMBINE_SUM,
                                        [LS_COLL_MAX] = LS_COMBINE_MAX,
                                        [LS_COLL_MIN] = LS_COMBINE_MIN,
                                        [LS_COLL_MEAN] = LS_COMBINE_SUM};
    const void *from[LS_SHM_SEGMENT_RANKS];
    void *to[LS_SHM_SEGMENT_RANKS];
    ls_combine c = {.type = op->coll.type,
                    .op = ops[op->coll.op],
                    .from = from,
                    .sources = d->n,
                    .to = to,
                    .scale = op->coll.op == LS_COLL_MEAN ? 1.0 / d->n : 1};
    int64_t first, end = ls_shm_coll_piece(d, op, d->me, d->me, &first);

    end = ls_min_i64(end, op->staged ? (op->window + 1) * op->window_len : WHOLE);
    while (op->at < end && budget > 0) {
        int64_t len = ls_min_i64(end - op->at, LS_SHM_COLL_BITE / op->size);
        ls_status st = gather_sources(d, op, first, &len, from);
        if (st != LS_OK)
            return st;
        c.targets = find_targets(d, op, to);
        if (op->coll.count * op->size >= AHEAD_FROM)
            combine_ahead(&c, len * op->size, op->size);
        else
            ls_combine_run(&c, len);
        ls_shm_coll_count(d, c.sources * len * op->size, c.targets * len * op->size);
        op->at += len;
        budget -= len * op->size;
    }
    *moved_out = op->at >= end;
    return LS_OK;
}

/* Fetch one member's piece. */
static ls_status copy_piece(ls_shm_coll *d, ls_shm_coll_op *op, int s, int64_t *budget,
                            bool *done_out)
{
    int64_t first, end = ls_shm_coll_piece(d, op, s, d->me, &first);
    int64_t put = place(d, op, s);

    end = ls_min_i64(end, op->staged ? (op->window + 1) * op->window_len : WHOLE);
    while (op->at<end && * budget> 0) {
        int64_t len = ls_min_i64(end - op->at, ls_max_i64(*budget / op->size, 1));
        char *to = (char *)op->coll.out + (put + op->at) * op->size;
        uint64_t remote = 0;
        const char *from = source(d, op, s, first, &remote);
        ls_status st = LS_OK;
        if (!from)
            st = ls_peer_memory_read(d->segment, d->group->locals[s], remote, to, len * op->size);
        else if (from != to)
            memcpy(to, from, (size_t)(len * op->size));
        if (st != LS_OK)
            return st;
        if (from != to)
            ls_shm_coll_count(d, len * op->size, len * op->size);
        op->at += len;
        *budget -= len * op->size;
    }
    *done_out = op->at >= end;
    return LS_OK;
}

/* Whether this rank has nothing to fetch: it is the one that gives, or the others wrote it. */
static bool has_all(const ls_shm_coll *d, const ls_shm_coll_op *op)
{
    switch (op->coll.kind) {
    case LS_COLL_BARRIER:
        return true;
    case LS_COLL_BROADCAST:
        return op->coll.peer == d->me && !op->coll.out;
    case LS_COLL_GATHER:
        return op->coll.peer != d->me;
    default:
        return op->pass == 1 && op->own->how_out == LS_PEER_MEMORY_HEAP;
    }
}

static ls_status copy(ls_shm_coll *d, ls_shm_coll_op *op, int64_t budget, bool *moved_out)
{
    if (has_all(d, op))
        op->from = d->n;
    while (op->from < d->n) {
        int s = (d->me + op->from) % d->n; /* each begins elsewhere: not all at one rank's memory */
        bool done = op->pass == 1 && s == d->me;
        ls_status st = done ? LS_OK : copy_piece(d, op, s, &budget, &done);
        if (st != LS_OK || !done)
            return st;
        op->from++;
        op->at = op->staged ? op->window * op->window_len : 0;
    }
    *moved_out = true;
    return LS_OK;
}

ls_status ls_shm_coll_move(ls_shm_coll *d, ls_shm_coll_op *op, int64_t bytes, bool *moved_out)
{
    if (op->pass == 0 && ls_coll_reduces(op->coll.kind))
        return combine(d, op, bytes, moved_out);
    return copy(d, op, bytes, moved_out);
}
