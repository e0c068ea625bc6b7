/* pipeline_impl.h -- what the files of a pipeline share: pipeline.c (the operations of a step),
 * pipeline_open.c (what a rank has), pipeline_state.c (weights and moments as a whole),
 * pipeline_sum.c (sums of gradients, the norm), pipeline_tied.c (a tied embedding), pipeline_zero.c
 * (ZeRO 2 and 3), pipeline_host_stage.c (a device with a memory of its own) and pipeline_device.c
 * (messages between such devices). */
#pragma once
#include "comm/device/device_comm.h"
#include "comm/ordered_feed.h"
#include "parallel/staging.h"
#include "train/step/pipeline.h"

LS_C_BEGIN

enum {
    LS_PIPELINE_WAIT_S = 600,
    LS_PIPELINE_SENDS = 32,  /* on their way at a time */
    LS_PIPELINE_EARLY = 8,   /* receives that are begun: more are not begun early, */
    LS_PIPELINE_POSTED = 64, /* and more than this only when they are needed */
};

/* A micro-batch in a chunk. */
typedef struct ls_pipeline_item {
    int slot, stream, gradient; /* what it holds */
    int late;                   /* between the halves of its backward */
    ls_comm_request in[2];      /* receives: of the stream, of the gradient */
    uint64_t sent;              /* the send of its stream; 0: none */
} ls_pipeline_item;

/* A buffer for a gradient. */
typedef struct ls_pipeline_buffer {
    bool used;
    uint64_t sent; /* the send that it waits for; 0: none */
} ls_pipeline_buffer;

/* A bucket of gradients on its way to its owners. */
typedef struct ls_pipeline_flight {
    int bucket;
    ls_comm_request request; /* fast mode */
} ls_pipeline_flight;

