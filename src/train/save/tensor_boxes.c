/* tensor_boxes.c -- from runs of elements to boxes of whole tensors.
 *
 * A run of elements of a tensor that this rank has is cut at rows (ls_ckpt_cut), and each piece is
 * put into its place in the whole tensor. Where a dimension has several stretches, each divided by
 * itself (GPT-2 has q, k and v in the columns of one weight), that is a box in each of them, whose
 * rows do not lie side by side in memory:
 *
 *     rank 1 of 2 has   q1 k1 v1      of   q0 q1 k0 k1 v0 v1      boxes at columns 1, 3 and 5,
 *                       q1 k1 v1           q0 q1 k0 k1 v0 v1      2 x 1 elements, with a pitch of 3
 */
#include "train/save/tensor_boxes.h"

#include "base/mem.h"
#include "layout/ckpt_ranges.h"
#include "train/step/pipeline.h"
#include "train/save/save_impl.h"
#include "train/session/model_groups.h"

enum { KINDS = LS_CKPT_RANGES_KINDS };

/* A part of what this rank has of a parameter becomes boxes of the whole tensor; without `out` they
 * are counted. */
static int place_part(const ls_param *p, const ls_ckpt_tensor *whole, const ls_ckpt_part *own,
                      ls_ckpt_part *out)
{
    const ls_param_box *box = &p->box;
    int d = box->dim < 0 ? 0 : box->dim, n = 0;
    int64_t piece = p->shape[d] / box->parts, stretch = box->shape[d] / box->parts;
    int64_t from = box->dim < 0 ? 0 : box->from, end = own->offset[d] + own->shape[d];
    int64_t row = p->ndim > 1 ? own->shape[1] : 1;

    for (int64_t at = own->offset[d], next; at < end; at = next, n++) {
        next = ls_min_i64(end, (at / piece + 1) * piece);
        if (!out)
            continue;
        out[n] = *own;
        memcpy(out[n].of.shape, whole->shape, sizeof whole->shape);
        out[n].offset[d] = at / piece * stretch + from + at % piece;
        out[n].shape[d] = next - at;
        out[n].of.bytes = (float *)own->of.bytes + (at - own->offset[d]) * (d == 0 ? row : 1);
        if (d == 1 && own->shape[0] > 1 && out[n].shape[1] < row)
            out[n].pitch = row;
    }
    return n;
}

static int place_piece(const ls_session *s, int kind, const ls_ckpt_ranges_piece *piece,
                       float *array, ls_ckpt_part *out)
{
    const ls_param *p = &s->model.params[piece->param];
    ls_ckpt_tensor whole = ls_save_tensor(s, kind, p);
    ls_ckpt_part cut[LS_CKPT_PARTS];
    int n = 0;

    if (ls_ckpt_ranges_shared(&s->model,
                              piece->param)) /* so that no rank reads the rest of an object */
        whole.group = "alike";
    ls_ckpt_tensor own = whole;
    for (int d = 0; d < p->ndim; d++)
        own.shape[d] = p->shape[d];
    own.bytes = array + piece->place;
    int cuts = ls_ckpt_cut(&own, piece->first, piece->count, cut);
    for (int i = 0; i < cuts; i++)
        n += place_part(p, &whole, &cut[i], out ? out + n : NULL);
    return n;
}

/* All boxes of a kind; without `out` they are counted. */
static ls_status list_kind(const ls_session *s, const ls_ckpt_ranges *ranges, int kind, int rank,
                           ls_ckpt_part *out, int *n)
{
    int count = ls_ckpt_ranges_pieces(ranges, kind, rank, NULL);
    ls_ckpt_ranges_piece *pieces = ls_mem_array((size_t)count, sizeof *pieces);
    void *arrays[KINDS];

    if (!pieces)
        return LS_ENOMEM;
    ls_save_live(s, arrays);
    (void)ls_ckpt_ranges_pieces(ranges, kind, rank, pieces);
    for (int i = 0; i < count; i++)
        *n += place_piece(s, kind, &pieces[i], arrays[kind], out ? out + *n : NULL);
    ls_mem_free(pieces);
    return LS_OK;
}

