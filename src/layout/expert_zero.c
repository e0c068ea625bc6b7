/* expert_zero.c -- a walk over the parts of a rank.
 *
 * The walk goes through the rank's part of each bucket and stops wherever experts and everything else
 * meet. Example: a part of 100 elements, of which 40 to 70 are an expert, on expert rank 1 of 2:
 *
 *     run       0..40 (else)   40..70 (expert)   70..100 (else)
 *     updates   20..40         40..70            85..100        (borders on LS_PARAM_ALIGN in truth) */
#include "layout/expert_zero.h"

bool ls_expert_zero_divides(const ls_run *run, const ls_model *model, const ls_mesh *replicas)
{
    return run->mesh.zero > 0 && model->split.ep_ranks > 1 && ls_mesh_pp(replicas) == 1;
}

/* Where the run of experts, or of everything else, ends that element `at` is in; what lies between
 * parameters belongs to the one behind it. */
static int64_t run_end(const ls_model *model, int64_t at, bool *expert_out)
{
    int i = 0;

    while (i < model->n_params && model->params[i].trained + model->params[i].count <= at)
        i++;
    *expert_out = i < model->n_params && model->params[i].expert;
    while (i < model->n_params && model->params[i].expert == *expert_out)
        i++;
    return i < model->n_params ? model->params[i].trained : model->trained;
}

/* What this rank has of elements at .. end-1, which are all experts, or none is. */
static ls_mesh_part share_of(const ls_model_split *split, int64_t at, int64_t end, bool expert)
{
    int64_t ranks = expert ? 1 : split->ep_ranks, place = expert ? 0 : split->ep_rank;
    int64_t each = ls_round_up((end - at + ranks - 1) / ranks, LS_PARAM_ALIGN);
    int64_t first = ls_min_i64(end, at + place * each);

    return (ls_mesh_part){.first = first, .count = ls_min_i64(end, first + each) - first};
}

bool ls_expert_zero_next(const ls_model *model, const ls_mesh *replicas, int rank,
                         ls_expert_zero_walk *walk, ls_mesh_part *part_out)
{
    while (walk->bucket < ls_mesh_buckets(replicas, model->trained)) {
        ls_mesh_part own = ls_mesh_part_of(replicas, model->trained, walk->bucket, rank);
        int64_t at = own.first + walk->done, end = own.first + own.count;
        bool expert;
        if (at >= end) {
            walk->bucket++;
            walk->done = 0;
            continue;
        }
        end = ls_min_i64(end, run_end(model, at, &expert));
        walk->done = end - own.first;
        *part_out = share_of(&model->split, at, end, expert);
        part_out->packed = walk->packed;
        walk->packed += part_out->count;
        if (part_out->count > 0)
            return true;
    }
    return false;
}

int ls_expert_zero_parts(const ls_model *model, const ls_mesh *replicas, int rank,
                         ls_mesh_part *parts_out)
{
    ls_expert_zero_walk walk = {.bucket = 0};
    ls_mesh_part part;
    int n = 0;

    for (; ls_expert_zero_next(model, replicas, rank, &walk, &part); n++)
        if (parts_out)
            parts_out[n] = part;
    if (n == 0 && parts_out)
        parts_out[0] = (ls_mesh_part){.count = 0};
    return n > 0 ? n : 1;
}

int64_t ls_expert_zero_own(const ls_model *model, const ls_mesh *replicas)
{
    ls_expert_zero_walk walk = {.bucket = 0};
    ls_mesh_part part;

    while (ls_expert_zero_next(model, replicas, replicas->rank, &walk, &part))
        ;
    return walk.packed;
}
