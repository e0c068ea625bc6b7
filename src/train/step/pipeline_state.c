/* pipeline_state.c -- what a rank of a line has, and what lines and posts agree on outside of the
 * table.
 *
 *                 line 0          line 1
 *   post 0      w m v, grads    w m v, grads      embedding, first blocks
 *                 |               |                across: sums of gradients (parallel/dp.h), chunk
 *   post 1      w m v, grads    w m v, grads               by chunk; with ZeRO 1 new weights
 *                 |               |                along:  squares for the norm; of a tied
 * embedding post 2      w m v, grads    w m v, grads               the head's gradient up, the
 * weights down
 *
 * A tied embedding belongs to the first post. Its two gradients are summed over leaves, then over
 * lines, apart from each other; then the last post sends the head's to the first one, which adds it
 * to the embedding's, as a process alone does, updates, and sends the new weights to the last one.
 * Rejected: both ends exchange gradients and update alike, which takes moments and a gradient more
 * on the last post, the one that has the head's work already.
 *
 * With ZeRO 2 and 3 both gradients of a tied embedding are divided among lines, each in its own
 * way: the last post's ranks send what they have of the head's to those of the first post that
 * update it. With ZeRO 3 they divide the copy of the weights likewise.
 *
 * The norm is the tree over fixed blocks of the whole gradient. A block that one rank of a line
 * updates alone (with ZeRO: one of all) is squared by it. One that a border cuts (an edge) is put
 * together from its pieces on every rank, by a sum with zeros, which changes no bit, and squared by
 * all of them. */
#include "train/step/pipeline_impl.h"

#include "base/fault.h"
#include "base/mem.h"

/* --- opening ----------------------------------------------------------------------------------
 */

/* A communicator of this rank's line, or of its post. */
static ls_status open_comm(const ls_step *s, const ls_mesh *mesh, bool along, ls_comm **comm_out)
{
    int n = along ? ls_mesh_pp(mesh) : ls_mesh_pipelines(mesh), pipelines = ls_mesh_pipelines(mesh);
    int *list = ls_mem_array((size_t)n, sizeof *list);
    ls_status st;

    if (!list)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", n);
    for (int i = 0; i < n; i++)
        list[i] = along ? i * pipelines + ls_mesh_pipeline(mesh, mesh->rank)
                        : ls_mesh_pp_rank(mesh, mesh->rank) * pipelines + i;
    st = ls_comm_sub(ls_dp_about(s->args.dp)->comm, list, n, ls_pipeline_deadline(), comm_out);
    ls_mem_free(list);
    return st;
}

/* Elements of the window of a gradient: with lines, the room that their sum takes. */
static int64_t grad_end(const ls_step *s, ls_stage_plan_range own, bool divides)
{
    ls_dp_args dp = ls_pipeline_memory_sum(s->args.run, &s->pipeline->mesh, own.count, divides);

    return own.first + (s->pipeline->stage_comm && own.count > 0 ? ls_dp_elements(&dp) : own.count);
}

static ls_status open_grad(const ls_step *s, ls_window *window, ls_stage_plan_range own,
                           bool divides)
{
    const int64_t size = sizeof(float);
    ls_status st;

    LS_TRY(st, ls_pipeline_open_window(s, window, grad_end(s, own, divides) * size, "gradients"),
           out);
    st = ls_pipeline_back_window(s, window, own, size, "gradients");
out:
    return st;
}

