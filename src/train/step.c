/* step.c -- a step, call by call.
 *
 *   for each call (a group of leaves):   forward, backward -> gradient buffer
 *                                        additions of the binary counter (train/tree.h)
 *   tie: embedding part + head part of wte's gradient
 *   norm2: tree over fixed blocks -> norm, clip factor, first bad block, all in device memory
 *   adamw: reads the factor there; does nothing when a block is bad
 *   one wait, then the host reads leaf losses and the norm
 *
 * In fast mode there is one gradient buffer and every call adds to it.
 *
 * What goes to the device or comes from it passes through one block of host memory (page-locked for
 * a GPU), so that no copy waits. It is written again only after the wait that ends a step: hence
 * one place per call for the numbers that differ between calls. */
#include "train/step.h"

#include <math.h>
#include "base/fault.h"
#include "base/mem.h"
#include "base/rng.h"
#include "plan/memory.h"
#include "train/tree.h"

enum { WAIT_S = 3600 };

struct ls_step {
    ls_step_args args;
    ls_pass *pass;
    void *state_memory[3]; /* owned: w, m, v */
    void *copy;            /* owned: w as rows read it; NULL in fp32, where that is w */
    ls_dtype type;
    void *grads[LS_TREE_LEVELS];
    void *small; /* owned: everything below */
    int32_t *tokens, *targets, *start;
    float *losses;
    double *sums; /* of losses: per leaf in a step, per sequence in validation */
    float *partials;
    ls_adamw_span *spans;
    int64_t n_spans;
    ls_norm_result *norm;
    ls_step_state *state;
    void *staging;              /* owned, host: the next four */
    int32_t *host_tokens;       /* tokens, targets, starts */
    ls_step_state *host_states; /* of each call */
    double *host_sums;
    ls_norm_result *host_norm;
    int root;        /* gradient buffer of the last step's sum */
    bool isolated;   /* the batch on the device has document starts */
    int64_t counted; /* targets of the last step's batch */
    float *look;     /* a block of numbers under examination, while blaming */
};

static void *cut(char **at, int64_t bytes)
{
    void *p = *at;

    *at += ls_round_up(bytes, 256);
    return p;
}

