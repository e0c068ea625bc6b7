/* step_open.c -- a step is opened and closed: its mode and its exchange are chosen, and memory is
 * taken for weights, moments and gradients (of the device, of the node or in files), for small
 * things in one block, and for staging in host memory.
 *
 *     memory               where                                  read by other ranks
 *     weights              device                                 with ZeRO, and with Muon
 *     moments              device, host or file (device.offload)  never
 *     weights in 16 bits   device                                 with ZeRO 3
 *     gradients            device; ZeRO 2, 3: a window            all but a single rank
 *     small things         device: batch, losses, norm, numbers   never
 *     staging              host: what goes to the device or comes from it
 *
 * What other ranks read comes from the communicator (ls_step_alloc), unless the device has a memory of
 * its own: then it passes through host memory. The ledger (plan/memory.h) predicts each line.
 *
 * A rank that survives a loss hands its state on to the next step (ls_step_keep). */
#include "train/step/step_impl.h"

#include "base/mem.h"
#include "plan/memory.h"
#include "optim/optim.h"
#include "layout/replicas.h"
#include "train/replica/replica_send.h"
#include "train/step/pipeline_impl.h"

/* The first row that fits is taken: what divides more stands before what divides less. */
static const ls_step_mode *const modes[] = {&ls_step_mode_pipeline,    &ls_step_mode_expert_zero,
                                            &ls_step_mode_expert,      &ls_step_mode_zero,
                                            &ls_step_mode_zero_update, &ls_step_mode_dense};

/* Collectives of device memory carry the gradients of replicas, and the weights of ZeRO. */
static const ls_step_exchange *of_discrete(const ls_step *s)
{
    bool by_device = s->args.collectives && ls_dp_args_of(s->args.dp)->by_device;

    if (ls_step_divides_grads(s))
        return by_device ? &ls_step_exchange_device_zero : &ls_step_exchange_host_zero;
    return by_device ? &ls_step_exchange_device : &ls_step_exchange_host_stage;
}

static void choose(ls_step *s)
{
    int i = 0;

    while (!modes[i]->fits(&s->args))
        i++;
    s->mode = modes[i];
    if (s->args.dp && !ls_step_host_stages(s) && s->mode->exchange)
        s->exchange = s->mode->exchange;
    else
        s->exchange = !s->args.dp               ? &ls_step_exchange_single
                      : !ls_step_host_stages(s) ? &ls_step_exchange_in_place
                                                : of_discrete(s);
}

