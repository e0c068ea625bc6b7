#!/bin/sh
# strangers.sh [N] -- callers that do not know the secret, at every port of a job that trains: row 32 of the table of faults.
#
# N callers (20000) with random bytes, fewer than a hello has, as many and more, and 100 that connect and say nothing. The job
# must end with the weights and losses of the undisturbed one, without an incident; prints how much memory its agents took at most.
# shellcheck source=bench/fault_lib.sh
. "$(dirname "$0")/job.sh"
tiny_run strangers 1000 0
python3 - "${1:-20000}" <<'PY'
import json, os, random, re, socket, subprocess, sys, threading, time
wanted, program = int(sys.argv[1]), os.environ["LINESHAFT"]
rng = random.Random(1)


def told(text):
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [(r["step"], r["loss"]) for r in rows if r["event"] == "step"], [r["weights_hash"] for r in rows if r["event"] == "summary"], \
        [r for r in rows if r["event"] == "incident"]


def ports(pids):
    """Where processes listen."""
    lines = subprocess.run(["ss", "-Hltnp"], stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [int(l.split()[3].rsplit(":", 1)[1]) for l in lines if any(f"pid={p}," in l for p in pids)]


def family(pid):
    parents = {}
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(p)] = int(open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    found = [pid]
    for p in found:
        found += [child for child, parent in parents.items() if parent == p]
    return found


def most_memory(pid):
    try:
        return int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{pid}/status").read())[1])
    except (OSError, TypeError):
        return 0


plain = subprocess.run([program, "train", "run.yaml", "--json", "--set", "out=plain"], stdout=subprocess.PIPE, text=True, check=True)
want, calls, runs, memory = told(plain.stdout), 0, 0, 0
while calls < wanted:
    runs += 1
    err = f"err{runs}"
    first = subprocess.Popen([program, "train", "run.yaml", "--json", "-n", "1", "--nodes", "2", "--listen", "127.0.0.1:0", "--secret", "job.secret",
                              "--set", f"out=run{runs}"], stdout=open("out", "w"), stderr=open(err, "w"))
    address = None
    while not address and first.poll() is None:
        address = re.search(r"waiting for nodes that join (\S+)", open(err).read())
        time.sleep(0.02)
    agent = subprocess.Popen([program, "agent", "--join", address[1], "--secret", "job.secret", "-n", "1"], stderr=open(err + ".agent", "w"))
    silent = []
    while first.poll() is None:
        doors = ports(family(first.pid) + family(agent.pid))
        memory = max(memory, most_memory(first.pid), most_memory(agent.pid))
        for _ in range(200):
            if not doors:
                break
            caller = socket.socket()
            caller.settimeout(0.5)
            try:
                caller.connect(("127.0.0.1", rng.choice(doors)))
                calls += 1
                if len(silent) < 100:
                    silent.append(caller)
                    continue
                caller.send(rng.randbytes(rng.choice([1, 63, 64, 65, 4096])))
            except OSError:
                pass
            caller.close()
    agent.wait()
    for caller in silent:
        caller.close()
    got = told(open("out").read())
    if first.returncode or agent.returncode or got != want:
        sys.exit(f"run {runs}: exit {first.returncode} and {agent.returncode}, incidents {got[2]}: {open(err).read()}{open(err + '.agent').read()}")
print(f"{calls} strangers in {runs} runs: the same weights, no incident; an agent had {memory / 1024:.0f} MiB at most")
PY
