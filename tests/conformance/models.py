"""models.py -- logits, losses, gradients and training steps against transformers, PyTorch and peft."""
import os, sys
import numpy as np, torch, transformers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import oracle
from oracle import B, T, FAMILIES, PER_FAMILY

STEPS = 50
# How the gradients of a batch are summed in training number 0, 1 ...: order, leaf, leaves of a call.
SUMS = [("ordered", 1, 1), ("fast", 1, 1), ("fast", 3, 1), ("ordered", 1, 2)]
TRAIN = ["train.lr=1e-3", "train.beta1=0.9", "train.beta2=0.95", "train.eps=1e-8",
         "train.weight_decay=0.1", "train.clip=1.0"]


def noisy(name):
    """GPT-2's key bias moves all scores of a query alike: its true gradient is 0."""
    return name.endswith("attn.c_attn.bias")


def compare_gradients(what, ours, theirs):
    """Relative difference of each tensor, the largest of all; ours has them under both orders."""
    worst = 0.0
    for name, want in theirs.items():
        for order in ("ordered/", "fast/"):
            got = ours[order + name]
            if got.shape != tuple(want.shape):
                oracle.fail("%s: %s has shape %s, theirs %s" % (what, name, got.shape, tuple(want.shape)))
            difference, size = got - want, np.linalg.norm(want)
            if noisy(name):
                third = len(want) // 3
                oracle.within("%s: gradient of the key part of %s, absolute" % (what, name),
                              np.abs(difference[third:2 * third]).max(), 1e-6)
                keep = np.r_[0:third, 2 * third:3 * third]
                difference, size = difference[keep], np.linalg.norm(want[keep])
            relative = np.linalg.norm(difference) / max(size, 1e-12)
            oracle.within("%s: gradient %s%s, relative" % (what, order, name), relative, 1e-4)
            worst = max(worst, relative)
    if {n.split("/", 1)[1] for n in ours if "/" in n} != set(theirs):
        oracle.fail("%s: other parameters have gradients" % what)
    return worst


def gradients_of(model, rename=lambda name: name):
    return {rename(name): part for n, p in model.named_parameters() if p.requires_grad
            for name, part in oracle.spread(model, n, p.grad.numpy()).items()}


def check_numbers(what, model, folder, seed, *settings, shape=(B, T), extra=None, rename=lambda name: name):
    tokens, targets = oracle.batches(model.config.vocab_size, seed, *shape)
    targets[-1, 3:9] = targets[0, 0] = -1
    ours = oracle.probe("check", folder, {"tokens": tokens, "targets": targets, **(extra or {})},
                        *oracle.settings_of(model), *settings)
    model.zero_grad()
    logits, loss = oracle.loss_of(model, tokens, targets)
    loss.backward()
    _, each = oracle.loss_of(model, tokens, targets, "none")
    far = np.abs(ours["logits"] - logits.detach().numpy()).max()
    far_loss = np.abs(ours["losses"].reshape(-1) - each.detach().numpy()).max()
    oracle.within(what + ": logits", far, 1e-4)
    oracle.within(what + ": losses", far_loss, 1e-4)
    worst = compare_gradients(what, ours, gradients_of(model, rename))
    print("%-28s logits %.1e  losses %.1e  gradients %.1e" % (what, far, far_loss, worst))


