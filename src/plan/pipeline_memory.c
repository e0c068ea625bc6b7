/* pipeline_memory.c -- counts pages: what a rank has of the arrays of the whole model, page by page.
 *
 * Arrays keep the indices of the whole model, and only pages with own elements exist. Two ranges that
 * share a page take it once:
 *
 *     pages     |    0    |    1    |    2    |    3    |
 *     ranges        [  a  ]  [ b ]        [   c  ]            4 pages, not 2 + 1 + 2 */
#include "plan/pipeline_memory.h"

#include "base/window.h"
#include "comm/ordered_feed.h"
#include "optim/optim.h"
#include "parallel/staging.h"

ls_pass_args ls_pipeline_memory_pass(const ls_run *run, const ls_model *model,
                                     const ls_kernels *kernels, const ls_calls *calls,
                                     const ls_stage_plan_chunk *chunk)
{
    ls_pass_args pass = ls_memory_step_pass(run, model, kernels, calls);

    pass.unit = chunk->unit;
    pass.units = chunk->units;
    pass.slots = chunk->slots;
    pass.late = chunk->late;
    return pass;
}

bool ls_pipeline_memory_packs(const ls_pass_args *pass, ls_packed_weights_args *packs_out)
{
    *packs_out = (ls_packed_weights_args){.model = pass->model,
                                          .kernels = pass->kernels,
                                          .type = pass->type,
                                          .M = pass->B * pass->T,
                                          .training = true,
                                          .unit = pass->unit,
                                          .units = pass->units};
    return ls_packed_weights_bytes(packs_out) > 0;
}

bool ls_pipeline_memory_by_device(const ls_mesh *mesh)
{
    return ls_mesh_pp(mesh) > 1 && ls_mesh_mp(mesh) == 1 && ls_mesh_pipelines(mesh) == 1;
}

ls_dp_args ls_pipeline_memory_sum(const ls_run *run, const ls_mesh *mesh, int64_t count,
                                  bool divides)
{
    ls_mesh pp_rank = ls_mesh_stage(mesh);
    ls_calls calls;

    pp_rank.zero = divides;
    ls_calls_plan(run, &pp_rank, &calls);
    return (ls_dp_args){.mesh = pp_rank,
                        .ordered = calls.ordered,
                        .leaves = calls.leaves,
                        .roots = calls.roots,
                        .trained = count};
}

int64_t ls_pipeline_memory_buffer_bytes(const ls_stage_plan *pipe, const ls_run *run,
                                        const ls_model *model, const ls_calls *calls)
{
    int64_t streams = pipe->streams + pipe->gradients * ls_pass_border(model);

    return streams * ls_pipeline_memory_stream_bytes(run, model, calls) +
           ls_stage_plan_edges(pipe, NULL) * LS_NORM_BLOCK * (int64_t)sizeof(float);
}

int64_t ls_pipeline_memory_stream_bytes(const ls_run *run, const ls_model *model,
                                        const ls_calls *calls)
{
    int64_t tokens = calls->most * calls->leaf * ls_calls_tokens(calls, run->model.context);

    return ls_round_up(ls_pass_stream(model, tokens) * ls_dtype_bytes(ls_run_compute_type(run)),
                       256);
}

/* Pages of elements that lie in a window. What pipelines divide (ZeRO 2 and 3) lies in the memory of
 * the host. */
typedef struct pages {
    int64_t first, end; /* bytes */
} pages;

static pages pages_of(int64_t page, ls_range r, int64_t size)
{
    if (r.count == 0)
        return (pages){0, 0};
    return (pages){r.first * size / page * page, ls_round_up((r.first + r.count) * size, page)};
}

static int64_t paged(int64_t page, ls_range r, int64_t size)
{
    pages p = pages_of(page, r, size);

    return p.end - p.first;
}

