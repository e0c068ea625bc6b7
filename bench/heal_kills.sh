#!/bin/sh
# heal_kills.sh -- kill -9 at random instants; every run must end with the weights of the undisturbed one.
#
#   bench/heal_kills.sh [RUNS] [KILLS] [--set KEY=VALUE ...]
#
# RUNS runs (200) of a tiny model on four ranks in ordered mode, KILLS kills (1) of a random rank in each, at instants
# drawn over the whole run, start and end included. Checked after each: exit code 0, the hash of the weights, every
# step told once with the loss of the undisturbed run, one incident for each loss that was seen, nothing left running.
# SEED=n draws other instants, RANKS=n takes as many ranks. SECOND=s: each kill is followed by another one of any rank up to s seconds later, most of
# them while the ranks meet again. Prints detection (the incident's detection_ms), detection to training (its seconds) and the gap between two steps.
# shellcheck source=bench/fault_lib.sh
. "$(dirname "$0")/job.sh"
tiny_run kills 150 25
python3 - "$@" <<'PY'
import collections, json, os, random, signal, subprocess, sys, threading, time

args = sys.argv[1:]
numbers = []
while args and args[0].isdigit():
    numbers.append(int(args.pop(0)))
runs, kills = (numbers + [200, 1][len(numbers):])[:2]
rng = random.Random(int(os.environ.get("SEED", "1")))
second = float(os.environ.get("SECOND", "0"))
program = os.environ["LINESHAFT"]


def ranks_of(agent):
    """The ranks that run below an agent: children of its supervisor."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(pid)] = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    keepers = [pid for pid, parent in parents.items() if parent == agent]
    return [pid for pid, parent in parents.items() if parent in keepers]


def train(out, instants=(), limit=600):
    command = [program, "train", "run.yaml", "-n", os.environ.get("RANKS", "4"), "--json", "--set", "out=" + out] + args
    begun = time.monotonic()
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=open(out + ".err", "w"), text=True)
    killed = []

    def kill():
        for at in sorted(instants):
            time.sleep(max(0, begun + at - time.monotonic()))
            ranks = ranks_of(p.pid)
            if p.poll() is None and ranks:
                victim = rng.choice(ranks)
                try:
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)
                except ProcessLookupError:
                    pass
    killer = threading.Thread(target=kill)
    killer.start()
    guard = threading.Timer(limit, p.kill)
    guard.start()
    rows, stamps = [], []
    for line in p.stdout:
        rows.append(json.loads(line))
        stamps.append(time.monotonic() - begun)
    code = p.wait()
    guard.cancel()
    killer.join()
    return code, rows, stamps, killed


def steps(rows):
    return [(r["step"], r["loss"]) for r in rows if r["event"] == "step"]


code, plain, stamps, _ = train("plain")
if code:
    sys.exit(open("plain.err").read())
want, length = plain[-1]["weights_hash"], stamps[-1]
print(f"undisturbed: {length:.2f} s, weights {want}")
bad, seconds, noticed, gaps, sources, lost, whole = 0, [], [], [], collections.Counter(), 0, 0
for n in range(runs):
    out = f"run{n}"
    instants = [rng.uniform(0.02, length * (0.95 + 0.05 * kills)) for _ in range(kills)]
    if second > 0:
        instants += [at + rng.uniform(0, second) for at in instants]
    code, rows, stamps, killed = train(out, instants, 60 + 10 * length)  # else it hangs
    incidents = [r for r in rows if r["event"] == "incident" and r["kind"] == "lost"]
    on_disk = any(r["source"] != "memory" for r in incidents)
    seconds += [r["seconds"] for r in incidents]
    noticed += [r["detection_ms"] for r in incidents]
    sources.update(r["source"] for r in incidents)
    told = steps(map(json.loads, open(out + "/events.jsonl"))) if os.path.exists(out + "/events.jsonl") else []
    for i, r in enumerate(rows):
        if r["event"] == "incident" and r["kind"] == "lost":
            before = [t for q, t in zip(rows[:i], stamps) if q["event"] == "step"]
            after = [t for q, t in zip(rows[i:], stamps[i:]) if q["event"] == "step"]
            if before and after:
                gaps.append(after[0] - before[-1])
    once = dict(told) == dict(steps(plain)) if on_disk else told == steps(plain)
    end = rows[-1] if rows else {}
    if code or end.get("weights_hash") != want or not once:
        bad += 1
        print(f"run {n}: exit {code}, killed {killed} at {instants}, hash {end.get('weights_hash')}, "
              f"steps {'as they should be' if once else 'differ: ' + str(len(told))}\n{open(out + '.err').read()}")
    lost += len(killed)
    whole += stamps[-1] if stamps else 0
    subprocess.run(["rm", "-rf", out])
def quantile(xs, q):
    return sorted(xs)[min(len(xs) - 1, int(q * len(xs)))] if xs else float("nan")
print(f"{runs - bad} of {runs} runs ended with the undisturbed weights; {lost} ranks killed, {len(seconds)} recoveries, from "
      + ", ".join(f"{source} {n}" for source, n in sources.most_common()))
print(f"detection: median {quantile(noticed, .5):.1f} ms, 99 % {quantile(noticed, .99):.1f} ms")
print(f"from the loss to training: median {quantile(seconds, .5):.3f} s, 99 % {quantile(seconds, .99):.3f} s, most "
      f"{max(seconds, default=float('nan')):.3f} s; between the steps around it: median {quantile(gaps, .5):.3f} s, "
      f"99 % {quantile(gaps, .99):.3f} s; {100 * runs * length / max(whole, 1e-9):.0f} % of the steps per second of the undisturbed run")
sys.exit(bad > 0)
PY
