/* check_mesh.c -- contradictions between options of ranks: what they exchange, what each holds, and
 * how local-SGD workers and parameter servers work. */
#include "config/check_impl.h"

#include <string.h>

static ls_status check_exchange(const ls_run *run)
{
    ls_compress compress = run->exchange.compress;
    bool forgotten = ls_check_origin(run, "exchange.compress")->source == LS_RUN_DEFAULT;
    ls_status st;

    if (compress == LS_COMPRESS_NONE && forgotten &&
        ls_check_origin(run, "exchange.topk")->source != LS_RUN_DEFAULT)
        return ls_check_clash(run, "exchange.topk", "exchange.compress", "only topk uses it");
    if (compress == LS_COMPRESS_TOPK && run->exchange.topk <= 0) {
        st = ls_check_clash(run, "exchange.compress", "exchange.topk",
                            "no share of the gradients suits every model, so choose one");
        ls_err_hint("exchange.compress: int8 sends a quarter of the bytes and stays within 2 %% of "
                    "the loss; topk does so with exchange.topk: 0.5, and falls far behind below "
                    "0.3 (docs/guide/parallel/data.md).");
        return st;
    }
    if (compress == LS_COMPRESS_NONE || run->train.reduce != LS_REDUCE_ORDERED)
        return LS_OK;
    st = ls_check_clash(run, "exchange.compress", "train.reduce",
                        "ordered sums have the same bits on any number of nodes; rounding what "
                        "nodes send to each other changes them");
    ls_err_hint("Set train.reduce: fast, or exchange.compress: none.");
    return st;
}

/* What ranks that keep only parts of gradients cannot do yet. */
static ls_status check_parts(const ls_run *run)
{
    const char *const why =
        "stages 2 and 3 plan the rounds of gradient sums once; stages 0 and 1 allow it";

    if (run->mesh.zero < 2)
        return LS_OK;
    const ls_check_row rows[] = {
        {run->mesh.balance == LS_BALANCE_AUTO, "mesh.balance", "mesh.zero", why},
        {run->batch.ramp > 0, "batch.ramp", "mesh.zero", why},
        {run->exchange.compress != LS_COMPRESS_NONE, "exchange.compress", "mesh.zero", why},
        {!ls_optimizer_is_elementwise(run->train.optimizer), "train.optimizer", "mesh.zero",
         "its update reads whole tensors; stages 0 and 1 keep tensors whole"},
    };

    return ls_check_rows(run, rows, LS_COUNT(rows));
}

/* What tensor-parallel groups do not support yet. */
static ls_status check_tp_groups(const ls_run *run)
{
    bool alone = !run->mesh.automatic && ls_check_origin(run, "mesh.tp")->source == LS_RUN_DEFAULT;

    if (alone && ls_check_origin(run, "mesh.sp")->source != LS_RUN_DEFAULT)
        return ls_check_clash(run, "mesh.sp", "mesh.tp", "it needs mesh.tp above 1");
    if (run->mesh.tp < 2)
        return LS_OK;
    const ls_check_row rows[] = {
        {run->sync != LS_SYNC_ALLREDUCE, "sync", "mesh.tp",
         "local-SGD and parameter-server workers hold whole models"},
        {!ls_optimizer_is_elementwise(run->train.optimizer), "train.optimizer", "mesh.tp",
         "its update reads whole tensors"},
        {run->mesh.balance == LS_BALANCE_AUTO, "mesh.balance", "mesh.tp",
         "only the speed of single ranks is measured"},
        {run->mesh.weights.count > 0, "mesh.weights", "mesh.tp",
         "shares are given for single ranks"},
        {run->exchange.compress != LS_COMPRESS_NONE, "exchange.compress", "mesh.tp",
         "gradients of a sharded model are not compressed yet"},
        {run->device.offload != LS_OFFLOAD_NONE, "device.offload", "mesh.tp",
         "moments of a sharded model stay in memory"},
    };

    return ls_check_rows(run, rows, LS_COUNT(rows));
}

