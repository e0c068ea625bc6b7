/* pipe.c -- see pipe.h.
 *
 * Buffers are counted by walking through the rank's own column of the table, where a receive takes
 * one and a backward (of a stream) or a send (of a gradient) gives it back. Whoever posts receives
 * in that order, at their places or earlier, then always finds a free one: at its place in the
 * table those before it hold no more than was counted. */
#include "plan/pipe.h"

#include "base/mem.h"
#include "base/window.h"
#include "parallel/buddies.h"
#include "parallel/staging.h"

ls_pipeline_kind ls_pipe_kind(const ls_run *run)
{
    static const ls_pipeline_kind kinds[] = {[LS_PIPE_GPIPE] = LS_PIPELINE_GPIPE,
                                             [LS_PIPE_1F1B] = LS_PIPELINE_1F1B,
                                             [LS_PIPE_INTERLEAVED] = LS_PIPELINE_INTERLEAVED,
                                             [LS_PIPE_ZERO_BUBBLE] = LS_PIPELINE_ZERO_BUBBLE};

    return kinds[run->mesh.schedule];
}

/* What is held while the column of the rank is walked through, and the most of it. */
typedef struct held {
    int streams, gradients, slots[LS_PIPE_CHUNKS], late[LS_PIPE_CHUNKS];
} held;

static void take(int *now, int *most, int n)
{
    *now += n;
    *most = *now > *most ? *now : *most;
}

static held count_held(const ls_pipe *p)
{
    held now = {.streams = 0}, most = {.streams = 0};
    int last = p->posts * p->chunks - 1;

    for (int i = p->table.first[p->post]; i < p->table.first[p->post + 1]; i++) {
        const ls_pipeline_op *op = &p->table.ops[i];
        int stage = op->chunk * p->posts + p->post;
        bool back = op->what == LS_PIPELINE_BACKWARD || op->what == LS_PIPELINE_INPUT;
        bool done = op->what == LS_PIPELINE_BACKWARD || op->what == LS_PIPELINE_WEIGHT;
        if (op->what == LS_PIPELINE_RECV && !op->back)
            take(&now.streams, &most.streams, 1);
        if (op->what == LS_PIPELINE_RECV ? op->back : back && stage == last)
            take(&now.gradients, &most.gradients, 1);
        if (op->what == LS_PIPELINE_FORWARD)
            take(&now.slots[op->chunk], &most.slots[op->chunk], 1);
        if (op->what == LS_PIPELINE_INPUT)
            take(&now.late[op->chunk], &most.late[op->chunk], 1);
        now.late[op->chunk] -= op->what == LS_PIPELINE_WEIGHT;
        if (done) {
            now.slots[op->chunk]--;
            now.streams -= stage > 0;
        }
        if (op->what == LS_PIPELINE_SEND ? op->back : back && stage == 0)
            now.gradients--;
    }
    return most;
}

static ls_status make_table(ls_pipe *p, const ls_pipeline *like, int64_t micros)
{
    ls_status st;

    ls_pipeline_release(&p->table);
    LS_TRY(st,
           ls_pipeline_init(&p->table, like->kind, like->ranks,
                            (int)ls_min_i64(micros, LS_PIPELINE_MOST), like->chunks),
           out);
    st = ls_pipeline_prove(&p->table, NULL);
out:
    return st;
}

/* The table of so many micro-batches, and as many buffers as any smaller number needs too. */
static ls_status plan_table(ls_pipe *p, const ls_pipeline *like, int64_t micros, bool varies)
{
    ls_status st = LS_OK;

    for (int64_t m = varies ? 1 : micros; m <= micros; m++) {
        LS_TRY(st, make_table(p, like, m), out);
        held most = count_held(p);
        p->streams = (int)ls_max_i64(p->streams, most.streams);
        p->gradients = (int)ls_max_i64(p->gradients, most.gradients);
        for (int c = 0; c < p->chunks; c++) {
            p->chunk[c].slots = (int)ls_max_i64(p->chunk[c].slots, most.slots[c]);
            p->chunk[c].late = (int)ls_max_i64(p->chunk[c].late, most.late[c]);
        }
    }
    p->streams += p->streams > 0;
    p->gradients += p->gradients > 0;
out:
    return st;
}