/* Of several ranges that do not overlap; pages that two of them share count once. */
static int64_t all_paged(int64_t page, const ls_range *ranges, int n, int64_t size)
{
    int64_t bytes = 0;

    for (int i = 0; i < n; i++) {
        pages own = pages_of(page, ranges[i], size);
        for (int k = 0; k < i && own.first < own.end; k++) {
            pages other = pages_of(page, ranges[k], size);
            if (other.first <= own.first && own.first < other.end)
                own.first = other.end;
            else if (other.first < own.end && own.end <= other.end)
                own.end = other.first;
        }
        bytes += ls_max_i64(0, own.end - own.first);
    }
    return bytes;
}

/* Of the weights that a rank has, and of a moment. */
static int64_t weight_bytes(const ls_memory_args *args, const ls_stage_plan *p, int64_t size)
{
    ls_range ranges[LS_STAGE_PLAN_BUCKETS + 1];
    int n = ls_stage_plan_ranges(p, ranges);

    return all_paged(ls_memory_page(args), ranges, n, size);
}

/* What a pipeline's rank updates of a chunk, bucket by bucket. Returns how many. */
static int updated_of(const ls_stage_plan *p, int pipeline, int chunk, ls_range *ranges_out)
{
    int n = ls_stage_plan_buckets(p, p->pp_rank, chunk);

    for (int b = 0; b < n; b++)
        ranges_out[b] = ls_stage_plan_updated(p, p->pp_rank, pipeline, chunk, b);
    return n;
}

static int64_t moment_bytes(const ls_memory_args *args, const ls_stage_plan *p, int pipeline)
{
    ls_range ranges[LS_STAGE_PLAN_BUCKETS];
    int n = 0;

    for (int c = 0; c < p->chunks; c++)
        n += updated_of(p, pipeline, c, ranges + n);
    return all_paged(ls_memory_page(args), ranges, n, sizeof(float));
}

/* What sums over pipelines take, beside gradients: for themselves, and, on a device with a memory of
 * its own, what gradients pass through. */
typedef struct sums {
    int64_t bytes, staged;
} sums;

/* Gradients of a range, with the room that their sum over pipelines takes; and what that takes. */
static int64_t grad_bytes(const ls_memory_args *args, ls_range own, bool divides, sums *sum)
{
    ls_dp_args dp = ls_pipeline_memory_sum(args->run, ls_memory_sums(args), own.count, divides);

    if (own.count == 0)
        return 0;
    if (ls_mesh_pipelines(ls_memory_sums(args)) > 1) {
        sum->bytes += ls_dp_bytes(&dp);
        sum->staged += ls_round_up(ls_dp_elements(&dp) * (int64_t)sizeof(float), 4096);
        own.count = args->discrete ? own.count : ls_dp_elements(&dp);
    }
    return paged(ls_memory_page(args), own, sizeof(float));
}

/* Pages of a run of buckets of a chunk, and of what backward of its lowest block makes for the one
 * below: the gradient of the bias that it ends with. */
static int64_t made_bytes(const ls_stage_plan *p, const ls_model *model, int chunk, int first,
                          int last)
{
    ls_range low = ls_stage_plan_bucket(p, p->pp_rank, chunk, first);
    ls_range top = ls_stage_plan_bucket(p, p->pp_rank, chunk, last);
    int64_t below = p->chunk[chunk].unit + first * p->per - 1, bias = -1;

    if (first > 0 && below > 0)
        bias = model->blocks[below - 1].out_b.g;
    const ls_range both[2] = {
        {bias, bias < 0 ? 0 : model->shape.C},
        {low.first, top.first + top.count - low.first},
    };
    return all_paged(LS_WINDOW_PAGE, both, 2, sizeof(float));
}

/* Of a chunk whose backward is not cut: when a bucket is made, the next ones are on their way; on
 * the last stage the head was before them. The embedding is complete together with the block above
 * it. */
