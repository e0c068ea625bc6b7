/* group_step.c -- what ranks that hold one model between them do in a step (mesh.tp, mesh.ep).
 *
 * Gradients first. Most of a gradient belongs to one rank of the group. A tensor that several ranks
 * have whole (a norm, a bias behind a sum) got a part of its gradient on each of them: these parts
 * are summed before the norm. With mesh.ep that is everything but the experts.
 *
 * The norm of the whole gradient counts each element once: of ranks that have the same element the
 * first counts it. Each rank sums the squares of what it counts, of what it updates; all ranks add
 * these sums up in the same order.
 *
 *   mesh.tp: 2      w (columns)    norm      rank 0 counts   w[:, 0:2] and norm
 *                   0 0 1 1        0 1       rank 1 counts   w[:, 2:4]
 *
 *   collect            mesh slice 0         mesh slice 1
 *   replicas           0 2 4 -> 0           1 3 5 -> 1         layers, or ZeRO's parts, of one slice
 *   first group        0 <----------------- 1                  parameter by parameter
 *   whole model        0                                       the same way back to scatter it
 *
 * The whole model comes together on the first rank only (to save, to sample, to hash). The ranks of
 * the first group send it their parts, parameter by parameter through a small buffer, and it puts
 * each box into its place. On the way back each rank of the first group receives its boxes, and its
 * replicas get them from it. Where replicas divide their part further, by layers or by ZeRO, the
 * rank of the first group collects the part first. */
#include "train/step/pipeline_impl.h"

#include <math.h>
#include "base/mem.h"
#include "parallel/blocking.h"

/* --- the norm --------------------------------------------------------------------------------- */

/* Whether this rank counts what it updates of a parameter: it is the first of those that update the
 * same. */
static bool counts(const ls_step *s, const ls_param *p)
{
    const ls_model *model = s->args.model;

    return p->trained >= 0 && (s->ep_group.parts.at ? model->split.rank % p->box.copies == 0
                                                    : ls_model_counts(model, p));
}

/* The squares of elements first .. end-1, which lie at x, on their way to the host: those of whole
 * norm blocks to their places, which no other rank writes; of a piece of one, behind all of them. */
static void bring_squares(ls_step *s, const ls_norm2 *whole, const float *x, int64_t first,
                          int64_t end)
{
    float *blocks_out = s->mp_group.partials, *cut_out = blocks_out + s->mp_group.blocks;

    for (int64_t at = first, next; at < end; at = next) {
        int64_t block = at / LS_NORM_BLOCK, blocks = (end - at) / LS_NORM_BLOCK;
        bool all = at % LS_NORM_BLOCK == 0 && blocks > 0;
        float *to = all ? blocks_out + block : cut_out + s->mp_group.n_cut;
        ls_norm2 run = *whole;
        next = all ? at + blocks * LS_NORM_BLOCK : ls_min_i64(end, (block + 1) * LS_NORM_BLOCK);
        run.part = LS_NORM_SQUARES;
        run.partials = whole->partials + block;
        run.x = x + at - first;
        run.n = next - at;
        LS_BUG_IF(s->mp_group.n_cut == s->mp_group.most_cut, "more than %lld pieces of norm blocks",
                  (long long)s->mp_group.most_cut);
        if (!all)
            s->mp_group.cut[s->mp_group.n_cut++] = block;
        s->args.kernels->norm2(s->args.stream, &run);
        ls_stream_copy_out(s->args.stream, to, run.partials,
                           (all ? blocks : 1) * (int64_t)sizeof *to);
    }
}

/* Those of what this rank counts of an own part: runs of parameters side by side at a time. */
static void square_part(ls_step *s, const ls_norm2 *whole, ls_mesh_part own)
{
    const ls_model *model = s->args.model;

    for (int i = 0, end; i < model->n_params; i = end) {
        const ls_param *p = &model->params[i];
        for (end = i + 1; end < model->n_params && counts(s, p) && counts(s, &model->params[end]);)
            end++;
        const ls_param *last = &model->params[end - 1];
        int64_t from = ls_max_i64(p->trained, own.first);
        int64_t to = ls_min_i64(last->trained + last->count, own.first + own.count);
        if (counts(s, p) && from < to)
            bring_squares(s, whole, ls_step_own_gradient(s, own) + from - own.first, from, to);
    }
}

