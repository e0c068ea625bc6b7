/* replica_moments.c -- see replica_moments.h. */
#include "layout/replica_moments.h"

#include "layout/expert_zero.h"

bool ls_replica_moments_serves(const ls_model *model, const ls_mesh *equals)
{
    bool together = model->split.ranks > 1 || model->split.far_ranks > 1;

    return together && equals && equals->buddies && equals->zero == 1 && ls_mesh_pp(equals) == 1 &&
           ls_mesh_ranks(equals) > 1;
}

static int shift_of(const ls_mesh *equals)
{
    return (int)ls_max_i64(1, ls_mesh_ranks(equals) / 2);
}

int ls_replica_moments_of(const ls_mesh *equals, int rank)
{
    int n = ls_mesh_ranks(equals);

    return (rank + n - shift_of(equals)) % n;
}

int ls_replica_moments_buddy(const ls_mesh *equals, int rank)
{
    return (rank + shift_of(equals)) % ls_mesh_ranks(equals);
}

int ls_replica_moments_parts(const ls_run *run, const ls_model *model, const ls_mesh *equals,
                             int rank, ls_mesh_part *parts_out)
{
    int n = ls_mesh_buckets(equals, model->trained);

    if (ls_expert_zero_divides(run, model, equals))
        return ls_expert_zero_parts(model, equals, rank, parts_out);
    for (int i = 0; i < n && parts_out; i++)
        parts_out[i] = ls_mesh_part_of(equals, model->trained, i, rank);
    return n;
}

int64_t ls_replica_moments_place(int64_t own)
{
    return ls_round_up(own, LS_PARAM_ALIGN);
}

int64_t ls_replica_moments_moments(const ls_run *run, const ls_model *model, const ls_mesh *equals,
                                   int64_t own)
{
    int64_t most = 0;

    if (!ls_replica_moments_serves(model, equals))
        return own;
    for (int r = 0; r < ls_mesh_ranks(equals); r++) {
        ls_mesh other = *equals;
        other.rank = r;
        most = ls_max_i64(most, ls_expert_zero_divides(run, model, equals)
                                    ? ls_expert_zero_own(model, &other)
                                    : ls_mesh_own(equals, model->trained, r));
    }
    return ls_replica_moments_place(own) + most;
}