/* Ranks that share sequences have whole chunks of them, two each. */
static ls_status check_chunks(const ls_run *run)
{
    int64_t chunks = 2 * run->mesh.cp, T = run->model.context, below = T / chunks * chunks;
    ls_status st;

    if (T % chunks == 0)
        return LS_OK;
    st = ls_check_clash(run, "model.context", "mesh.cp",
                        "a sequence is cut into 2 x mesh.cp chunks of equal length");
    if (below > 0)
        ls_err_hint("With mesh.cp: %lld, a context of %lld or %lld works.", (long long)run->mesh.cp,
                    (long long)below, (long long)(below + chunks));
    else
        ls_err_hint("With mesh.cp: %lld, a context of %lld works.", (long long)run->mesh.cp,
                    (long long)chunks);
    return st;
}

/* What they cannot do yet. */
static ls_status check_context(const ls_run *run)
{
    bool alone = !run->mesh.automatic && ls_check_origin(run, "mesh.cp")->source == LS_RUN_DEFAULT;

    if (alone && ls_check_origin(run, "mesh.keys")->source != LS_RUN_DEFAULT)
        return ls_check_clash(run, "mesh.keys", "mesh.cp", "it needs mesh.cp above 1");
    if (run->mesh.cp < 2)
        return LS_OK;
    const ls_check_row rows[] = {
        {run->sync != LS_SYNC_ALLREDUCE, "sync", "mesh.cp",
         "local-SGD and parameter-server workers have whole sequences"},
        {run->mesh.balance == LS_BALANCE_AUTO, "mesh.balance", "mesh.cp",
         "only the speed of single ranks is measured"},
        {run->mesh.weights.count > 0, "mesh.weights", "mesh.cp",
         "shares are given for single ranks"},
    };
    ls_status st = ls_check_rows(run, rows, LS_COUNT(rows));

    return st == LS_OK ? check_chunks(run) : st;
}

/* What ranks that divide experts cannot do yet. */
static ls_status check_with_experts(const ls_run *run)
{
    const ls_check_row rows[] = {
        {run->sync != LS_SYNC_ALLREDUCE, "sync", "mesh.ep",
         "local-SGD and parameter-server workers hold whole models"},
        {!ls_optimizer_is_elementwise(run->train.optimizer), "train.optimizer", "mesh.ep",
         "its update reads whole tensors"},
        {run->mesh.balance == LS_BALANCE_AUTO, "mesh.balance", "mesh.ep",
         "experts also compute tokens of other ranks, so a rank's time says little about its "
         "speed"},
        {run->exchange.compress != LS_COMPRESS_NONE, "exchange.compress", "mesh.ep",
         "gradients of a sharded model are not compressed yet"},
        {run->device.offload != LS_OFFLOAD_NONE, "device.offload", "mesh.ep",
         "moments of a sharded model stay in memory"},
        {run->heal.replay > 0, "heal.replay", "mesh.ep", "each rank has only some of the experts"},
    };

    return ls_check_rows(run, rows, LS_COUNT(rows));
}

static ls_status check_ep(const ls_run *run)
{
    int64_t ep = run->mesh.ep, E = run->model.experts, dp = run->mesh.dp;
    ls_status st;

    if (ep < 2)
        return LS_OK;
    if (E == 0)
        return ls_check_clash(run, "mesh.ep", "model.family", "it has no experts to divide");
    if (E % ep != 0) {
        st = ls_check_clash(run, "mesh.ep", "model.experts", "they cannot be divided evenly");
        ls_err_hint(
            "Each rank holds the same number of experts: choose a mesh.ep that divides %lld.",
            (long long)E);
        return st;
    }
    if (dp != LS_RUN_AUTO && dp * ls_max_i64(1, run->mesh.cp) % ep != 0) {
        st = ls_check_clash(run, "mesh.ep", "mesh.dp",
                            "experts are divided among data-parallel ranks, in groups of equal "
                            "size");
        ls_err_hint("Choose a mesh.ep that divides mesh.dp (times mesh.cp), or leave mesh.dp at "
                    "auto.");
        return st;
    }
    return check_with_experts(run);
}

