/* compressed.c -- gradients that are compressed between nodes: plan of the messages, then the exchange.
 *
 * The size and the place of every message are arithmetic on the mesh, so every rank knows all of
 * them. A piece is what rank s has for owner r: s's chunk of the bucket, cut with r's part. Two nodes
 * of two ranks, a bucket of 16 elements, parts of 4:
 *
 *     elements     0   4   8   12
 *     parts        0000111122223333
 *     chunks       [rank 0][rank 1]          of the first node
 *                  [rank 2][rank 3]          of the second
 *     pieces       to 2 and 3, from rank 1: 8-11 and 12-15, packed; to 1, from rank 0: 4-7, plain
 *
 * Error feedback, worked out: an element's gradient is 1.00 in every step, and the codec only knows
 * multiples of 0.75. Without it 0.75 would arrive each time.
 *
 *     step       1      2      3      4
 *     packs     1.00   1.25   0.75   1.00      gradient + residual
 *     arrives   0.75   1.50   0.75   0.75      1.00 in the mean of three steps
 *     residual  0.25  -0.25   0.00   0.25
 *
 * Collectives of a communicator are started in the same order on all ranks, but how far a bucket is
 * depends on a rank's own clock. So each of the three ways has a communicator of its own: the sum
 * inside a node (where a node has several ranks), the pieces to the owners, the gather of their sums.
 * Whether a bucket can go on is asked whenever another one comes, and waited for at the end only. */
#include "parallel/compressed.h"

#include "base/mem.h"
#include "parallel/shared_pages.h"
#include "layout/range.h"
#include "parallel/blocking.h"

enum { SLOT = 16 }; /* bytes: collectives divide at multiples of 16 elements */

/* From one rank to another, or from one to this. */
typedef struct piece {
    ls_range of;
    int64_t at;       /* bytes, in the buffer of the bucket */
    int64_t residual; /* where its residuals begin; -1: plain */
} piece;

/* One bucket. */
typedef struct bucket {
    ls_range all, own;       /* elements; own: this rank's part */
    int64_t sends, receives; /* where its bytes begin in the buffers */
    int64_t gathers, slot;   /* the same for gathers, and bytes of each rank's slot there */
    int64_t residual;        /* where the residuals of the own part begin */
    piece *to, *from;        /* of each rank; owned by the first bucket */
    int64_t *in_counts, *out_counts;
    ls_comm_request request;
} bucket;

/* What opening takes: bytes of buffers, floats of residuals. */
typedef struct layout {
    int64_t sends, receives, gathers, residual, residual_sum;
} layout;

struct ls_compressed {
    ls_compressed_args args;
    ls_comm *node;   /* of the ranks on this node; NULL: no node has two */
    ls_comm *gather; /* of all; NULL: nothing is spread */
    int buckets;
    bucket *of; /* owned */
    layout size;
    char *sends, *receives, *gathers; /* of the communicator, as the next two */
    float *residual, *residual_sum;
    int *order;               /* owned: buckets in the order of their start */
    int started, sent, added; /* of those: begun, on their way to owners, summed by this one */
};

/* --- arithmetic ---------------------------------------------------------------------------------
 */

static int buckets_of(const ls_compressed_args *a)
{
    return ls_mesh_buckets(&a->mesh, a->trained);
}

static ls_range bucket_of(const ls_compressed_args *a, int b)
{
    ls_mesh_part part = ls_mesh_bucket(&a->mesh, a->trained, b);

    return (ls_range){.first = part.first, .count = part.count};
}

static ls_range part_of(const ls_compressed_args *a, int b, int rank)
{
    ls_mesh_part part = ls_mesh_part_of(&a->mesh, a->trained, b, rank);

    return (ls_range){.first = part.first, .count = part.count};
}

/* What a rank has of its node's sum. */
static ls_range chunk_of(const ls_compressed_args *a, int b, int rank)
{
    const ls_mesh_place *place = &a->mesh.places[rank];
    ls_range all = bucket_of(a, b), chunk;

    ls_coll_range(all.count, place->ranks, place->seat, &chunk.first, &chunk.count);
    chunk.first += all.first;
    return chunk;
}

static bool together(const ls_compressed_args *a, int one, int other)
{
    return a->mesh.places[one].node == a->mesh.places[other].node;
}

static const ls_codec *way(const ls_compressed_args *a, int one, int other)
{
    static const ls_codec plain = {.kind = LS_CODEC_NONE};

    return together(a, one, other) ? &plain : &a->how;
}

