/* step_impl.h -- what step.c, step_update.c, host_stage.c and find_nonfinite.c share. */
#pragma once
#include "base/spill.h"
#include "base/window.h"
#include "optim/optim.h"
#include "parallel/staging.h"
#include "layout/page_reuse.h"
#include "layout/zero_units.h"
#include "train/step/step.h"

LS_C_BEGIN

enum { LS_STEP_WAIT_S = 3600 };

/* Whether forward and backward are replayed (graph_replay.c). */
typedef enum ls_step_replay { LS_REPLAY_OFF, LS_REPLAY_WANTED, LS_REPLAY_READY } ls_step_replay;

struct ls_step {
    ls_step_args args; /* args.calls: what there is room for */
    ls_calls now;      /* the calls of this step */
    int64_t done;      /* see ls_step_done() */
    ls_pass *pass;
    void *state_memory[3]; /* owned: w, m, v */
    struct {
        ls_offload how;    /* where m and v lie */
        int64_t chunk;     /* elements that are updated at a time */
        int64_t bytes[3];  /* of each, */
        ls_spill files[3]; /* on disk, */
        float *stage;      /* owned: in host memory: a chunk of both on the device */
    } offload;             /* [1] and [2] are used, as in state_memory */
    void *copy;            /* owned: w as rows read it; NULL in fp32, where that is w */
    ls_dtype type;
    bool discrete;                 /* the device has a memory of its own: work is done later */
    void *grads[LS_ORDERED_ROOTS]; /* calls.buffers of them */
    int64_t own;                   /* trained elements that this rank updates, packed (mesh.h) */
    float *own_grad;               /* owned: zero 2 and 3: the sum of their gradients */
    ls_window grad_window;         /* zero 2 and 3: grads[0], of one call */
    struct {
        int top, merges; /* of the stack of gradients, when the last call is on it */
        int64_t from;    /* elements from here on are merged and on their way */
    } last;              /* call of the step: its gradient is exchanged while backward goes on */
    struct {
        bool wanted, on; /* a call is to be hashed; it is being so */
        int64_t leaf;    /* which it begins with */
        int buffer;      /* its gradient, */
        int64_t end;     /* of which elements from here on are hashed */
        ls_hash hash;    /* of them */
    } watch;
    ls_status (*check)(void *context); /* before the norm; NULL: nobody asks */
    void *check_context;
    struct {
        ls_window window;                /* the weights, as far as they are there */
        ls_zero_units_set coming, there; /* buckets */
        int64_t unit;                    /* that was asked for last */
    } zero_gather;                       /* zero 3; coming also with zero 1 and 2 */
    struct {
        float *buffers[LS_ORDERED_ROOTS]; /* owned, host: as many as grads */
        bool locked[LS_ORDERED_ROOTS];
        int64_t elements;   /* of each buffer */
        ls_event *complete; /* owned: elements of the gradients that are copied next */
        struct {
            ls_event *arrived; /* owned */
            int64_t from;      /* elements from here on have arrived then */
        } legs[LS_MESH_BUCKETS + 1];
        int n, buckets; /* legs so far in this step, buckets that are complete in them, */
        int64_t end;    /* elements from here on */
    } host_stage;       /* where ranks cannot reach the device's memory (host_stage.c) */
    struct {
        ls_step_replay state;
        struct {
            ls_graph *graph; /* owned */
            int64_t from;    /* then these elements of so many buffers travel; -1: none do */
            int buffers;
        } segments[LS_MESH_BUCKETS + 2];
        int n;
        ls_calls calls;   /* of the step before, which is what segments hold, */
        bool isolated;    /* with document starts or not, */
        bool ran;         /* if there was one */
        bool recording;   /* a segment */
        ls_status status; /* of recording */
        bool launched;    /* in this step */
        int trials;       /* auto: steps that are still compared, */
        int64_t best_ns[2],
            checked_ns; /* the least time of a queued and of a replayed one; when the last ended */
    } replay;
    struct {
        ls_collectives_span *spans; /* owned: what several ranks have parts of */
        int n;
        float *squares; /* owned: of each rank that counts some */
        void *joined;   /* owned: the same on a device with a memory of its own */
        void *partials; /* owned, host: squares of norm blocks of what this rank counts, */
        int64_t blocks; /* so many, then of pieces of some of them: */
        int64_t *cut;   /* owned: of which block each is */
        int64_t n_cut, most_cut;
        int64_t waited_ns; /* in moves of tensors, as far as clocks know of it */
    } mp_group;            /* mesh.tp, mesh.ep (group_step.c) */
    struct {
        int64_t rounds; /* calls of who has most, of those that divide experts */
        ls_collectives_span
            *spans; /* owned: what all of them have parts of, and this rank the sum with
                              * its equals */
        int n;
        ls_mesh_part
            *parts; /* owned, n_parts: with ZeRO what this rank updates (layout/expert_zero.h);
                              * NULL: what equals divide */
        int n_parts;
    } ep_group; /* mesh.ep (far.c, group_step.c) */
    struct {
        int64_t ready;                /* the step whose gradient and norm are here; -1: none */
        int64_t heard;                /* steps of which the losses of all ranks were heard, */
        ls_step_result result;        /* and the last one's */
        bool made;                    /* this rank has made the update of what it has */
    } vote;                           /* who is lost meanwhile: train/replica/replica_parts.h */
    ls_step_clock *clock;             /* of the step that runs; NULL: none does */
    ls_status status;                 /* of what was exchanged inside of a pass, */
    ls_err_record why;                /* unless it is LS_OK */
    ls_status (*wait)(void *context); /* before the update; NULL: nobody reads the state */
    void *wait_context;
    void *residual; /* owned: added to the next sum of gradients; NULL: nothing */
    void *small;    /* owned: everything below */
    int32_t *tokens, *targets, *start;
    float *losses;
    double *sums; /* of losses: per leaf in a step, per sequence in validation */
    float *partials;
    ls_adamw_span *spans;
    int64_t *first_span; /* owned, host: of what is updated at a time, in order */
    ls_norm_result *norm;
    ls_step_state *state;
    void *staging;              /* owned, host: the next four */
    int32_t *host_tokens;       /* tokens, targets, starts */
    ls_step_state *host_states; /* of each call */
    double *host_sums;          /* of losses by leaf, then the time of each rank's work */
    ls_norm_result *host_norm;
    bool spoiled;    /* for tests: its gradient is not finite, whoever makes it */
    bool isolated;   /* the batch on the device has document starts */
    int64_t counted; /* targets of the last step's batch */
    double loss_scale;
    float *look; /* a block of numbers under examination, while blaming */
    struct {
        const ls_pass_call *call; /* whose outputs are looked at, */
        int looked;               /* as far as this, */
        int64_t number;           /* of this step; */
        ls_status status;         /* what was found */
    } blame;
    struct ls_step_host_zero
        *host_zero; /* owned: zero 2 and 3 where it travels (host_stage_zero.c) */
    struct ls_replica_pair
        *trust; /* owned: what is kept for another rank (replica_pair.h); NULL: nothing */
    struct ls_pipeline
        *pipeline;   /* owned: where ranks have parts of the layers (pipeline.h): then the state
                           * is its own, and pass is that of the chunk at hand; NULL: not so */
    void *work;      /* owned: what the optimizer needs beside the moments; NULL: nothing */
    ls_optim *optim; /* owned; NULL with args.pushes */
};