/* The sum of squares of what this rank counts. Where replicas divide the update, they exchange the
 * squares of blocks, each of which lies in one part: so the sum does not depend on the division. */
static ls_status sum_squares(ls_step *s, const ls_norm2 *whole, ls_step_clock *clock,
                             double *sum_out)
{
    float *squares = s->mp_group.partials;
    double sum = 0;
    ls_status st;

    memset(squares, 0, (size_t)s->mp_group.blocks * sizeof *squares);
    s->mp_group.n_cut = 0;
    for (int b = 0; b < s->parts.own.n; b++)
        square_part(s, whole, s->parts.own.at[b]);
    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    LS_TRY(st, ls_step_sync(s), out);
    if (s->discrete) /* it has been queued only: the wait is for the passes */
        ls_step_clock_lap(clock, LS_TIME_BACKWARD);
    for (int64_t i = 0; i < s->mp_group.n_cut; i++)
        squares[s->mp_group.cut[i]] += squares[s->mp_group.blocks + i];
    if (!s->pipeline && ls_step_divides(s))
        LS_TRY(st, ls_dp_sum_in_group(s->args.dp, squares, s->mp_group.blocks), out);
    for (int64_t b = 0; b < s->mp_group.blocks; b++)
        sum += (double)squares[b];
    *sum_out = sum;
out:
    return st;
}

/* Which ranks of the mesh slice have other squares than this one: none (NULL), those of its pipeline, or,
 * where pipelines divide the update, all. */
static ls_comm *slice_of(const ls_step *s)
{
    if (!s->pipeline)
        return NULL;
    return s->pipeline->plan.divides ? ls_dp_args_of(s->args.dp)->comm : s->pipeline->pipeline_comm;
}

/* Where this rank's squares are among those of all; returns how many these are. */
static int square_slots(const ls_step *s, int *own_out)
{
    ls_comm *mesh_slice = slice_of(s), *mp_group = ls_step_group(s);

    *own_out = (mesh_slice ? ls_comm_rank(mesh_slice) : 0) * ls_comm_ranks(mp_group) +
               ls_comm_rank(mp_group);
    return (mesh_slice ? ls_comm_ranks(mesh_slice) : 1) * ls_comm_ranks(mp_group);
}

/* Of squares that come to the host. */
static int64_t partial_bytes(const ls_step *s)
{
    return (s->mp_group.blocks + s->mp_group.most_cut) * (int64_t)sizeof *s->mp_group.squares;
}

