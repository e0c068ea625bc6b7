/* step_impl.h -- what the files of this room share: the parts of a step, each with the file that
 * owns it, and the functions between them. */
#pragma once
#include "base/spill.h"
#include "base/window.h"
#include "optim/optim.h"
#include "parallel/staging.h"
#include "layout/page_reuse.h"
#include "layout/zero_units.h"
#include "train/step/step_mode.h"

LS_C_BEGIN

enum { LS_STEP_WAIT_S = 3600, LS_STEP_OPEN_S = 300, LS_STEP_PARTIAL = -2 };

/* --- the parts of a step ---------------------------------------------------------------------- */

/* Parts of the flat parameters (layout/mesh.h). */
typedef struct ls_step_list {
    ls_mesh_part *at;
    int n; /* at least one, which may be empty */
} ls_step_list;

/* step_parts.c: which elements this rank has of what. */
typedef struct ls_step_own_parts {
    ls_step_list sums;    /* owned: of the gradient, whose sums it has with its replicas */
    ls_step_list own;     /* what it updates: the same list, or ep_group.parts */
    ls_step_list weights; /* owned: of the flat weights, what it keeps */
} ls_step_own_parts;

/* step_open.c: where the two moments lie, and how many elements of them are updated at a time. */
typedef struct ls_step_offload {
    ls_offload how;
    int64_t chunk;     /* elements */
    int64_t bytes[3];  /* [1] and [2] are used, as in state_memory */
    ls_spill files[3]; /* on disk */
    float *stage;      /* owned: in host memory: a chunk of both moments on the device */
} ls_step_offload;

/* dense_step.c: the last call of a step, whose gradient is exchanged while backward goes on. */
typedef struct ls_step_last_call {
    bool on;         /* backward of the last call runs */
    bool begun;      /* the exchange has begun */
    int top, merges; /* of the stack of gradient buffers, when the last call's is on it */
    int64_t from;    /* elements from here on are merged and handed to the exchange */
} ls_step_last_call;

/* sdc_hash.c: the hash of one call's gradient. */
typedef struct ls_step_hasher {
    bool wanted, on; /* a call is to be hashed; its backward runs */
    int64_t leaf;    /* the call begins with this leaf */
    int buffer;      /* that its gradient goes to */
    int64_t end;     /* elements from here on are hashed */
    ls_hash hash;
} ls_step_hasher;

/* step.c: a function that runs once, at its point of the next step (ls_step_set_hook). */
typedef struct ls_step_hook {
    ls_status (*run)(void *context);
    void *context;
} ls_step_hook;

/* zero_gather.c: weights that come from the ranks that own or have updated them. */
typedef struct ls_step_zero_gather {
    ls_window window;                /* ZeRO 3: all weights, as far as they are here */
    ls_zero_units_set coming, there; /* buckets; coming also with ZeRO 1 and 2 */
    int64_t unit;                    /* of the model, asked for last */
} ls_step_zero_gather;

/* host_stage.c: host memory that gradients, weights and numbers pass through. */
typedef struct ls_step_host_stage {
    ls_staging_memory memory[LS_ORDERED_ROOTS]; /* owned */
    float *buffers[LS_ORDERED_ROOTS];           /* in it: as many as grads */
    int64_t elements;                           /* of each buffer */
    ls_event *complete; /* owned: the elements to be copied next are complete on the device */
    struct {
        ls_event *arrived; /* owned */
        int64_t from;      /* elements from here on are in the host's memory then */
    } transfers[LS_MESH_BUCKETS + 1];
    int n, buckets; /* transfers in this step so far, and the buckets that are complete in them */
    int64_t end;    /* elements from here on are in transfers */
} ls_step_host_stage;

/* step_graph.c: forward and backward as recorded graphs. */
typedef enum ls_step_graphs_state {
    LS_STEP_GRAPHS_OFF,
    LS_STEP_GRAPHS_WANTED,
    LS_STEP_GRAPHS_READY
} ls_step_graphs_state;

typedef struct ls_step_graphs {
    ls_step_graphs_state state;
    struct {
        ls_graph *graph; /* owned */
        int64_t from;    /* then elements from here on of `buffers` leave; -1: none */
        int buffers;
    } segments[LS_MESH_BUCKETS + 2];
    int n;
    ls_calls calls;     /* of the last step, which the segments hold, */
    bool isolated;      /* with document starts or not, */
    bool ran;           /* if there was one */
    bool recording;     /* a segment */
    ls_status status;   /* of recording */
    bool launched;      /* in this step */
    int trials;         /* auto: steps that are still compared */
    int64_t best_ns[2]; /* the least time of a queued step, and of a launched one */
    int64_t checked_ns; /* when the last step ended */
} ls_step_graphs;