/* A call of this rank: its number and its leaves of the batch. */
typedef struct ls_step_part {
    int64_t number, first, count;
} ls_step_part;

/* The first call, and the one after another; false past the last. */
bool ls_step_next(const ls_step *step, ls_step_part *part);

/* The call over the batch that lies on the device, its gradient into grads[buffer]. */
ls_pass_call ls_step_call(ls_step *step, const ls_step_part *part, int buffer);

/* The numbers of a call to where they are copied from; dropout is keyed by the sequence's number in
 * the global batch. And its forward pass, which begins with that copy. */
void ls_step_set_numbers(ls_step *step, const ls_step_part *part, ls_step_state *host_state);
void ls_step_forward(ls_step *step, const ls_step_part *part, const ls_pass_call *call,
                     ls_step_state *host_state);

/* Those of a call, which lie in host memory, to the device. */
void ls_step_send_numbers(ls_step *step, int64_t call);
/* Whether a call, whose gradient of so many elements goes to this buffer, is the one to be hashed;
 * and, while it is (ls_pass_call.complete): elements from here on are there. */
void ls_step_add_piece(ls_hash *hash, const float *x, int64_t n); /* to a hash of pieces */
bool ls_step_hash_call(ls_step *step, const ls_step_part *part, int buffer, int64_t elements);
void ls_step_hash_from(void *context, int64_t from);

