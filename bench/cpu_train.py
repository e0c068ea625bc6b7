"""cpu_train.py MODEL... -- see bench/cpu_train.sh."""
import glob
import json
import os
import random
import sys
import tempfile

import rounds

ROUNDS, STEPS = int(os.environ.get("ROUNDS", "5")), os.environ.get("STEPS")
THREADS = os.environ.get("THREADS", "2")
PROGRAM, OTHER = os.path.join(rounds.ROOT, "lineshaft"), os.environ.get("OTHER")
MODELS = {
    "10m": dict(layers=6, width=384, heads=6, vocab=256, sequences=12, steps=12),
    "124m": dict(layers=12, width=768, heads=12, vocab=50304, sequences=4, steps=6),
}
WARM = 3

# Ways to run PyTorch. The first two are compared in every run; `tune` takes all of them in turn, to see on another
# machine whether another way is its best.
#   adamw    fused goes over each parameter once and took a quarter of the time of foreach and of loop
#   malloc   tcmalloc keeps large buffers; glibc gives them back and takes page faults in each step
#   wait     what OpenMP's threads do between two parallel regions
PEERS = {
    "eager": dict(compile="none", adamw="fused", malloc="tcmalloc"),
    "compile": dict(compile="default", adamw="fused", malloc="tcmalloc"),
    "eager, foreach": dict(compile="none", adamw="foreach", malloc="tcmalloc"),
    "eager, glibc": dict(compile="none", adamw="fused", malloc="glibc"),
    "eager, glibc keeps": dict(compile="none", adamw="fused", malloc="keep"),
    "eager, passive": dict(compile="none", adamw="fused", malloc="tcmalloc", wait="passive"),
    "eager, plain attention": dict(compile="none", adamw="fused", malloc="tcmalloc", attention="plain"),
    "compile, glibc": dict(compile="default", adamw="fused", malloc="glibc"),
    "compile, autotune": dict(compile="max-autotune", adamw="fused", malloc="tcmalloc"),
}


def tcmalloc():
    found = glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4")
    return found[0] if found else None


