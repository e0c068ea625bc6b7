"""meshes.py -- generated meshes beside one process; see meshes.sh.

A mesh is a dictionary of settings: {"mesh.pp": 2, "mesh.tp": 2, "mesh.zero": 1, "train.recompute": "full", ...}.
"""
import argparse
import array
import glob
import json
import math
import os
import random
import struct
import subprocess
import sys

RUN = """\
name: meshes
model: {MODEL, layers: 8, width: 32, heads: 8, context: 16, mlp: 50}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 8, leaf: 1, group: 1}
train: {steps: 30, lr: 1e-3, schedule: constant, warmup: 0, clip: 0.5, weight_decay: 0.1, seed: 3, reduce: ordered}
device: {threads: 1}
checkpoint: {every: 0, keep: 2}
eval: {every: 0, sequences: 1, sample: ""}
"""
MODELS = {
    "gpt2": "family: gpt2, dropout: 0.1",
    "llama": "family: llama, kv_heads: 2, tied: true",
    "qwen3": "family: qwen3, kv_heads: 4",
    "mixtral": "family: mixtral, kv_heads: 2, experts: 8, experts_used: 2",
    "qwen3_moe": "family: qwen3_moe, kv_heads: 4, head_size: 6, experts: 8, experts_used: 3",
    "olmoe": "family: olmoe, kv_heads: 2, experts: 8, experts_used: 2, experts_norm: false",
    "olmo2": "family: olmo2, kv_heads: 2",
    "phi3": "family: phi3, kv_heads: 4, window: 9, dropout: 0.1",
}
EXACT = {"pp", "dp"}  # axes that change no bit
LOSS, GRADIENT, NOISE = 1e-4, 1e-3, 1e-6  # of a loss; of a tensor's norm; of a key's bias, absolute


class Program:
    """What the program says."""

    def __init__(self, work):
        self.path = os.environ["LINESHAFT"]
        self.work = work
        mesh = self.keys(json.loads(self.run("config", "schema").stdout)["properties"]["mesh"])
        self.widths = {axis: self.most(mesh[axis]) for axis in ("pp", "dp", "cp", "ep", "tp") if axis in mesh}
        self.schedules = self.words(mesh.get("schedule", {}))

    @staticmethod
    def choices(schema):
        return [schema] + schema.get("anyOf", []) + schema.get("oneOf", [])

    @classmethod
    def keys(cls, schema):
        return next(one["properties"] for one in cls.choices(schema) if "properties" in one)

    @classmethod
    def most(cls, schema):
        """The largest number that an option takes."""
        return max(int(one.get("maximum", 1)) for one in cls.choices(schema))

    @classmethod
    def words(cls, schema):
        return [word for one in cls.choices(schema) for word in one.get("enum", []) if isinstance(word, str)]

    def run(self, *words):
        return subprocess.run([self.path, *words], capture_output=True, text=True, cwd=self.work)


def settings(mesh):
    return [word for key, value in mesh.items() for word in ("--set", f"{key}={value}")]


def name_of(mesh):
    words = [f"{key.split('.')[-1]}={value}" for key, value in mesh.items() if key not in ("mesh.schedule", "train.recompute")]
    return " ".join(words + [str(mesh[key]) for key in ("mesh.schedule", "train.recompute") if key in mesh])