/* Bytes of a slot that any rank's part fits in. */
static int64_t slot_of(const ls_compressed_args *a, int b)
{
    ls_range first = part_of(a, b, 0); /* no part is larger */

    return ls_round_up(ls_codec_bytes(&a->how, first.count), SLOT);
}

/* Adds what a bucket of this rank takes; fills in the pieces when there is room for them. */
static void lay_out(const ls_compressed_args *a, int b, layout *l, bucket *out)
{
    int me = a->mesh.rank, n = a->mesh.ranks;
    ls_range chunk = chunk_of(a, b, me), own = part_of(a, b, me);
    int64_t sends = 0, receives = 0, residual = l->residual;

    for (int r = 0; r < n; r++) {
        ls_range to = ls_range_common(chunk, part_of(a, b, r)),
                 from = ls_range_common(chunk_of(a, b, r), own);
        int64_t in = r == me ? 0 : ls_codec_bytes(way(a, me, r), to.count);
        int64_t back = r == me ? 0 : ls_codec_bytes(way(a, me, r), from.count);
        bool plain = together(a, me, r);
        if (out) {
            out->to[r] = (piece){.of = to, .at = sends, .residual = plain ? -1 : residual};
            out->from[r] = (piece){.of = from, .at = receives, .residual = -1};
            out->in_counts[r] = in;
            out->out_counts[r] = back;
        }
        sends += in;
        receives += back;
        residual += plain ? 0 : to.count;
    }
    if (out) {
        out->all = bucket_of(a, b);
        out->own = own;
        out->sends = l->sends;
        out->receives = l->receives;
        out->gathers = l->gathers;
        out->slot = slot_of(a, b);
        out->residual = l->residual_sum;
    }
    l->sends += sends;
    l->receives += receives;
    l->residual = residual;
    l->gathers += a->spread ? n * slot_of(a, b) : 0;
    l->residual_sum += a->spread ? own.count : 0;
}

int64_t ls_compressed_bytes(const ls_compressed_args *args)
{
    const int64_t size = sizeof(float);
    layout l = {.sends = 0};

    for (int b = 0; b < buckets_of(args); b++)
        lay_out(args, b, &l, NULL);
    return ls_shared_pages(l.sends) + ls_shared_pages(l.receives) +
           ls_shared_pages(l.residual * size) +
           (args->spread ? ls_shared_pages(l.gathers) + ls_shared_pages(l.residual_sum * size) : 0);
}

int ls_compressed_vectors(const ls_compressed_args *args)
{
    return args->mesh.nodes + args->spread;
}

/* --- opening ------------------------------------------------------------------------------------
 */

static ls_status open_tables(ls_compressed *x)
{
    size_t n = (size_t)x->args.mesh.ranks, all = n * (size_t)x->buckets;

    x->of = ls_mem_array((size_t)x->buckets, sizeof *x->of);
    x->order = ls_mem_array((size_t)x->buckets, sizeof *x->order);
    if (!x->of || !x->order)
        return ls_fail(LS_ENOMEM, "no memory for the exchange of %d buckets", x->buckets);
    x->of[0] = (bucket){.to = ls_mem_array(2 * all, sizeof(piece)),
                        .in_counts = ls_mem_array(2 * all, sizeof(int64_t))};
    if (!x->of[0].to || !x->of[0].in_counts)
        return ls_fail(LS_ENOMEM, "no memory for the exchange of %zu ranks", n);
    for (int b = 0; b < x->buckets; b++) {
        bucket *k = &x->of[b];
        k->to = x->of[0].to + 2 * n * (size_t)b;
        k->from = k->to + n;
        k->in_counts = x->of[0].in_counts + 2 * n * (size_t)b;
        k->out_counts = k->in_counts + n;
        lay_out(&x->args, b, &x->size, k);
    }
    return LS_OK;
}

static ls_status open_memory(ls_compressed *x)
{
    const int64_t size = sizeof(float);
    struct {
        int64_t bytes;
        const char *what;
        bool wanted;
        void *at;
    } rows[] = {
        {.bytes = x->size.sends, .what = "compressed gradients to send", .wanted = true},
        {.bytes = x->size.receives, .what = "compressed gradients to add", .wanted = true},
        {.bytes = x->size.residual * size, .what = "residuals of gradients", .wanted = true},
        {.bytes = x->size.gathers, .what = "compressed sums", .wanted = x->args.spread},
        {.bytes = x->size.residual_sum * size, .what = "residuals", .wanted = x->args.spread}};
    ls_status st = LS_OK;

    for (size_t i = 0; i < LS_COUNT(rows) && st == LS_OK; i++)
        if (rows[i].wanted)
            st = ls_comm_alloc(x->args.comm, rows[i].bytes, rows[i].what, &rows[i].at);
    x->sends = rows[0].at;
    x->receives = rows[1].at;
    x->residual = rows[2].at;
    x->gathers = rows[3].at;
    x->residual_sum = rows[4].at;
    return st;
}

