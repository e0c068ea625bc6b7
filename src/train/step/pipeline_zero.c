/* pipeline_zero.c -- ZeRO 2 and 3 in a pipeline: gradients leave, and weights come, bucket by
 * bucket (layout/stage_plan.h).
 *
 * Gradients. Backward of a micro-batch makes them in a window (flow), from the last bucket of a
 * chunk to the first. A complete bucket is summed over pipelines at once. In fast mode that is a
 * reduce-scatter, and each pipeline adds what arrives to the sum of its own part. In ordered mode
 * the owner of a part keeps a stack for each pipeline (comm/ordered_feed.h), so that the bits are
 * those of one process. LS_STAGE_PLAN_AHEAD buckets may be on their way; then their pages are
 * dropped:
 *
 *     backward of block   3        2          1            0
 *     on its way                   3         3 2          2 1       (3 is summed, its pages gone)
 *
 * The last ones end before the next backward begins, so they are exchanged while a forward
 * computes. The head's gradient of a tied embedding is an array and a sum of its own, and comes
 * first.
 *
 * Where backward is cut into halves, each micro-batch between its halves has a window of its own,
 * and is summed as a whole after the second half; the head's gradient after the first.
 *
 * Weights (ZeRO 3). The pass asks for them unit by unit (ls_pass_call.need), as in zero_gather.c:
 * the bucket of the unit is here, that of the next unit comes, the others are dropped; after an
 * operation all are dropped. The state of a bucket: absent -> on its way (start) -> here (settle)
 * -> absent (drop).
 *
 * Order. All pipelines have the same schedule, so the ranks of a stage come to the same operations
 * in the same order, and begin the same collectives. A rank whose micro-batch is empty takes part
 * in them unit by unit (walk). A schedule that is free of deadlock where every rank waits at its
 * places stays so where all pipelines walk through it together. Rejected: shorter schedules for
 * pipelines with fewer micro-batches; their order of backward and forward can differ from the
 * others'. */
#include "train/step/pipeline_impl.h"

#include "base/fault.h"
#include "base/mem.h"
#include "kernel/combine.h"

enum { HEAD = -1 }; /* in place of a bucket: the head's gradient of a tied embedding */

static ls_range bucket_of(const ls_pipeline *x, int chunk, int bucket)
{
    return ls_stage_plan_bucket(&x->plan, x->plan.pp_rank, chunk, bucket);
}

static ls_range own_of(const ls_pipeline *x, int chunk, int bucket)
{
    return ls_stage_plan_updated(&x->plan, x->plan.pp_rank, x->plan.pipeline, chunk, bucket);
}

