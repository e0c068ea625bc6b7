/* event.h -- what a training run reports, as it happens.
 *
 * The loop emits; the command decides whether a person sees a progress bar or a program reads JSON.
 * The JSON lines are a contract (docs/reference/events.md); every line also goes to events.jsonl in
 * the run folder. Strings are borrowed for the duration of the call. */
#pragma once
#include "base/str.h"
#include "config/run.h"
#include "plan/mesh_choice.h"
#include "plan/ledger.h"
#include "train/step/step.h"

LS_C_BEGIN

typedef enum ls_event_kind {
    LS_EVENT_MESH,
    LS_EVENT_START,
    LS_EVENT_RANK,
    LS_EVENT_STEP,
    LS_EVENT_EVAL,
    LS_EVENT_SAMPLE,
    LS_EVENT_CHECKPOINT,
    LS_EVENT_INCIDENT,
    LS_EVENT_BALANCE,
    LS_EVENT_PROFILE,
    LS_EVENT_SUMMARY
} ls_event_kind;

/* mesh: auto: the meshes that there are, the one that was taken first. */
typedef struct ls_event_mesh {
    const ls_mesh_choice *choice;
} ls_event_mesh;

typedef struct ls_event_recompute {
    const char *level;  /* none, selective, full */
    int64_t blocks, of; /* in the first `blocks`, of `of` */
    bool chosen;        /* train.recompute is auto */
} ls_event_recompute;

typedef struct ls_event_start {
    const char *name, *out, *family, *device, *kernels, *reduce, *sync;
    int64_t trained; /* of the parameters: fewer with LoRA or train.freeze */
    int64_t parameters, train_tokens, validation_tokens, vocab;
    int64_t sequences, leaf, group, context;
    double flops_per_token; /* of the model, forward and backward */
    ls_event_recompute recompute;
    const char *optimizer;
    double lr;        /* at its highest, lr_factor included */
    double lr_factor; /* by train.lr_rule; 1: none */
    int64_t warmup;
    int64_t warmup_written; /* that does not fit into the run; 0: it does */
    int ranks, zero, shard, nodes;
    int pp;                       /* stages of a pipeline; 1: there is none */
    int tp;                       /* ranks of a tensor-parallel group; 1: there is none */
    int cp;                       /* ranks that share a sequence; 1: none do */
    const char *schedule;         /* its schedule, */
    int64_t chunks;               /* and the chunks of layers of each rank */
    int cards;                    /* GPUs that all ranks use together; 0: none */
    const char *compress;         /* between nodes: none, bf16, int8, topk */
    const char *collectives;      /* of the device's memory: "nccl", "host"; NULL: not asked for */
    const char *collectives_why;  /* why these */
    const char *collectives_axes; /* "dp, tp": of the mesh, those whose ranks exchange by them */
    const char *unused_compress;  /* asked for, but there is one node; NULL: no such thing */
    int64_t first_step;           /* steps already done when this process began */
    int64_t loaded_bytes;         /* that the first rank read of their checkpoint, */
    double loaded_s;              /* in this time; 0: it was in memory */
    int64_t loaded_most;          /* bytes that the rank which read most of it did */
    const char *overridden;       /* what --override changed in the run: "" nothing */
    int64_t total_steps;          /* 0: no limit on steps */
    double epochs;                /* that they are, as train.epochs says; 0: it does not */
    int64_t windows;              /* sequences of an epoch */
    const ls_ledger *ledger;
    const ls_run *run; /* what it sets, as far as that is not the default */
} ls_event_start;

typedef struct ls_event_rank {
    int rank, pid;
    const char *host;
    int card;           /* where several ranks use GPUs: the number of its own; else -1 */
    const char *bus_id; /* and its PCI address */
} ls_event_rank;

/* What preferences are learned from a batch, or are right in validation (kernel/preference.h): means
 * over its samples. */
typedef struct ls_event_preference {
    ls_preference_kind kind;           /* LS_PREFERENCE_NONE: there are none */
    double chosen, rejected;           /* rewards; kto: of desirable and undesirable answers */
    double accuracy;                   /* share of pairs whose chosen answer has more; not kto */
    double logp_chosen, logp_rejected; /* log-probabilities of answers */
    double kl;                         /* kto */
} ls_event_preference;

/* From the sums of the numbers of n samples. */
ls_event_preference ls_event_preference_of(ls_preference_kind kind, const double *sums, double n);

typedef struct ls_event_step {
    int64_t step; /* steps done, this one included */
    int64_t total_steps;
    double loss, lr, grad_norm, tokens_per_s;
    bool skipped;                   /* not finite, and train.nonfinite is skip; or an overflow */
    double loss_scale;              /* that it was made with; 0: there is none */
    int64_t overflows;              /* steps of the run that were skipped for it */
    int64_t tokens;                 /* seen since step 0 */
    int64_t sequences, step_tokens; /* of this step */
    int64_t tokens_left;            /* until total_steps */
    double epoch;                   /* passes over the training text, with this step */
    ls_event_preference preference;
    const ls_step_clock *clock;
} ls_event_step;

