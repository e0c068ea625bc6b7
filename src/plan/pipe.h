/* pipe.h -- what a rank of a pipeline has (mesh.pp): layers, parameters, table, buffers.
 *
 * The stages are cut by cost (stages.h), and each is one run of the elements of the flat parameters
 * (model.h): the embedding and the first blocks, ..., the last blocks, the final norm and the head.
 * A rank keeps plain indices of the whole model, in arrays of which only its own pages are there
 * (base/window.h). A tied embedding belongs to the first post, and the last one has a copy of its
 * weights. With ZeRO 1 (mesh.zero) the lines divide what they update of each chunk; where
 * ranks that die are replaced, another line keeps a copy of that (train/trust.h).
 *
 * The table (parallel/pipeline.h) is that of the rank's line; from it follows how many
 * micro-batches each chunk holds activations of, and how many streams and gradients that came from
 * other posts lie here at a time. Pure. */
#pragma once
#include "parallel/pipeline.h"
#include "plan/memory.h"
#include "plan/stages.h"

LS_C_BEGIN

enum {
    LS_PIPE_CHUNKS = 16,    /* of a rank, at most */
    LS_PIPE_PIECE = 4 << 20 /* bytes of the state that pass through the host at a time */
};

/* Elements of weights, gradients and moments. */
typedef struct ls_pipe_range {
    int64_t first, count;
} ls_pipe_range;

typedef struct ls_pipe_chunk {
    int64_t unit, units; /* of the model: ls_param.unit */
    ls_pipe_range own;
    int slots; /* micro-batches that it keeps activations of at a time */
    int late;  /* of these, with gradients that wait for the second half of a backward (pass.h) */
} ls_pipe_chunk;

typedef struct ls_pipe {
    ls_pipeline table; /* owned: of a step of so many micro-batches */
    int post, posts, chunks;
    int line, lines;
    bool divides; /* lines divide what they update */
    int ward;     /* then: the line whose moments this rank keeps too, */
    int buddy;    /* and the one that keeps this rank's; -1: none */
    ls_pipe_chunk chunk[LS_PIPE_CHUNKS];
    ls_pipe_range tied;     /* the embedding, where the head reads it too; count 0: it does not */
    int streams, gradients; /* buffers for those from other posts; one more than must be, so that
                             * the next can come early */
    int64_t *borders;       /* owned: the first element of each stage, and the end */
} ls_pipe;

/* The table that a run asks for. */
ls_pipeline_kind ls_pipe_kind(const ls_run *run);

/* For the rank of the mesh, and steps of so many micro-batches (1 or more); varies: or fewer.
 * LS_EUSAGE: the model has fewer layers than stages, with what works. */
ls_status ls_pipe_init(ls_pipe *pipe, const ls_run *run, const ls_model *model, const ls_mesh *mesh,
                       int64_t micros, bool varies);
void ls_pipe_release(ls_pipe *pipe);

/* The table of a step of another number of micro-batches, at most as many as planned. */
ls_status ls_pipe_set(ls_pipe *pipe, int64_t micros);

static inline bool ls_pipe_is_first(const ls_pipe *pipe)
{
    return pipe->post == 0;
}
static inline bool ls_pipe_is_last(const ls_pipe *pipe)
{
    return pipe->post == pipe->posts - 1;
}

/* The elements of a chunk of any post. */
ls_pipe_range ls_pipe_of(const ls_pipe *pipe, int post, int chunk);

/* The weights that this rank keeps: its chunks, and on the last post a copy of a tied embedding,
 * which comes last. Returns how many. */
int ls_pipe_ranges(const ls_pipe *pipe, ls_pipe_range ranges_out[LS_PIPE_CHUNKS + 1]);

/* What a rank updates of a chunk, and has the moments of: all of it, or its line's part. */
ls_pipe_range ls_pipe_updated(const ls_pipe *pipe, int post, int line, int chunk);

/* Norm blocks (kernel.h) that have elements which several ranks of a line, or with ZeRO 1 of all
 * lines, update; ascending; blocks_out may be NULL. Returns how many. */
int ls_pipe_edges(const ls_pipe *pipe, int64_t *blocks_out);

/* Bytes that this rank sends along its line in a step: streams, gradients and, where the embedding
 * is tied, the head's part of its gradient from the last post to the first, and its weights back.
 * Sums of a few numbers (the norm, losses) come on top. */
int64_t ls_pipe_sent_bytes(const ls_pipe *pipe, const ls_model *model, const ls_calls *calls,
                           ls_dtype type);

/* --- memory: what is taken, and the ledger of it ---------------------------------------------- */

/* The pass of a chunk; stream and packs are left out. And its packed weights; false: none. */
ls_pass_args ls_pipe_pass(const ls_run *run, const ls_model *model, const ls_kernels *kernels,
                          const ls_calls *calls, const ls_pipe_chunk *chunk);
bool ls_pipe_packs(const ls_pass_args *pass, ls_packs_args *packs_out);

/* What lines sum of so many elements, as parts or as a whole; the communicator is left out. */
ls_dp_args ls_pipe_sum(const ls_run *run, const ls_mesh *mesh, int64_t count, bool divides);

/* Bytes of a stream of a micro-batch; and of all of them, their gradients and the edges. */
int64_t ls_pipe_stream_bytes(const ls_run *run, const ls_model *model, const ls_calls *calls);
int64_t ls_pipe_buffer_bytes(const ls_pipe *pipe, const ls_run *run, const ls_model *model,
                             const ls_calls *calls);

/* What a rank writes of a chunk to a checkpoint, and reads of it: of what all ranks of its post
 * have the part that ls_coll_range() gives it, and of moments that they divide its own. */
ls_pipe_range ls_pipe_saved(const ls_pipe *pipe, int post, int line, int chunk, bool moments);

/* The lines of the ledger that a pipeline changes. */
void ls_pipe_predict(const ls_memory_args *args, const ls_calls *calls, ls_ledger *ledger);

LS_C_END