def draw(program, ranks, rng):
    """Some mesh, which the program may refuse: a number of ranks, whose prime factors go to axes."""
    n, mesh = rng.randint(2, ranks), {}
    axes = {axis: 1 for axis, most in program.widths.items() if most > 1 and axis != "ep"}
    left, p = n, 2
    while left > 1:
        if left % p:
            p += 1
            continue
        axes[rng.choice(list(axes))] *= p
        left //= p
    mesh.update({f"mesh.{axis}": width for axis, width in axes.items() if width > 1})
    inside = [width for width in range(2, axes.get("dp", 1) + 1) if axes["dp"] % width == 0]  # of dp, like ZeRO
    if inside and program.widths.get("ep", 1) > 1 and rng.random() < 0.6:
        mesh["mesh.ep"] = rng.choice(inside)
    if axes.get("tp", 1) > 1 and rng.random() < 0.4:
        mesh["mesh.sp"] = "false"
    if axes.get("cp", 1) > 1 and rng.random() < 0.4:
        mesh["mesh.keys"] = "gather"
    if axes.get("pp", 1) > 1:
        schedule = rng.choice(program.schedules)
        mesh["mesh.schedule"] = schedule
    zero = rng.choice([0, 0, 1, 1, 2, 3])
    if zero:
        mesh["mesh.zero"] = zero
    recompute = rng.choice(["none", "none", "selective", "full"])
    if recompute != "none":
        mesh["train.recompute"] = recompute
    return n, mesh


def mesh_of(model, mesh):
    """A model without experts divides none."""
    return {key: value for key, value in mesh.items() if key != "mesh.ep" or "experts" in MODELS[model]}


def first_of(models, mesh):
    """The model that is asked whether a mesh can be: one that has all of its axes."""
    return next((model for model in models if mesh_of(model, mesh) == mesh), None)


def tensors(folder):
    """First moments of the newest checkpoint of a run, by name: after one step a multiple of the gradient."""
    path = sorted(glob.glob(f"{folder}/checkpoints/step-*.json"))[-1]
    objects, out = {}, {}
    for row in json.load(open(path))["tensors"]:
        if row["kind"] != "adam.m":
            continue
        cols = row["shape"][1] if len(row["shape"]) > 1 else 1
        whole = array.array("f", bytes(4 * row["shape"][0] * cols))
        for box in row["boxes"]:
            header, body = read_object(folder, box["object"], objects)
            begin, end = header[box["key"]]["data_offsets"]
            values = array.array("f", body[begin:end])
            rows, wide = box["shape"][0], box["shape"][1] if len(box["shape"]) > 1 else 1
            first, left = box["offset"][0], box["offset"][1] if len(box["offset"]) > 1 else 0
            for i in range(rows):
                at = (first + i) * cols + left
                whole[at : at + wide] = values[i * wide : (i + 1) * wide]
        out[row["name"]] = whole
    return out


def read_object(folder, name, objects):
    if name not in objects:
        raw = open(glob.glob(f"{folder}/checkpoints/objects/**/{name}*", recursive=True)[0], "rb").read()
        (size,) = struct.unpack_from("<Q", raw)
        objects[name] = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    return objects[name]


def apart(want, got):
    """The largest deviation of a tensor beside its norm, and its name."""
    worst, name = 0.0, "-"
    for key, x in want.items():
        y = got[key]
        off = math.sqrt(sum((a - b) ** 2 for a, b in zip(x, y))) if x != y else 0.0
        size = math.sqrt(sum(a * a for a in x))
        if "k_proj.bias" in key:  # a key's bias moves all scores alike: its gradient is rounding
            share = 0.0 if off <= NOISE else math.inf
        else:
            share = off / size if size > 0 else (0.0 if off == 0 else math.inf)
        if share > worst:
            worst, name = share, key
    return worst, name


class Refused(Exception):
    pass


def train(program, model, out, ranks, mesh, steps):
    """A run of one step, then on to all: the losses, the hash of the weights, the first gradient."""
    losses, gradient = [], None
    for until in (1, steps):
        words = ["train", f"{model}.yaml", "--json", "-n", str(ranks), "--set", f"out={out}", "--set", f"train.steps={until}"]
        done = program.run(*words, *settings(mesh))
        if done.returncode == 2:
            raise Refused(done.stderr.strip().splitlines()[0])
        if done.returncode:
            raise RuntimeError(f"{model}, {name_of(mesh)}: exit {done.returncode}: {done.stderr.strip()[-600:]}")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        losses += [row["loss"] for row in rows if row["event"] == "step"]
        if gradient is None:
            gradient = tensors(f"{program.work}/{out}")
    if len(losses) != steps:
        raise RuntimeError(f"{model}, {name_of(mesh)}: {len(losses)} steps instead of {steps}")
    subprocess.run(["rm", "-rf", f"{program.work}/{out}"], check=True)
    return losses, [row["weights_hash"] for row in rows if row["event"] == "summary"][0], gradient