static int64_t chunk_flow(const ls_stage_plan *p, const ls_model *model, int chunk)
{
    int n = ls_stage_plan_buckets(p, p->pp_rank, chunk);
    bool tied = p->tied.count > 0 && ls_stage_plan_is_last(p) && chunk == p->chunks - 1;
    int64_t head = tied ? paged(LS_WINDOW_PAGE, (ls_range){0, p->tied.count}, sizeof(float)) : 0,
            most = head;

    for (int b = 0; b < n; b++) {
        int ahead = LS_STAGE_PLAN_AHEAD + (b == 0 && p->chunk[chunk].unit == 0 && p->per == 1);
        int64_t bytes = made_bytes(p, model, chunk, b, (int)ls_min_i64(n - 1, b + ahead));
        most = ls_max_i64(most, bytes + (b + ahead >= n ? head : 0));
    }
    return most;
}

int64_t ls_pipeline_memory_flow_bytes(const ls_stage_plan *pipe, const ls_model *model)
{
    bool tied = pipe->tied.count > 0 && ls_stage_plan_is_last(pipe);
    int64_t most = 0;

    if (pipe->chunk[0].late > 0) /* between the halves of a backward there is all of it */
        return ls_stage_plan_flows(pipe) *
                   paged(LS_WINDOW_PAGE, pipe->chunk[0].own, sizeof(float)) +
               (tied ? paged(LS_WINDOW_PAGE, (ls_range){0, pipe->tied.count}, sizeof(float)) : 0);
    for (int c = 0; c < pipe->chunks; c++)
        most = ls_max_i64(most, chunk_flow(pipe, model, c));
    return most;
}

/* With ZeRO 3: the most bytes of gathered weights that are there at a time. */
static int64_t gathered_bytes(const ls_stage_plan *pipe, const ls_model *model, ls_dtype type)
{
    int64_t size = ls_dtype_bytes(type), most = 0;

    for (int c = 0; c < pipe->chunks; c++) {
        int n = ls_stage_plan_buckets(pipe, pipe->pp_rank, c);
        int64_t end = pipe->chunk[c].unit + pipe->chunk[c].units;
        bool head =
            end == model->shape.L + 2 && pipe->tied.count > 0 && ls_stage_plan_is_last(pipe);
        for (int b = 0; b < n; b++) { /* and the next one */
            int next = b + 1 < n ? b + 1 : b;
            ls_range low = ls_stage_plan_bucket(pipe, pipe->pp_rank, c, b);
            ls_range top = ls_stage_plan_bucket(pipe, pipe->pp_rank, c, next);
            int64_t bytes = paged(LS_WINDOW_PAGE,
                                  (ls_range){low.first, top.first + top.count - low.first}, size);
            most = ls_max_i64(
                most,
                bytes + (head && next == n - 1 ? paged(LS_WINDOW_PAGE, pipe->tied, size) : 0));
        }
    }
    return most;
}

/* What a rank keeps of the sum of a tied head's gradient, by its own indices: the last stage its
 * part; the first one what it updates, which comes from there. */
static int64_t tied_bytes(const ls_stage_plan *p)
{
    ls_range ranges[LS_STAGE_PLAN_BUCKETS];
    int n = 1;

    if (p->tied.count == 0 || (!ls_stage_plan_is_last(p) && !ls_stage_plan_is_first(p)))
        return 0;
    if (ls_stage_plan_is_last(p))
        ranges[0] = ls_stage_plan_tied_part(p, p->pipeline);
    else
        n = updated_of(p, p->pipeline, 0, ranges);
    for (int b = 0; b < n; b++) {
        ranges[b] = ls_range_common(ranges[b], p->tied);
        ranges[b].first -= p->tied.first;
    }
    return all_paged(LS_WINDOW_PAGE, ranges, n, sizeof(float));
}