/* What is listed. */
typedef struct ask {
    int rank;    /* of the mesh slice (model_groups.h) */
    bool common; /* of it only what ranks with the same layers have all of */
    int more;    /* room for others behind them */
} ask;

static ls_ckpt_ranges ranges_of(const ls_session *s, bool saves)
{
    return (ls_ckpt_ranges){.run = s->run,
                            .model = &s->model,
                            .mesh_slice = ls_model_groups_replicas(s),
                            .plan = ls_pipeline_plan(s->step),
                            .saves = saves};
}

static ls_status list_all(const ls_session *s, const ls_ckpt_ranges *ranges, const ask *a,
                          ls_ckpt_part **parts_out, int *n_out)
{
    ls_ckpt_part *parts = NULL;
    int n = 0;
    ls_status st = LS_OK;

    for (int fill = 0; fill < 2; fill++) {
        if (fill)
            parts = ls_mem_array((size_t)(n + a->more), sizeof *parts);
        LS_TRY(st, !fill || parts ? LS_OK : LS_ENOMEM, out);
        n = 0;
        for (int k = 0; k < ls_optim_kinds(s->run); k++)
            if (!a->common || ls_ckpt_ranges_common(ranges, k))
                LS_TRY(st, list_kind(s, ranges, k, a->rank, parts, &n), out);
    }
    *parts_out = parts;
    *n_out = n;
out:
    if (st != LS_OK)
        ls_mem_free(parts);
    return st;
}

ls_status ls_tensor_boxes_read(const ls_session *session, ls_ckpt_part **parts_out, int *n_out)
{
    const ls_ckpt_ranges ranges = ranges_of(session, false);

    return list_all(session, &ranges, &(ask){.rank = ranges.mesh_slice->rank}, parts_out, n_out);
}

ls_status ls_tensor_boxes_written(const ls_session *session, int more, ls_ckpt_part **parts_out,
                                  int *n_out)
{
    const ls_ckpt_ranges ranges = ranges_of(session, true);

    return list_all(session, &ranges, &(ask){.rank = ranges.mesh_slice->rank, .more = more},
                    parts_out, n_out);
}

ls_status ls_tensor_boxes_replicas(const ls_session *session, int64_t turn,
                                   ls_ckpt_part **parts_out, int *n_out)
{
    const ls_ckpt_ranges ranges = ranges_of(session, true);
    int other = ls_ckpt_ranges_replica(&ranges, turn);

    *parts_out = NULL;
    *n_out = 0;
    if (other < 0)
        return LS_OK;
    return list_all(session, &ranges, &(ask){.rank = other, .common = true}, parts_out, n_out);
}

static int64_t elements_of(const ls_ckpt_part *part)
{
    int64_t n = 1;

    for (int d = 0; d < part->of.ndim; d++)
        n *= part->shape[d];
    return n;
}

void ls_tensor_boxes_pack(const ls_ckpt_part *parts, int n, void *memory, ls_ckpt_part *packed_out)
{
    float *at = memory;

    for (int i = 0; i < n; i++) {
        packed_out[i] = parts[i];
        packed_out[i].pitch = 0;
        packed_out[i].of.bytes = at;
        at += elements_of(&parts[i]);
    }
}

void ls_tensor_boxes_copy(const ls_ckpt_part *from, const ls_ckpt_part *to, int n)
{
    for (int i = 0; i < n; i++) {
        int64_t rows = from[i].pitch ? from[i].shape[0] : 1, row = elements_of(&from[i]) / rows;
        for (int64_t r = 0; r < rows; r++)
            memcpy((float *)to[i].of.bytes + r * row,
                   (const float *)from[i].of.bytes + r * from[i].pitch,
                   (size_t)row * sizeof(float));
    }
}