/* group_step.c: what the ranks of one model (mesh.tp, mesh.ep) sum before the norm. */
typedef struct ls_step_mp_sums {
    ls_collectives_span *spans; /* owned: elements that several ranks have a part of the sum of */
    int n;
    float *squares; /* owned: one sum of squares a rank */
    void *joined;   /* owned: the same on a device with a memory of its own */
    void *partials; /* owned, host: squares of the norm blocks that this rank counts: `blocks` */
    int64_t blocks; /* whole ones, then `n_cut` pieces of blocks, */
    int64_t *cut;   /* owned: each of this block */
    int64_t n_cut, most_cut;
    int64_t waited_ns; /* in moves of tensors, as far as the clock has counted it */
} ls_step_mp_sums;

/* expert_step.c, group_step.c: ranks that divide experts (mesh.ep). */
typedef struct ls_step_experts {
    int64_t rounds;             /* calls of the rank that has most */
    ls_collectives_span *spans; /* owned: elements that all these ranks have a part of the sum of,
                                 * as far as this rank has the sum with its replicas */
    int n;
    ls_step_list parts; /* owned: with ZeRO what this rank updates (layout/expert_zero.h); none: the
                         * parts that replicas divide */
} ls_step_experts;

/* step.c: how far this step is, for the ranks that repair a loss
 * (train/replica/README.md). */
typedef struct ls_step_progress {
    int64_t ready;         /* the step whose gradient and norm are here; -1: none */
    int64_t received;      /* steps of which this rank has received all losses, */
    ls_step_result result; /* and the result of the last one */
    bool made;             /* this rank has updated its own elements */
} ls_step_progress;

/* find_nonfinite.c: the search for the first NaN or Inf. */
typedef struct ls_step_search {
    const ls_pass_call *call; /* whose outputs are searched, */
    int looked;               /* as far as this tensor */
    int64_t number;           /* of the step */
    ls_status status;         /* what was found */
    float *block;             /* owned: numbers from the device */
} ls_step_search;

/* step_preference.c: sequences are pairs of answers (train.objective: dpo, orpo, kto). */
typedef struct ls_step_preference {
    ls_preference_objective objective;
    void *memory;                        /* owned, on the device: the arrays below */
    ls_preference_reference *references; /* of each sequence */
    float *weights;                      /* of each token's loss */
    float *numbers;                      /* [LS_PREFERENCE_NUMBERS, sequences] */
    double *sums;                        /* of these: of each leaf, or of each sequence */
    void *host_memory;                   /* owned, page-locked for a GPU: the arrays below */
    ls_preference_reference *host_references;
    double *host_sums; /* what ls_step.host_sums is otherwise, of all numbers */
    double *kl;        /* owned: kto: numbers of the own sequences, then KL of each leaf */
} ls_step_preference;

struct ls_step_device_exchange; /* device_exchange.c */
struct ls_step_host_zero;       /* host_stage_zero.c */
struct ls_replica_send;         /* replica/replica_impl.h */
struct ls_pipeline;             /* pipeline_impl.h */

struct ls_step {
    ls_step_args args; /* args.calls: the most that there is room for */
    const ls_step_mode *mode;
    const ls_step_exchange *exchange;
    ls_calls now; /* the calls of this step */
    int64_t done; /* steps that are in weights and moments; -1: none has run since it was opened;
                   * LS_STEP_PARTIAL: one is in some of them only */
    ls_pass *pass;

    /* The state: weights, first and second moments, weights in 16 bits, gradients. */
    void *state_memory[3]; /* owned */
    void *copy;            /* owned: weights as the pass reads them; NULL in fp32 */
    ls_dtype type;
    bool discrete;  /* the device has a memory of its own: work is done later */
    bool by_device; /* it waits for other ranks by itself (exchanges of gradients, messages) */
    void *grads[LS_ORDERED_ROOTS]; /* calls.buffers of them */
    int64_t own;                   /* trained elements that this rank updates, packed (mesh.h) */
    float *own_grad;               /* owned: ZeRO 2 and 3: the sums of their gradients */
    ls_window grad_window;         /* ZeRO 2 and 3: grads[0], of one call */
    void *residual;                /* owned: added to the next sum of gradients; NULL: nothing */

