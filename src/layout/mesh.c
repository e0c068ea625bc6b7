/* mesh.c -- which meshes ranks can form, and the smaller meshes inside of one.
 *
 * A small mesh is what most of the program looks at: a stage, a slice, the replicas. It has fewer
 * axes than the whole, so code that sums over replicas knows nothing of tp groups or pipelines.
 * Leaves are divided in mesh_leaves.c, elements in mesh_buckets.c. */
#include "layout/mesh.h"

#include <stdlib.h>
#include <string.h>

/* What ranks cannot do on GPUs, because no rank reaches the memory of another one's. */
static ls_status check_gpu(const ls_run *run, int ranks)
{
    if (run->device.kind != LS_DEVICE_CUDA || ranks < 2)
        return LS_OK;
    if (run->sync == LS_SYNC_LOCAL) {
        ls_fail(LS_EUSAGE, "sync cannot be local with device.kind: cuda: replicas agree on weights "
                           "in the memory of the host");
        ls_err_hint("sync: allreduce works on GPUs; device.kind: cpu trains replicas.");
        return LS_EUSAGE;
    }
    if (run->mesh.zero >= 2 && run->device.graphs == LS_GRAPHS_ON) {
        ls_fail(LS_EUSAGE,
                "device.graphs cannot be on with mesh.zero: %lld: ranks exchange gradients inside "
                "of a pass, and the host does that",
                (long long)run->mesh.zero);
        ls_err_hint("Leave device.graphs out.");
        return LS_EUSAGE;
    }
    if (run->mesh.zero == 3 && run->eval.sample && *run->eval.sample) {
        ls_fail(LS_EUSAGE, "eval.sample cannot be used with mesh.zero: 3 and device.kind: cuda: no "
                           "GPU has the whole model");
        ls_err_hint("Leave eval.sample out; lineshaft generate writes text from the checkpoints.");
        return LS_EUSAGE;
    }
    if (run->mesh.zero < 2 || run->mesh.pp < 2)
        return LS_OK;
    ls_fail(LS_EUSAGE,
            "mesh.zero cannot be %lld with mesh.pp and device.kind: cuda: pipelines exchange "
            "what they divide of a stage in the memory of the host",
            (long long)run->mesh.zero);
    ls_err_hint("mesh.zero: 1 divides the moments of a stage, on GPUs too; without mesh.pp 2 and 3 "
                "work there.");
    return LS_EUSAGE;
}

/* ZeRO divides what every rank updates; adapters and frozen parameters leave little to divide. */
static const char *cannot_divide(const ls_run *run)
{
    return run->lora.rank > 0            ? "lora.rank leaves few parameters to update"
           : run->train.freeze.count > 0 ? "train.freeze leaves parameters that are not updated"
                                         : NULL;
}

/* Each worker (sync: local, ps) needs something to learn from in every step. */
static ls_status check_workers(const ls_run *run, int ranks)
{
    bool ordered = run->train.reduce == LS_REDUCE_ORDERED, ps = run->sync == LS_SYNC_PS;
    int64_t leaves = run->batch.sequences / (ordered ? run->batch.leaf : 1);

    if (ranks < 2) {
        ls_fail(LS_EUSAGE, "sync is %s, but the run has 1 rank: there is nobody to %s",
                ps ? "ps" : "local", ps ? "serve" : "agree with");
        ls_err_hint("Give -n 2 or more, or set sync: allreduce.");
        return LS_EUSAGE;
    }
    if (ranks <= leaves)
        return LS_OK;
    ls_fail(LS_EUSAGE, "sync is %s, but %d ranks cannot each have one of %lld %s",
            ps ? "ps" : "local", ranks, (long long)leaves,
            ordered ? "leaves (batch.sequences / batch.leaf)" : "sequences (batch.sequences)");
    ls_err_hint("Take at most %lld rank%s%s.", (long long)leaves, leaves == 1 ? "" : "s",
                ordered && run->batch.leaf > 1 ? ", or lower batch.leaf" : "");
    return LS_EUSAGE;
}

