/* replica_moments.c -- see replica_moments.h. */
#include "layout/replica_moments.h"

#include "layout/expert_zero.h"

bool ls_replica_moments_serves(const ls_model *model, const ls_mesh *replicas)
{
    bool together = model->split.ranks > 1 || model->split.ep_ranks > 1;

    return together && replicas && replicas->buddies && replicas->zero == 1 &&
           ls_mesh_pp(replicas) == 1 && ls_mesh_ranks(replicas) > 1;
}

static int shift_of(const ls_mesh *replicas)
{
    return (int)ls_max_i64(1, ls_mesh_ranks(replicas) / 2);
}

int ls_replica_moments_of(const ls_mesh *replicas, int rank)
{
    int n = ls_mesh_ranks(replicas);

    return (rank + n - shift_of(replicas)) % n;
}

int ls_replica_moments_buddy(const ls_mesh *replicas, int rank)
{
    return (rank + shift_of(replicas)) % ls_mesh_ranks(replicas);
}

int ls_replica_moments_parts(const ls_run *run, const ls_model *model, const ls_mesh *replicas,
                             int rank, ls_mesh_part *parts_out)
{
    int n = ls_mesh_buckets(replicas, model->trained);

    if (ls_expert_zero_divides(run, model, replicas))
        return ls_expert_zero_parts(model, replicas, rank, parts_out);
    for (int i = 0; i < n && parts_out; i++)
        parts_out[i] = ls_mesh_part_of(replicas, model->trained, i, rank);
    return n;
}

int64_t ls_replica_moments_place(int64_t own)
{
    return ls_round_up(own, LS_PARAM_ALIGN);
}

int64_t ls_replica_moments_moments(const ls_run *run, const ls_model *model,
                                   const ls_mesh *replicas, int64_t own)
{
    int64_t most = 0;

    if (!ls_replica_moments_serves(model, replicas))
        return own;
    for (int r = 0; r < ls_mesh_ranks(replicas); r++) {
        ls_mesh other = *replicas;
        other.rank = r;
        most = ls_max_i64(most, ls_expert_zero_divides(run, model, replicas)
                                    ? ls_expert_zero_own(model, &other)
                                    : ls_mesh_own(replicas, model->trained, r));
    }
    return ls_replica_moments_place(own) + most;
}
