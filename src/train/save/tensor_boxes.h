/* tensor_boxes.h -- what a rank has of the state, as parts of the tensors of a checkpoint.
 *
 * layout/ckpt_ranges.h says which elements of its arrays a rank writes and reads; here they become boxes
 * of whole tensors, with names and places that do not depend on the mesh. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* What this rank reads, or writes, in its live state; with room for `more` parts behind it.
 * *parts_out is owned by the caller (ls_mem_free). */
ls_status ls_tensor_boxes_read(const ls_session *session, ls_ckpt_part **parts_out, int *n_out);
ls_status ls_tensor_boxes_written(const ls_session *session, int more, ls_ckpt_part **parts_out,
                                  int *n_out);

/* What another rank writes and this one has too, in the live state of this one: those of another rank
 * in each turn; none where no rank has the same. */
ls_status ls_tensor_boxes_replicas(const ls_session *session, int64_t turn,
                                   ls_ckpt_part **parts_out, int *n_out);

/* The same boxes side by side in memory, without any gap. And their content from one to the other.
 */
void ls_tensor_boxes_pack(const ls_ckpt_part *parts, int n, void *memory, ls_ckpt_part *packed_out);
void ls_tensor_boxes_copy(const ls_ckpt_part *from, const ls_ckpt_part *to, int n);

LS_C_END
