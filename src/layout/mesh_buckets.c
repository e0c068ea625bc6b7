/* mesh_buckets.c -- which elements each rank owns: buckets, parts, pieces.
 *
 * Worked example: 10 norm blocks of B elements, 4 ranks in 2 shard groups, mesh.bucket 2 (two
 * blocks of a bucket for each rank):
 *
 *     bucket           0: blocks 0..7            1: blocks 8 9
 *     shard rank 0     part 0..3                 part 8 9
 *       group 0, 1       pieces 0 1 and 2 3        pieces 8 and 9
 *     shard rank 1     part 4..7                 nothing: all padding
 *     packed           shard rank 0 keeps 0 1 2 3 8 9, one behind the other
 *
 * Parts of a bucket are equal, so that collectives can be: the last ones may have padding. There are
 * never more than LS_MESH_BUCKETS buckets, because sets of buckets are one 64-bit word. */
#include "layout/mesh.h"

#include "kernel/kernel.h"

/* Elements of every bucket but the last. */
static int64_t bucket_size(const ls_mesh *mesh, int64_t trained)
{
    int64_t n = ls_mesh_owners(mesh), unit = n * LS_NORM_BLOCK;
    int64_t units = (trained + unit - 1) / unit;

    if (n == 1 || mesh->bucket == 0 || units <= mesh->bucket)
        return ls_max_i64(1, trained);
    return unit * ls_max_i64(mesh->bucket, (units + LS_MESH_BUCKETS - 1) / LS_MESH_BUCKETS);
}

int ls_mesh_buckets(const ls_mesh *mesh, int64_t trained)
{
    int64_t size = bucket_size(mesh, trained);

    return (int)ls_max_i64(1, (trained + size - 1) / size);
}

ls_mesh_part ls_mesh_bucket(const ls_mesh *mesh, int64_t trained, int i)
{
    int64_t n = ls_mesh_owners(mesh), shard_replicas = ls_mesh_shard_groups(mesh);
    int64_t size = bucket_size(mesh, trained), first = i * size;
    int64_t count = ls_min_i64(trained, first + size) - first;
    int64_t blocks = (count + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;

    return (ls_mesh_part){.first = first,
                          .count = count,
                          .each = n == 1 ? count
                                         : (blocks + n - 1) / n * LS_NORM_BLOCK * shard_replicas,
                          .packed = i == 0 ? 0 : i * (size / n * shard_replicas)};
}

ls_mesh_part ls_mesh_part_of(const ls_mesh *mesh, int64_t trained, int i, int rank)
{
    ls_mesh_part p = ls_mesh_bucket(mesh, trained, i);
    int64_t end = p.first + p.count;

    p.first = ls_min_i64(end, p.first + p.each * ls_mesh_shard_rank(mesh, rank));
    p.count = ls_min_i64(end, p.first + p.each) - p.first;
    return p;
}

ls_mesh_part ls_mesh_piece_of(const ls_mesh *mesh, int64_t trained, int i, int rank)
{
    ls_mesh_part p = ls_mesh_part_of(mesh, trained, i, rank);
    int64_t end = p.first + p.count, shard_replicas = ls_mesh_shard_groups(mesh);

    p.each /= shard_replicas;
    p.first = ls_min_i64(end, p.first + p.each * ls_mesh_shard_group(mesh, rank));
    p.count = ls_min_i64(end, p.first + p.each) - p.first;
    return p;
}

int64_t ls_mesh_own(const ls_mesh *mesh, int64_t trained, int rank)
{
    ls_mesh_part last = ls_mesh_part_of(mesh, trained, ls_mesh_buckets(mesh, trained) - 1, rank);

    return last.packed + last.count;
}

int64_t ls_mesh_bucket_blocks(const ls_mesh *mesh, int64_t bytes)
{
    int64_t block = ls_mesh_ranks(mesh) * LS_NORM_BLOCK * (int64_t)sizeof(float);

    return ls_max_i64(1, bytes / block + (bytes % block != 0));
}