typedef struct ls_event_eval {
    int64_t step, sequences;
    double val_loss;
    int64_t best_step;  /* of the lowest so far; -1: it is not looked for */
    int64_t since_best; /* evaluations since then */
    int64_t patience;   /* after this many the run ends; 0: never */
    ls_event_preference preference;
} ls_event_eval;

typedef struct ls_event_sample {
    int64_t step;
    const char *prompt, *text;
    size_t text_len;
} ls_event_sample;

typedef struct ls_event_checkpoint {
    int64_t step, bytes_written, bytes_reused;
    double seconds;   /* hashing and writing, beside the steps; with several ranks, all of it */
    double waited_ms; /* what the steps waited for it */
    const char *path;
    int writers;        /* ranks that had a part in it */
    int64_t most_bytes; /* the largest part, written or reused */
} ls_event_checkpoint;

/* GB/s that were written; 0: nothing was, or in no time. */
static inline double ls_event_rate(const ls_event_checkpoint *saved)
{
    return saved->seconds > 0 ? (double)saved->bytes_written / 1e9 / saved->seconds : 0;
}

/* How a run went on that had lost ranks. */
typedef struct ls_event_recovery {
    uint64_t generation; /* from now on */
    int ranks;           /* likewise */
    int restarted, lost; /* ranks that were started again, and that were given up */
    int joined;          /* ranks that came */
    const char *source;  /* where the state comes from: "memory", "checkpoint", "start" */
    const char *from;    /* whose: "replica", "buddy", "disk", "start"; of a coordinator: "log" */
    int64_t redone;      /* steps that are done again, the one that was cut off not counted */
    double detection_ms; /* from the loss until it was known which ranks were lost */
    double seconds;      /* from the loss to here */
} ls_event_recovery;

typedef struct ls_event_incident {
    int64_t step;
    const char *kind;   /* "nonfinite", "checkpoint", "resume", "straggler", "gpu", "lost",
                         * "joined", "corrupt", "coordinator" */
    const char *action; /* what was done about it */
    const char *text;
    const ls_event_recovery *recovery; /* the last four kinds only */
} ls_event_incident;

/* What one rank has of a batch, and how long it needs for a leaf. */
typedef struct ls_event_slice {
    const char *host;
    int64_t sequences;
    double ms_per_leaf; /* 0: not known yet */
    double ratio;       /* of that to the median of all ranks */
} ls_event_slice;

/* How ranks share a whole batch. */
typedef struct ls_event_balance {
    int64_t step, from_step; /* found after step, holds from the other on; both count from 1 */
    int ranks;
    int64_t sequences;            /* of a whole batch */
    const ls_event_slice *slices; /* of each rank */
} ls_event_balance;

typedef struct ls_event_profile {
    int64_t step;    /* last one of the profile */
    int64_t steps;   /* in it */
    int64_t dropped; /* spans that the trace lacks */
    double step_ms;
    const char *path;  /* of the folder with trace.json, table.txt, table.json */
    const char *table; /* for people */
} ls_event_profile;

typedef struct ls_event_summary {
    int64_t steps, tokens; /* done in all, earlier processes included */
    int64_t steps_here;    /* by this process */
    double seconds;        /* of this process's training */
    double tokens_per_s;   /* median after the first ten steps; with fewer steps the mean */
    bool is_mean;          /* it is */
    double loss, val_loss, mfu, peak_flops;
    int64_t peak_bytes, ledger_bytes;
    double start_to_first_step_s;
    double energy_j, power_w; /* of the GPU while training, and its mean; NaN: not known */
    double joules_per_token;
    const ls_event_balance *balance;    /* NULL: alone */
    int64_t sent_bytes, received_bytes; /* to and from other machines while training, by the first
                                         * rank, headers included */
    int64_t exchanges, exchange_bytes;  /* of workers (sync: local): how many, and what the first
                                         * rank sent to others in them; 0: none */
    int64_t pushes, push_bytes; /* sync: ps: of the first rank, and what it sent to others for them,
                                 * for pulls and as a server; 0: none */
    int64_t ahead;              /* steps that its server saw a rank ahead of another, at most */
    int64_t buddy_bytes;        /* that the first rank sent to its holder since ranks were last
                                 * lost; 0: it has none */
    const char *weights_hash;
    const char *best; /* path of the best checkpoint; NULL: none is kept */
    int64_t best_step;
    double best_loss;       /* its validation loss */
    int64_t patience;       /* train.patience */
    const char *stopped_by; /* "steps", "tokens", "epochs", "seconds", "target_loss", "patience",
                             * "interrupt", "done" */
} ls_event_summary;

typedef struct ls_event {
    ls_event_kind kind;
    int64_t time_ms; /* since 1970; ls_session_emit() sets it. 0: left out */
    union {
        ls_event_mesh mesh;
        ls_event_start start;
        ls_event_rank rank;
        ls_event_step step;
        ls_event_eval eval;
        ls_event_sample sample;
        ls_event_checkpoint checkpoint;
        ls_event_incident incident;
        ls_event_balance balance;
        ls_event_profile profile;
        ls_event_summary summary;
    };
} ls_event;

typedef void (*ls_event_sink)(void *context, const ls_event *event);

/* One line of JSON, without the newline, appended. */
void ls_event_json(const ls_event *event, ls_str *line_out);

LS_C_END