/* The ranks of this node, where any node has several; all ranks once more, where they gather. */
static ls_status open_parts(ls_compressed *x, int64_t deadline_ns)
{
    const ls_mesh *mesh = &x->args.mesh;
    int n = 0, *list = ls_mem_array((size_t)mesh->ranks, sizeof *list);
    ls_status st = LS_OK;

    if (!list)
        return ls_fail(LS_ENOMEM, "no memory for a list of %d ranks", mesh->ranks);
    for (int r = 0; r < mesh->ranks; r++)
        if (together(&x->args, r, mesh->rank))
            list[n++] = r;
    if (mesh->nodes < mesh->ranks)
        LS_TRY(st, ls_comm_sub(x->args.comm, list, n, deadline_ns, &x->node), out);
    if (x->args.spread)
        st = ls_blocking_sub(x->args.comm, 0, 1, mesh->ranks, deadline_ns, &x->gather);
out:
    ls_mem_free(list);
    return st;
}

ls_status ls_compressed_open(ls_compressed **compressed_out, const ls_compressed_args *args,
                             int64_t deadline_ns)
{
    ls_compressed *x = ls_mem_alloc(sizeof *x);
    ls_status st;

    if (!x)
        return ls_fail(LS_ENOMEM, "no memory for the exchange between nodes");
    *x = (ls_compressed){.args = *args, .buckets = buckets_of(args)};
    LS_TRY(st, open_tables(x), out);
    LS_TRY(st, open_memory(x), out);
    LS_TRY(st, open_parts(x, deadline_ns), out);
    *compressed_out = x;
out:
    if (st != LS_OK)
        ls_compressed_close(x);
    return st;
}

void ls_compressed_close(ls_compressed *x)
{
    if (!x)
        return;
    ls_comm_close(x->gather);
    ls_comm_close(x->node);
    ls_comm_free(x->args.comm, x->sends);
    ls_comm_free(x->args.comm, x->receives);
    ls_comm_free(x->args.comm, x->gathers);
    ls_comm_free(x->args.comm, x->residual);
    ls_comm_free(x->args.comm, x->residual_sum);
    if (x->of) {
        ls_mem_free(x->of[0].to);
        ls_mem_free(x->of[0].in_counts);
    }
    ls_mem_free(x->of);
    ls_mem_free(x->order);
    ls_mem_free(x);
}

/* --- a step -------------------------------------------------------------------------------------
 */

/* The node's sum is there: pack each owner's piece, and let them go. */
static ls_status send(ls_compressed *x, bucket *k, const float *gradient)
{
    int me = x->args.mesh.rank;

    for (int r = 0; r < x->args.mesh.ranks; r++) {
        const piece *p = &k->to[r];
        if (r != me)
            ls_codec_pack(way(&x->args, me, r), gradient + p->of.first,
                          p->residual < 0 ? NULL : x->residual + p->residual, p->of.count,
                          x->sends + k->sends + p->at);
    }
    x->sent++;
    return ls_comm_start(x->args.comm,
                         &(ls_coll){.kind = LS_COLL_ALL_TO_ALL,
                                    .type = LS_U8,
                                    .in = x->sends + k->sends,
                                    .out = x->receives + k->receives,
                                    .in_counts = k->in_counts,
                                    .out_counts = k->out_counts},
                         &k->request);
}

/* All pieces of the own part are there: its sum. The own chunk of it lies in place. */
static ls_status add(ls_compressed *x, const bucket *k, float *gradient)
{
    int me = x->args.mesh.rank;
    ls_status st = LS_OK;

    x->added++;
    for (int others = 0; others < 2; others++)
        for (int r = 0; r < x->args.mesh.ranks; r++) {
            const piece *p = &k->from[r];
            const char *packed = x->receives + k->receives + p->at;
            const ls_codec *how = way(&x->args, me, r);
            if (r == me || together(&x->args, me, r) == others)
                continue;
            if (others)
                LS_TRY(st, ls_codec_add(how, packed, p->of.count, gradient + p->of.first), out);
            else
                LS_TRY(st, ls_codec_unpack(how, packed, p->of.count, gradient + p->of.first), out);
        }
out:
    return st;
}

