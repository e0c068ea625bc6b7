/* pipeline_memory.h -- the memory of a rank of a pipeline: its lines of the ledger, and the sizes that
 * the step takes.
 *
 * A rank takes only what its stages need (layout/stage_plan.h): pages of the arrays of the whole
 * model, activations of as many micro-batches as its schedule keeps, buffers for messages. Pure. */
#pragma once
#include "layout/stage_plan.h"
#include "plan/memory.h"

LS_C_BEGIN

/* The pass of a chunk; stream and packs are left out. And its packed weights; false: none. */
ls_pass_args ls_pipeline_memory_pass(const ls_run *run, const ls_model *model,
                                     const ls_kernels *kernels, const ls_calls *calls,
                                     const ls_stage_plan_chunk *chunk);
bool ls_pipeline_memory_packs(const ls_pass_args *pass, ls_packed_weights_args *packs_out);

/* Whether collectives of device memory, where they were chosen, carry the messages of this mesh: of
 * one pipeline. */
bool ls_pipeline_memory_by_device(const ls_mesh *mesh);

/* What pipelines sum of `count` elements, as parts or as a whole; the communicator is left out. */
ls_dp_args ls_pipeline_memory_sum(const ls_run *run, const ls_mesh *mesh, int64_t count,
                                  bool divides);

/* Bytes of a stream of a micro-batch; and of all of them, their gradients and the edges. */
int64_t ls_pipeline_memory_stream_bytes(const ls_run *run, const ls_model *model,
                                        const ls_calls *calls);
int64_t ls_pipeline_memory_buffer_bytes(const ls_stage_plan *pipe, const ls_run *run,
                                        const ls_model *model, const ls_calls *calls);

/* With ZeRO 2 and 3: the most bytes of gradients of micro-batches that are there at a time, with
 * those of a tied head. */
int64_t ls_pipeline_memory_flow_bytes(const ls_stage_plan *pipe, const ls_model *model);

/* The lines of the ledger that a pipeline changes. */
void ls_pipeline_memory_predict(const ls_memory_args *args, const ls_calls *calls,
                                ls_ledger *ledger);

LS_C_END