ls_status ls_pipe_set(ls_pipe *pipe, int64_t micros)
{
    const ls_pipeline like = pipe->table;
    ls_status st = LS_OK;

    if (micros == like.micros)
        return LS_OK;
    LS_TRY(st, make_table(pipe, &like, micros), out);
    held most = count_held(pipe);
    for (int c = 0; c < pipe->chunks; c++)
        LS_BUG_IF(most.slots[c] > pipe->chunk[c].slots || most.late[c] > pipe->chunk[c].late ||
                      most.streams > pipe->streams || most.gradients > pipe->gradients,
                  "a step of %lld micro-batches needs more than was planned", (long long)micros);
out:
    return st;
}

static ls_status too_few_layers(const ls_run *run, const ls_model *model)
{
    int64_t L = model->shape.L, pp = run->mesh.pp, chunks = run->mesh.chunks;
    ls_status st =
        ls_fail(LS_EUSAGE, "mesh.pp is %lld%s, but %lld layer%s cannot be cut into %lld stages",
                (long long)pp, chunks > 1 ? ", with several chunks each" : "", (long long)L,
                L == 1 ? "" : "s", (long long)(pp * chunks));

    if (chunks > 1 && L >= pp)
        ls_err_hint("mesh.chunks: %lld works%s.", (long long)(L / pp),
                    L / pp == 1 ? ", with mesh.schedule: 1f1b" : "");
    else
        ls_err_hint("mesh.pp: %lld works%s.", (long long)L,
                    chunks > 1 ? ", with mesh.schedule: 1f1b" : "");
    return st;
}

static ls_status cut(ls_pipe *p, const ls_run *run, const ls_model *model)
{
    int n = p->posts * p->chunks;
    ls_stage *stages = ls_mem_array((size_t)n, sizeof *stages);
    ls_status st = LS_OK;

    p->borders = ls_mem_array((size_t)n + 1, sizeof *p->borders);
    if (!stages || !p->borders) {
        st = ls_fail(LS_ENOMEM, "no memory for a pipeline of %d stages", n);
        goto out;
    }
    LS_TRY(st, ls_stages_plan(model, n, run->batch.leaf, run->model.context, stages), out);
    for (int s = 0; s < n; s++)
        p->borders[s] = s == 0 ? 0 : ls_model_complete(model, stages[s].unit);
    p->borders[n] = model->trained;
    for (int c = 0; c < p->chunks; c++) {
        const ls_stage *s = &stages[c * p->posts + p->post];
        p->chunk[c] =
            (ls_pipe_chunk){.unit = s->unit, .units = s->units, .own = ls_pipe_of(p, p->post, c)};
    }
out:
    ls_mem_free(stages);
    return st;
}

ls_status ls_pipe_init(ls_pipe *pipe, const ls_run *run, const ls_model *model, const ls_mesh *mesh,
                       int64_t micros, bool varies)
{
    ls_pipe p = {.post = ls_mesh_post(mesh, mesh->rank),
                 .posts = mesh->pp,
                 .line = ls_mesh_line(mesh, mesh->rank),
                 .lines = ls_mesh_lines(mesh),
                 .divides = run->mesh.zero > 0 && ls_mesh_lines(mesh) > 1,
                 .ward = -1,
                 .buddy = -1,
                 .chunks = (int)run->mesh.chunks};
    const ls_pipeline like = {
        .kind = ls_pipe_kind(run), .ranks = p.posts, .micros = (int)micros, .chunks = p.chunks};
    ls_status st;

    *pipe = (ls_pipe){.posts = p.posts};
    if (p.divides && mesh->buddies) {
        ls_mesh post = ls_mesh_of_post(mesh);
        post.places = mesh->places ? mesh->places + p.post * p.lines : NULL;
        p.ward = ls_buddies_ward(&post, p.line);
        p.buddy = ls_buddies_of(&post, p.line);
    }
    if ((int64_t)p.posts * p.chunks > model->shape.L)
        return too_few_layers(run, model);
    LS_TRY(st, cut(&p, run, model), out);
    if (model->shape.tied)
        p.tied = (ls_pipe_range){model->wte.g, model->shape.V * model->shape.C};
    LS_TRY(st, plan_table(&p, &like, micros, varies), out);
    *pipe = p;
out:
    if (st != LS_OK)
        ls_pipe_release(&p);
    return st;
}

