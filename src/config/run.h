/* run.h -- a run, as the run file describes it: every setting with its final value.
 *
 * Filled by config/runfile.c from defaults, the run file, LINESHAFT_* variables and --set, in this
 * order; the table of options (config/option.c) has one row per field. Strings are owned by the
 * run's arena. Nothing here is mutable after loading. */
#pragma once
#include "base/arena.h"
#include "base/dtype.h"
#include "config/optimizer.h"

LS_C_BEGIN

typedef struct ls_run_list {
    const char **items; /* in the run's arena */
    int count;
} ls_run_list;

typedef struct ls_run_floats {
    double *items; /* in the run's arena */
    int count;
} ls_run_floats;

/* Architectures; config/model_families.h has a row of facts for each. */
typedef enum ls_family {
    LS_FAMILY_GPT2,
    LS_FAMILY_LLAMA,
    LS_FAMILY_MISTRAL,
    LS_FAMILY_QWEN2,
    LS_FAMILY_QWEN3,
    LS_FAMILY_MIXTRAL,
    LS_FAMILY_QWEN3_MOE,
    LS_FAMILY_OLMOE,
    LS_FAMILY_OLMO2,
    LS_FAMILY_PHI3
} ls_family;

/* Which linear layers of a block have a bias. */
typedef enum ls_bias {
    LS_BIAS_AUTO, /* only before the run is resolved: gpt2 all, qwen2 qkv, the others none */
    LS_BIAS_NONE,
    LS_BIAS_QKV,       /* the projections to queries, keys and values */
    LS_BIAS_ATTENTION, /* these and the one back to the stream */
    LS_BIAS_MLP,       /* those of the MLP only */
    LS_BIAS_ALL
} ls_bias;
typedef enum ls_tied { LS_TIED_AUTO, LS_TIED_YES, LS_TIED_NO } ls_tied;
typedef enum ls_rope_scaling {
    LS_ROPE_PLAIN,
    LS_ROPE_LINEAR, /* positions divided by the factor */
    LS_ROPE_LLAMA3  /* slow frequencies divided by the factor, a smooth passage between */
} ls_rope_scaling;
/* What to do with bytes of a text that are not UTF-8. */
typedef enum ls_utf8_policy {
    LS_UTF8_STRICT,  /* an error with file and offset */
    LS_UTF8_REPLACE, /* each becomes U+FFFD */
    LS_UTF8_BYTES    /* kept as they are: the tokenizer works on bytes */
} ls_utf8_policy;
typedef enum ls_lr_schedule {
    LS_LR_SCHEDULE_CONSTANT,
    LS_LR_SCHEDULE_LINEAR,
    LS_LR_SCHEDULE_COSINE,
    LS_LR_SCHEDULE_WSD
} ls_lr_schedule;
/* How the learning rate follows the batch: times batch / base, or its root. */
typedef enum ls_lr_rule { LS_LR_NONE, LS_LR_LINEAR, LS_LR_SQRT } ls_lr_rule;
/* What training makes better: the prediction of tokens, or the preference of one answer over
 * another (kernel/preference.h, in the same order). */