/* Servers are ranks, and a server listens to all of them at a time. */
static ls_status check_servers(const ls_run *run, int ranks)
{
    if (ranks > LS_MESH_WORKERS) {
        ls_fail(LS_EUSAGE, "sync is ps, but %d ranks are more than the %d that a server listens to",
                ranks, LS_MESH_WORKERS);
        ls_err_hint("Take fewer ranks, or set sync: allreduce.");
        return LS_EUSAGE;
    }
    if (run->ps.servers == LS_RUN_AUTO || run->ps.servers <= ranks)
        return LS_OK;
    ls_fail(LS_EUSAGE, "ps.servers is %lld, but the run has %d ranks", (long long)run->ps.servers,
            ranks);
    ls_err_hint("Servers are ranks: give -n %lld or more, or leave ps.servers at auto.",
                (long long)run->ps.servers);
    return LS_EUSAGE;
}

/* The axes of a run that are wider than one, for messages: "mesh.pp is 2 and mesh.tp 2". */
typedef struct axes {
    int64_t width; /* their product */
    char text[128], others[64];
} axes;

static void add_axis(axes *a, const char *name, int64_t width, bool last)
{
    size_t used = strlen(a->text), more = strlen(a->others);

    if (width < 2)
        return;
    snprintf(a->text + used, sizeof a->text - used, "%smesh.%s%s %lld",
             used == 0 ? ""
             : last    ? " and "
                       : ", ",
             name, used ? "" : " is", (long long)width);
    snprintf(a->others + more, sizeof a->others - more, "%smesh.%s", more ? " or " : "", name);
    a->width *= width;
}

/* The product of the axes divides the number of ranks. */
static ls_status check_groups(const ls_run *run, int ranks)
{
    int64_t dp = run->mesh.dp;
    axes a = {.width = 1};

    add_axis(&a, "pp", run->mesh.pp, false);
    add_axis(&a, "cp", run->mesh.cp, dp == LS_RUN_AUTO && run->mesh.tp < 2);
    add_axis(&a, "tp", run->mesh.tp, dp == LS_RUN_AUTO);
    if (a.width < 2 || (dp == LS_RUN_AUTO ? ranks % a.width == 0 : dp * a.width == ranks))
        return LS_OK;
    if (dp == LS_RUN_AUTO) {
        int64_t least = ls_max_i64(1, ranks / a.width) * a.width;
        ls_fail(LS_EUSAGE, "%s, but the run has %d rank%s, which cannot be grouped so", a.text,
                ranks, ranks == 1 ? "" : "s");
        ls_err_hint("Give -n %lld or -n %lld, or another %s.", (long long)least,
                    (long long)(least + a.width), a.others);
    } else {
        ls_fail(LS_EUSAGE, "%s and mesh.dp %lld, but the run has %d rank%s: it needs %lld", a.text,
                (long long)dp, ranks, ranks == 1 ? "" : "s", (long long)(a.width * dp));
        ls_err_hint("Give -n %lld, or leave mesh.dp at auto.", (long long)(a.width * dp));
    }
    return LS_EUSAGE;
}

/* Ranks that divide experts are data-parallel ranks; with mesh.cp whole cp groups, or parts of one. */
static ls_status check_experts(const ls_run *run, int ranks)
{
    int64_t beside = ls_max_i64(1, run->mesh.pp) * ls_max_i64(1, run->mesh.tp);
    int64_t ep = run->mesh.ep, pipelines = ranks / beside, each = ep;

    if (pipelines % ep == 0)
        return LS_OK;
    while (run->mesh.cp > 1 && each % run->mesh.cp != 0) /* whole cp groups */
        each += ep;
    int64_t least = ls_max_i64(1, pipelines / each) * each * beside;
    ls_fail(LS_EUSAGE,
            "mesh.ep is %lld, but the run has %lld data-parallel %s%s, which cannot be grouped so",
            (long long)ep, (long long)pipelines,
            run->mesh.pp > 1   ? "pipeline"
            : run->mesh.tp > 1 ? "tensor-parallel group"
                               : "rank",
            pipelines == 1 ? "" : "s");
    ls_err_hint("Give -n %lld or -n %lld, or another mesh.ep.", (long long)least,
                (long long)(least + each * beside));
    return LS_EUSAGE;
}

