/* option.c -- the table of options, and looking things up in it.
 *
 * Everything a user may write in a run file is one row here. A new setting is a field in run.h and
 * a row; parser, documentation, schema and completion follow by themselves. Defaults are written as
 * text and go through the same parser as a user's value, so a default cannot be out of range
 * without a test noticing. */
#include "config/option.h"

#include <ctype.h>
#include <math.h>

#define AT(field) offsetof(ls_run, field)
#define DATA_ONLY "this version is parallel over data only"

const ls_option_section ls_option_sections[] = {
    {"model",
     "The network: its family and its size. With model.import, no other key must be given."},
    {"data", "What the model reads."},
    {"batch", "How many sequences make one step, and how they are cut up for work."},
    {"train", "How long and how the weights are changed."},
    {"lora", "Fine-tuning by small matrices beside weights that stay as they are."},
    {"mesh", "How the work is spread over processes."},
    {"exchange", "How gradients travel between processes."},
    {"local", "With sync: local: how replicas that train apart agree."},
    {"checkpoint", "When the state of the run is saved."},
    {"eval", "How the run is judged on text it does not train on."},
    {"device", "What the run computes on."},
};
const int ls_option_section_count = (int)LS_COUNT(ls_option_sections);

const ls_option ls_options[] = {
    {.key = "name",
     .type = LS_OPTION_STRING,
     .preset = "auto",
     .when_auto = "the run file's name without .yaml",
     .doc = "Name of the run; it becomes the name of the run folder.",
     .offset = AT(name)},
    {.key = "out",
     .type = LS_OPTION_STRING,
     .preset = "auto",
     .when_auto = "runs/ and the name of the run",
     .doc = "Run folder: logs and checkpoints go there. A relative path starts at the current "
            "folder.",
     .offset = AT(out)},

    {.key = "model.import",
     .type = LS_OPTION_STRING,
     .preset = "",
     .doc = "Folder of a model to start from: a Hugging Face folder, or one made by `lineshaft "
            "import` or export. Its configuration gives all other keys of this section; only "
            "context, dropout and init_std may differ.",
     .offset = AT(model.import),
     .fixed = true},
    {.key = "model.family",
     .type = LS_OPTION_ENUM,
     .preset = "gpt2",
     .names = {"gpt2", "llama", "mistral", "qwen2", "qwen3"},
     .limit = "mixtures of experts and other families are not built yet",
     .doc =
         "Architecture of the network; the names are those of Hugging Face configurations. gpt2: "
         "learned positions, LayerNorm, GELU; the others: rotary positions, RMSNorm, gated SiLU; "
         "qwen3 also normalises queries and keys.",
     .offset = AT(model.family),
     .fixed = true},
    {.key = "model.layers",
     .type = LS_OPTION_INT,
     .least = 1,
     .most = 1000,
     .doc = "Transformer blocks. Memory and time grow in proportion.",
     .offset = AT(model.layers),
     .fixed = true},
    {.key = "model.width",
     .type = LS_OPTION_INT,
     .least = 1,
     .most = 65536,
     .doc = "Size of each token's vector. Weights and time grow with its square.",
     .offset = AT(model.width),
     .fixed = true},
    {.key = "model.heads",
     .type = LS_OPTION_INT,
     .least = 1,
     .most = 1024,
     .doc = "Attention heads; they must divide the width, unless model.head_size is given.",
     .offset = AT(model.heads),
     .fixed = true},
    {.key = "model.context",
     .type = LS_OPTION_INT,
     .least = 1,
     .most = 1048576,
     .unit = "tokens",
     .doc = "Tokens of one sequence: how far back the model sees. Attention time grows with its "
            "square.",
     .offset = AT(model.context),
     .fixed = true},
    {.key = "model.kv_heads",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 1,
     .most = 1024,
     .when_auto = "as many as model.heads",
     .doc = "Heads of keys and values, each read by an equal number of query heads (grouped-query "
            "attention). They must divide model.heads; gpt2 has as many as heads.",
     .offset = AT(model.kv_heads),
     .fixed = true},
    {.key = "model.vocab",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 2,
     .most = 16777216,
     .unit = "tokens",
     .when_auto = "the size of the tokenizer",
     .doc = "Rows of the embedding; a number above the tokenizer's size leaves rows unused.",
     .offset = AT(model.vocab),
     .fixed = true},
    {.key = "model.mlp",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 1,
     .most = 1048576,
     .when_auto =
         "4 times model.width for gpt2, otherwise 8/3 of it, rounded up to a multiple of 64",
     .doc = "Inner width of the feed-forward layers.",
     .offset = AT(model.mlp),
     .fixed = true},
    {.key = "model.dropout",
     .type = LS_OPTION_FLOAT,
     .preset = "0",
     .least = 0,
     .most = 1,
     .below = true,
     .doc = "Share of activations set to zero while training, against learning a small text by "
            "heart.",
     .offset = AT(model.dropout),
     .fixed = true},
    {.key = "model.tied",
     .type = LS_OPTION_ENUM,
     .preset = "auto",
     .names = {"auto", "true", "false"},
     .doc = "Whether the head uses the embedding's weights; auto: true.",
     .offset = AT(model.tied),
     .fixed = true},
    {.key = "model.bias",
     .type = LS_OPTION_ENUM,
     .preset = "auto",
     .names = {"auto", "none", "qkv", "attention", "mlp", "all"},
     .doc =
         "Linear layers of a block that have a bias; auto: all for gpt2, qkv for qwen2, none for "
         "the others.",
     .offset = AT(model.bias),
     .fixed = true},
    {.key = "model.head_size",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 1,
     .most = 1024,
     .when_auto = "model.width divided by model.heads",
     .doc = "Size of a head; even where positions are rotary.",
     .offset = AT(model.head_size),
     .fixed = true},
    {.key = "model.rope_theta",
     .type = LS_OPTION_FLOAT,
     .preset = "10000",
     .least = 1,
     .above = true,
     .most = 1e12,
     .doc = "Base of the rotary frequencies; a longer context wants a larger one. Not for gpt2.",
     .offset = AT(model.rope_theta),
     .fixed = true},
    {.key = "model.rope_scaling",
     .type = LS_OPTION_ENUM,
     .preset = "none",
     .names = {"none", "linear", "llama3"},
     .limit = "dynamic, yarn and longrope are not built yet",
     .doc = "How rotary frequencies were changed for a longer context.",
     .offset = AT(model.rope_scaling),
     .fixed = true},
    {.key = "model.rope_factor",
     .type = LS_OPTION_FLOAT,
     .preset = "1",
     .least = 1,
     .most = 1e6,
     .doc = "How many times longer the context became by model.rope_scaling.",
     .offset = AT(model.rope_factor),
     .fixed = true},
    {.key = "model.rope_low",
     .type = LS_OPTION_FLOAT,
     .preset = "1",
     .least = 0,
     .above = true,
     .most = 1e6,
     .doc = "llama3 scaling: turns within the original context below which a frequency is divided "
            "by the factor.",
     .offset = AT(model.rope_low),
     .fixed = true},
    {.key = "model.rope_high",
     .type = LS_OPTION_FLOAT,
     .preset = "4",
     .least = 0,
     .above = true,
     .most = 1e6,
     .doc = "llama3 scaling: turns within the original context above which a frequency stays.",
     .offset = AT(model.rope_high),
     .fixed = true},
    {.key = "model.rope_original",
     .type = LS_OPTION_INT,
     .preset = "8192",
     .least = 1,
     .most = 1e9,
     .unit = "tokens",
     .doc = "llama3 scaling: the context before it was made longer.",
     .offset = AT(model.rope_original),
     .fixed = true},
    {.key = "model.window",
     .type = LS_OPTION_INT,
     .preset = "0",
     .least = 0,
     .most = 1048576,
     .unit = "tokens",
     .doc = "Sliding window: a token sees this many positions, itself included; 0: all before it.",
     .offset = AT(model.window),
     .fixed = true},
    {.key = "model.window_from",
     .type = LS_OPTION_INT,
     .preset = "0",
     .least = 0,
     .most = 1000,
     .doc = "First layer (counted from 0) that has the window; those before it see everything.",
     .offset = AT(model.window_from),
     .fixed = true},
    {.key = "model.norm_eps",
     .type = LS_OPTION_FLOAT,
     .preset = "auto",
     .least = 0,
     .above = true,
     .most = 1,
     .when_auto = "1e-5 for gpt2, otherwise 1e-6",
     .doc = "Added to the variance in every norm.",
     .offset = AT(model.norm_eps),
     .fixed = true},
    {.key = "model.init_std",
     .type = LS_OPTION_FLOAT,
     .preset = "0.02",
     .least = 0,
     .above = true,
     .most = 1,
     .doc = "Standard deviation of the initial weights.",
     .offset = AT(model.init_std),
     .fixed = true},

    {.key = "data.text",
     .type = LS_OPTION_STRINGS,
     .preset = "[]",
     .doc = "Text to train on: files, patterns such as corpus/*.txt, or builtin:stories; .txt and "
            ".jsonl, also .gz and .zst. Relative paths start at the current folder. Give this or "
            "data.shards.",
     .offset = AT(data.text),
     .fixed = true},
    {.key = "data.shards",
     .type = LS_OPTION_STRINGS,
     .preset = "[]",
     .doc = "Token shards (.lst) made by `lineshaft data build`, instead of text: nothing is left "
            "to tokenize at the start.",
     .offset = AT(data.shards),
     .fixed = true},
    {.key = "data.weights",
     .type = LS_OPTION_FLOATS,
     .preset = "[]",
     .least = 0,
     .above = true,
     .most = HUGE_VAL,
     .doc = "Shares of a mixture, one per entry of data.text or data.shards; they need not add up "
            "to 1. Empty: by size.",
     .offset = AT(data.weights),
     .fixed = true},
    {.key = "data.tokenizer",
     .type = LS_OPTION_STRING,
     .preset = "auto",
     .when_auto = "the tokenizer in the folder of model.import, otherwise bytes",
     .doc = "How text becomes tokens: bytes (each byte is one), or a folder with a tokenizer.json.",
     .offset = AT(data.tokenizer),
     .fixed = true},
    {.key = "data.field",
     .type = LS_OPTION_STRING,
     .preset = "text",
     .doc = "Field of a .jsonl line that holds the text.",
     .offset = AT(data.field),
     .fixed = true},
    {.key = "data.template",
     .type = LS_OPTION_STRING,
     .preset = "none",
     .doc =
         "Chat data: lines of .jsonl are conversations (messages), written out by this template, "
         "with loss only on what the assistant says. auto: the tokenizer's own template; chatml, "
         "llama3 or qwen: a built-in one; or the path of a .jinja file. none: plain text.",
     .offset = AT(data.chat_template),
     .fixed = true},
    {.key = "data.validation",
     .type = LS_OPTION_FLOAT,
     .preset = "10%",
     .least = 0,
     .most = 0.9,
     .doc = "Share of the tokens at the end of each source that is kept for validation and never "
            "trained on.",
     .offset = AT(data.validation),
     .fixed = true},
    {.key = "data.utf8",
     .type = LS_OPTION_ENUM,
     .preset = "strict",
     .names = {"strict", "replace", "bytes"},
     .doc =
         "Bytes of a text that are not UTF-8: an error, replaced by U+FFFD, or kept as they are.",
     .offset = AT(data.utf8),
     .fixed = true},
    {.key = "data.isolate",
     .type = LS_OPTION_BOOL,
     .preset = "false",
     .doc = "Tokens see only tokens of their own document.",
     .offset = AT(data.isolate),
     .fixed = true},
    {.key = "data.shuffle",
     .type = LS_OPTION_BOOL,
     .preset = "true",
     .doc = "Read the sequences in a random order, a new one each epoch; costs no memory.",
     .offset = AT(data.shuffle),
     .fixed = true},

    {.key = "batch.sequences",
     .type = LS_OPTION_INT,
     .preset = "16",
     .least = 1,
     .most = 1048576,
     .unit = "sequences",
     .doc = "Global batch: sequences of one step, on however many machines. The time of a step "
            "grows in proportion, memory does not.",
     .offset = AT(batch.sequences),
     .fixed = true},
    {.key = "batch.leaf",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 1,
     .most = 1048576,
     .unit = "sequences",
     .when_auto = "the largest divisor of batch.sequences (and batch.ramp_from) up to 8",
     .doc = "Sequences of one leaf, the unit whose gradients are summed in a fixed order; it must "
            "divide batch.sequences.",
     .offset = AT(batch.leaf),
     .fixed = true},
    {.key = "batch.group",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 1,
     .most = 1048576,
     .unit = "leaves",
     .when_auto = "as many leaves as make up to 4096 tokens; on a GPU up to 65536, or what fits",
     .doc = "Leaves that one forward and backward call computes: more need more memory and keep "
            "the cores busier. A power of two, or all leaves. In ordered mode it changes no "
            "result.",
     .offset = AT(batch.group)},
    {.key = "batch.ramp",
     .type = LS_OPTION_INT,
     .preset = "0",
     .least = 0,
     .most = 1e9,
     .unit = "steps",
     .doc = "Batch ramp: the batch grows from batch.ramp_from to batch.sequences in this many "
            "steps, a leaf at a time; 0: every step has batch.sequences. Schedules count steps, so "
            "the learning rate does not depend on it.",
     .offset = AT(batch.ramp),
     .fixed = true},
    {.key = "batch.ramp_from",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 1,
     .most = 1048576,
     .unit = "sequences",
     .when_auto = "one leaf",
     .doc = "Sequences of the first step of a batch ramp; a multiple of batch.leaf.",
     .offset = AT(batch.ramp_from),
     .fixed = true},

    {.key = "train.steps",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 0,
     .most = LS_OPTION_BIG,
     .unit = "steps",
     .when_auto = "1000 when no other end is set, otherwise 0",
     .doc = "Stop after this many steps; 0: no such limit.",
     .offset = AT(train.steps)},
    {.key = "train.tokens",
     .type = LS_OPTION_INT,
     .preset = "0",
     .least = 0,
     .most = LS_OPTION_BIG,
     .unit = "tokens",
     .doc = "Stop after this many training tokens; 0: no such limit.",
     .offset = AT(train.tokens)},
    {.key = "train.seconds",
     .type = LS_OPTION_DURATION,
     .preset = "0",
     .least = 0,
     .most = HUGE_VAL,
     .unit = "seconds",
     .doc = "Stop after this much training time; 0: no such limit.",
     .offset = AT(train.seconds)},
    {.key = "train.target_loss",
     .type = LS_OPTION_FLOAT,
     .preset = "0",
     .least = 0,
     .most = HUGE_VAL,
     .doc = "Stop when the validation loss is at or below this; 0: no such limit.",
     .offset = AT(train.target_loss)},
    {.key = "train.lr",
     .type = LS_OPTION_FLOAT,
     .preset = "1e-3",
     .least = 0,
     .above = true,
     .most = 100,
     .doc = "Learning rate at its highest.",
     .offset = AT(train.lr),
     .fixed = true},
    {.key = "train.min_lr",
     .type = LS_OPTION_FLOAT,
     .preset = "auto",
     .least = 0,
     .most = 100,
     .when_auto = "a tenth of train.lr",
     .doc = "Learning rate at which the schedule ends.",
     .offset = AT(train.min_lr),
     .fixed = true},
    {.key = "train.lr_rule",
     .type = LS_OPTION_ENUM,
     .preset = "none",
     .names = {"none", "linear", "sqrt"},
     .doc = "How train.lr and train.min_lr follow the batch. linear: times batch.sequences / "
            "train.lr_base_batch; sqrt: times the root of it; none: they are taken as written.",
     .offset = AT(train.lr_rule),
     .fixed = true},
    {.key = "train.lr_base_batch",
     .type = LS_OPTION_INT,
     .preset = "0",
     .least = 0,
     .most = 1048576,
     .unit = "sequences",
     .doc = "Batch for which train.lr was chosen, in sequences; train.lr_rule carries it over to "
            "batch.sequences. 0: none.",
     .offset = AT(train.lr_base_batch),
     .fixed = true},
    {.key = "train.schedule",
     .type = LS_OPTION_ENUM,
     .preset = "cosine",
     .names = {"constant", "linear", "cosine", "wsd"},
     .doc = "Course of the learning rate after warm-up; wsd stays at the top and falls in the last "
            "train.decay steps.",
     .offset = AT(train.schedule),
     .fixed = true},
    {.key = "train.warmup",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 0,
     .most = LS_OPTION_BIG,
     .unit = "steps",
     .when_auto = "a twentieth of the steps, at most 100",
     .doc = "Steps in which the learning rate climbs from 0.",
     .offset = AT(train.warmup)},
    {.key = "train.decay",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 0,
     .most = LS_OPTION_BIG,
     .unit = "steps",
     .when_auto = "a fifth of the steps",
     .doc = "Steps of the final fall of the wsd schedule.",
     .offset = AT(train.decay)},
    {.key = "train.optimizer",
     .type = LS_OPTION_ENUM,
     .preset = "adamw",
     .names = {"adamw", "lamb", "muon"},
     .doc = "Rule that changes the weights. adamw; lamb: AdamW's direction with steps as long as "
            "each tensor's weights ask for, made for large batches; muon: orthogonal steps for the "
            "matrices of blocks, AdamW for the rest. adamw and lamb keep two more numbers per "
            "weight in memory, muon one per weight of a matrix.",
     .offset = AT(train.optimizer),
     .fixed = true},
    {.key = "train.beta1",
     .type = LS_OPTION_FLOAT,
     .preset = "0.9",
     .least = 0,
     .most = 1,
     .below = true,
     .doc = "Decay of AdamW's mean of gradients.",
     .offset = AT(train.beta1),
     .fixed = true},
    {.key = "train.beta2",
     .type = LS_OPTION_FLOAT,
     .preset = "0.95",
     .least = 0,
     .most = 1,
     .below = true,
     .doc = "Decay of AdamW's mean of squared gradients.",
     .offset = AT(train.beta2),
     .fixed = true},
    {.key = "train.eps",
     .type = LS_OPTION_FLOAT,
     .preset = "1e-8",
     .least = 0,
     .above = true,
     .most = 1,
     .doc = "Added to AdamW's divisor.",
     .offset = AT(train.eps),
     .fixed = true},
    {.key = "train.weight_decay",
     .type = LS_OPTION_FLOAT,
     .preset = "0.1",
     .least = 0,
     .most = 100,
     .doc = "Pull of matrices towards zero; biases and norms are spared.",
     .offset = AT(train.weight_decay),
     .fixed = true},
    {.key = "train.momentum",
     .type = LS_OPTION_FLOAT,
     .preset = "0.95",
     .least = 0,
     .most = 1,
     .below = true,
     .doc = "Decay of Muon's mean of gradients, for the matrices of blocks.",
     .offset = AT(train.momentum),
     .fixed = true},
    {.key = "train.adamw_lr",
     .type = LS_OPTION_FLOAT,
     .preset = "0",
     .least = 0,
     .most = 100,
     .doc = "With muon: highest learning rate of embeddings, head, norms and biases, which AdamW "
            "updates; it takes the course of train.lr. 0: the same as train.lr.",
     .offset = AT(train.adamw_lr),
     .fixed = true},
    {.key = "train.clip",
     .type = LS_OPTION_FLOAT,
     .preset = "1.0",
     .least = 0,
     .most = HUGE_VAL,
     .doc = "Largest norm of the whole gradient; longer ones are scaled down. 0: off.",
     .offset = AT(train.clip),
     .fixed = true},
    {.key = "train.seed",
     .type = LS_OPTION_INT,
     .preset = "1",
     .least = 0,
     .most = LS_OPTION_BIG,
     .doc = "Start of all random choices: initial weights, order of the data, dropout.",
     .offset = AT(train.seed),
     .fixed = true},
    {.key = "train.reduce",
     .type = LS_OPTION_ENUM,
     .preset = "ordered",
     .names = {"ordered", "fast"},
     .doc = "How gradients are summed. ordered: equal bits for any number of threads and calls; "
            "fast: the quickest way, equal within rounding.",
     .offset = AT(train.reduce),
     .fixed = true},
    {.key = "train.nonfinite",
     .type = LS_OPTION_ENUM,
     .preset = "stop",
     .names = {"stop", "skip"},
     .doc = "What happens at a NaN or Inf in the loss or the gradient: stop and name the tensor, "
            "or skip the step.",
     .offset = AT(train.nonfinite)},
    {.key = "train.freeze",
     .type = LS_OPTION_STRINGS,
     .preset = "[]",
     .doc =
         "Parameters that stay as they are: names as `lineshaft ckpt show` lists them, with * for "
         "any text. They take no memory for gradients and the optimizer.",
     .offset = AT(train.freeze),
     .fixed = true},

    {.key = "lora.rank",
     .type = LS_OPTION_INT,
     .preset = "0",
     .least = 0,
     .most = 4096,
     .doc =
         "Rank of the small matrices (LoRA); 0: none, all weights are trained. With a rank, only "
         "the small matrices are.",
     .offset = AT(lora.rank),
     .fixed = true},
    {.key = "lora.alpha",
     .type = LS_OPTION_FLOAT,
     .preset = "auto",
     .least = 0,
     .most = 1e6,
     .when_auto = "twice lora.rank",
     .doc = "The small matrices count alpha / rank times.",
     .offset = AT(lora.alpha),
     .fixed = true},
    {.key = "lora.targets",
     .type = LS_OPTION_STRINGS,
     .preset = "[]",
     .doc = "Layers that get small matrices: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
            "down_proj; for gpt2 c_attn, c_proj, c_fc. Empty: all of them.",
     .offset = AT(lora.targets),
     .fixed = true},

    {.key = "precision",
     .type = LS_OPTION_ENUM,
     .preset = "fp32",
     .names = {"fp32", "bf16", "fp8"},
     .limit = "fp16 is not built yet",
     .doc =
         "Number format of activations and of the weights that the model reads. With bf16 the "
         "weights that are trained and saved, gradients, moments and sums stay fp32; there is no "
         "loss scaling. On a CPU without AVX512_BF16 or AMX bf16 saves memory, not time. fp8 is "
         "bf16 with the products of all blocks but the first and the last in 8 bits, scaled by "
         "the largest magnitude of each tensor: on GPUs that have it, with train.reduce: fast.",
     .offset = AT(precision),
     .fixed = true},

    {.key = "mesh.dp",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 1,
     .most = 4096,
     .when_auto = "as many as there are processes (-n)",
     .doc = "Data-parallel width: copies of the model that share a batch.",
     .offset = AT(mesh.dp)},
    {.key = "mesh.tp",
     .type = LS_OPTION_INT,
     .preset = "1",
     .least = 1,
     .most = 1,
     .limit = DATA_ONLY,
     .doc = "Tensor-parallel width: processes that share each layer.",
     .offset = AT(mesh.tp)},
    {.key = "mesh.pp",
     .type = LS_OPTION_INT,
     .preset = "1",
     .least = 1,
     .most = 1,
     .limit = DATA_ONLY,
     .doc = "Pipeline stages: processes that share the layers.",
     .offset = AT(mesh.pp)},
    {.key = "mesh.cp",
     .type = LS_OPTION_INT,
     .preset = "1",
     .least = 1,
     .most = 1,
     .limit = DATA_ONLY,
     .doc = "Context-parallel width: processes that share a sequence.",
     .offset = AT(mesh.cp)},
    {.key = "mesh.ep",
     .type = LS_OPTION_INT,
     .preset = "1",
     .least = 1,
     .most = 1,
     .limit = DATA_ONLY,
     .doc = "Expert-parallel width: processes that share the experts.",
     .offset = AT(mesh.ep)},
    {.key = "mesh.zero",
     .type = LS_OPTION_INT,
     .preset = "0",
     .least = 0,
     .most = 3,
     .doc = "ZeRO stage: what data-parallel copies divide instead of holding it each. 0: nothing; "
            "1: the optimizer's moments and the update; 2: gradients too; 3: weights too, gathered "
            "part by part while they are used.",
     .offset = AT(mesh.zero)},
    {.key = "mesh.balance",
     .type = LS_OPTION_ENUM,
     .preset = "off",
     .names = {"off", "auto"},
     .doc = "Whether the slices of a batch follow the speed of ranks. off: they are equal, or as "
            "mesh.weights says; auto: a rank that is measured to be slow gets fewer leaves, and "
            "none gets more than twice an equal share. In ordered mode it changes no result.",
     .offset = AT(mesh.balance)},
    {.key = "mesh.weights",
     .type = LS_OPTION_FLOATS,
     .preset = "[]",
     .least = 1e-6,
     .most = 1e6,
     .doc = "Shares of the batch, one per rank; they need not add up to 1. With balance: auto the "
            "run begins with them. Empty: equal ones.",
     .offset = AT(mesh.weights)},
    {.key = "mesh.bucket",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 65536,
     .most = LS_OPTION_BIG,
     .unit = "bytes",
     .when_auto = "so large that what a message costs by itself is a tenth of the exchange at most",
     .doc = "Gradients that are exchanged at a time: backward goes on while a bucket travels. The "
            "result does not depend on it.",
     .offset = AT(mesh.bucket)},

    {.key = "exchange.compress",
     .type = LS_OPTION_ENUM,
     .preset = "none",
     .names = {"none", "bf16", "int8", "topk"},
     .doc =
         "How gradients travel between nodes; inside a node they stay as they are. bf16: half of "
         "the bytes; int8: a quarter, with a scale for each 256 of them; topk: only the largest. "
         "What is rounded or left out is added to the next step. Needs train.reduce: fast.",
     .offset = AT(exchange.compress)},
    {.key = "exchange.topk",
     .type = LS_OPTION_FLOAT,
     .preset = "0.01",
     .least = 0,
     .above = true,
     .most = 0.5,
     .doc =
         "Part of the gradients that exchange.compress: topk sends: of each 4096 the largest, at "
         "least one.",
     .offset = AT(exchange.topk)},

    {.key = "sync",
     .type = LS_OPTION_ENUM,
     .preset = "allreduce",
     .names = {"allreduce", "local"},
     .limit = "a parameter server is not built yet",
     .doc = "How copies of the model agree. allreduce: they sum their gradients in every step. "
            "local: each trains by itself on its part of every batch, and now and then they agree "
            "on new weights (DiLoCo); for slow links.",
     .offset = AT(sync),
     .fixed = true},

    {.key = "local.steps",
     .type = LS_OPTION_INT,
     .preset = "50",
     .least = 1,
     .most = 1000000,
     .unit = "steps",
     .doc = "Steps that replicas make by themselves before they agree. Validation, samples, "
            "checkpoints and a stop wait until they have.",
     .offset = AT(local.steps),
     .fixed = true},
    {.key = "local.delay",
     .type = LS_OPTION_INT,
     .preset = "0",
     .least = 0,
     .most = 1000000,
     .unit = "steps",
     .doc = "Steps that replicas go on with while what they agree on is on its way; what they "
            "learn meanwhile is kept. 0: they wait for it.",
     .offset = AT(local.delay),
     .fixed = true},
    {.key = "local.lr",
     .type = LS_OPTION_FLOAT,
     .preset = "1",
     .least = 0,
     .above = true,
     .most = 10,
     .doc = "How far the common weights move towards the mean of the replicas; 1 without momentum: "
            "all the way. DiLoCo's authors take 0.7, with a momentum of 0.9, for 500 steps.",
     .offset = AT(local.lr),
     .fixed = true},
    {.key = "local.momentum",
     .type = LS_OPTION_FLOAT,
     .preset = "0.5",
     .least = 0,
     .most = 1,
     .below = true,
     .doc = "Nesterov momentum of that movement; 0: none.",
     .offset = AT(local.momentum),
     .fixed = true},
    {.key = "local.compress",
     .type = LS_OPTION_ENUM,
     .preset = "int8",
     .names = {"none", "bf16", "int8"},
     .doc = "How differences of weights travel: fp32, bf16, or 8 bits with a scale for each 256 of "
            "them.",
     .offset = AT(local.compress),
     .fixed = true},

    {.key = "checkpoint.every",
     .type = LS_OPTION_INT,
     .preset = "100",
     .least = 0,
     .most = LS_OPTION_BIG,
     .unit = "steps",
     .doc = "Save after this many steps; 0: only at the end.",
     .offset = AT(checkpoint.every)},
    {.key = "checkpoint.keep",
     .type = LS_OPTION_INT,
     .preset = "2",
     .least = 1,
     .most = 1000000,
     .doc = "Newest checkpoints that are kept; older ones are removed.",
     .offset = AT(checkpoint.keep)},

    {.key = "eval.every",
     .type = LS_OPTION_INT,
     .preset = "100",
     .least = 0,
     .most = LS_OPTION_BIG,
     .unit = "steps",
     .doc = "Measure the validation loss after this many steps; 0: only at the end.",
     .offset = AT(eval.every)},
    {.key = "eval.sequences",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 1,
     .most = 1048576,
     .unit = "sequences",
     .when_auto = "all there are, at most 256",
     .doc = "Validation sequences of one measurement, the same ones each time.",
     .offset = AT(eval.sequences)},
    {.key = "eval.sample",
     .type = LS_OPTION_STRING,
     .preset = "",
     .doc = "Prompt of a text that the model writes at each measurement; empty: none.",
     .offset = AT(eval.sample)},
    {.key = "eval.sample_tokens",
     .type = LS_OPTION_INT,
     .preset = "100",
     .least = 1,
     .most = 1048576,
     .unit = "tokens",
     .doc = "Length of that text.",
     .offset = AT(eval.sample_tokens)},

    {.key = "device.kind",
     .type = LS_OPTION_ENUM,
     .preset = "auto",
     .names = {"auto", "cpu", "cuda"},
     .doc = "What computes: the CPU, or one NVIDIA GPU (cuda, which needs the plugin that "
            "\"make cuda\" builds). auto: the CPU.",
     .offset = AT(device.kind)},
    {.key = "device.threads",
     .type = LS_OPTION_INT,
     .preset = "auto",
     .least = 1,
     .most = 4096,
     .unit = "threads",
     .when_auto = "the physical cores that this process may use, by affinity, CPU quota and the "
                  "ranks beside it; `lineshaft doctor` says why",
     .doc = "Threads that compute. In ordered mode they change no result.",
     .offset = AT(device.threads)},
    {.key = "device.pin",
     .type = LS_OPTION_ENUM,
     .preset = "auto",
     .names = {"auto", "on", "off"},
     .doc =
         "Whether each thread stays on a core of its own; auto: when there are as many threads as "
         "cores that this process may use, and no CPU quota. Changes speed only.",
     .offset = AT(device.pin)},
    {.key = "device.isa",
     .type = LS_OPTION_ENUM,
     .preset = "auto",
     .names = {"auto", "reference", "generic", "avx2", "avx512"},
     .doc = "Instruction set of the kernels; auto: the best this CPU has. reference is slow and "
            "exact, for checking.",
     .offset = AT(device.isa)},
    {.key = "device.pack",
     .type = LS_OPTION_ENUM,
     .preset = "auto",
     .names = {"auto", "on", "off"},
     .doc = "Whether weights are kept a second and a third time in the order in which the CPU's "
            "products read them, made once after each change instead of in every call. auto: when "
            "a step has three calls or more and a quarter of the free memory is left. Changes "
            "speed and "
            "memory only.",
     .offset = AT(device.pack)},
};
const int ls_option_count = (int)LS_COUNT(ls_options);
_Static_assert(LS_COUNT(ls_options) <= LS_OPTION_MOST, "raise LS_OPTION_MOST");