typedef enum ls_objective {
    LS_OBJECTIVE_LM,
    LS_OBJECTIVE_DPO,
    LS_OBJECTIVE_ORPO,
    LS_OBJECTIVE_KTO
} ls_objective;
typedef enum ls_reduce { LS_REDUCE_ORDERED, LS_REDUCE_FAST } ls_reduce;
/* How weights become those that the model reads; see kernel/rounding.h. */
typedef enum ls_round { LS_ROUND_NEAREST, LS_ROUND_STOCHASTIC } ls_round;
typedef enum ls_nonfinite { LS_NONFINITE_STOP, LS_NONFINITE_SKIP } ls_nonfinite;
typedef enum ls_precision {
    LS_PRECISION_FP32,
    LS_PRECISION_TF32,
    LS_PRECISION_BF16,
    LS_PRECISION_FP16,
    LS_PRECISION_FP8
} ls_precision;
/* What the ranks of a pipeline do when; see layout/pp_schedule.h. */
typedef enum ls_stage_plan_schedule {
    LS_PP_GPIPE,
    LS_PP_1F1B,
    LS_PP_INTERLEAVED,
    LS_PP_ZERO_BUBBLE
} ls_stage_plan_schedule;
/* How keys and values reach the ranks that share a sequence. */
typedef enum ls_cp_keys { LS_KEYS_RING, LS_KEYS_GATHER } ls_cp_keys;
typedef enum ls_heal_mode { LS_HEAL_ON, LS_HEAL_OFF } ls_heal_mode;
typedef enum ls_replica_peers {
    LS_REPLICA_PEERS_AUTO,
    LS_REPLICA_PEERS_ON,
    LS_REPLICA_PEERS_OFF
} ls_replica_peers;
enum { LS_RUN_ETCD = 16 }; /* most URLs of etcd */
typedef enum ls_heal_quorum { LS_HEAL_EMBEDDED, LS_HEAL_ETCD } ls_heal_quorum;
/* What backward makes again instead of keeping it; auto: as little as fits into memory. */
typedef enum ls_recompute {
    LS_RECOMPUTE_NONE,
    LS_RECOMPUTE_SELECTIVE,
    LS_RECOMPUTE_FULL,
    LS_RECOMPUTE_AUTO
} ls_recompute;
/* Whether the checkpoint of the lowest validation loss is kept; auto: with train.patience. */
typedef enum ls_keep_best { LS_KEEP_BEST_AUTO, LS_KEEP_BEST_ON, LS_KEEP_BEST_OFF } ls_keep_best;
typedef enum ls_balance_mode { LS_BALANCE_OFF, LS_BALANCE_AUTO } ls_balance_mode;
typedef enum ls_sync { LS_SYNC_ALLREDUCE, LS_SYNC_LOCAL, LS_SYNC_PS } ls_sync;
typedef enum ls_compress {
    LS_COMPRESS_NONE,
    LS_COMPRESS_BF16,
    LS_COMPRESS_INT8,
    LS_COMPRESS_TOPK
} ls_compress;
typedef enum ls_exchange_device {
    LS_EXCHANGE_AUTO,
    LS_EXCHANGE_NCCL,
    LS_EXCHANGE_HOST
} ls_exchange_device;
typedef enum ls_device_kind { LS_DEVICE_AUTO, LS_DEVICE_CPU, LS_DEVICE_CUDA } ls_device_kind;
typedef enum ls_pin { LS_PIN_AUTO, LS_PIN_ON, LS_PIN_OFF } ls_pin;
typedef enum ls_offload { LS_OFFLOAD_NONE, LS_OFFLOAD_HOST, LS_OFFLOAD_DISK } ls_offload;
typedef enum ls_packing { LS_PACKING_AUTO, LS_PACKING_ON, LS_PACKING_OFF } ls_packing;
typedef enum ls_graphs { LS_GRAPHS_AUTO, LS_GRAPHS_ON, LS_GRAPHS_OFF } ls_graphs;
typedef enum ls_isa {
    LS_ISA_AUTO,
    LS_ISA_REFERENCE,
    LS_ISA_GENERIC,
    LS_ISA_AVX2,
    LS_ISA_AVX512
} ls_isa;

#define LS_RUN_AUTO (-1) /* value of an integer option written as "auto" */

/* The network. */
typedef struct ls_run_model {
    const char *import; /* folder of a model to start from; "" for none */
    ls_family family;
    int64_t layers, width, heads, context;
    int64_t positions; /* rows of the table of learned ones; auto: context, or as many as
                                    * import has; 0: they are rotary */
    int64_t kv_heads;  /* auto: as many as heads */
    int64_t head_size; /* auto: width / heads */
    int64_t experts, experts_used; /* MLPs of a block that tokens choose from; 0: one for all */
    bool experts_norm;             /* weights of a token's experts are made to sum to 1 */
    int64_t mlp;   /* inner width of an MLP; auto: 4 width, or 8/3 width for gated ones */
    int64_t vocab; /* auto: the tokenizer's size */
    ls_bias bias;
    ls_tied tied; /* the head's weights are the embedding's */
    double norm_eps;
    double rope_theta;
    ls_rope_scaling rope_scaling;
    double rope_factor, rope_low, rope_high; /* of the scaling; low and high: llama3 only */
    int64_t rope_original;                   /* context before scaling; llama3 only */
    int64_t window;                          /* positions that a token sees; 0: all before it */
    int64_t window_from;                     /* first layer that has the window */
    double dropout;
    double init_std;
} ls_run_model;