/* mesh.shard: world, node or a number of ranks; and there must be something to divide. */
static ls_status check_shard(const ls_run *run)
{
    const char *text = run->mesh.shard;
    size_t digits = strspn(text, "0123456789");
    ls_status st;

    if (strcmp(text, "world") == 0)
        return LS_OK;
    if (strcmp(text, "node") != 0 && (digits == 0 || digits > 4 || text[digits])) {
        st = ls_fail(LS_EUSAGE,
                     "%s: mesh.shard is \"%s\", expected world, node or a number of ranks",
                     ls_check_origin(run, "mesh.shard")->where, text);
        ls_err_hint("node divides inside each machine and keeps copies across them.");
        return st;
    }
    if (run->mesh.zero == 0 && !run->mesh.automatic) {
        st = ls_check_clash(run, "mesh.shard", "mesh.zero", "without ZeRO nothing is divided");
        ls_err_hint("Set mesh.zero to 1, 2 or 3 (FSDP), or leave mesh.shard out.");
        return st;
    }
    if (run->exchange.compress != LS_COMPRESS_NONE)
        return ls_check_clash(run, "exchange.compress", "mesh.shard",
                              "the exchange of groups is not compressed yet; that of world is");
    return LS_OK;
}

/* Keys of one kind of sync in a file that does not say which: they were meant to do something.
 * A sync that was written switches off what stays in the file, as with LoRA. */
static ls_status check_forgotten(const ls_run *run)
{
    static const struct {
        const char *key, *why;
    } rows[] = {{"local.steps", "only sync: local has local-SGD workers"},
                {"local.delay", "only sync: local has local-SGD workers"},
                {"local.lr", "only sync: local has local-SGD workers"},
                {"local.momentum", "only sync: local has local-SGD workers"},
                {"local.compress", "only sync: local has local-SGD workers"},
                {"ps.servers", "only sync: ps has servers"},
                {"ps.staleness", "only sync: ps has servers"},
                {"ps.meet", "only sync: ps has servers"},
                {"ps.sparse", "only sync: ps has servers"}};

    if (ls_check_origin(run, "sync")->source != LS_RUN_DEFAULT)
        return LS_OK;
    for (size_t i = 0; i < LS_COUNT(rows); i++)
        if (ls_check_origin(run, rows[i].key)->source != LS_RUN_DEFAULT)
            return ls_check_clash(run, rows[i].key, "sync", rows[i].why);
    return LS_OK;
}

/* Ranks that compute by themselves, as replicas or as workers of servers. */
static ls_status check_apart(const ls_run *run)
{
    bool ps = run->sync == LS_SYNC_PS;

    const ls_check_row rows[] = {
        {run->mesh.zero > 0, "mesh.zero", "sync",
         ps ? "servers already divide the optimizer's state, and workers "
              "compute with all weights"
            : "every local-SGD worker keeps its own optimizer state"},
        {run->mesh.balance == LS_BALANCE_AUTO, "mesh.balance", "sync",
         ps ? "the share of a worker is fixed; mesh.weights sets it"
            : "the share of a local-SGD worker is fixed"},
        {run->batch.ramp > 0, "batch.ramp", "sync",
         ps ? "the share of a worker is fixed" : "the share of a local-SGD worker is fixed"},
        {run->exchange.compress != LS_COMPRESS_NONE, "exchange.compress", "sync",
         ps ? "pushes and pulls of workers are not compressed"
            : "local-SGD workers exchange no gradients; local.compress is for their weights"},
        {run->lora.rank > 0, "lora.rank", "sync",
         ps ? "servers keep all weights" : "local-SGD workers exchange all weights"},
        {run->train.freeze.count > 0, "train.freeze", "sync",
         ps ? "servers keep all weights" : "local-SGD workers exchange all weights"},
    };

    return ls_check_rows(run, rows, LS_COUNT(rows));
}

static ls_status check_local(const ls_run *run)
{
    const ls_optimizer_facts *facts = ls_optimizer_of(run->train.optimizer);

    if (run->local.delay >= run->local.steps)
        return ls_check_clash(run, "local.delay", "local.steps",
                              "one exchange must end before the next begins");
    if (facts->reach == LS_REACH_MATRIX || facts->moments < 2)
        return ls_check_clash(run, "train.optimizer", "sync",
                              "local-SGD workers save two moments of every weight");
    return LS_OK;
}

