"""oracle.py -- what the model scripts share: random tiny models in folders, our probe, comparisons.

Every model is a function of (family, number): configuration, weights and batches come from seeded
generators. Weights, biases and norms are all random, so that a forgotten bias or norm shows.
"""
import json, os, subprocess, sys
import numpy as np, torch
import transformers
from safetensors.numpy import load_file, save_file

torch.set_num_threads(1)  # tiny models: a second thread only waits
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

PROBE = os.environ["LINESHAFT_PROBE"]
LINESHAFT = os.environ["LINESHAFT"]
T, B = 37, 3  # odd on purpose
FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "olmoe", "olmo2", "phi3")
MIXTURES = ("mixtral", "qwen3_moe", "olmoe")
PER_FAMILY = 4

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}

# What makes each configuration special; sizes are drawn below where nothing is said.
SPECIAL = {
    "gpt2": [
        {},
        {"n_inner": 72, "layer_norm_epsilon": 1e-6},
        {"n_embd": 40, "n_head": 5, "n_layer": 3},
        {"tie_word_embeddings": False}],
    "llama": [
        {"tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
         "attention_bias": True, "old_spelling": True},
        {"rope_parameters": LLAMA3, "mlp_bias": True, "head_dim": 24},
        {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "old_spelling": True,
         "num_attention_heads": 6, "num_key_value_heads": 2}],
    "mistral": [
        {"sliding_window": 8},
        {"sliding_window": 5, "head_dim": 10, "old_spelling": True},
        {"sliding_window": None, "tie_word_embeddings": True},
        {"sliding_window": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}],
    "qwen2": [
        {"tie_word_embeddings": True},
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1,
         "num_hidden_layers": 3},
        {"use_sliding_window": False, "sliding_window": 7, "old_spelling": True},
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}],
    "qwen3": [
        {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16},
        {"tie_word_embeddings": True, "head_dim": 20},
        {"attention_bias": True, "head_dim": 6, "old_spelling": True},
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2, "head_dim": 34,
         "num_hidden_layers": 3}],
    "mixtral": [
        {"num_local_experts": 4},
        {"num_local_experts": 5, "num_experts_per_tok": 2, "old_spelling": True},
        {"num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 8, "head_dim": 10},
        {"num_local_experts": 3, "num_experts_per_tok": 3, "tie_word_embeddings": True}],
    "qwen3_moe": [
        {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 28, "head_dim": 16},
        {"num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 35,
         "norm_topk_prob": True, "old_spelling": True},
        {"num_experts": 16, "num_experts_per_tok": 8, "moe_intermediate_size": 12,
         "tie_word_embeddings": True, "attention_bias": True},
        {"num_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": 40,
         "use_sliding_window": True, "sliding_window": 9}],
    "olmoe": [
        {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 28},
        {"num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": True, "old_spelling": True},
        {"num_experts": 64, "num_experts_per_tok": 8, "intermediate_size": 12, "num_attention_heads": 4,
         "num_key_value_heads": 4, "hidden_size": 48},
        {"num_experts": 6, "num_experts_per_tok": 2, "attention_bias": True, "tie_word_embeddings": True,
         "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 72}],
    "olmo2": [
        {},
        {"attention_bias": True, "old_spelling": True, "num_attention_heads": 6, "num_key_value_heads": 2,
         "hidden_size": 72},
        {"tie_word_embeddings": True, "head_dim": 10, "num_hidden_layers": 3},
        {"rope_parameters": LLAMA3}],
    "phi3": [
        {},
        {"sliding_window": 7, "old_spelling": True, "num_attention_heads": 6, "num_key_value_heads": 2,
         "hidden_size": 72},
        {"tie_word_embeddings": True, "head_dim": 10, "num_hidden_layers": 3},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "sliding_window": None}]}

# One expert of normalised weight has the weight 1 and its router no gradient, only rounding, which AdamW blows
# up: there is no such configuration. And where two experts are as good to the last bits, the two sides take
# different ones at some step: numbers of experts above are such that it does not happen.


def spread_fused(model, name, value):
    heads, kv = model.config.num_attention_heads, model.config.num_key_value_heads
    size = model.model.layers[0].self_attn.head_dim
    for fused, parts, rows in (("qkv_proj", "qkv", (heads * size, kv * size, kv * size)),
                               ("gate_up_proj", ("gate", "up"), (model.config.intermediate_size,) * 2)):
        if fused + ".weight" in name:
            ends = np.cumsum((0, *rows))
            return {name.replace(fused, "%s_proj" % p): value[ends[i]:ends[i + 1]] for i, p in enumerate(parts)}
    return {name: value}


def spread(model, name, value):
    """A parameter by our names: transformers holds all experts in one tensor, and Phi-3 fused projections."""
    if model.config.model_type == "phi3":
        return spread_fused(model, name, value)
    mixtral = model.config.model_type == "mixtral"
    head, found, which = name.partition(".mlp.")
    if model.config.model_type not in MIXTURES or not found:
        return {name: value}
    inside = head + (".block_sparse_moe." if mixtral else ".mlp.")
    if which == "gate.weight":
        return {inside + which: value}
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    out = {}
    for number, expert in enumerate(value):
        at = "%sexperts.%d." % (inside, number)
        if which == "experts.down_proj":
            out[at + down + ".weight"] = expert
        else:
            half = len(expert) // 2
            out[at + gate + ".weight"], out[at + up + ".weight"] = expert[:half], expert[half:]
    return out


def settings_of(model):
    """transformers adds the router's loss only when asked to."""
    return ["train.balance_loss=0"] if model.config.model_type in MIXTURES else []


def configuration(family, number):
    """The transformers configuration, and whether config.json is to use the old spelling."""
    rng = np.random.default_rng([FAMILIES.index(family), number])
    special = dict(SPECIAL[family][number])
    old = special.pop("old_spelling", False)
    heads = int(rng.choice([3, 4, 6]))
    vocab = int(rng.integers(60, 130))
    tokens = {"bos_token_id": 1, "eos_token_id": 2}
    if family == "gpt2":
        keys = {"vocab_size": vocab, "n_positions": T, "n_embd": 8 * heads, "n_layer": 2,
                "n_head": heads, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **tokens}
    else:
        keys = {"vocab_size": vocab, "max_position_embeddings": 64, "hidden_size": 12 * heads,
                "intermediate_size": int(rng.integers(40, 90)), "num_hidden_layers": 2,
                "num_attention_heads": heads, "tie_word_embeddings": False,
                "num_key_value_heads": heads // int(rng.choice([d for d in (1, 2, 3) if heads % d == 0])),
                "rms_norm_eps": float(rng.choice([1e-5, 1e-6])), **tokens}
    if family in ("olmoe", "olmo2", "phi3"):  # PyTorch never trains the embedding of the token that they default to
        keys["pad_token_id"] = None
    keys.update(special)
    return transformers.AutoConfig.for_model(family, **keys), old


def eager(config):
    """Ask for the plain implementations; others want widths that are round numbers."""
    experts = {"experts_implementation": "eager"} if config.model_type in MIXTURES else {}
    return {"attn_implementation": "eager", **experts}


def load(folder):
    """A folder as transformers reads it, in fp32."""
    config = transformers.AutoConfig.from_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **eager(config)).eval()