/* Mirrors ls_memory_step_bytes(). */
static void lay_out(ls_step *s)
{
    const ls_model *model = s->args.model;
    int64_t tokens = s->args.calls.sequences * model->shape.T;
    int64_t blocks = (model->trained + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    char *at = s->small;

    s->tokens = cut(&at, tokens * 3 * (int64_t)sizeof(int32_t));
    s->targets = s->tokens + tokens;
    s->start = s->targets + tokens;
    s->losses = cut(&at, tokens * (int64_t)sizeof(float));
    s->sums = cut(&at, s->args.calls.sequences * (int64_t)sizeof(double));
    s->partials = cut(&at, blocks * (int64_t)sizeof(float));
    s->spans = cut(&at, model->n_params * (int64_t)sizeof(ls_adamw_span));
    s->norm = cut(&at, sizeof(ls_norm_result));
    s->state = cut(&at, sizeof(ls_step_state));
}

/* Mirrors ls_memory_staging_bytes(). */
static void lay_out_staging(ls_step *s)
{
    const ls_calls *calls = &s->args.calls;
    char *at = s->staging;

    s->host_tokens =
        cut(&at, calls->sequences * s->args.model->shape.T * 3 * (int64_t)sizeof(int32_t));
    s->host_states = cut(&at, calls->calls * (int64_t)sizeof(ls_step_state));
    s->host_sums = cut(&at, calls->sequences * (int64_t)sizeof(double));
    s->host_norm = cut(&at, sizeof(ls_norm_result));
}

/* One span per trained parameter: weight decay differs between matrices and vectors. */
static ls_status send_spans(ls_step *s)
{
    const ls_model *model = s->args.model;
    ls_adamw_span *spans = ls_mem_array((size_t)model->n_params, sizeof *spans);
    ls_status st;

    if (!spans)
        return LS_ENOMEM;
    for (int i = 0; i < model->n_params; i++) {
        if (model->params[i].trained < 0)
            continue;
        spans[s->n_spans++] = (ls_adamw_span){.first = model->params[i].trained,
                                              .w_first = model->params[i].first,
                                              .count = model->params[i].count,
                                              .decay = model->params[i].decay ? 1.0f : 0.0f,
                                              .rate = 1.0f};
    }
    ls_stream_copy_in(s->args.stream, s->spans, spans, s->n_spans * (int64_t)sizeof *spans);
    st = ls_stream_sync(s->args.stream, ls_time_now_ns() + WAIT_S * LS_NS_PER_S);
    ls_mem_free(spans);
    return st;
}

static ls_status alloc_state(ls_step *s)
{
    static const char *const names[3] = {"weights", "first moments", "second moments"};
    ls_device *device = ls_stream_device(s->args.stream);
    const ls_calls *calls = &s->args.calls;
    int64_t bytes = s->args.model->flat * (int64_t)sizeof(float);
    ls_status st = LS_OK;

    for (int i = 0; i < 3; i++) {
        LS_TRY(st, ls_device_alloc(device, bytes, names[i], &s->state_memory[i]), out);
        bytes = s->args.model->trained * (int64_t)sizeof(float);
    }
    bytes = s->args.model->flat * ls_dtype_bytes(s->type);
    if (s->type != LS_F32)
        LS_TRY(st, ls_device_alloc(device, bytes, "weights in bf16", &s->copy), out);
    bytes = ls_pass_grad_elements(s->args.model, calls->ordered) * (int64_t)sizeof(float);
    for (int i = 0; i < calls->buffers; i++)
        LS_TRY(st, ls_device_alloc(device, bytes, "gradients", &s->grads[i]), out);
    LS_TRY(st,
           ls_device_alloc(device, ls_memory_step_bytes(s->args.model, calls), "batch", &s->small),
           out);
    LS_TRY(st,
           ls_device_host_alloc(device, ls_memory_staging_bytes(s->args.model, calls),
                                "batches on their way", &s->staging),
           out);
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
    s->type = ls_memory_type(args->run);
    LS_TRY(st, alloc_state(s), out);
    lay_out(s);
    lay_out_staging(s);
    LS_TRY(st, send_spans(s), out);
    const ls_pass_args pass = {.model = args->model,
                               .kernels = args->kernels,
                               .stream = args->stream,
                               .type = s->type,
                               .B = args->calls.group * args->calls.leaf,
                               .T = args->run->model.context,
                               .leaves = args->calls.ordered ? args->calls.group : 1,
                               .training = true,
                               .any_order = !args->calls.ordered};
    LS_TRY(st, ls_pass_open(&s->pass, &pass), out);
    *step_out = s;
out:
    if (st != LS_OK)
        ls_step_close(s);
    return st;
}

void ls_step_close(ls_step *step)
{
    if (!step)
        return;
    ls_device *device = ls_stream_device(step->args.stream);
    ls_pass_close(step->pass);
    for (int i = 0; i < 3; i++)
        ls_device_free(device, step->state_memory[i]);
    for (int i = 0; i < LS_TREE_LEVELS; i++)
        ls_device_free(device, step->grads[i]);
    ls_device_free(device, step->copy);
    ls_device_free(device, step->small);
    ls_device_host_free(device, step->staging,
                        ls_memory_staging_bytes(step->args.model, &step->args.calls));
    ls_mem_free(step);
}

/* Sequences first .. first+count-1 of a batch to the beginning of the device's buffers. Nothing is
 * queued that still reads the staging memory. */
static void copy_windows(ls_step *s, const ls_step_batch *batch, int64_t first, int64_t count)
{
    int64_t T = s->args.model->shape.T, all = s->args.calls.sequences * T;
    int64_t bytes = count * T * (int64_t)sizeof(int32_t);
    const int32_t *const from[3] = {batch->tokens, batch->targets, batch->start};
    int32_t *const to[3] = {s->tokens, s->targets, s->start};

    s->isolated = batch->start != NULL;
    for (int i = 0; i < 3; i++) {
        if (!from[i])
            continue;
        memcpy(s->host_tokens + i * all, from[i] + first * T, (size_t)bytes);
        ls_stream_copy_in(s->args.stream, to[i], s->host_tokens + i * all, bytes);
    }
}

/* The numbers of call i to the device. */
static void send_state(ls_step *s, int64_t i, const ls_step_state *state)
{
    s->host_states[i] = *state;
    ls_stream_copy_in(s->args.stream, s->state, &s->host_states[i], sizeof *state);
}

static ls_step_state step_state(const ls_step *s, int64_t number, double lr)
{
    const ls_run *run = s->args.run;
    ls_rng_key key = ls_rng_derive((uint64_t)run->train.seed, 0x64726f70, (uint64_t)number);
    double t = (double)(number + 1);

    return (ls_step_state){
        .key = {key.k[0], key.k[1]},
        .grad_scale = (float)(1.0 / (double)ls_max_i64(1, s->counted)),
        .lr = (float)lr,
        .beta1 = (float)run->train.beta1,
        .beta2 = (float)run->train.beta2,
        .eps = (float)run->train.eps,
        .weight_decay = (float)run->train.weight_decay,
        .bias1 = (float)(1 - pow(run->train.beta1, t)),
        .bias2 = (float)(1 - pow(run->train.beta2, t)),
        .clip = (float)run->train.clip,
    };
}

/* Number of call i's first sequence inside the batch. */
static uint32_t first_sequence(const ls_step *s, int64_t i)
{
    return (uint32_t)(ls_calls_first(&s->args.calls, i) * s->args.calls.leaf);
}

/* Call i over the batch that lies on the device, its gradient into grads[buffer]. */
static ls_pass_call call_of(const ls_step *s, int64_t i, int buffer)
{
    const ls_calls *calls = &s->args.calls;
    int64_t T = s->args.model->shape.T, leaves = ls_calls_leaves(calls, i);
    int64_t at = (int64_t)first_sequence(s, i) * T;

    return (ls_pass_call){.w = s->copy ? s->copy : s->state_memory[0],
                          .tokens = s->tokens + at,
                          .targets = s->targets + at,
                          .start = s->isolated ? s->start + at : NULL,
                          .B = leaves * calls->leaf,
                          .T = T,
                          .dropout = true,
                          .state = s->state,
                          .losses = s->losses + at,
                          .grad = s->grads[buffer],
                          .leaves = calls->ordered ? leaves : 1,
                          .ordered = calls->ordered,
                          .accumulate = !calls->ordered && i > 0};
}

static void run_call(ls_step *s, int64_t i, int buffer, ls_step_state *host_state, ls_clock *clock)
{
    ls_pass_call call = call_of(s, i, buffer);

    host_state->first_seq = first_sequence(s, i);
    send_state(s, i, host_state);
    ls_pass_forward(s->pass, &call);
    ls_clock_lap(clock, LS_PART_FORWARD);
    ls_pass_backward(s->pass, &call);
    ls_clock_lap(clock, LS_PART_BACKWARD);
}

static void do_adds(ls_step *s, const ls_tree_add *adds, int n)
{
    for (int i = 0; i < n; i++)
        s->args.kernels->add(s->args.stream, &(ls_add){.a = s->grads[adds[i].left],
                                                       .b = s->grads[adds[i].right],
                                                       .out = s->grads[adds[i].left],
                                                       .n = ls_pass_grad_elements(
                                                           s->args.model, s->args.calls.ordered)});
}

/* All calls, their gradients summed into grads[root]. */
static void gradients(ls_step *s, ls_step_state *host_state, ls_clock *clock)
{
    const ls_calls *calls = &s->args.calls;
    ls_tree_add adds[LS_TREE_LEVELS];
    ls_tree tree;

    ls_tree_begin(&tree, (int)calls->buffers);
    s->root = 0;
    for (int64_t i = 0; i < calls->calls; i++) {
        int buffer = calls->ordered ? ls_tree_take(&tree) : 0;
        run_call(s, i, buffer, host_state, clock);
        if (calls->ordered)
            do_adds(s, adds, ls_tree_push(&tree, buffer, adds));
        ls_clock_lap(clock, LS_PART_REDUCE);
    }
    if (!calls->ordered)
        return;
    do_adds(s, adds, ls_tree_end(&tree, adds, &s->root));
    ls_pass_tie(s->pass, s->grads[s->root]);
    ls_clock_lap(clock, LS_PART_REDUCE);
}

static void update(ls_step *s)
{
    const ls_kernels *k = s->args.kernels;

    k->norm2(s->args.stream, &(ls_norm2){.x = s->grads[s->root],
                                         .partials = s->partials,
                                         .result = s->norm,
                                         .state = s->state,
                                         .n = s->args.model->trained});
    k->adamw(s->args.stream, &(ls_adamw){.w = s->state_memory[0],
                                         .m = s->state_memory[1],
                                         .v = s->state_memory[2],
                                         .grad = s->grads[s->root],
                                         .spans = s->spans,
                                         .n_spans = s->n_spans,
                                         .copy = s->copy,
                                         .copy_type = s->type,
                                         .state = s->state,
                                         .result = s->norm});
}

/* Sum of n values along the perfect binary tree over their numbers; values are overwritten. */
static double tree_sum(double *values, int64_t n)
{
    for (int64_t width = 1; width < n; width *= 2)
        for (int64_t i = 0; i + width < n; i += 2 * width)
            values[i] += values[i + width];
    return values[0];
}

ls_status ls_step_run(ls_step *step, const ls_step_batch *batch, int64_t number, double lr,
                      ls_clock *clock, ls_step_result *result_out)
{
    const ls_calls *calls = &step->args.calls;
    int64_t tokens = calls->sequences * step->args.model->shape.T;
    step->counted = batch->counted ? batch->counted : tokens;
    ls_step_state host_state = step_state(step, number, lr);
    ls_norm_result *norm = step->host_norm;
    ls_status st = LS_OK;

    if (LS_FAULT("train.nonfinite"))
        host_state.grad_scale = NAN;
    copy_windows(step, batch, 0, calls->sequences);
    ls_clock_lap(clock, LS_PART_DATA);
    gradients(step, &host_state, clock);
    update(step);
    step->args.kernels->sum(
        step->args.stream,
        &(ls_sum){.x = step->losses, .out = step->sums, .n = tokens, .segments = calls->leaves});
    ls_stream_copy_out(step->args.stream, step->host_sums, step->sums,
                       calls->leaves * (int64_t)sizeof(double));
    ls_stream_copy_out(step->args.stream, norm, step->norm, sizeof *norm);
    LS_TRY(st, ls_stream_sync(step->args.stream, ls_time_now_ns() + WAIT_S * LS_NS_PER_S), out);
    double sum = tree_sum(step->host_sums, calls->leaves);
    *result_out = (ls_step_result){.loss = sum / (double)step->counted,
                                   .grad_norm = (double)norm->norm,
                                   .lr = lr,
                                   .finite = norm->bad_block < 0 && isfinite(sum)};
    ls_clock_lap(clock, LS_PART_OPTIMIZER);
out:
    return st;
}

/* A number under examination. */
static float look_at(const void *block, ls_dtype type, int64_t i)
{
    uint32_t bits;
    float x;

    if (type == LS_F32)
        return ((const float *)block)[i];
    bits = (uint32_t)((const uint16_t *)block)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The first element of x (device memory) that is not finite, or -1. */
static ls_status find_bad(ls_step *s, const void *x, ls_dtype type, int64_t n, int64_t *index_out,
                          float *value_out)
{
    int64_t size = ls_dtype_bytes(type);
    void *block = s->look;
    ls_status st = LS_OK;

    *index_out = -1;
    for (int64_t first = 0; first < n && *index_out < 0; first += LS_NORM_BLOCK) {
        int64_t count = ls_min_i64(LS_NORM_BLOCK, n - first);
        ls_stream_copy_out(s->args.stream, block, (const char *)x + first * size, count * size);
        LS_TRY(st, ls_stream_sync(s->args.stream, ls_time_now_ns() + WAIT_S * LS_NS_PER_S), out);
        for (int64_t k = 0; k < count && *index_out < 0; k++)
            if (!isfinite(look_at(block, type, k))) {
                *index_out = first + k;
                *value_out = look_at(block, type, k);
            }
    }
out:
    return st;
}

/* Look at one tensor; LS_ENUMERIC, saying so, when it holds a number that is not one. */
static ls_status accuse(ls_step *s, const char *what, const ls_pass_tensor *t, int64_t number)
{
    int64_t index;
    float value;
    ls_status st = find_bad(s, t->x, t->type, t->n, &index, &value);

    if (st == LS_OK && index >= 0)
        st =
            ls_fail(LS_ENUMERIC, "the %s of \"%s\" holds %s at element %lld in step %lld", what,
                    t->name, isnan(value) ? "NaN" : "Inf", (long long)index, (long long)number + 1);
    return st;
}

/* Run each call's forward again and look at what it computes, in order. */
static ls_status accuse_forward(ls_step *s, int64_t number)
{
    ls_step_state host_state = step_state(s, number, 0);
    ls_status st = LS_OK;

    for (int64_t i = 0; i < s->args.calls.calls && st == LS_OK; i++) {
        ls_pass_call call = call_of(s, i, 0);
        ls_pass_tensor t;
        host_state.first_seq = first_sequence(s, i);
        send_state(s, i, &host_state);
        ls_pass_forward(s->pass, &call);
        for (int k = 0; st == LS_OK && ls_pass_computed(s->pass, &call, k, &t); k++)
            st = accuse(s, "output", &t, number);
    }
    return st;
}

/* The same for a parameter: its weight or its gradient, which begins at x. */
static ls_status accuse_param(ls_step *s, const char *what, const ls_param *p, const float *x,
                              int64_t number)
{
    ls_pass_tensor t = {.x = x, .type = LS_F32, .n = p->count};

    snprintf(t.name, sizeof t.name, "%s", p->name);
    return accuse(s, what, &t, number);
}

/* Where it began: a weight, else the first output of the forward pass, else the first gradient of
 * the backward pass, which walks the parameters from last to first. */
ls_status ls_step_blame(ls_step *step, int64_t number)
{
    const ls_model *model = step->args.model;
    const float *w = step->state_memory[0];
    ls_status st = LS_OK;

    step->look = ls_mem_array(LS_NORM_BLOCK, sizeof *step->look);
    if (!step->look)
        return LS_ENOMEM;
    for (int i = 0; i < model->n_params && st == LS_OK; i++)
        st = accuse_param(step, "weight", &model->params[i], w + model->params[i].first, number);
    if (st == LS_OK)
        st = accuse_forward(step, number);
    const float *grad = step->grads[step->root];
    for (int i = model->n_params - 1; i >= 0 && st == LS_OK; i--)
        if (model->params[i].trained >= 0)
            st = accuse_param(step, "gradient", &model->params[i], grad + model->params[i].trained,
                              number);
    if (st == LS_OK)
        st = ls_fail(LS_ENUMERIC, "the gradient of step %lld is too large for its norm",
                     (long long)number + 1);
    if (st == LS_ENUMERIC)
        ls_err_hint("Lower train.lr or lengthen train.warmup; train.nonfinite: skip drops such "
                    "steps.");
    ls_mem_free(step->look);
    step->look = NULL;
    return st;
}

ls_status ls_step_loss(ls_step *step, const ls_step_batch *windows, int64_t sequences, double *sum)
{
    const ls_calls *calls = &step->args.calls;
    int64_t T = step->args.model->shape.T, most = calls->group * calls->leaf;
    double total = *sum;
    ls_status st = LS_OK;

    for (int64_t done = 0; done < sequences; done += most) {
        int64_t B = ls_min_i64(most, sequences - done);
        copy_windows(step, windows, done, B);
        ls_pass_loss(step->pass,
                     &(ls_pass_call){.w = step->copy ? step->copy : step->state_memory[0],
                                     .tokens = step->tokens,
                                     .targets = step->targets,
                                     .start = step->isolated ? step->start : NULL,
                                     .B = B,
                                     .T = T,
                                     .leaves = 1,
                                     .state = step->state,
                                     .losses = step->losses});
        step->args.kernels->sum(
            step->args.stream,
            &(ls_sum){.x = step->losses, .out = step->sums, .n = B * T, .segments = B});
        ls_stream_copy_out(step->args.stream, step->host_sums, step->sums,
                           B * (int64_t)sizeof(double));
        LS_TRY(st, ls_stream_sync(step->args.stream, ls_time_now_ns() + WAIT_S * LS_NS_PER_S), out);
        for (int64_t i = 0; i < B; i++) /* in order of sequences, however they are grouped */
            total += step->host_sums[i];
    }
    *sum = total;
out:
    return st;
}

ls_step_arrays ls_step_state_arrays(const ls_step *step)
{
    return (ls_step_arrays){.w = step->state_memory[0],
                            .m = step->state_memory[1],
                            .v = step->state_memory[2],
                            .read = step->copy ? step->copy : step->state_memory[0]};
}

ls_pass *ls_step_pass(const ls_step *step)
{
    return step->pass;
}

void ls_step_weights_changed(ls_step *step)
{
    if (!step->copy)
        return;
    step->args.kernels->cast(step->args.stream, &(ls_cast){.from_type = LS_F32,
                                                           .to_type = step->type,
                                                           .from = step->state_memory[0],
                                                           .to = step->copy,
                                                           .n = step->args.model->flat});
}
