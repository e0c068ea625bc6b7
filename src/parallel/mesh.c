/* mesh.c -- the arithmetic of who has what. */
#include "parallel/mesh.h"

#include "kernel/kernel.h"

/* What stands in the way of several ranks, or NULL. */
static const char *cannot_share(const ls_run *run)
{
    if (run->device.kind == LS_DEVICE_CUDA)
        return "ranks exchange gradients in the memory of the host, and device.kind is cuda";
    return NULL;
}

/* ZeRO divides what every rank updates; adapters and frozen parameters leave little to divide. */
static const char *cannot_divide(const ls_run *run)
{
    return run->lora.rank > 0            ? "lora.rank leaves few parameters to update"
           : run->train.freeze.count > 0 ? "train.freeze leaves parameters that are not updated"
                                         : NULL;
}

ls_status ls_mesh_init(ls_mesh *mesh, const ls_run *run, int ranks, int rank)
{
    int64_t dp = run->mesh.dp == LS_RUN_AUTO ? ranks : run->mesh.dp;
    const char *why = ranks > 1 ? cannot_share(run) : NULL;

    if (dp != ranks) {
        ls_fail(LS_EUSAGE, "mesh.dp is %lld, but the run has %d rank%s", (long long)dp, ranks,
                ranks == 1 ? "" : "s");
        ls_err_hint("Give -n %lld, or leave mesh.dp at auto.", (long long)dp);
        return LS_EUSAGE;
    }
    if (why) {
        ls_fail(LS_EUSAGE, "cannot train with %d ranks: %s", ranks, why);
        ls_err_hint("Set device.kind: cpu, or leave out -n.");
        return LS_EUSAGE;
    }
    why = run->mesh.zero > 0 ? cannot_divide(run) : NULL;
    if (why) {
        ls_fail(LS_EUSAGE, "mesh.zero cannot be %lld: %s", (long long)run->mesh.zero, why);
        ls_err_hint("mesh.zero: 0 works on any number of ranks.");
        return LS_EUSAGE;
    }
    *mesh = (ls_mesh){
        .ranks = ranks, .rank = rank, .zero = ranks > 1 ? (int)run->mesh.zero : 0, .local = ranks};
    return LS_OK;
}

int ls_mesh_places(ls_mesh_place *places, int ranks)
{
    int nodes = 0;

    for (int r = 0; r < ranks; r++)
        places[r].ranks = 0; /* not seated yet */
    for (int r = 0; r < ranks; r++) {
        int node = places[r].node, n = 0;
        if (places[r].ranks > 0)
            continue;
        for (int q = r; q < ranks; q++)
            n += places[q].ranks == 0 && places[q].node == node;
        for (int q = r, seat = 0; seat < n; q++)
            if (places[q].ranks == 0 && places[q].node == node)
                places[q] = (ls_mesh_place){.node = nodes, .seat = seat++, .ranks = n};
        nodes++;
    }
    return nodes;
}

ls_ordered_run ls_mesh_leaves(const ls_mesh *mesh, int64_t leaves, int rank)
{
    int64_t n = ls_mesh_ranks(mesh), each = leaves / n, more = leaves % n;
    int64_t first = each * rank + ls_min_i64(rank, more);

    return (ls_ordered_run){.first = first, .count = each + (rank < more)};
}

/* Elements of a bucket, but for the last. */
static int64_t bucket_size(const ls_mesh *mesh, int64_t trained)
{
    int64_t n = ls_mesh_ranks(mesh), unit = n * LS_NORM_BLOCK;
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
    int64_t n = ls_mesh_ranks(mesh), size = bucket_size(mesh, trained), first = i * size;
    int64_t count = ls_min_i64(trained, first + size) - first;
    int64_t blocks = (count + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;

    return (ls_mesh_part){.first = first,
                          .count = count,
                          .each = n == 1 ? count : (blocks + n - 1) / n * LS_NORM_BLOCK,
                          .packed = i == 0 ? 0 : i * (size / n)};
}

ls_mesh_part ls_mesh_part_of(const ls_mesh *mesh, int64_t trained, int i, int rank)
{
    ls_mesh_part p = ls_mesh_bucket(mesh, trained, i);
    int64_t end = p.first + p.count;

    p.first = ls_min_i64(end, p.first + p.each * rank);
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
