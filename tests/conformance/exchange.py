"""exchange.py -- lineshaft import, train and export: what comes out loads in transformers and peft.

Round trips give the same tensors bit for bit; a fine-tuned model and its LoRA compute there what
they compute here.
"""
import glob, json, os, re, subprocess, sys
import numpy as np, peft, torch, transformers
from safetensors.torch import load_file, save_file

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "tools"))
import oracle
from oracle import B, T


def lineshaft(*words, code=0):
    done = subprocess.run([oracle.LINESHAFT, *words], capture_output=True, text=True)
    if done.returncode != code:
        oracle.fail("lineshaft %s: exit %d, %s" % (" ".join(words), done.returncode, done.stderr.strip()))
    return done.stdout + done.stderr


def tensors_of(folder):
    return {n: x for path in glob.glob(folder + "/*.safetensors") for n, x in load_file(path).items()}


def logits_of(model, seed=3, length=T):
    tokens, _ = oracle.batches(model.config.vocab_size, seed, B, length)
    with torch.no_grad():
        return model(torch.tensor(tokens).long(), use_cache=False).logits.numpy()


def ours_of(folder, vocab, seed=3, length=T):
    tokens, targets = oracle.batches(vocab, seed, B, length)
    return oracle.probe("check", folder, {"tokens": tokens, "targets": targets})["logits"]


# --- there and back -------------------------------------------------------------------------------

def weights_hash(said):
    return re.search(r"hash ([0-9a-f]{32})", said).group(1)


def round_trip(family, number, dtype):
    config, old = oracle.configuration(family, number)
    model = oracle.random_model(config, 700 + number).to(dtype)
    name = "%s-%d" % (family, number)
    hf = oracle.save(model, name, old)
    said = lineshaft("import", hf, name + "-ours")
    lineshaft("export", name + "-ours", name + "-back", "--max-shard", "20K" if number % 2 else "5G")
    before, after = tensors_of(hf), tensors_of(name + "-back")
    if before.keys() != after.keys():
        oracle.fail("%s: other tensors came back: %s" % (name, before.keys() ^ after.keys()))
    for n, x in before.items():
        if x.dtype != after[n].dtype or not torch.equal(x, after[n]):
            oracle.fail("%s: %s came back changed" % (name, n))
    if (logits_of(oracle.load(hf)) != logits_of(oracle.load(name + "-back"))).any():
        oracle.fail(name + ": the exported folder computes something else")
    again = lineshaft("import", name + "-back", name + "-again")
    if weights_hash(said) != weights_hash(again):
        oracle.fail(name + ": another hash after the round trip")
    files = len(glob.glob(name + "-back/*.safetensors"))
    print("%-10s %s: %d tensors in %d file%s back bit for bit, equal hashes, equal logits in transformers" %
          (name, str(dtype).removeprefix("torch."), len(after), files, "s" * (files > 1)))


# --- the proof that travels with a model ---------------------------------------------------------

