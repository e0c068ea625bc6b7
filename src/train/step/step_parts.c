/* step_parts.c -- which elements this rank sums with others, and which it updates.
 *
 *     12 elements, 2 replicas, ZeRO, buckets of 6      rank 0 updates 0..2 and 6..8, packed 0..5
 *                                                      rank 1 updates 3..5 and 9..11
 *
 * A part (layout/mesh.h) is the run of elements that a rank has of one bucket, and where it lies in
 * arrays that hold own elements only. The mode's row lists the parts once; without ZeRO there is
 * one part, which is everything. Where ranks divide experts, the parts that are updated are shares
 * of those that are summed (layout/expert_zero.h). Optimizers, the norm, copies at other ranks and
 * checkpoints all go by these two lists. */
#include "train/step/step_impl.h"

#include "base/mem.h"

int ls_step_all(int64_t elements, ls_mesh_part *parts_out)
{
    if (parts_out)
        parts_out[0] = (ls_mesh_part){.count = elements};
    return 1;
}

static int list_sums(const ls_step *s, ls_mesh_part *parts_out)
{
    return s->mode->parts ? s->mode->parts(s, parts_out)
                          : ls_step_all(s->args.model->trained, parts_out);
}

static int list_weights(const ls_step *s, ls_mesh_part *parts_out)
{
    return s->mode->weights ? s->mode->weights(s, parts_out)
                            : ls_step_all(s->args.model->flat, parts_out);
}

ls_status ls_step_open_parts(ls_step *s)
{
    s->parts.n = list_sums(s, NULL);
    s->parts.n_weights = list_weights(s, NULL);
    s->parts.sums = ls_mem_array((size_t)s->parts.n, sizeof *s->parts.sums);
    s->parts.weights = ls_mem_array((size_t)s->parts.n_weights, sizeof *s->parts.weights);
    if (!s->parts.sums || !s->parts.weights)
        return LS_ENOMEM;
    (void)list_sums(s, s->parts.sums);
    (void)list_weights(s, s->parts.weights);
    ls_mesh_part end = ls_step_own(s, ls_step_buckets(s) - 1);
    s->own = end.packed + end.count;
    return LS_OK;
}

void ls_step_close_parts(ls_step *s)
{
    ls_mem_free(s->parts.sums);
    ls_mem_free(s->parts.weights);
}

int ls_step_sums(const ls_step *s)
{
    return s->parts.n;
}

ls_mesh_part ls_step_sum(const ls_step *s, int bucket)
{
    return s->parts.sums[bucket];
}

int ls_step_buckets(const ls_step *s)
{
    return s->ep_group.parts ? s->ep_group.n_parts : s->parts.n;
}

ls_mesh_part ls_step_own(const ls_step *s, int bucket)
{
    return s->ep_group.parts ? s->ep_group.parts[bucket] : s->parts.sums[bucket];
}

bool ls_step_piece_of(ls_mesh_part own, int64_t first, int64_t end, ls_step_piece *piece_out)
{
    int64_t from = ls_max_i64(first, own.first);
    int64_t to = ls_min_i64(end, own.first + own.count);

    *piece_out =
        (ls_step_piece){.first = from, .count = to - from, .place = own.packed + from - own.first};
    return from < to;
}

bool ls_step_own_piece(const ls_step *s, int64_t first, int64_t end, ls_step_piece *piece_out)
{
    for (int b = 0; b < ls_step_buckets(s); b++)
        if (ls_step_piece_of(ls_step_own(s, b), first, end, piece_out))
            return true;
    return false;
}

bool ls_step_sum_piece(const ls_step *s, int64_t first, int64_t end, ls_step_piece *piece_out)
{
    for (int b = 0; b < ls_step_sums(s); b++)
        if (ls_step_piece_of(ls_step_sum(s, b), first, end, piece_out))
            return true;
    return false;
}

int64_t ls_step_place(const ls_step *s, int64_t element)
{
    ls_step_piece piece;

    return ls_step_sum_piece(s, element, element + 1, &piece) ? piece.place : 0;
}

const float *ls_step_own_gradient(const ls_step *s, ls_mesh_part own)
{
    return s->mode->gradient ? s->mode->gradient(s, own.first)
                             : (const float *)s->grads[0] + own.first;
}
