/* memory.c -- the ledger of a training run.
 *
 * Each line mirrors one allocation of train/ or model/, computed by the same functions, so
 * predicted and used bytes cannot drift apart unnoticed: a test compares the sum with the device's
 * counter. On a device with a memory of its own the lines of the host stand apart and do not count
 * against the device. */
#include "plan/memory.h"

#include "model/decode.h"
#include "model/pass.h"
#include "plan/units.h"

int64_t ls_memory_spans(const ls_model *model)
{
    return model->n_params + 2 * LS_MESH_BUCKETS;
}

int64_t ls_memory_step_bytes(const ls_model *model, const ls_calls *calls)
{
    int64_t tokens = ls_calls_held(calls) * model->shape.T;
    int64_t blocks = (model->trained + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;

    return ls_round_up(tokens * 3 * (int64_t)sizeof(int32_t), 256) +
           ls_round_up(tokens * (int64_t)sizeof(float), 256) +
           ls_round_up(ls_calls_held(calls) * (int64_t)sizeof(double), 256) +
           ls_round_up(blocks * (int64_t)sizeof(float), 256) +
           ls_round_up(ls_memory_spans(model) * (int64_t)sizeof(ls_adamw_span), 256) +
           ls_round_up(sizeof(ls_norm_result), 256) + ls_round_up(sizeof(ls_step_state), 256);
}

int64_t ls_memory_staging_bytes(const ls_model *model, const ls_calls *calls)
{
    int64_t tokens = ls_calls_held(calls) * model->shape.T;

    return ls_round_up(tokens * 3 * (int64_t)sizeof(int32_t), 256) +
           ls_round_up(ls_max_i64(1, calls->calls) * (int64_t)sizeof(ls_step_state), 256) +
           ls_round_up(calls->sequences * (int64_t)sizeof(double), 256) +
           ls_round_up(sizeof(ls_norm_result), 256);
}

ls_dtype ls_memory_type(const ls_run *run)
{
    return run->precision == LS_PRECISION_BF16 ? LS_BF16 : LS_F32;
}

bool ls_memory_has_snapshot(const ls_run *run, const ls_mesh *mesh, bool apart)
{
    if (mesh && mesh->rank > 0)
        return false;
    return apart || run->checkpoint.every > 0 || (mesh && mesh->zero > 0);
}

ls_dp_args ls_memory_dp(const ls_run *run, const ls_model *model, const ls_mesh *mesh)
{
    bool ordered = run->train.reduce == LS_REDUCE_ORDERED;
    ls_calls calls;

    ls_calls_plan(run, mesh, &calls);
    int rounds = mesh->zero >= 2 ? ls_calls_rounds(run, mesh) : 0;
    return (ls_dp_args){.mesh = *mesh,
                        .rounds = rounds,
                        .slots = ordered && rounds ? ls_calls_feed(run, mesh, rounds, NULL) : 0,
                        .ordered = ordered,
                        .leaves = calls.leaves,
                        .trained = model->trained,
                        .tied_first = model->wte.g,
                        .tied_count = ls_pass_grad_elements(model, ordered) > model->trained
                                          ? model->shape.V * model->shape.C
                                          : 0};
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

/* What the process holds beside the device's memory. */
static void predict_host(const ls_memory_args *args, const ls_calls *calls, int64_t state_bytes,
                         ls_ledger *ledger)
{
    void (*add)(ls_ledger *, const char *, const char *, int64_t) =
        args->apart ? ls_ledger_add_host : ls_ledger_add;

    if (ls_memory_has_snapshot(args->run, args->mesh, args->apart))
        add(ledger, "snapshot", "what a checkpoint is written from", state_bytes);
    add(ledger, "threads", "packed blocks of each thread",
        args->apart ? 0 : (int64_t)args->threads * LS_STREAM_THREAD_BYTES);
    add(ledger, "batch", "tokens on their way, read ahead; results",
        ls_round_up(ls_memory_staging_bytes(args->model, calls), 4096) + args->loader_bytes);
    add(ledger, "token shards", "mapped files, shared with the page cache", args->mapped_bytes);
}

enum { SAMPLE_CHUNK = 64 }; /* tokens of a prompt that are read at once */

bool ls_memory_sample_pass(const ls_memory_args *args, ls_pass_args *pass_out)
{
    const ls_run *run = args->run;
    int64_t prompt = run->eval.sample ? (int64_t)strlen(run->eval.sample) : 0;
    /* No tokenizer makes more tokens than bytes, but for those that begin and end a text. */
    int64_t cache = ls_min_i64(run->model.context, prompt + run->eval.sample_tokens + 8);

    if (prompt == 0 || run->eval.sample_tokens == 0 || args->apart ||
        (args->mesh && args->mesh->rank > 0))
        return false;
    *pass_out = (ls_pass_args){.model = args->model,
                               .kernels = args->kernels,
                               .type = ls_memory_type(run),
                               .B = 1,
                               .T = ls_min_i64(cache, SAMPLE_CHUNK),
                               .leaves = 1,
                               .cache = cache};
    return true;
}

/* The copy that rows read, what is gathered of it, the moments. */
static void predict_state(const ls_memory_args *args, const ls_dp_args *dp, int64_t updated,
                          ls_ledger *ledger)
{
    const ls_model *model = args->model;
    ls_dtype type = ls_memory_type(args->run);
    bool shards = dp && dp->mesh.zero == 3;
    int64_t read = shards ? ls_memory_weight_elements(model, dp) : model->flat;

    if (type != LS_F32)
        ls_ledger_add(ledger, "bf16 weights", "parameters once more, as the model reads them",
                      ls_round_up(read * ls_dtype_bytes(type), 4096));
    if (shards)
        ls_ledger_add(ledger, "gathered weights",
                      "a part of the model and the next one, of all ranks",
                      ls_units_most(model, &dp->mesh) * ls_dtype_bytes(type));
    ls_ledger_add(ledger, "optimizer",
                  updated < model->trained ? "two moments per parameter that this rank updates"
                                           : "two moments per trained parameter",
                  2 * ls_round_up(updated * (int64_t)sizeof(float), 4096));
}

static void predict_gradients(const ls_memory_args *args, const ls_calls *calls,
                              const ls_dp_args *dp, ls_ledger *ledger)
{
    const ls_model *model = args->model;
    const int64_t size = sizeof(float);

    if (dp && dp->mesh.zero >= 2) {
        int64_t window = ls_min_i64(ls_units_gradient(model, &dp->mesh, calls->ordered) +
                                        ls_dp_ahead_elements(dp),
                                    ls_memory_grad_elements(model, calls, dp));
        int64_t own = ls_mesh_own(&dp->mesh, model->trained, dp->mesh.rank);
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

void ls_memory_predict(const ls_memory_args *args, ls_ledger *ledger_out)
{
    const ls_run *run = args->run;
    const ls_model *model = args->model;
    ls_dtype type = ls_memory_type(run);
    bool several = ls_mesh_ranks(args->mesh) > 1;
    ls_dp_args dp = several ? ls_memory_dp(run, model, args->mesh) : (ls_dp_args){.leaves = 0};
    int64_t size = sizeof(float), updated = model->trained;
    ls_calls calls;

    *ledger_out = (ls_ledger){.count = 0};
    ls_calls_plan(run, args->mesh, &calls);
    if (several && dp.mesh.zero > 0)
        updated = ls_mesh_own(&dp.mesh, model->trained, dp.mesh.rank);
    if (args->apart) {
        ls_ledger_add_host(ledger_out, "program", "binary, libraries, small objects",
                           args->program_bytes);
        ls_ledger_add(ledger_out, "device", "workspaces of the device's libraries",
                      args->fixed_bytes);
    } else {
        ls_ledger_add(ledger_out, "program", "binary, libraries, small objects",
                      args->program_bytes);
    }
    ls_ledger_add(ledger_out, "weights", "parameters, fp32",
                  ls_round_up(ls_memory_weight_elements(model, several ? &dp : NULL) * size, 4096));
    predict_state(args, several ? &dp : NULL, updated, ledger_out);
    predict_gradients(args, &calls, several ? &dp : NULL, ledger_out);
    if (several)
        ls_ledger_add(ledger_out, "exchange", "gradients of other ranks, on their way",
                      ls_dp_bytes(&dp));
    const ls_pass_args pass = {.model = model,
                               .kernels = args->kernels,
                               .type = type,
                               .B = calls.most * calls.leaf,
                               .T = run->model.context,
                               .leaves = calls.ordered ? calls.most : 1,
                               .training = true,
                               .any_order = !calls.ordered};
    ls_ledger_add(ledger_out, "activations", "leaves per call, context, layers, width",
                  ls_pass_bytes(&pass, args->threads));
    ls_ledger_add(ledger_out, "step", "tokens, losses, partial sums, logits of a sample",
                  ls_round_up(ls_memory_step_bytes(model, &calls), 4096) + ls_decode_bytes(model));
    ls_pass_args sample;
    if (ls_memory_sample_pass(args, &sample))
        ls_ledger_add(ledger_out, "text samples", "one sequence with its keys and values",
                      ls_pass_bytes(&sample, args->threads));
    predict_host(args, &calls,
                 ls_round_up(model->flat * size, 4096) +
                     2 * ls_round_up(model->trained * size, 4096),
                 ledger_out);
}

static int64_t total_with(const ls_memory_args *args, const ls_run *changed)
{
    ls_memory_args other = *args;
    ls_ledger ledger;

    other.run = changed;
    ls_memory_predict(&other, &ledger);
    return ls_ledger_total(&ledger);
}

/* MiB as far as a person can read them, then GiB. */
static const char *size_text(int64_t bytes, char out[24])
{
    double mib = (double)bytes / (double)LS_MIB;

    if (mib < 10000)
        snprintf(out, 24, "%.1f MiB", mib);
    else
        snprintf(out, 24, "%.1f GiB", mib / 1024);
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

ls_status ls_memory_check(const ls_memory_args *args, const ls_ledger *ledger, int64_t free_bytes)
{
    int64_t total = ls_ledger_total(ledger), least = total;
    ls_run small = *args->run;
    ls_calls calls;
    char hint[300] = "", size[24], other[24];
    size_t used = 0;

    if (total <= free_bytes)
        return LS_OK;
    ls_calls_plan(&small, args->mesh, &calls);
    /* Cheapest first: grouping costs nothing but a little speed, a smaller leaf changes the bits, a
     * checkpoint only at the end risks work. */
    for (int change = 0; change < 3 && least > free_bytes; change++) {
        const ls_run before = small;
        char text[96] = "";
        if (change == 0 && calls.group > 1) {
            small.batch.group = 1;
            snprintf(text, sizeof text, "batch.group: 1");
        } else if (change == 1 && small.batch.leaf > 1) {
            small.batch.leaf = 1;
            snprintf(text, sizeof text, "batch.leaf: 1");
        } else if (change == 2 && small.checkpoint.every > 0) {
            small.checkpoint.every = 0;
            snprintf(text, sizeof text, "checkpoint.every: 0");
        }
        int64_t now = total_with(args, &small);
        if (now >= least)
            small = before; /* more gradient buffers can cost more than smaller calls save */
        else if (used < sizeof hint) {
            used += (size_t)snprintf(hint + used, sizeof hint - used, "%s%s (saves %s)",
                                     used ? ", " : "", text, size_text(least - now, size));
            least = now;
        }
    }
    ls_status st = ls_fail(LS_ENOMEM, "this run needs %s of memory, but %s are free",
                           size_text(total, size), size_text(free_bytes, other));
    if (least <= free_bytes)
        ls_err_hint("It fits with %s.", hint);
    else
        ls_err_hint("Even with %s it needs %s: choose a smaller model or context.",
                    used ? hint : "the smallest call", size_text(least, size));
    return st;
}