/* Keys that a later version will have; whoever writes one deserves a better answer than "unknown".
 */
static const struct {
    const char *key, *why;
} later[] = {
    {"model.experts", "mixtures of experts are not built yet"},
};

const ls_option *ls_option_find(const char *key)
{
    for (int i = 0; i < ls_option_count; i++)
        if (strcmp(ls_options[i].key, key) == 0)
            return &ls_options[i];
    return NULL;
}

int ls_option_index(const ls_option *row)
{
    return (int)(row - ls_options);
}

const ls_option_section *ls_option_find_section(const char *name)
{
    for (int i = 0; i < ls_option_section_count; i++)
        if (strcmp(ls_option_sections[i].name, name) == 0)
            return &ls_option_sections[i];
    return NULL;
}

const char *ls_option_leaf(const ls_option *row)
{
    const char *dot = strchr(row->key, '.');

    return dot ? dot + 1 : row->key;
}

bool ls_option_in(const ls_option *row, const char *section)
{
    size_t n = strlen(section);

    if (n == 0)
        return !strchr(row->key, '.');
    return strncmp(row->key, section, n) == 0 && row->key[n] == '.';
}

const char *ls_option_later(const char *key)
{
    for (size_t i = 0; i < LS_COUNT(later); i++)
        if (strcmp(later[i].key, key) == 0)
            return later[i].why;
    return NULL;
}

