/* memory.c -- the ledger of a training run.
 *
 * Each line mirrors one allocation of train/ or model/, computed by the same functions, so
 * predicted and used bytes cannot drift apart unnoticed: a test compares the sum with the device's
 * counter. On a device with memory of its own the lines of the host are separate and do not count
 * against the device.
 *
 * Worked example: GPT-2 of 124 M parameters, one CPU rank, fp32, AdamW, a checkpoint every 100 steps:
 *
 *     weights 475 MiB   optimizer 950 MiB (two moments)   gradients 475 MiB x log2(calls) + 1
 *     snapshot 1425 MiB (what a save reads)   activations: by batch.group and recomputation */
#include "plan/memory.h"

#include "config/explain.h"
#include "model/decode.h"
#include "model/pass.h"
#include "layout/replicas.h"
#include "parallel/dp_device.h"
#include "parallel/staging.h"
#include "parallel/mp_group.h"
#include "layout/expert_zero.h"
#include "optim/optim.h"
#include "plan/pipeline_memory.h"
#include "layout/ckpt_ranges.h"
#include "layout/page_reuse.h"
#include "layout/zero_units.h"

int64_t ls_memory_spans(const ls_model *model)
{
    return model->n_params + 3 * LS_MESH_BUCKETS + model->trained / LS_MEMORY_CHUNK;
}

ls_offload ls_memory_offload(const ls_run *run, bool discrete)
{
    return run->device.offload == LS_OFFLOAD_HOST && !discrete ? LS_OFFLOAD_NONE
                                                               : run->device.offload;
}

