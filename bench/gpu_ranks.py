"""gpu_ranks.py SIDE... -- see bench/gpu_ranks.sh.

Ours is timed by its clock from step to step, on the first rank; PyTorch by the wall from barrier to barrier, as its script does
it. The median of all timed steps counts.
"""
import json
import os
import sys
import tempfile
import time

import gpu
import rounds

RANKS = [int(n) for n in os.environ.get("RANKS", "2 4").split()]
STEPS, ROUNDS, LIMIT = (int(os.environ.get(k, d)) for k, d in (("STEPS", "15"), ("ROUNDS", "1"), ("LIMIT", "100")))
OURS = {"one": ["train.reduce=fast"],
        "host": ["train.reduce=fast", "exchange.device=host"],
        "nccl": ["train.reduce=fast", "exchange.device=nccl"],
        "ordered": ["train.reduce=ordered", "exchange.device=nccl"],
        "zero1": ["train.reduce=fast", "exchange.device=nccl", "mesh.zero=1"],
        "zero2": ["train.reduce=fast", "exchange.device=nccl", "mesh.zero=2"],
        "zero3": ["train.reduce=fast", "exchange.device=nccl", "mesh.zero=3"],
        "ordered3": ["train.reduce=ordered", "exchange.device=nccl", "mesh.zero=3"],
        "host3": ["train.reduce=fast", "exchange.device=host", "mesh.zero=3"],
        "pp": ["train.reduce=fast", "exchange.device=nccl", "mesh.pp={ranks}"],
        "pphost": ["train.reduce=fast", "exchange.device=host", "mesh.pp={ranks}"],
        "tp": ["train.reduce=fast", "exchange.device=nccl", "mesh.tp={ranks}", "mesh.sp=false"],
        "sp": ["train.reduce=fast", "exchange.device=nccl", "mesh.tp={ranks}"],
        "tphost": ["train.reduce=fast", "exchange.device=host", "mesh.tp={ranks}", "mesh.sp=false"],
        "cp": ["train.reduce=fast", "exchange.device=nccl", "mesh.cp={ranks}"]}
PEERS = {"ddp": "ddp", "fsdp": "fsdp", "megatron": "tp"}  # and the mode of ranks_torch.py


def run_ours(side, ranks, folder, log):
    """Milliseconds of each timed step, or None."""
    command = [gpu.PROGRAM, "train", os.path.join(rounds.HERE, "gpu/gpt2.yaml"), "--json", "--fresh"]
    command += ["-n", str(ranks)] if ranks > 1 else []
    for s in [*OURS[side], f"out={os.path.join(folder, 'run')}", f"train.steps={gpu.WARM + STEPS}"]:
        command += ["--set", s.replace("{ranks}", str(ranks))]
    ms = []
    for line in gpu.lines_of(command, {}, folder, log, LIMIT):
        event = json.loads(line)
        if event["event"] == "step":
            ms.append(event["ms"])
        if len(ms) == gpu.WARM + STEPS:
            break  # the checkpoint takes longer than the steps
    return ms[gpu.WARM:] if len(ms) == gpu.WARM + STEPS else None


def run_torch(side, ranks, folder, log):
    script = os.path.abspath(os.path.join(gpu.PEERS, "ranks_torch.py"))
    command = [gpu.PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), script, "--mode", PEERS[side], "--model", "gpt2",
               "--batch", "64", "--seq", "1024", "--steps", str(STEPS)]
    env = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor")}
    for line in gpu.lines_of(command, env, folder, log, LIMIT):
        if line.startswith("RESULT "):
            return [json.loads(line[7:])["ms"]]
    return None


def run(side, ranks, folder):
    with open(os.path.join(folder, "log"), "w+", encoding="utf-8") as log:
        ms = run_ours(side, ranks, folder, log) if side in OURS else run_torch(side, ranks, folder, log)
        return ms or "not measured: " + gpu.last_words(log)


def main():
    sides = sys.argv[1:] or ["one", "host", "nccl", "ordered", "zero1", "ddp"]
    for s in sides:
        if s not in OURS and s not in PEERS:
            sys.exit(f"there is no side {s}: {' '.join([*OURS, *PEERS])}")
    works = [(s, n) for n in RANKS for s in sides if s != "one"]
    works = ([("one", 1)] if "one" in sides else []) + works
    told = {w: [] for w in works}
    with tempfile.TemporaryDirectory() as folder:
        gpu.make_tokens(50257, folder)
        for i in range(ROUNDS):
            for work in rounds.in_turn(works, i):
                begin = time.monotonic()
                ms = run(*work, folder)
                told[work].append(ms)
                shown = ms if isinstance(ms, str) else f"{rounds.median(ms):.1f} ms (least {min(ms):.1f}, most {max(ms):.1f})"
                print(f"{work[0]:8} {work[1]} ranks: {shown}; {time.monotonic() - begin:.0f} s in all", flush=True)
    print("\n| side | ranks | ms a step |\n| --- | --- | --- |")
    for (side, n), values in told.items():
        good = [rounds.median(v) for v in values if not isinstance(v, str)]
        print(f"| {side} | {n} | {f'{rounds.median(good):.1f}' if good else values[0]} |")


main()