void ls_option_variable(const ls_option *row, char *out, size_t cap)
{
    snprintf(out, cap, "LINESHAFT_%s", row->key);
    for (char *p = out; *p; p++)
        *p = *p == '.' ? '_' : (char)toupper((unsigned char)*p);
}

/* --- describing ------------------------------------------------------------------------------- */

static void describe_range(const ls_option *row, ls_str *out)
{
    bool top = row->most < LS_OPTION_BIG;

    if (row->least == row->most)
        ls_str_printf(out, "%g", row->least);
    else if (top && !row->above && !row->below)
        ls_str_printf(out, " from %.10g to %.10g", row->least, row->most);
    else
        ls_str_printf(out, "%s %.10g", row->above ? " above" : ", at least", row->least);
    if (top && row->least != row->most && (row->above || row->below))
        ls_str_printf(out, " and %s %.10g", row->below ? "below" : "at most", row->most);
}

static void describe_names(const ls_option *row, ls_str *out)
{
    for (int i = 0; row->names[i]; i++)
        ls_str_printf(out, "%s%s", i == 0 ? "" : row->names[i + 1] ? ", " : " or ", row->names[i]);
}

void ls_option_describe(const ls_option *row, ls_str *out)
{
    bool single = row->least == row->most;

    switch (row->type) {
    case LS_OPTION_INT:
        ls_str_append(out, single ? "" : "a whole number");
        describe_range(row, out);
        break;
    case LS_OPTION_FLOAT:
        ls_str_append(out, "a number");
        describe_range(row, out);
        break;
    case LS_OPTION_DURATION:
        ls_str_append(out, "a time such as 90s, 10m or 1h30m");
        break;
    case LS_OPTION_BOOL:
        ls_str_append(out, "true or false");
        break;
    case LS_OPTION_ENUM:
        describe_names(row, out);
        break;
    case LS_OPTION_STRING:
        if (row->names[0])
            describe_names(row, out);
        else
            ls_str_append(out, "text");
        break;
    case LS_OPTION_STRINGS:
        ls_str_append(out, "a list of texts");
        break;
    case LS_OPTION_FLOATS:
        ls_str_append(out, "a list of numbers");
        describe_range(row, out);
        break;
    }
    if (row->when_auto)
        ls_str_append(out, single ? " or auto" : ", or auto");
}