def random_model(config, seed, std=0.15):
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, **eager(config))
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=rng)
            norm = p.dim() == 1 and name.endswith("weight")
            p.copy_(1 + 0.2 * x if norm else 0.2 * x if p.dim() == 1 else std * x)
    return model.eval()


def respell(folder):
    """config.json as older versions of transformers wrote it."""
    path = os.path.join(folder, "config.json")
    config = json.load(open(path))
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config.pop("layer_types", None)
    config["torch_dtype"] = config.pop("dtype", "float32")
    json.dump(config, open(path, "w"))


def save(model, folder, old_spelling=False, **options):
    model.save_pretrained(folder, **options)
    if old_spelling:
        respell(folder)
    return folder


def batches(vocab, seed, *shape):
    """Tokens, and targets of which a tenth count for nothing when masked."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, vocab, shape).astype(np.int32), rng.integers(0, vocab, shape).astype(np.int32))


def run_probe(command, folder, inputs, *settings):
    save_file(inputs, "in.safetensors")
    sets = ["model.import=" + folder, "data.tokenizer=bytes", *settings]
    return subprocess.run([PROBE, command, "in.safetensors", "out.safetensors", *sets],
                          capture_output=True, text=True)


def probe(command, folder, inputs, *settings):
    """The tensors that our side computes."""
    done = run_probe(command, folder, inputs, *settings)
    if done.returncode != 0:
        fail("%s of %s %s: exit %d, %s" %
             (command, folder, " ".join(settings), done.returncode, done.stderr.strip()))
    return load_file("out.safetensors")


def refused(folder, inputs):
    """Exit status and message for a folder that we do not build."""
    done = run_probe("check", folder, inputs)
    return done.returncode, done.stderr.strip()


def loss_of(model, tokens, targets, reduction="mean"):
    logits = model(torch.tensor(tokens).long(), use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                                             torch.tensor(targets).long().reshape(-1),
                                             ignore_index=-1, reduction=reduction)
    return logits, loss


FAILURES = []


def fail(text):
    print("FAILED " + text)
    FAILURES.append(text)
    raise Wrong(text)


class Wrong(Exception):
    pass


def within(what, got, limit):
    if not got <= limit:  # also when it is not a number
        print("FAILED %s: %.3g, at most %.3g is allowed" % (what, got, limit))
        FAILURES.append(what)


def end(name):
    """The last line of a script."""
    if FAILURES:
        sys.exit("%d failures" % len(FAILURES))
    print("ok " + name)