ls_status ls_step_open_group(ls_step *s)
{
    const ls_model *model = s->args.model;
    ls_device *device = ls_step_device(s);
    int own, slots;
    ls_status st;

    if (!ls_step_has_mp_group(s))
        return LS_OK;
    slots = square_slots(s, &own);
    size_t most = (size_t)model->n_params + LS_MESH_BUCKETS; /* their borders cut some */
    s->mp_group.spans = ls_mem_array(most, sizeof *s->mp_group.spans);
    s->ep_group.spans = ls_mem_array(most, sizeof *s->ep_group.spans);
    s->mp_group.squares = ls_mem_array((size_t)slots, sizeof *s->mp_group.squares);
    s->mp_group.blocks = (model->trained + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    s->mp_group.most_cut = 2 * (model->n_params + s->parts.own.n) + 1;
    s->mp_group.cut = ls_mem_array((size_t)s->mp_group.most_cut, sizeof *s->mp_group.cut);
    if (!s->mp_group.spans || !s->ep_group.spans || !s->mp_group.squares || !s->mp_group.cut)
        return LS_ENOMEM;
    st = ls_device_host_alloc(device, partial_bytes(s), "squares of a gradient",
                              &s->mp_group.partials);
    if (st == LS_OK && s->discrete)
        st = ls_device_alloc(device, slots * (int64_t)sizeof *s->mp_group.squares,
                             "squares of a gradient", &s->mp_group.joined);
    if (st != LS_OK)
        return st;
    s->mp_group.n = ls_model_partials(model, s->mp_group.spans);
    for (int b = 0; b < s->parts.sums.n; b++) {
        ls_mesh_part part = s->parts.sums.at[b];
        s->ep_group.n +=
            ls_model_common(model, part.first, part.count, s->ep_group.spans + s->ep_group.n);
    }
    return LS_OK;
}

void ls_step_close_group(ls_step *step)
{
    ls_device *device = ls_step_device(step);

    ls_device_host_free(device, step->mp_group.partials, partial_bytes(step));
    ls_device_free(device, step->mp_group.joined);
    ls_mem_free(step->mp_group.cut);
    ls_mem_free(step->mp_group.spans);
    ls_mem_free(step->ep_group.spans);
    ls_mem_free(step->ep_group.parts.at);
    ls_mem_free(step->mp_group.squares);
}

/* Zeros in place of what other ranks have of a span; mine: what this one has. */
static void clear_others(const ls_step *s, float *x, const ls_collectives_span *span,
                         const ls_step_list *mine)
{
    int64_t end = span->first + span->count;

    for (int64_t at = span->first, next; at < end; at = next) {
        ls_optim_piece own;
        if (!ls_step_find(mine, at, end, &own))
            own.first = end;
        if (own.first > at)
            s->args.kernels->fill(s->args.stream, &(ls_fill){.x = x + at, .n = own.first - at});
        next = own.first + own.count;
    }
}

/* An array of which a rank has its own parts, packed as it has the sums of gradients. */
typedef struct parted {
    const ls_step *step;
    float *x;
    bool on_device;           /* x, in a memory of its own */
    const ls_step_list *mine; /* what is this rank's */
} parted;

/* A piece of x, which may lie on a device: then its copy is queued. */
static void copy_piece(const parted *p, float *here, float *there, int64_t n, bool back)
{
    int64_t bytes = n * (int64_t)sizeof *here;

    if (!p->on_device)
        memcpy(back ? here : there, back ? there : here, (size_t)bytes);
    else if (back)
        ls_stream_copy_in(p->step->args.stream, here, there, bytes);
    else
        ls_stream_copy_out(p->step->args.stream, there, here, bytes);
}

/* ls_mp_group_storage.copy */
static void copy_parted(void *context, int64_t first, int64_t n, float *packed, bool back)
{
    const parted *p = context;
    ls_optim_piece own;

    if (!back && p->on_device) /* a copy may still read it; the next wait returns its failure */
        (void)ls_stream_sync(p->step->args.stream, ls_pipeline_deadline());
    if (!back)
        memset(packed, 0, (size_t)n * sizeof *packed);
    for (int64_t at = first, end = first + n;
         at < end && ls_step_find(back ? &p->step->parts.sums : p->mine, at, end, &own);
         at = own.first + own.count)
        copy_piece(p, p->x + ls_step_packed(p->step, own.first), packed + own.first - first,
                   own.count, back);
}

/* Of elements that replicas divide: all of them to each, where their sums are made on the device. */
static ls_status join_replicas(ls_step *s, float *x, const ls_collectives_span *spans, int n)
{
    ls_status st = LS_OK;

    for (int i = 0; i < n && st == LS_OK; i++)
        st = s->exchange->sum_in_group(s, x + spans[i].first, spans[i].count);
    return st;
}

/* What several ranks have a part of, of a range of the gradients x: first those that divide
 * experts, of what this rank updates, since they update the same elements; then those of the tp
 * group. divided: the ranks that have the sums of their own parts only; NULL: each has all. With ZeRO 2 and 3
 * x is these parts, packed. */
static ls_status sum_range(ls_step *s, float *x, ls_range r, ls_comm *divided)
{
    const struct {
        ls_mp_group *group;
        const ls_collectives_span *spans;
        int n;
        ls_comm *divided;
    } both[] = {{s->args.ep_group, s->ep_group.spans, s->ep_group.n, NULL},
                {s->args.tp_group, s->mp_group.spans, s->mp_group.n, divided}};
    bool packed = !s->pipeline && ls_step_divides_grads(s);
    parted own = {.step = s, .x = x, .mine = &s->parts.sums};
    const ls_mp_group_storage storage = {.copy = copy_parted, .context = &own};
    ls_status st = LS_OK;

    for (size_t i = 0; i < LS_COUNT(both) && st == LS_OK; i++) {
        const ls_collectives_span *spans = both[i].spans;
        int from = 0, end, n = both[i].group ? both[i].n : 0;
        while (from < n && spans[from].first < r.first)
            from++;
        for (end = from; end < n && spans[end].first < r.first + r.count; end++)
            if (both[i].divided && !packed)
                clear_others(s, x, &spans[end], &s->parts.sums);
        ls_comm *apart = s->device_exchange && !packed ? NULL : both[i].divided;
        if (both[i].divided && !apart)
            LS_TRY(st, join_replicas(s, x, spans + from, end - from), out);
        if (end > from)
            st = packed ? ls_mp_group_sum_kept(both[i].group, &storage, spans + from, end - from,
                                               apart)
                        : ls_mp_group_sum(both[i].group, x, spans + from, end - from, apart);
    }
out:
    return st;
}

ls_status ls_step_expert_spread(ls_step *s)
{
    float *w = s->state_memory[0];
    parted own = {.step = s, .x = w, .on_device = s->discrete, .mine = &s->parts.own};
    const ls_mp_group_storage storage = {.copy = copy_parted, .context = &own};
    bool shards = ls_step_divides_weights(s);
    ls_status st;

    for (int i = 0; i < s->ep_group.n && !shards; i++) /* each is one rank's: sums with zeros */
        clear_others(s, w, &s->ep_group.spans[i], &s->parts.own);
    st = shards ? ls_mp_group_sum_kept(s->args.ep_group, &storage, s->ep_group.spans, s->ep_group.n,
                                       NULL)
                : ls_mp_group_sum_by_host(s->args.ep_group, w, s->ep_group.spans, s->ep_group.n,
                                          NULL); /* own weights must outlive a lost rank */
    if (st == LS_OK &&
        (!ls_step_divides(s) || shards)) /* else when those of the replicas have arrived */
        st = ls_step_weights_changed(s);
    return st;
}

static ls_status sum_partials(ls_step *s)
{
    const ls_pipeline *x = s->pipeline;
    ls_range all = {0, s->args.model->trained};
    ls_status st = LS_OK;

    if (!x) {
        st = sum_range(s,
                       s->host_zero               ? s->host_stage.buffers[0]
                       : ls_step_divides_grads(s) ? s->own_grad
                                                  : s->grads[0],
                       all, ls_step_divides(s) ? ls_dp_group(s->args.dp) : NULL);
        if (s->host_zero)
            ls_step_host_zero_bring(s);
        return st;
    }
    for (int c = 0; c < x->plan.chunks && st == LS_OK; c++)
        st = sum_range(s, ls_pipeline_grad(x, c, 0), x->plan.chunk[c].own,
                       x->plan.divides ? x->stage_comm : NULL);
    return st;
}

/* The squares of all ranks that count some become the blocks of a norm. */
ls_status ls_step_group_norm(ls_step *s, const ls_norm2 *whole, ls_step_clock *clock)
{
    ls_comm *const comms[2] = {slice_of(s), ls_step_group(s)};
    float *squares = s->mp_group.squares;
    int own, slots = square_slots(s, &own);
    double sum = 0;
    ls_norm2 join = *whole;
    ls_status st;

    LS_TRY(st, sum_partials(s), out);
    LS_TRY(st, sum_squares(s, whole, clock, &sum), out);
    memset(squares, 0, (size_t)slots * sizeof *squares);
    squares[own] = (float)sum;
    for (int i = 0; i < 2; i++) /* each number is one rank's: sums with zeros */
        if (comms[i])
            LS_TRY(st,
                   ls_blocking_reduce(comms[i], LS_COLL_SUM, LS_F32, squares, slots,
                                      ls_pipeline_deadline()),
                   out);
    if (s->discrete)
        ls_stream_copy_in(s->args.stream, s->mp_group.joined, squares,
                          slots * (int64_t)sizeof *squares);
    join.part = LS_NORM_JOIN;
    join.partials = s->discrete ? s->mp_group.joined : squares;
    join.n = slots * (int64_t)LS_NORM_BLOCK;
    s->args.kernels->norm2(s->args.stream, &join);
out:
    return st;
}

ls_status ls_step_group_barrier(ls_step *step)
{
    return ls_blocking_barrier(ls_step_group(step), ls_pipeline_deadline());
}

/* --- parts and the whole -----------------------------------------------------------------------
 */

/* One parameter of one rank of the first group, on its way to or from the first rank. */
typedef struct passage {
    ls_comm *mp_group;
    const ls_param *p; /* as that rank has it */
    int place;         /* of that rank, */
    bool counts;       /* which is the first of those that have it alike */
    float *part;       /* where it has the parameter; of other ranks not used */
    float *whole;      /* where the whole model has it; on the first rank */
    float *buffer;     /* `piece` of them, on the first rank */
    int64_t piece;
    bool back; /* from the whole to the part */
} passage;

/* Elements first .. first+n-1 of the part, to or from their places in the whole. */
static void place_piece(const passage *x, int64_t first, int64_t n, float *piece)
{
    for (int64_t done = 0, run; done < n; done += run) {
        int64_t at = ls_param_box_whole(&x->p->box, x->p->shape, first + done, &run);
        run = ls_min_i64(run, n - done);
        float *to = x->back ? piece + done : x->whole + at;
        const float *from = x->back ? x->whole + at : piece + done;
        memcpy(to, from, (size_t)run * sizeof *to);
    }
}

static ls_status pass_parameter(const passage *x)
{
    int me = ls_comm_rank(x->mp_group);
    ls_status st = LS_OK;

    if (!x->back && !x->counts)
        return LS_OK; /* another rank has sent the same */
    if (x->place == 0 && me == 0)
        place_piece(x, 0, x->p->count, x->part);
    if (x->place == 0 || (me != 0 && me != x->place))
        return LS_OK;
    for (int64_t at = 0; at < x->p->count && st == LS_OK; at += x->piece) {
        int64_t n = ls_min_i64(x->piece, x->p->count - at);
        float *memory = me == 0 ? x->buffer : x->part + at;
        if (me == 0 && x->back)
            place_piece(x, at, n, memory);
        st = ls_blocking_carry(x->mp_group, x->back ? 0 : x->place, x->back ? x->place : 0, memory,
                               n, ls_pipeline_deadline());
        if (me == 0 && !x->back && st == LS_OK)
            place_piece(x, at, n, memory);
    }
    return st;
}

/* Where a parameter lies in the weights, or in a moment; -1: it has none there. */
static int64_t place_of(const ls_param *p, bool moment)
{
    return moment ? p->trained : p->first;
}

/* All parameters of all ranks of the first group: weights, or a moment. */
static ls_status pass_all(ls_step *s, float *part, float *whole, bool moment, bool back)
{
    const ls_model *model = s->args.model;
    passage x = {.mp_group = ls_step_group(s), .back = back};
    ls_model all = {.params = NULL}, other = {.params = NULL};
    ls_status st = LS_OK;

    LS_TRY(st, ls_model_init(&all, s->args.run, model->tokens), out);
    x.piece = ls_memory_passage(&all);
    if (ls_comm_rank(x.mp_group) == 0) {
        x.buffer = ls_mem_array((size_t)x.piece, sizeof *x.buffer);
        LS_TRY(st, x.buffer ? LS_OK : LS_ENOMEM, out);
    }
    for (x.place = 0; x.place < ls_comm_ranks(x.mp_group); x.place++) {
        ls_model_split split = model->split;
        split.rank = x.place % split.ranks;
        split.ep_rank = x.place / split.ranks;
        ls_model_release(&other);
        LS_TRY(st, ls_model_init_split(&other, s->args.run, model->tokens, split), out);
        for (int i = 0; i < other.n_params; i++) {
            x.p = &other.params[i];
            if (place_of(x.p, moment) < 0)
                continue;
            x.counts = ls_model_counts(&other, x.p);
            x.part = part + place_of(x.p, moment);
            x.whole = whole ? whole + place_of(ls_model_same(&all, x.p), moment) : NULL;
            LS_TRY(st, pass_parameter(&x), out);
        }
    }
out:
    ls_model_release(&other);
    ls_model_release(&all);
    ls_mem_free(x.buffer);
    return st;
}

static bool is_first_mp(const ls_step *s)
{
    return !s->args.dp || ls_dp_args_of(s->args.dp)->mesh.rank == 0;
}

/* Of an array of its part of the model, where a rank has all of it. */
static int64_t array_bytes(const ls_step *s, const float *array)
{
    const ls_model *model = s->args.model;

    return (ls_step_is_moment(s, array) ? model->trained : model->flat) * (int64_t)sizeof *array;
}

/* Whether a rank has all of an array of its part of the model. */
static bool has_part(const ls_step *s, const float *array)
{
    bool divided = ls_step_divides(s) || s->ep_group.parts.at;

    return !s->pipeline &&
           (!divided || (array == s->state_memory[0] && !ls_step_divides_weights(s)));
}

/* Whether it is a moment that ranks with different experts divide once more (layout/expert_zero.h). */
static bool is_ep(const ls_step *s, const float *array)
{
    return s->ep_group.parts.at && array != s->state_memory[0];
}

/* Host memory in which a rank of the first group collects an array of its mesh slice; NULL on other
 * ranks. */
static ls_status open_slice(ls_step *s, float **slice_out)
{
    static const char what[] = "a part of the model";
    ls_device *device = ls_step_device(s);
    int64_t bytes = s->args.model->flat * (int64_t)sizeof(float);
    void *memory = NULL;
    ls_status st = LS_OK;

    if (is_first_mp(s))
        st = s->discrete ? ls_device_host_alloc(device, bytes, what, &memory)
                         : ls_device_alloc(device, bytes, what, &memory);
    *slice_out = memory;
    return st;
}

static void close_slice(ls_step *s, float *mesh_slice)
{
    ls_device *device = ls_step_device(s);

    if (s->discrete)
        ls_device_host_free(device, mesh_slice, s->args.model->flat * (int64_t)sizeof *mesh_slice);
    else
        ls_device_free(device, mesh_slice);
}

/* An array of which this rank has all of its part, between the device and that memory. */
static ls_status copy_slice(ls_step *s, float *part, float *mesh_slice, bool back)
{
    int64_t bytes = array_bytes(s, part);

    if (mesh_slice && back)
        ls_stream_copy_in(s->args.stream, part, mesh_slice, bytes);
    else if (mesh_slice)
        ls_stream_copy_out(s->args.stream, mesh_slice, part, bytes);
    return ls_step_sync(s);
}

ls_status ls_step_group_collect(ls_step *s, const float *part, float *whole)
{
    float *own = (float *)(uintptr_t)part; /* what is not to be changed is only read */
    float *mesh_slice = NULL;
    ls_status st = LS_OK;

    if (!has_part(s, part) || s->discrete) {
        LS_TRY(st, open_slice(s, &mesh_slice), out);
        LS_TRY(st,
               has_part(s, part) ? copy_slice(s, own, mesh_slice, false)
               : is_ep(s, part)  ? ls_step_expert_carry(s, own, mesh_slice, false)
                                 : ls_step_slice_collect(s, part, mesh_slice),
               out);
        own = mesh_slice;
    }
    if (is_first_mp(s))
        st = pass_all(s, own, whole, ls_step_is_moment(s, part), false);
out:
    close_slice(s, mesh_slice);
    return st;
}

ls_status ls_step_group_scatter(ls_step *s, const float *whole, float *part)
{
    float *own = part, *mesh_slice = NULL;
    ls_status st = LS_OK;

    if (!has_part(s, part) || s->discrete) {
        LS_TRY(st, open_slice(s, &mesh_slice), out);
        own = mesh_slice;
    }
    if (is_first_mp(s))
        LS_TRY(st, pass_all(s, own, (float *)(uintptr_t)whole, ls_step_is_moment(s, part), true),
               out);
    if (!has_part(s, part)) {
        st = is_ep(s, part) ? ls_step_expert_carry(s, part, mesh_slice, true)
                            : ls_step_slice_scatter(s, mesh_slice, part);
        goto out;
    }
    if (s->discrete)
        LS_TRY(st, copy_slice(s, part, mesh_slice, true), out);
    if (s->args.dp)
        st = ls_step_broadcast(s, 0, part, array_bytes(s, part));
out:
    close_slice(s, mesh_slice);
    return st;
}