static ls_status spread(ls_compressed *x, bucket *k, const float *gradient)
{
    char *slots = x->gathers + k->gathers;

    ls_codec_pack(&x->args.how, gradient + k->own.first, x->residual_sum + k->residual,
                  k->own.count, slots + x->args.mesh.rank * k->slot);
    return ls_comm_start(x->gather,
                         &(ls_coll){.kind = LS_COLL_ALL_GATHER,
                                    .type = LS_U8,
                                    .count = x->args.mesh.ranks * k->slot,
                                    .in = slots,
                                    .out = slots},
                         &k->request);
}

/* What has arrived goes on: node sums to their owners, owners' sums to all ranks. */
static ls_status go_on(ls_compressed *x, float *gradient)
{
    ls_status st = LS_OK;

    for (bool ready = true; x->sent < x->started;) {
        bucket *k = &x->of[x->order[x->sent]];
        if (x->node)
            LS_TRY(st, ls_comm_test(x->node, k->request, &ready), out);
        if (!ready)
            break;
        LS_TRY(st, send(x, k, gradient), out);
    }
    for (bool ready; x->args.spread && x->added < x->sent;) {
        bucket *k = &x->of[x->order[x->added]];
        LS_TRY(st, ls_comm_test(x->args.comm, k->request, &ready), out);
        if (!ready)
            break;
        LS_TRY(st, add(x, k, gradient), out);
        LS_TRY(st, spread(x, k, gradient), out);
    }
out:
    return st;
}

ls_status ls_compressed_start(ls_compressed *x, int b, float *gradient)
{
    bucket *k = &x->of[b];
    ls_status st = LS_OK;

    x->order[x->started++] = b;
    if (x->node)
        LS_TRY(st,
               ls_comm_start(x->node,
                             &(ls_coll){.kind = LS_COLL_REDUCE_SCATTER,
                                        .type = LS_F32,
                                        .count = k->all.count,
                                        .in = gradient + k->all.first,
                                        .out = gradient + k->all.first},
                             &k->request),
               out);
    st = go_on(x, gradient);
out:
    return st;
}

static ls_status unpack(ls_compressed *x, int b, float *gradient)
{
    const bucket *k = &x->of[b];
    ls_status st = LS_OK;

    for (int r = 0; r < x->args.mesh.ranks && st == LS_OK; r++) {
        ls_range part = part_of(&x->args, b, r);
        st = ls_codec_unpack(&x->args.how, x->gathers + k->gathers + r * k->slot, part.count,
                             gradient + part.first);
    }
    return st;
}

ls_status ls_compressed_end(ls_compressed *x, float *gradient, int64_t deadline_ns)
{
    ls_status st = LS_OK;

    while (x->sent < x->started) { /* only where a node has several ranks */
        bucket *k = &x->of[x->order[x->sent]];
        LS_TRY(st, ls_comm_wait(x->node, k->request, deadline_ns), out);
        LS_TRY(st, send(x, k, gradient), out);
    }
    while (x->added < x->started) {
        bucket *k = &x->of[x->order[x->added]];
        LS_TRY(st, ls_comm_wait(x->args.comm, k->request, deadline_ns), out);
        LS_TRY(st, add(x, k, gradient), out);
        if (x->args.spread)
            LS_TRY(st, spread(x, k, gradient), out);
    }
    for (int i = 0; i < x->started && x->args.spread; i++) {
        LS_TRY(st, ls_comm_wait(x->gather, x->of[x->order[i]].request, deadline_ns), out);
        LS_TRY(st, unpack(x, x->order[i], gradient), out);
    }
    x->started = x->sent = x->added = 0;
out:
    return st;
}

/* --- residuals ---------------------------------------------------------------------------------
 * A rank's residuals lie side by side: bucket by bucket, the elements of its chunk that other nodes
 * own. These are runs of elements, two in a bucket at most where the ranks of a node follow each
 * other. */

typedef struct feedbacks {
    const ls_compressed_args *args;
    int rank, bucket, owner; /* owner: the next part to look at */
    ls_range run;            /* elements */
    int64_t at;              /* where it lies among the rank's residuals */
} feedbacks;