def check_fingerprint(family):
    """transformers' own logits on record: the right import is proved, a rotary layout that is not is refused."""
    config, old = oracle.configuration(family, 0)
    model = oracle.random_model(config, 750)
    hf = oracle.save(model, family + "-print", old)
    subprocess.run([sys.executable, here + "/tools/fingerprint.py", hf], check=True, capture_output=True)
    said = lineshaft("import", hf, family + "-proved")
    proof = [line for line in said.splitlines() if line.startswith("fingerprint")]
    if not proof or "verified" not in proof[0]:
        oracle.fail("%s: not proved: %s" % (family, said))
    print("%s: %s" % (family, proof[0]))
    tensors = load_file(hf + "/model.safetensors")
    if family == "gpt2":
        tensors["transformer.h.0.attn.c_proj.weight"] = tensors["transformer.h.0.attn.c_proj.weight"].T.contiguous()
    else:  # neighbours instead of halves, as Meta's own files have them
        name = "model.layers.0.self_attn.%s_proj.weight" % ("qkv" if family == "phi3" else "q")
        w, D = tensors[name], model.model.layers[0].self_attn.head_dim
        tensors[name] = w.view(-1, 2, D // 2, w.shape[1]).transpose(1, 2).reshape(w.shape).contiguous()
    save_file(tensors, hf + "/model.safetensors", {"format": "pt"})
    said = lineshaft("import", hf, family + "-wrong", code=4)
    if os.path.exists(family + "-wrong"):
        oracle.fail(family + ": a model that is not proved was left behind")
    print("%s with another layout: %s" % (family, said.splitlines()[0]))


# --- tuned ----------------------------------------------------------------------------------------

def base_model(family):
    """A model large enough in vocabulary for bytes."""
    config, old = oracle.configuration(family, 1)
    config.vocab_size = 300
    return oracle.save(oracle.random_model(config, 800), family + "-base", old)


def train(hf, out, *settings):
    """On sequences that are shorter than the texts that models are compared on: no position is lost by that."""
    with open(out + ".yaml", "w") as f:
        f.write("""out: %s
model: {import: %s, context: 16}
data: {text: ["builtin:stories"], tokenizer: bytes}
batch: {sequences: 4}
train: {steps: 20, lr: 1e-2, warmup: 0}
%s
""" % (out, hf, "\n".join(settings)))
    lineshaft("train", out + ".yaml", "--quiet")


def check_tuned(family):
    hf, out = base_model(family), family + "-tuned"
    train(hf, out)
    lineshaft("export", out, out + "-hf")
    model = oracle.load(out + "-hf")
    far = np.abs(ours_of(out + "-hf", 300, length=30) - logits_of(model, length=30)).max()
    moved = np.abs(logits_of(oracle.load(hf), length=30) - logits_of(model, length=30)).max()
    oracle.within(out + ": logits", far, 1e-4)
    if not moved > 0.1:
        oracle.fail(out + ": training has changed nothing")
    print("%s: trained 20 steps, exported: logits %.1e from transformers', %.2g from the base" % (out, far, moved))


def check_adapter(family, targets):
    hf, out = family + "-base", family + "-lora"
    train(hf, out, "lora: {rank: 4, alpha: 6, targets: [%s]}" % ", ".join(targets))
    lineshaft("export", out, out + "-merged")
    lineshaft("export", out, out + "-peft", "--adapter")
    # The base is the one that the adapter names.
    adapted = logits_of(peft.AutoPeftModelForCausalLM.from_pretrained(out + "-peft", attn_implementation="eager").eval(), length=30)
    merged = logits_of(oracle.load(out + "-merged"), length=30)
    ours = ours_of(out + "-merged", 300, length=30)
    base = logits_of(oracle.load(hf), length=30)
    oracle.within(out + ": peft's logits and the merged model's", np.abs(adapted - merged).max(), 1e-4)
    oracle.within(out + ": peft's logits and ours", np.abs(adapted - ours).max(), 1e-4)
    if not np.abs(adapted - base).max() > 0.1:
        oracle.fail(out + ": the adapter changes nothing")
    with open(out + "-peft/adapter_config.json") as f:
        kept = json.load(f)
    modules = {name.split(".")[-1] for name in kept["target_modules"]}  # peft takes the path's end, too
    if kept["r"] != 4 or kept["lora_alpha"] != 6 or modules != {name.split(".")[-1] for name in targets}:
        oracle.fail(out + ": adapter_config.json says %s" % kept)
    print("%s: peft loads the adapter: logits %.1e from the merged model's, %.1e from ours, %.2g from the base" %
          (out, np.abs(adapted - merged).max(), np.abs(adapted - ours).max(), np.abs(adapted - base).max()))


if __name__ == "__main__":
    checks = [(round_trip, family, number, dtype) for family in oracle.FAMILIES
              for number, dtype in ((0, torch.float32), (1, torch.bfloat16), (3, torch.float32))]
    checks += [(check_fingerprint, family) for family in ("gpt2", "llama", "qwen3", "olmo2", "phi3")]
    for family, targets in (("llama", ["q_proj", "v_proj", "down_proj"]), ("gpt2", ["c_attn", "mlp.c_fc"]),
                            ("qwen3", ["k_proj", "o_proj", "gate_proj"]), ("olmo2", ["q_proj", "up_proj"]),
                            ("phi3", ["qkv_proj", "gate_up_proj", "down_proj"])):
        checks += [(check_tuned, family), (check_adapter, family, targets)]
    for check, *args in checks:
        try:
            check(*args)
        except oracle.Wrong:
            pass  # said and counted
    oracle.end("exchange")
