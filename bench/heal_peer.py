"""See heal_peer.sh."""
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import rounds

RANKS = 4
RESTARTS = 20
WAIT = float(os.environ.get("WAIT", "120"))
RUN = """name: kills
model: {family: gpt2, layers: 2, width: 32, heads: 2, context: 32}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 8, leaf: 2}
train: {steps: 100000, lr: 3e-3, schedule: constant, warmup: 0, seed: 3, reduce: ordered}
checkpoint: {every: 0}
eval: {every: 0}
"""


def end(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ours(folder):
    with open(f"{folder}/run.yaml", "w", encoding="ascii") as file:
        file.write(RUN)
    process = subprocess.Popen([f"{rounds.ROOT}/lineshaft", "train", f"{folder}/run.yaml", "-n", str(RANKS), "--json",
                                "--set", f"out={folder}/out"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True, start_new_session=True)
    ranks, killed, last, healed = {}, None, 0, False
    try:
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "rank" and killed is None:
                ranks[event["rank"]] = event["pid"]
            elif event["event"] == "step":
                if killed is None and event["step"] == 100:
                    os.kill(ranks[RANKS - 1], signal.SIGKILL)
                    killed = time.monotonic()
                elif killed is not None and healed:
                    return time.monotonic() - killed, f"{last - event['step'] + 1} steps made again"
                last = event["step"]
            elif event["event"] == "incident":
                healed = True
    finally:
        end(process)
    return None, "it ended"


def notes(name):
    try:
        with open(name, encoding="ascii") as file:
            return file.read().splitlines()
    except OSError:
        return []


def until(process, found):
    over = time.monotonic() + WAIT
    while time.monotonic() < over and process.poll() is None:
        value = found()
        if value is not None:
            return value
        time.sleep(0.005)
    return None


def torchrun(folder):
    process = subprocess.Popen([rounds.PEER, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS}",
                                f"--max_restarts={RESTARTS}", f"{rounds.HERE}/peers/elastic.py", folder], start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def victim():
        lines = notes(f"{folder}/0.{RANKS - 1}")
        return int(lines[0]) if len(lines) > 100 else None

    def stepping():
        """When the slowest worker of a later start had its first step."""
        for start in range(1, RESTARTS + 1):
            first = [notes(name)[1:2] for name in glob.glob(f"{folder}/{start}.*")]
            if len(first) == RANKS and all(first):
                return start, max(float(line[0].split()[1]) for line in first)
        return None
    try:
        pid = until(process, victim)
        if pid is None:
            return None, f"no 100 steps within {WAIT:.0f} s"
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        again = until(process, stepping)
        if again is None:
            return None, f"no step within {time.monotonic() - killed:.0f} s of the kill"
        return again[1] - killed, f"from step 0, start {again[0]}"
    finally:
        end(process)


def main(count):
    sides = {"lineshaft": ours}
    if rounds.peer_python():
        sides["torchrun"] = torchrun
    else:
        print("torchrun: not measured, no environment (bench/peers/setup.sh makes one)")
    seconds = {name: [] for name in sides}
    for i in range(count):
        for name in rounds.in_turn(list(sides), i):
            rounds.wait_until_quiet()
            with tempfile.TemporaryDirectory() as folder:
                took, note = sides[name](folder)
            print(f"{name:10} " + (f"{took:8.3f} s, {note}" if took else f"    none: {note}"), flush=True)
            if took:
                seconds[name].append(took)
    best = {name: rounds.median(took) for name, took in seconds.items() if took}
    print(f"\nfrom kill -9 of one of {RANKS} to the next step, medians of {count}: "
          + ", ".join(f"{name} {took:.3f} s" for name, took in best.items()))
    if len(best) == 2:
        print(f"{best['torchrun'] / best['lineshaft']:.0f} times faster than torchrun (must 10)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
