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

/* Each replica needs something to learn from in every step. */
static ls_status check_replicas(const ls_run *run, int ranks)
{
    bool ordered = run->train.reduce == LS_REDUCE_ORDERED;
    int64_t leaves = run->batch.sequences / (ordered ? run->batch.leaf : 1);

    if (ranks < 2) {
        ls_fail(LS_EUSAGE, "sync is local, but the run has 1 rank: there is nobody to agree with");
        ls_err_hint("Give -n 2 or more, or set sync: allreduce.");
        return LS_EUSAGE;
    }
    if (ranks <= leaves)
        return LS_OK;
    ls_fail(LS_EUSAGE, "sync is local, but %d ranks cannot each have one of %lld %s", ranks,
            (long long)leaves,
            ordered ? "leaves (batch.sequences / batch.leaf)" : "sequences (batch.sequences)");
    ls_err_hint("Take at most %lld ranks%s.", (long long)leaves,
                ordered && run->batch.leaf > 1 ? ", or lower batch.leaf" : "");
    return LS_EUSAGE;
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
    if (run->sync == LS_SYNC_LOCAL && check_replicas(run, ranks) != LS_OK)
        return LS_EUSAGE;
    *mesh = (ls_mesh){.ranks = ranks,
                      .rank = rank,
                      .zero = ranks > 1 ? (int)run->mesh.zero : 0,
                      .local = ranks,
                      .replicas = run->sync == LS_SYNC_LOCAL};
    return LS_OK;
}

ls_ordered_run ls_mesh_leaves(const ls_mesh *mesh, int64_t leaves, int rank)
{
    int64_t n = ls_mesh_ranks(mesh), each = leaves / n, more = leaves % n;
    int64_t first = each * rank + ls_min_i64(rank, more);

    return (ls_ordered_run){.first = first, .count = each + (rank < more)};
}

ls_mesh_part ls_mesh_part_of(const ls_mesh *mesh, int64_t trained, int rank)
{
    int64_t n = ls_mesh_ranks(mesh);
    int64_t blocks = (trained + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    int64_t each = n == 1 ? trained : (blocks + n - 1) / n * LS_NORM_BLOCK;
    int64_t first = ls_min_i64(trained, each * rank);

    return (ls_mesh_part){
        .first = first, .count = ls_min_i64(trained, first + each) - first, .each = each};
}