/* --- "did you mean" --------------------------------------------------------------------------- */

/* How many edits still look like a slip of the hand in a name of this length. */
static int slips(const char *name)
{
    size_t n = strlen(name);

    return n <= 2 ? 0 : n <= 4 ? 1 : n <= 9 ? 2 : 3;
}

/* Edit distance in which two swapped neighbours ("laef") count once. */
static int edits(const char *a, const char *b)
{
    size_t n = strlen(a), i = 0;

    if (n == strlen(b)) {
        while (i < n && a[i] == b[i])
            i++;
        if (i + 1 < n && a[i] == b[i + 1] && a[i + 1] == b[i] && strcmp(a + i + 2, b + i + 2) == 0)
            return 1;
    }
    return ls_str_distance(a, b);
}

/* Keys of other sections with exactly this last part: "steps" -> "train.steps". */
static int suggest_elsewhere(const char *key, ls_str *out)
{
    int found = 0;

    for (int i = 0; i < ls_option_count; i++) {
        if (strcmp(ls_option_leaf(&ls_options[i]), key) != 0)
            continue;
        ls_str_printf(out, "%s\"%s\"", found++ ? " or " : "Did you mean ", ls_options[i].key);
    }
    ls_str_append(out, found ? "?" : "");
    return found;
}