    ls_step_own_parts parts;
    ls_step_offload offload;
    ls_step_last_call last;
    ls_step_hasher hasher;
    ls_step_hook hooks[LS_STEP_POINTS];
    ls_step_zero_gather zero_gather;
    ls_step_host_stage host_stage;
    struct ls_step_host_zero *host_zero;             /* owned; NULL: not this exchange */
    struct ls_step_device_exchange *device_exchange; /* likewise */
    ls_step_graphs graphs;
    ls_step_mp_sums mp_group;
    ls_step_experts ep_group;
    ls_step_progress progress;
    ls_step_search search;
    ls_step_preference preference;
    struct ls_replica_send *replica; /* owned: the copy of another rank's part; NULL: none */
    struct ls_pipeline *pipeline;    /* owned; NULL: no pipeline. Then it has the state, and pass is
                                    * that of the chunk at hand */

    /* The step that runs. */
    ls_step_clock *clock; /* NULL: none runs */
    ls_status status;     /* of what is exchanged inside of a pass, */
    ls_err_record why;    /* unless it is LS_OK */
    bool nan_injected;    /* for tests: a NaN is put into the gradient */
    bool isolated;        /* the batch on the device has document starts, */
    bool restart;         /* from which learned positions count */
    int64_t counted;      /* targets of the batch */
    double loss_scale;
    bool has_losses; /* this rank has the head */

    /* Small things, in one block of the device, */
    void *small; /* owned */
    int32_t *tokens, *targets, *start;
    float *losses;
    double *sums; /* of losses: one a leaf in a step, one a sequence in validation */
    float *partials;
    ls_optimizer_span *spans;
    int64_t *first_span; /* owned, host: of each chunk that is updated at a time */
    ls_norm_result *norm;
    ls_step_state *state;

    /* and in one block of the host. */
    void *staging;              /* owned */
    int32_t *host_tokens;       /* tokens, targets, starts */
    ls_step_state *host_states; /* one a call */
    double *host_sums;          /* numbers by leaf (ls_step_numbers), then each rank's work time */
    ls_norm_result *host_norm;

    void *work;      /* owned: what the optimizer needs beside the moments; NULL: nothing */
    ls_optim *optim; /* owned; NULL with args.pushes */
};

/* --- what divides what ------------------------------------------------------------------------ */

/* ZeRO: each rank updates its own part of the weights (1), keeps the sums of gradients of that part
 * only (2), and keeps that part of the weights only (3). In a pipeline the plan says so instead. */
static inline int ls_step_zero_stage(const ls_step *step)
{
    return step->args.dp ? ls_dp_args_of(step->args.dp)->mesh.zero : 0;
}
static inline bool ls_step_divides(const ls_step *step)
{
    return ls_step_zero_stage(step) > 0;
}
static inline bool ls_step_divides_grads(const ls_step *step)
{
    return ls_step_zero_stage(step) >= 2;
}
static inline bool ls_step_divides_weights(const ls_step *step)
{
    return ls_step_zero_stage(step) == 3;
}

/* Each matrix of a block is updated by one rank, which sends it to the others. */
static inline bool ls_step_updates_matrices(const ls_step *step)
{
    return ls_optimizer_of(step->args.run->train.optimizer)->reach == LS_REACH_MATRIX;
}

/* Other ranks read this rank's weights, each some of them from where they were updated. */
static inline bool ls_step_shares(const ls_step *step)
{
    return step->args.dp && (ls_step_divides(step) || ls_step_updates_matrices(step));
}

/* ZeRO 2 and 3: several ranks own the same part, and read this rank's sums of it. */
static inline bool ls_step_shares_sums(const ls_step *step)
{
    return step->args.dp && ls_mesh_shard_groups(&ls_dp_args_of(step->args.dp)->mesh) > 1;
}

/* Several ranks compute one model (mesh.tp, mesh.ep); and the communicator of all of these. */
static inline bool ls_step_has_mp_group(const ls_step *step)
{
    return step->args.tp_group || step->args.ep_group;
}
static inline ls_comm *ls_step_group(const ls_step *step)
{
    return step->args.mp_group
               ? step->args.mp_group
               : ls_mp_group_comm(step->args.tp_group ? step->args.tp_group : step->args.ep_group);
}

/* Ranks divide experts, and share the batch. */
static inline bool ls_step_is_ep(const ls_step *step)
{
    return step->args.batch_dp != NULL;
}