/* Moments that lie elsewhere. */
static ls_status check_offload(const ls_run *run)
{
    bool forgotten = ls_check_origin(run, "device.offload")->source == LS_RUN_DEFAULT;
    ls_status st;

    if (forgotten && ls_check_origin(run, "device.offload_to")->source != LS_RUN_DEFAULT)
        return ls_check_clash(run, "device.offload_to", "device.offload",
                              "only offload: disk uses it");
    if (run->device.offload == LS_OFFLOAD_NONE)
        return LS_OK;
    if (!ls_optimizer_is_elementwise(run->train.optimizer))
        return ls_check_clash(run, "device.offload", "train.optimizer",
                              "its update reads whole tensors, not chunks of them");
    if (run->sync != LS_SYNC_ALLREDUCE)
        return ls_check_clash(run, "device.offload", "sync",
                              "each local-SGD worker saves its own moments");
    if (run->device.offload == LS_OFFLOAD_DISK && run->device.kind == LS_DEVICE_CUDA) {
        st = ls_check_clash(run, "device.offload", "device.kind", "a GPU offloads to host memory");
        ls_err_hint("Set device.offload: host.");
        return st;
    }
    return LS_OK;
}

static ls_status check_ps(const ls_run *run)
{
    ls_status st;

    if (!ls_optimizer_is_elementwise(run->train.optimizer))
        return ls_check_clash(
            run, "train.optimizer", "sync",
            "a server holds parts of tensors, and its update reads whole tensors");
    if (run->train.reduce != LS_REDUCE_ORDERED)
        return LS_OK;
    st = ls_check_clash(run, "train.reduce", "sync",
                        "ordered sums have the same bits on any number of ranks; servers add the "
                        "gradients of whole ranks");
    ls_err_hint("Set train.reduce: fast, or sync: allreduce.");
    return st;
}

static ls_status check_heal(const ls_run *run)
{
    if (run->heal.heartbeat * 2 > run->heal.dead)
        return ls_check_clash(
            run, "heal.dead", "heal.heartbeat",
            "a machine must have time for two heartbeats before it counts as lost");
    if (run->heal.max_nodes > 0 && run->heal.max_nodes < run->heal.min_nodes)
        return ls_check_clash(run, "heal.max_nodes", "heal.min_nodes",
                              "the run could not go on with so few machines");
    return LS_OK;
}

static ls_status check_sync(const ls_run *run)
{
    ls_status st;

    LS_TRY(st, check_forgotten(run), out);
    if (run->sync == LS_SYNC_ALLREDUCE)
        goto out;
    LS_TRY(st, check_apart(run), out);
    st = run->sync == LS_SYNC_LOCAL ? check_local(run) : check_ps(run);
out:
    return st;
}

/* Keys of a pipeline where there is none, or which contradict each other. */
static ls_status check_schedule(const ls_run *run)
{
    static const char *const keys[] = {"mesh.schedule", "mesh.chunks"};
    bool none = run->mesh.pp < 2 && !run->mesh.automatic &&
                ls_check_origin(run, "mesh.pp")->source == LS_RUN_DEFAULT;

    for (size_t i = 0; i < LS_COUNT(keys) && none; i++)
        if (ls_check_origin(run, keys[i])->source != LS_RUN_DEFAULT) {
            ls_status st =
                ls_check_clash(run, keys[i], "mesh.pp", "without a pipeline it has no meaning");
            ls_err_hint("Set mesh.pp to 2 or more, or leave %s out.", keys[i]);
            return st;
        }
    if (run->mesh.pp > 1 && run->mesh.chunks > 1 && run->mesh.schedule != LS_PP_INTERLEAVED) {
        ls_status st = ls_check_clash(run, "mesh.chunks", "mesh.schedule",
                                      "only interleaved schedules have several chunks");
        ls_err_hint("Set mesh.schedule: interleaved, or leave mesh.chunks out.");
        return st;
    }
    return LS_OK;
}