void ls_pipe_release(ls_pipe *pipe)
{
    ls_pipeline_release(&pipe->table);
    ls_mem_free(pipe->borders);
    *pipe = (ls_pipe){.posts = 0};
}

ls_pipe_range ls_pipe_of(const ls_pipe *pipe, int post, int chunk)
{
    int stage = chunk * pipe->posts + post;

    return (ls_pipe_range){pipe->borders[stage], pipe->borders[stage + 1] - pipe->borders[stage]};
}

int ls_pipe_ranges(const ls_pipe *pipe, ls_pipe_range ranges_out[LS_PIPE_CHUNKS + 1])
{
    int n = 0;

    while (n < pipe->chunks) {
        ranges_out[n] = pipe->chunk[n].own;
        n++;
    }
    if (ls_pipe_is_last(pipe) && pipe->tied.count > 0)
        ranges_out[n++] = pipe->tied;
    return n;
}

ls_pipe_range ls_pipe_updated(const ls_pipe *pipe, int post, int line, int chunk)
{
    ls_pipe_range all = ls_pipe_of(pipe, post, chunk);
    ls_mesh lines = {.ranks = pipe->lines};

    if (!pipe->divides)
        return all;
    ls_mesh_part part = ls_mesh_part_of(&lines, all.count, 0, line);
    return (ls_pipe_range){all.first + part.first, part.count};
}

int ls_pipe_edges(const ls_pipe *pipe, int64_t *blocks_out)
{
    int stages = pipe->posts * pipe->chunks, n = 0;
    int64_t last = -1;

    for (int i = 0; i < stages * pipe->lines; i++) {
        int stage = i / pipe->lines;
        ls_pipe_range part =
            ls_pipe_updated(pipe, stage % pipe->posts, i % pipe->lines, stage / pipe->posts);
        int64_t block = part.first / LS_NORM_BLOCK;
        if (part.count == 0 || part.first % LS_NORM_BLOCK == 0 || block == last)
            continue;
        last = block;
        if (blocks_out)
            blocks_out[n] = block;
        n++;
    }
    return n;
}

int64_t ls_pipe_sent_bytes(const ls_pipe *pipe, const ls_model *model, const ls_calls *calls,
                           ls_dtype type)
{
    int64_t end_leaf = calls->first + calls->own, messages = 0, stream = 0;
    bool end = ls_pipe_is_first(pipe) || ls_pipe_is_last(pipe);

    for (int64_t leaf = calls->first, n; leaf < end_leaf; leaf += n) {
        n = ls_calls_at(calls, leaf);
        stream += ls_pass_stream(model, n * calls->leaf * ls_calls_tokens(calls, model->shape.T));
    }
    for (int c = 0; c < pipe->chunks; c++) {
        int stage = c * pipe->posts + pipe->post;
        messages += stage < pipe->posts * pipe->chunks - 1;
        messages += stage > 0 ? ls_pass_border(model) : 0;
    }
    return messages * stream * ls_dtype_bytes(type) +
           (end ? pipe->tied.count * (int64_t)sizeof(float) : 0);
}

/* --- memory ----------------------------------------------------------------------------------- */

ls_pass_args ls_pipe_pass(const ls_run *run, const ls_model *model, const ls_kernels *kernels,
                          const ls_calls *calls, const ls_pipe_chunk *chunk)
{
    ls_pass_args pass = ls_memory_step_pass(run, model, kernels, calls);

    pass.unit = chunk->unit;
    pass.units = chunk->units;
    pass.slots = chunk->slots;
    pass.late = chunk->late;
    return pass;
}

bool ls_pipe_packs(const ls_pass_args *pass, ls_packs_args *packs_out)
{
    *packs_out = (ls_packs_args){.model = pass->model,
                                 .kernels = pass->kernels,
                                 .type = pass->type,
                                 .M = pass->B * pass->T,
                                 .training = true,
                                 .unit = pass->unit,
                                 .units = pass->units};
    return ls_packs_bytes(packs_out) > 0;
}

