"""folders.py -- the ways in which a model's weights lie in a folder, against transformers' own reading."""
import glob, json, os, shutil, sys
import numpy as np, torch, transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import oracle
from oracle import B, T


def logits_of(folder, vocab):
    """Ours of the folder as it is, and transformers' in fp32."""
    tokens, targets = oracle.batches(vocab, 3, B, T)
    ours = oracle.probe("check", folder, {"tokens": tokens, "targets": targets})["logits"]
    theirs = oracle.loss_of(oracle.load(folder), tokens, targets)[0].detach().numpy()
    return ours, theirs


def check(what, folder, vocab, equal_to=None):
    ours, theirs = logits_of(folder, vocab)
    far = np.abs(ours - theirs).max()
    oracle.within(what + ": logits", far, 1e-4)
    if equal_to is not None and ours.tobytes() != equal_to.tobytes():
        oracle.fail(what + ": other bits than from one file")
    print("%-34s logits %.1e%s" % (what, far, ", bits as from one file" if equal_to is not None else ""))
    return ours


def rewrite(folder, change):
    """change() gets all tensors of model.safetensors and returns those to be written."""
    path = os.path.join(folder, "model.safetensors")
    save_file(change(load_file(path)), path, {"format": "pt"})
    return folder


def check_family(family):
    config, old = oracle.configuration(family, 0)
    model = oracle.random_model(config, 600)
    whole = check(family + ", one file, F32", oracle.save(model, family, old), config.vocab_size)
    folder = oracle.save(model, family + "-shards", old, max_shard_size="9KB")
    files = len(glob.glob(folder + "/*.safetensors"))
    if files < 5:
        oracle.fail("%s: only %d shards" % (family, files))
    check("%s, %d files" % (family, files), folder, config.vocab_size, whole)
    for name, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16)):
        half = oracle.random_model(config, 600).to(dtype)
        rounded = check("%s, %s" % (family, name), oracle.save(half, "%s-%s" % (family, name), old),
                        config.vocab_size)
        if (rounded == whole).all():
            oracle.fail("%s, %s: rounding has changed nothing" % (family, name))
    return model, whole


def check_layouts(model, whole):
    """Tensors with names and neighbours that other writers leave behind."""
    vocab = model.config.vocab_size

    def without_prefix(tensors):  # saved from the bare GPT2Model
        return {name.removeprefix("transformer."): x for name, x in tensors.items()}

    def with_masks(tensors):  # buffers that old versions saved
        more = {"transformer.h.%d.attn.bias" % l: torch.tril(torch.ones(1, 1, T, T, dtype=torch.uint8)) for l in (0, 1)}
        more |= {"transformer.h.%d.attn.masked_bias" % l: torch.tensor(-1e4) for l in (0, 1)}
        return tensors | more

    def with_head(tensors):  # the tied head, written out
        return tensors | {"lm_head.weight": tensors["transformer.wte.weight"].clone()}

    for what, change in (("without prefix", without_prefix), ("with masks", with_masks),
                         ("with the tied head", with_head)):
        folder = shutil.copytree("gpt2", "gpt2 " + what)
        check("gpt2, " + what, rewrite(folder, change), vocab, whole)


def check_damage(family):
    """A weight that is missing, has another shape, or is one too many is an error, never a guess."""
    def drop(tensors):
        return {n: x for n, x in tensors.items() if n != name}

    def reshape(tensors):
        return tensors | {name: tensors[name][:-1].clone()}

    def add(tensors):
        return tensors | {name + "_g": tensors[name].clone()}

    tokens, targets = oracle.batches(50, 1, 1, 3)
    name = next(n for n in load_file(family + "/model.safetensors") if ".1." in n and n.endswith("weight"))
    for what, change in (("missing", drop), ("another shape", reshape), ("one too many", add)):
        folder = rewrite(shutil.copytree(family, "%s %s" % (family, what)), change)
        code, said = oracle.refused(folder, {"tokens": tokens, "targets": targets})
        if code != 4 or name not in said:
            oracle.fail("%s, %s: exit %d, said: %s" % (family, what, code, said))
        print("refused: " + said.removeprefix("conformance-probe: "))


if __name__ == "__main__":
    for family in oracle.FAMILIES:
        try:
            model, whole = check_family(family)
            if family == "gpt2":
                check_layouts(model, whole)
            check_damage(family)
        except oracle.Wrong:
            pass  # said and counted
    oracle.end("folders")
