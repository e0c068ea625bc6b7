/* line_impl.h -- what line.c (a step) and line_state.c (what a rank has) share. */
#pragma once
#include "parallel/staging.h"
#include "train/line.h"

LS_C_BEGIN

enum {
    LS_LINE_WAIT_S = 600,
    LS_LINE_SENDS = 32,  /* on their way at a time */
    LS_LINE_EARLY = 8,   /* receives that wait for their content: more are not begun early, */
    LS_LINE_POSTED = 64, /* and more than this only when they are needed */
};

/* A micro-batch in a chunk. */
typedef struct ls_line_item {
    int slot, stream, gradient; /* what it holds */
    int late;                   /* between the halves of its backward */
    ls_comm_request in[2];      /* receives: of the stream, of the gradient */
    uint64_t sent;              /* the send of its stream; 0: none */
} ls_line_item;

/* A buffer for a gradient. */
typedef struct ls_line_buffer {
    bool used;
    uint64_t sent; /* the send that it waits for; 0: none */
} ls_line_buffer;

struct ls_line {
    ls_pipe plan;
    ls_mesh mesh;
    ls_comm *along;  /* owned, as all that follows: the ranks of the line, by posts */
    ls_comm *across; /* those of the post, by lines; NULL: there is one line */
    ls_pass *passes[LS_PIPE_CHUNKS];
    ls_packs *packs[LS_PIPE_CHUNKS]; /* NULL: none */
    ls_dp *sums[LS_PIPE_CHUNKS + 1]; /* across: of each chunk; of the head's part of a tied
                                      * gradient; NULL: there is one line, or no such part */
    ls_window state[3], copy;        /* weights and moments; the weights in 16 bits */
    ls_window grads[LS_PIPE_CHUNKS][LS_ORDERED_ROOTS];
    ls_window head[LS_ORDERED_ROOTS]; /* the head's part of a tied gradient */
    void *memory;                     /* the next three: */
    char *streams, *gradients;
    float *edges; /* norm blocks that several ranks update elements of */
    int64_t stream_bytes, gradient_bytes, edge_count;
    int64_t *edge_blocks;
    /* the step at hand */
    int64_t most;        /* micro-batches of a step */
    ls_step_part *parts; /* its calls, which are the micro-batches */
    ls_line_item *items; /* [chunks][most] */
    bool *slots;         /* used ones: [chunks][most] */
    bool *late;          /* likewise, of places for late gradients */
    bool *stream_used;
    ls_line_buffer *gradient;
    struct {
        uint64_t number; /* 0: none */
        ls_comm_request request;
    } sends[LS_LINE_SENDS];
    uint64_t sends_begun;
    int next_recv;           /* operations before this one have no receive that is not begun */
    int posted;              /* receives that were begun and not waited for */
    int top[LS_PIPE_CHUNKS]; /* of each stack of gradients: of all, or of what a first half makes;
                              */
    int late_top[LS_PIPE_CHUNKS]; /* of what a second half makes (line_sum.c) */
    int left[LS_PIPE_CHUNKS];     /* micro-batches whose backward is still to come */
    int next_sum;                 /* the chunk whose sum across is begun next; -1: all are */
    int64_t sent_bytes;
    struct {
        ls_staging *messages; /* a place for each stream, each gradient, each slot of each chunk;
                               * NULL: other posts reach what lies here */
        ls_staging *pieces;   /* of collectives of any size */
        int first_slot[LS_PIPE_CHUNKS]; /* the first place of its slots */
        struct {
            ls_coll coll;
            int place, send;      /* which of `sends` */
        } waiting[LS_LINE_SENDS]; /* sends that are begun when they have come to the host */
        int n_waiting;
        float *sums[LS_PIPE_CHUNKS + 1][LS_ORDERED_ROOTS]; /* host, as `sums`: buffer by buffer */
        bool locked[LS_PIPE_CHUNKS + 1][LS_ORDERED_ROOTS];
    } travel; /* where the device has a memory of its own (line_travel.c) */
    struct {
        ls_adamw_span *spans;             /* of the ward's part, */
        int64_t end_span[LS_PIPE_CHUNKS]; /* chunk by chunk */
        bool begun;                       /* its moments are here */
        int64_t sent;                     /* bytes, to the buddy */
    } trust;                              /* trust.h */
};