ls_dp_args ls_pipe_sum(const ls_run *run, const ls_mesh *mesh, int64_t count, bool divides)
{
    ls_mesh post = ls_mesh_of_post(mesh);
    ls_calls calls;

    post.zero = divides;
    ls_calls_plan(run, &post, &calls);
    return (ls_dp_args){.mesh = post,
                        .ordered = calls.ordered,
                        .leaves = calls.leaves,
                        .roots = calls.roots,
                        .trained = count};
}

int64_t ls_pipe_buffer_bytes(const ls_pipe *pipe, const ls_run *run, const ls_model *model,
                             const ls_calls *calls)
{
    int64_t streams = pipe->streams + pipe->gradients * ls_pass_border(model);

    return streams * ls_pipe_stream_bytes(run, model, calls) +
           ls_pipe_edges(pipe, NULL) * LS_NORM_BLOCK * (int64_t)sizeof(float);
}

int64_t ls_pipe_stream_bytes(const ls_run *run, const ls_model *model, const ls_calls *calls)
{
    int64_t tokens = calls->most * calls->leaf * ls_calls_tokens(calls, run->model.context);

    return ls_round_up(ls_pass_stream(model, tokens) * ls_dtype_bytes(ls_memory_type(run)), 256);
}

ls_pipe_range ls_pipe_saved(const ls_pipe *pipe, int post, int line, int chunk, bool moments)
{
    ls_pipe_range all = ls_pipe_of(pipe, post, chunk), own;

    if (moments && pipe->divides)
        return ls_pipe_updated(pipe, post, line, chunk);
    ls_coll_range(all.count, pipe->lines, line, &own.first, &own.count);
    own.first += all.first;
    return own;
}

/* Pages of elements that lie in a window. */
typedef struct pages {
    int64_t first, end; /* bytes */
} pages;

static pages pages_of(const ls_memory_args *args, ls_pipe_range r, int64_t size)
{
    int64_t page = args->page ? args->page : LS_WINDOW_PAGE;

    if (r.count == 0)
        return (pages){0, 0};
    return (pages){r.first * size / page * page, ls_round_up((r.first + r.count) * size, page)};
}

static int64_t paged(const ls_memory_args *args, ls_pipe_range r, int64_t size)
{
    pages p = pages_of(args, r, size);

    return p.end - p.first;
}

