/* option.c -- the table of options (option_find.c looks things up in it).
 *
 * Everything a user may write in a run file is one row here. A new setting is a field in run.h and
 * a row; parser, documentation, schema and completion follow by themselves. Defaults are written as
 * text and go through the same parser as a user's value, so a default cannot be out of range
 * without a test noticing. Sections follow each other as in the reference. */
#include "config/option.h"
#include "config/model_families.h"

#include <math.h>

const ls_option_section ls_option_sections[] = {
    {"model",
     "The network: its family and its size. With model.import, no other key must be given."},
    {"data", "What the model reads."},
    {"batch", "How many sequences make one step, and how they are divided for computing."},
    {"train", "How long the model trains, and how its weights are updated."},
    {"preference", "With train.objective dpo, orpo or kto: how preferences are learned."},
    {"lora", "Fine-tuning with small matrices beside frozen weights."},
    {"mesh", "How processes divide the work and the model."},
    {"exchange", "How gradients are sent between processes."},
    {"local", "With sync: local: how local-SGD workers agree on weights."},
    {"ps", "With sync: ps: servers that keep the weights, and how far workers may run ahead."},
    {"checkpoint", "When the state of the run is saved."},
    {"heal", "What happens when a rank or a machine is lost, or a machine joins."},
    {"eval", "How the model is judged on text that it does not train on."},
    {"device", "What the run computes on."},
};
const int ls_option_section_count = (int)LS_COUNT(ls_option_sections);

/* Names and sentences of the optimizers, from their own table. */
#define OPTIMIZER_NAME(id, name, doc, ...) #name,
#define OPTIMIZER_DOC(id, name, doc, ...) " " #name ": " doc "."

/* A row is KIND(field of ls_run, FIXED or FREE, default, sentences, ...); kinds with numbers have
 * the least and the most of them before the sentences. The key is the path of the field; where it
 * is not, the row is KEYED("key", field, KIND, ...). Behind the sentences stand, where needed, other
 * members of ls_option: .names, .unit, .when_auto, .above, .below, .limit. */
#define KEYED(key_, field, kind, fixed_, preset_, ...)                                             \
    {                                                                                              \
        .key = key_, .type = LS_OPTION_##kind, .offset = offsetof(ls_run, field), .fixed = fixed_, \
        .preset = preset_, .doc = __VA_ARGS__                                                      \
    }
