/* stage_plan.h -- what a rank of a pipeline has (mesh.pp): layers, parameters, table, buffers.
 *
 * The stages are cut by cost (stage_split.h). Each is one run of the elements of the flat parameters
 * (model.h), and one run of what is trained of them, where that is less: the embedding and the first
 * blocks, ..., the last blocks, the final norm and the head. A rank keeps plain indices of the
 * whole model, in arrays of which only its own pages are there (base/window.h). A tied embedding
 * belongs to the first stage, and the last one has a copy of its weights. With ZeRO 1 (mesh.zero) the
 * pipelines divide what they update of each chunk; where ranks that die are replaced, another
 * pipeline keeps a copy of that (train/replica/replica_send.h), with any ZeRO stage.
 *
 * With ZeRO 2 and 3 a chunk is cut into buckets, each a unit of the model (ls_param.unit) or some of
 * them, and the pipelines divide every bucket: gradients leave, and weights come, bucket by bucket
 * (train/step/pipeline_zero.c). All pipelines then go through equally many micro-batches, of which
 * some may be empty, so that the ranks of a stage have the same schedule and meet at the same places
 * of it. Where experts are divided (mesh.ep) these are the pipelines of replicas (layout/mesh.h), and
 * all ranks that share the batch have the same schedule.
 *
 *     stage 0, 2 pipelines      embedding | block 0 | block 1
 *     pipeline 0 updates        ====      | ===     | ===        and, with ZeRO 3, has the weights of
 *     pipeline 1                     ==== |    ===  |    ===
 *
 * The schedule (layout/pp_schedule.h) is that of the rank's pipeline. From it follows how many
 * micro-batches each chunk holds activations of, and how many streams and gradients from other
 * stages lie here at a time. */
#pragma once
#include "layout/calls.h"
#include "layout/pp_schedule.h"
#include "layout/range.h"
#include "layout/stage_split.h"

LS_C_BEGIN

enum {
    LS_STAGE_PLAN_CHUNKS = 16,     /* of a rank, at most */
    LS_STAGE_PLAN_BUCKETS = 60,    /* likewise, of all its chunks */
    LS_STAGE_PLAN_AHEAD = 2,       /* buckets of gradients on their way at a time */
    LS_STAGE_PLAN_PIECE = 4 << 20, /* bytes of the state that pass through the host at a time */
};

typedef struct ls_stage_plan_chunk {
    int64_t unit, units; /* of the model: ls_param.unit */
    ls_range own;        /* of gradients and moments; it may have none */
    ls_range weights;    /* the same where all are trained */
    int slots;           /* micro-batches that it keeps activations of at a time */
    int late; /* of these, with gradients that wait for the second half of a backward (pass.h) */
} ls_stage_plan_chunk;

typedef struct ls_stage_plan {
    ls_pp_schedule table; /* owned: of a step of table.micros micro-batches */
    int pp_rank, pp_ranks, chunks;
    int pipeline, pipelines;
    int zero;        /* what pipelines divide, as mesh.zero; 0 where there is one pipeline */
    bool divides;    /* pipelines divide what they update */
    int copy_owner;  /* the pipeline whose moments this rank holds a copy of, */
    int copy_holder; /* and the one that holds a copy of this rank's; -1: none */
    ls_stage_plan_chunk chunk[LS_STAGE_PLAN_CHUNKS];
    ls_range tied;          /* the embedding, where the head reads it too and it is trained; count
                             * 0: it does not. It is the first of weights and of gradients */
    ls_range copied;        /* its weights, trained or not */
    int streams, gradients; /* buffers for those from other stages; one more than needed, so that
                             * the next can come early */
    int64_t per;            /* units of a bucket */
    int *first_bucket; /* owned: of each stage, and their number: one each but with ZeRO 2, 3 */
    int64_t *cuts;     /* owned: the first element of each bucket, and the end: of gradients, */
    int64_t *weights;  /* owned: and of weights */
} ls_stage_plan;

/* The schedule that a run asks for. */
ls_pp_schedule_kind ls_stage_plan_kind(const ls_run *run);

/* For the rank of the mesh, and steps of `micros` micro-batches (1 or more); varies: or fewer.
 * LS_EUSAGE: the model has fewer layers than stages, with what works. */
ls_status ls_stage_plan_init(ls_stage_plan *pipe, const ls_run *run, const ls_model *model,
                             const ls_mesh *mesh, int64_t micros, bool varies);
void ls_stage_plan_release(ls_stage_plan *pipe);

/* Micro-batches of the steps that a pipeline makes: its calls, or those of the pipeline with most. */
int64_t ls_stage_plan_micros(const ls_run *run, const ls_mesh *mesh, const ls_calls *calls);

/* The schedule of a step of another number of micro-batches, at most as many as planned. */
ls_status ls_stage_plan_set(ls_stage_plan *pipe, int64_t micros);

static inline bool ls_stage_plan_is_first(const ls_stage_plan *pipe)
{
    return pipe->pp_rank == 0;
}
static inline bool ls_stage_plan_is_last(const ls_stage_plan *pipe)
{
    return pipe->pp_rank == pipe->pp_ranks - 1;
}

/* The buckets of a chunk of any stage: how many, and their elements, of gradients and moments, or of
 * weights; without ZeRO 2 and 3 one, which is all of
 * it. With them all weights are trained, and both are the same. */
int ls_stage_plan_buckets(const ls_stage_plan *pipe, int pp_rank, int chunk);
ls_range ls_stage_plan_bucket(const ls_stage_plan *pipe, int pp_rank, int chunk, int bucket);
ls_range ls_stage_plan_weights_bucket(const ls_stage_plan *pipe, int pp_rank, int chunk,
                                      int bucket);

/* The weights that this rank keeps: its chunks, or with ZeRO 3 its parts of them; and on the last
 * stage a copy of a tied embedding, or its part of that, which comes last. Returns how many. */
int ls_stage_plan_ranges(const ls_stage_plan *pipe, ls_range ranges_out[LS_STAGE_PLAN_BUCKETS + 1]);

/* What a rank updates of a bucket, and has the moments of: all of it, or its pipeline's part. */
ls_range ls_stage_plan_updated(const ls_stage_plan *pipe, int pp_rank, int pipeline, int chunk,
                               int bucket);

/* What the last rank of a pipeline has of the head's part of a tied gradient, when it is summed, and
 * with ZeRO 3 of the copy of the embedding: all of it, or its part of that. */
ls_range ls_stage_plan_tied_part(const ls_stage_plan *pipe, int pipeline);

/* Norm blocks (kernel.h) with elements that several ranks of a pipeline, or with ZeRO of all
 * pipelines, update; ascending; blocks_out may be NULL. Returns how many. */
int ls_stage_plan_edges(const ls_stage_plan *pipe, int64_t *blocks_out);

/* What a rank writes of a bucket to a checkpoint, and reads of it: where all ranks of its stage have
 * the same, the part that ls_coll_range() gives it; where they divide it, its own. */
ls_range ls_stage_plan_saved(const ls_stage_plan *pipe, int pp_rank, int pipeline, int chunk,
                             int bucket, bool moments);

/* With ZeRO 2 and 3: windows for gradients of a micro-batch that are open at a time. */
int ls_stage_plan_flows(const ls_stage_plan *pipe);

LS_C_END
