/* session.h -- everything a training process holds between its first and its last step.
 *
 * The session is a struct of small structs. Each belongs to one file, which builds it and takes it
 * down; other rooms read it. train/session_open.h builds the whole in order, train/loop.h trains
 * with it, and train/replica/recover.h keeps a part of it when other ranks are lost.
 *
 * Of several ranks the first one has the run folder: lock, events, checkpoints, samples. The others
 * read the data that it has prepared and get their state from it, or from their own parts of a
 * checkpoint. */
#pragma once
#include <signal.h>
#include "base/spill.h"
#include "checkpoint/ckpt.h"
#include "checkpoint/ckpt_writer.h"
#include "cluster/member/worker_channel.h"
#include "comm/device/device_comm.h"
#include "data/corpus/corpus.h"
#include "data/corpus/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "model/decode.h"
#include "plan/memory.h"
#include "train/session/event.h"
#include "train/session/run_folder.h"
#include "optim/loss_scaler.h"
#include "train/session/batch_slice.h"
#include "train/step/step.h"

LS_C_BEGIN

typedef struct ls_session_args {
    const ls_run *run;  /* borrowed */
    bool fresh;         /* put earlier checkpoints aside instead of resuming */
    ls_event_sink sink; /* may be NULL */
    void *sink_context;
    const volatile sig_atomic_t *stop; /* not 0: finish the step, save, end; may be NULL */
    int64_t (*stop_by)(void);          /* until then, monotonic; 0 from it: no limit; NULL: none */
    void (*stop_saved)(void);          /* called when what it asked for is saved; may be NULL */
    ls_device *device;                 /* borrowed; NULL: opened as the run says */
    const ls_kernels *kernels;         /* with a device that was given: its rows */
    ls_comm *comm;                     /* the ranks that train together, borrowed; NULL: one rank */
    int local_ranks;                   /* with comm: those on this machine; 0: all */
    int local_rank;                    /* the own place among them, which decides the card */
    int64_t profile_steps; /* to look at closely, see train/report/profiling.h; 0: none */
    /* Where ranks that die are replaced (train/replica/recover.h): the view that comm is of, and what
     * closes comm, reports and waits for the next one. NULL: ranks are not replaced. */
    ls_worker_channel_view view;
    ls_status (*rejoin)(void *context, const ls_view_report *report, ls_worker_channel_view *view,
                        ls_comm **comm);
    void *rejoin_context;
} ls_session_args;

/* Which GPU a rank uses. */
typedef struct ls_session_card {
    char host[64], bus_id[24];
    int card, cards; /* as in ls_device_info */
    int64_t free_bytes;
} ls_session_card;

/* Whether two ranks use one GPU. */
static inline bool ls_session_same_card(const ls_session_card *a, const ls_session_card *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->bus_id, b->bus_id) == 0 && a->card == b->card;
}

/* What a session holds, one struct for each file that builds it and takes it down. */

/* The run folder, which the first rank alone has (run_folder.c). */
typedef struct ls_session_folder {
    int lock_fd;                       /* run.lock; -1: not held */
    char holder[LS_RUN_FOLDER_HOLDER]; /* the process that had the lock in the last view */
    bool made;                         /* the folder was not there before */
    int events_fd;                     /* events.jsonl; -1: not open */
    bool events_bad;                   /* it could not be written: a warning said so, once */
    int64_t lost_step; /* the last one of an attempt that has no checkpoint; 0: none */
    ls_str line;       /* the event that is being written */
    ls_str config;     /* the resolved run file */
} ls_session_folder;

/* GPUs, and what goes beside the stream of the step (session_device.c). */
enum { LS_SESSION_AXES = 24 };
typedef struct ls_session_gpu {
    ls_stream *side;        /* for copies, where ranks cannot reach the device's memory */
    ls_session_card *cards; /* of all ranks, owned; NULL: no GPU, or one rank */
    ls_device_comm_choice collectives; /* of device memory; provider NULL: not chosen */
    char axes[LS_SESSION_AXES];        /* "dp, tp": the axes that they are for */
} ls_session_gpu;

/* mesh: auto (mesh_agree.c): the first row is the mesh that the run has; else empty. */
typedef struct ls_session_auto_mesh {
    ls_mesh_choice choice;
    uint64_t view; /* in which it was made */
} ls_session_auto_mesh;

/* Ranks that hold one model between them (mesh.tp, mesh.ep, mesh.cp) and ranks that hold the same
 * part of it (model_groups_open.c, cp_group.c). Owned; NULL: there is no such group, or it has one
 * rank. */