struct ls_pipeline {
    ls_stage_plan plan;
    ls_mesh mesh;
    ls_comm *pipeline_comm; /* owned, as all that follows: the ranks of this pipeline, by stage */
    ls_comm *stage_comm;    /* those of this stage, by pipeline; NULL: there is one pipeline */
    ls_pass *passes[LS_STAGE_PLAN_CHUNKS];
    ls_packed_weights *packs[LS_STAGE_PLAN_CHUNKS]; /* NULL: none */
    ls_dp *sums[LS_STAGE_PLAN_CHUNKS + 1]; /* over pipelines: one a chunk, then that of the head's
                                            * gradient of a tied embedding; NULL: not needed */
    ls_window state[3], copy;              /* weights and moments; the weights in 16 bits */
    ls_window grads[LS_STAGE_PLAN_CHUNKS][LS_ORDERED_ROOTS];
    ls_window head[LS_ORDERED_ROOTS]; /* the head's gradient of a tied embedding */
    void *memory;                     /* the next three: */
    char *streams, *gradients;
    float *edges; /* norm blocks that several ranks update elements of */
    int64_t stream_bytes, gradient_bytes, edge_count;
    int64_t *edge_blocks;
    /* the step at hand */
    int64_t most;            /* micro-batches of a step */
    ls_step_leaves *parts;   /* its calls, which are the micro-batches */
    ls_pipeline_item *items; /* [chunks][most] */
    bool *slots;             /* used ones: [chunks][most] */
    bool *late;              /* likewise, of places for late gradients */
    bool *stream_used;
    ls_pipeline_buffer *gradient;
    struct {
        uint64_t number; /* 0: none */
        ls_comm_request request;
    } sends[LS_PIPELINE_SENDS];
    uint64_t sends_begun;
    int next_recv; /* operations before this one have no receive that is not begun */
    int posted;    /* receives that were begun and not waited for */
    int top[LS_STAGE_PLAN_CHUNKS]; /* of each stack of gradients: all, or those of a first half */
    int late_top[LS_STAGE_PLAN_CHUNKS]; /* those of a second half (pipeline_sum.c) */
    int left[LS_STAGE_PLAN_CHUNKS];     /* micro-batches whose backward is still to come */
    int next_sum;       /* the chunk whose sum over pipelines begins next; -1: all have begun */
    int64_t sent_bytes; /* along the pipeline, for tests (tests/layout/pipeline_bytes.h) */
    bool copied;        /* the last stage has the weights of a tied embedding */
    struct {
        ls_ordered_feed *feeds[LS_STAGE_PLAN_CHUNKS + 1]; /* owned, ordered mode: as sums */
        ls_window *windows; /* owned: gradients of a micro-batch, by the indices of the model */
        int n;              /* of them: as many micro-batches are between halves of a backward */
        ls_window head;     /* the same of the head's gradient */
        ls_pipeline_flight up[LS_STAGE_PLAN_AHEAD];
        int64_t started, ended;  /* of those */
        int chunk, round, place; /* the backward at hand: a micro-batch, and its window */
        int next;                /* the bucket that is summed next; -1: all are */
        bool half, tied, empty;  /* a first half; the head's gradient comes first; no sequences */
        int64_t sent_bytes;      /* likewise, to other pipelines */
        int64_t most;            /* for tests: held at most */
    } flow;                      /* ZeRO 2 and 3: gradients that leave (pipeline_zero.c) */
    struct {
        int chunk; /* that is read */
        bool back; /* from its end */
        ls_comm_request requests[LS_ZERO_UNITS_SET];
        int64_t most; /* for tests: held at most */
    } fetch;          /* ZeRO 3: weights that come (pipeline_zero.c) */
    struct {
        ls_device_comm *comm; /* owned; NULL: messages pass through the host */
        ls_event **arrived;   /* owned: [places], of each stream and each gradient */
        ls_event *sent[LS_PIPELINE_SENDS];
        ls_event *complete, *done; /* the stream has come here; a call of all is done */
        int places;
    } device; /* pipeline_device.c */
    struct {
        ls_staging *messages; /* a place for each stream, each gradient, each slot of each chunk;
                               * NULL: other ranks reach the memory itself, or their devices do */
        ls_staging *pieces;   /* of collectives of any size; NULL: they reach the memory */
        int first_slot[LS_STAGE_PLAN_CHUNKS]; /* the first place of its slots */
        struct {
            ls_coll coll;
            int place, send;          /* which of `sends` */
        } waiting[LS_PIPELINE_SENDS]; /* sends whose copy to the host is queued */
        int n_waiting;
        /* host, as sums: buffer by buffer */
        float *sums[LS_STAGE_PLAN_CHUNKS + 1][LS_ORDERED_ROOTS];
        ls_staging_memory memory[LS_STAGE_PLAN_CHUNKS + 1][LS_ORDERED_ROOTS]; /* owned: theirs */
    } host_stage; /* where the device has a memory of its own (pipeline_host_stage.c) */
};

/* The window of an array of the state that begins there. */
static inline ls_window ls_pipeline_window(const ls_model *model, void *base)
{
    return (ls_window){.base = (char *)base,
                       .bytes = ls_round_up(model->flat * (int64_t)sizeof(float), LS_WINDOW_PAGE)};
}

static inline int64_t ls_pipeline_deadline(void)
{
    return ls_time_now_ns() + LS_PIPELINE_WAIT_S * LS_NS_PER_S;
}

static inline bool ls_pipeline_is_last_stage(const ls_pipeline *x, int chunk)
{
    return chunk * x->plan.pp_ranks + x->plan.pp_rank == x->plan.pp_ranks * x->plan.chunks - 1;
}

static inline bool ls_pipeline_is_tied(const ls_pipeline *x)
{
    return x->plan.tied.count > 0 &&
           (ls_stage_plan_is_first(&x->plan) || ls_stage_plan_is_last(&x->plan));
}

