"""balance.py -- see bench/balance.sh."""
import json
import os
import tempfile

import cpu_train
import rounds

RANKS = int(os.environ.get("RANKS", "2"))
SLOW = RANKS - 1
SEQUENCES = 12 * RANKS
STEPS = int(os.environ.get("STEPS", "30"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SETTLED = 12  # steps until the first new split holds


def measure(reduce, balance, folder):
    """Median step after the split has settled, what the ranks need for a leaf, and how many they have."""
    settings = cpu_train.our_settings("10m", "builtin:stories", folder) | {
        "train.reduce": reduce, "mesh.balance": balance, "batch.sequences": SEQUENCES, "batch.leaf": 1, "batch.group": 2,
        "train.steps": STEPS, "device.threads": 1}
    command = cpu_train.our_command(settings, ["-n", str(RANKS)])
    command[0] = os.path.join(rounds.ROOT, "build/test/lineshaft")
    done = rounds.run(f"{reduce}, {balance}", command, {"LINESHAFT_FAULT": f"train.slow.{SLOW}@1+"})
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    steps = [e["ms"] for e in events if e["event"] == "step"][SETTLED:]
    return rounds.median(steps), events[-1]["rank_ms_per_leaf"], events[-1]["rank_sequences"]


def main():
    told = []
    with tempfile.TemporaryDirectory() as folder:
        for reduce in os.environ.get("REDUCE", "ordered,fast").split(","):
            sides = {"off": [], "auto": []}
            for i in range(ROUNDS):
                for balance in rounds.in_turn(list(sides), i):
                    sides[balance].append(measure(reduce, balance, folder))
            even = rounds.median([ms for ms, _, _ in sides["off"]])
            auto = rounds.median([ms for ms, _, _ in sides["auto"]])
            leaf = [rounds.median([times[r] for _, times, _ in sides["auto"]]) for r in range(RANKS)]
            own = sides["auto"][-1][2]
            # What is not computing (exchange, update) stays; computing takes all ranks equally long in parts of leaves.
            rest = auto - max(n * ms for n, ms in zip(own, leaf))
            ideal = rest + SEQUENCES / sum(1 / ms for ms in leaf)
            print(f"{reduce}: rank {SLOW} of {RANKS} at half speed, {SEQUENCES} leaves, ms per leaf "
                  + " ".join(f"{ms:.1f}" for ms in leaf) + f": equal slices {even:.0f} ms, auto {own} {auto:.0f} ms, "
                  f"ideal {ideal:.0f} ms: {100 * (auto / ideal - 1):+.1f} % (at most +15 %)")
            told.append({"reduce": reduce, "even_ms": even, "auto_ms": auto, "ideal_ms": ideal, "own": own, "leaf_ms": leaf})
    if os.environ.get("JSON"):
        json.dump(told, open(os.environ["JSON"], "w"))
    for what, share in rounds.disturbed:
        print(f"beside \"{what}\" others used {100 * share:.0f} % of the machine")


main()