typedef struct ls_session_groups {
    ls_mesh tp_slice;          /* the mesh whose ranks are the tensor-parallel groups */
    ls_mesh replicas;          /* the mesh of ranks that have the same part of the model */
    ls_model whole;            /* the model of which the session's is a part; no params: the same */
    ls_comm *model_comm;       /* the ranks that hold one model: mesh.tp x mesh.ep of them */
    ls_comm *tp_comm;          /* with tp and ep both: of model_comm those that share tensors */
    ls_comm *ep_comm;          /* likewise those that divide the experts */
    ls_comm *slice_comm;       /* likewise all ranks of the same place in their tp groups */
    ls_comm *replica_comm;     /* the ranks that have the same part */
    ls_comm *cp_comm;          /* the ranks that share every sequence */
    ls_mp_group *tp, *ep, *cp; /* what the model exchanges with them (parallel/mp_group.h) */
    ls_dp *replica_dp;         /* sums among the ranks of replica_comm */
    ls_dp *slice_dp;           /* numbers among the ranks of slice_comm; NULL: the session's dp */
} ls_session_groups;

/* What is trained on (session_data.c, batch_slice.c). */
typedef struct ls_session_data {
    ls_tokenizer *tokenizer;
    ls_corpus *corpus;
    ls_loader *loader;
    ls_batch_slice slice;   /* of each batch, this rank's part */
    char hash[LS_HASH_HEX]; /* of the tokens; saved, so that a resumed run knows them again */
    int64_t windows;        /* samples of an epoch */
    ls_preference_reference *references; /* owned: of all pairs; NULL: there are none */
    ls_preference_reference *of_batch;   /* owned: of the sequences of this rank in a batch */
} ls_session_data;

/* What writes text samples (report/eval.c). */
typedef struct ls_session_samples {
    ls_pass *pass; /* NULL: samples go through the step's own pass */
    ls_decode *decode;
} ls_session_samples;

/* The lowest validation loss so far (save/best_loss.c). */
typedef struct ls_session_best {
    int64_t step;   /* after which it was measured; -1: none yet */
    double loss;    /* of it */
    int64_t since;  /* evaluations without a lower one */
    int64_t judged; /* the last step that counted; -1: none */
} ls_session_best;

/* How far the run is, beside step_number (loop.c). */
typedef struct ls_session_progress {
    int64_t total_steps;   /* 0: no limit on steps */
    double loss, val_loss; /* last ones; NaN: none yet */
    ls_session_best best;
    ls_step_result last;    /* of the step before */
    double seconds;         /* that the run had trained then, since its ranks were started */
    int64_t nonfinite_step; /* that was done again because of it; -1: none */
    bool positions_run_on; /* learned ones count from the window's beginning, not the document's, as
                             * an older version began this run (save/save_resume.c) */
    int64_t met;           /* the step after which this rank last did what falls due */
} ls_session_progress;

/* What lets a view go on with the state that ranks have in memory (train/replica). */
typedef struct ls_session_recovery {
    bool has_state; /* the step's weights and moments are those of step_number, or more */
    struct ls_replica_store *store; /* the state between two steps (replica_store.h); NULL: none */
    const char *source;             /* whose memory the view goes on with: "replica", "buddy" */
} ls_session_recovery;

/* Checks for silent data corruption (train/sdc). */
typedef struct ls_session_sdc {
    struct ls_sdc_compare *compare; /* ranks compare hashes; NULL: one rank */
    struct ls_sdc_replay *replay;   /* a rank computes its gradient again; NULL: it does not */
    bool distrusted;                /* the state may be corrupt and is not kept */
} ls_session_sdc;

/* Checkpoints: the store, its writer, and the newest save (save/save.c). */
typedef struct ls_session_save {
    ls_ckpt_store *store;
    ls_ckpt_writer *writer;          /* NULL: saved only at the end */
    struct ls_sharded_save *sharded; /* each rank writes its part; NULL: the first writes all */
    struct ls_commit_token *commit_token; /* asked before a commit; NULL: no etcd to ask */
    char extra[512];      /* kept in manifests: data.hash, what learned positions count
                           * from, the best loss, the scaler */
    ls_str lineage;       /* kept in manifests: where the weights come from, what was overridden */
    ls_str overridden;    /* by this process, of the settings of its checkpoint; "": nothing */
    int64_t newest_step;  /* that had a manifest when resuming; above step_number: damaged ones */
    int64_t saved_step;   /* newest step known to be saved, -1: none */
    double slowest_s;     /* of the saves that this process made; 0: none */
    int64_t writing_step; /* what the writer is at, -1: nothing */
    ls_ckpt_info writing; /* about it */
    int64_t waited_ns;    /* by the steps, for the save that was begun last */
    int64_t generation;   /* of this group of ranks among those that have written here */
} ls_session_save;