def exact(mesh):
    axes = [key[5:] for key in mesh if key.startswith("mesh.") and key[5:] in ("pp", "dp", "cp", "ep", "tp")]
    return set(axes) <= EXACT


def judge(want, got, mesh):
    """The verdict on a mesh: word, largest deviation of a loss, of a gradient, and of which tensor."""
    loss = max(abs(a - b) / abs(a) for a, b in zip(want[0], got[0]))
    gradient, name = apart(want[2], got[2])
    if exact(mesh):
        same = want[0] == got[0] and want[1] == got[1] and gradient == 0
        return "same bits" if same else "BITS", loss, gradient, name
    near = loss <= LOSS and gradient <= GRADIENT
    return "near" if near else "STRAYS", loss, gradient, name


def row(program, wants, ranks, mesh, steps, models):
    """One mesh on all models; what it prints, and whether all is well."""
    cells, bad = [], 0
    for model in models:
        own = mesh_of(model, mesh)
        try:
            verdict, loss, gradient, name = judge(wants[model], train(program, model, "run", ranks, own, steps), own)
        except Refused:
            if model == first_of(models, mesh):
                raise
            verdict, loss, gradient, name = "refused", 0.0, 0.0, "-"
        cells.append((model, verdict, loss, gradient, name))
        bad += verdict.isupper()
    return cells, bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True)
    parser.add_argument("--meshes", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--have", default="", help="keys of mesh that each mesh must set: pp ep zero")
    parser.add_argument("models", nargs="+", choices=list(MODELS))
    args = parser.parse_args()
    program, rng = Program(args.work), random.Random(args.seed)
    for model in args.models:
        with open(f"{args.work}/{model}.yaml", "w") as file:
            file.write(RUN.replace("MODEL", MODELS[model]))
    wants = {model: train(program, model, "one", 1, {}, args.steps) for model in args.models}
    axes = ", ".join(axis for axis, most in program.widths.items() if most > 1)
    print(f"axes: {axes}; {args.steps} steps; largest deviation of a loss | of a tensor's first gradient", flush=True)
    seen, meshes, refused, bad, worst = set(), 0, 0, 0, (0.0, 0.0)
    while meshes < args.meshes:
        ranks, mesh = draw(program, args.ranks, rng)
        name, asked = name_of(mesh), first_of(args.models, mesh)
        if name in seen or not asked or not all(f"mesh.{key}" in mesh for key in args.have.split()):
            continue
        seen.add(name)
        check = program.run("config", "check", f"{asked}.yaml", *settings(mesh))
        try:
            if check.returncode:
                raise Refused(check.stderr)
            cells, wrong = row(program, wants, ranks, mesh, args.steps, args.models)
        except Refused:
            refused += 1
            continue
        meshes += 1
        bad += wrong
        worst = max([worst[0]] + [c[2] for c in cells]), max([worst[1]] + [c[3] for c in cells])
        text = "  ".join(f"{model} {verdict}" + (f" {loss:.1e} | {gradient:.1e}" if verdict not in ("same bits", "refused") else "")
                         for model, verdict, loss, gradient, _ in cells)
        print(f"{meshes:3} {ranks} ranks  {name:58} {text}", flush=True)
        for model, verdict, _, gradient, tensor in cells:
            if verdict.isupper():
                print(f"      {model}: the gradient of {tensor} is off by {gradient:.2e} of its norm", flush=True)
    print(f"{meshes} meshes x {len(args.models)} models, {refused} others were refused: largest deviation of a loss {worst[0]:.1e}, "
          f"of a gradient {worst[1]:.1e}; {bad} stray", flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
