/* pipeline_open.c -- what a rank of a pipeline has: its communicators, windows, passes and buffers,
 * from opening to closing.
 *
 *     12 layers, mesh.pp: 2, interleaved in 2 chunks     stage rank 0     stage rank 1
 *     chunk 0                                            layers 0..2      layers 3..5
 *     chunk 1                                            layers 6..8      layers 9..11, head
 *
 * Weights, moments and gradients lie in windows (base/window.h) that have the indices of the whole
 * model; only the pages of the own chunks have memory. So every function that takes an element's
 * number works as on a rank that has all of the model. */
#include "train/step/pipeline_impl.h"

#include "base/mem.h"
#include "parallel/blocking.h"

/* Where the window of a gradient ends: with several pipelines it has the room that their sum
 * takes. */
static int64_t grad_end(const ls_step *s, ls_range own, bool divides)
{
    ls_dp_args dp = ls_pipeline_memory_sum(s->args.run, &s->pipeline->mesh, own.count, divides);

    return own.first + (s->pipeline->stage_comm && own.count > 0 ? ls_dp_elements(&dp) : own.count);
}

static ls_status open_grad(const ls_step *s, ls_window *window, ls_range own, bool divides)
{
    const int64_t size = sizeof(float);
    ls_status st;

    st = ls_pipeline_open_window(s, window, grad_end(s, own, divides) * size, "gradients");
    return st == LS_OK ? ls_pipeline_back_window(s, window, own, size, "gradients") : st;
}

static ls_status open_grads(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    const ls_stage_plan *plan = &x->plan;
    ls_range head = {0, plan->tied.count};
    bool ends = ls_pipeline_is_tied(x), last = ls_stage_plan_is_last(plan),
         parted = ls_pipeline_is_parted(x);
    ls_status st = LS_OK;

    for (int i = 0; i < (parted ? 1 : s->args.calls.buffers); i++) {
        for (int c = 0; c < plan->chunks; c++)
            LS_TRY(st, open_grad(s, &x->grads[c][i], plan->chunk[c].own, plan->divides), out);
        if (ends && (last || i == 0))
            LS_TRY(st, open_grad(s, &x->head[i], head, false), out);
    }
out:
    return st;
}

/* An array of the state: weights are all that the own chunks read, moments what the rank
 * updates. */
static ls_status open_array(const ls_step *s, ls_window *window, bool weights, int64_t size,
                            const char *what)
{
    const ls_stage_plan *plan = &s->pipeline->plan;
    ls_range ranges[LS_STAGE_PLAN_BUCKETS + 1];
    int n = weights ? ls_stage_plan_ranges(plan, ranges) : s->parts.sums.n;
    ls_status st;

    for (int i = 0; i < n && !weights; i++) {
        ls_mesh_part own = s->parts.sums.at[i];
        ranges[i] = (ls_range){own.first, own.count};
    }
    LS_TRY(st, ls_pipeline_open_window(s, window, s->args.model->flat * size, what), out);
    for (int i = 0; i < n; i++)
        LS_TRY(st, ls_pipeline_back_window(s, window, ranges[i], size, what), out);
out:
    return st;
}

static ls_status open_state(ls_step *s)
{
    static const char *const names[3] = {"weights", "first moments", "second moments"};
    ls_pipeline *x = s->pipeline;
    ls_status st = LS_OK;

    for (int i = 0; i < ls_optim_kinds(s->args.run); i++) {
        if (s->args.kept)
            x->state[i] = ls_pipeline_window(s->args.model, s->args.kept[i]);
        else
            LS_TRY(st, open_array(s, &x->state[i], i == 0, sizeof(float), names[i]), out);
        s->state_memory[i] = x->state[i].base;
    }
    if (s->type != LS_F32) {
        LS_TRY(st, open_array(s, &x->copy, true, ls_dtype_bytes(s->type), "weights in 16 bits"),
               out);
        s->copy = x->copy.base;
    }
    st = open_grads(s);
out:
    return st;
}

/* The sums over pipelines: one a chunk, and in the last stage one of the head's gradient of a tied
 * embedding. */