/* Whether the chunk has the head of a tied embedding. */
static bool has_tied_head(const ls_pipeline *x, int chunk)
{
    return x->plan.tied.count > 0 && ls_pipeline_is_last_stage(x, chunk);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* The sum of a chunk, or of the head: counts[buckets][pipelines]. */
static ls_status open_feed(ls_step *s, int i, const int64_t *counts, int buckets)
{
    ls_pipeline *x = s->pipeline;
    ls_mesh pp_rank = ls_mesh_stage(&x->mesh);
    int rounds = (int)x->most, pipelines = x->plan.pipelines;
    ls_ordered_run *runs = ls_mem_array((size_t)pipelines, sizeof *runs);
    int *merges = ls_mem_array((size_t)rounds * (size_t)pipelines, sizeof *merges);
    ls_status st = LS_ENOMEM;

    if (!runs || !merges)
        goto out;
    ls_mesh_split(&pp_rank, s->args.calls.leaves, runs);
    (void)ls_calls_feed(s->args.run, &pp_rank, rounds, merges);
    st = ls_ordered_feed_open(&x->flow.feeds[i],
                              &(ls_ordered_feed_args){.comm = x->stage_comm,
                                                      .runs = runs,
                                                      .leaves = s->now.leaves,
                                                      .counts = counts,
                                                      .parts = buckets,
                                                      .ahead = LS_STAGE_PLAN_AHEAD,
                                                      .rounds = rounds,
                                                      .merges = merges,
                                                      .type = LS_F32});
out:
    ls_mem_free(runs);
    ls_mem_free(merges);
    return st;
}

static ls_status open_feeds(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    const ls_stage_plan *plan = &x->plan;
    int pipelines = plan->pipelines;
    int64_t *counts = ls_mem_array((size_t)pipelines * LS_STAGE_PLAN_BUCKETS, sizeof *counts);
    ls_status st = counts ? LS_OK : LS_ENOMEM;

    for (int c = 0; c < plan->chunks && st == LS_OK; c++) {
        int n = ls_stage_plan_buckets(plan, plan->pp_rank, c);
        for (int i = 0; i < n * pipelines; i++)
            counts[i] =
                ls_stage_plan_updated(plan, plan->pp_rank, i % pipelines, c, i / pipelines).count;
        st = open_feed(s, c, counts, n);
    }
    for (int i = 0; i < pipelines && counts; i++)
        counts[i] = ls_stage_plan_tied_part(plan, i).count;
    if (st == LS_OK && has_tied_head(x, plan->chunks - 1))
        st = open_feed(s, plan->chunks, counts, 1);
    ls_mem_free(counts);
    return st;
}

ls_status ls_pipeline_open_parts(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    int64_t all = s->args.model->trained;
    ls_status st = LS_OK;

    if (!ls_pipeline_is_parted(x))
        return LS_OK;
    x->flow.windows = ls_mem_array((size_t)ls_stage_plan_flows(&x->plan), sizeof *x->flow.windows);
    if (!x->flow.windows)
        return ls_fail(LS_ENOMEM, "no memory for a table of windows");
    x->flow.n = ls_stage_plan_flows(&x->plan);
    for (int i = 0; i < x->flow.n; i++)
        LS_TRY(st, ls_window_open(&x->flow.windows[i], all * (int64_t)sizeof(float), "gradients"),
               out);
    if (has_tied_head(x, x->plan.chunks - 1))
        LS_TRY(
            st,
            ls_window_open(&x->flow.head, x->plan.tied.count * (int64_t)sizeof(float), "gradients"),
            out);
    if (s->now.ordered)
        LS_TRY(st, open_feeds(s), out);
    if (x->plan.zero == 3) /* closed by the step */
        LS_TRY(st,
               ls_window_open(&s->zero_gather.window, s->args.model->flat * ls_dtype_bytes(s->type),
                              "weights"),
               out);
out:
    return st;
}

void ls_pipeline_close_parts(ls_step *step)
{
    ls_pipeline *x = step->pipeline;

    for (int i = 0; i <= LS_STAGE_PLAN_CHUNKS; i++)
        ls_ordered_feed_close(x->flow.feeds[i]);
    for (int i = 0; i < x->flow.n; i++)
        ls_window_close(&x->flow.windows[i]);
    ls_window_close(&x->flow.head);
    ls_mem_free(x->flow.windows);
}

/* --- gradients -------------------------------------------------------------------------------- */

/* Element `first` of the gradients of a flight. */
static float *flow_at(const ls_pipeline *x, const ls_pipeline_flight *f, int64_t first)
{
    const ls_window *flow = f->bucket == HEAD ? &x->flow.head : &x->flow.windows[x->flow.place];

    return (float *)(void *)flow->base + first;
}

/* The elements of a flight, and the own ones of these; the head's have indices of their own. */
static ls_range all_of(const ls_pipeline *x, const ls_pipeline_flight *f, ls_range *own_out)
{
    const ls_stage_plan *plan = &x->plan;

    if (f->bucket != HEAD) {
        *own_out = own_of(x, x->flow.chunk, f->bucket);
        return bucket_of(x, x->flow.chunk, f->bucket);
    }
    *own_out = ls_stage_plan_tied_part(plan, plan->pipeline);
    own_out->first -= plan->tied.first;
    return (ls_range){0, plan->tied.count};
}

static ls_ordered_feed *feed_of(const ls_pipeline *x, const ls_pipeline_flight *f)
{
    return x->flow.feeds[f->bucket == HEAD ? x->plan.chunks : x->flow.chunk];
}

/* Which part of that sum it is. */
static int part_of(const ls_pipeline_flight *f)
{
    return f->bucket == HEAD ? 0 : f->bucket;
}

/* For tests: what windows hold at most. */
static void look(ls_pipeline *x)
{
#ifdef LS_FAULTS
    int64_t held = ls_window_held(&x->flow.head);

    for (int i = 0; i < x->flow.n; i++)
        held += ls_window_held(&x->flow.windows[i]);
    x->flow.most = ls_max_i64(x->flow.most, held);
#else
    (void)x;
#endif
}

/* The oldest flight has arrived: to the own sum, and its pages are dropped, with all above them. */
static ls_status end_oldest(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    const ls_pipeline_flight *f = &x->flow.up[x->flow.ended % LS_STAGE_PLAN_AHEAD];
    bool head = f->bucket == HEAD;
    const int64_t size = sizeof(float);
    ls_range own, all = all_of(x, f, &own);
    float *sum =
        (head ? ls_pipeline_head(x, 0) : ls_pipeline_grad(x, x->flow.chunk, 0)) + own.first;
    const float *arrived = flow_at(x, f, own.first);
    ls_status st;

    if (s->now.ordered) {
        LS_TRY(st,
               ls_ordered_feed_end(feed_of(x, f), part_of(f), x->flow.round, sum,
                                   ls_pipeline_deadline()),
               out);
    } else {
        LS_TRY(st, ls_comm_wait(x->stage_comm, f->request, ls_pipeline_deadline()), out);
        if (x->flow.round > 0)
            ls_combine_two(LS_F32, sum, arrived, sum, own.count);
        else
            memcpy(sum, arrived, (size_t)(own.count * size));
    }
    x->flow.ended++;
    ls_window *flow = head ? &x->flow.head : &x->flow.windows[x->flow.place];
    ls_window_drop(flow, all.first * size, flow->bytes - all.first * size);
out:
    return st;
}

static ls_status start_flight(ls_step *s, int bucket)
{
    ls_pipeline *x = s->pipeline;
    ls_pipeline_flight f = {.bucket = bucket};
    ls_range own, all = all_of(x, &f, &own);
    float *at = flow_at(x, &f, all.first);
    ls_status st = LS_OK;

    look(x);
    while (x->flow.started - x->flow.ended >= LS_STAGE_PLAN_AHEAD)
        LS_TRY(st, end_oldest(s), out);
    if (s->now.ordered)
        LS_TRY(st, ls_ordered_feed_start(feed_of(x, &f), part_of(&f), x->flow.round, at), out);
    else
        LS_TRY(st,
               ls_comm_start(x->stage_comm,
                             &(ls_coll){.kind = LS_COLL_REDUCE_SCATTER,
                                        .type = LS_F32,
                                        .count = all.count,
                                        .in = at,
                                        .out = at},
                             &f.request),
               out);
    if (!x->flow.empty || !s->now.ordered)
        x->flow.sent_bytes += (all.count - own.count) * (int64_t)sizeof(float);
    x->flow.up[x->flow.started++ % LS_STAGE_PLAN_AHEAD] = f;
out:
    return st;
}

ls_status ls_pipeline_give_end(ls_step *step)
{
    ls_pipeline *x = step->pipeline;
    ls_status st = LS_OK;

    if (!ls_pipeline_is_parted(x))
        return LS_OK;
    while (x->flow.ended < x->flow.started)
        LS_TRY(st, end_oldest(step), out);
    /* What lies between tensors, so that all of it is zeros again; between halves it stays. */
    if (!x->flow.half)
        ls_window_drop(&x->flow.windows[x->flow.place], 0, x->flow.windows[x->flow.place].bytes);
out:
    return st;
}

ls_status ls_pipeline_give_begin(ls_step *step, const ls_pp_schedule_op *op, int place)
{
    ls_pipeline *x = step->pipeline;
    bool second = op->what == LS_PP_SCHEDULE_BACKWARD_WEIGHT;
    ls_status st;

    if (!ls_pipeline_is_parted(x))
        return LS_OK;
    LS_TRY(st, ls_pipeline_give_end(step), out);
    x->flow.chunk = op->chunk;
    x->flow.round = op->micro;
    x->flow.place = place;
    x->flow.half = op->what == LS_PP_SCHEDULE_BACKWARD_INPUT;
    x->flow.next = ls_stage_plan_buckets(&x->plan, x->plan.pp_rank, op->chunk) - 1;
    x->flow.tied = !second && has_tied_head(x, op->chunk);
    x->flow.empty = x->parts[op->micro].count == 0;
out:
    return st;
}

/* Sum the buckets that are complete. */
static ls_status give(ls_step *s, int64_t from)
{
    ls_pipeline *x = s->pipeline;
    ls_status st = LS_OK;

    if (x->flow.tied) {
        x->flow.tied = false;
        LS_TRY(st, start_flight(s, HEAD), out);
    }
    for (; x->flow.next >= 0 && !x->flow.half &&
           bucket_of(x, x->flow.chunk, x->flow.next).first >= from;
         x->flow.next--)
        LS_TRY(st, start_flight(s, x->flow.next), out);
out:
    return st;
}

void ls_pipeline_ready(ls_step *s, int64_t from)
{
    if (s->status == LS_OK)
        ls_step_record(s, give(s, from));
}

/* --- weights ---------------------------------------------------------------------------------- */

enum { TIED = 63 }; /* in sets of buckets: the copy of a tied embedding */
_Static_assert((int)LS_STAGE_PLAN_BUCKETS <= (int)TIED, "a set of buckets is one word");

/* What a unit of the chunk at hand reads. */
static ls_zero_units_set reads(const ls_step *s, int64_t unit)
{
    const ls_pipeline *x = s->pipeline;
    int bucket = (int)((unit - x->plan.chunk[x->fetch.chunk].unit) / x->plan.per);
    bool head = unit == s->args.model->shape.L + 1 && has_tied_head(x, x->fetch.chunk);

    return (ls_zero_units_set)1 << bucket | (head ? (ls_zero_units_set)1 << TIED : 0);
}

static ls_range weights_of(const ls_pipeline *x, int bucket, ls_range *own_out)
{
    *own_out = bucket == TIED ? ls_stage_plan_tied_part(&x->plan, x->plan.pipeline)
                              : own_of(x, x->fetch.chunk, bucket);
    return bucket == TIED ? x->plan.tied : bucket_of(x, x->fetch.chunk, bucket);
}

static ls_status fetch(ls_step *s, int bucket)
{
    ls_pipeline *x = s->pipeline;
    int64_t size = ls_dtype_bytes(s->type);
    const char *kept = s->copy ? s->copy : s->state_memory[0];
    ls_range own, all = weights_of(x, bucket, &own);
    const ls_coll coll = {.kind = LS_COLL_ALL_GATHER,
                          .type = s->type,
                          .count = all.count,
                          .in = kept + own.first * size,
                          .out = s->zero_gather.window.base + all.first * size};

    x->flow.sent_bytes += own.count * (x->plan.pipelines - 1) * size;
    return ls_comm_start(x->stage_comm, &coll, &x->fetch.requests[bucket]);
}

static ls_status fetched(ls_step *s, int bucket, bool wanted)
{
    ls_pipeline *x = s->pipeline;
    ls_status st = ls_comm_wait(x->stage_comm, x->fetch.requests[bucket], ls_pipeline_deadline());

    (void)wanted;
#ifdef LS_FAULTS /* for tests */
    x->fetch.most = ls_max_i64(x->fetch.most, ls_window_held(&s->zero_gather.window));
#endif
    return st;
}

/* A page that two buckets share stays while one of them is kept. So all pages below and above
 * the kept buckets of the chunk go; those of a tied embedding, which lie far below, go by
 * themselves. */
static void drop(ls_step *s, ls_zero_units_set gone)
{
    const ls_pipeline *x = s->pipeline;
    ls_window *w = &s->zero_gather.window;
    ls_zero_units_set kept = s->zero_gather.there | s->zero_gather.coming;
    int64_t size = ls_dtype_bytes(s->type), first = w->bytes, end = 0, tied = 0;

    (void)gone;
    for (int b = 0; b < TIED; b++)
        if (kept >> b & 1) {
            ls_range own, all = weights_of(x, b, &own);
            first = ls_min_i64(first, all.first * size);
            end = ls_max_i64(end, (all.first + all.count) * size);
        }
    if (kept >> TIED & 1)
        tied = ls_round_up((x->plan.tied.first + x->plan.tied.count) * size, LS_WINDOW_PAGE);
    first = first / LS_WINDOW_PAGE * LS_WINDOW_PAGE;
    ls_window_drop(w, tied, first - tied);
    if (end > 0)
        ls_window_drop(w, end, w->bytes - end);
}

/* A pipeline exchanges weights of its stage only; gradients go with every backward (above). */
const ls_step_exchange ls_step_exchange_pipeline = {
    .shares = true, .fetch = fetch, .fetched = fetched, .drop = drop};

/* A unit is here, the next one on its way, the others dropped. Backward does not read the
 * embedding's weights. */
static ls_status fetch_unit(ls_step *s, int64_t unit)
{
    ls_pipeline *x = s->pipeline;
    const ls_stage_plan_chunk *chunk = &x->plan.chunk[x->fetch.chunk];
    int64_t next = ls_min_i64(unit + 1, chunk->unit + chunk->units - 1);

    if (x->fetch.back)
        next = ls_max_i64(unit - 1, ls_max_i64(1, chunk->unit));
    return ls_step_gather_weights(s, reads(s, unit), reads(s, next));
}

void ls_pipeline_need(void *context, int64_t unit)
{
    ls_step *s = context;
    const ls_pipeline *x = s->pipeline;
    const ls_stage_plan_chunk *chunk = &x->plan.chunk[x->fetch.chunk];

    if (s->status != LS_OK || unit < chunk->unit || unit >= chunk->unit + chunk->units)
        return;
    if (s->clock)
        ls_step_lap(s, s->clock, x->fetch.back ? LS_TIME_BACKWARD : LS_TIME_FORWARD);
    ls_step_record(s, fetch_unit(s, unit));
    if (s->clock)
        ls_step_clock_lap(s->clock, LS_TIME_EXCHANGE);
}

void ls_pipeline_fetch_begin(ls_step *step, int chunk, ls_pp_schedule_what what)
{
    ls_pipeline *x = step->pipeline;

    if (x->plan.zero < 3)
        return;
    x->fetch.chunk = chunk;
    x->fetch.back = what != LS_PP_SCHEDULE_FORWARD;
    if (what == LS_PP_SCHEDULE_BACKWARD || what == LS_PP_SCHEDULE_BACKWARD_INPUT)
        ls_pipeline_need(step, step->args.model->shape.L + 1); /* the head, where it is here */
}

ls_status ls_pipeline_fetch_end(ls_step *step)
{
    ls_status st = ls_step_recorded(step);

    if (step->pipeline->plan.zero == 3 && st == LS_OK)
        st = ls_step_drop_weights(step, ~(ls_zero_units_set)0);
    return st;
}

/* --- without a call --------------------------------------------------------------------------- */

void ls_pipeline_walk(ls_step *step, int chunk, ls_pp_schedule_what what)
{
    const ls_model *model = step->args.model;
    const ls_pipeline *x = step->pipeline;
    int64_t first = x->plan.chunk[chunk].unit, end = first + x->plan.chunk[chunk].units;
    bool sharded = x->plan.zero == 3, gives = what != LS_PP_SCHEDULE_BACKWARD_WEIGHT;

    for (int64_t unit = first; unit < end && what == LS_PP_SCHEDULE_FORWARD && sharded; unit++)
        ls_pipeline_need(step, unit);
    if (what == LS_PP_SCHEDULE_FORWARD)
        return;
    for (int64_t unit = end - 1; unit >= first; unit--) {
        bool block = unit > 0 && unit <= model->shape.L;
        if (block && (gives ? sharded : ls_pipeline_reads_late(step)))
            ls_pipeline_need(step, unit);
        if (gives)
            ls_step_bucket_ready(step, ls_model_complete(model, unit));
    }
    if (gives)
        ls_step_bucket_ready(step, 0);
}