/* What the ranks of a pipeline cannot do yet. */
static ls_status check_pipeline(const ls_run *run)
{
    const struct {
        const char *key, *why, *hint;
        bool asked;
    } rows[] = {
        {"mesh.shard", "all pipelines form one group",
         "Leave mesh.shard out: with mesh.pp all pipelines divide what mesh.zero says.",
         strcmp(run->mesh.shard, "world") != 0},
        {"mesh.balance", "moving slices would change the tables of the pipelines",
         "Set mesh.balance: off.", run->mesh.balance == LS_BALANCE_AUTO},
        {"mesh.weights", "pipelines take equal parts of a batch", "Leave mesh.weights out.",
         run->mesh.weights.count > 0},
        {"sync", "local-SGD and parameter-server workers compute all layers",
         "sync: allreduce works with mesh.pp.", run->sync != LS_SYNC_ALLREDUCE},
        {"exchange.compress", "the exchange between pipelines is not compressed yet",
         "Set exchange.compress: none, or mesh.pp: 1.", run->exchange.compress != LS_COMPRESS_NONE},
        {"train.optimizer", "its update reads tensors of all stages at once",
         "Set train.optimizer: adamw, or mesh.pp: 1.",
         !ls_optimizer_is_elementwise(run->train.optimizer)},
        {"device.offload", "a pipeline stage keeps its moments in memory windows",
         "Set device.offload: none; mesh.pp already divides moments by stages.",
         run->device.offload != LS_OFFLOAD_NONE},
    };

    for (size_t i = 0; i < LS_COUNT(rows) && run->mesh.pp > 1; i++)
        if (rows[i].asked) {
            ls_status st = ls_check_clash(run, rows[i].key, "mesh.pp", rows[i].why);
            ls_err_hint("%s", rows[i].hint);
            return st;
        }
    return LS_OK;
}

/* What GPUs do not do where ranks have parts of a model, or of sequences. */
static ls_status check_gpus(const ls_run *run)
{
    bool tp = run->mesh.tp > 1, pp = run->mesh.pp > 1, cp = run->mesh.cp > 1;
    bool parts = tp || pp || run->mesh.ep > 1;
    const char *axis = tp ? "mesh.tp" : pp ? "mesh.pp" : cp ? "mesh.cp" : "mesh.ep";
    const struct {
        const char *key, *axis, *why, *hint;
        bool asked;
    } rows[] = {
        {"device.graphs", axis, "ranks exchange tensors inside a pass, and the host does that",
         "Leave device.graphs out.", run->device.graphs == LS_GRAPHS_ON},
        {"precision", axis, "the fp8 scale of a tensor needs the whole tensor in one call",
         "precision: bf16 works.", parts && run->precision == LS_PRECISION_FP8},
        {"eval.sample", axis, "no GPU holds the whole model",
         "Leave eval.sample out; lineshaft generate writes text from the checkpoints.",
         parts && run->eval.sample && *run->eval.sample},
    };

    for (size_t i = 0; i < LS_COUNT(rows) && run->device.kind == LS_DEVICE_CUDA && (parts || cp);
         i++)
        if (rows[i].asked) {
            ls_status st = ls_check_clash(run, rows[i].key, rows[i].axis, rows[i].why);
            ls_err_hint("%s", rows[i].hint);
            return st;
        }
    return LS_OK;
}

/* Copies that were asked for, but have no use or cannot be made. */
static ls_status check_buddies(const ls_run *run)
{
    if (run->heal.buddies != LS_REPLICA_PEERS_ON)
        return LS_OK;
    const ls_check_row rows[] = {
        {run->mesh.zero == 0, "heal.buddies", "mesh.zero",
         "nothing is divided, so every rank is a copy of every other"},
        {run->heal.mode == LS_HEAL_OFF, "heal.buddies", "heal.mode",
         "copies are only needed to go on when a rank dies"},
        {((run->mesh.tp > 1 && run->mesh.pp < 2) || run->mesh.ep > 1) && run->mesh.zero > 1,
         "heal.buddies", "mesh.zero",
         "shards of tensor-parallel groups without a pipeline are copied with "
         "mesh.zero: 1 only"},
        {(run->mesh.tp > 1 || run->mesh.ep > 1) && strcmp(run->mesh.shard, "world") != 0,
         "heal.buddies", "mesh.shard", "groups of ranks that hold the same shard keep no copies"},
        {run->device.kind == LS_DEVICE_CUDA, "heal.buddies", "device.kind",
         "a copy lies in host memory, where a GPU updates nothing"},
        {run->device.offload == LS_OFFLOAD_DISK, "heal.buddies", "device.offload",
         "a rank without memory for its own moments has none for a copy"},
    };

    return ls_check_rows(run, rows, LS_COUNT(rows));
}