/* Where ordered sums of `own` elements, at most `most` of a bucket, meet. */
static int64_t feed_bytes(const ls_memory_args *args, const ls_stage_plan *p, int64_t own,
                          int64_t most)
{
    ls_mesh pp_rank = ls_mesh_stage(ls_memory_sums(args));
    int64_t slots = ls_calls_feed(args->run, &pp_rank, p->table.micros, NULL);

    return ls_ordered_feed_bytes(own, most, p->pipelines, LS_STAGE_PLAN_AHEAD, slots, LS_F32);
}

/* What several ranks of a tp group have a part of, in a range: it is summed before the norm. */
static int64_t partial_bytes(const ls_model *model, ls_range own)
{
    int64_t bytes = 0;

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (p->box.partial && p->trained >= own.first && p->trained < own.first + own.count)
            bytes += paged(LS_WINDOW_PAGE, (ls_range){p->trained, p->count}, sizeof(float));
    }
    return bytes;
}

/* With ZeRO 2 and 3. */
static void predict_parted(const ls_memory_args *args, const ls_calls *calls,
                           const ls_stage_plan *p, ls_ledger *ledger)
{
    ls_range ranges[LS_STAGE_PLAN_BUCKETS];
    int64_t bytes = ls_pipeline_memory_flow_bytes(p, args->model) + tied_bytes(p), sum = 0;

    for (int c = 0; c < p->chunks; c++) {
        int n = updated_of(p, p->pipeline, c, ranges);
        int64_t own = 0, most = 0;
        for (int b = 0; b < n; b++) {
            own += ranges[b].count;
            most = ls_max_i64(most, ranges[b].count);
        }
        bytes += all_paged(LS_WINDOW_PAGE, ranges, n, sizeof(float)) +
                 partial_bytes(args->model, p->chunk[c].own);
        sum += calls->ordered ? feed_bytes(args, p, own, most) : 0;
    }
    int64_t head = ls_stage_plan_is_last(p) ? ls_stage_plan_tied_part(p, p->pipeline).count : 0;
    if (p->tied.count > 0 && ls_stage_plan_is_last(p) && calls->ordered)
        sum += feed_bytes(args, p, head, head);
    ls_ledger_add(ledger, "gradients", "own parts; of a micro-batch: some units on their way",
                  bytes);
    ls_ledger_add(ledger, "exchange", "gradients of other pipelines, on their way", sum);
}

static void predict_gradients(const ls_memory_args *args, const ls_calls *calls,
                              const ls_stage_plan *p, ls_ledger *ledger)
{
    ls_range head = {0, p->tied.count};
    int64_t bytes = 0;
    sums sum = {.bytes = 0};

    if (p->zero >= 2) {
        predict_parted(args, calls, p, ledger);
        return;
    }
    for (int c = 0; c < p->chunks; c++)
        bytes += calls->buffers * grad_bytes(args, p->chunk[c].own, p->divides, &sum);
    if (head.count > 0 && ls_stage_plan_is_last(p))
        bytes += calls->buffers * grad_bytes(args, head, false, &sum);
    else if (head.count > 0 && ls_stage_plan_is_first(p))
        bytes += paged(ls_memory_page(args), head, sizeof(float));
    ls_ledger_add(ledger, "gradients",
                  calls->ordered ? "own layers, log2(calls) + 1 buffers of the tree of sums"
                                 : "own layers, one buffer",
                  bytes);
    if (ls_mesh_pipelines(ls_memory_sums(args)) < 2)
        return;
    (args->discrete ? ls_ledger_add_host : ls_ledger_add)(
        ledger, "exchange", "gradients of other pipelines, on their way", sum.bytes);
    if (args->discrete)
        ls_ledger_add_host(ledger, "staging", "own gradients on their way, page-locked",
                           calls->buffers * sum.staged);
}

