/* ckpt_ranges.h -- which elements of a run's state each rank writes to a checkpoint, and reads of it.
 *
 * Every byte is written once, and ranks write about equally much. A rank's arrays are those of its
 * part of the model: all of it, or with mesh.tp and mesh.ep its slice of the tensors. The ranks of a
 * mesh slice have the same part (layout/mesh.h) and divide it: into equal ranges where each has the
 * whole, into the owners' pieces where ZeRO or a pipeline divides. What several ranks of a tp or ep
 * group have (norms; with mesh.ep all but the experts) they share as well, unless ZeRO divides it
 * among them anyway (expert_zero.h).
 *
 *     2 tp groups of 2             a matrix, by columns       a norm, which both ranks have
 *                                       0 0 1 1
 *                                       0 0 1 1                0 0 0 0  1 1 1 1     large: halves
 *                                       2 2 3 3                0 0 0 0  0 0 0 0     small: one of
 *                                       2 2 3 3                                     them, in turn
 *
 * To resume, a rank reads what it needs: its range of the slice's part, where elements that a group
 * shares are read by each; the slice then completes what all of its ranks have. */
#pragma once
#include "layout/stage_plan.h"

LS_C_BEGIN

enum { LS_CKPT_RANGES_KINDS = 3 }; /* weights, first moments, second moments */

typedef struct ls_ckpt_ranges {
    const ls_run *run;
    const ls_model *model;     /* of this rank: its part */
    const ls_mesh *mesh_slice; /* of the ranks that have the same part; NULL: only this one */
    const ls_stage_plan *plan; /* where the slice is made of pipelines; else NULL */
    bool saves;                /* what is written; else what is read */
} ls_ckpt_ranges;

/* Elements of one parameter, and where they lie in this rank's array of a kind. */
typedef struct ls_ckpt_ranges_piece {
    int param;
    int64_t first, count; /* of the parameter as this rank has it */
    int64_t place;
} ls_ckpt_ranges_piece;

/* Whether the ranks of a slice divide this kind of state; else each has all of it. */
bool ls_ckpt_ranges_divided(const ls_mesh *mesh_slice, int kind);

/* Elements of a kind of state of a model, and where parameter i lies in it; -1: it has none. Where
 * ranks divide it: as if one rank had all. */
int64_t ls_ckpt_ranges_array(const ls_run *run, const ls_model *model, const ls_mesh *mesh_slice,
                             int kind);
int64_t ls_ckpt_ranges_place(const ls_run *run, const ls_model *model, const ls_mesh *mesh_slice,
                             int kind, int i);

/* The pieces of a rank of the slice, in the order of its array; without pieces_out they are
 * counted. Returns how many there are. */
int ls_ckpt_ranges_pieces(const ls_ckpt_ranges *ranges, int kind, int rank,
                          ls_ckpt_ranges_piece *pieces_out);

/* Whether other ranks of the group have the same of a parameter: then each of them reads it. */
bool ls_ckpt_ranges_shared(const ls_model *model, int i);

/* A rank of the slice that has the same layers as this one, another one for each value of turn; -1: there is
 * none. And whether such ranks each have all of a kind of state: then one can compare what the other
 * writes. */
int ls_ckpt_ranges_replica(const ls_ckpt_ranges *ranges, int64_t turn);
bool ls_ckpt_ranges_common(const ls_ckpt_ranges *ranges, int kind);

/* Elements of all kinds that the rank of the slice writes. */
int64_t ls_ckpt_ranges_elements(const ls_run *run, const ls_model *model,
                                const ls_mesh *mesh_slice);

/* Bytes of these that lie in buffers on their way to the disk, at most: those of large objects do,
 * of which there is one for each kind and unit of the model. As checkpoint/ckpt.h has it. */
enum {
    LS_CKPT_RANGES_LARGE = 1 << 20,
    LS_CKPT_RANGES_BUFFERS = 8 << 20,
    LS_CKPT_RANGES_READ_BACK = 4 << 20
};
int64_t ls_ckpt_ranges_flow(const ls_run *run, const ls_model *model, const ls_mesh *mesh_slice);

LS_C_END