/* The numbers of a step that rows read on the device. */
ls_step_state ls_step_numbers(const ls_step *step, int64_t number, double lr);

/* Each rank updates its own part of the weights, and the others read it. */
static inline bool ls_step_divides(const ls_step *step)
{
    return step->args.dp && ls_dp_about(step->args.dp)->mesh.zero > 0;
}

/* Each matrix of a block is updated by one rank, which sends it to the others. */
static inline bool ls_step_updates_matrices(const ls_step *step)
{
    return ls_optimizer_of(step->args.run->train.optimizer)->reach == LS_REACH_MATRIX;
}

/* The weights are read by other ranks, each some of them from where they were updated. */
static inline bool ls_step_shares(const ls_step *step)
{
    return step->args.dp && (ls_step_divides(step) || ls_step_updates_matrices(step));
}

/* The next bytes of a block that is cut into pieces. */
static inline void *ls_step_cut(char **at, int64_t bytes)
{
    void *p = *at;

    *at += ls_round_up(bytes, 256);
    return p;
}

/* Elements of the gradients that this rank updates, without a gap, and where they lie in its
 * moments. Pieces begin and end at borders of norm blocks, or where they were asked for. */
typedef struct ls_step_piece {
    int64_t first, count, place;
} ls_step_piece;

/* The first such piece among elements first .. end-1; false: none. And of what it has the sum of
 * with its equals, which those that divide experts may update some of (place: of no use). */
bool ls_step_own_piece(const ls_step *step, int64_t first, int64_t end, ls_step_piece *piece_out);
bool ls_step_sum_piece(const ls_step *step, int64_t first, int64_t end, ls_step_piece *piece_out);

/* Where an element of these sums lies among them, packed: as gradients do with ZeRO 2 and 3, and
 * weights with 3. */
int64_t ls_step_place(const ls_step *step, int64_t element);

/* Host memory to the device, waiting for it. */
ls_status ls_step_send(ls_step *step, void *to, const void *from, int64_t bytes);

/* No rank keeps a whole gradient; nor whole weights. */
static inline bool ls_step_parts(const ls_step *step)
{
    return step->args.dp && ls_dp_about(step->args.dp)->mesh.zero >= 2;
}
static inline bool ls_step_shards(const ls_step *step)
{
    return step->args.dp && ls_dp_about(step->args.dp)->mesh.zero == 3;
}

/* Ranks have the model together (group_step.c): the norm of the gradient of the whole, of what grads[0]
 * has, after adding up what several ranks have a part of; one of them speaks for all of what is not
 * finite, the one that saw the earliest; an array of the whole model on the first rank, of parts on
 * all. */