static ls_status open_sums(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    const ls_stage_plan *plan = &x->plan;
    bool tied = ls_pipeline_is_tied(x) && ls_stage_plan_is_last(plan);
    ls_status st = LS_OK;

    for (int i = 0;
         i < plan->chunks + tied && x->stage_comm && !ls_pipeline_is_parted(x) && st == LS_OK;
         i++) {
        bool head = i == plan->chunks;
        ls_dp_args dp = ls_pipeline_memory_sum(s->args.run, &x->mesh,
                                               head ? plan->tied.count : plan->chunk[i].own.count,
                                               plan->divides && !head);
        dp.comm = x->stage_comm;
        if (dp.trained > 0)
            st = ls_dp_open(&x->sums[i], &dp);
    }
    return st;
}

static ls_status open_passes(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    ls_status st = LS_OK;

    for (int c = 0; c < x->plan.chunks; c++) {
        ls_pass_args pass = ls_pipeline_memory_pass(s->args.run, s->args.model, s->args.kernels,
                                                    &s->args.calls, &x->plan.chunk[c]);
        ls_packed_weights_args packs;
        ls_step_connect_pass(s, &pass);
        if (s->args.pack && x->plan.zero < 3 && ls_pipeline_memory_packs(&pass, &packs)) {
            packs.stream = s->args.stream;
            LS_TRY(st, ls_packed_weights_open(&x->packs[c], &packs), out);
            pass.packs = x->packs[c];
        }
        LS_TRY(st, ls_pass_open(&x->passes[c], &pass), out);
    }
    s->pass = x->passes[0];
out:
    return st;
}

static ls_status open_buffers(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    const ls_stage_plan *plan = &x->plan;
    const ls_calls *calls = &s->args.calls;
    size_t most = (size_t)x->most, cells = (size_t)plan->chunks * most;
    int64_t bytes = ls_pipeline_memory_buffer_bytes(plan, s->args.run, s->args.model, calls);
    ls_status st;

    x->stream_bytes = ls_pipeline_memory_stream_bytes(s->args.run, s->args.model, calls);
    x->gradient_bytes = x->stream_bytes * ls_pass_border(s->args.model);
    x->edge_count = ls_stage_plan_edges(plan, NULL);
    x->parts = ls_mem_array(most, sizeof *x->parts);
    x->items = ls_mem_array(cells, sizeof *x->items);
    x->slots = ls_mem_array(cells, sizeof *x->slots);
    x->late = ls_mem_array(cells, sizeof *x->late);
    x->stream_used = ls_mem_array((size_t)plan->streams, sizeof *x->stream_used);
    x->gradient = ls_mem_array((size_t)plan->gradients, sizeof *x->gradient);
    x->edge_blocks = ls_mem_array((size_t)x->edge_count, sizeof *x->edge_blocks);
    if (!x->parts || !x->items || !x->slots || !x->late || !x->stream_used || !x->gradient ||
        !x->edge_blocks)
        return ls_fail(LS_ENOMEM, "no memory for the tables of %zu micro-batches", most);
    (void)ls_stage_plan_edges(plan, x->edge_blocks);
    st = ls_device_alloc(ls_step_device(s), bytes, "pipeline", &x->memory);
    x->streams = x->memory;
    x->gradients = x->streams + plan->streams * x->stream_bytes;
    x->edges = (float *)(void *)(x->gradients + plan->gradients * x->gradient_bytes);
    return st;
}