int64_t ls_memory_step_bytes(const ls_model *model, const ls_calls *calls)
{
    int64_t tokens = ls_calls_held(calls) * ls_calls_tokens(calls, model->shape.T);
    int64_t blocks = (model->trained + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;

    return ls_round_up(tokens * 3 * (int64_t)sizeof(int32_t), 256) +
           ls_round_up(tokens * (int64_t)sizeof(float), 256) +
           ls_round_up(ls_calls_held(calls) * (int64_t)sizeof(double), 256) +
           ls_round_up(blocks * (int64_t)sizeof(float), 256) +
           ls_round_up(ls_memory_spans(model) * (int64_t)sizeof(ls_optimizer_span), 256) +
           ls_round_up(sizeof(ls_norm_result), 256) + ls_round_up(sizeof(ls_step_state), 256);
}

int64_t ls_memory_preference_bytes(const ls_run *run, const ls_model *model, const ls_calls *calls)
{
    int64_t held = ls_calls_held(calls);

    if (run->train.objective == LS_OBJECTIVE_LM)
        return 0;
    return ls_round_up(held * (int64_t)sizeof(ls_preference_reference), 256) +
           ls_round_up(held * model->shape.T * (int64_t)sizeof(float), 256) +
           ls_round_up(LS_PREFERENCE_NUMBERS * held * (int64_t)sizeof(float), 256) +
           ls_round_up(LS_PREFERENCE_NUMBERS * held * (int64_t)sizeof(double), 256);
}

int64_t ls_memory_preference_host_bytes(const ls_run *run, const ls_calls *calls)
{
    if (run->train.objective == LS_OBJECTIVE_LM)
        return 0;
    return ls_round_up(ls_calls_held(calls) * (int64_t)sizeof(ls_preference_reference), 256) +
           ls_round_up((LS_PREFERENCE_NUMBERS * ls_max_i64(calls->sequences, ls_calls_held(calls)) +
                        calls->ranks) *
                           (int64_t)sizeof(double),
                       256);
}

int64_t ls_memory_staging_bytes(const ls_model *model, const ls_calls *calls)
{
    int64_t tokens = ls_calls_held(calls) * ls_calls_tokens(calls, model->shape.T);

    return ls_round_up(tokens * 3 * (int64_t)sizeof(int32_t), 256) +
           ls_round_up(ls_max_i64(1, calls->calls) * (int64_t)sizeof(ls_step_state), 256) +
           ls_round_up((calls->sequences + calls->ranks) * (int64_t)sizeof(double), 256) +
           ls_round_up(sizeof(ls_norm_result), 256);
}

int64_t ls_memory_snapshot_bytes(const ls_run *run, const ls_model *model, const ls_mesh *mesh,
                                 bool discrete, int kind)
{
    bool keeps = discrete || ls_run_saves(run) || ls_mesh_divides(mesh);

    if (mesh && ls_mesh_saves_parts(mesh))
        keeps = ls_mesh_parts_weights(mesh) &&
                (kind == 0 || (kind == 1 && ls_run_compute_type(run) != LS_F32));
    if (!keeps || (mesh && mesh->rank > 0))
        return 0;
    return ls_ckpt_ranges_array(run, model, mesh, kind) * (int64_t)sizeof(float);
}

/* The model that is saved and sampled from, and the mesh of all ranks. */
static const ls_model *whole_of(const ls_memory_args *args)
{
    return args->whole ? args->whole : args->model;
}

static const ls_mesh *world_of(const ls_memory_args *args)
{
    return args->world ? args->world : args->mesh;
}

/* Of these the ones that are resident: what lies in a file is not, but for what is being copied. */
static int64_t resident_bytes(const ls_memory_args *args, int kind)
{
    int64_t bytes =
        ls_memory_snapshot_bytes(args->run, whole_of(args), world_of(args), args->discrete, kind);

    if (kind > 0 && ls_memory_offload(args->run, args->discrete) == LS_OFFLOAD_DISK)
        bytes = ls_min_i64(bytes, LS_MEMORY_CHUNK * (int64_t)sizeof(float));
    return ls_round_up(bytes, 4096);
}

int64_t ls_memory_parts_bytes(const ls_run *run, const ls_model *model, const ls_mesh *world,
                              const ls_mesh *mesh_slice)
{
    if (!world || !ls_mesh_saves_parts(world) || !ls_run_saves(run))
        return 0;
    return ls_ckpt_ranges_elements(run, model, mesh_slice) * (int64_t)sizeof(float);
}

int64_t ls_memory_copy_bytes(const ls_run *run, const ls_model *model, const ls_mesh *mesh)
{
    if (!ls_replicas_sends(mesh))
        return 0;
    int64_t own = ls_mesh_own(mesh, model->trained, ls_replicas_owner(mesh, mesh->rank));
    return (1 + ls_optim_kinds(run)) * ls_round_up(own * (int64_t)sizeof(float), 4096);
}

int64_t ls_memory_redo_bytes(const ls_run *run, const ls_model *model, const ls_mesh *mesh)
{
    int64_t all, size = sizeof(float);

    if (!mesh || !mesh->buddies || ls_optimizer_is_elementwise(run->train.optimizer))
        return 0;
    all = 4 * ls_round_up(ls_mesh_own(mesh, model->trained, mesh->rank) * size, 4096);
    if (ls_replicas_sends(mesh))
        all += ls_round_up(
            ls_mesh_own(mesh, model->trained, ls_replicas_owner(mesh, mesh->rank)) * size, 4096);
    return all;
}

static ls_codec codec_of(const ls_run *run)
{
    static const ls_codec_kind kinds[] = {[LS_COMPRESS_NONE] = LS_CODEC_NONE,
                                          [LS_COMPRESS_BF16] = LS_CODEC_BF16,
                                          [LS_COMPRESS_INT8] = LS_CODEC_INT8,
                                          [LS_COMPRESS_TOPK] = LS_CODEC_TOPK};

    return ls_codec_of(kinds[run->exchange.compress], run->exchange.topk);
}

ls_dp_args ls_memory_dp(const ls_run *run, const ls_model *model, const ls_mesh *mesh)
{
    bool ordered = ls_calls_ordered(run) && !mesh->independent;
    ls_calls calls;

    ls_calls_plan(run, mesh, &calls);
    if (mesh->pp > 1) { /* numbers only: pipelines sum gradients chunk by chunk (stage_plan.h) */
        ls_dp_args numbers = {.mesh = *mesh, .leaves = calls.leaves, .trained = model->trained};
        numbers.mesh.zero = 0;
        return numbers;
    }
    int rounds = mesh->zero >= 2 ? ls_calls_rounds(run, mesh) : 0;
    return (ls_dp_args){.mesh = *mesh,
                        .rounds = rounds,
                        .slots = ordered && rounds ? ls_calls_feed(run, mesh, rounds, NULL) : 0,
                        .ordered = ordered,
                        .codec = codec_of(run),
                        .leaves = calls.leaves,
                        .roots = calls.roots,
                        .trained = model->trained,
                        .tied_first = model->wte.g,
                        .tied_count = ls_pass_grad_elements(model, ordered) > model->trained
                                          ? model->shape.V * model->shape.C
                                          : 0};
}

bool ls_memory_by_device(const ls_run *run, const ls_mesh *world, const ls_dp_args *dp)
{
    bool whole = ls_mesh_whole(world);
    bool parted = world->zero > 1 || ls_mesh_shard_groups(world) > 1;

    return ls_mesh_pp(world) == 1 && (whole || !parted) && ls_dp_device_can(dp) &&
           ls_optimizer_of(run->train.optimizer)->reach != LS_REACH_MATRIX;
}

ls_local_sgd_args ls_memory_local(const ls_run *run, const ls_model *model, const ls_mesh *mesh)
{
    static const ls_codec_kind kinds[] = {[LS_COMPRESS_NONE] = LS_CODEC_NONE,
                                          [LS_COMPRESS_BF16] = LS_CODEC_BF16,
                                          [LS_COMPRESS_INT8] = LS_CODEC_INT8};

    return (ls_local_sgd_args){.ranks = mesh->ranks,
                               .count = model->trained,
                               .codec = ls_codec_of(kinds[run->local.compress], 1),
                               .lr = run->local.lr,
                               .momentum = run->local.momentum,
                               .delayed = run->local.delay > 0};
}

int ls_memory_replica_kinds(const ls_run *run, const ls_mesh *mesh)
{
    /* The outer momentum, or two moments; its own weights where they are not the common ones. */
    return (mesh->rank == 0 ? 1 : 2) + (run->local.delay > 0);
}

/* Replicas have, beside what a process alone has, the weights that are common. */
static void predict_replica(const ls_memory_args *args, ls_ledger *ledger)
{
    ls_local_sgd_args local = ls_memory_local(args->run, args->model, args->mesh);
    int64_t array = ls_round_up(args->model->trained * (int64_t)sizeof(float), 4096);

    ls_ledger_add(ledger, "replicas", "common weights, outer momentum, differences on their way",
                  ls_local_sgd_bytes(&local));
    if (ls_run_saves(args->run))
        ls_ledger_add(ledger, "own snapshot", "what a replica saves by itself",
                      ls_memory_replica_kinds(args->run, args->mesh) * array);
}

ls_param_server_args ls_memory_ps(const ls_run *run, const ls_model *model, const ls_mesh *mesh)
{
    const int64_t wait_s = 600, meet_s = 24 * 3600; /* asynchronous workers may be far behind */
    ls_param_server_args args = {.mesh = *mesh,
                                 .count = model->trained,
                                 .staleness = run->ps.staleness,
                                 .wait_s = run->ps.staleness == 0 ? wait_s : meet_s};

    if (run->ps.sparse && !model->shape.tied) {
        args.table.first = model->wte.g;
        args.table.rows = model->shape.V;
        args.table.width = model->shape.C;
    }
    return args;
}

/* Whether this rank keeps weights for others. */
static bool serves(const ls_mesh *mesh)
{
    return mesh && mesh->rank < mesh->servers;
}

static void predict_server(const ls_memory_args *args, ls_ledger *ledger)
{
    ls_param_server_args ps = ls_memory_ps(args->run, args->model, args->mesh);

    ls_ledger_add(ledger, "server",
                  serves(args->mesh)
                      ? "weights of the own part, sums and gradients that come, rows on their way"
                      : "rows on their way",
                  ls_param_server_bytes(&ps));
}

int64_t ls_memory_weight_elements(const ls_model *model, const ls_dp_args *dp)
{
    if (dp && dp->mesh.zero == 3)
        return ls_dp_own_elements(dp);
    return dp && dp->mesh.zero > 0 ? ls_max_i64(model->flat, ls_dp_elements(dp)) : model->flat;
}

int64_t ls_memory_grad_elements(const ls_model *model, const ls_calls *calls, const ls_dp_args *dp)
{
    int64_t n = ls_pass_grad_elements(model, calls->ordered);

    return dp ? ls_max_i64(n, ls_dp_elements(dp)) : n;
}

ls_pass_args ls_memory_step_pass(const ls_run *run, const ls_model *model,
                                 const ls_kernels *kernels, const ls_calls *calls)
{
    int64_t blocks = run->train.recompute_blocks, T = ls_calls_tokens(calls, run->model.context);

    return (ls_pass_args){.model = model,
                          .kernels = kernels,
                          .type = ls_run_compute_type(run),
                          .B = calls->most * calls->leaf,
                          .T = T,
                          .reach = calls->widest * calls->leaf * T,
                          .leaves = calls->ordered ? calls->most : 1,
                          .training = true,
                          .fp8 = run->precision == LS_PRECISION_FP8,
                          .tf32 = run->precision == LS_PRECISION_TF32,
                          .any_order = !calls->ordered,
                          .recompute = run->train.recompute,
                          .recompute_blocks = blocks == LS_RUN_AUTO ? model->shape.L : blocks,
                          .cp_group = {.rank = calls->cp_rank,
                                       .ranks = calls->cp,
                                       .gather = run->mesh.keys == LS_KEYS_GATHER}};
}

/* Buffers of a save, of a rank that writes; and where no rank has all weights, the first one reads them
 * back for their hash, when it has written its part. */
static int64_t saving_bytes(const ls_memory_args *args)
{
    const ls_mesh *world = world_of(args);
    const ls_model *whole = whole_of(args);
    bool parts = world && ls_mesh_saves_parts(world);
    int64_t rows = 0, unit = 0, object = 0;

    if (!parts && world && world->rank > 0)
        return 0;
    for (int i = 0; i < whole->n_params; i++) { /* those of a unit are side by side */
        int64_t bytes = whole->params[i].count * (int64_t)sizeof(float);
        rows = ls_max_i64(rows, ls_min_i64(bytes, LS_CKPT_RANGES_READ_BACK));
        unit = bytes + (i > 0 && whole->params[i].unit == whole->params[i - 1].unit ? unit : 0);
        object = ls_max_i64(object, unit);
    }
    int64_t back = rows + ls_min_i64(object, rows + LS_MIB); /* in blocks of a MiB */
    if (!parts || world->rank > 0 || !ls_mesh_parts_weights(world))
        back = 0;
    return ls_max_i64(back, parts
                                ? ls_ckpt_ranges_flow(args->run, args->model, ls_memory_sums(args))
                                : ls_ckpt_ranges_flow(args->run, whole, NULL));
}

/* What the process holds beside the device's memory. */
static void predict_host(const ls_memory_args *args, const ls_calls *calls, ls_ledger *ledger)
{
    int64_t copies = ls_round_up(
        ls_memory_parts_bytes(args->run, args->model, world_of(args), ls_memory_sums(args)), 4096);
    int64_t whole = 0;
    void (*add)(ls_ledger *, const char *, const char *, int64_t) =
        args->discrete ? ls_ledger_add_host : ls_ledger_add;

    for (int kind = 0; kind < 3; kind++)
        whole += resident_bytes(args, kind);
    if (ls_mesh_saves_parts(world_of(args)) && whole > 0)
        add(ledger, "whole weights", "of all ranks, for text samples and the hash of the run",
            whole);
    else
        copies += whole;
    if (copies > 0)
        add(ledger, "snapshot", "what a checkpoint is written from", copies);
    add(ledger, "saving", "a checkpoint on its way to the disk, and what is read back of it",
        saving_bytes(args));
    add(ledger, "threads", "packed blocks of each thread",
        args->discrete ? 0
                       : (int64_t)(args->threads + serves(args->mesh)) * LS_STREAM_THREAD_BYTES);
    add(ledger, "batch", "tokens on their way, read ahead; results",
        ls_round_up(ls_memory_staging_bytes(args->model, calls), 4096) +
            ls_round_up(ls_memory_preference_host_bytes(args->run, calls), 4096) +
            args->loader_bytes);
    add(ledger, "token shards", "mapped files, shared with the page cache", args->mapped_bytes);
}

enum { SAMPLE_CHUNK = 64 }; /* tokens of a prompt that are read at once */

bool ls_memory_sample_pass(const ls_memory_args *args, ls_pass_args *pass_out)
{
    const ls_run *run = args->run;
    int64_t prompt = run->eval.sample ? (int64_t)strlen(run->eval.sample) : 0;
    /* No tokenizer makes more tokens than bytes, but for those that begin and end a text. */
    int64_t cache = ls_min_i64(run->model.context, prompt + run->eval.sample_tokens + 8);

    /* On a device that has a memory of its own the step's pass writes, where it reads whole
     * sequences. */
    bool own = !args->discrete || ls_mesh_cp(args->mesh) > 1;

    if (prompt == 0 || run->eval.sample_tokens == 0 || !own ||
        (world_of(args) && world_of(args)->rank > 0))
        return false;
    *pass_out = (ls_pass_args){.model = whole_of(args),
                               .kernels = args->kernels,
                               .type = ls_run_compute_type(run),
                               .B = 1,
                               .T = ls_min_i64(cache, SAMPLE_CHUNK),
                               .leaves = 1,
                               .cache = cache};
    return true;
}

/* Calls of a step from which packing its weights once is quicker than packing them in each: one
 * alone would write them to memory and read them back. bench/packed.c measured 1.0 to 2.6 calls of
 * 64 or 256 rows. */
enum { PACK_CALLS = 3 };

bool ls_memory_packs(const ls_memory_args *args, ls_packed_weights_args *packs_out)
{
    ls_calls calls;

    if (!args->pack || args->run->device.pack == LS_PACKING_OFF || ls_mesh_pp(args->mesh) > 1)
        return false;
    ls_calls_plan(args->run, args->mesh, &calls);
    *packs_out = (ls_packed_weights_args){.model = args->model,
                                          .kernels = args->kernels,
                                          .type = ls_run_compute_type(args->run),
                                          .M = calls.most * calls.leaf *
                                               ls_calls_tokens(&calls, args->run->model.context),
                                          .training = true};
    return ls_packed_weights_bytes(packs_out) > 0;
}

ls_status ls_memory_choose_packs(ls_memory_args *args, int64_t free_bytes)
{
    ls_packing asked = args->run->device.pack;
    ls_ledger ledger;
    ls_calls calls;

    const ls_mesh *sums = ls_memory_sums(args);
    bool shards = sums && sums->zero == 3; /* weights come and go in every call */

    args->pack = asked != LS_PACKING_OFF && !shards;
    if (asked == LS_PACKING_ON && shards) {
        ls_status st = ls_fail(LS_EUSAGE, "device.pack is on, but with mesh.zero 3 no rank keeps "
                                          "weights that could be packed once");
        ls_err_hint("Leave device.pack out, or take mesh.zero: 2.");
        return st;
    }
    if (asked == LS_PACKING_ON && !args->kernels->pack_bytes) {
        ls_status st = ls_fail(LS_EUSAGE,
                               "device.pack is on, but the \"%s\" kernels read weights "
                               "as they are",
                               args->kernels->name);
        ls_err_hint(
            "Leave device.pack out, or choose other kernels by device.kind and device.isa.");
        return st;
    }
    if (asked != LS_PACKING_AUTO || shards)
        return LS_OK;
    ls_calls_plan(args->run, args->mesh, &calls);
    ls_memory_predict(args, &ledger);
    args->pack = args->kernels->pack_bytes && calls.calls >= PACK_CALLS &&
                 ls_ledger_total(&ledger) <= free_bytes / 4 * 3;
    return LS_OK;
}

/* What decides the size of the moments. */
static const char *optimizer_why(const ls_run *run, bool divided)
{
    if (ls_optimizer_of(run->train.optimizer)->reach == LS_REACH_MATRIX)
        return divided ? "moments of what this rank updates: one of matrices, two of the rest"
                       : "one moment per weight of a matrix of a block, two per other parameter";
    if (!ls_optim_keeps(run, 2))
        return divided ? "one moment per parameter that this rank updates"
                       : "one moment per trained parameter";
    return divided ? "two moments per parameter that this rank updates"
                   : "two moments per trained parameter";
}

/* The moments, or what is updated of them at a time. */
static void predict_moments(const ls_memory_args *args, int64_t updated, int64_t seconds,
                            ls_ledger *ledger)
{
    const int64_t size = sizeof(float), chunk = ls_min_i64(LS_MEMORY_CHUNK, updated);
    int64_t all = ls_round_up(updated * size, 4096) + ls_round_up(seconds * size, 4096);
    ls_offload offload = ls_memory_offload(args->run, args->discrete);

    if (offload == LS_OFFLOAD_NONE) {
        ls_ledger_add(ledger, "optimizer", optimizer_why(args->run, updated < args->model->trained),
                      all);
        return;
    }
    ls_ledger_add(ledger, "optimizer", "moments that are updated at a time; the rest is elsewhere",
                  ls_round_up((ls_optim_kinds(args->run) - 1) * chunk * size, 4096));
    if (offload == LS_OFFLOAD_HOST)
        ls_ledger_add_host(ledger, "moments", "moments of all parameters, page-locked", all);
}

/* The copy that rows read, what is gathered of it, the moments. */
static void predict_state(const ls_memory_args *args, const ls_dp_args *dp, int64_t updated,
                          int64_t seconds, ls_ledger *ledger)
{
    const ls_run *run = args->run;
    const ls_model *model = args->model;
    ls_dtype type = ls_run_compute_type(run);
    bool shards = dp && dp->mesh.zero == 3;
    int64_t read = shards ? ls_memory_weight_elements(model, dp) : model->flat;

    if (type != LS_F32)
        ls_ledger_add(ledger, type == LS_F16 ? "fp16 weights" : "bf16 weights",
                      "parameters once more, as the model reads them",
                      ls_round_up(read * ls_dtype_bytes(type), 4096));
    if (shards) {
        int64_t most = ls_zero_units_most(model, &dp->mesh) * ls_dtype_bytes(type);
        ls_page_reuse page_reuse =
            ls_page_reuse_weights(model, &dp->mesh, ls_dtype_bytes(type), ls_memory_page(args));
        ls_ledger_add(ledger, "gathered weights",
                      "a part of the model and the next one, of all ranks",
                      args->discrete ? ls_page_reuse_held(&page_reuse) : most);
    }
    ls_packed_weights_args packs;
    if (ls_memory_packs(args, &packs))
        ls_ledger_add(ledger, "packed weights", "matrices in the order of products, both ways",
                      ls_packed_weights_bytes(&packs));
    predict_moments(args, updated, seconds, ledger);
    ls_optim_work work = ls_optim_work_of(run, model);
    if (work.bytes > 0)
        ls_ledger_add(ledger, "optimizer work", work.what, ls_round_up(work.bytes, 4096));
}

int64_t ls_memory_page(const ls_memory_args *args)
{
    return args->page ? args->page : LS_WINDOW_PAGE;
}

int64_t ls_memory_parted_elements(const ls_dp_args *dp)
{
    int64_t blocks = (dp->trained + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;

    return ls_max_i64(ls_dp_own_elements(dp), blocks); /* padding included: equal on all ranks */
}

/* What passes through host memory with zero 2 and 3: by the device only what is no gradient. */
static int64_t parted_staging(const ls_memory_args *args, const ls_dp_args *dp)
{
    int64_t size = ls_dtype_bytes(ls_run_compute_type(args->run)), each = ls_dp_place_elements(dp);
    int64_t bytes = ls_round_up(ls_memory_parted_elements(dp) * (int64_t)sizeof(float), 4096);

    if (dp->by_device)
        return bytes;
    bytes += ls_staging_bytes(LS_DP_AHEAD, each * (int64_t)sizeof(float));
    if (dp->mesh.zero == 3)
        bytes += ls_round_up(ls_dp_own_elements(dp) * size, 4096) +
                 ls_staging_bytes(ls_page_reuse_places(args->model, &dp->mesh), each * size);
    return bytes;
}

static void predict_gradients(const ls_memory_args *args, const ls_calls *calls,
                              const ls_dp_args *dp, ls_ledger *ledger)
{
    const ls_model *model = args->model;
    const int64_t size = sizeof(float);

    if (dp && dp->mesh.zero >= 2) {
        int64_t window = ls_min_i64(ls_zero_units_gradient(model, &dp->mesh, calls->ordered) +
                                        ls_dp_ahead_elements(dp),
                                    ls_memory_grad_elements(model, calls, dp));
        int64_t own = ls_dp_sum_elements(dp);
        if (args->discrete) {
            ls_page_reuse page_reuse =
                ls_page_reuse_gradient(model, &dp->mesh, dp->ordered, ls_memory_page(args));
            ls_ledger_add(ledger, "gradients", "own parts; of a call: a part of the model",
                          ls_round_up(own * size, 4096) + ls_page_reuse_held(&page_reuse));
            return;
        }
        ls_ledger_add(ledger, "gradients",
                      "own parts; of a call: a part of the model, some buckets",
                      ls_round_up(own * size, 4096) + ls_round_up(window * size, 4096));
        return;
    }
    ls_ledger_add(ledger, "gradients",
                  calls->ordered ? "log2(calls) + 1 buffers of the tree of sums" : "one buffer",
                  calls->buffers *
                      ls_round_up(ls_memory_grad_elements(model, calls, dp) * size, 4096));
}

/* What ranks exchange lies in the host's memory, on a device with its own too: then beside what the
 * gradients pass through on their way. */
static void predict_exchange(const ls_memory_args *args, const ls_calls *calls,
                             const ls_dp_args *dp, ls_ledger *ledger)
{
    void (*add)(ls_ledger *, const char *, const char *, int64_t) =
        args->discrete ? ls_ledger_add_host : ls_ledger_add;
    const int64_t size = sizeof(float);

    int64_t staged = dp->by_device ? 1 : calls->buffers; /* for what is no gradient: one buffer */

    if (dp->by_device)
        ls_ledger_add(ledger, "exchange on the device",
                      dp->mesh.zero >= 2 ? "gradients on their way, and partial sums of own parts"
                                         : "gradients of other ranks, of a bucket",
                      ls_dp_device_bytes(dp));
    add(ledger, "exchange",
        ls_dp_residuals(dp) ? "compressed gradients on their way, and residuals"
                            : "gradients of other ranks, on their way",
        ls_dp_bytes(dp));
    if (args->discrete)
        add(ledger, "staging", "own gradients on their way, page-locked",
            dp->mesh.zero >= 2
                ? parted_staging(args, dp)
                : staged *
                      ls_round_up(ls_memory_grad_elements(args->model, calls, dp) * size, 4096));
    if (ls_dp_residuals(dp) && dp->mesh.rank == 0)
        add(ledger, "residuals", "of all nodes, for a checkpoint",
            ls_round_up(ls_dp_residuals(dp) * args->model->trained * size, 4096));
}

/* State, exchange and activations of a rank that computes the whole model. */
static void predict_whole(const ls_memory_args *args, const ls_calls *calls, ls_ledger *ledger)
{
    const ls_run *run = args->run;
    const ls_model *model = args->model;
    const ls_mesh *sums = ls_memory_sums(args);
    bool independent = args->mesh && args->mesh->independent;
    bool several = ls_mesh_ranks(sums) > 1 && !independent;
    ls_dp_args dp = several ? ls_memory_dp(run, model, sums) : (ls_dp_args){.leaves = 0};
    dp.by_device = several && args->collectives && ls_memory_by_device(run, world_of(args), &dp);
    int64_t size = sizeof(float), updated = model->trained, seconds = ls_optim_seconds(run, model);

    int64_t moments = ls_optim_kinds(run) - 1;
    if (ls_mesh_divides(sums))
        updated = seconds = ls_mesh_own(sums, model->trained, sums->rank);
    if (ls_expert_zero_divides(run, model, sums))
        updated = seconds = ls_expert_zero_own(model, sums);
    seconds = moments > 1 ? seconds : 0;
    ls_ledger_add(ledger, "weights", "parameters, fp32",
                  ls_round_up(ls_memory_weight_elements(model, several ? &dp : NULL) * size, 4096));
    predict_state(args, several ? &dp : NULL, updated, seconds, ledger);
    int64_t kept = ls_replicas_moments(run, model, sums, updated);
    if (kept > updated)
        ls_ledger_add(ledger, "buddy", "another rank's moments, its parts",
                      moments *
                          (ls_round_up(kept * size, 4096) - ls_round_up(updated * size, 4096)));
    predict_gradients(args, calls, several ? &dp : NULL, ledger);
    if (several)
        predict_exchange(args, calls, &dp, ledger);
    if (several && run->heal.replay > 0)
        ls_ledger_add(
            ledger, "replay", "sequences and a gradient of another rank",
            ls_round_up(calls->most * calls->leaf * model->shape.T * 4 * (int64_t)sizeof(int32_t),
                        4096) +
                ls_round_up(ls_pass_grad_elements(model, true) * size, 4096));
    bool whole = model->split.ranks < 2 && model->split.ep_ranks < 2;
    if (ls_replicas_sends(args->mesh) && whole)
        ls_ledger_add(ledger, "buddy", "another rank's weights, moments and gradient, its parts",
                      ls_memory_copy_bytes(run, model, args->mesh));
    if (ls_memory_redo_bytes(run, model, args->mesh) > 0)
        ls_ledger_add(ledger, "buddy",
                      "own parts before an update, which may have to be made again",
                      ls_memory_redo_bytes(run, model, args->mesh));
    if (independent && args->mesh->servers > 0)
        predict_server(args, ledger);
    else if (independent)
        predict_replica(args, ledger);
    const ls_pass_args pass = ls_memory_step_pass(run, model, args->kernels, calls);
    ls_ledger_add(ledger, "activations", "leaves per call, context, layers, width",
                  ls_pass_bytes(&pass, args->threads));
}

int64_t ls_memory_passage(const ls_model *whole)
{
    int64_t most = 0;

    for (int i = 0; i < whole->n_params; i++)
        most = ls_max_i64(most, whole->params[i].count);
    return ls_min_i64(most, LS_MEMORY_PASSAGE);
}

int64_t ls_memory_slice(const ls_model *part, const ls_mesh *mp_groups)
{
    return ls_mesh_pp(mp_groups) > 1 || (mp_groups && mp_groups->zero > 0) ? part->flat : 0;
}

/* Where ranks meet inside of calls. On a device with a memory of its own what they exchange goes by
 * collectives of that memory, or passes through the host's. */
static void predict_moves(const ls_memory_args *args, ls_ledger *ledger, const char *name,
                          const char *why, int64_t (*place)(const ls_pass_args *))
{
    int64_t bytes = ls_round_up(ls_mp_group_bytes(), 4096);
    ls_calls calls;

    if (!args->discrete) {
        ls_ledger_add(ledger, name, why, bytes);
        return;
    }
    if (args->collectives) {
        ls_ledger_add(ledger, name, why, ls_mp_group_device_bytes());
        ls_ledger_add_host(ledger, name, "small sums through the host, page-locked", bytes);
        return;
    }
    ls_calls_plan(args->run, args->mesh, &calls);
    const ls_pass_args pass = ls_memory_step_pass(args->run, args->model, args->kernels, &calls);
    ls_ledger_add_host(ledger, name, "tensors on their way to other ranks, page-locked; small sums",
                       bytes + ls_mp_group_stage_bytes(place(&pass)));
}

/* Moments that a rank brings along when they are collected: on a device with a memory of its own,
 * where ranks that divide experts divide them (train/step/expert_step.c). */
static int64_t carried_bytes(const ls_memory_args *args)
{
    static const ls_mesh alone = {.ranks = 1};
    const ls_mesh *sums = ls_memory_sums(args);

    if (!args->discrete || !ls_expert_zero_divides(args->run, args->model, sums) ||
        ls_mesh_saves_parts(world_of(args)))
        return 0;
    return ls_round_up(
        ls_expert_zero_own(args->model, sums ? sums : &alone) * (int64_t)sizeof(float), 4096);
}

/* What ranks that hold one model between them need for that. The first group collects: weights, which
 * pipelines, or replicas that divide them, bring together first, and where the first rank saves for
 * all, moments. */
static void predict_mp(const ls_memory_args *args, ls_ledger *ledger)
{
    const ls_model *model = args->model;
    const int64_t size = sizeof(float);
    const ls_mesh *sums = ls_memory_sums(args);
    bool first = !sums || sums->rank == 0;
    bool divided =
        ls_mesh_pp(sums) > 1 || (sums && sums->zero == 3) || !ls_mesh_saves_parts(world_of(args));
    int64_t mesh_slice =
        ls_expert_zero_divides(args->run, model, sums) ? model->flat : ls_memory_slice(model, sums);

    if (model->split.ranks > 1)
        predict_moves(args, ledger, "tensor parallel", "small sums of ranks with one model",
                      ls_pass_place);
    if (model->split.ep_ranks > 1)
        predict_moves(args, ledger, "expert parallel", "small sums of ranks that divide experts",
                      ls_pass_ep_place);
    bool mp_groups = model->split.ranks > 1 || model->split.ep_ranks > 1;
    if (args->discrete && mp_groups) /* of every rank a number */
        ls_ledger_add(ledger, "norm", "squares of all ranks",
                      ls_round_up(ls_mesh_ranks(world_of(args)) * size, 4096));
    if (args->discrete)
        mesh_slice = model->flat;
    int64_t carried = carried_bytes(args);
    if ((first && mp_groups) || carried > 0)
        (args->discrete ? ls_ledger_add_host : ls_ledger_add)(
            ledger, "collecting", "a part of the model, on its way to the first rank",
            carried + (first && divided ? ls_round_up(mesh_slice * size, 4096) : 0) +
                (first && model->split.rank == 0 && model->split.ep_rank == 0
                     ? ls_round_up(ls_memory_passage(whole_of(args)) * size, 4096)
                     : 0));
}

void ls_memory_predict(const ls_memory_args *args, ls_ledger *ledger_out)
{
    const ls_model *model = args->model;
    ls_calls calls;

    *ledger_out = (ls_ledger){.count = 0};
    ls_calls_plan(args->run, args->mesh, &calls);
    if (args->discrete) {
        ls_ledger_add_host(ledger_out, "program", "binary, libraries, small objects",
                           args->program_bytes);
        ls_ledger_add(ledger_out, "device", "workspaces of the device's libraries",
                      args->fixed_bytes);
    } else {
        ls_ledger_add(ledger_out, "program", "binary, libraries, small objects",
                      args->program_bytes);
    }
    if (ls_mesh_pp(args->mesh) > 1)
        ls_pipeline_memory_predict(args, &calls, ledger_out);
    else
        predict_whole(args, &calls, ledger_out);
    predict_mp(args, ledger_out);
    if (calls.cp > 1)
        predict_moves(args, ledger_out, "context parallel",
                      "messages of ranks that share sequences", ls_pass_cp_place);
    ls_ledger_add(ledger_out, "step", "tokens, losses, partial sums, logits of a sample",
                  ls_round_up(ls_memory_step_bytes(model, &calls), 4096) +
                      ls_round_up(ls_memory_preference_bytes(args->run, model, &calls), 4096) +
                      ls_decode_bytes(whole_of(args)));
    ls_pass_args sample;
    if (ls_memory_sample_pass(args, &sample))
        ls_ledger_add(ledger_out, "text samples", "one sequence with its keys and values",
                      ls_pass_bytes(&sample, args->threads));
    predict_host(args, &calls, ledger_out);
}

static int64_t total_with(const ls_memory_args *args, const ls_run *changed)
{
    ls_memory_args other = *args;
    ls_ledger ledger;

    other.run = changed;
    ls_memory_predict(&other, &ledger);
    return ls_ledger_total(&ledger);
}

/* MiB as far as a person can read them, then GiB; rounded up, or down where it is what is free. */
static const char *size_text(int64_t bytes, bool is_free, char out[24])
{
    bool small = bytes < 10000 * LS_MIB;
    int64_t unit = small ? LS_MIB : LS_GIB;

    snprintf(out, 24, small ? "%.1f MiB" : "%.1f GiB",
             is_free ? ls_size_down(bytes, unit) : ls_size_up(bytes, unit));
    return out;
}

int64_t ls_memory_fit_group(const ls_memory_args *args, int64_t free_bytes)
{
    ls_run run = *args->run;

    while (run.batch.group > 1 && total_with(args, &run) > free_bytes) {
        int64_t half = 1;
        while (half * 2 < run.batch.group)
            half *= 2;
        run.batch.group = half;
    }
    return run.batch.group;
}

static bool can_offload(const ls_memory_args *args)
{
    return ls_optimizer_is_elementwise(args->run->train.optimizer) &&
           args->run->sync == LS_SYNC_ALLREDUCE && args->run->device.offload == LS_OFFLOAD_NONE;
}

void ls_memory_fit_recompute(const ls_memory_args *args, int64_t free_bytes, ls_run *run_out)
{
    int64_t L = args->model->shape.L;
    bool fits = false;

    *run_out = *args->run;
    for (int64_t n = 0; n <= 2 * L && !fits; n++) {
        run_out->train.recompute = n == 0   ? LS_RECOMPUTE_NONE
                                   : n <= L ? LS_RECOMPUTE_SELECTIVE
                                            : LS_RECOMPUTE_FULL;
        run_out->train.recompute_blocks = n == 0 ? LS_RUN_AUTO : n <= L ? n : n - L;
        fits = total_with(args, run_out) <= free_bytes;
    }
}

/* The run file's next cheaper way, of as many as there are; false: this run has no such change.
 * Cheapest first: packed weights and grouping cost nothing but a little speed, recomputation costs
 * more of it, a smaller leaf changes the bits, a checkpoint only at the end risks work, moments
 * elsewhere cost time. */
enum { SELECTIVE = 2, CHANGES = 7 };
static bool change_run(const ls_memory_args *args, int change, ls_run *run, char text[96])
{
    ls_calls calls;

    ls_calls_plan(args->run, args->mesh, &calls);
    if (change == 0 && args->pack) {
        run->device.pack = LS_PACKING_OFF;
        snprintf(text, 96, "device.pack: off");
    } else if (change == 1 && calls.group > 1) {
        run->batch.group = 1;
        snprintf(text, 96, "batch.group: 1");
    } else if (change == SELECTIVE && run->train.recompute == LS_RECOMPUTE_NONE) {
        run->train.recompute = LS_RECOMPUTE_SELECTIVE;
        run->train.recompute_blocks = LS_RUN_AUTO;
        snprintf(text, 96, "train.recompute: selective");
    } else if (change == 3 && (run->train.recompute != LS_RECOMPUTE_FULL ||
                               run->train.recompute_blocks != LS_RUN_AUTO)) {
        run->train.recompute = LS_RECOMPUTE_FULL;
        run->train.recompute_blocks = LS_RUN_AUTO;
        snprintf(text, 96, "train.recompute: full");
    } else if (change == 4 && run->batch.leaf > 1) {
        run->batch.leaf = 1;
        snprintf(text, 96, "batch.leaf: 1");
    } else if (change == 5 && ls_run_saves(run) && !ls_run_keeps_best(run)) {
        const ls_option *minutes = ls_option_find("checkpoint.minutes");
        bool set = run->origins && !ls_explain_origin(run, minutes)->automatic;
        run->checkpoint.every = 0;
        run->checkpoint.minutes = 0;
        snprintf(text, 96, "checkpoint.every: 0%s", set ? " and checkpoint.minutes: 0" : "");
    } else if (change == 6 && can_offload(args)) {
        run->device.offload = args->discrete ? LS_OFFLOAD_HOST : LS_OFFLOAD_DISK;
        snprintf(text, 96, "device.offload: %s", args->discrete ? "host" : "disk");
    } else {
        return false;
    }
    return true;
}

ls_status ls_memory_check(const ls_memory_args *args, const ls_ledger *ledger, int64_t free_bytes)
{
    int64_t total = ls_ledger_total(ledger), least = total;
    ls_run small = *args->run;
    char hint[300] = "", size[24], other[24];
    size_t used = 0;

    if (total <= free_bytes)
        return LS_OK;
    for (int change = 0; change < CHANGES && least > free_bytes; change++) {
        const ls_run before = small;
        char text[96] = "";
        if (!change_run(args, change, &small, text))
            continue;
        int64_t now = total_with(args, &small);
        bool half =
            change == SELECTIVE && now > free_bytes; /* full, which comes next, saves more */
        if (now >= least || half)
            small = before; /* more gradient buffers can cost more than smaller calls save */
        else if (used < sizeof hint) {
            used += (size_t)snprintf(hint + used, sizeof hint - used, "%s%s (saves %s)",
                                     used ? ", " : "", text, size_text(least - now, true, size));
            least = now;
        }
    }
    ls_status st = ls_fail(LS_ENOMEM, "this run needs %s of memory, but %s are free",
                           size_text(total, false, size), size_text(free_bytes, true, other));
    if (least <= free_bytes)
        ls_err_hint("It fits with %s.", hint);
    else
        ls_err_hint("Even with %s it needs %s: choose a smaller model or context.",
                    used ? hint : "the smallest call", size_text(least, false, size));
    return st;
}