static inline bool ls_step_has_mp_group(const ls_step *step)
{
    return step->args.tp_group || step->args.ep_group;
}
static inline ls_comm *ls_step_group(const ls_step *step) /* all of them */
{
    return step->args.mp_group
               ? step->args.mp_group
               : ls_mp_group_comm(step->args.tp_group ? step->args.tp_group : step->args.ep_group);
}
ls_status ls_step_open_group(ls_step *step);
void ls_step_close_group(ls_step *step);
ls_status ls_step_group_norm(ls_step *step, const ls_norm2 *whole);
ls_status ls_step_group_vote(ls_step *step); /* all of them have come so far */
ls_status ls_step_group_blame(ls_step *step, double *saw);
ls_status ls_step_group_collect(ls_step *step, const float *part, float *whole);
ls_status ls_step_group_deal(ls_step *step, const float *whole, float *part);

/* ls_step_collect() and ls_step_deal() of the ranks with the same part of the model (or all of it),
 * by lines or by dp. Where the device has a memory of its own, part is there and whole is the
 * host's. */
ls_status ls_step_slice_collect(ls_step *step, const float *part, float *whole);
ls_status ls_step_slice_deal(ls_step *step, const float *whole, float *part);

/* Forward or backward has come so far: what it took, and apart from that the time in which ranks
 * that have the model together exchanged tensors. */
void ls_step_lap(ls_step *step, ls_step_clock *clock, ls_step_time part);

/* Ranks have experts each, and share the batch (far.c): which leaves all ranks have from now on;
 * the sum of gradients as far as ranks have the same; experts serve others in a round without a
 * call. */
static inline bool ls_step_is_ep(const ls_step *step)
{
    return step->args.batch_dp != NULL;
}
void ls_step_expert_split(ls_step *step, const ls_ordered_run *runs);
ls_status ls_step_expert_gradients(ls_step *step, ls_step_state *host_state, ls_step_clock *clock);
void ls_step_expert_serve(ls_step *step, bool backward,
                          void (*complete)(void *context, int64_t from));

/* With ZeRO: what this rank updates; its new weights to those that divide experts with it; an
 * array of moments to the first of its equals, which has all of this part of the model then, or
 * back. */
ls_status ls_step_open_expert(ls_step *step);
ls_status ls_step_expert_spread(ls_step *step);
ls_status ls_step_expert_carry(ls_step *step, float *moments, float *mesh_slice, bool back);
ls_status ls_step_trouble(const ls_step *step); /* in an exchange inside of a pass, so far */

/* Who shares the batch with this rank; NULL: nobody. */
static inline ls_dp *ls_step_sharers(const ls_step *step)
{
    return step->args.batch_dp ? step->args.batch_dp : step->args.dp;
}

/* What other ranks read passes through host memory: the device has a memory of its own. */
static inline bool ls_step_host_stages(const ls_step *step)
{
    return step->args.dp && step->args.side;
}
ls_status ls_step_open_host_stage(ls_step *step, int64_t elements);
void ls_step_close_host_stage(ls_step *step);

/* Where it travels, the gradients of a step: before its last call, of so many elements; elements
 * `from` and above of so many buffers will be complete when the stream comes here; and all others:
 * the sum in grads[0], as ls_dp_sum_end() leaves it. */
void ls_step_host_stage_begin(ls_step *step, int64_t elements);
void ls_step_host_stage_from(ls_step *step, int64_t from, int buffers);
ls_status ls_step_host_stage_sum(ls_step *step, ls_step_clock *clock);

/* Zero 2 and 3 where it travels (host_stage_zero.c): windows and places; before a round; elements
 * `from` and above of its gradient are queued; the end of a round; after the last one the sums of
 * the own parts, which lie in travel.buffers[0] until then, to the device. */
ls_status ls_step_open_host_zero(ls_step *step);
void ls_step_close_host_zero(ls_step *step);
void ls_step_host_zero_round(ls_step *step, int round);
ls_status ls_step_host_zero_from(ls_step *step, int64_t from);
ls_status ls_step_host_zero_end(ls_step *step);
void ls_step_host_zero_bring(ls_step *step);

