/* ckpt_ranges.c -- first the ranges of a rank, then what of each parameter in them it writes.
 *
 * Worked example: 2 tp groups of 2 ranks, a vector of 6 elements that all ranks have (small; number 1
 * of the parameters) and a matrix of which each rank of a group has 4 elements, one behind the other
 * in its array. The ranges of a slice are 0 to 4 and 5 to 9:
 *
 *     rank  place  range  writes of the vector   of the matrix
 *      0      0    0..4   nothing: 1 % 2 is 1    nothing
 *      1      1    0..4   0..4                   nothing
 *      2      0    5..9   nothing                0..3 of its part
 *      3      1    5..9   5                      0..3 of its part */
#include "layout/ckpt_ranges.h"

#include "base/mem.h"
#include "layout/expert_zero.h"
#include "optim/optim.h"

enum {
    SMALL = 4096
}; /* elements; what is smaller is not cut, one of those that have it writes it */

_Static_assert((int)LS_STAGE_PLAN_BUCKETS <= (int)LS_MESH_BUCKETS,
               "ranges of a rank of a pipeline");

/* Elements of an array, and where they lie in what a rank has of it. */
typedef struct range {
    int64_t first, count, place;
} range;

bool ls_ckpt_ranges_divided(const ls_mesh *mesh_slice, int kind)
{
    return ls_mesh_divides(mesh_slice) && (kind > 0 || ls_mesh_parts_weights(mesh_slice));
}

int64_t ls_ckpt_ranges_array(const ls_run *run, const ls_model *model, const ls_mesh *mesh_slice,
                             int kind)
{
    return kind == 0                     ? model->flat
           : !ls_optim_keeps(run, kind)  ? 0
           : kind == 1                   ? model->trained
           : ls_mesh_divides(mesh_slice) ? model->trained
                                         : ls_optim_seconds(run, model);
}

int64_t ls_ckpt_ranges_place(const ls_run *run, const ls_model *model, const ls_mesh *mesh_slice,
                             int kind, int i)
{
    const ls_param *p = &model->params[i];

    if (kind == 0)
        return p->first;
    if (kind == 1)
        return p->trained;
    if (ls_mesh_divides(mesh_slice)) /* in the order of the gradients */
        return ls_optim_is_matrix(run, p) || !ls_optim_keeps(run, kind) ? -1 : p->trained;
    return ls_optim_second(run, model, i);
}

static int ranges_of(const ls_ckpt_ranges *x, int kind, int rank, range out[LS_MESH_BUCKETS])
{
    const ls_mesh *mesh_slice = x->mesh_slice;
    int64_t all = ls_ckpt_ranges_array(x->run, x->model, mesh_slice, kind);

    if (x->plan) {
        int pp_rank = rank / x->plan->pipelines, pipeline = rank % x->plan->pipelines, count = 0;
        for (int c = 0; c < x->plan->chunks; c++)
            for (int b = 0; b < ls_stage_plan_buckets(x->plan, pp_rank, c); b++) {
                ls_range r = ls_stage_plan_saved(x->plan, pp_rank, pipeline, c, b, kind > 0);
                out[count++] = (range){r.first, r.count, r.first};
            }
        return count;
    }
    if (!ls_ckpt_ranges_divided(mesh_slice, kind)) {
        ls_coll_range(all, ls_mesh_ranks(mesh_slice), rank, &out->first, &out->count);
        out->place = out->first;
        return 1;
    }
    int n = ls_mesh_buckets(mesh_slice, x->model->trained);
    for (int b = 0; b < n;
         b++) { /* owners in several shard groups read the same, and write a piece each */
        ls_mesh_part own = ls_mesh_part_of(mesh_slice, x->model->trained, b, rank);
        ls_mesh_part piece = ls_mesh_piece_of(mesh_slice, x->model->trained, b, rank);
        ls_mesh_part used = x->saves ? piece : own;
        out[b] = (range){used.first, used.count, own.packed + used.first - own.first};
    }
    return n;
}

