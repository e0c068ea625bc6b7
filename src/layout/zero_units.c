/* zero_units.c -- ranges of units into sets of buckets. */
#include "layout/zero_units.h"

#include "model/pass.h"

_Static_assert(LS_MESH_BUCKETS <= 64, "a set of buckets is one word");

static ls_zero_units_set buckets_of(const ls_mesh *mesh, int64_t trained, int64_t first,
                                    int64_t count)
{
    ls_zero_units_set set = 0;

    for (int b = 0; b < ls_mesh_buckets(mesh, trained); b++) {
        ls_mesh_part bucket = ls_mesh_bucket(mesh, trained, b);
        if (bucket.first < first + count && first < bucket.first + bucket.count)
            set |= (ls_zero_units_set)1 << b;
    }
    return set;
}

ls_zero_units_set ls_zero_units_buckets(const ls_model *model, const ls_mesh *mesh, int64_t unit)
{
    bool head = unit == model->shape.L + 1;
    ls_zero_units_set set = 0;

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        bool tied = head && model->shape.tied && p->first == model->wte.w;
        if (p->unit == unit || tied)
            set |= buckets_of(mesh, model->trained, p->trained, p->count);
    }
    return set;
}

int64_t ls_zero_units_next(const ls_model *model, int64_t before, int64_t unit)
{
    int64_t top = model->shape.L + 1;

    if (unit == top)
        return top - 1;
    if (unit == 0 || before < unit)
        return unit + 1;
    return unit > 1 ? unit - 1 : unit;
}

static int64_t elements_of(const ls_model *model, const ls_mesh *mesh, ls_zero_units_set set)
{
    int64_t n = 0;

    for (int b = 0; b < ls_mesh_buckets(mesh, model->trained); b++)
        if (set >> b & 1)
            n += ls_mesh_bucket(mesh, model->trained, b).each * ls_mesh_shard_ranks(mesh);
    return n;
}

int64_t ls_zero_units_most(const ls_model *model, const ls_mesh *mesh)
{
    int64_t most = 0;

    for (int64_t unit = 0; unit <= model->shape.L; unit++) {
        ls_zero_units_set two =
            ls_zero_units_buckets(model, mesh, unit) | ls_zero_units_buckets(model, mesh, unit + 1);
        most = ls_max_i64(most, elements_of(model, mesh, two));
    }
    return most;
}

int64_t ls_zero_units_gradient(const ls_model *model, const ls_mesh *mesh, bool ordered)
{
    int64_t top = model->shape.L + 1, most = 0;
    int64_t tied = model->shape.tied ? model->shape.V * model->shape.C : 0;

    for (int64_t unit = 0; unit <= top; unit++) {
        int64_t first = ls_model_complete(model, unit);
        int64_t end = unit == top ? model->trained : ls_model_complete(model, unit + 1);
        most = ls_max_i64(most, end - first);
    }
    /* Ordered, the head's part lies behind all and goes first; then the unit is the embedding. */
    if (ordered)
        return ls_max_i64(most, tied) + ls_mesh_bucket(mesh, model->trained, 0).count;
    return most + tied + ls_mesh_bucket(mesh, model->trained, 0).count;
}
