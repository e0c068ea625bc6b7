"""quantizing.py -- `lineshaft quantize` against the same rounding in numpy.

The integers and scales of every matrix must be those of docs/reference/quantized.md, made of the weights that
transformers saved. A model of the dequantized weights in PyTorch must compute what the quantized folder
computes here, also with LoRA beside it after some steps of training.
"""
import json, os, subprocess, sys
import numpy as np, torch
from safetensors.numpy import load_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import models, oracle
from oracle import B, LINESHAFT, T


def quantize(w, bits, group):
    """Integers and scales of a matrix."""
    x = w.astype(np.float32).reshape(w.shape[0], -1, group)
    largest = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)
    scale = (np.abs(largest) / np.float32(127) if bits == 8 else largest / np.float32(-8)).astype(np.float16)
    s = scale.astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = np.where(s == 0, np.float32(0), x / s)
    q = np.sign(r) * np.floor(np.abs(r.astype(np.float64)) + 0.5)  # halves away from zero
    q = np.clip(q, *((-127, 127) if bits == 8 else (-8, 7))).astype(np.int8)
    return q.reshape(w.shape), scale[..., 0]


def dequantize(tensors, name, bits):
    """A matrix out of a folder's tensors."""
    scale = tensors[name + "_scale"].astype(np.float32)
    if bits == 8:
        q = tensors[name].astype(np.float32)
    else:
        packed = tensors[name + "_packed"]
        q = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1).astype(np.float32) - 8
    group = q.shape[1] // scale.shape[1]
    return (q.reshape(*scale.shape, group) * scale[..., None]).reshape(q.shape)


def run(*args):
    done = subprocess.run([LINESHAFT, *args], capture_output=True, text=True)
    if done.returncode != 0:
        oracle.fail("%s: exit %d, %s" % (" ".join(args), done.returncode, done.stderr.strip()))
    return done


def parameters(model):
    """Our names and numbers of a model's parameters."""
    out = {}
    for name, p in model.named_parameters():
        out |= oracle.spread(model, name, p.detach().numpy())
    return out


def fill(model, values):
    """Write numbers under our names back into the model."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            parts = oracle.spread(model, name, p.detach().numpy())
            for part, view in parts.items():  # views of the parameter
                view[...] = values[part]


def check(family, bits, group, vocab=None):
    what = "%s, %d bits, groups of %d" % (family, bits, group)
    config, _ = oracle.configuration(family, 0)
    config.hidden_size, config.num_attention_heads, config.vocab_size = 48, 4, vocab or config.vocab_size
    if family != "gpt2":
        config.intermediate_size, config.num_key_value_heads, config.head_dim = 96, 4, 12
        config.moe_intermediate_size = 48
    model = oracle.random_model(config, 60)
    base = "%s-base-%d" % (family, group)
    if not os.path.isdir(base):
        model.save_pretrained(base)
    folder = "%s-%d-%d" % (family, bits, group)
    run("quantize", base, folder, "--bits", str(bits), "--group", str(group))
    told = json.load(open(folder + "/config.json"))["quantization_config"]
    assert told == {"bits": bits, "group_size": group, "quant_method": "lineshaft"}, told
    tensors, values, matrices = load_file(folder + "/model.safetensors"), {}, 0
    for name, x in parameters(model).items():
        if name + "_scale" not in tensors:
            if tensors[name].tobytes() != x.tobytes():
                oracle.fail("%s: %s is not as it was" % (what, name))
            values[name] = x
            continue
        matrices += 1
        q, scale = quantize(x, bits, group)
        values[name] = dequantize(tensors, name, bits)
        if tensors[name + "_scale"].tobytes() != scale.tobytes():
            oracle.fail("%s: other scales of %s" % (what, name))
        if values[name].tobytes() != (q.reshape(*scale.shape, group) * scale.astype(np.float32)[..., None]).tobytes():
            oracle.fail("%s: other integers of %s" % (what, name))
    fill(model, values)
    tokens, targets = oracle.batches(config.vocab_size, 3, B, T)
    ours = oracle.probe("check", folder, {"tokens": tokens, "targets": targets})["logits"]
    far = np.abs(ours - oracle.loss_of(model, tokens, targets)[0].detach().numpy()).max()
    oracle.within(what + ": logits", far, 1e-4)
    print("%-34s %d matrices equal, logits %.1e" % (what, matrices, far))
    return model


def check_lora(family):
    """QLoRA: what LoRA in fp32 beside the dequantized weights computes in PyTorch; our run's adapter, merged there."""
    import peft
    model = check(family, 4, 8, vocab=260)
    model.save_pretrained(family + "-dequantized")
    open("text.txt", "w").write("the quick brown fox jumps over the lazy dog. " * 400)
    open(family + ".yaml", "w").write(
        "model: {import: %s-4-8, context: 37}\ndata: {text: text.txt, tokenizer: bytes}\nlora: {rank: 4}\n"
        "batch: {sequences: 4}\ntrain: {steps: 10, lr: 0.01, warmup: 2}\neval: {every: 0, sample: ''}\n" % family)
    run("train", family + ".yaml")
    run("export", "runs/" + family, family + "-adapter", "--adapter")
    run("export", "runs/" + family, family + "-tuned", "--dtype", "f32")
    merged = peft.PeftModel.from_pretrained(oracle.load(family + "-dequantized"), family + "-adapter").merge_and_unload()
    ours = oracle.load(family + "-tuned").state_dict()
    far = max(float((ours[name] - x).abs().max()) for name, x in merged.state_dict().items())
    oracle.within(family + ": LoRA beside 4 bits", far, 2e-6)
    print("%-34s tuned weights %.1e" % (family + ", LoRA beside 4 bits", far))
    targets = ["attn.c_attn", "c_fc", "mlp.c_proj"] if family == "gpt2" else ["q_proj", "v_proj", "up_proj", "down_proj"]
    models.check_adapted(family + ", 4 bits, LoRA", family, model, family + "-4-8", 5, targets)


if __name__ == "__main__":
    for family in oracle.FAMILIES:
        try:
            check(family, 8, 48)
            check(family, 4, 16)
        except oracle.Wrong:
            pass  # said and counted
    for family in ("llama", "gpt2"):
        try:
            check_lora(family)
        except oracle.Wrong:
            pass
    oracle.end("quantizing")