/* Pipelines divide gradients, bucket by bucket (ZeRO 2), and weights (3). */
static inline bool ls_pipeline_is_parted(const ls_pipeline *x)
{
    return x->plan.zero >= 2;
}

/* Micro-batches of a step. The last ones may be empty: where pipelines divide gradients they meet
 * in every one, and where ranks divide experts this rank's experts serve the other pipelines. */
static inline int64_t ls_pipeline_micros(const ls_step *s)
{
    return ls_pipeline_is_parted(s->pipeline) ? s->pipeline->most
           : ls_step_is_ep(s)                 ? s->ep_group.rounds
                                              : s->now.calls;
}

/* Zero 3: the second half of a backward reads weights too, to compute again what was not kept. */
static inline bool ls_pipeline_reads_late(const ls_step *s)
{
    return s->pipeline->plan.zero == 3 && s->args.run->train.recompute != LS_RECOMPUTE_NONE;
}

/* The gradients of a chunk, by the indices of the whole model; the head's of a tied embedding. */
static inline float *ls_pipeline_grad(const ls_pipeline *x, int chunk, int buffer)
{
    return (float *)(void *)x->grads[chunk][buffer].base;
}
static inline float *ls_pipeline_head(const ls_pipeline *x, int buffer)
{
    return (float *)(void *)x->head[buffer].base;
}

/* --- pipeline_open.c -------------------------------------------------------------------------- */

/* Functions of the row (step_mode.h). */
ls_status ls_pipeline_plan_step(ls_step *step);
ls_status ls_pipeline_memory(ls_step *step);
ls_status ls_pipeline_split(ls_step *step, const ls_ordered_run *runs);
ls_status ls_pipeline_keep(ls_step *step, void *kept_out[3]);
void ls_pipeline_close(ls_step *step);

/* --- pipeline_state.c ------------------------------------------------------------------------- */

/* Functions of the row. */
int ls_pipeline_parts(const ls_step *step, ls_mesh_part *parts_out);
float *ls_pipeline_gradient(const ls_step *step, int64_t element);
int ls_pipeline_weights(const ls_step *step, ls_mesh_part *parts_out);
void ls_pipeline_weights_changed(ls_step *step);
ls_status ls_pipeline_spread_weights(ls_step *step);
ls_status ls_pipeline_scatter(ls_step *step, const float *whole, float *array);

/* One range from a rank to another; other ranks do nothing. host: which end is the host's memory,
 * on a device with a memory of its own. */
typedef enum ls_host_side { LS_HOST_NEITHER, LS_HOST_SOURCE, LS_HOST_TARGET } ls_host_side;
ls_status ls_pipeline_carry(const ls_step *step, int from, int to, const float *source,
                            float *target, int64_t count, ls_host_side host);

/* --- pipeline_sum.c --------------------------------------------------------------------------- */

/* Sums of a chunk's stack, after an operation has put the gradients of a micro-batch on it. */
void ls_pipeline_merge(ls_step *step, const ls_pp_schedule_op *op);

/* Sums over pipelines of the chunks that are done, in the order in which all ranks of a stage begin
 * them; and their end: all sums are in the first buffers, those of a tied embedding added. */
ls_status ls_pipeline_start_sums(ls_step *step);
ls_status ls_pipeline_end_sums(ls_step *step);

ls_status ls_pipeline_norm(ls_step *step, const ls_norm2 *whole);

/* --- pipeline_tied.c -------------------------------------------------------------------------- */

/* The head's gradient to the first stage, and added to the embedding's as far as this rank updates
 * it; and the new weights from the first stage to the copy in the last. The bytes that this rank
 * sends are added to *sent. */
ls_status ls_pipeline_tie(ls_step *step);
ls_status ls_pipeline_copy_tied(const ls_step *step, int64_t *sent);

/* --- pipeline_host_stage.c: a device with a memory of its own --------------------------------- */

/* Windows of the state: in host memory, or on the device; there the part that is to be used must be
 * backed. */
