/* reshard.c -- one all-to-all for each bucket of the new mesh.
 *
 * What a rank sends to another one lies in the order of seats, and of elements in each; both sides
 * walk through the same overlaps, so no message says what it contains. What a rank keeps is copied
 * without a message. A rank needs memory for one bucket at a time beside its new parts.
 *
 *     seat      0 0 0 0 1 1 1 1        rank 0 has seat 0, rank 2 has seat 1
 *     owner     0 0 0 1 1 1 2 2
 *     rank 0    keeps 0 1 2            sends 3 to rank 1
 *     rank 2    keeps 6 7              sends 4 5 to rank 1, which unpacks 3, then 4 5 */
#include "parallel/reshard.h"

#include <string.h>
#include "base/mem.h"

ls_reshard_cut ls_reshard_cut_of(const ls_mesh *mesh)
{
    return (ls_reshard_cut){
        .ranks = ls_mesh_ranks(mesh), .shard = ls_mesh_shard_ranks(mesh), .bucket = mesh->bucket};
}

/* A mesh whose first ranks have the seats in order. */
static ls_mesh mesh_of(const ls_reshard_cut *cut)
{
    return (ls_mesh){
        .ranks = cut->ranks, .shard = cut->shard, .zero = cut->ranks > 1, .bucket = cut->bucket};
}

int ls_reshard_buckets(const ls_reshard_cut *cut, int64_t trained)
{
    ls_mesh mesh = mesh_of(cut);

    return ls_mesh_buckets(&mesh, trained);
}

ls_mesh_part ls_reshard_part(const ls_reshard_cut *cut, int64_t trained, int bucket, int seat)
{
    ls_mesh mesh = mesh_of(cut);

    return ls_mesh_part_of(&mesh, trained, bucket, seat);
}

/* A walk through what a seat had of a new part: elements first .. first+count-1. */
typedef struct overlap {
    int bucket; /* of the old cut; begins at -1 */
    int64_t first, count;
    int64_t at; /* where they lie among the seat's packed parts */
} overlap;

static bool next_overlap(const ls_reshard_args *a, int seat, ls_mesh_part to, overlap *o)
{
    while (++o->bucket < ls_reshard_buckets(&a->from, a->trained)) {
        ls_mesh_part had = ls_reshard_part(&a->from, a->trained, o->bucket, seat);
        int64_t end = ls_min_i64(had.first + had.count, to.first + to.count);
        o->first = ls_max_i64(had.first, to.first);
        o->count = end - o->first;
        o->at = had.packed + o->first - had.first;
        if (o->count > 0)
            return true;
    }
    return false;
}

/* Elements of a new part that come from a rank. */
static int64_t count_from(const ls_reshard_args *a, int source, ls_mesh_part to)
{
    int64_t n = 0;

    for (int seat = 0; seat < a->from.shard; seat++)
        if (a->sources[seat] == source)
            for (overlap o = {.bucket = -1}; next_overlap(a, seat, to, &o);)
                n += o.count;
    return n;
}

/* What a new part gets from this rank, one overlap after the other. */
static void pack(const ls_reshard_args *a, const float *const *held, ls_mesh_part to, float **out)
{
    for (int seat = 0; seat < a->from.shard; seat++)
        if (a->sources[seat] == a->to->rank)
            for (overlap o = {.bucket = -1}; next_overlap(a, seat, to, &o); *out += o.count)
                memcpy(*out, held[seat] + o.at, (size_t)o.count * sizeof **out);
}

/* And where it belongs; own: of the part's first element. From this rank itself: from held. */
static void unpack(const ls_reshard_args *a, int source, const float *const *held,
                   ls_mesh_part part, float *own, const float **in)
{
    for (int seat = 0; seat < a->from.shard; seat++) {
        if (a->sources[seat] != source)
            continue;
        for (overlap o = {.bucket = -1}; next_overlap(a, seat, part, &o);) {
            const float *from = source == a->to->rank ? held[seat] + o.at : *in;
            memcpy(own + o.first - part.first, from, (size_t)o.count * sizeof *own);
            *in += source == a->to->rank ? 0 : o.count;
        }
    }
}

/* The parts of one new bucket. */
static ls_status move_bucket(const ls_reshard_args *a, const float *const *held, int bucket,
                             float *own, int64_t *counts, int64_t deadline_ns, int64_t *sent)
{
    const ls_mesh *to = a->to;
    int n = ls_mesh_ranks(to);
    ls_mesh_part part = ls_mesh_part_of(to, a->trained, bucket, to->rank);
    int64_t *in_counts = counts, *out_counts = counts + n, out_total = 0, in_total = 0;
    float *memory = NULL;
    ls_status st = LS_OK;

    for (int r = 0; r < n; r++) {
        ls_mesh_part other = ls_mesh_part_of(to, a->trained, bucket, r);
        in_counts[r] = r == to->rank ? 0 : count_from(a, to->rank, other);
        out_counts[r] = r == to->rank ? 0 : count_from(a, r, part);
        in_total += in_counts[r];
        out_total += out_counts[r];
    }
    memory = ls_mem_array((size_t)(in_total + out_total) + 2, sizeof *memory);
    if (!memory)
        return ls_fail(LS_ENOMEM, "no memory for a bucket of %lld elements on its way",
                       (long long)(in_total + out_total));
    float *packed = memory, *arrived = memory + in_total + 1;
    for (int r = 0; r < n; r++)
        if (r != to->rank)
            pack(a, held, ls_mesh_part_of(to, a->trained, bucket, r), &packed);
    if (n > 1)
        LS_TRY(st,
               ls_comm_run(a->comm,
                           &(ls_coll){.kind = LS_COLL_ALL_TO_ALL,
                                      .type = LS_F32,
                                      .in = memory,
                                      .out = arrived,
                                      .in_counts = in_counts,
                                      .out_counts = out_counts},
                           deadline_ns),
               out);
    const float *at = arrived;
    for (int r = 0; r < n; r++)
        unpack(a, r, held, part, own, &at);
    *sent += in_total * (int64_t)sizeof *memory;
out:
    ls_mem_free(memory);
    return st;
}

ls_status ls_reshard_move(const ls_reshard_args *args, const float *const *held, bool whole,
                          float *own, int64_t deadline_ns, int64_t *sent_out)
{
    const ls_mesh *to = args->to;
    int64_t *counts = ls_mem_array(2 * (size_t)ls_mesh_ranks(to), sizeof *counts), sent = 0;
    ls_status st = LS_OK;

    if (!counts)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", ls_mesh_ranks(to));
    for (int b = 0; b < ls_mesh_buckets(to, args->trained); b++) {
        ls_mesh_part part = ls_mesh_part_of(to, args->trained, b, to->rank);
        LS_TRY(st,
               move_bucket(args, held, b, own + (whole ? part.first : part.packed), counts,
                           deadline_ns, &sent),
               out);
    }
    *sent_out = sent;
out:
    ls_mem_free(counts);
    return st;
}