/* Leaves that are made again must have the same bits, and be in reach. */
static ls_status check_replay(const ls_run *run)
{
    if (run->heal.replay == 0)
        return LS_OK;
    const ls_check_row rows[] = {
        {run->train.reduce != LS_REDUCE_ORDERED, "heal.replay", "train.reduce",
         "only in ordered mode a leaf has the same bits wherever it is computed"},
        {run->mesh.zero >= 2, "heal.replay", "mesh.zero",
         "with stages 2 and 3 no rank keeps the gradient of a leaf"},
        {run->device.kind == LS_DEVICE_CUDA, "heal.replay", "device.kind",
         "gradients are compared in host memory"},
        {run->sync != LS_SYNC_ALLREDUCE, "heal.replay", "sync", "each rank has its own weights"},
        {run->mesh.pp > 1, "heal.replay", "mesh.pp", "each rank has only some of the layers"},
        {run->mesh.tp > 1, "heal.replay", "mesh.tp", "each rank has only a part of every layer"},
        {run->mesh.cp > 1, "heal.replay", "mesh.cp", "each rank has only a part of a sequence"},
    };

    return ls_check_rows(run, rows, LS_COUNT(rows));
}

/* heal.quorum: what decides which job may write the run. */
static ls_status check_quorum(const ls_run *run)
{
    const ls_run_list *urls = &run->heal.etcd;
    const char *where = ls_check_origin(run, "heal.etcd")->where;
    ls_status st;

    /* embedded that was written switches off what stays in the file. */
    if (run->heal.quorum == LS_HEAL_EMBEDDED)
        return urls->count > 0 && ls_check_origin(run, "heal.quorum")->source == LS_RUN_DEFAULT
                   ? ls_check_clash(run, "heal.etcd", "heal.quorum", "no etcd server is used")
                   : LS_OK;
    if (urls->count == 0) {
        st = ls_check_clash(run, "heal.quorum", "heal.etcd", "an etcd server is needed");
        ls_err_hint("Set heal.etcd to the client URLs of etcd, such as [http://10.0.0.1:2379].");
        return st;
    }
    if (urls->count > LS_RUN_ETCD)
        return ls_fail(LS_EUSAGE, "%s: heal.etcd has %d URLs; %d are enough", where, urls->count,
                       LS_RUN_ETCD);
    for (int i = 0; i < urls->count; i++) {
        const char *url = urls->items[i];
        if ((strncmp(url, "http://", 7) == 0 && url[7]) ||
            (strncmp(url, "https://", 8) == 0 && url[8]))
            continue;
        st = ls_fail(LS_EUSAGE, "%s: heal.etcd has \"%.80s\", which is no URL", where, url);
        ls_err_hint("Write http://HOST:PORT or https://HOST:PORT.");
        return st;
    }
    return LS_OK;
}

ls_status ls_check_mesh(const ls_run *run)
{
    ls_status st = LS_OK;

    LS_TRY(st, check_schedule(run), out);
    LS_TRY(st, check_pipeline(run), out);
    LS_TRY(st, check_exchange(run), out);
    LS_TRY(st, check_parts(run), out);
    LS_TRY(st, check_shard(run), out);
    LS_TRY(st, check_tp_groups(run), out);
    LS_TRY(st, ls_check_sharding(run), out);
    LS_TRY(st, check_context(run), out);
    LS_TRY(st, check_gpus(run), out);
    LS_TRY(st, check_ep(run), out);
    LS_TRY(st, check_sync(run), out);
    LS_TRY(st, check_offload(run), out);
    LS_TRY(st, check_buddies(run), out);
    LS_TRY(st, check_replay(run), out);
    LS_TRY(st, check_quorum(run), out);
    st = check_heal(run);
out:
    return st;
}