/* Mirrors ls_memory_step_bytes(). */
static void lay_out(ls_step *s)
{
    const ls_model *model = s->args.model;
    int64_t tokens = ls_step_held(s) * ls_step_tokens(s);
    int64_t blocks = (model->trained + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    char *at = s->small;

    s->tokens = ls_step_cut(&at, tokens * 3 * (int64_t)sizeof(int32_t));
    s->targets = s->tokens + tokens;
    s->start = s->targets + tokens;
    s->losses = ls_step_cut(&at, tokens * (int64_t)sizeof(float));
    s->sums = ls_step_cut(&at, ls_step_held(s) * (int64_t)sizeof(double));
    s->partials = ls_step_cut(&at, blocks * (int64_t)sizeof(float));
    s->spans = ls_step_cut(&at, ls_memory_spans(model) * (int64_t)sizeof(ls_optimizer_span));
    s->norm = ls_step_cut(&at, sizeof(ls_norm_result));
    s->state = ls_step_cut(&at, sizeof(ls_step_state));
}

/* Mirrors ls_memory_staging_bytes(). */
static void lay_out_staging(ls_step *s)
{
    const ls_calls *calls = &s->args.calls;
    char *at = s->staging;

    s->host_tokens =
        ls_step_cut(&at, ls_step_held(s) * ls_step_tokens(s) * 3 * (int64_t)sizeof(int32_t));
    s->host_states = ls_step_cut(&at, ls_max_i64(1, calls->calls) * (int64_t)sizeof(ls_step_state));
    s->host_sums = ls_step_cut(&at, (calls->sequences + calls->ranks) * (int64_t)sizeof(double));
    s->host_norm = ls_step_cut(&at, sizeof(ls_norm_result));
}

ls_status ls_step_alloc(ls_step *s, bool shared, int64_t bytes, const char *what, void **out)
{
    return shared && s->exchange->shares
               ? ls_comm_alloc(ls_dp_args_of(s->args.dp)->comm, bytes, what, out)
               : ls_device_alloc(ls_step_device(s), bytes, what, out);
}

static void free_shared(ls_step *s, bool shared, void *memory)
{
    if (shared && s->exchange->shares)
        ls_comm_free(ls_dp_args_of(s->args.dp)->comm, memory);
    else
        ls_device_free(ls_step_device(s), memory);
}

static ls_status alloc_grads(ls_step *s, const ls_dp_args *dp)
{
    const ls_calls *calls = &s->args.calls;
    int64_t elements = ls_memory_grad_elements(s->args.model, calls, dp);
    ls_status st = LS_OK;

    if (ls_step_divides_grads(s))
        return s->exchange->open_parts(s, elements);
    for (int i = 0; i < calls->buffers; i++)
        LS_TRY(st,
               ls_step_alloc(s, s->args.dp, elements * (int64_t)sizeof(float), "gradients",
                             &s->grads[i]),
               out);
    if (s->exchange->open)
        st = s->exchange->open(s, elements);
out:
    return st;
}

/* A moment, where device.offload puts it. */
static ls_status alloc_moment(ls_step *s, int i, int64_t bytes, const char *name)
{
    ls_status st;

    s->offload.bytes[i] = bytes;
    if (s->offload.how == LS_OFFLOAD_NONE)
        return ls_device_alloc(ls_step_device(s), bytes, name, &s->state_memory[i]);
    if (s->offload.how == LS_OFFLOAD_HOST)
        return ls_device_host_alloc(ls_step_device(s), bytes, name, &s->state_memory[i]);
    st = ls_spill_open(&s->offload.files[i], s->args.offload_to, bytes, name);
    if (st == LS_EIO)
        ls_err_hint("Let device.offload_to name a folder with room for them, or set "
                    "device.offload: none.");
    s->state_memory[i] = s->offload.files[i].base;
    return st;
}

static void free_moments(ls_step *s)
{
    ls_device *device = ls_step_device(s);

    for (int i = 1; i < 3; i++)
        if (s->offload.how == LS_OFFLOAD_NONE)
            ls_device_free(device, s->state_memory[i]);
        else if (s->offload.how == LS_OFFLOAD_HOST)
            ls_device_host_free(device, s->state_memory[i], s->offload.bytes[i]);
        else
            ls_spill_close(&s->offload.files[i]);
    ls_device_free(device, s->offload.stage);
}

/* Where moments lie, and what of them is updated at a time. */
static ls_status alloc_offload(ls_step *s)
{
    ls_device *device = ls_step_device(s);
    void *memory;
    ls_status st = LS_OK;

    s->offload.how = ls_memory_offload(s->args.run, !ls_device_describe(device).host_memory);
    s->offload.chunk =
        s->offload.how == LS_OFFLOAD_NONE ? INT64_MAX : ls_min_i64(LS_MEMORY_CHUNK, s->own);
    s->first_span = ls_mem_array((size_t)ls_memory_spans(s->args.model) + 1, sizeof *s->first_span);
    if (!s->first_span)
        return LS_ENOMEM;
    if (s->offload.how != LS_OFFLOAD_HOST)
        return LS_OK;
    st = ls_device_alloc(
        device, (ls_optim_kinds(s->args.run) - 1) * s->offload.chunk * (int64_t)sizeof(float),
        "moments that are updated", &memory);
    if (st == LS_OK)
        s->offload.stage = memory;
    return st;
}

void ls_step_rest(ls_step *step)
{
    for (int i = 1; i < 3; i++)
        if (step->offload.files[i].base)
            ls_spill_drop(&step->offload.files[i], 0, step->offload.files[i].bytes);
}

void ls_step_connect_pass(const ls_step *s, ls_pass_args *pass)
{
    const ls_step_args *a = &s->args;

    pass->stream = a->stream;
    pass->collectives = a->tp_group ? ls_mp_group_collectives(a->tp_group) : NULL;
    pass->ep_group = a->ep_group ? ls_mp_group_collectives(a->ep_group) : NULL;
    pass->cp_group.collectives = a->cp_group ? ls_mp_group_collectives(a->cp_group) : NULL;
}

static ls_status open_pass(ls_step *s)
{
    ls_pass_args pass =
        ls_memory_step_pass(s->args.run, s->args.model, s->args.kernels, &s->args.calls);

    ls_step_connect_pass(s, &pass);
    pass.packs = s->args.packs;
    return ls_pass_open(&s->pass, &pass);
}

static ls_status open_memory(ls_step *s)
{
    static const char *const names[3] = {"weights", "first moments", "second moments"};
    ls_device *device = ls_step_device(s);
    const ls_model *model = s->args.model;
    const ls_dp_args *dp = s->args.dp ? ls_dp_args_of(s->args.dp) : NULL;
    int64_t weights = ls_memory_weight_elements(model, dp);
    int64_t moments = ls_replicas_moments(s->args.run, model, dp ? &dp->mesh : NULL, s->own);
    int64_t bytes = weights * (int64_t)sizeof(float);
    ls_status st = LS_OK;

    for (int i = 0; i < (s->args.pushes ? 1 : ls_optim_kinds(s->args.run)); i++) {
        bool shared = i == 0 && ls_step_shares(s);
        if (s->args.kept && !shared)
            s->state_memory[i] = s->args.kept[i];
        else if (i > 0)
            LS_TRY(st, alloc_moment(s, i, bytes, names[i]), out);
        else
            LS_TRY(st, ls_step_alloc(s, shared, bytes, names[0], &s->state_memory[0]), out);
        bool own = i == 0 || ls_step_divides(s) || s->ep_group.parts.at;
        bytes = (own ? moments : ls_optim_seconds(s->args.run, model)) * (int64_t)sizeof(float);
    }
    bytes = ls_optim_work_of(s->args.run, model).bytes;
    if (bytes > 0)
        LS_TRY(st, ls_device_alloc(device, bytes, "work of the optimizer", &s->work), out);
    bytes = (ls_step_divides_weights(s) ? weights : model->flat) * ls_dtype_bytes(s->type);
    if (s->type != LS_F32)
        LS_TRY(st,
               ls_step_alloc(s, ls_step_divides_weights(s), bytes, "weights in 16 bits", &s->copy),
               out);
    LS_TRY(st, alloc_grads(s, dp), out);
    st = open_pass(s);
out:
    return st;
}

/* The two blocks of small things. */
static ls_status alloc_small(ls_step *s)
{
    ls_device *device = ls_step_device(s);
    const ls_model *model = s->args.model;
    const ls_calls *calls = &s->args.calls;
    ls_status st = LS_OK;

    LS_TRY(st, ls_device_alloc(device, ls_memory_step_bytes(model, calls), "batch", &s->small),
           out);
    LS_TRY(st,
           ls_device_host_alloc(device, ls_memory_staging_bytes(model, calls),
                                "batches on their way", &s->staging),
           out);
    lay_out(s);
    lay_out_staging(s);
    st = ls_step_open_preference(s);
out:
    return st;
}

/* The step could not be opened: what was kept stays with its owner. */
static void give_back(ls_step *s)
{
    for (int i = 0; i < 3 && s->args.kept; i++)
        if (s->state_memory[i] == s->args.kept[i])
            s->state_memory[i] = NULL;
    ls_step_close(s);
}

/* On a device with a memory of its own tensors go to other ranks by collectives of that memory, or
 * through host memory, in places of so many bytes. NULL is allowed. */
static ls_status connect_group(ls_step *s, ls_mp_group *group, const char *axis,
                               int64_t (*place)(const ls_pass_args *))
{
    const char *provider = s->args.collectives;
    ls_pass_args pass =
        ls_memory_step_pass(s->args.run, s->args.model, s->args.kernels, &s->args.calls);

    if (!group)
        return LS_OK;
    if (!provider)
        return ls_mp_group_stage(group, s->args.stream, place(&pass));
    return ls_mp_group_by_device(group,
                                 &(ls_mp_group_device){.stream = s->args.stream,
                                                       .provider = provider,
                                                       .axis = axis,
                                                       .halves = strcmp(provider, "host") != 0});
}

/* All ranks open their groups in this order. */
static ls_status connect_groups(ls_step *s)
{
    ls_status st = LS_OK;

    if (!s->discrete)
        return LS_OK;
    LS_TRY(st, connect_group(s, s->args.tp_group, "tp", ls_pass_place), out);
    LS_TRY(st, connect_group(s, s->args.cp_group, "cp", ls_pass_cp_place), out);
    st = connect_group(s, s->args.ep_group, "ep", ls_pass_ep_place);
out:
    return st;
}

/* Kept weights to memory that the other ranks reach. */
static ls_status take_kept(ls_step *s)
{
    ls_status st = LS_OK;

    if (s->args.kept && ls_step_shares(s)) {
        ls_stream_copy(s->args.stream, s->state_memory[0], s->args.kept[0],
                       s->args.model->flat * (int64_t)sizeof(float));
        LS_TRY(st, ls_step_sync(s), out);
        ls_device_free(ls_step_device(s), s->args.kept[0]);
    }
    s->args.kept = NULL;
out:
    return st;
}

ls_status ls_step_open(ls_step **step_out, const ls_step_args *args)
{
    ls_status st = LS_OK;
    ls_step *s = ls_mem_alloc(sizeof *s);

    if (!s)
        return LS_ENOMEM;
    s->args = *args;
    s->now = args->calls;
    s->done = s->progress.ready = -1;
    s->loss_scale = 1;
    s->has_losses = true;
    s->ep_group.rounds = ls_max_i64(1, args->calls.rounds);
    s->type = ls_run_compute_type(args->run);
    s->discrete = !ls_device_describe(ls_stream_device(args->stream)).host_memory;
    choose(s);
    LS_TRY(st, connect_groups(s), out);
    if (s->mode->plan)
        LS_TRY(st, s->mode->plan(s), out);
    LS_TRY(st, ls_step_open_parts(s), out);
    LS_TRY(st, ls_replica_send_open(s), out);
    LS_TRY(st, alloc_offload(s), out);
    LS_TRY(st, s->mode->memory ? s->mode->memory(s) : open_memory(s), out);
    LS_TRY(st, alloc_small(s), out);
    if (!args->pushes)
        LS_TRY(st, ls_step_open_optimizer(s), out);
    LS_TRY(st, ls_step_open_group(s), out);
    ls_step_open_graphs(s);
    LS_TRY(st, take_kept(s), out);
    *step_out = s;
out:
    if (st != LS_OK)
        give_back(s);
    return st;
}

ls_status ls_step_keep_state(ls_step *s, void *kept_out[3])
{
    ls_device *device = ls_step_device(s);
    int64_t bytes = s->args.model->flat * (int64_t)sizeof(float);
    void *w = s->state_memory[0];
    ls_status st = LS_OK;

    LS_BUG_IF(ls_step_divides_grads(s), "a part of the weights is kept");
    if (ls_step_shares(s)) { /* it lies in memory that ends with the other ranks */
        LS_TRY(st, ls_device_alloc(device, bytes, "weights", &w), out);
        ls_stream_copy(s->args.stream, w, s->state_memory[0], bytes);
        LS_TRY(st, ls_step_sync(s), out);
    } else {
        s->state_memory[0] = NULL;
    }
    kept_out[0] = w;
    for (int i = 1; i < 3; i++) {
        kept_out[i] = s->state_memory[i];
        s->state_memory[i] = NULL;
    }
out:
    return st;
}

void ls_step_close(ls_step *step)
{
    if (!step)
        return;
    (void)ls_step_settle(step); /* others may still read; when it fails they have ended */
    ls_device *device = ls_step_device(step);
    ls_step_close_device_exchange(step);
    ls_replica_send_close(step);
    ls_pipeline_close(step);
    ls_pass_close(step->pass);
    free_shared(step, ls_step_shares(step), step->state_memory[0]);
    free_moments(step);
    ls_mem_free(step->first_span);
    for (int i = 0; i < step->args.calls.buffers && !ls_step_divides_grads(step); i++)
        free_shared(step, step->args.dp, step->grads[i]);
    ls_step_close_graphs(step);
    ls_step_close_host_zero(step);
    ls_step_close_host_stage(step);
    ls_window_close(&step->grad_window);
    ls_window_close(&step->zero_gather.window);
    free_shared(step, ls_step_shares_sums(step), step->own_grad);
    ls_step_close_parts(step);
    ls_optim_close(step->optim);
    ls_step_close_group(step);
    ls_device_free(device, step->work);
    ls_device_free(device, step->residual);
    free_shared(step, ls_step_divides_weights(step), step->copy);
    ls_step_close_preference(step);
    ls_device_free(device, step->small);
    ls_device_host_free(device, step->staging,
                        ls_memory_staging_bytes(step->args.model, &step->args.calls));
    ls_mp_group_unstage(step->args.tp_group);
    ls_mp_group_unstage(step->args.cp_group);
    ls_mp_group_unstage(step->args.ep_group);
    ls_mem_free(step);
}

ls_status ls_step_sync(ls_step *step)
{
    return ls_stream_sync(step->args.stream, ls_step_deadline());
}

ls_status ls_step_send(ls_step *step, void *to, const void *from, int64_t bytes)
{
    ls_stream_copy_in(step->args.stream, to, from, bytes);
    return ls_step_sync(step);
}