/* What messages pass through on a device with a memory of its own (train/step/pipeline_host_stage.c). */
static int64_t message_bytes(const ls_memory_args *args, const ls_calls *calls,
                             const ls_stage_plan *p)
{
    int64_t message = ls_pipeline_memory_stream_bytes(args->run, args->model, calls) *
                      ls_pass_border(args->model);
    const ls_mesh *world = args->world ? args->world : args->mesh;
    bool by_device = args->collectives && ls_pipeline_memory_by_device(world);
    int places = p->streams + p->gradients;

    for (int c = 0; c < p->chunks; c++)
        places += p->chunk[c].slots;
    return (by_device ? 0 : ls_staging_bytes(places, message)) +
           ls_staging_bytes(1, LS_STAGE_PLAN_PIECE);
}

static void predict_passes(const ls_memory_args *args, const ls_calls *calls,
                           const ls_stage_plan *p, ls_ledger *ledger)
{
    int64_t passes = 0, packed = 0;
    ls_packed_weights_args packs;

    for (int c = 0; c < p->chunks; c++) {
        ls_pass_args pass =
            ls_pipeline_memory_pass(args->run, args->model, args->kernels, calls, &p->chunk[c]);
        passes += ls_pass_bytes(&pass, args->threads);
        if (args->pack && p->zero < 3 && args->run->device.pack != LS_PACKING_OFF &&
            ls_pipeline_memory_packs(&pass, &packs))
            packed += ls_packed_weights_bytes(&packs);
    }
    if (packed > 0)
        ls_ledger_add(ledger, "packed weights", "own matrices in the order of products, both ways",
                      packed);
    ls_ledger_add(ledger, "activations", "own layers, of the micro-batches on their way", passes);
    ls_ledger_add(
        ledger, "pipeline", "streams and gradients from other stages",
        ls_round_up(ls_pipeline_memory_buffer_bytes(p, args->run, args->model, calls), 4096));
    if (args->discrete)
        ls_ledger_add_host(ledger, "pipeline messages", "streams on their way, page-locked",
                           message_bytes(args, calls, p));
}

void ls_pipeline_memory_predict(const ls_memory_args *args, const ls_calls *calls,
                                ls_ledger *ledger)
{
    const ls_run *run = args->run;
    ls_dtype type = ls_run_compute_type(run);
    int64_t moments = ls_optim_kinds(run) - 1;
    ls_stage_plan p;

    if (ls_stage_plan_init(&p, run, args->model, ls_memory_sums(args),
                           ls_stage_plan_micros(run, ls_memory_sums(args), calls),
                           run->batch.ramp > 0) != LS_OK) {
        ls_err_clear(); /* opening the run reports it */
        return;
    }
    ls_ledger_add(ledger, "weights",
                  p.zero == 3 ? "parameters of the own layers that this rank updates, fp32"
                              : "parameters of the own layers, fp32",
                  weight_bytes(args, &p, sizeof(float)));
    if (type != LS_F32)
        ls_ledger_add(ledger, type == LS_F16 ? "fp16 weights" : "bf16 weights",
                      "the same once more, as the model reads them",
                      weight_bytes(args, &p, ls_dtype_bytes(type)));
    if (p.zero == 3)
        ls_ledger_add(ledger, "gathered weights",
                      "a unit of the own layers and the next one, of all pipelines",
                      gathered_bytes(&p, args->model, type));
    ls_ledger_add(ledger, "optimizer",
                  p.divides ? "moments of the own layers that this rank updates"
                            : "moments of the own layers",
                  moments * moment_bytes(args, &p, p.pipeline));
    if (p.copy_owner >= 0)
        ls_ledger_add(ledger, "buddy",
                      p.zero == 3   ? "weights, moments and gradients that another pipeline has"
                      : p.zero == 2 ? "moments and gradients that another pipeline has"
                                    : "moments that another pipeline updates",
                      (moments + p.zero - 1) * moment_bytes(args, &p, p.copy_owner));
    predict_gradients(args, calls, &p, ledger);
    predict_passes(args, calls, &p, ledger);
    ls_stage_plan_release(&p);
}