/* The state that the writer reads, and how it gets there (save/save_snapshot.c). */
typedef struct ls_session_snapshot {
    bool staged;     /* the whole state is in no rank's own memory, because it is on a GPU or ranks
                        * have parts: it is saved and loaded through the snapshot */
    void *arrays[3]; /* weights, m, v: host memory, or, with a CPU, memory of the device */
    ls_spill spills[3];        /* offload disk: what of the snapshot lies in files: m, v */
    ls_ckpt_tensor *live_rows; /* weights and moments, owned; bytes point at the live state, or,
                                * staged, at the snapshot */
    ls_ckpt_tensor *rows;      /* the same rows, pointing at the snapshot, owned */
    int n_rows;
    ls_stream *stream; /* GPU: what it comes through, beside the step's own work */
    ls_event *updated; /* GPU: behind the update whose outcome is copied */
    bool copying;      /* GPU: it comes now; the writer begins when it is there */
} ls_session_snapshot;

/* Residuals of a compressed exchange in checkpoints (save/error_feedback.c). */
typedef struct ls_session_feedback {
    float *vectors;    /* owned by the first rank, where the exchange compresses */
    float *unpaid;     /* owned: a checkpoint's, where this run's exchange does not compress */
    int n_rows;        /* of them, behind those of the snapshot */
    char (*kinds)[16]; /* owned: "owed.0" ... */
} ls_session_feedback;

/* What was read to resume (save/save.c). */
typedef struct ls_session_loaded {
    ls_ckpt_read read;  /* by this rank */
    int64_t most_bytes; /* by the rank that read most */
} ls_session_loaded;

/* Some steps looked at closely, `train --profile N` (report/profiling.c). */
typedef struct ls_session_profiling {
    struct ls_profile *profile; /* owned; NULL: none asked for */
    bool planned;               /* the next two are known */
    int64_t warm, left;         /* steps until it begins, then until it ends */
    bool told;                  /* written and reported, or given up */
} ls_session_profiling;

/* How ranks combine what they learn (sync.h). */
typedef struct ls_session_sync {
    const struct ls_sync_mode *mode;              /* the row of this run's `sync:` */
    struct ls_local_sgd_session *local_sgd;       /* sync: local (sync/local_sgd_session.c) */
    struct ls_param_server_session *param_server; /* sync: ps (sync/param_server_session.c) */
} ls_session_sync;

typedef struct ls_session {
    ls_session_args args;
    const ls_run *run; /* that of args, then fitted */
    ls_run fitted; /* the run with what its file leaves open: size of calls, what is recomputed */

    /* This rank among the others. */
    ls_mesh mesh;
    ls_mesh_place *places; /* of all ranks, owned */
    char mesh_text[48];    /* "dp=2 zero=1", in checkpoints' manifests, for people */
    ls_session_auto_mesh auto_mesh;
    ls_session_groups groups;
    ls_dp *dp; /* what ranks exchange in a step; NULL: one rank */
    ls_session_sync sync;

    /* Where it computes. */
    ls_device *device;
    bool discrete;      /* the device's memory is not the host's */
    ls_offload offload; /* where the step's moments lie */
    ls_stream *stream;
    const ls_kernels *kernels;
    ls_session_gpu gpu;

    /* What it trains, on what. */
    ls_model model; /* this rank's part of it */
    ls_ledger ledger;
    ls_packed_weights *packs; /* of the step's weights; NULL: none */
    ls_step *step;
    ls_loss_scaler scaler; /* of its loss */
    int64_t step_number;   /* steps done */
    ls_session_progress progress;
    ls_session_data data;
    ls_session_samples samples;

    /* What lasts. */
    ls_session_folder folder;
    ls_session_save save;
    ls_session_snapshot snapshot;
    ls_session_feedback feedback;
    ls_session_loaded loaded;
    ls_session_recovery recovery;
    ls_session_sdc sdc;
    ls_session_profiling profiling;
} ls_session;

/* Give the event to the sink, and to events.jsonl. On ranks other than the first: nothing. */
void ls_session_emit(ls_session *session, const ls_event *event);

/* The same of an incident: something broke, or changed, and training goes on (event.h: kind, action). */
void ls_session_incident(ls_session *session, int64_t step, const char *kind, const char *action,
                         const char *text);

LS_C_END