/* The ranks that share the batch; NULL: there is one. */
static inline ls_dp *ls_step_batch_dp(const ls_step *step)
{
    return step->args.batch_dp ? step->args.batch_dp : step->args.dp;
}

/* What other ranks read passes through host memory: the device has a memory of its own. */
static inline bool ls_step_host_stages(const ls_step *step)
{
    return step->args.dp && step->args.side;
}

/* Whether an array of the state is no weights. */
static inline bool ls_step_is_moment(const ls_step *step, const float *array)
{
    return array != step->state_memory[0];
}

static inline ls_device *ls_step_device(const ls_step *step)
{
    return ls_stream_device(step->args.stream);
}
static inline int64_t ls_step_deadline(void)
{
    return ls_time_now_ns() + LS_STEP_WAIT_S * LS_NS_PER_S;
}

/* --- step_preference.c: sequences that are pairs ----------------------------------------------- */

static inline bool ls_step_has_pairs(const ls_step *step)
{
    return step->preference.objective.kind != LS_PREFERENCE_NONE;
}
ls_status ls_step_open_preference(ls_step *step);
void ls_step_close_preference(ls_step *step);

/* References of `count` sequences to the beginning of the device's; NULL: zeros. */
void ls_step_copy_references(ls_step *step, const ls_preference_reference *from, int64_t count);

/* What a call reads and writes, of all whose numbers lie `stride` apart, from sequence `first` on;
 * where sequences are no pairs, nothing. */
ls_pass_preference ls_step_pass_preference(const ls_step *step, int64_t first, int64_t stride);

/* The numbers of this rank's leaves, which lie on the device, to host_sums. */
void ls_step_sum_numbers(ls_step *step);

/* kto: how far the model is from its reference, the mean over the batch; of the others 0. */
ls_status ls_step_kl(ls_step *step, const ls_step_batch *batch, double *kl_out);

/* The sum of n values along the perfect binary tree over their numbers; they are overwritten. */
double ls_step_tree_sum(double *values, int64_t n);

/* --- step_calls.c, step.c: the calls of a step ------------------------------------------------ */

/* Sequences first .. first+count-1 of a batch to the beginning of the device's buffers. */
void ls_step_copy_sequences(ls_step *step, const ls_step_batch *batch, int64_t first,
                            int64_t count);
/* A call of this rank: its number and its leaves of the batch. */
typedef struct ls_step_leaves {
    int64_t number, first, count;
} ls_step_leaves;

/* The first call (count is 0), then the next one; false past the last. */
bool ls_step_next(const ls_step *step, ls_step_leaves *part);

/* The call over the batch that lies on the device; its gradient goes to grads[buffer]. */
ls_pass_call ls_step_call(ls_step *step, const ls_step_leaves *part, int buffer);

/* The numbers of a call, where the copy to the device finds them: dropout is keyed by the number of
 * the sequence in the global batch; that copy; and the forward pass, which begins with it. */
void ls_step_set_scalars(ls_step *step, const ls_step_leaves *part, ls_step_state *host_state);
void ls_step_send_scalars(ls_step *step, int64_t call);
void ls_step_forward(ls_step *step, const ls_step_leaves *part, const ls_pass_call *call,
                     ls_step_state *host_state);

/* The numbers of a step that kernels read on the device. */
ls_step_state ls_step_scalars(const ls_step *step, int64_t number, double lr);

/* ls_pass_call.complete of every call whose gradient somebody waits for: the one hook that goes up.
 * Backward has completed elements `from` and above; the mode's row says what follows. */
void ls_step_bucket_ready(void *context, int64_t from);

/* Forward or backward has come this far; the time in which ranks of one model exchanged tensors
 * counts as exchange. And the time computed so far in this step. */
void ls_step_lap(ls_step *step, ls_step_clock *clock, ls_step_time part);
int64_t ls_step_worked_ns(const ls_step_clock *clock);

/* An exchange inside of a pass cannot return its error. The first one is recorded, later exchanges
 * of the step do nothing, and recorded() returns it when the pass is over. */
void ls_step_record(ls_step *step, ls_status status);
ls_status ls_step_recorded(const ls_step *step);

/* Wait until the device has done all that it was asked; copy host memory to it, and wait. */
ls_status ls_step_sync(ls_step *step);
ls_status ls_step_send(ls_step *step, void *to, const void *from, int64_t bytes);

/* Renew the weights in 16 bits of a part, which are numbered from its first element on. */
void ls_step_renew_copy(ls_step *step, ls_mesh_part part);

