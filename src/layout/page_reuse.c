/* page_reuse.c -- the longest stretch that is in use at a time, from the walk through the units.
 *
 * Backward goes down through the units. While it writes unit u, what is left of the buckets above
 * waits to be sent: the stretch reaches from the lowest element that unit u writes to the end of the
 * bucket that unit u + 1 begins in. For weights it reaches over the buckets of a unit and the next,
 * the padding of the last bucket included, which a gather writes too. */
#include "layout/page_reuse.h"

#include "model/pass.h"

static ls_mesh_part bucket_at(const ls_model *model, const ls_mesh *mesh, int64_t element)
{
    int n = ls_mesh_buckets(mesh, model->trained), b = 0;

    while (b + 1 < n && ls_mesh_bucket(mesh, model->trained, b + 1).first <= element)
        b++;
    return ls_mesh_bucket(mesh, model->trained, b);
}

/* A stretch of bytes is in use at a time: the period covers its pages. */
static void stretch(ls_page_reuse *t, int64_t page, int64_t first, int64_t end)
{
    first = ls_max_i64(first / page * page, t->fixed);
    end = ls_min_i64(ls_round_up(end, page), t->end);
    t->period = ls_max_i64(t->period, end - first);
}

/* Whether the head's part of a tied gradient is begun in the embedding's. */
static bool begins_at_head(const ls_model *model, bool ordered)
{
    return model->shape.tied && !ordered;
}

/* The lowest element that backward of a unit writes: where it ends, or in the block below the bias
 * that this ends with, whose gradient a norm sums. */
static int64_t lowest(const ls_model *model, int64_t unit)
{
    int64_t first = ls_model_complete(model, unit);
    int64_t bias = unit > 1 ? model->blocks[unit - 2].out_b.g : -1;

    return bias >= 0 ? ls_min_i64(first, bias) : first;
}

ls_page_reuse ls_page_reuse_gradient(const ls_model *model, const ls_mesh *mesh, bool ordered,
                                     int64_t page)
{
    const int64_t size = sizeof(float), top = model->shape.L + 1;
    int64_t elements = ls_pass_grad_elements(model, ordered);
    ls_page_reuse t = {.bytes = ls_round_up(elements * size, page)};

    t.end = elements > model->trained ? model->trained * size / page * page : t.bytes;
    if (begins_at_head(model, ordered))
        t.fixed = ls_min_i64(t.end, ls_round_up(ls_model_complete(model, 1) * size, page));
    for (int64_t unit = 1; unit <= top; unit++) {
        int64_t above = unit == top ? model->trained : ls_model_complete(model, unit + 1);
        ls_mesh_part bucket =
            bucket_at(model, mesh, above - 1); /* what is left of it waits for the rest */
        /* The first block and the embedding leave together. */
        int64_t first = unit == 1 ? 0 : lowest(model, unit);
        stretch(&t, page, first * size, (bucket.first + bucket.count) * size);
    }
    return t;
}

/* Behind the padding of a bucket. */
static int64_t end_of(ls_mesh_part bucket, const ls_mesh *mesh)
{
    return bucket.first + bucket.each * ls_mesh_shard_ranks(mesh);
}

ls_page_reuse ls_page_reuse_weights(const ls_model *model, const ls_mesh *mesh, int64_t size,
                                    int64_t page)
{
    const int64_t top = model->shape.L + 1;
    int64_t elements =
        ls_max_i64(model->flat, end_of(bucket_at(model, mesh, model->trained - 1), mesh));
    ls_page_reuse t = {.bytes = ls_round_up(elements * size, page)};

    t.end = t.bytes;
    if (model->shape.tied) {
        ls_mesh_part last = bucket_at(model, mesh, ls_model_complete(model, 1) - 1);
        t.fixed = ls_min_i64(t.end, ls_round_up(end_of(last, mesh) * size, page));
    }
    for (int64_t unit = 0; unit < top; unit++) {
        ls_mesh_part low = bucket_at(model, mesh, ls_model_complete(model, unit));
        int64_t above = unit + 1 == top ? model->trained : ls_model_complete(model, unit + 2);
        ls_mesh_part high = bucket_at(model, mesh, above - 1);
        stretch(&t, page, low.first * size, end_of(high, mesh) * size);
    }
    return t;
}

int64_t ls_page_reuse_held(const ls_page_reuse *page_reuse)
{
    return page_reuse->fixed + page_reuse->period + page_reuse->bytes - page_reuse->end;
}

int ls_page_reuse_places(const ls_model *model, const ls_mesh *mesh)
{
    int most = 0;

    for (int64_t unit = 0; unit <= model->shape.L; unit++) {
        ls_zero_units_set two =
            ls_zero_units_buckets(model, mesh, unit) | ls_zero_units_buckets(model, mesh, unit + 1);
        int n = __builtin_popcountll(two);
        most = n > most ? n : most;
    }
    return most;
}