/* Some of the ranks, as a mesh of their own. */
static ls_mesh among(const ls_mesh *mesh, int ranks, int rank)
{
    ls_mesh some = *mesh;

    some.ranks = ranks;
    some.rank = rank;
    some.pp = some.tp = some.cp = some.ep = 0;
    some.places = NULL;
    some.nodes = 0;
    some.bucket = 0;
    return some;
}

ls_mesh ls_mesh_stage(const ls_mesh *mesh)
{
    ls_mesh stage = among(mesh, ls_mesh_pipelines(mesh), ls_mesh_pipeline(mesh, mesh->rank));

    stage.cp = mesh->cp;
    return stage;
}

ls_mesh ls_mesh_slice(const ls_mesh *mesh)
{
    int tp = ls_mesh_tp(mesh);
    ls_mesh slice = among(mesh, ls_mesh_ranks(mesh) / tp, mesh->rank / tp);

    slice.pp = mesh->pp;
    slice.cp = mesh->cp;
    slice.ep = mesh->ep;
    if (slice.ranks < 2)
        slice.zero = 0;
    return slice;
}

ls_mesh ls_mesh_of_replicas(const ls_mesh *mesh)
{
    ls_mesh slice = ls_mesh_slice(mesh), replicas = slice;

    replicas.ranks = ls_mesh_ranks(&slice) / ls_mesh_ep(&slice);
    replicas.rank = slice.rank / ls_mesh_ep(&slice);
    replicas.ep = 0;
    if (slice.ep > 1) /* the ranks of a cp group are not side by side there */
        replicas.cp = 0;
    if (ls_mesh_pipelines(&replicas) < 2)
        replicas.zero = 0;
    return replicas;
}

ls_status ls_mesh_init(ls_mesh *mesh, const ls_run *run, int ranks, int rank)
{
    int64_t dp = run->mesh.dp == LS_RUN_AUTO ? ranks : run->mesh.dp;
    const char *why;

    if (check_groups(run, ranks) != LS_OK)
        return LS_EUSAGE;
    if (dp != ranks && run->mesh.pp < 2 && run->mesh.tp < 2 && run->mesh.cp < 2) {
        ls_fail(LS_EUSAGE, "mesh.dp is %lld, but the run has %d rank%s", (long long)dp, ranks,
                ranks == 1 ? "" : "s");
        ls_err_hint("Give -n %lld, or leave mesh.dp at auto.", (long long)dp);
        return LS_EUSAGE;
    }
    if (run->mesh.ep > 1 && check_experts(run, ranks) != LS_OK)
        return LS_EUSAGE;
    if (check_gpu(run, ranks) != LS_OK)
        return LS_EUSAGE;
    why = run->mesh.zero > 0 ? cannot_divide(run) : NULL;
    if (why) {
        ls_fail(LS_EUSAGE, "mesh.zero cannot be %lld: %s", (long long)run->mesh.zero, why);
        ls_err_hint("mesh.zero: 0 works on any number of ranks.");
        return LS_EUSAGE;
    }
    if (ranks > LS_MESH_RANKS)
        return ls_fail(LS_EUSAGE, "%d ranks are more than %d", ranks, LS_MESH_RANKS);
    if (run->mesh.weights.count > 0 && run->mesh.weights.count != ranks) {
        ls_fail(LS_EUSAGE, "mesh.weights has %d number%s, but the run has %d rank%s",
                run->mesh.weights.count, run->mesh.weights.count == 1 ? "" : "s", ranks,
                ranks == 1 ? "" : "s");
        ls_err_hint("Give one weight per rank, or leave mesh.weights out.");
        return LS_EUSAGE;
    }
    if (run->sync != LS_SYNC_ALLREDUCE && check_workers(run, ranks) != LS_OK)
        return LS_EUSAGE;
    if (run->sync == LS_SYNC_PS && check_servers(run, ranks) != LS_OK)
        return LS_EUSAGE;
    *mesh = (ls_mesh){.ranks = ranks,
                      .rank = rank,
                      .zero = ranks > 1 ? (int)run->mesh.zero : 0,
                      .pp = run->mesh.pp > 1 ? (int)run->mesh.pp : 0,
                      .tp = run->mesh.tp > 1 ? (int)run->mesh.tp : 0,
                      .cp = run->mesh.cp > 1 ? (int)run->mesh.cp : 0,
                      .ep = run->mesh.ep > 1 ? (int)run->mesh.ep : 0,
                      .local = ranks,
                      .weights = run->mesh.weights.count > 0 ? run->mesh.weights.items : NULL,
                      .balance = ranks > 1 && run->mesh.balance == LS_BALANCE_AUTO,

                      .independent = run->sync != LS_SYNC_ALLREDUCE,
                      .servers = run->sync != LS_SYNC_PS          ? 0
                                 : run->ps.servers == LS_RUN_AUTO ? ranks
                                                                  : (int)run->ps.servers};
    return LS_OK;
}

