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

/* What a function of the row lists; a row without one has all elements, as one part. */
static ls_status list_parts(const ls_step *s, int (*list)(const ls_step *, ls_mesh_part *),
                            int64_t elements, ls_step_list *out)
{
    out->n = list ? list(s, NULL) : 1;
    out->at = ls_mem_array((size_t)out->n, sizeof *out->at);
    if (!out->at)
        return LS_ENOMEM;
    (void)(list ? list(s, out->at) : ls_step_all(elements, out->at));
    return LS_OK;
}

ls_status ls_step_open_parts(ls_step *s)
{
    ls_step_own_parts *p = &s->parts;
    ls_status st;

    LS_TRY(st, list_parts(s, s->mode->parts, s->args.model->trained, &p->sums), out);
    LS_TRY(st, list_parts(s, s->mode->weights, s->args.model->flat, &p->weights), out);
    p->own = s->ep_group.parts.at ? s->ep_group.parts : p->sums;
    s->own = p->own.at[p->own.n - 1].packed + p->own.at[p->own.n - 1].count;
out:
    return st;
}

void ls_step_close_parts(ls_step *s)
{
    ls_mem_free(s->parts.sums.at);
    ls_mem_free(s->parts.weights.at);
}

bool ls_step_find(const ls_step_list *list, int64_t first, int64_t end, ls_optim_piece *piece_out)
{
    return ls_optim_find_piece(list->at, list->n, first, end, piece_out);
}

int64_t ls_step_packed(const ls_step *s, int64_t element)
{
    ls_optim_piece piece;

    return ls_step_find(&s->parts.sums, element, element + 1, &piece) ? piece.packed : 0;
}

const float *ls_step_own_gradient(const ls_step *s, ls_mesh_part own)
{
    return s->mode->gradient ? s->mode->gradient(s, own.first)
                             : (const float *)s->grads[0] + own.first;
}