ls_status ls_pipeline_plan_step(ls_step *s)
{
    const ls_run *run = s->args.run;
    const ls_mesh *mesh = &ls_dp_args_of(s->args.dp)->mesh;
    ls_comm *world = ls_dp_args_of(s->args.dp)->comm;
    int pipelines = ls_mesh_pipelines(mesh);
    ls_pipeline *x = s->pipeline = ls_mem_alloc(sizeof *x);
    ls_status st;

    if (!x)
        return LS_ENOMEM;
    *x = (ls_pipeline){.mesh = *mesh, .most = ls_stage_plan_micros(run, mesh, &s->args.calls)};
    LS_TRY(st, ls_stage_plan_init(&x->plan, run, s->args.model, mesh, x->most, run->batch.ramp > 0),
           out);
    s->has_losses = ls_stage_plan_is_last(&x->plan);
    LS_TRY(st,
           ls_blocking_sub(world, x->plan.pipeline, pipelines, x->plan.pp_ranks,
                           ls_pipeline_deadline(), &x->pipeline_comm),
           out);
    if (pipelines > 1)
        st = ls_blocking_sub(world, x->plan.pp_rank * pipelines, 1, pipelines,
                             ls_pipeline_deadline(), &x->stage_comm);
out:
    return st;
}

ls_status ls_pipeline_memory(ls_step *s)
{
    ls_status st;

    LS_TRY(st, open_state(s), out);
    LS_TRY(st, open_sums(s), out);
    LS_TRY(st, ls_pipeline_open_parts(s), out);
    LS_TRY(st, open_passes(s), out);
    LS_TRY(st, open_buffers(s), out);
    LS_TRY(st, ls_pipeline_open_device(s), out);
    LS_TRY(st, ls_pipeline_open_host_stage(s), out);
out:
    return st;
}

void ls_pipeline_close(ls_step *s)
{
    ls_pipeline *x = s->pipeline;

    if (!x)
        return;
    ls_pipeline_close_device(x);
    for (int i = 0; i < 3; i++) {
        s->state_memory[i] = NULL;
        if (!s->args.kept) /* else the step could not be opened, and they stay with their owner */
            ls_pipeline_close_window(s, &x->state[i]);
    }
    s->copy = NULL;
    s->pass = NULL;
    ls_pipeline_close_window(s, &x->copy);
    ls_pipeline_close_host_stage(s);
    for (int c = 0; c < LS_STAGE_PLAN_CHUNKS; c++) {
        ls_pass_close(x->passes[c]);
        ls_packed_weights_close(x->packs[c]);
        for (int i = 0; i < LS_ORDERED_ROOTS; i++)
            ls_pipeline_close_window(s, &x->grads[c][i]);
    }
    for (int i = 0; i < LS_ORDERED_ROOTS; i++)
        ls_pipeline_close_window(s, &x->head[i]);
    for (int i = 0; i <= LS_STAGE_PLAN_CHUNKS; i++)
        ls_dp_close(x->sums[i]);
    ls_pipeline_close_parts(s);
    ls_comm_close(x->stage_comm);
    ls_comm_close(x->pipeline_comm);
    ls_device_free(ls_step_device(s), x->memory);
    ls_mem_free(x->parts);
    ls_mem_free(x->items);
    ls_mem_free(x->slots);
    ls_mem_free(x->late);
    ls_mem_free(x->stream_used);
    ls_mem_free(x->gradient);
    ls_mem_free(x->edge_blocks);
    ls_stage_plan_release(&x->plan);
    ls_mem_free(x);
    s->pipeline = NULL;
}

ls_status ls_pipeline_keep(ls_step *s, void *kept_out[3])
{
    ls_pipeline *x = s->pipeline;

    for (int i = 0; i < 3; i++) {
        kept_out[i] = x->state[i].base;
        x->state[i] = (ls_window){.base = NULL};
        s->state_memory[i] = NULL;
    }
    return LS_OK;
}

ls_status ls_pipeline_split(ls_step *s, const ls_ordered_run *runs)
{
    ls_pipeline *x = s->pipeline;
    ls_status st;

    if (ls_step_is_ep(s))
        LS_TRY(st, ls_step_expert_split(s, runs), out);
    LS_TRY(st, ls_stage_plan_set(&x->plan, ls_max_i64(1, ls_pipeline_micros(s))), out);
    for (int i = 0; i <= LS_STAGE_PLAN_CHUNKS; i++) /* first ranks: stage 0, by pipelines */
        if (x->sums[i] && !ls_step_is_ep(s))
            LS_TRY(st, ls_dp_split(x->sums[i], runs, s->now.leaves), out);
out:
    return st;
}