/* Whether ranks that divide experts divide a kind of everything else (expert_zero.h), too. */
static bool is_parted(const ls_ckpt_ranges *x, int kind)
{
    return kind > 0 && !x->plan && ls_expert_zero_divides(x->run, x->model, x->mesh_slice);
}

/* How many ranks of a model have the same of a parameter, and which of them this one is. parted: the
 * ranks that divide experts have different parts of it. */
static int copies_of(const ls_model *model, const ls_param *p, bool parted, int *own_out)
{
    const ls_model_split *split = &model->split;
    bool same_part = !p->expert && !parted;

    *own_out = (same_part ? split->ep_rank * p->box.copies : 0) + split->rank % p->box.copies;
    return p->box.copies * (same_part ? split->ep_ranks : 1);
}

/* The elements of parameter i that this rank writes, and not another that has the same. */
static range share_of(const ls_model *model, int i, bool parted)
{
    const ls_param *p = &model->params[i];
    int own, copies = copies_of(model, p, parted, &own);
    int64_t row = p->count / ls_max_i64(1, p->shape[0]);
    range share = {.first = 0, .count = p->count};

    if (copies == 1)
        return share;
    if (p->count < SMALL) {
        share.count = i % copies == own ? p->count : 0;
        return share;
    }
    if (p->shape[0] < copies)
        row = 1;
    int64_t rows = p->count / row;
    share.first = rows * own / copies * row;
    share.count = rows * (own + 1) / copies * row - share.first;
    return share;
}

/* The pieces of a range, behind the first *n, and how many elements they have. */
static void list_range(const ls_ckpt_ranges *x, int kind, range r, ls_ckpt_ranges_piece *pieces_out,
                       int *n, int64_t *elements)
{
    for (int i = 0; i < x->model->n_params; i++) {
        int64_t at = ls_ckpt_ranges_place(x->run, x->model, x->mesh_slice, kind, i);
        range own = {.count = x->model->params[i].count};
        if (x->saves)
            own = share_of(x->model, i, is_parted(x, kind));
        int64_t first = ls_max_i64(at + own.first, r.first);
        int64_t end = ls_min_i64(at + own.first + own.count, r.first + r.count);
        if (at < 0 || first >= end)
            continue;
        if (pieces_out)
            pieces_out[*n] = (ls_ckpt_ranges_piece){.param = i,
                                                    .first = first - at,
                                                    .count = end - first,
                                                    .place = r.place + first - r.first};
        *elements += end - first;
        (*n)++;
    }
}

/* What of a range is in the piece that this rank writes of what several shard groups own. */
static range meet(range all, ls_mesh_part piece)
{
    int64_t first = ls_max_i64(all.first, piece.first);
    int64_t end = ls_min_i64(all.first + all.count, piece.first + piece.count);

    return (range){first, ls_max_i64(0, end - first), all.place + first - all.first};
}

/* All pieces, and how many elements they have. */
static int list(const ls_ckpt_ranges *x, int kind, int rank, ls_ckpt_ranges_piece *pieces_out,
                int64_t *elements)
{
    bool parted = is_parted(x, kind);
    range ranges[LS_MESH_BUCKETS];
    ls_expert_zero_walk walk = {.bucket = 0};
    ls_mesh_part part;
    int n = 0, count = parted ? 0 : ranges_of(x, kind, rank, ranges);

    for (int k = 0; k < count; k++)
        list_range(x, kind, ranges[k], pieces_out, &n, elements);
    while (parted && ls_expert_zero_next(x->model, x->mesh_slice, rank, &walk, &part)) {
        ls_mesh_part piece = ls_mesh_piece_of(x->mesh_slice, x->model->trained, walk.bucket, rank);
        range all = {part.first, part.count, part.packed};
        list_range(x, kind, x->saves ? meet(all, piece) : all, pieces_out, &n, elements);
    }
    return n;
}

int ls_ckpt_ranges_pieces(const ls_ckpt_ranges *ranges, int kind, int rank,
                          ls_ckpt_ranges_piece *pieces_out)
{
    int64_t elements = 0;

    return list(ranges, kind, rank, pieces_out, &elements);
}