static inline int64_t ls_line_deadline(void)
{
    return ls_time_now_ns() + LS_LINE_WAIT_S * LS_NS_PER_S;
}

static inline bool ls_line_is_last_stage(const ls_line *x, int chunk)
{
    return chunk * x->plan.posts + x->plan.post == x->plan.posts * x->plan.chunks - 1;
}

static inline bool ls_line_is_tied(const ls_line *x)
{
    return x->plan.tied.count > 0 && (ls_pipe_is_first(&x->plan) || ls_pipe_is_last(&x->plan));
}

/* Micro-batches of a step; where ranks divide experts some may be empty, behind the others: this
 * rank's experts serve those of other lines. */
static inline int64_t ls_line_micros(const ls_step *s)
{
    return ls_step_is_far(s) ? s->far.rounds : s->now.calls;
}

/* The gradients of a chunk, by the indices of the whole model; the head's part of a tied one. */
static inline float *ls_line_grad(const ls_line *x, int chunk, int buffer)
{
    return (float *)(void *)x->grads[chunk][buffer].base;
}
static inline float *ls_line_head(const ls_line *x, int buffer)
{
    return (float *)(void *)x->head[buffer].base;
}

/* Sums of a chunk's stack, after an operation has put the gradients of a micro-batch on it. */
void ls_line_merge(ls_step *step, const ls_pipeline_op *op);

/* --- a device with a memory of its own (line_travel.c) ---------------------------------------- */

/* Windows of the state: in host memory, or on the device; there the part that is to be used must be
 * backed. */
ls_status ls_line_open_window(const ls_step *step, ls_window *window, int64_t bytes,
                              const char *what);
ls_status ls_line_back_window(const ls_step *step, const ls_window *window, ls_pipe_range range,
                              int64_t size, const char *what);
void ls_line_close_window(const ls_step *step, ls_window *window);

/* What messages, collectives and sums pass through; nothing where ranks reach the memory. */
ls_status ls_line_open_travel(ls_step *step);
void ls_line_close_travel(ls_step *step);

/* A collective of memory in which rows work: a sum, a broadcast, a message. */
ls_status ls_line_run(const ls_step *step, ls_comm *comm, const ls_coll *coll);

/* The place of a stream, a gradient, or of what a slot sends. */
static inline int ls_line_stream_place(int stream)
{
    return stream;
}
static inline int ls_line_gradient_place(const ls_line *x, int gradient)
{
    return x->plan.streams + gradient;
}
static inline int ls_line_slot_place(const ls_line *x, int chunk, int slot)
{
    return x->travel.first_slot[chunk] + slot;
}

/* Where a message is received: a place that nothing reads any more. Then from there to the device.
 */
ls_status ls_line_room(ls_line *line, int place, void **memory_out);
void ls_line_arrived(ls_line *line, int place, void *to, int64_t bytes);

/* A send of memory of the device, in its place among the others; and begin all of them, when they
 * have come to the host. */
void ls_line_send_later(ls_line *line, const ls_coll *coll, int place, int send);
ls_status ls_line_begin_sends(ls_line *line);

/* Sum i across: what it is made of, on its way to the host; begin it there; and back. */
void ls_line_take_sum(ls_step *step, int i);
ls_status ls_line_sum_there(ls_step *step, int i);
ls_status ls_line_bring_sum(ls_step *step, int i);

/* Sums across, of the chunks that are done, in the order in which all ranks of a post begin them;
 * and their end: all sums are in the first buffers, those of a tied gradient added. */
ls_status ls_line_start_sums(ls_step *step);
ls_status ls_line_end_sums(ls_step *step);

LS_C_END