def peer_environment(how):
    env = {"OMP_NUM_THREADS": THREADS, "MKL_NUM_THREADS": THREADS}
    if how.get("wait"):
        env["OMP_WAIT_POLICY"] = how["wait"]
    if how["malloc"] == "tcmalloc" and tcmalloc():
        env["LD_PRELOAD"] = tcmalloc()
    elif how["malloc"] == "keep":
        env |= {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
    return env


def run_peer(name, model, text):
    how, shape = PEERS[name], MODELS[model]
    command = [rounds.PEER, os.path.join(rounds.HERE, "peers/train_gpt.py"), model, text, "--threads", THREADS,
               "--steps", str(STEPS or shape["steps"]), "--warm", str(WARM), "--compile", how["compile"],
               "--adamw", how["adamw"], "--attention", how.get("attention", "sdpa")]
    done = rounds.run(f"PyTorch {name}", command, peer_environment(how), check=False)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    told = json.loads(done.stdout.splitlines()[-1])
    return told["ms"], f"PyTorch {told['torch']}, {told['cpu']}, {told['parameters'] / 1e6:.1f} M parameters"


def our_settings(model, text, folder):
    """The run file of our side, as --set words."""
    s = MODELS[model]
    return {
        "model.family": "gpt2", "model.layers": s["layers"], "model.width": s["width"], "model.heads": s["heads"],
        "model.context": 256, "model.vocab": s["vocab"], "model.dropout": 0, "data.text": f"[{text}]",
        "data.tokenizer": "bytes", "data.validation": 0, "batch.sequences": s["sequences"],
        "train.steps": WARM + int(STEPS or s["steps"]), "train.warmup": 0, "train.schedule": "constant",
        "train.lr": 3e-4, "train.beta2": 0.95, "train.weight_decay": 0.1, "train.clip": 1.0,
        "checkpoint.every": 0, "eval.every": 0, "eval.sample": "",
        "device.kind": "cpu", "device.threads": THREADS, "out": os.path.join(folder, "run"),
    }


def our_command(settings, words=()):
    command = [PROGRAM, "train", "--json", "--fresh", *words]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    return command


def run_ours(name, model, text, folder):
    command = our_command(our_settings(model, text, folder) | {"train.reduce": name.split(", ")[1]})
    if name.startswith("other"):
        command[0] = os.path.abspath(OTHER)
    events = [json.loads(line) for line in rounds.run(name, command).stdout.splitlines()]
    steps = [e["ms"] for e in events if e["event"] == "step"]
    return steps[WARM:], next(e["peak_flops"] for e in events if e["event"] == "summary")


def write_text(folder):
    text = os.path.join(folder, "text")
    letters, random_ = "abcdefghijklmnopqrstuvwxyz      \n", random.Random(1)
    with open(text, "w", encoding="ascii") as f:
        f.write("".join(random_.choices(letters, k=1 << 20)))
    return text


def measure(model, sides, folder):
    text = write_text(folder)
    ms, peaks, notes = {side: [] for side in sides}, [], {}
    for i in range(ROUNDS):
        for side in rounds.in_turn(sides, i):
            if side in PEERS:
                if notes.get(side, "").startswith("not measured"):
                    continue
                times, notes[side] = run_peer(side, model, text)
                if times is None:
                    notes[side] = "not measured: " + notes[side]
                    continue
            else:
                times, peak = run_ours(side, model, text, folder)
                peaks.append(peak)
            ms[side].append(times)
    return ms, peaks, notes


def quiet(times):
    """Median of the fastest quarter of all steps: a neighbour on the same host only ever makes a step slower."""
    steps = sorted(t for one_round in times for t in one_round)
    return rounds.median(steps[:max(1, len(steps) // 4)])


def speeds(model, ms, of):
    """Tokens per second of each side, by that statistic of its steps, and the best peer."""
    tokens = MODELS[model]["sequences"] * 256
    speed = {side: tokens / of(times) * 1e3 for side, times in ms.items() if times}
    peers = {side: v for side, v in speed.items() if side in PEERS}
    return speed, max(peers, key=peers.get) if peers else None


def show(model, ms, peaks, notes):
    speed, best = speeds(model, ms, lambda times: rounds.median([rounds.median(t) for t in times]))
    fast, best_fast = speeds(model, ms, quiet)
    print(f"\n{model}: {MODELS[model]['sequences'] * 256} tokens a step, {THREADS} threads, fp32, {ROUNDS} rounds; "
          f"fma peak {min(peaks) / 1e9:.0f} to {max(peaks) / 1e9:.0f} GFLOP/s")
    print("medians of rounds, and of the fastest quarter of all steps (when the host had no other work)")
    print(f"{'side':24} {'tokens/s':>9} {'to best peer':>13} {'fastest':>9} {'to best peer':>13}  rounds, ms a step")
    for side, times in ms.items():
        name = side if side not in PEERS else "PyTorch " + side
        if not times:
            print(f"{name:24} {notes.get(side, 'not measured')}")
            continue
        ratio = f"{speed[side] / speed[best]:.2f} x" if best else "-"
        ratio_fast = f"{fast[side] / fast[best_fast]:.2f} x" if best else "-"
        print(f"{name:24} {speed[side]:9.0f} {ratio:>13} {fast[side]:9.0f} {ratio_fast:>13}  "
              + " ".join(f"{rounds.median(t):.0f}" for t in times))
    if best:
        print(f"best peer: PyTorch {best}, of the fastest {best_fast} ({notes[best]})")
    if {"ours, ordered", "ours, fast"} <= set(speed):
        slower, slower_fast = (v["ours, fast"] / v["ours, ordered"] - 1 for v in (speed, fast))
        print(f"ordered against fast: {100 * slower:+.1f} % time, of the fastest {100 * slower_fast:+.1f} %")
    for how in ("ordered", "fast") if OTHER else ():
        ours, other = (f"{side}, {how}" for side in ("ours", "other"))
        print(f"{how}, ours against {OTHER}: {speed[ours] / speed[other]:.3f} x, of the fastest {fast[ours] / fast[other]:.3f} x")
    return {"model": model, "threads": int(THREADS), "tokens_per_s": speed, "fastest_tokens_per_s": fast, "ms": ms,
            "peak_flops": peaks, "best_peer": best, "notes": notes}


def sides_of(words):
    sides, known = ["ours, ordered", "eager", "compile", "ours, fast"], list(PEERS)
    if "tune" in words:
        sides = known
        if not rounds.peer_python():
            sys.exit("cpu_train.sh: nothing to tune without PyTorch: bench/peers/setup.sh installs it")
    elif not rounds.peer_python():
        sides = [s for s in sides if s not in PEERS]
        print("PyTorch: not measured, no environment (bench/peers/setup.sh makes one)")
    if OTHER and "tune" not in words:
        sides = [s for s in sides if s not in PEERS] + ["other, ordered", "other, fast"]
    if not tcmalloc():
        print("tcmalloc: not here (Debian: libtcmalloc-minimal4), so PyTorch runs on glibc's malloc")
    return sides


def main():
    words = sys.argv[1:]
    models = [m for m in MODELS if m in words or not {"10m", "124m"} & set(words)]
    sides, result = sides_of(words), []
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            if sides == list(PEERS):  # nothing of ours runs: take the peak from one short run
                result.append(show(model, *measure(model, ["ours, ordered"] + sides, folder)))
            else:
                result.append(show(model, *measure(model, sides, folder)))
    rounds.say_disturbed()
    rounds.write_json(os.environ.get("JSON"), result)


if __name__ == "__main__":
    main()