/* The first run of a rank's residuals, and the one after another; false past the last. */
static bool next_run(feedbacks *d)
{
    const ls_compressed_args *a = d->args;

    d->at += d->run.count;
    d->run.count = 0;
    for (; d->bucket < buckets_of(a); d->bucket++, d->owner = 0) {
        ls_range chunk = chunk_of(a, d->bucket, d->rank);
        for (; d->owner < a->mesh.ranks; d->owner++) {
            ls_range p = ls_range_common(chunk, part_of(a, d->bucket, d->owner));
            bool owes = p.count > 0 && !together(a, d->rank, d->owner);
            if (d->run.count > 0 && (!owes || p.first != d->run.first + d->run.count) &&
                p.count > 0)
                return true;
            if (owes)
                d->run = d->run.count > 0
                             ? (ls_range){.first = d->run.first, .count = d->run.count + p.count}
                             : p;
        }
        if (d->run.count > 0) {
            d->bucket++;
            d->owner = 0;
            return true;
        }
    }
    return false;
}

/* Floats from one rank to another, of which this may be neither. */
static ls_status carry(const ls_compressed *x, int giver, int taker, int64_t count,
                       const float *from, float *to, int64_t deadline_ns)
{
    int me = x->args.mesh.rank;

    if (giver == taker && me == giver && count > 0)
        memcpy(to, from, (size_t)count * sizeof *to);
    return ls_blocking_carry(x->args.comm, giver, taker,
                             me == giver ? (float *)(uintptr_t)from : to, count, deadline_ns);
}

/* Which way residuals go, and rank 0's vectors. */
typedef struct move {
    const float *dealt; /* from here, or */
    float *collected;   /* to here; both are NULL on other ranks */
    bool collects;
    int64_t deadline_ns;
} move;

/* A run between a rank, which has it at `part`, and rank 0, which has it at `at` of its vectors. */
static ls_status move_run(const ls_compressed *x, const move *m, int rank, int64_t count,
                          float *part, int64_t at)
{
    float *own = x->args.mesh.rank == rank ? part : NULL;

    if (m->collects)
        return carry(x, rank, 0, count, own, m->collected ? m->collected + at : NULL,
                     m->deadline_ns);
    return carry(x, 0, rank, count, m->dealt ? m->dealt + at : NULL, own, m->deadline_ns);
}

static ls_status move_feedbacks(ls_compressed *x, const move *m)
{
    const ls_compressed_args *a = &x->args;
    ls_status st = LS_OK;

    for (int r = 0; r < a->mesh.ranks; r++) {
        bool mine = r == a->mesh.rank;
        int64_t node = a->mesh.places[r].node * a->trained, sums = a->mesh.nodes * a->trained;
        int64_t at = 0;
        for (feedbacks d = {.args = a, .rank = r}; next_run(&d);)
            LS_TRY(st,
                   move_run(x, m, r, d.run.count, mine ? x->residual + d.at : NULL,
                            node + d.run.first),
                   out);
        for (int b = 0; b < x->buckets && a->spread; b++) {
            ls_range own = part_of(a, b, r);
            LS_TRY(
                st,
                move_run(x, m, r, own.count, mine ? x->residual_sum + at : NULL, sums + own.first),
                out);
            at += own.count;
        }
    }
out:
    return st;
}

ls_status ls_compressed_collect(ls_compressed *compressed, float *feedback, int64_t deadline_ns)
{
    const ls_compressed_args *a = &compressed->args;

    if (feedback) /* a node has no residual for itself */
        memset(feedback, 0, (size_t)(ls_compressed_vectors(a) * a->trained) * sizeof *feedback);
    return move_feedbacks(
        compressed, &(move){.collected = feedback, .collects = true, .deadline_ns = deadline_ns});
}

ls_status ls_compressed_scatter(ls_compressed *compressed, const float *feedback,
                                int64_t deadline_ns)
{
    return move_feedbacks(compressed, &(move){.dealt = feedback, .deadline_ns = deadline_ns});
}

void ls_compressed_settle(const ls_compressed_args *args, float *feedback)
{
    const ls_mesh *mesh = &args->mesh;

    for (int b = 0; b < buckets_of(args); b++)
        for (int r = 0; r < mesh->ranks; r++) {
            ls_range part = part_of(args, b, r);
            int node = mesh->places[r].node;
            float *own = feedback + node * args->trained;
            float *next = feedback + (node + 1) % mesh->nodes * args->trained;
            for (int64_t i = part.first; i < part.first + part.count; i++) {
                if (own[i] != 0) /* adding 0 would make 0 of -0 */
                    next[i] += own[i];
                own[i] = 0;
            }
        }
}
