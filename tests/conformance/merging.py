"""merging.py -- `lineshaft merge` against peft's merge_and_unload.

Adapters of every kind that can be merged are made by peft with random numbers; an adapter that we
trained and exported is merged as well. Weights must be equal, and one merged into a GGUF file too.
"""
import itertools, json, os, shutil, subprocess, sys
import numpy as np, torch, peft, transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import oracle
from oracle import LINESHAFT

ATTENTION = {"gpt2": ["attn.c_attn"], "phi3": ["qkv_proj"]}
MLP = {"gpt2": ["c_fc", "mlp.c_proj"], "phi3": ["gate_up_proj", "down_proj"]}
# Options of LoraConfig; alpha and rank are odd on purpose.
KINDS = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "patterns": {"rank_pattern": {"last": 5}, "alpha_pattern": {"last": 3}},
    "with the head": {"modules_to_save": ["lm_head"]},
}


def targets(family, number):
    some = list(ATTENTION.get(family, ["q_proj", "v_proj"]))
    return some + (MLP.get(family, ["gate_proj", "down_proj"]) if family not in oracle.MIXTURES else [])


def merge(adapter, base, to, *flags):
    return subprocess.run([LINESHAFT, "merge", adapter, to, "--base", base, "--dtype", "f32", *flags], capture_output=True, text=True)


def randomize(model, seed):
    """B and what is saved whole start as zeros, or as in the base: give them numbers."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                scale = 1 + 0.2 * torch.rand(p.shape, generator=rng) if "magnitude" in name else 0
                p.copy_(p * scale if "magnitude" in name else 0.1 * torch.randn(p.shape, generator=rng))


def compare(what, merged, folder):
    ours = oracle.load(folder).state_dict()
    far = max(float((ours[name] - x).abs().max()) for name, x in merged.state_dict().items())
    oracle.within(what, far, 2e-6)
    print("%-28s largest difference of a weight %.1e" % (what, far))


def check(family, kind, base):
    what = "%s, %s" % (family, kind)
    options = dict(KINDS[kind])
    last = targets(family, 0)[-1]
    for key in ("rank_pattern", "alpha_pattern"):
        if key in options:
            options[key] = {last: options[key]["last"]}
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=7, target_modules=targets(family, 0),
                             fan_in_fan_out=family == "gpt2", **options)
    model = peft.get_peft_model(oracle.load(base), config)
    randomize(model, 5)
    adapter = what.replace(", ", "-").replace(" ", "-")
    model.save_pretrained(adapter)
    done = merge(adapter, base, adapter + "-merged")
    if done.returncode != 0:
        oracle.fail("%s: exit %d, %s" % (what, done.returncode, done.stderr.strip()))
    merged = peft.PeftModel.from_pretrained(oracle.load(base), adapter).merge_and_unload()
    compare(what, merged, adapter + "-merged")
    return adapter


def check_family(family):
    config, _ = oracle.configuration(family, 0)
    config.tie_word_embeddings = False
    oracle.random_model(config, 40).save_pretrained(family)
    adapters = [check(family, kind, family) for kind in KINDS]
    return adapters[0]


def check_refusals(adapter, base):
    def changed(name, **keys):
        shutil.copytree(adapter, name)
        path = os.path.join(name, "adapter_config.json")
        json.dump({**json.load(open(path)), **keys}, open(path, "w"))
        return name

    def rewritten(name, change):
        shutil.copytree(adapter, name)
        path = os.path.join(name, "adapter_model.safetensors")
        save_file(change(load_file(path)), path)
        return name

    first = next(iter(load_file(os.path.join(adapter, "adapter_model.safetensors"))))
    cases = [
        (changed("ia3", peft_type="IA3"), 2, "not LORA"),
        (changed("biased", bias="all"), 2, "trained biases"),
        (changed("pissa", init_lora_weights="pissa_niter_4"), 2, "taken out of the base model"),
        (rewritten("elsewhere", lambda t: {n.replace("layers.1", "layers.7"): x for n, x in t.items()}), 4, "no place for it"),
        (rewritten("narrow", lambda t: {n: x[:, :-1].contiguous() if "lora_A" in n else x for n, x in t.items()}), 4, "does not fit"),
        (rewritten("half", lambda t: {n: x for n, x in t.items() if "lora_B" not in n}), 4, "does not fit"),
        (rewritten("nan", lambda t: {n: x * float("nan") if n == first else x for n, x in t.items()}), 4, "not finite"),
        ("nowhere", 2, "there is no adapter"),
    ]
    for name, code, message in cases:
        done = merge(name, base, "refused")
        if done.returncode != code or message not in done.stderr or os.path.exists("refused"):
            oracle.fail("%s: exit %d, %s" % (name, done.returncode, done.stderr.strip()))
        print("%-28s refused: %s" % (name, done.stderr.splitlines()[0].split("error: ")[1][:90]))


def check_ours():
    """Trained and exported by us, merged by us and by peft, and what export itself merges."""
    open("text.txt", "w").write("the quick brown fox jumps over the lazy dog. " * 400)
    for family, dora in itertools.product(("llama", "gpt2", "phi3"), (False, True)):
        config, _ = oracle.configuration(family, 0)
        config.vocab_size, config.tie_word_embeddings = 260, False
        base = "own-" + family + "-dora" * dora
        oracle.random_model(config, 41).save_pretrained(base)
        open(base + ".yaml", "w").write(
            "model: {import: %s, context: 32}\ndata: {text: text.txt, tokenizer: bytes}\nlora: {rank: 4, dora: %s}\n"
            "batch: {sequences: 4}\ntrain: {steps: 12, lr: 0.01, warmup: 2}\neval: {every: 0, sample: ''}\n" % (base, str(dora).lower()))
        subprocess.run([LINESHAFT, "train", base + ".yaml"], check=True, capture_output=True)
        subprocess.run([LINESHAFT, "export", "runs/" + base, base + "-adapter", "--adapter"], check=True, capture_output=True)
        subprocess.run([LINESHAFT, "export", "runs/" + base, base + "-whole"], check=True, capture_output=True)
        done = merge(base + "-adapter", base, base + "-merged")
        if done.returncode != 0:
            oracle.fail("%s: exit %d, %s" % (base, done.returncode, done.stderr.strip()))
        merged = peft.PeftModel.from_pretrained(oracle.load(base), base + "-adapter").merge_and_unload()
        compare("our %s of %s" % ("DoRA" if dora else "run", family), merged, base + "-merged")
        compare("the same, exported whole", merged, base + "-whole")


if __name__ == "__main__":
    for family in oracle.FAMILIES:
        try:
            adapter = check_family(family)
            if family == "llama":
                check_refusals(adapter, family)
        except oracle.Wrong:
            pass  # said and counted
    try:
        check_ours()
    except oracle.Wrong:
        pass
    oracle.end("merging")
