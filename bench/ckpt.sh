#!/bin/sh
# ckpt.sh [ROUNDS] -- checkpoints of a model of 124 M parameters (1.5 GB with moments) beside dd on the same disk: ROUNDS rounds
# (default 5), in each all of the following, in an order that turns from round to round; medians, and the ratio of each round.
#
#   save     the last save of a run (event: seconds, bytes): hashed, written, synced, committed
#   dd       dd conv=fsync of as many bytes, from memory; and dd oflag=direct conv=fsync, for comparison
#   load     the same run gone on with (start event: loaded_s, loaded_bytes), every byte verified; caches dropped before
#   verify   ckpt verify, whole process, both checksums; caches dropped before
#   dd read  dd of the saved objects to /dev/null; caches dropped before
#
# then, once: the step after a save against calm steps of a run with checkpoint.every, what its update waited for the copy, and what
# the save cost all steps together; and a second save with most layers frozen.
#
# DIR=FOLDER (default: a new one in /tmp) decides which disk is measured; it takes some 10 GB. STEPS=25 EVERY=6 SEQUENCES=4
# TOKENS=256 change the run of the delay, ONLY="disk delay again" what is measured, BUSY=1 does not wait for a quiet machine.
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory build/release/lineshaft >/dev/null
[ -n "${BUSY:-}" ] || sh bench/quiet.sh
dir=$(mktemp -d "${DIR:-/tmp}/ckpt.XXXXXX")
trap 'rm -rf "$dir"' EXIT
cat >"$dir/run.yaml" <<YAML
name: ckpt-124m
model: {family: gpt2, layers: 12, width: 768, heads: 12, context: ${TOKENS:-256}, vocab: 50257}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: ${SEQUENCES:-4}, leaf: 1}
train: {steps: 1, lr: 1e-4, schedule: constant, warmup: 1, seed: 1, reduce: fast}
checkpoint: {every: 0, keep: 3}
eval: {every: 0, sequences: 1}
YAML
DIRECTORY=$dir ROUNDS=${1:-5} python3 - <<'PY'
import glob, itertools, json, os, shutil, statistics, subprocess, sys, time

d, rounds = os.environ["DIRECTORY"], int(os.environ["ROUNDS"])
steps, every = int(os.environ.get("STEPS", 25)), int(os.environ.get("EVERY", 6))
only = os.environ.get("ONLY", "disk delay again").split()
program, run, blob = "build/release/lineshaft", f"{d}/run", f"{d}/blob"
median = statistics.median
others = itertools.count(4)


def train(*settings):
    sets = [word for s in settings for word in ("--set", s)]
    done = subprocess.run([program, "train", f"{d}/run.yaml", "--json", "--set", f"out={run}"] + sets, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def timed(command):
    begun = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - begun


def drop():
    os.sync()
    try:
        open("/proc/sys/vm/drop_caches", "w").write("3")
    except OSError:
        print("caches stay: not allowed to drop them", file=sys.stderr)


def warm(path):
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=16M"], stderr=subprocess.DEVNULL, check=True)


def save():
    shutil.rmtree(run, ignore_errors=True)
    os.sync()
    saved = [e for e in train("batch.sequences=1") if e["event"] == "checkpoint"][-1]
    return saved["bytes_written"] / 1e9 / saved["seconds"]


def dd(*flags):
    warm(blob)
    os.sync()
    seconds = timed(["dd", f"if={blob}", f"of={d}/dd", "bs=16M", "conv=fsync", *flags])
    os.remove(f"{d}/dd")
    return os.path.getsize(blob) / 1e9 / seconds


def load():
    drop()
    # another setting each time: the same run once more would be known to be finished, and load nothing
    start = [e for e in train("batch.sequences=1", f"checkpoint.keep={next(others)}") if e["event"] == "start"][0]
    return start["loaded_bytes"] / 1e9 / start["loaded_s"]


def verify():
    drop()
    return os.path.getsize(blob) / 1e9 / timed([program, "ckpt", "verify", run])


def dd_read():
    drop()
    seconds = timed(["sh", "-c", f"for f in {run}/checkpoints/objects/*/*; do dd if=$f of=/dev/null bs=16M; done"])
    return os.path.getsize(blob) / 1e9 / seconds


def disk():
    save()
    with open(blob, "wb") as to:
        for name in sorted(glob.glob(f"{run}/checkpoints/objects/*/*")):
            to.write(open(name, "rb").read())
    ways = {"save": save, "dd conv=fsync": dd, "dd oflag=direct": lambda: dd("oflag=direct"), "load": load, "verify": verify, "dd read": dd_read}
    rates = {name: [] for name in ways}
    for r in range(rounds):
        names = list(ways)
        for name in names[r % len(names):] + names[:r % len(names)]:
            rates[name].append(ways[name]())
        print(f"round {r + 1}: " + ", ".join(f"{name} {rates[name][-1]:.2f}" for name in ways), flush=True)
    print(f"{os.path.getsize(blob) / 1e9:.2f} GB, {rounds} rounds{'':14}median GB/s   range         of dd, each round: median   must be")
    for name, of in (("save", "dd conv=fsync"), ("dd conv=fsync", None), ("dd oflag=direct", "dd conv=fsync"), ("load", "dd read"), ("verify", "dd read"), ("dd read", None)):
        ratio = median(a / b for a, b in zip(rates[name], rates[of])) if of else None
        print(f"  {name:32}{median(rates[name]):10.2f}   {min(rates[name]):.2f} to {max(rates[name]):.2f}"
              + (f"   {100 * ratio:10.0f} %{'              >= 80 %' if name in ('save', 'load') else ''}" if of else ""))


def delay():
    shutil.rmtree(run, ignore_errors=True)
    events = train(f"train.steps={steps}", f"checkpoint.every={every}")
    ms = {e["step"]: e["ms"] for e in events if e["event"] == "step"}
    waited = {e["step"]: e["split"]["checkpoint"] for e in events if e["event"] == "step"}
    saves = [e for e in events if e["event"] == "checkpoint" and e["step"] + every <= steps]
    calm = median(t for s, t in ms.items() if s > every and (s - 1) % every >= every / 2)
    after = median(ms[e["step"] + 1] for e in saves[1:])
    cost = median(sum(ms[e["step"] + i] - calm for i in range(1, every)) for e in saves[1:])
    print(f"step after a save: {after:.0f} ms, calm steps {calm:.0f} ms: {100 * (after / calm - 1):+.1f} % (must be < 5), median of {len(saves) - 1};"
          f" its update waited {median(waited[e['step'] + 1] for e in saves[1:]):.1f} ms;"
          f" all steps until the next save {cost:+.0f} ms; a save beside training: {median(e['seconds'] for e in saves):.2f} s")
    print(f"  the first save, into memory that was never touched: {100 * (ms[saves[0]['step'] + 1] / calm - 1):+.1f} %")


def again():
    shutil.rmtree(run, ignore_errors=True)
    frozen = 'train.freeze=["transformer.wte.weight", "transformer.wpe.weight", "transformer.h.?.*", "transformer.h.10.*"]'
    saves = [e for e in train("train.steps=2", "checkpoint.every=1", frozen) if e["event"] == "checkpoint"]
    print("second save with frozen layers: " + ", ".join(
        f"step {e['step']} wrote {e['bytes_written'] / 1e6:.0f} MB, reused {e['bytes_reused'] / 1e6:.0f} MB" for e in saves))


for name in only:
    {"disk": disk, "delay": delay, "again": again}[name]()
PY