#define RANGED(field, kind, fixed, preset, low, high, ...) \
    KEYED(#field, field, kind, fixed, preset, __VA_ARGS__, .least = low, .most = high)
#define INT(field, ...) RANGED(field, INT, __VA_ARGS__)
#define FLOAT(field, ...) RANGED(field, FLOAT, __VA_ARGS__)
#define FLOATS(field, ...) RANGED(field, FLOATS, __VA_ARGS__)
#define DURATION(field, ...) RANGED(field, DURATION, __VA_ARGS__)
#define BOOL(field, ...) KEYED(#field, field, BOOL, __VA_ARGS__)
#define ENUM(field, ...) KEYED(#field, field, ENUM, __VA_ARGS__)
#define STRING(field, ...) KEYED(#field, field, STRING, __VA_ARGS__)
#define STRINGS(field, ...) KEYED(#field, field, STRINGS, __VA_ARGS__)

/* What a run that resumes may have instead. */
#define FREE LS_OPTION_FREE
#define FIXED LS_OPTION_FIXED
#define ON_WORD LS_OPTION_ON_WORD /* with --override */
#define REQUIRED NULL             /* in place of a default */

const ls_option ls_options[] = {
    STRING(name, FREE, "auto", "Name of the run; it becomes the name of the run folder.",
           .when_auto = "the run file's name without .yaml"),
    STRING(
        out, FREE, "auto",
        "Run folder: logs and checkpoints go there. A relative path starts at the current folder.",
        .when_auto = "runs/ and the name of the run"),

    STRING(
        model.import, FIXED, "",
        "Model to start from: a Hugging Face folder, one made by `lineshaft import` or export, or "
        "a run of lineshaft: its folder, \"best\" in it, or a step-*.json of it. Its "
        "configuration gives all other keys of this section; only context, positions, dropout "
        "and init_std may differ."),
    ENUM(model.family, FIXED, "gpt2",
         "Architecture of the network; the names are those of Hugging Face configurations. gpt2: "
         "learned positions, LayerNorm, GELU; the others: rotary positions, RMSNorm, gated SiLU; "
         "qwen3 also normalises queries and keys. mixtral and qwen3_moe are mistral and qwen3 with "
         "a mixture of experts (model.experts); olmoe is such a mixture too, and normalises the "
         "queries of all heads together, and so the keys. olmo2 does the same without experts, and "
         "has its norms behind attention and MLP. phi3 is llama, stored otherwise.",
         .names = {LS_FAMILY_NAMES}, .limit = "other families are not built yet"),
    INT(model.layers, FIXED, REQUIRED, 1, 1000,
        "Transformer blocks. Memory and time grow in proportion."),
    INT(model.width, FIXED, REQUIRED, 1, 65536,
        "Size of each token's vector. Weights and time grow with its square."),
    INT(model.heads, FIXED, REQUIRED, 1, 1024,
        "Attention heads; they must divide the width, unless model.head_size is given."),
    INT(model.context, FIXED, REQUIRED, 1, 1048576,
        "Tokens of one sequence: how far back the model can look. Attention time grows with its "
        "square.",
        .unit = "tokens"),
    INT(model.positions, FIXED, "auto", 0, 1048576,
        "Rows of gpt2's table of learned positions; training uses the first model.context of them. "
        "All rows of an imported model are kept, in checkpoints and exports too, however short the "
        "sequences are; a smaller number cuts its table. 0 for the other families.",
        .unit = "tokens",
        .when_auto = "gpt2: those of model.import, otherwise model.context; other families: 0"),
    INT(model.kv_heads, FIXED, "auto", 1, 1024,
        "Heads of keys and values, each read by the same number of query heads (grouped-query "
        "attention). The number must divide model.heads; gpt2 has as many as heads.",
        .when_auto = "as many as model.heads"),
    INT(model.vocab, FIXED, "auto", 2, 16777216,
        "Rows of the embedding; a number above the tokenizer's size leaves rows unused.",
        .unit = "tokens", .when_auto = "the size of the tokenizer"),
    INT(model.mlp, FIXED, "auto", 1, 1048576,
        "Inner width of the feed-forward layers; in a mixture of experts, of each of them.",
        .when_auto =
            "4 times model.width for gpt2, otherwise 8/3 of it, rounded up to a multiple of 64"),
    INT(model.experts, FIXED, "0", 0, 1024,
        "Experts (feed-forward layers) of a block, of which a router chooses some for each token. "
        "Memory grows with their number, time with model.experts_used. For mixtral, qwen3_moe and "
        "olmoe; 0: the other families."),
    INT(model.experts_used, FIXED, "2", 1, 64,
        "Experts that each token goes to; no token is dropped."),
    BOOL(model.experts_norm, FIXED, "true",
         "Whether the weights of a token's experts are divided by their sum; false for qwen3_moe "
         "and olmoe only."),
    FLOAT(model.dropout, ON_WORD, "0", 0, 1,
          "Share of activations set to zero while training, which keeps a model from memorising a "
          "small text.",
          .below = true),
    ENUM(model.tied, FIXED, "auto", "Whether the head uses the embedding's weights; auto: true.",
         .names = {"auto", "true", "false"}),
    ENUM(model.bias, FIXED, "auto",
         "Linear layers of a block that have a bias; auto: all for gpt2, qkv for qwen2, none for "
         "the others.",
         .names = {"auto", "none", "qkv", "attention", "mlp", "all"}),
    INT(model.head_size, FIXED, "auto", 1, 1024, "Size of a head; even where positions are rotary.",
        .when_auto = "model.width divided by model.heads"),
    FLOAT(model.rope_theta, FIXED, "10000", 1, 1e12,
          "Base of the rotary frequencies; longer contexts use a larger one. Not for gpt2.",
          .above = true),
    ENUM(model.rope_scaling, FIXED, "none",
         "How rotary frequencies were changed to extend the context.",
         .names = {"none", "linear", "llama3"},
         .limit = "dynamic, yarn and longrope are not built yet"),
    FLOAT(model.rope_factor, FIXED, "1", 1, 1e6,
          "How many times longer model.rope_scaling made the context."),
    FLOAT(model.rope_low, FIXED, "1", 0, 1e6,
          "llama3 scaling: turns within the original context below which a frequency is divided by "
          "the factor.",
          .above = true),
    FLOAT(model.rope_high, FIXED, "4", 0, 1e6,
          "llama3 scaling: turns within the original context above which a frequency stays.",
          .above = true),
    INT(model.rope_original, FIXED, "8192", 1, 1e9,
        "llama3 scaling: the context before it was extended.", .unit = "tokens"),
    INT(model.window, FIXED, "0", 0, 1048576,
        "Sliding window: a token sees this many positions, itself included; 0: all before it.",
        .unit = "tokens"),
    INT(model.window_from, FIXED, "0", 0, 1000,
        "First layer (counted from 0) that has the window; earlier layers see all positions."),
    FLOAT(model.norm_eps, FIXED, "auto", 0, 1, "Added to the variance in every norm.",
          .above = true, .when_auto = "1e-5 for gpt2, otherwise 1e-6"),
    FLOAT(model.init_std, FIXED, "0.02", 0, 1, "Standard deviation of the initial weights.",
          .above = true),

    STRINGS(data.text, FIXED, "[]",
            "Text to train on: files, patterns such as corpus/*.txt, or builtin:stories; .txt and "
            ".jsonl, also .gz and .zst. Relative paths start at the current folder. Give this or "
            "data.shards."),
    STRINGS(data.shards, FIXED, "[]",
            "Token shards (.lst) made by `lineshaft data build`, instead of text: nothing is left "
            "to tokenize when the run starts."),
    FLOATS(data.weights, FIXED, "[]", 0, HUGE_VAL,
           "Shares of a mixture, one per entry of data.text or data.shards; they need not add up "
           "to 1. Empty: by size.",
           .above = true),
    STRING(data.tokenizer, FIXED, "auto",
           "How text becomes tokens: bytes (each byte is one), or a folder with a tokenizer.json.",
           .when_auto = "the tokenizer of model.import, otherwise bytes"),
    STRING(data.field, FIXED, "text", "Field of a .jsonl line that holds the text."),
    KEYED(
        "data.template", data.chat_template, STRING, FIXED, "none",
        "Chat data: each line of .jsonl is a conversation (messages), which this template writes "
        "out; only what the assistant says counts in the loss. auto: the template of the run that "
        "model.import names, or the tokenizer's own; "
        "chatml, llama3 or qwen: a built-in one; or the path of a .jinja file. none: plain text."),
    FLOAT(data.validation, FIXED, "10%", 0, 0.9,
          "Share of the tokens, at the end of each source, that is kept for validation and never "
          "trained on."),
    ENUM(data.utf8, FIXED, "strict",
         "What happens to bytes of a text that are not UTF-8: an error (strict), U+FFFD instead "
         "(replace), or kept as they are (bytes).",
         .names = {"strict", "replace", "bytes"}),
    BOOL(data.skip_bad, FIXED, "false",
         "Pass over lines of a .jsonl that cannot be used, with a warning that names the line, "
         "instead of ending there."),
    BOOL(data.isolate, FIXED, "false",
         "Tokens see only tokens of their own document, whose positions begin at 0. Always so for "
         "chat data (data.template)."),
    BOOL(data.shuffle, FIXED, "true",
         "Read the sequences in random order, a new one in each epoch. It costs no memory."),

    INT(batch.sequences, FIXED, "16", 1, 1048576,
        "Global batch: sequences of one step, on all machines together. The time of a step grows "
        "in proportion, memory does not.",
        .unit = "sequences"),
    INT(batch.leaf, FIXED, "auto", 1, 1048576,
        "Sequences of one leaf, the unit whose gradients are summed in a fixed order; it must "
        "divide batch.sequences.",
        .unit = "sequences",
        .when_auto = "the largest divisor of batch.sequences (and batch.ramp_from) up to 8"),
    INT(batch.group, FREE, "auto", 1, 1048576,
        "Leaves that one forward and backward call computes. More leaves need more memory and keep "
        "the cores busier. A power of two, or all leaves. In ordered mode it does not change the "
        "result.",
        .unit = "leaves",
        .when_auto =
            "as many leaves as make up to 4096 tokens; on a GPU up to 65536, or what fits"),
    INT(batch.ramp, FIXED, "0", 0, 1e9,
        "Batch ramp: the batch grows from batch.ramp_from to batch.sequences in this many steps, "
        "one leaf at a time; 0: every step has batch.sequences. Schedules count steps, so the "
        "learning rate does not depend on it.",
        .unit = "steps"),
    INT(batch.ramp_from, FIXED, "auto", 1, 1048576,
        "Sequences of the first step of a batch ramp; a multiple of batch.leaf.",
        .unit = "sequences", .when_auto = "one leaf"),

    ENUM(
        train.objective, FIXED, "lm",
        "What is learned. lm: to predict the next token. dpo, orpo: of two answers to a prompt, to "
        "prefer the chosen one; each line of data.text has prompt, chosen and rejected. kto: from "
        "single answers that are desirable or not; each line has prompt, completion and label. A "
        "sequence then holds one pair, of which each answer has at most half of model.context; "
        "dpo and kto compare with the model of model.import as it was.",
        .names = {"lm", "dpo", "orpo", "kto"}),
    INT(train.steps, FREE, "auto", 0, LS_OPTION_BIG,
        "Stop after this many steps; 0: no such limit.", .unit = "steps",
        .when_auto = "1000 when no other end is set, otherwise 0"),
    INT(train.tokens, FREE, "0", 0, LS_OPTION_BIG,
        "Stop after this many training tokens; 0: no such limit.", .unit = "tokens"),
    FLOAT(
        train.epochs, FREE, "0", 0, 1e6,
        "Stop after this many passes over the training text, rounded up to whole steps; the first "
        "lines of the run say how many. Instead of train.steps and train.tokens. 0: no such limit.",
        .unit = "epochs"),
    DURATION(train.seconds, FREE, "0", 0, HUGE_VAL,
             "Stop after this much training time; 0: no such limit.", .unit = "seconds"),
    FLOAT(train.target_loss, FREE, "0", 0, HUGE_VAL,
          "Stop when the validation loss is at or below this; 0: no such limit."),
    INT(train.patience, FREE, "0", 0, 1000000,
        "Early stopping: stop when this many evaluations (eval.every) in a row have not lowered "
        "the "
        "validation loss; 0: never. A resumed run goes on counting.",
        .unit = "evaluations"),
    FLOAT(train.lr, ON_WORD, "auto", 0, 100, "Peak learning rate.", .above = true,
          .when_auto = "1e-3, for lion 1e-4, for sgd 0.1; 1e-6 where train.objective is not lm"),
    FLOAT(train.min_lr, ON_WORD, "auto", 0, 100, "Final learning rate of the schedule.",
          .when_auto = "a tenth of train.lr"),
    ENUM(train.lr_rule, ON_WORD, "none",
         "How train.lr and train.min_lr follow the batch. linear: times batch.sequences / "
         "train.lr_base_batch; sqrt: times the square root of that; none: as written.",
         .names = {"none", "linear", "sqrt"}),
    INT(train.lr_base_batch, ON_WORD, "0", 0, 1048576,
        "Batch for which train.lr was chosen, in sequences; train.lr_rule scales it to "
        "batch.sequences. 0: none.",
        .unit = "sequences"),
    ENUM(train.schedule, ON_WORD, "cosine",
         "Course of the learning rate after warm-up. cosine: of n steps with w of warm-up, step s "
         "= w, w + 1 ... n - 1 takes min_lr + (lr - min_lr) (1 + cos(pi (s - w) / (n - 1 - w))) / "
         "2. wsd stays at the peak and falls in the last train.decay steps.",
         .names = {"constant", "linear", "cosine", "wsd"}),
    INT(train.warmup, FREE, "auto", 0, LS_OPTION_BIG,
        "Steps in which the learning rate rises: step s, counted from 0, has train.lr (s + 1) / "
        "train.warmup.",
        .unit = "steps", .when_auto = "a twentieth of the steps, at most 100"),
    INT(train.decay, FREE, "auto", 0, LS_OPTION_BIG,
        "Steps of the final decay of the wsd schedule.", .unit = "steps",
        .when_auto = "a fifth of the steps"),
    ENUM(train.optimizer, FIXED, "adamw",
         "Rule that changes the weights." LS_OPTIMIZERS(OPTIMIZER_DOC),
         .names = {LS_OPTIMIZERS(OPTIMIZER_NAME)}),
    FLOAT(train.beta1, ON_WORD, "0.9", 0, 1,
          "Decay of AdamW's mean of gradients; of the mean whose sign Lion takes.", .below = true),
    FLOAT(train.beta2, ON_WORD, "auto", 0, 1,
          "Decay of AdamW's mean of squared gradients, and of the mean that Lion keeps.",
          .below = true, .when_auto = "0.95, for lion 0.99"),
    FLOAT(train.eps, ON_WORD, "1e-8", 0, 1, "Added to AdamW's divisor.", .above = true),
    FLOAT(train.weight_decay, ON_WORD, "auto", 0, 100,
          "Pull of matrices towards zero; biases and norms are spared.",
          .when_auto = "0.1, for lion 1, for sgd 0"),
    FLOAT(
        train.momentum, ON_WORD, "auto", 0, 1,
        "Decay of Muon's mean of gradients, for the matrices of blocks, and of SGD's sum of them.",
        .below = true, .when_auto = "0.95, for sgd 0.9"),
    BOOL(train.nesterov, ON_WORD, "true",
         "With sgd: step along the sum of gradients as it will be after the next one (Nesterov), "
         "not as it is."),
    FLOAT(train.adamw_lr, ON_WORD, "0", 0, 100,
          "With muon: highest learning rate of embeddings, head, norms and biases, which AdamW "
          "updates; it takes the course of train.lr. 0: the same as train.lr."),
    FLOAT(train.clip, ON_WORD, "1.0", 0, HUGE_VAL,
          "Largest norm of the whole gradient; a longer gradient is scaled down. 0: off."),
    FLOAT(train.balance_loss, ON_WORD, "0.001", 0, 10,
          "Mixtures of experts: weight, in each layer, of the loss that spreads the tokens of a "
          "sequence evenly over experts; the loss of a token has weight 1. The loss that is shown "
          "leaves it out."),
    FLOAT(train.z_loss, ON_WORD, "0", 0, 10,
          "Mixtures of experts: weight, in each layer, of the loss that keeps the router's logits "
          "small; the loss of a token has weight 1. The loss that is shown leaves it out."),
    FLOAT(
        train.neftune, ON_WORD, "0", 0, 1000,
        "Noise on the embeddings while training (NEFTune), against overfitting of fine-tuning: "
        "each "
        "element gets a uniform value between -a and a, with a = train.neftune / "
        "sqrt(model.context "
        "x model.width). Its authors use 5 to 15. The draw depends on seed, step and element only. "
        "0: none."),
    INT(train.seed, FIXED, "1", 0, LS_OPTION_BIG,
        "Seed of all random choices: initial weights, order of the data, dropout."),
    ENUM(train.reduce, FIXED, "ordered",
         "How gradients are summed. ordered: the same bits for any number of threads and calls; "
         "fast: the quickest way, the same within rounding.",
         .names = {"ordered", "fast"}),
    ENUM(train.rounding, FIXED, "nearest",
         "precision: bf16 or fp8: how fp32 weights are rounded to the 16-bit weights that the "
         "model reads. stochastic: up or down at random, more often to the nearer neighbour, so "
         "that small updates count on average. The draw depends on seed, step and element only: "
         "no mesh and no restart changes it.",
         .names = {"nearest", "stochastic"}),
    INT(train.loss_scale, FIXED, "65536", 1, 16777216,
        "precision: fp16: the initial factor of the loss, a power of two, which keeps small "
        "gradients from vanishing. When a gradient overflows, the step is dropped and the factor "
        "is halved."),
    INT(train.loss_scale_interval, FIXED, "2000", 1, 1e9,
        "precision: fp16: steps without overflow after which the loss scale is doubled.",
        .unit = "steps"),
    ENUM(train.recompute, FREE, "none",
         "What the backward pass recomputes instead of keeping it from the forward pass: less "
         "memory for more time, and the same bits. selective: outputs of norms, and the activation "
         "of a gated MLP, or everything inside another MLP; of experts, their input rows and "
         "activations. full: everything but the input of the block and, with mesh.ep, the rows "
         "that came from other ranks. auto: as little as fits into the free memory.",
         .names = {"none", "selective", "full", "auto"}),
    INT(train.recompute_blocks, FREE, "auto", 1, 1000,
        "This many blocks, from the first one on, do what train.recompute says. Of the other "
        "blocks, selective keeps everything, and full recomputes what selective would.",
        .unit = "blocks", .when_auto = "all of them"),
    ENUM(train.nonfinite, FREE, "stop",
         "What happens at a NaN or Inf in the loss or the gradient: stop and name the tensor, or "
         "skip the step.",
         .names = {"stop", "skip"}),
    STRINGS(train.freeze, FIXED, "[]",
            "Parameters that are not trained: names as `lineshaft ckpt show` lists them, with * "
            "for any text. They take no memory for gradients and optimizer state. Works on every "
            "mesh, but only with mesh.zero: 0."),

    FLOAT(preference.beta, FIXED, "0.1", 0, 100,
          "dpo, kto: how strongly the model is held to its reference; more keeps it nearer. orpo: "
          "weight of the preference beside the loss of the chosen answer.",
          .above = true),
    FLOAT(preference.label_smoothing, FIXED, "0", 0, 0.5,
          "dpo: share of pairs that are thought to be the wrong way round (robust DPO).",
          .below = true),
    FLOAT(preference.desirable_weight, FIXED, "1", 0, 1e6,
          "kto: weight of desirable answers in the loss."),
    FLOAT(preference.undesirable_weight, FIXED, "1", 0, 1e6,
          "kto: weight of undesirable answers in the loss. Where there are unequally many of both, "
          "the weights times the numbers should be about equal."),

    INT(lora.rank, FIXED, "0", 0, 4096,
        "Rank of the small matrices (LoRA); 0: none, all weights are trained. With a rank, only "
        "the small matrices are trained. Works on every mesh, but only with mesh.zero: 0; with "
        "mesh.tp they are divided like the weights beside them."),
    FLOAT(lora.alpha, FIXED, "auto", 0, 1e6, "The small matrices are scaled by alpha / rank.",
          .when_auto = "twice lora.rank"),
    STRINGS(lora.targets, FIXED, "[]",
            "Layers that get small matrices: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
            "down_proj; for gpt2 c_attn, c_proj, c_fc. Empty: all of them."),
    BOOL(
        lora.dora, FIXED, "false",
        "DoRA (weight-decomposed LoRA): for each output of an adapted weight its length is trained "
        "too, and the small matrices change only the direction. Often better than LoRA at small "
        "ranks, for about a third more time and memory. On CPUs, with mesh.tp: 1."),

    ENUM(precision, FIXED, "fp32",
         "Number format of activations and of the weights that the model reads. bf16: the weights "
         "that are trained and saved, gradients, moments and sums stay fp32, without loss scaling; "
         "on a CPU without AVX512_BF16 or AMX it saves memory, not time. fp16: like bf16, but "
         "finer numbers in a smaller range, with loss scaling (train.loss_scale); on GPUs, and on "
         "a CPU with device.isa: reference, for checking. tf32, on GPUs: fp32 whose products round "
         "their inputs to 10 bits of fraction. fp8: bf16, with 8-bit products in all blocks but "
         "the first and the last, scaled by the largest magnitude of each tensor; on GPUs that "
         "have it, with train.reduce: fast, and not for mixtures of experts.",
         .names = {"fp32", "tf32", "bf16", "fp16", "fp8"}),

    KEYED("mesh.auto", mesh.automatic, BOOL, FREE, "false",
          "Lets lineshaft choose those of mesh.tp, pp, cp, ep, zero and schedule that are not set, "
          "for the given processes, machines and memory: by the memory ledger and the predicted "
          "time of a step. Where the model does not fit otherwise, it recomputes "
          "(train.recompute). In ordered mode mesh.tp, cp and ep stay 1 unless they are set, "
          "because bits depend on them. `mesh: auto` is short for it. `lineshaft plan mesh` shows "
          "the choice. When processes die, the mesh is kept, with fewer of them if need be; a run "
          "that is started again chooses anew."),
    INT(mesh.dp, FREE, "auto", 1, 4096,
        "Data-parallel width: copies of the model that share a batch.",
        .when_auto = "as many as there are processes (-n)"),
    INT(mesh.tp, FREE, "1", 1, 1024,
        "Tensor-parallel width: processes that divide every layer. Each has some heads, some "
        "columns of the MLPs and some tokens of the vocabulary. They communicate four times in "
        "every layer, so keep them on one machine. The number of processes is mesh.dp times "
        "mesh.pp times mesh.cp times mesh.tp. With mesh.pp each pipeline stage is such a "
        "tensor-parallel group; with mesh.cp several groups share each sequence. mesh.zero divides "
        "what ranks with the same shard of the model hold. Results agree with one process within "
        "rounding, in ordered mode too."),
    BOOL(mesh.sp, FREE, "true",
         "With mesh.tp (sequence parallelism): whether each process also keeps only its share of "
         "the rows between the layers (norms, residual stream, dropout). It takes less memory, and "
         "sends up to a quarter more."),
    INT(mesh.pp, FREE, "1", 1, 256,
        "Pipeline width: processes that divide the layers. A leaf passes through all of them as a "
        "micro-batch (batch.group sets how many leaves do at a time). mesh.dp such pipelines share "
        "the batch, and divide what mesh.zero says of each stage (on GPUs 0 or 1); with AdamW."),
    ENUM(mesh.schedule, FREE, "1f1b",
         "In which order the ranks of a pipeline compute. gpipe: all forward, then all backward; "
         "1f1b: forward and backward in turn, with activations of at most mesh.pp micro-batches; "
         "interleaved: 1f1b with several chunks of layers on each rank, which idles less and sends "
         "more; zero-bubble: 1f1b that computes gradients of weights while a rank would otherwise "
         "idle, and keeps more until then. No result depends on it. `lineshaft plan schedule` "
         "draws them.",
         .names = {"gpipe", "1f1b", "interleaved", "zero-bubble"}),
    INT(mesh.chunks, FREE, "auto", 1, 16,
        "Chunks of layers on each rank of an interleaved pipeline.",
        .when_auto = "2 where mesh.schedule is interleaved, else 1"),
    INT(mesh.cp, FREE, "1", 1, 1024,
        "Context-parallel width: processes that divide every sequence, for long contexts. Each has "
        "two of 2 x mesh.cp chunks of it, one near the beginning and one near the end, so that all "
        "have the same work, and they send each other keys and values in every layer. The number "
        "of processes is mesh.dp times mesh.pp times mesh.tp times mesh.cp. Without mesh.tp and "
        "mesh.pp, all of them have the whole model, and mesh.zero divides it among all; otherwise, "
        "ranks with the same heads and layers form a context-parallel group. Results agree with "
        "one process within rounding, in ordered mode too. When one rank dies, another one has the "
        "same weights; the run goes on with a multiple of mesh.cp."),
    ENUM(mesh.keys, FREE, "ring",
         "With mesh.cp: how keys and values reach the other processes of the group. ring: from one "
         "to the next, while each computes with the previous ones; gather: all at once, with more "
         "memory and fewer messages. Both send the same number of bytes.",
         .names = {"ring", "gather"}),
    INT(mesh.ep, FREE, "1", 1, 1024,
        "Expert-parallel width: processes that divide the experts of a mixture (model.experts). "
        "They are some of the mesh.dp ranks that share the batch, and each has everything but the "
        "other experts. In every layer tokens are sent to their experts and back, so keep these "
        "processes on one machine. The width must divide mesh.dp (times mesh.cp) and "
        "model.experts. With mesh.pp the processes of each stage divide the experts of its layers; "
        "with mesh.tp, tensor-parallel groups do. mesh.zero 1 divides moments: of experts among "
        "the ranks that hold the same ones, of the rest among all; 2 and 3 also divide gradients "
        "and weights, among the ranks that hold the same experts. Gradients are summed as "
        "train.reduce: fast does it, and results agree with one process within rounding. When a "
        "rank dies, its experts come from another rank that holds the same ones, where mesh.dp is "
        "larger than mesh.ep, else from the newest checkpoint; the run goes on with a multiple of "
        "mesh.ep."),
    INT(mesh.zero, FREE, "0", 0, 3,
        "ZeRO stage: what data-parallel replicas divide instead of each holding all of it. 0: "
        "nothing; 1: optimizer moments and the update; 2: gradients too; 3: weights too, gathered "
        "part by part while they are used. With mesh.tp and mesh.ep the replicas of each shard of "
        "the model divide it; with mesh.pp the pipelines divide each stage."),
    STRING(mesh.shard, FREE, "world",
           "Which ranks divide what mesh.zero says. world: all of them; node: the ranks of each "
           "node, so that nodes hold copies of each other; a number: groups of this many ranks. "
           "Weights are gathered only inside such a group, and each rank holds more. With mesh.tp "
           "and mesh.ep it groups ranks that hold the same shard of the model."),
    ENUM(mesh.balance, FREE, "off",
         "Whether the slices of the batch follow the speed of ranks. off: they are equal, or as "
         "mesh.weights says; auto: a rank that is measured to be slow gets fewer leaves, and none "
         "gets more than twice an equal share. In ordered mode it does not change the result.",
         .names = {"off", "auto"}),
    FLOATS(mesh.weights, FREE, "[]", 1e-6, 1e6,
           "Shares of the batch, one per rank; they need not add up to 1. With mesh.balance: auto "
           "the run starts with them. Empty: equal shares."),
    INT(mesh.bucket, FREE, "auto", 65536, LS_OPTION_BIG,
        "Size of a gradient bucket: the backward pass goes on while a bucket is sent. The result "
        "does not depend on it.",
        .unit = "bytes",
        .when_auto = "so large that the fixed cost of messages is at most a tenth of the exchange"),

    ENUM(exchange.compress, FREE, "none",
         "Compression of gradients between nodes; inside a node they stay as they are. bf16: half "
         "of the bytes; int8: a quarter, with a scale for each 256 of them; topk: only the "
         "largest. What is rounded off or left out is added in the next step (error feedback). "
         "Needs train.reduce: fast.",
         .names = {"none", "bf16", "int8", "topk"}),
    FLOAT(exchange.topk, FREE, "0", 0, 0.5,
          "Share of the gradients that exchange.compress: topk sends: the largest of each 4096, at "
          "least one. 0: not chosen, which topk refuses."),
    ENUM(exchange.device, FREE, "host",
         "How GPUs exchange gradients, weights (mesh.zero), and tensors inside of a pass (mesh.tp, "
         "mesh.cp, mesh.ep, and mesh.pp alone). nccl: from card to card by NVIDIA's library, "
         "version "
         "2.18 or later; refused for mesh.pp with another axis, and for mesh.zero 2 and 3 or "
         "mesh.shard with mesh.tp or mesh.ep; host: through the host's memory; auto: nccl where "
         "every "
         "rank has a card of its own, else host. In ordered mode gradients of replicas have the "
         "same "
         "sums.",
         .names = {"auto", "nccl", "host"}),

    ENUM(sync, FIXED, "allreduce",
         "How replicas of the model agree. allreduce: they sum their gradients in every step. "
         "local: each trains by itself on its part of every batch, and now and then they agree on "
         "new weights (local SGD, DiLoCo); for slow links. ps: servers keep the weights and make "
         "the updates, workers push gradients and pull weights (parameter server); for ranks whose "
         "steps take uneven times, and for large embeddings.",
         .names = {"allreduce", "local", "ps"}),

    INT(local.steps, FIXED, "50", 1, 1000000,
        "Steps that local-SGD workers make by themselves before they agree on weights. Validation, "
        "samples, checkpoints and a stop wait until they have agreed.",
        .unit = "steps"),
    INT(local.delay, FIXED, "0", 0, 1000000,
        "Steps that local-SGD workers go on with while the exchange of weights is under way; their "
        "progress meanwhile is kept. 0: they wait for it.",
        .unit = "steps"),
    FLOAT(local.lr, FIXED, "1", 0, 10,
          "How far the shared weights move towards the mean of the workers; 1 without momentum: "
          "all the way. DiLoCo's authors use 0.7, with a momentum of 0.9, for 500 steps.",
          .above = true),
    FLOAT(local.momentum, FIXED, "0.5", 0, 1, "Nesterov momentum of that movement; 0: none.",
          .below = true),
    ENUM(local.compress, FIXED, "int8",
         "Format in which differences of weights are sent: fp32 (none), bf16, or 8 bits with a "
         "scale for each 256 of them.",
         .names = {"none", "bf16", "int8"}),

    INT(ps.servers, FREE, "auto", 1, 64,
        "How many ranks serve, from the first one on: each keeps an equal part of the weights and "
        "of the optimizer's state. All ranks compute. The result does not depend on it.",
        .when_auto = "all ranks"),
    INT(ps.staleness, FREE, "0", -1, 1000000,
        "How many steps a rank may be ahead of the slowest one. 0: a step is one update with the "
        "gradients of all ranks. Above 0: the gradients of each rank are an update of their own, "
        "applied when they arrive, in proportion to the rank's share of the step. -1: the same "
        "without a bound (asynchronous).",
        .unit = "steps"),
    INT(ps.meet, FREE, "50", 1, 1000000,
        "Unless ps.staleness is 0: after this many steps ranks wait for each other. Validation, "
        "samples, checkpoints and a stop wait until then.",
        .unit = "steps"),
    BOOL(ps.sparse, FREE, "true",
         "For an embedding that is not also the head (model.tied: false), pull and push only the "
         "rows of the batch's tokens. The result does not depend on it."),

    INT(checkpoint.every, FREE, "100", 0, LS_OPTION_BIG,
        "Save after this many steps; 0: only at the end, unless checkpoint.minutes is set.",
        .unit = "steps"),
    FLOAT(checkpoint.minutes, FREE, "auto", 0, 1e6,
          "Save also when the last save is this many minutes ago, after the step that is under "
          "way; the first rank's clock decides. 0: never.",
          .unit = "minutes", .when_auto = "10, or 0 where checkpoint.every is 0"),
    INT(checkpoint.keep, FREE, "2", 1, 1000000,
        "How many of the newest checkpoints are kept; older ones are removed. A run keeps at least "
        "two, because the newest may turn out to be damaged. Pinned ones (lineshaft ckpt pin) "
        "stay."),
    INT(checkpoint.keep_every, FREE, "0", 0, LS_OPTION_BIG,
        "Checkpoints of steps that are multiples of this are kept for good, besides the newest; 0: "
        "none.",
        .unit = "steps"),
    ENUM(checkpoint.best, FREE, "auto",
         "Whether the checkpoint of the lowest validation loss is kept for good, besides the "
         "newest: "
         "each evaluation that finds a lower one saves. It is named by \"best\" in the run folder, "
         "as in `lineshaft generate runs/demo/best`. auto: with train.patience.",
         .names = {"auto", "true", "false"}),
    STRING(checkpoint.mirror, FREE, "",
           "A second folder, best on another disk: every checkpoint is copied there after it is "
           "saved, and a damaged or missing part of a checkpoint is restored from there. Empty: "
           "none."),
    STRING(checkpoint.key, FREE, "",
           "A file of 32 random bytes that only its owner may read (lineshaft ckpt key FILE). "
           "Checkpoints are signed with it, and the run resumes only from checkpoints that are "
           "signed with it. The secret of a job may be used. Empty: nothing is signed or checked."),
    BOOL(checkpoint.take_unsigned, FREE, "false",
         "With checkpoint.key: resume also from checkpoints that are not signed, for runs that had "
         "no key before. Those with a wrong signature are refused all the same."),
    INT(checkpoint.grace, FREE, "0", 0, 86400,
        "Time that the run has when it is asked to stop (SIGTERM, SIGUSR1, Ctrl-C). It saves if "
        "the time suffices, judged by its earlier saves, and otherwise ends without saving. 0: as "
        "long as a save takes; in a Slurm job until the end of the job, or 30 s after it.",
        .unit = "seconds"),

    ENUM(heal.mode, FREE, "on",
         "on: when a rank dies or a machine is lost, the other ranks keep their memory, and "
         "training goes on after the last completed step, with the same batches; off: the run "
         "ends. With sync: local or ps, a rank that dies always ends the run. The first machine, "
         "which the others have joined, is replaced by another one when more than half of the "
         "others are left.",
         .names = {"on", "off"}),
    INT(heal.restarts, FREE, "1", 0, 1000000,
        "How often a rank that died is started again. After that the other ranks go on without it "
        "and share the batch. With mesh.pp or mesh.tp they go on with as many ranks as make whole "
        "models, and the rest waits."),
    INT(heal.min_ranks, FREE, "1", 1, 4096, "The run ends when fewer ranks than this are left."),
    INT(heal.wait, FREE, "60", 1, 86400,
        "A rank is killed and counts as dead when it is stopped for this long, or when it neither "
        "computes nor joins the others for this long after they lost a rank.",
        .unit = "seconds"),
    INT(heal.min_nodes, FREE, "1", 1, 4096, "The run ends when fewer machines than this are left."),
    INT(heal.max_nodes, FREE, "0", 0, 4096,
        "A machine that joins a running job becomes part of it while the job has fewer machines "
        "than this; otherwise it waits as a spare until one is lost. 0: no limit."),
    DURATION(heal.grow_wait, FREE, "60", 0, 86400,
             "New machines are taken in when the ranks have trained for this long since the last "
             "change of members, because each change costs a moment.",
             .unit = "seconds"),
    INT(heal.grow_steps, FREE, "10", 0, 1000000,
        "New machines are taken in only after this many steps since the last change, as well.",
        .unit = "steps"),
    INT(heal.quarantine, FREE, "2", 0, 1000000,
        "A machine on which this many ranks have crashed within a day is given up with all its "
        "ranks, and refused for heal.cool_down. The coordinating machine is exempt. 0: never."),
    DURATION(heal.cool_down, FREE, "600", 0, 86400,
             "How long a machine in quarantine is refused; twice as long each further time.",
             .unit = "seconds"),
    DURATION(heal.heartbeat, FREE, "0.25", 0.01, 60,
             "How often machines send each other a heartbeat.", .unit = "seconds"),
    DURATION(heal.suspect, FREE, "1", 0.01, 86400,
             "A machine that was silent for this long is named in the log (-v), and two others are "
             "asked whether they reach it.",
             .unit = "seconds"),
    DURATION(heal.dead, FREE, "3", 0.1, 86400,
             "A machine that was silent for this long is lost. Where heartbeats come late, the "
             "limit is eight times their delay; while other machines reach it, it is twice as "
             "long. A machine whose connection ends is lost at once.",
             .unit = "seconds"),
    ENUM(heal.buddies, FREE, "auto",
         "With mesh.zero 1 to 3: whether a peer keeps a copy of what only one rank holds, so that "
         "the death of that rank costs no step; without copies the newest checkpoint is loaded. "
         "For each element of a shard, a copy takes 16 bytes of memory (8 with mesh.tp and "
         "mesh.ep, with mesh.pp 8, 12 or 16 by mesh.zero, 36 with lamb and muon) and 4 bytes a "
         "step on the wire. mesh.tp without mesh.pp, and mesh.ep, have copies with mesh.zero: 1 "
         "only. With mesh.shard the groups are copies of each other already. auto: on where ranks "
         "that die are replaced, on CPUs.",
         .names = {"auto", "on", "off"}),
    INT(heal.compare, FREE, "100", 0, LS_OPTION_BIG,
        "After this many steps, before each checkpoint and at the end, ranks compare hashes of the "
        "weights and moments that several of them hold; 0: never. (With mesh.pp, mesh.tp and "
        "mesh.ep nothing is compared yet.) A rank that differs from the majority has faulty memory "
        "or a faulty processor: it is named and replaced, and all ranks go back to the newest "
        "checkpoint, so that nothing it has computed stays.",
        .unit = "steps"),
    INT(heal.replay, FREE, "0", 0, LS_OPTION_BIG,
        "After this many steps a second rank recomputes the gradient of a leaf, drawn at random, "
        "before the update; 0: never. Where the two differ, the rank that is wrong is named and "
        "replaced, and the step is repeated. For train.reduce: ordered on CPUs, with mesh.zero 0 "
        "or 1.",
        .unit = "steps"),
    ENUM(heal.quorum, FREE, "embedded",
         "What decides which job may write the run. embedded: the lock and the generation in the "
         "run folder; etcd: also the servers of heal.etcd, so that a second job of the same name "
         "and folder is refused, and a job that was cut off cannot commit checkpoints any more. "
         "When the first machine is lost: with embedded, more than half of the others elect "
         "another one; with etcd, the machine that gets the run from the servers goes on.",
         .names = {"embedded", "etcd"}),
    STRINGS(
        heal.etcd, FREE, "[]",
        "With heal.quorum: etcd, the client URLs of etcd 3.4 or later, such as "
        "http://10.0.0.1:2379. While none of them answers, training goes on and checkpoints wait."),

    INT(eval.every, FREE, "100", 0, LS_OPTION_BIG,
        "Measure the validation loss after this many steps; 0: only at the end.", .unit = "steps"),
    INT(eval.sequences, FREE, "auto", 1, 1048576,
        "Validation sequences of one measurement, the same each time.", .unit = "sequences",
        .when_auto = "all there are, at most 256"),
    STRING(eval.sample, FREE, "",
           "Prompt of a text that the model continues at each measurement; empty: none."),
    INT(eval.sample_tokens, FREE, "100", 1, 1048576, "Length of that text.", .unit = "tokens"),

    ENUM(device.kind, FREE, "auto",
         "What computes: the CPU, or an NVIDIA GPU (cuda, which needs the plugin that \"make "
         "cuda\" builds). Ranks of one machine take its GPUs in turn; ranks that share a GPU "
         "divide its memory. auto: the CPU.",
         .names = {"auto", "cpu", "cuda"}),
    INT(device.threads, FREE, "auto", 1, 4096,
        "Threads that compute. In ordered mode their number does not change the result.",
        .unit = "threads",
        .when_auto = "the physical cores that this process may use, by affinity, CPU quota and the "
                     "ranks beside it; `lineshaft doctor` says why"),
    ENUM(device.pin, FREE, "auto",
         "Whether each thread stays on its own core. auto: on when there are as many threads as "
         "cores that this process may use, and no CPU quota. Changes speed only.",
         .names = {"auto", "on", "off"}),
    ENUM(device.isa, FREE, "auto",
         "Instruction set of the kernels; auto: the best that this CPU has. reference is slow and "
         "exact, for checking.",
         .names = {"auto", "reference", "generic", "avx2", "avx512"}),
    ENUM(device.pack, FREE, "auto",
         "Whether copies of the weights are kept in the order in which the CPU's matrix products "
         "read them, made once after each update instead of in every call. auto: on when a step "
         "has at least three calls and a quarter of the free memory is left. Changes speed and "
         "memory only.",
         .names = {"auto", "on", "off"}),
    ENUM(device.offload, FREE, "none",
         "Where the moments of AdamW are kept, most of a run's memory. none: in the device's "
         "memory; host: in host memory, for a GPU (on a CPU they are there anyway); disk: in a "
         "file, for a CPU. The update loads them piece by piece. Changes speed and memory only.",
         .names = {"none", "host", "disk"}),
    STRING(device.offload_to, FREE, "auto",
           "Folder for the file of device.offload: disk, on a fast disk of each machine. The file "
           "has no name and disappears when the run ends; checkpoints hold the moments.",
           .when_auto = "the run folder"),
    ENUM(device.graphs, FREE, "off",
         "Whether forward and backward passes are recorded once and replayed as CUDA graphs, on a "
         "GPU. on: from the third step on. auto: if it is at least 2 % faster in the first 18 "
         "steps, as with a model that is small for its GPU. Changes speed only.",
         .names = {"auto", "on", "off"}),
};
const int ls_option_count = (int)LS_COUNT(ls_options);
_Static_assert(LS_COUNT(ls_options) <= LS_OPTION_MOST, "raise LS_OPTION_MOST");