/* Zero 2: all weights from their owners. Zero 3: the own ones have changed; a bucket from its
 * owners: start, and wait; where it is wanted, it is there for what is queued next. */
ls_status ls_step_host_zero_gather(ls_step *step, float *whole);
void ls_step_host_zero_changed(ls_step *step);
ls_status ls_step_host_zero_fetch(ls_step *step, int bucket);
ls_status ls_step_host_zero_fetched(ls_step *step, int bucket, bool wanted);

/* Graphs of forward and backward. Before the calls of a step are queued: whether they are being
 * recorded; then, when they were: whether that went well, else they are queued once more. Or all
 * of it from what was recorded; false: queue it. After the wait of a step: how long it took. */
void ls_step_open_replay(ls_step *step);
void ls_step_close_replay(ls_step *step);
bool ls_step_replay_begin(ls_step *step, const ls_step_clock *clock);
bool ls_step_replay_end(ls_step *step);
bool ls_step_replay_launch(ls_step *step, ls_step_state *host_state, const ls_step_clock *clock);
void ls_step_replay_judge(ls_step *step);

/* While recording: what was queued is done now, and elements `from` and above of so many buffers
 * travel next; true: it was recording, and goes on with resume. */
bool ls_step_replay_cut(ls_step *step, int64_t from, int buffers);
void ls_step_replay_resume(ls_step *step);

/* As ls_dp_numbers() and ls_dp_gather(), of device memory. */
ls_status ls_step_share(ls_step *step, float *numbers, int64_t n);
ls_status ls_step_gather(ls_step *step, float *whole);

/* Weights of a unit, before a call of the pass reads them; drop them all (zero 3): they have
 * changed. */
void ls_step_need(void *context, int64_t unit);
ls_status ls_step_forget(ls_step *step);

/* Zero 1 and 2: what this rank and the others have updated is on its way to all. */
ls_status ls_step_spread(ls_step *step);

/* The weights as a pass reads them. */
static inline const void *ls_step_read(const ls_step *step)
{
    return step->zero_gather.window.base ? step->zero_gather.window.base
           : step->copy                  ? step->copy
                                         : step->state_memory[0];
}

/* Buckets of parameters that this rank updates apart from each other, and what it has of each: all
 * of the one bucket where it updates everything. */
int ls_step_buckets(const ls_step *step);
ls_mesh_part ls_step_own(const ls_step *step, int bucket);

/* What it has the sums of, with its equals: the same, or more than it updates (layout/expert_zero.h). */
int ls_step_sums(const ls_step *step);
ls_mesh_part ls_step_sum(const ls_step *step, int bucket);

/* The sum of gradients of an own part, or of a piece of it. */
const float *ls_step_own_gradient(const ls_step *step, ls_mesh_part own);

/* What the optimizer reads about parameters, to the device. */
ls_status ls_step_open_optimizer(ls_step *step);

/* Weights that were put in place part by part, each by the rank that updates it: all of them to all
 * that have them. By all ranks. */
ls_status ls_step_complete(ls_step *step);

/* The norm of the sum of gradients in grads[0], to s->norm; and then, when it is finite, from there
 * to new weights on every rank. */
ls_status ls_step_norm(ls_step *step);
ls_status ls_step_update(ls_step *step, ls_step_clock *clock);

/* Sequences that the device's buffers hold: those of this rank, or a call of validation. And the
 * tokens that this rank has of each. */
static inline int64_t ls_step_held(const ls_step *step)
{
    return ls_calls_held(&step->args.calls);
}
static inline int64_t ls_step_tokens(const ls_step *step)
{
    return ls_calls_tokens(&step->args.calls, step->args.model->shape.T);
}

/* Until the device has done all that it was asked. */
ls_status ls_step_await(ls_step *step);

/* fault_inject.c: what a drill's plan does at this point (base/fault.h: LS_FAULT_AT_...). */
ls_status ls_step_fault(ls_step *step, int point);

LS_C_END