/* Small matrices beside frozen ones. */
typedef struct ls_run_lora {
    int64_t rank; /* 0: none */
    double alpha; /* auto: twice the rank; the product counts alpha / rank times */
    ls_run_list targets;
    bool dora; /* also train the lengths of the adapted weights' outputs */
} ls_run_lora;

/* Preference fine-tuning: train.objective dpo, orpo or kto. */
typedef struct ls_run_preference {
    double beta, label_smoothing;
    double desirable_weight, undesirable_weight; /* kto */
} ls_run_preference;

typedef struct ls_run {
    const char *name; /* default: the run file's name without .yaml */
    const char *out;  /* run folder; default runs/<name> */
    ls_run_model model;
    struct {
        ls_run_list text;      /* files, patterns, or "builtin:stories"; txt, jsonl, .gz, .zst */
        ls_run_list shards;    /* token shards (.lst) instead of text */
        ls_run_floats weights; /* mixture, one per entry of text or shards; empty: by size */
        const char *tokenizer; /* "bytes", or a folder with a tokenizer.json */
        const char *field;     /* field of a jsonl line that holds the text */
        const char *chat_template; /* data.template: "none", "auto", a built-in one, or a file */
        ls_utf8_policy utf8;
        bool skip_bad;     /* warn of JSON lines that cannot be used, and go on */
        double validation; /* share of tokens at the end of each source kept for validation */
        bool isolate;      /* tokens attend only inside their document */
        bool shuffle;
    } data;
    struct {
        int64_t sequences; /* global batch */
        int64_t leaf;      /* sequences of one leaf; auto: the largest divisor of sequences <= 8 */
        int64_t group;     /* leaves per forward/backward call; auto */
        int64_t ramp;      /* steps in which the batch grows; 0: it does not (config/ramp.h) */
        int64_t ramp_from; /* sequences of the first step of a ramp; auto: there is none */
    } batch;
    struct {
        ls_objective objective;
        int64_t steps;         /* stop after this many; 0: no such limit */
        int64_t tokens;        /* stop after this many tokens; 0: no such limit */
        double epochs;         /* stop after this many passes over the text; 0: no such limit */
        double seconds;        /* stop after this much training time; 0: no such limit */
        double target_loss;    /* stop when validation loss is at or below; 0: no such limit */
        int64_t patience;      /* stop after this many evaluations without a better one; 0: never */
        double lr, min_lr;     /* min_lr: where the schedule ends, default a tenth of lr */
        ls_lr_rule lr_rule;    /* what both are multiplied by, see optim/lr_schedule.h */
        int64_t lr_base_batch; /* sequences for which they were chosen; 0: no rule */
        ls_lr_schedule schedule;
        int64_t warmup;                        /* steps */
        int64_t warmup_written, decay_written; /* that do not fit into the run; 0: they do */
        int64_t decay; /* wsd: steps of the final decay; auto: a fifth of steps */
        ls_optimizer optimizer;
        double beta1, beta2, eps, weight_decay;
        double momentum;             /* muon: of matrices; sgd */
        bool nesterov;               /* sgd: step along the sum as it will be */
        double adamw_lr;             /* muon: of what it leaves to AdamW; 0: lr */
        double clip;                 /* 0: off */
        double balance_loss, z_loss; /* of routers, times a token's own loss */
        double neftune;              /* noise on embeddings; 0: none */
        int64_t seed;
        ls_reduce reduce;
        ls_round rounding;
        ls_nonfinite nonfinite;
        int64_t loss_scale, loss_scale_interval; /* fp16: the first, and steps until it grows */
        ls_recompute recompute;
        int64_t recompute_blocks; /* this many, from the first; auto: all */
        ls_run_list freeze;       /* patterns of parameter names that stay as they are */
    } train;
    ls_run_lora lora;
    ls_run_preference preference;
    ls_precision precision;
    struct {
        int64_t dp, tp, pp, cp, ep, zero; /* dp may be auto */
        ls_stage_plan_schedule schedule;  /* of a pipeline, */
        int64_t chunks;                   /* and the chunks of layers that each of its ranks has */
        bool sp;                          /* tp: rows between the layers are divided too */
        ls_cp_keys keys;                  /* cp */
        const char *shard; /* world, node or a number: the ranks that zero divides among */
        ls_balance_mode balance;
        ls_run_floats weights; /* shares of the batch, one per rank; empty: equal ones */
        int64_t bucket;        /* bytes, or auto */
        bool automatic;        /* mesh: auto: what is not set is chosen when the ranks are known */
    } mesh;
    struct {
        ls_compress compress; /* of gradients between nodes */
        double topk;          /* fraction that topk sends */
        ls_exchange_device device;
    } exchange;
    ls_sync sync;
    struct {
        int64_t steps; /* between two exchanges of replicas */
        int64_t delay; /* steps from the beginning of an exchange to its end */
        double lr, momentum;
        ls_compress compress;
    } local; /* sync: local */
    struct {
        int64_t servers;   /* ranks that keep weights; may be auto */
        int64_t staleness; /* steps that a worker may be ahead; -1: any */
        int64_t meet;      /* steps between two meetings of workers */
        bool sparse;       /* only used rows of an embedding are sent */
    } ps;                  /* sync: ps */
    struct {
        int64_t every;      /* steps; 0: not by steps */
        double minutes;     /* since the last save; 0: not by time. Both 0: only at the end */
        int64_t keep;       /* newest checkpoints kept */
        int64_t keep_every; /* and those of steps that are multiples of this; 0: none */
        ls_keep_best best;
        const char *mirror; /* a second store; "": none */
        const char *key;    /* file that signs; "": none */
        bool take_unsigned;
        int64_t grace; /* seconds from a request to stop to the end; 0: as long as it takes */
    } checkpoint;
    struct {
        ls_heal_mode mode;
        int64_t restarts;         /* of a rank that dies, before the others go on without it */
        int64_t min_ranks;        /* to go on with */
        int64_t wait;             /* seconds */
        int64_t min_nodes;        /* to go on with */
        int64_t max_nodes;        /* to train on; 0: all that come */
        double grow_wait;         /* seconds between two views that only take newcomers in */
        int64_t grow_steps;       /* in a view before newcomers are taken in */
        int64_t quarantine;       /* crashes of a node within a day that exclude it; 0: none */
        double cool_down;         /* seconds, for how long; twice as long each time */
        double heartbeat;         /* seconds between two signs of life of an agent */
        double suspect;           /* seconds of silence that are logged */
        double dead;              /* seconds of silence after which a node is lost */
        ls_replica_peers buddies; /* copies of what ranks divide */
        int64_t compare; /* steps between two comparisons of what ranks have in common; 0: none */
        int64_t replay;  /* steps between two leaves that another rank makes again; 0: none */
        ls_heal_quorum quorum;
        ls_run_list etcd; /* URLs */
    } heal;
    struct {
        int64_t every;      /* steps; 0: only at the end */
        int64_t sequences;  /* validation sequences per evaluation; auto: all, at most 256 */
        const char *sample; /* prompt of a text sample, "" for none */
        int64_t sample_tokens;
    } eval;
    struct {
        ls_device_kind kind;
        int64_t threads; /* auto: the cores this process may use */
        ls_pin pin;
        ls_isa isa;
        ls_packing pack;
        ls_offload offload;
        const char *offload_to; /* folder of files for disk; auto: the run folder */
        ls_graphs graphs;
    } device;

    ls_arena arena;                /* owns all strings above */
    const char *path;              /* of the run file as given; "<embedded>" for the default */
    struct ls_run_origin *origins; /* one per option row, see config/explain.h */
    const char **sections;         /* where each section of the table stands; NULL: nowhere */
} ls_run;

/* Whether the checkpoint of the lowest validation loss is kept. */
static inline bool ls_run_keeps_best(const ls_run *run)
{
    return run->checkpoint.best == LS_KEEP_BEST_ON ||
           (run->checkpoint.best == LS_KEEP_BEST_AUTO && run->train.patience > 0);
}

/* The type of activations and of the weights that kernels read. Other than fp32: there is a copy of
 * the weights of this type. tf32 is fp32 in memory, and fp8 is a type inside of products of bf16. */
static inline ls_dtype ls_run_compute_type(const ls_run *run)
{
    bool wide = run->precision == LS_PRECISION_FP32 || run->precision == LS_PRECISION_TF32;

    return wide ? LS_F32 : run->precision == LS_PRECISION_FP16 ? LS_F16 : LS_BF16;
}

/* Whether the run saves before its end. */
static inline bool ls_run_saves(const ls_run *run)
{
    return run->checkpoint.every > 0 || run->checkpoint.minutes > 0 || ls_run_keeps_best(run);
}

LS_C_END