/* --- shard groups ----------------------------------------------------------------------------- */

int ls_mesh_shard_ranks(const ls_mesh *mesh)
{
    return mesh && mesh->shard > 0 ? mesh->shard : ls_mesh_ranks(mesh);
}

int ls_mesh_shard_groups(const ls_mesh *mesh)
{
    return ls_mesh_ranks(mesh) / ls_mesh_shard_ranks(mesh);
}

int ls_mesh_shard_rank(const ls_mesh *mesh, int rank)
{
    return mesh->by_node ? mesh->places[rank].seat : rank % ls_mesh_shard_ranks(mesh);
}

int ls_mesh_shard_group(const ls_mesh *mesh, int rank)
{
    return mesh->by_node ? mesh->places[rank].node : rank / ls_mesh_shard_ranks(mesh);
}

/* The sizes of groups next to one that does not work: world always does. */
static void hint_sizes(int ranks, int64_t asked)
{
    int below = 0, above = ranks;

    for (int n = 2; n < ranks; n++) {
        if (ranks % n == 0 && n < asked)
            below = n;
        if (ranks % n == 0 && n > asked && above == ranks)
            above = n;
    }
    if (below && above < ranks)
        ls_err_hint("With %d ranks mesh.shard: %d and mesh.shard: %d work, and mesh.shard: world.",
                    ranks, below, above);
    else if (below || above < ranks)
        ls_err_hint("With %d ranks mesh.shard: %d works, and mesh.shard: world.", ranks,
                    below ? below : above);
    else
        ls_err_hint("With %d ranks mesh.shard: world works.", ranks);
}

/* Each node must have as many ranks, and more than one. */
static ls_status shard_by_node(ls_mesh *mesh)
{
    int least = mesh->ranks, most = mesh->ranks;

    for (int r = 0; r < mesh->ranks && mesh->nodes > 1; r++) {
        int n = mesh->places[r].ranks;
        least = r == 0 || n < least ? n : least;
        most = r == 0 || n > most ? n : most;
    }
    if (least != most) {
        ls_fail(LS_EUSAGE,
                "mesh.shard cannot be node: nodes have %d to %d ranks, and groups must be equal",
                least, most);
        hint_sizes(mesh->ranks, least);
        return LS_EUSAGE;
    }
    if (least == 1) {
        ls_fail(LS_EUSAGE, "mesh.shard cannot be node: each node has one rank, which has nobody "
                           "to divide with");
        hint_sizes(mesh->ranks, 1);
        return LS_EUSAGE;
    }
    mesh->by_node = mesh->nodes > 1;
    mesh->shard = least;
    return LS_OK;
}

ls_status ls_mesh_set_shard(ls_mesh *mesh, const ls_run *run)
{
    const char *text = run->mesh.shard;
    int64_t n = strtoll(text, NULL, 10); /* config has checked it */

    if (mesh->ranks < 2 || strcmp(text, "world") == 0)
        return LS_OK;
    if (strcmp(text, "node") == 0)
        return shard_by_node(mesh);
    if (n >= 2 && mesh->ranks % n == 0) {
        mesh->shard = (int)n;
        return LS_OK;
    }
    if (n < 2)
        ls_fail(LS_EUSAGE, "mesh.shard cannot be %s: a rank alone has nobody to divide with", text);
    else
        ls_fail(LS_EUSAGE, "mesh.shard cannot be %s: %d ranks cannot be grouped by %s", text,
                mesh->ranks, text);
    hint_sizes(mesh->ranks, n);
    return LS_EUSAGE;
}

/* --- places ------------------------------------------------------------------------------------ */

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