bool ls_ckpt_ranges_shared(const ls_model *model, int i)
{
    int own;

    return copies_of(model, &model->params[i], false, &own) > 1;
}

int ls_ckpt_ranges_replica(const ls_ckpt_ranges *ranges, int64_t turn)
{
    const ls_mesh *mesh_slice = ranges->mesh_slice;
    int pipelines = ls_mesh_pipelines(mesh_slice);

    if (pipelines < 2)
        return -1;
    return ls_mesh_pp_rank(mesh_slice, mesh_slice->rank) * pipelines +
           (ls_mesh_pipeline(mesh_slice, mesh_slice->rank) + 1 + (int)(turn % (pipelines - 1))) %
               pipelines;
}

bool ls_ckpt_ranges_common(const ls_ckpt_ranges *ranges, int kind)
{
    return ranges->plan ? !ranges->plan->divides || (kind == 0 && ranges->plan->zero < 3)
                        : !ls_ckpt_ranges_divided(ranges->mesh_slice, kind);
}

/* What the rank of the slice writes; release the plan. false: its layers cannot be cut. */
static bool open_saved(const ls_run *run, const ls_model *model, const ls_mesh *mesh_slice,
                       ls_stage_plan *plan, ls_ckpt_ranges *x_out)
{
    bool pipeline = ls_mesh_pp(mesh_slice) > 1;

    *plan = (ls_stage_plan){.pp_ranks = 0};
    *x_out = (ls_ckpt_ranges){.run = run,
                              .model = model,
                              .mesh_slice = mesh_slice,
                              .plan = pipeline ? plan : NULL,
                              .saves = true};
    return !pipeline || ls_stage_plan_init(plan, run, model, mesh_slice, 1, false) == LS_OK;
}

int64_t ls_ckpt_ranges_elements(const ls_run *run, const ls_model *model, const ls_mesh *mesh_slice)
{
    int64_t elements = 0;
    ls_ckpt_ranges x;
    ls_stage_plan plan;

    if (!open_saved(run, model, mesh_slice, &plan, &x))
        return 0;
    for (int kind = 0; kind < LS_CKPT_RANGES_KINDS; kind++)
        (void)list(&x, kind, mesh_slice ? mesh_slice->rank : 0, NULL, &elements);
    ls_stage_plan_release(&plan);
    return elements;
}

int64_t ls_ckpt_ranges_flow(const ls_run *run, const ls_model *model, const ls_mesh *mesh_slice)
{
    int64_t flow = 0, units = model->shape.L + 2, elements = 0;
    /* Of each unit what is trained, then what is frozen; likewise of what others have too. */
    int64_t *bytes = ls_mem_array(2 * ((size_t)units + 1), sizeof *bytes);
    int rank = mesh_slice ? mesh_slice->rank : 0;
    ls_ckpt_ranges x;
    ls_stage_plan plan;

    if (!bytes || !open_saved(run, model, mesh_slice, &plan, &x)) {
        ls_mem_free(bytes);
        return 0;
    }
    for (int kind = 0; kind < LS_CKPT_RANGES_KINDS; kind++) {
        int n = ls_ckpt_ranges_pieces(&x, kind, rank, NULL);
        ls_ckpt_ranges_piece *pieces = ls_mem_array((size_t)n, sizeof *pieces);
        n = pieces ? list(&x, kind, rank, pieces, &elements) : 0;
        for (int i = 0; i < n; i++) {
            const ls_param *p = &model->params[pieces[i].param];
            int64_t unit = ls_ckpt_ranges_shared(model, pieces[i].param) ? units : p->unit;
            bytes[2 * unit + (p->trained < 0)] += pieces[i].count * (int64_t)sizeof(float);
        }
        for (int64_t u = 0; u < 2 * (units + 1); u++) {
            flow += bytes[u] >= LS_CKPT_RANGES_LARGE ? bytes[u] : 0;
            bytes[u] = 0;
        }
        ls_mem_free(pieces);
    }
    ls_stage_plan_release(&plan);
    ls_mem_free(bytes);
    return ls_min_i64(flow, LS_CKPT_RANGES_BUFFERS);
}