/* The nearest name within a slip; same_section first, then anywhere. NULL: nothing is near. */
static const char *nearest(const char *section, const char *key)
{
    const char *best = NULL;
    int least = slips(key) + 1;

    for (int i = 0; i < ls_option_count; i++) {
        int d = edits(ls_option_leaf(&ls_options[i]), key);
        if (ls_option_in(&ls_options[i], section) && d < least) {
            least = d;
            best = ls_options[i].key;
        }
    }
    for (int i = 0; i < ls_option_section_count && !*section; i++) {
        int d = edits(ls_option_sections[i].name, key);
        if (d < least) {
            least = d;
            best = ls_option_sections[i].name;
        }
    }
    for (int i = 0; i < ls_option_count && !best; i++) {
        if (edits(ls_option_leaf(&ls_options[i]), key) <= slips(key) ||
            edits(ls_options[i].key, key) <= slips(key))
            best = ls_options[i].key;
    }
    return best;
}

void ls_option_suggest(const char *section, const char *key, ls_str *out)
{
    const char *best;

    if (suggest_elsewhere(key, out))
        return;
    best = nearest(section, key);
    if (best) {
        ls_str_printf(out, "Did you mean \"%s\"?", best);
        return;
    }
    if (*section)
        ls_str_printf(out, "The keys of \"%s\" are", section);
    else
        ls_str_append(out, "The keys of a run file are");
    int n = 0;
    for (int i = 0; i < ls_option_count; i++)
        if (ls_option_in(&ls_options[i], section))
            ls_str_printf(out, "%s %s", n++ ? "," : "", ls_option_leaf(&ls_options[i]));
    for (int i = 0; i < ls_option_section_count && !*section; i++)
        ls_str_printf(out, ", %s", ls_option_sections[i].name);
    ls_str_append_char(out, '.');
}