/* Of several ranges that do not overlap; pages that two of them share count once. */
static int64_t all_paged(const ls_memory_args *args, const ls_pipe_range *ranges, int n,
                         int64_t size)
{
    int64_t bytes = 0;

    for (int i = 0; i < n; i++) {
        pages own = pages_of(args, ranges[i], size);
        for (int k = 0; k < i && own.first < own.end; k++) {
            pages other = pages_of(args, ranges[k], size);
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
static int64_t weight_bytes(const ls_memory_args *args, const ls_pipe *p, int64_t size)
{
    ls_pipe_range ranges[LS_PIPE_CHUNKS + 1];
    int n = ls_pipe_ranges(p, ranges);

    return all_paged(args, ranges, n, size);
}

static int64_t moment_bytes(const ls_memory_args *args, const ls_pipe *p, int line)
{
    ls_pipe_range ranges[LS_PIPE_CHUNKS];

    for (int c = 0; c < p->chunks; c++)
        ranges[c] = ls_pipe_updated(p, p->post, line, c);
    return all_paged(args, ranges, p->chunks, sizeof(float));
}

/* What sums over lines take, beside gradients: for themselves, and, on a device with a memory of
 * its own, what gradients pass through. */
typedef struct sums {
    int64_t bytes, staged;
} sums;

/* Gradients of a range, with the room that their sum over lines takes; and what that takes. */
static int64_t grad_bytes(const ls_memory_args *args, ls_pipe_range own, bool divides, sums *sum)
{
    ls_dp_args dp = ls_pipe_sum(args->run, ls_memory_sums(args), own.count, divides);

    if (ls_mesh_lines(ls_memory_sums(args)) > 1) {
        sum->bytes += ls_dp_bytes(&dp);
        sum->staged += ls_round_up(ls_dp_elements(&dp) * (int64_t)sizeof(float), 4096);
        own.count = args->apart ? own.count : ls_dp_elements(&dp);
    }
    return paged(args, own, sizeof(float));
}

static void predict_gradients(const ls_memory_args *args, const ls_calls *calls, const ls_pipe *p,
                              ls_ledger *ledger)
{
    ls_pipe_range head = {0, p->tied.count};
    int64_t bytes = 0;
    sums sum = {.bytes = 0};

    for (int c = 0; c < p->chunks; c++)
        bytes += calls->buffers * grad_bytes(args, p->chunk[c].own, p->divides, &sum);
    if (head.count > 0 && ls_pipe_is_last(p))
        bytes += calls->buffers * grad_bytes(args, head, false, &sum);
    else if (head.count > 0 && ls_pipe_is_first(p))
        bytes += paged(args, head, sizeof(float));
    ls_ledger_add(ledger, "gradients",
                  calls->ordered ? "own layers, log2(calls) + 1 buffers of the tree of sums"
                                 : "own layers, one buffer",
                  bytes);
    if (ls_mesh_lines(ls_memory_sums(args)) < 2)
        return;
    (args->apart ? ls_ledger_add_host : ls_ledger_add)(
        ledger, "exchange", "gradients of other lines, on their way", sum.bytes);
    if (args->apart)
        ls_ledger_add_host(ledger, "staging", "own gradients on their way, page-locked",
                           calls->buffers * sum.staged);
}

/* What messages pass through on a device with a memory of its own (train/line_travel.c). */
static int64_t message_bytes(const ls_memory_args *args, const ls_calls *calls, const ls_pipe *p)
{
    int64_t message =
        ls_pipe_stream_bytes(args->run, args->model, calls) * ls_pass_border(args->model);
    int places = p->streams + p->gradients;

    for (int c = 0; c < p->chunks; c++)
        places += p->chunk[c].slots;
    return ls_staging_bytes(places, message) + ls_staging_bytes(1, LS_PIPE_PIECE);
}

static void predict_passes(const ls_memory_args *args, const ls_calls *calls, const ls_pipe *p,
                           ls_ledger *ledger)
{
    int64_t passes = 0, packed = 0;
    ls_packs_args packs;

    for (int c = 0; c < p->chunks; c++) {
        ls_pass_args pass =
            ls_pipe_pass(args->run, args->model, args->kernels, calls, &p->chunk[c]);
        passes += ls_pass_bytes(&pass, args->threads);
        if (args->pack && args->run->device.pack != LS_PACKING_OFF && ls_pipe_packs(&pass, &packs))
            packed += ls_packs_bytes(&packs);
    }
    if (packed > 0)
        ls_ledger_add(ledger, "packed weights", "own matrices in the order of products, both ways",
                      packed);
    ls_ledger_add(ledger, "activations", "own layers, of the micro-batches on their way", passes);
    ls_ledger_add(ledger, "pipeline", "streams and gradients from other stages",
                  ls_round_up(ls_pipe_buffer_bytes(p, args->run, args->model, calls), 4096));
    if (args->apart)
        ls_ledger_add_host(ledger, "pipeline messages", "streams on their way, page-locked",
                           message_bytes(args, calls, p));
}

void ls_pipe_predict(const ls_memory_args *args, const ls_calls *calls, ls_ledger *ledger)
{
    const ls_run *run = args->run;
    ls_dtype type = ls_memory_type(run);
    ls_pipe p;

    if (ls_pipe_init(&p, run, args->model, ls_memory_sums(args), ls_max_i64(1, calls->rounds),
                     run->batch.ramp > 0) != LS_OK) {
        ls_err_clear(); /* whoever opens the run is told */
        return;
    }
    ls_ledger_add(ledger, "weights", "parameters of the own layers, fp32",
                  weight_bytes(args, &p, sizeof(float)));
    if (type != LS_F32)
        ls_ledger_add(ledger, type == LS_F16 ? "fp16 weights" : "bf16 weights",
                      "the same once more, as the model reads them",
                      weight_bytes(args, &p, ls_dtype_bytes(type)));
    ls_ledger_add(ledger, "optimizer",
                  p.divides ? "two moments per parameter of the own layers that this rank updates"
                            : "two moments per parameter of the own layers",
                  2 * moment_bytes(args, &p, p.line));
    if (p.ward >= 0)
        ls_ledger_add(ledger, "buddy", "two moments that another line updates",
                      2 * moment_bytes(args, &p, p.ward));
    predict_gradients(args, calls, &p, ledger);
    predict_passes(args, calls, &p, ledger);
    ls_pipe_release(&p);
}
