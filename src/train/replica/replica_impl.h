/* replica_impl.h -- what the files of this room share: pieces of the model with their update, the
 * copies of a step that runs, and what is kept of one that has ended. */
#pragma once
#include "base/fault.h"
#include "layout/replicas.h"
#include "optim/optim.h"
#include "parallel/reshard.h"
#include "train/replica/replica_send.h"
#include "train/replica/replica_store.h"
#include "train/session/session.h"
#include "train/step/step_impl.h"

LS_C_BEGIN

/* Weights, moments, gradient. */
enum { LS_REPLICA_W, LS_REPLICA_M, LS_REPLICA_V, LS_REPLICA_G, LS_REPLICA_ARRAYS };

/* A rank's own part, and the copy that it holds of another rank's. */
enum { LS_REPLICA_OWN, LS_REPLICA_COPY, LS_REPLICA_HELD };

/* --- pieces ----------------------------------------------------------------------------------- */

/* Pieces of the model that a rank updates, in one order everywhere. */
typedef struct ls_replica_pieces {
    ls_mesh_part *at; /* owned; packed: where the moments lie */
    int n;
    ls_optimizer_span *spans; /* owned: what the optimizer reads, piece by piece */
    int64_t *end_span;        /* owned: where the spans of each piece end */
} ls_replica_pieces;

/* The spans of these pieces. Weights of a piece of whole arrays lie at their own place, packed ones where its moments lie. */
ls_status ls_replica_pieces_open(ls_replica_pieces *pieces, const ls_run *run,
                                 const ls_model *model, bool packed, bool whole);
void ls_replica_pieces_close(ls_replica_pieces *pieces); /* safe on a zeroed one */

/* Elements of packed pieces. */
int64_t ls_replica_elements(const ls_replica_pieces *pieces);

/* The numbers of an update. */
typedef struct ls_replica_scalars {
    ls_step_state state;
    ls_norm_result norm;
} ls_replica_scalars;

/* Those that the step has on the device now. */
static inline ls_replica_scalars ls_replica_scalars_of(const ls_step *step)
{
    return (ls_replica_scalars){.state = *step->state, .norm = *step->norm};
}

/* What is updated element by element of piece i, whose gradient lies there. v: NULL where the
 * optimizer keeps one moment. */
typedef struct ls_replica_update {
    const ls_run *run;
    const ls_kernels *kernels;
    ls_stream *stream;
    const ls_replica_pieces *pieces;
    float *w, *m, *v;
    const ls_replica_scalars *numbers;
} ls_replica_update;
void ls_replica_update_piece(const ls_replica_update *update, int i, const float *gradient);

/* --- an update that needs all ranks (replica_repeat.c) ---------------------------------------- */

/* Whether this run's optimizer makes such updates: LAMB, Muon. */
bool ls_replica_repeats(const ls_run *run);

/* What updates the moments of packed pieces without the other ranks. It must stay where it is until
 * it is closed. */
typedef struct ls_replica_repeat {
    ls_optim *optim;          /* owned */
    void *lists;              /* its work memory */
    ls_replica_update update; /* the one that it makes */
    const float *gradient;    /* what that reads */
} ls_replica_repeat;
ls_status ls_replica_repeat_open(ls_replica_repeat *repeat, const ls_model *model,
                                 const ls_replica_update *update);
void ls_replica_repeat_close(ls_replica_repeat *repeat); /* safe on a zeroed one */

/* Weights, moments, gradient; only the moments are of use afterwards. */
ls_status ls_replica_repeat_moments(ls_replica_repeat *repeat, float *const *arrays,
                                    const ls_replica_scalars *numbers);

/* --- a step that runs (replica_send.c) -------------------------------------------------------- */

enum { LS_REPLICA_AT_A_TIME = LS_MESH_BUCKETS }; /* messages each way */

struct ls_replica_send {
    ls_comm *comm; /* borrowed: the ranks that divide */
    int to, from;  /* of these: this rank's holder, and the owner of its copy */
    bool sends;    /* false: another shard group has the same parts */
    bool separate; /* the copy has memory of its own; false: it lies in the step's arrays */
    bool weights;  /* weights are divided too (ZeRO 3) */
    ls_replica_pieces own, held;    /* held: the copy's */
    float *copy[LS_REPLICA_ARRAYS]; /* owned, where it is separate: packed */
    ls_comm_request requests[2 * LS_REPLICA_AT_A_TIME];
    int n_requests;
    bool begun;     /* the copy is here */
    bool confirmed; /* all copies are where they belong */
    int64_t sent;   /* bytes */
    struct {
        bool on;                       /* the optimizer needs it (replica_repeat.c) */
        bool prepared;                 /* the update that `pending` is of is this step's */
        bool pending;                  /* an update would have to be made again, from: */
        float *old[LS_REPLICA_ARRAYS]; /* owned: the own part before it, and its gradient */
        float *next;                   /* owned: the copy's gradient of the step that runs */
        ls_replica_scalars numbers;    /* of the pending one */
        ls_replica_repeat repeat;      /* of the copy */
    } again;
};