static ls_status open_grads(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    const ls_stage_plan *plan = &x->plan;
    ls_stage_plan_range head = {0, plan->tied.count};
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

/* An array of the state: of weights this rank has all that its chunks read, of moments what it
 * updates. */
static ls_status open_array(const ls_step *s, ls_window *window, bool weights, int64_t size,
                            const char *what)
{
    const ls_stage_plan *plan = &s->pipeline->plan;
    ls_stage_plan_range ranges[LS_STAGE_PLAN_BUCKETS + 1];
    int n = weights ? ls_stage_plan_ranges(plan, ranges) : ls_pipeline_owns(s);
    ls_status st;

    for (int i = 0; i < n && !weights; i++) {
        ls_mesh_part own = ls_pipeline_own(s, i);
        ranges[i] = (ls_stage_plan_range){own.first, own.count};
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

/* What lines sum: each chunk, and on the last post the head's part of a tied gradient. */
static ls_status open_sums(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    const ls_stage_plan *plan = &x->plan;
    bool tied = ls_pipeline_is_tied(x) && ls_stage_plan_is_last(plan);
    ls_status st = LS_OK;

    for (int i = 0; i < plan->chunks + tied && x->stage_comm && !ls_pipeline_is_parted(x); i++) {
        bool head = i == plan->chunks;
        ls_dp_args dp = ls_pipeline_memory_sum(s->args.run, &x->mesh,
                                               head ? plan->tied.count : plan->chunk[i].own.count,
                                               plan->divides && !head);
        dp.comm = x->stage_comm;
        if (dp.trained > 0)
            LS_TRY(st, ls_dp_open(&x->sums[i], &dp), out);
    }
out:
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
        pass.stream = s->args.stream;
        pass.collectives = s->args.tp_group ? ls_mp_group_collectives(s->args.tp_group) : NULL;
        pass.cp_group.collectives =
            s->args.cp_group ? ls_mp_group_collectives(s->args.cp_group) : NULL;
        pass.ep_group = s->args.ep_group ? ls_mp_group_collectives(s->args.ep_group) : NULL;
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
    st = ls_device_alloc(ls_stream_device(s->args.stream), bytes, "pipeline", &x->memory);
    x->streams = x->memory;
    x->gradients = x->streams + plan->streams * x->stream_bytes;
    x->edges = (float *)(void *)(x->gradients + plan->gradients * x->gradient_bytes);
    return st;
}

ls_status ls_pipeline_open(ls_step *step)
{
    ls_step *s = step;
    const ls_run *run = s->args.run;
    const ls_mesh *mesh = s->args.dp ? &ls_dp_about(s->args.dp)->mesh : NULL;
    ls_status st = LS_OK;

    if (ls_mesh_pp(mesh) == 1)
        return LS_OK;
    ls_pipeline *x = s->pipeline = ls_mem_alloc(sizeof *x);
    if (!x)
        return LS_ENOMEM;
    *x = (ls_pipeline){.mesh = *mesh, .most = ls_stage_plan_micros(run, mesh, &s->args.calls)};
    LS_TRY(st, ls_stage_plan_init(&x->plan, run, s->args.model, mesh, x->most, run->batch.ramp > 0),
           out);
    LS_TRY(st, open_comm(s, mesh, true, &x->pipeline_comm), out);
    if (ls_mesh_pipelines(mesh) > 1)
        LS_TRY(st, open_comm(s, mesh, false, &x->stage_comm), out);
    LS_TRY(st, open_state(s), out);
    LS_TRY(st, open_sums(s), out);
    LS_TRY(st, ls_pipeline_open_parts(s), out);
    LS_TRY(st, open_passes(s), out);
    LS_TRY(st, open_buffers(s), out);
    LS_TRY(st, ls_pipeline_open_travel(s), out);
out:
    return st;
}

void ls_pipeline_close(ls_step *step)
{
    ls_step *s = step;
    ls_pipeline *x = s->pipeline;

    if (!x)
        return;
    for (int i = 0; i < 3; i++) {
        s->state_memory[i] = NULL;
        if (!s->args.kept) /* else it could not be opened, and they stay their owner's */
            ls_pipeline_close_window(s, &x->state[i]);
    }
    s->copy = NULL;
    s->pass = NULL;
    ls_pipeline_close_window(s, &x->copy);
    ls_pipeline_close_travel(s);
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
    ls_device_free(ls_stream_device(s->args.stream), x->memory);
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

void ls_pipeline_keep(ls_step *step, void *kept_out[3])
{
    ls_pipeline *x = step->pipeline;

    for (int i = 0; i < 3; i++) {
        kept_out[i] = x->state[i].base;
        x->state[i] = (ls_window){.base = NULL};
        step->state_memory[i] = NULL;
    }
}

ls_status ls_pipeline_split(ls_step *step, const ls_ordered_run *runs)
{
    ls_pipeline *x = step->pipeline;
    ls_status st;

    LS_TRY(st, ls_stage_plan_set(&x->plan, ls_max_i64(1, ls_pipeline_micros(step))), out);
    for (int i = 0; i <= LS_STAGE_PLAN_CHUNKS;
         i++) /* the first ranks are those of post 0, by lines */
        if (x->sums[i] && !ls_step_is_ep(step))
            LS_TRY(st, ls_dp_split(x->sums[i], runs, step->now.leaves), out);
out:
    return st;
}

/* --- what it has and updates -------------------------------------------------------------------
 */

/* Buckets of the chunks of this rank. */
int ls_pipeline_owns(const ls_step *step)
{
    const ls_stage_plan *plan = &step->pipeline->plan;
    int n = 0;

    for (int c = 0; c < plan->chunks; c++)
        n += ls_stage_plan_buckets(plan, plan->pp_rank, c);
    return n;
}

/* What it updates of number i of them, which is in a chunk. */
static ls_stage_plan_range updated(const ls_pipeline *x, int pipeline, int i, int *chunk_out)
{
    int c = 0, n;

    for (; i >= (n = ls_stage_plan_buckets(&x->plan, x->plan.pp_rank, c)); c++)
        i -= n;
    *chunk_out = c;
    return ls_stage_plan_updated(&x->plan, x->plan.pp_rank, pipeline, c, i);
}

ls_mesh_part ls_pipeline_updated(const ls_step *step, int pipeline, int i)
{
    int chunk;
    ls_stage_plan_range r = updated(step->pipeline, pipeline, i, &chunk);

    return (ls_mesh_part){.first = r.first, .count = r.count, .packed = r.first};
}

ls_mesh_part ls_pipeline_own(const ls_step *step, int i)
{
    return ls_pipeline_updated(step, step->pipeline->plan.pipeline, i);
}

float *ls_pipeline_gradient(const ls_step *step, int64_t first)
{
    const ls_pipeline *x = step->pipeline;
    int c = 0;

    while (c < x->plan.chunks - 1 &&
           (first < x->plan.chunk[c].own.first ||
            first >= x->plan.chunk[c].own.first + x->plan.chunk[c].own.count))
        c++;
    return ls_pipeline_grad(x, c, 0) + first;
}

void ls_pipeline_put(ls_step *step, int64_t first, int64_t count, const float *values)
{
    ls_step *s = step;
    ls_stage_plan_range kept[LS_STAGE_PLAN_BUCKETS + 1];
    int n = ls_stage_plan_ranges(&s->pipeline->plan, kept);

    for (int i = 0; i < n; i++) {
        int64_t low = ls_max_i64(first, kept[i].first);
        int64_t high = ls_min_i64(first + count, kept[i].first + kept[i].count);
        if (low < high)
            ls_stream_copy_in(s->args.stream, (float *)s->state_memory[0] + low,
                              values + low - first, (high - low) * (int64_t)sizeof *values);
    }
}

void ls_pipeline_changed(ls_step *step)
{
    ls_step *s = step;
    ls_stage_plan_range kept[LS_STAGE_PLAN_BUCKETS + 1];
    int n = ls_stage_plan_ranges(&s->pipeline->plan, kept);

    for (int c = 0; c < s->pipeline->plan.chunks; c++)
        ls_packed_weights_changed(s->pipeline->packs[c]);
    for (int i = 0; i < n && s->copy; i++)
        s->args.kernels->cast(
            s->args.stream,
            &(ls_cast){.from_type = LS_F32,
                       .to_type = s->type,
                       .from = (float *)s->state_memory[0] + kept[i].first,
                       .to = (char *)s->copy + kept[i].first * ls_dtype_bytes(s->type),
                       .n = kept[i].count,
                       .rounding = ls_step_rounding(s->args.run, kept[i].first)});
}

/* --- sums -------------------------------------------------------------------------------------
 */

/* The gradients of sum i, buffer by buffer, from its first element on. */
static void buffers_of(const ls_step *s, int i, float *buffers[LS_ORDERED_ROOTS])
{
    const ls_pipeline *x = s->pipeline;

    for (int b = 0; b < s->args.calls.buffers; b++)
        buffers[b] = i < x->plan.chunks ? ls_pipeline_grad(x, i, b) + x->plan.chunk[i].own.first
                                        : ls_pipeline_head(x, b);
}

static ls_status start_sum(ls_step *s, int i)
{
    float *buffers[LS_ORDERED_ROOTS];

    if (!s->pipeline->sums[i])
        return LS_OK;
    if (s->pipeline->host_stage.messages) { /* they meet when all of them have come to the host */
        ls_pipeline_take_sum(s, i);
        return LS_OK;
    }
    buffers_of(s, i, buffers);
    return ls_dp_sum_from(s->pipeline->sums[i], buffers, 0);
}

static ls_status end_sum(ls_step *s, int i)
{
    float *buffers[LS_ORDERED_ROOTS];

    if (!s->pipeline->sums[i])
        return LS_OK;
    if (s->pipeline->host_stage.messages)
        return ls_pipeline_bring_sum(s, i);
    buffers_of(s, i, buffers);
    return ls_dp_sum_end(s->pipeline->sums[i], buffers);
}

/* On a device with a memory of its own: begin all sums, whose parts are on their way to the host,
 * in the same order on all ranks. */
static ls_status begin_there(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    ls_status st = LS_OK;

    if (!x->host_stage.messages || !x->stage_comm)
        return LS_OK;
    LS_TRY(st, ls_step_await(s), out);
    for (int i = x->plan.chunks; i >= 0; i--)
        if (x->sums[i])
            LS_TRY(st, ls_pipeline_sum_there(s, i), out);
out:
    return st;
}

ls_status ls_pipeline_start_sums(ls_step *step)
{
    ls_pipeline *x = step->pipeline;
    ls_status st = LS_OK;

    if (ls_pipeline_is_parted(x)) /* they have left with every micro-batch */
        return LS_OK;
    for (; x->next_sum >= 0 && x->left[x->next_sum] == 0; x->next_sum--) {
        if (x->next_sum == x->plan.chunks - 1)
            LS_TRY(st, start_sum(step, x->plan.chunks), out);
        LS_TRY(st, start_sum(step, x->next_sum), out);
    }
out:
    return st;
}

/* Of a range that a rank has and another gets: which of both is the host's, on a device with a
 * memory of its own. */
typedef enum host_side { NEITHER, SOURCE, TARGET } host_side;

/* In pieces, as the other end goes through a device's memory. */
static ls_status carry_on_host(ls_comm *comm, ls_coll coll)
{
    const int64_t most = LS_STAGE_PLAN_PIECE / (int64_t)sizeof(float), all = coll.count;
    ls_coll piece = coll;
    ls_status st = LS_OK;

    for (int64_t done = 0; done < all && st == LS_OK; done += most) {
        piece.count = ls_min_i64(most, all - done);
        piece.in = (const float *)coll.in + done;
        piece.out = (float *)coll.out + done;
        st = ls_comm_run(comm, &piece, ls_pipeline_deadline());
    }
    return st;
}

/* One range from a rank to another; whoever is neither does nothing. */
static ls_status carry(const ls_step *s, int from, int to, const float *source, float *target,
                       int64_t count, host_side host)
{
    const ls_dp_args *world = ls_dp_about(s->args.dp);
    int64_t bytes = count * (int64_t)sizeof *target;
    int me = world->mesh.rank;
    bool sends = me == from;
    ls_coll coll = {.kind = sends ? LS_COLL_SEND : LS_COLL_RECV,
                    .type = LS_F32,
                    .count = count,
                    .in = sends ? source : target,
                    .out = sends ? (void *)(uintptr_t)source : target,
                    .peer = sends ? to : from};

    if (count == 0 || (me != from && me != to))
        return LS_OK;
    if (from == to) {
        if (host == TARGET)
            ls_stream_copy_out(s->args.stream, target, source, bytes);
        else
            ls_stream_copy_in(s->args.stream, target, source, bytes);
        return ls_stream_sync(s->args.stream, ls_pipeline_deadline());
    }
    if (s->pipeline->host_stage.pieces && host == (sends ? SOURCE : TARGET))
        return carry_on_host(world->comm, coll);
    return ls_pipeline_run(s, world->comm, &coll);
}

/* Zero 2 and 3: what the ranks of the last post have of the head's part of a tied gradient, to
 * those of the first post that update it; or the other way round, the weights. One pair after the
 * other, in the same order on all ranks. sent: bytes of this one are added there. */
static ls_status swap_tied(const ls_step *s, bool gradient, int64_t *sent)
{
    const ls_pipeline *x = s->pipeline;
    const ls_stage_plan *plan = &x->plan;
    int pipelines = plan->pipelines, buckets = ls_stage_plan_buckets(plan, 0, 0);
    int me = plan->pp_rank * pipelines + plan->pipeline;
    ls_status st = LS_OK;

    for (int i = 0; i < pipelines * pipelines * buckets && plan->tied.count > 0; i++) {
        int low = i / buckets % pipelines, last = i / buckets / pipelines;
        int high = (plan->pp_ranks - 1) * pipelines + last, from = gradient ? high : low;
        ls_stage_plan_range r =
            ls_stage_plan_common(ls_stage_plan_tied_part(plan, last),
                                 ls_stage_plan_updated(plan, 0, low, 0, i % buckets));
        if (r.count == 0 || (me != low && me != high))
            continue;
        float *at = gradient ? ls_pipeline_head(x, 0) + r.first - plan->tied.first
                             : (float *)s->state_memory[0] + r.first;
        LS_TRY(st, carry(s, from, gradient ? low : high, at, at, r.count, NEITHER), out);
        *sent += from == me ? r.count * (int64_t)sizeof *at : 0;
    }
out:
    return st;
}

/* The head's part of a tied gradient goes from the last post to the first. */
static ls_status send_head(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    bool last = ls_stage_plan_is_last(&x->plan);
    ls_stage_plan_range tied = x->plan.tied;
    float *head = ls_pipeline_head(x, 0);
    ls_status st;

    st = ls_pipeline_run(s, x->pipeline_comm,
                         &(ls_coll){.kind = last ? LS_COLL_SEND : LS_COLL_RECV,
                                    .type = LS_F32,
                                    .count = tied.count,
                                    .in = head,
                                    .out = head,
                                    .peer = last ? 0 : x->plan.pp_ranks - 1});
    x->sent_bytes += last ? tied.count * (int64_t)sizeof *head : 0;
    return st;
}

/* And is added to the embedding's there, as far as this rank updates it. */
static ls_status tie(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    ls_stage_plan_range tied = x->plan.tied;
    ls_status st = ls_pipeline_is_parted(x) ? swap_tied(s, true, &x->sent_bytes) : send_head(s);

    for (int b = 0; b < ls_stage_plan_buckets(&x->plan, 0, 0) && ls_stage_plan_is_first(&x->plan);
         b++) {
        ls_stage_plan_range own =
            ls_stage_plan_common(tied, ls_stage_plan_updated(&x->plan, 0, x->plan.pipeline, 0, b));
        float *embedding = ls_pipeline_grad(x, 0, 0) + own.first;
        if (own.count > 0 && st == LS_OK)
            s->args.kernels->add(s->args.stream,
                                 &(ls_add){.a = embedding,
                                           .b = ls_pipeline_head(x, 0) + own.first - tied.first,
                                           .out = embedding,
                                           .n = own.count});
    }
    return st;
}

ls_status ls_pipeline_end_sums(ls_step *step)
{
    ls_pipeline *x = step->pipeline;
    ls_status st = LS_OK;

    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_REDUCE), out);
    LS_TRY(st, ls_pipeline_give_end(step), out);
    LS_TRY(st, begin_there(step), out);
    LS_TRY(st, end_sum(step, x->plan.chunks), out);
    for (int c = x->plan.chunks - 1; c >= 0; c--)
        LS_TRY(st, end_sum(step, c), out);
    if (ls_pipeline_is_tied(x))
        st = tie(step);
out:
    return st;
}

/* --- the norm ---------------------------------------------------------------------------------
 */

/* Over those who have the rest: the line, or, where lines divide it, all ranks. */
static ls_status add_up(const ls_step *s, float *numbers, int64_t n)
{
    const ls_pipeline *x = s->pipeline;

    return ls_pipeline_run(
        s, x->plan.divides ? ls_dp_about(s->args.dp)->comm : x->pipeline_comm,
        &(ls_coll){
            .kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = n, .in = numbers, .out = numbers});
}

/* Squares of the blocks that lie in number i of what this rank updates. */
static void square_own(ls_step *s, const ls_norm2 *whole, int i)
{
    const ls_pipeline *x = s->pipeline;
    int chunk;
    ls_stage_plan_range own = updated(x, x->plan.pipeline, i, &chunk);
    int64_t end = own.first + own.count;
    int64_t first = ls_round_up(own.first, LS_NORM_BLOCK);
    ls_norm2 blocks = *whole;

    if (end < whole->n)
        end = end / LS_NORM_BLOCK * LS_NORM_BLOCK;
    if (first >= end)
        return;
    blocks.part = LS_NORM_SQUARES;
    blocks.x = ls_pipeline_grad(x, chunk, 0) + first;
    blocks.partials = whole->partials + first / LS_NORM_BLOCK;
    blocks.n = end - first;
    s->args.kernels->norm2(s->args.stream, &blocks);
}

/* The own elements of the edges, and zeros where others have theirs. */
static void bring_edges(const ls_step *s)
{
    const ls_pipeline *x = s->pipeline;

    s->args.kernels->fill(s->args.stream,
                          &(ls_fill){.x = x->edges, .n = x->edge_count * LS_NORM_BLOCK});
    for (int64_t i = 0; i < x->edge_count; i++)
        for (int k = 0; k < ls_pipeline_owns(s); k++) {
            ls_stage_plan_range block = {x->edge_blocks[i] * LS_NORM_BLOCK, LS_NORM_BLOCK};
            int c;
            ls_stage_plan_range own =
                ls_stage_plan_common(block, updated(x, x->plan.pipeline, k, &c));
            if (own.count > 0)
                ls_stream_copy(
                    s->args.stream, x->edges + i * LS_NORM_BLOCK + own.first - block.first,
                    ls_pipeline_grad(x, c, 0) + own.first, own.count * (int64_t)sizeof *x->edges);
        }
}

ls_status ls_pipeline_norm(ls_step *step, const ls_norm2 *whole)
{
    ls_step *s = step;
    ls_pipeline *x = s->pipeline;
    int64_t blocks = (whole->n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    ls_norm2 join = *whole, edge = *whole;
    ls_status st = LS_OK;

    s->args.kernels->fill(s->args.stream, &(ls_fill){.x = whole->partials, .n = blocks});
    for (int i = 0; i < ls_pipeline_owns(s); i++)
        square_own(s, whole, i);
    LS_TRY(st, add_up(s, whole->partials, blocks), out);
    if (x->edge_count > 0) {
        bring_edges(s);
        LS_TRY(st, add_up(s, x->edges, x->edge_count * LS_NORM_BLOCK), out);
    }
    for (int64_t i = 0; i < x->edge_count; i++) {
        int64_t block = x->edge_blocks[i];
        edge.part = LS_NORM_SQUARES;
        edge.x = x->edges + i * LS_NORM_BLOCK;
        edge.partials = whole->partials + block;
        edge.n = ls_min_i64(LS_NORM_BLOCK, whole->n - block * LS_NORM_BLOCK);
        s->args.kernels->norm2(s->args.stream, &edge);
    }
    join.part = LS_NORM_JOIN;
    s->args.kernels->norm2(s->args.stream, &join);
out:
    return st;
}

/* --- the state as a whole ---------------------------------------------------------------------
 */

static bool is_moment(const ls_step *s, const float *array)
{
    return array != s->state_memory[0];
}

/* Whether each line has its part of an array only. */
static bool is_divided(const ls_step *s, const float *array)
{
    return s->pipeline->plan.divides && (is_moment(s, array) || s->pipeline->plan.zero == 3);
}

/* What a post has of a bucket of an array. */
static ls_stage_plan_range range_of(const ls_step *s, const float *array, int pp_rank, int chunk,
                                    int bucket)
{
    const ls_stage_plan *plan = &s->pipeline->plan;

    return is_moment(s, array) ? ls_stage_plan_bucket(plan, pp_rank, chunk, bucket)
                               : ls_stage_plan_weights_bucket(plan, pp_rank, chunk, bucket);
}

/* All ranges of an array of all posts, between who has them and the first rank's whole: the first
 * line, or, of what lines divide, all of them. */
static ls_status carry_all(const ls_step *s, bool collect, const float *from, float *to)
{
    const ls_pipeline *x = s->pipeline;
    const float *array = collect ? from : to;
    int pipelines = x->plan.pipelines;
    bool parts = is_divided(s, array);
    ls_status st = LS_OK;

    for (int rank = 0; rank < x->plan.pp_ranks * pipelines; rank += parts ? 1 : pipelines)
        for (int c = 0; c < x->plan.chunks; c++)
            for (int b = 0; b < ls_stage_plan_buckets(&x->plan, rank / pipelines, c); b++) {
                ls_stage_plan_range r = parts ? ls_stage_plan_updated(&x->plan, rank / pipelines,
                                                                      rank % pipelines, c, b)
                                              : range_of(s, array, rank / pipelines, c, b);
                LS_TRY(st,
                       carry(s, collect ? rank : 0, collect ? 0 : rank,
                             from ? from + r.first : NULL, to ? to + r.first : NULL, r.count,
                             collect ? TARGET : SOURCE),
                       out);
            }
    if (x->host_stage.pieces) /* the host's memory is the caller's again */
        st = ls_stream_sync(s->args.stream, ls_pipeline_deadline());
out:
    return st;
}

/* The weights of a tied embedding from the first post to the copy on the last; sent as above. */
static ls_status copy_tied(const ls_step *s, int64_t *sent)
{
    const ls_pipeline *x = s->pipeline;
    ls_stage_plan_range copied = x->plan.copied;
    float *w = (float *)s->state_memory[0] + copied.first;

    if (x->plan.zero == 3)
        return swap_tied(s, false, sent);
    *sent += ls_stage_plan_is_first(&x->plan) ? copied.count * (int64_t)sizeof *w : 0;
    int first = x->plan.pipeline,
        last = (x->plan.pp_ranks - 1) * x->plan.pipelines + x->plan.pipeline;

    return carry(s, first, last, w, w, copied.count, NEITHER);
}

/* What one rank of the post has of an array, to all of them. */
static ls_status tell_across(const ls_step *s, int pipeline, ls_stage_plan_range r, float *array)
{
    if (r.count == 0)
        return LS_OK;
    return ls_pipeline_run(s, s->pipeline->stage_comm,
                           &(ls_coll){.kind = LS_COLL_BROADCAST,
                                      .type = LS_F32,
                                      .count = r.count,
                                      .in = array + r.first,
                                      .out = array + r.first,
                                      .peer = pipeline});
}

/* What each rank of the post has of all buckets of an array, as ls_coll_range() divides them, to
 * all of them. */
static ls_status gather_across(const ls_step *s, float *array)
{
    const ls_pipeline *x = s->pipeline;
    ls_status st = LS_OK;

    for (int c = 0; c < x->plan.chunks; c++)
        for (int b = 0; b < ls_stage_plan_buckets(&x->plan, x->plan.pp_rank, c); b++) {
            ls_stage_plan_range all = range_of(s, array, x->plan.pp_rank, c, b);
            LS_TRY(st,
                   ls_comm_run(x->stage_comm,
                               &(ls_coll){.kind = LS_COLL_ALL_GATHER,
                                          .type = LS_F32,
                                          .count = all.count,
                                          .in = array + all.first,
                                          .out = array + all.first},
                               ls_pipeline_deadline()),
                   out);
        }
out:
    return st;
}

/* Zero 2: the new weights of all lines. */
static ls_status gather_updated(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    ls_status st = gather_across(s, s->state_memory[0]);

    for (int i = 0; i < ls_pipeline_owns(s); i++)
        x->flow.sent_bytes +=
            ls_pipeline_own(s, i).count * (x->plan.pipelines - 1) * (int64_t)sizeof(float);
    return st;
}

ls_status ls_pipeline_spread(ls_step *step)
{
    const ls_pipeline *x = step->pipeline;
    float *w = step->state_memory[0];
    int64_t once = 0;
    ls_status st = LS_OK;

    if (x->plan.zero == 2)
        LS_TRY(st, gather_updated(step), out);
    for (int c = 0; c < x->plan.chunks && x->plan.zero == 1; c++)
        for (int pipeline = 0; pipeline < x->plan.pipelines; pipeline++)
            LS_TRY(st,
                   tell_across(step, pipeline,
                               ls_stage_plan_updated(&x->plan, x->plan.pp_rank, pipeline, c, 0), w),
                   out);
    if (x->plan.tied.count > 0)
        LS_TRY(st, copy_tied(step, &step->pipeline->sent_bytes), out);
    else if (!x->copied) /* one that is frozen: once, for a rank that came when others were there */
        LS_TRY(st, copy_tied(step, &once), out);
    step->pipeline->copied = true;
    ls_pipeline_changed(step);
out:
    return st;
}

ls_status ls_pipeline_collect(ls_step *step, const float *array, float *whole)
{
    return carry_all(step, true, array, whole);
}

ls_status ls_pipeline_deal(ls_step *step, const float *whole, float *array)
{
    const ls_pipeline *x = step->pipeline;
    bool parts = is_divided(step, array);
    int64_t sent = 0;
    ls_status st = LS_OK;

    LS_TRY(st, carry_all(step, false, whole, array), out);
    for (int c = 0; c < x->plan.chunks && x->stage_comm && !parts; c++)
        LS_TRY(st,
               tell_across(step, 0,
                           is_moment(step, array) ? x->plan.chunk[c].own : x->plan.chunk[c].weights,
                           array),
               out);
    if (!is_moment(step, array))
        st = copy_tied(step, &sent);
out:
    return st;
}

const ls_stage_plan *ls_pipeline_plan(const ls_step *step)
{
    return step->pipeline ? &step->pipeline->plan : NULL;
}

ls_status ls_pipeline_complete(ls_step *step, float *array)
{
    const ls_pipeline *x = step->pipeline;
    int64_t sent = 0;
    ls_status st = LS_OK;

    if (x->stage_comm && !is_divided(step, array))
        LS_TRY(st, gather_across(step, array), out);
    if (!is_moment(step, array))
        st = copy_tied(step, &sent);
out:
    return st;
}