def their_steps(model, tokens, targets):
    """AdamW as the run file of TRAIN asks for it; a loss for each step."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for x, y in zip(tokens, targets):
        adamw.zero_grad()
        _, loss = oracle.loss_of(model, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        adamw.step()
        losses.append(loss.item())
    return losses


def check_steps(what, model, folder, seed, steps, *settings, extra=None, rename=lambda name: name):
    """Train both sides on a text that repeats, so that there is something to learn."""
    tokens, _ = oracle.batches(model.config.vocab_size, seed, 1, B * (T + 1) * 5)
    rows = tokens.reshape(5, B, T + 1)[np.arange(steps) % 5]
    x, y = np.ascontiguousarray(rows[:, :, :-1]), np.ascontiguousarray(rows[:, :, 1:])
    before = {rename(name): part for n, p in model.named_parameters()
              for name, part in oracle.spread(model, n, p.detach().clone().numpy()).items()}
    frozen = {rename(part) for n, p in model.named_parameters() if not p.requires_grad
              for part in oracle.spread(model, n, p.detach().numpy())}
    ours = oracle.probe("train", folder, {"tokens": x, "targets": y, **(extra or {})},
                        "batch.sequences=%d" % B, "model.context=%d" % T, *TRAIN,
                        *oracle.settings_of(model), *settings)
    theirs = their_steps(model, x, y)
    far = np.abs(ours["losses"] - np.array(theirs)).max()
    oracle.within("%s: losses of %d steps" % (what, steps), far, 1e-4)
    if not theirs[-1] < theirs[0] - 0.01:
        oracle.fail("%s: nothing was learned, so nothing was tested" % what)
    changed = [n for n in frozen if n in ours and ours[n].tobytes() != before[n].tobytes()]
    if changed or not frozen <= set(ours):
        oracle.fail("%s: frozen parameters changed: %s" % (what, changed))
    moved = [n for n in before if n not in frozen and (ours[n] == before[n]).all()]
    if moved:
        oracle.fail("%s: parameters that should be trained are as before: %s" % (what, moved))
    print("%-28s %d steps, losses %.1e, from %.3f to %.3f%s" %
          (what, steps, far, theirs[0], theirs[-1],
           ", %d frozen tensors bit for bit" % len(frozen) if frozen else ""))


def check_family(family):
    for number in range(PER_FAMILY):
        config, old = oracle.configuration(family, number)
        model = oracle.random_model(config, 100 + number)
        folder = oracle.save(model, "%s-%d" % (family, number), old)
        what = "%s %d" % (family, number)
        check_numbers(what, model, folder, number)
        order, leaf, group = SUMS[number]
        check_steps("%s %s, leaf %d" % (what, order, leaf), model, folder, number, STEPS,
                    "train.reduce=" + order, "batch.leaf=%d" % leaf, "batch.group=%d" % group)


def check_long():
    """Positions in the thousands, where a frequency that is wrong in its last bit shows."""
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
    for name, keys in (("plain", {}), ("llama3", {"rope_parameters": rope})):
        config = transformers.LlamaConfig(
            vocab_size=70, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=2048, **keys)
        model = oracle.random_model(config, 200)
        check_numbers("llama, 1500 tokens, " + name, model, oracle.save(model, "long-" + name), 9, shape=(1, 1500))


# --- LoRA and frozen parameters -------------------------------------------------------------------

def check_lora(family, number, targets, rank=4, alpha=6, dora=False):
    config, old = oracle.configuration(family, number)
    base = oracle.random_model(config, 300 + number)
    folder = oracle.save(base, "%s-lora-%d" % (family, number), old)
    what = "%s %d %s" % (family, number, "DoRA" if dora else "LoRA")
    check_adapted(what, family, base, folder, number, targets, rank, alpha, dora)


def check_adapted(what, family, base, folder, number, targets, rank=4, alpha=6, dora=False):
    """Adapters beside the base, which PyTorch has in fp32 and we read from the folder."""
    import peft
    model = peft.get_peft_model(base, peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0, use_dora=dora,
        fan_in_fan_out=family == "gpt2", task_type="CAUSAL_LM")).eval()
    rng = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad and p.dim() == 1:  # a length of DoRA, which starts as the base's
                p.mul_(1 + 0.2 * torch.rand(p.shape, generator=rng))
            elif p.requires_grad:
                p.copy_(0.2 * torch.randn(p.shape, generator=rng))

    def rename(name):
        name = name.removeprefix("base_model.model.").replace(".default.", ".").replace(".base_layer.", ".")
        return name.replace("lora_magnitude_vector.weight", "lora_magnitude_delta")

    def value_of(name, p):
        """Ours has what is added to the length that an output of the base weight has."""
        if not name.endswith("lora_magnitude_vector.default.weight"):
            return p.detach().numpy()
        weight = model.get_parameter(name.replace("lora_magnitude_vector.default", "base_layer"))
        return (p - torch.linalg.norm(weight, dim=0 if family == "gpt2" else 1)).detach().numpy()

    extra = {rename(n): value_of(n, p) for n, p in model.named_parameters() if p.requires_grad}
    settings = ["lora.rank=%d" % rank, "lora.alpha=%d" % alpha, "lora.targets=[%s]" % ",".join(targets)]
    settings += ["lora.dora=true"] if dora else []
    check_numbers(what, model, folder, 50 + number, *settings, extra=extra, rename=rename)
    check_steps(what, model, folder, 60 + number, 20, *settings, extra=extra, rename=rename)


def check_frozen(family, number, *patterns):
    from fnmatch import fnmatchcase
    config, old = oracle.configuration(family, number)
    model = oracle.random_model(config, 400 + number)
    folder = oracle.save(model, "%s-frozen-%d" % (family, number), old)
    for name, p in model.named_parameters():
        p.requires_grad_(not any(fnmatchcase(name, pattern) for pattern in patterns))
    freeze = "train.freeze=[%s]" % ",".join('"%s"' % p for p in patterns)
    what = "%s %d frozen" % (family, number)
    check_numbers(what, model, folder, 70 + number, freeze)
    check_steps(what, model, folder, 80 + number, 20, freeze)


# --- what is not built ----------------------------------------------------------------------------

REFUSED = [  # family, settings, what the message must say
    ("qwen2_moe", {}, "an expert that all tokens share"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
    ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers"),
    ("gemma2", {}, "gemma2"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "yarn"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}, "dynamic"),
    ("phi3", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0,
                                  "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}}, "longrope"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    ("gpt2", {"activation_function": "relu"}, "activation_function"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "num_hidden_layers": 2, "layer_types":
               ["sliding_attention", "full_attention"]}, "layer_types")]


def check_refusals():
    tokens, targets = oracle.batches(50, 1, 1, 3)
    for number, (family, keys, say) in enumerate(REFUSED):
        folder = "refused-%d" % number
        transformers.AutoConfig.for_model(family, **keys).save_pretrained(folder)
        code, said = oracle.refused(folder, {"tokens": tokens, "targets": targets})
        if code != 2 or say not in said:
            oracle.fail("%s %s: exit %d, said: %s" % (family, keys, code, said))
        print("refused: " + said.removeprefix("conformance-probe: "))


def attempt(check, *args):
    try:
        check(*args)
    except oracle.Wrong:
        pass  # said and counted; the next check may tell more


if __name__ == "__main__":
    only = sys.argv[1:] or FAMILIES
    print("max abs difference of logits and token losses (1e-4 allowed), relative difference of gradients")
    print("per tensor (1e-4), losses of AdamW steps on the same batches (1e-4); fp32")
    for family in only:
        attempt(check_family, family)
    if set(only) == set(FAMILIES):
        attempt(check_long)
        attempt(check_refusals)
        attempt(check_lora, "llama", 1, ["q_proj", "v_proj"])
        attempt(check_lora, "llama", 3, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
        attempt(check_lora, "qwen3", 0, ["k_proj", "up_proj", "down_proj"])
        attempt(check_lora, "qwen2", 1, ["gate_proj"])
        for family, number, targets in (
                ("llama", 3, ["q_proj", "v_proj", "up_proj"]), ("gpt2", 0, ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"]),
                ("qwen2", 1, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
                ("olmo2", 1, ["k_proj", "o_proj", "down_proj"])):
            attempt(check_lora, family, number, targets, 4, 6, True)
        attempt(check_lora, "gpt2", 0, ["c_attn", "c_fc"])
        attempt(check_lora, "gpt2", 3, ["attn.c_proj", "mlp.c_proj"])
        attempt(check_lora, "olmo2", 1, ["q_proj", "k_proj", "o_proj", "gate_proj", "down_proj"])
        attempt(check_frozen, "llama", 1, "model.embed_tokens.weight", "model.layers.0.*")
        attempt(check_frozen, "gpt2", 0, "transformer.wte.weight", "*.bias")
        attempt(check_frozen, "qwen2", 0, "*.k_proj.*", "*.gate_proj.*", "*norm*")
        attempt(check_frozen, "olmo2", 0, "*.q_norm.weight", "*post_attention_layernorm*", "*.layers.0.mlp.*")
        attempt(check_frozen, "mistral", 0, "lm_head.weight", "*.q_proj.weight", "*.v_proj.weight")
    oracle.end("models")