/* --- what is kept (replica_keep.c, replica_store.c) ----------------------------------------------------------- */

/* What ranks report of what they have kept. */
typedef struct ls_replica_entry {
    uint64_t view;                 /* generation of the view that trained it last; 0: nothing */
    uint64_t origin;               /* and the first one since a checkpoint was read */
    ls_reshard_cut cut;            /* how the state is divided: shard is the number of parts */
    int64_t part[LS_REPLICA_HELD]; /* which are here; -1: none */
    int64_t done;                  /* steps that are in them */
    int64_t received;              /* steps of which all losses were received: done, or one more */
    int64_t ready;                 /* the gradient of step `done` is here, and its norm */
    int64_t pending;               /* `done` counts an update that has to be made again */
    ls_step_result last;           /* of the last step whose losses were all received */
} ls_replica_entry;

typedef struct ls_replica_holding {
    ls_replica_entry entry;
    ls_replica_pieces pieces[LS_REPLICA_HELD];
    ls_replica_scalars numbers; /* of the update that `ready` or `pending` is of */
    /* Packed parts of a whole model, owned; of others only the gradients, one piece behind the
     * other. */
    float *parts[LS_REPLICA_HELD][LS_REPLICA_ARRAYS];
    /* LAMB and Muon. ready: the parts one update later, owned; the copy's: weights, gradient. */
    bool repeats;
    float *later[LS_REPLICA_HELD][LS_REPLICA_ARRAYS];
    ls_replica_scalars later_numbers;
    /* The arrays of the step as they were: owned, unless they are those of the next step. */
    void *arrays[3];
    bool reused;
    bool windows;
    int64_t bytes[3];
    ls_replica_pieces weights; /* slices: the elements of weights that are there */
} ls_replica_holding;

extern const ls_replica_entry ls_replica_nothing; /* no part */

static inline bool ls_replica_is_there(const ls_replica_entry *entry)
{
    return entry->part[LS_REPLICA_OWN] >= 0;
}

typedef struct ls_replica_record {
    ls_replica_entry entry[2];
    int64_t met, pad;
} ls_replica_record;

struct ls_replica_store {
    ls_replica_holding holdings[2]; /* the newer one first */
    ls_replica_holding *chosen; /* what this view goes on with; NULL: this rank has none of it */
    ls_replica_entry plan;      /* of what it goes on with; view 0: nothing */
    ls_replica_record *records; /* owned: of all ranks */
    int *sources;               /* owned: the rank that gives each part */
    uint64_t view, origin;      /* of the state that the step has */
};

struct ls_replica_store *ls_replica_store_of(ls_session *session); /* NULL: no memory */

/* How the state passes from one view to the next. */
typedef enum ls_replica_layout {
    LS_REPLICA_WHOLE_MODEL, /* every rank has all of it: one that is behind gets it from another */
    LS_REPLICA_MODEL_PARTS, /* slices of a model: a rank that lacks its part gets it from another */
    LS_REPLICA_ZERO_PARTS   /* a whole model, divided by ZeRO: parts are cut anew for any ranks */
} ls_replica_layout;
ls_replica_layout ls_replica_layout_of(const ls_session *session);

/* Whether an entry can give the state that `best` describes, maybe after an update. */
bool ls_replica_serves(const ls_session *session, const ls_replica_entry *entry,
                       const ls_replica_entry *best);

/* The pieces of weights that a step has, or those that it updates. */
ls_status ls_replica_list(const ls_step *step, bool weights, ls_replica_pieces *pieces);

/* A step that this rank had not ended counts now, with this result. */
void ls_replica_count_step(ls_session *session, int64_t received, const ls_step_result *result);

/* The update that this rank had not received of when it lost the others: its holding is of the step
 * of `best` then (replica_restore.c). */
ls_status ls_replica_catch_up(ls_session *session, ls_replica_holding *holding,
                              const ls_replica_entry *best);

/* Let go of a holding; what is lent stays the step's. */
void ls_replica_holding_close(ls_session *session, ls_replica_holding *holding);

LS_C_END