/* The weights as a pass reads them. */
static inline const void *ls_step_read(const ls_step *step)
{
    return step->zero_gather.window.base ? step->zero_gather.window.base
           : step->copy                  ? step->copy
                                         : step->state_memory[0];
}

/* Sequences that the device's buffers hold: those of this rank, or a call of validation; and the
 * tokens that this rank has of each. */
static inline int64_t ls_step_held(const ls_step *step)
{
    return ls_calls_held(&step->args.calls);
}
static inline int64_t ls_step_tokens(const ls_step *step)
{
    return ls_calls_tokens(&step->args.calls, step->args.model->shape.T);
}

/* The next bytes of a block that is cut into pieces. */
static inline void *ls_step_cut(char **at, int64_t bytes)
{
    void *p = *at;

    *at += ls_round_up(bytes, 256);
    return p;
}

/* --- step_parts.c: what this rank sums and updates -------------------------------------------- */

ls_status ls_step_open_parts(ls_step *step);
int ls_step_all(int64_t elements, ls_mesh_part *parts_out); /* one part: everything */
void ls_step_close_parts(ls_step *step);

/* The first piece of a list among elements first .. end-1; false: none. Pieces begin and end at borders
 * of norm blocks, or where they were asked for. */
bool ls_step_find(const ls_step_list *list, int64_t first, int64_t end, ls_optim_piece *piece_out);

/* Where an element lies among the sums, packed: as gradients lie with ZeRO 2 and 3, and weights with 3.
 * And the sum of the gradients of a part, or of a piece of one. */
int64_t ls_step_packed(const ls_step *step, int64_t element);
const float *ls_step_own_gradient(const ls_step *step, ls_mesh_part own);

/* --- what rows share -------------------------------------------------------------------------- */

/* step_open.c: memory that other ranks read (shared), or of the device alone; the stream of a pass, and
 * what it exchanges with the groups of this rank. */
ls_status ls_step_alloc(ls_step *step, bool shared, int64_t bytes, const char *what, void **out);
void ls_step_connect_pass(const ls_step *step, ls_pass_args *pass);
ls_status ls_step_keep_state(ls_step *step, void *kept_out[3]);

/* dense_step.c. */
ls_status ls_step_dense_gradients(ls_step *step, ls_step_state *host_state, ls_step_clock *clock);
void ls_step_dense_ready(ls_step *step, int64_t from);

/* zero_step.c. */
int ls_step_zero_parts(const ls_step *step, ls_mesh_part *parts_out);
int ls_step_zero_weights(const ls_step *step, ls_mesh_part *parts_out);
ls_status ls_step_zero_gradients(ls_step *step, ls_step_state *host_state, ls_step_clock *clock);
void ls_step_zero_ready(ls_step *step, int64_t from);
float *ls_step_zero_gradient(const ls_step *step, int64_t element);
int64_t ls_step_zero_rounds(const ls_step *step);
ls_status ls_step_zero_spread(ls_step *step, ls_step_clock *clock);
ls_status ls_step_zero_complete(ls_step *step);

/* --- zero_gather.c ---------------------------------------------------------------------------- */

/* ls_pass_call.need: the weights of a unit of the model, before the pass reads them. The opposite
 * of the hook above: the pass asks, and goes on when they are here. */
void ls_step_need(void *context, int64_t unit);

/* ZeRO 3: the weights have changed: drop what is here. ZeRO 1 and 2: wait for all. */
ls_status ls_step_forget(ls_step *step);

/* ZeRO 3: buckets `now` are here afterwards, `next` are on their way, all others dropped; drop those of
 * a set, after waiting for what is on its way. */
ls_status ls_step_gather_weights(ls_step *step, ls_zero_units_set now, ls_zero_units_set next);
ls_status ls_step_drop_weights(ls_step *step, ls_zero_units_set unwanted);

/* ZeRO 1 and 2: start the gathers of what all ranks have updated. */
ls_status ls_step_start_gathers(ls_step *step);

/* --- expert_step.c ---------------------------------------------------------------------------- */

ls_status ls_step_expert_split(ls_step *step, const ls_ordered_run *runs);

/* With ZeRO. The new weights, to the ranks that divide experts with this one; and an array of
 * moments to the first of the replicas, which then has this slice of the model whole, or back. */
ls_status ls_step_expert_spread(ls_step *step);
ls_status ls_step_expert_carry(ls_step *step, float *moments, float *mesh_slice, bool back);

