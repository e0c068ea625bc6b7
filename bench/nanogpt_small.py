"""nanogpt_small.py TEXT SEED... -- see bench/nanogpt_small.sh."""
import json
import os
import sys
import tempfile

import rounds

LR, STEPS = os.environ.get("LR", "2e-3"), os.environ.get("STEPS", "2000")
THREADS = os.environ.get("THREADS", str(len(os.sched_getaffinity(0))))
GOAL = float(os.environ.get("GOAL", "1.88"))


def run_ours(text, seed, folder):
    """[step, seconds of training, validation loss] of each evaluation, without the time that evaluating took."""
    run = os.path.join(folder, "run.yaml")
    with open(os.path.join(rounds.HERE, "nanogpt_small.yaml"), encoding="utf-8") as source, \
            open(run, "w", encoding="utf-8") as f:
        f.write(source.read().replace("TEXT", text))
    settings = {"out": os.path.join(folder, "run"), "train.seed": seed, "train.lr": LR, "train.min_lr": "auto",
                "train.steps": STEPS, "train.warmup": min(100, int(STEPS) // 2), "eval.every": 100,
                "eval.sequences": 1000000, "device.threads": THREADS}
    command = [os.path.join(rounds.ROOT, "lineshaft"), "train", run, "--json", "--fresh"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    seconds, losses, points = 0.0, {}, []
    for line in rounds.run(f"lineshaft seed {seed}", command).stdout.splitlines():
        e = json.loads(line)
        if e["event"] == "eval":  # comes before its step's own event
            losses[e["step"]] = e["val_loss"]
        elif e["event"] == "step":
            seconds += (e["ms"] - e["split"]["eval"]) / 1e3
            if e["step"] in losses:
                points.append([e["step"], seconds, losses[e["step"]]])
    return points


def run_peer(way, text, seed):
    command = [rounds.PEER, os.path.join(rounds.HERE, "peers/nanogpt_small.py"), text, seed, LR, STEPS, way]
    done = rounds.run(f"PyTorch {way} seed {seed}", command, {"OMP_NUM_THREADS": THREADS}, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return json.loads(done.stdout.splitlines()[-1])["points"]


def reached(points):
    return next((seconds for _, seconds, loss in points if loss <= GOAL), None)


def show(side, seed, points):
    if isinstance(points, str):
        print(f"{side:16} {seed:>6} not measured: {points}")
        return
    first = reached(points)
    step = next((s for s, _, loss in points if loss <= GOAL), None)
    speed = points[-1][0] * 12 * 64 / points[-1][1]
    print(f"{side:16} {seed:>6} {f'{first:.1f} s (step {step})' if first else 'not reached':>22} "
          f"{points[-1][2]:10.4f} {points[-1][1]:9.1f} s {speed:9.0f}", flush=True)


def main():
    text, seeds = os.path.realpath(sys.argv[1]), sys.argv[2:] or ["1337", "1", "2"]
    sides = ["lineshaft"] + (["PyTorch eager", "PyTorch compile"] if rounds.peer_python() else [])
    if len(sides) == 1:
        print("PyTorch: not measured, no environment (bench/peers/setup.sh makes one)")
    print(f"training time until validation loss {GOAL} is first reached; {THREADS} threads, learning rate {LR}, "
          f"{STEPS} steps,\nevaluated every 100 steps; evaluating, starting and compiling are counted on no side\n")
    print(f"{'side':16} {'seed':>6} {'until ' + str(GOAL):>22} {'last loss':>10} {'all steps':>11} {'tokens/s':>9}")
    times, result = {side: [] for side in sides}, []
    for i, seed in enumerate(seeds):
        for side in rounds.in_turn(sides, i):
            with tempfile.TemporaryDirectory() as folder:
                points = run_ours(text, seed, folder) if side == "lineshaft" else \
                    run_peer(side.split()[1], text, seed)
            show(side, seed, points)
            if not isinstance(points, str):
                times[side].append(reached(points) or float("inf"))
                result.append({"side": side, "seed": seed, "points": points})
    peers = [(rounds.median(times[s]), s) for s in sides[1:] if times[s]]
    ours = rounds.median(times["lineshaft"])
    if peers and ours < float("inf"):
        best = min(peers)
        print(f"\nmedian of {len(seeds)} seeds: lineshaft {ours:.1f} s, {best[1]} {best[0]:.1f} s, "
              f"ratio {ours / best[0]:.2f} of the peer's time")
    rounds.say_disturbed()
    rounds.write_json(os.environ.get("JSON"), result)


main()