ls_status ls_pipeline_open_window(const ls_step *step, ls_window *window, int64_t bytes,
                                  const char *what);
ls_status ls_pipeline_back_window(const ls_step *step, const ls_window *window, ls_range range,
                                  int64_t size, const char *what);
void ls_pipeline_close_window(const ls_step *step, ls_window *window);

/* What messages, collectives and sums pass through; nothing where ranks reach the memory. */
ls_status ls_pipeline_open_host_stage(ls_step *step);
void ls_pipeline_close_host_stage(ls_step *step);

/* A collective of memory in which rows work: a sum, a broadcast, a message. */
ls_status ls_pipeline_run(const ls_step *step, ls_comm *comm, const ls_coll *coll);

/* The place of a gradient, or of what a slot sends; a stream has its own number. */
static inline int ls_pipeline_gradient_place(const ls_pipeline *x, int gradient)
{
    return x->plan.streams + gradient;
}
static inline int ls_pipeline_slot_place(const ls_pipeline *x, int chunk, int slot)
{
    return x->host_stage.first_slot[chunk] + slot;
}

/* Where a message is received: a place that nothing reads any more. Then from there to the
 * device. */
ls_status ls_pipeline_room(ls_pipeline *pipeline, int place, void **memory_out);
void ls_pipeline_arrived(ls_pipeline *pipeline, int place, void *to, int64_t bytes);

/* Queue a send of memory of the device behind the others; and begin all of them, when their copies
 * are in host memory. */
void ls_pipeline_send_later(ls_pipeline *pipeline, const ls_coll *coll, int place, int send);
ls_status ls_pipeline_begin_sends(ls_pipeline *pipeline);

/* Sum i over pipelines: its gradients on their way to the host; and back. */
void ls_pipeline_take_sum(ls_step *step, int i);
ls_status ls_pipeline_bring_sum(ls_step *step, int i);

/* --- pipeline_device.c: messages from device to device ---------------------------------------- */

ls_status ls_pipeline_open_device(ls_step *step);
void ls_pipeline_close_device(ls_pipeline *pipeline);

/* Queue a message at its place in the table; and let the stream wait for it. */
ls_status ls_pipeline_device_send(const ls_step *step, const ls_coll *coll, int send);
ls_status ls_pipeline_device_receive(const ls_step *step, const ls_coll *coll, int place);
void ls_pipeline_device_sent(const ls_step *step, int send);
void ls_pipeline_device_arrived(const ls_step *step, int place);

/* A collective of the pipeline, queued, with what the stream does next behind it. */
ls_status ls_pipeline_device_run(const ls_step *step, const ls_coll *coll);

/* --- pipeline_zero.c: ZeRO 2 and 3; otherwise nothing is done --------------------------------- */

ls_status ls_pipeline_open_parts(ls_step *step);
void ls_pipeline_close_parts(ls_step *step);

/* Gradients. give_begin: before a backward, or a half of one, whose gradients go to this window:
 * the buckets of the one before have been summed; ready: the row's function; give_end: after the
 * last one: all sums are in the first buffers. */
ls_status ls_pipeline_give_begin(ls_step *step, const ls_pp_schedule_op *op, int place);
void ls_pipeline_ready(ls_step *step, int64_t from);
ls_status ls_pipeline_give_end(ls_step *step);

/* Weights. Before an operation with a chunk; during it (ls_pass_call.need); after it, with the
 * error of an exchange inside of it. */
void ls_pipeline_fetch_begin(ls_step *step, int chunk, ls_pp_schedule_what what);
void ls_pipeline_need(void *context, int64_t unit);
ls_status ls_pipeline_fetch_end(ls_step *step);

/* The exchanges of an operation, for a micro-batch that is empty here. */
void ls_pipeline_walk(ls_step *step, int chunk, ls_pp_schedule_what what);

LS_C_END
