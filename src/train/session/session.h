/* session.h -- everything a training process holds between its first and its last step.
 *
 * Of several ranks the first one has the run folder: lock, events, checkpoints, samples. The others
 * read the data that it has prepared and get their state from it.
 *
 * Opening builds the house from the ground: run folder and lock, device, tokenizer, corpus, model,
 * ledger (refused here when it does not fit), training state, checkpoint store, resume. Closing
 * takes it down; a half-open session may be closed. */
#pragma once
#include <signal.h>
#include "base/spill.h"
#include "checkpoint/ckpt.h"
#include "checkpoint/ckpt_writer.h"
#include "cluster/member/heal.h"
#include "data/corpus/corpus.h"
#include "data/corpus/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "model/decode.h"
#include "plan/memory.h"
#include "train/report/event.h"
#include "train/session/run_folder.h"
#include "train/report/profiling.h"
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
    void (*stop_saved)(void);          /* told when what it asked for is saved; may be NULL */
    ls_device *device;                 /* borrowed; NULL: opened as the run says */
    const ls_kernels *kernels;         /* with a device that was given: its rows */
    ls_comm *comm;                     /* the ranks that train together, borrowed; NULL: alone */
    int local_ranks;                   /* with comm: those on this machine; 0: all */
    int local_rank;                    /* the own place among them, which decides the card */
    int64_t profile_steps; /* to look at closely, see train/report/profiling.h; 0: none */
    /* Where ranks that die are replaced (train/replica/recover.h): the view that comm is of, and what
     * closes comm, reports and waits for the next one. NULL: nobody heals. */
    ls_heal_view view;
    ls_status (*rejoin)(void *context, const ls_view_report *report, ls_heal_view *view,
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

typedef struct ls_session {
    ls_session_args args;
    const ls_run *run; /* that of args, then fitted */
    ls_run fitted;     /* the run with what was left to us: size of calls, what is recomputed */
    ls_mesh_choice
        choice; /* mesh: auto (train/session/mesh_agree.h): the first row is the mesh; else empty */
    uint64_t chosen; /* the view in which it was made */
    ls_mesh mesh;
    ls_mesh mp_groups;  /* mesh.tp (train/session/model_groups.h): as if each team was a rank */
    ls_mesh replicas;   /* mesh.tp, mesh.ep: of those that have the same part of the model */
    ls_model whole;     /* the model of which `model` is a part */
    ls_comm *mp_group;  /* owned: the ranks that have it together */
    ls_comm *same_part; /* owned: those with the same part; NULL: there are no others */
    ls_comm *beside[2],
        *mesh_slice; /* owned, with mesh.tp and mesh.ep both: of `team` those with parts
                                 * of the same tensors, those that divide experts; and all ranks of
                                 * the same place in their teams */
    ls_mp_group *tensor,
        *ep_group;   /* what ranks with parts of tensors exchange, and with experts */
    ls_dp *sums;     /* what those with the same part do in a step; NULL: there are no others */
    ls_dp *sharers;  /* what the ranks of `plane` tell each other; NULL: dp has it */
    ls_comm *circle; /* owned: the ranks that share sequences (train/session/cp_group.h), */
    ls_mp_group *cp_group; /* and what they exchange; NULL: this one has whole ones */
    ls_batch_slice share;
    ls_mesh_place *places; /* of all ranks, owned */
    ls_dp *dp;             /* what ranks exchange in a step; NULL: alone */
    struct ls_local_sgd_session
        *local_sgd; /* sync: local (train/session/local_sgd_session.h); NULL: not so */
    struct ls_param_server_session
        *param_server; /* sync: ps (train/session/param_server_session.h); NULL: not so */
    int lock_fd;
    char holder[LS_HF_FOLDER_HOLDER]; /* who had the run folder in the last view */
    bool made_folder;                 /* the run folder was not there before */
    ls_device *device;
    ls_stream *stream;
    ls_stream *side;        /* for copies beside it, where ranks cannot reach the device's memory */
    ls_session_card *cards; /* of all ranks, owned; NULL: no GPU, or alone */
    const ls_kernels *kernels;
    ls_profiling profiling;
    ls_tokenizer *tokenizer;
    ls_corpus *corpus;
    ls_model model;
    ls_ledger ledger;
    ls_packed_weights *packs; /* of the step's weights; NULL: none */
    ls_step *step;
    ls_loss_scaler scaler; /* of its loss */
    char extra[LS_HASH_HEX +
               LS_LOSS_SCALER_TEXT]; /* what a manifest keeps for us: data_hash, scaler */
    ls_pass *sample_pass;            /* NULL: samples go through the step's own pass */
    ls_decode *decode;
    ls_loader *loader;
    int64_t step_number;   /* steps done */
    int64_t total_steps;   /* 0: no limit on steps */
    double loss, val_loss; /* last ones; NaN: none yet */
    ls_step_result last;   /* of the step before */
    double seconds;        /* that the run had trained then, since its ranks were started */
    bool step_there;       /* the step's weights and moments are those of step_number, or more */
    void *kept[3];     /* owned: weights and moments, between two steps (train/replica/recover.h) */
    int64_t kept_step; /* what they are of; -1: nothing is kept */
    struct ls_replica_copy
        *buddy; /* copies of what ranks divide (train/replica/replica_copy.h); NULL: none */
    struct ls_replica_zero *
        hoard; /* what is kept of that between two steps (train/replica/replica_zero.h); NULL: none */
    struct ls_replica_parts
        *estate; /* likewise of a part of a model (train/replica/replica_parts.h); NULL: none */
    const char *repaired; /* whose memory the view goes on with: "replica", "buddy" */
    struct ls_sdc_compare
        *sdc_compare;            /* what ranks compare (train/sdc/sdc_compare.h); NULL: alone */
    struct ls_sdc_replay *again; /* what they make again (train/sdc/sdc_replay.h); NULL: nothing */
    bool distrusted;             /* the state is not to be kept: it may be corrupt */
    int64_t nonfinite_step;      /* that was done again because of it; -1: none */
    int64_t met;                 /* the step after which this rank last did what falls due */

    /* checkpoints */
    ls_ckpt_store *store;
    ls_ckpt_writer *writer;  /* NULL: saved only at the end */
    bool discrete;           /* the device's memory is not the host's */
    bool staged;             /* the state as a whole is in nobody's own memory: apart, or ranks
                              * have parts of it; it is saved and loaded through the snapshot */
    ls_offload offload;      /* where the step's moments lie */
    ls_spill spills[3];      /* offload disk: what of the snapshot lies in files: m, v */
    void *snapshot[3];       /* that the writer reads: w, m, v; apart: host memory */
    ls_ckpt_tensor *tensors; /* weights and moments, owned; bytes point at the live state, or,
                              * staged, at the snapshot */
    int n_tensors;
    ls_ckpt_tensor *shadows; /* the same rows, pointing at the snapshot, owned */
    float *feedbacks; /* owned by the first rank where the exchange owes (error_feedback.h) */
    float *unpaid;    /* owned: owed by an exchange that this run does not have */
    int n_feedbacks;  /* rows of them, behind those of tensors and shadows */
    char (*feedback_kinds)[16];  /* owned: "owed.0" ... */
    ls_str config;               /* the resolved run file */
    char data_hash[LS_HASH_HEX]; /* of the tokens, saved to know them again */
    int64_t newest_step;   /* that had a manifest when resuming; above step_number: damaged ones */
    char mesh_text[48];    /* "dp=2 zero=1", for people who read a checkpoint's manifest */
    int64_t saved_step;    /* newest step known to be saved, -1: none */
    double slowest_save_s; /* of those that this process made; 0: none */
    int64_t writing_step;  /* what the writer is at, -1: nothing */
    ls_ckpt_read loaded;   /* what this rank has read to resume */
    int64_t loaded_most;   /* bytes that the rank which read most has */
    int64_t waited_ns;     /* the steps, for the save that was begun last */
    ls_ckpt_info writing;  /* about it */
    int64_t generation;    /* of this group of ranks among those that have written here */
    struct ls_commit_token
        *commit_token; /* asked before a commit (train/save/commit_token.h); NULL: nobody is */
    ls_stream *copies; /* apart: what the snapshot comes through, beside the step's own work */
    ls_event *updated; /* apart: behind the update whose outcome the copies are of */
    bool copying;      /* apart: it does; the writer begins when it has come */
    struct ls_sharded_save
        *parts; /* what this rank writes, where each writes its own (sharded_save.h); NULL */

    int events_fd;   /* events.jsonl */
    bool events_bad; /* it could not be written; said once */
    ls_str line;
} ls_session;

ls_status ls_session_open(ls_session *session, const ls_session_args *args);
void ls_session_close(ls_session *session);

/* After ls_recover_rejoin(): build anew what depends on who the ranks are. After a failure the
 * session is as it was after ls_recover_rejoin(). */
ls_status ls_session_regroup(ls_session *session);

/* Tell the sink and events.jsonl. */
void ls_session_emit(ls_session *session, const ls_event *event);

LS_C_END