/* --- group_step.c ----------------------------------------------------------------------------- */

/* Of the ranks of one model: the norm of the gradient of the whole, after adding up what several of
 * them have a part of; a barrier; and an array of the whole model on the first rank, of parts on
 * all. */
ls_status ls_step_open_group(ls_step *step);
void ls_step_close_group(ls_step *step);
ls_status ls_step_group_norm(ls_step *step, const ls_norm2 *whole, ls_step_clock *clock);
ls_status ls_step_group_barrier(ls_step *step);
ls_status ls_step_group_collect(ls_step *step, const float *part, float *whole);
ls_status ls_step_group_scatter(ls_step *step, const float *whole, float *part);

/* --- zero_windows.c: ZeRO 2 and 3 on a device with a memory of its own -------------------------- */

ls_status ls_step_open_zero_windows(ls_step *step);
void ls_step_close_zero_windows(ls_step *step);

/* --- host_stage.c, host_stage_zero.c, in_place_exchange.c --------------------------------------- */

ls_status ls_step_open_host_stage(ls_step *step, int64_t elements);
void ls_step_close_host_stage(ls_step *step);
void ls_step_close_host_zero(ls_step *step);
void ls_step_close_device_exchange(ls_step *step);

/* What both exchanges through the host do alike. */
ls_status ls_step_host_sum_in_group(ls_step *step, float *numbers, int64_t n);
ls_status ls_step_host_broadcast(ls_step *step, int from, void *memory, int64_t bytes);
ls_status ls_step_host_collect(ls_step *step, const float *part, float *whole);
ls_status ls_step_host_scatter(ls_step *step, const float *whole, float *part);
ls_status ls_step_host_spread(ls_step *step);

/* The exchange's function of this name. */
ls_status ls_step_sum_in_group(ls_step *step, float *numbers, int64_t n);
ls_status ls_step_gather(ls_step *step, float *whole);
void ls_step_host_zero_bring(ls_step *step);

/* Forward of a call through all layers: with call->made as in a step, otherwise losses only. */
ls_status ls_step_forward_only(ls_step *step, const ls_pass_call *call);

/* The row's collect and scatter: of the ranks with the same slice of the model; and its complete. */
ls_status ls_step_slice_collect(ls_step *step, const float *part, float *whole);
ls_status ls_step_slice_scatter(ls_step *step, const float *whole, float *part);
ls_status ls_step_complete(ls_step *step);

/* --- step_graph.c ----------------------------------------------------------------------------- */

/* Before the calls of a step are queued: whether they are being recorded; after it: whether that
 * went well, or they must be queued again. Or all of it from what was recorded; false: queue it.
 * After the wait of a step: how long it took. */
void ls_step_open_graphs(ls_step *step);
void ls_step_close_graphs(ls_step *step);
bool ls_step_graph_begin(ls_step *step, const ls_step_clock *clock);
bool ls_step_graph_end(ls_step *step);
bool ls_step_graph_launch(ls_step *step, ls_step_state *host_state, const ls_step_clock *clock);
void ls_step_graph_compare(ls_step *step);

/* While recording: what was queued is done now, and elements `from` and above of the first
 * `buffers` gradients leave next. true: it was recording, and goes on with resume. */
bool ls_step_graph_cut(ls_step *step, int64_t from, int buffers);
void ls_step_graph_resume(ls_step *step);

/* --- sdc_hash.c ------------------------------------------------------------------------------- */

/* A piece to a hash of pieces; whether a call, whose gradient of `elements` goes to this buffer, is
 * the one to be hashed; and while its backward runs: elements `from` and above are there. */
void ls_step_add_piece(ls_hash *hash, const float *x, int64_t n);
bool ls_step_hash_call(ls_step *step, const ls_step_leaves *part, int buffer, int64_t elements);
void ls_step_hash_from(ls_step *step, int64_t from);

/* --- step_update.c ---------------------------------------------------------------------------- */

/* What the optimizer reads about parameters, to the device. */
ls_status ls_step_open_optimizer(ls_step *step);

/* The update, when the norm is known and finite, up to new weights on every rank. */
ls_status ls_step_update(ls_step *step, ls_step_clock *clock);

/* --- fault_inject.c --------------------------------------------------------------------------- */

/* What a drill's plan does at this point (base/fault.h: LS_FAULT_AT_...). */
ls_status ls_step_fault(ls_step *step, int point);

LS_C_END
